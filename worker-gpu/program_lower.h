/* Inside lowering: what program.c (spans, ends), program_layer.c (halves of layers) and program_chain.c
 * (chains) share.
 *
 * Entries are added to one list in the order in which they are issued. An error is kept in `rc`; what is
 * added after it goes nowhere. */
#ifndef HELM_WORKER_GPU_PROGRAM_LOWER_H
#define HELM_WORKER_GPU_PROGRAM_LOWER_H

#include "worker-gpu/program.h"

/* Which weights stand where in a layer, as its graph says. */
struct layer_shape {
    enum tensor_role attn_norm, mlp_norm, q_norm, k_norm;
    struct {
        enum tensor_role weight, bias;
    } q, k, v, o, gate, up, down;
};

struct lowering {
    const struct gpu_source *source;
    struct gpu_program *program;
    const struct ring_schedule *ring; /* the phase's */
    struct layer_shape shape;
    struct helm_err *err;
    int rc;
    uint32_t next_slice, next_copy; /* of the schedule */
    uint32_t next_home;             /* of the slices of what lies packed in VRAM */
    uint32_t next_tail;             /* of its tail: what is not yet set free */
    uint32_t ahead;                 /* the slice that is expanded before its turn, from 1 on; 0: none yet */
    uint32_t borrowed, fetched;     /* layers whose cache is borrowed: computed, asked for */
    struct gpu_entry nowhere;       /* where an entry goes that found no memory: never issued, rc is set */
};

int lower_match_layer(const struct model_graph *graph, struct layer_shape *shape, struct helm_err *err);

struct gpu_entry *lower_add(struct lowering *low, enum gpu_kind kind, int32_t layer);
void lower_event(struct lowering *low, enum gpu_kind kind, enum device_queue queue, uint32_t event);
const struct gpu_matrix *lower_matrix(struct lowering *low, enum tensor_role role, int32_t layer);
/* A linear of the decode tiers, and a matrix of it: rows `row` .. row + rows at `data`. */
struct gpu_entry *lower_linear(struct lowering *low, int32_t layer, const float *x, uint32_t x_stride);
void lower_segment(struct lowering *low, struct gpu_entry *e, const struct gpu_matrix *matrix,
                   const void *data, const float *bias, float *out, uint32_t rows, uint32_t out_stride);

/* The copies that may be queued once slice `used` has been (-1: from the beginning on). */
void lower_copies(struct lowering *low, int32_t used);
/* Packed rows of a matrix, where they lie. */
struct lower_rows {
    const struct gpu_matrix *matrix;
    const void *data;
    uint32_t rows;
};
/* Whether the device multiplies these, `count` (RING_PARTS_MAX at most) of one operation, as they are by one
 * token's input. */
bool lower_takes_packed(const struct lowering *low, enum ring_op op, const struct lower_rows *rows,
                        uint32_t count);
/* Whether this slice's operation reads it packed, in the ring. */
bool lower_is_read_packed(const struct lowering *low, const struct ring_slice *slice);
/* Waits for a slice to come; a packed one is expanded then, and its place in the ring set free, unless it is
 * read packed. */
void lower_arrival(struct lowering *low, uint32_t slice);
/* Expands a slice of what lies packed in VRAM. */
void lower_expand_home(struct lowering *low, uint32_t index);
/* Whether this slice of the prefix is ever copied again after loading, so that it may be on its way. */
bool lower_is_copied(const struct lowering *low, uint32_t prefix);
/* Copies of borrowed layers that have a staging pool to go to. */
void lower_fetches(struct lowering *low);

/* Halves of a layer; `out` of the decode tiers: where the residual stream goes, x or a lane. */
void lower_decode_unit(struct lowering *low, uint32_t unit, float *out);
void lower_chunk_unit(struct lowering *low, uint32_t unit);

/* What may be chained of a whole list is (program_chain.c). */
void lower_chains(struct lowering *low);

#endif
