/* What helm-profile measures packed weights with: whole layers of a real shape, about as large as asked for,
 * packed as far as trained weights are; nothing on processors without kernels for them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "common/cpu.h"
#include "tools/profile/profile_tool.h"
#include "worker-cpu/kernels/packed_kernels.h"

#define THREADS 2

static void open_model(struct profile_shape *shape, struct model *model)
{
    char folder[PROFILE_FOLDER_TEXT];
    struct helm_err err = {0};
    *shape = (struct profile_shape){.size = "0.6b", .layers = 2, .layer_bytes = 31457280};
    if (profile_checkpoint_make(shape, folder, &err) || model_read(folder, model, &err))
        fail_msg("%s", err.text);
    profile_checkpoint_remove(folder);
}

static void whole_layers_are_packed(void **state)
{
    (void)state;
    struct profile_shape shape;
    struct model model;
    struct pool *pool;
    struct helm_err err = {0};
    open_model(&shape, &model);
    assert_int_equal(pool_create(THREADS, NULL, POOL_SPIN_US_DEFAULT, &pool, &err), 0);
    for (uint64_t layers = 0; layers < 4; layers++) { /* less than one is one */
        struct profile_packed *packed = NULL;
        if (profile_packed_open(&model, pool, -1, layers * shape.layer_bytes + 1, &packed, &err))
            fail_msg("%s", err.text);
        assert_int_equal(packed != NULL, packed_cpu_can(cpu_features()));
        if (!packed) continue;
        const uint64_t whole = layers ? layers : 1;
        assert_int_equal(profile_packed_bytes(packed), whole * shape.layer_bytes);
        assert_int_equal(profile_packed_products(packed), 4 * whole);
        assert_true(profile_packed_part(packed) > 0.69 && profile_packed_part(packed) < 0.72);
        for (int pass = 0; pass < 2; pass++) /* in any order, again and again */
            assert_true(profile_packed_gemv(packed) > 0 && profile_packed_unpack(packed) > 0 &&
                        profile_packed_gemv(packed) > 0);
        profile_packed_close(packed);
    }
    profile_packed_close(NULL);
    pool_destroy(pool);
    model_free(&model);
}

/* Columns that the kernels do not take: nothing to measure, and no failure. */
static void shapes_that_do_not_fit_are_left_out(void **state)
{
    (void)state;
    struct model model;
    struct pool *pool;
    struct profile_packed *packed = NULL;
    struct helm_err err = {0};
    if (model_read("tests/data/demo", &model, &err)) fail_msg("%s", err.text);
    bool fits = true;
    for (uint32_t i = 0; i < model.tensor_count; i++)
        fits &= model.tensors[i].rows == 1 || model.tensors[i].cols % PACKED_CPU_COLS == 0;
    assert_false(fits);
    assert_int_equal(pool_create(THREADS, NULL, POOL_SPIN_US_DEFAULT, &pool, &err), 0);
    assert_int_equal(profile_packed_open(&model, pool, -1, 1 << 20, &packed, &err), 0);
    assert_null(packed);
    pool_destroy(pool);
    model_free(&model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(whole_layers_are_packed),
        cmocka_unit_test(shapes_that_do_not_fit_are_left_out),
    };
    return cmocka_run_group_tests_name("profile/packed", tests, NULL, NULL);
}
