/* Every elementwise variant of the table against the reference: odd lengths, unaligned and aliased operands,
 * special values. Operands end at an unreadable page, so that no tail reads or writes past its end. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>

#include "common/base/cpu.h"
#include "tests/kernels/kernel_buffers.h"
#include "common/cpu/kernels/vector.h"
#include "common/model/router.h"
#include "common/formats/convert.h"

static const size_t lengths[] = {1,  2,  3,  5,  7,  8,   9,   15,  16,  17,   31,
                                 32, 33, 63, 64, 65, 100, 127, 128, 129, 1000, 4099};
#define LENGTHS (sizeof lengths / sizeof *lengths)

static const struct vector_variant *usable(void **state)
{
    const struct vector_variant *v = *state;
    unsigned missing = v->features & ~cpu_features();
    char text[128];
    if (missing) {
        print_message("vector %s skipped: this machine lacks %s\n", v->name,
                      cpu_features_text(missing, text, sizeof text));
        skip();
    }
    return v;
}

static const struct vector_variant *reference(void)
{
    size_t count;
    const struct vector_variant *const *table = vector_variants(&count);
    assert_string_equal(table[0]->name, "ref");
    return table[0];
}

static float *floats_make(struct guarded *g, size_t n, float scale, uint64_t seed)
{
    guarded_make(g, n * sizeof(float));
    float *x = g->data;
    for (size_t i = 0; i < n; i++) x[i] = scale * random_float(&seed);
    return x;
}

/* Three or four roundings, and for sums sqrt(n) more: 4e-7 is six of 2^-24. */
static void assert_close(const char *what, const float *got, const float *want, size_t n, double relative,
                         double least)
{
    for (size_t i = 0; i < n; i++)
        if (!(fabs((double)got[i] - (double)want[i]) <= relative * fabs((double)want[i]) + least))
            fail_msg("%s: [%zu] of %zu is %.9g, reference %.9g", what, i, n, (double)got[i], (double)want[i]);
}

static void rmsnorm_agrees(void **state)
{
    const struct vector_variant *v = usable(state), *ref = reference();
    for (size_t k = 0; k < LENGTHS; k++) {
        size_t n = lengths[k];
        struct guarded gx, gw, gy, gr;
        float *x = floats_make(&gx, n, 3, n), *w = floats_make(&gw, n, 2, n + 1);
        guarded_make(&gy, n * 4);
        guarded_make(&gr, n * 4);
        v->rmsnorm(gy.data, x, w, n, 1e-6f);
        ref->rmsnorm(gr.data, x, w, n, 1e-6f);
        assert_close("rmsnorm", gy.data, gr.data, n, 1e-6, 0);
        v->rmsnorm(x, x, w, n, 1e-6f);
        assert_memory_equal(x, gy.data, n * 4); /* in place */
        memset(x, 0, n * 4);
        v->rmsnorm(x, x, w, n, 1e-6f);
        for (size_t i = 0; i < n; i++) assert_true(x[i] == 0);
        guarded_free(&gx), guarded_free(&gw), guarded_free(&gy), guarded_free(&gr);
    }
}

static void layernorm_agrees(void **state)
{
    const struct vector_variant *v = usable(state), *ref = reference();
    for (size_t k = 0; k < LENGTHS; k++) {
        size_t n = lengths[k];
        struct guarded gx, gw, gb, gy, gr;
        float *x = floats_make(&gx, n, 3, n), *w = floats_make(&gw, n, 2, n + 1),
              *b = floats_make(&gb, n, 1, n + 2);
        for (size_t i = 0; i < n; i++) x[i] += k % 2 ? 40 : 0; /* a mean that is large beside the rest */
        guarded_make(&gy, n * 4);
        guarded_make(&gr, n * 4);
        for (int biased = 0; biased < 2; biased++) {
            v->layernorm(gy.data, x, w, biased ? b : NULL, n, 1e-5f);
            ref->layernorm(gr.data, x, w, biased ? b : NULL, n, 1e-5f);
            /* 40 and what is left of it: 2^-24 * 40 in each difference, and in their scale (of one value: 1e5
             * / 300) */
            assert_close("layernorm", gy.data, gr.data, n, 2e-5, n == 1 ? 4e-3 : 2e-5);
        }
        v->layernorm(x, x, w, b, n, 1e-5f);
        v->layernorm(x, x, w, NULL, 0, 1e-5f);
        guarded_free(&gx), guarded_free(&gw), guarded_free(&gb), guarded_free(&gy), guarded_free(&gr);
    }
}

static void rope_agrees(void **state)
{
    const struct vector_variant *v = usable(state), *ref = reference();
    for (size_t k = 0; k < LENGTHS; k++) {
        size_t n = 2 * lengths[k];
        struct guarded gx, gr, gc, gs;
        float *x = floats_make(&gx, n, 2, n), *r = floats_make(&gr, n, 2, n);
        float *c = floats_make(&gc, n / 2, 1, n + 1), *s = floats_make(&gs, n / 2, 1, n + 2);
        v->rope(x, c, s, n);
        ref->rope(r, c, s, n);
        assert_close("rope", x, r, n, 1e-6, 5e-7); /* a difference of two terms up to 2 */
        guarded_free(&gx), guarded_free(&gr), guarded_free(&gc), guarded_free(&gs);
    }
}

typedef void glu_fn(float *y, const float *g, const float *u, size_t n);

static void glu_agrees(const char *name, glu_fn *glu, glu_fn *want, double relative)
{
    for (size_t k = 0; k < LENGTHS; k++) {
        size_t n = lengths[k];
        struct guarded gg, gu, gy, gr;
        float *g = floats_make(&gg, n, k % 2 ? 120 : 8, n), *u = floats_make(&gu, n, k % 3 ? 2 : 20, n + 1);
        guarded_make(&gy, n * 4);
        guarded_make(&gr, n * 4);
        glu(gy.data, g, u, n);
        want(gr.data, g, u, n);
        /* Under 1e-36 an exponential may be flushed; up is at most 20. */
        assert_close(name, gy.data, gr.data, n, relative, 2e-35);
        glu(g, g, u, n);
        assert_memory_equal(g, gy.data, n * 4); /* in place */
        guarded_free(&gg), guarded_free(&gu), guarded_free(&gy), guarded_free(&gr);
    }
}

static void swiglu_agrees(void **state)
{
    const struct vector_variant *v = usable(state);
    glu_agrees("swiglu", v->swiglu, reference()->swiglu, 1e-6); /* an exponential of 1 to 2 ulp */
    float extreme[5] = {NAN, 1000, -1000, 0, 88.5f}, one[5] = {1, 1, 1, 1, 1}, y[5];
    v->swiglu(y, extreme, one, 5);
    assert_true(isnan(y[0]));
    assert_true(y[1] == 1000 && y[2] == 0 && y[3] == 0 && y[4] == 88.5f);
}

static void swiglu_clamped_agrees(void **state)
{
    const struct vector_variant *v = usable(state);
    /* The exponential's argument, up to 83, is a product that is rounded or not. */
    glu_agrees("swiglu_clamped", v->swiglu_clamped, reference()->swiglu_clamped, 6e-6);
    float gate[5] = {NAN, 1000, -1000, 7, 1}, up[5] = {1, 1000, 1, -1000, NAN}, y[5];
    v->swiglu_clamped(y, gate, up, 5);
    assert_true(isnan(y[0]) && isnan(y[4]) && y[2] == 0);
    /* 7 * sigmoid(11.9) is 7 to 7 digits: (7 + 1) times it, and (-7 + 1) times */
    assert_true(fabsf(y[1] - 56) < 1e-3f && fabsf(y[3] + 42) < 1e-3f);
    for (int i = 1; i < 4; i++) assert_true(fabsf(y[i] - glu_of(GLU_CLAMPED, gate[i], up[i])) < 1e-4f);
}

static void sigmoid_agrees(void **state)
{
    const struct vector_variant *v = usable(state);
    glu_agrees("sigmoid", v->sigmoid, reference()->sigmoid, 1e-6); /* an exponential of 1 to 2 ulp */
    float extreme[5] = {NAN, 1000, -1000, 0, 88.5f}, two[5] = {2, 2, 2, 2, 2};
    v->sigmoid(two, extreme, two, 5); /* y may be u, too */
    assert_true(isnan(two[0]));
    assert_true(two[1] == 2 && two[2] == 0 && two[3] == 1 && two[4] == 2);
}

/* By u and alone; a NaN stays one. */
static void activation_agrees(const char *name, glu_fn *f, glu_fn *want, double relative)
{
    float g[6] = {NAN, 1000, -1000, 0, -0.5f, 2}, one[6] = {1, 1, 1, 1, 1, 1}, y[6], z[6];
    glu_agrees(name, f, want, relative);
    f(y, g, one, 6);
    f(z, g, NULL, 6);
    assert_true(isnan(y[0]) && isnan(z[0]));
    for (int i = 1; i < 6; i++) assert_true(y[i] == z[i]);
    want(z, g, NULL, 6);
    for (int i = 1; i < 6; i++) assert_true(fabsf(y[i] - z[i]) <= 2e-6f * fabsf(z[i]));
}

static void gelu_agrees(void **state)
{
    const struct vector_variant *v = usable(state);
    /* The exponential's argument, up to 88, is a product of four that are rounded. */
    activation_agrees("gelu", v->gelu, reference()->gelu, 2e-5);
}

static void relu_agrees(void **state)
{
    const struct vector_variant *v = usable(state);
    activation_agrees("relu", v->relu, reference()->relu, 1e-6);
    activation_agrees("relu_squared", v->relu_squared, reference()->relu_squared, 1e-6);
}

static void add_agrees(void **state)
{
    const struct vector_variant *v = usable(state);
    for (size_t k = 0; k < LENGTHS; k++) {
        size_t n = lengths[k];
        struct guarded gx, gy, gr;
        float *x = floats_make(&gx, n, 1, n), *y = floats_make(&gy, n, 1, n + 1),
              *r = floats_make(&gr, n, 1, n + 1);
        v->add(y, x, n);
        for (size_t i = 0; i < n; i++) assert_true(y[i] == r[i] + x[i]);
        guarded_free(&gx), guarded_free(&gy), guarded_free(&gr);
    }
}

/* Conversions are exact or correctly rounded, so they must agree to the bit, NaNs included. */
static void conversions_agree(void **state)
{
    const struct vector_variant *v = usable(state), *ref = reference();
    static const uint32_t special[] = {0x00000000, 0x80000000, 0x7f800000, 0xff800000, 0x7fc00000, 0x7f800001,
                                       0x3f808000, 0x3f818000, 0x3f808001, 0x3f807fff, 0x7f7fffff, 0x477ff000,
                                       0x477fefff, 0x33000000, 0x33000001, 0x33c00000, 0x387fffff, 0x3f801000,
                                       0x3f803000, 0x00000001, 0x00400000, 0xc7800000};
    for (enum dtype dtype = 0; dtype < DTYPE_COUNT; dtype++) {
        size_t size = dtype == DTYPE_F32 ? 4 : 2;
        for (size_t k = 0; k < LENGTHS; k++) {
            size_t n = lengths[k];
            struct guarded gx, gh, gr, gy, gz;
            float *x = floats_make(&gx, n, k % 2 ? 1e5f : 1e-5f, n);
            for (size_t i = 0; i < n; i += 2) x[i] = convert_bits_f32(special[(i / 2 + k) % 22]);
            guarded_make(&gh, n * size), guarded_make(&gr, n * size);
            v->store(gh.data, x, dtype, n);
            ref->store(gr.data, x, dtype, n);
            assert_memory_equal(gh.data, gr.data, n * size);
            guarded_make(&gy, n * 4), guarded_make(&gz, n * 4);
            v->load(gy.data, gr.data, dtype, n);
            ref->load(gz.data, gr.data, dtype, n);
            assert_memory_equal(gy.data, gz.data, n * 4);
            guarded_free(&gx), guarded_free(&gh), guarded_free(&gr), guarded_free(&gy), guarded_free(&gz);
        }
    }
}

static void argmax_agrees(void **state)
{
    const struct vector_variant *v = usable(state), *ref = reference();
    for (size_t k = 0; k < LENGTHS; k++) {
        size_t n = lengths[k];
        struct guarded g;
        float *x = floats_make(&g, n, 1, n);
        uint64_t seed = n;
        for (int round = 0; round < 8; round++) {
            size_t a = random_next(&seed) % n, b = random_next(&seed) % n;
            x[random_next(&seed) % n] = NAN;
            x[a] = x[b] = 1.0f + (float)round; /* a tie */
            size_t want = a < b ? a : b;
            assert_int_equal(v->argmax(x, n), want);
            assert_int_equal(ref->argmax(x, n), want);
        }
        for (size_t i = 0; i < n; i++) x[i] = NAN;
        assert_int_equal(v->argmax(x, n), n);
        x[n / 2] = -INFINITY;
        assert_int_equal(v->argmax(x, n), n / 2);
        x[n - 1] = INFINITY;
        assert_int_equal(v->argmax(x, n), n - 1);
        guarded_free(&g);
    }
}

static void choice_names_what_is_missing(void **state)
{
    (void)state;
    const struct vector_variant *v;
    struct helm_err err = {0};
    assert_int_equal(vector_choose(CPU_AVX2 | CPU_AVX512, NULL, &v, &err), 0);
    assert_string_equal(v->name, "avx512");
    assert_int_equal(vector_choose(CPU_AVX2, NULL, &v, &err), 0);
    assert_string_equal(v->name, "avx2");
    assert_int_equal(vector_choose(0, NULL, &v, &err), 0);
    assert_string_equal(v->name, "ref");
    assert_int_equal(vector_choose(CPU_AVX2, "avx512", &v, &err), HELM_E_UNSUPPORTED);
    assert_null(v);
    assert_int_equal(vector_choose(CPU_AVX2, "sve", &v, &err), HELM_E_NOT_FOUND);
    assert_non_null(strstr(err.text, "sve"));
}

int main(void)
{
    size_t count;
    const struct vector_variant *const *table = vector_variants(&count);
    static const struct {
        const char *name;
        CMUnitTestFunction run;
    } kinds[] = {{"rmsnorm", rmsnorm_agrees},
                 {"layernorm", layernorm_agrees},
                 {"rope", rope_agrees},
                 {"gelu", gelu_agrees},
                 {"relu", relu_agrees},
                 {"swiglu", swiglu_agrees},
                 {"swiglu_clamped", swiglu_clamped_agrees},
                 {"sigmoid", sigmoid_agrees},
                 {"add", add_agrees},
                 {"load, store", conversions_agree},
                 {"argmax", argmax_agrees}};
    enum { KINDS = sizeof kinds / sizeof *kinds, MOST = 8 };
    struct CMUnitTest tests[KINDS * MOST + 1];
    char names[KINDS * MOST][64];
    size_t n = 0;
    if (count > MOST) return fprintf(stderr, "more than %d variants\n", MOST), 1;
    for (size_t i = 0; i < count; i++)
        for (size_t k = 0; k < KINDS; k++, n++) {
            snprintf(names[n], sizeof names[n], "%s %s", table[i]->name, kinds[k].name);
            tests[n] = (struct CMUnitTest){names[n], kinds[k].run, NULL, NULL, (void *)(uintptr_t)table[i]};
        }
    tests[n++] = (struct CMUnitTest)cmocka_unit_test(choice_names_what_is_missing);
    return _cmocka_run_group_tests("vector kernels", tests, n, NULL, NULL);
}
