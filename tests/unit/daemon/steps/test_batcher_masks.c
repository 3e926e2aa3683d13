/* Unit tests of daemon/steps/batcher.c: constrained requests, which wait for a mask before each token. */
#include "batcher_stage.h"

/* The first mask comes with the request: token 5 alone, which is what the worker answers. */
static uint64_t submit_masked(struct stage *s, uint64_t client, uint64_t request_id, uint32_t prompt)
{
    const uint32_t words = request_mask_words(s->on.model.config.vocab);
    struct request_generate request = {.prompt = malloc(prompt * sizeof(uint32_t)),
                                       .prompt_count = prompt,
                                       .max_tokens = 20,
                                       .has_seed = true,
                                       .ignore_eos = true,
                                       .mask = calloc(words, sizeof(uint32_t))};
    const struct sequence *seq;
    struct helm_err err = {0};
    for (uint32_t i = 0; i < prompt; i++) request.prompt[i] = 3;
    request.mask[0] = 1u << 5;
    const struct asker asker = {.client = client, .request_id = request_id, .peer = client};
    assert_int_equal(batcher_submit(&s->on.batcher, &request, &asker, s->now_us, &seq, &err), 0);
    assert_null(request.mask);
    return seq->id;
}

static void send_mask(struct stage *s, uint64_t client, uint64_t request_id, uint32_t index, uint32_t bits)
{
    uint32_t *mask = calloc(request_mask_words(s->on.model.config.vocab), sizeof *mask);
    const struct asker asker = {.client = client, .request_id = request_id};
    mask[0] = bits;
    batcher_take_mask(&s->on.batcher, &asker, &mask, index, NULL, s->now_us);
    free(mask);
}

static void each_token_waits_for_its_mask(void **state)
{
    (void)state;
    struct stage *s = stage_open(16);
    const uint64_t id = submit_masked(s, 1, 77, 3);
    batcher_pump(&s->on.batcher, s->now_us);
    for (uint32_t i = 0; i < 20; i++) {
        assert_int_equal(s->on.batcher.in_flight, 1); /* none is rung after it */
        assert_int_equal(newest(s)->row_count, 1);
        assert_int_equal(newest(s)->row[0].flags, STEP_ROW_SAMPLE | STEP_ROW_MASKED);
        assert_int_equal(arena_mask_of(&s->on.arena, newest(s)->row[0].slot)[0], i ? 32 | i << 8 : 32);
        step(s);
        assert_int_equal(s->tokens, i + 1);
        assert_int_equal(s->on.batcher.in_flight, 0);
        for (int k = 0; k < 3; k++) batcher_pump(&s->on.batcher, s->now_us);
        assert_int_equal(s->on.batcher.in_flight, 0);
        send_mask(s, 1, 77, i + 1, 32 | (i + 1) << 8); /* the last one comes too late for anything */
        batcher_pump(&s->on.batcher, s->now_us);
    }
    assert_int_equal(s->done, 1);
    assert_null(find(&s->on.batcher, id));
    assert_int_equal(s->on.batcher.pages.free_count, 16);
    stage_close(s);
}

/* Others wait for a mask a little, and then go on without it; a client that was late is waited for no
 * more. */
static void others_wait_a_little(void **state)
{
    (void)state;
    struct stage *s = stage_open(16);
    struct helm_err err = {0};
    const uint64_t slow = submit_masked(s, 1, 77, 1), other = submit(s, 2, &err);
    batcher_pump(&s->on.batcher, s->now_us);
    assert_int_equal(newest(s)->row_count, 2);
    assert_int_equal(s->on.batcher.in_flight, 1);
    step(s);
    assert_int_equal(s->on.batcher.in_flight, 0);
    assert_int_equal(batcher_apply_deadlines(&s->on.batcher, s->now_us), s->now_us + BATCHER_MASK_WAIT_US);
    s->now_us += 300; /* in time: both go on */
    send_mask(s, 1, 77, 1, 32);
    batcher_pump(&s->on.batcher, s->now_us);
    assert_int_equal(newest(s)->row_count, 2);
    step(s);
    s->now_us += BATCHER_MASK_WAIT_US; /* too late */
    batcher_pump(&s->on.batcher, s->now_us);
    assert_int_equal(s->on.batcher.in_flight, 2);
    for (int i = 0; i < 5; i++) {
        assert_int_equal(newest(s)->row_count, 1);
        step(s);
    }
    send_mask(s, 1, 77, 2, 32);
    batcher_pump(&s->on.batcher, s->now_us);
    step(s);
    assert_int_equal(newest(s)->row_count, 2);
    assert_int_equal(newest(s)->row[0].flags & STEP_ROW_MASKED, STEP_ROW_MASKED);
    assert_int_equal(newest(s)->row[1].flags, STEP_ROW_SAMPLE | STEP_ROW_FOLLOWS);
    step(s);
    step(s); /* its token is there; no row waits */
    assert_int_equal(s->on.batcher.in_flight, 2);
    assert_int_equal(newest(s)->row_count, 1);
    send_mask(s, 1, 77, 3, 32); /* prompt this time: waited for again */
    for (int i = 0; i < 3; i++) step(s);
    assert_true(has_slot(s, slow) && has_slot(s, other));
    assert_int_equal(find(&s->on.batcher, slow)->mask_late, false);
    stage_close(s);
}

static void a_client_without_masks_loses_its_request(void **state)
{
    (void)state;
    struct stage *s = stage_open(16);
    struct helm_err err = {0};
    submit_masked(s, 1, 77, 1);
    const uint64_t other = submit(s, 2, &err);
    batcher_pump(&s->on.batcher, s->now_us);
    step(s);
    s->now_us += BATCHER_MASK_LIMIT_US - 1;
    batcher_apply_deadlines(&s->on.batcher, s->now_us);
    batcher_pump(&s->on.batcher, s->now_us);
    assert_int_equal(s->done, 0);
    s->now_us++;
    batcher_apply_deadlines(&s->on.batcher, s->now_us);
    batcher_pump(&s->on.batcher, s->now_us);
    assert_int_equal(s->done, 1);
    assert_true(find(&s->on.batcher, other) != NULL);
    assert_int_equal(s->on.batcher.seq_count, 1);
    stage_close(s);
}

static void masks_that_are_not_due_end_the_request(void **state)
{
    (void)state;
    for (int kind = 0; kind < 4; kind++) {
        struct stage *s = stage_open(16);
        struct helm_err err = {0};
        const uint64_t id = kind == 3 ? submit(s, 1, &err) : submit_masked(s, 1, 77, 1);
        const struct sequence *seq = find(&s->on.batcher, id);
        const struct asker asker = {.client = 1, .request_id = seq->request_id};
        uint32_t *none = NULL;
        batcher_pump(&s->on.batcher, s->now_us);
        if (kind == 1) step(s);
        send_mask(s, 2, seq->request_id, 1, 32); /* another client's, and of no request: dropped */
        send_mask(s, 1, 12345, 1, 32);
        assert_int_equal(seq->finish, HELM__V1__FINISH_REASON__FINISH_UNSPECIFIED);
        if (kind == 2)
            batcher_take_mask(&s->on.batcher, &asker, &none, 0, "it is wrong", s->now_us);
        else
            send_mask(s, 1, seq->request_id, kind == 1 ? 2 : 1, 32);
        assert_int_equal(seq->finish, HELM__V1__FINISH_REASON__FINISH_ERROR);
        static const char *const says[] = {"token 0 was there", "token 1 was due", "it is wrong",
                                           "began without one"};
        if (!strstr(seq->detail, says[kind])) fail_msg("'%s' does not say '%s'", seq->detail, says[kind]);
        for (int i = 0; i < 3; i++) step(s);
        assert_int_equal(s->done, 1);
        assert_int_equal(s->on.batcher.pages.free_count, 16);
        stage_close(s);
    }
}

/* The mask of a token that was not drawn yet outlives the worker. */
static void a_mask_outlives_workers(void **state)
{
    (void)state;
    struct stage *s = stage_open(16);
    const struct workers_loss loss = {.outside = true, .why = "killed"};
    submit_masked(s, 1, 77, 1);
    batcher_pump(&s->on.batcher, s->now_us);
    step(s);
    send_mask(s, 1, 77, 1, 1234);
    batcher_pump(&s->on.batcher, s->now_us);
    assert_int_equal(s->on.batcher.in_flight, 1);
    batcher_worker_lost(&s->on.batcher, &loss);
    batcher_prepare_worker(&s->on.batcher, 2);
    memset(arena_mask_of(&s->on.arena, 0), 0, 64);
    batcher_worker_ready(&s->on.batcher);
    batcher_pump(&s->on.batcher, s->now_us);
    assert_int_equal(newest(s)->row[0].flags, STEP_ROW_SAMPLE | STEP_ROW_MASKED);
    assert_int_equal(arena_mask_of(&s->on.arena, newest(s)->row[0].slot)[0], 1234);
    step(s);
    assert_int_equal(s->tokens, 2);
    stage_close(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_token_waits_for_its_mask),
        cmocka_unit_test(others_wait_a_little),
        cmocka_unit_test(a_client_without_masks_loses_its_request),
        cmocka_unit_test(masks_that_are_not_due_end_the_request),
        cmocka_unit_test(a_mask_outlives_workers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
