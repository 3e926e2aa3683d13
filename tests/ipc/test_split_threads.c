/* Two engines over one arena, as threads, so that thread sanitizer sees both sides of every hand-over: steps
 * of one token, a few, and a chunk, over plans that alternate between layers and inside them, and in two
 * phases; and steps that are rung while others are computed. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "tests/golden/courses.h"
#include "tests/written_plans.h"

/* In MODE=tsan the other kernels are objects that ThreadSanitizer does not see (Makefile). */
#if defined(__SANITIZE_THREAD__)
#define INSTRUMENTED (__builtin_cpu_supports("avx2") ? "avx2" : "ref")
#else
#define INSTRUMENTED NULL
#endif

#define LAYERS 4
/* Under ThreadSanitizer a course takes six seconds: the first and the last plan, one course each. */
#ifdef __SANITIZE_THREAD__
#define NEXT_COURSE 2
#else
#define NEXT_COURSE 1
#endif

/* Homes of the half layers, a letter each: c, g, s (stream); of decode and, from `from` tokens on, of
 * prefill. */
struct split {
    const char *decode, *prefill;
    uint32_t from; /* 0: one list for all */
    enum plan_processor embed, head;
};

static struct pair *open_split(const struct split *split, uint32_t slots, uint32_t context,
                               uint32_t step_tokens)
{
    struct plan_unit unit[WRITTEN_UNITS(LAYERS)];
    struct plan plan = {.layers = LAYERS,
                        .step_tokens = step_tokens,
                        .unit = units_of_letters(unit, LAYERS, split->decode, 2 * LAYERS),
                        .device[PLAN_GPU0].ring_bytes = 1 << 20,
                        .embed = split->embed,
                        .head = split->head};
    if (split->from) add_letters(&plan, split->from, split->prefill);
    const struct pair_options options = {.folder = "tests/data/golden/qwen3",
                                         .plan = &plan,
                                         .device = "emulated",
                                         .kernels = INSTRUMENTED,
                                         .kv_dtype = KV_F16,
                                         .threads = 2,
                                         .slots = slots,
                                         .context_tokens = context,
                                         .step_tokens = step_tokens,
                                         .peer_wait_ms = 120000};
    struct helm_err err = {0};
    struct pair *pair = calloc(1, sizeof *pair);
    assert_non_null(pair);
    if (pair_open(&options, pair, &err)) fail_msg("%s", err.text);
    return pair;
}

static void close_split(struct pair *pair)
{
    for (uint32_t l = 0; l < PLAN_LINKS; l++)
        assert_int_equal(doorbell_read(&arena_lane_of(&pair->arena, l)->bell), 0);
    for (int w = 0; w < PAIR_COUNT; w++) assert_true(pair_times(pair, (enum pair_worker)w)->busy_ns > 0);
    pair_close(pair);
    free(pair);
}

static void run_split(const struct split *split)
{
    struct pair *pair = open_split(split, 3, 64, 32);
    struct helm_err err = {0};
    const struct step_result *result;
    for (uint32_t s = 0; s < 3; s++)
        for (uint32_t i = 0; i < 64; i++) arena_history_of(&pair->arena, s)[i] = 3 + (i * 7 + s) % 90;
    uint32_t at[3] = {0, 0, 0};
    static const uint32_t count[] = {10, 1, 2, 1, 4, 1, 1};
    for (uint32_t i = 0; i < sizeof count / sizeof *count; i++) {
        struct step_row rows[3];
        uint32_t used = i == 0 ? 3 : 1 + i % 3;
        for (uint32_t s = 0; s < used; s++) {
            rows[s] =
                (struct step_row){.slot = s, .start = at[s], .count = count[i], .flags = STEP_ROW_SAMPLE};
            at[s] += count[i];
        }
        if (pair_step(pair, rows, used, &result, &err)) fail_msg("%s", err.text);
        for (uint32_t s = 0; s < used; s++) assert_int_equal(result->row[s].status, STEP_ROW_OK);
    }
    close_split(pair);
}

static void steps_alternate_between_workers(void **state)
{
    (void)state;
    static const struct split splits[] = {{.decode = "ccggccgg", .embed = PLAN_CPU0, .head = PLAN_GPU0},
                                          {.decode = "ccggccgg", .embed = PLAN_GPU0, .head = PLAN_CPU0}};
    for (size_t i = 0; i < sizeof splits / sizeof *splits; i++) run_split(&splits[i]);
}

static void steps_alternate_inside_layers(void **state)
{
    (void)state;
    static const struct split splits[] = {{.decode = "cgcgcgcg", .embed = PLAN_CPU0, .head = PLAN_GPU0},
                                          {.decode = "gcgccggc", .embed = PLAN_GPU0, .head = PLAN_CPU0}};
    for (size_t i = 0; i < sizeof splits / sizeof *splits; i++) run_split(&splits[i]);
}

/* Weights that the CPU loads the other side copies through its ring; in longer steps it also borrows the
 * CPU's cache. */
static void streamed_weights_and_borrowed_caches(void **state)
{
    (void)state;
    static const struct split splits[] = {
        {.decode = "scsgccss", .embed = PLAN_CPU0, .head = PLAN_GPU0},
        {.decode = "ccgcscgg", .prefill = "ssgsssgg", .from = 17, .embed = PLAN_GPU0, .head = PLAN_CPU0}};
    for (size_t i = 0; i < sizeof splits / sizeof *splits; i++) run_split(&splits[i]);
}

/* One worker is in the second step while the other is in the first: the one that looks tokens up waits for
 * the one that draws them, and one that does neither goes on as far as its lane lets it. */
static void steps_are_rung_while_others_are_computed(void **state)
{
    (void)state;
    static const struct split splits[] = {{.decode = "ccggccgg", .embed = PLAN_CPU0, .head = PLAN_GPU0},
                                          {.decode = "gccgcggc", .embed = PLAN_GPU0, .head = PLAN_CPU0},
                                          {.decode = "cggcsscc", .embed = PLAN_CPU0, .head = PLAN_CPU0}};
    static const struct course courses[] = {{.rows = 3, .queued = true, .leaves_at = 15},
                                            {.rows = 2, .queued = true, .sampled = true}};
    for (size_t i = 0; i < sizeof splits / sizeof *splits; i += NEXT_COURSE) {
        struct pair *pair = open_split(&splits[i], COURSE_SLOTS, 96, 96);
        const size_t both = i == 0; /* the others: one course each */
        for (size_t c = both ? 0 : i - 1; c < (both ? sizeof courses / sizeof *courses : i);
             c += NEXT_COURSE) {
            static uint32_t tokens[2][COURSE_SLOTS][COURSE_TOKENS];
            struct course plain = courses[c];
            plain.queued = false;
            memset(tokens, 0, sizeof tokens);
            run_course(pair, &plain, tokens[0]);
            run_course(pair, &courses[c], tokens[1]);
            assert_memory_equal(tokens[0], tokens[1], sizeof tokens[0]);
        }
        close_split(pair);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(steps_are_rung_while_others_are_computed),
                                       cmocka_unit_test(steps_alternate_between_workers),
                                       cmocka_unit_test(steps_alternate_inside_layers),
                                       cmocka_unit_test(streamed_weights_and_borrowed_caches)};
    return cmocka_run_group_tests_name("ipc/split", tests, NULL, NULL);
}
