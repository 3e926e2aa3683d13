/* Blocks whose numbers are places in grids (common/formats/blocks_grid.h), 256 numbers at a time, with
 * AVX-512 VBMI.
 *
 * A block becomes four vectors of 64 numbers: byte 4 s + b of vector f is number 16 s + 4 b + f. So a lane of
 * 32 bits has numbers of sixteen neighbours, lane s of number 16 s and on, in all four vectors, and groups'
 * scales are applied to lanes. In this order a place of four numbers, or a byte of an entry of eight, is one
 * byte, from which a permutation of 64 levels chooses each vector's number: by two or three bits of the six
 * that it looks at.
 *
 * Entries of up to 512 places are looked up in registers, of more in memory, one by one: IQ2_S's and IQ1's.
 * (A Zen 4 core takes 23 cycles for 32 of these, 25 and 50 in registers, 39 with gathering instructions.)
 *
 * Included after lanes512.h. `format` is a constant wherever these are inlined. */
#pragma once

#include "common/cpu/kernels/blocks_grid_words.h"

#define GRID_ROWS 4 /* taken apart side by side */

/* The same eight bytes in each qword. */
#define GRID_EIGHTS(a, b, c, d, e, f, g, h)                                                                  \
    _mm512_set1_epi64((long long)((uint64_t)(h) << 56 | (uint64_t)(g) << 48 | (uint64_t)(f) << 40 |          \
                                  (uint64_t)(e) << 32 | (uint64_t)(d) << 24 | (uint64_t)(c) << 16 |          \
                                  (uint64_t)(b) << 8 | (uint64_t)(a)))

INLINE bool has_fours(const enum tensor_format format)
{
    return format == FORMAT_IQ3_XXS || format == FORMAT_IQ3_S;
}
INLINE __m512i grid_load32(const uint8_t *at)
{
    return _mm512_castsi256_si512(_mm256_loadu_si256((const void *)at));
}

/* ---- entries ---- */

/* Entries of 16 bits of 32 places, which are words. Bits above the places' are not looked at. */
INLINE __m512i grid_look_up(const uint16_t *grid, const int entries, __m512i places)
{
    __m512i found[8];
    UNROLL for (int i = 0; i < entries / 64; i++) found[i] =
        _mm512_permutex2var_epi16(_mm512_loadu_si512(grid + 64 * i), places,
                                  _mm512_loadu_si512(grid + 64 * i + 32));
    UNROLL for (int bit = 64; bit < entries; bit *= 2)
    {
        const __mmask32 upper = _mm512_test_epi16_mask(places, _mm512_set1_epi16((short)bit));
        UNROLL for (int i = 0; i < entries / bit / 2; i++) found[i] =
            _mm512_mask_blend_epi16(upper, found[2 * i], found[2 * i + 1]);
    }
    return found[0];
}
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
/* Entries that are not looked up in registers. */
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

/* Places of 32 entries of eight: a byte and further bits, `high`, which lie in the lower byte of a word: those of `bits`
 * once they are shifted. */
INLINE __m512i grid_joined(const uint8_t *low, __m512i high, const int bits)
{
    return _mm512_ternarylogic_epi32(_mm512_cvtepu8_epi16(_mm256_loadu_si256((const void *)low)), high,
                                     _mm512_set1_epi16((short)bits),
                                     0xf8); /* a | b & c; a name would be no constant for clang */
}
/* Each byte of 8 or 16 in 4 or 2 neighbouring words, shifted to the left. */
INLINE __m512i grid_spread(const uint8_t *at, const int times, __m512i shifts)
{
#define FOUR_OF(w)      (GRID_WORD(w, 3) << 48 | GRID_WORD(w, 2) << 32 | GRID_WORD(w, 1) << 16 | GRID_WORD(w, 0))
#define GRID_WORD(w, i) (long long)((4 * (w) + (i)) / times)
    const __m512i index = _mm512_set_epi64(FOUR_OF(7), FOUR_OF(6), FOUR_OF(5), FOUR_OF(4), FOUR_OF(3),
                                           FOUR_OF(2), FOUR_OF(1), FOUR_OF(0));
#undef FOUR_OF
#undef GRID_WORD
    const __m512i bytes = _mm512_castsi128_si512(times == 4 ? _mm_loadl_epi64((const void *)at)
                                                            : _mm_loadu_si128((const void *)at));
    return _mm512_sllv_epi16(_mm512_maskz_permutexvar_epi8(0x5555555555555555, index, bytes), shifts);
}

/* The parts of a block that are read more than once. */
struct grid_block {
    /* IQ2_XXS, IQ2_XS: 64 bytes; IQ3_XXS: words of signs and scales, in qwords; IQ1_S: its words, four times */
    __m512i first;
    __m512i high;          /* IQ1_M: further bits of places and signs, by places */
    const uint16_t *place; /* where those of entries that are fetched were stored */
};
INLINE struct grid_block grid_open(const uint8_t *w, const uint16_t *place, const enum tensor_format format)
{
    struct grid_block b = {_mm512_setzero_si512(), _mm512_setzero_si512(), place};
    switch (format) {
    case FORMAT_IQ2_XXS:
    case FORMAT_IQ2_XS:
        b.first = _mm512_loadu_si512(w + 2);
        break;
    case FORMAT_IQ3_XXS:
        b.first = _mm512_cvtepu32_epi64(_mm256_loadu_si256((const void *)(w + 66)));
        break;
    case FORMAT_IQ1_S:
        b.first = _mm512_shuffle_epi8(_mm512_cvtepu16_epi64(_mm_loadu_si128((const void *)(w + 34))),
                                      _mm512_set4_epi32(0x09080908, 0x09080908, 0x01000100, 0x01000100));
        break;
    case FORMAT_IQ1_M:
        b.high = grid_spread(w + 32, 2, _mm512_set1_epi32(0x00040008));
        break;
    default:
        break;
    }
    return b;
}

/* Entries of 16 bits of formats with places of eight numbers: those of 16 neighbouring numbers in a lane. */
INLINE __m512i grid_entries(const struct grid_block *b, const enum tensor_format format)
{
    switch (format) {
    case FORMAT_IQ2_XXS: {
        const __m512i at =
            _mm512_set_epi64(0x003b003a00390038, 0x0033003200310030, 0x002b002a00290028, 0x0023002200210020,
                             0x001b001a00190018, 0x0013001200110010, 0x000b000a00090008, 0x0003000200010000);
        return grid_look_up(block_entries_iq2_xxs, 256,
                            _mm512_maskz_permutexvar_epi8(0x5555555555555555, at, b->first));
    }
    case FORMAT_IQ2_XS:
        return grid_look_up(block_entries_iq2_xs, 512, b->first);
    default:
        return grid_fetch(b->place, format);
    }
}
/* Places of entries that are fetched. */
INLINE __m512i grid_places(const struct grid_block *b, const uint8_t *w, const enum tensor_format format)
{
    switch (format) {
    case FORMAT_IQ2_S:
        return grid_joined(w + 2, grid_spread(w + 66, 4, _mm512_set1_epi64(0x0002000400060008)), 0x300);
    case FORMAT_IQ1_S: /* words turned to the left so that their place's bits are bits 8 to 10 */
        return grid_joined(w + 2,
                           _mm512_shldv_epi16(b->first, b->first, _mm512_set1_epi64(0x000f000200050008)),
                           0x700);
    case FORMAT_IQ1_M:
        return grid_joined(w, b->high, 0x700);
    default:
        __builtin_unreachable();
    }
}

/* ---- signs ---- */

/* Signs of eight numbers twice in a word, for all of a block. */
INLINE __m512i grid_sign_bits(const struct grid_block *b, const uint8_t *w, const enum tensor_format format)
{
    __m512i sevens;
    switch (format) {
    case FORMAT_IQ2_S:
    case FORMAT_IQ3_S: {
        const __m512i byte =
            _mm512_set_epi8(31, 31, 30, 30, 29, 29, 28, 28, 27, 27, 26, 26, 25, 25, 24, 24, 23, 23, 22, 22,
                            21, 21, 20, 20, 19, 19, 18, 18, 17, 17, 16, 16, 15, 15, 14, 14, 13, 13, 12, 12,
                            11, 11, 10, 10, 9, 9, 8, 8, 7, 7, 6, 6, 5, 5, 4, 4, 3, 3, 2, 2, 1, 1, 0, 0);
        return _mm512_permutexvar_epi8(byte, grid_load32(w + (format == FORMAT_IQ2_S ? 34 : 74)));
    }
    case FORMAT_IQ2_XXS:
        sevens = _mm512_multishift_epi64_epi8(GRID_EIGHTS(32, 32, 39, 39, 46, 46, 53, 53), b->first);
        break;
    case FORMAT_IQ3_XXS:
        sevens = _mm512_multishift_epi64_epi8(GRID_EIGHTS(0, 0, 7, 7, 14, 14, 21, 21), b->first);
        break;
    case FORMAT_IQ2_XS:
        sevens = _mm512_multishift_epi64_epi8(GRID_EIGHTS(9, 9, 25, 25, 41, 41, 57, 57), b->first);
        break;
    default:
        __builtin_unreachable();
    }
    return _mm512_permutex2var_epi8(_mm512_loadu_si512(block_even), sevens,
                                    _mm512_loadu_si512(block_even + 64));
}
/* The number, 2 or 0, that formats with eighths add to their numbers. */
INLINE __m512i grid_eighths(const struct grid_block *b, const enum tensor_format format)
{
    const __m512i two = _mm512_set1_epi8(2);
    if (format == FORMAT_IQ1_S) return _mm512_andnot_si512(_mm512_srai_epi16(b->first, 15), two);
    return _mm512_maskz_mov_epi16(_mm512_testn_epi16_mask(b->high, _mm512_set1_epi16(0x0800)), two);
}

/* ---- numbers ---- */

/* 64 bytes from which bits `bit` and on of six choose a level, increased by `less`: two bits of four levels, or three. */
INLINE long long grid_chooser8(const uint64_t levels, const int bits, const int bit, const int less,
                               const int first)
{
    uint64_t all = 0;
    UNROLL for (int i = 0; i < 8; i++)
    {
        const int level = (first + i) >> bit & ((1 << bits) - 1);
        all |= (((levels >> 8 * level) + (uint64_t)less) & 255) << 8 * i;
    }
    return (long long)all;
}
INLINE __m512i grid_chooser(const uint64_t levels, const int bits, const int bit, const int less)
{
#define EIGHT_OF(first) grid_chooser8(levels, bits, bit, less, first)
    return _mm512_set_epi64(EIGHT_OF(56), EIGHT_OF(48), EIGHT_OF(40), EIGHT_OF(32), EIGHT_OF(24),
                            EIGHT_OF(16), EIGHT_OF(8), EIGHT_OF(0));
#undef EIGHT_OF
}

/* The four vectors of a block, increased by number_less: numbers without sign. */
INLINE void grid_numbers(__m512i v[4], const struct grid_block *b, const uint8_t *w,
                         const enum tensor_format format)
{
    const int less = number_less(format);
    if (has_fours(format)) {
        const bool large = format == FORMAT_IQ3_S;
        const uint64_t levels = large ? BLOCK_LEVELS_IQ3_S : BLOCK_LEVELS_IQ3_XXS;
        const __m512i places = _mm512_loadu_si512(w + 2);
        uint64_t bits = 0;
        if (large) memcpy(&bits, w + 66, sizeof bits);
        UNROLL for (int half = 0; half < 2; half++)
        {
            const __m512i twos = large ? grid_look_up_bytes(block_twos_iq3_s[half], 512, places, bits)
                                       : grid_look_up_bytes(block_twos_iq3_xxs[half], 256, places, bits);
            v[2 * half] = _mm512_permutexvar_epi8(twos, grid_chooser(levels, 3, 0, less));
            v[2 * half + 1] = _mm512_permutexvar_epi8(twos, grid_chooser(levels, 3, 3, less));
        }
    } else {
        const uint64_t levels = has_eighths(format) ? BLOCK_LEVELS_IQ1 : BLOCK_LEVELS_IQ2;
        const int more = has_eighths(format) ? less - 1 : less;
        const __m512i entries = grid_entries(b, format);
        UNROLL for (int f = 0; f < 3; f++) v[f] =
            _mm512_permutexvar_epi8(entries, grid_chooser(levels, 2, 2 * f, more));
        v[3] = _mm512_permutexvar_epi8(_mm512_srli_epi16(entries, 6), grid_chooser(levels, 2, 0, more));
    }
    if (has_eighths(format)) {
        const __m512i eighths = grid_eighths(b, format);
        UNROLL for (int f = 0; f < 4; f++) v[f] = _mm512_add_epi8(v[f], eighths);
        return;
    }
    const __m512i signs = grid_sign_bits(b, w, format), twice = _mm512_set1_epi8((char)(2 * less));
    UNROLL for (int f = 0; f < 4; f++) v[f] =
        _mm512_mask_sub_epi8(v[f], _mm512_test_epi8_mask(signs, _mm512_set1_epi16((short)(0x1001 << f))),
                             twice, v[f]);
}

/* ---- scales ---- */

/* The scales of a block's sixteens: twice a number and one, times the block's. */
INLINE vec grid_scales(const struct grid_block *b, const uint8_t *w, const enum tensor_format format)
{
    const size_t at = format == FORMAT_IQ2_XS  ? 66
                      : format == FORMAT_IQ2_S ? 74
                      : format == FORMAT_IQ3_S ? 106
                      : format == FORMAT_IQ1_M ? 48
                                               : 0;
    const float by = grid_scale(w, format);
    uint64_t all = 0;
    __m512i number;
    memcpy(&all, w + at, format == FORMAT_IQ3_S ? 4 : 8);
#define BY_SIXTEEN(step, SHIFT)                                                                              \
    _mm512_and_si512(_mm512_multishift_epi64_epi8(_mm512_set_epi64(GRID_TWO(SHIFT, 7), GRID_TWO(SHIFT, 6),   \
                                                                   GRID_TWO(SHIFT, 5), GRID_TWO(SHIFT, 4),   \
                                                                   GRID_TWO(SHIFT, 3), GRID_TWO(SHIFT, 2),   \
                                                                   GRID_TWO(SHIFT, 1), GRID_TWO(SHIFT, 0)),  \
                                                  _mm512_set1_epi64((long long)all)),                        \
                     _mm512_set1_epi32(step))
#define GRID_TWO(SHIFT, q) ((long long)SHIFT(2 * (q) + 1) << 32 | SHIFT(2 * (q)))
#define OF_FOUR(s)         (4 * (s))
#define OF_FOUR_TWICE(s)   (4 * ((s) / 2))
#define OF_THREE(s)        (16 * ((s) / 4) + 3 * ((s) % 4))
    switch (format) {
    case FORMAT_IQ2_XXS:
        number = _mm512_srli_epi32(_mm512_shuffle_epi32(b->first, (_MM_PERM_ENUM)0xf5), 28);
        break;
    case FORMAT_IQ3_XXS:
        number = _mm512_srli_epi32(_mm512_shuffle_epi32(b->first, (_MM_PERM_ENUM)0xa0), 28);
        break;
    case FORMAT_IQ1_S:
        number = _mm512_and_si512(_mm512_srli_epi32(b->first, 28), _mm512_set1_epi32(7));
        break;
    case FORMAT_IQ3_S:
        number = BY_SIXTEEN(15, OF_FOUR_TWICE);
        break;
    case FORMAT_IQ1_M:
        number = BY_SIXTEEN(7, OF_THREE);
        break;
    default:
        number = BY_SIXTEEN(15, OF_FOUR);
    }
    return vec_fmadd(_mm512_cvtepi32_ps(number), vec_set1(2 * by), vec_set1(by));
}

/* Numbers and scales (NULL: they are not asked for) of a block of each of S rows, at row[0] to row[S - 1]. */
INLINE void grid_rows(__m512i number[][4], vec *scale, const uint8_t *const *row, const size_t S,
                      const enum tensor_format format)
{
    struct grid_block block[GRID_ROWS];
    _Alignas(64) uint16_t place[GRID_ROWS][32];
    UNROLL for (size_t s = 0; s < S; s++)
    {
        block[s] = grid_open(row[s], place[s], format);
        if (grid_is_fetched(format)) _mm512_store_si512(place[s], grid_places(&block[s], row[s], format));
    }
    __asm__("" : "+m"(place)); /* the compiler would take places out of a register one by one */
    UNROLL for (size_t s = 0; s < S; s++)
    {
        grid_numbers(number[s], &block[s], row[s], format);
        if (scale) scale[s] = grid_scales(&block[s], row[s], format);
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
INLINE void grid_in_order(__m512i v[4])
{
    const __m512i a = _mm512_unpacklo_epi8(v[0], v[1]), b = _mm512_unpackhi_epi8(v[0], v[1]),
                  c = _mm512_unpacklo_epi8(v[2], v[3]), d = _mm512_unpackhi_epi8(v[2], v[3]);
    /* sixteens 4 q + i in quarter q of the ith */
    const __m512i s0 = _mm512_unpacklo_epi16(a, c), s1 = _mm512_unpackhi_epi16(a, c),
                  s2 = _mm512_unpacklo_epi16(b, d), s3 = _mm512_unpackhi_epi16(b, d);
    const __m512i low01 = _mm512_shuffle_i32x4(s0, s1, 0x44), high01 = _mm512_shuffle_i32x4(s0, s1, 0xee),
                  low23 = _mm512_shuffle_i32x4(s2, s3, 0x44), high23 = _mm512_shuffle_i32x4(s2, s3, 0xee);
    v[0] = _mm512_shuffle_i32x4(low01, low23, 0x88);
    v[1] = _mm512_shuffle_i32x4(low01, low23, 0xdd);
    v[2] = _mm512_shuffle_i32x4(high01, high23, 0x88);
    v[3] = _mm512_shuffle_i32x4(high01, high23, 0xdd);
}
