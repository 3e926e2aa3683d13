/* Several tokens' products of blocks with activations of 8 bits, with AVX2: int8_gemm.h on 8 rows a vector.
 * Called through the table of linear.c after the CPU check.
 *
 * vpmaddubsw adds pairs of products in 16 bits: numbers up to 64 times 255 fit, and several of them where
 * numbers are smaller. Formats with numbers of 8 bits have no kernel here. */
#include "common/cpu/kernels/lanes256.h"

#include "common/cpu/kernels/blocks_words256.h"

typedef __m256i ivec;
#define ivec_load(at)     _mm256_loadu_si256((const void *)(at))
#define ivec_store(at, v) _mm256_storeu_si256((void *)(at), v)
#define ivec_to_floats    _mm256_cvtepi32_ps
#define ivec_of_floats    _mm256_cvtps_epi32
#define PANELS            2
#define TOKENS            1 /* more, or more panels: sums leave the sixteen registers */

#include "common/cpu/kernels/int8_gemm_sizes.h"

/* Dwords of products whose pairs can be added in 16 bits. */
INLINE size_t narrow_steps(const enum tensor_format format)
{
    switch (format) {
    case FORMAT_Q4_0:
    case FORMAT_Q2_K:
    case FORMAT_Q3_K:
        return 8; /* numbers up to 8: 8 x 2 x 8 x 255 = 32640 */
    case FORMAT_Q4_1:
    case FORMAT_Q4_K:
    case FORMAT_Q5_0:
    case FORMAT_MXFP4:
    case FORMAT_NVFP4:
    case FORMAT_IQ3_S:
    case FORMAT_IQ1_S:
    case FORMAT_IQ1_M:
        return 4; /* up to 16 */
    case FORMAT_IQ2_XXS:
    case FORMAT_IQ2_XS:
    case FORMAT_IQ2_S:
    case FORMAT_IQ3_XXS:
        return 1; /* up to 64 */
    default:
        return 2; /* up to 32 */
    }
}

INLINE vec signed_numbers(const uint8_t *w, const struct grid_block *grid, const int r,
                          const enum tensor_format format)
{
    const __m256i bytes = words_of(w, grid, r, format),
                  numbers = format == FORMAT_Q4_K || format == FORMAT_Q2_K || format == FORMAT_Q4_0 ||
                                    format == FORMAT_Q4_1
                                ? masked(bytes, number_bits(format))
                                : bytes;
    return _mm256_castsi256_ps(_mm256_sub_epi8(numbers, _mm256_set1_epi8((char)number_less(format))));
}

INLINE void unpack_numbers(char *to, const uint8_t *const row[LANES], const enum tensor_format format)
{
    struct grid_block grid[LANES];
    UNROLL for (size_t r = 0; r < LANES; r++)
    {
        if (is_grid(format)) grid_open(&grid[r], row[r], format);
    }
    UNROLL for (int run = 0; run < (int)block_values(format) / 32; run++)
    {
        vec m[LANES];
        UNROLL for (size_t r = 0; r < LANES; r++) m[r] = signed_numbers(row[r], &grid[r], run, format);
        vec_transpose(m);
        UNROLL for (size_t i = 0; i < LANES; i++) vec_store(to + run * INT8_PANEL + i * LANES * 4, m[i]);
    }
}

INLINE ivec group_extra(const char *w, const size_t steps)
{
    ivec sum = _mm256_setzero_si256();
    UNROLL for (size_t i = 0; i < steps; i++) sum =
        _mm256_add_epi32(sum, _mm256_madd_epi16(_mm256_maddubs_epi16(_mm256_set1_epi8(1),
                                                                     ivec_load(w + i * LANES * 4)),
                                                _mm256_set1_epi16(-128)));
    return sum;
}

INLINE void group_sums(ivec *sum, const char *w, size_t panel, const char *x, size_t stride,
                       const size_t steps, const size_t T, const enum tensor_format format)
{
    const size_t narrow = narrow_steps(format) < steps ? narrow_steps(format) : steps;
    UNROLL for (size_t first = 0; first < steps; first += narrow)
    {
        ivec pairs[TOKENS * PANELS];
        UNROLL for (size_t i = 0; i < narrow; i++) UNROLL for (size_t t = 0; t < T; t++)
        {
            int four;
            memcpy(&four, x + t * stride + 4 * (first + i), sizeof four);
            const ivec xs = _mm256_set1_epi32(four);
            UNROLL for (size_t p = 0; p < PANELS; p++)
            {
                const ivec two = _mm256_maddubs_epi16(xs, ivec_load(w + p * panel + (first + i) * LANES * 4));
                ivec *to = &pairs[t * PANELS + p];
                *to = i ? _mm256_add_epi16(*to, two) : two;
            }
        }
        UNROLL for (size_t i = 0; i < T * PANELS; i++) sum[i] =
            _mm256_add_epi32(sum[i], _mm256_madd_epi16(pairs[i], _mm256_set1_epi16(1)));
    }
}

#define NAME     "avx2"
#define FEATURES CPU_AVX2
#define BEATEN   CPU_AVX512
#define KERNELS  int8_avx2_gemm
#define FORMATS  INT8_NARROW_FORMATS
#include "common/cpu/kernels/int8_gemm.h"
