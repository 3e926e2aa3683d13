/* Ollama's dialect: a JSON object a line. See voice.h. */
#include <stdlib.h>
#include <string.h>

#include "client/gateway/gateway.h"
#include "client/gateway/voice.h"
#include "common/base/units.h"

void voice_error_ollama(struct cli_text *out, const struct refusal *refusal)
{
    cli_text_fill(out, "{'error':$}", JSON(refusal->text));
}

static void add_head(struct exchange *ex)
{
    struct timespec now;
    struct tm day;
    char stamp[32];
    clock_gettime(CLOCK_REALTIME, &now);
    gmtime_r(&now.tv_sec, &day);
    strftime(stamp, sizeof stamp, "%Y-%m-%dT%H:%M:%S", &day);
    snprintf(stamp + strlen(stamp), sizeof stamp - strlen(stamp), ".%06ldZ", now.tv_nsec / 1000);
    cli_text_fill(&ex->out, "{'model':$,'created_at':$,", JSON(ex->gateway->model.name), JSON(stamp));
}

/* Whether the arguments, which are the model's, can stand in a JSON object. */
static bool is_object(const struct choice_call *call)
{
    json_t *value = /* whose numbers may be longer than an integer is */
        json_loadb(call->arguments.data, call->arguments.length, JSON_DECODE_INT_AS_REAL, NULL);
    const bool good = json_is_object(value);
    json_decref(value);
    return good && call->ended;
}

/* Calls are told whole: an open one waits, unless the answer is over. */
static size_t calls_to_send(const struct choice *c)
{
    const bool open = c->call_count && !c->calls[c->call_count - 1].ended && !c->over;
    return c->call_count - open;
}

/* Adds the new text, and arguments that are no object. */
static void add_text(struct cli_text *out, const struct choice *c)
{
    struct cli_text text = {0};
    cli_text_add(&text, "", 0);
    if (c) cli_text_add(&text, c->text.data + c->text_sent, c->text.length - c->text_sent);
    for (size_t i = c ? c->calls_sent : 0; c && i < calls_to_send(c); i++)
        if (!is_object(&c->calls[i]))
            cli_text_add(&text, c->calls[i].arguments.data, c->calls[i].arguments.length);
    cli_text_fill(out, "$,", JSON_REST(&text, 0));
    out->failed |= text.failed;
    cli_text_free(&text);
}

/* Text and calls from where they were sent to; `response` of /api/generate, `message` of /api/chat. */
static void add_content(struct exchange *ex, struct choice *c)
{
    struct cli_text *out = &ex->out;
    const bool chat = ex->ask.kind == ASK_OLLAMA_CHAT;
    cli_text_fill(out, chat ? "'message':{'role':'assistant','content':" : "'response':");
    add_text(out, c);
    if (c && c->thought.length > c->thought_sent)
        cli_text_fill(out, "'thinking':$,", JSON_REST(&c->thought, c->thought_sent));
    bool any = false;
    for (size_t i = c ? c->calls_sent : 0; chat && c && i < c->call_count; i++) {
        if (!is_object(&c->calls[i])) continue;
        cli_text_fill(out, any ? "" : "'tool_calls':[");
        cli_text_fill(out, "{'function':{'name':$,'arguments':$}},", JSON(c->calls[i].name),
                      PLAIN(c->calls[i].arguments.data));
        any = true;
    }
    if (any) cli_text_fill(out, "]");
    if (chat) cli_text_fill(out, "},");
    if (!c) return;
    if (ex->ask.logprobs && c->tokens_sent < c->tokens_decided) {
        cli_text_fill(out, "'logprobs':[");
        voice_add_tokens(ex, c, c->tokens_sent, c->tokens_decided);
        cli_text_fill(out, "],");
        c->tokens_sent = c->tokens_decided;
    }
    c->thought_sent = c->thought.length;
    c->text_sent = c->text.length;
    c->calls_sent = calls_to_send(c);
}

/* Times in nanoseconds: the daemon's where it ended the generation, else as the gateway saw them. */
static void add_done(struct exchange *ex, const struct choice *c)
{
    struct cli_text *out = &ex->out;
    const uint64_t now = units_now_us();
    const char *reason = !c ? "load" : c->finish == HELM_FINISH_LENGTH ? "length" : "stop";
    cli_text_fill(out, "'done':true,'done_reason':$,", JSON(reason));
    if (!c) return;
    const uint64_t first = ex->first_us ? ex->first_us : now;
    cli_text_fill(out,
                  "'total_duration':$,'load_duration':0,'prompt_eval_count':$,'prompt_eval_duration':$,"
                  "'eval_count':$,'eval_duration':$,",
                  JSON((now - ex->begin_us) * 1000), JSON(voice_prompt_tokens(ex)),
                  JSON((first - ex->begin_us) * 1000), JSON(voice_completion_tokens(ex)),
                  JSON((now - first) * 1000));
    if (c->reported)
        cli_text_fill(out, "'cached_tokens':$", JSON(c->cached_tokens)); /* beyond Ollama's own */
}

static void delta(struct exchange *ex, struct choice *c)
{
    if (c->thought.length == c->thought_sent && c->text.length == c->text_sent &&
        calls_to_send(c) == c->calls_sent)
        return;
    add_head(ex);
    add_content(ex, c);
    cli_text_fill(&ex->out, "'done':false}\n");
}

static void finish(struct exchange *ex, struct choice *c)
{
    add_head(ex);
    add_content(ex, c);
    add_done(ex, c);
    cli_text_fill(&ex->out, "}\n");
}

static void whole(struct exchange *ex)
{
    struct choice *c = ex->choice_count ? &ex->choices[0] : NULL;
    add_head(ex);
    add_content(ex, c);
    add_done(ex, c);
    cli_text_fill(&ex->out, "}");
}

static void fail(struct exchange *ex)
{
    voice_error_ollama(&ex->out, &ex->refusal);
    cli_text_fill(&ex->out, "\n");
}

#define LINES "application/x-ndjson"
const struct voice voice_ollama = {LINES, NULL, delta, finish, NULL, whole, fail, NULL};
