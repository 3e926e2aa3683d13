/* The registry of weight formats: names, sizes, and that what a format writes reads back, row by row, over
 * odd shapes; every row of the registry is walked, so a format cannot stand in it untested. Those of grids
 * are only read (test_blocks_grid.c). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/formats/convert.h"
#include "common/formats/tensor_format.h"

static const uint32_t shapes[][2] = {{1, 1},   {1, 32},   {3, 64},   {16, 1024},
                                     {32, 96}, {48, 512}, {16, 544}, {5, 256}};
#define SHAPES (sizeof shapes / sizeof *shapes)

#define LARGEST 0.05f /* of the values that are written */

/* The largest error of a value: f16 rounds to its subnormals' unit, blocks of narrower numbers by the
 * distance between two numbers at most: the outermost values may lie beyond the last number. */
static float tolerance_of(enum tensor_format format)
{
    static const float steps[FORMAT_COUNT] = {
        [FORMAT_Q8_0] = 254, [FORMAT_Q4_0] = 15,  [FORMAT_Q4_1] = 15, [FORMAT_Q5_0] = 31, [FORMAT_Q5_1] = 31,
        [FORMAT_Q2_K] = 3,   [FORMAT_Q3_K] = 7,   [FORMAT_Q4_K] = 15, [FORMAT_Q5_K] = 31, [FORMAT_Q6_K] = 63,
        [FORMAT_IQ4_NL] = 9, [FORMAT_IQ4_XS] = 9, [FORMAT_MXFP4] = 4};
    if (format == FORMAT_F16) return 0x1p-25f;
    return steps[format] ? 2 * LARGEST / steps[format] : 0;
}

static void test_names(void **state)
{
    (void)state;
    for (int f = 0; f < FORMAT_COUNT; f++) {
        const struct tensor_format_traits *traits = tensor_format_of((enum tensor_format)f);
        assert_int_equal(tensor_format_named(traits->name), f);
        assert_string_equal(tensor_format_name((enum tensor_format)f), traits->name);
        if (traits->file) assert_int_equal(tensor_format_of_file(traits->file), f);
        assert_true(traits->block_values > 0 && traits->block_bytes > 0 && traits->group_rows > 0);
    }
    assert_int_equal(tensor_format_named("bf17"), FORMAT_COUNT);
    assert_int_equal(tensor_format_of_file("bf16"), FORMAT_COUNT);
    assert_string_equal(tensor_format_name(FORMAT_COUNT), "unknown");
}

/* Values of the kind that weights are, some of them 0. */
static void fill(uint16_t *value, size_t count)
{
    uint32_t seed = 12345;
    for (size_t i = 0; i < count; i++) {
        seed = seed * 1664525u + 1013904223u;
        float v = ((float)(seed >> 8) / (float)(1u << 24) - 0.5f) * 2 * LARGEST;
        value[i] = convert_f32_bf16(seed % 17 ? v : 0);
    }
}

static void check_shape(enum tensor_format format, uint32_t rows, uint32_t cols)
{
    struct helm_err err = {0};
    const uint64_t most = tensor_format_bytes(format, rows, cols);
    const size_t count = (size_t)rows * cols;
    uint16_t *value = malloc(count * sizeof *value);
    char *bytes = aligned_alloc(64, (most + 63) / 64 * 64 + 64);
    float *out = malloc(cols * sizeof *out);
    uint64_t taken = 0;
    fill(value, count);
    memset(bytes, 0x5a, most + 1);
    assert_int_equal(tensor_format_of(format)->write(value, DTYPE_BF16, rows, cols, bytes, &taken, &err), 0);
    assert_true(taken <= most && bytes[most] == 0x5a);
    if (!tensor_format_of(format)->variable) {
        assert_int_equal(taken, most);
        assert_int_equal(most, rows * tensor_format_row_bytes(format, cols));
    }
    const struct tensor_matrix m = {
        .format = format, .data = bytes, .bytes = taken, .rows = rows, .cols = cols};
    for (uint32_t r = 0; r < rows; r++) {
        assert_int_equal(tensor_format_read_row(&m, r, out, &err), 0);
        for (uint32_t c = 0; c < cols; c++) {
            const float expected = convert_bf16_f32(value[(size_t)r * cols + c]);
            assert_true(fabsf(out[c] - expected) <= tolerance_of(format));
        }
    }
    assert_int_equal(tensor_format_read_row(&m, rows, out, &err), HELM_E_FORMAT);
    const struct tensor_matrix cut = {
        .format = format, .data = bytes, .bytes = taken - 1, .rows = rows, .cols = cols};
    assert_int_equal(tensor_format_read_row(&cut, rows - 1, out, &err), HELM_E_FORMAT);
    free(value);
    free(bytes);
    free(out);
}

static void test_round_trips(void **state)
{
    (void)state;
    for (int f = 0; f < FORMAT_COUNT; f++) {
        uint32_t checked = 0;
        if (tensor_format_of((enum tensor_format)f)->block_values > 1 &&
            !tensor_format_of((enum tensor_format)f)->write)
            continue;
        for (size_t s = 0; s < SHAPES; s++) {
            if (!tensor_format_takes((enum tensor_format)f, shapes[s][0], shapes[s][1])) continue;
            check_shape((enum tensor_format)f, shapes[s][0], shapes[s][1]);
            checked++;
        }
        assert_true(checked >= 3);
    }
}

static void test_refused_shapes(void **state)
{
    (void)state;
    for (int f = 0; f < FORMAT_COUNT; f++) {
        assert_false(tensor_format_takes((enum tensor_format)f, 0, 32));
        assert_false(tensor_format_takes((enum tensor_format)f, 32, 0));
        assert_false(tensor_format_takes((enum tensor_format)f, UINT64_MAX / 8, 1024));
    }
    assert_false(tensor_format_takes(FORMAT_BF16_PACKED, 17, 64));
}

/* Formats that a loader may lay down as others: exactly what the format's own writer makes. */
static void test_conversions(void **state)
{
    (void)state;
    enum { ROWS = 16, COLS = 256 };
    struct helm_err err = {0};
    for (int f = 0; f < FORMAT_COUNT; f++)
        for (int t = 0; t < FORMAT_COUNT; t++) {
            const enum tensor_format from = (enum tensor_format)f, to = (enum tensor_format)t;
            const bool plain = tensor_format_is_plain(from),
                       converts = from == to || (plain && tensor_format_of(to)->write &&
                                                 (to != FORMAT_BF16_PACKED || from == FORMAT_BF16));
            assert_int_equal(tensor_format_converts(from, to), converts);
            if (converts && !plain) continue;
            const uint64_t bytes = tensor_format_bytes(to, ROWS, COLS);
            uint32_t values[ROWS * COLS]; /* as many bits as the widest has */
            uint8_t *out = calloc(2, bytes);
            assert_non_null(out);
            for (uint32_t i = 0; i < ROWS * COLS; i++) values[i] = 0x3c003c00u + (i & 0xff);
            const struct tensor_rows what = {
                .from = from, .to = to, .rows = ROWS, .cols = COLS, .values = values};
            assert_int_equal(tensor_format_convert(&what, out, &err), converts ? 0 : HELM_E_UNSUPPORTED);
            if (converts) {
                int rc = tensor_format_of(to)->write(values, (enum dtype)from, ROWS, COLS, out + bytes, NULL,
                                                     &err);
                assert_int_equal(rc, 0);
                assert_memory_equal(out, out + bytes, bytes);
            }
            free(out);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_names), cmocka_unit_test(test_round_trips),
                                       cmocka_unit_test(test_refused_shapes),
                                       cmocka_unit_test(test_conversions)};
    return cmocka_run_group_tests_name("formats/tensor_format", tests, NULL, NULL);
}
