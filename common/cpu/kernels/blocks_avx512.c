/* GGUF's blocks with AVX-512 and F16C. Called through the table of linear.c after the CPU check.
 *
 * One token: rows are read as several streams that share x. A row's sums of whole numbers times x are scaled
 * group by group, a chunk of 256 values after another. */
#include "common/cpu/kernels/lanes512.h"

INLINE vec block_numbers(const void *at)
{
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(at)));
}

#include "common/cpu/kernels/blocks_words512.h"
/* Measured on one Zen 5 core, which reads 42 GB/s, 4096 columns: 2, 3, 4, 6 streams of Q4_K 24.7, 25.8, 25.6,
 * 23.2 GB/s, of Q6_K 27.5, 30.7, 31.0, 29.4. */
#define GEMV_STREAMS 4
#define FEW_ROWS     2
#define FEW_TOKENS   8
#include "common/cpu/kernels/gemv_streams.h"

#define CHUNK(format) 256
/* Floats of a chunk of x: values in the order of words, sums of sixteen, sums of 32 where Q4_K's smallest
 * values lie. */
#define ORDERED (256 + 2 * LANES)
INLINE size_t chunk_x_bytes(const enum tensor_format format)
{
    (void)format;
    return ORDERED * sizeof(float);
}

static size_t ordered_bytes(size_t cols)
{
    return (cols + 255) / 256 * ORDERED * sizeof(float);
}

/* Columns after the row's end are zero. `scaled`: part b is divided by 256^b. */
INLINE void order_as(float *to, const float *x, size_t cols, const bool scaled)
{
    const __m512i fours = _mm512_setr_epi32(0, 4, 8, 12, 0, 4, 8, 12, 0, 4, 8, 12, 0, 4, 8, 12);
    for (size_t c = 0; c < cols; c += 256, to += ORDERED) {
        vec sums = vec_zero();
        UNROLL for (size_t k = 0; k < 4; k++)
        {
            vec from[4], part[4];
            UNROLL for (size_t i = 0; i < 4; i++)
            {
                const size_t at = c + 64 * k + 16 * i;
                from[i] = at < cols ? vec_load_part(x + at, cols - at) : vec_zero();
            }
            UNROLL for (int b = 0; b < 4; b++)
            {
                const __m512i every = _mm512_setr_epi32(b, b + 4, b + 8, b + 12, b + 16, b + 20, b + 24,
                                                        b + 28, 0, 0, 0, 0, 0, 0, 0, 0);
                part[b] = _mm512_shuffle_f32x4(_mm512_permutex2var_ps(from[0], every, from[1]),
                                               _mm512_permutex2var_ps(from[2], every, from[3]), 0x44);
                vec_store(to + 64 * k + 16 * b,
                          scaled ? vec_mul(part[b], vec_set1(1.0f / (float)(1 << 8 * b))) : part[b]);
            }
            vec sum = vec_add(vec_add(part[0], part[1]), vec_add(part[2], part[3]));
            sum = vec_add(sum, _mm512_permute_ps(sum, 0xb1));
            sum = vec_add(sum, _mm512_permute_ps(sum, 0x4e));
            sums = _mm512_mask_permutexvar_ps(sums, (__mmask16)(15 << 4 * k), fours, sum);
        }
        vec_store(to + 256, sums);
        const vec pairs = vec_add(sums, _mm512_permute_ps(sums, 0xb1));
        vec_store(to + 256 + LANES,
                  _mm512_maskz_permutexvar_ps(
                      0xf0f0, _mm512_setr_epi32(0, 0, 0, 0, 0, 2, 4, 6, 0, 0, 0, 0, 8, 10, 12, 14), pairs));
    }
}

static void order(float *to, const float *x, size_t cols)
{
    order_as(to, x, cols, false);
}
static void order_scaled(float *to, const float *x, size_t cols)
{
    order_as(to, x, cols, true);
}

/* Words of 64 values of `S` rows times x, scaled. */
INLINE void words_multiply(vec *total, const __m512i *words, const vec *scale, const float *x, const size_t S,
                           const enum tensor_format format)
{
    vec sum[GEMV_STREAMS];
    UNROLL for (int b = 0; b < 4; b++)
    {
        const vec xs = vec_load(x + 16 * b);
        UNROLL for (size_t s = 0; s < S; s++)
        {
            const vec part = words_part(words[s], b, format);
            sum[s] = b ? vec_fmadd(part, xs, sum[s]) : vec_mul(part, xs);
        }
    }
    UNROLL for (size_t s = 0; s < S; s++) total[s] = vec_fmadd(sum[s], scale[s], total[s]);
}

/* The same of T tokens, ldx bytes apart. */
INLINE void words_multiply_few(vec *total, const __m512i *words, const vec *scale, const char *x, size_t ldx,
                               const size_t S, const size_t T, const enum tensor_format format)
{
    vec part[FEW_ROWS][4];
    UNROLL for (size_t s = 0; s < S; s++) UNROLL for (int b = 0; b < 4; b++) part[s][b] =
        words_part(words[s], b, format);
    UNROLL for (size_t t = 0; t < T; t++)
    {
        vec sum[FEW_ROWS];
        UNROLL for (int b = 0; b < 4; b++)
        {
            const vec xs = vec_load(x + t * ldx + 64 * b);
            UNROLL for (size_t s = 0; s < S; s++) sum[s] =
                b ? vec_fmadd(part[s][b], xs, sum[s]) : vec_mul(part[s][b], xs);
        }
        UNROLL for (size_t s = 0; s < S; s++) total[t * S + s] =
            vec_fmadd(sum[s], scale[s], total[t * S + s]);
    }
}

INLINE void add_chunk(vec *total, vec *least, const uint8_t *w, size_t stride, const char *x, size_t ldx,
                      const size_t cols, const size_t S, const size_t T, const enum tensor_format format)
{
    const size_t block = decode_bytes(block_values(format), format);
    const bool whole = block_values(format) == CHUNK(format),
               of_32 = format == FORMAT_Q4_K || format == FORMAT_Q5_K;
    const size_t at_sums = (CHUNK(format) + (of_32 ? LANES : 0)) * sizeof(float);
    struct block_scales scales[GEMV_STREAMS];
    UNROLL for (size_t s = 0; s < S && whole; s++)
    {
        scales[s] = scales_of(w + s * stride, format);
        if (least_factor(format) == 0) continue;
        UNROLL for (size_t t = 0; t < T; t++) least[t * S + s] =
            vec_fmadd(scales[s].least, vec_load(x + t * ldx + at_sums), least[t * S + s]);
    }
    UNROLL for (size_t k = 0; k < 4; k++)
    {
        __m512i words[GEMV_STREAMS];
        vec scale[GEMV_STREAMS];
        if (!whole && 64 * k >= cols) break;
        const bool two = 64 * k + 32 < cols;
        UNROLL for (size_t s = 0; s < S; s++)
        {
            if (whole) {
                words[s] = words_of(w + s * stride, NULL, k, format);
                scale[s] = scales_part(scales[s].scale, k, format);
                continue;
            }
            const uint8_t *first = w + s * stride + 2 * k * block, *second = first + block;
            words[s] = words_of(first, two ? second : first, k, format);
            scales[s] = scales_of_pair(first, two ? second : NULL, format);
            scale[s] = scales[s].scale;
            if (least_factor(format) == 0) continue;
            UNROLL for (size_t t = 0; t < T; t++) least[t * S + s] =
                _mm512_mask3_fmadd_ps(scales[s].least, vec_load(x + t * ldx + at_sums), least[t * S + s],
                                      (__mmask16)(15 << 4 * k));
        }
        if (T == 1)
            words_multiply(total, words, scale, (const float *)(const void *)x + 64 * k, S, format);
        else
            words_multiply_few(total, words, scale, x + 256 * k, ldx, S, T, format);
    }
}

INLINE bool has_two_sums(const enum tensor_format format)
{
    return least_factor(format) != 0;
}
INLINE vec row_sum(vec total, vec least, const enum tensor_format format)
{
    const float by = least_factor(format);
    return by != 0 ? vec_fmadd(least, vec_set1(by), total) : total;
}

#include "common/cpu/kernels/gemv_chunks.h"

#define NAME          "avx512"
#define FEATURES      (CPU_AVX2 | CPU_AVX512)
#define KERNELS       blocks_avx512
#define STREAMS       GEMV_STREAMS
#define ORDER(format) (IS_TABLE(format) ? order : order_scaled)
#define ORDERED_BYTES ordered_bytes
#define FORMATS       BLOCK_PLAIN_FORMATS
#include "common/cpu/kernels/blocks_simd.h"
