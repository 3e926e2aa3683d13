/* Guesses of a sequence's next tokens that need no model: what followed when the text last read like this.
 *
 * Called by batcher_drafts.c. The longest end of prompt and answer so far is looked for earlier in them, and
 * in the prediction that came with the request; what followed there are the drafts. The nearest place counts,
 * of equally long ones the prediction's. Pure: nothing is kept, so the memory is bounded by the tokens
 * themselves, and the time by DRAFTS_LOOK positions. */
#pragma once

#include "daemon/steps/sequence.h"

#define DRAFTS_MATCH_LEAST 2  /* tokens: one alone is found everywhere */
#define DRAFTS_MATCH_SURE  8  /* so many go before drafts by the model's own layer, which cost time */
#define DRAFTS_MATCH_MAX   32 /* that are compared */
#define DRAFTS_ALIGNED     8  /* last tokens of the answer that the prediction is compared with, in place */
#define DRAFTS_LOOK        65536

/* Finds up to `most` drafts, to come after the sequence's known tokens, with a match of `least` tokens or
 * more; how many. An answer that agrees with its prediction matches. */
uint32_t drafts_find(const struct sequence *seq, uint32_t least, uint32_t most, uint32_t *draft);
/* How many drafts the sequence's next row may have, of at most `most`, after `kept` of `drafts` were right:
 * twice as many after a row of right ones, else one more than were right. */
uint32_t drafts_next(uint32_t most, uint32_t drafts, uint32_t kept);
