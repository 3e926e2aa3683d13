/* Unit tests of daemon/batcher.c with a worker that answers at once: who gets a place in the queue, and when
 * its turn comes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "daemon/batcher.h"

enum { GREEDY = 1, MODEST, SLOTS = 2, QUEUE = 16 };

struct stage {
    struct model model;
    struct profile profile;
    struct plan plan;
    struct plan_stage stage;
    struct observe observe;
    struct metrics metrics;
    struct arena arena;
    struct batcher batcher;
    uint64_t now_us;
};

static int on_token(void *context, const struct sequence *seq, uint32_t index,
                    const struct sampling_result *sampled)
{
    (void)context, (void)seq, (void)index, (void)sampled;
    return 0;
}

static void on_done(void *context, const struct sequence *seq)
{
    (void)context, (void)seq;
}

static struct stage *stage_open(void)
{
    struct stage *s = calloc(1, sizeof *s);
    struct helm_err err = {0};
    assert_non_null(s);
    if (model_read("tests/data/demo", &s->model, &err) ||
        profile_read("tests/data/profiles/described.json", &s->profile, &err))
        fail_msg("%s", err.text);
    s->stage = (struct plan_stage){.last = s->model.config.layers - 1, .home = PLAN_HOME_CPU};
    s->plan = (struct plan){.layers = s->model.config.layers,
                            .context_tokens = 256,
                            .step_tokens = 64,
                            .slots = SLOTS,
                            .kv_dtype = "f16",
                            .stages = &s->stage,
                            .stage_count = 1};
    const struct arena_spec spec = {.slots = SLOTS,
                                    .context_tokens = 256,
                                    .step_tokens = 64,
                                    .hidden = 16,
                                    .vocab = s->model.config.vocab,
                                    .kv = {.layers = 1,
                                           .kv_heads = 1,
                                           .head_dim = 8,
                                           .page_tokens = 32,
                                           .dtype = DTYPE_F16,
                                           .elem_bytes = 2},
                                    .page_count = 16};
    const struct batcher_sink sink = {.context = s, .token = on_token, .done = on_done};
    if (forecast_open(&s->model, &s->profile, &s->plan, &s->observe.forecast, &err) ||
        arena_create(&spec, &s->arena, &err))
        fail_msg("%s", err.text);
    observe_init(&s->observe, 0, OBSERVE_NO_WORKER, 0);
    metrics_init(&s->metrics);
    if (batcher_init(&s->batcher, &s->model.config, &s->arena, 1, QUEUE, &sink, &s->metrics, &s->observe,
                     &err))
        fail_msg("%s", err.text);
    batcher_prepare_worker(&s->batcher, 1);
    batcher_worker_ready(&s->batcher);
    return s;
}

static void stage_close(struct stage *s)
{
    batcher_free(&s->batcher);
    arena_close(&s->arena);
    forecast_close(&s->observe.forecast);
    model_free(&s->model);
    free(s);
}

/* Its id; 0: busy. */
static uint64_t submit(struct stage *s, uint64_t client, struct helm_err *err)
{
    static uint64_t number;
    struct request_generate request = {.prompt = malloc(sizeof(uint32_t)),
                                       .prompt_count = 1,
                                       .max_tokens = 200,
                                       .has_seed = true,
                                       .ignore_eos = true};
    const struct sequence *seq;
    assert_non_null(request.prompt);
    request.prompt[0] = 3;
    int rc = batcher_submit(&s->batcher, &request, client, ++number, s->now_us, &seq, err);
    free(request.prompt);
    if (rc) assert_int_equal(rc, HELM_E_BUSY);
    return rc ? 0 : seq->id;
}

/* The worker's part, then the batcher's. */
static void step(struct stage *s)
{
    struct arena_control *control = arena_control_of(&s->arena);
    struct helm_err err = {0};
    s->now_us += 1000;
    if (s->batcher.in_flight) {
        const struct step *asked = &control->step[s->batcher.serial % ARENA_STEP_RING];
        struct step_result *result = &control->result[s->batcher.serial % ARENA_STEP_RING];
        memset(result, 0, sizeof *result);
        result->serial = asked->serial;
        result->epoch = asked->epoch;
        result->row_count = asked->row_count;
        for (uint32_t i = 0; i < asked->row_count; i++)
            result->row[i] = (struct step_result_row){.slot = asked->row[i].slot, .sampled = {.token = 5}};
        doorbell_ring(&control->done[0].bell, asked->serial);
        if (batcher_take_result(&s->batcher, s->now_us, &err)) fail_msg("%s", err.text);
    }
    batcher_pump(&s->batcher, s->now_us);
}

static bool has_slot(const struct stage *s, uint64_t id)
{
    const struct sequence *seq = batcher_find(&s->batcher, id);
    return seq && seq->slot != SEQUENCE_NO_SLOT;
}

static void a_greedy_client_does_not_keep_others_out(void **state)
{
    (void)state;
    struct stage *s = stage_open();
    struct helm_err err = {0};
    uint32_t held = 0;
    while (submit(s, GREEDY, &err)) held++;
    assert_int_equal(held, SLOTS + QUEUE - QUEUE / 8);
    assert_non_null(strstr(err.text, "its share is"));
    assert_true(submit(s, MODEST, &err) != 0);
    assert_true(submit(s, GREEDY, &err) == 0);
    for (int i = 0; i < 3; i++) step(s);
    assert_true(submit(s, GREEDY, &err) == 0); /* those that run count as well */
    batcher_cancel_client(&s->batcher, GREEDY, "enough");
    for (int i = 0; i < 3; i++) step(s);
    assert_int_equal(s->batcher.seq_count, 1);
    for (int i = 0; i < 10; i++) assert_true(submit(s, GREEDY, &err) != 0);
    stage_close(s);
}

/* A row that goes on is said to, where it is alone, its next position has a page and it may have that token.
 */
static void steps_say_what_most_likely_follows(void **state)
{
    (void)state;
    struct helm_err err = {0};
    struct stage *s = stage_open();
    const struct arena_control *control = arena_control_of(&s->arena);
    uint64_t first = submit(s, 1, &err), second = 0;
    uint32_t ahead = 0;
    for (uint32_t i = 0; i < 200; i++) { /* position i */
        if (i == 50) second = submit(s, 2, &err);
        if (i == 60) assert_int_equal(batcher_cancel(&s->batcher, second, "enough"), 0);
        step(s);
        const struct step *asked = &control->step[s->batcher.serial % ARENA_STEP_RING];
        bool both = i >= 50 && i < 60;
        assert_int_equal(asked->row_count, both ? 2 : 1);
        assert_int_equal(asked->row[0].start, i);
        bool expected = !both && (i + 1) % 32 != 0 && i < 199;
        assert_int_equal((asked->row[0].flags & STEP_ROW_AHEAD) != 0, expected);
        assert_true(asked->row[0].flags & STEP_ROW_SAMPLE);
        ahead += expected;
    }
    assert_int_equal(ahead, 200 - 10 - 6 - 1);
    step(s);
    assert_null(batcher_find(&s->batcher, first));
    stage_close(s);
}

static void the_queue_position_is_when_its_turn_comes(void **state)
{
    (void)state;
    struct stage *s = stage_open();
    struct helm_err err = {0};
    static const uint64_t clients[] = {GREEDY, GREEDY, GREEDY, GREEDY, GREEDY, MODEST, MODEST, 3, GREEDY};
    enum { COUNT = sizeof clients / sizeof *clients };
    uint64_t id[COUNT], slot_of[COUNT + 1];
    uint32_t position[COUNT], ran = 0, oldest = 0;
    bool started[COUNT] = {false};
    for (uint32_t i = 0; i < COUNT; i++) id[i] = submit(s, clients[i], &err);
    for (uint32_t i = 0; i < COUNT; i++)
        position[i] = batcher_queue_position(&s->batcher, batcher_find(&s->batcher, id[i]));
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
        assert_int_equal(batcher_cancel(&s->batcher, slot_of[oldest++], "its turn is over"), 0);
    }
    assert_int_equal(ran, COUNT);
    stage_close(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_greedy_client_does_not_keep_others_out),
        cmocka_unit_test(steps_say_what_most_likely_follows),
        cmocka_unit_test(the_queue_position_is_when_its_turn_comes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
