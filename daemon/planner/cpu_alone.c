/* The idea of leaving the device idle. See ideas.h. Called by ideas.c; lists belong to the plan.
 *
 * `auto` uses the device only where that is faster than the CPU alone. Otherwise the plan is made for the
 * CPU's largest context, and the log says how fast the best plan with the device would be. */
#include "common/base/log.h"
#include "daemon/planner/ideas.h"

static int log_other(struct making *m, const struct spec *spec, const struct candidate *best,
                     double cpu_seconds, struct helm_err *err)
{
    struct candidate with = {.fits = true, .seconds = best->seconds};
    int rc = 0;
    if (!plan_devices(&best->plan)) {
        m->required = true;
        rc = ideas_try_context(m, spec, &with, err);
        m->required = false;
    }
    if (!rc && with.fits)
        log_warn("device: planned on the CPU alone, %.3g token/s; the best plan that uses the device "
                 "would have %.3g",
                 m->batch / cpu_seconds, m->batch / with.seconds);
    else if (!rc)
        log_warn("device: planned on the CPU alone, %.3g token/s: nothing of the model fits on the device",
                 m->batch / cpu_seconds);
    plan_free(&with.plan);
    return rc;
}

int cpu_alone_try(struct making *m, const struct spec *spec, struct candidate *best, struct helm_err *err)
{
    struct spec alone = {.strategy = SEARCH_ALL_CPU, .ctx = spec->ctx};
    struct candidate cpu = {.fits = false};
    if (!best->fits || spec->strategy != SEARCH_BEST || m->required || m->asked.second_units) return 0;
    int rc = packing_best(m, &alone, NULL, &cpu, err);
    const bool better = !rc && cpu.fits && (!plan_devices(&best->plan) || cpu.seconds <= best->seconds);
    if (better) rc = log_other(m, spec, best, cpu.seconds, err);
    for (uint32_t ctx = making_first_ctx(m); better && !rc; ctx = making_next_ctx(m, ctx)) {
        alone.ctx = ctx;
        plan_free(&cpu.plan);
        rc = packing_best(m, &alone, NULL, &cpu, err);
        if (cpu.fits) break;
    }
    candidate_keep(m, best, &cpu, better && !rc);
    return rc;
}
