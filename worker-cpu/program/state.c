/* The CPU's fixed states. See state.h. */
#include "worker-cpu/program/state.h"

#include <stdlib.h>
#include <string.h>

#include "worker-cpu/program/execute.h"

#define COLUMNS_A_CHUNK 512  /* floats of a record: whole cache lines, so that threads share none */
#define ALONE_NUMBERS   8192 /* too little work to wake other threads for */

int state_open(const struct arena *arena, const struct plan *plan, struct states *s, struct helm_err *err)
{
    *s = (struct states){.layout = plan_state_layout(plan, PLAN_CPU0),
                         .slots = arena_region_ptr(arena, ARENA_REGION_STATE),
                         .snapshots = arena_region_ptr(arena, ARENA_REGION_SNAPSHOTS)};
    return plan_state_records(plan, PLAN_CPU0, PLAN_CPU0, &s->record, &s->records, err);
}

void state_close(struct states *s)
{
    free(s->record);
    *s = (struct states){0};
}

/* ---- around a step ---- */

struct moving {
    const struct states *states;
    const struct batch *batch;
    uint32_t phase;
    bool out;
};

static bool moves(const struct batch_row *row, bool out)
{
    if (out) return batch_left_at(row, row->count) != STATE_NO_SNAPSHOT;
    return row->start == 0 || row->state_from != STATE_NO_SNAPSHOT;
}

/* One record of one row. */
static void move_record(void *ctx, uint32_t chunk, uint32_t thread)
{
    (void)thread;
    const struct moving *m = ctx;
    const struct states *s = m->states;
    const struct batch_row *row = &m->batch->row[chunk / s->records];
    const struct state_record *r = &s->record[chunk % s->records];
    char *slot = s->slots + state_in_slot(&s->layout, r, row->slot);
    if (!moves(row, m->out) || !state_is_in(r, m->phase)) return;
    if (m->out)
        memcpy(s->snapshots + state_in_snapshot(&s->layout, r, batch_left_at(row, row->count)), slot,
               r->bytes);
    else if (row->state_from)
        memcpy(slot, s->snapshots + state_in_snapshot(&s->layout, r, row->state_from), r->bytes);
    else
        memset(slot, 0, r->bytes);
}

static void move_all(const struct states *s, struct pool *pool, const struct batch *batch, uint32_t phase,
                     bool out)
{
    struct moving moving = {.states = s, .batch = batch, .phase = phase, .out = out};
    bool any = false;
    for (uint32_t i = 0; i < batch->row_count; i++) any |= moves(&batch->row[i], out);
    if (any && s->records) pool_run_region(pool, move_record, &moving, batch->row_count * s->records);
}

void state_begin(const struct states *s, struct pool *pool, const struct batch *batch, uint32_t phase)
{
    move_all(s, pool, batch, phase, false);
}

void state_end(const struct states *s, struct pool *pool, const struct batch *batch, uint32_t phase)
{
    move_all(s, pool, batch, phase, true);
}

/* ---- operations ---- */

float *state_of_row(const struct run *run, const struct program_entry *e, const struct batch_row *row)
{
    const struct states *s = run->states;
    return (float *)(void *)(s->slots + row->slot * s->layout.slot_bytes + e->state_at);
}

void state_keep(const struct run *run, const struct batch_row *row, uint32_t at,
                const struct state_part *part)
{
    const struct states *s = run->states;
    const struct program_entry *e = run->entry;
    const uint32_t to = batch_left_at(row, at);
    if (to == STATE_NO_SNAPSHOT || at == row->count) return;
    float *snapshot = (float *)(void *)(s->snapshots + (to - 1) * s->layout.snapshot_bytes + e->snapshot_at) +
                      (part->from - state_of_row(run, e, row));
    for (uint32_t i = 0; i < part->rows; i++)
        memcpy(snapshot + (size_t)i * part->stride, part->from + (size_t)i * part->stride,
               part->count * sizeof *snapshot);
}

static uint32_t blocks_of(const struct program_entry *e)
{
    return (e->width + COLUMNS_A_CHUNK - 1) / COLUMNS_A_CHUNK;
}

/* Some columns of one row's record, over its tokens in order: sums do not depend on how a prompt is cut into
 * steps. */
static void chunk_running_mean(void *ctx, uint32_t chunk, uint32_t thread)
{
    (void)thread;
    const struct run *run = ctx;
    const struct program_entry *e = run->entry;
    const struct batch_row *row = &run->batch.row[chunk / blocks_of(e)];
    const uint32_t first = chunk % blocks_of(e) * COLUMNS_A_CHUNK, left = e->width - first,
                   count = left < COLUMNS_A_CHUNK ? left : COLUMNS_A_CHUNK;
    float *sum = state_of_row(run, e, row) + first;
    for (uint32_t t = 0; t < row->count; t++) {
        const size_t at = (size_t)(row->token_first + t) * e->width + first;
        const float positions = (float)(row->start + t + 1);
        for (uint32_t i = 0; i < count; i++) {
            sum[i] += e->in[at + i];
            e->out[at + i] = sum[i] / positions;
        }
        state_keep(run, row, t + 1, &(struct state_part){.from = sum, .rows = 1, .count = count});
    }
}

struct pool_job state_job(struct run *run, const struct program_entry *e)
{
    return (struct pool_job){.run = chunk_running_mean,
                             .chunks = run->batch.row_count * blocks_of(e),
                             .alone = (uint64_t)run->batch.token_count * e->width <= ALONE_NUMBERS};
}
