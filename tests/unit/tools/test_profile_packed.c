/* The engine that helm-profile measures packed weights with: an engine's layers once more, packed as far as
 * trained weights are, and programs over them with the same entries; nothing on processors without kernels
 * for them.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "common/base/cpu.h"
#include "common/formats/packed.h"
#include "tools/profile/profile_tool.h"
#include "common/cpu/kernels/linear.h"

#define THREADS 2
#define TOKENS  40

/* An engine of a folder, or of a model that was made. */
static void open_engine(const char *folder, struct model *made, struct local *local)
{
    struct helm_err err = {0};
    const struct local_options options = {.folder = folder,
                                          .made = made,
                                          .blank = made != NULL,
                                          .kv_dtype = KV_F16,
                                          .threads = THREADS,
                                          .slots = 1,
                                          .context_tokens = 64,
                                          .step_tokens = TOKENS};
    if (local_open(&options, local, &err)) fail_msg("%s", err.text);
}

/* Bytes of weights that a step of `tokens` tokens read. */
static uint64_t step(struct local *local, uint32_t tokens)
{
    const struct step_row row = {.start = 0, .count = tokens};
    const struct step_result *result;
    struct helm_err err = {0};
    if (local_step(local, &row, 1, &result, &err)) fail_msg("%s", err.text);
    return result->weight_bytes;
}

static void check_same_entries(const struct program *a, const struct program *b)
{
    assert_int_equal(a->count, b->count);
    for (uint32_t i = 0; i < a->count; i++) {
        assert_int_equal(a->entry[i].kind, b->entry[i].kind);
        assert_int_equal(a->entry[i].layer, b->entry[i].layer);
        if (a->entry[i].kind != OP_LINEAR) continue;
        assert_int_equal(a->entry[i].segment[0].matrix.format, FORMAT_BF16);
        assert_int_equal(b->entry[i].segment[0].matrix.format, FORMAT_BF16_PACKED);
    }
}

static void layers_are_packed(void **state)
{
    (void)state;
    struct model model;
    struct local local;
    struct helm_err err = {0};
    const struct profile_shape shape = {.size = "0.6b", .layers = 3, .layer_bytes = 31457280};
    if (profile_shape_make(&shape, &model, &err)) fail_msg("%s", err.text);
    open_engine(NULL, &model, &local);
    const uint64_t plain[] = {step(&local, 1), step(&local, 8), step(&local, TOKENS)};
    for (uint32_t layers = 1; layers <= shape.layers; layers++) {
        struct profile_packed *packed = NULL;
        if (profile_packed_open(&local.engine, layers, &packed, &err)) fail_msg("%s", err.text);
        assert_int_equal(packed != NULL, linear_pays(FORMAT_BF16_PACKED, cpu_features()));
        if (!packed) continue;
        const double part = profile_packed_part(packed);
        assert_true(part > 0.69 && part < 0.72);
        assert_float_equal((double)profile_packed_bytes(packed), part * (double)(layers * shape.layer_bytes),
                           1);
        for (int turn = 0; turn < 2; turn++) { /* again and again */
            struct program own[OP_TIER_COUNT];
            for (int t = 0; t < OP_TIER_COUNT; t++) own[t] = local.engine.programs[LINEAR_EXACT].tier[0][t];
            profile_packed_swap(packed);
            for (int t = 0; t < OP_TIER_COUNT; t++)
                check_same_entries(&own[t], &local.engine.programs[LINEAR_EXACT].tier[0][t]);
            const uint64_t bytes = step(&local, 1);
            assert_true((double)bytes > 0.69 * (double)plain[0] && (double)bytes < 0.75 * (double)plain[0]);
            assert_int_equal(step(&local, 8), bytes);
            assert_int_equal(step(&local, TOKENS), bytes);
            profile_packed_swap(packed);
            assert_int_equal(step(&local, 1), plain[0]);
            assert_int_equal(step(&local, 8), plain[1]);
            assert_int_equal(step(&local, TOKENS), plain[2]);
        }
        profile_packed_close(packed);
    }
    profile_packed_close(NULL);
    local_close(&local);
}

/* Columns that the kernels do not take: nothing to measure, and no failure. */
static void shapes_that_do_not_fit_are_left_out(void **state)
{
    (void)state;
    struct local local;
    struct profile_packed *packed = NULL;
    struct helm_err err = {0};
    open_engine("tests/data/golden/qwen3", NULL, &local);
    bool fits = true;
    for (uint32_t i = 0; i < local.engine.model.tensor_count; i++)
        fits &= local.engine.model.tensors[i].rows == 1 ||
                local.engine.model.tensors[i].cols % PACKED_CPU_COLS == 0;
    assert_false(fits);
    assert_int_equal(profile_packed_open(&local.engine, 1, &packed, &err), 0);
    assert_null(packed);
    local_close(&local);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(layers_are_packed),
        cmocka_unit_test(shapes_that_do_not_fit_are_left_out),
    };
    return cmocka_run_group_tests_name("profile/packed", tests, NULL, NULL);
}
