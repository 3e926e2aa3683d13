/* Gated delta nets: a part of kernels.h, whose rules hold. docs/state.md has the formulas.
 *
 * Called by the CUDA device, tests/gpu and tools/bench/gpu; the emulated device does the same by the CPU's
 * kernels (common/cpu/kernels/delta.h). A layer's tokens are those of a step's rows, each with its record in
 * its row's slot. */
#pragma once

#include "worker-gpu/kernels/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

#define GPUK_DELTA_COLUMNS   3   /* inputs of earlier tokens that a convolution sees */
#define GPUK_DELTA_CHUNK     64  /* tokens that are computed together */
#define GPUK_DELTA_HEAD_MAX  256 /* numbers of a head's q, k, v; each a multiple of: */
#define GPUK_DELTA_HEAD_UNIT 16

/* One layer's. Numbers are fp32 unless their dtype is said. channels: q of all k heads, k of all k heads, v
 * of all v heads. */
struct gpuk_delta {
    struct gpuk_step step;
    const uint32_t *row_state; /* [lines of the page table]: a line's slot */
    char *state; /* a slot's record: columns [3][channels], at matrices_at [v head][key_dim][value_dim] */
    uint64_t slot_bytes, matrices_at;
    struct gpuk_left left;
    uint32_t key_heads, value_heads, key_dim, value_dim;
    bool in_turn;      /* v head h reads k head h mod key_heads, otherwise h / (value_heads / key_heads) */
    uint32_t rows;     /* capacity of the step's */
    const float *conv; /* [4][channels]: the oldest token's first */
    const float *decay, *time_bias, *norm; /* [v head], [v head], [value_dim] */
    float eps;
    const float *in, *z, *alpha, *beta; /* [token][in_stride]: as the products leave them */
    uint32_t in_stride;
    float *mixed; /* [token][channels]: what the convolution leaves for the rule */
    /* gpuk_delta_chunk_bytes, of the tier's tokens: prompts are computed in chunks, where the device has
     * matrix instructions. NULL: token by token, so that a token has the same bits however a sequence is cut
     * into steps */
    float *chunks;
    void *out; /* [token][out_stride] of out_dtype */
    enum dtype out_dtype;
    uint32_t out_stride;
};
static inline uint32_t gpuk_delta_channels(const struct gpuk_delta *d)
{
    return 2 * d->key_heads * d->key_dim + d->value_heads * d->value_dim;
}
static inline size_t gpuk_delta_chunk_bytes(uint32_t tokens, uint32_t value_heads)
{
    return (size_t)tokens * value_heads * GPU_DELTA_CHUNK_BYTES;
}
static inline uint32_t gpuk_delta_key_of(const struct gpuk_delta *d, uint32_t head)
{
    return d->in_turn ? head % d->key_heads : head / (d->value_heads / d->key_heads);
}

/* mixed = silu of the convolution, q and k of each head of length 1 and q by 1 / sqrt(key_dim). Columns stay
 * as they are. */
HELM_MUST_CHECK int gpuk_delta_convolve(const struct gpuk_delta *args, uint32_t tokens, uint32_t flags,
                                        void *stream, struct helm_err *err);
/* After that: the rule over each row's tokens, the norm and the gate of its output; the record as it is after
 * the row, and where rows leave snapshots as it is there. */
HELM_MUST_CHECK int gpuk_delta_rule(const struct gpuk_device *device, const struct gpuk_delta *args,
                                    uint32_t tokens, uint32_t flags, void *stream, struct helm_err *err);

#ifdef __cplusplus
}
#endif
