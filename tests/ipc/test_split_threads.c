/* Two engines over one arena, as threads, so that thread sanitizer sees both sides of every hand-over: steps
 * of one token, a few, and a chunk, over a plan that alternates. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "worker-gpu/pair.h"

static void steps_alternate_between_workers(void **state)
{
    (void)state;
    static struct plan_stage stages[] = {{0, 0, PLAN_HOME_CPU, 0, PLAN_OPS_ALL},
                                         {1, 1, PLAN_HOME_GPU, 0, PLAN_OPS_ALL},
                                         {2, 2, PLAN_HOME_CPU, 0, PLAN_OPS_ALL},
                                         {3, 3, PLAN_HOME_GPU, 0, PLAN_OPS_ALL}};
    for (int ends = 0; ends < 2; ends++) {
        const struct plan plan = {.stages = stages,
                                  .stage_count = 4,
                                  .embed = ends ? PLAN_HOME_GPU : PLAN_HOME_CPU,
                                  .head = ends ? PLAN_HOME_CPU : PLAN_HOME_GPU};
        const struct pair_options options = {.folder = "tests/data/golden/qwen3",
                                             .plan = &plan,
                                             .device = "emulated",
                                             .kv_dtype = DTYPE_F16,
                                             .threads = 2,
                                             .slots = 3,
                                             .context_tokens = 64,
                                             .step_tokens = 32,
                                             .peer_wait_ms = 60000};
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
        pair_close(pair);
        free(pair);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(steps_alternate_between_workers)};
    return cmocka_run_group_tests_name("ipc/split", tests, NULL, NULL);
}
