/* Unit tests of worker-gpu/device/device.c and emulated/device.c: memory that copies may touch, copies of
 * several pieces, registered regions, the ring's line of the ledger, counters. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdlib.h>
#include <sys/mman.h>

#include "tests/unit/worker-gpu/device/device_test.h"

static unsigned char *map_pages(size_t bytes)
{
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_ptr_not_equal(memory, MAP_FAILED);
    return memory;
}

/* Runs of a cache's pages: rows of one pool picked into a dense block and back, in either queue, in a graph
 * or not; what lies between the pieces stays. */
static void pieces_go_both_ways(void **state)
{
    (void)state;
    enum { WIDTH = 96, HEIGHT = 7, HOST_STRIDE = 160, DEVICE_STRIDE = 128 };
    struct device *d = open_emulated(8 * MIB, 0, 1000);
    void *vram, *host, *back;
    OK(device_alloc(d, DEVICE_KV, DEVICE_STRIDE * HEIGHT, &vram, why));
    OK(device_host_alloc(d, HOST_STRIDE * HEIGHT, &host, why));
    OK(device_host_alloc(d, HOST_STRIDE * HEIGHT, &back, why));
    uint64_t expected = 0;
    for (int q = 0; q < DEVICE_QUEUE_COUNT; q++) {
        for (int graphed = 0; graphed < 2; graphed++) {
            enum device_queue queue = (enum device_queue)q;
            struct device_graph *graph = NULL;
            for (int i = 0; i < HOST_STRIDE * HEIGHT; i++)
                ((unsigned char *)host)[i] = (unsigned char)(i * 7 + q * 3 + graphed);
            memset(back, 0xee, HOST_STRIDE * HEIGHT);
            memset(vram, 0xdd, DEVICE_STRIDE * HEIGHT);
            const struct device_copy_2d in = {vram, host, DEVICE_STRIDE, HOST_STRIDE, WIDTH, HEIGHT};
            const struct device_copy_2d out = {back, vram, HOST_STRIDE, DEVICE_STRIDE, WIDTH, HEIGHT};
            if (graphed) OK(d->ops->capture_begin(d, why));
            OK(device_copy_2d(d, queue, DEVICE_TO_DEVICE, &in, why));
            OK(device_copy_2d(d, queue, DEVICE_TO_HOST, &out, why));
            if (graphed) {
                OK(d->ops->capture_end(d, &graph, why));
                assert_int_equal(((unsigned char *)vram)[0], 0xdd);
                OK(d->ops->graph_launch(d, graph, true, why));
            }
            drain(d, queue);
            for (int i = 0; i < HOST_STRIDE * HEIGHT; i++)
                assert_int_equal(((unsigned char *)back)[i],
                                 i % HOST_STRIDE < WIDTH ? ((unsigned char *)host)[i] : 0xee);
            for (int i = 0; i < DEVICE_STRIDE * HEIGHT; i++)
                if (i % DEVICE_STRIDE >= WIDTH) assert_int_equal(((unsigned char *)vram)[i], 0xdd);
            if (graph) d->ops->graph_free(d, graph);
        }
        expected += 2 * WIDTH * HEIGHT;
        assert_int_equal(d->copied_bytes[q][DEVICE_TO_DEVICE], expected - (uint64_t)q * 2 * WIDTH * HEIGHT);
        assert_int_equal(d->copied_bytes[q][DEVICE_TO_HOST], expected - (uint64_t)q * 2 * WIDTH * HEIGHT);
    }
    d->ops->host_free(d, host);
    d->ops->host_free(d, back);
    device_free(d, DEVICE_KV, DEVICE_STRIDE * HEIGHT, vram);
    device_close(d);
}

static void pieces_have_rules(void **state)
{
    (void)state;
    struct helm_err err = {0};
    struct device *d = open_emulated(8 * MIB, 0, 1000);
    void *vram, *host;
    OK(device_alloc(d, DEVICE_KV, 1024, &vram, why));
    OK(device_host_alloc(d, 1024, &host, why));
    struct device_copy_2d copy = {vram, host, 64, 64, 65, 2};
    assert_int_equal(device_copy_2d(d, DEVICE_COPY, DEVICE_TO_DEVICE, &copy, &err), HELM_E_USAGE);
    assert_non_null(strstr(err.text, "65 bytes"));
    copy.width = 64;
    copy.height = 16;
    OK(device_copy_2d(d, DEVICE_COPY, DEVICE_TO_DEVICE, &copy, why));
    copy.height = 17; /* beyond the end */
    assert_int_equal(device_copy_2d(d, DEVICE_COPY, DEVICE_TO_DEVICE, &copy, &err), HELM_E_USAGE);
    copy.height = 0;
    OK(device_copy_2d(d, DEVICE_COPY, DEVICE_TO_DEVICE, &copy, why));
    OK(device_copy(d, DEVICE_COPY, DEVICE_TO_DEVICE, NULL, NULL, 0, why));
    drain(d, DEVICE_COPY);
    d->ops->host_free(d, host);
    device_free(d, DEVICE_KV, 1024, vram);
    device_close(d);
}

/* Weights read-only, cache, lanes: several regions of one mapping, each for itself. */
static void regions_are_registered(void **state)
{
    (void)state;
    enum { PAGE = 4096 };
    struct helm_err err = {0};
    struct device *d = open_emulated(8 * MIB, 0, 1000);
    unsigned char *memory = map_pages(16 * PAGE);
    void *vram;
    OK(device_alloc(d, DEVICE_RING, 4 * PAGE, &vram, why));
    assert_int_equal(device_copy(d, DEVICE_COPY, DEVICE_TO_DEVICE, vram, memory, PAGE, &err), HELM_E_USAGE);
    assert_non_null(strstr(err.text, "nor registered"));
    OK(device_host_register(d, "the lanes", memory, PAGE, false, why));
    OK(device_host_register(d, "the KV cache", memory + PAGE, 7 * PAGE, false, why));
    OK(device_host_register(d, "the weights", memory + 8 * PAGE, 8 * PAGE, true, why));
    assert_int_equal(device_host_register(d, "the weights", memory + 7 * PAGE, PAGE, true, &err),
                     HELM_E_STATE);
    assert_non_null(strstr(err.text, "the weights (4.00 KiB"));
    assert_int_equal(device_host_register(d, "half a page", memory + 100, PAGE, true, &err), HELM_E_USAGE);
    assert_int_equal(device_host_register(d, "nothing", memory, 0, true, &err), HELM_E_USAGE);
    OK(device_copy(d, DEVICE_COPY, DEVICE_TO_DEVICE, vram, memory + 12 * PAGE, 4 * PAGE, why));
    OK(device_copy(d, DEVICE_COPY, DEVICE_TO_HOST, memory + 4 * PAGE, vram, 4 * PAGE, why));
    assert_int_equal(device_copy(d, DEVICE_COPY, DEVICE_TO_HOST, memory + 8 * PAGE, vram, PAGE, &err),
                     HELM_E_USAGE);
    assert_non_null(strstr(err.text, "read-only"));
    assert_int_equal(device_copy(d, DEVICE_COPY, DEVICE_TO_DEVICE, vram, memory + 13 * PAGE, 4 * PAGE, &err),
                     HELM_E_USAGE);
    assert_int_equal(d->ops->clear(d, DEVICE_COPY, memory, PAGE, &err), HELM_E_USAGE);
    drain(d, DEVICE_COPY);
    d->ops->host_unregister(d, memory + 8 * PAGE);
    assert_int_equal(device_copy(d, DEVICE_COPY, DEVICE_TO_DEVICE, vram, memory + 12 * PAGE, PAGE, &err),
                     HELM_E_USAGE);
    OK(device_host_register(d, "the weights", memory + 8 * PAGE, 8 * PAGE, false, why));
    d->ops->host_unregister(d, memory + 8 * PAGE);
    /* a mapping that its owner made read-only takes the promise */
    assert_int_equal(mprotect(memory + 8 * PAGE, 8 * PAGE, PROT_READ), 0);
    assert_int_equal(device_host_register(d, "the weights", memory + 8 * PAGE, 8 * PAGE, false, &err),
                     HELM_E_PERMISSION);
    assert_non_null(strstr(err.text, "read-only"));
    OK(device_host_register(d, "the weights", memory + 8 * PAGE, 8 * PAGE, true, why));
    d->ops->host_unregister(d, memory + 8 * PAGE);
    d->ops->host_unregister(d, memory + PAGE);
    d->ops->host_unregister(d, memory);
    device_free(d, DEVICE_RING, 4 * PAGE, vram);
    munmap(memory, 16 * PAGE);
    device_close(d);
}

/* The ring counts under the ceiling, under its own name. */
static void the_ring_is_in_the_ledger(void **state)
{
    (void)state;
    struct helm_err err = {0};
    struct device *d = open_emulated(8 * MIB, 0, 1000);
    void *ring, *weights;
    uint64_t left = 8 * MIB - device_used(d);
    OK(device_alloc(d, DEVICE_RING, 3 * MIB, &ring, why));
    assert_int_equal(device_alloc(d, DEVICE_WEIGHTS, left - 3 * MIB + 1, &weights, &err), HELM_E_CAPACITY);
    OK(device_alloc(d, DEVICE_WEIGHTS, left - 3 * MIB, &weights, why));
    struct ledger ledger;
    bool seen = false;
    device_ledger(d, &ledger);
    for (uint32_t i = 0; i < ledger.line_count; i++)
        seen |= strcmp(ledger.line[i].what, "ring") == 0 && ledger.line[i].bytes == 3 * MIB;
    assert_true(seen);
    assert_int_equal(ledger.total, 8 * MIB);
    device_free(d, DEVICE_RING, 3 * MIB, ring);
    assert_int_equal(device_alloc(d, DEVICE_RING, 3 * MIB + 1, &ring, &err), HELM_E_CAPACITY);
    assert_non_null(strstr(err.text, "ring"));
    device_free(d, DEVICE_WEIGHTS, left - 3 * MIB, weights);
    device_close(d);
}

/* Small copies keep the speed that is set, one after the other. */
static void small_copies_keep_the_speed(void **state)
{
    (void)state;
    enum { PIECE = 64 << 10, PIECES = 200 };
    struct device *d = open_emulated(8 * MIB, 64 * MIB, 1000); /* a piece: 1 ms */
    void *vram, *host;
    OK(device_alloc(d, DEVICE_RING, PIECE, &vram, why));
    OK(device_host_alloc(d, PIECE, &host, why));
    memset(host, 1, PIECE);
    uint64_t start_us = units_now_us();
    for (int i = 0; i < PIECES; i++)
        OK(device_copy(d, DEVICE_COPY, DEVICE_TO_DEVICE, vram, host, PIECE, why));
    drain(d, DEVICE_COPY);
    uint64_t spent_us = units_now_us() - start_us;
    assert_true(spent_us >= 194000);
    assert_int_equal(d->copied_bytes[DEVICE_COPY][DEVICE_TO_DEVICE], (uint64_t)PIECE * PIECES);
    assert_int_equal(d->copied_bytes[DEVICE_COMPUTE][DEVICE_TO_DEVICE], 0);
    d->ops->host_free(d, host);
    device_free(d, DEVICE_RING, PIECE, vram);
    device_close(d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pieces_go_both_ways),         cmocka_unit_test(pieces_have_rules),
        cmocka_unit_test(regions_are_registered),      cmocka_unit_test(the_ring_is_in_the_ledger),
        cmocka_unit_test(small_copies_keep_the_speed),
    };
    return cmocka_run_group_tests_name("worker-gpu/copies", tests, NULL, NULL);
}
