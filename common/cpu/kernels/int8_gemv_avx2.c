/* One token's products of blocks with activations of 8 bits, with AVX2 and F16C. Called through the table of
 * linear.c after the CPU check; int8_ref.c defines the arithmetic.
 *
 * 32 neighbouring weights are the 32 bytes of a vector (blocks_words256.h). vpmaddubsw multiplies numbers
 * without sign of at most 124 with x's and adds pairs in 16 bits, which hold them; what numbers are larger by
 * than weights is taken off there. Numbers of 8 bits give x their sign first. vpmaddwd then adds pairs of
 * pairs, times the group's whole scale where a format has such: in the upper bytes of words, 256 times too
 * large, which x's scale makes good. All of that is exact. A chunk is 256 columns. */
#include "common/cpu/kernels/lanes256.h"

#include "common/cpu/kernels/blocks_words256.h"
#define GEMV_STREAMS 3
#define FEW_ROWS     1
#define FEW_TOKENS   4
#include "common/cpu/kernels/gemv_streams.h"

#define CHUNK(format) 256

INLINE bool has_signs(const enum tensor_format format)
{
    return format == FORMAT_Q8_0 || format == FORMAT_IQ4_NL || format == FORMAT_IQ4_XS;
}
INLINE bool takes_off(const enum tensor_format format)
{
    return !has_signs(format) && number_less(format);
}
INLINE bool has_whole_scales(const enum tensor_format format)
{
    return block_values(format) == 256 && format != FORMAT_NVFP4;
}

/* ---- x ---- */

/* A chunk of x: its numbers; scales of 32; scales times sums of 16 or 32 numbers, as smallest values lie;
 * pairs of numbers times what weights' numbers are too large by. */
#define AT_SCALES 256
#define AT_LEAST  (AT_SCALES + 32)
INLINE size_t at_less(const enum tensor_format format)
{
    return AT_LEAST + (has_least(format) ? 64 : 0);
}
INLINE size_t chunk_x_bytes(const enum tensor_format format)
{
    return at_less(format) + (takes_off(format) ? 2 * 256 : 0);
}

INLINE int sum16(const int8_t *number)
{
    const __m256i words = _mm256_cvtepi8_epi16(_mm_loadu_si128((const void *)number));
    const __m256i fours = _mm256_madd_epi16(words, _mm256_set1_epi16(1));
    __m128i sum = _mm_add_epi32(_mm256_castsi256_si128(fours), _mm256_extracti128_si256(fours, 1));
    sum = _mm_add_epi32(sum, _mm_shuffle_epi32(sum, 0x4e));
    return _mm_cvtsi128_si32(_mm_add_epi32(sum, _mm_shuffle_epi32(sum, 0xb1)));
}

/* 32 columns to numbers; their scale. */
INLINE float round_block(int8_t *to, const float *x)
{
    const __m256i magnitude = _mm256_set1_epi32(0x7fffffff);
    __m256i most = _mm256_setzero_si256(), number[4];
    UNROLL for (int i = 0; i < 4; i++) most =
        _mm256_max_epi32(most, _mm256_and_si256(_mm256_castps_si256(vec_load(x + 8 * i)), magnitude));
    __m128i half = _mm_max_epi32(_mm256_castsi256_si128(most), _mm256_extracti128_si256(most, 1));
    half = _mm_max_epi32(half, _mm_shuffle_epi32(half, 0x4e));
    const int bits = _mm_cvtsi128_si32(_mm_max_epi32(half, _mm_shuffle_epi32(half, 0xb1)));
    const float largest = convert_bits_f32((uint32_t)bits);
    if (bits >= 0x7f800000 || largest < INT8_LEAST) {
        memset(to, 0, INT8_BLOCK);
        return bits >= 0x7f800000 ? convert_bits_f32(0x7fc00000) : 0;
    }
    UNROLL for (int i = 0; i < 4; i++) number[i] =
        _mm256_cvtps_epi32(vec_mul(vec_load(x + 8 * i), vec_set1(127 / largest)));
    const __m256i bytes = _mm256_packs_epi16(_mm256_packs_epi32(number[0], number[1]),
                                             _mm256_packs_epi32(number[2], number[3]));
    _mm256_storeu_si256((void *)to,
                        _mm256_permutevar8x32_epi32(bytes, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7)));
    return largest / 127;
}

INLINE void order_as(float *to, const float *x, size_t cols, const enum tensor_format format)
{
    char *at = (char *)to;
    for (size_t c = 0; c < cols; c += 256, at += chunk_x_bytes(format)) {
        int8_t *number = (int8_t *)at;
        float *scale = (float *)(void *)(at + AT_SCALES), *least = (float *)(void *)(at + AT_LEAST);
        memset(at, 0, chunk_x_bytes(format));
        for (size_t b = 0; b < 256 / INT8_BLOCK && c + b * INT8_BLOCK < cols; b++, number += INT8_BLOCK) {
            const float by = round_block(number, x + c + b * INT8_BLOCK);
            scale[b] = has_whole_scales(format) ? by * (1.0f / 256) : by;
            if (has_least(format)) {
                const int first = sum16(number), second = sum16(number + 16);
                if (format == FORMAT_Q2_K) {
                    least[2 * b] = by * (float)first;
                    least[2 * b + 1] = by * (float)second;
                } else {
                    least[b] = by * (float)(first + second);
                }
            }
            if (!takes_off(format)) continue;
            const __m256i pairs =
                _mm256_maddubs_epi16(_mm256_set1_epi8(1), _mm256_loadu_si256((const void *)number));
            _mm256_storeu_si256((void *)(at + at_less(format) + 32 * b),
                                _mm256_mullo_epi16(pairs, _mm256_set1_epi16((short)number_less(format))));
        }
    }
}

/* ---- weights ---- */

/* Run `r` (32 weights) of the block at w; a block of 32 has only one. */
INLINE __m256i bytes_of(const uint8_t *w, const struct grid_block *grid, const int r,
                        const enum tensor_format format)
{
    switch (format) {
    case FORMAT_Q8_0:
        return load32(w + 2);
    case FORMAT_IQ4_NL:
        return chosen(halves16(w + 2), iq4_table, 0);
    case FORMAT_IQ4_XS:
        return chosen(halves16(w + 8 + 16 * r), iq4_table, 0);
    case FORMAT_Q4_K:
    case FORMAT_Q2_K:
    case FORMAT_Q4_0:
    case FORMAT_Q4_1:
        return masked(words_of(w, grid, r, format), number_bits(format));
    default:
        return words_of(w, grid, r, format);
    }
}

/* Sums of pairs of 32 products. */
INLINE __m256i pairs_of(__m256i bytes, const char *x, const int r, const enum tensor_format format)
{
    const __m256i numbers = _mm256_loadu_si256((const void *)(x + 32 * r));
    if (has_signs(format))
        return _mm256_maddubs_epi16(_mm256_abs_epi8(bytes), _mm256_sign_epi8(numbers, bytes));
    const __m256i pairs = _mm256_maddubs_epi16(bytes, numbers);
    if (!takes_off(format)) return pairs;
    return _mm256_sub_epi16(pairs, _mm256_loadu_si256((const void *)(x + at_less(format) + 32 * r)));
}

/* The bytes of the groups of run `r` among 16, each twice, as upper halves of words. */
INLINE __m256i whole_scales_part(__m256i all, const int r, const enum tensor_format format)
{
    const bool two = block_group(format) == 16;
    const char low = (char)(two ? 2 * r : r), high = (char)(two ? 2 * r + 1 : r);
    const short first = (short)(low << 8 | 0x80), second = (short)(high << 8 | 0x80);
    return _mm256_shuffle_epi8(all, _mm256_setr_epi16(first, first, first, first, first, first, first, first,
                                                      second, second, second, second, second, second, second,
                                                      second));
}

/* A row's scales of a chunk. */
struct chunk_scales {
    __m256i whole; /* of groups, as bytes, twice */
    vec scale;     /* of all, of whole scales; else of blocks, or of the first 16 of each 32, times x's */
    vec second;    /* of the other 16 */
};
INLINE vec half_everywhere(const uint8_t *at)
{
    uint16_t half;
    memcpy(&half, at, sizeof half);
    return _mm256_cvtph_ps(_mm_set1_epi16((short)half));
}
INLINE vec bytes_as_floats(__m128i bytes)
{
    return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(bytes));
}
INLINE struct chunk_scales whole_scales(vec *least, const uint8_t *w, const char *x,
                                        const enum tensor_format format)
{
    struct chunk_scales s;
    if (is_grid(format)) {
        s.whole = _mm256_broadcastsi128_si256(grid_scale_numbers(w, format));
        s.scale = vec_set1(grid_scale(w, format));
        return s;
    }
    switch (format) {
    case FORMAT_Q4_K:
    case FORMAT_Q5_K: {
        const __m128i all = _mm_loadu_si128((const void *)w);
        const __m128i a = _mm_srlv_epi32(_mm_shuffle_epi32(all, 0x99), _mm_setr_epi32(0, 0, 2, 2)),
                      b = _mm_srlv_epi32(_mm_shuffle_epi32(all, 0xff), _mm_setr_epi32(0, 0, 0, 4));
        const __m128i numbers =
            _mm_shuffle_epi32(_mm_or_si128(_mm_and_si128(a, _mm_setr_epi32(0x3f3f3f3f, 0x3f3f3f3f, 0x30303030,
                                                                           0x30303030)),
                                           _mm_and_si128(b, _mm_setr_epi32(0, 0, 0x0f0f0f0f, 0x0f0f0f0f))),
                              0xd8); /* eight scales, eight smallest values */
        s.whole = _mm256_broadcastsi128_si256(numbers);
        s.scale = half_everywhere(w);
        const vec smallest =
            vec_mul(bytes_as_floats(_mm_unpackhi_epi64(numbers, numbers)), half_everywhere(w + 2));
        *least = vec_fnmadd(smallest, vec_load(x + AT_LEAST), *least);
        return s;
    }
    case FORMAT_Q2_K: {
        const __m128i both = _mm_loadu_si128((const void *)w), four = _mm_set1_epi8(15),
                      high = _mm_and_si128(_mm_srli_epi32(both, 4), four);
        s.whole = _mm256_broadcastsi128_si256(_mm_and_si128(both, four));
        s.scale = half_everywhere(w + 80);
        const vec by = half_everywhere(w + 82);
        *least = vec_fnmadd(vec_mul(bytes_as_floats(high), by), vec_load(x + AT_LEAST), *least);
        *least = vec_fnmadd(vec_mul(bytes_as_floats(_mm_unpackhi_epi64(high, high)), by),
                            vec_load(x + AT_LEAST + 32), *least);
        return s;
    }
    case FORMAT_Q3_K:
        s.whole = _mm256_broadcastsi128_si256((__m128i)q3_k_scale_numbers(w));
        s.scale = half_everywhere(w + 108);
        return s;
    case FORMAT_Q6_K:
        s.whole = _mm256_broadcastsi128_si256(_mm_loadu_si128((const void *)(w + 192)));
        s.scale = half_everywhere(w + 208);
        return s;
    case FORMAT_IQ4_XS:
        s.whole = _mm256_set1_epi64x((long long)iq4_xs_scale_numbers(w));
        s.scale = half_everywhere(w);
        return s;
    default:
        __builtin_unreachable();
    }
}

/* Sixteen scales of their own times x's. */
INLINE struct chunk_scales scales_of_16(const uint8_t *w, const char *x)
{
    const vec xs = vec_load(x + AT_SCALES);
    const __m128i all = _mm_and_si128(_mm_loadu_si128((const void *)(w + NVFP4_SCALES)), _mm_set1_epi8(0x7f));
    float by;
    memcpy(&by, w, sizeof by);
    const vec times = vec_set1(by * 128);
    /* a byte of each 16 bits, as fp16 numbers */
    const __m128i first = _mm_slli_epi16(_mm_and_si128(all, _mm_set1_epi16(0xff)), 7),
                  second = _mm_slli_epi16(_mm_srli_epi16(all, 8), 7);
    return (struct chunk_scales){.scale = vec_mul(vec_mul(_mm256_cvtph_ps(first), times), xs),
                                 .second = vec_mul(vec_mul(_mm256_cvtph_ps(second), times), xs)};
}

#define EIGHT_TIMES(DO) DO(0) DO(1) DO(2) DO(3) DO(4) DO(5) DO(6) DO(7)
/* Scales of `blocks` blocks of 32, times x's. */
INLINE vec block_scales(vec *least, const uint8_t *w, const char *x, const size_t blocks,
                        const enum tensor_format format)
{
    const size_t bytes = decode_bytes(32, format);
    const vec xs = vec_load(x + AT_SCALES);
    __m128i all = _mm_setzero_si128(), smallest = _mm_setzero_si128();
    if (format == FORMAT_MXFP4) {
#define EXPONENT(i)                                                                                          \
    if ((i) < blocks) all = _mm_insert_epi8(all, w[(i)*bytes], i);
        EIGHT_TIMES(EXPONENT)
        const __m256i e = _mm256_cvtepu8_epi32(all), two = _mm256_set1_epi32(2),
                      normal = _mm256_slli_epi32(_mm256_sub_epi32(e, _mm256_set1_epi32(1)), 23),
                      tiny = _mm256_sllv_epi32(_mm256_set1_epi32(0x200000), e);
        return vec_mul(_mm256_castsi256_ps(_mm256_blendv_epi8(normal, tiny, _mm256_cmpgt_epi32(two, e))), xs);
    }
#define HALF(i)                                                                                              \
    if ((i) < blocks) {                                                                                      \
        uint16_t half[2];                                                                                    \
        memcpy(half, w + (i)*bytes, sizeof half);                                                            \
        all = _mm_insert_epi16(all, half[0], i);                                                             \
        if (has_least(format)) smallest = _mm_insert_epi16(smallest, half[1], i);                            \
    }
    EIGHT_TIMES(HALF)
    if (has_least(format)) *least = vec_fmadd(_mm256_cvtph_ps(smallest), vec_load(x + AT_LEAST), *least);
    return vec_mul(_mm256_cvtph_ps(all), xs);
}

/* ---- rows ---- */

#define MOST_SUMS 4 /* the most of FEW_ROWS * FEW_TOKENS and GEMV_STREAMS */
/* A chunk of `S` rows and `T` tokens; [token][row]. */
INLINE void add_chunk(vec *total, vec *least, const uint8_t *w, size_t stride, const char *x, size_t ldx,
                      const size_t cols, const size_t S, const size_t T, const enum tensor_format format)
{
    const size_t blocks = cols / INT8_BLOCK;
    const size_t block = decode_bytes(block_values(format), format);
    struct chunk_scales scales[MOST_SUMS];
    struct grid_block grid[GEMV_STREAMS];
    vec sum[MOST_SUMS];
    UNROLL for (size_t s = 0; s < S; s++)
    {
        if (is_grid(format)) grid_open(&grid[s], w + s * stride, format);
    }
    UNROLL for (size_t i = 0; i < S * T; i++)
    {
        const uint8_t *row = w + i % S * stride;
        const char *xt = x + i / S * ldx;
        if (has_whole_scales(format))
            scales[i] = whole_scales(&least[i], row, xt, format);
        else if (block_group(format) == 16)
            scales[i] = scales_of_16(row, xt);
        else
            scales[i].scale = block_scales(&least[i], row, xt, blocks, format);
        sum[i] = has_whole_scales(format) ? vec_zero() : total[i];
    }
    UNROLL for (int r = 0; r < 8; r++)
    {
        if ((size_t)r >= blocks) break;
        UNROLL for (size_t s = 0; s < S; s++)
        {
            const uint8_t *at = w + s * stride + (block_values(format) == 256 ? 0 : (size_t)r * block);
            const __m256i bytes = bytes_of(at, &grid[s], r, format);
            UNROLL for (size_t t = 0; t < T; t++)
            {
                const size_t i = t * S + s;
                const char *xt = x + t * ldx;
                const __m256i pairs = pairs_of(bytes, xt, r, format);
                if (has_whole_scales(format)) {
                    const vec xs = _mm256_broadcast_ss((const float *)(const void *)(xt + AT_SCALES) + r);
                    const __m256i fours =
                        _mm256_madd_epi16(pairs, whole_scales_part(scales[i].whole, r, format));
                    sum[i] = vec_fmadd(_mm256_cvtepi32_ps(fours), xs, sum[i]);
                } else {
                    const __m256i fours = _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)),
                                  at_r = _mm256_set1_epi32(r);
                    vec by = _mm256_permutevar8x32_ps(scales[i].scale, at_r);
                    if (block_group(format) == 16)
                        by = _mm256_blend_ps(by, _mm256_permutevar8x32_ps(scales[i].second, at_r), 0xf0);
                    sum[i] = vec_fmadd(_mm256_cvtepi32_ps(fours), by, sum[i]);
                }
            }
        }
    }
    UNROLL for (size_t i = 0; i < S * T; i++) total[i] =
        has_whole_scales(format) ? vec_fmadd(sum[i], scales[i].scale, total[i]) : sum[i];
}

#define NAME     "avx2"
#define FEATURES CPU_AVX2
#define KERNELS  int8_avx2_gemv
#define APART    4
#define FORMATS  INT8_FORMATS
#include "common/cpu/kernels/int8_gemv.h"
