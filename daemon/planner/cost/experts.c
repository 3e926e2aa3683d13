/* Rates of experts, and prices of those in both memories. See cost/experts.h; called by cost.c. */
#include "daemon/planner/cost/experts.h"

#include <float.h>
#include <math.h>

#include "common/base/units.h"
#include "common/model/arch.h"
#include "daemon/planner/cost/larger.h"
#include "daemon/planner/profile/found.h"

#define GPU_OPERATIONS 2 /* asking, adding the answer */
#define DIRECT_BEGINS  2 /* launches of kernels that read experts over the link, one for either product */

/* ---- rates ---- */

/* How many times as long as one token's a CPU's product with an expert of two tokens takes: by the kernel of
 * several, which of fewer tokens than were measured takes as long as of these, since it decodes the weights
 * once. */
static double longer_of_two(const struct profile *profile, enum tensor_format format,
                            const struct device_rates *one)
{
    const struct profile_format *of = &profile->format[format];
    const struct profile_table *table = of->cpu_linear.count ? &of->cpu_linear : &profile->cpu.linear;
    const uint32_t tokens = table->count && table->point[0].x > 2 ? table->point[0].x : 2;
    const double flops = of->cpu_linear.count ? profile_table_at(table, tokens).value
                                              : cost_rates_linear(table, format, tokens),
                 values = KIB, bytes = (double)tensor_format_row_bytes(format, KIB);
    return flops > 0 ? fmax(1, 2 * values * tokens / flops / (bytes / one->gemv)) : 1;
}

/* Experts of a few tokens, most of which have one token, on the CPU: the part `several` of them has two. */
static void experts_of_several(double several, double longer, struct device_rates *one)
{
    const double times = 1 + several * (longer - 1);
    one->gemv /= times;
    one->gemv_beside /= times;
}

int experts_rates(const struct pricing *p, struct format_rates with[FORMAT_COUNT], struct helm_err *err)
{
    const struct model_router *router = &p->model->config.router;
    const double all = p->step->tokens, part = (double)router->chosen / router->experts,
                 each = all * part / (1 - pow(1 - part, all));
    struct cost_step step = *p->step;
    struct pricing of = *p;
    /* of the experts that are chosen, those that more than one token chose */
    const double several = all > 1 ? 1 - all * part * pow(1 - part, all - 1) / (1 - pow(1 - part, all)) : 0;
    step.tokens = (uint32_t)fmax(1, round(each));
    if (step.rows > step.tokens) step.rows = step.tokens;
    of.step = &step;
    int rc = cost_rates_of(&of, err);
    const struct rates_size size = {step.tokens, of.tier};
    for (int f = 0; f < FORMAT_COUNT && !rc; f++) {
        cost_rates_with(&of, (enum tensor_format)f, &size, &with[f]);
        if (step.tokens == 1 && all > 1 && !tensor_format_of((enum tensor_format)f)->variable)
            experts_of_several(several, longer_of_two(p->profile, (enum tensor_format)f, &with[f].cpu),
                               &with[f].cpu);
    }
    return rc;
}

/* ---- both memories ---- */

struct shares {
    double hits, direct, cpu; /* of all chosen: numbers of experts */
};

static double direct_seconds(const struct pricing *p, double bytes)
{
    return bytes > 0 ? bytes / cost_rates_direct(p->profile, KV_F16) + DIRECT_BEGINS * p->kernel.operation
                     : 0;
}

/* Seconds of the CPU for its part of the experts, while the GPU's kernels read another one of the same
 * memory. `copies`: these go on all the time. */
static double cpu_seconds(const struct pricing *p, const struct experts_parts *parts, double part,
                          double direct, bool copies)
{
    /* The more tokens, the longer both read at once, until they share what memory gives. */
    const double few = fmin(1, (p->step->tokens - 1.0) / (ENGINE_FEW_TOKENS - 1)),
                 takes = COST_EXPERT_TAKES + few * (1 - COST_EXPERT_TAKES);
    return part * (copies ? parts->cpu_beside : parts->cpu) + takes * direct * parts->cpu;
}

/* Seconds after the hand-over in which the CPU is done with these numbers of experts out of `all`, and the
 * GPU. */
static double cpu_after_hand_over(const struct pricing *p, const struct experts_parts *parts,
                                  const struct shares *s, double all, bool beside)
{
    return (s->cpu > 0 ? cpu_seconds(p, parts, s->cpu / all, s->direct / all, beside) : 0) +
           EXPERTS_OPERATIONS * p->cpu.operation;
}

static double gpu_after_hand_over(const struct pricing *p, const struct experts_parts *parts,
                                  const struct shares *s, double all)
{
    const double vram = s->hits / all * parts->gpu, link = direct_seconds(p, s->direct / all * parts->bytes);
    return parts->launches + parts->beside + larger(vram, link) - 2 * p->profile->link.hand_over.value;
}

/* When the GPU reads `direct` of `missing` ones itself. */
static double with_direct(const struct pricing *p, const struct experts_parts *parts, double all,
                          double missing, double direct, bool beside)
{
    const struct shares s = {.hits = all - missing, .direct = direct, .cpu = missing - direct};
    return larger(cpu_after_hand_over(p, parts, &s, all, beside), gpu_after_hand_over(p, parts, &s, all));
}

/* The least of that over all shares, of which any part of an expert may be one: with more read directly the
 * GPU takes longer, the CPU less long, so it is where both take as long, or at an end. */
static double with_best(const struct pricing *p, const struct experts_parts *parts, double all,
                        double missing, bool beside)
{
    double low = 0, high = missing;
    for (int i = 0; i < DBL_MANT_DIG /* until a number's digits end */; i++) {
        const double direct = (low + high) / 2;
        const struct shares s = {.hits = all - missing, .direct = direct, .cpu = missing - direct};
        *(gpu_after_hand_over(p, parts, &s, all) < cpu_after_hand_over(p, parts, &s, all, beside) ? &low
                                                                                                  : &high) =
            direct;
    }
    return fmin(with_direct(p, parts, all, missing, high, beside),
                fmin(with_direct(p, parts, all, missing, 0, beside),
                     with_direct(p, parts, all, missing, missing, beside)));
}

/* The same of whole ones, which one token's are. */
static double least_whole(const struct pricing *p, const struct experts_parts *parts, uint32_t missing,
                          bool beside)
{
    double least = INFINITY;
    for (uint32_t direct = 0; direct <= missing; direct++)
        least = fmin(least, with_direct(p, parts, p->model->config.router.chosen, missing, direct, beside));
    return least;
}

/* One token: the mean over how many of its experts are in VRAM, each with the same chance; of experts in
 * parts, each has as many there as all have, and some one more (gpu_slots_fill). How many the GPU reads
 * itself are whole ones (gpuk_experts_ask). */
static double one_token(const struct pricing *p, const struct experts_parts *times, bool beside,
                        double *direct)
{
    const struct cost_experts *e = &p->step->experts;
    const uint32_t parts = model_expert_parts(&p->model->config), chosen = p->model->config.router.chosen,
                   each = (uint32_t)(e->hit * parts), experts = chosen / parts;
    const double more = e->hit * parts - each; /* the part of the experts that have one more than `each` */
    double seconds = 0, chance = pow(more, experts); /* of all of them */
    *direct = 0;
    if (e->hit >= 1) {
        return with_direct(p, times, chosen, 0, 0, beside);
    }
    if (more <= 0) chance = 0;
    for (uint32_t fewer = 0; fewer <= experts; fewer++) {
        const bool best = e->direct_permille == COST_DIRECT_BEST;
        const uint32_t missing = chosen - experts * (each + 1) + fewer,
                       reads = best ? 0 : (missing * e->direct_permille + PERMILLE / 2) / PERMILLE;
        const double now = more <= 0 ? fewer == experts : chance;
        seconds += now * (best ? least_whole(p, times, missing, beside)
                               : with_direct(p, times, chosen, missing, reads, beside));
        *direct += now * reads;
        chance *= (double)(experts - fewer) / (fewer + 1) * (1 - more) / (more > 0 ? more : 1);
    }
    return seconds;
}

void experts_price(const struct pricing *p, const struct experts_parts *all, struct cost_unit *u)
{
    const struct cost_experts *e = &p->step->experts;
    const struct model_router *router = &p->model->config.router;
    const double chosen = router->experts * analyse_chosen_part(&p->model->config, p->step->tokens),
                 way = p->profile->link.hand_over.value +
                       fmax(0, (double)p->step->tokens * p->model->config.hidden * sizeof(float) -
                                   ENGINE_HAND_OVER_BYTES) /
                           p->profile->link.h2d.value;
    double direct;
    if (p->step->tokens == 1) {
        u->mixed_kv.cpu = one_token(p, all, false, &direct);
        u->mixed_kv.cpu_beside = one_token(p, all, true, &direct);
    } else {
        const double missing = all->cpu_all ? chosen : chosen * (1 - e->hit);
        const bool best = e->direct_permille == COST_DIRECT_BEST;
        direct = p->tier == OP_TIER_CHUNK || best ? 0 : missing * e->direct_permille / PERMILLE;
        u->mixed_kv.cpu = best ? with_best(p, all, chosen, missing, false)
                               : with_direct(p, all, chosen, missing, direct, false);
        u->mixed_kv.cpu_beside = best ? with_best(p, all, chosen, missing, true)
                                      : with_direct(p, all, chosen, missing, direct, true);
    }
    if (direct > 0) u->mixed_kv.cpu_beside = u->mixed_kv.cpu; /* copies wait for what kernels read */
    u->mixed_kv.way = way;
    u->mixed_kv.link = direct_seconds(p, direct / chosen * all->bytes);
    u->mixed = fmax(0, all->unit - all->gpu - all->launches - all->beside) +
               GPU_OPERATIONS * p->kernel.operation + 2 * way + u->mixed_kv.cpu;
}

#define DISK_LATENCY                                                                                         \
    1e-4 /* seconds from sending for experts to the first one's being there, less its bytes */

/* Experts without a slot that a step's tokens choose. Each token chooses those without one less often than
 * those with one, as found_part says; of all that there are, many tokens choose all. */
static double missing_of(const struct pricing *p)
{
    const struct model_router *router = &p->model->config.router;
    const uint32_t slots = p->step->experts.disk_slots, without = router->experts - slots;
    const double found = found_part(&p->profile->found, slots, router->experts);
    return without ? without * (1 - pow(1 - fmin(1, router->chosen * (1 - found) / without), p->step->tokens))
                   : 0;
}

/* Experts without a slot are read, all of them at once. Those that are there are computed meanwhile, and the
 * others as they come: the last one after it has come. */
void experts_price_disk(const struct pricing *p, uint32_t unit, const struct experts_parts *all,
                        struct cost_unit *u)
{
    const struct model_router *router = &p->model->config.router;
    const struct model_unit *of = &p->model->unit[unit];
    const double chosen = router->experts * analyse_chosen_part(&p->model->config, p->step->tokens),
                 missing = missing_of(p);
    double bytes = 0;
    for (uint32_t i = 0; i < of->matrix_count; i++)
        if (arch_role_of_experts(of->tensor[i]->role)) bytes += (double)of->tensor[i]->bytes;
    const double read =
        missing > 0 ? missing * bytes / router->experts / p->profile->disk_read.value + DISK_LATENCY : 0;
    u->disk = u->cpu;
    if (read > 0) u->disk += fmax(0, read - all->cpu) + all->cpu / chosen;
    u->disk_wait = u->disk - u->cpu;
}
