/* Where the matrices that stay in host memory lie in the arena's weights region.
 *
 * A pure function of model and plan, so that the worker that loads them (the CPU's), the worker that copies
 * them over the link (the GPU's) and the planner's ledger agree without a message. In order of use, each on a
 * 64-byte boundary: embedding (unless it is also the head), then of every unit that is not at home on `gpu`
 * the matrices in the order q k v o, gate up down, then the head, where embedding and head are the CPU's.
 * Norm weights and biases are not here: each worker keeps those it needs as fp32. Owns its table.
 *
 * Packed matrices. Weights of a unit lie here packed (common/formats/packed.h) so that fewer bytes cross the link, or
 * are read by the CPU: plan_packed_units says of which units. All matrices of the unit must be of a kind and
 * shape that can be packed, those that the CPU computes with in rows that its kernels take. A packed matrix
 * begins with its table of offsets; its groups follow. How small it becomes is known when it is packed, so
 * its place has room for the most: sizes here, and ledgers that go by them, are upper bounds. Embedding and
 * head are never packed. */
#ifndef HELM_COMMON_PLAN_HOST_WEIGHTS_H
#define HELM_COMMON_PLAN_HOST_WEIGHTS_H

#include "common/base/err.h"
#include "common/model/model.h"
#include "common/formats/packed.h"
#include "common/plan/plan.h"

#define HOST_WEIGHTS_ALIGN UINT64_C(64)

struct host_weights_place {
    const struct model_tensor *tensor; /* borrowed from the model */
    uint64_t offset;                   /* in the weights region */
    bool packed;
};

struct host_weights {
    struct host_weights_place *place; /* [count], in order of offset */
    uint32_t count;
    uint32_t layers;
    uint32_t *cell;        /* [layers + 1][TENSOR_ROLE_COUNT]: index into place + 1, 0: not in the region */
    uint64_t region_bytes; /* with padding */
    uint64_t matrix_bytes; /* without, and as they are in the files */
};

/* Whether a matrix can be packed, by dtype and shape. */
bool host_weights_can_pack(const struct model_tensor *tensor);
/* Of each of the model's units (unit_count(layers)) whether all its matrices can be packed to cross the link, and for
 * the CPU to compute with: for plan_packed_units. Of a unit all are packed, or none. */
void host_weights_packing(const struct model *model, bool *link, bool *cpu);
/* What a matrix takes here at most. */
uint64_t host_weights_room(const struct model_tensor *tensor, bool packed);

HELM_MUST_CHECK int host_weights_plan(const struct model *model, const struct plan *plan,
                                      struct host_weights *weights, struct helm_err *err);
/* NULL when this tensor is not in the region. TENSOR_HEAD of a tied model is its EMBED. */
const struct host_weights_place *host_weights_find(const struct host_weights *weights, enum tensor_role role,
                                                   int32_t layer);
void host_weights_free(struct host_weights *weights);

#endif
