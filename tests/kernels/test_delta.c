/* Every kernel of gated delta nets in the table against the formulas in double: head sizes of many shapes,
 * runs of tokens, states that go on; and the same bits however a sequence is cut into runs. Buffers end at an
 * unreadable page. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "common/cpu/kernels/vector.h"
#include "tests/kernels/kernel_buffers.h"

#define TOKENS 41 /* more than kernels take together, and no multiple of it */

static const struct vector_variant *usable(void **state)
{
    const struct vector_variant *v = *state;
    const unsigned missing = v->features & ~cpu_features();
    char text[128];
    if (missing) {
        print_message("delta %s skipped: this machine lacks %s\n", v->name,
                      cpu_features_text(missing, text, sizeof text));
        skip();
    }
    return v;
}

static float *floats_make(struct guarded *g, size_t n, float scale, uint64_t *seed)
{
    guarded_make(g, n * sizeof(float));
    float *x = g->data;
    for (size_t i = 0; i < n; i++) x[i] = scale * random_float(seed);
    return x;
}

/* Cuts of a sequence: lengths of its runs, in turn. */
static const uint32_t whole[] = {TOKENS}, single[] = {1}, odd[] = {3, 1, 8, 2, 16, 5};
static const struct {
    const uint32_t *run;
    size_t count;
} cuts[] = {{whole, 1}, {single, 1}, {odd, sizeof odd / sizeof *odd}};
#define CUTS (sizeof cuts / sizeof *cuts)

static double sigmoid(double x)
{
    return 1 / (1 + exp(-x));
}

/* ---- convolution ---- */

static void want_convolved(const float *x, const float *weight, const float *state, uint32_t channels,
                           double *want)
{
    for (int t = 0; t < TOKENS; t++)
        for (uint32_t c = 0; c < channels; c++) {
            double sum = 0;
            for (int w = 0; w < DELTA_CONV_WIDTH; w++) {
                const int from = t - DELTA_COLUMNS + w;
                const float in = from < 0 ? state[(from + DELTA_COLUMNS) * (int)channels + (int)c]
                                          : x[from * (int)channels + (int)c];
                sum += (double)weight[w * (int)channels + (int)c] * (double)in;
            }
            want[(uint32_t)t * channels + c] = sum * sigmoid(sum);
        }
}

static void convolve_channels(const struct vector_variant *v, uint32_t channels)
{
    uint64_t seed = channels;
    struct guarded gx, gw, gs, got, goes, first = {0}, left = {0};
    const size_t n = (size_t)TOKENS * channels;
    float *x = floats_make(&gx, n, 2, &seed), *w = floats_make(&gw, DELTA_CONV_WIDTH * channels, 1, &seed),
          *s = floats_make(&gs, DELTA_COLUMNS * channels, 2, &seed);
    double *want = calloc(n, sizeof *want);
    want_convolved(x, w, s, channels, want);
    for (size_t c = 0; c < CUTS; c++) {
        guarded_make(&got, n * sizeof(float));
        guarded_make(&goes, gs.bytes);
        memcpy(got.data, x, got.bytes);
        memcpy(goes.data, s, goes.bytes);
        struct delta_convolution run = {.x = got.data,
                                        .stride = channels,
                                        .channels = channels,
                                        .weight = w,
                                        .weight_stride = channels,
                                        .state = goes.data,
                                        .state_stride = channels};
        for (uint32_t t = 0, i = 0; t < TOKENS; t += run.tokens, i++) {
            run.tokens = cuts[c].run[i % cuts[c].count];
            if (run.tokens > TOKENS - t) run.tokens = TOKENS - t;
            run.x = (float *)got.data + (size_t)t * channels;
            v->delta->convolve(&run);
        }
        for (size_t i = 0; i < n; i++)
            if (!(fabs(((float *)got.data)[i] - want[i]) <= 2e-6 * (1 + fabs(want[i]))))
                fail_msg("%s: [%zu] of %u channels is %.9g, not %.9g", v->name, i, channels,
                         (double)((float *)got.data)[i], want[i]);
        for (uint32_t i = 0; i < DELTA_COLUMNS * channels; i++)
            assert_true(((float *)goes.data)[i] == x[(size_t)(TOKENS - DELTA_COLUMNS) * channels + i]);
        if (c == 0) {
            first = got;
            left = goes;
            continue;
        }
        assert_memory_equal(got.data, first.data, got.bytes);
        assert_memory_equal(goes.data, left.data, goes.bytes);
        guarded_free(&got), guarded_free(&goes);
    }
    guarded_free(&first), guarded_free(&left), guarded_free(&gx), guarded_free(&gw), guarded_free(&gs);
    free(want);
}

static void convolution_agrees(void **state)
{
    static const uint32_t channels[] = {1, 7, 8, 15, 16, 17, 33, 64, 100};
    const struct vector_variant *v = usable(state);
    for (size_t i = 0; i < sizeof channels / sizeof *channels; i++) convolve_channels(v, channels[i]);
}

/* ---- the rule ---- */

static double inverse_length(const float *x, uint32_t n)
{
    double sum = 0;
    for (uint32_t i = 0; i < n; i++) sum += (double)x[i] * (double)x[i];
    return 1 / sqrt(sum + 1e-6);
}

/* Matrix by matrix, as the formulas are written: *state is S in double. */
static void want_token(const struct delta_run *run, uint32_t t, double *state, double *out)
{
    const float *q = run->q + t * run->stride, *k = run->k + t * run->stride, *v = run->v + t * run->stride;
    const double gamma = (double)run->decay *
                         log(1 + exp((double)(run->alpha[t * run->gate_stride]) + (double)run->dt_bias)),
                 beta = sigmoid((double)run->beta[t * run->gate_stride]), lk = inverse_length(k, run->key),
                 lq = inverse_length(q, run->key) / sqrt((double)run->key);
    double squares = 0;
    for (uint32_t i = 0; i < run->key * run->value; i++) state[i] *= exp(gamma);
    for (uint32_t j = 0; j < run->value; j++) {
        double known = 0, sum = 0;
        for (uint32_t i = 0; i < run->key; i++) known += state[i * run->value + j] * (double)k[i] * lk;
        for (uint32_t i = 0; i < run->key; i++)
            state[i * run->value + j] += (double)k[i] * lk * beta * ((double)v[j] - known);
        for (uint32_t i = 0; i < run->key; i++) sum += state[i * run->value + j] * (double)q[i] * lq;
        out[j] = sum;
        squares += sum * sum;
    }
    for (uint32_t j = 0; j < run->value; j++) {
        const double z = (double)run->z[t * run->z_stride + j];
        out[j] *= (double)run->norm[j] * z * sigmoid(z) / sqrt(squares / run->value + (double)run->eps);
    }
}

struct rule_case {
    struct delta_run run;
    struct guarded m, z, gates, norm, state;
};

/* Two heads side by side, of which the second is computed; decays from next to none to almost all. */
static void case_make(struct rule_case *c, uint32_t key, uint32_t value, uint64_t seed)
{
    const uint32_t channels = 4 * key + 2 * value;
    const float *m = floats_make(&c->m, (size_t)TOKENS * channels, 2, &seed),
                *z = floats_make(&c->z, (size_t)TOKENS * 2 * value, 3, &seed),
                *gates = floats_make(&c->gates, (size_t)TOKENS * 4, 4, &seed);
    c->run = (struct delta_run){.tokens = TOKENS,
                                .key = key,
                                .value = value,
                                .q = m + key,
                                .k = m + 3 * key,
                                .v = m + 4 * key + value,
                                .stride = channels,
                                .z = z + value,
                                .z_stride = 2 * value,
                                .alpha = gates + 1,
                                .beta = gates + 3,
                                .gate_stride = 4,
                                .decay = -0.5f - (float)(seed % 7) / 4,
                                .dt_bias = 0.25f,
                                .norm = floats_make(&c->norm, value, 2, &seed),
                                .eps = 1e-6f,
                                .out_stride = value};
    (void)floats_make(&c->state, (size_t)key * value, 1, &seed);
}

static void case_free(struct rule_case *c)
{
    guarded_free(&c->m), guarded_free(&c->z), guarded_free(&c->gates), guarded_free(&c->norm),
        guarded_free(&c->state);
}

/* The whole sequence in runs of some lengths, from the case's state. */
static void run_cut(const struct vector_variant *v, const struct rule_case *c, size_t cut,
                    struct guarded *out, struct guarded *state)
{
    guarded_make(out, (size_t)TOKENS * c->run.value * sizeof(float));
    guarded_make(state, c->state.bytes);
    memcpy(state->data, c->state.data, state->bytes);
    for (uint32_t t = 0, i = 0, count; t < TOKENS; t += count, i++) {
        struct delta_run run = c->run;
        count = cuts[cut].run[i % cuts[cut].count];
        if (count > TOKENS - t) count = TOKENS - t;
        run.tokens = count;
        run.q += t * run.stride, run.k += t * run.stride, run.v += t * run.stride;
        run.z += t * run.z_stride;
        run.alpha += t * run.gate_stride, run.beta += t * run.gate_stride;
        run.state = state->data;
        run.out = (float *)out->data + (size_t)t * run.out_stride;
        v->delta->rule(&run);
    }
}

/* Sums of up to 256 products, each token's on top of those before: 2e-5 of the largest. */
static void assert_near(const char *what, const struct guarded *got, const double *want, size_t n)
{
    double most = 0;
    for (size_t i = 0; i < n; i++) most = fmax(most, fabs(want[i]));
    for (size_t i = 0; i < n; i++)
        if (!(fabs((double)((float *)got->data)[i] - want[i]) <= 2e-5 * most))
            fail_msg("%s [%zu] of %zu is %.9g, not %.9g", what, i, n, (double)((float *)got->data)[i],
                     want[i]);
}

static void rule_of_size(const struct vector_variant *v, uint32_t key, uint32_t value)
{
    struct rule_case c;
    case_make(&c, key, value, 17 * key + value);
    double *state = calloc((size_t)key * value, sizeof *state),
           *out = calloc((size_t)TOKENS * value, sizeof *out);
    for (uint32_t i = 0; i < key * value; i++) state[i] = (double)((float *)c.state.data)[i];
    for (uint32_t t = 0; t < TOKENS; t++) want_token(&c.run, t, state, out + t * value);
    struct guarded first, left, got, goes;
    run_cut(v, &c, 0, &first, &left);
    char what[64];
    snprintf(what, sizeof what, "%s, heads of %u and %u: output", v->name, key, value);
    assert_near(what, &first, out, (size_t)TOKENS * value);
    snprintf(what, sizeof what, "%s, heads of %u and %u: state", v->name, key, value);
    assert_near(what, &left, state, (size_t)key * value);
    for (size_t cut = 1; cut < CUTS; cut++) {
        run_cut(v, &c, cut, &got, &goes);
        assert_memory_equal(got.data, first.data, got.bytes);
        assert_memory_equal(goes.data, left.data, goes.bytes);
        guarded_free(&got), guarded_free(&goes);
    }
    guarded_free(&first), guarded_free(&left);
    case_free(&c);
    free(state);
    free(out);
}

static void rule_agrees(void **state)
{
    static const uint32_t sizes[][2] = {{128, 128}, {16, 16},  {16, 128},  {128, 16},
                                        {64, 48},   {48, 112}, {256, 256}, {32, 80}};
    const struct vector_variant *v = usable(state);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) rule_of_size(v, sizes[i][0], sizes[i][1]);
}

/* Gates that overflow an exponential, and inputs of zeros: numbers all the same. */
static void extremes_stay_numbers(void **state)
{
    const struct vector_variant *v = usable(state);
    float zero[64] = {0}, alpha[4] = {1000, -1000, 0, 0}, beta[4] = {-1000, 1000, 0, 0}, norm[16],
          out[4 * 16], s[256];
    for (int i = 0; i < 16; i++) norm[i] = 1;
    for (int i = 0; i < 256; i++) s[i] = 1;
    const struct delta_run run = {.tokens = 4,
                                  .key = 16,
                                  .value = 16,
                                  .q = zero,
                                  .k = zero,
                                  .v = zero,
                                  .stride = 16,
                                  .z = zero,
                                  .z_stride = 16,
                                  .alpha = alpha,
                                  .beta = beta,
                                  .gate_stride = 1,
                                  .decay = -1,
                                  .norm = norm,
                                  .eps = 1e-6f,
                                  .state = s,
                                  .out = out,
                                  .out_stride = 16};
    v->delta->rule(&run);
    for (int i = 0; i < 4 * 16; i++) assert_true(out[i] == 0);
    for (int i = 0; i < 256; i++) assert_true(s[i] == 0); /* the first token forgets all */
}

int main(void)
{
    static const struct {
        const char *name;
        CMUnitTestFunction run;
    } kinds[] = {{"convolution", convolution_agrees},
                 {"rule", rule_agrees},
                 {"extremes", extremes_stay_numbers}};
    enum { KINDS = sizeof kinds / sizeof *kinds, MOST = 8 };
    struct CMUnitTest tests[KINDS * MOST];
    char names[KINDS * MOST][64];
    size_t count, n = 0;
    const struct vector_variant *const *table = vector_variants(&count);
    if (count > MOST) return fprintf(stderr, "more than %d variants\n", MOST), 1;
    for (size_t i = 0; i < count; i++)
        for (size_t k = 0; k < KINDS; k++, n++) {
            snprintf(names[n], sizeof names[n], "%s %s", table[i]->name, kinds[k].name);
            tests[n] = (struct CMUnitTest){names[n], kinds[k].run, NULL, NULL, (void *)(uintptr_t)table[i]};
        }
    return _cmocka_run_group_tests("delta kernels", tests, n, NULL, NULL);
}
