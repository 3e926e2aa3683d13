/* Steps of many tokens: how many tokens a step may have, and what is computed where in it.
 *
 * Called by planner.c. Pure. Where the bytes are is settled by the decode list; for a prompt it may still be
 * faster to copy host-resident weights to the GPU once than to compute all the tokens with them on the CPU,
 * the sooner the more tokens there are. docs/planner.md has the reasoning. */
#pragma once

#include "daemon/planner/memory/ledger.h"
#include "daemon/planner/search/search.h"
#include "daemon/planner/profile/policy.h"

#define PREFILL_CHUNK_MAX 4096 /* tokens of a chunk */

/* Bytes that the buffers of a chunk of `tokens` may take beside a context. */
uint64_t prefill_buffers_most(const struct ledger_case *c, uint32_t ctx, uint32_t tokens);
/* The chunk that a plan of this case should have: long enough that the GPU computes for about as long as the
 * link takes for the weights that do not fit in VRAM, since a chunk cannot be faster than that. A power of
 * two from LEDGER_STEP_TOKENS to PREFILL_CHUNK_MAX, no longer than the context, and such that the device has
 * room for its buffers. c's wish does not state it yet. */
HELM_MUST_CHECK int prefill_step_tokens(const struct ledger_case *c, const struct profile *profile,
                                        uint32_t ctx, uint32_t *tokens, struct helm_err *err);

/* Writes the plan's prefill lists (none, one or two) for steps of up to plan->step_tokens tokens; its decode
 * list is `decode`'s, whose ring is the one that is used. A list that equals decode's is left out, and so is
 * one that never becomes faster. */
HELM_MUST_CHECK int prefill_choose(const struct ledger_case *c, const struct profile *profile,
                                   const struct search_found *decode, struct plan *plan,
                                   struct helm_err *err);
