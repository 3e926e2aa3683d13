/* Which logits penalties and bias change, and what they make of them.
 *
 * Called by common/sampling/sampling.c alone. Pure functions over caller-owned memory. Only tokens of the
 * history and of the bias list change; each one's changes are computed in double and rounded once per
 * step. */
#pragma once

#include "common/sampling/sampling.h"

bool sampling_changes_logits(const struct sampling_params *params);
/* Lists the distinct tokens that change, in order of their first place; `seen` [vocab] needs no content
 * before and holds their indices afterwards. False: more than `capacity`. */
bool sampling_list_changes(const struct sampling_params *params, const struct sampling_tokens *tokens,
                           uint32_t vocab, uint32_t capacity, uint32_t *seen,
                           struct sampling_changes *changes);
/* Fills `seen` for a list made before. */
void sampling_index_changes(const struct sampling_changes *changes, uint32_t *seen);
/* Whether the list has this token: `seen` may hold anything for those it has not. */
static inline bool sampling_is_changed(const struct sampling_changes *changes, const uint32_t *seen,
                                       uint32_t token)
{
    return seen[token] < changes->count && changes->token[seen[token]] == token;
}
/* x[i], the logit of changes->token[i], becomes what penalties and bias make of it. */
void sampling_apply_changes(const struct sampling_params *params, uint32_t vocab,
                            const struct sampling_changes *changes, const uint32_t *seen, float *x);
