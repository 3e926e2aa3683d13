/* Places of experts on disk. See disk.h. */
#include "common/plan/disk.h"

#include "common/base/units.h"
#include "common/plan/placement.h"

struct disk_source disk_source_of(const struct model *model, const struct disk_role *role, uint32_t experts,
                                  uint32_t expert)
{
    const struct model_tensor *t = role->tensor;
    if (t->piece_count == experts) {
        const struct model_piece *piece = &model->pieces[t->piece + expert];
        return (struct disk_source){piece->shard, piece->offset};
    }
    return (struct disk_source){t->shard, t->offset + expert * role->bytes};
}

static int refuse_converted(const struct model_tensor *t, const struct mixture *to, struct helm_err *err)
{
    return helm_fail(err, HELM_E_UNSUPPORTED,
                     "%s: experts on disk are read as the file has them, not converted to %s (helm-quantize "
                     "writes such a file)",
                     t->name, mixture_name(to));
}

/* Whether an expert is one run of a file's bytes, and the processor's kernels can read it where such a run
 * begins. */
static int check_role(const struct model *model, const struct disk_role *role, uint32_t experts,
                      struct helm_err *err)
{
    const struct model_tensor *t = role->tensor;
    const struct tensor_format_traits *traits = tensor_format_of(t->format);
    const uint64_t step = tensor_format_is_plain(t->format) ? traits->block_bytes : 1;
    if (model->laid) return refuse_converted(t, model->laid, err);
    if (t->cut != CUT_NONE)
        return helm_fail(err, HELM_E_UNSUPPORTED, "%s: experts in parts cannot be read from disk", t->name);
    if (t->stored != STORED_ROWS || t->turns || traits->variable ||
        (t->piece_count && t->piece_count != experts))
        return helm_fail(
            err, HELM_E_UNSUPPORTED,
            "%s: experts that the file has otherwise than matrix by matrix cannot be read from disk "
            "(helm-quantize writes a GGUF file whose can)",
            t->name);
    for (uint32_t e = 0; e < experts; e++)
        if (disk_source_of(model, role, experts, e).offset % step)
            return helm_fail(
                err, HELM_E_UNSUPPORTED,
                "%s: expert %u begins at byte %llu of its file, between two numbers of %llu bytes", t->name,
                e, (unsigned long long)disk_source_of(model, role, experts, e).offset,
                (unsigned long long)step);
    return 0;
}

int disk_place_unit(const struct model *model, uint32_t unit, struct disk_unit *place, struct helm_err *err)
{
    const uint32_t experts = model->config.router.experts, layer = unit_layer(unit);
    int rc = 0;
    *place = (struct disk_unit){.unit = unit};
    for (int r = 0; r < SLOT_ROLES && !rc; r++) {
        struct disk_role *role = &place->role[r];
        role->tensor = model_find(model, slot_tensor((enum slot_role)r), (int32_t)layer);
        if (!role->tensor)
            return helm_fail(err, HELM_E_MISMATCH, "layer %u has 'disk' as home of its MLP, but no experts",
                             layer);
        role->bytes = role->tensor->bytes / experts;
        role->at = place->slot_bytes;
        role->room = round_up(role->bytes, DISK_ALIGN) + DISK_ALIGN;
        place->slot_bytes += role->room;
        rc = check_role(model, role, experts, err);
    }
    return rc;
}

int disk_place(const struct model *model, const struct plan *plan, struct disk_room *room,
               struct helm_err *err)
{
    struct disk_unit *const out = room->unit;
    *room = (struct disk_room){.unit = out,
                               .slots = plan_device_of(plan, PLAN_HOME_DISK)->experts.slots,
                               .cells = disk_cells(&model->config)};
    for (uint32_t u = unit_of(0, UNIT_MLP); u < unit_count(plan->layers); u += UNIT_PARTS) {
        struct disk_unit unit;
        if (plan->unit[u].home[0] != PLAN_HOME_DISK) continue;
        int rc = disk_place_unit(model, u, &unit, err);
        if (rc) return rc;
        if (room->slots > model->config.router.experts)
            return helm_fail(err, HELM_E_MISMATCH, "%u slots for the %u experts of layer %u", room->slots,
                             model->config.router.experts, unit_layer(u));
        for (int r = 0; r < SLOT_ROLES; r++) {
            const struct model_tensor *t = unit.role[r].tensor;
            if (placement_format(model, plan->weights, t, PLAN_AS_STORED) != t->format)
                return refuse_converted(t, plan->weights, err);
            room->experts_bytes += t->bytes;
        }
        room->slots_bytes += room->slots * unit.slot_bytes;
        if (unit.slot_bytes > room->cell_bytes) room->cell_bytes = unit.slot_bytes;
        if (out) out[room->units] = unit;
        room->units++;
    }
    room->bytes = room->units ? room->slots_bytes + room->cells * room->cell_bytes : 0;
    return 0;
}
