/* Running a golden model's cases through one engine or a pair and comparing what comes out. For the golden
 * tests, each of which includes it once. Everything asserts; owns nothing. */
#pragma once

#include <math.h>

#include "common/shared/arena.h"
#include "tests/golden/golden.h"

/* Tolerances of the README: by whether activations and cache stay fp32, or are rounded to 16 bits. And of a
 * quantised cache: on these models q8_0 moves logprobs by at most 0.33 (mean 0.060) with fp32 activations,
 * and by at most 0.41 (0.057) where activations are rounded too. */
struct tolerance {
    const char *name;
    double worst, mean, gap;
};
static const struct tolerance rounded = {"bf16", 0.4, 0.08, 0.4}, quantised = {"q8_0", 0.55, 0.08, 0.55};
static inline const struct tolerance *tolerance_of_cache(enum kv_dtype dtype)
{
    return dtype == KV_Q8_0 ? &quantised : &rounded;
}

/* The engines that run the steps. */
struct walker {
    const struct arena *arena;
    void *engines;
    int (*step)(void *engines, const struct step_row *rows, uint32_t count, const struct step_result **result,
                struct helm_err *err);
    double gap_allowed; /* between the reference's two best: another token is permitted up to it */
    /* Experts: where two candidates were closer than this, other ones may have been taken. Then a difference
     * beyond `worst` ends the case. 0: never. */
    double margin, worst;
};

struct outcome {
    double worst, sum;
    uint64_t count, digest;
    uint32_t permitted, wrong, near; /* near: cases that ended by another choice of experts */
};
/* Digests are the caller's to compare. */
static inline void outcome_add(struct outcome *all, const struct outcome *one)
{
    if (one->worst > all->worst) all->worst = one->worst;
    all->sum += one->sum;
    all->count += one->count;
    all->permitted += one->permitted;
    all->wrong += one->wrong;
    all->near += one->near;
}

/* One sequence on its way through a case. */
struct walk {
    const struct golden_case *golden;
    uint32_t slot, done, length, step;
    bool ended;
};

static uint64_t digest_add(uint64_t digest, const void *data, size_t bytes)
{
    const unsigned char *at = data;
    for (size_t i = 0; i < bytes; i++) digest = (digest ^ at[i]) * UINT64_C(0x100000001b3);
    return digest;
}

/* Whether a step with a near choice of experts is further from the reference than the same experts would
 * be. */
static bool chose_otherwise(const struct walker *on, const struct golden_step *step,
                            const struct step_result_row *row, const float *logits)
{
    const uint32_t vocab = arena_header_of(on->arena)->vocab;
    double most = -INFINITY, sum = 0;
    if (row->sampled.token != step->token && step->gap > on->gap_allowed) return true;
    if (!logits) return false;
    for (uint32_t i = 0; i < vocab; i++) most = logits[i] > most ? logits[i] : most;
    for (uint32_t i = 0; i < vocab; i++) sum += exp(logits[i] - most);
    for (uint32_t k = 0; k < TOP; k++)
        if (fabs(logits[step->top_token[k]] - most - log(sum) - step->top_logprob[k]) > on->worst)
            return true;
    return false;
}

static void walk_compare(const struct walker *on, struct walk *walk, const struct step_result_row *row,
                         const float *logits, struct outcome *outcome)
{
    const uint32_t vocab = arena_header_of(on->arena)->vocab;
    const struct golden_step *step = &walk->golden->step[walk->step];
    double most = -INFINITY, sum = 0;
    assert_int_equal(row->status, STEP_ROW_OK);
    if (step->margin < on->margin && chose_otherwise(on, step, row, logits)) {
        outcome->near++;
        walk->ended = true;
        return;
    }
    if (logits) {
        for (uint32_t i = 0; i < vocab; i++) most = logits[i] > most ? logits[i] : most;
        for (uint32_t i = 0; i < vocab; i++) sum += exp(logits[i] - most);
        double norm = most + log(sum);
        for (uint32_t k = 0; k < TOP; k++) {
            double difference = fabs(logits[step->top_token[k]] - norm - step->top_logprob[k]);
            if (!(difference <= outcome->worst)) outcome->worst = difference;
            outcome->sum += difference;
            outcome->count++;
        }
        assert_true(fabs(row->sampled.logprob - (logits[row->sampled.token] - norm)) < 1e-3);
        outcome->digest = digest_add(outcome->digest, logits, vocab * sizeof *logits);
    }
    outcome->digest = digest_add(outcome->digest, &row->sampled.token, sizeof row->sampled.token);
    walk->done = walk->length;
    if (row->sampled.token != step->token) {
        if (step->gap > on->gap_allowed)
            outcome->wrong++;
        else
            outcome->permitted++;
        walk->ended = true;
        return;
    }
    arena_history_of(on->arena, walk->slot)[walk->length++] = step->token;
    walk->ended = ++walk->step == walk->golden->step_count;
}

/* Runs the walks to their ends, all of them in each step; prefill chunks take their sizes from a repeating
 * pattern, 0 means as much as fits. */
static void run_walks(const struct walker *on, struct walk *walks, uint32_t count, const uint32_t *pattern,
                      uint32_t pattern_count, struct outcome *outcome)
{
    const uint32_t vocab = arena_header_of(on->arena)->vocab;
    struct helm_err err = {0};
    uint32_t turn = 0;
    for (;;) {
        struct step_row rows[CASES_MAX];
        struct walk *of[CASES_MAX];
        uint32_t row_count = 0, budget = arena_header_of(on->arena)->step_tokens, sampled = 0;
        for (uint32_t i = 0; i < count; i++) {
            struct walk *w = &walks[i];
            uint32_t left = w->length - w->done, chunk = pattern[turn++ % pattern_count];
            if (w->ended || !budget) continue;
            if (!chunk || chunk > left) chunk = left;
            if (chunk > budget) chunk = budget;
            budget -= chunk;
            of[row_count] = w;
            rows[row_count++] = (struct step_row){.slot = w->slot,
                                                  .start = w->done,
                                                  .count = chunk,
                                                  .flags = chunk == left ? STEP_ROW_SAMPLE : 0};
        }
        if (!row_count) break;
        const struct step_result *result;
        int rc = on->step(on->engines, rows, row_count, &result, &err);
        if (rc) fail_msg("%s", err.text);
        assert_int_equal(result->row_count, row_count);
        for (uint32_t i = 0; i < row_count; i++) {
            assert_int_equal(result->row[i].slot, rows[i].slot);
            if (!(rows[i].flags & STEP_ROW_SAMPLE)) {
                of[i]->done += rows[i].count;
                continue;
            }
            bool listed = arena_slot_of(on->arena, rows[i].slot)->sampling.logprobs > 0;
            const float *logits =
                (const float *)arena_region_ptr(on->arena, ARENA_REGION_LOGITS) + (size_t)vocab * sampled++;
            walk_compare(on, of[i], &result->row[i], listed ? logits : NULL, outcome);
        }
    }
}

static void walk_start(const struct walker *on, struct walk *walk, const struct golden_case *golden,
                       uint32_t slot, uint32_t logprobs)
{
    *walk = (struct walk){.golden = golden, .slot = slot, .length = golden->prompt_count};
    memcpy(arena_history_of(on->arena, slot), golden->prompt, golden->prompt_count * sizeof(uint32_t));
    struct arena_slot *s = arena_slot_of(on->arena, slot);
    s->prompt_count = golden->prompt_count;
    s->sampling.logprobs = logprobs;
}
