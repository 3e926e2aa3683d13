/* How many drafts each sequence of a step gets: the number with which the step makes the most tokens a
 * second.
 *
 * Called by batcher_drafts.c. Pure; owns nothing. A draft counts only if all drafts in front of it are right.
 * With `d` drafts, each of which is right with probability p, a row makes 1 + p + p^2 + .. + p^d tokens on
 * average. The price of a step is a table of seconds by tokens (daemon/observe/step_prices.h). Each further
 * draft goes to the sequence where it is most likely to be kept, so the best numbers for a step of n tokens
 * are known; the n with the most tokens a second is chosen. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "common/plan/engine_limits.h"

/* Drafts that are computed only if they gain more than this: a sequence with drafts waits for its token
 * before the next step is formed, which the table of seconds does not show before such a step was
 * measured. */
#define DRAFT_GAIN_LEAST 1.02
/* Tokens that an estimate remembers. A new sequence's is that of one draft of which a tenth was right: it
 * begins with drafts where they cost next to nothing, otherwise after the first token that a draft would have
 * guessed. */
#define DRAFT_RATE_TOKENS 40
#define DRAFT_RATE_RIGHT  0.1
/* Those of the model's own layer: one that was trained for it is mostly right, so the first sequence begins
 * with such drafts. Later ones begin with what all have seen, but with so much at least that probes go on. */
#define DRAFT_RATE_MADE       0.7
#define DRAFT_RATE_MADE_LEAST 0.25
#define DRAFT_RATE_MADE_TRIED 2

/* How often the drafts of a sequence are right, and how often there are any: sums that decay. */
struct draft_rate {
    double right, tried;
    double found, looked;
};
void draft_rate_begin(struct draft_rate *rate);
/* `all`: of the sequences before; NULL: it is that one itself. */
void draft_rate_begin_made(struct draft_rate *rate, const struct draft_rate *all);
/* Drafts were looked for. The first `kept` of the `drafts` found, 0 or more, were right. */
void draft_rate_take(struct draft_rate *rate, uint32_t drafts, uint32_t kept);
/* The probability that a draft is right if those in front of it are; that there are drafts. */
double draft_rate_right(const struct draft_rate *rate);
double draft_rate_found(const struct draft_rate *rate);

struct draft_row {
    double right;    /* probability that a draft is right if those in front of it are */
    uint32_t most;   /* drafts that it may have */
    bool made;       /* the model's own layer is to make them first */
    uint32_t drafts; /* result */
};
struct draft_step {
    uint32_t rows;         /* sequences that get a token, with and without drafts */
    uint32_t tokens;       /* of the step without drafts; more than rows if some are computed again */
    uint32_t room;         /* drafts of all rows together at most; tokens + room <= ENGINE_FEW_TOKENS */
    const double *seconds; /* [ENGINE_FEW_TOKENS + 1]: of a step by its tokens, rising */
    /* Seconds to copy a row's fixed states: once in front of its drafts, and once more if one of them is
     * wrong. Then right ones are computed again as well. 0: the model has no fixed states. */
    double copy;
    /* Seconds to make a draft of each row that has `made`, and each further one. So such drafts are chosen
     * one step ahead */
    double first, further;
};
/* Tokens a second with the drafts that rows have, divided by those without. */
double draft_count_gain(const struct draft_step *step, const struct draft_row *row, uint32_t count);
/* Sets the drafts of each of `count` rows, and returns their gain. At least `least` drafts in all, as far as
 * rows may have so many; with 0 there are none if the gain would be less than DRAFT_GAIN_LEAST. */
double draft_count_choose(const struct draft_step *step, uint32_t least, struct draft_row *row,
                          uint32_t count);

/* Prices of steps with drafts are measured only if such steps are computed. So where the table says that
 * drafts do not pay, a step has some now and then all the same. Such steps cost DRAFT_PROBE_PART of all time
 * at most, by the table. */
#define DRAFT_PROBE_PART  0.005
#define DRAFT_PROBE_STEPS 4   /* that the time saved up for probes is at most */
#define DRAFT_PROBE_KEPT  0.1 /* more tokens a row that drafts must bring: fewer gain at no price */
struct draft_probe {
    double spare; /* seconds saved up */
};
/* A step took so long. */
void draft_probe_save(struct draft_probe *probe, double seconds);
/* No drafts were chosen for the rows: sets those of a probe and returns true if there is time for one. */
bool draft_probe_choose(struct draft_probe *probe, const struct draft_step *step, struct draft_row *row,
                        uint32_t count);
