/* Unit tests of common/plan/host_weights.c, on a small model made up here and on the tied and untied reference
 * checkpoints. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "common/plan/host_weights.h"
#include "tests/written_formats.h"

static bool is_matrix(enum tensor_role role)
{
    return role == TENSOR_EMBED || role == TENSOR_HEAD || (role >= TENSOR_Q && role <= TENSOR_O) ||
           (role >= TENSOR_GATE && role <= TENSOR_DOWN);
}

/* Where a tensor comes in the order of use; the head's matrix comes last wherever the head is the CPU's. */
static uint32_t rank_of(const struct model *m, const struct plan *plan, const struct model_tensor *t)
{
    bool head = plan->head == PLAN_CPU0;
    if (t->role == TENSOR_HEAD || (t->role == TENSOR_EMBED && m->config.tied_head && head)) return UINT32_MAX;
    if (t->role == TENSOR_EMBED) return 0;
    return 1 + (uint32_t)t->layer * TENSOR_ROLE_COUNT + (uint32_t)t->role;
}

static bool is_on_host(const struct model *m, const struct plan *plan, const struct model_tensor *t)
{
    bool embed = plan->embed == PLAN_CPU0, head = plan->head == PLAN_CPU0;
    if (!is_matrix(t->role)) return false;
    if (t->role == TENSOR_HEAD) return head;
    if (t->role == TENSOR_EMBED) return embed || (head && m->config.tied_head);
    uint32_t unit = model_tensor_unit(t);
    return plan_unit_home(plan, 0, unit) != PLAN_HOME_GPU;
}

/* Everything the header promises, for one plan. */
static void check(const struct model *m, const struct plan *plan)
{
    struct helm_err err = {0};
    struct host_weights w;
    uint64_t end = 0, bytes = 0;
    uint32_t expected = 0;
    assert_int_equal(host_weights_plan(m, plan, &w, &err), 0);
    for (uint32_t i = 0; i < w.count; i++) {
        const struct host_weights_place *p = &w.place[i];
        assert_int_equal(p->offset % HOST_WEIGHTS_ALIGN, 0);
        assert_true(p->offset >= end);
        assert_true(p->offset - end < HOST_WEIGHTS_ALIGN);
        end = p->offset + p->tensor->bytes;
        bytes += p->tensor->bytes;
        if (i) assert_true(rank_of(m, plan, p->tensor) > rank_of(m, plan, w.place[i - 1].tensor));
    }
    assert_int_equal(w.region_bytes, end);
    assert_int_equal(w.matrix_bytes, bytes);
    for (uint32_t i = 0; i < m->tensor_count; i++) {
        const struct model_tensor *t = &m->tensors[i];
        const struct host_weights_place *p = host_weights_find(&w, t->role, t->layer);
        if (is_on_host(m, plan, t)) {
            expected++;
            assert_non_null(p);
            assert_ptr_equal(p->tensor, t);
        } else {
            assert_null(p);
        }
    }
    assert_int_equal(w.count, expected); /* so none is there twice */
    if (m->config.tied_head)
        assert_ptr_equal(host_weights_find(&w, TENSOR_HEAD, -1), host_weights_find(&w, TENSOR_EMBED, -1));
    assert_null(host_weights_find(&w, TENSOR_Q, (int32_t)m->config.layers));
    assert_null(host_weights_find(&w, TENSOR_Q, -2));
    assert_null(host_weights_find(&w, TENSOR_ROLE_COUNT, 0));
    host_weights_free(&w);
    assert_null(host_weights_find(&w, TENSOR_Q, 0));
}

/* Homes of the units from a pattern, repeated: 'c', 'g', 's'. */
static struct plan plan_of(const struct model *m, const char *pattern, enum plan_processor embed,
                           enum plan_processor head, struct plan_stage *stages)
{
    enum plan_home home[64];
    assert_true(unit_count(m->config.layers) <= 64);
    for (uint32_t u = 0; u < unit_count(m->config.layers); u++) {
        char c = pattern[u % strlen(pattern)];
        home[u] = c == 'c' ? PLAN_HOME_CPU : c == 'g' ? PLAN_HOME_GPU : PLAN_HOME_STREAM;
    }
    struct plan plan = {.layers = m->config.layers, .embed = embed, .head = head, .stages = stages};
    plan.ring_bytes = 1 << 20;
    plan.stage_count = plan_stages_of(home, plan.layers, stages);
    struct helm_err err = {0};
    assert_int_equal(plan_check(&plan, &err), 0);
    return plan;
}

static void every_host_matrix_has_one_place(void **state)
{
    (void)state;
    static const char *const folders[] = {"tests/data/golden/qwen3", "tests/data/golden/qwen2-bias",
                                          "tests/data/golden/llama3-ropescaled"};
    static const char *const patterns[] = {"c", "g", "s", "cg", "gc", "sc", "gs", "ccggs", "ggc"};
    bool tied = false, untied = false;
    for (size_t f = 0; f < sizeof folders / sizeof *folders; f++) {
        struct helm_err err = {0};
        struct model m;
        assert_int_equal(model_read(folders[f], &m, &err), 0);
        if (m.config.tied_head)
            tied = true;
        else
            untied = true;
        for (size_t i = 0; i < sizeof patterns / sizeof *patterns; i++)
            for (int ends = 0; ends < 4; ends++) {
                struct plan_stage stages[64];
                const struct plan plan = plan_of(&m, patterns[i], ends & 1 ? PLAN_CPU0 : PLAN_GPU0,
                                                 ends & 2 ? PLAN_CPU0 : PLAN_GPU0, stages);
                check(&m, &plan);
            }
        model_free(&m);
    }
    assert_true(tied && untied);
}

static void nothing_is_laid_out_where_all_is_in_vram(void **state)
{
    (void)state;
    struct helm_err err = {0};
    struct model m;
    struct host_weights w;
    struct plan_stage stages[64];
    assert_int_equal(model_read("tests/data/golden/qwen3", &m, &err), 0);
    struct plan plan = plan_of(&m, "g", PLAN_GPU0, PLAN_GPU0, stages);
    assert_int_equal(host_weights_plan(&m, &plan, &w, &err), 0);
    assert_int_equal(w.count, 0);
    assert_int_equal(w.region_bytes, 0);
    assert_int_equal(w.matrix_bytes, 0);
    host_weights_free(&w);
    model_free(&m);
}

/* What differs between two plans of the same decode homes changes nothing. */
static void prefill_lists_change_nothing(void **state)
{
    (void)state;
    struct helm_err err = {0};
    struct model m;
    struct host_weights a, b;
    struct plan_stage stages[64], streamed[64];
    assert_int_equal(model_read("tests/data/golden/qwen3", &m, &err), 0);
    struct plan plan = plan_of(&m, "ccgg", PLAN_CPU0, PLAN_GPU0, stages);
    struct plan with = plan_of(&m, "ssgg", PLAN_CPU0, PLAN_GPU0, streamed);
    with.prefill[0] =
        (struct plan_phase){.from_tokens = 40, .stages = streamed, .stage_count = with.stage_count};
    with.prefill_count = 1;
    with.stages = stages;
    with.stage_count = plan.stage_count;
    assert_int_equal(plan_check(&with, &err), 0);
    assert_int_equal(host_weights_plan(&m, &plan, &a, &err), 0);
    assert_int_equal(host_weights_plan(&m, &with, &b, &err), 0);
    assert_int_equal(a.count, b.count);
    assert_true(a.count > 0);
    assert_memory_equal(a.place, b.place, a.count * sizeof *a.place);
    assert_int_equal(a.region_bytes, b.region_bytes);
    host_weights_free(&a);
    host_weights_free(&b);
    model_free(&m);
}

/* Packed is what decode streams and no list gives to the CPU, of units whose matrices all can be, and its
 * place has room for the most. */
static void what_only_crosses_the_link_is_packed(void **state)
{
    (void)state;
    struct helm_err err = {0};
    struct model m;
    struct host_weights w;
    struct plan_stage stages[64], prefill[64];
    assert_int_equal(model_read("tests/data/golden/qwen3", &m, &err), 0);
    assert_int_equal(m.config.layers, 4);
    struct plan plan = plan_of(&m, "sscgssss", PLAN_CPU0, PLAN_CPU0, stages);
    struct plan with = {0};
    bool link[8], cpu[8];
    enum tensor_format format[10];
    enum plan_home decode_home[8];
    plan_unit_homes(&plan, 0, decode_home);
    static const enum plan_home prefill_home[8] = {PLAN_HOME_CPU,    PLAN_HOME_STREAM, PLAN_HOME_STREAM,
                                                   PLAN_HOME_GPU,    PLAN_HOME_STREAM, PLAN_HOME_STREAM,
                                                   PLAN_HOME_STREAM, PLAN_HOME_STREAM};
    with.stage_count = plan_stages_of(prefill_home, 4, prefill);
    for (int c = 0; c < 4;
         c++) { /* not asked for; asked for; a list gives unit 0 to the CPU; unit 5 cannot */
        bool expected[8];
        plan.prefill_count = c == 2;
        plan.prefill[0] =
            (struct plan_phase){.from_tokens = 40, .stages = prefill, .stage_count = with.stage_count};
        for (uint32_t u = 0; u < 8; u++)
            expected[u] = c > 0 && u != 2 && u != 3 && !(c == 2 && u == 0) && !(c == 3 && u == 5);
        for (uint32_t i = 0; i < m.tensor_count && c == 3; i++)
            if (m.tensors[i].role == TENSOR_DOWN && m.tensors[i].layer == 2) m.tensors[i].format = FORMAT_F16;
        host_weights_packing(&m, link, cpu);
        plan.stage_count = plan_stages_of(decode_home, 4, stages);
        write_formats(&plan, &(struct written_formats){.link = c > 0, .can = link, .can_cpu = cpu}, format);
        assert_int_equal(host_weights_plan(&m, &plan, &w, &err), 0);
        uint64_t end = 0, raw = 0;
        for (uint32_t i = 0; i < w.count; i++) {
            const struct host_weights_place *p = &w.place[i];
            const struct model_tensor *t = p->tensor;
            bool packed = t->layer >= 0 && expected[model_tensor_unit(t)];
            assert_int_equal(p->packed, packed);
            assert_true(p->offset >= end && p->offset - end < HOST_WEIGHTS_ALIGN);
            end = p->offset + host_weights_room(t, packed);
            raw += t->bytes;
            if (!packed) continue;
            uint32_t rows = (uint32_t)t->rows, cols = (uint32_t)t->cols;
            assert_int_equal(packed_groups_at(rows) % 16, 0);
            assert_true(packed_groups_at(rows) >= packed_offsets_bytes(rows));
            assert_true(host_weights_room(t, true) >= packed_groups_at(rows) + t->bytes);
            assert_int_equal(host_weights_room(t, true),
                             packed_groups_at(rows) + packed_matrix_bytes_max(rows, cols));
        }
        assert_int_equal(w.region_bytes, end);
        assert_int_equal(w.matrix_bytes, raw);
        host_weights_free(&w);
    }
    model_free(&m);
    const struct model_tensor
        odd = {.role = TENSOR_DOWN, .rows = 24, .cols = 64, .bytes = 3072, .format = FORMAT_BF16},
        even = {.role = TENSOR_DOWN, .rows = 32, .cols = 64, .bytes = 4096, .format = FORMAT_BF16};
    assert_false(host_weights_can_pack(&odd)); /* slices begin at whole groups */
    assert_true(host_weights_can_pack(&even));
}

/* Where the CPU computes, the plan's `pack_cpu` packs units whose rows are whole halves of a tile; it changes
 * nothing of those that only cross the link, nor of embedding and head. */
static void what_the_cpu_reads_is_packed_by_shape(void **state)
{
    (void)state;
    struct helm_err err = {0};
    struct model m;
    struct host_weights w;
    struct plan_stage stages[64], prefill[64];
    bool link[8], cpu[8];
    enum tensor_format format[10];
    assert_int_equal(model_read("tests/data/golden/qwen3", &m, &err), 0);
    host_weights_packing(&m, link, cpu);
    for (uint32_t u = 0; u < 8; u++) assert_true(link[u] && !cpu[u]); /* 256 and 704 columns */
    /* Attention of layers 0 and 1 and the MLPs of 1 and 2 get such rows; one matrix of the latter does not.
     */
    for (uint32_t i = 0; i < m.tensor_count; i++) {
        struct model_tensor *t = &m.tensors[i];
        bool mlp = (unit_part_of_role(t->role) == UNIT_MLP);
        if (t->layer < 0 || t->rows <= 1 || !(mlp ? t->layer == 1 || t->layer == 2 : t->layer < 2)) continue;
        t->cols = mlp && t->layer == 2 && t->role == TENSOR_DOWN ? 768 : 1024;
        t->bytes = t->rows * t->cols * 2;
    }
    host_weights_packing(&m, link, cpu);
    for (uint32_t u = 0; u < 8; u++) {
        assert_true(link[u]);
        assert_int_equal(cpu[u], u == 0 || u == 2 || u == 3);
    }
    for (int c = 0; c < 8; c++) { /* pack, pack_cpu, and a list for prompts that streams the CPU's */
        struct plan plan = plan_of(&m, "cccsccss", PLAN_CPU0, PLAN_CPU0, stages);
        const struct plan with = plan_of(&m, c & 4 ? "sscsscss" : "cccsccss", PLAN_CPU0, PLAN_CPU0, prefill);
        plan.prefill_count = 1;
        plan.prefill[0] =
            (struct plan_phase){.from_tokens = 40, .stages = prefill, .stage_count = with.stage_count};
        const struct written_formats f = {.link = c & 1, .cpu = c & 2, .can = link, .can_cpu = cpu};
        write_formats(&plan, &f, format);
        assert_int_equal(host_weights_plan(&m, &plan, &w, &err), 0);
        uint32_t packed = 0;
        for (uint32_t i = 0; i < w.count; i++) {
            const struct model_tensor *t = w.place[i].tensor;
            uint32_t u = model_tensor_unit(t);
            bool streamed = plan_unit_home(&plan, 0, u) == PLAN_HOME_STREAM;
            bool expected = t->layer >= 0 && (streamed ? c & 1 : c & 2 && cpu[u]);
            assert_int_equal(w.place[i].packed, expected);
            packed += expected;
        }
        assert_true((packed > 0) == ((c & 3) > 0));
        host_weights_free(&w);
    }
    model_free(&m);
}

static void bad_input_is_refused(void **state)
{
    (void)state;
    struct helm_err err = {0};
    struct model m;
    struct host_weights w;
    struct plan_stage stages[64];
    assert_int_equal(model_read("tests/data/golden/qwen3", &m, &err), 0);
    struct plan plan = plan_of(&m, "c", PLAN_CPU0, PLAN_CPU0, stages);
    plan.layers++;
    assert_int_equal(host_weights_plan(&m, &plan, &w, &err), HELM_E_MISMATCH);
    plan.layers--;
    for (uint32_t i = 0; i < m.tensor_count; i++)
        if (m.tensors[i].role == TENSOR_O) m.tensors[i].bytes = UINT64_MAX - 100;
    assert_int_equal(host_weights_plan(&m, &plan, &w, &err), HELM_E_LIMIT);
    assert_null(w.place);
    model_free(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_host_matrix_has_one_place),
        cmocka_unit_test(nothing_is_laid_out_where_all_is_in_vram),
        cmocka_unit_test(prefill_lists_change_nothing),
        cmocka_unit_test(what_only_crosses_the_link_is_packed),
        cmocka_unit_test(what_the_cpu_reads_is_packed_by_shape),
        cmocka_unit_test(bad_input_is_refused),
    };
    return cmocka_run_group_tests_name("common/host_weights", tests, NULL, NULL);
}
