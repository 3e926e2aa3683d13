/* Plans with a layer's experts in both memories (daemon/planner/experts.c): made for a mixture that exists
 * only here, checked in all ways that hold for any plan. */
#include "common/model/parts.h"
#include "common/plan/slots.h"
#include "daemon/planner/histogram.h"
#include "daemon/planner/packed_look.h"
#include "tests/unit/daemon/planner/plan_case.h"
#include "tests/proof/proof.h"

#define CONFIG                                                                                               \
    "{\"architectures\": [\"Qwen3MoeForCausalLM\"], \"hidden_size\": 2048, \"intermediate_size\": 6144, "    \
    "\"moe_intermediate_size\": 768, \"num_experts\": 64, \"num_experts_per_tok\": 8, "                      \
    "\"num_hidden_layers\": %d, \"num_attention_heads\": 32, \"num_key_value_heads\": 4, \"head_dim\": "     \
    "128, "                                                                                                  \
    "\"vocab_size\": 4096, \"dtype\": \"bfloat16\"}"
#define GATE (2.0 * 768 * 2048) /* bytes of an expert's gate, of its up, and of its down where that is bf16 */

#define SHARED                                                                                               \
    "{\"architectures\": [\"Qwen2MoeForCausalLM\"], \"hidden_size\": 2048, \"intermediate_size\": 6144, "    \
    "\"moe_intermediate_size\": 768, \"num_experts\": 64, \"num_experts_per_tok\": 8, "                      \
    "\"shared_expert_intermediate_size\": 6144, \"num_hidden_layers\": 12, \"num_attention_heads\": 16, "    \
    "\"num_key_value_heads\": 4, \"vocab_size\": 4096, \"dtype\": \"bfloat16\"}"

static void open_text(struct bench *b, struct model *model, uint64_t vram, const char *text)
{
    struct model_config config;
    struct helm_err err = {0};
    bench_open(b, &shape_8b, 64 * GIB, vram);
    assert_int_equal(model_config_parse("config", text, strlen(text), &config, &err), 0);
    assert_int_equal(model_from_config(&config, model, &err), 0);
    b->r.model = model;
    b->r.wish.ctx = 1024;
    b->r.strategy = SEARCH_MIXED;
}

static void open_layers(struct bench *b, struct model *model, uint64_t vram, int layers)
{
    char text[sizeof CONFIG + 16];
    snprintf(text, sizeof text, CONFIG, layers);
    open_text(b, model, vram, text);
}

static void open_mixture(struct bench *b, struct model *model, uint64_t vram)
{
    open_layers(b, model, vram, 12);
}

static uint32_t mixed_units(struct bench *b, struct plan *plan)
{
    make(b, plan);
    return plan_mixed_units(plan);
}

/* The link's copies take 0.8 of a step in which experts move. That step is faster than one in which they
 * stay, and slower than one in which all that is foretold is found. Each move is priced at 0.6 of what a hit
 * saves, 0.7 of them for a miss. */
static void expect_moves(const struct bench *b, const struct plan *plan, double bytes)
{
    const struct plan_experts *e = &plan->device[PLAN_GPU0].experts;
    const double cost = e->move_cost / 1000.0, found = (double)e->slots / 64,
                 part = (cost + found) / (1 + cost), still = seconds_of(&b->r, plan);
    struct plan moving = *plan;
    moving.device[PLAN_GPU0].experts.hit_permille = (uint32_t)(1000 * part + 0.5),
    moving.device[PLAN_GPU0].experts.direct_permille = 0;
    struct plan staying = moving;
    staying.device[PLAN_GPU0].experts.hit_permille = (uint32_t)(1000 * found);
    const double least = seconds_of(&b->r, &moving), rate = b->profile.link.h2d.value / bytes;
    assert_true(part > found && part < 1);
    const double saved = (seconds_of(&b->r, &staying) - least) / (part - found); /* by all choices */
    assert_true(saved > 0 && least + 0.6 * 0.7 * (1 - part) * saved < 1.01 * still);
    assert_true(least < still && e->moves + 1.1 > 0.8 * least * rate && e->moves < 0.8 * still * rate);
}

/* The rest of VRAM is slots: room for another one of each layer is not left. */
static void slots_fill_what_is_left(void **state)
{
    (void)state;
    for (uint64_t gib = 2; gib <= 6; gib++) {
        struct bench b;
        struct model model;
        struct plan plan = {0};
        open_mixture(&b, &model, gib * GIB);
        const uint32_t mixed = mixed_units(&b, &plan);
        assert_true(mixed > 0 && plan.device[PLAN_GPU0].experts.slots > 0);
        const struct ledger *vram = &plan.memory[PLAN_VRAM0];
        assert_true((double)(vram->limit - vram->total) < 3 * GATE * mixed + 64 * MIB);
        expect_moves(&b, &plan, 3 * GATE);
        plan_free(&plan);
        model_free(&model);
        bench_close(&b);
    }
}

/* All experts on the CPU: one that every token has stays in VRAM as attention does, where there is room for
 * it. Slots are filled beside it. */
static void a_shared_expert_is_no_part_of_slots(void **state)
{
    (void)state;
    struct bench b;
    struct model model;
    struct plan beside = {0}, filled = {0}, small = {0};
    open_text(&b, &model, 3 * GIB, SHARED);
    b.r.strategy = SEARCH_EXPERTS_CPU;
    assert_int_equal(mixed_units(&b, &beside), 12);
    assert_true(beside.device[PLAN_GPU0].experts.slots == 1 &&
                beside.device[PLAN_GPU0].experts.direct_permille == 0);
    const struct placements vram = placements_in(&beside, PLAN_VRAM0);
    for (int32_t l = 0; l < 12; l++)
        assert_true(placement_find(&vram, TENSOR_SHARED_DOWN, l) &&
                    !placement_find(&vram, TENSOR_UP_EXPERTS, l));
    b.r.strategy = SEARCH_MIXED;
    const uint32_t mixed = mixed_units(&b, &filled);
    assert_true(mixed > 0 && filled.device[PLAN_GPU0].experts.slots > 1);
    const struct ledger *line = &filled.memory[PLAN_VRAM0];
    assert_true((double)(line->limit - line->total) < 3 * GATE * mixed + 64 * MIB);
    assert_true(seconds_of(&b.r, &filled) < seconds_of(&b.r, &beside));
    b.r.strategy = SEARCH_EXPERTS_CPU;
    b.r.machine.device.limit =
        beside.memory[PLAN_VRAM0].total - 12ull * 3 * 6144 * 2048; /* half of them more */
    b.r.wish.ctx = 64;
    assert_int_equal(mixed_units(&b, &small), 0);
    assert_int_equal(small.unit[unit_of(3, UNIT_MLP)].home[0], PLAN_HOME_CPU);
    plan_free(&beside);
    plan_free(&filled);
    plan_free(&small);
    model_free(&model);
    bench_close(&b);
}

/* Without room for a slot of each layer the refusal says what that would take; with so much there is a
 * plan. */
static void slots_without_room_are_refused(void **state)
{
    (void)state;
    struct bench b;
    struct model model;
    struct plan plan = {0};
    struct arena_spec spec;
    struct planner_refusal refusal = {0};
    struct helm_err err = {0};
    open_mixture(&b, &model, MIB);
    b.r.refusal = &refusal;
    assert_int_equal(planner_make(&b.r, &plan, &spec, &err), HELM_E_CAPACITY);
    b.r.machine.device.limit = refusal.needed; /* all but slots */
    assert_int_equal(planner_make(&b.r, &plan, &spec, &err), HELM_E_CAPACITY);
    assert_non_null(strstr(err.text, "a slot for one expert of each of 12 layers"));
    assert_true(refusal.needed > refusal.available && refusal.available == b.r.machine.device.limit);
    b.r.machine.device.limit = refusal.needed;
    assert_int_equal(mixed_units(&b, &plan), 12);
    assert_int_equal(plan.device[PLAN_GPU0].experts.slots, 1);
    plan_free(&plan);
    model_free(&model);
    bench_close(&b);
}

/* With room for all of them in VRAM no layer's experts are in both memories, though one of many would cost
 * less than what slots may. */
static void experts_that_fit_are_whole(void **state)
{
    (void)state;
    struct bench b;
    struct model model;
    struct plan plan = {0};
    open_layers(&b, &model, 48 * GIB, 48);
    b.r.strategy = SEARCH_BEST;
    assert_int_equal(mixed_units(&b, &plan), 0);
    for (uint32_t l = 0; l < plan.layers; l++)
        assert_int_equal(plan.unit[unit_of(l, UNIT_MLP)].home[0], PLAN_HOME_GPU);
    plan_free(&plan);
    model_free(&model);
    bench_close(&b);
}

/* A step's moves are counted by experts as they lie: fewer bytes of downs in Q6_K than of gates in bf16. */
static void moves_count_all_three_matrices(void **state)
{
    (void)state;
    struct bench b;
    struct model model;
    struct plan plan = {0};
    double down = 0;
    open_mixture(&b, &model, 4 * GIB);
    for (uint32_t i = 0; i < model.tensor_count; i++) {
        struct model_tensor *t = &model.tensors[i];
        if (t->role != TENSOR_DOWN_EXPERTS) continue;
        t->format = FORMAT_Q6_K;
        t->bytes = tensor_format_bytes(t->format, t->rows, t->cols);
        down = (double)t->bytes / 64;
    }
    assert_true(down > 0 && down < GATE / 2);
    assert_true(mixed_units(&b, &plan) > 0);
    expect_moves(&b, &plan, 2 * GATE + down);
    plan_free(&plan);
    model_free(&model);
    bench_close(&b);
}

/* The best plan has slots where they cost little, though each expert is as likely as any: it is at most that
 * much slower than one without. */
static void slots_are_worth_a_little(void **state)
{
    (void)state;
    struct bench b;
    struct model model;
    struct plan best = {0}, whole = {0};
    open_mixture(&b, &model, 4 * GIB);
    b.r.strategy = SEARCH_BEST;
    assert_true(mixed_units(&b, &best) > 0);
    b.r.one_memory = true;
    assert_int_equal(mixed_units(&b, &whole), 0);
    assert_true(seconds_of(&b.r, &best) < 1.02 * seconds_of(&b.r, &whole));
    plan_free(&best);
    plan_free(&whole);
    model_free(&model);
    bench_close(&b);
}

static uint32_t packed_experts(const struct plan *plan)
{
    uint32_t count = 0;
    for (uint32_t u = unit_of(0, UNIT_MLP); u < unit_count(plan->layers); u += UNIT_PARTS) {
        if (plan_unit_format(plan, u) != FORMAT_BF16_PACKED) continue;
        assert_int_equal(plan->unit[u].home[0], PLAN_HOME_CPU);
        count++;
    }
    return count;
}

/* A CPU that reads packed experts fast enough has those that are not in VRAM alone; else both processors have
 * them, plain. */
static void packed_experts_are_for_the_cpu_alone(void **state)
{
    (void)state;
    static const double rate[] = {112e9, 170e9};
    double seconds[2];
    for (int fast = 0; fast < 2; fast++) {
        struct bench b;
        struct model model;
        struct plan plan = {0};
        struct arena_spec spec;
        struct helm_err err = {0};
        open_mixture(&b, &model, 4 * GIB);
        b.r.wish.pack = b.r.wish.pack_cpu = true;
        b.profile.cpu.gemv_packed = made_up_value(rate[fast]);
        b.profile.cpu.gemv_packed_beside = made_up_value(rate[fast]);
        b.r.strategy = SEARCH_BEST;
        const uint32_t mixed = mixed_units(&b, &plan);
        assert_int_equal(mixed > 0, !fast);
        assert_int_equal(packed_experts(&plan) > 4, fast);
        seconds[fast] = seconds_of(&b.r, &plan);
        if (!fast) { /* a plan given may have them so in both memories */
            uint32_t u = unit_of(0, UNIT_MLP);
            while (plan.unit[u].home[0] != PLAN_HOME_MIXED) u += UNIT_PARTS;
            plan_set_unit_format(&plan, u, FORMAT_BF16_PACKED);
            plan.device[PLAN_GPU0].experts.slots--; /* whole experts are expanded in their place */
            if (planner_take(&b.r, &plan, &spec, &err)) fail_msg("%s", err.text);
        }
        plan_free(&plan);
        b.r.strategy = SEARCH_MIXED;
        assert_true(mixed_units(&b, &plan) > 0);
        assert_int_equal(packed_experts(&plan), 0);
        plan_free(&plan);
        model_free(&model);
        bench_close(&b);
    }
    assert_true(seconds[1] < seconds[0]);
}

/* More layers' experts are wholly in VRAM where they are packed there; nothing else is. */
static void whole_layers_may_be_packed(void **state)
{
    (void)state;
    double seconds[2];
    uint32_t whole[2] = {0};
    for (int pack = 0; pack < 2; pack++) {
        struct bench b;
        struct model model;
        struct plan plan = {0};
        struct proof proof = {0};
        struct helm_err err = {0};
        open_mixture(&b, &model, 4 * GIB);
        b.r.wish.pack = b.r.wish.pack_gpu = pack;
        b.profile.gpu.gemv_packed = b.profile.gpu.gemv;
        assert_true(mixed_units(&b, &plan) > 0);
        for (uint32_t u = 0; u < unit_count(plan.layers); u++) {
            const bool experts = unit_part(u) == UNIT_MLP && plan.unit[u].home[0] == PLAN_HOME_GPU;
            whole[pack] += experts;
            assert_int_equal(plan_unit_format(&plan, u) == FORMAT_BF16_PACKED, pack && experts);
        }
        seconds[pack] = seconds_of(&b.r, &plan);
        if (proof_plan(&b.r, &plan, &proof, &err)) fail_msg("%s", err.text);
        assert_true(proof.bound <= proof.seconds && proof.seconds < 1.1 * proof.bound);
        plan_free(&plan);
        model_free(&model);
        bench_close(&b);
    }
    assert_true(whole[1] > whole[0] && seconds[1] < 0.95 * seconds[0]);
}

/* Where both processors read packed experts, those in both memories are packed: more slots, a shorter step,
 * no faster than the bound. */
static void experts_in_both_memories_may_be_packed(void **state)
{
    (void)state;
    double seconds[2];
    uint32_t slots[2];
    for (int pack = 0; pack < 2; pack++) {
        struct bench b;
        struct model model;
        struct plan plan = {0};
        struct proof proof = {0};
        struct helm_err err = {0};
        open_mixture(&b, &model, 4 * GIB);
        b.r.wish.pack = b.r.wish.pack_gpu = true;
        b.r.wish.pack_cpu = pack;
        b.profile.gpu.gemv_packed = b.profile.gpu.gemv;
        b.profile.cpu.gemv_packed = b.profile.cpu.gemv_packed_beside = made_up_value(140e9);
        assert_true(mixed_units(&b, &plan) > 0);
        for (uint32_t u = unit_of(0, UNIT_MLP); u < unit_count(plan.layers); u += UNIT_PARTS)
            if (plan.unit[u].home[0] == PLAN_HOME_MIXED)
                assert_int_equal(plan_unit_format(&plan, u) == FORMAT_BF16_PACKED, pack);
        slots[pack] = plan.device[PLAN_GPU0].experts.slots * plan_mixed_units(&plan);
        seconds[pack] = seconds_of(&b.r, &plan);
        if (proof_plan(&b.r, &plan, &proof, &err)) fail_msg("%s", err.text);
        print_message("%u layers, %u slots, %u direct: %.3f ms, bound %.3f\n", plan_mixed_units(&plan),
                      plan.device[PLAN_GPU0].experts.slots, plan.device[PLAN_GPU0].experts.direct_permille,
                      1e3 * seconds[pack], 1e3 * proof.bound);
        assert_true(proof.bound <= proof.seconds && proof.seconds < 1.1 * proof.bound);
        plan_free(&plan);
        model_free(&model);
        bench_close(&b);
    }
    assert_true(slots[1] > slots[0] && seconds[1] < 0.95 * seconds[0]);
}

/* Experts of 88 MB, 2 of 8 a token: in parts where some lie in both memories, which is faster than whole
 * ones; whole where all are in VRAM, though they were in parts before. */
static void large_experts_are_in_parts(void **state)
{
    (void)state;
    static const char text[] =
        "{\"architectures\": [\"MixtralForCausalLM\"], \"hidden_size\": 2048, \"intermediate_size\": 7168, "
        "\"num_local_experts\": 8, \"num_experts_per_tok\": 2, \"num_hidden_layers\": 8, "
        "\"num_attention_heads\": 32, \"num_key_value_heads\": 8, \"vocab_size\": 4096, \"dtype\": "
        "\"bfloat16\"}";
    struct bench b;
    struct model model;
    struct model_config config;
    struct plan plan = {0}, whole = {0};
    struct arena_spec spec;
    struct helm_err err = {0};
    bench_open(&b, &shape_8b, 64 * GIB, 3 * GIB);
    assert_int_equal(model_config_parse("config", text, strlen(text), &config, &err), 0);
    assert_int_equal(model_from_config(&config, &model, &err), 0);
    b.r.model = &model;
    b.r.wish.ctx = 1024;
    if (packed_look_make(&b.r, &whole, &spec, &err)) fail_msg("%s", err.text);
    assert_int_equal(plan_expert_parts(&whole), 1);
    const double before = seconds_of(&b.r, &whole);
    if (parts_look_make(&model, &b.r, &plan, &spec, &err)) fail_msg("%s", err.text);
    assert_int_equal(plan_expert_parts(&plan), 4);
    assert_true(plan_mixed_units(&plan) > 0 && spec.experts == 32 && spec.experts_chosen == 8);
    assert_true(plan.device[PLAN_GPU0].experts.direct_permille > 0);
    print_message("experts in parts: %.2f ms a step, whole %.2f\n", 1e3 * seconds_of(&b.r, &plan),
                  1e3 * before);
    assert_true(seconds_of(&b.r, &plan) < 0.98 * before);
    plan_free(&plan);
    /* by a histogram, which counts whole experts, the parts of the most used one are the first there */
    uint64_t uses[8 * 8];
    for (uint32_t i = 0; i < 64; i++) uses[i] = i % 8 == 5 ? 50 : 10;
    const struct histogram seen = {.layers = 8, .experts = 8, .uses = uses};
    b.r.experts = &seen;
    if (parts_look_make(&model, &b.r, &plan, &spec, &err)) fail_msg("%s", err.text);
    const uint32_t units = plan_mixed_units(&plan), slots = plan.device[PLAN_GPU0].experts.slots,
                   some = slots < 4 ? slots : 4;
    assert_true(units > 0 && plan_expert_parts(&plan) == 4);
    for (uint32_t u = 0; u < units; u++)
        for (uint32_t i = 0; i < some; i++)
            assert_int_equal(plan.device[PLAN_GPU0].experts.first[u * slots + i], 5 * 4 + i);
    const uint32_t caught = 50 * some + 10 * (slots - some); /* of 4 * 120 */
    assert_int_equal(plan.device[PLAN_GPU0].experts.hit_permille, (1000 * caught + 240) / 480);
    plan_free(&plan);
    b.r.experts = NULL;
    b.r.machine.device.limit = 32 * GIB;
    if (parts_look_make(&model, &b.r, &plan, &spec, &err)) fail_msg("%s", err.text);
    assert_int_equal(plan_mixed_units(&plan), 0);
    assert_int_equal(plan_expert_parts(&plan), 1);
    assert_int_equal(model.config.router.experts, 8);
    plan_free(&plan);
    plan_free(&whole);
    model_free(&model);
    bench_close(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(slots_fill_what_is_left),
                                       cmocka_unit_test(a_shared_expert_is_no_part_of_slots),
                                       cmocka_unit_test(slots_without_room_are_refused),
                                       cmocka_unit_test(experts_that_fit_are_whole),
                                       cmocka_unit_test(moves_count_all_three_matrices),
                                       cmocka_unit_test(slots_are_worth_a_little),
                                       cmocka_unit_test(packed_experts_are_for_the_cpu_alone),
                                       cmocka_unit_test(whole_layers_may_be_packed),
                                       cmocka_unit_test(experts_in_both_memories_may_be_packed),
                                       cmocka_unit_test(large_experts_are_in_parts)};
    return cmocka_run_group_tests_name("daemon/planner: experts in both memories", tests, NULL, NULL);
}
