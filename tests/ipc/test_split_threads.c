/* Two engines over one arena, as threads, so that thread sanitizer sees both sides of every hand-over: steps
 * of one token, a few, and a chunk, over plans that alternate between layers and inside them, and in two
 * phases. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "worker-gpu/pair.h"

#define LAYERS 4

/* Homes of the half layers, a letter each: c, g, s (stream); of decode and, from `from` tokens on, of
 * prefill. */
struct split {
    const char *decode, *prefill;
    uint32_t from; /* 0: one list for all */
    enum plan_home embed, head;
};

static uint32_t stages_of(const char *letters, struct plan_stage *stages)
{
    enum plan_home home[2 * LAYERS];
    assert_int_equal(strlen(letters), 2 * LAYERS);
    for (int u = 0; u < 2 * LAYERS; u++)
        home[u] = letters[u] == 'c' ? PLAN_HOME_CPU : letters[u] == 'g' ? PLAN_HOME_GPU : PLAN_HOME_STREAM;
    return plan_stages_of(home, LAYERS, stages);
}

static void run_split(const struct split *split)
{
    struct plan_stage decode[2 * LAYERS], prefill[2 * LAYERS];
    struct plan plan = {.layers = LAYERS,
                        .step_tokens = 32,
                        .stages = decode,
                        .stage_count = stages_of(split->decode, decode),
                        .ring_bytes = 1 << 20,
                        .embed = split->embed,
                        .head = split->head};
    if (split->from) {
        plan.prefill[plan.prefill_count++] =
            (struct plan_phase){.from_tokens = split->from,
                                .stages = prefill,
                                .stage_count = stages_of(split->prefill, prefill)};
    }
    const struct pair_options options = {.folder = "tests/data/golden/qwen3",
                                         .plan = &plan,
                                         .device = "emulated",
                                         .kv_dtype = DTYPE_F16,
                                         .threads = 2,
                                         .slots = 3,
                                         .context_tokens = 64,
                                         .step_tokens = 32,
                                         .peer_wait_ms = 120000};
    struct helm_err err = {0};
    const struct step_result *result;
    struct pair *pair = calloc(1, sizeof *pair);
    if (pair_open(&options, pair, &err)) fail_msg("%s", err.text);
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
    for (uint32_t l = 0; l < LANE_COUNT; l++)
        assert_int_equal(doorbell_read(&arena_lane_of(&pair->arena, l)->bell), 0);
    for (int w = 0; w < PAIR_COUNT; w++) {
        const struct arena_done *done = &arena_control_of(&pair->arena)->done[w];
        assert_true(done->busy_ns > 0);
    }
    pair_close(pair);
    free(pair);
}

static void steps_alternate_between_workers(void **state)
{
    (void)state;
    static const struct split splits[] = {
        {.decode = "ccggccgg", .embed = PLAN_HOME_CPU, .head = PLAN_HOME_GPU},
        {.decode = "ccggccgg", .embed = PLAN_HOME_GPU, .head = PLAN_HOME_CPU}};
    for (size_t i = 0; i < sizeof splits / sizeof *splits; i++) run_split(&splits[i]);
}

static void steps_alternate_inside_layers(void **state)
{
    (void)state;
    static const struct split splits[] = {
        {.decode = "cgcgcgcg", .embed = PLAN_HOME_CPU, .head = PLAN_HOME_GPU},
        {.decode = "gcgccggc", .embed = PLAN_HOME_GPU, .head = PLAN_HOME_CPU}};
    for (size_t i = 0; i < sizeof splits / sizeof *splits; i++) run_split(&splits[i]);
}

/* What the CPU loads the other side copies through its ring; in longer steps it also borrows the CPU's
 * cache. */
static void streamed_weights_and_borrowed_caches(void **state)
{
    (void)state;
    static const struct split splits[] = {{.decode = "scsgccss",
                                           .embed = PLAN_HOME_CPU,
                                           .head = PLAN_HOME_GPU},
                                          {.decode = "ccgcscgg",
                                           .prefill = "ssgsssgg",
                                           .from = 17,
                                           .embed = PLAN_HOME_GPU,
                                           .head = PLAN_HOME_CPU}};
    for (size_t i = 0; i < sizeof splits / sizeof *splits; i++) run_split(&splits[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(steps_alternate_between_workers),
                                       cmocka_unit_test(steps_alternate_inside_layers),
                                       cmocka_unit_test(streamed_weights_and_borrowed_caches)};
    return cmocka_run_group_tests_name("ipc/split", tests, NULL, NULL);
}
