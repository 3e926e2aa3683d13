/* Unit tests of daemon/steps/check.c: distributions whose divergence is known. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdlib.h>

#include "daemon/steps/check.h"

static void nearly(double is, double should, double by)
{
    if (!(fabs(is - should) <= by)) fail_msg("%.12g is not %.12g", is, should);
}

static void the_same_distribution_has_none(void **state)
{
    (void)state;
    const float row[] = {3, -2, 0.5f, 100}, shifted[] = {-7, -12, -9.5f, 90};
    nearly(divergence_of(row, row, 4), 0, 0);
    nearly(divergence_of(row, shifted, 4), 0, 1e-6);
}

/* p and q of a coin: p log(p / q) + (1 - p) log((1 - p) / (1 - q)). */
static void known_distributions(void **state)
{
    (void)state;
    const double p[] = {0.5, 0.9, 0.01, 0.3}, q[] = {0.25, 0.5, 0.02, 0.3001};
    for (int i = 0; i < 4; i++) {
        const float a[] = {(float)log(p[i]) + 5, (float)log(1 - p[i]) + 5},
                    b[] = {(float)log(q[i]) - 40, (float)log(1 - q[i]) - 40};
        nearly(divergence_of(a, b, 2), p[i] * log(p[i] / q[i]) + (1 - p[i]) * log((1 - p[i]) / (1 - q[i])),
               2e-6);
    }
}

/* As in double, also where logits are large and most tokens unlikely. */
static void a_vocabulary_of_many(void **state)
{
    (void)state;
    enum { COUNT = 32000 };
    float *a = malloc(COUNT * sizeof *a), *b = malloc(COUNT * sizeof *b);
    double sum[2] = {0}, differences = 0;
    assert_true(a && b);
    uint32_t random = 1;
    for (int i = 0; i < COUNT; i++) {
        random = random * 1664525 + 1013904223;
        a[i] = (float)(random >> 8) / (1 << 24) * 25 + 1000;
        random = random * 1664525 + 1013904223;
        b[i] = a[i] + (float)(random >> 8) / (1 << 24) * 0.1f;
        sum[0] += exp((double)a[i] - 1025);
        sum[1] += exp((double)b[i] - 1025);
    }
    for (int i = 0; i < COUNT; i++)
        differences += exp((double)a[i] - 1025) / sum[0] * ((double)a[i] - (double)b[i]);
    nearly(divergence_of(a, b, COUNT), differences - log(sum[0]) + log(sum[1]), 1e-6);
    free(a);
    free(b);
}

/* A token that cannot be drawn has no part; one that may be drawn and then could not is infinitely far. */
static void what_is_not_finite(void **state)
{
    (void)state;
    const float a[] = {1, -INFINITY, 2, NAN}, b[] = {1, 1, 2, -INFINITY}, c[] = {1, 0, -INFINITY, 0},
                none[] = {NAN, -INFINITY, INFINITY, NAN};
    const float both[] = {1, 2}, other[] = {1, 2};
    nearly(divergence_of(a, a, 4), divergence_of(both, other, 2), 0);
    assert_true(divergence_of(a, b, 4) > 0.1 && isfinite(divergence_of(a, b, 4)));
    assert_true(isinf(divergence_of(a, c, 4)));
    assert_true(isinf(divergence_of(none, b, 4)));
    assert_true(isinf(divergence_of(b, none, 4)));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_same_distribution_has_none),
        cmocka_unit_test(known_distributions),
        cmocka_unit_test(a_vocabulary_of_many),
        cmocka_unit_test(what_is_not_finite),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
