/* Dense MLPs that two processors compute: each tensor of such a layer becomes two.
 *
 * A gated MLP is a sum over the rows of its gate and up, of which each meets one column of its down. So
 * its first rows are an MLP (TENSOR_OWN_GATE, OWN_UP, OWN_DOWN), the others are one (TENSOR_GATE, UP,
 * DOWN), and the sum of both outputs is the whole one's. A part of the model's math has both, as layers
 * with a shared expert have: lists for prompts compute all of it on one processor. Blocks of down's rows
 * are never cut, so every number is what the file says.
 *
 * Called by workers, which cut as the plan says, and by the planner for its ledgers (common/plan/share.h). */
#pragma once

#include "common/model/model.h"

/* The role of the whole tensor that a part of it is of; any other role as it is. */
enum tensor_role share_role_of(enum tensor_role role);
static inline bool share_is_own(enum tensor_role role)
{
    return share_role_of(role) != role;
}
/* Whether a layer's MLP can be cut: a dense one of gate, up and down without biases, whose output is added
 * as it is. */
bool share_takes_layer(const struct model *model, uint32_t layer);
/* Whether each part of the layer's MLP, cut at this row, has whole blocks. */
bool share_takes_rows(const struct model *model, uint32_t layer, uint32_t rows);

/* Cuts the MLPs of the layers that `shared` [layers] names at row `rows`. Only a model that is not cut may
 * be. HELM_E_UNSUPPORTED: it cannot be, by the layer. */
HELM_MUST_CHECK int model_share(struct model *model, const bool *shared, uint32_t rows, struct helm_err *err);
/* The same as a copy, which borrows from `whole` what is not cut. model_share_free on the caller. */
HELM_MUST_CHECK int model_share_copy(const struct model *whole, const bool *shared, uint32_t rows,
                                     struct model *cut, struct helm_err *err);
void model_share_free(struct model *cut);
