/* GGUF's blocks of places in grids: every value of 1,024 random blocks of each format is what gguf's own
 * decoder made of them (tests/data/golden-blocks), and scales that are no numbers make values that are
 * none. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/file.h"
#include "common/formats/blocks.h"
#include "common/formats/tensor_format.h"

enum { BLOCKS = 1024, HASHED = 8, WHOLE = 2, VALUES = 256 };

static const enum tensor_format formats[] = {FORMAT_IQ2_XXS, FORMAT_IQ2_XS, FORMAT_IQ2_S, FORMAT_IQ3_XXS,
                                             FORMAT_IQ3_S,   FORMAT_IQ1_S,  FORMAT_IQ1_M};
#define FORMATS (sizeof formats / sizeof *formats)

static uint8_t random_byte(uint32_t *state)
{
    *state = *state * 1664525u + 1013904223u;
    return (uint8_t)(*state >> 24);
}

/* The upper byte of a block's scale of scales; of IQ1_M its upper half alone. */
static uint32_t high_byte(enum tensor_format format)
{
    return format == FORMAT_IQ1_M ? 55 : 1;
}

/* All blocks, a row each. */
static uint8_t *make_blocks(enum tensor_format format)
{
    const uint32_t bytes = tensor_format_of(format)->block_bytes;
    uint8_t *blocks = malloc((size_t)BLOCKS * bytes);
    uint32_t state = 1;
    assert_non_null(blocks);
    for (size_t i = 0; i < (size_t)BLOCKS * bytes; i++) blocks[i] = random_byte(&state);
    for (size_t b = 0; b < BLOCKS; b++) blocks[b * bytes + high_byte(format)] &= 0xbf;
    return blocks;
}

static void check_golden(enum tensor_format format)
{
    const struct tensor_format_traits *traits = tensor_format_of(format);
    const size_t whole = WHOLE * (traits->block_bytes + VALUES * sizeof(float));
    struct helm_err err = {0};
    char path[80], *golden;
    size_t length;
    float value[VALUES];
    uint32_t hash = 2166136261u;
    snprintf(path, sizeof path, "tests/data/golden-blocks/%s.bin", traits->name);
    if (file_read(path, 1 << 16, &golden, &length, &err)) fail_msg("%s", err.text);
    assert_int_equal(length, whole + BLOCKS / HASHED * sizeof(uint32_t));
    uint8_t *blocks = make_blocks(format);
    assert_memory_equal(blocks, golden, WHOLE * traits->block_bytes);
    const struct tensor_matrix m = {format, blocks, (uint64_t)BLOCKS * traits->block_bytes, BLOCKS, VALUES};
    for (uint32_t b = 0; b < BLOCKS; b++) {
        assert_int_equal(tensor_format_read_row(&m, b, value, &err), 0);
        for (uint32_t i = 0; i < VALUES; i++) {
            if (b < WHOLE) {
                float wanted;
                memcpy(&wanted, golden + WHOLE * traits->block_bytes + (b * VALUES + i) * sizeof wanted,
                       sizeof wanted);
                if (value[i] != wanted)
                    fail_msg("%s: value %u of block %u is %g, not %g", traits->name, i, b, (double)value[i],
                             (double)wanted);
            }
            hash = (hash ^ convert_f32_bits(value[i])) * 16777619u;
        }
        if (b % HASHED != HASHED - 1) continue;
        uint32_t wanted;
        memcpy(&wanted, golden + whole + b / HASHED * sizeof wanted, sizeof wanted);
        if (hash != wanted)
            fail_msg("%s: blocks %u to %u have other values", traits->name, b - HASHED + 1, b);
        hash = 2166136261u;
    }
    free(blocks);
    free(golden);
}

static void values_are_those_of_gguf(void **state)
{
    (void)state;
    for (size_t f = 0; f < FORMATS; f++) check_golden(formats[f]);
}

/* Scales of scales that are infinite, no numbers, subnormal and zero: no value of these formats is 0 times a
 * scale. */
static void odd_scales(void **state)
{
    static const uint16_t halves[] = {0x7c00, 0xfc00, 0x7e00, 0x0001, 0x83ff, 0x0000};
    (void)state;
    for (size_t f = 0; f < FORMATS; f++) {
        const struct tensor_format_traits *traits = tensor_format_of(formats[f]);
        uint8_t *blocks = make_blocks(formats[f]);
        struct helm_err err = {0};
        const struct tensor_matrix m = {formats[f], blocks, traits->block_bytes, 1, VALUES};
        for (size_t h = 0; h < sizeof halves / sizeof *halves; h++) {
            float value[VALUES];
            const float scale = convert_f16_f32(halves[h]);
            if (formats[f] == FORMAT_IQ1_M)
                for (int i = 0; i < 4; i++)
                    blocks[49 + 2 * i] =
                        (uint8_t)((blocks[49 + 2 * i] & 15) | (halves[h] >> 4 * i & 15) << 4);
            else
                memcpy(blocks, &halves[h], sizeof halves[h]);
            assert_int_equal(tensor_format_read_row(&m, 0, value, &err), 0);
            for (uint32_t i = 0; i < VALUES; i++) {
                if (isnan(scale)) assert_true(isnan(value[i]));
                if (isinf(scale)) assert_true(isinf(value[i]));
                if (isfinite(scale)) assert_true((value[i] == 0) == (scale == 0) && isfinite(value[i]));
            }
        }
        free(blocks);
    }
}

/* Every format of grids stands in the list above, is only read, and its rows are checked as others' are. */
static void registry(void **state)
{
    (void)state;
    struct helm_err err = {0};
    uint32_t found = 0;
    float out[2 * VALUES];
    static uint8_t bytes[256];
#define FOUND(format, FORMAT_NAME, values, bytes, group) found++;
    BLOCK_GRID_FORMATS(FOUND)
    assert_int_equal(found, FORMATS);
    for (size_t f = 0; f < FORMATS; f++) {
        const struct tensor_format_traits *traits = tensor_format_of(formats[f]);
        struct tensor_matrix m = {formats[f], bytes, 2 * traits->block_bytes, 2, VALUES};
        assert_null(traits->write);
        assert_true(tensor_format_takes(formats[f], 1, VALUES));
        assert_false(tensor_format_takes(formats[f], 1, VALUES + 32));
        assert_int_equal(tensor_format_bytes(formats[f], 3, 5 * VALUES), 15 * traits->block_bytes);
        assert_int_equal(tensor_format_read_row(&m, 1, out, &err), 0);
        assert_int_equal(tensor_format_read_row(&m, 2, out, &err), HELM_E_FORMAT);
        m.bytes--;
        assert_int_equal(tensor_format_read_row(&m, 1, out, &err), HELM_E_FORMAT);
        assert_non_null(strstr(err.text, traits->name));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(values_are_those_of_gguf),
                                       cmocka_unit_test(odd_scales), cmocka_unit_test(registry)};
    return cmocka_run_group_tests_name("formats/blocks_grid", tests, NULL, NULL);
}
