/* A checkpoint's folder: configuration, index, the header of every shard; from them the table of tensors.
 *
 * Called through model.h (model_read). Order: config.json -> model.safetensors or the index -> each shard's
 * header -> each tensor against its role's shape -> every tensor the operations need is there. Weights are
 * never read. */
#include "common/model/checkpoint.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/file.h"
#include "common/model/able.h"
#include "common/model/arch.h"
#include "common/model/fused.h"
#include "common/model/hub.h"
#include "common/model/safetensors.h"
#include "common/model/scaled.h"

#define SINGLE_FILE "model.safetensors"
#define INDEX_FILE  "model.safetensors.index.json"

/* Tensors that nothing is read from, there or not: computed buffers, and a tied model's head. */
static bool is_unused(const struct model_config *config, const char *name)
{
    struct arch_match what;
    return arch_ignores_name(name) || arch_skips_name(config, name) ||
           (config->tied_head && arch_match(arch_of(config), name, false, &what) && what.role == TENSOR_HEAD);
}

/* The file that the index gives a shard's tensor must be this shard; `found` counts the map's tensors met so
 * far, less the unused ones. */
static int check_index(const struct model_config *config, const struct checkpoint_index *index,
                       const struct model_shard *shard, const char *name, size_t *found, struct helm_err *err)
{
    if (!index->map) return 0;
    const char *file = json_string_value(json_object_get(index->map, name));
    if (!file) {
        if (arch_ignores_name(name) || arch_skips_name(config, name)) return 0;
        return helm_fail(err, HELM_E_MISMATCH, "tensor '%s' is not in %s", name, INDEX_FILE);
    }
    if (strcmp(file, shard->file) != 0)
        return helm_fail(err, HELM_E_MISMATCH, "tensor '%s': %s says it is in %s", name, INDEX_FILE, file);
    if (!is_unused(config, name)) ++*found;
    return 0;
}

/* A file that may end after its header is as long as the header says, and not longer. */
static int check_length(const struct safetensors *header, struct model_shard *shard, struct helm_err *err)
{
    const struct safetensors_entry *last = header->count ? &header->entries[header->count - 1] : NULL;
    uint64_t bytes = header->data_offset + (last ? last->begin + last->bytes : 0);
    if (shard->bytes > bytes)
        return helm_fail(err, HELM_E_FORMAT, "%s: %llu bytes follow the last tensor", shard->file,
                         (unsigned long long)(shard->bytes - bytes));
    shard->bytes = bytes;
    return 0;
}

int checkpoint_missing_file(const struct model *model, uint32_t number, struct helm_err *err)
{
    return helm_fail(err, HELM_E_NOT_FOUND,
                     "%s: no such file: an incomplete download, file %u of %u is missing",
                     model->shards[number].file, number + 1, model->shard_count);
}

static int read_shard(struct model *model, uint32_t number, bool headers,
                      const struct checkpoint_index *index, size_t *found, struct helm_err *err)
{
    struct model_shard *shard = &model->shards[number];
    struct safetensors header = {0};
    int fd = -1;
    int rc = file_open_inside(model->folder, shard->file, &fd, &shard->bytes, err);
    if (rc == HELM_E_NOT_FOUND && model->shard_count > 1) return checkpoint_missing_file(model, number, err);
    if (rc) return rc;
    rc = safetensors_read(fd, headers ? SAFETENSORS_BYTES_UNKNOWN : shard->bytes, shard->file, &header, err);
    close(fd);
    if (rc) return rc;
    if (headers) rc = check_length(&header, shard, err);
    for (uint32_t i = 0; i < header.count && !rc; i++) {
        rc = check_index(&model->config, index, shard, header.entries[i].name, found, err);
        if (!rc) rc = checkpoint_take(model, number, header.data_offset, &header.entries[i], err);
    }
    safetensors_free(&header);
    if (rc) helm_err_prefix(err, "%s", shard->file);
    return rc;
}

/* The map's tensors, less the unused ones. */
static size_t count_indexed(const struct model_config *config, const struct checkpoint_index *index)
{
    const char *name;
    json_t *file;
    size_t count = 0;
    json_object_foreach(index->map, name, file) count += !is_unused(config, name);
    return count;
}

static bool has_tensor(const struct model *model, const char *in_file)
{
    struct arch_match what;
    char name[MODEL_NAME_MAX];
    const struct arch *arch = arch_of(&model->config);
    /* scales are missed by their matrix */
    if (scaled_name_of(&model->config, in_file, name) != SCALED_MATRIX) return true;
    const struct fused_tensor *fused = arch_match_fused(arch, name, false, &what.layer);
    if (fused) {
        if (what.layer >= (int32_t)model->config.layers) return false;
        const uint32_t at = model->by_role[checkpoint_slot(&model->config, fused->role[0], what.layer)];
        const struct model_tensor *there = at ? &model->tensors[at - 1] : NULL;
        return there && (fused->part == FUSED_SCALES ? there->scales.offset : there->offset);
    }
    if (!arch_match(arch, name, false, &what) || what.layer >= (int32_t)model->config.layers) return false;
    const uint32_t index = model->by_role[checkpoint_slot(&model->config, what.role, what.layer)];
    if (!index || what.expert < 0) return index > 0;
    const struct model_tensor *t = &model->tensors[index - 1];
    return (uint32_t)what.expert < t->piece_count && model->pieces[t->piece + (uint32_t)what.expert].offset;
}

/* The first tensor of the map that its shard does not have. Called when some are known to be missing. */
static int fail_unindexed(const struct model *model, const struct checkpoint_index *index,
                          struct helm_err *err)
{
    const char *name;
    json_t *file;
    json_object_foreach(index->map, name, file)
    {
        if (is_unused(&model->config, name) || has_tensor(model, name)) continue;
        return helm_fail(err, HELM_E_MISMATCH, "%s says tensor '%.150s' is in %s, which does not have it",
                         INDEX_FILE, name, json_string_value(file));
    }
    return helm_fail(err, HELM_E_MISMATCH, "%s names tensors that its shards do not have", INDEX_FILE);
}

static int check_complete(const struct model *model, struct helm_err *err)
{
    const struct model_config *config = &model->config;
    char name[MODEL_NAME_MAX];
    uint64_t rows, cols;
    for (int r = 0; r < TENSOR_ROLE_COUNT; r++) {
        enum tensor_role role = (enum tensor_role)r;
        if (!model_expected_shape(config, role, -1, &rows, &cols)) continue;
        int32_t first = arch_role_per_layer(role) ? 0 : -1;
        int32_t last = arch_role_per_layer(role) ? (int32_t)config->layers - 1 : -1;
        for (int32_t layer = first; layer <= last; layer++) {
            if (!model_expects(config, role, layer)) continue;
            const uint32_t index = model->by_role[checkpoint_slot(config, role, layer)];
            const struct model_tensor *t = index ? &model->tensors[index - 1] : NULL;
            uint32_t part = 0;
            while (t && part < t->piece_count && model->pieces[t->piece + part].offset) part++;
            const bool apart = t && t->stored == STORED_BLOCKS_APART;
            if (apart && !(t->offset && t->scales.offset))
                return helm_fail(err, HELM_E_NOT_FOUND, "tensor '%s' is there, but without its %s", t->name,
                                 t->offset ? "scales" : "blocks");
            if (t && part == t->piece_count) continue;
            model_part_name(config, role, layer, part, name);
            return helm_fail(err, HELM_E_NOT_FOUND, "tensor '%s' is missing", name);
        }
    }
    return 0;
}

static uint32_t expected_count(const struct model_config *config)
{
    uint32_t count = 0;
    uint64_t rows, cols;
    for (int r = 0; r < TENSOR_ROLE_COUNT; r++)
        if (model_expected_shape(config, (enum tensor_role)r, -1, &rows, &cols))
            count += arch_role_per_layer((enum tensor_role)r) ? config->layers : 1;
    return count;
}

static int compare_tensors(const void *left, const void *right)
{
    const struct model_tensor *a = left, *b = right;
    if (a->shard != b->shard) return a->shard < b->shard ? -1 : 1;
    if (a->offset != b->offset) return a->offset < b->offset ? -1 : 1;
    return a->turn < b->turn ? -1 : a->turn > b->turn;
}

static void sort_and_sum(struct model *model)
{
    qsort(model->tensors, model->tensor_count, sizeof *model->tensors, compare_tensors);
    for (uint32_t i = 0; i < model->tensor_count; i++) {
        const struct model_tensor *tensor = &model->tensors[i];
        model->by_role[checkpoint_slot(&model->config, tensor->role, tensor->layer)] = i + 1;
        model->weight_bytes += tensor->bytes; /* bounded by the limits of model.h: below 2^62 */
        model->parameter_count += tensor->rows * tensor->cols;
    }
}

/* Which files: model.safetensors when it exists, else what the index lists. */
static int list_shards(const char *folder, struct model *model, struct checkpoint_index *index,
                       struct helm_err *err)
{
    int fd = -1;
    uint64_t bytes;
    char *text = NULL;
    size_t length = 0;
    int rc = file_open_inside(folder, SINGLE_FILE, &fd, &bytes, err);
    if (!rc) {
        close(fd);
        model->shards = calloc(1, sizeof *model->shards);
        if (!model->shards) return helm_fail(err, HELM_E_NOMEM, "no memory for the list of shards");
        strcpy(model->shards[0].file, SINGLE_FILE);
        model->shard_count = 1;
        return 0;
    }
    if (rc != HELM_E_NOT_FOUND) return rc;
    rc = file_read_inside(folder, INDEX_FILE, CHECKPOINT_INDEX_MAX, &text, &length, err);
    if (rc == HELM_E_NOT_FOUND)
        return helm_fail(err, rc, "neither %s nor %s is there", SINGLE_FILE, INDEX_FILE);
    if (rc) return rc;
    rc = checkpoint_parse_index(INDEX_FILE, text, length, index, err);
    free(text);
    if (rc) return rc;
    model->shards = index->shards;
    model->shard_count = index->shard_count;
    index->shards = NULL;
    index->shard_count = 0;
    return 0;
}

/* Tensors that are parts of others. */
static uint64_t config_pieces(const struct model_config *config)
{
    uint64_t count = 0;
    for (int r = 0; r < TENSOR_ROLE_COUNT; r++) {
        const uint32_t parts = model_tensor_parts(config, (enum tensor_role)r);
        for (uint32_t l = 0; parts > 1 && l < config->layers; l++)
            count += model_expects(config, (enum tensor_role)r, (int32_t)l) ? parts : 0;
    }
    for (const struct fused_tensor *f = arch_of(config)->fused; f && f->roles; f++) {
        uint64_t rows, cols;
        for (uint32_t k = f->part == FUSED_HEADS; f->run && k < f->roles; k++)
            for (uint32_t l = 0;
                 l < config->layers && model_expected_shape(config, f->role[k], (int32_t)l, &rows, &cols);
                 l++)
                count += model_expects(config, f->role[k], (int32_t)l) ? rows / f->run(config) : 0;
    }
    return count;
}

int checkpoint_start(struct model *model, struct helm_err *err)
{
    const bool scaled = model->config.gguf || model->config.scaled;
    const uint32_t capacity = expected_count(&model->config);
    model->tensors = calloc(capacity, sizeof *model->tensors);
    model->by_role = calloc((size_t)TENSOR_ROLE_COUNT * (model->config.layers + 1u), sizeof *model->by_role);
    const uint64_t pieces = config_pieces(&model->config) + (scaled ? capacity : 0);
    if (pieces > MODEL_TENSORS_MAX)
        return helm_fail(err, HELM_E_LIMIT, "its experts are %llu tensors, the limit is %u",
                         (unsigned long long)pieces, MODEL_TENSORS_MAX);
    if (pieces) model->pieces = calloc(pieces, sizeof *model->pieces);
    if (model->tensors && model->by_role && (model->pieces || !pieces)) return 0;
    return helm_fail(err, HELM_E_NOMEM, "no memory for %u tensors", capacity);
}

static int read_tensors(const char *folder, bool headers, struct model *model, struct helm_err *err)
{
    struct checkpoint_index index = {0};
    size_t found = 0;
    int rc = list_shards(folder, model, &index, err);
    if (rc) goto out;
    rc = checkpoint_start(model, err);
    if (rc) goto out;
    for (uint32_t i = 0; i < model->shard_count && !rc; i++)
        rc = read_shard(model, i, headers, &index, &found, err);
    if (!rc && index.map && found != count_indexed(&model->config, &index))
        rc = fail_unindexed(model, &index, err);
out:
    checkpoint_index_free(&index);
    return rc;
}

/* Rows of q and k, of which those that turn may lie interleaved in files: the first ones of a head, or with
 * latent attention the last. */
static void mark_interleaved(struct model *model)
{
    const struct model_config *c = &model->config;
    const struct arch *arch = arch_of(c);
    if (c->gguf ? !arch->gguf_interleaved : !arch->interleaved) return;
    for (uint32_t i = 0; i < model->tensor_count; i++) {
        struct model_tensor *t = &model->tensors[i];
        const bool q = t->role == TENSOR_Q || t->role == TENSOR_Q_BIAS || t->role == TENSOR_Q_B,
                   k = t->role == TENSOR_K || t->role == TENSOR_K_BIAS;
        if (q || k) t->interleaved_heads = q ? c->heads : c->kv_heads;
        if (q || k) t->interleaved_rows = c->rope[0].dims;
        if (q || k) t->interleaved_from = q ? c->latent.nope : c->latent.rank;
    }
}

int checkpoint_finish(struct model *model, struct helm_err *err)
{
    mark_interleaved(model);
    int rc = scaled_finish(model, err);
    if (!rc) rc = check_complete(model, err);
    if (rc) return rc;
    sort_and_sum(model);
    model_math_build(&model->config, &model->math);
    rc = able_check_model(&model->config, &model->math, err);
    return rc ? rc : model_units_build(model, err);
}

int checkpoint_name(struct model *model, const char *path, struct helm_err *err)
{
    model->path = strdup(path);
    if (!model->folder) model->folder = strdup(path);
    return model->path && model->folder ? 0 : helm_fail(err, HELM_E_NOMEM, "no memory for a path");
}

/* Files of weights in a folder: safetensors, or an index of such; PyTorch's. */
struct folder_has {
    bool safetensors, pickled;
};

/* False: it cannot be opened (errno). */
static bool look_in_folder(const char *folder, struct folder_has *has)
{
    static const char *const endings[] = {".bin", ".pth", ".pt"};
    *has = (struct folder_has){0};
    DIR *dir = opendir(folder);
    for (const struct dirent *entry; dir && (entry = readdir(dir));) {
        const char *dot = strrchr(entry->d_name, '.');
        has->safetensors |=
            (dot && strcmp(dot, ".safetensors") == 0) || strcmp(entry->d_name, INDEX_FILE) == 0;
        for (size_t i = 0; i < sizeof endings / sizeof *endings; i++)
            has->pickled |= dot && strcmp(dot, endings[i]) == 0;
    }
    if (dir) closedir(dir);
    return dir != NULL;
}

/* A folder without anything that is read: what is there instead. */
static int check_folder(const char *folder, struct helm_err *err)
{
    struct folder_has has;
    if (!look_in_folder(folder, &has) || has.safetensors || !has.pickled) return 0;
    return helm_fail(
        err, HELM_E_UNSUPPORTED,
        "%s has its weights in PyTorch's .bin files only, which are programs: HELM reads .safetensors and "
        "GGUF files",
        folder);
}

static int read_folder(const char *folder, unsigned how, struct model *model, struct helm_err *err)
{
    bool found;
    int rc = gguf_model_read(folder, how, &found, model, err);
    if (rc || found) return rc;
    rc = check_folder(folder, err);
    if (!rc) rc = model_read_config(folder, &model->config, err);
    if (!rc && how & CHECKPOINT_DRAFTS) rc = checkpoint_add_drafts(&model->config, err);
    if (!rc) rc = checkpoint_name(model, folder, err);
    if (rc) goto out;
    rc = read_tensors(folder, how & CHECKPOINT_HEADERS, model, err);
    if (!rc) rc = checkpoint_finish(model, err);
    if (rc) helm_err_prefix(err, "%s", folder);
out:
    if (rc) model_free(model);
    return rc;
}

static int read_path(const char *path, unsigned how, struct model *model, struct helm_err *err)
{
    char *located;
    memset(model, 0, sizeof *model);
    int rc = hub_locate(path, &located, err);
    if (!rc) rc = read_folder(located, how, model, err);
    free(located);
    return rc;
}

int model_read(const char *path, struct model *model, struct helm_err *err)
{
    return read_path(path, 0, model, err);
}

int model_read_drafting(const char *path, struct model *model, struct helm_err *err)
{
    return read_path(path, CHECKPOINT_DRAFTS, model, err);
}

/* One tensor more at the end of the only shard. */
static int add_implied(struct model *model, enum tensor_role role, int32_t layer, struct helm_err *err)
{
    struct model_tensor tensor = {.role = role,
                                  .layer = layer,
                                  .format = tensor_format_plain(model->config.dtype),
                                  .offset = model->shards[0].bytes};
    if (!model_expects(&model->config, role, layer) ||
        !model_expected_shape(&model->config, role, layer, &tensor.rows, &tensor.cols))
        return 0;
    if (arch_role_of_experts(role)) tensor.format = model->config.experts_format;
    if (!tensor_format_takes(tensor.format, tensor.rows, tensor.cols))
        return helm_fail(err, HELM_E_UNSUPPORTED, "config.json: rows of %llu values cannot be %s",
                         (unsigned long long)tensor.cols, tensor_format_name(tensor.format));
    tensor.bytes = tensor_format_bytes(tensor.format, tensor.rows, tensor.cols);
    model_tensor_name(&model->config, role, layer, tensor.name);
    model->shards[0].bytes += tensor.bytes;
    return checkpoint_add(model, &tensor, err);
}

int model_from_config(struct model_config *config, struct model *model, struct helm_err *err)
{
    memset(model, 0, sizeof *model);
    model->config = *config;
    memset(config, 0, sizeof *config);
    if (model->config.scaled) {
        const int refused =
            helm_fail(err, HELM_E_UNSUPPORTED,
                      "config.json alone does not say which matrices are %s: the headers of its "
                      "safetensors files are needed",
                      tensor_format_name(model->config.scaled));
        model_free(model);
        return refused;
    }
    model->shards = calloc(1, sizeof *model->shards);
    model->shard_count = model->shards ? 1 : 0;
    int rc = model->shards ? checkpoint_start(model, err)
                           : helm_fail(err, HELM_E_NOMEM, "no memory for the list of shards");
    if (!rc) strcpy(model->shards[0].file, SINGLE_FILE);
    if (!rc) rc = add_implied(model, TENSOR_EMBED, -1, err);
    if (!rc) rc = add_implied(model, TENSOR_POSITIONS, -1, err);
    for (int32_t layer = 0; layer < (int32_t)model->config.layers && !rc; layer++)
        for (int role = 0; role < TENSOR_ROLE_COUNT && !rc; role++)
            if (arch_role_per_layer((enum tensor_role)role))
                rc = add_implied(model, (enum tensor_role)role, layer, err);
    if (!rc) rc = add_implied(model, TENSOR_FINAL_NORM, -1, err);
    if (!rc) rc = add_implied(model, TENSOR_FINAL_NORM_BIAS, -1, err);
    if (!rc) rc = add_implied(model, TENSOR_HEAD, -1, err);
    if (!rc) rc = checkpoint_finish(model, err);
    if (rc) model_free(model);
    return rc;
}

static int read_headers(const char *folder, unsigned how, struct model *model, bool *derived,
                        struct helm_err *err)
{
    struct model_config config = {0};
    struct folder_has has;
    bool found = false;
    int rc = gguf_model_read(folder, how, &found, model, err);
    if (rc || found) return rc;
    if (!look_in_folder(folder, &has)) return helm_fail_errno(err, "%s", folder);
    if (has.safetensors) return read_folder(folder, how, model, err);
    rc = model_read_config(folder, &config, err);
    if (!rc && how & CHECKPOINT_DRAFTS) rc = checkpoint_add_drafts(&config, err);
    if (!rc) rc = model_from_config(&config, model, err);
    model_config_free(&config);
    if (!rc) rc = checkpoint_name(model, folder, err);
    if (rc) model_free(model);
    *derived = !rc;
    return rc;
}

static int locate_headers(const char *path, unsigned how, struct model *model, bool *derived,
                          struct helm_err *err)
{
    char *located;
    memset(model, 0, sizeof *model);
    *derived = false;
    int rc = hub_locate(path, &located, err);
    if (!rc) rc = read_headers(located, CHECKPOINT_HEADERS | how, model, derived, err);
    free(located);
    return rc;
}

int model_read_headers(const char *path, struct model *model, bool *derived, struct helm_err *err)
{
    return locate_headers(path, 0, model, derived, err);
}

int model_read_drafting_headers(const char *path, struct model *model, bool *derived, struct helm_err *err)
{
    return locate_headers(path, CHECKPOINT_DRAFTS, model, derived, err);
}

void model_free(struct model *model)
{
    model_config_free(&model->config);
    free(model->folder);
    free(model->path);
    free(model->tensors);
    free(model->pieces);
    free(model->scales);
    free(model->shards);
    free(model->by_role);
    free(model->unit);
    free(model->unit_tensor);
    free(model->shared);
    memset(model, 0, sizeof *model);
}

const struct model_tensor *model_find(const struct model *model, enum tensor_role role, int32_t layer)
{
    if ((unsigned)role >= TENSOR_ROLE_COUNT || layer < -1 || layer >= (int32_t)model->config.layers)
        return NULL;
    if (role == TENSOR_HEAD && model->config.tied_head) role = TENSOR_EMBED;
    uint32_t index = model->by_role[checkpoint_slot(&model->config, role, layer)];
    return index ? &model->tensors[index - 1] : NULL;
}

/* ---- a layer that makes drafts becomes one of the model's ---- */

/* *list, [layers] or NULL, gets one more, of zeros. */
static int lengthen(void *list, size_t each, uint32_t layers, struct helm_err *err)
{
    void *old;
    memcpy(&old, list, sizeof old);
    if (!old) return 0;
    char *grown = realloc(old, ((size_t)layers + 1) * each);
    if (!grown) return helm_fail(err, HELM_E_NOMEM, "no memory for %u layers", layers + 1);
    memset(grown + layers * each, 0, each);
    memcpy(list, &grown, sizeof grown);
    return 0;
}

int checkpoint_add_drafts(struct model_config *c, struct helm_err *err)
{
    const uint32_t layers = c->layers;
    if (!c->draft_layers)
        return helm_fail(err, HELM_E_UNSUPPORTED,
                         "this %s has no layer that makes drafts (multi-token prediction)", c->architecture);
    if (!arch_of(c)->draft_names)
        return helm_fail(err, HELM_E_UNSUPPORTED, "drafts by a layer of %s are not supported",
                         c->architecture);
    if (layers >= MODEL_LAYERS_MAX)
        return helm_fail(err, HELM_E_LIMIT, "%u layers and one that makes drafts, the limit is %u", layers,
                         MODEL_LAYERS_MAX);
    int rc = lengthen(&c->window, sizeof *c->window, layers, err);
    if (!rc) rc = lengthen(&c->widths, sizeof *c->widths, layers, err);
    if (!rc) rc = lengthen(&c->reads, sizeof *c->reads, layers, err);
    if (!rc) rc = lengthen(&c->sparse, sizeof *c->sparse, layers, err);
    if (!rc) rc = lengthen(&c->recurrent, sizeof *c->recurrent, layers, err);
    if (rc) return rc;
    if (c->sparse) c->sparse[layers] = true;
    if (c->widths) c->widths[layers] = c->intermediate;
    c->layers++;
    c->drafts++;
    c->draft_layers--;
    return 0;
}
