/* Names of the KV cache's types, and the writer of quantised blocks. See kv_dtype.h. */
#include "common/formats/kv_dtype.h"

#include <emmintrin.h>

static const char *const names[KV_DTYPE_COUNT] = {
    [KV_BF16] = "bf16", [KV_F16] = "f16", [KV_F32] = "f32", [KV_Q8_0] = "q8_0"};

const char *kv_dtype_name(enum kv_dtype dtype)
{
    return (unsigned)dtype < KV_DTYPE_COUNT ? names[dtype] : "unknown";
}

enum kv_dtype kv_dtype_named(const char *name)
{
    int i = 0;
    while (i < KV_DTYPE_COUNT && strcmp(names[i], name) != 0) i++;
    return (enum kv_dtype)i;
}

/* The largest magnitude's bits: of a block with a NaN one of those, since they are the largest. */
static uint32_t largest_bits(const float *x)
{
    const __m128i magnitude = _mm_set1_epi32(0x7fffffff);
    __m128i most = _mm_setzero_si128();
    for (int i = 0; i < KV_Q8_0_VALUES; i += 4) {
        __m128i bits = _mm_and_si128(_mm_castps_si128(_mm_loadu_ps(x + i)), magnitude);
        __m128i more = _mm_cmpgt_epi32(bits, most);
        most = _mm_or_si128(_mm_and_si128(more, bits), _mm_andnot_si128(more, most));
    }
    uint32_t lane[4], largest = 0;
    _mm_storeu_si128((__m128i *)(void *)lane, most);
    for (int i = 0; i < 4; i++)
        if (lane[i] > largest) largest = lane[i];
    return largest;
}

/* With the instructions that every x86-64 has: one token's heads are written by one thread between two matrix
 * products. */
void kv_q8_0_write(const float x[KV_Q8_0_VALUES], int8_t number[KV_Q8_0_VALUES], uint16_t *scale)
{
    const uint32_t largest = largest_bits(x);
    uint16_t half = largest < 0x7f800000u ? convert_f32_f16(convert_bits_f32(largest) / 127) : 0x7e00;
    if (half >= 0x7c00) half = 0x7e00;
    *scale = half;
    if (half == 0 || half == 0x7e00) {
        memset(number, 0, KV_Q8_0_VALUES);
        return;
    }
    const __m128 inverse = _mm_set1_ps(1 / convert_f16_f32(half));
    const __m128i most = _mm_set1_epi16(127), least = _mm_set1_epi16(-127);
    for (int i = 0; i < KV_Q8_0_VALUES; i += 16) {
        __m128i eight[2];
        for (int j = 0; j < 2; j++) {
            const float *from = x + i + 8 * j;
            __m128i a = _mm_cvtps_epi32(_mm_mul_ps(_mm_loadu_ps(from), inverse));
            __m128i b = _mm_cvtps_epi32(_mm_mul_ps(_mm_loadu_ps(from + 4), inverse));
            eight[j] = _mm_max_epi16(least, _mm_min_epi16(most, _mm_packs_epi32(a, b)));
        }
        _mm_storeu_si128((__m128i *)(void *)(number + i), _mm_packs_epi16(eight[0], eight[1]));
    }
}
