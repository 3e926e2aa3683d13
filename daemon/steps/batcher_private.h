/* Shared by the batcher's files. Included by these alone. */
#pragma once

#include "daemon/steps/batcher.h"

/* A slot's row of the page table. */
uint32_t *batcher_row_of(const struct batcher *batcher, uint32_t slot);
/* Steps in flight may still compute on the slot: it stays unchanged until they are done. */
void batcher_leave_slot(struct batcher *batcher, struct sequence *seq);
/* Back to in front of its slot. Pages that it leaves are found again unless others take them. */
void batcher_preempt(struct batcher *batcher, struct sequence *seq);
/* Takes the slot of the request that has waited for a Resume longest, if others need one. False: no slot was
 * taken. */
bool batcher_take_waiting(struct batcher *batcher);
/* The sequence's tokens into its slot's history. */
void batcher_write_history(const struct batcher *batcher, const struct sequence *seq);
/* The pages of the sequence that left the slot, which no step in flight has any more. */
void batcher_free_left(struct batcher *batcher, uint32_t slot);
/* The step of a serial in flight, or of the next one. */
struct batcher_flight *batcher_flight_of(struct batcher *batcher, uint32_t serial);
static inline uint32_t batcher_oldest_serial(const struct batcher *batcher)
{
    return batcher->serial - batcher->in_flight + 1;
}
/* The workers begin the oldest step in flight now. */
void batcher_begin_oldest(struct batcher *batcher, uint64_t now_us);
bool batcher_ended(const struct sequence *seq);
/* Tokens of the last result, in its order. */
void batcher_send_tokens(struct batcher *batcher);
/* Rings the step that was formed in the place of the next serial. */
void batcher_ring(struct batcher *batcher, uint64_t now_us);

/* The results of a row: after its last known token, and after each draft. */
struct batcher_sampled {
    const struct step_result_row *row, *drafted;
};
static inline const struct step_result_row *batcher_sample_of(const struct batcher_sampled *sampled,
                                                              uint32_t i)
{
    return i ? &sampled->drafted[i - 1] : sampled->row;
}

/* batcher_drafts.c. Whether a new sequence's rows have drafts, as its request says. */
void batcher_begin_drafts(const struct batcher *batcher, struct sequence *seq, enum request_speculate asked);
/* Whether the next step should wait for a token in flight, since the drafts are found by it. */
bool batcher_waits_for_drafts(struct batcher *batcher);
/* Adds drafts to the first `count` sequences of the view. */
void batcher_find_drafts(struct batcher *batcher, uint32_t count);
/* Those that the row has, which is about to be rung, into the history. */
void batcher_write_drafts(const struct batcher *batcher, struct sequence *seq, const struct step_row *row);
/* Has the layer of drafts make those of the next rows, as many as these have room for. */
void batcher_ask_drafts(struct batcher *batcher, struct step *step);
/* Takes the drafts made for the row, from the place `made` of the result on; its tokens were taken. */
void batcher_take_made(struct batcher *batcher, struct sequence *seq, const struct step_row *row,
                       uint32_t made);
/* How many of a row's drafts were right: the first so many were sampled. */
uint32_t batcher_keep_drafts(struct batcher *batcher, struct sequence *seq, const struct step_row *row,
                             const struct batcher_sampled *sampled);
/* A step is done that took `seconds`. Then, of each of its rows: it made `tokens` tokens. For what drafts
 * gain. */
void batcher_time_drafts(struct batcher *batcher, const struct batcher_flight *flight, double seconds);
void batcher_count_gain(struct batcher *batcher, struct sequence *seq, uint32_t tokens);
/* The sequence's next token is known: whether a draft would have been right. Before it is appended. */
void batcher_compare_draft(struct sequence *seq, uint32_t token);
/* While the workers compute: makes prices that were missing, and finds the drafts of sequences whose steps
 * have none, for their rates. `rung`: a step was rung since the last call. */
void batcher_watch_drafts(struct batcher *batcher, bool rung);

/* batcher_drafter.c. Takes the draft model's answers from now on. */
void batcher_open_drafter(struct batcher *batcher);
/* Asks for the drafts of all sequences whose newest tokens are known. */
void batcher_ask_drafter(struct batcher *batcher, uint64_t now_us);
/* Whether the maker of its drafts can be asked after the next step: a layer always can. */
bool batcher_can_ask(const struct batcher *batcher, const struct sequence *seq);
/* The sequence has ended. */
void batcher_leave_drafter(struct batcher *batcher, struct sequence *seq);

/* batcher.c: rings the move that waits, with nothing in flight; takes the end of the one that was
 * rung. */
void batcher_ring_move(struct batcher *batcher, uint64_t now_us);
void batcher_end_move(struct batcher *batcher, uint64_t now_us);
