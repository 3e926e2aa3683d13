/* Mixtures of experts as execute.c runs them: the choice, the chosen experts' matrices, the sum; the shared
 * expert's weight.
 *
 * Called by execute.c alone. One token: pieces of rows of the chosen experts, shared by the threads as of one
 * matrix; of downs the last one to finish some rows sums them, in the order of choice. Several tokens: they
 * are grouped by expert, each expert's weights are read once a step (once for CPU_EXPERTS_TOKENS of its
 * tokens), and sums are taken in the order of choice, whichever thread computes them. Owns nothing; `ctx` is
 * a struct run.
 *
 * Experts on disk are computed in turns: those that are in memory, then those that came meanwhile, and so on.
 * A turn is a region of gates and ups, or of downs. Which experts are in which turn changes no result.
 *
 * Where the GPU asks for some of a layer's experts (arena_layout.h), its choice comes by a lane instead: of
 * one token those that are asked for stand in front, of several the others have no number. */
#pragma once

#include "worker-cpu/program/execute.h"

static inline bool experts_are(const struct program_entry *e)
{
    return e->kind == OP_ROUTE || e->kind == OP_EXPERTS_TAKE || e->kind == OP_EXPERTS_GLU ||
           e->kind == OP_EXPERTS_DOWN || e->kind == OP_EXPERTS_SUM || e->kind == OP_WEIGH;
}

/* Places of choices and pairs in the activations, counters for all that the programs have; nothing where the
 * model has no experts. */
HELM_MUST_CHECK int experts_create(struct run *run, const struct program *const *programs, uint32_t count,
                                   struct helm_err *err);
void experts_destroy(struct run *run);
/* Before and after an entry with a lane, or that answers by one. */
HELM_MUST_CHECK int experts_begin(struct run *run, const struct program_entry *entry, struct helm_err *err);
HELM_MUST_CHECK int experts_end(const struct program_entry *entry, struct helm_err *err);
/* While a thread waits and one token's downs come next (run->experts.ahead): fetches what it will read first
 * of them into its L2. As a pool_idle_fn. */
bool experts_fetch_ahead(const struct run *run, const struct program_entry *down, uint32_t thread,
                         uint32_t piece);
/* The region of such an entry. Groups the step's tokens before their gates. run->rc: experts on disk could
 * not be read. */
struct pool_job experts_job(struct run *run, const struct program_entry *entry);
/* The region again, of an entry whose experts lie on disk: for those that came meanwhile; waits for some.
 * False: it is over. */
bool experts_again(struct run *run, struct pool_job *job);
