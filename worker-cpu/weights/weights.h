/* The worker's weights: matrices in the arena's weights region, small vectors as fp32 in private memory.
 *
 * Called by engine.c at load. The region holds every matrix that stays in host memory, where the plan's
 * placements say: this worker loads them all, also those that only the GPU computes with, in the format that
 * they say; weights.c those of variable size. Vectors are kept of what this worker computes in some
 * phase. After loading the region is mapped read-only. `struct weights` owns the vectors and the tables; the
 * matrices belong to the arena. */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "common/shared/arena.h"
#include "common/model/shards.h"
#include "common/plan/placement.h"
#include "common/cpu/pool.h"
#include "worker-cpu/disk/disk.h"

struct weights {
    const struct model *model; /* borrowed, as is the plan, which `host` is of */
    /* [layers + 1][TENSOR_ROLE_COUNT]; the first row is for layer -1. data NULL: the model has none, or it is
     * not in the region, or made for the GPU alone. Of experts on disk the shape counts, not where they lie;
     * whole units on disk have their places in the ring. */
    struct tensor_matrix *matrix;
    float **vector;                 /* same indexing */
    float *vectors;                 /* their memory */
    struct placement *vector_place; /* [vector_count]: in that memory */
    uint32_t vector_count;
    uint64_t vector_bytes;
    struct placements host; /* the region's contents and their places */
    struct placements disk; /* weights that are read for each step (worker-cpu/disk) */
    uint64_t matrix_bytes;  /* of it, as they are in the files */
    /* [unit_count(layers) + 2]: unit u is computed here in some phase; then embedding, head */
    bool *computed;
    bool inputs;      /* likewise model_math.inputs */
    unsigned formats; /* format_bit of the matrices computed with */
    uint64_t digest;  /* of files and layout: equal digests mean equal bytes in the region */
    uint64_t vectors_content, matrices_content; /* of what was read (common/model/content.h); 0: nothing */
    uint64_t huge_bytes, small_bytes;
    uint64_t packed_from, packed_to; /* bytes of the matrices that are packed, before and after */
};

/* Checks the plan's placements and notes what this worker computes with; reads no weights. */
HELM_MUST_CHECK int weights_plan(const struct model *model, const struct plan *plan, struct weights *weights,
                                 struct helm_err *err);

struct weights_loading {
    const struct arena *arena;
    struct pool *pool;
    bool ready;                   /* the matrices are there already */
    bool blank;                   /* they stay zeros */
    _Atomic uint64_t *bytes_done; /* counts up as bytes are read; or NULL */
    const _Atomic bool *cancel;   /* set by another thread ends it with HELM_E_CANCELLED; or NULL */
};
/* Reads matrices into the arena with all threads of the pool, and the vectors into private memory. */
HELM_MUST_CHECK int weights_load(struct weights *weights, const struct weights_loading *loading,
                                 struct helm_err *err);
/* Reads the vectors and fills in the table with matrices at `region`, loading none: for printing programs. */
HELM_MUST_CHECK int weights_place(struct weights *weights, const void *region, struct helm_err *err);
/* After loading: matrices that pass through a ring are where they will be read to. */
void weights_read_from(struct weights *weights, const struct disk *disk);
void weights_free(struct weights *weights);

static inline const struct tensor_matrix *weights_matrix(const struct weights *w, enum tensor_role role,
                                                         int32_t layer)
{
    return &w->matrix[(uint32_t)(layer + 1) * TENSOR_ROLE_COUNT + role];
}
/* NULL: the worker has none; so it is of TENSOR_NONE. */
static inline const float *weights_vector(const struct weights *w, enum tensor_role role, int32_t layer)
{
    return w->vector[(uint32_t)(layer + 1) * TENSOR_ROLE_COUNT + role];
}
