/* Formats of weights: how a matrix's values stand in memory. One row of the registry and one file a format.
 *
 * Everything that asks how large a weight is, where its rows begin, or what a value of it is, asks here: the
 * checkpoint reader, the planner, both workers' loaders, the reference kernels. Fast kernels of a format are
 * decoders beside the schedules that use them (common/cpu/kernels, worker-gpu/kernels). Pure functions and
 * constant tables; no state. To add a format: a row and a file here, its decoders, its tests.
 *
 * A matrix [rows][cols] is row-major. Along a row, `block_values` neighbouring values make a block of
 * `block_bytes`. Formats of `group_rows` > 1 store groups of `group_rows` rows, and a slice of such a matrix
 * takes whole groups. In formats that are `variable` the bytes of a group depend on its values: the matrix
 * begins with a table of offsets, and sizes asked of this file are the most that it can take. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "common/base/err.h"
#include "common/formats/dtype.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The first three are single numbers, in the order of enum dtype. */
enum tensor_format {
    FORMAT_BF16,
    FORMAT_F16,
    FORMAT_F32,
    FORMAT_BF16_PACKED, /* bf16 without loss in 0.7 of its bytes (packed.h) */
    FORMAT_FP8,         /* blocks of 128: a scale of 32 bits, numbers of E4M3 (fp8.h) */
    FORMAT_Q8_0,        /* blocks of 32: a scale of 16 bits, numbers of 8 (q8_0.h) */
    FORMAT_Q4_0,        /* from here on: blocks of fewer bits (blocks.h) */
    FORMAT_Q4_1,
    FORMAT_Q5_0,
    FORMAT_Q5_1,
    FORMAT_Q2_K,
    FORMAT_Q3_K,
    FORMAT_Q4_K,
    FORMAT_Q5_K,
    FORMAT_Q6_K,
    FORMAT_IQ4_NL,
    FORMAT_IQ4_XS,
    FORMAT_MXFP4,
    FORMAT_NVFP4,   /* only read, from files that have it otherwise (common/model/scaled.h) */
    FORMAT_IQ2_XXS, /* from here on: places in grids (blocks_grid.h), only read */
    FORMAT_IQ2_XS,
    FORMAT_IQ2_S,
    FORMAT_IQ3_XXS,
    FORMAT_IQ3_S,
    FORMAT_IQ1_S,
    FORMAT_IQ1_M,
    FORMAT_COUNT
};

/* A matrix as bytes. */
struct tensor_matrix {
    enum tensor_format format;
    const void *data; /* borrowed */
    uint64_t bytes;   /* that are there */
    uint32_t rows, cols;
};

struct tensor_format_traits {
    const char *name; /* "bf16", "bf16-packed": in plans, reports and options */
    const char *file; /* its dtype in a safetensors file, "BF16"; NULL: no file has it */
    enum dtype value; /* its values decode to this, exactly */
    enum dtype
        product; /* a GPU's matrix products of many tokens take them as this: rounded, where not `value` */
    uint32_t file_values, file_bytes;   /* of a block in files, where it is another; 0: it is not */
    uint32_t block_values, block_bytes; /* of a variable format: of the values before */
    uint32_t group_rows;
    bool variable;
    enum tensor_format from; /* the format that it is made of without loss; itself: of none */
    /* For a variable format: whether a matrix of this shape can have it, and bytes of one that can, at most.
     * Others take whole blocks, and are as long as these. */
    bool (*takes)(uint64_t rows, uint64_t cols);
    uint64_t (*bytes)(uint64_t rows, uint64_t cols);
    /* For a variable format: where group `group` begins, or the matrix ends (group = all), in bytes from the
     * matrix's first. Trusts the table of offsets. */
    uint64_t (*group_at)(const struct tensor_matrix *matrix, uint32_t group);
    /* The plain definition of the format: values of row `row` to out[cols]. Reads nothing outside the
     * matrix's bytes, whatever they are. HELM_E_FORMAT: they are none of this format, or too few. */
    int (*read_row)(const struct tensor_matrix *matrix, uint32_t row, float *out, struct helm_err *err);
    /* Makes a matrix of this format of values of `dtype` ([rows][cols]); `out` has room for bytes(rows,
     * cols). *bytes: what it has taken. NULL: it is only read. */
    int (*write)(const void *values, enum dtype dtype, uint32_t rows, uint32_t cols, void *out,
                 uint64_t *bytes, struct helm_err *err);
};

/* The registry; `format` < FORMAT_COUNT. */
const struct tensor_format_traits *tensor_format_of(enum tensor_format format);
const char *tensor_format_name(enum tensor_format format);
/* FORMAT_COUNT: no such name. */
enum tensor_format tensor_format_named(const char *name);
/* The same by a safetensors file's word for it. */
enum tensor_format tensor_format_of_file(const char *dtype);

/* A set of formats: one bit each. */
static inline unsigned format_bit(enum tensor_format format)
{
    return 1u << format;
}
/* Whether the format is single numbers: one value a block. */
static inline bool tensor_format_is_plain(enum tensor_format format)
{
    return format <= FORMAT_F32;
}
static inline enum tensor_format tensor_format_plain(enum dtype dtype)
{
    return (enum tensor_format)dtype;
}
static inline enum dtype tensor_format_value(enum tensor_format format)
{
    return tensor_format_of(format)->value;
}
static inline enum dtype tensor_format_product(enum tensor_format format)
{
    return tensor_format_of(format)->product;
}
static inline bool tensor_format_takes(enum tensor_format format, uint64_t rows, uint64_t cols)
{
    const struct tensor_format_traits *traits = tensor_format_of(format);
    if (traits->variable) return traits->takes(rows, cols);
    return rows > 0 && cols > 0 && cols % traits->block_values == 0 &&
           rows <= UINT64_MAX / sizeof(float) / cols;
}
/* For traits.read_row of a format that is not variable. HELM_E_FORMAT: the row does not lie in the matrix's
 * bytes. */
HELM_MUST_CHECK int tensor_format_check_row(const struct tensor_matrix *matrix, uint32_t row,
                                            struct helm_err *err);
/* Bytes of a matrix, with its table of offsets if it has one: exact, or the most of a variable format. */
static inline uint64_t tensor_format_bytes(enum tensor_format format, uint64_t rows, uint64_t cols)
{
    const struct tensor_format_traits *traits = tensor_format_of(format);
    if (traits->variable) return traits->bytes(rows, cols);
    return rows * (cols / traits->block_values) * traits->block_bytes;
}
/* Bytes of one row of a format that is not variable; of a variable one those of the values before. */
static inline uint64_t tensor_format_row_bytes(enum tensor_format format, uint64_t cols)
{
    const struct tensor_format_traits *traits = tensor_format_of(format);
    return cols / traits->block_values * traits->block_bytes;
}
/* Where row `row`, the first of a group, or the end (row = rows), is in bytes from the matrix's first. */
static inline uint64_t tensor_format_row_at(const struct tensor_matrix *matrix, uint32_t row)
{
    const struct tensor_format_traits *traits = tensor_format_of(matrix->format);
    if (!traits->variable) return row * tensor_format_row_bytes(matrix->format, matrix->cols);
    return traits->group_at(matrix, (row + traits->group_rows - 1) / traits->group_rows);
}
/* The values of one row as numbers: out[cols]. HELM_E_FORMAT as read_row says. */
HELM_MUST_CHECK static inline int tensor_format_read_row(const struct tensor_matrix *matrix, uint32_t row,
                                                         float *out, struct helm_err *err)
{
    return tensor_format_of(matrix->format)->read_row(matrix, row, out, err);
}

/* Whether matrices of one format can be laid down in another: as they are, by the format's writer from single
 * numbers, or without loss from the format that it is made of. */
bool tensor_format_converts(enum tensor_format from, enum tensor_format to);
/* Rows of a matrix; of formats of `group_rows` > 1 whole groups. */
struct tensor_rows {
    enum tensor_format from, to;
    uint32_t rows, cols;
    const void *values;
};
/* Lays them down at `out`, which has room for tensor_format_bytes(to, rows, cols). HELM_E_UNSUPPORTED where
 * tensor_format_converts says no. */
HELM_MUST_CHECK int tensor_format_convert(const struct tensor_rows *what, void *out, struct helm_err *err);

/* Rows of the registry, one a file. */
extern const struct tensor_format_traits tensor_format_bf16, tensor_format_f16, tensor_format_f32,
    tensor_format_bf16_packed, tensor_format_fp8, tensor_format_q8_0, tensor_format_q4_0, tensor_format_q4_1,
    tensor_format_q5_0, tensor_format_q5_1, tensor_format_q2_k, tensor_format_q3_k, tensor_format_q4_k,
    tensor_format_q5_k, tensor_format_q6_k, tensor_format_iq4_nl, tensor_format_iq4_xs, tensor_format_mxfp4,
    tensor_format_nvfp4, tensor_format_iq2_xxs, tensor_format_iq2_xs, tensor_format_iq2_s,
    tensor_format_iq3_xxs, tensor_format_iq3_s, tensor_format_iq1_s, tensor_format_iq1_m;

#ifdef __cplusplus
}
#endif
