/* The instructions of AMX as the macros that amx_body.h and attention_amxvbmi2.c are written with, and the
 * shape of all tiles.
 *
 * Included by files compiled for AMX. The process must have asked the kernel for tile state (cpu_enable_amx),
 * and a thread calls tiles_begin, or tiles_shape for shapes of its own, before its first tile and tiles_end
 * after its last: a hyperthread beside it wants the registers. */
#pragma once

#include <immintrin.h>
#include <stdint.h>

#define TILE_ZERO(t)                   _tile_zero(t)
#define TILE_LOAD(t, address, stride)  _tile_loadd(t, address, stride)
#define TILE_STORE(t, address, stride) _tile_stored(t, address, stride)
#define TILE_DP(c, a, b)               _tile_dpbf16ps(c, a, b)
/* The compiler's tile intrinsics do not say that they read and write memory. */
#define TILE_FENCE() __asm__ volatile("" ::: "memory")

/* Rows of each tile and bytes of a row, as the processor takes them. */
struct tile_shapes {
    uint8_t palette /* 1 */, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
};
static inline void tiles_shape(const struct tile_shapes *shapes)
{
    TILE_FENCE();
    _tile_loadconfig(shapes);
    __asm__ volatile("" : : "m"(*shapes) : "memory");
}
/* All eight tiles whole: 16 rows of 64 bytes. */
static inline void tiles_begin(void)
{
    struct tile_shapes shapes = {.palette = 1};
    for (int i = 0; i < 8; i++) {
        shapes.row_bytes[i] = 64;
        shapes.rows[i] = 16;
    }
    tiles_shape(&shapes);
}

static inline void tiles_end(void)
{
    _tile_release();
}
