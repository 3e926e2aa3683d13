/* Shared by the kernels of linear layers: the argument block on the device and where a row of the
 * concatenated matrices lies.
 *
 * Included by linear.cu, which has the table of kernels, and by the files of the schedules. Rows are worked
 * on in pairs, so that two weights meet each x that is read: neighbours of one matrix, or gate and up of one
 * SwiGLU output. */
#pragma once

#include "worker-gpu/kernels/device.cuh"

struct linear_segment {
    const unsigned char *weight;
    const float *bias;
    float *out;
    uint32_t rows;
    uint32_t pair_end; /* pairs of this and the segments before it */
};

struct linear_params {
    linear_segment segment[GPUK_SEGMENTS_MAX];
    const float *x, *norm, *residual;
    uint64_t row_bytes;
    uint32_t cols, segments, pairs;
    uint32_t x_stride, out_stride;
    float eps;
    bool swiglu;
    enum glu_kind glu;
};

struct linear_pair {
    const unsigned char *a, *b; /* b is NULL at an odd last row */
};

__device__ __forceinline__ uint32_t linear_segment_of(const linear_params &p, uint32_t pair)
{
    uint32_t s = 0;
    if (!p.swiglu)
        while (s + 1 < p.segments && pair >= p.segment[s].pair_end) s++;
    return s;
}
__device__ __forceinline__ linear_pair linear_locate(const linear_params &p, uint32_t pair)
{
    if (p.swiglu) return {p.segment[0].weight + pair * p.row_bytes, p.segment[1].weight + pair * p.row_bytes};
    uint32_t s = linear_segment_of(p, pair);
    const linear_segment &g = p.segment[s];
    uint32_t row = 2 * (pair - (s ? p.segment[s - 1].pair_end : 0));
    const unsigned char *a = g.weight + row * p.row_bytes;
    return {a, row + 1 < g.rows ? a + p.row_bytes : nullptr};
}

/* Addends of a pair's two sums: biases, and the residual of token t. */
__device__ __forceinline__ float2 linear_addends(const linear_params &p, uint32_t pair, uint32_t t)
{
    float2 add = make_float2(0, 0);
    if (p.swiglu) {
        if (p.segment[0].bias) add.x = p.segment[0].bias[pair];
        if (p.segment[1].bias) add.y = p.segment[1].bias[pair];
        return add;
    }
    const uint32_t s = linear_segment_of(p, pair);
    const linear_segment &g = p.segment[s];
    const uint32_t row = 2 * (pair - (s ? p.segment[s - 1].pair_end : 0));
    const bool two = row + 1 < g.rows;
    if (g.bias) {
        add.x = g.bias[row];
        if (two) add.y = g.bias[row + 1];
    }
    if (p.residual) {
        const float *from = p.residual + (uint64_t)t * p.out_stride + row;
        add.x += __ldcg(from);
        if (two) add.y += __ldcg(from + 1);
    }
    return add;
}
/* Where the two sums of a pair go, for token t. */
__device__ __forceinline__ void linear_store(const linear_params &p, uint32_t pair, uint32_t t, float a,
                                             float b)
{
    const uint64_t at = (uint64_t)t * p.out_stride;
    if (p.swiglu) {
        p.segment[0].out[at + pair] = glu_value(p.glu, a, b);
        return;
    }
    const uint32_t s = linear_segment_of(p, pair);
    const linear_segment &g = p.segment[s];
    const uint32_t row = 2 * (pair - (s ? p.segment[s - 1].pair_end : 0));
    g.out[at + row] = a;
    if (row + 1 < g.rows) g.out[at + row + 1] = b;
}
__device__ __forceinline__ void linear_finish(const linear_params &p, uint32_t pair, uint32_t t, float a,
                                              float b)
{
    const float2 add = linear_addends(p, pair, t);
    linear_store(p, pair, t, a + add.x, b + add.y);
}

/* ---- launches (linear.cu) --------------------------------------------------------------------------- */

/* Checks the arguments and lays them out for the device. */
int gpuk_linear_params(const char *what, const struct gpuk_linear_args *args, struct linear_params *params,
                       struct helm_err *err);
/* Whether every row of every matrix starts on a 16-byte boundary. */
bool gpuk_linear_aligned(const struct gpuk_linear_args *args);
/* Whether every matrix of blocks starts on as many bytes, up to 16, as its blocks' sizes are multiples of. */
bool gpuk_linear_begins(const struct gpuk_linear_args *args);

struct linear_call {
    const struct gpuk_device *device;
    const struct gpuk_linear_args *args;
    struct linear_params params;
    uint32_t tokens;
    const uint32_t *count; /* of more than one token: device memory, how many count */
    void *workspace;
    uint32_t flags;
    void *stream;
};
/* One schedule's kernel for one format; zeros: it has none. */
struct linear_kernel {
    const char *name;
    bool (*takes)(const struct linear_call &call); /* reads its arguments, tokens and device */
    int (*launch)(const struct linear_call &call, struct helm_err *err);
    int (*prepare)(const struct gpuk_device *device, struct helm_err *err);
};
typedef const struct linear_kernel linear_kernels[FORMAT_COUNT];
extern linear_kernels gemv_once_kernels, gemv_plain_kernels, gemv_bulk_kernels, gemv_groups_kernels,
    gemm_plain_kernels, gemm_tensor_kernels, gemm_integer_kernels, gemm_stream_kernels, gemm_blocks_kernels,
    gemm_wide_kernels;

/* The warps of a block where gemv_bulk streams bf16 of this shape in tiles of 1 KB; else 0. */
uint32_t gemv_bulk_warps(const struct linear_call &call);
