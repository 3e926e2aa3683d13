/* Looks at every step that was done. See observe.h. Called from the one loop. */
#include "daemon/observe/observe.h"

#include <string.h>

#include "common/base/log.h"

void observe_init(struct observe *o, uint32_t cpu, uint32_t gpu, uint32_t gpus, uint64_t max_stall_ms)
{
    o->cpu = cpu;
    o->gpu = gpu;
    o->gpus = gpus;
    o->max_stall = (double)max_stall_ms / 1e3;
    memset(&o->drift, 0, sizeof o->drift);
    step_prices_begin(&o->forecast, &o->prices);
    observe_lost(o);
}

void observe_lost(struct observe *o)
{
    memset(o->prompt, 0, sizeof o->prompt);
}

void observe_enter(struct observe *o, uint32_t slot, uint32_t tokens)
{
    o->prompt[slot] = (struct observe_prompt){.given = tokens};
}

void observe_settle(struct arena_times *done, uint32_t workers, uint64_t step_ns, uint32_t step_flags)
{
    for (uint32_t w = 0; w < workers; w++) {
        if (done[w].busy_ns > step_ns) done[w].busy_ns = step_ns;
        if (done[w].wait_ns > step_ns - done[w].busy_ns) done[w].wait_ns = step_ns - done[w].busy_ns;
    }
    if (workers != 2 || step_flags & STEP_KV_ASSISTED) return;
    struct arena_times *gpu = &done[1];
    uint64_t part_ns = gpu->busy_ns + gpu->wait_ns, beside_ns = step_ns - part_ns;
    uint64_t least_ns = done[0].busy_ns > beside_ns ? done[0].busy_ns - beside_ns : 0;
    if (least_ns > part_ns) least_ns = part_ns;
    if (gpu->wait_ns >= least_ns) return;
    gpu->wait_ns = least_ns;
    gpu->busy_ns = part_ns - least_ns;
}

static bool is_decode(const struct step *step)
{
    for (uint32_t i = 0; i < step->row_count; i++)
        if (step->row[i].count != 1 || step->row[i].start == 0 || step->row[i].drafts_next ||
            !(step->row[i].flags & STEP_ROW_SAMPLE))
            return false;
    return true;
}

/* Positions that the rows of a step attend to, in the mean. */
static double mean_context(const struct step *step)
{
    uint64_t positions = 0;
    for (uint32_t i = 0; i < step->row_count; i++) positions += step->row[i].start + step->row[i].count;
    return (double)positions / step->row_count;
}

/* The most drafts that a row of the step makes for its next one. */
static uint32_t drafts_made(const struct step *step)
{
    uint32_t most = 0;
    for (uint32_t i = 0; i < step->row_count; i++)
        if (step->row[i].drafts_next > most) most = step->row[i].drafts_next;
    return most;
}

double observe_planned(struct observe *o, const struct step *step)
{
    struct cost_forecast f;
    uint32_t context = (uint32_t)(mean_context(step) + 0.5), samples = 0;
    if (is_decode(step)) {
        forecast_decode(&o->forecast, step->row_count, context, &f);
        return f.seconds;
    }
    for (uint32_t i = 0; i < step->row_count; i++) samples += step->row[i].flags & STEP_ROW_SAMPLE;
    samples += step->draft_count;                                 /* STEP_ROW_SAMPLE is 1 */
    const uint32_t own = step->token_count / step->row_count + 1; /* every row is priced alike */
    const struct cost_step cost = {.tokens = step->token_count,
                                   .rows = step->row_count,
                                   .samples = samples,
                                   .drafts = drafts_made(step),
                                   .context = context > own ? context : own};
    return forecast_step(&o->forecast, &cost);
}

static void take_decode(struct observe *o, const struct step *step, const struct arena_times *done,
                        double seconds)
{
    struct cost_forecast f;
    double context = mean_context(step);
    forecast_decode(&o->forecast, step->row_count, (uint32_t)(context + 0.5), &f);
    struct drift_work measured = {.seconds = seconds,
                                  .link_bytes = o->forecast.reads ? (double)o->forecast.link_bytes : 0};
    /* The GPU worker counts all that is not the CPU's turn as busy. */
    const struct drift_work planned = {.seconds = f.seconds,
                                       .cpu_busy = f.busy[COST_CPU],
                                       .gpu_busy = f.busy[COST_GPU] > 0 ? f.seconds - f.busy[COST_CPU] : 0,
                                       .gpu_computes = f.busy[COST_GPU],
                                       .link_busy = f.busy[COST_LINK],
                                       .cpu_bytes = (double)o->forecast.cpu_bytes,
                                       .link_bytes = (double)o->forecast.link_bytes};
    if (o->cpu != OBSERVE_NO_WORKER) {
        measured.cpu_busy = (double)done[o->cpu].busy_ns / 1e9;
        measured.cpu_bytes = (double)done[o->cpu].weight_bytes;
    }
    for (uint32_t g = 0; g < o->gpus; g++) {
        measured.gpu_busy += (double)done[o->gpu + g].busy_ns / 1e9;
        measured.link_bytes += (double)done[o->gpu + g].link_bytes;
    }
    switch (drift_take_decode(&o->drift, step->row_count, context, &measured, &planned)) {
    case DRIFT_BEGINS:
        log_warn("drift: %s", o->drift.text);
        break;
    case DRIFT_ENDS:
        log_info("drift: %s", o->drift.text);
        break;
    case DRIFT_NOTHING:
        break;
    }
}

/* Rows that carry prompts: their times add up until the row that samples. A prompt that was not computed from
 * its first token on is none to compare with. */
static void take_prompts(struct observe *o, const struct step *step, double seconds)
{
    for (uint32_t i = 0; i < step->row_count; i++) {
        const struct step_row *row = &step->row[i];
        struct observe_prompt *prompt = &o->prompt[row->slot];
        if (row->start == 0) *prompt = (struct observe_prompt){.given = prompt->given, .alone = true};
        prompt->alone = prompt->alone && step->row_count == 1 && row->start == prompt->tokens;
        if (!prompt->alone) continue;
        const struct cost_step cost = {.tokens = row->count,
                                       .rows = 1,
                                       .samples = (row->flags & STEP_ROW_SAMPLE) != 0,
                                       .context = row->start + row->count};
        prompt->tokens += row->count;
        prompt->measured += seconds;
        prompt->planned += forecast_step(&o->forecast, &cost);
        if (!(row->flags & STEP_ROW_SAMPLE)) continue;
        drift_take_ttft(&o->drift, prompt->tokens, prompt->measured, prompt->planned);
        prompt->alone = false;
    }
}

/* Steps of answers alone, with drafts or without. */
static void take_few(struct observe *o, const struct step *step, double further, double seconds)
{
    uint32_t copies = 0;
    for (uint32_t i = 0; i < step->row_count; i++) {
        const struct step_row *row = &step->row[i];
        if (row->start == 0 || row->start < o->prompt[row->slot].given || !(row->flags & STEP_ROW_SAMPLE))
            return;
        copies += (row->drafts > 0) + (row->state_from != 0);
    }
    const struct cost_step cost = {.tokens = step->token_count,
                                   .rows = step->row_count,
                                   .drafts = drafts_made(step),
                                   .context = (uint32_t)mean_context(step)};
    step_prices_take(&o->prices, &cost, copies, further, seconds);
}

void observe_step(struct observe *o, const struct step *step, const struct arena_times *done, double further,
                  double seconds)
{
    take_few(o, step, further, seconds);
    if (is_decode(step))
        take_decode(o, step, done, seconds);
    else
        take_prompts(o, step, seconds);
}

uint32_t observe_prompt_tokens(struct observe *o, uint32_t decoding, uint32_t context)
{
    return o->max_stall > 0 && decoding ? forecast_chunk(&o->forecast, decoding, context, o->max_stall) : 0;
}
