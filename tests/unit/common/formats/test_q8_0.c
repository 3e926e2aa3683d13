/* Q8_0 as GGUF's files have it: where scale and numbers stand, how they are rounded, what cannot be written.
 * That it reads back within its error is tested with all formats (test_tensor_format.c). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>

#include "common/formats/q8_0.h"
#include "common/formats/tensor_format.h"

static int write_block(const float value[Q8_0_VALUES], unsigned char out[Q8_0_BYTES], struct helm_err *err)
{
    uint64_t bytes = 0;
    int rc = tensor_format_q8_0.write(value, DTYPE_F32, 1, Q8_0_VALUES, out, &bytes, err);
    if (!rc) assert_int_equal(bytes, Q8_0_BYTES);
    return rc;
}

static uint16_t scale_of(const unsigned char block[Q8_0_BYTES])
{
    return (uint16_t)(block[0] | block[1] << 8);
}

static void numbers_are_rounded_to_the_nearest(void **state)
{
    (void)state;
    struct helm_err err = {0};
    unsigned char block[Q8_0_BYTES];
    /* 127 makes the scale 1; halves go away from 0 */
    const float value[Q8_0_VALUES] = {-127, 0, 1, -1, 0.5f, -0.5f, 0.49f, 2.5f, -2.5f, 126.5f, 64, -64.4f};
    static const int8_t expected[Q8_0_VALUES] = {-127, 0, 1, -1, 1, -1, 0, 3, -3, 127, 64, -64};
    assert_int_equal(write_block(value, block, &err), 0);
    assert_int_equal(scale_of(block), 0x3c00);
    assert_memory_equal(block + 2, expected, sizeof expected);
    for (size_t i = 0; i < Q8_0_VALUES; i++) assert_true(q8_0_value(block, i) == (float)expected[i]);
}

/* The quotient is by the scale as fp32, the file's scale is rounded to fp16. */
static void scale_is_rounded_after_the_numbers(void **state)
{
    (void)state;
    struct helm_err err = {0};
    unsigned char block[Q8_0_BYTES];
    float value[Q8_0_VALUES] = {0};
    const float scale = 1.0f + 0x1p-12f; /* between two fp16 numbers, nearer to 1 */
    value[0] = 127 * scale;
    value[1] = 100.5f * scale * (1 + 0x1p-20f); /* just above the half, by the exact scale */
    assert_int_equal(write_block(value, block, &err), 0);
    assert_int_equal(scale_of(block), 0x3c00);
    assert_int_equal((int8_t)block[2], 127);
    assert_int_equal((int8_t)block[3], 101);
}

static void blocks_of_nothing_are_zero(void **state)
{
    (void)state;
    struct helm_err err = {0};
    unsigned char block[Q8_0_BYTES];
    static const unsigned char zero[Q8_0_BYTES];
    const float none[Q8_0_VALUES] = {0};
    assert_int_equal(write_block(none, block, &err), 0);
    assert_memory_equal(block, zero, sizeof zero);
}

static void what_a_scale_cannot_hold_is_refused(void **state)
{
    (void)state;
    const float bad[] = {NAN, INFINITY, -INFINITY, 127 * 65520.0f};
    unsigned char block[Q8_0_BYTES];
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct helm_err err = {0};
        float value[Q8_0_VALUES] = {1, 2, 3};
        value[7] = bad[i];
        assert_int_equal(write_block(value, block, &err), HELM_E_FORMAT);
        assert_non_null(strstr(err.text, "row 0"));
    }
    struct helm_err err = {0};
    float value[Q8_0_VALUES] = {127 * 65504.0f};
    assert_int_equal(write_block(value, block, &err), 0);
    assert_true(q8_0_value(block, 0) == value[0]);
}

static void rows_are_whole_blocks(void **state)
{
    (void)state;
    assert_int_equal(tensor_format_of_file("Q8_0"), FORMAT_Q8_0);
    assert_int_equal(tensor_format_bytes(FORMAT_Q8_0, 3, 96), 3 * 3 * Q8_0_BYTES);
    assert_false(tensor_format_takes(FORMAT_Q8_0, 1, 33));
    assert_false(tensor_format_takes(FORMAT_Q8_0, 1, 16));
    assert_true(tensor_format_takes(FORMAT_Q8_0, 1, 32));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(numbers_are_rounded_to_the_nearest),
        cmocka_unit_test(scale_is_rounded_after_the_numbers),
        cmocka_unit_test(blocks_of_nothing_are_zero),
        cmocka_unit_test(what_a_scale_cannot_hold_is_refused),
        cmocka_unit_test(rows_are_whole_blocks),
    };
    return cmocka_run_group_tests_name("formats/q8_0", tests, NULL, NULL);
}
