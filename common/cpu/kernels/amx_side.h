/* Rows that a core decodes beside its tile products, one at a step of a pass (amx_blocks.h): the next pass's
 * weights. Included by amx_blocks.h.
 *
 * Products wait in the tile unit for 16 cycles each, and vector instructions between them run meanwhile: in
 * pieces that are short beside what a core holds of instructions that are not done (512), hence single
 * rows. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "common/cpu/kernels/amx_panels.h"

#define AMX_PASS 3 /* row tiles that pass together */

/* A format's blocks, and what decodes `rows` rows of `cols` columns, row_bytes apart, to tiles [row
 * tile][step]. The bytes needed next lie `ahead` bytes from there. */
struct amx_blocks {
    size_t values, bytes;
    void (*decode)(void *tiles, const void *w, size_t row_bytes, size_t rows, size_t cols, ptrdiff_t ahead);
};

/* `rows` rows at w, of which `row` are done. */
struct amx_side {
    const struct amx_blocks *of;
    char *tiles; /* [row tile][step] */
    const char *w;
    size_t row_bytes, rows, cols, steps, row;
    ptrdiff_t ahead;
    size_t pace, due; /* 65536ths of a row: of a panel, and until now */
};

/* At most as many rows as are left of their tile. */
static inline void amx_side_decode(struct amx_side *s, size_t rows)
{
    s->of->decode(s->tiles + s->row / 16 * s->steps * AMX_TILE + s->row % 16 * 64,
                  s->w + s->row * s->row_bytes, s->row_bytes, rows, s->cols, s->ahead);
    s->row += rows;
    TILE_FENCE();
}

/* A pass over so many panels begins. */
static inline void amx_side_begin(struct amx_side *s, size_t panels)
{
    s->pace = ((s->rows << 16) + panels - 1) / panels;
    s->due = 0;
}

/* The rows to decode beside the next panel's steps. */
static inline size_t amx_side_panel(struct amx_side *s)
{
    s->due += s->pace;
    const size_t due = s->due >> 16 < s->rows ? s->due >> 16 : s->rows;
    return due - s->row;
}

/* Decodes the rest of it. */
static inline void amx_side_finish(struct amx_side *s)
{
    while (s->row < s->rows) {
        const size_t tile = 16 - s->row % 16, left = s->rows - s->row;
        amx_side_decode(s, tile < left ? tile : left);
    }
}
