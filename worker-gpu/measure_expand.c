/* How fast the device expands packed weights. See measure_private.h; called by measure_kernels.c.
 *
 * As steps do it: a slice of the ring at a time, to one place that all of them take. One group of numbers
 * like weights is made and packed on the host and copied to as many places as slices have groups; slices lie
 * one behind the other, past the caches, as what comes over the link does. */
#include <string.h>

#include "common/packed.h"
#include "common/units.h"
#include "worker-gpu/measure_private.h"
#include "worker-gpu/ring.h"

#define COLS         4096
#define GROUP_VALUES (PACKED_ROWS * COLS)
#define SLICES_MAX   24
#define SLICE_LEAST  MIB /* of a device that is a CPU */
#define VALUE_SCALE  0x1p-39f
#define VALUE_DRAWS  4

/* Sums of uniform numbers: nearly normal, of the size of weights, so with exponents like theirs. */
static void make_values(uint16_t *value)
{
    uint32_t state = 12345;
    for (uint32_t i = 0; i < GROUP_VALUES; i++) {
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

/* The group and the table are in the host's pinned memory, behind each other. */
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
    place_all(m, w->times, &p);
    for (uint32_t i = 0; i < w->ops && !rc; i++) {
        const struct gpuk_expand_part part = {.packed = m->weights + p.packed_at + i * p.packed_bytes,
                                              .offset =
                                                  (const uint32_t *)(const void *)(m->weights + p.table_at),
                                              .out = m->weights,
                                              .rows = p.groups * PACKED_ROWS,
                                              .cols = COLS};
        rc = m->device->kernels.expand(m->device, &part, 1, err);
    }
    return rc;
}

int measure_expand_run(struct measure *m, double operation, struct helm_err *err)
{
    uint16_t *value = (uint16_t *)(void *)(m->host + 2 * MIB);
    struct measure_samples samples;
    struct packed_measure size;
    struct place p;
    make_values(value);
    packed_measure(value, GROUP_VALUES, &size);
    int rc = packed_write(&size, value, GROUP_VALUES, m->host, err);
    place_all(m, size.bytes, &p);
    if (rc || p.slices == 0) return rc; /* a device with room for none: nothing is streamed to it packed */
    const struct measure_work w = {.m = m, .issue = issue_expand, .ops = p.slices, .times = size.bytes};
    rc = put_slices(m, &p, size.bytes, err);
    if (!rc) rc = measure_time_works(&w, 1, true, &samples, err);
    if (rc) return rc;
    measure_to_rate(&samples, (double)p.slice_bytes * p.slices, operation * p.slices);
    measure_print(m, "gpu.expand", 0, &samples);
    return 0;
}
