/* Weights as single numbers, as checkpoints have them: bf16, f16 and f32. See tensor_format.h. */
#include <string.h>

#include "common/formats/convert.h"
#include "common/formats/tensor_format.h"

static int plain_read_row(const struct tensor_matrix *m, uint32_t row, float *out, struct helm_err *err)
{
    const enum dtype dtype = (enum dtype)m->format;
    const uint64_t first = (uint64_t)row * m->cols;
    const int rc = tensor_format_check_row(m, row, err);
    if (rc) return rc;
    const char *const restrict from = (const char *)m->data + first * dtype_bytes(dtype);
    float *const restrict to = out;
    uint32_t c = 0;
    if (dtype == DTYPE_BF16) /* with a count that is known, so that it becomes vectors */
        for (; c + 32 <= m->cols; c += 32)
            for (uint32_t i = 0; i < 32; i++) to[c + i] = convert_load(from + 2 * c, DTYPE_BF16, i);
    for (; c < m->cols; c++) to[c] = convert_load(from, dtype, c);
    return 0;
}

static inline __attribute__((always_inline)) void
plain_write(enum dtype to, const void *values, enum dtype dtype, uint64_t count, void *out, uint64_t *bytes)
{
    if (bytes) *bytes = count * dtype_bytes(to);
    if (to == dtype) {
        memcpy(out, values, count * dtype_bytes(to));
        return;
    }
    for (uint64_t i = 0; i < count; i++) {
        const float value = convert_load(values, dtype, i);
        const uint16_t half = to == DTYPE_BF16 ? convert_f32_bf16(value) : convert_f32_f16(value);
        if (to == DTYPE_F32)
            memcpy((char *)out + i * sizeof value, &value, sizeof value);
        else
            memcpy((char *)out + i * sizeof half, &half, sizeof half);
    }
}

/* The row of the registry for DTYPE_`TYPE`, and the functions that know their type. */
#define PLAIN_FORMAT(type, TYPE)                                                                             \
    static int type##_write(const void *values, enum dtype dtype, uint32_t rows, uint32_t cols, void *out,   \
                            uint64_t *bytes, struct helm_err *err)                                           \
    {                                                                                                        \
        (void)err;                                                                                           \
        plain_write(DTYPE_##TYPE, values, dtype, (uint64_t)rows *cols, out, bytes);                          \
        return 0;                                                                                            \
    }                                                                                                        \
    const struct tensor_format_traits tensor_format_##type = {.name = #type,                                 \
                                                              .file = #TYPE,                                 \
                                                              .value = DTYPE_##TYPE,                         \
                                                              .product = DTYPE_##TYPE,                       \
                                                              .block_values = 1,                             \
                                                              .block_bytes =                                 \
                                                                  DTYPE_##TYPE == DTYPE_F32 ? 4 : 2,         \
                                                              .group_rows = 1,                               \
                                                              .from = FORMAT_##TYPE,                         \
                                                              .read_row = plain_read_row,                    \
                                                              .write = type##_write};
PLAIN_FORMAT(bf16, BF16)
PLAIN_FORMAT(f16, F16)
PLAIN_FORMAT(f32, F32)
