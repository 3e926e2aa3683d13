/* Lists of a plan as stages, in memory and as JSON. See stages.h. */
#include "common/plan/stages.h"

#include <stdio.h>
#include <string.h>

#include "common/base/json.h"

static const char *const list_names[PLAN_PHASES_MAX] = {"decode", "prefill_short", "prefill"};

const char *plan_ops_name(enum plan_ops ops)
{
    static const char *const names[PLAN_OPS_COUNT] = {"all", "attention", "mlp"};
    return (unsigned)ops < PLAN_OPS_COUNT ? names[ops] : "unknown";
}

/* ---- units as stages ---- */

static uint64_t least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* Whether a unit goes on what another one begins. */
static bool alike(const struct plan *plan, uint32_t phase, uint32_t a, uint32_t b)
{
    return plan->unit[a].home[phase] == plan->unit[b].home[phase] &&
           (phase || plan->unit[a].format == plan->unit[b].format);
}

/* Half a layer where its halves differ, whole layers otherwise. */
uint32_t plan_stage_at(const struct plan *plan, uint32_t phase, uint32_t unit, struct plan_stage *stage)
{
    const uint32_t units = unit_count(plan->layers);
    const bool mlp = unit_part(unit) == UNIT_MLP, half = mlp || !alike(plan, phase, unit, unit + 1);
    uint32_t end = unit + (half ? 1 : UNIT_PARTS);
    while (!half && end < units && alike(plan, phase, unit, end) && alike(plan, phase, unit, end + 1))
        end += UNIT_PARTS;
    *stage = (struct plan_stage){.first = unit_layer(unit),
                                 .last = unit_layer(end - 1),
                                 .home = plan->unit[unit].home[phase],
                                 .ops = !half ? PLAN_OPS_ALL
                                        : mlp ? PLAN_OPS_MLP
                                              : PLAN_OPS_ATTENTION,
                                 .format = phase ? PLAN_AS_STORED : plan->unit[unit].format};
    for (uint32_t u = unit; u < end; u++) { /* both are at most PLAN_BYTES_MAX, also where each unit's are */
        stage->bytes = least(stage->bytes + plan->unit[u].bytes[phase], PLAN_BYTES_MAX);
        stage->token_bytes = least(stage->token_bytes + plan->unit[u].token_bytes[phase], PLAN_BYTES_MAX);
    }
    if (stage->token_bytes == stage->bytes) stage->token_bytes = 0;
    return end;
}

/* ---- writing ---- */

const char *plan_list_name(const struct plan *plan, uint32_t phase)
{
    return list_names[phase ? PLAN_PREFILLS_MAX - plan->prefill_count + phase : 0];
}

void plan_format_to_json(json_t *json, const char *key, enum tensor_format format)
{
    if (format != PLAN_AS_STORED) json_object_set_new(json, key, json_string(tensor_format_name(format)));
}

json_t *plan_stage_to_json(const struct plan_stage *stage)
{
    json_t *json = json_pack("{s:[I, I], s:s, s:s, s:o}", "layers", (json_int_t)stage->first,
                             (json_int_t)stage->last, "ops", plan_ops_name(stage->ops), "home",
                             plan_home_name(stage->home), "bytes", plan_bytes_to_json(stage->bytes));
    if (stage->token_bytes) json_object_set_new(json, "token_bytes", plan_bytes_to_json(stage->token_bytes));
    plan_format_to_json(json, "format", stage->format);
    return json;
}

json_t *plan_lists_to_json(const struct plan *plan)
{
    json_t *lists = json_object();
    for (uint32_t p = 0; p < plan_phase_count(plan); p++) {
        json_t *list = json_array();
        struct plan_stage stage;
        for (uint32_t u = 0; u < unit_count(plan->layers);) {
            u = plan_stage_at(plan, p, u, &stage);
            json_array_append_new(list, plan_stage_to_json(&stage));
        }
        json_object_set_new(lists, plan_list_name(plan, p), list);
    }
    return lists;
}

/* ---- reading ---- */

int plan_format_from_json(const json_t *json, const char *key, enum tensor_format *format,
                          struct helm_err *err)
{
    const char *text = NULL;
    int rc = json_get_string(json, key, false, &text, err);
    *format = PLAN_AS_STORED;
    if (rc || !text) return rc;
    *format = tensor_format_named(text);
    if (*format < FORMAT_COUNT) return 0;
    return helm_fail(err, HELM_E_FORMAT, "%s '%.40s' is no format of weights", key, text);
}

static int parse_home(const json_t *json, enum plan_home *home, struct helm_err *err)
{
    const char *text = "";
    int rc = json_get_string(json, "home", true, &text, err);
    if (rc) return rc;
    *home = plan_home_named(text);
    if (*home < PLAN_HOMES) return 0;
    return helm_fail(err, HELM_E_FORMAT,
                     "home '%.40s' is none of gpu, cpu, stream, mixed, shared, disk, gpu1", text);
}

static int parse_ops(const json_t *json, enum plan_ops *ops, struct helm_err *err)
{
    const char *text = NULL;
    int rc = json_get_string(json, "ops", false, &text, err);
    *ops = PLAN_OPS_ALL;
    if (rc || !text) return rc;
    for (int i = 0; i < PLAN_OPS_COUNT; i++) {
        *ops = (enum plan_ops)i;
        if (strcmp(text, plan_ops_name(*ops)) == 0) return 0;
    }
    return helm_fail(err, HELM_E_FORMAT, "ops '%.40s' is none of all, attention, mlp", text);
}

/* Only the decode list may state in which format weights lie. */
static int parse_stage_format(const json_t *json, uint32_t phase, enum tensor_format *format,
                              struct helm_err *err)
{
    if (!phase) return plan_format_from_json(json, "format", format, err);
    *format = PLAN_AS_STORED;
    return json_object_get(json, "format")
               ? helm_fail(err, HELM_E_FORMAT, "weights have the \"format\" of the decode list")
               : 0;
}

/* One stage. take_next verifies that it begins where the one before ends. */
static int parse_stage(const json_t *json, const struct plan *plan, uint32_t phase, struct plan_stage *stage,
                       struct helm_err *err)
{
    if (!json_is_object(json)) return helm_fail(err, HELM_E_FORMAT, "not an object");
    const json_t *range = json_object_get(json, "layers");
    if (!json_is_array(range) || json_array_size(range) != 2 || !json_is_integer(json_array_get(range, 0)) ||
        !json_is_integer(json_array_get(range, 1)))
        return helm_fail(err, HELM_E_FORMAT, "'layers' is not [first, last]");
    json_int_t first = json_integer_value(json_array_get(range, 0));
    json_int_t last = json_integer_value(json_array_get(range, 1));
    if (first < 0 || last < first || last >= (json_int_t)plan->layers)
        return helm_fail(err, HELM_E_LIMIT, "layers [%lld, %lld] are no range inside 0 to %u",
                         (long long)first, (long long)last, plan->layers - 1);
    int rc = parse_ops(json, &stage->ops, err);
    if (rc) return rc;
    if (stage->ops != PLAN_OPS_ALL && first != last)
        return helm_fail(err, HELM_E_FORMAT, "ops '%s' of more than one layer", plan_ops_name(stage->ops));
    stage->first = (uint32_t)first;
    stage->last = (uint32_t)last;
    stage->token_bytes = 0;
    rc = parse_home(json, &stage->home, err);
    if (!rc) rc = json_get_u64(json, "bytes", true, 0, PLAN_BYTES_MAX, &stage->bytes, err);
    if (!rc) rc = json_get_u64(json, "token_bytes", false, 0, stage->bytes, &stage->token_bytes, err);
    return rc ? rc : parse_stage_format(json, phase, &stage->format, err);
}

/* Gives the stage's units what it says. */
static void take_stage(struct plan *plan, uint32_t phase, const struct plan_stage *stage)
{
    const uint32_t first = plan_stage_first_unit(stage);
    for (uint32_t u = first; u <= plan_stage_last_unit(stage); u++) {
        struct plan_unit *unit = &plan->unit[u];
        unit->home[phase] = stage->home;
        if (!phase) unit->format = stage->format;
        unit->bytes[phase] = u == first ? stage->bytes : 0;
        unit->token_bytes[phase] = u != first ? 0 : stage->token_bytes ? stage->token_bytes : stage->bytes;
    }
}

/* *next: the unit after those before it, then the unit after its own. */
static int take_next(const struct plan_stage *stage, uint32_t phase, struct plan *plan, uint32_t *next,
                     struct helm_err *err)
{
    const uint32_t first = plan_stage_first_unit(stage);
    if (first < *next)
        return helm_fail(err, HELM_E_FORMAT, "layer %u belongs to an earlier stage already", stage->first);
    if (first > *next)
        return helm_fail(err, HELM_E_FORMAT, "%s %u belongs to no stage (this one begins at %s%u)",
                         unit_part(*next) == UNIT_MLP ? "the MLP of layer" : "layer", unit_layer(*next),
                         unit_part(first) == UNIT_MLP ? "the MLP of " : "", stage->first);
    take_stage(plan, phase, stage);
    *next = plan_stage_last_unit(stage) + 1;
    return 0;
}

/* Each entry of a list is a stage. */
static int check_list(const json_t *array, const char *name, uint32_t phase, const struct plan *plan,
                      struct helm_err *err)
{
    struct plan_stage stage;
    if (!json_is_array(array))
        return helm_fail(err, HELM_E_FORMAT, "'%s' is missing or no array of stages", name);
    size_t count = json_array_size(array);
    if (count == 0 || count > PLAN_STAGES_MAX)
        return helm_fail(err, HELM_E_LIMIT, "'%s' has %zu entries, not between 1 and %d", name, count,
                         PLAN_STAGES_MAX);
    for (size_t i = 0; i < count; i++) {
        int rc = parse_stage(json_array_get(array, i), plan, phase, &stage, err);
        if (rc) return helm_err_prefix(err, "stage %zu", i), rc;
    }
    return 0;
}

/* Stages that cover all units in order, no gap, no overlap. */
static int take_list(const json_t *array, uint32_t phase, struct plan *plan, struct helm_err *err)
{
    uint32_t next = 0;
    for (size_t i = 0; i < json_array_size(array); i++) {
        struct plan_stage stage;
        int rc = parse_stage(json_array_get(array, i), plan, phase, &stage, err);
        if (!rc) rc = take_next(&stage, phase, plan, &next, err);
        if (rc) return helm_err_prefix(err, "stage %zu", i), rc;
    }
    if (next == unit_count(plan->layers)) return 0;
    return helm_fail(err, HELM_E_FORMAT, "layers %u to %u belong to no stage", unit_layer(next),
                     plan->layers - 1);
}

int plan_lists_from_json(const json_t *json, struct plan *plan, struct helm_err *err)
{
    const json_t *stages = json_object_get(json, "stages"), *list = stages;
    const bool lists = json_is_object(stages);
    if (lists) list = json_object_get(stages, "decode");
    int rc = plan_make_units(plan, PLAN_HOME_CPU, err);
    if (!rc) rc = check_list(list, lists ? "decode" : "stages", 0, plan, err);
    if (!rc) rc = take_list(list, 0, plan, err);
    for (uint32_t i = 1; i < PLAN_PHASES_MAX && !rc && lists; i++) {
        char key[40];
        uint64_t from = 0;
        snprintf(key, sizeof key, "%s_from_tokens", list_names[i]);
        rc = json_get_u64(json, key, false, 2, PLAN_TOKENS_MAX, &from, err);
        if (rc || !from) continue;
        list = json_object_get(stages, list_names[i]);
        plan->prefill_from[plan->prefill_count++] = (uint32_t)from;
        rc = check_list(list, list_names[i], plan->prefill_count, plan, err);
        if (rc) return helm_err_prefix(err, "%s", list_names[i]), rc;
        rc = take_list(list, plan->prefill_count, plan, err);
        if (rc) helm_err_prefix(err, "prefill list %u", plan->prefill_count);
    }
    return rc;
}
