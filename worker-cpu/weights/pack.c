/* Weights that are packed in host memory: read, packed and written to their places in the arena. See
 * weights.h and common/plan/placement.h. Called by weights.c with the pool that loads the others.
 *
 * Groups of a matrix stand one behind the other and differ in size, so a matrix is one thread's: it reads a group,
 * packs it behind the one before, and notes where it lies. There are many more matrices than threads. */
#include <stdlib.h>

#include "common/formats/packed.h"
#include "worker-cpu/weights/weights.h"

static int pack_group(const struct weights_packing *p, uint32_t group, uint16_t *value, struct helm_err *err)
{
    const struct model_tensor *t = p->tensor;
    const struct weights_loading *l = p->loading;
    const uint32_t rows = (uint32_t)t->rows, cols = (uint32_t)t->cols,
                   values = packed_group_values(rows, cols, group);
    const uint64_t bytes = (uint64_t)values * sizeof *value,
                   from = (uint64_t)group * PACKED_ROWS * cols * sizeof *value;
    uint32_t *offset = p->to;
    struct packed_measure measure;
    if (l->cancel && atomic_load_explicit(l->cancel, memory_order_relaxed))
        return helm_fail(err, HELM_E_CANCELLED, "loading was cancelled");
    int rc = model_shards_read(p->shards, t, from, bytes, value, err);
    if (rc) return rc;
    packed_measure(value, values, &measure);
    offset[group + 1] = offset[group] + measure.bytes / PACKED_ALIGN;
    char *groups = (char *)p->to + packed_groups_at(rows);
    rc = packed_write(&measure, value, values, groups + packed_at(offset, group), err);
    if (rc) return helm_err_prefix(err, "%s", t->name), rc;
    if (l->bytes_done) atomic_fetch_add_explicit(l->bytes_done, bytes, memory_order_relaxed);
    return 0;
}

int weights_pack(const struct weights_packing *p, struct helm_err *err)
{
    const struct model_tensor *t = p->tensor;
    uint16_t *value = malloc(PACKED_ROWS * (size_t)t->cols * sizeof *value);
    int rc = value ? 0 : helm_fail(err, HELM_E_NOMEM, "no memory to pack %s", t->name);
    *(uint32_t *)p->to = 0;
    for (uint32_t g = 0; g < packed_groups((uint32_t)t->rows) && !rc; g++) rc = pack_group(p, g, value, err);
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
