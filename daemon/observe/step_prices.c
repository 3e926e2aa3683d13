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
}

/* The correction of steps of `tokens` tokens: the mean of measured ones. The nearer their number of tokens, the more they count, so
 * that one step which was held up does not rule its number out. */
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

bool step_prices_get(const struct step_prices *prices, uint32_t rows, uint32_t context,
                     double seconds[STEP_PRICES_TOKENS + 1])
{
    if (!step_prices_known(prices, rows, context)) return false;
    const double *forecast = prices->row[rows - 1].seconds;
    if (forecast[rows] <= 0) return false;
    memset(seconds, 0, (STEP_PRICES_TOKENS + 1) * sizeof *seconds);
    for (uint32_t n = rows; n <= STEP_PRICES_TOKENS; n++)
        seconds[n] = fmax(seconds[n - 1], forecast[n] * correction(prices, n));
    return true;
}

void step_prices_take(struct step_prices *prices, const struct cost_step *step, uint32_t copies,
                      double seconds)
{
    if (step->tokens > STEP_PRICES_TOKENS || !step_prices_known(prices, step->rows, step->context)) return;
    const double forecast = prices->row[step->rows - 1].seconds[step->tokens] + copies * prices->copy;
    if (forecast <= 0 || seconds <= 0) return;
    uint32_t *steps = &prices->measured[step->tokens].steps;
    double *mean = &prices->measured[step->tokens].ratio, ratio = seconds / forecast;
    if (*steps) ratio = fmin(fmax(ratio, *mean / STEP_PRICES_JUMP), *mean * STEP_PRICES_JUMP);
    if (*steps < STEP_PRICES_STEPS) ++*steps;
    *mean += (ratio - *mean) / *steps;
}
