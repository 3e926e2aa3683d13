/* Unit tests of daemon/steps/draft_count.c: answers of which each draft is right with a given probability are
 * simulated at several prices. The chosen numbers must be as fast as the best fixed number, and must cost
 * next to nothing if no draft is right. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/planner/report/explain.h"
#include "daemon/steps/draft_count.h"

#define MOST    ENGINE_DRAFTS_MAX
#define ANSWERS 6

struct curve {
    const char *name;
    double first, each; /* of a step: seconds of its first token, and of each further one */
    double jump;        /* of its second token in addition: other kernels */
    uint32_t free;      /* tokens that cost as much as one */
};
static const struct curve curves[] = {
    {"flat: weights over a link", 1, 0.002, 0, 1},
    {"weights over a link and some computing", 1, 0.064, 0, 1},
    {"free up to 4 tokens, then bound by computing", 1, 0.25, 0, 4},
    {"other kernels from 2 tokens on", 1, 0.05, 0.3, 1},
    {"half of it by computing", 1, 0.5, 0, 1},
    {"linear: bound by computing", 1, 1, 0, 1},
};

static void prices_of(const struct curve *c, double seconds[ENGINE_FEW_TOKENS + 1])
{
    seconds[0] = 0;
    for (uint32_t n = 1; n <= ENGINE_FEW_TOKENS; n++)
        seconds[n] = c->first + (n > c->free ? (n - c->free) * c->each + c->jump : 0);
}

static double uniform(uint64_t *random)
{
    *random = *random * 6364136223846793005u + 1442695040888963407u;
    return (double)(*random >> 11) / 9007199254740992.0;
}

/* An answer. `fixed`: that many drafts in each step; below 0: as chosen. None of the tokens [from, to) is
 * drafted right. `made`: by the model's own layer, one step ahead, in these seconds. */
struct answer {
    uint32_t tokens, from, to;
    double right, copy;
    int fixed;
    bool made;
    double first, further;
};

/* Seconds of the answer. With `copy`, drafts that were right in front of a wrong one are computed again in
 * the next step. */
static double answer_seconds(const struct answer *a, const double *seconds, uint64_t *random)
{
    struct draft_rate rate;
    uint32_t made = 1, again = 0;
    double spent = 0;
    draft_rate_begin(&rate);
    while (made < a->tokens) {
        const uint32_t room = MOST - again;
        struct draft_row row = {.right = draft_rate_right(&rate), .most = MOST};
        const struct draft_step step = {
            .rows = 1, .tokens = 1 + again, .room = room, .seconds = seconds, .copy = a->copy};
        if (a->fixed >= 0)
            row.drafts = (uint32_t)a->fixed < room ? (uint32_t)a->fixed : room;
        else
            draft_count_choose(&step, 0, &row, 1);
        const uint32_t look =
            row.drafts ? row.drafts : 1; /* without drafts, the first is compared all the same */
        uint32_t kept = 0;
        while (kept < look && uniform(random) < a->right && !(made + kept >= a->from && made + kept < a->to))
            kept++;
        draft_rate_take(&rate, look, kept);
        spent += seconds[1 + again + row.drafts];
        if (row.drafts) spent += (kept < row.drafts ? 2 : 1) * a->copy;
        again = a->copy > 0 && row.drafts && kept < row.drafts ? kept : 0;
        made += 1 + (row.drafts ? kept : 0);
    }
    return spent * (a->tokens - 1) / (made - 1);
}

/* How many drafts a step makes for the next one. */
static uint32_t drafts_asked(const struct answer *a, const double *seconds, const struct draft_rate *rate,
                             struct draft_probe *probe)
{
    struct draft_row row = {.right = draft_rate_right(rate), .most = MOST, .made = true};
    const struct draft_step step = {
        .rows = 1, .tokens = 1, .room = MOST, .seconds = seconds, .first = a->first, .further = a->further};
    if (a->fixed >= 0) return (uint32_t)a->fixed;
    if (draft_count_choose(&step, 0, &row, 1) < DRAFT_GAIN_LEAST)
        (void)draft_probe_choose(probe, &step, &row, 1);
    return row.drafts;
}

/* The same of an answer whose drafts are made: while there are none, the layer is not watched. */
static double made_seconds(const struct answer *a, const double *seconds, struct draft_rate *all,
                           uint64_t *random)
{
    struct draft_rate rate;
    struct draft_probe probe = {0};
    uint32_t made = 1, drafts = 0;
    double spent = 0;
    draft_rate_begin_made(&rate, all);
    while (made < a->tokens) {
        uint32_t kept = 0;
        while (kept < drafts && uniform(random) < a->right) kept++;
        if (drafts) draft_rate_take(&rate, drafts, kept);
        if (drafts) draft_rate_take(all, drafts, kept);
        const uint32_t next = drafts_asked(a, seconds, &rate, &probe);
        const double step = seconds[1 + drafts] + (next ? a->first + (next - 1) * a->further : 0);
        draft_probe_save(&probe, step);
        spent += step;
        made += 1 + kept;
        drafts = next;
    }
    return spent * (a->tokens - 1) / (made - 1);
}

static double mean_seconds(const struct answer *a, const double *seconds)
{
    uint64_t random = 7;
    double sum = 0;
    struct draft_rate all;
    draft_rate_begin_made(&all, NULL);
    for (int i = 0; i < ANSWERS; i++)
        sum += a->made ? made_seconds(a, seconds, &all, &random) : answer_seconds(a, seconds, &random);
    return sum / ANSWERS;
}

static double best_fixed(struct answer a, const double *seconds, int *best)
{
    double least = INFINITY;
    for (a.fixed = 0; a.fixed <= MOST; a.fixed++) {
        const double now = mean_seconds(&a, seconds);
        if (now >= least) continue;
        least = now;
        *best = a.fixed;
    }
    return least;
}

/* Compares the chosen numbers with the best fixed one. HELM_TEST_PRINT: prints both. */
static void check_answers(const struct curve *c, const struct answer *a, double within)
{
    double seconds[ENGINE_FEW_TOKENS + 1];
    int best = 0;
    prices_of(c, seconds);
    const double fixed = best_fixed(*a, seconds, &best), chosen = mean_seconds(a, seconds);
    if (getenv("HELM_TEST_PRINT"))
        print_message(
            "%s, copy %g: right %g, %u tokens: %d drafts take %.3f, chosen ones %.3f of the seconds\n",
            c->name, a->copy, a->right, a->tokens, best, fixed / (a->tokens - 1), chosen / fixed);
    if (chosen > within * fixed)
        fail_msg("%s: right with probability %g: %g s, with %d drafts %g s", c->name, a->right, chosen, best,
                 fixed);
}

static void chosen_numbers_are_as_fast_as_the_best_one(void **state)
{
    (void)state;
    static const double rights[] = {0, 0.5, 0.8, 1};
    for (size_t i = 0; i < sizeof curves / sizeof *curves; i++)
        for (size_t k = 0; k < sizeof rights / sizeof *rights; k++) {
            struct answer a = {.tokens = 2000, .right = rights[k], .fixed = -1};
            check_answers(&curves[i], &a, 1.03);
            a.copy = 0.15;
            check_answers(&curves[i], &a, 1.03);
        }
}

/* The layer's drafts cost time of their own: from next to nothing to nearly a step each. */
static void made_numbers_are_as_fast_as_the_best_one(void **state)
{
    (void)state;
    static const double rights[] = {0, 0.5, 0.8, 1}, costs[][2] = {{0.01, 0.03}, {0.05, 0.15}, {0.1, 0.8}};
    for (size_t i = 0; i < sizeof curves / sizeof *curves; i++)
        for (size_t k = 0; k < sizeof rights / sizeof *rights; k++)
            for (size_t c = 0; c < sizeof costs / sizeof *costs; c++) {
                struct answer a = {.tokens = 2000,
                                   .right = rights[k],
                                   .fixed = -1,
                                   .made = true,
                                   .first = costs[c][0],
                                   .further = costs[c][1]};
                check_answers(&curves[i], &a, rights[k] > 0 ? 1.03 : 1.01);
                a.tokens = 200; /* short ones: what all have seen goes on */
                if (rights[k] == 0) check_answers(&curves[i], &a, 1.01);
            }
}

/* The first tokens count, too: an answer of 100 tokens of which none is drafted right takes at most 1 %
 * longer. */
static void wrong_drafts_cost_a_hundredth_at_most(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof curves / sizeof *curves; i++)
        for (int copies = 0; copies < 2; copies++) {
            struct answer a = {.tokens = 100, .copy = 0.15 * copies, .fixed = -1};
            check_answers(&curves[i], &a, 1.01);
        }
}

/* A text that is quoted with an edit: 400 tokens, of which 40 in the middle are new. */
static void a_text_with_an_edit_is_drafted_on_both_sides(void **state)
{
    (void)state;
    struct answer a = {.tokens = 400, .from = 180, .to = 220, .right = 1, .fixed = -1};
    check_answers(&curves[1], &a, 1.03);
    check_answers(&curves[5], &a, 1.01);
}

static void several_sequences_share_a_step_by_what_they_keep(void **state)
{
    (void)state;
    double seconds[ENGINE_FEW_TOKENS + 1];
    prices_of(&curves[0], seconds);
    struct draft_row row[4] = {{.right = 0.9, .most = 15},
                               {.right = 0.1, .most = 15},
                               {.right = 1, .most = 3},
                               {.right = 0.9, .most = 15}};
    struct draft_step step = {.rows = 4, .tokens = 4, .room = 12, .seconds = seconds};
    const double gain = draft_count_choose(&step, 0, row, 4);
    assert_int_equal(row[2].drafts, 3); /* all that it may have */
    assert_int_equal(row[0].drafts + row[3].drafts, 9);
    assert_int_equal(row[1].drafts, 0);
    assert_true(gain > 2.5);
    assert_float_equal(gain, draft_count_gain(&step, row, 4), 1e-12);

    /* the more sequences, the fewer drafts, where more tokens take longer */
    uint32_t before = UINT32_MAX;
    prices_of(&curves[2], seconds);
    for (uint32_t rows = 1; rows <= 4; rows++) {
        step = (struct draft_step){.rows = rows, .tokens = rows, .room = 16 - rows, .seconds = seconds};
        for (uint32_t i = 0; i < rows; i++) row[i] = (struct draft_row){.right = 0.8, .most = 15};
        draft_count_choose(&step, 0, row, rows);
        uint32_t most = 0;
        for (uint32_t i = 0; i < rows; i++) most = row[i].drafts > most ? row[i].drafts : most;
        assert_true(most <= before);
        before = most;
    }
    assert_int_equal(before, 0);

    /* no room, none that may have drafts */
    step.room = 0;
    draft_count_choose(&step, 0, row, 4);
    assert_int_equal(row[0].drafts, 0);
    assert_float_equal(draft_count_choose(&step, 0, NULL, 0), 1, 0);
}

static void probes_keep_within_their_part_of_the_time(void **state)
{
    (void)state;
    static const double rights[] = {0, 0.05, 0.2, 0.8};
    double seconds[ENGINE_FEW_TOKENS + 1];
    prices_of(&curves[5], seconds);
    const struct draft_step step = {.rows = 1, .tokens = 1, .room = MOST, .seconds = seconds};
    for (size_t k = 0; k < sizeof rights / sizeof *rights; k++) {
        struct draft_probe probe = {0};
        double spent = 0, made = 0;
        uint32_t probes = 0;
        for (int i = 0; i < 5000; i++) {
            struct draft_row row = {.right = rights[k], .most = MOST};
            draft_count_choose(&step, 0, &row, 1);
            assert_int_equal(row.drafts, 0);
            probes += draft_probe_choose(&probe, &step, &row, 1);
            draft_probe_save(&probe, seconds[1 + row.drafts]);
            spent += seconds[1 + row.drafts];
            double reached = 1;
            made += 1;
            for (uint32_t d = 0; d < row.drafts; d++) made += reached *= row.right;
        }
        assert_true(spent / made <= 1 + 1.01 * DRAFT_PROBE_PART);
        assert_int_equal(probes > 0, rights[k] >= DRAFT_PROBE_KEPT); /* so little is not worth a price */
    }
}

/* helm-plan's table of drafts goes by what decides how many there are, with fixed states and without. */
static void forecasts_count_as_choices_do(void **state)
{
    (void)state;
    static const double rights[] = {0, 0.3, 0.8, 1};
    for (int copies = 0; copies < 2; copies++)
        for (uint32_t batch = 1; batch <= 2; batch++) {
            struct explain x = {.batch = batch, .state_copy_s = copies * 0.2, .draft_steps = 4};
            double seconds[ENGINE_FEW_TOKENS + 1];
            for (uint32_t n = 0; n <= ENGINE_FEW_TOKENS; n++) seconds[n] = 1 + 0.1 * n;
            for (uint32_t d = 0; d < x.draft_steps; d++) x.draft_step_s[d] = seconds[batch * (1 + d)];
            const struct draft_step step = {
                .rows = batch, .tokens = batch, .room = MOST, .seconds = seconds, .copy = x.state_copy_s};
            for (size_t k = 0; k < sizeof rights / sizeof *rights; k++)
                for (uint32_t d = 0; d < x.draft_steps; d++) {
                    struct draft_row row[2];
                    row[0] = row[1] = (struct draft_row){.right = rights[k], .most = MOST, .drafts = d};
                    assert_float_equal(explain_draft_rate(&x, d, rights[k]),
                                       draft_count_gain(&step, row, batch) * batch / seconds[batch], 1e-9);
                }
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(chosen_numbers_are_as_fast_as_the_best_one),
        cmocka_unit_test(made_numbers_are_as_fast_as_the_best_one),
        cmocka_unit_test(wrong_drafts_cost_a_hundredth_at_most),
        cmocka_unit_test(a_text_with_an_edit_is_drafted_on_both_sides),
        cmocka_unit_test(several_sequences_share_a_step_by_what_they_keep),
        cmocka_unit_test(probes_keep_within_their_part_of_the_time),
        cmocka_unit_test(forecasts_count_as_choices_do),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
