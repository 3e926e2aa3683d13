/* The answer to a PlanRequest: the plan, what it should do, and what it was seen doing.
 *
 * Called by serve.c. The message and all that it points to are in one struct of the caller's. */
#pragma once

#include "common/shared/arena.h"
#include "daemon/observe/observe.h"
#include "proto/helm.pb-c.h"

#define SERVE_PLAN_STEPS (ARENA_SLOTS_MAX + DRIFT_TTFTS)

struct serve_plan {
    Helm__V1__Plan plan;
    Helm__V1__PlanForecast forecast;
    Helm__V1__PlanSteps steps[SERVE_PLAN_STEPS], *steps_at[SERVE_PLAN_STEPS];
    Helm__V1__PlanResource resource[COST_RESOURCES], *resource_at[COST_RESOURCES];
    uint32_t expert_layer[MODEL_LAYERS_MAX];
    uint64_t *expert_uses; /* owned: free() */
};

/* The shape that the forecast is for. */
struct serve_plan_shape {
    uint32_t batch, context, prompt;
};
/* Adds what the GPU worker has counted of experts in both memories so far; nothing where there is no memory
 * for it. */
void serve_plan_experts(struct serve_plan *out, const struct plan *plan, const struct arena *arena);
/* `json` and the observations are borrowed. */
void serve_plan_fill(struct serve_plan *out, struct observe *observe, const char *json,
                     const struct serve_plan_shape *shape);
