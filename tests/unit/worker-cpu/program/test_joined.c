/* Gates and ups of a prompt (worker-cpu/program/linear.c): the logits have the same bits whether one kernel
 * joins and tiles them or several do, one after another, and however many threads share the rows. That the
 * kernel's bits are those of its parts is in tests/kernels/test_linear.c. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/cpu.h"
#include "worker-cpu/local.h"

/* Blocks of several formats; single numbers. */
static const char *const models[] = {"tests/data/golden-gguf/llama-Q4_K_M/model.gguf",
                                     "tests/data/golden/qwen3"};
/* Two tiles of inputs, of which the last has an odd number; few. */
static const uint32_t prompts[] = {PROGRAM_TILE_TOKENS + 149, 7};
enum { PROMPTS = sizeof prompts / sizeof *prompts, TOKENS_MOST = PROGRAM_TILE_TOKENS + 149 };

/* How many products of a program join at once; `apart`: none does from now on. */
static uint32_t joins_of(struct program *program, bool apart)
{
    uint32_t joins = 0;
    for (uint32_t i = 0; i < program->count; i++) {
        struct program_entry *e = &program->entry[i];
        joins += e->join != NULL;
        if (!program->tiled || e->kind != OP_LINEAR) continue;
        /* no operation stands between a gated product and the one after it */
        if (e->gated) assert_int_equal(program->entry[i + 1].tiled, TILED_JOINED);
        assert_int_equal(e->gated, e->tile_count > 0);
        if (apart) e->join = NULL;
    }
    return joins;
}

/* Logits after the prompts, [PROMPTS][vocab]; *joins: products that join at once. */
static float *logits_of(const char *folder, uint32_t threads, bool apart, uint32_t *vocab, uint32_t *joins)
{
    struct local *local = aligned_alloc(64, (sizeof *local + 63) / 64 * 64);
    struct helm_err err = {0};
    const struct local_options options = {.folder = folder,
                                          .kv_dtype = KV_F32,
                                          .threads = threads,
                                          .slots = PROMPTS,
                                          .context_tokens = TOKENS_MOST + 1,
                                          .step_tokens = TOKENS_MOST};
    assert_non_null(local);
    if (local_open(&options, local, &err)) fail_msg("%s", err.text);
    *vocab = local->engine.model.config.vocab;
    *joins = 0;
    float *logits = calloc((size_t)PROMPTS * *vocab, sizeof *logits);
    assert_non_null(logits);
    for (int t = 0; t < OP_TIER_COUNT; t++)
        *joins += joins_of(&local->engine.programs[LINEAR_EXACT].tier[0][t], apart);
    for (uint32_t p = 0; p < PROMPTS; p++) {
        const struct step_row row = {.slot = p, .count = prompts[p], .flags = STEP_ROW_SAMPLE};
        const struct step_result *result;
        for (uint32_t i = 0; i < prompts[p]; i++)
            arena_history_of(&local->arena, p)[i] = (p * 31 + i * 7) % *vocab;
        if (local_step(local, &row, 1, &result, &err)) fail_msg("%s", err.text);
        assert_int_equal(result->row[0].status, STEP_ROW_OK);
        memcpy(logits + (size_t)p * *vocab, local->engine.act.buffer[BUFFER_LOGITS], *vocab * sizeof *logits);
    }
    local_close(local);
    free(local);
    return logits;
}

static void bits_do_not_depend_on_how_gates_are_joined(void **state)
{
    (void)state;
    for (size_t m = 0; m < sizeof models / sizeof *models; m++) {
        uint32_t vocab, joins, left;
        float *at_once = logits_of(models[m], 1, false, &vocab, &joins);
        if (cpu_features() & CPU_AMX_BF16)
            assert_true(joins > 0);
        else
            print_message("%s: this machine lacks AMX, which alone joins at once\n", models[m]);
        for (uint32_t threads = 1; threads <= 3; threads += 2) {
            float *parts = logits_of(models[m], threads, true, &vocab, &left);
            assert_int_equal(left, joins);
            assert_memory_equal(at_once, parts, (size_t)PROMPTS * vocab * sizeof *parts);
            free(parts);
        }
        float *shared = logits_of(models[m], 3, false, &vocab, &left);
        assert_memory_equal(at_once, shared, (size_t)PROMPTS * vocab * sizeof *shared);
        free(shared);
        free(at_once);
    }
}

/* Other fields of operations, set in a whole model: in every tier the same. */
struct fields {
    enum activation activation;
    bool alone, layer_norm, no_rope;
    float embed_scale, residual_scale, product_scale;
    const float *positions;
};

static void set_fields(struct program *program, const struct fields *f)
{
    for (uint32_t i = 0; i < program->count; i++) {
        struct program_entry *e = &program->entry[i];
        if (e->kind == OP_EMBED) e->scale = f->embed_scale, e->vector = f->positions, e->position_first = 1;
        if (e->kind == OP_NORM && e->norm) e->layer_norm = f->layer_norm, e->norm_bias = e->norm;
        if (e->kind == OP_ROPE_APPEND) e->no_rope = f->no_rope;
        if (e->kind == OP_LINEAR && e->residual) e->scale = f->residual_scale;
        if (e->kind == OP_LINEAR && !e->residual && !e->gated) e->scale = f->product_scale;
        if (e->kind != OP_LINEAR || !e->gated) continue;
        e->activation = f->activation;
        e->gated = !f->alone;
        if (f->alone) e->segment_count = 1;
        e->join = NULL;
    }
}

/* Logits after five tokens, together or one by one. */
static void logits_by(struct local *local, uint32_t slot, uint32_t each, float *logits)
{
    enum { COUNT = 5 };
    const uint32_t vocab = local->engine.model.config.vocab;
    const struct step_result *result;
    struct helm_err err = {0};
    for (uint32_t i = 0; i < COUNT; i++) arena_history_of(&local->arena, slot)[i] = (11 + i * 29) % vocab;
    for (uint32_t at = 0; at < COUNT; at += each) {
        const struct step_row row = {.slot = slot, .start = at, .count = each, .flags = STEP_ROW_SAMPLE};
        if (local_step(local, &row, 1, &result, &err)) fail_msg("%s", err.text);
        assert_int_equal(result->row[0].status, STEP_ROW_OK);
    }
    memcpy(logits, local->engine.act.buffer[BUFFER_LOGITS], vocab * sizeof *logits);
}

static void fields_mean_the_same_in_every_tier(void **state)
{
    (void)state;
    static float positions[8 * 1024];
    for (size_t i = 0; i < sizeof positions / sizeof *positions; i++) positions[i] = (float)(i % 13) * 0.01f;
    const struct fields cases[] = {{.activation = ACTIVATION_SILU},
                                   {.activation = ACTIVATION_GELU_TANH},
                                   {.activation = ACTIVATION_RELU},
                                   {.activation = ACTIVATION_GELU_TANH, .alone = true},
                                   {.activation = ACTIVATION_RELU, .alone = true},
                                   {.activation = ACTIVATION_RELU_SQUARED, .alone = true},
                                   {.activation = ACTIVATION_SILU, .layer_norm = true},
                                   {.activation = ACTIVATION_SILU, .no_rope = true},
                                   {.activation = ACTIVATION_SILU, .embed_scale = 3},
                                   {.activation = ACTIVATION_SILU, .residual_scale = 0.25f},
                                   {.activation = ACTIVATION_SILU, .product_scale = 0.5f},
                                   {.activation = ACTIVATION_SILU, .positions = positions}};
    enum { CASES = sizeof cases / sizeof *cases };
    float *logits[CASES] = {0};
    for (size_t c = 0; c < CASES; c++) {
        struct local *local = aligned_alloc(64, (sizeof *local + 63) / 64 * 64);
        struct helm_err err = {0};
        const struct local_options options = {.folder = models[1],
                                              .kv_dtype = KV_F32,
                                              .threads = 2,
                                              .slots = 2,
                                              .context_tokens = 64,
                                              .step_tokens = 64};
        assert_non_null(local);
        if (local_open(&options, local, &err)) fail_msg("%s", err.text);
        const uint32_t vocab = local->engine.model.config.vocab;
        assert_true(local->engine.model.config.hidden <= 1024);
        for (int t = 0; t < OP_TIER_COUNT; t++)
            set_fields(&local->engine.programs[LINEAR_EXACT].tier[0][t], &cases[c]);
        float *one = calloc(vocab, sizeof *one), most = 0, off = 0, other = 0;
        logits[c] = calloc(vocab, sizeof *one);
        assert_true(one && logits[c]);
        logits_by(local, 0, 5, logits[c]);
        logits_by(local, 1, 1, one);
        for (uint32_t i = 0; i < vocab; i++) {
            most = fmaxf(most, fabsf(one[i]));
            off = fmaxf(off, fabsf(one[i] - logits[c][i]));
            other = fmaxf(other, fabsf(logits[0][i] - logits[c][i]));
        }
        /* Several tokens' inputs are rounded to bf16 on AMX: 2^-9 each, in sums through the layers; what a
         * field changes is larger. */
        if (!(most > 0 && off <= 1e-2f * most))
            fail_msg("case %zu: off by %g of %g", c, (double)off, (double)most);
        if (c > 0 && !(other > 0.1f * most)) fail_msg("case %zu has no effect", c);
        free(one);
        local_close(local);
        free(local);
    }
    for (size_t c = 0; c < CASES; c++) free(logits[c]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(bits_do_not_depend_on_how_gates_are_joined),
                                       cmocka_unit_test(fields_mean_the_same_in_every_tier)};
    return cmocka_run_group_tests_name("worker-cpu/program: joined", tests, NULL, NULL);
}
