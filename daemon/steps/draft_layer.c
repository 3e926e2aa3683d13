/* Where the drafts of `--speculate auto` come from. See draft_layer.h. */
#include "daemon/steps/draft_layer.h"

#include <stdio.h>
#include <stdlib.h>

#include "common/base/units.h"
#include "daemon/observe/step_prices.h"
#include "daemon/steps/draft_count.h"

/* A forecast of the sequences that a plan is for. */
struct rates {
    double without, with; /* tokens a second; 0: no step of so many rows has drafts, or there is no memory */
    uint32_t drafts;      /* in all, chosen as steps choose them */
};

/* `right`: how often a draft is right. */
static struct rates rates_of(const struct draft_layer_planned *p, double right)
{
    const struct plan *plan = p->plan;
    const uint32_t rows = planner_at_once(p->request, plan);
    const uint32_t context = planner_typical_context(p->request, plan->context_tokens);
    struct forecast forecast;
    struct step_prices prices;
    struct step_prices_row price;
    struct draft_row row[STEP_PRICES_TOKENS];
    struct helm_err err = {0};
    struct rates rates = {0};
    const bool drafted = p->request->draft.seconds > 0;
    if (rows >= STEP_PRICES_TOKENS) return rates;
    if (!forecast_open(p->model, p->profile, plan, &forecast, &err)) {
        step_prices_begin(&forecast, &prices);
        step_prices_make(&prices, &forecast, rows, context);
        if (step_prices_get(&prices, rows, &price)) {
            const struct draft_step step = {.rows = rows,
                                            .tokens = rows,
                                            .room = STEP_PRICES_TOKENS - rows,
                                            .seconds = price.seconds,
                                            .copy = prices.copy,
                                            .first = drafted ? p->request->draft.seconds : price.first,
                                            .further = drafted ? p->request->draft.seconds : price.further};
            for (uint32_t r = 0; r < rows; r++)
                row[r] = (struct draft_row){.right = right,
                                            .most = plan->draft_tokens,
                                            .made = drafted || p->model->config.drafts > 0};
            rates.without = rows / price.seconds[rows];
            rates.with = draft_count_choose(&step, 0, row, rows) * rates.without;
            for (uint32_t r = 0; r < rows; r++) rates.drafts += row[r].drafts;
        }
    }
    forecast_close(&forecast);
    return rates;
}

struct kept {
    struct model model;
    struct plan plan;
    struct arena_spec arena;
    struct planner_request request;
    struct profile profile;
    struct invariant invariant;
};

static void keep(const struct draft_layer_planned *p, struct kept *kept)
{
    *kept = (struct kept){*p->model, *p->plan, *p->arena, *p->request, *p->profile, *p->invariant};
    *p->model = (struct model){0};
    *p->plan = (struct plan){0};
}

static void take_back(const struct draft_layer_planned *p, const struct kept *kept)
{
    plan_free(p->plan);
    model_free(p->model);
    *p->model = kept->model;
    *p->plan = kept->plan;
    *p->arena = kept->arena;
    *p->request = kept->request;
    *p->profile = kept->profile;
    *p->invariant = kept->invariant;
}

/* Drafts found in the text, or by the draft model, added to what `text` says already. */
static void say_found(const struct draft_layer_planned *p, char text[DRAFT_LAYER_TEXT], int length)
{
    const bool drafted = p->request->draft.seconds > 0;
    const double right = drafted ? DRAFT_RATE_MADE : DRAFT_FOUND_RIGHT;
    const struct planner_draft *draft = &p->request->draft;
    char model[160], host[UNITS_TEXT], vram[UNITS_TEXT];
    snprintf(model, sizeof model, "by the draft model (%s of host memory, %s of VRAM, %.2f ms each)",
             units_format_size(draft->host_bytes, host), units_format_size(draft->vram_bytes, vram),
             1e3 * draft->seconds);
    const struct rates found = rates_of(p, right);
    const size_t room = DRAFT_LAYER_TEXT - (size_t)length;
    if (found.with <= 0)
        snprintf(text + length, room,
                 "none: the plan is for %u sequences at once, drafts are for less than %d",
                 planner_at_once(p->request, p->plan), STEP_PRICES_TOKENS);
    else
        snprintf(text + length, room,
                 "%s, as many as pay: %.1f token/s with %u, if %.0f %% are right; %.1f without",
                 drafted ? model : "found in the text", found.with, found.drafts, 100 * right, found.without);
}

int draft_layer_decide(const struct draft_layer_planned *p, char text[DRAFT_LAYER_TEXT], struct helm_err *err)
{
    struct helm_err why = {0};
    if (p->request->draft.seconds > 0 || !p->model->config.draft_layers ||
        planner_at_once(p->request, p->plan) >= STEP_PRICES_TOKENS) {
        say_found(p, text, 0);
        return 0;
    }
    struct kept *without = malloc(sizeof *without); /* large */
    if (!without) return helm_fail(err, HELM_E_NOMEM, "no memory for a second plan");
    const double plain = rates_of(p, 0).without;
    keep(p, without);
    const int rc = p->lay_with_layer(p->of, without->model.path, &why);
    const uint32_t ctx = p->plan->context_tokens, had = without->plan.context_tokens;
    const bool shorter = !rc && ctx < had;
    const struct rates made = rc || shorter ? (struct rates){0} : rates_of(p, DRAFT_RATE_MADE);
    if (made.drafts && plain > 0 && made.with >= DRAFT_GAIN_LEAST * plain) {
        model_free(&without->model);
        plan_free(&without->plan);
        snprintf(text, DRAFT_LAYER_TEXT,
                 "the model's layer is read: %.1f token/s with %u drafts, if %.0f %% are right; %.1f without",
                 made.with, made.drafts, 100 * DRAFT_RATE_MADE, plain);
    } else {
        int length = 0;
        take_back(p, without);
        if (rc)
            length = snprintf(text, DRAFT_LAYER_TEXT, "the model's layer is not read: %.200s; ", why.text);
        else if (shorter)
            length =
                snprintf(text, DRAFT_LAYER_TEXT,
                         "the model's layer is not read: it would leave a context of %u tokens, not %u; ",
                         ctx, had);
        else
            length = snprintf(text, DRAFT_LAYER_TEXT,
                              "the model's layer is not read: %.1f token/s with it, %.1f without; ",
                              made.with, plain);
        say_found(p, text, length);
    }
    free(without);
    return 0;
}
