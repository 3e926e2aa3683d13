/* Q8_0: one token's products, rows decoded to fp32. Included once by q8_0_avx2.c and q8_0_avx512.c, after
 * their vectors, which define NAME, FEATURES, GEMV and DECODE (bytes_simd.h). */
#include "common/formats/q8_0.h"

#define run_numbers vec_widen_i8

INLINE float run_scale(const void *block)
{
    uint16_t half;
    memcpy(&half, block, sizeof half);
    return _cvtsh_ss(half);
}

#define FORMAT  Q8_0
#define VALUES  Q8_0_VALUES
#define BYTES   Q8_0_BYTES
#define NUMBERS 2
#define TIMES   1.0f
#include "common/cpu/kernels/bytes_simd.h"
