/* Requests of clients and the answers to them. See serve.h. Called from the one loop. */
#include "daemon/clients/serve.h"

#include <stdio.h>
#include <stdlib.h>

#include "common/base/log.h"
#include "common/base/units.h"
#include "daemon/steps/request.h"
#include "proto/helm.pb-c.h"

/* ---- packing ------------------------------------------------------------------------------------------ */

/* `body`: the message that `kind` says. */
static int serve_send(struct serve *serve, struct asker asker, Helm__V1__Response__BodyCase kind, void *body)
{
    uint8_t stack[2048];
    Helm__V1__Response response = HELM__V1__RESPONSE__INIT;
    const bool final = kind == HELM__V1__RESPONSE__BODY_DONE || kind == HELM__V1__RESPONSE__BODY_ERROR ||
                       kind == HELM__V1__RESPONSE__BODY_EMBEDDING;
    response.version = REQUEST_VERSION;
    response.request_id = asker.request_id;
    response.body_case = kind;
    response.error = body; /* a union of pointers */
    size_t size = helm__v1__response__get_packed_size(&response);
    uint8_t *data = size <= sizeof stack ? stack : malloc(size);
    if (!data) {
        log_error("no memory for an answer of %zu bytes", size);
        return HELM_E_BUSY;
    }
    helm__v1__response__pack(&response, data);
    int rc = client_socket_send(serve->clients, asker.client, data, size, final);
    if (data != stack) free(data);
    return rc;
}

void serve_error(struct serve *serve, struct asker asker, Helm__V1__ErrorCode code, const char *text)
{
    Helm__V1__Error error = HELM__V1__ERROR__INIT;
    error.code = code;
    error.message = (char *)text;
    metrics_add_refusal(serve->metrics, (uint32_t)code);
    log_debug("client %llu request %llu: %s", (unsigned long long)asker.client,
              (unsigned long long)asker.request_id, text);
    if (serve_send(serve, asker, HELM__V1__RESPONSE__BODY_ERROR, &error))
        log_debug("client %llu: its error could not be delivered", (unsigned long long)asker.client);
}

void serve_answer(struct serve *serve, struct asker asker, Helm__V1__Response__BodyCase kind, void *body)
{
    if (serve_send(serve, asker, kind, body))
        log_debug("client %llu: an answer could not be delivered", (unsigned long long)asker.client);
}

static struct asker asker_of(const struct sequence *seq)
{
    return (struct asker){.client = seq->client, .request_id = seq->request_id};
}

int serve_token(void *context, const struct sequence *seq, uint32_t index,
                const struct sampling_result *sampled)
{
    struct serve *serve = context;
    Helm__V1__Token token = HELM__V1__TOKEN__INIT;
    Helm__V1__TokenLogprob top[SAMPLING_LOGPROBS_MAX], *top_list[SAMPLING_LOGPROBS_MAX];
    token.id = seq->id;
    token.index = index;
    token.token = sampled->token;
    if (seq->sampling.logprobs) {
        token.logprob = sampled->logprob;
        for (uint32_t i = 0; i < sampled->top_count; i++) {
            helm__v1__token_logprob__init(&top[i]);
            top[i].token = sampled->top[i].token;
            top[i].logprob = sampled->top[i].logprob;
            top_list[i] = &top[i];
        }
        token.n_top = sampled->top_count;
        token.top = top_list;
    }
    return serve_send(serve, asker_of(seq), HELM__V1__RESPONSE__BODY_TOKEN, &token);
}

void serve_done(void *context, const struct sequence *seq)
{
    struct serve *serve = context;
    Helm__V1__Done done = HELM__V1__DONE__INIT;
    Helm__V1__Usage usage = HELM__V1__USAGE__INIT;
    Helm__V1__Timings timings;
    sequence_timings(seq, units_now_us(), &timings);
    usage.prompt_tokens = seq->prompt_count;
    usage.completion_tokens = sequence_output_count(seq);
    usage.cached_tokens = seq->found;
    usage.drafted_tokens = seq->drafted;
    usage.accepted_tokens = seq->accepted;
    if (seq->with_drafts_s > 0) usage.draft_gain = seq->without_drafts_s / seq->with_drafts_s;
    done.id = seq->id;
    done.finish_reason = seq->finish;
    done.usage = &usage;
    done.timings = &timings;
    done.seed = seq->sampling.seed;
    done.detail = (char *)seq->detail;
    Helm__V1__Embedding embedding = HELM__V1__EMBEDDING__INIT;
    embedding.id = seq->id;
    embedding.n_values = serve->model->config.hidden;
    embedding.values = seq->embedding;
    embedding.usage = &usage;
    embedding.timings = &timings;
    const int rc = seq->embedding
                       ? serve_send(serve, asker_of(seq), HELM__V1__RESPONSE__BODY_EMBEDDING, &embedding)
                       : serve_send(serve, asker_of(seq), HELM__V1__RESPONSE__BODY_DONE, &done);
    if (rc)
        log_debug("request %llu ended (%s); its client was not told", (unsigned long long)seq->id,
                  seq->detail);
    client_socket_release(serve->clients, seq->client);
}

void serve_moved(void *context)
{
    struct serve *serve = context;
    sessions_moved(serve->sessions, units_now_us());
}

/* ---- handlers ----------------------------------------------------------------------------------------- */

bool serve_is_open(struct serve *serve, struct asker asker)
{
    const char *why = NULL;
    if (serve->draining)
        why = "the daemon is going down";
    else if (serve->checking || !serve->workers->ever_ready)
        why = serve->workers->ever_ready ? "the model is being checked" : "the model is still loading";
    if (why) serve_error(serve, asker, HELM__V1__ERROR_CODE__ERROR_NOT_READY, why);
    return !why;
}

static void on_generate(struct serve *serve, struct asker asker, struct request *request)
{
    struct helm_err err = {0};
    if (!serve_is_open(serve, asker)) return;
    if (batcher_find_request(serve->batcher, asker.client, asker.request_id)) {
        serve_error(serve, asker, HELM__V1__ERROR_CODE__ERROR_DUPLICATE,
                    "a request with this request_id is open already");
        return;
    }
    const struct sequence *seq;
    int rc = batcher_submit(serve->batcher, &request->generate, &asker, units_now_us(), &seq, &err);
    if (rc) {
        serve_error(serve, asker,
                    rc == HELM_E_BUSY ? HELM__V1__ERROR_CODE__ERROR_BUSY : HELM__V1__ERROR_CODE__ERROR_FAILED,
                    err.text);
        return;
    }
    client_socket_retain(serve->clients, asker.client);
    Helm__V1__Accepted accepted = HELM__V1__ACCEPTED__INIT;
    accepted.id = seq->id;
    accepted.queue_position = batcher_queue_position(serve->batcher, seq);
    if (serve_send(serve, asker, HELM__V1__RESPONSE__BODY_ACCEPTED, &accepted))
        batcher_cancel_client(serve->batcher, asker.client, "the client does not read its answers");
}

/* Requests belong to their peer: another user, or another key, neither sees nor cancels them. A gateway that
 * asks for none of its users may touch the requests of each. */
static bool may_touch(struct asker asker, const struct sequence *seq)
{
    return asker.admin || asker.peer == seq->peer || asker.peer == seq->sender;
}

/* The answer to Cancel is the cancelled request's Done, at its own sender; Cancel's sender gets Accepted. */
static void on_cancel(struct serve *serve, struct asker asker, struct request *request)
{
    const struct sequence *seq =
        request->cancel_id ? batcher_find(serve->batcher, request->cancel_id)
                           : batcher_find_request(serve->batcher, asker.client, request->cancel_request_id);
    const uint64_t id = seq && may_touch(asker, seq) ? seq->id : 0;
    char text[128];
    if (!id || batcher_cancel(serve->batcher, id, "cancelled on request")) {
        snprintf(text, sizeof text, "no open request%s has %s %llu", asker.admin ? "" : " of yours",
                 request->cancel_id ? "id" : "request_id",
                 (unsigned long long)(request->cancel_id ? request->cancel_id : request->cancel_request_id));
        serve_error(serve, asker, HELM__V1__ERROR_CODE__ERROR_NOT_FOUND, text);
        return;
    }
    Helm__V1__Accepted accepted = HELM__V1__ACCEPTED__INIT;
    accepted.id = id;
    serve_answer(serve, asker, HELM__V1__RESPONSE__BODY_ACCEPTED, &accepted);
}

static void on_mask(struct serve *serve, struct asker asker, struct request *request)
{
    batcher_take_mask(serve->batcher, &asker, &request->mask, request->mask_index, NULL, units_now_us());
}

static void on_resume(struct serve *serve, struct asker asker, struct request *request)
{
    batcher_resume(serve->batcher, &asker, &request->resume, NULL);
}

static void on_status(struct serve *serve, struct asker asker, struct request *request)
{
    (void)request;
    struct serve_status status;
    serve_status_fill(&status, serve, units_now_us());
    status.status.names_users = asker.names_users;
    serve_answer(serve, asker, HELM__V1__RESPONSE__BODY_STATUS, &status.status);
}

static void on_model_info(struct serve *serve, struct asker asker, struct request *request)
{
    (void)request;
    const struct model_config *c = &serve->model->config;
    Helm__V1__ModelInfo info = HELM__V1__MODEL_INFO__INIT;
    uint32_t eos[MODEL_EOS_MAX];
    info.folder = serve->model->path; /* clients find the tokenizer there */
    info.architecture = (char *)c->architecture;
    info.layers = c->layers;
    info.hidden = c->hidden;
    info.intermediate = c->intermediate;
    info.heads = c->heads;
    info.kv_heads = c->kv_heads;
    info.head_dim = c->head_dim;
    info.vocab = c->vocab;
    info.context = serve->context;
    info.model_context = c->max_context;
    info.weight_bytes = serve->model->weight_bytes;
    info.parameters = serve->model->parameter_count;
    info.dtype = (char *)dtype_name(c->dtype);
    for (uint32_t i = 0; i < c->eos_count; i++) eos[i] = (uint32_t)c->eos[i];
    info.n_eos = c->eos_count;
    info.eos = eos;
    info.bos = c->bos;
    serve_answer(serve, asker, HELM__V1__RESPONSE__BODY_MODEL_INFO, &info);
}

static void on_plan(struct serve *serve, struct asker asker, struct request *request)
{
    (void)request;
    struct serve_plan plan;
    const struct serve_plan_shape shape = {serve->forecast_batch, serve->forecast_context,
                                           serve->forecast_prompt};
    serve_plan_fill(&plan, serve->observe, serve->plan_json, &shape);
    plan.plan.now = (char *)serve->now;
    serve_plan_experts(&plan, serve->batcher->with.plan, serve->batcher->with.arena);
    serve_answer(serve, asker, HELM__V1__RESPONSE__BODY_PLAN, &plan.plan);
    free(plan.expert_uses);
}

static void on_list(struct serve *serve, struct asker asker, struct request *request)
{
    (void)request;
    const struct batcher *batcher = serve->batcher;
    uint64_t now_us = units_now_us();
    Helm__V1__List list = HELM__V1__LIST__INIT;
    Helm__V1__ListEntry *entries = calloc(batcher->seq_count + 1, sizeof *entries);
    Helm__V1__ListEntry **pointers = calloc(batcher->seq_count + 1, sizeof *pointers);
    if (entries && pointers) {
        for (uint32_t i = 0; i < batcher->seq_count; i++) {
            const struct sequence *seq = batcher->seq[i];
            if (seq->again) continue;
            if (!may_touch(asker, seq)) {
                list.others++;
                continue;
            }
            Helm__V1__ListEntry *entry = &entries[list.n_entries];
            helm__v1__list_entry__init(entry);
            entry->id = seq->id;
            const bool stalls = seq->slot != SEQUENCE_NO_SLOT && workers_stall(serve->workers);
            entry->state = stalls ? (char *)"stalled" : (char *)sequence_state_name(seq);
            entry->label = (char *)seq->label;
            entry->user = (char *)seq->user;
            entry->prompt_tokens = seq->prompt_count;
            /* the KV cache holds the answer's tokens, too */
            entry->prefilled_tokens = seq->cached < seq->prompt_count ? seq->cached : seq->prompt_count;
            entry->output_tokens = sequence_output_count(seq);
            entry->max_tokens = seq->max_tokens;
            entry->age_ms = (now_us - seq->arrived_us) / 1000;
            pointers[list.n_entries++] = entry;
        }
        list.entries = pointers;
        serve_answer(serve, asker, HELM__V1__RESPONSE__BODY_LIST, &list);
    } else {
        serve_error(serve, asker, HELM__V1__ERROR_CODE__ERROR_FAILED, "no memory for the list");
    }
    free(entries);
    free(pointers);
}

static void (*const handlers[])(struct serve *serve, struct asker asker, struct request *request) = {
    [REQUEST_GENERATE] = on_generate,
    [REQUEST_CANCEL] = on_cancel,
    [REQUEST_RESUME] = on_resume,
    [REQUEST_STATUS] = on_status,
    [REQUEST_MODEL_INFO] = on_model_info,
    [REQUEST_PLAN] = on_plan,
    [REQUEST_LIST] = on_list,
    [REQUEST_MASK] = on_mask,
    [REQUEST_EMBED] = on_generate,
    [REQUEST_SESSION_SAVE] = serve_session_save,
    [REQUEST_SESSION_RESTORE] = serve_session_restore,
    [REQUEST_SESSION_READ] = serve_session_read,
    [REQUEST_SESSION_WRITE] = serve_session_write,
    [REQUEST_SESSION_END] = serve_session_end,
};

void serve_frame(struct serve *serve, const struct client_frame *frame)
{
    if (frame->too_many_parts) {
        serve_error(serve, (struct asker){.client = frame->client}, HELM__V1__ERROR_CODE__ERROR_MALFORMED,
                    "a message is one frame, after an empty one at most");
        return;
    }
    struct request request;
    struct request_error error;
    const struct request_limits limits = {.vocab = serve->model->config.vocab,
                                          .context = serve->context,
                                          .draft_tokens = serve->batcher->with.plan->draft_tokens,
                                          .draft_layers = serve->batcher->with.plan->draft_layers,
                                          .draft_model = serve->batcher->with.drafter != NULL,
                                          .names_users = frame->names_users};
    int rc = request_parse(frame->data, frame->size, &limits, &request, &error);
    struct asker asker = {.client = frame->client,
                          .request_id = request.request_id,
                          .sender = frame->peer,
                          .peer = frame->peer,
                          .user = request.user,
                          .admin = frame->admin,
                          .names_users = frame->names_users};
    if (*request.user) { /* has that user's rights, whatever the sender's are */
        asker.peer = client_socket_named(serve->clients, frame->peer, request.user);
        asker.admin = false;
    }
    if (rc && request.kind == REQUEST_MASK) /* has no answer of its own: its request ends */
        batcher_take_mask(serve->batcher, &asker, &request.mask, 0, error.text, units_now_us());
    else if (rc && request.kind == REQUEST_RESUME)
        batcher_resume(serve->batcher, &asker, &request.resume, error.text);
    else if (rc)
        serve_error(serve, asker, error.code, error.text);
    else
        handlers[request.kind](serve, asker, &request);
    request_free(&request);
}

const char *serve_state_name(const struct serve *serve)
{
    if (serve->draining) return "draining";
    if (serve->checking) return "loading";
    if (workers_ready(serve->workers)) return "ready";
    return serve->workers->ever_ready ? "restarting" : "loading";
}
