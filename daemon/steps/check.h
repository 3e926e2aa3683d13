/* The model's own check of activations rounded to int8: how far they move the distribution of the next token.
 *
 * Called by loop.c when the workers of a plan with int8 activations are ready for the first time, before any request is
 * served. It alone uses the arena then: sequences of tokens that the model itself draws (temperature 1, fixed seeds)
 * are computed position by position twice, by steps flagged STEP_EXACT, which draw the tokens, and by steps as the plan
 * has them, over the same tokens and pages of their own. Behind each pair of steps both rows of logits are compared.
 * Some sequences are steps of one row, since one token has other kernels than several; the others go through the model
 * together. The worse mean of the two counts.
 *
 * Owns its rows and tokens; what it leaves in slots, page tables and cache is garbage. */
#ifndef HELM_DAEMON_STEPS_CHECK_H
#define HELM_DAEMON_STEPS_CHECK_H

#include <stdbool.h>

#include "common/model/model.h"
#include "common/shared/arena.h"
#include "daemon/planner/activations/verdict.h"

#define CHECK_SEQUENCES 16
#define CHECK_POSITIONS 32                 /* of each that are compared */
#define CHECK_ALONE     2                  /* sequences that are steps of one row */
#define CHECK_US        UINT64_C(60000000) /* after so long fewer positions are enough: but VERDICT_LEAST */

struct check_sums {
    double divergence; /* sum */
    uint32_t positions;
};

struct check_sequence {
    uint32_t token[CHECK_POSITIONS + 2];
};

struct check {
    const struct arena *arena;        /* borrowed */
    const struct model_config *model; /* borrowed */
    uint32_t workers;                 /* that take part in a step */
    float *exact;                     /* [rows][vocab] */
    struct check_sequence *sequence;  /* [sequences] */
    uint32_t sequences, rows;         /* rows: of a step, at most */
    uint32_t first;                   /* tokens of a sequence before the first that is drawn */
    uint32_t pages;                   /* of a sequence, for each of the two ways */
    uint64_t started_us, begun_us;    /* of all of it; of the step in flight */
    uint32_t serial;                  /* of the last step rung */
    uint32_t at, from, count;         /* position of the step, its sequences */
    bool rounded;                     /* it is the second of its pair */
    bool running;
    struct check_sums one, few; /* by steps of one row, of several */
};

/* Sizes it for the arena, in steps of at most step_tokens tokens. HELM_E_CAPACITY: the KV cache holds too few
 * positions for a verdict. */
HELM_MUST_CHECK int check_open(const struct arena *arena, const struct model_config *model, uint32_t workers,
                               uint32_t step_tokens, struct check *check, struct helm_err *err);
void check_close(struct check *check);

/* The workers are ready, and nothing was rung in this epoch: rings its first step. Called again after they were lost,
 * it begins anew. */
void check_begin(struct check *check, uint64_t now_us);
/* Looks whether every worker is done with the step in flight; takes it and rings the next. *done: there is none. An
 * answer that breaks the protocol: HELM_E_PEER. */
HELM_MUST_CHECK int check_take(struct check *check, uint64_t now_us, bool *done, struct helm_err *err);
/* Workers were lost. */
void check_lost(struct check *check);

/* What was found so far; of `units` half layers (verdict.h). */
void check_found(const struct check *check, uint32_t units, struct verdict *verdict);

#endif
