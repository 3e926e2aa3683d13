/* tokenizer_config.json: which tokens play which role, and the chat templates.
 *
 * Called by tokenizer.c at open; struct tok_config owns its strings. */
#include "client/text/tokenizer/internal.h"

#include <stdlib.h>
#include <string.h>

#include "common/base/json.h"

#define ROLES_MAX     64
#define TEMPLATES_MAX 64

static int add_named(struct tok_named **list, size_t *count, size_t max, const char *name, const char *text,
                     struct helm_err *err)
{
    if (*count >= max)
        return helm_fail(err, HELM_E_LIMIT, "more than %zu special tokens or chat templates", max);
    struct tok_named *grown = realloc(*list, (*count + 1) * sizeof *grown);
    if (!grown) return helm_fail(err, HELM_E_NOMEM, "no memory for special tokens or chat templates");
    *list = grown;
    struct tok_named named = {strdup(name), strdup(text)};
    if (!named.name || !named.text) {
        free(named.name);
        free(named.text);
        return helm_fail(err, HELM_E_NOMEM, "no memory for special tokens or chat templates");
    }
    grown[(*count)++] = named;
    return 0;
}

const char *tok_config_find(const struct tok_named *list, size_t count, const char *name)
{
    for (size_t i = 0; i < count; i++)
        if (strcmp(list[i].name, name) == 0) return list[i].text;
    return NULL;
}

int tok_config_set_template(struct tok_config *config, const char *name, const char *text,
                            struct helm_err *err)
{
    for (size_t i = 0; i < config->template_count; i++) {
        if (strcmp(config->templates[i].name, name) != 0) continue;
        char *copy = strdup(text);
        if (!copy) return helm_fail(err, HELM_E_NOMEM, "no memory for a chat template");
        free(config->templates[i].text);
        config->templates[i].text = copy;
        return 0;
    }
    return add_named(&config->templates, &config->template_count, TEMPLATES_MAX, name, text, err);
}

int tok_config_add_role(struct tok_config *config, const char *role, const char *text, struct helm_err *err)
{
    return add_named(&config->roles, &config->role_count, ROLES_MAX, role, text, err);
}

/* A role's value is the token's text, or an object that has it as "content". */
static int read_role(struct tok_config *config, const char *key, const json_t *value, struct helm_err *err)
{
    const json_t *text = json_is_object(value) ? json_object_get(value, "content") : value;
    if (!text || json_is_null(text)) return 0;
    if (!json_is_string(text))
        return helm_fail(err, HELM_E_FORMAT, "tokenizer_config.json: '%.64s' is neither a text nor a token",
                         key);
    return tok_config_add_role(config, key, json_string_value(text), err);
}

static int read_templates(struct tok_config *config, const json_t *value, struct helm_err *err)
{
    if (!value || json_is_null(value)) return 0;
    if (json_is_string(value))
        return tok_config_set_template(config, "default", json_string_value(value), err);
    if (!json_is_array(value))
        return helm_fail(err, HELM_E_FORMAT,
                         "tokenizer_config.json: 'chat_template' is neither a text nor a list");
    size_t i;
    json_t *item;
    json_array_foreach(value, i, item)
    {
        const json_t *name = json_object_get(item, "name"), *text = json_object_get(item, "template");
        if (!json_is_string(name) || !json_is_string(text))
            return helm_fail(err, HELM_E_FORMAT,
                             "tokenizer_config.json: chat_template: entry %zu has no name or no template", i);
        int rc = tok_config_set_template(config, json_string_value(name), json_string_value(text), err);
        if (rc) return rc;
    }
    return 0;
}

int tok_config_parse(struct tok_config *config, const char *text, size_t length, struct helm_err *err)
{
    json_t *root = NULL;
    int rc = json_parse_python("tokenizer_config.json", text, length, TOK_CONFIG_BYTES_MAX, &root, err);
    if (rc) return rc;
    if (!json_is_object(root)) {
        rc = helm_fail(err, HELM_E_FORMAT, "tokenizer_config.json: not an object");
        goto out;
    }
    const char *key;
    json_t *value;
    json_object_foreach(root, key, value)
    {
        size_t n = strlen(key);
        /* add_bos_token and its like are switches, not roles. */
        if (n <= 6 || strcmp(key + n - 6, "_token") != 0 || json_is_boolean(value)) continue;
        rc = read_role(config, key, value, err);
        if (rc) goto out;
    }
    rc = json_get_bool(root, "add_bos_token", false, &config->add_bos, err);
    if (!rc) rc = json_get_bool(root, "add_eos_token", false, &config->add_eos, err);
    if (rc) {
        helm_err_prefix(err, "tokenizer_config.json");
        goto out;
    }
    rc = read_templates(config, json_object_get(root, "chat_template"), err);
out:
    json_decref(root);
    return rc;
}

static void free_named(struct tok_named *list, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        free(list[i].name);
        free(list[i].text);
    }
    free(list);
}

void tok_config_free(struct tok_config *config)
{
    free_named(config->roles, config->role_count);
    free_named(config->templates, config->template_count);
    *config = (struct tok_config){0};
}
