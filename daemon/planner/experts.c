/* The idea of a layer's experts in both memories. See ideas.h and plan.h. Called by ideas.c and strategies.c;
 * lists belong to the plan.
 *
 * The start is the plan that has all experts on the CPU and all else on the GPU, with lists for prompts that
 * stream them. Each plan tried has the experts of the first n sparse layers in VRAM and all others' in both
 * memories: the rest of VRAM is slots, the same number for each of these layers. Whole layers in VRAM save
 * hand-overs; slots gain where some experts are chosen more often than others, which only counting shows. So
 * without a histogram a price is what a plan takes at worst, and of plans of nearly the same price the one
 * with the most slots is chosen, and one with slots before one without. */
#include "daemon/planner/experts.h"

#include <math.h>
#include <stdlib.h>

#include "daemon/planner/formats.h"
#include "daemon/planner/profile/policy.h"

/* Slots for up to an eighth of the experts may cost WORTH_NOTING of a decode step beside the fastest plan if
 * each expert was chosen alike (MIXED_EIGHTH). */

struct trial {
    double least;   /* what a step takes at least, whatever is read directly; INFINITY: no room */
    double seconds; /* of a step; INFINITY: not tried, since others are certainly faster */
    struct plan plan;
};

/* The plans tried from one start. */
struct trials {
    struct making *m;
    uint32_t ctx, sparse;
    const struct plan *from;
    enum packs packs;
    struct trial *with; /* [sparse], by the number of layers wholly in VRAM */
};

/* The first `whole` sparse layers' experts in VRAM, and slots for the others'; without room for them `least`
 * stays. */
static int lay_whole(struct trials *t, uint32_t whole, struct helm_err *err)
{
    struct trial *trial = &t->with[whole];
    bool fits = false;
    int rc = experts_place(t->m, t->from, whole, t->packs, &trial->plan, err);
    if (!rc) rc = experts_fill(t->m, t->ctx, &trial->plan, &fits, err);
    if (rc || !fits) return rc;
    struct plan best = trial->plan; /* its lists stay the trial's */
    plan_device_at(&best, PLAN_HOME_MIXED)->experts.direct_permille = COST_DIRECT_BEST;
    return making_decode_seconds(t->m, &best, 0, &trial->least, err);
}

/* The least whole layers, so the most slots up to an eighth, whose step takes at most `most`; else those of
 * the fastest plan. */
static struct trial *best_of(const struct trials *t, double most)
{
    const uint32_t eighth = t->m->r->model->config.router.experts / MIXED_EIGHTH;
    uint32_t fastest = 0, best = 0;
    for (uint32_t w = 0; w < t->sparse; w++)
        if (t->with[w].seconds < t->with[fastest].seconds) fastest = w;
    while (best < fastest &&
           (t->with[best].seconds > most || plan_experts(&t->with[best].plan)->slots > eighth))
        best++;
    return &t->with[best];
}

/* Tries every number of layers wholly in VRAM, in the order of what they take at least, until that is more
 * than `slack` above the fastest: the rest cannot be chosen. One is tried at all events. */
static int try_numbers(struct trials *t, double slack, double other, struct helm_err *err)
{
    int rc = 0;
    uint32_t laid = 0;
    for (; laid < t->sparse && !rc; laid++) {
        rc = lay_whole(t, laid, err);
        if (t->with[laid].least == INFINITY) break; /* more in VRAM fit no more */
    }
    for (uint32_t tried = 0; tried < laid && !rc; tried++) {
        struct trial *next = NULL;
        for (uint32_t w = 0; w < laid; w++)
            if (t->with[w].seconds == INFINITY && (!next || t->with[w].least < next->least))
                next = &t->with[w];
        if (tried && next->least > (1 + slack) * other) break;
        rc = experts_choose_direct(t->m, &next->plan, &next->seconds, err);
        other = fmin(other, next->seconds);
    }
    return rc;
}

/* The best plan with experts packed so, into *best, if it is better than what that has. */
static int try_packed(struct trials *t, enum packs packs, double other, double slack, struct trial *best,
                      struct helm_err *err)
{
    const bool cpu = t->m->wish.pack_cpu;
    if ((packs >= PACKS_WHOLE && !experts_pack_whole(t->m)) ||
        (packs == PACKS_ALL && !experts_pack_slots(t->m)))
        return 0;
    t->packs = packs;
    t->with = calloc(t->sparse + 1, sizeof *t->with);
    if (!t->with) return helm_fail(err, HELM_E_NOMEM, "no memory for %u plans", t->sparse);
    for (uint32_t w = 0; w <= t->sparse; w++) t->with[w].least = t->with[w].seconds = INFINITY;
    t->m->wish.pack_cpu |= packs == PACKS_ALL;
    int rc = try_numbers(t, slack, fmin(other, best->seconds), err);
    t->m->wish.pack_cpu = cpu;
    const double fastest = best_of(t, 0)->seconds;
    struct trial *chosen = best_of(t, (1 + slack) * fmin(other, fastest));
    if (!rc && fastest < INFINITY && chosen->seconds < best->seconds) {
        const struct trial worse = *best;
        *best = *chosen;
        *chosen = worse;
    }
    for (uint32_t w = 0; w <= t->sparse; w++) plan_free(&t->with[w].plan);
    free(t->with);
    return rc;
}

/* Takes a plan of the strategy `mixed`, which fits with all experts on the CPU. Makes the fastest one with
 * some layers' experts in VRAM and all others' in both memories, or one nearly as fast with more slots.
 * `other`: seconds of the fastest plan so far. */
static int choose(struct making *m, uint32_t ctx, double other, struct candidate *c, struct helm_err *err)
{
    struct trials t = {.m = m, .ctx = ctx, .from = &c->plan};
    struct trial best = {.seconds = INFINITY};
    const double slack = m->r->experts ? 0 : WORTH_NOTING;
    for (uint32_t l = 0; l < model_answer_layers(&m->r->model->config); l++)
        t.sparse +=
            model_layer_sparse(&m->r->model->config, l) && !ledger_is_second(&m->c, unit_of(l, UNIT_MLP));
    int rc = 0;
    for (int packs = 0; packs < PACKS_WAYS && !rc; packs++)
        rc = try_packed(&t, (enum packs)packs, other, slack, &best, err);
    c->fits = !rc && best.seconds < INFINITY;
    if (!c->fits) {
        plan_free(&best.plan);
        return rc;
    }
    plan_free(&c->plan);
    c->plan = best.plan;
    c->seconds = best.seconds;
    for (uint32_t u = 0; u < unit_count(c->plan.layers); u++)
        m->wish.pack_cpu |= formats_packed_on_cpu(&c->plan, u);
    m->wish.page_count = c->plan.page_count; /* the pool stays: what it leaves are slots */
    c->wish = m->wish;
    return experts_budget(m, c->seconds, &c->plan, err);
}

/* Some sparse layer's experts are not in VRAM, so that there may be something to gain. */
static bool some_outside(const struct model *model, const struct plan *plan)
{
    bool outside = false;
    for (uint32_t l = 0; l < model_answer_layers(&model->config); l++)
        outside |= model_layer_sparse(&model->config, l) &&
                   !plan_home_in_vram(plan->unit[unit_of(l, UNIT_MLP)].home[0]);
    return outside;
}

/* In the place of a plan of `best`, if that is slower, or not much faster. Where that has two tiers, the best
 * plan with one, as one with experts in both memories has it, may be faster than both. */
static int try_beside_best(struct making *m, const struct spec *spec, struct candidate *best,
                           struct helm_err *err)
{
    const struct spec mixed = {.strategy = SEARCH_MIXED, .device = true, .ctx = spec->ctx},
                      one_tier = {.strategy = SEARCH_BEST, .device = true, .ctx = spec->ctx};
    const bool two = plan_kv_tiered(&best->plan);
    struct candidate other = {.fits = false};
    if (m->r->one_memory || (best->fits && !some_outside(m->r->model, &best->plan))) return 0;
    int rc = packing_best(m, &mixed, NULL, &other, err);
    if (!rc && other.fits) rc = choose(m, spec->ctx, best->fits ? best->seconds : other.seconds, &other, err);
    const double most = fmin((m->r->experts ? 1 : 1 + WORTH_NOTING) * best->seconds, m->floor);
    const bool better = !rc && other.fits && (!best->fits || other.seconds < most);
    candidate_keep(m, best, &other, better);
    if (!better || !two) return rc;
    rc = packing_best(m, &one_tier, NULL, &other, err);
    candidate_keep(m, best, &other, !rc && other.fits && other.seconds < best->seconds);
    return rc;
}

int experts_try(struct making *m, const struct spec *spec, struct candidate *best, struct helm_err *err)
{
    if (!m->r->model->config.router.experts || !spec->device) return 0;
    if (spec->strategy == SEARCH_BEST) return try_beside_best(m, spec, best, err);
    if (spec->strategy != SEARCH_MIXED || !best->fits) return experts_try_shared(m, spec, best, err);
    int rc = choose(m, spec->ctx, best->seconds, best, err);
    return rc || best->fits ? rc : experts_refuse(m, spec->ctx, &best->plan, err);
}
