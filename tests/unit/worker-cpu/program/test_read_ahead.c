/* Unit tests of worker-cpu/program/read_ahead.c: what is tried, what it leaves, and that no result depends on
 * it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "worker-cpu/local.h"

static struct local *open_demo(bool pack, struct helm_err *err)
{
    struct local *local = calloc(1, sizeof *local);
    const struct local_options options = {.folder = "tools/models/demo",
                                          .pack_cpu = pack,
                                          .kv_dtype = KV_F16,
                                          .threads = 2,
                                          .slots = 1,
                                          .context_tokens = 64,
                                          .step_tokens = 16};
    assert_non_null(local);
    if (local_open(&options, local, err)) fail_msg("%s", err->text);
    return local;
}

/* A step of one token at the sequence's begin: its logits. */
static float *logits_of(struct local *local, struct helm_err *err)
{
    const struct step_row row = {.slot = 0, .start = 0, .count = 1, .flags = STEP_ROW_SAMPLE};
    const struct step_result *result;
    const size_t bytes = local->engine.model.config.vocab * sizeof(float);
    float *logits = malloc(bytes);
    arena_history_of(&local->arena, 0)[0] = 7;
    if (local_step(local, &row, 1, &result, err)) fail_msg("%s", err->text);
    assert_int_equal(result->row[0].status, STEP_ROW_OK);
    assert_non_null(logits);
    return memcpy(logits, arena_logits_of(&local->arena, 0), bytes);
}

static void choose(struct local *local, uint64_t least, struct read_ahead *found)
{
    struct engine *e = &local->engine;
    read_ahead_choose(&e->run, &e->programs[LINEAR_EXACT].tier[0][OP_TIER_ONE],
                      &e->programs[LINEAR_EXACT].head_one, least, found);
}

static void small_models_are_not_tried(void **state)
{
    (void)state;
    struct helm_err err = {0};
    struct local *local = open_demo(false, &err);
    const uint32_t usual = gemv_reads_choose().far;
    assert_true(local->engine.read_ahead.near_rate == 0 && local->engine.read_ahead.far_rate == 0);
    assert_int_equal(local->engine.run.reads.gemv.far, usual);
    local_close(local);
    free(local);
}

static void what_is_tried_is_kept_and_changes_no_result(void **state)
{
    (void)state;
    struct helm_err err = {0};
    for (int pack = 0; pack < 2; pack++) {
        if (pack && !linear_pays(FORMAT_BF16_PACKED, cpu_features())) continue;
        struct local *local = open_demo(pack, &err);
        struct run *run = &local->engine.run;
        float *before = logits_of(local, &err);
        struct read_ahead found;
        choose(local, 0, &found);
        assert_true(found.near_rate > 1e6 && found.far_rate > 1e6); /* a byte a microsecond */
        const uint32_t chosen = run->reads.gemv.far;
        assert_true(chosen == 0 || chosen == GEMV_FAR);
        /* the clearly faster way is the one to choose */
        if (found.far_rate > 1.1 * found.near_rate) assert_int_equal(chosen, GEMV_FAR);
        if (found.near_rate > 1.1 * found.far_rate) assert_int_equal(chosen, 0);
        for (uint32_t far = 0; far <= GEMV_FAR; far += GEMV_FAR) {
            run->reads.gemv.far = far;
            float *after = logits_of(local, &err);
            assert_memory_equal(before, after, local->engine.model.config.vocab * sizeof(float));
            free(after);
        }
        /* it stays when a run is made anew */
        run->reads.gemv.far = chosen ? 0 : GEMV_FAR;
        if (engine_prepare(&local->engine, NULL, &err)) fail_msg("%s", err.text);
        assert_int_equal(run->reads.gemv.far, chosen ? 0 : GEMV_FAR);
        free(before);
        local_close(local);
        free(local);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(small_models_are_not_tried),
        cmocka_unit_test(what_is_tried_is_kept_and_changes_no_result),
    };
    return cmocka_run_group_tests_name("worker-cpu/read_ahead", tests, NULL, NULL);
}
