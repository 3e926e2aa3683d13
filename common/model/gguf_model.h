/* The headers of a model in GGUF files, one or several that it is split into. Private to common/model. */
#ifndef HELM_COMMON_MODEL_GGUF_MODEL_H
#define HELM_COMMON_MODEL_GGUF_MODEL_H

#include "common/model/gguf.h"

struct gguf_files {
    struct gguf *part;
    uint32_t count;
};

/* Key/values are those of the first file; tensors are in any. NULL: no such tensor. */
const struct safetensors_entry *gguf_files_tensor(const struct gguf_files *files, const char *name,
                                                  uint32_t *part);
/* gguf_config.c: all of the configuration but `rope_factors`, which are a tensor's values. *interleaved: rows of q and
 * k lie as model_tensor.interleaved_heads says. */
HELM_MUST_CHECK int gguf_config_read(const struct gguf_files *files, struct model_config *config,
                                     bool *interleaved, struct helm_err *err);

#endif
