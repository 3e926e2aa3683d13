/* Unit tests of common/plan/placement.c on the tied and untied reference checkpoints: where everything lies,
 * and what is said of lists that were changed by hand. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "common/formats/packed.h"
#include "common/model/arch.h"
#include "common/plan/placement.h"
#include "tests/written_formats.h"
#include "tests/written_plans.h"

/* Where a tensor comes in the order of use of a memory; the head's matrix comes last wherever the head is
 * there. */
static uint32_t rank_of(const struct model *m, const struct plan *plan, enum plan_memory memory,
                        const struct placement *p)
{
    const bool head = plan_processor_memory(plan->head) == memory;
    if (p->role == TENSOR_HEAD || (p->role == TENSOR_EMBED && m->config.tied_head && head)) return UINT32_MAX;
    if (p->role == TENSOR_EMBED) return 0;
    return 1 + (uint32_t)p->layer * TENSOR_ROLE_COUNT + (uint32_t)p->role;
}

static bool is_in(const struct model *m, const struct plan *plan, enum plan_memory memory,
                  const struct model_tensor *t)
{
    const bool embed = plan_processor_memory(plan->embed) == memory,
               head = plan_processor_memory(plan->head) == memory;
    if (arch_role_is_vector(t->role)) return false;
    if (t->role == TENSOR_HEAD) return head;
    if (t->role == TENSOR_EMBED) return embed || (head && m->config.tied_head);
    return plan_home_memory(plan->unit[model_tensor_unit(t)].home[0]) == memory;
}

/* Everything the header promises of one memory, where all lies as stored. Boundaries and sizes are those that
 * the workers laid out for themselves before there was a list. */
static void check_memory(const struct model *m, const struct plan *plan, enum plan_memory memory)
{
    const struct placements in = placements_in(plan, memory);
    const uint64_t align = memory == PLAN_HOST ? 64 : 256;
    uint64_t end = 0;
    uint32_t expected = 0;
    assert_int_equal(placement_align(memory), align);
    for (uint32_t i = 0; i < in.count; i++) {
        const struct placement *p = &in.place[i];
        const struct model_tensor *t = placement_tensor(m, p);
        assert_int_equal(p->memory, memory);
        assert_int_equal(p->offset, (end + align - 1) / align * align);
        assert_int_equal(p->bytes, t->bytes);
        assert_int_equal(p->format, t->format);
        end = p->offset + p->bytes;
        if (i) assert_true(rank_of(m, plan, memory, p) > rank_of(m, plan, memory, p - 1));
    }
    assert_int_equal(in.region_bytes, (end + align - 1) / align * align);
    assert_int_equal(in.varying, 0);
    for (uint32_t i = 0; i < m->tensor_count; i++) {
        const struct model_tensor *t = &m->tensors[i];
        const struct placement *p = placement_find(&in, t->role, t->layer);
        if (is_in(m, plan, memory, t)) {
            expected++;
            assert_non_null(p);
            assert_ptr_equal(placement_tensor(m, p), t);
        } else {
            assert_null(p);
        }
    }
    assert_int_equal(in.count, expected); /* so none is there twice */
    assert_null(placement_find(&in, TENSOR_Q, (int32_t)m->config.layers));
}

/* The list of one plan, which passes its own check, in JSON too. */
static void check(const struct model *m, struct plan *plan)
{
    struct helm_err err = {0};
    assert_int_equal(placement_make(m, NULL, plan, &err), 0);
    if (placement_check(m, plan, &err)) fail_msg("%s", err.text);
    check_memory(m, plan, PLAN_HOST);
    check_memory(m, plan, PLAN_VRAM0);
    assert_int_equal(plan->placement_count,
                     placements_in(plan, PLAN_HOST).count + placements_in(plan, PLAN_VRAM0).count);
    plan_drop_placements(plan);
    assert_int_equal(placements_in(plan, PLAN_HOST).count, 0);
}

/* Homes of the units from a pattern, repeated: 'c', 'g', 's'. */
static struct plan plan_of(const struct model *m, const char *pattern, enum plan_processor embed,
                           enum plan_processor head, struct plan_unit unit[66])
{
    assert_true(unit_count(m->config.layers) <= 64);
    struct plan plan = {.layers = m->config.layers, .embed = embed, .head = head};
    plan.device[PLAN_GPU0].ring_bytes = 1 << 20;
    plan.unit = units_of_letters(unit, plan.layers, pattern, strlen(pattern));
    struct helm_err err = {0};
    assert_int_equal(plan_check(&plan, &err), 0);
    return plan;
}

static void every_matrix_has_one_place(void **state)
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
                struct plan_unit unit[66];
                struct plan plan = plan_of(&m, patterns[i], ends & 1 ? PLAN_CPU0 : PLAN_GPU0,
                                           ends & 2 ? PLAN_CPU0 : PLAN_GPU0, unit);
                check(&m, &plan);
            }
        model_free(&m);
    }
    assert_true(tied && untied);
}

/* Prefill lists that differ between two plans of the same decode homes change nothing. */
static void prefill_lists_change_nothing(void **state)
{
    (void)state;
    struct helm_err err = {0};
    struct model m;
    struct plan_unit unit[66], more[66];
    assert_int_equal(model_read("tests/data/golden/qwen3", &m, &err), 0);
    struct plan plan = plan_of(&m, "ccgg", PLAN_CPU0, PLAN_GPU0, unit);
    struct plan with = plan_of(&m, "ccgg", PLAN_CPU0, PLAN_GPU0, more);
    add_letters(&with, 40, "ssgg");
    assert_int_equal(plan_check(&with, &err), 0);
    assert_int_equal(placement_make(&m, NULL, &plan, &err), 0);
    assert_int_equal(placement_make(&m, NULL, &with, &err), 0);
    assert_true(plan.placement_count > 0 && plan.placement_count == with.placement_count);
    for (uint32_t i = 0; i < plan.placement_count; i++) {
        assert_int_equal(plan.placement[i].role, with.placement[i].role);
        assert_int_equal(plan.placement[i].layer, with.placement[i].layer);
        assert_int_equal(plan.placement[i].offset, with.placement[i].offset);
    }
    plan_drop_placements(&plan);
    plan_drop_placements(&with);
    model_free(&m);
}

/* In host memory packed ones lie in order among the others, with room for the most. In VRAM they are the
 * last, in order, with room for what they are said to come to. */
static void packed_matrices_have_rooms(void **state)
{
    (void)state;
    struct helm_err err = {0};
    struct model m;
    struct plan_unit unit[66];
    assert_int_equal(model_read("tests/data/golden/qwen3", &m, &err), 0);
    assert_int_equal(m.config.layers, 4);
    struct plan plan = plan_of(&m, "sgcggsgc", PLAN_CPU0, PLAN_GPU0, unit);
    const struct written_formats w = {.link = true, .vram = 2, .head = true};
    write_formats(&plan, &w); /* units 0 and 5 in host memory, 1 and 3 in VRAM, the head */
    for (int known = 0; known < 2; known++) {
        const struct packed_parts parts = {0.5, 0.6, 0.7};
        const double part[] = {0.5, 0.6, 0.7};
        uint32_t packed[PLAN_MEMORIES] = {0};
        uint64_t rooms = 0, end = 0;
        assert_int_equal(placement_make(&m, known ? &parts : NULL, &plan, &err), 0);
        if (placement_check(&m, &plan, &err)) fail_msg("%s", err.text);
        for (uint32_t i = 0; i < plan.placement_count; i++) {
            const struct placement *p = &plan.placement[i];
            const struct model_tensor *t = placement_tensor(&m, p);
            const bool in_unit = t->layer >= 0, host = p->memory == PLAN_HOST;
            const uint32_t u = in_unit ? model_tensor_unit(t) : 0, rows = (uint32_t)t->rows;
            const bool expected = in_unit ? u == 0 || u == 5 || u == 1 || u == 3 : !host;
            assert_int_equal(p->format, expected ? FORMAT_BF16_PACKED : FORMAT_BF16);
            if (!host && (!i || p[-1].memory == PLAN_HOST)) end = 0;
            assert_int_equal(p->offset, placement_rounded(p->memory, end));
            end = p->offset + p->bytes;
            packed[p->memory] += expected;
            if (!host && !expected) assert_int_equal(packed[PLAN_VRAM0], 0); /* all after these */
            if (!expected) continue;
            if (host) {
                assert_int_equal(p->bytes,
                                 packed_groups_at(rows) + packed_matrix_bytes_max(rows, (uint32_t)t->cols));
                continue;
            }
            const uint64_t table = (packed_offsets_bytes(rows) + 255) / 256 * 256;
            const double least = known ? part[in_unit ? unit_part(u) : 2] : 0.7;
            assert_int_equal(p->bytes % 256, 0);
            assert_in_range(p->bytes - table, (uint64_t)(least * (double)t->bytes),
                            (uint64_t)((known ? least * 1.006 : 0.8) * (double)t->bytes) + 256);
            rooms += p->bytes;
        }
        assert_int_equal(packed[PLAN_HOST], 4 + 3);
        assert_int_equal(packed[PLAN_VRAM0], 3 + 3 + 1);
        const struct placements in = placements_in(&plan, PLAN_VRAM0);
        assert_int_equal(in.varying, rooms);
        assert_int_equal(in.region_bytes, end);
    }
    plan_drop_placements(&plan);
    model_free(&m);
}

static void what_can_be_packed_goes_by_shape(void **state)
{
    (void)state;
    struct helm_err err = {0};
    struct model m;
    bool link[8], cpu[8];
    assert_int_equal(model_read("tests/data/golden/qwen3", &m, &err), 0);
    placement_packing(&m, link, cpu);
    for (uint32_t u = 0; u < 8; u++) assert_true(link[u] && cpu[u] == (u % 2 == 0)); /* 256 and 704 columns */
    /* Attention of layers 0 and 1 gets other rows, and the MLPs of 1 and 2 such; one matrix of the latter
     * does not. */
    for (uint32_t i = 0; i < m.tensor_count; i++) {
        struct model_tensor *t = &m.tensors[i];
        bool mlp = unit_part_of_role(t->role) == UNIT_MLP;
        if (t->layer < 0 || t->rows <= 1 || !(mlp ? t->layer == 1 || t->layer == 2 : t->layer < 2)) continue;
        t->cols = mlp && t->layer == 2 && t->role == TENSOR_DOWN ? 704 : 1024;
        t->bytes = t->rows * t->cols * 2;
    }
    placement_packing(&m, link, cpu);
    for (uint32_t u = 0; u < 8; u++) {
        assert_true(link[u]);
        assert_int_equal(cpu[u], u % 2 == 0 || u == 3);
    }
    for (uint32_t i = 0; i < m.tensor_count; i++)
        if (m.tensors[i].role == TENSOR_DOWN && m.tensors[i].layer == 2) m.tensors[i].format = FORMAT_F16;
    placement_packing(&m, link, cpu);
    for (uint32_t u = 0; u < 8; u++) assert_int_equal(link[u], u != 5);
    const struct model_tensor
        odd = {.role = TENSOR_DOWN, .rows = 24, .cols = 64, .bytes = 3072, .format = FORMAT_BF16},
        even = {.role = TENSOR_DOWN, .rows = 32, .cols = 64, .bytes = 4096, .format = FORMAT_BF16};
    assert_false(placement_takes(&m, &odd, FORMAT_BF16_PACKED)); /* slices begin at whole groups */
    assert_true(placement_takes(&m, &even, FORMAT_BF16_PACKED));
    assert_true(placement_takes(&m, &odd, FORMAT_Q8_0));
    model_free(&m);
    assert_int_equal(placement_room(&even, FORMAT_Q8_0, PLAN_VRAM0, NULL), 32 * 64 / 32 * 34);
}

/* The vectors of every unit that a processor computes in any list, and of the head. */
static void vectors_are_laid_for_who_computes(void **state)
{
    (void)state;
    static const char *const folders[] = {"tests/data/golden/qwen3", "tests/data/golden/qwen2-bias"};
    for (size_t f = 0; f < sizeof folders / sizeof *folders; f++) {
        struct helm_err err = {0};
        struct model m;
        struct plan_unit unit[66];
        assert_int_equal(model_read(folders[f], &m, &err), 0);
        struct plan plan = plan_of(&m, "ccgs", PLAN_CPU0, PLAN_GPU0, unit);
        add_letters(&plan, 40, "csgs");
        for (int processor = 0; processor < PLAN_PROCESSORS; processor++) {
            struct placement *list = calloc(m.tensor_count, sizeof *list);
            const uint64_t align = processor == PLAN_CPU0 ? 64 : 256;
            uint32_t count, expected = 0;
            uint64_t sum = 0;
            assert_non_null(list);
            const uint64_t bytes = placement_vectors(&m, &plan, (enum plan_processor)processor, list, &count);
            for (uint32_t i = 0; i < m.tensor_count; i++) {
                const struct model_tensor *t = &m.tensors[i];
                const uint32_t u = t->layer < 0 ? 0 : model_tensor_unit(t) % 4;
                if (!arch_role_is_vector(t->role)) continue;
                if (processor == PLAN_GPU1) continue; /* the plan does not use it */
                expected += t->layer < 0 ? processor == PLAN_GPU0 : processor == PLAN_CPU0 ? u < 2 : u > 0;
            }
            assert_int_equal(count, expected);
            for (uint32_t i = 0; i < count; i++) {
                const struct model_tensor *t = placement_tensor(&m, &list[i]);
                assert_int_equal(list[i].offset, sum);
                assert_int_equal(list[i].format, FORMAT_F32);
                sum += (t->cols * 4 + align - 1) / align * align;
            }
            assert_int_equal(bytes, sum);
            assert_int_equal(placement_vectors(&m, &plan, (enum plan_processor)processor, NULL, NULL), sum);
            free(list);
        }
        model_free(&m);
    }
}

static void what_cannot_lie_so_is_refused(void **state)
{
    (void)state;
    struct helm_err err = {0};
    struct model m;
    struct plan_unit unit[66];
    assert_int_equal(model_read("tests/data/golden/qwen3", &m, &err), 0);
    struct plan plan = plan_of(&m, "c", PLAN_CPU0, PLAN_CPU0, unit);
    plan.layers++;
    assert_int_equal(placement_make(&m, NULL, &plan, &err), HELM_E_MISMATCH);
    plan.layers--;
    write_formats(&plan, &(struct written_formats){.cpu = true});
    struct model_tensor *down = NULL;
    for (uint32_t i = 0; i < m.tensor_count; i++)
        if (m.tensors[i].role == TENSOR_DOWN && m.tensors[i].layer == 2) down = &m.tensors[i];
    down->format = FORMAT_F16;
    assert_int_equal(placement_make(&m, NULL, &plan, &err), HELM_E_UNSUPPORTED);
    assert_non_null(strstr(err.text, "layers.2.mlp.down_proj.weight as bf16-packed: its "));
    down->format = FORMAT_BF16;
    plan_formats_clear(&plan);
    down->bytes = UINT64_MAX - 100;
    assert_int_equal(placement_make(&m, NULL, &plan, &err), HELM_E_LIMIT);
    assert_null(plan.placement);
    model_free(&m);
}

/* ---- lists changed by hand ---- */

enum change {
    GONE,        /* the list */
    MISSING,     /* an entry */
    TWICE,       /* entry, at the end of its memory */
    NEVER_THERE, /* an entry that no stage has */
    MOVED,       /* a stage's home, and not the entries */
    OVERLAPPING,
    OUT_OF_LINE, /* off its boundary */
    TOO_FEW,     /* bytes */
    TOO_MANY,
    ROOM_TOO_SMALL, /* for a packed one in host memory */
    OTHER_FORMAT,
    ENDLESS,
    BACKWARDS, /* memories in another order */
    AFTER_THE_STACK,
    CHANGES
};

static struct placement *find(struct plan *plan, enum plan_memory memory, enum tensor_role role,
                              int32_t layer)
{
    const struct placements in = placements_in(plan, memory);
    const struct placement *p = placement_find(&in, role, layer);
    assert_non_null(p);
    return &plan->placement[p - plan->placement];
}

static void remove_at(struct plan *plan, struct placement *p)
{
    const size_t behind = (size_t)(plan->placement + --plan->placement_count - p);
    memmove(p, p + 1, behind * sizeof *p);
}

/* Units 0 to 3 are on the host, 0 packed; 4 to 7 in VRAM, 4 packed. */
static void apply(enum change change, struct plan *plan)
{
    struct placement *up = find(plan, PLAN_HOST, TENSOR_UP, 1), *q = find(plan, PLAN_VRAM0, TENSOR_Q, 3),
                     *packed = find(plan, PLAN_HOST, TENSOR_Q, 0),
                     *stacked = find(plan, PLAN_VRAM0, TENSOR_Q, 2),
                     *last = &plan->placement[plan->placement_count - 1], copy;
    switch (change) {
    case GONE:
        plan_drop_placements(plan);
        break;
    case MISSING:
        remove_at(plan, up);
        break;
    case TWICE:
        copy = *find(plan, PLAN_HOST, TENSOR_O, 1);
        copy.offset = up->offset;
        *up = copy;
        break;
    case NEVER_THERE:
        up->role = TENSOR_ATTN_NORM;
        break;
    case MOVED:
        plan->unit[6].home[0] = plan->unit[7].home[0] = PLAN_HOME_CPU;
        break;
    case OVERLAPPING:
        up->offset -= 64;
        break;
    case OUT_OF_LINE:
        q->offset += 64;
        break;
    case TOO_FEW:
        q->bytes -= 256;
        break;
    case TOO_MANY:
        q->bytes += 2;
        break;
    case ROOM_TOO_SMALL:
        packed->bytes -= 64;
        break;
    case OTHER_FORMAT:
        q->format = FORMAT_F16;
        break;
    case ENDLESS:
        last->bytes = UINT64_MAX / 2;
        break;
    case BACKWARDS:
        copy = plan->placement[0];
        plan->placement[0] = *last;
        *last = copy;
        break;
    case AFTER_THE_STACK:
        copy = *stacked;
        *stacked = *q;
        stacked->offset = copy.offset;
        stacked->bytes = q->bytes;
        q->role = copy.role;
        q->layer = copy.layer;
        q->format = copy.format;
        break;
    case CHANGES:
        break;
    }
}

static void changed_lists_are_refused_with_the_numbers(void **state)
{
    (void)state;
    static const struct {
        int code;
        const char *text, *more;
    } said[CHANGES] = {
        [GONE] = {HELM_E_FORMAT, "the plan says not where weights lie", ""},
        [MISSING] = {HELM_E_MISMATCH, "model.layers.1.mlp.up_proj.weight is missing in host", " bytes"},
        [TWICE] = {HELM_E_MISMATCH, "model.layers.1.self_attn.o_proj.weight has ", "where it is already"},
        [NEVER_THERE] = {HELM_E_MISMATCH, "model.layers.1.input_layernorm.weight has ",
                         "no stage of the plan"},
        [MOVED] = {HELM_E_MISMATCH, "model.layers.3.self_attn.q_proj.weight has ",
                   " of vram, where no stage"},
        [OVERLAPPING] = {HELM_E_MISMATCH, "model.layers.1.mlp.up_proj.weight begins at ",
                         "before model.layers.1.mlp.gate_proj.weight ends at "},
        [OUT_OF_LINE] = {HELM_E_MISMATCH, "model.layers.3.self_attn.q_proj.weight begins at ",
                         "no multiple of 256"},
        [TOO_FEW] = {HELM_E_MISMATCH, "model.layers.3.self_attn.q_proj.weight has ", "as bf16 it takes "},
        [TOO_MANY] = {HELM_E_MISMATCH, "model.layers.3.self_attn.k_proj.weight begins at ",
                      "q_proj.weight ends"},
        [ROOM_TOO_SMALL] = {HELM_E_MISMATCH, "model.layers.0.self_attn.q_proj.weight has ",
                            "it takes up to "},
        [OTHER_FORMAT] = {HELM_E_MISMATCH, "model.layers.3.self_attn.q_proj.weight lies as f16",
                          "by the plan's stages as bf16"},
        [ENDLESS] = {HELM_E_LIMIT, "bytes from ", "are too many"},
        [BACKWARDS] = {HELM_E_FORMAT, " in host is listed after ", " in vram"},
        [AFTER_THE_STACK] = {HELM_E_MISMATCH, " of vram is after ", "whose size varies"},
    };
    struct helm_err err = {0};
    struct model m;
    struct plan_unit unit[66];
    assert_int_equal(model_read("tests/data/golden/qwen3", &m, &err), 0);
    struct plan plan = plan_of(&m, "ssssgggg", PLAN_CPU0, PLAN_CPU0, unit);
    unit[0].format = unit[4].format = FORMAT_BF16_PACKED;
    for (int change = 0; change < CHANGES; change++) {
        assert_int_equal(placement_make(&m, NULL, &plan, &err), 0);
        assert_int_equal(placement_check(&m, &plan, &err), 0);
        apply((enum change)change, &plan);
        err = (struct helm_err){0};
        if (placement_check(&m, &plan, &err) != said[change].code || !strstr(err.text, said[change].text) ||
            !strstr(err.text, said[change].more))
            fail_msg("change %d: %d, %s", change, err.code, err.text);
        unit[6].home[0] = unit[7].home[0] = PLAN_HOME_GPU;
    }
    plan_drop_placements(&plan);
    model_free(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_matrix_has_one_place),
        cmocka_unit_test(prefill_lists_change_nothing),
        cmocka_unit_test(packed_matrices_have_rooms),
        cmocka_unit_test(what_can_be_packed_goes_by_shape),
        cmocka_unit_test(vectors_are_laid_for_who_computes),
        cmocka_unit_test(what_cannot_lie_so_is_refused),
        cmocka_unit_test(changed_lists_are_refused_with_the_numbers),
    };
    return cmocka_run_group_tests_name("common/placement", tests, NULL, NULL);
}
