/* States: the part of a sequence that each layer of a plan keeps. See state.h. */
#include "common/plan/state.h"

#include <stdlib.h>
#include <string.h>

#include "common/base/json.h"
#include "common/plan/engine_limits.h"
#include "common/plan/placement.h"
#include "common/plan/share.h"

#define STATE_BYTES_MAX ((uint64_t)1 << 40)

/* ---- of the model ---- */

struct plan_state plan_state_of_layer(const struct model *model, uint32_t layer)
{
    const struct math_part *part = model_unit_math(model, unit_of(layer, UNIT_ATTENTION));
    return (struct plan_state){.kind = part->state, .bytes = part->state_bytes};
}

uint64_t plan_snapshot_bytes(const struct model *model)
{
    uint64_t bytes = 0;
    for (uint32_t l = 0; l < model->config.layers; l++) {
        const struct plan_state state = plan_state_of_layer(model, l);
        bytes += state.kind == STATE_FIXED ? state.bytes : 0;
    }
    return bytes;
}

static bool alike(const struct plan_state *a, const struct plan_state *b)
{
    return a->kind == b->kind && a->bytes == b->bytes;
}

/* Such a layer may keep its window alone, or all pages. */
static bool has_window(const struct model *model, uint32_t layer)
{
    const uint32_t *window = model->config.window;
    return window && window[layer] && plan_state_of_layer(model, layer).kind == STATE_PAGES;
}

/* The layer with a window that keeps all pages all the same; UINT32_MAX: one without a window does. */
static uint32_t paged_layer(const struct model *model)
{
    uint32_t first = UINT32_MAX;
    for (uint32_t l = 0; l < model->config.layers; l++) {
        if (plan_state_of_layer(model, l).kind != STATE_PAGES) continue;
        if (!has_window(model, l)) return UINT32_MAX;
        if (first == UINT32_MAX) first = l;
    }
    return first;
}

/* A plan has one width: layers with another window keep all pages. */
bool plan_may_keep_window(const struct model *model, uint32_t layer)
{
    return has_window(model, layer) && layer != paged_layer(model) &&
           model->config.window[layer] == model_window(&model->config);
}

static struct plan_state *state_of(const struct plan *plan, uint32_t layer)
{
    return &plan->unit[unit_of(layer, UNIT_ATTENTION)].state;
}

void plan_take_states(struct plan *plan, const struct model *model)
{
    plan->has_states = false;
    plan->window_tokens = plan->window_page_count ? model_window(&model->config) : 0;
    for (uint32_t l = 0; l < plan->layers; l++) {
        struct plan_state state = plan_state_of_layer(model, l);
        if (plan->window_page_count && plan_may_keep_window(model, l)) state.kind = STATE_WINDOW;
        *state_of(plan, l) = state;
        plan->has_states |= state.kind != STATE_PAGES;
    }
}

/* A layer that reads another one's cache is computed where that is, in every list, and so is that one. */
static int check_readers(const struct plan *plan, const struct model *model, struct helm_err *err)
{
    for (uint32_t l = 0; l < plan->layers && l < model->config.layers; l++) {
        const uint32_t from = model_cache_layer(&model->config, l);
        const enum plan_processor keeper = plan_keeper(plan, from);
        if (from == l) continue;
        if (plan_kv_tiered(plan))
            return helm_fail(err, HELM_E_UNSUPPORTED,
                             "layer %u reads the cache of layer %u, which cannot have two tiers", l, from);
        for (uint32_t p = 0; p < plan_phase_count(plan); p++) {
            const enum plan_processor own =
                                          plan_home_processor(plan->unit[unit_of(l, UNIT_ATTENTION)].home[p]),
                                      its = plan_home_processor(
                                          plan->unit[unit_of(from, UNIT_ATTENTION)].home[p]);
            if (own == keeper && its == keeper) continue;
            return helm_fail(
                err, HELM_E_UNSUPPORTED,
                "layer %u reads the cache of layer %u, which '%s' keeps: list %u has the attention "
                "of these layers on '%s' and '%s'",
                l, from, plan_processor_name(keeper), p, plan_processor_name(own), plan_processor_name(its));
        }
    }
    return 0;
}

int plan_check_states(const struct plan *plan, const struct model *model, struct helm_err *err)
{
    const int rc = check_readers(plan, model, err);
    if (rc) return rc;
    for (uint32_t l = 0; l < plan->layers && l < model->config.layers; l++) {
        const struct plan_state own = plan_state_at(plan, l), is = plan_state_of_layer(model, l);
        if (own.kind == STATE_PAGES && has_window(model, l) && model->config.window_heads.head_dim)
            return helm_fail(err, HELM_E_MISMATCH,
                             "layer %u has a window and heads of another size than layers without one, so it "
                             "keeps a window: 'window_page_count' is %u",
                             l, plan->window_page_count);
        if (own.kind == STATE_WINDOW && has_window(model, l)) {
            if (model->config.window[l] == plan->window_tokens) continue;
            return helm_fail(err, HELM_E_MISMATCH, "layer %u has a window of %u tokens, in the plan of %u", l,
                             model->config.window[l], plan->window_tokens);
        }
        if (!alike(&own, &is))
            return helm_fail(err, HELM_E_MISMATCH,
                             "layer %u keeps '%s' of %llu bytes of a sequence, in the plan '%s' of %llu", l,
                             state_kind_name(is.kind), (unsigned long long)is.bytes,
                             state_kind_name(own.kind), (unsigned long long)own.bytes);
    }
    return 0;
}

/* ---- where it lies ---- */

bool plan_has_fixed(const struct plan *plan)
{
    for (uint32_t l = 0; plan->has_states && l < plan->layers; l++)
        if (plan_state_at(plan, l).kind == STATE_FIXED) return true;
    return false;
}

/* Records of the fixed layers [0, end): of those of one processor, and of all. */
static struct state_layout bytes_before(const struct plan *plan, enum plan_processor processor, uint32_t end)
{
    struct state_layout sum = {0};
    for (uint32_t l = 0; plan->has_states && l < end; l++) {
        const struct plan_state state = plan_state_at(plan, l);
        if (state.kind != STATE_FIXED) continue;
        sum.snapshot_bytes += state.bytes;
        if (plan_keeper(plan, l) == processor) sum.slot_bytes += state.bytes;
    }
    return sum;
}

struct state_layout plan_state_layout(const struct plan *plan, enum plan_processor processor)
{
    return bytes_before(plan, processor, plan->layers);
}

bool plan_state_record(const struct plan *plan, enum plan_processor processor, uint32_t layer,
                       struct state_record *record)
{
    *record = (struct state_record){0};
    if (plan_state_at(plan, layer).kind != STATE_FIXED || plan_keeper(plan, layer) != processor) return false;
    const struct state_layout before = bytes_before(plan, processor, layer);
    *record = (struct state_record){.bytes = plan_state_at(plan, layer).bytes,
                                    .slot_at = before.slot_bytes,
                                    .snapshot_at = before.snapshot_bytes};
    return true;
}

int plan_state_records(const struct plan *plan, enum plan_processor keeper, enum plan_processor worker,
                       struct state_record **records, uint32_t *count, struct helm_err *err)
{
    *count = 0;
    *records = calloc(plan->layers, sizeof **records);
    if (!*records) return helm_fail(err, HELM_E_NOMEM, "no memory for %u layers' states", plan->layers);
    for (uint32_t l = 0; l < plan->layers; l++) {
        struct state_record *r = &(*records)[*count];
        if (!plan_state_record(plan, keeper, l, r)) continue;
        for (uint32_t p = 0; p < plan_phase_count(plan); p++)
            if (plan_home_processor(plan->unit[unit_of(l, UNIT_ATTENTION)].home[p]) == worker)
                r->phases |= 1ull << p;
        *count += r->phases != 0;
    }
    return 0;
}

/* ---- windows ---- */

uint32_t plan_window_pages_least(uint32_t window_tokens, const struct plan *sizes)
{
    const uint64_t
        page = sizes->page_tokens,
        slots = sizes->slots,
        /* n tokens in a row see and append to window - 1 + n positions; two steps may be in flight */
        each = (window_tokens + page - 1) / page + 2, step = (sizes->step_tokens + page - 1) / page,
        pages = slots * each + step + PLAN_SESSION_PAGES;
    return pages < PLAN_TOKENS_MAX ? (uint32_t)pages : PLAN_TOKENS_MAX;
}

uint32_t plan_session_window_layer(const struct plan *plan, enum plan_processor processor)
{
    uint32_t layers = 0;
    for (int p = 0; p < (int)processor; p++)
        if (plan_processor_has_memory((enum plan_processor)p))
            layers += plan_window_layers(plan, (enum plan_processor)p);
    return layers;
}

uint64_t plan_session_bytes(const struct plan *plan, uint64_t layer_bytes, uint64_t window_bytes)
{
    const uint64_t pages = plan_kv_tiered(plan) ? 0 : plan_device_layers(plan),
                   windows = plan_session_window_layer(plan, PLAN_PROCESSORS);
    return pages * layer_bytes > windows * window_bytes ? pages * layer_bytes : windows * window_bytes;
}

int plan_check_windows(const struct plan *plan, struct helm_err *err)
{
    const uint32_t pages = plan->window_page_count,
                   least =
                       pages && plan->page_tokens ? plan_window_pages_least(plan->window_tokens, plan) : 0,
                   needs = least < plan->page_count ? least : plan->page_count;
    uint32_t layers = 0, paged = 0;
    for (uint32_t l = 0; l < plan->layers; l++) {
        layers += plan_keeps_window(plan, l);
        paged += plan_keeps_pages(plan, l);
    }
    if (pages && !paged)
        return helm_fail(err, HELM_E_LIMIT, "every layer keeps a window: one has to keep all pages");
    if (!layers == !pages && !pages == !plan->window_tokens && pages <= plan->page_count &&
        (!pages || pages >= needs))
        return 0;
    return helm_fail(
        err, HELM_E_LIMIT,
        "%u layers keep a window of %u tokens in %u pages: all three are 0, or there are %u to %u "
        "pages",
        layers, plan->window_tokens, pages, needs, plan->page_count);
}

/* ---- as JSON ---- */

json_t *plan_states_to_json(const struct plan *plan)
{
    json_t *list = json_array();
    for (uint32_t l = 0, first = 0; l < plan->layers; l++) {
        const struct plan_state *state = state_of(plan, l);
        if (l + 1 < plan->layers && alike(state, state_of(plan, l + 1))) continue;
        json_t *entry = json_pack("{s:[I, I], s:s}", "layers", (json_int_t)first, (json_int_t)l, "kind",
                                  state_kind_name(state->kind));
        if (state->bytes) json_object_set_new(entry, "bytes", plan_bytes_to_json(state->bytes));
        json_array_append_new(list, entry);
        first = l + 1;
    }
    return list;
}

/* An entry, whose layers follow those before `next`. */
static int parse_entry(const json_t *json, struct plan *plan, uint32_t *next, struct helm_err *err)
{
    json_int_t first = -1, last = -1;
    const char *kind = "";
    struct plan_state state = {.kind = STATE_NONE};
    if (json_unpack((json_t *)json, "{s:[I, I!], s:s}", "layers", &first, &last, "kind", &kind))
        return helm_fail(err, HELM_E_FORMAT, "not {\"layers\": [first, last], \"kind\": ...}");
    if (first != (json_int_t)*next || last < first || last >= (json_int_t)plan->layers)
        return helm_fail(err, HELM_E_LIMIT, "layers [%lld, %lld] do not begin at %u and end below %u",
                         (long long)first, (long long)last, *next, plan->layers);
    while (state.kind < STATE_KINDS && strcmp(kind, state_kind_name(state.kind)) != 0)
        state.kind = (enum state_kind)(state.kind + 1);
    if (state.kind == STATE_KINDS) return helm_fail(err, HELM_E_FORMAT, "'%.40s' is no kind of state", kind);
    const bool fixed = state.kind == STATE_FIXED;
    int rc =
        json_get_u64(json, "bytes", fixed, fixed ? 1 : 0, fixed ? STATE_BYTES_MAX : 0, &state.bytes, err);
    if (!rc && state.bytes % STATE_ALIGN)
        rc = helm_fail(err, HELM_E_LIMIT, "'bytes' is %llu, not a multiple of %d",
                       (unsigned long long)state.bytes, STATE_ALIGN);
    for (; !rc && (json_int_t)*next <= last; ++*next) *state_of(plan, *next) = state;
    return rc;
}

int plan_states_from_json(const json_t *json, struct plan *plan, struct helm_err *err)
{
    const json_t *list = json_object_get(json, "states");
    uint64_t snapshots = 0, tokens = 0, pages = 0;
    uint32_t next = 0;
    int rc = json_get_u64(json, "state_snapshots", false, 0, PLAN_SNAPSHOTS_MAX, &snapshots, err);
    if (!rc) rc = json_get_u64(json, "window_tokens", false, 0, PLAN_TOKENS_MAX, &tokens, err);
    if (!rc) rc = json_get_u64(json, "window_page_count", false, 0, PLAN_TOKENS_MAX, &pages, err);
    plan->state_snapshots = (uint32_t)snapshots;
    plan->window_tokens = (uint32_t)tokens;
    plan->window_page_count = (uint32_t)pages;
    if (rc || !list || json_is_null(list)) return rc;
    if (!json_is_array(list)) return helm_fail(err, HELM_E_FORMAT, "'states' is no array");
    plan->has_states = true;
    for (size_t i = 0; i < json_array_size(list) && !rc; i++) {
        rc = parse_entry(json_array_get(list, i), plan, &next, err);
        if (rc) helm_err_prefix(err, "'states' entry %zu", i);
    }
    if (!rc && next != plan->layers)
        rc = helm_fail(err, HELM_E_FORMAT, "'states' ends before layer %u of %u", next, plan->layers);
    return rc;
}

/* ---- the arena that a plan needs ---- */

uint32_t plan_lanes_of(const struct plan *plan, enum arena_lane_kind kind)
{
    const bool mixed = plan_mixed_units(plan) > 0;
    const struct plan_home_row *home = &plan_home_rows[mixed ? PLAN_HOME_MIXED : PLAN_HOME_SHARED];
    unsigned tiered = 0; /* devices, of which the CPU may be asked to attend */
    if (kind == ARENA_LANE_STEP) return plan_lanes(plan);
    if (kind == ARENA_LANE_EXPERTS)
        return mixed || plan_shared_units(plan)
                   ? plan_lanes_between(1u << home->processor | 1u << home->helper)
                   : 0;
    for (int p = 0; p < PLAN_PROCESSORS; p++) tiered |= (unsigned)(plan->device[p].vram_page_count > 0) << p;
    return plan_lanes_between(tiered | 1u << PLAN_CPU0);
}

struct arena_spec plan_arena_spec(const struct plan *plan, const struct model_config *config)
{
    const uint32_t counted = plan_slot_units(plan);
    return (struct arena_spec){.slots = plan->slots,
                               .samples = engine_samples(plan->slots, plan->draft_tokens),
                               .context_tokens = plan->context_tokens,
                               .step_tokens = plan->step_tokens,
                               .hidden = config->hidden,
                               .vocab = config->vocab,
                               .lanes = {plan_lanes(plan), plan_lanes_of(plan, ARENA_LANE_KV),
                                         plan_lanes_of(plan, ARENA_LANE_EXPERTS)},
                               .kv = {.layers = plan_kv_layers(plan, PLAN_HOST),
                                      .kv_heads = config->kv_heads,
                                      .head_dim = config->head_dim,
                                      .page_tokens = plan->page_tokens,
                                      .dtype = kv_dtype_named(plan->kv_dtype),
                                      .latent = config->latent.rank},
                               .page_count = plan->page_count,
                               .window_tokens = plan->window_tokens,
                               .window_page_count = plan->window_page_count,
                               .window_layers = plan_window_layers(plan, PLAN_CPU0),
                               .window_kv_heads = config->window_heads.kv_heads,
                               .window_head_dim = config->window_heads.head_dim,
                               .vram_page_count = plan_kv_places(plan),
                               .kv_heads_asking = plan_kv_tiered(plan) ? config->heads : 0,
                               .experts_chosen = counted ? config->router.chosen : 0,
                               .experts = counted ? config->router.experts : 0,
                               .expert_layers = counted,
                               .state = plan_state_layout(plan, PLAN_CPU0),
                               .snapshot_count = plan->state_snapshots,
                               .weight_bytes = placements_in(plan, PLAN_HOST).region_bytes};
}
