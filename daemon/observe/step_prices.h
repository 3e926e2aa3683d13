/* Seconds of steps of few tokens, by their tokens: the plan's forecast, corrected by the steps that were
 * measured.
 *
 * Called by observe.c, for speculation (daemon/steps/batcher_drafts.c): how much longer a step takes with
 * drafts decides how many there are. Owned by `struct observe`; allocates nothing. Forecasts are made for a
 * number of rows and a context, which is taken in powers of two, when helmd has time for it: they take some
 * 50 us each. The correction of a number of tokens is the mean of what measured steps took, divided by their
 * forecasts: of steps with so many tokens, and less of others. */
#pragma once

#include "daemon/observe/forecast.h"

#define STEP_PRICES_TOKENS ENGINE_FEW_TOKENS
/* Measured steps that a correction remembers. */
#define STEP_PRICES_STEPS 16
/* Steps with one token more or less count by this much less, with two by twice as much: 1 / (1 + 3), 1 / (1 +
 * 6). */
#define STEP_PRICES_APART 3
/* Times by which one step moves the mean at most: it may have been held up. */
#define STEP_PRICES_JUMP 2.0

struct step_prices_row {
    uint32_t context; /* floor of its logarithm + 1; 0: no forecast was made */
    double seconds[STEP_PRICES_TOKENS + 1];
    double first, further; /* seconds by which a step is longer that makes a draft of each row, and by each
                              further one */
};
struct step_prices_ratio {
    double ratio;   /* of measured seconds to the forecast's */
    uint32_t steps; /* measured; STEP_PRICES_STEPS: so many or more */
};
struct step_prices {
    struct step_prices_row row[STEP_PRICES_TOKENS];            /* by rows - 1 */
    struct step_prices_ratio measured[STEP_PRICES_TOKENS + 1]; /* by tokens */
    struct step_prices_ratio made; /* to make drafts, after the first of each row */
    double
        copy; /* seconds to copy the fixed states of a sequence to a snapshot, or back; 0: there are none */
};

/* Forgets everything. */
void step_prices_begin(const struct forecast *forecast, struct step_prices *prices);
/* Whether forecasts of steps of `rows` rows at this context are made; makes them. */
bool step_prices_known(const struct step_prices *prices, uint32_t rows, uint32_t context);
void step_prices_make(struct step_prices *prices, const struct forecast *forecast, uint32_t rows,
                      uint32_t context);
/* Corrected seconds by tokens, from `rows` on; a step of more tokens is never cheaper; and those to make
 * drafts by the model's own layer. They are of the context that forecasts were last made for. False: of none
 * yet. */
bool step_prices_get(const struct step_prices *prices, uint32_t rows, struct step_prices_row *corrected);
/* A step took `seconds`, of them `further` to make drafts after the first of each row. `copies`: sequences
 * that left or began with a snapshot because of drafts. */
void step_prices_take(struct step_prices *prices, const struct cost_step *step, uint32_t copies,
                      double further, double seconds);
