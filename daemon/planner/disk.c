/* The idea of experts on disk. See ideas.h and common/plan/disk.h. Called by planner.c where nothing else
 * fits; lists belong to the plan.
 *
 * Experts that no memory has room for are on disk, and the CPU computes them. A device has the first units of
 * an order: attention halves and dense MLPs, layer by layer, then layers' experts. Each number of them is
 * tried, none among them, and the fastest plan stays. Host memory is slots, as many as it has room for beside
 * the rest, the same number for each layer with experts on disk: not whole layers, since the same memory
 * finds more of what tokens choose as slots of every layer. Where tokens choose evenly it finds as much, and
 * tokens choose some experts more often than others. The first context counts for which a layer's slots hold
 * the experts of one token; otherwise the largest with a slot. */
#include "common/base/log.h"
#include "common/base/units.h"
#include "common/plan/disk.h"
#include "daemon/planner/disk_plans.h"

/* A device's part: the first `units` of the order; ends, where it has any. */
struct split {
    uint32_t units;
    enum plan_processor embed, head;
};

/* With any, the head is there, too; the embedding may be. */
static struct split split_at(uint32_t units, bool embed)
{
    const enum plan_processor gpu = plan_home_processor(PLAN_HOME_GPU);
    return (struct split){units, units && embed ? gpu : PLAN_CPU0, units ? gpu : PLAN_CPU0};
}

static bool has_experts(const struct model_config *config, uint32_t unit)
{
    return unit_part(unit) == UNIT_MLP && model_layer_sparse(config, unit_layer(unit));
}

/* Half layers without experts. */
static uint32_t count_rest(const struct model_config *config)
{
    uint32_t rest = 0;
    for (uint32_t u = 0; u < unit_count(model_answer_layers(config)); u++) rest += !has_experts(config, u);
    return rest;
}

/* Whether each sparse layer's experts can be read one by one; *why: the reason if one's cannot. */
static bool can(const struct making *m, struct helm_err *why)
{
    const struct model *model = m->r->model;
    bool any = false;
    if (model_expert_parts(&model->config) > 1 || m->r->profile->disk_read.value <= 0) return false;
    for (uint32_t u = 0; u < unit_count(model_answer_layers(&model->config)); u++) {
        struct disk_unit unit;
        if (!has_experts(&model->config, u)) continue;
        any = true;
        if (disk_place_unit(model, u, &unit, why)) return false;
    }
    return any;
}

static int write_plan(struct making *m, const struct split *split, uint32_t ctx, uint32_t slots,
                      struct plan *plan, struct helm_err *err)
{
    const struct model_config *config = &m->r->model->config;
    enum plan_home home[UNIT_PARTS * MODEL_LAYERS_MAX];
    uint32_t seen[2] = {0, count_rest(config)};
    for (uint32_t u = 0; u < unit_count(model_answer_layers(config)); u++) {
        const bool experts = has_experts(config, u), here = seen[experts]++ < split->units;
        home[u] = here ? PLAN_HOME_GPU : experts ? PLAN_HOME_DISK : PLAN_HOME_CPU;
    }
    const struct disk_lists lists = {
        .home = home, .embed = split->embed, .head = split->head, .slots = slots, .ctx = ctx};
    return disk_write(m, &lists, plan, err);
}

/* Tokens of a chunk, as many as pay with one slot a layer: each chunk reads what has no slot. */
static int choose_chunk(struct making *m, const struct split *split, uint32_t ctx, uint32_t *tokens,
                        struct helm_err *err)
{
    struct plan plan = {.layers = 0};
    struct arena_spec arena;
    disk_begin_wish(m, LEDGER_STEP_TOKENS);
    int rc = write_plan(m, split, ctx, 1, &plan, err);
    if (!rc && ledger_fits(&plan)) rc = chunks_lengthen(m, &plan, &arena, err);
    *tokens = m->wish.step_tokens;
    plan_free(&plan);
    return rc;
}

/* With one slot a layer, then with as many as the rest leaves room for. */
static int make(struct making *m, const struct split *split, uint32_t ctx, uint32_t step_tokens,
                struct candidate *out, struct helm_err *err)
{
    const struct ledger *host = &out->plan.memory[PLAN_HOST];
    const uint32_t experts = m->r->model->config.router.experts;
    struct disk_room room = {.unit = NULL};
    disk_begin_wish(m, step_tokens);
    int rc = write_plan(m, split, ctx, 1, &out->plan, err);
    out->fits = !rc && ledger_fits(&out->plan);
    if (out->fits) rc = disk_place(m->r->model, &out->plan, &room, err);
    if (rc || !out->fits) return rc;
    const uint64_t left = host->limit - host->total,
                   more =
                       left > LEDGER_ROUNDING_BYTES ? (left - LEDGER_ROUNDING_BYTES) / room.slots_bytes : 0;
    rc = write_plan(m, split, ctx, more + 1 < experts ? (uint32_t)more + 1 : experts, &out->plan, err);
    out->wish = m->wish;
    out->fits = !rc && ledger_fits(&out->plan);
    return rc || !out->fits ? rc : making_decode_seconds(m, &out->plan, 0, &out->seconds, err);
}

/* The fastest of the context. */
static int try_context(struct making *m, const struct spec *spec, uint32_t ctx, struct candidate *best,
                       struct helm_err *err)
{
    const struct model_config *config = &m->r->model->config;
    const uint32_t rest = count_rest(config),
                   end = spec->device ? unit_count(model_answer_layers(config)) : 1;
    struct split split = split_at(spec->device ? rest : 0, true);
    uint32_t step;
    int rc = choose_chunk(m, &split, ctx, &step, err);
    bool room = true; /* on the device */
    for (uint32_t n = m->required; n < end && room && !rc; n++) {
        if (config->reads && n && n < rest) continue; /* both processors would attend to one cache */
        room = false;
        for (int embed = 0; embed < (n ? 2 : 1) && !rc; embed++) {
            struct candidate now = {.fits = false};
            if (config->tied_head && embed != (n > 0)) continue;
            split = split_at(n, embed);
            rc = make(m, &split, ctx, step, &now, err);
            const struct ledger *vram = &now.plan.memory[plan_home_memory(PLAN_HOME_GPU)];
            room |= !n || vram->total <= vram->limit;
            candidate_keep(m, best, &now, !rc && now.fits && (!best->fits || now.seconds < best->seconds));
        }
    }
    return rc;
}

int disk_least_host(struct making *m, uint32_t ctx, bool device, uint64_t *bytes, struct helm_err *err)
{
    const struct model_config *config = &m->r->model->config;
    const uint32_t rest = count_rest(config), least = device && m->required;
    struct helm_err why;
    int rc = 0;
    *bytes = 0;
    if (!config->router.experts) return disk_layers_least_host(m, ctx, device, bytes, err);
    if (!can(m, &why)) return 0;
    for (uint32_t n = device ? rest + 1 : 1; n-- > least && !*bytes && !rc;) {
        if (config->reads && n && n < rest) continue; /* as in try_context */
        const struct split split = split_at(n, config->tied_head);
        struct plan plan = {.layers = 0};
        disk_begin_wish(m, LEDGER_STEP_TOKENS);
        rc = write_plan(m, &split, ctx, 1, &plan, err);
        if (!rc) *bytes = disk_host_needed(&plan);
        plan_free(&plan);
    }
    return rc;
}

int disk_try(struct making *m, struct spec *spec, struct candidate *best, struct helm_err *err)
{
    const struct model_config *config = &m->r->model->config;
    struct helm_err why = {0};
    int rc = 0;
    if (best->fits) return 0;
    if (!config->router.experts) return disk_layers_try(m, spec, best, err);
    if (!can(m, &why)) {
        if (why.code) log_info("experts are not planned on disk: %s", why.text);
        return 0;
    }
    for (uint32_t ctx = making_first_ctx(m); ctx && !rc; ctx = making_next_ctx(m, ctx)) {
        struct candidate now = {.fits = false};
        rc = try_context(m, spec, ctx, &now, err);
        const bool enough = now.fits && plan_disk_slots(&now.plan) >= config->router.chosen;
        const bool better = !rc && now.fits && (!best->fits || enough);
        if (better) spec->ctx = ctx;
        candidate_keep(m, best, &now, better);
        if (enough) break;
    }
    return rc;
}
