/* The idea of dense MLPs that GPU and CPU compute together. See ideas.h and common/plan/share.h. Called by
 * ideas.c; lists belong to the plan.
 *
 * In each plan tried the GPU has the same number of an MLP's rows in every layer that is shared. For such
 * a number the usual search finds the homes: `cpu` of an MLP stands for `shared`, at the price and with
 * the bytes of that, and attention is the GPU's. So a ratio is as good as the search finds it with whole
 * layers in VRAM and whole ones that cross the link. The best ratio is where the CPU's rows, the GPU's and
 * the link are done together: it is looked for in steps, then in smaller ones. */
#include <math.h>

#include "daemon/planner/formats.h"
#include "daemon/planner/ideas.h"
#include "daemon/planner/profile/policy.h"

#define SHARE_ROWS  256 /* a share is a multiple: whole blocks of every format */
#define SHARE_STEPS 6   /* shares that are tried first, from one part of so many to all but one */
#define FAR         1e3 /* seconds of a unit that is not to be on the CPU */

int shared_check(const struct making *m, struct helm_err *err)
{
    if (m->r->share != SHARE_ON) return 0;
    if (!analyse_shares(&m->table))
        return helm_fail(err, HELM_E_UNSUPPORTED,
                         "--share on is for dense MLPs of gate, up and down: this model has none");
    for (uint32_t l = 0; l < m->table.layers; l++) {
        const uint32_t rows = m->table.mlp_rows[l];
        if (rows % SHARE_ROWS == 0 && rows != SHARE_ROWS) continue;
        return helm_fail(
            err, HELM_E_UNSUPPORTED,
            "--share on: the MLP of %.200s has %u rows, must be a multiple of %d and at least %d",
            model_find(m->r->model, TENSOR_DOWN, (int32_t)l)->name, rows, SHARE_ROWS, 2 * SHARE_ROWS);
    }
    return 0;
}

/* The rows of the narrowest MLP that can be shared; 0: none can be, or not in whole blocks. */
static uint32_t rows_of(const struct making *m)
{
    uint32_t rows = 0;
    for (uint32_t l = 0; l < m->table.layers; l++) {
        const uint32_t of = m->table.mlp_rows[l];
        if (of % SHARE_ROWS) return 0;
        if (of && (!rows || of < rows)) rows = of;
    }
    return rows;
}

/* Something of the model is outside VRAM, so that there may be something to gain. */
static bool some_outside(const struct plan *plan)
{
    for (uint32_t u = 0; u < unit_count(plan->layers); u++)
        if (plan_home_memory(plan->unit[u].home[0]) == PLAN_HOST) return true;
    return false;
}

/* must: no MLP that can be shared is whole in VRAM. */
static void price_as_cpu(const struct making *m, uint32_t rows, bool must, struct cost_table *prices)
{
    for (uint32_t u = 0; u < prices->units; u++) {
        struct cost_unit *unit = &prices->unit[u];
        const bool shared = analyse_own_part(&m->table, u, rows) > 0;
        unit->cpu = shared ? unit->shared : FAR;
        unit->cpu_beside = shared ? unit->shared_beside : FAR;
        unit->cpu_packed = false;
        if (must && shared) unit->gpu = FAR;
    }
}

/* Shares the MLPs that the search has on the CPU; prompts have all of them on the GPU. */
static void share(const struct making *m, uint32_t rows, struct plan *plan)
{
    plan->shared_rows = 0;
    plan_drop_placements(plan);
    for (uint32_t u = unit_of(0, UNIT_MLP); u < plan_answer_units(plan); u += UNIT_PARTS) {
        if (plan->unit[u].home[0] != PLAN_HOME_CPU || analyse_own_part(&m->table, u, rows) <= 0) continue;
        plan->shared_rows = rows;
        plan->unit[u].home[0] = PLAN_HOME_SHARED;
        plan_set_unit_format(plan, u, PLAN_AS_STORED);
        for (uint32_t p = 1; p < plan_phase_count(plan); p++) plan->unit[u].home[p] = PLAN_HOME_STREAM;
    }
}

/* The best plan that shares MLPs at this row, until the ledger agrees. */
static int make(struct making *m, const struct spec *spec, const struct cost_table *prices,
                struct candidate *out, struct helm_err *err)
{
    struct memory_wish wish = making_memory_wish(m, spec);
    struct arena_spec arena;
    int rc = 0;
    wish.prefill = true;
    wish.shared_rows = spec->shared_rows;
    for (uint32_t tries = 0; tries < PLANNER_TRIES; tries++) {
        rc = candidate_search(m, spec, &wish, prices, out, err);
        if (rc || !out->fits) return rc;
        share(m, spec->shared_rows, &out->plan);
        out->fits = false;
        if (!out->plan.shared_rows) return 0;
        rc = ledger_write(&m->c, spec->ctx, wish.pages, &out->plan, &arena, err);
        out->fits = !rc && ledger_fits(&out->plan);
        if (rc || out->fits) break;
        for (int i = 0; i < PLAN_MEMORIES; i++) {
            const struct ledger *of = &out->plan.memory[i];
            if (of->total <= of->limit) continue;
            *(i == PLAN_HOST ? &wish.less_host : &wish.less_vram) += of->total - of->limit;
        }
    }
    return rc || !out->fits ? rc : making_decode_seconds(m, &out->plan, 0, &out->seconds, err);
}

/* A plan at this row into *best, if that is slower. */
static int try_rows(struct making *m, const struct spec *asked, uint32_t rows, struct candidate *best,
                    struct helm_err *err)
{
    const struct ledger_wish wish = m->wish;
    struct candidate now = {.wish = wish};
    struct spec spec = *asked;
    enum tensor_format format[FORMATS_ROWS][PLAN_HOMES];
    struct cost_table prices;
    spec.shared_rows = rows;
    formats_wished(&m->c, format);
    int rc = making_price(m, &spec, format, &prices, err);
    if (rc) return rc;
    price_as_cpu(m, rows, m->r->share == SHARE_ON, &prices);
    rc = make(m, &spec, &prices, &now, err);
    cost_table_free(&prices);
    const bool better = !rc && now.fits && (!best->fits || now.seconds < best->seconds);
    candidate_keep(m, best, &now, better);
    m->wish = wish;
    return rc;
}

/* As the plan that stands has them: chunks, and the tiers of its cache. Nothing that is packed is shared. */
static struct ledger_wish wish_of(const struct making *m, const struct candidate *best)
{
    struct ledger_wish wish = best->wish;
    wish.pack_cpu = wish.pack_gpu = false;
    wish.page_count = m->asked.page_count;
    return wish;
}

/* The largest part of the step that GPU and CPU could do at the same time: all that the GPU computes of
 * MLPs. */
static int hidden_part(const struct making *m, const struct spec *spec, double seconds, double *part,
                       struct helm_err *err)
{
    struct cost_table prices;
    double sum = 0;
    int rc = making_price(m, spec, NULL, &prices, err);
    if (rc) return rc;
    for (uint32_t u = 0; u < prices.units; u++)
        if (unit_part(u) == UNIT_MLP && m->table.mlp_rows[unit_layer(u)])
            sum += fmax(0, prices.unit[u].gpu - 2 * prices.hand_over);
    cost_table_free(&prices);
    *part = sum / seconds;
    return 0;
}

/* Seconds fall with a growing share as long as the CPU's rows are what takes longest, and rise from then
 * on. So the best of some steps is followed by smaller ones around it. */
static int try_all(struct making *m, const struct spec *spec, uint32_t all, struct candidate *shared,
                   struct helm_err *err)
{
    const uint32_t parts = all / SHARE_ROWS;
    uint32_t step = SHARE_ROWS * (parts > SHARE_STEPS ? parts / SHARE_STEPS : 1);
    int rc = 0;
    for (uint32_t rows = step; rows < all && !rc; rows += step) rc = try_rows(m, spec, rows, shared, err);
    for (step = step / 2 / SHARE_ROWS * SHARE_ROWS; shared->fits && step && !rc;
         step = step / 2 / SHARE_ROWS * SHARE_ROWS) {
        const uint32_t at = shared->plan.shared_rows;
        if (at > step) rc = try_rows(m, spec, at - step, shared, err);
        if (!rc && shared->plan.shared_rows == at && at + step < all)
            rc = try_rows(m, spec, at + step, shared, err);
    }
    return rc;
}

int shared_try(struct making *m, const struct spec *spec, struct candidate *best, struct helm_err *err)
{
    const uint32_t all = rows_of(m);
    const bool must = m->r->share == SHARE_ON;
    struct candidate shared = {.fits = false};
    double part = 1;
    if (m->r->share == SHARE_OFF || spec->strategy != SEARCH_BEST || !spec->device || !best->fits) return 0;
    if (!must && (!all || m->batch > ENGINE_FEW_TOKENS || !some_outside(&best->plan))) return 0;
    m->wish = shared.wish = wish_of(m, best);
    int rc = must ? 0 : hidden_part(m, spec, best->seconds, &part, err);
    if (!rc && part > WORTH_NOTING) rc = try_all(m, spec, all, &shared, err);
    const double most = must ? INFINITY : (1 - WORTH_NOTING) * best->seconds;
    candidate_keep(m, best, &shared, must || (!rc && shared.fits && shared.seconds < most));
    return rc;
}
