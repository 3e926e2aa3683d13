/* Every attention variant in the table against the reference, over odd shapes, shuffled page tables, windows,
 * ranges and starts; partial results merged over random splits; extreme logits; and what must not be touched.
 *
 * Tolerances: outputs are convex combinations of values of size about 1. fp32 variants differ from the
 * reference by the rounding of the logits (about 1e-6 of their size) and of the sums, so 2e-5 holds with
 * room; of quantised cells all read the same values. Variants that round many queries and their weights to bf16 (8 bits)
 * are held to 2e-2 of the values' size, which the bf16 class of the golden runs needs; with few queries no variant
 * rounds. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/base/cpu.h"
#include "common/cpu/kernels/attention.h"

/* Instrumented kernels are many times slower: of the shapes a fifth, with each head size beside each number of
 * tokens' tier and most groups; of windows and ranges every other one. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define NEXT_SHAPE 5
#define NEXT_RANGE 2
#else
#define NEXT_SHAPE 1
#define NEXT_RANGE 1
#endif

struct shape {
    uint32_t head_dim, group, page_tokens, tokens, start, window, kv_first,
        kv_last; /* kv_last 0: everything */
};

struct rig {
    struct kv_layout kv;
    char *pool;
    uint32_t *pages;
    float *q, *out, *m, *s;
    size_t q_stride, out_stride, rows, out_floats;
    void *scratch;
    size_t scratch_bytes;
    float sinks[8]; /* of each query head; used with odd seeds */
    struct attention_task task;
};

static uint32_t random_u32(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*state >> 33);
}
static float random_float(uint64_t *state) /* in [-1, 1) */
{
    return (float)random_u32(state) / 1073741824.0f - 1.0f;
}

#define GUARD      64
#define GUARD_BYTE 0xa5

static void *guarded(size_t bytes)
{
    char *block = NULL;
    assert_int_equal(posix_memalign((void **)&block, 64, bytes + 2 * GUARD), 0);
    memset(block, GUARD_BYTE, bytes + 2 * GUARD);
    return block + GUARD;
}
static void guarded_free(void *pointer, size_t bytes)
{
    unsigned char *block = (unsigned char *)pointer - GUARD;
    for (size_t i = 0; i < GUARD; i++) {
        assert_int_equal(block[i], GUARD_BYTE);
        assert_int_equal(block[GUARD + bytes + i], GUARD_BYTE);
    }
    free(block);
}

/* The pool is NaN wherever no position of the sequence lies: a stray read poisons the result. */
static void rig_make(struct rig *rig, const struct shape *shape, enum kv_dtype dtype, float logit_size,
                     uint64_t seed)
{
    const uint32_t layers = 2, kv_heads = 3, layer = 1, kv_head = 1;
    uint64_t state = seed * 2 + 1;
    uint32_t positions = shape->start + shape->tokens;
    uint32_t page_count = (positions + shape->page_tokens - 1) / shape->page_tokens, spare = 2;
    memset(rig, 0, sizeof(*rig));
    const uint32_t latent = seed % 4 == 3 ? (shape->head_dim + 1) / 2 : 0; /* values that are parts of keys */
    rig->kv = (struct kv_layout){layers, kv_heads, shape->head_dim, shape->page_tokens, dtype, latent};
    size_t pool_bytes = (page_count + spare) * kv_page_bytes(&rig->kv);
    rig->pool = malloc(pool_bytes);
    memset(rig->pool, 0xff, pool_bytes); /* NaN in all types */
    rig->pages = malloc((page_count + spare) * sizeof(uint32_t));
    for (uint32_t i = 0; i < page_count + spare; i++) rig->pages[i] = i;
    for (uint32_t i = page_count + spare - 1; i > 0; i--) {
        uint32_t j = random_u32(&state) % (i + 1), swap = rig->pages[i];
        rig->pages[i] = rig->pages[j];
        rig->pages[j] = swap;
    }
    float *x = malloc(shape->head_dim * sizeof(float));
    for (uint32_t p = 0; p < positions; p++)
        for (uint32_t is_value = 0; is_value < kv_kinds(&rig->kv); is_value++) {
            for (uint32_t d = 0; d < shape->head_dim; d++) x[d] = random_float(&state);
            kv_append(&rig->kv, rig->pool, rig->pages, layer, is_value, kv_head, p, x);
        }
    free(x);
    rig->rows = (size_t)shape->tokens * shape->group;
    rig->q_stride = (size_t)shape->group * shape->head_dim + 5;
    rig->out_stride = (size_t)shape->group * shape->head_dim + 3;
    rig->out_floats = (shape->tokens - 1) * rig->out_stride + (size_t)shape->group * shape->head_dim;
    rig->q = malloc(shape->tokens * rig->q_stride * sizeof(float));
    for (size_t i = 0; i < shape->tokens * rig->q_stride; i++) rig->q[i] = random_float(&state) * logit_size;
    for (size_t g = 0; g < sizeof rig->sinks / sizeof *rig->sinks; g++)
        rig->sinks[g] = 2 * random_float(&state);
    rig->out = guarded(rig->out_floats * sizeof(float));
    rig->m = guarded(rig->rows * sizeof(float));
    rig->s = guarded(rig->rows * sizeof(float));
    rig->task = (struct attention_task){
        .q = rig->q,
        .q_stride = rig->q_stride,
        .tokens = shape->tokens,
        .group = shape->group,
        .kv_heads = 1,
        .start = shape->start,
        .kv_first = shape->kv_first,
        .kv_last = shape->kv_last != 0 ? shape->kv_last : positions,
        .window = shape->window,
        .scale = 1.0f / sqrtf((float)shape->head_dim),
        .sinks = seed % 2 ? rig->sinks : NULL,
        .kv = &rig->kv,
        .pool = rig->pool,
        .pages = rig->pages,
        .layer = layer,
        .kv_head = kv_head,
        .out = rig->out,
        .out_stride = rig->out_stride,
    };
}

/* A row's sum with its head's sink. */
static float rig_sum(const struct rig *rig, size_t row, float m, float s)
{
    return (float)attention_sum_with((double)m, (double)s,
                                     rig->task.sinks ? rig->task.sinks + row % rig->task.group : NULL);
}

static void rig_run(struct rig *rig, const struct attention_variant *variant, bool partial)
{
    size_t bytes = variant->scratch_bytes(&rig->kv, rig->task.tokens, rig->task.group);
    void *scratch = guarded(bytes);
    memset(scratch, 0xff, bytes); /* NaN: nothing may rely on what was there */
    memset(rig->out, GUARD_BYTE, rig->out_floats * sizeof(float));
    rig->task.scratch = scratch;
    rig->task.m = partial ? rig->m : NULL;
    rig->task.s = partial ? rig->s : NULL;
    variant->attend(&rig->task);
    guarded_free(scratch, bytes);
}

static void rig_free(struct rig *rig)
{
    guarded_free(rig->out, rig->out_floats * sizeof(float));
    guarded_free(rig->m, rig->rows * sizeof(float));
    guarded_free(rig->s, rig->rows * sizeof(float));
    free(rig->pool);
    free(rig->pages);
    free(rig->q);
}

/* Dense copy of the outputs; checks that the gaps between tokens were not written. */
static float *rig_dense(const struct rig *rig)
{
    size_t width = (size_t)rig->task.group * rig->kv.head_dim;
    float *dense = malloc(rig->rows * rig->kv.head_dim * sizeof(float));
    for (uint32_t t = 0; t < rig->task.tokens; t++) {
        const float *row = rig->out + t * rig->out_stride;
        memcpy(dense + t * width, row, width * sizeof(float));
        if (t + 1 < rig->task.tokens)
            for (size_t i = 0; i < (rig->out_stride - width) * sizeof(float); i++)
                assert_int_equal(((const unsigned char *)(row + width))[i], GUARD_BYTE);
    }
    return dense;
}

#define FEW_ROWS 8 /* query rows that every variant takes without rounding them */

static double tolerance_of(const struct attention_variant *variant, const struct shape *shape)
{
    const bool rounds =
        variant->features & CPU_AVX512_BF16 && variant->kv_dtype != KV_F16; /* of f16 in parts: exact */
    return rounds && shape->tokens * shape->group > FEW_ROWS ? 2e-2 : 2e-5;
}

static void expect_close(const float *got, const float *want, size_t count, double tolerance,
                         const char *what)
{
    for (size_t i = 0; i < count; i++) {
        double difference = fabs((double)got[i] - (double)want[i]);
        if (!(difference <= tolerance * (1 + fabs((double)want[i]))))
            fail_msg("%s: element %zu is %.9g, the reference has %.9g", what, i, (double)got[i],
                     (double)want[i]);
    }
}

static const struct attention_variant *reference_of(enum kv_dtype dtype)
{
    const struct attention_variant *variant = NULL;
    struct helm_err err = {0};
    assert_int_equal(attention_choose(dtype, 0, "ref", &variant, &err), 0);
    return variant;
}

/* One variant on the rig that the reference computed `want` with. */
static void compare_variant(struct rig *rig, const struct shape *shape,
                            const struct attention_variant *variant, const float *want, double tolerance)
{
    char what[200];
    snprintf(what, sizeof(what),
             "%s %s head_dim %u group %u page %u tokens %u start %u window %u range %u..%u", variant->name,
             kv_dtype_name(variant->kv_dtype), shape->head_dim, shape->group, shape->page_tokens,
             shape->tokens, shape->start, shape->window, shape->kv_first, shape->kv_last);
    size_t count = rig->rows * rig->kv.head_dim;
    const bool reference = variant == reference_of(variant->kv_dtype);
    /* it takes nine tenths of the time: `want` was one run, partial sums are another */
    if (!reference) rig_run(rig, variant, false);
    float *got = rig_dense(rig);
    expect_close(got, want, count, tolerance, what);
    /* deterministic, whatever was in the scratch; the reference's first run is `want` */
    if (reference) {
        assert_memory_equal(got, want, count * sizeof(float));
    } else {
        rig_run(rig, variant, false);
        float *again = rig_dense(rig);
        assert_memory_equal(got, again, count * sizeof(float));
        free(again);
    }

    rig_run(rig, variant, true);
    float *partial = rig_dense(rig);
    for (size_t r = 0; r < rig->rows; r++) {
        assert_false(isnan(rig->m[r]) || isnan(rig->s[r]));
        if (rig->s[r] == 0) {
            assert_true(rig->m[r] == -INFINITY);
            for (size_t d = 0; d < rig->kv.head_dim; d++) assert_true(partial[r * rig->kv.head_dim + d] == 0);
        } else {
            assert_true(rig->s[r] > 0);
            const float sum = rig_sum(rig, r, rig->m[r], rig->s[r]);
            for (size_t d = 0; d < rig->kv.head_dim; d++) partial[r * rig->kv.head_dim + d] /= sum;
        }
    }
    expect_close(partial, got, count, 1e-6, what);
    free(partial);
    free(got);
}

static bool can_run(const struct attention_variant *variant)
{
    struct helm_err err;
    if ((variant->features & ~cpu_features()) != 0) return false;
    if (variant->features & CPU_AMX_BF16 && cpu_enable_amx(&err) != 0) fail_msg("%s", err.text);
    return true;
}

/* Every variant of every type, against one run of the reference (the slowest of them) a type. `allowed`: the
 * tolerance of variants that do not round, and of those that do; 0: what each variant is held to. */
static void compare(const struct shape *shape, float logit_size, const double allowed[2], uint64_t seed)
{
    static const enum kv_dtype dtypes[] = {KV_F32, KV_F16, KV_BF16, KV_Q8_0};
    size_t count;
    const struct attention_variant *const *all = attention_variants(&count);
    for (size_t k = 0; k < sizeof(dtypes) / sizeof(*dtypes); k++) {
        if (!kv_dtype_takes(dtypes[k], shape->head_dim)) continue;
        struct rig rig;
        rig_make(&rig, shape, dtypes[k], logit_size, seed);
        rig_run(&rig, reference_of(dtypes[k]), false);
        float *want = rig_dense(&rig);
        for (size_t i = 0; i < count; i++) {
            if (all[i]->kv_dtype != dtypes[k] || !can_run(all[i])) continue;
            const double own = tolerance_of(all[i], shape);
            compare_variant(&rig, shape, all[i], want, allowed ? allowed[own > 1e-3] : own);
        }
        free(want);
        rig_free(&rig);
    }
}

typedef void variant_test(const struct attention_variant *variant);

static void each_variant(variant_test *test)
{
    size_t count;
    const struct attention_variant *const *all = attention_variants(&count);
    for (size_t i = 0; i < count; i++) {
        if (!can_run(all[i])) {
            print_message("attention %s of %s: this machine cannot run it\n", all[i]->name,
                          kv_dtype_name(all[i]->kv_dtype));
            continue;
        }
        test(all[i]);
    }
}

static void test_odd_shapes(void **state)
{
    (void)state;
    static const uint32_t head_dims[] = {1, 3, 16, 31, 64, 80, 96, 128, 256}, groups[] = {1, 2, 3, 4, 8};
    static const uint32_t pages[] = {8, 16, 32}, tokens[] = {1, 2, 5, 37}, starts[] = {0, 1, 63, 130};
    uint64_t seed = 1;
    for (size_t h = 0; h < sizeof(head_dims) / sizeof(*head_dims); h++)
        for (size_t g = 0; g < sizeof(groups) / sizeof(*groups); g++)
            for (size_t t = 0; t < sizeof(tokens) / sizeof(*tokens); t++, seed++) {
                if ((h + g + 2 * t) % NEXT_SHAPE) continue;
                struct shape shape = {
                    head_dims[h], groups[g], pages[seed % 3], tokens[t], starts[seed / 2 % 4], 0, 0, 0};
                compare(&shape, 2, NULL, seed);
            }
}

static void test_windows_and_ranges(void **state)
{
    (void)state;
    static const struct shape shapes[] = {
        {64, 2, 16, 1, 200, 1, 0, 0},      {64, 2, 16, 1, 200, 17, 0, 0},
        {64, 2, 16, 40, 200, 5, 0, 0},     {128, 1, 32, 90, 100, 64, 0, 0},
        {128, 4, 512, 20, 500, 100, 0, 0}, {80, 3, 8, 30, 0, 7, 0, 0},
        {128, 2, 32, 20, 100, 0, 0, 64},   {128, 2, 32, 20, 100, 0, 64, 0},
        {128, 2, 32, 20, 100, 0, 110, 0},  {128, 2, 32, 20, 100, 0, 105, 107},
        {31, 2, 32, 20, 100, 30, 60, 90},  {31, 2, 32, 20, 100, 30, 0, 64},
        {16, 8, 8, 1, 50, 10, 0, 8},       {16, 8, 8, 40, 50, 10, 0, 45},
        {64, 2, 16, 3, 70, 0, 71, 72},     {64, 1, 16, 1, 10, 0, 5, 5},
        {64, 3, 16, 9, 10, 0, 5, 5},       {64, 1, 16, 300, 0, 0, 0, 0},
        {64, 2, 256, 150, 333, 129, 0, 0}, {128, 2, 32, 193, 65, 0, 3, 250},
        {128, 4, 32, 1, 200, 17, 0, 0},    {576, 8, 16, 3, 170, 0, 0, 170},
    };
    for (size_t i = 0; i < sizeof(shapes) / sizeof(*shapes); i += NEXT_RANGE)
        compare(&shapes[i], 2, NULL, 1000 + i);
}

/* Logits of size 1e4 and more: the softmax is nearly one-hot; nothing overflows, and the winner's value comes
 * out. Only one key in many is near the top, so the logits' own rounding (1e-7 of 1e4) moves weights by at
 * most 1e-3 or so; rounding queries to bf16 moves the logits themselves, so there only finiteness and the
 * values' range are checked. */
static void test_extreme_logits(void **state)
{
    (void)state;
    static const struct shape shapes[] = {{128, 2, 32, 1, 300, 0, 0, 0},
                                          {128, 2, 32, 50, 150, 0, 0, 0},
                                          {31, 1, 16, 20, 90, 40, 0, 0}};
    static const double allowed[2] = {2e-2, 2};
    for (size_t i = 0; i < 3; i++) {
        compare(&shapes[i], 2e4f, allowed, 2000 + i);
        compare(&shapes[i], 1e-30f, NULL, 2100 + i);
    }
}

/* A NaN in a visible key or value must be seen in the output: a broken cache may not look like an answer. */
static void nan_shows_in(const struct attention_variant *variant, uint32_t head_dim, uint32_t tokens,
                         bool is_value)
{
    struct shape shape = {head_dim, 2, 16, tokens, 100, 0, 0, 0};
    struct rig rig;
    rig_make(&rig, &shape, variant->kv_dtype, 1, 5);
    float bad[128];
    for (uint32_t d = 0; d < head_dim; d++) bad[d] = NAN;
    kv_append(&rig.kv, rig.pool, rig.pages, 1, is_value, 1, 40, bad);
    rig_run(&rig, variant, false);
    for (uint32_t t = 0; t < tokens; t++)
        for (uint32_t d = 0; d < 2 * head_dim; d++) assert_true(isnan(rig.out[t * rig.out_stride + d]));
    rig_free(&rig);
}
static void nan_shows(const struct attention_variant *variant)
{
    for (uint32_t tokens = 1; tokens <= 20; tokens += 19)
        for (uint32_t head_dim = 64; head_dim <= 128; head_dim += 64)
            nan_shows_in(variant, head_dim, tokens, false), nan_shows_in(variant, head_dim, tokens, true);
}
static void test_nan_shows(void **state)
{
    (void)state;
    each_variant(nan_shows);
}

/* Any split of the range, merged, is the unsplit result: by attention_fold, one part after the other, too. */
static void fold_parts(float *out, const float *const *o, const float *const *m, const float *const *s,
                       size_t parts, const struct rig *rig)
{
    const size_t dim = rig->kv.head_dim;
    for (size_t row = 0; row < rig->rows; row++) {
        float top = -INFINITY, sum = 0, *to = out + row * dim;
        memset(to, 0, dim * sizeof *to);
        for (size_t p = 0; p < parts; p++)
            attention_fold(&top, &sum, to, m[p][row], s[p][row], o[p] + row * dim, dim);
        sum = rig_sum(rig, row, top, sum);
        for (size_t d = 0; d < dim; d++) to[d] /= sum;
    }
}

static void splits_merge(const struct attention_variant *variant)
{
    static const struct shape shapes[] = {{128, 2, 128, 1, 700, 0, 0, 0},
                                          {80, 3, 8, 30, 200, 0, 0, 0},
                                          {31, 1, 16, 20, 90, 40, 0, 0},
                                          {64, 8, 16, 1, 333, 100, 0, 0}};
    uint64_t random = 77;
    enum { PARTS_MAX = 7 };
    for (size_t i = 0; i < sizeof(shapes) / sizeof(*shapes); i++) {
        if (!kv_dtype_takes(variant->kv_dtype, shapes[i].head_dim)) continue;
        struct rig rig;
        rig_make(&rig, &shapes[i], variant->kv_dtype, i == 0 ? 20 : 2, 3000 + i);
        size_t count = rig.rows * rig.kv.head_dim;
        uint32_t end = rig.task.kv_last;
        rig_run(&rig, variant, false);
        float *want = rig_dense(&rig), *o[PARTS_MAX], *m[PARTS_MAX], *s[PARTS_MAX];
        for (size_t parts = 1; parts <= PARTS_MAX; parts++) {
            uint32_t cut[PARTS_MAX + 1] = {0};
            for (size_t p = 1; p < parts; p++) {
                cut[p] = random_u32(&random) % (end + 1);
                for (size_t j = p; j > 1 && cut[j] < cut[j - 1]; j--) {
                    uint32_t swap = cut[j];
                    cut[j] = cut[j - 1];
                    cut[j - 1] = swap;
                }
            }
            cut[parts] = end;
            for (size_t p = 0; p < parts; p++) {
                rig.task.kv_first = cut[p];
                rig.task.kv_last = cut[p + 1];
                rig_run(&rig, variant, true);
                o[p] = rig_dense(&rig);
                m[p] = malloc(rig.rows * sizeof(float));
                s[p] = malloc(rig.rows * sizeof(float));
                memcpy(m[p], rig.m, rig.rows * sizeof(float));
                memcpy(s[p], rig.s, rig.rows * sizeof(float));
            }
            float *merged = malloc(count * sizeof(float)), *sinks = malloc(rig.rows * sizeof *sinks);
            for (size_t r = 0; r < rig.rows; r++) sinks[r] = rig.sinks[r % rig.task.group];
            const struct attention_parts all = {(const float *const *)o, (const float *const *)m,
                                                (const float *const *)s, parts,
                                                rig.task.sinks ? sinks : NULL};
            attention_merge(merged, &all, rig.rows, rig.kv.head_dim);
            free(sinks);
            expect_close(merged, want, count, tolerance_of(variant, &shapes[i]) > 1e-3 ? 5e-3 : 2e-6,
                         variant->name);
            fold_parts(merged, (const float *const *)o, (const float *const *)m, (const float *const *)s,
                       parts, &rig);
            expect_close(merged, want, count, tolerance_of(variant, &shapes[i]) > 1e-3 ? 5e-3 : 4e-6,
                         variant->name);
            for (size_t p = 0; p < parts; p++) {
                free(o[p]);
                free(m[p]);
                free(s[p]);
            }
            free(merged);
        }
        free(want);
        rig_free(&rig);
    }
}
static void test_splits_merge(void **state)
{
    (void)state;
    each_variant(splits_merge);
}

/* Neighbouring kv heads in one task, with a next task to look ahead to: the bits of a task for each without one. */
static void heads_together(const struct attention_variant *variant)
{
    enum { HEADS = 4, TOGETHER = 3, DIM = 128, POSITIONS = 75, PAGE = 32, GROUPS = 3, GROUP_MAX = 12 };
    static const uint32_t groups[GROUPS] = {3, 8, GROUP_MAX};
    const struct kv_layout kv = {1, HEADS, DIM, PAGE, variant->kv_dtype};
    uint32_t pages[] = {2, 0, 1};
    uint64_t random = 9;
    float x[DIM], q[HEADS * GROUP_MAX * DIM];
    char *pool = malloc(3 * kv_page_bytes(&kv));
    memset(pool, 0xff, 3 * kv_page_bytes(&kv));
    for (uint32_t i = 0; i < POSITIONS * HEADS * 2; i++) {
        for (uint32_t d = 0; d < DIM; d++) x[d] = random_float(&random);
        kv_append(&kv, pool, pages, 0, i & 1, i / 2 % HEADS, i / 2 / HEADS, x);
    }
    for (size_t i = 0; i < sizeof q / sizeof *q; i++) q[i] = 2 * random_float(&random);
    for (int g = 0; g < GROUPS; g++) {
        const uint32_t group = groups[g];
        static float out[2][TOGETHER * GROUP_MAX * DIM], m[2][TOGETHER * GROUP_MAX],
            s[2][TOGETHER * GROUP_MAX];
        const size_t bytes = variant->scratch_bytes(&kv, 1, group);
        struct attention_task task = {.q = q,
                                      .tokens = 1,
                                      .group = group,
                                      .kv_heads = TOGETHER,
                                      .start = POSITIONS - 1,
                                      .kv_first = 5,
                                      .kv_last = POSITIONS,
                                      .scale = 0.125f,
                                      .kv = &kv,
                                      .pool = pool,
                                      .pages = pages,
                                      .kv_head = 1,
                                      .out = out[0],
                                      .m = m[0],
                                      .s = s[0],
                                      .scratch = guarded(bytes)};
        const struct attention_task next = task;
        memset(out, 0, sizeof out);
        task.next = &next;
        variant->attend(&task);
        for (uint32_t h = 0; h < TOGETHER; h++) {
            struct attention_task one = next;
            one.kv_heads = 1;
            one.kv_head = 1 + h;
            one.q = q + h * group * DIM;
            one.out = out[1] + h * group * DIM;
            one.m = m[1] + h * group;
            one.s = s[1] + h * group;
            variant->attend(&one);
        }
        assert_true(out[0][0] != 0 && s[0][TOGETHER * group - 1] > 0);
        assert_memory_equal(out[0], out[1], TOGETHER * group * DIM * sizeof(float));
        assert_memory_equal(m[0], m[1], TOGETHER * group * sizeof(float));
        assert_memory_equal(s[0], s[1], TOGETHER * group * sizeof(float));
        guarded_free(task.scratch, bytes);
    }
    free(pool);
}
static void test_heads_together(void **state)
{
    (void)state;
    each_variant(heads_together);
}

/* A query's bits are the same whichever others are asked with it, also where a window begins and a page ends. */
static void steady_queries(const struct attention_variant *variant)
{
    static const struct shape shapes[] = {{128, 2, 32, 70, 130, 0, 0, 0},
                                          {80, 3, 8, 50, 3, 0, 0, 0},
                                          {64, 8, 16, 45, 200, 77, 0, 0},
                                          {64, 1, 64, 60, 300, 100, 96, 0}};
    for (size_t i = 0; i < sizeof(shapes) / sizeof(*shapes); i++) {
        if (!kv_dtype_takes(variant->kv_dtype, shapes[i].head_dim)) continue;
        struct rig rig;
        rig_make(&rig, &shapes[i], variant->kv_dtype, 3, 77 + i);
        const struct attention_task whole = rig.task;
        float *all = malloc(rig.out_floats * sizeof(*all));
        assert_non_null(all);
        rig.task.steady = true;
        rig_run(&rig, variant, false);
        memcpy(all, rig.out, rig.out_floats * sizeof(*all));
        for (uint32_t first = 0, count = 1; first < whole.tokens; first += count, count = count % 13 + 1) {
            rig.task = whole;
            rig.task.steady = true;
            rig.task.tokens = count < whole.tokens - first ? count : whole.tokens - first;
            rig.task.q = whole.q + first * whole.q_stride;
            rig.task.start = whole.start + first;
            rig.task.kv_last = rig.task.start + rig.task.tokens;
            if (whole.window && rig.task.start + 1 > whole.window + whole.kv_first)
                rig.task.kv_first = rig.task.start + 1 - whole.window;
            rig_run(&rig, variant, false);
            for (uint32_t t = 0; t < rig.task.tokens; t++)
                assert_memory_equal(rig.out + t * rig.out_stride, all + (first + t) * rig.out_stride,
                                    (size_t)whole.group * rig.kv.head_dim * sizeof(*all));
        }
        free(all);
        rig_free(&rig);
    }
}

static void test_steady_queries(void **state)
{
    (void)state;
    each_variant(steady_queries);
}

static void test_merge_of_nothing_is_zero(void **state)
{
    (void)state;
    const float zero[4] = {0}, m[2] = {-INFINITY, -INFINITY}, s[2] = {0};
    const float *o[2] = {zero, zero}, *ms[2] = {m, m}, *ss[2] = {s, s};
    float out[4] = {9, 9, 9, 9};
    attention_merge(out, &(struct attention_parts){o, ms, ss, 2, NULL}, 2, 2);
    for (int i = 0; i < 4; i++) assert_true(out[i] == 0);
    out[0] = 9;
    attention_merge(out, &(struct attention_parts){.count = 0}, 1, 1);
    assert_true(out[0] == 0);
}

/* One position and a sink that is as likely: half of its value. A sink far above takes everything, also alone. */
static void sink_takes_its_share(const struct attention_variant *variant)
{
    const struct shape shape = {32, 2, 16, 1, 0, 0, 0, 0};
    struct rig rig;
    rig_make(&rig, &shape, variant->kv_dtype, 1, 7);
    rig.task.sinks = NULL;
    rig_run(&rig, variant, true);
    rig.sinks[0] = rig.m[0], rig.sinks[1] = rig.m[1] + 200;
    float *value = rig_dense(&rig);
    rig.task.sinks = rig.sinks;
    rig_run(&rig, variant, false);
    float *got = rig_dense(&rig);
    for (int d = 0; d < 32; d++) {
        assert_true(fabsf(got[d] - value[d] / 2) <= 1e-6f);
        assert_true(got[32 + d] == 0);
    }
    rig.task.kv_first = rig.task.kv_last;
    rig_run(&rig, variant, false);
    for (int d = 0; d < 64; d++) assert_true(rig.out[d] == 0);
    free(value);
    free(got);
    rig_free(&rig);
}
static void test_sink_takes_its_share(void **state)
{
    (void)state;
    each_variant(sink_takes_its_share);
}

/* Table 4.2 of the thesis (4.2.3.4): six tokens, each a piece of its own, to the digits that are printed. */
static void test_fold_is_table_4_2(void **state)
{
    (void)state;
    /* The table's last s is 1.388: it added 0.135 to 1.253, both rounded, where the sum is 1.3886. */
    static const struct {
        float e, v;
        const char *behind; /* it: m, s, o */
    } token[] = {{2, 10, "2 1.000 10.00"}, {4, 30, "4 1.135 31.35"}, {1, 5, "4 1.185 31.60"},
                 {0, 2, "4 1.203 31.64"},  {1, 8, "4 1.253 32.04"},  {2, 12, "4 1.389 33.66"}};
    char text[64];
    float m = -INFINITY, s = 0, o = 0;
    for (size_t i = 0; i < sizeof token / sizeof *token; i++) {
        attention_fold(&m, &s, &o, token[i].e, 1, &token[i].v, 1);
        snprintf(text, sizeof text, "%.0f %.3f %.2f", (double)m, (double)s, (double)o);
        assert_string_equal(text, token[i].behind);
    }
    snprintf(text, sizeof text, "%.1f", (double)(o / s));
    assert_string_equal(text, "24.2");
    attention_fold(&m, &s, &o, -INFINITY, 0, &(float){0}, 1); /* a page of which nothing is visible */
    snprintf(text, sizeof text, "%.0f %.3f %.2f", (double)m, (double)s, (double)o);
    assert_string_equal(text, token[5].behind);
}

/* The reference itself against a hand-computed case: two keys, weights 1/(1+e) and e/(1+e). */
static void test_reference_by_hand(void **state)
{
    (void)state;
    struct kv_layout kv = {1, 1, 1, 8, KV_F32};
    float pool[16] = {0}, q = 1, out = 0, one = 1, three = 3, five = 5, zero = 0;
    uint32_t page = 0;
    double scratch[8];
    kv_append(&kv, pool, &page, 0, false, 0, 0, &zero);
    kv_append(&kv, pool, &page, 0, false, 0, 1, &one);
    kv_append(&kv, pool, &page, 0, true, 0, 0, &three);
    kv_append(&kv, pool, &page, 0, true, 0, 1, &five);
    struct attention_task task = {.q = &q,
                                  .q_stride = 1,
                                  .tokens = 1,
                                  .group = 1,
                                  .kv_heads = 1,
                                  .start = 1,
                                  .kv_last = 2,
                                  .scale = 1,
                                  .scratch = scratch,
                                  .kv = &kv,
                                  .pool = pool,
                                  .pages = &page,
                                  .out = &out,
                                  .out_stride = 1};
    reference_of(KV_F32)->attend(&task);
    assert_true(fabs((double)out - (3 + 5 * M_E) / (1 + M_E)) < 1e-6);
}

static void test_choice(void **state)
{
    (void)state;
    const struct attention_variant *variant = NULL;
    struct helm_err err = {0};
    assert_int_equal(attention_choose(KV_F16, 0, NULL, &variant, &err), 0);
    assert_string_equal(variant->name, "ref");
    assert_int_equal(attention_choose(KV_BF16, CPU_AVX2, NULL, &variant, &err), 0);
    assert_string_equal(variant->name, "avx2");
    assert_int_equal(attention_choose(KV_BF16, CPU_AVX2 | CPU_AVX512, NULL, &variant, &err), 0);
    assert_string_equal(variant->name, "avx512");
    assert_int_equal(attention_choose(KV_BF16, CPU_AVX2 | CPU_AVX512, "avx2", &variant, &err), 0);
    assert_string_equal(variant->name, "avx2");
    assert_int_equal(attention_choose(KV_BF16, CPU_AVX2, "avx512", &variant, &err), HELM_E_UNSUPPORTED);
    assert_null(variant);
    assert_non_null(strstr(err.text, "avx512"));
    assert_int_equal(attention_choose(KV_BF16, CPU_AVX2, "sse9", &variant, &err), HELM_E_UNSUPPORTED);
    assert_non_null(strstr(err.text, "sse9"));
    assert_int_equal(attention_choose(KV_DTYPE_COUNT, ~0u, NULL, &variant, &err), HELM_E_UNSUPPORTED);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fold_is_table_4_2),    cmocka_unit_test(test_steady_queries),
        cmocka_unit_test(test_reference_by_hand),    cmocka_unit_test(test_choice),
        cmocka_unit_test(test_odd_shapes),           cmocka_unit_test(test_windows_and_ranges),
        cmocka_unit_test(test_extreme_logits),       cmocka_unit_test(test_nan_shows),
        cmocka_unit_test(test_splits_merge),         cmocka_unit_test(test_heads_together),
        cmocka_unit_test(test_sink_takes_its_share), cmocka_unit_test(test_merge_of_nothing_is_zero),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
