/* The worker's weights: matrices in the arena's weights region, small vectors as fp32 in private memory.
 *
 * Called by engine.c at load. Matrices stand in order of use, each on a 64-byte boundary: embedding (unless
 * it is also the head), the layers of this worker's stages, head: those that the plan gives the CPU. After
 * loading the region is mapped read-only. `struct weights` owns the vectors and the table; the matrices
 * belong to the arena. */
#ifndef HELM_WORKER_CPU_WEIGHTS_H
#define HELM_WORKER_CPU_WEIGHTS_H

#include <stdatomic.h>
#include <stdint.h>

#include "common/arena.h"
#include "common/model/model.h"
#include "common/plan.h"
#include "worker-cpu/kernel_set.h"
#include "worker-cpu/pool.h"

struct weights_matrix {
    const void *data; /* NULL: the model has none, or it is not this worker's */
    enum dtype dtype;
    uint64_t rows, cols;
};

struct weights {
    const struct model *model;     /* borrowed */
    struct weights_matrix *matrix; /* [layers + 1][TENSOR_ROLE_COUNT]; the first row is for layer -1 */
    float **vector;                /* same indexing */
    float *vectors;                /* the memory behind them */
    struct weights_place *place;   /* [place_count], in region order */
    uint32_t place_count;
    uint64_t region_bytes; /* used of the weights region */
    uint64_t matrix_bytes; /* without padding */
    unsigned dtypes;       /* bit per enum dtype of the matrices */
    uint64_t digest;       /* of files and layout: equal digests mean equal bytes in the region */
    uint64_t huge_bytes, small_bytes;
};

/* Lays out what this worker needs of `plan` (every stage whose home is `cpu`); reads no weights. */
HELM_MUST_CHECK int weights_plan(const struct model *model, const struct plan *plan, struct weights *weights,
                                 struct helm_err *err);

/* Reads matrices into the arena (skipped with `ready`) with all threads of the pool, and the vectors into
 * private memory. *bytes_done counts up as bytes arrive; *cancel set by another thread ends it with
 * HELM_E_CANCELLED. */
HELM_MUST_CHECK int weights_load(struct weights *weights, const struct arena *arena,
                                 const struct kernel_set *kernels, struct pool *pool, bool ready,
                                 _Atomic uint64_t *bytes_done, const _Atomic bool *cancel,
                                 struct helm_err *err);
/* Reads the vectors and fills in the table with matrices at `region`, loading none: for printing programs. */
HELM_MUST_CHECK int weights_place(struct weights *weights, const void *region,
                                  const struct kernel_set *kernels, struct helm_err *err);
void weights_free(struct weights *weights);

static inline const struct weights_matrix *weights_matrix(const struct weights *w, enum tensor_role role,
                                                          int32_t layer)
{
    return &w->matrix[(uint32_t)(layer + 1) * TENSOR_ROLE_COUNT + role];
}
static inline const float *weights_vector(const struct weights *w, enum tensor_role role, int32_t layer)
{
    return w->vector[(uint32_t)(layer + 1) * TENSOR_ROLE_COUNT + role];
}

#endif
