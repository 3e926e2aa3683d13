/* Pooling what lies on the device. See pool_rows.h. */
#include "worker-gpu/pool_rows.h"

#include "common/base/units.h"
#include "common/worker/pooled.h"
#include "worker-gpu/engine.h"

#define ROWS_BYTES MIB /* copied at once at most: few waits, and what was copied is in the cache still */

/* Copies to the host; complete when it returns. */
static int fetch(struct gpu_engine *g, float *to, const float *from, uint64_t floats, struct helm_err *err)
{
    int rc = device_copy(g->device, DEVICE_COMPUTE, DEVICE_TO_HOST, to, from, floats * sizeof(float), err);
    if (!rc) rc = g->device->ops->event_record(g->device, DEVICE_COMPUTE, g->copied, err);
    return rc ? rc : g->device->ops->event_wait(g->device, g->copied, err);
}

int gpu_pool_rows(struct gpu_engine *g, struct helm_err *err)
{
    const struct arena *arena = g->base.arena;
    const uint32_t hidden = g->model.config.hidden;
    const uint64_t room = arena_header_of(arena)->region[ARENA_REGION_LOGITS].bytes,
                   row_bytes = hidden * sizeof(float);
    float *norm = arena_region_ptr(arena, ARENA_REGION_LOGITS), *x = norm + hidden;
    uint64_t most = (room < ROWS_BYTES ? room : ROWS_BYTES) / row_bytes;
    most = most > 2 ? most - 1 : 1; /* the region holds two at least: the norm is one */
    int rc = fetch(g, norm, gpu_vector_of(&g->weights, TENSOR_FINAL_NORM, -1), hidden, err);
    for (uint32_t r = 0; r < g->batch.row_count && !rc; r++) {
        const struct batch_row *row = &g->batch.row[r];
        const bool last = row->pools == STEP_ROW_POOL_LAST;
        if (!row->pools) continue;
        for (uint32_t at = last ? row->count - 1 : 0; at < row->count && !rc; at += (uint32_t)most) {
            const uint32_t left = row->count - at, count = left < most ? left : (uint32_t)most;
            const float *from = gpu_area(&g->buffers, GPU_AREA_X);
            rc = fetch(g, x, from + (size_t)(row->token_first + at) * hidden, (uint64_t)count * hidden, err);
            const struct pooled_part part = {
                .first = at, .count = count, .x = x, .norm = norm, .eps = g->model.config.norm_eps};
            if (!rc) pooled_take(arena, row, &part);
        }
    }
    return rc;
}
