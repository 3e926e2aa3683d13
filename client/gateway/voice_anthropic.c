/* Anthropic's Messages: an answer as blocks (thinking, text, tool_use), and the events by which a stream
 * builds them up. See voice.h. There is one choice. Blocks follow each other: one is open at a time. */
#include <string.h>

#include "client/gateway/gateway.h"
#include "client/gateway/voice.h"

/* Kinds of blocks: struct choice_blocks.open. */
enum { BLOCK_NONE, BLOCK_THINKING, BLOCK_TEXT, BLOCK_CALL };

/* Clients send thinking back only with a signature; HELM has none to check. */
#define SIGNATURE "helm"

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
    cli_text_fill(out, "{'type':'error','error':{'type':$,'message':$}}", JSON(type), JSON(refusal->text));
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
    const char *reason = stop_reason(ex, c);
    const bool stopped = strcmp(reason, "stop_sequence") == 0;
    cli_text_fill(&ex->out, "'stop_reason':$,'stop_sequence':$,", JSON(reason),
                  JSON(stopped ? c->stopped_by : NULL));
}

/* Tokens that were found in the prefix cache do not count as input. */
static void add_usage(struct exchange *ex, const struct choice *c)
{
    const uint32_t in = voice_prompt_tokens(ex), cached = c->cached_tokens < in ? c->cached_tokens : in;
    cli_text_fill(&ex->out,
                  "'usage':{'input_tokens':$,'cache_creation_input_tokens':0,'cache_read_input_tokens':$,"
                  "'output_tokens':$}",
                  JSON(in - cached), JSON(cached), JSON(c->completion_tokens));
}

static void add_call_head(struct exchange *ex, const struct choice *c, size_t k)
{
    char id[10];
    cli_text_fill(&ex->out, "{'type':'tool_use','id':$,'name':$,'input':", JSON(voice_call_id(ex, c, k, id)),
                  JSON(c->calls[k].name));
}

/* An object as the model wrote it; one that was cut with the answer is empty, which the reason for the end
 * tells. */
static void add_input(struct exchange *ex, const struct choice_call *call)
{
    json_t *input = json_loadb(call->arguments.data, call->arguments.length, 0, NULL);
    cli_text_fill(&ex->out, "$", PLAIN(json_is_object(input) ? call->arguments.data : "{}"));
    json_decref(input);
}

static void add_head(struct exchange *ex)
{
    cli_text_fill(&ex->out, "{'id':'msg_$','type':'message','role':'assistant','model':$,'content':[",
                  PLAIN(ex->id), JSON(ex->gateway->model.name));
}

/* ---- events ----------------------------------------------------------------------------------------- */

static void begin_event(struct exchange *ex, const char *type)
{
    cli_text_fill(&ex->out, "event: $\ndata: {'type':$,", PLAIN(type), JSON(type));
}

static void begin_block_event(struct exchange *ex, const struct choice *c, const char *type)
{
    begin_event(ex, type);
    cli_text_fill(&ex->out, "'index':$,", JSON(c->blocks.count - 1));
}

static void end_event(struct exchange *ex)
{
    cli_text_fill(&ex->out, "}\n\n");
}

static void delta_event(struct exchange *ex, const struct choice *c, const char *type, const char *key,
                        struct cli_value value)
{
    begin_block_event(ex, c, "content_block_delta");
    cli_text_fill(&ex->out, "'delta':{'type':$,'$':$}", JSON(type), PLAIN(key), value);
    end_event(ex);
}

static void close_block(struct exchange *ex, struct choice *c)
{
    if (c->blocks.open == BLOCK_NONE) return;
    if (c->blocks.open == BLOCK_THINKING) delta_event(ex, c, "signature_delta", "signature", JSON(SIGNATURE));
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
    cli_text_fill(&ex->out, "'content_block':");
    if (what == BLOCK_CALL) add_call_head(ex, c, call);
    cli_text_fill(&ex->out, what == BLOCK_CALL   ? "{}}"
                            : what == BLOCK_TEXT ? "{'type':'text','text':''}"
                                                 : "{'type':'thinking','thinking':'','signature':''}");
    end_event(ex);
}

static void text_delta(struct exchange *ex, struct choice *c, uint8_t what, const struct cli_text *text,
                       size_t *sent)
{
    if (text->length == *sent) return;
    open_block(ex, c, what, 0);
    delta_event(ex, c, what == BLOCK_TEXT ? "text_delta" : "thinking_delta",
                what == BLOCK_TEXT ? "text" : "thinking", JSON_REST(text, *sent));
    *sent = text->length;
}

/* The new parts of calls: a block when a name is known, its arguments as they come. `last`: no more comes of
 * them. */
static void call_events(struct exchange *ex, struct choice *c, bool last)
{
    while (c->blocks.calls_done < c->call_count) {
        const size_t k = c->blocks.calls_done;
        const struct choice_call *call = &c->calls[k];
        if (k == c->calls_sent) {
            open_block(ex, c, BLOCK_CALL, k);
            c->calls_sent++;
            c->arguments_sent = 0;
        }
        if (call->arguments.length > c->arguments_sent)
            delta_event(ex, c, "input_json_delta", "partial_json",
                        JSON_REST(&call->arguments, c->arguments_sent));
        c->arguments_sent = call->arguments.length;
        if (!call->ended && !last) return;
        close_block(ex, c);
        c->blocks.calls_done++;
    }
}

/* ---- the voice -------------------------------------------------------------------------------------- */

static void begin(struct exchange *ex)
{
    begin_event(ex, "message_start");
    cli_text_fill(&ex->out, "'message':");
    add_head(ex);
    cli_text_fill(&ex->out, "],'stop_reason':null,'stop_sequence':null,");
    add_usage(ex, &ex->choices[0]);
    cli_text_fill(&ex->out, "}");
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
    cli_text_fill(&ex->out, "'delta':{");
    add_stop(ex, c);
    cli_text_fill(&ex->out, "},");
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
    add_head(ex);
    if (c->thought.length)
        cli_text_fill(out, "{'type':'thinking','signature':$,'thinking':$},", JSON(SIGNATURE),
                      JSON_REST(&c->thought, 0));
    if (c->text.length || (!c->call_count && !c->thought.length))
        cli_text_fill(out, "{'type':'text','text':$},", JSON_REST(&c->text, 0));
    for (size_t k = 0; k < c->call_count; k++) {
        add_call_head(ex, c, k);
        add_input(ex, &c->calls[k]);
        cli_text_fill(out, "},");
    }
    cli_text_fill(out, "],");
    add_stop(ex, c);
    add_usage(ex, c);
    cli_text_fill(out, "}");
}

static void fail(struct exchange *ex)
{
    cli_text_fill(&ex->out, "event: error\ndata: ");
    voice_error_anthropic(&ex->out, &ex->refusal);
    cli_text_fill(&ex->out, "\n\n");
}

const struct voice voice_messages = {"text/event-stream",
                                     begin,
                                     delta,
                                     finish,
                                     end,
                                     whole,
                                     fail,
                                     "event: ping\ndata: {\"type\":\"ping\"}\n\n"};
