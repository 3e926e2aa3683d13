/* Every linear variant of the table against the reference: odd sizes, unaligned weights, poisoned outputs. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "common/cpu.h"
#include "tests/kernels/kernel_buffers.h"
#include "worker-cpu/kernels.h"
#include "worker-cpu/kernels/convert.h"

static const size_t sizes[] = {1, 2, 3, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 47, 48, 49, 63, 64, 65, 100, 129};
#define SIZES (sizeof sizes / sizeof *sizes)

/* |difference| allowed, with `magnitude` the sum of |w x|: an fp32 sum of n terms in any order is off by
 * about sqrt(n) roundings of 2^-24, at worst by n; a single lost or doubled term is 1/n of the magnitude and
 * stands out. */
static double tolerance(double magnitude, size_t cols)
{
    return 0x1p-24 * (4 + 2 * sqrt((double)cols)) * magnitude;
}

struct problem {
    enum dtype dtype;
    size_t rows, cols, tokens, ldx, ldy;
    struct guarded w, x;
    double *sum, *magnitude; /* [token][row] */
};

static size_t dtype_size(enum dtype dtype)
{
    return dtype == DTYPE_F32 ? 4 : 2;
}

/* Weights end at an unreadable page, so their start is aligned to one element at most; x has NaN between its
 * rows. Activations are rounded to bf16 when `rounded`: then a variant that rounds them itself must agree as
 * closely as one that does not. */
static void problem_make(struct problem *p, enum dtype dtype, size_t rows, size_t cols, size_t tokens,
                         bool rounded)
{
    uint64_t seed = 88172645463325252u ^ rows << 40 ^ cols << 20 ^ tokens;
    *p = (struct problem){.dtype = dtype, .rows = rows, .cols = cols, .tokens = tokens};
    p->ldx = cols + tokens % 4;
    p->ldy = rows + cols % 5;
    guarded_make(&p->w, rows * cols * dtype_size(dtype));
    guarded_make(&p->x, ((tokens - 1) * p->ldx + cols) * sizeof(float));
    float *x = p->x.data;
    for (size_t t = 0; t < tokens; t++)
        for (size_t c = 0; c < cols; c++) {
            float v = random_float(&seed);
            x[t * p->ldx + c] = rounded ? convert_bf16_f32(convert_f32_bf16(v)) : v;
        }
    for (size_t i = 0; i < rows * cols; i++) {
        float v = random_float(&seed);
        uint16_t half = dtype == DTYPE_BF16 ? convert_f32_bf16(v) : convert_f32_f16(v);
        if (dtype == DTYPE_F32)
            memcpy((char *)p->w.data + i * 4, &v, 4);
        else
            memcpy((char *)p->w.data + i * 2, &half, 2);
    }
    p->sum = calloc(rows * tokens, sizeof *p->sum);
    p->magnitude = calloc(rows * tokens, sizeof *p->magnitude);
    assert_true(p->sum && p->magnitude);
    float *row = malloc(cols * sizeof *row);
    assert_non_null(row);
    for (size_t r = 0; r < rows; r++) {
        for (size_t c = 0; c < cols; c++) row[c] = convert_load(p->w.data, dtype, r * cols + c);
        for (size_t t = 0; t < tokens; t++) {
            double sum = 0, magnitude = 0;
            for (size_t c = 0; c < cols; c++) {
                double product = (double)row[c] * (double)x[t * p->ldx + c];
                sum += product;
                magnitude += fabs(product);
            }
            p->sum[t * rows + r] = sum;
            p->magnitude[t * rows + r] = magnitude;
        }
    }
    free(row);
}

static void problem_free(struct problem *p)
{
    guarded_free(&p->w);
    guarded_free(&p->x);
    free(p->sum);
    free(p->magnitude);
}

static void check(const struct linear_variant *v, const struct problem *p, size_t t, size_t r, float got,
                  double before)
{
    double want = p->sum[t * p->rows + r] + before;
    double allowed = tolerance(p->magnitude[t * p->rows + r] + fabs(before), p->cols);
    if (!(fabs((double)got - want) <= allowed))
        fail_msg("%s %s rows %zu cols %zu tokens %zu: y[%zu][%zu] = %.9g, reference %.9g, allowed %.3g",
                 v->name, dtype_name(p->dtype), p->rows, p->cols, p->tokens, t, r, (double)got, want,
                 allowed);
}

static void *aligned_scratch(size_t bytes)
{
    size_t room = (bytes + 64) / 64 * 64;
    void *scratch = aligned_alloc(64, room);
    assert_non_null(scratch);
    memset(scratch, 0xff, room);
    return scratch;
}

/* The whole batched path into y (row stride p->ldy), the weights cut into `shares` at uneven places. */
static void multiply(const struct linear_variant *v, const struct problem *p, float *y, bool accumulate,
                     size_t shares)
{
    struct guarded packed;
    guarded_make(&packed, v->packed_bytes(p->tokens, p->cols));
    void *scratch = aligned_scratch(v->scratch_bytes(p->cols, p->tokens));
    if (v->thread_begin) v->thread_begin();
    size_t middle = p->tokens / 2 / v->pack_tokens * v->pack_tokens;
    if (middle) v->pack(packed.data, p->x.data, p->ldx, p->tokens, p->cols, 0, middle);
    v->pack(packed.data, p->x.data, p->ldx, p->tokens, p->cols, middle, p->tokens);
    for (size_t s = 0, r = 0; s < shares; s++) {
        size_t end = s + 1 == shares ? p->rows : p->rows * (2 * s + 1) / (2 * shares);
        if (end == r) continue;
        v->gemm(y + r, p->ldy, (const char *)p->w.data + r * p->cols * dtype_size(p->dtype), packed.data,
                end - r, p->cols, p->tokens, accumulate, scratch);
        r = end;
    }
    if (v->thread_end) v->thread_end();
    free(scratch);
    guarded_free(&packed);
}

static void check_gemm(const struct linear_variant *v, const struct problem *p, bool accumulate)
{
    /* One row more than written before y, ldy >= rows, and the last written element is the last readable one.
     */
    struct guarded out;
    guarded_make(&out, (p->ldy * p->tokens + p->rows) * sizeof(float));
    float *before = out.data, *y = before + p->ldy;
    uint64_t seed = 42;
    for (size_t t = 0; t < p->tokens && accumulate; t++)
        for (size_t r = 0; r < p->rows; r++) y[t * p->ldy + r] = random_float(&seed);
    multiply(v, p, y, accumulate, 1);
    seed = 42;
    for (size_t t = 0; t < p->tokens; t++) {
        for (size_t r = 0; r < p->rows; r++)
            check(v, p, t, r, y[t * p->ldy + r], accumulate ? (double)random_float(&seed) : 0);
        for (size_t r = p->rows; r < p->ldy && t + 1 < p->tokens; r++)
            assert_int_equal(convert_f32_bits(y[t * p->ldy + r]), 0xffffffffu);
    }
    for (size_t r = 0; r < p->ldy; r++) assert_int_equal(convert_f32_bits(before[r]), 0xffffffffu);
    guarded_free(&out);
}

static const struct linear_variant *usable(void **state)
{
    const struct linear_variant *v = *state;
    unsigned missing = v->features & ~cpu_features();
    char text[128];
    if (missing) {
        print_message("linear %s %s skipped: this machine lacks %s\n", v->name, dtype_name(v->dtype),
                      cpu_features_text(missing, text, sizeof text));
        skip();
    }
    struct helm_err err = {0};
    if (v->features & CPU_AMX_BF16 && cpu_enable_amx(&err) != 0) fail_msg("%s", err.text);
    return v;
}

static void gemv_agrees(void **state)
{
    const struct linear_variant *v = usable(state);
    static const size_t more[][2] = {{300, 4099}, {13, 12288}, {1030, 40}};
    for (size_t i = 0; i < SIZES * SIZES + 3; i++) {
        size_t rows = i < SIZES * SIZES ? sizes[i / SIZES] : more[i - SIZES * SIZES][0];
        size_t cols = i < SIZES * SIZES ? sizes[i % SIZES] : more[i - SIZES * SIZES][1];
        struct problem p;
        problem_make(&p, v->dtype, rows, cols, 1, false);
        struct guarded out, part;
        guarded_make(&out, (rows + 16) * sizeof(float));
        guarded_make(&part, rows * sizeof(float));
        float *y = (float *)out.data + 16, *split = part.data;
        v->gemv(y, p.w.data, p.x.data, rows, cols, NULL);
        for (size_t r = 0; r < rows; r++) check(v, &p, 0, r, y[r], 0);
        for (size_t r = 0; r < 16; r++)
            assert_int_equal(convert_f32_bits(((float *)out.data)[r]), 0xffffffffu);
        /* A row's result does not depend on how rows are shared among threads. */
        size_t cut = rows / 3;
        if (cut) v->gemv(split, p.w.data, p.x.data, cut, cols, NULL);
        v->gemv(split + cut, (char *)p.w.data + cut * cols * dtype_size(v->dtype), p.x.data, rows - cut, cols,
                NULL);
        assert_memory_equal(split, y, rows * sizeof *y);
        /* Nor on how they are read ahead: past the guarded page's end, and of what is nobody's. */
        const struct gemv_reads reads[] = {{.near = 64},
                                           {.near = 2048, .far = 1 << 20, .next = (const void *)64},
                                           {.near = 0, .far = 256, .next = y, .next_stride = 4096}};
        for (size_t k = 0; k < sizeof reads / sizeof *reads; k++) {
            memset(split, 0xff, rows * sizeof *y);
            v->gemv(split, p.w.data, p.x.data, rows, cols, &reads[k]);
            assert_memory_equal(split, y, rows * sizeof *y);
        }
        guarded_free(&out);
        guarded_free(&part);
        problem_free(&p);
    }
}

static void gemm_agrees(void **state)
{
    const struct linear_variant *v = usable(state);
    /* Every fifth of all combinations, a different fifth in each plane; then shapes past each blocking limit.
     */
    static const size_t more[][3] = {{100, 2081, 33}, {49, 4099, 65},  {300, 70, 20},   {33, 100, 600},
                                     {257, 33, 513},  {65, 1056, 300}, {513, 1100, 17}, {50, 2100, 5}};
    const size_t all = SIZES * SIZES * SIZES;
    for (size_t i = 0; i < all + sizeof more / sizeof *more; i++) {
        size_t r = i / SIZES / SIZES, c = i / SIZES % SIZES, t = i % SIZES;
        if (i < all && (r + 2 * c + t) % 5) continue;
        struct problem p;
        if (i < all)
            problem_make(&p, v->dtype, sizes[r], sizes[c], sizes[t], !v->exact_input);
        else
            problem_make(&p, v->dtype, more[i - all][0], more[i - all][1], more[i - all][2], !v->exact_input);
        check_gemm(v, &p, (r + c + t) % 2);
        problem_free(&p);
    }
}

static void gemm_does_not_depend_on_shares(void **state)
{
    const struct linear_variant *v = usable(state);
    static const size_t shapes[][3] = {{200, 100, 64}, {131, 65, 5}, {131, 1057, 40}, {97, 129, 8}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        struct problem p;
        problem_make(&p, v->dtype, shapes[i][0], shapes[i][1], shapes[i][2], !v->exact_input);
        float *whole = calloc(p.ldy * p.tokens, sizeof *whole), *cut = calloc(p.ldy * p.tokens, sizeof *cut);
        assert_true(whole && cut);
        multiply(v, &p, whole, false, 1);
        multiply(v, &p, cut, false, 3);
        if (strcmp(v->name, "openblas") == 0) { /* another library's order of sums: close, not equal */
            for (size_t t = 0; t < p.tokens; t++)
                for (size_t r = 0; r < p.rows; r++) check(v, &p, t, r, cut[t * p.ldy + r], 0);
        } else {
            assert_memory_equal(whole, cut, p.ldy * p.tokens * sizeof *whole);
        }
        free(whole);
        free(cut);
        problem_free(&p);
    }
}

/* Variants that round activations must round to the nearest bf16, ties to even: identity weights show it. */
static void rounding_is_to_nearest_even(void **state)
{
    const struct linear_variant *v = usable(state);
    if (v->exact_input) return;
    enum { COLS = 64, TOKENS = 20 };
    struct problem p;
    problem_make(&p, v->dtype, COLS, COLS, TOKENS, false);
    static const uint32_t bits[] = {0x3f808000, 0x3f818000, 0x3f808001, 0x3f807fff,
                                    0xbf818000, 0x7f7f0000, 0x3fffffff};
    float *x = p.x.data, y[TOKENS * (COLS + 8)];
    for (size_t i = 0; i < sizeof bits / sizeof *bits; i++) x[i * p.ldx + i * 5] = convert_bits_f32(bits[i]);
    for (size_t i = 0; i < (size_t)COLS * COLS; i++)
        ((uint16_t *)p.w.data)[i] = convert_f32_bf16(i / COLS == i % COLS ? 1.0f : 0.0f);
    multiply(v, &p, y, false, 1);
    for (size_t t = 0; t < TOKENS; t++)
        for (size_t r = 0; r < COLS; r++) {
            float want = convert_bf16_f32(convert_f32_bf16(x[t * p.ldx + r]));
            assert_true(y[t * p.ldy + r] == want);
        }
    problem_free(&p);
}

static void choice_names_what_is_missing(void **state)
{
    (void)state;
    const unsigned all = CPU_AVX2 | CPU_AVX512 | CPU_AVX512_BF16 | CPU_AMX_BF16;
    const struct linear_variant *v;
    struct helm_err err = {0};
    static const struct {
        enum dtype dtype;
        unsigned features;
        const char *name;
    } automatic[] = {{DTYPE_BF16, all, "amx-bf16"},
                     {DTYPE_BF16, CPU_AVX2 | CPU_AVX512 | CPU_AVX512_BF16, "avx512-bf16"},
                     {DTYPE_BF16, CPU_AVX2 | CPU_AVX512, "avx512"},
                     {DTYPE_F16, all, "avx512"},
                     {DTYPE_F32, CPU_AVX2, "avx2"},
                     {DTYPE_F32, 0, "ref"}};
    for (size_t i = 0; i < sizeof automatic / sizeof *automatic; i++) {
        assert_int_equal(linear_choose(automatic[i].dtype, automatic[i].features, NULL, &v, &err), 0);
        assert_string_equal(v->name, automatic[i].name);
        assert_int_equal(v->dtype, automatic[i].dtype);
    }
    assert_int_equal(linear_choose(DTYPE_F16, all, "openblas", &v, &err), 0);
    assert_string_equal(v->name, "openblas");
    assert_int_equal(linear_choose(DTYPE_BF16, CPU_AVX2, "avx512", &v, &err), HELM_E_UNSUPPORTED);
    assert_non_null(strstr(err.text, "avx512"));
    assert_null(v);
    assert_int_equal(linear_choose(DTYPE_F16, all, "amx-bf16", &v, &err), HELM_E_UNSUPPORTED);
    assert_non_null(strstr(err.text, "f16"));
    assert_int_equal(linear_choose(DTYPE_F16, all, "neon", &v, &err), HELM_E_NOT_FOUND);
    assert_non_null(strstr(err.text, "neon"));
}

static void scalar_conversions_round_trip(void **state)
{
    (void)state;
    for (uint32_t h = 0; h < 65536; h++) {
        float b = convert_bf16_f32((uint16_t)h), f = convert_f16_f32((uint16_t)h);
        if (isnan(b))
            assert_true(isnan(convert_bf16_f32(convert_f32_bf16(b))));
        else
            assert_int_equal(convert_f32_bf16(b), h);
        if (isnan(f))
            assert_true(isnan(convert_f16_f32(convert_f32_f16(f))));
        else
            assert_int_equal(convert_f32_f16(f), h);
    }
    assert_int_equal(convert_f32_f16(65519.99f), 0x7bff);
    assert_int_equal(convert_f32_f16(65520.0f), 0x7c00);
    assert_int_equal(convert_f32_f16(0x1p-25f), 0);
    assert_int_equal(convert_f32_f16(0x1.8p-25f), 1);
    assert_int_equal(convert_f32_f16(1.0f + 0x1p-11f), 0x3c00);
    assert_int_equal(convert_f32_f16(1.0f + 0x3p-11f), 0x3c02);
}

int main(void)
{
    size_t count;
    const struct linear_variant *const *table = linear_variants(&count);
    static const struct {
        const char *name;
        CMUnitTestFunction run;
    } kinds[] = {{"gemv", gemv_agrees},
                 {"gemm", gemm_agrees},
                 {"shares", gemm_does_not_depend_on_shares},
                 {"rounding", rounding_is_to_nearest_even}};
    enum { KINDS = sizeof kinds / sizeof *kinds, MOST = 32 };
    struct CMUnitTest tests[KINDS * MOST + 2];
    char names[KINDS * MOST][64];
    size_t n = 0;
    if (count > MOST) return fprintf(stderr, "more than %d variants\n", MOST), 1;
    for (size_t i = 0; i < count; i++)
        for (size_t k = 0; k < KINDS; k++, n++) {
            snprintf(names[n], sizeof names[n], "%s %s %s", table[i]->name, dtype_name(table[i]->dtype),
                     kinds[k].name);
            tests[n] = (struct CMUnitTest){names[n], kinds[k].run, NULL, NULL, (void *)(uintptr_t)table[i]};
        }
    tests[n++] = (struct CMUnitTest)cmocka_unit_test(choice_names_what_is_missing);
    tests[n++] = (struct CMUnitTest)cmocka_unit_test(scalar_conversions_round_trip);
    return _cmocka_run_group_tests("linear kernels", tests, n, NULL, NULL);
}
