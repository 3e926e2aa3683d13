/* What the simpler strategies would make, as candidates of `best`. See attempt.h. Called by tiers.c; lists belong to the plan.
 *
 * The search of `best` has every home in its space, the splits of the thesis among them, but it looks in less memory: its plans
 * have a ring and longer chunks for prompts, and some weights packed. So each restricted strategy is planned as it would be if
 * it was asked for, and its plan is taken if its decode step is faster. By this no restriction of the planner gains anything. */
#include <math.h>

#include "daemon/planner/attempt.h"

/* In the order of what they cost to search. `mixed` is tried by mixed_try. */
static const enum search_strategy simpler[] = {SEARCH_ALL_CPU, SEARCH_ALL_GPU, SEARCH_THESIS,
                                               SEARCH_EXPERTS_CPU, SEARCH_STREAM};

static bool applies(const struct making *m, enum search_strategy strategy)
{
    if (strategy == SEARCH_ALL_CPU) return !m->required;
    return strategy != SEARCH_EXPERTS_CPU || m->r->model->config.router.experts;
}

/* The plan of this strategy, with the seconds of the step that plans are compared by. */
static int plan_simpler(struct making *m, enum search_strategy strategy, uint32_t ctx, struct plan *plan,
                        struct attempt *attempt, struct helm_err *err)
{
    const struct trying t = {.strategy = strategy, .device = strategy != SEARCH_ALL_CPU, .ctx = ctx};
    int rc = attempt_tiers(m, &t, plan, attempt, err);
    if (!rc && attempt->fits && strategy == SEARCH_EXPERTS_CPU && !m->r->one_memory &&
        m->r->model->config.shared_intermediate)
        rc = mixed_beside(m, ctx, plan, attempt, err);
    if (rc || !attempt->fits) return rc;
    return making_decode_seconds(m, plan, planner_typical_context(m->r, ctx), &attempt->seconds, err);
}

int restricted_try(struct making *m, const struct trying *t, struct plan *plan, struct attempt *attempt,
                   struct helm_err *err)
{
    struct ledger_wish wish = m->wish;
    bool beside = m->packs_cpu_beside;
    int rc = 0;
    m->floor = INFINITY;
    if (attempt->fits)
        rc = making_decode_seconds(m, plan, planner_typical_context(m->r, t->ctx), &attempt->seconds, err);
    for (size_t i = 0; i < sizeof simpler / sizeof *simpler && !rc; i++) {
        struct plan other = {0};
        struct attempt seen = {.fits = false};
        if (!applies(m, simpler[i])) continue;
        rc = plan_simpler(m, simpler[i], t->ctx, &other, &seen, err);
        if (!rc && seen.fits) m->floor = fmin(m->floor, seen.seconds);
        if (!rc && seen.fits && simpler[i] != SEARCH_ALL_CPU &&
            (!attempt->fits || seen.seconds < attempt->seconds)) {
            const struct plan slower = *plan;
            *plan = other;
            other = slower;
            seen.bound = attempt->fits ? fmin(attempt->bound, seen.seconds) : seen.bound;
            *attempt = seen;
            wish = m->wish;
            beside = m->packs_cpu_beside;
        }
        plan_free(&other);
    }
    m->wish = wish;
    m->packs_cpu_beside = beside;
    return rc;
}
