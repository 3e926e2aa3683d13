/* Whether the cache has one tier or two, and with how many places. See attempt.h and plan.h. Called by planner.c and
 * refusal.c; the lists belong to the plan.
 *
 * With one tier a whole context has room in VRAM beside the weights, used or not: the longer it may become, the fewer
 * weights are in VRAM. With two tiers VRAM has places for the newest pages, weights keep their room, and a long context
 * costs time only when it is long.
 *
 * A plan's score is the geometric mean of its speed at TIERS_SHORT positions, at TIERS_GROWTH times as many and so
 * on, and at the whole context. A plan that is slower with a short context than the one for TIERS_SHORT_CONTEXT by
 * more than TIERS_LOSS counts only where no other is better there.
 *
 * Where the choice is free, a plan with two tiers counts only if in the step that all plans are compared by, with the typical
 * context, it is no slower than any restricted strategy (restricted.c).
 *
 * Plans with two tiers are made for the step of a short context: with the least places, then with twice as many as
 * long as that is better. With the best number they are made for the steps of longer contexts.
 *
 * Chunks of more tokens bring weights and a long prompt's old pages less often, but their buffers take room from weights and
 * places. They are judged by whole requests: a prompt of each context and SESSION_TOKENS more, again in the geometric mean. The
 * faster ones are taken, and of plans alike within SESSION_ALIKE the one with the shorter time to a long prompt's first token,
 * as long as a short context loses no more than STEP_LOSS of the speed it has with the shortest chunks, nor more than TIERS_LOSS
 * in all if these kept it. Steps between sizes
 * are small, so that two profiles of one machine differ little in what they choose. */
#include "daemon/planner/attempt.h"

#include <math.h>
#include <string.h>

#include "daemon/planner/cost/cost.h"
#include "daemon/planner/prefill.h"

#define TIERS_SHORT         256
#define TIERS_SHORT_CONTEXT 512
#define TIERS_GROWTH        4
#define TIERS_LOSS          0.03
#define TIERS_GAIN          0.02  /* part of the score that two tiers must gain */
#define SESSION_TOKENS      256   /* decoded behind a prompt */
#define SESSION_ALIKE       0.015 /* searches for like chunks end that far apart */
#define LONG_PART           4     /* a long prompt is this part of the context */
#define LONG_GAIN           0.1 /* part of a long prompt's time that decides between requests that are alike */
#define STEP_LOSS           0.025 /* part of a short context's speed that longer chunks may cost */
#define DIRECT_STEP         25    /* of 1,000: shares that are tried */

static const char *const tiers_names[KV_TIERS_COUNT] = {
    [KV_TIERS_ONE] = "one", [KV_TIERS_TWO] = "two", [KV_TIERS_AUTO] = "auto"};

const char *kv_tiers_name(enum kv_tiers tiers)
{
    return (unsigned)tiers < KV_TIERS_COUNT ? tiers_names[tiers] : "unknown";
}

enum kv_tiers kv_tiers_named(const char *name)
{
    int t = 0;
    while (t + 1 < KV_TIERS_COUNT && strcmp(name, tiers_names[t]) != 0) t++;
    return (enum kv_tiers)t;
}

/* ---- a plan over contexts ---- */

/* Each once: 256, 1,024, ... and the whole; 0: no more. */
static uint32_t next_context(uint32_t context, uint32_t whole)
{
    if (context == whole) return 0;
    return context > whole / TIERS_GROWTH ? whole : context * TIERS_GROWTH;
}

struct score {
    double at_short, mean; /* seconds of a step: of a short context, geometric mean of all */
    double session;        /* seconds of a prompt and SESSION_TOKENS behind it, likewise; 0: not looked at */
    double prompt;         /* seconds of a prompt of the context's LONG_PART; with session */
};

static int score_of(const struct making *m, const struct plan *plan, uint32_t ctx, struct score *score,
                    struct helm_err *err)
{
    double sum = 0, seconds;
    uint32_t count = 0;
    for (uint32_t c = ctx < TIERS_SHORT ? ctx : TIERS_SHORT; c; c = next_context(c, ctx)) {
        int rc = making_decode_seconds(m, plan, c, &seconds, err);
        if (rc) return rc;
        if (count++ == 0) score->at_short = seconds;
        sum += log(seconds);
    }
    score->mean = exp(sum / count);
    return 0;
}

/* Prompts as long as the contexts, in the plan's chunks. */
static int score_session(const struct making *m, const struct plan *plan, uint32_t ctx, struct score *score,
                         struct helm_err *err)
{
    const struct cost_case one = making_case(m, plan);
    double sum = 0, seconds;
    uint32_t count = 0;
    for (uint32_t c = ctx < TIERS_SHORT ? ctx : TIERS_SHORT; c; c = next_context(c, ctx), count++) {
        struct cost_forecast first;
        int rc = cost_ttft(&one, c, &first, err);
        if (!rc) rc = making_decode_seconds(m, plan, c, &seconds, err);
        if (rc) return rc;
        sum += log(first.seconds + SESSION_TOKENS * seconds);
    }
    score->session = exp(sum / count);
    struct cost_forecast prompt;
    const int rc = cost_ttft(&one, ctx < LONG_PART ? ctx : ctx / LONG_PART, &prompt, err);
    score->prompt = prompt.seconds;
    return rc;
}

/* ---- who reads the arena's part ---- */

static int choose_share(const struct making *m, struct plan *plan, struct helm_err *err)
{
    double least = INFINITY;
    uint32_t best = 0;
    for (uint32_t share = 0; share <= 1000; share += DIRECT_STEP) {
        struct score score;
        plan->kv_direct_permille = share;
        int rc = score_of(m, plan, plan->context_tokens, &score, err);
        if (rc) return rc;
        if (score.mean >= least) continue;
        least = score.mean;
        best = share;
    }
    plan->kv_direct_permille = best;
    return 0;
}

/* The windows whose layers are better left to the GPU alone, a hand-over each less: up to which length. */
static int choose_window(const struct making *m, struct plan *plan, struct helm_err *err)
{
    const uint32_t *window = m->r->model->config.window;
    struct score score;
    uint32_t best = 0;
    int rc = score_of(m, plan, plan->context_tokens, &score, err);
    double least = score.mean;
    for (uint32_t l = 0; window && l < plan->layers && !rc; l++) {
        if (window[l] == 0 || window[l] == plan->kv_direct_window || window[l] == best) continue;
        plan->kv_direct_window = window[l];
        rc = score_of(m, plan, plan->context_tokens, &score, err);
        if (rc || score.mean >= least) continue;
        least = score.mean;
        best = window[l];
    }
    plan->kv_direct_window = best;
    return rc;
}

/* *gains: a step whose rows have `pages` pages each in the arena alone is faster where the GPU reads all of them. */
static int direct_gains(const struct making *m, struct plan *plan, uint32_t pages, bool *gains,
                        struct helm_err *err)
{
    const uint32_t filled = plan_places_filled(plan) / m->batch,
                   context = ((filled ? filled : 1) + pages) * plan->page_tokens;
    double direct = 0, both = 0;
    plan->kv_direct_positions = PLAN_TOKENS_MAX;
    int rc = making_decode_seconds(m, plan, context, &direct, err);
    plan->kv_direct_positions = 0;
    if (!rc) rc = making_decode_seconds(m, plan, context, &both, err);
    *gains = direct < both;
    return rc;
}

/* With few positions there a hand-over takes longer than reading them: up to how many. */
static int choose_positions(const struct making *m, struct plan *plan, struct helm_err *err)
{
    uint32_t low = 0, high = plan_host_tokens(plan, m->batch, plan->context_tokens) / plan->page_tokens + 1;
    int rc = 0;
    plan->kv_direct_positions = 0;
    while (high - low > 1 && !rc) { /* low gains, high does not */
        const uint32_t half = low + (high - low) / 2;
        bool gains = false;
        rc = direct_gains(m, plan, half, &gains, err);
        *(gains ? &low : &high) = half;
    }
    plan->kv_direct_positions = low * plan->page_tokens * m->batch;
    return rc;
}

/* The way of each layer's pages in a decode step. A step has one share for all layers without a window, since they see the
 * same positions, and the CPU is through with them when the link is, whatever else flows; it goes by the positions that the
 * step's rows have in the arena alone. */
static int choose_direct(const struct making *m, struct plan *plan, struct helm_err *err)
{
    plan->kv_direct_positions = plan->kv_direct_window = 0;
    if (!plan_kv_tiered(plan)) return 0;
    int rc = choose_share(m, plan, err);
    if (!rc && plan_kv_assisted(plan)) rc = choose_window(m, plan, err);
    if (!rc && plan_kv_assisted(plan) &&
        !plan_assisted_layers(plan, m->r->model->config.window, plan->layers)) {
        plan->kv_direct_permille = 1000; /* then the CPU is not needed for it */
        plan->kv_direct_window = 0;
    }
    return rc || !plan_kv_assisted(plan) ? rc : choose_positions(m, plan, err);
}

int tiers_finish(struct making *m, struct plan *plan, struct arena_spec *spec, struct helm_err *err)
{
    if (!plan_kv_tiered(plan)) return 0;
    int rc = choose_direct(m, plan, err);
    m->wish.vram_page_count = plan->vram_page_count;
    return rc ? rc : ledger_write(&m->c, plan->context_tokens, plan->page_count, plan, spec, err);
}

/* ---- one plan or the other ---- */

struct candidate {
    struct plan plan;
    struct attempt attempt;
    struct ledger_wish wish;
    bool packs_cpu_beside;
    struct score score;
};

struct tiering {
    struct making *m;
    const struct trying *t;
    /* The plan for a short context, whose weights are where two tiers have them */
    struct packing_known like;
    double least;         /* seconds that a step of a short context takes at most, unless all take longer */
    double most;          /* seconds that it may take with longer chunks */
    double session_least; /* of the plans that were the best */
    struct candidate *best;
};

/* Two tiers: at least `places` places, made fast for `priced_at` positions, with chunks of `step` tokens. */
struct two_tiers {
    uint32_t places, priced_at, step;
};

/* Whether a plan with longer chunks than the best one's is better. */
static bool better_chunks(const struct tiering *k, const struct candidate *c)
{
    const struct score *now = &k->best->score, *then = &c->score;
    if (c->plan.step_tokens <= k->best->plan.step_tokens || then->at_short > k->most) return false;
    return then->session < now->session || (then->session <= (1 + SESSION_ALIKE) * k->session_least &&
                                            then->prompt <= (1 - LONG_GAIN) * now->prompt);
}

/* Whether it is the best. */
static bool better(const struct tiering *k, const struct candidate *c)
{
    const struct candidate *best = k->best;
    if (!best->attempt.fits) return true;
    if (c->score.session > 0) return better_chunks(k, c);
    const bool in_time = c->score.at_short <= k->least, best_in_time = best->score.at_short <= k->least,
               two = plan_kv_tiered(&best->plan);
    if (in_time != best_in_time) return in_time;
    return c->score.mean < (two ? 1 : 1 - TIERS_GAIN) * best->score.mean;
}

static int finish(const struct tiering *k, struct candidate *c, struct helm_err *err)
{
    struct making *m = k->m;
    struct arena_spec spec;
    c->wish = m->wish;
    c->packs_cpu_beside = m->packs_cpu_beside;
    int rc = ledger_fit(&m->c, k->t->ctx, &c->plan, &spec, err);
    if (!rc) rc = choose_direct(m, &c->plan, err);
    if (!rc) rc = score_of(m, &c->plan, k->t->ctx, &c->score, err);
    if (rc || !k->best->score.session) return rc;
    return score_session(m, &c->plan, k->t->ctx, &c->score, err);
}

/* *places: that it has, 0: it is none. *taken: it is the best. */
static int try_two(struct tiering *k, const struct two_tiers *what, uint32_t *places, bool *taken,
                   struct helm_err *err)
{
    struct making *m = k->m;
    struct candidate c = {.score = {0}};
    m->wish.vram_page_count = what->places;
    m->priced_at = what->priced_at < k->t->ctx ? what->priced_at : k->t->ctx;
    m->step = what->step;
    *taken = false;
    int rc = attempt_tiers(m, k->t, &c.plan, &c.attempt, err);
    const bool there = !rc && c.attempt.fits && plan_kv_tiered(&c.plan);
    if (there) rc = finish(k, &c, err);
    *places = there && !rc ? c.plan.vram_page_count : 0;
    if (*places && better(k, &c)) {
        const struct candidate other = *k->best;
        *k->best = c;
        c = other;
        *taken = true;
    }
    m->priced_at = m->step = 0;
    plan_free(&c.plan);
    return rc;
}

static bool all_on_gpu(const struct plan *plan)
{
    for (uint32_t i = 0; i < plan->stage_count; i++)
        if (plan->stages[i].home != PLAN_HOME_GPU) return false;
    return true;
}

/* Seconds that a short context's step may take: of the plan for a short context, and a little more. */
static int find_least(struct tiering *k, struct helm_err *err)
{
    struct candidate c = {.score = {0}};
    struct trying t = *k->t;
    if (t.ctx > TIERS_SHORT_CONTEXT) t.ctx = TIERS_SHORT_CONTEXT;
    k->m->wish.vram_page_count = 0;
    int rc = attempt_tiers(k->m, &t, &c.plan, &c.attempt, err);
    k->least = INFINITY;
    if (!rc && c.attempt.fits) {
        k->like = (struct packing_known){.vram = k->m->wish.pack_gpu, .cpu = k->m->wish.pack_cpu};
        k->m->like = &k->like;
        rc = making_decode_seconds(k->m, &c.plan, t.ctx < TIERS_SHORT ? t.ctx : TIERS_SHORT, &k->least, err);
        k->least /= 1 - TIERS_LOSS;
    }
    plan_free(&c.plan);
    return rc;
}

/* From the least on twice as many places each time, until they are no longer worth their weights. */
static int try_places(struct tiering *k, uint32_t least, uint32_t *best, struct helm_err *err)
{
    const uint32_t most = ledger_least_pages(&k->m->c, k->t->ctx);
    struct two_tiers what = {.places = least, .priced_at = TIERS_SHORT, .step = LEDGER_STEP_TOKENS};
    *best = least;
    for (bool taken = true; taken && what.places <= most; what.places *= 2) {
        uint32_t places;
        int rc = try_two(k, &what, &places, &taken, err);
        if (rc) return rc;
        if (taken) *best = what.places;
        while (2 * what.places <= places) what.places *= 2; /* that many are left over */
    }
    return 0;
}

/* Seconds that a short context's step may take with longer chunks: a little more than with the shortest, and no more than
 * rule 2 allows a plan that keeps it with those. */
static double most_at_short(const struct tiering *k)
{
    const double now = k->best->score.at_short, most = now / (1 - STEP_LOSS);
    return now <= k->least ? fmin(most, k->least) : most;
}

/* With the places that are best, and where that is not better with the least, which leave a short context more weights. */
static int try_step(struct tiering *k, const struct two_tiers *what, bool *taken, struct helm_err *err)
{
    struct two_tiers few = *what;
    uint32_t ignored;
    int rc = try_two(k, what, &ignored, taken, err);
    few.places = 1;
    return rc || *taken || what->places == few.places ? rc : try_two(k, &few, &ignored, taken, err);
}

/* Half as many tokens more each time, then a third: every second is a power of two. The second that is no better ends it. */
static int try_chunks(struct tiering *k, uint32_t places, uint32_t priced_at, struct helm_err *err)
{
    const uint32_t most = k->t->ctx < PREFILL_CHUNK_MAX ? k->t->ctx : PREFILL_CHUNK_MAX;
    struct two_tiers what = {.places = places, .priced_at = priced_at, .step = LEDGER_STEP_TOKENS};
    uint32_t missed = 0;
    k->most = most_at_short(k);
    int rc = score_session(k->m, &k->best->plan, k->t->ctx, &k->best->score, err);
    while (!rc && missed < 2) {
        bool taken;
        k->session_least = fmin(k->session_least, k->best->score.session);
        what.step += what.step & (what.step - 1) ? what.step / 3 : what.step / 2;
        if (what.step > most) break;
        rc = try_step(k, &what, &taken, err);
        missed = taken ? 0 : missed + 1;
    }
    return rc;
}

static int try_all(struct tiering *k, struct helm_err *err)
{
    static const uint32_t longer[] = {2 * TIERS_SHORT, 8 * TIERS_SHORT};
    struct making *m = k->m;
    const uint32_t ctx = k->t->ctx;
    uint32_t places, ignored;
    bool taken = true;
    int rc = find_least(k, err);
    /* where not even a short context fits in one tier, two have no room: their arena has all layers' pages */
    if (!rc && isinf(k->least)) return 0;
    if (!rc && k->best->attempt.fits) rc = score_of(m, &k->best->plan, ctx, &k->best->score, err);
    if (rc) return rc;
    m->wish.step_tokens = m->r->wish.step_tokens ? m->r->wish.step_tokens : LEDGER_STEP_TOKENS;
    m->wish.vram_page_count = 1;
    rc = try_places(k, ledger_places(&m->c, ctx), &places, err);
    if (rc || !plan_kv_tiered(&k->best->plan)) return rc;
    struct two_tiers what = {.places = places, .step = LEDGER_STEP_TOKENS};
    uint32_t priced_at = TIERS_SHORT;
    for (size_t i = 0; i < sizeof longer / sizeof *longer && !rc; i++) {
        what.priced_at = longer[i];
        rc = try_two(k, &what, &ignored, &taken, err);
        if (taken) priced_at = longer[i];
    }
    return rc || m->r->wish.step_tokens ? rc : try_chunks(k, places, priced_at, err);
}

static bool may_have_two(const struct making *m, const struct trying *t)
{
    return m->r->tiers != KV_TIERS_ONE && t->device && t->strategy == SEARCH_BEST;
}

static void begin(struct making *m, uint32_t places)
{
    m->wish.vram_page_count = places;
    m->priced_at = m->step = 0;
}

int attempt_context(struct making *m, const struct trying *t, struct plan *plan, struct attempt *attempt,
                    struct helm_err *err)
{
    const bool must = m->r->tiers == KV_TIERS_TWO, may = may_have_two(m, t);
    begin(m, 0);
    int rc = attempt_tiers(m, t, plan, attempt, err);
    if (!rc && t->strategy == SEARCH_BEST && t->device) rc = restricted_try(m, t, plan, attempt, err);
    if (rc || !may) return rc;
    if (!must && (t->ctx <= TIERS_SHORT_CONTEXT || (attempt->fits && all_on_gpu(plan)))) return 0;
    struct candidate best = {.plan = *plan,
                             .attempt = *attempt,
                             .wish = m->wish,
                             .packs_cpu_beside = m->packs_cpu_beside};
    struct tiering k = {.m = m, .t = t, .best = &best, .session_least = INFINITY};
    struct candidate one = best;
    one.plan = (struct plan){0};
    if (must) best.attempt.fits = false;
    rc = attempt->fits && !must ? plan_copy(plan, &one.plan, err) : 0;
    if (!rc) rc = try_all(&k, err);
    m->like = NULL;
    /* as that of other plans, with which it is compared */
    if (!rc && plan_kv_tiered(&best.plan))
        rc = making_decode_seconds(m, &best.plan, planner_typical_context(m->r, t->ctx),
                                   &best.attempt.seconds, err);
    if (!rc && one.attempt.fits && !must && plan_kv_tiered(&best.plan) && best.attempt.seconds > m->floor) {
        const struct candidate slower = best;
        best = one;
        one = slower;
    }
    plan_free(&one.plan);
    *plan = best.plan;
    *attempt = best.attempt;
    m->wish = best.wish;
    m->packs_cpu_beside = best.packs_cpu_beside;
    return rc;
}

int attempt_fits(struct making *m, const struct trying *t, bool *fits, struct helm_err *err)
{
    struct plan plan = {0};
    struct attempt attempt = {.fits = false};
    int rc = 0;
    begin(m, 0);
    if (m->r->tiers != KV_TIERS_TWO || !may_have_two(m, t)) rc = attempt_tiers(m, t, &plan, &attempt, err);
    if (!rc && !attempt.fits && may_have_two(m, t)) {
        begin(m, 1);
        rc = attempt_tiers(m, t, &plan, &attempt, err);
    }
    *fits = !rc && attempt.fits;
    plan_free(&plan);
    begin(m, 0);
    return rc;
}
