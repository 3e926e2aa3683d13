/* A small model whose rows packed kernels take (the golden ones have others), made for a test, and steps of
 * every tier over it. For the golden tests of packed weights, each of which includes it once. */
#pragma once

#include <math.h>
#include <string.h>

#include "common/base/units.h"
#include "tests/unit/common/base/tree.h"
#include "tools/mkmodel/mkmodel.h"
#include "tests/golden/pair.h"
#include "tests/written_plans.h"

#define LAYERS      4
#define UNITS       (2 * LAYERS)
#define VOCAB       1008
#define SLOTS       4
#define CONTEXT     1024
#define STEP_TOKENS 640
#define LONG        530 /* more than are multiplied at a time */
#ifndef CONFIG          /* else the test's own, of as many layers and tokens */
/* q has other rows than k and v; `down` other columns than the rest. */
#define CONFIG                                                                                               \
    "{\"architectures\": [\"Qwen3ForCausalLM\"], \"model_type\": \"qwen3\", \"hidden_size\": 512, "          \
    "\"intermediate_size\": 1536, \"num_hidden_layers\": 4, \"num_attention_heads\": 8, "                    \
    "\"num_key_value_heads\": 2, \"head_dim\": 64, \"vocab_size\": 1008, \"max_position_embeddings\": "      \
    "4096, "                                                                                                 \
    "\"rms_norm_eps\": 1e-6, \"rope_theta\": 1000000.0, \"tie_word_embeddings\": false, "                    \
    "\"dtype\": \"bfloat16\"}"
#endif

static char folder[TREE_PATH];

static int make_model(void **state)
{
    (void)state;
    struct model_config config;
    struct mkmodel_result result;
    struct helm_err err = {0};
    tree_make(folder);
    tree_write(folder, "config.json", CONFIG);
    if (model_read_config(folder, &config, &err)) fail_msg("%s", err.text);
    const struct mkmodel_request request = {.config = &config,
                                            .folder = folder,
                                            .dtype = DTYPE_BF16,
                                            .seed = 3,
                                            .shard_bytes = 4 * MIB,
                                            .threads = 2};
    if (mkmodel_write(&request, &result, &err)) fail_msg("%s", err.text);
    model_config_free(&config);
    return 0;
}

static int remove_model(void **state)
{
    (void)state;
    tree_remove(folder);
    return 0;
}

struct runner {
    const struct arena *arena;
    void *engines;
    int (*step)(void *engines, const struct step_row *rows, uint32_t count, const struct step_result **result,
                struct helm_err *err);
    uint64_t one_token_bytes; /* that the CPU read, in the last step of one token */
    uint32_t most;            /* tokens of a row; 0: what the script says */
    bool alike;               /* all tokens are one */
};

/* Tokens of each slot in one step: none of more than one; all tiers. */
struct script {
    uint32_t steps;
    uint32_t tokens[16][SLOTS];
};
static const struct script one_token = {8, {{1}, {1}, {1}, {0, 1}, {1}, {0, 1}, {0, 1}, {1}}},
                           all_tiers = {13,
                                        {{40},         /* a chunk */
                                         {1},          /* one token */
                                         {1},          /* and one after it */
                                         {9},          /* a few */
                                         {1},          /* one, on what those left */
                                         {0, LONG},    /* more than a tile */
                                         {0, 1},       /* one more */
                                         {0, 0, 3, 5}, /* two rows of a few */
                                         {1, 1, 1, 1}, /* a batch */
                                         {1, 0, 17, 1},
                                         {0, 0, 0, 1},
                                         {1, 1, 1, 1},
                                         {0, 0, 1}}};
/* Rows of logits, one after another. */
#define SAMPLES 24

static void run_script(struct runner *on, const struct script *script, float *logits)
{
    uint32_t done[SLOTS] = {0}, sampled = 0;
    struct helm_err err = {0};
    for (uint32_t s = 0; s < SLOTS; s++)
        for (uint32_t i = 0; i < CONTEXT; i++)
            arena_history_of(on->arena, s)[i] = on->alike ? 7 : (i * 37 + s * 101 + i * i % 89) % VOCAB;
    for (uint32_t i = 0; i < script->steps; i++) {
        struct step_row rows[SLOTS];
        uint32_t count = 0, tokens = 0;
        const struct step_result *result;
        for (uint32_t s = 0; s < SLOTS; s++) {
            uint32_t n = script->tokens[i][s];
            if (!n) continue;
            if (on->most && n > on->most) n = on->most;
            rows[count++] =
                (struct step_row){.slot = s, .start = done[s], .count = n, .flags = STEP_ROW_SAMPLE};
            arena_slot_of(on->arena, s)->sampling.logprobs = 5;
            arena_slot_of(on->arena, s)->prompt_count = done[s] + n;
            done[s] += n;
            tokens += n;
        }
        if (on->step(on->engines, rows, count, &result, &err)) fail_msg("step %u: %s", i, err.text);
        assert_int_equal(result->row_count, count);
        for (uint32_t r = 0; r < count; r++) assert_int_equal(result->row[r].status, STEP_ROW_OK);
        assert_true(sampled + count <= SAMPLES);
        memcpy(logits + (size_t)sampled * VOCAB, arena_region_ptr(on->arena, ARENA_REGION_LOGITS),
               (size_t)count * VOCAB * sizeof *logits);
        sampled += count;
        if (tokens == 1) on->one_token_bytes = result->weight_bytes;
    }
    while (sampled < SAMPLES) memset(logits + (size_t)sampled++ * VOCAB, 0, VOCAB * sizeof *logits);
}

/* The largest difference of all, in parts of how far apart logits are. */
static double compare(const float *a, const float *b)
{
    double worst = 0, sum = 0, squares = 0;
    uint64_t count = 0;
    for (size_t i = 0; i < (size_t)SAMPLES * VOCAB; i++) {
        if (a[i] == 0 && b[i] == 0) continue;
        double difference = fabs((double)a[i] - b[i]);
        if (!(difference <= worst)) worst = difference;
        sum += a[i];
        squares += (double)a[i] * a[i];
        count++;
    }
    assert_true(count >= 5 * VOCAB);
    double mean = sum / (double)count, spread = sqrt(squares / (double)count - mean * mean);
    assert_true(spread > 1e-3 && isfinite(worst));
    return worst / spread;
}

/* Both engines. */
static inline int step_pair(void *pair, const struct step_row *rows, uint32_t count,
                            const struct step_result **result, struct helm_err *err)
{
    return pair_step(pair, rows, count, result, err);
}
