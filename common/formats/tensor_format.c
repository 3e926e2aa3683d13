/* The registry of weight formats. See tensor_format.h; constant data. */
#include "common/formats/tensor_format.h"

#include <string.h>

#include "common/formats/blocks.h"

#define BLOCKS(format, FORMAT_NAME, values, bytes, group) [FORMAT_##FORMAT_NAME] = &tensor_format_##format,
static const struct tensor_format_traits *const formats[FORMAT_COUNT] = {
    [FORMAT_BF16] = &tensor_format_bf16, [FORMAT_F16] = &tensor_format_f16,
    [FORMAT_F32] = &tensor_format_f32,   [FORMAT_BF16_PACKED] = &tensor_format_bf16_packed,
    [FORMAT_Q8_0] = &tensor_format_q8_0, BLOCK_FORMATS(BLOCKS)};

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
