/* The GPU worker's weights: in VRAM, read in parallel through a few pieces of pinned memory.
 *
 * Called by engine.c at load. Matrices lie where the plan's placements say (common/plan/placement.h); norm
 * weights and biases of every unit that the GPU computes in any phase follow as fp32. Matrices of `stream`
 * units stay in the arena, where the CPU worker puts them: here are only their addresses. There is never a
 * second whole copy in host memory.
 *
 * Matrices of variable size (packed, common/formats/packed.h) are stacked in the rooms of all of them: their
 * tables of offsets and then their groups, one matrix after the other as they come out. Loading fails with
 * HELM_E_CAPACITY where the rooms are not enough. `struct gpu_weights` owns tables and device memory.
 * weights.c finds places, weights/load.c loads, weights/made.c makes some up. */
#pragma once

#include "common/plan/placement.h"
#include "worker-gpu/device/device.h"

struct gpu_matrix {
    const void *data; /* device; NULL: the model has none, or it is not this worker's, or it is streamed */
    const void *host; /* in the arena, of `stream` units; else NULL */
    enum tensor_format format;
    /* For a variable format, whose groups are at `data` or `host`: the table of offsets in host memory, and
     * on the device. A streamed matrix has its table in the arena, and ring.h has it copied to the device;
     * others have it there once loaded. */
    const uint32_t *offset, *offset_device;
    uint32_t rows, cols;
};

struct gpu_weights {
    const struct model *model;       /* borrowed */
    enum plan_processor self;        /* the plan's processor whose weights they are */
    struct device *device;           /* borrowed */
    struct gpu_matrix *matrix;       /* [layers + 1][TENSOR_ROLE_COUNT]; the first row is for layer -1 */
    const float **vector;            /* same indexing; device */
    struct gpu_weights_place *place; /* [place_count], in order */
    uint32_t place_count;
    uint64_t vectors_content, matrices_content; /* of what was read (common/model/content.h) */
    uint64_t bytes;                             /* of VRAM */
    uint64_t matrix_bytes;                      /* as they are in the files */
    uint64_t step_bytes; /* that a step reads: none of an embedding, of which it takes rows; of packed ones
                            their packed bytes, once they are loaded */
    uint64_t vector_at, vector_bytes;
    uint64_t packed_at, packed_room; /* of packed ones: tables, then groups */
    uint64_t packed_table_bytes;     /* of all tables */
    uint64_t packed_bytes;           /* of the groups, once they are loaded */
    uint32_t *packed_table;          /* all, in memory that the device knows; NULL before */
    uint64_t host_first, host_end;   /* of the weights region: what is streamed lies between; 0, 0: nothing */
    bool offsets_known;              /* tables of packed matrices may be read */
    void *memory;
};

/* One matrix or vector in VRAM. */
struct gpu_weights_place {
    const struct model_tensor *tensor;
    enum tensor_format format;
    uint64_t offset; /* of packed ones among the groups, known once it is loaded */
    uint64_t table;  /* of packed ones, in bytes among the tables */
};

/* Checks the plan's placements and takes them; reads and allocates nothing on the device. `region` is where
 * the arena's weights lie and its size (they need not be there yet). */
HELM_MUST_CHECK int gpu_weights_plan(const struct model *model, const struct plan *plan,
                                     enum plan_processor self, const void *region, uint64_t region_bytes,
                                     struct gpu_weights *weights, struct helm_err *err);
/* Allocates and fills VRAM. *bytes_done counts up as bytes are read; *cancel set by another thread ends it
 * with HELM_E_CANCELLED. Returns when everything has arrived. */
HELM_MUST_CHECK int gpu_weights_load(struct gpu_weights *weights, struct device *device, uint32_t threads,
                                     _Atomic uint64_t *bytes_done, const _Atomic bool *cancel,
                                     struct helm_err *err);
/* The same of a model without files, which is only measured: random blocks and small vectors
 * (weights/made.c). */
HELM_MUST_CHECK int gpu_weights_make(struct gpu_weights *weights, struct helm_err *err);
/* Vectors of either, from files or (shards NULL) made up. (weights/load.c) */
struct model_shards;
HELM_MUST_CHECK int gpu_weights_load_vectors(struct gpu_weights *weights, const struct model_shards *shards,
                                             struct helm_err *err);
void gpu_weights_free(struct gpu_weights *weights);
/* Where groups begin: after the tables. */
static inline uint64_t gpu_weights_groups_at(const struct gpu_weights *w)
{
    return w->packed_at + w->packed_table_bytes;
}
/* Notes in the tables where matrices and vectors are, from `base` on; for printing programs, too, which load
 * none. */
void gpu_weights_fill_tables(struct gpu_weights *w, const char *base);
/* The table of a packed matrix in the arena, which the CPU worker wrote: what it says decides where copies
 * read. */
HELM_MUST_CHECK int gpu_weights_check_offsets(const struct gpu_matrix *matrix, struct helm_err *err);

static inline const struct gpu_matrix *gpu_matrix_of(const struct gpu_weights *w, enum tensor_role role,
                                                     int32_t layer)
{
    return &w->matrix[(uint32_t)(layer + 1) * TENSOR_ROLE_COUNT + role];
}
static inline const float *gpu_vector_of(const struct gpu_weights *w, enum tensor_role role, int32_t layer)
{
    return role == TENSOR_NONE ? NULL : w->vector[(uint32_t)(layer + 1) * TENSOR_ROLE_COUNT + role];
}
