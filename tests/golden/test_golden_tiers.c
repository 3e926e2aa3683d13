/* Golden runs over a cache of two tiers: a pair of CPU worker and GPU worker, a pool in VRAM of a few pages,
 * and every reference case decoded far beyond it.
 *
 * helmd's decisions about places are drawn at random (tests/golden/tier_walks.h): pages move out and come
 * back, the CPU attends to a part of some rows' positions, the GPU reads others over the link, prompts go on
 * over pages that lie in the arena. Checked: tokens and logprobs against the reference within the tolerances
 * of one tier, filled pages in the arena, steps launched after others, lanes left at 0.
 *
 * The device is the emulated one, or the GPU with HELM_TEST_DEVICE=cuda (helm-test-gpu-tiers). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/device_choice.h"
#include "tests/golden/courses.h"
#include "tests/golden/tier_walks.h"
#include "tests/written_plans.h"

#define STEP_TOKENS 600 /* more than a sub-chunk */
#define CONTEXT     1104
#define PAGE_TOKENS 16 /* where a case says nothing */
#define UNITS_MAX   16
/* Instrumented kernels are many times slower: two plans reach every line all the same. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define FEW_CASES true
#else
#define FEW_CASES false
#endif

/* A plan as letters, one a unit: c(pu), g(pu), s(tream). */
struct tier_case {
    const char *model, *decode, *prefill;
    enum kv_dtype kv_dtype;
    uint32_t direct_permille; /* 1000: the CPU attends to nothing */
    uint32_t piece_pages;     /* of what a chunk brings to VRAM; 0: all of these contexts are in two */
    bool no_graphs;
    unsigned modes; /* of enum mode */
    bool in_arena;  /* VRAM has no places for chunks, which append in the arena */
    uint32_t page_tokens;
    bool windowed; /* every other layer is given a window of CONTEXT positions */
    uint32_t direct_window;
    bool rings; /* layers with a window keep it alone */
};

static uint32_t page_tokens_of(const struct tier_case *c)
{
    return c->page_tokens ? c->page_tokens : PAGE_TOKENS;
}

static void copy_file(const char *from, const char *to, const char *name)
{
    char path[PATH_MAX + 32];
    static char part[1 << 16];
    snprintf(path, sizeof path, "%s/%s", from, name);
    FILE *in = fopen(path, "rb");
    snprintf(path, sizeof path, "%s/%s", to, name);
    FILE *out = fopen(path, "wb");
    assert_true(in && out);
    for (size_t n; (n = fread(part, 1, sizeof part, in)) > 0;) assert_int_equal(fwrite(part, 1, n, out), n);
    assert_int_equal(ferror(in), 0);
    assert_int_equal(fclose(in) | fclose(out), 0);
}

/* The model with a window in every other layer that hides nothing: its references hold. */
static void open_windowed(const char *folder, char to[PATH_MAX])
{
    char path[PATH_MAX + 32];
    struct helm_err err = {0};
    json_t *json = NULL;
    snprintf(to, PATH_MAX, "%s/helm-tiers-XXXXXX", getenv("TMPDIR") ? getenv("TMPDIR") : "/tmp");
    assert_non_null(mkdtemp(to));
    snprintf(path, sizeof path, "%s/config.json", folder);
    if (json_read_file(path, MIB, &json, &err)) fail_msg("%s", err.text);
    assert_int_equal(
        json_object_update_new(json, json_pack("{s:b, s:i, s:[s, s, s, s]}", "use_sliding_window", 1,
                                               "sliding_window", CONTEXT, "layer_types", "sliding_attention",
                                               "full_attention", "sliding_attention", "full_attention")),
        0);
    snprintf(path, sizeof path, "%s/config.json", to);
    assert_int_equal(json_dump_file(json, path, 0), 0);
    json_decref(json);
    copy_file(folder, to, "model.safetensors");
}

static void remove_windowed(const char *folder)
{
    char path[PATH_MAX + 32];
    snprintf(path, sizeof path, "%s/config.json", folder);
    assert_int_equal(unlink(path), 0);
    snprintf(path, sizeof path, "%s/model.safetensors", folder);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(rmdir(folder), 0);
}

static void open_tiers(const struct tier_case *c, uint32_t vram_pages, struct pair *pair)
{
    struct plan_unit unit[UNITS_MAX + 2];
    struct helm_err err = {0};
    const uint32_t units = (uint32_t)strlen(c->decode);
    assert_true(units <= UNITS_MAX);
    struct plan plan = {.layers = units / 2,
                        .device[PLAN_GPU0].ring_bytes = 300 * KIB,
                        .unit = units_of_letters(unit, units / 2, c->decode, units)};
    plan.embed = plan.head = c->decode[0] == 'c' ? PLAN_CPU0 : PLAN_GPU0;
    if (c->prefill) add_letters(&plan, 40, c->prefill);
    const bool emulated = strcmp(device_name(), "emulated") == 0;
    char windowed[PATH_MAX] = "";
    if (c->windowed) open_windowed(c->model, windowed);
    const struct pair_options options = {.folder = c->windowed ? windowed : c->model,
                                         .plan = &plan,
                                         .device = device_name(),
                                         .kv_dtype = c->kv_dtype,
                                         .threads = 2,
                                         .slots = CASES_MAX,
                                         .context_tokens = CONTEXT,
                                         .step_tokens = STEP_TOKENS,
                                         .page_tokens = page_tokens_of(c),
                                         .vram_pages = vram_pages,
                                         .direct_permille = c->direct_permille,
                                         .direct_window = c->direct_window,
                                         .piece_pages = c->piece_pages,
                                         .rings = c->rings,
                                         .vram_bytes = emulated ? 256 * MIB : 4 * GIB,
                                         .peer_wait_ms = 120000,
                                         .no_graphs = c->no_graphs,
                                         .copy_rows = true};
    if (pair_open(&options, pair, &err)) fail_msg("%s, %s: %s", c->model, c->decode, err.text);
    if (c->windowed) remove_windowed(windowed);
}

static void lanes_are_empty(const struct pair *pair)
{
    for (uint32_t i = 0; i < arena_header_of(&pair->arena)->lanes[ARENA_LANE_STEP]; i++)
        assert_int_equal(doorbell_read(&arena_lane_of(&pair->arena, i)->bell), 0);
    for (uint32_t i = 0; i < arena_header_of(&pair->arena)->lanes[ARENA_LANE_KV]; i++)
        assert_int_equal(doorbell_read(&arena_lane_at(&pair->arena, ARENA_LANE_KV, i)->bell), 0);
}

/* Returns how many chunks read pages of the arena: a mixture's walk may end, at a choice that is nearly a
 * tie, before one does. */
static uint32_t run_tiers(const struct tier_case *c, const struct golden *golden)
{
    const bool emulated = strcmp(device_name(), "emulated") == 0, assisted = c->direct_permille < 1000;
    static const uint32_t mixed[] = {13, 0, 5, 40, 1, 200, 3}, odd[] = {0, 7, 33, 1, 64, 2, 129, 16, 17};
    struct pair *pair = calloc(1, sizeof *pair);
    struct tier_run *run = calloc(1, sizeof *run);
    struct outcome all = {0};
    uint64_t start_us = units_now_us();
    /* pages that a step appends to, or one of few tokens, and four more */
    const uint32_t longest = c->in_arena ? ENGINE_FEW_TOKENS : STEP_TOKENS;
    open_tiers(c, (longest - 1) / page_tokens_of(c) + 1 + 2 * CASES_MAX + 4, pair);
    assert_int_equal(plan_appends_in_arena(&pair->plan), c->in_arena);
    tier_begin(run, pair, 7 + c->kv_dtype, emulated, assisted);
    for (int mode = 0; mode < MODE_COUNT; mode++) {
        if (!(c->modes >> mode & 1) || (FEW_CASES && mode == MODE_GREEDY)) continue;
        struct outcome outcome = {0};
        struct walk walks[CASES_MAX];
        const struct walker on = {.arena = &pair->arena,
                                  .engines = run,
                                  .step = tier_step,
                                  .gap_allowed = pair_tolerance(pair)->gap,
                                  .margin = 0.05, /* of experts */
                                  .worst = pair_tolerance(pair)->worst};
        uint32_t count = 0;
        for (uint32_t i = 0; i < golden->count; i++) {
            walk_start(&on, &walks[count], &golden->cases[i], count, mode == MODE_GREEDY ? 0 : 5);
            count++;
        }
        if (mode != MODE_ALONE) run_walks(&on, walks, count, mixed, sizeof mixed / sizeof *mixed, &outcome);
        for (uint32_t i = 0; i < count && mode == MODE_ALONE; i += FEW_CASES ? 3 : 1)
            run_walks(&on, &walks[i], 1, odd, sizeof odd / sizeof *odd, &outcome);
        outcome_add(&all, &outcome);
    }
    lanes_are_empty(pair);
    pair_close(pair);
    print_message(
        "%-30s %-8s kv %-4s mean %.5f worst %.4f, %u permitted; %u pages out, %u back, %u stored; steps: %u "
        "assisted, %u direct, %u chunks, %u in the arena; %.2f s\n",
        c->model, c->decode, kv_dtype_name(c->kv_dtype), all.count ? all.sum / (double)all.count : 0.0,
        all.worst, all.permitted, run->moved, run->fetched, run->stored, run->assisted_steps,
        run->direct_steps, run->host_chunks, run->arena_chunks, (double)(units_now_us() - start_us) * 1e-6);
    assert_int_equal(all.wrong, 0);
    const struct tolerance *allowed = tolerance_of_cache(c->kv_dtype);
    assert_true(all.worst <= allowed->worst);
    if (all.count) assert_true(all.sum / (double)all.count <= allowed->mean);
    assert_true(run->moved && run->fetched && run->stored && run->direct_steps);
    assert_true(!assisted == !run->assisted_steps);
    assert_true(!c->in_arena == !run->arena_chunks);
    const uint32_t host_chunks = run->host_chunks;
    free(run);
    free(pair);
    return host_chunks;
}

#define QWEN3     "tests/data/golden/qwen3"
#define QWEN2     "tests/data/golden/qwen2-bias"
#define LLAMA     "tests/data/golden/llama3-ropescaled"
#define GPTOSS    "tests/data/golden/gptoss"
#define GEMMA4    "tests/data/golden/gemma4"
#define GEMMA4MOE "tests/data/golden/gemma4moe"
#define ALONE     (1u << MODE_ALONE)
#define TOGETHER  (1u << MODE_TOGETHER)
#define GREEDY    (1u << MODE_GREEDY)

/* Takes the cases with rings, or the others. */
static void agree(bool rings)
{
    need_device();
    static const struct tier_case cases[] = {
        {QWEN3, "gggggggg", NULL, KV_F16, 100, 2, false, ALONE | TOGETHER | GREEDY, false, 64, false, 0},
        {QWEN3, "ggccggss", "ggssggss", KV_Q8_0, 0, 1, false, TOGETHER | ALONE, false, 256, false,
         0}, /* borrows a layer */
        {LLAMA, "ccggggcc", NULL, KV_BF16, 300, 0, true, TOGETHER, false, 32, false, 0},
        {QWEN2, "gsgcsgcg", "gsgssgsg", KV_F32, 200, 4, false, TOGETHER | GREEDY, false, 0, false, 0},
        {LLAMA, "gggggggg", NULL, KV_F16, 1000, 1, false, TOGETHER | ALONE, false, 256, false,
         0}, /* reads all over the link */
        /* sinks, which count once, and windows, within which the CPU may have nothing */
        {GPTOSS, "gcgcgggg", NULL, KV_F16, 100, 4, false, TOGETHER | ALONE, false, 0, false, 0},
        /* windows that hide nothing: the GPU reads them alone, or shares them */
        {QWEN2, "gggcgsgg", NULL, KV_F16, 100, 4, false, TOGETHER, false, 0, true, CONTEXT},
        {QWEN2, "gsgggcgg", NULL, KV_BF16, 100, 4, false, TOGETHER, false, 32, true, 0},
        /* chunks append in the arena: rows that decode beside them keep their places, layers that are the
         * CPU's as ever */
        {QWEN3, "gggggggg", NULL, KV_Q8_0, 100, 2, false, ALONE | TOGETHER, true, 64, false, 0},
        {QWEN2, "gsgcsgcg", "gsgssgsg", KV_F32, 200, 4, false, TOGETHER | GREEDY, true, 0, false, 0},
        {GPTOSS, "gcgcgggg", NULL, KV_F16, 1000, 4, true, TOGETHER | ALONE, true, 0, false, 0},
        /* windows in rings, which have no second tier: of the GPU's layers, and of the CPU's, borrowed by
         * chunks */
        {GPTOSS, "gcgcgggg", NULL, KV_F16, 100, 4, false, TOGETHER | ALONE, false, 0, false, 0, true},
        {GPTOSS, "cgggccgg", "sgggssgg", KV_F32, 200, 4, false, TOGETHER | ALONE, false, 0, false, 0, true},
        {GPTOSS, "gcgcgggg", NULL, KV_F32, 1000, 4, true, TOGETHER | ALONE, true, 0, false, 0, true},
        /* whose cells have another size than pages': heads of 256 and 512; of 32 and 64 */
        {GEMMA4MOE, "gggggggg", NULL, KV_F16, 100, 4, false, TOGETHER | ALONE, false, 0, false, 0, true},
        {GEMMA4, "cgggccgg", "sgggssgg", KV_F32, 200, 4, false, TOGETHER | ALONE, false, 0, false, 0, true},
    };
    for (size_t i = FEW_CASES && !rings; i < (FEW_CASES && !rings ? 2 : sizeof cases / sizeof *cases); i++) {
        if (cases[i].rings != rings) continue;
        struct golden *golden = calloc(1, sizeof *golden);
        golden_read(cases[i].model, golden);
        const uint32_t host_chunks = run_tiers(&cases[i], golden);
        assert_true(host_chunks || cases[i].rings || strcmp(cases[i].model, GPTOSS) == 0);
        golden_free(golden);
        free(golden);
    }
}

static void cases_agree(void **state)
{
    (void)state;
    agree(false);
}

static void windows_in_rings_agree(void **state)
{
    (void)state;
    agree(true);
}

/* Steps that are rung after others: with room for all in VRAM they are launched so, too, and fill pages on
 * their way; tokens are those of steps rung one at a time. */
static void steps_follow(void **state)
{
    (void)state;
    need_device();
    static const struct tier_case c = {QWEN3, "gggggggg", NULL,  KV_F16, 1000,  0,
                                       false, 0,          false, 0,      false, 0};
    static const struct course courses[] = {{.rows = 1, .queued = true},
                                            {.rows = 3, .queued = true},
                                            {.rows = 2, .queued = true, .sampled = true},
                                            {.rows = 3, .queued = true, .other_at = 8, .both_at = 12}};
    struct pair *pair = calloc(1, sizeof *pair);
    open_tiers(&c, CASES_MAX * ((CONTEXT - 1) / PAGE_TOKENS + 1), pair);
    const struct arena *arena = &pair->arena;
    for (uint32_t s = 0; s < CASES_MAX; s++)
        for (uint32_t i = 0; i < arena_header_of(arena)->pages_per_slot; i++)
            arena_vram_table_of(arena, s)[i] = arena_page_table_of(arena, s)[i] ^ 1;
    const struct gpu_engine *g = (const struct gpu_engine *)pair->server[PAIR_GPU].engine;
    for (size_t i = 0; i < sizeof courses / sizeof *courses; i++) {
        static uint32_t tokens[2][COURSE_SLOTS][COURSE_TOKENS];
        struct course plain = courses[i];
        plain.queued = false;
        memset(tokens, 0, sizeof tokens);
        run_course(pair, &plain, tokens[0]);
        memset(arena_region_ptr(arena, ARENA_REGION_KV), 0xff,
               arena_header_of(arena)->region[ARENA_REGION_KV].bytes);
        const uint64_t launched = g->follow.launched;
        run_course(pair, &courses[i], tokens[1]);
        assert_memory_equal(tokens[0], tokens[1], sizeof tokens[0]);
        assert_true(courses[i].sampled || g->follow.launched > launched);
        for (uint32_t r = 0; r < courses[i].rows && strcmp(device_name(), "emulated") == 0; r++) {
            struct tier_run run = {.pair = pair, .looks = true};
            const struct step_row row = {.slot = r, .count = COURSE_PROMPT + r + COURSE_TOKENS - 1};
            tier_check_row(&run, &row);
            assert_true(run.stored > 1);
        }
    }
    pair_close(pair);
    free(pair);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(steps_follow),
        cmocka_unit_test(cases_agree),
        cmocka_unit_test(windows_in_rings_agree),
    };
    if (getenv("HELM_TEST_FILTER")) cmocka_set_test_filter(getenv("HELM_TEST_FILTER"));
    return cmocka_run_group_tests_name("golden/tiers", tests, NULL, NULL);
}
