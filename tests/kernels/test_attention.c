/* Every attention variant in the table against the reference, over odd shapes, shuffled page tables, windows,
 * ranges and starts; extreme logits; and what must not be touched. */
#include "tests/kernels/attention_rig.h"

/* Instrumented kernels are many times slower: of the shapes a fifth, with each head size beside each number
 * of tokens' tier and most groups; of windows and ranges every other one. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define NEXT_SHAPE 5
#define NEXT_RANGE 2
#else
#define NEXT_SHAPE 1
#define NEXT_RANGE 1
#endif

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
        cmocka_unit_test(test_reference_by_hand), cmocka_unit_test(test_choice),
        cmocka_unit_test(test_odd_shapes),        cmocka_unit_test(test_windows_and_ranges),
        cmocka_unit_test(test_extreme_logits),    cmocka_unit_test(test_nan_shows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
