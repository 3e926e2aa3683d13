/* Places of slots of experts. See slots.h. */
#include "common/plan/slots.h"

#include "common/base/units.h"
#include "common/formats/packed.h"
#include "common/plan/placement.h"

#define SLOT_ALIGN 16 /* what kernels read an expert by */
/* Added to what a packed expert comes to by its shape, since experts differ; one that is larger has no
 * slot. */
#define SLOT_PACKED_SLACK 25 /* a part of so many */

enum tensor_role slot_tensor(enum slot_role role)
{
    static const enum tensor_role of[SLOT_ROLES] = {TENSOR_GATE_EXPERTS, TENSOR_UP_EXPERTS,
                                                    TENSOR_DOWN_EXPERTS};
    return of[role];
}

/* The memory that has the slots. */
static enum plan_memory slots_memory(void)
{
    return plan_processor_memory(plan_home_processor(PLAN_HOME_MIXED));
}

uint64_t slot_stride(const struct model_tensor *t, uint32_t experts, enum tensor_format format,
                     uint64_t *before)
{
    struct model_tensor one = *t;
    *before = 0;
    one.rows /= experts;
    if (!tensor_format_of(format)->variable) return tensor_format_bytes(format, one.rows, one.cols);
    *before = packed_groups_at((uint32_t)t->rows);
    const uint64_t room = placement_room(&one, format, slots_memory(), NULL),
                   most = packed_matrix_bytes_max((uint32_t)one.rows, (uint32_t)one.cols),
                   slot = round_up(room + room / SLOT_PACKED_SLACK, PACKED_ALIGN);
    return slot < most ? slot : most;
}

/* host: placements from this unit's on, of which those before the role's are taken off. */
static int place_role(const struct model *model, const struct plan *plan, struct placements *host,
                      struct slot_unit *unit, enum slot_role role, uint64_t *end, struct helm_err *err)
{
    const int32_t layer = (int32_t)unit_layer(unit->unit);
    const struct model_tensor *t = model_find(model, slot_tensor(role), layer);
    const struct placement *p = placement_find(host, slot_tensor(role), layer);
    const uint32_t experts = model->config.router.experts;
    if (!t)
        return helm_fail(err, HELM_E_MISMATCH, "layer %d has 'mixed' as home of its MLP, but no experts",
                         layer);
    if (plan_experts(plan)->slots > experts)
        return helm_fail(err, HELM_E_MISMATCH, "%u slots for the %u experts of layer %d",
                         plan_experts(plan)->slots, experts, layer);
    const enum tensor_format planned = plan_unit_format(plan, unit->unit),
                             format = p                             ? p->format
                                      : plan_format_varies(planned) ? planned
                                                                    : t->format;
    if (p) {
        host->count -= (uint32_t)(p - host->place);
        host->place = p;
    }
    uint64_t before;
    const uint64_t stride = slot_stride(t, experts, format, &before);
    if (!placement_takes(model, t, format) || stride % SLOT_ALIGN)
        return helm_fail(err, HELM_E_UNSUPPORTED,
                         "layer %d: experts of %s, of %llu bytes each, cannot lie in slots", layer,
                         tensor_format_name(format), (unsigned long long)stride);
    unit->role[role] = (struct slot_place){.at = *end + before, .stride = stride};
    *end += placement_rounded(slots_memory(), before + plan_experts(plan)->slots * stride);
    return 0;
}

int slots_place(const struct model *model, const struct plan *plan, struct slots_place *place,
                struct helm_err *err)
{
    struct slot_unit *const out = place->unit;
    struct placements host = placements_in(plan, PLAN_HOST);
    uint64_t end = 0;
    int rc = 0;
    *place = (struct slots_place){.unit = out};
    for (uint32_t u = unit_of(0, UNIT_MLP); u < unit_count(plan->layers) && !rc; u += UNIT_PARTS) {
        struct slot_unit unit = {.unit = u};
        if (plan->unit[u].home[0] != PLAN_HOME_MIXED) continue;
        for (int r = 0; r < SLOT_ROLES && !rc; r++)
            rc = place_role(model, plan, &host, &unit, (enum slot_role)r, &end, err);
        if (out) out[place->units] = unit;
        place->units++;
    }
    place->tables = end;
    const uint64_t words = ((uint64_t)place->units + 1) * model->config.router.experts + 1;
    place->bytes = place->units ? end + placement_rounded(slots_memory(), words * sizeof(uint32_t)) : 0;
    return rc;
}
