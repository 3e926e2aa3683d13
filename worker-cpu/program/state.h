/* The CPU's fixed states: the records of its layers in the arena's slots, and operations that keep one
 * (docs/state.md).
 *
 * state_open at load; state_begin and state_end around each step's program, by step.c; state_job by
 * execute.c. The one place of this worker that knows where a sequence's state lies. Owns the list of records;
 * slots and snapshots are the arena's. */
#pragma once

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

/* Begins the states of the layers that the CPU computes in this phase: rows that begin at position 0 get
 * zeros, and those with state_from that snapshot. */
void state_begin(const struct states *states, struct pool *pool, const struct batch *batch, uint32_t phase);
/* Rows that leave a snapshot after their last token get it from their slot's records. */
void state_end(const struct states *states, struct pool *pool, const struct batch *batch, uint32_t phase);

/* The floats of the entry's state that belong to a row's sequence. */
float *state_of_row(const struct run *run, const struct program_entry *entry, const struct batch_row *row);
/* `rows` runs of `count` floats, `stride` apart, in the state of the run's entry that belongs to a row's
 * sequence. */
struct state_part {
    const float *from;
    uint32_t rows, count, stride;
};
/* This part has taken `at` of the row's tokens: it is copied to the snapshot that the row leaves there before
 * its last token. Where it leaves none, nothing is done. */
void state_keep(const struct run *run, const struct batch_row *row, uint32_t at,
                const struct state_part *part);
/* RUNNING_MEAN over the step's rows. */
struct pool_job state_job(struct run *run, const struct program_entry *entry);
