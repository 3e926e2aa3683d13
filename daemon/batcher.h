/* The batcher: open sequences on one side, the worker's step ring on the other.
 *
 * Called by serve.c (submit, cancel), workers.c (worker up, down) and loop.c (pump, result, deadlines); one
 * thread. Owns the sequences, the page allocator and helmd's regions of the arena (step, slots, history, page
 * table), which it writes only while no step that reads them is in flight. One step is in flight at a time.
 *
 * A worker's death costs time, not tokens: the sequences keep their tokens and are computed again by the next
 * workers. Where all KV lies in the arena it is kept when the worker was killed from outside (nothing can be
 * wrong with it: the step that was cut off is simply run again); it is recomputed when a worker failed by
 * itself, or when a part of it was in VRAM.
 *
 * A step is done when every worker has rung: one of them writes the result, and none may still be reading
 * what the next step overwrites. */
#ifndef HELM_DAEMON_BATCHER_H
#define HELM_DAEMON_BATCHER_H

#include "common/arena.h"
#include "common/err.h"
#include "common/model/model.h"
#include "daemon/admission.h"
#include "daemon/kv_pages.h"
#include "daemon/metrics.h"
#include "daemon/observe.h"
#include "daemon/pace.h"
#include "daemon/request.h"
#include "daemon/scheduler.h"
#include "daemon/sequence.h"
#include "daemon/workers.h"

#define BATCHER_CRASHES_MAX 3 /* workers that may die computing one request before it is given up */

/* Where output goes. token: 0, HELM_E_PEER (client gone) or HELM_E_BUSY (too slow): its requests are
 * cancelled. */
struct batcher_sink {
    void *context;
    int (*token)(void *context, const struct sequence *seq, uint32_t index,
                 const struct sampling_result *sampled);
    void (*done)(void *context, const struct sequence *seq);
};

struct batcher {
    const struct model_config *model; /* borrowed: vocabulary and end-of-sequence ids */
    struct arena *arena;              /* borrowed */
    struct metrics *metrics;          /* borrowed */
    struct observe *observe;          /* borrowed */
    struct batcher_sink sink;

    struct admission admission; /* of the clients of these: */
    struct sequence **seq;      /* [seq_count], oldest first */
    uint32_t seq_count, seq_capacity;
    struct scheduler_seq *view; /* [seq_capacity]: what the scheduler is shown, and which sequence each is */
    uint32_t *view_index;
    struct admission_request *queue_view; /* [seq_capacity]: what admission is shown */
    struct sequence *slot_owner[ARENA_SLOTS_MAX];
    struct kv_pages pages;
    uint64_t next_id, turn;

    uint32_t workers; /* that take part in every step */
    bool worker_ready, paused;
    uint32_t serial; /* of the last step rung */
    bool in_flight;
    uint64_t rung_us, done_us;                 /* when; and when the one before was done */
    struct arena_done done[ARENA_WORKERS_MAX]; /* what the workers wrote of the last step */
    double planned_seconds;                    /* of the one in flight */
    struct pace pace;                          /* when it should be done */
    struct step step;                          /* the one in flight, as sent */
    struct step_result result;                 /* copied out of shared memory before it is believed */
    struct {
        struct sequence *seq;
        uint32_t index, row;
    } unsent[ARENA_STEP_ROWS]; /* tokens of that result that wait until the next step was rung */
    uint32_t unsent_count;
};

HELM_MUST_CHECK int batcher_init(struct batcher *batcher, const struct model_config *model,
                                 struct arena *arena, uint32_t workers, uint32_t queue_limit,
                                 const struct batcher_sink *sink, struct metrics *metrics,
                                 struct observe *observe, struct helm_err *err);
void batcher_free(struct batcher *batcher);

/* Takes a checked request. HELM_E_BUSY: no place in the queue, or none for this client (admission.h). The
 * sequence is borrowed (Accepted is made from it). */
HELM_MUST_CHECK int batcher_submit(struct batcher *batcher, struct request_generate *request, uint64_t client,
                                   uint64_t request_id, uint64_t now_us, const struct sequence **out,
                                   struct helm_err *err);
const struct sequence *batcher_find(const struct batcher *batcher, uint64_t id);
const struct sequence *batcher_find_request(const struct batcher *batcher, uint64_t client,
                                            uint64_t request_id);
/* Ends it at once, or after the step that is computing it. HELM_E_NOT_FOUND. */
HELM_MUST_CHECK int batcher_cancel(struct batcher *batcher, uint64_t id, const char *detail);
void batcher_cancel_client(struct batcher *batcher, uint64_t client, const char *detail);
void batcher_finish_all(struct batcher *batcher, Helm__V1__FinishReason reason, const char *detail);

uint32_t batcher_running(const struct batcher *batcher);
uint32_t batcher_queued(const struct batcher *batcher);
/* How many requests must end before this one gets a slot (admission_ends_before); 0: none. */
uint32_t batcher_queue_position(struct batcher *batcher, const struct sequence *seq);

/* Applies deadlines; returns the next one, or 0. */
uint64_t batcher_apply_deadlines(struct batcher *batcher, uint64_t now_us);
/* Rings the next step if a worker is free; then, while it is computed, sends the tokens of the one before and
 * Done for what has ended. */
void batcher_pump(struct batcher *batcher, uint64_t now_us);
/* Whether every worker has rung for the step in flight. */
bool batcher_step_done(const struct batcher *batcher);
/* A worker says that its part of a step is done; its tokens are sent by batcher_pump. HELM_E_PEER: the answer
 * breaks the protocol. */
HELM_MUST_CHECK int batcher_take_result(struct batcher *batcher, uint64_t now_us, struct helm_err *err);

/* Before workers are spawned: sets the epoch, silences every bell and empties the lanes. */
void batcher_prepare_worker(struct batcher *batcher, uint32_t epoch);
void batcher_worker_ready(struct batcher *batcher);
void batcher_worker_lost(struct batcher *batcher, const struct workers_loss *loss);

#endif
