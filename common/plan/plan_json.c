/* Plans as JSON. See plan.h. Called by helmd, the workers, clients and helm-plan; a parsed plan is checked as
 * a whole before the caller gets it. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/json.h"
#include "common/formats/kv_dtype.h"
#include "common/model/arch.h"
#include "common/model/router.h"
#include "common/plan/engine_limits.h"
#include "common/plan/placement.h"
#include "common/plan/stages.h"
#include "common/plan/state.h"

/* JSON's whole numbers here are signed; a larger one can only be "no limit". */
json_t *plan_bytes_to_json(uint64_t value)
{
    return value > PLAN_BYTES_MAX ? json_null() : json_integer((json_int_t)value);
}

static json_t *ledger_to_json(const struct ledger *ledger)
{
    json_t *lines = json_array();
    for (uint32_t i = 0; i < ledger->line_count; i++) {
        json_array_append_new(lines, json_pack("{s:s, s:o}", "what", ledger->line[i].what, "bytes",
                                               plan_bytes_to_json(ledger->line[i].bytes)));
    }
    return json_pack("{s:o, s:o, s:o}", "limit", plan_bytes_to_json(ledger->limit), "lines", lines, "total",
                     plan_bytes_to_json(ledger->total));
}

static json_t *placements_to_json(const struct plan *plan)
{
    char name[MODEL_NAME_MAX];
    json_t *list = json_array();
    for (uint32_t i = 0; i < plan->placement_count; i++) {
        const struct placement *p = &plan->placement[i];
        model_tensor_name(NULL, p->role, p->layer, name);
        json_array_append_new(list, json_pack("[s, s, s, I, I]", name, tensor_format_name(p->format),
                                              plan_memory_name(p->memory), (json_int_t)p->offset,
                                              (json_int_t)p->bytes));
    }
    return list;
}

/* Whether the plan says something of the processor and its memory: of the CPU and the first device whether it
 * uses them or not. */
static bool is_said(const struct plan *plan, enum plan_processor processor)
{
    return plan_device_index(processor) == 0 || plan_uses(plan, processor);
}

static bool is_said_of(const struct plan *plan, enum plan_memory memory)
{
    return memory == PLAN_DISK ? plan_has_home(plan, PLAN_HOME_DISK)
                               : is_said(plan, plan_memory_processor(memory));
}

static json_t *inputs_to_json(const struct plan *plan)
{
    json_t *json = json_object();
    for (int p = 0; p < PLAN_PROCESSORS; p++)
        if (is_said(plan, (enum plan_processor)p))
            json_object_set_new(json, plan_processor_name((enum plan_processor)p),
                                json_string(linear_inputs_name(plan->inputs[p])));
    return json;
}

static json_t *experts_to_json(const struct plan *plan)
{
    const struct plan_experts *e = plan_experts(plan);
    json_t *json = json_pack("{s:I, s:I, s:I, s:I, s:I}", "slots", (json_int_t)e->slots, "direct_permille",
                             (json_int_t)e->direct_permille, "moves", (json_int_t)e->moves, "move_cost",
                             (json_int_t)e->move_cost, "hit_permille", (json_int_t)e->hit_permille),
           *first = e->first ? json_array() : NULL;
    for (uint32_t u = 0; first && u < plan_mixed_units(plan); u++) {
        json_t *of = json_array();
        for (uint32_t i = 0; i < e->slots; i++)
            json_array_append_new(of, json_integer(e->first[u * e->slots + i]));
        json_array_append_new(first, of);
    }
    if (first) json_object_set_new(json, "first", first);
    return json;
}

/* Devices after the first, of which something is said. */
static void add_devices(json_t *json, const struct plan *plan)
{
    json_t *devices = json_object();
    for (int p = plan_first_device() + 1; p < PLAN_PROCESSORS; p++) {
        const struct plan_device *device = &plan->device[p];
        if (!device->ring_bytes && !device->vram_page_count) continue;
        json_object_set_new(devices, plan_processor_name((enum plan_processor)p),
                            json_pack("{s:o, s:I}", "ring_bytes", plan_bytes_to_json(device->ring_bytes),
                                      "vram_page_count", (json_int_t)device->vram_page_count));
    }
    if (json_object_size(devices)) json_object_set(json, "devices", devices);
    json_decref(devices);
}

static void set(json_t *json, const char *key, uint32_t value)
{
    json_object_set_new(json, key, json_integer((json_int_t)value));
}

json_t *plan_to_json(const struct plan *plan)
{
    const struct plan_device *first = &plan->device[plan_first_device()];
    json_t *json =
        json_pack("{s:I, s:I, s:I, s:I, s:I, s:I, s:s, s:o, s:o, s:s, s:s}", "layers",
                  (json_int_t)plan->layers, "context_tokens", (json_int_t)plan->context_tokens, "step_tokens",
                  (json_int_t)plan->step_tokens, "slots", (json_int_t)plan->slots, "page_tokens",
                  (json_int_t)plan->page_tokens, "page_count", (json_int_t)plan->page_count, "kv_dtype",
                  plan->kv_dtype, "stages", plan_lists_to_json(plan), "ring_bytes",
                  plan_bytes_to_json(first->ring_bytes), "embed", plan_processor_name(plan->embed), "head",
                  plan_processor_name(plan->head));
    if (!json) return NULL;
    if (plan_kv_tiered(plan)) {
        set(json, "vram_page_count", first->vram_page_count);
        set(json, "kv_free_places", plan->kv_free_places);
        set(json, "kv_direct_permille", plan->kv_direct_permille);
        set(json, "kv_direct_positions", plan->kv_direct_positions);
        set(json, "kv_direct_window", plan->kv_direct_window);
        if (plan->kv_piece_pages) set(json, "kv_piece_pages", plan->kv_piece_pages);
    }
    add_devices(json, plan);
    if (plan_experts(plan)->slots) json_object_set_new(json, "mixed", experts_to_json(plan));
    if (plan->expert_parts > 1) set(json, "expert_parts", plan->expert_parts);
    if (plan->shared_rows) set(json, "shared_rows", plan->shared_rows);
    if (plan_disk_slots(plan)) set(json, "disk_slots", plan_disk_slots(plan));
    if (plan_disk_ring(plan))
        json_object_set_new(json, "disk_ring_bytes", plan_bytes_to_json(plan_disk_ring(plan)));
    if (plan->has_states) json_object_set_new(json, "states", plan_states_to_json(plan));
    if (plan->state_snapshots) set(json, "state_snapshots", plan->state_snapshots);
    if (plan->draft_layers) set(json, "draft_layers", plan->draft_layers);
    if (plan->draft_tokens) set(json, "draft_tokens", plan->draft_tokens);
    if (plan->window_page_count) set(json, "window_tokens", plan->window_tokens);
    if (plan->window_page_count) set(json, "window_page_count", plan->window_page_count);
    if (plan->invariant) json_object_set_new(json, "invariant", json_true());
    if (plan->host_table)
        json_object_set_new(json, "per_layer_table", json_string(plan_memory_name(PLAN_HOST)));
    plan_format_to_json(json, "embed_format", plan_embed_format(plan));
    plan_format_to_json(json, "head_format", plan_head_format(plan));
    if (plan->weights) json_object_set_new(json, "weights", json_string(mixture_name(plan->weights)));
    json_object_set_new(json, "activations", inputs_to_json(plan));
    for (int m = 0; m < PLAN_MEMORIES; m++)
        if (is_said_of(plan, (enum plan_memory)m))
            json_object_set_new(json, plan_memory_name((enum plan_memory)m),
                                ledger_to_json(&plan->memory[m]));
    for (uint32_t p = 1; p < plan_phase_count(plan); p++) {
        char key[40];
        snprintf(key, sizeof key, "%s_from_tokens", plan_list_name(plan, p));
        set(json, key, plan_phase_from(plan, p));
    }
    if (plan->placement) json_object_set_new(json, "placements", placements_to_json(plan));
    return json;
}

struct field {
    const char *key;
    uint64_t min, max;
    uint32_t *out; /* keeps its value where a field that need not be there is not */
};
static int get_fields(const json_t *json, bool required, const struct field *fields, size_t count,
                      struct helm_err *err)
{
    int rc = 0;
    for (const struct field *f = fields; f < fields + count && !rc; f++) {
        uint64_t value = *f->out;
        rc = json_get_u64(json, f->key, required, f->min, f->max, &value, err);
        if (!rc) *f->out = (uint32_t)value;
    }
    return rc;
}
#define GET(json, required, fields, err)                                                                     \
    get_fields(json, required, fields, sizeof(fields) / sizeof *(fields), err)

/* Text that is printed later: no NUL inside, no control character. */
static int get_text(const json_t *json, const char *key, char *out, size_t size, struct helm_err *err)
{
    const char *text = "";
    int rc = json_get_string(json, key, true, &text, err);
    if (rc) return rc;
    size_t length = json_string_length(json_object_get(json, key));
    if (length == 0 || length >= size)
        return helm_fail(err, HELM_E_LIMIT, "'%s' has %zu bytes, not between 1 and %zu", key, length,
                         size - 1);
    for (size_t i = 0; i < length; i++) {
        if ((unsigned char)text[i] < 0x20 || text[i] == 0x7f)
            return helm_fail(err, HELM_E_FORMAT, "'%s' contains a control character", key);
    }
    memcpy(out, text, length + 1);
    return 0;
}

/* One entry. Whether it lies where it must is checked by placement_check, which has the model. */
static int parse_placement(json_t *json, const struct plan *plan, struct placement *place,
                           struct helm_err *err)
{
    const char *name, *format, *memory;
    json_int_t offset, bytes;
    if (json_unpack(json, "[s, s, s, I, I!]", &name, &format, &memory, &offset, &bytes) || offset < 0 ||
        bytes <= 0)
        return helm_fail(err, HELM_E_FORMAT, "not [tensor, format, memory, offset, bytes]");
    if (!arch_match_name(name, &place->role, &place->layer) || place->layer >= (int32_t)plan->layers)
        return helm_fail(err, HELM_E_FORMAT, "'%.80s' is no tensor of a model of %u layers", name,
                         plan->layers);
    place->format = tensor_format_named(format);
    place->memory = plan_memory_named(memory);
    place->offset = (uint64_t)offset;
    place->bytes = (uint64_t)bytes;
    if (place->format == FORMAT_COUNT)
        return helm_fail(err, HELM_E_FORMAT, "%s: '%.40s' is no format of weights", name, format);
    if (place->memory == PLAN_MEMORIES)
        return helm_fail(err, HELM_E_FORMAT, "%s: '%.40s' is no memory", name, memory);
    return 0;
}

static int parse_placements(const json_t *json, struct plan *plan, struct helm_err *err)
{
    const json_t *list = json_object_get(json, "placements");
    const size_t count = json_array_size(list);
    if (!list || json_is_null(list)) return 0;
    if (!json_is_array(list) || count == 0 || count > PLAN_PLACEMENTS_MAX)
        return helm_fail(err, HELM_E_FORMAT, "'placements' is no array of 1 to %u entries",
                         PLAN_PLACEMENTS_MAX);
    plan->placement = calloc(count, sizeof *plan->placement);
    if (!plan->placement) return helm_fail(err, HELM_E_NOMEM, "no memory for %zu placements", count);
    for (; plan->placement_count < count; plan->placement_count++) {
        const uint32_t i = plan->placement_count;
        int rc = parse_placement(json_array_get(list, i), plan, &plan->placement[i], err);
        if (rc) return helm_err_prefix(err, "placement %u", i), rc;
    }
    return 0;
}

/* Where the embedding or the head is; `by_default` when the plan does not say. */
static int parse_end(const json_t *json, const char *key, enum plan_home by_default,
                     enum plan_processor *processor, struct helm_err *err)
{
    const char *text = NULL;
    int rc = json_get_string(json, key, false, &text, err);
    if (rc) return rc;
    *processor = text ? plan_processor_named(text) : plan_home_processor(by_default);
    if (*processor < PLAN_PROCESSORS) return 0;
    return helm_fail(err, HELM_E_FORMAT, "'%s' is '%.40s', none of cpu, gpu, gpu1", key, text);
}

static int parse_ledger_lines(const json_t *array, struct ledger *ledger, struct helm_err *err)
{
    if (!json_is_array(array)) return helm_fail(err, HELM_E_FORMAT, "'lines' is missing or no array");
    size_t count = json_array_size(array);
    if (count > PLAN_LINES_MAX)
        return helm_fail(err, HELM_E_LIMIT, "'lines' has %zu entries, more than %d", count, PLAN_LINES_MAX);
    for (size_t i = 0; i < count; i++) {
        const json_t *entry = json_array_get(array, i);
        struct ledger_line line = {0};
        int rc = json_is_object(entry) ? 0 : helm_fail(err, HELM_E_FORMAT, "not an object");
        if (rc == 0) rc = get_text(entry, "what", line.what, sizeof line.what, err);
        if (rc == 0) rc = json_get_u64(entry, "bytes", true, 0, PLAN_BYTES_MAX, &line.bytes, err);
        if (rc) return helm_err_prefix(err, "line %zu", i), rc;
        ledger_add(ledger, line.what, line.bytes);
    }
    return 0;
}

static int parse_ledger_body(const json_t *json, struct ledger *ledger, struct helm_err *err)
{
    uint64_t total = 0;
    if (!json_is_object(json)) return helm_fail(err, HELM_E_FORMAT, "missing or not an object");
    const json_t *limit = json_object_get(json, "limit");
    if (!limit) return helm_fail(err, HELM_E_FORMAT, "'limit' is missing (null: no limit)");
    ledger->limit = UINT64_MAX;
    int rc = json_get_u64(json, "limit", false, 0, PLAN_BYTES_MAX, &ledger->limit, err);
    if (rc) return rc;
    rc = parse_ledger_lines(json_object_get(json, "lines"), ledger, err);
    if (rc) return rc;
    rc = json_get_u64(json, "total", true, 0, PLAN_BYTES_MAX, &total, err);
    if (rc) return rc;
    if (total != ledger->total)
        return helm_fail(err, HELM_E_MISMATCH, "'total' is %llu, its lines add up to %llu",
                         (unsigned long long)total, (unsigned long long)ledger->total);
    if (ledger->total > ledger->limit)
        return helm_fail(err, HELM_E_CAPACITY, "%llu bytes needed, limit %llu",
                         (unsigned long long)ledger->total, (unsigned long long)ledger->limit);
    return 0;
}

static int parse_ledger(const json_t *json, enum plan_memory memory, struct plan *plan, struct helm_err *err)
{
    const json_t *ledger = json_object_get(json, plan_memory_name(memory));
    plan->memory[memory].limit = UINT64_MAX;
    if (!ledger && !is_said_of(plan, memory)) return 0;
    int rc = parse_ledger_body(ledger, &plan->memory[memory], err);
    if (rc) helm_err_prefix(err, "%s ledger", plan_memory_name(memory));
    return rc;
}

static int parse_device(const json_t *json, const struct plan *plan, struct plan_device *device,
                        struct helm_err *err)
{
    const struct field places[] = {{"vram_page_count", 0, plan->page_count, &device->vram_page_count}};
    int rc = json_get_u64(json, "ring_bytes", false, 0, PLAN_BYTES_MAX, &device->ring_bytes, err);
    return rc ? rc : GET(json, false, places, err);
}

/* The plan's own members are the first device's. */
static int parse_devices(const json_t *json, struct plan *plan, struct helm_err *err)
{
    const json_t *devices = json_object_get(json, "devices"), *one;
    const char *name;
    int rc = parse_device(json, plan, &plan->device[plan_first_device()], err);
    if (rc || !devices || json_is_null(devices)) return rc;
    if (!json_is_object(devices)) return helm_fail(err, HELM_E_FORMAT, "'devices' is no object");
    json_object_foreach((json_t *)devices, name, one)
    {
        const enum plan_processor processor = plan_processor_named(name);
        if (processor == PLAN_PROCESSORS || processor <= plan_first_device())
            return helm_fail(err, HELM_E_FORMAT, "'devices' has '%.40s', which is no device after the first",
                             name);
        if (!json_is_object(one)) return helm_fail(err, HELM_E_FORMAT, "devices: '%s' is no object", name);
        rc = parse_device(one, plan, &plan->device[processor], err);
        if (rc) return helm_err_prefix(err, "devices: %s", name), rc;
    }
    return 0;
}

/* All 0 with one tier. */
static int parse_tiers(const json_t *json, struct plan *plan, struct helm_err *err)
{
    const struct field fields[] = {{"kv_free_places", 0, plan->page_count, &plan->kv_free_places},
                                   {"kv_direct_permille", 0, 1000, &plan->kv_direct_permille},
                                   {"kv_direct_positions", 0, PLAN_TOKENS_MAX, &plan->kv_direct_positions},
                                   {"kv_direct_window", 0, PLAN_TOKENS_MAX, &plan->kv_direct_window},
                                   {"kv_piece_pages", 0, plan->page_count, &plan->kv_piece_pages}};
    plan->kv_free_places = plan_free_places(plan->slots, plan->page_tokens);
    int rc = GET(json, false, fields, err);
    for (size_t i = 0; i < sizeof fields / sizeof *fields && !plan_kv_tiered(plan); i++) *fields[i].out = 0;
    return rc;
}

static int parse_sizes(const json_t *json, struct plan *plan, struct helm_err *err)
{
    const struct field fields[] = {{"layers", 1, PLAN_STAGES_MAX, &plan->layers},
                                   {"context_tokens", 1, PLAN_TOKENS_MAX, &plan->context_tokens},
                                   {"step_tokens", 1, PLAN_TOKENS_MAX, &plan->step_tokens},
                                   {"slots", 1, PLAN_SLOTS_MAX, &plan->slots},
                                   {"page_tokens", 1, PLAN_PAGE_TOKENS_MAX, &plan->page_tokens},
                                   {"page_count", 0, UINT32_MAX, &plan->page_count}},
                       parts[] = {{"expert_parts", 1, MODEL_EXPERTS_CHOSEN_MAX, &plan->expert_parts},
                                  {"draft_layers", 0, 1, &plan->draft_layers},
                                  {"shared_rows", 1, MODEL_INTERMEDIATE_MAX, &plan->shared_rows},
                                  {"disk_slots", 1, MODEL_EXPERTS_MAX,
                                   &plan_device_at(plan, PLAN_HOME_DISK)->experts.slots},
                                  {"draft_tokens", 0, ENGINE_DRAFTS_MAX, &plan->draft_tokens}};
    plan->expert_parts = 1;
    int rc = GET(json, true, fields, err);
    if (rc) return rc;
    if (plan->page_tokens & (plan->page_tokens - 1))
        return helm_fail(err, HELM_E_LIMIT, "'page_tokens' is %u, not a power of two", plan->page_tokens);
    rc = parse_devices(json, plan, err);
    if (!rc) rc = parse_tiers(json, plan, err);
    if (!rc) rc = GET(json, false, parts, err);
    if (!rc)
        rc = json_get_u64(json, "disk_ring_bytes", false, 0, PLAN_BYTES_MAX,
                          &plan_device_at(plan, PLAN_HOME_DISK)->ring_bytes, err);
    if (!rc) rc = json_get_bool(json, "invariant", false, &plan->invariant, err);
    if (rc) return rc;
    rc = get_text(json, "kv_dtype", plan->kv_dtype, sizeof plan->kv_dtype, err);
    if (rc) return rc;
    if (kv_dtype_named(plan->kv_dtype) == KV_DTYPE_COUNT)
        return helm_fail(err, HELM_E_UNSUPPORTED, "'kv_dtype' is '%s', none of " KV_DTYPES, plan->kv_dtype);
    return 0;
}

/* "first" of experts: a list of as many as there are slots for each unit. */
static int parse_first(const json_t *list, struct plan *plan, struct helm_err *err)
{
    struct plan_experts *e = &plan_device_at(plan, PLAN_HOME_MIXED)->experts;
    const uint32_t units = plan_mixed_units(plan);
    if (!list || json_is_null(list)) return 0;
    if (!json_is_array(list) || json_array_size(list) != units)
        return helm_fail(err, HELM_E_FORMAT,
                         "'first' is no array of one list for each of %u 'mixed' stages' layers", units);
    e->first = calloc((size_t)units * e->slots + 1, sizeof *e->first);
    if (!e->first) return helm_fail(err, HELM_E_NOMEM, "no memory for %u x %u experts", units, e->slots);
    for (uint32_t u = 0; u < units; u++) {
        const json_t *of = json_array_get(list, u);
        if (!json_is_array(of) || json_array_size(of) != e->slots)
            return helm_fail(err, HELM_E_FORMAT, "'first': list %u has not one expert for each of %u slots",
                             u, e->slots);
        for (uint32_t i = 0; i < e->slots; i++) {
            const json_t *id = json_array_get(of, i);
            if (!json_is_integer(id) || json_integer_value(id) < 0 || json_integer_value(id) > UINT32_MAX)
                return helm_fail(err, HELM_E_FORMAT, "'first': list %u has what is no expert's number", u);
            e->first[(size_t)u * e->slots + i] = (uint32_t)json_integer_value(id);
        }
    }
    return 0;
}

static int parse_experts(const json_t *json, struct plan *plan, struct helm_err *err)
{
    const json_t *experts = json_object_get(json, "mixed");
    struct plan_experts *e = &plan_device_at(plan, PLAN_HOME_MIXED)->experts;
    const struct field slots[] = {{"slots", 1, MODEL_EXPERTS_MAX, &e->slots}},
                       fields[] = {{"direct_permille", 0, 1000, &e->direct_permille},
                                   {"moves", 0, PLAN_MOVES_MAX, &e->moves},
                                   {"move_cost", 0, PLAN_MOVE_COST_MAX, &e->move_cost},
                                   {"hit_permille", 0, 1000, &e->hit_permille}};
    if (!experts || json_is_null(experts)) return 0;
    if (!json_is_object(experts)) return helm_fail(err, HELM_E_FORMAT, "'mixed' is no object");
    e->move_cost = PLAN_MOVE_COST;
    int rc = GET(experts, true, slots, err);
    if (!rc) rc = GET(experts, false, fields, err);
    if (!rc) rc = parse_first(json_object_get(experts, "first"), plan, err);
    return rc ? helm_err_prefix(err, "mixed"), rc : 0;
}

static int parse_weights(const json_t *json, const struct mixture **weights, struct helm_err *err)
{
    const char *name = NULL;
    int rc = json_get_string(json, "weights", false, &name, err);
    if (rc || !name) return rc;
    *weights = mixture_named(name);
    return *weights && mixture_lays(*weights)
               ? 0
               : helm_fail(err, HELM_E_FORMAT, "weights '%.40s' is no mixture of blocks", name);
}

/* LINEAR_INPUTS: there is none of this name. */
static enum linear_inputs inputs_named(const char *name)
{
    enum linear_inputs inputs = LINEAR_EXACT;
    while (inputs < LINEAR_INPUTS && strcmp(name, linear_inputs_name(inputs)) != 0) inputs++;
    return inputs;
}

static int parse_inputs(const json_t *json, struct plan *plan, struct helm_err *err)
{
    const json_t *all = json_object_get(json, "activations");
    if (!all || json_is_null(all)) return 0;
    if (!json_is_object(all)) return helm_fail(err, HELM_E_FORMAT, "'activations' is no object");
    for (int p = 0; p < PLAN_PROCESSORS; p++) {
        const char *name = linear_inputs_name(LINEAR_EXACT);
        int rc = json_get_string(all, plan_processor_name((enum plan_processor)p), false, &name, err);
        if (rc) return helm_err_prefix(err, "activations"), rc;
        plan->inputs[p] = inputs_named(name);
        if (plan->inputs[p] == LINEAR_INPUTS)
            return helm_fail(err, HELM_E_FORMAT, "activations '%.40s' are neither exact nor int8", name);
    }
    return 0;
}

/* Members of older plans, which stated packing by flags and counts. */
static int check_gone(const json_t *json, struct helm_err *err)
{
    static const char *const gone[] = {"pack", "pack_cpu", "pack_gpu", "pack_head", "pack_gpu_bytes"};
    for (size_t i = 0; i < sizeof gone / sizeof *gone; i++)
        if (json_object_get(json, gone[i]))
            return helm_fail(err, HELM_E_UNSUPPORTED,
                             "'%s' is a member of older plans: write \"format\": \"bf16-packed\" into the "
                             "stages of 'decode' whose weights lie packed, and \"head_format\" for the head; "
                             "helmd makes room for them",
                             gone[i]);
    return 0;
}

/* In which memory a table of per-layer embeddings lies. */
static int parse_table(const json_t *json, struct plan *plan, struct helm_err *err)
{
    const char *name = NULL;
    const int rc = json_get_string(json, "per_layer_table", false, &name, err);
    plan->host_table = !rc && name;
    if (rc || !name || strcmp(name, plan_memory_name(PLAN_HOST)) == 0) return rc;
    return helm_fail(err, HELM_E_FORMAT, "'per_layer_table' is '%.40s'; rows are read from '%s' alone", name,
                     plan_memory_name(PLAN_HOST));
}

int plan_from_json(const json_t *json, struct plan *plan, struct helm_err *err)
{
    memset(plan, 0, sizeof *plan);
    int rc = json_is_object(json) ? 0 : helm_fail(err, HELM_E_FORMAT, "not an object");
    if (rc == 0) rc = check_gone(json, err);
    if (rc == 0) rc = parse_sizes(json, plan, err);
    if (rc == 0) rc = plan_lists_from_json(json, plan, err);
    if (rc == 0) rc = parse_end(json, "embed", plan->unit[0].home[0], &plan->embed, err);
    const uint32_t units = unit_count(plan->layers);
    if (rc == 0) rc = parse_end(json, "head", plan->unit[units - 1].home[0], &plan->head, err);
    if (rc == 0) rc = plan_format_from_json(json, "embed_format", &plan->unit[units].format, err);
    if (rc == 0) rc = plan_format_from_json(json, "head_format", &plan->unit[units + 1].format, err);
    if (rc == 0) rc = parse_table(json, plan, err);
    if (rc == 0) rc = parse_weights(json, &plan->weights, err);
    if (rc == 0) rc = parse_inputs(json, plan, err);
    if (rc == 0) rc = parse_experts(json, plan, err);
    if (rc == 0) rc = plan_states_from_json(json, plan, err);
    if (rc == 0) rc = plan_check(plan, err);
    if (rc == 0) rc = parse_placements(json, plan, err);
    for (int m = 0; m < PLAN_MEMORIES && rc == 0; m++)
        rc = parse_ledger(json, (enum plan_memory)m, plan, err);
    if (rc) {
        helm_err_prefix(err, "plan");
        plan_free(plan);
    }
    return rc;
}

int plan_file_has(const char *path, const char *const members[], bool *has, struct helm_err *err)
{
    json_t *json = NULL;
    *has = false;
    const int rc = json_read_file(path, PLAN_TEXT_MAX, &json, err);
    for (size_t i = 0; members[i] && !*has; i++)
        *has = json_integer_value(json_object_get(json, members[i])) > 0;
    json_decref(json);
    return rc;
}
