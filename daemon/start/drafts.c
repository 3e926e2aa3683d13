/* Whether `--speculate auto` reads the model's layer of drafts: a plan with it, whose steps make drafts, must
 * be faster than the plan without. Called by planning.c, with that plan; see start.h. */
#include <stdlib.h>

#include "common/base/log.h"
#include "common/model/parts.h"
#include "daemon/planner/formats.h"
#include "daemon/start/start.h"
#include "daemon/steps/draft_count.h"

/* Tokens a second of the sequences that the plan is for; *drafts: with so many drafts in all, each right as
 * often as is supposed of the layer, chosen as steps choose them. 0: no step of so many rows has drafts, or
 * there is no memory. */
static double rate_of(const struct helmd *d, uint32_t *drafts)
{
    const uint32_t rows = planner_at_once(&d->request, &d->plan);
    const uint32_t context = planner_typical_context(&d->request, d->plan.context_tokens);
    struct forecast forecast;
    struct step_prices prices;
    struct step_prices_row price;
    struct draft_row row[STEP_PRICES_TOKENS];
    struct helm_err err = {0};
    double rate = 0;
    *drafts = 0;
    if (rows < STEP_PRICES_TOKENS && !forecast_open(&d->model, &d->profile, &d->plan, &forecast, &err)) {
        step_prices_begin(&forecast, &prices);
        step_prices_make(&prices, &forecast, rows, context);
        if (step_prices_get(&prices, rows, &price)) {
            const struct draft_step step = {.rows = rows,
                                            .tokens = rows,
                                            .room = STEP_PRICES_TOKENS - rows,
                                            .seconds = price.seconds,
                                            .copy = prices.copy,
                                            .first = price.first,
                                            .further = price.further};
            const uint32_t most = d->model.config.drafts ? d->plan.draft_tokens : 0;
            for (uint32_t r = 0; r < rows; r++)
                row[r] = (struct draft_row){.right = DRAFT_RATE_MADE, .most = most, .made = true};
            rate = draft_count_choose(&step, 0, row, rows) * rows / price.seconds[rows];
            for (uint32_t r = 0; r < rows; r++) *drafts += row[r].drafts;
        }
    }
    forecast_close(&forecast);
    return rate;
}

int drafts_read_layer(struct helmd *d, struct helm_err *err)
{
    struct model with;
    const int rc = model_read_drafting(d->model.path, &with, err);
    if (rc) return rc;
    formats_lay(&with, d->config.weights);
    model_free(&d->model);
    d->model = with;
    return 0;
}

/* All that another plan overwrites. */
struct planned {
    struct model model;
    struct plan plan;
    struct arena_spec arena_spec;
    struct planner_request request;
    struct profile profile;
    struct invariant invariant;
};

static void keep(struct helmd *d, struct planned *planned)
{
    *planned = (struct planned){d->model, d->plan, d->arena_spec, d->request, d->profile, d->invariant};
    d->plan = (struct plan){0};
}

static void take_back(struct helmd *d, struct planned *planned)
{
    plan_free(&d->plan);
    model_free(&d->model);
    d->model = planned->model;
    d->plan = planned->plan;
    d->arena_spec = planned->arena_spec;
    d->request = planned->request;
    d->profile = planned->profile;
    d->invariant = planned->invariant;
}

int drafts_consider_layer(struct helmd *d, drafts_plan_fn *lay_plan, struct helm_err *err)
{
    const struct config *c = &d->config;
    struct helm_err why = {0};
    uint32_t drafts = 0, none;
    if (c->speculate != REQUEST_SPECULATE_AUTO || c->plan_file || !d->model.config.draft_layers) return 0;
    const uint32_t rows = planner_at_once(&d->request, &d->plan);
    if (rows >= STEP_PRICES_TOKENS) {
        log_info(
            "drafts: the model's layer is not read: the plan is for %u sequences at once, drafts are for "
            "less than %d",
            rows, STEP_PRICES_TOKENS);
        return 0;
    }
    struct planned *without = malloc(sizeof *without); /* large */
    if (!without) return helm_fail(err, HELM_E_NOMEM, "no memory for a second plan");
    const double plain = rate_of(d, &none);
    keep(d, without);
    int rc = model_read_drafting(without->model.path, &d->model, &why);
    if (!rc) {
        formats_lay(&d->model, c->weights);
        rc = lay_plan(d, &why);
    }
    const uint32_t ctx = d->plan.context_tokens, had = without->plan.context_tokens;
    const bool shorter = !rc && ctx < had;
    const double made = rc || shorter ? 0 : rate_of(d, &drafts);
    if (drafts && plain > 0 && made >= DRAFT_GAIN_LEAST * plain) {
        model_free(&without->model);
        plan_free(&without->plan);
        log_info("drafts: the model's layer is read: %.1f token/s with %u drafts, if %.0f %% are right; %.1f "
                 "without",
                 made, drafts, 100 * DRAFT_RATE_MADE, plain);
    } else {
        take_back(d, without);
        if (rc)
            log_info("drafts: the model's layer is not read: %s", why.text);
        else if (shorter)
            log_info("drafts: the model's layer is not read: it would leave a context of %u tokens, not %u",
                     ctx, had);
        else
            log_info("drafts: the model's layer is not read: %.1f token/s with it, %.1f without", made,
                     plain);
    }
    free(without);
    return 0;
}
