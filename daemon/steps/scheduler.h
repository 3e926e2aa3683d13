/* Which sequences run in the next step, and how many tokens of each: a pure function.
 *
 * Called by batcher.c with a view of every open sequence, as it will be when the steps in flight are done;
 * touches nothing but its output.
 * Rules:
 *   1. Decode first: every running sequence with one token to go gets it, oldest first. With it go its
 *      drafts, and the tokens that are computed again in front of it.
 *   2. The rest of step_tokens goes to prompts, in chunks, peers taking turns (`turn` rotates from step to
 *      step), within a peer its clients, within a client the oldest request first. Beside rows that decode,
 *      prompts get at most prompt_tokens, since each of those rows waits for the whole step.
 *   3. A waiting sequence gets a slot when one is free and the pages for all its tokens are, but for those
 *      that it will share with running ones, beside those that these are still to take (at least one each).
 *      The peer with the fewest running sequences goes first, of several the one that got a slot longest ago;
 *      of its clients likewise, then the oldest request. So a request waits for at most one slot of each
 *      other peer, and of each other client of its own peer, however much they have queued. A request that
 *      does not fit is not overtaken, so none starves.
 *   4. The common beginning of two prompts is computed once: a sequence whose next page another one of this
 *      step fills with the same tokens gets nothing in it, and finds the page when the step is done. If two
 *      fill the same page, the one that has more of it goes first, in the other one's turn if need be.
 *      With fixed states this goes for all that both have in common up to the next position where the other
 *      one leaves a snapshot.
 *   5. A held sequence (its next token's mask has not come) gets nothing and is not admitted; others pass it.
 *   6. In an invariant plan (common/plan/schedule.h) a step has either tokens of prompts alone, all of one
 *      list, or tokens after prompts: at most few_tokens, and of each sequence as many as are known and not
 *      computed. Where there are both, the two kinds of steps take turns; where more sequences want a token
 *      than a step has, sequences take turns.
 *   7. A row ends at its sequence's `cut`, after the most snapshots of fixed states that a row can leave.
 *   8. No deadlock: a sequence that needs a page when none is free takes those of the youngest running one,
 *      which goes back to waiting and is computed again later (its tokens are kept, so its stream goes on).
 *      The oldest is therefore never stopped, and it fits alone because the pool holds at least one whole
 *      context. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "common/plan/engine_limits.h"

#define SCHEDULER_ROWS_MAX 64

struct scheduler_seq {
    uint64_t order;  /* arrival; unique; lower is older and keeps its place after a preemption */
    uint64_t client; /* that sent it, for its peer (admission.h): clients take turns */
    uint64_t peer;   /* of that client: peers take turns first */
    /* when these were given a slot last: grows from one slot given to the next (admission.h) */
    uint64_t client_turn, peer_turn;
    bool running;    /* has a slot */
    bool held;       /* gets nothing now, but its pages may be taken */
    uint32_t tokens; /* known tokens: prompt and output so far; then its drafts */
    uint32_t drafts; /* of `tokens`, the last so many are drafts (docs/speculation.md) */
    uint32_t again;  /* so many after `cached` are computed again, since a draft was wrong */
    uint32_t cached; /* of these, how many have KV; < tokens */
    uint32_t cut;    /* its row ends there at most, if that is above `cached` (snapshots.h) */
    uint32_t pages;  /* held now; 0 when not running */
    /* equal for two sequences whose next page, or page begun, has the same tokens after the same beginning,
     * with fixed states all up to the next cut; 0: not a whole page of known tokens, or no other sequence can
     * share it */
    uint64_t next_page;
    /* of an invariant plan: tokens of the prompt, and the list that computes them */
    uint32_t prompt, list;
};

/* Whether all that it has to go is one row of an answer: its newest token, what is computed again, its
 * drafts. */
static inline bool scheduler_decodes(const struct scheduler_seq *s)
{
    return s->tokens - s->cached <= 1 + s->again + s->drafts;
}

struct scheduler_limits {
    uint32_t slots;       /* in all */
    uint32_t step_tokens; /* >= slots */
    uint32_t page_tokens;
    uint32_t pages_free;
    bool fixed; /* some layer's state is: what is shared reaches to a cut */
    /* Most tokens of prompts in a step in which other rows decode; 0: no such bound */
    uint32_t prompt_tokens;
    uint64_t turn; /* grows by one each step, of an invariant plan each step of prompts */
    /* An invariant plan's; list_tokens NULL: it is none. */
    const uint32_t *list_tokens; /* the most of a step of prompts, by list */
    uint32_t few_tokens;         /* of another one */
    uint64_t few_turn;           /* grows by one each step */
    bool prompts_next;           /* it is the prompts' turn, if there are any */
    /* Pages that this waiting sequence (an index into the input) is going to share with those that hold them;
     * NULL: none */
    uint32_t (*shared)(const void *context, uint32_t seq);
    const void *context;
};

struct scheduler_row {
    uint32_t seq; /* index into the input */
    uint32_t start, count;
    uint32_t pages; /* that the sequence must hold for this row */
    bool sample;
    uint32_t drafts; /* the last of `count` */
};

/* To be carried out in this order: preempt, admit, then rows. No sequence is both in `preempt` and in `row`.
 * A preempted one counts as if it shared no page, an admitted one as if it had found none: where pages are
 * shared the step is formed again once these are carried out, admissions first. */
struct scheduler_step {
    uint32_t preempt[SCHEDULER_ROWS_MAX], preempt_count;
    uint32_t admit[SCHEDULER_ROWS_MAX], admit_count;
    struct scheduler_row row[SCHEDULER_ROWS_MAX];
    uint32_t row_count, token_count;
    bool prompts; /* in an invariant plan: whether it is a step of prompts, and by which list */
    uint32_t list;
};

void scheduler_form_step(const struct scheduler_seq *seqs, uint32_t count,
                         const struct scheduler_limits *limits, struct scheduler_step *step);

/* ---- when the oldest step in flight should end ----
 *
 * As long after it began as the steps like it before. Steps of few tokens alternate if their drafts are right
 * at times, so each number of tokens has its own. Called by batcher.c, which tells it of steps, and by
 * loop.c, which looks for the end without pause around that time: waking up takes longer than everything else
 * between two steps. */

/* Polling begins this long before the expected end and ends this long after it: at least PACE_MARGIN_US, or
 * the step's time by PACE_MARGIN. */
#define PACE_MARGIN_US 100
#define PACE_MARGIN    32
/* The end of a longer step is not polled for. Waking up takes less than a hundredth of it, and polling takes
 * a CPU from workers that compute on all of them: their other threads then wait for the one that was held
 * up. */
#define PACE_LONGEST_US 8000

struct pace_size {
    uint64_t last_us, before_us; /* times of the last two steps of this size; 0: there was none */
};
struct pace {
    uint32_t rows, tokens; /* of the oldest step in flight, or the last one */
    uint64_t begun_us;     /* when it was rung, or the one before it was done */
    struct pace_size few[ENGINE_FEW_TOKENS +
                         1];    /* of so many rows, by tokens; of more tokens, as many as the last one, [0] */
    uint64_t from_us, until_us; /* the end is looked for between these; both 0: it is not */
};

/* A step was rung and none was in flight, or the one before it is done. */
void pace_begin(struct pace *pace, uint32_t rows, uint32_t tokens, uint64_t now_us);
/* It is done. */
void pace_end(struct pace *pace, uint64_t now_us);
/* It will not be. */
void pace_lost(struct pace *pace);
