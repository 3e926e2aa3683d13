/* Snapshots of fixed states: which of them stands for which tokens, and which a step reads and writes
 * (docs/state.md).
 *
 * Called by batcher.c (rows), prefix.c (what a sequence may go on from), batcher_workers.c (losses) and
 * sessions.c; the one place of helmd that maps a sequence to its fixed states at a position. Where no layer's
 * state is fixed all of this is off and changes nothing. Owns its table; the bytes are the arena's, and
 * workers alone write them in steps.
 *
 * A snapshot is known by the number of the page that ends at its position (prefix_index.h), which stands for
 * all tokens up to there. A number is never given twice, so a snapshot whose page was reused is never found,
 * and goes when it is the one used longest ago. A pinned snapshot is one that a step in flight reads or
 * writes, or that a sequence is about to begin with. A broken count is a broken invariant: abort.
 *
 * A snapshot that a sequence leaves comes after the one that it began with or left last: the snapshots of a
 * conversation are a tree. A sequence that begins with one, or leaves one, uses all in front of it. If all
 * are in use, one of the lowest rank gives its place away, the one used longest ago, of those used together
 * one with a longer one, of these the one that saves the fewest tokens compared with the one in front of it:
 * so a long conversation's are thinned evenly:
 *   1. at no mark, with a longer one after it, or after a conversation that went on without it; and any that
 *      was not used since as many snapshots as there are were;
 *   2. at a mark, at a prompt's end, or where a sequence began, with longer ones after it;
 *   3. the same among the newest of its conversation (SNAPSHOTS_NEWEST); and any with none after it. */
#pragma once

#include "common/plan/plan.h"
#include "common/shared/arena.h"
#include "daemon/steps/sequence.h"

/* Long prompts leave snapshots at multiples of this, or of a step's tokens if these are more
 * (snapshots_prompt_every). */
#define SNAPSHOTS_PROMPT_TOKENS 1024
#define SNAPSHOTS_ANSWER_TOKENS 32 /* an answer likewise, of which the newest stays */
#define SNAPSHOTS_MARK_TOKENS   64 /* a mark nearer to the snapshot in front of it leaves none */
#define SNAPSHOTS_MARKS_NEAR    4  /* the last marks; those in front are as far apart as a long prompt's */
#define SNAPSHOTS_NEWEST        4  /* of a conversation, which its next turn is likely to begin with */

struct snapshot {
    uint64_t number; /* of the page that ends there; 0: not known yet, or free */
    uint64_t before; /* the snapshot in front of it, by its number; 0: none */
    uint64_t used;   /* when it, or one after it, was known or begun with last; 0: free */
    uint32_t end;    /* its position */
    uint32_t longer; /* snapshots directly after it */
    uint32_t newer;  /* snapshots of its conversation after it, when that was used last */
    bool marked;     /* at a mark, at the end of a prompt, or a sequence began with it */
    uint32_t pins;
    uint32_t next; /* in its bucket */
};

struct snapshots {
    bool on;      /* some layer's state is fixed */
    bool chooses; /* it is, or some layer keeps a window: positions are chosen where prompts leave what others
                     find */
    uint32_t count, mask;
    uint32_t page_tokens, prompt_every, answer_every;
    uint64_t clock, hits, dropped; /* hits: begun with; dropped: found no more, for others */
    struct snapshot *snapshot;     /* [count + 1], from 1 on */
    uint32_t *bucket;              /* [mask + 1] */
};

/* Positions between two snapshots of a long prompt: whole pages. */
uint32_t snapshots_prompt_every(const struct plan *plan, uint32_t page_tokens);
HELM_MUST_CHECK int snapshots_init(struct snapshots *all, const struct plan *plan, uint32_t page_tokens,
                                   struct helm_err *err);
void snapshots_free(struct snapshots *all);

/* The snapshot at the end of the page of this number, or STATE_NO_SNAPSHOT. */
uint32_t snapshots_find(const struct snapshots *all, uint64_t number);
/* The sequence, of which no step is in flight, begins with this one: its next row does. */
void snapshots_begin(struct snapshots *all, struct sequence *seq, uint32_t snapshot);
/* It gives up its slot, or begins anew. */
void snapshots_leave(struct snapshots *all, struct sequence *seq);

/* A new sequence's marks become the ends of pages where it leaves snapshots. */
void snapshots_mark(const struct snapshots *all, struct sequence *seq);
/* The next position where the sequence leaves one while it is computed as a prompt; 0: nowhere. */
uint32_t snapshots_next(const struct snapshots *all, const struct sequence *seq);
/* The first chosen position after `after`, while it is computed as a prompt; 0: none. */
uint32_t snapshots_chosen(const struct snapshots *all, const struct sequence *seq, uint32_t after);
/* Where the sequence's next row must end at most, since it can leave no more snapshots; 0: anywhere. */
uint32_t snapshots_cut(const struct snapshots *all, const struct sequence *seq);
/* Sequences whose next rows may have drafts: each leaves a snapshot in front of these, to go back to. It is
 * taken for one of them before any row of its step is filled in; not more than there is room for. */
uint32_t snapshots_room(const struct snapshots *all);
void snapshots_reserve(struct snapshots *all, struct sequence *seq);
/* The same for a sequence that stays, whose next row computes its tokens up to `end`, after all others. */
void snapshots_reserve_kept(struct snapshots *all, struct sequence *seq, uint32_t end);
/* Whether the sequence, of which no step is in flight, can go back to `stands` tokens or less, but to no less
 * than `least`; its next row then begins there. Returns these tokens, 0: it cannot. */
uint32_t snapshots_go_back(struct snapshots *all, struct sequence *seq, uint32_t stands, uint32_t least);
/* Fills in what a row that is about to be rung says of states. */
void snapshots_row(struct snapshots *all, struct sequence *seq, struct step_row *row);
/* The page of this number, which the sequence's row has computed, ends at `end`. */
void snapshots_page(struct sequence *seq, uint32_t end, uint64_t number);
/* The row's step is done, and prefix_computed has taken it. If that is less than the row, drafts were wrong:
 * the next row begins with the snapshot in front of them. seq NULL: it has left its slot, or the row
 * failed. */
void snapshots_done(struct snapshots *all, const struct step_row *row, struct sequence *seq);

/* For sessions, and the check (check.h): an empty one, pinned (STATE_NO_SNAPSHOT: all are pinned); then known
 * by its page's number, which ends at `end`, and not pinned. */
uint32_t snapshots_take_empty(struct snapshots *all);
void snapshots_make_known(struct snapshots *all, uint32_t snapshot, uint64_t number, uint32_t end);
/* The same that is of no use any more. */
void snapshots_give_back(struct snapshots *all, uint32_t snapshot);

/* Workers were lost, and no step is in flight: nothing is pinned. intact: what was known stays. */
void snapshots_lost(struct snapshots *all, bool intact);
uint32_t snapshots_known(const struct snapshots *all);
