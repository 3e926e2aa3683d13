/* The passes over a whole row of logits: block maxima, weights, and the gathering of candidates.
 *
 * Called by common/sampling/sampling.c. Owns nothing. Plain SSE2, which every x86-64 has, in an order of operations
 * that is written down here and so gives the same bits everywhere; the longest pass has an AVX2 version of
 * the same bits. */
#include "common/sampling/pass.h"

#include <float.h>
#include <immintrin.h>
#include <math.h>
#include <stdbool.h>

static inline __m128 select4(__m128 mask, __m128 yes, __m128 no)
{
    return _mm_or_ps(_mm_and_ps(mask, yes), _mm_andnot_ps(mask, no));
}

/* Non-finite logits become -inf. */
static inline __m128 load_finite(const float *x)
{
    __m128 v = _mm_loadu_ps(x);
    __m128i size = _mm_and_si128(_mm_castps_si128(v), _mm_set1_epi32(0x7fffffff));
    __m128 finite = _mm_castsi128_ps(_mm_cmpgt_epi32(_mm_set1_epi32(0x7f800000), size));
    return select4(finite, v, _mm_set1_ps(-INFINITY));
}

/* exp((x - top) * inv_temp), from 1 down to about 1e-38 (which weighs 0) for everything far below. x = n ln 2
 * + r, |r| <= ln 2 / 2; adding and subtracting 1.5 * 2^23 rounds to the nearest whole number. */
static inline __m128 exp_below(__m128 x, const struct sampling_row *row)
{
    const __m128 magic = _mm_set1_ps(12582912.0f);
    __m128 z = _mm_mul_ps(_mm_sub_ps(x, _mm_set1_ps(row->top)), _mm_set1_ps(row->inv_temp));
    z = _mm_max_ps(z, _mm_set1_ps(-87.0f));
    __m128 shifted = _mm_add_ps(_mm_mul_ps(z, _mm_set1_ps(1.44269504f)), magic);
    __m128 n = _mm_sub_ps(shifted, magic);
    __m128 r = _mm_sub_ps(z, _mm_mul_ps(n, _mm_set1_ps(0.693359375f)));
    r = _mm_add_ps(r, _mm_mul_ps(n, _mm_set1_ps(2.12194440e-4f)));
    __m128 p = _mm_set1_ps(1.9875691500e-4f);
    p = _mm_add_ps(_mm_mul_ps(p, r), _mm_set1_ps(1.3981999507e-3f));
    p = _mm_add_ps(_mm_mul_ps(p, r), _mm_set1_ps(8.3334519073e-3f));
    p = _mm_add_ps(_mm_mul_ps(p, r), _mm_set1_ps(4.1665795894e-2f));
    p = _mm_add_ps(_mm_mul_ps(p, r), _mm_set1_ps(1.6666665459e-1f));
    p = _mm_add_ps(_mm_mul_ps(p, r), _mm_set1_ps(5.0000001201e-1f));
    p = _mm_add_ps(_mm_mul_ps(p, _mm_mul_ps(r, r)), _mm_add_ps(r, _mm_set1_ps(1.0f)));
    __m128i exponent =
        _mm_slli_epi32(_mm_castps_si128(shifted), 23); /* n in the exponent's place, modulo 2^32 */
    __m128 e = _mm_castsi128_ps(_mm_add_epi32(_mm_castps_si128(p), exponent));
    return _mm_min_ps(e, _mm_set1_ps(1.0f));
}

/* floor(e * 2^40) = upper * 2^20 + lower, each part a 32-bit lane. */
static inline void split_weight(__m128 e, __m128i *upper, __m128i *lower)
{
    const __m128 scale = _mm_set1_ps(1048576.0f);
    __m128 scaled = _mm_mul_ps(e, scale);
    *upper = _mm_cvttps_epi32(scaled);
    *lower = _mm_cvttps_epi32(_mm_mul_ps(_mm_sub_ps(scaled, _mm_cvtepi32_ps(*upper)), scale));
}

static inline uint64_t sum_lanes(__m128i x)
{
    uint32_t lane[4];
    _mm_storeu_si128((__m128i *)(void *)lane, x);
    return (uint64_t)lane[0] + lane[1] + lane[2] + lane[3];
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

static float max_lanes(__m128 x)
{
    float lane[4], top = -INFINITY;
    _mm_storeu_ps(lane, x);
    for (int i = 0; i < 4; i++) top = lane[i] > top ? lane[i] : top;
    return top;
}

/* Largest of one block; also with AVX2, whose one comparison more or less cannot differ. */
static __m128 block_max_sse2(const float *x)
{
    __m128 a = load_finite(x), c = load_finite(x + 4);
    for (int i = 8; i < SAMPLING_BLOCK; i += 8) {
        a = _mm_max_ps(a, load_finite(x + i));
        c = _mm_max_ps(c, load_finite(x + i + 4));
    }
    return _mm_max_ps(a, c);
}

__attribute__((target("avx2"))) static inline __m256 load_finite_avx2(const float *x)
{
    __m256 v = _mm256_loadu_ps(x);
    __m256i size = _mm256_and_si256(_mm256_castps_si256(v), _mm256_set1_epi32(0x7fffffff));
    __m256i finite = _mm256_cmpgt_epi32(_mm256_set1_epi32(0x7f800000), size);
    return _mm256_blendv_ps(_mm256_set1_ps(-INFINITY), v, _mm256_castsi256_ps(finite));
}

__attribute__((target("avx2"))) static __m128 block_max_avx2(const float *x)
{
    __m256 a = load_finite_avx2(x), c = load_finite_avx2(x + 8);
    for (int i = 16; i < SAMPLING_BLOCK; i += 16) {
        a = _mm256_max_ps(a, load_finite_avx2(x + i));
        c = _mm256_max_ps(c, load_finite_avx2(x + i + 8));
    }
    a = _mm256_max_ps(a, c);
    return _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
}

void sampling_find_maxima(struct sampling_row *row, float *block_max)
{
    float tail[SAMPLING_BLOCK];
    __m128 top = _mm_set1_ps(-INFINITY);
    bool avx2 = __builtin_cpu_supports("avx2") != 0;
    for (uint32_t b = 0; b < row->blocks; b++) {
        const float *x = block_at(row, b, tail);
        __m128 a = avx2 ? block_max_avx2(x) : block_max_sse2(x);
        a = _mm_max_ps(a, _mm_movehl_ps(a, a));
        a = _mm_max_ss(a, _mm_shuffle_ps(a, a, 1));
        block_max[b] = _mm_cvtss_f32(a);
        top = _mm_max_ss(top, a);
    }
    row->top = max_lanes(top);
}

/* Sum of one block's weights. Three versions with the same bits: wider ones take less of the longest pass;
 * their lanes do the same multiplications and additions in the same order (no FMA), so nothing depends on
 * which one ran. */
static uint64_t block_sum_sse2(const float *x, const struct sampling_row *row)
{
    __m128i upper = _mm_setzero_si128(), lower = _mm_setzero_si128(), u, l;
    for (int i = 0; i < SAMPLING_BLOCK; i += 4) {
        split_weight(exp_below(load_finite(x + i), row), &u, &l);
        upper = _mm_add_epi32(upper, u);
        lower = _mm_add_epi32(lower, l);
    }
    return (sum_lanes(upper) << 20) + sum_lanes(lower);
}

__attribute__((target("avx2"))) static uint64_t block_sum_avx2(const float *x, const struct sampling_row *row)
{
    const __m256 magic = _mm256_set1_ps(12582912.0f), scale = _mm256_set1_ps(1048576.0f),
                 one = _mm256_set1_ps(1.0f);
    const __m256 top = _mm256_set1_ps(row->top), inv_temp = _mm256_set1_ps(row->inv_temp);
    __m256i upper = _mm256_setzero_si256(), lower = _mm256_setzero_si256();
    for (int i = 0; i < SAMPLING_BLOCK; i += 8) {
        __m256 v = load_finite_avx2(x + i);
        __m256 z = _mm256_max_ps(_mm256_mul_ps(_mm256_sub_ps(v, top), inv_temp), _mm256_set1_ps(-87.0f));
        __m256 shifted = _mm256_add_ps(_mm256_mul_ps(z, _mm256_set1_ps(1.44269504f)), magic);
        __m256 n = _mm256_sub_ps(shifted, magic);
        __m256 r = _mm256_sub_ps(z, _mm256_mul_ps(n, _mm256_set1_ps(0.693359375f)));
        r = _mm256_add_ps(r, _mm256_mul_ps(n, _mm256_set1_ps(2.12194440e-4f)));
        __m256 p = _mm256_set1_ps(1.9875691500e-4f);
        p = _mm256_add_ps(_mm256_mul_ps(p, r), _mm256_set1_ps(1.3981999507e-3f));
        p = _mm256_add_ps(_mm256_mul_ps(p, r), _mm256_set1_ps(8.3334519073e-3f));
        p = _mm256_add_ps(_mm256_mul_ps(p, r), _mm256_set1_ps(4.1665795894e-2f));
        p = _mm256_add_ps(_mm256_mul_ps(p, r), _mm256_set1_ps(1.6666665459e-1f));
        p = _mm256_add_ps(_mm256_mul_ps(p, r), _mm256_set1_ps(5.0000001201e-1f));
        p = _mm256_add_ps(_mm256_mul_ps(p, _mm256_mul_ps(r, r)), _mm256_add_ps(r, one));
        __m256i exponent = _mm256_slli_epi32(_mm256_castps_si256(shifted), 23);
        __m256 e = _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(p), exponent));
        __m256 scaled = _mm256_mul_ps(_mm256_min_ps(e, one), scale);
        __m256i u = _mm256_cvttps_epi32(scaled);
        upper = _mm256_add_epi32(upper, u);
        __m256 rest = _mm256_mul_ps(_mm256_sub_ps(scaled, _mm256_cvtepi32_ps(u)), scale);
        lower = _mm256_add_epi32(lower, _mm256_cvttps_epi32(rest));
    }
    __m128i u = _mm_add_epi32(_mm256_castsi256_si128(upper), _mm256_extracti128_si256(upper, 1));
    __m128i l = _mm_add_epi32(_mm256_castsi256_si128(lower), _mm256_extracti128_si256(lower, 1));
    return (sum_lanes(u) << 20) + sum_lanes(l);
}

__attribute__((target("avx512f"))) static uint64_t block_sum_avx512(const float *x,
                                                                    const struct sampling_row *row)
{
    const __m512 magic = _mm512_set1_ps(12582912.0f), scale = _mm512_set1_ps(1048576.0f),
                 one = _mm512_set1_ps(1.0f);
    const __m512 top = _mm512_set1_ps(row->top), inv_temp = _mm512_set1_ps(row->inv_temp);
    __m512i upper = _mm512_setzero_si512(), lower = _mm512_setzero_si512();
    for (int i = 0; i < SAMPLING_BLOCK; i += 16) {
        __m512 v = _mm512_loadu_ps(x + i);
        __m512i size = _mm512_and_si512(_mm512_castps_si512(v), _mm512_set1_epi32(0x7fffffff));
        __mmask16 finite = _mm512_cmplt_epi32_mask(size, _mm512_set1_epi32(0x7f800000));
        v = _mm512_mask_mov_ps(_mm512_set1_ps(-INFINITY), finite, v);
        __m512 z = _mm512_max_ps(_mm512_mul_ps(_mm512_sub_ps(v, top), inv_temp), _mm512_set1_ps(-87.0f));
        __m512 shifted = _mm512_add_ps(_mm512_mul_ps(z, _mm512_set1_ps(1.44269504f)), magic);
        __m512 n = _mm512_sub_ps(shifted, magic);
        __m512 r = _mm512_sub_ps(z, _mm512_mul_ps(n, _mm512_set1_ps(0.693359375f)));
        r = _mm512_add_ps(r, _mm512_mul_ps(n, _mm512_set1_ps(2.12194440e-4f)));
        __m512 p = _mm512_set1_ps(1.9875691500e-4f);
        p = _mm512_add_ps(_mm512_mul_ps(p, r), _mm512_set1_ps(1.3981999507e-3f));
        p = _mm512_add_ps(_mm512_mul_ps(p, r), _mm512_set1_ps(8.3334519073e-3f));
        p = _mm512_add_ps(_mm512_mul_ps(p, r), _mm512_set1_ps(4.1665795894e-2f));
        p = _mm512_add_ps(_mm512_mul_ps(p, r), _mm512_set1_ps(1.6666665459e-1f));
        p = _mm512_add_ps(_mm512_mul_ps(p, r), _mm512_set1_ps(5.0000001201e-1f));
        p = _mm512_add_ps(_mm512_mul_ps(p, _mm512_mul_ps(r, r)), _mm512_add_ps(r, one));
        __m512i exponent = _mm512_slli_epi32(_mm512_castps_si512(shifted), 23);
        __m512 e = _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(p), exponent));
        __m512 scaled = _mm512_mul_ps(_mm512_min_ps(e, one), scale);
        __m512i u = _mm512_cvttps_epi32(scaled);
        upper = _mm512_add_epi32(upper, u);
        __m512 rest = _mm512_mul_ps(_mm512_sub_ps(scaled, _mm512_cvtepi32_ps(u)), scale);
        lower = _mm512_add_epi32(lower, _mm512_cvttps_epi32(rest));
    }
    return ((uint64_t)(uint32_t)_mm512_reduce_add_epi32(upper) << 20) +
           (uint32_t)_mm512_reduce_add_epi32(lower);
}

uint64_t sampling_find_weights(const struct sampling_row *row, const float *block_max, uint64_t *block_weight)
{
    float tail[SAMPLING_BLOCK];
    uint64_t sum = 0;
    bool avx512 = __builtin_cpu_supports("avx512f") != 0, avx2 = __builtin_cpu_supports("avx2") != 0;
    for (uint32_t b = 0; b < row->blocks; b++) {
        uint64_t weight = 0;
        if ((block_max[b] - row->top) * row->inv_temp > -28.0f) { /* exp(-28) < 2^-40 */
            const float *x = block_at(row, b, tail);
            weight = avx512 ? block_sum_avx512(x, row)
                     : avx2 ? block_sum_avx2(x, row)
                            : block_sum_sse2(x, row);
        }
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
        split_weight(exp_below(load_finite(x + i), row), &u, &l);
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
        split_weight(exp_below(_mm_loadu_ps(x), row), &u, &l);
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
            int mask = _mm_movemask_ps(_mm_cmpge_ps(load_finite(x + i), floor4));
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
