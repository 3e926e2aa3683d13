/* Where the matrices that stay in host memory lie in the arena's weights region.
 *
 * A pure function of model and plan, so that the worker that loads them (the CPU's), the worker that copies
 * them over the link (the GPU's) and the planner's ledger agree without a message. In order of use, each on a
 * 64-byte boundary: embedding (unless it is also the head), then of every unit that is not at home on `gpu`
 * the matrices in the order q k v o, gate up down, then the head, where embedding and head are the CPU's.
 * Norm weights and biases are not here: each worker keeps those it needs as fp32. Owns its table. */
#ifndef HELM_COMMON_HOST_WEIGHTS_H
#define HELM_COMMON_HOST_WEIGHTS_H

#include "common/err.h"
#include "common/model/model.h"
#include "common/plan.h"

#define HOST_WEIGHTS_ALIGN UINT64_C(64)

struct host_weights_place {
    const struct model_tensor *tensor; /* borrowed from the model */
    uint64_t offset;                   /* in the weights region */
};

struct host_weights {
    struct host_weights_place *place; /* [count], in order of offset */
    uint32_t count;
    uint32_t layers;
    uint32_t *cell;        /* [layers + 1][TENSOR_ROLE_COUNT]: index into place + 1, 0: not in the region */
    uint64_t region_bytes; /* with padding */
    uint64_t matrix_bytes; /* without */
};

HELM_MUST_CHECK int host_weights_plan(const struct model *model, const struct plan *plan,
                                      struct host_weights *weights, struct helm_err *err);
/* NULL when this tensor is not in the region. TENSOR_HEAD of a tied model is its EMBED. */
const struct host_weights_place *host_weights_find(const struct host_weights *weights, enum tensor_role role,
                                                   int32_t layer);
void host_weights_free(struct host_weights *weights);

#endif
