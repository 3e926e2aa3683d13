/* Blocks whose numbers are places in grids (common/formats/blocks_grid.h), 256 numbers at a time, with
 * AVX-512 VBMI.
 *
 * A block becomes four vectors of 64 numbers. A lane of 32 bits has numbers of sixteen neighbours, lane s of
 * number 16 s and on, in all four vectors, and groups' scales are applied to lanes. Where a place is of four
 * numbers byte 4 s + b of vector f is number 16 s + 4 b + f; where it is of eight, number 16 s + 8 (f / 2) +
 * 2 b + f % 2. In these orders a byte of an entry has numbers of two vectors, and a permutation of 64 levels
 * chooses each vector's: by bits of the six that it looks at. Entries of eight leave bits for signs, so that
 * levels are chosen with them.
 *
 * Entries of up to 512 places are looked up in registers by bytes, IQ2's of two rows at once. Larger grids
 * (IQ2_S's and IQ1's) are read in memory, one by one or, where GRID_GATHERS is 1, by instructions that
 * gather. Bits are moved to where they are needed by multishifts, whose tables are what formats differ in.
 *
 * Included after lanes512.h. `format` is a constant wherever these are inlined. */
#pragma once

#include "common/cpu/kernels/blocks_grid_words.h"

#define GRID_ROWS 4 /* taken apart side by side */
#ifndef GRID_GATHERS
#define GRID_GATHERS 0
#endif

INLINE bool has_fours(const enum tensor_format format)
{
    return format == FORMAT_IQ3_XXS || format == FORMAT_IQ3_S;
}

/* Each byte of a qword takes bits of the same qword of `from`: the eight from bit a, b, ... on, to the left
 * of bit 63 bit 0. */
#define GRID_BITS(from, a, b, c, d, e, f, g, h)                                                              \
    _mm512_multishift_epi64_epi8(_mm512_set1_epi64(                                                          \
                                     (long long)((uint64_t)((h)&63) << 56 | (uint64_t)((g)&63) << 48 |       \
                                                 (uint64_t)((f)&63) << 40 | (uint64_t)((e)&63) << 32 |       \
                                                 (uint64_t)((d)&63) << 24 | (uint64_t)((c)&63) << 16 |       \
                                                 (uint64_t)((b)&63) << 8 | (uint64_t)((a)&63))),             \
                                 from)
/* The same bits of all bytes of a lane: bit `a` and on of even lanes, bit `b` of odd ones. */
#define GRID_LANE_BITS(from, a, b) GRID_BITS(from, a, a, a, a, b, b, b, b)

/* Bits of the first where those of the third are set, else of the second: for vpternlog. */
#define GRID_CHOOSE 0xe4

/* ---- entries ---- */

/* Entries of 8 bits of 64 places, whose bit 8, where there are 512, is in `upper`. */
INLINE __m512i grid_look_up_bytes(const uint8_t *grid, const int entries, __m512i places, __mmask64 upper)
{
    const __mmask64 bit7 = _mm512_movepi8_mask(places);
    __m512i found[2];
    UNROLL for (int i = 0; i < entries / 256; i++)
    {
        const uint8_t *at = grid + 256 * i;
        found[i] = _mm512_mask_blend_epi8(
            bit7, _mm512_permutex2var_epi8(_mm512_loadu_si512(at), places, _mm512_loadu_si512(at + 64)),
            _mm512_permutex2var_epi8(_mm512_loadu_si512(at + 128), places, _mm512_loadu_si512(at + 192)));
    }
    return entries == 256 ? found[0] : _mm512_mask_blend_epi8(upper, found[0], found[1]);
}

/* Bits that a block stores of each 32 numbers, widened to a qword: of IQ2_XXS and IQ2_XS all, of IQ2_S signs,
 * of others signs and scales, with IQ1 further bits of places. IQ3_S has none. */
INLINE __m512i grid_stored(const uint8_t *w, const enum tensor_format format)
{
    switch (format) {
    case FORMAT_IQ2_XXS:
    case FORMAT_IQ2_XS:
        return _mm512_loadu_si512(w + 2);
    case FORMAT_IQ2_S:
        return _mm512_cvtepu32_epi64(_mm256_loadu_si256((const void *)(w + 34)));
    case FORMAT_IQ3_XXS:
        return _mm512_cvtepu32_epi64(_mm256_loadu_si256((const void *)(w + 66)));
    case FORMAT_IQ1_S:
        return _mm512_cvtepu16_epi64(_mm_loadu_si128((const void *)(w + 34)));
    case FORMAT_IQ1_M:
        return _mm512_cvtepu16_epi64(_mm_loadu_si128((const void *)(w + 32)));
    default:
        return _mm512_setzero_si512();
    }
}

/* Places of 32 entries of eight, which are words: a byte, or a byte and further bits; of IQ2_XS with others
 * above them. */
INLINE __m512i grid_places(const uint8_t *w, __m512i stored, const enum tensor_format format)
{
    if (format == FORMAT_IQ2_XS) return stored;
    if (format == FORMAT_IQ2_XXS) {
        const __m512i bytes =
            _mm512_set4_epi32((int)0x800b800a, (int)0x80098008, (int)0x80038002, (int)0x80018000);
        return _mm512_shuffle_epi8(stored, bytes);
    }
    const __m512i low =
        _mm512_cvtepu8_epi16(_mm256_loadu_si256((const void *)(format == FORMAT_IQ1_M ? w : w + 2)));
    const int each = format == FORMAT_IQ1_S ? 3 : 4;
    __m512i high = GRID_BITS(stored, 0, 0, 0, each, 0, 2 * each, 0, 3 * each);
    if (format == FORMAT_IQ2_S) { /* its byte in four words */
#define EIGHT_TIMES(byte) (long long)((byte)*UINT64_C(0x0101010101010101))
        const __m512i bytes = _mm512_set_epi64(EIGHT_TIMES(7), EIGHT_TIMES(6), EIGHT_TIMES(5), EIGHT_TIMES(4),
                                               EIGHT_TIMES(3), EIGHT_TIMES(2), EIGHT_TIMES(1), 0);
#undef EIGHT_TIMES
        high = _mm512_maskz_permutexvar_epi8(0x5555555555555555, bytes,
                                             _mm512_castsi128_si512(_mm_loadl_epi64((const void *)(w + 66))));
        high = _mm512_sllv_epi16(high, _mm512_set1_epi64(0x0002000400060008));
    }
    return _mm512_ternarylogic_epi32(low, high, _mm512_set1_epi16(format == FORMAT_IQ2_S ? 0x300 : 0x700),
                                     0xf8); /* a | b & c */
}

/* Entries that are not looked up in registers, but in memory. */
INLINE bool grid_is_fetched(const enum tensor_format format)
{
    return has_eighths(format) || format == FORMAT_IQ2_S;
}
INLINE __m512i grid_fetch(const uint16_t place[32], const enum tensor_format format)
{
    const uint16_t *grid = format == FORMAT_IQ2_S ? block_entries_iq2_s : block_entries_iq1;
    __m128i eight[4];
    UNROLL for (int i = 0; i < 4; i++, place += 8)
    {
        eight[i] = _mm_cvtsi32_si128(grid[place[0]]);
#define INSERT(n) eight[i] = _mm_insert_epi16(eight[i], grid[place[n]], n);
        INSERT(1) INSERT(2) INSERT(3) INSERT(4) INSERT(5) INSERT(6) INSERT(7)
#undef INSERT
    }
    return _mm512_inserti64x4(_mm512_castsi256_si512(_mm256_set_m128i(eight[1], eight[0])),
                              _mm256_set_m128i(eight[3], eight[2]), 1);
}

/* Entries of 32 places each of two rows, which are words: in place of them, and looked up in registers. */
INLINE void grid_look_up_two(__m512i words[2], const enum tensor_format format)
{
    const bool large = format == FORMAT_IQ2_XS;
    const __m512i first = _mm512_set1_epi16(0xff), a = words[0], b = words[1],
                  places = _mm512_ternarylogic_epi32(a, _mm512_slli_epi16(b, 8), first, GRID_CHOOSE);
    const __mmask64 upper =
        large ? _mm512_movepi8_mask(_mm512_ternarylogic_epi32(_mm512_srli_epi16(a, 1),
                                                              _mm512_slli_epi16(b, 7), first, GRID_CHOOSE))
              : 0;
    __m512i half[2];
    UNROLL for (int i = 0; i < 2; i++) half[i] =
        large ? grid_look_up_bytes(block_halves_iq2_xs[i], 512, places, upper)
              : grid_look_up_bytes(block_halves_iq2_xxs[i], 256, places, upper);
    words[0] = _mm512_ternarylogic_epi32(half[0], _mm512_slli_epi16(half[1], 8), first, GRID_CHOOSE);
    words[1] = _mm512_ternarylogic_epi32(_mm512_srli_epi16(half[0], 8), half[1], first, GRID_CHOOSE);
}

/* ---- signs ---- */

/* Signs of eight numbers in a byte: of IQ2 four in each qword, of IQ3 twice in each word. */
INLINE __m512i grid_signs(const uint8_t *w, __m512i stored, const enum tensor_format format)
{
    __m512i sevens;
    switch (format) {
    case FORMAT_IQ2_S:
        return stored;
    case FORMAT_IQ3_S:
        return _mm512_permutexvar_epi8(_mm512_set_epi8(31, 31, 30, 30, 29, 29, 28, 28, 27, 27, 26, 26, 25, 25,
                                                       24, 24, 23, 23, 22, 22, 21, 21, 20, 20, 19, 19, 18, 18,
                                                       17, 17, 16, 16, 15, 15, 14, 14, 13, 13, 12, 12, 11, 11,
                                                       10, 10, 9, 9, 8, 8, 7, 7, 6, 6, 5, 5, 4, 4, 3, 3, 2, 2,
                                                       1, 1, 0, 0),
                                       _mm512_castsi256_si512(_mm256_loadu_si256((const void *)(w + 74))));
    case FORMAT_IQ2_XXS:
        sevens = GRID_BITS(stored, 32, 39, 46, 53, 32, 39, 46, 53);
        break;
    case FORMAT_IQ2_XS:
        sevens = GRID_BITS(stored, 9, 25, 41, 57, 9, 25, 41, 57);
        break;
    default: /* IQ3_XXS */
        sevens = GRID_BITS(stored, 0, 0, 7, 7, 14, 14, 21, 21);
    }
    return _mm512_permutex2var_epi8(_mm512_loadu_si512(block_even), sevens,
                                    _mm512_loadu_si512(block_even + 64));
}

/* ---- numbers ---- */

/* 64 bytes from which bits `bit` and on of six choose a level of `bits` bits, and bit `sign` its sign: of IQ1
 * an eighth's, which is added to it or taken from it; `sign` below 0: none. All are increased by
 * number_less. */
INLINE long long grid_chooser8(const int bits, const int bit, const int sign, const int first,
                               const enum tensor_format format)
{
    const uint64_t levels = format == FORMAT_IQ3_XXS ? BLOCK_LEVELS_IQ3_XXS
                            : format == FORMAT_IQ3_S ? BLOCK_LEVELS_IQ3_S
                            : has_eighths(format)    ? BLOCK_LEVELS_IQ1
                                                     : BLOCK_LEVELS_IQ2;
    uint64_t all = 0;
    UNROLL for (int i = first; i < first + 8; i++)
    {
        const int level = (int8_t)(levels >> 8 * (i >> bit & ((1 << bits) - 1)));
        const bool negative = sign >= 0 && i >> sign & 1;
        const int number = has_eighths(format) ? level + (negative ? -1 : 1) : negative ? -level : level;
        all |= (uint64_t)(uint8_t)(number + number_less(format)) << 8 * (i - first);
    }
    return (long long)all;
}
INLINE __m512i grid_chooser(const int bits, const int bit, const int sign, const enum tensor_format format)
{
#define EIGHT_OF(first) grid_chooser8(bits, bit, sign, first, format)
    return _mm512_set_epi64(EIGHT_OF(56), EIGHT_OF(48), EIGHT_OF(40), EIGHT_OF(32), EIGHT_OF(24),
                            EIGHT_OF(16), EIGHT_OF(8), EIGHT_OF(0));
#undef EIGHT_OF
}

/* The four vectors of a block of places of four, increased by number_less. */
INLINE void grid_numbers_of_fours(__m512i v[4], const uint8_t *w, __m512i stored,
                                  const enum tensor_format format)
{
    const bool large = format == FORMAT_IQ3_S;
    const __m512i places = _mm512_loadu_si512(w + 2), signs = grid_signs(w, stored, format),
                  twice = _mm512_set1_epi8((char)(2 * number_less(format)));
    uint64_t bits = 0;
    if (large) memcpy(&bits, w + 66, sizeof bits);
    UNROLL for (int half = 0; half < 2; half++)
    {
        const __m512i twos = large ? grid_look_up_bytes(block_twos_iq3_s[half], 512, places, bits)
                                   : grid_look_up_bytes(block_twos_iq3_xxs[half], 256, places, bits);
        v[2 * half] = _mm512_permutexvar_epi8(twos, grid_chooser(3, 0, -1, format));
        v[2 * half + 1] = _mm512_permutexvar_epi8(twos, grid_chooser(3, 3, -1, format));
    }
    UNROLL for (int f = 0; f < 4; f++) v[f] =
        _mm512_mask_sub_epi8(v[f], _mm512_test_epi8_mask(signs, _mm512_set1_epi16((short)(0x1001 << f))),
                             twice, v[f]);
}
/* The same of places of eight. `words` are entries; where they are gathered places, which have entries of
 * eight numbers in a lane, the bits of two in a byte. A byte of an index has levels of two numbers, and from
 * bit 4 on their signs, of IQ1 in bit 5 the eighth's. */
INLINE void grid_numbers_of_eights(__m512i v[4], const uint8_t *w, __m512i stored, __m512i words,
                                   const enum tensor_format format)
{
    const bool one = has_eighths(format);
    __m512i entries[2], signs[2];
    if (GRID_GATHERS && grid_is_fetched(format)) {
        const uint32_t *grid = one ? block_spread_iq1 : block_spread_iq2_s;
        entries[0] = _mm512_i32gather_epi32(_mm512_and_si512(words, _mm512_set1_epi32(0xffff)), grid, 4);
        entries[1] = _mm512_i32gather_epi32(_mm512_srli_epi32(words, 16), grid, 4);
    } else {
        entries[0] = GRID_BITS(words, 0, 4, 8, 12, 32, 36, 40, 44);
        entries[1] = GRID_BITS(words, 16, 20, 24, 28, 48, 52, 56, 60);
    }
    if (one) {
        const int each = format == FORMAT_IQ1_M ? 4 : 0, first = format == FORMAT_IQ1_M ? -2 : 10;
        signs[0] = GRID_LANE_BITS(stored, first, first + 2 * each);
        signs[1] = GRID_LANE_BITS(stored, first + each, first + 3 * each);
    } else {
        const __m512i bytes = grid_signs(w, stored, format);
        signs[0] = GRID_BITS(bytes, -4, -2, 0, 2, 12, 14, 16, 18);
        signs[1] = GRID_BITS(bytes, 4, 6, 8, 10, 20, 22, 24, 26);
    }
    UNROLL for (int i = 0; i < 2; i++)
    {
        const __m512i index =
            _mm512_ternarylogic_epi32(entries[i], signs[i], _mm512_set1_epi8(15), GRID_CHOOSE);
        v[2 * i] = _mm512_permutexvar_epi8(index, grid_chooser(2, 0, one ? 5 : 4, format));
        v[2 * i + 1] = _mm512_permutexvar_epi8(index, grid_chooser(2, 2, 5, format));
    }
}

/* ---- scales ---- */

/* The bit that lane `lane` has its scale from, of the qword that was stored of it or, IQ2_XS, IQ2_S, IQ3_S
 * and IQ1_M, of scales. */
INLINE int grid_scale_bit(const int lane, const enum tensor_format format)
{
    switch (format) {
    case FORMAT_IQ2_XXS:
        return 60;
    case FORMAT_IQ3_XXS:
        return 28;
    case FORMAT_IQ1_S:
        return 12;
    case FORMAT_IQ3_S:
        return lane / 2 * 4;
    case FORMAT_IQ1_M:
        return lane / 4 * 16 + lane % 4 * 3;
    default:
        return lane * 4;
    }
}
/* Scales of a block's sixteens as whole numbers: twice what is stored and one. */
INLINE __m512i grid_whole_scales(const uint8_t *w, __m512i stored, const enum tensor_format format)
{
    const int at = format == FORMAT_IQ2_XS  ? 66
                   : format == FORMAT_IQ2_S ? 74
                   : format == FORMAT_IQ3_S ? 106
                   : format == FORMAT_IQ1_M ? 48
                                            : 0;
    if (at) {
        uint64_t all = 0;
        memcpy(&all, w + at, format == FORMAT_IQ3_S ? 4 : 8);
        stored = _mm512_set1_epi64((long long)all);
    }
#define LANE(s) ((grid_scale_bit(s, format) - 1) & 63)
#define TWO(q)  (long long)LANE(2 * (q) + 1) << 32 | LANE(2 * (q))
    const __m512i twice = _mm512_multishift_epi64_epi8(_mm512_set_epi64(TWO(7), TWO(6), TWO(5), TWO(4),
                                                                        TWO(3), TWO(2), TWO(1), TWO(0)),
                                                       stored);
#undef TWO
#undef LANE
    return _mm512_ternarylogic_epi32(twice, _mm512_set1_epi32(has_eighths(format) ? 14 : 30),
                                     _mm512_set1_epi32(1), 0xea); /* a & b | c */
}

/* Numbers and scales (NULL: they are not asked for) of a block of each of S rows, at row[0] to row[S - 1]. */
INLINE void grid_rows(__m512i number[][4], vec *scale, const uint8_t *const *row, const size_t S,
                      const enum tensor_format format)
{
    _Alignas(16) float by[GRID_ROWS];
    if (scale) {
        uint64_t halves = 0;
        UNROLL for (size_t s = 0; s < S; s++) halves |= (uint64_t)grid_half(row[s], format) << 16 * s;
        _mm_store_ps(by, _mm_mul_ps(_mm_cvtph_ps(_mm_cvtsi64_si128((long long)halves)),
                                    _mm_set1_ps(grid_by(format))));
        __asm__(""
                : "+m"(by)); /* a load spreads them, the compiler would do it with the port that permutes */
    }
    __m512i stored[GRID_ROWS], words[GRID_ROWS + 1];
    _Alignas(64) uint16_t place[GRID_ROWS][32];
    const bool fetched = grid_is_fetched(format) && !GRID_GATHERS;
    UNROLL for (size_t s = 0; s < S; s++)
    {
        stored[s] = grid_stored(row[s], format);
        if (!has_fours(format)) words[s] = grid_places(row[s], stored[s], format);
        if (fetched) _mm512_store_si512(place[s], words[s]);
    }
    __asm__("" : "+m"(place)); /* the compiler would take places out of a register one by one */
    UNROLL for (size_t s = 0; s < S; s++)
    {
        if (fetched) words[s] = grid_fetch(place[s], format);
        if (!has_fours(format) && !grid_is_fetched(format) && s % 2 == 0) {
            if (s + 1 == S) words[s + 1] = words[s];
            grid_look_up_two(words + s, format);
        }
        if (has_fours(format))
            grid_numbers_of_fours(number[s], row[s], stored[s], format);
        else
            grid_numbers_of_eights(number[s], row[s], stored[s], words[s], format);
        if (scale)
            scale[s] =
                vec_mul(_mm512_cvtepi32_ps(grid_whole_scales(row[s], stored[s], format)), vec_set1(by[s]));
    }
}
/* The same, rows `stride` bytes apart. */
INLINE void grid_rows_at(__m512i number[][4], vec *scale, const uint8_t *w, size_t stride, const size_t S,
                         const enum tensor_format format)
{
    const uint8_t *row[GRID_ROWS];
    UNROLL for (size_t s = 0; s < S; s++) row[s] = w + s * stride;
    grid_rows(number, scale, row, S, format);
}

/* The order of a block's numbers as they are stored: byte i of the result is number i. */
INLINE void grid_in_order(__m512i v[4], const enum tensor_format format)
{
    const __m512i a = _mm512_unpacklo_epi8(v[0], v[1]), b = _mm512_unpackhi_epi8(v[0], v[1]),
                  c = _mm512_unpacklo_epi8(v[2], v[3]), d = _mm512_unpackhi_epi8(v[2], v[3]);
    const bool fours = has_fours(format);
    /* sixteens 4 q + i in quarter q of the ith */
    const __m512i s0 = fours ? _mm512_unpacklo_epi16(a, c) : _mm512_unpacklo_epi64(a, c),
                  s1 = fours ? _mm512_unpackhi_epi16(a, c) : _mm512_unpackhi_epi64(a, c),
                  s2 = fours ? _mm512_unpacklo_epi16(b, d) : _mm512_unpacklo_epi64(b, d),
                  s3 = fours ? _mm512_unpackhi_epi16(b, d) : _mm512_unpackhi_epi64(b, d);
    const __m512i low01 = _mm512_shuffle_i32x4(s0, s1, 0x44), high01 = _mm512_shuffle_i32x4(s0, s1, 0xee),
                  low23 = _mm512_shuffle_i32x4(s2, s3, 0x44), high23 = _mm512_shuffle_i32x4(s2, s3, 0xee);
    v[0] = _mm512_shuffle_i32x4(low01, low23, 0x88);
    v[1] = _mm512_shuffle_i32x4(low01, low23, 0xdd);
    v[2] = _mm512_shuffle_i32x4(high01, high23, 0x88);
    v[3] = _mm512_shuffle_i32x4(high01, high23, 0xdd);
}
