/* Slots of experts. See slots.h. */
#include "worker-gpu/weights/slots.h"

#include <stdlib.h>
#include <string.h>

#include "common/base/log.h"
#include "common/formats/packed.h"
#include "common/worker/expert_uses.h"

static uint32_t experts_of(const struct gpu_slots *s)
{
    return s->model->config.router.experts;
}

/* Entries for all experts; the word after the table lies there. */
static uint64_t table_count(const struct gpu_slots *s)
{
    return (uint64_t)s->place.units * experts_of(s);
}

static uint64_t table_bytes(const struct gpu_slots *s)
{
    return (table_count(s) + 1 + experts_of(s)) * sizeof(uint32_t);
}

const uint32_t *gpu_slots_direct(const struct gpu_slots *s)
{
    return s->table_device + table_count(s);
}

const uint32_t *gpu_slots_table(const struct gpu_slots *s, uint32_t index)
{
    return s->table_device + (size_t)index * experts_of(s);
}

static const struct gpu_matrix *matrix_of(const struct gpu_slots *s, uint32_t index, int role)
{
    return gpu_matrix_of(s->weights, slot_tensor((enum slot_role)role),
                         (int32_t)unit_layer(s->place.unit[index].unit));
}

static bool is_packed(const struct gpu_matrix *m)
{
    return tensor_format_of(m->format)->variable;
}

const uint32_t *gpu_slots_table_chunk(const struct gpu_slots *s, uint32_t index)
{
    return is_packed(matrix_of(s, index, SLOT_GATE)) ? gpu_slots_direct(s) + 1 : gpu_slots_table(s, index);
}

int gpu_slots_plan(const struct gpu_weights *weights, const struct plan *plan, struct gpu_slots *s,
                   struct helm_err *err)
{
    const bool here = plan_home_processor(PLAN_HOME_MIXED) == weights->self;
    const uint32_t units = here ? plan_mixed_units(plan) : 0; /* another device has its own */
    memset(s, 0, sizeof *s);
    s->model = weights->model;
    s->plan = plan;
    s->weights = weights;
    s->place.unit = calloc((size_t)units + 1, sizeof *s->place.unit);
    s->move = calloc((size_t)plan_experts(plan)->moves + 1, sizeof *s->move);
    if (!s->place.unit || !s->move)
        return helm_fail(err, HELM_E_NOMEM, "no memory for slots of the experts of %u layers", units);
    return here ? slots_place(s->model, plan, &s->place, err) : 0;
}

int gpu_slots_open(struct gpu_slots *s, struct device *device, const struct arena *arena,
                   struct helm_err *err)
{
    const uint32_t chosen = s->model->config.router.chosen;
    const uint64_t seen = (uint64_t)s->place.units * GPUK_BATCH_MAX * chosen * sizeof(uint32_t);
    const struct expert_slots_case size = {.layers = s->place.units,
                                           .experts = experts_of(s),
                                           .slots = plan_experts(s->plan)->slots,
                                           .half_life = EXPERT_HALF_LIFE,
                                           .cost = plan_experts(s->plan)->move_cost / 1000.0};
    void *memory = NULL;
    s->device = device;
    s->arena = arena;
    if (!s->place.bytes) return 0;
    s->before = expert_uses_before(arena);
    int rc = device_alloc(device, DEVICE_WEIGHTS, s->place.bytes, &memory, err);
    s->memory = memory;
    s->table_device = (uint32_t *)(void *)(s->memory + s->place.tables);
    /* kernels of programs that run alone read what lies there; the copy queue fills it next */
    if (!rc) rc = device->ops->clear(device, DEVICE_COMPUTE, s->memory, s->place.bytes, err);
    if (!rc) rc = device_await(device, DEVICE_COMPUTE, err);
    if (!rc) rc = device_host_alloc(device, table_bytes(s) + seen, &s->pinned, err);
    if (rc) return rc;
    memset(s->pinned, 0, table_bytes(s) + seen);
    s->table = s->pinned;
    s->table[table_count(s)] = plan_experts(s->plan)->direct_permille;
    for (uint32_t e = 0; e < experts_of(s); e++) s->table[table_count(s) + 1 + e] = GPUK_SLOT_ABSENT;
    s->seen = (uint32_t *)(void *)((char *)s->pinned + table_bytes(s));
    rc = device->ops->event_create(device, DEVICE_EVENT_PLAIN, &s->copied, err);
    return rc ? rc : expert_slots_create(&size, &s->policy, err);
}

void gpu_slots_close(struct gpu_slots *s)
{
    if (s->copied) s->device->ops->event_free(s->device, s->copied);
    if (s->pinned) s->device->ops->host_free(s->device, s->pinned);
    if (s->memory) device_free(s->device, DEVICE_WEIGHTS, s->place.bytes, s->memory);
    expert_slots_free(s->policy);
    free(s->place.unit);
    free(s->move);
    memset(s, 0, sizeof *s);
}

/* ---- copies ---- */

/* Where an expert's matrix lies in the arena, and its bytes: of a packed one those of its groups. */
static const char *expert_at(const struct gpu_slots *s, uint32_t index, int role, uint32_t expert,
                             uint64_t *bytes)
{
    const struct gpu_matrix *m = matrix_of(s, index, role);
    uint64_t at = expert * s->place.unit[index].role[role].stride;
    *bytes = s->place.unit[index].role[role].stride;
    if (is_packed(m)) {
        const uint32_t groups = packed_groups(m->rows / experts_of(s));
        at = packed_at(m->offset, expert * groups);
        *bytes = packed_at(m->offset, (expert + 1) * groups) - at;
    }
    return (const char *)m->host + at;
}

/* Whether the expert is small enough for a slot. */
static bool fits(const struct gpu_slots *s, uint32_t index, uint32_t expert)
{
    for (int r = 0; r < SLOT_ROLES; r++) {
        uint64_t bytes;
        (void)expert_at(s, index, r, expert, &bytes);
        if (bytes > s->place.unit[index].role[r].stride) return false;
    }
    return true;
}

/* An expert's matrices into a slot, by the copy queue. */
static int bring(const struct gpu_slots *s, uint32_t index, uint32_t expert, uint32_t slot,
                 struct helm_err *err)
{
    int rc = 0;
    for (int r = 0; r < SLOT_ROLES && !rc && fits(s, index, expert); r++) {
        const struct slot_place *p = &s->place.unit[index].role[r];
        uint64_t bytes;
        const char *from = expert_at(s, index, r, expert, &bytes);
        rc = device_copy(s->device, DEVICE_COPY, DEVICE_TO_DEVICE, s->memory + p->at + slot * p->stride, from,
                         bytes, err);
    }
    return rc;
}

/* Writes the policy's table of a layer, for the device. An expert that is too large for its slot is not
 * there. */
static void note(struct gpu_slots *s, uint32_t index)
{
    const uint32_t *now = expert_slots_table(s->policy, index), experts = experts_of(s);
    uint32_t *table = s->table + (size_t)index * experts;
    static_assert(EXPERT_SLOT_NONE == GPUK_SLOT_ABSENT, "the table is the kernels'");
    memcpy(table, now, experts * sizeof *now);
    for (uint32_t e = 0; e < experts; e++)
        if (table[e] != GPUK_SLOT_ABSENT && !fits(s, index, e)) table[e] = GPUK_SLOT_ABSENT;
    s->changed = true;
}

/* The tables of packed experts, in front of their slots, once they are known to be tables; those that have no
 * slot are told of. */
static int take_tables(const struct gpu_slots *s, struct helm_err *err)
{
    uint32_t large = 0;
    int rc = 0;
    for (uint32_t u = 0; u < s->place.units && !rc; u++) {
        for (int r = 0; r < SLOT_ROLES && !rc; r++) {
            const struct gpu_matrix *m = matrix_of(s, u, r);
            if (!is_packed(m)) continue;
            rc = gpu_weights_check_offsets(m, err);
            if (!rc)
                rc = device_copy(s->device, DEVICE_COPY, DEVICE_TO_DEVICE,
                                 s->memory + s->place.unit[u].role[r].at - packed_groups_at(m->rows),
                                 m->offset, packed_offsets_bytes(m->rows), err);
        }
        for (uint32_t e = 0; e < experts_of(s) && !rc; e++) large += !fits(s, u, e);
    }
    if (!rc && large)
        log_warn(
            "%u experts pack worse than others: they are too large for slots in VRAM, and stay the CPU's",
            large);
    return rc;
}

int gpu_slots_fill(struct gpu_slots *s, struct helm_err *err)
{
    const uint32_t experts = experts_of(s), *first = plan_experts(s->plan)->first,
                   slots = plan_experts(s->plan)->slots, parts = plan_expert_parts(s->plan);
    if (!s->place.bytes) return 0;
    uint64_t *uses = calloc((size_t)s->place.units * experts, sizeof *uses);
    if (!uses) return helm_fail(err, HELM_E_NOMEM, "no memory for the experts of %u layers", s->place.units);
    /* of each expert one part before another has two: then every choice finds some */
    for (uint32_t i = 0; !first && i < s->place.units * experts; i++) uses[i] = parts - i % parts;
    for (uint32_t i = 0; first && i < s->place.units * slots; i++)
        if (first[i] < experts) uses[(size_t)(i / slots) * experts + first[i]] = 1;
    for (uint32_t i = 0; s->before.steps && i < s->place.units * experts; i++)
        uses[i] = atomic_load_explicit(&arena_expert_uses_of(s->arena)[i], memory_order_relaxed);
    expert_slots_fill(s->policy, uses);
    free(uses);
    int rc = take_tables(s, err);
    for (uint32_t u = 0; u < s->place.units && !rc; u++) {
        note(s, u);
        for (uint32_t e = 0; e < experts && !rc; e++)
            if (s->table[(size_t)u * experts + e] != GPUK_SLOT_ABSENT)
                rc = bring(s, u, e, s->table[(size_t)u * experts + e], err);
    }
    if (!rc) rc = device_await(s->device, DEVICE_COPY, err);
    return rc ? rc : gpu_slots_begin(s, err);
}

int gpu_slots_hide(const struct gpu_slots *s, uint32_t *slot, struct helm_err *err)
{
    if (!s->place.bytes) return 0;
    return device_copy(s->device, DEVICE_COMPUTE, DEVICE_TO_DEVICE, slot, s->table + table_count(s) + 1,
                       experts_of(s) * sizeof *slot, err);
}

/* ---- steps ---- */

int gpu_slots_begin(struct gpu_slots *s, struct helm_err *err)
{
    if (!s->changed) return 0;
    s->changed = false;
    return device_copy(s->device, DEVICE_COMPUTE, DEVICE_TO_DEVICE, s->table_device, s->table, table_bytes(s),
                       err);
}

/* Those that were on their way are there. */
static int arrive(struct gpu_slots *s, struct helm_err *err)
{
    int rc = s->moving ? s->device->ops->event_wait(s->device, s->copied, err) : 0;
    for (uint32_t i = 0; i < s->moving && !rc; i++) {
        expert_slots_arrived(s->policy, &s->move[i]);
        note(s, s->move[i].layer);
    }
    s->moving = 0;
    return rc;
}

/* Chooses the experts that come next, and those that go for them. The layer that had the last place in a step
 * is the first in the next one, so that each has its part of what steps bring. */
static void choose(struct gpu_slots *s)
{
    const uint32_t most = plan_experts(s->plan)->moves, units = s->place.units, turn = s->turn;
    for (uint32_t i = 0; i < units && s->moving < most; i++) {
        const uint32_t u = (turn + i) % units,
                       count = expert_slots_moves(s->policy, u, s->move + s->moving, most - s->moving);
        s->moving += count;
        s->turn = u;
        if (count) note(s, u);
    }
    s->chosen = s->moving > 0;
}

int gpu_slots_send(struct gpu_slots *s, struct helm_err *err)
{
    if (!s->chosen) return 0;
    int rc = 0;
    s->chosen = false;
    for (uint32_t i = 0; i < s->moving && !rc; i++)
        rc = bring(s, s->move[i].layer, s->move[i].expert, s->move[i].slot, err);
    return rc ? rc : s->device->ops->event_record(s->device, DEVICE_COPY, s->copied, err);
}

static void count(struct gpu_slots *s, uint32_t tokens)
{
    const uint32_t chosen = s->model->config.router.chosen, experts = experts_of(s);
    _Atomic uint64_t *uses = arena_expert_uses_of(s->arena);
    for (uint32_t u = 0; u < s->place.units; u++) {
        const uint32_t *seen = s->seen + (size_t)u * GPUK_BATCH_MAX * chosen;
        expert_slots_used(s->policy, u, seen, tokens * chosen);
        for (uint32_t i = 0; i < tokens * chosen; i++)
            if (seen[i] < experts)
                atomic_fetch_add_explicit(&uses[(size_t)u * experts + seen[i]], 1, memory_order_relaxed);
    }
    expert_slots_step(s->policy);
    const struct expert_slots_seen now = expert_slots_seen(s->policy);
    /* while experts move the link is theirs */
    const uint32_t direct =
        plan_experts(s->plan)->moves && now.moving ? 0 : plan_experts(s->plan)->direct_permille;
    s->changed |= s->table[table_count(s)] != direct;
    s->table[table_count(s)] = direct;
    expert_uses_write(s->arena, &s->before, &now);
}

int gpu_slots_end(struct gpu_slots *s, uint32_t tokens, struct helm_err *err)
{
    if (!s->place.bytes) return 0;
    count(s, tokens); /* by what lay there while it was computed */
    int rc = arrive(s, err);
    if (!rc && plan_experts(s->plan)->moves) choose(s);
    return rc;
}
