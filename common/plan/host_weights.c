/* Places of the matrices in the arena's weights region. See host_weights.h. Called by both workers and by the
 * planner's ledger; reads no file and no arena. */
#include "common/plan/host_weights.h"

#include <stdlib.h>
#include <string.h>

#include "common/model/arch.h"
#include "common/base/units.h"

static const enum tensor_role attention_roles[] = {TENSOR_Q, TENSOR_K, TENSOR_V, TENSOR_O},
                              mlp_roles[] = {TENSOR_GATE, TENSOR_UP, TENSOR_DOWN};

/* The matrices of a unit, in order of use. */
static const enum tensor_role *roles_of(uint32_t unit, size_t *count)
{
    *count = unit_part(unit) == UNIT_MLP ? sizeof mlp_roles / sizeof *mlp_roles
                                         : sizeof attention_roles / sizeof *attention_roles;
    return unit_part(unit) == UNIT_MLP ? mlp_roles : attention_roles;
}

/* Slices of a stacked operation (q k v) begin at multiples of PACKED_ROWS of its rows, and so must each of
 * its matrices: a slice is whole groups. */
bool host_weights_can_pack(const struct model_tensor *t)
{
    return t->format == FORMAT_BF16 && tensor_format_takes(FORMAT_BF16_PACKED, t->rows, t->cols);
}

void host_weights_packing(const struct model *model, bool *link, bool *cpu)
{
    const uint32_t units = unit_count(model->config.layers);
    for (uint32_t u = 0; u < units; u++) link[u] = cpu[u] = true;
    for (uint32_t i = 0; i < model->tensor_count; i++) {
        const struct model_tensor *t = &model->tensors[i];
        uint32_t u = model_tensor_unit(t);
        if (t->layer < 0 || u >= units || arch_role_is_vector(t->role)) continue;
        link[u] &= host_weights_can_pack(t);
        cpu[u] &= host_weights_can_pack(t) && t->cols % PACKED_CPU_COLS == 0;
    }
}

uint64_t host_weights_room(const struct model_tensor *t, bool packed)
{
    if (!packed) return t->bytes;
    return packed_groups_at((uint32_t)t->rows) +
           packed_matrix_bytes_max((uint32_t)t->rows, (uint32_t)t->cols);
}

static int add_place(const struct model *model, struct host_weights *w, enum tensor_role role, int32_t layer,
                     bool packed, struct helm_err *err)
{
    const struct model_tensor *tensor = model_find(model, role, layer);
    uint64_t at;
    if (!tensor) return 0; /* the checkpoint reader made sure that none is missing that is needed */
    if (units_add(w->region_bytes, HOST_WEIGHTS_ALIGN - 1, &at)) at = UINT64_MAX;
    at -= at % HOST_WEIGHTS_ALIGN;
    if (units_add(at, host_weights_room(tensor, packed), &w->region_bytes))
        return helm_fail(err, HELM_E_LIMIT, "weights: sizes overflow at %s", tensor->name);
    w->place[w->count] = (struct host_weights_place){.tensor = tensor, .offset = at, .packed = packed};
    w->cell[(uint32_t)(tensor->layer + 1) * TENSOR_ROLE_COUNT + tensor->role] = ++w->count;
    w->matrix_bytes += tensor->bytes;
    return 0;
}

int host_weights_plan(const struct model *model, const struct plan *plan, struct host_weights *w,
                      struct helm_err *err)
{
    const struct model_config *c = &model->config;
    bool embed = plan->embed == PLAN_CPU0, head = plan->head == PLAN_CPU0;
    enum plan_home *home = NULL;
    int rc = 0;
    memset(w, 0, sizeof *w);
    if (plan->layers != c->layers)
        return helm_fail(err, HELM_E_MISMATCH, "the plan has %u layers, the model %u", plan->layers,
                         c->layers);
    w->layers = c->layers;
    w->place = calloc((size_t)model->tensor_count + 1, sizeof *w->place);
    w->cell = calloc(((size_t)c->layers + 1) * TENSOR_ROLE_COUNT, sizeof *w->cell);
    home = calloc((size_t)unit_count(c->layers) + 1, sizeof *home);
    if (!w->place || !w->cell || !home) {
        rc = helm_fail(err, HELM_E_NOMEM, "no memory for the table of %u weights", model->tensor_count);
        goto out;
    }
    plan_unit_homes(plan, 0, home);
    if (embed && !(head && c->tied_head)) rc = add_place(model, w, TENSOR_EMBED, -1, false, err);
    for (uint32_t u = 0; u < unit_count(c->layers) && !rc; u++) {
        size_t roles;
        const enum tensor_role *role = roles_of(u, &roles);
        if (plan_home_memory(home[u]) != PLAN_HOST) continue;
        for (size_t i = 0; i < roles && !rc; i++)
            rc = add_place(model, w, role[i], (int32_t)unit_layer(u),
                           plan_unit_format(plan, u) == FORMAT_BF16_PACKED, err);
    }
    if (!rc && head) rc = add_place(model, w, TENSOR_HEAD, -1, false, err);
    if (c->tied_head) w->cell[TENSOR_HEAD] = w->cell[TENSOR_EMBED]; /* one matrix, two uses */
out:
    free(home);
    if (rc) host_weights_free(w);
    return rc;
}

const struct host_weights_place *host_weights_find(const struct host_weights *w, enum tensor_role role,
                                                   int32_t layer)
{
    if (layer < -1 || layer >= (int32_t)w->layers || (unsigned)role >= TENSOR_ROLE_COUNT || !w->cell)
        return NULL;
    uint32_t found = w->cell[(uint32_t)(layer + 1) * TENSOR_ROLE_COUNT + role];
    return found ? &w->place[found - 1] : NULL;
}

void host_weights_free(struct host_weights *w)
{
    free(w->place);
    free(w->cell);
    memset(w, 0, sizeof *w);
}
