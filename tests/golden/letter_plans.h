/* Plans written as letters, and golden runs of them through both engines (tests/golden/pair.h): tokens and
 * logprobs against the reference, the same bits in a second run. For test_golden_stream.c, which includes it
 * once. Everything asserts; owns nothing. */
#pragma once

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/device_choice.h"
#include "tests/golden/pair_walks.h"
#include "tests/written_formats.h"
#include "tests/written_plans.h"
#include "worker-gpu/engine.h"

#define CONTEXT   1100
#define UNITS_MAX 16
/* Rings for the golden models: two slices of 16 rows of the widest matrix, `down` with its 704 columns. */
#define RING_TWO  UINT64_C(45056)
#define RING_SOME (300 * KIB)
#define RING_ALL  (16 * MIB)
/* Instrumented kernels are many times slower: short cases and few plans reach every line all the same. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define LONG_CASE 40
#define FEW_PLANS true
#else
#define LONG_CASE UINT32_MAX
#define FEW_PLANS false
#endif

/* Whether plans that are alike run, too. */
static bool all_plans(void)
{
    return !FEW_PLANS && every_case();
}

/* A plan as letters, one a unit: c(pu), g(pu), s(tream). */
struct case_plan {
    const char *decode, *prefill[PLAN_PREFILLS_MAX];
    uint32_t from[PLAN_PREFILLS_MAX];
    uint64_t ring;
    uint32_t step_tokens, context_tokens; /* 0: 256, CONTEXT */
    bool ends_apart, no_graphs;
    bool pack;
    uint32_t pack_gpu; /* units at home in VRAM that lie packed; the head, too */
    bool by_kernels;   /* no chains: they add in another order than the kernels that take slices */
    enum kv_dtype kv_dtype;
    uint64_t copy_bytes_per_s; /* of the emulated device */
};

static void open_pair(const char *folder, const struct case_plan *c, struct pair *pair, uint64_t vram_bytes,
                      int expected)
{
    struct plan_unit unit[UNITS_MAX + 2];
    const size_t units = strlen(c->decode);
    assert_true(units <= UNITS_MAX);
    struct plan plan = {.device[PLAN_GPU0].ring_bytes = c->ring,
                        .layers = (uint32_t)units / 2,
                        .unit = units_of_letters(unit, (uint32_t)units / 2, c->decode, units),
                        .embed = plan_home_processor(home_of_letter(c->decode[0])),
                        .head = plan_home_processor(home_of_letter(c->decode[units - 1]))};
    if (c->ends_apart) {
        plan.embed = plan.embed == PLAN_CPU0 ? PLAN_GPU0 : PLAN_CPU0;
        plan.head = plan.head == PLAN_CPU0 ? PLAN_GPU0 : PLAN_CPU0;
    }
    for (uint32_t p = 0; p < PLAN_PREFILLS_MAX && c->prefill[p]; p++)
        add_letters(&plan, c->from[p], c->prefill[p]);
    bool can[UNITS_MAX], can_cpu[UNITS_MAX];
    struct model model;
    struct helm_err err = {0};
    if (model_read(folder, &model, &err)) fail_msg("%s", err.text);
    placement_packing(&model, can, can_cpu);
    model_free(&model);
    const struct written_formats w = {.link = c->pack,
                                      .vram = c->pack_gpu,
                                      .head = c->pack_gpu && plan.head == PLAN_GPU0,
                                      .can = can,
                                      .can_cpu = can_cpu};
    write_formats(&plan, &w);
    const struct pair_options options = {.folder = folder,
                                         .copy_rows = true,
                                         .plan = &plan,
                                         .device = device_name(),
                                         .kv_dtype = c->kv_dtype,
                                         .threads = 2,
                                         .slots = CASES_MAX,
                                         .context_tokens = c->context_tokens ? c->context_tokens : CONTEXT,
                                         .step_tokens = c->step_tokens ? c->step_tokens : 256,
                                         .vram_bytes = vram_bytes,
                                         .copy_bytes_per_s = c->copy_bytes_per_s,
                                         .peer_wait_ms = 120000,
                                         .no_graphs = c->no_graphs,
                                         .no_chains = c->by_kernels};
    int rc = pair_open(&options, pair, &err);
    if (rc != expected) fail_msg("%s: %s: %d, %s", folder, c->decode, rc, err.text);
    if (rc) print_message("refused: %s\n", err.text);
}

static uint64_t vram_of_device(void)
{
    return strcmp(device_name(), "emulated") == 0 ? 256 * MIB : 4 * GIB;
}

enum {
    ALONE = 1u << MODE_ALONE, /* every second case, from the first on */
    TOGETHER = 1u << MODE_TOGETHER,
    GREEDY = 1u << MODE_GREEDY,
    ODD = 1u << MODE_COUNT, /* alone: from the second on */
    TWICE = ODD << 1,       /* all modes, not the cases together only */
    ONCE = TWICE << 1       /* none: its bits are held to another plan's */
};

/* One decode step is like another: those that enter a second page are enough but for plans that run
 * GREEDY. */
#define FEW_STEPS 24

static int runs_of(unsigned modes, int mode)
{
    if (FEW_PLANS || modes & ONCE) return 1; /* sanitizers look for memory errors, not for bits */
    return mode == MODE_TOGETHER || modes & TWICE ? 2 : 1;
}

/* All modes given, the cases together twice to see the same bits; returns the digest of all that was run. */
static uint64_t run_plan(const char *model, const struct case_plan *c, unsigned modes, uint32_t longest)
{
    char folder[256];
    struct golden *golden = calloc(1, sizeof *golden);
    struct pair *pair = calloc(1, sizeof *pair);
    uint64_t start_us = units_now_us(), digest[2] = {0, 0}, last = 0;
    struct outcome all = {0};
    snprintf(folder, sizeof folder, "%s", model);
    golden_read(model, golden);
    for (uint32_t i = 0; i < golden->count && !(modes & GREEDY); i++)
        if (golden->cases[i].step_count > FEW_STEPS) golden->cases[i].step_count = FEW_STEPS;
    if (longest > LONG_CASE) longest = LONG_CASE;
    struct case_plan run = *c;
    run.context_tokens = golden_context(golden, longest);
    open_pair(folder, &run, pair, vram_of_device(), 0);
    for (int mode = 0; mode < MODE_COUNT; mode++) {
        if (!(modes >> mode & 1)) continue;
        const int runs = runs_of(modes, mode);
        for (int again = 0; again < runs; again++) {
            struct outcome outcome = {0};
            run_mode(pair, golden, (enum mode)mode, longest, !!(modes & ODD), 2, &outcome);
            digest[again] = outcome.digest;
            outcome_add(&all, &outcome);
        }
        assert_true(runs == 1 || digest[0] == digest[1]);
        last = digest_add(last, digest, sizeof *digest);
    }
    for (uint32_t i = 0; i < PLAN_LINKS; i++)
        assert_int_equal(doorbell_read(&arena_lane_of(&pair->arena, i)->bell), 0);
    const struct ledger *vram = &pair->server[PAIR_GPU].engine->report.vram;
    assert_true(vram->total <= vram->limit);
    pair_close(pair);
    free(pair);
    print_message("%-24s %s %s %s ring %llu: mean %.5f worst %.4f, %u permitted differences, %.2f s\n", model,
                  c->decode, c->prefill[0] ? c->prefill[0] : "-", c->prefill[1] ? c->prefill[1] : "-",
                  (unsigned long long)c->ring, all.count ? all.sum / (double)all.count : 0.0, all.worst,
                  all.permitted, (double)(units_now_us() - start_us) * 1e-6);
    assert_int_equal(all.wrong, 0);
    const struct tolerance *allowed = tolerance_of_cache(c->kv_dtype);
    assert_true(all.worst <= allowed->worst);
    if (all.count) assert_true(all.sum / (double)all.count <= allowed->mean);
    golden_free(golden);
    free(golden);
    return last;
}
