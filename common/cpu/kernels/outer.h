/* GEMM with tokens as vector lanes: the blocking shared by the AVX2, AVX-512 and AVX512-BF16 variants.
 *
 * A "step" is four bytes: one fp32 value, or a pair of bf16. Activations are tiled as panels of LANES tokens,
 * [panel][step][LANES] times four bytes, so that one vector load brings one step of LANES tokens. A weight
 * step is broadcast from its row-major place, so weights are never reordered; variants without a bf16
 * multiplier convert a block of them to fp32 in scratch first and multiply from there. No sum crosses lanes,
 * and each result adds its products in column order wherever its row stands in a share.
 *
 * Blocking: OUTER_ROWS rows x OUTER_STEPS steps of weights (L2), against all panels of a chunk of
 * OUTER_TOKENS tokens; inside, a register tile of R rows x V panels. Partial sums rest in scratch as
 * [panel][row][LANES] and are transposed into y at the end.
 *
 * The including file has the vectors of lanes256.h or lanes512.h, and defines OUTER_PANELS (the largest V)
 * and these inline functions (no alignment beyond elements is promised to them):
 *
 *   vec outer_step(vec acc, vec x, const void *w)        acc + x * broadcast of the four bytes at w
 *   vec outer_half_step(vec acc, vec x, const void *w)   the same with only the first two bytes (pairs, odd
 *                                                        cols) */
#pragma once

#define OUTER_ROWS   48 /* a multiple of LANES and of every R */
#define OUTER_STEPS  1024
#define OUTER_TOKENS 512
#define OUTER_AHEAD  128 /* steps ahead of each row's position that fresh weights are fetched */

struct outer_block {
    const char *w; /* first row, first step of the block */
    size_t row_bytes;
    const char *x; /* first panel, first step of the block */
    size_t panel_bytes;
    float *c; /* [panel][OUTER_ROWS][LANES] */
    size_t steps;
    bool half;  /* after `steps` whole steps comes one of a single bf16 */
    bool first; /* sums start at zero */
    bool fresh; /* weights come from memory: ask for the next tile's ahead of time */
};

INLINE void outer_micro(const struct outer_block *b, size_t row, const size_t R, const size_t V)
{
    vec acc[24]; /* the most any variant keeps: R * V <= 24 */
    float *c = b->c + row * LANES;
    const char *w = b->w + row * b->row_bytes, *x = b->x;
    const size_t row_bytes = b->row_bytes, panel_bytes = b->panel_bytes;
    UNROLL for (size_t r = 0; r < R; r++) UNROLL for (size_t v = 0; v < V; v++) acc[r * V + v] =
        b->first ? vec_zero() : vec_load(c + (v * OUTER_ROWS + r) * LANES);
    size_t s = 0;
    const char *ahead = w + R * row_bytes;
    while (s < b->steps) {
        size_t stop = b->steps - s > 16 ? s + 16 : b->steps; /* 16 steps are a cache line of a row */
        if (b->fresh) {
            const char *at = s + OUTER_AHEAD < b->steps ? w + (s + OUTER_AHEAD) * 4
                                                        : ahead + (s + OUTER_AHEAD - b->steps) * 4;
            UNROLL for (size_t r = 0; r < R; r++) __builtin_prefetch(at + r * row_bytes, 0, 3);
        }
        for (; s < stop; s++) {
            vec xs[4];
            UNROLL for (size_t v = 0; v < V; v++) xs[v] = vec_load(x + v * panel_bytes + s * LANES * 4);
            UNROLL for (size_t r = 0; r < R; r++) UNROLL for (size_t v = 0; v < V; v++) acc[r * V + v] =
                outer_step(acc[r * V + v], xs[v], w + r * row_bytes + s * 4);
        }
    }
    if (b->half)
        UNROLL for (size_t r = 0; r < R; r++) UNROLL for (size_t v = 0; v < V; v++) acc[r * V + v] =
            outer_half_step(acc[r * V + v], vec_load(x + v * panel_bytes + s * LANES * 4),
                            w + r * row_bytes + s * 4);
    UNROLL for (size_t r = 0; r < R; r++) UNROLL for (size_t v = 0; v < V; v++)
        vec_store(c + (v * OUTER_ROWS + r) * LANES, acc[r * V + v]);
}

/* All `rows` (<= OUTER_ROWS) of a block with V panels; those left over after whole tiles go one by one. */
INLINE void outer_rows(const struct outer_block *b, size_t rows, const size_t R, const size_t V)
{
    size_t row = 0;
    for (; row + R <= rows; row += R) outer_micro(b, row, R, V);
    for (; row < rows; row++) outer_micro(b, row, 1, V);
}

/* As many sums as registers hold beside the vectors of one step. */
static void outer_tile(const struct outer_block *b, size_t rows, size_t panels)
{
    switch (panels) {
    case 1:
        outer_rows(b, rows, OUTER_PANELS == 2 ? 12 : 8, 1);
        return;
    case 2:
        outer_rows(b, rows, OUTER_PANELS == 2 ? 6 : 12, 2);
        return;
#if OUTER_PANELS > 2
    case 3:
        outer_rows(b, rows, 8, 3);
        return;
    case 4:
        outer_rows(b, rows, 6, 4);
        return;
#endif
    default:
        __builtin_unreachable();
    }
}

/* Steps [first, first + count) of `rows` rows of w as fp32 into out, rows OUTER_STRIDE apart. */
typedef void outer_convert_fn(float *out, const char *w, size_t row_bytes, size_t rows, size_t first,
                              size_t count);

struct outer_gemm {
    const char *w;
    size_t row_bytes;
    size_t steps; /* whole steps of a row */
    bool half;    /* and a half one */
    size_t panel_bytes;
    outer_convert_fn *convert;
};

/* Rows of converted weights are a cache line more than a power of two apart, so that a tile's rows do not
 * share one set of the cache. */
#define OUTER_STRIDE    (OUTER_STEPS + 16)
#define OUTER_CONVERTED (OUTER_ROWS * OUTER_STRIDE * sizeof(float))

static void outer_multiply(const struct outer_gemm *g, float *y, size_t ldy, const char *tiled, size_t rows,
                           size_t tokens, bool accumulate, char *scratch)
{
    float *converted = (float *)scratch, *c = (float *)(scratch + (g->convert ? OUTER_CONVERTED : 0));
    for (size_t t0 = 0; t0 < tokens; t0 += OUTER_TOKENS) {
        size_t chunk = tokens - t0 < OUTER_TOKENS ? tokens - t0 : OUTER_TOKENS;
        size_t panels = (chunk + LANES - 1) / LANES;
        const char *x = tiled + t0 / LANES * g->panel_bytes;
        for (size_t r0 = 0; r0 < rows; r0 += OUTER_ROWS) {
            size_t block_rows = rows - r0 < OUTER_ROWS ? rows - r0 : OUTER_ROWS;
            size_t s = 0;
            do {
                size_t count = g->steps - s < OUTER_STEPS ? g->steps - s : OUTER_STEPS;
                struct outer_block b = {.w = g->w + r0 * g->row_bytes + s * 4,
                                        .row_bytes = g->row_bytes,
                                        .panel_bytes = g->panel_bytes,
                                        .steps = count,
                                        .half = g->half && s + count == g->steps,
                                        .first = s == 0,
                                        .fresh = !g->convert};
                if (g->convert) {
                    g->convert(converted, g->w + r0 * g->row_bytes, g->row_bytes, block_rows, s, count);
                    b.w = (const char *)converted;
                    b.row_bytes = OUTER_STRIDE * sizeof(float);
                }
                for (size_t p = 0; p < panels; p += OUTER_PANELS) {
                    b.x = x + p * g->panel_bytes + s * LANES * 4;
                    b.c = c + p * OUTER_ROWS * LANES;
                    outer_tile(&b, block_rows, panels - p < OUTER_PANELS ? panels - p : OUTER_PANELS);
                    b.fresh = false;
                }
                s += count;
            } while (s < g->steps);
            for (size_t p = 0; p < panels; p++) {
                size_t left = chunk - p * LANES;
                for (size_t r = 0; r < block_rows; r += LANES)
                    lanes_store_transposed(y + (t0 + p * LANES) * ldy + r0 + r, ldy,
                                           c + (p * OUTER_ROWS + r) * LANES,
                                           block_rows - r < LANES ? block_rows - r : LANES,
                                           left < LANES ? left : LANES, accumulate);
            }
        }
    }
}

static size_t outer_scratch_bytes(size_t tokens, bool converts)
{
    size_t chunk = tokens < OUTER_TOKENS ? tokens : OUTER_TOKENS;
    return (converts ? OUTER_CONVERTED : 0) +
           (chunk + LANES - 1) / LANES * OUTER_ROWS * LANES * sizeof(float);
}
