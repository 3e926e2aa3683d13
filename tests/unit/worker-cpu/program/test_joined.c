/* Gates and ups of a prompt (worker-cpu/program/linear.c): the logits have the same bits whether one kernel joins and tiles them or
 * several do, one after another, and however many threads share the rows. That the kernel's bits are those of its parts is in
 * tests/kernels/test_linear.c. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

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
        /* no operation stands between a gated product and the one behind it */
        if (e->swiglu) assert_int_equal(program->entry[i + 1].tiled, TILED_JOINED);
        assert_int_equal(e->swiglu, e->tile_count > 0);
        if (apart) e->join = NULL;
    }
    return joins;
}

/* Logits behind the prompts, [PROMPTS][vocab]; *joins: products that join at once. */
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

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(bits_do_not_depend_on_how_gates_are_joined)};
    return cmocka_run_group_tests_name("worker-cpu/program: joined", tests, NULL, NULL);
}
