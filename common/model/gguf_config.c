/* The configuration of a model in GGUF files: which architecture, then its keys by its table (keys.c), and
 * what all have: RoPE, ids, and what only the tensors say. Called by gguf_model.c. */
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "common/model/checkpoint.h"
#include "common/model/keys.h"

#define ARCH_TEXT 40

struct reading {
    const struct gguf *header;
    char name[ARCH_TEXT];               /* general.architecture */
    char key[ARCH_TEXT + GGUF_KEY_MAX]; /* key_of's */
    struct keys keys;
    bool long_rope; /* by its key: there are two tensors of factors then */
    struct helm_err *err;
};

static const char *key_of(struct reading *r, const char *name)
{
    snprintf(r->key, sizeof r->key, "%s.%s", r->name, name);
    return r->key;
}

static bool has_name(const struct arch *arch, const char *name)
{
    for (int i = 0; i < ARCH_ALIASES && arch->gguf[i]; i++)
        if (strcmp(arch->gguf[i], name) == 0) return true;
    return false;
}

/* Finds, among several architectures that files call the same, one that a key tells: the last in the
 * registry, as experts tell more than a window; else one that needs no telling, or the only one. */
static int find_architecture(struct reading *r)
{
    const struct arch *told = NULL, *plain = NULL, *any = NULL;
    char known[256];
    int rc = gguf_get_string(r->header, "general.architecture", true, r->name, sizeof r->name, r->err);
    for (uint32_t i = 0; arch_at(i) && !rc; i++) {
        const struct arch *arch = arch_at(i);
        uint64_t number = 0;
        if (!has_name(arch, r->name)) continue;
        any = arch;
        if (!arch->gguf_told_by) {
            plain = arch;
            continue;
        }
        rc = gguf_get_u64(r->header, key_of(r, arch->gguf_told_by), false, 0, UINT32_MAX, &number, r->err);
        if (arch->gguf_told_is ? number == arch->gguf_told_is : number != 0) told = arch;
    }
    if (rc) return rc;
    r->keys = (struct keys){.arch = told    ? told
                                    : plain ? plain
                                            : any,
                            .header = r->header,
                            .prefix = r->name};
    if (r->keys.arch) return 0;
    return helm_fail(r->err, HELM_E_UNSUPPORTED, "architecture '%s' is not supported (supported: %s)",
                     r->name, arch_names(known, sizeof known, true));
}

/* ---- RoPE, as config.json would have it ---- */

static int set(struct reading *r, json_t *object, const char *member, json_t *value)
{
    return json_object_set_new(object, member, value)
               ? helm_fail(r->err, HELM_E_NOMEM, "no memory for the configuration")
               : 0;
}

static int copy_number(struct reading *r, const char *key, bool required, json_t *to, const char *member)
{
    double number = 0;
    int rc = gguf_get_double(r->header, key_of(r, key), required, 0, 1e12, &number, r->err);
    if (rc || !gguf_find(r->header, r->key)) return rc;
    return set(r, to, member, json_real(number));
}

static int copy_scaling(struct reading *r, json_t *root)
{
    char type[ARCH_TEXT] = "none";
    uint64_t context = 0;
    int rc = gguf_get_string(r->header, key_of(r, "rope.scaling.type"), false, type, sizeof type, r->err);
    r->long_rope = strcmp(type, "longrope") == 0;
    if (rc || r->long_rope || strcmp(type, "none") == 0) return rc;
    if (strcmp(type, "linear") != 0 && strcmp(type, "yarn") != 0)
        return helm_fail(
            r->err, HELM_E_UNSUPPORTED,
            "key '%s': RoPE scaling '%s' is not supported (supported: none, linear, yarn, longrope)", r->key,
            type);
    json_t *scaling = json_pack("{s:s}", "rope_type", type);
    rc = set(r, root, "rope_scaling", scaling);
    if (!rc) rc = copy_number(r, "rope.scaling.factor", true, scaling, "factor");
    if (!rc) rc = copy_number(r, "rope.scaling.yarn_beta_fast", false, scaling, "beta_fast");
    if (!rc) rc = copy_number(r, "rope.scaling.yarn_beta_slow", false, scaling, "beta_slow");
    if (!rc)
        rc = gguf_get_u64(r->header, key_of(r, "rope.scaling.original_context_length"), false, 1,
                          MODEL_CONTEXT_MAX, &context, r->err);
    /* OLMo 3 has the whole factor there, as config.json says it */
    if (!rc && strcmp(type, "yarn") == 0 && keys_reads_gguf(r->keys.arch, "rope.scaling.attn_factor"))
        rc = copy_number(r, "rope.scaling.attn_factor", false, scaling, "attention_factor");
    if (!rc && context)
        rc = set(r, scaling, "original_max_position_embeddings", json_integer((json_int_t)context));
    return rc;
}

static int read_rope(struct reading *r, struct model_config *config)
{
    json_t *root = json_object();
    int rc = copy_number(r, "rope.freq_base", false, root, "rope_theta");
    if (!rc) rc = copy_scaling(r, root);
    const json_t *scaling = json_object_get(root, "rope_scaling");
    if (!rc && scaling && !json_object_get(scaling, "attention_factor") &&
        config->rope[0].attention_factor != 1)
        rc = helm_fail(r->err, HELM_E_UNSUPPORTED, "key '%s' is %g: only a longrope has one of its own",
                       key_of(r, "rope.scaling.attn_factor"), config->rope[0].attention_factor);
    if (!rc) rc = config_read_rope(root, config, r->err);
    json_decref(root);
    return rc;
}

/* Ids that end a text; the one it begins with. */
static int read_ids(struct reading *r, struct model_config *c)
{
    static const char *const names[] = {"tokenizer.ggml.bos_token_id", "tokenizer.ggml.eos_token_id",
                                        "tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        uint64_t id = 0;
        bool known = false;
        int rc = gguf_get_u64(r->header, names[i], false, 0, MODEL_VOCAB_MAX - 1, &id, r->err);
        if (rc) return rc;
        if (!gguf_find(r->header, names[i])) continue;
        if (i == 0) c->bos = (int32_t)id;
        for (uint32_t k = 0; k < c->eos_count; k++) known |= c->eos[k] == (int32_t)id;
        if (i > 0 && !known) c->eos[c->eos_count++] = (int32_t)id;
    }
    return 0;
}

/* Reads properties that only the tensors show. */
static int read_tensors(struct reading *r, const struct gguf_files *files, struct model_config *c)
{
    static const struct {
        enum tensor_role role;
        size_t member;
    } biases[] = {{TENSOR_Q_BIAS, offsetof(struct model_config, q_bias)},
                  {TENSOR_K_BIAS, offsetof(struct model_config, k_bias)},
                  {TENSOR_V_BIAS, offsetof(struct model_config, v_bias)},
                  {TENSOR_O_BIAS, offsetof(struct model_config, o_bias)},
                  {TENSOR_UP_BIAS, offsetof(struct model_config, mlp_bias)}};
    char name[MODEL_NAME_MAX];
    model_tensor_name(c, TENSOR_EMBED, -1, name);
    const struct safetensors_entry *embed = gguf_files_tensor(files, name, NULL);
    if (!embed || embed->rank != 2)
        return helm_fail(r->err, HELM_E_NOT_FOUND, "there is no matrix '%s'", name);
    if (embed->shape[0] == 0 || embed->shape[0] > MODEL_VOCAB_MAX)
        return helm_fail(r->err, HELM_E_LIMIT, "'%s' has %llu rows, not between 1 and %u", name,
                         (unsigned long long)embed->shape[0], MODEL_VOCAB_MAX);
    c->vocab = (uint32_t)embed->shape[0];
    if (r->long_rope && !gguf_files_tensor(files, ARCH_ROPE_LONG, NULL))
        return helm_fail(r->err, HELM_E_NOT_FOUND, "RoPE scaling 'longrope': there is no vector '%s'",
                         ARCH_ROPE_LONG);
    model_tensor_name(c, TENSOR_HEAD, -1, name);
    c->tied_head = !gguf_files_tensor(files, name, NULL);
    for (size_t i = 0; i < sizeof biases / sizeof *biases; i++) {
        model_tensor_name(c, biases[i].role, 0, name);
        *(bool *)((char *)c + biases[i].member) = gguf_files_tensor(files, name, NULL);
    }
    return r->keys.arch->gguf_tensors ? r->keys.arch->gguf_tensors(files, c, r->err) : 0;
}

static int check_heads(struct reading *r, const struct model_config *config)
{
    static const char *const keys[] = {"attention.value_length", "rope.dimension_count"};
    const double usual = 1 / sqrt((double)config->head_dim);
    double scale = 0;
    const uint32_t dims = config->rope[0].dims;
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        uint64_t number = config->head_dim;
        if (i == 1 && dims && dims <= config->head_dim && dims % 2 == 0) continue;
        if (config->latent.rank) continue; /* its own keys say both */
        int rc = gguf_get_u64(r->header, key_of(r, keys[i]), false, 0, UINT32_MAX, &number, r->err);
        if (!rc && number != config->head_dim)
            rc = helm_fail(r->err, HELM_E_UNSUPPORTED, "key '%s' is %llu, but heads have %u values", r->key,
                           (unsigned long long)number, config->head_dim);
        if (rc) return rc;
    }
    int rc = gguf_get_double(r->header, key_of(r, "attention.scale"), false, -1e300, 1e300, &scale, r->err);
    if (!rc && scale != 0 && fabs(scale - usual) > 1e-5 * usual && config->attention_scale == 0)
        rc = helm_fail(r->err, HELM_E_UNSUPPORTED,
                       "key '%s' is %g: attention with a scale of its own is not supported", r->key, scale);
    return rc;
}

/* All that keys say. */
static int read_keys(struct reading *r, struct model_config *config)
{
    int rc = find_architecture(r);
    if (rc) return rc;
    config_start(r->keys.arch, true, config);
    config->dtype = DTYPE_BF16; /* of tensors that are none of this file */
    config->experts_format = FORMAT_BF16;
    rc = keys_read(&r->keys, config, r->err);
    if (!rc) rc = keys_check(&r->keys, config, r->err);
    if (!rc) rc = read_rope(r, config);
    if (!rc) rc = r->keys.arch->layers(&r->keys, config, r->err);
    if (!rc) rc = read_ids(r, config);
    return rc ? rc : check_heads(r, config);
}

int gguf_config_keys(const struct gguf *header, struct model_config *config, struct helm_err *err)
{
    struct reading r = {.header = header, .err = err};
    memset(config, 0, sizeof *config);
    int rc = read_keys(&r, config);
    if (rc) model_config_free(config);
    return rc;
}

int gguf_config_read(const struct gguf_files *files, struct model_config *config, struct helm_err *err)
{
    struct reading r = {.header = &files->part[0], .err = err};
    memset(config, 0, sizeof *config);
    int rc = read_keys(&r, config);
    if (!rc) rc = read_tensors(&r, files, config);
    if (rc) model_config_free(config);
    return rc;
}
