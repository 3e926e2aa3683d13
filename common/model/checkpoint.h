/* The pieces of reading a checkpoint that tests and fuzz targets enter by themselves. Private to
 * common/model. */
#pragma once

#include <jansson.h>

#include "common/model/gguf.h"
#include "common/model/model.h"

#define CHECKPOINT_INDEX_MAX (64u << 20) /* bytes of model.safetensors.index.json */

/* model.safetensors.index.json: `map` is its weight_map (tensor name to shard's file name, all of them
 * strings and plain file names); shards holds each file once, sorted by name. */
struct checkpoint_index {
    json_t *json, *map; /* map is borrowed from json */
    struct model_shard *shards;
    uint32_t shard_count;
};
HELM_MUST_CHECK int checkpoint_parse_index(const char *what, const char *text, size_t length,
                                           struct checkpoint_index *index, struct helm_err *err);
void checkpoint_index_free(struct checkpoint_index *index);

/* The table of tensors, of a model that has its configuration and shards: empty; with one tensor of a file
 * more, whose data begin at data_offset; complete. */
struct safetensors_entry;
/* How a checkpoint is read: its data may be missing; with the layer that makes drafts. */
enum checkpoint_how { CHECKPOINT_HEADERS = 1u << 0, CHECKPOINT_DRAFTS = 1u << 1 };
HELM_MUST_CHECK int checkpoint_start(struct model *model, struct helm_err *err);
HELM_MUST_CHECK int checkpoint_take(struct model *model, uint32_t shard, uint64_t data_offset,
                                    const struct safetensors_entry *entry, struct helm_err *err);
/* Where a (role, layer) stands in model->by_role; and one tensor more of the model's table, which it must not
 * have yet. (take.c, as checkpoint_take) */
size_t checkpoint_slot(const struct model_config *config, enum tensor_role role, int32_t layer);
HELM_MUST_CHECK int checkpoint_add(struct model *model, const struct model_tensor *tensor,
                                   struct helm_err *err);
/* HELM_E_NOT_FOUND: file `number` of the model's is not there, as a download that ended early leaves it. */
int checkpoint_missing_file(const struct model *model, uint32_t number, struct helm_err *err);
HELM_MUST_CHECK int checkpoint_finish(struct model *model, struct helm_err *err);
/* The path as given; also the folder, unless that is known. */
HELM_MUST_CHECK int checkpoint_name(struct model *model, const char *path, struct helm_err *err);

/* *found: `path` names a GGUF file, the first of several, or a folder with one and no safetensors file; else
 * *model is zeroed. `how`: a set of enum checkpoint_how. On failure *model is zeroed. */
HELM_MUST_CHECK int gguf_model_read(const char *path, unsigned how, bool *found, struct model *model,
                                    struct helm_err *err);
/* The first of the layers after the last one, which makes drafts, becomes the configuration's last layer.
 * HELM_E_UNSUPPORTED: there is none, or none that HELM knows. */
HELM_MUST_CHECK int checkpoint_add_drafts(struct model_config *config, struct helm_err *err);

/* ---- config.json and generation_config.json ---- */

#define CONFIG_BYTES_MAX (1u << 20) /* of either file */

#define GGUF_ROPE_THETA 10000.0 /* of files that do not say one */

struct arch;
/* Sets the meanings of absent keys: where reading begins. */
void config_start(const struct arch *arch, bool gguf, struct model_config *config);
/* rope_config.c: both generations of RoPE keys of config.json, `max_context` already read, which YaRN may
 * extend. Values that the file does not have are as in config->rope[0]. */
HELM_MUST_CHECK int config_read_rope(const json_t *root, struct model_config *config, struct helm_err *err);

/* Adds the end-of-sequence ids (and the beginning one, if config.json had none) of a generation_config.json.
 */
HELM_MUST_CHECK int config_add_generation(const char *what, const char *text, size_t length,
                                          struct model_config *config, struct helm_err *err);

/* ---- the headers of a model in GGUF files, one or several that it is split into ---- */

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
