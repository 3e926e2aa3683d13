/* The GPU's fixed states. See states.h. */
#include "worker-gpu/program/states.h"

#include <stdlib.h>

/* Neighbours in slots and in snapshots become one: each copy waits for the slice that the link has under way. */
static void join_neighbours(struct gpu_states *s)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < s->records; i++) {
        const struct state_record *r = &s->record[i];
        struct state_record *last = count ? &s->record[count - 1] : NULL;
        if (last && last->slot_at + last->bytes == r->slot_at &&
            last->snapshot_at + last->bytes == r->snapshot_at)
            last->bytes += r->bytes;
        else
            s->record[count++] = *r;
    }
    s->records = count;
}

int gpu_states_plan(const struct plan *plan, enum plan_processor self, const struct arena *arena,
                    struct gpu_states *s, struct helm_err *err)
{
    *s = (struct gpu_states){.layout = plan_state_layout(plan, self),
                             .snapshots = arena_region_ptr(arena, ARENA_REGION_SNAPSHOTS)};
    s->bytes = arena_header_of(arena)->slots * s->layout.slot_bytes;
    const int rc = plan_state_records(plan, self, &s->record, &s->records, err);
    if (!rc) join_neighbours(s);
    return rc;
}

int gpu_states_open(struct gpu_states *s, struct device *d, struct helm_err *err)
{
    void *slots = NULL;
    int rc = s->bytes ? device_alloc(d, DEVICE_KV, s->bytes, &slots, err) : 0;
    s->slots = slots;
    /* programs run once over slots that no sequence has begun, to have their code loaded */
    return rc || !slots ? rc : d->ops->clear(d, DEVICE_COMPUTE, slots, s->bytes, err);
}

void gpu_states_close(struct gpu_states *s, struct device *d)
{
    device_free(d, DEVICE_KV, s->bytes, s->slots);
    free(s->record);
    *s = (struct gpu_states){0};
}

bool gpu_states_moves(const struct gpu_states *s, const struct step_row *row)
{
    return s->records && (row->start == 0 || row->state_from || row->left[0].to);
}

int gpu_states_begin(const struct gpu_states *s, struct device *d, const struct batch *batch,
                     struct helm_err *err)
{
    int rc = 0;
    for (uint32_t r = 0; r < batch->row_count && s->records; r++) {
        const struct batch_row *row = &batch->row[r];
        char *slot = s->slots + row->slot * s->layout.slot_bytes;
        if (row->start == 0 && !rc) rc = d->ops->clear(d, DEVICE_COMPUTE, slot, s->layout.slot_bytes, err);
        for (uint32_t i = 0; i < s->records && row->state_from && !rc; i++)
            rc = device_copy(d, DEVICE_COMPUTE, DEVICE_TO_DEVICE, slot + s->record[i].slot_at,
                             s->snapshots + state_in_snapshot(&s->layout, &s->record[i], row->state_from),
                             s->record[i].bytes, err);
    }
    return rc;
}

int gpu_states_end(const struct gpu_states *s, struct device *d, const struct batch *batch,
                   _Atomic uint32_t *word, bool *waits, struct helm_err *err)
{
    int rc = 0;
    *waits = false;
    for (uint32_t r = 0; r < batch->row_count && s->records; r++) {
        const struct batch_row *row = &batch->row[r];
        const char *slot = s->slots + row->slot * s->layout.slot_bytes;
        const uint32_t to = batch_left_at(row, row->count);
        for (uint32_t i = 0; i < s->records && to && !rc; i++) {
            if (!*waits) atomic_store_explicit(word, 0, memory_order_release);
            *waits = true;
            rc = device_copy(d, DEVICE_COMPUTE, DEVICE_TO_HOST,
                             s->snapshots + state_in_snapshot(&s->layout, &s->record[i], to),
                             slot + s->record[i].slot_at, s->record[i].bytes, err);
        }
    }
    return rc || !*waits ? rc : device_word_write(d, word, 1, err);
}
