/* Prices by measured programs. See cost/measured.h; docs/planner-programs.md has the method. Called by
 * cost.c; owns nothing. */
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

/* Positions of a row that a layer sees: a window's are no more than it has, and those of a chunk's own
 * tokens. */
static double seen(const struct pricing *p, double window)
{
    const double own = pricing_tokens_a_row(p->step);
    return window > 0 ? fmin(p->step->context, window + own - 1) : p->step->context;
}

/* By how much attention of a chunk of several rows takes longer than one row's: each has a cache of its own.
 * By rates. */
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

/* Seconds at the memory's present rate (profile_now_apply): a byte takes as much longer as reading it does. A
 * program that was faster than the reads of its time moves in proportion. */
static double moved(const struct profile *profile, double seconds, double bytes)
{
    const double then = profile->programs_then, now = profile->programs_now;
    if (then <= 0 || now <= 0) return seconds;
    return fmax(0, seconds + fmin(bytes, seconds * then) * (1 / now - 1 / then));
}

/* A question to a half layer's times, or to the head's. */
struct asked {
    bool head, attends, few;
    double window; /* of a layer that attends; 0: none */
};

/* False: the programs were measured with another cache. */
static bool ask(const struct pricing *p, uint32_t unit, struct asked *asked)
{
    const uint32_t *windows = p->model->config.window;
    asked->head = unit == unit_count(p->model->config.layers);
    asked->attends = !asked->head && model_unit_math(p->model, unit)->attends;
    asked->few = p->step->tokens <= ENGINE_FEW_TOKENS;
    asked->window = asked->attends && windows ? windows[unit_layer(unit)] : 0;
    return !asked->attends || strcmp(p->profile->programs->kv_dtype, kv_dtype_name(p->step->kv_dtype)) == 0;
}

/* By these times, in a cache of so many positions a row: few tokens were measured in a row each, those that
 * share one read its cache once. False: no cell is near. */
static bool look_up(const struct pricing *p, const struct asked *asked, const struct programs_times *times,
                    double positions, struct programs_price *price)
{
    const struct cost_step *step = p->step;
    const double context = positions * (asked->few ? (double)step->rows / step->tokens : 1);
    return programs_at(times, asked->head ? step->samples : step->tokens, asked->head ? 0 : context, price);
}

/* A prompt of few tokens in an invariant plan: it is a chunk there. */
static bool is_short_chunk(const struct cost_step *step)
{
    return step->invariant && step->tokens <= ENGINE_FEW_TOKENS && !cost_step_decodes(step);
}

/* ---- the GPU ---- */

/* The GPU's programs of such a step; PROGRAMS_GPU_WAYS: none were measured. */
static enum programs_gpu_way gpu_way(const struct pricing *p)
{
    const struct cost_step *step = p->step;
    if (!p->profile->programs || !p->device) return PROGRAMS_GPU_WAYS;
    if (is_short_chunk(step)) return PROGRAMS_GPU_WAYS;
    return step->invariant ? PROGRAMS_GPU_INVARIANT : PROGRAMS_GPU;
}

void measured_price_gpu(const struct pricing *p, uint32_t unit, double elsewhere, struct cost_unit *u)
{
    const enum programs_gpu_way way = gpu_way(p);
    struct asked asked;
    struct programs_price price;
    if (way == PROGRAMS_GPU_WAYS || u->gpu_packed || !ask(p, unit, &asked)) return;
    const struct programs_kind *kind = programs_find(p->profile->programs, p->analysed->signature[unit]);
    if (!kind) return;
    const double positions = fmax(1, seen(p, asked.window) - (asked.attends ? elsewhere : 0));
    if (!look_up(p, &asked, &kind->gpu[way], positions, &price)) return;
    u->gpu = price.seconds;
    if (asked.attends && !asked.few && p->step->rows > 1) u->gpu += more_rows(p, &p->gpu, asked.window);
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
    struct asked asked;
    struct programs_price price;
    if (!p->profile->programs || is_short_chunk(p->step) || !ask(p, unit, &asked)) return;
    const struct programs_times *times = times_of(p, unit, u->cpu_packed);
    if (!times || !look_up(p, &asked, times, seen(p, asked.window), &price)) return;
    double seconds = price.seconds;
    if (asked.attends && !asked.few && p->step->rows > 1) seconds += more_rows(p, &p->cpu, asked.window);
    seconds = moved(p->profile, seconds,
                    asked.head ? (double)u->bytes : read_bytes(p, unit, asked.attends, asked.window));
    const double company = price.beside > 0 ? price.beside / price.seconds : u->cpu_beside / u->cpu;
    u->cpu_beside = seconds * fmax(1, company);
    u->cpu = seconds;
    u->cpu_spread = price.spread;
    u->cpu_measured = true;
}
