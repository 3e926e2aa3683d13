/* The score of a plan with two tiers over contexts, and the processor that reads the arena's part of its
 * cache. See tiers.h. Called by tiers.c and ideas.c; owns nothing. */
#include "common/base/units.h"
#include "daemon/planner/tiers.h"

#include <math.h>

/* ---- a plan over contexts ---- */

/* Each once: 256, 1,024, ... and the whole; 0: no more. */
static uint32_t next_context(uint32_t context, uint32_t whole)
{
    if (context == whole) return 0;
    return context > whole / PLANNER_CONTEXT_GROWTH ? whole : context * PLANNER_CONTEXT_GROWTH;
}

int tiers_score(const struct making *m, const struct plan *plan, uint32_t ctx, struct score *score,
                struct helm_err *err)
{
    double sum = 0, seconds;
    uint32_t count = 0;
    for (uint32_t c = ctx < PLANNER_SHORT_CONTEXT ? ctx : PLANNER_SHORT_CONTEXT; c;
         c = next_context(c, ctx)) {
        int rc = making_decode_seconds(m, plan, c, &seconds, err);
        if (rc) return rc;
        if (count++ == 0) score->at_short = seconds;
        sum += log(seconds);
    }
    score->mean = exp(sum / count);
    return 0;
}

int tiers_score_session(const struct making *m, const struct plan *plan, uint32_t ctx, struct score *score,
                        struct helm_err *err)
{
    const struct cost_case one = making_case(m, plan);
    double sum = 0, seconds;
    uint32_t count = 0;
    for (uint32_t c = ctx < PLANNER_SHORT_CONTEXT ? ctx : PLANNER_SHORT_CONTEXT; c;
         c = next_context(c, ctx), count++) {
        struct cost_forecast first;
        int rc = cost_ttft(&one, c, &first, err);
        if (!rc) rc = making_decode_seconds(m, plan, c, &seconds, err);
        if (rc) return rc;
        sum += log(first.seconds + PLANNER_ANSWER_TOKENS * seconds);
    }
    score->session = exp(sum / count);
    struct cost_forecast prompt;
    const int rc =
        cost_ttft(&one, ctx < PLANNER_CONTEXT_GROWTH ? ctx : ctx / PLANNER_CONTEXT_GROWTH, &prompt, err);
    score->prompt = prompt.seconds;
    return rc;
}

/* ---- who reads the arena's part ---- */

static int try_share(const struct making *m, struct plan *plan, uint32_t share, double *least, uint32_t *best,
                     struct helm_err *err)
{
    struct score score;
    plan->kv_direct_permille = share;
    int rc = tiers_score(m, plan, plan->context_tokens, &score, err);
    if (rc || score.mean >= *least) return rc;
    *least = score.mean;
    *best = share;
    return 0;
}

/* One processor's time falls with the share, the other's rises: from the best of both ends and the middle
 * steps are half as long each time, to about a hundredth. */
static int choose_share(const struct making *m, struct plan *plan, struct helm_err *err)
{
    double least = INFINITY;
    uint32_t best = 0;
    int rc = 0;
    for (uint32_t share = 0; share <= PERMILLE && !rc; share += PERMILLE / 2)
        rc = try_share(m, plan, share, &least, &best, err);
    for (uint32_t step = PERMILLE / 2 / 2; step >= PERMILLE / PERCENT && !rc; step /= 2) {
        const uint32_t from = best;
        if (from >= step) rc = try_share(m, plan, from - step, &least, &best, err);
        if (!rc && from + step <= PERMILLE) rc = try_share(m, plan, from + step, &least, &best, err);
    }
    plan->kv_direct_permille = best;
    return rc;
}

/* The windows whose layers are better left to the GPU alone, a hand-over each less: up to which length. */
static int choose_window(const struct making *m, struct plan *plan, struct helm_err *err)
{
    const uint32_t *window = m->r->model->config.window;
    struct score score;
    uint32_t best = 0;
    int rc = tiers_score(m, plan, plan->context_tokens, &score, err);
    double least = score.mean;
    for (uint32_t l = 0; window && !plan->window_page_count && l < plan->layers && !rc; l++) {
        if (window[l] == 0 || window[l] == plan->kv_direct_window || window[l] == best) continue;
        plan->kv_direct_window = window[l];
        rc = tiers_score(m, plan, plan->context_tokens, &score, err);
        if (rc || score.mean >= least) continue;
        least = score.mean;
        best = window[l];
    }
    plan->kv_direct_window = best;
    return rc;
}

/* *gains: a step whose rows have `pages` pages each in the arena alone is faster where the GPU reads all of
 * them. */
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

/* The way of each layer's pages in a decode step. A step has one share for all layers without a window, since
 * they see the same positions, and the CPU is through with them when the link is, whatever else flows; it
 * goes by the positions that the step's rows have in the arena alone. */
int tiers_choose_direct(const struct making *m, struct plan *plan, struct helm_err *err)
{
    plan->kv_direct_positions = plan->kv_direct_window = 0;
    if (!plan_kv_tiered(plan)) return 0;
    int rc = choose_share(m, plan, err);
    if (!rc && plan_kv_assisted(plan)) rc = choose_window(m, plan, err);
    if (!rc && plan_kv_assisted(plan) &&
        !plan_assisted_layers(plan, m->r->model->config.window, plan->layers)) {
        plan->kv_direct_permille = PERMILLE; /* then the CPU is not needed for it */
        plan->kv_direct_window = 0;
    }
    return rc || !plan_kv_assisted(plan) ? rc : choose_positions(m, plan, err);
}

int tiers_finish(struct making *m, struct plan *plan, struct arena_spec *spec, struct helm_err *err)
{
    if (!plan_kv_tiered(plan)) return 0;
    int rc = tiers_choose_direct(m, plan, err);
    m->wish.vram_page_count = plan_kv_places(plan);
    return rc ? rc : ledger_write(&m->c, plan->context_tokens, plan->page_count, plan, spec, err);
}
