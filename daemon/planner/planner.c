/* Making and taking plans. See planner.h. Called by main.c; the stages belong to the plan. */
#include "daemon/planner/planner.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/log.h"
#include "common/units.h"
#include "daemon/kv_pages.h"
#include "daemon/planner/split.h"

/* The contexts that are tried, largest first: the one asked for, or halves of the usual one. */
static uint32_t first_ctx(const struct planner_request *r)
{
    uint32_t ctx = r->model->config.max_context;
    uint64_t pool_tokens = (uint64_t)r->wish.page_count * r->wish.page_tokens;
    if (r->wish.ctx) return r->wish.ctx;
    if (ctx > LEDGER_CTX_DEFAULT_MAX) ctx = LEDGER_CTX_DEFAULT_MAX;
    return pool_tokens && pool_tokens < ctx ? (uint32_t)pool_tokens : ctx;
}

static uint32_t next_ctx(const struct planner_request *r, uint32_t ctx)
{
    return r->wish.ctx || ctx / 2 < LEDGER_CTX_LEAST ? 0 : ctx / 2;
}

static int check_sizes(const struct planner_request *r, struct helm_err *err)
{
    uint32_t model_ctx = r->model->config.max_context, ctx = first_ctx(r);
    if (r->wish.ctx > model_ctx)
        return helm_fail(err, HELM_E_LIMIT, "--ctx %u: the model was made for at most %u tokens", r->wish.ctx,
                         model_ctx);
    if (r->wish.page_count && r->wish.page_count < kv_pages_for(ctx, r->wish.page_tokens))
        return helm_fail(err, HELM_E_CAPACITY,
                         "%u KV pages of %u tokens do not hold one context of %u tokens", r->wish.page_count,
                         r->wish.page_tokens, ctx);
    return 0;
}

void planner_log(const struct planner_request *r, const struct plan *plan)
{
    char bytes[UNITS_TEXT];
    uint32_t model_ctx = r->model->config.max_context, ctx = plan->context_tokens;
    for (uint32_t i = 0; i < plan->stage_count; i++)
        log_info("plan: layers %u to %u on %s, %s", plan->stages[i].first, plan->stages[i].last,
                 plan_home_name(plan->stages[i].home), units_format_size(plan->stages[i].bytes, bytes));
    log_info("plan: embedding on %s, head on %s", plan_home_name(plan->embed), plan_home_name(plan->head));
    if (r->wish.ctx)
        log_info("context: %u tokens, as asked (the model's own: %u)", ctx, model_ctx);
    else if (ctx < model_ctx)
        log_info("context: %u tokens (the model's own: %u; --ctx raises it as far as memory goes)", ctx,
                 model_ctx);
    else
        log_info("context: %u tokens, the model's own", ctx);
    log_info("KV cache: %u pages of %u tokens in %s, %.1f whole contexts for %u slots", plan->page_count,
             plan->page_tokens, plan->kv_dtype,
             (double)plan->page_count / kv_pages_for(ctx, plan->page_tokens), plan->slots);
    ledger_log("memory", &plan->host);
    if (plan_uses(plan, PLAN_HOME_GPU)) ledger_log("VRAM", &plan->vram);
}

static int plan_for_cpu(const struct planner_request *r, const struct ledger_case *c, struct plan *plan,
                        struct arena_spec *spec, struct helm_err *err)
{
    const struct split nothing = {.gpu_layers = 0};
    split_apply(&nothing, c->table, plan);
    int rc = HELM_E_CAPACITY;
    for (uint32_t ctx = first_ctx(r); ctx && rc == HELM_E_CAPACITY; ctx = next_ctx(r, ctx))
        rc = ledger_fit(c, ctx, plan, spec, err);
    return rc;
}

/* Nothing fits: says by how much, and what would. */
static int refuse(const struct planner_request *r, const struct ledger_case *c, uint32_t ctx,
                  const struct split_search *search, struct plan *plan, struct helm_err *err)
{
    char text[HELM_ERR_TEXT], size[UNITS_TEXT], would[200] = "";
    struct arena_spec spec;
    size_t used = 0;
    if (r->wish.ctx && !r->wish.page_count)
        for (uint32_t smaller = ctx / 2; smaller >= LEDGER_CTX_LEAST && !used; smaller /= 2) {
            struct split_search again;
            int rc = split_search(c, smaller, plan, &again, err);
            if (rc) return rc;
            if (again.found) used = (size_t)snprintf(would, sizeof would, "--ctx %u, or ", smaller);
        }
    if (search->least_vram != UINT64_MAX)
        used += (size_t)snprintf(would + used, sizeof would - used, "%s of VRAM, or ",
                                 units_format_size(search->least_vram, size));
    if (search->least_host != UINT64_MAX)
        used += (size_t)snprintf(would + used, sizeof would - used, "%s of host memory, or ",
                                 units_format_size(search->least_host, size));
    snprintf(would + used, sizeof would - used, used ? "--device cpu" : "a smaller model");
    split_apply(&search->nearest, c->table, plan);
    int rc = ledger_write(c, ctx, ledger_least_pages(c, ctx), plan, &spec, err);
    if (rc) return rc;
    ledger_describe(c, plan, text, sizeof text);
    return helm_fail(err, HELM_E_CAPACITY,
                     "no split fits with a context of %u; nearest would be %s. With %u of %u layers on the "
                     "GPU: %.330s",
                     ctx, would, search->nearest.gpu_layers, c->table->layers, text);
}

static int plan_for_device(const struct planner_request *r, const struct ledger_case *c, struct plan *plan,
                           struct arena_spec *spec, struct helm_err *err)
{
    struct split_search search = {0};
    uint32_t ctx = first_ctx(r), tried = ctx;
    for (; ctx; ctx = next_ctx(r, ctx)) {
        int rc = split_search(c, ctx, plan, &search, err);
        if (rc) return rc;
        tried = ctx;
        if (!search.found) continue;
        if (!r->device_required && search.best_ns >= split_cpu_only_ns(c->table))
            return helm_fail(err, HELM_E_CAPACITY,
                             "what fits the device does not make up for the hand-overs");
        split_apply(&search.best, c->table, plan);
        return ledger_fit(c, ctx, plan, spec, err);
    }
    return refuse(r, c, tried, &search, plan, err);
}

int planner_make(const struct planner_request *r, struct plan *plan, struct arena_spec *spec,
                 struct helm_err *err)
{
    struct analyse_table table = {0};
    const struct ledger_case c = {.model = r->model,
                                  .wish = &r->wish,
                                  .machine = &r->machine,
                                  .table = &table};
    bool device = r->machine.device.kind != LEDGER_DEVICE_NONE;
    memset(plan, 0, sizeof *plan);
    plan->stages = calloc(2, sizeof *plan->stages);
    if (!plan->stages) return helm_fail(err, HELM_E_NOMEM, "no memory for a plan");
    int rc = r->device_required && !device ? helm_fail(err, HELM_E_UNSUPPORTED, "%s", r->no_device) : 0;
    if (!rc) rc = check_sizes(r, err);
    if (!rc) rc = analyse_table_build(r->model, &table, err);
    if (rc) goto out;
    if (device) {
        rc = plan_for_device(r, &c, plan, spec, err);
        if (rc == HELM_E_CAPACITY && !r->device_required) {
            log_warn("device: planned on the CPU alone: %s", err->text);
            device = false;
        }
    }
    if (!device) rc = plan_for_cpu(r, &c, plan, spec, err);
out:
    if (rc) plan_free(plan);
    analyse_table_free(&table);
    return rc;
}

static int check_homes(const struct planner_request *r, const struct plan *plan, struct helm_err *err)
{
    if (plan->layers != r->model->config.layers)
        return helm_fail(err, HELM_E_MISMATCH, "the plan has %u layers, the model %u", plan->layers,
                         r->model->config.layers);
    for (uint32_t i = 0; i < plan->stage_count; i++)
        if (plan->stages[i].home != PLAN_HOME_CPU && plan->stages[i].home != PLAN_HOME_GPU)
            return helm_fail(err, HELM_E_UNSUPPORTED,
                             "stage %u of the plan is at home on '%s'; this build has 'cpu' and 'gpu'", i,
                             plan_home_name(plan->stages[i].home));
    if (plan_uses(plan, PLAN_HOME_GPU) && r->machine.device.kind == LEDGER_DEVICE_NONE)
        return helm_fail(err, HELM_E_UNSUPPORTED, "the plan needs a GPU: %s", r->no_device);
    return 0;
}

int planner_take(const struct planner_request *r, struct plan *plan, struct arena_spec *spec,
                 struct helm_err *err)
{
    struct analyse_table table = {0};
    const struct ledger_case c = {.model = r->model,
                                  .wish = &r->wish,
                                  .machine = &r->machine,
                                  .table = &table};
    int rc = check_homes(r, plan, err);
    if (!rc) rc = check_sizes(r, err);
    if (!rc) rc = analyse_table_build(r->model, &table, err);
    if (rc) return rc;
    analyse_fill_stages(&table, plan);
    rc = ledger_fit(&c, r->wish.ctx, plan, spec, err);
    analyse_table_free(&table);
    return rc;
}
