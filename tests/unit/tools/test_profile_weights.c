/* How many weights helm-profile measures with: past every cache, as large as a real step's where that fits,
 * and no more than memory allows. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "common/base/units.h"
#include "tools/profile/profile_tool.h"

static void test_weights_pass_the_caches(void **state)
{
    (void)state;
    static const uint64_t caches[] = {MIB, 16 * MIB, 32 * MIB, 256 * MIB, 300 * MIB, 1152 * MIB, 4 * GIB};
    for (size_t i = 0; i < sizeof caches / sizeof *caches; i++)
        for (uint32_t cpus = 1; cpus <= 256; cpus *= 2)
            for (int quick = 0; quick < 2; quick++) {
                uint64_t bytes = profile_weights_past(caches[i], cpus, quick);
                assert_true(bytes >= PROFILE_CACHES_LEAST * caches[i]);
                assert_true(bytes <= 8 * GIB || bytes == PROFILE_CACHES_LEAST * caches[i]);
                assert_true(quick || bytes >= profile_weights_past(caches[i], cpus, true));
            }
    /* the machine whose 600 MiB came from cache to a third */
    assert_int_equal(profile_weights_past(300 * MIB, 16, true), 3600 * MIB);
    assert_int_equal(profile_weights_past(300 * MIB, 16, false), 4800 * MIB);
    assert_int_equal(profile_weights_past(300 * MIB, 2, true), GIB);
    /* small caches: what it takes to be like weights at all */
    assert_int_equal(profile_weights_past(8 * MIB, 16, true), 256 * MIB);
    assert_int_equal(profile_weights_past(8 * MIB, 16, false), 1152 * MIB);
    assert_true(profile_weights_past(0, 16, true) > profile_weights_past(8 * MIB, 16, true)); /* unknown */
}

static void test_shapes_hold_what_is_wanted(void **state)
{
    (void)state;
    struct helm_err err = {0};
    struct profile_shape shape;
    static const uint64_t wanted[] = {256 * MIB, 384 * MIB, 900 * MIB, 1152 * MIB, 3600 * MIB, 12 * GIB};
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++) {
        assert_int_equal(profile_shape_choose(wanted[i], 64 * GIB, &shape, &err), 0);
        uint64_t bytes = shape.layers * shape.layer_bytes;
        assert_true(shape.layers >= 2 && bytes >= wanted[i] && bytes < wanted[i] + shape.layer_bytes);
    }
    assert_int_equal(profile_shape_choose(3600 * MIB, 64 * GIB, &shape, &err), 0);
    assert_string_equal(shape.size, "8b"); /* matrices of a hundred MB, not more of smaller ones */
    /* memory is the limit: as much of what is wanted as fits, which is then too little for these caches */
    for (uint64_t most = 64 * MIB; most <= 4 * GIB; most += 61 * MIB) {
        assert_int_equal(profile_shape_choose(3600 * MIB, most, &shape, &err), 0);
        assert_true(shape.layers >= 2 && shape.layers * shape.layer_bytes <= most);
        assert_true(3 * shape.layers * shape.layer_bytes >= 2 * (most < 3600 * MIB ? most : 3600 * MIB));
    }
    assert_int_equal(profile_shape_choose(3600 * MIB, 40 * MIB, &shape, &err), HELM_E_CAPACITY);
    assert_non_null(strstr(err.text, "40.00 MiB"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_weights_pass_the_caches),
        cmocka_unit_test(test_shapes_hold_what_is_wanted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
