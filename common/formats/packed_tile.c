/* Tiles of packed groups in plain C and with AVX2.
 *
 * Called by common/formats/packed.c. A vector holds whole lanes (8 values each): the codes of a lane's four runs are
 * put above each other by shifts, so that only the last of four words has to be spread over the others. With
 * AVX-512 the same way is no more than a tenth faster, so there is none. */
#include "common/formats/packed_tile.h"

#include <immintrin.h>
#include <string.h>

#define CODE_BITS 0x0249u /* bit 3 * k of a half */

/* Of the value's place in its lane: k * 256 + 2 * i + half. */
#define PLACE(k, i, half) ((k)*256 + 2 * (i) + (half))

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
    }
    for (uint32_t p = 0; p < PACKED_TILE; p++) {
        const uint32_t e = exponent_of(value[p]);
        if (code_of(e, base) == PACKED_ESCAPE) escape[escapes++] = (uint8_t)e;
    }
    return escapes;
}

/* Lists the escapes of a tile; mask[n] has those of values 32 * n and on. */
static uint32_t list_escapes(const uint16_t *value, const uint32_t mask[PACKED_TILE / 32], uint8_t *escape)
{
    uint32_t escapes = 0;
    for (uint32_t n = 0; n < PACKED_TILE / 32; n++)
        for (uint32_t left = mask[n]; left != 0; left &= left - 1)
            escape[escapes++] = (uint8_t)exponent_of(value[32 * n + (uint32_t)__builtin_ctz(left)]);
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
    const __m256i bases = _mm256_set1_epi16(base), nibbles = _mm256_set1_epi16(0xf),
                  places = _mm256_setr_epi32(0, 4, 8, 12, 0, 4, 8, 12),
                  none = _mm256_set1_epi16(PACKED_ESCAPE);
    uint32_t mask[PACKED_TILE / 32];
    for (uint32_t lane = 0; lane < 32; lane += 4) {
        const uint16_t *first = value + 8 * lane;
        __m256i word[2] = {_mm256_setzero_si256(), _mm256_setzero_si256()};
        for (int k = 0; k < 4; k++) {
            __m256i v[2], escaped[2];
            for (int n = 0; n < 2; n++) {
                v[n] = _mm256_loadu_si256((const __m256i *)(const void *)(first + k * 256 + n * 16));
                const __m256i codes = codes_avx2(v[n], bases);
                word[n] = _mm256_or_si256(word[n], _mm256_slli_epi16(codes, 3 * k));
                escaped[n] = _mm256_cmpeq_epi16(codes, none);
            }
            mask[8 * (uint32_t)k + lane / 4] = (uint32_t)_mm256_movemask_epi8(
                _mm256_permute4x64_epi64(_mm256_packs_epi16(escaped[0], escaped[1]), 0xd8));
            __m256i rest = _mm256_packus_epi16(rest_avx2(v[0]), rest_avx2(v[1]));
            _mm256_storeu_si256((__m256i *)(void *)(tile->rest + k * 256 + 8 * lane),
                                _mm256_permute4x64_epi64(rest, 0xd8));
        }
        __m128 row[4];
        for (int n = 0; n < 2; n++) {
            __m256i u = word[n];
            __m256i last = _mm256_srlv_epi32(_mm256_shuffle_epi32(u, 0xff), places);
            u = _mm256_or_si256(u, _mm256_slli_epi32(_mm256_and_si256(last, nibbles), 12));
            row[2 * n] = _mm_castsi128_ps(_mm256_castsi256_si128(u));
            row[2 * n + 1] = _mm_castsi128_ps(_mm256_extracti128_si256(u, 1));
        }
        _MM_TRANSPOSE4_PS(row[0], row[1], row[2], row[3]);
        for (int i = 0; i < 3; i++) memcpy(tile->code[i] + lane, &row[i], sizeof(row[i]));
    }
    return list_escapes(value, mask, escape);
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
    uint32_t u[32][4];
    for (uint32_t lane = 0; lane < 32; lane++) lane_codes(tile, lane, u[lane]);
    for (uint32_t place = 0; place < PACKED_TILE; place++) {
        const uint32_t k = place / 256, lane = place / 8 % 32, i = place / 2 % 4, half = place % 2;
        const uint32_t code = u[lane][i] >> (16 * half + 3 * k) & 7, rest = tile->rest[place];
        const uint32_t exponent = code == PACKED_ESCAPE ? *escape++ : base + code;
        value[place] = (uint16_t)((rest & 0x80) << 8 | exponent << 7 | (rest & 0x7f));
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
