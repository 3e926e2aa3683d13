/* The stage of the batcher's tests: a batcher with a worker that answers at once. */
#pragma once

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "tests/unit/daemon/steps/batcher_parts.h"

enum { GREEDY = 1, MODEST, SLOTS = 2, QUEUE = 16 };

struct stage {
    struct batcher_parts on;
    uint64_t now_us;
    uint32_t answer; /* the worker's token */
    uint32_t tokens, done;
};

static inline int on_token(void *context, const struct sequence *seq, uint32_t index,
                           const struct sampling_result *sampled)
{
    struct stage *s = context;
    (void)seq, (void)index, (void)sampled;
    s->tokens++;
    return 0;
}

static inline void on_done(void *context, const struct sequence *seq)
{
    struct stage *s = context;
    (void)seq;
    s->done++;
}

/* snapshots: of a fixed state; 0: there is none. */
static inline struct stage *stage_open_states(uint32_t pages, enum prefix_sharing sharing, uint32_t snapshots)
{
    struct stage *s = calloc(1, sizeof *s);
    assert_non_null(s);
    batcher_parts_open(
        &s->on, &(struct batcher_parts_case){.slots = SLOTS,
                                             .context_tokens = 256,
                                             .step_tokens = 64,
                                             .page_tokens = 32,
                                             .pages = pages,
                                             .snapshots = snapshots,
                                             .queue = QUEUE,
                                             .sharing = sharing,
                                             .sink = {.context = s, .token = on_token, .done = on_done}});
    s->answer = 5;
    batcher_prepare_worker(&s->on.batcher, 1);
    batcher_worker_ready(&s->on.batcher);
    return s;
}

static inline struct stage *stage_open_sharing(uint32_t pages, enum prefix_sharing sharing)
{
    return stage_open_states(pages, sharing, 0);
}

static inline struct stage *stage_open(uint32_t pages)
{
    return stage_open_sharing(pages, PREFIX_OFF);
}

static inline void stage_close(struct stage *s)
{
    batcher_parts_close(&s->on);
    free(s);
}

/* A prompt of `prompt` tokens that may have `most` more. Its id; 0: busy. */
static inline uint64_t submit_sized(struct stage *s, uint64_t client, uint32_t prompt, uint32_t most,
                                    struct helm_err *err)
{
    static uint64_t number;
    struct request_generate request = {.prompt = malloc(prompt * sizeof(uint32_t)),
                                       .prompt_count = prompt,
                                       .max_tokens = most,
                                       .has_seed = true,
                                       .stop = {7},
                                       .stop_count = 1,
                                       .ignore_eos = true};
    const struct sequence *seq;
    assert_non_null(request.prompt);
    for (uint32_t i = 0; i < prompt; i++) request.prompt[i] = 3;
    const struct asker asker = {.client = client, .request_id = ++number, .peer = client};
    int rc = batcher_submit(&s->on.batcher, &request, &asker, s->now_us, &seq, err);
    free(request.prompt);
    if (rc) assert_int_equal(rc, HELM_E_BUSY);
    return rc ? 0 : seq->id;
}

static inline uint64_t submit(struct stage *s, uint64_t client, struct helm_err *err)
{
    return submit_sized(s, client, 1, 200, err);
}

/* The worker's part of the oldest step in flight. */
static inline void answer(struct stage *s)
{
    struct arena_control *control = arena_control_of(&s->on.arena);
    const struct step *asked = &batcher_oldest(&s->on.batcher)->step;
    struct step_result *result = &control->result[asked->serial % ARENA_STEP_RING];
    struct helm_err err = {0};
    bool taken = false;
    memset(result, 0, sizeof *result);
    result->serial = asked->serial;
    result->epoch = asked->epoch;
    result->row_count = asked->row_count;
    for (uint32_t i = 0; i < asked->row_count; i++)
        result->row[i] =
            (struct step_result_row){.slot = asked->row[i].slot, .sampled = {.token = s->answer}};
    assert_false(batcher_step_done(&s->on.batcher));
    doorbell_ring(&control->done[0].bell, asked->serial);
    assert_true(batcher_step_done(&s->on.batcher));
    if (batcher_take_result(&s->on.batcher, s->now_us, &taken, &err)) fail_msg("%s", err.text);
    assert_true(taken);
}

/* The worker's part, then the batcher's. */
static inline void step(struct stage *s)
{
    s->now_us += 1000;
    if (s->on.batcher.in_flight) answer(s);
    batcher_pump(&s->on.batcher, s->now_us);
}

/* The newest step in flight. */
static inline const struct step *newest(const struct stage *s)
{
    return &arena_control_of(&s->on.arena)->step[s->on.batcher.serial % ARENA_STEP_RING];
}

static inline const struct sequence *find(const struct batcher *batcher, uint64_t id)
{
    for (uint32_t i = 0; i < batcher->seq_count; i++)
        if (batcher->seq[i]->id == id) return batcher->seq[i];
    return NULL;
}

static inline bool has_slot(const struct stage *s, uint64_t id)
{
    const struct sequence *seq = find(&s->on.batcher, id);
    return seq && seq->slot != SEQUENCE_NO_SLOT;
}
