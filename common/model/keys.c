/* Keys of configurations, by tables. See keys.h. */
#include "common/model/keys.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/json.h"
#include "common/base/suggest.h"

/* Keys of GGUF files that change what is computed, with the values that change nothing. An architecture that
 * reads one has it in its own table. 0 is as good as absent. */
#define FIXED(key, value, text)                                                                              \
    {                                                                                                        \
        .kind = KEY_FIXED, .gguf = {key}, .neutral = (value), .why = (text)                                  \
    }
static const struct arch_key demands[] = {
    FIXED("expert_count", 0, "no model of this architecture with experts is supported"),
    FIXED("expert_shared_count", 0, "shared experts of this architecture are not supported"),
    FIXED("expert_shared_feed_forward_length", 0, "shared experts of this architecture are not supported"),
    FIXED("expert_group_count", 1, "groups of experts are not supported"),
    FIXED("expert_weights_scale", 1, "scaled weights of experts are not supported"),
    FIXED("leading_dense_block_count", 0,
          "dense layers before sparse ones are not supported in GGUF files of this architecture"),
    FIXED("attention.temperature_scale", 0, "scaling attention by position is not supported"),
    FIXED("rope.scaling.yarn_log_multiplier", 0, "YaRN with a multiplier of its own is not supported"),
    FIXED("rope.scaling.attn_factor", 1, "YaRN with an attention factor of its own is not supported"),
    FIXED("rope.scale_linear", 1, "the old key of linear RoPE scaling is not supported"),
    FIXED("logit_scale", 1, "scaled logits are not supported"),
    FIXED("residual_scale", 1, "a scaled residual is not supported"),
    FIXED("embedding_scale", 1, "scaled embeddings are not supported"),
    {.kind = KEY_NONE},
};

/* ---- names ---- */

const char *keys_row_name(const struct keys *keys, const struct arch_key *row, char name[KEYS_NAME_MAX])
{
    if (keys->json)
        snprintf(name, KEYS_NAME_MAX, "%s", row->name[0] ? row->name[0] : "?");
    else
        snprintf(name, KEYS_NAME_MAX, "%s.%s", keys->prefix, row->gguf[0] ? row->gguf[0] : "?");
    return name;
}

const char *keys_name(const struct keys *keys, size_t member, char name[KEYS_NAME_MAX])
{
    const struct arch_key *row = keys->arch->keys;
    while (row->kind && !(row->at == member && (keys->json ? row->name[0] : row->gguf[0]) &&
                          row->kind != KEY_WORD && row->kind != KEY_FIXED))
        row++;
    if (!row->kind) {
        snprintf(name, KEYS_NAME_MAX, "?");
        return name;
    }
    for (int i = 0; keys->json && i < KEY_NAMES_MAX && row->name[i]; i++)
        if (json_object_get(keys->json, row->name[i])) {
            snprintf(name, KEYS_NAME_MAX, "%s", row->name[i]);
            return name;
        }
    return keys_row_name(keys, row, name);
}

/* ---- one value ---- */

static void put_number(struct model_config *config, const struct arch_key *row, double number)
{
    char *to = (char *)config + row->at;
    switch (row->kind) {
    case KEY_U32:
        *(uint32_t *)to = (uint32_t)number;
        break;
    case KEY_DOUBLE:
        *(double *)to = number;
        break;
    case KEY_FLOAT:
        *(float *)to = (float)number;
        break;
    case KEY_BOOL:
        *(bool *)to = number != 0;
        break;
    case KEY_NONE:
    case KEY_WORD:
    case KEY_FIXED:
        break;
    }
}

/* The value of row's kind in the file, words aside; *number stays 0 without one. */
static int read_number(const struct keys *keys, const char *name, bool needed, const struct arch_key *row,
                       double *number, struct helm_err *err)
{
    const json_t *json = keys->json;
    const bool fixed = row->kind == KEY_FIXED;
    const double least = fixed ? -1e300 : row->min, most = fixed ? 1e300 : row->max;
    int rc;
    if (row->kind == KEY_BOOL) {
        bool flag = false;
        rc = json ? json_get_bool(json, name, needed, &flag, err)
                  : gguf_get_bool(keys->header, name, needed, &flag, err);
        *number = flag;
        return rc;
    }
    if (row->kind == KEY_U32) {
        const uint64_t low = !json && row->zero_is_none ? 0 : (uint64_t)row->min, high = (uint64_t)row->max;
        uint64_t whole = 0;
        rc = json ? json_get_u64(json, name, needed, low, high, &whole, err)
                  : gguf_get_u64(keys->header, name, needed, low, high, &whole, err);
        *number = (double)whole;
        return rc;
    }
    rc = json ? json_get_double(json, name, needed, least, most, number, err)
              : gguf_get_double(keys->header, name, needed, least, most, number, err);
    if (rc || !fixed || (!json && *number == 0) || fabs(*number - row->neutral) <= 1e-6 * fabs(row->neutral))
        return rc;
    const char *of = json ? "" : "key ";
    if (row->why) return helm_fail(err, HELM_E_UNSUPPORTED, "%s'%s' is %g: %s", of, name, *number, row->why);
    return helm_fail(err, HELM_E_UNSUPPORTED, "%s'%s' is %g; only %g is supported", of, name, *number,
                     row->neutral);
}

/* ---- config.json ---- */

/* The name that the object has, of those that mean the same. */
static int find_alias(const json_t *json, const struct arch_key *row, const char **name, struct helm_err *err)
{
    *name = NULL;
    for (int i = 0; i < KEY_NAMES_MAX && row->name[i]; i++) {
        const json_t *value = json_object_get(json, row->name[i]);
        if (!value) continue;
        if (*name && !json_equal(value, json_object_get(json, *name)))
            return helm_fail(err, HELM_E_MISMATCH, "'%s' and '%s' contradict each other", *name,
                             row->name[i]);
        if (!*name) *name = row->name[i];
    }
    return 0;
}

static int read_json(const struct keys *keys, const struct arch_key *row, struct model_config *config,
                     struct helm_err *err)
{
    const char *name, *word = NULL;
    double number = 0;
    if (!row->name[0]) return 0;
    int rc = find_alias(keys->json, row, &name, err);
    if (rc) return rc;
    const bool null = name && json_is_null(json_object_get(keys->json, name));
    if (!name || null) {
        const bool missing = row->need == KEY_NEEDED || row->need == KEY_NEEDED_IN_CONFIG ||
                             (row->need == KEY_STATED && !name);
        if (missing) return helm_fail(err, HELM_E_FORMAT, "'%s' is missing", name ? name : row->name[0]);
        if (null && row->null_is_zero) put_number(config, row, 0);
        return 0;
    }
    if (row->kind != KEY_WORD) {
        rc = read_number(keys, name, true, row, &number, err);
        if (!rc) put_number(config, row, number);
        return rc;
    }
    rc = json_get_string(keys->json, name, true, &word, err);
    if (rc || suggest_knows(row->words, ' ', word)) return rc;
    return helm_fail(err, HELM_E_UNSUPPORTED, "'%s' is '%.40s'; only '%s' is supported", name, word,
                     row->words);
}

/* ---- GGUF ---- */

static int read_gguf(const struct keys *keys, const struct arch_key *row, struct model_config *config,
                     struct helm_err *err)
{
    char name[KEYS_NAME_MAX];
    const bool needed = row->need == KEY_NEEDED || row->need == KEY_NEEDED_IN_GGUF;
    const struct gguf_value *value = NULL;
    double number = 0;
    if (!row->gguf[0] || row->kind == KEY_WORD) return 0;
    for (int i = 0; i < 2 && row->gguf[i] && !value; i++) {
        snprintf(name, sizeof name, "%s.%s", keys->prefix, row->gguf[i]);
        value = gguf_find(keys->header, name);
    }
    if (!value) keys_row_name(keys, row, name);
    const int rc = read_number(keys, name, needed, row, &number, err);
    if (!rc && value && !(row->zero_is_none && number == 0)) put_number(config, row, number);
    return rc;
}

bool keys_reads_gguf(const struct arch *arch, const char *name)
{
    for (const struct arch_key *row = arch->keys; row->kind; row++)
        for (int i = 0; i < 2 && row->gguf[i]; i++)
            if (strcmp(row->gguf[i], name) == 0) return true;
    return false;
}

int keys_read(const struct keys *keys, struct model_config *config, struct helm_err *err)
{
    int rc = 0;
    for (const struct arch_key *row = demands; keys->header && row->kind && !rc; row++)
        if (!keys_reads_gguf(keys->arch, row->gguf[0])) rc = read_gguf(keys, row, config, err);
    for (const struct arch_key *row = keys->arch->keys; row->kind && !rc; row++)
        rc = (keys->json ? read_json : read_gguf)(keys, row, config, err);
    return rc;
}

/* ---- numbers that follow ---- */

#define NAME(member, buffer) keys_name(keys, offsetof(struct model_config, member), buffer)

static int check_heads(const struct keys *keys, struct model_config *c, struct helm_err *err)
{
    char a[KEYS_NAME_MAX], b[KEYS_NAME_MAX], d[KEYS_NAME_MAX];
    if (c->latent.rank) {
        c->kv_heads = 1;
        c->head_dim = c->latent.rank + c->rope[0].dims;
        if (c->rope[0].dims % 2)
            return helm_fail(err, HELM_E_FORMAT, "'%s' is %u; rotary embeddings need an even one",
                             NAME(rope[0].dims, a), c->rope[0].dims);
        if (c->head_dim > MODEL_HEAD_DIM_MAX)
            return helm_fail(err, HELM_E_LIMIT, "'%s' + '%s' is %u, the limit is %d", NAME(latent.rank, a),
                             NAME(rope[0].dims, b), c->head_dim, MODEL_HEAD_DIM_MAX);
    }
    if (c->kv_heads == 0) c->kv_heads = c->window_heads.kv_heads ? c->window_heads.kv_heads : c->heads;
    if (c->heads % c->kv_heads != 0)
        return helm_fail(err, HELM_E_FORMAT, "'%s' %u is not a multiple of '%s' %u", NAME(heads, a), c->heads,
                         NAME(kv_heads, b), c->kv_heads);
    if (c->head_dim == 0) {
        if (c->hidden % c->heads != 0)
            return helm_fail(err, HELM_E_FORMAT, "'%s' %u is not a multiple of '%s' %u and there is no '%s'",
                             NAME(hidden, a), c->hidden, NAME(heads, b), c->heads, NAME(head_dim, d));
        c->head_dim = c->hidden / c->heads;
        if (c->head_dim > MODEL_HEAD_DIM_MAX)
            return helm_fail(err, HELM_E_LIMIT, "'%s' / '%s' is %u, the limit is %d", NAME(hidden, a),
                             NAME(heads, b), c->head_dim, MODEL_HEAD_DIM_MAX);
    }
    if (c->head_dim % 2 != 0)
        return helm_fail(err, HELM_E_FORMAT, "'%s' is %u; rotary embeddings need an even one",
                         NAME(head_dim, a), c->head_dim);
    return 0;
}

static int check_experts(const struct keys *keys, struct model_config *c, struct helm_err *err)
{
    const struct model_router *r = &c->router;
    char a[KEYS_NAME_MAX], b[KEYS_NAME_MAX];
    if (!r->experts) return 0;
    if (r->chosen > r->experts)
        return helm_fail(err, HELM_E_FORMAT, "'%s' is %u, but there are %u experts ('%s')",
                         NAME(router.chosen, a), r->chosen, r->experts, NAME(router.experts, b));
    const uint32_t size = r->experts / r->groups;
    if (r->experts % r->groups || r->groups_chosen > r->groups || r->chosen > r->groups_chosen * size)
        return helm_fail(err, HELM_E_FORMAT,
                         "%u experts in '%s' %u groups, of which '%s' %u are looked at, %u experts chosen: "
                         "no such choice",
                         r->experts, NAME(router.groups, a), r->groups, NAME(router.groups_chosen, b),
                         r->groups_chosen, r->chosen);
    return 0;
}

int keys_check(const struct keys *keys, struct model_config *c, struct helm_err *err)
{
    char a[KEYS_NAME_MAX], b[KEYS_NAME_MAX];
    int rc = check_heads(keys, c, err);
    if (!rc) rc = check_experts(keys, c, err);
    if (rc) return rc;
    /* GGUF files count layers of drafts among the others. */
    if (c->draft_layers && keys->header) {
        if (c->draft_layers >= c->layers)
            return helm_fail(err, HELM_E_FORMAT, "'%s' is %u of '%s' %u", NAME(draft_layers, a),
                             c->draft_layers, NAME(layers, b), c->layers);
        c->layers -= c->draft_layers;
    }
    return 0;
}

/* ---- which layer has what ---- */

int layers_listed(const struct keys *keys, const struct model_config *config, const char *key,
                  const char *usual, const char *other, bool **is_other, struct helm_err *err)
{
    const json_t *list = keys->json ? json_object_get(keys->json, key) : NULL;
    *is_other = NULL;
    if (!list || json_is_null(list)) return 0;
    if (json_array_size(list) != config->layers)
        return helm_fail(err, HELM_E_MISMATCH, "'%s' is no list of %u entries, one for each layer", key,
                         config->layers);
    bool *is = calloc(config->layers, sizeof *is);
    if (!is) return helm_fail(err, HELM_E_NOMEM, "no memory for %u layers", config->layers);
    for (uint32_t i = 0; i < config->layers; i++) {
        const char *type = json_string_value(json_array_get(list, i));
        is[i] = type && strcmp(type, other) == 0;
        if (is[i] || (type && strcmp(type, usual) == 0)) continue;
        free(is);
        return helm_fail(err, HELM_E_UNSUPPORTED, "'%s' entry %u is '%.40s'; only %s and %s are supported",
                         key, i, type ? type : "no string", usual, other);
    }
    *is_other = is;
    return 0;
}

int layers_without_window(struct keys *keys, struct model_config *config, struct helm_err *err)
{
    (void)keys;
    config->window = calloc(config->layers, sizeof *config->window);
    return config->window ? 0 : helm_fail(err, HELM_E_NOMEM, "no memory for %u layers", config->layers);
}

int layers_with_window(struct keys *keys, struct model_config *config, uint32_t first, uint32_t last,
                       uint32_t step, struct helm_err *err)
{
    bool *in_window;
    int rc = layers_without_window(keys, config, err);
    if (!rc)
        rc = layers_listed(keys, config, "layer_types", "full_attention", "sliding_attention", &in_window,
                           err);
    if (rc) return rc;
    for (uint32_t i = 0; in_window && i < config->layers && !rc; i++)
        if (in_window[i] && config->sliding_window == 0)
            rc = helm_fail(err, HELM_E_MISMATCH,
                           "'layer_types' entry %u is sliding_attention, but no 'sliding_window' is in force",
                           i);
        else if (in_window[i])
            config->window[i] = config->sliding_window;
    for (uint64_t i = first; !in_window && i < config->layers && i < last; i += step)
        config->window[i] = config->sliding_window;
    free(in_window);
    return rc;
}

void layers_full_every(const struct keys *keys, struct model_config *config, uint32_t interval)
{
    if (keys->json && json_is_array(json_object_get(keys->json, "layer_types"))) return;
    for (uint64_t i = interval; i <= config->layers; i += interval) config->window[i - 1] = 0;
}

/* From a GGUF file: a flag for each layer, those of drafts after the others. */
static int recurrent_from_flags(const struct gguf_value *flags, struct model_config *config,
                                struct helm_err *err)
{
    if (!flags->array || flags->type == GGUF_STRING || flags->type == GGUF_ARRAY ||
        flags->count < config->layers)
        return helm_fail(err, HELM_E_MISMATCH, "key '%s' is no list of flags, one for each of %u layers",
                         flags->key, config->layers);
    for (uint32_t i = 0; i < config->layers; i++) config->recurrent[i] = gguf_number(flags, i) != 0;
    return 0;
}

int layers_recurrent(const struct keys *keys, struct model_config *config, struct helm_err *err)
{
    char name[KEYS_NAME_MAX];
    int rc = layers_listed(keys, config, "layer_types", "full_attention", "linear_attention",
                           &config->recurrent, err);
    if (rc || config->recurrent) return rc;
    config->recurrent = calloc(config->layers, sizeof *config->recurrent);
    if (!config->recurrent) return helm_fail(err, HELM_E_NOMEM, "no memory for %u layers", config->layers);
    snprintf(name, sizeof name, "%s.attention.recurrent_layers", keys->prefix ? keys->prefix : "");
    const struct gguf_value *flags = keys->header ? gguf_find(keys->header, name) : NULL;
    if (flags) return recurrent_from_flags(flags, config, err);
    if (config->full_attention_interval == 0)
        return helm_fail(err, HELM_E_FORMAT, "'%s' and '%s' are both missing",
                         keys->json ? "layer_types" : name, "full_attention_interval");
    for (uint32_t i = 0; i < config->layers; i++)
        config->recurrent[i] = (i + 1) % config->full_attention_interval != 0;
    return 0;
}

static int read_dense_layers(const json_t *root, const char *key, bool *sparse, uint32_t layers,
                             struct helm_err *err)
{
    const json_t *list = json_object_get(root, key);
    if (!list || json_is_null(list)) return 0;
    if (!json_is_array(list)) return helm_fail(err, HELM_E_FORMAT, "'%s' is not a list", key);
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *value = json_array_get(list, i);
        const json_int_t layer = json_is_integer(value) ? json_integer_value(value) : -1;
        if (layer < 0) return helm_fail(err, HELM_E_FORMAT, "'%s' entry %zu is not a layer's number", key, i);
        if (layer < (json_int_t)layers) sparse[layer] = false;
    }
    return 0;
}

int layers_with_experts(const struct keys *keys, struct model_config *config, const char *dense,
                        struct helm_err *err)
{
    const uint32_t step = config->sparse_step ? config->sparse_step : 1;
    bool any = false;
    int rc = 0;
    config->sparse = calloc(config->layers, sizeof *config->sparse);
    if (!config->sparse) return helm_fail(err, HELM_E_NOMEM, "no memory for %u layers", config->layers);
    for (uint32_t i = config->leading_dense; i < config->layers; i++) config->sparse[i] = (i + 1) % step == 0;
    if (keys->json && dense) rc = read_dense_layers(keys->json, dense, config->sparse, config->layers, err);
    for (uint32_t i = 0; i < config->layers; i++) any |= config->sparse[i];
    if (rc || any) return rc;
    free(config->sparse); /* a dense model, whatever it says of experts */
    config->sparse = NULL;
    config->router = (struct model_router){0};
    config->expert_intermediate = config->shared_intermediate = 0;
    config->shared_weighed = false;
    return 0;
}

int layers_shared_experts(const struct keys *keys, struct model_config *config, struct helm_err *err)
{
    char name[KEYS_NAME_MAX];
    const uint64_t shared = (uint64_t)config->shared_experts * config->expert_intermediate;
    if (shared > MODEL_INTERMEDIATE_MAX)
        return helm_fail(err, HELM_E_LIMIT, "'%s' makes shared experts of %llu, the limit is %u",
                         NAME(shared_experts, name), (unsigned long long)shared, MODEL_INTERMEDIATE_MAX);
    config->shared_intermediate = (uint32_t)shared;
    return 0;
}

uint32_t layers_usual_kind(const struct model_config *config, uint32_t layer, enum unit_part part)
{
    /* a name in a file may have any layer's number */
    const bool drafts = config->drafts && layer >= model_answer_layers(config);
    const uint32_t first = drafts ? MATH_PART_DRAFTS : 0;
    if (part == UNIT_ATTENTION) return first + MATH_PART_ATTENTION;
    return first + (model_layer_sparse(config, layer) ? MATH_PART_SPARSE : MATH_PART_DENSE);
}
