/* A tokenizer as the key/values of a GGUF file (tokenizer.ggml.*, tokenizer.chat_template). Called by
 * helm-quantize. */
#pragma once

#include "common/model/gguf_write.h"

/* Writes the vocabulary of a folder with a tokenizer.json. *kind: its kind in GGUF's terms ("llama-bpe";
 * "llama": SentencePiece), found by encoding a text: the written vocabulary encodes it to the same ids.
 * HELM_E_UNSUPPORTED: none does. HELM_E_NOT_FOUND: the folder has no tokenizer. */
HELM_MUST_CHECK int vocabulary_put(struct gguf_values *values, const char *folder,
                                   const struct model_config *config, const char **kind,
                                   struct helm_err *err);
/* For a model without one: ids that end a text, and that there is no vocabulary. */
void vocabulary_put_none(struct gguf_values *values, const struct model_config *config);
