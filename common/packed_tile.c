/* Tiles of packed groups in plain C and with AVX2.
 *
 * Called by common/packed.c. A vector holds whole lanes (8 values each): the codes of a lane's four runs are
 * put above each other by shifts, so that only the last of four words has to be spread over the others. With
 * AVX-512 the same way is no more than a tenth faster, so there is none. */
#include "common/packed_tile.h"

#include <immintrin.h>
#include <string.h>

#define CODE_BITS 0x0249u /* bit 3 * k of a half */

/* k * 256 + 2 * i + half */
#define PLACE(k, i, half) ((k)*256 + 2 * (i) + (half))
#define NONE              PACKED_TILE
#define FIRST(k, half)    PLACE(k, 0, half), PLACE(k, 1, half), PLACE(k, 2, half)
#define LAST(k, half)     PLACE(k, 3, half), NONE, NONE
#define FOUR_NONE         NONE, NONE, NONE, NONE
const uint16_t packed_escape_place[64] = {
    FIRST(0, 0), FIRST(1, 0), FIRST(2, 0), FIRST(3, 0), FOUR_NONE,  FIRST(0, 1), FIRST(1, 1),
    FIRST(2, 1), FIRST(3, 1), FOUR_NONE,   LAST(0, 0),  LAST(1, 0), LAST(2, 0),  LAST(3, 0),
    FOUR_NONE,   LAST(0, 1),  LAST(1, 1),  LAST(2, 1),  LAST(3, 1), FOUR_NONE,
};

static inline uint32_t exponent_of(uint16_t value)
{
    return value >> 7 & 0xff;
}
static inline uint32_t code_of(uint32_t exponent, uint32_t base)
{
    return exponent >= base && exponent < base + PACKED_ESCAPE ? exponent - base : PACKED_ESCAPE;
}

uint32_t packed_tile_ref(const uint16_t *value, uint8_t base, struct packed_tile *tile, uint8_t *escape)
{
    uint32_t escapes = 0;
    for (uint32_t p = 0; p < PACKED_TILE; p++)
        tile->rest[p] = (uint8_t)((value[p] >> 15) << 7 | (value[p] & 0x7f));
    for (uint32_t lane = 0; lane < 32; lane++) {
        uint32_t u[4] = {0, 0, 0, 0};
        for (uint32_t k = 0; k < 4; k++)
            for (uint32_t i = 0; i < 4; i++)
                for (uint32_t half = 0; half < 2; half++) {
                    const uint32_t e = exponent_of(value[8 * lane + PLACE(k, i, half)]);
                    u[i] |= code_of(e, base) << (16 * half + 3 * k);
                }
        for (uint32_t i = 0; i < 3; i++) tile->code[i][lane] = u[i] | (u[3] >> (4 * i) & 0x000f000f) << 12;
        for (uint32_t bit = 0; bit < 64; bit++) {
            const uint32_t place = packed_escape_place[bit];
            if (place == NONE) continue;
            const uint32_t e = exponent_of(value[8 * lane + place]);
            if (code_of(e, base) == PACKED_ESCAPE) escape[escapes++] = (uint8_t)e;
        }
    }
    return escapes;
}

/* Lists the escapes of the lane whose first value is value[0]; mask[i] has their bits 16 * half + 3 * k. */
static inline uint32_t list_escapes(const uint16_t *value, const uint32_t mask[4], uint8_t *escape)
{
    uint64_t left = mask[0] | mask[1] << 1 | mask[2] << 2 | (uint64_t)mask[3] << 32;
    uint32_t escapes = 0;
    for (; left != 0; left &= left - 1)
        escape[escapes++] = (uint8_t)exponent_of(value[packed_escape_place[__builtin_ctzll(left)]]);
    return escapes;
}

/* Codes of 16 values, and their signs and mantissas as 16-bit numbers. */
__attribute__((target("avx2"))) static inline __m256i codes_avx2(__m256i v, __m256i base)
{
    __m256i e = _mm256_and_si256(_mm256_srli_epi16(v, 7), _mm256_set1_epi16(0xff));
    return _mm256_min_epu16(_mm256_sub_epi16(e, base), _mm256_set1_epi16(PACKED_ESCAPE));
}
__attribute__((target("avx2"))) static inline __m256i rest_avx2(__m256i v)
{
    return _mm256_or_si256(_mm256_and_si256(_mm256_srli_epi16(v, 8), _mm256_set1_epi16(0x80)),
                           _mm256_and_si256(v, _mm256_set1_epi16(0x7f)));
}

__attribute__((target("avx2"))) uint32_t packed_tile_avx2(const uint16_t *value, uint8_t base,
                                                          struct packed_tile *tile, uint8_t *escape)
{
    const __m256i bases = _mm256_set1_epi16(base), bits = _mm256_set1_epi16(CODE_BITS),
                  nibbles = _mm256_set1_epi16(0xf), places = _mm256_setr_epi32(0, 4, 8, 12, 0, 4, 8, 12);
    uint32_t escapes = 0;
    for (uint32_t lane = 0; lane < 32; lane += 4) {
        const uint16_t *first = value + 8 * lane;
        __m256i word[2] = {_mm256_setzero_si256(), _mm256_setzero_si256()};
        for (int k = 0; k < 4; k++) {
            __m256i v[2];
            for (int n = 0; n < 2; n++) {
                v[n] = _mm256_loadu_si256((const __m256i *)(const void *)(first + k * 256 + n * 16));
                word[n] = _mm256_or_si256(word[n], _mm256_slli_epi16(codes_avx2(v[n], bases), 3 * k));
            }
            __m256i rest = _mm256_packus_epi16(rest_avx2(v[0]), rest_avx2(v[1]));
            _mm256_storeu_si256((__m256i *)(void *)(tile->rest + k * 256 + 8 * lane),
                                _mm256_permute4x64_epi64(rest, 0xd8));
        }
        __m128 row[4];
        for (int n = 0; n < 2; n++) {
            __m256i u = word[n];
            __m256i escaped =
                _mm256_and_si256(_mm256_and_si256(_mm256_srli_epi16(u, 1), _mm256_srli_epi16(u, 2)),
                                 _mm256_and_si256(u, bits));
            if (!_mm256_testz_si256(escaped, escaped)) {
                uint32_t mask[8];
                _mm256_storeu_si256((__m256i *)(void *)mask, escaped);
                escapes += list_escapes(first + n * 16, mask, escape + escapes);
                escapes += list_escapes(first + n * 16 + 8, mask + 4, escape + escapes);
            }
            __m256i last = _mm256_srlv_epi32(_mm256_shuffle_epi32(u, 0xff), places);
            u = _mm256_or_si256(u, _mm256_slli_epi32(_mm256_and_si256(last, nibbles), 12));
            row[2 * n] = _mm_castsi128_ps(_mm256_castsi256_si128(u));
            row[2 * n + 1] = _mm_castsi128_ps(_mm256_extracti128_si256(u, 1));
        }
        _MM_TRANSPOSE4_PS(row[0], row[1], row[2], row[3]);
        for (int i = 0; i < 3; i++) memcpy(tile->code[i] + lane, &row[i], sizeof(row[i]));
    }
    return escapes;
}

packed_tile_fn *packed_tile_best(void)
{
    return __builtin_cpu_supports("avx2") ? packed_tile_avx2 : packed_tile_ref;
}

/* The lane's codes, those of (k, i, half) at bit 16 * half + 3 * k of u[i]. */
static inline void lane_codes(const struct packed_tile *tile, uint32_t lane, uint32_t u[4])
{
    u[3] = 0;
    for (uint32_t i = 0; i < 3; i++) {
        u[i] = tile->code[i][lane] & 0x0fff0fff;
        u[3] |= (tile->code[i][lane] >> 12 & 0x000f000f) << (4 * i);
    }
}
static inline uint32_t escaped_codes(uint32_t u)
{
    return u & u >> 1 & u >> 2 & (CODE_BITS << 16 | CODE_BITS);
}

uint32_t packed_tile_escapes(const struct packed_tile *tile)
{
    uint32_t escapes = 0, u[4];
    for (uint32_t lane = 0; lane < 32; lane++) {
        lane_codes(tile, lane, u);
        for (uint32_t i = 0; i < 4; i++) escapes += (uint32_t)__builtin_popcount(escaped_codes(u[i]));
    }
    return escapes;
}

void packed_tile_read(const struct packed_tile *tile, uint8_t base, const uint8_t *escape, uint16_t *value)
{
    for (uint32_t lane = 0; lane < 32; lane++) {
        uint32_t u[4];
        lane_codes(tile, lane, u);
        for (uint32_t k = 0; k < 4; k++)
            for (uint32_t i = 0; i < 4; i++)
                for (uint32_t half = 0; half < 2; half++) {
                    const uint32_t place = 8 * lane + PLACE(k, i, half), rest = tile->rest[place];
                    const uint32_t exponent = base + (u[i] >> (16 * half + 3 * k) & 7);
                    value[place] = (uint16_t)((rest & 0x80) << 8 | exponent << 7 | (rest & 0x7f));
                }
        uint64_t left = escaped_codes(u[0]) | escaped_codes(u[1]) << 1 | escaped_codes(u[2]) << 2 |
                        (uint64_t)escaped_codes(u[3]) << 32;
        for (; left != 0; left &= left - 1) {
            uint16_t *v = value + 8 * lane + packed_escape_place[__builtin_ctzll(left)];
            *v = (uint16_t)((*v & 0x807f) | (uint32_t)*escape++ << 7);
        }
    }
}

void packed_count(const uint16_t *value, uint32_t values, uint32_t count[256])
{
    /* neighbours often have the same exponent: four tables, so that one count does not wait for another */
    uint32_t table[4][256];
    uint32_t i = 0;
    memset(table, 0, sizeof(table));
    for (; i + 4 <= values; i += 4) {
        uint64_t four;
        memcpy(&four, value + i, sizeof(four));
        table[0][four >> 7 & 0xff]++;
        table[1][four >> 23 & 0xff]++;
        table[2][four >> 39 & 0xff]++;
        table[3][four >> 55 & 0xff]++;
    }
    for (; i < values; i++) table[0][exponent_of(value[i])]++;
    for (uint32_t e = 0; e < 256; e++) count[e] += table[0][e] + table[1][e] + table[2][e] + table[3][e];
}
