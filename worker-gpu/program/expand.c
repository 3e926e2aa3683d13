/* Tables and place of packed streamed weights. See expand.h. */
#include "worker-gpu/program/expand.h"

#include "common/base/round.h"
#include "common/formats/packed.h"
#include "common/program/slices.h"

static uint64_t table_bytes(const struct gpu_matrix *m)
{
    return round_up(packed_offsets_bytes(m->rows), VRAM_ALIGN);
}

/* Streamed ones of a variable format. */
static bool has_table(const struct gpu_matrix *m)
{
    return m->host && tensor_format_of(m->format)->variable;
}

static uint32_t cells_of(const struct gpu_weights *w)
{
    return (w->model->config.layers + 1) * TENSOR_ROLE_COUNT;
}

void gpu_expand_plan(const struct model *model, const struct plan *plan, enum plan_processor self,
                     struct gpu_expand *expand)
{
    const struct slices_room room = slices_of_plan(model, plan, self);
    *expand = (struct gpu_expand){.slice_bytes = room.slice, .bytes = slices_bytes(&room)};
}

int gpu_expand_take_tables(struct gpu_expand *expand, struct gpu_weights *w, struct device *d,
                           struct helm_err *err)
{
    uint64_t at = expand->slice_bytes;
    int rc = 0;
    if (!expand->bytes) return 0;
    for (uint32_t i = 0; i < cells_of(w) && !rc; i++) {
        struct gpu_matrix *m = &w->matrix[i];
        if (!has_table(m)) continue;
        rc = gpu_weights_check_offsets(m, err);
        if (!rc)
            rc = device_copy(d, DEVICE_COPY, DEVICE_TO_DEVICE, expand->memory + at, m->offset,
                             packed_offsets_bytes(m->rows), err);
        m->offset_device = (const uint32_t *)(expand->memory + at);
        at += table_bytes(m);
    }
    if (!rc) rc = device_await(d, DEVICE_COPY, err);
    w->offsets_known = !rc;
    return rc;
}

void gpu_expand_pretend(struct gpu_expand *expand, struct gpu_weights *w, char *memory)
{
    uint64_t at = expand->slice_bytes;
    expand->memory = memory;
    for (uint32_t i = 0; i < cells_of(w); i++) {
        if (!has_table(&w->matrix[i])) continue;
        w->matrix[i].offset_device = (const uint32_t *)(memory + at);
        at += table_bytes(&w->matrix[i]);
    }
}
