/* Unit tests of the batcher with a state of fixed size: where rows begin after a loss and a preemption, and
 * what they begin with. The worker here is none, so what rows say is what is tested; snapshots' bytes are
 * test_helmd_states.py's. */
#include "tests/unit/daemon/steps/batcher_stage.h"

enum { PAGE = 32, PROMPT = 100 };

static void run_to(struct stage *s, uint64_t id, uint32_t tokens)
{
    for (int i = 0; i < 300 && find(&s->on.batcher, id)->token_count < tokens; i++) step(s);
    assert_true(find(&s->on.batcher, id)->token_count >= tokens);
}

/* A slot is trusted after no loss, even where pages are intact: the step that was cut off may have moved its
 * state on. */
static void after_a_loss_rows_begin_with_snapshots(void **state)
{
    (void)state;
    for (int off = 0; off < 2; off++)
        for (int intact = 0; intact < 2; intact++) {
            struct helm_err err = {0};
            struct stage *s = stage_open_states(16, off ? PREFIX_OFF : PREFIX_ON, 8);
            const uint64_t id = submit_sized(s, 1, PROMPT, 100, &err);
            run_to(s, id, 140);
            const struct sequence *seq = find(&s->on.batcher, id);
            const uint32_t known = seq->token_count, had = s->tokens;
            assert_int_equal(newest(s)->row[0].state_from, STATE_NO_SNAPSHOT);
            const struct workers_loss loss = {.kv_intact = intact, .outside = true, .why = "killed"};
            batcher_worker_lost(&s->on.batcher, &loss);
            assert_int_equal(snapshots_known(&s->on.batcher.snapshots), intact ? 2 : 0); /* at 96 and 128 */
            batcher_prepare_worker(&s->on.batcher, 2);
            batcher_worker_ready(&s->on.batcher);
            batcher_pump(&s->on.batcher, s->now_us);
            const struct step_row *row = &batcher_oldest(&s->on.batcher)->step.row[0];
            assert_int_equal(row->start, intact ? 128 : 0);
            assert_int_equal(row->state_from != STATE_NO_SNAPSHOT, intact);
            assert_int_equal(row->count, intact ? known - 128 : 64); /* all that is known, or a chunk */
            for (int i = 0; i < 300 && find(&s->on.batcher, id); i++) step(s);
            assert_int_equal(s->tokens, had + PROMPT + 100 - known);
            stage_close(s);
        }
}

/* A prompt's row says where a snapshot is taken; a later one begins there, and its row names the snapshot. */
static void a_found_prompt_begins_with_a_snapshot(void **state)
{
    (void)state;
    struct helm_err err = {0};
    struct stage *s = stage_open_states(16, PREFIX_ON, 8);
    static const uint32_t ends[] = {64, 100};
    uint32_t left = 0;
    const uint64_t first = submit_sized(s, 1, PROMPT, 4, &err);
    batcher_pump(&s->on.batcher, s->now_us);
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++, step(s)) {
        const struct step_row row = batcher_oldest(&s->on.batcher)->step.row[0];
        assert_int_equal(row.start + row.count, ends[i]);
        assert_int_equal(row.left[0].to != STATE_NO_SNAPSHOT, ends[i] == 100);
        assert_int_equal(row.left[0].at, ends[i] == 100 ? 32 : 0); /* at 96 */
        assert_int_equal(row.left[1].to, STATE_NO_SNAPSHOT);
        if (row.left[0].to) left = row.left[0].to;
    }
    for (int i = 0; i < 10 && find(&s->on.batcher, first); i++) step(s);
    const uint64_t second = submit_sized(s, 2, PROMPT, 4, &err);
    batcher_pump(&s->on.batcher, s->now_us);
    assert_int_equal(newest(s)->row[0].start, 96);
    assert_int_equal(newest(s)->row[0].state_from, left);
    assert_int_equal(find(&s->on.batcher, second)->found, 96);
    /* one that leaves before its row is rung lets go of its snapshot */
    const uint64_t third = submit_sized(s, 3, PROMPT, 4, &err);
    assert_int_equal(batcher_cancel(&s->on.batcher, third, "enough"), 0);
    for (int i = 0; i < 10 && s->on.batcher.seq_count; i++) step(s);
    while (s->on.batcher.in_flight) step(s);
    for (uint32_t i = 1; i <= 8; i++) assert_int_equal(s->on.batcher.snapshots.snapshot[i].pins, 0);
    stage_close(s);
}

/* One of the prompts that begin alike and come at the same time computes their common beginning. */
static void the_same_prompts_are_computed_once(void **state)
{
    (void)state;
    struct helm_err err = {0};
    struct stage *s = stage_open_states(40, PREFIX_ON, 8);
    uint64_t ids[3];
    uint32_t computed = 0;
    for (uint32_t i = 0; i < 3; i++) ids[i] = submit_sized(s, i + 1, PROMPT, 2, &err);
    batcher_pump(&s->on.batcher, s->now_us);
    for (int i = 0; i < 100 && s->on.batcher.seq_count; i++) {
        const struct step *last = &batcher_oldest(&s->on.batcher)->step;
        for (uint32_t r = 0; s->on.batcher.in_flight && r < last->row_count; r++)
            computed += last->row[r].start < 96 ? last->row[r].count : 0;
        for (uint32_t k = 1; k < 3; k++)
            if (find(&s->on.batcher, ids[k]) && find(&s->on.batcher, ids[k])->cached >= 96)
                assert_int_equal(find(&s->on.batcher, ids[k])->found, 96);
        step(s);
    }
    assert_int_equal(computed, PROMPT);
    assert_int_equal(s->tokens, 6);
    assert_int_equal(s->on.batcher.snapshots.hits, 2);
    stage_close(s);
}

/* The younger one gives way, and goes on from a snapshot when there is room again. */
static void a_preempted_sequence_begins_with_a_snapshot(void **state)
{
    (void)state;
    struct helm_err err = {0};
    struct stage *s = stage_open_states(10, PREFIX_OFF, 8);
    uint64_t ids[2] = {submit_sized(s, 1, PROMPT, 90, &err), submit_sized(s, 2, PROMPT, 90, &err)};
    bool from_snapshot = false;
    for (int i = 0; i < 900 && s->on.batcher.seq_count; i++) {
        step(s);
        for (uint32_t r = 0; s->on.batcher.in_flight && r < newest(s)->row_count; r++)
            from_snapshot |= newest(s)->row[r].state_from != STATE_NO_SNAPSHOT;
    }
    (void)ids;
    assert_int_equal(s->tokens, 180);
    assert_true(s->on.metrics.preemptions_total > 0);
    assert_true(from_snapshot);
    stage_close(s);
}

/* A step with drafts pays here, so its sequence waits for its token; unless no snapshot is left to go back
 * to. */
static void drafts_that_cannot_go_back_are_not_waited_for(void **state)
{
    (void)state;
    for (int room = 0; room < 2; room++) {
        struct helm_err err = {0};
        struct stage *s = stage_open_states(16, PREFIX_OFF, 8);
        struct batcher *batcher = &s->on.batcher;
        struct step_prices *prices = &s->on.observe.prices;
        s->on.lists.draft_tokens = 1;
        batcher->with.speculate = REQUEST_SPECULATE_AUTO;
        const uint64_t id = submit_sized(s, 1, 40, 20, &err);
        run_to(s, id, 42);
        step_prices_make(prices, &s->on.observe.forecast, 1, 43);
        for (uint32_t n = 1; n <= STEP_PRICES_TOKENS; n++) prices->row[0].seconds[n] = 1e-3;
        prices->copy = 0;
        draft_rate_take(&batcher->seq[0]->rate, 8, 8);
        while (!room && snapshots_take_empty(&batcher->snapshots)) {}
        assert_true(room ? snapshots_room(&batcher->snapshots) > 0 : !snapshots_room(&batcher->snapshots));
        step(s);
        assert_int_equal(batcher->in_flight, room ? 1 : 2);
        assert_int_equal(batcher->seq[0]->draft_most, room ? 1 : 0);
        stage_close(s);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(after_a_loss_rows_begin_with_snapshots),
        cmocka_unit_test(a_found_prompt_begins_with_a_snapshot),
        cmocka_unit_test(the_same_prompts_are_computed_once),
        cmocka_unit_test(a_preempted_sequence_begins_with_a_snapshot),
        cmocka_unit_test(drafts_that_cannot_go_back_are_not_waited_for),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
