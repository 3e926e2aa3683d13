/* A lower bound of a decode step's seconds, over all plans for so many sequences at once. See candidate.h.
 * Called by planner.c, which tries fewer sequences at once only where that may gain; owns its tables.
 *
 * The search's bound (search/bound.c) over all that such plans choose from: each half layer at each home,
 * with weights in VRAM plain or packed, and with one tier of the cache or two. With two tiers a step is
 * faster the more places there are, so a layer counts at the price of up to twice as many as it takes memory
 * for, and layers may have different numbers. No ring takes room, and any is as large as the largest. A
 * mixture of experts can lie in ways that are not among these, so it has no bound.
 *
 * An MLP of which the GPU computes the part k of the rows and the CPU the others takes max((1 - k) c, k g) at
 * least, and so (1 - k) w c + k (1 - w) g for any w from 0 to 1: as a mixture of both homes at w and 1 - w of
 * their seconds, if rings are of any size. The bound is the higher of those for two w: 1, where the CPU is
 * what takes longest, and g / (c + g), where both take as long. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/planner/candidate.h"
#include "daemon/planner/ideas.h"
#include "daemon/planner/search/space.h"

#define PLACES_MAX   15                     /* numbers of places, each twice the one before */
#define VARIANTS_MAX (2 * (PLACES_MAX + 1)) /* with weights in VRAM plain and packed; and one tier */

struct fewer {
    struct making m;
    struct spec spec;
    uint32_t variants, parts;
    struct space space[VARIANTS_MAX];
    struct cost_table prices[VARIANTS_MAX];
    struct memory memory[VARIANTS_MAX];
    struct bound_part *part;     /* [items] */
    struct bound_choice *choice; /* [items][variants * SPACE_HOMES] */
    uint32_t *first;             /* [parts]: an item of each */
};

static bool may_share(const struct fewer *f)
{
    return f->m.r->share != SHARE_OFF && f->m.batch <= ENGINE_FEW_TOKENS && analyse_shares(&f->m.table);
}

/* Prices with `priced` places, and bytes with `places` of them; 0: the cache has one tier. */
static int add_variant(struct fewer *f, enum packing packing, uint32_t places, uint32_t priced,
                       struct helm_err *err)
{
    struct making *m = &f->m;
    const uint32_t v = f->variants;
    struct cost_table *prices = &f->prices[v];
    f->spec.packing = packing;
    f->spec.packs_cpu = packing != PACKING_NONE;
    candidate_begin(m, priced);
    m->wish.pack_cpu = candidate_packs_cpu(m, &f->spec);
    m->wish.pack_gpu = packing != PACKING_NONE;
    if (!m->wish.step_tokens) m->wish.step_tokens = LEDGER_STEP_TOKENS;
    int rc = making_price_packing(m, &f->spec, prices, err);
    if (rc) return rc;
    f->variants++;
    for (uint32_t u = 0; u < prices->units; u++) prices->unit[u].kv.link = 0; /* as the link's share may be */
    m->wish.vram_page_count = places;
    const struct memory_wish wish = making_memory_wish(m, &f->spec);
    rc = memory_build(&m->c, &wish, &f->memory[v], err);
    const struct search_problem problem = {.decode = prices,
                                           .memory = &f->memory[v].search,
                                           .device = true,
                                           .tied = m->table.tied};
    if (!rc) rc = space_open_strategy(&f->space[v], &problem, SEARCH_BEST, err);
    if (!rc && may_share(f)) bound_floors(&f->space[v], UINT64_MAX);
    return rc;
}

static int add_variants(struct fewer *f, struct helm_err *err)
{
    const bool packs = f->m.r->wish.pack && f->m.r->wish.pack_gpu, two = tiers_may_be_two(&f->m, &f->spec);
    int rc = 0;
    candidate_begin(&f->m, 0);
    const uint32_t all = ledger_least_pages(&f->m.c, f->spec.ctx);
    for (int packing = PACKING_NONE; packing <= (packs ? PACKING_ALL : PACKING_NONE) && !rc; packing++) {
        rc = add_variant(f, (enum packing)packing, 0, 0, err);
        for (uint32_t places = 1, n = 1; two && !rc && places <= all && n <= PLACES_MAX; places *= 2, n++)
            rc = add_variant(f, (enum packing)packing, places,
                             n < PLACES_MAX && 2 * places < all ? 2 * places : all, err);
    }
    return rc;
}

static bool same_kind(const struct fewer *f, uint32_t a, uint32_t b)
{
    for (uint32_t v = 0; v < f->variants; v++)
        if (f->space[v].item[a].kind != f->space[v].item[b].kind) return false;
    return true;
}

/* The part of an item's seconds that counts at a home: all, or of an MLP that may be shared w or 1 - w. */
static double counted(const struct fewer *f, uint32_t v, uint32_t item, int home, bool even)
{
    const struct space_item *at = &f->space[v].item[item];
    const struct cost_unit *unit = &f->prices[v].unit[at->first];
    if (!may_share(f) || unit_part(at->first) != UNIT_MLP || !f->m.table.mlp_rows[unit_layer(at->first)])
        return 1;
    const double w = even ? unit->gpu / (unit->cpu + unit->gpu) : 1;
    return home == PLAN_HOME_CPU ? w : home == PLAN_HOME_GPU ? 1 - w : 1;
}

static int list_parts(struct fewer *f, bool even, struct helm_err *err)
{
    const uint32_t items = f->space[0].items, each = f->variants * SPACE_HOMES;
    free(f->part);
    free(f->first);
    free(f->choice);
    f->parts = 0;
    f->part = calloc(items, sizeof *f->part);
    f->first = calloc(items, sizeof *f->first);
    f->choice = calloc((size_t)items * each, sizeof *f->choice);
    if (!f->part || !f->first || !f->choice)
        return helm_fail(err, HELM_E_NOMEM, "no memory for the bound of %u half layers", items);
    for (uint32_t i = 0; i < items; i++) {
        uint32_t p = 0;
        while (p < f->parts && !same_kind(f, f->first[p], i)) p++;
        f->part[p].count++;
        if (p < f->parts) continue;
        struct bound_choice *at = f->choice + (size_t)p * each;
        f->first[f->parts++] = i;
        f->part[p].choice = at;
        for (uint32_t v = 0; v < f->variants; v++)
            for (int h = 0; h < SPACE_HOMES; h++) {
                const struct space_item *item = &f->space[v].item[i];
                if (!(item->allowed & 1u << h)) continue;
                *at = (struct bound_choice){.vram = (double)item->vram[h], .host = (double)item->host[h]};
                const double part = counted(f, v, i, h, even);
                for (int k = 0; k < SPACE_FLOORS; k++) at->floor[k] = part * item->floor[h][k];
                at++;
            }
        f->part[p].choices = (uint32_t)(at - f->part[p].choice);
    }
    return 0;
}

/* With these ends: their floors, and what there is once, at their least. */
static double bound_of_ends(const struct fewer *f, uint32_t ends, double enough)
{
    struct bound_frame frame = {.enough = enough, .floor = {INFINITY, INFINITY, INFINITY}};
    for (uint32_t v = 0; v < f->variants; v++) {
        const struct space *s = &f->space[v];
        const struct bound_frame of = bound_frame_of(s, 1u << PLAN_HOME_GPU, &s->ends[ends], 0);
        for (int k = 0; k < SPACE_FLOORS; k++) frame.floor[k] = fmin(frame.floor[k], of.floor[k]);
        frame.vram = fmax(frame.vram, of.vram);
        frame.host = fmax(frame.host, of.host);
    }
    return bound_dual(f->part, f->parts, &frame, NULL);
}

bool fewer_bounded(const struct planner_request *r)
{
    return r->machine.device.kind != LEDGER_DEVICE_NONE && r->machine.second.kind == LEDGER_DEVICE_NONE &&
           !r->model->config.router.experts;
}

int fewer_bound(const struct planner_request *r, double enough, double *seconds, struct helm_err *err)
{
    *seconds = 0;
    if (!fewer_bounded(r)) return 0;
    struct fewer *f = calloc(1, sizeof *f);
    if (!f) return helm_fail(err, HELM_E_NOMEM, "no memory for the bound of fewer sequences");
    f->spec = (struct spec){.strategy = r->strategy, .device = true, .ctx = r->wish.ctx};
    int rc = making_open(r, &f->m, err);
    if (!rc) {
        making_settle(&f->m);
        rc = add_variants(f, err);
    }
    for (int even = 0; even <= (!rc && may_share(f)) && !rc; even++) {
        rc = list_parts(f, even, err);
        double least = rc ? 0 : enough;
        for (uint32_t e = 0; e < f->space[0].ends_count && !rc; e++)
            least = fmin(least, bound_of_ends(f, e, least));
        *seconds = fmax(*seconds, least);
    }
    for (uint32_t v = 0; v < f->variants; v++) {
        space_close(&f->space[v]);
        memory_free(&f->memory[v]);
        cost_table_free(&f->prices[v]);
    }
    free(f->part);
    free(f->first);
    free(f->choice);
    analyse_table_free(&f->m.table);
    free(f);
    return rc;
}
