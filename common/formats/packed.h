/* Packed weights: bf16 matrices without loss in about 11.3 of 16 bits, as they lie in the arena and cross the
 * link.
 *
 * Called by loaders of weights (packs), by the emulated device and tests (unpacks), by kernels that read the
 * layout below (worker-gpu/kernels/formats/decode_bf16_packed.cuh,
 * common/cpu/kernels/bf16_packed_avx512vbmi2.c) and by tools. Pure functions over caller-owned memory; no
 * state, no allocation; any number of threads may pack different groups at once. Every bit pattern comes back
 * as it was: NaN, Inf, -0 and subnormals too.
 *
 * A matrix [rows][cols], row-major and dense, is cut into *groups* of PACKED_ROWS rows; the last may have
 * fewer. A group is a run of rows * cols values (shape does not matter within it) and is packed by itself, so
 * groups differ in size. A table of offsets, one a group and one after the last, in units of PACKED_ALIGN
 * bytes from the matrix's first, says where each lies: any run of whole groups is one run of bytes.
 *
 * Weights of one matrix have few exponents. A packed group has one *base*: the 7 exponents from it on that
 * most of its values have get codes 0 to 6; other exponents are *escapes* (code 7) and stand in a list, a
 * byte each. A group that would not be smaller than its values is stored *raw*.
 *
 * Layout of a group, little-endian; `tiles` = ceil(values / PACKED_TILE):
 *   struct packed_header        16 bytes
 *   packed: uint32_t start[tiles + 1]: where in the list each tile's escapes begin; the last is their number
 *           0 up to a multiple of PACKED_ALIGN
 *           tiles records of PACKED_TILE_BYTES, values after the group's last as if they were code 0 and 0:
 *             uint32_t code[3][32]         codes of lane 0 .. 31, below
 *             uint8_t  rest[PACKED_TILE]   sign << 7 | mantissa, in order of values
 *           uint8_t escape[]: exponents in order of values
 *   raw:    0 up to a multiple of PACKED_ALIGN, then the values
 *   0 up to a multiple of PACKED_ALIGN
 *
 * A tile is what a warp expands. Lane L has the 4 runs k of 8 values at k * 256 + 8 * L, which it stores as
 * 16 bytes; i numbers a run's pairs of values, half the values of a pair. Let u[i] have the code of (k, i,
 * half) at bit 16 * half + 3 * k. The three words are w[i] = u[i] | n[i] << 12, where n[i] has bits 4 * i ..
 * 4 * i + 3 of each half of u[3]: so a shift and a mask give the codes of a pair of values where a pair's
 * exponents stand. Escapes are in order of values, so that a CPU can read a tile from its front. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/err.h"
#include "common/formats/dtype.h"

#define PACKED_ROWS       16  /* rows of a group */
#define PACKED_ALIGN      128 /* bytes; of groups, their sizes and their parts */
#define PACKED_TILE       1024
#define PACKED_CODE_BYTES 384
#define PACKED_TILE_BYTES (PACKED_CODE_BYTES + PACKED_TILE)
#define PACKED_ESCAPE     7u   /* the code of exponents in the list */
#define PACKED_BASE_MAX   248u /* so that base + PACKED_ESCAPE is an exponent */
#define PACKED_COLS_MAX   ((uint32_t)1 << 20)
/* The CPU computes with packed rows whose columns are a multiple of this
 * (common/cpu/kernels/bf16_packed_avx512vbmi2.c). */
#define PACKED_CPU_COLS (PACKED_TILE / 4)

enum packed_kind { PACKED_RAW, PACKED_CODED };
struct packed_header {
    uint32_t values;
    uint32_t escapes; /* 0 of raw ones */
    uint32_t units;   /* size of the whole group in PACKED_ALIGN bytes */
    uint8_t kind;     /* enum packed_kind */
    uint8_t base;     /* 0 .. PACKED_BASE_MAX; 0 of raw ones */
    uint8_t zero[2];
};

/* Whether such a matrix can be packed: bf16, at least one row, 1 .. PACKED_COLS_MAX columns, offsets within
 * 32 bits. It need not become smaller; groups of less than about 800 values do not. */
bool packed_takes(enum dtype dtype, uint32_t rows, uint32_t cols);

static inline uint32_t packed_groups(uint32_t rows)
{
    return rows / PACKED_ROWS + (rows % PACKED_ROWS != 0);
}
/* Values of group `group`. */
static inline uint32_t packed_group_values(uint32_t rows, uint32_t cols, uint32_t group)
{
    const uint32_t left = rows - group * PACKED_ROWS;
    return (left < PACKED_ROWS ? left : PACKED_ROWS) * cols;
}
static inline uint32_t packed_tiles(uint32_t values)
{
    return values / PACKED_TILE + (values % PACKED_TILE != 0);
}
static inline uint64_t packed_round(uint64_t bytes)
{
    return (bytes + PACKED_ALIGN - 1) / PACKED_ALIGN * PACKED_ALIGN;
}
/* Bytes of a coded group before its records: header and table. */
static inline uint32_t packed_table_bytes(uint32_t values)
{
    return (uint32_t)packed_round(sizeof(struct packed_header) +
                                  (packed_tiles(values) + 1) * sizeof(uint32_t));
}
/* The most bytes of a group of `values` values: those of a raw one. */
static inline uint64_t packed_group_bytes_max(uint32_t values)
{
    return PACKED_ALIGN + packed_round((uint64_t)values * sizeof(uint16_t));
}
/* No matrix is larger: its groups, without the table of offsets. */
uint64_t packed_matrix_bytes_max(uint32_t rows, uint32_t cols);
/* Bytes of the table of offsets: uint32_t [groups + 1]. */
static inline uint64_t packed_offsets_bytes(uint32_t rows)
{
    return ((uint64_t)packed_groups(rows) + 1) * sizeof(uint32_t);
}
/* Where the groups begin in a matrix that has its table in front (FORMAT_BF16_PACKED). */
#define PACKED_GROUPS_ALIGN UINT64_C(64)
static inline uint64_t packed_groups_at(uint32_t rows)
{
    return (packed_offsets_bytes(rows) + PACKED_GROUPS_ALIGN - 1) / PACKED_GROUPS_ALIGN * PACKED_GROUPS_ALIGN;
}
/* Where group `group` begins, in bytes from the matrix's first; also of group `groups`: the matrix's size. */
static inline uint64_t packed_at(const uint32_t *offset, uint32_t group)
{
    return (uint64_t)offset[group] * PACKED_ALIGN;
}

/* How a group will be packed, known from its exponents alone: first measure all groups (any threads), add up
 * their sizes, then write each in its place (any threads). */
struct packed_measure {
    uint32_t bytes; /* a multiple of PACKED_ALIGN, at most packed_group_bytes_max(values) */
    uint32_t escapes;
    uint8_t kind, base;
};
/* 1 <= values <= PACKED_ROWS * PACKED_COLS_MAX; need not be aligned beyond uint16_t. */
void packed_measure(const uint16_t *value, uint32_t values, struct packed_measure *measure);
/* Writes exactly measure->bytes to `packed` (16-byte aligned; must not overlap the values). HELM_E_MISMATCH:
 * the values are not those that were measured; what was written is then no group, but stays within bytes. */
HELM_MUST_CHECK int packed_write(const struct packed_measure *measure, const uint16_t *value, uint32_t values,
                                 void *packed, struct helm_err *err);
/* A whole matrix by this thread: groups to `packed` (packed_matrix_bytes_max(rows, cols) bytes), offsets to
 * offset[groups + 1]. HELM_E_UNSUPPORTED: packed_takes says no. */
HELM_MUST_CHECK int packed_write_matrix(const uint16_t *value, uint32_t rows, uint32_t cols, void *packed,
                                        uint32_t *offset, struct helm_err *err);

/* Unpacks one group of `values` values from `bytes` bytes at `packed` (4-byte aligned; bytes may be more than
 * the group has) to value[values]. Reads and writes nothing outside, whatever the bytes are: HELM_E_FORMAT
 * with what is wrong with them. The plain reference for the GPU's kernel. */
HELM_MUST_CHECK int packed_read(const void *packed, uint64_t bytes, uint32_t values, uint16_t *value,
                                struct helm_err *err);
/* Groups `first` .. first + groups - 1 of a matrix. */
struct packed_part {
    const void *packed;     /* where group `first` lies */
    uint64_t bytes;         /* of `packed` */
    const uint32_t *offset; /* the matrix's table */
    uint32_t rows, cols, first, groups;
};
/* To value[], rows of those groups only. */
HELM_MUST_CHECK int packed_read_groups(const struct packed_part *part, uint16_t *value, struct helm_err *err);

/* The same bytes by plain C, whatever the processor has: for tests. */
HELM_MUST_CHECK int packed_write_ref(const struct packed_measure *measure, const uint16_t *value,
                                     uint32_t values, void *packed, struct helm_err *err);
