/* Plans with a layer's experts in both memories (daemon/planner/mixed.c): made for a mixture that exists only here, checked in
 * all ways that hold for any plan. */
#include "common/plan/slots.h"
#include "tests/unit/daemon/planner/plan_case.h"

#define CONFIG                                                                                               \
    "{\"architectures\": [\"Qwen3MoeForCausalLM\"], \"hidden_size\": 2048, \"intermediate_size\": 6144, "    \
    "\"moe_intermediate_size\": 768, \"num_experts\": 64, \"num_experts_per_tok\": 8, "                      \
    "\"num_hidden_layers\": %d, \"num_attention_heads\": 32, \"num_key_value_heads\": 4, \"head_dim\": "     \
    "128, "                                                                                                  \
    "\"vocab_size\": 4096, \"dtype\": \"bfloat16\"}"
#define GATE (2.0 * 768 * 2048) /* bytes of an expert's gate, of its up, and of its down where that is bf16 */

static void open_layers(struct bench *b, struct model *model, uint64_t vram, int layers)
{
    char text[sizeof CONFIG + 16];
    struct model_config config;
    struct helm_err err = {0};
    snprintf(text, sizeof text, CONFIG, layers);
    bench_open(b, &shape_8b, 64 * GIB, vram);
    assert_int_equal(model_config_parse("config", text, strlen(text), &config, &err), 0);
    assert_int_equal(model_from_config(&config, model, &err), 0);
    b->r.model = model;
    b->r.wish.ctx = 1024;
    b->r.strategy = SEARCH_MIXED;
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

/* What the link brings is 0.8 of a step in which experts move, which is faster than one in which they stay: between one in which all
 * that is foretold is found, and the latter. Each move is priced at 0.6 of what a hit saves, 0.7 of them for a miss. */
static void expect_moves(const struct bench *b, const struct plan *plan, double bytes)
{
    const struct plan_experts *e = &plan->experts;
    const double cost = e->move_cost / 1000.0, found = (double)e->slots / 64,
                 part = (cost + found) / (1 + cost), still = seconds_of(&b->r, plan);
    struct plan moving = *plan;
    moving.experts.hit_permille = (uint32_t)(1000 * part + 0.5), moving.experts.direct_permille = 0;
    struct plan staying = moving;
    staying.experts.hit_permille = (uint32_t)(1000 * found);
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
        assert_true(mixed > 0 && plan.experts.slots > 0);
        const struct ledger *vram = &plan.memory[PLAN_VRAM0];
        assert_true((double)(vram->limit - vram->total) < 3 * GATE * mixed + 64 * MIB);
        expect_moves(&b, &plan, 3 * GATE);
        plan_free(&plan);
        model_free(&model);
        bench_close(&b);
    }
}

/* Without room for a slot of each layer the refusal says what that would take; with so much there is a plan. */
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
    assert_int_equal(plan.experts.slots, 1);
    plan_free(&plan);
    model_free(&model);
    bench_close(&b);
}

/* With room for all of them in VRAM no layer's experts are in both memories, though one of many would cost less than what slots
 * may. */
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
        assert_int_equal(plan_unit_home(&plan, 0, unit_of(l, UNIT_MLP)), PLAN_HOME_GPU);
    plan_free(&plan);
    model_free(&model);
    bench_close(&b);
}

/* What a step brings is counted by experts as they lie: of downs in Q6_K fewer bytes than of gates in bf16. */
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

/* The best plan has slots where they cost little, though each expert is as likely as any: it is at most that much slower than
 * one without. */
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
        assert_int_equal(plan_unit_home(plan, 0, u), PLAN_HOME_CPU);
        count++;
    }
    return count;
}

/* A CPU that reads packed experts fast enough has those that are not in VRAM alone; else both processors have them, plain. */
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
        if (!fast) { /* in both memories they cannot be */
            uint32_t u = unit_of(0, UNIT_MLP);
            while (plan_unit_home(&plan, 0, u) != PLAN_HOME_MIXED) u += UNIT_PARTS;
            plan_set_unit_format(&plan, u, FORMAT_BF16_PACKED);
            plan_restage(&plan);
            assert_int_equal(planner_take(&b.r, &plan, &spec, &err), HELM_E_UNSUPPORTED);
            assert_non_null(strstr(err.text, "cannot lie as 'bf16-packed'"));
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
        struct planner_proof proof = {0};
        open_mixture(&b, &model, 4 * GIB);
        b.r.wish.pack = b.r.wish.pack_gpu = pack;
        b.r.proof = &proof;
        b.profile.gpu.gemv_packed = b.profile.gpu.gemv;
        assert_true(mixed_units(&b, &plan) > 0);
        for (uint32_t u = 0; u < unit_count(plan.layers); u++) {
            const bool experts = unit_part(u) == UNIT_MLP && plan_unit_home(&plan, 0, u) == PLAN_HOME_GPU;
            whole[pack] += experts;
            assert_int_equal(plan_unit_format(&plan, u) == FORMAT_BF16_PACKED, pack && experts);
        }
        seconds[pack] = seconds_of(&b.r, &plan);
        assert_true(proof.bound <= proof.seconds && proof.seconds < 1.1 * proof.bound);
        plan_free(&plan);
        model_free(&model);
        bench_close(&b);
    }
    assert_true(whole[1] > whole[0] && seconds[1] < 0.95 * seconds[0]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(slots_fill_what_is_left),
                                       cmocka_unit_test(slots_without_room_are_refused),
                                       cmocka_unit_test(experts_that_fit_are_whole),
                                       cmocka_unit_test(moves_count_all_three_matrices),
                                       cmocka_unit_test(slots_are_worth_a_little),
                                       cmocka_unit_test(packed_experts_are_for_the_cpu_alone),
                                       cmocka_unit_test(whole_layers_may_be_packed)};
    return cmocka_run_group_tests_name("daemon/planner: experts in both memories", tests, NULL, NULL);
}
