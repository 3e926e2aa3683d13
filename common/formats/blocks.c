/* Weights in GGUF's blocks of few bits (blocks.h): sizes, reading; quantize.c writes them. See
 * tensor_format.h. */
#include "common/formats/blocks.h"

#include "common/formats/quantize.h"

static int write_rows(const struct tensor_rows *rows, void *out, uint64_t *bytes, struct helm_err *err)
{
    if (bytes) *bytes = tensor_format_bytes(rows->to, rows->rows, rows->cols);
    return quantize_rows(rows, NULL, out, err);
}

#define FORMAT(WRITE, format, FORMAT_NAME, VALUES, BYTES, GROUP)                                             \
    static int format##_read_row(const struct tensor_matrix *m, uint32_t row, float *out,                    \
                                 struct helm_err *err)                                                       \
    {                                                                                                        \
        const uint8_t *block = (const uint8_t *)m->data + (uint64_t)row * (m->cols / (VALUES)) * (BYTES);    \
        float scale[BLOCK_GROUPS_MAX], least[BLOCK_GROUPS_MAX];                                              \
        int8_t number[VALUES];                                                                               \
        int rc = tensor_format_check_row(m, row, err);                                                       \
        for (uint32_t c = 0; c < m->cols && !rc; c += (VALUES), block += (BYTES)) {                          \
            format##_numbers(block, number);                                                                 \
            format##_scales(block, scale, least);                                                            \
            for (uint32_t g = 0; g < (VALUES) / (GROUP); g++)                                                \
                for (uint32_t i = g * (GROUP); i < (g + 1) * (GROUP); i++)                                   \
                    out[c + i] = scale[g] * (float)number[i] - least[g];                                     \
        }                                                                                                    \
        return rc;                                                                                           \
    }                                                                                                        \
    const struct tensor_format_traits tensor_format_##format = {                                             \
        .name = #format,                                                                                     \
        .file = #FORMAT_NAME,                                                                                \
        .value = DTYPE_F32,                                                                                  \
        .product = DTYPE_BF16,                                                                               \
        .file_values = FORMAT_##FORMAT_NAME == FORMAT_NVFP4 ? NVFP4_FILE_VALUES : 0,                         \
        .file_bytes = FORMAT_##FORMAT_NAME == FORMAT_NVFP4 ? NVFP4_FILE_BYTES : 0,                           \
        .block_values = (VALUES),                                                                            \
        .block_bytes = (BYTES),                                                                              \
        .group_rows = 1,                                                                                     \
        .from = FORMAT_##FORMAT_NAME,                                                                        \
        .read_row = format##_read_row,                                                                       \
        .write = (WRITE)};
#define READ(...) FORMAT(NULL, __VA_ARGS__)
#define WRITTEN(format, FORMAT_NAME, ...)                                                                    \
    static int format##_write(const void *values, enum dtype dtype, uint32_t rows, uint32_t cols, void *out, \
                              uint64_t *bytes, struct helm_err *err)                                         \
    {                                                                                                        \
        const struct tensor_rows what = {tensor_format_plain(dtype), FORMAT_##FORMAT_NAME, rows, cols,       \
                                         values};                                                            \
        return write_rows(&what, out, bytes, err);                                                           \
    }                                                                                                        \
    FORMAT(format##_write, format, FORMAT_NAME, __VA_ARGS__)
BLOCK_WRITTEN_FORMATS(WRITTEN)
BLOCK_READ_FORMATS(READ)
