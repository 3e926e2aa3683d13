/* Whether two models mean the same tokens by the same ids: a draft model's guesses are the model's own ids.
 *
 * Called by daemon/start/drafting.c. Texts are compared as the files spell them: tokenizer.json of a folder,
 * tokenizer.ggml.tokens of a GGUF file. An id without a text, or with the filler that a conversion gives such
 * an id, matches any text, since no tokenizer makes it; rows that a model has beyond its texts do not count.
 */
#pragma once

#include "common/model/model.h"

/* HELM_E_MISMATCH: the number of tokens differs, or a text, of which the first is named; or only one model
 * has texts. *sizes_alone: neither has any, so only the sizes of the vocabularies were compared. */
HELM_MUST_CHECK int vocabulary_compare(const struct model *model, const struct model *draft,
                                       bool *sizes_alone, struct helm_err *err);
