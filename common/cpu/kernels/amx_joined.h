/* Gates and ups of a gated MLP by AMX, joined and rounded to the input of the product after them. Included
 * by gemm_amx.c after amx_body.h; on a software model of tiles by tests/kernels/test_amx_model.c.
 *
 * AMX_JOINED rows of gates and as many of ups pass an input's columns together (amx_blocks.h), so their sums
 * rest in scratch side by side, and an input is read from far away once for both. A tile of sums has a token
 * in each lane: a pair of its rows, rounded, is a row of a tile of the next product's input (amx_panels.h).
 * So nothing is transposed, and no float leaves scratch.
 *
 * The includer defines amx_join_tiles(to, gate, up, apart): sums of 32 gates, two tiles `apart` bytes apart,
 * and of their ups to one tile. */
#pragma once

#include "common/cpu/kernels/amx_blocks.h"

#define AMX_JOINED (AMX_ROWS / 2) /* rows of gates, and of ups */

/* The tile of columns from `col` on, of a panel. */
static char *amx_joined_tile(const struct gemm_joined *j, size_t col, size_t panel)
{
    const size_t width = AMX_STEPS * 32;
    return (char *)j->out + amx_panel_at(j->out_cols, amx_panels(j->tokens), col / width, panel) +
           col % width / 32 * AMX_TILE;
}

/* Sums of `rows` gates and, after them, ups, of panels [first, first + count) to columns from `at` on. A
 * tile's place is asked for ahead: it lies in caches farther away, and a store waits as long as a load. */
static void amx_join_sums(const struct gemm_joined *j, const char *sums, size_t rows, size_t at, size_t first,
                          size_t count)
{
    const size_t apart = count * AMX_TILE, wide = rows / 32, all = wide * count;
    const char *ups = sums + rows / 16 * apart;
    for (size_t i = 0; i < all; i++) {
        const size_t then = i + AMX_SUMS_AHEAD, from = i % wide * 2 * apart + i / wide * AMX_TILE;
        const char *next = amx_joined_tile(j, at + then % wide * 32, first + then / wide);
        for (size_t line = 0; then < all && line < AMX_TILE; line += 64)
            __builtin_prefetch(next + line, 1, 3);
        amx_join_tiles(amx_joined_tile(j, at + i % wide * 32, first + i / wide), sums + from, ups + from,
                       apart);
    }
}

static void amx_gemm_joined(const struct gemm_joined *j, const struct amx_blocks *of)
{
    struct amx_decoded d = {.of = of,
                            .cols = j->cols,
                            .row_bytes = j->cols / of->values * of->bytes,
                            .x = j->tiled,
                            .panels = amx_panels(j->tokens),
                            .tiles = {j->scratch, (char *)j->scratch + AMX_TILES_BYTES},
                            .sums = (char *)j->scratch + 2 * AMX_TILES_BYTES};
    for (size_t t0 = 0; t0 < j->tokens; t0 += AMX_DECODED_TOKENS) {
        const size_t chunk = j->tokens - t0 < AMX_DECODED_TOKENS ? j->tokens - t0 : AMX_DECODED_TOKENS;
        d.first = t0 / 16, d.count = amx_panels(chunk);
        for (size_t r0 = 0; r0 < j->rows; r0 += AMX_JOINED) {
            const size_t rows = j->rows - r0 < AMX_JOINED ? j->rows - r0 : AMX_JOINED;
            d.w = (const char *)j->gate + r0 * d.row_bytes;
            d.second = (const char *)j->up + r0 * d.row_bytes;
            d.split = rows;
            amx_decoded_rows(&d, 0, 2 * rows);
            TILE_FENCE();
            amx_join_sums(j, d.sums, rows, j->out_first + r0, d.first, d.count);
        }
    }
}
