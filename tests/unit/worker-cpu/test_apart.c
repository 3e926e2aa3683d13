/* Steps of two to four tokens with blocks, in a plan that is not invariant: one token's kernels, so each
 * sequence's bits are those that it has alone; where kernels of several tokens are faster, as with single
 * numbers, those. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/cpu.h"
#include "worker-cpu/local.h"
#include "worker-cpu/engine.h"

#define BLOCKS "tests/data/golden-gguf/qwen3-Q2_K/model.gguf"
#define MIXTURE                                                                                              \
    "tests/data/golden-gguf/qwen3moe-MXFP4_MOE/model.gguf" /* 4 of 16 experts: sequences share some */
#define PLAIN "tests/data/golden/qwen3"
enum { SLOTS = 5, PROMPT = 20, CONTEXT = 64, STEP_TOKENS = 32 };

static const char *kernels(void)
{
    return cpu_features() & CPU_AVX2 ? "avx2" : "ref";
}

static void open_local(const char *folder, struct local *local)
{
    struct helm_err err = {0};
    const struct local_options options = {.folder = folder,
                                          .kernels = kernels(),
                                          .kv_dtype = KV_F32,
                                          .threads = 1,
                                          .slots = SLOTS,
                                          .context_tokens = CONTEXT,
                                          .step_tokens = STEP_TOKENS};
    if (local_open(&options, local, &err)) fail_msg("%s", err.text);
    for (uint32_t s = 0; s < SLOTS; s++) {
        uint32_t *history = arena_history_of(&local->arena, s);
        for (uint32_t i = 0; i < CONTEXT; i++)
            history[i] = (s * 31 + i * 7) % local->engine.model.config.vocab;
    }
}

/* Logits of the sampled rows of a step, [rows][vocab]. */
static void run_step(struct local *local, const struct step_row *rows, uint32_t count, float *logits)
{
    struct helm_err err = {0};
    const struct step_result *result;
    if (local_step(local, rows, count, &result, &err)) fail_msg("%s", err.text);
    for (uint32_t i = 0; i < count; i++) assert_int_equal(result->row[i].status, STEP_ROW_OK);
    if (logits)
        memcpy(logits, local->engine.act.buffer[BUFFER_LOGITS],
               (size_t)count * local->engine.model.config.vocab * sizeof *logits);
}

/* After each sequence's prompt, one token of each: `together` a step. */
static float *logits_of(const char *folder, uint32_t sequences, uint32_t together, uint32_t *vocab)
{
    struct local *local = aligned_alloc(64, (sizeof *local + 63) / 64 * 64);
    assert_non_null(local);
    open_local(folder, local);
    *vocab = local->engine.model.config.vocab;
    float *logits = calloc((size_t)sequences * *vocab, sizeof *logits);
    assert_non_null(logits);
    struct step_row next[SLOTS];
    for (uint32_t s = 0; s < sequences; s++) {
        const struct step_row prompt = {.slot = s, .count = PROMPT};
        run_step(local, &prompt, 1, NULL);
        next[s] = (struct step_row){.slot = s, .start = PROMPT, .count = 1, .flags = STEP_ROW_SAMPLE};
    }
    for (uint32_t s = 0; s < sequences; s += together)
        run_step(local, next + s, together, logits + (size_t)s * *vocab);
    local_close(local);
    free(local);
    return logits;
}

static void few_sequences_have_the_bits_of_one(void **state)
{
    const char *const folder = *state;
    for (uint32_t sequences = 2; sequences <= 4; sequences++) {
        uint32_t vocab;
        float *alone = logits_of(folder, sequences, 1, &vocab),
              *together = logits_of(folder, sequences, sequences, &vocab);
        assert_memory_equal(alone, together, (size_t)sequences * vocab * sizeof *alone);
        free(alone);
        free(together);
    }
}

static char *printed(const char *folder)
{
    struct helm_err err = {0};
    char *text = NULL;
    size_t bytes = 0;
    FILE *out = open_memstream(&text, &bytes);
    if (print_plan(folder, NULL, 2, kernels(), out, &err)) fail_msg("%s", err.text);
    fclose(out);
    return text;
}

static void what_runs_is_printed(void **state)
{
    (void)state;
    char *blocks = printed(BLOCKS), *mixture = printed(MIXTURE), *plain = printed(PLAIN);
    if (cpu_features() & CPU_AVX2) {
        assert_non_null(strstr(blocks, "2 to 4 tokens, with the kernels of one: "));
        assert_non_null(strstr(mixture, "2 to 4 tokens, with the kernels of one: "));
        assert_non_null(strstr(blocks, "head, 2 to 4 sampled rows, with the kernels of one: "));
        assert_non_null(strstr(mixture, "head, 2 to 4 sampled rows, with the kernels of one: "));
    }
    assert_null(strstr(plain, "with the kernels of one"));
    free(blocks);
    free(mixture);
    free(plain);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_prestate(few_sequences_have_the_bits_of_one, (void *)(uintptr_t)BLOCKS),
        cmocka_unit_test_prestate(few_sequences_have_the_bits_of_one, (void *)(uintptr_t)MIXTURE),
        cmocka_unit_test(what_runs_is_printed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
