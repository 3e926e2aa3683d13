/* Runs one generation and shows it. See stream.h.
 *
 * The library's callbacks collect; the loop below waits for the connection and for signals, prints, and
 * cancels. After a stop text was found or a signal came, further tokens are ignored and the loop only waits,
 * not for ever, for the daemon's last word, for its timings. Owns the detokenizer; the result belongs to the
 * caller. */
#include "client/cli/stream.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "client/text/stop_text.h"
#include "common/base/grow.h"
#include "common/base/printable.h"
#include "common/base/units.h"

/* The longest wait for Done after a cancel. A cancel takes effect when the step under way ends, and a step of
 * a long prompt may take longer than a user wants to wait. */
#define CANCEL_WAIT_MS 5000

struct stream {
    struct cli *cli;
    const struct stream_request *request;
    struct stream_result *result;
    struct helm_detokenizer *detokenizer;
    uint64_t number;
    struct answer *answer; /* NULL: text is shown as it is */
    bool thinking;         /* the kind shown last */
    size_t printed;        /* bytes of result.text on standard output */
    bool over;             /* done or error came */
    bool ended;            /* by us: later tokens are not part of the result */
    bool stopped;          /* a stop text was found */
    struct helm_err err;
};

static void fail(struct stream *s, const struct helm_err *err)
{
    if (s->err.code == 0) s->err = *err;
    s->ended = true;
}

/* ---- text -------------------------------------------------------------------------------------------- */

/* Whole characters: neither the detokenizer nor a stop text ends inside one. */
static int print_text(struct stream *s, const char *text, size_t length, struct helm_err *err)
{
    struct present *present = s->request->present;
    struct cli_text shown = {0};
    if (!present) return cli_show(text, length, s->cli->raw, err);
    if (s->cli->raw || !isatty(STDOUT_FILENO)) return present_add(present, text, length, err);
    cli_text_shown(&shown, text, length);
    int rc = cli_text_check(&shown, err);
    if (rc == 0) rc = present_add(present, shown.data, shown.length, err);
    cli_text_free(&shown);
    return rc;
}

/* Takes what the detokenizer gave, looks for stop texts, prints what is safe. */
static void add_text(struct stream *s, const char *data, size_t length, bool last)
{
    struct cli_text *text = &s->result->text;
    const struct stop_texts stop = {s->request->options->stop.item, s->request->options->stop.count};
    struct helm_err err = {0};
    cli_text_add(text, data, length);
    if (cli_text_check(text, &err)) {
        fail(s, &err);
        return;
    }
    size_t cut = stop_text_find(&stop, text->data, text->length, s->printed);
    size_t safe = text->length;
    if (cut != SIZE_MAX) {
        text->length = safe = cut;
        text->data[cut] = 0;
        s->stopped = s->ended = true;
    } else if (!last) {
        safe -= stop_text_held(&stop, text->data, text->length, s->printed);
    }
    if (safe > s->printed && s->request->print == STREAM_PRINT_TEXT) {
        if (print_text(s, text->data + s->printed, safe - s->printed, &err) < 0) fail(s, &err);
    }
    if (safe > s->printed) s->printed = safe;
}

/* Parts of an answer whose family has other marks for thinking than <think>, which is shown for them. */
static void take_part(void *user, enum answer_event event, const char *data, size_t length)
{
    static const char open[] = "<think>\n", close[] = "\n</think>\n\n";
    struct stream *s = user;
    const bool thought = event == ANSWER_THOUGHT;
    if (s->ended || (event != ANSWER_TEXT && !thought)) return;
    if (thought && !s->thinking) add_text(s, open, sizeof open - 1, false);
    if (!thought && s->thinking) add_text(s, close, sizeof close - 1, false);
    s->thinking = thought;
    if (!thought) cli_text_add(&s->result->said, data, length);
    if (!s->ended) add_text(s, data, length, false);
}

/* Takes the detokenizer's text. */
static void take_text(struct stream *s, const char *data, size_t length)
{
    if (s->answer)
        answer_push(s->answer, data, length);
    else
        add_text(s, data, length, false);
}

/* A special token that divides the parts of an answer is not left out of it. */
static bool take_marker(struct stream *s, uint32_t token)
{
    size_t length = 0;
    if (!s->answer || !helm_tokenizer_is_special(s->cli->tok, token)) return false;
    const char *text = helm_tokenizer_id_to_token(s->cli->tok, token, &length);
    if (!text || !reasoning_has_token(s->request->tags, text)) return false;
    take_text(s, text, length);
    return true;
}

static int open_answer(struct stream *s, struct helm_err *err)
{
    const struct reasoning_tags *tags = s->request->tags;
    const struct answer_wish wish = {.tags = tags, .at = s->request->at};
    if (!tags || s->request->options->show_special || (tags->open && strcmp(tags->open, "<think>") == 0))
        return 0;
    s->answer = answer_open(&wish, take_part, s);
    s->result->has_parts = true;
    return s->answer ? 0 : helm_fail(err, HELM_E_NOMEM, "no memory for an answer");
}

/* ---- callbacks -------------------------------------------------------------------------------------- */

static void on_accepted(void *user, uint64_t number, uint64_t id, uint32_t queue_position)
{
    struct stream *s = user;
    (void)number;
    (void)queue_position;
    s->result->id = id;
}

static int keep_token(struct stream_result *r, const struct helm_token *token, struct helm_err *err)
{
    size_t space = r->token_space; /* of both lists */
    bool room =
        GROW(r->logprob_counts, r->token_count, space) && GROW(r->tokens, r->token_count, r->token_space);
    for (size_t i = 0; room && i < token->top_count; i++) {
        room = GROW(r->logprobs, r->logprob_count, r->logprob_space);
        if (room) r->logprobs[r->logprob_count++] = token->top[i];
    }
    if (!room) return helm_fail(err, HELM_E_NOMEM, "no memory for the output");
    r->logprob_counts[r->token_count] = (uint32_t)token->top_count;
    r->tokens[r->token_count++] = token->token;
    return 0;
}

static void on_token(void *user, uint64_t number, const struct helm_token *token)
{
    struct stream *s = user;
    struct helm_err err = {0};
    (void)number;
    if (s->ended) return;
    s->result->id = token->id;
    if (keep_token(s->result, token, &err) < 0) {
        fail(s, &err);
        return;
    }
    if (take_marker(s, token->token)) return;
    if (s->detokenizer) {
        const char *text = NULL;
        size_t length = 0;
        if (helm_detokenizer_push(s->detokenizer, token->token, &text, &length, &err) < 0)
            fail(s, &err);
        else
            take_text(s, text, length);
    } else if (s->request->print == STREAM_PRINT_TEXT) {
        char digits[16];
        int n = snprintf(digits, sizeof digits, "%s%u", s->result->token_count > 1 ? " " : "", token->token);
        if (cli_write(digits, (size_t)n, &err) < 0) fail(s, &err);
    }
}

static void print_cut(const char *detail)
{
    char shown[512];
    printable(shown, sizeof shown, detail);
    fprintf(stderr, "cut: %s\n", shown);
}

static void on_done(void *user, uint64_t number, const struct helm_done *done)
{
    struct stream *s = user;
    (void)number;
    s->over = true;
    s->result->reported = true;
    s->result->id = done->id;
    s->result->prompt_tokens = done->prompt_tokens;
    s->result->cached_tokens = done->cached_tokens;
    s->result->drafted_tokens = done->drafted_tokens;
    s->result->accepted_tokens = done->accepted_tokens;
    s->result->draft_gain = done->draft_gain;
    s->result->timings = done->timings;
    s->result->finish = helm_finish_name(done->finish);
    if (s->ended) return;
    if (done->finish == HELM_FINISH_LENGTH && *done->detail) print_cut(done->detail);
    if (done->finish == HELM_FINISH_ERROR || done->finish == HELM_FINISH_CANCELLED)
        helm_fail(&s->err, done->finish == HELM_FINISH_ERROR ? HELM_E_INTERNAL : HELM_E_CANCELLED,
                  "request %llu %s%s%s", (unsigned long long)done->id,
                  done->finish == HELM_FINISH_ERROR ? "failed" : "was cancelled", *done->detail ? ": " : "",
                  done->detail);
}

static void on_error(void *user, uint64_t number, int code, const char *text)
{
    struct stream *s = user;
    (void)number;
    s->over = true;
    if (s->err.code == 0) helm_fail(&s->err, code, "%s", text);
}

/* ---- the loop --------------------------------------------------------------------------------------- */

static int send_request(struct stream *s, struct helm_err *err)
{
    const struct sampling_options *o = s->request->options;
    const struct helm_generate_request what = {
        .prompt = s->request->prompt,
        .prompt_count = s->request->prompt_count,
        .marks = s->request->marks,
        .mark_count = s->request->mark_count,
        .max_tokens = (uint32_t)o->max_tokens,
        .sampling = {.temperature = (float)o->temperature,
                     .top_k = (uint32_t)o->top_k,
                     .top_p = (float)o->top_p,
                     .min_p = (float)o->min_p,
                     .repetition_penalty = (float)o->repetition_penalty,
                     .presence_penalty = (float)o->presence_penalty,
                     .frequency_penalty = (float)o->frequency_penalty,
                     .has_seed = o->has_seed,
                     .seed = o->seed},
        .stop_tokens = s->request->ends ? s->request->ends->ids : NULL,
        .stop_count = s->request->ends && !o->ignore_eos ? s->request->ends->count : 0,
        .logprobs = (uint32_t)o->logprobs,
        .ignore_eos = o->ignore_eos,
        .speculate = sampling_speculate(o),
        .label = s->request->label,
        .grammar = s->request->grammar,
    };
    const struct helm_callbacks callbacks = {.accepted = on_accepted,
                                             .token = on_token,
                                             .done = on_done,
                                             .error = on_error};
    return helm_generate(s->cli->client, &what, &callbacks, s, 0, &s->number, err);
}

/* Waits for the daemon and for signals until the request is over, or was ended by us and the daemon does not
 * confirm it in time. */
static int watch(struct stream *s, struct helm_err *err)
{
    uint64_t cancel_until = 0;
    while (!s->over) {
        if (s->ended && !cancel_until) {
            int rc = helm_cancel(s->cli->client, s->number, err);
            if (rc < 0) return rc;
            cancel_until = units_now_us() + (uint64_t)CANCEL_WAIT_MS * 1000;
        }
        uint64_t now = units_now_us();
        if (cancel_until && now >= cancel_until) return 0;
        struct pollfd p[2] = {{.fd = helm_client_fd(s->cli->client), .events = POLLIN},
                              {.fd = s->cli->signal_fd, .events = POLLIN}};
        int wait_ms = cancel_until ? (int)((cancel_until - now) / 1000 + 1) : -1;
        if (poll(p, 2, wait_ms) < 0 && errno != EINTR) return helm_fail_errno(err, "waiting for the daemon");
        int signal_number = p[1].revents ? cli_take_signal(s->cli) : 0;
        if (signal_number) {
            s->result->signal_number = signal_number;
            s->ended = true;
        }
        int rc = helm_dispatch(s->cli->client, 0, err);
        if (rc < 0 && !s->over) return rc;
    }
    return 0;
}

/* Takes the text that the detokenizer still holds, and the text that was held back for a stop text. */
static void finish_text(struct stream *s)
{
    const char *text = "";
    size_t length = 0;
    struct helm_err err = {0};
    if (!s->detokenizer || s->stopped) return;
    if (helm_detokenizer_finish(s->detokenizer, &text, &length, &err) < 0)
        fail(s, &err);
    else
        take_text(s, text, length);
    if (s->answer && !s->ended) answer_finish(s->answer);
    if (s->answer && answer_failed(s->answer))
        fail(s, &(struct helm_err){HELM_E_NOMEM, "no memory for the answer"});
    if (!s->stopped) add_text(s, "", 0, true);
}

int stream_run(struct cli *cli, const struct stream_request *request, struct stream_result *result,
               struct helm_err *err)
{
    struct stream s = {.cli = cli, .request = request, .result = result};
    *result = (struct stream_result){.finish = "error", .prompt_tokens = (uint32_t)request->prompt_count};
    int rc = cli_catch_signals(cli, err);
    if (rc == 0 && request->options->stop.count && !cli->tok)
        rc = helm_fail(err, HELM_E_UNSUPPORTED,
                       "--stop needs a tokenizer, and the model's folder has none or is not on this machine: "
                       "--tokenizer PATH names one");
    for (uint32_t i = 0; rc == 0 && i < request->options->stop.count; i++)
        if (!*request->options->stop.item[i]) rc = helm_fail(err, HELM_E_USAGE, "--stop: the text is empty");
    if (rc == 0 && cli->tok)
        rc = helm_detokenizer_open(cli->tok,
                                   request->options->show_special ? HELM_TOKENIZER_DECODE_ALL
                                                                  : HELM_TOKENIZER_DECODE_SKIP_SPECIAL,
                                   &s.detokenizer, err);
    if (rc == 0 && cli->tok) rc = open_answer(&s, err);
    if (rc == 0) rc = send_request(&s, err);
    if (rc == 0) rc = watch(&s, err);
    /* later messages about it must not find `s`, which ends here */
    if (s.number && !s.over) (void)!helm_abandon(cli->client, s.number, &(struct helm_err){0});
    finish_text(&s);
    struct helm_err shown = {0};
    if (request->present && present_end(request->present, &shown) < 0) fail(&s, &shown);
    if (s.stopped)
        result->finish = "stop";
    else if (result->signal_number)
        result->finish = "cancelled";
    if (s.err.code < 0 && !(s.stopped && s.err.code == HELM_E_CANCELLED)) {
        if (err) *err = s.err;
        rc = s.err.code;
        if (rc != HELM_E_CANCELLED) result->finish = "error";
    }
    helm_detokenizer_close(s.detokenizer);
    answer_close(s.answer);
    return rc;
}

void stream_free(struct stream_result *result)
{
    free(result->tokens);
    free(result->logprobs);
    free(result->logprob_counts);
    cli_text_free(&result->text);
    cli_text_free(&result->said);
    *result = (struct stream_result){0};
}

int stream_exit(const struct stream_result *result)
{
    if (result->signal_number) return CLI_EXIT_SIGNAL + result->signal_number;
    return strcmp(result->finish, "error") == 0 || strcmp(result->finish, "cancelled") == 0 ? CLI_EXIT_FAILED
                                                                                            : CLI_EXIT_DONE;
}

void stream_print_stats(const struct stream_result *result)
{
    const struct helm_timings *t = &result->timings;
    if (!result->reported) {
        fprintf(stderr,
                "[%u prompt tokens, %zu tokens; ended by %s; no timings: the daemon had not ended it yet]\n",
                result->prompt_tokens, result->token_count, result->finish);
        return;
    }
    char cached[48] = "", drafts[80] = "", gain[64] = "";
    if (result->cached_tokens) snprintf(cached, sizeof cached, " (%u of them cached)", result->cached_tokens);
    if (result->drafted_tokens)
        snprintf(drafts, sizeof drafts, ", %llu of %llu drafts right",
                 (unsigned long long)result->accepted_tokens, (unsigned long long)result->drafted_tokens);
    if (result->draft_gain > 0)
        snprintf(gain, sizeof gain, " (%.2f times the forecast without)", result->draft_gain);
    fprintf(stderr,
            "[%u prompt tokens%s at %.0f token/s, first token after %.1f ms; %zu tokens at %.1f token/s%s%s; "
            "ended by %s]\n",
            result->prompt_tokens, cached, t->prefill_tok_s, t->ttft_ms, result->token_count, t->decode_tok_s,
            drafts, gain, result->finish);
}

/* ---- JSON ------------------------------------------------------------------------------------------- */

static void add_logprobs(const struct stream_result *r, struct cli_text *line)
{
    size_t next = 0;
    cli_text_fill(line, "'logprobs':[");
    for (size_t i = 0; r->logprob_count && i < r->token_count; i++) {
        cli_text_fill(line, "[");
        for (uint32_t k = 0; k < r->logprob_counts[i]; k++, next++)
            cli_text_fill(line, "{'token':$,'logprob':$},", JSON(r->logprobs[next].token),
                          JSON(r->logprobs[next].logprob));
        cli_text_fill(line, "],");
    }
    cli_text_fill(line, "],");
}

int stream_print_json(const struct stream_result *r, struct helm_err *err)
{
    struct cli_text line = {0};
    const struct helm_timings *t = &r->timings;
    cli_text_fill(&line, "{'id':$,'tokens':", JSON(r->id));
    cli_text_ids(&line, r->tokens, r->token_count, true);
    cli_text_fill(&line, ",'text':$,'finish_reason':$,", JSON_REST(&r->text, 0), JSON(r->finish));
    add_logprobs(r, &line);
    cli_text_fill(&line, "'usage':{'prompt_tokens':$,'completion_tokens':$,'cached_tokens':$,",
                  JSON(r->prompt_tokens), JSON(r->token_count), JSON(r->cached_tokens));
    if (r->drafted_tokens)
        cli_text_members(&line, JSON_MEMBER(r, drafted_tokens), JSON_MEMBER(r, accepted_tokens));
    if (r->draft_gain > 0) cli_text_fill(&line, "'draft_gain':$", cli_value_fixed(r->draft_gain, 3));
    cli_text_fill(&line, "},'timings':{'ttft_ms':$,'tpot_ms':$,'prefill_tok_s':$,'decode_tok_s':$}}\n",
                  cli_value_fixed(t->ttft_ms, 3), cli_value_fixed(t->tpot_ms, 3),
                  cli_value_fixed(t->prefill_tok_s, 3), cli_value_fixed(t->decode_tok_s, 3));
    int rc = cli_text_write(&line, err);
    cli_text_free(&line);
    return rc;
}
