/* A chunk's attention over what lies in the arena alone, in pieces (two tiers of the cache: plan_staging).
 *
 * Every row has, in a layer, pages that come in pieces, numbered through all rows, then a tail. In the GPU's
 * own layers these are the pages in the arena alone; in a layer whose cache is the arena's, all pages in
 * front of the step, and in the tail also those that the step appends to, which go back. Page i of the pieces
 * lies in place i % (2 * piece) of the staging pool, so that one piece comes by the copy queue while
 * attention reads the other; the tail is after these places. The step's page tables have places instead of
 * the arena's numbers.
 *
 * In a chunk that appends in the arena (plan_appends_in_arena) the GPU's own layers are as those whose cache
 * is the arena's. A page that is not whole lies in its place in VRAM alone: its cells go to the arena first.
 * The pages that the next step goes on with (plan_placed_from) come from there to their places, after what
 * goes back.
 *
 * Called by ../tiers.c, which writes the tables, and by issue.c. Owns nothing. */
#pragma once

#include "worker-gpu/program/program.h"

/* A row's pages by index: [0, pieces) come in pieces, [pieces, arrived) in the tail before attention, and up
 * to `end` the tail has room for what the step appends to. */
struct gpu_staged {
    uint32_t pieces, arrived, end;
    uint32_t tail; /* where its tail begins, in places */
};
struct gpu_staged gpu_staged_of(const struct plan *plan, const struct batch_row *row, uint32_t index,
                                bool own);

/* Writes row `index` of a chunk's step block: pages in pieces up to it, and places in its line of a page
 * table. The rows before it have been written. */
void gpu_pieces_fill(const struct plan *plan, const struct batch_row *row, uint32_t index, bool own,
                     uint32_t *before, uint32_t *table);

/* OP_KV_IN of such a layer puts these into the copy queue: the tail and the first two pieces, each with its
 * event. */
HELM_MUST_CHECK int gpu_pieces_begin(const struct gpu_source *source, const struct gpu_entry *entry,
                                     const struct batch *batch, struct helm_err *err);
/* Copies the cells that the step appended to such a layer to the arena. */
HELM_MUST_CHECK int gpu_pieces_back(const struct gpu_source *source, const struct gpu_entry *entry,
                                    const struct batch *batch, struct helm_err *err);
/* OP_ATTEND_PREFILL: `op` once for every piece, the others' copies between, then for all positions after
 * them. */
HELM_MUST_CHECK int gpu_pieces_attend(const struct gpu_source *source, const struct gpu_entry *entry,
                                      struct op *op, const struct batch *batch, struct helm_err *err);
/* Pages that a chunk copies of such an entry's layer: OP_KV_IN's, with all of its pieces, or OP_KV_OUT's. */
uint64_t gpu_pieces_copied(const struct gpu_source *source, const struct gpu_entry *entry,
                           const struct batch *batch);
