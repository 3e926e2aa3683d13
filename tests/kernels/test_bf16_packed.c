/* Every kernel of packed bf16 against sums in double of the values that were packed: shapes whose rows begin
 * inside tiles, short last groups, few and many escapes, groups stored raw, special values. Decoded values
 * are the packed ones bit for bit. Groups, x and results end at unreadable pages. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "common/base/cpu.h"
#include "tests/kernels/kernel_buffers.h"
#include "common/formats/convert.h"
#include "common/cpu/kernels/linear.h"
#include "common/formats/packed.h"

/* The kernels of one name. */
struct kernels {
    const struct linear_kernel *one, *decode;
};

enum fill { FILL_FEW, FILL_MANY, FILL_NONE, FILL_ENDS, FILL_RAW, FILL_SPECIAL, FILLS };

static const uint16_t special[] = {0x7f80, 0xff80, 0x7fc1, 0xffff, 0x0000, 0x8000, 0x0001, 0x807f};

/* Finite but for FILL_SPECIAL. */
static uint16_t weight_of(enum fill fill, size_t i, uint64_t *seed)
{
    const uint64_t r = random_next(seed);
    const uint16_t bits = (uint16_t)(r >> 40 & 0x807f);
    float sum = 0;
    switch (fill) {
    case FILL_MANY: /* three in ten are escapes */
        return (uint16_t)(bits | (r % 3 == 0 ? 90 + (r >> 20) % 60 : 118) << 7);
    case FILL_NONE:
        return (uint16_t)(bits | (116 + (r >> 20) % 7) << 7);
    case FILL_ENDS: /* whole runs of escapes between others */
        return (uint16_t)(bits | (i / 96 % 8 == 3 ? 90 : 118) << 7);
    case FILL_RAW:
        return (uint16_t)(bits | (20 + (r >> 20) % 120) << 7);
    case FILL_SPECIAL:
        if (r % 997 == 0) return special[(r >> 20) % (sizeof special / sizeof *special)];
        break;
    default:
        break;
    }
    for (int n = 0; n < 6; n++) sum += random_float(seed);
    return convert_f32_bf16(sum * 0.02f);
}

/* A group whose bytes end at an unreadable page. */
static struct packed_measure group_make(struct guarded *g, const uint16_t *value, uint32_t values)
{
    struct helm_err err = {0};
    struct packed_measure m;
    packed_measure(value, values, &m);
    guarded_make(g, m.bytes);
    assert_int_equal(packed_write(&m, value, values, g->data, &err), HELM_OK);
    return m;
}

/* The input as the kernel reads it; to[cols] for one that has an order. */
static const float *ordered(const struct kernels *v, float *to, const float *x, size_t cols)
{
    if (!v->one->order) return x;
    v->one->order(to, x, cols);
    return to;
}

static void check_group(const struct kernels *v, uint32_t rows, uint32_t cols, enum fill fill)
{
    const uint32_t values = rows * cols;
    uint64_t seed = 77 + values + (uint64_t)fill;
    uint16_t *value = malloc(values * sizeof *value);
    struct guarded group, x, split, y, plain;
    assert_non_null(value);
    for (uint32_t i = 0; i < values; i++) value[i] = weight_of(fill, i, &seed);
    const struct packed_measure m = group_make(&group, value, values);
    if (values >= 8192) assert_int_equal(m.kind, fill == FILL_RAW ? PACKED_RAW : PACKED_CODED);
    if (fill == FILL_MANY && m.kind == PACKED_CODED) assert_true(m.escapes > values / 5);
    guarded_make(&x, cols * sizeof(float));
    guarded_make(&split, cols * sizeof(float));
    guarded_make(&y, rows * sizeof(float));
    guarded_make(&plain, values * sizeof(uint16_t));
    float *xs = x.data, *ys = y.data;
    for (uint32_t c = 0; c < cols; c++) xs[c] = random_float(&seed);

    v->decode->decode(plain.data, group.data, rows, cols);
    assert_memory_equal(plain.data, value, values * sizeof *value);
    const float *in = ordered(v, split.data, xs, cols);
    for (int ahead = 0; ahead < 4; ahead++) {
        const struct gemv_reads reads = {.next = ahead & 1 ? group.data : NULL, .far = ahead & 2 ? 8192 : 0};
        memset(ys, 0xff, rows * sizeof *ys);
        v->one->gemv(ys, group.data, in, rows, cols, ahead ? &reads : NULL);
        for (uint32_t r = 0; r < rows; r++) {
            double sum = 0, size = 0;
            for (uint32_t c = 0; c < cols; c++) {
                const double product = (double)convert_bf16_f32(value[(size_t)r * cols + c]) * (double)xs[c];
                sum += product;
                size += fabs(product);
            }
            const double got = (double)ys[r];
            if (isnan(sum)   ? !isnan(got)
                : isinf(sum) ? got != sum
                             : !(fabs(got - sum) <= 2e-5 * size + 1e-37))
                fail_msg("%s, %u rows of %u, fill %d: y[%u] is %.9g, not %.9g", v->one->name, rows, cols,
                         fill, r, got, sum);
        }
    }
    guarded_free(&group), guarded_free(&x), guarded_free(&split), guarded_free(&y), guarded_free(&plain);
    free(value);
}

static const struct kernels *usable(void **state)
{
    const struct kernels *v = *state;
    const unsigned missing = (v->one->features | v->decode->features) & ~cpu_features();
    char text[128];
    if (missing) {
        print_message("packed %s skipped: this machine lacks %s\n", v->one->name,
                      cpu_features_text(missing, text, sizeof text));
        skip();
    }
    return v;
}

static void small_shapes(void **state)
{
    const struct kernels *v = usable(state);
    for (uint32_t rows = 1; rows <= PACKED_ROWS; rows++)
        for (uint32_t cols = 256; cols <= 1536; cols += cols < 1024 ? 256 : 512)
            for (int fill = 0; fill < FILLS; fill++) check_group(v, rows, cols, (enum fill)fill);
}

static void large_shapes(void **state)
{
    const struct kernels *v = usable(state);
    static const uint32_t shapes[][2] = {{16, 2560}, {2, 2560}, {5, 2560},   {16, 4096},
                                         {7, 4096},  {1, 4096}, {16, 12288}, {3, 12288}};
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++)
        for (int fill = 0; fill < FILLS; fill++) check_group(v, shapes[s][0], shapes[s][1], (enum fill)fill);
}

/* A row's sum does not depend on the rows beside it. */
static void a_row_alone_has_the_same_bits(void **state)
{
    const struct kernels *v = usable(state);
    const uint32_t cols = 2304, rows = 16;
    uint64_t seed = 5;
    static uint16_t value[16 * 2560];
    struct guarded group, x, split;
    float y[16], alone;
    for (uint32_t i = 0; i < rows * cols; i++) value[i] = weight_of(FILL_FEW, i, &seed);
    guarded_make(&x, cols * sizeof(float));
    guarded_make(&split, cols * sizeof(float));
    for (uint32_t c = 0; c < cols; c++) ((float *)x.data)[c] = random_float(&seed);
    const float *in = ordered(v, split.data, x.data, cols);
    assert_int_equal(group_make(&group, value, rows * cols).kind, PACKED_CODED);
    v->one->gemv(y, group.data, in, rows, cols, NULL);
    guarded_free(&group);
    for (uint32_t r = 0; r < rows; r++) {
        assert_int_equal(group_make(&group, value + r * cols, cols).kind, PACKED_CODED);
        v->one->gemv(&alone, group.data, in, 1, cols, NULL);
        assert_memory_equal(&alone, &y[r], sizeof alone);
        guarded_free(&group);
    }
    guarded_free(&x), guarded_free(&split);
}

/* A few tokens' products have the bits of one token's, and nothing else is written. */
static void few_are_as_one(void **state)
{
    const struct kernels *v = usable(state);
    static const uint32_t shapes[][2] = {{1, 512}, {3, 512},   {5, 1536}, {16, 768},
                                         {3, 256}, {16, 1024}, {7, 2560}};
    enum { TOKENS = 17, COLS = 2560, LDY = 19 };
    static float x[COLS], few[TOKENS * LDY], one[TOKENS * LDY];
    static uint16_t value[16 * COLS];
    if (!v->one->few) return;
    float *in = aligned_alloc(64, sizeof(float[TOKENS][COLS]));
    assert_non_null(in);
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++)
        for (int fill = 0; fill < FILLS; fill++) {
            const uint32_t rows = shapes[s][0], cols = shapes[s][1];
            const size_t tokens = (5 * s + (size_t)fill) % TOKENS + 1;
            uint64_t seed = s + 1;
            struct guarded group;
            for (uint32_t i = 0; i < rows * cols; i++) value[i] = weight_of((enum fill)fill, i, &seed);
            (void)group_make(&group, value, rows * cols);
            for (size_t t = 0; t < tokens; t++) {
                for (uint32_t c = 0; c < cols; c++) x[c] = random_float(&seed);
                v->one->order(in + t * COLS, x, cols);
            }
            memset(few, 0xff, sizeof few);
            memset(one, 0xff, sizeof one);
            v->one->few(few, LDY, group.data, in, COLS, rows, cols, tokens);
            for (size_t t = 0; t < tokens; t++)
                v->one->gemv(one + t * LDY, group.data, in + t * COLS, rows, cols, NULL);
            assert_memory_equal(few, one, sizeof few);
            guarded_free(&group);
        }
    free(in);
}

static void choice_follows_the_features(void **state)
{
    (void)state;
    static const enum linear_schedule schedules[] = {LINEAR_ONE_TOKEN, LINEAR_DECODE};
    const struct linear_kernel *v;
    struct helm_err err = {0};
    for (size_t s = 0; s < 2; s++) {
        assert_int_equal(linear_choose(FORMAT_BF16_PACKED, schedules[s], LINEAR_EXACT, 0, NULL, &v, &err),
                         HELM_E_UNSUPPORTED);
        assert_null(v);
        assert_int_equal(linear_choose(FORMAT_BF16_PACKED, schedules[s], LINEAR_EXACT,
                                       CPU_AVX2 | CPU_AVX512 | CPU_AVX512_BF16, NULL, &v, &err),
                         HELM_E_UNSUPPORTED);
        assert_non_null(strstr(err.text, "vbmi2"));
        assert_int_equal(linear_choose(FORMAT_BF16_PACKED, schedules[s], LINEAR_EXACT,
                                       CPU_AVX2 | CPU_AVX512 | CPU_AVX512_VBMI2, NULL, &v, &err),
                         0);
        assert_string_equal(v->name, "avx512-vbmi2");
        assert_int_equal(linear_choose(FORMAT_BF16_PACKED, schedules[s], LINEAR_EXACT, 0, "ref", &v, &err),
                         0);
        assert_int_equal(v->features, 0);
    }
}

int main(void)
{
    size_t count;
    const struct linear_kernel *const *table = linear_kernels(&count);
    static const struct {
        const char *name;
        CMUnitTestFunction run;
    } kinds[] = {{"small shapes", small_shapes},
                 {"large shapes", large_shapes},
                 {"a row alone", a_row_alone_has_the_same_bits},
                 {"few", few_are_as_one}};
    enum { KINDS = sizeof kinds / sizeof *kinds, MOST = 4 };
    struct kernels of[MOST];
    struct CMUnitTest tests[KINDS * MOST + 1];
    char names[KINDS * MOST][64];
    struct helm_err err = {0};
    size_t n = 0, kernels = 0;
    for (size_t i = 0; i < count; i++) {
        if (table[i]->format != FORMAT_BF16_PACKED || table[i]->schedule != LINEAR_ONE_TOKEN) continue;
        if (kernels == MOST) return fprintf(stderr, "more than %d kernels\n", MOST), 1;
        of[kernels].one = table[i];
        if (linear_choose(FORMAT_BF16_PACKED, LINEAR_DECODE, LINEAR_EXACT, ~0u, table[i]->name,
                          &of[kernels].decode, &err))
            return fprintf(stderr, "%s\n", err.text), 1;
        for (size_t k = 0; k < KINDS; k++, n++) {
            snprintf(names[n], sizeof names[n], "%s %s", table[i]->name, kinds[k].name);
            tests[n] = (struct CMUnitTest){names[n], kinds[k].run, NULL, NULL, &of[kernels]};
        }
        kernels++;
    }
    tests[n++] = (struct CMUnitTest)cmocka_unit_test(choice_follows_the_features);
    return _cmocka_run_group_tests("packed bf16", tests, n, NULL, NULL);
}
