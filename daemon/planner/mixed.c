/* Plans with a layer's experts in both memories. See attempt.h and plan.h. Called by planner.c; lists belong to the plan.
 *
 * The start is the plan that has all experts on the CPU and all else on the GPU, with lists for prompts that stream
 * them. Each plan tried has the experts of the first n sparse layers in VRAM and all others' in both memories: the
 * rest of VRAM is slots, the same number for each of these layers. It is priced with the best share of missing
 * experts for the GPU to read itself, and with every expert chosen alike, or as a histogram has it. Whole layers in
 * VRAM save hand-overs; slots gain where some experts are chosen more often than others, which only counting
 * shows. Numbers n whose step takes longer than the best one's even with the best share for each number of missing experts
 * are not priced further. So without a histogram a price is what a plan takes at worst, of plans of nearly the same price the one
 * with the most slots is chosen, and one with slots before one without. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/units.h"
#include "common/plan/slots.h"
#include "daemon/planner/attempt.h"
#include "daemon/planner/formats.h"
#include "daemon/planner/histogram.h"
#include "daemon/planner/profile/planned.h"

/* Of a decode step: what slots for up to this part of the experts may cost beside the fastest plan if each expert was chosen
 * alike. Of published traces an eighth, kept by recency, caught 67 % of the uses; more would catch few more, and a prompt streams
 * all experts of such layers. */
#define MIXED_SLACK  0.02
#define MIXED_EIGHTH 8
#define DIRECT_STEP  50  /* of 1,000: shares of missing experts that are tried */
#define MOVES_PART   0.8 /* of a step's time, in which the link brings experts while they move */
/* Of what finding an expert in VRAM saves, what a move costs beside the link: its copy reads the memory that the CPU reads. An H100's
 * host took 13 to 19 us for each, and 27 for an expert on the CPU. */
#define MOVE_TAKES      0.6
#define MOVES_OF_MISSES 0.7 /* how many come for each miss: of generated traces 0.67 to 0.74 (test_slots.c) */
#define MOVES_TRIES     20  /* parts of the choices that are found, from those of slots that stay to all */
#define SLOTS_MARGIN    (4u << 20) /* of VRAM that is left */
/* Of experts' bytes, what sampled ones may come to packed for slots to have room for nearly all (common/plan/slots.c). */
#define PACKED_SLOTS_WORTH 0.73

/* ---- lists ---- */

/* A list with the homes of `home`, in fresh memory with room for any. */
static int relist(uint32_t layers, const enum plan_home *home, struct plan_stage **stages, uint32_t *count,
                  struct helm_err *err)
{
    struct plan_stage *list = calloc(unit_count(layers), sizeof *list);
    if (!list) return helm_fail(err, HELM_E_NOMEM, "no memory for %u stages", unit_count(layers));
    *count = plan_stages_of(home, layers, list);
    free(*stages);
    *stages = list;
    return 0;
}

/* Which experts lie packed, in the order in which it is tried: of more and more layers. */
enum packs { PACKS_NONE, PACKS_WHOLE, PACKS_ALL, PACKS_WAYS };

/* The first `whole` sparse layers' experts in VRAM, in all lists; others' in both memories, in decode's. */
static int place(const struct making *m, const struct plan *from, uint32_t whole, enum packs packs,
                 struct plan *plan, struct helm_err *err)
{
    enum plan_home home[UNIT_PARTS * MODEL_LAYERS_MAX];
    int rc = plan_copy(from, plan, err);
    plan_drop_placements(plan);
    for (uint32_t l = 0, seen = 0; l < plan->layers && !rc; l++) {
        const uint32_t mlp = unit_of(l, UNIT_MLP);
        if (!model_layer_sparse(&m->r->model->config, l)) continue;
        const bool here = seen++ < whole;
        const bool packed = m->table.packs_vram[mlp] &&
                            (here ? packs >= PACKS_WHOLE : packs == PACKS_ALL && m->table.packs_cpu[mlp]);
        plan_set_unit_format(plan, mlp, packed ? FORMAT_BF16_PACKED : PLAN_AS_STORED);
    }
    for (uint32_t p = 0; p < plan_phase_count(from) && !rc; p++) {
        uint32_t seen = 0;
        plan_unit_homes(from, p, home);
        for (uint32_t l = 0; l < plan->layers; l++) {
            if (!model_layer_sparse(&m->r->model->config, l)) continue;
            enum plan_home *mlp = &home[unit_of(l, UNIT_MLP)];
            if (seen++ < whole)
                *mlp = PLAN_HOME_GPU;
            else if (p == 0)
                *mlp = PLAN_HOME_MIXED;
        }
        rc = p ? relist(plan->layers, home, &plan->prefill[p - 1].stages, &plan->prefill[p - 1].stage_count,
                        err)
               : relist(plan->layers, home, &plan->stages, &plan->stage_count, err);
    }
    return rc;
}

/* ---- slots ---- */

/* VRAM that is left; an emulated device's is the host's. */
static uint64_t left_over(const struct making *m, const struct plan *plan)
{
    const struct ledger *vram = &plan->memory[PLANNED_VRAM], *host = &plan->memory[PLAN_HOST];
    uint64_t left = vram->limit - vram->total;
    if (m->machine.device.kind == LEDGER_DEVICE_EMULATED && host->limit - host->total < left)
        left = host->limit - host->total;
    return left > SLOTS_MARGIN ? left - SLOTS_MARGIN : 0;
}

/* As many slots as there is room for beside the smallest pool; what then is left is the pool's. *fits: there is, for one at
 * least. */
static int fill(struct making *m, uint32_t ctx, struct plan *plan, bool *fits, struct helm_err *err)
{
    const struct ledger_wish wish = m->wish;
    struct arena_spec spec;
    struct slots_place place = {0};
    plan->experts = (struct plan_experts){.slots = 1, .move_cost = PLAN_MOVE_COST};
    *fits = false;
    int rc = ledger_write(&m->c, ctx, ledger_least_pages(&m->c, ctx), plan, &spec, err);
    if (rc || !ledger_fits(plan)) return rc;
    rc = slots_place(m->r->model, plan, &place, err);
    if (rc) return rc;
    const uint64_t slots = 1 + left_over(m, plan) / (place.bytes ? place.bytes : 1);
    const uint32_t experts = m->r->model->config.router.experts;
    plan->experts.slots = slots < experts ? (uint32_t)slots : experts;
    m->wish.page_count = plan->page_count;
    do {
        rc = ledger_write(&m->c, ctx, plan->page_count, plan, &spec, err);
        *fits = !rc && ledger_fits(plan);
    } while (!rc && !*fits && --plan->experts.slots > 0);
    m->wish = wish;
    if (!rc && *fits) rc = ledger_fit(&m->c, ctx, plan, &spec, err);
    return !rc && *fits && m->r->experts ? histogram_apply(m->r->experts, plan, err) : rc;
}

/* ---- prices ---- */

static int choose_direct(const struct making *m, struct plan *plan, double *least, struct helm_err *err)
{
    const uint32_t context = planner_typical_context(m->r, plan->context_tokens);
    uint32_t best = 0;
    int rc = 0;
    *least = INFINITY;
    for (uint32_t share = 0; share <= 1000 && !rc; share += DIRECT_STEP) {
        double seconds;
        plan->experts.direct_permille = share;
        rc = making_decode_seconds(m, plan, context, &seconds, err);
        if (rc || seconds >= *least) continue;
        *least = seconds;
        best = share;
    }
    plan->experts.direct_permille = best;
    return rc;
}

/* Bytes of an expert, its gate, up and down as they lie in slots: the mean of the layers, whose formats may differ. */
static int expert_bytes(const struct making *m, const struct plan *plan, double *bytes, struct helm_err *err)
{
    struct slots_place place = {.unit = calloc(plan_mixed_units(plan) + 1, sizeof *place.unit)};
    struct slot_unit *const unit = place.unit;
    int rc = unit ? slots_place(m->r->model, plan, &place, err)
                  : helm_fail(err, HELM_E_NOMEM, "no memory for the slots of %u layers", plan->layers);
    *bytes = 0;
    for (uint32_t u = 0; u < place.units && !rc; u++)
        for (int r = 0; r < SLOT_ROLES; r++) *bytes += (double)unit[u].role[r].stride / place.units;
    free(unit);
    return rc;
}

/* Of a step of m->batch sequences in which experts move and kernels read none over the link. */
struct moving {
    double seconds, most; /* most: moves that the link has time for */
};

/* What all moves of a step are priced by: choices of the layers in both memories, bytes of an expert. */
struct moves_case {
    double choices, bytes, found; /* found: the part of the choices that slots that stay have */
};

/* When the part `part` of the choices is found in VRAM. */
static int staying_step(const struct making *m, const struct plan *plan, double part, double *seconds,
                        struct helm_err *err)
{
    struct plan now = *plan; /* its lists stay the plan's */
    now.experts.direct_permille = 0;
    now.experts.hit_permille = (uint32_t)fmax(1, 1000 * part);
    return making_decode_seconds(m, &now, planner_typical_context(m->r, plan->context_tokens), seconds, err);
}

/* When recency foretells the part `part` of the choices, above c->found. Where the link brings fewer experts than are to come, as
 * much less is found beyond what slots that stay have. */
static int moving_step(const struct making *m, const struct plan *plan, const struct moves_case *c,
                       double part, struct moving *out, struct helm_err *err)
{
    double still, seconds = 0;
    int rc = staying_step(m, plan, c->found, &still, err);
    if (!rc) rc = staying_step(m, plan, part, &seconds, err);
    const double saves = fmax(0, still - seconds) / (c->choices * (part - c->found)),
                 wanted = MOVES_OF_MISSES * c->choices * (1 - part);
    out->most = MOVES_PART * seconds * m->r->profile->link.h2d.value / c->bytes;
    out->seconds = seconds + MOVE_TAKES * saves * wanted;
    if (rc || wanted <= out->most) return rc;
    const double less = c->found + (part - c->found) * out->most / wanted;
    rc = staying_step(m, plan, less, &seconds, err);
    out->seconds = seconds + MOVE_TAKES * saves * out->most;
    return rc;
}

/* From which part of the choices on, foretold by recency, a step in which experts move is faster than one of `still` seconds in
 * which they stay; what the link then brings in it, and as the policy has it (common/experts/slots.h) what an expert's move costs. */
static int budget(const struct making *m, double still, struct plan *plan, struct helm_err *err)
{
    const struct model_router *router = &m->r->model->config.router;
    const double found = plan_hit_rate(plan, router->experts),
                 chosen = (double)router->chosen / router->experts;
    struct moves_case c = {.choices =
                               plan_mixed_units(plan) * router->experts * (1 - pow(1 - chosen, m->batch)),
                           .found = found};
    struct moving moving = {.seconds = INFINITY};
    double part = found;
    int rc = expert_bytes(m, plan, &c.bytes, err);
    plan->experts.moves = 1;
    plan->experts.move_cost = PLAN_MOVE_COST_MAX;
    if (rc || !(c.bytes > 0) || !(m->r->profile->link.h2d.value > 0) || !plan_mixed_units(plan)) return rc;
    for (uint32_t i = 1; i < MOVES_TRIES && moving.seconds >= still && !rc; i++) {
        part = found + (1 - found) * i / MOVES_TRIES;
        rc = moving_step(m, plan, &c, part, &moving, err);
    }
    if (rc || moving.seconds >= still) return rc;
    const double cost = 1000 * (part - found) / (1 - part);
    plan->experts.moves = moving.most < 1                ? 1
                          : moving.most > PLAN_MOVES_MAX ? PLAN_MOVES_MAX
                                                         : (uint32_t)moving.most;
    plan->experts.move_cost = cost < PLAN_MOVE_COST_MAX ? (uint32_t)cost : PLAN_MOVE_COST_MAX;
    return 0;
}

/* ---- the choice ---- */

struct trial {
    double least;   /* what a step takes at least, whatever is read directly; INFINITY: no room */
    double seconds; /* of a step; INFINITY: not tried, since others are certainly faster */
    struct plan plan;
};

/* What has been tried of one start. */
struct trials {
    struct making *m;
    uint32_t ctx, sparse;
    const struct plan *from;
    enum packs packs;
    struct trial *with; /* [sparse], by the number of layers wholly in VRAM */
};

/* The first `whole` sparse layers' experts in VRAM, and slots for the others'; without room for them `least` stays. */
static int lay_whole(struct trials *t, uint32_t whole, struct helm_err *err)
{
    struct trial *trial = &t->with[whole];
    bool fits = false;
    int rc = place(t->m, t->from, whole, t->packs, &trial->plan, err);
    if (!rc) rc = fill(t->m, t->ctx, &trial->plan, &fits, err);
    if (rc || !fits) return rc;
    struct plan best = trial->plan; /* its lists stay the trial's */
    best.experts.direct_permille = COST_DIRECT_BEST;
    return making_decode_seconds(t->m, &best, planner_typical_context(t->m->r, best.context_tokens),
                                 &trial->least, err);
}

/* The least whole layers, so the most slots up to an eighth, whose step takes at most `most`; else those of the fastest plan. */
static uint32_t best_of(const struct trials *t, double most)
{
    const uint32_t eighth = t->m->r->model->config.router.experts / MIXED_EIGHTH;
    uint32_t fastest = 0, best = 0;
    for (uint32_t w = 0; w < t->sparse; w++)
        if (t->with[w].seconds < t->with[fastest].seconds) fastest = w;
    while (best < fastest && (t->with[best].seconds > most || t->with[best].plan.experts.slots > eighth))
        best++;
    return best;
}

/* Tries every number of layers wholly in VRAM, in the order of what they take at least, until that is more than `slack` above the
 * fastest: the rest cannot be chosen. One is tried at all events. */
static int try_numbers(struct trials *t, double slack, double other, struct helm_err *err)
{
    int rc = 0;
    uint32_t laid = 0;
    for (; laid < t->sparse && !rc; laid++) {
        rc = lay_whole(t, laid, err);
        if (t->with[laid].least == INFINITY) break; /* more in VRAM fit no more */
    }
    for (uint32_t tried = 0; tried < laid && !rc; tried++) {
        struct trial *next = NULL;
        for (uint32_t w = 0; w < laid; w++)
            if (t->with[w].seconds == INFINITY && (!next || t->with[w].least < next->least))
                next = &t->with[w];
        if (tried && next->least > (1 + slack) * other) break;
        rc = choose_direct(t->m, &next->plan, &next->seconds, err);
        other = fmin(other, next->seconds);
    }
    return rc;
}

/* The best plan of one way to have whole layers in VRAM, into *best, if it is better than what that has. */
static int choose_numbers(struct trials *t, double other, double slack, struct trial *best,
                          struct helm_err *err)
{
    t->with = calloc(t->sparse + 1, sizeof *t->with);
    if (!t->with) return helm_fail(err, HELM_E_NOMEM, "no memory for %u plans", t->sparse);
    for (uint32_t w = 0; w <= t->sparse; w++) t->with[w].least = t->with[w].seconds = INFINITY;
    int rc = try_numbers(t, slack, fmin(other, best->seconds), err);
    const double fastest = t->with[best_of(t, 0)].seconds;
    if (!rc && fastest < INFINITY) {
        struct trial *chosen = &t->with[best_of(t, (1 + slack) * fmin(other, fastest))];
        if (chosen->seconds < best->seconds) {
            const struct trial worse = *best;
            *best = *chosen;
            *chosen = worse;
        }
    }
    for (uint32_t w = 0; w < t->sparse; w++) plan_free(&t->with[w].plan);
    free(t->with);
    return rc;
}

bool mixed_packs_whole(const struct making *m)
{
    const struct ledger_wish *asked = &m->r->wish;
    bool packs = false;
    for (uint32_t u = unit_of(0, UNIT_MLP); u < unit_count(m->table.layers); u += UNIT_PARTS)
        packs |= m->table.packs_vram[u] && model_layer_sparse(&m->r->model->config, unit_layer(u));
    return packs && asked->pack && asked->pack_gpu && m->batch == 1 &&
           m->r->profile->gpu.gemv_packed.value > 0;
}

bool mixed_packs_slots(const struct making *m)
{
    const struct ledger_wish *asked = &m->r->wish;
    bool packs = false;
    for (uint32_t u = unit_of(0, UNIT_MLP); u < unit_count(m->table.layers); u += UNIT_PARTS)
        packs |= m->table.packs_vram[u] && m->table.packs_cpu[u];
    return packs && mixed_packs_whole(m) && asked->pack_cpu && asked->parts.mlp < PACKED_SLOTS_WORTH &&
           m->r->profile->cpu.gemv_packed.value > 0;
}

/* The best plan with experts packed so. */
static int choose_packed(struct making *m, struct trials *t, enum packs packs, double other, double slack,
                         struct trial *best, struct helm_err *err)
{
    const bool cpu = m->wish.pack_cpu;
    t->packs = packs;
    if ((packs >= PACKS_WHOLE && !mixed_packs_whole(m)) || (packs == PACKS_ALL && !mixed_packs_slots(m)))
        return 0;
    m->wish.pack_cpu |= packs == PACKS_ALL;
    const int rc = choose_numbers(t, other, slack, best, err);
    m->wish.pack_cpu = cpu;
    return rc;
}

int mixed_choose(struct making *m, uint32_t ctx, struct plan *plan, struct attempt *attempt,
                 struct helm_err *err)
{
    struct trials t = {.m = m, .ctx = ctx, .from = plan};
    struct trial best = {.seconds = INFINITY};
    const double other = attempt->fits ? attempt->seconds : INFINITY, slack = m->r->experts ? 0 : MIXED_SLACK;
    for (uint32_t l = 0; l < plan->layers; l++) t.sparse += model_layer_sparse(&m->r->model->config, l);
    int rc = 0;
    for (int packs = 0; packs < PACKS_WAYS && !rc; packs++)
        rc = choose_packed(m, &t, (enum packs)packs, other, slack, &best, err);
    attempt->fits = best.seconds < INFINITY;
    if (!rc && attempt->fits) {
        plan_free(plan);
        *plan = best.plan;
        attempt->seconds = best.seconds;
        for (uint32_t u = 0; u < unit_count(plan->layers); u++)
            m->wish.pack_cpu |= formats_packed_on_cpu(plan, u);
        rc = budget(m, attempt->seconds, plan, err);
        m->wish.page_count = plan->page_count; /* the pool stays: what it leaves are slots */
    } else {
        plan_free(&best.plan);
    }
    return rc;
}

int mixed_refuse(struct making *m, uint32_t ctx, const struct plan *plan, struct helm_err *err)
{
    struct plan one = {0};
    struct arena_spec spec;
    char needed[UNITS_TEXT], has[UNITS_TEXT];
    int rc = place(m, plan, 0, PACKS_NONE, &one, err);
    one.experts = (struct plan_experts){.slots = 1, .move_cost = PLAN_MOVE_COST};
    if (!rc) rc = ledger_write(&m->c, ctx, ledger_least_pages(&m->c, ctx), &one, &spec, err);
    const struct ledger *vram = &one.memory[PLANNED_VRAM];
    struct planner_refusal *refusal = m->r->refusal;
    if (!rc) {
        units_format_size(vram->total, needed), units_format_size(vram->limit, has);
        if (refusal) {
            *refusal = (struct planner_refusal){.refused = true,
                                                .what = "VRAM",
                                                .needed = vram->total,
                                                .available = vram->limit};
            snprintf(refusal->nearest, sizeof refusal->nearest, "%s of VRAM, or --strategy experts-cpu",
                     needed);
        }
        rc = helm_fail(
            err, HELM_E_CAPACITY,
            "no plan (%s) fits with a context of %u: a slot for one expert of each of %u layers and what is "
            "beside it need %s of VRAM, there are %s; nearest would be --strategy experts-cpu",
            search_strategy_name(SEARCH_MIXED), ctx, plan_mixed_units(&one), needed, has);
    }
    plan_free(&one);
    return rc;
}

int mixed_beside(struct making *m, uint32_t ctx, struct plan *plan, struct attempt *attempt,
                 struct helm_err *err)
{
    struct plan beside = {0};
    struct arena_spec spec;
    double seconds = INFINITY;
    int rc = place(m, plan, 0, PACKS_NONE, &beside, err);
    beside.experts = (struct plan_experts){.slots = 1, .moves = 1, .move_cost = PLAN_MOVE_COST_MAX};
    if (!rc) rc = ledger_write(&m->c, ctx, ledger_least_pages(&m->c, ctx), &beside, &spec, err);
    if (!rc && ledger_fits(&beside))
        rc = making_decode_seconds(m, &beside, planner_typical_context(m->r, ctx), &seconds, err);
    if (!rc && seconds < attempt->seconds) {
        const struct plan worse = *plan;
        *plan = beside;
        beside = worse;
        attempt->seconds = seconds;
    }
    plan_free(&beside);
    return rc;
}

/* Every sparse layer's experts are in VRAM, so that in both memories there is nothing to gain. */
static bool all_in_vram(const struct model *model, const struct plan *plan)
{
    for (uint32_t l = 0; l < plan->layers; l++)
        if (model_layer_sparse(&model->config, l) &&
            plan_unit_home(plan, 0, unit_of(l, UNIT_MLP)) != PLAN_HOME_GPU)
            return false;
    return true;
}

/* In the place of a plan with experts in both memories, the best one with the cache in one tier, as that has it, if it is faster: the
 * plan that it was faster than has two. */
static int try_one_tier(struct making *m, uint32_t ctx, struct plan *plan, struct attempt *attempt,
                        struct helm_err *err)
{
    const struct ledger_wish wish = m->wish;
    const struct trying best = {.strategy = SEARCH_BEST, .device = true, .ctx = ctx};
    struct plan other = {0};
    struct attempt seen = {.fits = false};
    m->wish = m->r->wish;
    m->wish.batch = m->batch;
    m->wish.vram_page_count = 0;
    int rc = attempt_tiers(m, &best, &other, &seen, err);
    if (!rc && seen.fits && seen.seconds < attempt->seconds) {
        const struct plan slower = *plan;
        *plan = other;
        other = slower;
        *attempt = seen;
    } else {
        m->wish = wish;
    }
    plan_free(&other);
    return rc;
}

int mixed_try(struct making *m, const struct trying *t, struct plan *plan, struct attempt *attempt,
              struct helm_err *err)
{
    const struct ledger_wish wish = m->wish;
    const struct trying mixed = {.strategy = SEARCH_MIXED, .device = true, .ctx = t->ctx};
    struct plan other = {0};
    struct attempt seen = {.fits = false};
    if (!m->r->model->config.router.experts || m->r->one_memory || !t->device) return 0;
    if (attempt->fits && all_in_vram(m->r->model, plan)) return 0;
    m->wish = m->r->wish;
    m->wish.batch = m->batch;
    m->wish.vram_page_count = 0;
    int rc = attempt_tiers(m, &mixed, &other, &seen, err);
    if (!rc && seen.fits) {
        if (attempt->fits) seen.seconds = attempt->seconds;
        rc = mixed_choose(m, t->ctx, &other, &seen, err);
    }
    const double most = fmin((m->r->experts ? 1 : 1 + MIXED_SLACK) * attempt->seconds, m->floor);
    if (!rc && seen.fits && (!attempt->fits || seen.seconds < most)) {
        const struct plan worse = *plan;
        *plan = other;
        other = worse;
        *attempt = seen;
        if (plan_kv_tiered(&other)) rc = try_one_tier(m, t->ctx, plan, attempt, err);
    } else {
        m->wish = wish;
    }
    plan_free(&other);
    return rc;
}
