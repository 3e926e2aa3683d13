/* A tensor of a file into the model's table: which it is by its name, whether its shape and type are what the
 * configuration implies, and whether it is one of the model, a piece of one or a part of two. See
 * checkpoint.h.
 *
 * Called for every tensor of a file, by checkpoint.c and gguf_model.c. */
#include <stdio.h>
#include <string.h>

#include "common/model/arch.h"
#include "common/model/checkpoint.h"
#include "common/model/fused.h"
#include "common/model/safetensors.h"
#include "common/model/scaled.h"

size_t checkpoint_slot(const struct model_config *config, enum tensor_role role, int32_t layer)
{
    return (size_t)role * (config->layers + 1u) + (size_t)(layer + 1);
}

int checkpoint_add(struct model *model, const struct model_tensor *tensor, struct helm_err *err)
{
    uint32_t *slot = &model->by_role[checkpoint_slot(&model->config, tensor->role, tensor->layer)];
    if (*slot)
        return helm_fail(err, HELM_E_MISMATCH, "tensor '%s' is also in %s", tensor->name,
                         model->shards[model->tensors[*slot - 1].shard].file);
    model->tensors[model->tensor_count++] = *tensor;
    *slot = model->tensor_count;
    return 0;
}

/* The source of a value, for messages. */
static const char *source_of(const struct model_config *config)
{
    return config->gguf ? "the file" : "config.json";
}

static const char *shape_text(const struct safetensors_entry *entry, char *text, size_t size)
{
    size_t used = (size_t)snprintf(text, size, "[");
    for (uint32_t i = 0; i < entry->rank && used < size; i++)
        used += (size_t)snprintf(text + used, size - used, "%s%llu", i ? ", " : "",
                                 (unsigned long long)entry->shape[i]);
    if (used < size) snprintf(text + used, size - used, "]");
    return text;
}

/* Which keys a shape follows from, as far as it contradicts them: " ('hidden_size' is 64)", or nothing. */
static const char *keys_text(const struct model_config *config, enum tensor_role role, bool rows, bool cols,
                             char *text, size_t size)
{
    char keys[200] = "";
    if (rows) arch_role_keys(config, role, true, keys, sizeof keys);
    if (cols) arch_role_keys(config, role, false, keys, sizeof keys);
    text[0] = '\0';
    if (keys[0]) snprintf(text, size, " (%s)", keys);
    return text;
}

/* Vectors are stored with one dimension, matrices with two, all experts' in one tensor with three. */
static int check_shape(const struct model_config *config, const struct safetensors_entry *entry,
                       enum tensor_role role, uint64_t rows, uint64_t cols, struct helm_err *err)
{
    char found[SAFETENSORS_RANK_MAX * 24], implied[SAFETENSORS_RANK_MAX * 24];
    const bool of_heads = arch_role_of_heads(role);
    const uint32_t parts = of_heads ? config->heads : config->router.experts;
    struct safetensors_entry wanted = {.rank = arch_role_rank(role, config->gguf)};
    if (wanted.rank == 3) wanted.shape[0] = parts;
    if (wanted.rank > 1)
        wanted.shape[wanted.rank - 2] = arch_role_of_experts(role) || wanted.rank == 3 ? rows / parts : rows;
    wanted.shape[wanted.rank - 1] = cols;
    if (entry->rank == wanted.rank &&
        memcmp(entry->shape, wanted.shape, wanted.rank * sizeof *wanted.shape) == 0)
        return 0;
    if (arch_role_of_channels(role) && entry->rank == 3 && entry->shape[0] == rows && entry->shape[1] == 1 &&
        entry->shape[2] == cols)
        return 0;
    if (arch_role_of_one_row(role) && entry->shape[entry->rank - 1] == cols &&
        (entry->rank == 1 || (entry->rank == 2 && entry->shape[0] == 1)))
        return 0;
    const bool same = entry->rank == wanted.rank,
               cols_differ = !same || entry->shape[entry->rank - 1] != cols,
               rows_differ =
                   !same || memcmp(entry->shape, wanted.shape, (wanted.rank - 1) * sizeof *wanted.shape) != 0;
    char keys[220];
    shape_text(entry, found, sizeof found);
    shape_text(&wanted, implied, sizeof implied);
    return helm_fail(err, HELM_E_MISMATCH, "tensor '%s' has shape %s, %s implies %s%s", entry->name, found,
                     source_of(config), implied,
                     keys_text(config, role, rows_differ, cols_differ, keys, sizeof keys));
}

/* The tensor of one expert, which is a piece of that of all. `tensor` has everything but its name. */
static int add_piece(struct model *model, const struct model_tensor *tensor, uint32_t expert,
                     const char *name, struct helm_err *err)
{
    const struct model_config *config = &model->config;
    uint32_t *slot = &model->by_role[checkpoint_slot(config, tensor->role, tensor->layer)];
    if (expert >= config->router.experts)
        return helm_fail(err, HELM_E_MISMATCH, "surplus tensor '%s': %s has %u experts", name,
                         source_of(config), config->router.experts);
    if (!*slot) {
        struct model_tensor all = *tensor;
        model_tensor_name(config, tensor->role, tensor->layer, all.name);
        all.bytes = 0;
        all.piece = model->piece_count;
        all.piece_count = config->router.experts;
        model->piece_count += all.piece_count;
        model->tensors[model->tensor_count++] = all;
        *slot = model->tensor_count;
    }
    struct model_tensor *all = &model->tensors[*slot - 1];
    struct model_piece *piece = &model->pieces[all->piece + expert];
    if (piece->offset)
        return helm_fail(err, HELM_E_MISMATCH, "tensor '%s' is also in %s", name,
                         model->shards[piece->shard].file);
    if (all->format != tensor->format)
        return helm_fail(err, HELM_E_UNSUPPORTED, "tensor '%s' has dtype %s, other experts of its layer %s",
                         name, tensor_format_name(tensor->format), tensor_format_name(all->format));
    *piece = (struct model_piece){.shard = tensor->shard, .offset = tensor->offset};
    all->bytes += tensor->bytes; /* of all it is that many experts' */
    if (expert == 0) {
        all->shard = tensor->shard;
        all->offset = tensor->offset;
    }
    return 0;
}

static int check_fused(const struct model_config *config, const struct safetensors_entry *entry,
                       const struct fused_tensor *fused, struct helm_err *err)
{
    const bool bytes = fused->part == FUSED_BLOCKS || fused->part == FUSED_SCALES;
    char found[SAFETENSORS_RANK_MAX * 24], implied[SAFETENSORS_RANK_MAX * 24], keys[220];
    struct safetensors_entry wanted = {0};
    wanted.rank = fused_shape(config, fused, wanted.shape);
    shape_text(entry, found, sizeof found);
    shape_text(&wanted, implied, sizeof implied);
    if (strcmp(found, implied) != 0)
        return helm_fail(err, HELM_E_MISMATCH, "tensor '%s' has shape %s, %s implies %s%s", entry->name,
                         found, source_of(config), implied,
                         keys_text(config, fused->role[0], true, true, keys, sizeof keys));
    const bool rows = fused->part == FUSED_ROWS || fused->run;
    /* rows are taken by their bytes: what files keep in other blocks than memory is not */
    if (rows && entry->format != FORMAT_COUNT && !tensor_format_of(entry->format)->file_values) return 0;
    if (bytes ? strcmp(entry->dtype_text, "U8") == 0
              : entry->format != FORMAT_COUNT && tensor_format_is_plain(entry->format))
        return 0;
    return helm_fail(err, HELM_E_UNSUPPORTED, "tensor '%s' has dtype %s, not %s", entry->name,
                     entry->dtype_text,
                     bytes  ? "U8"
                     : rows ? "one whose rows can be taken from a tensor of several matrices"
                            : "one of single numbers");
}

/* Its rows are contiguous rows of the file's. */
static int take_rows(struct model *model, const struct fused_tensor *fused, uint32_t number,
                     struct model_tensor *tensor, struct helm_err *err)
{
    const struct model_config *config = &model->config;
    uint64_t rows, cols, before = 0;
    for (uint32_t i = 0; i < number; i++) {
        (void)model_expected_shape(config, fused->role[i], tensor->layer, &rows, &cols);
        before += tensor_format_bytes(tensor->format, rows, cols);
    }
    (void)model_expected_shape(config, tensor->role, tensor->layer, &tensor->rows, &tensor->cols);
    tensor->bytes = tensor_format_bytes(tensor->format, tensor->rows, tensor->cols);
    tensor->offset += before;
    return checkpoint_add(model, tensor, err);
}

/* Runs of its rows are some of the file's: pieces of the tensor. */
static int take_runs(struct model *model, const struct fused_tensor *fused, uint32_t number,
                     struct model_tensor *tensor, struct helm_err *err)
{
    const struct model_config *config = &model->config;
    const uint64_t run = fused->run(config);
    (void)model_expected_shape(config, tensor->role, tensor->layer, &tensor->rows, &tensor->cols);
    const uint64_t row_bytes = tensor_format_row_bytes(tensor->format, tensor->cols), at = tensor->offset;
    const uint32_t count = (uint32_t)(tensor->rows / run), piece = model->piece_count;
    tensor->bytes = tensor_format_bytes(tensor->format, tensor->rows, tensor->cols);
    tensor->piece = piece;
    tensor->piece_count = count;
    tensor->offset = at + fused->row(config, number, 0) * row_bytes;
    int rc = checkpoint_add(model, tensor, err);
    if (rc) return rc;
    for (uint32_t i = 0; i < count; i++)
        model->pieces[piece + i] =
            (struct model_piece){.shard = tensor->shard,
                                 .offset = at + fused->row(config, number, i * run) * row_bytes};
    model->piece_count += count;
    return 0;
}

/* Columns of each of its heads are rows of the file; of blocks, which run along these, 16-bit numbers are
 * made. */
static int take_turned(struct model *model, const struct fused_tensor *fused, struct model_tensor *tensor,
                       struct helm_err *err)
{
    const struct model_config *config = &model->config;
    uint64_t shape[4];
    (void)fused_shape(config, fused, shape);
    (void)model_expected_shape(config, tensor->role, tensor->layer, &tensor->rows, &tensor->cols);
    tensor->stored = STORED_TURNED;
    tensor->experts = config->heads;
    tensor->head_rows = (uint32_t)(shape[0] / config->heads);
    tensor->file_format = tensor->format;
    if (!tensor_format_is_plain(tensor->format)) tensor->format = FORMAT_F16;
    tensor->bytes = tensor_format_bytes(tensor->format, tensor->rows, tensor->cols);
    return checkpoint_add(model, tensor, err);
}

/* One role's part of a tensor that has one or two: new, or the other half of one that is there. */
static int take_fused_role(struct model *model, const struct fused_tensor *fused, uint32_t number,
                           const struct model_tensor *file, struct helm_err *err)
{
    const struct model_config *config = &model->config;
    const enum tensor_role role = fused->role[number];
    const bool scales = fused->part == FUSED_SCALES, apart = scales || fused->part == FUSED_BLOCKS;
    uint32_t *slot = &model->by_role[checkpoint_slot(config, role, file->layer)];
    struct model_tensor *there = *slot ? &model->tensors[*slot - 1] : NULL;
    struct model_tensor tensor = *file;
    tensor.role = role;
    if (fused->part == FUSED_ROWS) return take_rows(model, fused, number, &tensor, err);
    if (fused->part == FUSED_HEADS && number == 0) return take_turned(model, fused, &tensor, err);
    if (fused->run) return take_runs(model, fused, number, &tensor, err);
    tensor.stored = apart                          ? STORED_BLOCKS_APART
                    : fused->part == FUSED_COLUMNS ? STORED_COLUMNS
                                                   : STORED_IN_TURN;
    if (apart) tensor.format = FORMAT_MXFP4;
    tensor.turns = fused->roles;
    tensor.turn = number;
    tensor.experts = config->router.experts;
    (void)model_expected_shape(config, role, file->layer, &tensor.rows, &tensor.cols);
    if (!tensor_format_takes(tensor.format, tensor.rows, tensor.cols))
        return helm_fail(err, HELM_E_UNSUPPORTED, "tensor '%s': rows of %llu values cannot be %s", file->name,
                         (unsigned long long)tensor.cols, tensor_format_name(tensor.format));
    tensor.bytes = tensor_format_bytes(tensor.format, tensor.rows, tensor.cols);
    if (scales) {
        tensor.scales = (struct model_piece){.shard = file->shard, .offset = file->offset};
        tensor.shard = 0;
        tensor.offset = 0;
    }
    const bool other = there && there->stored == STORED_BLOCKS_APART && apart &&
                       (scales ? there->scales.offset == 0 : there->offset == 0);
    if (!other) return checkpoint_add(model, &tensor, err);
    if (scales) {
        there->scales = tensor.scales;
    } else {
        there->shard = tensor.shard;
        there->offset = tensor.offset;
        strcpy(there->name, tensor.name);
    }
    return 0;
}

/* A tensor of a file that is experts' otherwise than row by row. */
static int take_fused(struct model *model, const struct fused_tensor *fused, const struct model_tensor *file,
                      const struct safetensors_entry *entry, struct helm_err *err)
{
    const struct model_config *config = &model->config;
    if (file->layer >= (int32_t)config->layers || !model_expects(config, fused->role[0], file->layer))
        return helm_fail(err, HELM_E_MISMATCH, "surplus tensor '%s': %s says this %s has none", entry->name,
                         source_of(config), config->architecture);
    int rc = check_fused(config, entry, fused, err);
    for (uint32_t i = 0; i < fused->roles && !rc; i++) rc = take_fused_role(model, fused, i, file, err);
    return rc;
}

/* A part that is not the text's is counted. */
static int skip(struct model *model, const struct safetensors_entry *entry)
{
    if (model->skipped_count == 0) snprintf(model->skipped, sizeof model->skipped, "%s", entry->name);
    model->skipped_count++;
    model->skipped_bytes += entry->bytes;
    return 0;
}

/* Its numbers lie otherwise than rows here, and its scales in tensors of their own. */
static int start_scaled(struct model *model, struct model_tensor *tensor, bool part,
                        const struct safetensors_entry *entry, struct helm_err *err)
{
    const struct tensor_format_traits *traits = tensor_format_of(tensor->format);
    if (!tensor_format_takes(tensor->format, tensor->rows, tensor->cols))
        return helm_fail(err, HELM_E_UNSUPPORTED,
                         "tensor '%s': rows of %llu values cannot be %s, which takes %u", entry->name,
                         (unsigned long long)tensor->cols, traits->name, traits->block_values);
    tensor->stored = STORED_SCALED;
    tensor->scaled.blocks = entry->format == FORMAT_NVFP4;
    tensor->experts = arch_role_of_experts(tensor->role) ? model->config.router.experts : 1;
    tensor->bytes = tensor_format_bytes(tensor->format, part ? tensor->rows / tensor->experts : tensor->rows,
                                        tensor->cols);
    if (part) return 0;
    tensor->piece = model->piece_count++;
    tensor->piece_count = 1;
    model->pieces[tensor->piece] = (struct model_piece){.shard = tensor->shard, .offset = tensor->offset};
    return 0;
}

int checkpoint_take(struct model *model, uint32_t shard, uint64_t data_offset,
                    const struct safetensors_entry *in_file, struct helm_err *err)
{
    struct model_tensor tensor = {.role = TENSOR_NONE, .shard = shard};
    struct arch_match what;
    struct safetensors_entry own = *in_file, *entry = &own;
    char name[MODEL_NAME_MAX];
    const struct model_config *config = &model->config;
    const struct arch *arch = arch_of(config);
    if (arch_ignores_name(entry->name)) return 0;
    if (arch_skips_name(config, entry->name)) return skip(model, entry);
    if (config->gguf && arch_is_rope_factors(entry->name)) return 0; /* the configuration has them */
    const enum scaled_name scaled = scaled_name_of(config, entry->name, name);
    const struct model_piece at = {.shard = shard, .offset = data_offset + entry->begin};
    if (scaled == SCALED_UNUSED) return 0;
    if (scaled != SCALED_MATRIX) return scaled_keep(model, &at, scaled, name, entry, err);
    entry->name = name;
    const struct fused_tensor *fused = arch_match_fused(arch, entry->name, config->gguf, &tensor.layer);
    if (fused) {
        tensor.format = entry->format;
        tensor.offset = data_offset + entry->begin;
        strcpy(tensor.name, entry->name);
        return take_fused(model, fused, &tensor, entry, err);
    }
    const bool known = arch_match(arch, entry->name, config->gguf, &what),
               part = known && model_tensor_parts(config, what.role) > 1;
    if (!known || (part && what.expert < 0))
        return helm_fail(err, HELM_E_MISMATCH, "surplus tensor '%s': no part of a %s uses it", entry->name,
                         config->architecture);
    tensor.role = what.role;
    tensor.layer = what.layer;
    if (tensor.layer >= (int32_t)config->layers)
        return helm_fail(err, HELM_E_MISMATCH, "surplus tensor '%s': %s has %u layers", entry->name,
                         source_of(config), config->layers);
    /* A tied model may still store its head; as in the reference, the embedding is used. */
    if (tensor.role == TENSOR_HEAD && config->tied_head) {
        (void)scaled_format(config, entry); /* NVFP4's columns */
        return check_shape(config, entry, tensor.role, config->vocab, config->hidden, err);
    }
    if (!model_expects(config, tensor.role, tensor.layer) ||
        !model_expected_shape(config, tensor.role, tensor.layer, &tensor.rows, &tensor.cols))
        return helm_fail(err, HELM_E_MISMATCH, "surplus tensor '%s': %s says this %s has none", entry->name,
                         source_of(config), config->architecture);
    const bool vector = arch_role_is_vector(tensor.role);
    const enum tensor_format apart = vector ? FORMAT_COUNT : scaled_format(config, entry);
    int rc = check_shape(config, entry, tensor.role, tensor.rows, tensor.cols, err);
    if (rc) return rc;
    if ((apart == FORMAT_COUNT && entry->format == FORMAT_COUNT) ||
        (vector && !tensor_format_is_plain(entry->format)))
        return helm_fail(err, HELM_E_UNSUPPORTED, "tensor '%s' has dtype %s, which no %s here can have",
                         entry->name, entry->dtype_text, vector ? "vector" : "matrix");
    tensor.format = apart != FORMAT_COUNT ? apart : entry->format;
    tensor.bytes = entry->bytes;
    tensor.offset = data_offset + entry->begin;
    if (apart != FORMAT_COUNT) rc = start_scaled(model, &tensor, part, entry, err);
    if (rc) return rc;
    if (part) return add_piece(model, &tensor, (uint32_t)what.expert, entry->name, err);
    strcpy(tensor.name, entry->name);
    return checkpoint_add(model, &tensor, err);
}
