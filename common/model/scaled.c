/* Numbers and scales in tensors of their own. See scaled.h. */
#include "common/model/scaled.h"

#include <stdlib.h>
#include <string.h>

#include "common/base/file.h"
#include "common/base/json.h"
#include "common/formats/blocks.h"
#include "common/formats/fp8.h"
#include "common/model/arch.h"
#include "common/model/checkpoint.h"
#include "common/model/fused.h"

#define RUN_BYTES (1u << 20) /* that are read at once, about */

/* ---- names ---- */

static const struct {
    const char *ending, *matrix;
    enum scaled_name kind;
} names[] =
    {
        {".weight_scale_inv", ".weight", SCALED_SCALES},
        {".weight_scale", ".weight", SCALED_SCALES},
        {".weight_scale_2", ".weight", SCALED_WHOLE},
        {".weight_global_scale", ".weight", SCALED_DIVISOR},
        {".weight_packed", ".weight", SCALED_MATRIX},
        {".input_scale", "", SCALED_UNUSED},
        {".input_global_scale", "", SCALED_UNUSED},
        {".weight_shape", "", SCALED_UNUSED},
        {".k_scale", "", SCALED_UNUSED},
        {".v_scale", "", SCALED_UNUSED},
},
  gguf_names[] = {{".scale", ".weight", SCALED_WHOLE}, {".input_scale", "", SCALED_UNUSED}};

enum scaled_name scaled_name_of(const struct model_config *config, const char *in_file,
                                char matrix[MODEL_NAME_MAX])
{
    char renamed[MODEL_NAME_MAX];
    const char *name = arch_draft_name(config, in_file, renamed);
    const size_t length = strlen(name),
                 count = config->gguf ? sizeof gguf_names / sizeof *gguf_names : sizeof names / sizeof *names;
    struct arch_match what;
    snprintf(matrix, MODEL_NAME_MAX, "%s", name);
    if (arch_match(arch_of(config), name, config->gguf, &what) &&
        model_expects(config, what.role, what.layer))
        return SCALED_MATRIX; /* Gemma 4's scales of experts */
    for (size_t i = 0; i < count && (config->gguf || config->scaled); i++) {
        const char *ending = config->gguf ? gguf_names[i].ending : names[i].ending,
                   *to = config->gguf ? gguf_names[i].matrix : names[i].matrix;
        const size_t tail = strlen(ending);
        if (length <= tail || strcmp(name + length - tail, ending) != 0) continue;
        if (length - tail + strlen(to) < MODEL_NAME_MAX) strcpy(matrix + length - tail, to);
        return config->gguf ? gguf_names[i].kind : names[i].kind;
    }
    return SCALED_MATRIX;
}

enum tensor_format scaled_format(const struct model_config *config, struct safetensors_entry *entry)
{
    if (entry->format == FORMAT_NVFP4) return FORMAT_NVFP4;
    if (config->scaled == FORMAT_FP8 && strcmp(entry->dtype_text, "F8_E4M3") == 0) return FORMAT_FP8;
    if (config->scaled != FORMAT_NVFP4 || strcmp(entry->dtype_text, "U8") != 0 || entry->rank != 2)
        return FORMAT_COUNT;
    entry->shape[1] *= 2;
    return FORMAT_NVFP4;
}

/* ---- config.json ---- */

static int read_block(const json_t *quantization, struct model_config *config, struct helm_err *err)
{
    const json_t *size = json_object_get(quantization, "weight_block_size");
    if (!size || json_is_null(size)) return 0;
    const json_int_t rows = json_integer_value(json_array_get(size, 0)),
                     cols = json_integer_value(json_array_get(size, 1));
    if (json_array_size(size) != 2 || rows < 1 || rows > UINT16_MAX || cols < 1 || cols > UINT16_MAX)
        return helm_fail(err, HELM_E_FORMAT, "'weight_block_size' is not a list of two whole numbers");
    if (cols % FP8_VALUES)
        return helm_fail(err, HELM_E_UNSUPPORTED, "'weight_block_size': %lld columns, no multiple of %d",
                         (long long)cols, FP8_VALUES);
    config->scaled_rows = (uint32_t)rows;
    config->scaled_cols = (uint32_t)cols;
    return 0;
}

int scaled_config(const json_t *quantization, const char *method, struct model_config *config, bool *known,
                  struct helm_err *err)
{
    const char *what = NULL;
    const bool modelopt = strcmp(method, "modelopt") == 0,
               compressed = strcmp(method, "compressed-tensors") == 0;
    int rc = 0;
    *known = false;
    if (strcmp(method, "fp8") == 0) {
        *known = true;
        config->scaled = FORMAT_FP8;
        rc = json_get_string(quantization, "fmt", false, &what, err);
        if (!rc && what && strcmp(what, "e4m3") != 0)
            rc = helm_fail(err, HELM_E_UNSUPPORTED, "'fmt' is '%.40s', not e4m3", what);
        return rc ? rc : read_block(quantization, config, err);
    }
    if (!modelopt && !compressed) return 0;
    rc = json_get_string(quantization, modelopt ? "quant_algo" : "format", true, &what, err);
    if (rc) return rc;
    *known = true;
    if (strcmp(what, modelopt ? "NVFP4" : "nvfp4-pack-quantized") == 0)
        config->scaled = FORMAT_NVFP4;
    else if (strcmp(what, modelopt ? "FP8" : "float-quantized") == 0)
        config->scaled = FORMAT_FP8;
    else
        return helm_fail(err, HELM_E_UNSUPPORTED,
                         "'quantization_config' (method '%s', '%.40s') is not supported (supported: %s)",
                         method, what, modelopt ? "FP8, NVFP4" : "float-quantized, nvfp4-pack-quantized");
    return 0;
}

/* ---- scales ---- */

int scaled_keep(struct model *model, const struct model_piece *at, enum scaled_name kind, const char *matrix,
                const struct safetensors_entry *entry, struct helm_err *err)
{
    if ((model->scale_count & (model->scale_count - 1)) == 0) {
        const size_t room = model->scale_count ? 2 * (size_t)model->scale_count : 1;
        struct model_scale *more = realloc(model->scales, room * sizeof *more);
        if (!more) return helm_fail(err, HELM_E_NOMEM, "no memory for %zu tensors of scales", room);
        model->scales = more;
    }
    struct model_scale *s = &model->scales[model->scale_count++];
    *s = (struct model_scale){.kind = kind, .at = *at, .count = 1};
    snprintf(s->name, sizeof s->name, "%s", entry->name);
    snprintf(s->matrix, sizeof s->matrix, "%s", matrix);
    s->e4m3 = strcmp(entry->dtype_text, "F8_E4M3") == 0;
    s->dtype = (enum dtype)entry->format;
    if (!s->e4m3 && entry->format != FORMAT_F32 && entry->format != FORMAT_BF16)
        return helm_fail(err, HELM_E_UNSUPPORTED, "tensor '%s' has dtype %s, not F32 or BF16", entry->name,
                         entry->dtype_text);
    for (uint32_t i = 0; i < entry->rank; i++) s->count *= entry->shape[i];
    s->cols = entry->rank > 1 ? entry->shape[entry->rank - 1] : 1;
    return 0;
}

/* How many values share a scale, by their number: one, one a row, or as the configuration says. */
static int take_geometry(const struct model_config *c, const struct model_scale *s, uint64_t rows,
                         uint64_t cols, struct model_scaled *to, struct helm_err *err)
{
    const uint64_t down = c->scaled_rows ? (rows + c->scaled_rows - 1) / c->scaled_rows : 0,
                   along = c->scaled_cols ? (cols + c->scaled_cols - 1) / c->scaled_cols : 0;
    *to = (struct model_scaled){.rows = (uint32_t)rows, .cols = (uint32_t)cols, .dtype = s->dtype};
    if (s->count == 1) return 0;
    if (s->count == rows && s->cols == 1 && !(down == rows && along > 1)) {
        to->rows = 1;
        return 0;
    }
    to->rows = c->scaled_rows;
    to->cols = c->scaled_cols;
    if (down && s->count == down * along && s->cols == along) return 0;
    return helm_fail(err, HELM_E_MISMATCH,
                     "tensor '%s' has %llu scales, %llu a row, of a matrix of %llu x %llu", s->name,
                     (unsigned long long)s->count, (unsigned long long)s->cols, (unsigned long long)rows,
                     (unsigned long long)cols);
}

/* Checks a matrix's own scales and notes where they lie. */
static int take_own(const struct model_config *c, const struct model_scale *s, struct model_tensor *t,
                    struct model_piece *piece, struct helm_err *err)
{
    const uint64_t rows = t->rows / t->piece_count;
    struct model_scaled scaled = {.divides = t->scaled.divides};
    if (t->format == FORMAT_NVFP4) {
        if (!s->e4m3 || s->count != rows * (t->cols / NVFP4_GROUP))
            return helm_fail(err, HELM_E_MISMATCH, "tensor '%s' is no F8_E4M3 [%llu, %llu]", s->name,
                             (unsigned long long)rows, (unsigned long long)t->cols / NVFP4_GROUP);
    } else {
        if (s->e4m3)
            return helm_fail(err, HELM_E_UNSUPPORTED, "tensor '%s' has dtype F8_E4M3, not F32 or BF16",
                             s->name);
        const int rc = take_geometry(c, s, rows, t->cols, &scaled, err);
        if (rc) return rc;
        if (t->scaled.rows && (t->scaled.rows != scaled.rows || t->scaled.cols != scaled.cols ||
                               t->scaled.dtype != scaled.dtype))
            return helm_fail(err, HELM_E_UNSUPPORTED,
                             "tensor '%s' has scales other than those of other experts", s->name);
        t->scaled = scaled;
    }
    piece->scale_shard = s->at.shard;
    piece->scales = s->at.offset;
    return 0;
}

static int take_scale(struct model *model, const struct model_scale *s, struct helm_err *err)
{
    const struct model_config *c = &model->config;
    struct arch_match what;
    const bool known = arch_match(arch_of(c), s->matrix, c->gguf, &what);
    if (known && what.role == TENSOR_HEAD && c->tied_head) return 0; /* of a head that is not used */
    const uint32_t at = known && what.layer < (int32_t)c->layers
                            ? model->by_role[checkpoint_slot(c, what.role, what.layer)]
                            : 0;
    struct model_tensor *t = at ? &model->tensors[at - 1] : NULL;
    if (!t || t->stored != STORED_SCALED)
        return helm_fail(err, HELM_E_MISMATCH, "tensor '%s' is there, but no '%s' of FP8 or NVFP4", s->name,
                         s->matrix);
    struct model_piece *piece =
        &model->pieces[t->piece + (what.expert > 0 && t->piece_count > 1 ? (uint32_t)what.expert : 0)];
    if (s->kind == SCALED_SCALES) return take_own(c, s, t, piece, err);
    if (t->format != FORMAT_NVFP4 || s->dtype != DTYPE_F32 || s->e4m3 ||
        s->count != (c->gguf && arch_role_of_experts(t->role) ? c->router.experts : 1))
        return helm_fail(err, HELM_E_MISMATCH, "tensor '%s' is no F32 of a matrix of NVFP4", s->name);
    t->scaled.divides = s->kind == SCALED_DIVISOR;
    piece->whole_shard = s->at.shard;
    piece->whole = s->at.offset;
    return 0;
}

int scaled_finish(struct model *model, struct helm_err *err)
{
    int rc = 0;
    for (uint32_t i = 0; i < model->scale_count && !rc; i++) rc = take_scale(model, &model->scales[i], err);
    free(model->scales);
    model->scales = NULL;
    model->scale_count = 0;
    for (uint32_t i = 0; i < model->tensor_count && !rc; i++) {
        const struct model_tensor *t = &model->tensors[i];
        for (uint32_t p = 0; t->stored == STORED_SCALED && !t->scaled.blocks && p < t->piece_count && !rc;
             p++) {
            const struct model_piece *piece = &model->pieces[t->piece + p];
            if (piece->offset && (!piece->scales || (t->format == FORMAT_NVFP4 && !piece->whole)))
                rc = helm_fail(err, HELM_E_NOT_FOUND, "tensor '%s' is there, but without its scale%s",
                               t->name, piece->scales ? " of the whole" : "s");
        }
    }
    return rc;
}

/* ---- reading ---- */

/* Rows of one piece, of one expert: `first` in it. */
struct rows {
    const struct model_shards *shards;
    const struct model_tensor *t;
    const struct model_piece *piece;
    uint64_t first, count;
};

static int read_part(const struct rows *r, uint32_t shard, uint64_t at, uint64_t bytes, void *to,
                     struct helm_err *err)
{
    return file_pread_all(r->shards->fd[shard], to, (size_t)bytes, at, r->t->name, err);
}

static bool is_number(const uint8_t *e4m3, size_t count)
{
    uint8_t bad = 0;
    for (size_t i = 0; i < count; i++) bad |= (e4m3[i] & 0x7f) == 0x7f;
    return !bad;
}

static int read_fp8(const struct rows *r, uint8_t *to, struct helm_err *err)
{
    const struct model_scaled *s = &r->t->scaled;
    const uint64_t cols = r->t->cols, along = (cols + s->cols - 1) / s->cols, each = dtype_bytes(s->dtype),
                   above = r->first / s->rows, below = (r->first + r->count - 1) / s->rows,
                   scales = (below - above + 1) * along * each;
    uint8_t *numbers = malloc((size_t)(r->count * cols + scales)), *own = numbers + r->count * cols;
    if (!numbers) return helm_fail(err, HELM_E_NOMEM, "no memory for rows of %s", r->t->name);
    int rc = read_part(r, r->piece->shard, r->piece->offset + r->first * cols, r->count * cols, numbers, err);
    if (!rc)
        rc = read_part(r, r->piece->scale_shard, r->piece->scales + above * along * each, scales, own, err);
    if (!rc && !is_number(numbers, (size_t)(r->count * cols)))
        rc = helm_fail(err, HELM_E_FORMAT, "%s: one of rows %llu to %llu has a value that is no number",
                       r->t->name, (unsigned long long)r->first,
                       (unsigned long long)(r->first + r->count - 1));
    for (uint64_t row = 0; row < r->count && !rc; row++)
        for (uint64_t c = 0; c < cols; c += FP8_VALUES, to += FP8_BYTES) {
            const uint64_t at = ((r->first + row) / s->rows - above) * along + c / s->cols;
            const float scale = convert_load(own, s->dtype, at);
            memcpy(to, &scale, sizeof scale);
            memcpy(to + sizeof scale, numbers + row * cols + c, FP8_VALUES);
        }
    free(numbers);
    return rc;
}

/* 64 values as GGUF files have them: scales, and halves of bytes as here. */
static void take_file_block(const uint8_t *file, uint8_t *scales, uint8_t *numbers)
{
    for (int g = 0; g < 4; g++) {
        const uint8_t scale = file[g] & 0x7f;
        scales[g] = scale == 0x7f ? 0 : scale; /* as the files' own programs read it */
    }
    for (int run = 0; run < 2; run++)
        for (int i = 0; i < 16; i++) {
            const uint8_t *first = file + 4 + run * 16, *second = first + 8;
            const int half = i < 8 ? 0 : 4;
            numbers[run * 16 + i] =
                (uint8_t)((first[i % 8] >> half & 15) | (second[i % 8] >> half & 15) << 4);
        }
}

/* A row of numbers, and of a checkpoint its scales, to blocks. */
static void take_nvfp4_row(const struct model_tensor *t, const uint8_t *numbers, const uint8_t *scales,
                           float by, uint8_t *to)
{
    for (uint64_t c = 0; c < t->cols; c += NVFP4_VALUES, to += NVFP4_BYTES) {
        memcpy(to, &by, sizeof by);
        if (t->scaled.blocks) {
            for (int b = 0; b < NVFP4_VALUES / NVFP4_FILE_VALUES; b++, numbers += NVFP4_FILE_BYTES)
                take_file_block(numbers, to + NVFP4_SCALES + 4 * b, to + NVFP4_NUMBERS + 32 * b);
            continue;
        }
        memcpy(to + NVFP4_SCALES, scales, NVFP4_VALUES / NVFP4_GROUP);
        for (int run = 0; run < NVFP4_VALUES / 32; run++, numbers += 16)
            fused_mxfp4_numbers(numbers, to + NVFP4_NUMBERS + 16 * run);
        scales += NVFP4_VALUES / NVFP4_GROUP;
    }
}

static int read_nvfp4(const struct rows *r, uint64_t expert, uint8_t *to, struct helm_err *err)
{
    const struct model_tensor *t = r->t;
    const uint64_t row = t->scaled.blocks ? t->cols / NVFP4_FILE_VALUES * NVFP4_FILE_BYTES : t->cols / 2,
                   scale_row = t->scaled.blocks ? 0 : t->cols / NVFP4_GROUP;
    uint8_t *numbers = malloc((size_t)(r->count * (row + scale_row))), *scales = numbers + r->count * row;
    float by = 1;
    if (!numbers) return helm_fail(err, HELM_E_NOMEM, "no memory for rows of %s", t->name);
    int rc = read_part(r, r->piece->shard, r->piece->offset + r->first * row, r->count * row, numbers, err);
    if (!rc && scale_row)
        rc = read_part(r, r->piece->scale_shard, r->piece->scales + r->first * scale_row,
                       r->count * scale_row, scales, err);
    if (!rc && r->piece->whole)
        rc = read_part(r, r->piece->whole_shard, r->piece->whole + expert * sizeof by, sizeof by, &by, err);
    for (uint64_t i = 0; i < r->count * scale_row && !rc; i++)
        if (scales[i] >= 0x7f)
            rc = helm_fail(err, HELM_E_FORMAT, "%s: row %llu has a scale that is negative or no number",
                           t->name, (unsigned long long)(r->first + i / scale_row));
    if (t->scaled.divides) by = 1 / by;
    for (uint64_t i = 0; i < r->count && !rc; i++)
        take_nvfp4_row(t, numbers + i * row, scales + i * scale_row, by, to + i * (t->bytes / t->rows));
    free(numbers);
    return rc;
}

/* As many rows from `first` on as lie together, `most` at most; returns how many, or an error. */
static int64_t read_some(const struct model_shards *shards, const struct model_tensor *t, uint64_t first,
                         uint64_t most, uint8_t *to, struct helm_err *err)
{
    const uint64_t rows = t->rows / t->piece_count, together = t->rows / t->experts,
                   left = together - first % together;
    struct rows r = {shards, t, &shards->pieces[t->piece + first / rows], first % rows, most};
    if (r.count > left) r.count = left;
    if (r.count > RUN_BYTES / t->cols + 1) r.count = RUN_BYTES / t->cols + 1;
    if (t->interleaved_heads) { /* as in shards.c */
        r.first = model_shards_row(t, t->rows, first);
        r.count = 1;
    }
    const int rc = t->format == FORMAT_FP8
                       ? read_fp8(&r, to, err)
                       : read_nvfp4(&r, t->piece_count > 1 ? 0 : first / together, to, err);
    return rc ? rc : (int64_t)r.count;
}

int scaled_read(const struct model_shards *shards, const struct model_tensor *t, uint64_t from,
                uint64_t bytes, void *to, struct helm_err *err)
{
    const uint64_t row_bytes = t->bytes / t->rows;
    uint8_t *out = to, *row = NULL;
    int64_t rc = 0;
    for (uint64_t at = from, end = from + bytes, part; at < end && rc >= 0; at += part, out += part) {
        const uint64_t first = at / row_bytes, inside = at % row_bytes;
        part = row_bytes - inside < end - at ? row_bytes - inside : end - at;
        if (part == row_bytes) {
            rc = read_some(shards, t, first, (end - at) / row_bytes, out, err);
            if (rc > 0) part = (uint64_t)rc * row_bytes;
        } else if (!row && !(row = malloc((size_t)row_bytes))) {
            rc = helm_fail(err, HELM_E_NOMEM, "no memory for a row of %s", t->name);
        } else if ((rc = read_some(shards, t, first, 1, row, err)) > 0) {
            memcpy(out, row + inside, (size_t)part);
        }
    }
    free(row);
    return rc < 0 ? (int)rc : 0;
}
