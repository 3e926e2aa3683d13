/* Attention in parts: partial results merged over random splits, heads computed together, queries whose bits
 * must not depend on their neighbours, sinks, and the merge by hand. */
#include "tests/kernels/attention_rig.h"

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

/* Neighbouring kv heads in one task, with a next task to look ahead to: the bits of a task for each without
 * one. */
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

/* A query's bits are the same whichever others are asked with it, also where a window begins and a page
 * ends. */
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

/* One position and a sink that is as likely: half of its value. A sink far above takes everything, also
 * alone. */
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
        const char *folded; /* m, s, o after it */
    } token[] = {{2, 10, "2 1.000 10.00"}, {4, 30, "4 1.135 31.35"}, {1, 5, "4 1.185 31.60"},
                 {0, 2, "4 1.203 31.64"},  {1, 8, "4 1.253 32.04"},  {2, 12, "4 1.389 33.66"}};
    char text[64];
    float m = -INFINITY, s = 0, o = 0;
    for (size_t i = 0; i < sizeof token / sizeof *token; i++) {
        attention_fold(&m, &s, &o, token[i].e, 1, &token[i].v, 1);
        snprintf(text, sizeof text, "%.0f %.3f %.2f", (double)m, (double)s, (double)o);
        assert_string_equal(text, token[i].folded);
    }
    snprintf(text, sizeof text, "%.1f", (double)(o / s));
    assert_string_equal(text, "24.2");
    attention_fold(&m, &s, &o, -INFINITY, 0, &(float){0}, 1); /* a page of which nothing is visible */
    snprintf(text, sizeof text, "%.0f %.3f %.2f", (double)m, (double)s, (double)o);
    assert_string_equal(text, token[5].folded);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fold_is_table_4_2),    cmocka_unit_test(test_steady_queries),
        cmocka_unit_test(test_splits_merge),         cmocka_unit_test(test_heads_together),
        cmocka_unit_test(test_sink_takes_its_share), cmocka_unit_test(test_merge_of_nothing_is_zero),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
