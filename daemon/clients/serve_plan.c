/* The answer to a PlanRequest. See serve.h. Called from the one loop. */
#include <stdlib.h>

#include "daemon/clients/serve.h"

static void fill_forecast(Helm__V1__PlanForecast *out, struct forecast *forecast,
                          const struct serve_plan_shape *shape)
{
    struct cost_forecast decode, ttft;
    struct helm_err err = {0};
    helm__v1__plan_forecast__init(out);
    out->batch = shape->batch;
    out->context = shape->context;
    out->prompt = shape->prompt;
    forecast_decode(forecast, shape->batch, shape->context, &decode);
    out->decode_seconds = decode.seconds;
    out->decode_seconds_low = decode.low;
    out->decode_seconds_high = decode.high;
    if (cost_ttft(&forecast->c, shape->prompt, &ttft, &err)) return; /* zeros: unknown */
    out->ttft_seconds = ttft.seconds;
    out->ttft_seconds_low = ttft.low;
    out->ttft_seconds_high = ttft.high;
}

/* One entry of a kind that was seen; returns how many there are then. */
static uint32_t add_steps(struct serve_plan *out, uint32_t used, const struct drift_kind *kind,
                          uint32_t batch)
{
    struct drift_report report;
    if (!drift_report(kind, &report)) return used;
    Helm__V1__PlanSteps *steps = &out->steps[used];
    helm__v1__plan_steps__init(steps);
    steps->batch = batch;
    steps->tokens = (uint32_t)(report.shape + 0.5);
    steps->count = report.count;
    steps->measured_seconds = report.measured;
    steps->planned_seconds = report.planned;
    out->steps_at[used] = steps;
    return used + 1;
}

static double part(double of, double whole)
{
    return whole > 0 ? of / whole : 0;
}

static void fill_resources(struct serve_plan *out, const struct observe *o)
{
    const char *const names[COST_RESOURCES] = {
        [COST_CPU] = "cpu", [COST_GPU] = "gpu", [COST_LINK] = o->forecast.reads ? "disk" : "link"};
    const struct drift_work *m = &o->drift.measured, *p = &o->drift.planned;
    const double busy[COST_RESOURCES] = {[COST_CPU] = m->cpu_busy, [COST_GPU] = m->gpu_busy},
                 planned[COST_RESOURCES] = {
                     [COST_CPU] = p->cpu_busy, [COST_GPU] = p->gpu_busy, [COST_LINK] = p->link_busy};
    uint32_t used = 0;
    for (int r = 0; r < COST_RESOURCES && m->seconds > 0; r++) {
        if (busy[r] <= 0 && planned[r] <= 0) continue;
        Helm__V1__PlanResource *resource = &out->resource[used];
        helm__v1__plan_resource__init(resource);
        resource->name = (char *)names[r];
        resource->busy = part(busy[r], m->seconds);
        resource->busy_planned = part(planned[r], p->seconds);
        if (r == COST_CPU) {
            resource->bytes_per_second = part(m->cpu_bytes, m->cpu_busy);
            resource->bytes_per_second_planned = part(p->cpu_bytes, p->cpu_busy);
        } else if (r == COST_LINK) {
            resource->bytes_per_second = part(m->link_bytes, m->seconds);
            resource->bytes_per_second_planned = part(p->link_bytes, p->seconds);
        }
        out->resource_at[used++] = resource;
    }
    out->plan.n_resources = used;
    out->plan.resources = out->resource_at;
}

void serve_plan_fill(struct serve_plan *out, struct observe *o, const char *json,
                     const struct serve_plan_shape *shape)
{
    uint32_t decode = 0, all;
    helm__v1__plan__init(&out->plan);
    out->plan.json = (char *)json;
    fill_forecast(&out->forecast, &o->forecast, shape);
    out->plan.forecast = &out->forecast;
    for (uint32_t i = 0; i < ARENA_SLOTS_MAX; i++)
        decode = add_steps(out, decode, &o->drift.decode[i], i + 1);
    all = decode;
    for (uint32_t i = 0; i < DRIFT_TTFTS; i++) all = add_steps(out, all, &o->drift.ttft[i], 0);
    out->plan.n_decode = decode;
    out->plan.decode = out->steps_at;
    out->plan.n_ttft = all - decode;
    out->plan.ttft = out->steps_at + decode;
    fill_resources(out, o);
    out->plan.drifting = o->drift.drifting;
    out->plan.drift = o->drift.text;
}

void serve_plan_experts(struct serve_plan *out, const struct plan *plan, const struct arena *arena)
{
    const struct arena_header *h = arena_header_of(arena);
    const uint32_t parts = plan_expert_parts(plan); /* which are used together */
    const size_t uses = (size_t)h->expert_layers * h->experts / parts;
    out->expert_uses = uses ? malloc(uses * sizeof *out->expert_uses) : NULL;
    if (!out->expert_uses) return;
    /* copied: a message's length must not change while it is packed */
    for (size_t i = 0; i < uses; i++)
        out->expert_uses[i] =
            atomic_load_explicit(&arena_expert_uses_of(arena)[i * parts], memory_order_relaxed);
    for (uint32_t u = 0; u < unit_count(plan->layers); u++)
        if ((plan->unit[u].home[0] == PLAN_HOME_MIXED || plan->unit[u].home[0] == PLAN_HOME_DISK) &&
            out->plan.n_expert_layers < MODEL_LAYERS_MAX)
            out->expert_layer[out->plan.n_expert_layers++] = unit_layer(u);
    out->plan.expert_layers = out->expert_layer;
    out->plan.experts = h->experts / parts;
    out->plan.expert_uses = out->expert_uses;
    out->plan.n_expert_uses = uses;
}
