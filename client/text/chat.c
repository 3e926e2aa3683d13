/* The chat template of a checkpoint: found, parsed once, given its variables and rendered as transformers'
 * apply_chat_template does. See chat.h. The interpreter is jinja.h's. */
#include "client/text/chat.h"

#include <stdlib.h>
#include <string.h>

#include "client/text/jinja/jinja.h"
#include "client/text/tokenizer/internal.h"
#include "common/base/file.h"
#include "common/base/json.h"
#include "common/model/gguf.h"

#define REQUEST_BYTES_MAX (64u << 20)

struct helm_chat {
    struct jinja_template *standard,
        *tools;   /* tools: a template of its own for requests with tools, or NULL */
    char *source; /* of both, one after the other: which tokens they spell */
    size_t source_length;
    struct tok_config config;
};

/* ---- opening */

static int parse_source(struct helm_chat *chat, const char *text, size_t length, struct jinja_template **out,
                        struct helm_err *err)
{
    const int rc = jinja_parse(text, length, out, err);
    if (rc) return rc;
    char *grown = realloc(chat->source, chat->source_length + length + 1);
    if (!grown) return helm_fail(err, HELM_E_NOMEM, "no memory for the chat template");
    memcpy(grown + chat->source_length, text, length);
    chat->source = grown;
    chat->source_length += length;
    chat->source[chat->source_length++] =
        '\0'; /* no token is spelled by the end of one and the beginning of the other */
    return 0;
}

static int parse_template(struct helm_chat *chat, const char *name, struct jinja_template **out,
                          struct helm_err *err)
{
    const char *text = tok_config_find(chat->config.templates, chat->config.template_count, name);
    return text ? parse_source(chat, text, strlen(text), out, err) : 0;
}

/* The templates of chat->config, which come from what `what` names. */
static int parse_templates(struct helm_chat *chat, const char *what, struct helm_err *err)
{
    int rc = parse_template(chat, "default", &chat->standard, err);
    if (!rc) rc = parse_template(chat, "tool_use", &chat->tools, err);
    if (!rc && chat->config.template_count && !chat->standard)
        rc = helm_fail(err, HELM_E_NOT_FOUND, "none of its templates is named 'default'");
    return rc && err ? helm_err_prefix(err, "%s", what) : rc;
}

/* tokenizer_config.json: special tokens, and, unless a file of its own has it, the template. */
static int read_config(struct helm_chat *chat, const char *folder, struct helm_err *err)
{
    char *text = NULL;
    size_t length = 0;
    int rc = file_read_inside(folder, "tokenizer_config.json", TOK_CONFIG_BYTES_MAX, &text, &length, err);
    if (rc == HELM_E_NOT_FOUND) {
        if (err) *err = (struct helm_err){0};
        return 0;
    }
    if (!rc) rc = tok_config_parse(&chat->config, text, length, err);
    free(text);
    return rc || chat->standard ? rc : parse_templates(chat, "tokenizer_config.json: chat_template", err);
}

/* A GGUF file: special tokens, and, unless a file beside it has it, the template. */
static int read_gguf(struct helm_chat *chat, const char *path, struct helm_err *err)
{
    struct gguf header;
    int rc = gguf_open(path, &header, err);
    if (!rc && header.values) rc = tok_config_read_gguf(&chat->config, &header, err);
    gguf_free(&header);
    return rc || chat->standard ? rc : parse_templates(chat, "tokenizer.chat_template", err);
}

/* chat_template.jinja, which wins over tokenizer_config.json. */
static int read_template_file(struct helm_chat *chat, const char *folder, struct helm_err *err)
{
    char *text = NULL;
    size_t length = 0;
    int rc = file_read_inside(folder, "chat_template.jinja", JINJA_TEMPLATE_BYTES_MAX, &text, &length, err);
    if (rc == HELM_E_NOT_FOUND) {
        if (err) *err = (struct helm_err){0};
        return 0;
    }
    if (rc) return rc;
    rc = parse_source(chat, text, length, &chat->standard, err);
    if (rc && err) helm_err_prefix(err, "chat_template.jinja");
    free(text);
    return rc;
}

int helm_chat_open(const char *path, struct helm_chat **out, struct helm_err *err)
{
    *out = NULL;
    struct helm_chat *chat = calloc(1, sizeof *chat);
    if (!chat) return helm_fail(err, HELM_E_NOMEM, "no memory for the chat template");
    const bool folder = file_is_folder(path);
    int rc = folder ? read_template_file(chat, path, err) : 0;
    if (!rc && folder) rc = read_config(chat, path, err);
    if (!rc && !chat->config.role_count && !chat->config.template_count) rc = read_gguf(chat, path, err);
    if (!rc && !chat->standard)
        rc = helm_fail(
            err, HELM_E_NOT_FOUND,
            "%s has no chat template: no chat_template.jinja, no chat_template in tokenizer_config.json, "
            "and no GGUF file with tokenizer.chat_template",
            path);
    if (rc) {
        helm_chat_close(&chat);
        return rc;
    }
    *out = chat;
    return 0;
}

void helm_chat_close(struct helm_chat **chat)
{
    if (!*chat) return;
    tok_config_free(&(*chat)->config);
    jinja_free((*chat)->standard);
    jinja_free((*chat)->tools);
    free((*chat)->source);
    free(*chat);
    *chat = NULL;
}

/* ---- rendering */

/* The inputs of a template: `variables` (ours) has messages, tools and add_generation_prompt; `extra` is
 * borrowed and may be NULL. */
struct conversation {
    json_t *variables;
    json_t *extra;
    struct json_numbers *numbers; /* of both */
    int64_t now_s;
};

static void end_conversation(struct conversation *c)
{
    json_decref(c->variables);
    json_decref(c->extra);
    json_numbers_free(c->numbers);
    *c = (struct conversation){0};
}

/* own NULL: not asked for. */
static int render(const struct helm_chat *chat, const struct conversation *c, char **text, size_t *length,
                  unsigned char **own, struct helm_err *err)
{
    const json_t *tools = json_object_get(c->variables, "tools");
    json_t *named = json_object();
    int bad = !named || json_object_set_new(c->variables, "documents", json_null());
    for (size_t i = 0; !bad && i < chat->config.role_count; i++)
        bad = json_object_set_new(named, chat->config.roles[i].name, json_string(chat->config.roles[i].text));
    if (!bad && c->extra) bad = json_object_update(c->variables, c->extra);
    int rc = bad ? helm_fail(err, HELM_E_NOMEM, "no memory for the chat template's variables") : 0;
    if (!rc) {
        const struct jinja_input input = {.variables = c->variables,
                                          .numbers = c->numbers,
                                          .now_s = c->now_s,
                                          .own = named,
                                          .own_key = "role"};
        const struct jinja_template *template =
            chat->tools && !json_is_null(tools) ? chat->tools : chat->standard;
        rc = own ? jinja_render_marked(template, &input, text, length, own, err)
                 : jinja_render(template, &input, text, length, err);
        if (rc && err) helm_err_prefix(err, "chat template");
    }
    json_decref(named);
    return rc;
}

static int take_messages(const struct helm_chat_message *messages, size_t count, int add_generation_prompt,
                         struct conversation *c, struct helm_err *err)
{
    json_t *list = json_array();
    for (size_t i = 0; i < count; i++) {
        const struct helm_chat_message *m = &messages[i];
        json_t *item = json_pack("{s:s, s:s}", "role", m->role, "content", m->content);
        if (json_array_append_new(list, item) == 0) continue; /* takes it, also when it fails */
        json_decref(list);
        if (item) return helm_fail(err, HELM_E_NOMEM, "no memory for the conversation");
        return helm_fail(err, HELM_E_FORMAT, "message %zu: its %s is not UTF-8", i,
                         utf8_is_valid(m->role, strlen(m->role)) ? "content" : "role");
    }
    c->variables = json_pack("{s:o, s:n, s:b}", "messages", list, "tools", "add_generation_prompt",
                             add_generation_prompt);
    return 0;
}

/* NULL text: *out stays NULL. */
static int parse_part(const char *what, const char *text, json_type type, struct json_numbers **numbers,
                      json_t **out, struct helm_err *err)
{
    *out = NULL;
    if (!text) return 0;
    int rc = json_parse_numbers(what, text, strlen(text), REQUEST_BYTES_MAX, numbers, out, err);
    if (rc || json_typeof(*out) == type) return rc;
    if (type == JSON_ARRAY && json_is_null(*out) && strcmp(what, "tools") == 0) return 0;
    json_decref(*out);
    *out = NULL;
    return helm_fail(err, HELM_E_FORMAT, "%s: not %s", what, type == JSON_ARRAY ? "a list" : "an object");
}

static int take_input(const struct helm_chat_input *input, struct conversation *c, struct helm_err *err)
{
    static const char *const reserved[] = {"messages", "tools", "add_generation_prompt"};
    json_t *messages = NULL, *tools = NULL;
    int rc = input->messages
                 ? parse_part("messages", input->messages, JSON_ARRAY, &c->numbers, &messages, err)
                 : helm_fail(err, HELM_E_FORMAT, "messages: missing");
    if (!rc) rc = parse_part("tools", input->tools, JSON_ARRAY, &c->numbers, &tools, err);
    if (!rc) rc = parse_part("extra variables", input->extra, JSON_OBJECT, &c->numbers, &c->extra, err);
    for (size_t i = 0; !rc && i < sizeof reserved / sizeof *reserved; i++)
        if (json_object_get(c->extra, reserved[i]))
            rc = helm_fail(err, HELM_E_FORMAT, "extra variables: '%s' has a parameter of its own",
                           reserved[i]);
    c->now_s = input->now_s;
    if (!rc)
        c->variables = json_pack("{s:O, s:O?, s:b}", "messages", messages, "tools", tools,
                                 "add_generation_prompt", input->add_generation_prompt);
    json_decref(messages);
    json_decref(tools);
    return rc;
}

int helm_chat_render(const struct helm_chat *chat, const struct helm_chat_message *messages, size_t count,
                     int add_generation_prompt, char **text, size_t *length, struct helm_err *err)
{
    struct conversation c = {0};
    *text = NULL;
    *length = 0;
    int rc = take_messages(messages, count, add_generation_prompt, &c, err);
    if (!rc) rc = render(chat, &c, text, length, NULL, err);
    end_conversation(&c);
    return rc;
}

int helm_chat_render_json(const struct helm_chat *chat, const struct helm_chat_input *input, char **text,
                          size_t *length, struct helm_err *err)
{
    struct conversation c = {0};
    *text = NULL;
    *length = 0;
    int rc = take_input(input, &c, err);
    if (!rc) rc = render(chat, &c, text, length, NULL, err);
    end_conversation(&c);
    return rc;
}

/* ---- rendering to tokens */

#define MARKS_APART 8 /* tokens between two marks: templates write several special tokens between messages */
#define MARKS_LAST                                                                                           \
    2 /* messages before the last whose ends are marked, of a template without special tokens */

static void add_mark(struct helm_chat_prompt *out, size_t at)
{
    if (at == 0 || (out->mark_count && at < out->marks[out->mark_count - 1] + MARKS_APART)) return;
    if (out->mark_count == HELM_CHAT_MARKS_MAX) {
        out->mark_count--;
        memmove(out->marks + 1, out->marks + 2, (out->mark_count - 1) * sizeof *out->marks);
    }
    out->marks[out->mark_count++] = (uint32_t)at;
}

/* A template writes special tokens around messages, and texts spell none: the first after a text is where
 * that ends. */
static void mark_special(const struct helm_tokenizer *tokenizer, struct helm_chat_prompt *out)
{
    for (size_t i = 1; i < out->count; i++)
        if (helm_tokenizer_is_special(tokenizer, out->ids[i])) add_mark(out, i);
}

static int encode_text(const struct helm_chat *chat, const struct helm_tokenizer *tokenizer,
                       const struct conversation *c, unsigned flags, struct helm_chat_prompt *out,
                       struct helm_err *err)
{
    unsigned char *own = NULL;
    const bool marked = !(flags & HELM_CHAT_ALLOW_SPECIAL);
    int rc = render(chat, c, &out->text, &out->length, marked ? &own : NULL, err);
    if (!rc && marked)
        rc = tok_encode_marked(tokenizer, (struct tok_slice){out->text, out->length}, own,
                               (struct tok_slice){chat->source, chat->source_length}, &out->ids, &out->count,
                               err);
    else if (!rc)
        rc = helm_tokenizer_encode(tokenizer, out->text, out->length, HELM_TOKENIZER_ENCODE_PARSE_ADDED,
                                   &out->ids, &out->count, err);
    free(own);
    if (rc) helm_chat_prompt_free(out);
    return rc;
}

/* A template without special tokens: the conversation's beginning is rendered, and marked as far as its
 * tokens are the prompt's. One that the template refuses has no mark. */
static void mark_beginning(const struct helm_chat *chat, const struct helm_tokenizer *tokenizer,
                           const struct conversation *c, unsigned flags, size_t messages,
                           struct helm_chat_prompt *out)
{
    json_t *list = json_array(), *all = json_object_get(c->variables, "messages");
    struct conversation part = *c;
    struct helm_chat_prompt begins = {0};
    struct helm_err err;
    size_t same = 0;
    part.variables = json_copy(c->variables);
    bool bad = !list || !part.variables;
    for (size_t i = 0; i < messages && !bad; i++) bad = json_array_append(list, json_array_get(all, i)) != 0;
    bad = bad || json_object_set(part.variables, "messages", list) ||
          json_object_set_new(part.variables, "add_generation_prompt", json_false());
    if (!bad && encode_text(chat, tokenizer, &part, flags, &begins, &err) == 0)
        while (same < begins.count && same < out->count && begins.ids[same] == out->ids[same]) same++;
    if (same) add_mark(out, same);
    helm_chat_prompt_free(&begins);
    json_decref(part.variables);
    json_decref(list);
}

static int encode(const struct helm_chat *chat, const struct helm_tokenizer *tokenizer,
                  const struct conversation *c, unsigned flags, struct helm_chat_prompt *out,
                  struct helm_err *err)
{
    if (flags & ~(unsigned)HELM_CHAT_ALLOW_SPECIAL)
        return helm_fail(err, HELM_E_USAGE, "chat: unknown flags 0x%x", flags);
    int rc = encode_text(chat, tokenizer, c, flags, out, err);
    if (rc) return rc;
    mark_special(tokenizer, out);
    const size_t messages = json_array_size(json_object_get(c->variables, "messages"));
    const bool special = out->mark_count > 0;
    for (size_t i = messages > MARKS_LAST ? messages - MARKS_LAST : 1; i <= messages && !special; i++)
        mark_beginning(chat, tokenizer, c, flags, i, out);
    return 0;
}

int helm_chat_encode(const struct helm_chat *chat, const struct helm_tokenizer *tokenizer,
                     const struct helm_chat_message *messages, size_t count, unsigned flags,
                     struct helm_chat_prompt *out, struct helm_err *err)
{
    struct conversation c = {0};
    *out = (struct helm_chat_prompt){0};
    int rc = take_messages(messages, count, (flags & HELM_CHAT_GENERATION_PROMPT) != 0, &c, err);
    if (!rc) rc = encode(chat, tokenizer, &c, flags & ~(unsigned)HELM_CHAT_GENERATION_PROMPT, out, err);
    end_conversation(&c);
    return rc;
}

int helm_chat_encode_json(const struct helm_chat *chat, const struct helm_tokenizer *tokenizer,
                          const struct helm_chat_input *input, unsigned flags, struct helm_chat_prompt *out,
                          struct helm_err *err)
{
    struct conversation c = {0};
    *out = (struct helm_chat_prompt){0};
    int rc = take_input(input, &c, err);
    if (!rc) rc = encode(chat, tokenizer, &c, flags, out, err);
    end_conversation(&c);
    return rc;
}

void helm_chat_prompt_free(struct helm_chat_prompt *prompt)
{
    free(prompt->text);
    free(prompt->ids);
    *prompt = (struct helm_chat_prompt){0};
}
