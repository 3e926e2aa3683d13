/* The planner's one loop. See ideas.h. Called by planner.c and refusal.c; owns nothing. */
#include "daemon/planner/ideas.h"

#include "daemon/planner/tiers.h"

typedef int (*idea_try)(struct making *m, const struct spec *spec, struct candidate *best,
                        struct helm_err *err);

/* For every context that is tried, in this order: what the later ones are compared with comes first. */
static const idea_try for_each_context[] = {
    packing_try,    /* one tier of the cache, weights packed or not */
    strategies_try, /* what the restricted strategies would make */
    tiers_try,      /* two tiers, more places, longer chunks */
};
/* For the context that was chosen. */
static const idea_try for_the_context[] = {
    experts_try,   /* a layer's experts in both memories */
    shared_try,    /* rows of a layer's dense MLP on both processors */
    cpu_alone_try, /* no device */
};
#define COUNT(list) (sizeof(list) / sizeof *(list))

int ideas_try_context(struct making *m, const struct spec *spec, struct candidate *best, struct helm_err *err)
{
    int rc = 0;
    for (size_t i = 0; i < COUNT(for_each_context) && !rc; i++) rc = for_each_context[i](m, spec, best, err);
    return rc;
}

int ideas_run(struct making *m, struct spec *spec, struct candidate *best, struct helm_err *err)
{
    int rc = 0;
    for (uint32_t ctx = making_first_ctx(m); ctx && !rc && !best->fits; ctx = making_next_ctx(m, ctx)) {
        spec->ctx = ctx;
        rc = ideas_try_context(m, spec, best, err);
    }
    for (size_t i = 0; i < COUNT(for_the_context) && !rc; i++) rc = for_the_context[i](m, spec, best, err);
    return rc;
}

int ideas_fit(struct making *m, const struct spec *spec, bool *fits, struct helm_err *err)
{
    const bool two = tiers_may_be_two(m, spec);
    struct candidate c = {.fits = false};
    struct spec least = *spec;
    int rc = 0;
    if (!two || m->r->tiers != KV_TIERS_TWO) rc = packing_best(m, spec, NULL, &c, err);
    least.places = 1;
    if (!rc && !c.fits && two) {
        plan_free(&c.plan);
        rc = packing_best(m, &least, NULL, &c, err);
    }
    *fits = !rc && c.fits;
    plan_free(&c.plan);
    return rc;
}

int ideas_finish(struct making *m, struct plan *plan, struct arena_spec *arena, struct helm_err *err)
{
    const uint32_t ctx = plan->context_tokens;
    int rc = chunks_lengthen(m, plan, arena, err);
    if (!rc) rc = ledger_fit(&m->c, ctx, plan, arena, err);
    if (!rc) rc = tiers_finish(m, plan, arena, err);
    return rc ? rc : ledger_fit_snapshots(&m->c, ctx, plan, arena, err);
}
