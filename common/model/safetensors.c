/* Parsing and checking of safetensors headers. See safetensors.h. Never reads a tensor's bytes. */
#include "common/model/safetensors.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "common/base/file.h"
#include "common/base/json.h"
#include "common/base/units.h"
#include "common/model/checkpoint.h"

/* Bytes of a value of the types that are no format of weights, so that buffers HELM ignores can be
 * measured. */
static const struct {
    const char *name;
    uint32_t bytes;
} other_types[] = {
    {"F64", 8}, {"BOOL", 1}, {"I8", 1},  {"U8", 1},      {"I16", 2},     {"U16", 2},     {"I32", 4},
    {"U32", 4}, {"I64", 8},  {"U64", 8}, {"F8_E4M3", 1}, {"F8_E5M2", 1}, {"F8_E8M0", 1},
};

/* How a tensor's values are stored: blocks of `values` neighbours of a row, in `bytes` bytes each. */
struct block {
    uint32_t values, bytes;
};

/* Names end up in messages and on terminals: printable ASCII without blanks only. */
static int check_name(const char *name, struct helm_err *err)
{
    size_t length = strlen(name);
    if (length == 0) return helm_fail(err, HELM_E_FORMAT, "a tensor has an empty name");
    if (length >= MODEL_NAME_MAX)
        return helm_fail(err, HELM_E_LIMIT, "a tensor's name has %zu bytes, the limit is %d", length,
                         MODEL_NAME_MAX - 1);
    for (size_t i = 0; i < length; i++) {
        unsigned char c = (unsigned char)name[i];
        if (c <= 0x20 || c >= 0x7f)
            return helm_fail(err, HELM_E_FORMAT, "a tensor's name has the byte 0x%02x at %zu", c, i);
    }
    return 0;
}

static int read_dtype(const json_t *info, struct safetensors_entry *entry, struct block *block,
                      struct helm_err *err)
{
    int rc = json_get_string(info, "dtype", true, &entry->dtype_text, err);
    if (rc) return rc;
    entry->format = tensor_format_of_file(entry->dtype_text);
    if (entry->format < FORMAT_COUNT) {
        const struct tensor_format_traits *traits = tensor_format_of(entry->format);
        *block = traits->file_values ? (struct block){traits->file_values, traits->file_bytes}
                                     : (struct block){traits->block_values, traits->block_bytes};
        return 0;
    }
    for (size_t i = 0; i < sizeof other_types / sizeof *other_types; i++) {
        if (strcmp(entry->dtype_text, other_types[i].name) != 0) continue;
        *block = (struct block){1, other_types[i].bytes};
        return 0;
    }
    return helm_fail(err, HELM_E_UNSUPPORTED, "dtype '%.20s' is unknown", entry->dtype_text);
}

/* A list member that is a whole number, not negative. */
static int read_number(const json_t *list, size_t index, const char *key, uint64_t *number,
                       struct helm_err *err)
{
    const json_t *value = json_array_get(list, index);
    if (!json_is_integer(value) || json_integer_value(value) < 0)
        return helm_fail(err, HELM_E_FORMAT, "'%s' entry %zu is not a whole number of 0 or more", key, index);
    *number = (uint64_t)json_integer_value(value);
    return 0;
}

static int read_shape(const json_t *info, struct safetensors_entry *entry, struct block block,
                      struct helm_err *err)
{
    const json_t *shape = json_object_get(info, "shape");
    if (!json_is_array(shape)) return helm_fail(err, HELM_E_FORMAT, "'shape' is not a list");
    if (json_array_size(shape) > SAFETENSORS_RANK_MAX)
        return helm_fail(err, HELM_E_LIMIT, "'shape' has %zu dimensions, the limit is %d",
                         json_array_size(shape), SAFETENSORS_RANK_MAX);
    entry->rank = (uint32_t)json_array_size(shape);
    uint64_t row = 1; /* a number without dimensions is a row of one */
    entry->bytes = block.bytes;
    for (uint32_t i = 0; i < entry->rank; i++) {
        int rc = read_number(shape, i, "shape", &entry->shape[i], err);
        if (rc) return rc;
        row = entry->shape[i];
        if (units_mul(entry->bytes, i + 1 < entry->rank ? row : row / block.values, &entry->bytes))
            return helm_fail(err, HELM_E_LIMIT, "the product of 'shape' overflows 64 bits");
    }
    if (row % block.values)
        return helm_fail(err, HELM_E_FORMAT, "rows of %llu values are no whole blocks of %u, as %s needs",
                         (unsigned long long)row, block.values, entry->dtype_text);
    return 0;
}

static int read_offsets(const json_t *info, struct safetensors_entry *entry, struct helm_err *err)
{
    const json_t *offsets = json_object_get(info, "data_offsets");
    uint64_t end = 0;
    if (!json_is_array(offsets) || json_array_size(offsets) != 2)
        return helm_fail(err, HELM_E_FORMAT, "'data_offsets' is not a list of two numbers");
    int rc = read_number(offsets, 0, "data_offsets", &entry->begin, err);
    if (!rc) rc = read_number(offsets, 1, "data_offsets", &end, err);
    if (rc) return rc;
    if (end < entry->begin)
        return helm_fail(err, HELM_E_FORMAT, "'data_offsets' end at %llu before they begin at %llu",
                         (unsigned long long)end, (unsigned long long)entry->begin);
    if (end - entry->begin != entry->bytes)
        return helm_fail(err, HELM_E_FORMAT, "'data_offsets' span %llu bytes, dtype and shape need %llu",
                         (unsigned long long)(end - entry->begin), (unsigned long long)entry->bytes);
    return 0;
}

static int read_entry(const char *name, const json_t *info, struct safetensors_entry *entry,
                      struct helm_err *err)
{
    struct block block = {0};
    int rc = check_name(name, err);
    if (rc) return rc;
    entry->name = name;
    if (!json_is_object(info)) rc = helm_fail(err, HELM_E_FORMAT, "its description is not an object");
    if (!rc) rc = read_dtype(info, entry, &block, err);
    if (!rc) rc = read_shape(info, entry, block, err);
    if (!rc) rc = read_offsets(info, entry, err);
    if (rc) helm_err_prefix(err, "tensor '%s'", name);
    return rc;
}

static int compare_entries(const void *left, const void *right)
{
    const struct safetensors_entry *a = left, *b = right;
    if (a->begin != b->begin) return a->begin < b->begin ? -1 : 1;
    if (a->bytes != b->bytes)
        return a->bytes < b->bytes ? -1 : 1; /* empty tensors before the one they touch */
    return strcmp(a->name, b->name);
}

/* The tensors must tile the data: each begins where the one before it ended, the last ends with the file.
 * `begin`: bytes of the file before them. */
static int check_tiling(const struct safetensors *header, uint64_t begin, uint64_t data_bytes,
                        struct helm_err *err)
{
    uint64_t at = 0;
    const char *before = "the header";
    for (uint32_t i = 0; i < header->count; i++) {
        const struct safetensors_entry *entry = &header->entries[i];
        if (entry->begin < at)
            return helm_fail(err, HELM_E_FORMAT,
                             "tensor '%s' begins at %llu and overlaps %s, which ends at %llu", entry->name,
                             (unsigned long long)entry->begin, before, (unsigned long long)at);
        if (entry->begin > at)
            return helm_fail(err, HELM_E_FORMAT, "a gap of %llu bytes between %s and tensor '%s'",
                             (unsigned long long)(entry->begin - at), before, entry->name);
        at = entry->begin + entry->bytes;
        before = entry->name;
    }
    if (at > data_bytes)
        return file_cut_short("the file is cut short", begin + data_bytes, begin + at, false, err);
    if (at != data_bytes && data_bytes != SAFETENSORS_BYTES_UNKNOWN)
        return helm_fail(err, HELM_E_FORMAT, "%llu bytes follow the last tensor",
                         (unsigned long long)(data_bytes - at));
    return 0;
}

int safetensors_parse(const char *what, const char *text, size_t length, uint64_t data_bytes,
                      struct safetensors *header, struct helm_err *err)
{
    memset(header, 0, sizeof *header);
    int rc = json_parse_bounded(what, text, length, SAFETENSORS_HEADER_MAX, &header->json, err);
    if (rc) return rc;
    if (!json_is_object(header->json)) {
        rc = helm_fail(err, HELM_E_FORMAT, "the header is not a JSON object");
        goto out;
    }
    size_t members = json_object_size(header->json);
    if (members > MODEL_ENTRIES_MAX) {
        rc = helm_fail(err, HELM_E_LIMIT, "%zu tensors, the limit is %u", members, MODEL_ENTRIES_MAX);
        goto out;
    }
    header->entries = calloc(members ? members : 1, sizeof *header->entries);
    if (!header->entries) {
        rc = helm_fail(err, HELM_E_NOMEM, "no memory for %zu tensors", members);
        goto out;
    }
    const char *name;
    json_t *info;
    json_object_foreach(header->json, name, info)
    {
        if (strcmp(name, "__metadata__") == 0) continue; /* free text, of no use here */
        rc = read_entry(name, info, &header->entries[header->count], err);
        if (rc) goto out;
        header->count++;
    }
    qsort(header->entries, header->count, sizeof *header->entries, compare_entries);
    rc = check_tiling(header, 8 + (uint64_t)length, data_bytes, err);
out:
    if (rc) {
        helm_err_prefix(err, "%s", what);
        safetensors_free(header);
    }
    return rc;
}

int safetensors_header_length(const char *what, const uint8_t word[8], uint64_t file_bytes, uint64_t *length,
                              struct helm_err *err)
{
    uint64_t value = 0;
    *length = 0;
    for (int i = 7; i >= 0; i--) value = value << 8 | word[i];
    if (value > SAFETENSORS_HEADER_MAX)
        return helm_fail(err, HELM_E_LIMIT, "%s: a header of %llu bytes, the limit is %u", what,
                         (unsigned long long)value, SAFETENSORS_HEADER_MAX);
    if (value > file_bytes - 8) return file_cut_short(what, file_bytes, 8 + value, true, err);
    *length = value;
    return 0;
}

int safetensors_read(int fd, uint64_t bytes, const char *what, struct safetensors *header,
                     struct helm_err *err)
{
    uint8_t word[8];
    uint64_t length = 0;
    struct stat st;
    char *text = NULL;
    memset(header, 0, sizeof *header);
    const uint64_t there =
        bytes == SAFETENSORS_BYTES_UNKNOWN && fstat(fd, &st) == 0 ? (uint64_t)st.st_size : bytes;
    if (there < sizeof word) return file_cut_short(what, there, sizeof word, true, err);
    int rc = file_pread_all(fd, word, sizeof word, 0, what, err);
    if (!rc) rc = safetensors_header_length(what, word, there, &length, err);
    if (rc) return rc;
    text = malloc((size_t)length + 1);
    if (!text)
        return helm_fail(err, HELM_E_NOMEM, "%s: no memory for a header of %llu bytes", what,
                         (unsigned long long)length);
    rc = file_pread_all(fd, text, (size_t)length, sizeof word, what, err);
    uint64_t data_bytes =
        bytes == SAFETENSORS_BYTES_UNKNOWN ? SAFETENSORS_BYTES_UNKNOWN : bytes - sizeof word - length;
    if (!rc) rc = safetensors_parse(what, text, (size_t)length, data_bytes, header, err);
    if (!rc) header->data_offset = sizeof word + length;
    free(text);
    return rc;
}

void safetensors_free(struct safetensors *header)
{
    free(header->entries);
    json_decref(header->json);
    memset(header, 0, sizeof *header);
}

/* ---- the index of several files ---- */

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
