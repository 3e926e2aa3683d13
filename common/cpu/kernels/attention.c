/* Attention's table of variants, the choice among them, the exact merge of partial results, and the writer of
 * the KV cache.
 *
 * Called by worker-cpu/step.c, by tests/kernels/test_attention.c (which walks the table) and by the kernel
 * benchmark. Owns only constants. The kernels themselves are common/cpu/kernels/attention_*.c. */
#include "common/cpu/kernels/attention.h"

#include <emmintrin.h>
#include <math.h>
#include <string.h>

#include "common/cpu/kernels/attention_kernels.h"

#define VARIANT(variant_name, needs, dtype, function)                                                        \
    &(const struct attention_variant)                                                                        \
    {                                                                                                        \
        .name = variant_name, .features = needs, .kv_dtype = dtype, .attend = attention_attend_##function,   \
        .scratch_bytes = attention_scratch_##function                                                        \
    }
#define VARIANT_FOR_ALL(variant_name, needs, function)                                                       \
    VARIANT(variant_name, needs, KV_F32, function), VARIANT(variant_name, needs, KV_F16, function),          \
        VARIANT(variant_name, needs, KV_BF16, function), VARIANT(variant_name, needs, KV_Q8_0, function)

#define AMX (CPU_AVX2 | CPU_AVX512 | CPU_AVX512_BF16 | CPU_AVX512_VBMI2 | CPU_AMX_BF16)

/* Slowest first. */
static const struct attention_variant *const variants[] = {
    VARIANT_FOR_ALL("ref", 0, ref),
    VARIANT_FOR_ALL("avx2", CPU_AVX2, avx2),
    VARIANT_FOR_ALL("avx512", CPU_AVX2 | CPU_AVX512, avx512),
    VARIANT("avx512-bf16", CPU_AVX2 | CPU_AVX512 | CPU_AVX512_BF16, KV_BF16, avx512bf16),
    VARIANT("avx512-bf16", CPU_AVX2 | CPU_AVX512 | CPU_AVX512_BF16, KV_Q8_0, avx512bf16),
    VARIANT("avx512-vbmi2", CPU_AVX2 | CPU_AVX512 | CPU_AVX512_BF16 | CPU_AVX512_VBMI2, KV_Q8_0,
            avx512bf16vbmi2),
    VARIANT("amx-bf16", AMX, KV_F16, parts_amxvbmi2),
    VARIANT("amx-bf16", AMX, KV_BF16, amxvbmi2),
    VARIANT("amx-bf16", AMX, KV_Q8_0, amxvbmi2),
    VARIANT("amx-int8", AMX, KV_Q8_0, amxint8),
};
#define VARIANT_COUNT (sizeof(variants) / sizeof(variants[0]))

const struct attention_variant *const *attention_variants(size_t *count)
{
    *count = VARIANT_COUNT;
    return variants;
}

int attention_choose(enum kv_dtype kv_dtype, unsigned features, const char *name,
                     const struct attention_variant **variant, struct helm_err *err)
{
    char text[128];
    const struct attention_variant *lacking = NULL;
    bool known = false;
    *variant = NULL;
    for (size_t i = 0; i < VARIANT_COUNT; i++) {
        if (name != NULL && strcmp(variants[i]->name, name) != 0) continue;
        known = true;
        if (variants[i]->kv_dtype != kv_dtype) continue;
        if ((variants[i]->features & ~features) != 0)
            lacking = variants[i];
        else
            *variant = variants[i];
    }
    if (*variant != NULL) return 0;
    if (!known) return helm_fail(err, HELM_E_UNSUPPORTED, "attention kernel \"%s\" does not exist", name);
    if (lacking == NULL)
        return helm_fail(err, HELM_E_UNSUPPORTED,
                         "attention kernel %s%s%s does not read a KV cache of type %d (%s)",
                         name != NULL ? "\"" : "", name != NULL ? name : "(any)", name != NULL ? "\"" : "",
                         kv_dtype, kv_dtype_name(kv_dtype));
    return helm_fail(err, HELM_E_UNSUPPORTED, "attention kernel \"%s\" needs %s, which this processor lacks",
                     lacking->name, cpu_features_text(lacking->features & ~features, text, sizeof(text)));
}

void attention_merge(float *out, const struct attention_parts *all, size_t n, size_t head_dim)
{
    const float *const *o = all->o, *const *m = all->m, *const *s = all->s;
    const size_t parts = all->count;
    for (size_t i = 0; i < n; i++) {
        float top = -INFINITY;
        double sum = 0;
        for (size_t p = 0; p < parts; p++)
            if (m[p][i] > top) top = m[p][i];
        for (size_t p = 0; p < parts; p++)
            if (s[p][i] != 0) sum += exp((double)m[p][i] - (double)top) * (double)s[p][i];
        sum = attention_sum_with((double)top, sum, all->sinks ? all->sinks + i : NULL);
        float *to = out + i * head_dim;
        memset(to, 0, head_dim * sizeof(*to));
        for (size_t p = 0; p < parts; p++) {
            if (s[p][i] == 0) continue; /* nothing visible in that part: its m is -infinity */
            float weight = (float)(exp((double)m[p][i] - (double)top) / sum);
            const float *from = o[p] + i * head_dim;
            for (size_t d = 0; d < head_dim; d++) to[d] += weight * from[d];
        }
    }
}

void attention_fold(float *m, float *s, float *o, float m_piece, float s_piece, const float *o_piece,
                    size_t head_dim)
{
    if (s_piece == 0) return;
    const float top = *m > m_piece ? *m : m_piece;
    const float stale = expf(*m - top), fresh = expf(m_piece - top); /* of m = -infinity: 0 */
    *s = stale * *s + fresh * s_piece;
    size_t d = 0;
    for (; d + 4 <= head_dim; d += 4)
        _mm_storeu_ps(o + d, _mm_add_ps(_mm_mul_ps(_mm_set1_ps(stale), _mm_loadu_ps(o + d)),
                                        _mm_mul_ps(_mm_set1_ps(fresh), _mm_loadu_ps(o_piece + d))));
    for (; d < head_dim; d++) o[d] = stale * o[d] + fresh * o_piece[d];
    *m = top;
}

/* Four floats to bf16, round to nearest even; a NaN keeps its sign and upper bits and stays a NaN. In each
 * lane's lower half. */
static __m128i bf16_of(__m128 x)
{
    __m128i bits = _mm_castps_si128(x), upper = _mm_srli_epi32(bits, 16);
    __m128i odd = _mm_and_si128(upper, _mm_set1_epi32(1));
    __m128i rounded = _mm_srli_epi32(_mm_add_epi32(_mm_add_epi32(bits, _mm_set1_epi32(0x7fff)), odd), 16);
    __m128i nan = _mm_castps_si128(_mm_cmpunord_ps(x, x));
    __m128i quiet = _mm_or_si128(upper, _mm_set1_epi32(0x40));
    return _mm_or_si128(_mm_and_si128(nan, quiet), _mm_andnot_si128(nan, rounded));
}

/* Four floats to IEEE half, round to nearest even; too large becomes infinity, NaN stays NaN. In each lane's
 * lower half. */
static __m128i f16_of(__m128 x)
{
    const __m128i inf16_as_f32 = _mm_set1_epi32((127 + 16) << 23), inf32 = _mm_set1_epi32(255 << 23);
    __m128i bits = _mm_castps_si128(x), sign = _mm_and_si128(bits, _mm_set1_epi32((int)0x80000000u));
    __m128i size = _mm_xor_si128(bits, sign);
    __m128i huge = _mm_cmpgt_epi32(size, _mm_sub_epi32(inf16_as_f32, _mm_set1_epi32(1)));
    __m128i nan = _mm_cmpgt_epi32(size, inf32);
    __m128i small =
        _mm_cmpgt_epi32(_mm_set1_epi32((127 - 14) << 23), size); /* below the smallest normal half */
    /* Normal: rebias the exponent, add half a unit less one plus the last bit kept, cut. */
    __m128i last = _mm_and_si128(_mm_srli_epi32(size, 13), _mm_set1_epi32(1));
    __m128i normal = _mm_add_epi32(size, _mm_set1_epi32((int)((0u - ((127u - 15u) << 23)) + 0xfffu)));
    normal = _mm_srli_epi32(_mm_add_epi32(normal, last), 13);
    /* Subnormal: adding 0.5 makes the adder round at 2^-24, the unit of subnormal halves. */
    __m128 half = _mm_set1_ps(0.5f);
    __m128i tiny =
        _mm_sub_epi32(_mm_castps_si128(_mm_add_ps(_mm_castsi128_ps(size), half)), _mm_castps_si128(half));
    __m128i special = _mm_or_si128(_mm_set1_epi32(0x7c00), _mm_and_si128(nan, _mm_set1_epi32(0x200)));
    __m128i value = _mm_or_si128(_mm_and_si128(small, tiny), _mm_andnot_si128(small, normal));
    value = _mm_or_si128(_mm_and_si128(huge, special), _mm_andnot_si128(huge, value));
    return _mm_or_si128(value, _mm_srli_epi32(sign, 16));
}

/* The lower halves of a's and b's lanes as eight 16-bit values (SSE2 packs only with signed saturation, hence
 * the sign extension first). */
static __m128i pack_lower_halves(__m128i a, __m128i b)
{
    return _mm_packs_epi32(_mm_srai_epi32(_mm_slli_epi32(a, 16), 16),
                           _mm_srai_epi32(_mm_slli_epi32(b, 16), 16));
}

void kv_append(const struct kv_layout *kv, void *pool, const uint32_t *pages, uint32_t layer, bool is_value,
               uint32_t kv_head, uint32_t position, const float *x)
{
    uint64_t at = kv_offset(kv, pages[position / kv->page_tokens], layer, is_value, kv_head);
    uint32_t token = position % kv->page_tokens;
    char *rows = (char *)pool + at;
    char *to = rows + (uint64_t)token * kv_number_bytes(kv->dtype, kv->head_dim);
    size_t n = kv->head_dim;
    if (kv->dtype == KV_Q8_0) {
        uint16_t *scales = (uint16_t *)(void *)(rows + kv_scales_at(kv)) + token * (n / KV_Q8_0_VALUES);
        for (size_t d = 0; d < n; d += KV_Q8_0_VALUES)
            kv_q8_0_write(x + d, (int8_t *)to + d, scales + d / KV_Q8_0_VALUES);
        return;
    }
    if (kv->dtype == KV_F32) {
        memcpy(to, x, n * sizeof(*x));
        return;
    }
    /* Eight at a time with the instructions every x86-64 has: one token's heads are written by one thread
     * between two matrix products, so this must not be felt. */
    bool bf16 = kv->dtype == KV_BF16;
    for (size_t d = 0; d < n; d += 8) {
        float eight[8] = {0};
        uint16_t halves[8];
        size_t left = n - d < 8 ? n - d : 8;
        const float *from = x + d;
        if (left < 8) from = memcpy(eight, from, left * sizeof(*from));
        __m128 a = _mm_loadu_ps(from), b = _mm_loadu_ps(from + 4);
        __m128i packed =
            bf16 ? pack_lower_halves(bf16_of(a), bf16_of(b)) : pack_lower_halves(f16_of(a), f16_of(b));
        if (left == 8) {
            _mm_storeu_si128((__m128i *)(void *)(to + 2 * d), packed);
        } else {
            _mm_storeu_si128((__m128i *)(void *)halves, packed);
            memcpy(to + 2 * d, halves, left * sizeof(*halves));
        }
    }
}
