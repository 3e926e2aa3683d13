/* Tensors of files that are not row by row. See fused.h. */
#include "common/model/fused.h"

#include <stdlib.h>
#include <string.h>

#include "common/base/file.h"
#include "common/formats/convert.h"
#include "common/model/arch.h"

#define BLOCK_VALUES 32
#define BLOCK_BYTES  17 /* of FORMAT_MXFP4: the scale, then: */
#define NUMBER_BYTES 16
#define RUN_BYTES    (1u << 20) /* of a file that are read at once, about */

uint64_t fused_expert_rows(const struct model_config *c)
{
    return c->expert_intermediate;
}
uint64_t fused_expert_row(const struct model_config *c, uint32_t number, uint64_t row)
{
    const uint64_t rows = c->expert_intermediate;
    return row / rows * 2 * rows + number * rows + row % rows;
}
uint64_t fused_down_rows(const struct model_config *c)
{
    return c->hidden;
}
uint64_t fused_same_row(const struct model_config *c, uint32_t number, uint64_t row)
{
    (void)c, (void)number;
    return row;
}

const struct fused_tensor *fused_of(const struct model_config *config, uint32_t index)
{
    const bool blocks = config->experts_format == FORMAT_MXFP4;
    for (const struct fused_tensor *f = arch_of(config)->fused; f && f->roles; f++) {
        const bool experts = f->part == FUSED_BLOCKS || f->part == FUSED_SCALES || f->part == FUSED_COLUMNS;
        if (!(config->gguf ? f->gguf : f->name) || !model_role_exists(config, f->role[0])) continue;
        if (experts && blocks == (f->part == FUSED_COLUMNS)) continue;
        if (index-- == 0) return f;
    }
    return NULL;
}

uint32_t fused_shape(const struct model_config *config, const struct fused_tensor *what, uint64_t shape[4])
{
    const uint64_t experts = config->router.experts;
    uint64_t rows = 0, cols = 0;
    (void)model_expected_shape(config, what->role[0], -1, &rows, &cols);
    if (what->part == FUSED_HEADS) {
        shape[0] = config->heads * cols;
        shape[1] = rows / config->heads;
        (void)model_expected_shape(config, what->role[1], -1, &rows, &cols);
        shape[0] += rows;
        return 2;
    }
    if (what->part == FUSED_ROWS || what->part == FUSED_RUNS) {
        const bool vector = arch_role_is_vector(what->role[0]);
        uint64_t all = vector ? cols : rows, more;
        for (uint32_t i = 1; i < what->roles; i++) {
            (void)model_expected_shape(config, what->role[i], -1, &rows, &more);
            all += vector ? more : rows;
        }
        if (!arch_role_of_experts(what->role[0]) || experts == 0) {
            shape[0] = all;
            shape[1] = cols;
            return vector ? 1 : 2;
        }
        shape[0] = experts;
        shape[1] = all / experts;
        shape[2] = cols;
        return 3;
    }
    shape[0] = experts;
    if (what->part == FUSED_IN_TURN) {
        shape[1] = cols * what->roles;
        return 2;
    }
    rows = experts ? rows / experts * what->roles : 0;
    shape[1] = what->part == FUSED_COLUMNS ? cols : rows;
    shape[2] = what->part == FUSED_COLUMNS ? rows : cols / BLOCK_VALUES;
    shape[3] = NUMBER_BYTES;
    return what->part == FUSED_BLOCKS ? 4 : 3;
}

void fused_mxfp4_numbers(const uint8_t file[NUMBER_BYTES], uint8_t block[NUMBER_BYTES])
{
    for (int i = 0; i < NUMBER_BYTES / 2; i++) {
        const uint8_t low = file[i], high = file[i + NUMBER_BYTES / 2];
        block[2 * i] = (uint8_t)((low & 15) | (high & 15) << 4);
        block[2 * i + 1] = (uint8_t)(low >> 4 | (high & 0xf0));
    }
}

/* ---- reading ---- */

struct reading {
    const int *fds;
    const struct model_tensor *t;
    uint64_t turns, row_bytes;
};

/* Rows first .. first + count of all the tensor's, whose numbers and scales lie in runs. */
static int read_blocks(const struct reading *r, uint64_t first, uint64_t count, uint8_t *to,
                       struct helm_err *err)
{
    const struct model_tensor *t = r->t;
    const uint64_t blocks = t->cols / BLOCK_VALUES, skip = r->turns * blocks,
                   run = ((count - 1) * r->turns + 1) * blocks, at = (first * r->turns + t->turn) * blocks;
    uint8_t *numbers = malloc((size_t)(run * (NUMBER_BYTES + 1))), *scales = numbers + run * NUMBER_BYTES;
    if (!numbers) return helm_fail(err, HELM_E_NOMEM, "no memory for rows of %s", t->name);
    int rc = file_pread_all(r->fds[t->shard], numbers, (size_t)(run * NUMBER_BYTES),
                            t->offset + at * NUMBER_BYTES, t->name, err);
    if (!rc)
        rc =
            file_pread_all(r->fds[t->scales.shard], scales, (size_t)run, t->scales.offset + at, t->name, err);
    for (uint64_t row = 0; row < count && !rc; row++)
        for (uint64_t b = 0; b < blocks; b++, to += BLOCK_BYTES) {
            to[0] = scales[row * skip + b];
            fused_mxfp4_numbers(numbers + (row * skip + b) * NUMBER_BYTES, to + 1);
        }
    free(numbers);
    return rc;
}

/* The same of one expert's columns, each a run of its rows. */
static int read_columns(const struct reading *r, uint64_t first, uint64_t count, uint8_t *to,
                        struct helm_err *err)
{
    const struct model_tensor *t = r->t;
    const uint64_t each = r->row_bytes / t->cols, rows = t->rows / t->experts, expert = first / rows,
                   column = rows * r->turns * each, run = ((count - 1) * r->turns + 1) * each,
                   at = t->offset + expert * t->cols * column + (first % rows * r->turns + t->turn) * each;
    uint8_t *values = malloc((size_t)run);
    int rc = values ? 0 : helm_fail(err, HELM_E_NOMEM, "no memory for rows of %s", t->name);
    for (uint64_t c = 0; c < t->cols && !rc; c++) {
        rc = file_pread_all(r->fds[t->shard], values, (size_t)run, at + c * column, t->name, err);
        for (uint64_t row = 0; row < count && !rc; row++)
            memcpy(to + row * r->row_bytes + c * each, values + row * r->turns * each, (size_t)each);
    }
    free(values);
    return rc;
}

/* A row's values, which take turns with another tensor's. */
static int read_in_turn(const struct reading *r, uint64_t row, uint8_t *to, struct helm_err *err)
{
    const struct model_tensor *t = r->t;
    const uint64_t each = r->row_bytes / t->cols, file_row = r->row_bytes * r->turns;
    uint8_t *values = malloc((size_t)file_row);
    if (!values) return helm_fail(err, HELM_E_NOMEM, "no memory for a row of %s", t->name);
    const int rc =
        file_pread_all(r->fds[t->shard], values, (size_t)file_row, t->offset + row * file_row, t->name, err);
    for (uint64_t c = 0; c < t->cols && !rc; c++)
        memcpy(to + c * each, values + (c * r->turns + t->turn) * each, (size_t)each);
    free(values);
    return rc;
}

static void put_value(uint8_t *to, enum dtype dtype, uint64_t i, float value)
{
    const uint16_t half = dtype == DTYPE_BF16 ? convert_f32_bf16(value) : convert_f32_f16(value);
    if (dtype == DTYPE_F32)
        memcpy(to + i * sizeof value, &value, sizeof value);
    else
        memcpy(to + i * sizeof half, &half, sizeof half);
}

/* The same of a head's columns, each of which is a row of the file in a format of its own. */
static int read_turned(const struct reading *r, uint64_t first, uint64_t count, uint8_t *to,
                       struct helm_err *err)
{
    const struct model_tensor *t = r->t;
    const uint64_t rows = t->rows / t->experts, head = first / rows, from = first % rows, cols = t->cols,
                   stored = cols * tensor_format_row_bytes(t->file_format, rows),
                   at = t->offset + head * t->head_rows * (stored / cols);
    float *values = malloc((size_t)(rows * sizeof *values));
    uint8_t *file = malloc((size_t)stored);
    int rc = values && file ? 0 : helm_fail(err, HELM_E_NOMEM, "no memory for rows of %s", t->name);
    if (!rc) rc = file_pread_all(r->fds[t->shard], file, (size_t)stored, at, t->name, err);
    const struct tensor_matrix in_file = {.format = t->file_format,
                                          .data = file,
                                          .bytes = stored,
                                          .rows = (uint32_t)cols,
                                          .cols = (uint32_t)rows};
    for (uint64_t c = 0; c < cols && !rc; c++) {
        rc = tensor_format_read_row(&in_file, c, values, err);
        for (uint64_t row = 0; row < count && !rc; row++)
            put_value(to, tensor_format_value(t->format), row * cols + c, values[from + row]);
    }
    free(file);
    free(values);
    return rc;
}

/* As many whole rows from `first` on as are read at once, `most` at most; returns how many, or an error. */
static int64_t read_some(const struct reading *r, uint64_t first, uint64_t most, uint8_t *to,
                         struct helm_err *err)
{
    const struct model_tensor *t = r->t;
    const uint64_t rows = t->rows / t->experts, left = rows - first % rows;
    uint64_t count = RUN_BYTES / (r->row_bytes * r->turns) + 1;
    int rc;
    if (count > most) count = most;
    if (t->stored == STORED_COLUMNS) {
        count = most < left ? most : left;
        rc = read_columns(r, first, count, to, err);
    } else if (t->stored == STORED_TURNED) {
        count = most < left ? most : left;
        rc = read_turned(r, first, count, to, err);
    } else if (t->stored == STORED_BLOCKS_APART) {
        rc = read_blocks(r, first, count, to, err);
    } else {
        count = 1;
        rc = read_in_turn(r, first, to, err);
    }
    return rc ? rc : (int64_t)count;
}

int fused_read(const int *fds, const struct model_tensor *t, uint64_t from, uint64_t bytes, void *to,
               struct helm_err *err)
{
    const struct reading r = {.fds = fds,
                              .t = t,
                              .turns = t->turns ? t->turns : 1,
                              .row_bytes = t->bytes / t->rows};
    uint8_t *out = to, *row = NULL;
    int64_t rc = 0;
    for (uint64_t at = from, end = from + bytes, part; at < end && rc >= 0; at += part, out += part) {
        const uint64_t first = at / r.row_bytes, inside = at % r.row_bytes;
        if (inside == 0 && end - at >= r.row_bytes) {
            rc = read_some(&r, first, (end - at) / r.row_bytes, out, err);
            part = rc > 0 ? (uint64_t)rc * r.row_bytes : 0;
            continue;
        }
        part = r.row_bytes - inside < end - at ? r.row_bytes - inside : end - at;
        if (!row && !(row = malloc((size_t)r.row_bytes)))
            rc = helm_fail(err, HELM_E_NOMEM, "no memory for a row of %s", t->name);
        else if ((rc = read_some(&r, first, 1, row, err)) > 0)
            memcpy(out, row + inside, (size_t)part);
    }
    free(row);
    return rc < 0 ? (int)rc : 0;
}
