/* Unit tests of daemon/planner/activations/: what is chosen by a profile's rates, which rates it is priced
 * by, what a verdict says of a plan, and verdicts as files: both ways, and what is refused. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "common/base/cpu.h"
#include "common/base/file.h"
#include "daemon/planner/activations/decision.h"
#include "tests/unit/common/base/tree.h"
#include "tests/unit/daemon/planner/made_up_model.h"
#include "tests/written_plans.h"

static const struct made_up_shape shape = {4, 512, 1024, 8, 4, 64, 2000, false};

struct stage {
    char root[TREE_PATH], key[DIGEST_TEXT];
    struct made_up made;
    struct model_shard shard;
    struct profile profile;
    struct plan plan;
    struct plan_unit unit[WRITTEN_UNITS(4)];
};

static void touch(const struct stage *s, const char *content, time_t time)
{
    const struct timespec times[2] = {{.tv_sec = time}, {.tv_sec = time}};
    char path[TREE_PATH + 32];
    snprintf(path, sizeof path, "%s/model.gguf", s->root);
    FILE *file = fopen(path, "we");
    assert_non_null(file);
    for (int i = 0; i < 300; i++) fputs(content, file);
    assert_int_equal(fclose(file), 0);
    assert_int_equal(utimensat(AT_FDCWD, path, times, 0), 0);
}

/* Matrices of layers in q4_k, the head in q6_k; the CPU twice as fast with int8 for the one, as fast for the
 * other. Layers 0 and 1 on the GPU. */
static int open_stage(void **state)
{
    struct stage *s = calloc(1, sizeof *s);
    if (!s || !made_up_open(&s->made, &shape)) return -1;
    tree_make(s->root);
    setenv("XDG_CACHE_HOME", s->root, 1);
    unsetenv("STATE_DIRECTORY");
    touch(s, "the very same weights", 1000);
    struct model *m = &s->made.model;
    for (uint32_t i = 0; i < m->tensor_count; i++) {
        struct model_tensor *t = &m->tensors[i];
        if (t->rows == 1) continue;
        t->format = t->role == TENSOR_HEAD || t->role == TENSOR_EMBED ? FORMAT_Q6_K : FORMAT_Q4_K;
        t->bytes = tensor_format_bytes(t->format, t->rows, t->cols);
    }
    snprintf(s->shard.file, sizeof s->shard.file, "model.gguf");
    m->folder = s->root;
    m->shards = &s->shard;
    m->shard_count = 1;
    s->profile = made_up_profile(&rates_h200);
    s->profile.format[FORMAT_Q4_K].cpu_gemv = made_up_value(20e9);
    s->profile.format[FORMAT_Q4_K].cpu_gemv_beside = made_up_value(18e9);
    s->profile.format[FORMAT_Q4_K].cpu_int8_gemv = made_up_value(40e9);
    s->profile.format[FORMAT_Q4_K].cpu_int8_gemv_beside = made_up_value(30e9);
    s->profile.format[FORMAT_Q6_K].cpu_gemv = made_up_value(25e9);
    s->plan = (struct plan){.layers = 4,
                            .step_tokens = 64,
                            .unit = units_of_letters(s->unit, 4, "ggggcccc", 8),
                            .head = PLAN_CPU0};
    *state = s;
    return 0;
}

static int close_stage(void **state)
{
    struct stage *s = *state;
    made_up_close(&s->made);
    tree_remove(s->root);
    free(s);
    return 0;
}

static void gain_is_of_the_models_own_formats(void **state)
{
    struct stage *s = *state;
    const struct model *m = &s->made.model;
    double bytes[2] = {0};
    for (uint32_t i = 0; i < m->tensor_count; i++)
        if (m->tensors[i].rows > 1 && m->tensors[i].role != TENSOR_EMBED)
            bytes[m->tensors[i].format == FORMAT_Q6_K] += (double)m->tensors[i].bytes;
    const double exact = bytes[0] / 20 + bytes[1] / 25, int8 = bytes[0] / 40 + bytes[1] / 25;
    assert_float_equal(activations_gain(m, &s->profile, PLAN_CPU0), exact / int8, 1e-6);
    assert_true(activations_gain(m, &s->profile, PLAN_GPU0) == 0); /* unmeasured */
    s->profile.format[FORMAT_Q4_K].cpu_int8_gemv = (struct profile_value){0};
    assert_true(activations_gain(m, &s->profile, PLAN_CPU0) == 0);
    s->profile.format[FORMAT_Q6_K].cpu_gemv = (struct profile_value){0};
    assert_true(activations_gain(m, &s->profile, PLAN_CPU0) == 0);
}

static void chosen_is_what_is_faster_or_asked_for(void **state)
{
    struct stage *s = *state;
    const bool can[PLAN_PROCESSORS] = {true, true}, cannot[PLAN_PROCESSORS] = {false};
    enum linear_inputs inputs[PLAN_PROCESSORS];
    activations_choose(ACTIVATIONS_AUTO, &s->made.model, &s->profile, can, inputs);
    assert_true(inputs[PLAN_CPU0] == LINEAR_INT8 && inputs[PLAN_GPU0] == LINEAR_EXACT);
    activations_choose(ACTIVATIONS_EXACT, &s->made.model, &s->profile, can, inputs);
    assert_false(activations_any(inputs));
    activations_choose(ACTIVATIONS_INT8, &s->made.model, &s->profile, can, inputs);
    assert_true(inputs[PLAN_CPU0] == LINEAR_INT8 && inputs[PLAN_GPU0] == LINEAR_INT8);
    activations_choose(ACTIVATIONS_INT8, &s->made.model, &s->profile, cannot, inputs);
    assert_false(activations_any(inputs));
    s->profile.format[FORMAT_Q4_K].cpu_int8_gemv = made_up_value(20.2e9);
    activations_choose(ACTIVATIONS_AUTO, &s->made.model, &s->profile, can, inputs);
    assert_false(activations_any(inputs)); /* hardly faster */
}

static void prices_go_by_the_chosen_rates(void **state)
{
    struct stage *s = *state;
    const enum linear_inputs int8[PLAN_PROCESSORS] = {[PLAN_CPU0] = LINEAR_INT8},
                             exact[PLAN_PROCESSORS] = {LINEAR_EXACT};
    struct profile with;
    activations_rates(&s->profile, int8, &with);
    assert_true(with.format[FORMAT_Q4_K].cpu_gemv.value == 40e9);
    assert_true(with.format[FORMAT_Q4_K].cpu_gemv_beside.value == 30e9);
    assert_true(with.format[FORMAT_Q6_K].cpu_gemv.value == 25e9); /* it has no others */
    activations_rates(&s->profile, exact, &with);
    assert_memory_equal(&with, &s->profile, sizeof with);
}

static void units_are_those_with_blocks_where_it_rounds(void **state)
{
    struct stage *s = *state;
    struct model *m = &s->made.model;
    assert_int_equal(activations_units(&s->plan, m), 0);
    s->plan.inputs[PLAN_CPU0] = LINEAR_INT8;
    assert_int_equal(activations_units(&s->plan, m), 5); /* two layers and the head */
    s->plan.head = PLAN_GPU0;
    assert_int_equal(activations_units(&s->plan, m), 4);
    s->plan.inputs[PLAN_GPU0] = LINEAR_INT8;
    assert_int_equal(activations_units(&s->plan, m), 9);
    for (uint32_t i = 0; i < m->tensor_count; i++)
        if (m->tensors[i].layer == 3) m->tensors[i].format = FORMAT_BF16;
    assert_int_equal(activations_units(&s->plan, m), 7);
}

static const struct verdict passes = {0.0002, 0.0004, 512, 64, 5}, fails = {0.0002, 0.0011, 512, 64, 5};

static void a_verdict_is_of_so_many_units(void **state)
{
    (void)state;
    assert_true(verdict_passes(&passes) && !verdict_passes(&fails));
    assert_true(verdict_kl(&fails) == 0.0011);
    assert_true(verdict_holds(&passes, 5) && verdict_holds(&passes, 4) && !verdict_holds(&passes, 6));
    assert_true(verdict_holds(&fails, 5) && verdict_holds(&fails, 6) && !verdict_holds(&fails, 4));
}

static void keys_name_files_mixtures_and_kernels(void **state)
{
    struct stage *s = *state;
    struct model *m = &s->made.model;
    struct helm_err err = {0};
    char key[6][DIGEST_TEXT];
    assert_int_equal(verdict_key(m, "", key[0], &err), 0);
    assert_int_equal(verdict_key(m, "avx2", key[1], &err), 0);
    m->laid = mixture_named("q4_k_m");
    assert_int_equal(verdict_key(m, "", key[2], &err), 0);
    m->laid = NULL;
    touch(s, "the very same weights", 1001);
    assert_int_equal(verdict_key(m, "", key[3], &err), 0);
    touch(s, "the very some weights", 1000);
    assert_int_equal(verdict_key(m, "", key[4], &err), 0);
    for (int a = 0; a < 5; a++)
        for (int b = 0; b < a; b++) assert_string_not_equal(key[a], key[b]);
    touch(s, "the very same weights", 1000);
    assert_int_equal(verdict_key(m, "", key[5], &err), 0);
    assert_string_equal(key[0], key[5]);
    m->shard_count = 0;
    assert_int_equal(verdict_key(m, "", key[0], &err), HELM_E_NOT_FOUND);
}

static void path_of(const struct stage *s, char path[TREE_PATH + 128])
{
    snprintf(path, TREE_PATH + 128, "%s/helm/profiles/activations-%s.json", s->root, s->key);
}

static void files_carry_verdicts_both_ways(void **state)
{
    struct stage *s = *state;
    struct helm_err err = {0};
    struct verdict again;
    assert_int_equal(verdict_key(&s->made.model, "", s->key, &err), 0);
    assert_int_equal(verdict_read(s->key, &again, &err), HELM_E_NOT_FOUND);
    assert_int_equal(verdict_write(s->key, &fails, &err), 0);
    assert_int_equal(verdict_read(s->key, &again, &err), 0);
    assert_memory_equal(&again, &fails, sizeof again);
    assert_int_equal(verdict_write(s->key, &passes, &err), 0);
    assert_int_equal(verdict_read(s->key, &again, &err), 0);
    assert_memory_equal(&again, &passes, sizeof again);
}

#define WHOLE(key)                                                                                           \
    "{\"helm_activations\": 1, \"key\": \"" key "\", \"positions\": 512, \"one_token_positions\": 64, "      \
    "\"one_token_kl\": 0, \"tokens_kl\": 0, \"units\": 5}"

static void files_that_are_none_are_refused(void **state)
{
    struct stage *s = *state;
    static const char *const text[] = {
        "",
        "[]",
        "{}",
        WHOLE("00"), /* of something else */
        "{\"helm_activations\": 2}",
        "{\"helm_activations\": 1, \"key\": \"aa\", \"positions\": 0, \"one_token_positions\": 0, "
        "\"one_token_kl\": 0, \"tokens_kl\": 0, \"units\": 5}",
        "{\"helm_activations\": 1, \"key\": \"aa\", \"positions\": 512, \"one_token_positions\": 600, "
        "\"one_token_kl\": 0, \"tokens_kl\": 0, \"units\": 5}",
        "{\"helm_activations\": 1, \"key\": \"aa\", \"positions\": 512, \"one_token_positions\": 64, "
        "\"one_token_kl\": -1, \"tokens_kl\": 0, \"units\": 5}",
        "{\"helm_activations\": 1, \"key\": \"aa\", \"positions\": 512, \"one_token_positions\": 64, "
        "\"one_token_kl\": 0, \"tokens_kl\": 0}",
    };
    char path[TREE_PATH + 128];
    struct verdict verdict;
    struct helm_err err = {0};
    snprintf(s->key, sizeof s->key, "aa");
    assert_int_equal(verdict_write(s->key, &passes, &err), 0); /* makes the folder */
    path_of(s, path);
    for (size_t i = 0; i <= sizeof text / sizeof *text; i++) {
        const bool whole = i == sizeof text / sizeof *text;
        FILE *file = fopen(path, "we");
        assert_non_null(file);
        fputs(whole ? WHOLE("aa") : text[i], file);
        assert_int_equal(fclose(file), 0);
        const int rc = verdict_read(s->key, &verdict, &err);
        if (whole != !rc || rc == HELM_E_NOT_FOUND) fail_msg("%zu: %d, '%s'", i, rc, err.text);
        assert_int_equal(verdict.units, whole ? 5 : 0);
    }
}

/* One that was interrupted decides nothing, and the next check goes on from it; not where another plan's
 * units are asked. */
static void an_interrupted_check_is_gone_on_with(void **state)
{
    struct stage *s = *state;
    const struct model *m = &s->made.model;
    struct activations a = {.kernels = ""};
    bool again;
    activations_want(m, &s->profile, CPU_AVX2, &a);
    s->plan.inputs[PLAN_CPU0] = a.inputs[PLAN_CPU0];
    activations_look(m, &s->plan, &a, &again);
    assert_true(a.checks && !again && !a.before.positions);
    const struct verdict some = {.one_token = 0.5,
                                 .tokens = 0.25,
                                 .positions = 100,
                                 .one_positions = 20,
                                 .units = activations_units(&s->plan, m)};
    assert_false(verdict_says_enough(&some) || verdict_holds(&some, some.units));
    activations_wait(&s->plan, &some, &a);
    assert_true(a.waits && !a.checks && !a.decided);
    assert_non_null(strstr(a.text, "exact until the check of int8 on cpu has ended"));
    assert_non_null(strstr(a.text, "100 of 128 positions"));
    a = (struct activations){.kernels = ""};
    activations_want(m, &s->profile, CPU_AVX2, &a);
    activations_look(m, &s->plan, &a, &again);
    assert_true(a.checks && !again);
    assert_true(a.before.positions == 100 && a.before.one_positions == 20 && a.before.units == some.units);
    assert_true(a.before.one_token == 0.5 && a.before.tokens == 0.25);
    const struct verdict other = {.positions = 100, .one_positions = 20, .units = some.units + 1};
    assert_int_equal(verdict_write(a.key, &other, &(struct helm_err){0}), 0);
    activations_look(m, &s->plan, &a, &again);
    a = (struct activations){.kernels = ""};
    activations_want(m, &s->profile, CPU_AVX2, &a);
    activations_look(m, &s->plan, &a, &again);
    assert_true(a.checks && !a.before.positions);
}

/* As over three starts: it is not known, it is known, the option says otherwise. */
static void decisions_over_starts(void **state)
{
    struct stage *s = *state;
    const struct model *m = &s->made.model;
    struct activations a = {.kernels = ""};
    bool again;
    activations_want(m, &s->profile, CPU_AVX2, &a);
    assert_true(a.inputs[PLAN_CPU0] == LINEAR_INT8 && a.inputs[PLAN_GPU0] == LINEAR_EXACT);
    s->plan.inputs[PLAN_CPU0] = LINEAR_INT8;
    activations_look(m, &s->plan, &a, &again);
    assert_true(a.checks && !a.decided && !again);
    activations_decide(&s->plan, &fails, &a, &again);
    assert_true(again && a.decided && !a.checks && !activations_any(a.inputs));
    assert_non_null(strstr(a.text, "exact: int8 on cpu would be faster, but: KL divergence 0.0011 over 512"));

    a = (struct activations){.kernels = ""};
    activations_want(m, &s->profile, CPU_AVX2, &a);
    activations_look(m, &s->plan, &a, &again);
    assert_true(again && a.decided && !a.checks);

    a = (struct activations){.kernels = "", .option = ACTIVATIONS_INT8};
    activations_want(m, &s->profile, CPU_AVX2, &a);
    activations_look(m, &s->plan, &a, &again);
    assert_true(!again && a.decided && a.inputs[PLAN_CPU0] == LINEAR_INT8);
    assert_non_null(strstr(a.text, "int8 on cpu, as asked: KL divergence 0.0011"));

    a = (struct activations){.kernels = "", .option = ACTIVATIONS_EXACT};
    activations_want(m, &s->profile, CPU_AVX2, &a);
    assert_false(activations_any(a.inputs));
    assert_string_equal(a.text, "exact, as asked");

    a = (struct activations){.kernels = ""}; /* fewer units than failed */
    s->plan.head = PLAN_GPU0;
    activations_want(m, &s->profile, CPU_AVX2, &a);
    activations_look(m, &s->plan, &a, &again);
    assert_true(a.checks && !again);
    activations_decide(&s->plan, &(struct verdict){0.0002, 0.0003, 512, 64, 4}, &a, &again);
    assert_true(!again && !a.checks && a.inputs[PLAN_CPU0] == LINEAR_INT8);
    assert_non_null(strstr(a.text, "int8 on cpu: KL divergence 0.0003"));

    a = (struct activations){.kernels = "other"};
    activations_want(m, &s->profile, CPU_AVX2, &a);
    activations_look(m, &s->plan, &a, &again);
    activations_decide(&s->plan, NULL, &a, &again); /* it could not be run */
    assert_true(again && !activations_any(a.inputs));
}

static void plans_that_somebody_wrote(void **state)
{
    struct stage *s = *state;
    struct activations a = {.kernels = ""};
    activations_want(&s->made.model, &s->profile, CPU_AVX2, &a);
    activations_take(&s->plan, &a); /* exact, and faster would be int8 */
    assert_false(activations_any(s->plan.inputs));
    s->plan.inputs[PLAN_CPU0] = s->plan.inputs[PLAN_GPU0] = LINEAR_INT8;
    activations_take(&s->plan, &a); /* the device has no kernels for it */
    assert_true(s->plan.inputs[PLAN_CPU0] == LINEAR_INT8 && s->plan.inputs[PLAN_GPU0] == LINEAR_EXACT);
    a.option = ACTIVATIONS_EXACT;
    activations_want(&s->made.model, &s->profile, CPU_AVX2, &a);
    activations_take(&s->plan, &a);
    assert_false(activations_any(s->plan.inputs));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(gain_is_of_the_models_own_formats, open_stage, close_stage),
        cmocka_unit_test_setup_teardown(chosen_is_what_is_faster_or_asked_for, open_stage, close_stage),
        cmocka_unit_test_setup_teardown(prices_go_by_the_chosen_rates, open_stage, close_stage),
        cmocka_unit_test_setup_teardown(units_are_those_with_blocks_where_it_rounds, open_stage, close_stage),
        cmocka_unit_test(a_verdict_is_of_so_many_units),
        cmocka_unit_test_setup_teardown(keys_name_files_mixtures_and_kernels, open_stage, close_stage),
        cmocka_unit_test_setup_teardown(files_carry_verdicts_both_ways, open_stage, close_stage),
        cmocka_unit_test_setup_teardown(files_that_are_none_are_refused, open_stage, close_stage),
        cmocka_unit_test_setup_teardown(an_interrupted_check_is_gone_on_with, open_stage, close_stage),
        cmocka_unit_test_setup_teardown(decisions_over_starts, open_stage, close_stage),
        cmocka_unit_test_setup_teardown(plans_that_somebody_wrote, open_stage, close_stage),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
