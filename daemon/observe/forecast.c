/* What the running plan's steps should take. See forecast.h. Called from the one loop; allocates only when it
 * is opened, but for the cost model's own table of a step. */
#include "daemon/observe/forecast.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static int open_phase(struct forecast *f, uint32_t phase, struct helm_err *err)
{
    const struct plan *plan = f->c.plan;
    f->phase[phase].home = calloc((size_t)unit_count(plan->layers), sizeof *f->phase[phase].home);
    f->phase[phase].kv_cpu = calloc(plan->layers, sizeof *f->phase[phase].kv_cpu);
    if (!f->phase[phase].home || !f->phase[phase].kv_cpu)
        return helm_fail(err, HELM_E_NOMEM, "no memory for forecasts");
    cost_plan_of(plan, phase, f->phase[phase].home, f->phase[phase].kv_cpu, &f->phase[phase].plan);
    return 0;
}

int forecast_open(const struct model *model, const struct profile *profile, const struct plan *plan,
                  struct forecast *f, struct helm_err *err)
{
    struct cost_forecast first;
    memset(f, 0, sizeof *f);
    f->c = (struct cost_case){.model = model, .analysed = &f->analysed, .profile = profile, .plan = plan};
    for (int t = 0; t < DTYPE_COUNT; t++)
        if (strcmp(plan->kv_dtype, dtype_name((enum dtype)t)) == 0) f->kv_dtype = (enum dtype)t;
    int rc = analyse_table_build(model, &f->analysed, err);
    for (uint32_t phase = 0; phase < plan_phase_count(plan) && !rc; phase++) rc = open_phase(f, phase, err);
    if (rc) return rc;
    f->format = calloc((size_t)unit_count(plan->layers) + 1, sizeof *f->format);
    if (!f->format) return helm_fail(err, HELM_E_NOMEM, "no memory for forecasts");
    cost_formats_of(plan, f->format);
    f->decode = calloc((size_t)plan->slots * FORECAST_CONTEXTS, sizeof *f->decode);
    f->chunk = calloc((size_t)(plan->slots + 1) * FORECAST_CONTEXTS, sizeof *f->chunk);
    if (!f->decode || !f->chunk) return helm_fail(err, HELM_E_NOMEM, "no memory for forecasts");
    f->cpu_bytes = cost_reading_of(&f->analysed, plan).crossing;
    f->link_bytes = cost_crossing_of(&f->analysed, plan).crossing;
    return cost_decode(&f->c, 1, 1, &first, err);
}

void forecast_close(struct forecast *f)
{
    for (uint32_t phase = 0; phase < PLAN_PHASES_MAX; phase++) {
        free(f->phase[phase].home);
        free(f->phase[phase].kv_cpu);
    }
    free(f->format);
    free(f->decode);
    free(f->chunk);
    analyse_table_free(&f->analysed);
    memset(f, 0, sizeof *f);
}

static uint32_t context_below(uint32_t context)
{
    uint32_t k = 0;
    while (k + 2 < FORECAST_CONTEXTS && context >> (k + 1)) k++;
    return k;
}

static const struct cost_forecast *decode_at(struct forecast *f, uint32_t batch, uint32_t k)
{
    struct cost_forecast *cell = &f->decode[(size_t)(batch - 1) * FORECAST_CONTEXTS + k];
    struct helm_err err = {0};
    if (cell->seconds == 0 && cost_decode(&f->c, batch, UINT32_C(1) << k, cell, &err))
        *cell = (struct cost_forecast){0}; /* no memory: asked again the next time */
    return cell;
}

void forecast_decode(struct forecast *f, uint32_t batch, uint32_t context, struct cost_forecast *out)
{
    if (batch < 1) batch = 1;
    if (batch > f->c.plan->slots) batch = f->c.plan->slots;
    if (context < 1) context = 1;
    uint32_t k = context_below(context);
    const struct cost_forecast *a = decode_at(f, batch, k), *b = decode_at(f, batch, k + 1);
    double t = (double)context / (double)(UINT32_C(1) << k) - 1;
    *out = *a;
    if (a->seconds == 0 || b->seconds == 0) return;
    out->seconds += t * (b->seconds - a->seconds);
    out->low += t * (b->low - a->low);
    out->high += t * (b->high - a->high);
    out->hand_overs += t * (b->hand_overs - a->hand_overs);
    for (int r = 0; r < COST_RESOURCES; r++) out->busy[r] += t * (b->busy[r] - a->busy[r]);
}

/* What the ring holds of a phase's first streamed units when its step begins: decode's first slices are
 * copied ahead (worker-gpu/program/ring.h), of use as far as the phase streams the same units. */
static uint64_t held_bytes(const struct forecast *f, uint32_t phase, const struct cost_table *table)
{
    uint64_t ring = f->c.plan->ring_bytes, held = 0;
    for (uint32_t u = 0; u < table->units && held < ring; u++) {
        bool decode = f->phase[0].home[u] == PLAN_HOME_STREAM;
        if (decode != (f->phase[phase].home[u] == PLAN_HOME_STREAM)) break;
        if (decode) held += table->unit[u].crossing;
    }
    return held < ring ? held : ring;
}

double forecast_step(const struct forecast *f, const struct cost_step *step)
{
    struct cost_step priced = *step;
    struct cost_table table = {0};
    struct helm_err err = {0};
    uint32_t phase = plan_phase_for(f->c.plan, step->tokens);
    priced.kv_dtype = f->kv_dtype;
    priced.format = f->format;
    if (cost_price(f->c.model, f->c.analysed, f->c.profile, &priced, &table, &err)) return 0;
    struct cost_plan plan = f->phase[phase].plan;
    plan.held_bytes = held_bytes(f, phase, &table);
    double seconds = cost_seconds(&table, &plan, INFINITY);
    cost_table_free(&table);
    return isfinite(seconds) ? seconds : 0;
}

/* A step with so many tokens of a prompt beside `decoding` others, each of which attends to `around`
 * positions. Every row is priced alike: with the mean of what they attend to, which holds its own tokens. */
static double chunk_seconds(const struct forecast *f, uint32_t tokens, uint32_t decoding, uint32_t around)
{
    uint32_t rows = decoding + 1, own = tokens / rows + 1;
    const struct cost_step step = {.tokens = tokens + decoding,
                                   .rows = rows,
                                   .samples = rows,
                                   .context = around > own ? around : own};
    return forecast_step(f, &step);
}

uint32_t forecast_chunk(struct forecast *f, uint32_t decoding, uint32_t context, double seconds)
{
    const struct plan *plan = f->c.plan;
    if (decoding > plan->slots) decoding = plan->slots;
    if (context < 1) context = 1;
    if (seconds != f->chunk_seconds)
        memset(f->chunk, 0, (size_t)(plan->slots + 1) * FORECAST_CONTEXTS * sizeof *f->chunk);
    f->chunk_seconds = seconds;
    uint32_t k = context_below(context) + 1, *known = &f->chunk[(size_t)decoding * FORECAST_CONTEXTS + k];
    if (*known) return *known;
    uint32_t tokens = plan->step_tokens > decoding ? plan->step_tokens - decoding : 1, around = UINT32_C(1)
                                                                                                << k;
    /* Where the least takes as long, nothing is saved by less than what comes nearly for free with it. */
    double least = chunk_seconds(f, FORECAST_CHUNK_LEAST, decoding, around);
    seconds = fmax(seconds, FORECAST_CHUNK_STRETCH * least);
    while (tokens > FORECAST_CHUNK_LEAST && chunk_seconds(f, tokens, decoding, around) > seconds) tokens /= 2;
    return *known = tokens < FORECAST_CHUNK_LEAST ? FORECAST_CHUNK_LEAST : tokens;
}
