/* Blocks of sixteen rows taken apart for gemv_blocks_amxint8.c: numbers as bytes with sign, as the operand of
 * tdpbssd with rows as lanes, and the scales of their groups, a row a lane. Sixteen or 32 bytes of each row
 * become vectors of dwords by row, whose bytes are four columns.
 *
 * Included after lanes512.h by files that define block_numbers (blocks_words512.h). */
#pragma once

#include "common/cpu/kernels/blocks_words512.h"

#define ROWS  16
#define STEP  32 /* columns of an operand tile */
#define STEPS 8  /* of a chunk */
#define UNITS 4  /* in which a chunk is taken apart, of two steps */

/* 256 columns of sixteen rows, or what is left of them. */
struct chunk {
    _Alignas(64) int8_t number[STEPS * STEP / 4][ROWS][4];   /* by fours of columns */
    _Alignas(64) float scale[STEPS][ROWS], add[STEPS][ROWS]; /* of a step, and what is added to its values */
    _Alignas(64) uint32_t fifth[8][ROWS];                    /* Q5_K's fifth bits, of all units */
};

/* Unit `unit` of a chunk's `steps` steps: blocks from `w` on, rows row_bytes apart. The first unit takes the
 * scales. */
typedef void take_fn(struct chunk *to, const uint8_t *w, size_t row_bytes, size_t unit, size_t steps);

/* ---- sixteen rows at once ---- */

/* Sixteen bytes of each row, from `at` on: dword i of row r to lane r of to[i]. */
INLINE void rows_dwords(__m512i to[4], const uint8_t *at, size_t row_bytes)
{
    __m512 by[4];
    UNROLL for (size_t i = 0; i < 4; i++)
    {
        __m512i rows = _mm512_castsi128_si512(_mm_loadu_si128((const void *)(at + i * row_bytes)));
        rows = _mm512_mask_broadcast_i32x4(rows, 0x00f0,
                                           _mm_loadu_si128((const void *)(at + (i + 4) * row_bytes)));
        rows = _mm512_mask_broadcast_i32x4(rows, 0x0f00,
                                           _mm_loadu_si128((const void *)(at + (i + 8) * row_bytes)));
        rows = _mm512_mask_broadcast_i32x4(rows, 0xf000,
                                           _mm_loadu_si128((const void *)(at + (i + 12) * row_bytes)));
        by[i] = _mm512_castsi512_ps(rows);
    }
    const __m512d low = _mm512_castps_pd(_mm512_unpacklo_ps(by[0], by[1])),
                  high = _mm512_castps_pd(_mm512_unpackhi_ps(by[0], by[1])),
                  low2 = _mm512_castps_pd(_mm512_unpacklo_ps(by[2], by[3])),
                  high2 = _mm512_castps_pd(_mm512_unpackhi_ps(by[2], by[3]));
    to[0] = _mm512_castpd_si512(_mm512_unpacklo_pd(low, low2));
    to[1] = _mm512_castpd_si512(_mm512_unpackhi_pd(low, low2));
    to[2] = _mm512_castpd_si512(_mm512_unpacklo_pd(high, high2));
    to[3] = _mm512_castpd_si512(_mm512_unpackhi_pd(high, high2));
}

/* 32 bytes of each row to eight vectors. */
INLINE void rows_dwords8(__m512i to[8], const uint8_t *at, size_t row_bytes)
{
    __m512 by[8];
    __m512 half[2][4];
    UNROLL for (size_t i = 0; i < 8; i++)
    { /* rows i and i + 4 of the first eight or of the second */
        const uint8_t *row = at + (i / 4 * 8 + i % 4) * row_bytes;
        by[i] = _mm512_castsi512_ps(
            _mm512_mask_broadcast_i64x4(_mm512_castsi256_si512(_mm256_loadu_si256((const void *)row)), 0xf0,
                                        _mm256_loadu_si256((const void *)(row + 4 * row_bytes))));
    }
    UNROLL for (size_t h = 0; h < 2; h++)
    {
        const __m512 *b = by + 4 * h;
        const __m512d low = _mm512_castps_pd(_mm512_unpacklo_ps(b[0], b[1])),
                      high = _mm512_castps_pd(_mm512_unpackhi_ps(b[0], b[1])),
                      low2 = _mm512_castps_pd(_mm512_unpacklo_ps(b[2], b[3])),
                      high2 = _mm512_castps_pd(_mm512_unpackhi_ps(b[2], b[3]));
        half[h][0] = _mm512_castpd_ps(_mm512_unpacklo_pd(low, low2));
        half[h][1] = _mm512_castpd_ps(_mm512_unpackhi_pd(low, low2));
        half[h][2] = _mm512_castpd_ps(_mm512_unpacklo_pd(high, high2));
        half[h][3] = _mm512_castpd_ps(_mm512_unpackhi_pd(high, high2));
    }
    UNROLL for (size_t i = 0; i < 4; i++)
    {
        to[i] = _mm512_castps_si512(_mm512_shuffle_f32x4(half[0][i], half[1][i], 0x88));
        to[i + 4] = _mm512_castps_si512(_mm512_shuffle_f32x4(half[0][i], half[1][i], 0xdd));
    }
}

/* Four bytes of each row. */
INLINE __m512i rows_dword(const uint8_t *at, size_t row_bytes)
{
    const __m512i rows = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    return _mm512_i32gather_epi32(_mm512_mullo_epi32(rows, _mm512_set1_epi32((int)row_bytes)), at, 1);
}

/* Floats of the lower halves of dwords, of the upper ones. */
INLINE vec lower_half(__m512i dwords)
{
    return _mm512_cvtph_ps(_mm512_cvtepi32_epi16(dwords));
}
INLINE vec upper_half(__m512i dwords)
{
    return lower_half(_mm512_srli_epi32(dwords, 16));
}

/* A byte of each dword as a float, 256^byte too large. */
INLINE vec byte_of(__m512i dwords, const int byte)
{
    return _mm512_cvtepu32_ps(_mm512_and_si512(dwords, _mm512_set1_epi32((int)(UINT32_C(255) << 8 * byte))));
}

INLINE void store_scale(struct chunk *to, size_t group, vec scale)
{
    vec_store(to->scale[group], scale);
}
INLINE void store_add(struct chunk *to, size_t group, vec add)
{
    vec_store(to->add[group], add);
}

/* The lower bits of bytes, less `less`, to four columns. */
INLINE void store_number(struct chunk *to, size_t dword, __m512i bytes, const uint8_t bits, const int8_t less)
{
    const __m512i number = _mm512_and_si512(bytes, _mm512_set1_epi8((char)bits));
    _mm512_store_si512(to->number[dword], less ? _mm512_sub_epi8(number, _mm512_set1_epi8(less)) : number);
}
/* Those that a table has for halves of bytes. */
INLINE void store_code(struct chunk *to, size_t dword, __m512i bytes, __m512i codes)
{
    _mm512_store_si512(to->number[dword],
                       _mm512_shuffle_epi8(codes, _mm512_and_si512(bytes, _mm512_set1_epi8(15))));
}
INLINE __m512i codes_of(const int8_t code[16])
{
    return _mm512_broadcast_i32x4(_mm_loadu_si128((const void *)code));
}
/* Bytes whose fifth bits are some of `fifth`, turned to the left. */
INLINE __m512i with_fifth(__m512i bytes, __m512i fifth, int left)
{
    return _mm512_ternarylogic_epi32(_mm512_set1_epi8(0x10),
                                     _mm512_rolv_epi32(fifth, _mm512_set1_epi32(left & 31)), bytes, 0xca);
}

/* ---- blocks of 32 ---- */

INLINE void take_scale32(struct chunk *to, size_t group, __m512i heads, const enum tensor_format format)
{
    const __m512i e = _mm512_and_si512(heads, _mm512_set1_epi32(255)), one = _mm512_set1_epi32(1);
    switch (format) {
    case FORMAT_MXFP4:
        store_scale(to, group,
                    _mm512_castsi512_ps(
                        _mm512_mask_mov_epi32(_mm512_slli_epi32(_mm512_sub_epi32(e, one), 23),
                                              _mm512_cmple_epi32_mask(e, one),
                                              _mm512_sllv_epi32(_mm512_set1_epi32(0x200000), e))));
        return;
    case FORMAT_Q4_1:
        store_add(to, group, upper_half(heads));
        store_scale(to, group, lower_half(heads));
        return;
    default:
        store_scale(to, group, lower_half(heads));
    }
}

/* A step: `TAKE` takes the numbers of a block that begins at `at`. */
#define BLOCKS_OF_32(format_, FORMAT_NAME, TAKE)                                                             \
    static void format_##_take(struct chunk *to, const uint8_t *w, size_t row_bytes, size_t unit,            \
                               size_t steps)                                                                 \
    {                                                                                                        \
        const size_t bytes = decode_bytes(32, FORMAT_##FORMAT_NAME);                                         \
        for (size_t s = 2 * unit; s < 2 * unit + 2 && s < steps; s++) {                                      \
            const uint8_t *at = w + s * bytes;                                                               \
            take_scale32(to, s, rows_dword(at, row_bytes), FORMAT_##FORMAT_NAME);                            \
            TAKE;                                                                                            \
        }                                                                                                    \
    }

INLINE void take_nibbles(struct chunk *to, size_t step, const uint8_t *at, size_t row_bytes,
                         const int8_t less)
{
    __m512i bytes[4];
    rows_dwords(bytes, at, row_bytes);
    UNROLL for (size_t i = 0; i < 8; i++)
        store_number(to, 8 * step + i, i < 4 ? bytes[i % 4] : _mm512_srli_epi32(bytes[i % 4], 4), 15, less);
}
INLINE void take_codes(struct chunk *to, size_t step, const uint8_t *at, size_t row_bytes, __m512i codes)
{
    __m512i bytes[4];
    rows_dwords(bytes, at, row_bytes);
    UNROLL for (size_t i = 0; i < 8; i++)
        store_code(to, 8 * step + i, i < 4 ? bytes[i % 4] : _mm512_srli_epi32(bytes[i % 4], 4), codes);
}
static const int8_t iq4[16] = {IQ4_CODES}, mxfp4[16] = {MXFP4_CODES};
BLOCKS_OF_32(q4_0, Q4_0, take_nibbles(to, s, at + 2, row_bytes, 8))
BLOCKS_OF_32(q4_1, Q4_1, take_nibbles(to, s, at + 4, row_bytes, 0))
BLOCKS_OF_32(iq4_nl, IQ4_NL, take_codes(to, s, at + 2, row_bytes, codes_of(iq4)))
BLOCKS_OF_32(mxfp4, MXFP4, take_codes(to, s, at + 1, row_bytes, codes_of(mxfp4)))

INLINE void take_bytes(struct chunk *to, size_t step, const uint8_t *at, size_t row_bytes)
{
    __m512i bytes[8];
    rows_dwords8(bytes, at, row_bytes);
    UNROLL for (size_t i = 0; i < 8; i++) _mm512_store_si512(to->number[8 * step + i], bytes[i]);
}
BLOCKS_OF_32(q8_0, Q8_0, take_bytes(to, s, at + 2, row_bytes))

/* ---- blocks of 256 ---- */

static void iq4_xs_take(struct chunk *to, const uint8_t *w, size_t row_bytes, size_t unit, size_t steps)
{
    (void)steps;
    if (unit == 0) {
        __m512i head[4];
        rows_dwords(head, w, row_bytes);
        const vec by = lower_half(head[0]);
        const __m512i four = _mm512_set1_epi32(15), two = _mm512_set1_epi32(0x30);
        UNROLL for (int g = 0; g < 8; g++)
        {
            const __m512i low = _mm512_and_si512(_mm512_srlv_epi32(head[1], _mm512_set1_epi32(4 * g)), four),
                          high = _mm512_and_si512(_mm512_srlv_epi32(head[0], _mm512_set1_epi32(12 + 2 * g)),
                                                  two);
            store_scale(to, (size_t)g,
                        vec_mul(_mm512_cvtepi32_ps(
                                    _mm512_sub_epi32(_mm512_or_si512(low, high), _mm512_set1_epi32(32))),
                                by));
        }
    }
    for (size_t s = 2 * unit; s < 2 * unit + 2; s++)
        take_codes(to, s, w + 8 + 16 * s, row_bytes, codes_of(iq4));
}

/* Scales and smallest values of Q4_K and Q5_K: six bits, or four and the two upper ones of the first. */
INLINE void take_k_scales(struct chunk *to, const uint8_t *w, size_t row_bytes)
{
    const __m512i four = _mm512_set1_epi32(0x0f0f0f0f), six = _mm512_set1_epi32(0x3f3f3f3f),
                  two = _mm512_set1_epi32(0x30303030);
    __m512i head[4];
    rows_dwords(head, w, row_bytes);
    vec by[4] = {lower_half(head[0])}, least[4] = {vec_sub(vec_zero(), upper_half(head[0]))};
    UNROLL for (int b = 1; b < 4; b++)
    {
        by[b] = vec_mul(by[b - 1], vec_set1(1.0f / 256));
        least[b] = vec_mul(least[b - 1], vec_set1(1.0f / 256));
    }
    UNROLL for (int half = 0; half < 2; half++)
    {
        const __m512i scale = half ? _mm512_or_si512(_mm512_and_si512(head[3], four),
                                                     _mm512_and_si512(_mm512_srli_epi32(head[1], 2), two))
                                   : _mm512_and_si512(head[1], six),
                      add = half ? _mm512_or_si512(_mm512_and_si512(_mm512_srli_epi32(head[3], 4), four),
                                                   _mm512_and_si512(_mm512_srli_epi32(head[2], 2), two))
                                 : _mm512_and_si512(head[2], six);
        UNROLL for (int b = 0; b < 4; b++)
        {
            store_scale(to, (size_t)(4 * half + b), vec_mul(byte_of(scale, b), by[b]));
            store_add(to, (size_t)(4 * half + b), vec_mul(byte_of(add, b), least[b]));
        }
    }
}

static void q4_k_take(struct chunk *to, const uint8_t *w, size_t row_bytes, size_t unit, size_t steps)
{
    (void)steps;
    if (unit == 0) take_k_scales(to, w, row_bytes);
    __m512i bytes[8];
    rows_dwords8(bytes, w + 16 + 32 * unit, row_bytes);
    UNROLL for (size_t i = 0; i < 8; i++)
    {
        store_number(to, 16 * unit + i, bytes[i], 15, 0);
        store_number(to, 16 * unit + 8 + i, _mm512_srli_epi32(bytes[i], 4), 15, 0);
    }
}

static void q5_k_take(struct chunk *to, const uint8_t *w, size_t row_bytes, size_t unit, size_t steps)
{
    const int run = (int)(2 * unit);
    __m512i bytes[8];
    (void)steps;
    if (unit == 0) {
        __m512i fifth[8];
        take_k_scales(to, w, row_bytes);
        rows_dwords8(fifth, w + 16, row_bytes);
        UNROLL for (size_t i = 0; i < 8; i++) _mm512_store_si512(to->fifth[i], fifth[i]);
    }
    rows_dwords8(bytes, w + 48 + 32 * unit, row_bytes);
    UNROLL for (size_t i = 0; i < 8; i++)
    {
        const __m512i fifth = _mm512_load_si512(to->fifth[i]);
        store_number(to, 16 * unit + i, with_fifth(bytes[i], fifth, 36 - run), 0x1f, 0);
        store_number(to, 16 * unit + 8 + i, with_fifth(_mm512_srli_epi32(bytes[i], 4), fifth, 35 - run), 0x1f,
                     0);
    }
}
