/* The CPU's part of attention in layers whose cache is the GPU's: positions that lie in the arena alone,
 * below each row's direct_from (arena_layout.h, STEP_KV_ASSISTED).
 *
 * Called by execute.c, for entries of kind OP_ATTEND_HOST. The GPU's queries come by one lane and partial
 * results go by another. A layer's work is cut by blocks of kv heads and by pieces of the context, so that
 * all threads have as much to read, and read in long runs; query heads that share a kv head share what is
 * read. Pieces are folded two and two (attention_fold), in an order that does not hang on threads. Owns the
 * partial results of a layer, in struct run. */
#pragma once

#include "worker-cpu/program/execute.h"

/* Room for what the plan can ask for; nothing where its cache has one tier. HELM_E_NOMEM, and
 * assist_destroy. */
HELM_MUST_CHECK int assist_create(struct run *run, struct helm_err *err);
void assist_destroy(struct run *run);

/* Before the entry: waits for its queries, and until partial results may be written. */
HELM_MUST_CHECK int assist_begin(struct run *run, const struct program_entry *e, struct helm_err *err);
/* Cuts it for this step. */
struct pool_job assist_job(struct run *run, const struct program_entry *e);
/* After it: every chunk is done. */
HELM_MUST_CHECK int assist_end(const struct program_entry *e, struct helm_err *err);
