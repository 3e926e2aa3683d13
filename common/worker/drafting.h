/* Drafts by the model's own layer: which batches its worker computes after a step, and what of them goes into
 * the result.
 *
 * Called by the step code of each worker that has the head, with the step's result written and its residual
 * stream still there. The layer's input at a position is the answer's hidden state there and the token after
 * it: known, sampled, or a draft. First the layer is computed over all tokens of the step, so that its cache
 * follows; rows that ask for drafts are sampled at their last right position. Then each row goes on with one
 * token at a time. A draft is drawn as the token itself will be, by the request's parameters, seed and index,
 * so that equal distributions draw equal tokens. Nothing of the step's result depends on it. Owns nothing. */
#pragma once

#include "common/worker/batch.h"

/* A row that gets drafts. */
struct drafting {
    struct batch_row row; /* as in the step */
    uint32_t right;       /* the last position whose token is right */
    uint32_t wants;       /* drafts */
};
struct draftings {
    struct drafting list[ARENA_STEP_DRAFTS];
    uint32_t count, made; /* rows that go on; drafts of each so far */
    /* of each the token of the batch before whose hidden state it goes on with */
    uint32_t from[ARENA_STEP_DRAFTS];
};

/* The tokens that a draw at a sample is made from: as of a step's own (sampling.h), and the one after
 * them. */
#define DRAFTING_FURTHER 1

/* Makes the first batch of the step's: the same rows, each token the next one; samples of the rows that get
 * drafts. Writes the token that the step sampled to the history of these. */
void drafting_begin(const struct arena *arena, uint32_t vocab, const struct step_result *result,
                    struct batch *batch, struct draftings *drafts);
/* Takes what was drawn for each sample, by number, into the result, and makes the next batch: one token of
 * each row that goes on. False: none does. */
bool drafting_next(const struct arena *arena, const struct step_result_row *drawn, struct batch *batch,
                   struct draftings *drafts, struct step_result *result);
