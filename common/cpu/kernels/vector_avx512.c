/* Elementwise operations with AVX-512 (F, BW, VL, DQ) and F16C. Tails are masked, so any length takes one
 * path.
 *
 * Called through the table of common/cpu/kernels/kernels.c after the CPU check. Owns nothing. */
#include <immintrin.h>
#include <math.h>

#include "common/cpu/kernels/variants.h"

static inline __mmask16 tail_mask(size_t left)
{
    return left >= 16 ? 0xffff : (__mmask16)((1u << left) - 1);
}

static void rmsnorm(float *y, const float *x, const float *w, size_t n, float eps)
{
    __m512 sum[4] = {_mm512_setzero_ps(), _mm512_setzero_ps(), _mm512_setzero_ps(), _mm512_setzero_ps()};
    for (size_t i = 0; i < n; i += 64)
        for (size_t j = 0; j < 4 && i + j * 16 < n; j++) {
            __m512 v = _mm512_maskz_loadu_ps(tail_mask(n - i - j * 16), x + i + j * 16);
            sum[j] = _mm512_fmadd_ps(v, v, sum[j]);
        }
    float total =
        _mm512_reduce_add_ps(_mm512_add_ps(_mm512_add_ps(sum[0], sum[1]), _mm512_add_ps(sum[2], sum[3])));
    __m512 scale = _mm512_set1_ps(1.0f / sqrtf(total / (float)n + eps));
    for (size_t i = 0; i < n; i += 16) {
        __mmask16 mask = tail_mask(n - i);
        __m512 v = _mm512_mul_ps(_mm512_maskz_loadu_ps(mask, x + i), scale);
        _mm512_mask_storeu_ps(y + i, mask, _mm512_mul_ps(v, _mm512_maskz_loadu_ps(mask, w + i)));
    }
}

static void rope(float *x, const float *cosine, const float *sine, size_t n)
{
    size_t half = n / 2;
    for (size_t i = 0; i < half; i += 16) {
        __mmask16 mask = tail_mask(half - i);
        __m512 a = _mm512_maskz_loadu_ps(mask, x + i), b = _mm512_maskz_loadu_ps(mask, x + i + half);
        __m512 c = _mm512_maskz_loadu_ps(mask, cosine + i), s = _mm512_maskz_loadu_ps(mask, sine + i);
        _mm512_mask_storeu_ps(x + i, mask, _mm512_fmsub_ps(a, c, _mm512_mul_ps(b, s)));
        _mm512_mask_storeu_ps(x + i + half, mask, _mm512_fmadd_ps(b, c, _mm512_mul_ps(a, s)));
    }
}

/* e^v to about 1 ulp: v = n ln2 + r, |r| <= ln2 / 2, e^r by its Taylor polynomial of degree 7 (remainder
 * 6e-9), scaled by 2^n (scalef saturates to 0 and infinity by itself; a NaN stays one). */
static inline __m512 exp512(__m512 v)
{
    /* Beyond these e^v is 0 or infinite anyway; without the limits r would be inf - inf. */
    v = _mm512_min_ps(_mm512_set1_ps(130.0f), _mm512_max_ps(_mm512_set1_ps(-130.0f), v));
    __m512 n = _mm512_roundscale_ps(_mm512_mul_ps(v, _mm512_set1_ps(1.44269504f)), _MM_FROUND_TO_NEAREST_INT);
    __m512 r =
        _mm512_fnmadd_ps(n, _mm512_set1_ps(0.693145752f), v); /* ln2 in two parts: the high one is short */
    r = _mm512_fnmadd_ps(n, _mm512_set1_ps(1.42860677e-6f), r);
    __m512 p = _mm512_set1_ps(1.0f / 5040);
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f / 720));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f / 120));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f / 24));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f / 6));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(0.5f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f));
    return _mm512_scalef_ps(p, n);
}

static void swiglu(float *y, const float *g, const float *u, size_t n)
{
    const __m512 one = _mm512_set1_ps(1.0f);
    for (size_t i = 0; i < n; i += 16) {
        __mmask16 mask = tail_mask(n - i);
        __m512 gate = _mm512_maskz_loadu_ps(mask, g + i), up = _mm512_maskz_loadu_ps(mask, u + i);
        __m512 e = exp512(_mm512_sub_ps(_mm512_setzero_ps(), gate));
        __m512 silu = _mm512_div_ps(gate, _mm512_add_ps(one, e));
        _mm512_mask_storeu_ps(y + i, mask, _mm512_mul_ps(silu, up));
    }
}

static void add(float *y, const float *x, size_t n)
{
    for (size_t i = 0; i < n; i += 16) {
        __mmask16 mask = tail_mask(n - i);
        __m512 sum = _mm512_add_ps(_mm512_maskz_loadu_ps(mask, y + i), _mm512_maskz_loadu_ps(mask, x + i));
        _mm512_mask_storeu_ps(y + i, mask, sum);
    }
}

static void load(float *y, const void *x, enum dtype dtype, size_t n)
{
    for (size_t i = 0; i < n; i += 16) {
        __mmask16 mask = tail_mask(n - i);
        __m512 v;
        if (dtype == DTYPE_F32) {
            v = _mm512_maskz_loadu_ps(mask, (const float *)x + i);
        } else {
            __m256i half = _mm256_maskz_loadu_epi16(mask, (const uint16_t *)x + i);
            v = dtype == DTYPE_BF16 ? _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16))
                                    : _mm512_cvtph_ps(half);
        }
        _mm512_mask_storeu_ps(y + i, mask, v);
    }
}

/* As convert_f32_bf16: nearest even by adding 0x7fff and the last kept bit; NaN keeps its top bits, made
 * quiet. */
static inline __m256i to_bf16(__m512 v)
{
    __m512i bits = _mm512_castps_si512(v);
    __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    __m512i rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
    __mmask16 nan = _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
    rounded = _mm512_mask_or_epi32(rounded, nan, bits, _mm512_set1_epi32(0x400000));
    return _mm512_cvtepi32_epi16(_mm512_srli_epi32(rounded, 16));
}

static void store(void *y, const float *x, enum dtype dtype, size_t n)
{
    for (size_t i = 0; i < n; i += 16) {
        __mmask16 mask = tail_mask(n - i);
        __m512 v = _mm512_maskz_loadu_ps(mask, x + i);
        if (dtype == DTYPE_F32) {
            _mm512_mask_storeu_ps((float *)y + i, mask, v);
        } else {
            __m256i half = dtype == DTYPE_BF16
                               ? to_bf16(v)
                               : _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
            _mm256_mask_storeu_epi16((uint16_t *)y + i, mask, half);
        }
    }
}

/* First the largest value (vmaxps returns its second operand when one is NaN, so NaN never enters), then the
 * first place that holds it. */
static size_t argmax(const float *x, size_t n)
{
    const __m512 low = _mm512_set1_ps(-INFINITY);
    __m512 max[4] = {low, low, low, low};
    size_t i = 0;
    for (; i + 64 <= n; i += 64)
        for (size_t j = 0; j < 4; j++) max[j] = _mm512_max_ps(_mm512_loadu_ps(x + i + j * 16), max[j]);
    for (; i < n; i += 16) max[0] = _mm512_max_ps(_mm512_mask_loadu_ps(low, tail_mask(n - i), x + i), max[0]);
    float top =
        _mm512_reduce_max_ps(_mm512_max_ps(_mm512_max_ps(max[0], max[1]), _mm512_max_ps(max[2], max[3])));
    const __m512 wanted = _mm512_set1_ps(top);
    for (i = 0; i < n; i += 16) {
        __mmask16 mask = tail_mask(n - i);
        __mmask16 hit = _mm512_mask_cmp_ps_mask(mask, _mm512_maskz_loadu_ps(mask, x + i), wanted, _CMP_EQ_OQ);
        if (hit) return i + (size_t)__builtin_ctz(hit);
    }
    return n;
}

const struct vector_variant vector_avx512 = {.name = "avx512",
                                             .features = CPU_AVX2 | CPU_AVX512,
                                             .rmsnorm = rmsnorm,
                                             .rope = rope,
                                             .swiglu = swiglu,
                                             .add = add,
                                             .load = load,
                                             .store = store,
                                             .argmax = argmax};
