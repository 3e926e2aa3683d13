/* Unit tests of worker-gpu/device/device.c and emulated/device.c: order, overlap, words, graphs, ceiling,
 * failure.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tests/unit/worker-gpu/device/device_test.h"

static void unknown_devices_are_named(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        int code;
    } cases[] = {{"tpu", HELM_E_USAGE}, {"", HELM_E_USAGE}, {"emulated:1", HELM_E_USAGE}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const struct device_options options = {.name = cases[i].name, .vram_bytes = MIB};
        struct device *d;
        struct helm_err err = {0};
        assert_int_equal(device_open(&options, &d, &err), cases[i].code);
        assert_null(d);
        assert_non_null(strstr(err.text, cases[i].name));
    }
    const struct device_options cuda = {.name = "cuda"};
    struct device *d;
    struct helm_err err = {0};
    char why[256];
    if (device_cuda_usable(why, sizeof why)) return;
    assert_int_not_equal(device_open(&cuda, &d, &err), 0);
    assert_true(why[0] != '\0');
    uint32_t count = 1;
    struct device_info info;
    assert_int_not_equal(device_cuda_list(&info, 1, &count, &err), 0);
    assert_int_equal(count, 0);
}

/* The ceiling counts everything, to the byte, and gives back what is freed. */
static void the_ceiling_is_enforced(void **state)
{
    (void)state;
    struct helm_err err = {0};
    struct device *d = open_emulated(4 * MIB, 0, 1000);
    uint64_t left = 4 * MIB - device_used(d);
    void *a, *b;
    assert_true(left < 4 * MIB); /* the context is in it */
    assert_int_equal(device_alloc(d, DEVICE_WEIGHTS, left + 1, &a, &err), HELM_E_CAPACITY);
    assert_null(a);
    assert_non_null(strstr(err.text, "weights"));
    assert_non_null(strstr(err.text, "4.00 MiB"));
    assert_int_equal(device_alloc(d, DEVICE_WEIGHTS, left, &a, &err), 0);
    assert_true((uintptr_t)a % 256 == 0);
    assert_int_equal(device_alloc(d, DEVICE_KV, 1, &b, &err), HELM_E_CAPACITY);
    assert_int_equal(device_charge(d, DEVICE_GRAPHS, 1, &err), HELM_E_CAPACITY);
    device_free(d, DEVICE_WEIGHTS, left, a);
    assert_int_equal(device_alloc(d, DEVICE_KV, 1000, &b, &err), 0);
    struct ledger ledger;
    device_ledger(d, &ledger);
    assert_int_equal(ledger.limit, 4 * MIB);
    assert_int_equal(ledger.total, device_used(d));
    assert_int_equal(ledger.line_count, 2);
    assert_string_equal(ledger.line[0].what, "KV pool");
    device_free(d, DEVICE_KV, 1000, b);
    assert_int_equal(device_alloc(d, DEVICE_KV, UINT64_MAX, &b, &err), HELM_E_CAPACITY);
    device_close(d);
    const struct device_options tiny = {.name = "emulated", .vram_bytes = 1000};
    assert_int_equal(device_open(&tiny, &d, &err), HELM_E_CAPACITY);
    assert_null(d);
}

/* Copies take the time they are set to, beside the other queue, and an event orders the two. */
static void copies_are_asynchronous_and_ordered(void **state)
{
    (void)state;
    enum { BYTES = 1 << 20 };
    struct helm_err err = {0};
    struct device *d = open_emulated(8 * MIB, 2 * MIB, 1000); /* 500 ms a MiB */
    void *vram, *host, *back;
    struct device_event *copied;
    assert_int_equal(device_alloc(d, DEVICE_WEIGHTS, BYTES, &vram, &err), 0);
    assert_int_equal(device_host_alloc(d, BYTES, &host, &err), 0);
    assert_int_equal(device_host_alloc(d, BYTES, &back, &err), 0);
    for (int i = 0; i < BYTES; i++) ((unsigned char *)host)[i] = (unsigned char)(i * 7);
    memset(back, 0, BYTES);
    _Atomic uint32_t word = 0;
    uint32_t seen_early;
    uint64_t start_us = units_now_us();
    assert_int_equal(device_copy(d, DEVICE_COPY, DEVICE_TO_DEVICE, vram, host, BYTES, &err), 0);
    assert_int_equal(d->ops->event_create(d, DEVICE_EVENT_PLAIN, &copied, &err), 0);
    assert_int_equal(d->ops->event_record(d, DEVICE_COPY, copied, &err), 0);
    assert_int_equal(device_word_write(d, &word, 1, &err), 0); /* the other queue does not wait for it */
    assert_true(units_now_us() - start_us < 400000);           /* nor did we */
    assert_int_equal(device_word_poll(d, &word, 1, 20000, &err), 0);
    seen_early = (uint32_t)(units_now_us() - start_us);
    assert_int_equal(d->ops->event_follow(d, DEVICE_COMPUTE, copied, &err), 0);
    assert_int_equal(device_copy(d, DEVICE_COMPUTE, DEVICE_TO_HOST, back, vram, BYTES, &err), 0);
    drain(d, DEVICE_COMPUTE);
    assert_true(units_now_us() - start_us >= 990000); /* both copies, one after the other */
    assert_true(seen_early < 490000);
    assert_memory_equal(host, back, BYTES);
    assert_int_equal(d->ops->clear(d, DEVICE_COMPUTE, vram, 16, &err), 0);
    drain(d, DEVICE_COMPUTE);
    assert_memory_equal(vram, "\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0", 16);
    d->ops->event_free(d, copied);
    d->ops->host_free(d, host);
    d->ops->host_free(d, back);
    device_free(d, DEVICE_WEIGHTS, BYTES, vram);
    device_close(d);
}

/* A wait for a sleeping event takes no CPU time; otherwise the event is a plain one. */
static void who_waits_for_a_sleeping_event_sleeps(void **state)
{
    (void)state;
    enum { BYTES = 256 << 10 };
    struct helm_err err = {0};
    struct device *d = open_emulated(8 * MIB, MIB, 1000); /* 250 ms */
    void *vram, *host;
    struct device_event *copied;
    OK(device_alloc(d, DEVICE_WEIGHTS, BYTES, &vram, why));
    OK(device_host_alloc(d, BYTES, &host, why));
    OK(d->ops->event_create(d, DEVICE_EVENT_SLEEPING, &copied, why));
    OK(d->ops->event_wait(d, copied, why)); /* never recorded: nothing to wait for */
    for (int round = 0; round < 2; round++) {
        OK(device_copy(d, DEVICE_COPY, DEVICE_TO_DEVICE, vram, host, BYTES, why));
        OK(d->ops->event_record(d, DEVICE_COPY, copied, why));
        const uint64_t start_us = units_now_us(), cpu_us = cpu_time_us();
        OK(d->ops->event_wait(d, copied, why));
        assert_true(cpu_time_us() - cpu_us < 100000);
        assert_true(units_now_us() - start_us > 200000);
    }
    OK(d->ops->event_record(d, DEVICE_COPY, copied, why));
    OK(d->ops->event_follow(d, DEVICE_COMPUTE, copied, why));
    drain(d, DEVICE_COMPUTE);
    struct device_graph *graph;
    OK(d->ops->capture_begin(d, why));
    OK(d->ops->event_record(d, DEVICE_COPY, copied, why));
    OK(d->ops->event_follow(d, DEVICE_COMPUTE, copied, why));
    OK(d->ops->capture_end(d, &graph, why));
    assert_int_equal(d->ops->event_wait(d, copied, &err), HELM_E_STATE);
    d->ops->graph_free(d, graph);
    d->ops->event_free(d, copied);
    d->ops->host_free(d, host);
    device_free(d, DEVICE_WEIGHTS, BYTES, vram);
    device_close(d);
}

/* A captured graph does nothing until it is launched, and then the same each time. */
static void graphs_replay(void **state)
{
    (void)state;
    struct helm_err err = {0};
    struct device *d = open_emulated(8 * MIB, 0, 5000);
    struct device_graph *graph;
    _Atomic uint32_t in = 0, out = 0;
    assert_int_equal(d->ops->capture_end(d, &graph, &err), HELM_E_STATE);
    assert_int_equal(d->ops->capture_begin(d, &err), 0);
    assert_int_equal(d->ops->capture_begin(d, &err), HELM_E_STATE);
    assert_int_equal(device_word_wait(d, &in, 1, DEVICE_AT_LEAST, &err), 0);
    assert_int_equal(device_word_write(d, &in, 0, &err), 0);
    assert_int_equal(device_word_write(d, &out, 1, &err), 0);
    assert_int_equal(d->ops->capture_end(d, &graph, &err), 0);
    assert_true(d->used[DEVICE_GRAPHS] > 0);
    for (int i = 0; i < 50; i++) {
        assert_int_equal(atomic_load(&out), 0);
        assert_int_equal(d->ops->graph_launch(d, graph, true, &err), 0);
        if (i % 10 == 0) assert_int_equal(device_word_poll(d, &out, 1, 60, &err), HELM_E_PEER);
        atomic_store(&in, 1);
        assert_int_equal(device_word_poll(d, &out, 1, 5000, &err), 0);
        assert_int_equal(atomic_load(&in), 0); /* taken */
        atomic_store(&out, 0);
    }
    d->ops->graph_free(d, graph);
    assert_int_equal(d->used[DEVICE_GRAPHS], 0);
    device_close(d);
}

/* A word that does not come fails the device, for good; operations queued after it are not done. */
static void a_wait_without_end_fails_the_device(void **state)
{
    (void)state;
    struct helm_err err = {0};
    struct device *d = open_emulated(8 * MIB, 0, 100);
    _Atomic uint32_t word = 0, after = 0;
    uint64_t start_us = units_now_us();
    assert_int_equal(d->ops->check(d, &err), 0);
    assert_int_equal(device_word_wait(d, &word, 3, DEVICE_EQUAL, &err), 0);
    assert_int_equal(device_word_write(d, &after, 1, &err), 0);
    assert_int_equal(device_word_poll(d, &after, 1, 5000, &err), HELM_E_PEER);
    assert_non_null(strstr(err.text, "waited 100 ms"));
    assert_true(units_now_us() - start_us < 3000000);
    assert_int_equal(d->ops->check(d, &err), HELM_E_PEER);
    assert_int_equal(device_word_write(d, &after, 1, &err), HELM_E_PEER);
    assert_int_equal(atomic_load(&after), 0);
    device_close(d);
}

/* More operations than the queue holds: the caller waits, nothing is lost. */
static void a_full_queue_waits(void **state)
{
    (void)state;
    enum { OPS = 5000 };
    struct helm_err err = {0};
    struct device *d = open_emulated(8 * MIB, 0, 1000);
    _Atomic uint32_t word = 0;
    for (uint32_t i = 1; i <= OPS; i++) assert_int_equal(device_word_write(d, &word, i, &err), 0);
    assert_int_equal(device_word_poll(d, &word, OPS, 5000, &err), 0);
    device_close(d);
    device_close(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(unknown_devices_are_named),
        cmocka_unit_test(the_ceiling_is_enforced),
        cmocka_unit_test(copies_are_asynchronous_and_ordered),
        cmocka_unit_test(graphs_replay),
        cmocka_unit_test(a_wait_without_end_fails_the_device),
        cmocka_unit_test(a_full_queue_waits),
        cmocka_unit_test(who_waits_for_a_sleeping_event_sleeps),
    };
    return cmocka_run_group_tests_name("worker-gpu/device", tests, NULL, NULL);
}
