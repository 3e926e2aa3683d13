/* The choice of experts (common/model/router.h) as published architectures define it, with figures that were
 * worked out by hand: kernels and processors are held against this function, so nothing else may say what it
 * is. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>

#include "common/model/router.h"

#define CHOSEN_MOST 4

static void choose(const struct model_router *router, const float *logits, const float *bias,
                   const uint32_t *id, const double *weight)
{
    uint32_t found[CHOSEN_MOST];
    float with[CHOSEN_MOST];
    assert_true(router->chosen <= CHOSEN_MOST);
    router_choose(router, logits, bias, NULL, found, with);
    for (uint32_t j = 0; j < router->chosen; j++) {
        assert_int_equal(found[j], id[j]);
        assert_true(fabs(with[j] - weight[j]) < 1e-6);
    }
}

/* Equal logits choose the lower ids, and the largest first; twice the same. */
static void ties_go_to_the_lowest_id(void **state)
{
    (void)state;
    const struct model_router router = {ROUTER_SOFTMAX, 6, 3, true, 1, 1, 1};
    const float logits[6] = {1, 2, 2, 3, 2, 2};
    const double e = exp(-1), sum = 1 + 2 * e;
    for (int times = 0; times < 2; times++)
        choose(&router, logits, NULL, (const uint32_t[]){3, 1, 2},
               (const double[]){1 / sum, e / sum, e / sum});
}

/* Qwen3-MoE without and with normalised weights, Mixtral as the latter; scaled. */
static void softmax_over_all(void **state)
{
    (void)state;
    const float logits[4] = {0, logf(2), logf(4), 0}; /* 1, 2, 4, 1 of 8 */
    struct model_router router = {ROUTER_SOFTMAX, 4, 2, false, 1, 1, 1};
    choose(&router, logits, NULL, (const uint32_t[]){2, 1}, (const double[]){0.5, 0.25});
    router.normalise = true;
    choose(&router, logits, NULL, (const uint32_t[]){2, 1}, (const double[]){2.0 / 3, 1.0 / 3});
    router.scale = 2.5f;
    choose(&router, logits, NULL, (const uint32_t[]){2, 1}, (const double[]){5.0 / 3, 2.5 / 3});
    /* a scale of each expert comes last, and chooses nothing */
    uint32_t id[2];
    float weight[2];
    router_choose(&router, logits, NULL, (const float[]){9, 3, 0.5f, 9}, id, weight);
    assert_true(id[0] == 2 && id[1] == 1 && fabs(weight[0] - 2.5 / 3) < 1e-6 && fabs(weight[1] - 2.5) < 1e-6);
}

/* gpt-oss: the softmax of the chosen logits alone. */
static void softmax_over_the_chosen(void **state)
{
    (void)state;
    const struct model_router router = {ROUTER_CHOSEN_SOFTMAX, 4, 2, false, 1, 1, 1};
    choose(&router, (const float[]){0, logf(2), logf(4), 0}, NULL, (const uint32_t[]){2, 1},
           (const double[]){2.0 / 3, 1.0 / 3});
}

/* DeepSeek-V3: a bias counts for the choice and not for the weight; groups are chosen by the sum of their two
 * best. */
static void sigmoid_with_bias_and_groups(void **state)
{
    (void)state;
    const float third = logf(0.5f), half = 0, two_thirds = logf(2), quarter = logf(1 / 3.0f);
    /* group 0 has the best expert, group 1 the best two */
    const float logits[6] = {two_thirds, quarter, quarter, half, half, quarter};
    struct model_router router = {ROUTER_SIGMOID, 6, 2, false, 1, 2, 1};
    choose(&router, logits, NULL, (const uint32_t[]){3, 4}, (const double[]){0.5, 0.5});
    router.groups = 1; /* no groups: the best expert is chosen */
    choose(&router, logits, NULL, (const uint32_t[]){0, 3}, (const double[]){2.0 / 3, 0.5});
    router.normalise = true, router.scale = 2;
    choose(&router, logits, NULL, (const uint32_t[]){0, 3}, (const double[]){8.0 / 7, 6.0 / 7});
    const float bias[6] = {0, 0, 1, 0, 0, 0}, other[6] = {two_thirds, third, quarter, third, third, third};
    router.normalise = false, router.scale = 1;
    choose(&router, other, bias, (const uint32_t[]){2, 0}, (const double[]){0.25, 2.0 / 3});
}

/* A logit that is no number counts as the least; if all are such, all weights are equal. */
static void logits_that_are_no_numbers(void **state)
{
    (void)state;
    const struct model_router router = {ROUTER_SOFTMAX, 3, 2, true, 1, 1, 1};
    choose(&router, (const float[]){NAN, 1, 1}, NULL, (const uint32_t[]){1, 2}, (const double[]){0.5, 0.5});
    choose(&router, (const float[]){NAN, -INFINITY, NAN}, NULL, (const uint32_t[]){0, 1},
           (const double[]){0.5, 0.5});
}

static void activations(void **state)
{
    (void)state;
    assert_true(fabs(glu_of(GLU_SILU, logf(2), 3) - 2 * log(2)) < 1e-6);
    const double at_seven = 7 / (1 + exp(-1.702 * 7));
    assert_true(fabs(glu_of(GLU_CLAMPED, 100, 100) - 8 * at_seven) < 1e-5); /* both are cut */
    assert_true(fabs(glu_of(GLU_CLAMPED, 7, -100) + 6 * at_seven) < 1e-5);
    assert_true(fabs(glu_of(GLU_CLAMPED, 0, 5)) < 1e-6);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ties_go_to_the_lowest_id),   cmocka_unit_test(softmax_over_all),
        cmocka_unit_test(softmax_over_the_chosen),    cmocka_unit_test(sigmoid_with_bias_and_groups),
        cmocka_unit_test(logits_that_are_no_numbers), cmocka_unit_test(activations),
    };
    return cmocka_run_group_tests_name("model/router", tests, NULL, NULL);
}
