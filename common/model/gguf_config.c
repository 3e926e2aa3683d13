/* The configuration of a model in GGUF files: its key/values, checked, become the members that a config.json would
 * have, so that what follows from them is read in one place (config.c). Called by gguf_model.c. */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/model/arch.h"
#include "common/model/config.h"
#include "common/model/gguf_model.h"
#include "common/model/gguf_write.h"

#define ARCH_TEXT 40

#define GPT_OSS "GptOssForCausalLM"
static const struct gguf_arch archs[] = {
    {.name = "llama",
     .architecture = "LlamaForCausalLM",
     .interleaved = true,
     .windows = true,
     .experts = "MixtralForCausalLM"},
    {.name = "mistral3", .architecture = "MistralForCausalLM", .interleaved = true, .windows = true},
    {.name = "qwen2", .architecture = "Qwen2ForCausalLM"},
    {.name = "qwen3", .architecture = "Qwen3ForCausalLM"},
    {.name = "qwen2moe",
     .architecture = "Qwen2MoeForCausalLM",
     .experts = "Qwen2MoeForCausalLM",
     .shared = true,
     .raw_weights = true},
    {.name = "qwen3moe", .architecture = "Qwen3MoeForCausalLM", .experts = "Qwen3MoeForCausalLM"},
    {.name = "dots1",
     .architecture = "Dots1ForCausalLM",
     .experts = "Dots1ForCausalLM",
     .raw_weights = true,
     .v3_keys = true},
    {.name = "gpt-oss",
     .architecture = GPT_OSS,
     .windows = true,
     .experts = GPT_OSS,
     .alternate = true,
     .whole_yarn = true}};
#define ARCHS (sizeof archs / sizeof *archs)

const struct gguf_arch *gguf_arch_of(const struct model_config *config)
{
    /* Of Mistral, without a window of its own Llama, files say `llama`. */
    const char *architecture = strcmp(config->architecture, "MistralForCausalLM") == 0 ? archs[0].architecture
                                                                                       : config->architecture;
    for (size_t i = 0; i < ARCHS; i++) {
        if (strcmp(architecture, archs[i].architecture) != 0 &&
            (!archs[i].experts || strcmp(architecture, archs[i].experts) != 0))
            continue;
        return &archs[i];
    }
    return NULL;
}

/* Whole numbers of an architecture and what config.json calls them. */
static const struct number {
    const char *key, *member;
    uint64_t most;
    bool required, zero; /* zero: 0 says that there is none */
} numbers[] = {{"block_count", "num_hidden_layers", MODEL_LAYERS_MAX, true, false},
               {"embedding_length", "hidden_size", MODEL_HIDDEN_MAX, true, false},
               {"feed_forward_length", "intermediate_size", MODEL_INTERMEDIATE_MAX, true, false},
               {"attention.head_count", "num_attention_heads", MODEL_HEADS_MAX, true, false},
               {"attention.head_count_kv", "num_key_value_heads", MODEL_HEADS_MAX, false, false},
               {"attention.key_length", "head_dim", MODEL_HEAD_DIM_MAX, false, false},
               {"context_length", "max_position_embeddings", MODEL_CONTEXT_MAX, true, false},
               /* Experts: the count by the names of both that have them. */
               {"expert_count", "num_experts", MODEL_EXPERTS_MAX, false, true},
               {"expert_count", "num_local_experts", MODEL_EXPERTS_MAX, false, true},
               {"expert_used_count", "num_experts_per_tok", MODEL_EXPERTS_CHOSEN_MAX, false, true},
               {"expert_feed_forward_length", "moe_intermediate_size", MODEL_INTERMEDIATE_MAX, false, true},
               {"expert_shared_feed_forward_length", "shared_expert_intermediate_size",
                MODEL_INTERMEDIATE_MAX, false, true}},
  v3_numbers[] = {{"expert_count", "n_routed_experts", MODEL_EXPERTS_MAX, true, false},
                  {"expert_shared_count", "n_shared_experts", MODEL_EXPERTS_MAX, false, true},
                  {"leading_dense_block_count", "first_k_dense_replace", MODEL_LAYERS_MAX, false, true},
                  {"expert_group_count", "n_group", MODEL_EXPERT_GROUPS_MAX, false, true},
                  {"expert_group_used_count", "topk_group", MODEL_EXPERT_GROUPS_MAX, false, true}};

/* What HELM does not compute, where it is there and not 0; but of architectures that have such keys. */
enum known { KNOWN_BY_NONE, KNOWN_BY_SHARED, KNOWN_BY_V3 };
static const struct {
    const char *key, *why;
    enum known known;
} refused[] = {
    {"expert_shared_count", "shared experts of this architecture are not supported", KNOWN_BY_V3},
    {"expert_shared_feed_forward_length", "shared experts of this architecture are not supported",
     KNOWN_BY_SHARED},
    {"expert_group_count", "groups of experts are not supported", KNOWN_BY_V3},
    {"leading_dense_block_count", "dense layers before sparse ones are not supported in GGUF files",
     KNOWN_BY_V3},
    {"attention.temperature_scale", "scaling attention by position is not supported", KNOWN_BY_NONE},
    {"rope.scaling.yarn_log_multiplier", "YaRN with a multiplier of its own is not supported", KNOWN_BY_NONE},
    {"rope.scaling.attn_factor", "YaRN with an attention factor of its own is not supported", KNOWN_BY_NONE},
    {"rope.scale_linear", "the old key of linear RoPE scaling is not supported", KNOWN_BY_NONE},
    {"attention.scale", "attention with a scale of its own is not supported", KNOWN_BY_NONE},
    {"logit_scale", "scaled logits are not supported", KNOWN_BY_NONE},
    {"residual_scale", "a scaled residual is not supported", KNOWN_BY_NONE},
    {"embedding_scale", "scaled embeddings are not supported", KNOWN_BY_NONE}};

struct reading {
    const struct gguf *header;
    char arch[ARCH_TEXT];
    char key[ARCH_TEXT + GGUF_KEY_MAX]; /* key_of's */
    json_t *json;
    const struct gguf_arch *known;
    struct helm_err *err;
};

static const char *key_of(struct reading *r, const char *name)
{
    snprintf(r->key, sizeof r->key, "%s.%s", r->arch, name);
    return r->key;
}

static int set(struct reading *r, json_t *object, const char *member, json_t *value)
{
    return json_object_set_new(object, member, value)
               ? helm_fail(r->err, HELM_E_NOMEM, "no memory for the configuration")
               : 0;
}

static int read_architecture(struct reading *r, bool *interleaved)
{
    char known[128];
    size_t used = 0;
    uint64_t window = 0, experts = 0;
    int rc = gguf_get_string(r->header, "general.architecture", true, r->arch, sizeof r->arch, r->err);
    if (rc) return rc;
    for (size_t i = 0; i < ARCHS; i++) {
        used += (size_t)snprintf(known + used, sizeof known - used, "%s%s", i ? ", " : "", archs[i].name);
        if (strcmp(r->arch, archs[i].name) != 0) continue;
        *interleaved = archs[i].interleaved;
        r->known = &archs[i];
        /* Mistral's files are called llama; what tells them apart is the window. */
        rc = gguf_get_u64(r->header, key_of(r, "attention.sliding_window"), false, 0, MODEL_CONTEXT_MAX,
                          &window, r->err);
        const bool windowed = archs[i].windows && window;
        if (!rc)
            rc = set(r, r->json, "sliding_window", windowed ? json_integer((json_int_t)window) : json_null());
        /* So are Mixtral's, told by its experts. */
        if (!rc)
            rc = gguf_get_u64(r->header, key_of(r, "expert_count"), false, 0, MODEL_EXPERTS_MAX, &experts,
                              r->err);
        if (!rc && experts && !archs[i].experts)
            rc = helm_fail(r->err, HELM_E_UNSUPPORTED, "key '%s' is %llu: no %s with experts is supported",
                           r->key, (unsigned long long)experts, archs[i].name);
        return rc ? rc
                  : set(r, r->json, "architectures",
                        json_pack("[s]", experts    ? archs[i].experts
                                         : windowed ? "MistralForCausalLM"
                                                    : archs[i].architecture));
    }
    return helm_fail(r->err, HELM_E_UNSUPPORTED, "architecture '%s' is not supported (supported: %s)",
                     r->arch, known);
}

static int refuse(struct reading *r)
{
    const bool known[] = {
        [KNOWN_BY_NONE] = false, [KNOWN_BY_SHARED] = r->known->shared, [KNOWN_BY_V3] = r->known->v3_keys};
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        double number = 0;
        int rc = gguf_get_double(r->header, key_of(r, refused[i].key), false, -1e300, 1e300, &number, r->err);
        if (rc) return rc;
        if (number != 0 && !known[refused[i].known])
            return helm_fail(r->err, HELM_E_UNSUPPORTED, "key '%s' is %g: %s", r->key, number,
                             refused[i].why);
    }
    return 0;
}

static int read_number(struct reading *r, const struct number *of)
{
    uint64_t number = 0;
    int rc = gguf_get_u64(r->header, key_of(r, of->key), of->required, !of->zero, of->most, &number, r->err);
    return !rc && number ? set(r, r->json, of->member, json_integer((json_int_t)number)) : rc;
}

static int read_numbers(struct reading *r)
{
    double eps = 0;
    int rc = 0;
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers && !rc; i++) rc = read_number(r, &numbers[i]);
    for (size_t i = 0; i < sizeof v3_numbers / sizeof *v3_numbers && !rc && r->known->v3_keys; i++)
        rc = read_number(r, &v3_numbers[i]);
    if (!rc)
        rc = gguf_get_double(r->header, key_of(r, "attention.layer_norm_rms_epsilon"), true, 1e-12, 1, &eps,
                             r->err);
    return rc ? rc : set(r, r->json, "rms_norm_eps", json_real(eps));
}

/* The same key of config.json and of RoPE's scaling, both numbers. */
static int copy_number(struct reading *r, const char *key, bool required, json_t *to, const char *member)
{
    double number = 0;
    int rc = gguf_get_double(r->header, key_of(r, key), required, 0, 1e12, &number, r->err);
    if (rc || !gguf_find(r->header, r->key)) return rc;
    return set(r, to, member, json_real(number));
}

/* What experts' weights are: files that do not say so mean what their architecture is. */
static int read_experts(struct reading *r)
{
    const bool v3 = r->known->v3_keys;
    bool normalise = !r->known->raw_weights;
    uint64_t function = GGUF_ROUTER_SIGMOID;
    int rc = v3 ? gguf_get_bool(r->header, key_of(r, "expert_weights_norm"), false, &normalise, r->err) : 0;
    if (!rc) rc = set(r, r->json, "norm_topk_prob", json_boolean(normalise));
    if (!rc && v3) rc = copy_number(r, "expert_weights_scale", false, r->json, "routed_scaling_factor");
    if (!rc && v3)
        rc =
            gguf_get_u64(r->header, key_of(r, "expert_gating_func"), false, 0, UINT32_MAX, &function, r->err);
    if (!rc && function != GGUF_ROUTER_SIGMOID)
        rc = helm_fail(r->err, HELM_E_UNSUPPORTED, "key '%s' is %llu: only %d, a sigmoid, is supported",
                       r->key, (unsigned long long)function, GGUF_ROUTER_SIGMOID);
    /* Early files have two lengths only. */
    json_t *length = json_object_get(r->json, "intermediate_size"),
           *chosen = json_object_get(r->json, "num_experts_per_tok");
    if (!rc && r->known->shared && !json_object_get(r->json, "shared_expert_intermediate_size"))
        rc = set(r, r->json, "shared_expert_intermediate_size", json_copy(length));
    if (!rc && r->known->shared && chosen && !json_object_get(r->json, "moe_intermediate_size"))
        rc = set(r, r->json, "moe_intermediate_size",
                 json_integer(json_integer_value(length) / json_integer_value(chosen)));
    return rc;
}

static int read_scaling(struct reading *r)
{
    char type[ARCH_TEXT] = "none";
    uint64_t context = 0;
    int rc = gguf_get_string(r->header, key_of(r, "rope.scaling.type"), false, type, sizeof type, r->err);
    if (rc || strcmp(type, "none") == 0) return rc;
    if (strcmp(type, "linear") != 0 && strcmp(type, "yarn") != 0)
        return helm_fail(r->err, HELM_E_UNSUPPORTED,
                         "key '%s': RoPE scaling '%s' is not supported (supported: none, linear, yarn)",
                         r->key, type);
    json_t *scaling = json_pack("{s:s}", "rope_type", type);
    rc = set(r, r->json, "rope_scaling", scaling);
    if (!rc) rc = copy_number(r, "rope.scaling.factor", true, scaling, "factor");
    if (!rc && r->known->whole_yarn) rc = set(r, scaling, "truncate", json_false());
    if (!rc) rc = copy_number(r, "rope.scaling.yarn_beta_fast", false, scaling, "beta_fast");
    if (!rc) rc = copy_number(r, "rope.scaling.yarn_beta_slow", false, scaling, "beta_slow");
    if (!rc)
        rc = gguf_get_u64(r->header, key_of(r, "rope.scaling.original_context_length"), false, 1,
                          MODEL_CONTEXT_MAX, &context, r->err);
    if (!rc && context)
        rc = set(r, scaling, "original_max_position_embeddings", json_integer((json_int_t)context));
    return rc;
}

/* Ids that end a text. */
static int read_ids(struct reading *r)
{
    static const char *const ends[] = {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id",
                                       "tokenizer.ggml.eom_token_id"};
    json_t *eos = json_array();
    uint64_t id = 0;
    int rc = set(r, r->json, "eos_token_id", eos);
    for (size_t i = 0; i < sizeof ends / sizeof *ends && !rc; i++) {
        rc = gguf_get_u64(r->header, ends[i], false, 0, MODEL_VOCAB_MAX - 1, &id, r->err);
        if (!rc && gguf_find(r->header, ends[i])) json_array_append_new(eos, json_integer((json_int_t)id));
    }
    if (!rc)
        rc = gguf_get_u64(r->header, "tokenizer.ggml.bos_token_id", false, 0, MODEL_VOCAB_MAX - 1, &id,
                          r->err);
    if (!rc && gguf_find(r->header, "tokenizer.ggml.bos_token_id"))
        rc = set(r, r->json, "bos_token_id", json_integer((json_int_t)id));
    return rc;
}

/* What only the tensors say. */
static int read_tensors(struct reading *r, const struct gguf_files *files)
{
    const struct safetensors_entry *embed = gguf_files_tensor(files, "token_embd.weight", NULL);
    if (!embed || embed->rank != 2)
        return helm_fail(r->err, HELM_E_NOT_FOUND, "there is no matrix 'token_embd.weight'");
    int rc = set(r, r->json, "vocab_size", json_integer((json_int_t)embed->shape[0]));
    if (rc) return rc;
    return set(r, r->json, "tie_word_embeddings",
               json_boolean(!gguf_files_tensor(files, "output.weight", NULL)));
}

static int check_heads(struct reading *r, const struct model_config *config)
{
    static const char *const keys[] = {"attention.value_length", "rope.dimension_count"};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        uint64_t number = config->head_dim;
        int rc = gguf_get_u64(r->header, key_of(r, keys[i]), false, 0, UINT32_MAX, &number, r->err);
        if (!rc && number != config->head_dim)
            rc = helm_fail(r->err, HELM_E_UNSUPPORTED, "key '%s' is %llu, but heads have %u values", r->key,
                           (unsigned long long)number, config->head_dim);
        if (rc) return rc;
    }
    return 0;
}

static int read_all(struct reading *r, const struct gguf_files *files, bool *interleaved)
{
    int rc = read_architecture(r, interleaved);
    if (!rc) rc = refuse(r);
    if (!rc) rc = read_numbers(r);
    if (!rc) rc = read_experts(r);
    if (!rc) rc = copy_number(r, "rope.freq_base", false, r->json, "rope_theta");
    if (!rc) rc = read_scaling(r);
    if (!rc) rc = read_ids(r);
    if (!rc) rc = read_tensors(r, files);
    if (!rc)
        rc = set(r, r->json, "dtype", json_string("bfloat16")); /* of tensors that are none of this file */
    return rc;
}

int gguf_config_read(const struct gguf_files *files, struct model_config *config, bool *interleaved,
                     struct helm_err *err)
{
    struct reading r = {.header = &files->part[0], .json = json_object(), .err = err};
    char *text = NULL;
    memset(config, 0, sizeof *config);
    int rc = read_all(&r, files, interleaved);
    if (!rc && !(text = json_dumps(r.json, JSON_COMPACT)))
        rc = helm_fail(err, HELM_E_NOMEM, "no memory for the configuration");
    if (!rc) rc = model_config_parse("its keys as config.json", text, strlen(text), config, err);
    if (!rc) rc = check_heads(&r, config);
    free(text);
    json_decref(r.json);
    if (rc) {
        model_config_free(config);
        return rc;
    }
    config->gguf = true;
    config->q_bias = gguf_files_tensor(files, "blk.0.attn_q.bias", NULL);
    config->k_bias = gguf_files_tensor(files, "blk.0.attn_k.bias", NULL);
    config->v_bias = gguf_files_tensor(files, "blk.0.attn_v.bias", NULL);
    config->o_bias = gguf_files_tensor(files, "blk.0.attn_output.bias", NULL);
    config->mlp_bias = gguf_files_tensor(files, "blk.0.ffn_up.bias", NULL);
    return 0;
}
