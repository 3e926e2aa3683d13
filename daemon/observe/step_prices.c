/* Seconds of steps of few tokens. See step_prices.h. Called from the one loop; owns nothing. */
#include "daemon/observe/step_prices.h"

#include <math.h>
#include <string.h>

void step_prices_begin(const struct forecast *forecast, struct step_prices *prices)
{
    memset(prices, 0, sizeof *prices);
    prices->copy = cost_copy_states(forecast->c.profile, forecast->c.plan);
}

static uint32_t logarithm(uint32_t context)
{
    uint32_t n = 1;
    while (context >>= 1) n++;
    return n;
}

bool step_prices_known(const struct step_prices *prices, uint32_t rows, uint32_t context)
{
    return rows >= 1 && rows <= STEP_PRICES_TOKENS && prices->row[rows - 1].context == logarithm(context);
}

void step_prices_make(struct step_prices *prices, const struct forecast *forecast, uint32_t rows,
                      uint32_t context)
{
    if (rows < 1 || rows > STEP_PRICES_TOKENS) return;
    struct step_prices_row *row = &prices->row[rows - 1];
    row->context = logarithm(context);
    const uint32_t low = UINT32_C(1) << (row->context - 1), middle = low + low / 2;
    for (uint32_t tokens = rows; tokens <= STEP_PRICES_TOKENS; tokens++) {
        const struct cost_step step = cost_step_drafted(tokens, rows, middle);
        row->seconds[tokens] = forecast_step(forecast, &step);
    }
    row->first = row->further = 0;
    if (!forecast->c.model->config.drafts) return;
    struct cost_step step = cost_step_drafted(rows, rows, middle);
    double made[2]; /* by the drafts that each row makes, less 1 */
    for (int i = 0; i < 2; i++) {
        step.drafts = 1 + i;
        made[i] = forecast_step(forecast, &step);
    }
    row->first = fmax(0, made[0] - row->seconds[rows]);
    row->further = fmax(0, made[1] - made[0]);
}

/* The correction of steps of `tokens` tokens: the mean of measured ones. The nearer their number of tokens,
 * the more they count, so that one step which was held up does not rule its number out. */
static double correction(const struct step_prices *prices, uint32_t tokens)
{
    double sum = 0, weights = 0;
    for (uint32_t n = 1; n <= STEP_PRICES_TOKENS; n++) {
        const uint32_t apart = n > tokens ? n - tokens : tokens - n;
        const double weight = prices->measured[n].steps / (1.0 + STEP_PRICES_APART * apart);
        sum += weight * prices->measured[n].ratio;
        weights += weight;
    }
    return weights > 0 ? sum / weights : 1;
}

bool step_prices_get(const struct step_prices *prices, uint32_t rows, struct step_prices_row *corrected)
{
    if (rows < 1 || rows > STEP_PRICES_TOKENS) return false;
    const struct step_prices_row *forecast = &prices->row[rows - 1];
    if (forecast->seconds[rows] <= 0) return false;
    const double made = prices->made.steps ? prices->made.ratio : correction(prices, rows);
    *corrected = (struct step_prices_row){.context = forecast->context,
                                          .first = forecast->first * made,
                                          .further = forecast->further * made};
    for (uint32_t n = rows; n <= STEP_PRICES_TOKENS; n++)
        corrected->seconds[n] = fmax(corrected->seconds[n - 1], forecast->seconds[n] * correction(prices, n));
    return true;
}

/* One more measurement of what the forecast says to take so long. */
static void take_ratio(struct step_prices_ratio *mean, double forecast, double seconds)
{
    double ratio = seconds / forecast;
    if (forecast <= 0 || seconds <= 0) return;
    if (mean->steps)
        ratio = fmin(fmax(ratio, mean->ratio / STEP_PRICES_JUMP), mean->ratio * STEP_PRICES_JUMP);
    if (mean->steps < STEP_PRICES_STEPS) ++mean->steps;
    mean->ratio += (ratio - mean->ratio) / mean->steps;
}

void step_prices_take(struct step_prices *prices, const struct cost_step *step, uint32_t copies,
                      double further, double seconds)
{
    struct step_prices_row now;
    if (step->tokens > STEP_PRICES_TOKENS || !step_prices_known(prices, step->rows, step->context)) return;
    const struct step_prices_row *row = &prices->row[step->rows - 1];
    if (step->drafts > 1) take_ratio(&prices->made, (step->drafts - 1) * row->further, further);
    if (step->drafts && step_prices_get(prices, step->rows, &now)) seconds -= further + now.first;
    take_ratio(&prices->measured[step->tokens], row->seconds[step->tokens] + copies * prices->copy, seconds);
}
