/* Which page size costs least. See page_size.h. Called by main.c and helm-plan; owns nothing. */
#include "daemon/planner/page_size.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/units.h"
#include "daemon/planner/cost/rates.h"
#include "daemon/planner/profile/policy.h"

#define PROMPT_TOKENS LEDGER_STEP_TOKENS /* of a chunk */

static const char *const cost_names[PAGE_COSTS] = {[PAGE_COST_PLACES] = "places not filled",
                                                   [PAGE_COST_AGAIN] = "prompts' last pages",
                                                   [PAGE_COST_READS] = "short reads",
                                                   [PAGE_COST_COPIES] = "copies"};

/* Numbers that all sizes share. Rates in bytes a second; INFINITY: it costs nothing. */
struct token {
    double host, vram;           /* bytes of weights */
    double host_rate, vram_rate; /* that a token's weights are read at */
    double cache, cache_rate;    /* bytes of a position, and the rate of those in host memory */
    double layers, prompt;       /* seconds of a token of a prompt */
    double latency;
    bool two; /* a part of the cache lies in VRAM */
    bool cpu; /* a part of it is read by the CPU */
};

static double or_infinite(double rate)
{
    return rate > 0 ? rate : INFINITY;
}

/* Weights count as 16 bits each: of quantised ones prompts cost more than this says, and nothing else goes by
 * it. */
static struct token token_of(const struct page_size_case *c)
{
    const struct profile *p = c->profile;
    const struct model_config *config = &c->model->config;
    const bool device = c->device && c->device->kind != LEDGER_DEVICE_NONE;
    const double weights = (double)c->model->weight_bytes, room = device ? (double)c->device->limit : 0;
    struct token t = {.vram = fmin(weights, room), .layers = config->layers};
    t.host = weights - t.vram;
    t.two = device && t.host > 0;
    t.cpu = !device || t.host > 0;
    t.vram_rate = or_infinite(p->gpu.gemv.value);
    t.host_rate =
        or_infinite(device ? rate_or(&p->cpu.gemv_beside, p->cpu.gemv.value) + p->link.h2d_beside.value
                           : p->cpu.gemv.value);
    t.cache = (double)model_kv_bytes_per_token(config, model_paged_layers(config), c->kv_dtype);
    t.cache_rate = or_infinite(t.cpu ? cost_attention_host(p, c->kv_dtype) : p->gpu.attention.value);
    t.latency = t.two ? p->link.latency.value : 0;
    const struct profile_table *linear = device ? &p->gpu.linear : &p->cpu.linear;
    t.prompt = fmax(weights / or_infinite(profile_table_at(linear, PROMPT_TOKENS).value),
                    t.two ? t.host / PROMPT_TOKENS / or_infinite(p->link.h2d.value) : 0);
    return t;
}

/* The CPU reads a page in runs. A run has one head of the page, or as many as come to CPU_RUN_BYTES, or all.
 * Its bytes. */
static double run_bytes(const struct page_size_case *c, uint32_t tokens)
{
    const double head = (double)tokens * (double)kv_cell_bytes(c->kv_dtype, c->model->config.head_dim);
    return head * fmin(c->model->config.kv_heads, ceil(CPU_RUN_BYTES / head));
}

/* Seconds with `context` positions. */
static void price(const struct page_size_case *c, const struct token *t, uint32_t tokens, double context,
                  double seconds[PAGE_COSTS])
{
    const struct plan sizes = {.context_tokens = (uint32_t)context,
                               .step_tokens = ENGINE_FEW_TOKENS,
                               .slots = c->slots,
                               .page_tokens = tokens};
    const double room = t->two ? (double)plan_vram_pages_least(&sizes) * tokens : 0,
                 there = t->cpu ? fmax(0, context - room) : 0, run = run_bytes(c, tokens);
    seconds[PAGE_COST_PLACES] = fmax(0, room - context) * t->cache / t->host_rate;
    seconds[PAGE_COST_AGAIN] = tokens / 2.0 * t->prompt / PLANNER_ANSWER_TOKENS;
    seconds[PAGE_COST_READS] = there * t->cache / t->cache_rate *
                               fmax(0, (1 + RUN_MORE_BYTES / run) / (1 + RUN_MORE_BYTES / CPU_RUN_BYTES) - 1);
    seconds[PAGE_COST_COPIES] = t->layers * t->latency / tokens;
}

static double base(const struct token *t, double context)
{
    return t->host / t->host_rate + t->vram / t->vram_rate + context * t->cache / t->cache_rate;
}

static void weigh(const struct page_size_case *c, const struct token *t, uint32_t i, struct page_size *size)
{
    const double whole = c->ctx ? c->ctx : fmin(c->model->config.max_context, LEDGER_CTX_DEFAULT_MAX);
    double context = fmin(whole, PLANNER_SHORT_CONTEXT), seconds[PAGE_COSTS];
    uint32_t count = 0;
    for (bool last = false; !last; context = fmin(whole, context * PLANNER_CONTEXT_GROWTH), count++) {
        last = context >= whole;
        price(c, t, PAGE_SIZE_LEAST << i, context, seconds);
        for (int k = 0; k < PAGE_COSTS; k++) size->part[i][k] += seconds[k] / base(t, context);
    }
    for (int k = 0; k < PAGE_COSTS; k++) {
        size->part[i][k] /= count;
        size->sum[i] += size->part[i][k];
    }
}

static void explain(const struct page_size_case *c, uint32_t chosen, struct page_size *size)
{
    const bool asked = strcmp(c->option, PAGE_SIZE_DEFAULT) != 0;
    const uint32_t other = chosen + 1 < PAGE_SIZES ? chosen + 1 : chosen - 1;
    int most = 0;
    for (int k = 1; k < PAGE_COSTS; k++)
        if (fabs(size->part[other][k] - size->part[chosen][k]) >
            fabs(size->part[other][most] - size->part[chosen][most]))
            most = k;
    snprintf(size->text, sizeof size->text,
             "%u tokens%s: their size costs at most %.2f %% of a token's time, of %u %.2f %% (most of the "
             "difference: %s)",
             size->tokens, asked ? ", as asked" : "", PERCENT * size->sum[chosen], PAGE_SIZE_LEAST << other,
             PERCENT * size->sum[other], cost_names[most]);
}

void page_size_choose(const struct page_size_case *c, struct page_size *size)
{
    const struct token t = token_of(c);
    const uint32_t asked = (uint32_t)strtoul(c->option, NULL, 10); /* of "auto" 0 */
    uint32_t best = 0;
    memset(size, 0, sizeof *size);
    for (uint32_t i = 0; i < PAGE_SIZES; i++) {
        weigh(c, &t, i, size);
        if (asked ? PAGE_SIZE_LEAST << i == asked : size->sum[i] < size->sum[best] - WORTH_NOTING / 2)
            best = i;
    }
    size->tokens = PAGE_SIZE_LEAST << best;
    explain(c, best, size);
}
