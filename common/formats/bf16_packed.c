/* bf16 weights without loss in about 0.7 of their bytes, as a row of the registry. packed.h has the layout of
 * groups; a matrix is its table of offsets and then, on a boundary, its groups. See tensor_format.h. */
#include <stdlib.h>

#include "common/formats/convert.h"
#include "common/formats/packed.h"
#include "common/formats/tensor_format.h"

/* A slice of a stacked operation (q k v) is whole groups of each of its matrices. */
static bool takes(uint64_t rows, uint64_t cols)
{
    return rows <= UINT32_MAX && cols <= UINT32_MAX && rows % PACKED_ROWS == 0 &&
           packed_takes(DTYPE_BF16, (uint32_t)rows, (uint32_t)cols);
}

static uint64_t bytes_of(uint64_t rows, uint64_t cols)
{
    return packed_groups_at((uint32_t)rows) + packed_matrix_bytes_max((uint32_t)rows, (uint32_t)cols);
}

static uint64_t group_at(const struct tensor_matrix *m, uint32_t group)
{
    return packed_groups_at(m->rows) + packed_at(m->data, group);
}

static int read_row(const struct tensor_matrix *m, uint32_t row, float *out, struct helm_err *err)
{
    const uint64_t groups_at = packed_groups_at(m->rows);
    const uint32_t group = row / PACKED_ROWS, *offset = m->data;
    if (row >= m->rows || groups_at > m->bytes || packed_at(offset, group + 1) > m->bytes - groups_at ||
        offset[group] > offset[group + 1])
        return helm_fail(err, HELM_E_FORMAT, "bf16-packed: row %u of %u is not in the matrix's %llu bytes",
                         row, m->rows, (unsigned long long)m->bytes);
    const uint32_t values = packed_group_values(m->rows, m->cols, group);
    uint16_t *value = malloc(values * sizeof *value);
    if (!value) return helm_fail(err, HELM_E_NOMEM, "no memory for a group of %u columns", m->cols);
    int rc = packed_read((const char *)m->data + groups_at + packed_at(offset, group),
                         packed_at(offset, group + 1) - packed_at(offset, group), values, value, err);
    for (uint32_t c = 0; c < m->cols && !rc; c++)
        out[c] = convert_bf16_f32(value[(uint64_t)(row % PACKED_ROWS) * m->cols + c]);
    free(value);
    return rc;
}

static int write(const void *values, enum dtype dtype, uint32_t rows, uint32_t cols, void *out,
                 uint64_t *bytes, struct helm_err *err)
{
    const uint64_t groups_at = packed_groups_at(rows);
    if (dtype != DTYPE_BF16)
        return helm_fail(err, HELM_E_UNSUPPORTED, "bf16-packed is made of bf16 without loss, not of %s",
                         dtype_name(dtype));
    int rc = packed_write_matrix(values, rows, cols, (char *)out + groups_at, out, err);
    if (!rc && bytes) *bytes = groups_at + packed_at(out, packed_groups(rows));
    return rc;
}

const struct tensor_format_traits tensor_format_bf16_packed = {.name = "bf16-packed",
                                                               .value = DTYPE_BF16,
                                                               .product = DTYPE_BF16,
                                                               .block_values = 1,
                                                               .block_bytes = 2,
                                                               .group_rows = PACKED_ROWS,
                                                               .variable = true,
                                                               .from = FORMAT_BF16,
                                                               .takes = takes,
                                                               .bytes = bytes_of,
                                                               .group_at = group_at,
                                                               .read_row = read_row,
                                                               .write = write};
