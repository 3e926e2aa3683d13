/* Best-case multiply loop with tdpbf16ps on four independent sums, as the GEMM keeps. See probe.h. */
#include <immintrin.h>

#include "common/cpu/kernels/probe.h"

double probe_amx_flops(size_t rounds)
{
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    _tile_zero(4);
    _tile_zero(5);
    _tile_zero(6);
    _tile_zero(7);
    for (size_t n = 0; n < rounds; n++) {
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }
    return (double)rounds * 4 * 16 * 16 * 32 * 2;
}
