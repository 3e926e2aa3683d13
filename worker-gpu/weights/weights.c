/* What of the weights lies in VRAM where. See weights.h; weights/load.c fills it. */
#include "worker-gpu/weights/weights.h"

#include <stdlib.h>
#include <string.h>

#include "common/plan/engine_limits.h"
#include "common/plan/host_weights.h"
#include "common/model/arch.h"
#include "common/base/units.h"

static uint64_t aligned(uint64_t bytes)
{
    return (bytes + VRAM_ALIGN - 1) / VRAM_ALIGN * VRAM_ALIGN;
}

/* Their groups are placed as they come out; here only their table is. */
static void place_packed(struct gpu_weights *w, const struct model_tensor *tensor)
{
    w->place[w->place_count++] =
        (struct gpu_weights_place){.tensor = tensor, .packed = true, .table = w->packed_table_bytes};
    w->packed_table_bytes += aligned(packed_offsets_bytes((uint32_t)tensor->rows));
    w->matrix_bytes += tensor->bytes;
}

static int place(struct gpu_weights *w, enum tensor_role role, int32_t layer, bool packed,
                 struct helm_err *err)
{
    const struct model_tensor *tensor = model_find(w->model, role, layer);
    if (!tensor) return 0; /* an optional one: the checkpoint reader saw to the others */
    if (packed && !arch_role_is_vector(role)) {
        place_packed(w, tensor);
        return 0;
    }
    uint64_t bytes = !arch_role_is_vector(role) ? tensor->bytes : tensor->rows * tensor->cols * sizeof(float);
    uint64_t at = aligned(w->bytes);
    if (units_add(at, bytes, &w->bytes))
        return helm_fail(err, HELM_E_LIMIT, "weights: sizes overflow at %s", tensor->name);
    w->place[w->place_count++] = (struct gpu_weights_place){.tensor = tensor, .offset = at};
    if (arch_role_is_vector(role)) return 0;
    w->matrix_bytes += tensor->bytes;
    if (role != TENSOR_EMBED) w->step_bytes += tensor->bytes;
    return 0;
}

static const enum tensor_role of_layer[] = {TENSOR_Q,         TENSOR_K,         TENSOR_V,
                                            TENSOR_O,         TENSOR_GATE,      TENSOR_UP,
                                            TENSOR_DOWN,      TENSOR_ATTN_NORM, TENSOR_Q_BIAS,
                                            TENSOR_K_BIAS,    TENSOR_V_BIAS,    TENSOR_O_BIAS,
                                            TENSOR_Q_NORM,    TENSOR_K_NORM,    TENSOR_MLP_NORM,
                                            TENSOR_GATE_BIAS, TENSOR_UP_BIAS,   TENSOR_DOWN_BIAS};
#define OF_LAYER_COUNT (sizeof of_layer / sizeof *of_layer)

/* What the GPU does with a unit: weights at home in VRAM, or streamed in some phase. */
enum unit_use { UNIT_NONE, UNIT_STREAMED, UNIT_RESIDENT };

static int read_uses(const struct plan *plan, enum unit_use **uses, struct helm_err *err)
{
    size_t units = (size_t)unit_count(plan->layers);
    enum plan_home *home = calloc(units + 1, sizeof *home);
    enum unit_use *use = calloc(units + 1, sizeof *use);
    *uses = use;
    if (!home || !use) {
        free(home);
        return helm_fail(err, HELM_E_NOMEM, "no memory for the homes of %zu units", units);
    }
    for (uint32_t p = 0; p < plan_phase_count(plan); p++) {
        plan_unit_homes(plan, p, home);
        for (size_t u = 0; u < units; u++) {
            if (home[u] == PLAN_HOME_GPU) use[u] = UNIT_RESIDENT;
            if (home[u] == PLAN_HOME_STREAM) use[u] = UNIT_STREAMED;
        }
    }
    free(home);
    return 0;
}

/* Refuses a plan that wants more packed than can be. */
static int check_formats(const struct gpu_weights *w, const struct plan *plan, struct helm_err *err)
{
    for (uint32_t i = 0; i < w->model->tensor_count; i++) {
        const struct model_tensor *t = &w->model->tensors[i];
        if (t->layer < 0 || arch_role_is_vector(t->role)) continue;
        if (plan_unit_format(plan, model_tensor_unit(t)) == FORMAT_BF16_PACKED && !host_weights_can_pack(t))
            return helm_fail(err, HELM_E_UNSUPPORTED, "the plan has %s packed, which cannot be", t->name);
    }
    const struct model_tensor *head = model_find(w->model, TENSOR_HEAD, -1);
    if (plan_head_format(plan) != FORMAT_BF16_PACKED) return 0;
    if (!(head && host_weights_can_pack(head)))
        return helm_fail(err, HELM_E_UNSUPPORTED,
                         "the plan has the head packed, but it is not of bf16 in a multiple of %d rows",
                         PACKED_ROWS);
    if (w->model->config.tied_head && plan->embed == PLAN_GPU0)
        return helm_fail(err, HELM_E_UNSUPPORTED,
                         "the plan has the head packed, but it is also the embedding on the GPU");
    return 0;
}

/* Matrices at home in VRAM, or the vectors of everything the GPU computes. */
static int place_all(struct gpu_weights *w, const struct plan *plan, const enum unit_use *use, bool matrices,
                     struct helm_err *err)
{
    bool embed = plan->embed == PLAN_GPU0, head = plan->head == PLAN_GPU0;
    bool tied = w->model->config.tied_head;
    int rc = 0;
    if (matrices && embed && !(tied && head)) rc = place(w, TENSOR_EMBED, -1, false, err);
    for (uint32_t u = 0; u < unit_count(plan->layers); u++) {
        if (use[u] == UNIT_NONE || (matrices && use[u] == UNIT_STREAMED)) continue;
        for (size_t i = 0; i < OF_LAYER_COUNT && !rc; i++)
            if (arch_role_is_vector(of_layer[i]) != matrices &&
                (unit_part_of_role(of_layer[i]) == UNIT_MLP) == (unit_part(u) == UNIT_MLP))
                rc = place(w, of_layer[i], (int32_t)unit_layer(u),
                           plan_unit_format(plan, u) == FORMAT_BF16_PACKED, err);
    }
    if (!rc && head)
        rc = place(w, matrices ? TENSOR_HEAD : TENSOR_FINAL_NORM, -1,
                   plan_head_format(plan) == FORMAT_BF16_PACKED, err);
    return rc;
}

static uint32_t cell_of(const struct model_tensor *t)
{
    return (uint32_t)(t->layer + 1) * TENSOR_ROLE_COUNT + t->role;
}

/* A packed one that is an embedding in the files is the head here. */
static struct gpu_matrix *matrix_of_place(struct gpu_weights *w, const struct gpu_weights_place *place)
{
    bool head = place->packed && place->tensor->role == TENSOR_EMBED;
    return &w->matrix[head ? (uint32_t)TENSOR_HEAD : cell_of(place->tensor)];
}

static struct gpu_matrix packed_matrix(const struct gpu_weights_place *place)
{
    const struct model_tensor *t = place->tensor;
    return (struct gpu_matrix){.packed = true,
                               .dtype = tensor_format_value(t->format),
                               .rows = (uint32_t)t->rows,
                               .cols = (uint32_t)t->cols};
}

/* Where the matrices of streamed units are in the arena. */
static int place_streamed(struct gpu_weights *w, const struct plan *plan, const enum unit_use *use,
                          const void *region, uint64_t region_bytes, struct helm_err *err)
{
    struct host_weights host;
    int rc = host_weights_plan(w->model, plan, &host, err);
    if (rc) return rc;
    for (uint32_t i = 0; i < host.count; i++) {
        const struct host_weights_place *p = &host.place[i];
        const struct model_tensor *t = p->tensor;
        if (t->layer < 0 || use[model_tensor_unit(t)] != UNIT_STREAMED) continue;
        const char *at = (const char *)region + p->offset;
        w->matrix[cell_of(t)] =
            (struct gpu_matrix){.host = p->packed ? at + packed_groups_at((uint32_t)t->rows) : at,
                                .packed = p->packed,
                                .offset = p->packed ? (const uint32_t *)at : NULL,
                                .dtype = tensor_format_value(t->format),
                                .rows = (uint32_t)t->rows,
                                .cols = (uint32_t)t->cols};
        if (w->host_end == 0) w->host_first = p->offset;
        w->host_end = p->offset + host_weights_room(t, p->packed);
    }
    if (w->host_end > region_bytes)
        rc = helm_fail(err, HELM_E_MISMATCH, "the arena's weights region has %llu bytes, the plan needs %llu",
                       (unsigned long long)region_bytes, (unsigned long long)host.region_bytes);
    host_weights_free(&host);
    return rc;
}

/* The room behind the rest. Until they are loaded tables of matrices say only that these are packed. */
static int reserve_packed(struct gpu_weights *w, const struct plan *plan, struct helm_err *err)
{
    if (w->bytes >= w->vector_at) w->vector_bytes = w->bytes - w->vector_at;
    if (!w->packed_table_bytes) return 0;
    w->packed_at = aligned(w->bytes);
    w->packed_room = plan->pack_gpu_bytes;
    if (units_add(w->packed_at, w->packed_room, &w->bytes))
        return helm_fail(err, HELM_E_LIMIT, "weights: sizes overflow at those that are packed");
    if (w->packed_table_bytes > w->packed_room)
        return helm_fail(
            err, HELM_E_CAPACITY,
            "tables of packed weights take %llu bytes of VRAM, the plan's 'pack_gpu_bytes' is %llu",
            (unsigned long long)w->packed_table_bytes, (unsigned long long)w->packed_room);
    for (uint32_t i = 0; i < w->place_count; i++)
        if (w->place[i].packed) *matrix_of_place(w, &w->place[i]) = packed_matrix(&w->place[i]);
    return 0;
}

int gpu_weights_plan(const struct model *model, const struct plan *plan, const void *region,
                     uint64_t region_bytes, struct gpu_weights *w, struct helm_err *err)
{
    enum unit_use *use = NULL;
    memset(w, 0, sizeof *w);
    w->model = model;
    size_t cells = ((size_t)model->config.layers + 1) * TENSOR_ROLE_COUNT;
    w->matrix = calloc(cells, sizeof *w->matrix);
    w->vector = calloc(cells, sizeof *w->vector);
    w->place = calloc((size_t)model->tensor_count + 2, sizeof *w->place);
    int rc = w->matrix && w->vector && w->place
                 ? 0
                 : helm_fail(err, HELM_E_NOMEM, "no memory for the table of weights");
    if (!rc) rc = read_uses(plan, &use, err);
    if (!rc) rc = check_formats(w, plan, err);
    if (!rc) rc = place_all(w, plan, use, true, err);
    if (!rc) w->vector_at = aligned(w->bytes);
    if (!rc) rc = place_all(w, plan, use, false, err);
    if (!rc && w->bytes < w->vector_at) w->bytes = w->vector_at;
    if (!rc) rc = reserve_packed(w, plan, err);
    if (!rc) rc = place_streamed(w, plan, use, region, region_bytes, err);
    free(use);
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
        struct gpu_matrix matrix = packed_matrix(p);
        matrix.packed = p->packed;
        matrix.data = base + p->offset + (p->packed ? gpu_weights_groups_at(w) : 0);
        if (p->packed && w->packed_table) matrix.offset = w->packed_table + p->table / sizeof(uint32_t);
        if (p->packed)
            matrix.offset_device = (const uint32_t *)(const void *)(base + w->packed_at + p->table);
        *matrix_of_place(w, p) = matrix;
        if (!p->packed && t->role == TENSOR_EMBED && w->model->config.tied_head)
            w->matrix[TENSOR_HEAD] = matrix;
    }
}

void gpu_weights_pretend(struct gpu_weights *w, const void *base)
{
    gpu_weights_fill_tables(w, base);
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
