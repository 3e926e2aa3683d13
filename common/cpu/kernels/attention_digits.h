/* Products of few query rows with a cache of q8_0 on tiles of whole numbers (AMX-INT8): as exact as fp32, and
 * the cache's numbers are operands as they lie or interleaved.
 *
 * Queries become whole numbers of 31 bits and weights, times the scales of values, of 23: four and three
 * digits of 8 bits, which are lanes or rows of tiles side by side. A pass has PASS_ROWS query rows. Sums over
 * a block of 32 dimensions (scores) or over TILED_KEYS positions (values) are exact; they are multiplied by
 * scales and added in fp32, digits last.
 *
 *   queries  [block of 32 dimensions][fours of them][row][digit][4]  scores: 16 keys x 32 dimensions times
 *                                                                    32 dimensions x 16
 *   weights  [block][row][digit][TILED_KEYS]                         values: 12 x 64 positions
 *   values   [block][half][fours of positions][16 dimensions][4]     times 64 positions x 16 dimensions
 *
 * Positions 16 g + 4 l + 0..3 of a block are its fours 4 l + g, so that digits of weights need no move across
 * quarters of vectors, and a half has dimensions 8 half + {0..3, 16..19, 4..7, 20..23} of the block, so that
 * values need none: outputs are in that order until the end (tiled_order).
 *
 * Products and vectors' work share a core's ports, and what is not loaded again needs no register beside a
 * hyperthread (docs/notes/cpu-decode.md). Included by attention_few_amx.h, which walks a task. */
#pragma once

#include "common/cpu/kernels/amx_tiles.h"
#include "common/cpu/kernels/attention_few.h"

#define TILED_KEYS   64 /* positions of a block */
#define TILED_GROUP  16 /* of a tile of keys */
#define TILED_GROUPS (TILED_KEYS / TILED_GROUP)
#define PASS_ROWS    4
#define PASSES_MAX   (FEW_ROWS_MAX / PASS_ROWS)
#define PASS_SCORES  (PASS_ROWS * TILED_KEYS)
#define TILED_BLOCKS 4 /* of 32 dimensions */
#define TILED_DIM    (TILED_BLOCKS * KV_Q8_0_VALUES)
#define QUERY_BITS   30 /* of four digits */
#define WEIGHT_BITS  23 /* of three: what a float of 2^23 has room for */

/* The scratch of a task: for each pass of each head ([head][pass]), and after it for one pass or all of one
 * head. */
struct tiled_scratch {
    int8_t *q;          /* [TILED_BLOCKS][8][64] */
    float *worth;       /* [row][4]: what a query's unit is */
    float *o;           /* [row][TILED_DIM] */
    float *w;           /* weights, [row][position] */
    float *m, *s, *fix; /* [LANES] */
    float *p;           /* [pass][position / 4][row][position % 4]: scores */
    int32_t *sums; /* scores: [block][TILED_GROUP][row][digit]; values: [block][half][pass][row][digit][16] */
    float *scales; /* [position][block], of keys; of values [block][position] */
    uint8_t *weights; /* [block][pass][row][digit][TILED_KEYS] */
    char *values;     /* [block][half][TILED_GROUP][64] */
};

static size_t tiled_scratch_lay(struct tiled_scratch *t, char *base, size_t passes, size_t heads)
{
    const size_t all = passes * heads;
    const struct {
        void **place;
        size_t bytes;
    } part[] = {{(void **)&t->q, all * TILED_BLOCKS * 512},
                {(void **)&t->worth, all * 64},
                {(void **)&t->o, all * PASS_ROWS * TILED_DIM * sizeof(float)},
                {(void **)&t->w, all * PASS_SCORES * sizeof(float)},
                {(void **)&t->m, all * 64},
                {(void **)&t->s, all * 64},
                {(void **)&t->fix, all * 64},
                {(void **)&t->p, (size_t)PASSES_MAX * PASS_SCORES * sizeof(float)},
                {(void **)&t->sums, (size_t)2 * TILED_BLOCKS * PASSES_MAX * 768},
                {(void **)&t->scales, (size_t)TILED_KEYS * TILED_BLOCKS * sizeof(float)},
                {(void **)&t->weights, (size_t)4 * PASSES_MAX * 768},
                {(void **)&t->values, (size_t)4 * 2048}};
    size_t bytes = 0;
    for (size_t i = 0; i < sizeof part / sizeof *part; i++) {
        if (base) *part[i].place = base + bytes;
        bytes += part[i].bytes;
    }
    return bytes;
}

/* Tiles: 0 and 5 sums of scores, or 0 values; 1 keys; 2 queries; 3 and 6 sums of values; 4 weights. */
static void tiled_begin(void)
{
    const struct tile_shapes shapes = {.palette = 1,
                                       .row_bytes = {64, 32, 64, 64, 64, 64, 64},
                                       .rows = {16, 16, 8, 12, 12, 16, 12}};
    tiles_shape(&shapes);
}

/* ---- queries ---- */

/* 128-bit quarters: to[i] has quarter i of each of x. */
INLINE void tiled_quarters(__m512i to[4], const __m512i x[4])
{
    const __m512i a = _mm512_shuffle_i32x4(x[0], x[1], 0x44), b = _mm512_shuffle_i32x4(x[0], x[1], 0xee),
                  c = _mm512_shuffle_i32x4(x[2], x[3], 0x44), d = _mm512_shuffle_i32x4(x[2], x[3], 0xee);
    to[0] = _mm512_shuffle_i32x4(a, c, 0x88);
    to[1] = _mm512_shuffle_i32x4(a, c, 0xdd);
    to[2] = _mm512_shuffle_i32x4(b, d, 0x88);
    to[3] = _mm512_shuffle_i32x4(b, d, 0xdd);
}

/* Four numbers of four digits in a quarter: digits side by side, then numbers. */
INLINE __m512i tiled_digits(__m512i x)
{
    return _mm512_shuffle_epi8(x, _mm512_broadcast_i32x4(
                                      _mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15)));
}

/* The power of two that makes the number of these bits, the largest of its kind, one of that many whole
 * bits. */
INLINE float tiled_exponent(uint32_t bits, int whole)
{
    const vec top = _mm512_castsi512_ps(_mm512_set1_epi32((int)bits));
    return bits ? _mm512_cvtss_f32(_mm512_sub_ps(vec_set1((float)(whole - 1)), _mm512_getexp_ps(top))) : 0;
}

/* One pass's queries: from[row] of `rows` rows, others are 0. */
static void tiled_queries(int8_t *q, float *worth, const float *const *from, size_t rows, float scale)
{
    float exponent[PASS_ROWS] = {0};
    _Alignas(64) float unit[PASS_ROWS][4] = {{0}};
    for (size_t r = 0; r < rows; r++) {
        __m512i top = _mm512_setzero_si512(); /* as whole numbers: what is not finite is largest */
        for (size_t d = 0; d < TILED_DIM; d += LANES)
            top = _mm512_max_epu32(top, _mm512_and_si512(_mm512_castps_si512(
                                                             vec_mul(vec_load(from[r] + d), vec_set1(scale))),
                                                         _mm512_set1_epi32(0x7fffffff)));
        const uint32_t bits = _mm512_reduce_max_epu32(top);
        exponent[r] = bits < 0x7f800000 ? tiled_exponent(bits, QUERY_BITS) : NAN;
        for (int i = 0; i < 4; i++)
            unit[r][i] = _mm512_cvtss_f32(_mm512_scalef_ps(vec_set1(1), vec_set1(-exponent[r])));
    }
    memcpy(worth, unit, sizeof unit);
    for (size_t d = 0; d < TILED_DIM; d += LANES, q += 256) {
        __m512i x[PASS_ROWS], y[PASS_ROWS];
        for (size_t r = 0; r < PASS_ROWS; r++) {
            x[r] = _mm512_setzero_si512();
            if (r >= rows) continue;
            const __m512i bias = _mm512_set1_epi32(0x00808080); /* lower digits are signed, too */
            const __m512i whole = _mm512_cvtps_epi32(
                _mm512_scalef_ps(vec_mul(vec_load(from[r] + d), vec_set1(scale)), vec_set1(exponent[r])));
            x[r] = tiled_digits(_mm512_xor_si512(_mm512_add_epi32(whole, bias), bias));
        }
        tiled_quarters(y, x);
        for (size_t i = 0; i < 4; i++) _mm512_store_si512(q + 64 * i, y[i]);
    }
}

/* ---- scores ---- */

/* Where the sums of the last two products go, `odd` ones and others. Each is stored when the next but one
 * begins: a product takes 52 cycles, which a store right after it would wait for at the head of the core's
 * queue. */
typedef int32_t *tiled_sums[2];

/* A product to a tile, whose sums before, if there are any, are stored first. Numbers of tiles are parts of
 * instructions. */
#define TILED_PRODUCT(to, before, multiply, a_tile, a, a_stride, b_tile, b)                                  \
    do {                                                                                                     \
        if (before) _tile_stored(to, before, 64);                                                            \
        _tile_loadd(a_tile, a, a_stride);                                                                    \
        _tile_loadd(b_tile, b, 64);                                                                          \
        _tile_zero(to);                                                                                      \
        multiply(to, a_tile, b_tile);                                                                        \
    } while (0)
/* The last sums of the odd products' tile or of the others'. */
#define TILED_STORE(last, odd, even_tile, odd_tile)                                                          \
    do {                                                                                                     \
        TILE_FENCE();                                                                                        \
        if (odd)                                                                                             \
            _tile_stored(odd_tile, (last)[1], 64);                                                           \
        else                                                                                                 \
            _tile_stored(even_tile, (last)[0], 64);                                                          \
        TILE_FENCE();                                                                                        \
        (last)[odd] = NULL;                                                                                  \
    } while (0)

/* One block's products of a group with a pass's queries. */
INLINE void tiled_scores_multiply(tiled_sums last, const size_t odd, int32_t *sums, const char *keys,
                                  const int8_t *q)
{
    TILE_FENCE();
    if (odd)
        TILED_PRODUCT(5, last[1], _tile_dpbssd, 1, keys, TILED_DIM, 2, q);
    else
        TILED_PRODUCT(0, last[0], _tile_dpbssd, 1, keys, TILED_DIM, 2, q);
    TILE_FENCE();
    last[odd] = sums;
}

INLINE void tiled_scores_store(tiled_sums last, const size_t odd)
{
    TILED_STORE(last, odd, 0, 5);
}

/* A block's sums times scales are added to others'. */
INLINE void tiled_scores_add(vec x[TILED_GROUP], const int32_t *sums, const float *scales, const size_t b)
{
    UNROLL for (size_t i = 0; i < TILED_GROUP; i++)
    {
        const vec sum = _mm512_cvtepi32_ps(_mm512_load_si512(sums + i * LANES)),
                  scale = vec_set1(scales[i * TILED_BLOCKS + b]);
        x[i] = b == 0 ? vec_mul(sum, scale) : vec_fmadd(sum, scale, x[i]);
    }
}

/* A group's scores, [keys / 4][row][key]: digits are added. */
INLINE void tiled_scores_of(float *p, const vec x[TILED_GROUP], const float *worth)
{
    const vec upper = vec_set1(0x1p16f), second = vec_set1(0x1p8f), unit = vec_load(worth);
    UNROLL for (size_t i = 0; i < TILED_GROUP; i += 4)
    {
        const vec one = vec_fmadd(_mm512_unpackhi_ps(x[i], x[i + 1]), upper,
                                  _mm512_unpacklo_ps(x[i], x[i + 1])),
                  two = vec_fmadd(_mm512_unpackhi_ps(x[i + 2], x[i + 3]), upper,
                                  _mm512_unpacklo_ps(x[i + 2], x[i + 3]));
        vec_store(p + i * 4, vec_mul(vec_fmadd(_mm512_shuffle_ps(one, two, 0xee), second,
                                               _mm512_shuffle_ps(one, two, 0x44)),
                                     unit));
    }
}

/* A block's scores of a pass become weights, [row][position], 0 for positions that a row does not see:
 * few_softmax of four rows. */
static void tiled_softmax(const struct few_pass *pass, float *weights, const struct seen *seen)
{
    bool all = true;
    for (size_t r = 0; r < PASS_ROWS; r++) all = all && seen[r].lo == 0 && seen[r].hi >= TILED_KEYS;
    if (!all) few_mask(pass, seen, TILED_KEYS, PASS_ROWS);
    vec top[4], sum[4];
    UNROLL for (size_t i = 0; i < 4; i++)
    {
        const float *p = pass->p + i * LANES;
        top[i] =
            vec_max(vec_max(vec_load(p), vec_load(p + 64)), vec_max(vec_load(p + 128), vec_load(p + 192)));
        sum[i] = vec_set1(0);
    }
    const vec before = vec_load(pass->m),
              now = vec_max(few_max(vec_max(vec_max(top[0], top[1]), vec_max(top[2], top[3])), PASS_ROWS),
                            before);
    const vec shift = vec_zero_below(now, now, vec_set1(-FLT_MAX)); /* as few_softmax has it */
    const vec fix = vec_exp(vec_sub(before, shift));
    for (size_t g = 0; g < TILED_GROUPS; g++) {
        __m512i x[4], row[4];
        UNROLL for (size_t i = 0; i < 4; i++)
        {
            const vec w = vec_exp(vec_sub(vec_load(pass->p + (g * 4 + i) * LANES), shift));
            sum[i] = vec_add(sum[i], w);
            x[i] = _mm512_castps_si512(w);
        }
        tiled_quarters(row, x);
        UNROLL for (size_t r = 0; r < PASS_ROWS; r++)
            _mm512_store_si512(weights + r * TILED_KEYS + g * LANES, row[r]);
    }
    vec_store(pass->m, now);
    vec_store(pass->s,
              vec_fmadd(vec_load(pass->s), fix, vec_add(vec_add(sum[0], sum[1]), vec_add(sum[2], sum[3]))));
    vec_store(pass->fix, fix);
}

/* ---- values ---- */

/* Interleaves two blocks' numbers of four positions: a row of each one's tiles. */
INLINE void tiled_spread(char *to, const char *rows)
{
    __m512i x[4];
    UNROLL for (size_t i = 0; i < 4; i++) x[i] = _mm512_loadu_si512(rows + i * TILED_DIM);
    const __m512i a = _mm512_unpacklo_epi8(x[0], x[1]), b = _mm512_unpacklo_epi8(x[2], x[3]),
                  c = _mm512_unpackhi_epi8(x[0], x[1]), e = _mm512_unpackhi_epi8(x[2], x[3]);
    const __m512i y[4] = {_mm512_unpacklo_epi16(a, b), _mm512_unpackhi_epi16(a, b),
                          _mm512_unpacklo_epi16(c, e), _mm512_unpackhi_epi16(c, e)};
    UNROLL for (size_t i = 0; i < 4; i++)
    {
        char *at = to + i / 2 * 1024 + i % 2 * 32;
        _mm256_store_si256((__m256i *)(void *)at, _mm512_castsi512_si256(y[i]));
        _mm256_store_si256((__m256i *)(void *)(at + 2048), _mm512_extracti64x4_epi64(y[i], 1));
    }
}

/* Scales of a group's values, by block. */
INLINE void tiled_scales_across(vec x[TILED_BLOCKS], const char *from)
{
    const __m512i at = _mm512_set_epi16(61, 57, 53, 49, 45, 41, 37, 33, 29, 25, 21, 17, 13, 9, 5, 1, 60, 56,
                                        52, 48, 44, 40, 36, 32, 28, 24, 20, 16, 12, 8, 4, 0),
                  low = _mm512_loadu_si512(from), high = _mm512_loadu_si512(from + 64);
    UNROLL for (int b = 0; b < TILED_BLOCKS; b += 2)
    {
        const __m512i both =
            _mm512_permutex2var_epi16(low, _mm512_add_epi16(at, _mm512_set1_epi16((short)b)), high);
        x[b] = _mm512_cvtph_ps(_mm512_castsi512_si256(both));
        x[b + 1] = _mm512_cvtph_ps(_mm512_extracti64x4_epi64(both, 1));
    }
}

INLINE __m512i tiled_larger(vec x, vec y)
{
    return _mm512_max_epu32(_mm512_castps_si512(x), _mm512_castps_si512(y));
}

/* A block's scales of values, [TILED_BLOCKS][TILED_KEYS], become whole numbers of WEIGHT_BITS: what their
 * units are worth. As whole numbers floats that are not finite or negative, which no writer makes, are
 * largest, and show. */
INLINE void tiled_scales_whole(float *scales, vec x[TILED_GROUPS][TILED_BLOCKS], float worth[4])
{
    vec top[TILED_BLOCKS];
    UNROLL for (size_t b = 0; b < TILED_BLOCKS; b++) top[b] =
        _mm512_castsi512_ps(_mm512_max_epu32(tiled_larger(x[0][b], x[1][b]), tiled_larger(x[2][b], x[3][b])));
    const vec one = _mm512_castsi512_ps(
                  tiled_larger(_mm512_unpacklo_ps(top[0], top[1]), _mm512_unpackhi_ps(top[0], top[1]))),
              two = _mm512_castsi512_ps(
                  tiled_larger(_mm512_unpacklo_ps(top[2], top[3]), _mm512_unpackhi_ps(top[2], top[3])));
    vec all = _mm512_castsi512_ps(
        tiled_larger(_mm512_shuffle_ps(one, two, 0x44), _mm512_shuffle_ps(one, two, 0xee)));
    all = _mm512_castsi512_ps(tiled_larger(all, vec_swap(all, 4)));
    all = _mm512_castsi512_ps(tiled_larger(all, vec_swap(all, 8))); /* of each block, in all quarters */
    const __mmask16 some = _mm512_test_epi32_mask(_mm512_castps_si512(all), _mm512_castps_si512(all)),
                    bad = _mm512_cmpge_epu32_mask(_mm512_castps_si512(all), _mm512_set1_epi32(0x7f800000));
    const vec exponent = _mm512_maskz_sub_ps(some & (__mmask16)~bad, vec_set1(WEIGHT_BITS - 1),
                                             _mm512_getexp_ps(all)),
              factor = _mm512_scalef_ps(vec_set1(1), exponent);
    const vec unit =
        _mm512_mask_mov_ps(_mm512_scalef_ps(vec_set1(1), vec_sub(vec_zero(), exponent)), bad, vec_set1(NAN));
    _mm_storeu_ps(worth, _mm512_castps512_ps128(unit));
    const vec by[TILED_BLOCKS] = {_mm512_permute_ps(factor, 0x00), _mm512_permute_ps(factor, 0x55),
                                  _mm512_permute_ps(factor, 0xaa), _mm512_permute_ps(factor, 0xff)};
    UNROLL for (size_t g = 0; g < TILED_GROUPS; g++) UNROLL for (size_t b = 0; b < TILED_BLOCKS; b++)
        vec_store(scales + b * TILED_KEYS + g * LANES, vec_mul(x[g][b], by[b]));
}

/* A row's weights times a block's scales, as digits: a float of 2^23 and more has its whole number in its
 * lower bits. Positions 16v + 4l + 0..3 of a row lie at 4l + v: as rows are spread. */
INLINE void tiled_weights(uint8_t *digit, const float *p, const float *scales)
{
    __m512i x[4];
    UNROLL for (size_t g = 0; g < 4; g++) x[g] = tiled_digits(_mm512_castps_si512(
        vec_fmadd(vec_load(p + g * LANES), vec_load(scales + g * LANES), vec_set1(0x1p23f))));
    const __m512i a = _mm512_unpacklo_epi32(x[0], x[1]), c = _mm512_unpackhi_epi32(x[0], x[1]),
                  d = _mm512_unpacklo_epi32(x[2], x[3]), e = _mm512_unpackhi_epi32(x[2], x[3]);
    _mm512_store_si512(digit, _mm512_unpacklo_epi64(a, d));
    _mm512_store_si512(digit + 64, _mm512_unpackhi_epi64(a, d));
    _mm512_store_si512(digit + 128, _mm512_unpacklo_epi64(c, e));
}

/* Half of a block's products with a pass's weights. */
INLINE void tiled_values_multiply(tiled_sums last, const size_t odd, int32_t *sums, const uint8_t *weights,
                                  const char *values)
{
    TILE_FENCE();
    if (odd)
        TILED_PRODUCT(6, last[1], _tile_dpbusd, 4, weights, 64, 0, values);
    else
        TILED_PRODUCT(3, last[0], _tile_dpbusd, 4, weights, 64, 0, values);
    TILE_FENCE();
    last[odd] = sums;
}

INLINE void tiled_values_store(tiled_sums last, const size_t odd)
{
    TILED_STORE(last, odd, 3, 6);
}

/* Half of a block's sums are added to outputs. */
INLINE void tiled_values_of(float *o, const int32_t *sums, const float *fix, float worth)
{
    const vec unit[3] = {vec_set1(worth), vec_set1(worth * 0x1p8f), vec_set1(worth * 0x1p16f)};
    UNROLL for (size_t r = 0; r < PASS_ROWS; r++, o += TILED_DIM)
    {
        vec x[3];
        UNROLL for (size_t i = 0; i < 3; i++) x[i] =
            _mm512_cvtepi32_ps(_mm512_load_si512(sums + (3 * r + i) * LANES));
        vec y = vec_mul(vec_load(o), vec_set1(fix[4 * r]));
        UNROLL for (size_t i = 0; i < 3; i++) y = vec_fmadd(x[i], unit[i], y);
        vec_store(o, y);
    }
}

/* From the order in which tiles have dimensions to their own. */
static void tiled_order(float *o)
{
    for (size_t d = 0; d < TILED_DIM; d += 32) {
        const vec x = vec_load(o + d), y = vec_load(o + d + LANES);
        vec_store(o + d, _mm512_shuffle_f32x4(x, y, 0x88));
        vec_store(o + d + LANES, _mm512_shuffle_f32x4(x, y, 0xdd));
    }
}
