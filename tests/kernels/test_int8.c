/* Every linear kernel with activations of 8 bits against their plain definition (int8_ref.c), and that
 * against exact products. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>

#include "tests/kernels/linear_problem.h"

#define BLOCK 32

static const struct linear_kernel *reference(const struct linear_kernel *v)
{
    const struct linear_kernel *ref;
    struct helm_err err = {0};
    assert_int_equal(linear_choose(v->format, v->schedule, LINEAR_INT8, 0, "ref", &ref, &err), 0);
    return ref;
}

/* magnitude[t][r]: the sum of |x| over the columns, each times the largest |w| of its block: what roundings
 * of sums and of scaled terms, smallest values among them, are in proportion to. For x and w as they are
 * now. */
static void magnitudes(struct problem *p)
{
    const size_t values = tensor_format_of(p->format)->block_values, blocks = p->cols / values;
    const struct tensor_matrix matrix = {p->format, p->w.data, p->w.bytes, (uint32_t)p->rows,
                                         (uint32_t)p->cols};
    float *row = malloc(p->cols * sizeof *row);
    double *all = calloc(p->tokens * blocks, sizeof *all), *largest = malloc(blocks * sizeof *largest);
    struct helm_err err = {0};
    p->magnitude = calloc(p->rows * p->tokens, sizeof *p->magnitude);
    assert_true(row && all && largest && p->magnitude);
    for (size_t t = 0; t < p->tokens; t++)
        for (size_t c = 0; c < p->cols; c++)
            all[t * blocks + c / values] += fabs((double)((const float *)p->x.data)[t * p->ldx + c]);
    for (size_t r = 0; r < p->rows; r++) {
        assert_int_equal(tensor_format_read_row(&matrix, (uint32_t)r, row, &err), 0);
        memset(largest, 0, blocks * sizeof *largest);
        for (size_t c = 0; c < p->cols; c++)
            largest[c / values] = fmax(largest[c / values], fabs((double)row[c]));
        for (size_t t = 0; t < p->tokens; t++)
            for (size_t b = 0; b < blocks; b++)
                p->magnitude[t * p->rows + r] += largest[b] * all[t * blocks + b];
    }
    free(row);
    free(all);
    free(largest);
}

/* Sums of integers are exact: what differs is the order in which groups are added, in fp32. */
static void check(const struct linear_kernel *v, const struct problem *p, size_t t, size_t r, float got,
                  float want)
{
    const double tiny = 0x1p-130 * (double)p->cols, /* scales may be below what fp32 keeps whole */
        allowed = 0x1p-24 * (8 + 4 * sqrt((double)p->cols / 16)) * p->magnitude[t * p->rows + r] +
                  0x1p-23 * fabs((double)want) + tiny;
    if (!(fabs((double)got - (double)want) <= allowed))
        fail_msg("%s %s rows %zu cols %zu tokens %zu: y[%zu][%zu] = %.9g, reference %.9g, allowed %.3g",
                 v->name, tensor_format_name(p->format), p->rows, p->cols, p->tokens, t, r, (double)got,
                 (double)want, allowed);
}

/* y of one token, `rows` rows. */
static void one_token(const struct linear_kernel *v, const struct problem *p, float *y)
{
    float *x = ordered(v, p->x.data, p->cols);
    v->gemv(y, p->w.data, x, p->rows, p->cols, NULL);
    free(x);
}

static void gemv_agrees(void **state)
{
    const struct linear_kernel *v = usable(state), *ref = reference(v);
    static const size_t more[][2] = {{300, 4096}, {13, 12288}, {37, 2304}, {5, 288}, {6, 992}};
    const size_t all = SIZES * SIZES, some = sizeof more / sizeof *more;
    for (size_t i = 0; i < all + some; i++) {
        const size_t rows = i < all ? sizes[i / SIZES] : more[i - all][0],
                     cols = i < all ? sizes[i % SIZES] : more[i - all][1];
        struct problem p;
        if (i < all && is_repeated(v->format, i % SIZES)) continue;
        problem_make(&p, v->format, rows, cols, 1, false);
        magnitudes(&p);
        struct guarded out, part;
        guarded_make(&out, rows * sizeof(float));
        guarded_make(&part, rows * sizeof(float));
        float *y = out.data, *other = part.data, *x = ordered(v, p.x.data, p.cols);
        one_token(ref, &p, other);
        v->gemv(y, p.w.data, x, rows, p.cols, NULL);
        for (size_t r = 0; r < rows; r++) check(v, &p, 0, r, y[r], other[r]);
        /* A row's result depends neither on how rows are shared among threads nor on how they are read
         * ahead. */
        const size_t cut = rows / 3;
        const struct gemv_reads reads = {.near = 2048, .far = 1 << 20, .next = (const void *)64};
        if (cut) v->gemv(other, p.w.data, x, cut, p.cols, &reads);
        v->gemv(other + cut, row_of(&p, cut), x, rows - cut, p.cols, &reads);
        assert_memory_equal(other, y, rows * sizeof *y);
        free(x);
        guarded_free(&out);
        guarded_free(&part);
        problem_free(&p);
    }
}

/* Activations of any size, and such as are no numbers: a column that is infinite or NaN spoils every row,
 * zeros give zeros, and a block's scale is its own. */
static void odd_activations(void **state)
{
    const struct linear_kernel *v = usable(state), *ref = reference(v);
    enum { ROWS = 5, COLS = 768 };
    struct problem p;
    float y[ROWS], want[ROWS];
    problem_make(&p, v->format, ROWS, COLS, 1, false);
    float *x = p.x.data;
    for (size_t c = 0; c < p.cols; c++) x[c] *= ldexpf(1, (int)(c / BLOCK * 7 % 40) - 20);
    magnitudes(&p);
    one_token(v, &p, y);
    one_token(ref, &p, want);
    for (size_t r = 0; r < ROWS; r++) check(v, &p, 0, r, y[r], want[r]);
    for (size_t at = 0; at < COLS; at += 37) {
        static const uint32_t bits[] = {0x7f800000, 0xff800000, 0x7fc00000, 0xffc00001, 0x7f800001};
        const float kept = x[at];
        x[at] = convert_bits_f32(bits[at % 5]);
        one_token(v, &p, y);
        for (size_t r = 0; r < ROWS; r++) assert_true(isnan(y[r]));
        x[at] = kept;
    }
    for (size_t c = 0; c < p.cols; c++) x[c] = c % BLOCK ? 0 : c % 64 ? 1e-40f : -0.0f;
    one_token(v, &p, y);
    for (size_t r = 0; r < ROWS; r++) assert_true(y[r] == 0);
    /* The largest, and such as no order of adding up brings past fp32 (fill_blocks: no value is above
     * 1e6). */
    static const float large[] = {3e38f, 1e29f};
    for (size_t i = 0; i < sizeof large / sizeof *large; i++) {
        for (size_t c = 0; c < p.cols; c++) x[c] = c % 2 ? large[i] : -large[i];
        free(p.magnitude);
        magnitudes(&p);
        one_token(v, &p, y);
        for (size_t r = 0; r < ROWS; r++)
            if (i || p.magnitude[r] < 3e38) assert_true(isfinite(y[r]));
    }
    problem_free(&p);
}

/* Blocks whose scales are no numbers spoil their row, where exact's do, and no other. */
static void infinities_stay_apart(void **state)
{
    const struct linear_kernel *v = usable(state), *ref = reference(v);
    const struct tensor_format_traits *traits = tensor_format_of(v->format);
    enum { ROWS = 9, COLS = 512 };
    struct problem p;
    struct helm_err err = {0};
    float value[COLS], y[ROWS], want[ROWS];
    problem_make(&p, v->format, ROWS, COLS, 1, false);
    magnitudes(&p);
    one_token(ref, &p, want);
    float *x = ordered(v, p.x.data, COLS);
    for (uint32_t spoiled = 0; spoiled < ROWS; spoiled++) {
        char *row = (char *)p.w.data + spoiled * tensor_format_row_bytes(v->format, COLS), kept[256];
        memcpy(kept, row, traits->block_bytes);
        for (uint32_t at = 0; at + 1 < traits->block_bytes; at++) {
            const struct tensor_matrix one = {v->format, row, traits->block_bytes, 1, traits->block_values};
            const uint16_t half = at % 2 ? 0xfe01 : 0x7c00;
            memcpy(row + at, &half, sizeof half);
            assert_int_equal(tensor_format_read_row(&one, 0, value, &err), 0);
            bool finite = true;
            for (uint32_t i = 0; i < traits->block_values; i++) finite &= isfinite(value[i]) != 0;
            v->gemv(y, p.w.data, x, ROWS, COLS, NULL);
            for (size_t r = 0; r < ROWS; r++)
                if (r != spoiled)
                    check(v, &p, 0, r, y[r], want[r]);
                else if (!finite)
                    assert_false(isfinite(y[r]));
            memcpy(row, kept, traits->block_bytes);
        }
    }
    free(x);
    problem_free(&p);
}

static void check_gemm(const struct linear_kernel *v, const struct problem *p, bool accumulate)
{
    struct guarded out, plain, cut;
    const size_t bytes = ((p->tokens - 1) * p->ldy + p->rows) * sizeof(float);
    guarded_make(&out, bytes);
    guarded_make(&plain, bytes);
    guarded_make(&cut, bytes);
    float *y = out.data, *want = plain.data, *shared = cut.data;
    uint64_t seed = 42;
    for (size_t t = 0; t < p->tokens && accumulate; t++)
        for (size_t r = 0; r < p->rows; r++)
            y[t * p->ldy + r] = want[t * p->ldy + r] = shared[t * p->ldy + r] = random_float(&seed);
    multiply(v, p, y, accumulate, 1);
    if (reference(v) == v)
        memcpy(want, y, bytes);
    else
        multiply(reference(v), p, want, accumulate, 1);
    multiply(v, p, shared, accumulate, 3);
    for (size_t t = 0; t < p->tokens; t++) {
        for (size_t r = 0; r < p->rows; r++) check(v, p, t, r, y[t * p->ldy + r], want[t * p->ldy + r]);
        for (size_t r = p->rows; r < p->ldy && t + 1 < p->tokens; r++)
            assert_int_equal(convert_f32_bits(y[t * p->ldy + r]), 0xffffffffu);
    }
    assert_memory_equal(shared, y, bytes); /* whatever shares of rows threads take */
    guarded_free(&out);
    guarded_free(&plain);
    guarded_free(&cut);
}

static void gemm_agrees(void **state)
{
    const struct linear_kernel *v = usable(state);
    static const size_t more[][3] = {{49, 4096, 65}, {300, 70, 20}, {33, 512, 100}, {130, 2304, 17}};
    const size_t all = SIZES * SIZES * SIZES;
    for (size_t i = 0; i < all + sizeof more / sizeof *more; i++) {
        const size_t r = i / SIZES / SIZES, c = i / SIZES % SIZES, t = i % SIZES;
        struct problem p;
        if (i < all && ((r + 2 * c + t) % SOME(11) || is_repeated(v->format, c))) continue;
        if (i < all)
            problem_make(&p, v->format, sizes[r], sizes[c], sizes[t], false);
        else
            problem_make(&p, v->format, more[i - all][0], more[i - all][1], more[i - all][2], false);
        magnitudes(&p);
        check_gemm(v, &p, (r + c + t) % 2);
        problem_free(&p);
    }
}

/* One column that is no number spoils its token and no other. */
static void gemm_keeps_tokens_apart(void **state)
{
    const struct linear_kernel *v = usable(state);
    enum { ROWS = 40, TOKENS = 19 };
    struct problem p;
    problem_make(&p, v->format, ROWS, 512, TOKENS, false);
    float *y = malloc(p.ldy * TOKENS * sizeof *y), *want = malloc(p.ldy * TOKENS * sizeof *want);
    assert_true(y && want);
    multiply(v, &p, want, false, 1);
    for (size_t spoiled = 0; spoiled < TOKENS; spoiled += 5) {
        float *x = (float *)p.x.data + spoiled * p.ldx + spoiled * 13, kept = *x;
        *x = NAN;
        multiply(v, &p, y, false, 1);
        for (size_t t = 0; t < TOKENS; t++)
            for (size_t r = 0; r < ROWS; r++)
                if (t == spoiled)
                    assert_true(isnan(y[t * p.ldy + r]));
                else
                    assert_true(y[t * p.ldy + r] == want[t * p.ldy + r]);
        *x = kept;
    }
    free(y);
    free(want);
    problem_free(&p);
}

/* Rounding is off by half a step of each block at most: sum |w| * (largest |x| of the block) / 254. */
static void rounding_stays_within_its_bound(void **state)
{
    (void)state;
    for (int f = FORMAT_Q8_0; f < FORMAT_COUNT; f++) {
        enum { ROWS = 7, COLS = 1024 };
        const struct linear_kernel *ref;
        struct helm_err err = {0};
        struct problem p;
        float y[ROWS], row[COLS];
        assert_int_equal(linear_choose((enum tensor_format)f, LINEAR_ONE_TOKEN, LINEAR_INT8, 0, "ref", &ref,
                                       &err),
                         0);
        problem_make(&p, ref->format, ROWS, COLS, 1, false);
        problem_sum(&p);
        one_token(ref, &p, y);
        const struct tensor_matrix matrix = {ref->format, p.w.data, p.w.bytes, ROWS, COLS};
        const float *x = p.x.data;
        bool differs = false;
        for (uint32_t r = 0; r < ROWS; r++) {
            double bound = 0;
            assert_int_equal(tensor_format_read_row(&matrix, r, row, &err), 0);
            for (size_t c = 0; c < COLS; c += BLOCK) {
                double largest = 0, all = 0;
                for (size_t i = c; i < c + BLOCK; i++) {
                    largest = fmax(largest, fabs((double)x[i]));
                    all += fabs((double)row[i]);
                }
                bound += all * largest / 254;
            }
            const double off = fabs((double)y[r] - p.sum[r]);
            assert_true(off <= bound * (1 + 1e-5));
            differs |= off > 1e-6 * bound;
        }
        assert_true(differs); /* it does round */
        problem_free(&p);
    }
}

/* The planner's question and the table agree; without such kernels a format's set is exact's. */
static void choice_falls_back_to_exact(void **state)
{
    (void)state;
    struct helm_err err = {0};
    for (int f = 0; f < FORMAT_COUNT; f++)
        for (unsigned features = 0; features < 2u * CPU_AVX512_VNNI; features++) {
            const enum tensor_format format = (enum tensor_format)f;
            struct linear_set exact, set;
            if (features & (CPU_AVX512 | CPU_AVX512_VNNI) && !(features & CPU_AVX2))
                continue; /* there is none */
            assert_int_equal(linear_choose_set(format, LINEAR_EXACT, features, NULL, &exact, &err), 0);
            assert_int_equal(linear_choose_set(format, LINEAR_INT8, features, NULL, &set, &err), 0);
            if (linear_has_int8(format, features)) {
                assert_int_equal(set.one->inputs, LINEAR_INT8);
                assert_true(set.tokens->inputs == LINEAR_EXACT || !set.decode);
            } else {
                assert_memory_equal(&set, &exact, sizeof set);
            }
            if (exact.one) assert_int_equal(exact.one->inputs, LINEAR_EXACT);
            if (exact.tokens) assert_int_equal(exact.tokens->inputs, LINEAR_EXACT);
        }
}

int main(void)
{
    size_t count;
    const struct linear_kernel *const *table = linear_kernels(&count);
    static const struct {
        const char *name;
        enum linear_schedule schedule;
        CMUnitTestFunction run;
    } kinds[] = {{"gemv", LINEAR_ONE_TOKEN, gemv_agrees},
                 {"odd activations", LINEAR_ONE_TOKEN, odd_activations},
                 {"infinities", LINEAR_ONE_TOKEN, infinities_stay_apart},
                 {"gemm", LINEAR_TOKENS, gemm_agrees},
                 {"few", LINEAR_ONE_TOKEN, few_are_as_one},
                 {"steady", LINEAR_TOKENS, steady_tokens_do_not_depend_on_others},
                 {"tokens apart", LINEAR_TOKENS, gemm_keeps_tokens_apart}};
    enum { KINDS = sizeof kinds / sizeof *kinds, MOST = 448 };
    struct CMUnitTest tests[MOST + 2];
    char names[MOST][64];
    size_t n = 0;
    for (size_t i = 0; i < count; i++)
        for (size_t k = 0; k < KINDS; k++) {
            if (table[i]->inputs != LINEAR_INT8 || kinds[k].schedule != table[i]->schedule) continue;
            if (n == MOST) return fprintf(stderr, "more than %d tests\n", MOST), 1;
            snprintf(names[n], sizeof names[n], "%s %s %s", table[i]->name,
                     tensor_format_name(table[i]->format), kinds[k].name);
            tests[n] = (struct CMUnitTest){names[n], kinds[k].run, NULL, NULL, (void *)(uintptr_t)table[i]};
            n++;
        }
    tests[n++] = (struct CMUnitTest)cmocka_unit_test(rounding_stays_within_its_bound);
    tests[n++] = (struct CMUnitTest)cmocka_unit_test(choice_falls_back_to_exact);
    return _cmocka_run_group_tests("linear kernels with activations of 8 bits", tests, n, NULL, NULL);
}
