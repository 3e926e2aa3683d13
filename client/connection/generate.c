/* Generate and Cancel: from helm.h's structs to messages, from messages to callbacks. See helm.h.
 *
 * Called by programs, and by connection.c for each response of a generation. Owns nothing: entries belong to
 * connection.c, messages to the caller that unpacked them. */
#include <stdlib.h>
#include <string.h>

#include "client/connection/connection.h"
#include "client/connection/mask_thread.h"
#include "common/base/units.h"

#define BIAS_MAX  300
#define STOP_MAX  64
#define TOP_MAX   20
#define LABEL_MAX 64
#define USER_MAX  64

const char *helm_finish_name(enum helm_finish finish)
{
    static const char *const names[] = {[HELM_FINISH_EOS] = "eos",
                                        [HELM_FINISH_STOP] = "stop",
                                        [HELM_FINISH_LENGTH] = "length",
                                        [HELM_FINISH_CANCELLED] = "cancelled"};
    return finish >= HELM_FINISH_EOS && finish <= HELM_FINISH_CANCELLED ? names[finish] : "error";
}

int generate_error_code(Helm__V1__ErrorCode code)
{
    static const int codes[] = {[HELM__V1__ERROR_CODE__ERROR_MALFORMED] = HELM_E_FORMAT,
                                [HELM__V1__ERROR_CODE__ERROR_TOO_LARGE] = HELM_E_LIMIT,
                                [HELM__V1__ERROR_CODE__ERROR_BUSY] = HELM_E_BUSY,
                                [HELM__V1__ERROR_CODE__ERROR_NOT_FOUND] = HELM_E_NOT_FOUND,
                                [HELM__V1__ERROR_CODE__ERROR_CONTEXT] = HELM_E_CAPACITY,
                                [HELM__V1__ERROR_CODE__ERROR_NOT_READY] = HELM_E_STATE,
                                [HELM__V1__ERROR_CODE__ERROR_DUPLICATE] = HELM_E_STATE,
                                [HELM__V1__ERROR_CODE__ERROR_DENIED] = HELM_E_PERMISSION};
    const bool known = code >= 0 && (size_t)code < sizeof codes / sizeof *codes;
    return known && codes[code] ? codes[code] : HELM_E_INTERNAL;
}

bool generate_is_last(const Helm__V1__Response *response)
{
    return response->body_case != HELM__V1__RESPONSE__BODY_TOKEN &&
           response->body_case != HELM__V1__RESPONSE__BODY_ACCEPTED;
}

static void deliver_token(const struct connection_request *request, const Helm__V1__Token *from)
{
    struct helm_logprob top[TOP_MAX];
    struct helm_token token = {
        .id = from->id, .index = from->index, .token = from->token, .logprob = from->logprob, .top = top};
    token.top_count = from->n_top < TOP_MAX ? from->n_top : TOP_MAX; /* more than 20 is never asked for */
    for (size_t i = 0; i < token.top_count; i++)
        top[i] = (struct helm_logprob){from->top[i]->token, from->top[i]->logprob};
    if (request->callbacks.token) request->callbacks.token(request->user, request->number, &token);
}

static void deliver_done(const struct connection_request *request, const Helm__V1__Done *from)
{
    struct helm_done done = {.id = from->id,
                             .finish = HELM_FINISH_ERROR,
                             .seed = from->seed,
                             .detail = from->detail};
    _Static_assert((int)HELM_FINISH_CANCELLED == (int)HELM__V1__FINISH_REASON__FINISH_CANCELLED,
                   "same numbers");
    if (from->finish_reason >= HELM__V1__FINISH_REASON__FINISH_EOS &&
        from->finish_reason <= HELM__V1__FINISH_REASON__FINISH_CANCELLED)
        done.finish = (enum helm_finish)from->finish_reason;
    if (from->usage) {
        done.prompt_tokens = from->usage->prompt_tokens;
        done.completion_tokens = from->usage->completion_tokens;
        done.cached_tokens = from->usage->cached_tokens;
        done.drafted_tokens = from->usage->drafted_tokens;
        done.accepted_tokens = from->usage->accepted_tokens;
        done.draft_gain = from->usage->draft_gain;
    }
    if (from->timings) {
        const Helm__V1__Timings *t = from->timings;
        done.timings = (struct helm_timings){t->queue_ms,      t->ttft_ms,      t->tpot_ms,
                                             t->prefill_tok_s, t->decode_tok_s, t->total_ms};
    }
    if (request->callbacks.done) request->callbacks.done(request->user, request->number, &done);
}

static void deliver_embedding(const struct connection_request *request, const Helm__V1__Embedding *from)
{
    const struct helm_embedding embedding = {.id = from->id,
                                             .values = from->values,
                                             .count = from->n_values,
                                             .prompt_tokens = from->usage ? from->usage->prompt_tokens : 0,
                                             .queue_ms = from->timings ? from->timings->queue_ms : 0,
                                             .total_ms = from->timings ? from->timings->total_ms : 0};
    if (request->callbacks.embedding)
        request->callbacks.embedding(request->user, request->number, &embedding);
}

void generate_deliver(const struct connection_request *request, const Helm__V1__Response *response)
{
    const struct helm_callbacks *call = &request->callbacks;
    switch (response->body_case) {
    case HELM__V1__RESPONSE__BODY_ACCEPTED:
        if (call->accepted)
            call->accepted(request->user, request->number, response->accepted->id,
                           response->accepted->queue_position);
        break;
    case HELM__V1__RESPONSE__BODY_TOKEN:
        deliver_token(request, response->token);
        break;
    case HELM__V1__RESPONSE__BODY_DONE:
        deliver_done(request, response->done);
        break;
    case HELM__V1__RESPONSE__BODY_EMBEDDING:
        deliver_embedding(request, response->embedding);
        break;
    case HELM__V1__RESPONSE__BODY_ERROR:
        if (call->error)
            call->error(request->user, request->number, generate_error_code(response->error->code),
                        response->error->message);
        break;
    default:
        if (call->error)
            call->error(request->user, request->number, HELM_E_PEER,
                        "the daemon answered with a message of another kind");
    }
}

static int check_prompt(size_t count, const char *label, const char *user, struct helm_err *err)
{
    if (count == 0) return helm_fail(err, HELM_E_LIMIT, "the prompt is empty: it needs at least one token");
    if (count > CONNECTION_FRAME_BYTES_MAX)
        return helm_fail(err, HELM_E_LIMIT, "a prompt of %zu tokens exceeds the limit of %zu", count,
                         CONNECTION_FRAME_BYTES_MAX);
    if (label && strlen(label) > LABEL_MAX)
        return helm_fail(err, HELM_E_LIMIT, "a label of %zu bytes exceeds the limit of %d", strlen(label),
                         LABEL_MAX);
    if (user && strlen(user) > USER_MAX)
        return helm_fail(err, HELM_E_LIMIT, "a user's name of %zu bytes exceeds the limit of %d",
                         strlen(user), USER_MAX);
    return 0;
}

static int check_lists(const struct helm_generate_request *what, struct helm_err *err)
{
    if (what->sampling.bias_count > BIAS_MAX)
        return helm_fail(err, HELM_E_LIMIT, "%zu logit biases exceed the limit of %d",
                         what->sampling.bias_count, BIAS_MAX);
    if (what->stop_count > STOP_MAX)
        return helm_fail(err, HELM_E_LIMIT, "%zu stop tokens exceed the limit of %d", what->stop_count,
                         STOP_MAX);
    if (what->mark_count > HELM_MARKS_MAX)
        return helm_fail(err, HELM_E_LIMIT, "%zu marks exceed the limit of %d", what->mark_count,
                         HELM_MARKS_MAX);
    if (what->prediction_count > HELM_PREDICTION_MAX)
        return helm_fail(err, HELM_E_LIMIT, "a prediction of %zu tokens exceeds the limit of %d",
                         what->prediction_count, HELM_PREDICTION_MAX);
    if (what->logprobs_of_count > TOP_MAX)
        return helm_fail(err, HELM_E_LIMIT, "logprobs of %zu tokens exceed the limit of %d",
                         what->logprobs_of_count, TOP_MAX);
    if (what->grammar && what->ignore_eos)
        return helm_fail(err, HELM_E_USAGE,
                         "a grammar needs the model's end of sequence: not with ignore_eos");
    return check_prompt(what->prompt_count, what->label, what->user, err);
}

/* A request's callbacks and limit, beside its message. */
struct call {
    const struct helm_callbacks *callbacks;
    void *user;
    int timeout_ms;
};

/* Sends a fresh entry's message; an entry that could not be sent is gone. */
static int send_entry(struct helm_client *client, struct connection_request *entry,
                      Helm__V1__Request *message, const struct call *call, uint64_t *request,
                      struct helm_err *err)
{
    const uint64_t number = entry->number;
    entry->callbacks = *call->callbacks;
    entry->user = call->user;
    entry->timeout_ms = call->timeout_ms;
    if (call->timeout_ms > 0) {
        entry->deadline_us = units_now_us() + (uint64_t)call->timeout_ms * 1000;
        connection_watch_deadline(client, entry->deadline_us);
    }
    int rc = connection_send(client, message, number, err);
    if (rc < 0)
        connection_drop_request(client, number);
    else
        *request = number;
    return rc;
}

int helm_generate(struct helm_client *client, const struct helm_generate_request *what,
                  const struct helm_callbacks *callbacks, void *user, int timeout_ms, uint64_t *request,
                  struct helm_err *err)
{
    *request = 0;
    const struct call call = {callbacks, user, timeout_ms};
    int rc = check_lists(what, err);
    if (rc < 0) return rc;
    const struct helm_sampling *s = &what->sampling;
    Helm__V1__LogitBias bias[BIAS_MAX], *bias_ptr[BIAS_MAX];
    for (size_t i = 0; i < s->bias_count; i++) {
        bias[i] = (Helm__V1__LogitBias)HELM__V1__LOGIT_BIAS__INIT;
        bias[i].token = s->bias[i].token;
        bias[i].bias = s->bias[i].bias;
        bias_ptr[i] = &bias[i];
    }
    Helm__V1__Sampling sampling = HELM__V1__SAMPLING__INIT;
    sampling.temperature = s->temperature;
    sampling.top_k = s->top_k;
    sampling.top_p = s->top_p;
    sampling.min_p = s->min_p;
    sampling.repetition_penalty = s->repetition_penalty;
    sampling.presence_penalty = s->presence_penalty;
    sampling.frequency_penalty = s->frequency_penalty;
    sampling.has_seed = s->has_seed;
    sampling.seed = s->seed;
    sampling.n_logit_bias = s->bias_count;
    sampling.logit_bias = bias_ptr;

    /* The generated structs are not const-correct; packing only reads. */
    Helm__V1__Generate generate = HELM__V1__GENERATE__INIT;
    generate.n_prompt = what->prompt_count;
    generate.prompt = (uint32_t *)what->prompt;
    generate.max_tokens = what->max_tokens;
    generate.sampling = &sampling;
    generate.n_stop_token_ids = what->stop_count;
    generate.stop_token_ids = (uint32_t *)what->stop_tokens;
    generate.logprobs = what->logprobs;
    generate.n_logprobs_of = what->logprobs_of_count;
    generate.logprobs_of = (uint32_t *)what->logprobs_of;
    generate.n_marks = what->mark_count;
    generate.marks = (uint32_t *)what->marks;
    generate.speculate = (Helm__V1__Speculate)what->speculate;
    generate.n_prediction = what->prediction_count;
    generate.prediction = (uint32_t *)what->prediction;
    generate.ignore_eos = what->ignore_eos;
    generate.deadline_ms = what->deadline_ms;
    if (what->label) generate.label = (char *)what->label;
    Helm__V1__Request message = CONNECTION_REQUEST_INIT;
    message.body_case = HELM__V1__REQUEST__BODY_GENERATE;
    message.generate = &generate;
    if (what->user) message.user = (char *)what->user;

    struct constraint *constraint = NULL;
    if (what->grammar) rc = constraint_open(what->grammar, &constraint, err);
    if (rc == 0 && constraint) rc = constraint_mask(constraint, 0, &generate.mask, err);
    struct connection_request *entry = NULL;
    if (rc == 0) rc = connection_open_request(client, &entry, err);
    if (rc < 0) {
        constraint_close(constraint);
        return rc;
    }
    entry->constraint = constraint;
    return send_entry(client, entry, &message, &call, request, err);
}

int helm_embed(struct helm_client *client, const struct helm_embed_request *what,
               const struct helm_callbacks *callbacks, void *user, int timeout_ms, uint64_t *request,
               struct helm_err *err)
{
    const struct call call = {callbacks, user, timeout_ms};
    Helm__V1__Embed embed = HELM__V1__EMBED__INIT;
    Helm__V1__Request message = CONNECTION_REQUEST_INIT;
    struct connection_request *entry = NULL;
    *request = 0;
    int rc = check_prompt(what->prompt_count, what->label, what->user, err);
    if (rc == 0) rc = connection_open_request(client, &entry, err);
    if (rc < 0) return rc;
    embed.n_prompt = what->prompt_count;
    embed.prompt = (uint32_t *)what->prompt;
    embed.pooling = (Helm__V1__Pooling)what->pooling;
    embed.deadline_ms = what->deadline_ms;
    if (what->label) embed.label = (char *)what->label;
    message.body_case = HELM__V1__REQUEST__BODY_EMBED;
    message.embed = &embed;
    if (what->user) message.user = (char *)what->user;
    return send_entry(client, entry, &message, &call, request, err);
}

static int send_mask(struct helm_client *client, struct constraint *constraint, uint64_t number,
                     uint32_t index, struct helm_err *err)
{
    Helm__V1__Request message = CONNECTION_REQUEST_INIT;
    message.body_case = HELM__V1__REQUEST__BODY_MASK;
    constraint_message(constraint, index + 1, &message.mask);
    return connection_send(client, &message, number, err);
}

/* A constraint that cannot go on ends its request. `request` is a copy. */
static void give_up(struct helm_client *client, const struct connection_request *request, int rc,
                    const char *text)
{
    struct helm_err ignored = {0};
    if (!connection_find_request(client, request->number)) return;
    if (helm_cancel(client, request->number, &ignored) < 0) { /* the daemon ends it for want of a mask */
    }
    connection_drop_request(client, request->number);
    if (request->callbacks.error) request->callbacks.error(request->user, request->number, rc, text);
}

static int drawn_wrongly(int rc, uint32_t token, struct helm_err *err)
{
    if (rc != HELM_E_FORMAT) return rc;
    return helm_fail(err, HELM_E_INTERNAL, "the daemon drew token %u, which the grammar does not allow",
                     token);
}

void generate_deliver_constrained(struct helm_client *client, const struct connection_request *request,
                                  const Helm__V1__Response *response, struct mask_thread **thread)
{
    struct helm_err err = {0};
    const Helm__V1__Token *from = response->token;
    const struct constraint_token token = {request->number, from->token, from->index, request->event_fd};
    bool more = false;
    int rc = constraint_take(request->constraint, &token, thread, &more, &err);
    if (more) rc = send_mask(client, request->constraint, request->number, from->index, &err);
    rc = drawn_wrongly(rc, from->token, &err);
    generate_deliver(request, response); /* after the mask: the daemon waits for that */
    if (rc < 0) give_up(client, request, rc, err.text);
}

int generate_send_masks(struct helm_client *client, struct mask_thread *thread)
{
    int sent = 0;
    for (struct mask_job *job; (job = mask_thread_take(thread)); sent++) {
        struct helm_err err = {0};
        bool more;
        uint32_t index, token;
        const struct connection_request *entry = connection_find_request(client, job->number);
        if (!entry) continue; /* cannot be: a request that is dropped takes its job along */
        const struct connection_request request = *entry;
        int rc = constraint_result(request.constraint, &more, &token, &index, &err);
        if (more) rc = send_mask(client, request.constraint, request.number, index, &err);
        rc = drawn_wrongly(rc, token, &err);
        if (rc < 0) give_up(client, &request, rc, err.text);
    }
    return sent;
}

int helm_cancel(struct helm_client *client, uint64_t request, struct helm_err *err)
{
    const struct connection_request *entry = connection_find_request(client, request);
    if (!entry || entry->question)
        return helm_fail(err, HELM_E_NOT_FOUND, "no open request %llu on this connection",
                         (unsigned long long)request);
    Helm__V1__Cancel cancel = HELM__V1__CANCEL__INIT;
    cancel.request_id = request;
    Helm__V1__Request message = CONNECTION_REQUEST_INIT;
    message.body_case = HELM__V1__REQUEST__BODY_CANCEL;
    message.cancel = &cancel;
    return connection_send(client, &message, connection_next_number(client), err);
}
