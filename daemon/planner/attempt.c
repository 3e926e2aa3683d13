/* One strategy with one context. See attempt.h. Called by planner.c and refusal.c; lists belong to the plan.
 *
 * Where weights may be packed in VRAM there are two plans to choose from: one with none packed and, unless that
 * has everything in VRAM, one searched with all of them packed. In the latter packed_choice.c unpacks as many as
 * there is room for.
 *
 * The order: prices of the decode step, bytes by unit and home, the search, lists for long prompts, the ledger.
 * The ledger decides. Where it finds more bytes than the search counted, the search runs again and leaves the
 * difference free. */
#include "daemon/planner/attempt.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/units.h"
#include "daemon/planner/formats.h"
#include "daemon/planner/prefill.h"
#include "daemon/planner/profile/planned.h"

#define TIGHTEN_MAX 8 /* searches for one context until the ledger agrees */
#define PACKED_WORTH                                                                                         \
    0.9 /* weights are packed in VRAM only if they come to at most this part of their bytes */
#define GROW_PARTS 16

/* ---- sizes ---- */

uint32_t making_first_ctx(const struct making *m)
{
    const struct ledger_wish *w = &m->r->wish;
    uint32_t ctx = m->r->model->config.max_context;
    uint64_t pool_tokens = (uint64_t)w->page_count * w->page_tokens / m->batch;
    if (w->ctx) return w->ctx;
    if (ctx > LEDGER_CTX_DEFAULT_MAX) ctx = LEDGER_CTX_DEFAULT_MAX;
    return pool_tokens && pool_tokens < ctx ? (uint32_t)pool_tokens : ctx;
}

uint32_t making_next_ctx(const struct making *m, uint32_t ctx)
{
    return m->r->wish.ctx || ctx / 2 < LEDGER_CTX_LEAST ? 0 : ctx / 2;
}

struct cost_case making_case(const struct making *m, const struct plan *plan)
{
    return (struct cost_case){.model = m->r->model,
                              .analysed = &m->table,
                              .profile = m->r->profile,
                              .plan = plan};
}

int making_decode_seconds(const struct making *m, const struct plan *plan, uint32_t context, double *seconds,
                          struct helm_err *err)
{
    const struct cost_case c = making_case(m, plan);
    struct cost_forecast f;
    int rc = cost_decode(&c, m->batch, context, &f, err);
    *seconds = f.seconds;
    return rc;
}

/* ---- a plan that has to use the device ---- */

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

/* Where the CPU alone is fastest (or the emulated device computes on the same CPU) but the device was asked
 * for by name, or two tiers were: the fastest of head and embedding on it, of one unit (or layer) on it with or without them,
 * and of all. */
static void force_device(const struct search_problem *problem, const struct memory *memory, bool cache,
                         struct search_found *found)
{
    static const enum plan_processor cpu = PLAN_CPU0, gpu = PLANNED_GPU;
    uint32_t units = problem->decode->units, step = problem->whole_layers ? 2 : 1;
    struct forced f = {/* all on the CPU */
                       .problem = problem, .memory = memory,   .found = found,
                       .cache = cache,     .more_vram = NEVER, .more_host = NEVER};
    if (!problem->tied) force_try(&f, cpu, gpu);
    force_try(&f, gpu, gpu);
    for (uint32_t u = 0; u < units; u += step) {
        for (uint32_t i = 0; i < step; i++) f.home[u + i] = PLAN_HOME_GPU;
        force_try(&f, cpu, cpu);
        force_try(&f, gpu, gpu);
        if (!problem->tied) force_try(&f, cpu, gpu);
        for (uint32_t i = 0; i < step; i++) f.home[u + i] = PLAN_HOME_CPU;
    }
    for (uint32_t u = 0; u < units; u++) f.home[u] = PLAN_HOME_GPU;
    force_try(&f, gpu, gpu);
    found->feasible = f.any;
    found->more_vram = f.more_vram;
    found->more_host = f.more_host;
}

static bool found_uses_device(const struct search_found *found, uint32_t units)
{
    bool gpu = found->embed == PLANNED_GPU || found->head == PLANNED_GPU;
    for (uint32_t u = 0; u < units; u++) gpu |= found->home[u] != PLAN_HOME_CPU;
    return gpu;
}

/* ---- one context ---- */

/* Writes the decode list and the places of the ends; removes prefill lists. */
static int apply(const struct making *m, const struct search_found *found, struct plan *plan,
                 struct helm_err *err)
{
    uint32_t units = unit_count(m->table.layers);
    prefill_clear(plan);
    if (!plan->stages) plan->stages = calloc(units, sizeof *plan->stages);
    if (!plan->stages) return helm_fail(err, HELM_E_NOMEM, "no memory for a plan of %u units", units);
    plan->layers = m->table.layers;
    plan->stage_count = plan_stages_of(found->home, plan->layers, plan->stages);
    plan->embed = found->embed;
    plan->head = found->head;
    plan->ring_bytes = found->ring_bytes;
    plan->step_tokens = m->wish.step_tokens;
    plan->expert_parts = model_expert_parts(&m->r->model->config);
    int rc = plan_formats_clear(plan, err);
    if (!rc && m->wish.pack_gpu)
        formats_set_vram(&m->c, formats_packable(&m->c, plan),
                         !m->table.tied && formats_head_packable(&m->c, plan), plan);
    return rc;
}

static uint64_t more_of(uint64_t more, uint64_t missing, uint64_t other_missing)
{
    uint64_t sum;
    return other_missing || more == NEVER || units_add(more, missing, &sum) ? NEVER : sum;
}

/* One search under these limits, its result as lists of the plan. */
static int search_once(const struct making *m, enum search_strategy strategy, const struct memory_wish *wish,
                       const struct cost_table *prices, struct plan *plan, struct attempt *attempt,
                       struct helm_err *err)
{
    struct memory memory = {0};
    struct search_found found = {0};
    const struct search_problem problem = {.decode = prices,
                                           .memory = &memory.search,
                                           .device = wish->device,
                                           .tied = m->table.tied,
                                           .whole_layers = strategy == SEARCH_THESIS,
                                           .no_stream = strategy == SEARCH_THESIS};
    *attempt = (struct attempt){.vram = NEVER, .host = NEVER};
    int rc = memory_build(&m->c, wish, &memory, err);
    if (rc) return rc;
    rc = search_run(&problem, strategy, &found, err);
    const bool cache = m->r->tiers == KV_TIERS_TWO && m->wish.vram_page_count;
    if (!rc && found.feasible && wish->device && m->required &&
        !(cache ? has_cache(found.home, prices->units) : found_uses_device(&found, prices->units)))
        force_device(&problem, &memory, cache, &found);
    if (rc) goto out;
    attempt->fits = found.feasible && !memory.vram_missing && !memory.host_missing;
    attempt->seconds = found.seconds;
    attempt->bound = found.bound;
    if (attempt->fits) {
        rc = apply(m, &found, plan, err);
        if (!rc && wish->prefill) rc = prefill_choose(&m->c, m->r->profile, &found, plan, err);
        if (!rc && !plan_has_home(plan, PLAN_HOME_STREAM)) plan->ring_bytes = 0;
        if (!rc) {
            formats_set_host(&m->c, plan);
            plan_restage(plan);
        }
    } else {
        uint64_t vram = found.feasible ? 0 : found.more_vram, host = found.feasible ? 0 : found.more_host;
        attempt->vram = more_of(vram, memory.vram_missing, memory.host_missing);
        attempt->host = more_of(host, memory.host_missing, memory.vram_missing);
    }
out:
    search_found_free(&found);
    memory_free(&memory);
    return rc;
}

int attempt_price(const struct making *m, uint32_t ctx, const enum tensor_format (*format)[PLAN_HOMES],
                  struct cost_table *prices, struct helm_err *err)
{
    const struct plan cache = {.page_tokens = m->wish.page_tokens,
                               .vram_page_count = ledger_places(&m->c, ctx),
                               .kv_free_places = m->wish.free_places,
                               .kv_direct_permille = cost_direct_permille(m->r->profile, m->wish.kv_dtype)};
    const uint32_t context = m->priced_at ? m->priced_at : planner_typical_context(m->r, ctx);
    const struct cost_step step = {.tokens = m->batch,
                                   .rows = m->batch,
                                   .samples = m->batch,
                                   .context = context,
                                   .kv_dtype = m->wish.kv_dtype,
                                   .format = format,
                                   .kv = cost_tiers_of(&cache, m->batch, m->batch, context),
                                   .experts = m->experts};
    return cost_price(m->r->model, &m->table, m->r->profile, &step, prices, err);
}

/* The weights that a search assumes packed in VRAM: none; all that can be; the same, but at the prices of plain
 * weights, as if nearly all could be made plain again. */
enum packing { PACKING_NONE, PACKING_ALL, PACKING_UNPRICED };

static int price_decode(const struct making *m, uint32_t ctx, enum packing packing, struct cost_table *prices,
                        struct helm_err *err)
{
    enum tensor_format format[FORMATS_ROWS][PLAN_HOMES];
    formats_wished(&m->c, format);
    if (packing == PACKING_ALL) formats_all_vram(&m->c, format);
    return attempt_price(m, ctx, format, prices, err);
}

/* Whether plans of this strategy may have the CPU compute with packed weights: not where several sequences decode at once, whose products unpack them
 * first; and beside a device only where expanding costs it less than the link gains. */
static bool may_pack_for_cpu(const struct making *m, const struct trying *t)
{
    const struct ledger_wish *asked = &m->r->wish;
    return asked->pack && asked->pack_cpu && search_strategy_packs(t->strategy) && m->batch == 1 &&
           (!t->device || m->wish.pack) && cost_packing_pays_cpu(m->r->profile, t->device);
}

/* Whether they do: beside a device where that was asked for, or is being tried. */
static bool packs_for_cpu(const struct making *m, const struct trying *t)
{
    return may_pack_for_cpu(m, t) && (!t->device || m->r->wish.pack_all || m->packs_cpu_beside);
}

/* Whether plans of this strategy may keep weights packed in VRAM: not the thesis's, see above; nor weights
 * that hardly become smaller (prices are of such as do). */
static bool packs_on_gpu(const struct making *m, const struct trying *t)
{
    const struct ledger_wish *asked = &m->r->wish;
    const struct packed_parts *parts = &asked->parts; /* 0: not sampled */
    bool any = m->table.packs_head && !m->table.tied && parts->head < PACKED_WORTH;
    for (uint32_t u = 0; u < unit_count(m->table.layers); u++)
        any |= m->table.packs_vram[u] &&
               (unit_part(u) == UNIT_MLP ? parts->mlp : parts->attention) < PACKED_WORTH;
    return asked->pack && asked->pack_gpu && t->device && any && t->strategy != SEARCH_THESIS &&
           t->strategy != SEARCH_ALL_CPU;
}

static uint64_t excess(const struct ledger *ledger)
{
    return ledger->total > ledger->limit ? ledger->total - ledger->limit : 0;
}

static struct memory_wish memory_wish_of(const struct making *m, const struct trying *t)
{
    return (struct memory_wish){.ctx = t->ctx,
                                .pages = ledger_least_pages(&m->c, t->ctx),
                                .device = t->device,
                                .cpu = t->strategy != SEARCH_ALL_GPU && t->strategy != SEARCH_STREAM};
}

/* The best plan with one context and its smallest pool, all that can be packed in VRAM or nothing. Wishes for
 * long prompts are given up where nothing fits with them, and where the plan that was found does without:
 * first long chunks, then the ring. */
static int attempt_packing(struct making *m, const struct trying *t, enum packing packing, struct plan *plan,
                           struct attempt *attempt, struct helm_err *err)
{
    const uint32_t ctx = t->ctx;
    bool stated = m->r->wish.step_tokens != 0;
    struct cost_table prices;
    struct arena_spec spec;
    *attempt = (struct attempt){.vram = NEVER, .host = NEVER};
    m->wish.step_tokens = stated ? m->r->wish.step_tokens : LEDGER_STEP_TOKENS;
    m->wish.pack_cpu = packs_for_cpu(m, t);
    m->wish.pack_gpu = packing != PACKING_NONE;
    int rc = 0;
    if (!stated && m->step)
        m->wish.step_tokens = m->step;
    else if (!stated && t->device &&
             (t->strategy == SEARCH_BEST || t->strategy == SEARCH_STREAM || t->strategy == SEARCH_MIXED))
        rc = prefill_step_tokens(&m->c, m->r->profile, ctx, &m->wish.step_tokens, err);
    if (rc) return rc;
    struct memory_wish wish = memory_wish_of(m, t); /* its pages are for steps of this many tokens */
    wish.prefill = t->device && (t->strategy == SEARCH_BEST || t->strategy == SEARCH_MIXED);
    rc = price_decode(m, ctx, packing, &prices, err);
    if (rc) return rc;
    for (uint32_t tries = 0; !rc && tries < TIGHTEN_MAX; tries++) {
        bool longer = !stated && m->wish.step_tokens > LEDGER_STEP_TOKENS;
        rc = search_once(m, t->strategy, &wish, &prices, plan, attempt, err);
        if (rc) break;
        bool idle = attempt->fits && !plan_has_home(plan, PLAN_HOME_STREAM);
        if ((!attempt->fits || idle) && (longer || wish.prefill)) {
            if (idle || !longer) wish.prefill = false;
            if (longer) m->wish.step_tokens = LEDGER_STEP_TOKENS;
            wish.pages = ledger_least_pages(&m->c, ctx);
            wish.less_vram = wish.less_host = 0;
            continue;
        }
        if (!attempt->fits) break;
        rc = ledger_write(&m->c, ctx, wish.pages, plan, &spec, err);
        if (rc || ledger_fits(plan)) break;
        attempt->fits = false;
        wish.less_vram += attempt->vram = excess(&plan->memory[PLANNED_VRAM]);
        wish.less_host += attempt->host = excess(&plan->memory[PLAN_HOST]);
    }
    cost_table_free(&prices);
    attempt->packed = m->wish.pack_gpu;
    return rc;
}

static bool all_in_vram(const struct plan *plan)
{
    for (uint32_t i = 0; i < plan->stage_count; i++)
        if (plan->stages[i].home != PLAN_HOME_GPU) return false;
    return plan->head == PLANNED_GPU;
}

/* Whether all half layers could be in VRAM if they were packed, as far as their weights go. */
static bool all_could_be(const struct making *m)
{
    uint64_t sum = 0;
    for (uint32_t u = 0; u < unit_count(m->table.layers); u++)
        sum +=
            m->table.packs_vram[u] ? ledger_packed_unit_bytes(&m->c, u) : analyse_units(&m->table, u, u).vram;
    return sum <= m->machine.device.limit;
}

/* Whether to make `b` rather than `a`: it is faster by more than the part `gain` of the time; where neither fits, it
 * needs less memory. */
static bool better(const struct attempt *b, const struct attempt *a, double gain)
{
    if (a->fits != b->fits) return b->fits;
    if (a->fits) return b->seconds < (1 - gain) * a->seconds; /* nothing to pack, nothing to read so */
    return b->vram < a->vram || (b->vram == a->vram && b->host < a->host);
}

/* A plan with more weights packed in the place of this one, if that is better. */
static int try_packed(struct making *m, const struct trying *t, enum packing packing, double gain,
                      struct plan *plan, struct attempt *attempt, struct helm_err *err)
{
    struct plan packed = {0};
    struct attempt other;
    int rc = attempt_packing(m, t, packing, &packed, &other, err);
    if (!rc && other.fits && packing != PACKING_NONE)
        rc = packed_choose(m, t->ctx, t->strategy == SEARCH_BEST, &packed, &other.seconds, err);
    if (!rc && better(&other, attempt, gain)) {
        struct plan worse = *plan;
        *plan = packed;
        packed = worse;
        *attempt = other;
    }
    plan_free(&packed);
    return rc;
}

/* With weights packed in VRAM or not, whichever is better. */
static int attempt_vram(struct making *m, const struct trying *t, struct plan *plan, struct attempt *attempt,
                        struct helm_err *err)
{
    int rc = 0;
    *attempt = (struct attempt){.vram = NEVER, .host = NEVER};
    if (!m->like || !m->like->vram) rc = attempt_packing(m, t, PACKING_NONE, plan, attempt, err);
    if (rc || !packs_on_gpu(m, t) || (m->like && !m->like->vram)) return rc;
    /* Packing weights that are in VRAM already gains only if they are read faster packed. */
    bool faster = m->batch == 1 && cost_packed_is_faster(m->r->profile);
    if (attempt->fits && all_in_vram(plan) && !faster) return 0;
    const uint32_t step_tokens = m->wish.step_tokens;
    rc = try_packed(m, t, PACKING_ALL, SEARCH_ALIKE, plan, attempt, err);
    if (!rc && attempt->fits && !all_in_vram(plan) && all_could_be(m))
        rc = try_packed(m, t, PACKING_UNPRICED, SEARCH_ALIKE, plan, attempt, err);
    m->wish.step_tokens = attempt->fits ? plan->step_tokens : step_tokens;
    m->wish.pack_gpu = attempt->packed;
    return rc;
}

static bool has_cpu(const struct plan *plan)
{
    for (uint32_t i = 0; i < plan->stage_count; i++)
        if (plan->stages[i].home == PLAN_HOME_CPU) return true;
    return false;
}

/* Beside a device the CPU reads packed what it computes with where the forecast gains this part by it: prompts
 * unpack what the CPU has of them, and loading packs. (Measured, 16 cores and an H200: decode gains what is
 * forecast, from nothing to a third, as the machine's memory is.) */
#define PACKED_CPU_GAIN 0.05

int attempt_tiers(struct making *m, const struct trying *t, struct plan *plan, struct attempt *attempt,
                  struct helm_err *err)
{
    m->packs_cpu_beside = m->like && m->like->cpu;
    int rc = attempt_vram(m, t, plan, attempt, err);
    if (rc || m->like || !t->device || !attempt->fits || m->wish.pack_cpu || !has_cpu(plan) ||
        !may_pack_for_cpu(m, t))
        return rc;
    const struct ledger_wish wish = m->wish;
    const double seconds = attempt->seconds;
    m->packs_cpu_beside = true;
    rc = try_packed(m, t, attempt->packed ? PACKING_ALL : PACKING_NONE, PACKED_CPU_GAIN, plan, attempt, err);
    if (rc || attempt->seconds >= seconds) {
        m->wish = wish;
        m->packs_cpu_beside = false;
    }
    return rc;
}

int attempt_contexts(struct making *m, struct trying *t, struct plan *plan, struct attempt *attempt,
                     struct helm_err *err)
{
    for (uint32_t next = making_first_ctx(m); next; next = making_next_ctx(m, next)) {
        t->ctx = next;
        int rc = attempt_context(m, t, plan, attempt, err);
        if (rc || attempt->fits) return rc;
    }
    return 0;
}

static void raise_limits(struct making *m, uint64_t vram, uint64_t host)
{
    char from[LEDGER_FROM_TEXT];
    m->machine = m->r->machine;
    m->wish.host_memory_bytes = m->r->wish.host_memory_bytes;
    if (units_add(m->machine.device.limit, vram, &m->machine.device.limit))
        m->machine.device.limit = UINT64_MAX;
    if (!host) return;
    uint64_t limit = ledger_host_limit(&m->c, from);
    m->wish.host_memory_bytes = 0;
    m->machine.memory.available_bytes = limit + host;
}

struct growing {
    struct making *m;
    enum search_strategy strategy;
    const struct memory_wish *wish;
    const struct cost_table *prices;
    struct plan *plan; /* the result */
};

/* By how much one limit has to grow: at least what the search said, and as much more as it still asks for;
 * where that is nothing though it found no plan (its number is a bound), a part of what it was. */
static int grow(const struct growing *g, bool vram, uint64_t *more, struct helm_err *err)
{
    for (uint32_t tries = 0; tries < TIGHTEN_MAX && *more != NEVER; tries++) {
        struct attempt again;
        raise_limits(g->m, vram ? *more : 0, vram ? 0 : *more);
        int rc = search_once(g->m, g->strategy, g->wish, g->prices, g->plan, &again, err);
        if (rc || again.fits) return rc;
        uint64_t next = vram ? again.vram : again.host;
        if (next == 0) next = *more / GROW_PARTS + MIB;
        if (next == NEVER || units_add(*more, next, more)) break;
    }
    *more = NEVER;
    return 0;
}

int attempt_nearest(struct making *m, const struct trying *t, struct attempt *attempt, struct plan *plan,
                    struct helm_err *err)
{
    const uint32_t ctx = t->ctx;
    const struct memory_wish wish = memory_wish_of(m, t);
    struct cost_table prices;
    struct arena_spec spec;
    struct attempt again;
    m->wish.step_tokens = m->r->wish.step_tokens ? m->r->wish.step_tokens : LEDGER_STEP_TOKENS;
    m->wish.pack_cpu = packs_for_cpu(m, t);
    m->wish.pack_gpu = attempt->packed;
    int rc = price_decode(m, ctx, attempt->packed ? PACKING_ALL : PACKING_NONE, &prices, err);
    if (rc) return rc;
    const struct growing g = {
        .m = m, .strategy = t->strategy, .wish = &wish, .prices = &prices, .plan = plan};
    rc = grow(&g, false, &attempt->host, err);
    if (!rc) rc = grow(&g, true, &attempt->vram, err);
    if (!rc && attempt->vram > attempt->host) /* the plan that is described is that of the lesser growth */
        rc = grow(&g, false, &attempt->host, err);
    if (!rc && attempt->vram == NEVER && attempt->host == NEVER) {
        raise_limits(m, t->device ? PLAN_BYTES_MAX / 4 : 0, PLAN_BYTES_MAX / 4);
        rc = search_once(m, t->strategy, &wish, &prices, plan, &again, err);
        if (!rc && !again.fits)
            rc = helm_fail(err, HELM_E_INTERNAL, "no plan fits, however much memory there were");
    }
    cost_table_free(&prices);
    raise_limits(m, 0, 0);
    return rc ? rc : ledger_write(&m->c, ctx, ledger_least_pages(&m->c, ctx), plan, &spec, err);
}
