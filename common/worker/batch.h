/* A step's rows, checked: every worker makes this batch of the ring's description before it computes.
 *
 * Called by each worker's step code. All workers of a step must leave out the same rows, or their lanes would
 * carry different tokens: hence one definition. Owns nothing; the arrays are the caller's. */
#pragma once

#include <stdbool.h>

#include "common/shared/arena.h"

struct batch_row {
    const uint32_t *pages;
    const uint32_t *places; /* in VRAM, of pages from host_tokens on; NULL with one tier */
    const uint32_t
        *windows; /* pages of layers that keep a window, from the first that it sees on; NULL: none does */
    uint32_t slot, start, count;
    uint32_t host_tokens, direct_from; /* as in struct step_row, */
    uint32_t state_from;               /* and these */
    struct step_state left[ARENA_ROW_STATES];
    uint32_t token_first; /* index of its first token in the step */
    uint32_t result;      /* row of the step it came from */
    bool sample;
    uint32_t drafts, drafts_next; /* as in struct step_row, */
    uint32_t made;                /* and the place in the result's `made` of the first of drafts_next */
    bool follows;                 /* STEP_ROW_FOLLOWS */
    bool masked;                  /* STEP_ROW_MASKED */
    uint32_t pools;               /* STEP_ROW_POOL_MEAN, STEP_ROW_POOL_LAST or 0 */
};

/* A position that is sampled. */
struct batch_sample {
    uint32_t row;    /* index into batch.row */
    uint32_t at;     /* tokens of the row up to it: it is after the last of them */
    uint32_t result; /* row of the result */
};

struct batch {
    uint32_t *token, *position; /* [step_tokens] */
    uint8_t *token_row;         /* [step_tokens] index into row */
    uint32_t token_count;       /* with the flags it decides the schedule: plan_schedule_of */
    uint32_t flags;             /* of the step */
    struct batch_row row[ARENA_STEP_ROWS];
    uint32_t row_count;
    struct batch_sample sample[ARENA_STEP_ROWS]; /* in the order of tokens */
    uint32_t sample_count;
    uint32_t pool_count; /* rows that are pooled */
    bool assisted;       /* STEP_KV_ASSISTED: every worker walks the hand-overs of queries */
};

/* The first position of a row that is not the CPU's in an assisted step, in a layer of this window:
 * direct_from, and of a window (0: none) the same part of the positions that it sees below host_tokens. Whole
 * pages. */
static inline uint32_t batch_direct_from(const struct batch_row *row, uint32_t window, uint32_t page_tokens)
{
    const uint32_t host = row->host_tokens / page_tokens, direct = row->direct_from / page_tokens,
                   hidden = row->start + 1 > window ? (row->start + 1 - window) / page_tokens : 0;
    if (!window) return row->direct_from;
    if (hidden >= host) return row->host_tokens; /* it sees none of them */
    return (hidden + (uint32_t)(((uint64_t)(host - hidden) * direct + host / 2) / host)) * page_tokens;
}

/* The token of the step after which sample `i` is drawn. */
static inline uint32_t batch_sample_token(const struct batch *batch, uint32_t i)
{
    return batch->row[batch->sample[i].row].token_first + batch->sample[i].at - 1;
}

/* The snapshot that a row leaves after `at` of its tokens; STATE_NO_SNAPSHOT: none. */
static inline uint32_t batch_left_at(const struct batch_row *row, uint32_t at)
{
    for (uint32_t i = 0; i < ARENA_ROW_STATES && row->left[i].to; i++)
        if (row->left[i].at == at) return row->left[i].to;
    return STATE_NO_SNAPSHOT;
}
/* The first position after `from` where it leaves one, or its last token. */
static inline uint32_t batch_left_next(const struct batch_row *row, uint32_t from)
{
    for (uint32_t i = 0; i < ARENA_ROW_STATES && row->left[i].to; i++)
        if (row->left[i].at > from) return row->left[i].at;
    return row->count;
}

/* Takes every valid row of `step` and begins *result: an invalid row gets STEP_ROW_BAD. Every index is
 * checked before it is used. HELM_E_LIMIT when the step as a whole is malformed. */
HELM_MUST_CHECK int batch_take(const struct arena *arena, uint32_t vocab, const struct step *step,
                               struct batch *batch, struct step_result *result, struct helm_err *err);
/* Called next by workers with the embedding or the head: takes the tokens of rows that follow from the result
 * of the step before, which must be there by now (engine_wait_drawn). head: also writes them to the history,
 * of which this worker is the writer there. HELM_E_PEER when that result is of another step. */
HELM_MUST_CHECK int batch_follow(const struct arena *arena, uint32_t vocab, const struct step *step,
                                 bool head, struct batch *batch, struct helm_err *err);

/* Rows whose hidden states are pooled: the final norm and the sum, by one definition for every worker.
 * Called by the head's worker after a step's layers; writes the slot's place in the arena's `pooled` alone.
 *
 * x: [count][hidden], the residual stream of the row's tokens first .. first + count, in order and without
 * gaps from call to call. norm: [hidden], the final norm's weight; eps: what it adds to the mean of squares
 * (Zhang, Sennrich 2019: RMSNorm). */
struct pooled_part {
    uint32_t first, count;
    const float *x, *norm;
    const float *bias; /* of a LayerNorm; NULL: the norm is RMS, or has none */
    bool layer_norm;
    double eps;
};
void pooled_take(const struct arena *arena, const struct batch_row *row, const struct pooled_part *part);
