/* The idea of simpler strategies. See ideas.h. Called by ideas.c; lists belong to the plan.
 *
 * The search of `best` has every home in its space, the splits of the thesis among them, but it looks in less
 * memory: its plans have a ring and longer chunks for prompts, and some weights packed. So each restricted
 * strategy is planned as it would be if it was asked for, and its plan is taken if its decode step is faster.
 * By this no restriction of the planner gains anything that counts: such plans stream nothing for prompts, so
 * one must gain more than searches differ by where `best` does. */
#include <math.h>

#include "daemon/planner/ideas.h"
#include "daemon/planner/profile/policy.h"

/* In the order of what they cost to search. `mixed` is tried by experts.c. */
static const enum search_strategy simpler[] = {SEARCH_ALL_CPU, SEARCH_ALL_GPU, SEARCH_THESIS,
                                               SEARCH_EXPERTS_CPU, SEARCH_STREAM};

static bool applies(const struct making *m, enum search_strategy strategy)
{
    if (strategy == SEARCH_ALL_CPU) return !m->required && !m->asked.second_units;
    return strategy != SEARCH_EXPERTS_CPU || m->r->model->config.router.experts;
}

/* A restricted plan's seconds as they count beside `best`. */
static double counted(const struct candidate *seen, const struct candidate *best)
{
    const bool gives_up =
        best->fits && plan_phase_count(&best->plan) > 1 && plan_phase_count(&seen->plan) == 1;
    return seen->seconds / (gives_up ? 1 - WORTH_NOTING : 1);
}

int strategies_try(struct making *m, const struct spec *spec, struct candidate *best, struct helm_err *err)
{
    int rc = 0;
    m->floor = INFINITY;
    if (spec->strategy != SEARCH_BEST || !spec->device) return 0;
    if (best->fits) rc = making_decode_seconds(m, &best->plan, 0, &best->seconds, err);
    for (size_t i = 0; i < sizeof simpler / sizeof *simpler && !rc; i++) {
        const bool cpu = simpler[i] == SEARCH_ALL_CPU;
        const struct spec other = {.strategy = simpler[i], .device = !cpu, .ctx = spec->ctx};
        struct candidate seen = {.fits = false};
        if (!applies(m, simpler[i])) continue;
        rc = packing_best(m, &other, NULL, &seen, err);
        if (!rc) rc = experts_try_shared(m, &other, &seen, err);
        if (!rc && seen.fits) rc = making_decode_seconds(m, &seen.plan, 0, &seen.seconds, err);
        const double seconds = !rc && seen.fits ? counted(&seen, best) : INFINITY;
        m->floor = fmin(m->floor, seconds);
        candidate_keep(m, best, &seen,
                       seconds < INFINITY && !cpu && (!best->fits || seconds < best->seconds));
    }
    return rc;
}
