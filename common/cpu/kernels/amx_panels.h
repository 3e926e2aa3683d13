/* How activations lie for AMX: written by linear_avx512bf16_tile_blocks, read by amx_body.h.
 *
 * A tile is 16 pairs of columns x 16 tokens of bf16, 1 KiB in a row. Tiles are [block of AMX_STEPS
 * steps][panel][step]: what all tokens have in a block of columns is one run of memory, which fills the sets
 * of the L2 evenly. With whole panels one after another, the same columns of all panels lie a power of two
 * apart, and fall into a few of its sets. */
#pragma once

#include <stddef.h>

#define AMX_TILE  1024 /* bytes of a tile: 16 rows of 64 */
#define AMX_STEPS 8    /* steps of 32 columns of a block */

static inline size_t amx_padded(size_t cols)
{
    return (cols + 31) / 32 * 32;
}

static inline size_t amx_panels(size_t tokens)
{
    return (tokens + 15) / 16;
}

/* Steps of block `block`, the one of fewer than 32 columns among them. */
static inline size_t amx_block_steps(size_t cols, size_t block)
{
    const size_t left = amx_padded(cols) / 32 - block * AMX_STEPS;
    return left < AMX_STEPS ? left : AMX_STEPS;
}

/* Where panel `panel` of `panels` begins in block `block`, in bytes. */
static inline size_t amx_panel_at(size_t cols, size_t panels, size_t block, size_t panel)
{
    return (block * AMX_STEPS * panels + panel * amx_block_steps(cols, block)) * AMX_TILE;
}
