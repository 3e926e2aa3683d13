/* A model in GGUF files: which files they are, their headers, and from them the table of tensors.
 *
 * Called through model.h (model_read and the like) and by config.c. Order: the file, or the folder's only one
 * -> the header of each that it is split into -> the configuration -> each tensor against its role's shape.
 * Only RoPE's factors are read of the data. */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/file.h"
#include "common/model/arch.h"
#include "common/model/checkpoint.h"

/* The files' names into model->shards. */
static int name_files(const char *file, struct model *model, struct helm_err *err)
{
    uint32_t number = 1, count = 1;
    const bool split = gguf_is_part(file, &number, &count);
    if (split && number != 1)
        return helm_fail(err, HELM_E_USAGE, "%s is number %u of %u files: name the first", file, number,
                         count);
    if (count < 1 || count > MODEL_SHARDS_MAX)
        return helm_fail(err, HELM_E_LIMIT, "%s: %u files, not between 1 and %d", file, count,
                         MODEL_SHARDS_MAX);
    model->shards = calloc(count, sizeof *model->shards);
    if (!model->shards) return helm_fail(err, HELM_E_NOMEM, "no memory for %u files", count);
    model->shard_count = count;
    for (uint32_t i = 0; i < count; i++) {
        strcpy(model->shards[i].file, file);
        if (split) {
            char *tail = model->shards[i].file + strlen(file) - (sizeof GGUF_PART_SUFFIX - 1);
            snprintf(tail, sizeof GGUF_PART_SUFFIX, "-%05u-of-%05u.gguf", i + 1, count);
        }
    }
    return 0;
}

/* Checks the place that a file claims among several. */
static int check_split(const struct model *model, const struct gguf *header, uint32_t index,
                       struct helm_err *err)
{
    uint64_t number = 0, count = 1;
    int rc = gguf_get_u64(header, "split.no", false, 0, UINT32_MAX, &number, err);
    if (!rc) rc = gguf_get_u64(header, "split.count", false, 0, UINT32_MAX, &count, err);
    if (rc) return rc;
    if (count == 0) count = 1;
    if (number != index || count != model->shard_count)
        return helm_fail(err, HELM_E_MISMATCH,
                         "'split.no' and 'split.count' say number %llu of %llu (from 0), the names %u of %u",
                         (unsigned long long)number, (unsigned long long)count, index, model->shard_count);
    return 0;
}

static int read_headers(struct model *model, bool headers, struct gguf_files *files, struct helm_err *err)
{
    uint64_t tensors = 0, said = 0;
    files->part = calloc(model->shard_count, sizeof *files->part);
    if (!files->part) return helm_fail(err, HELM_E_NOMEM, "no memory for %u files", model->shard_count);
    for (uint32_t i = 0; i < model->shard_count; i++) {
        struct model_shard *shard = &model->shards[i];
        int fd = -1;
        int rc = file_open_inside(model->folder, shard->file, &fd, &shard->bytes, err);
        if (rc == HELM_E_NOT_FOUND && i > 0) return checkpoint_missing_file(model, i, err);
        if (rc) return rc;
        rc = gguf_read(fd, shard->bytes, shard->file, headers, &files->part[i], err);
        close(fd);
        if (rc) return rc;
        files->count++;
        rc = check_split(model, &files->part[i], i, err);
        if (rc) return helm_err_prefix(err, "%s", shard->file);
        tensors += files->part[i].count;
    }
    said = tensors;
    int rc = gguf_get_u64(&files->part[0], "split.tensors.count", false, 0, UINT64_MAX, &said, err);
    if (!rc && said != tensors)
        rc = helm_fail(err, HELM_E_MISMATCH, "'split.tensors.count' is %llu, the files have %llu tensors",
                       (unsigned long long)said, (unsigned long long)tensors);
    return rc;
}

const struct safetensors_entry *gguf_files_tensor(const struct gguf_files *files, const char *name,
                                                  uint32_t *part)
{
    for (uint32_t i = 0; i < files->count; i++) {
        const struct safetensors_entry *entry = gguf_find_tensor(&files->part[i], name);
        if (part) *part = i;
        if (entry) return entry;
    }
    return NULL;
}

/* One vector of RoPE's factors, if the files have it; *factors is the configuration's. */
static int read_factors(struct model *model, bool headers, const struct gguf_files *files, const char *name,
                        float **factors, struct helm_err *err)
{
    const uint32_t count = model->config.head_dim / 2;
    uint32_t part = 0;
    const struct safetensors_entry *entry = gguf_files_tensor(files, name, &part);
    if (!entry) return 0;
    if (entry->rank != 1 || entry->shape[0] != count || entry->format != FORMAT_F32)
        return helm_fail(err, HELM_E_MISMATCH, "tensor '%s' is no vector of %u numbers of type F32",
                         entry->name, count);
    if (model->config.rope[0].kind != ROPE_DEFAULT)
        return helm_fail(err, HELM_E_UNSUPPORTED, "tensor '%s' beside RoPE scaling by keys", entry->name);
    int fd = -1;
    uint64_t bytes;
    const uint64_t at = files->part[part].data_offset + entry->begin;
    int rc = file_open_inside(model->folder, model->shards[part].file, &fd, &bytes, err);
    if (rc) return rc;
    float *to = *factors = calloc(count, sizeof **factors);
    if (!to)
        rc = helm_fail(err, HELM_E_NOMEM, "no memory for %u factors", count);
    else if (headers && bytes < at + entry->bytes) /* planning asks for no angles */
        for (uint32_t i = 0; i < count; i++) to[i] = 1;
    else
        rc = file_pread_all(fd, to, entry->bytes, at, entry->name, err);
    close(fd);
    for (uint32_t i = 0; i < count && !rc; i++)
        if (!(to[i] >= 1e-3f && to[i] <= 1e31f)) /* 1e30 is that of pairs that do not turn */
            rc = helm_fail(err, HELM_E_LIMIT, "tensor '%s': factor %u is %g, not between 0.001 and 1e31",
                           entry->name, i, (double)to[i]);
    return rc;
}

/* RoPE's factors are vectors of the file, but part of the configuration. */
static int read_ropes(struct model *model, bool headers, const struct gguf_files *files, struct helm_err *err)
{
    struct rope_config *rope = &model->config.rope[0];
    float *plain = NULL;
    int rc = read_factors(model, headers, files, ARCH_ROPE_SHORT, &rope->factors, err);
    if (!rc) rc = read_factors(model, headers, files, ARCH_ROPE_LONG, &rope->long_factors, err);
    if (!rc && !rope->factors != !rope->long_factors)
        rc = helm_fail(err, HELM_E_NOT_FOUND, "tensor '%s' is missing: a longrope has two tables",
                       rope->factors ? ARCH_ROPE_LONG : ARCH_ROPE_SHORT);
    if (!rc && rope->factors && rope->original_context == 0)
        rc = helm_fail(err, HELM_E_NOT_FOUND,
                       "key 'rope.scaling.original_context_length' is missing: a longrope needs it");
    if (!rc && rope->factors) rope->kind = ROPE_LONG;
    if (!rc && !rope->factors && rope->kind == ROPE_DEFAULT && rope->attention_factor != 1)
        rc = helm_fail(err, HELM_E_NOT_FOUND, "tensor '%s' is missing: 'rope.scaling.attn_factor' is %g",
                       ARCH_ROPE_LONG, rope->attention_factor);
    if (!rc) rc = read_factors(model, headers, files, ARCH_ROPE_FACTORS, &plain, err);
    if (plain) {
        rope->kind = ROPE_FACTORS;
        rope->factors = plain;
    }
    return rc;
}

static int read_tensors(struct model *model, const struct gguf_files *files, struct helm_err *err)
{
    int rc = checkpoint_start(model, err);
    for (uint32_t p = 0; p < files->count && !rc; p++) {
        const struct gguf *part = &files->part[p];
        for (uint32_t i = 0; i < part->count && !rc; i++)
            rc = checkpoint_take(model, p, part->data_offset, &part->entries[i], err);
        if (rc) helm_err_prefix(err, "%s", model->shards[p].file);
        /* A file that may end after its header counts as long as the header says. */
        const struct safetensors_entry *last = part->count ? &part->entries[part->count - 1] : NULL;
        const uint64_t end = part->data_offset + (last ? last->begin + last->bytes : 0);
        if (model->shards[p].bytes < end) model->shards[p].bytes = end;
    }
    return rc ? rc : checkpoint_finish(model, err);
}

int gguf_model_read(const char *path, unsigned how, bool *found, struct model *model, struct helm_err *err)
{
    const bool headers = how & CHECKPOINT_HEADERS;
    struct gguf_files files = {0};
    char file[MODEL_NAME_MAX];
    memset(model, 0, sizeof *model);
    int rc = gguf_find_file(path, &model->folder, file, err);
    *found = rc || model->folder;
    if (rc || !*found) return rc;
    rc = checkpoint_name(model, path, err);
    if (!rc) rc = name_files(file, model, err);
    if (!rc) rc = read_headers(model, headers, &files, err);
    if (!rc) rc = gguf_config_read(&files, &model->config, err);
    if (!rc && how & CHECKPOINT_DRAFTS) rc = checkpoint_add_drafts(&model->config, err);
    if (!rc) rc = read_ropes(model, headers, &files, err);
    if (!rc) rc = read_tensors(model, &files, err);
    for (uint32_t i = 0; i < files.count; i++) gguf_free(&files.part[i]);
    free(files.part);
    if (rc) {
        helm_err_prefix(err, "%s", model->folder);
        model_free(model);
    }
    return rc;
}
