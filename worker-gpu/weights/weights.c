/* Places of the weights in VRAM, by the plan's placements. See weights.h; weights/load.c fills it. */
#include "worker-gpu/weights/weights.h"

#include <stdlib.h>
#include <string.h>

#include "common/formats/packed.h"
#include "common/model/arch.h"

static uint32_t cell_of(const struct model_tensor *t)
{
    return (uint32_t)(t->layer + 1) * TENSOR_ROLE_COUNT + t->role;
}

/* A packed one that is an embedding in the files is the head here. */
static struct gpu_matrix *matrix_of_place(struct gpu_weights *w, const struct gpu_weights_place *place)
{
    bool head = place->format == FORMAT_BF16_PACKED && place->tensor->role == TENSOR_EMBED;
    return &w->matrix[head ? (uint32_t)TENSOR_HEAD : cell_of(place->tensor)];
}

static struct gpu_matrix matrix_in(const struct model_tensor *t, enum tensor_format format)
{
    return (struct gpu_matrix){.format = format, .rows = (uint32_t)t->rows, .cols = (uint32_t)t->cols};
}

/* Matrices, then vectors. Until they are loaded the table says only what they are. */
static int take_vram(struct gpu_weights *w, const struct plan *plan, struct helm_err *err)
{
    const struct placements vram = placements_in(plan, plan_processor_memory(w->self));
    struct placement *vector = calloc((size_t)w->model->tensor_count + 1, sizeof *vector);
    w->place = calloc((size_t)w->model->tensor_count + vram.count + 1, sizeof *w->place);
    if (!vector || !w->place) {
        free(vector);
        return helm_fail(err, HELM_E_NOMEM, "no memory for the table of weights");
    }
    for (; w->place_count < vram.count; w->place_count++) {
        const struct placement *p = &vram.place[w->place_count];
        const struct model_tensor *t = placement_tensor(w->model, p);
        struct gpu_weights_place *place = &w->place[w->place_count];
        *place = (struct gpu_weights_place){.tensor = t, .format = p->format, .offset = p->offset};
        w->matrix_bytes += t->bytes;
        *matrix_of_place(w, place) = matrix_in(t, p->format);
        if (p->format == FORMAT_BF16_PACKED) {
            if (!w->packed_table_bytes) w->packed_at = p->offset;
            place->table = w->packed_table_bytes;
            w->packed_table_bytes +=
                placement_rounded(plan_processor_memory(w->self), packed_offsets_bytes((uint32_t)t->rows));
        } else if (t->role != TENSOR_EMBED || (w->model->config.tied_head && plan->head == w->self)) {
            const struct model_router *router = &w->model->config.router;
            w->step_bytes +=
                arch_role_of_experts(t->role) ? p->bytes / router->experts * router->chosen : p->bytes;
        }
    }
    uint32_t vectors;
    w->vector_at = vram.region_bytes;
    w->vector_bytes = placement_vectors(w->model, plan, w->self, vector, &vectors);
    w->bytes = w->vector_at + w->vector_bytes;
    w->packed_room = vram.varying;
    for (uint32_t i = 0; i < vectors; i++)
        w->place[w->place_count++] =
            (struct gpu_weights_place){.tensor = placement_tensor(w->model, &vector[i]),
                                       .format = vector[i].format,
                                       .offset = w->vector_at + vector[i].offset};
    free(vector);
    if (w->packed_table_bytes <= w->packed_room) return 0;
    return helm_fail(
        err, HELM_E_CAPACITY,
        "tables of packed weights take %llu bytes of VRAM, the plan's placements have %llu for them",
        (unsigned long long)w->packed_table_bytes, (unsigned long long)w->packed_room);
}

/* A table in the arena that kernels read a row a token of: the embedding where there is none in VRAM, and
 * that of per-layer ones. */
static bool reads_rows(const struct gpu_weights *w, const struct plan *plan, const struct model_tensor *t)
{
    const bool drafts = plan->draft_layers && plan->head == w->self && !w->model->config.tied_head;
    if (!placement_inputs(w->model, plan, w->self) && !drafts) return false;
    return t->role == TENSOR_PER_LAYER_EMBED ||
           (t->role == TENSOR_EMBED && plan_processor_memory(plan->embed) != plan_processor_memory(w->self));
}

/* Where the matrices of units that are computed here but lie in the arena are. */
static int take_streamed(struct gpu_weights *w, const struct plan *plan, const void *region,
                         uint64_t region_bytes, struct helm_err *err)
{
    const struct placements host = placements_in(plan, PLAN_HOST);
    for (uint32_t i = 0; i < host.count; i++) {
        const struct placement *p = &host.place[i];
        const struct model_tensor *t = placement_tensor(w->model, p);
        const uint32_t unit = model_tensor_unit(t);
        if (t->layer < 0 && !reads_rows(w, plan, t)) continue;
        if (t->layer >= 0 && !plan_computes(plan, w->self, unit)) continue;
        if (t->layer >= 0 &&
            placement_lies(plan->unit[unit].home[0], t->role, plan_processor_memory(w->self)))
            continue;
        const char *at = (const char *)region + p->offset;
        struct gpu_matrix *m = &w->matrix[cell_of(t)];
        *m = matrix_in(t, p->format);
        const bool packed = p->format == FORMAT_BF16_PACKED;
        if (t->layer < 0) m->data = at;
        if (t->layer >= 0) m->host = packed ? at + packed_groups_at(m->rows) : at;
        if (packed) m->offset = (const uint32_t *)(const void *)at;
        if (w->host_end == 0) w->host_first = p->offset;
        w->host_end = p->offset + p->bytes;
    }
    if (w->host_end <= region_bytes) return 0;
    return helm_fail(err, HELM_E_MISMATCH, "the arena's weights region has %llu bytes, the plan needs %llu",
                     (unsigned long long)region_bytes, (unsigned long long)host.region_bytes);
}

int gpu_weights_plan(const struct model *model, const struct plan *plan, enum plan_processor self,
                     const void *region, uint64_t region_bytes, struct gpu_weights *w, struct helm_err *err)
{
    *w = (struct gpu_weights){.model = model, .self = self};
    size_t cells = ((size_t)model->config.layers + 1) * TENSOR_ROLE_COUNT;
    w->matrix = calloc(cells, sizeof *w->matrix);
    w->vector = calloc(cells, sizeof *w->vector);
    int rc = w->matrix && w->vector ? placement_check(model, plan, err)
                                    : helm_fail(err, HELM_E_NOMEM, "no memory for the table of weights");
    if (!rc) rc = take_vram(w, plan, err);
    if (!rc) rc = take_streamed(w, plan, region, region_bytes, err);
    if (rc) gpu_weights_free(w);
    return rc;
}

void gpu_weights_fill_tables(struct gpu_weights *w, const char *base)
{
    for (uint32_t i = 0; i < w->place_count; i++) {
        const struct gpu_weights_place *p = &w->place[i];
        const struct model_tensor *t = p->tensor;
        if (arch_role_is_vector(t->role)) {
            w->vector[cell_of(t)] = (const float *)(const void *)(base + p->offset);
            continue;
        }
        struct gpu_matrix matrix = matrix_in(t, p->format);
        matrix.data = base + p->offset;
        const bool packed = p->format == FORMAT_BF16_PACKED;
        if (packed) {
            matrix.data = base + gpu_weights_groups_at(w) + p->offset;
            if (w->packed_table) matrix.offset = w->packed_table + p->table / sizeof(uint32_t);
            matrix.offset_device = (const uint32_t *)(const void *)(base + w->packed_at + p->table);
        }
        *matrix_of_place(w, p) = matrix;
        if (!packed && t->role == TENSOR_EMBED && w->model->config.tied_head) w->matrix[TENSOR_HEAD] = matrix;
    }
}

int gpu_weights_check_offsets(const struct gpu_matrix *m, struct helm_err *err)
{
    uint32_t groups = packed_groups(m->rows);
    for (uint32_t g = 0; g < groups; g++) {
        uint64_t most = packed_group_bytes_max(packed_group_values(m->rows, m->cols, g));
        if (m->offset[g + 1] <= m->offset[g] ||
            (uint64_t)(m->offset[g + 1] - m->offset[g]) * PACKED_ALIGN > most)
            return helm_fail(err, HELM_E_FORMAT,
                             "a packed matrix of %u x %u: group %u lies from %llu to %llu", m->rows, m->cols,
                             g, (unsigned long long)packed_at(m->offset, g),
                             (unsigned long long)packed_at(m->offset, g + 1));
    }
    if (m->offset[0] == 0) return 0;
    return helm_fail(err, HELM_E_FORMAT, "a packed matrix of %u x %u begins at %llu", m->rows, m->cols,
                     (unsigned long long)packed_at(m->offset, 0));
}

void gpu_weights_free(struct gpu_weights *w)
{
    if (w->memory) device_free(w->device, DEVICE_WEIGHTS, w->bytes, w->memory);
    if (w->packed_table) w->device->ops->host_free(w->device, w->packed_table);
    free(w->matrix);
    free(w->vector);
    free(w->place);
    memset(w, 0, sizeof *w);
}
