/* All memory of a load, line by line. See ledger.h. Called by main.c; owns nothing.
 *
 * How much KV, unless it was stated: LEDGER_POOL_TOKENS, but no more than every slot can use, at most half of
 * what the rest leaves free (requests that may never come must not starve the machine's other users), and
 * always at least one whole context, without which the longest allowed request could never end. More requests
 * than the pool holds take turns: the scheduler recomputes the younger ones. */
#include "daemon/ledger.h"

#include <stdio.h>
#include <string.h>

#include "common/log.h"
#include "common/units.h"
#include "daemon/kv_pages.h"
#include "daemon/planner/analyse.h"

#define PROCESS_BYTES                                                                                        \
    ((uint64_t)128 << 20) /* helmd, keeper and worker: code, heaps, libraries' own threads */

struct fitting {
    const struct model *model;
    const struct ledger_wish *wish;
    struct analyse_totals totals;
    uint64_t limit;
    char limit_from[96];
};

static void fitting_limit(struct fitting *f, const struct cgroup_memory *memory)
{
    char text[UNITS_TEXT];
    f->limit = memory->available_bytes;
    if (memory->limit_bytes != CGROUP_UNLIMITED)
        snprintf(f->limit_from, sizeof f->limit_from, "free under the cgroup limit of %s",
                 units_format_size(memory->limit_bytes, text));
    else
        snprintf(f->limit_from, sizeof f->limit_from, "free of the machine's %s",
                 units_format_size(memory->machine_bytes, text));
    if (f->wish->host_memory_bytes && f->wish->host_memory_bytes < f->limit) {
        f->limit = f->wish->host_memory_bytes;
        snprintf(f->limit_from, sizeof f->limit_from, "--host-memory");
    }
}

static void fitting_spec(const struct fitting *f, uint32_t ctx, uint32_t page_count, struct arena_spec *spec)
{
    const struct model_config *c = &f->model->config;
    *spec = (struct arena_spec){.slots = f->wish->slots,
                                .context_tokens = ctx,
                                .step_tokens = f->wish->step_tokens,
                                .hidden = c->hidden,
                                .vocab = c->vocab,
                                .lanes = 0, /* one stage hands nothing over */
                                .kv = {.layers = c->layers,
                                       .kv_heads = c->kv_heads,
                                       .head_dim = c->head_dim,
                                       .page_tokens = f->wish->page_tokens,
                                       .dtype = f->wish->kv_dtype,
                                       .elem_bytes = (uint32_t)dtype_bytes(f->wish->kv_dtype)},
                                .page_count = page_count,
                                .weight_bytes = f->totals.region_bytes};
}

/* Writes the ledger of this choice. */
static int fitting_ledger(const struct fitting *f, uint32_t ctx, uint32_t page_count, struct arena_spec *spec,
                          struct ledger *ledger, struct helm_err *err)
{
    struct arena_header header;
    fitting_spec(f, ctx, page_count, spec);
    int rc = arena_plan(spec, &header, err);
    if (rc) return rc;
    uint64_t weights = header.region[ARENA_REGION_WEIGHTS].bytes, kv = header.region[ARENA_REGION_KV].bytes;
    char what[48];
    memset(ledger, 0, sizeof *ledger);
    ledger->limit = f->limit;
    ledger_add(ledger, "weights", weights);
    snprintf(what, sizeof what, "KV cache, %u pages of %u tokens", page_count, f->wish->page_tokens);
    ledger_add(ledger, what, kv);
    ledger_add(ledger, "arena control, history, logits", header.total_bytes - weights - kv);
    ledger_add(ledger, "norms and biases in fp32", f->totals.vector_bytes);
    ledger_add(ledger, "activations (estimate)",
               analyse_activation_bytes(&f->model->config, f->wish->step_tokens, f->wish->slots,
                                        f->wish->threads));
    ledger_add(ledger, "processes (estimate)", PROCESS_BYTES);
    return 0;
}

static int fitting_refuse(const struct fitting *f, const struct ledger *ledger, uint32_t ctx,
                          struct helm_err *err)
{
    char lines[HELM_ERR_TEXT - 128], need[UNITS_TEXT], have[UNITS_TEXT], each[UNITS_TEXT];
    size_t used = 0;
    for (uint32_t i = 0; i < ledger->line_count && used < sizeof lines; i++) {
        int n = snprintf(lines + used, sizeof lines - used, "%s%s %s", i ? ", " : "", ledger->line[i].what,
                         units_format_size(ledger->line[i].bytes, each));
        if (n > 0) used += (size_t)n;
    }
    return helm_fail(err, HELM_E_CAPACITY, "does not fit with a context of %u: needs %s, has %s (%s): %s",
                     ctx, units_format_size(ledger->total, need), units_format_size(f->limit, have),
                     f->limit_from, lines);
}

/* Pages for this context: 0 when not even one whole context fits. */
static int fitting_pages(const struct fitting *f, uint32_t ctx, uint32_t *page_count, struct ledger *least,
                         struct arena_spec *spec, struct helm_err *err)
{
    uint32_t per_slot = kv_pages_for(ctx, f->wish->page_tokens);
    uint32_t least_pages = f->wish->page_count ? f->wish->page_count : per_slot;
    *page_count = 0;
    int rc = fitting_ledger(f, ctx, least_pages, spec, least, err);
    if (rc) return rc;
    if (least->total > f->limit) return 0;
    *page_count = least_pages;
    if (f->wish->page_count) return 0;
    uint64_t spare = f->limit - least->total, page_bytes = kv_page_bytes(&spec->kv);
    uint64_t most = (uint64_t)f->wish->slots * per_slot, usual = LEDGER_POOL_TOKENS / f->wish->page_tokens;
    uint64_t half = (spare + per_slot * page_bytes) / 2 / page_bytes;
    uint64_t pages = usual < most ? usual : most;
    if (pages > half) pages = half;
    /* The region's end is rounded up to a huge page, so nothing is squeezed into the last one. */
    if (pages > per_slot && (pages - per_slot) * page_bytes + ARENA_HUGE_PAGE > spare) pages = per_slot;
    if (pages > per_slot) *page_count = (uint32_t)pages;
    return 0;
}

int ledger_fit(const struct model *model, const struct ledger_wish *wish, const struct cgroup_memory *memory,
               struct plan *plan, struct arena_spec *spec, struct helm_err *err)
{
    struct fitting f = {.model = model, .wish = wish};
    analyse_totals(model, &f.totals);
    fitting_limit(&f, memory);
    uint32_t model_ctx = model->config.max_context;
    if (wish->ctx > model_ctx)
        return helm_fail(err, HELM_E_LIMIT, "--ctx %u: the model was made for at most %u tokens", wish->ctx,
                         model_ctx);
    uint32_t ctx = wish->ctx;
    if (!ctx) {
        ctx = model_ctx < LEDGER_CTX_DEFAULT_MAX ? model_ctx : LEDGER_CTX_DEFAULT_MAX;
        uint64_t pool_tokens = (uint64_t)wish->page_count * wish->page_tokens;
        if (pool_tokens && pool_tokens < ctx) ctx = (uint32_t)pool_tokens;
    }
    if (wish->page_count && wish->page_count < kv_pages_for(ctx, wish->page_tokens))
        return helm_fail(err, HELM_E_CAPACITY,
                         "%u KV pages of %u tokens do not hold one context of %u tokens", wish->page_count,
                         wish->page_tokens, ctx);

    uint32_t page_count = 0;
    struct ledger least;
    for (;;) {
        int rc = fitting_pages(&f, ctx, &page_count, &least, spec, err);
        if (rc) return rc;
        if (page_count) break;
        if (wish->ctx || ctx / 2 < LEDGER_CTX_LEAST) return fitting_refuse(&f, &least, ctx, err);
        ctx /= 2;
    }
    int rc = fitting_ledger(&f, ctx, page_count, spec, &plan->host, err);
    if (rc) return rc;
    if (plan->host.total > f.limit) return fitting_refuse(&f, &plan->host, ctx, err);
    plan->context_tokens = ctx;
    plan->step_tokens = wish->step_tokens;
    plan->slots = wish->slots;
    plan->page_tokens = wish->page_tokens;
    plan->page_count = page_count;
    snprintf(plan->kv_dtype, sizeof plan->kv_dtype, "%s", dtype_name(wish->kv_dtype));
    if (wish->ctx)
        log_info("context: %u tokens, as asked (the model's own: %u)", ctx, model_ctx);
    else if (ctx < model_ctx)
        log_info("context: %u tokens (the model's own: %u; --ctx raises it as far as memory goes)", ctx,
                 model_ctx);
    else
        log_info("context: %u tokens, the model's own", ctx);
    log_info("KV cache: %u pages of %u tokens in %s, %.1f whole contexts for %u slots", page_count,
             wish->page_tokens, plan->kv_dtype, (double)page_count / kv_pages_for(ctx, wish->page_tokens),
             wish->slots);
    return 0;
}

void ledger_log(const struct ledger *ledger)
{
    char text[UNITS_TEXT], limit[UNITS_TEXT];
    for (uint32_t i = 0; i < ledger->line_count; i++)
        log_info("memory: %12s  %s", units_format_size(ledger->line[i].bytes, text), ledger->line[i].what);
    log_info("memory: %12s  in all, of %s", units_format_size(ledger->total, text),
             units_format_size(ledger->limit, limit));
}
