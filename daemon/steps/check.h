/* The model's own check of activations rounded to int8: how far they move the distribution of the next token.
 *
 * Called by loop.c when the workers of a plan with int8 activations are ready for the first time, before any
 * request is served, for CHECK_US at most; if that is too short, again between requests, while nothing else
 * is open. Its steps have the workers and all slots for themselves: sequences of tokens that the model itself
 * draws (temperature 1, fixed seeds) are computed position by position twice, by steps flagged STEP_EXACT,
 * which draw the tokens, and by steps as the plan has them, over the same tokens and pages of their own.
 * After each pair of steps both rows of logits are compared. Some sequences are steps of one row, since one
 * token has other kernels than several; the others go through the model together. The worse mean of the two
 * counts.
 *
 * Such a run of steps is a round. A round that is interrupted gives its pages back and keeps its sums; the
 * next one draws other sequences. So sums may also come from an earlier start of helmd (verdict.h keeps
 * them).
 *
 * Where states are of fixed size every sequence has a snapshot for each of the two ways, which its rows begin
 * with and leave.
 *
 * Owns its rows and tokens, and holds its pages and snapshots during a round; it leaves garbage in slots and
 * page tables. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "common/model/model.h"
#include "common/shared/arena.h"
#include "daemon/planner/activations/verdict.h"
#include "daemon/steps/kv_pages.h"
#include "daemon/steps/snapshots.h"

#define CHECK_SEQUENCES 16
#define CHECK_POSITIONS 32                 /* of each that are compared */
#define CHECK_ALONE     2                  /* sequences that are steps of one row */
#define CHECK_SOON_US   UINT64_C(3000000)  /* after this time VERDICT_LEAST positions are enough */
#define CHECK_US        UINT64_C(10000000) /* the most that it takes before requests are served */

struct check_sums {
    double divergence; /* sum */
    uint32_t positions;
};

struct check_sequence {
    uint32_t token[CHECK_POSITIONS + 2];
};

struct check {
    const struct arena *arena;        /* borrowed */
    struct kv_pages *pool;            /* borrowed */
    struct snapshots *snapshots;      /* borrowed */
    const struct model_config *model; /* borrowed */
    uint32_t workers;                 /* that take part in a step */
    float *exact;                     /* [rows][vocab] */
    struct check_sequence *sequence;  /* [sequences] */
    uint32_t sequences, rows;         /* rows: of a step, at most */
    uint32_t first;                   /* tokens of a sequence before the first that is drawn */
    uint32_t pages;                   /* of a sequence, for each of the two ways */
    uint32_t *table,
        held; /* the pages of a round: [sequences][2][pages], or none; then their pages of windows */
    uint32_t state[2 * CHECK_SEQUENCES]; /* snapshots of a round: [sequences][2] */
    uint32_t states;                     /* of them held */
    uint32_t seed;                       /* of the round's sequences: positions before it */
    uint64_t started_us, begun_us;       /* of the round; of the step in flight */
    uint64_t took_us[2][2];              /* [of several rows][rounded]: the last such step; 0: unknown */
    uint32_t serial;                     /* of the last step rung */
    uint32_t at, from, count;            /* position of the step, its sequences */
    bool rounded;                        /* it is the second of its pair */
    bool running;
    bool idle;                  /* the round runs between requests: no bound of time */
    struct verdict before;      /* positions 0: nothing; else found by an earlier start */
    struct check_sums one, few; /* by steps of one row, of several */
};

/* All but the last two are borrowed. step_tokens: of a step, at most. before: sums to go on from, or NULL. */
struct check_options {
    const struct arena *arena;
    const struct model_config *model;
    struct kv_pages *pool;
    struct snapshots *snapshots;
    const struct verdict *before;
    uint32_t workers; /* that take part in a step */
    uint32_t step_tokens;
};
/* Sizes it for the arena. HELM_E_CAPACITY: the KV cache holds too few positions for a verdict, or there are
 * too few snapshots. */
HELM_MUST_CHECK int check_open(const struct check_options *options, struct check *check,
                               struct helm_err *err);
void check_close(struct check *check);

/* The workers are ready, and no step is in flight; `serial` is that of the last one rung in this epoch. Rings
 * the first step of a round: of the first one, which forgets what was found since check_open, or, if `idle`,
 * of a further one. HELM_E_BUSY: there are no pages or snapshots for it now. */
HELM_MUST_CHECK int check_begin(struct check *check, uint32_t serial, bool idle, uint64_t now_us);
/* Looks whether every worker is done with the step in flight; takes it and rings the next. *done: there is
 * none, since the round is over, its time is up, or it has to `yield` to a request. An answer that breaks the
 * protocol: HELM_E_PEER. */
HELM_MUST_CHECK int check_take(struct check *check, bool yield, uint64_t now_us, bool *done,
                               struct helm_err *err);
/* Workers were lost. */
void check_lost(struct check *check);

/* Positions that were compared so far. */
uint32_t check_positions(const struct check *check);
/* The findings so far; of `units` half layers (verdict.h). verdict_says_enough tells whether it decides. */
void check_found(const struct check *check, uint32_t units, struct verdict *verdict);

/* How far one distribution of the next token is from another: Kullback-Leibler divergence of two rows of
 * logits. Sum over tokens of p log(p / q), natural logarithm, where p and q are the softmax of `exact` and
 * `other`; never negative. As in sampling, a token whose logit is not finite is out (its probability is 0).
 * INFINITY: no logit of `exact` is finite, or a token that `exact` may draw is out in `other`. */
double divergence_of(const float *exact, const float *other, uint32_t count);
