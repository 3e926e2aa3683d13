/* Types of the KV cache: what a position's key or value of one head, a *cell*, is kept as.
 *
 * The one place that knows how many bytes a cell takes. The first three are single numbers, in the order of
 * enum dtype. q8_0 is quantised: 32 neighbouring numbers of a cell are whole numbers of 8 bits and share a
 * scale, an fp16, the largest magnitude over 127. Where both lie is said by common/shared/kv_layout.h. To add
 * a type: a row here and in kv_dtype.c, its numbers in common/cpu/kernels/attention_cells.h and
 * worker-gpu/kernels/attention/kv_cell.cuh. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/formats/convert.h"

#ifdef __CUDACC__
#define KV_INLINE static __host__ __device__ inline
#else
#define KV_INLINE static inline
#endif

#ifdef __cplusplus
extern "C" {
#endif

enum kv_dtype { KV_BF16 = DTYPE_BF16, KV_F16 = DTYPE_F16, KV_F32 = DTYPE_F32, KV_Q8_0, KV_DTYPE_COUNT };
#define KV_DTYPES "f16, bf16, f32, q8_0" /* for messages */

#define KV_Q8_0_VALUES 32

/* Whether cells are single numbers, without scales. */
KV_INLINE bool kv_dtype_is_plain(uint32_t dtype)
{
    return dtype <= KV_F32;
}
/* Bytes of a cell's numbers, and of its scales. */
KV_INLINE uint32_t kv_number_bytes(uint32_t dtype, uint32_t head_dim)
{
    return head_dim * (dtype == KV_F32 ? 4 : dtype == KV_Q8_0 ? 1 : 2);
}
KV_INLINE uint32_t kv_scale_bytes(uint32_t dtype, uint32_t head_dim)
{
    return dtype == KV_Q8_0 ? head_dim / KV_Q8_0_VALUES * 2 : 0;
}
KV_INLINE uint32_t kv_cell_bytes(uint32_t dtype, uint32_t head_dim)
{
    return kv_number_bytes(dtype, head_dim) + kv_scale_bytes(dtype, head_dim);
}
/* Whether a head of head_dim numbers can be stored in this type. */
KV_INLINE bool kv_dtype_takes(uint32_t dtype, uint32_t head_dim)
{
    return dtype != KV_Q8_0 || head_dim % KV_Q8_0_VALUES == 0;
}
/* Type of a chunk's queries on a GPU beside such a cache, and of keys and values as they are multiplied. */
KV_INLINE enum dtype kv_query_dtype(uint32_t dtype)
{
    return dtype == KV_Q8_0 ? DTYPE_F16 : (enum dtype)dtype;
}

const char *kv_dtype_name(enum kv_dtype dtype); /* "f16", "q8_0", ... */
/* KV_DTYPE_COUNT: no such name. */
enum kv_dtype kv_dtype_named(const char *name);

/* The definition of q8_0. A block's scale is its largest magnitude over 127 as fp16, its numbers are x over
 * that scale, to the nearest (ties to even), at most 127 of magnitude. A block with a number that is not
 * finite, or with a scale too large for fp16, reads as NaN: its numbers are 0, its scale 0x7e00. fp32
 * throughout, x times the scale's reciprocal: the same bits on every device. */
void kv_q8_0_write(const float x[KV_Q8_0_VALUES], int8_t number[KV_Q8_0_VALUES], uint16_t *scale);

#ifdef __cplusplus
}
#endif
