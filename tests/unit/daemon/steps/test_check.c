/* Unit tests of daemon/steps/check.c with a worker whose logits are known: what is rung, what is compared, when it ends. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <string.h>

#include "common/shared/arena.h"
#include "daemon/steps/check.h"

enum { VOCAB = 64, PAGE = 32 };

struct stage {
    struct arena arena;
    struct model_config model;
    struct check check;
    uint32_t workers, steps, positions[2]; /* of steps of one row, of several: rounded rows */
    float off;                             /* by how much a rounded row's first logit is off */
    uint32_t exact_of[CHECK_SEQUENCES][2]; /* page of a sequence's exact and rounded rows, + 1; 0: not seen */
};

static int open_tiers(struct stage *s, uint32_t slots, uint32_t pages, uint32_t places, int32_t bos,
                      struct helm_err *err)
{
    const struct arena_spec spec = {
        .slots = slots,
        .context_tokens = 256,
        .step_tokens = 64,
        .hidden = 16,
        .vocab = VOCAB,
        .kv = {.layers = 1, .kv_heads = 1, .head_dim = 8, .page_tokens = PAGE, .dtype = DTYPE_F16},
        .page_count = pages,
        .vram_page_count = places,
        .kv_heads_asking = places ? 1 : 0};
    memset(s, 0, sizeof *s);
    s->workers = 2;
    s->model.vocab = VOCAB;
    s->model.bos = bos;
    if (arena_create(&spec, &s->arena, err)) fail_msg("%s", err->text);
    arena_header_of(&s->arena)->epoch = 3;
    return check_open(&s->arena, &s->model, s->workers, arena_header_of(&s->arena)->step_tokens, &s->check,
                      err);
}

static int open_with(struct stage *s, uint32_t slots, uint32_t pages, int32_t bos, struct helm_err *err)
{
    return open_tiers(s, slots, pages, 0, bos, err);
}

static void stage_open(struct stage *s, uint32_t slots, uint32_t pages, int32_t bos)
{
    struct helm_err err = {0};
    if (open_with(s, slots, pages, bos, &err)) fail_msg("%s", err.text);
}

static void stage_close(struct stage *s)
{
    check_close(&s->check);
    arena_close(&s->arena);
}

/* A row's logits follow from its last token and position alone, so both ways see the same but for `off`. */
static void write_row(struct stage *s, uint32_t row, uint32_t token, uint32_t position, bool rounded)
{
    float *logits = arena_logits_of(&s->arena, row);
    for (uint32_t i = 0; i < VOCAB; i++) logits[i] = (float)((token * 7 + position * 3 + i * i) % 11);
    if (rounded) logits[0] += s->off;
}

/* The worker's part of the step that is in flight; tokens count up. */
static void answer(struct stage *s)
{
    struct arena_control *control = arena_control_of(&s->arena);
    const uint32_t serial = doorbell_read(&control->step_bell);
    const struct step *step = &control->step[serial % ARENA_STEP_RING];
    struct step_result *result = &control->result[serial % ARENA_STEP_RING];
    const bool rounded = !(step->flags & STEP_EXACT);
    assert_int_equal(step->serial, serial);
    assert_int_equal(step->epoch, 3);
    assert_int_equal(step->token_count, step->row_count);
    *result = (struct step_result){.serial = serial, .epoch = 3, .row_count = step->row_count};
    for (uint32_t r = 0; r < step->row_count; r++) {
        const struct step_row *row = &step->row[r];
        const uint32_t *history = arena_history_of(&s->arena, row->slot);
        const struct arena_slot *slot = arena_slot_of(&s->arena, row->slot);
        const uint32_t sequence = (uint32_t)slot->sampling.seed - 1;
        assert_int_equal(row->flags, STEP_ROW_SAMPLE);
        assert_int_equal(row->count, 1);
        assert_true(slot->sampling.temperature == 1 && slot->sampling.top_k == 0);
        assert_true(sequence < CHECK_SEQUENCES && history[row->start] < VOCAB);
        uint32_t *page = &s->exact_of[sequence][rounded];
        const uint32_t first = arena_page_table_of(&s->arena, row->slot)[0] + 1;
        assert_true(first <= arena_header_of(&s->arena)->page_count);
        const uint32_t places = arena_header_of(&s->arena)->vram_page_count;
        if (places) assert_true(arena_vram_table_of(&s->arena, row->slot)[0] == first - 1 && first <= places);
        if (*page) assert_int_equal(*page, first);
        *page = first;
        write_row(s, r, history[row->start], row->start, rounded);
        result->row[r] = (struct step_result_row){.slot = row->slot,
                                                  .sampled = {.token = (history[row->start] + 1) % VOCAB}};
        if (rounded) s->positions[step->row_count > 1]++;
    }
    for (uint32_t w = 0; w < s->workers; w++) doorbell_ring(&control->done[w].bell, serial);
    s->steps++;
}

/* To its end, each step taking so long. */
static void run(struct stage *s, uint64_t step_us, struct verdict *verdict)
{
    uint64_t now_us = 1000;
    bool done = false;
    struct helm_err err = {0};
    check_begin(&s->check, now_us);
    while (!done) {
        assert_int_equal(check_take(&s->check, now_us, &done, &err), 0); /* no worker has answered */
        assert_false(done);
        answer(s);
        now_us += step_us;
        if (check_take(&s->check, now_us, &done, &err)) fail_msg("%s", err.text);
    }
    assert_false(s->check.running);
    check_found(&s->check, 9, verdict);
    assert_int_equal(verdict->units, 9);
    assert_int_equal(verdict->positions,
                     s->positions[0] + s->positions[1] - (s->check.first - 1) * s->check.sequences);
}

/* What a row's divergence is where its first logit is off. */
static void every_sequence_has_pages_of_its_own_both_ways(void **state)
{
    (void)state;
    struct stage s;
    struct verdict verdict;
    stage_open(&s, 16, 128, -1);
    run(&s, 1000, &verdict);
    assert_int_equal(verdict.positions, CHECK_SEQUENCES * CHECK_POSITIONS);
    assert_int_equal(verdict.one_positions, CHECK_ALONE * CHECK_POSITIONS);
    assert_int_equal(s.steps, 2 * CHECK_POSITIONS * (CHECK_ALONE + 1));
    assert_true(verdict.one_token == 0 && verdict.tokens == 0);
    for (int a = 0; a < 2 * CHECK_SEQUENCES; a++) {
        assert_true(s.exact_of[a / 2][a % 2] > 0);
        for (int b = 0; b < a; b++) assert_int_not_equal(s.exact_of[a / 2][a % 2], s.exact_of[b / 2][b % 2]);
    }
    stage_close(&s);
}

static void what_is_off_is_found(void **state)
{
    (void)state;
    struct stage s;
    struct verdict verdict, worse;
    stage_open(&s, 16, 128, -1);
    s.off = 0.1f;
    run(&s, 1000, &verdict);
    assert_true(verdict.one_token > 0 && verdict.tokens > 0 && verdict.tokens < 0.01);
    s.off = 3;
    memset(s.positions, 0, sizeof s.positions);
    run(&s, 1000, &worse);
    assert_true(worse.one_token > verdict.one_token && worse.tokens > verdict.tokens);
    s.off = NAN;
    memset(s.positions, 0, sizeof s.positions);
    run(&s, 1000, &worse);
    assert_true(worse.one_token == VERDICT_KL_HUGE && worse.tokens == VERDICT_KL_HUGE);
    stage_close(&s);
}

/* The token of the beginning is the same for all, so what comes after it says nothing: one position more is computed. */
static void sequences_begin_with_bos(void **state)
{
    (void)state;
    struct stage s;
    struct verdict verdict;
    stage_open(&s, 16, 128, 5);
    check_begin(&s.check, 0);
    for (uint32_t i = 0; i < s.check.sequences; i++) {
        assert_int_equal(s.check.sequence[i].token[0], 5);
        assert_in_range(s.check.sequence[i].token[1], i * VOCAB / 16, (i + 1) * VOCAB / 16 - 1);
    }
    run(&s, 1000, &verdict);
    assert_int_equal(verdict.positions, CHECK_SEQUENCES * CHECK_POSITIONS);
    stage_close(&s);
}

static void few_slots_are_taken_in_turns(void **state)
{
    (void)state;
    struct stage s;
    struct verdict verdict;
    stage_open(&s, 1, 32, -1); /* every step is of one row */
    run(&s, 1000, &verdict);
    assert_int_equal(verdict.one_positions, CHECK_SEQUENCES * CHECK_POSITIONS);
    assert_int_equal(verdict.positions, verdict.one_positions);
    stage_close(&s);
    stage_open(&s, 4, 32, -1);
    run(&s, 1000, &verdict);
    assert_int_equal(verdict.positions, CHECK_SEQUENCES * CHECK_POSITIONS);
    stage_close(&s);
}

static void it_ends_in_time_but_not_before_it_says_enough(void **state)
{
    (void)state;
    struct stage s;
    struct verdict verdict;
    stage_open(&s, 16, 128, -1);
    run(&s, CHECK_US, &verdict);
    assert_int_equal(verdict.positions, VERDICT_LEAST);
    stage_close(&s);
    stage_open(&s, 16, 128, -1);
    run(&s, CHECK_US / 100, &verdict); /* 6 steps a position */
    assert_int_equal(verdict.positions, 17 * CHECK_SEQUENCES);
    stage_close(&s);
}

static void a_small_cache_is_refused(void **state)
{
    (void)state;
    struct stage s;
    struct helm_err err = {0};
    struct verdict verdict;
    assert_int_equal(open_with(&s, 2, 7, -1, &err), HELM_E_CAPACITY);
    assert_non_null(strstr(err.text, "7 pages of 32 tokens"));
    stage_close(&s);
    stage_open(&s, 2, 8, -1); /* four sequences */
    run(&s, 1000, &verdict);
    assert_int_equal(verdict.positions, VERDICT_LEAST);
    stage_close(&s);
}

/* With two tiers no page of a check ever leaves VRAM: there are as many as it has room for. */
static void it_keeps_to_the_places_in_vram(void **state)
{
    (void)state;
    struct stage s;
    struct helm_err err = {0};
    struct verdict verdict;
    assert_int_equal(open_tiers(&s, 2, 128, 7, -1, &err), HELM_E_CAPACITY);
    stage_close(&s);
    assert_int_equal(open_tiers(&s, 2, 128, 8, -1, &err), 0); /* four sequences */
    run(&s, 1000, &verdict);
    assert_int_equal(verdict.positions, VERDICT_LEAST);
    stage_close(&s);
}

static void it_begins_anew_after_a_loss(void **state)
{
    (void)state;
    struct stage s;
    struct verdict verdict;
    bool done;
    struct helm_err err = {0};
    stage_open(&s, 16, 128, -1);
    check_begin(&s.check, 0);
    for (int i = 0; i < 5; i++) {
        answer(&s);
        assert_int_equal(check_take(&s.check, 1, &done, &err), 0);
    }
    check_lost(&s.check);
    assert_int_equal(check_take(&s.check, 1, &done, &err), 0);
    assert_false(done);
    memset(s.positions, 0, sizeof s.positions);
    doorbell_init(&arena_control_of(&s.arena)->step_bell, 0);
    for (uint32_t w = 0; w < s.workers; w++) doorbell_init(&arena_control_of(&s.arena)->done[w].bell, 0);
    run(&s, 1000, &verdict);
    assert_int_equal(verdict.positions, CHECK_SEQUENCES * CHECK_POSITIONS);
    stage_close(&s);
}

static void answers_that_break_the_protocol(void **state)
{
    (void)state;
    for (int kind = 0; kind < 4; kind++) {
        struct stage s;
        struct helm_err err = {0};
        bool done;
        stage_open(&s, 16, 128, -1);
        check_begin(&s.check, 0);
        answer(&s);
        struct step_result *result = &arena_control_of(&s.arena)->result[1];
        if (kind == 0) result->serial = 7;
        if (kind == 1) result->row_count = 2;
        if (kind == 2) result->row[0].status = STEP_ROW_BAD;
        if (kind == 3) result->row[0].sampled.token = VOCAB;
        assert_int_equal(check_take(&s.check, 1, &done, &err), HELM_E_PEER);
        assert_false(done);
        stage_close(&s);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_sequence_has_pages_of_its_own_both_ways),
        cmocka_unit_test(what_is_off_is_found),
        cmocka_unit_test(sequences_begin_with_bos),
        cmocka_unit_test(few_slots_are_taken_in_turns),
        cmocka_unit_test(it_ends_in_time_but_not_before_it_says_enough),
        cmocka_unit_test(a_small_cache_is_refused),
        cmocka_unit_test(it_keeps_to_the_places_in_vram),
        cmocka_unit_test(it_begins_anew_after_a_loss),
        cmocka_unit_test(answers_that_break_the_protocol),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
