/* Plans with a layer's experts in both memories: their parts.
 *
 * Internal to experts.c, experts_slots.c and experts_moves.c. */
#pragma once

#include "daemon/planner/ideas.h"

/* Which experts lie packed, in the order in which it is tried: of more and more layers. */
enum packs { PACKS_NONE, PACKS_WHOLE, PACKS_ALL, PACKS_WAYS };

/* The plan with the first `whole` sparse layers' experts in VRAM, in all lists; others' in both memories, in
 * decode's. */
HELM_MUST_CHECK int experts_place(const struct making *m, const struct plan *from, uint32_t whole,
                                  enum packs packs, struct plan *plan, struct helm_err *err);
/* As many slots as there is room for beside the smallest pool; what then is left is the pool's. *fits: there
 * is, for one at least. */
HELM_MUST_CHECK int experts_fill(struct making *m, uint32_t ctx, struct plan *plan, bool *fits,
                                 struct helm_err *err);
/* The share of missing experts that the GPU reads itself with which a step is shortest, and that step's
 * seconds. */
HELM_MUST_CHECK int experts_choose_direct(const struct making *m, struct plan *plan, double *least,
                                          struct helm_err *err);
/* Where no plan has room: HELM_E_CAPACITY with what one slot of each layer would take, in the request's
 * refusal, too. */
HELM_MUST_CHECK int experts_refuse(struct making *m, uint32_t ctx, const struct plan *plan,
                                   struct helm_err *err);
/* From which part of the choices on, foretold by recency, a step in which experts move is faster than one of
 * `still` seconds in which they stay; what the link then brings in it, and as the policy has it
 * (common/experts/slots.h) what an expert's move costs. */
HELM_MUST_CHECK int experts_budget(const struct making *m, double still, struct plan *plan,
                                   struct helm_err *err);
/* Whether experts may lie packed in VRAM, of one sequence's plans; and in slots there, the CPU computing with
 * packed ones, too. */
bool experts_pack_whole(const struct making *m);
bool experts_pack_slots(const struct making *m);
