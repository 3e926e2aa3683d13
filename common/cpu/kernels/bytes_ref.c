/* Q8_0 and FP8 in plain C, the definition: what the fast kernels are compared with. Called through the table
 * of linear.c. */
#include "common/cpu/kernels/variants.h"
#include "common/formats/fp8.h"
#include "common/formats/q8_0.h"

#define FUNCTIONS(format_, FORMAT_NAME)                                                                      \
    static void format_##_gemv(float *y, const void *w, const float *x, size_t rows, size_t cols,            \
                               const struct gemv_reads *reads)                                               \
    {                                                                                                        \
        (void)reads;                                                                                         \
        for (size_t r = 0; r < rows; r++) {                                                                  \
            double sum = 0;                                                                                  \
            for (size_t c = 0; c < cols; c++)                                                                \
                sum += (double)format_##_value(w, r * cols + c) * (double)x[c];                              \
            y[r] = (float)sum;                                                                               \
        }                                                                                                    \
    }                                                                                                        \
    static void format_##_decode(void *values, const void *w, size_t rows, size_t cols)                      \
    {                                                                                                        \
        for (size_t i = 0; i < rows * cols; i++) ((float *)values)[i] = format_##_value(w, i);               \
    }                                                                                                        \
    const struct linear_kernel format_##_ref_gemv = {.name = "ref",                                          \
                                                     .format = FORMAT_NAME,                                  \
                                                     .schedule = LINEAR_ONE_TOKEN,                           \
                                                     .gemv = format_##_gemv,                                 \
                                                     .streams = 1};                                          \
    const struct linear_kernel format_##_ref_decode = {.name = "ref",                                        \
                                                       .format = FORMAT_NAME,                                \
                                                       .schedule = LINEAR_DECODE,                            \
                                                       .decode = format_##_decode,                           \
                                                       .rows = FORMAT_F32};
FUNCTIONS(q8_0, FORMAT_Q8_0)
FUNCTIONS(fp8, FORMAT_FP8)
