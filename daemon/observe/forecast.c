/* Forecasts of the running plan's steps. See forecast.h. Called from the one loop; allocates only when it is
 * opened, but for the cost model's own table of a step. */
#include "daemon/observe/forecast.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

int forecast_open(const struct model *model, const struct profile *profile, const struct plan *plan,
                  struct forecast *f, struct helm_err *err)
{
    struct cost_forecast first;
    memset(f, 0, sizeof *f);
    f->c = (struct cost_case){.model = model, .analysed = &f->analysed, .profile = profile, .plan = plan};
    int rc = analyse_table_build(model, &f->analysed, err);
    if (rc) return rc;
    f->decode = calloc((size_t)plan->slots * FORECAST_CELLS, sizeof *f->decode);
    f->chunk = calloc((size_t)(plan->slots + 1) * FORECAST_CONTEXTS, sizeof *f->chunk);
    if (!f->decode || !f->chunk) return helm_fail(err, HELM_E_NOMEM, "no memory for forecasts");
    f->reads = plan_disk_ring(plan) > 0;
    f->cpu_bytes = cost_bytes_of(&f->analysed, plan, PLAN_HOME_CPU).crossing +
                   cost_bytes_of(&f->analysed, plan, PLAN_HOME_DISK).crossing;
    f->link_bytes = f->reads ? plan->memory[PLAN_DISK].total
                             : cost_bytes_of(&f->analysed, plan, PLAN_HOME_STREAM).crossing;
    return cost_decode(&f->c, 1, 1, &first, err);
}

void forecast_close(struct forecast *f)
{
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

/* A context that forecasts are interpolated from, and where it is kept. */
struct mark {
    uint32_t context, cell;
};

/* The marks on both sides of a context. Up to `places` all positions have places in VRAM: there the price
 * bends. */
static void marks_here(uint32_t context, uint32_t places, struct mark *below, struct mark *above)
{
    const uint32_t k = context_below(context);
    *below = (struct mark){UINT32_C(1) << k, k};
    *above = (struct mark){UINT32_C(1) << (k + 1), k + 1};
    if (places > below->context && places < above->context) *above = (struct mark){places, FORECAST_CONTEXTS};
}

/* The same after it, where the arena's part grows with the first position of each page. */
static void marks_beyond(uint32_t context, uint32_t places, struct mark *below, struct mark *above)
{
    const uint32_t k = context_below(context - 1);
    *below = (struct mark){(UINT32_C(1) << k) + 1, k};
    *above = (struct mark){(UINT32_C(1) << (k + 1)) + 1, k + 1};
    if (below->context <= places + 1) *below = (struct mark){places + 1, FORECAST_CONTEXTS + 1};
}

/* Positions of each of `batch` rows that have places at once; 0: all have. */
static uint32_t places_of(const struct plan *plan, uint32_t batch)
{
    if (!plan_kv_tiered(plan)) return 0;
    const uint32_t beyond = (plan_kv_places(plan) + 1) * plan->page_tokens; /* in whole pages */
    return beyond - plan_host_tokens(plan, batch, beyond);
}

static const struct cost_forecast *decode_at(struct forecast *f, uint32_t batch, const struct mark *mark)
{
    struct cost_forecast *cell = &f->decode[(size_t)(batch - 1) * FORECAST_CELLS + mark->cell];
    struct helm_err err = {0};
    if (cell->seconds == 0 && cost_decode(&f->c, batch, mark->context, cell, &err))
        *cell = (struct cost_forecast){0}; /* no memory: asked again the next time */
    return cell;
}

void forecast_decode(struct forecast *f, uint32_t batch, uint32_t context, struct cost_forecast *out)
{
    struct mark below, above;
    if (batch < 1) batch = 1;
    if (batch > f->c.plan->slots) batch = f->c.plan->slots;
    if (context < 1) context = 1;
    const uint32_t places = places_of(f->c.plan, batch), page_tokens = f->c.plan->page_tokens;
    if (places && context > places) {
        context = (context - 1) / page_tokens * page_tokens + 1;
        marks_beyond(context, places, &below, &above);
    } else {
        marks_here(context, places, &below, &above);
    }
    const struct cost_forecast *a = decode_at(f, batch, &below), *b = decode_at(f, batch, &above);
    const double t = ((double)context - below.context) / ((double)above.context - below.context);
    *out = *a;
    if (a->seconds == 0 || b->seconds == 0) return;
    out->seconds += t * (b->seconds - a->seconds);
    out->low += t * (b->low - a->low);
    out->high += t * (b->high - a->high);
    out->hand_overs += t * (b->hand_overs - a->hand_overs);
    for (int r = 0; r < COST_RESOURCES; r++) out->busy[r] += t * (b->busy[r] - a->busy[r]);
}

double forecast_step(const struct forecast *f, const struct cost_step *step)
{
    struct cost_forecast one;
    struct helm_err err = {0};
    return cost_one(&f->c, step, &one, &err) ? 0 : one.seconds;
}

/* A step with `tokens` tokens of a prompt beside `decoding` other rows, each of which attends to `around`
 * positions. Every row is priced alike: with the mean of the positions attended to, its own tokens
 * included. */
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
