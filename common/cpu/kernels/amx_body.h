/* The AMX GEMM's blocking and addressing, written against a few tile macros so that the same text runs on
 * tiles (gemm_amx.c) and on a software model of them (tests/kernels/test_amx_model.c).
 *
 * A tile: 16 weight rows x 32 columns straight from row-major memory (rows of 64 bytes, `row_bytes` apart).
 * B tile: 16 pairs of columns x 16 tokens of tiled activations (linear_avx512bf16_tile_panels), 1 KiB in a
 * row. C tile: 16 weight rows x 16 tokens of sums, so weights are never reordered and y is stored transposed.
 *
 * With few tokens reading the weights is what takes the time, and each row is a stream of its own: sixteen at
 * a time are as many as a processor's prefetcher follows, all columns in one go (amx_few). With many, blocks
 * of rows and columns stay in L2 while all tokens pass. Measured, 8B's layers on two cores of a Sapphire
 * Rapids that read 29 GB/s: 29 GB/s with 2 to 16 tokens and 27 with 32, where the blocks for many read 14.
 *
 * Weights that are decoded are laid down in the tiles' order, a block of columns of a group at a time: rows a power of two
 * apart would lie in the same sets of the caches. Measured with 16 threads of a Sapphire Rapids, 4096 columns and 128
 * tokens: 7.8 TFLOP/s, from rows 5.8; 14336 columns, 512 tokens: 7.3, from rows 6.2; blocks of 8 to 16 steps no more.
 *
 * The includer defines TILE_ZERO(t), TILE_LOAD(t, address, stride), TILE_STORE(t, address, stride),
 * TILE_DP(c, a, b), TILE_FENCE() (memory written by code is seen by tiles and the other way round) and
 * amx_store_transposed(y, ldy, c, rows, tokens, accumulate): y[t * ldy + r] (+)= c[r * 16 + t]. */
#ifndef HELM_COMMON_CPU_KERNELS_AMX_BODY_H
#define HELM_COMMON_CPU_KERNELS_AMX_BODY_H

#include <stdbool.h>
#include <stddef.h>
#include <string.h>

#define AMX_TILE   1024 /* bytes of a tile: 16 rows of 64 */
#define AMX_GROUP  4    /* row tiles worked on together */
#define AMX_ROWS   256  /* rows whose sums rest in scratch while all columns pass */
#define AMX_STEPS  32   /* steps of 32 columns whose activations stay in L2 meanwhile */
#define AMX_TOKENS 256  /* tokens of a chunk */
#define AMX_FEW    4    /* panels whose sums all stay in tiles while columns pass */
#define AMX_NEAR   8    /* steps that each row is fetched ahead of that */
/* Twice AMX_FEW panels go the same way while they stay in L2. */
#define AMX_FEW_BYTES ((size_t)1 << 20)

/* One group of up to AMX_GROUP row tiles against the panels of a chunk, over one block of columns. */
struct amx_block {
    const char *w; /* row 0, first column of the block */
    size_t row_bytes;
    size_t tile_bytes, step_bytes; /* to the next 16 rows, to the next 32 columns */
    const char *tail;   /* zero-padded copies of the last cols % 32 columns, a tile each, or NULL */
    const char *ahead;  /* weights needed next, same row stride, fetched into L2 meanwhile, or NULL */
    size_t ahead_share; /* of the group's 64 rows, how many to fetch each pass */
    const char *x;      /* panel 0, first column of the block */
    size_t panel_bytes;
    char *c;      /* row tile 0, panel 0: tiles [row tile][panel] */
    size_t c_row; /* bytes from a row tile's sums to the next one's */
    size_t steps; /* whole steps of 32 columns */
    bool first;
};

/* Lines of step `s` of this pass's share of the next group's rows. */
static inline __attribute__((always_inline)) void amx_fetch(const struct amx_block *b, size_t pass, size_t s)
{
    const char *line = b->ahead + pass * b->ahead_share * b->row_bytes + s * 64;
    for (size_t i = 0; i < b->ahead_share; i++) __builtin_prefetch(line + i * b->row_bytes, 0, 2);
}

/* One row tile x up to AMX_FEW panels, all columns. What is fetched behind the last row is the next tile's.
 */
static inline __attribute__((always_inline)) void amx_few(const struct amx_block *b, const size_t panels)
{
    const size_t stride = b->row_bytes, wide = b->panel_bytes, steps = b->steps + (b->tail != NULL);
    const char *x = b->x, *below = b->w + 16 * stride;
    TILE_ZERO(0);
    if (panels > 1) TILE_ZERO(1);
    if (panels > 2) TILE_ZERO(2);
    if (panels > 3) TILE_ZERO(3);
    for (size_t s = 0; s < steps; s++, x += AMX_TILE) {
        const char *near =
            s + AMX_NEAR < b->steps ? b->w + (s + AMX_NEAR) * 64 : below + (s + AMX_NEAR - b->steps) * 64;
        for (size_t r = 0; r < 16; r++) __builtin_prefetch(near + r * stride, 0, 3);
        if (s < b->steps)
            TILE_LOAD(4, b->w + s * 64, stride);
        else
            TILE_LOAD(4, b->tail, 64);
        TILE_LOAD(5, x, 64);
        TILE_DP(0, 4, 5);
        if (panels > 1) {
            TILE_LOAD(6, x + wide, 64);
            TILE_DP(1, 4, 6);
        }
        if (panels > 2) {
            TILE_LOAD(7, x + 2 * wide, 64);
            TILE_DP(2, 4, 7);
        }
        if (panels > 3) {
            TILE_LOAD(5, x + 3 * wide, 64);
            TILE_DP(3, 4, 5);
        }
    }
    TILE_STORE(0, b->c, 64);
    if (panels > 1) TILE_STORE(1, b->c + AMX_TILE, 64);
    if (panels > 2) TILE_STORE(2, b->c + 2 * AMX_TILE, 64);
    if (panels > 3) TILE_STORE(3, b->c + 3 * AMX_TILE, 64);
}

static void amx_few_panels(const struct amx_block *b, size_t panels)
{
    switch (panels) {
    case 1:
        amx_few(b, 1);
        return;
    case 2:
        amx_few(b, 2);
        return;
    case 3:
        amx_few(b, 3);
        return;
    default:
        amx_few(b, AMX_FEW);
    }
}

/* Two row tiles x two panels: sums in tiles 0..3, weights 4, 5, activations 6, 7. */
static void amx_2x2(const struct amx_block *b, size_t tile, size_t panel, size_t pass)
{
    const char *a0 = b->w + tile * b->tile_bytes, *a1 = a0 + b->tile_bytes;
    const char *x0 = b->x + panel * b->panel_bytes, *x1 = x0 + b->panel_bytes;
    char *c0 = b->c + tile * b->c_row + panel * AMX_TILE, *c1 = c0 + b->c_row;
    const size_t stride = b->row_bytes, step = b->step_bytes;
    if (b->first) {
        TILE_ZERO(0);
        TILE_ZERO(1);
        TILE_ZERO(2);
        TILE_ZERO(3);
    } else {
        TILE_LOAD(0, c0, 64);
        TILE_LOAD(1, c0 + AMX_TILE, 64);
        TILE_LOAD(2, c1, 64);
        TILE_LOAD(3, c1 + AMX_TILE, 64);
    }
    for (size_t s = 0; s < b->steps; s++) {
        TILE_LOAD(6, x0 + s * AMX_TILE, 64);
        TILE_LOAD(4, a0 + s * step, stride);
        TILE_LOAD(7, x1 + s * AMX_TILE, 64);
        TILE_DP(0, 4, 6);
        TILE_LOAD(5, a1 + s * step, stride);
        TILE_DP(1, 4, 7);
        TILE_DP(2, 5, 6);
        TILE_DP(3, 5, 7);
        if (tile == 0) amx_fetch(b, pass, s);
    }
    if (b->tail) {
        TILE_LOAD(6, x0 + b->steps * AMX_TILE, 64);
        TILE_LOAD(7, x1 + b->steps * AMX_TILE, 64);
        TILE_LOAD(4, b->tail + tile * AMX_TILE, 64);
        TILE_LOAD(5, b->tail + (tile + 1) * AMX_TILE, 64);
        TILE_DP(0, 4, 6);
        TILE_DP(1, 4, 7);
        TILE_DP(2, 5, 6);
        TILE_DP(3, 5, 7);
    }
    TILE_STORE(0, c0, 64);
    TILE_STORE(1, c0 + AMX_TILE, 64);
    TILE_STORE(2, c1, 64);
    TILE_STORE(3, c1 + AMX_TILE, 64);
}

/* Four row tiles x one panel: enough independent sums to hide a tile product's latency. */
static void amx_4x1(const struct amx_block *b, size_t panel, size_t pass)
{
    const size_t stride = b->row_bytes, down = b->tile_bytes, step = b->step_bytes;
    const char *a = b->w, *x = b->x + panel * b->panel_bytes;
    char *c = b->c + panel * AMX_TILE;
    if (b->first) {
        TILE_ZERO(0);
        TILE_ZERO(1);
        TILE_ZERO(2);
        TILE_ZERO(3);
    } else {
        TILE_LOAD(0, c, 64);
        TILE_LOAD(1, c + b->c_row, 64);
        TILE_LOAD(2, c + 2 * b->c_row, 64);
        TILE_LOAD(3, c + 3 * b->c_row, 64);
    }
    for (size_t s = 0; s < b->steps; s++) {
        TILE_LOAD(7, x + s * AMX_TILE, 64);
        TILE_LOAD(4, a + s * step, stride);
        TILE_DP(0, 4, 7);
        TILE_LOAD(5, a + down + s * step, stride);
        TILE_DP(1, 5, 7);
        TILE_LOAD(6, a + 2 * down + s * step, stride);
        TILE_DP(2, 6, 7);
        TILE_LOAD(4, a + 3 * down + s * step, stride);
        TILE_DP(3, 4, 7);
        amx_fetch(b, pass, s);
    }
    if (b->tail) {
        TILE_LOAD(7, x + b->steps * AMX_TILE, 64);
        TILE_LOAD(4, b->tail, 64);
        TILE_DP(0, 4, 7);
        TILE_LOAD(5, b->tail + AMX_TILE, 64);
        TILE_DP(1, 5, 7);
        TILE_LOAD(6, b->tail + 2 * AMX_TILE, 64);
        TILE_DP(2, 6, 7);
        TILE_LOAD(4, b->tail + 3 * AMX_TILE, 64);
        TILE_DP(3, 4, 7);
    }
    TILE_STORE(0, c, 64);
    TILE_STORE(1, c + b->c_row, 64);
    TILE_STORE(2, c + 2 * b->c_row, 64);
    TILE_STORE(3, c + 3 * b->c_row, 64);
}

/* One row tile x one panel, for what is left of a share. */
static void amx_1x1(const struct amx_block *b, size_t tile, size_t panel)
{
    const char *a = b->w + tile * b->tile_bytes, *x = b->x + panel * b->panel_bytes;
    char *c = b->c + tile * b->c_row + panel * AMX_TILE;
    if (b->first)
        TILE_ZERO(0);
    else
        TILE_LOAD(0, c, 64);
    for (size_t s = 0; s < b->steps; s++) {
        TILE_LOAD(7, x + s * AMX_TILE, 64);
        TILE_LOAD(4, a + s * b->step_bytes, b->row_bytes);
        TILE_DP(0, 4, 7);
    }
    if (b->tail) {
        TILE_LOAD(7, x + b->steps * AMX_TILE, 64);
        TILE_LOAD(4, b->tail + tile * AMX_TILE, 64);
        TILE_DP(0, 4, 7);
    }
    TILE_STORE(0, c, 64);
}

static void amx_group(struct amx_block *b, size_t tiles, size_t panels)
{
    if (tiles < AMX_GROUP) {
        for (size_t tile = 0; tile < tiles; tile++)
            for (size_t panel = 0; panel < panels; panel++) amx_1x1(b, tile, panel);
        return;
    }
    size_t passes = (panels + 1) / 2, pass = 0;
    b->ahead_share = b->ahead ? (AMX_GROUP * 16 + passes - 1) / passes : 0;
    for (size_t panel = 0; panel < panels; panel += 2, pass++) {
        if (panel + 1 == panels) {
            amx_4x1(b, panel, pass);
        } else {
            amx_2x2(b, 0, panel, pass);
            amx_2x2(b, 2, panel, pass);
        }
    }
}

/* Nothing ran before the first group to fetch its weights: ask for all of them at once. */
static void amx_fetch_first(const struct amx_block *b, size_t tiles)
{
    for (size_t r = 0; r < tiles * 16; r++)
        for (size_t s = 0; s < b->steps; s++) __builtin_prefetch(b->w + r * b->row_bytes + s * 64, 0, 2);
}

static size_t amx_padded(size_t cols)
{
    return (cols + 31) / 32 * 32;
}

/* Scratch: sums, tails of a group, and a padded copy of the last rows where fewer than 16 are left. */
static size_t amx_sums_bytes(size_t tokens)
{
    size_t chunk = tokens < AMX_TOKENS ? tokens : AMX_TOKENS;
    return (chunk + 15) / 16 * (AMX_ROWS / 16) * AMX_TILE;
}

static size_t amx_scratch_bytes(size_t cols, size_t tokens)
{
    return amx_sums_bytes(tokens) + AMX_GROUP * AMX_TILE + 16 * amx_padded(cols) * 2;
}

/* Copies the last cols % 32 columns of `tiles` row tiles into padded tiles. */
static void amx_copy_tail(char *tail, const char *w, size_t row_bytes, size_t cols, size_t tiles)
{
    memset(tail, 0, tiles * AMX_TILE);
    for (size_t r = 0; r < tiles * 16; r++)
        memcpy(tail + r * 64, w + r * row_bytes + cols / 32 * 64, cols % 32 * 2);
    TILE_FENCE();
}

/* Rows of w, row_bytes apart, and scratch. */
struct amx_rows {
    const char *w;
    size_t row_bytes, cols, panel_bytes;
    char *sums, *tail;
};

/* `tiles` row tiles from `w` on against all of few panels. */
static void amx_multiply_few(const struct amx_rows *g, const char *w, size_t tiles, const char *x,
                             size_t panels)
{
    for (size_t tile = 0; tile < tiles; tile++) {
        struct amx_block b = {.w = w + tile * 16 * g->row_bytes,
                              .row_bytes = g->row_bytes,
                              .panel_bytes = g->panel_bytes,
                              .steps = g->cols / 32};
        if (g->cols % 32) {
            amx_copy_tail(g->tail, b.w, g->row_bytes, g->cols, 1);
            b.tail = g->tail;
        }
        for (size_t panel = 0; panel < panels; panel += AMX_FEW) {
            b.x = x + panel * g->panel_bytes;
            b.c = g->sums + (tile * panels + panel) * AMX_TILE;
            amx_few_panels(&b, panels - panel);
        }
    }
}

/* The same of many panels. `next`: rows that are needed after these, or NULL; `begins`: nothing was before.
 */
static void amx_multiply_many(const struct amx_rows *g, const char *w, size_t tiles, const char *x,
                              size_t panels, const char *next, bool begins)
{
    const size_t steps = g->cols / 32;
    size_t s = 0;
    do {
        size_t count = steps - s < AMX_STEPS ? steps - s : AMX_STEPS;
        bool last = s + count == steps;
        for (size_t tile = 0; tile < tiles; tile += AMX_GROUP) {
            size_t group = tiles - tile < AMX_GROUP ? tiles - tile : AMX_GROUP;
            struct amx_block b = {.w = w + tile * 16 * g->row_bytes + s * 64,
                                  .row_bytes = g->row_bytes,
                                  .tile_bytes = 16 * g->row_bytes,
                                  .step_bytes = 64,
                                  .x = x + s * AMX_TILE,
                                  .panel_bytes = g->panel_bytes,
                                  .c = g->sums + tile * panels * AMX_TILE,
                                  .c_row = panels * AMX_TILE,
                                  .steps = count,
                                  .first = s == 0};
            /* What follows: the next rows, else the next columns, else what comes after. */
            if (tile + group < tiles)
                b.ahead = b.w + group * 16 * g->row_bytes;
            else
                b.ahead = last ? next : w + (s + count) * 64;
            if (begins && s + tile == 0) amx_fetch_first(&b, group);
            if (last && g->cols % 32) {
                amx_copy_tail(g->tail, w + tile * 16 * g->row_bytes, g->row_bytes, g->cols, group);
                b.tail = g->tail;
            }
            amx_group(&b, group, panels);
        }
        s += count;
    } while (s < steps);
}

/* Sums [row tile][panel] of `tiles` row tiles, `rows` and `tokens` of them real. */
static void amx_store_sums(float *y, size_t ldy, const char *sums, size_t rows, size_t tiles, size_t tokens,
                           bool accumulate)
{
    const size_t panels = (tokens + 15) / 16;
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

/* `rows` is a multiple of 16, of which `valid` are real. */
static void amx_multiply(const struct amx_rows *g, float *y, size_t ldy, const char *tiled, size_t rows,
                         size_t valid, size_t tokens, bool accumulate)
{
    for (size_t t0 = 0; t0 < tokens; t0 += AMX_TOKENS) {
        const size_t chunk = tokens - t0 < AMX_TOKENS ? tokens - t0 : AMX_TOKENS, panels = (chunk + 15) / 16;
        const bool few =
            panels <= AMX_FEW || (panels <= 2 * AMX_FEW && panels * g->panel_bytes <= AMX_FEW_BYTES);
        const char *x = tiled + t0 / 16 * g->panel_bytes;
        for (size_t r0 = 0; r0 < rows; r0 += AMX_ROWS) {
            const size_t tiles = (rows - r0 < AMX_ROWS ? rows - r0 : AMX_ROWS) / 16;
            const char *w = g->w + r0 * g->row_bytes;
            /* after the last rows the first ones again for the next tokens */
            const char *next = r0 + AMX_ROWS < rows       ? w + tiles * 16 * g->row_bytes
                               : t0 + AMX_TOKENS < tokens ? g->w
                                                          : NULL;
            if (few)
                amx_multiply_few(g, w, tiles, x, panels);
            else
                amx_multiply_many(g, w, tiles, x, panels, next, t0 + r0 == 0);
            TILE_FENCE();
            amx_store_sums(y + t0 * ldy + r0, ldy, g->sums, valid - r0, tiles, chunk, accumulate);
        }
    }
}

static void amx_gemm(float *y, size_t ldy, const void *w, const void *tiled, size_t rows, size_t cols,
                     size_t tokens, bool accumulate, void *scratch)
{
    const size_t whole = rows / 16 * 16, left = rows - whole, padded_bytes = amx_padded(cols) * 2;
    struct amx_rows g = {.w = w,
                         .row_bytes = cols * 2,
                         .cols = cols,
                         .panel_bytes = amx_padded(cols) / 32 * AMX_TILE,
                         .sums = scratch,
                         .tail = (char *)scratch + amx_sums_bytes(tokens)};
    if (whole) amx_multiply(&g, y, ldy, tiled, whole, whole, tokens, accumulate);
    if (left) {
        char *edge = g.tail + AMX_GROUP * AMX_TILE;
        memset(edge, 0, 16 * padded_bytes);
        for (size_t r = 0; r < left; r++)
            memcpy(edge + r * padded_bytes, (const char *)w + (whole + r) * cols * 2, cols * 2);
        TILE_FENCE();
        g.w = edge, g.row_bytes = padded_bytes, g.cols = amx_padded(cols);
        amx_multiply(&g, y + whole, ldy, tiled, 16, left, tokens, accumulate);
    }
}

/* ---- weights that are decoded ---- */

/* A format's blocks, and what decodes `rows` rows of `cols` columns, row_bytes apart, to tiles [row tile][step]. */
struct amx_blocks {
    size_t values, bytes;
    void (*decode)(void *tiles, const void *w, size_t row_bytes, size_t rows, size_t cols);
};
#define AMX_DECODED_TOKENS 512

static size_t amx_blocks_scratch_bytes(size_t cols, size_t tokens)
{
    const size_t chunk = tokens < AMX_DECODED_TOKENS ? tokens : AMX_DECODED_TOKENS;
    (void)cols;
    return ((chunk + 15) / 16 + AMX_STEPS) * AMX_GROUP * AMX_TILE;
}

/* Computes whole groups. For rows past the matrix's end tiles keep old contents, whose sums are not stored. */
static void amx_gemm_blocks(float *y, size_t ldy, const char *w, const char *tiled, size_t rows, size_t cols,
                            size_t tokens, bool accumulate, char *scratch, const struct amx_blocks *of)
{
    const size_t row_bytes = cols / of->values * of->bytes, panel_bytes = cols / 32 * AMX_TILE;
    char *tiles = scratch, *sums = scratch + AMX_STEPS * AMX_GROUP * AMX_TILE;
    for (size_t t0 = 0; t0 < tokens; t0 += AMX_DECODED_TOKENS) {
        const size_t chunk = tokens - t0 < AMX_DECODED_TOKENS ? tokens - t0 : AMX_DECODED_TOKENS,
                     panels = (chunk + 15) / 16;
        for (size_t r0 = 0; r0 < rows; r0 += AMX_GROUP * 16) {
            const size_t here = rows - r0 < AMX_GROUP * 16 ? rows - r0 : AMX_GROUP * 16;
            for (size_t c = 0; c < cols; c += AMX_STEPS * 32) {
                const size_t count = cols - c < AMX_STEPS * 32 ? (cols - c) / 32 : AMX_STEPS;
                struct amx_block b = {.w = tiles,
                                      .row_bytes = 64,
                                      .tile_bytes = count * AMX_TILE,
                                      .step_bytes = AMX_TILE,
                                      .x = tiled + t0 / 16 * panel_bytes + c / 32 * AMX_TILE,
                                      .panel_bytes = panel_bytes,
                                      .c = sums,
                                      .c_row = panels * AMX_TILE,
                                      .steps = count,
                                      .first = c == 0};
                of->decode(tiles, w + r0 * row_bytes + c / of->values * of->bytes, row_bytes, here,
                           count * 32);
                TILE_FENCE();
                amx_group(&b, AMX_GROUP, panels);
            }
            TILE_FENCE();
            amx_store_sums(y + t0 * ldy + r0, ldy, sums, here, AMX_GROUP, chunk, accumulate);
        }
    }
}

#endif
