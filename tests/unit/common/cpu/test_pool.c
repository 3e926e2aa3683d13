/* Unit tests of common/cpu/pool.c: every chunk runs exactly once, regions do not overlap, one slow thread
 * holds only its chunk, sleeping threads are woken, waiting ones do pieces of something else, and a run may
 * end on any thread. Also meant for MODE=tsan. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/units.h"
#include "common/cpu/pool.h"

#define CHUNKS_MAX 4096

struct list {
    uint32_t regions, region;
    uint32_t chunks[64];
    bool alone[64];
    uint32_t width[64];
    uint32_t sleep_us;                 /* thread 1 sleeps this long in its first chunk of each region */
    _Atomic uint32_t runs[CHUNKS_MAX]; /* of the current region */
    uint32_t plain[CHUNKS_MAX];        /* not atomic: the pool's ordering must make it safe */
    _Atomic uint32_t bad;
    _Atomic uint64_t total;
    _Atomic uint32_t by_thread[POOL_THREADS_MAX];
    _Atomic int slept;
};

static void count_chunk(void *ctx, uint32_t chunk, uint32_t thread)
{
    struct list *list = ctx;
    if (list->sleep_us && thread == 1 && !atomic_exchange(&list->slept, 1)) usleep(list->sleep_us);
    if (atomic_fetch_add(&list->runs[chunk], 1) != 0) atomic_fetch_add(&list->bad, 1);
    list->plain[chunk]++;
    atomic_fetch_add(&list->total, 1);
    atomic_fetch_add(&list->by_thread[thread], 1);
}

static bool next_region(void *ctx, uint32_t thread, struct pool_job *job)
{
    struct list *list = ctx;
    (void)thread;
    if (list->region) {
        uint32_t before = list->chunks[list->region - 1];
        for (uint32_t i = 0; i < before; i++) {
            if (atomic_load(&list->runs[i]) != 1 || list->plain[i] != 1) atomic_fetch_add(&list->bad, 1);
            atomic_store(&list->runs[i], 0);
            list->plain[i] = 0;
        }
    }
    if (list->region == list->regions) return false;
    atomic_store(&list->slept, 0);
    *job = (struct pool_job){.run = count_chunk,
                             .chunks = list->chunks[list->region],
                             .alone = list->alone[list->region],
                             .width = list->width[list->region]};
    list->region++;
    return true;
}

static void run_list(struct pool *pool, struct list *list, uint64_t *expected)
{
    list->region = 0;
    for (uint32_t i = 0; i < list->regions; i++) *expected += list->chunks[i];
    pool_run(pool, next_region, list);
    assert_int_equal(list->region, list->regions);
}

static void every_chunk_runs_once(void **state)
{
    (void)state;
    static const uint32_t threads[] = {1, 2, 3, 7, 40}; /* 40: those that share a wake-up bit */
    for (size_t t = 0; t < sizeof threads / sizeof *threads; t++) {
        struct helm_err err = {0};
        struct pool *pool;
        struct list *list = calloc(1, sizeof *list);
        uint64_t expected = 0;
        unsigned seed = 1;
        assert_int_equal(pool_create(threads[t], NULL, 20, &pool, &err), 0);
        assert_int_equal(pool_threads(pool), threads[t]);
        for (int round = 0; round < 100; round++) {
            list->regions = (uint32_t)rand_r(&seed) % 64;
            for (uint32_t i = 0; i < list->regions; i++) {
                list->chunks[i] = 1 + (uint32_t)rand_r(&seed) % (i % 8 ? 40 : 1000);
                list->alone[i] = rand_r(&seed) % 4 == 0;
                list->width[i] = (uint32_t)rand_r(&seed) % 50;
            }
            run_list(pool, list, &expected);
        }
        assert_int_equal(list->bad, 0);
        assert_int_equal(list->total, expected);
        pool_destroy(pool);
        free(list);
    }
}

/* With no spinning every wait sleeps, so each region exercises the wake-up. */
static void sleeping_threads_are_woken(void **state)
{
    (void)state;
    struct helm_err err = {0};
    struct pool *pool;
    struct list *list = calloc(1, sizeof *list);
    uint64_t expected = 0;
    assert_int_equal(pool_create(4, NULL, 0, &pool, &err), 0);
    list->regions = 40;
    for (uint32_t i = 0; i < list->regions; i++) list->chunks[i] = 50;
    for (int round = 0; round < 20; round++) {
        if (round % 5 == 0) usleep(2000); /* let all of them fall asleep between runs */
        run_list(pool, list, &expected);
    }
    assert_int_equal(list->bad, 0);
    assert_int_equal(list->total, expected);
    pool_destroy(pool);
    free(list);
}

/* A thread that is away in the middle of a chunk keeps that one chunk; the others take the rest of its share.
 */
static void a_slow_thread_holds_only_its_chunk(void **state)
{
    (void)state;
    struct helm_err err = {0};
    struct pool *pool;
    struct list *list = calloc(1, sizeof *list);
    uint64_t expected = 0;
    assert_int_equal(pool_create(2, NULL, 50, &pool, &err), 0);
    list->regions = 10;
    list->sleep_us = 20000;
    for (uint32_t i = 0; i < list->regions; i++) list->chunks[i] = 1000;
    run_list(pool, list, &expected);
    assert_int_equal(list->bad, 0);
    assert_int_equal(list->total, expected);
    assert_true(list->by_thread[0] > list->by_thread[1]);
    pool_destroy(pool);
    free(list);
}

struct pieces {
    _Atomic uint32_t last[2];  /* the newest piece of each thread, from 1 */
    _Atomic uint32_t calls[2]; /* in which it was asked for them */
    _Atomic uint32_t wrong;
};

#define PIECES 5
static bool count_piece(void *ctx, uint32_t thread, uint32_t piece)
{
    struct pieces *p = ctx;
    uint32_t before = atomic_exchange(&p->last[thread], piece + 1);
    /* From the first on, each once, none after the one that said no. */
    if (piece != 0 && (piece != before || piece > PIECES)) atomic_fetch_add(&p->wrong, 1);
    atomic_fetch_add(&p->calls[thread], 1);
    return piece < PIECES;
}

struct meeting {
    uint32_t regions;
    _Atomic uint32_t begun;
};

/* Both chunks of a region are begun before either ends, so each has a thread; then thread 1 is away. */
static void meet(void *ctx, uint32_t chunk, uint32_t thread)
{
    struct meeting *m = ctx;
    (void)chunk;
    uint32_t target = (atomic_fetch_add(&m->begun, 1) / 2 + 1) * 2;
    while (atomic_load(&m->begun) < target) usleep(10);
    if (thread == 1) usleep(2000);
}

static bool next_meeting(void *ctx, uint32_t thread, struct pool_job *job)
{
    struct meeting *m = ctx;
    (void)thread;
    if (m->regions == 0) return false;
    m->regions--;
    *job = (struct pool_job){.run = meet, .chunks = 2};
    return true;
}

/* Thread 0 has nothing left while thread 1 is away: it does the pieces meanwhile. */
static void waiting_threads_do_pieces(void **state)
{
    (void)state;
    struct helm_err err = {0};
    struct pool *pool;
    struct pieces pieces = {.wrong = 0};
    struct meeting meeting = {.begun = 0};
    assert_int_equal(pool_create(2, NULL, 50, &pool, &err), 0);
    pool_set_idle(pool, count_piece, &pieces);
    for (int round = 0; round < 100 && atomic_load(&pieces.calls[0]) == 0; round++) {
        meeting.regions = 10;
        pool_run(pool, next_meeting, &meeting);
        assert_int_equal(meeting.begun, 20 * (round + 1));
    }
    assert_true(pieces.calls[0] > 0);
    pool_destroy(pool);
    assert_int_equal(pieces.wrong, 0);
}

static void bad_thread_counts_are_refused(void **state)
{
    (void)state;
    struct helm_err err = {0};
    struct pool *pool;
    assert_int_equal(pool_create(0, NULL, 0, &pool, &err), HELM_E_LIMIT);
    assert_null(pool);
    assert_int_equal(pool_create(POOL_THREADS_MAX + 1, NULL, 0, &pool, &err), HELM_E_LIMIT);
    int cpu[2] = {0, 1 << 20};
    assert_int_not_equal(pool_create(2, cpu, 0, &pool, &err), 0);
    assert_null(pool);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_chunk_runs_once),
        cmocka_unit_test(sleeping_threads_are_woken),
        cmocka_unit_test(a_slow_thread_holds_only_its_chunk),
        cmocka_unit_test(waiting_threads_do_pieces),
        cmocka_unit_test(bad_thread_counts_are_refused),
    };
    return cmocka_run_group_tests_name("worker-cpu/pool", tests, NULL, NULL);
}
