/* The instructions of AMX as the macros that amx_body.h and attention_amxvbmi2.c are written with, and the shape of all tiles.
 *
 * Included by files compiled for AMX. The process must have asked the kernel for tile state (cpu_enable_amx), and a thread calls
 * tiles_begin before its first tile and tiles_end behind its last: a hyperthread beside it wants the registers. */
#ifndef HELM_COMMON_CPU_KERNELS_AMX_TILES_H
#define HELM_COMMON_CPU_KERNELS_AMX_TILES_H

#include <immintrin.h>
#include <stdint.h>

#define TILE_ZERO(t)                   _tile_zero(t)
#define TILE_LOAD(t, address, stride)  _tile_loadd(t, address, stride)
#define TILE_STORE(t, address, stride) _tile_stored(t, address, stride)
#define TILE_DP(c, a, b)               _tile_dpbf16ps(c, a, b)
/* The compiler's tile intrinsics do not say that they read and write memory. */
#define TILE_FENCE() __asm__ volatile("" ::: "memory")

/* All eight tiles whole: 16 rows of 64 bytes. */
static inline void tiles_begin(void)
{
    struct {
        uint8_t palette, start_row, reserved[14];
        uint16_t row_bytes[16];
        uint8_t rows[16];
    } config = {.palette = 1};
    for (int i = 0; i < 8; i++) {
        config.row_bytes[i] = 64;
        config.rows[i] = 16;
    }
    TILE_FENCE();
    _tile_loadconfig(&config);
    __asm__ volatile("" : : "m"(config) : "memory");
}

static inline void tiles_end(void)
{
    _tile_release();
}

#endif
