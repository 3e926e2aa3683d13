/* The arena used from several threads: parallel population, and the step ring with its two bells as helmd and
 * a worker use it, each with a mapping of its own. Thread sanitizer sees each mapping; both sides of one
 * address go through one of them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <pthread.h>
#include <string.h>

#include "common/shared/arena.h"
#include "common/model/model.h"
#include "common/base/units.h"

#define THREADS    4
#define STEPS      5000u
#define TIMEOUT_MS 60000

static struct arena create_arena(uint64_t weight_bytes)
{
    struct arena_spec spec = {.slots = 8,
                              .context_tokens = 256,
                              .step_tokens = 16,
                              .hidden = 64,
                              .vocab = 512,
                              .lanes = {1},
                              .kv = {2, 2, 32, 32, KV_BF16},
                              .page_count = 64,
                              .weight_bytes = weight_bytes};
    struct arena arena;
    struct helm_err err = {0};
    if (arena_create(&spec, &arena, &err)) fail_msg("%s", err.text);
    return arena;
}

struct share {
    const struct arena *arena;
    uint64_t offset, bytes, huge, small;
};

/* As a loader does it: each thread populates its own part, then fills it. */
static void *populate_share(void *argument)
{
    struct share *share = argument;
    arena_populate(share->arena, share->offset, share->bytes, &share->huge, &share->small);
    memset((char *)share->arena->base + share->offset, (int)(share->offset >> 21) & 0xff, share->bytes);
    return NULL;
}

static void threads_populate_disjoint_ranges(void **state)
{
    (void)state;
    struct arena arena = create_arena(2 * THREADS * ARENA_HUGE_PAGE);
    struct arena_region region = arena_header_of(&arena)->region[ARENA_REGION_WEIGHTS];
    struct share shares[THREADS];
    pthread_t threads[THREADS];
    uint64_t huge = 0, small = 0;
    for (int i = 0; i < THREADS; i++) {
        shares[i] = (struct share){&arena, region.offset + (uint64_t)i * 2 * ARENA_HUGE_PAGE,
                                   2 * ARENA_HUGE_PAGE, 0, 0};
        assert_int_equal(pthread_create(&threads[i], NULL, populate_share, &shares[i]), 0);
    }
    for (int i = 0; i < THREADS; i++) {
        assert_int_equal(pthread_join(threads[i], NULL), 0);
        huge += shares[i].huge;
        small += shares[i].small;
        const unsigned char *at = (const unsigned char *)arena.base + shares[i].offset;
        assert_int_equal(at[0], (shares[i].offset >> 21) & 0xff);
        assert_int_equal(at[shares[i].bytes - 1], at[0]);
    }
    assert_int_equal(huge + small, region.bytes);
    arena_close(&arena);
}

struct worker {
    const struct arena *arena;
    uint32_t failed_serial;
};

static void *serve_steps(void *argument)
{
    struct worker *worker = argument;
    const struct arena *arena = worker->arena;
    struct arena_control *control = arena_control_of(arena);
    for (uint32_t serial = 1; serial <= STEPS; serial++) {
        uint32_t now = serial - 1;
        const struct step *step = &control->step[serial % ARENA_STEP_RING];
        struct step_result *result = &control->result[serial % ARENA_STEP_RING];
        if (!doorbell_wait(&control->step_bell, serial - 1, serial % 2 * 20u, TIMEOUT_MS, &now) ||
            now < serial || step->serial != serial) {
            worker->failed_serial = serial;
            return NULL;
        }
        result->serial = serial;
        result->row_count = step->row_count;
        for (uint32_t i = 0; i < step->row_count; i++) {
            const uint32_t *history = arena_history_of(arena, step->row[i].slot);
            result->row[i].slot = step->row[i].slot;
            result->row[i].status = STEP_ROW_OK;
            result->row[i].sampled.token = history[step->row[i].start] + 1;
        }
        doorbell_ring(&control->done[0].bell, serial);
    }
    return NULL;
}

static void steps_go_down_and_results_come_back(void **state)
{
    (void)state;
    struct arena arena = create_arena(0);
    struct arena_control *control = arena_control_of(&arena);
    struct worker worker = {&arena, 0};
    pthread_t thread;
    uint32_t wrong = 0;
    assert_int_equal(pthread_create(&thread, NULL, serve_steps, &worker), 0);
    for (uint32_t serial = 1; serial <= STEPS && !wrong; serial++) {
        struct step *step = &control->step[serial % ARENA_STEP_RING];
        step->serial = serial;
        step->row_count = serial % 8 + 1;
        for (uint32_t i = 0; i < step->row_count; i++) {
            step->row[i] =
                (struct step_row){.slot = i, .start = serial % 256, .count = 1, .flags = STEP_ROW_SAMPLE};
            arena_history_of(&arena, i)[serial % 256] = serial * 10 + i;
        }
        doorbell_ring(&control->step_bell, serial);
        const struct step_result *result = &control->result[serial % ARENA_STEP_RING];
        if (!doorbell_wait(&control->done[0].bell, serial - 1, serial % 3 * 20u, TIMEOUT_MS, NULL) ||
            result->serial != serial || result->row_count != step->row_count)
            wrong = serial;
        for (uint32_t i = 0; !wrong && i < step->row_count; i++) {
            if (result->row[i].slot != i || result->row[i].sampled.token != serial * 10 + i + 1)
                wrong = serial;
        }
    }
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_int_equal(wrong, 0);
    assert_int_equal(worker.failed_serial, 0);
    arena_close(&arena);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(threads_populate_disjoint_ranges),
        cmocka_unit_test(steps_go_down_and_results_come_back),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
