/* Builds small checkpoints on disk for tests, sound or broken on purpose.
 *
 * A checkpoint is first a JSON list of {name, dtype, shape, file}, which a test may change at will; then it
 * is laid out and written with zeros for weights. With one file named model.safetensors no index is written.
 */
#pragma once

#include <dirent.h>
#include <jansson.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/model/arch.h"
#include "common/model/fused.h"
#include "common/model/model.h"

struct built {
    char folder[64];
    json_t *config;  /* config.json */
    json_t *tensors; /* the list */
    json_t *map;     /* weight_map of the index; NULL: made from the list */
};

static inline void built_text(const struct built *b, const char *name, const char *text)
{
    char path[256];
    snprintf(path, sizeof path, "%s/%s", b->folder, name);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs(text, file);
    fclose(file);
}

static inline json_t *built_tensor(const char *name, const char *dtype, json_t *shape, const char *file)
{
    return json_pack("{s:s, s:s, s:o, s:s}", "name", name, "dtype", dtype, "shape", shape, "file", file);
}

static inline void built_add(struct built *b, const struct model_config *config, enum tensor_role role,
                             int layer, const char *file)
{
    char name[MODEL_NAME_MAX];
    uint64_t rows, cols;
    if (!model_expects(config, role, layer) || !model_expected_shape(config, role, layer, &rows, &cols))
        return;
    bool is_fused = false;
    const struct fused_tensor *fused;
    for (uint32_t i = 0; (fused = fused_of(config, i)); i++) {
        const bool first = fused->role[0] == role;
        uint64_t shape[4];
        is_fused |= first || fused->role[1] == role;
        if (!first) continue;
        const bool bytes = fused->part == FUSED_BLOCKS || fused->part == FUSED_SCALES;
        json_t *list = json_array();
        for (uint32_t d = 0, rank = fused_shape(config, fused, shape); d < rank; d++)
            json_array_append_new(list, json_integer((json_int_t)shape[d]));
        snprintf(name, sizeof name, "model.layers.%d.%s", layer, fused->name);
        json_array_append_new(b->tensors, built_tensor(name, bytes ? "U8" : "BF16", list, file));
    }
    if (is_fused) return;
    const uint32_t parts = model_tensor_parts(config, role);
    for (uint32_t i = parts; i-- > 0;) { /* in an order of no meaning */
        model_part_name(config, role, layer, i, name);
        json_t *shape = arch_role_rank(role, false) == 1
                            ? json_pack("[I]", (json_int_t)cols)
                            : json_pack("[I, I]", (json_int_t)(rows / parts), (json_int_t)cols);
        json_array_append_new(b->tensors, built_tensor(name, "BF16", shape, file));
    }
}

/* A fresh folder and the list of a sound checkpoint for `config_text`; layer i goes to files[i % file_count].
 */
static inline void built_start(struct built *b, const char *config_text, const char *const *files,
                               size_t file_count)
{
    struct model_config config;
    struct helm_err err = {0};
    strcpy(b->folder, "/tmp/helm-test-model-XXXXXX");
    assert_non_null(mkdtemp(b->folder));
    b->config = json_loads(config_text, 0, NULL);
    b->tensors = json_array();
    b->map = NULL;
    assert_non_null(b->config);
    if (model_config_parse("config", config_text, strlen(config_text), &config, &err))
        fail_msg("%s", err.text);
    for (int r = 0; r < TENSOR_ROLE_COUNT; r++) {
        if (!arch_role_per_layer((enum tensor_role)r))
            built_add(b, &config, (enum tensor_role)r, -1, files[0]);
        else
            for (uint32_t i = 0; i < config.layers; i++)
                built_add(b, &config, (enum tensor_role)r, (int)i, files[i % file_count]);
    }
    model_config_free(&config);
}

static inline json_t *built_find(struct built *b, const char *name)
{
    for (size_t i = 0; i < json_array_size(b->tensors); i++) {
        json_t *tensor = json_array_get(b->tensors, i);
        if (strcmp(json_string_value(json_object_get(tensor, "name")), name) == 0) return tensor;
    }
    fail_msg("the built checkpoint has no %s", name);
    return NULL;
}

static inline void built_remove(struct built *b, const char *name)
{
    json_t *found = built_find(b, name);
    for (size_t i = 0; i < json_array_size(b->tensors); i++)
        if (json_array_get(b->tensors, i) == found) {
            json_array_remove(b->tensors, i);
            return;
        }
}

static inline uint64_t built_bytes(const json_t *tensor)
{
    const char *dtype = json_string_value(json_object_get(tensor, "dtype"));
    uint64_t bytes = strcmp(dtype, "F32") == 0   ? 4
                     : strcmp(dtype, "I64") == 0 ? 8
                     : strcmp(dtype, "U8") == 0  ? 1
                                                 : 2;
    const json_t *shape = json_object_get(tensor, "shape");
    for (size_t i = 0; i < json_array_size(shape); i++)
        bytes *= (uint64_t)json_integer_value(json_array_get(shape, i));
    return bytes;
}

static inline void built_write_shard(const struct built *b, const char *file)
{
    json_t *header = json_object();
    uint64_t at = 0;
    for (size_t i = 0; i < json_array_size(b->tensors); i++) {
        json_t *tensor = json_array_get(b->tensors, i);
        if (strcmp(json_string_value(json_object_get(tensor, "file")), file) != 0) continue;
        uint64_t bytes = built_bytes(tensor);
        json_object_set_new(header, json_string_value(json_object_get(tensor, "name")),
                            json_pack("{s:O, s:O, s:[I, I]}", "dtype", json_object_get(tensor, "dtype"),
                                      "shape", json_object_get(tensor, "shape"), "data_offsets",
                                      (json_int_t)at, (json_int_t)(at + bytes)));
        at += bytes;
    }
    char *text = json_dumps(header, JSON_COMPACT), path[256];
    uint64_t length = strlen(text);
    snprintf(path, sizeof path, "%s/%s", b->folder, file);
    FILE *out = fopen(path, "wb");
    assert_non_null(out);
    fwrite(&length, 8, 1, out);
    fwrite(text, 1, length, out);
    fclose(out);
    assert_int_equal(truncate(path, (off_t)(8 + length + at)), 0);
    free(text);
    json_decref(header);
}

static inline void built_write(struct built *b)
{
    char *text = json_dumps(b->config, 0);
    built_text(b, "config.json", text);
    free(text);
    json_t *map = json_object();
    for (size_t i = 0; i < json_array_size(b->tensors); i++) {
        json_t *tensor = json_array_get(b->tensors, i), *file = json_object_get(tensor, "file");
        json_object_set(map, json_string_value(json_object_get(tensor, "name")), file);
        built_write_shard(b, json_string_value(file));
    }
    char path[256];
    snprintf(path, sizeof path, "%s/model.safetensors", b->folder);
    if (access(path, F_OK)) {
        json_t *root = json_pack("{s:O}", "weight_map", b->map ? b->map : map);
        text = json_dumps(root, 0);
        built_text(b, "model.safetensors.index.json", text);
        free(text);
        json_decref(root);
    }
    json_decref(map);
}

/* Removes the folder and everything in it. */
static inline void built_end(struct built *b)
{
    DIR *dir = opendir(b->folder);
    char path[512];
    assert_non_null(dir);
    for (struct dirent *e; (e = readdir(dir));) {
        snprintf(path, sizeof path, "%s/%s", b->folder, e->d_name);
        unlink(path);
    }
    closedir(dir);
    rmdir(b->folder);
    json_decref(b->config);
    json_decref(b->tensors);
    json_decref(b->map);
}
