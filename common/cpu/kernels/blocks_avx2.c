/* GGUF's blocks with AVX2, FMA and F16C. Called through the table of linear.c after the CPU check.
 *
 * One token: 32 neighbouring weights at a time as the 32 bytes of a vector. Lane l of part b of them is weight 4 l + b,
 * in byte b of the dword. So x is brought into that order once, and no byte is widened: a weight is a whole number
 * without sign in the low bits of its byte; a mask and a conversion make it a float, 256^b times too large, which x in
 * its order makes good. Scales are applied to sums of a group. */
#include "common/cpu/kernels/lanes256.h"

INLINE vec block_numbers(const void *at)
{
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(at)));
}

#include "common/cpu/kernels/blocks_sizes.h"
#define GEMV_STREAMS 3
#include "common/cpu/kernels/gemv_streams.h"

#define RUN     32
#define ORDERED (RUN + LANES) /* floats of a run of x: four parts, their sum */

static size_t ordered_bytes(size_t cols)
{
    return cols / RUN * ORDERED * sizeof(float);
}

/* Whether numbers take whole bytes. Part 3 is then shifted, not masked: its top bit is no sign. */
#define IS_TABLE(format) ((format) == FORMAT_IQ4_NL || (format) == FORMAT_IQ4_XS || (format) == FORMAT_MXFP4)

/* Part b is divided by 256^b; of tables not the last. */
INLINE void order_as(float *to, const float *x, size_t cols, const bool table)
{
    for (size_t c = 0; c < cols; c += RUN, to += ORDERED) UNROLL for (size_t l = 0; l < LANES; l++)
        {
            const float *from = x + c + 4 * l;
            to[l] = from[0];
            to[l + LANES] = from[1] * 0x1p-8f;
            to[l + 2 * LANES] = from[2] * 0x1p-16f;
            to[l + 3 * LANES] = table ? from[3] : from[3] * 0x1p-24f;
            to[l + RUN] = (from[0] + from[1]) + (from[2] + from[3]);
        }
}
static void order(float *to, const float *x, size_t cols)
{
    order_as(to, x, cols, false);
}
static void order_table(float *to, const float *x, size_t cols)
{
    order_as(to, x, cols, true);
}

/* The bits of a byte that are its number, once others are masked. */
INLINE int number_bits(const enum tensor_format format)
{
    switch (format) {
    case FORMAT_Q2_K:
        return 0x03;
    case FORMAT_Q3_K:
        return 0x07;
    case FORMAT_Q5_0:
    case FORMAT_Q5_1:
    case FORMAT_Q5_K:
        return 0x1f;
    case FORMAT_Q6_K:
        return 0x3f;
    default:
        return IS_TABLE(format) ? 0xff : 0x0f;
    }
}

/* What numbers are larger by than what scales are for. */
INLINE int number_less(const enum tensor_format format)
{
    switch (format) {
    case FORMAT_Q3_K:
        return 4;
    case FORMAT_Q4_0:
        return 8;
    case FORMAT_MXFP4:
        return 12;
    case FORMAT_Q5_0:
        return 16;
    case FORMAT_Q6_K:
        return 32;
    case FORMAT_IQ4_NL:
    case FORMAT_IQ4_XS:
        return 127;
    default:
        return 0;
    }
}

INLINE __m256i load32(const uint8_t *at)
{
    return _mm256_loadu_si256((const void *)at);
}
/* 16 bytes' low halves, then their high ones; other bits remain above them. */
INLINE __m256i halves16(const uint8_t *at)
{
    return _mm256_srlv_epi32(_mm256_broadcastsi128_si256(_mm_loadu_si128((const void *)at)),
                             _mm256_setr_epi32(0, 0, 0, 0, 4, 4, 4, 4));
}
INLINE __m256i masked(__m256i bytes, int bits)
{
    return _mm256_and_si256(bytes, _mm256_set1_epi8((char)bits));
}
/* Bits `from` on of each byte at bit `to`: those that stay within it. */
INLINE __m256i moved(__m256i bytes, const int from, const int to)
{
    return from < to ? _mm256_slli_epi32(bytes, to - from) : _mm256_srli_epi32(bytes, from - to);
}
INLINE __m256i joined(__m256i low, int low_bits, __m256i high, int high_bits)
{
    return _mm256_or_si256(masked(low, low_bits), masked(high, high_bits));
}
INLINE __m256i chosen(__m256i index, const int8_t code[16], int less)
{
    const __m128i values = _mm_add_epi8(_mm_loadu_si128((const void *)code), _mm_set1_epi8((char)less));
    return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(values), masked(index, 15));
}

/* The bytes of run `r` of a block. */
INLINE __m256i words_of(const uint8_t *w, const int r, const enum tensor_format format)
{
    static const int8_t mxfp4[16] = {MXFP4_CODES};
    const int less = number_less(format), fourth = r % 4;
    switch (format) {
    case FORMAT_Q4_K:
        return moved(load32(w + 16 + r / 2 * 32), r % 2 * 4, 0);
    case FORMAT_Q5_K:
        return joined(moved(load32(w + 48 + r / 2 * 32), r % 2 * 4, 0), 0x0f, moved(load32(w + 16), r, 4),
                      0x10);
    case FORMAT_Q6_K:
        return joined(moved(load32(w + r / 4 * 64 + r % 2 * 32), fourth / 2 * 4, 0), 0x0f,
                      moved(load32(w + 128 + r / 4 * 32), 2 * fourth, 4), 0x30);
    case FORMAT_Q3_K:
        return joined(moved(load32(w + 32 + r / 4 * 32), 2 * fourth, 0), 0x03, moved(load32(w), r, 2), 0x04);
    case FORMAT_Q2_K:
        return moved(load32(w + 16 + r / 4 * 32), 2 * fourth, 0);
    case FORMAT_Q4_0:
        return halves16(w + 2);
    case FORMAT_Q4_1:
        return halves16(w + 4);
    case FORMAT_IQ4_NL:
        return chosen(halves16(w + 2), iq4_table, less);
    case FORMAT_IQ4_XS:
        return chosen(halves16(w + 8 + 16 * r), iq4_table, less);
    case FORMAT_MXFP4:
        return chosen(halves16(w + 1), mxfp4, less);
    case FORMAT_Q5_0:
    case FORMAT_Q5_1: {
        const size_t at = format == FORMAT_Q5_0 ? 2 : 4;
        const __m256i bit = _mm256_set1_epi64x((long long)0x8040201008040201),
                      byte =
                          _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303);
        int high;
        memcpy(&high, w + at, sizeof high);
        const __m256i bytes = _mm256_shuffle_epi8(_mm256_set1_epi32(high), byte),
                      fifth = _mm256_cmpeq_epi8(_mm256_and_si256(bytes, bit), bit);
        return joined(halves16(w + at + 4), 0x0f, fifth, 0x10);
    }
    default:
        __builtin_unreachable();
    }
}

INLINE vec words_part(__m256i words, const int b, const enum tensor_format format)
{
    if (IS_TABLE(format) && b == 3) return _mm256_cvtepi32_ps(_mm256_srli_epi32(words, 24));
    return _mm256_cvtepi32_ps(_mm256_and_si256(words, _mm256_set1_epi32(number_bits(format) << 8 * b)));
}

INLINE void scales_of(const uint8_t *w, float *scale, float *least, const enum tensor_format format)
{
#define CASE(format_, FORMAT_NAME, VALUES, BYTES, GROUP)                                                     \
    case FORMAT_##FORMAT_NAME:                                                                               \
        format_##_scales(w, scale, least);                                                                   \
        return;
    switch (format) {
        BLOCK_FORMATS(CASE)
    default:
        __builtin_unreachable();
    }
#undef CASE
}
/* Of a run's one or two groups, by lanes. */
INLINE vec scales_part(const float *scale, const int r, const enum tensor_format format)
{
    if (block_group(format) == RUN) return vec_set1(scale[r]);
    return _mm256_blend_ps(vec_set1(scale[2 * r]), vec_set1(scale[2 * r + 1]), 0xf0);
}

INLINE void gemv_rows(float *y, size_t row_stride, const char *w, const float *x, size_t cols,
                      const struct gemv_path *path, const size_t S, const bool two_levels,
                      const enum tensor_format format)
{
    const size_t stride = row_stride * decode_bytes(cols, format), values = block_values(format),
                 bytes = decode_bytes(values, format);
    const uint8_t *at = (const uint8_t *)w;
    float scale[GEMV_STREAMS][BLOCK_GROUPS_MAX], least[GEMV_STREAMS][BLOCK_GROUPS_MAX];
    vec total[GEMV_STREAMS];
    UNROLL for (size_t s = 0; s < S; s++) total[s] = vec_zero();
    for (size_t c = 0; c < cols; c += values, at += bytes) {
        const struct gemv_ahead ahead = gemv_ahead(path, (uintptr_t)w, decode_bytes(c, format), stride);
        UNROLL for (size_t s = 0; s < S; s++)
        {
            gemv_fetch(ahead, s, bytes, two_levels);
            scales_of(at + s * stride, scale[s], least[s], format);
        }
        UNROLL for (int r = 0; r < (int)(values / RUN); r++, x += ORDERED)
        {
            const vec all = vec_load(x + RUN), less = vec_mul(all, vec_set1((float)-number_less(format)));
            __m256i words[GEMV_STREAMS];
            vec sum[GEMV_STREAMS];
            UNROLL for (size_t s = 0; s < S; s++) words[s] = words_of(at + s * stride, r, format);
            UNROLL for (int b = 0; b < 4; b++)
            {
                const vec xs = vec_load(x + LANES * b);
                UNROLL for (size_t s = 0; s < S; s++)
                {
                    const vec part = words_part(words[s], b, format);
                    if (b || number_less(format))
                        sum[s] = vec_fmadd(part, xs, b ? sum[s] : less);
                    else
                        sum[s] = vec_mul(part, xs);
                }
            }
            UNROLL for (size_t s = 0; s < S; s++)
            {
                total[s] = vec_fmadd(sum[s], scales_part(scale[s], r, format), total[s]);
                if (has_least(format)) total[s] = vec_fnmadd(all, scales_part(least[s], r, format), total[s]);
            }
        }
    }
    UNROLL for (size_t s = 0; s < S; s++) y[s * row_stride] = vec_reduce_add(total[s]);
}

#define NAME          "avx2"
#define FEATURES      CPU_AVX2
#define KERNELS       blocks_avx2
#define STREAMS       GEMV_STREAMS
#define ORDER(format) (IS_TABLE(format) ? order_table : order)
#define ORDERED_BYTES ordered_bytes
#include "common/cpu/kernels/blocks_simd.h"
