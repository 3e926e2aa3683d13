/* OpenAI's dialect: chat.completion, text_completion and their chunks as server-sent events. See voice.h. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "client/gateway/gateway.h"
#include "client/gateway/voice.h"

double voice_finite(double value)
{
    return isfinite(value) ? value : value > 0 ? 3.4e38 : -3.4e38;
}

void voice_add_string(struct cli_text *out, const char *text)
{
    json_t *good = json_string(text);
    if (good) {
        cli_text_json(out, text, strlen(text));
    } else { /* a few bytes of a file's name, say */
        cli_text_add(out, "\"", 1);
        for (; *text; text++) {
            const bool plain = *text >= 32 && *text < 127 && *text != '"' && *text != '\\';
            cli_text_add(out, plain ? text : "\xEF\xBF\xBD", plain ? 1 : 3);
        }
        cli_text_add(out, "\"", 1);
    }
    json_decref(good);
}

void voice_add_member(struct cli_text *out, const char *before, const char *text)
{
    cli_text_add(out, before, strlen(before));
    voice_add_string(out, text);
}

void voice_error_openai(struct cli_text *out, const struct refusal *refusal)
{
    const char *type = refusal->status == 429   ? "rate_limit_error"
                       : refusal->status == 401 ? "authentication_error"
                       : refusal->status == 403 ? "permission_error"
                       : refusal->status >= 500 ? "server_error"
                                                : "invalid_request_error";
    voice_add_member(out, "{\"error\":{\"message\":", refusal->text);
    cli_text_printf(out, ",\"type\":\"%s\",\"param\":", type);
    if (*refusal->param)
        voice_add_string(out, refusal->param);
    else
        cli_text_printf(out, "null");
    if (*refusal->code)
        cli_text_printf(out, ",\"code\":\"%s\"}}", refusal->code);
    else
        cli_text_printf(out, ",\"code\":null}}");
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
static void add_token_string(struct cli_text *out, const struct token_text *t)
{
    json_t *good = t->bytes ? json_stringn(t->bytes, t->length) : NULL;
    if (good)
        cli_text_json(out, t->bytes, t->length);
    else
        cli_text_printf(out, "\"\xEF\xBF\xBD\"");
    json_decref(good);
}

static void add_chat_token(struct exchange *ex, uint32_t token, float logprob)
{
    struct cli_text *out = &ex->out;
    struct token_text t = token_bytes(ex, token);
    cli_text_printf(out, "{\"token\":");
    add_token_string(out, &t);
    cli_text_printf(out, ",\"logprob\":%.9g,\"bytes\":[", voice_finite((double)logprob));
    for (size_t i = 0; i < t.length; i++)
        cli_text_printf(out, "%s%u", i ? "," : "", (unsigned char)t.bytes[i]);
    cli_text_printf(out, "]");
    free(t.bytes);
}

void voice_add_tokens(struct exchange *ex, const struct choice *c, size_t from, size_t until)
{
    struct cli_text *out = &ex->out;
    for (size_t at = from; at < until; at++) {
        const struct choice_token *t = c->tokens[at];
        if (at > from) cli_text_printf(out, ",");
        add_chat_token(ex, t->token, t->logprob);
        cli_text_printf(out, ",\"top_logprobs\":[");
        for (uint32_t i = 0; i < t->top_count && i < ex->ask.top_logprobs; i++) {
            if (i) cli_text_printf(out, ",");
            add_chat_token(ex, t->top[i].token, t->top[i].logprob);
            cli_text_printf(out, "}");
        }
        cli_text_printf(out, "]}");
    }
}

/* The logprobs of the tokens from tokens_sent to `until`, or null. */
static void add_chat_logprobs(struct exchange *ex, struct choice *c, size_t until)
{
    struct cli_text *out = &ex->out;
    if (!ex->ask.logprobs) {
        cli_text_printf(out, "null");
        return;
    }
    cli_text_printf(out, "{\"content\":[");
    voice_add_tokens(ex, c, c->tokens_sent, until);
    c->tokens_sent = until;
    cli_text_printf(out, "],\"refusal\":null}");
}

static void add_key(struct exchange *ex, uint32_t token)
{
    struct token_text t = token_bytes(ex, token);
    add_token_string(&ex->out, &t);
    free(t.bytes);
}

static void add_completion_logprobs(struct exchange *ex, struct choice *c, size_t until)
{
    struct cli_text *out = &ex->out;
    if (!ex->ask.logprobs) {
        cli_text_printf(out, "null");
        return;
    }
    const size_t from = c->tokens_sent;
    cli_text_printf(out, "{\"tokens\":[");
    for (size_t i = from; i < until; i++) {
        if (i > from) cli_text_printf(out, ",");
        add_key(ex, c->tokens[i]->token);
    }
    cli_text_printf(out, "],\"token_logprobs\":[");
    for (size_t i = from; i < until; i++)
        cli_text_printf(out, "%s%.9g", i > from ? "," : "", voice_finite((double)c->tokens[i]->logprob));
    cli_text_printf(out, "],\"top_logprobs\":[");
    for (size_t i = from; i < until; i++) {
        const struct choice_token *t = c->tokens[i];
        cli_text_printf(out, "%s{", i > from ? "," : "");
        for (uint32_t k = 0; k < t->top_count && k < ex->ask.top_logprobs; k++) {
            if (k) cli_text_printf(out, ",");
            add_key(ex, t->top[k].token);
            cli_text_printf(out, ":%.9g", voice_finite((double)t->top[k].logprob));
        }
        cli_text_printf(out, "}");
    }
    cli_text_printf(out, "],\"text_offset\":[");
    for (size_t i = from; i < until; i++)
        cli_text_printf(out, "%s%llu", i > from ? "," : "", (unsigned long long)c->tokens[i]->at);
    cli_text_printf(out, "]}");
    c->tokens_sent = until;
}

/* ---- parts ------------------------------------------------------------------------------------------ */

static void add_head(struct exchange *ex, const char *object)
{
    struct cli_text *out = &ex->out;
    cli_text_printf(out, "{\"id\":\"%s-%s\",\"object\":\"%s\",\"created\":%lld,\"model\":",
                    ex->ask.kind == ASK_CHAT ? "chatcmpl" : "cmpl", ex->id, object, (long long)ex->created);
    voice_add_string(out, ex->gateway->model.name);
    cli_text_printf(out, ",\"choices\":[");
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

static void add_usage(struct exchange *ex)
{
    const uint32_t prompt = voice_prompt_tokens(ex), completion = voice_completion_tokens(ex);
    const int64_t cached = cached_tokens(ex);
    cli_text_printf(&ex->out, "{\"prompt_tokens\":%u,\"completion_tokens\":%u,\"total_tokens\":%u", prompt,
                    completion, prompt + completion);
    if (cached >= 0)
        cli_text_printf(&ex->out, ",\"prompt_tokens_details\":{\"cached_tokens\":%lld}", (long long)cached);
    uint64_t drafted = 0, accepted = 0;
    for (uint32_t i = 0; i < ex->choice_count; i++) {
        drafted += ex->choices[i].drafted_tokens;
        accepted += ex->choices[i].accepted_tokens;
    }
    if (drafted)
        cli_text_printf(&ex->out,
                        ",\"completion_tokens_details\":{\"accepted_prediction_tokens\":%llu,"
                        "\"rejected_prediction_tokens\":%llu}",
                        (unsigned long long)accepted, (unsigned long long)(drafted - accepted));
    cli_text_printf(&ex->out, "}");
}

/* Nine characters, which Mistral's templates insist on when the id comes back. */
static void add_call_id(struct exchange *ex, const struct choice *c, size_t index)
{
    cli_text_printf(&ex->out, "\"id\":\"%.5s%02x%02x\"", ex->id, (unsigned)(c->index & 255),
                    (unsigned)(index & 255));
}

bool voice_has_new_calls(const struct choice *c)
{
    return c->call_count > c->calls_sent ||
           (c->call_count && c->calls[c->call_count - 1].arguments.length > c->arguments_sent);
}

/* A call whole, or as it begins in a stream. */
static void add_call(struct exchange *ex, const struct choice *c, size_t i, bool indexed)
{
    struct cli_text *out = &ex->out;
    const struct choice_call *call = &c->calls[i];
    cli_text_printf(out, "{");
    if (indexed) cli_text_printf(out, "\"index\":%zu,", i);
    add_call_id(ex, c, i);
    voice_add_member(out, ",\"type\":\"function\",\"function\":{\"name\":", call->name);
    cli_text_printf(out, ",\"arguments\":");
    cli_text_json(out, call->arguments.data, call->arguments.length);
    cli_text_printf(out, "}}");
}

/* Adds the new parts of calls: a name at once, arguments as they come. */
static void add_new_calls(struct exchange *ex, struct choice *c)
{
    struct cli_text *out = &ex->out;
    const struct choice_call *last = c->calls_sent ? &c->calls[c->calls_sent - 1] : NULL;
    const bool more = last && last->arguments.length > c->arguments_sent;
    cli_text_printf(out, "\"tool_calls\":[");
    if (more) {
        cli_text_printf(out, "{\"index\":%zu,\"function\":{\"arguments\":", c->calls_sent - 1);
        cli_text_json(out, last->arguments.data + c->arguments_sent,
                      last->arguments.length - c->arguments_sent);
        cli_text_printf(out, "}}");
    }
    for (size_t i = c->calls_sent; i < c->call_count; i++) {
        if (more || i > c->calls_sent) cli_text_printf(out, ",");
        add_call(ex, c, i, true);
    }
    cli_text_printf(out, "]");
    c->calls_sent = c->call_count;
    c->arguments_sent = c->calls[c->call_count - 1].arguments.length;
}

static void add_tail(struct exchange *ex)
{
    if (ex->ask.include_usage) cli_text_printf(&ex->out, ",\"usage\":null");
    cli_text_printf(&ex->out, "}\n\n");
}

static void begin_event(struct exchange *ex)
{
    cli_text_printf(&ex->out, "data: ");
    add_head(ex, ex->ask.kind == ASK_CHAT ? "chat.completion.chunk" : "text_completion");
}

static void end_stream(struct exchange *ex)
{
    if (ex->ask.include_usage) {
        begin_event(ex);
        cli_text_printf(&ex->out, "],\"usage\":");
        add_usage(ex);
        cli_text_printf(&ex->out, "}\n\n");
    }
    cli_text_printf(&ex->out, "data: [DONE]\n\n");
}

static void fail_stream(struct exchange *ex)
{
    cli_text_printf(&ex->out, "data: ");
    voice_error_openai(&ex->out, &ex->refusal);
    cli_text_printf(&ex->out, "\n\ndata: [DONE]\n\n");
}

/* ---- chat ------------------------------------------------------------------------------------------- */

static void chat_begin(struct exchange *ex)
{
    for (uint32_t i = 0; i < ex->choice_count; i++) {
        begin_event(ex);
        cli_text_printf(&ex->out,
                        "{\"index\":%u,\"delta\":{\"role\":\"assistant\",\"content\":\"\",\"refusal\":null},"
                        "\"logprobs\":null,\"finish_reason\":null}]",
                        i);
        add_tail(ex);
    }
}

/* A chunk with what is new of text and calls; `reason`: NULL, or how it ended. */
static void chat_chunk(struct exchange *ex, struct choice *c, const char *reason)
{
    struct cli_text *out = &ex->out;
    const bool thought = c->thought.length > c->thought_sent;
    const bool text = c->text.length > c->text_sent, calls = voice_has_new_calls(c);
    begin_event(ex);
    cli_text_printf(out, "{\"index\":%u,\"delta\":{", c->index);
    if (thought) {
        cli_text_printf(out, "\"reasoning_content\":");
        cli_text_json(out, c->thought.data + c->thought_sent, c->thought.length - c->thought_sent);
    }
    if (thought && (text || calls)) cli_text_printf(out, ",");
    if (text) {
        cli_text_printf(out, "\"content\":");
        cli_text_json(out, c->text.data + c->text_sent, c->text.length - c->text_sent);
    }
    if (text && calls) cli_text_printf(out, ",");
    if (calls) add_new_calls(ex, c);
    cli_text_printf(out, "},\"logprobs\":");
    if (c->tokens_sent < c->tokens_decided)
        add_chat_logprobs(ex, c, c->tokens_decided);
    else
        cli_text_printf(out, "null");
    cli_text_printf(out, ",\"finish_reason\":%s%s%s}]", reason ? "\"" : "", reason ? reason : "null",
                    reason ? "\"" : "");
    add_tail(ex);
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
        cli_text_printf(out, "%s{\"index\":%u,\"message\":{\"role\":\"assistant\",\"content\":", i ? "," : "",
                        i);
        if (c->call_count && c->text.length == 0)
            cli_text_printf(out, "null");
        else
            cli_text_json(out, c->text.data, c->text.length);
        cli_text_printf(out, ",\"refusal\":null");
        if (c->thought.length) {
            cli_text_printf(out, ",\"reasoning_content\":");
            cli_text_json(out, c->thought.data, c->thought.length);
        }
        for (size_t k = 0; k < c->call_count; k++) {
            cli_text_printf(out, k ? "," : ",\"tool_calls\":[");
            add_call(ex, c, k, false);
        }
        if (c->call_count) cli_text_printf(out, "]");
        cli_text_printf(out, "},\"logprobs\":");
        add_chat_logprobs(ex, c, c->tokens_decided);
        cli_text_printf(out, ",\"finish_reason\":\"%s\"}", choice_reason(c));
    }
    cli_text_printf(out, "],\"usage\":");
    add_usage(ex);
    cli_text_printf(out, "}");
}

/* ---- completions ------------------------------------------------------------------------------------ */

static void completion_chunk(struct exchange *ex, struct choice *c, const char *reason)
{
    struct cli_text *out = &ex->out;
    cli_text_printf(out, "{\"index\":%u,\"text\":", c->index);
    cli_text_json(out, c->text.data + c->text_sent, c->text.length - c->text_sent);
    cli_text_printf(out, ",\"logprobs\":");
    add_completion_logprobs(ex, c, c->tokens_decided);
    cli_text_printf(out, ",\"finish_reason\":%s%s%s}", reason ? "\"" : "", reason ? reason : "null",
                    reason ? "\"" : "");
    c->text_sent = c->text.length;
}

static void completion_event(struct exchange *ex, struct choice *c, const char *reason)
{
    begin_event(ex);
    completion_chunk(ex, c, reason);
    cli_text_printf(&ex->out, "]");
    add_tail(ex);
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
    for (uint32_t i = 0; i < ex->choice_count; i++) {
        if (i) cli_text_printf(&ex->out, ",");
        completion_chunk(ex, &ex->choices[i], choice_reason(&ex->choices[i]));
    }
    cli_text_printf(&ex->out, "],\"usage\":");
    add_usage(ex);
    cli_text_printf(&ex->out, "}");
}

#define EVENTS "text/event-stream"
const struct voice voice_chat = {EVENTS,     chat_begin, chat_delta,  chat_finish,
                                 end_stream, chat_whole, fail_stream, VOICE_COMMENT};
const struct voice voice_completion = {EVENTS,           NULL,
                                       completion_delta, completion_finish,
                                       end_stream,       completion_whole,
                                       fail_stream,      VOICE_COMMENT};
