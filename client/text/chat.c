/* The chat template of a checkpoint: found, parsed once, given its variables and rendered as transformers'
 * apply_chat_template does. See chat.h. The interpreter is jinja.h's. */
#include "client/text/chat.h"

#include <stdlib.h>
#include <string.h>

#include "client/text/jinja/jinja.h"
#include "client/text/jinja/run.h"
#include "client/text/tokenizer/internal.h"
#include "common/base/file.h"
#include "common/base/json.h"
#include "common/model/gguf.h"

#define REQUEST_BYTES_MAX (64u << 20)

struct helm_chat {
    struct jinja_template *standard,
        *tools; /* tools: a template of its own for requests with tools, or NULL */
    struct tok_config config;
};

/* ---- opening */

static int parse_template(const struct helm_chat *chat, const char *name, struct jinja_template **out,
                          struct helm_err *err)
{
    const char *text = tok_config_find(chat->config.templates, chat->config.template_count, name);
    return text ? jinja_parse(text, strlen(text), out, err) : 0;
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
    rc = jinja_parse(text, length, &chat->standard, err);
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
    free(*chat);
    *chat = NULL;
}

/* ---- rendering */

/* Takes `variables`: messages, tools and add_generation_prompt; `extra` is borrowed and may be NULL. */
static int render(const struct helm_chat *chat, json_t *variables, json_t *extra, int64_t now_s, char **text,
                  size_t *length, struct helm_err *err)
{
    const json_t *tools = json_object_get(variables, "tools");
    int bad = json_object_set_new(variables, "documents", json_null());
    for (size_t i = 0; !bad && i < chat->config.role_count; i++)
        bad |= json_object_set_new(variables, chat->config.roles[i].name,
                                   json_string(chat->config.roles[i].text));
    if (!bad && extra) bad = json_object_update(variables, extra);
    int rc = bad ? helm_fail(err, HELM_E_NOMEM, "no memory for the chat template's variables") : 0;
    if (!rc) {
        const struct jinja_input input = {.variables = variables, .now_s = now_s};
        const bool with_tools = chat->tools && !json_is_null(tools);
        rc = jinja_render(with_tools ? chat->tools : chat->standard, &input, text, length, err);
        if (rc && err) helm_err_prefix(err, "chat template");
    }
    json_decref(variables);
    return rc;
}

int helm_chat_render(const struct helm_chat *chat, const struct helm_chat_message *messages, size_t count,
                     int add_generation_prompt, char **text, size_t *length, struct helm_err *err)
{
    *text = NULL;
    *length = 0;
    json_t *list = json_array();
    for (size_t i = 0; i < count; i++) {
        const struct helm_chat_message *m = &messages[i];
        json_t *item = json_pack("{s:s, s:s}", "role", m->role, "content", m->content);
        if (json_array_append_new(list, item) == 0) continue; /* takes it, also when it fails */
        json_decref(list);
        if (item) return helm_fail(err, HELM_E_NOMEM, "no memory for the conversation");
        return helm_fail(err, HELM_E_FORMAT, "message %zu: its %s is not UTF-8", i,
                         jinja_utf8_valid(m->role, strlen(m->role)) ? "content" : "role");
    }
    return render(chat,
                  json_pack("{s:o, s:n, s:b}", "messages", list, "tools", "add_generation_prompt",
                            add_generation_prompt),
                  NULL, 0, text, length, err);
}

/* NULL text: *out stays NULL. */
static int parse_part(const char *what, const char *text, json_type type, json_t **out, struct helm_err *err)
{
    *out = NULL;
    if (!text) return 0;
    int rc = json_parse_bounded(what, text, strlen(text), REQUEST_BYTES_MAX, out, err);
    if (rc || json_typeof(*out) == type) return rc;
    if (type == JSON_ARRAY && json_is_null(*out) && strcmp(what, "tools") == 0) return 0;
    json_decref(*out);
    *out = NULL;
    return helm_fail(err, HELM_E_FORMAT, "%s: not %s", what, type == JSON_ARRAY ? "a list" : "an object");
}

int helm_chat_render_json(const struct helm_chat *chat, const struct helm_chat_input *input, char **text,
                          size_t *length, struct helm_err *err)
{
    static const char *const reserved[] = {"messages", "tools", "add_generation_prompt"};
    json_t *messages = NULL, *tools = NULL, *extra = NULL;
    *text = NULL;
    *length = 0;
    int rc = input->messages ? parse_part("messages", input->messages, JSON_ARRAY, &messages, err)
                             : helm_fail(err, HELM_E_FORMAT, "messages: missing");
    if (!rc) rc = parse_part("tools", input->tools, JSON_ARRAY, &tools, err);
    if (!rc) rc = parse_part("extra variables", input->extra, JSON_OBJECT, &extra, err);
    for (size_t i = 0; !rc && i < sizeof reserved / sizeof *reserved; i++)
        if (json_object_get(extra, reserved[i]))
            rc = helm_fail(err, HELM_E_FORMAT, "extra variables: '%s' has a parameter of its own",
                           reserved[i]);
    if (!rc)
        rc = render(chat,
                    json_pack("{s:O, s:O?, s:b}", "messages", messages, "tools", tools,
                              "add_generation_prompt", input->add_generation_prompt),
                    extra, input->now_s, text, length, err);
    json_decref(messages);
    json_decref(tools);
    json_decref(extra);
    return rc;
}
