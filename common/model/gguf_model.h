/* The headers of a model in GGUF files, one or several that it is split into. Private to common/model. */
#pragma once

#include "common/model/gguf.h"

struct gguf_files {
    struct gguf *part;
    uint32_t count;
};

#define GGUF_PART_SUFFIX "-00001-of-00000.gguf" /* of the first of several: so long */
/* gguf_file.c: whether this is one of several files: which (from 1) and of how many. */
bool gguf_is_part(const char *file, uint32_t *number, uint32_t *count);
/* gguf_file.c. *folder is the caller's; NULL: `path` names no GGUF file. */
HELM_MUST_CHECK int gguf_find_file(const char *path, char **folder, char file[MODEL_NAME_MAX],
                                   struct helm_err *err);

/* Key/values are those of the first file; tensors are in any. NULL: no such tensor. */
const struct safetensors_entry *gguf_files_tensor(const struct gguf_files *files, const char *name,
                                                  uint32_t *part);
/* gguf_config.c: all of the configuration but `rope_factors`, which are a tensor's values; and the part of it
 * that keys say. */
HELM_MUST_CHECK int gguf_config_read(const struct gguf_files *files, struct model_config *config,
                                     struct helm_err *err);
HELM_MUST_CHECK int gguf_config_keys(const struct gguf *header, struct model_config *config,
                                     struct helm_err *err);
