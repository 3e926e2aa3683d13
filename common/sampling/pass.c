/* The passes over a whole row of logits: block maxima, weights, and the gathering of candidates.
 *
 * Called by common/sampling/sampling.c. Owns nothing. The order of operations is written down once
 * (pass_simd.h) and compiled for SSE2, which every x86-64 has, AVX2 and AVX-512: the same bits everywhere,
 * whichever runs. */
#include "common/sampling/pass.h"

#include <float.h>
#include <immintrin.h>
#include <math.h>
#include <stdbool.h>

#include "common/base/cpu.h"

/* ---- what differs by width: non-finite logits become -inf; a sum and a maximum over lanes ---- */

static inline __m128 load_finite_sse2(const float *x)
{
    const __m128 v = _mm_loadu_ps(x);
    const __m128i size = _mm_and_si128(_mm_castps_si128(v), _mm_set1_epi32(0x7fffffff));
    const __m128 finite = _mm_castsi128_ps(_mm_cmpgt_epi32(_mm_set1_epi32(0x7f800000), size));
    return _mm_or_ps(_mm_and_ps(finite, v), _mm_andnot_ps(finite, _mm_set1_ps(-INFINITY)));
}
static inline uint32_t sum_sse2(__m128i x)
{
    x = _mm_add_epi32(x, _mm_shuffle_epi32(x, 0x4e));
    x = _mm_add_epi32(x, _mm_shuffle_epi32(x, 0xb1));
    return (uint32_t)_mm_cvtsi128_si32(x);
}
static inline float max_sse2(__m128 x)
{
    x = _mm_max_ps(x, _mm_movehl_ps(x, x));
    return _mm_cvtss_f32(_mm_max_ss(x, _mm_shuffle_ps(x, x, 1)));
}
#define PASS_LANES     4
#define PASS_NAME(f)   f##_sse2
#define PASS_OP(f)     _mm_##f
#define PASS_F         __m128
#define PASS_I         __m128i
#define PASS_CAST_I(x) _mm_castps_si128(x)
#define PASS_CAST_F(x) _mm_castsi128_ps(x)
#define PASS_ZERO      _mm_setzero_si128()
#define PASS_TARGET
#include "common/sampling/pass_simd.h"

#define AVX2 __attribute__((target("avx2")))
AVX2 static inline __m256 load_finite_avx2(const float *x)
{
    const __m256 v = _mm256_loadu_ps(x);
    const __m256i size = _mm256_and_si256(_mm256_castps_si256(v), _mm256_set1_epi32(0x7fffffff));
    const __m256i finite = _mm256_cmpgt_epi32(_mm256_set1_epi32(0x7f800000), size);
    return _mm256_blendv_ps(_mm256_set1_ps(-INFINITY), v, _mm256_castsi256_ps(finite));
}
AVX2 static inline uint32_t sum_avx2(__m256i x)
{
    return sum_sse2(_mm_add_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1)));
}
AVX2 static inline float max_avx2(__m256 x)
{
    return max_sse2(_mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1)));
}
#define PASS_LANES     8
#define PASS_NAME(f)   f##_avx2
#define PASS_OP(f)     _mm256_##f
#define PASS_F         __m256
#define PASS_I         __m256i
#define PASS_CAST_I(x) _mm256_castps_si256(x)
#define PASS_CAST_F(x) _mm256_castsi256_ps(x)
#define PASS_ZERO      _mm256_setzero_si256()
#define PASS_TARGET    AVX2
#include "common/sampling/pass_simd.h"

#define AVX512 __attribute__((target("avx512f")))
AVX512 static inline __m512 load_finite_avx512(const float *x)
{
    const __m512 v = _mm512_loadu_ps(x);
    const __m512i size = _mm512_and_si512(_mm512_castps_si512(v), _mm512_set1_epi32(0x7fffffff));
    const __mmask16 finite = _mm512_cmplt_epi32_mask(size, _mm512_set1_epi32(0x7f800000));
    return _mm512_mask_mov_ps(_mm512_set1_ps(-INFINITY), finite, v);
}
AVX512 static inline uint32_t sum_avx512(__m512i x)
{
    return (uint32_t)_mm512_reduce_add_epi32(x);
}
AVX512 static inline float max_avx512(__m512 x)
{
    return _mm512_reduce_max_ps(x);
}
#define PASS_LANES     16
#define PASS_NAME(f)   f##_avx512
#define PASS_OP(f)     _mm512_##f
#define PASS_F         __m512
#define PASS_I         __m512i
#define PASS_CAST_I(x) _mm512_castps_si512(x)
#define PASS_CAST_F(x) _mm512_castsi512_ps(x)
#define PASS_ZERO      _mm512_setzero_si512()
#define PASS_TARGET    AVX512
#include "common/sampling/pass_simd.h"

/* ---- passes ---- */

typedef float block_max_fn(const float *x);
typedef uint64_t block_sum_fn(const float *x, const struct sampling_row *row);

static bool has_avx512(void)
{
    return (cpu_features() & CPU_AVX512) != 0;
}
static bool has_avx2(void)
{
    return (cpu_features() & CPU_AVX2) != 0;
}

/* The SAMPLING_BLOCK logits of block b; those past the end of the vocabulary read as -inf through `tail`. */
static inline const float *block_at(const struct sampling_row *row, uint32_t b, float tail[SAMPLING_BLOCK])
{
    uint32_t first = b * SAMPLING_BLOCK;
    if (row->vocab - first >= SAMPLING_BLOCK) return row->x + first;
    for (uint32_t i = 0; i < SAMPLING_BLOCK; i++)
        tail[i] = first + i < row->vocab ? row->x[first + i] : -INFINITY;
    return tail;
}

void sampling_find_maxima(struct sampling_row *row, float *block_max)
{
    block_max_fn *const max_of = has_avx512() ? block_max_avx512
                                 : has_avx2() ? block_max_avx2
                                              : block_max_sse2;
    float tail[SAMPLING_BLOCK];
    row->top = -INFINITY;
    for (uint32_t b = 0; b < row->blocks; b++) {
        block_max[b] = max_of(block_at(row, b, tail));
        if (block_max[b] > row->top) row->top = block_max[b];
    }
}

uint64_t sampling_find_weights(const struct sampling_row *row, const float *block_max, uint64_t *block_weight)
{
    float tail[SAMPLING_BLOCK];
    uint64_t sum = 0;
    block_sum_fn *const sum_of = has_avx512() ? block_sum_avx512
                                 : has_avx2() ? block_sum_avx2
                                              : block_sum_sse2;
    for (uint32_t b = 0; b < row->blocks; b++) {
        uint64_t weight = 0;
        if ((block_max[b] - row->top) * row->inv_temp > -28.0f) /* exp(-28) < 2^-40 */
            weight = sum_of(block_at(row, b, tail), row);
        if (block_weight != NULL) block_weight[b] = weight;
        sum += weight;
    }
    return sum;
}

void sampling_block_weights(const struct sampling_row *row, uint32_t b, uint64_t weight[SAMPLING_BLOCK])
{
    float tail[SAMPLING_BLOCK];
    const float *x = block_at(row, b, tail);
    for (int i = 0; i < SAMPLING_BLOCK; i += 4) {
        uint32_t upper[4], lower[4];
        __m128i u, l;
        split_weight_sse2(exp_below_sse2(load_finite_sse2(x + i), row), &u, &l);
        _mm_storeu_si128((__m128i *)(void *)upper, u);
        _mm_storeu_si128((__m128i *)(void *)lower, l);
        for (int j = 0; j < 4; j++) weight[i + j] = ((uint64_t)upper[j] << 20) + lower[j];
    }
}

void sampling_weigh(const struct sampling_row *row, struct sampling_candidate *candidate, size_t n)
{
    for (size_t i = 0; i < n; i += 4) {
        float x[4] = {row->top, row->top, row->top, row->top};
        uint32_t upper[4], lower[4];
        __m128i u, l;
        size_t count = n - i < 4 ? n - i : 4;
        for (size_t j = 0; j < count; j++) x[j] = key_logit(candidate[i + j].key);
        split_weight_sse2(exp_below_sse2(_mm_loadu_ps(x), row), &u, &l);
        _mm_storeu_si128((__m128i *)(void *)upper, u);
        _mm_storeu_si128((__m128i *)(void *)lower, l);
        for (size_t j = 0; j < count; j++) candidate[i + j].weight = ((uint64_t)upper[j] << 20) + lower[j];
    }
}

size_t sampling_gather(const struct sampling_row *row, const float *block_max, float floor_logit,
                       struct sampling_candidate *candidate)
{
    const __m128 floor4 = _mm_max_ps(_mm_set1_ps(floor_logit), _mm_set1_ps(-FLT_MAX));
    float tail[SAMPLING_BLOCK];
    size_t n = 0;
    for (uint32_t b = 0; b < row->blocks; b++) {
        if (!(block_max[b] >= floor_logit) || block_max[b] == -INFINITY) continue;
        const float *x = block_at(row, b, tail);
        for (uint32_t i = 0; i < SAMPLING_BLOCK; i += 4) {
            int mask = _mm_movemask_ps(_mm_cmpge_ps(load_finite_sse2(x + i), floor4));
            if (mask == 0) continue;
            /* Written always (hence the slack of 4), kept by moving on: which ones stay is a coin's toss to a
             * branch predictor. */
            for (uint32_t j = 0; j < 4; j++, mask >>= 1) {
                candidate[n].key = falling_key(x[i + j], b * SAMPLING_BLOCK + i + j);
                n += (size_t)(mask & 1);
            }
        }
    }
    sampling_weigh(row, candidate, n);
    return n;
}

float sampling_logit_of(const struct sampling_row *row, double weight)
{
    double z = log(weight) - 1e-4; /* more than exp and the subtraction can be off by */
    return nextafterf((float)((double)row->top + z / (double)row->inv_temp), -INFINITY);
}
