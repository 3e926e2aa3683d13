/* Fields that workers can compute (common/model/able.c): every field that changes a result is known to the
 * table, and one that no worker computes is refused with the operation's name. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "common/model/able.h"
#include "common/model/arch.h"

/* OPT has LayerNorms, learned positions and ReLU, which GPU workers have not. A running mean is the emulated
 * device's alone. */
static bool gpus_cannot(const struct arch *arch, enum able_worker worker)
{
    return (arch == &arch_opt && worker != ABLE_CPU) || (arch == &arch_state_test && worker == ABLE_GPU);
}

static void every_architecture_is_computed_by_the_cpu_and_most_by_gpus(void **state)
{
    (void)state;
    const struct arch *arch;
    for (uint32_t i = 0; (arch = arch_at(i)); i++)
        for (uint32_t p = 0; arch->parts[p]; p++)
            for (uint32_t k = 0; k < arch->parts[p]->ops; k++)
                for (int w = 0; w < ABLE_WORKERS; w++) {
                    struct helm_err err = {0};
                    if (able_check_op(&arch->parts[p]->op[k], (enum able_worker)w, "x", &err) &&
                        !gpus_cannot(arch, (enum able_worker)w))
                        fail_msg("%s: %s", arch->architecture, err.text);
                }
}

static void what_is_asked_for_is_named(void **state)
{
    (void)state;
    static const struct {
        struct math_op op;
        bool cpu; /* the CPU computes it */
        const char *text;
    } cases[] = {
        {{.kind = MATH_LINEAR, .norm_kind = NORM_RMS_ONE_PLUS}, false, "an RMS norm by 1 + w"},
        {{.kind = MATH_LINEAR, .norm_kind = NORM_LAYER}, true, "a LayerNorm"},
        {{.kind = MATH_LINEAR, .norm_bias = TENSOR_ATTN_NORM_BIAS}, true, "a LayerNorm"},
        {{.kind = MATH_ROUTE, .norm_kind = NORM_LAYER}, false, "a LayerNorm before experts"},
        {{.kind = MATH_LINEAR, .gated = true, .activation = ACTIVATION_RELU}, true, "a gate by"},
        {{.kind = MATH_LINEAR, .activation = ACTIVATION_RELU}, true, "an activation without a gate"},
        {{.kind = MATH_LINEAR, .activation = ACTIVATION_SILU}, false, "SiLU without a gate"},
        {{.kind = MATH_EXPERTS_GLU, .gated = true, .activation = ACTIVATION_RELU}, false, "experts with"},
        {{.kind = MATH_LINEAR, .in_scale = 2}, false, "a scaled input"},
        {{.kind = MATH_LINEAR, .out_scale = 2}, true, "a scaled output"},
        {{.kind = MATH_EXPERTS_DOWN, .out_scale = 2}, false, "a scaled output"},
        {{.kind = MATH_LINEAR, .soft_cap = 30}, true, "a soft cap"},
        {{.kind = MATH_ATTENTION, .no_rope = true}, true, "attention without RoPE"},
        {{.kind = MATH_LINEAR, .times = BUFFER_PER_LAYER, .activation = ACTIVATION_RELU}, true, "a gate by"},
        {{.kind = MATH_EMBED, .positions = TENSOR_POSITIONS}, true, "learned positions"},
        {{.kind = MATH_RUNNING_MEAN}, true, "a state of fixed size"},
    };
    const struct model_config config = {.head_dim = 8};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct helm_err err = {0};
        struct math_op op = cases[i].op;
        op.name = "an operation";
        const struct model_math math = {.part[0] = {.name = "a layer", .ops = 1, .op = {op}}, .parts = 1};
        assert_int_equal(able_check_op(&op, ABLE_GPU, "layer 3", &err), HELM_E_UNSUPPORTED);
        if (!strstr(err.text, "layer 3: 'an operation' with ") || !strstr(err.text, cases[i].text) ||
            !strstr(err.text, "by GPU workers"))
            fail_msg("case %zu: %s", i, err.text);
        assert_int_equal(able_check_op(&op, ABLE_CPU, "layer 3", &err),
                         cases[i].cpu ? 0 : HELM_E_UNSUPPORTED);
        assert_int_equal(able_check_worker(&math, ABLE_GPU, &err), HELM_E_UNSUPPORTED);
        assert_int_equal(able_check_worker(&math, ABLE_CPU, &err), cases[i].cpu ? 0 : HELM_E_UNSUPPORTED);
        assert_int_equal(able_check_model(&config, &math, &err), cases[i].cpu ? 0 : HELM_E_UNSUPPORTED);
        if (!cases[i].cpu && !strstr(err.text, "a layer: 'an operation' with ")) fail_msg("%s", err.text);
    }
}

/* 0 and 1 are no demands. */
static void neutral_values_are_no_demands(void **state)
{
    (void)state;
    const struct math_op op = {.kind = MATH_LINEAR, .name = "o", .in_scale = 1, .out_scale = 1};
    struct helm_err err = {0};
    const struct math_op head = {.kind = MATH_LINEAR,
                                 .out = {BUFFER_LOGITS},
                                 .soft_cap = 30}; /* all have that */
    for (int w = 0; w < ABLE_WORKERS; w++) {
        assert_int_equal(able_check_op(&op, (enum able_worker)w, "x", &err), 0);
        assert_int_equal(able_check_op(&head, (enum able_worker)w, "x", &err), 0);
    }
}

static void ropes_of_neighbours_are_refused(void **state)
{
    (void)state;
    const struct model_math math = {.parts = 0};
    struct model_config config = {.head_dim = 8, .rope[0] = {.dims = 8}};
    struct helm_err err = {0};
    assert_int_equal(able_check_model(&config, &math, &err), 0);
    config.rope[0].dims = 4;
    assert_int_equal(able_check_model(&config, &math, &err), 0);
    config.rope[0] = (struct rope_config){.pairs = true};
    assert_int_equal(able_check_model(&config, &math, &err), HELM_E_UNSUPPORTED);
    assert_non_null(strstr(err.text, "turns neighbours"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_architecture_is_computed_by_the_cpu_and_most_by_gpus),
        cmocka_unit_test(what_is_asked_for_is_named),
        cmocka_unit_test(neutral_values_are_no_demands),
        cmocka_unit_test(ropes_of_neighbours_are_refused),
    };
    return cmocka_run_group_tests_name("model/able", tests, NULL, NULL);
}
