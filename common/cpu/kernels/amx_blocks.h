/* The AMX GEMM of many tokens: weights decoded to tiles, a few rows and a block of columns at a time, which all tokens of a
 * chunk then pass. Included by amx_body.h, which says what its macros are.
 *
 * A tile product takes 16 cycles and two operands of 1 KiB. From the L2, which gives about 48 bytes a cycle, both would take
 * longer. So the weights, AMX_PASS row tiles of AMX_STEPS steps, lie in the L1, and activations come from the L2. A block of
 * columns is finished for AMX_ROWS rows before the next one begins: its activations are read from farther away once for all
 * these rows, and fetched during the block before. Sums of AMX_ROWS rows rest in scratch meanwhile. What a pass stores and
 * loads of them alternates, tile by tile: stores that wait for their products would keep loads behind them from beginning. */
#ifndef HELM_COMMON_CPU_KERNELS_AMX_BLOCKS_H
#define HELM_COMMON_CPU_KERNELS_AMX_BLOCKS_H

#include <stdbool.h>
#include <stdint.h>

#include "common/cpu/kernels/amx_panels.h"

#define AMX_PASS           2   /* row tiles that pass together */
#define AMX_ROWS           256 /* rows whose sums rest in scratch while all columns pass */
#define AMX_DECODED_TOKENS 512 /* tokens of a chunk */

/* A format's blocks, and what decodes `rows` rows of `cols` columns, row_bytes apart, to tiles [row tile][step]. What is needed
 * next lies `ahead` bytes from there. */
struct amx_blocks {
    size_t values, bytes;
    void (*decode)(void *tiles, const void *w, size_t row_bytes, size_t rows, size_t cols, ptrdiff_t ahead);
};

/* AMX_PASS row tiles against all panels of a chunk, over one block of columns. */
struct amx_pass {
    const char *a; /* weights [row tile][step] */
    const char *x; /* activations of panel 0 */
    size_t panels, steps;
    const char *next;  /* activations that a later pass takes: of panel 0, this pass's share of them */
    size_t next_panel; /* bytes from a panel's to the next one's */
    size_t next_lines; /* of each pair of panels, fetched at each step */
    char *c;           /* sums: tiles [row tile][panel] */
};

static inline __attribute__((always_inline)) void amx_pass_pairs(const struct amx_pass *p, const bool first)
{
    const size_t panel_bytes = p->steps * AMX_TILE, c_row = p->panels * AMX_TILE;
    const char *a0 = p->a, *a1 = a0 + panel_bytes, *x0 = p->x, *x1 = x0 + panel_bytes, *next = p->next;
    char *c0 = p->c, *c1 = c0 + c_row;
#define BEGIN(t, from)                                                                                       \
    if (first)                                                                                               \
        TILE_ZERO(t);                                                                                        \
    else                                                                                                     \
        TILE_LOAD(t, from, 64)
    BEGIN(0, c0);
    BEGIN(1, c0 + AMX_TILE);
    BEGIN(2, c1);
    BEGIN(3, c1 + AMX_TILE);
    for (size_t left = p->panels / 2; left; left--) {
        for (size_t s = 0; s < panel_bytes; s += AMX_TILE) {
            TILE_LOAD(4, a0 + s, 64);
            TILE_LOAD(6, x0 + s, 64);
            TILE_DP(0, 4, 6);
            TILE_LOAD(5, a1 + s, 64);
            TILE_DP(2, 5, 6);
            TILE_LOAD(7, x1 + s, 64);
            TILE_DP(1, 4, 7);
            TILE_DP(3, 5, 7);
            for (size_t i = 0; i < p->next_lines; i++, next += 64) __builtin_prefetch(next, 0, 2);
        }
        next += 2 * p->next_panel - p->next_lines * p->steps * 64;
        x0 += 2 * panel_bytes, x1 += 2 * panel_bytes;
        char *d0 = c0, *d1 = c1;
        c0 += 2 * AMX_TILE, c1 += 2 * AMX_TILE;
        if (left == 1) { /* nothing to load */
            TILE_STORE(0, d0, 64);
            TILE_STORE(2, d1, 64);
            TILE_STORE(1, d0 + AMX_TILE, 64);
            TILE_STORE(3, d1 + AMX_TILE, 64);
            return;
        }
        TILE_STORE(0, d0, 64);
        BEGIN(0, c0);
        TILE_STORE(2, d1, 64);
        BEGIN(2, c1);
        TILE_STORE(1, d0 + AMX_TILE, 64);
        BEGIN(1, c0 + AMX_TILE);
        TILE_STORE(3, d1 + AMX_TILE, 64);
        BEGIN(3, c1 + AMX_TILE);
    }
}

/* The last panel, where their number is odd. */
static inline __attribute__((always_inline)) void amx_pass_last(const struct amx_pass *p, const bool first)
{
    const size_t panel_bytes = p->steps * AMX_TILE;
    const char *a0 = p->a, *a1 = a0 + panel_bytes, *x = p->x + (p->panels - 1) * panel_bytes;
    char *c0 = p->c + (p->panels - 1) * AMX_TILE, *c1 = c0 + p->panels * AMX_TILE;
    BEGIN(0, c0);
    BEGIN(1, c1);
#undef BEGIN
    for (size_t s = 0; s < panel_bytes; s += AMX_TILE) {
        TILE_LOAD(6, x + s, 64);
        TILE_LOAD(4, a0 + s, 64);
        TILE_DP(0, 4, 6);
        TILE_LOAD(5, a1 + s, 64);
        TILE_DP(1, 5, 6);
    }
    TILE_STORE(0, c0, 64);
    TILE_STORE(1, c1, 64);
}

static void amx_pass_first(const struct amx_pass *p)
{
    if (p->panels > 1) amx_pass_pairs(p, true);
    if (p->panels % 2) amx_pass_last(p, true);
}

static void amx_pass_further(const struct amx_pass *p)
{
    if (p->panels > 1) amx_pass_pairs(p, false);
    if (p->panels % 2) amx_pass_last(p, false);
}

struct amx_decoded {
    const struct amx_blocks *of;
    const char *w; /* row 0 */
    size_t cols, row_bytes;
    const char *x;
    size_t panels, first, count; /* of x; of this chunk, first one and number */
    char *tiles, *sums;
};

static size_t amx_blocks_scratch_bytes(size_t cols, size_t tokens)
{
    const size_t chunk = tokens < AMX_DECODED_TOKENS ? tokens : AMX_DECODED_TOKENS;
    (void)cols;
    return (amx_panels(chunk) * (AMX_ROWS / 16) + AMX_STEPS * AMX_PASS) * AMX_TILE;
}

/* Sums of rows [r0, r1), at most AMX_ROWS. For rows past the matrix's end tiles keep old contents, whose sums are not stored. */
static void amx_decoded_rows(const struct amx_decoded *d, size_t r0, size_t r1)
{
    const size_t group = AMX_PASS * 16, width = AMX_STEPS * 32, passes = (r1 - r0 + group - 1) / group;
    const ptrdiff_t down = (ptrdiff_t)(group * d->row_bytes),
                    right = (ptrdiff_t)(width / d->of->values * d->of->bytes);
    for (size_t c = 0, block = 0; c < d->cols; c += width, block++) {
        /* After the last columns the first ones are needed again: of other rows. */
        const size_t steps = amx_block_steps(d->cols, block), left = d->cols - c,
                     then = left > width ? block + 1 : 0, then_steps = amx_block_steps(d->cols, then),
                     lines = 2 * then_steps * AMX_TILE / 64,
                     share = (lines + passes * steps - 1) / (passes * steps);
        struct amx_pass p = {.a = d->tiles,
                             .x = d->x + amx_panel_at(d->cols, d->panels, block, d->first),
                             .panels = d->count,
                             .steps = steps,
                             .next = d->x + amx_panel_at(d->cols, d->panels, then, d->first),
                             .next_panel = then_steps * AMX_TILE,
                             .next_lines = share,
                             .c = d->sums};
        for (size_t r = r0; r < r1; r += group) {
            const bool last = r + group >= r1;
            d->of->decode(d->tiles, d->w + r * d->row_bytes + c / d->of->values * d->of->bytes, d->row_bytes,
                          last ? r1 - r : group, left < width ? left : width,
                          last ? right - (ptrdiff_t)((r - r0) * d->row_bytes) : down);
            TILE_FENCE();
            if (c)
                amx_pass_further(&p);
            else
                amx_pass_first(&p);
            TILE_FENCE();
            p.c += AMX_PASS * d->count * AMX_TILE;
            p.next += share * steps * 64;
        }
    }
}

/* Sums [row tile][panel] of `tiles` row tiles, `rows` and `tokens` of them real. */
static void amx_store_sums(float *y, size_t ldy, const char *sums, size_t rows, size_t tiles, size_t tokens,
                           bool accumulate)
{
    const size_t panels = amx_panels(tokens);
    for (size_t panel = 0; panel < panels; panel++) {
        const size_t left = tokens - panel * 16;
        for (size_t tile = 0; tile < tiles && tile * 16 < rows; tile++) {
            const char *c = sums + (tile * panels + panel) * AMX_TILE;
            amx_store_transposed(y + panel * 16 * ldy + tile * 16, ldy, (const float *)(const void *)c,
                                 rows - tile * 16 < 16 ? rows - tile * 16 : 16, left < 16 ? left : 16,
                                 accumulate);
        }
    }
}

static void amx_gemm_blocks(float *y, size_t ldy, const char *w, const char *tiled, size_t rows, size_t cols,
                            size_t tokens, bool accumulate, char *scratch, const struct amx_blocks *of)
{
    struct amx_decoded d = {.of = of,
                            .w = w,
                            .cols = cols,
                            .row_bytes = cols / of->values * of->bytes,
                            .x = tiled,
                            .panels = amx_panels(tokens),
                            .tiles = scratch,
                            .sums = scratch + AMX_STEPS * AMX_PASS * AMX_TILE};
    for (size_t t0 = 0; t0 < tokens; t0 += AMX_DECODED_TOKENS) {
        const size_t chunk = tokens - t0 < AMX_DECODED_TOKENS ? tokens - t0 : AMX_DECODED_TOKENS;
        d.first = t0 / 16, d.count = amx_panels(chunk);
        for (size_t r0 = 0; r0 < rows; r0 += AMX_ROWS) {
            const size_t r1 = rows - r0 < AMX_ROWS ? rows : r0 + AMX_ROWS;
            amx_decoded_rows(&d, r0, r1);
            amx_store_sums(y + t0 * ldy + r0, ldy, d.sums, r1 - r0, (r1 - r0 + 15) / 16, chunk, accumulate);
        }
    }
}

#endif
