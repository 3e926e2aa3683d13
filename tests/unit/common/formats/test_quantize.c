/* Values to blocks of few bits: the error over matrices of two kinds is no larger than llama.cpp's on the
 * same values, every variant writes the same bytes, importance makes what matters better, and what has no
 * code is refused. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/cpu.h"
#include "common/formats/quantize.h"
#include "tests/unit/common/formats/quantize_values.h"

/* Relative RMS errors, of values alike and of values with outliers (quantize_values.h). `reference`: of
 * blocks made by ggml's quantizers (ggml_quantize_chunk, commit d99724f2) of the same values. */
static const struct {
    enum tensor_format format;
    double reference[2];
} errors[] = {
    {FORMAT_Q4_0, {0.08534, 0.10941}},   {FORMAT_Q4_1, {0.07760, 0.11395}},
    {FORMAT_Q5_0, {0.04247, 0.06029}},   {FORMAT_Q5_1, {0.03766, 0.05419}},
    {FORMAT_Q2_K, {0.29507, 0.40200}},   {FORMAT_Q3_K, {0.14994, 0.15287}},
    {FORMAT_Q4_K, {0.07095, 0.08961}},   {FORMAT_Q5_K, {0.03589, 0.04914}},
    {FORMAT_Q6_K, {0.01760, 0.02457}},   {FORMAT_IQ4_NL, {0.07615, 0.09122}},
    {FORMAT_IQ4_XS, {0.07674, 0.09237}}, {FORMAT_MXFP4, {0.11448, 0.14066}},
};
#define FORMATS (sizeof errors / sizeof *errors)

static float value[QUANTIZE_ROWS * QUANTIZE_COLS], back[QUANTIZE_ROWS * QUANTIZE_COLS];
static uint8_t blocks[2 * sizeof value], other[2 * sizeof value];

static void decode(enum tensor_format format, const uint8_t *bytes)
{
    struct helm_err err = {0};
    const struct tensor_matrix m = {format, bytes, tensor_format_bytes(format, QUANTIZE_ROWS, QUANTIZE_COLS),
                                    QUANTIZE_ROWS, QUANTIZE_COLS};
    for (uint32_t r = 0; r < QUANTIZE_ROWS; r++)
        assert_int_equal(tensor_format_read_row(&m, r, back + (size_t)r * QUANTIZE_COLS, &err), 0);
}

/* The relative error of what was decoded, columns weighted. */
static double error_of(const float *importance)
{
    double off = 0, all = 0;
    for (size_t i = 0; i < QUANTIZE_ROWS * QUANTIZE_COLS; i++) {
        const double w = importance ? (double)importance[i % QUANTIZE_COLS] : 1, x = (double)value[i],
                     d = (double)back[i] - x;
        off += w * d * d;
        all += w * x * x;
    }
    return sqrt(off / all);
}

static int quantize(enum tensor_format format, const float *importance, uint8_t *out, struct helm_err *err)
{
    const struct tensor_rows rows = {FORMAT_F32, format, QUANTIZE_ROWS, QUANTIZE_COLS, value};
    return quantize_rows(&rows, importance, out, err);
}

static void errors_are_no_larger_than_the_reference(void **state)
{
    (void)state;
    struct helm_err err = {0};
    for (int kind = 0; kind < 2; kind++) {
        quantize_fill(value, kind);
        for (size_t f = 0; f < FORMATS; f++) {
            assert_int_equal(quantize(errors[f].format, NULL, blocks, &err), 0);
            decode(errors[f].format, blocks);
            const double error = error_of(NULL);
            print_message("%s of kind %d: %.5f, reference %.5f\n", tensor_format_name(errors[f].format), kind,
                          error, errors[f].reference[kind]);
            assert_true(error <= errors[f].reference[kind]);
        }
    }
}

static void variants_write_the_same_bytes(void **state)
{
    (void)state;
    static const struct {
        quantize_blocks *quantize;
        unsigned needs;
    } variants[] = {{quantize_avx2, CPU_AVX2}, {quantize_avx512, CPU_AVX512}};
    static float importance[QUANTIZE_COLS];
    uint32_t compared = 0;
    quantize_fill(value, 1);
    for (int i = 0; i < QUANTIZE_COLS; i++) importance[i] = (float)(1 + i % 7);
    for (size_t f = 0; f < FORMATS; f++)
        for (int weighted = 0; weighted < 2; weighted++) {
            /* no whole number of batches: the last blocks are some of sixteen */
            struct quantize_values v = {value, DTYPE_F32, QUANTIZE_COLS * (QUANTIZE_ROWS - 1) + 256,
                                        QUANTIZE_COLS, weighted ? importance : NULL};
            const size_t bytes = tensor_format_bytes(errors[f].format, 1, v.count);
            memset(blocks, 0x5a, bytes + 1);
            assert_int_equal(quantize_ref(errors[f].format, &v, blocks), v.count);
            assert_int_equal(blocks[bytes], 0x5a);
            for (size_t i = 0; i < sizeof variants / sizeof *variants; i++) {
                if (!(cpu_features() & variants[i].needs)) continue;
                memset(other, 0x5a, bytes + 1);
                assert_int_equal(variants[i].quantize(errors[f].format, &v, other), v.count);
                assert_memory_equal(blocks, other, bytes + 1);
                compared++;
            }
        }
    print_message("%u comparisons with the reference variant\n", compared);
}

/* A twentieth of the columns a hundred times as important: their error falls, weighted the whole falls. */
static void importance_is_heeded(void **state)
{
    (void)state;
    struct helm_err err = {0};
    static float importance[QUANTIZE_COLS];
    quantize_fill(value, 0);
    for (int i = 0; i < QUANTIZE_COLS; i++) importance[i] = i % 20 ? 1 : 100;
    for (size_t f = 0; f < FORMATS; f++) {
        const enum tensor_format format = errors[f].format;
        assert_int_equal(quantize(format, NULL, blocks, &err), 0);
        decode(format, blocks);
        const double without = error_of(importance);
        assert_int_equal(quantize(format, importance, blocks, &err), 0);
        decode(format, blocks);
        /* MXFP4 chooses among powers of two only. */
        assert_true(error_of(importance) < (format == FORMAT_MXFP4 ? 1 : 0.93) * without);
    }
    memset(importance, 0, sizeof importance); /* says nothing: defined, finite */
    for (size_t f = 0; f < FORMATS; f++) {
        assert_int_equal(quantize(errors[f].format, importance, blocks, &err), 0);
        decode(errors[f].format, blocks);
        assert_true(isfinite(error_of(NULL)));
    }
}

static void what_cannot_be_coded_is_refused(void **state)
{
    (void)state;
    static const float bad[] = {NAN, INFINITY, -INFINITY, 65520, -1e30f};
    char where[64];
    quantize_fill(value, 0);
    for (size_t f = 0; f < FORMATS; f++)
        for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
            struct helm_err err = {0};
            const size_t at = (i + 1) * QUANTIZE_COLS + 3 * i;
            const float kept = value[at];
            value[at] = bad[i];
            assert_int_equal(quantize(errors[f].format, NULL, blocks, &err), HELM_E_FORMAT);
            snprintf(where, sizeof where, "row %zu has", i + 1);
            assert_non_null(strstr(err.text, where));
            value[at] = kept;
        }
}

/* Extremes that have a code: zeros stay zeros, the largest give values that are close; those too small for
 * scales of fp16 may become 0. */
static void extremes_are_finite(void **state)
{
    (void)state;
    static const float scale[] = {0, 1, 1e-4f, 1e-9f, 1e-30f, 1e-42f, 65504};
    struct helm_err err = {0};
    for (size_t f = 0; f < FORMATS; f++)
        for (size_t s = 0; s < sizeof scale / sizeof *scale; s++)
            for (int alike = 0; alike < 2; alike++) {
                for (size_t i = 0; i < QUANTIZE_ROWS * QUANTIZE_COLS; i++)
                    value[i] = scale[s] * (alike ? 1 : (float)((int)(i * 7 % 15) - 7) / 7);
                assert_int_equal(quantize(errors[f].format, NULL, blocks, &err), 0);
                decode(errors[f].format, blocks);
                for (size_t i = 0; i < QUANTIZE_ROWS * QUANTIZE_COLS; i++)
                    assert_true(fabsf(back[i] - value[i]) <= scale[s] / (scale[s] < 1e-4f ? 1 : 2));
                /* a constant needs one number and one scale, of as many bits as that has */
                if (alike && scale[s] >= 1 && errors[f].format != FORMAT_MXFP4)
                    assert_true(error_of(NULL) < 0.01);
            }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(errors_are_no_larger_than_the_reference),
        cmocka_unit_test(variants_write_the_same_bytes),
        cmocka_unit_test(importance_is_heeded),
        cmocka_unit_test(what_cannot_be_coded_is_refused),
        cmocka_unit_test(extremes_are_finite),
    };
    return cmocka_run_group_tests_name("formats/quantize", tests, NULL, NULL);
}
