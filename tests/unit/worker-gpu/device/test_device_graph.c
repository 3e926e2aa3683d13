/* Unit tests of worker-gpu/device/emulated/queue.c and emulated/graph.c: graphs with a part in each queue,
 * events inside captures and across launches, a ring that is written again and again, and what overlaps. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdlib.h>

#include "tests/unit/worker-gpu/device/device_test.h"

enum { SLICE = 64 << 10, SLOTS = 3, SLICES = 16 };

/* Weights in host memory that pass through a ring of a few slots. */
struct ring_test {
    struct device *d;
    unsigned char *host, *ring;
    struct device_event *copied[SLICES], *used[SLICES];
    _Atomic uint32_t tag, wrong, looked, end;
};

static void ring_open(struct ring_test *t, uint64_t copy_bytes_per_s)
{
    void *memory;
    memset(t, 0, sizeof *t);
    t->d = open_emulated(8 * MIB, copy_bytes_per_s, 5000);
    OK(device_alloc(t->d, DEVICE_RING, SLOTS * SLICE, &memory, why));
    t->ring = memory;
    OK(device_host_alloc(t->d, SLICES * SLICE, &memory, why));
    t->host = memory;
    for (int i = 0; i < SLICES; i++) {
        OK(t->d->ops->event_create(t->d, DEVICE_EVENT_PLAIN, &t->copied[i], why));
        OK(t->d->ops->event_create(t->d, DEVICE_EVENT_PLAIN, &t->used[i], why));
    }
}

static void ring_close(struct ring_test *t)
{
    for (int i = 0; i < SLICES; i++) {
        t->d->ops->event_free(t->d, t->copied[i]);
        t->d->ops->event_free(t->d, t->used[i]);
    }
    t->d->ops->host_free(t->d, t->host);
    device_free(t->d, DEVICE_RING, SLOTS * SLICE, t->ring);
    device_close(t->d);
}

/* Slice i holds tag + i everywhere. */
static void ring_fill(struct ring_test *t, uint32_t tag)
{
    atomic_store(&t->tag, tag);
    for (int i = 0; i < SLICES; i++) memset(t->host + i * SLICE, (int)(tag + (uint32_t)i) & 0xff, SLICE);
}

/* The whole walk through the ring: each slice is copied once the one it overwrites has been used. */
static void ring_put(struct ring_test *t, uint32_t pause_ms)
{
    struct device *d = t->d;
    for (int i = 0; i < SLICES; i++) {
        unsigned char *slot = t->ring + (i % SLOTS) * SLICE;
        if (i >= SLOTS) OK(d->ops->event_follow(d, DEVICE_COPY, t->used[i - SLOTS], why));
        OK(device_copy(d, DEVICE_COPY, DEVICE_TO_DEVICE, slot, t->host + i * SLICE, SLICE, why));
        OK(d->ops->event_record(d, DEVICE_COPY, t->copied[i], why));
        const struct look look = {.memory = slot,
                                  .bytes = SLICE,
                                  .add = (uint32_t)i,
                                  .pause_ms = pause_ms,
                                  .tag = &t->tag,
                                  .wrong = &t->wrong,
                                  .looked = &t->looked};
        OK(d->ops->event_follow(d, DEVICE_COMPUTE, t->copied[i], why));
        put_look(d, &look);
        OK(d->ops->event_record(d, DEVICE_COMPUTE, t->used[i], why));
    }
    OK(device_word_write(d, &t->end, 1, why));
}

/* No copy overtakes the kernel that still reads its slot, and no kernel its copy: checked by data, in a graph
 * that is launched many times, with fast copies (which would overtake) and slow ones (which would be late).
 */
static void a_ring_is_never_overwritten_early(void **state)
{
    (void)state;
    const uint64_t speed[] = {0, 200 * MIB};
    for (size_t s = 0; s < sizeof speed / sizeof *speed; s++) {
        struct ring_test t;
        struct device_graph *graph;
        ring_open(&t, speed[s]);
        OK(t.d->ops->capture_begin(t.d, why));
        ring_put(&t, speed[s] ? 0 : 1);
        OK(t.d->ops->capture_end(t.d, &graph, why));
        sleep_ms(5);
        assert_int_equal(atomic_load(&t.looked), 0); /* captured, not done */
        for (uint32_t step = 1; step <= 10; step++) {
            ring_fill(&t, step * 37);
            OK(t.d->ops->graph_launch(t.d, graph, true, why));
            OK(device_word_poll(t.d, &t.end, 1, 5000, why));
            atomic_store(&t.end, 0);
            assert_int_equal(atomic_load(&t.wrong), 0);
            assert_int_equal(atomic_load(&t.looked), step * SLICES);
        }
        assert_int_equal(t.d->copied_bytes[DEVICE_COPY][DEVICE_TO_DEVICE], 10ull * SLICES * SLICE);
        /* The same walk outside of a graph, with the same events. */
        ring_fill(&t, 5);
        ring_put(&t, 0);
        OK(device_word_poll(t.d, &t.end, 1, 5000, why));
        assert_int_equal(atomic_load(&t.wrong), 0);
        /* And captured anew with them. */
        t.d->ops->graph_free(t.d, graph);
        OK(t.d->ops->capture_begin(t.d, why));
        ring_put(&t, 0);
        OK(t.d->ops->capture_end(t.d, &graph, why));
        atomic_store(&t.end, 0);
        for (int i = 0; i < 3; i++) OK(t.d->ops->graph_launch(t.d, graph, true, why));
        drain(t.d, DEVICE_COMPUTE);
        assert_int_equal(atomic_load(&t.wrong), 0);
        assert_int_equal(atomic_load(&t.looked), 14 * SLICES);
        t.d->ops->graph_free(t.d, graph);
        ring_close(&t);
    }
}

/* A kernel that follows nothing sees what was there: the order comes from the events, not from luck. */
static void without_an_event_nothing_is_ordered(void **state)
{
    (void)state;
    struct ring_test t;
    ring_open(&t, SLICE * 2); /* a slice takes 500 ms */
    ring_fill(&t, 9);
    const struct look look = {
        .memory = t.ring, .bytes = SLICE, .tag = &t.tag, .wrong = &t.wrong, .looked = &t.looked};
    OK(device_copy(t.d, DEVICE_COPY, DEVICE_TO_DEVICE, t.ring, t.host, SLICE, why));
    OK(device_copy(t.d, DEVICE_COPY, DEVICE_TO_DEVICE, t.ring, t.host, SLICE, why));
    OK(device_copy(t.d, DEVICE_COPY, DEVICE_TO_DEVICE, t.ring + SLICE, t.host, SLICE, why));
    struct look late = look;
    late.memory = t.ring + SLICE;
    put_look(t.d, &late);
    drain(t.d, DEVICE_COMPUTE);
    assert_int_equal(atomic_load(&t.wrong), SLICE); /* NaN bytes of fresh memory */
    drain(t.d, DEVICE_COPY);
    put_look(t.d, &late);
    drain(t.d, DEVICE_COMPUTE);
    assert_int_equal(atomic_load(&t.wrong), SLICE);
    ring_close(&t);
}

/* While the compute queue waits for a word and then works, the copies go on: together it takes as long as the
 * longer of the two. */
static void copies_run_beside_waits_and_kernels(void **state)
{
    (void)state;
    enum { WAIT_MS = 150, WORK_MS = 150 };
    struct ring_test t;
    struct device_graph *graph;
    _Atomic uint32_t word = 0;
    ring_open(&t, SLICES * SLICE * 1000 / 300); /* all slices: 300 ms */
    ring_fill(&t, 1);
    OK(t.d->ops->capture_begin(t.d, why));
    OK(device_word_wait(t.d, &word, 1, DEVICE_AT_LEAST, why));
    put_sleep(t.d, WORK_MS);
    for (int i = 0; i < SLICES; i++)
        OK(device_copy(t.d, DEVICE_COPY, DEVICE_TO_DEVICE, t.ring, t.host + i * SLICE, SLICE, why));
    OK(t.d->ops->event_record(t.d, DEVICE_COPY, t.copied[0], why));
    OK(t.d->ops->event_follow(t.d, DEVICE_COMPUTE, t.copied[0], why));
    OK(device_word_write(t.d, &t.end, 1, why));
    OK(t.d->ops->capture_end(t.d, &graph, why));
    uint64_t best_ms = UINT64_MAX;
    for (int i = 0; i < 3; i++) {
        atomic_store(&word, 0);
        atomic_store(&t.end, 0);
        uint64_t start_us = units_now_us();
        OK(t.d->ops->graph_launch(t.d, graph, true, why));
        sleep_ms(WAIT_MS);
        atomic_store(&word, 1);
        OK(device_word_poll(t.d, &t.end, 1, 5000, why));
        uint64_t ms = (units_now_us() - start_us) / 1000;
        assert_true(ms >= 295); /* neither faster than the link nor than wait and work */
        if (ms < best_ms) best_ms = ms;
    }
    assert_true(best_ms < 500); /* 600 one after the other */
    t.d->ops->graph_free(t.d, graph);
    ring_close(&t);
}

/* The end word is written when the compute part has come to it, though the copy part goes on; a launch comes
 * after the whole of what was before, one beside it only after its own queue. */
static void the_end_does_not_wait_for_the_tail(void **state)
{
    (void)state;
    struct ring_test t;
    struct device_graph *graph, *next;
    ring_open(&t, SLICE * 2); /* a slice: 500 ms */
    OK(t.d->ops->capture_begin(t.d, why));
    OK(device_copy(t.d, DEVICE_COPY, DEVICE_TO_DEVICE, t.ring, t.host, SLICE, why));
    OK(device_word_write(t.d, &t.end, 1, why));
    OK(t.d->ops->capture_end(t.d, &graph, why));
    OK(t.d->ops->capture_begin(t.d, why));
    OK(device_word_write(t.d, &t.end, 2, why)); /* no copies at all */
    OK(t.d->ops->capture_end(t.d, &next, why));
    uint64_t start_us = units_now_us();
    OK(t.d->ops->graph_launch(t.d, graph, true, why));
    OK(device_word_poll(t.d, &t.end, 1, 5000, why));
    assert_true(units_now_us() - start_us < 400000);
    OK(t.d->ops->graph_launch(t.d, next, false, why));
    /* `graph` was launched whole, so even this one comes after its copies */
    OK(device_word_poll(t.d, &t.end, 2, 5000, why));
    assert_true(units_now_us() - start_us >= 490000);
    start_us = units_now_us();
    OK(t.d->ops->graph_launch(t.d, graph, false, why));
    OK(t.d->ops->graph_launch(t.d, next, false, why));
    OK(device_word_poll(t.d, &t.end, 2, 5000, why));
    assert_true(units_now_us() - start_us < 400000);
    OK(t.d->ops->graph_launch(t.d, next, true, why)); /* this one waits for the copies beside */
    drain(t.d, DEVICE_COMPUTE);
    assert_true(units_now_us() - start_us >= 490000);
    /* and later copies wait for a graph without any */
    const struct look look = {.memory = t.ring,
                              .bytes = SLICE,
                              .pause_ms = 50,
                              .tag = &t.tag,
                              .wrong = &t.wrong,
                              .looked = &t.looked};
    struct device_graph *reader;
    OK(t.d->ops->capture_begin(t.d, why));
    put_look(t.d, &look);
    OK(t.d->ops->capture_end(t.d, &reader, why));
    atomic_store(&t.tag, t.host[0]);
    memset(t.ring, t.host[0], SLICE);
    memset(t.host, t.host[0] + 1, SLICE);
    OK(t.d->ops->graph_launch(t.d, reader, true, why));
    OK(device_copy(t.d, DEVICE_COPY, DEVICE_TO_DEVICE, t.ring, t.host, SLICE, why));
    drain(t.d, DEVICE_COPY);
    assert_int_equal(atomic_load(&t.looked), 1);
    assert_int_equal(atomic_load(&t.wrong), 0);
    t.d->ops->graph_free(t.d, reader);
    t.d->ops->graph_free(t.d, graph);
    t.d->ops->graph_free(t.d, next);
    ring_close(&t);
}

/* The tail of a step, put after its launch: the copies for the next step begin when this step has let the
 * slot go, the next step starts beside them, and waits for them only where it needs them. */
static void events_cross_launches(void **state)
{
    (void)state;
    enum { STEPS = 12 };
    struct ring_test t;
    struct device *d;
    struct device_event *freed, *arrived;
    struct device_graph *graph;
    _Atomic uint32_t started = 0;
    ring_open(&t, SLICE * 20); /* a slice: 50 ms */
    d = t.d;
    OK(d->ops->event_create(d, DEVICE_EVENT_CROSSING, &freed, why));
    OK(d->ops->event_create(d, DEVICE_EVENT_CROSSING, &arrived, why));
    OK(d->ops->capture_begin(d, why));
    OK(device_word_write(d, &started, 1, why));
    OK(d->ops->event_follow(d, DEVICE_COMPUTE, arrived, why));
    const struct look look = {.memory = t.ring,
                              .bytes = SLICE,
                              .pause_ms = 2,
                              .tag = &t.tag,
                              .wrong = &t.wrong,
                              .looked = &t.looked};
    put_look(d, &look);
    OK(d->ops->event_record(d, DEVICE_COMPUTE, freed, why));
    OK(device_word_write(d, &t.end, 1, why));
    OK(d->ops->capture_end(d, &graph, why));
    memset(t.host, 1, SLICE);
    OK(device_copy(d, DEVICE_COPY, DEVICE_TO_DEVICE, t.ring, t.host, SLICE, why));
    OK(d->ops->event_record(d, DEVICE_COPY, arrived, why));
    uint32_t early = 0;
    for (uint32_t step = 1; step <= STEPS; step++) {
        atomic_store(&t.tag, step);
        atomic_store(&started, 0);
        atomic_store(&t.end, 0);
        uint64_t start_us = units_now_us();
        OK(d->ops->graph_launch(d, graph, false, why));
        OK(device_word_poll(d, &started, 1, 5000, why));
        early += units_now_us() - start_us < 40000;
        /* the next work is put while the step still waits for its slice */
        OK(d->ops->event_follow(d, DEVICE_COPY, freed, why));
        OK(device_word_poll(d, &t.end, 1, 5000, why));
        memset(t.host, (int)step + 1, SLICE);
        OK(device_copy(d, DEVICE_COPY, DEVICE_TO_DEVICE, t.ring, t.host, SLICE, why));
        OK(d->ops->event_record(d, DEVICE_COPY, arrived, why));
        assert_int_equal(atomic_load(&t.looked), step);
        assert_int_equal(atomic_load(&t.wrong), 0);
    }
    assert_true(early >= STEPS / 4);
    OK(d->ops->event_wait(d, arrived, why)); /* crossing ones may be waited for by the host */
    assert_int_equal(t.ring[SLICE - 1], STEPS + 1);
    d->ops->graph_free(d, graph);
    d->ops->event_free(d, freed);
    d->ops->event_free(d, arrived);
    ring_close(&t);
}

/* A launch that is still queued keeps to the recording that it was launched after, not to a later one. */
static void a_launch_follows_what_was_recorded_before_it(void **state)
{
    (void)state;
    struct ring_test t;
    struct device_event *arrived;
    struct device_graph *graph;
    _Atomic uint32_t gate = 0;
    ring_open(&t, SLICE * 2); /* a slice: 500 ms */
    struct device *d = t.d;
    OK(d->ops->event_create(d, DEVICE_EVENT_CROSSING, &arrived, why));
    OK(d->ops->capture_begin(d, why));
    OK(d->ops->event_follow(d, DEVICE_COMPUTE, arrived, why)); /* never recorded: nothing to wait for */
    OK(device_word_write(d, &t.end, 1, why));
    OK(d->ops->capture_end(d, &graph, why));
    OK(device_word_wait(d, &gate, 1, DEVICE_EQUAL, why));
    OK(d->ops->graph_launch(d, graph, false, why));
    uint64_t start_us = units_now_us();
    OK(device_copy(d, DEVICE_COPY, DEVICE_TO_DEVICE, t.ring, t.host, SLICE, why));
    OK(d->ops->event_record(d, DEVICE_COPY, arrived, why));
    atomic_store(&gate, 1);
    OK(device_word_poll(d, &t.end, 1, 5000, why));
    assert_true(units_now_us() - start_us < 400000);
    atomic_store(&t.end, 0);
    OK(d->ops->graph_launch(d, graph, false, why));
    OK(device_word_poll(d, &t.end, 1, 5000, why));
    assert_true(units_now_us() - start_us >= 490000);
    d->ops->graph_free(d, graph);
    d->ops->event_free(d, arrived);
    ring_close(&t);
}

static void what_a_capture_refuses(void **state)
{
    (void)state;
    struct helm_err err = {0};
    struct ring_test t;
    struct device_event *crossing;
    struct device_graph *graph, *none;
    ring_open(&t, 0);
    struct device *d = t.d;
    OK(d->ops->event_create(d, DEVICE_EVENT_CROSSING, &crossing, why));
    OK(d->ops->event_record(d, DEVICE_COPY, t.used[0], why));
    OK(d->ops->capture_begin(d, why));
    assert_int_equal(d->ops->event_follow(d, DEVICE_COMPUTE, t.used[0], &err), HELM_E_STATE);
    assert_non_null(strstr(err.text, "outside"));
    assert_int_equal(d->ops->event_follow(d, DEVICE_COMPUTE, t.used[1], &err), HELM_E_STATE);
    OK(d->ops->event_record(d, DEVICE_COMPUTE, crossing, why));
    assert_int_equal(d->ops->event_follow(d, DEVICE_COPY, crossing, &err), HELM_E_STATE);
    assert_non_null(strstr(err.text, "crossing"));
    OK(d->ops->event_record(d, DEVICE_COMPUTE, t.used[0], why));
    OK(d->ops->event_follow(d, DEVICE_COPY, t.used[0], why));
    OK(d->ops->capture_end(d, &graph, why));
    assert_int_equal(d->ops->event_follow(d, DEVICE_COPY, t.used[0], &err), HELM_E_STATE);
    assert_int_equal(d->ops->event_wait(d, t.used[0], &err), HELM_E_STATE);
    OK(d->ops->capture_begin(d, why));
    assert_int_equal(d->ops->event_follow(d, DEVICE_COPY, t.used[0], &err), HELM_E_STATE); /* another one's */
    assert_int_equal(d->ops->graph_launch(d, graph, true, &err), HELM_E_STATE);
    OK(d->ops->event_follow(d, DEVICE_COPY, crossing, why));
    assert_int_equal(d->ops->event_record(d, DEVICE_COPY, crossing, &err), HELM_E_STATE);
    OK(d->ops->capture_end(d, &none, why));
    OK(d->ops->event_record(d, DEVICE_COMPUTE, t.used[0], why));
    OK(d->ops->event_wait(d, t.used[0], why));
    OK(d->ops->graph_launch(d, none, true, why));
    OK(d->ops->graph_launch(d, graph, true, why));
    drain(d, DEVICE_COPY);
    d->ops->graph_free(d, graph);
    d->ops->graph_free(d, none);
    assert_int_equal(d->used[DEVICE_GRAPHS], 0);
    d->ops->event_free(d, crossing);
    ring_close(&t);
}

/* A graph may be released as soon as its last word is seen, while its copies still run; a word that never
 * comes fails both parts, and abandoning returns. */
static void graphs_end_early(void **state)
{
    (void)state;
    struct helm_err err = {0};
    struct ring_test t;
    struct device_graph *graph;
    ring_open(&t, SLICE * 10);
    struct device *d = t.d;
    OK(d->ops->capture_begin(d, why));
    OK(device_copy(d, DEVICE_COPY, DEVICE_TO_DEVICE, t.ring, t.host, SLICE, why));
    OK(d->ops->event_record(d, DEVICE_COPY, t.copied[0], why));
    OK(device_word_write(d, &t.end, 1, why));
    OK(d->ops->capture_end(d, &graph, why));
    OK(d->ops->graph_launch(d, graph, true, why));
    OK(device_word_poll(d, &t.end, 1, 5000, why));
    d->ops->graph_free(d, graph);
    drain(d, DEVICE_COPY);
    _Atomic uint32_t never = 0, after = 0;
    OK(d->ops->capture_begin(d, why));
    OK(device_word_wait(d, &never, 1, DEVICE_EQUAL, why));
    OK(d->ops->event_record(d, DEVICE_COMPUTE, t.used[0], why));
    OK(d->ops->event_follow(d, DEVICE_COPY, t.used[0], why));
    OK(device_copy(d, DEVICE_COPY, DEVICE_TO_DEVICE, t.ring, t.host, SLICE, why));
    OK(device_word_write(d, &after, 1, why));
    OK(d->ops->capture_end(d, &graph, why));
    OK(d->ops->graph_launch(d, graph, true, why));
    sleep_ms(20);
    d->ops->abandon(d);
    assert_int_equal(atomic_load(&after), 0);
    assert_int_equal(d->ops->check(d, &err), HELM_E_CANCELLED);
    assert_int_equal(d->ops->graph_launch(d, graph, true, &err), HELM_E_CANCELLED);
    d->ops->graph_free(d, graph);
    ring_close(&t);
}

/* More launches than the queues hold: the caller waits, and none is lost. */
static void many_launches(void **state)
{
    (void)state;
    enum { LAUNCHES = 2000 };
    struct ring_test t;
    struct device_graph *graph;
    ring_open(&t, 0);
    struct device *d = t.d;
    const struct look look = {
        .memory = t.ring, .bytes = 64, .tag = &t.tag, .wrong = &t.wrong, .looked = &t.looked};
    OK(d->ops->capture_begin(d, why));
    OK(device_copy(d, DEVICE_COPY, DEVICE_TO_DEVICE, t.ring, t.host, 64, why));
    OK(d->ops->event_record(d, DEVICE_COPY, t.copied[0], why));
    OK(d->ops->event_follow(d, DEVICE_COMPUTE, t.copied[0], why));
    put_look(d, &look);
    OK(d->ops->capture_end(d, &graph, why));
    ring_fill(&t, 3);
    for (int i = 0; i < LAUNCHES; i++) OK(d->ops->graph_launch(d, graph, i % 2, why));
    drain(d, DEVICE_COMPUTE);
    drain(d, DEVICE_COPY);
    assert_int_equal(atomic_load(&t.looked), LAUNCHES);
    assert_int_equal(atomic_load(&t.wrong), 0);
    d->ops->graph_free(d, graph);
    ring_close(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_ring_is_never_overwritten_early),
        cmocka_unit_test(without_an_event_nothing_is_ordered),
        cmocka_unit_test(copies_run_beside_waits_and_kernels),
        cmocka_unit_test(the_end_does_not_wait_for_the_tail),
        cmocka_unit_test(events_cross_launches),
        cmocka_unit_test(a_launch_follows_what_was_recorded_before_it),
        cmocka_unit_test(what_a_capture_refuses),
        cmocka_unit_test(graphs_end_early),
        cmocka_unit_test(many_launches),
    };
    return cmocka_run_group_tests_name("worker-gpu/graphs", tests, NULL, NULL);
}
