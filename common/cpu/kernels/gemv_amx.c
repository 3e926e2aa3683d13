/* One to sixteen tokens' products with bf16 weights by AMX (tdpbf16ps), activations exact: a float is the sum
 * of three numbers of bf16, its first eight bits, the next eight and the last. Each is a column of an operand
 * tile, so a token has three sums, which are added in the end. The instruction adds the products of a column
 * in one order whatever other columns there are: a token's bits are the same alone and among others, and
 * weights are read once for all of them.
 *
 * A tile: 16 weight rows x 32 columns as they lie in memory. B tile: 16 pairs of columns x 16 parts of
 * tokens; C tile: 16 rows x 16 parts. Up to five tokens' parts are one B tile, ten tokens' two, sixteen
 * tokens' three; one token's is a tile of four parts, of which the last is zero, so that x stays in L1.
 * Subnormal parts, products and sums are zero.
 *
 * The process must have asked the kernel for tile state (cpu_enable_amx). Called through the table of
 * linear.c after the CPU check. */
#include "common/cpu/kernels/amx_tiles.h"
#include "common/cpu/kernels/lanes512.h"
#include "common/cpu/kernels/variants.h"

#define PARTS   3
#define ROWS    16                 /* of a tile of weights, side by side */
#define STEP    32                 /* columns of a tile of weights */
#define TILE    1024               /* bytes */
#define GROUP   16                 /* tokens whose sums are in tiles at once: */
#define PANELS  3                  /* of so many parts */
#define ONE     16                 /* bytes of a pair of columns of one token */
#define NEAR    4                  /* steps that each row is fetched ahead */
#define SUMS(n) ((n)*ROWS * LANES) /* floats of n tiles of sums */

/* How the parts of a group's tokens lie: part p of token t is column p * width + t. */
struct parts {
    size_t panels, width;
};
static struct parts parts_of(size_t tokens)
{
    if (tokens <= 5) return (struct parts){1, 5};
    return tokens <= 10 ? (struct parts){2, 10} : (struct parts){3, 16};
}

static size_t steps_of(size_t cols)
{
    return (cols + STEP - 1) / STEP;
}

static size_t group_bytes(size_t tokens, size_t cols)
{
    return tokens == 1 ? steps_of(cols) * STEP / 2 * ONE : parts_of(tokens).panels * steps_of(cols) * TILE;
}

/* ---- x ---- */

/* Pairs of 32 columns from c on: the part of an even column in the lower half, of the odd one in the
 * upper. */
INLINE void split_pairs(__m512i part[PARTS], const float *x, size_t c, size_t cols)
{
    const __m512i even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30),
                  odd = _mm512_or_si512(even, _mm512_set1_epi32(1)),
                  upper = _mm512_set1_epi32((int)0xffff0000);
    const vec first = vec_load_part(x + c, cols - c),
              second = c + LANES < cols ? vec_load_part(x + c + LANES, cols - c - LANES) : vec_zero();
    vec left[2] = {_mm512_permutex2var_ps(first, even, second), _mm512_permutex2var_ps(first, odd, second)};
    UNROLL for (size_t p = 0; p < PARTS; p++)
    {
        __m512i bits[2];
        UNROLL for (size_t i = 0; i < 2; i++)
        {
            bits[i] = _mm512_and_si512(_mm512_castps_si512(left[i]), upper);
            left[i] = vec_sub(left[i], _mm512_castsi512_ps(bits[i]));
        }
        part[p] = _mm512_or_si512(_mm512_srli_epi32(bits[0], 16), bits[1]);
    }
}

static void order(float *to, const float *x, size_t cols)
{
    for (size_t c = 0; c < cols; c += STEP, to += STEP / 2 * ONE / sizeof *to) {
        __m512i part[PARTS], pair[4];
        split_pairs(part, x, c, cols);
        const __m512i none = _mm512_setzero_si512();
        const __m512i low = _mm512_unpacklo_epi32(part[0], part[1]),
                      high = _mm512_unpackhi_epi32(part[0], part[1]),
                      rest_low = _mm512_unpacklo_epi32(part[2], none),
                      rest_high = _mm512_unpackhi_epi32(part[2], none);
        pair[0] = _mm512_unpacklo_epi64(low, rest_low);
        pair[1] = _mm512_unpackhi_epi64(low, rest_low);
        pair[2] = _mm512_unpacklo_epi64(high, rest_high);
        pair[3] = _mm512_unpackhi_epi64(high, rest_high);
        UNROLL for (size_t i = 0; i < 4; i++)
        {
            __m128i *at = (__m128i *)(void *)to + i; /* of pairs i, i + 4, i + 8 and i + 12 */
            _mm_store_si128(at, _mm512_castsi512_si128(pair[i]));
            _mm_store_si128(at + 4, _mm512_extracti32x4_epi32(pair[i], 1));
            _mm_store_si128(at + 8, _mm512_extracti32x4_epi32(pair[i], 2));
            _mm_store_si128(at + 12, _mm512_extracti32x4_epi32(pair[i], 3));
        }
    }
}

/* The panels of a step of a group: [panel][step][pair][part]. */
static void order_step(char *to, const float *x, size_t ldx, size_t tokens, size_t c, size_t cols)
{
    const struct parts parts = parts_of(tokens);
    vec column[PANELS * LANES];
    for (size_t i = 0; i < parts.panels * LANES; i++) column[i] = vec_zero();
    for (size_t t = 0; t < tokens; t++) {
        __m512i part[PARTS];
        split_pairs(part, x + t * ldx, c, cols);
        UNROLL for (size_t p = 0; p < PARTS; p++)
            vec_store(&column[p * parts.width + t], _mm512_castsi512_ps(part[p]));
    }
    for (size_t panel = 0; panel < parts.panels; panel++) {
        vec_transpose(column + panel * LANES);
        char *at = to + (panel * steps_of(cols) + c / STEP) * TILE;
        UNROLL for (size_t i = 0; i < LANES; i++) vec_store(at + i * 64, column[panel * LANES + i]);
    }
}

static void order_few(void *to, const float *x, size_t ldx, size_t tokens, size_t cols)
{
    char *group = to;
    for (size_t t = 0; t < tokens; t += GROUP, group += group_bytes(GROUP, cols)) {
        const size_t count = tokens - t < GROUP ? tokens - t : GROUP;
        if (count == 1)
            order((float *)(void *)group, x + t * ldx, cols);
        else
            for (size_t c = 0; c < cols; c += STEP) order_step(group, x + t * ldx, ldx, count, c, cols);
    }
}

static size_t ordered_bytes(size_t cols)
{
    return group_bytes(1, cols);
}

static size_t ordered_few_bytes(size_t tokens, size_t cols)
{
    const size_t last = tokens % GROUP;
    return tokens / GROUP * group_bytes(GROUP, cols) + (last ? group_bytes(last, cols) : 0);
}

/* ---- products ---- */

/* Sums: tiles 0 to 2, weights: tile 4, x: tile 6. `rows` of weights; `x_bytes` of a pair's parts. */
static void shape_tiles(size_t rows, size_t x_bytes)
{
    struct tile_shapes shapes = {.palette = 1};
    for (int i = 0; i < PANELS; i++) {
        shapes.row_bytes[i] = (uint16_t)x_bytes;
        shapes.rows[i] = (uint8_t)rows;
    }
    shapes.row_bytes[4] = 64;
    shapes.rows[4] = (uint8_t)rows;
    shapes.row_bytes[6] = (uint16_t)x_bytes;
    shapes.rows[6] = STEP / 2;
    tiles_shape(&shapes);
}

/* Neighbouring rows against a group, and the reads after them: rows from `next` on, next_stride bytes
 * apart. */
struct rows {
    const char *w;
    size_t count, cols;
    const char *next;
    size_t next_stride;
    const char *x;
    size_t x_bytes; /* of a pair's parts */
};

/* Fetches the bytes that each row reads some steps later, as many of all together. */
INLINE void fetch(const struct rows *g, size_t step)
{
    const bool whole = g->count == ROWS;
    const size_t ahead = step + (whole ? NEAR : 2 * NEAR), steps = g->cols / STEP, row_bytes = g->cols * 2;
    const bool here = ahead < steps;
    const uintptr_t at = here ? (uintptr_t)g->w + ahead * 64 : (uintptr_t)g->next + (ahead - steps) * 64;
    const size_t stride = here ? row_bytes : g->next_stride;
    if (whole)
        UNROLL for (size_t r = 0; r < ROWS; r++) _mm_prefetch((const char *)(at + r * stride), _MM_HINT_T0);
    else
        for (size_t r = 0; r < g->count; r++) _mm_prefetch((const char *)(at + r * stride), _MM_HINT_T0);
}

INLINE void multiply_rows(const struct rows *g, float *sums, const size_t panels)
{
    const size_t row_bytes = g->cols * 2, whole = g->cols / STEP, left = g->cols % STEP,
                 panel_bytes = steps_of(g->cols) * TILE;
    _Alignas(64) char tail[TILE];
    const char *x = g->x;
#define PRODUCTS()                                                                                           \
    do {                                                                                                     \
        TILE_LOAD(6, x, g->x_bytes);                                                                         \
        TILE_DP(0, 4, 6);                                                                                    \
        if (panels > 1) {                                                                                    \
            TILE_LOAD(6, x + panel_bytes, 64);                                                               \
            TILE_DP(1, 4, 6);                                                                                \
        }                                                                                                    \
        if (panels > 2) {                                                                                    \
            TILE_LOAD(6, x + 2 * panel_bytes, 64);                                                           \
            TILE_DP(2, 4, 6);                                                                                \
        }                                                                                                    \
    } while (0)
    TILE_ZERO(0);
    if (panels > 1) TILE_ZERO(1);
    if (panels > 2) TILE_ZERO(2);
    for (size_t s = 0; s < whole; s++, x += STEP / 2 * g->x_bytes) {
        fetch(g, s);
        TILE_LOAD(4, g->w + s * 64, row_bytes);
        PRODUCTS();
    }
    if (left) {
        memset(tail, 0, sizeof tail);
        for (size_t r = 0; r < g->count; r++)
            memcpy(tail + r * 64, g->w + r * row_bytes + whole * 64, left * 2);
        TILE_FENCE();
        TILE_LOAD(4, tail, 64);
        PRODUCTS();
    }
#undef PRODUCTS
    TILE_STORE(0, sums, panels * 64);
    if (panels > 1) TILE_STORE(1, sums + LANES, panels * 64);
    if (panels > 2) TILE_STORE(2, sums + 2 * LANES, panels * 64);
    TILE_FENCE();
}

INLINE vec sum_of_parts(const float *sums, size_t width, size_t tokens)
{
    const vec first = vec_load_part(sums, tokens), second = vec_load_part(sums + width, tokens),
              third = vec_load_part(sums + 2 * width, tokens);
    return vec_add(first, vec_add(second, third));
}

/* `rows` rows, not more than ROWS at once, of tokens whose x is as order() or order_step() has it. */
INLINE void multiply_group(float *y, size_t ldy, struct rows g, size_t rows, size_t tokens, const char *next,
                           size_t next_stride, const size_t panels)
{
    const size_t row_bytes = g.cols * 2, width = tokens == 1 ? 1 : parts_of(tokens).width;
    _Alignas(64) float sums[SUMS(PANELS)], lanes[LANES * LANES];
    for (size_t r = 0; r < rows; r += ROWS, g.w += ROWS * row_bytes) {
        const bool last = r + ROWS >= rows;
        g.count = last ? rows - r : ROWS;
        g.next = last ? next : g.w + ROWS * row_bytes;
        g.next_stride = last ? next_stride : row_bytes;
        if (r == 0 || g.count < ROWS) shape_tiles(g.count, g.x_bytes);
        multiply_rows(&g, sums, panels);
        for (size_t i = 0; i < g.count; i++)
            vec_store(lanes + i * LANES, sum_of_parts(sums + i * panels * LANES, width, tokens));
        if (tokens == 1)
            for (size_t i = 0; i < g.count; i++) y[r + i] = lanes[i * LANES];
        else
            lanes_store_transposed(y + r, ldy, lanes, g.count, tokens, false);
    }
}

static void gemv(float *y, const void *w, const float *x, size_t rows, size_t cols,
                 const struct gemv_reads *reads)
{
    const struct rows g = {.w = w, .cols = cols, .x = (const char *)x, .x_bytes = ONE};
    const char *end = (const char *)w + rows * cols * 2;
    if (reads && reads->next)
        multiply_group(y, 0, g, rows, 1, reads->next, reads->next_stride, 1);
    else
        multiply_group(y, 0, g, rows, 1, end, cols * 2, 1);
    tiles_end();
}

static void few(float *y, size_t ldy, const void *w, const float *x, size_t ldx, size_t rows, size_t cols,
                size_t tokens)
{
    (void)ldx; /* x is of all tokens together */
    struct rows g = {.w = w, .cols = cols, .x = (const char *)x};
    const char *end = (const char *)w + rows * cols * 2;
    for (size_t t = 0; t < tokens; t += GROUP, y += GROUP * ldy, g.x += group_bytes(GROUP, cols)) {
        const size_t count = tokens - t < GROUP ? tokens - t : GROUP, panels = parts_of(count).panels;
        g.x_bytes = count == 1 ? ONE : 64;
        if (panels == 1)
            multiply_group(y, ldy, g, rows, count, end, cols * 2, 1);
        else if (panels == 2)
            multiply_group(y, ldy, g, rows, count, end, cols * 2, 2);
        else
            multiply_group(y, ldy, g, rows, count, end, cols * 2, 3);
    }
    tiles_end();
}

const struct linear_kernel linear_amx_gemv = {.name = "amx-bf16",
                                              .features =
                                                  CPU_AVX2 | CPU_AVX512 | CPU_AVX512_BF16 | CPU_AMX_BF16,
                                              .format = FORMAT_BF16,
                                              .schedule = LINEAR_ONE_TOKEN,
                                              .gemv = gemv,
                                              .few = few,
                                              .streams = ROWS / 2,
                                              .neighbours = true,
                                              .row_granule = ROWS,
                                              .order = order,
                                              .ordered_bytes = ordered_bytes,
                                              .order_few = order_few,
                                              .ordered_few_bytes = ordered_few_bytes};
