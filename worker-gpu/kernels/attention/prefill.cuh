/* Common to the kernels of prefill attention: a launch's arguments, its share of an attention in parts, and
 * outputs.
 *
 * Included by prefill.cu and prefill_tensor.cuh. */
#pragma once

#include "worker-gpu/kernels/attention/rope.cuh"

struct prefill_params {
    gpuk_attention a;
    const void *q;
    void *out;
    int out_dtype;
    gpuk_part part;
    /* If more than 1: positions are in as many ranges, and each leaves its outputs and state, as parts do,
     * one after the other */
    uint32_t ranges;
    float *o, *state;
};

/* Two neighbouring outputs, number `at` of all; `gate`: where the first one's is, or NULL. */
__device__ __forceinline__ void store_out2(const prefill_params &p, size_t at, const float *gate, float v,
                                           float w)
{
    if (gate) {
        v *= 1.0f / (1.0f + expf(-__ldcg(gate)));
        w *= 1.0f / (1.0f + expf(-__ldcg(gate + 1)));
    }
    if (p.out_dtype == DTYPE_BF16)
        *(uint32_t *)((__nv_bfloat16 *)p.out + at) = element<__nv_bfloat16>::pack(v, w);
    else if (p.out_dtype == DTYPE_F16)
        *(uint32_t *)((__half *)p.out + at) = element<__half>::pack(v, w);
    else
        *(float2 *)((float *)p.out + at) = make_float2(v, w);
}

/* The share of one launch of several, for queries whose first position in the cache is `first`, a tile's. */
struct part_work {
    uint32_t from, to; /* positions */
    bool resumes;
};
__device__ __forceinline__ bool is_last(const gpuk_part &part)
{
    return !part.before || part.piece == GPUK_PART_LAST;
}
__device__ __forceinline__ part_work part_of(const prefill_params &p, uint32_t row, uint32_t first)
{
    part_work w;
    gpuk_part_span(&p.part, row, p.a.kv.layout.page_tokens, &w.from, &w.to);
    w.resumes = w.from > first;
    if (!w.resumes) w.from = first;
    return w;
}

__device__ __forceinline__ const uint32_t *pages_of(const gpuk_step &s, uint32_t row)
{
    return s.page_table + (size_t)s.row_slot[row] * s.pages_per_slot;
}
