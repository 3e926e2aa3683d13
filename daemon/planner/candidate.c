/* One candidate: prices of the decode step, bytes by unit and home, the search, lists for long prompts, the
 * ledger. See candidate.h.
 *
 * The ledger decides. Where it finds more bytes than the search counted, the search runs again and leaves the
 * difference free. */
#include "daemon/planner/candidate.h"

#include <stdlib.h>
#include <string.h>

#include "common/base/units.h"
#include "daemon/planner/formats.h"
#include "daemon/planner/prefill.h"

/* ---- what all share ---- */

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

/* Drafts that each row makes in the decode step that plans are compared by, by a layer of the model. */
static uint32_t drafts_of(const struct making *m)
{
    const uint32_t most = m->r->wish.draft_tokens < PLANNER_DRAFTS ? m->r->wish.draft_tokens : PLANNER_DRAFTS;
    return m->r->model->config.drafts && m->batch * (1 + most) <= ENGINE_FEW_TOKENS ? most : 0;
}

int making_decode_seconds(const struct making *m, const struct plan *plan, uint32_t context, double *seconds,
                          struct helm_err *err)
{
    const struct cost_case c = making_case(m, plan);
    struct cost_forecast f;
    if (!context) context = planner_typical_context(m->r, plan->context_tokens);
    const struct cost_step step = {.tokens = m->batch,
                                   .rows = m->batch,
                                   .samples = m->batch,
                                   .drafts = drafts_of(m),
                                   .context = context};
    int rc = cost_one(&c, &step, &f, err);
    *seconds = f.seconds;
    return rc;
}

bool candidate_all_on_gpu(const struct plan *plan)
{
    for (uint32_t u = 0; u < unit_count(plan->layers); u++)
        if (!plan_home_in_vram(plan->unit[u].home[0])) return false;
    return true;
}

void candidate_begin(struct making *m, uint32_t places)
{
    m->wish = m->asked;
    m->wish.vram_page_count = places;
}

void candidate_keep(struct making *m, struct candidate *best, struct candidate *other, bool better)
{
    if (better) {
        const struct candidate worse = *best;
        *best = *other;
        *other = worse;
    }
    plan_free(&other->plan);
    *other = (struct candidate){.fits = false};
    m->wish = best->wish;
}

/* ---- prices ---- */

uint32_t making_context(const struct making *m, const struct spec *spec)
{
    return spec->priced_at ? spec->priced_at : planner_typical_context(m->r, spec->ctx);
}

struct cost_step making_step(const struct making *m, const struct spec *spec,
                             const enum tensor_format (*format)[PLAN_HOMES])
{
    struct plan cache = {.page_tokens = m->wish.page_tokens,
                         .kv_free_places = m->wish.free_places,
                         .kv_direct_permille = cost_direct_permille(m->r->profile, m->wish.kv_dtype)};
    plan_device_at(&cache, PLAN_HOME_GPU)->vram_page_count = ledger_places(&m->c, spec->ctx);
    const uint32_t context = making_context(m, spec);
    return (struct cost_step){.tokens = m->batch,
                              .rows = m->batch,
                              .samples = m->batch,
                              .drafts = drafts_of(m),
                              .context = context,
                              .kv_dtype = m->wish.kv_dtype,
                              .format = format,
                              .shared_rows = spec->shared_rows,
                              .kv = cost_tiers_of(&cache, m->batch, m->batch, context)};
}

int making_price(const struct making *m, const struct spec *spec,
                 const enum tensor_format (*format)[PLAN_HOMES], struct cost_table *prices,
                 struct helm_err *err)
{
    const struct cost_step step = making_step(m, spec, format);
    const int rc = cost_price(m->r->model, &m->table, m->r->profile, &step, prices, err);
    for (uint32_t u = 0; u < prices->units && !rc; u++)
        if (ledger_is_second(&m->c, u)) prices->unit[u].gpu = prices->unit[u].gpu1;
    return rc;
}

int making_price_packing(const struct making *m, const struct spec *spec, struct cost_table *prices,
                         struct helm_err *err)
{
    enum tensor_format format[FORMATS_ROWS][PLAN_HOMES];
    formats_wished(&m->c, format);
    if (spec->packing == PACKING_ALL) formats_all_vram(&m->c, format);
    return making_price(m, spec, format, prices, err);
}

/* Not where several sequences decode at once, whose products unpack weights first; and beside a device only
 * where expanding costs it less than the link gains. */
bool candidate_may_pack_cpu(const struct making *m, const struct spec *spec)
{
    const struct ledger_wish *asked = &m->r->wish;
    return asked->pack && asked->pack_cpu && search_strategy_packs(spec->strategy) && m->batch == 1 &&
           (!spec->device || m->asked.pack) && cost_packing_pays_cpu(m->r->profile, spec->device);
}

bool candidate_packs_cpu(const struct making *m, const struct spec *spec)
{
    return candidate_may_pack_cpu(m, spec) && (!spec->device || m->r->wish.pack_all || spec->packs_cpu);
}

/* ---- one search ---- */

/* Writes the decode list and the places of the ends; removes prefill lists. */
static int apply(const struct making *m, const struct search_found *found, struct plan *plan,
                 struct helm_err *err)
{
    plan->prefill_count = 0;
    plan->layers = m->table.layers;
    plan->draft_layers = m->r->model->config.drafts;
    int rc = plan->unit ? 0 : plan_make_units(plan, PLAN_HOME_CPU, err);
    if (rc) return rc;
    plan->embed = found->embed;
    plan->head = found->head;
    plan_set_homes(plan, 0, found->home);
    plan_formats_clear(plan);
    plan_device_at(plan, PLAN_HOME_STREAM)->ring_bytes = found->ring_bytes;
    plan->step_tokens = m->wish.step_tokens;
    plan->expert_parts = model_expert_parts(&m->r->model->config);
    if (m->wish.pack_gpu)
        formats_set_vram(&m->c, formats_packable(&m->c, plan),
                         !m->table.tied && formats_head_packable(&m->c, plan), plan);
    return 0;
}

/* Gives the second device its units and head, which the search has on `gpu`. */
static void put_second(const struct making *m, struct plan *plan)
{
    for (uint32_t u = 0; u < unit_count(plan->layers); u++)
        for (uint32_t p = 0; p < plan_phase_count(plan) && ledger_is_second(&m->c, u); p++)
            plan->unit[u].home[p] = PLAN_HOME_GPU1;
    if (m->wish.second_head && plan->head != PLAN_CPU0) plan->head = plan_home_processor(PLAN_HOME_GPU1);
}

static uint64_t more_of(uint64_t more, uint64_t missing, uint64_t other_missing)
{
    uint64_t sum;
    return other_missing || more == NEVER || units_add(more, missing, &sum) ? NEVER : sum;
}

int candidate_search(const struct making *m, const struct spec *spec, const struct memory_wish *wish,
                     const struct cost_table *prices, struct candidate *out, struct helm_err *err)
{
    struct memory memory = {0};
    struct search_found found = {0};
    const bool whole = spec->strategy == SEARCH_THESIS;
    const struct search_problem problem = {.decode = prices,
                                           .memory = &memory.search,
                                           .device = wish->device,
                                           .must_use = wish->device && m->required,
                                           .must_attend = m->r->tiers == KV_TIERS_TWO && spec->places,
                                           /* a head of the second device's own is there twice */
                                           .tied = m->table.tied && !m->wish.second_head,
                                           .whole_layers = whole,
                                           .no_stream = whole,
                                           .second = m->wish.second_units};
    out->vram = out->host = NEVER;
    int rc = memory_build(&m->c, wish, &memory, err);
    if (rc) return rc;
    rc = search_run(&problem, spec->strategy, &found, err);
    if (rc) goto out;
    out->fits = found.feasible && !memory.vram_missing && !memory.host_missing;
    out->seconds = found.seconds;
    if (out->fits) {
        struct plan *plan = &out->plan;
        rc = apply(m, &found, plan, err);
        if (!rc && wish->prefill) rc = prefill_choose(&m->c, m->r->profile, &found, plan, err);
        if (!rc) put_second(m, plan);
        if (!rc && !plan_has_home(plan, PLAN_HOME_STREAM))
            plan_device_at(plan, PLAN_HOME_STREAM)->ring_bytes = 0;
        if (!rc) formats_set_host(&m->c, plan);
    } else {
        out->vram = more_of(found.feasible ? 0 : found.more_vram, memory.vram_missing, memory.host_missing);
        out->host = more_of(found.feasible ? 0 : found.more_host, memory.host_missing, memory.vram_missing);
    }
out:
    search_found_free(&found);
    memory_free(&memory);
    return rc;
}

/* ---- until the ledger agrees ---- */

static uint64_t excess(const struct ledger *ledger)
{
    return ledger->total > ledger->limit ? ledger->total - ledger->limit : 0;
}

struct memory_wish making_memory_wish(const struct making *m, const struct spec *spec)
{
    return (struct memory_wish){.ctx = spec->ctx,
                                .pages = ledger_least_pages(&m->c, spec->ctx),
                                .device = spec->device,
                                .cpu = spec->strategy != SEARCH_ALL_GPU && spec->strategy != SEARCH_STREAM};
}

/* Wishes for long prompts are given up where nothing fits with them, half of a long chunk after the other,
 * then the ring; both where the plan that was found does without. */
static int tighten(struct making *m, const struct spec *spec, struct memory_wish *wish,
                   const struct cost_table *prices, struct candidate *out, struct helm_err *err)
{
    struct arena_spec arena;
    int rc = 0;
    for (uint32_t tries = 0; !rc && tries < PLANNER_TRIES; tries++) {
        const bool longer = !m->r->wish.step_tokens && m->wish.step_tokens > LEDGER_STEP_TOKENS;
        rc = candidate_search(m, spec, wish, prices, out, err);
        if (rc) break;
        const bool idle = out->fits && !plan_has_home(&out->plan, PLAN_HOME_STREAM);
        if ((!out->fits || idle) && (longer || wish->prefill)) {
            if (idle || !longer) wish->prefill = false;
            if (longer) m->wish.step_tokens = idle ? LEDGER_STEP_TOKENS : m->wish.step_tokens / 2;
            wish->pages = ledger_least_pages(&m->c, spec->ctx);
            wish->less_vram = wish->less_host = 0;
            continue;
        }
        if (!out->fits) break;
        rc = ledger_write(&m->c, spec->ctx, wish->pages, &out->plan, &arena, err);
        if (rc || ledger_fits(&out->plan)) break;
        out->fits = false;
        if (excess(&out->plan.memory[plan_home_memory(PLAN_HOME_GPU1)])) {
            if (!longer) break; /* it is the second device that has no room: fewer layers may have */
            m->wish.step_tokens /= 2;
            wish->pages = ledger_least_pages(&m->c, spec->ctx);
            continue;
        }
        wish->less_vram += out->vram = excess(&out->plan.memory[plan_home_memory(PLAN_HOME_GPU)]);
        wish->less_host += out->host = excess(&out->plan.memory[PLAN_HOST]);
    }
    return rc;
}

static int make(struct making *m, const struct spec *spec, struct candidate *out, struct helm_err *err)
{
    const bool best = spec->strategy == SEARCH_BEST || spec->strategy == SEARCH_MIXED;
    struct cost_table prices;
    int rc = 0;
    *out = (struct candidate){.vram = NEVER, .host = NEVER};
    candidate_begin(m, spec->places);
    m->wish.pack_cpu = candidate_packs_cpu(m, spec);
    out->packing = spec->packing;
    m->wish.pack_gpu = spec->packing != PACKING_NONE;
    if (!m->wish.step_tokens && spec->step)
        m->wish.step_tokens = spec->step;
    else if (!m->wish.step_tokens) {
        m->wish.step_tokens = LEDGER_STEP_TOKENS;
        if (spec->device && (best || spec->strategy == SEARCH_STREAM))
            rc = prefill_step_tokens(&m->c, m->r->profile, spec->ctx, &m->wish.step_tokens, err);
    }
    if (rc) return rc;
    struct memory_wish wish = making_memory_wish(m, spec); /* its pages are for steps of this many tokens */
    wish.prefill = spec->device && best;
    rc = making_price_packing(m, spec, &prices, err);
    if (rc) return rc;
    rc = tighten(m, spec, &wish, &prices, out, err);
    cost_table_free(&prices);
    if (!rc && out->fits && out->packing != PACKING_NONE) rc = unpacking_choose(m, spec, out, err);
    out->wish = m->wish;
    return rc;
}

int candidate_make(struct making *m, const struct spec *spec, struct candidate *out, struct helm_err *err)
{
    bool found;
    int rc = known_find(m, spec, out, &found, err);
    if (!rc && !found) rc = make(m, spec, out, err);
    if (!rc && !found) rc = known_add(m, spec, out, err);
    m->wish = out->wish;
    return rc;
}
