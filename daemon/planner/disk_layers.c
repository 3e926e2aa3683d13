/* The idea of half layers on disk: a dense model that memory has no room for. See ideas.h, disk_plans.h and
 * common/plan/disk.h. Called by disk.c; lists belong to the plan.
 *
 * A device has as many half layers as its memory has room for, host memory as many of the others, and the
 * rest is read in each step: disk_spread.h says which. So a plan is two numbers: half layers in VRAM, and
 * bytes on disk, of which there are as few as fit. */
#include "common/base/log.h"
#include "common/base/units.h"
#include "common/plan/disk.h"
#include "daemon/planner/disk_plans.h"
#include "daemon/planner/disk_spread.h"

/* A shorter default context is taken if less than this part of the bytes is on disk with it. */
#define LESS_ON_DISK 0.75

/* A plan: half layers in VRAM, the embedding with them or not, and about how many bytes of the others are on
 * disk. */
enum device_part { NO_DEVICE, LAYERS, LAYERS_AND_EMBEDDING };
struct split {
    enum device_part device;
    uint32_t in_vram;
    uint64_t on_disk;
};

/* Whether some can be read from disk; *why: the reason where one cannot. */
static bool look(const struct making *m, struct spread_layers *l, struct helm_err *why)
{
    const struct model *model = m->r->model;
    bool any = false;
    *l = (struct spread_layers){.units = unit_count(model_answer_layers(&model->config))};
    if (m->r->profile->disk_read.value <= 0) return false;
    for (uint32_t u = 0; u < l->units; u++) {
        if (disk_ring_room(model, u, &l->room[u], why)) l->room[u] = 0;
        any |= l->room[u] > 0;
    }
    return any;
}

static int write_plan(struct making *m, const struct spread_layers *l, const struct split *split,
                      uint32_t ctx, struct plan *plan, struct helm_err *err)
{
    const enum plan_processor head = plan_home_processor(split->device ? PLAN_HOME_GPU : PLAN_HOME_CPU);
    enum plan_home home[SPREAD_UNITS_MAX];
    spread_homes(l, split->in_vram, split->on_disk, home);
    const struct disk_lists lists = {.home = home,
                                     .embed = split->device == LAYERS_AND_EMBEDDING ? head : PLAN_CPU0,
                                     .head = head,
                                     .ring = spread_ring(l, home),
                                     .ctx = ctx};
    return disk_write(m, &lists, plan, err);
}

/* As many half layers as VRAM has room for, if all others are on disk: split->in_vram. 0: none. */
static int fill_vram(struct making *m, const struct spread_layers *l, uint32_t ctx, struct split *split,
                     struct helm_err *err)
{
    /* attention to a shared cache is on one processor */
    const uint32_t first = m->r->model->config.reads ? l->units / UNIT_PARTS : 1;
    struct plan plan = {.layers = 0};
    uint32_t fits = first - 1, over = l->units + 1;
    int rc = 0;
    while (split->device && over - fits > 1 && !rc) {
        split->in_vram = (fits + over) / 2;
        split->on_disk = UINT64_MAX;
        rc = write_plan(m, l, split, ctx, &plan, err);
        const struct ledger *vram = &plan.memory[plan_home_memory(PLAN_HOME_GPU)];
        *(vram->total <= vram->limit ? &fits : &over) = split->in_vram;
    }
    plan_free(&plan);
    split->in_vram = fits < first ? 0 : fits;
    return rc;
}

/* The plan with as few bytes on disk as host memory has no room for. */
static int fill_host(struct making *m, const struct spread_layers *l, uint32_t ctx, struct split *split,
                     struct plan *plan, struct helm_err *err)
{
    const struct ledger *host = &plan->memory[PLAN_HOST];
    uint64_t largest = 0;
    split->on_disk = UINT64_MAX;
    int rc = write_plan(m, l, split, ctx, plan, err);
    if (rc || !ledger_fits(plan)) return rc;
    const uint64_t left = host->limit - host->total, all = plan->memory[PLAN_DISK].total;
    for (uint32_t u = 0; u < l->units; u++)
        if (l->room[u] > largest) largest = l->room[u];
    split->on_disk = left < all ? all - left : 0;
    while (true) {
        rc = write_plan(m, l, split, ctx, plan, err);
        if (rc || ledger_fits(plan) || split->on_disk == UINT64_MAX) return rc;
        /* the bytes on disk differ a little from the wish, since half layers are whole */
        split->on_disk = split->on_disk < all ? split->on_disk + largest / 2 : UINT64_MAX;
    }
}

/* Tokens of a chunk, as many as pay: each chunk reads what is on disk. Buffers for more of them take the room
 * of half layers. */
static int choose_chunk(struct making *m, const struct spread_layers *l, uint32_t ctx,
                        const struct split *split, uint64_t limit, struct helm_err *err)
{
    struct split more = *split;
    struct plan plan = {.layers = 0};
    struct arena_spec arena;
    if (units_add(split->on_disk, limit / DISK_CHUNK_PARTS, &more.on_disk)) more.on_disk = UINT64_MAX;
    int rc = write_plan(m, l, &more, ctx, &plan, err);
    if (!rc && ledger_fits(&plan)) rc = chunks_lengthen(m, &plan, &arena, err);
    plan_free(&plan);
    return rc;
}

/* The plan with chunks of so many tokens, in which the device has as much as it has room for. */
static int fill(struct making *m, const struct spread_layers *l, uint32_t ctx, uint32_t tokens,
                struct split *split, struct candidate *out, struct helm_err *err)
{
    disk_begin_wish(m, tokens);
    out->fits = false;
    out->wish = m->wish;
    int rc = fill_vram(m, l, ctx, split, err);
    if (rc || !split->device != !split->in_vram) return rc;
    rc = fill_host(m, l, ctx, split, &out->plan, err);
    out->fits = !rc && ledger_fits(&out->plan);
    return rc;
}

static int make(struct making *m, const struct spread_layers *l, uint32_t ctx, enum device_part device,
                struct candidate *out, struct helm_err *err)
{
    struct split split = {.device = device};
    int rc = fill(m, l, ctx, LEDGER_STEP_TOKENS, &split, out, err);
    if (rc || !out->fits) return rc;
    rc = choose_chunk(m, l, ctx, &split, out->plan.memory[PLAN_HOST].limit, err);
    const uint32_t tokens = m->wish.step_tokens;
    m->wish = out->wish;
    if (!rc && tokens > LEDGER_STEP_TOKENS) rc = fill(m, l, ctx, tokens, &split, out, err);
    if (!rc && !out->fits) rc = fill(m, l, ctx, LEDGER_STEP_TOKENS, &split, out, err);
    return rc || !out->fits ? rc : making_decode_seconds(m, &out->plan, 0, &out->seconds, err);
}

/* Whether the device may have such a part: a head that is the embedding takes it along. */
static bool may(const struct making *m, bool device, int part)
{
    if (part == NO_DEVICE) return !m->required;
    return device && (part == LAYERS_AND_EMBEDDING || !m->r->model->config.tied_head);
}

/* The fastest. */
static int try_context(struct making *m, const struct spread_layers *l, bool device, uint32_t ctx,
                       struct candidate *best, struct helm_err *err)
{
    int rc = 0;
    for (int part = NO_DEVICE; part <= LAYERS_AND_EMBEDDING && !rc; part++) {
        struct candidate now = {.fits = false};
        if (!may(m, device, part)) continue;
        rc = make(m, l, ctx, (enum device_part)part, &now, err);
        candidate_keep(m, best, &now, !rc && now.fits && (!best->fits || now.seconds < best->seconds));
    }
    return rc;
}

int disk_layers_try(struct making *m, struct spec *spec, struct candidate *best, struct helm_err *err)
{
    struct spread_layers l;
    struct helm_err why = {0};
    int rc = 0;
    if (!look(m, &l, &why)) {
        if (why.code) log_info("layers are not planned on disk: %s", why.text);
        return 0;
    }
    for (uint32_t ctx = making_first_ctx(m); ctx && !rc; ctx = making_next_ctx(m, ctx)) {
        struct candidate now = {.fits = false};
        rc = try_context(m, &l, spec->device, ctx, &now, err);
        const double less = LESS_ON_DISK * (double)best->plan.memory[PLAN_DISK].total;
        const bool better =
            !rc && now.fits && (!best->fits || (double)now.plan.memory[PLAN_DISK].total < less);
        if (better) spec->ctx = ctx;
        candidate_keep(m, best, &now, better);
    }
    return rc;
}

int disk_layers_least_host(struct making *m, uint32_t ctx, bool device, uint64_t *bytes, struct helm_err *err)
{
    struct spread_layers l;
    struct helm_err why;
    int rc = 0;
    if (!look(m, &l, &why)) return 0;
    for (int part = LAYERS_AND_EMBEDDING; part >= NO_DEVICE && !*bytes && !rc; part--) {
        struct split split = {.device = (enum device_part)part};
        struct plan plan = {.layers = 0};
        if (!may(m, device, part)) continue;
        disk_begin_wish(m, LEDGER_STEP_TOKENS);
        rc = fill_vram(m, &l, ctx, &split, err);
        split.on_disk = UINT64_MAX;
        if (!rc && !split.device == !split.in_vram) rc = write_plan(m, &l, &split, ctx, &plan, err);
        if (!rc && plan.unit) *bytes = disk_host_needed(&plan);
        plan_free(&plan);
    }
    return rc;
}
