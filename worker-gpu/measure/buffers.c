/* The device's buffers for measuring its kernels: weights of a real shape, the buffers of a step, the step
 * block. See measure/private.h. Called by measure.c; measure_kernels_close gives everything back. */
#include <stdlib.h>

#include "common/base/units.h"
#include "worker-gpu/measure/private.h"

static const struct measure_shape shapes[] = {{4096, 4096, 1024, 12288},
                                              {2560, 4096, 1024, 9728},
                                              {2048, 2048, 1024, 6144},
                                              {1024, 2048, 1024, 3072}};
#define SHAPES (sizeof shapes / sizeof *shapes)

/* Weights in VRAM: as much as there is room for, of what was asked. */
static int take_weights(struct measure *m, uint64_t bytes, struct helm_err *err)
{
    int rc = helm_fail(err, HELM_E_CAPACITY, "%llu bytes of VRAM are too few to measure with",
                       (unsigned long long)bytes);
    for (; bytes >= measure_layer_bytes(&shapes[SHAPES - 1], FORMAT_BF16); bytes /= 2) {
        void *memory = NULL;
        m->weight_bytes = bytes / 4096 * 4096;
        rc = device_alloc(m->device, DEVICE_WEIGHTS, m->weight_bytes, &memory, err);
        m->weights = memory;
        if (!rc || (rc != HELM_E_NOMEM && rc != HELM_E_CAPACITY)) break;
    }
    return rc;
}

static int take_buffers(struct measure *m, struct helm_err *err)
{
    struct device *d = m->device;
    struct measure_kernels *k = m->kernels;
    const struct measure_shape *s = k->large;
    uint64_t tokens = MEASURE_TOKENS_MAX,
             head = (uint64_t)(MEASURE_HEADS + 2 * MEASURE_KV_HEADS) * MEASURE_HEAD_DIM,
             width = s->q + 2 * s->kv > head ? s->q + 2 * s->kv : head;
    uint32_t widest =
        s->inner > MEASURE_HEADS * MEASURE_HEAD_DIM ? s->inner : MEASURE_HEADS * MEASURE_HEAD_DIM;
    uint64_t linear = d->ask.gemm_small_workspace(GPUK_BATCH_MAX, widest);
    if (d->ask.gemv_workspace(widest) > linear) linear = d->ask.gemv_workspace(widest);
    k->attention_work_bytes = d->ask.attention_workspace(GPUK_BATCH_MAX, MEASURE_HEADS, MEASURE_HEAD_DIM);
    const struct {
        void **at;
        uint64_t bytes;
    } parts[] = {
        {(void **)&k->block, sizeof(struct measure_block)},
        {(void **)&k->norm, (uint64_t)s->hidden * sizeof(float)},
        {(void **)&k->tiny, 2 * MEASURE_TINY * sizeof(float)},
        {(void **)&k->x, tokens * widest * sizeof(float)},
        {(void **)&k->a, tokens * widest * sizeof(float)},
        {(void **)&k->act, tokens * s->inner * sizeof(float)},
        {(void **)&k->qkv, tokens * width * sizeof(float)},
        {(void **)&k->gate_up, tokens * 2 * s->inner * sizeof(float)},
        {(void **)&k->rope_table, tokens * MEASURE_HEAD_DIM * sizeof(float)},
        {&k->h, tokens * s->hidden * sizeof(float)},
        {&k->q, tokens * MEASURE_HEADS * MEASURE_HEAD_DIM * sizeof(float)},
        {&k->linear_work, linear},
        {&k->attention_work, k->attention_work_bytes},
        {&k->matmul_work, d->ask.matmul_workspace},
    };
    uint64_t bytes = 0;
    for (int pass = 0; pass < 2; pass++) {
        bytes = 0;
        for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
            if (pass) *parts[i].at = k->memory + bytes;
            bytes += (parts[i].bytes + 255) / 256 * 256;
        }
        if (pass) break;
        void *memory = NULL;
        int rc = device_alloc(d, DEVICE_WORKSPACE, bytes, &memory, err);
        if (rc) return rc;
        k->memory = memory;
        k->memory_bytes = bytes;
    }
    return d->ops->clear(d, DEVICE_COMPUTE, k->memory, k->memory_bytes, err);
}

/* Copies `count` floats of the pinned memory after the step block to the device. */
static int put_floats(struct measure *m, float *to, const float *from, uint32_t count, struct helm_err *err)
{
    int rc = device_copy(m->device, DEVICE_COMPUTE, DEVICE_TO_DEVICE, to, from, count * sizeof(float), err);
    return rc ? rc : measure_drain(m, DEVICE_COMPUTE, err);
}

/* Rows of x, normed, to `to`. */
static int norm_rows(struct measure *m, uint32_t tokens, void *to, enum dtype dtype, struct helm_err *err)
{
    const struct measure_kernels *k = m->kernels;
    const struct op op = measure_norm(k, tokens, k->large->hidden, to, dtype);
    return device_run(m->device, &op, err);
}

/* Numbers for the weights, made on the device, since the link may be slow: rows of uneven numbers, normed to
 * the size of weights and rounded to their type, over and over. */
static int fill_weights(struct measure *m, struct helm_err *err)
{
    const struct measure_kernels *k = m->kernels;
    uint32_t width = k->large->hidden;
    uint64_t piece = (uint64_t)GPUK_BATCH_MAX * width * 2;
    int rc = measure_set_step(m, 0, GPUK_BATCH_MAX, err);
    for (uint64_t at = 0; at < m->weight_bytes && !rc; at += piece) {
        uint64_t left = m->weight_bytes - at;
        uint32_t tokens = left < piece ? (uint32_t)(left / 2 / width) : GPUK_BATCH_MAX;
        if (tokens) rc = norm_rows(m, tokens, m->weights + at, DTYPE_BF16, err);
    }
    return rc ? rc : measure_drain(m, DEVICE_COMPUTE, err);
}

/* Numbers of size 1 where an operation of a chunk begins without one before it that makes some: zeros take a
 * device less power, so that it multiplies faster than it ever will. */
static int fill_rows(struct measure *m, void *to, uint64_t elements, enum dtype dtype, struct helm_err *err)
{
    const struct measure_kernels *k = m->kernels;
    uint32_t width = k->large->hidden;
    int rc = measure_set_step(m, 0, MEASURE_TOKENS_MAX, err);
    for (uint64_t at = 0; at < elements && !rc; at += (uint64_t)MEASURE_TOKENS_MAX * width) {
        uint64_t rows = (elements - at) / width;
        uint32_t tokens = rows < MEASURE_TOKENS_MAX ? (uint32_t)rows : MEASURE_TOKENS_MAX;
        if (tokens) rc = norm_rows(m, tokens, (char *)to + at * dtype_bytes(dtype), dtype, err);
    }
    return rc ? rc : measure_drain(m, DEVICE_COMPUTE, err);
}

static int fill_buffers(struct measure *m, struct helm_err *err)
{
    struct measure_kernels *k = m->kernels;
    uint32_t width = k->large->hidden, state = 1;
    float *host = (float *)(void *)(k->block_host + 1);
    for (uint32_t i = 0; i < width; i++) host[i] = 0.01f;
    int rc = put_floats(m, k->norm, host, width, err);
    for (uint32_t t = 0; t < MEASURE_TOKENS_MAX && !rc; t++) {
        for (uint32_t i = 0; i < width; i++) {
            state = state * 1664525u + 1013904223u;
            host[i] = (float)(int32_t)state / 2147483648.0f;
        }
        rc = put_floats(m, k->x + (size_t)t * width, host, width, err);
    }
    if (!rc) rc = fill_weights(m, err);
    for (uint32_t i = 0; i < width; i++) host[i] = 1;
    if (!rc) rc = put_floats(m, k->norm, host, width, err);
    if (!rc) rc = put_floats(m, k->tiny, host, MEASURE_TINY, err);
    uint64_t heads = (uint64_t)MEASURE_TOKENS_MAX * MEASURE_HEADS * MEASURE_HEAD_DIM;
    if (!rc) rc = fill_rows(m, k->a, heads, DTYPE_BF16, err);
    if (!rc) rc = fill_rows(m, k->q, heads, DTYPE_F16, err);
    for (uint32_t i = 0; i < MEASURE_HEAD_DIM; i++)
        host[i] = i < MEASURE_HEAD_DIM / 2 ? 1 : 0; /* cosines, sines */
    return rc ? rc : put_floats(m, k->rope_table, host, MEASURE_HEAD_DIM, err);
}

int measure_kernels_open(struct measure *m, struct helm_err *err)
{
    struct device *d = m->device;
    struct measure_kernels *k = calloc(1, sizeof *k);
    void *pinned = NULL;
    if (!k) return helm_fail(err, HELM_E_NOMEM, "no memory to measure the device's kernels");
    m->kernels = k;
    /* A device with room has several layers of the large shape, with --quick too: one layer alone would fit
     * the caches of addresses, and its rate would be too high. */
    uint64_t budget = !m->emulated ? 2 * GIB : m->options->quick ? 128 * MIB : 256 * MIB;
    int rc = take_weights(m, budget, err);
    k->small = k->large = &shapes[SHAPES - 1];
    while (k->large > shapes && measure_layer_bytes(k->large - 1, FORMAT_BF16) <= m->weight_bytes) k->large--;
    if (!rc) rc = take_buffers(m, err);
    if (!rc)
        rc = device_host_alloc(d, sizeof(struct measure_block) + k->large->hidden * sizeof(float), &pinned,
                               err);
    if (rc) return rc;
    k->block_host = pinned;
    k->step = (struct gpuk_step){.counts = k->block->counts,
                                 .token_id = k->block->token_id,
                                 .position = k->block->position,
                                 .token_row = k->block->token_row,
                                 .row_first = k->block->row_first,
                                 .row_slot = k->block->row_slot,
                                 .sample_token = k->block->sample_token,
                                 .page_table = k->block->page_table,
                                 .pages_per_slot = MEASURE_PAGES};
    rc = fill_buffers(m, err);
    return rc ? rc : measure_set_step(m, 0, 1, err);
}

void measure_kernels_close(struct measure *m)
{
    struct measure_kernels *k = m->kernels;
    if (!k) return;
    if (k->block_host) m->device->ops->host_free(m->device, k->block_host);
    device_free(m->device, DEVICE_WORKSPACE, k->memory_bytes, k->memory);
    device_free(m->device, DEVICE_WEIGHTS, m->weight_bytes, m->weights);
    free(k);
    m->kernels = NULL;
}
