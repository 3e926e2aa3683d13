/* One layer's experts on disk in a step: what is sent for, what has come, what can be computed. See disk.h.
 *
 * An expert that is missing gets a slot if the policy gives it one; its reads bring it there. The others pass
 * through cells: whole, until the layer is done, or where they are more than there are cells in halves, first
 * their gates and ups, then their downs, in the order of the list. A cell whose half is computed takes the
 * next one. Never waits but for a read. */
#include <string.h>

#include "common/base/units.h"
#include "common/model/content.h"
#include "common/plan/engine_limits.h"
#include "worker-cpu/disk/private.h"

static enum disk_stage stage_of(enum slot_role role)
{
    return role == SLOT_DOWN ? DISK_DOWN : DISK_GLU;
}

/* Sends for one role of an expert, into room that begins at `to`. */
static void send(struct disk *d, uint32_t need, enum slot_role role, char *to, struct disk_read *r)
{
    const struct disk_unit *unit = &d->room.unit[d->unit];
    const uint32_t expert = d->need[need].expert;
    const struct disk_role *of = &unit->role[role];
    const struct disk_source from = disk_source_of(d->model, of, d->experts, expert);
    const uint64_t inside = from.offset % DISK_ALIGN, bytes = round_up(inside + of->bytes, DISK_ALIGN);
    *r = (struct disk_read){.read = {.fd = d->shards.fd[from.shard],
                                     .offset = from.offset - inside,
                                     .bytes = bytes,
                                     .least = inside + of->bytes,
                                     .to = to + of->at},
                            .need = need,
                            .role = role};
    *disk_place_at(d, d->unit, role, expert) = r->read.to + inside;
    d->need[need].there[stage_of(role)] = true;
    d->need[need].pending[stage_of(role)]++;
    d->reads++;
    d->bytes_read += bytes;
    disk_reader_submit(d->reader, &r->read);
}

/* The roles of one stage, or of all. */
static void send_stage(struct disk *d, uint32_t need, bool whole, enum disk_stage stage, char *to,
                       struct disk_read *reads)
{
    for (int r = 0; r < SLOT_ROLES; r++)
        if (whole || stage_of((enum slot_role)r) == stage) send(d, need, (enum slot_role)r, to, &reads[r]);
}

static void forget(struct disk *d, uint32_t expert, bool whole, enum disk_stage stage)
{
    for (int r = 0; r < SLOT_ROLES; r++)
        if (whole || stage_of((enum slot_role)r) == stage)
            *disk_place_at(d, d->unit, (enum slot_role)r, expert) = NULL;
}

/* Gives free cells to those that pass. */
static void fill_cells(struct disk *d)
{
    const uint32_t all = d->halves ? DISK_STAGES * d->passings : d->passings;
    for (uint32_t c = 0; c < d->room.cells && d->sent < all; c++) {
        struct disk_cell *cell = &d->cell[c];
        if (cell->need != DISK_NONE) continue;
        cell->need = d->passing[d->sent % d->passings];
        cell->whole = !d->halves;
        cell->stage = d->sent < d->passings ? DISK_GLU : DISK_DOWN;
        d->sent++;
        send_stage(d, cell->need, cell->whole, cell->stage, cell->memory,
                   &d->read[SLOT_ROLES * (d->room.slots + c)]);
    }
}

/* Takes an expert whose computation a stage has ended out of its cell. */
static void leave_cell(struct disk *d, uint32_t need, enum disk_stage stage)
{
    for (uint32_t c = 0; c < d->room.cells; c++) {
        struct disk_cell *cell = &d->cell[c];
        if (cell->need != need || (cell->whole ? DISK_DOWN : cell->stage) != stage) continue;
        forget(d, d->need[need].expert, cell->whole, stage);
        cell->need = DISK_NONE;
    }
}

void disk_begin(struct disk *d, int32_t layer, const uint32_t *expert, uint32_t count)
{
    d->unit = 0;
    while ((int32_t)unit_layer(d->room.unit[d->unit].unit) != layer) d->unit++;
    const uint32_t *slot = expert_slots_table(d->policy, d->unit);
    d->needs = count;
    d->passings = d->sent = d->turns = 0;
    memset(d->computed, 0, sizeof d->computed);
    expert_slots_used(d->policy, d->unit, expert, count);
    _Atomic uint64_t *uses = arena_expert_uses_of(d->arena) + (size_t)d->unit * d->experts;
    for (uint32_t i = 0; i < count; i++) atomic_fetch_add_explicit(&uses[expert[i]], 1, memory_order_relaxed);
    for (uint32_t i = 0; i < count; i++) {
        struct disk_need *need = &d->need[i];
        const bool present = slot[expert[i]] != EXPERT_SLOT_NONE;
        *need = (struct disk_need){.expert = expert[i], .there = {present, present}};
        if (present) continue;
        need->admitted = expert_slots_admit(d->policy, d->unit, expert[i], &need->move);
        if (!need->admitted) {
            d->passing[d->passings++] = i;
            continue;
        }
        if (need->move.evicted != EXPERT_SLOT_NONE) forget(d, need->move.evicted, true, DISK_GLU);
        send_stage(d, i, true, DISK_GLU,
                   d->slots[d->unit] + need->move.slot * d->room.unit[d->unit].slot_bytes,
                   &d->read[SLOT_ROLES * need->move.slot]);
    }
    d->halves = d->passings > d->room.cells;
    fill_cells(d);
}

static int check(struct disk *d, const struct disk_read *r, struct helm_err *err)
{
    const uint32_t expert = d->need[r->need].expert;
    const struct disk_role *role = &d->room.unit[d->unit].role[r->role];
    const struct disk_source from = disk_source_of(d->model, role, d->experts, expert);
    const struct disk_read_of of = {role->tensor, expert, from.shard, from.offset};
    const uint64_t digest = content_of(*disk_place_at(d, d->unit, r->role, expert), role->bytes, from.offset);
    return disk_check(d, &r->read, &of, digest, disk_digest_at(d, d->unit, r->role, expert), err);
}

static int take_read(struct disk *d, struct disk_reading *done, struct helm_err *err)
{
    struct disk_read *r = (struct disk_read *)done; /* its first member */
    struct disk_need *need = &d->need[r->need];
    int rc = check(d, r, err);
    if (rc) return rc;
    need->pending[stage_of(r->role)]--;
    if (need->admitted && !need->pending[DISK_GLU] && !need->pending[DISK_DOWN])
        expert_slots_arrived(d->policy, &need->move);
    return 0;
}

/* Those that a stage can compute, into d->turn. */
static void find_turn(struct disk *d, enum disk_stage stage)
{
    d->turns = 0;
    for (uint32_t i = 0; i < d->needs; i++) {
        const struct disk_need *need = &d->need[i];
        if (!need->computed[stage] && need->there[stage] && !need->pending[stage]) d->turn[d->turns++] = i;
    }
}

/* The experts of the turn before are computed. */
static void end_turn(struct disk *d, enum disk_stage stage)
{
    for (uint32_t i = 0; i < d->turns; i++) {
        d->need[d->turn[i]].computed[stage] = true;
        leave_cell(d, d->turn[i], stage);
    }
    d->computed[stage] += d->turns;
    d->turns = 0;
    if (d->passings) fill_cells(d);
}

int disk_next(struct disk *d, enum disk_stage stage, uint32_t *turn, uint32_t *count, struct helm_err *err)
{
    struct disk_reading *done;
    int rc = 0;
    *count = 0;
    end_turn(d, stage);
    if (d->computed[stage] == d->needs) return 0;
    while (!rc && (done = disk_reader_done(d->reader, false))) rc = take_read(d, done, err);
    find_turn(d, stage);
    while (!rc && !d->turns) {
        done = disk_reader_done(d->reader, true);
        rc = done ? take_read(d, done, err)
                  : helm_fail(err, HELM_E_INTERNAL, "layer %u waits for an expert that was not sent for",
                              unit_layer(d->room.unit[d->unit].unit));
        if (!rc) find_turn(d, stage);
    }
    if (rc) return rc;
    *count = d->turns;
    memcpy(turn, d->turn, d->turns * sizeof *turn);
    return 0;
}

void disk_end_step(struct disk *d, uint32_t tokens)
{
    if (!d->policy) return; /* no experts lie on disk */
    expert_slots_step(d->policy);
    const struct expert_slots_seen now = expert_slots_seen(d->policy);
    if (tokens <= ENGINE_FEW_TOKENS) {
        d->counted.steps++;
        d->counted.used += now.used - d->last.used;
        d->counted.present += now.present - d->last.present;
    }
    d->counted.moved = now.moved;
    d->last = now;
    expert_uses_write(d->arena, &d->before, &d->counted);
}
