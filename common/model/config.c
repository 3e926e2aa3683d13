/* config.json and generation_config.json: which architecture, then its keys by its table (keys.c), and what
 * all have: the type of weights, RoPE, ids. Every number is bounded, every feature either known or refused by
 * name.
 *
 * Called through model.h by helmd, workers and tools, and by the fuzz target with bytes from memory. The only
 * memory it hands out is config->window (model_config_free). */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/file.h"
#include "common/base/json.h"
#include "common/model/checkpoint.h"
#include "common/model/fused.h"
#include "common/model/keys.h"
#include "common/model/scaled.h"

static const struct arch *named_arch(const json_t *root, const char *type, const char **name, bool *outer,
                                     struct helm_err *err)
{
    const json_t *list = json_object_get(root, "architectures");
    *outer = false;
    *name = NULL;
    if (list && !json_is_null(list)) {
        if (json_is_array(list) && json_is_string(json_array_get(list, 0))) {
            *name = json_string_value(json_array_get(list, 0));
            return arch_find(*name, outer);
        }
        (void)helm_fail(err, HELM_E_FORMAT, "'architectures' is not a list of names");
    } else if (type) {
        *name = type;
        return arch_find_type(type);
    } else {
        (void)helm_fail(err, HELM_E_FORMAT, "'architectures' and 'model_type' are both missing");
    }
    return NULL;
}

/* Which of those that the same architecture has as its text is of this model_type; NULL: none. */
static const struct arch *text_of(const struct arch *arch, const char *type)
{
    if (!type || strcmp(type, arch->model_type) == 0) return arch;
    if (arch->text_type && strcmp(type, arch->text_type) == 0) return arch;
    const struct arch *other = arch_find_type(type);
    return other && other->outer[0] && strcmp(other->outer[0], arch->outer[0]) == 0 ? other : NULL;
}

/* The text's own keys, with those of the whole where it has none. *text is the caller's; *arch becomes the
 * text's. */
static int open_text(const json_t *root, const struct arch **arch, json_t **text, struct helm_err *err)
{
    json_t *inner = json_object_get(root, "text_config"),
           *tied = json_object_get(root, "tie_word_embeddings");
    const char *type = NULL;
    if (!json_is_object(inner))
        return helm_fail(err, HELM_E_FORMAT, "'text_config' is missing, or not an object");
    int rc = json_get_string(inner, "model_type", false, &type, err);
    if (rc) return rc;
    *arch = text_of(*arch, type);
    if (!*arch)
        return helm_fail(err, HELM_E_UNSUPPORTED, "'text_config': model_type '%.60s' is not supported here",
                         type);
    *text = json_copy(inner);
    if (!*text || json_object_update_missing(*text, (json_t *)root) ||
        (tied && json_object_set(*text, "tie_word_embeddings", tied)))
        return helm_fail(err, HELM_E_NOMEM, "no memory for the configuration");
    return 0;
}

/* *text: `root` itself, or the text's configuration inside it; the caller's. */
static int read_architecture(json_t *root, const struct arch **arch, json_t **text, struct helm_err *err)
{
    const char *type = NULL, *name = NULL;
    char known[256];
    bool outer = false;
    int rc = json_get_string(root, "model_type", false, &type, err);
    if (rc) return rc;
    *arch = named_arch(root, type, &name, &outer, err);
    if (!name) return HELM_E_FORMAT;
    if (!*arch)
        return helm_fail(err, HELM_E_UNSUPPORTED, "architecture '%.60s' is not supported (supported: %s)",
                         name, arch_names(known, sizeof known, false));
    if (outer) return open_text(root, arch, text, err);
    if (type && strcmp(type, (*arch)->model_type) != 0)
        return helm_fail(err, HELM_E_MISMATCH, "architecture '%s' contradicts 'model_type' '%.60s'",
                         (*arch)->architecture, type);
    *text = json_incref(root);
    return 0;
}

void config_start(const struct arch *arch, bool gguf, struct model_config *config)
{
    *config = arch->start;
    snprintf(config->architecture, sizeof config->architecture, "%s", arch->architecture);
    snprintf(config->model_type, sizeof config->model_type, "%s", arch->model_type);
    config->bos = -1;
    config->gguf = gguf;
    if (gguf) config->rope[0].theta = GGUF_ROPE_THETA;
    if (gguf && arch->gguf_start) arch->gguf_start(config);
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
    config->dtype = DTYPE_F32; /* transformers assumes it when the file is silent */
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

static bool stores_mxfp4(const struct arch *arch)
{
    for (const struct fused_tensor *f = arch->fused; f && f->roles; f++)
        if (f->part == FUSED_BLOCKS) return true;
    return false;
}

/* How matrices of experts are stored where the architecture's may be MXFP4; what any may be (scaled.h);
 * nothing else. */
static int read_quantization(const json_t *root, const struct arch *arch, struct model_config *config,
                             struct helm_err *err)
{
    const json_t *quantization = json_object_get(root, "quantization_config");
    const char *method = NULL;
    bool known = false;
    config->experts_format = tensor_format_plain(config->dtype);
    if (!quantization || json_is_null(quantization)) return 0;
    if (json_is_object(quantization)) {
        int rc = json_get_string(quantization, "quant_method", false, &method, err);
        if (rc) return rc;
    }
    if (stores_mxfp4(arch) && method && strcmp(method, "mxfp4") == 0) {
        config->experts_format = FORMAT_MXFP4;
        return 0;
    }
    if (method) {
        const int rc = scaled_config(quantization, method, config, &known, err);
        if (rc || known) return rc;
    }
    return helm_fail(
        err, HELM_E_UNSUPPORTED,
        "'quantization_config' (method '%.40s') is not supported; use the bf16, fp16 or fp32 weights",
        method ? method : "unnamed");
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

static int read_all(json_t *root, struct model_config *config, struct helm_err *err)
{
    json_t *text = NULL;
    struct keys keys = {0};
    int rc = read_architecture(root, &keys.arch, &text, err);
    if (rc) return rc;
    keys.json = text;
    config_start(keys.arch, false, config);
    rc = keys_read(&keys, config, err);
    if (!rc) rc = keys_check(&keys, config, err);
    if (!rc) rc = read_dtype(text, config, err);
    if (!rc) rc = read_quantization(text, keys.arch, config, err);
    if (!rc) rc = config_read_rope(text, config, err);
    if (!rc) rc = keys.arch->layers(&keys, config, err);
    if (!rc) rc = read_special_ids(text, config, err);
    json_decref(text);
    return rc;
}

int model_config_parse(const char *what, const char *text, size_t length, struct model_config *config,
                       struct helm_err *err)
{
    json_t *root = NULL;
    memset(config, 0, sizeof *config);
    config->bos = -1;
    int rc = json_parse_bounded(what, text, length, CONFIG_BYTES_MAX, &root, err);
    if (rc) return rc;
    rc = json_is_object(root) ? read_all(root, config, err)
                              : helm_fail(err, HELM_E_FORMAT, "not a JSON object");
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
    int rc = gguf_model_read(folder, CHECKPOINT_HEADERS, &found, &model, err);
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
    free(config->widths);
    free(config->reads);
    free(config->sparse);
    free(config->recurrent);
    for (int i = 0; i < MODEL_ROPES_MAX; i++) {
        free(config->rope[i].factors);
        free(config->rope[i].long_factors);
    }
    memset(config, 0, sizeof *config);
}
