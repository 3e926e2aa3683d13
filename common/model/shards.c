/* Reading tensors. See shards.h. */
#include "common/model/shards.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/file.h"
#include "common/model/content.h"
#include "common/model/fused.h"
#include "common/model/parts.h"
#include "common/model/scaled.h"
#include "common/model/arch.h"

int model_shards_open(const struct model *model, struct model_shards *shards, struct helm_err *err)
{
    const size_t count = (size_t)model->shard_count + 1;
    *shards = (struct model_shards){.fd = calloc(count, sizeof *shards->fd),
                                    .bytes = calloc(count, sizeof *shards->bytes),
                                    .content = calloc(1, sizeof *shards->content),
                                    .pieces = model->pieces};
    int rc = shards->fd && shards->bytes && shards->content
                 ? 0
                 : helm_fail(err, HELM_E_NOMEM, "no memory for %u file descriptors", model->shard_count);
    for (uint32_t i = 0; i < model->shard_count && !rc; i++) {
        rc = file_open_inside(model->folder, model->shards[i].file, &shards->fd[i], &shards->bytes[i], err);
        shards->count += !rc;
    }
    if (rc) model_shards_close(shards);
    return rc;
}

/* Reads a tensor that is in pieces in its files. */
static int read_pieces(const struct model_shards *shards, const struct model_tensor *t, uint64_t from,
                       uint64_t bytes, void *to, struct helm_err *err)
{
    const uint64_t each = t->bytes / t->piece_count;
    int rc = 0;
    for (uint64_t at = from, part; at < from + bytes && !rc; at += part) {
        const struct model_piece *piece = &shards->pieces[t->piece + at / each];
        const uint64_t inside = at % each;
        part = each - inside < from + bytes - at ? each - inside : from + bytes - at;
        rc = file_pread_all(shards->fd[piece->shard], (char *)to + (at - from), (size_t)part,
                            piece->offset + inside, t->name, err);
    }
    return rc;
}

uint64_t model_shards_row(const struct model_tensor *t, uint64_t rows, uint64_t row)
{
    const uint64_t head = rows / t->interleaved_heads, from = t->interleaved_from, in_head = row % head,
                   i = in_head - from, half = (t->interleaved_rows ? t->interleaved_rows : head) / 2;
    if (in_head < from || i >= 2 * half) return row;
    return row - i + (i < half ? 2 * i : 2 * (i - half) + 1);
}

static int read_whole(const struct model_shards *shards, const struct model_tensor *t, uint64_t from,
                      uint64_t bytes, void *to, struct helm_err *err)
{
    if (t->stored == STORED_SCALED) return scaled_read(shards, t, from, bytes, to, err);
    if (t->piece_count) return read_pieces(shards, t, from, bytes, to, err);
    if (t->stored != STORED_ROWS) return fused_read(shards->fd, t, from, bytes, to, err);
    const int fd = shards->fd[t->shard];
    if (!t->interleaved_heads) return file_pread_all(fd, to, (size_t)bytes, t->offset + from, t->name, err);
    const uint64_t rows = t->rows > 1 ? t->rows : t->cols, row_bytes = t->bytes / rows;
    int rc = 0;
    for (uint64_t at = from, part; at < from + bytes && !rc; at += part) {
        const uint64_t there = model_shards_row(t, rows, at / row_bytes), inside = at % row_bytes;
        part = row_bytes - inside;
        if (part > from + bytes - at) part = from + bytes - at;
        rc = file_pread_all(fd, (char *)to + (at - from), (size_t)part,
                            t->offset + there * row_bytes + inside, t->name, err);
    }
    return rc;
}

/* Reads a tensor of experts in parts, or of their router. */
static int read_cut(const struct model_shards *shards, const struct model_tensor *t, uint64_t from,
                    uint64_t bytes, void *to, struct helm_err *err)
{
    const struct model_tensor whole = parts_whole(t);
    const uint64_t row_bytes = parts_place_of(t, 0).bytes;
    int rc = 0;
    for (uint64_t at = from, run; at < from + bytes && !rc; at += run) {
        const struct parts_place place = parts_place_of(t, at / row_bytes);
        const uint64_t inside = at % row_bytes;
        char *const out = (char *)to + (at - from);
        run = row_bytes - inside < from + bytes - at ? row_bytes - inside : from + bytes - at;
        if (place.zero)
            memset(out, 0, (size_t)run);
        else
            rc = read_whole(shards, &whole, place.at + inside, run, out, err);
    }
    return rc;
}

int model_shards_read(const struct model_shards *shards, const struct model_tensor *t, uint64_t from,
                      uint64_t bytes, void *to, struct helm_err *err)
{
    const uint64_t place = ((uint64_t)t->shard << 48) + t->offset + from;
    const int rc = (t->cut ? read_cut : read_whole)(shards, t, from, bytes, to, err);
    if (rc) return rc;
    atomic_fetch_add_explicit(shards->content, content_of(to, (size_t)bytes, place), memory_order_relaxed);
    return 0;
}

int model_shards_read_rows(const struct model_shards *shards, const struct model_rows *what, void *to,
                           struct helm_err *err)
{
    const struct model_tensor *t = what->tensor;
    const uint64_t row_bytes = tensor_format_row_bytes(t->format, t->cols), bytes = what->rows * row_bytes;
    if (what->format == t->format) return model_shards_read(shards, t, what->row * row_bytes, bytes, to, err);
    struct tensor_rows rows = {.from = t->format,
                               .to = what->format,
                               .rows = what->rows,
                               .cols = (uint32_t)t->cols};
    void *stored = malloc((size_t)bytes);
    if (!stored) return helm_fail(err, HELM_E_NOMEM, "no memory for %u rows of %s", what->rows, t->name);
    int rc = model_shards_read(shards, t, what->row * row_bytes, bytes, stored, err);
    rows.values = stored;
    if (!rc && (rc = tensor_format_convert(&rows, to, err))) helm_err_prefix(err, "%s", t->name);
    free(stored);
    return rc;
}

void model_shards_close(struct model_shards *shards)
{
    while (shards->count) close(shards->fd[--shards->count]);
    free(shards->fd);
    free(shards->bytes);
    free(shards->content);
    *shards = (struct model_shards){0};
}

/* ---- vectors that are stored otherwise than they are used ---- */

/* values [rows][cols] becomes [cols][rows]. */
static int transpose(float *values, uint64_t rows, uint64_t cols, struct helm_err *err)
{
    const size_t bytes = (size_t)(rows * cols) * sizeof *values;
    float *copy = malloc(bytes);
    if (!copy) return helm_fail(err, HELM_E_NOMEM, "no memory for a convolution of %zu bytes", bytes);
    memcpy(copy, values, bytes);
    for (uint64_t r = 0; r < rows; r++)
        for (uint64_t c = 0; c < cols; c++) values[c * rows + r] = copy[r * cols + c];
    free(copy);
    return 0;
}

int model_vector_finish(const struct model_config *config, const struct model_tensor *t, float *values,
                        struct helm_err *err)
{
    const uint64_t count = t->rows * t->cols;
    for (const struct arch_vector *v = arch_of(config)->vectors; v && v->role != TENSOR_NONE; v++)
        for (uint64_t i = 0; v->role == t->role && i < count; i++)
            values[i] = v->form == VECTOR_OVER_ROOT  ? values[i] / sqrtf((float)count)
                        : config->gguf               ? values[i]
                        : v->form == VECTOR_LESS_ONE ? 1 + values[i]
                                                     : -expf(values[i]);
    return arch_role_of_channels(t->role) ? transpose(values, t->rows, t->cols, err) : 0;
}
