/* Unit tests of daemon/steps/batcher.c with a worker that answers at once: which request gets a place in the
 * queue, and when its turn comes; and steps that are rung after others. */
#include "batcher_stage.h"

static void a_greedy_client_does_not_keep_others_out(void **state)
{
    (void)state;
    struct stage *s = stage_open(16);
    struct helm_err err = {0};
    uint32_t held = 0;
    while (submit(s, GREEDY, &err)) held++;
    assert_int_equal(held, SLOTS + QUEUE - QUEUE / 8);
    assert_non_null(strstr(err.text, "its share is"));
    assert_true(submit(s, MODEST, &err) != 0);
    assert_true(submit(s, GREEDY, &err) == 0);
    for (int i = 0; i < 3; i++) step(s);
    assert_true(submit(s, GREEDY, &err) == 0); /* those that run count as well */
    batcher_cancel_client(&s->on.batcher, GREEDY, "enough");
    for (int i = 0; i < 3; i++) step(s);
    assert_int_equal(s->on.batcher.seq_count, 1);
    for (int i = 0; i < 10; i++) assert_true(submit(s, GREEDY, &err) != 0);
    stage_close(s);
}

/* One sequence: while a step is computed the next one is rung, with a page for its position and the token
 * left open, up to the last token that it may have and no further. */
static void the_next_step_is_rung_while_one_is_computed(void **state)
{
    (void)state;
    struct helm_err err = {0};
    struct stage *s = stage_open(16);
    uint64_t id = submit(s, 1, &err);
    batcher_pump(&s->on.batcher, s->now_us);
    for (uint32_t i = 0; i < 200; i++) { /* position i is computed */
        const struct batcher *b = &s->on.batcher;
        assert_int_equal(b->in_flight, i < 199 ? 2 : 1);
        assert_int_equal(b->serial, i < 199 ? i + 2 : 200);
        const struct step *oldest = &batcher_oldest(b)->step, *last = newest(s);
        assert_int_equal(oldest->serial, i + 1);
        assert_int_equal(oldest->row[0].start, i);
        assert_int_equal(last->row_count, 1);
        assert_int_equal(last->row[0].start, i < 199 ? i + 1 : 199);
        assert_int_equal(last->row[0].flags, STEP_ROW_SAMPLE | STEP_ROW_FOLLOWS);
        const struct sequence *seq = find(b, id);
        assert_true(seq->pages * 32 > last->row[0].start);
        assert_int_equal(seq->cached, i);
        assert_int_equal(sequence_output_count(seq), i);
        assert_int_equal(s->tokens, i);
        step(s);
    }
    assert_int_equal(s->tokens, 200);
    assert_null(find(&s->on.batcher, id));
    assert_int_equal(s->on.batcher.in_flight, 0);
    assert_int_equal(s->on.batcher.pages.free_count, 16);
    stage_close(s);
}

/* A new request is in the step after those that were rung; its prompt is rung after a step of decoding, and
 * nothing is rung after its prompt. */
static void who_comes_waits_for_what_is_rung(void **state)
{
    (void)state;
    struct helm_err err = {0};
    struct stage *s = stage_open(16);
    uint64_t first = submit(s, 1, &err);
    for (int i = 0; i < 5; i++) step(s);
    uint64_t second = submit_sized(s, 2, 20, 100, &err);
    batcher_pump(&s->on.batcher, s->now_us);
    assert_int_equal(newest(s)->row_count, 1);
    step(s);
    assert_int_equal(newest(s)->row_count, 2);
    assert_int_equal(newest(s)->token_count, 21);
    assert_int_equal(newest(s)->row[0].flags, STEP_ROW_SAMPLE | STEP_ROW_FOLLOWS);
    assert_int_equal(newest(s)->row[1].flags, STEP_ROW_SAMPLE);
    assert_int_equal(s->on.batcher.in_flight, 2);
    step(s);
    assert_int_equal(s->on.batcher.in_flight, 1); /* the prompt */
    step(s);
    assert_int_equal(s->on.batcher.in_flight, 2);
    assert_int_equal(newest(s)->row_count, 2);
    for (int r = 0; r < 2; r++) assert_int_equal(newest(s)->row[r].flags, STEP_ROW_SAMPLE | STEP_ROW_FOLLOWS);
    /* the token after a step that nothing follows is helmd's to write */
    const struct sequence *seq = find(&s->on.batcher, second);
    assert_int_equal(arena_history_of(&s->on.arena, seq->slot)[20], 5);
    assert_true(find(&s->on.batcher, first) != NULL);
    stage_close(s);
}

/* All layers in the memories of two devices. */
static struct stage *stage_open_two(uint32_t pages)
{
    struct stage *s = stage_open(pages);
    const uint32_t units = unit_count(s->on.lists.layers);
    s->on.lists.embed = PLAN_GPU0;
    s->on.lists.head = PLAN_GPU1;
    for (uint32_t u = 0; u < units; u++)
        s->on.lists.unit[u].home[0] = u < units / 2 ? PLAN_HOME_GPU : PLAN_HOME_GPU1;
    return s;
}

/* Two devices each compute a chunk of one prompt; after its last chunk nothing is rung, nor where another
 * prompt might find its pages. */
static void two_devices_have_two_chunks_of_a_prompt(void **state)
{
    (void)state;
    struct helm_err err = {0};
    struct stage *s = stage_open_two(16);
    const uint64_t id = submit_sized(s, 1, 200, 10, &err); /* of 64 tokens each, and 8 */
    batcher_pump(&s->on.batcher, s->now_us);
    for (uint32_t i = 0; i < 3; i++) {
        const struct step *oldest = &batcher_oldest(&s->on.batcher)->step, *last = newest(s);
        assert_int_equal(s->on.batcher.in_flight, 2);
        assert_int_equal(oldest->row[0].start, 64 * i);
        assert_int_equal(last->row[0].start, 64 * (i + 1));
        assert_int_equal(last->row[0].count, i < 2 ? 64 : 8);
        assert_int_equal(last->row[0].flags, i < 2 ? 0 : STEP_ROW_SAMPLE);
        step(s);
        assert_int_equal(find(&s->on.batcher, id)->cached, 64 * (i + 1));
    }
    assert_int_equal(s->on.batcher.in_flight, 1); /* the prompt's end */
    step(s);
    assert_int_equal(s->tokens, 1);
    assert_int_equal(newest(s)->row[0].flags, STEP_ROW_SAMPLE | STEP_ROW_FOLLOWS);
    for (int i = 0; i < 20; i++) step(s);
    assert_int_equal(s->tokens, 10);
    assert_int_equal(s->on.batcher.pages.free_count, 16);
    submit_sized(s, 1, 100, 10, &err);
    submit_sized(s, 2, 100, 10, &err);
    batcher_pump(&s->on.batcher, s->now_us);
    assert_int_equal(s->on.batcher.in_flight, 1);
    stage_close(s);
    s = stage_open_two(16); /* a plan that has something on the CPU */
    s->on.lists.unit[3].home[0] = PLAN_HOME_CPU;
    submit_sized(s, 1, 200, 10, &err);
    batcher_pump(&s->on.batcher, s->now_us);
    assert_int_equal(s->on.batcher.in_flight, 1);
    stage_close(s);
}

/* A sequence that ends while a step is rung with a further token of it: it is told at once, what was computed
 * for it is ignored, and its slot and pages are given away when that is over and not before. */
static void a_row_too_many_is_ignored(void **state)
{
    (void)state;
    struct helm_err err = {0};
    for (int cancelled = 0; cancelled < 2; cancelled++) {
        struct stage *s = stage_open(16);
        uint64_t first = submit(s, 1, &err), second = submit(s, 2, &err), third = submit(s, 3, &err);
        for (int i = 0; i < 5; i++) step(s);
        const uint32_t slot = find(&s->on.batcher, first)->slot;
        const uint32_t tokens = s->tokens, used = s->on.batcher.pages.free_count;
        assert_int_equal(s->on.batcher.in_flight, 2);
        assert_false(has_slot(s, third));
        if (cancelled) {
            assert_int_equal(batcher_cancel(&s->on.batcher, first, "enough"), 0);
            batcher_pump(&s->on.batcher, s->now_us);
        } else {
            s->answer = 7; /* a stop token, to both */
            step(s);
            assert_int_equal(s->tokens, tokens + 2);
            assert_null(find(&s->on.batcher, second));
            s->answer = 5;
        }
        assert_int_equal(s->done, cancelled ? 1 : 2);
        assert_null(find(&s->on.batcher, first));
        assert_int_equal(s->on.batcher.slot[slot].steps, cancelled ? 2 : 1);
        assert_int_equal(s->on.batcher.pages.free_count, used);
        assert_false(has_slot(s, third));
        step(s);
        if (cancelled) step(s);
        assert_int_equal(s->on.batcher.slot[slot].steps, !s->on.batcher.slot[slot].owner ? 0
                                                         : cancelled                     ? 1
                                                                                         : 2);
        assert_true(has_slot(s, third));
        assert_int_equal(s->tokens, tokens + 2); /* of the second; of both, their last */
        stage_close(s);
    }
}

/* Where a page must be taken from a younger sequence nothing is rung before its steps are over. */
static void preemption_waits_for_the_steps_in_flight(void **state)
{
    (void)state;
    struct helm_err err = {0};
    struct stage *s = stage_open(8); /* one context's */
    uint64_t first = submit(s, 1, &err), second = submit(s, 2, &err);
    uint32_t drained = 0;
    for (uint32_t i = 0; i < 199; i++) {
        step(s);
        drained += s->on.batcher.in_flight == 1 && find(&s->on.batcher, first) != NULL;
        for (uint32_t slot = 0; slot < SLOTS; slot++)
            assert_true(s->on.batcher.slot[slot].owner || !s->on.batcher.slot[slot].steps);
    }
    assert_int_equal(s->on.metrics.preemptions_total, 1);
    assert_true(drained > 0 && drained < 10);
    assert_false(has_slot(s, second));
    for (uint32_t i = 0; i < 300 && find(&s->on.batcher, second); i++) step(s);
    assert_int_equal(s->done, 2);
    assert_int_equal(s->tokens, 400);
    assert_int_equal(s->on.batcher.pages.free_count, 8);
    stage_close(s);
}

/* Workers that die take the steps in flight with them: they are rung again from the tokens there are, which
 * the history has again, too. */
static void steps_in_flight_are_rung_again(void **state)
{
    (void)state;
    struct helm_err err = {0};
    for (int intact = 0; intact < 2; intact++) {
        struct stage *s = stage_open(16);
        uint64_t first = submit(s, 1, &err), second = submit(s, 2, &err);
        for (int i = 0; i < 40; i++) step(s);
        const struct sequence *seq = find(&s->on.batcher, first);
        const uint32_t known = seq->token_count, slot = seq->slot;
        assert_int_equal(batcher_cancel(&s->on.batcher, second, "enough"), 0);
        batcher_pump(&s->on.batcher, s->now_us); /* it has left; two steps still have it */
        assert_int_equal(s->on.batcher.in_flight, 2);
        const struct workers_loss loss = {.kv_intact = intact, .outside = true, .why = "killed"};
        batcher_worker_lost(&s->on.batcher, &loss);
        batcher_pump(&s->on.batcher, s->now_us);
        assert_int_equal(s->on.batcher.in_flight, 0);
        memset(arena_history_of(&s->on.arena, slot), 0xff, 256 * sizeof(uint32_t));
        batcher_prepare_worker(&s->on.batcher, 2);
        for (uint32_t i = 0; i < known; i++)
            assert_int_equal(arena_history_of(&s->on.arena, slot)[i], seq->tokens[i]);
        batcher_worker_ready(&s->on.batcher);
        batcher_pump(&s->on.batcher, s->now_us);
        const struct step *again = &batcher_oldest(&s->on.batcher)->step;
        assert_int_equal(again->serial, 1);
        assert_int_equal(again->row_count, 1);
        assert_int_equal(again->row[0].flags, STEP_ROW_SAMPLE);
        assert_int_equal(again->row[0].start, intact ? known - 1 : 0);
        assert_int_equal(again->row[0].count, intact ? 1 : known);
        assert_int_equal(s->on.batcher.in_flight, intact ? 2 : 1);
        const uint32_t had = s->tokens;
        for (uint32_t i = 0; i < 300 && find(&s->on.batcher, first); i++) step(s);
        assert_int_equal(s->tokens, had + 201 - known);
        assert_int_equal(s->on.batcher.pages.free_count, 16);
        stage_close(s);
    }
}

/* Steps of the plan's other lists are alone: caches of theirs may be used by both workers. */
static void other_lists_are_not_rung_behind(void **state)
{
    (void)state;
    struct helm_err err = {0};
    struct stage *s = stage_open(16);
    add_letters(&s->on.lists, 17, "c");
    (void)submit(s, 1, &err);
    for (int i = 0; i < 5; i++) step(s);
    (void)submit_sized(s, 2, 20, 100, &err);
    step(s);
    assert_int_equal(s->on.batcher.in_flight, 1); /* not after decoding */
    step(s);
    assert_int_equal(s->on.batcher.in_flight, 1);
    assert_int_equal(newest(s)->token_count, 21);
    step(s);
    assert_int_equal(s->on.batcher.in_flight, 2);
    stage_close(s);
}

static uint64_t prompts_timed(const struct stage *s)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < DRIFT_TTFTS; i++) sum += s->on.observe.drift.ttft[i].count;
    return sum;
}

/* A prompt whose beginning is there begins after it; its time to the first token is no measurement of a
 * prompt's. */
static void a_found_prompt_begins_behind_its_pages(void **state)
{
    (void)state;
    struct helm_err err = {0};
    struct stage *s = stage_open_sharing(16, PREFIX_ON);
    uint64_t first = submit_sized(s, 1, 100, 4, &err);
    for (int i = 0; i < 10 && find(&s->on.batcher, first); i++) step(s);
    assert_null(find(&s->on.batcher, first));
    assert_int_equal(prompts_timed(s), 1);
    assert_int_equal(s->on.batcher.pages.known.resting, 3);
    uint64_t second = submit_sized(s, 2, 100, 4, &err);
    batcher_pump(&s->on.batcher, s->now_us);
    assert_int_equal(newest(s)->row[0].start, 96);
    assert_int_equal(newest(s)->row[0].count, 4);
    assert_int_equal(find(&s->on.batcher, second)->found, 96);
    for (int i = 0; i < 10 && find(&s->on.batcher, second); i++) step(s);
    assert_int_equal(prompts_timed(s), 1);
    assert_int_equal(s->on.metrics.tokens_found_total, 96);
    stage_close(s);
}

/* The pages that a prompt shares with running ones need no room: it waits for the rest alone. */
static void shared_pages_need_no_room(void **state)
{
    (void)state;
    struct helm_err err = {0};
    for (enum prefix_sharing sharing = PREFIX_OFF; sharing <= PREFIX_ON; sharing++) {
        struct stage *s = stage_open_sharing(10, sharing);
        uint64_t first = submit_sized(s, 1, 240, 10, &err), second = submit_sized(s, 2, 240, 10, &err);
        for (int i = 0; i < 6; i++) step(s);
        assert_true(has_slot(s, first));
        assert_int_equal(has_slot(s, second), sharing == PREFIX_ON);
        assert_int_equal(s->on.batcher.pages.free_count, sharing == PREFIX_ON ? 1 : 2);
        for (int i = 0; i < 60 && s->on.batcher.seq_count; i++) step(s);
        assert_int_equal(s->tokens, 20);
        assert_int_equal(s->on.metrics.preemptions_total, 0);
        stage_close(s);
    }
}

/* Two that share pages lose what is in them: each writes to pages of its own from then on, and the one after
 * goes on from what the other one has computed anew. */
static void lost_pages_are_shared_no_more(void **state)
{
    (void)state;
    struct helm_err err = {0};
    struct stage *s = stage_open_sharing(16, PREFIX_ON);
    uint64_t ids[2] = {submit_sized(s, 1, 100, 50, &err), submit_sized(s, 2, 100, 50, &err)};
    for (int i = 0; i < 5; i++) step(s);
    const struct sequence *seq[2] = {find(&s->on.batcher, ids[0]), find(&s->on.batcher, ids[1])};
    const uint32_t *row[2] = {arena_page_table_of(&s->on.arena, seq[0]->slot),
                              arena_page_table_of(&s->on.arena, seq[1]->slot)};
    for (int i = 0; i < 2; i++) assert_int_equal(seq[i]->pages, 4);
    assert_memory_equal(row[0], row[1], 3 * sizeof *row[0]);
    assert_int_not_equal(row[0][3], row[1][3]);
    const struct workers_loss loss = {.outside = true, .why = "killed"};
    batcher_worker_lost(&s->on.batcher, &loss);
    assert_int_equal(s->on.batcher.pages.free_count, 16);
    batcher_prepare_worker(&s->on.batcher, 2);
    batcher_worker_ready(&s->on.batcher);
    batcher_pump(&s->on.batcher, s->now_us);
    assert_int_equal(newest(s)->row_count, 1); /* a chunk of 64 */
    assert_int_equal(newest(s)->row[0].start, 0);
    for (int i = 0; i < 100 && s->on.batcher.seq_count; i++) step(s);
    assert_int_equal(s->tokens, 100);
    assert_int_equal(s->on.batcher.pages.free_count, 16);
    stage_close(s);
}

/* Bells that lie. */
static void bells_that_lie_are_found(void **state)
{
    (void)state;
    struct helm_err err = {0};
    struct stage *s = stage_open(16);
    struct doorbell *bell = &arena_control_of(&s->on.arena)->done[0].bell;
    bool taken;
    (void)submit(s, 1, &err);
    for (int i = 0; i < 5; i++) step(s); /* 4 are taken, 5 and 6 in flight */
    assert_int_equal(s->on.batcher.serial, 6);
    assert_int_equal(batcher_take_result(&s->on.batcher, s->now_us, &taken, &err), 0);
    assert_false(taken);
    doorbell_ring(bell, 3);
    assert_int_equal(batcher_take_result(&s->on.batcher, s->now_us, &taken, &err), HELM_E_PEER);
    assert_non_null(strstr(err.text, "step 3 reported done, 5 is in flight"));
    doorbell_ring(bell, 7);
    assert_int_equal(batcher_take_result(&s->on.batcher, s->now_us, &taken, &err), HELM_E_PEER);
    stage_close(s);
}

static void the_queue_position_is_when_its_turn_comes(void **state)
{
    (void)state;
    struct stage *s = stage_open(16);
    struct helm_err err = {0};
    static const uint64_t clients[] = {GREEDY, GREEDY, GREEDY, GREEDY, GREEDY, MODEST, MODEST, 3, GREEDY};
    enum { COUNT = sizeof clients / sizeof *clients };
    uint64_t id[COUNT], slot_of[COUNT + 1];
    uint32_t position[COUNT], ran = 0, oldest = 0;
    bool started[COUNT] = {false};
    for (uint32_t i = 0; i < COUNT; i++) id[i] = submit(s, clients[i], &err);
    for (uint32_t i = 0; i < COUNT; i++)
        position[i] = batcher_queue_position(&s->on.batcher, find(&s->on.batcher, id[i]));
    assert_int_equal(position[0], 0);
    assert_true(position[5] < position[2]); /* the modest client came later and goes first */
    for (uint32_t ends = 0; oldest < COUNT; ends++) {
        step(s);
        step(s);
        for (uint32_t i = 0; i < COUNT; i++) {
            if (started[i] || !has_slot(s, id[i])) continue;
            assert_int_equal(position[i], ends);
            started[i] = true;
            slot_of[ran++] = id[i];
        }
        assert_true(ran > oldest);
        assert_int_equal(batcher_cancel(&s->on.batcher, slot_of[oldest++], "its turn is over"), 0);
    }
    assert_int_equal(ran, COUNT);
    stage_close(s);
}

/* In an invariant plan, while there is nothing else to do: an internal request, which yields to the first
 * that comes. */
static void an_answer_is_computed_again_until_a_request_comes(void **state)
{
    (void)state;
    struct helm_err err = {0};
    struct stage *s = stage_open_sharing(32, PREFIX_ON);
    struct batcher *batcher = &s->on.batcher;
    s->on.lists.invariant = true;
    assert_true(submit_sized(s, 1, 40, 60, &err));
    for (int i = 0; i < 100 && !s->done; i++) step(s);
    assert_int_equal(s->done, 1);
    assert_int_equal(batcher_open(batcher) + batcher_running(batcher) + batcher_queued(batcher), 0);
    assert_int_equal(batcher->seq_count, 1);
    step(s); /* of the row too many of what ended, if there was one */
    const struct step_row *row = &newest(s)->row[0];
    assert_true(newest(s)->flags & STEP_PROMPT && row->start == 32 && !(row->flags & STEP_ROW_SAMPLE));
    assert_true(submit_sized(s, 2, 200, 8, &err));
    step(s);
    assert_int_equal(batcher_running(batcher), 1);
    for (int i = 0; i < 100 && s->done < 2; i++) step(s);
    for (int i = 0; i < 100 && batcher->in_flight; i++) step(s);
    assert_int_equal(s->done, 2);
    assert_int_equal(batcher->seq_count + batcher->again_count, 0);
    uint32_t tokens[96];
    for (uint32_t i = 0; i < 96; i++) tokens[i] = i < 40 ? 3 : s->answer;
    assert_int_equal(kv_pages_known(&batcher->pages, 3, tokens, prefix_scope(PREFIX_ON, 1, 0)), 3);
    stage_close(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_greedy_client_does_not_keep_others_out),
        cmocka_unit_test(the_next_step_is_rung_while_one_is_computed),
        cmocka_unit_test(who_comes_waits_for_what_is_rung),
        cmocka_unit_test(two_devices_have_two_chunks_of_a_prompt),
        cmocka_unit_test(a_row_too_many_is_ignored),
        cmocka_unit_test(preemption_waits_for_the_steps_in_flight),
        cmocka_unit_test(steps_in_flight_are_rung_again),
        cmocka_unit_test(other_lists_are_not_rung_behind),
        cmocka_unit_test(a_found_prompt_begins_behind_its_pages),
        cmocka_unit_test(shared_pages_need_no_room),
        cmocka_unit_test(lost_pages_are_shared_no_more),
        cmocka_unit_test(bells_that_lie_are_found),
        cmocka_unit_test(the_queue_position_is_when_its_turn_comes),
        cmocka_unit_test(an_answer_is_computed_again_until_a_request_comes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
