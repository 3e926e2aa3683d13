/* model.safetensors.index.json: which shard holds which tensor. See checkpoint.h. Called by checkpoint.c. */
#include <stdlib.h>
#include <string.h>

#include "common/base/json.h"
#include "common/model/checkpoint.h"

static int check_file_name(const char *tensor, const char *file, struct helm_err *err)
{
    static const char suffix[] = ".safetensors";
    size_t length = strlen(file), tail = sizeof suffix - 1;
    if (length >= MODEL_NAME_MAX)
        return helm_fail(err, HELM_E_LIMIT, "tensor '%.80s': a file name of %zu bytes, the limit is %d",
                         tensor, length, MODEL_NAME_MAX - 1);
    for (size_t i = 0; i < length; i++) {
        unsigned char c = (unsigned char)file[i];
        if (c < 0x20 || c == 0x7f || c == '/')
            return helm_fail(err, HELM_E_FORMAT, "tensor '%.80s': its file name has the byte 0x%02x at %zu",
                             tensor, c, i);
    }
    if (length <= tail || strcmp(file + length - tail, suffix) != 0)
        return helm_fail(err, HELM_E_FORMAT, "tensor '%.80s': '%s' is not the name of a .safetensors file",
                         tensor, file);
    return 0;
}

static int compare_names(const void *left, const void *right)
{
    return strcmp(((const struct model_shard *)left)->file, ((const struct model_shard *)right)->file);
}

/* Every file name of the map once, sorted. Tensors come in thousands, files in dozens, so a JSON object is
 * the set. */
static int collect_shards(struct checkpoint_index *index, struct helm_err *err)
{
    int rc = 0;
    const char *name;
    json_t *value, *set = json_object();
    if (!set) return helm_fail(err, HELM_E_NOMEM, "no memory for the list of shards");
    json_object_foreach(index->map, name, value)
    {
        const char *file = json_string_value(value);
        if (!file) {
            rc = helm_fail(err, HELM_E_FORMAT, "tensor '%.80s': its file name is not a string", name);
            goto out;
        }
        rc = check_file_name(name, file, err);
        if (rc) goto out;
        if (json_object_set_new(set, file, json_true())) {
            rc = helm_fail(err, HELM_E_FORMAT, "tensor '%.80s': its file name is not text", name);
            goto out;
        }
        if (json_object_size(set) > MODEL_SHARDS_MAX) {
            rc = helm_fail(err, HELM_E_LIMIT, "more than %d shards", MODEL_SHARDS_MAX);
            goto out;
        }
    }
    index->shards = calloc(json_object_size(set), sizeof *index->shards);
    if (!index->shards) {
        rc = helm_fail(err, HELM_E_NOMEM, "no memory for %zu shards", json_object_size(set));
        goto out;
    }
    json_object_foreach(set, name, value) strcpy(index->shards[index->shard_count++].file, name);
    qsort(index->shards, index->shard_count, sizeof *index->shards, compare_names);
out:
    json_decref(set);
    return rc;
}

int checkpoint_parse_index(const char *what, const char *text, size_t length, struct checkpoint_index *index,
                           struct helm_err *err)
{
    memset(index, 0, sizeof *index);
    int rc = json_parse_bounded(what, text, length, CHECKPOINT_INDEX_MAX, &index->json, err);
    if (rc) return rc;
    index->map = json_object_get(index->json, "weight_map");
    if (!json_is_object(index->map) || json_object_size(index->map) == 0)
        rc = helm_fail(err, HELM_E_FORMAT, "'weight_map' is not an object with members");
    else if (json_object_size(index->map) > MODEL_ENTRIES_MAX)
        rc = helm_fail(err, HELM_E_LIMIT, "'weight_map' has %zu tensors, the limit is %u",
                       json_object_size(index->map), MODEL_ENTRIES_MAX);
    else
        rc = collect_shards(index, err);
    if (rc) {
        helm_err_prefix(err, "%s", what);
        checkpoint_index_free(index);
    }
    return rc;
}

void checkpoint_index_free(struct checkpoint_index *index)
{
    free(index->shards);
    json_decref(index->json);
    memset(index, 0, sizeof *index);
}
