/* An explained plan as helm-plan --json prints it. See explain.h. docs/helm-plan.md lists the members. */
#include <math.h>

#include "daemon/planner/report/explain.h"

/* null where there is no such number. */
static json_t *number(double value)
{
    return isfinite(value) ? json_real(value) : json_null();
}

static json_t *with_bars(double value, double low, double high)
{
    return json_pack("{s:o, s:o, s:o}", "value", number(value), "low", number(low), "high", number(high));
}

/* As plan_to_json's, with times. */
static json_t *list_to_json(const struct explain_list *list)
{
    json_t *array = json_array();
    for (uint32_t i = 0; i < list->stage_count; i++) {
        const struct explain_stage *s = &list->stage[i];
        json_t *json = plan_stage_to_json(&s->stage);
        json_object_set_new(json, "ms", number(1e3 * s->seconds));
        json_object_set_new(json, "bound_by", json_string(s->bound_by));
        if (s->measured) json_object_set_new(json, "measured", number(s->spread));
        json_array_append_new(array, json);
    }
    return array;
}

static json_t *strategies_to_json(const struct explain *x)
{
    json_t *array = json_array();
    for (uint32_t i = 0; i < x->strategies; i++) {
        const struct explain_strategy *s = &x->strategy[i];
        double none = INFINITY;
        json_array_append_new(array,
                              json_pack("{s:s, s:b, s:o, s:o}", "name", search_strategy_name(s->strategy),
                                        "feasible", s->feasible, "decode_tok_s",
                                        number(s->feasible ? x->batch / s->decode_s : none), "ttft_ms",
                                        number(s->feasible ? 1e3 * s->ttft_s : none)));
    }
    return array;
}

static json_t *formats_to_json(const struct explain *x)
{
    json_t *array = json_array();
    for (uint32_t i = 0; i < x->format_count; i++) {
        const struct explain_format *f = &x->format[i];
        json_array_append_new(array,
                              json_pack("{s:s, s:o, s:b, s:o, s:o}", "format", tensor_format_name(f->format),
                                        "weight_bytes", plan_bytes_to_json(f->bytes), "measured", f->measured,
                                        "cpu_gb_s", number(f->cpu * 1e-9), "gpu_gb_s",
                                        number(f->gpu > 0 ? f->gpu * 1e-9 : (double)INFINITY)));
    }
    return array;
}

static json_t *curve_to_json(const struct explain *x)
{
    json_t *array = json_array();
    for (uint32_t i = 0; i < x->point_count; i++) {
        const struct explain_point *p = &x->point[i];
        const double one = isfinite(p->one_tier) ? explain_point_rate(x, p->one_tier) : (double)INFINITY;
        json_array_append_new(array, json_pack("{s:I, s:o, s:o}", "context", (json_int_t)p->context, "tok_s",
                                               number(explain_point_rate(x, p->seconds)), "one_tier_tok_s",
                                               number(one)));
    }
    return array;
}

static json_t *levels_to_json(const struct explain *x)
{
    json_t *levels = json_object();
    for (int m = 0; m < PLAN_MEMORIES; m++)
        if (x->experts.there[m])
            json_object_set_new(levels, plan_memory_name((enum plan_memory)m),
                                json_pack("{s:o, s:f}", "bytes", plan_bytes_to_json(x->experts.there[m]),
                                          "found", x->experts.found[m]));
    return levels;
}

static json_t *drafts_to_json(const struct explain *x)
{
    json_t *array = json_array();
    for (uint32_t d = 0; d < x->draft_steps; d++)
        json_array_append_new(array, json_pack("{s:i, s:o, s:o, s:o, s:o}", "drafts", (int)d, "step_ms",
                                               number(1e3 * (x->draft_step_s[d] + x->draft_made_s[d])),
                                               "tok_s_half_right", number(explain_draft_rate(x, d, 0.5)),
                                               "tok_s_most_right", number(explain_draft_rate(x, d, 0.8)),
                                               "tok_s_all_right", number(explain_draft_rate(x, d, 1))));
    return array;
}

/* Milliseconds. In the rest no processor computes: it waits for the link or for kernels to be queued, threads
 * wake up, helmd works. */
static json_t *parts_to_json(const struct cost_forecast *f)
{
    double computes = f->busy[COST_CPU] + f->busy[COST_GPU];
    return json_pack("{s:i, s:o, s:o, s:o, s:o, s:o, s:o}", "steps", (int)f->steps, "ms",
                     number(1e3 * f->seconds), "cpu_ms", number(1e3 * f->busy[COST_CPU]), "gpu_ms",
                     number(1e3 * f->busy[COST_GPU]), "link_ms", number(1e3 * f->busy[COST_LINK]),
                     "hand_overs_ms", number(1e3 * f->hand_overs), "rest_ms",
                     number(1e3 * (f->seconds - computes - f->hand_overs)));
}

json_t *explain_to_json(const struct explain *x)
{
    const struct planner_prediction *p = &x->prediction;
    const struct profile *profile = x->request->profile;
    json_t *json = plan_to_json(x->plan), *stages = json_object();
    if (!json || !stages) goto fail;
    for (uint32_t i = 0; i < x->list_count; i++)
        if (json_object_set_new(stages, x->list[i].name, list_to_json(&x->list[i]))) goto fail;
    json_t *more = json_pack(
        "{s:o, s:o, s:s, s:o, s:{s:o, s:o}, s:{s:o, s:o}, s:{s:o, s:o}, s:{s:o, s:o}, s:o, s:o, s:s, s:s, "
        "s:{s:I, s:I, s:I}}",
        "decode_tok_s", with_bars(explain_rate(x), explain_rate_low(x), explain_rate_high(x)), "ttft_ms",
        with_bars(1e3 * p->ttft.seconds, 1e3 * p->ttft.low, 1e3 * p->ttft.high), "kv_tiers",
        kv_tiers_name(plan_kv_tiered(x->plan) ? KV_TIERS_TWO : KV_TIERS_ONE), "over_context",
        curve_to_json(x), "parts", "decode", parts_to_json(&p->decode), "first", parts_to_json(&p->ttft),
        "link", "weight_bytes", plan_bytes_to_json(x->crossing.bytes), "link_bytes",
        plan_bytes_to_json(x->crossing.crossing), "cpu", "weight_bytes", plan_bytes_to_json(x->reading.bytes),
        "read_bytes", plan_bytes_to_json(x->reading.crossing), "gpu", "weight_bytes",
        plan_bytes_to_json(x->gpu_reading.bytes), "read_bytes", plan_bytes_to_json(x->gpu_reading.crossing),
        "rates", formats_to_json(x), "strategies", strategies_to_json(x), "profile", profile->fingerprint,
        "machine", profile->machine, "assumed", "batch", (json_int_t)x->asked, "context",
        (json_int_t)x->context, "prompt", (json_int_t)x->prompt);
    if (more && x->draft_steps) json_object_set_new(more, "with_drafts", drafts_to_json(x));
    if (more && x->batch < x->asked) json_object_set_new(more, "at_once", json_integer(x->batch));
    if (more && x->experts.mixed)
        json_object_set_new(more, "mixed_forecast",
                            json_pack("{s:i, s:f, s:f, s:f}", "layers", (int)x->experts.mixed, "hit_rate",
                                      x->experts.hit, "seconds", x->experts.seconds, "seconds_even",
                                      x->experts.seconds_even));
    if (more && plan_disk_slots(x->plan)) json_object_set_new(more, "experts_by_level", levels_to_json(x));
    if (more && x->experts.layers) {
        const struct model_config *c = &x->request->model->config;
        const uint32_t parts = model_expert_parts(c);
        json_object_set_new(more, "experts",
                            json_pack("{s:i, s:i, s:i, s:i, s:o, s:o, s:o, s:o}", "count",
                                      (int)(c->router.experts / parts), "chosen",
                                      (int)(c->router.chosen / parts), "parts", (int)parts, "layers",
                                      (int)x->experts.layers, "bytes", plan_bytes_to_json(x->experts.bytes),
                                      "token_bytes", plan_bytes_to_json(x->experts.token_bytes), "step_bytes",
                                      plan_bytes_to_json(x->experts.step_bytes), "shared_bytes",
                                      plan_bytes_to_json(x->experts.shared_bytes)));
    }
    if (!more || json_object_update(json, more)) {
        json_decref(more);
        goto fail;
    }
    json_decref(more);
    const struct planner_request *r = x->request;
    const struct {
        const char *name, *text; /* in words; NULL or empty: left out */
    } why[] = {{"page_tokens_why", r->pages},
               {"invariant_why", r->invariant},
               {"second_device", r->second ? r->second->text : NULL},
               {"drafts_why", r->drafts},
               {"now", r->now},
               {"activations_why", r->activations}};
    for (size_t i = 0; i < sizeof why / sizeof *why; i++)
        if (why[i].text && why[i].text[0] && json_object_set_new(json, why[i].name, json_string(why[i].text)))
            goto fail;
    json_t *moved = stages; /* the call below takes it, also when it fails */
    stages = NULL;
    if (json_object_set_new(json, "stages", moved)) goto fail;
    return json;
fail:
    json_decref(stages);
    json_decref(json);
    return NULL;
}

json_t *explain_refusal_to_json(const struct planner_refusal *refusal, const char *error)
{
    return json_pack("{s:s, s:o, s:o, s:s}", "error", error, "needed", plan_bytes_to_json(refusal->needed),
                     "available", plan_bytes_to_json(refusal->available), "nearest", refusal->nearest);
}
