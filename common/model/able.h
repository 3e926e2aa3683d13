/* Fields of an operation that workers can compute: one table. A field that no worker can is refused when a
 * model is read; one that one kind of worker cannot is refused by its lowering. Either names the operation.
 *
 * Called by readers of models in this folder, and by the lowerings of both workers. Constant data; pure
 * functions. */
#pragma once

#include "common/model/model.h"

enum able_worker {
    ABLE_CPU,
    ABLE_GPU,
    ABLE_EMULATED, /* a GPU worker on the emulated device, which computes all that a GPU does */
    ABLE_WORKERS   /* their number; as an argument: any of them */
};

/* HELM_E_UNSUPPORTED: this kind of worker cannot compute the operation; `where` names its place in the
 * model. */
HELM_MUST_CHECK int able_check_op(const struct math_op *op, enum able_worker worker, const char *where,
                                  struct helm_err *err);
/* The same of all of a model's. */
HELM_MUST_CHECK int able_check_worker(const struct model_math *math, enum able_worker worker,
                                      struct helm_err *err);
/* HELM_E_UNSUPPORTED: there is an operation that no kind of worker can compute. */
HELM_MUST_CHECK int able_check_model(const struct model_config *config, const struct model_math *math,
                                     struct helm_err *err);
