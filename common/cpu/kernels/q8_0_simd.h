/* Q8_0: one token's products and rows decoded to fp32. Included once by q8_0_avx2.c and q8_0_avx512.c behind their
 * vectors, which define NAME, FEATURES, GEMV and DECODE (the entries that linear.c knows) and
 * vec q8_0_numbers(at), LANES signed bytes as floats. */
#include "common/formats/q8_0.h"
#include "common/formats/tensor_format.h"

INLINE size_t decode_bytes(size_t values, const enum tensor_format format)
{
    (void)format;
    return values / Q8_0_VALUES * Q8_0_BYTES;
}

#define GEMV_STREAMS 3
#include "common/cpu/kernels/gemv_streams.h"

INLINE vec q8_0_scale(const char *block)
{
    uint16_t scale;
    memcpy(&scale, block, sizeof scale);
    return vec_set1(_cvtsh_ss(scale));
}
#define NUMBERS 2 /* bytes of a block in front of them */

/* A block times x: its numbers' sum is scaled. */
INLINE vec q8_0_sum(vec total, const char *block, const float *x)
{
    vec sum = vec_mul(q8_0_numbers(block + NUMBERS), vec_load(x));
    UNROLL for (size_t i = LANES; i < Q8_0_VALUES; i += LANES) sum =
        vec_fmadd(q8_0_numbers(block + NUMBERS + i), vec_load(x + i), sum);
    return vec_fmadd(sum, q8_0_scale(block), total);
}

INLINE void gemv_rows(float *y, size_t row_stride, const char *w, const float *x, size_t cols,
                      const struct gemv_path *path, const size_t S, const bool two_levels,
                      const enum tensor_format format)
{
    const size_t stride = row_stride * decode_bytes(cols, format);
    vec even[GEMV_STREAMS], odd[GEMV_STREAMS];
    UNROLL for (size_t s = 0; s < S; s++) even[s] = odd[s] = vec_zero();
    size_t c = 0;
    const char *at = w;
    for (; c + 4 * Q8_0_VALUES <= cols; c += 4 * Q8_0_VALUES, at += 4 * Q8_0_BYTES) {
        const struct gemv_ahead ahead = gemv_ahead(path, (uintptr_t)w, decode_bytes(c, format), stride);
        UNROLL for (size_t s = 0; s < S; s++)
        {
            gemv_fetch(ahead, s, 4 * Q8_0_BYTES, two_levels);
            UNROLL for (size_t b = 0; b < 4; b += 2)
            {
                const char *block = at + s * stride + b * Q8_0_BYTES;
                even[s] = q8_0_sum(even[s], block, x + c + b * Q8_0_VALUES);
                odd[s] = q8_0_sum(odd[s], block + Q8_0_BYTES, x + c + (b + 1) * Q8_0_VALUES);
            }
        }
    }
    for (; c < cols; c += Q8_0_VALUES, at += Q8_0_BYTES)
        UNROLL for (size_t s = 0; s < S; s++) even[s] = q8_0_sum(even[s], at + s * stride, x + c);
    UNROLL for (size_t s = 0; s < S; s++) y[s * row_stride] = vec_reduce_add(vec_add(even[s], odd[s]));
}

static void q8_0_gemv(float *y, const void *w, const float *x, size_t rows, size_t cols,
                      const struct gemv_reads *reads)
{
    gemv(y, w, x, rows, cols, reads, FORMAT_Q8_0);
}

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
                                   .streams = GEMV_STREAMS};
const struct linear_kernel DECODE = {.name = NAME,
                                     .features = FEATURES,
                                     .format = FORMAT_Q8_0,
                                     .schedule = LINEAR_DECODE,
                                     .decode = q8_0_decode,
                                     .rows = FORMAT_F32};
