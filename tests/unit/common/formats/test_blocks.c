/* GGUF's blocks of few bits: every value of random blocks, with scales that are NaN, infinite, subnormal and
 * zero, is what a second decoder says, which takes one value at a time and computes in double. */
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

#define BLOCKS 3000

static double half_at(const uint8_t *at)
{
    return (double)convert_f16_f32((uint16_t)(at[0] | at[1] << 8));
}
static int bits(unsigned value, int from, int count)
{
    return (int)(value >> from & ((1u << count) - 1));
}
static const int iq4[] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};

/* Value i of a block of 32. */
static double small_value(enum tensor_format format, const uint8_t *b, int i)
{
    static const double e2m1[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
    const int at = i % 16, from = i < 16 ? 0 : 4;
    switch (format) {
    case FORMAT_Q4_0:
        return half_at(b) * (bits(b[2 + at], from, 4) - 8);
    case FORMAT_Q4_1:
        return half_at(b) * bits(b[4 + at], from, 4) + half_at(b + 2);
    case FORMAT_Q5_0:
        return half_at(b) * (bits(b[6 + at], from, 4) + 16 * bits(b[2 + i / 8], i % 8, 1) - 16);
    case FORMAT_Q5_1:
        return half_at(b) * (bits(b[8 + at], from, 4) + 16 * bits(b[4 + i / 8], i % 8, 1)) + half_at(b + 2);
    case FORMAT_IQ4_NL:
        return half_at(b) * iq4[bits(b[2 + at], from, 4)];
    case FORMAT_MXFP4: {
        const int q = bits(b[1 + at], from, 4);
        return ldexp(q & 8 ? -e2m1[q & 7] : e2m1[q], b[0] - 127);
    }
    default:
        fail_msg("no such format");
        return 0;
    }
}

/* The 6-bit scale (or smallest value, `least`) of run `run` of Q4_K and Q5_K. */
static int packed_six(const uint8_t *p, int run, int least)
{
    if (run < 4) return p[run + 4 * least] & 63;
    const int low = bits(p[run + 4], 4 * least, 4);
    return low | (p[run - 4 + 4 * least] >> 6) << 4;
}

/* Value i of a block of 256. */
static double large_value(enum tensor_format format, const uint8_t *b, int i)
{
    const int half = i / 128, j = i % 128 / 32, l = i % 32, group = i / 16, run = i / 32;
    const int nibble = run % 2 ? 4 : 0;
    switch (format) {
    case FORMAT_Q2_K:
        return half_at(b + 80) * (b[group] & 15) * bits(b[16 + half * 32 + l], 2 * j, 2) -
               half_at(b + 82) * (b[group] >> 4);
    case FORMAT_Q3_K: {
        const uint8_t *s = b + 96;
        const int low = group < 8 ? s[group] & 15 : s[group - 8] >> 4;
        const int scale = low | bits(s[8 + group % 4], group / 4 * 2, 2) << 4;
        const int q = bits(b[32 + half * 32 + l], 2 * j, 2) - (bits(b[l], run, 1) ? 0 : 4);
        return half_at(b + 108) * (scale - 32) * q;
    }
    case FORMAT_Q4_K:
        return half_at(b) * packed_six(b + 4, run, 0) * bits(b[16 + run / 2 * 32 + l], nibble, 4) -
               half_at(b + 2) * packed_six(b + 4, run, 1);
    case FORMAT_Q5_K:
        return half_at(b) * packed_six(b + 4, run, 0) *
                   (bits(b[48 + run / 2 * 32 + l], nibble, 4) + 16 * bits(b[16 + l], run, 1)) -
               half_at(b + 2) * packed_six(b + 4, run, 1);
    case FORMAT_Q6_K: {
        const int low = bits(b[half * 64 + j % 2 * 32 + l], j / 2 * 4, 4);
        const int q = low + 16 * bits(b[128 + half * 32 + l], 2 * j, 2);
        return half_at(b + 208) * (int8_t)b[192 + group] * (q - 32);
    }
    case FORMAT_IQ4_XS: {
        const int scale =
            bits(b[4 + run / 2], run % 2 * 4, 4) + 16 * bits((unsigned)(b[2] | b[3] << 8), 2 * run, 2);
        return half_at(b) * (scale - 32) * iq4[bits(b[8 + run * 16 + l % 16], l < 16 ? 0 : 4, 4)];
    }
    case FORMAT_NVFP4: { /* the scale of a group is rounded to fp32 */
        static const double e2m1[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
        const int q = bits(b[20 + run * 16 + l % 16], l < 16 ? 0 : 4, 4), e = bits(b[4 + group], 3, 4),
                  m = bits(b[4 + group], 0, 3);
        float by;
        memcpy(&by, b, sizeof by);
        const float scale = (float)(by * (e ? ldexp(8 + m, e - 10) : ldexp(m, -9)));
        return (q & 8 ? -e2m1[q & 7] : e2m1[q]) * (double)scale;
    }
    default:
        fail_msg("no such format");
        return 0;
    }
}

/* Where a block's fp16 numbers stand. */
static const struct {
    enum tensor_format format;
    int half[2];
} halves[] = {{FORMAT_Q4_0, {0, -1}},   {FORMAT_Q4_1, {0, 2}},    {FORMAT_Q5_0, {0, -1}},
              {FORMAT_Q5_1, {0, 2}},    {FORMAT_Q2_K, {80, 82}},  {FORMAT_Q3_K, {108, -1}},
              {FORMAT_Q4_K, {0, 2}},    {FORMAT_Q5_K, {0, 2}},    {FORMAT_Q6_K, {208, -1}},
              {FORMAT_IQ4_NL, {0, -1}}, {FORMAT_IQ4_XS, {0, -1}}, {FORMAT_MXFP4, {-1, -1}},
              {FORMAT_NVFP4, {-1, -1}}};

static uint32_t seed = 1;
static uint32_t random_bits(void)
{
    seed = seed * 1664525u + 1013904223u;
    return seed >> 8;
}

static void random_block(size_t f, uint8_t *block)
{
    static const uint16_t special[] = {0x7c00, 0xfc00, 0x7e00, 0xfd55, 0x7bff, 0xfbff,
                                       0,      0x8000, 0x0001, 0x83ff, 0x3c00};
    const uint32_t bytes = tensor_format_of(halves[f].format)->block_bytes;
    for (uint32_t i = 0; i < bytes; i++) block[i] = (uint8_t)random_bits();
    for (int h = 0; h < 2; h++) {
        if (halves[f].half[h] < 0 || random_bits() % 2) continue;
        const uint16_t value = special[random_bits() % (sizeof special / sizeof *special)];
        memcpy(block + halves[f].half[h], &value, sizeof value);
    }
    if (halves[f].format == FORMAT_NVFP4) {
        static const float own[] = {INFINITY, NAN, 0, -1, 1, 0x1.fffffep-9f, 0x1.abcdeep20f};
        memcpy(block, &own[random_bits() % (sizeof own / sizeof *own)], sizeof *own);
    }
    if (halves[f].format == FORMAT_MXFP4 && random_bits() % 4 == 0)
        block[0] = (uint8_t)(random_bits() % 2 ? random_bits() % 4 : 252 + random_bits() % 4);
}

static void check_format(size_t f)
{
    const struct tensor_format_traits *traits = tensor_format_of(halves[f].format);
    const uint32_t values = traits->block_values;
    struct helm_err err = {0};
    uint32_t nans = 0, infinities = 0, finite = 0;
    uint8_t *bytes = malloc(2 * traits->block_bytes); /* two rows of one block, exactly */
    float out[256];
    assert_non_null(bytes);
    assert_true(values == 32 || values == 256);
    const struct tensor_matrix m = {halves[f].format, bytes, 2 * traits->block_bytes, 2, values};
    for (int round = 0; round < BLOCKS; round++) {
        random_block(f, bytes);
        random_block(f, bytes + traits->block_bytes);
        for (uint32_t row = 0; row < 2; row++) {
            const uint8_t *block = bytes + row * traits->block_bytes;
            assert_int_equal(tensor_format_read_row(&m, row, out, &err), 0);
            for (uint32_t i = 0; i < values; i++) {
                const float expected = (float)(values == 32 ? small_value(m.format, block, (int)i)
                                                            : large_value(m.format, block, (int)i));
                if (isnan(expected) ? !isnan(out[i]) : !(out[i] == expected))
                    fail_msg("%s: value %u is %g, not %g", traits->name, i, (double)out[i], (double)expected);
                nans += isnan(expected) != 0;
                infinities += isinf(expected) != 0;
                finite += isfinite(expected) != 0;
            }
        }
    }
    assert_true(finite > 10000 && infinities > 100);
    assert_true(nans > 100 || m.format == FORMAT_MXFP4);
    free(bytes);
}

static void test_values(void **state)
{
    (void)state;
    for (size_t f = 0; f < sizeof halves / sizeof *halves; f++) check_format(f);
}

/* Every format of blocks is tested here but Q8_0 and those of grids (test_blocks_grid.c), which are only
 * read; what is wrong in a matrix is refused. */
static void test_registry(void **state)
{
    (void)state;
    uint32_t found = 0;
    struct helm_err err = {0};
    float out[512];
    static uint8_t bytes[4096];
    for (int f = 0; f < FORMAT_COUNT; f++) {
        const struct tensor_format_traits *traits = tensor_format_of((enum tensor_format)f);
        found += f != FORMAT_Q8_0 && traits->block_values > 1 && (traits->write || f == FORMAT_NVFP4);
    }
    assert_int_equal(found, sizeof halves / sizeof *halves);
    for (size_t f = 0; f < found; f++) {
        const enum tensor_format format = halves[f].format;
        const struct tensor_format_traits *traits = tensor_format_of(format);
        const uint32_t v = traits->block_values;
        assert_int_equal(tensor_format_bytes(format, 3, 5 * v), 15 * traits->block_bytes);
        assert_true(tensor_format_takes(format, 1, v));
        assert_false(tensor_format_takes(format, 1, v / 2));
        assert_false(tensor_format_takes(format, 1, v + v / 2));
        struct tensor_matrix m = {format, bytes, 2 * traits->block_bytes, 2, v};
        assert_int_equal(tensor_format_read_row(&m, 1, out, &err), 0);
        assert_int_equal(tensor_format_read_row(&m, 2, out, &err), HELM_E_FORMAT);
        m.bytes--;
        assert_int_equal(tensor_format_read_row(&m, 1, out, &err), HELM_E_FORMAT);
        assert_non_null(strstr(err.text, traits->name));
        m.cols = v + 1;
        assert_int_equal(tensor_format_read_row(&m, 0, out, &err), HELM_E_FORMAT);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_values), cmocka_unit_test(test_registry)};
    return cmocka_run_group_tests_name("formats/blocks", tests, NULL, NULL);
}
