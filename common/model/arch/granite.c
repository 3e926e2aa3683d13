/* Granite (3 and later, dense): a Llama with four multipliers, of the embedding, of what each half adds, of
 * attention's scores, and a divisor of logits.
 *
 * CPU workers compute them; GPU workers refuse scaled outputs by name (able.c). Constant tables and pure
 * functions; see arch.h.
 *
 * Models: Granite 3 (CPU alone). */
#include "common/model/arch/usual.h"

/* ---- keys ---- */

#define MULTIPLIER(member, ...) REAL(member, 1e-6, 1e6, __VA_ARGS__)
static const struct arch_key keys_of_both[] = {
    USUAL_KEYS(KEY_OPTIONAL, KEY_OPTIONAL),
    SILU_KEY,
    ATTENTION_BIAS_KEYS,
    FLAG(mlp_bias, NAMED("mlp_bias")),
    MULTIPLIER(embedding_scale, NAMED("embedding_multiplier"), GGUF("embedding_scale")),
    MULTIPLIER(residual_scale, NAMED("residual_multiplier"), GGUF("residual_scale")),
    MULTIPLIER(attention_scale, NAMED("attention_multiplier"), GGUF("attention.scale")),
    MULTIPLIER(logit_scale, NAMED("logits_scaling"), GGUF("logit_scale")), /* divides logits */
    END};

/* ---- a layer ---- */

static const struct math_part attention = USUAL_ATTENTION;
static const struct math_part dense = USUAL_DENSE;
static const struct math_part *const parts[] = {&attention, &dense, NULL};

static void fill(const struct model_config *c, struct model_math *math)
{
    math->embed.out_scale = (float)c->embedding_scale;
    math->head.out_scale = (float)(1 / c->logit_scale);
    for (uint32_t p = 0; p < math->parts; p++)
        for (uint32_t i = 0; i < math->part[p].ops; i++) {
            struct math_op *op = &math->part[p].op[i];
            if (op->residual) op->out_scale = (float)c->residual_scale;
            if (op->kind == MATH_ATTENTION && c->attention_scale != 0)
                op->score_scale = (float)c->attention_scale;
        }
}

/* Absent in GGUF files: 1 / sqrt(head_dim), as in llama.cpp. */
static void granite_gguf(struct model_config *c)
{
    c->attention_scale = 0;
}

/* ---- the architecture ---- */

const struct arch arch_granite = {.architecture = "GraniteForCausalLM",
                                  .model_type = "granite",
                                  .gguf = {"granite"},
                                  .gguf_interleaved = true,
                                  .start = {ROPE_START(10000), .max_context = 2048, .norm_eps = 1e-6,
                                            .embedding_scale = 1, .residual_scale = 1, .attention_scale = 1,
                                            .logit_scale = 1},
                                  .gguf_start = granite_gguf,
                                  .keys = keys_of_both,
                                  USUAL_LAYERS,
                                  .layers = layers_without_window,
                                  .fill = fill};
