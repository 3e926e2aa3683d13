/* OpenAI's Responses: an answer as items (reasoning, message, function calls), and the events by which a
 * stream builds them up. See voice.h. There is one choice. */
#include <stdio.h>
#include <string.h>

#include "client/gateway/gateway.h"
#include "client/gateway/voice.h"

/* Kinds of items: struct choice_items.what. */
enum { ITEM_REASONING, ITEM_MESSAGE, ITEM_CALL }; /* ITEM_CALL + k: call k */

/* ---- parts ------------------------------------------------------------------------------------------ */

static struct cli_value item_id(const struct exchange *ex, const struct choice *c, uint32_t index,
                                char id[48])
{
    const uint8_t what = c->items.what[index];
    snprintf(id, 48, "%s_%s%02x",
             what == ITEM_REASONING ? "rs"
             : what == ITEM_MESSAGE ? "msg"
                                    : "fc",
             ex->id, (unsigned)index);
    return JSON((const char *)id);
}

static const struct cli_text *text_of(const struct choice *c, uint8_t what)
{
    return what == ITEM_REASONING ? &c->thought : &c->text;
}

/* A message's member with the logprobs of the tokens [from, until), if they are asked for. */
static void add_logprobs(struct exchange *ex, const struct choice *c, size_t from, size_t until)
{
    cli_text_fill(&ex->out, "'logprobs':[");
    if (ex->ask.logprobs) voice_add_tokens(ex, c, from, until);
    cli_text_fill(&ex->out, "]");
}

/* A part of an item: all there is, or (`empty`) as it begins. */
static void add_part(struct exchange *ex, struct choice *c, uint8_t what, bool empty)
{
    struct cli_text *out = &ex->out;
    const struct cli_text *text = text_of(c, what);
    cli_text_fill(out, "{'type':$,'text':$,", JSON(what == ITEM_REASONING ? "reasoning_text" : "output_text"),
                  JSON_REST(text, empty ? text->length : 0));
    if (what == ITEM_MESSAGE) {
        cli_text_fill(out, "'annotations':[],");
        add_logprobs(ex, c, 0, empty ? 0 : c->tokens_decided);
    }
    cli_text_fill(out, "}");
}

/* A called function's name, and the namespace that it came from. */
static void add_name(struct exchange *ex, const char *offered)
{
    const json_t *of = json_object_get(ex->ask.spaces, offered);
    const char *name = of ? json_string_value(json_object_get(of, "name")) : offered;
    const char *space = json_string_value(json_object_get(of, "namespace"));
    cli_text_fill(&ex->out, "'name':$,", JSON(name));
    if (space) cli_text_fill(&ex->out, "'namespace':$,", JSON(space));
}

/* An item, done or as it begins. */
static void add_item(struct exchange *ex, struct choice *c, uint32_t index, bool done)
{
    char id[48];
    struct cli_text *out = &ex->out;
    const uint8_t what = c->items.what[index];
    const bool open = what >= ITEM_CALL && !c->calls[what - ITEM_CALL].ended;
    const bool cut = done && c->finish == HELM_FINISH_LENGTH && (what == ITEM_MESSAGE || open);
    cli_text_fill(out, "{'id':$,'status':$,", item_id(ex, c, index, id),
                  JSON(!done ? "in_progress"
                       : cut ? "incomplete"
                             : "completed"));
    if (what >= ITEM_CALL) {
        const size_t k = (size_t)what - ITEM_CALL;
        const struct cli_text *arguments = &c->calls[k].arguments;
        cli_text_fill(out, "'type':'function_call','call_id':$,", JSON(voice_call_id(ex, c, k, id)));
        add_name(ex, c->calls[k].name);
        cli_text_fill(out, "'arguments':$}", JSON_BYTES(arguments->data, done ? arguments->length : 0));
        return;
    }
    cli_text_fill(out, what == ITEM_REASONING
                           ? "'type':'reasoning','summary':[],'encrypted_content':null,'content':["
                           : "'type':'message','role':'assistant','content':[");
    if (done) add_part(ex, c, what, false);
    cli_text_fill(out, "]}");
}

static void add_usage(struct exchange *ex, const struct choice *c)
{
    const uint32_t in = voice_prompt_tokens(ex), out = voice_completion_tokens(ex);
    cli_text_fill(&ex->out,
                  "{'input_tokens':$,'input_tokens_details':{'cached_tokens':$},'output_tokens':$,"
                  "'output_tokens_details':{'reasoning_tokens':$},'total_tokens':$}",
                  JSON(in), JSON(c->cached_tokens), JSON(out), JSON(c->thought_tokens), JSON(in + out));
}

/* `status`: "in_progress", "failed", or NULL: as the choice ended. */
static void keep(struct exchange *ex, size_t from, const size_t *items, size_t count);

static void add_response(struct exchange *ex, const char *status)
{
    struct cli_text *out = &ex->out;
    struct choice *c = &ex->choices[0];
    const bool cut = !status && c->finish == HELM_FINISH_LENGTH, over = !status;
    const size_t from = out->length;
    size_t items[sizeof c->items.what + 1] = {0}; /* where each begins; a comma follows each */
    cli_text_fill(out, "{'id':'resp_$','object':'response','created_at':$,'status':$,'model':$,'error':",
                  PLAIN(ex->id), JSON(ex->created),
                  JSON(status ? status
                       : cut  ? "incomplete"
                              : "completed"),
                  JSON(ex->gateway->model.name));
    if (ex->refusal.status)
        cli_text_fill(out, "{'code':'server_error','message':$}", JSON(ex->refusal.text));
    else
        cli_text_fill(out, "null");
    cli_text_fill(out, ",'incomplete_details':$,'output':[",
                  PLAIN(cut ? "{\"reason\":\"max_output_tokens\"}" : "null"));
    for (uint32_t i = 0; over && i < c->items.count; i++) {
        items[i] = out->length;
        add_item(ex, c, i, true);
        cli_text_fill(out, ",");
        items[i + 1] = out->length;
    }
    cli_text_fill(out, "],'usage':");
    if (over)
        add_usage(ex, c);
    else
        cli_text_fill(out, "null");
    cli_text_fill(out, ",");
    cli_text_add(out, ex->ask.echo_text + 1, ex->ask.echo_bytes - 1); /* with its closing brace */
    if (over && ex->ask.store && !out->failed) keep(ex, from, items, c->items.count);
}

/* The answer that was written at `from`, with its items, for requests that go on with it. */
static void keep(struct exchange *ex, size_t from, const size_t *items, size_t count)
{
    const struct cli_text *out = &ex->out;
    static const char before_id[] = "{\"id\":\"";
    char id[RESPONSES_ID];
    bool good = true;
    for (size_t i = 0; i < count && good; i++) {
        const char *text = out->data + items[i], *item_id = text + strlen(before_id);
        snprintf(id, sizeof id, "%.*s", (int)strcspn(item_id, "\""), item_id);
        good = response_items_add(&ex->ask.items, id, text, items[i + 1] - items[i] - 1);
    }
    if (!good) return; /* no memory: it is not kept */
    snprintf(id, sizeof id, "resp_%s", ex->id);
    const struct response_new new = {.owner = ex->whose->name,
                                     .id = id,
                                     .before = ex->ask.before,
                                     .items = &ex->ask.items,
                                     .text = out->data + from,
                                     .length = out->length - from};
    ex->ask.before = NULL;
    responses_add(ex->gateway->model.responses, &new);
}

/* ---- events ----------------------------------------------------------------------------------------- */

static void begin_event(struct exchange *ex, const char *type)
{
    cli_text_fill(&ex->out, "event: $\ndata: {'type':$,'sequence_number':$,", PLAIN(type), JSON(type),
                  JSON(ex->choices[0].items.sequence++));
}

static void begin_item_event(struct exchange *ex, const struct choice *c, const char *type, uint32_t index)
{
    char id[48];
    begin_event(ex, type);
    cli_text_fill(&ex->out, "'output_index':$,'item_id':$,", JSON(index), item_id(ex, c, index, id));
}

static void end_event(struct exchange *ex)
{
    cli_text_fill(&ex->out, "}\n\n");
}

static void response_event(struct exchange *ex, const char *type, const char *status)
{
    begin_event(ex, type);
    cli_text_fill(&ex->out, "'response':");
    add_response(ex, status);
    end_event(ex);
}

static void item_event(struct exchange *ex, struct choice *c, uint32_t index, bool done)
{
    begin_event(ex, done ? "response.output_item.done" : "response.output_item.added");
    cli_text_fill(&ex->out, "'output_index':$,'item':", JSON(index));
    add_item(ex, c, index, done);
    end_event(ex);
}

static void part_event(struct exchange *ex, struct choice *c, uint32_t index, bool done)
{
    begin_item_event(ex, c, done ? "response.content_part.done" : "response.content_part.added", index);
    cli_text_fill(&ex->out, "'content_index':0,'part':");
    add_part(ex, c, c->items.what[index], !done);
    end_event(ex);
}

/* An item's text from byte `from` on, or (`done`) all of it. */
static void text_event(struct exchange *ex, struct choice *c, uint32_t index, bool done, size_t from)
{
    const uint8_t what = c->items.what[index];
    char type[40];
    snprintf(type, sizeof type, "response.%s_text.%s", what == ITEM_REASONING ? "reasoning" : "output",
             done ? "done" : "delta");
    begin_item_event(ex, c, type, index);
    cli_text_fill(&ex->out, "'content_index':0,'$':$,", PLAIN(done ? "text" : "delta"),
                  JSON_REST(text_of(c, what), from));
    if (what == ITEM_MESSAGE) add_logprobs(ex, c, done ? 0 : c->tokens_sent, c->tokens_decided);
    end_event(ex);
}

/* ---- items in a stream ------------------------------------------------------------------------------ */

static uint32_t add_new(struct choice *c, uint8_t what)
{
    c->items.what[c->items.count] = what;
    return c->items.count++;
}

static int32_t find(const struct choice *c, uint8_t what)
{
    for (uint32_t i = 0; i < c->items.count; i++)
        if (c->items.what[i] == what) return (int32_t)i;
    return -1;
}

/* The item that text goes to; begun if there is none yet. */
static uint32_t open_item(struct exchange *ex, struct choice *c, uint8_t what)
{
    const int32_t at = find(c, what);
    if (at >= 0) return (uint32_t)at;
    const uint32_t index = add_new(c, what);
    item_event(ex, c, index, false);
    part_event(ex, c, index, false);
    c->items.open[what] = true;
    return index;
}

static void close_item(struct exchange *ex, struct choice *c, uint8_t what)
{
    if (!c->items.open[what]) return;
    const uint32_t index = (uint32_t)find(c, what);
    c->items.open[what] = false;
    text_event(ex, c, index, true, 0);
    part_event(ex, c, index, true);
    item_event(ex, c, index, true);
}

static void text_delta(struct exchange *ex, struct choice *c, uint8_t what, size_t *sent)
{
    const size_t length = text_of(c, what)->length;
    if (length == *sent) return;
    text_event(ex, c, open_item(ex, c, what), false, *sent);
    if (what == ITEM_MESSAGE) c->tokens_sent = c->tokens_decided;
    *sent = length;
}

static void arguments_event(struct exchange *ex, struct choice *c, size_t k, bool done)
{
    const uint32_t index = (uint32_t)find(c, (uint8_t)(ITEM_CALL + k));
    const struct cli_text *arguments = &c->calls[k].arguments;
    begin_item_event(ex, c,
                     done ? "response.function_call_arguments.done"
                          : "response.function_call_arguments.delta",
                     index);
    if (done) add_name(ex, c->calls[k].name);
    cli_text_fill(&ex->out, "'$':$", PLAIN(done ? "arguments" : "delta"),
                  JSON_REST(arguments, done ? 0 : c->arguments_sent));
    end_event(ex);
}

/* The new parts of calls: an item when a name is known, its arguments as they come. `last`: no more comes of
 * them. */
static void call_events(struct exchange *ex, struct choice *c, bool last)
{
    while (c->items.calls_done < c->call_count) {
        const size_t k = c->items.calls_done;
        const struct choice_call *call = &c->calls[k];
        if (k == c->calls_sent) {
            item_event(ex, c, add_new(c, (uint8_t)(ITEM_CALL + k)), false);
            c->calls_sent++;
            c->arguments_sent = 0;
        }
        if (call->arguments.length > c->arguments_sent) {
            arguments_event(ex, c, k, false);
            c->arguments_sent = call->arguments.length;
        }
        if (!call->ended && !last) return;
        arguments_event(ex, c, k, true);
        item_event(ex, c, (uint32_t)find(c, (uint8_t)(ITEM_CALL + k)), true);
        c->items.calls_done++;
    }
}

/* ---- the voice -------------------------------------------------------------------------------------- */

static void begin(struct exchange *ex)
{
    response_event(ex, "response.created", "in_progress");
    response_event(ex, "response.in_progress", "in_progress");
}

static void delta(struct exchange *ex, struct choice *c)
{
    text_delta(ex, c, ITEM_REASONING, &c->thought_sent);
    if (c->text.length > c->text_sent || c->call_count > c->calls_sent) close_item(ex, c, ITEM_REASONING);
    text_delta(ex, c, ITEM_MESSAGE, &c->text_sent);
    call_events(ex, c, false);
}

static void finish(struct exchange *ex, struct choice *c)
{
    close_item(ex, c, ITEM_REASONING);
    call_events(ex, c, true);
    if (!c->call_count) open_item(ex, c, ITEM_MESSAGE); /* an answer of nothing is an empty message */
    close_item(ex, c, ITEM_MESSAGE);
}

static void end(struct exchange *ex)
{
    const bool cut = ex->choices[0].finish == HELM_FINISH_LENGTH;
    response_event(ex, cut ? "response.incomplete" : "response.completed", NULL);
}

static void whole(struct exchange *ex)
{
    struct choice *c = &ex->choices[0];
    if (c->thought.length) add_new(c, ITEM_REASONING);
    if (c->text.length || !c->call_count) add_new(c, ITEM_MESSAGE);
    for (size_t k = 0; k < c->call_count; k++) add_new(c, (uint8_t)(ITEM_CALL + k));
    add_response(ex, NULL);
}

static void fail(struct exchange *ex)
{
    response_event(ex, "response.failed", "failed");
}

const struct voice voice_responses = {"text/event-stream", begin, delta, finish, end, whole, fail,
                                      VOICE_COMMENT};
