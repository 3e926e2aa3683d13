/* A configuration as the key/values of a GGUF file: the other way round from gguf_config.c. See gguf_write.h.
 *
 * Keys are those that llama.cpp asks for: all that it requires, and what makes no sense to leave to its defaults. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "common/model/arch.h"
#include "common/model/gguf_model.h"
#include "common/model/gguf_write.h"

/* What GGUF's blocks are since 2023; llama.cpp asks for it. */
#define QUANTIZATION_VERSION 2

struct describing {
    struct gguf_values *values;
    const struct gguf_arch *arch;
    char key[GGUF_KEY_MAX];
};

static const char *key_of(struct describing *d, const char *name)
{
    snprintf(d->key, sizeof d->key, "%s.%s", d->arch->name, name);
    return d->key;
}

/* GGUF says one window, for all layers or, of `gpt-oss`, every second one. */
static int put_window(struct describing *d, const struct model_config *c, struct helm_err *err)
{
    const uint32_t window = c->window ? c->window[0] : 0;
    for (uint32_t i = 0; c->window && i < c->layers; i++)
        if (c->window[i] != (d->arch->alternate && i % 2 ? 0 : window) || (window && !d->arch->windows))
            return helm_fail(err, HELM_E_UNSUPPORTED,
                             "%s with a sliding window in some layers: no GGUF key says that",
                             c->architecture);
    if (window) gguf_put_u32(d->values, key_of(d, "attention.sliding_window"), window);
    return 0;
}

/* What DeepSeek-V3's relatives have keys for. */
static void put_v3(struct describing *d, const struct model_config *c, uint32_t leading)
{
    gguf_put_u32(d->values, key_of(d, "leading_dense_block_count"), leading);
    gguf_put_u32(d->values, key_of(d, "expert_shared_count"),
                 c->shared_intermediate / c->expert_intermediate);
    gguf_put_bool(d->values, key_of(d, "expert_weights_norm"), c->router.normalise);
    gguf_put_f32(d->values, key_of(d, "expert_weights_scale"), c->router.scale);
    gguf_put_u32(d->values, key_of(d, "expert_gating_func"), GGUF_ROUTER_SIGMOID);
    if (c->router.groups == 1) return;
    gguf_put_u32(d->values, key_of(d, "expert_group_count"), c->router.groups);
    gguf_put_u32(d->values, key_of(d, "expert_group_used_count"), c->router.groups_chosen);
}

/* All layers are mixtures, or, where a key says how many, all behind the first dense ones; and weights are normalised or not as
 * the architecture's are. */
static int put_experts(struct describing *d, const struct model_config *c, struct helm_err *err)
{
    const bool v3 = d->arch->v3_keys;
    uint32_t leading = 0, sparse = 0;
    if (!c->router.experts) return 0;
    while (v3 && !model_layer_sparse(c, leading)) leading++;
    for (uint32_t i = leading; i < c->layers; i++) sparse += model_layer_sparse(c, i);
    if (leading + sparse < c->layers)
        return helm_fail(err, HELM_E_UNSUPPORTED,
                         "%s with dense layers among sparse ones: no GGUF key says that", c->architecture);
    if (!v3 && c->router.normalise == d->arch->raw_weights)
        return helm_fail(err, HELM_E_UNSUPPORTED,
                         "%s with experts' weights that are %snormalised: no GGUF key says that",
                         c->architecture, c->router.normalise ? "" : "not ");
    if (v3) put_v3(d, c, leading);
    if (d->arch->shared)
        gguf_put_u32(d->values, key_of(d, "expert_shared_feed_forward_length"), c->shared_intermediate);
    gguf_put_u32(d->values, key_of(d, "expert_count"), c->router.experts);
    gguf_put_u32(d->values, key_of(d, "expert_used_count"), c->router.chosen);
    if (c->expert_intermediate != c->intermediate || d->arch->alternate || d->arch->shared)
        gguf_put_u32(d->values, key_of(d, "expert_feed_forward_length"), c->expert_intermediate);
    return 0;
}

/* Llama 3's scaling is a tensor of the file (ARCH_ROPE_FACTORS). */
static int put_rope(struct describing *d, const struct model_config *c, struct helm_err *err)
{
    const struct rope_config *rope = &c->rope;
    gguf_put_f32(d->values, key_of(d, "rope.freq_base"), (float)rope->theta);
    gguf_put_u32(d->values, key_of(d, "rope.dimension_count"), c->head_dim);
    if (rope->kind != ROPE_LINEAR && rope->kind != ROPE_YARN) return 0;
    const double attention = rope->factor > 1 ? 0.1 * log(rope->factor) + 1 : 1;
    if (rope->kind == ROPE_YARN &&
        (fabs(rope->attention_factor - attention) > 1e-6 || rope->truncate == d->arch->whole_yarn))
        return helm_fail(
            err, HELM_E_UNSUPPORTED,
            "YaRN with an attention factor of its own (%g), or 'truncate' %s: no GGUF key says that",
            rope->attention_factor, rope->truncate ? "true" : "false");
    gguf_put_text(d->values, key_of(d, "rope.scaling.type"), rope->kind == ROPE_YARN ? "yarn" : "linear");
    gguf_put_f32(d->values, key_of(d, "rope.scaling.factor"), (float)rope->factor);
    if (rope->kind == ROPE_LINEAR) return 0;
    gguf_put_u32(d->values, key_of(d, "rope.scaling.original_context_length"), rope->original_context);
    gguf_put_f32(d->values, key_of(d, "rope.scaling.yarn_beta_fast"), (float)rope->beta_fast);
    gguf_put_f32(d->values, key_of(d, "rope.scaling.yarn_beta_slow"), (float)rope->beta_slow);
    return 0;
}

int gguf_put_config(struct gguf_values *values, const struct model_config *c, bool *interleaved,
                    struct helm_err *err)
{
    struct describing d = {.values = values, .arch = gguf_arch_of(c)};
    const struct {
        const char *name;
        uint32_t number;
    } numbers[] = {{"vocab_size", c->vocab},
                   {"context_length", c->max_context},
                   {"embedding_length", c->hidden},
                   {"block_count", c->layers},
                   {"feed_forward_length", c->intermediate},
                   {"attention.head_count", c->heads},
                   {"attention.head_count_kv", c->kv_heads},
                   {"attention.key_length", c->head_dim},
                   {"attention.value_length", c->head_dim}};
    if (!d.arch)
        return helm_fail(err, HELM_E_UNSUPPORTED, "architecture '%s' has no name in GGUF files",
                         c->architecture);
    *interleaved = d.arch->interleaved;
    gguf_put_text(values, "general.architecture", d.arch->name);
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        gguf_put_u32(values, key_of(&d, numbers[i].name), numbers[i].number);
    gguf_put_f32(values, key_of(&d, "attention.layer_norm_rms_epsilon"), (float)c->norm_eps);
    int rc = put_experts(&d, c, err);
    if (!rc) rc = put_rope(&d, c, err);
    return rc ? rc : put_window(&d, c, err);
}

void gguf_put_mixture(struct gguf_values *values, const struct mixture *mixture)
{
    gguf_put_u32(values, "general.file_type", mixture_file_type(mixture));
    gguf_put_u32(values, "general.quantization_version", QUANTIZATION_VERSION);
}
