/* OpenAI's dialect: chat.completion, text_completion and their chunks as server-sent events. See voice.h. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/gateway/gateway.h"
#include "client/gateway/voice.h"
#include "common/base/printable.h"

/* NULL, which is null in JSON, for an empty text. */
static const char *unless_empty(const char *text)
{
    return *text ? text : NULL;
}

void voice_error_openai(struct cli_text *out, const struct refusal *refusal)
{
    const char *type = refusal->status == 429   ? "rate_limit_error"
                       : refusal->status == 401 ? "authentication_error"
                       : refusal->status == 403 ? "permission_error"
                       : refusal->status >= 500 ? "server_error"
                                                : "invalid_request_error";
    cli_text_fill(out, "{'error':{'message':$,'type':$,'param':$,'code':$}}", JSON(refusal->text), JSON(type),
                  JSON(unless_empty(refusal->param)), JSON(unless_empty(refusal->code)));
}

uint32_t voice_prompt_tokens(const struct exchange *ex)
{
    uint32_t sum = 0; /* a prompt counts once, however many answers it has */
    for (size_t i = 0; i < ex->ask.prompt_count; i++) sum += (uint32_t)ex->ask.prompt[i].count;
    return sum;
}

uint32_t voice_completion_tokens(const struct exchange *ex)
{
    uint32_t sum = 0;
    for (uint32_t i = 0; i < ex->choice_count; i++) sum += ex->choices[i].completion_tokens;
    return sum;
}

/* ---- logprobs --------------------------------------------------------------------------------------- */

struct token_text {
    char *bytes;
    size_t length;
};

static struct token_text token_bytes(const struct exchange *ex, uint32_t token)
{
    struct token_text t = {0};
    struct helm_err err = {0};
    if (helm_tokenizer_token_bytes(ex->gateway->model.tokenizer, token, &t.bytes, &t.length, &err) < 0)
        t.bytes = NULL;
    return t;
}

/* A part of a character is shown as U+FFFD; `bytes` has what it is. */
static struct cli_value shown(const struct token_text *t)
{
    const bool whole = t->bytes && utf8_is_valid(t->bytes, t->length);
    return whole ? JSON_BYTES(t->bytes, t->length) : JSON("\xEF\xBF\xBD");
}

static void add_chat_token(struct exchange *ex, uint32_t token, float logprob)
{
    struct cli_text *out = &ex->out;
    struct token_text t = token_bytes(ex, token);
    cli_text_fill(out, "{'token':$,'logprob':$,'bytes':[", shown(&t), JSON(logprob));
    for (size_t i = 0; i < t.length; i++) cli_text_fill(out, "$,", JSON((unsigned char)t.bytes[i]));
    cli_text_fill(out, "],");
    free(t.bytes);
}

void voice_add_tokens(struct exchange *ex, const struct choice *c, size_t from, size_t until)
{
    struct cli_text *out = &ex->out;
    for (size_t at = from; at < until; at++) {
        const struct choice_token *t = c->tokens[at];
        add_chat_token(ex, t->token, t->logprob);
        cli_text_fill(out, "'top_logprobs':[");
        for (uint32_t i = 0; i < t->top_count && i < ex->ask.top_logprobs; i++) {
            add_chat_token(ex, t->top[i].token, t->top[i].logprob);
            cli_text_fill(out, "},");
        }
        cli_text_fill(out, "]},");
    }
}

/* The logprobs of the tokens from tokens_sent to `until`, or null. */
static void add_chat_logprobs(struct exchange *ex, struct choice *c, size_t until)
{
    if (!ex->ask.logprobs) {
        cli_text_fill(&ex->out, "null");
        return;
    }
    cli_text_fill(&ex->out, "{'content':[");
    voice_add_tokens(ex, c, c->tokens_sent, until);
    c->tokens_sent = until;
    cli_text_fill(&ex->out, "],'refusal':null}");
}

static void add_key(struct exchange *ex, uint32_t token)
{
    struct token_text t = token_bytes(ex, token);
    cli_text_fill(&ex->out, "$", shown(&t));
    free(t.bytes);
}

static void add_completion_logprobs(struct exchange *ex, struct choice *c, size_t until)
{
    struct cli_text *out = &ex->out;
    const size_t from = c->tokens_sent;
    if (!ex->ask.logprobs) {
        cli_text_fill(out, "null");
        return;
    }
    cli_text_fill(out, "{'tokens':[");
    for (size_t i = from; i < until; i++) {
        add_key(ex, c->tokens[i]->token);
        cli_text_fill(out, ",");
    }
    cli_text_fill(out, "],'token_logprobs':[");
    for (size_t i = from; i < until; i++) cli_text_fill(out, "$,", JSON(c->tokens[i]->logprob));
    cli_text_fill(out, "],'top_logprobs':[");
    for (size_t i = from; i < until; i++) {
        const struct choice_token *t = c->tokens[i];
        cli_text_fill(out, "{");
        for (uint32_t k = 0; k < t->top_count && k < ex->ask.top_logprobs; k++) {
            add_key(ex, t->top[k].token);
            cli_text_fill(out, ":$,", JSON(t->top[k].logprob));
        }
        cli_text_fill(out, "},");
    }
    cli_text_fill(out, "],'text_offset':[");
    for (size_t i = from; i < until; i++) cli_text_fill(out, "$,", JSON(c->tokens[i]->at));
    cli_text_fill(out, "]}");
    c->tokens_sent = until;
}

/* ---- parts ------------------------------------------------------------------------------------------ */

static void add_head(struct exchange *ex, const char *object)
{
    cli_text_fill(&ex->out, "{'id':'$-$','object':$,'created':$,'model':$,'choices':[",
                  PLAIN(ex->ask.kind == ASK_CHAT ? "chatcmpl" : "cmpl"), PLAIN(ex->id), JSON(object),
                  JSON(ex->created), JSON(ex->gateway->model.name));
}

/* Tokens of the prompts that were not computed, or -1: a stop text ended an answer before the daemon said
 * it. */
static int64_t cached_tokens(const struct exchange *ex)
{
    int64_t sum = 0;
    for (uint32_t i = 0; i < ex->choice_count; i += ex->ask.choices) {
        if (!ex->choices[i].reported) return -1;
        sum += ex->choices[i].cached_tokens;
    }
    return sum;
}

/* The last member of an answer, whose choices are written. */
static void end_with_usage(struct exchange *ex)
{
    struct cli_text *out = &ex->out;
    const uint32_t prompt = voice_prompt_tokens(ex), completion = voice_completion_tokens(ex);
    const int64_t cached = cached_tokens(ex);
    uint64_t drafted = 0, accepted = 0;
    for (uint32_t i = 0; i < ex->choice_count; i++) {
        drafted += ex->choices[i].drafted_tokens;
        accepted += ex->choices[i].accepted_tokens;
    }
    cli_text_fill(out, "],'usage':{'prompt_tokens':$,'completion_tokens':$,'total_tokens':$,", JSON(prompt),
                  JSON(completion), JSON(prompt + completion));
    if (cached >= 0) cli_text_fill(out, "'prompt_tokens_details':{'cached_tokens':$},", JSON(cached));
    if (drafted)
        cli_text_fill(out,
                      "'completion_tokens_details':{'accepted_prediction_tokens':$,"
                      "'rejected_prediction_tokens':$}",
                      JSON(accepted), JSON(drafted - accepted));
    cli_text_fill(out, "}}");
}

/* Nine characters, which Mistral's templates insist on when the id comes back. */
const char *voice_call_id(const struct exchange *ex, const struct choice *c, size_t index, char id[10])
{
    snprintf(id, 10, "%.5s%02x%02x", ex->id, (unsigned)(c->index & 255), (unsigned)(index & 255));
    return id;
}

bool voice_has_new_calls(const struct choice *c)
{
    return c->call_count > c->calls_sent ||
           (c->call_count && c->calls[c->call_count - 1].arguments.length > c->arguments_sent);
}

/* A call whole, or as it begins in a stream. */
static void add_call(struct exchange *ex, const struct choice *c, size_t i, bool indexed)
{
    char id[10];
    cli_text_fill(&ex->out, "{");
    if (indexed) cli_text_fill(&ex->out, "'index':$,", JSON(i));
    cli_text_fill(&ex->out, "'id':$,'type':'function','function':{'name':$,'arguments':$}},",
                  JSON(voice_call_id(ex, c, i, id)), JSON(c->calls[i].name),
                  JSON_REST(&c->calls[i].arguments, 0));
}

/* Adds the new parts of calls: a name at once, arguments as they come. */
static void add_new_calls(struct exchange *ex, struct choice *c)
{
    const struct choice_call *last = c->calls_sent ? &c->calls[c->calls_sent - 1] : NULL;
    cli_text_fill(&ex->out, "'tool_calls':[");
    if (last && last->arguments.length > c->arguments_sent)
        cli_text_fill(&ex->out, "{'index':$,'function':{'arguments':$}},", JSON(c->calls_sent - 1),
                      JSON_REST(&last->arguments, c->arguments_sent));
    for (size_t i = c->calls_sent; i < c->call_count; i++) add_call(ex, c, i, true);
    cli_text_fill(&ex->out, "]");
    c->calls_sent = c->call_count;
    c->arguments_sent = c->calls[c->call_count - 1].arguments.length;
}

static void begin_event(struct exchange *ex)
{
    cli_text_fill(&ex->out, "data: ");
    add_head(ex, ex->ask.kind == ASK_CHAT ? "chat.completion.chunk" : "text_completion");
}

static void end_event(struct exchange *ex)
{
    cli_text_fill(&ex->out, ex->ask.include_usage ? "],'usage':null}\n\n" : "]}\n\n");
}

static void end_stream(struct exchange *ex)
{
    if (ex->ask.include_usage) {
        begin_event(ex);
        end_with_usage(ex);
        cli_text_fill(&ex->out, "\n\n");
    }
    cli_text_fill(&ex->out, "data: [DONE]\n\n");
}

static void fail_stream(struct exchange *ex)
{
    cli_text_fill(&ex->out, "data: ");
    voice_error_openai(&ex->out, &ex->refusal);
    cli_text_fill(&ex->out, "\n\ndata: [DONE]\n\n");
}

/* ---- chat ------------------------------------------------------------------------------------------- */

static void chat_begin(struct exchange *ex)
{
    for (uint32_t i = 0; i < ex->choice_count; i++) {
        begin_event(ex);
        cli_text_fill(&ex->out,
                      "{'index':$,'delta':{'role':'assistant','content':'','refusal':null},"
                      "'logprobs':null,'finish_reason':null}",
                      JSON(i));
        end_event(ex);
    }
}

/* A chunk with what is new of text and calls; `reason`: NULL, or how it ended. */
static void chat_chunk(struct exchange *ex, struct choice *c, const char *reason)
{
    struct cli_text *out = &ex->out;
    begin_event(ex);
    cli_text_fill(out, "{'index':$,'delta':{", JSON(c->index));
    if (c->thought.length > c->thought_sent)
        cli_text_fill(out, "'reasoning_content':$,", JSON_REST(&c->thought, c->thought_sent));
    if (c->text.length > c->text_sent) cli_text_fill(out, "'content':$,", JSON_REST(&c->text, c->text_sent));
    if (voice_has_new_calls(c)) add_new_calls(ex, c);
    cli_text_fill(out, "},'logprobs':");
    if (c->tokens_sent < c->tokens_decided)
        add_chat_logprobs(ex, c, c->tokens_decided);
    else
        cli_text_fill(out, "null");
    cli_text_fill(out, ",'finish_reason':$}", JSON(reason));
    end_event(ex);
    c->thought_sent = c->thought.length;
    c->text_sent = c->text.length;
}

static void chat_delta(struct exchange *ex, struct choice *c)
{
    if (c->thought.length > c->thought_sent || c->text.length > c->text_sent || voice_has_new_calls(c))
        chat_chunk(ex, c, NULL);
}

static void chat_finish(struct exchange *ex, struct choice *c)
{
    chat_chunk(ex, c, choice_reason(c));
}

static void chat_whole(struct exchange *ex)
{
    struct cli_text *out = &ex->out;
    add_head(ex, "chat.completion");
    for (uint32_t i = 0; i < ex->choice_count; i++) {
        struct choice *c = &ex->choices[i];
        const bool only_calls = c->call_count && c->text.length == 0;
        cli_text_fill(out, "{'index':$,'message':{'role':'assistant','content':$,'refusal':null,", JSON(i),
                      only_calls ? PLAIN("null") : JSON_REST(&c->text, 0));
        if (c->thought.length) cli_text_fill(out, "'reasoning_content':$,", JSON_REST(&c->thought, 0));
        if (c->call_count) cli_text_fill(out, "'tool_calls':[");
        for (size_t k = 0; k < c->call_count; k++) add_call(ex, c, k, false);
        cli_text_fill(out, c->call_count ? "]},'logprobs':" : "},'logprobs':");
        add_chat_logprobs(ex, c, c->tokens_decided);
        cli_text_fill(out, ",'finish_reason':$},", JSON(choice_reason(c)));
    }
    end_with_usage(ex);
}

/* ---- completions ------------------------------------------------------------------------------------ */

static void completion_chunk(struct exchange *ex, struct choice *c, const char *reason)
{
    struct cli_text *out = &ex->out;
    cli_text_fill(out, "{'index':$,'text':$,'logprobs':", JSON(c->index), JSON_REST(&c->text, c->text_sent));
    add_completion_logprobs(ex, c, c->tokens_decided);
    cli_text_fill(out, ",'finish_reason':$},", JSON(reason));
    c->text_sent = c->text.length;
}

static void completion_event(struct exchange *ex, struct choice *c, const char *reason)
{
    begin_event(ex);
    completion_chunk(ex, c, reason);
    end_event(ex);
}

static void completion_delta(struct exchange *ex, struct choice *c)
{
    if (c->text.length > c->text_sent) completion_event(ex, c, NULL);
}

static void completion_finish(struct exchange *ex, struct choice *c)
{
    completion_event(ex, c, choice_reason(c));
}

static void completion_whole(struct exchange *ex)
{
    add_head(ex, "text_completion");
    for (uint32_t i = 0; i < ex->choice_count; i++)
        completion_chunk(ex, &ex->choices[i], choice_reason(&ex->choices[i]));
    end_with_usage(ex);
}

#define EVENTS "text/event-stream"
const struct voice voice_chat = {EVENTS,     chat_begin, chat_delta,  chat_finish,
                                 end_stream, chat_whole, fail_stream, VOICE_COMMENT};
const struct voice voice_completion = {EVENTS,           NULL,
                                       completion_delta, completion_finish,
                                       end_stream,       completion_whole,
                                       fail_stream,      VOICE_COMMENT};
