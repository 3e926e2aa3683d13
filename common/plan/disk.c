/* Places of weights on disk. See disk.h. */
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
                     "%s: weights on disk are read as the file has them, not converted to %s (helm-quantize "
                     "writes such a file)",
                     t->name, mixture_name(to));
}

/* Whether each of the tensor's `matrices` is one run of a file's bytes. */
static int check_runs(const struct model *model, const struct model_tensor *t, uint32_t matrices,
                      struct helm_err *err)
{
    if (model->laid) return refuse_converted(t, model->laid, err);
    if (t->cut != CUT_NONE)
        return helm_fail(err, HELM_E_UNSUPPORTED, "%s: experts in parts cannot be read from disk", t->name);
    if (t->stored == STORED_ROWS && !t->turns && !tensor_format_of(t->format)->variable &&
        (!t->piece_count || (t->piece_count == matrices && matrices > 1)))
        return 0;
    return helm_fail(err, HELM_E_UNSUPPORTED,
                     "%s: weights that the file has otherwise than matrix by matrix cannot be read from disk "
                     "(helm-quantize writes a GGUF file whose can)",
                     t->name);
}

/* Whether the processor's kernels can read a matrix where it begins in its file. */
static int check_begin(const struct model_tensor *t, uint64_t offset, struct helm_err *err)
{
    const uint64_t step = tensor_format_is_plain(t->format) ? tensor_format_of(t->format)->block_bytes : 1;
    if (offset % step == 0) return 0;
    return helm_fail(err, HELM_E_UNSUPPORTED,
                     "%s: a matrix begins at byte %llu of its file, between two numbers of %llu bytes",
                     t->name, (unsigned long long)offset, (unsigned long long)step);
}

static int check_role(const struct model *model, const struct disk_role *role, uint32_t experts,
                      struct helm_err *err)
{
    int rc = check_runs(model, role->tensor, experts, err);
    for (uint32_t e = 0; e < experts && !rc; e++)
        rc = check_begin(role->tensor, disk_source_of(model, role, experts, e).offset, err);
    return rc;
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
    for (uint32_t u = unit_of(0, UNIT_MLP); u < unit_count(plan->layers) && room->slots; u += UNIT_PARTS) {
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

/* ---- whole units ---- */

struct disk_blocks disk_blocks_of(const struct model_tensor *t)
{
    const uint64_t inside = t->offset % DISK_ALIGN;
    return (struct disk_blocks){t->shard, t->offset - inside, round_up(inside + t->bytes, DISK_ALIGN),
                                inside};
}

int disk_ring_room(const struct model *model, uint32_t unit, uint64_t *room, struct helm_err *err)
{
    const struct model_unit *u = &model->unit[unit];
    int rc = 0;
    *room = 0;
    if (model_unit_math(model, unit)->experts)
        return helm_fail(err, HELM_E_MISMATCH, "layer %u has experts, which need slots on disk, not a ring",
                         unit_layer(unit));
    for (uint32_t i = 0; i < u->matrix_count && !rc; i++) {
        rc = check_runs(model, u->tensor[i], 1, err);
        if (!rc) rc = check_begin(u->tensor[i], u->tensor[i]->offset, err);
        *room += disk_blocks_of(u->tensor[i]).bytes;
    }
    return rc;
}

int disk_ring_place(const struct model *model, const struct plan *plan, struct disk_ring *ring,
                    struct helm_err *err)
{
    uint64_t at = 0;
    *ring = (struct disk_ring){.passing = ring->passing, .bytes = plan_disk_ring(plan)};
    for (uint32_t u = 0; u < unit_count(plan->layers) && ring->bytes; u++) {
        const struct model_unit *unit = &model->unit[u];
        struct disk_passing passing = {.unit = u};
        if (plan->unit[u].home[0] != PLAN_HOME_DISK) continue;
        int rc = disk_ring_room(model, u, &passing.room, err);
        if (rc) return rc;
        if (passing.room > ring->bytes)
            return helm_fail(err, HELM_E_CAPACITY,
                             "'disk_ring_bytes' is %llu: the %s of layer %u takes %llu in the ring",
                             (unsigned long long)ring->bytes, unit_part_name(unit_part(u)), unit_layer(u),
                             (unsigned long long)passing.room);
        for (uint32_t i = 0; i < unit->matrix_count; i++) {
            const struct model_tensor *t = unit->tensor[i];
            if (placement_format(model, plan->weights, t, PLAN_AS_STORED) != t->format)
                return refuse_converted(t, plan->weights, err);
            ring->file_bytes += t->bytes;
        }
        passing.at = at + passing.room > ring->bytes ? 0 : at;
        at = passing.at + passing.room;
        if (ring->passing) ring->passing[ring->units] = passing;
        ring->units++;
    }
    return 0;
}
