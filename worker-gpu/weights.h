/* The GPU worker's weights: in VRAM, read in parallel through a few pieces of pinned memory.
 *
 * Called by engine.c at load. Matrices of units at home on `gpu` stand in order of use, each on a 256-byte
 * boundary, q k v and gate up one behind the other (a matrix product can take them as one); norm weights and
 * biases of every unit that the GPU computes in any phase follow as fp32. Matrices of `stream` units stay in
 * the arena, where the CPU worker puts them: here are only their addresses. There is never a second whole
 * copy in host memory. `struct gpu_weights` owns tables and device memory. */
#ifndef HELM_WORKER_GPU_WEIGHTS_H
#define HELM_WORKER_GPU_WEIGHTS_H

#include "common/model/model.h"
#include "worker-gpu/device.h"

struct gpu_matrix {
    const void *data; /* device; NULL: the model has none, or it is not this worker's, or it is streamed */
    const void *host; /* in the arena, of `stream` units; else NULL */
    /* of those that are packed: the table of offsets in the arena, which is there with them, and on the
     * device once it is (expand.h); the groups are at `host` */
    const uint32_t *offset, *offset_device;
    enum dtype dtype;
    uint32_t rows, cols;
};

struct gpu_weights {
    const struct model *model;       /* borrowed */
    struct device *device;           /* borrowed */
    struct gpu_matrix *matrix;       /* [layers + 1][TENSOR_ROLE_COUNT]; the first row is for layer -1 */
    const float **vector;            /* same indexing; device */
    struct gpu_weights_place *place; /* [place_count], in order */
    uint32_t place_count;
    uint64_t bytes; /* of VRAM */
    uint64_t matrix_bytes, vector_at;
    uint64_t
        step_bytes; /* of the matrices those that a step reads: not an embedding, of which it takes rows */
    uint64_t host_first, host_end; /* of the weights region: what is streamed lies between; 0, 0: nothing */
    bool offsets_known;            /* tables of packed matrices may be read */
    void *memory;
};

/* Lays out what the plan gives the GPU; reads and allocates nothing on the device. `region` is where the
 * arena's weights lie and its size (they need not be there yet). */
HELM_MUST_CHECK int gpu_weights_plan(const struct model *model, const struct plan *plan, const void *region,
                                     uint64_t region_bytes, struct gpu_weights *weights,
                                     struct helm_err *err);
/* Allocates and fills VRAM. *bytes_done counts up as bytes are read; *cancel set by another thread ends it
 * with HELM_E_CANCELLED. Returns when everything has arrived. */
HELM_MUST_CHECK int gpu_weights_load(struct gpu_weights *weights, struct device *device, uint32_t threads,
                                     _Atomic uint64_t *bytes_done, const _Atomic bool *cancel,
                                     struct helm_err *err);
/* Fills in the tables with matrices and vectors from `base` on, loading none: for printing programs. */
void gpu_weights_pretend(struct gpu_weights *weights, const void *base);
void gpu_weights_free(struct gpu_weights *weights);

static inline const struct gpu_matrix *gpu_matrix_of(const struct gpu_weights *w, enum tensor_role role,
                                                     int32_t layer)
{
    return &w->matrix[(uint32_t)(layer + 1) * TENSOR_ROLE_COUNT + role];
}
static inline const float *gpu_vector_of(const struct gpu_weights *w, enum tensor_role role, int32_t layer)
{
    return role == TENSOR_NONE ? NULL : w->vector[(uint32_t)(layer + 1) * TENSOR_ROLE_COUNT + role];
}

#endif
