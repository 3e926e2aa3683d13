/* FP8 in plain C, the definition: what the fast kernels are compared with. Called through the table of linear.c. */
#include "common/cpu/kernels/variants.h"
#include "common/formats/fp8.h"

static void gemv(float *y, const void *w, const float *x, size_t rows, size_t cols,
                 const struct gemv_reads *reads)
{
    (void)reads;
    for (size_t r = 0; r < rows; r++) {
        double sum = 0;
        for (size_t c = 0; c < cols; c++) sum += (double)fp8_value(w, r * cols + c) * (double)x[c];
        y[r] = (float)sum;
    }
}

static void decode(void *values, const void *w, size_t rows, size_t cols)
{
    for (size_t i = 0; i < rows * cols; i++) ((float *)values)[i] = fp8_value(w, i);
}

const struct linear_kernel fp8_ref_gemv = {
    .name = "ref", .format = FORMAT_FP8, .schedule = LINEAR_ONE_TOKEN, .gemv = gemv, .streams = 1};
const struct linear_kernel fp8_ref_decode = {
    .name = "ref", .format = FORMAT_FP8, .schedule = LINEAR_DECODE, .decode = decode, .rows = FORMAT_F32};
