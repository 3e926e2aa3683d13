/* The idea of a second device. See ideas.h. Called by planner.c; lists belong to the plan.
 *
 * The second device gets the last layers and the head, as one run: a step passes from one device to the other
 * once. All other ideas plan the layers before that, with the first device, the CPU and the link, as if the
 * second's layers took no room. The run's length is what is tried: as both devices are filled alike where all
 * fits in the two, and else as much as the second has room for. */
#include <stdio.h>
#include <string.h>

#include "common/base/units.h"
#include "daemon/planner/ideas.h"
#include "daemon/planner/profile/policy.h"

#define CUTS_MAX 6

/* Lengths of the run, in half layers. */
struct cuts {
    uint32_t units[CUTS_MAX], count;
};

/* Bytes of VRAM that there are for a run of some length, and for what is before it. */
struct rooms {
    const struct memory *memory;
    uint64_t limit, limit_before; /* less what comes with the first unit, or the head */
    uint64_t embed;
    uint32_t units;
};

static const char *why_not(const struct making *m, const struct spec *spec, const struct candidate *best)
{
    const struct planner_request *r = m->r;
    const struct model_config *config = &r->model->config;
    const struct plan *plan = &best->plan;
    if (spec->strategy != SEARCH_BEST && spec->strategy != SEARCH_ALL_GPU)
        return "plans of this strategy are for one device";
    if (r->tiers == KV_TIERS_TWO) return "a cache in two tiers is for one device";
    if (config->drafts) return "a layer of drafts is for one device";
    if (config->reads) return "layers that read others' caches are for one device";
    if (r->model->math.inputs.ops) return "per-layer embeddings are for one device";
    if (best->fits && candidate_all_on_gpu(plan) && plan->head != PLAN_CPU0 && !plan_kv_tiered(plan) &&
        !plan_units_in(plan, plan_home_memory(PLAN_HOME_GPU), FORMAT_BF16_PACKED) && !r->profile->second)
        return "all layers fit in the first device";
    return NULL;
}

static uint64_t less(uint64_t limit, uint64_t bytes)
{
    return limit > bytes ? limit - bytes : 0;
}

/* Bytes of units [from, to). */
static uint64_t bytes_of(const struct rooms *r, uint32_t from, uint32_t to)
{
    uint64_t sum = 0;
    for (uint32_t u = from; u < to; u++) sum += r->memory->unit[SEARCH_HOMES * u + PLAN_HOME_GPU].vram;
    return sum;
}

static double part_of(uint64_t bytes, uint64_t limit)
{
    return (double)bytes / (double)(limit ? limit : 1);
}

static void add_cut(struct cuts *cuts, uint32_t units)
{
    for (uint32_t i = 0; i < cuts->count; i++)
        if (cuts->units[i] == units) return;
    if (units && cuts->count < CUTS_MAX) cuts->units[cuts->count++] = units;
}

/* Where all fits, whole layers. */
static void add_cuts(const struct rooms *r, bool alike, struct cuts *cuts, bool *all_fits)
{
    uint32_t most = 0, least = r->units, even = 0;
    double fullest = 0;
    while (most < r->units && bytes_of(r, r->units - most - 1, r->units) <= r->limit) most++;
    for (uint32_t n = 0; n <= most && least == r->units; n += UNIT_PARTS)
        if (bytes_of(r, 0, r->units - n) <= r->limit_before) least = n;
    *all_fits = least <= most && least < r->units;
    for (uint32_t n = least; *all_fits && n <= most; n += UNIT_PARTS) {
        const double own = part_of(bytes_of(r, r->units - n, r->units), r->limit),
                     before = part_of(r->embed + bytes_of(r, 0, r->units - n), r->limit_before),
                     full = own > before ? own : before;
        if (even && full >= fullest) continue;
        even = n;
        fullest = full;
    }
    add_cut(cuts, even);
    if (*all_fits && alike) return;
    if (*all_fits) add_cut(cuts, least); /* as much as there is room for in the first, if that is faster */
    add_cut(cuts, most);
}

/* Lengths that are worth trying where weights that can be packed in VRAM are, or are not. */
static int find_cuts(struct making *m, uint32_t ctx, bool packed, struct cuts *cuts, bool *all_fits,
                     struct helm_err *err)
{
    struct ledger_machine machine = m->machine;
    struct ledger_case c = m->c;
    struct memory memory = {0}, before = {0};
    m->wish = m->asked;
    m->wish.pack_gpu = packed;
    if (!m->wish.step_tokens) m->wish.step_tokens = LEDGER_STEP_TOKENS;
    const struct memory_wish wish = {.ctx = ctx,
                                     .pages = ledger_least_pages(&m->c, ctx),
                                     .device = true,
                                     .cpu = true};
    int rc = memory_build(&m->c, &wish, &before, err);
    machine.device = machine.second;
    c.machine = &machine;
    if (!rc) rc = memory_build(&c, &wish, &memory, err);
    if (!rc) {
        const struct search_memory *own = &memory.search, *first = &before.search;
        const struct rooms rooms = {.memory = &memory,
                                    .units = unit_count(m->table.layers),
                                    .embed = first->embed[PLAN_HOME_GPU].vram,
                                    .limit = less(own->vram_limit,
                                                  own->gpu_any.vram + own->head[PLAN_HOME_GPU].vram),
                                    .limit_before = less(first->vram_limit, first->gpu_any.vram)};
        add_cuts(&rooms, !m->r->profile->second, cuts, all_fits);
    }
    memory_free(&memory);
    memory_free(&before);
    return rc;
}

/* The best plan whose second device has so many half layers, into *best, if it is better by more than the
 * part `gain` of a step. *seen: its seconds, where it fits. */
static int try_cut(struct making *m, const struct spec *asked, uint32_t units, double gain,
                   struct candidate *best, double *seen, struct helm_err *err)
{
    struct spec spec = *asked;
    struct candidate other = {.fits = false};
    m->asked.second_units = units;
    m->asked.second_head = true;
    int rc = ideas_run(m, &spec, &other, err);
    m->asked.second_units = 0;
    m->asked.second_head = false;
    const bool fits = !rc && other.fits && plan_uses(&other.plan, plan_home_processor(PLAN_HOME_GPU1));
    if (fits) rc = making_decode_seconds(m, &other.plan, 0, &other.seconds, err);
    if (fits && !rc && (*seen == 0 || other.seconds < *seen)) *seen = other.seconds;
    const uint32_t ctx = best->fits ? best->plan.context_tokens : 0;
    const bool better = fits && !rc &&
                        (other.plan.context_tokens > ctx ||
                         (other.plan.context_tokens == ctx && other.seconds < (1 - gain) * best->seconds));
    candidate_keep(m, best, &other, better);
    return rc;
}

int second_try(struct making *m, const struct spec *spec, struct candidate *best, struct helm_err *err)
{
    struct cuts cuts = {.count = 0};
    struct planner_second none, *note = m->r->second ? m->r->second : &none;
    const enum plan_processor second = plan_home_processor(PLAN_HOME_GPU1);
    const char *const why = why_not(m, spec, best);
    const struct ledger_wish wish = m->wish;
    bool all_fit = false;
    double seen = 0, alone = 0;
    snprintf(note->text, sizeof note->text, "left out: %s", why ? why : "nothing more fits with it");
    if (why) return 0;
    if (best->fits) {
        const int rc = making_decode_seconds(m, &best->plan, 0, &best->seconds, err);
        if (rc) return rc;
        alone = best->seconds;
    }
    int rc = find_cuts(m, spec->ctx, false, &cuts, &all_fit, err);
    if (!rc && !all_fit && m->asked.pack && m->asked.pack_gpu)
        rc = find_cuts(m, spec->ctx, true, &cuts, &all_fit, err);
    m->wish = wish;
    for (uint32_t i = 0; i < cuts.count && !rc; i++) {
        const bool used = best->fits && plan_uses(&best->plan, second);
        rc = try_cut(m, spec, cuts.units[i], used ? SEARCH_ALIKE : WORTH_NOTING, best, &seen, err);
    }
    m->wish = best->fits ? best->wish : wish;
    if (rc || (!seen && !alone)) return rc;
    const bool used = best->fits && plan_uses(&best->plan, second);
    if (!used && seen > 0)
        snprintf(note->text, sizeof note->text, "left out: %.4g token/s with it, %.4g without",
                 m->batch / seen, m->batch / alone);
    if (used && alone > 0)
        snprintf(note->text, sizeof note->text, "used: %.4g token/s with it, %.4g without",
                 m->batch / best->seconds, m->batch / alone);
    if (used && alone <= 0)
        snprintf(note->text, sizeof note->text, "used: without it nothing fits with %u tokens",
                 best->plan.context_tokens);
    return 0;
}
