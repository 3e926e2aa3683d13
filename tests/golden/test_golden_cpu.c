/* Golden runs of the CPU engine: tokens and logprobs of every reference checkpoint in tests/data/golden, on
 * every kernel variant this machine has, against what its README asks for; KV dtypes in turns.
 *
 * Each case is run alone with its prompt in one chunk or in chunks of odd sizes, and together with all the
 * others in mixed steps (some prefilling, some decoding). Followed as long as the tokens so far are
 * equal; a difference is permitted only where the two best tokens are nearly tied. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/golden/walks.h"
#include "tests/written_plans.h"
#include "worker-cpu/local.h"

#define STEP_TOKENS 1024
#define CONTEXT     1100
#define SHORT_CASE  64 /* longest prompt for the scalar reference, which is slow */
/* Instrumented kernels are thirty times slower: the short cases reach every line all the same. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define LONG_CASE  SHORT_CASE
#define FEW_MODELS    /* one with biases reaches every line */
#define ALL_MODES  "" /* of no model */
#else
#define LONG_CASE UINT32_MAX
#define ALL_MODES "qwen3"
#endif

static const char *const models[] = {"qwen3",      "qwen2-bias", "llama3-ropescaled",
                                     "qwen3moe",   "mixtral",    "gptoss",
                                     "qwen2moe",   "dots1",      "phi3",
                                     "opt",        "granite",    "qwen35",
                                     "qwen35moe",  "qwen3next",  "gemma3",
                                     "gemma4",     "gemma4moe",  "gemma4e",
                                     "glm4moe",    "minimaxm2",  "glm4",
                                     "smollm3",    "seedoss",    "olmo2",
                                     "olmo3",      "ministral3", "deepseekv2",
                                     "deepseekv3", "glm47flash"};

static const struct tolerance exact = {"float32", 0.02, 0.002, 0.05};

static int step_local(void *local, const struct step_row *rows, uint32_t count,
                      const struct step_result **result, struct helm_err *err)
{
    return local_step(local, rows, count, result, err);
}

enum mode { MODE_WHOLE, MODE_ODD, MODE_TOGETHER, MODE_COUNT };
static const char *const mode_name[] = {"whole", "odd chunks", "together"};

/* With 16-bit activations. Router logits of the hybrids spread by 8, which 16 bits round to within 0.06
 * (README of the data). */
static double margin_of(const char *model)
{
    return strcmp(model, "qwen35moe") == 0 || strcmp(model, "qwen3next") == 0 ? 0.1 : 0.05;
}

static void run_golden(struct local *local, const struct golden *golden, enum mode mode, uint32_t longest,
                       const struct tolerance *tolerance, struct outcome *outcome)
{
    const double margin = margin_of(strrchr(local->engine.model.folder, '/') + 1);
    static const uint32_t whole[] = {0}, odd[] = {7, 1, 33, 16, 64, 2, 129, 17},
                          mixed[] = {13, 0, 5, 40, 1, 200, 3};
    const struct walker on = {.arena = &local->arena,
                              .engines = local,
                              .step = step_local,
                              .gap_allowed = tolerance->gap,
                              .margin = tolerance == &exact ? 0.001 : margin,
                              .worst = tolerance->worst};
    struct walk walks[CASES_MAX];
    uint32_t count = 0;
    for (uint32_t i = 0; i < golden->count; i++) {
        if (golden->cases[i].prompt_count > longest) continue;
        walk_start(&on, &walks[count], &golden->cases[i], count, 5);
        count++;
    }
    assert_true(count > 0);
    if (mode == MODE_TOGETHER) {
        run_walks(&on, walks, count, mixed, sizeof mixed / sizeof *mixed, outcome);
        return;
    }
    for (uint32_t i = 0; i < count; i++)
        run_walks(&on, &walks[i], 1, mode == MODE_ODD ? odd : whole,
                  mode == MODE_ODD ? sizeof odd / sizeof *odd : 1, outcome);
}

static void run_variant(const char *model, const struct golden *golden, const char *kernels,
                        enum kv_dtype kv_dtype)
{
    char folder[256];
    struct helm_err err = {0};
    struct local *local = aligned_alloc(64, (sizeof *local + 63) / 64 * 64);
    const bool full = getenv("HELM_TEST_FULL"), is_ref = strcmp(kernels, "ref") == 0,
               is_slow =
                   is_ref || (strcmp(kernels, "openblas") == 0 && !(full && strcmp(model, ALL_MODES) == 0));
    snprintf(folder, sizeof folder, "tests/data/golden/%s", model);
    const struct local_options options = {.folder = folder,
                                          .kernels = kernels,
                                          .kv_dtype = kv_dtype,
                                          .threads = 2,
                                          .slots = CASES_MAX,
                                          .context_tokens = CONTEXT,
                                          .step_tokens = STEP_TOKENS};
    if (local_open(&options, local, &err)) fail_msg("%s on %s: %s", model, kernels, err.text);
    bool is_exact = kv_dtype == KV_F32;
    for (int f = 0; f < FORMAT_COUNT; f++)
        if (model_formats(&local->engine.model) & format_bit((enum tensor_format)f))
            is_exact &= local->engine.kernels.linear[LINEAR_EXACT][f].tokens->exact_input;
    /* With gpt-oss's heads of 32 a cell in q8_0 has one scale: logprobs move by 0.47 and by 0.102 in the
     * mean, also where the scalar reference computes. */
    static const struct tolerance quantised_small = {"q8_0", 0.55, 0.12, 0.55};
    const struct tolerance *tolerance = is_exact ? &exact : tolerance_of_cache(kv_dtype);
    if (tolerance == &quantised && strcmp(model, "gptoss") == 0) tolerance = &quantised_small;
    for (int mode = 0; mode < MODE_COUNT; mode++) {
        struct outcome error = {0};
        if (mode == MODE_ODD && (is_ref || kv_dtype == KV_BF16)) continue;
        /* Chunks and cache types are the same code in each model: of most the one or the other for each type.
         */
        if (mode != MODE_TOGETHER && strcmp(model, ALL_MODES) != 0 &&
            mode != (kv_dtype == KV_F16 ? MODE_ODD : MODE_WHOLE))
            continue;
        if (mode == MODE_WHOLE && is_ref && (kv_dtype != KV_F32 || !full)) continue;
        uint64_t start_us = units_now_us();
        run_golden(local, golden, (enum mode)mode, is_slow ? SHORT_CASE : LONG_CASE, tolerance, &error);
        print_message("%-18s %-12s kv %-4s %-10s class %-7s mean %.5f worst %.4f of %llu, %u permitted "
                      "differences, %u near choices, %.2f s\n",
                      model, kernels, kv_dtype_name(kv_dtype), mode_name[mode], tolerance->name,
                      error.sum / (double)error.count, error.worst, (unsigned long long)error.count,
                      error.permitted, error.near, (double)(units_now_us() - start_us) * 1e-6);
        assert_int_equal(error.wrong, 0);
        assert_true(error.worst <= tolerance->worst);
        assert_true(error.sum / (double)error.count <= tolerance->mean);
    }
    local_close(local);
    free(local);
}

#ifndef FEW_MODELS
/* Experts of a reference that lie packed, by the plain kernels: no fast one takes rows of 32 columns. */
static void packed_experts_agree_with_a_reference(void **state)
{
    (void)state;
    static const char *const folder = "tests/data/golden/qwen3moe";
    struct helm_err err = {0};
    struct golden *golden = calloc(1, sizeof *golden);
    struct local *local = aligned_alloc(64, (sizeof *local + 63) / 64 * 64);
    struct plan_unit unit[WRITTEN_UNITS(3)];
    struct plan plan = {.layers = 3, .unit = units_all(unit, 3, PLAN_HOME_CPU), .step_tokens = STEP_TOKENS};
    struct outcome error = {0};
    assert_non_null(local);
    golden_read(folder, golden);
    for (uint32_t l = 0; l < 3; l += 2) plan_set_unit_format(&plan, unit_of(l, UNIT_MLP), FORMAT_BF16_PACKED);
    const struct local_options options = {.folder = folder,
                                          .kernels = "ref",
                                          .plan = &plan,
                                          .kv_dtype = KV_F32,
                                          .threads = 2,
                                          .slots = CASES_MAX,
                                          .context_tokens = CONTEXT,
                                          .step_tokens = STEP_TOKENS};
    if (local_open(&options, local, &err)) fail_msg("%s", err.text);
    const struct model *model = &local->engine.model;
    assert_true(model_layer_sparse(&model->config, 0) && model_layer_sparse(&model->config, 2));
    assert_int_equal(local->engine.weights.packed_from, 2 * 3 * 16 * 32 * 256 * 2); /* two layers' experts */
    run_golden(local, golden, MODE_TOGETHER, SHORT_CASE, &exact, &error);
    print_message("qwen3moe, packed experts: mean %.5f worst %.4f of %llu\n", error.sum / (double)error.count,
                  error.worst, (unsigned long long)error.count);
    assert_int_equal(error.wrong, 0);
    assert_true(error.worst <= exact.worst && error.sum / (double)error.count <= exact.mean);
    local_close(local);
    free(local);
    golden_free(golden);
    free(golden);
}
#endif

/* The slowest variants multiply for qwen2-bias and llama3 as for qwen3; sanitized, qwen2-bias is the one
 * model. */
static bool is_left_out(uint32_t number, const char *variant)
{
    const bool slow = strcmp(variant, "ref") == 0 || strcmp(variant, "openblas") == 0;
    return slow && (number == 1 || number == 2) && LONG_CASE > SHORT_CASE && !getenv("HELM_TEST_FULL");
}

/* Cache types in turns, so that each goes with each model, and with most variants; with a variant's attention
 * each is in test_attention.c. */
static void run_model(uint32_t number)
{
    const char *model = models[number];
    static const enum kv_dtype kv_dtypes[] = {KV_F32, KV_F16, KV_BF16, KV_Q8_0};
    struct golden *golden = calloc(1, sizeof *golden);
    size_t count;
    const struct linear_kernel *const *table = linear_kernels(&count);
    uint32_t variants = 0;
    char folder[64];
    snprintf(folder, sizeof folder, "tests/data/golden/%s", model);
    golden_read(folder, golden);
    for (size_t i = 0; i < count; i++) {
        if (table[i]->format != FORMAT_BF16 || table[i]->schedule != LINEAR_TOKENS) continue;
        if ((table[i]->features & cpu_features()) != table[i]->features) {
            print_message("%s: kernels %s left out: this processor lacks what they need\n", model,
                          table[i]->name);
            continue;
        }
        if (is_left_out(number, table[i]->name)) continue;
        const uint32_t turn = number + variants++;
        run_variant(model, golden, table[i]->name, kv_dtypes[turn % (sizeof kv_dtypes / sizeof *kv_dtypes)]);
    }
    assert_true(variants >= 1);
    golden_free(golden);
    free(golden);
}

static void qwen2_agrees(void **state)
{
    (void)state;
    run_model(1);
}
#ifndef FEW_MODELS
static void qwen3_agrees(void **state)
{
    (void)state;
    run_model(0);
}
static void llama3_agrees(void **state)
{
    (void)state;
    run_model(2);
}
/* A dense layer between sparse ones. */
static void qwen3moe_agrees(void **state)
{
    (void)state;
    run_model(3);
}
static void mixtral_agrees(void **state)
{
    (void)state;
    run_model(4);
}
/* A shared expert with a weight. */
static void qwen2moe_agrees(void **state)
{
    (void)state;
    run_model(6);
}
/* One without, and DeepSeek-V3's routing after a dense layer. */
static void dots1_agrees(void **state)
{
    (void)state;
    run_model(7);
}
/* Fused q k v and gate up, a longrope's long factors, a window. */
static void phi3_agrees(void **state)
{
    (void)state;
    run_model(8);
}
/* LayerNorms, learned positions, ReLU, biases everywhere. */
static void opt_agrees(void **state)
{
    (void)state;
    run_model(9);
}
/* Four multipliers; biases of attention. */
static void granite_agrees(void **state)
{
    (void)state;
    run_model(10);
}
/* Gated delta nets and gated attention; two v heads to a k head, which stand together here. */
static void qwen35_agrees(void **state)
{
    (void)state;
    run_model(11);
}
/* The same with experts, a shared one with a weight. */
static void qwen35moe_agrees(void **state)
{
    (void)state;
    run_model(12);
}
/* The same in tensors that lie k head by k head. */
static void qwen3next_agrees(void **state)
{
    (void)state;
    run_model(13);
}
/* Normed outputs, gated GELU, windows with a RoPE table of their own. */
static void gemma3_agrees(void **state)
{
    (void)state;
    run_model(14);
}
/* Heads of two sizes, v that is k, normed v, a part of the pairs turned, a factor of each layer, a soft
 * cap. */
static void gemma4_agrees(void **state)
{
    (void)state;
    run_model(15);
}
/* Experts beside a dense MLP, with norms and scales of their own; heads of 256 and 512. */
static void gemma4moe_agrees(void **state)
{
    (void)state;
    run_model(16);
}
/* Per-layer embeddings, layers that read the cache of others, whose MLPs are twice as wide. */
static void gemma4e_agrees(void **state)
{
    (void)state;
    run_model(17);
}
/* A part of each head turned, also interleaved; experts chosen by sigmoids beside a shared one and alone;
 * norms of q and k as wholes; layers in which nothing turns; norms of outputs alone; q that grows. */
#define FAMILIES 18
static void families_agree(void **state)
{
    (void)state;
    for (size_t m = FAMILIES; m < sizeof models / sizeof *models; m++) run_model(m);
}
/* MXFP4 experts, sinks, windows, biases everywhere. */
static void gptoss_agrees(void **state)
{
    (void)state;
    run_model(5);
}
#endif

/* A bad row is refused by itself; its neighbours are computed, and nothing is written outside. */
static void bad_rows_are_refused_one_by_one(void **state)
{
    (void)state;
    struct helm_err err = {0};
    struct local *local = aligned_alloc(64, (sizeof *local + 63) / 64 * 64);
    const struct local_options options = {.folder = "tests/data/golden/qwen3",
                                          .kv_dtype = KV_F16,
                                          .threads = 2,
                                          .slots = 4,
                                          .context_tokens = 64,
                                          .step_tokens = 32};
    if (local_open(&options, local, &err)) fail_msg("%s", err.text);
    for (uint32_t s = 0; s < 4; s++)
        for (uint32_t i = 0; i < 64; i++) arena_history_of(&local->arena, s)[i] = i + s;
    arena_history_of(&local->arena, 1)[3] = arena_header_of(&local->arena)->vocab;
    arena_page_table_of(&local->arena, 2)[1] = arena_header_of(&local->arena)->page_count;
    const struct step_row good = {.slot = 0, .start = 0, .count = 5, .flags = STEP_ROW_SAMPLE};
    static const struct step_row bad[] = {
        {.slot = 4, .start = 0, .count = 1}, /* no such slot */
        {.slot = UINT32_MAX, .start = 0, .count = 1},
        {.slot = 0, .start = 5, .count = 1},  /* a slot twice */
        {.slot = 3, .start = 0, .count = 0},  /* nothing */
        {.slot = 3, .start = 64, .count = 1}, /* after the context */
        {.slot = 3, .start = 60, .count = 5},
        {.slot = 3, .start = UINT32_MAX, .count = 2},
        {.slot = 3, .start = 0, .count = 28}, /* more tokens than a step holds */
        {.slot = 3, .start = 0, .count = UINT32_MAX},
        {.slot = 1, .start = 2, .count = 2},  /* a token outside the vocabulary */
        {.slot = 2, .start = 30, .count = 3}, /* a page that does not exist */
        /* no known token; drafts that are not sampled, or by a mask; more samples than there are logits
         * for */
        {.slot = 3, .start = 0, .count = 3, .drafts = 3, .flags = STEP_ROW_SAMPLE},
        {.slot = 3, .start = 0, .count = 3, .drafts = 1},
        {.slot = 3, .start = 0, .count = 3, .drafts = 1, .flags = STEP_ROW_SAMPLE | STEP_ROW_MASKED},
        {.slot = 3, .start = 0, .count = 8, .drafts = 3, .flags = STEP_ROW_SAMPLE},
    };
    const struct step_result *result;
    assert_int_equal(local_step(local, &good, 1, &result, &err), 0);
    assert_int_equal(result->row[0].status, STEP_ROW_OK);
    uint32_t token = result->row[0].sampled.token;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct step_row rows[2] = {good, bad[i]};
        assert_int_equal(local_step(local, rows, 2, &result, &err), 0);
        assert_int_equal(result->row_count, 2);
        assert_int_equal(result->row[0].status, STEP_ROW_OK);
        assert_int_equal(result->row[0].sampled.token, token);
        assert_int_equal(result->row[1].status, STEP_ROW_BAD);
        assert_int_equal(result->row[1].slot, bad[i].slot);
        for (uint32_t k = 0; k < bad[i].drafts; k++) {
            assert_int_equal(result->row[2 + k].status, STEP_ROW_BAD);
            assert_int_equal(result->row[2 + k].slot, bad[i].slot);
        }
    }
    const struct step_row many = {
        .slot = 3, .start = 0, .count = 20, .drafts = ARENA_STEP_DRAFTS + 1, .flags = STEP_ROW_SAMPLE};
    assert_int_equal(local_step(local, &many, 1, &result, &err), HELM_E_LIMIT);
    assert_int_equal(local_step(local, &bad[0], 1, &result, &err), 0);
    assert_int_equal(result->row[0].status, STEP_ROW_BAD);
    arena_control_of(&local->arena)->step[(local->serial + 1) % ARENA_STEP_RING] =
        (struct step){.serial = local->serial + 1, .row_count = ARENA_STEP_ROWS + 1};
    assert_int_equal(engine_step(&local->engine.base, local->serial + 1, &err), HELM_E_LIMIT);
    assert_int_equal(engine_step(&local->engine.base, local->serial + 2, &err), HELM_E_PEER);
    local_close(local);
    free(local);
}

/* Rows with drafts beside each other: each draft is sampled as if the tokens up to it were all, penalties
 * included. */
static void drafts_are_sampled_as_known_tokens(void **state)
{
    (void)state;
    enum { PROMPT = 9, DRAFTS = 3, SLOTS = 3 };
    struct helm_err err = {0};
    struct local *local = aligned_alloc(64, (sizeof *local + 63) / 64 * 64);
    const struct local_options options = {.folder = "tests/data/golden/qwen3",
                                          .kernels = "avx2", /* sums in fp32, for one token and several */
                                          .kv_dtype = KV_F32,
                                          .threads = 2,
                                          .slots = SLOTS,
                                          .draft_tokens = DRAFTS,
                                          .context_tokens = 64,
                                          .step_tokens = 48};
    if (local_open(&options, local, &err)) fail_msg("%s", err.text);
    struct step_row rows[SLOTS];
    struct sampling_result alone[SLOTS][DRAFTS + 1];
    const struct step_result *result;
    for (uint32_t s = 0; s < SLOTS; s++) {
        struct arena_slot *slot = arena_slot_of(&local->arena, s);
        slot->sampling.temperature = s ? 1.2f : 0;
        slot->sampling.repetition_penalty = s == 2 ? 1.5f : 1;
        slot->sampling.logprobs = 3;
        slot->sampling.seed = s;
        slot->prompt_count = PROMPT;
        for (uint32_t i = 0; i < 64; i++) arena_history_of(&local->arena, s)[i] = (i * 5 + s) % 40;
    }
    for (uint32_t i = 0; i <= DRAFTS; i++) {
        for (uint32_t s = 0; s < SLOTS; s++)
            rows[s] = (struct step_row){.slot = s,
                                        .start = i ? PROMPT + i - 1 : 0,
                                        .count = i ? 1 : PROMPT,
                                        .flags = STEP_ROW_SAMPLE};
        assert_int_equal(local_step(local, rows, SLOTS, &result, &err), 0);
        for (uint32_t s = 0; s < SLOTS; s++) alone[s][i] = result->row[s].sampled;
    }
    /* slot 0 has one draft, 1 none, 2 all; the last rows again, whose pages are written over */
    static const uint32_t drafts[SLOTS] = {1, 0, DRAFTS};
    for (uint32_t s = 0; s < SLOTS; s++)
        rows[s] = (struct step_row){.slot = s,
                                    .start = PROMPT - 2,
                                    .count = 2 + drafts[s],
                                    .drafts = drafts[s],
                                    .flags = STEP_ROW_SAMPLE};
    assert_int_equal(local_step(local, rows, SLOTS, &result, &err), 0);
    assert_int_equal(result->row_count, SLOTS);
    for (uint32_t s = 0, drafted = SLOTS; s < SLOTS; drafted += drafts[s++])
        for (uint32_t i = 0; i <= drafts[s]; i++) {
            const struct step_result_row *got = &result->row[i ? drafted + i - 1 : s];
            assert_int_equal(got->slot, s);
            assert_int_equal(got->status, STEP_ROW_OK);
            assert_int_equal(got->sampled.token, alone[s][i].token);
            assert_true(fabs((double)(got->sampled.logprob - alone[s][i].logprob)) < 1e-4);
        }
    local_close(local);
    free(local);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bad_rows_are_refused_one_by_one),
        cmocka_unit_test(drafts_are_sampled_as_known_tokens),
        cmocka_unit_test(qwen2_agrees),
#ifndef FEW_MODELS
        cmocka_unit_test(qwen3_agrees),
        cmocka_unit_test(llama3_agrees),
        cmocka_unit_test(qwen3moe_agrees),
        cmocka_unit_test(packed_experts_agree_with_a_reference),
        cmocka_unit_test(qwen2moe_agrees),
        cmocka_unit_test(dots1_agrees),
        cmocka_unit_test(mixtral_agrees),
        cmocka_unit_test(phi3_agrees),
        cmocka_unit_test(opt_agrees),
        cmocka_unit_test(granite_agrees),
        cmocka_unit_test(qwen35_agrees),
        cmocka_unit_test(qwen35moe_agrees),
        cmocka_unit_test(qwen3next_agrees),
        cmocka_unit_test(gptoss_agrees),
        cmocka_unit_test(gemma3_agrees),
        cmocka_unit_test(gemma4_agrees),
        cmocka_unit_test(gemma4moe_agrees),
        cmocka_unit_test(gemma4e_agrees),
        cmocka_unit_test(families_agree),
#endif
    };
    return cmocka_run_group_tests_name("golden/cpu", tests, NULL, NULL);
}
