/* The AMX GEMM's blocking and addressing, written against a few tile macros so that the same text runs on
 * tiles (gemm_amx.c) and on a software model of them (tests/kernels/test_amx_model.c).
 *
 * A tile: 16 weight rows x 32 columns straight from row-major memory (rows of 64 bytes, `row_bytes` apart).
 * B tile: 16 pairs of columns x 16 tokens of tiled activations (amx_panels.h).
 * C tile: 16 weight rows x 16 tokens of sums, so weights are never reordered and y is stored transposed.
 *
 * With few tokens reading the weights is what takes the time, and each row is a stream of its own: sixteen at
 * a time are as many as a processor's prefetcher follows, all columns in one go (amx_few). Measured, 8B's
 * layers on two cores of a Sapphire Rapids that read 29 GB/s: 29 GB/s with 2 to 16 tokens and 27 with 32,
 * where blocks of rows and columns read 14. Many tokens pass weights that were copied to tiles, as they pass
 * decoded ones (amx_blocks.h).
 *
 * The includer defines TILE_ZERO(t), TILE_LOAD(t, address, stride), TILE_STORE(t, address, stride),
 * TILE_DP(c, a, b), TILE_FENCE() (memory written by code is seen by tiles and the other way round) and
 * amx_store_transposed(y, ldy, c, rows, tokens, accumulate): y[t * ldy + r] (+)= c[r * 16 + t]. */
#pragma once

#include <stdbool.h>
#include <string.h>

#include "common/cpu/kernels/amx_blocks.h"

#define AMX_FEW  4 /* panels whose sums all stay in tiles while columns pass */
#define AMX_NEAR 8 /* steps that each row is fetched ahead of that */
/* Twice AMX_FEW panels go the same way while they stay in L2. */
#define AMX_FEW_BYTES ((size_t)1 << 20)

/* One row tile against few panels, over all columns. */
struct amx_few {
    const char *w; /* row 0 */
    size_t row_bytes, cols;
    const char *tail; /* zero-padded copy of the last cols % 32 columns, a tile, or NULL */
    const char *x;    /* tiled activations */
    size_t panels;    /* of them */
    char *c;          /* sums, a tile a panel */
};

/* One row tile x up to AMX_FEW panels from `panel` on, all columns. The fetch after the last row is the next
 * tile's. */
static inline __attribute__((always_inline)) void amx_few(const struct amx_few *b, size_t panel,
                                                          const size_t panels)
{
    const size_t stride = b->row_bytes, steps = b->cols / 32, all = amx_padded(b->cols) / 32;
    const char *below = b->w + 16 * stride;
    char *c = b->c + panel * AMX_TILE;
    TILE_ZERO(0);
    if (panels > 1) TILE_ZERO(1);
    if (panels > 2) TILE_ZERO(2);
    if (panels > 3) TILE_ZERO(3);
    for (size_t block = 0, s = 0; s < all; block++) {
        const size_t wide = amx_block_steps(b->cols, block) * AMX_TILE, end = s + wide / AMX_TILE;
        const char *x = b->x + amx_panel_at(b->cols, b->panels, block, panel);
        for (; s < end; s++, x += AMX_TILE) {
            const char *near =
                s + AMX_NEAR < steps ? b->w + (s + AMX_NEAR) * 64 : below + (s + AMX_NEAR - steps) * 64;
            for (size_t r = 0; r < 16; r++) __builtin_prefetch(near + r * stride, 0, 3);
            if (s < steps)
                TILE_LOAD(4, b->w + s * 64, stride);
            else
                TILE_LOAD(4, b->tail, 64);
            TILE_LOAD(5, x, 64);
            TILE_DP(0, 4, 5);
            if (panels > 1) {
                TILE_LOAD(5, x + wide, 64);
                TILE_DP(1, 4, 5);
            }
            if (panels > 2) {
                TILE_LOAD(5, x + 2 * wide, 64);
                TILE_DP(2, 4, 5);
            }
            if (panels > 3) {
                TILE_LOAD(5, x + 3 * wide, 64);
                TILE_DP(3, 4, 5);
            }
        }
    }
    TILE_STORE(0, c, 64);
    if (panels > 1) TILE_STORE(1, c + AMX_TILE, 64);
    if (panels > 2) TILE_STORE(2, c + 2 * AMX_TILE, 64);
    if (panels > 3) TILE_STORE(3, c + 3 * AMX_TILE, 64);
}

static void amx_few_panels(const struct amx_few *b, size_t panel, size_t panels)
{
    switch (panels) {
    case 1:
        amx_few(b, panel, 1);
        return;
    case 2:
        amx_few(b, panel, 2);
        return;
    case 3:
        amx_few(b, panel, 3);
        return;
    default:
        amx_few(b, panel, AMX_FEW);
    }
}

static bool amx_is_few(size_t cols, size_t tokens)
{
    const size_t panels = amx_panels(tokens);
    return panels <= AMX_FEW ||
           (panels <= 2 * AMX_FEW && panels * amx_padded(cols) / 32 * AMX_TILE <= AMX_FEW_BYTES);
}

/* Scratch of few tokens: sums, a tail, and a padded copy of the last rows where fewer than 16 are left. */
static size_t amx_few_sums_bytes(size_t tokens)
{
    return amx_panels(tokens) * (AMX_ROWS / 16) * AMX_TILE;
}

static size_t amx_scratch_bytes(size_t cols, size_t tokens)
{
    const size_t few = tokens < 2 * AMX_FEW * 16 ? tokens : 2 * AMX_FEW * 16,
                 few_bytes = amx_few_sums_bytes(few) + AMX_TILE + 16 * amx_padded(cols) * 2,
                 many_bytes = amx_blocks_scratch_bytes(cols, tokens);
    return few_bytes > many_bytes ? few_bytes : many_bytes;
}

/* Copies the last cols % 32 columns of 16 rows into a padded tile. */
static void amx_copy_tail(char *tail, const char *w, size_t row_bytes, size_t cols)
{
    memset(tail, 0, AMX_TILE);
    for (size_t r = 0; r < 16; r++) memcpy(tail + r * 64, w + r * row_bytes + cols / 32 * 64, cols % 32 * 2);
    TILE_FENCE();
}

/* Rows of w, row_bytes apart, activations, and scratch. */
struct amx_rows {
    const char *w;
    size_t row_bytes, cols;
    const char *x;
    size_t tokens;
    char *sums, *tail;
};

/* `rows` is a multiple of 16, of which `valid` are real. */
static void amx_multiply_few(const struct amx_rows *g, float *y, size_t ldy, size_t rows, size_t valid,
                             bool accumulate)
{
    const size_t panels = amx_panels(g->tokens);
    for (size_t r0 = 0; r0 < rows; r0 += AMX_ROWS) {
        const size_t tiles = (rows - r0 < AMX_ROWS ? rows - r0 : AMX_ROWS) / 16;
        for (size_t tile = 0; tile < tiles; tile++) {
            struct amx_few b = {.w = g->w + (r0 + tile * 16) * g->row_bytes,
                                .row_bytes = g->row_bytes,
                                .cols = g->cols,
                                .x = g->x,
                                .panels = panels,
                                .c = g->sums + tile * panels * AMX_TILE};
            if (g->cols % 32) {
                amx_copy_tail(g->tail, b.w, g->row_bytes, g->cols);
                b.tail = g->tail;
            }
            for (size_t panel = 0; panel < panels; panel += AMX_FEW)
                amx_few_panels(&b, panel, panels - panel);
        }
        TILE_FENCE();
        amx_store_sums(y + r0, ldy, g->sums, valid - r0, tiles, g->tokens, accumulate);
    }
}

/* Rows as they are, to tiles: a struct amx_blocks' decode. */
static void amx_copy_rows(void *tiles, const void *w, size_t row_bytes, size_t rows, size_t cols,
                          ptrdiff_t ahead)
{
    const size_t steps = amx_padded(cols) / 32;
    for (size_t r = 0; r < rows; r++) {
        const char *from = (const char *)w + r * row_bytes;
        char *to = (char *)tiles + r / 16 * steps * AMX_TILE + r % 16 * 64;
        for (size_t s = 0; s < cols / 32; s++) {
            __builtin_prefetch((const char *)((uintptr_t)from + s * 64 + (uintptr_t)ahead), 0, 2);
            memcpy(to + s * AMX_TILE, from + s * 64, 64);
        }
        if (cols % 32) {
            memset(to + cols / 32 * AMX_TILE, 0, 64);
            memcpy(to + cols / 32 * AMX_TILE, from + cols / 32 * 64, cols % 32 * 2);
        }
    }
}

static const struct amx_blocks amx_as_they_are = {.values = 1, .bytes = 2, .decode = amx_copy_rows};

static void amx_gemm(float *y, size_t ldy, const void *w, const void *tiled, size_t rows, size_t cols,
                     size_t tokens, bool accumulate, void *scratch)
{
    if (!amx_is_few(cols, tokens)) {
        amx_gemm_blocks(y, ldy, w, tiled, rows, cols, tokens, accumulate, scratch, &amx_as_they_are);
        return;
    }
    const size_t whole = rows / 16 * 16, left = rows - whole, padded_bytes = amx_padded(cols) * 2;
    struct amx_rows g = {.w = w,
                         .row_bytes = cols * 2,
                         .cols = cols,
                         .x = tiled,
                         .tokens = tokens,
                         .sums = scratch,
                         .tail = (char *)scratch + amx_few_sums_bytes(tokens)};
    if (whole) amx_multiply_few(&g, y, ldy, whole, whole, accumulate);
    if (left) {
        char *edge = g.tail + AMX_TILE;
        memset(edge, 0, 16 * padded_bytes);
        for (size_t r = 0; r < left; r++)
            memcpy(edge + r * padded_bytes, (const char *)w + (whole + r) * cols * 2, cols * 2);
        TILE_FENCE();
        g.w = edge, g.row_bytes = padded_bytes, g.cols = amx_padded(cols);
        amx_multiply_few(&g, y + whole, ldy, 16, left, accumulate);
    }
}
