/* Plans that have to use the device. See candidate.h. Called by candidate.c; owns nothing. */
#include <math.h>
#include <string.h>

#include "daemon/planner/candidate.h"

struct forced {
    const struct search_problem *problem;
    const struct memory *memory;
    struct search_found *found;                         /* the best so far */
    enum plan_home home[UNIT_PARTS * MODEL_LAYERS_MAX]; /* scratch */
    bool any, cache;               /* one was found; only such as have some layer's cache on the GPU count */
    uint64_t more_vram, more_host; /* where none fits: by how much a limit would have to grow */
};

/* Whether some layer's cache is the GPU's. */
static bool has_cache(const enum plan_home *home, uint32_t units)
{
    for (uint32_t u = 0; u < units; u++)
        if (unit_part(u) == UNIT_ATTENTION && home[u] != PLAN_HOME_CPU) return true;
    return false;
}

/* Two tiers were asked for: some layer's cache has to be the GPU's. */
static bool needs_cache(const struct making *m, const struct spec *spec)
{
    return m->r->tiers == KV_TIERS_TWO && spec->places;
}

static void force_try(struct forced *f, enum plan_processor embed, enum plan_processor head)
{
    const struct search_memory *limits = &f->memory->search;
    uint32_t units = f->problem->decode->units;
    bool cpu = false;
    if (f->cache && !has_cache(f->home, units)) return;
    for (uint32_t u = 0; u < units; u++) cpu |= f->home[u] == PLAN_HOME_CPU;
    struct search_found candidate = {.home = f->home,
                                     .embed = embed,
                                     .head = head,
                                     .ring_bytes = cpu ? limits->ring_least : 0};
    const struct search_bytes sum = memory_sum(f->memory, &candidate, f->problem->tied, units);
    uint64_t vram = sum.vram > limits->vram_limit ? sum.vram - limits->vram_limit : 0,
             host = sum.host > limits->host_limit ? sum.host - limits->host_limit : 0;
    if (!host && vram < f->more_vram) f->more_vram = vram;
    if (!vram && host < f->more_host) f->more_host = host;
    if (vram || host) return;
    const struct cost_plan plan = {.home = f->home,
                                   .embed = embed,
                                   .head = head,
                                   .ring_bytes = candidate.ring_bytes};
    double seconds = cost_seconds(f->problem->decode, &plan, f->any ? f->found->seconds : INFINITY);
    if (f->any && seconds >= f->found->seconds) return;
    memcpy(f->found->home, f->home, units * sizeof *f->home);
    f->found->embed = embed;
    f->found->head = head;
    f->found->ring_bytes = candidate.ring_bytes;
    f->found->seconds = seconds;
    f->found->vram = sum.vram;
    f->found->host = sum.host;
    f->any = true;
}

/* Units on the GPU; where one of them attends to a cache that several layers read, the layers (or units) of
 * all those. */
static void put_on_gpu(struct forced *f, uint32_t first, uint32_t step)
{
    const struct cost_table *prices = f->problem->decode;
    bool together = false;
    for (uint32_t i = 0; i < step; i++) together |= prices->unit[first + i].together;
    for (uint32_t u = 0; u < prices->units; u += step) {
        bool goes = u == first;
        for (uint32_t i = 0; together && i < step; i++) goes |= prices->unit[u + i].together;
        for (uint32_t i = 0; goes && i < step; i++) f->home[u + i] = PLAN_HOME_GPU;
    }
}

/* Where the CPU alone is fastest (or the emulated device computes on the same CPU) but the device was asked
 * for by name, or two tiers were: the fastest of head and embedding on it, of one unit (or layer) on it with
 * or without them, and of all. */
void forced_find(const struct making *m, const struct spec *spec, const struct search_problem *problem,
                 const struct memory *memory, struct search_found *found)
{
    const enum plan_processor cpu = PLAN_CPU0, gpu = plan_home_processor(PLAN_HOME_GPU);
    uint32_t units = problem->decode->units, step = problem->whole_layers ? 2 : 1;
    struct forced f = {/* all on the CPU */
                       .problem = problem, .memory = memory,  .found = found, .cache = needs_cache(m, spec),
                       .more_vram = NEVER, .more_host = NEVER};
    if (!problem->tied) force_try(&f, cpu, gpu);
    force_try(&f, gpu, gpu);
    for (uint32_t u = 0; u < units; u += step) {
        put_on_gpu(&f, u, step);
        force_try(&f, cpu, cpu);
        force_try(&f, gpu, gpu);
        if (!problem->tied) force_try(&f, cpu, gpu);
        for (uint32_t i = 0; i < units; i++) f.home[i] = PLAN_HOME_CPU;
    }
    for (uint32_t u = 0; u < units; u++) f.home[u] = PLAN_HOME_GPU;
    force_try(&f, gpu, gpu);
    found->feasible = f.any;
    found->more_vram = f.more_vram;
    found->more_host = f.more_host;
}

bool forced_uses(const struct making *m, const struct spec *spec, const struct search_found *found,
                 uint32_t units)
{
    if (needs_cache(m, spec)) return has_cache(found->home, units);
    bool gpu = plan_processor_has_memory(found->embed) || plan_processor_has_memory(found->head);
    for (uint32_t u = 0; u < units; u++) gpu |= found->home[u] != PLAN_HOME_CPU;
    return gpu;
}
