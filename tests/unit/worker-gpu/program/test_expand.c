/* Unit tests of worker-gpu/program/ring.c, and of the emulated device's expansion: tables get where slices
 * look for them, tables that are none are refused, and what is expanded is what was packed. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "common/formats/packed.h"
#include "common/formats/random_blocks.h"
#include "common/base/units.h"
#include "worker-gpu/program/ring.h"

#define PARTS 3 /* of an operation of a GPU */
#define ROWS  48
#define COLS  1000 /* tiles end inside rows */
#define CELLS (2 * TENSOR_ROLE_COUNT)

struct bench {
    struct device *device;
    struct model model;
    struct gpu_matrix matrix[CELLS];
    struct gpu_weights weights;
    uint16_t *value[PARTS];
    uint32_t *table[PARTS]; /* in pinned memory, the groups after them */
    void *host;
};

static const enum tensor_role roles[PARTS] = {TENSOR_Q, TENSOR_K, TENSOR_V};

static void bench_open(struct bench *b)
{
    const struct device_options options = {.name = "emulated", .vram_bytes = 64 * MIB};
    struct helm_err err = {0};
    uint32_t state = 7;
    memset(b, 0, sizeof *b);
    assert_int_equal(device_open(&options, &b->device, &err), 0);
    b->model.config.layers = 1;
    b->weights = (struct gpu_weights){.model = &b->model, .matrix = b->matrix, .device = b->device};
    const uint64_t each = 4096 + packed_matrix_bytes_max(ROWS, COLS);
    assert_int_equal(device_host_alloc(b->device, PARTS * each, &b->host, &err), 0);
    for (int i = 0; i < PARTS; i++) {
        char *at = (char *)b->host + (uint64_t)i * each;
        b->value[i] = calloc(ROWS * COLS, sizeof *b->value[i]);
        assert_non_null(b->value[i]);
        for (uint32_t v = 0; v < ROWS * COLS; v++) {
            state = state * 1664525u + 1013904223u;
            uint32_t exponent =
                state >> 28 ? 118 + (state >> 9) % 6 : (state >> 12) & 0xff; /* some far off */
            b->value[i][v] = (uint16_t)((state & 0x8000) | exponent << 7 | (state >> 20 & 0x7f));
        }
        b->table[i] = (uint32_t *)(void *)at;
        assert_int_equal(packed_write_matrix(b->value[i], ROWS, COLS, at + 4096, b->table[i], &err), 0);
        b->matrix[TENSOR_ROLE_COUNT + roles[i]] = (struct gpu_matrix){.host = at + 4096,
                                                                      .format = FORMAT_BF16_PACKED,
                                                                      .offset = b->table[i],
                                                                      .rows = ROWS,
                                                                      .cols = COLS};
    }
}

static void bench_close(struct bench *b)
{
    for (int i = 0; i < PARTS; i++) free(b->value[i]);
    b->device->ops->host_free(b->device, b->host);
    device_close(b->device);
}

static void drain(struct bench *b, enum device_queue queue)
{
    struct device_event *event;
    struct device_ops const *ops = b->device->ops;
    struct helm_err err = {0};
    assert_int_equal(ops->event_create(b->device, DEVICE_EVENT_PLAIN, &event, &err), 0);
    assert_int_equal(ops->event_record(b->device, queue, event, &err), 0);
    if (ops->event_wait(b->device, event, &err)) fail_msg("%s", err.text);
    ops->event_free(b->device, event);
}

/* A slice of the second and third groups of three matrices, as a ring has it. */
static void a_slice_is_expanded_as_it_was(void **state)
{
    (void)state;
    struct bench b;
    struct helm_err err = {0};
    struct gpu_expand expand;
    void *memory = NULL, *ring = NULL;
    const uint32_t first = 1, groups = 2, rows = groups * PACKED_ROWS;
    const uint64_t raw = rows * COLS * 2ull, room = (raw + RING_ALIGN - 1) / RING_ALIGN * RING_ALIGN;
    bench_open(&b);
    expand = (struct gpu_expand){.slice_bytes = 3 * room, .bytes = 3 * room + 3 * 256};
    assert_int_equal(device_alloc(b.device, DEVICE_EXPANDED, expand.bytes, &memory, &err), 0);
    expand.memory = memory;
    if (gpu_expand_take_tables(&expand, &b.weights, b.device, &err)) fail_msg("%s", err.text);
    assert_true(b.weights.offsets_known);

    assert_int_equal(device_alloc(b.device, DEVICE_RING, MIB, &ring, &err), 0);
    struct op op = {.kind = OP_EXPAND, .as.expand.parts = PARTS};
    struct gpuk_expand_part *part = op.as.expand.part;
    uint64_t at = 0;
    for (int i = 0; i < PARTS; i++) {
        const struct gpu_matrix *m = gpu_matrix_of(&b.weights, roles[i], 0);
        const uint64_t from = packed_at(m->offset, first),
                       bytes = packed_at(m->offset, first + groups) - from;
        assert_memory_equal(m->offset_device, m->offset,
                            packed_offsets_bytes(ROWS)); /* it is host memory here */
        assert_int_equal(device_copy(b.device, DEVICE_COPY, DEVICE_TO_DEVICE, (char *)ring + at,
                                     (const char *)m->host + from, bytes, &err),
                         0);
        part[i] = (struct gpuk_expand_part){.format = FORMAT_BF16_PACKED,
                                            .weight = (char *)ring + at,
                                            .offset = m->offset_device + first,
                                            .out = expand.memory + (uint64_t)i * room,
                                            .rows = rows,
                                            .cols = COLS};
        at += bytes;
    }
    drain(&b, DEVICE_COPY);
    assert_int_equal(device_run(b.device, &op, &err), 0);
    drain(&b, DEVICE_COMPUTE);
    for (int i = 0; i < PARTS; i++)
        assert_memory_equal(part[i].out, b.value[i] + first * PACKED_ROWS * COLS, (size_t)raw);
    op.as.expand.parts = GPUK_EXPAND_PARTS_MAX + 1;
    assert_int_equal(device_run(b.device, &op, &err), HELM_E_LIMIT);
    device_free(b.device, DEVICE_RING, MIB, ring);
    device_free(b.device, DEVICE_EXPANDED, expand.bytes, memory);
    bench_close(&b);
}

/* The table decides where copies read: nothing is copied by one that cannot be. */
static void tables_that_are_none_are_refused(void **state)
{
    (void)state;
    static const struct {
        uint32_t entry;
        int64_t change;
    } cases[] = {{0, 1}, {1, 1 << 20}, {2, -4000}, {3, 1 << 20}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct bench b;
        struct helm_err err = {0};
        struct gpu_expand expand = {.slice_bytes = 1024, .bytes = 1024 + 3 * 256};
        void *memory = NULL;
        bench_open(&b);
        b.table[1][cases[i].entry] = (uint32_t)(b.table[1][cases[i].entry] + cases[i].change);
        assert_int_equal(device_alloc(b.device, DEVICE_EXPANDED, expand.bytes, &memory, &err), 0);
        expand.memory = memory;
        assert_int_equal(gpu_expand_take_tables(&expand, &b.weights, b.device, &err), HELM_E_FORMAT);
        assert_non_null(strstr(err.text, "a packed matrix of 48 x 1000"));
        assert_false(b.weights.offsets_known);
        drain(&b, DEVICE_COPY);
        device_free(b.device, DEVICE_EXPANDED, expand.bytes, memory);
        bench_close(&b);
    }
}

/* Products of a chunk's tokens with blocks as they lie are those with what they are expanded to; of too many
 * tokens they are refused. */
static void blocks_are_multiplied_as_they_lie(void **state)
{
    (void)state;
    enum { TOKENS = 5, BLOCK_COLS = 512 };
    const struct device_options options = {.name = "emulated", .vram_bytes = 64 * MIB};
    struct bench b = {0};
    struct helm_err err = {0};
    assert_int_equal(device_open(&options, &b.device, &err), 0);
    const uint64_t bytes = tensor_format_bytes(FORMAT_Q4_K, ROWS, BLOCK_COLS);
    void *blocks = malloc(bytes), *expanded = malloc(ROWS * BLOCK_COLS * 2);
    uint16_t *x = malloc(TOKENS * BLOCK_COLS * sizeof *x);
    float *out[2] = {calloc(TOKENS * ROWS, sizeof(float)), calloc(TOKENS * ROWS, sizeof(float))};
    assert_true(blocks && expanded && x && out[0] && out[1]);
    random_blocks_fill(FORMAT_Q4_K, RANDOM_WEIGHTS, blocks, bytes);
    for (uint32_t i = 0; i < TOKENS * BLOCK_COLS; i++)
        x[i] = (uint16_t)(0x3f00 + i * 37 % 256 + i % 2 * 0x8000);
    struct op op = {.kind = OP_EXPAND, .as.expand.parts = 1};
    op.as.expand.part[0] = (struct gpuk_expand_part){
        .format = FORMAT_Q4_K, .weight = blocks, .out = expanded, .rows = ROWS, .cols = BLOCK_COLS};
    assert_int_equal(device_run(b.device, &op, &err), 0);
    for (int way = 0; way < 2; way++) {
        op = (struct op){.kind = OP_MATMUL, .tokens = TOKENS};
        op.as.matmul = (struct op_matmul){.format = way ? FORMAT_Q4_K : FORMAT_BF16,
                                          .dtype = DTYPE_BF16,
                                          .out_dtype = DTYPE_F32,
                                          .rows = ROWS,
                                          .cols = BLOCK_COLS,
                                          .out_stride = ROWS,
                                          .w = way ? blocks : expanded,
                                          .x = x,
                                          .out = out[way]};
        assert_int_equal(device_run(b.device, &op, &err), 0);
    }
    drain(&b, DEVICE_COMPUTE);
    assert_memory_equal(out[0], out[1], TOKENS * ROWS * sizeof(float));
    float most = 0;
    for (uint32_t i = 0; i < TOKENS * ROWS; i++) most = out[0][i] > most ? out[0][i] : most;
    assert_true(most > 0);
    op.tokens = GPUK_WIDE_TOKENS + 1;
    assert_int_equal(device_run(b.device, &op, &err), HELM_E_LIMIT);
    op.as.matmul.format = FORMAT_Q6_K;
    op.tokens = GPUK_BLOCKS_TOKENS + 1;
    assert_int_equal(device_run(b.device, &op, &err), HELM_E_LIMIT);
    for (int way = 0; way < 2; way++) free(out[way]);
    free(x), free(expanded), free(blocks);
    device_close(b.device);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_slice_is_expanded_as_it_was),
        cmocka_unit_test(tables_that_are_none_are_refused),
        cmocka_unit_test(blocks_are_multiplied_as_they_lie),
    };
    return cmocka_run_group_tests_name("worker-gpu/expand", tests, NULL, NULL);
}
