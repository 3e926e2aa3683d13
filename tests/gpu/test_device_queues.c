/* The device's queues with real kernels and copies: what device.h promises of captured graphs, crossing
 * events, 2D copies and registered memory, checked by data, and what of it costs time, measured and printed.
 *
 * The device is the emulated one. With HELM_TEST_DEVICE=cuda, in the program helm-test-gpu-device that is
 * linked with the CUDA device, it is the GPU: there these tests show that a captured fork really runs copies
 * beside a queue that waits for a word. A build or a machine without one skips, and says why. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/device_choice.h"
#include "tests/unit/worker-gpu/device/device_test.h"

enum { SLICES = 16, SLOTS = 4, PREFIX = 3, STEPS = 20, HIDDEN = 1024 };

struct rig {
    struct device *d;
    bool emulated;
    uint32_t rows;  /* of HIDDEN floats in a slice */
    uint64_t slice; /* bytes */
    float *host, *back, *ring, *seen;
    uint32_t *count;        /* on the device: rows */
    _Atomic uint32_t *word; /* pinned: [0] end, [1] started, [2] gate */
    struct device_event *copied[SLICES], *used[SLICES];
    struct device_event *freed, *arrived[PREFIX]; /* crossing */
};

static void *pinned(struct rig *r, uint64_t bytes)
{
    void *memory;
    OK(device_host_alloc(r->d, bytes, &memory, why));
    return memory;
}

static void *vram(struct rig *r, enum device_use use, uint64_t bytes)
{
    void *memory;
    OK(device_alloc(r->d, use, bytes, &memory, why));
    return memory;
}

static void rig_open(struct rig *r)
{
    need_device();
    memset(r, 0, sizeof *r);
    r->emulated = strcmp(device_name(), "emulated") == 0;
    const struct device_options options = {.name = device_name(),
                                           .vram_bytes = r->emulated ? 64 * MIB : 4 * GIB,
                                           .copy_bytes_per_s = 512 * MIB,
                                           .wait_ms = 20000};
    OK(device_open(&options, &r->d, why));
    struct device *d = r->d;
    r->rows = r->emulated ? 64 : 2048;
    r->slice = (uint64_t)r->rows * HIDDEN * sizeof(float); /* 256 KiB, 8 MiB */
    r->host = pinned(r, SLICES * r->slice);
    r->back = pinned(r, SLICES * r->slice);
    r->word = pinned(r, 64);
    r->ring = vram(r, DEVICE_RING, SLOTS * r->slice);
    r->seen = vram(r, DEVICE_WORKSPACE, SLICES * r->slice);
    r->count = vram(r, DEVICE_WORKSPACE, 256);
    uint32_t *rows = pinned(r, 64);
    *rows = r->rows;
    OK(device_copy(d, DEVICE_COMPUTE, DEVICE_TO_DEVICE, r->count, rows, sizeof *rows, why));
    drain(d, DEVICE_COMPUTE);
    d->ops->host_free(d, rows);
    for (int i = 0; i < 3; i++) atomic_store(&r->word[i], 0);
    for (int i = 0; i < SLICES; i++) {
        OK(d->ops->event_create(d, DEVICE_EVENT_PLAIN, &r->copied[i], why));
        OK(d->ops->event_create(d, DEVICE_EVENT_PLAIN, &r->used[i], why));
    }
    OK(d->ops->event_create(d, DEVICE_EVENT_CROSSING, &r->freed, why));
    for (int i = 0; i < PREFIX; i++) OK(d->ops->event_create(d, DEVICE_EVENT_CROSSING, &r->arrived[i], why));
}

static void rig_close(struct rig *r)
{
    struct device *d = r->d;
    for (int i = 0; i < SLICES; i++) {
        d->ops->event_free(d, r->copied[i]);
        d->ops->event_free(d, r->used[i]);
    }
    d->ops->event_free(d, r->freed);
    for (int i = 0; i < PREFIX; i++) d->ops->event_free(d, r->arrived[i]);
    device_free(d, DEVICE_RING, SLOTS * r->slice, r->ring);
    device_free(d, DEVICE_WORKSPACE, SLICES * r->slice, r->seen);
    device_free(d, DEVICE_WORKSPACE, 256, r->count);
    d->ops->host_free(d, r->host);
    d->ops->host_free(d, r->back);
    d->ops->host_free(d, r->word);
    device_close(d);
}

/* Numbers that tell step, slice and place. */
static void fill_slice(struct rig *r, uint32_t step, uint32_t slice)
{
    float *at = r->host + slice * (r->slice / sizeof(float));
    for (uint64_t i = 0; i < r->slice / sizeof(float); i++)
        at[i] = (float)(step * 1000 + slice) + (float)(i % 997) * 0x1p-10f;
}

static void *slot_of(const struct rig *r, uint32_t slice)
{
    return (char *)r->ring + slice % SLOTS * r->slice;
}

static void put_copy(struct rig *r, uint32_t slice)
{
    OK(device_copy(r->d, DEVICE_COPY, DEVICE_TO_DEVICE, slot_of(r, slice), (char *)r->host + slice * r->slice,
                   r->slice, why));
}

/* A kernel that reads `rows` rows of the ring. */
static void put_read(struct rig *r, uint32_t rows, float *from, float *to)
{
    const struct op op = {.kind = OP_LANE_READ,
                          .tokens = rows,
                          .count = r->count,
                          .as.move = {.from = from, .to = to, .width = HIDDEN}};
    OK(device_run(r->d, &op, why));
}

/* A kernel that reads the slice where it lies in the ring; three times, so that it takes a while. */
static void put_use(struct rig *r, uint32_t slice)
{
    for (int i = 0; i < 3; i++)
        put_read(r, r->rows, slot_of(r, slice), r->seen + slice * (r->slice / sizeof(float)));
}

static void put_end(struct rig *r)
{
    OK(device_copy(r->d, DEVICE_COMPUTE, DEVICE_TO_HOST, r->back, r->seen, SLICES * r->slice, why));
    OK(device_word_write(r->d, &r->word[0], 1, why));
}

static uint64_t wait_for(struct rig *r, uint32_t word, uint64_t start_us)
{
    OK(device_word_poll(r->d, &r->word[word], 1, 20000, why));
    uint64_t spent_us = units_now_us() - start_us;
    atomic_store(&r->word[word], 0);
    return spent_us;
}

static void check_seen(struct rig *r)
{
    assert_memory_equal(r->back, r->host, SLICES * r->slice);
}

/* One step's walk; the first `held` slices are there, each with a crossing event. */
static void put_walk(struct rig *r, uint32_t held)
{
    struct device *d = r->d;
    for (uint32_t i = 0; i < SLICES; i++) {
        if (i >= held) {
            if (i >= SLOTS) OK(d->ops->event_follow(d, DEVICE_COPY, r->used[i - SLOTS], why));
            put_copy(r, i);
            OK(d->ops->event_record(d, DEVICE_COPY, r->copied[i], why));
        }
        OK(d->ops->event_follow(d, DEVICE_COMPUTE, i < held ? r->arrived[i] : r->copied[i], why));
        put_use(r, i);
        OK(d->ops->event_record(d, DEVICE_COMPUTE, r->used[i], why));
    }
}

static void a_captured_ring(void **state)
{
    (void)state;
    struct rig r;
    struct device_graph *graph;
    rig_open(&r);
    OK(r.d->ops->capture_begin(r.d, why));
    put_walk(&r, 0);
    put_end(&r);
    OK(r.d->ops->capture_end(r.d, &graph, why));
    uint64_t best_us = UINT64_MAX;
    for (uint32_t step = 1; step <= STEPS; step++) {
        for (uint32_t i = 0; i < SLICES; i++) fill_slice(&r, step, i);
        uint64_t start_us = units_now_us();
        OK(r.d->ops->graph_launch(r.d, graph, step % 2, why));
        uint64_t us = wait_for(&r, 0, start_us);
        if (us < best_us) best_us = us;
        check_seen(&r);
    }
    print_message("a ring of %d slots, %d slices of %llu KiB: %.3f ms a step, %.2f GB/s of the link\n", SLOTS,
                  SLICES, (unsigned long long)r.slice / KIB, (double)best_us * 1e-3,
                  (double)(SLICES * r.slice) / (double)best_us * 1e-3);
    assert_int_equal(r.d->copied_bytes[DEVICE_COPY][DEVICE_TO_DEVICE], STEPS * SLICES * r.slice);
    r.d->ops->graph_free(r.d, graph);
    rig_close(&r);
}

/* The first slices of the next step are copied after a step's launch. */
static void a_prefix_across_launches(void **state)
{
    (void)state;
    struct rig r;
    struct device_graph *graph;
    rig_open(&r);
    struct device *d = r.d;
    OK(d->ops->capture_begin(d, why));
    OK(device_word_write(d, &r.word[1], 1, why));
    put_walk(&r, PREFIX);
    OK(d->ops->event_record(d, DEVICE_COMPUTE, r.freed, why));
    put_end(&r);
    OK(d->ops->capture_end(d, &graph, why));
    for (uint32_t i = 0; i < SLICES; i++) fill_slice(&r, 1, i);
    for (uint32_t i = 0; i < PREFIX; i++) {
        put_copy(&r, i);
        OK(d->ops->event_record(d, DEVICE_COPY, r.arrived[i], why));
    }
    uint64_t soonest_us = UINT64_MAX;
    for (uint32_t step = 1; step <= STEPS; step++) {
        uint64_t start_us = units_now_us();
        OK(d->ops->graph_launch(d, graph, false, why));
        uint64_t us = wait_for(&r, 1, start_us); /* it starts though its first slices are on their way */
        if (us < soonest_us) soonest_us = us;
        OK(d->ops->event_follow(d, DEVICE_COPY, r.freed, why));
        (void)wait_for(&r, 0, start_us);
        check_seen(&r);
        for (uint32_t i = 0; i < SLICES; i++) fill_slice(&r, step + 1, i);
        for (uint32_t i = 0; i < PREFIX; i++) {
            put_copy(&r, i);
            OK(d->ops->event_record(d, DEVICE_COPY, r.arrived[i], why));
        }
    }
    print_message("a step starts %llu us after its launch, beside %llu KiB for it still on their way\n",
                  (unsigned long long)soonest_us, (unsigned long long)(PREFIX * r.slice / KIB));
    OK(d->ops->graph_launch(d, graph, true, why));
    (void)wait_for(&r, 0, 0);
    check_seen(&r);
    /* Steps and their tails put one after the other without a look: each launch waits for the copies put
     * before it, though by then the same events have been recorded for the next. */
    memset(r.back, 0, SLICES * r.slice);
    for (uint32_t step = 0; step < STEPS; step++) {
        OK(d->ops->graph_launch(d, graph, false, why));
        OK(d->ops->event_follow(d, DEVICE_COPY, r.freed, why));
        for (uint32_t i = 0; i < PREFIX; i++) {
            put_copy(&r, i);
            OK(d->ops->event_record(d, DEVICE_COPY, r.arrived[i], why));
        }
    }
    drain(d, DEVICE_COMPUTE);
    drain(d, DEVICE_COPY);
    check_seen(&r);
    d->ops->graph_free(d, graph);
    rig_close(&r);
}

/* Copies in one graph with a queue that waits for a word: do they run meanwhile? */
static void copies_beside_a_waiting_queue(void **state)
{
    (void)state;
    struct rig r;
    struct device_graph *alone, *beside;
    rig_open(&r);
    struct device *d = r.d;
    for (int waits = 0; waits < 2; waits++) {
        OK(d->ops->capture_begin(d, why));
        if (waits) OK(device_word_wait(d, &r.word[2], 1, DEVICE_AT_LEAST, why));
        for (int round = 0; round < 8; round++)
            for (uint32_t i = 0; i < SLICES; i++) put_copy(&r, i);
        OK(d->ops->event_record(d, DEVICE_COPY, r.copied[0], why));
        OK(d->ops->event_follow(d, DEVICE_COMPUTE, r.copied[0], why));
        OK(device_word_write(d, &r.word[0], 1, why));
        OK(d->ops->capture_end(d, waits ? &beside : &alone, why));
    }
    uint64_t alone_us = UINT64_MAX, beside_us = UINT64_MAX;
    for (int i = 0; i < 4; i++) {
        uint64_t start_us = units_now_us();
        OK(d->ops->graph_launch(d, alone, true, why));
        uint64_t us = wait_for(&r, 0, start_us);
        if (us < alone_us) alone_us = us;
    }
    for (int i = 0; i < 4; i++) {
        uint64_t start_us = units_now_us();
        OK(d->ops->graph_launch(d, beside, true, why));
        while (units_now_us() - start_us < alone_us) continue;
        atomic_store(&r.word[2], 1);
        uint64_t us = wait_for(&r, 0, start_us);
        if (us < beside_us) beside_us = us;
        atomic_store(&r.word[2], 0);
    }
    print_message("copies alone %.3f ms (%.2f GB/s), beside a queue that waits as long %.3f ms\n",
                  (double)alone_us * 1e-3, (double)(8 * SLICES * r.slice) / (double)alone_us * 1e-3,
                  (double)beside_us * 1e-3);
    assert_true(beside_us < alone_us * 3 / 2); /* 2: one after the other */
    d->ops->graph_free(d, alone);
    d->ops->graph_free(d, beside);
    rig_close(&r);
}

/* Times of a hand-over, idle and while the link is busy, and of events between the parts. */
static void times_of_words_and_events(void **state)
{
    (void)state;
    enum { ROUNDS = 50 };
    struct rig r;
    struct device_graph *graph;
    rig_open(&r);
    struct device *d = r.d;
    for (int busy = 0; busy < 2; busy++) {
        OK(d->ops->capture_begin(d, why));
        for (int i = 0; i < ROUNDS; i++) {
            OK(device_word_write(d, &r.word[1], 1, why));
            OK(device_word_wait(d, &r.word[2], 1, DEVICE_AT_LEAST, why));
            OK(device_word_write(d, &r.word[2], 0, why));
        }
        OK(device_word_write(d, &r.word[0], 1, why));
        for (uint32_t i = 0; i < SLICES && busy; i++) put_copy(&r, i);
        OK(d->ops->capture_end(d, &graph, why));
        OK(d->ops->graph_launch(d, graph, true, why));
        uint64_t start_us = 0;
        for (int i = 0; i < ROUNDS; i++) {
            (void)wait_for(&r, 1, 0);
            if (i == 0) start_us = units_now_us();
            atomic_store(&r.word[2], 1);
        }
        uint64_t us = wait_for(&r, 0, start_us);
        print_message("a word there and back%s: %.2f us\n", busy ? ", beside copies" : "",
                      (double)us / ROUNDS);
        drain(d, DEVICE_COPY);
        d->ops->graph_free(d, graph);
    }
    for (int events = 0; events < 2; events++) {
        OK(d->ops->capture_begin(d, why));
        for (int i = 0; i < 128; i++) {
            uint32_t s = (uint32_t)i % SLICES;
            OK(device_copy(d, DEVICE_COPY, DEVICE_TO_DEVICE, r.ring, r.host, 64, why));
            if (events) OK(d->ops->event_record(d, DEVICE_COPY, r.copied[s], why));
            if (events) OK(d->ops->event_follow(d, DEVICE_COMPUTE, r.copied[s], why));
            put_read(&r, 1, r.ring, r.seen);
            if (events) OK(d->ops->event_record(d, DEVICE_COMPUTE, r.used[s], why));
            if (events) OK(d->ops->event_follow(d, DEVICE_COPY, r.used[s], why));
        }
        OK(device_word_write(d, &r.word[0], 1, why));
        OK(d->ops->capture_end(d, &graph, why));
        uint64_t best_us = UINT64_MAX;
        for (int i = 0; i < 5; i++) {
            uint64_t start_us = units_now_us();
            OK(d->ops->graph_launch(d, graph, true, why));
            uint64_t us = wait_for(&r, 0, start_us);
            drain(d, DEVICE_COPY);
            if (us < best_us) best_us = us;
        }
        print_message("128 small copies %s 128 small kernels: %.2f us each\n",
                      events ? "in turn with" : "beside", (double)best_us / 128);
        d->ops->graph_free(d, graph);
    }
    rig_close(&r);
}

/* Runs of pages between a registered region and the device, by both queues, inside a graph and outside. */
static void pages_of_registered_memory(void **state)
{
    (void)state;
    enum { WIDTH = 3000, HEIGHT = 40, HOST_STRIDE = 8192, DEVICE_STRIDE = 4096 };
    struct helm_err err = {0};
    struct rig r;
    rig_open(&r);
    struct device *d = r.d;
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE), region = HOST_STRIDE * HEIGHT;
    int fd = memfd_create("pages", MFD_CLOEXEC);
    assert_true(fd >= 0);
    assert_int_equal(ftruncate(fd, (off_t)(3 * region)), 0);
    char *memory = mmap(NULL, 3 * region, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    assert_ptr_not_equal(memory, MAP_FAILED);
    for (uint64_t i = 0; i < 2 * region; i++) memory[i] = (char)(i * 31 % 251);
    memset(memory + 2 * region, 0x55, region);
    OK(device_host_register(d, "the weights", memory, region, true, why));
    OK(device_host_register(d, "the cache", memory + region, 2 * region, false, why));
    assert_int_equal(device_host_register(d, "the cache", memory + region, page, false, &err), HELM_E_STATE);
    assert_non_null(strstr(err.text, "the cache"));
    assert_int_equal(device_host_register(d, "a part", memory + 3, page, false, &err), HELM_E_USAGE);
    char *target = (char *)r.seen;
    for (int way = 0; way < 2 * DEVICE_QUEUE_COUNT; way++) {
        enum device_queue queue = (enum device_queue)(way % 2);
        const char *from = memory + (way < 2 ? 0 : region);
        struct device_graph *graph = NULL;
        const struct device_copy_2d in = {target, from, DEVICE_STRIDE, HOST_STRIDE, WIDTH, HEIGHT};
        const struct device_copy_2d out = {memory + 2 * region, target, HOST_STRIDE,
                                           DEVICE_STRIDE,       WIDTH,  HEIGHT};
        memset(memory + 2 * region, 0x55, region);
        OK(d->ops->clear(d, queue, target, DEVICE_STRIDE * HEIGHT, why));
        if (way >= 2) OK(d->ops->capture_begin(d, why));
        OK(device_copy_2d(d, queue, DEVICE_TO_DEVICE, &in, why));
        OK(device_copy_2d(d, queue, DEVICE_TO_HOST, &out, why));
        if (way >= 2) OK(d->ops->capture_end(d, &graph, why));
        if (graph) OK(d->ops->graph_launch(d, graph, true, why));
        drain(d, queue);
        for (uint64_t i = 0; i < region; i++)
            if (memory[2 * region + i] != (i % HOST_STRIDE < WIDTH ? from[i] : 0x55))
                fail_msg("way %d: byte %llu", way, (unsigned long long)i);
        if (graph) d->ops->graph_free(d, graph);
    }
    d->ops->host_unregister(d, memory);
    d->ops->host_unregister(d, memory + region);
    OK(device_host_register(d, "all of it", memory, 3 * region, false, why));
    d->ops->host_unregister(d, memory);
    munmap(memory, 3 * region);
    close(fd);
    rig_close(&r);
}

static void *open_gate_later(void *gate)
{
    sleep_ms(300);
    atomic_store((_Atomic uint32_t *)gate, 1);
    return NULL;
}

/* A wait for a sleeping event takes no CPU time: rates of the CPU are measured beside such a wait. */
static void a_sleeping_event(void **state)
{
    (void)state;
    struct rig r;
    rig_open(&r);
    struct device *d = r.d;
    struct device_event *event;
    OK(d->ops->event_create(d, DEVICE_EVENT_SLEEPING, &event, why));
    for (int round = 0; round < 2; round++) {
        pthread_t thread;
        atomic_store(&r.word[2], 0);
        OK(device_word_wait(d, &r.word[2], 1, DEVICE_EQUAL, why));
        OK(d->ops->event_record(d, DEVICE_COMPUTE, event, why));
        const uint64_t start_us = units_now_us(), cpu_us = cpu_time_us();
        assert_int_equal(pthread_create(&thread, NULL, open_gate_later, (void *)&r.word[2]), 0);
        OK(d->ops->event_wait(d, event, why));
        const uint64_t waited_us = units_now_us() - start_us, took_us = cpu_time_us() - cpu_us;
        pthread_join(thread, NULL);
        print_message("a wait of %llu us for a sleeping event took %llu us of a CPU\n",
                      (unsigned long long)waited_us, (unsigned long long)took_us);
        assert_true(waited_us > 250000);
        assert_true(took_us < waited_us / 4);
    }
    d->ops->event_free(d, event);
    rig_close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_captured_ring),
        cmocka_unit_test(a_prefix_across_launches),
        cmocka_unit_test(copies_beside_a_waiting_queue),
        cmocka_unit_test(times_of_words_and_events),
        cmocka_unit_test(pages_of_registered_memory),
        cmocka_unit_test(a_sleeping_event),
    };
    return cmocka_run_group_tests_name("the device's queues", tests, NULL, NULL);
}
