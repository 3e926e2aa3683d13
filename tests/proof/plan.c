/* The bound over plans of a request. See proof.h. Called by tests; owns its tables.
 *
 * To the homes of search.h each unit whose weights may be packed in VRAM gets a way to lie so, and each layer
 * with experts one for every number of slots, plain and packed: its price with as many experts read over the
 * link as is best for each number of missing ones, and the bytes of the slots. Layers may have different
 * numbers of them, and any layers may be whole: that is more than experts.c can choose from, so the bound
 * holds for what it chooses. */
#include "tests/proof/proof.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/plan/slots.h"
#include "daemon/planner/candidate.h"
#include "daemon/planner/experts.h"
#include "daemon/planner/formats.h"
#include "daemon/planner/histogram.h"

#define HIT_ROUNDED 0.0005 /* plans have hit rates of a histogram in thousandths */

struct bounding {
    struct making *m;
    const struct plan *plan; /* the made one */
    struct spec spec;
    uint32_t units, experts; /* experts 0: no layer may have some in both memories */
    bool packs;              /* they may be packed in slots */
    uint32_t
        ways_each; /* one for each number of slots; the same packed, where they may be; and packed in VRAM */
    struct memory memory;
    struct proof_way *way;         /* [units][ways_each] */
    const struct proof_way **ways; /* [units] */
    double *hit;                   /* [experts + 1]: the most that slots of so many find */
};

static int more_used(const void *a, const void *b)
{
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? 1 : x > y ? -1 : 0;
}

/* With so many of a layer's experts in VRAM, each of them cut into `parts`, most_hit[0 .. experts * parts]:
 * the largest part of its uses that any layer's most used ones had. */
static void most_hits(const struct histogram *h, uint32_t parts, double *most_hit)
{
    const uint32_t count = h->experts * parts;
    for (uint32_t n = 0; n <= count; n++) most_hit[n] = (double)n / count;
    for (uint32_t l = 0; l < h->layers; l++) {
        uint64_t uses[MODEL_EXPERTS_MAX], all = 0, caught = 0;
        memcpy(uses, h->uses + (size_t)l * h->experts, h->experts * sizeof *uses);
        qsort(uses, h->experts, sizeof *uses, more_used);
        for (uint32_t e = 0; e < h->experts; e++) all += uses[e] * parts;
        for (uint32_t n = 1; n <= count && all; n++) {
            caught += uses[(n - 1) / parts];
            most_hit[n] = fmax(most_hit[n], (double)caught / (double)all);
        }
    }
}

static int open_tables(struct bounding *b, struct helm_err *err)
{
    const struct histogram *seen = b->m->r->experts;
    b->way = calloc((size_t)b->units * b->ways_each, sizeof *b->way);
    b->ways = calloc(b->units, sizeof *b->ways);
    b->hit = calloc(b->experts + 1, sizeof *b->hit);
    if (!b->way || !b->ways || !b->hit)
        return helm_fail(err, HELM_E_NOMEM, "no memory for the bound of %u half layers", b->units);
    for (uint32_t n = 0; n <= b->experts && b->experts; n++) b->hit[n] = (double)n / b->experts;
    if (seen && b->experts) most_hits(seen, model_expert_parts(&b->m->r->model->config), b->hit);
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

/* Prices of all units: at every home; or packed in VRAM, and of those with experts in both memories, with so
 * many slots (0: none), plain or packed. */
static int price(struct bounding *b, bool homes, uint32_t slots, bool packed, struct cost_table *prices,
                 struct helm_err *err)
{
    const struct making *m = b->m;
    enum tensor_format format[FORMATS_ROWS][PLAN_HOMES];
    formats_wished(&m->c, format);
    if (!homes) formats_all_vram(&m->c, format); /* unpacked weights have the other prices */
    for (uint32_t u = unit_of(0, UNIT_MLP); u < b->units && slots; u += UNIT_PARTS) {
        format[u][PLAN_HOME_CPU] = PLAN_AS_STORED;
        if (packed && packs_unit(b, u)) format[u][PLAN_HOME_MIXED] = FORMAT_BF16_PACKED;
    }
    struct cost_step step = making_step(m, &b->spec, format);
    if (slots)
        step.experts =
            (struct cost_experts){.slots = slots, .direct_permille = COST_DIRECT_BEST, .hit = b->hit[slots]};
    return cost_price(m->r->model, &m->table, m->r->profile, &step, prices, err);
}

/* Units with the same ways share the table of the first of them. */
static void share_ways(struct bounding *b)
{
    const size_t bytes = b->ways_each * sizeof *b->way;
    for (uint32_t u = 0; u < b->units; u++) {
        uint32_t first = 0;
        if (!b->ways[u]) continue;
        while (first < u && (!b->ways[first] || memcmp(b->ways[first], b->ways[u], bytes) != 0)) first++;
        b->ways[u] = b->ways[first];
    }
}

static struct search_bytes packed_bytes(const struct bounding *b, uint32_t unit)
{
    struct search_bytes bytes = {.vram = analyse_units(&b->m->table, unit, unit).vram_vectors +
                                         ledger_packed_unit_bytes(&b->m->c, unit)};
    if (b->m->machine.device.kind == LEDGER_DEVICE_EMULATED) bytes.host = bytes.vram;
    return bytes;
}

/* Experts may be packed in VRAM in plans of one sequence, dense weights in all plans. */
static bool may_pack(const struct bounding *b, const struct cost_unit *price)
{
    const struct ledger_wish *asked = &b->m->r->wish;
    return asked->pack && asked->pack_gpu && price->gpu_packed && (b->m->batch == 1 || !price->experts);
}

/* Fills in the ways of all units with experts in both memories with so many slots; where a unit cannot have
 * packed ones those of plain ones. */
static int list_slots(struct bounding *b, uint32_t slots, bool packed, struct helm_err *err)
{
    struct cost_table with;
    int rc = price(b, false, slots, packed, &with, err);
    for (uint32_t u = 0; u < b->units && !rc; u++) {
        if (!with.unit[u].experts) continue;
        struct proof_way *way = b->way + (size_t)u * b->ways_each + (slots - 1);
        const bool so = packed && packs_unit(b, u);
        if (!packed || so)
            way[packed ? b->experts : 0] = (struct proof_way){with.unit[u].mixed, bytes_of(b, u, slots, so)};
        else
            way[b->experts] = *way;
    }
    if (!rc) cost_table_free(&with);
    return rc;
}

/* Fills in all ways, and prices of homes, into *homes. The last way is packed in VRAM; where that cannot be
 * another one's. */
static int list_ways(struct bounding *b, struct cost_table *homes, struct helm_err *err)
{
    struct cost_table packed;
    int rc = 0;
    for (uint32_t slots = 1; slots <= b->experts && !rc; slots++) {
        rc = list_slots(b, slots, false, err);
        if (!rc && b->packs) rc = list_slots(b, slots, true, err);
    }
    if (!rc) rc = price(b, true, 0, false, homes, err);
    if (rc) return rc;
    rc = price(b, false, 0, false, &packed, err);
    for (uint32_t u = 0; u < b->units && !rc; u++) {
        struct proof_way *way = b->way + (size_t)u * b->ways_each, *last = way + b->ways_each - 1;
        const struct cost_unit *unit = &packed.unit[u];
        if (may_pack(b, unit))
            *last = (struct proof_way){unit->gpu, packed_bytes(b, u)};
        else if (b->experts && unit->experts)
            *last = *way;
        else
            continue;
        b->ways[u] = way;
    }
    if (!rc) share_ways(b);
    /* The head may be packed: the lesser price, and the lesser bytes (proof_plan). */
    if (!rc && packed.head.gpu < homes->head.gpu) homes->head.gpu = packed.head.gpu;
    if (!rc) cost_table_free(&packed);
    return rc;
}

static uint64_t above(uint64_t a, uint64_t b)
{
    return a > b ? a - b : 0;
}

/* Sums of memory.h may be larger than the ledger: by as much as they are of this plan, limits count as
 * larger. */
static int widen_limits(struct bounding *b, struct helm_err *err)
{
    enum plan_home home[UNIT_PARTS * MODEL_LAYERS_MAX];
    struct search_memory *limits = &b->memory.search;
    struct plan least = {0};
    struct arena_spec spec;
    for (uint32_t u = 0; u < b->units; u++) home[u] = b->plan->unit[u].home[0];
    const bool mixed = plan_has_home(b->plan, PLAN_HOME_MIXED);
    for (uint32_t u = 0; u < b->units && mixed; u++)
        if (home[u] == PLAN_HOME_MIXED) home[u] = PLAN_HOME_CPU;
    const struct search_found found = {.home = home,
                                       .embed = b->plan->embed,
                                       .head = b->plan->head,
                                       .ring_bytes = plan_device_of(b->plan, PLAN_HOME_STREAM)->ring_bytes};
    struct search_bytes sum = memory_sum(&b->memory, &found, b->m->table.tied, b->units);
    for (uint32_t u = 0; u < b->units; u++) {
        const bool both = b->plan->unit[u].home[0] == PLAN_HOME_MIXED,
                   packed = plan_unit_format(b->plan, u) == FORMAT_BF16_PACKED;
        if (!both && !(packed && home[u] == PLAN_HOME_GPU)) continue;
        const struct search_bytes way = both ? bytes_of(b, u, plan_experts(b->plan)->slots, packed)
                                             : packed_bytes(b, u),
                                  at_home = limits->unit[3 * u + home[u]];
        sum.vram += way.vram - at_home.vram; /* the sum has the latter */
        sum.host += way.host - at_home.host;
    }
    int rc = plan_copy(b->plan, &least, err);
    if (!rc)
        rc = ledger_write(&b->m->c, b->spec.ctx, ledger_least_pages(&b->m->c, b->spec.ctx), &least, &spec,
                          err);
    if (!rc) {
        const uint64_t fixed = above(least.memory[PLAN_HOST].limit, limits->host_limit);
        limits->vram_limit += above(sum.vram, least.memory[plan_home_memory(PLAN_HOME_GPU)].total);
        limits->host_limit += above(sum.host + fixed, least.memory[PLAN_HOST].total);
    }
    plan_free(&least);
    return rc;
}

/* The bound, whose plans have the sizes of the made one. */
static int find_bound(struct bounding *b, double seconds, double *bound, struct helm_err *err)
{
    struct making *m = b->m;
    struct cost_table prices = {0};
    struct memory_wish with = making_memory_wish(m, &b->spec);
    with.prefill = plan_device_of(b->plan, PLAN_HOME_STREAM)->ring_bytes > 0;
    int rc = open_tables(b, err);
    if (!rc) rc = memory_build(&m->c, &with, &b->memory, err);
    if (!rc) rc = list_ways(b, &prices, err);
    if (!rc && m->r->wish.pack && m->r->wish.pack_gpu && m->table.packs_head && !m->table.tied) {
        uint64_t *head = &b->memory.search.head[PLAN_HOME_GPU].vram, plain = m->table.head.vram;
        const uint64_t packed = ledger_packed_head_bytes(&m->c);
        if (packed < plain) *head -= plain - packed;
    }
    if (!rc) rc = widen_limits(b, err);
    const struct search_problem problem = {.decode = &prices,
                                           .memory = &b->memory.search,
                                           .device = b->spec.device,
                                           .tied = m->table.tied,
                                           .whole_layers = b->spec.strategy == SEARCH_THESIS,
                                           .no_stream = b->spec.strategy == SEARCH_THESIS};
    const struct proof_ways ways = {.count = b->ways_each, .of = b->ways};
    const bool plain = b->spec.strategy == SEARCH_THESIS || b->spec.strategy == SEARCH_ALL_CPU;
    if (!rc) rc = proof_search(&problem, b->spec.strategy, plain ? NULL : &ways, seconds, bound, err);
    cost_table_free(&prices);
    close_tables(b);
    return rc;
}

int proof_plan(const struct planner_request *r, const struct plan *plan, struct proof *proof,
               struct helm_err *err)
{
    struct making m;
    *proof = (struct proof){.bound = 0};
    int rc = making_open(r, &m, err);
    if (!rc) rc = making_decode_seconds(&m, plan, 0, &proof->seconds, err);
    const bool both = m.r->model->config.router.experts && !r->one_memory &&
                      (r->strategy == SEARCH_BEST || r->strategy == SEARCH_MIXED);
    if (rc || (plan_kv_tiered(plan) && !both)) goto out; /* it was searched for a shorter context */
    making_settle(&m);
    m.wish = m.asked;
    m.wish.step_tokens = plan->step_tokens;
    m.wish.pack_cpu = false;
    for (uint32_t u = 0; u < unit_count(plan->layers); u++) m.wish.pack_cpu |= formats_packed_on_cpu(plan, u);
    m.wish.pack_gpu = false;                       /* packed weights are ways of their own */
    m.wish.vram_page_count = plan_kv_places(plan); /* its places, which are more than it was searched with */
    struct bounding b = {.m = &m,
                         .plan = plan,
                         .spec = {.strategy = r->strategy,
                                  .device = r->machine.device.kind != LEDGER_DEVICE_NONE &&
                                            r->strategy != SEARCH_ALL_CPU,
                                  .ctx = plan->context_tokens},
                         .units = unit_count(m.table.layers),
                         .experts = both ? r->model->config.router.experts : 0,
                         .packs = both && experts_pack_slots(&m)};
    b.ways_each = (b.packs ? 2 : 1) * b.experts + 1;
    rc = find_bound(&b, proof->seconds, &proof->bound, err);
out:
    analyse_table_free(&m.table);
    return rc;
}
