/* How many drafts a step has. See draft_count.h. Called by batcher_drafts.c; owns nothing. */
#include "daemon/steps/draft_count.h"

#include <math.h>
#include <stddef.h>

#include "daemon/planner/cost/cost.h"

void draft_rate_begin(struct draft_rate *rate)
{
    *rate = (struct draft_rate){.right = DRAFT_RATE_RIGHT, .tried = 1, .found = 1, .looked = 1};
}

void draft_rate_begin_made(struct draft_rate *rate, const struct draft_rate *all)
{
    const double right = all ? fmax(draft_rate_right(all), DRAFT_RATE_MADE_LEAST) : DRAFT_RATE_MADE;
    *rate = (struct draft_rate){.right = right * DRAFT_RATE_MADE_TRIED,
                                .tried = DRAFT_RATE_MADE_TRIED,
                                .found = 1,
                                .looked = 1};
}

static void decay(double *sum, double *count, bool hit)
{
    const double keep = 1 - 1.0 / DRAFT_RATE_TOKENS;
    *sum = *sum * keep + hit;
    *count = *count * keep + 1;
}

void draft_rate_take(struct draft_rate *rate, uint32_t drafts, uint32_t kept)
{
    decay(&rate->found, &rate->looked, drafts > 0);
    /* drafts after the first wrong one say nothing */
    for (uint32_t i = 0; i < drafts && i <= kept; i++) decay(&rate->right, &rate->tried, i < kept);
}

double draft_rate_right(const struct draft_rate *rate)
{
    return rate->right / rate->tried;
}

double draft_rate_found(const struct draft_rate *rate)
{
    return rate->found / rate->looked;
}

/* Tokens that drafts of all rows add, and the seconds of a step with them. */
static double step_of(const struct draft_step *step, const struct draft_row *row, uint32_t count,
                      double *seconds)
{
    uint32_t drafts = 0, made = 0;
    double more = 0, copies = 0, redone = 0;
    for (uint32_t i = 0; i < count; i++) {
        double again;
        if (!row[i].drafts) continue;
        drafts += row[i].drafts;
        if (row[i].made && row[i].drafts > made) made = row[i].drafts;
        more += cost_draft_tokens(row[i].drafts, row[i].right, &again);
        copies += 2 - pow(row[i].right, row[i].drafts);
        redone += again;
    }
    *seconds = step->seconds[step->tokens + drafts];
    if (step->copy > 0 && drafts)
        *seconds += copies * step->copy + redone * (*seconds - step->seconds[step->tokens]) / drafts;
    if (made) *seconds += step->first + (made - 1) * step->further;
    return more;
}

double draft_count_gain(const struct draft_step *step, const struct draft_row *row, uint32_t count)
{
    double seconds;
    const double more = step_of(step, row, count, &seconds);
    return (step->rows + more) / step->rows * step->seconds[step->tokens] / seconds;
}

/* One draft more, for the row that is most likely to keep it. False: none may have more. */
static bool give_one(struct draft_row *row, uint32_t count)
{
    struct draft_row *best = NULL;
    double most = -1;
    for (uint32_t i = 0; i < count; i++) {
        const double kept = pow(row[i].right, row[i].drafts + 1);
        if (row[i].drafts >= row[i].most || kept <= most) continue;
        best = &row[i];
        most = kept;
    }
    if (best) best->drafts++;
    return best;
}

static void give(const struct draft_step *step, uint32_t drafts, struct draft_row *row, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) row[i].drafts = 0;
    for (uint32_t n = 0; n < drafts && n < step->room && give_one(row, count);) n++;
}

double draft_count_choose(const struct draft_step *step, uint32_t least, struct draft_row *row,
                          uint32_t count)
{
    uint32_t best = 0, given = 0;
    double gain = least ? 0 : DRAFT_GAIN_LEAST;
    give(step, 0, row, count);
    while (given < step->room && give_one(row, count)) {
        given++;
        const double now = draft_count_gain(step, row, count);
        if (given < least || now <= gain) continue;
        gain = now;
        best = given;
    }
    give(step, best, row, count);
    return draft_count_gain(step, row, count);
}

void draft_probe_save(struct draft_probe *probe, double seconds)
{
    probe->spare = fmin(probe->spare + DRAFT_PROBE_PART * seconds, DRAFT_PROBE_STEPS * seconds);
}

bool draft_probe_choose(struct draft_probe *probe, const struct draft_step *step, struct draft_row *row,
                        uint32_t count)
{
    double seconds;
    draft_count_choose(step, 1, row, count);
    const double more = step_of(step, row, count, &seconds) / step->rows;
    const double lost = seconds - (1 + more) * step->seconds[step->tokens];
    if (more >= DRAFT_PROBE_KEPT && lost <= probe->spare) {
        probe->spare -= fmax(lost, 0);
        return true;
    }
    give(step, 0, row, count);
    return false;
}
