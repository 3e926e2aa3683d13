/* One request's generations: sent, followed, ended. See exchange.h.
 *
 * Callbacks of libhelm come from inside helm_dispatch; they only write and wake, so that libmicrohttpd runs
 * afterwards. */
#include <stdio.h>
#include <stdlib.h>

#include "client/gateway/gateway.h"
#include "client/gateway/grammars.h"
#include "client/gateway/jobs.h"
#include "client/gateway/routes.h"
#include "common/base/log.h"
#include "common/base/units.h"

#define END_BYTES     ((size_t)64 << 10) /* a longer end is written in a thread: half a millisecond */
#define LOGPROB_BYTES 80                 /* of a token with its probability, about */
#define NUMBER_BYTES  13                 /* of a number of an embedding */

void exchange_answer(struct exchange *ex, int status, const char *type, struct cli_text *out)
{
    ex->status = status;
    ex->type = type;
    if (out != &ex->out) {
        cli_text_free(&ex->out);
        ex->out = *out;
        *out = (struct cli_text){0};
    }
    ex->over = true;
    ex->state = EXCHANGE_ANSWER;
    exchange_wake(ex);
}

void exchange_refuse(struct exchange *ex)
{
    if (ex->state == EXCHANGE_ANSWER) { /* a stream has begun: its status is written */
        if (ex->over || ex->dropped) return;
        ex->route->voice->fail(ex);
        ex->over = true;
        exchange_wake(ex);
        return;
    }
    struct cli_text out = {0};
    (ex->route->error ? ex->route->error : voice_error_openai)(&out, &ex->refusal);
    exchange_answer(ex, ex->refusal.status, JSON_TYPE, &out);
}

/* ---- generations ------------------------------------------------------------------------------------ */

/* Ends what the daemon is still doing for it; its last word is not waited for. */
static void cancel(struct choice *c)
{
    struct helm_client *client = c->exchange->gateway->cli.client;
    struct helm_err err = {0};
    if (!c->number || !client) return;
    if (helm_cancel(client, c->number, &err) < 0) log_debug("%s: %s", c->exchange->id, err.text);
}

static void cancel_all(struct exchange *ex)
{
    for (uint32_t i = 0; i < ex->choice_count; i++) cancel(&ex->choices[i]);
}

void exchange_fail(struct exchange *ex, int code, const char *text)
{
    if (!ex->refusal.status) refuse_err(&ex->refusal, NULL, code, text);
    cancel_all(ex);
    exchange_refuse(ex);
}

void exchange_broken(struct choice *c, const char *what, const struct helm_done *done)
{
    const bool failed = done->finish == HELM_FINISH_ERROR;
    char text[HELM_ERR_TEXT];
    snprintf(text, sizeof text, "the %s %s%s%s", what, failed ? "failed" : "was cancelled",
             *done->detail ? ": " : "", done->detail);
    exchange_fail(c->exchange, failed ? HELM_E_INTERNAL : HELM_E_CANCELLED, text);
}

void exchange_label(const struct exchange *ex, char label[ASK_LABEL + 1])
{
    snprintf(label, ASK_LABEL + 1, "gateway%s%.48s", *ex->ask.label ? ":" : "", ex->ask.label);
}

static void note_end(struct exchange *ex)
{
    struct metrics *m = &ex->gateway->metrics;
    m->prompt_tokens += voice_prompt_tokens(ex);
    m->completion_tokens += voice_completion_tokens(ex);
    if (ex->ask.kind & ASK_BATCHES) return; /* no generation */
    metrics_observe(&m->duration, (double)(units_now_us() - ex->begin_us) * 1e-6);
}

/* About as many bytes as its voice writes at the end. */
static size_t end_bytes(const struct exchange *ex)
{
    const struct ask *ask = &ex->ask;
    size_t bytes = ask->echo_bytes;
    for (uint32_t i = 0; i < ex->choice_count; i++) {
        const struct choice *c = &ex->choices[i];
        bytes += c->text.length + c->thought.length + c->embedding_count * NUMBER_BYTES;
        if (ask->logprobs) bytes += c->token_count * (1 + ask->top_logprobs) * LOGPROB_BYTES;
        for (size_t k = 0; k < c->call_count; k++) bytes += c->calls[k].arguments.length;
    }
    return bytes;
}

static void write_end(struct exchange *ex)
{
    const struct voice *voice = ex->route->voice;
    if (!ex->streams) {
        voice->whole(ex);
        return;
    }
    voice->delta(ex, ex->last);
    voice->finish(ex, ex->last);
    if (voice->end) voice->end(ex);
}

/* The end is written. */
static void end_answer(struct exchange *ex)
{
    if (!ex->streams) {
        exchange_answer(ex, 200, JSON_TYPE, &ex->out);
        return;
    }
    ex->state = EXCHANGE_ANSWER;
    ex->over = true;
    exchange_wake(ex);
}

/* A choice is over: the stream's last words, or the whole answer. */
void exchange_finished(struct choice *c)
{
    struct exchange *ex = c->exchange;
    const struct voice *voice = ex->route->voice;
    if (++ex->finished < ex->choice_count) {
        if (!ex->streams) return;
        voice->delta(ex, c);
        voice->finish(ex, c);
        exchange_wake(ex);
        return;
    }
    note_end(ex);
    ex->last = c;
    ex->writes = end_bytes(ex) > END_BYTES;
    if (!ex->writes) {
        write_end(ex);
        end_answer(ex);
    } else if (ex->streams) { /* server.c hands it to a thread when all that there is was fetched */
        ex->over_us = units_now_us();
        exchange_wake(ex);
    } else {
        ex->state = EXCHANGE_WORK;
        jobs_push(ex->gateway->jobs, ex);
    }
}

void exchange_work(struct exchange *ex)
{
    (ex->writes ? write_end : ex->route->work)(ex);
}

/* The daemon took them all: a stream's head may be sent. */
static void begin_stream(struct exchange *ex)
{
    if (!ex->ask.stream || ex->streams) return;
    ex->streams = true;
    ex->spoke_us = units_now_us();
    ex->status = 200;
    ex->type = ex->route->voice->stream_type;
    ex->state = EXCHANGE_ANSWER;
    const struct voice *voice = ex->route->voice;
    if (voice->begin) voice->begin(ex);
    for (uint32_t i = 0; i < ex->choice_count;
         i++) { /* the first may have come far before the last was taken */
        voice->delta(ex, &ex->choices[i]);
        if (ex->choices[i].over) voice->finish(ex, &ex->choices[i]);
    }
    exchange_wake(ex);
}

static void on_accepted(void *user, uint64_t request, uint64_t id, uint32_t queue_position)
{
    struct choice *c = user;
    (void)request;
    (void)id;
    (void)queue_position;
    if (c->accepted) return;
    c->accepted = true;
    if (++c->exchange->accepted == c->exchange->choice_count && !c->exchange->over) begin_stream(c->exchange);
}

static void on_token(void *user, uint64_t request, const struct helm_token *token)
{
    struct choice *c = user;
    struct exchange *ex = c->exchange;
    (void)request;
    if (c->over || ex->over || ex->dropped) return;
    if (!ex->first_us) {
        ex->first_us = units_now_us();
        metrics_observe(&ex->gateway->metrics.first_token, (double)(ex->first_us - ex->begin_us) * 1e-6);
    }
    if (!choice_take(c, token) || ex->out.failed) {
        exchange_fail(ex, HELM_E_NOMEM, "no memory for the answer");
        return;
    }
    if (c->over) {
        cancel(c);
        exchange_finished(c);
    } else if (ex->streams) {
        ex->route->voice->delta(ex, c);
        if (!ex->unread_us && ex->out.length > ex->sent) ex->unread_us = units_now_us();
        exchange_wake(ex);
    }
    if (ex->out.length - ex->sent > GATEWAY_BACKLOG_MAX && ex->streams) {
        ex->gateway->metrics.slow_dropped++;
        exchange_drop(ex, "the client reads too slowly");
    }
}

static void on_done(void *user, uint64_t request, const struct helm_done *done)
{
    struct choice *c = user;
    (void)request;
    choice_closed(c);
    if (c->over || c->exchange->over || c->exchange->dropped) return;
    c->reported = true;
    c->cached_tokens = done->cached_tokens;
    c->drafted_tokens = done->drafted_tokens;
    c->accepted_tokens = done->accepted_tokens;
    if (done->finish == HELM_FINISH_ERROR || done->finish == HELM_FINISH_CANCELLED) {
        exchange_broken(c, "generation", done);
        return;
    }
    choice_finish(c, done->finish);
    exchange_finished(c);
}

void exchange_on_error(void *user, uint64_t request, int code, const char *text)
{
    struct choice *c = user;
    (void)request;
    choice_closed(c);
    if (c->over || c->exchange->over || c->exchange->dropped) return;
    exchange_fail(c->exchange, code, text);
}

static int send_choice(struct choice *c, struct helm_err *err)
{
    const struct ask *ask = &c->exchange->ask;
    const struct ask_model *model = &c->exchange->gateway->model;
    char label[ASK_LABEL + 1];
    exchange_label(c->exchange, label);
    struct helm_generate_request what = {
        .prompt = ask->prompt[c->prompt].ids,
        .prompt_count = ask->prompt[c->prompt].count,
        .marks = ask->prompt[c->prompt].marks,
        .mark_count = ask->prompt[c->prompt].mark_count,
        .prediction = ask->prediction.data,
        .prediction_count = ask->prediction.count,
        .max_tokens = ask->max_tokens,
        .sampling = ask->sampling,
        .stop_tokens = model->ends.ids, /* a grammar's vocabulary has them as ends, too */
        .stop_count = ask->ignore_eos ? 0 : model->ends.count,
        .logprobs = !ask->logprobs      ? 0
                    : ask->top_logprobs ? ask->top_logprobs
                                        : 1,
        .ignore_eos = ask->ignore_eos,
        .deadline_ms = model->answer_ms,
        .label = label,
        .grammar = ask->grammar ? ask->grammar->grammar : NULL,
        .user = gateway_user(c->exchange),
    };
    /* with a seed each of several answers is another one, and the same one next time */
    what.sampling.seed += c->index % ask->choices;
    const struct helm_callbacks callbacks = {.accepted = on_accepted,
                                             .token = on_token,
                                             .done = on_done,
                                             .error = exchange_on_error};
    int rc = choice_open(c, err);
    if (rc == 0)
        rc = helm_generate(c->exchange->gateway->cli.client, &what, &callbacks, c, 0, &c->number, err);
    if (rc == 0) choice_opened(c);
    return rc;
}

void exchange_informed(struct exchange *ex)
{
    if (ex->gone)
        exchange_drop(ex, "the client went away");
    else if (ex->route->work)
        jobs_push(ex->gateway->jobs, ex);
    else
        ex->route->reply(ex);
}

void exchange_start(struct exchange *ex)
{
    struct helm_err err = {0};
    if (ex->writes) {
        ex->writes = false;
        if (ex->gone)
            exchange_drop(ex, "the client went away");
        else
            end_answer(ex);
        return;
    }
    bodies_free(ex);
    if (ex->gone) {
        exchange_drop(ex, "the client went away");
        return;
    }
    if (ex->refusal.status) {
        exchange_refuse(ex);
        return;
    }
    if (*ex->ask.ignored) log_debug("%.8s ignored: %s", ex->id, ex->ask.ignored);
    if (!ex->route->voice) { /* the thread wrote the answer */
        exchange_answer(ex, 200, ex->type ? ex->type : JSON_TYPE, &ex->out);
        return;
    }
    ex->state = EXCHANGE_ASKED;
    ex->choice_count = ex->ask.load_only ? 0 : (uint32_t)ex->ask.prompt_count * ex->ask.choices;
    ex->choices = calloc(ex->choice_count ? ex->choice_count : 1, sizeof *ex->choices);
    int rc = ex->choices ? 0 : helm_fail(&err, HELM_E_NOMEM, "no memory for the answer");
    const uint32_t at_once = ex->ask.kind & ASK_BATCHES && ex->choice_count > EMBEDDING_AT_ONCE
                                 ? EMBEDDING_AT_ONCE
                                 : ex->choice_count;
    if (rc == 0 && !ex->gateway->cli.client) rc = helm_fail(&err, HELM_E_PEER, "helmd is not there");
    if (rc == 0) rc = users_check_generations(&ex->gateway->users, ex->whose, at_once, &err);
    if (rc == 0 && ex->choice_count == 0) {
        ex->route->voice->whole(ex);
        exchange_answer(ex, 200, JSON_TYPE, &ex->out);
        return;
    }
    if (rc < 0) ex->choice_count = 0;
    for (uint32_t i = 0; i < ex->choice_count; i++)
        ex->choices[i] = (struct choice){.exchange = ex, .index = i, .prompt = i / ex->ask.choices};
    if (rc == 0 && ex->ask.kind & ASK_BATCHES) rc = embedding_send(ex, &err);
    const uint32_t generated = ex->ask.kind & ASK_BATCHES ? 0 : ex->choice_count;
    for (uint32_t i = 0; rc == 0 && i < generated; i++) rc = send_choice(&ex->choices[i], &err);
    if (rc < 0) exchange_fail(ex, rc, err.text);
}

void exchange_drop(struct exchange *ex, const char *why)
{
    if (ex->dropped) return;
    log_debug("%s: %s", ex->id, why);
    cancel_all(ex);
    ex->dropped = ex->over = true;
    ex->state = EXCHANGE_ANSWER;
    exchange_wake(ex);
}

void exchange_free(struct exchange *ex)
{
    struct helm_client *client = ex->gateway->cli.client;
    struct helm_err err = {0};
    for (uint32_t i = 0; i < ex->choice_count; i++) {
        struct choice *c = &ex->choices[i];
        if (c->number && client) {
            cancel(c);
            (void)!helm_abandon(client, c->number, &err); /* not from a callback: libmicrohttpd called */
        }
        choice_closed(c);
        choice_free(c);
    }
    free(ex->choices);
    ask_free(&ex->ask);
    bodies_free(ex);
    cli_text_free(&ex->out);
    for (unsigned i = 0; i < INQUIRY_QUESTIONS; i++) inquiry_give_back(ex->facts[i]);
    users_leave(&ex->gateway->users, ex->whose);
    free(ex);
}
