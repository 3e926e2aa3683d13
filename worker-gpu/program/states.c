/* The GPU's fixed states. See states.h. */
#include "worker-gpu/program/states.h"

#include <stdlib.h>
#include <string.h>

/* Neighbours in slots and in snapshots become one: each copy waits for the slice that the link has under
 * way. */
static void join_neighbours(struct gpu_records *s)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < s->count; i++) {
        const struct state_record *r = &s->record[i];
        struct state_record *last = count ? &s->record[count - 1] : NULL;
        if (last && last->slot_at + last->bytes == r->slot_at &&
            last->snapshot_at + last->bytes == r->snapshot_at && last->phases == r->phases)
            last->bytes += r->bytes;
        else
            s->record[count++] = *r;
    }
    s->count = count;
}

static int take_records(const struct plan *plan, enum plan_processor keeper, enum plan_processor self,
                        struct gpu_records *records, struct helm_err *err)
{
    records->layout = plan_state_layout(plan, keeper);
    const int rc = plan_state_records(plan, keeper, self, &records->record, &records->count, err);
    if (!rc) join_neighbours(records);
    return rc;
}

int gpu_states_plan(const struct plan *plan, enum plan_processor self, const struct arena *arena,
                    struct gpu_states *s, struct helm_err *err)
{
    *s = (struct gpu_states){.snapshots = arena_region_ptr(arena, ARENA_REGION_SNAPSHOTS)};
    int rc = take_records(plan, self, self, &s->own, err);
    if (!rc) rc = take_records(plan, PLAN_CPU0, self, &s->borrowed, err);
    if (s->borrowed.count) s->borrowed.slots = arena_region_ptr(arena, ARENA_REGION_STATE);
    s->bytes = arena_header_of(arena)->slots * s->own.layout.slot_bytes;
    return rc;
}

int gpu_states_open(struct gpu_states *s, struct device *d, struct helm_err *err)
{
    void *slots = NULL;
    int rc = s->bytes ? device_alloc(d, DEVICE_KV, s->bytes, &slots, err) : 0;
    s->own.slots = slots;
    /* programs run once over slots that no sequence has begun, to have their code loaded */
    return rc || !slots ? rc : d->ops->clear(d, DEVICE_COMPUTE, slots, s->bytes, err);
}

void gpu_states_close(struct gpu_states *s, struct device *d)
{
    device_free(d, DEVICE_KV, s->bytes, s->own.slots);
    free(s->own.record);
    free(s->borrowed.record);
    *s = (struct gpu_states){0};
}

bool gpu_states_moves(const struct gpu_states *s, const struct step_row *row)
{
    return s->own.count && (row->start == 0 || row->state_from || row->left[0].to);
}

static char *slot_of(const struct gpu_records *s, const struct batch_row *row)
{
    return s->slots + row->slot * s->layout.slot_bytes;
}

/* One record of a row that begins at position 0 or with a snapshot. */
static void begin_borrowed(const struct gpu_states *s, const struct batch_row *row,
                           const struct state_record *r)
{
    char *record = slot_of(&s->borrowed, row) + r->slot_at;
    if (row->state_from)
        memcpy(record, s->snapshots + state_in_snapshot(&s->borrowed.layout, r, row->state_from), r->bytes);
    else if (row->start == 0)
        memset(record, 0, r->bytes);
}

int gpu_states_begin(const struct gpu_states *s, struct device *d, const struct batch *batch, uint32_t phase,
                     struct helm_err *err)
{
    const struct gpu_records *own = &s->own;
    int rc = 0;
    for (uint32_t r = 0; r < batch->row_count; r++) {
        const struct batch_row *row = &batch->row[r];
        for (uint32_t i = 0; i < s->borrowed.count; i++)
            if (state_is_in(&s->borrowed.record[i], phase)) begin_borrowed(s, row, &s->borrowed.record[i]);
        if (own->count && row->start == 0 && !rc)
            rc = d->ops->clear(d, DEVICE_COMPUTE, slot_of(own, row), own->layout.slot_bytes, err);
        for (uint32_t i = 0; i < own->count && row->state_from && !rc; i++)
            rc = device_copy(d, DEVICE_COMPUTE, DEVICE_TO_DEVICE, slot_of(own, row) + own->record[i].slot_at,
                             s->snapshots + state_in_snapshot(&own->layout, &own->record[i], row->state_from),
                             own->record[i].bytes, err);
    }
    return rc;
}

int gpu_states_end(const struct gpu_states *s, struct device *d, const struct batch *batch,
                   _Atomic uint32_t *word, bool *waits, struct helm_err *err)
{
    const struct gpu_records *own = &s->own;
    int rc = 0;
    *waits = false;
    for (uint32_t r = 0; r < batch->row_count; r++) {
        const struct batch_row *row = &batch->row[r];
        const uint32_t to = batch_left_at(row, row->count);
        for (uint32_t i = 0; i < own->count && to && !rc; i++) {
            if (!*waits) atomic_store_explicit(word, 0, memory_order_release);
            *waits = true;
            rc = device_copy(d, DEVICE_COMPUTE, DEVICE_TO_HOST,
                             s->snapshots + state_in_snapshot(&own->layout, &own->record[i], to),
                             slot_of(own, row) + own->record[i].slot_at, own->record[i].bytes, err);
        }
    }
    return rc || !*waits ? rc : device_word_write(d, word, 1, err);
}

void gpu_states_give_back(const struct gpu_states *s, const struct batch *batch, uint32_t phase)
{
    const struct gpu_records *b = &s->borrowed;
    for (uint32_t r = 0; r < batch->row_count; r++) {
        const uint32_t to = batch_left_at(&batch->row[r], batch->row[r].count);
        for (uint32_t i = 0; i < b->count && to; i++)
            if (state_is_in(&b->record[i], phase))
                memcpy(s->snapshots + state_in_snapshot(&b->layout, &b->record[i], to),
                       slot_of(b, &batch->row[r]) + b->record[i].slot_at, b->record[i].bytes);
    }
}
