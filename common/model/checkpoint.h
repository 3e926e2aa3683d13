/* The pieces of reading a checkpoint that tests and fuzz targets enter by themselves. Private to
 * common/model. */
#pragma once

#include <jansson.h>

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
