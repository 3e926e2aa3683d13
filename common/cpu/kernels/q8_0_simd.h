/* Q8_0: its decoder and one token's products by the common schedule. Included once by q8_0_avx2.c and q8_0_avx512.c
 * behind their vectors, which define NAME, FEATURES, GEMV (the entry that linear.c knows) and
 * vec q8_0_numbers(at), LANES signed bytes as floats. */
#include "common/formats/q8_0.h"
#include "common/formats/tensor_format.h"

INLINE size_t decode_bytes(size_t values, const enum tensor_format format)
{
    (void)format;
    return values / Q8_0_VALUES * Q8_0_BYTES;
}

/* Rows are whole blocks, so all lanes count. */
INLINE vec decode_part(const char *row, size_t i, size_t left, const enum tensor_format format)
{
    (void)left;
    const char *block = row + decode_bytes(i, format);
    uint16_t scale;
    memcpy(&scale, block, sizeof scale);
    return vec_mul(q8_0_numbers(block + sizeof scale + i % Q8_0_VALUES), vec_set1(_cvtsh_ss(scale)));
}
#include "common/cpu/kernels/gemv_simd.h"

static void q8_0_gemv(float *y, const void *w, const float *x, size_t rows, size_t cols,
                      const struct gemv_reads *reads)
{
    gemv(y, w, x, rows, cols, reads, FORMAT_Q8_0);
}

const struct linear_kernel GEMV = {.name = NAME,
                                   .features = FEATURES,
                                   .format = FORMAT_Q8_0,
                                   .schedule = LINEAR_ONE_TOKEN,
                                   .gemv = q8_0_gemv,
                                   .streams = GEMV_STREAMS};
