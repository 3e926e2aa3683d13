/* The plan that helmd runs, from a file or from the planner, and its forecast. Nothing is allocated here but
 * the plan.
 *
 * Called by daemon/main.c, and again by serving.c where another plan is needed; see start.h. */
#include <stdlib.h>
#include <string.h>

#include "common/base/json.h"
#include "common/base/log.h"
#include "common/model/parts.h"
#include "daemon/planner/packed_look.h"
#include "daemon/start/start.h"
#include "daemon/steps/draft_layer.h"

static int read_with_layer(struct helmd *d, const char *path, struct helm_err *err)
{
    const int rc = model_read_drafting(path, &d->model, err);
    if (!rc) formats_lay(&d->model, d->config.weights);
    return rc;
}

/* The same model with its layer of drafts, for a plan that has it. */
static int read_layer(struct helmd *d, struct helm_err *err)
{
    struct model without = d->model;
    const int rc = read_with_layer(d, without.path, err);
    if (rc)
        d->model = without;
    else
        model_free(&without);
    return rc;
}

static int plan_from_file(struct helmd *d, struct helm_err *err)
{
    json_t *json = NULL;
    struct planner_request *request = &d->request;
    int rc = json_read_file(d->config.plan_file, PLAN_TEXT_MAX, &json, err);
    if (!rc) rc = plan_from_json(json, &d->plan, err);
    json_decref(json);
    if (!rc && d->plan.draft_layers && !d->model.config.drafts && !d->config.draft_model &&
        d->config.speculate == REQUEST_SPECULATE_AUTO)
        rc = read_layer(d, err);
    if (!rc) rc = model_cut_experts(&d->model, plan_expert_parts(&d->plan), err);
    if (!rc) {
        formats_lay_as_planned(&d->model, &d->plan);
        activations_take(&d->plan, &d->activations);
        planner_adopt(&d->plan, &d->model, &request->wish);
        rc = packed_look_take(request, &d->plan, &d->arena_spec, err);
    }
    return rc ? helm_err_prefix(err, "--plan %s", d->config.plan_file) : 0;
}

void planning_free(struct helmd *d)
{
    free(d->plan_json);
    d->plan_json = NULL;
    forecast_close(&d->observe.forecast);
    plan_free(&d->plan);
}

/* A plan with the activations that are wanted now. */
static int lay_plan(struct helmd *d, struct helm_err *err)
{
    const struct config *c = &d->config;
    activations_rates(&d->measured, d->activations.inputs, &d->profile);
    memcpy(d->request.inputs, d->activations.inputs, sizeof d->request.inputs);
    int rc = c->plan_file ? plan_from_file(d, err)
                          : parts_look_make(&d->model, &d->request, &d->plan, &d->arena_spec, err);
    activations_rates(&d->measured, d->plan.inputs, &d->profile); /* as the plan in a file has them */
    return rc ? rc : invariant_decide(&d->request, c->plan_file != NULL, &d->plan, &d->invariant, err);
}

static int lay_plan_again(struct helmd *d, struct helm_err *err)
{
    planning_free(d);
    return lay_plan(d, err);
}

static int lay_with_layer(void *of, const char *path, struct helm_err *err)
{
    struct helmd *d = of;
    const int rc = read_with_layer(d, path, err);
    return rc ? rc : lay_plan(d, err);
}

static int decide_drafts(struct helmd *d, struct helm_err *err)
{
    const struct draft_layer_planned planned = {.model = &d->model,
                                                .plan = &d->plan,
                                                .arena = &d->arena_spec,
                                                .request = &d->request,
                                                .profile = &d->profile,
                                                .invariant = &d->invariant,
                                                .lay_with_layer = lay_with_layer,
                                                .of = d};
    char text[DRAFT_LAYER_TEXT];
    if ((d->config.speculate != REQUEST_SPECULATE_AUTO && !d->config.draft_model) || d->config.plan_file)
        return 0;
    const int rc = draft_layer_decide(&planned, text, err);
    if (!rc) log_info("drafts: %s", text);
    return rc;
}

/* Measures the memory's rates, once, where the plan has a use for them: forecasts go by them, and so does
 * another plan where they are far from the profile's. */
static int look_at_memory(struct helmd *d, struct helm_err *err)
{
    struct profiling_request profiling = machine_profiling(d, 0);
    const bool used = plan_uses(&d->plan, PLAN_CPU0) || plan_kv_tiered(&d->plan);
    if (d->now.text[0]) return 0;
    profiling.reads = profile_reads_of(&d->measured, model_main_format(&d->model), d->plan.inputs[PLAN_CPU0]);
    int rc = profiling_now(&profiling, d->config.now, used, d->measured_now, &d->measured, &d->now, err);
    if (rc || !d->now.known) return rc;
    profile_now_apply(&d->measured, &d->now.rates, &d->current);
    if (!d->now.plans) return 0;
    d->measured = d->current;
    return lay_plan_again(d, err);
}

/* The plan and its forecast, before anything is allocated. */
int planning_make(struct helmd *d, struct helm_err *err)
{
    bool again = false;
    int rc = lay_plan(d, err);
    if (!rc && !d->activations.decided) activations_look(&d->model, &d->plan, &d->activations, &again);
    if (!rc && again) rc = lay_plan_again(d, err);
    if (!rc) rc = look_at_memory(d, err);
    if (!rc) rc = decide_drafts(d, err);
    activations_rates(&d->current, d->plan.inputs, &d->profile); /* the plan stands: forecasts */
    if (!rc) rc = forecast_open(&d->model, &d->profile, &d->plan, &d->observe.forecast, err);
    if (rc) return rc;
    formats_warn_unmeasured(&d->model, &d->profile);
    planner_log(&d->request, &d->plan);
    if (d->second_used.text[0]) log_info("second device: %s", d->second_used.text);
    log_info("activations: %s", d->activations.text);
    log_info("invariant: %s", d->invariant.text);
    d->typical_context = planner_typical_context(&d->request, d->plan.context_tokens);
    json_t *json = plan_to_json(&d->plan);
    d->plan_json = json ? json_dumps(json, JSON_COMPACT) : NULL;
    json_decref(json);
    return d->plan_json ? 0 : helm_fail(err, HELM_E_NOMEM, "no memory for the plan as JSON");
}
