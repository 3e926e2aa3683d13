/* Unit tests of common/program/op.c: how many operations each part of a model becomes, and which. That
 * programs have exactly these is in test_programs.c. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <string.h>

#include "common/model/model.h"
#include "common/program/op.h"

static const struct model_config plain = {.architecture = "LlamaForCausalLM",
                                          .layers = 2,
                                          .hidden = 64,
                                          .intermediate = 96,
                                          .vocab = 32,
                                          .heads = 4,
                                          .kv_heads = 2,
                                          .head_dim = 16,
                                          .qk_norm = true};

static void a_part_is_so_many_operations(void **state)
{
    (void)state;
    static const uint32_t wanted[PROCESSOR_KINDS][UNIT_PARTS][OP_TIER_COUNT] = {
        [PROCESSOR_CPU] = {[UNIT_ATTENTION] = {4, 6, 6}, [UNIT_MLP] = {2, 3, 3}},
        [PROCESSOR_GPU] = {[UNIT_ATTENTION] = {3, 4, 5}, [UNIT_MLP] = {2, 2, 4}}};
    struct model_math math;
    model_math_build(&plain, &math);
    for (int p = 0; p < PROCESSOR_KINDS; p++)
        for (int part = 0; part < UNIT_PARTS; part++)
            for (int tier = 0; tier < OP_TIER_COUNT; tier++)
                assert_int_equal(program_part_count(&math.part[part], (enum processor_kind)p,
                                                    (enum op_tier)tier),
                                 wanted[p][part][tier]);
    /* A chunk's biases are operations of their own on the GPU, and nowhere else. */
    struct model_config biased = plain;
    biased.q_bias = biased.k_bias = biased.v_bias = biased.o_bias = biased.mlp_bias = true;
    model_math_build(&biased, &math);
    for (int part = 0; part < UNIT_PARTS; part++)
        for (int tier = 0; tier < OP_TIER_COUNT; tier++) {
            uint32_t biases = tier != OP_TIER_CHUNK ? 0 : part == UNIT_ATTENTION ? 4 : 3;
            assert_int_equal(program_part_count(&math.part[part], PROCESSOR_CPU, (enum op_tier)tier),
                             wanted[PROCESSOR_CPU][part][tier]);
            assert_int_equal(program_part_count(&math.part[part], PROCESSOR_GPU, (enum op_tier)tier),
                             wanted[PROCESSOR_GPU][part][tier] + biases);
        }
}

static void weights_of_one_format_are_a_run(void **state)
{
    (void)state;
    struct model_math math;
    model_math_build(&plain, &math);
    const struct math_op *qkv = &math.part[UNIT_ATTENTION].op[0], *gates = &math.part[UNIT_MLP].op[0];
    assert_true(qkv->weights == 3 && gates->gated);
    const enum tensor_format alike[MATH_WEIGHTS_MAX] = {FORMAT_Q4_K, FORMAT_Q4_K, FORMAT_Q4_K},
                             last[MATH_WEIGHTS_MAX] = {FORMAT_Q4_K, FORMAT_Q4_K, FORMAT_Q6_K},
                             middle[MATH_WEIGHTS_MAX] = {FORMAT_BF16, FORMAT_Q8_0, FORMAT_BF16};
    assert_int_equal(program_run_end(qkv, alike, 0), 3);
    assert_int_equal(program_run_end(qkv, last, 0), 2);
    assert_int_equal(program_run_end(qkv, last, 2), 3);
    for (uint32_t first = 0; first < 3; first++)
        assert_int_equal(program_run_end(qkv, middle, first), first + 1);
    assert_int_equal(program_run_end(gates, middle, 0), 2); /* pairs are never parted */
}

static void is_list(const struct math_op *math, enum processor_kind processor, enum op_tier tier,
                    const char *wanted)
{
    enum op_kind kinds[PROGRAM_OPS_MAX];
    uint32_t count =
        math ? program_ops_of(math, processor, tier, kinds) : program_ops_first(processor, kinds);
    char text[160] = "";
    assert_true(count <= PROGRAM_OPS_MAX);
    for (uint32_t i = 0; i < count; i++) {
        if (i) strcat(text, "; ");
        strcat(text, op_name(kinds[i]));
    }
    assert_string_equal(text, wanted);
}

static void lists_are_in_order(void **state)
{
    (void)state;
    struct model_math math;
    struct model_config biased = plain;
    biased.mlp_bias = true;
    model_math_build(&biased, &math);
    const struct math_op *qkv = &math.part[UNIT_ATTENTION].op[0], *attend = &math.part[UNIT_ATTENTION].op[1],
                         *gate_up = &math.part[UNIT_MLP].op[0], *down = &math.part[UNIT_MLP].op[1];
    is_list(qkv, PROCESSOR_CPU, OP_TIER_ONE, "norm; linear");
    is_list(down, PROCESSOR_CPU, OP_TIER_ONE, "linear");
    is_list(down, PROCESSOR_CPU, OP_TIER_FEW,
            "linear"); /* the gates are tiled by what joins them with the ups */
    is_list(down, PROCESSOR_CPU, OP_TIER_CHUNK, "linear");
    is_list(attend, PROCESSOR_CPU, OP_TIER_CHUNK, "rope, append; attend");
    is_list(qkv, PROCESSOR_GPU, OP_TIER_ONE, "gemv");
    is_list(gate_up, PROCESSOR_GPU, OP_TIER_FEW, "gemm small");
    is_list(gate_up, PROCESSOR_GPU, OP_TIER_CHUNK, "norm; matmul; add bias; add bias; swiglu");
    is_list(down, PROCESSOR_GPU, OP_TIER_CHUNK, "matmul; add bias");
    is_list(attend, PROCESSOR_GPU, OP_TIER_ONE, "attend");
    is_list(attend, PROCESSOR_GPU, OP_TIER_FEW, "rope, append; attend");
}

static void ends_have_their_operations(void **state)
{
    (void)state;
    struct model_math math;
    model_math_build(&plain, &math);
    is_list(NULL, PROCESSOR_CPU, OP_TIER_ONE, "");
    is_list(NULL, PROCESSOR_GPU, OP_TIER_ONE, "copy step block; rope table");
    is_list(&math.embed, PROCESSOR_CPU, OP_TIER_CHUNK, "embed");
    is_list(&math.embed, PROCESSOR_GPU, OP_TIER_ONE, "embed");
    is_list(&math.head, PROCESSOR_CPU, OP_TIER_ONE, "norm; linear; sample");
    is_list(&math.head, PROCESSOR_GPU, OP_TIER_ONE, "gemv; argmax");
    is_list(&math.head, PROCESSOR_GPU, OP_TIER_FEW, "gather samples; gemm small; argmax");
    is_list(&math.head, PROCESSOR_GPU, OP_TIER_CHUNK, "gather samples; gemm small; argmax");
    struct math_op capped = math.head;
    capped.soft_cap = 30; /* by a CPU's product itself */
    is_list(&capped, PROCESSOR_CPU, OP_TIER_ONE, "norm; linear; sample");
    is_list(&capped, PROCESSOR_GPU, OP_TIER_ONE, "gemv; soft cap; argmax");
    is_list(&capped, PROCESSOR_GPU, OP_TIER_FEW, "gather samples; gemm small; soft cap; argmax");
    /* With one row the norm is no operation of its own. */
    assert_int_equal(program_ops_count(&math.head, PROCESSOR_CPU, OP_TIER_ONE), 2);
    assert_int_equal(program_ops_count(&math.head, PROCESSOR_CPU, OP_TIER_FEW), 3);
}

static void is_mixed(const struct math_op *math, enum processor_kind processor, enum op_tier tier,
                     const char *first, const char *last)
{
    enum op_kind kinds[PROGRAM_OPS_MAX];
    const uint32_t count = program_ops_mixed(math, processor, tier, kinds);
    assert_true(count > 0);
    assert_string_equal(op_name(kinds[0]), first);
    assert_string_equal(op_name(kinds[count - 1]), last);
}

/* Scales of experts make the choice an operation of its own, a norm of their own one more on the CPU; in both
 * memories what asks for experts chooses, and what is asked for comes normed. */
static void experts_with_norms_and_scales_of_their_own(void **state)
{
    (void)state;
    const struct math_op route = {.kind = MATH_ROUTE, .expert_scale = TENSOR_EXPERT_SCALE},
                         usual = {.kind = MATH_ROUTE}, glu = {.kind = MATH_EXPERTS_GLU, .own_norm = true};
    is_list(&usual, PROCESSOR_GPU, OP_TIER_ONE, "gemv");
    is_list(&route, PROCESSOR_GPU, OP_TIER_ONE, "gemv; route");
    is_list(&route, PROCESSOR_GPU, OP_TIER_FEW, "gemm small; route");
    is_list(&route, PROCESSOR_GPU, OP_TIER_CHUNK, "router logits; route; group by expert");
    is_list(&route, PROCESSOR_CPU, OP_TIER_ONE, "norm; linear; route");
    is_list(&glu, PROCESSOR_CPU, OP_TIER_ONE, "norm; experts' gate up");
    is_list(&glu, PROCESSOR_GPU, OP_TIER_ONE, "experts' gate up");
    is_mixed(&route, PROCESSOR_GPU, OP_TIER_ONE, "gemv", "ask for experts");
    is_mixed(&route, PROCESSOR_GPU, OP_TIER_CHUNK, "router logits", "group by expert");
    is_mixed(&route, PROCESSOR_CPU, OP_TIER_ONE, "take asked experts", "take asked experts");
    is_mixed(&glu, PROCESSOR_CPU, OP_TIER_ONE, "experts' gate up", "experts' gate up");
}

static void every_kind_has_its_row(void **state)
{
    (void)state;
    for (int k = 0; k < OP_KIND_COUNT; k++) {
        const struct op_traits *t = op_traits_of((enum op_kind)k);
        assert_non_null(t->name);
        if (t->queue != OP_QUEUE_COMPUTE) assert_false(t->launch || t->counts[OP_TIER_ONE]);
    }
    assert_string_equal(op_name(OP_KIND_COUNT), "unknown");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(experts_with_norms_and_scales_of_their_own),
        cmocka_unit_test(a_part_is_so_many_operations),
        cmocka_unit_test(weights_of_one_format_are_a_run),
        cmocka_unit_test(lists_are_in_order),
        cmocka_unit_test(ends_have_their_operations),
        cmocka_unit_test(every_kind_has_its_row),
    };
    return cmocka_run_group_tests_name("common/op", tests, NULL, NULL);
}
