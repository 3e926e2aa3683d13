/* The tables of architectures: names and roles are inverses, shapes follow the configuration, operations are
 * in order. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/model/arch.h"
#include "common/model/checkpoint.h"

static const struct model_config all_on = {.architecture = "LlamaForCausalLM",
                                           .layers = 3,
                                           .hidden = 10,
                                           .intermediate = 14,
                                           .vocab = 20,
                                           .heads = 6,
                                           .kv_heads = 2,
                                           .head_dim = 4,
                                           .qk_norm = true,
                                           .q_bias = true,
                                           .k_bias = true,
                                           .v_bias = true,
                                           .o_bias = true,
                                           .mlp_bias = true};

/* Every role of every architecture, in both kinds of file; fused tensors have a name for several. */
static void test_names_and_roles_are_inverses(void **state)
{
    (void)state;
    const struct arch *arch;
    for (uint32_t i = 0; (arch = arch_at(i)); i++)
        for (int r = TENSOR_NONE + 1; r < TENSOR_ROLE_COUNT; r++)
            for (int gguf = 0; gguf < 2; gguf++) {
                struct model_config c = all_on;
                char name[MODEL_NAME_MAX];
                struct arch_match what = {.role = TENSOR_NONE};
                int32_t layer = -7, given = arch_role_per_layer((enum tensor_role)r) ? 123 : -1;
                strcpy(c.architecture, arch->architecture);
                c.gguf = gguf;
                model_tensor_name(&c, (enum tensor_role)r, given, name);
                if (arch_match_fused(arch, name, gguf, &layer)) continue;
                if (!arch_match(arch, name, gguf, &what)) fail_msg("%s: %s", arch->architecture, name);
                assert_int_equal(what.role, r);
                assert_int_equal(what.layer, given);
            }
    char name[MODEL_NAME_MAX];
    model_tensor_name(&all_on, TENSOR_UP, 3, name);
    assert_string_equal(name, "model.layers.3.mlp.up_proj.weight");
}

/* A text model inside another is called as it is alone; what is beside it is skipped. */
static void test_nested_names(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        enum tensor_role role;
        int32_t layer;
    } names[] = {{"model.language_model.layers.7.mlp.up_proj.weight", TENSOR_UP, 7},
                 {"language_model.model.layers.7.mlp.up_proj.weight", TENSOR_UP, 7},
                 {"model.language_model.embed_tokens.weight", TENSOR_EMBED, -1},
                 {"language_model.lm_head.weight", TENSOR_HEAD, -1},
                 {"model.decoder.layers.7.mlp.up_proj.weight", TENSOR_UP, 7},
                 {"lm_head.weight", TENSOR_HEAD, -1}};
    struct model_config c = all_on;
    struct arch_match what;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        assert_true(arch_match(arch_of(&c), names[i].name, false, &what));
        assert_int_equal(what.role, names[i].role);
        assert_int_equal(what.layer, names[i].layer);
    }
    assert_false(arch_match(arch_of(&c), "model.language_model.language_model.norm.weight", false, &what));
    assert_false(arch_skips_name(&c, "model.visual.merger.weight")); /* no Llama has any */
    strcpy(c.architecture, "Qwen3ForCausalLM");
    assert_true(arch_skips_name(&c, "model.visual.merger.weight"));
    assert_true(arch_skips_name(&c, "mtp.norm.weight"));
    assert_false(arch_skips_name(&c, "model.norm.weight"));
    assert_false(arch_skips_name(&c, "model.layers.3.mlp.up_proj.weight"));
    c.draft_layers = 2;
    assert_true(arch_skips_name(&c, "model.layers.3.mlp.up_proj.weight"));
    assert_true(arch_skips_name(&c, "model.layers.4.eh_proj.weight"));
    assert_false(arch_skips_name(&c, "model.layers.5.mlp.up_proj.weight"));
    assert_false(arch_skips_name(&c, "model.layers.2.mlp.up_proj.weight"));
}

/* The layer that makes drafts has a layer's names, and its end's copies are left where they are. */
static void a_layer_of_drafts_is_the_last_one(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        enum tensor_role role;
    } names[] = {{"mtp.fc.weight", TENSOR_DRAFT_PROJ},
                 {"mtp.pre_fc_norm_embedding.weight", TENSOR_DRAFT_EMBED_NORM},
                 {"mtp.pre_fc_norm_hidden.weight", TENSOR_DRAFT_HIDDEN_NORM},
                 {"mtp.norm.weight", TENSOR_DRAFT_OUT_NORM},
                 {"mtp.layers.0.self_attn.k_proj.weight", TENSOR_K},
                 {"mtp.layers.0.mlp.down_proj.weight", TENSOR_DOWN}};
    struct model_config c = {.architecture = "Qwen3_5ForCausalLM",
                             .layers = 3,
                             .hidden = 10,
                             .draft_layers = 1};
    struct helm_err err;
    struct arch_match what;
    char buffer[MODEL_NAME_MAX];
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) assert_true(arch_skips_name(&c, names[i].name));
    assert_int_equal(checkpoint_add_drafts(&c, &err), 0);
    assert_int_equal(c.layers, 4);
    assert_int_equal(model_answer_layers(&c), 3);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        assert_false(arch_skips_name(&c, names[i].name));
        const char *name = arch_draft_name(&c, names[i].name, buffer);
        assert_true(arch_match(arch_of(&c), name, false, &what));
        assert_int_equal(what.role, names[i].role);
        assert_int_equal(what.layer, 3);
        assert_true(model_expects(&c, what.role, 3));
        assert_int_equal(model_expects(&c, what.role, 2), what.role == TENSOR_K || what.role == TENSOR_DOWN);
    }
    assert_true(arch_skips_name(&c, "mtp.layers.1.self_attn.k_proj.weight"));
    assert_true(arch_skips_name(&c, "model.layers.3.shared_head.head.weight"));
    assert_true(arch_skips_name(&c, "model.layers.3.embed_tokens.weight"));
    c.gguf = true;
    assert_true(arch_match(arch_of(&c), "blk.3.nextn.eh_proj.weight", true, &what));
    assert_int_equal(what.role, TENSOR_DRAFT_PROJ);
    assert_true(arch_skips_name(&c, "blk.3.nextn.shared_head_head.weight"));
    assert_false(arch_skips_name(&c, "blk.3.attn_q.weight"));
    assert_int_equal(checkpoint_add_drafts(&c, &err), HELM_E_UNSUPPORTED);
    assert_non_null(strstr(err.text, "no layer that makes drafts"));
    c = (struct model_config){.architecture = "Glm4ForCausalLM", .layers = 3, .draft_layers = 1};
    assert_int_equal(checkpoint_add_drafts(&c, &err), HELM_E_UNSUPPORTED);
    assert_non_null(strstr(err.text, "Glm4ForCausalLM"));
}

/* Where files have the usual names, the layer has its number in them too. */
static void a_layer_of_drafts_may_have_the_usual_names(void **state)
{
    (void)state;
    static const char *const of[] = {"Glm4MoeForCausalLM", "DeepseekV3ForCausalLM", "Glm4MoeLiteForCausalLM"};
    static const struct {
        const char *name;
        enum tensor_role role;
    } names[] = {{"model.layers.3.eh_proj.weight", TENSOR_DRAFT_PROJ},
                 {"model.layers.3.enorm.weight", TENSOR_DRAFT_EMBED_NORM},
                 {"model.layers.3.hnorm.weight", TENSOR_DRAFT_HIDDEN_NORM},
                 {"model.layers.3.shared_head.norm.weight", TENSOR_DRAFT_OUT_NORM},
                 {"model.layers.3.self_attn.o_proj.weight", TENSOR_O},
                 {"model.layers.3.mlp.gate.weight", TENSOR_ROUTER},
                 {"model.layers.3.mlp.shared_experts.up_proj.weight", TENSOR_SHARED_UP}};
    for (size_t a = 0; a < sizeof of / sizeof *of; a++) {
        bool *sparse = calloc(3, sizeof *sparse);
        struct model_config c = {.layers = 3, .draft_layers = 1, .shared_intermediate = 5, .sparse = sparse};
        struct helm_err err;
        struct arch_match what;
        strcpy(c.architecture, of[a]);
        c.router.experts = 4;
        c.latent.q_rank = 6;
        for (size_t i = 0; i < sizeof names / sizeof *names; i++)
            assert_true(arch_skips_name(&c, names[i].name));
        assert_int_equal(checkpoint_add_drafts(&c, &err), 0);
        for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
            assert_false(arch_skips_name(&c, names[i].name));
            assert_true(arch_match(arch_of(&c), names[i].name, false, &what));
            assert_int_equal(what.role, names[i].role);
            assert_int_equal(what.layer, 3);
            assert_true(model_expects(&c, what.role, 3));
            assert_int_equal(model_expects(&c, what.role, 2), what.role == TENSOR_O);
        }
        assert_true(arch_skips_name(&c, "model.layers.3.shared_head.head.weight"));
        assert_false(arch_skips_name(&c, "model.layers.4.eh_proj.weight"));
        free(c.sparse);
    }
}

static bool all_sparse[] = {true, true, true};
static const struct model_config mixture = {.architecture = "Qwen3MoeForCausalLM",
                                            .layers = 3,
                                            .hidden = 10,
                                            .intermediate = 14,
                                            .vocab = 20,
                                            .heads = 6,
                                            .kv_heads = 2,
                                            .head_dim = 4,
                                            .router = {.experts = 12, .chosen = 3},
                                            .expert_intermediate = 8,
                                            .sparse = all_sparse};

static void test_names_of_experts(void **state)
{
    (void)state;
    static const struct {
        const char *architecture, *name;
        enum tensor_role role;
    } names[] = {
        {"Qwen3MoeForCausalLM", "model.layers.2.mlp.experts.11.down_proj.weight", TENSOR_DOWN_EXPERTS},
        {"MixtralForCausalLM", "model.layers.2.block_sparse_moe.experts.11.w2.weight", TENSOR_DOWN_EXPERTS},
        {"MixtralForCausalLM", "model.layers.2.block_sparse_moe.experts.11.w1.weight", TENSOR_GATE_EXPERTS},
        {"MixtralForCausalLM", "model.layers.2.block_sparse_moe.experts.11.w3.weight", TENSOR_UP_EXPERTS}};
    struct arch_match what;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        struct model_config c = mixture;
        char name[MODEL_NAME_MAX];
        strcpy(c.architecture, names[i].architecture);
        assert_int_equal(model_tensor_parts(&c, names[i].role), 12);
        model_part_name(&c, names[i].role, 2, 11, name);
        assert_string_equal(name, names[i].name);
        assert_true(arch_match(arch_of(&c), name, false, &what));
        assert_int_equal(what.role, names[i].role);
        assert_int_equal(what.layer, 2);
        assert_int_equal(what.expert, 11);
        model_tensor_name(&c, names[i].role, 2, name);
        assert_true(arch_match(arch_of(&c), name, false, &what));
        assert_int_equal(what.expert, -1);
    }
    assert_int_equal(model_tensor_parts(&mixture, TENSOR_ROUTER), 1);
    assert_false(
        arch_match(arch_of(&mixture), "model.layers.2.mlp.experts.011.down_proj.weight", false, &what));
    assert_false(arch_match(arch_of(&mixture), "model.layers.2.mlp.experts..down_proj.weight", false, &what));
    assert_false(
        arch_match(arch_of(&mixture), "model.layers.2.mlp.experts.1.down_proj.weight2", false, &what));
    assert_false(
        arch_match(arch_of(&mixture), "model.layers.2.mlp.experts.1234567.down_proj.weight", false, &what));
    assert_true(arch_match(arch_of(&mixture), "blk.7.ffn_down_exps.weight", true, &what));
    assert_int_equal(what.role, TENSOR_DOWN_EXPERTS);
    assert_int_equal(what.layer, 7);
}

/* A sparse layer has what its operations use, and what is dense it has not. */
static void test_mixtures(void **state)
{
    (void)state;
    struct model_config c = mixture;
    bool sparse[] = {false, true, true};
    struct model_math math;
    uint64_t rows, cols;
    c.sparse = sparse;
    assert_true(model_expects(&c, TENSOR_GATE, 0) && !model_expects(&c, TENSOR_GATE, 1));
    assert_true(model_expects(&c, TENSOR_ROUTER, 1) && !model_expects(&c, TENSOR_ROUTER, 0));
    assert_true(model_expects(&c, TENSOR_MLP_NORM, 0) && model_expects(&c, TENSOR_MLP_NORM, 1));
    assert_true(model_expects(&c, TENSOR_EMBED, -1) && !model_expects(&c, TENSOR_EMBED, 0));
    assert_false(model_expected_shape(&mixture, TENSOR_GATE, -1, &rows, &cols));
    assert_true(model_expected_shape(&c, TENSOR_UP_EXPERTS, -1, &rows, &cols));
    assert_true(rows == 12 * 8 && cols == 10);
    assert_true(model_expected_shape(&c, TENSOR_DOWN_EXPERTS, -1, &rows, &cols));
    assert_true(rows == 12 * 10 && cols == 8);
    assert_int_equal(model_mlp_width(&c), 24);
    model_math_build(&c, &math);
    const struct math_part *part = &math.part[MATH_PART_SPARSE];
    assert_true(part->read_part == 0.25);
    for (uint32_t i = 0; i < part->ops; i++) {
        if (part->op[i].norm != TENSOR_NONE) assert_int_equal(unit_part_of_role(part->op[i].norm), UNIT_MLP);
        for (uint32_t w = 0; w < part->op[i].weights; w++) {
            assert_true(model_expects(&c, part->op[i].weight[w], 1));
            assert_int_equal(unit_part_of_role(part->op[i].weight[w]), UNIT_MLP);
        }
    }
    assert_int_equal(unit_part_of_role(part->op[0].router), UNIT_MLP);
}

static void test_names_no_role_has(void **state)
{
    (void)state;
    static const char *const names[] = {"",
                                        "model",
                                        "model.layers.",
                                        "model.layers.0",
                                        "model.layers.0.",
                                        "model.layers..mlp.up_proj.weight",
                                        "model.layers.01.mlp.up_proj.weight",
                                        "model.layers.1.mlp.up_proj.weight2",
                                        "model.layers.+1.mlp.up_proj.weight",
                                        "mlp.up_proj.weight",
                                        "model.layers.0.model.norm.weight",
                                        "model.layers.1234567.mlp.up_proj.weight"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        enum tensor_role role;
        int32_t layer;
        if (arch_match_name(names[i], &role, &layer)) fail_msg("'%s' has role %d", names[i], role);
    }
    assert_true(arch_ignores_name("model.layers.0.self_attn.rotary_emb.inv_freq"));
    assert_false(arch_ignores_name("model.layers.0.self_attn.rotary_emb.inv_freq.x"));
    assert_false(arch_ignores_name(".rotary_emb.inv_freq"));
}

static void test_shapes(void **state)
{
    (void)state;
    static const struct {
        enum tensor_role role;
        uint64_t rows, cols;
    } shapes[] = {{TENSOR_EMBED, 20, 10},   {TENSOR_HEAD, 20, 10},   {TENSOR_FINAL_NORM, 1, 10},
                  {TENSOR_Q, 24, 10},       {TENSOR_K, 8, 10},       {TENSOR_V, 8, 10},
                  {TENSOR_O, 10, 24},       {TENSOR_Q_BIAS, 1, 24},  {TENSOR_V_BIAS, 1, 8},
                  {TENSOR_O_BIAS, 1, 10},   {TENSOR_GATE, 14, 10},   {TENSOR_UP, 14, 10},
                  {TENSOR_DOWN, 10, 14},    {TENSOR_UP_BIAS, 1, 14}, {TENSOR_DOWN_BIAS, 1, 10},
                  {TENSOR_ATTN_NORM, 1, 10}};
    uint64_t rows, cols;
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        assert_true(model_expected_shape(&all_on, shapes[i].role, -1, &rows, &cols));
        assert_int_equal(rows, shapes[i].rows);
        assert_int_equal(cols, shapes[i].cols);
    }
    struct model_config bare = all_on;
    bare.q_bias = bare.k_bias = bare.v_bias = bare.o_bias = bare.mlp_bias = false;
    bare.tied_head = true;
    static const enum tensor_role absent[] = {TENSOR_HEAD,    TENSOR_Q_BIAS,    TENSOR_K_BIAS,
                                              TENSOR_V_BIAS,  TENSOR_O_BIAS,    TENSOR_GATE_BIAS,
                                              TENSOR_UP_BIAS, TENSOR_DOWN_BIAS, TENSOR_Q_NORM,
                                              TENSOR_K_NORM,  TENSOR_NONE};
    for (size_t i = 0; i < sizeof absent / sizeof *absent; i++)
        assert_false(model_expected_shape(&bare, absent[i], -1, &rows, &cols));
}

static void check_op(const struct math_op *op, bool *written, int *used)
{
    assert_true(written[op->in]);
    used[op->norm]++;
    used[op->q_norm]++;
    used[op->k_norm]++;
    for (uint32_t w = 0; w < op->weights; w++) {
        if (op->residual) assert_true(written[op->out[w]]);
        written[op->out[w]] = true;
        used[op->weight[w]]++;
        used[op->bias[w]]++;
    }
    if (op->kind == MATH_ATTENTION) {
        assert_true(written[BUFFER_Q] && written[BUFFER_K] && written[BUFFER_V]);
        written[op->out[0]] = true;
    }
}

/* Every operation reads buffers that were written before it, and every tensor of the configuration is used
 * once, by a unit of the part that its role says. */
static void check_math(const struct model_config *config)
{
    struct model_math math;
    bool written[BUFFER_LOGITS + 1] = {false};
    int used[TENSOR_ROLE_COUNT + 1] = {0};
    written[BUFFER_NONE] = true;
    model_math_build(config, &math);
    check_op(&math.embed, written, used);
    for (int p = 0; p < UNIT_PARTS; p++)
        for (uint32_t i = 0; i < math.part[p].ops; i++) {
            const struct math_op *op = &math.part[p].op[i];
            check_op(op, written, used);
            for (uint32_t w = 0; w < op->weights; w++) assert_int_equal(unit_part_of_role(op->weight[w]), p);
            if (op->norm != TENSOR_NONE) assert_int_equal(unit_part_of_role(op->norm), p);
        }
    check_op(&math.head, written, used);
    assert_true(written[BUFFER_LOGITS] && written[BUFFER_K] && written[BUFFER_V]);
    for (int r = TENSOR_NONE + 1; r < TENSOR_ROLE_COUNT; r++) {
        uint64_t rows, cols;
        bool exists = model_expected_shape(config, (enum tensor_role)r, -1, &rows, &cols);
        if (r == TENSOR_HEAD) exists = true; /* a tied head is used too, as the embedding */
        assert_int_equal(used[r], exists);
    }
}

static void test_math(void **state)
{
    (void)state;
    for (unsigned bits = 0; bits < 128; bits++) {
        struct model_config config = all_on;
        if (bits & 1) strcpy(config.architecture, bits & 32 ? "Dots1ForCausalLM" : "Qwen3ForCausalLM");
        config.qk_norm = bits & 1;
        config.q_bias = bits & 2;
        config.k_bias = bits & 4;
        config.v_bias = bits & 8;
        config.o_bias = bits & 16;
        config.mlp_bias = bits & 32;
        config.tied_head = bits & 64;
        check_math(&config);
    }
}

static void test_dtypes(void **state)
{
    (void)state;
    assert_int_equal(dtype_bytes(DTYPE_BF16), 2);
    assert_int_equal(dtype_bytes(DTYPE_F16), 2);
    assert_int_equal(dtype_bytes(DTYPE_F32), 4);
    assert_string_equal(dtype_name(DTYPE_BF16), "bf16");
    assert_string_equal(dtype_name(DTYPE_F16), "f16");
    assert_string_equal(dtype_name(DTYPE_F32), "f32");
    assert_string_equal(dtype_name(DTYPE_COUNT), "unknown");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_layer_of_drafts_is_the_last_one),
        cmocka_unit_test(a_layer_of_drafts_may_have_the_usual_names),
        cmocka_unit_test(test_names_and_roles_are_inverses),
        cmocka_unit_test(test_nested_names),
        cmocka_unit_test(test_names_of_experts),
        cmocka_unit_test(test_mixtures),
        cmocka_unit_test(test_names_no_role_has),
        cmocka_unit_test(test_shapes),
        cmocka_unit_test(test_math),
        cmocka_unit_test(test_dtypes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
