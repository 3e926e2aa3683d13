/* The architecture that tests of fixed states run: Llama's layers, of which most keep a running mean instead
 * of attention.
 *
 * No published model is called so, and messages do not name it. Every `full_attention_interval`-th layer
 * attends, as in hybrids. The others project the normalised input by q, take the mean over all positions so
 * far, of these means again the mean, and project that by o: two states in one record, as gated delta nets
 * have. Constant tables and pure functions; see arch.h. */
#include "common/model/arch/usual.h"

static const struct arch_key state_test_keys[] = {USUAL_KEYS(KEY_OPTIONAL, KEY_OPTIONAL), SILU_KEY,
                                                  COUNT(full_attention_interval, MODEL_LAYERS_MAX, KEY_NEEDED,
                                                        NAMED("full_attention_interval"),
                                                        GGUF("full_attention_interval")),
                                                  END};

/* ---- a layer ---- */

static const struct math_part attention = USUAL_ATTENTION;
static const struct math_part dense = USUAL_DENSE;
static const struct math_part mean =
    PART("running mean", UNIT_ATTENTION,
         OP(MATH_LINEAR, "q", .in = BUFFER_X, .norm = TENSOR_ATTN_NORM, .weights = 1, .weight = {TENSOR_Q},
            .out = {BUFFER_Q}),
         OP(MATH_RUNNING_MEAN, "running mean", .in = BUFFER_Q, .out = {BUFFER_Q}),
         OP(MATH_RUNNING_MEAN, "mean of means", .in = BUFFER_Q, .out = {BUFFER_A}), USUAL_O);
enum { PART_MEAN = MATH_PART_SPARSE };
static const struct math_part *const parts[] = {
    [MATH_PART_ATTENTION] = &attention, [MATH_PART_DENSE] = &dense, [PART_MEAN] = &mean, NULL};

/* ---- which layer is what ---- */

static uint32_t kind(const struct model_config *config, uint32_t layer, enum unit_part part)
{
    if (part == UNIT_MLP) return MATH_PART_DENSE;
    const uint32_t interval = config->full_attention_interval ? config->full_attention_interval : 1;
    return (layer + 1) % interval ? PART_MEAN : MATH_PART_ATTENTION;
}

const struct arch arch_state_test = {.architecture = "HelmStateTestForCausalLM",
                                     .model_type = "helm_state_test",
                                     .gguf = {"helm_state_test"},
                                     .for_tests = true,
                                     .start = {ROPE_START(10000), .max_context = 2048, .norm_eps = 1e-6},
                                     .keys = state_test_keys,
                                     .embed = &usual_embed,
                                     .head = &usual_head,
                                     .parts = parts,
                                     .kind = kind,
                                     .layers = layers_without_window};
