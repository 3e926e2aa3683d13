/* Prices by measured programs. See cost/measured.h; docs/planner-programs.md has the method. Called by cost.c; owns nothing. */
#include "daemon/planner/cost/measured.h"

#include <math.h>
#include <string.h>

#include "daemon/planner/cost/attention.h"
#include "daemon/planner/profile/programs.h"

/* The times of a unit that multiplies as this step does; NULL: none were measured. */
static const struct programs_times *times_of(const struct pricing *p, uint32_t unit, bool packed)
{
    const struct programs_kind *kind = programs_find(p->profile->programs, p->analysed->signature[unit]);
    const bool invariant = p->step->invariant;
    if (!kind) return NULL;
    int way = packed ? PROGRAMS_PACKED : p->profile->programs_int8 ? PROGRAMS_INT8 : PROGRAMS_EXACT;
    if (way == PROGRAMS_INT8 && !kind->cpu[way].count) way = PROGRAMS_EXACT; /* there are no such kernels */
    if (!invariant) return &kind->cpu[way];
    const struct programs_times *own = &kind->cpu[way + PROGRAMS_INVARIANT];
    return own->count || p->step->tokens > 1 ? own : &kind->cpu[way];
}

/* Positions of a row that a layer sees: a window's are no more than it has, and those of a chunk's own tokens. */
static double seen(const struct pricing *p, double window)
{
    const double own = pricing_tokens_a_row(p->step);
    return window > 0 ? fmin(p->step->context, window + own - 1) : p->step->context;
}

/* By how much attention of a chunk of several rows takes longer than one row's: each has a cache of its own. By rates. */
static double more_rows(const struct pricing *p, const struct device_rates *rates, double window)
{
    struct cost_step step = *p->step;
    struct pricing one = *p;
    struct attention_price all, alone;
    step.rows = 1;
    one.step = &step;
    if (step.context < step.tokens) step.context = step.tokens;
    attention_price(p, rates, window, 0, &all);
    attention_price(&one, rates, window, 0, &alone);
    return fmax(0, fmax(all.memory, all.compute) - fmax(alone.memory, alone.compute));
}

/* Bytes of weights and cache that the step reads. */
static double read_bytes(const struct pricing *p, uint32_t unit, bool attends, double window)
{
    double bytes = attends ? p->step->rows * seen(p, window) * pricing_kv_bytes(p) : 0;
    for (uint32_t i = 0; i < p->model->unit[unit].matrix_count; i++) {
        const struct model_tensor *t = p->model->unit[unit].tensor[i];
        bytes += (double)t->bytes * analyse_read_part(&p->model->config, t, p->step->tokens);
    }
    return bytes;
}

/* What memory gives now (profile_now_apply): a byte takes as much longer as reading it does; what was faster than the reads
 * that now is held against moves in proportion. */
static double moved(const struct profile *profile, double seconds, double bytes)
{
    const double then = profile->programs_then, now = profile->programs_now;
    if (then <= 0 || now <= 0) return seconds;
    return fmax(0, seconds + fmin(bytes, seconds * then) * (1 / now - 1 / then));
}

/* ---- the GPU ---- */

/* The GPU's programs of such a step; PROGRAMS_GPU_WAYS: none were measured. */
static enum programs_gpu_way gpu_way(const struct pricing *p)
{
    const struct cost_step *step = p->step;
    if (!p->profile->programs || !p->device) return PROGRAMS_GPU_WAYS;
    if (!step->invariant) return PROGRAMS_GPU;
    const bool few = step->tokens <= ENGINE_FEW_TOKENS;
    if (few && step->tokens > step->rows) return PROGRAMS_GPU_WAYS; /* a prompt so short is a chunk there */
    return PROGRAMS_GPU_INVARIANT;
}

void measured_price_gpu(const struct pricing *p, uint32_t unit, double window, double elsewhere,
                        struct cost_unit *u)
{
    const struct programs *programs = p->profile->programs;
    const struct cost_step *step = p->step;
    const bool head = unit == unit_count(p->model->config.layers),
               attends = !head && model_unit_math(p->model, unit)->state == STATE_PAGES,
               few = step->tokens <= ENGINE_FEW_TOKENS;
    struct programs_price price;
    const enum programs_gpu_way way = gpu_way(p);
    if (way == PROGRAMS_GPU_WAYS || u->gpu_packed) return;
    if (attends && strcmp(programs->kv_dtype, kv_dtype_name(step->kv_dtype)) != 0) return;
    const struct programs_kind *kind = programs_find(programs, p->analysed->signature[unit]);
    if (!kind) return;
    if (!attends) window = elsewhere = 0;
    const double context =
        fmax(1, seen(p, window) - elsewhere) * (few ? (double)step->rows / step->tokens : 1);
    if (!programs_at(&kind->gpu[way], head ? step->samples : step->tokens, head ? 0 : context, &price))
        return;
    u->gpu = price.seconds;
    if (attends && !few && step->rows > 1) u->gpu += more_rows(p, &p->gpu, window);
    u->gpu_spread = price.spread;
    u->gpu_beside = price.beside / price.seconds;
    u->gpu_measured = true;
}

double measured_begin(const struct pricing *p)
{
    const enum programs_gpu_way way = gpu_way(p);
    struct programs_price price;
    if (way == PROGRAMS_GPU_WAYS ||
        !programs_at(&p->profile->programs->gpu_begin[way], p->step->tokens, 0, &price))
        return 0;
    return price.seconds;
}

/* ---- the CPU ---- */

void measured_price(const struct pricing *p, uint32_t unit, struct cost_unit *u)
{
    const struct programs *programs = p->profile->programs;
    const struct cost_step *step = p->step;
    const bool head = unit == unit_count(p->model->config.layers);
    const bool attends = !head && model_unit_math(p->model, unit)->state == STATE_PAGES;
    struct programs_price price;
    const bool few = step->tokens <= ENGINE_FEW_TOKENS;
    if (!programs) return;
    if (step->invariant && few && step->tokens > step->rows) return; /* a prompt so short is a chunk there */
    if (attends && strcmp(programs->kv_dtype, kv_dtype_name(step->kv_dtype)) != 0) return;
    const struct programs_times *times = times_of(p, unit, u->cpu_packed);
    if (!times) return;
    const double window = attends && p->model->config.window ? p->model->config.window[unit_layer(unit)] : 0;
    /* few tokens were measured in a row each: those that share a row read its cache once */
    const double context = seen(p, window) * (few ? (double)step->rows / step->tokens : 1);
    if (!programs_at(times, head ? step->samples : step->tokens, head ? 0 : context, &price)) return;
    double seconds = price.seconds;
    if (attends && !few && step->rows > 1) seconds += more_rows(p, &p->cpu, window);
    seconds = moved(p->profile, seconds, head ? (double)u->bytes : read_bytes(p, unit, attends, window));
    const double company = price.beside > 0 ? price.beside / price.seconds : u->cpu_beside / u->cpu;
    u->cpu_beside = seconds * fmax(1, company);
    u->cpu = seconds;
    u->cpu_spread = price.spread;
    u->cpu_measured = true;
}
