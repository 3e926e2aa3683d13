/* Tiles of packed groups: written in plain C and with AVX2, read with SSE2, which every x86-64 has.
 *
 * Called by common/formats/packed.c. A vector holds whole lanes (8 values each): the codes of a lane's four
 * runs are put above each other by shifts, so that only the last of four words has to be spread over the
 * others. With AVX-512 the same way is no more than a tenth faster, so there is none. */
#include "common/formats/packed_tile.h"

#include <immintrin.h>
#include <string.h>

#include "common/base/cpu.h"

/* The value's place in its lane. */
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
    return cpu_features() & CPU_AVX2 ? packed_tile_avx2 : packed_tile_ref;
}

/* The codes of lanes `lane` to `lane` + 3, a lane's word i in word[i]: those of (k, i, half) at bit 16 * half
 * + 3 * k. */
static inline void read_codes(const struct packed_tile *tile, uint32_t lane, __m128i word[4])
{
    word[3] = _mm_setzero_si128();
    for (int i = 0; i < 3; i++) {
        const __m128i w = _mm_loadu_si128((const __m128i *)(const void *)(tile->code[i] + lane)),
                      last = _mm_and_si128(_mm_srli_epi16(w, 12), _mm_set1_epi16(0xf));
        word[i] = _mm_and_si128(w, _mm_set1_epi16(0x0fff));
        word[3] = _mm_or_si128(word[3], _mm_slli_epi16(last, 4 * i));
    }
}

uint32_t packed_tile_escapes(const struct packed_tile *tile)
{
    const __m128i none = _mm_set1_epi16(PACKED_ESCAPE);
    __m128i word[4], sum = _mm_setzero_si128();
    for (uint32_t lane = 0; lane < 32; lane += 4) {
        read_codes(tile, lane, word);
        for (int i = 0; i < 4; i++)
            for (int k = 0; k < 4; k++) {
                const __m128i code = _mm_and_si128(_mm_srli_epi16(word[i], 3 * k), none);
                sum = _mm_sub_epi16(sum, _mm_cmpeq_epi16(code, none));
            }
    }
    uint16_t part[8];
    uint32_t escapes = 0;
    memcpy(part, &sum, sizeof part);
    for (int i = 0; i < 8; i++) escapes += part[i];
    return escapes;
}

/* A vector is a lane's eight values of one k. */
void packed_tile_read(const struct packed_tile *tile, uint8_t base, const uint8_t *escape, uint16_t *value)
{
    const __m128i none = _mm_set1_epi16(PACKED_ESCAPE), bases = _mm_set1_epi16(base);
    __m128 lane_words[32];
    for (uint32_t lane = 0; lane < 32; lane += 4) {
        __m128i word[4];
        read_codes(tile, lane, word);
        for (int i = 0; i < 4; i++) lane_words[lane + (uint32_t)i] = _mm_castsi128_ps(word[i]);
        _MM_TRANSPOSE4_PS(lane_words[lane], lane_words[lane + 1], lane_words[lane + 2], lane_words[lane + 3]);
    }
    for (int k = 0; k < 4; k++)
        for (uint32_t lane = 0; lane < 32; lane++) {
            uint16_t *to = value + PLACE((uint32_t)k, 0, 0) + 8 * lane;
            const __m128i code =
                              _mm_and_si128(_mm_srli_epi16(_mm_castps_si128(lane_words[lane]), 3 * k), none),
                          exponent = _mm_and_si128(_mm_add_epi16(code, bases), _mm_set1_epi16(0xff)),
                          rest = _mm_unpacklo_epi8(
                              _mm_loadl_epi64((const __m128i *)(const void *)(tile->rest + (to - value))),
                              _mm_setzero_si128()),
                          sign = _mm_slli_epi16(_mm_and_si128(rest, _mm_set1_epi16(0x80)), 8),
                          mantissa = _mm_and_si128(rest, _mm_set1_epi16(0x7f));
            _mm_storeu_si128((__m128i *)(void *)to,
                             _mm_or_si128(_mm_or_si128(sign, mantissa), _mm_slli_epi16(exponent, 7)));
            /* few lanes have an escape */
            uint32_t escaped = (uint32_t)_mm_movemask_epi8(_mm_cmpeq_epi16(code, none)) & 0x5555;
            for (; escaped; escaped &= escaped - 1) {
                uint16_t *one = to + __builtin_ctz(escaped) / 2;
                *one = (uint16_t)((*one & 0x807f) | *escape++ << 7);
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
