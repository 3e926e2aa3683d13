/* The idea of two tiers of the cache, and with how many places. See ideas.h and plan.h. Called by ideas.c;
 * lists belong to the plan.
 *
 * With one tier a whole context has room in VRAM beside the weights, used or not. With two, VRAM has places
 * for the newest pages, weights keep their room, and a long context costs time only when it is long. So plans
 * are judged over contexts (tiers_score), and one that is slower with a short context than the plan for
 * TIERS_SHORT_CONTEXT by more than WORTH_ROOM counts only where no other is better there. Candidates are made
 * for a short context's step, with the least places, then with twice as many while that is better; with the
 * best number for the steps of longer contexts; and then with longer chunks, which bring weights and old
 * pages less often and take room from both. These are judged by whole sessions. docs/planner-tiers.md has the
 * rules. */
#include "daemon/planner/tiers.h"

#include <math.h>

#include "daemon/planner/prefill.h"
#include "daemon/planner/profile/policy.h"

#define TIERS_SHORT_CONTEXT                                                                                  \
    (2 * PLANNER_SHORT_CONTEXT) /* of the plan that two tiers must not be much slower than */
#define CHUNKS_MISSED 2         /* lengths one after the other that are no better end the search for more */

struct scored {
    struct candidate c;
    struct score score;
};

struct tiering {
    struct making *m;
    const struct spec *spec;
    struct packing_known like; /* the plan for a short context, whose weights are where two tiers have them */
    double least; /* seconds that a step of a short context takes at most, unless all take longer */
    double most;  /* seconds that it may take with longer chunks: `least`, or where all take longer a little
                     more than now */
    double session_least; /* of the plans that were the best */
    struct scored best;
};

/* Whether a plan with longer chunks than the best one's is better: of sessions that are alike the one with
 * much shorter long prompts. */
static bool better_chunks(const struct tiering *k, const struct scored *c)
{
    const struct score *now = &k->best.score, *then = &c->score;
    if (c->c.plan.step_tokens < k->best.c.plan.step_tokens || then->at_short > k->most) return false;
    return then->session < now->session || (then->session <= (1 + WORTH_NOTING) * k->session_least &&
                                            then->prompt <= (1 - WORTH_MUCH) * now->prompt);
}

static bool better(const struct tiering *k, const struct scored *c)
{
    const struct scored *best = &k->best;
    if (!best->c.fits) return true;
    if (c->score.session > 0) return better_chunks(k, c);
    const bool in_time = c->score.at_short <= k->least, best_in_time = best->score.at_short <= k->least,
               two = plan_kv_tiered(&best->c.plan);
    if (in_time != best_in_time) return in_time;
    return c->score.mean < (two ? 1 : 1 - WORTH_NOTING) * best->score.mean;
}

static int score(const struct tiering *k, struct scored *c, struct helm_err *err)
{
    struct making *m = k->m;
    struct arena_spec arena;
    int rc = ledger_fit(&m->c, k->spec->ctx, &c->c.plan, &arena, err);
    if (!rc) rc = tiers_choose_direct(m, &c->c.plan, err);
    if (!rc) rc = tiers_score(m, &c->c.plan, k->spec->ctx, &c->score, err);
    if (rc || !k->best.score.session) return rc;
    return tiers_score_session(m, &c->c.plan, k->spec->ctx, &c->score, err);
}

/* *places: that it has, 0: it is none. *taken: it is the best. */
static int try_two(struct tiering *k, struct spec what, uint32_t *places, bool *taken, struct helm_err *err)
{
    struct scored c = {.score = {0}};
    if (what.priced_at > what.ctx) what.priced_at = what.ctx;
    int rc = packing_best(k->m, &what, &k->like, &c.c, err);
    const bool there = !rc && c.c.fits && plan_kv_tiered(&c.c.plan);
    if (there) rc = score(k, &c, err);
    *places = there && !rc ? plan_kv_places(&c.c.plan) : 0;
    *taken = *places && better(k, &c);
    if (*taken) k->best.score = c.score;
    candidate_keep(k->m, &k->best.c, &c.c, *taken);
    return rc;
}

/* Seconds that a short context's step may take: of the plan for a short context, and a little more. */
static int find_least(struct tiering *k, struct helm_err *err)
{
    struct candidate c = {.fits = false};
    struct spec spec = *k->spec;
    if (spec.ctx > TIERS_SHORT_CONTEXT) spec.ctx = TIERS_SHORT_CONTEXT;
    int rc = packing_best(k->m, &spec, NULL, &c, err);
    k->least = INFINITY;
    if (!rc && c.fits) {
        k->like = (struct packing_known){.vram = c.packing, .cpu = c.wish.pack_cpu};
        rc = making_decode_seconds(k->m, &c.plan,
                                   spec.ctx < PLANNER_SHORT_CONTEXT ? spec.ctx : PLANNER_SHORT_CONTEXT,
                                   &k->least, err);
        k->least /= 1 - WORTH_ROOM;
    }
    plan_free(&c.plan);
    return rc;
}

/* From what->places on twice as many each time, until they are no longer worth their weights: then it has the
 * best number. */
static int try_places(struct tiering *k, struct spec *what, struct helm_err *err)
{
    const uint32_t most = ledger_least_pages(&k->m->c, what->ctx);
    struct spec next = *what;
    for (bool taken = true; taken && next.places <= most; next.places *= 2) {
        uint32_t places;
        int rc = try_two(k, next, &places, &taken, err);
        if (rc) return rc;
        if (taken) what->places = next.places;
        while (2 * next.places <= places) next.places *= 2; /* that many are left over */
    }
    return 0;
}

/* With the places that are best. Where that is not better, or costs a short context more than WORTH_NOTING,
 * with the least as well, which leave it more weights. Half as many tokens more each time, then up to the
 * next power of two. */
static int try_chunks(struct tiering *k, struct spec what, struct helm_err *err)
{
    const uint32_t most = what.ctx < PREFILL_CHUNK_MAX ? what.ctx : PREFILL_CHUNK_MAX;
    const double near = k->best.score.at_short / (1 - WORTH_NOTING);
    uint32_t missed = 0, ignored;
    k->most = k->best.score.at_short <= k->least ? k->least : near;
    int rc = tiers_score_session(k->m, &k->best.c.plan, what.ctx, &k->best.score, err);
    while (!rc && missed < CHUNKS_MISSED) {
        struct spec few;
        bool taken, taken_few = false;
        k->session_least = fmin(k->session_least, k->best.score.session);
        what.step += what.step & (what.step - 1) ? what.step & -what.step : what.step / 2;
        if (what.step > most) break;
        rc = try_two(k, what, &ignored, &taken, err);
        few = what;
        few.places = 1;
        if (!rc && what.places > 1 && (!taken || k->best.score.at_short > near))
            rc = try_two(k, few, &ignored, &taken_few, err);
        missed = taken || taken_few ? 0 : missed + 1;
    }
    return rc;
}

static int try_all(struct tiering *k, struct helm_err *err)
{
    static const uint32_t longer[] = {2 * PLANNER_SHORT_CONTEXT,
                                      2 * PLANNER_CONTEXT_GROWTH * PLANNER_SHORT_CONTEXT};
    struct making *m = k->m;
    const uint32_t stated = m->asked.step_tokens;
    struct spec what = *k->spec;
    uint32_t ignored;
    int rc = find_least(k, err);
    /* where not even a short context fits in one tier, two have no room: their arena has all layers' pages */
    if (!rc && isinf(k->least)) return 0;
    if (!rc && k->best.c.fits) rc = tiers_score(m, &k->best.c.plan, what.ctx, &k->best.score, err);
    if (rc) return rc;
    candidate_begin(m, 1);
    m->wish.step_tokens = stated ? stated : LEDGER_STEP_TOKENS;
    what.places = ledger_places(&m->c, what.ctx);
    what.priced_at = PLANNER_SHORT_CONTEXT;
    what.step = LEDGER_STEP_TOKENS;
    rc = try_places(k, &what, err);
    if (rc || !plan_kv_tiered(&k->best.c.plan)) return rc;
    for (size_t i = 0; i < sizeof longer / sizeof *longer && !rc; i++) {
        struct spec other = what;
        bool taken;
        other.priced_at = longer[i];
        rc = try_two(k, other, &ignored, &taken, err);
        if (taken) what.priced_at = longer[i];
    }
    return rc || stated ? rc : try_chunks(k, what, err);
}

bool tiers_may_be_two(const struct making *m, const struct spec *spec)
{
    return m->r->tiers != KV_TIERS_ONE && spec->device && spec->strategy == SEARCH_BEST &&
           !m->asked.second_units && !m->r->model->config.drafts &&
           !m->r->model->config.reads; /* whose cache is borrowed by none */
}

int tiers_try(struct making *m, const struct spec *spec, struct candidate *best, struct helm_err *err)
{
    const bool must = m->r->tiers == KV_TIERS_TWO;
    struct tiering k = {.m = m, .spec = spec, .session_least = INFINITY};
    struct candidate *two = &k.best.c;
    if (!tiers_may_be_two(m, spec)) return 0;
    if (!must && (spec->ctx <= TIERS_SHORT_CONTEXT || (best->fits && candidate_all_on_gpu(&best->plan))))
        return 0;
    *two = *best;
    two->fits = best->fits && !must;
    int rc = plan_copy(&best->plan, &two->plan, err);
    if (!rc) rc = try_all(&k, err);
    const bool tiered = !rc && plan_kv_tiered(&two->plan);
    /* by the step of other plans, with which it is compared */
    if (tiered) rc = making_decode_seconds(m, &two->plan, 0, &two->seconds, err);
    candidate_keep(m, best, two, !rc && (must || !best->fits || (tiered && two->seconds <= m->floor)));
    return rc;
}
