/* The batcher: open sequences on one side, the worker's step ring on the other.
 *
 * Called by serve.c (submit, cancel), workers.c (worker up, down) and loop.c (pump, result, deadlines); one
 * thread. Owns the sequences, the page allocator and helmd's regions of the arena (step, slots, history, page
 * table), of which it writes only what no step in flight reads.
 *
 * Steps in flight. While a step of the plan's decode list with one token a row is computed, the one after it
 * is rung: its rows are formed as if every token that is being sampled had come, and were none that ends its
 * sequence. So workers do not wait for helmd between tokens. The cost: a sequence that ends otherwise than by
 * its length has a row too many, which is ignored; a new or cancelled request waits for as many steps as are
 * in flight instead of one. After a step that computes prompts nothing is rung: it is long beside helmd's
 * turn, and others would wait for two. A request that ends is done with at once; its slot and its pages are
 * free when the last step that has them is done.
 *
 * A worker's death costs time, not tokens: the sequences keep their tokens and are computed again by the next
 * workers. Where all KV lies in the arena it is kept when the worker was killed from outside (nothing can be
 * wrong with it: the step that was cut off is simply run again); it is recomputed when a worker failed by
 * itself, or when a part of it was in VRAM. With a cache in two tiers the whole pages are in the arena: only
 * the last, begun one of each sequence is computed again.
 *
 * Prefixes. Before a step is formed every prompt is given the known pages that go on where it stands
 * (prefix.h). Only full pages are known, and only once the step that filled them is done, so no step in
 * flight writes to a page that others read. Pages that are lost with a worker are known no more: running
 * sequences then compute pages of their own.
 *
 * Constrained requests. The token after next depends on the next one in a way that only the client knows, so
 * no step with a row of such a request is rung ahead, and its next row waits for the mask that the client
 * sends once it has seen the token. The others would go on without it meanwhile, and it would then miss every
 * other step; hence a step is not formed for BATCHER_MASK_WAIT_US while a mask is due. A client that was
 * later than that last time is not waited for, and one that sends none for BATCHER_MASK_LIMIT_US loses its
 * request.
 *
 * Drafts. A row of an answer may have guesses of the tokens after the known ones (batcher_drafts.c). It is
 * sampled after each; those that were sampled are kept, and the sequence goes back to the last right
 * position: the rest of the row is computed over, in pages by the next row, and fixed states begin with a
 * snapshot that the row left in front of its drafts (snapshots.h).
 *
 * Requests that stay. One that has all its tokens may wait for a Resume, which takes back what its client
 * knows better. It waits for BATCHER_STAYS_US with its slot and its pages. Older requests may take its pages,
 * as those of any other. If a request can get no slot or no pages, the one that has waited longest gives up
 * its own.
 *
 * Answers again. In an invariant plan the pages of an answer are not those of a prompt with the same tokens.
 * While there is nothing else to do they are computed again as a prompt's, for later prompts that contain the
 * answer (batcher_again.c).
 *
 * Moves. A page that lies in VRAM alone comes and goes by a step without rows (arena_layout.h). Nothing is in
 * flight with it, since rows that follow look at the step in front of theirs.
 *
 * A step is done when every worker has rung: one of them writes the result, and none may still be reading
 * what the next step overwrites. */
#pragma once

#include "common/shared/arena.h"
#include "common/base/err.h"
#include "common/model/model.h"
#include "daemon/steps/admission.h"
#include "daemon/steps/draft_count.h"
#include "daemon/steps/kv_pages.h"
#include "daemon/observe/metrics.h"
#include "daemon/observe/observe.h"
#include "daemon/steps/prefix.h"
#include "daemon/steps/request.h"
#include "daemon/steps/scheduler.h"
#include "daemon/steps/sequence.h"
#include "daemon/steps/tiers.h"
#include "daemon/children/drafter.h"
#include "daemon/children/workers.h"

#define BATCHER_STEPS         PLAN_STEPS_IN_FLIGHT /* at most: one that is computed, one that is next */
#define BATCHER_MASK_WAIT_US  2000
#define BATCHER_MASK_LIMIT_US 10000000
#define BATCHER_STAYS_US      60000000
#define BATCHER_CRASHES_MAX   3 /* workers that may die computing one request before it is given up */

#define BATCHER_AGAIN_MAX 8

/* Where output goes. token: 0, HELM_E_PEER (client gone) or HELM_E_BUSY (too slow): its requests are
 * cancelled. */
struct batcher_sink {
    void *context;
    int (*token)(void *context, const struct sequence *seq, uint32_t index,
                 const struct sampling_result *sampled);
    void (*done)(void *context, const struct sequence *seq);
    /* The move that batcher_move asked for is done. Not called for a move that was lost with a worker. */
    void (*moved)(void *context);
};

/* The parts that a batcher works with; all pointers are borrowed. */
struct batcher_options {
    const struct model_config *model; /* vocabulary and end-of-sequence ids */
    const struct plan *plan;          /* which list computes a step */
    struct arena *arena;
    struct metrics *metrics;
    struct observe *observe;
    uint32_t workers; /* that take part in every step */
    uint32_t queue_limit;
    enum prefix_sharing sharing;
    enum request_speculate speculate; /* of requests that do not say */
    struct drafter *drafter;          /* the draft model; NULL: there is none */
    struct batcher_sink sink;
};

/* A step that was rung. */
struct batcher_flight {
    struct step step;       /* as sent */
    uint64_t begun_us;      /* when it was rung, or the one in front of it was done */
    double planned_seconds; /* 0: unknown */
    uint64_t waited_us;     /* for a draft model, in front of it */
};

/* Seconds that a draft model takes. */
struct drafter_price {
    double seconds; /* by the forecast until it was asked */
    uint32_t asks;  /* measured */
};

/* Numbers of drafts that follow prices (batcher_drafts.c). */
struct batcher_drafts {
    struct draft_probe probe;
    struct draft_rate made; /* of all sequences: how good the layer's are */
    bool probes;            /* the next step is one of a probe */
    uint32_t rows, context; /* whose prices were missing for the next step; 0 rows: none were */
    /* The time of the step whose result is taken, if it had drafts, and a forecast of one without; 0:
     * unknown */
    double seconds, plain_seconds;
    /* A draft model's prices: of the first draft of each sequence, and of each further one. Since when the
     * next step waits for it; 0: it does not */
    struct drafter_price first, further;
    uint64_t waits_us;
};

struct batcher_slot {
    struct sequence *owner; /* NULL: none, or it has left */
    uint32_t steps;         /* in flight with a row of this slot: it is not reused before they are done */
    uint32_t left_pages,
        left_window; /* pages of the owner that left, free when `steps` is 0; its window_first */
};

struct batcher {
    struct batcher_options with;

    struct admission admission; /* of the clients of these: */
    struct sequence **seq;      /* [seq_count], oldest first; one of `again` only when no request is open */
    uint32_t seq_count, seq_capacity;
    struct sequence *again[BATCHER_AGAIN_MAX]; /* ended, waiting to be computed again; oldest first */
    uint32_t again_count;
    struct scheduler_seq *view; /* [seq_capacity]: the scheduler's view, and the sequence of each entry */
    uint32_t *view_index;
    struct admission_request *queue_view; /* [seq_capacity]: admission's view */
    struct batcher_slot slot[ARENA_SLOTS_MAX];
    struct kv_pages pages;
    struct snapshots snapshots;
    struct tiers tiers;
    struct tiers_member member[ARENA_SLOTS_MAX]; /* their view of the running sequences */
    uint64_t next_id, turn;
    uint64_t prompt_turn; /* an invariant plan's steps of prompts, */
    bool prompts_last;    /* and whether the last step was one */
    uint32_t list_tokens[PLAN_LISTS_MAX];

    bool worker_ready;
    bool paused;        /* the workers are the check's (check.h): no step is rung */
    bool exact;         /* all steps are STEP_EXACT, until the check has ended */
    uint32_t serial;    /* of the last step rung */
    uint32_t in_flight; /* steps rung and not taken: serial - in_flight + 1 .. serial */
    struct batcher_flight flight[ARENA_STEP_RING]; /* by serial */
    uint64_t done_us;                              /* when the last step taken was done */
    struct arena_times times[ARENA_WORKERS_MAX];   /* the workers' times of it */
    struct pace pace;                              /* when the oldest in flight should be done */
    struct batcher_drafts drafts;
    struct step_result result; /* copied out of shared memory before it is believed */
    struct {
        struct sequence *seq;
        uint32_t index;
        const struct step_result_row *got;
    } unsent[ARENA_STEP_ROWS +
             ARENA_STEP_DRAFTS]; /* tokens of that result that wait until the next step was rung */
    uint32_t unsent_count;
    struct {
        uint32_t flags; /* of STEP_KV_MOVES; 0: none */
        uint32_t page;
        bool rung;
        bool yields; /* the last step was one, so that the next one is of requests, if any has work */
    } move;
};

HELM_MUST_CHECK int batcher_init(struct batcher *batcher, const struct batcher_options *options,
                                 struct helm_err *err);
void batcher_free(struct batcher *batcher);

/* Takes a checked request. HELM_E_BUSY: no place in the queue, or none for this client (admission.h). The
 * sequence is borrowed (Accepted is made from it). */
HELM_MUST_CHECK int batcher_submit(struct batcher *batcher, struct request_generate *request,
                                   const struct asker *asker, uint64_t now_us, const struct sequence **out,
                                   struct helm_err *err);
const struct sequence *batcher_find_request(const struct batcher *batcher, uint64_t client,
                                            uint64_t request_id);
const struct sequence *batcher_find(const struct batcher *batcher, uint64_t id);
/* Ends it at once. HELM_E_NOT_FOUND. */
HELM_MUST_CHECK int batcher_cancel(struct batcher *batcher, uint64_t id, const char *detail);
void batcher_cancel_client(struct batcher *batcher, uint64_t client, const char *detail);
void batcher_finish_all(struct batcher *batcher, Helm__V1__FinishReason reason, const char *detail);

/* Takes a mask for token `index` of a client's request; *mask is then no longer the caller's. A mask for no
 * open request is dropped: it crossed the request's end. A mask that is not due ends the request, and so does
 * a wrong one (`wrong` says why; NULL: it is right). */
void batcher_take_mask(struct batcher *batcher, const struct asker *asker, uint32_t **mask, uint32_t index,
                       const char *wrong, uint64_t now_us);

/* Goes on with a client's request that stays. One that is not due, or does not fit, ends the request, and so
 * does a wrong one (`wrong` says why; NULL: it is right); one for no open request is dropped. */
void batcher_resume(struct batcher *batcher, const struct asker *asker, const struct request_resume *resume,
                    const char *wrong);

/* Requests that are open; of them those with a slot, and those without. */
uint32_t batcher_open(const struct batcher *batcher);
uint32_t batcher_running(const struct batcher *batcher);
uint32_t batcher_queued(const struct batcher *batcher);
/* How many requests must end before this one gets a slot (admission_ends_before); 0: none. */
uint32_t batcher_queue_position(struct batcher *batcher, const struct sequence *seq);

/* batcher_again.c. Takes a sequence that ended, reported or not: to be computed again, or to be freed. */
void batcher_again_take(struct batcher *batcher, struct sequence *seq);
/* If no request is open, puts one into the list. False: some request is, or there is nothing to compute
 * again. */
HELM_MUST_CHECK bool batcher_again_begin(struct batcher *batcher);
/* The most tokens of the next step: step_tokens, or fewer if one is computed again. */
uint32_t batcher_again_tokens(const struct batcher *batcher, uint32_t step_tokens);
/* A request has come: it goes first. */
void batcher_again_yield(struct batcher *batcher);
void batcher_again_free(struct batcher *batcher);

/* Has a page moved between VRAM and the session region by a step of its own, as soon as no other is in
 * flight; between two of them requests have a step. `flags`: STEP_KV_OUT or STEP_KV_IN. The page has a holder
 * until it is done. One at a time: false while another is under way, or no worker is ready. */
HELM_MUST_CHECK bool batcher_move(struct batcher *batcher, uint32_t flags, uint32_t page);

/* Applies deadlines; returns the time of the next one, or 0. */
uint64_t batcher_apply_deadlines(struct batcher *batcher, uint64_t now_us);
/* When the next step does not wait for a draft model any more; 0: it does not wait. */
uint64_t batcher_waits_for_drafter(struct batcher *batcher, uint64_t now_us);
/* The draft model, its memory and its times in words; "" without one. */
#define BATCHER_DRAFTER_TEXT 400
void batcher_describe_drafter(const struct batcher *batcher, char text[BATCHER_DRAFTER_TEXT]);
/* Rings as many steps as may be in flight; then, while they are computed, sends the tokens of the last one
 * taken and Done for what has ended. */
void batcher_pump(struct batcher *batcher, uint64_t now_us);
/* The oldest step in flight, if there is one. */
const struct batcher_flight *batcher_oldest(const struct batcher *batcher);
/* Whether every worker has rung for it. */
bool batcher_step_done(const struct batcher *batcher);
/* Takes its result if it is done (*taken); its tokens are sent by batcher_pump. HELM_E_PEER: the answer
 * breaks the protocol. */
HELM_MUST_CHECK int batcher_take_result(struct batcher *batcher, uint64_t now_us, bool *taken,
                                        struct helm_err *err);

/* Before workers are spawned: sets the epoch, silences every bell, empties the lanes, and writes the tokens
 * of every slot again. */
void batcher_prepare_worker(struct batcher *batcher, uint32_t epoch);
void batcher_worker_ready(struct batcher *batcher);
/* Whether nothing is open, in flight or waiting to be computed. */
bool batcher_idle(const struct batcher *batcher);
/* Steps up to this one were rung by the check (check.h), and are done. */
void batcher_goes_on(struct batcher *batcher, uint32_t serial);
/* Steps are as the plan has them from now on. Only while it is idle: pages that were computed exact are
 * forgotten. */
void batcher_end_exact(struct batcher *batcher);
void batcher_worker_lost(struct batcher *batcher, const struct workers_loss *loss);
