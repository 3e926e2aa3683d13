/* Weights as Q8_0 (q8_0.h): 8.5 bits a value, each off by half a 127th of its block's largest at most. See
 * tensor_format.h. */
#include "common/formats/q8_0.h"

#include <math.h>

#include "common/formats/tensor_format.h"

static int read_row(const struct tensor_matrix *m, uint32_t row, float *out, struct helm_err *err)
{
    const uint64_t row_bytes = tensor_format_row_bytes(m->format, m->cols);
    const int rc = tensor_format_check_row(m, row, err);
    if (rc) return rc;
    const unsigned char *block = (const unsigned char *)m->data + row * row_bytes;
    for (uint32_t c = 0; c < m->cols; c += Q8_0_VALUES, block += Q8_0_BYTES) {
        uint16_t half;
        memcpy(&half, block, sizeof half);
        const float scale = convert_f16_f32(half);
        for (uint32_t i = 0; i < Q8_0_VALUES; i++) out[c + i] = scale * (float)(int8_t)block[sizeof half + i];
    }
    return 0;
}

typedef float four_floats __attribute__((vector_size(16)));
typedef int32_t four_numbers __attribute__((vector_size(16)));

/* False: values that are not finite, or too large. As llama.cpp's quantize_row_q8_0_ref: numbers by the scale
 * before it is rounded to fp16, halves away from 0. */
static bool write_block(const void *values, enum dtype dtype, uint64_t first, unsigned char *out)
{
    float value[Q8_0_VALUES], largest = 0;
    if (dtype == DTYPE_BF16) /* by type, so that the choice is not made for each number */
        for (uint32_t i = 0; i < Q8_0_VALUES; i++) value[i] = convert_load(values, DTYPE_BF16, first + i);
    else
        for (uint32_t i = 0; i < Q8_0_VALUES; i++) value[i] = convert_load(values, dtype, first + i);
    four_floats most = {0};
    four_numbers finite = {-1, -1, -1, -1};
    for (uint32_t i = 0; i < Q8_0_VALUES; i += 4) {
        four_floats v;
        memcpy(&v, value + i, sizeof v);
        v = (four_floats)((four_numbers)v & 0x7fffffff);
        finite &= v < INFINITY; /* false of NaN */
        const four_numbers more = v > most;
        most = (four_floats)((more & (four_numbers)v) | (~more & (four_numbers)most));
    }
    for (int i = 0; i < 4; i++) {
        if (!finite[i]) return false;
        if (most[i] > largest) largest = most[i];
    }
    const float scale = largest / 127, inverse = scale >= 0x1p-126f ? 1 / scale : 0;
    const uint16_t half = convert_f32_f16(scale);
    if (!isfinite(convert_f16_f32(half))) return false;
    memcpy(out, &half, sizeof half);
    for (uint32_t i = 0; i < Q8_0_VALUES; i += 4) {
        four_floats v;
        memcpy(&v, value + i, sizeof v);
        v *= inverse;
        four_numbers number = __builtin_convertvector(v, four_numbers);
        const four_floats rest = v - __builtin_convertvector(number, four_floats); /* exact */
        number += (rest <= -0.5f) - (rest >= 0.5f); /* comparisons are -1 where they hold */
        for (int k = 0; k < 4; k++) out[sizeof half + i + k] = (unsigned char)(int8_t)number[k];
    }
    return true;
}

static int write(const void *values, enum dtype dtype, uint32_t rows, uint32_t cols, void *out,
                 uint64_t *bytes, struct helm_err *err)
{
    const uint64_t blocks = (uint64_t)rows * (cols / Q8_0_VALUES);
    for (uint64_t b = 0; b < blocks; b++)
        if (!write_block(values, dtype, b * Q8_0_VALUES, (unsigned char *)out + b * Q8_0_BYTES))
            return helm_fail(err, HELM_E_FORMAT, "q8_0: row %llu has values that are not finite or too large",
                             (unsigned long long)(b / (cols / Q8_0_VALUES)));
    if (bytes) *bytes = blocks * Q8_0_BYTES;
    return 0;
}

const struct tensor_format_traits tensor_format_q8_0 = {.name = "q8_0",
                                                        .file = "Q8_0",
                                                        .value = DTYPE_F32,
                                                        .product = DTYPE_BF16,
                                                        .block_values = Q8_0_VALUES,
                                                        .block_bytes = Q8_0_BYTES,
                                                        .group_rows = 1,
                                                        .from = FORMAT_Q8_0,
                                                        .read_row = read_row,
                                                        .write = write};
