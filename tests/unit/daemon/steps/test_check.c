/* Unit tests of daemon/steps/check.c with a worker whose logits are known: what is rung, what is compared,
 * when it ends. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <string.h>

#include "common/shared/arena.h"
#include "daemon/steps/check.h"
#include "tests/written_plans.h"

enum { VOCAB = 64, PAGE = 32 };

struct stage {
    struct arena arena;
    struct model_config model;
    struct kv_pages pool;
    struct snapshots snapshots; /* off, but for one test */
    uint64_t state[2 * CHECK_SEQUENCES +
                   1]; /* of a snapshot: the sequence, the way and the position that it is of */
    struct check check;
    uint32_t workers, steps, positions[2]; /* of steps of one row, of several: rounded rows */
    float off;                             /* by how much a rounded row's first logit is off */
    uint32_t exact_of[CHECK_SEQUENCES][2]; /* page of a sequence's exact and rounded rows, + 1; 0: not seen */
};

static int open_check(struct stage *s, const struct verdict *before, struct helm_err *err)
{
    const struct check_options options = {.arena = &s->arena,
                                          .model = &s->model,
                                          .pool = &s->pool,
                                          .snapshots = &s->snapshots,
                                          .before = before,
                                          .workers = s->workers,
                                          .step_tokens = arena_header_of(&s->arena)->step_tokens};
    return check_open(&options, &s->check, err);
}

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
        .lanes = {0, places ? PLAN_LINKS : 0},
        .vram_page_count = places,
        .kv_heads_asking = places ? 1 : 0};
    memset(s, 0, sizeof *s);
    s->workers = 2;
    s->model.vocab = VOCAB;
    s->model.bos = bos;
    if (arena_create(&spec, &s->arena, err)) fail_msg("%s", err->text);
    arena_header_of(&s->arena)->epoch = 3;
    if (kv_pages_init(&s->pool, pages, PAGE, err)) fail_msg("%s", err->text);
    return open_check(s, NULL, err);
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
    assert_int_equal(s->pool.free_count, s->pool.count); /* no round keeps pages */
    for (uint32_t i = 1; i <= s->snapshots.count; i++) assert_int_equal(s->snapshots.snapshot[i].pins, 0);
    snapshots_free(&s->snapshots);
    kv_pages_free(&s->pool);
    arena_close(&s->arena);
}

/* A row's logits follow from its last token and position alone, so both ways see the same but for `off`. */
static void write_row(struct stage *s, uint32_t row, uint32_t token, uint32_t position, bool rounded)
{
    float *logits = arena_logits_of(&s->arena, row);
    for (uint32_t i = 0; i < VOCAB; i++) logits[i] = (float)((token * 7 + position * 3 + i * i) % 11);
    if (rounded) logits[0] += s->off;
}

/* A row begins with what the one before it of this sequence, computed in this way, has left. */
static void take_state(struct stage *s, const struct step_row *row, uint32_t way)
{
    assert_int_equal(row->left[0].to != STATE_NO_SNAPSHOT, s->snapshots.on);
    assert_int_equal(row->state_from != STATE_NO_SNAPSHOT, s->snapshots.on && row->start > 0);
    if (row->state_from) assert_int_equal(s->state[row->state_from], row->start * 1000 + way);
    if (row->left[0].to) s->state[row->left[0].to] = (row->start + 1) * 1000 + way;
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
        const uint32_t sequence = (uint32_t)slot->sampling.seed - 1 - s->check.seed;
        assert_int_equal(row->flags, STEP_ROW_SAMPLE);
        assert_int_equal(row->count, 1);
        assert_true(slot->sampling.temperature == 1 && slot->sampling.top_k == 0);
        assert_true(history[row->start] < VOCAB);
        uint32_t *page = &s->exact_of[sequence][rounded];
        const uint32_t first = arena_page_table_of(&s->arena, row->slot)[0] + 1;
        assert_true(first <= arena_header_of(&s->arena)->page_count);
        const uint32_t places = arena_header_of(&s->arena)->vram_page_count;
        if (places) assert_true(arena_vram_table_of(&s->arena, row->slot)[0] < places);
        if (*page) assert_int_equal(*page, first);
        *page = first;
        take_state(s, row, 2 * sequence + rounded);
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
    assert_int_equal(check_begin(&s->check, 0, false, now_us), 0);
    while (!done) {
        assert_int_equal(check_take(&s->check, false, now_us, &done, &err), 0); /* no worker has answered */
        assert_false(done);
        answer(s);
        now_us += step_us;
        if (check_take(&s->check, false, now_us, &done, &err)) fail_msg("%s", err.text);
    }
    assert_false(s->check.running);
    check_found(&s->check, 9, verdict);
    assert_int_equal(verdict->units, 9);
    assert_int_equal(verdict->positions, s->positions[0] + s->positions[1] -
                                             (s->check.at ? s->check.first - 1 : 0) * s->check.sequences);
}

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

/* The token of the beginning is the same for all, so what comes after it says nothing: one position more is
 * computed. */
static void sequences_begin_with_bos(void **state)
{
    (void)state;
    struct stage s;
    struct verdict verdict;
    stage_open(&s, 16, 128, 5);
    assert_int_equal(check_begin(&s.check, 0, false, 0), 0);
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

/* 6 steps a position: each of two sequences alone, and the others together. */
static void it_ends_soon_where_it_says_enough_and_in_time_where_it_does_not(void **state)
{
    (void)state;
    struct stage s;
    struct verdict verdict;
    stage_open(&s, 16, 128, -1);
    run(&s, CHECK_SOON_US / 60, &verdict); /* ten positions of each sequence */
    assert_int_equal(verdict.positions, 11 * CHECK_SEQUENCES);
    assert_true(verdict_says_enough(&verdict));
    stage_close(&s);
    stage_open(&s, 16, 128, -1);
    run(&s, CHECK_US / 50, &verdict); /* room for 50 steps: a verdict after 48 */
    assert_int_equal(verdict.positions, VERDICT_LEAST);
    stage_close(&s);
    stage_open(&s, 16, 128, -1);
    run(&s, CHECK_US / 20, &verdict);
    assert_int_equal(verdict.positions, 3 * CHECK_SEQUENCES + 1); /* 20 steps */
    assert_false(verdict_says_enough(&verdict));
    assert_true(verdict_kl(&verdict) == 0);
    stage_close(&s);
}

/* A step of several rows is not begun where there is no time for it and its pair. */
static void its_last_steps_keep_to_the_time(void **state)
{
    (void)state;
    for (uint64_t step_us = CHECK_US / 70; step_us < CHECK_US / 3; step_us += CHECK_US / 211) {
        struct stage s;
        struct helm_err err = {0};
        uint64_t now_us = 1000;
        bool done = false;
        stage_open(&s, 16, 128, -1);
        assert_int_equal(check_begin(&s.check, 0, false, now_us), 0);
        while (!done) {
            now_us += s.check.count > 1 ? step_us : step_us / 10;
            answer(&s);
            assert_int_equal(check_take(&s.check, false, now_us, &done, &err), 0);
        }
        assert_true(now_us - 1000 <= CHECK_US);
        stage_close(&s);
    }
}

/* Between requests: rounds that are interrupted add up, have other sequences, and hold pages only while they
 * run. */
static void rounds_between_requests_add_up(void **state)
{
    (void)state;
    struct stage s;
    struct verdict verdict;
    struct helm_err err = {0};
    uint32_t rounds = 0, serial = 0, page = 0, held = 0, first = 0;
    uint64_t now_us = 1000;
    stage_open(&s, 16, 128, -1);
    run(&s, CHECK_US / 20, &verdict);
    serial = s.check.serial;
    assert_int_equal(kv_pages_grow(&s.pool, &page, &held, 1),
                     0); /* a request's, so that the check's are others */
    while (!verdict_says_enough(&verdict)) {
        const uint32_t before = verdict.positions;
        bool done = false;
        memset(s.exact_of, 0, sizeof s.exact_of);
        first = s.check.sequence[0].token[0];
        assert_int_equal(check_begin(&s.check, serial, true, now_us), 0);
        assert_int_not_equal(s.check.sequence[0].token[0], first);
        for (uint32_t step = 0; !done; step++) {
            assert_int_equal(s.check.serial, ++serial);
            now_us += CHECK_US; /* no time is too long here */
            answer(&s);
            for (int i = 0; i < CHECK_SEQUENCES; i++) assert_int_not_equal(s.exact_of[i][0], page + 1);
            assert_int_equal(check_take(&s.check, step == 20, now_us, &done, &err), 0);
            assert_true(step <= 20);
        }
        check_found(&s.check, 9, &verdict);
        assert_true(verdict.positions > before);
        assert_int_equal(s.pool.free_count, s.pool.count - 1);
        rounds++;
    }
    assert_in_range(rounds, 2, 3);
    assert_in_range(verdict.one_positions, 1, verdict.positions - 1);
    kv_pages_shrink(&s.pool, &page, &held, 0);
    stage_close(&s);
}

static void a_round_waits_for_pages(void **state)
{
    (void)state;
    struct stage s;
    uint32_t page[128], held = 0;
    stage_open(&s, 16, 128, -1);
    assert_int_equal(kv_pages_grow(&s.pool, page, &held, 128), 0);
    assert_int_equal(check_begin(&s.check, 7, true, 0), HELM_E_BUSY);
    assert_false(s.check.running);
    kv_pages_shrink(&s.pool, page, &held, 0);
    stage_close(&s);
}

/* Findings of an interrupted check at the last start count, in the means as well. */
static void it_goes_on_from_an_earlier_start(void **state)
{
    (void)state;
    struct stage s;
    struct helm_err err = {0};
    struct verdict verdict,
        before = {.one_token = 0.5, .tokens = 0.25, .positions = 100, .one_positions = 20, .units = 9};
    stage_open(&s, 16, 128, -1);
    check_close(&s.check);
    assert_int_equal(open_check(&s, &before, &err), 0);
    bool done = false;
    assert_int_equal(check_begin(&s.check, 0, false, 0), 0);
    while (!done) {
        answer(&s);
        assert_int_equal(check_take(&s.check, false, CHECK_SOON_US + 1, &done, &err), 0);
    }
    check_found(&s.check, 9, &verdict);
    assert_int_equal(verdict.positions, 100 + 2 * CHECK_SEQUENCES);
    assert_int_equal(verdict.one_positions, 20 + 2 * CHECK_ALONE);
    assert_true(fabs(verdict.one_token - 0.5 * 20 / 24) < 1e-9);
    assert_true(fabs(verdict.tokens - 0.25 * 80 / 108) < 1e-9);
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

/* Where a state is of fixed size each sequence has one for each way, and with few snapshots there are fewer
 * sequences. */
static void fixed_states_go_from_row_to_row(void **state)
{
    (void)state;
    static struct plan_unit unit[WRITTEN_UNITS(1)] = {{.state = {.kind = STATE_FIXED, .bytes = STATE_ALIGN}}};
    for (uint32_t count = 32; count; count = count == 32 ? 24 : count == 24 ? 2 : 0) {
        const struct plan plan = {.layers = 1, .unit = unit, .has_states = true, .state_snapshots = count};
        struct stage s;
        struct helm_err err = {0};
        struct verdict verdict;
        stage_open(&s, 4, 64, -1);
        check_close(&s.check);
        if (snapshots_init(&s.snapshots, &plan, PAGE, &err)) fail_msg("%s", err.text);
        if (count == 2) {
            assert_int_equal(open_check(&s, NULL, &err), HELM_E_CAPACITY);
            assert_non_null(strstr(err.text, "with its snapshots"));
        } else {
            assert_int_equal(open_check(&s, NULL, &err), 0);
            assert_int_equal(s.check.sequences, count / 2);
            run(&s, 1000, &verdict);
            assert_true(verdict.tokens == 0 && verdict.positions > 0);
            assert_int_equal(s.check.states, 0);
        }
        stage_close(&s);
    }
}

static void it_begins_anew_after_a_loss(void **state)
{
    (void)state;
    struct stage s;
    struct verdict verdict;
    bool done;
    struct helm_err err = {0};
    stage_open(&s, 16, 128, -1);
    assert_int_equal(check_begin(&s.check, 0, false, 0), 0);
    for (int i = 0; i < 5; i++) {
        answer(&s);
        assert_int_equal(check_take(&s.check, false, 1, &done, &err), 0);
    }
    check_lost(&s.check);
    assert_int_equal(check_take(&s.check, false, 1, &done, &err), 0);
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
        assert_int_equal(check_begin(&s.check, 0, false, 0), 0);
        answer(&s);
        struct step_result *result = &arena_control_of(&s.arena)->result[1];
        if (kind == 0) result->serial = 7;
        if (kind == 1) result->row_count = 2;
        if (kind == 2) result->row[0].status = STEP_ROW_BAD;
        if (kind == 3) result->row[0].sampled.token = VOCAB;
        assert_int_equal(check_take(&s.check, false, 1, &done, &err), HELM_E_PEER);
        assert_false(done);
        check_lost(&s.check); /* the worker is killed for it */
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
        cmocka_unit_test(it_ends_soon_where_it_says_enough_and_in_time_where_it_does_not),
        cmocka_unit_test(its_last_steps_keep_to_the_time),
        cmocka_unit_test(rounds_between_requests_add_up),
        cmocka_unit_test(a_round_waits_for_pages),
        cmocka_unit_test(it_goes_on_from_an_earlier_start),
        cmocka_unit_test(a_small_cache_is_refused),
        cmocka_unit_test(it_keeps_to_the_places_in_vram),
        cmocka_unit_test(fixed_states_go_from_row_to_row),
        cmocka_unit_test(it_begins_anew_after_a_loss),
        cmocka_unit_test(answers_that_break_the_protocol),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
