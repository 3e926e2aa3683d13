/* The CPU computing with packed experts: the same mixture under plans that differ in that alone, whose logits
 * must agree; by the CPU alone, and beside an emulated device that in prompts streams and expands the experts
 * that the CPU computes with in decode, and has others packed in VRAM, or in slots there.
 *
 * The golden mixtures have rows that packed kernels do not take, so a small one is made here, whose experts'
 * downs have 768 columns, and which has a shared expert. Compared are steps of every tier, as in
 * test_golden_packed.c. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/units.h"
/* Layer 1 is dense. */
#define CONFIG                                                                                               \
    "{\"architectures\": [\"Qwen2MoeForCausalLM\"], \"model_type\": \"qwen2_moe\", \"hidden_size\": 512, "   \
    "\"intermediate_size\": 1024, \"moe_intermediate_size\": 768, \"shared_expert_intermediate_size\": "     \
    "256, \"num_experts\": 8, "                                                                              \
    "\"num_experts_per_tok\": 2, \"norm_topk_prob\": true, \"mlp_only_layers\": [1], "                       \
    "\"num_hidden_layers\": 4, \"num_attention_heads\": 8, \"num_key_value_heads\": 2, \"head_dim\": 64, "   \
    "\"vocab_size\": 1008, \"max_position_embeddings\": 4096, \"rms_norm_eps\": 1e-6, \"rope_theta\": "      \
    "1000000.0, \"tie_word_embeddings\": false, \"dtype\": \"bfloat16\"}"
#include "tests/golden/packed_local.h"
#include "worker-gpu/engine.h"

#define EXPERTS_BYTES (3u * (8 * 768 + 256) * 512 * 2) /* of a layer */

/* Instrumented, the emulated device takes many seconds for a plan: those with experts packed in both
 * memories, of which the one whose prompts the CPU computes is left to the release build
 * (blocks_agree_whoever_computes_experts has its homes, sanitized too). */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define FIRST_PAIR 2
#define PAIRS      5
#define NEXT_LOCAL 2
#define PAIR_MOST  60
#else
#define FIRST_PAIR 0
#define PAIRS      6
#define NEXT_LOCAL 1
#define PAIR_MOST  110
#endif

/* Formats of a plan whose experts are packed or not, at home on the CPU and in VRAM or on the CPU alone; all
 * else as stored. */
static void format_experts(struct plan *plan, bool packed, bool in_vram)
{
    for (uint32_t u = 0; u < UNITS; u++) {
        const bool experts = unit_part(u) == UNIT_MLP && unit_layer(u) != 1;
        const bool here = experts && (in_vram || plan_home_computes(plan->unit[u].home[0], PLAN_CPU0));
        plan_set_unit_format(plan, u, here && packed ? FORMAT_BF16_PACKED : PLAN_AS_STORED);
    }
}

/* ---- by the CPU alone ---- */

static void run_local(const char *kernels, bool packed, uint32_t threads, const struct script *script,
                      float *logits)
{
    struct plan_unit unit[UNITS + 2];
    struct plan plan = {.layers = LAYERS,
                        .unit = units_all(unit, LAYERS, PLAN_HOME_CPU),
                        .step_tokens = STEP_TOKENS};
    format_experts(&plan, packed, true);
    struct runner on = {.most = 2 * PAIR_MOST};
    struct local *local = run_plan_local(kernels, &plan, threads, script, &on, logits);
    const struct weights *w = &local->engine.weights;
    assert_int_equal(w->packed_from, packed ? 3 * EXPERTS_BYTES : 0);
    if (packed) assert_in_range(w->packed_to, w->packed_from * 66 / 100, w->packed_from * 76 / 100);
    close_local(local);
}

static void packed_experts_and_plain_ones_agree(void **state)
{
    (void)state;
    float *logits[2] = {calloc((size_t)SAMPLES * VOCAB, sizeof(float)),
                        calloc((size_t)SAMPLES * VOCAB, sizeof(float))};
    /* kernels of several tokens round their inputs to 16 bits; of packed ones those of one take a few tokens,
     * too */
    static const struct {
        const char *kernels;
        uint32_t threads;
        const struct script *script;
        double allowed;
    } cases[] = {{"ref", 2, &one_token, 1e-4},
                 {NULL, 1, &one_token, 1e-4},
                 {NULL, 3, &one_token, 1e-4},
                 {NULL, 3, &all_tiers, 5e-2}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i += NEXT_LOCAL) {
        const char *kernels = cases[i].kernels;
        if (!kernels && !has_kernels()) kernels = "ref";
        run_local(kernels, false, cases[i].threads, cases[i].script, logits[0]);
        run_local(kernels, true, cases[i].threads, cases[i].script, logits[1]);
        const double worst = compare(logits[0], logits[1]);
        print_message("kernels %s, %u threads: worst difference %.2g of the spread\n",
                      kernels ? kernels : "chosen", cases[i].threads, worst);
        assert_true(worst < cases[i].allowed);
    }
    free(logits[0]);
    free(logits[1]);
}

/* ---- beside a device ---- */

static const struct script tokens_alike = {12, {{1}, {1}, {1}, {1}, {1}, {1}, {1}, {1}, {1}, {1}, {1}, {1}}};

struct pair_case {
    const char *decode, *prefill;
    uint64_t ring;
    bool in_vram;
    uint32_t from;       /* tokens of prompts */
    bool alike;          /* tokens are one and the same, so that experts move */
    const char *weights; /* the mixture that they are laid in at loading */
};

static void run_pair(const struct pair_case *c, bool packed, float *logits, uint64_t *link_bytes)
{
    struct plan_unit unit[UNITS + 2];
    struct helm_err err = {0};
    struct pair *pair = calloc(1, sizeof *pair);
    struct plan plan = {.layers = LAYERS,
                        .unit = units_of_letters(unit, LAYERS, c->decode, UNITS),
                        .device[PLAN_GPU0].ring_bytes = c->ring,
                        .embed = PLAN_CPU0,
                        .head = PLAN_CPU0,
                        .weights = c->weights ? mixture_named(c->weights) : NULL};
    add_letters(&plan, c->from, c->prefill);
    if (plan_mixed_units(&plan))
        plan.device[PLAN_GPU0].experts =
            (struct plan_experts){.slots = 3, .direct_permille = 400, .moves = 4};
    format_experts(&plan, packed, c->in_vram);
    const struct pair_options options = {.folder = folder,
                                         .plan = &plan,
                                         .device = "emulated",
                                         .kernels = has_kernels() ? NULL : "ref",
                                         .kv_dtype = KV_F32,
                                         .threads = 2,
                                         .slots = SLOTS,
                                         .context_tokens = CONTEXT,
                                         .step_tokens = STEP_TOKENS,
                                         .vram_bytes = 256 * MIB,
                                         .peer_wait_ms = 120000,
                                         .copy_rows = true};
    assert_non_null(pair);
    if (pair_open(&options, pair, &err)) fail_msg("%s: %s", c->decode, err.text);
    struct runner on = {
        .arena = &pair->arena, .engines = pair, .step = step_pair, .most = PAIR_MOST, .alike = c->alike};
    run_script(&on, c->alike ? &tokens_alike : &all_tiers, logits);
    struct gpu_engine *gpu = (struct gpu_engine *)pair->server[PAIR_GPU].engine;
    *link_bytes = gpu->device->copied_bytes[DEVICE_COPY][DEVICE_TO_DEVICE];
    assert_int_equal(gpu->expand.bytes > 0, packed || c->weights);
    const struct arena_experts *seen = arena_experts_of(&pair->arena);
    if (plan_mixed_units(&plan)) { /* some were found in slots, some not */
        assert_true(seen->present > 0 && seen->present < seen->used);
        assert_int_equal(seen->moved > 0, c->alike);
    }
    assert_true(gpu->base.report.vram.total <= gpu->base.report.vram.limit);
    pair_close(pair);
    free(pair);
}

/* Slices of one expert each, and of several; layers whose experts are in VRAM between those that are
 * streamed, plain and packed; and such as are in both memories, of whose chunks the shorter ones are no
 * prompts. */
static void a_device_expands_packed_experts(void **state)
{
    (void)state;
    static const struct pair_case cases[] = {{"gcgggcgc", "gsgggsgs", 4 * MIB, false, 17, false},
                                             {"ccccgggc", "ssssgggs", 16 * MIB, false, 17, false},
                                             {"gcccgggg", "gsssgggg", 4 * MIB, true, 17, false},
                                             {"gmgggmgg", "gsgggsgg", 4 * MIB, true, 64, false},
                                             {"gmgggmgg", "gsgggsgg", 4 * MIB, true, 64, true},
                                             {"gmgggmgg", "gcgggcgg", 4 * MIB, true, 39, false}};
    float *logits[2] = {calloc((size_t)SAMPLES * VOCAB, sizeof(float)),
                        calloc((size_t)SAMPLES * VOCAB, sizeof(float))};
    for (size_t i = FIRST_PAIR; i < PAIRS; i++) {
        uint64_t link[2];
        run_pair(&cases[i], false, logits[0], &link[0]);
        run_pair(&cases[i], true, logits[1], &link[1]);
        const double worst = compare(logits[0], logits[1]);
        print_message("%s %s: worst difference %.2g of the spread; %llu bytes over the link, packed %llu\n",
                      cases[i].decode, cases[i].prefill, worst, (unsigned long long)link[0],
                      (unsigned long long)link[1]);
        assert_true(worst < 5e-2); /* inputs of several tokens are rounded to 16 bits on both sides */
        assert_true(link[1] < link[0]);
    }
    free(logits[0]);
    free(logits[1]);
}

/* Blocks: where the CPU computes prompts with experts that decode has in both memories, the GPU expands the
 * same weights of the layers after them as where it streams these experts. The longest chunk takes none as
 * they lie. */
static void blocks_agree_whoever_computes_experts(void **state)
{
    (void)state;
    static const struct pair_case cases[] = {{"gmgggmgg", "gsgggsgg", 4 * MIB, true, 39, false, "q5_k_m"},
                                             {"gmgggmgg", "gcgggcgg", 4 * MIB, true, 39, false, "q5_k_m"}};
    float *logits[2] = {calloc((size_t)SAMPLES * VOCAB, sizeof(float)),
                        calloc((size_t)SAMPLES * VOCAB, sizeof(float))};
    uint64_t link[2];
    for (int i = 0; i < 2; i++) run_pair(&cases[i], false, logits[i], &link[i]);
    const double worst = compare(logits[0], logits[1]);
    print_message("blocks: worst difference %.2g of the spread\n", worst);
    assert_true(worst < 5e-2 && link[1] < link[0]);
    free(logits[0]);
    free(logits[1]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(packed_experts_and_plain_ones_agree),
        cmocka_unit_test(a_device_expands_packed_experts),
        cmocka_unit_test(blocks_agree_whoever_computes_experts),
    };
    if (getenv("HELM_TEST_FILTER")) cmocka_set_test_filter(getenv("HELM_TEST_FILTER"));
    return cmocka_run_group_tests_name("golden/packed_experts", tests, make_model, remove_model);
}
