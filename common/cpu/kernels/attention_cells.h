/* Cells of the KV cache in vectors: where a block of positions lies, and its numbers as floats.
 *
 * Included by the attention_<isa>.c, after lanes256.h or lanes512.h, through their tile kernels and
 * attention_simd.h. Quantised numbers are multiplied by their scales as they are read: exact in fp32, so
 * every sum is that over the cells' values. A block's scales are made floats once, before its numbers are
 * read. */
#pragma once

#include "common/cpu/kernels/attention_kernels.h"

static inline uint32_t min_u32(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

/* At most KEYS_BLOCK neighbouring positions. */
struct cells {
    const char *const *keys; /* [position]: the key's numbers; up to a vector's end the last again */
    size_t count, distance;  /* positions; bytes from a key's numbers to its value's */
    const float *key_scales, *value_scales; /* [position][scales], of quantised cells; 0 after the last */
    size_t scales;                          /* of a cell */
};

static inline size_t value_distance(const struct kv_layout *kv)
{
    return kv->latent ? 0 : kv->kv_heads * kv_head_bytes(kv);
}
static inline size_t scales_of(const struct kv_layout *kv)
{
    return kv_scale_bytes(kv->dtype, kv->head_dim) / sizeof(uint16_t);
}

/* The rows of the keys of the page with a position. */
static const char *page_rows(const struct attention_task *task, uint32_t position)
{
    const struct kv_layout *kv = task->kv;
    uint32_t page = task->pages[position / kv->page_tokens];
    return (const char *)task->pool + kv_offset(kv, page, task->layer, 0, task->kv_head);
}

/* Where the keys' numbers of positions first .. first + count - 1 lie; of the first `skip` < count, which are
 * not read of the cache and which no query may see, another's. */
static void find_keys(const struct attention_task *task, uint32_t first, uint32_t skip, uint32_t count,
                      const char **rows)
{
    const struct kv_layout *kv = task->kv;
    size_t row_bytes = kv_number_bytes(kv->dtype, kv->head_dim);
    for (uint32_t i = skip; i < count;) {
        uint32_t in_page = (first + i) & (kv->page_tokens - 1);
        const char *row = page_rows(task, first + i) + in_page * row_bytes;
        for (uint32_t n = min_u32(count - i, kv->page_tokens - in_page); n > 0; n--, i++, row += row_bytes)
            rows[i] = row;
    }
    for (uint32_t i = 0; i < skip; i++) rows[i] = rows[skip];
}

/* The scales of those positions' keys and values as floats, [position][scales], KEYS_BLOCK rows, of the first
 * `skip` 0. */
static void find_scales(const struct attention_task *task, uint32_t first, uint32_t skip, uint32_t count,
                        float *keys, float *values)
{
    const struct kv_layout *kv = task->kv;
    const size_t each = scales_of(kv), distance = value_distance(kv);
    for (uint32_t i = skip; i < count;) {
        uint32_t in_page = (first + i) & (kv->page_tokens - 1),
                 n = min_u32(count - i, kv->page_tokens - in_page);
        const char *from = page_rows(task, first + i) + kv_scales_at(kv) + in_page * each * sizeof(uint16_t);
        for (size_t at = 0, end = n * each; at < end; at += LANES) {
            vec_store_part(keys + i * each + at, end - at, lanes_widen(from, at, end - at, DTYPE_F16));
            vec_store_part(values + i * each + at, end - at,
                           lanes_widen(from + distance, at, end - at, DTYPE_F16));
        }
        i += n;
    }
    memset(keys, 0, skip * each * sizeof(*keys));
    memset(values, 0, skip * each * sizeof(*values));
    memset(keys + count * each, 0, (KEYS_BLOCK - count) * each * sizeof(*keys));
    memset(values + count * each, 0, (KEYS_BLOCK - count) * each * sizeof(*values));
}

/* A number of q8_0 less this is what its byte says with the sign turned over, in the second byte of a float
 * 2^15. */
#define CELL_BIAS                                                                                            \
    32896 /* 2^15 + 128: a multiple of 128 by 9 bits, so its product with a scale of 11 is exact */

#ifdef CELL_BYTES
/* CELL_BYTES numbers of a cell of q8_0, and LANES of them as floats: `part` of those. bias: -CELL_BIAS times
 * the scale. A permutation puts the bytes where a float of 2^15 has its units, and the product with the scale
 * takes the bias off: it is exact, as all of it is. */
typedef __m512i cell_bytes;
INLINE cell_bytes cell_bytes_load(const char *row)
{
    return _mm512_xor_si512(_mm512_loadu_si512(row), _mm512_set1_epi8((char)0x80));
}
INLINE vec cell_bytes_part(cell_bytes bytes, const size_t part, float scale, float bias)
{
    const __m512i place = _mm512_add_epi32(
        _mm512_slli_epi32(_mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15), 8),
        _mm512_set1_epi32((int)(part * LANES) << 8));
    const __m512i floats =
        _mm512_mask_permutexvar_epi8(_mm512_set1_epi32(0x47000000), 0x2222222222222222u, place, bytes);
    return vec_fmadd(_mm512_castsi512_ps(floats), vec_set1(scale), vec_set1(bias));
}
#endif

/* Numbers d .. d + LANES - 1 of a cell, `left` of which are there; scales: its own. */
INLINE vec cell_widen(const char *row, const float *scales, size_t d, size_t left, const enum kv_dtype dtype)
{
    if (dtype == KV_Q8_0) return vec_mul(vec_widen_i8(row + d), vec_set1(scales[d / KV_Q8_0_VALUES]));
    return lanes_widen(row, d, left, (enum dtype)dtype);
}
