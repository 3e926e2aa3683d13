/* Requests of clients and the answers to them: one table of request kind and handler.
 *
 * Called by loop.c for every frame, and by batcher.c through the sink for tokens and ends. Owns nothing that
 * outlives a call; packs each answer into a buffer of its own and hands it to client_socket.c. */
#pragma once

#include <stdbool.h>

#include "common/model/model.h"
#include "daemon/clients/client_socket.h"
#include "daemon/steps/batcher.h"
#include "daemon/steps/sessions.h"
#include "daemon/observe/metrics.h"
#include "daemon/children/workers.h"
#include "daemon/observe/observe.h"

struct serve {
    struct client_socket *clients;
    struct batcher *batcher;
    struct sessions *sessions;
    struct workers *workers;
    struct metrics *metrics;
    struct observe *observe;
    const struct model *model;
    const char *plan_json;
    const char *now; /* memory's rates, beside the profile, and what goes by them */
    enum kv_dtype kv_dtype;
    uint32_t context;
    uint32_t forecast_batch, forecast_context, forecast_prompt; /* the shape of the forecast in Plan */
    const char *invariant;                                      /* whether, and why */
    const char *activations;                                    /* which, and why: for Status */
    bool checking; /* the model's own check has the workers, or will */
    bool draining;
};

/* Answers one frame; the frame stays the caller's. */
void serve_frame(struct serve *serve, const struct client_frame *frame);
/* The batcher's sink. */
int serve_token(void *context, const struct sequence *seq, uint32_t index,
                const struct sampling_result *sampled);
void serve_done(void *context, const struct sequence *seq);
void serve_moved(void *context);
/* "loading", "ready", "restarting", "draining". */
const char *serve_state_name(const struct serve *serve);

/* For serve_session.c. Whether requests are taken; if not, the asker was told. */
bool serve_is_open(struct serve *serve, struct asker asker);
/* An answer that nothing depends on: a client that does not take it loses it. `body`: the message that `kind`
 * says. */
void serve_answer(struct serve *serve, struct asker asker, Helm__V1__Response__BodyCase kind, void *body);
void serve_error(struct serve *serve, struct asker asker, Helm__V1__ErrorCode code, const char *text);

/* ---- serve_status.c: the daemon's state and counters as a Status message ---- */

/* The message and what it points to; strings are the daemon's own. Not to be moved once filled. */
struct serve_status {
    Helm__V1__Status status;
    Helm__V1__WorkerStatus worker[WORKERS_MAX], *worker_at[WORKERS_MAX];
    Helm__V1__NamedCount end[METRICS_ENDS], *end_at[METRICS_ENDS];
    Helm__V1__NamedCount refusal[METRICS_REFUSALS], *refusal_at[METRICS_REFUSALS];
    Helm__V1__Histogram histogram[METRICS_KINDS];
    char draft_model[BATCHER_DRAFTER_TEXT];
};

void serve_status_fill(struct serve_status *out, const struct serve *serve, uint64_t now_us);

/* ---- serve_session.c: requests about sessions and the answers to them (daemon/steps/sessions.h) ---- */

/* The sink that sessions.c answers through; `serve` outlives it. */
struct sessions_sink serve_session_sink(struct serve *serve);

void serve_session_save(struct serve *serve, struct asker asker, struct request *request);
void serve_session_restore(struct serve *serve, struct asker asker, struct request *request);
void serve_session_read(struct serve *serve, struct asker asker, struct request *request);
void serve_session_write(struct serve *serve, struct asker asker, struct request *request);
void serve_session_end(struct serve *serve, struct asker asker, struct request *request);

/* ---- serve_plan.c: the answer to a PlanRequest: the plan, what it should do, what it was seen doing ---- */

#define SERVE_PLAN_STEPS (ARENA_SLOTS_MAX + DRIFT_TTFTS)

/* The message and all that it points to. */
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
