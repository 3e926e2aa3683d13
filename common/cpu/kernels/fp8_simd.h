/* FP8: one token's products, rows decoded to fp32. Included once by fp8_avx2.c and fp8_avx512.c, after their
 * vectors, which define run_numbers, NAME, FEATURES, GEMV and DECODE (bytes_simd.h). E4M3's bits are those of
 * an fp16 number 256 times smaller. */
#include "common/formats/fp8.h"

#define FORMAT    FP8
#define VALUES    FP8_VALUES
#define BYTES     FP8_BYTES
#define NUMBERS   4
#define run_scale fp8_scale
#define TIMES     256.0f
#include "common/cpu/kernels/bytes_simd.h"
