/* Weights that are packed in host memory: read, packed and written to their places in the arena. See
 * weights.h and common/plan/placement.h. Called by weights.c with the pool that loads the others.
 *
 * Groups of a matrix are contiguous and differ in size, so a matrix is one thread's: it reads a group, packs
 * it after the one before, and notes where it lies. There are many more matrices than threads. */
#include <stdlib.h>

#include "common/formats/packed.h"
#include "worker-cpu/weights/weights.h"

int weights_pack(const struct weights_loading *l, const struct model_shards *shards,
                 const struct model_tensor *t, void *to, struct helm_err *err)
{
    const uint32_t rows = (uint32_t)t->rows, cols = (uint32_t)t->cols;
    uint16_t *value = malloc(packed_group_values(rows, cols, 0) * sizeof *value);
    int rc = value ? 0 : helm_fail(err, HELM_E_NOMEM, "no memory to pack %s", t->name);
    uint32_t *offset = to;
    char *groups = (char *)to + packed_groups_at(rows);
    offset[0] = 0;
    for (uint32_t g = 0; g < packed_groups(rows) && !rc; g++) {
        const uint32_t values = packed_group_values(rows, cols, g);
        const struct model_rows all = {.tensor = t,
                                       .row = g * PACKED_ROWS,
                                       .rows = values / cols,
                                       .format = t->format};
        struct packed_measure measure;
        if (l->cancel && atomic_load_explicit(l->cancel, memory_order_relaxed))
            rc = helm_fail(err, HELM_E_CANCELLED, "loading was cancelled");
        if (!rc) rc = model_shards_read_rows(shards, &all, value, err);
        if (rc) break;
        packed_measure(value, values, &measure);
        offset[g + 1] = offset[g] + measure.bytes / PACKED_ALIGN;
        rc = packed_write(&measure, value, values, groups + packed_at(offset, g), err);
        if (rc) helm_err_prefix(err, "%s", t->name);
        if (l->bytes_done)
            atomic_fetch_add_explicit(l->bytes_done, values * sizeof *value, memory_order_relaxed);
    }
    free(value);
    return rc;
}

void weights_count_packed(struct weights *w, const char *region)
{
    w->packed_from = w->packed_to = 0;
    for (uint32_t i = 0; i < w->host.count; i++) {
        const struct placement *place = &w->host.place[i];
        const uint32_t *offset = (const uint32_t *)(region + place->offset);
        if (place->format != FORMAT_BF16_PACKED) continue;
        const struct model_tensor *t = placement_tensor(w->model, place);
        w->packed_from += t->bytes;
        w->packed_to += packed_at(offset, packed_groups((uint32_t)t->rows));
    }
}
