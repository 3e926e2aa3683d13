/* Fuzz target: config.json and generation_config.json from hostile bytes. A configuration that is accepted
 * must be usable: its graph, shapes and RoPE table are made, within the limits of model.h. */
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "common/model/checkpoint.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void use(const struct model_config *config)
{
    struct model_math math;
    uint64_t rows, cols, bytes;
    float scale, *inv_freq = malloc(config->head_dim / 2 * sizeof *inv_freq);
    if (!inv_freq) return;
    if (config->layers > MODEL_LAYERS_MAX || config->hidden > MODEL_HIDDEN_MAX ||
        config->heads % config->kv_heads || config->eos_count > MODEL_EOS_MAX ||
        config->router.experts > MODEL_EXPERTS_MAX || config->router.chosen > config->router.experts ||
        !config->sparse != !config->router.experts)
        abort();
    model_math_build(config, &math);
    for (int p = 0; p < MATH_PARTS_MAX; p++)
        if (math.part[p].ops > MATH_OPS_MAX) abort();
    for (int role = 0; role < TENSOR_ROLE_COUNT; role++)
        if (model_expected_shape(config, (enum tensor_role)role, -1, &rows, &cols) &&
            (__builtin_mul_overflow(rows, cols, &bytes) || bytes == 0))
            abort();
    for (uint32_t context = 1; context; context = context == 1 ? MODEL_CONTEXT_MAX : 0) {
        rope_inv_freq(config, 0, context, inv_freq, &scale);
        for (uint32_t i = 0; i < config->head_dim / 2; i++)
            if (isnan(inv_freq[i])) abort();
    }
    free(inv_freq);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char sound[] =
        "{\"model_type\":\"llama\",\"hidden_size\":8,\"intermediate_size\":8,\"vocab_size\":8,"
        "\"num_hidden_layers\":1,\"num_attention_heads\":2}";
    struct model_config config;
    struct helm_err err = {0};
    if (model_config_parse("fuzz", (const char *)data, size, &config, &err) == 0) use(&config);
    model_config_free(&config);
    if (model_config_parse("sound", sound, sizeof sound - 1, &config, &err)) abort();
    if (config_add_generation("fuzz", (const char *)data, size, &config, &err) == 0 &&
        config.eos_count > MODEL_EOS_MAX)
        abort();
    model_config_free(&config);
    return 0;
}
