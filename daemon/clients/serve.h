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
