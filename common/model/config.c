/* config.json and generation_config.json: every number bounded, every feature either known or refused by
 * name.
 *
 * Called through model.h by helmd, workers and tools, and by the fuzz target with bytes from memory. The only
 * memory it hands out is config->window (model_config_free). */
#include "common/model/config.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/file.h"
#include "common/base/json.h"
#include "common/model/arch.h"
#include "common/model/checkpoint.h"

static int read_architecture(const json_t *root, const struct arch **arch, struct model_config *config,
                             struct helm_err *err)
{
    const json_t *list = json_object_get(root, "architectures");
    const char *type = NULL, *name = NULL;
    char known[256];
    int rc = json_get_string(root, "model_type", false, &type, err);
    if (rc) return rc;
    if (list && !json_is_null(list)) {
        if (!json_is_array(list) || json_array_size(list) == 0 || !json_is_string(json_array_get(list, 0)))
            return helm_fail(err, HELM_E_FORMAT, "'architectures' is not a list of names");
        name = json_string_value(json_array_get(list, 0));
        *arch = arch_find(name);
    } else if (type) {
        name = type;
        *arch = arch_find_type(type);
    } else {
        return helm_fail(err, HELM_E_FORMAT, "'architectures' and 'model_type' are both missing");
    }
    if (!*arch)
        return helm_fail(err, HELM_E_UNSUPPORTED, "architecture '%.60s' is not supported (supported: %s)",
                         name, arch_names(known, sizeof known));
    if (type && strcmp(type, (*arch)->model_type) != 0)
        return helm_fail(err, HELM_E_MISMATCH, "architecture '%s' contradicts 'model_type' '%.60s'",
                         (*arch)->architecture, type);
    strcpy(config->architecture, (*arch)->architecture);
    strcpy(config->model_type, (*arch)->model_type);
    return 0;
}

static int get_u32(const json_t *root, const char *key, bool required, uint32_t max, uint32_t *out,
                   struct helm_err *err)
{
    uint64_t value = *out;
    int rc = json_get_u64(root, key, required, 1, max, &value, err);
    if (!rc) *out = (uint32_t)value;
    return rc;
}

static int read_shape(const json_t *root, const struct arch *arch, struct model_config *config,
                      struct helm_err *err)
{
    int rc = get_u32(root, "num_hidden_layers", true, MODEL_LAYERS_MAX, &config->layers, err);
    if (!rc) rc = get_u32(root, "hidden_size", true, MODEL_HIDDEN_MAX, &config->hidden, err);
    if (!rc)
        rc = get_u32(root, "intermediate_size", true, MODEL_INTERMEDIATE_MAX, &config->intermediate, err);
    if (!rc) rc = get_u32(root, "vocab_size", true, MODEL_VOCAB_MAX, &config->vocab, err);
    if (!rc) rc = get_u32(root, "num_attention_heads", true, MODEL_HEADS_MAX, &config->heads, err);
    if (rc) return rc;
    config->kv_heads = config->heads;
    rc = get_u32(root, "num_key_value_heads", false, MODEL_HEADS_MAX, &config->kv_heads, err);
    if (!rc) rc = get_u32(root, "head_dim", false, MODEL_HEAD_DIM_MAX, &config->head_dim, err);
    config->max_context = arch->default_context;
    if (!rc)
        rc = get_u32(root, "max_position_embeddings", false, MODEL_CONTEXT_MAX, &config->max_context, err);
    if (rc) return rc;
    if (config->heads % config->kv_heads != 0)
        return helm_fail(err, HELM_E_FORMAT,
                         "'num_attention_heads' %u is not a multiple of 'num_key_value_heads' %u",
                         config->heads, config->kv_heads);
    if (config->head_dim == 0) {
        if (config->hidden % config->heads != 0)
            return helm_fail(
                err, HELM_E_FORMAT,
                "'hidden_size' %u is not a multiple of 'num_attention_heads' %u and there is no 'head_dim'",
                config->hidden, config->heads);
        config->head_dim = config->hidden / config->heads;
        if (config->head_dim > MODEL_HEAD_DIM_MAX)
            return helm_fail(err, HELM_E_LIMIT,
                             "'hidden_size' / 'num_attention_heads' is %u, the limit is %d", config->head_dim,
                             MODEL_HEAD_DIM_MAX);
    }
    if (config->head_dim % 2 != 0)
        return helm_fail(err, HELM_E_FORMAT, "'head_dim' is %u; rotary embeddings need an even one",
                         config->head_dim);
    return 0;
}

static bool has_number(const json_t *object, const char *key)
{
    return json_is_number(json_object_get(object, key));
}

/* YaRN is made for factor times the original context, and published recipes add those two to a config.json
 * whose max_position_embeddings stays what the model was trained with: there the product is the model's
 * context. It says nothing where either is derived from max_position_embeddings itself. */
static void extend_context(const json_t *root, struct model_config *config)
{
    const json_t *parameters = json_object_get(root, "rope_parameters");
    const json_t *scaling = json_object_get(root, "rope_scaling");
    const char *original = "original_max_position_embeddings";
    if (config->rope.kind != ROPE_YARN) return;
    if (!has_number(parameters, "factor") && !has_number(scaling, "factor")) return;
    if (!has_number(parameters, original) && !has_number(scaling, original) && !has_number(root, original))
        return;
    double context = floor(config->rope.factor * config->rope.original_context);
    if (context > MODEL_CONTEXT_MAX) context = MODEL_CONTEXT_MAX;
    if (context > config->max_context) config->max_context = (uint32_t)context;
}

static int read_dtype(const json_t *root, struct model_config *config, struct helm_err *err)
{
    static const struct {
        const char *name;
        enum dtype dtype;
    } names[] = {{"bfloat16", DTYPE_BF16}, {"float16", DTYPE_F16}, {"float32", DTYPE_F32}};
    const char *text = NULL;
    int rc = json_get_string(root, "dtype", false, &text, err);
    if (!rc && !text) rc = json_get_string(root, "torch_dtype", false, &text, err);
    if (rc) return rc;
    config->dtype = DTYPE_F32; /* what transformers assumes when the file is silent */
    if (!text) return 0;
    const char *name = strncmp(text, "torch.", 6) == 0 ? text + 6 : text;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        if (strcmp(name, names[i].name) != 0) continue;
        config->dtype = names[i].dtype;
        return 0;
    }
    return helm_fail(err, HELM_E_UNSUPPORTED,
                     "dtype '%.40s' is not supported (supported: bfloat16, float16, float32)", text);
}

/* How matrices of experts are stored where the architecture's may be quantized; else nothing may be. */
static int read_quantization(const json_t *root, const struct arch *arch, struct model_config *config,
                             struct helm_err *err)
{
    const json_t *quantization = json_object_get(root, "quantization_config");
    const char *method = NULL;
    config->experts_format = tensor_format_plain(config->dtype);
    if (!quantization || json_is_null(quantization)) return 0;
    if (json_is_object(quantization)) {
        int rc = json_get_string(quantization, "quant_method", false, &method, err);
        if (rc) return rc;
    }
    if (arch->experts && arch->experts->mxfp4 && method && strcmp(method, "mxfp4") == 0) {
        config->experts_format = FORMAT_MXFP4;
        return 0;
    }
    return helm_fail(
        err, HELM_E_UNSUPPORTED,
        "'quantization_config' (method '%.40s') is not supported; use the bf16, fp16 or fp32 weights",
        method ? method : "unnamed");
}

static int read_features(const json_t *root, const struct arch *arch, struct model_config *config,
                         struct helm_err *err)
{
    bool attention_bias = arch->attention_bias_default, mlp_bias = false, qkv_bias = arch->qkv_bias;
    const char *act = NULL;
    int rc = json_get_string(root, "hidden_act", false, &act, err);
    if (rc) return rc;
    if (act && strcmp(act, "silu") != 0 && strcmp(act, "swish") != 0)
        return helm_fail(err, HELM_E_UNSUPPORTED, "'hidden_act' is '%.40s'; only 'silu' is supported", act);
    config->norm_eps = 1e-6;
    rc = json_get_double(root, "rms_norm_eps", false, 1e-12, 1.0, &config->norm_eps, err);
    if (!rc) rc = json_get_bool(root, "tie_word_embeddings", false, &config->tied_head, err);
    if (!rc && arch->attention_bias_key)
        rc = json_get_bool(root, "attention_bias", false, &attention_bias, err);
    if (!rc && arch->mlp_bias_key) rc = json_get_bool(root, "mlp_bias", false, &mlp_bias, err);
    if (!rc && arch->qkv_bias_key) rc = json_get_bool(root, "qkv_bias", false, &qkv_bias, err);
    if (rc) return rc;
    config->qk_norm = arch->qk_norm;
    config->sinks = arch->sinks;
    config->q_bias = config->k_bias = config->v_bias = qkv_bias || attention_bias;
    config->o_bias = attention_bias;
    config->mlp_bias = mlp_bias;

    return read_quantization(root, arch, config, err);
}

static int window_from_types(const json_t *types, uint32_t window, struct model_config *config,
                             struct helm_err *err)
{
    if (!json_is_array(types)) return helm_fail(err, HELM_E_FORMAT, "'layer_types' is not a list");
    if (json_array_size(types) != config->layers)
        return helm_fail(err, HELM_E_MISMATCH, "'layer_types' has %zu entries for %u layers",
                         json_array_size(types), config->layers);
    for (uint32_t i = 0; i < config->layers; i++) {
        const char *type = json_string_value(json_array_get(types, i));
        if (!type) return helm_fail(err, HELM_E_FORMAT, "'layer_types' entry %u is not a string", i);
        if (strcmp(type, "full_attention") == 0) continue;
        if (strcmp(type, "sliding_attention") != 0)
            return helm_fail(err, HELM_E_UNSUPPORTED,
                             "'layer_types' entry %u is '%.40s'; only full_attention and "
                             "sliding_attention are supported",
                             i, type);
        if (window == 0)
            return helm_fail(
                err, HELM_E_MISMATCH,
                "'layer_types' entry %u is sliding_attention, but no 'sliding_window' is in force", i);
        config->window[i] = window;
    }
    return 0;
}

static int read_windows(const json_t *root, const struct arch *arch, struct model_config *config,
                        struct helm_err *err)
{
    config->window = calloc(config->layers, sizeof *config->window);
    if (!config->window) return helm_fail(err, HELM_E_NOMEM, "no memory for %u layers", config->layers);
    if (arch->window == ARCH_WINDOW_NEVER) return 0;
    const json_t *given = json_object_get(root, "sliding_window");
    uint32_t window = given && json_is_null(given) ? 0 : arch->default_window;
    const bool by_layer = arch->window == ARCH_WINDOW_FROM_LAYER || arch->window == ARCH_WINDOW_ON_FROM,
               every_other = arch->window == ARCH_WINDOW_EVERY_OTHER;
    const bool always = arch->window == ARCH_WINDOW_ALL || arch->window == ARCH_WINDOW_ALTERNATE ||
                        arch->window == ARCH_WINDOW_ON_FROM;
    const uint64_t step = arch->window == ARCH_WINDOW_ALTERNATE || every_other ? 2 : 1;
    uint64_t bound = arch->window == ARCH_WINDOW_ON_FROM ? 62 : 28; /* the key's default in the reference */
    bool use = always;
    int rc = get_u32(root, "sliding_window", false, MODEL_CONTEXT_MAX, &window, err);
    if (!rc && !always) rc = json_get_bool(root, "use_sliding_window", false, &use, err);
    if (!rc && (by_layer || every_other))
        rc = json_get_u64(root, "max_window_layers", false, 0, MODEL_CONTEXT_MAX, &bound, err);
    if (rc) return rc;
    const uint64_t first = by_layer ? bound : 0, last = every_other ? bound : config->layers;
    if (!use) window = 0;
    const json_t *types = json_object_get(root, "layer_types");
    if (types && !json_is_null(types)) return window_from_types(types, window, config, err);
    for (uint64_t i = first; i < config->layers && i < last; i += step) config->window[i] = window;
    return 0;
}

/* `mlp_only_layers` lists layers that are dense. */
static int read_dense_layers(const json_t *root, bool *sparse, uint32_t layers, struct helm_err *err)
{
    const json_t *list = json_object_get(root, "mlp_only_layers");
    if (!list || json_is_null(list)) return 0;
    if (!json_is_array(list)) return helm_fail(err, HELM_E_FORMAT, "'mlp_only_layers' is not a list");
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *value = json_array_get(list, i);
        const json_int_t layer = json_is_integer(value) ? json_integer_value(value) : -1;
        if (layer < 0)
            return helm_fail(err, HELM_E_FORMAT, "'mlp_only_layers' entry %zu is not a layer's number", i);
        if (layer < (json_int_t)layers) sparse[layer] = false;
    }
    return 0;
}

static int read_sparse_layers(const json_t *root, const struct arch_experts *experts,
                              struct model_config *config, struct helm_err *err)
{
    uint64_t step = 1, leading = 0;
    bool any = false;
    int rc = 0;
    config->sparse = calloc(config->layers, sizeof *config->sparse);
    if (!config->sparse) return helm_fail(err, HELM_E_NOMEM, "no memory for %u layers", config->layers);
    if (experts->dense_keys)
        rc = json_get_u64(root, "decoder_sparse_step", false, 1, MODEL_LAYERS_MAX, &step, err);
    if (experts->v3_keys)
        rc = json_get_u64(root, "first_k_dense_replace", false, 0, MODEL_LAYERS_MAX, &leading, err);
    for (uint32_t i = 0; i < config->layers && !rc; i++)
        config->sparse[i] = (i + 1) % step == 0 && i >= leading;
    if (!rc && experts->dense_keys) rc = read_dense_layers(root, config->sparse, config->layers, err);
    for (uint32_t i = 0; i < config->layers; i++) any |= config->sparse[i];
    if (rc || any) return rc;
    free(config->sparse); /* a dense model, whatever it says of experts */
    config->sparse = NULL;
    config->router = (struct model_router){0};
    config->expert_intermediate = config->shared_intermediate = 0;
    return 0;
}

/* Groups of experts and what their weights are multiplied by, as DeepSeek-V3 has them. */
static int read_v3_router(const json_t *root, struct model_router *router, struct helm_err *err)
{
    double scale = 1;
    int rc = get_u32(root, "n_group", false, MODEL_EXPERT_GROUPS_MAX, &router->groups, err);
    if (!rc) rc = get_u32(root, "topk_group", false, MODEL_EXPERT_GROUPS_MAX, &router->groups_chosen, err);
    if (!rc) rc = json_get_double(root, "routed_scaling_factor", false, 0, 1e6, &scale, err);
    if (rc) return rc;
    router->scale = (float)scale;
    const uint32_t size = router->experts / router->groups;
    if (router->experts % router->groups || router->groups_chosen > router->groups ||
        router->chosen > router->groups_chosen * size)
        return helm_fail(
            err, HELM_E_FORMAT,
            "%u experts in 'n_group' %u groups, of which 'topk_group' %u are looked at, %u experts "
            "chosen: no such choice",
            router->experts, router->groups, router->groups_chosen, router->chosen);
    return 0;
}

/* The expert that every token has: null or 0 is none. */
static int read_shared(const json_t *root, const struct arch_experts *experts, struct model_config *config,
                       struct helm_err *err)
{
    const char *key = experts->shared_key ? experts->shared_key : experts->shared_count_key;
    const json_t *given = key ? json_object_get(root, key) : NULL;
    uint64_t number = given && json_is_null(given) ? 0 : experts->default_shared;
    if (!key) return 0;
    int rc = json_get_u64(root, key, false, 0, MODEL_INTERMEDIATE_MAX, &number, err);
    if (rc) return rc;
    if (experts->shared_count_key) number *= config->expert_intermediate;
    if (number > MODEL_INTERMEDIATE_MAX)
        return helm_fail(err, HELM_E_LIMIT, "'%s' makes shared experts of %llu, the limit is %u", key,
                         (unsigned long long)number, MODEL_INTERMEDIATE_MAX);
    config->shared_intermediate = (uint32_t)number;
    config->shared_weighed = experts->shared_weighed;
    return 0;
}

static int read_experts(const json_t *root, const struct arch *arch, struct model_config *config,
                        struct helm_err *err)
{
    const struct arch_experts *experts = arch->experts;
    struct model_router *router = &config->router;
    if (!experts) return 0;
    *router = (struct model_router){.score = experts->score,
                                    .experts = experts->default_count,
                                    .chosen = experts->default_chosen,
                                    .normalise = !experts->norm_key,
                                    .scale = 1,
                                    .groups = 1,
                                    .groups_chosen = 1};
    config->glu = experts->glu;
    config->experts_bias = experts->bias;
    config->choice_bias = experts->choice_bias;
    int rc =
        get_u32(root, experts->count_key, !experts->default_count, MODEL_EXPERTS_MAX, &router->experts, err);
    if (!rc)
        rc = get_u32(root, "num_experts_per_tok", !experts->default_chosen, MODEL_EXPERTS_CHOSEN_MAX,
                     &router->chosen, err);
    if (!rc)
        rc = get_u32(root, experts->intermediate_key, true, MODEL_INTERMEDIATE_MAX,
                     &config->expert_intermediate, err);
    if (!rc && experts->norm_key) rc = json_get_bool(root, "norm_topk_prob", false, &router->normalise, err);
    double limit = (double)GLU_CLAMP;
    if (!rc && experts->glu == GLU_CLAMPED)
        rc = json_get_double(root, "swiglu_limit", false, 0, 1e9, &limit, err);
    if (rc) return rc;
    if (limit != (double)GLU_CLAMP)
        return helm_fail(err, HELM_E_UNSUPPORTED, "'swiglu_limit' is %g; only %g is supported", limit,
                         (double)GLU_CLAMP);
    if (router->chosen > router->experts)
        return helm_fail(err, HELM_E_FORMAT, "'num_experts_per_tok' is %u, but there are %u experts ('%s')",
                         router->chosen, router->experts, experts->count_key);
    if (experts->v3_keys) rc = read_v3_router(root, router, err);
    if (!rc) rc = read_shared(root, experts, config, err);
    return rc ? rc : read_sparse_layers(root, experts, config, err);
}

/* A token id: a number that may be beyond the vocabulary (some published files have such) but not absurd. */
static int read_id(const json_t *value, const char *key, int32_t *id, struct helm_err *err)
{
    if (!json_is_integer(value)) return helm_fail(err, HELM_E_FORMAT, "'%s' is not a token id", key);
    json_int_t number = json_integer_value(value);
    if (number < 0 || number >= (json_int_t)MODEL_VOCAB_MAX)
        return helm_fail(err, HELM_E_LIMIT, "'%s' is %lld, not between 0 and %u", key, (long long)number,
                         MODEL_VOCAB_MAX - 1);
    *id = (int32_t)number;
    return 0;
}

static int add_eos(const json_t *value, struct model_config *config, struct helm_err *err)
{
    int32_t id = 0;
    int rc = read_id(value, "eos_token_id", &id, err);
    if (rc) return rc;
    for (uint32_t i = 0; i < config->eos_count; i++)
        if (config->eos[i] == id) return 0;
    if (config->eos_count == MODEL_EOS_MAX)
        return helm_fail(err, HELM_E_LIMIT, "more than %d different 'eos_token_id'", MODEL_EOS_MAX);
    config->eos[config->eos_count++] = id;
    return 0;
}

static int read_special_ids(const json_t *root, struct model_config *config, struct helm_err *err)
{
    const json_t *eos = json_object_get(root, "eos_token_id"), *bos = json_object_get(root, "bos_token_id");
    int rc = 0;
    if (json_is_array(eos)) {
        for (size_t i = 0; i < json_array_size(eos) && !rc; i++)
            rc = add_eos(json_array_get(eos, i), config, err);
    } else if (eos && !json_is_null(eos)) {
        rc = add_eos(eos, config, err);
    }
    bool no_bos = !bos || json_is_null(bos) || (json_is_integer(bos) && json_integer_value(bos) == -1);
    if (!rc && !no_bos && config->bos < 0) rc = read_id(bos, "bos_token_id", &config->bos, err);
    return rc;
}

int model_config_parse(const char *what, const char *text, size_t length, struct model_config *config,
                       struct helm_err *err)
{
    json_t *root = NULL;
    const struct arch *arch = NULL;
    memset(config, 0, sizeof *config);
    config->bos = -1;
    int rc = json_parse_bounded(what, text, length, CONFIG_BYTES_MAX, &root, err);
    if (rc) return rc;
    if (!json_is_object(root)) rc = helm_fail(err, HELM_E_FORMAT, "not a JSON object");
    if (!rc) rc = read_architecture(root, &arch, config, err);
    if (!rc) rc = read_shape(root, arch, config, err);
    if (!rc) rc = read_dtype(root, config, err);
    if (!rc) rc = read_features(root, arch, config, err);
    if (!rc) rc = read_experts(root, arch, config, err);
    if (!rc) rc = config_read_rope(root, config, err);
    if (!rc && arch->yarn && config->rope.kind != ROPE_YARN)
        rc = helm_fail(err, HELM_E_UNSUPPORTED,
                       "a %s without RoPE scaling of type 'yarn' ('rope_scaling' or 'rope_parameters')",
                       arch->architecture);
    if (!rc) extend_context(root, config);
    if (!rc) rc = read_windows(root, arch, config, err);
    if (!rc) rc = read_special_ids(root, config, err);
    json_decref(root);
    if (rc) {
        helm_err_prefix(err, "%s", what);
        model_config_free(config);
    }
    return rc;
}

int config_add_generation(const char *what, const char *text, size_t length, struct model_config *config,
                          struct helm_err *err)
{
    json_t *root = NULL;
    int rc = json_parse_bounded(what, text, length, CONFIG_BYTES_MAX, &root, err);
    if (rc) return rc;
    rc = json_is_object(root) ? read_special_ids(root, config, err)
                              : helm_fail(err, HELM_E_FORMAT, "not a JSON object");
    json_decref(root);
    if (rc) helm_err_prefix(err, "%s", what);
    return rc;
}

int model_read_config(const char *folder, struct model_config *config, struct helm_err *err)
{
    char *text = NULL, what[512];
    size_t length = 0;
    struct model model;
    bool found = false;
    memset(config, 0, sizeof *config);
    int rc = gguf_model_read(folder, true, &found, &model, err);
    if (rc) return rc;
    if (found) {
        *config = model.config;
        memset(&model.config, 0, sizeof model.config);
        model_free(&model);
        return 0;
    }
    rc = file_read_inside(folder, "config.json", CONFIG_BYTES_MAX, &text, &length, err);
    if (rc) return rc;
    snprintf(what, sizeof what, "%s/config.json", folder);
    rc = model_config_parse(what, text, length, config, err);
    free(text);
    if (rc) return rc;
    rc = file_read_inside(folder, "generation_config.json", CONFIG_BYTES_MAX, &text, &length, err);
    if (rc == HELM_E_NOT_FOUND) { /* the file is optional */
        if (err) *err = (struct helm_err){0};
        return 0;
    }
    snprintf(what, sizeof what, "%s/generation_config.json", folder);
    if (!rc) rc = config_add_generation(what, text, length, config, err);
    free(text);
    if (rc) model_config_free(config);
    return rc;
}

void model_config_free(struct model_config *config)
{
    free(config->window);
    free(config->sparse);
    free(config->rope_factors);
    memset(config, 0, sizeof *config);
}
