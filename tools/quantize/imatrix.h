/* Importance of a model's columns, as llama.cpp's imatrix tool measures it: of each matrix the mean square of
 * what its columns are multiplied by. Files come from strangers: everything is checked before it is used.
 * Called by helm-quantize, tests and the fuzz target. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "common/base/err.h"
#include "common/model/gguf.h"

#define IMATRIX_BYTES_MAX   (1u << 30)
#define IMATRIX_ENTRIES_MAX MODEL_TENSORS_MAX
#define IMATRIX_COLS_MAX    MODEL_INTERMEDIATE_MAX

struct imatrix_entry {
    char name[GGUF_NAME_MAX]; /* of the matrix, as in GGUF files */
    float *importance;        /* [cols], their mean is 1; of all experts [experts][cols] */
    uint32_t cols;
};
struct imatrix {
    struct imatrix_entry *entries;
    uint32_t count;
};

/* A file of either kind: GGUF, or the older binary one. Matrices that were not measured (no call, all zero)
 * are left out; experts that no token chose have columns of equal importance. On failure *imatrix is
 * zeroed. */
HELM_MUST_CHECK int imatrix_read(const char *path, struct imatrix *imatrix, struct helm_err *err);
HELM_MUST_CHECK int imatrix_parse(const char *what, const uint8_t *bytes, size_t length,
                                  struct imatrix *imatrix, struct helm_err *err);
void imatrix_free(struct imatrix *imatrix);

/* The importance of a matrix's `cols` columns; NULL in *importance: it was not measured. */
HELM_MUST_CHECK int imatrix_find(const struct imatrix *imatrix, const char *name, uint64_t cols,
                                 const float **importance, struct helm_err *err);
