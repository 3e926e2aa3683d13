/* Golden walks through both engines (tests/golden/pair.h). For the golden tests of two workers, each of which
 * includes it once. Everything asserts; owns nothing. */
#pragma once

#include "tests/golden/walks.h"
#include "tests/golden/pair.h"

static inline int step_pair(void *pair, const struct step_row *rows, uint32_t count,
                            const struct step_result **result, struct helm_err *err)
{
    return pair_step(pair, rows, count, result, err);
}

static const struct tolerance *pair_tolerance(const struct pair *pair)
{
    return tolerance_of_cache((enum kv_dtype)arena_header_of(&pair->arena)->kv.dtype);
}

enum mode { MODE_ALONE, MODE_TOGETHER, MODE_GREEDY, MODE_COUNT };

/* Cases one by one in odd chunks, the first and every `stride`-th after it; all together; together and greedy
 * without logprobs (the device's argmax). */
static inline void run_mode(struct pair *pair, const struct golden *golden, enum mode mode, uint32_t longest,
                            uint32_t first, uint32_t stride, struct outcome *outcome)
{
    static const uint32_t odd[] = {0, 7, 33, 1, 64, 2, 129, 16, 17}, mixed[] = {13, 0, 5, 40, 1, 200, 3};
    const struct walker on = {.arena = &pair->arena,
                              .engines = pair,
                              .step = step_pair,
                              .gap_allowed = pair_tolerance(pair)->gap,
                              .margin = 0.05,
                              .worst = pair_tolerance(pair)->worst};
    struct walk walks[CASES_MAX];
    uint32_t count = 0;
    for (uint32_t i = 0; i < golden->count; i++) {
        const struct golden_case *c = &golden->cases[i];
        if (c->prompt_count > longest) continue;
        walk_start(&on, &walks[count], c, count, mode == MODE_GREEDY ? 0 : 5);
        count++;
    }
    assert_true(count > 0);
    if (mode != MODE_ALONE) {
        run_walks(&on, walks, count, mixed, sizeof mixed / sizeof *mixed, outcome);
        return;
    }
    for (uint32_t i = first; i < count; i += stride)
        run_walks(&on, &walks[i], 1, odd, sizeof odd / sizeof *odd, outcome);
}
