/* One token's products of blocks with activations of 8 bits, with AVX512-VNNI. Called through the table of linear.c after
 * the CPU check; int8_ref.c defines the arithmetic.
 *
 * 64 neighbouring weights are the 64 bytes of a vector, as in blocks_words512.h, and whole numbers without sign. A chunk is
 * 256 columns, four such vectors, which are brought into an order in which a lane has four of sixteen neighbouring columns, in
 * all four vectors the same sixteen. vpdpbusd multiplies them with numbers of x in that order and adds them up, one vector after
 * another, so lanes become exact sums of sixteen columns, which are scaled once. What numbers are larger by than weights
 * is taken off before, as a multiple of x's sums. The order costs eight permutations a chunk and row, but few tokens share
 * them, and spare three of four conversions and multiplications with scales. */
#include "common/cpu/kernels/lanes512.h"

#include "common/cpu/kernels/int8_words512.h"
#define GEMV_STREAMS 4
#define FEW_ROWS     2
#define FEW_TOKENS   8
#include "common/cpu/kernels/gemv_streams.h"

#define CHUNK(format) 256

/* How scales of a chunk lie in a vector, and x's with them. */
enum layout {
    EIGHT,   /* of 32 each, in the first eight lanes */
    SIXTEEN, /* of 16 each */
    PAIRS,   /* of 32 each, then its smallest value */
};
INLINE enum layout layout_of(const enum tensor_format format)
{
    switch (format) {
    case FORMAT_Q4_K:
    case FORMAT_Q5_K:
    case FORMAT_Q4_1:
    case FORMAT_Q5_1:
        return PAIRS;
    case FORMAT_Q2_K:
    case FORMAT_Q3_K:
    case FORMAT_Q6_K:
    case FORMAT_NVFP4:
    case FORMAT_IQ2_XS:
    case FORMAT_IQ2_S:
    case FORMAT_IQ1_M:
        return SIXTEEN;
    default:
        return EIGHT;
    }
}

/* ---- x ---- */

/* The order of a chunk: dword `d` of the four in quarter `i` of vector `k` to lane 4 i + k of vector d. Lanes are sixteens of
 * columns: number 4 k + i of the chunk. */
INLINE void to_sixteens(__m512i v[4])
{
    const __m512i a = _mm512_unpacklo_epi32(v[0], v[1]), b = _mm512_unpackhi_epi32(v[0], v[1]),
                  c = _mm512_unpacklo_epi32(v[2], v[3]), d = _mm512_unpackhi_epi32(v[2], v[3]);
    v[0] = _mm512_unpacklo_epi64(a, c);
    v[1] = _mm512_unpackhi_epi64(a, c);
    v[2] = _mm512_unpacklo_epi64(b, d);
    v[3] = _mm512_unpackhi_epi64(b, d);
}
/* Where in a layout the scale of each lane stands. */
INLINE __m512i lane_scales(const enum layout layout)
{
    switch (layout) {
    case EIGHT:
        return _mm512_setr_epi32(0, 2, 4, 6, 0, 2, 4, 6, 1, 3, 5, 7, 1, 3, 5, 7);
    case PAIRS:
        return _mm512_setr_epi32(0, 4, 8, 12, 0, 4, 8, 12, 2, 6, 10, 14, 2, 6, 10, 14);
    default: /* SIXTEEN */
        return _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    }
}

/* A chunk of x: its numbers, in order; scales by lanes; where smallest values are in the layout, or with Q2_K by sixteens,
 * what they are multiplied with, else 0; by lanes what is taken off. */
#define AT_SCALES 256
#define AT_LEAST  (AT_SCALES + 64)
#define AT_LESS   (AT_LEAST + 64)
INLINE size_t chunk_x_bytes(const enum tensor_format format)
{
    return AT_LESS + (number_less(format) ? 64 : 0);
}

/* Sums of a block's numbers: of its first 16, of its second. */
struct block_sums {
    float scale;
    int first, second;
};

/* 32 columns, `left` of them there. */
INLINE struct block_sums round_block(int8_t *to, const float *x, size_t left)
{
    const vec low = vec_load_part(x, left),
              high = left > LANES ? vec_load_part(x + LANES, left - LANES) : vec_zero();
    const __m512i magnitude = _mm512_set1_epi32(0x7fffffff);
    const int most =
        _mm512_reduce_max_epi32(_mm512_max_epi32(_mm512_and_si512(_mm512_castps_si512(low), magnitude),
                                                 _mm512_and_si512(_mm512_castps_si512(high), magnitude)));
    const float largest = convert_bits_f32((uint32_t)most);
    const bool finite = most < 0x7f800000, none = !finite || largest < INT8_LEAST;
    const vec by = vec_set1(none ? 0 : 127 / largest);
    const __mmask16 kept = none ? 0 : 0xffff;
    const __m512i a = _mm512_maskz_cvtps_epi32(kept, vec_mul(low, by)),
                  b = _mm512_maskz_cvtps_epi32(kept, vec_mul(high, by));
    _mm_storeu_si128((void *)to, _mm512_cvtepi32_epi8(a));
    _mm_storeu_si128((void *)(to + 16), _mm512_cvtepi32_epi8(b));
    return (struct block_sums){.scale = finite ? (none ? 0 : largest / 127) : convert_bits_f32(0x7fc00000),
                               .first = _mm512_reduce_add_epi32(a),
                               .second = _mm512_reduce_add_epi32(b)};
}

INLINE void order_as(float *to, const float *x, size_t cols, const enum tensor_format format)
{
    char *at = (char *)to;
    for (size_t c = 0; c < cols; c += 256, at += chunk_x_bytes(format)) {
        _Alignas(64) int8_t number[256] = {0};
        float scales[LANES] = {0}, least[LANES] = {0};
        for (size_t b = 0; b < 256 / INT8_BLOCK && c + b * INT8_BLOCK < cols; b++) {
            const size_t i = c + b * INT8_BLOCK;
            const struct block_sums sums = round_block(number + b * INT8_BLOCK, x + i, cols - i);
            const float all = -sums.scale * (float)(sums.first + sums.second);
            switch (layout_of(format)) {
            case EIGHT:
                scales[b] = sums.scale;
                break;
            case SIXTEEN:
                scales[2 * b] = scales[2 * b + 1] = sums.scale;
                least[2 * b] = -sums.scale * (float)sums.first;
                least[2 * b + 1] = -sums.scale * (float)sums.second;
                break;
            case PAIRS: /* of Q4_K every second 32 numbers are the upper halves of bytes */
                scales[2 * b] = format == FORMAT_Q4_K && b % 2 ? sums.scale * (1.0f / 16) : sums.scale;
                least[2 * b + 1] =
                    block_values(format) == 256 ? all : -all; /* blocks of 32 add smallest values */
                break;
            }
        }
        __m512i v[4], sums = _mm512_setzero_si512();
        UNROLL for (int k = 0; k < 4; k++) v[k] = _mm512_load_si512(number + 64 * k);
        to_sixteens(v);
        UNROLL for (int k = 0; k < 4; k++)
        {
            _mm512_storeu_si512(at + 64 * k, v[k]);
            sums = _mm512_dpbusd_epi32(sums, _mm512_set1_epi8(1), v[k]);
        }
        vec_store(at + AT_SCALES, _mm512_permutexvar_ps(lane_scales(layout_of(format)), vec_load(scales)));
        vec_store(at + AT_LEAST, vec_load(least));
        if (number_less(format))
            _mm512_storeu_si512(at + AT_LESS,
                                _mm512_mullo_epi32(sums, _mm512_set1_epi32(-number_less(format))));
    }
}

/* ---- weights ---- */

/* Scales and smallest values of a chunk of `S` rows of Q4_K or Q5_K, in pairs. A row's own are read from memory again, where
 * widening and doubling them takes a load, not the port that permutes vectors. */
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

/* ---- rows ---- */

/* A row's scales, by lanes, and smallest values, as they lie in the layout or by sixteens. */
struct row_scales {
    vec scale, least;
};
INLINE struct row_scales row_scales(vec own, vec lowest, const enum tensor_format format)
{
    return (struct row_scales){_mm512_permutexvar_ps(lane_scales(layout_of(format)), own),
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

INLINE void add_chunk(vec *total, vec *least, const uint8_t *w, size_t stride, const char *x, size_t ldx,
                      const size_t cols, const size_t S, const size_t T, const enum tensor_format format)
{
    const size_t blocks = cols / INT8_BLOCK;
    const bool is_k = format == FORMAT_Q4_K || format == FORMAT_Q5_K;
    struct row_scales scales[GEMV_STREAMS];
    __m512i number[GEMV_STREAMS][4];
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
    UNROLL for (size_t t = 0; t < T; t++)
    {
        const char *xt = x + t * ldx;
        const vec by = vec_load(xt + AT_SCALES);
        __m512i sum[GEMV_STREAMS];
        UNROLL for (size_t s = 0; s < S; s++) sum[s] =
            number_less(format) ? _mm512_loadu_si512(xt + AT_LESS) : _mm512_setzero_si512();
        UNROLL for (int k = 0; k < 4; k++)
        {
            const __m512i numbers = _mm512_loadu_si512(xt + 64 * k);
            UNROLL for (size_t s = 0; s < S; s++) sum[s] = _mm512_dpbusd_epi32(sum[s], number[s][k], numbers);
        }
        UNROLL for (size_t s = 0; s < S; s++)
        {
            vec *to = &total[t * S + s], *low = &least[t * S + s];
            *to = vec_fmadd(_mm512_cvtepi32_ps(sum[s]), vec_mul(scales[s].scale, by), *to);
            if (has_least(format)) *low = vec_fmadd(scales[s].least, vec_load(xt + AT_LEAST), *low);
        }
    }
}

#define NAME     "avx512-vnni"
#define FEATURES (CPU_AVX2 | CPU_AVX512 | CPU_AVX512_VNNI)
#define KERNELS  int8_avx512vnni_gemv
#define APART    8
#include "common/cpu/kernels/int8_gemv.h"
