/* Problems for tests of linear kernels: weights of any format, activations, and the whole batched path.
 * Included by test_linear.c and test_int8.c, after cmocka. */
#pragma once

#include <math.h>
#include <stdlib.h>

#include "common/base/cpu.h"
#include "common/cpu/kernels/linear.h"
#include "common/formats/convert.h"
#include "tests/kernels/kernel_buffers.h"

static const size_t sizes[] = {1, 2, 3, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 47, 48, 49, 63, 64, 65, 100, 129};
#define SIZES (sizeof sizes / sizeof *sizes)
/* A test takes those rows, columns and tokens, as places in `sizes`, with (r + 2 c + t) % SOME(n) == 0, those
 * rows and columns with (r + c) % SOME_PAIRS == 0, and those larger shapes, listed, with (place + format) %
 * SOME_LISTED == 0. Instrumented, every other two of the three meet once: accesses past a buffer's end are
 * shown by the page after it in every build. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SOME(n) (2 * SIZES)
enum { SOME_PAIRS = 3, SOME_LISTED = 2 };
#else
#define SOME(n) (n)
enum { SOME_PAIRS = 1, SOME_LISTED = 1 };
#endif

struct problem {
    enum tensor_format format;
    size_t rows, cols, tokens, ldx, ldy;
    bool rounded;
    struct guarded w, x;
    double *sum, *magnitude; /* [token][row], by problem_sum */
};

/* Blocks of a format that is only read: any bytes, of which no value is large. */
static void fill_blocks(struct problem *p, uint64_t *seed)
{
    const struct tensor_format_traits *traits = tensor_format_of(p->format);
    struct helm_err err = {0};
    float value[256];
    assert_true(traits->block_values <= 256);
    for (size_t at = 0; at < p->w.bytes; at += traits->block_bytes) {
        unsigned char *block = (unsigned char *)p->w.data + at;
        const struct tensor_matrix one = {p->format, block, traits->block_bytes, 1, traits->block_values};
        bool small = false;
        while (!small) {
            for (uint32_t i = 0; i < traits->block_bytes; i++)
                block[i] = (unsigned char)(int)(random_float(seed) * 1024);
            assert_int_equal(tensor_format_read_row(&one, 0, value, &err), 0);
            small = true;
            for (uint32_t i = 0; i < traits->block_values; i++) small &= fabsf(value[i]) <= 1e6f;
        }
    }
}

static void fill_weights(struct problem *p, uint64_t *seed)
{
    const size_t count = p->rows * p->cols;
    struct helm_err err = {0};
    if (tensor_format_of(p->format)->block_values > 1 &&
        p->format != FORMAT_Q8_0) { /* any bits are a block */
        fill_blocks(p, seed);
        return;
    }
    float *values = malloc(count * sizeof *values);
    assert_non_null(values);
    for (size_t i = 0; i < count; i++) values[i] = random_float(seed);
    assert_int_equal(tensor_format_of(p->format)->write(values, DTYPE_F32, (uint32_t)p->rows,
                                                        (uint32_t)p->cols, p->w.data, NULL, &err),
                     0);
    free(values);
}

/* Whether rounding up to whole blocks makes these sizes[] columns the same as those before. */
static bool is_repeated(enum tensor_format format, size_t size)
{
    const uint32_t block = tensor_format_of(format)->block_values;
    return size > 0 && (sizes[size] + block - 1) / block == (sizes[size - 1] + block - 1) / block;
}

/* Weights end at an unreadable page, so their start is aligned to one element at most; x has NaN between its
 * rows. Activations, and blocks' values, are rounded to bf16 when `rounded`: then a variant that rounds them
 * itself must agree as closely as one that does not. */
static void problem_make(struct problem *p, enum tensor_format format, size_t rows, size_t cols,
                         size_t tokens, bool rounded)
{
    const uint32_t block = tensor_format_of(format)->block_values;
    cols = (cols + block - 1) / block * block;
    uint64_t seed = 88172645463325252u ^ rows << 40 ^ cols << 20 ^ tokens;
    *p = (struct problem){.format = format, .rows = rows, .cols = cols, .tokens = tokens, .rounded = rounded};
    p->ldx = cols + tokens % 4;
    p->ldy = rows + cols % 5;
    guarded_make(&p->w, tensor_format_bytes(format, rows, cols));
    guarded_make(&p->x, ((tokens - 1) * p->ldx + cols) * sizeof(float));
    float *x = p->x.data;
    for (size_t t = 0; t < tokens; t++)
        for (size_t c = 0; c < cols; c++) {
            float v = random_float(&seed);
            x[t * p->ldx + c] = rounded ? convert_bf16_f32(convert_f32_bf16(v)) : v;
        }
    fill_weights(p, &seed);
}

/* The product of two rows in double, and the sum of its terms' sizes, several columns at once. Sanitizers
 * have nothing to find in it, and their checks would be half of what the test computes; without them it is
 * there for wider vectors, too, chosen when the program starts. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define DOT __attribute__((no_sanitize("address", "undefined")))
#else
#define DOT __attribute__((target_clones("avx512f", "avx2", "default")))
#endif
DOT static void dot(const float *a, const float *b, size_t n, double *sum, double *magnitude)
{
    enum { LANES = 8 };
    typedef float floats __attribute__((vector_size(LANES * sizeof(float))));
    typedef double doubles __attribute__((vector_size(LANES * sizeof(double))));
    typedef int64_t integers __attribute__((vector_size(LANES * sizeof(int64_t))));
    doubles sums = {0}, sizes_of = {0};
    size_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        floats x, y;
        memcpy(&x, a + i, sizeof x);
        memcpy(&y, b + i, sizeof y);
        const doubles product = __builtin_convertvector(x, doubles) * __builtin_convertvector(y, doubles);
        sums += product;
        sizes_of += (doubles)((integers)product & INT64_MAX);
    }
    *sum = *magnitude = 0;
    for (size_t k = 0; k < LANES; k++) *sum += sums[k], *magnitude += sizes_of[k];
    for (; i < n; i++) {
        const double product = (double)a[i] * (double)b[i];
        *sum += product;
        *magnitude += fabs(product);
    }
}

/* The products in double, and the sums of their terms' sizes. */
static void problem_sum(struct problem *p)
{
    const size_t rows = p->rows, cols = p->cols;
    struct helm_err err = {0};
    p->sum = calloc(rows * p->tokens, sizeof *p->sum);
    p->magnitude = calloc(rows * p->tokens, sizeof *p->magnitude);
    assert_true(p->sum && p->magnitude);
    float *row = malloc(cols * sizeof *row);
    assert_non_null(row);
    const struct tensor_matrix matrix = {p->format, p->w.data, p->w.bytes, (uint32_t)rows, (uint32_t)cols};
    for (size_t r = 0; r < rows; r++) {
        assert_int_equal(tensor_format_read_row(&matrix, (uint32_t)r, row, &err), 0);
        for (size_t c = 0; c < cols && p->rounded; c++) row[c] = convert_bf16_f32(convert_f32_bf16(row[c]));
        for (size_t t = 0; t < p->tokens; t++) {
            const float *x = (const float *)p->x.data + t * p->ldx;
            dot(row, x, cols, &p->sum[t * rows + r], &p->magnitude[t * rows + r]);
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

static void *aligned_scratch(size_t bytes)
{
    size_t room = (bytes + 64) / 64 * 64;
    void *scratch = aligned_alloc(64, room);
    assert_non_null(scratch);
    memset(scratch, 0xff, room);
    return scratch;
}

static const char *row_of(const struct problem *p, size_t row)
{
    return (const char *)p->w.data + row * tensor_format_row_bytes(p->format, p->cols);
}

/* The whole batched path into y (row stride p->ldy), the weights cut into `shares` at uneven places. */
static void multiply(const struct linear_kernel *v, const struct problem *p, float *y, bool accumulate,
                     size_t shares)
{
    struct guarded tiled;
    guarded_make(&tiled, v->tiled_bytes(p->tokens, p->cols));
    void *scratch = aligned_scratch(v->scratch_bytes(p->cols, p->tokens));
    if (v->thread_begin) v->thread_begin();
    size_t middle = p->tokens / 2 / v->tile_tokens * v->tile_tokens;
    const size_t cut = p->cols / 3 / v->tile_cols * v->tile_cols;
    const float *x = p->x.data, *behind = x + middle * p->ldx;
    if (middle) v->tile(tiled.data, x, p->ldx, p->tokens, p->cols, 0, middle, 0, p->cols);
    v->tile(tiled.data, behind + cut, p->ldx, p->tokens, p->cols, middle, p->tokens, cut, p->cols);
    if (cut) v->tile(tiled.data, behind, p->ldx, p->tokens, p->cols, middle, p->tokens, 0, cut);
    for (size_t s = 0, r = 0; s < shares; s++) {
        size_t end = s + 1 == shares ? p->rows : p->rows * (2 * s + 1) / (2 * shares);
        if (end == r) continue;
        v->gemm(y + r, p->ldy, row_of(p, r), tiled.data, end - r, p->cols, p->tokens, accumulate, scratch);
        r = end;
    }
    if (v->thread_end) v->thread_end();
    free(scratch);
    guarded_free(&tiled);
}

static const struct linear_kernel *usable(void **state)
{
    const struct linear_kernel *v = *state;
    unsigned missing = v->features & ~cpu_features();
    char text[128];
    if (missing) {
        print_message("linear %s %s skipped: this machine lacks %s\n", v->name, tensor_format_name(v->format),
                      cpu_features_text(missing, text, sizeof text));
        skip();
    }
    struct helm_err err = {0};
    if (v->features & CPU_AMX_BF16 && cpu_enable_amx(&err) != 0) fail_msg("%s", err.text);
    return v;
}

/* x as the kernel reads it; to be freed. */
static float *ordered(const struct linear_kernel *v, const float *x, size_t cols)
{
    float *to = aligned_scratch(v->order ? v->ordered_bytes(cols) : cols * sizeof *x);
    if (v->order)
        v->order(to, x, cols);
    else
        memcpy(to, x, cols * sizeof *x);
    return to;
}

/* A token's products are the same bits whichever other tokens are multiplied with it, by the kernel or the
 * steady one beside it: alone, among few, among many, at any place. */
static void steady_tokens_do_not_depend_on_others(void **state)
{
    const struct linear_kernel *v = usable(state);
    static const size_t shapes[][3] = {{67, 1000, 41}, {50, 4200, 20}, {33, 65, 300}};
    if (v->unsteady) return;
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        struct problem p;
        problem_make(&p, v->format, shapes[i][0], shapes[i][1], shapes[i][2], false);
        float *all = calloc(p.ldy * p.tokens, sizeof *all), *some = calloc(p.ldy * p.tokens, sizeof *some);
        assert_true(all && some);
        multiply(v, &p, all, false, 1); /* enough tokens that both take the same path */
        for (size_t first = 0, count = 1; first < p.tokens; first += count, count = count % 19 + 1) {
            struct problem part = p;
            part.x.data = (float *)p.x.data + first * p.ldx;
            part.tokens = count < p.tokens - first ? count : p.tokens - first;
            multiply(v->steady ? v->steady : v, &part, some, false, 1);
            for (size_t t = 0; t < part.tokens; t++)
                assert_memory_equal(some + t * p.ldy, all + (first + t) * p.ldy, p.rows * sizeof *some);
        }
        free(all);
        free(some);
        problem_free(&p);
    }
}

/* All tokens' input as the kernel's few reads it, *ldx floats apart. */
static float *ordered_all(const struct linear_kernel *v, const struct problem *p, size_t *ldx)
{
    if (!v->order) return p->x.data;
    float *to = aligned_scratch(linear_ordered_few_bytes(v, p->tokens, p->cols));
    *ldx = linear_order_few(v, to, p->x.data, p->ldx, p->tokens, p->cols);
    return to;
}

/* A few tokens' products have the bits of one token's, and nothing else is written. */
static void few_are_as_one(void **state)
{
    const struct linear_kernel *v = usable(state);
    static const size_t shapes[][2] = {{1, 1}, {2, 15}, {3, 16}, {9, 33}, {51, 700}, {31, 4099}},
                        counts[] = {1, 2, 3, 4, 7, 8, 13, 17};
    assert_true(v->few || !v->apart);
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes && v->few; i++)
        for (size_t k = i % 2; k < sizeof counts / sizeof *counts; k += 2) {
            const size_t tokens = counts[k];
            struct problem p;
            problem_make(&p, v->format, shapes[i][0], shapes[i][1], tokens, false);
            const size_t count = p.ldy * tokens;
            float *few = malloc(count * sizeof *few), *one = malloc(count * sizeof *one);
            assert_true(few && one);
            memset(few, 0xff, count * sizeof *few);
            memset(one, 0xff, count * sizeof *one);
            size_t ldx = p.ldx;
            float *x = ordered_all(v, &p, &ldx);
            v->few(few, p.ldy, p.w.data, x, ldx, p.rows, p.cols, tokens);
            for (size_t t = 0; t < tokens; t++) {
                float *alone = ordered(v, (const float *)p.x.data + t * p.ldx, p.cols);
                v->gemv(one + t * p.ldy, p.w.data, alone, p.rows, p.cols, NULL);
                free(alone);
            }
            assert_memory_equal(few, one, count * sizeof *few);
            if (v->order) free(x);
            free(few);
            free(one);
            problem_free(&p);
        }
}
