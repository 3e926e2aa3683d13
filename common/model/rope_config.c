/* RoPE keys of config.json: `rope_theta` + `rope_scaling` of older files, `rope_parameters` of newer ones.
 *
 * Called by config.c only. Where a file has both generations they must say the same. Pure functions. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/json.h"
#include "common/model/checkpoint.h"

#define ROPE_THETA_MIN  2.0 /* log(theta) divides */
#define ROPE_THETA_MAX  1e12
#define ROPE_FACTOR_MIN 1e-3
#define ROPE_FACTOR_MAX 1e6

const char *rope_kind_name(enum rope_kind kind)
{
    static const char *const names[] = {
        [ROPE_DEFAULT] = "default",  [ROPE_LINEAR] = "linear",   [ROPE_LLAMA3] = "llama3",
        [ROPE_YARN] = "yarn",        [ROPE_FACTORS] = "factors", [ROPE_LONG] = "longrope",
        [ROPE_PART] = "proportional"};
    return names[kind];
}

static int read_kind(const json_t *scaling, enum rope_kind *kind, struct helm_err *err)
{
    static const struct {
        const char *name;
        enum rope_kind kind;
    } kinds[] = {{"default", ROPE_DEFAULT},  {"linear", ROPE_LINEAR},
                 {"llama3", ROPE_LLAMA3},    {"yarn", ROPE_YARN},
                 {"longrope", ROPE_LONG},    {"su", ROPE_LONG}, /* the name it had at first */
                 {"proportional", ROPE_PART}};
    const char *name = NULL;
    int rc = json_get_string(scaling, "rope_type", false, &name, err);
    if (!rc && !name) rc = json_get_string(scaling, "type", false, &name, err);
    if (rc) return rc;
    *kind = ROPE_DEFAULT;
    if (!name) return 0;
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        if (strcmp(name, kinds[i].name) != 0) continue;
        *kind = kinds[i].kind;
        return 0;
    }
    return helm_fail(err, HELM_E_UNSUPPORTED,
                     "RoPE type '%.40s' is not supported (supported: default, linear, llama3, yarn, "
                     "longrope, proportional)",
                     name);
}

/* Into rope->dims, of architectures that turn a part of each head; others turn all of it. */
static int check_partial(const json_t *obj, const struct model_config *config, struct rope_config *rope,
                         struct helm_err *err)
{
    double part = 1;
    int rc = json_get_double(obj, "partial_rotary_factor", false, -1e9, 1e9, &part, err);
    if (!rc && config->partial_rope && json_object_get(obj, "partial_rotary_factor")) {
        const double dims = part * config->head_dim;
        if (!(part > 0 && part <= 1) || dims != floor(dims) || (uint32_t)dims % 2)
            return helm_fail(err, HELM_E_FORMAT,
                             "'partial_rotary_factor' is %g: no even number of %u numbers of a head", part,
                             config->head_dim);
        if (rope->dims && rope->dims != (uint32_t)dims)
            return helm_fail(err, HELM_E_MISMATCH,
                             "'partial_rotary_factor' is %g here and another number elsewhere", part);
        rope->dims = (uint32_t)dims;
        return 0;
    }
    if (!rc && part != 1.0)
        rc = helm_fail(err, HELM_E_UNSUPPORTED,
                       "'partial_rotary_factor' is %g: rotating a part of each head is not supported", part);
    return rc;
}

static int read_original_context(const json_t *root, const json_t *scaling, const struct model_config *config,
                                 struct rope_config *rope, struct helm_err *err)
{
    uint64_t context = config->max_context;
    int rc =
        json_get_u64(root, "original_max_position_embeddings", false, 1, MODEL_CONTEXT_MAX, &context, err);
    if (!rc)
        rc = json_get_u64(scaling, "original_max_position_embeddings", false, 1, MODEL_CONTEXT_MAX, &context,
                          err);
    rope->original_context = (uint32_t)context;
    return rc;
}

static int read_factor(const json_t *scaling, bool required, double *factor, struct helm_err *err)
{
    return json_get_double(scaling, "factor", required, ROPE_FACTOR_MIN, ROPE_FACTOR_MAX, factor, err);
}

/* "proportional": the first pairs of each head turn as if all did. */
static int read_part(const json_t *scaling, struct rope_config *rope, struct helm_err *err)
{
    rope->part = 1;
    const int rc = json_get_double(scaling, "partial_rotary_factor", false, 1e-6, 1, &rope->part, err);
    return rc ? rc : read_factor(scaling, false, &rope->factor, err);
}

static int read_llama3(const json_t *scaling, struct rope_config *rope, struct helm_err *err)
{
    int rc = read_factor(scaling, true, &rope->factor, err);
    if (!rc)
        rc = json_get_double(scaling, "low_freq_factor", true, ROPE_FACTOR_MIN, ROPE_FACTOR_MAX,
                             &rope->low_freq_factor, err);
    if (!rc)
        rc = json_get_double(scaling, "high_freq_factor", true, ROPE_FACTOR_MIN, ROPE_FACTOR_MAX,
                             &rope->high_freq_factor, err);
    if (!rc && rope->high_freq_factor <= rope->low_freq_factor)
        rc = helm_fail(err, HELM_E_FORMAT, "'high_freq_factor' %g must be greater than 'low_freq_factor' %g",
                       rope->high_freq_factor, rope->low_freq_factor);
    return rc;
}

static double yarn_mscale(double scale, double mscale)
{
    return scale <= 1 ? 1.0 : 0.1 * mscale * log(scale) + 1.0;
}

static int read_yarn(const json_t *scaling, const struct model_config *config, struct rope_config *rope,
                     struct helm_err *err)
{
    double mscale = 0, mscale_all = 0, factor = 0, attention = 0;
    /* The key must be there; null in it means the ratio of the two contexts. */
    bool ratio = json_is_null(json_object_get(scaling, "factor"));
    int rc = read_factor(scaling, !ratio, &factor, err);
    if (!rc) rc = json_get_double(scaling, "beta_fast", false, 0, ROPE_FACTOR_MAX, &rope->beta_fast, err);
    if (!rc) rc = json_get_double(scaling, "beta_slow", false, 0, ROPE_FACTOR_MAX, &rope->beta_slow, err);
    if (!rc) rc = json_get_double(scaling, "mscale", false, 0, ROPE_FACTOR_MAX, &mscale, err);
    if (!rc) rc = json_get_double(scaling, "mscale_all_dim", false, 0, ROPE_FACTOR_MAX, &mscale_all, err);
    if (!rc)
        rc = json_get_double(scaling, "attention_factor", false, ROPE_FACTOR_MIN, ROPE_FACTOR_MAX, &attention,
                             err);
    if (!rc) rc = json_get_bool(scaling, "truncate", false, &rope->truncate, err);
    if (rc) return rc;
    rope->factor = !ratio ? factor : (double)config->max_context / rope->original_context;
    /* The reference writes `beta or default`: a zero means the default. */
    if (rope->beta_fast == 0) rope->beta_fast = 32;
    if (rope->beta_slow == 0) rope->beta_slow = 1;
    if (attention == 0) {
        attention = mscale != 0 && mscale_all != 0
                        ? yarn_mscale(rope->factor, mscale) / yarn_mscale(rope->factor, mscale_all)
                        : yarn_mscale(rope->factor, 1);
    }
    rope->attention_factor = attention;
    rope->mscale_all = mscale_all;
    return 0;
}

/* A list of head_dim / 2 factors; *factors is the caller's. */
static int read_factors(const json_t *scaling, const char *key, uint32_t count, float **factors,
                        struct helm_err *err)
{
    const json_t *list = json_object_get(scaling, key);
    if (!list) return helm_fail(err, HELM_E_FORMAT, "'%s' is missing", key);
    if (!json_is_array(list) || json_array_size(list) != count)
        return helm_fail(err, HELM_E_MISMATCH, "'%s' is no list of %u numbers, one for each pair of a head",
                         key, count);
    *factors = calloc(count, sizeof **factors);
    if (!*factors) return helm_fail(err, HELM_E_NOMEM, "no memory for %u factors", count);
    for (uint32_t i = 0; i < count; i++) {
        const json_t *item = json_array_get(list, i);
        const double number = json_is_number(item) ? json_number_value(item) : 0;
        if (!(number >= ROPE_FACTOR_MIN && number <= ROPE_FACTOR_MAX))
            return helm_fail(err, HELM_E_LIMIT, "'%s' entry %u is no number between %g and %g", key, i,
                             ROPE_FACTOR_MIN, ROPE_FACTOR_MAX);
        (*factors)[i] = (float)number;
    }
    return 0;
}

static int read_longrope(const json_t *root, const json_t *scaling, const struct model_config *config,
                         struct rope_config *rope, struct helm_err *err)
{
    const char *key = "original_max_position_embeddings";
    const bool stated = json_object_get(root, key) || json_object_get(scaling, key);
    double attention = 0;
    if (!stated || rope->original_context < 2) /* its logarithm divides */
        return helm_fail(err, HELM_E_FORMAT, "longrope: 'original_max_position_embeddings' is missing, or 1");
    rope->factor = (double)config->max_context / rope->original_context;
    int rc = read_factor(scaling, false, &rope->factor, err);
    if (!rc)
        rc = json_get_double(scaling, "attention_factor", false, ROPE_FACTOR_MIN, ROPE_FACTOR_MAX, &attention,
                             err);
    if (!rc) rc = read_factors(scaling, "short_factor", config->head_dim / 2, &rope->factors, err);
    if (!rc) rc = read_factors(scaling, "long_factor", config->head_dim / 2, &rope->long_factors, err);
    if (rc) return rc;
    if (attention == 0)
        attention = rope->factor <= 1 ? 1 : sqrt(1 + log(rope->factor) / log(rope->original_context));
    rope->attention_factor = attention;
    return 0;
}

static void free_rope(struct rope_config *rope)
{
    free(rope->factors);
    free(rope->long_factors);
    rope->factors = rope->long_factors = NULL;
}

/* One description: `scaling` is rope_scaling or rope_parameters, or NULL for none. */
static int read_rope(const json_t *root, const json_t *scaling, double theta,
                     const struct model_config *config, struct rope_config *rope, struct helm_err *err)
{
    *rope = (struct rope_config){.kind = ROPE_DEFAULT,
                                 .theta = theta,
                                 .factor = 1,
                                 .attention_factor = config->rope[0].attention_factor,
                                 .original_context = config->rope[0].original_context,
                                 .dims = config->rope[0].dims,
                                 .truncate = config->rope[0].truncate};
    if (!scaling) return 0;
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)scaling, key, value)
    {
        if (json_is_object(value))
            return helm_fail(err, HELM_E_UNSUPPORTED,
                             "RoPE parameters for each layer type ('%.40s') are not supported", key);
    }
    int rc = json_get_double(scaling, "rope_theta", false, ROPE_THETA_MIN, ROPE_THETA_MAX, &rope->theta, err);
    if (!rc) rc = read_kind(scaling, &rope->kind, err);
    if (!rc && rope->kind == ROPE_PART) return read_part(scaling, rope, err);
    if (!rc) rc = check_partial(scaling, config, rope, err);
    if (rc || rope->kind == ROPE_DEFAULT) return rc;
    if (rope->kind == ROPE_LINEAR) return read_factor(scaling, true, &rope->factor, err);
    rc = read_original_context(root, scaling, config, rope, err);
    if (rc) return rc;
    if (rope->kind == ROPE_LLAMA3) return read_llama3(scaling, rope, err);
    return rope->kind == ROPE_YARN ? read_yarn(scaling, config, rope, err)
                                   : read_longrope(root, scaling, config, rope, err);
}

static bool same_factors(const float *a, const float *b, uint32_t count)
{
    return !a || !b ? a == b : memcmp(a, b, count * sizeof *a) == 0;
}

static bool same_rope(const struct rope_config *a, const struct rope_config *b, uint32_t head_dim)
{
    return a->kind == b->kind && a->theta == b->theta && a->factor == b->factor &&
           a->low_freq_factor == b->low_freq_factor && a->high_freq_factor == b->high_freq_factor &&
           a->beta_fast == b->beta_fast && a->beta_slow == b->beta_slow &&
           a->attention_factor == b->attention_factor && a->mscale_all == b->mscale_all &&
           a->truncate == b->truncate && a->original_context == b->original_context && a->dims == b->dims &&
           a->part == b->part && same_factors(a->factors, b->factors, head_dim / 2) &&
           same_factors(a->long_factors, b->long_factors, head_dim / 2);
}

static int get_object(const json_t *root, const char *key, const json_t **object, struct helm_err *err)
{
    const json_t *value = json_object_get(root, key);
    *object = NULL;
    if (!value || json_is_null(value)) return 0;
    if (!json_is_object(value)) return helm_fail(err, HELM_E_FORMAT, "'%s' is not an object", key);
    *object = value;
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
    if (config->rope[0].kind != ROPE_YARN) return;
    if (!has_number(parameters, "factor") && !has_number(scaling, "factor")) return;
    if (!has_number(parameters, original) && !has_number(scaling, original) && !has_number(root, original))
        return;
    double context = floor(config->rope[0].factor * config->rope[0].original_context);
    if (context > MODEL_CONTEXT_MAX) context = MODEL_CONTEXT_MAX;
    if (context > config->max_context) config->max_context = (uint32_t)context;
}

/* Splits parameters that are given for each kind of layers: for layers without a window, and for layers with
 * one. */
static int split_kinds(const json_t **parameters, const json_t **windows, struct helm_err *err)
{
    const json_t *both = *parameters;
    *windows = NULL;
    if (!both || !(json_object_get(both, "full_attention") || json_object_get(both, "sliding_attention")))
        return 0;
    int rc = get_object(both, "full_attention", parameters, err);
    if (!rc) rc = get_object(both, "sliding_attention", windows, err);
    if (!rc && (!*parameters || !*windows))
        rc = helm_fail(err, HELM_E_FORMAT, "'rope_parameters': '%s' is missing",
                       *parameters ? "sliding_attention" : "full_attention");
    return rc;
}

/* Windows' heads may be of another size than the others', to which lists of factors are held. */
static int read_windows(const json_t *root, const json_t *windows, const struct model_config *config,
                        struct rope_config *rope, struct helm_err *err)
{
    enum rope_kind kind = ROPE_DEFAULT;
    int rc = windows ? read_kind(windows, &kind, err) : 0;
    if (!rc && kind != ROPE_DEFAULT && kind != ROPE_LINEAR)
        rc = helm_fail(err, HELM_E_UNSUPPORTED,
                       "'sliding_attention': this RoPE type is not supported in windows (supported: "
                       "default, linear)");
    return rc ? rc : read_rope(root, windows, config->rope[1].theta, config, rope, err);
}

int config_read_rope(const json_t *root, struct model_config *config, struct helm_err *err)
{
    const json_t *scaling, *parameters, *windows = NULL;
    struct rope_config rope = {0}, older = {0}, second = {0};
    double theta = 0;
    int rc = get_object(root, "rope_scaling", &scaling, err);
    if (!rc) rc = get_object(root, "rope_parameters", &parameters, err);
    if (!rc && model_ropes(config) > 1) rc = split_kinds(&parameters, &windows, err);
    if (!rc) rc = json_get_double(root, "rope_theta", false, ROPE_THETA_MIN, ROPE_THETA_MAX, &theta, err);
    if (!rc) rc = check_partial(root, config, &config->rope[0], err);
    if (rc) return rc;
    rc = read_rope(root, parameters ? parameters : scaling, theta != 0 ? theta : config->rope[0].theta,
                   config, &rope, err);
    if (!rc && parameters && theta != 0 && theta != rope.theta)
        rc = helm_fail(err, HELM_E_MISMATCH, "'rope_theta' is %g, but 'rope_parameters' says %g", theta,
                       rope.theta);
    if (!rc && parameters && scaling) rc = read_rope(root, scaling, rope.theta, config, &older, err);
    if (!rc && parameters && scaling && !same_rope(&older, &rope, config->head_dim))
        rc = helm_fail(err, HELM_E_MISMATCH, "'rope_scaling' and 'rope_parameters' contradict each other");
    free_rope(&older);
    if (!rc && model_ropes(config) > 1) rc = read_windows(root, windows, config, &second, err);
    if (rc) {
        free_rope(&rope);
        free_rope(&second);
        return rc;
    }
    config->rope[0] = rope;
    if (model_ropes(config) > 1) config->rope[1] = second;
    if (config->partial_rope && rope.dims == 0)
        return helm_fail(err, HELM_E_FORMAT, "'partial_rotary_factor' is missing");
    extend_context(root, config);
    return 0;
}
