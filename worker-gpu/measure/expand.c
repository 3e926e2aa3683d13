/* How fast the device expands packed weights, and multiplies one token by them. See measure/private.h; called
 * by measure/kernels.c.
 *
 * As steps do it: slices of the ring are expanded one at a time, all to the same place, and whole operations
 * of layers are multiplied. One group of numbers like weights is made and packed on the host and copied to as
 * many places as matrices have groups; slices and matrices are contiguous and exceed the caches.
 */
#include <string.h>

#include "common/formats/packed.h"
#include "common/base/units.h"
#include "worker-gpu/measure/private.h"

#define COLS         4096
#define GROUP_VALUES (PACKED_ROWS * COLS)
#define SLICES_MAX   24
#define SLICE_LEAST  MIB /* of a device that is a CPU */
#define VALUE_SCALE  0x1p-39f
#define VALUE_DRAWS  4

/* Sums of uniform numbers: nearly normal, of the size of weights, so with exponents like theirs. */
static void make_values(uint16_t *value, uint32_t count)
{
    uint32_t state = 12345;
    for (uint32_t i = 0; i < count; i++) {
        float sum = 0;
        uint32_t bits;
        for (int d = 0; d < VALUE_DRAWS; d++) {
            state = state * 1664525u + 1013904223u;
            sum += (float)(int32_t)state * VALUE_SCALE;
        }
        memcpy(&bits, &sum, sizeof bits);
        value[i] = (uint16_t)(bits >> 16);
    }
}

/* On the device, in its weights: the expanded slice, the table of offsets, packed slices. */
struct place {
    uint32_t groups, slices; /* of a slice; of them */
    uint64_t slice_bytes, packed_bytes, table_at, packed_at;
};

static void place_all(const struct measure *m, uint64_t group_bytes, struct place *p)
{
    uint64_t values = (uint64_t)GROUP_VALUES * sizeof(uint16_t), host = 0;
    p->slice_bytes = m->emulated ? SLICE_LEAST : RING_PACKED_SLICE_BYTES;
    p->groups = (uint32_t)(p->slice_bytes / values);
    p->packed_bytes = p->groups * group_bytes;
    p->table_at = p->slice_bytes;
    p->packed_at = p->table_at + ((p->groups + 1) * sizeof(uint32_t) + 4095) / 4096 * 4096;
    host = m->weight_bytes > p->packed_at ? (m->weight_bytes - p->packed_at) / p->packed_bytes : 0;
    p->slices = host < SLICES_MAX ? (uint32_t)host : SLICES_MAX;
    if (m->emulated && p->slices > 2) p->slices = 2;
}

/* The group and the table are in the host's pinned memory, one after the other. */
static int put_slices(struct measure *m, const struct place *p, uint64_t group_bytes, struct helm_err *err)
{
    uint32_t *table = (uint32_t *)(void *)(m->host + MIB);
    for (uint32_t g = 0; g <= p->groups; g++) table[g] = (uint32_t)(g * (group_bytes / PACKED_ALIGN));
    int rc = device_copy(m->device, DEVICE_COMPUTE, DEVICE_TO_DEVICE, m->weights + p->table_at, table,
                         (p->groups + 1) * sizeof *table, err);
    for (uint64_t g = 0; g < (uint64_t)p->groups * p->slices && !rc; g++)
        rc = device_copy(m->device, DEVICE_COMPUTE, DEVICE_TO_DEVICE,
                         m->weights + p->packed_at + g * group_bytes, m->host, group_bytes, err);
    return rc ? rc : measure_drain(m, DEVICE_COMPUTE, err);
}

static int issue_expand(const struct measure_work *w, struct helm_err *err)
{
    const struct measure *m = w->m;
    struct place p;
    int rc = 0;
    place_all(m, w->group_bytes, &p);
    for (uint32_t i = 0; i < w->ops && !rc; i++) {
        const struct op op = {.kind = OP_EXPAND,
                              .as.expand = {.parts = 1,
                                            .part = {{.format = FORMAT_BF16_PACKED,
                                                      .weight = m->weights + p.packed_at + i * p.packed_bytes,
                                                      .offset = (const uint32_t *)(const void *)(m->weights +
                                                                                                 p.table_at),
                                                      .out = m->weights,
                                                      .rows = p.groups * PACKED_ROWS,
                                                      .cols = COLS}}}};
        rc = device_run(m->device, &op, err);
    }
    return rc;
}

int measure_expand_run(struct measure *m, double operation, struct helm_err *err)
{
    uint16_t *value = (uint16_t *)(void *)(m->host + 2 * MIB);
    struct measure_samples samples;
    struct packed_measure size;
    struct place p;
    make_values(value, GROUP_VALUES);
    packed_measure(value, GROUP_VALUES, &size);
    int rc = packed_write(&size, value, GROUP_VALUES, m->host, err);
    place_all(m, size.bytes, &p);
    if (rc || p.slices == 0) return rc; /* a device with room for none: nothing is streamed to it packed */
    const struct measure_work w = {.m = m, .issue = issue_expand, .ops = p.slices, .group_bytes = size.bytes};
    rc = put_slices(m, &p, size.bytes, err);
    if (!rc) rc = measure_time_works(&w, 1, true, &samples, err);
    if (rc) return rc;
    measure_to_rate(&samples, (double)p.slice_bytes * p.slices, operation * p.slices);
    measure_print(m, "gpu.expand", 0, &samples);
    return 0;
}

/* ---- blocks ---- */

struct blocks {
    uint64_t bytes; /* of a slice */
    uint32_t rows, cols;
};

static struct blocks blocks_of(const struct measure *m)
{
    const uint64_t slice = m->emulated ? SLICE_LEAST : RING_PACKED_SLICE_BYTES;
    struct blocks b = {.rows = (uint32_t)(slice / sizeof(uint16_t) / COLS), .cols = COLS};
    b.bytes = tensor_format_bytes(m->format, b.rows, b.cols);
    return b;
}

static int issue_blocks(const struct measure_work *w, struct helm_err *err)
{
    const struct measure *m = w->m;
    const struct blocks b = blocks_of(m);
    int rc = 0;
    for (uint32_t i = 0; i < w->ops && !rc; i++) {
        const struct op op = {.kind = OP_EXPAND,
                              .as.expand = {.parts = 1,
                                            .part = {{.format = m->format,
                                                      .weight = m->weights + i * b.bytes,
                                                      .out = measure_room(m),
                                                      .rows = b.rows,
                                                      .cols = b.cols}}}};
        rc = device_run(m->device, &op, err);
    }
    return rc;
}

int measure_expand_blocks(struct measure *m, double operation, struct helm_err *err)
{
    const struct blocks b = blocks_of(m);
    const uint64_t fit = m->weight_bytes / b.bytes;
    struct measure_samples samples;
    const struct measure_work w = {.m = m,
                                   .issue = issue_blocks,
                                   .ops = fit < SLICES_MAX ? (uint32_t)fit : SLICES_MAX};
    if (w.ops == 0) return 0; /* a device with room for none */
    int rc = measure_time_works(&w, 1, true, &samples, err);
    if (rc) return rc;
    measure_to_rate(&samples, (double)b.rows * b.cols * sizeof(uint16_t) * w.ops, operation * w.ops);
    measure_print(m, "gpu.expand", 0, &samples);
    return 0;
}

/* ---- products ---- */

#define LAYERS_MAX 6

/* On the device, in its weights: for both widths of a layer's matrices a table, then layers of groups. */
struct products {
    const struct measure_shape *shape;
    uint64_t group_bytes[2]; /* of hidden columns, of inner ones */
    uint64_t table_at[2], packed_at, layer_bytes;
    uint32_t layers;
};

static bool is_wide(const struct measure_shape *s, const struct gpuk_linear_args *args)
{
    return args->cols == s->inner;
}

/* Operation `index` with its matrices packed from *at on, which becomes where the next one's are. */
static struct gpuk_linear_args packed_linear(const struct measure *m, const struct products *p,
                                             uint32_t index, uint64_t *at)
{
    struct gpuk_linear_args args = measure_linear_args(m, p->shape, index);
    const bool wide = is_wide(p->shape, &args);
    args.format = FORMAT_BF16_PACKED;
    for (uint32_t s = 0; s < args.segments; s++) {
        args.segment[s].weight = m->weights + *at;
        args.segment[s].offset = (const uint32_t *)(const void *)(m->weights + p->table_at[wide]);
        *at += args.segment[s].rows / PACKED_ROWS * p->group_bytes[wide];
    }
    return args;
}

static int issue_products(const struct measure_work *w, struct helm_err *err)
{
    const struct products *p = w->products;
    uint64_t at = p->packed_at;
    int rc = 0;
    for (uint32_t i = 0; i < w->ops && !rc; i++) {
        const struct op op = {.kind = OP_GEMV,
                              .workspace = w->m->kernels->linear_work,
                              .as.linear = packed_linear(w->m, p, i, &at)};
        rc = device_run(w->m->device, &op, err);
    }
    return rc;
}

/* Whether the device multiplies a layer of this shape packed, and how many fit its memory. */
static bool place_products(const struct measure *m, struct products *p)
{
    const struct measure_shape *s = p->shape;
    const uint32_t most = s->inner > s->q + 2 * s->kv ? s->inner : s->q + 2 * s->kv;
    const uint64_t table = ((uint64_t)most / PACKED_ROWS * sizeof(uint32_t) + 8191) / 4096 * 4096;
    bool takes = s->hidden != s->inner && s->hidden % PACKED_ROWS == 0 && s->kv % PACKED_ROWS == 0;
    p->table_at[1] = table;
    p->packed_at = 2 * table;
    for (uint32_t op = 0; op < MEASURE_LAYER_OPS; op++) {
        const struct gpuk_linear_args args = packed_linear(m, p, op, &p->layer_bytes);
        takes &= (args.cols == s->hidden || is_wide(s, &args)) &&
                 m->device->ask.linear_takes(m->device, &args, GPUK_ONE);
    }
    uint64_t fit = m->weight_bytes > p->packed_at ? (m->weight_bytes - p->packed_at) / p->layer_bytes : 0;
    p->layers = m->emulated ? fit > 0 : fit < LAYERS_MAX ? (uint32_t)fit : LAYERS_MAX;
    return takes && p->layers > 0;
}

/* Groups of the width that each matrix has, contiguous, from pinned memory. */
static int put_products(struct measure *m, const struct products *p, char *const group[2],
                        struct helm_err *err)
{
    uint32_t *table = (uint32_t *)(void *)(m->host + MIB);
    uint64_t at = p->packed_at, entries = (p->table_at[1] - p->table_at[0]) / sizeof *table;
    int rc = 0;
    for (int wide = 0; wide < 2 && !rc; wide++) {
        for (uint64_t g = 0; g < entries; g++)
            table[g] = (uint32_t)(g * (p->group_bytes[wide] / PACKED_ALIGN));
        rc = device_copy(m->device, DEVICE_COMPUTE, DEVICE_TO_DEVICE, m->weights + p->table_at[wide], table,
                         entries * sizeof *table, err);
        if (!rc) rc = measure_drain(m, DEVICE_COMPUTE, err);
    }
    for (uint32_t i = 0; i < p->layers * MEASURE_LAYER_OPS && !rc; i++) {
        uint64_t end = at;
        const struct gpuk_linear_args args = packed_linear(m, p, i % MEASURE_LAYER_OPS, &end);
        const bool wide = is_wide(p->shape, &args);
        for (; at < end && !rc; at += p->group_bytes[wide])
            rc = device_copy(m->device, DEVICE_COMPUTE, DEVICE_TO_DEVICE, m->weights + at, group[wide],
                             p->group_bytes[wide], err);
    }
    return rc ? rc : measure_drain(m, DEVICE_COMPUTE, err);
}

int measure_packed_run(struct measure *m, double operation, struct helm_err *err)
{
    const struct measure_shape *s = m->kernels->large;
    struct products p = {.shape = s};
    struct measure_samples samples;
    const uint32_t values[2] = {PACKED_ROWS * s->hidden, PACKED_ROWS * s->inner};
    const uint64_t narrow_at = 2 * MIB + 2 * (uint64_t)values[1],
                   wide_at = narrow_at + packed_group_bytes_max(values[0]);
    uint16_t *value = (uint16_t *)(void *)(m->host + 2 * MIB);
    char *const group[2] = {m->host + narrow_at, m->host + wide_at};
    int rc = 0;
    if (wide_at + packed_group_bytes_max(values[1]) > m->host_bytes) return 0;
    make_values(value, values[1]);
    for (int wide = 0; wide < 2 && !rc; wide++) {
        struct packed_measure size;
        packed_measure(value, values[wide], &size);
        p.group_bytes[wide] = size.bytes;
        rc = packed_write(&size, value, values[wide], group[wide], err);
    }
    if (rc || !place_products(m, &p)) return rc;
    const struct measure_work w = {.m = m,
                                   .issue = issue_products,
                                   .ops = p.layers * MEASURE_LAYER_OPS,
                                   .products = &p};
    rc = put_products(m, &p, group, err);
    if (!rc) rc = measure_time_works(&w, 1, true, &samples, err);
    if (rc) return rc;
    measure_to_rate(&samples, measure_ops_bytes(s, FORMAT_BF16, w.ops), operation * w.ops);
    measure_print(m, "gpu.gemv_packed", 0, &samples);
    return 0;
}
