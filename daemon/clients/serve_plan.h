/* The answer to a PlanRequest: the plan, what it should do, and what it was seen doing.
 *
 * Called by serve.c. The message and all that it points to are in one struct of the caller's. */
#ifndef HELM_DAEMON_CLIENTS_SERVE_PLAN_H
#define HELM_DAEMON_CLIENTS_SERVE_PLAN_H

#include "daemon/observe/observe.h"
#include "proto/helm.pb-c.h"

#define SERVE_PLAN_STEPS (ARENA_SLOTS_MAX + DRIFT_TTFTS)

struct serve_plan {
    Helm__V1__Plan plan;
    Helm__V1__PlanForecast forecast;
    Helm__V1__PlanSteps steps[SERVE_PLAN_STEPS], *steps_at[SERVE_PLAN_STEPS];
    Helm__V1__PlanResource resource[COST_RESOURCES], *resource_at[COST_RESOURCES];
};

/* What the forecast is for. */
struct serve_plan_shape {
    uint32_t batch, context, prompt;
};
/* `json` and the observations are borrowed. */
void serve_plan_fill(struct serve_plan *out, struct observe *observe, const char *json,
                     const struct serve_plan_shape *shape);

#endif
