/* Weights as FP8 (fp8.h), which checkpoints are published in: only read. See tensor_format.h. */
#include "common/formats/fp8.h"

#include "common/formats/tensor_format.h"

static int read_row(const struct tensor_matrix *m, uint32_t row, float *out, struct helm_err *err)
{
    const uint64_t row_bytes = tensor_format_row_bytes(m->format, m->cols);
    const int rc = tensor_format_check_row(m, row, err);
    if (rc) return rc;
    for (uint32_t c = 0; c < m->cols; c++) out[c] = fp8_value((const char *)m->data + row * row_bytes, c);
    return 0;
}

const struct tensor_format_traits tensor_format_fp8 = {.name = "fp8",
                                                       .value = DTYPE_F32,
                                                       .product = DTYPE_BF16,
                                                       .block_values = FP8_VALUES,
                                                       .block_bytes = FP8_BYTES,
                                                       .group_rows = 1,
                                                       .from = FORMAT_FP8,
                                                       .read_row = read_row};
