/* Unit tests of the CPU worker's trace (worker-cpu/program/trace.c). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "worker-cpu/program/trace.h"

#define THREADS 2
#define CHUNKS  3

static unsigned computed;

static void compute(void *ctx, uint32_t chunk, uint32_t thread)
{
    (void)ctx, (void)chunk, (void)thread;
    computed++;
}

/* A step of `tokens` tokens with one entry. */
static void step(struct run *run, const struct program_entry *entry, uint32_t tokens)
{
    struct pool_job job = {.run = compute, .chunks = CHUNKS};
    trace_begin_step(run->trace, tokens);
    run->entry = entry;
    trace_entry(run->trace, run, 1, &job);
    for (uint32_t c = 0; c < CHUNKS; c++) job.run(run, c, c % THREADS);
    trace_end_step(run->trace);
}

static void no_trace_is_made_unasked(void **state)
{
    (void)state;
    struct helm_err err = {0};
    struct trace *trace;
    unsetenv(TRACE_VARIABLE);
    assert_int_equal(trace_open(THREADS, &trace, &err), 0);
    assert_null(trace);
    setenv(TRACE_VARIABLE, "/proc/no such folder/trace", 1);
    assert_int_not_equal(trace_open(THREADS, &trace, &err), 0);
    assert_null(trace);
    assert_non_null(strstr(err.text, TRACE_VARIABLE));
    unsetenv(TRACE_VARIABLE);
}

static void steps_of_one_token_are_written(void **state)
{
    (void)state;
    char path[] = "/tmp/helm-test-trace-XXXXXX", line[256];
    uint32_t bound[CHUNKS + 1] = {0, 4, 8, 16};
    const struct program_entry entry = {
        .kind = OP_LINEAR, .layer = 7, .bytes = 1600, .chunks = CHUNKS, .bound = bound};
    struct run *run = aligned_alloc(64, (sizeof *run + 63) / 64 * 64);
    struct helm_err err = {0};
    const int fd = mkstemp(path);
    assert_true(fd >= 0 && run);
    close(fd);
    memset(run, 0, sizeof *run);
    setenv(TRACE_VARIABLE, path, 1);
    assert_int_equal(trace_open(THREADS, &run->trace, &err), 0);
    unsetenv(TRACE_VARIABLE);
    computed = 0;
    for (uint32_t s = 1; s < TRACE_FIRST + TRACE_STEPS + 2; s++) {
        step(run, &entry, 1);
        step(run, &entry, 5); /* a prompt's, which is left out */
    }
    assert_int_equal(computed, 2 * CHUNKS * (TRACE_FIRST + TRACE_STEPS + 1));
    trace_close(run->trace);
    unsigned steps = 0, entries = 0, chunks = 0, lost = 1;
    uint64_t bytes = 0;
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    while (fgets(line, sizeof line, file)) {
        unsigned number, e, c, layer;
        unsigned long long begin, end, of;
        if (sscanf(line, "step %u %llu %llu", &number, &begin, &end) == 3) {
            assert_int_equal(number, TRACE_FIRST + steps++);
            assert_true(end >= begin);
        }
        entries +=
            sscanf(line, "entry %u %u %u 1600 3 1 %llu %llu", &number, &e, &layer, &begin, &end) == 5 &&
            e == 0 && layer == 7 && end >= begin;
        if (sscanf(line, "chunk %u %u %u %llu", &number, &e, &c, &of) == 4) {
            chunks++;
            bytes += of;
        }
        (void)sscanf(line, "lost %u", &lost);
    }
    fclose(file);
    unlink(path);
    free(run);
    assert_int_equal(steps, TRACE_STEPS);
    assert_int_equal(entries, TRACE_STEPS);
    assert_int_equal(chunks, TRACE_STEPS * CHUNKS);
    assert_int_equal(bytes, TRACE_STEPS * 1600);
    assert_int_equal(lost, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(no_trace_is_made_unasked),
                                       cmocka_unit_test(steps_of_one_token_are_written)};
    return cmocka_run_group_tests_name("worker-cpu/program: trace", tests, NULL, NULL);
}
