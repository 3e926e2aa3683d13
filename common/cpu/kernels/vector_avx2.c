/* Elementwise operations with AVX2, FMA and F16C; tails fall to plain loops of the same arithmetic.
 *
 * Called through the table of common/cpu/kernels/kernels.c after the CPU check. Owns nothing. */
#include <immintrin.h>
#include <math.h>

#include "common/formats/convert.h"
#include "common/cpu/kernels/variants.h"

static inline float sum_lanes(__m256 v)
{
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
}

static void rmsnorm(float *y, const float *x, const float *w, size_t n, float eps)
{
    __m256 sum[4] = {_mm256_setzero_ps(), _mm256_setzero_ps(), _mm256_setzero_ps(), _mm256_setzero_ps()};
    size_t i = 0;
    for (; i + 32 <= n; i += 32)
        for (size_t j = 0; j < 4; j++) {
            __m256 v = _mm256_loadu_ps(x + i + j * 8);
            sum[j] = _mm256_fmadd_ps(v, v, sum[j]);
        }
    float total = sum_lanes(_mm256_add_ps(_mm256_add_ps(sum[0], sum[1]), _mm256_add_ps(sum[2], sum[3])));
    for (; i < n; i++) total += x[i] * x[i];
    float scale = 1.0f / sqrtf(total / (float)n + eps);
    for (i = 0; i + 8 <= n; i += 8) {
        __m256 v = _mm256_mul_ps(_mm256_loadu_ps(x + i), _mm256_set1_ps(scale));
        _mm256_storeu_ps(y + i, _mm256_mul_ps(v, _mm256_loadu_ps(w + i)));
    }
    for (; i < n; i++) y[i] = x[i] * scale * w[i];
}

static void rope(float *x, const float *cosine, const float *sine, size_t n)
{
    size_t half = n / 2, i = 0;
    for (; i + 8 <= half; i += 8) {
        __m256 a = _mm256_loadu_ps(x + i), b = _mm256_loadu_ps(x + i + half);
        __m256 c = _mm256_loadu_ps(cosine + i), s = _mm256_loadu_ps(sine + i);
        _mm256_storeu_ps(x + i, _mm256_fmsub_ps(a, c, _mm256_mul_ps(b, s)));
        _mm256_storeu_ps(x + i + half, _mm256_fmadd_ps(b, c, _mm256_mul_ps(a, s)));
    }
    for (; i < half; i++) {
        float a = x[i], b = x[i + half];
        x[i] = fmaf(a, cosine[i], -(b * sine[i]));
        x[i + half] = fmaf(b, cosine[i], a * sine[i]);
    }
}

/* e^v to about 1 ulp for finite v: v = n ln2 + r, |r| <= ln2 / 2, e^r by its Taylor polynomial of degree 7,
 * scaled by 2^n in two steps, since n may lie outside the exponent's range. A NaN stays one. */
static inline __m256 exp256(__m256 v)
{
    v = _mm256_min_ps(_mm256_set1_ps(90.0f), _mm256_max_ps(_mm256_set1_ps(-110.0f), v)); /* infinite; 0 */
    __m256 n = _mm256_round_ps(_mm256_mul_ps(v, _mm256_set1_ps(1.44269504f)),
                               _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    __m256 r =
        _mm256_fnmadd_ps(n, _mm256_set1_ps(0.693145752f), v); /* ln2 in two parts: the high one is short */
    r = _mm256_fnmadd_ps(n, _mm256_set1_ps(1.42860677e-6f), r);
    __m256 p = _mm256_set1_ps(1.0f / 5040);
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.0f / 720));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.0f / 120));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.0f / 24));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.0f / 6));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(0.5f));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.0f));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.0f));
    __m256i exponent = _mm256_cvtps_epi32(n), first = _mm256_srai_epi32(exponent, 1);
    __m256i second = _mm256_sub_epi32(exponent, first), bias = _mm256_set1_epi32(127);
    p = _mm256_mul_ps(p, _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(first, bias), 23)));
    return _mm256_mul_ps(p, _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(second, bias), 23)));
}

static inline __m256 swiglu8(__m256 gate, __m256 up)
{
    __m256 e = exp256(_mm256_sub_ps(_mm256_setzero_ps(), gate));
    return _mm256_mul_ps(_mm256_div_ps(gate, _mm256_add_ps(_mm256_set1_ps(1.0f), e)), up);
}

static void swiglu(float *y, const float *g, const float *u, size_t n)
{
    size_t i = 0;
    for (; i + 8 <= n; i += 8)
        _mm256_storeu_ps(y + i, swiglu8(_mm256_loadu_ps(g + i), _mm256_loadu_ps(u + i)));
    if (i < n) {
        float gate[8] = {0}, up[8] = {0};
        memcpy(gate, g + i, (n - i) * sizeof *gate);
        memcpy(up, u + i, (n - i) * sizeof *up);
        _mm256_storeu_ps(gate, swiglu8(_mm256_loadu_ps(gate), _mm256_loadu_ps(up)));
        memcpy(y + i, gate, (n - i) * sizeof *gate);
    }
}

static void add(float *y, const float *x, size_t n)
{
    size_t i = 0;
    for (; i + 8 <= n; i += 8)
        _mm256_storeu_ps(y + i, _mm256_add_ps(_mm256_loadu_ps(y + i), _mm256_loadu_ps(x + i)));
    for (; i < n; i++) y[i] += x[i];
}

void vector_avx2_load(float *y, const void *x, enum dtype dtype, size_t n)
{
    size_t i = 0;
    if (dtype == DTYPE_F32) {
        memcpy(y, x, n * sizeof *y);
        return;
    }
    for (; i + 8 <= n; i += 8) {
        __m128i half = _mm_loadu_si128((const void *)((const char *)x + i * 2));
        _mm256_storeu_ps(y + i, dtype == DTYPE_BF16
                                    ? _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16))
                                    : _mm256_cvtph_ps(half));
    }
    for (; i < n; i++) y[i] = convert_load(x, dtype, i);
}

/* As convert_f32_bf16: nearest even by adding 0x7fff and the last kept bit; NaN keeps its top bits, made
 * quiet. */
static inline __m128i to_bf16(__m256 v)
{
    __m256i bits = _mm256_castps_si256(v);
    __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    __m256i rounded = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
    __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(v, v, _CMP_UNORD_Q));
    rounded = _mm256_blendv_epi8(rounded, _mm256_or_si256(bits, _mm256_set1_epi32(0x400000)), nan);
    rounded = _mm256_srli_epi32(rounded, 16);
    __m256i packed = _mm256_packus_epi32(rounded, rounded);
    return _mm256_castsi256_si128(_mm256_permute4x64_epi64(packed, 0x08));
}

static void store(void *y, const float *x, enum dtype dtype, size_t n)
{
    size_t i = 0;
    if (dtype == DTYPE_F32) {
        memcpy(y, x, n * sizeof *x);
        return;
    }
    for (; i + 8 <= n; i += 8) {
        __m256 v = _mm256_loadu_ps(x + i);
        __m128i half = dtype == DTYPE_BF16 ? to_bf16(v) : _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT);
        _mm_storeu_si128((void *)((char *)y + i * 2), half);
    }
    for (; i < n; i++) {
        uint16_t half = dtype == DTYPE_BF16 ? convert_f32_bf16(x[i]) : convert_f32_f16(x[i]);
        memcpy((char *)y + i * 2, &half, 2);
    }
}

/* First the largest value (vmaxps returns its second operand when one is NaN, so NaN never enters), then the
 * first place that holds it. */
static size_t argmax(const float *x, size_t n)
{
    __m256 max = _mm256_set1_ps(-INFINITY);
    size_t i = 0;
    for (; i + 8 <= n; i += 8) max = _mm256_max_ps(_mm256_loadu_ps(x + i), max);
    float lanes[8], top = -INFINITY;
    _mm256_storeu_ps(lanes, max);
    for (size_t j = 0; j < 8; j++) top = lanes[j] > top ? lanes[j] : top;
    for (; i < n; i++) top = x[i] > top ? x[i] : top;
    for (i = 0; i + 8 <= n; i += 8) {
        int hit = _mm256_movemask_ps(_mm256_cmp_ps(_mm256_loadu_ps(x + i), _mm256_set1_ps(top), _CMP_EQ_OQ));
        if (hit) return i + (size_t)__builtin_ctz((unsigned)hit);
    }
    for (; i < n; i++)
        if (x[i] == top) return i;
    return n;
}

const struct vector_variant vector_avx2 = {.name = "avx2",
                                           .features = CPU_AVX2,
                                           .rmsnorm = rmsnorm,
                                           .rope = rope,
                                           .swiglu = swiglu,
                                           .add = add,
                                           .load = vector_avx2_load,
                                           .store = store,
                                           .argmax = argmax};
