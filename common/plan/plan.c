/* Plans as structs: units, phases, spans, ledgers. See plan.h; plan_json.c is their JSON form. Called by the
 * planner, helmd, the workers and clients; pure but for the arrays of a copy. */
#include "common/plan/plan.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/units.h"
#include "common/model/router.h"
#include "common/plan/placement.h"
#include "common/plan/share.h"
#include "common/plan/state.h"

/* ---- phases and homes ---- */

uint32_t plan_phase_for(const struct plan *plan, uint32_t tokens)
{
    uint32_t phase = 0;
    while (tokens > plan_phase_last(plan, phase)) phase++;
    return phase;
}

/* The homes that a phase has, as bits. */
static unsigned homes_of(const struct plan *plan, uint32_t phase)
{
    unsigned homes = 0;
    for (uint32_t u = 0; u < unit_count(plan->layers); u++) homes |= 1u << plan->unit[u].home[phase];
    return homes;
}

static unsigned all_homes(const struct plan *plan)
{
    unsigned homes = 0;
    for (uint32_t p = 0; p < plan_phase_count(plan); p++) homes |= homes_of(plan, p);
    return homes;
}

uint32_t plan_most_tokens(const struct plan *plan, enum plan_processor processor)
{
    uint32_t most = 0;
    for (uint32_t p = 0; p < plan_phase_count(plan); p++) {
        const uint32_t end = plan_phase_last(plan, p),
                       last = end < plan->step_tokens ? end : plan->step_tokens;
        if (plan_phase_from(plan, p) > last) continue; /* no step is that long */
        const unsigned homes = homes_of(plan, p);
        for (int h = 0; h < PLAN_HOMES; h++)
            if (homes >> h & 1 && plan_home_computes((enum plan_home)h, processor)) most = last;
    }
    return most;
}

bool plan_computes(const struct plan *plan, enum plan_processor processor, uint32_t unit)
{
    bool computes = false;
    for (uint32_t p = 0; p < plan_phase_count(plan); p++)
        computes |= plan_home_computes(plan->unit[unit].home[p], processor);
    return computes;
}

bool plan_has_home(const struct plan *plan, enum plan_home home)
{
    return all_homes(plan) >> home & 1;
}

bool plan_streams(const struct plan *plan, enum plan_processor processor)
{
    const unsigned homes = all_homes(plan);
    for (int h = 0; h < PLAN_HOMES; h++)
        if (homes >> h & 1 && plan_home_streams((enum plan_home)h, processor)) return true;
    return false;
}

bool plan_is_helped(const struct plan *plan, enum plan_processor processor)
{
    const unsigned homes = all_homes(plan);
    for (int h = 0; h < PLAN_HOMES; h++)
        if (homes >> h & 1 && plan_home_rows[h].processor == processor &&
            plan_home_rows[h].helper < PLAN_PROCESSORS)
            return true;
    return false;
}

bool plan_uses(const struct plan *plan, enum plan_processor processor)
{
    const unsigned homes = all_homes(plan);
    if (plan->embed == processor || plan->head == processor) return true;
    if (!plan_processor_has_memory(processor) && (plan_kv_assisted(plan) || plan->host_table)) return true;
    for (int h = 0; h < PLAN_HOMES; h++)
        if (homes >> h & 1 && (plan_home_processor((enum plan_home)h) == processor ||
                               plan_home_memory((enum plan_home)h) == plan_processor_memory(processor)))
            return true;
    return false;
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

/* ---- units ---- */

int plan_make_units(struct plan *plan, enum plan_home home, struct helm_err *err)
{
    const uint32_t count = unit_count(plan->layers) + 2;
    plan->unit = calloc(count, sizeof *plan->unit);
    if (!plan->unit) return helm_fail(err, HELM_E_NOMEM, "no memory for a plan of %u units", count);
    for (uint32_t u = 0; u < count; u++) plan->unit[u].home[0] = home;
    plan_formats_clear(plan);
    return 0;
}

uint32_t plan_units_in(const struct plan *plan, enum plan_memory memory, enum tensor_format format)
{
    uint32_t count = 0;
    for (uint32_t u = 0; u < unit_count(plan->layers); u++)
        count += plan_home_memory(plan->unit[u].home[0]) == memory && plan->unit[u].format == format;
    return count;
}

void plan_drop_placements(struct plan *plan)
{
    free(plan->placement);
    plan->placement = NULL;
    plan->placement_count = 0;
}

void plan_formats_clear(struct plan *plan)
{
    for (uint32_t u = 0; u < unit_count(plan->layers) + 2; u++) plan_set_unit_format(plan, u, PLAN_AS_STORED);
}

void plan_set_unit_format(struct plan *plan, uint32_t unit, enum tensor_format format)
{
    plan_drop_placements(plan);
    plan->unit[unit].format = format;
}

void plan_set_head_format(struct plan *plan, enum tensor_format format)
{
    plan_set_unit_format(plan, unit_count(plan->layers) + 1, format);
}

void plan_set_homes(struct plan *plan, uint32_t phase, const enum plan_home *home)
{
    const uint32_t answer = plan_answer_units(plan);
    for (uint32_t u = 0; u < answer; u++) plan->unit[u].home[phase] = home[u];
    for (uint32_t u = answer; u < unit_count(plan->layers); u++)
        plan->unit[u].home[phase] = plan_processor_home(plan->head);
}

/* ---- the KV cache ---- */

/* Counts those of the layers [0, end) that keep this kind of state with a processor; PLAN_PROCESSORS: with
 * any. */
static uint32_t keeping(const struct plan *plan, enum state_kind kind, enum plan_processor processor,
                        uint32_t end)
{
    uint32_t layers = 0;
    for (uint32_t l = 0; l < end; l++)
        layers += plan_state_at(plan, l).kind == kind &&
                  (processor == PLAN_PROCESSORS || plan_keeper(plan, l) == processor);
    return layers;
}

static uint32_t paged(const struct plan *plan, enum plan_processor processor, uint32_t end)
{
    return keeping(plan, STATE_PAGES, processor, end);
}

uint32_t plan_layers_of(const struct plan *plan, enum plan_processor processor)
{
    return paged(plan, processor, plan->layers);
}

uint32_t plan_window_layers(const struct plan *plan, enum plan_processor processor)
{
    return keeping(plan, STATE_WINDOW, processor, plan->layers);
}

uint32_t plan_kv_layer_in_arena(const struct plan *plan, uint32_t layer)
{
    return paged(plan, PLAN_PROCESSORS, layer);
}

uint32_t plan_kv_layers(const struct plan *plan, enum plan_memory memory)
{
    if (memory == PLAN_HOST && plan_kv_tiered(plan)) return paged(plan, PLAN_PROCESSORS, plan->layers);
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
    const enum plan_processor keeper = plan_keeper(plan, layer);
    const bool all = !plan_processor_has_memory(keeper) && plan_kv_tiered(plan);
    *kv_layer = plan_keeps_window(plan, layer) ? keeping(plan, STATE_WINDOW, keeper, layer)
                                               : paged(plan, all ? PLAN_PROCESSORS : keeper, layer);
    return keeper;
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

bool plan_borrows(const struct plan *plan, enum plan_processor processor)
{
    for (uint32_t p = 1; p < plan_phase_count(plan); p++)
        for (uint32_t l = 0; l < plan->layers; l++)
            if (plan_home_processor(plan->unit[unit_of(l, UNIT_ATTENTION)].home[p]) == processor &&
                (plan_keeps_pages(plan, l) || plan_keeps_window(plan, l)) &&
                plan_keeper(plan, l) != processor)
                return true;
    return false;
}

bool plan_borrows_kv(const struct plan *plan)
{
    for (int p = 0; p < PLAN_PROCESSORS; p++)
        if (plan_borrows(plan, (enum plan_processor)p)) return true;
    return false;
}

/* ---- experts ---- */

double plan_hit_rate(const struct plan *plan, uint32_t experts)
{
    const struct plan_experts *e = plan_experts(plan);
    if (e->hit_permille) return e->hit_permille / 1000.0;
    return experts ? (double)e->slots / experts : 0;
}

uint32_t plan_mixed_index(const struct plan *plan, uint32_t unit)
{
    uint32_t count = 0;
    for (uint32_t u = 0; u < unit; u++) count += plan->unit[u].home[0] == PLAN_HOME_MIXED;
    return count;
}

uint32_t plan_mixed_units(const struct plan *plan)
{
    return plan_mixed_index(plan, unit_count(plan->layers));
}

uint32_t plan_disk_units(const struct plan *plan)
{
    uint32_t count = 0;
    for (uint32_t u = 0; u < unit_count(plan->layers); u++) count += plan->unit[u].home[0] == PLAN_HOME_DISK;
    return count;
}

/* ---- lanes ---- */

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

/* ---- checks ---- */

static int check_against_decode(const struct plan *plan, uint32_t phase, struct helm_err *err)
{
    for (uint32_t u = 0; u < unit_count(plan->layers); u++) {
        const enum plan_home home = plan->unit[u].home[phase], decode = plan->unit[u].home[0];
        if (plan_home_memory(home) != plan_home_memory(decode))
            return helm_fail(err, HELM_E_FORMAT,
                             "the %s of layer %u is at home on '%s', in decode on '%s': weights do not move",
                             unit_part_name(unit_part(u)), unit_layer(u), plan_home_name(home),
                             plan_home_name(decode));
        const enum plan_processor keeper = plan_home_processor(decode);
        if (unit_part(u) == UNIT_ATTENTION && plan_home_processor(home) != keeper &&
            plan_processor_has_memory(keeper))
            return helm_fail(err, HELM_E_FORMAT,
                             "the attention of layer %u is on '%s', but its state is in VRAM", unit_layer(u),
                             plan_home_name(home));
    }
    return 0;
}

/* The ends where their formats can be. */
static int check_formats(const struct plan *plan, struct helm_err *err)
{
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
    for (uint32_t p = 0; p < plan_phase_count(plan); p++)
        for (uint32_t u = 0; u < unit_count(plan->layers); u++)
            if (plan->unit[u].home[p] == PLAN_HOME_MIXED && (p || unit_part(u) != UNIT_MLP))
                return helm_fail(
                    err, HELM_E_FORMAT,
                    "layer %u has 'mixed' as home of %s: it is for the MLP of a layer, in the decode list",
                    unit_layer(u),
                    p                                              ? "a prefill list"
                    : plan->unit[u + 1].home[0] == PLAN_HOME_MIXED ? "all"
                                                                   : "attention");
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

/* Experts on disk, of MLP halves, or whole units: in every list, since check_against_decode says that weights
 * do not move. */
static int check_disk(const struct plan *plan, struct helm_err *err)
{
    const uint32_t units = plan_disk_units(plan), slots = plan_disk_slots(plan);
    const uint64_t ring = plan_disk_ring(plan);
    for (uint32_t u = 0; u < unit_count(plan->layers); u++) {
        if (plan->unit[u].home[0] != PLAN_HOME_DISK) continue;
        if (slots && unit_part(u) != UNIT_MLP)
            return helm_fail(err, HELM_E_FORMAT,
                             "the attention of layer %u has 'disk' as home, where only experts have slots",
                             unit_layer(u));
        if (plan_unit_format(plan, u) != PLAN_AS_STORED)
            return helm_fail(err, HELM_E_UNSUPPORTED, "layer %u: weights on disk lie as stored, not as '%s'",
                             unit_layer(u), tensor_format_name(plan_unit_format(plan, u)));
    }
    if (units && plan_mixed_units(plan))
        return helm_fail(
            err, HELM_E_UNSUPPORTED,
            "%u layers have 'mixed' as home of their experts and %u 'disk': a plan has one of the two",
            plan_mixed_units(plan), units);
    if (ring && plan_streams(plan, PLAN_GPU0))
        return helm_fail(err, HELM_E_UNSUPPORTED,
                         "weights are streamed to a GPU and %u half layers read from disk: a plan has one of "
                         "the two",
                         units);
    if (units ? !slots != !ring : !slots && !ring) return 0;
    return helm_fail(err, HELM_E_FORMAT,
                     "%u half layers have 'disk' as home, 'disk_slots' is %u and 'disk_ring_bytes' %llu: "
                     "experts need slots, whole half layers a ring, and a plan has one of the two",
                     units, slots, (unsigned long long)ring);
}

/* A phase's list: every unit has a home, and the weights of a phase are where decode has them. */
static int check_phase(const struct plan *plan, uint32_t phase, struct helm_err *err)
{
    for (uint32_t u = 0; u < unit_count(plan->layers); u++)
        if ((unsigned)plan->unit[u].home[phase] >= PLAN_HOMES)
            return helm_fail(err, HELM_E_FORMAT, "the %s of layer %u has no home",
                             unit_part_name(unit_part(u)), unit_layer(u));
    if (!phase) return 0;
    if (plan_phase_from(plan, phase) <= plan_phase_from(plan, phase - 1))
        return helm_fail(err, HELM_E_LIMIT, "begins at %u tokens, the one before at %u",
                         plan_phase_from(plan, phase), plan_phase_from(plan, phase - 1));
    return check_against_decode(plan, phase, err);
}

/* Layers that make drafts: where the head is, whose processor has the hidden states, and with one tier of the
 * cache. */
static int check_drafts(const struct plan *plan, struct helm_err *err)
{
    const enum plan_home with_head = plan_processor_home(plan->head);
    if (plan->draft_layers && plan_kv_tiered(plan))
        return helm_fail(err, HELM_E_UNSUPPORTED,
                         "layer %u makes drafts: such plans have one tier of the cache, this one has two",
                         plan->layers - 1);
    for (uint32_t u = plan_answer_units(plan); u < unit_count(plan->layers); u++)
        for (uint32_t p = 0; p < plan_phase_count(plan); p++)
            if (plan->unit[u].home[p] != with_head)
                return helm_fail(err, HELM_E_FORMAT,
                                 "layer %u makes drafts: its home is '%s', but the head's is '%s'",
                                 unit_layer(u), plan_home_name(plan->unit[u].home[p]),
                                 plan_home_name(with_head));
    return 0;
}

int plan_check(const struct plan *plan, struct helm_err *err)
{
    if (plan->layers <= plan->draft_layers || !plan->unit) return helm_fail(err, HELM_E_LIMIT, "no stages");
    for (uint32_t p = 0; p < plan_phase_count(plan); p++) {
        int rc = check_phase(plan, p, err);
        if (rc && p) helm_err_prefix(err, "prefill list %u", p);
        if (rc) return rc;
    }
    for (int p = 0; p < PLAN_PROCESSORS; p++)
        if (plan_streams(plan, (enum plan_processor)p) && !plan->device[p].ring_bytes)
            return helm_fail(err, HELM_E_FORMAT, "there are 'stream' stages, but 'ring_bytes' is 0");
    int rc = plan_check_windows(plan, err);
    if (!rc) rc = plan_check_tiers(plan, err);
    if (!rc) rc = check_mixed(plan, err);
    if (!rc) rc = check_disk(plan, err);
    if (!rc) rc = check_drafts(plan, err);
    if (!rc) rc = plan_check_shared(plan, err);
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
    to->unit = NULL;
    to->placement = NULL;
    for (int p = 0; p < PLAN_PROCESSORS; p++) to->device[p].experts.first = NULL;
    int rc = copy_list(from->unit, from->unit ? unit_count(from->layers) + 2 : 0, sizeof *from->unit,
                       &to->unit, err);
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
    free(plan->unit);
    free(plan->placement);
    for (int p = 0; p < PLAN_PROCESSORS; p++) free(plan->device[p].experts.first);
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
    const uint32_t units = plan_answer_units(plan);
    uint32_t ticket[PLAN_LINKS] = {0};
    bool later[PLAN_LINKS] = {false}; /* some later hand-over goes by the same lane */
    *count = 0;
    *out = NULL;
    struct plan_span *spans = calloc((size_t)units + 2, sizeof *spans);
    if (!spans) return helm_fail(err, HELM_E_NOMEM, "no memory for %u spans", units + 2);
    span_of(spans, count, plan->embed)->embed = true;
    for (uint32_t u = 0; u < units; u++) {
        struct plan_span *span = span_of(spans, count, plan_home_processor(plan->unit[u].home[phase]));
        if (!span->unit_count++) span->first_unit = u;
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
