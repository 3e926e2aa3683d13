/* One token's products of blocks with activations of 8 bits, with AVX512-VNNI. Called through the table of
 * linear.c after the CPU check.
 *
 * Weights come as 64 neighbouring ones (blocks_words512.h). The order of int8_gemv512.h costs eight
 * permutations a chunk and row, but few tokens share them, and spare three of four conversions and
 * multiplications with scales. */
#include "common/cpu/kernels/lanes512.h"

#include "common/cpu/kernels/int8_words512.h"
#define NAME     "avx512-vnni"
#define FEATURES FEATURES_VNNI
#define KERNELS  int8_avx512vnni_gemv
#define FORMATS  INT8_PLAIN_FORMATS
#include "common/cpu/kernels/int8_gemv512.h"

/* ---- weights ---- */

/* Scales and smallest values of a chunk of `S` rows of Q4_K or Q5_K, in pairs. A row's own are read from
 * memory again, where widening and doubling them takes a load, not the port that permutes vectors. */
INLINE void k_scales(vec *scales, const uint8_t *w, size_t stride, const size_t S)
{
    __m512i all = _mm512_castsi128_si512(_mm_loadu_si128((const void *)w));
    if (S > 1) all = _mm512_mask_broadcast_i32x4(all, 0x00f0, _mm_loadu_si128((const void *)(w + stride)));
    if (S > 2)
        all = _mm512_mask_broadcast_i32x4(all, 0x0f00, _mm_loadu_si128((const void *)(w + 2 * stride)));
    if (S > 3)
        all = _mm512_mask_broadcast_i32x4(all, 0xf000, _mm_loadu_si128((const void *)(w + 3 * stride)));
#define ROWS4(a, b, c, d) _mm512_setr_epi32(a, b, c, d, a, b, c, d, a, b, c, d, a, b, c, d)
    const __m512i a = _mm512_srlv_epi32(_mm512_shuffle_epi32(all, (_MM_PERM_ENUM)0x99), ROWS4(0, 0, 2, 2)),
                  b = _mm512_srlv_epi32(_mm512_shuffle_epi32(all, (_MM_PERM_ENUM)0xff), ROWS4(0, 0, 0, 4)),
                  six = ROWS4(0x3f3f3f3f, 0x3f3f3f3f, 0x30303030, 0x30303030),
                  four = ROWS4(0, 0, 0x0f0f0f0f, 0x0f0f0f0f);
    /* scales 0 to 3, smallest values 0 to 3, scales 4 to 7, smallest values 4 to 7 */
    const __m512i numbers = _mm512_ternarylogic_epi32(_mm512_and_si512(a, six), b, four, 0xf8),
                  pairs = ROWS4(0x05010400, 0x07030602, 0x0d090c08, 0x0f0b0e0a);
    const __m512i firsts =
        _mm512_permutexvar_epi32(_mm512_setr_epi32(0, 4, 8, 12, 0, 4, 8, 12, 0, 4, 8, 12, 0, 4, 8, 12), all);
    _Alignas(64) uint8_t number[4][16];
    _Alignas(32) double half[4]; /* two floats each */
    _mm512_store_si512(number, _mm512_shuffle_epi8(numbers, pairs));
    _mm256_store_ps((float *)half, _mm256_cvtph_ps(_mm512_castsi512_si128(firsts)));
    __asm__("" : "+m"(number), "+m"(half)); /* the compiler would take them out of the registers */
    UNROLL for (size_t s = 0; s < S; s++) scales[s] =
        vec_mul(_mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_load_si128((const void *)number[s]))),
                _mm512_castpd_ps(_mm512_set1_pd(half[s])));
}
INLINE vec eight_scales(const uint8_t *w, const size_t blocks, const enum tensor_format format)
{
    const size_t bytes = decode_bytes(32, format);
    __m128i all = _mm_setzero_si128();
    if (format == FORMAT_MXFP4) {
#define EXPONENT(i) all = (i) < blocks ? _mm_insert_epi8(all, w[(i)*bytes], i) : all
        EXPONENT(0);
        EXPONENT(1);
        EXPONENT(2);
        EXPONENT(3);
        EXPONENT(4);
        EXPONENT(5);
        EXPONENT(6);
        EXPONENT(7);
        const __m256i e = _mm256_cvtepu8_epi32(all),
                      normal = _mm256_slli_epi32(_mm256_sub_epi32(e, _mm256_set1_epi32(1)), 23),
                      tiny = _mm256_sllv_epi32(_mm256_set1_epi32(0x200000), e);
        return _mm512_castsi512_ps(_mm512_castsi256_si512(
            _mm256_mask_blend_epi32(_mm256_cmplt_epi32_mask(e, _mm256_set1_epi32(2)), normal, tiny)));
    }
#define HALF(i)                                                                                              \
    if ((i) < blocks) {                                                                                      \
        uint16_t half;                                                                                       \
        memcpy(&half, w + (i)*bytes, sizeof half);                                                           \
        all = _mm_insert_epi16(all, half, i);                                                                \
    }
    HALF(0)
    HALF(1)
    HALF(2) HALF(3) HALF(4) HALF(5) HALF(6) HALF(7) return _mm512_castps256_ps512(_mm256_cvtph_ps(all));
}
INLINE vec pair_scales(const uint8_t *w, const size_t blocks, const enum tensor_format format)
{
    const size_t bytes = decode_bytes(32, format);
    __m128i low = _mm_setzero_si128(), high = _mm_setzero_si128();
#define BOTH(to, i, n)                                                                                       \
    if ((i) < blocks) {                                                                                      \
        int both;                                                                                            \
        memcpy(&both, w + (i)*bytes, sizeof both);                                                           \
        to = _mm_insert_epi32(to, both, n);                                                                  \
    }
    BOTH(low, 0, 0)
    BOTH(low, 1, 1)
    BOTH(low, 2, 2)
    BOTH(low, 3, 3)
    BOTH(high, 4, 0)
    BOTH(high, 5, 1)
    BOTH(high, 6, 2)
    BOTH(high, 7, 3) return _mm512_cvtph_ps(_mm256_inserti128_si256(_mm256_castsi128_si256(low), high, 1));
}

INLINE struct row_scales row_scales(vec own, vec lowest, const enum tensor_format format)
{
    return (struct row_scales){_mm512_permutexvar_ps(lane_scales(format), own),
                               format == FORMAT_Q2_K ? lowest : own};
}

/* A row's numbers of a chunk, in order; of what is not there 0. */
INLINE void row_numbers(__m512i v[4], const uint8_t *w, const size_t blocks, const enum tensor_format format)
{
    const size_t block = decode_bytes(block_values(format), format);
    UNROLL for (size_t k = 0; k < 4; k++)
    {
        const uint8_t *first = w, *second = w;
        v[k] = _mm512_setzero_si512();
        if (2 * k >= blocks) continue;
        if (block_values(format) == 32) {
            first += 2 * k * block;
            second = 2 * k + 1 < blocks ? first + block : first;
        }
        v[k] = bytes_of(first, second, k, true, format);
    }
    to_sixteens(v);
}

INLINE void take_rows(__m512i number[][4], struct row_scales *scales, const uint8_t *w, size_t stride,
                      const size_t blocks, const size_t S, const enum tensor_format format)
{
    const bool is_k = format == FORMAT_Q4_K || format == FORMAT_Q5_K;
    vec own[GEMV_STREAMS];
    if (is_k) k_scales(own, w, stride, S);
    UNROLL for (size_t s = 0; s < S; s++)
    {
        const uint8_t *row = w + s * stride;
        vec lowest = vec_zero();
        if (layout_of(format) == PAIRS && !is_k) own[s] = pair_scales(row, blocks, format);
        const bool is_32 = layout_of(format) == EIGHT && block_values(format) == 32;
        if (is_32) own[s] = eight_scales(row, blocks, format);
        if (layout_of(format) != PAIRS && !is_32) {
            const struct block_scales both = scales_of(row, format);
            own[s] = both.scale;
            lowest = both.least;
        }
        scales[s] = row_scales(own[s], lowest, format);
        row_numbers(number[s], row, blocks, format);
    }
}
