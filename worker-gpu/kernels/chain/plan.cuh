/* Shared by the files that write chains' lists: operations as linear ones, and where their blocks meet.
 *
 * Included by chain/list.cu and chain/meetings.cu. */
#pragma once

#include <vector>

#include "worker-gpu/kernels/chain/chain.cuh"

/* Whether its weights come through the ring. */
static inline bool has_tiles(const struct gpuk_chain_op *op)
{
    return op->kind == GPUK_CHAIN_LINEAR;
}
/* Plans where blocks meet: items have their weights. added: operation i adds to rows that the same threads
 * stored in the one before. Returns how often blocks meet. */
uint32_t chain_meetings(const struct gpuk_chain_op *op, uint32_t count, const std::vector<bool> &added,
                        struct chain_item *items);
/* Whether `b` adds to the rows that `a` in front of it stores: of one matrix of as many rows, out of one
 * place. */
bool chain_adds_to(const struct gpuk_chain_op *a, const struct gpuk_chain_op *b);
/* Then the same threads have these rows in both, if all of a block's have room at once in either. */
bool chain_same_threads(const struct chain_weights *w);
