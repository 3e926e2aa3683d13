/* The AMX GEMM of many tokens: weights decoded to tiles, a few rows and a block of columns at a time, which
 * all tokens of a chunk then pass. Included by amx_body.h, which says what its macros are.
 *
 * A tile product takes 16 cycles and two operands of 1 KiB. From the L2, which gives about 48 bytes a cycle,
 * both would take longer. So the weights, AMX_PASS row tiles of AMX_STEPS steps, lie in the L1, and
 * activations come from the L2. A block of columns is finished for AMX_ROWS rows before the next one begins:
 * its activations are read from farther away once for all these rows, and fetched during the block before.
 * Sums of AMX_ROWS rows rest in scratch meanwhile. A pass's stores and loads of them alternate, tile by tile:
 * stores that wait for their products would keep the loads after them from beginning.
 *
 * A pass keeps five of the eight tile registers in use: three sums and an operand each of weights and
 * activations. A core renames them, and where its other hyperthread is at work there are few to rename to.
 * With eight in use products and loads then wait for one another, 29 ns a product; with five it is 16
 * (docs/notes/cpu-prefill.md). Alone on a core both take 7. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "common/cpu/kernels/amx_side.h"

#define AMX_ROWS           256 /* rows whose sums rest in scratch while all columns pass */
#define AMX_GRANULE        32  /* rows: no single row tile passes alone where shares are multiples of it */
#define AMX_DECODED_TOKENS 512 /* tokens of a chunk */
#define AMX_SUMS_AHEAD     2   /* tiles whose place in y is asked for before they are stored */

/* A few row tiles against all panels of a chunk, over one block of columns. */
struct amx_pass {
    const char *a; /* weights [row tile][step] */
    const char *x; /* activations of panel 0 */
    size_t panels, steps;
    const char *next;  /* activations that a later pass takes: of panel 0, this pass's share of them */
    size_t next_panel; /* bytes from a panel's to the next one's */
    size_t next_lines; /* of each panel, fetched at each step */
    char *c;           /* sums: tiles [row tile][panel] */
    struct amx_side *side;
};

static inline __attribute__((always_inline)) void amx_pass_tiles(const struct amx_pass *p, const size_t tiles,
                                                                 const bool first)
{
    const size_t panel_bytes = p->steps * AMX_TILE, c_row = p->panels * AMX_TILE, lines = p->next_lines;
    const char *a = p->a, *x = p->x, *next = p->next;
    struct amx_side *side = p->side;
    char *c = p->c;
#define BEGIN(t, from)                                                                                       \
    do {                                                                                                     \
        if (first)                                                                                           \
            TILE_ZERO(t);                                                                                    \
        else                                                                                                 \
            TILE_LOAD(t, from, 64);                                                                          \
    } while (0)
    BEGIN(0, c);
    if (tiles > 1) BEGIN(1, c + c_row);
    if (tiles > 2) BEGIN(2, c + 2 * c_row);
    for (size_t left = p->panels; left; left--) {
        size_t rows = amx_side_panel(side); /* of the next pass, one a step */
        for (size_t s = 0; s < panel_bytes; s += AMX_TILE) {
            TILE_LOAD(6, x + s, 64);
            TILE_LOAD(4, a + s, 64);
            TILE_DP(0, 4, 6);
            if (tiles > 1) {
                TILE_LOAD(4, a + panel_bytes + s, 64);
                TILE_DP(1, 4, 6);
            }
            if (tiles > 2) {
                TILE_LOAD(4, a + 2 * panel_bytes + s, 64);
                TILE_DP(2, 4, 6);
            }
            for (size_t i = 0; i < lines; i++, next += 64) __builtin_prefetch(next, 0, 2);
            if (rows) {
                amx_side_decode(side, 1);
                rows--;
            }
        }
        next += p->next_panel - lines * p->steps * 64;
        x += panel_bytes;
        char *done = c;
        c += AMX_TILE;
        TILE_STORE(0, done, 64);
        if (left > 1) BEGIN(0, c);
        if (tiles > 1) {
            TILE_STORE(1, done + c_row, 64);
            if (left > 1) BEGIN(1, c + c_row);
        }
        if (tiles > 2) {
            TILE_STORE(2, done + 2 * c_row, 64);
            if (left > 1) BEGIN(2, c + 2 * c_row);
        }
    }
#undef BEGIN
}

static void amx_pass_over(const struct amx_pass *p, size_t tiles, bool first)
{
    switch (tiles * 2 + first) {
    case 2:
        amx_pass_tiles(p, 1, false);
        return;
    case 3:
        amx_pass_tiles(p, 1, true);
        return;
    case 4:
        amx_pass_tiles(p, 2, false);
        return;
    case 5:
        amx_pass_tiles(p, 2, true);
        return;
    case 6:
        amx_pass_tiles(p, 3, false);
        return;
    default:
        amx_pass_tiles(p, 3, true);
    }
}

/* Rows are those of two matrices, or of one. */
struct amx_decoded {
    const struct amx_blocks *of;
    const char *w, *second; /* row 0; row `split`, a multiple of 16 unless it is the last */
    size_t split;
    size_t cols, row_bytes;
    const char *x;
    size_t panels, first, count; /* of x; of this chunk, first one and number */
    char *tiles[2], *sums;
};

#define AMX_TILES_BYTES ((size_t)AMX_STEPS * AMX_PASS * AMX_TILE)

static size_t amx_blocks_scratch_bytes(size_t cols, size_t tokens)
{
    const size_t chunk = tokens < AMX_DECODED_TOKENS ? tokens : AMX_DECODED_TOKENS;
    (void)cols;
    return amx_panels(chunk) * (AMX_ROWS / 16) * AMX_TILE + 2 * AMX_TILES_BYTES;
}

/* How many of `rows` rows pass together: AMX_PASS row tiles, or fewer such that no single one is left
 * over. */
static size_t amx_pass_rows(size_t rows)
{
    const size_t tiles = (rows + 15) / 16;
    const size_t take = tiles > AMX_PASS + 1 || tiles == AMX_PASS ? AMX_PASS : tiles > 1 ? 2 : 1;
    return take * 16 < rows ? take * 16 : rows;
}

static const char *amx_row_at(const struct amx_decoded *d, size_t r)
{
    return r < d->split ? d->w + r * d->row_bytes : d->second + (r - d->split) * d->row_bytes;
}

/* The rows of [r, r1) that pass together from r on: of one matrix. */
static size_t amx_rows_from(const struct amx_decoded *d, size_t r, size_t r1)
{
    return amx_pass_rows((r < d->split && d->split < r1 ? d->split : r1) - r);
}

/* The rows of [r0, r1) that pass together from r on, as what is decoded beside, of block `block`. The next
 * block's first rows follow a block's last ones. */
static void amx_side_rows(struct amx_side *side, const struct amx_decoded *d, size_t block, size_t r0,
                          size_t r, size_t r1)
{
    const size_t c = block * AMX_STEPS * 32, width = AMX_STEPS * 32 / d->of->values * d->of->bytes;
    side->of = d->of;
    side->row_bytes = d->row_bytes;
    side->w = amx_row_at(d, r) + c / d->of->values * d->of->bytes;
    side->rows = amx_rows_from(d, r, r1);
    side->steps = amx_block_steps(d->cols, block);
    side->cols = d->cols - c < AMX_STEPS * 32 ? d->cols - c : AMX_STEPS * 32;
    const uintptr_t from = (uintptr_t)amx_row_at(d, r);
    side->ahead = (ptrdiff_t)(r + side->rows < r1 ? (uintptr_t)amx_row_at(d, r + side->rows) - from
                                                  : (uintptr_t)amx_row_at(d, r0) + width - from);
    side->row = 0;
}

/* Rows [r0, r1), at most AMX_ROWS. For rows past the matrix's end tiles keep old contents, whose sums are not
 * stored. */
static void amx_decoded_rows(const struct amx_decoded *d, size_t r0, size_t r1)
{
    const size_t passes = ((r1 - r0 + 15) / 16 + AMX_PASS - 1) / AMX_PASS,
                 blocks = (d->cols + AMX_STEPS * 32 - 1) / (AMX_STEPS * 32);
    struct amx_side side = {.tiles = d->tiles[0]};
    size_t turn = 0;
    amx_side_rows(&side, d, 0, r0, r0, r1);
    amx_side_finish(&side);
    for (size_t block = 0; block < blocks; block++) {
        /* After the last columns the first ones are needed again: of other rows. */
        const size_t steps = amx_block_steps(d->cols, block), then = block + 1 < blocks ? block + 1 : 0,
                     then_steps = amx_block_steps(d->cols, then), lines = then_steps * AMX_TILE / 64,
                     share = (lines + passes * steps - 1) / (passes * steps);
        struct amx_pass p = {.x = d->x + amx_panel_at(d->cols, d->panels, block, d->first),
                             .panels = d->count,
                             .steps = steps,
                             .next = d->x + amx_panel_at(d->cols, d->panels, then, d->first),
                             .next_panel = then_steps * AMX_TILE,
                             .next_lines = share,
                             .c = d->sums,
                             .side = &side};
        for (size_t r = r0; r < r1; turn ^= 1) {
            const size_t rows = amx_rows_from(d, r, r1), tiles = (rows + 15) / 16;
            p.a = d->tiles[turn];
            side.tiles = d->tiles[turn ^ 1];
            if (r + rows < r1)
                amx_side_rows(&side, d, block, r0, r + rows, r1);
            else if (then)
                amx_side_rows(&side, d, then, r0, r0, r1);
            else
                side.rows = side.row = 0;
            amx_side_begin(&side, d->count);
            amx_pass_over(&p, tiles, block == 0);
            amx_side_finish(&side);
            p.c += tiles * d->count * AMX_TILE;
            p.next += share * steps * 64;
            r += rows;
        }
    }
}

/* Sums [row tile][panel] of `tiles` row tiles, `rows` and `tokens` of them real. y is asked for ahead: it
 * lies in caches farther away, and a store waits as long as a load. */
static void amx_store_sums(float *y, size_t ldy, const char *sums, size_t rows, size_t tiles, size_t tokens,
                           bool accumulate)
{
    const size_t panels = amx_panels(tokens), all = panels * tiles;
    for (size_t i = 0; i < all; i++) {
        const size_t panel = i / tiles, tile = i % tiles, left = tokens - panel * 16;
        const size_t then = i + AMX_SUMS_AHEAD, then_token = then / tiles * 16;
        for (size_t t = then_token; t < then_token + 16 && t < tokens; t++)
            __builtin_prefetch(y + t * ldy + then % tiles * 16, 1, 3);
        if (tile * 16 >= rows) continue;
        amx_store_transposed(y + panel * 16 * ldy + tile * 16, ldy,
                             (const float *)(const void *)(sums + (tile * panels + panel) * AMX_TILE),
                             rows - tile * 16 < 16 ? rows - tile * 16 : 16, left < 16 ? left : 16,
                             accumulate);
    }
}

static void amx_gemm_blocks(float *y, size_t ldy, const char *w, const char *tiled, size_t rows, size_t cols,
                            size_t tokens, bool accumulate, char *scratch, const struct amx_blocks *of)
{
    struct amx_decoded d = {.of = of,
                            .w = w,
                            .split = rows,
                            .cols = cols,
                            .row_bytes = cols / of->values * of->bytes,
                            .x = tiled,
                            .panels = amx_panels(tokens),
                            .tiles = {scratch, scratch + AMX_TILES_BYTES},
                            .sums = scratch + 2 * AMX_TILES_BYTES};
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
