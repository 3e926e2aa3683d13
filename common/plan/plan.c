/* Plans as structs: units, phases, spans, ledgers. See plan.h; plan_json.c is their JSON form. Called by the
 * planner, helmd, the workers and clients; pure but for the arrays of a copy. */
#include "common/plan/plan.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/units.h"
#include "common/model/router.h"
#include "common/plan/engine_limits.h"
#include "common/plan/placement.h"
#include "common/plan/state.h"

const char *plan_ops_name(enum plan_ops ops)
{
    static const char *const names[PLAN_OPS_COUNT] = {"all", "attention", "mlp"};
    return (unsigned)ops < PLAN_OPS_COUNT ? names[ops] : "unknown";
}

/* ---- phases and units ---- */

uint32_t plan_phase_count(const struct plan *plan)
{
    return 1 + plan->prefill_count;
}

uint32_t plan_phase_for(const struct plan *plan, uint32_t tokens)
{
    uint32_t phase = 0;
    while (phase < plan->prefill_count && tokens >= plan->prefill[phase].from_tokens) phase++;
    return phase;
}

struct plan_phase plan_phase_at(const struct plan *plan, uint32_t phase)
{
    if (phase) return plan->prefill[phase - 1];
    return (struct plan_phase){.from_tokens = 1, .stages = plan->stages, .stage_count = plan->stage_count};
}

uint32_t plan_most_tokens(const struct plan *plan, enum plan_processor processor)
{
    uint32_t most = 0;
    for (uint32_t p = 0; p < plan_phase_count(plan); p++) {
        const struct plan_phase phase = plan_phase_at(plan, p);
        uint32_t last = p < plan->prefill_count ? plan->prefill[p].from_tokens - 1 : plan->step_tokens;
        if (last > plan->step_tokens) last = plan->step_tokens;
        if (phase.from_tokens > last) continue; /* no step is that long */
        for (uint32_t i = 0; i < phase.stage_count; i++)
            if (plan_home_computes(phase.stages[i].home, processor) && last > most) most = last;
    }
    return most;
}

void plan_units_of(const struct plan *plan, enum plan_processor processor, bool *its)
{
    memset(its, 0, unit_count(plan->layers) * sizeof *its);
    for (uint32_t p = 0; p < plan_phase_count(plan); p++) {
        const struct plan_phase phase = plan_phase_at(plan, p);
        for (uint32_t i = 0; i < phase.stage_count; i++) {
            const struct plan_stage *stage = &phase.stages[i];
            if (!plan_home_computes(stage->home, processor)) continue;
            for (uint32_t u = plan_stage_first_unit(stage); u <= plan_stage_last_unit(stage); u++)
                its[u] = true;
        }
    }
}

enum plan_home plan_unit_home(const struct plan *plan, uint32_t phase, uint32_t unit)
{
    const struct plan_phase p = plan_phase_at(plan, phase);
    for (uint32_t i = 0; i < p.stage_count; i++)
        if (unit <= plan_stage_last_unit(&p.stages[i])) return p.stages[i].home;
    return PLAN_HOME_CPU;
}

void plan_unit_homes(const struct plan *plan, uint32_t phase, enum plan_home *home)
{
    const struct plan_phase p = plan_phase_at(plan, phase);
    for (uint32_t i = 0; i < p.stage_count; i++)
        for (uint32_t u = plan_stage_first_unit(&p.stages[i]); u <= plan_stage_last_unit(&p.stages[i]); u++)
            home[u] = p.stages[i].home;
}

/* ---- formats ---- */

static uint32_t embed_at(const struct plan *plan)
{
    return unit_count(plan->layers);
}

static uint32_t head_at(const struct plan *plan)
{
    return unit_count(plan->layers) + 1;
}

enum tensor_format plan_unit_format(const struct plan *plan, uint32_t unit)
{
    return plan->format ? plan->format[unit] : PLAN_AS_STORED;
}

enum tensor_format plan_embed_format(const struct plan *plan)
{
    return plan_unit_format(plan, embed_at(plan));
}

enum tensor_format plan_head_format(const struct plan *plan)
{
    return plan_unit_format(plan, head_at(plan));
}

uint32_t plan_units_in(const struct plan *plan, enum plan_memory memory, enum tensor_format format)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < plan->stage_count; i++) {
        const struct plan_stage *stage = &plan->stages[i];
        if (plan_home_memory(stage->home) != memory) continue;
        for (uint32_t u = plan_stage_first_unit(stage); u <= plan_stage_last_unit(stage); u++)
            count += plan_unit_format(plan, u) == format;
    }
    return count;
}

void plan_drop_placements(struct plan *plan)
{
    free(plan->placement);
    plan->placement = NULL;
    plan->placement_count = 0;
}

int plan_formats_clear(struct plan *plan, struct helm_err *err)
{
    const uint32_t count = head_at(plan) + 1;
    plan_drop_placements(plan);
    if (!plan->format) plan->format = calloc(count, sizeof *plan->format);
    if (!plan->format) return helm_fail(err, HELM_E_NOMEM, "no memory for the formats of %u units", count);
    for (uint32_t i = 0; i < count; i++) plan->format[i] = PLAN_AS_STORED;
    return 0;
}

void plan_set_unit_format(struct plan *plan, uint32_t unit, enum tensor_format format)
{
    plan_drop_placements(plan);
    plan->format[unit] = format;
}

void plan_set_head_format(struct plan *plan, enum tensor_format format)
{
    plan_set_unit_format(plan, head_at(plan), format);
}

/* ---- lists ---- */

/* Whether a unit goes on what another one begins. */
static bool alike(const enum plan_home *home, const enum tensor_format *format, uint32_t a, uint32_t b)
{
    return home[a] == home[b] && (!format || format[a] == format[b]);
}

static uint32_t stages_of(const enum plan_home *home, const enum tensor_format *format, uint32_t layers,
                          struct plan_stage *stages)
{
    uint32_t count = 0;
    for (uint32_t l = 0; l < layers; l++) {
        const uint32_t attention = unit_of(l, UNIT_ATTENTION), mlp = unit_of(l, UNIT_MLP);
        struct plan_stage *last = count ? &stages[count - 1] : NULL;
        if (!alike(home, format, attention, mlp)) {
            stages[count++] = (struct plan_stage){.first = l,
                                                  .last = l,
                                                  .home = home[attention],
                                                  .ops = PLAN_OPS_ATTENTION};
            stages[count++] =
                (struct plan_stage){.first = l, .last = l, .home = home[mlp], .ops = PLAN_OPS_MLP};
        } else if (last && last->ops == PLAN_OPS_ALL && alike(home, format, attention - 1, mlp)) {
            last->last = l;
        } else {
            stages[count++] =
                (struct plan_stage){.first = l, .last = l, .home = home[mlp], .ops = PLAN_OPS_ALL};
        }
    }
    return count;
}

uint32_t plan_stages_of(const enum plan_home *home, uint32_t layers, struct plan_stage *stages)
{
    return stages_of(home, NULL, layers, stages);
}

void plan_restage(struct plan *plan)
{
    enum plan_home home[PLAN_STAGES_MAX * UNIT_PARTS];
    plan_unit_homes(plan, 0, home);
    plan->stage_count = stages_of(home, plan->format, plan->layers, plan->stages);
}

/* Of the layers [first, end), those that keep pages. */
static uint32_t paged(const struct plan *plan, uint32_t first, uint32_t end)
{
    uint32_t layers = 0;
    if (!plan->state) return end - first;
    for (uint32_t l = first; l < end; l++) layers += plan_keeps_pages(plan, l);
    return layers;
}

uint32_t plan_layers_of(const struct plan *plan, enum plan_processor processor)
{
    uint32_t layers = 0;
    for (uint32_t i = 0; i < plan->stage_count; i++) {
        const struct plan_stage *stage = &plan->stages[i];
        if (plan_home_processor(stage->home) == processor && stage->ops != PLAN_OPS_MLP)
            layers += paged(plan, stage->first, stage->last + 1);
    }
    return layers;
}

uint32_t plan_kv_layer_in_arena(const struct plan *plan, uint32_t layer)
{
    return paged(plan, 0, layer);
}

uint32_t plan_kv_layers(const struct plan *plan, enum plan_memory memory)
{
    if (memory == PLAN_HOST && plan_kv_tiered(plan)) return paged(plan, 0, plan->layers);
    return plan_layers_of(plan, plan_memory_processor(memory));
}

uint32_t plan_kv_pages(const struct plan *plan, enum plan_memory memory)
{
    return memory != PLAN_HOST && plan_kv_tiered(plan)
               ? plan->device[plan_memory_processor(memory)].vram_page_count
               : plan->page_count;
}

enum plan_processor plan_kv_of(const struct plan *plan, uint32_t layer, uint32_t *kv_layer)
{
    uint32_t before[PLAN_PROCESSORS] = {0};
    for (uint32_t i = 0; i < plan->stage_count; i++) {
        const struct plan_stage *stage = &plan->stages[i];
        const enum plan_processor processor = plan_home_processor(stage->home);
        if (stage->ops == PLAN_OPS_MLP) continue;
        if (layer <= stage->last) {
            const bool all = !plan_processor_has_memory(processor) && plan_kv_tiered(plan);
            *kv_layer = all ? paged(plan, 0, layer) : before[processor] + paged(plan, stage->first, layer);
            return processor;
        }
        before[processor] += paged(plan, stage->first, stage->last + 1);
    }
    *kv_layer = 0;
    return PLAN_CPU0;
}

uint32_t plan_session_layer(const struct plan *plan, enum plan_processor processor)
{
    uint32_t layers = 0;
    for (int p = 0; p < (int)processor; p++)
        if (plan_processor_has_memory((enum plan_processor)p))
            layers += plan_layers_of(plan, (enum plan_processor)p);
    return layers;
}

uint32_t plan_device_layers(const struct plan *plan)
{
    return plan_session_layer(plan, PLAN_PROCESSORS);
}

uint32_t plan_devices(const struct plan *plan)
{
    uint32_t devices = 0;
    for (int p = 0; p < PLAN_PROCESSORS; p++)
        devices +=
            plan_processor_has_memory((enum plan_processor)p) && plan_uses(plan, (enum plan_processor)p);
    return devices;
}

bool plan_device_computes(const struct plan *plan)
{
    for (int p = 0; p < PLAN_PROCESSORS; p++)
        if (plan_processor_has_memory((enum plan_processor)p) &&
            plan_most_tokens(plan, (enum plan_processor)p))
            return true;
    return false;
}

bool plan_streams(const struct plan *plan, enum plan_processor processor)
{
    for (int h = 0; h < PLAN_HOMES; h++)
        if (plan_home_streams((enum plan_home)h, processor) && plan_has_home(plan, (enum plan_home)h))
            return true;
    return false;
}

bool plan_has_home(const struct plan *plan, enum plan_home home)
{
    for (uint32_t p = 0; p < plan_phase_count(plan); p++) {
        const struct plan_phase phase = plan_phase_at(plan, p);
        for (uint32_t i = 0; i < phase.stage_count; i++)
            if (phase.stages[i].home == home) return true;
    }
    return false;
}

double plan_hit_rate(const struct plan *plan, uint32_t experts)
{
    const struct plan_experts *e = plan_experts(plan);
    if (e->hit_permille) return e->hit_permille / 1000.0;
    return experts ? (double)e->slots / experts : 0;
}

uint32_t plan_mixed_index(const struct plan *plan, uint32_t unit)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < plan->stage_count; i++) {
        const struct plan_stage *stage = &plan->stages[i];
        const uint32_t first = plan_stage_first_unit(stage), last = plan_stage_last_unit(stage);
        if (stage->home != PLAN_HOME_MIXED || first >= unit) continue;
        count += (last < unit ? last + 1 : unit) - first;
    }
    return count;
}

uint32_t plan_mixed_units(const struct plan *plan)
{
    return plan_mixed_index(plan, unit_count(plan->layers));
}

bool plan_uses(const struct plan *plan, enum plan_processor processor)
{
    if (plan->embed == processor || plan->head == processor) return true;
    if (!plan_processor_has_memory(processor) && plan_kv_assisted(plan)) return true;
    for (uint32_t p = 0; p < plan_phase_count(plan); p++) {
        const struct plan_phase phase = plan_phase_at(plan, p);
        for (uint32_t i = 0; i < phase.stage_count; i++) {
            const enum plan_home home = phase.stages[i].home;
            if (plan_home_processor(home) == processor ||
                plan_home_memory(home) == plan_processor_memory(processor))
                return true;
        }
    }
    return false;
}

uint32_t plan_lanes(const struct plan *plan)
{
    unsigned used = 0;
    for (int p = 0; p < PLAN_PROCESSORS; p++) used |= (unsigned)plan_uses(plan, (enum plan_processor)p) << p;
    return plan_lanes_between(used);
}

uint32_t plan_lanes_between(unsigned processors)
{
    uint32_t lanes = 0;
    for (uint32_t l = 0; l < PLAN_LINKS; l++)
        if (processors >> plan_link_rows[l].from & processors >> plan_link_rows[l].to & 1) lanes = l + 1;
    return lanes;
}

bool plan_borrows(const struct plan *plan, enum plan_processor processor)
{
    for (uint32_t p = 1; p < plan_phase_count(plan); p++) {
        const struct plan_phase phase = plan_phase_at(plan, p);
        for (uint32_t i = 0; i < phase.stage_count; i++) {
            const struct plan_stage *stage = &phase.stages[i];
            uint32_t kv_layer;
            if (stage->ops == PLAN_OPS_MLP || plan_home_processor(stage->home) != processor) continue;
            for (uint32_t l = stage->first; l <= stage->last; l++)
                if (plan_keeps_pages(plan, l) && plan_kv_of(plan, l, &kv_layer) != processor) return true;
        }
    }
    return false;
}

bool plan_borrows_kv(const struct plan *plan)
{
    for (int p = 0; p < PLAN_PROCESSORS; p++)
        if (plan_borrows(plan, (enum plan_processor)p)) return true;
    return false;
}

/* ---- checks ---- */

static int check_list(const struct plan *plan, const struct plan_phase *phase, struct helm_err *err)
{
    uint32_t next = 0, units = unit_count(plan->layers);
    if (!phase->stage_count) return helm_fail(err, HELM_E_LIMIT, "no stages");
    for (uint32_t i = 0; i < phase->stage_count; i++) {
        const struct plan_stage *stage = &phase->stages[i];
        if ((unsigned)stage->home >= PLAN_HOMES)
            return helm_fail(err, HELM_E_FORMAT, "stage %u has no home", i);
        if (stage->last < stage->first || stage->last >= plan->layers ||
            (stage->ops != PLAN_OPS_ALL && stage->first != stage->last))
            return helm_fail(err, HELM_E_LIMIT, "stage %u: layers [%u, %u], '%s', are no part of %u layers",
                             i, stage->first, stage->last, plan_ops_name(stage->ops), plan->layers);
        const uint32_t unit = plan_stage_first_unit(stage);
        if (unit < next)
            return helm_fail(err, HELM_E_FORMAT, "stage %u: layer %u belongs to an earlier stage already", i,
                             stage->first);
        if (unit > next)
            return helm_fail(err, HELM_E_FORMAT,
                             "stage %u: %s %u belongs to no stage (this one begins at %s%u)", i,
                             unit_part(next) == UNIT_MLP ? "the MLP of layer" : "layer", unit_layer(next),
                             unit_part(unit) == UNIT_MLP ? "the MLP of " : "", stage->first);
        next = plan_stage_last_unit(stage) + 1;
    }
    if (next != units)
        return helm_fail(err, HELM_E_FORMAT, "layers %u to %u belong to no stage", unit_layer(next),
                         plan->layers - 1);
    return 0;
}

static int check_against_decode(const struct plan *plan, uint32_t phase, struct helm_err *err)
{
    for (uint32_t u = 0; u < unit_count(plan->layers); u++) {
        enum plan_home home = plan_unit_home(plan, phase, u), decode = plan_unit_home(plan, 0, u);
        if (plan_home_memory(home) != plan_home_memory(decode))
            return helm_fail(err, HELM_E_FORMAT,
                             "the %s of layer %u is at home on '%s', in decode on '%s': weights do not move",
                             unit_part_name(unit_part(u)), unit_layer(u), plan_home_name(home),
                             plan_home_name(decode));
        const enum plan_processor keeper = plan_home_processor(decode);
        if (unit_part(u) == UNIT_ATTENTION && plan_home_processor(home) != keeper &&
            plan_processor_has_memory(keeper))
            return helm_fail(err, HELM_E_FORMAT,
                             "the attention of layer %u is on '%s', but its KV cache is in VRAM",
                             unit_layer(u), plan_home_name(home));
    }
    return 0;
}

/* One format a stage, as the JSON form has it; the ends where their formats can be. */
static int check_formats(const struct plan *plan, struct helm_err *err)
{
    for (uint32_t i = 0; i < plan->stage_count; i++) {
        const struct plan_stage *stage = &plan->stages[i];
        const uint32_t first = plan_stage_first_unit(stage);
        const enum tensor_format format = plan_unit_format(plan, first);
        for (uint32_t u = first; u <= plan_stage_last_unit(stage); u++)
            if (plan_unit_format(plan, u) != format)
                return helm_fail(err, HELM_E_FORMAT, "stage %u: not all of its weights have one format", i);
    }
    if (plan_format_varies(plan_embed_format(plan)))
        return helm_fail(err, HELM_E_UNSUPPORTED,
                         "'embed_format' is '%s': rows of an embedding are looked up, and cannot be in it",
                         tensor_format_name(plan_embed_format(plan)));
    if (plan_format_varies(plan_head_format(plan)) && !plan_processor_has_memory(plan->head))
        return helm_fail(err, HELM_E_UNSUPPORTED, "'head_format' is '%s', but the head is on 'cpu'",
                         tensor_format_name(plan_head_format(plan)));
    return 0;
}

/* Each such unit has as many first experts as slots, each once. */
static int check_first(const struct plan_experts *e, uint32_t units, struct helm_err *err)
{
    for (uint32_t u = 0; u < units && e->first; u++)
        for (uint32_t i = 0; i < e->slots; i++) {
            const uint32_t *of = e->first + (size_t)u * e->slots;
            if (of[i] >= MODEL_EXPERTS_MAX)
                return helm_fail(err, HELM_E_LIMIT, "'first' of experts: %u is none (at most %d of a layer)",
                                 of[i], MODEL_EXPERTS_MAX);
            for (uint32_t j = 0; j < i; j++)
                if (of[j] == of[i])
                    return helm_fail(err, HELM_E_FORMAT, "'first' of experts: %u is there twice", of[i]);
        }
    return 0;
}

/* Experts in both memories: of MLP halves of the decode list. */
static int check_mixed(const struct plan *plan, struct helm_err *err)
{
    const struct plan_experts *e = plan_experts(plan);
    const uint32_t units = plan_mixed_units(plan);
    for (uint32_t p = 0; p < plan_phase_count(plan); p++) {
        const struct plan_phase phase = plan_phase_at(plan, p);
        for (uint32_t i = 0; i < phase.stage_count; i++)
            if (phase.stages[i].home == PLAN_HOME_MIXED && (p || phase.stages[i].ops != PLAN_OPS_MLP))
                return helm_fail(
                    err, HELM_E_FORMAT,
                    "layer %u has 'mixed' as home of %s: it is for the MLP of a layer, in the decode list",
                    phase.stages[i].first, p ? "a prefill list" : plan_ops_name(phase.stages[i].ops));
    }
    if (!units != !e->slots)
        return helm_fail(err, HELM_E_FORMAT,
                         units ? "%u layers have 'mixed' as home, but there are %u slots for experts"
                               : "%u layers have 'mixed' as home, for which there are %u slots",
                         units, e->slots);
    if (units && plan->invariant)
        return helm_fail(
            err, HELM_E_FORMAT,
            "'invariant' is true, but %u layers have 'mixed' as home: which processor computes an expert "
            "depends on what came before",
            units);
    if (e->slots > MODEL_EXPERTS_MAX || e->direct_permille > 1000 || e->moves > PLAN_MOVES_MAX)
        return helm_fail(
            err, HELM_E_LIMIT,
            "experts: %u slots (at most %d), %u of 1,000 read directly, %u moves a step (at most %d)",
            e->slots, MODEL_EXPERTS_MAX, e->direct_permille, e->moves, PLAN_MOVES_MAX);
    return check_first(e, units, err);
}

int plan_check(const struct plan *plan, struct helm_err *err)
{
    uint32_t before = 1;
    for (uint32_t p = 0; p < plan_phase_count(plan); p++) {
        const struct plan_phase phase = plan_phase_at(plan, p);
        int rc = check_list(plan, &phase, err);
        if (!rc && p && phase.from_tokens <= before)
            rc = helm_fail(err, HELM_E_LIMIT, "begins at %u tokens, the one before at %u", phase.from_tokens,
                           before);
        if (!rc && p) rc = check_against_decode(plan, p, err);
        if (rc) {
            if (p) helm_err_prefix(err, "prefill list %u", p);
            return rc;
        }
        before = phase.from_tokens;
    }
    for (int p = 0; p < PLAN_PROCESSORS; p++)
        if (plan_streams(plan, (enum plan_processor)p) && !plan->device[p].ring_bytes)
            return helm_fail(err, HELM_E_FORMAT, "there are 'stream' stages, but 'ring_bytes' is 0");
    int rc = plan_check_state_homes(plan, err);
    if (!rc) rc = plan_check_tiers(plan, err);
    if (!rc) rc = check_mixed(plan, err);
    return rc ? rc : check_formats(plan, err);
}

/* `count` things of `each` bytes; *to: a pointer to them. */
static int copy_list(const void *from, uint32_t count, size_t each, void *to, struct helm_err *err)
{
    void *copy = count ? malloc(count * each) : NULL;
    if (count && !copy) return helm_fail(err, HELM_E_NOMEM, "no memory for a list of %u", count);
    if (count) memcpy(copy, from, count * each);
    memcpy(to, &copy, sizeof copy);
    return 0;
}

int plan_copy(const struct plan *from, struct plan *to, struct helm_err *err)
{
    *to = *from;
    to->stages = NULL;
    to->format = NULL;
    to->placement = NULL;
    to->state = NULL;
    for (int p = 0; p < PLAN_PROCESSORS; p++) to->device[p].experts.first = NULL;
    for (uint32_t i = 0; i < PLAN_PREFILLS_MAX; i++) to->prefill[i].stages = NULL;
    int rc = copy_list(from->stages, from->stage_count, sizeof *from->stages, &to->stages, err);
    for (uint32_t i = 0; i < from->prefill_count && !rc; i++)
        rc = copy_list(from->prefill[i].stages, from->prefill[i].stage_count, sizeof *from->stages,
                       &to->prefill[i].stages, err);
    if (!rc && from->format)
        rc = copy_list(from->format, head_at(from) + 1, sizeof *from->format, &to->format, err);
    if (!rc && from->state) rc = copy_list(from->state, from->layers, sizeof *from->state, &to->state, err);
    if (!rc)
        rc = copy_list(from->placement, from->placement_count, sizeof *from->placement, &to->placement, err);
    for (int p = 0; p < PLAN_PROCESSORS && !rc; p++) {
        const struct plan_experts *e = &from->device[p].experts;
        if (e->first)
            rc = copy_list(e->first, plan_mixed_units(from) * e->slots, sizeof *e->first,
                           &to->device[p].experts.first, err);
    }
    if (rc) plan_free(to);
    return rc;
}

void plan_free(struct plan *plan)
{
    free(plan->stages);
    free(plan->format);
    free(plan->placement);
    free(plan->state);
    for (int p = 0; p < PLAN_PROCESSORS; p++) free(plan->device[p].experts.first);
    for (uint32_t i = 0; i < PLAN_PREFILLS_MAX; i++) free(plan->prefill[i].stages);
    memset(plan, 0, sizeof *plan);
}

/* ---- spans ---- */

/* The span that work of `processor` goes into: the last one, or a new one after it. */
static struct plan_span *span_of(struct plan_span *spans, uint32_t *count, enum plan_processor processor)
{
    if (*count == 0 || spans[*count - 1].processor != processor)
        spans[(*count)++] = (struct plan_span){.processor = processor};
    return &spans[*count - 1];
}

int plan_spans(const struct plan *plan, uint32_t phase, struct plan_span **out, uint32_t *count,
               struct helm_err *err)
{
    const struct plan_phase p = plan_phase_at(plan, phase);
    uint32_t ticket[PLAN_LINKS] = {0};
    bool later[PLAN_LINKS] = {false}; /* some hand-over behind this one goes by the same lane */
    *count = 0;
    *out = NULL;
    struct plan_span *spans = calloc((size_t)p.stage_count + 2, sizeof *spans);
    if (!spans) return helm_fail(err, HELM_E_NOMEM, "no memory for %u spans", p.stage_count + 2);
    span_of(spans, count, plan->embed)->embed = true;
    for (uint32_t i = 0; i < p.stage_count; i++) {
        const struct plan_stage *stage = &p.stages[i];
        struct plan_span *span = span_of(spans, count, plan_home_processor(stage->home));
        uint32_t first = plan_stage_first_unit(stage);
        if (!span->unit_count) span->first_unit = first;
        span->unit_count += plan_stage_last_unit(stage) - first + 1;
    }
    span_of(spans, count, plan->head)->head = true;
    for (uint32_t i = 1; i < *count; i++) {
        spans[i].lane_in = spans[i - 1].lane_out = plan_link_of(spans[i - 1].processor, spans[i].processor);
        spans[i].ticket_in = spans[i - 1].ticket_out = ++ticket[spans[i].lane_in];
    }
    for (uint32_t i = *count; i-- > 1;) {
        spans[i].last_in = !later[spans[i].lane_in];
        later[spans[i].lane_in] = true;
    }
    *out = spans;
    return 0;
}

/* ---- ledgers ---- */

static void add_saturating(uint64_t *sum, uint64_t bytes)
{
    if (units_add(*sum, bytes, sum)) *sum = UINT64_MAX;
}

void ledger_add(struct ledger *ledger, const char *what, uint64_t bytes)
{
    if (ledger->line_count < PLAN_LINES_MAX) {
        struct ledger_line *line = &ledger->line[ledger->line_count++];
        snprintf(line->what, sizeof line->what, "%s", what);
        line->bytes = bytes;
    } else { /* the lines must still add up to the total */
        struct ledger_line *line = &ledger->line[PLAN_LINES_MAX - 1];
        snprintf(line->what, sizeof line->what, "other");
        add_saturating(&line->bytes, bytes);
    }
    add_saturating(&ledger->total, bytes);
}
