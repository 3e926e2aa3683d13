/* The pieces of reading a checkpoint that tests and fuzz targets enter by themselves. Private to
 * common/model. */
#ifndef HELM_COMMON_MODEL_CHECKPOINT_H
#define HELM_COMMON_MODEL_CHECKPOINT_H

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

#endif
