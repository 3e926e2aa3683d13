/* What no plan is faster than, with experts in both memories or not. See attempt.h. Called by planner.c where the caller of
 * planner_make wants to know; owns its tables.
 *
 * To the homes of search.h each layer with experts gets a way to lie packed in VRAM, and one for every number of slots, plain and packed: its price with as many experts read over
 * the link as is best for each number of missing ones, and the bytes of the slots. Layers may have different numbers of them, and
 * any layers may be whole: that is more than mixed.c can choose from, so the bound holds for what it chooses. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/plan/slots.h"
#include "daemon/planner/attempt.h"
#include "daemon/planner/formats.h"
#include "daemon/planner/histogram.h"
#include "daemon/planner/profile/planned.h"

#define HIT_ROUNDED 0.0005 /* plans have hit rates of a histogram in thousandths */

struct bounding {
    struct making *m;
    const struct plan *plan; /* the made one */
    uint32_t ctx, units, experts;
    bool packs; /* experts may be packed in slots */
    uint32_t
        ways_each; /* one for each number of slots; the same packed, where they may be; and packed in VRAM */
    struct memory memory;
    struct search_mixed *way;         /* [units][ways_each] */
    const struct search_mixed **ways; /* [units] */
    double *hit;                      /* [experts + 1]: the most that slots of so many find */
};

static int open_tables(struct bounding *b, struct helm_err *err)
{
    const struct histogram *seen = b->m->r->experts;
    b->way = calloc((size_t)b->units * b->ways_each, sizeof *b->way);
    b->ways = calloc(b->units, sizeof *b->ways);
    b->hit = calloc(b->experts + 1, sizeof *b->hit);
    if (!b->way || !b->ways || !b->hit)
        return helm_fail(err, HELM_E_NOMEM, "no memory for the bound of %u half layers", b->units);
    for (uint32_t n = 0; n <= b->experts; n++) b->hit[n] = (double)n / b->experts;
    if (seen) histogram_most(seen, model_expert_parts(&b->m->r->model->config), b->hit);
    for (uint32_t n = 0; n <= b->experts && seen; n++) b->hit[n] = fmin(1, b->hit[n] + HIT_ROUNDED);
    return 0;
}

static void close_tables(struct bounding *b)
{
    free(b->way);
    free(b->ways);
    free(b->hit);
    memory_free(&b->memory);
}

/* Bytes of one expert of a unit as it lies in a slot. */
static uint64_t expert_bytes(const struct model *model, uint32_t unit, bool packed)
{
    uint64_t bytes = 0, before;
    for (int r = 0; r < SLOT_ROLES; r++) {
        const struct model_tensor *t =
            model_find(model, slot_tensor((enum slot_role)r), (int32_t)unit_layer(unit));
        if (t)
            bytes += slot_stride(t, model->config.router.experts, packed ? FORMAT_BF16_PACKED : t->format,
                                 &before);
    }
    return bytes;
}

/* Vectors in VRAM, matrices in host memory, slots in VRAM. */
static struct search_bytes bytes_of(const struct bounding *b, uint32_t unit, uint32_t slots, bool packed)
{
    const struct analyse_bytes of = analyse_units(&b->m->table, unit, unit);
    struct search_bytes bytes = {.vram = of.vram_vectors + slots * expert_bytes(b->m->r->model, unit, packed),
                                 .host = of.arena};
    if (b->m->machine.device.kind == LEDGER_DEVICE_EMULATED) bytes.host += bytes.vram;
    return bytes;
}

static bool packs_unit(const struct bounding *b, uint32_t unit)
{
    return b->packs && b->m->table.packs_vram[unit] && b->m->table.packs_cpu[unit];
}

/* Prices of all units: at every home, where slots is 0; else of those with experts in both memories, with so many slots, plain or
 * packed. */
static int price(struct bounding *b, uint32_t slots, bool packed, struct cost_table *prices,
                 struct helm_err *err)
{
    enum tensor_format format[FORMATS_ROWS][PLAN_HOMES];
    formats_wished(&b->m->c, format);
    if (slots) formats_all_vram(&b->m->c, format); /* what is not packed has the other prices */
    for (uint32_t u = unit_of(0, UNIT_MLP); u < b->units && slots; u += UNIT_PARTS) {
        format[u][PLAN_HOME_CPU] = PLAN_AS_STORED;
        if (packed && packs_unit(b, u)) format[u][PLAN_HOME_MIXED] = FORMAT_BF16_PACKED;
    }
    b->m->experts =
        (struct cost_experts){.slots = slots, .direct_permille = COST_DIRECT_BEST, .hit = b->hit[slots]};
    int rc = attempt_price(b->m, b->ctx, format, prices, err);
    b->m->experts = (struct cost_experts){0};
    return rc;
}

/* Units with the same ways share the table of the first of them. */
static void share_ways(struct bounding *b, const struct cost_table *prices)
{
    const size_t bytes = b->ways_each * sizeof *b->way;
    for (uint32_t u = 0; u < b->units; u++) {
        uint32_t first = 0;
        if (!prices->unit[u].experts) continue;
        const struct search_mixed *own = b->way + (size_t)u * b->ways_each;
        while (first < u &&
               (!b->ways[first] || memcmp(b->way + (size_t)first * b->ways_each, own, bytes) != 0))
            first++;
        b->ways[u] = b->way + (size_t)first * b->ways_each;
    }
}

static struct search_bytes packed_bytes(const struct bounding *b, uint32_t unit)
{
    struct search_bytes bytes = {.vram = analyse_units(&b->m->table, unit, unit).vram_vectors +
                                         ledger_packed_unit_bytes(&b->m->c, unit)};
    if (b->m->machine.device.kind == LEDGER_DEVICE_EMULATED) bytes.host = bytes.vram;
    return bytes;
}

static bool may_pack(const struct bounding *b)
{
    const struct ledger_wish *asked = &b->m->r->wish;
    return asked->pack && asked->pack_gpu && b->m->batch == 1;
}

/* Fills in the ways with packed experts in so many slots; where a unit cannot have them those of plain ones. */
static int list_packed(struct bounding *b, uint32_t slots, struct helm_err *err)
{
    struct cost_table with;
    int rc = price(b, slots, true, &with, err);
    for (uint32_t u = 0; u < b->units && !rc; u++) {
        if (!with.unit[u].experts) continue;
        struct search_mixed *way = b->way + (size_t)u * b->ways_each + (slots - 1);
        way[b->experts] =
            packs_unit(b, u) ? (struct search_mixed){with.unit[u].mixed, bytes_of(b, u, slots, true)} : *way;
    }
    if (!rc) cost_table_free(&with);
    return rc;
}

/* Wholly in VRAM and packed, where plans may have experts so; else the way given. */
static struct search_mixed packed_way(const struct bounding *b, uint32_t unit, const struct cost_unit *price,
                                      struct search_mixed other)
{
    if (!price->gpu_packed || !may_pack(b)) return other;
    return (struct search_mixed){price->gpu, packed_bytes(b, unit)};
}

/* Fills in all ways, and prices of homes. */
static int list_ways(struct bounding *b, struct cost_table *prices, struct helm_err *err)
{
    int rc = 0;
    for (uint32_t slots = 1; slots <= b->experts && !rc; slots++) {
        struct cost_table with;
        rc = price(b, slots, false, &with, err);
        for (uint32_t u = 0; u < b->units && !rc; u++) {
            if (!with.unit[u].experts) continue;
            struct search_mixed *way = b->way + (size_t)u * b->ways_each + (slots - 1);
            *way = (struct search_mixed){with.unit[u].mixed, bytes_of(b, u, slots, false)};
            b->way[(size_t)(u + 1) * b->ways_each - 1] = packed_way(b, u, &with.unit[u], *way);
        }
        if (!rc) cost_table_free(&with);
        if (!rc && b->packs) rc = list_packed(b, slots, err);
    }
    if (!rc) rc = price(b, 0, false, prices, err);
    if (!rc) share_ways(b, prices);
    return rc;
}

static uint64_t above(uint64_t a, uint64_t b)
{
    return a > b ? a - b : 0;
}

/* Sums of memory.h may be larger than the ledger: by as much as they are of this plan, limits count as larger. */
static int widen_limits(struct bounding *b, struct helm_err *err)
{
    enum plan_home home[UNIT_PARTS * MODEL_LAYERS_MAX];
    struct search_memory *limits = &b->memory.search;
    struct plan least = {0};
    struct arena_spec spec;
    plan_unit_homes(b->plan, 0, home);
    const bool mixed = plan_has_home(b->plan, PLAN_HOME_MIXED);
    for (uint32_t u = 0; u < b->units && mixed; u++)
        if (home[u] == PLAN_HOME_MIXED) home[u] = PLAN_HOME_CPU;
    const struct search_found found = {.home = home,
                                       .embed = b->plan->embed,
                                       .head = b->plan->head,
                                       .ring_bytes = b->plan->ring_bytes};
    struct search_bytes sum = memory_sum(&b->memory, &found, b->m->table.tied, b->units);
    for (uint32_t u = 0; u < b->units; u++) {
        const bool both = plan_unit_home(b->plan, 0, u) == PLAN_HOME_MIXED,
                   packed = plan_unit_format(b->plan, u) == FORMAT_BF16_PACKED;
        if (!both && !(packed && home[u] == PLAN_HOME_GPU)) continue;
        const struct search_bytes way = both ? bytes_of(b, u, b->plan->experts.slots, packed)
                                             : packed_bytes(b, u),
                                  at_home = limits->unit[3 * u + home[u]];
        sum.vram += way.vram - at_home.vram; /* the sum has the latter */
        sum.host += way.host - at_home.host;
    }
    int rc = plan_copy(b->plan, &least, err);
    if (!rc) rc = ledger_write(&b->m->c, b->ctx, ledger_least_pages(&b->m->c, b->ctx), &least, &spec, err);
    if (!rc) {
        const uint64_t fixed = above(least.memory[PLAN_HOST].limit, limits->host_limit);
        limits->vram_limit += above(sum.vram, least.memory[PLANNED_VRAM].total);
        limits->host_limit += above(sum.host + fixed, least.memory[PLAN_HOST].total);
    }
    plan_free(&least);
    return rc;
}

int mixed_bound(struct making *m, const struct trying *t, const struct plan *plan, double seconds,
                double *bound, struct helm_err *err)
{
    const struct ledger_wish wish = m->wish;
    struct bounding b = {.m = m,
                         .plan = plan,
                         .ctx = t->ctx,
                         .units = unit_count(m->table.layers),
                         .experts = m->r->model->config.router.experts};
    b.packs = mixed_packs_slots(m);
    b.ways_each = (b.packs ? 2 : 1) * b.experts + 1;
    struct cost_table prices = {0};
    m->wish.page_count = m->r->wish.page_count; /* the smallest pool: a plan's is what slots left */
    m->wish.step_tokens = plan->step_tokens;
    m->wish.pack_gpu = false; /* packed experts are ways of their own */
    m->wish.vram_page_count =
        plan->vram_page_count; /* its places, which are more than it was searched with */
    const struct memory_wish with = {.ctx = t->ctx,
                                     .pages = ledger_least_pages(&m->c, t->ctx),
                                     .device = true,
                                     .cpu = true,
                                     .prefill = plan->ring_bytes > 0};
    int rc = open_tables(&b, err);
    if (!rc) rc = memory_build(&m->c, &with, &b.memory, err);
    if (!rc && may_pack(&b) && m->table.packs_head &&
        !m->table.tied) { /* a head packed, at a plain one's price */
        uint64_t *head = &b.memory.search.head[PLAN_HOME_GPU].vram, plain = m->table.head.vram;
        const uint64_t packed = ledger_packed_head_bytes(&m->c);
        if (packed < plain) *head -= plain - packed;
    }
    if (!rc) rc = list_ways(&b, &prices, err);
    if (!rc) rc = widen_limits(&b, err);
    const struct search_problem problem = {.decode = &prices,
                                           .memory = &b.memory.search,
                                           .device = true,
                                           .tied = m->table.tied,
                                           .mixed = b.ways,
                                           .mixed_ways = b.ways_each};
    if (!rc) rc = search_bound(&problem, t->strategy, seconds, bound, err);
    cost_table_free(&prices);
    close_tables(&b);
    m->wish = wish;
    return rc;
}
