/* libhelm: talking to helmd; part of libhelm's public, stable C API (docs/client-library.md has a tutorial).
 *
 * A struct helm_client is one connection. Any number of requests may be open on it at once; each is known by
 * the number that helm_generate gave it. Nothing happens in the background that the caller can see: answers
 * are handed to the caller's functions from inside helm_dispatch, helm_wait and the calls that wait for an
 * answer (helm_status and the like), in the order they came.
 *
 * A connection belongs to one thread at a time. In an event loop of your own, watch helm_client_fd for
 * reading and call helm_dispatch(client, 0, err) whenever it is readable.
 *
 * Functions return 0 or a negative code of enum helm_code (err.h) with the detail in *err, which may be NULL.
 * The codes a caller may want to tell apart:
 *   HELM_E_NOT_FOUND   no daemon at the endpoint (connect); no such request (cancel)
 *   HELM_E_PERMISSION  the endpoint may not be opened by this user
 *   HELM_E_PEER        the daemon does not answer in time, went away, or broke protocol; a lost connection
 *                      stays lost: close it and connect again
 *   HELM_E_BUSY        the daemon's queue is full: try again later
 *   HELM_E_CAPACITY    the request does not fit the context
 *   HELM_E_LIMIT, HELM_E_FORMAT   a field out of its bounds
 *   HELM_E_STATE       still loading, going down, or a call made at a time that does not allow it
 *
 * Strings and arrays handed to callbacks are borrowed: they are valid until the callback returns. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/err.h"

#ifdef __cplusplus
extern "C" {
#endif

struct helm_client; /* opaque */

#define HELM_CONNECT_TIMEOUT_MS 5000 /* used where a connect timeout of 0 is given */
#define HELM_ENDPOINT_MAX       512  /* bytes of an endpoint, NUL included */
#define HELM_OPEN_REQUESTS_MAX  1024 /* requests open at once on one connection */

/* ---- connecting ------------------------------------------------------------------------------------- */

/* The endpoint that helm_connect(NULL, ...) uses: $HELM_ENDPOINT if set and not empty; else
 * ipc:///run/helm/helmd.sock if that file exists; else ipc://$XDG_RUNTIME_DIR/helm/helmd.sock if that
 * variable is set; else ipc:///tmp/helm-UID/helmd.sock. Where this user may not enter /run/helm and the
 * other socket is not there, it is the system's: connecting then says HELM_E_PERMISSION. */
HELM_MUST_CHECK int helm_default_endpoint(char endpoint[HELM_ENDPOINT_MAX], struct helm_err *err);

/* Connects to "ipc://PATH" (NULL: the default endpoint) and waits at most timeout_ms (0:
 * HELM_CONNECT_TIMEOUT_MS) until the daemon answered, loading or ready. */
HELM_MUST_CHECK int helm_connect(const char *endpoint, int timeout_ms, struct helm_client **out,
                                 struct helm_err *err);

/* The same for "tcp://HOST:PORT", which helmd offers only with CURVE keys: both are Z85 text of
 * HELM_CURVE_KEY characters, the daemon's public key and a secret key whose public half the daemon was told
 * to allow. */
#define HELM_CURVE_KEY 40
HELM_MUST_CHECK int helm_connect_curve(const char *endpoint, const char *daemon_public_key,
                                       const char *secret_key, int timeout_ms, struct helm_client **out,
                                       struct helm_err *err);

/* Closes the connection and clears *client; a NULL *client is allowed. Requests still open are cancelled by
 * the daemon; their callbacks are not called any more. Not to be called from a callback. */
void helm_disconnect(struct helm_client **client);

/* The endpoint in use. */
const char *helm_client_endpoint(const struct helm_client *client);

/* A descriptor that is readable (level-triggered, for poll, select and epoll) whenever helm_dispatch has
 * work. Do nothing else with it. It is valid as long as the client. */
int helm_client_fd(const struct helm_client *client);

/* ---- generating ------------------------------------------------------------------------------------- */

struct helm_logit_bias {
    uint32_t token;
    float bias; /* [-100, 100] */
};

/* Order: repetition penalty, presence and frequency penalties, logit bias, then temperature, top-k, top-p,
 * min-p. A zeroed struct is greedy: exact argmax, the lowest id on a tie. */
struct helm_sampling {
    float temperature;        /* [0, 100]; 0: greedy */
    uint32_t top_k;           /* 0: off */
    float top_p;              /* (0, 1]; 0: off, the same as 1 */
    float min_p;              /* [0, 1]; 0: off */
    float repetition_penalty; /* (0, 100]; 0: off, the same as 1; counts prompt and output */
    float presence_penalty;   /* [-2, 2]; 0: off; output only */
    float frequency_penalty;  /* [-2, 2]; 0: off; output only */
    bool has_seed;            /* false: the daemon draws one and reports it in helm_done */
    uint64_t seed;
    const struct helm_logit_bias *bias; /* borrowed for the call */
    size_t bias_count;                  /* at most 300 */
};

struct helm_grammar; /* grammar.h */

#define HELM_MARKS_MAX      64    /* of a request */
#define HELM_PREDICTION_MAX 16384 /* likewise, tokens */

/* Whether several tokens of an answer are tried at once: those that the model would draw are kept, so the
 * answer is the same. */
enum helm_speculate {
    /* As helmd's --speculate says. If that is off, a request with a prediction has HELM_SPECULATE_NGRAM */
    HELM_SPECULATE_DEFAULT = 0,
    HELM_SPECULATE_OFF = 1,
    HELM_SPECULATE_NGRAM =
        2, /* as went on when the text last read like this; HELM_E_FORMAT if helmd has no room */
    HELM_SPECULATE_AUTO = 3, /* the same, with as many drafts as make the answer faster, or none */
    HELM_SPECULATE_MTP = 4, /* as the model's own layer of drafts guesses; refused if helmd has not read it */
    HELM_SPECULATE_DRAFT = 5, /* as helmd's draft model guesses; refused if it has none */
};

/* A request to generate. Zero-initialise; pointers are borrowed for the call, but for the grammar's. */
struct helm_generate_request {
    const uint32_t *prompt; /* token ids, at least one */
    size_t prompt_count;
    uint32_t max_tokens; /* 0: as many as the context holds */
    struct helm_sampling sampling;
    const uint32_t *stop_tokens; /* beside the model's own end-of-sequence ids; at most 64 */
    size_t stop_count;
    uint32_t logprobs; /* alternatives reported with each token, 0 .. 20 */
    /* Instead of the likeliest: the tokens whose logprobs come with each token, in this order; at most 20,
     * with `logprobs` 0 */
    const uint32_t *logprobs_of;
    size_t logprobs_of_count;
    bool ignore_eos;      /* the model's end-of-sequence ids do not stop the request */
    uint32_t deadline_ms; /* 0: none; after it the daemon ends the request as cancelled */
    /* Positions in the prompt where later prompts may part from it, such as ends of messages
     * (helm_chat_prompt has them): tokens in front of each, rising, at most HELM_MARKS_MAX. A model with
     * states of fixed size keeps its state there, so that later prompts compute less; for others they change
     * nothing. */
    const uint32_t *marks;
    size_t mark_count;
    enum helm_speculate speculate;
    const uint32_t
        *prediction; /* a text that the answer may repeat, at most HELM_PREDICTION_MAX tokens; may be NULL */
    size_t prediction_count;
    const char *label; /* shown by `helm-cli ps`; at most 64 bytes; may be NULL */
    /* The grammar that the output fits as a whole, unless it ends early (HELM_FINISH_LENGTH and the like);
     * NULL: any. Its vocabulary must be of this model, its ends those that stop this request, and it must
     * outlive the request. Before each token the library tells the daemon which ones are allowed, from inside
     * helm_dispatch: a program that does not dispatch holds up this request, and loses it after 10 s. Not
     * with ignore_eos. */
    struct helm_grammar *grammar;
    /* For gateways: the user whom the request is for, at most 64 bytes of UTF-8 without control characters;
     * NULL: this program itself. Users share the daemon as users of the machine do, and `helm-cli ps` shows
     * their names: write no secret. The daemon refuses it (HELM_E_PERMISSION) unless
     * helm_status.names_users. */
    const char *user;
};

struct helm_logprob {
    uint32_t token;
    float logprob;
};
struct helm_token {
    uint64_t id;    /* the daemon's id of the request */
    uint32_t index; /* 0, 1, ... of the output */
    uint32_t token;
    float logprob;                  /* of `token`; 0 unless logprobs were asked for */
    const struct helm_logprob *top; /* falling, or as logprobs_of */
    size_t top_count;
};

enum helm_finish {
    HELM_FINISH_EOS = 1,  /* the model's end of sequence, which is the last token sent */
    HELM_FINISH_STOP = 2, /* one of stop_tokens, which is the last token sent */
    HELM_FINISH_LENGTH = 3,
    HELM_FINISH_CANCELLED = 4,
    HELM_FINISH_ERROR = 5, /* it failed midway; detail says why */
};
/* "eos", "stop", "length", "cancelled", "error". Never NULL. */
const char *helm_finish_name(enum helm_finish finish);

struct helm_timings {
    double queue_ms;
    double ttft_ms;                     /* from the daemon's admission of the request to its first token */
    double tpot_ms;                     /* mean time per output token after the first */
    double prefill_tok_s, decode_tok_s; /* prefill: of the tokens that were computed */
    double total_ms;
};
struct helm_done {
    uint64_t id;
    enum helm_finish finish;
    uint32_t prompt_tokens, completion_tokens;
    uint32_t cached_tokens; /* of the prompt: not computed for this request (--prefix-cache) */
    uint64_t drafted_tokens, accepted_tokens; /* tokens that were tried beside the newest; that were right */
    double
        draft_gain; /* speed of steps with drafts, divided by that of steps without by forecast; 0: unknown */
    struct helm_timings timings;
    uint64_t seed; /* that was used */
    /* Why it ended, with HELM_FINISH_ERROR and HELM_FINISH_CANCELLED; with HELM_FINISH_LENGTH that the
     * context is full; never NULL */
    const char *detail;
};

/* An embedding of a text: the model's last hidden state, after the final norm, pooled over the prompt's
 * tokens. Zero-initialise; pointers are borrowed for the call. */
enum helm_pooling { HELM_POOLING_MEAN = 0, HELM_POOLING_LAST = 1 }; /* of all tokens; the last token's */
struct helm_embed_request {
    const uint32_t *prompt; /* token ids, at least one */
    size_t prompt_count;
    enum helm_pooling pooling;
    uint32_t deadline_ms; /* as of helm_generate_request */
    const char *label, *user;
};
struct helm_embedding {
    uint64_t id;
    const float *values; /* [count]: helm_model_info.hidden of them, not of unit length */
    size_t count;
    uint32_t prompt_tokens;
    double queue_ms, total_ms;
};

/* Called from inside the library; any may be NULL. `request` is the number helm_generate gave. Every request
 * ends with exactly one `done`, `error` or `embedding`, after which its number is free. A callback may start
 * and cancel requests; it may not wait, dispatch or disconnect (HELM_E_STATE). */
struct helm_callbacks {
    /* The daemon queued it under `id` (what `ps` shows); queue_position 0: it runs. */
    void (*accepted)(void *user, uint64_t request, uint64_t id, uint32_t queue_position);
    void (*token)(void *user, uint64_t request, const struct helm_token *token);
    void (*done)(void *user, uint64_t request, const struct helm_done *done);
    /* Refused, or lost with the connection. */
    void (*error)(void *user, uint64_t request, int code, const char *text);
    /* The end of helm_embed, unless that is an error or, cancelled or failed midway, a `done`. */
    void (*embedding)(void *user, uint64_t request, const struct helm_embedding *embedding);
};

/* Sends a request and returns at once. *callbacks is copied. timeout_ms bounds the silence between two
 * messages of the daemon about this request (0: unbounded; helm_disconnect and a lost connection still end
 * it); when it passes, the request is cancelled and ends with error HELM_E_PEER. Bounds are the daemon's to
 * judge, except those without which no frame can be formed: an empty prompt, lists over their limits. */
HELM_MUST_CHECK int helm_generate(struct helm_client *client, const struct helm_generate_request *what,
                                  const struct helm_callbacks *callbacks, void *user, int timeout_ms,
                                  uint64_t *request, struct helm_err *err);

/* The same for an embedding: ends with `embedding`, `error`, or `done` where it was cancelled or failed
 * midway. */
HELM_MUST_CHECK int helm_embed(struct helm_client *client, const struct helm_embed_request *what,
                               const struct helm_callbacks *callbacks, void *user, int timeout_ms,
                               uint64_t *request, struct helm_err *err);

/* Asks the daemon to end one of this connection's requests; `done` with HELM_FINISH_CANCELLED follows (or
 * whatever end crossed the cancel on its way). Returns at once. */
HELM_MUST_CHECK int helm_cancel(struct helm_client *client, uint64_t request, struct helm_err *err);

/* Takes a request off the connection without waiting for its end: none of its callbacks is called any more.
 * The daemon goes on with it unless helm_cancel came first, which takes effect when the step under way ends.
 * HELM_E_NOT_FOUND: no such request is open; HELM_E_STATE: called from a callback. */
HELM_MUST_CHECK int helm_abandon(struct helm_client *client, uint64_t request, struct helm_err *err);

/* Hands out everything that has come, waiting at most timeout_ms (0: not at all, -1: forever) for the first
 * of it. Returns 0 also when nothing came. HELM_E_PEER: the connection is lost (every open request was ended
 * with an error before this returns). HELM_E_CANCELLED: a signal handler ran. */
HELM_MUST_CHECK int helm_dispatch(struct helm_client *client, int timeout_ms, struct helm_err *err);

/* helm_dispatch until `request` is over or timeout_ms passed (-1: forever): HELM_E_PEER, the request stays
 * open. */
HELM_MUST_CHECK int helm_wait(struct helm_client *client, uint64_t request, int timeout_ms,
                              struct helm_err *err);

/* Requests that are not over yet. */
size_t helm_open_requests(const struct helm_client *client);

/* ---- asking ----------------------------------------------------------------------------------------- */
/* Each of these sends one question and waits at most timeout_ms for its answer, handing out whatever else
 * comes meanwhile. The structs are one allocation each: free() them. */

struct helm_worker_status {
    const char *name, *state, *kernels, *device; /* device: "" of the CPU worker */
    uint32_t pid, epoch, restarts, threads;
    int32_t numa_node;
    uint64_t weight_bytes, huge_bytes, loaded_bytes, vram_bytes;
    /* Totals that never fall: computing, waiting in steps for the other worker; weights read by its own
     * processor, weights copied over the link. */
    double busy_seconds, wait_seconds;
    uint64_t weight_bytes_read, link_bytes;
};
struct helm_count {
    const char *name;
    uint64_t count;
};
struct helm_histogram {
    const double *bounds;   /* rising; [bucket_count - 1]: the last bucket has none */
    const uint64_t *counts; /* [bucket_count]: of each bucket alone */
    size_t bucket_count;    /* 0: the daemon keeps none */
    double sum;
};
struct helm_status {
    const char *version;
    const char *state; /* "loading", "ready", "restarting", "draining" */
    uint64_t uptime_ms;
    uint32_t running, queued, queue_limit;
    uint32_t kv_pages_used, kv_pages_total;
    uint64_t requests_total, tokens_prompt_total, tokens_output_total, steps_total;
    double seconds_linear, seconds_attention, seconds_sample, seconds_idle;
    double load_seconds_left; /* while loading */
    double seconds_steps;     /* in which a step was under way */
    const char *kv_dtype;     /* of the KV cache: "f16", "q8_0", ... */
    uint64_t kv_token_bytes;  /* of a token in it, all layers together */
    const char *prefix_cache; /* "on", "off", "peer" */
    uint32_t kv_pages_cached; /* unused, free for any request, and found by their tokens */
    uint64_t prefix_hits_total, tokens_cached_total, prefix_evictions_total;
    const char *activations; /* that blocks are multiplied with, exact or int8, and why */
    const char *invariant;   /* whether tokens depend on nothing but the request, and why: "on: ..." */
    /* For a KV cache in two tiers (all 0 with one): room for pages in VRAM, pages of running sequences that
     * lie in host memory alone, and how many were moved there and fetched so far. */
    uint32_t kv_places_used, kv_places_total, kv_pages_host;
    uint64_t kv_pages_moved_out_total, kv_pages_fetched_total;
    /* Experts of layers in both memories, in decode steps: uses, uses in VRAM, and experts brought there. */
    uint64_t experts_used_total, experts_present_total, experts_moved_total;
    const struct helm_worker_status *workers;
    size_t worker_count;
    /* Accepted requests by end ("eos", "stop", "length", "cancelled", "error"), others by the error's
     * code. */
    const struct helm_count *ended, *refused;
    size_t ended_count, refused_count;
    /* For requests that are over: seconds until they had a slot, until the first token, per token after it;
     * of steps: the sequences in them. */
    struct helm_histogram queue_seconds, ttft_seconds, tpot_seconds, step_sequences;
    uint64_t preemptions_total, restarts_total;
    double seconds_waiting; /* of seconds_steps: no processor computed */
    /* The least that the link was busy, from its bytes and the profile; 0: there is none */
    double seconds_link;
    uint32_t kv_page_tokens;
    bool names_users; /* this program may set `user` of its requests */
    /* States of fixed size at positions (all 0 where the model has none): those that prompts can find, those
     * that there is room for, bytes of each; sequences that began with one, and those that gave their place
     * to others. */
    uint32_t snapshots, snapshots_total;
    uint64_t snapshot_bytes, snapshot_hits_total, snapshots_dropped_total;
    const char *speculate; /* "off", "ngram", "auto", "mtp", "draft": of requests that do not say */
    uint32_t draft_tokens; /* of a sequence in a step at most; 0: no request has drafts */
    uint64_t tokens_drafted_total, tokens_accepted_total;
    /* Seconds of requests in steps with drafts, and those that steps without would have taken for the same
     * tokens by forecast */
    double seconds_with_drafts, seconds_without_drafts;
    const char *draft_model; /* it, its memory and its times in words; "": none */
};
HELM_MUST_CHECK int helm_status(struct helm_client *client, int timeout_ms, struct helm_status **out,
                                struct helm_err *err);

struct helm_model_info {
    const char *folder, *architecture, *dtype; /* the folder, or the GGUF file */
    uint32_t layers, hidden, intermediate, heads, kv_heads, head_dim, vocab;
    uint32_t context;       /* tokens a request may use */
    uint32_t model_context; /* tokens the model was made for */
    uint64_t weight_bytes, parameters;
    int32_t bos; /* -1: none */
    const uint32_t *eos;
    size_t eos_count;
};
HELM_MUST_CHECK int helm_model_info(struct helm_client *client, int timeout_ms, struct helm_model_info **out,
                                    struct helm_err *err);

struct helm_list_entry {
    uint64_t id;
    const char *state; /* "queued", "prefill", "decode"; "stalled": a worker is stopped or late */
    const char *label;
    const char *user; /* whom a gateway named; "" */
    uint32_t prompt_tokens, prefilled_tokens, output_tokens, max_tokens;
    uint64_t age_ms;
};
struct helm_list {
    const struct helm_list_entry *entries;
    size_t count;
    size_t others; /* open requests of other users or keys, which are not shown */
};
/* Open requests: this user's or key's; for an administrator all of them (docs/operations.md). */
HELM_MUST_CHECK int helm_list(struct helm_client *client, int timeout_ms, struct helm_list **out,
                              struct helm_err *err);

/* The plan in force as JSON text (docs/planner.md); free() it. */
HELM_MUST_CHECK int helm_plan(struct helm_client *client, int timeout_ms, char **json, struct helm_err *err);

/* The same with what the plan should do and what it was seen doing. Seconds of 0 are unknown. */
struct helm_plan_steps {
    uint32_t batch;  /* sequences decoding together; 0 of prompts */
    uint32_t tokens; /* context of decode steps, length of prompts: the median */
    uint64_t count;
    double measured_seconds, planned_seconds; /* of a step, to the first token: medians */
};
struct helm_plan_resource {
    const char *name;          /* "cpu", "gpu", "link"; "disk": of half layers there */
    double busy, busy_planned; /* part of the decode steps' time */
    double bytes_per_second, bytes_per_second_planned;
};
struct helm_plan_info {
    const char *json;
    uint32_t batch, context, prompt; /* that the next six are for */
    double decode_seconds, decode_seconds_low, decode_seconds_high;
    double ttft_seconds, ttft_seconds_low, ttft_seconds_high;
    const struct helm_plan_steps *decode, *ttft;
    size_t decode_count, ttft_count;
    const struct helm_plan_resource *resources;
    size_t resource_count;
    bool drifting;
    const char *drift; /* the last drift in words; "" if there was none */
    /* Experts of layers in both memories: uses of each, [expert_layer_count][experts]. */
    const uint32_t *expert_layers;
    size_t expert_layer_count;
    uint32_t experts;
    const uint64_t *expert_uses;
    /* Memory's rates at the daemon's start, beside its profile; "": a daemon that does not say */
    const char *now;
};
HELM_MUST_CHECK int helm_plan_info(struct helm_client *client, int timeout_ms, struct helm_plan_info **out,
                                   struct helm_err *err);

/* Cancels any client's request by the daemon's id. HELM_E_NOT_FOUND: there is none. */
HELM_MUST_CHECK int helm_cancel_id(struct helm_client *client, uint64_t id, int timeout_ms,
                                   struct helm_err *err);

#ifdef __cplusplus
}
#endif
