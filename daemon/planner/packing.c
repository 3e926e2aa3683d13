/* The idea of packed weights. See ideas.h. Called by ideas.c and by the ideas whose candidates may be packed;
 * lists belong to the plan.
 *
 * Where weights may be packed in VRAM there are two plans to choose from: one with none packed and, unless
 * that has everything in VRAM, one searched with all of them packed. In the latter unpacking.c makes plain
 * again what there is room for. Beside a device the CPU's weights come next. */
#include "daemon/planner/formats.h"
#include "daemon/planner/ideas.h"
#include "daemon/planner/profile/policy.h"

/* Whether plans of this strategy may keep weights packed in VRAM: not the thesis's, nor weights that hardly
 * become smaller, since prices are of such as do. */
static bool packs_on_gpu(const struct making *m, const struct spec *spec)
{
    const struct ledger_wish *asked = &m->r->wish;
    const struct packed_parts *parts = &asked->parts; /* 0: not sampled */
    bool any = m->table.packs_head && !m->table.tied && parts->head < 1 - WORTH_MUCH;
    for (uint32_t u = 0; u < unit_count(m->table.layers); u++)
        any |= m->table.packs_vram[u] &&
               (unit_part(u) == UNIT_MLP ? parts->mlp : parts->attention) < 1 - WORTH_MUCH;
    return asked->pack && asked->pack_gpu && spec->device && any && spec->strategy != SEARCH_THESIS &&
           spec->strategy != SEARCH_ALL_CPU;
}

static bool all_in_vram(const struct plan *plan)
{
    return candidate_all_on_gpu(plan) && plan->head != PLAN_CPU0;
}

/* Whether the CPU computes a half layer, and some could be packed for it. */
static bool has_cpu(const struct making *m, const struct plan *plan)
{
    bool cpu = false, packs = false;
    for (uint32_t u = 0; u < unit_count(plan->layers); u++) {
        cpu |= plan->unit[u].home[0] == PLAN_HOME_CPU;
        packs |= m->table.packs_cpu[u];
    }
    return cpu && packs;
}

/* Whether to make `b` rather than `a`: it is faster by more than the part `gain` of the time; where neither
 * fits, it needs less memory. */
static bool better(const struct candidate *b, const struct candidate *a, double gain)
{
    if (a->fits != b->fits) return b->fits;
    if (a->fits) return b->seconds < (1 - gain) * a->seconds; /* nothing to pack, nothing to read so */
    return b->vram < a->vram || (b->vram == a->vram && b->host < a->host);
}

static int try_packed(struct making *m, struct spec spec, enum packing packing, double gain,
                      struct candidate *best, struct helm_err *err)
{
    struct candidate other = {.fits = false};
    spec.packing = packing;
    int rc = candidate_make(m, &spec, &other, err);
    candidate_keep(m, best, &other, !rc && better(&other, best, gain));
    return rc;
}

static int best_in_vram(struct making *m, const struct spec *spec, const struct packing_known *like,
                        struct candidate *best, struct helm_err *err)
{
    int rc = candidate_make(m, spec, best, err);
    if (rc || like || !packs_on_gpu(m, spec)) return rc;
    /* Packing weights that are in VRAM already gains only if they are read faster packed. */
    const bool faster = m->batch == 1 && cost_packed_is_faster(m->r->profile);
    if (best->fits && all_in_vram(&best->plan) && !faster) return 0;
    return try_packed(m, *spec, PACKING_ALL, SEARCH_ALIKE, best, err);
}

int packing_best(struct making *m, const struct spec *asked, const struct packing_known *like,
                 struct candidate *best, struct helm_err *err)
{
    struct spec spec = *asked;
    spec.packs_cpu = like && like->cpu;
    spec.packing = like ? like->vram : PACKING_NONE;
    candidate_begin(m, spec.places);
    *best = (struct candidate){.vram = NEVER, .host = NEVER, .wish = m->wish};
    int rc = best_in_vram(m, &spec, like, best, err);
    if (rc || like || !spec.device || !best->fits || best->wish.pack_cpu || !has_cpu(m, &best->plan) ||
        !candidate_may_pack_cpu(m, &spec))
        return rc;
    /* Prompts unpack what the CPU has packed, and loading packs. (Measured, 16 cores and an H200: decode
     * gains what is forecast, from nothing to a third, as the machine's memory is.) */
    spec.packs_cpu = true;
    return try_packed(m, spec, best->packing == PACKING_NONE ? PACKING_NONE : PACKING_ALL, WORTH_CHANGE, best,
                      err);
}

int packing_try(struct making *m, const struct spec *spec, struct candidate *best, struct helm_err *err)
{
    plan_free(&best->plan); /* of a context that did not fit */
    return packing_best(m, spec, NULL, best, err);
}
