/* The registry of weight formats. See tensor_format.h; constant data. */
#include "common/formats/tensor_format.h"

#include <string.h>

#include "common/formats/blocks.h"

#define BLOCKS(format, FORMAT_NAME, values, bytes, group) [FORMAT_##FORMAT_NAME] = &tensor_format_##format,
static const struct tensor_format_traits *const formats[FORMAT_COUNT] = {[FORMAT_BF16] = &tensor_format_bf16,
                                                                         [FORMAT_F16] = &tensor_format_f16,
                                                                         [FORMAT_F32] = &tensor_format_f32,
                                                                         [FORMAT_BF16_PACKED] =
                                                                             &tensor_format_bf16_packed,
                                                                         [FORMAT_FP8] = &tensor_format_fp8,
                                                                         [FORMAT_Q8_0] = &tensor_format_q8_0,
                                                                         BLOCK_FORMATS(BLOCKS)};

const struct tensor_format_traits *tensor_format_of(enum tensor_format format)
{
    return formats[format];
}

const char *tensor_format_name(enum tensor_format format)
{
    return (unsigned)format < FORMAT_COUNT ? formats[format]->name : "unknown";
}

const char *dtype_name(enum dtype dtype)
{
    return (unsigned)dtype < DTYPE_COUNT ? formats[tensor_format_plain(dtype)]->name : "unknown";
}

enum tensor_format tensor_format_named(const char *name)
{
    for (int f = 0; f < FORMAT_COUNT; f++)
        if (strcmp(formats[f]->name, name) == 0) return (enum tensor_format)f;
    return FORMAT_COUNT;
}

enum tensor_format tensor_format_of_file(const char *dtype)
{
    for (int f = 0; f < FORMAT_COUNT; f++)
        if (formats[f]->file && strcmp(formats[f]->file, dtype) == 0) return (enum tensor_format)f;
    return FORMAT_COUNT;
}

int tensor_format_check_row(const struct tensor_matrix *m, uint32_t row, struct helm_err *err)
{
    const struct tensor_format_traits *traits = tensor_format_of(m->format);
    const uint64_t row_bytes = tensor_format_row_bytes(m->format, m->cols);
    if (row < m->rows && m->cols % traits->block_values == 0 && (row + UINT64_C(1)) * row_bytes <= m->bytes)
        return 0;
    return helm_fail(err, HELM_E_FORMAT, "%s: row %u of %u columns ends after the matrix's %llu bytes",
                     traits->name, row, m->cols, (unsigned long long)m->bytes);
}

bool tensor_format_converts(enum tensor_format from, enum tensor_format to)
{
    const struct tensor_format_traits *traits = formats[to];
    if (from == to) return true;
    return tensor_format_is_plain(from) && traits->write && (traits->from == to || traits->from == from);
}

int tensor_format_convert(const struct tensor_rows *what, void *out, struct helm_err *err)
{
    if (!tensor_format_converts(what->from, what->to))
        return helm_fail(err, HELM_E_UNSUPPORTED, "values of %s cannot be laid down as %s",
                         tensor_format_name(what->from), tensor_format_name(what->to));
    if (what->from == what->to && !formats[what->to]->variable) {
        memcpy(out, what->values, tensor_format_bytes(what->to, what->rows, what->cols));
        return 0;
    }
    return formats[what->to]->write(what->values, tensor_format_value(what->from), what->rows, what->cols,
                                    out, NULL, err);
}
