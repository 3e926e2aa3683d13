/* Which list of a plan a step is computed by, and with kernels of which order.
 *
 * Usually a step's number of tokens decides both: plan_phase_for picks the list, and kernels are those of one
 * token, a few or a chunk. In an *invariant* plan it must not: a token's numbers depend on its sequence
 * alone, not on what is computed beside it. So every position has a schedule of its own. Positions of a
 * prompt are computed as a chunk, by the list for the length of the whole prompt, in steps of such positions
 * alone (STEP_PROMPT). Positions after it are computed as one token, by the decode list: of one or several
 * sequences, or up to a few of one sequence that is computed again. The kernels of both give a token the same
 * bits whatever else a step has. So it does not matter how a prompt is cut, which sequences share a step,
 * what is found in the cache, and what is computed again.
 *
 * Where a GPU computes, prompts of up to GPU_STEADY_TOKENS tokens have lists of their own: the plan's again,
 * numbered after those, whose products are computed as is fastest for so few tokens. So a prompt of each kind
 * finds the pages of its kind.
 *
 * helmd forms steps by this, both workers check and choose by it. Pure functions. */
#pragma once

#include "common/plan/engine_limits.h"
#include "common/plan/plan.h"

struct plan_schedule {
    uint32_t phase; /* of the plan */
    bool chunk;     /* with a chunk's kernels, however few tokens there are; else as decode */
    bool is_short;  /* of an invariant plan's chunk: of short prompts */
};

/* Lists of prompts: the plan's phases, of an invariant plan perhaps once more for short prompts. */
uint32_t plan_list_count(const struct plan *plan);
uint32_t plan_list_phase(const struct plan *plan, uint32_t list);
/* The most tokens that a step of this list may have: its buffers are of that size. */
uint32_t plan_list_tokens(const struct plan *plan, uint32_t list);
/* For an invariant plan: the list that computes a prompt of `prompt_tokens` tokens, and the most tokens of
 * any other step. */
uint32_t plan_prompt_list(const struct plan *plan, uint32_t prompt_tokens);
uint32_t plan_decode_tokens(const struct plan *plan);

/* Whether a prompt's next chunk may be rung while the one before is computed, so that two devices, each with
 * a run of the layers, work at once: where all layers are in their memories, all steps go by one list, and
 * what a layer keeps of a sequence are pages. */
bool plan_overlaps_chunks(const struct plan *plan);

/* A step as the ring has it: its flags (enum step_flags of arena_layout.h) say what an invariant plan needs.
 * HELM_E_LIMIT: the plan has no list for such a step. */
HELM_MUST_CHECK int plan_schedule_of(const struct plan *plan, uint32_t flags, uint32_t tokens,
                                     struct plan_schedule *schedule, struct helm_err *err);
/* The flags of a step of prompts. */
uint32_t plan_prompt_flags(uint32_t list);
