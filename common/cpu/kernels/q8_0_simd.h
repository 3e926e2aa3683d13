/* Q8_0: one token's products and rows decoded to fp32. Included once by q8_0_avx2.c and q8_0_avx512.c behind their
 * vectors, which define NAME, FEATURES, GEMV and DECODE (the entries that linear.c knows) and
 * vec q8_0_numbers(at), LANES signed bytes as floats. */
#include "common/cpu/kernels/blocks_sizes.h"
#include "common/formats/q8_0.h"

#define GEMV_STREAMS 3
#define FEW_ROWS     1
#define FEW_TOKENS   (LANES == 16 ? 8 : 4)
#include "common/cpu/kernels/gemv_streams.h"

INLINE vec q8_0_scale(const char *block)
{
    uint16_t scale;
    memcpy(&scale, block, sizeof scale);
    return vec_set1(_cvtsh_ss(scale));
}
#define NUMBERS 2 /* bytes of a block in front of them */

/* A block of a row times x of T tokens: its numbers' sum is scaled. */
INLINE void q8_0_add(vec *total, const char *block, const char *x, size_t ldx, const size_t S, const size_t T)
{
    const vec scale = q8_0_scale(block);
    vec number[Q8_0_VALUES / LANES];
    UNROLL for (size_t i = 0; i < Q8_0_VALUES / LANES; i++) number[i] =
        q8_0_numbers(block + NUMBERS + i * LANES);
    UNROLL for (size_t t = 0; t < T; t++)
    {
        const float *xt = (const float *)(const void *)(x + t * ldx);
        vec sum = vec_mul(number[0], vec_load(xt));
        UNROLL for (size_t i = 1; i < Q8_0_VALUES / LANES; i++) sum =
            vec_fmadd(number[i], vec_load(xt + i * LANES), sum);
        total[t * S] = vec_fmadd(sum, scale, total[t * S]);
    }
}

/* Blocks of a chunk in turn to two sums, of a row's rest all to one. */
#define CHUNK(format) (4 * Q8_0_VALUES)
INLINE size_t chunk_x_bytes(const enum tensor_format format)
{
    (void)format;
    return CHUNK(format) * sizeof(float);
}
INLINE void add_chunk(vec *even, vec *odd, const uint8_t *w, size_t stride, const char *x, size_t ldx,
                      const size_t cols, const size_t S, const size_t T, const enum tensor_format format)
{
    const bool whole = cols == CHUNK(format);
    (void)format;
    UNROLL for (size_t s = 0; s < S; s++) UNROLL for (size_t b = 0; b < CHUNK(format) / Q8_0_VALUES; b++)
    {
        if (b * Q8_0_VALUES >= cols) break;
        q8_0_add((whole && b % 2 ? odd : even) + s, (const char *)w + s * stride + b * Q8_0_BYTES,
                 x + b * Q8_0_VALUES * sizeof(float), ldx, S, T);
    }
}
INLINE bool has_two_sums(const enum tensor_format format)
{
    (void)format;
    return true;
}
INLINE vec row_sum(vec even, vec odd, const enum tensor_format format)
{
    (void)format;
    return vec_add(even, odd);
}

#include "common/cpu/kernels/gemv_chunks.h"

GEMV_FUNCTIONS(q8_0, Q8_0, Q8_0_VALUES, Q8_0_BYTES, Q8_0_VALUES)

static void q8_0_decode(void *values, const void *w, size_t rows, size_t cols)
{
    const char *block = w;
    float *to = values;
    for (size_t at = 0; at < rows * cols; at += Q8_0_VALUES, block += Q8_0_BYTES, to += Q8_0_VALUES) {
        _mm_prefetch((const char *)((uintptr_t)block + GEMV_NEAR), _MM_HINT_T0);
        UNROLL for (size_t i = 0; i < Q8_0_VALUES; i += LANES)
            vec_store(to + i, vec_mul(q8_0_numbers(block + NUMBERS + i), q8_0_scale(block)));
    }
}

const struct linear_kernel GEMV = {.name = NAME,
                                   .features = FEATURES,
                                   .format = FORMAT_Q8_0,
                                   .schedule = LINEAR_ONE_TOKEN,
                                   .gemv = q8_0_gemv,
                                   .few = q8_0_few,
                                   .apart = 4,
                                   .streams = GEMV_STREAMS};
const struct linear_kernel DECODE = {.name = NAME,
                                     .features = FEATURES,
                                     .format = FORMAT_Q8_0,
                                     .schedule = LINEAR_DECODE,
                                     .decode = q8_0_decode,
                                     .rows = FORMAT_F32};
