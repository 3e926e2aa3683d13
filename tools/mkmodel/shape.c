/* Configurations: the Qwen3 family's shapes for any dense architecture, published ones for mixtures of
 * experts, or a file of the user's. See mkmodel.h. */
#include <stdio.h>
#include <string.h>

#include "common/base/json.h"
#include "common/model/arch.h"
#include "tools/mkmodel/mkmodel.h"

#define HYBRID_VOCAB 248320

struct size_preset {
    const char *name;
    int layers, hidden, intermediate, heads, kv_heads;
    bool tied;
    const char *arch;                                /* alone; NULL: of every dense one */
    int experts, chosen, expert_intermediate, vocab; /* of mixtures */
    int value_heads;                                 /* of hybrids; they have 16 key heads */
};
/* An architecture's own sizes come first: Qwen3's of the same names are for those that have none. */
static const struct size_preset presets[] = {
    {"0.8b", 24, 1024, 3584, 8, 2, true, "qwen3_5_text", 0, 0, 0, HYBRID_VOCAB, 16},
    {"4b", 32, 2560, 9216, 16, 4, true, "qwen3_5_text", 0, 0, 0, HYBRID_VOCAB, 32},
    {"27b", 64, 5120, 17408, 24, 4, false, "qwen3_5_text", 0, 0, 0, HYBRID_VOCAB, 48},
    {"35b-a3b", 40, 2048, 0, 16, 2, false, "qwen3_5_moe_text", 256, 8, 512, HYBRID_VOCAB, 32},
    {"0.6b", 28, 1024, 3072, 16, 8, true, NULL, 0, 0, 0, 0, 0},
    {"1.7b", 28, 2048, 6144, 16, 8, true, NULL, 0, 0, 0, 0, 0},
    {"4b", 36, 2560, 9728, 32, 8, true, NULL, 0, 0, 0, 0, 0},
    {"8b", 36, 4096, 12288, 32, 8, false, NULL, 0, 0, 0, 0, 0},
    {"14b", 40, 5120, 17408, 40, 8, false, NULL, 0, 0, 0, 0, 0},
    {"32b", 64, 5120, 25600, 64, 8, false, NULL, 0, 0, 0, 0, 0},
    {"30b-a3b", 48, 2048, 6144, 32, 4, false, "qwen3_moe", 128, 8, 768, 151936, 0},
    {"8x7b", 32, 4096, 14336, 32, 8, false, "mixtral", 8, 2, 14336, 32000, 0},
    {"20b", 24, 2880, 2880, 64, 8, false, "gpt_oss", 32, 4, 2880, 201088, 0},
    {"120b", 36, 2880, 2880, 64, 8, false, "gpt_oss", 128, 4, 2880, 201088, 0},
};
#define PRESET_HEAD_DIM 128
#define PRESET_VOCAB    151936
#define PRESET_CONTEXT  40960
#define PRESET_BOS      151643
#define PRESET_EOS      151645
#define REFERENCE       "5.17.0" /* the transformers release whose keys are written */

#define COUNT(a) (sizeof(a) / sizeof *(a))

/* A key of the architecture's table; NULL: it has none of this name. */
static const struct arch_key *key_named(const struct arch *arch, const char *name)
{
    for (const struct arch_key *key = arch->keys; key->kind; key++)
        for (int i = 0; i < KEY_NAMES_MAX && key->name[i]; i++)
            if (strcmp(key->name[i], name) == 0) return key;
    return NULL;
}

/* The key of the number of experts; NULL: it is dense. */
static const char *experts_key(const struct arch *arch)
{
    const struct arch_key *key = key_named(arch, "num_experts");
    return key ? key->name[0] : NULL;
}

static const char *config_dtype(enum dtype dtype)
{
    return dtype == DTYPE_F16 ? "float16" : "bfloat16";
}

/* True: no memory. */
static bool put_experts(json_t *root, const char *experts_key, const struct size_preset *size)
{
    const bool own = size->expert_intermediate != size->intermediate;
    bool bad = json_object_set_new(root, experts_key, json_integer(size->experts));
    bad |= json_object_set_new(root, "num_experts_per_tok", json_integer(size->chosen));
    bad |= json_object_set_new(root, "vocab_size", json_integer(size->vocab));
    if (own) { /* as Qwen's say it */
        bad |= json_object_set_new(root, "moe_intermediate_size", json_integer(size->expert_intermediate));
        bad |= json_object_set_new(root, "norm_topk_prob", json_true());
        bad |= json_object_set_new(root, "decoder_sparse_step", json_integer(1));
        bad |= json_object_set_new(root, "mlp_only_layers", json_array());
    }
    if (size->vocab <= PRESET_EOS) {
        bad |= json_object_set_new(root, "bos_token_id", json_integer(1));
        bad |= json_object_set_new(root, "eos_token_id", json_integer(2));
    }
    return bad;
}

/* Puts the members that gpt-oss's configurations have otherwise. True: no memory. */
static bool put_gpt_oss(json_t *root, int layers)
{
    json_t *own =
        json_pack("{s:i, s:b, s:i, s:i, s:f, s:i, s:f, s:i, s:i, s:{s:f, s:f, s:f, s:f, s:i, s:s, s:b}, "
                  "s:{s:[s, s, s, s], s:s}}",
                  "head_dim", 64, "attention_bias", true, "sliding_window", 128, "max_position_embeddings",
                  131072, "rms_norm_eps", 1e-5, "pad_token_id", 199999, "swiglu_limit", 7.0, "bos_token_id",
                  199998, "eos_token_id", 200002, "rope_parameters", "rope_theta", 150000.0, "factor", 32.0,
                  "beta_fast", 32.0, "beta_slow", 1.0, "original_max_position_embeddings", 4096, "rope_type",
                  "yarn", "truncate", false, "quantization_config", "modules_to_not_convert",
                  "model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head",
                  "quant_method", "mxfp4");
    json_t *types = json_array();
    bool bad = !own || !types;
    for (int i = 0; i < layers && !bad; i++)
        bad = json_array_append_new(types, json_string(i % 2 ? "full_attention" : "sliding_attention"));
    bad = bad || json_object_set(own, "layer_types", types) || json_object_update(root, own);
    json_decref(own);
    json_decref(types);
    return bad;
}

/* Puts the members that Qwen3.5's configurations have otherwise. True: no memory. */
static bool put_hybrid(json_t *root, const struct size_preset *size)
{
    json_t *own =
        json_pack("{s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:{s:f, s:f, s:s}}", "head_dim", 256,
                  "vocab_size", size->vocab, "bos_token_id", 248044, "eos_token_id", 248046,
                  "max_position_embeddings", 262144, "linear_conv_kernel_dim", 4, "linear_key_head_dim", 128,
                  "linear_value_head_dim", 128, "linear_num_key_heads", 16, "linear_num_value_heads",
                  size->value_heads, "rope_parameters", "rope_theta", 1e7, "partial_rotary_factor", 0.25,
                  "rope_type", "default");
    json_t *types = json_array();
    bool bad = !own || !types;
    for (int i = 0; i < size->layers && !bad; i++)
        bad = json_array_append_new(types, json_string((i + 1) % 4 ? "linear_attention" : "full_attention"));
    if (size->experts && !bad)
        bad = json_object_set_new(own, "shared_expert_intermediate_size",
                                  json_integer(size->expert_intermediate)) ||
              json_object_del(root, "intermediate_size");
    bad = bad || json_object_set(own, "layer_types", types) || json_object_update(root, own);
    json_decref(own);
    json_decref(types);
    return bad;
}

static int preset_json(const struct arch *arch, const struct size_preset *size, enum dtype dtype,
                       json_t **config, struct helm_err *err)
{
    json_t *root =
        json_pack("{s:[s], s:s, s:s, s:f, s:i, s:i, s:i, s:s, s:i, s:f, s:i, s:i, s:i, s:i, s:i, s:f, "
                  "s:{s:f, s:s}, s:b, s:s, "
                  "s:b, s:i}",
                  "architectures", arch->architecture, "model_type", arch->model_type, "dtype",
                  config_dtype(dtype), "attention_dropout", 0.0, "bos_token_id", PRESET_BOS, "eos_token_id",
                  PRESET_EOS, "head_dim", PRESET_HEAD_DIM, "hidden_act", "silu", "hidden_size", size->hidden,
                  "initializer_range", 0.02, "intermediate_size", size->intermediate,
                  "max_position_embeddings", PRESET_CONTEXT, "num_attention_heads", size->heads,
                  "num_hidden_layers", size->layers, "num_key_value_heads", size->kv_heads, "rms_norm_eps",
                  1e-6, "rope_parameters", "rope_theta", 1e6, "rope_type", "default", "tie_word_embeddings",
                  size->tied, "transformers_version", REFERENCE, "use_cache", true, "vocab_size",
                  PRESET_VOCAB);
    bool bad = !root;
    if (root && key_named(arch, "attention_bias"))
        bad |= json_object_set_new(root, "attention_bias", json_false());
    if (root && key_named(arch, "mlp_bias")) bad |= json_object_set_new(root, "mlp_bias", json_false());
    if (root && key_named(arch, "sliding_window"))
        bad |= json_object_set_new(root, "sliding_window", json_null());
    if (root && key_named(arch, "use_sliding_window")) {
        bad |= json_object_set_new(root, "use_sliding_window", json_false());
        bad |= json_object_set_new(root, "max_window_layers", json_integer(size->layers));
    }
    if (root && size->experts) bad |= put_experts(root, experts_key(arch), size);
    if (root && size->value_heads) bad |= put_hybrid(root, size);
    if (root && strcmp(arch->model_type, "gpt_oss") == 0) bad |= put_gpt_oss(root, size->layers);
    if (bad) {
        json_decref(root);
        return helm_fail(err, HELM_E_NOMEM, "no memory for a configuration");
    }
    *config = root;
    return 0;
}

int mkmodel_preset(const char *name, const char *size, enum dtype dtype, json_t **config,
                   struct helm_err *err)
{
    char text[64]; /* of a model with images, whose text has a name of its own */
    const struct arch *arch = arch_find_type(name);
    bool known = false;
    *config = NULL;
    snprintf(text, sizeof text, "%s_text", name);
    if (!arch && (arch = arch_find_type(text))) name = text;
    for (size_t s = 0; s < COUNT(presets) && arch; s++) {
        if (strcmp(presets[s].name, size) != 0) continue;
        known = true;
        if (presets[s].arch ? strcmp(presets[s].arch, name) == 0 : !experts_key(arch))
            return preset_json(arch, &presets[s], dtype, config, err);
    }
    if (!arch) return helm_fail(err, HELM_E_USAGE, "architecture '%s' is none of %s", name, MKMODEL_ARCHS);
    if (known) return helm_fail(err, HELM_E_USAGE, "size '%s' is none of architecture '%s'", size, name);
    return helm_fail(err, HELM_E_USAGE, "size '%s' is none of %s", size, MKMODEL_SIZES);
}

int mkmodel_config_file(const char *path, enum dtype dtype, json_t **config, struct helm_err *err)
{
    int rc = json_read_file(path, 1u << 20, config, err);
    if (rc) return rc;
    if (!json_is_object(*config)) rc = helm_fail(err, HELM_E_FORMAT, "%s: not a JSON object", path);
    /* Both generations of the key are read; one that contradicts the weights must not stay. */
    if (!rc && json_object_set_new(*config, "dtype", json_string(config_dtype(dtype))))
        rc = helm_fail(err, HELM_E_NOMEM, "no memory for a configuration");
    if (!rc && json_object_get(*config, "torch_dtype")) (void)json_object_del(*config, "torch_dtype");
    if (rc) {
        json_decref(*config);
        *config = NULL;
    }
    return rc;
}

json_t *mkmodel_generation(const json_t *config)
{
    static const char *const keys[] = {"bos_token_id", "eos_token_id", "pad_token_id"};
    json_t *root = json_pack("{s:b, s:s}", "_from_model_config", true, "transformers_version", REFERENCE);
    for (size_t i = 0; root && i < COUNT(keys); i++) {
        json_t *value = json_object_get(config, keys[i]);
        if (!value || json_object_set(root, keys[i], value) == 0) continue;
        json_decref(root);
        root = NULL;
    }
    return root;
}
