/* Ollama's dialect: a JSON object a line. See voice.h. */
#include <stdlib.h>
#include <string.h>

#include "client/gateway/gateway.h"
#include "client/gateway/voice.h"
#include "common/base/units.h"

void voice_error_ollama(struct cli_text *out, const struct refusal *refusal)
{
    cli_text_printf(out, "{\"error\":");
    voice_add_string(out, refusal->text);
    cli_text_printf(out, "}");
}

static void add_head(struct exchange *ex)
{
    struct timespec now;
    struct tm day;
    char stamp[32];
    clock_gettime(CLOCK_REALTIME, &now);
    gmtime_r(&now.tv_sec, &day);
    strftime(stamp, sizeof stamp, "%Y-%m-%dT%H:%M:%S", &day);
    cli_text_printf(&ex->out, "{\"model\":");
    voice_add_string(&ex->out, ex->gateway->model.name);
    cli_text_printf(&ex->out, ",\"created_at\":\"%s.%06ldZ\"", stamp, now.tv_nsec / 1000);
}

/* Text and calls from where they were sent to; `response` of /api/generate, `message` of /api/chat. */
static void add_content(struct exchange *ex, struct choice *c)
{
    struct cli_text *out = &ex->out;
    const bool chat = ex->ask.kind == ASK_OLLAMA_CHAT;
    cli_text_printf(out, chat ? ",\"message\":{\"role\":\"assistant\",\"content\":" : ",\"response\":");
    cli_text_json(out, c ? c->text.data + c->text_sent : "", c ? c->text.length - c->text_sent : 0);
    if (c && c->thought.length > c->thought_sent) {
        cli_text_printf(out, ",\"thinking\":");
        cli_text_json(out, c->thought.data + c->thought_sent, c->thought.length - c->thought_sent);
    }
    if (chat && c && c->tools.count > c->calls_sent) {
        cli_text_printf(out, ",\"tool_calls\":[");
        for (size_t i = c->calls_sent; i < c->tools.count; i++) {
            cli_text_printf(out, "%s{\"function\":{\"name\":", i > c->calls_sent ? "," : "");
            cli_text_json(out, c->tools.calls[i].name, strlen(c->tools.calls[i].name));
            cli_text_printf(out, ",\"arguments\":%s}}", c->tools.calls[i].arguments);
        }
        cli_text_printf(out, "]");
    }
    if (chat) cli_text_printf(out, "}");
    if (!c) return;
    if (ex->ask.logprobs && c->tokens_sent < c->tokens_decided) {
        cli_text_printf(out, ",\"logprobs\":[");
        voice_add_tokens(ex, c, c->tokens_sent, c->tokens_decided);
        cli_text_printf(out, "]");
        c->tokens_sent = c->tokens_decided;
    }
    c->thought_sent = c->thought.length;
    c->text_sent = c->text.length;
    c->calls_sent = c->tools.count;
}

/* Times in nanoseconds: the daemon's where it ended the generation, else as the gateway saw them. */
static void add_done(struct exchange *ex, const struct choice *c)
{
    struct cli_text *out = &ex->out;
    const uint64_t now = units_now_us();
    const char *reason = !c ? "load" : c->finish == HELM_FINISH_LENGTH ? "length" : "stop";
    cli_text_printf(out, ",\"done\":true,\"done_reason\":\"%s\"", reason);
    if (!c) return;
    const uint64_t first = ex->first_us ? ex->first_us : now;
    cli_text_printf(
        out,
        ",\"total_duration\":%llu,\"load_duration\":0,\"prompt_eval_count\":%u,\"prompt_eval_duration\":%llu,"
        "\"eval_count\":%u,\"eval_duration\":%llu",
        (unsigned long long)(now - ex->begin_us) * 1000, voice_prompt_tokens(ex),
        (unsigned long long)(first - ex->begin_us) * 1000, voice_completion_tokens(ex),
        (unsigned long long)(now - first) * 1000);
}

static void delta(struct exchange *ex, struct choice *c)
{
    if (c->thought.length == c->thought_sent && c->text.length == c->text_sent &&
        c->tools.count == c->calls_sent)
        return;
    add_head(ex);
    add_content(ex, c);
    cli_text_printf(&ex->out, ",\"done\":false}\n");
}

static void finish(struct exchange *ex, struct choice *c)
{
    add_head(ex);
    add_content(ex, c);
    add_done(ex, c);
    cli_text_printf(&ex->out, "}\n");
}

static void whole(struct exchange *ex)
{
    struct choice *c = ex->choice_count ? &ex->choices[0] : NULL;
    add_head(ex);
    add_content(ex, c);
    add_done(ex, c);
    cli_text_printf(&ex->out, "}");
}

static void fail(struct exchange *ex)
{
    voice_error_ollama(&ex->out, &ex->refusal);
    cli_text_printf(&ex->out, "\n");
}

#define LINES "application/x-ndjson"
const struct voice voice_ollama = {LINES, NULL, delta, finish, NULL, whole, fail, NULL};
