/* Anthropic's Messages: an answer as blocks (thinking, text, tool_use), and the events by which a stream
 * builds them up. See voice.h. There is one choice. Blocks follow each other: one is open at a time. */
#include <string.h>

#include "client/gateway/gateway.h"
#include "client/gateway/voice.h"

/* Kinds of blocks: struct choice_blocks.open. */
enum { BLOCK_NONE, BLOCK_THINKING, BLOCK_TEXT, BLOCK_CALL };

/* Clients send thinking back only with a signature; HELM has none to check. */
#define SIGNATURE "helm"

/* ---- calls of tools: what this file knows of them --------------------------------------------------- */

static size_t call_count(const struct choice *c)
{
    return c->call_count;
}
static const char *call_name(const struct choice *c, size_t k)
{
    return c->calls[k].name;
}
static const char *call_arguments(const struct choice *c, size_t k, size_t *length)
{
    *length = c->calls[k].arguments.length;
    return c->calls[k].arguments.data;
}
/* Nothing is added to its arguments any more. */
static bool call_ended(const struct choice *c, size_t k)
{
    return c->calls[k].ended;
}

/* ---- parts ------------------------------------------------------------------------------------------ */

void voice_error_anthropic(struct cli_text *out, const struct refusal *refusal)
{
    static const struct {
        int status;
        const char *type;
    } rows[] = {{401, "authentication_error"}, {403, "permission_error"}, {404, "not_found_error"},
                {413, "request_too_large"},    {429, "rate_limit_error"}, {503, "overloaded_error"}};
    const char *type = refusal->status >= 500 ? "api_error" : "invalid_request_error";
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (rows[i].status == refusal->status) type = rows[i].type;
    cli_text_printf(out, "{\"type\":\"error\",\"error\":{\"type\":\"%s\",\"message\":", type);
    voice_add_string(out, refusal->text);
    cli_text_printf(out, "}}");
}

static const char *stop_reason(const struct exchange *ex, const struct choice *c)
{
    const char *reason = choice_reason(c);
    if (strcmp(reason, "tool_calls") == 0) return "tool_use";
    if (strcmp(reason, "length") == 0)
        return ex->ask.fills_context ? "model_context_window_exceeded" : "max_tokens";
    return c->stopped_by ? "stop_sequence" : "end_turn";
}

static void add_stop(struct exchange *ex, const struct choice *c)
{
    struct cli_text *out = &ex->out;
    cli_text_printf(out, "\"stop_reason\":\"%s\",\"stop_sequence\":", stop_reason(ex, c));
    if (c->stopped_by && strcmp(stop_reason(ex, c), "stop_sequence") == 0)
        voice_add_string(out, c->stopped_by);
    else
        cli_text_printf(out, "null");
}

/* Tokens that were found in the prefix cache do not count as input. */
static void add_usage(struct exchange *ex, const struct choice *c)
{
    const uint32_t in = voice_prompt_tokens(ex), cached = c->cached_tokens < in ? c->cached_tokens : in;
    cli_text_printf(&ex->out,
                    "\"usage\":{\"input_tokens\":%u,\"cache_creation_input_tokens\":0,"
                    "\"cache_read_input_tokens\":%u,\"output_tokens\":%u}",
                    in - cached, cached, c->completion_tokens);
}

/* Nine characters, as for chats: Mistral's templates insist on it when the id comes back. */
static void add_call_head(struct exchange *ex, const struct choice *c, size_t k)
{
    cli_text_printf(&ex->out, "{\"type\":\"tool_use\",\"id\":\"%.5s%02x%02x\",\"name\":", ex->id,
                    (unsigned)(c->index & 255), (unsigned)(k & 255));
    cli_text_json(&ex->out, call_name(c, k), strlen(call_name(c, k)));
    cli_text_printf(&ex->out, ",\"input\":");
}

/* An object as the model wrote it; one that was cut with the answer is empty, which the reason for the end
 * tells. */
static void add_input(struct exchange *ex, const struct choice *c, size_t k)
{
    size_t length;
    const char *text = call_arguments(c, k, &length);
    json_t *input = json_loadb(text, length, 0, NULL);
    if (json_is_object(input))
        cli_text_add(&ex->out, text, length);
    else
        cli_text_printf(&ex->out, "{}");
    json_decref(input);
}

static void add_head(struct exchange *ex)
{
    cli_text_printf(&ex->out,
                    "{\"id\":\"msg_%s\",\"type\":\"message\",\"role\":\"assistant\",\"model\":", ex->id);
    voice_add_string(&ex->out, ex->gateway->model.name);
    cli_text_printf(&ex->out, ",\"content\":[");
}

/* ---- events ----------------------------------------------------------------------------------------- */

static void begin_event(struct exchange *ex, const char *type)
{
    cli_text_printf(&ex->out, "event: %s\ndata: {\"type\":\"%s\"", type, type);
}

static void begin_block_event(struct exchange *ex, const struct choice *c, const char *type)
{
    begin_event(ex, type);
    cli_text_printf(&ex->out, ",\"index\":%u", c->blocks.count - 1);
}

static void end_event(struct exchange *ex)
{
    cli_text_printf(&ex->out, "}\n\n");
}

static void delta_event(struct exchange *ex, const struct choice *c, const char *type, const char *key,
                        const char *data, size_t length)
{
    begin_block_event(ex, c, "content_block_delta");
    cli_text_printf(&ex->out, ",\"delta\":{\"type\":\"%s\",\"%s\":", type, key);
    cli_text_json(&ex->out, data, length);
    cli_text_printf(&ex->out, "}");
    end_event(ex);
}

static void close_block(struct exchange *ex, struct choice *c)
{
    if (c->blocks.open == BLOCK_NONE) return;
    if (c->blocks.open == BLOCK_THINKING)
        delta_event(ex, c, "signature_delta", "signature", SIGNATURE, strlen(SIGNATURE));
    begin_block_event(ex, c, "content_block_stop");
    end_event(ex);
    c->blocks.open = BLOCK_NONE;
}

/* A call begins a block of its own; text and thinking go on in the one that is open, if it is theirs. */
static void open_block(struct exchange *ex, struct choice *c, uint8_t what, size_t call)
{
    if (c->blocks.open == what && what != BLOCK_CALL) return;
    close_block(ex, c);
    c->blocks.open = what;
    c->blocks.count++;
    begin_block_event(ex, c, "content_block_start");
    cli_text_printf(&ex->out, ",\"content_block\":");
    if (what == BLOCK_CALL) {
        add_call_head(ex, c, call);
        cli_text_printf(&ex->out, "{}}");
    } else {
        cli_text_printf(&ex->out, what == BLOCK_TEXT
                                      ? "{\"type\":\"text\",\"text\":\"\"}"
                                      : "{\"type\":\"thinking\",\"thinking\":\"\",\"signature\":\"\"}");
    }
    end_event(ex);
}

static void text_delta(struct exchange *ex, struct choice *c, uint8_t what, const struct cli_text *text,
                       size_t *sent)
{
    if (text->length == *sent) return;
    open_block(ex, c, what, 0);
    delta_event(ex, c, what == BLOCK_TEXT ? "text_delta" : "thinking_delta",
                what == BLOCK_TEXT ? "text" : "thinking", text->data + *sent, text->length - *sent);
    *sent = text->length;
}

/* The new parts of calls: a block when a name is known, its arguments as they come. `last`: no more comes of
 * them. */
static void call_events(struct exchange *ex, struct choice *c, bool last)
{
    while (c->blocks.calls_done < call_count(c)) {
        const size_t k = c->blocks.calls_done;
        size_t length;
        const char *text = call_arguments(c, k, &length);
        if (k == c->calls_sent) {
            open_block(ex, c, BLOCK_CALL, k);
            c->calls_sent++;
            c->blocks.arguments = 0;
        }
        if (length > c->blocks.arguments)
            delta_event(ex, c, "input_json_delta", "partial_json", text + c->blocks.arguments,
                        length - c->blocks.arguments);
        c->blocks.arguments = length;
        if (!call_ended(c, k) && !last) return;
        close_block(ex, c);
        c->blocks.calls_done++;
    }
}

/* ---- the voice -------------------------------------------------------------------------------------- */

static void begin(struct exchange *ex)
{
    begin_event(ex, "message_start");
    cli_text_printf(&ex->out, ",\"message\":");
    add_head(ex);
    cli_text_printf(&ex->out, "],\"stop_reason\":null,\"stop_sequence\":null,");
    add_usage(ex, &ex->choices[0]);
    cli_text_printf(&ex->out, "}");
    end_event(ex);
}

static void delta(struct exchange *ex, struct choice *c)
{
    text_delta(ex, c, BLOCK_THINKING, &c->thought, &c->thought_sent);
    text_delta(ex, c, BLOCK_TEXT, &c->text, &c->text_sent);
    call_events(ex, c, false);
}

static void finish(struct exchange *ex, struct choice *c)
{
    call_events(ex, c, true);
    if (!c->blocks.count) open_block(ex, c, BLOCK_TEXT, 0); /* an answer of nothing is an empty text */
    close_block(ex, c);
    begin_event(ex, "message_delta");
    cli_text_printf(&ex->out, ",\"delta\":{");
    add_stop(ex, c);
    cli_text_printf(&ex->out, "},");
    add_usage(ex, c);
    end_event(ex);
}

static void end(struct exchange *ex)
{
    begin_event(ex, "message_stop");
    end_event(ex);
}

static void whole(struct exchange *ex)
{
    struct cli_text *out = &ex->out;
    const struct choice *c = &ex->choices[0];
    const char *divide = "";
    add_head(ex);
    if (c->thought.length) {
        cli_text_printf(out, "{\"type\":\"thinking\",\"signature\":\"" SIGNATURE "\",\"thinking\":");
        cli_text_json(out, c->thought.data, c->thought.length);
        cli_text_printf(out, "}");
        divide = ",";
    }
    if (c->text.length || (!call_count(c) && !c->thought.length)) {
        cli_text_printf(out, "%s{\"type\":\"text\",\"text\":", divide);
        cli_text_json(out, c->text.data, c->text.length);
        cli_text_printf(out, "}");
        divide = ",";
    }
    for (size_t k = 0; k < call_count(c); k++, divide = ",") {
        cli_text_printf(out, "%s", divide);
        add_call_head(ex, c, k);
        add_input(ex, c, k);
        cli_text_printf(out, "}");
    }
    cli_text_printf(out, "],");
    add_stop(ex, c);
    cli_text_printf(out, ",");
    add_usage(ex, c);
    cli_text_printf(out, "}");
}

static void fail(struct exchange *ex)
{
    cli_text_printf(&ex->out, "event: error\ndata: ");
    voice_error_anthropic(&ex->out, &ex->refusal);
    cli_text_printf(&ex->out, "\n\n");
}

const struct voice voice_messages = {"text/event-stream",
                                     begin,
                                     delta,
                                     finish,
                                     end,
                                     whole,
                                     fail,
                                     "event: ping\ndata: {\"type\":\"ping\"}\n\n"};
