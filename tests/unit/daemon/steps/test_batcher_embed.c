/* Requests for embeddings in the batcher: no token, the pooled sum divided, computed from the first token on
 * whenever a part of it may be lost or found elsewhere. */
#include "tests/unit/daemon/steps/batcher_stage.h"

#include <math.h>
#include <stdio.h>

static float told[16];
static Helm__V1__FinishReason told_finish;
static char told_detail[HELM_ERR_TEXT];

static void on_embedded(void *context, const struct sequence *seq)
{
    on_done(context, seq);
    told_finish = seq->finish;
    snprintf(told_detail, sizeof told_detail, "%s", seq->detail);
    if (seq->embedding) memcpy(told, seq->embedding, sizeof told);
}

static uint64_t submit_embed(struct stage *s, uint32_t prompt, enum request_pooling pooling)
{
    static uint64_t number = 1000;
    struct request_generate request = {.prompt = malloc(prompt * sizeof(uint32_t)),
                                       .prompt_count = prompt,
                                       .max_tokens = 1,
                                       .has_seed = true,
                                       .pooling = pooling};
    struct helm_err err = {0};
    const struct sequence *seq;
    for (uint32_t i = 0; i < prompt; i++) request.prompt[i] = 3;
    const struct asker asker = {.client = 9, .request_id = ++number, .peer = 9};
    s->on.batcher.with.sink.done = on_embedded;
    if (batcher_submit(&s->on.batcher, &request, &asker, s->now_us, &seq, &err)) fail_msg("%s", err.text);
    return seq->id;
}

static void pool(struct stage *s, uint32_t slot, double value)
{
    double *to = arena_pooled_of(&s->on.arena, slot);
    for (uint32_t i = 0; i < 16; i++) to[i] = value * (i + 1);
}

/* In chunks beside a request that decodes; the mean is the sum over the prompt's tokens. */
static void a_prompt_becomes_an_embedding(void **state)
{
    (void)state;
    for (int last = 0; last < 2; last++) {
        struct helm_err err = {0};
        struct stage *s = stage_open_sharing(16, PREFIX_ON);
        const uint32_t flag = last ? STEP_ROW_POOL_LAST : STEP_ROW_POOL_MEAN;
        (void)submit(s, 1, &err);
        for (int i = 0; i < 5; i++) step(s);
        const uint64_t id = submit_embed(s, 100, last ? REQUEST_POOL_LAST : REQUEST_POOL_MEAN);
        uint32_t seen = 0, serial = s->on.batcher.serial;
        for (int i = 0; i < 20 && find(&s->on.batcher, id); i++) {
            step(s);
            const struct step *asked = newest(s);
            if (asked->serial == serial) continue; /* the other one in flight was answered */
            serial = asked->serial;
            for (uint32_t r = 0; r < asked->row_count && find(&s->on.batcher, id); r++) {
                if (asked->row[r].flags & STEP_ROW_SAMPLE) continue;
                assert_int_equal(asked->row[r].flags, flag);
                assert_int_equal(asked->row[r].start, seen);
                seen += asked->row[r].count;
                pool(s, asked->row[r].slot, 50);
            }
        }
        assert_int_equal(seen, 100);
        assert_int_equal(s->done, 1);
        assert_int_equal(told_finish, HELM__V1__FINISH_REASON__FINISH_EMBEDDED);
        for (uint32_t i = 0; i < 16; i++)
            assert_true(fabsf(told[i] - (last ? 50.0f : 0.5f) * (float)(i + 1)) < 1e-4f);
        assert_int_equal(s->on.metrics.ended[HELM__V1__FINISH_REASON__FINISH_EMBEDDED], 1);
        assert_int_equal(s->on.metrics.tokens_prompt_total, 101);
        assert_int_equal(s->on.batcher.pages.known.resting, 0); /* its pages are not known */
        stage_close(s);
    }
}

/* Sums that a worker that died had added are not known: the whole prompt again, though its pages are
 * there. */
static void a_lost_worker_begins_it_anew(void **state)
{
    (void)state;
    struct stage *s = stage_open(16);
    const uint64_t id = submit_embed(s, 150, REQUEST_POOL_MEAN);
    batcher_pump(&s->on.batcher, s->now_us);
    step(s);
    assert_int_equal(newest(s)->row[0].start, 64);
    const struct workers_loss loss = {.kv_intact = true, .outside = true, .why = "killed"};
    batcher_worker_lost(&s->on.batcher, &loss);
    batcher_prepare_worker(&s->on.batcher, 2);
    batcher_worker_ready(&s->on.batcher);
    batcher_pump(&s->on.batcher, s->now_us);
    assert_int_equal(newest(s)->row[0].start, 0);
    assert_int_equal(newest(s)->row[0].count, 64);
    for (int i = 0; i < 10 && find(&s->on.batcher, id); i++) {
        pool(s, 0, 15);
        step(s);
    }
    assert_true(fabsf(told[0] - 0.1f) < 1e-6f);
    assert_int_equal(s->on.batcher.pages.free_count, 16);
    stage_close(s);
}

static void numbers_that_are_none_fail(void **state)
{
    (void)state;
    struct stage *s = stage_open(16);
    (void)submit_embed(s, 1, REQUEST_POOL_LAST);
    batcher_pump(&s->on.batcher, s->now_us);
    pool(s, newest(s)->row[0].slot, NAN);
    step(s);
    assert_int_equal(s->done, 1);
    assert_int_equal(told_finish, HELM__V1__FINISH_REASON__FINISH_ERROR);
    assert_non_null(strstr(told_detail, "not finite"));
    stage_close(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_prompt_becomes_an_embedding),
        cmocka_unit_test(a_lost_worker_begins_it_anew),
        cmocka_unit_test(numbers_that_are_none_fail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
