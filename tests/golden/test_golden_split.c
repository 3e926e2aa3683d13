/* Golden runs over two workers: splits of every reference model between CPU and GPU, every one of one, and
 * the GPU alone.
 *
 * Both engines run as threads over one arena (tests/golden/pair.h), with the step protocol and the lanes of
 * the real processes. Checked: tokens and logprobs against the reference, the same bits in a second run,
 * lanes left at 0, ceilings refused with numbers, a peer that does not come.
 *
 * The device is the emulated one. With HELM_TEST_DEVICE=cuda, in the program that `make BUILD=...
 * .../helm-test-gpu-split` links with the CUDA device, it is the GPU; a build or a machine without one skips,
 * and says why. HELM_TEST_DEVICE=cuda also prints the time of a hand-over. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/device_choice.h"
#include "tests/golden/embed_walks.h"
#include "tests/golden/pair_walks.h"
#include "tests/written_plans.h"
#include "common/plan/stages.h"
#include "worker-gpu/engine.h"

#define STEP_TOKENS 256
#define CONTEXT     1100
/* Instrumented kernels are many times slower: short cases and few plans reach every line all the same. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define LONG_CASE  20
#define FEW_SPLITS 1
#define RUNS       1
#else
#define LONG_CASE  UINT32_MAX
#define FEW_SPLITS 0
#define RUNS       2
#endif
#define SHORT_CASE 140
#define EVERY      ((1u << MODE_COUNT) - 1)

struct split {
    const char *name;
    struct plan_unit unit[WRITTEN_UNITS(16)];
    struct plan plan; /* its units are those above: not to be copied */
};

static void make_split(struct split *split, const char *name, const enum plan_home *home, uint32_t layers)
{
    enum plan_home homes[32];
    for (uint32_t u = 0; u < unit_count(layers); u++) homes[u] = home[unit_layer(u)];
    *split = (struct split){.name = name};
    split->plan = (struct plan){.layers = layers,
                                .unit = units_of_homes(split->unit, layers, homes),
                                .embed = plan_home_processor(home[0]),
                                .head = plan_home_processor(home[layers - 1])};
}

static struct pair_options options_of(const char *folder, const struct split *split, enum kv_dtype kv_dtype)
{
    return (struct pair_options){.folder = folder,
                                 .plan = &split->plan,
                                 .device = device_name(),
                                 .kv_dtype = kv_dtype,
                                 .threads = 2,
                                 .slots = CASES_MAX,
                                 .context_tokens = CONTEXT,
                                 .step_tokens = STEP_TOKENS,
                                 .vram_bytes = strcmp(device_name(), "emulated") == 0 ? 256 * MIB : 4 * GIB,
                                 .peer_wait_ms = 120000,
                                 .copy_rows = true};
}

static void lanes_are_empty(const struct pair *pair)
{
    for (uint32_t i = 0; i < PLAN_LINKS; i++)
        assert_int_equal(doorbell_read(&arena_lane_of(&pair->arena, i)->bell), 0);
}

/* One plan: `modes` of it; where those are all, batches twice to see the same bits (one row at a time in
 * test_golden_stream.c; of one model alone on the emulated device, which has the same code for each; not when
 * instrumented); alone every second case, the others in the next plan. */
static void run_split(const char *model, const struct golden *golden, const struct split *split,
                      enum kv_dtype kv_dtype, unsigned modes, uint32_t longest)
{
    char folder[256];
    struct helm_err err = {0};
    struct pair *pair = calloc(1, sizeof *pair);
    uint64_t start_us = units_now_us(), digest[2] = {0, 0};
    snprintf(folder, sizeof folder, "%s", model);
    const struct pair_options options = options_of(folder, split, kv_dtype);
    struct outcome all = {0};
    const bool again_too =
        strcmp(device_name(), "emulated") != 0 || strcmp(model, "tests/data/golden/qwen3") == 0;
    if (longest > LONG_CASE) longest = LONG_CASE;
    if (pair_open(&options, pair, &err)) fail_msg("%s, %s: %s", model, split->name, err.text);
    for (int mode = 0; mode < MODE_COUNT; mode++) {
        if (!(modes >> mode & 1)) continue;
        const int runs = modes == EVERY && mode != MODE_ALONE && again_too ? RUNS : 1;
        for (int again = 0; again < runs; again++) {
            struct outcome outcome = {0};
            run_mode(pair, golden, (enum mode)mode, longest, split->plan.embed == PLAN_GPU0, 2, &outcome);
            digest[again] = outcome.digest;
            outcome_add(&all, &outcome);
        }
        assert_true(runs == 1 || digest[0] == digest[1]); /* bit-identical run to run */
    }
    lanes_are_empty(pair);
    pair_close(pair);
    free(pair);
    print_message("%-24s %-22s kv %-4s mean %.5f worst %.4f, %u permitted differences, %.2f s\n", model,
                  split->name, kv_dtype_name(kv_dtype), all.count ? all.sum / (double)all.count : 0.0,
                  all.worst, all.permitted, (double)(units_now_us() - start_us) * 1e-6);
    assert_int_equal(all.wrong, 0);
    const struct tolerance *allowed = tolerance_of_cache(kv_dtype);
    assert_true(all.worst <= allowed->worst);
    if (all.count) assert_true(all.sum / (double)all.count <= allowed->mean);
}

static void run_model(const char *model, uint32_t layers)
{
    const unsigned together = 1u << MODE_TOGETHER;
    const bool all = !FEW_SPLITS && strcmp(model, "tests/data/golden/qwen3") == 0,
               alike = !all && !every_case() && strcmp(model, "tests/data/golden/qwen2-bias") != 0;
    struct golden *golden = calloc(1, sizeof *golden);
    enum plan_home home[16];
    char name[64];
    golden_read(model, golden);
    for (uint32_t k = 0; k <= layers; k++) { /* k layers on the GPU, first or last; 0 and all are the ends */
        for (int first = 0; first < 2; first++) {
            if (k == 0 || (k == layers && first == 0)) continue;
            if (!all && k != layers && k != layers / 2)
                continue; /* where a cut is, is the same in each model */
            for (uint32_t l = 0; l < layers; l++)
                home[l] = (first ? l < k : l >= layers - k) ? PLAN_HOME_GPU : PLAN_HOME_CPU;
            snprintf(name, sizeof name,
                     k == layers ? "all gpu"
                     : first     ? "gpu %u, then cpu"
                                 : "cpu, then gpu %u",
                     k);
            struct split split;
            make_split(&split, name, home, layers);
            run_split(model, golden, &split, KV_F16, k == layers && !alike ? EVERY : together,
                      k == layers && !alike ? UINT32_MAX : SHORT_CASE);
        }
    }
    /* instrumented, of the models one both ways round */
    for (int start = 0; start < (FEW_SPLITS && strcmp(model, "tests/data/golden/qwen3") != 0 ? 1 : 2);
         start++) {
        for (uint32_t l = 0; l < layers; l++)
            home[l] = (l + (uint32_t)start) % 2 ? PLAN_HOME_GPU : PLAN_HOME_CPU;
        struct split split;
        make_split(&split, start ? "alternating, gpu first" : "alternating, cpu first", home, layers);
        /* the emulated device has the same code for each model: of the others one way round */
        const bool few = alike || (start && !all && !FEW_SPLITS && strcmp(device_name(), "emulated") == 0);
        run_split(model, golden, &split, start ? KV_BF16 : KV_F32, few ? together : EVERY,
                  few ? SHORT_CASE : UINT32_MAX);
        /* the ends on the other worker than the layers beside them */
        split.plan.embed = split.plan.embed == PLAN_CPU0 ? PLAN_GPU0 : PLAN_CPU0;
        split.plan.head = split.plan.head == PLAN_CPU0 ? PLAN_GPU0 : PLAN_CPU0;
        split.name = start ? "alternating, ends cpu" : "alternating, ends gpu";
        run_split(model, golden, &split, start ? KV_Q8_0 : KV_F16, together, SHORT_CASE);
    }
    golden_free(golden);
    free(golden);
}

/* Wherever the layers and the head are: pooled hidden states are the reference's. */
static void pooled_states_are_the_references(void **state)
{
    static const struct {
        const char *name;
        char home[5]; /* a letter a layer */
        enum plan_processor head;
    } plans[] = {{"cpu", "cccc", PLAN_CPU0},
                 {"gpu", "gggg", PLAN_GPU0},
                 {"cpu, then gpu", "ccgg", PLAN_GPU0},
                 {"gpu, its head cpu", "cggg", PLAN_CPU0},
                 {"cpu, its head gpu", "gcgc", PLAN_GPU0}};
    (void)state;
    need_device();
    struct golden *golden = calloc(1, sizeof *golden);
    struct helm_err err = {0};
    golden_read("tests/data/golden/qwen3", golden);
    for (size_t p = 0; p < sizeof plans / sizeof *plans; p += FEW_SPLITS ? 3 : 1) {
        struct pair *pair = calloc(1, sizeof *pair);
        struct split split;
        enum plan_home home[4];
        for (uint32_t l = 0; l < 4; l++) home[l] = plans[p].home[l] == 'g' ? PLAN_HOME_GPU : PLAN_HOME_CPU;
        make_split(&split, plans[p].name, home, 4);
        split.plan.head = plans[p].head;
        const struct pair_options options = options_of("tests/data/golden/qwen3", &split, KV_F16);
        if (pair_open(&options, pair, &err)) fail_msg("%s: %s", split.name, err.text);
        run_embeddings(pair, golden, split.name);
        run_embeddings(pair, golden, split.name); /* slots are used again: nothing is left over */
        lanes_are_empty(pair);
        pair_close(pair);
        free(pair);
    }
    golden_free(golden);
    free(golden);
}

static void qwen3_agrees(void **state)
{
    (void)state;
    need_device();
    run_model("tests/data/golden/qwen3", 4);
}
static void qwen2_agrees(void **state)
{
    (void)state;
    need_device();
    run_model("tests/data/golden/qwen2-bias", 4);
}
static void llama3_agrees(void **state)
{
    (void)state;
    need_device();
    run_model("tests/data/golden/llama3-ropescaled", 4);
}
#if !FEW_SPLITS /* qwen3 with more layers and a tied head, as qwen2 has */
static void demo_agrees(void **state)
{
    (void)state;
    need_device();
    run_model("tools/models/demo", 8);
}
#endif

static const enum plan_home mixed_home[] = {PLAN_HOME_CPU, PLAN_HOME_GPU, PLAN_HOME_GPU, PLAN_HOME_CPU};

/* Below what the plan needs the load is refused with every number; at it, it fits and stays below. */
static void the_ceiling_holds(void **state)
{
    (void)state;
    need_device();
    struct helm_err err = {0};
    struct pair *pair = calloc(1, sizeof *pair);
    struct split split;
    make_split(&split, "ceiling", mixed_home, 4);
    struct pair_options options = options_of("tests/data/golden/qwen3", &split, KV_F16);
    if (pair_open(&options, pair, &err)) fail_msg("%s", err.text);
    struct ledger vram = pair->server[PAIR_GPU].engine->report.vram;
    assert_true(vram.total <= vram.limit);
    assert_true(vram.line_count >= 4);
    pair_close(pair);
    options.vram_bytes = vram.total;
    assert_int_equal(pair_open(&options, pair, &err), 0);
    pair_close(pair);
    options.vram_bytes = vram.total - vram.line[0].bytes;
    assert_int_equal(pair_open(&options, pair, &err), HELM_E_CAPACITY);
    assert_non_null(strstr(err.text, "VRAM"));
    print_message("refused: %s\n", err.text);
    options.vram_bytes = 4096;
    assert_int_equal(pair_open(&options, pair, &err), HELM_E_CAPACITY);
    free(pair);
}

/* One setting a slot, in turns: what chat clients send, what candidates are enough for only at times, and
 * what needs the row. */
static struct sampling_params draw_params(uint32_t i)
{
    struct sampling_params p = {.temperature = 0.6f, .top_p = 1, .repetition_penalty = 1, .seed = 1000 + i};
    switch (i % 8) {
    case 0:
        p.top_k = 20, p.top_p = 0.95f;
        break;
    case 1:
        p.top_k = 20, p.top_p = 0.8f, p.repetition_penalty = 1.05f;
        break;
    case 2:
        p.top_k = 5, p.presence_penalty = 1.5f, p.frequency_penalty = -0.1f, p.logprobs = 3;
        break;
    case 3:
        p.top_p = 0.9f, p.logprobs = 20;
        break;
    case 4:
        p.temperature = 1;
        break;
    case 5:
        p.min_p = 0.1f, p.bias_count = 1, p.bias[0].token = 7, p.bias[0].bias = 4;
        break;
    case 6:
        p.temperature = 0, p.repetition_penalty = 1.3f;
        break;
    default:
        p.temperature = 0;
        break;
    }
    return p;
}

/* Every draw, from candidates or not, is the one that the CPU's sampler makes of the whole row; and most are
 * made of candidates. */
static void draws_are_those_of_rows(void **state)
{
    (void)state;
    need_device();
    enum { SLOTS = 8, STEPS = 24, PROMPT = 9 };
    struct helm_err err = {0};
    struct pair *pair = calloc(1, sizeof *pair);
    struct split split;
    enum plan_home home[4] = {PLAN_HOME_GPU, PLAN_HOME_GPU, PLAN_HOME_GPU, PLAN_HOME_GPU};
    make_split(&split, "draws", home, 4);
    struct pair_options options = options_of("tests/data/golden/qwen3", &split, KV_F16);
    options.slots = SLOTS;
    if (pair_open(&options, pair, &err)) fail_msg("%s", err.text);
    const uint32_t vocab = arena_header_of(&pair->arena)->vocab;
    void *scratch = aligned_alloc(64, (sampling_scratch_bytes(vocab) + 63) / 64 * 64);
    for (uint32_t i = 0; i < SLOTS; i++) {
        struct arena_slot *slot = arena_slot_of(&pair->arena, i);
        slot->sampling = draw_params(i);
        slot->prompt_count = PROMPT;
        for (uint32_t t = 0; t < PROMPT; t++)
            arena_history_of(&pair->arena, i)[t] = (i * 37 + t * 11) % vocab;
    }
    uint32_t length[SLOTS], compared = 0;
    for (uint32_t i = 0; i < SLOTS; i++) length[i] = PROMPT;
    for (uint32_t s = 0; s < STEPS; s++) {
        struct step_row rows[SLOTS];
        uint32_t count = s % 3 == 2 ? 1 + s % SLOTS : SLOTS; /* of a prompt, of many rows, of few */
        for (uint32_t i = 0; i < count; i++)
            rows[i] = (struct step_row){.slot = i,
                                        .start = length[i] == PROMPT ? 0 : length[i] - 1,
                                        .count = length[i] == PROMPT ? PROMPT : 1,
                                        .flags = STEP_ROW_SAMPLE};
        const struct step_result *result;
        if (pair_step(pair, rows, count, &result, &err)) fail_msg("%s", err.text);
        for (uint32_t i = 0; i < count; i++) {
            const struct sampling_params p = draw_params(i);
            struct sampling_result wanted;
            assert_int_equal(result->row[i].status, STEP_ROW_OK);
            if (i % 8 != 7) {
                const struct sampling_tokens tokens = {arena_history_of(&pair->arena, i), length[i], PROMPT,
                                                       NULL};
                assert_int_equal(sampling_draw(&p, arena_logits_of(&pair->arena, i), vocab, &tokens, scratch,
                                               &wanted),
                                 0);
                assert_memory_equal(&result->row[i].sampled, &wanted, sizeof wanted);
                compared++;
            }
            arena_history_of(&pair->arena, i)[length[i]++] = result->row[i].sampled.token;
        }
    }
    const struct gpu_draw *draw = &((struct gpu_engine *)pair->server[PAIR_GPU].engine)->draw;
    print_message("%u draws compared: %llu from candidates, %llu from rows, %llu of them after candidates\n",
                  compared, (unsigned long long)draw->from_few, (unsigned long long)draw->from_rows,
                  (unsigned long long)draw->not_enough);
    assert_true(draw->from_few + draw->from_rows == compared);
    assert_true(draw->from_few > compared / 2 && draw->from_rows > 0);
    free(scratch);
    pair_close(pair);
    free(pair);
}

/* The same device with slow copies computes the same, only later. */
static void slow_copies_change_nothing(void **state)
{
    (void)state;
    need_device();
    struct helm_err err = {0};
    struct golden *golden = calloc(1, sizeof *golden);
    struct pair *pair = calloc(1, sizeof *pair);
    struct split split;
    make_split(&split, "slow copies", mixed_home, 4);
    split.plan.embed = PLAN_GPU0;
    struct pair_options options = options_of("tests/data/golden/qwen3", &split, KV_F16);
    uint64_t digest[2];
    golden_read("tests/data/golden/qwen3", golden);
    for (int slow = 0; slow < 2; slow++) {
        struct outcome outcome = {0};
        options.copy_bytes_per_s = slow ? 20 * MIB : 0;
        if (pair_open(&options, pair, &err)) fail_msg("%s", err.text);
        double seconds = pair->server[PAIR_GPU].engine->report.load_seconds;
        uint64_t bytes = pair->server[PAIR_GPU].engine->report.weight_bytes;
        if (slow && strcmp(device_name(), "emulated") == 0)
            assert_true(seconds >= (double)bytes / (20.0 * (double)MIB));
        run_mode(pair, golden, MODE_TOGETHER, 20, 0, 1, &outcome);
        digest[slow] = outcome.digest;
        /* of an embedding that is not the head as well a step reads only rows */
        const struct model *model = &((struct gpu_engine *)pair->server[PAIR_GPU].engine)->model;
        if (split.plan.embed == PLAN_GPU0 && !(model->config.tied_head && split.plan.head == PLAN_GPU0))
            bytes -= model_find(model, TENSOR_EMBED, -1)->bytes;
        assert_int_equal(pair_times(pair, PAIR_GPU)->weight_bytes, bytes);
        pair_close(pair);
    }
    assert_true(digest[0] == digest[1]);
    golden_free(golden);
    free(golden);
    free(pair);
}

/* Chains are the same operations in one launch: on the emulated device the same bits, captured or not, and
 * the worker says how it decodes. (The CUDA device's chains add in another order; there one run is like
 * another.)
 */
static void chains_change_nothing(void **state)
{
    (void)state;
    need_device();
    static const enum plan_home all[] = {PLAN_HOME_GPU, PLAN_HOME_GPU, PLAN_HOME_GPU, PLAN_HOME_GPU},
                                third[] = {PLAN_HOME_CPU, PLAN_HOME_CPU, PLAN_HOME_GPU, PLAN_HOME_CPU};
    static const struct {
        const char *name;
        const enum plan_home *home;
        const char *says;
    } plans[] = {{"mixed", mixed_home, "decode: chains (10 operations in 1, 0 alone)"},
                 {"all gpu", all, "decode: chains (21 operations in 1, 0 alone)"},
                 {"one of four", third, "decode: chains (5 operations in 1, 0 alone)"}};
    const bool emulated = strcmp(device_name(), "emulated") == 0;
    struct helm_err err = {0};
    struct golden *golden = calloc(1, sizeof *golden);
    struct pair *pair = calloc(1, sizeof *pair);
    golden_read("tests/data/golden/qwen3", golden);
    for (size_t p = 0; p < sizeof plans / sizeof *plans; p += FEW_SPLITS ? 3 : 1) {
        struct split split;
        make_split(&split, plans[p].name, plans[p].home, 4);
        struct pair_options options = options_of("tests/data/golden/qwen3", &split, KV_F16);
        uint64_t digest[4];
        for (int run = 0; run < 4; run++) { /* chains and graphs; without one of them; without both */
            struct outcome outcome = {0};
            options.no_chains = run & 1;
            options.no_graphs = run & 2;
            if (pair_open(&options, pair, &err)) fail_msg("%s", err.text);
            const struct engine_report *report = &pair->server[PAIR_GPU].engine->report;
            const char *says = options.no_chains ? "decode: a kernel an operation, because that was asked for"
                                                 : plans[p].says;
            if (emulated && !strstr(report->kernels, says))
                fail_msg("%s: %s", plans[p].name, report->kernels);
            if (emulated) assert_int_equal(report->reduced_count, !!options.no_chains + !!options.no_graphs);
            run_mode(pair, golden, MODE_ALONE, 20, 0, 1, &outcome);
            digest[run] = outcome.digest;
            assert_int_equal(outcome.wrong, 0);
            pair_close(pair);
        }
        assert_true(digest[0] == digest[2] && digest[1] == digest[3]);
        if (emulated) assert_true(digest[0] == digest[1]);
    }
    golden_free(golden);
    free(golden);
    free(pair);
}

/* A bad row is left out by both workers alike; a step of bad rows only is answered at once. */
static void bad_rows_are_left_out_by_both(void **state)
{
    (void)state;
    need_device();
    struct helm_err err = {0};
    struct pair *pair = calloc(1, sizeof *pair);
    struct split split;
    make_split(&split, "bad rows", mixed_home, 4);
    struct pair_options options = options_of("tests/data/golden/qwen3", &split, KV_F16);
    const struct step_row good = {.slot = 0, .start = 0, .count = 5, .flags = STEP_ROW_SAMPLE};
    const struct step_row bad[] = {{.slot = 99, .start = 0, .count = 1},
                                   {.slot = 1, .start = CONTEXT, .count = 1},
                                   {.slot = 1, .start = 0, .count = 0},
                                   {.slot = 0, .start = 5, .count = 1}};
    const struct step_result *result;
    if (pair_open(&options, pair, &err)) fail_msg("%s", err.text);
    for (uint32_t i = 0; i < 8; i++) arena_history_of(&pair->arena, 0)[i] = i + 3;
    assert_int_equal(pair_step(pair, &good, 1, &result, &err), 0);
    assert_int_equal(result->row[0].status, STEP_ROW_OK);
    uint32_t token = result->row[0].sampled.token;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        const struct step_row rows[2] = {good, bad[i]};
        assert_int_equal(pair_step(pair, rows, 2, &result, &err), 0);
        assert_int_equal(result->row[0].sampled.token, token);
        assert_int_equal(result->row[1].status, STEP_ROW_BAD);
    }
    assert_int_equal(pair_step(pair, bad, 3, &result, &err), 0);
    assert_int_equal(result->row[2].status, STEP_ROW_BAD);
    lanes_are_empty(pair);
    pair_close(pair);
    free(pair);
}

/* A hand-over that never comes is an error of the waiting worker, in time, and it still ends. */
static void a_late_peer_is_a_fault(void **state)
{
    (void)state;
    need_device();
    for (int gpu_waits = 0; gpu_waits < 2; gpu_waits++) {
        struct helm_err err = {0};
        struct pair *pair = calloc(1, sizeof *pair);
        struct split split;
        make_split(&split, "late peer", mixed_home, 4);
        struct pair_options options = options_of("tests/data/golden/qwen3", &split, KV_F16);
        const struct step_row row = {.slot = 0, .start = 0, .count = 1, .flags = STEP_ROW_SAMPLE};
        const struct step_result *result;
        options.peer_wait_ms = FEW_SPLITS ? 3000 : 1500; /* longer than a step, also on a busy host */
        if (pair_open(&options, pair, &err)) fail_msg("%s", err.text);
        enum pair_worker gone = gpu_waits ? PAIR_CPU : PAIR_GPU;
        server_stop(&pair->server[gone]);
        uint64_t start_us = units_now_us();
        int rc = pair_step(pair, &row, 1, &result, &err);
        assert_int_equal(rc, HELM_E_PEER);
        assert_true(units_now_us() - start_us < 60000000); /* it ends */
        print_message("%s waits: %s\n", gpu_waits ? "gpu" : "cpu", err.text);
        pair_close(pair);
        free(pair);
    }
}

/* The cost of a stage change: decode of one token over plans with more and more of them. */
static void hand_overs_are_timed(void **state)
{
    (void)state;
    need_device();
    static const enum plan_home plans[][8] = {{1, 1, 1, 1, 1, 1, 1, 1},
                                              {0, 1, 1, 1, 1, 1, 1, 1},
                                              {0, 1, 1, 0, 1, 1, 0, 1},
                                              {0, 1, 0, 1, 0, 1, 0, 1}};
    struct helm_err err = {0};
    for (size_t p = 0; p < sizeof plans / sizeof *plans; p++) {
        struct pair *pair = calloc(1, sizeof *pair);
        struct split split;
        make_split(&split, "timing", plans[p], 8);
        struct pair_options options = options_of("tools/models/demo", &split, KV_F16);
        const struct step_result *result;
        uint64_t best_ns = UINT64_MAX;
        if (pair_open(&options, pair, &err)) fail_msg("%s", err.text);
        const uint32_t steps = FEW_SPLITS || strcmp(device_name(), "emulated") == 0 ? 8 : 200;
        for (uint32_t i = 0; i < steps; i++) {
            const struct step_row row = {.slot = 0, .start = i, .count = 1, .flags = STEP_ROW_SAMPLE};
            arena_history_of(&pair->arena, 0)[i] = 5 + i;
            uint64_t start_ns = units_now_ns();
            if (pair_step(pair, &row, 1, &result, &err)) fail_msg("%s", err.text);
            uint64_t spent = units_now_ns() - start_ns;
            if (spent < best_ns) best_ns = spent;
        }
        print_message("%u stages: a step of one token takes %.1f us at best\n",
                      plan_stage_count(&split.plan, 0), (double)best_ns * 1e-3);
        pair_close(pair);
        free(pair);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bad_rows_are_left_out_by_both),
        cmocka_unit_test(the_ceiling_holds),
        cmocka_unit_test(draws_are_those_of_rows),
        cmocka_unit_test(slow_copies_change_nothing),
        cmocka_unit_test(chains_change_nothing),
        cmocka_unit_test(a_late_peer_is_a_fault),
        cmocka_unit_test(hand_overs_are_timed),
        cmocka_unit_test(pooled_states_are_the_references),
        cmocka_unit_test(qwen3_agrees),
        cmocka_unit_test(qwen2_agrees),
        cmocka_unit_test(llama3_agrees),
#if !FEW_SPLITS
        cmocka_unit_test(demo_agrees),
#endif
    };
    return cmocka_run_group_tests_name("golden/split", tests, NULL, NULL);
}
