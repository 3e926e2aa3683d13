/* Fuzz target: model.safetensors.index.json. An accepted index names plain files, each once, in order. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "common/model/checkpoint.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct checkpoint_index index;
    struct helm_err err = {0};
    if (checkpoint_parse_index("fuzz", (const char *)data, size, &index, &err) == 0) {
        if (index.shard_count == 0 || index.shard_count > MODEL_SHARDS_MAX) abort();
        for (uint32_t i = 0; i < index.shard_count; i++) {
            if (strchr(index.shards[i].file, '/') || strlen(index.shards[i].file) <= strlen(".safetensors"))
                abort();
            if (i && strcmp(index.shards[i - 1].file, index.shards[i].file) >= 0) abort();
        }
    } else if (!err.code || !err.text[0]) {
        abort();
    }
    checkpoint_index_free(&index);
    return 0;
}
