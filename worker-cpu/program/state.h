/* The CPU's fixed states: the records of its layers in the arena's slots, and operations that keep one (docs/state.md).
 *
 * state_open at load; state_begin and state_end around each step's program, by step.c; state_job by execute.c. The one place
 * of this worker that knows where a sequence's state lies. Owns the list of records; slots and snapshots are the arena's. */
#ifndef HELM_WORKER_CPU_PROGRAM_STATE_H
#define HELM_WORKER_CPU_PROGRAM_STATE_H

#include "common/cpu/pool.h"
#include "common/plan/state.h"
#include "common/worker/batch.h"

struct run;
struct program_entry;
struct batch_row;

struct states {
    struct state_layout layout;
    char *slots, *snapshots; /* in the arena */
    struct state_record *record;
    uint32_t records; /* layers of the CPU with a fixed state */
};

HELM_MUST_CHECK int state_open(const struct arena *arena, const struct plan *plan, struct states *states,
                               struct helm_err *err);
void state_close(struct states *states);

/* Rows that begin at position 0 get zeros, and those with state_from that snapshot. */
void state_begin(const struct states *states, struct pool *pool, const struct batch *batch);
/* Rows with state_to leave their slot's records there, but for those that leave an earlier state. */
void state_end(const struct states *states, struct pool *pool, const struct batch *batch);

/* The floats of the entry's state that belong to a row's sequence. */
float *state_of_row(const struct run *run, const struct program_entry *entry, const struct batch_row *row);
/* Tokens of a row that an operation takes before it keeps its state; all where it keeps none. */
uint32_t state_break(const struct batch_row *row);
/* ... and then: `rows` runs of `count` floats, `stride` apart, of which the first lies at `state` in the row's slot. */
void state_keep(const struct run *run, const struct batch_row *row, const float *state, uint32_t rows,
                uint32_t count, uint32_t stride);
/* RUNNING_MEAN over the step's rows. */
struct pool_job state_job(struct run *run, const struct program_entry *entry);

#endif
