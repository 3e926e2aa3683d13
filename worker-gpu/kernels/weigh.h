/* A shared expert's weight: a part of kernels.h, whose rules hold.
 *
 * Called by the CUDA device and tests/gpu; the emulated device does the same. */
#pragma once

#include <stdint.h>

#include "common/base/err.h"
#include "common/formats/dtype.h"

/* act[t][i] *= sigmoid(weight . (rmsnorm(x[t]) * norm)), i < n. */
struct gpuk_weigh {
    const float *x, *norm, *weight; /* x: [tokens][width] */
    float eps;
    uint32_t width;
    void *act; /* [tokens][n] */
    enum dtype dtype;
    uint32_t n;
};

#ifdef __cplusplus
extern "C" {
#endif
/* A token has the same bits among any number of them. */
HELM_MUST_CHECK int gpuk_weigh(const struct gpuk_weigh *args, uint32_t tokens, const uint32_t *count,
                               uint32_t flags, void *stream, struct helm_err *err);
#ifdef __cplusplus
}
int gpuk_prepare_weigh(struct helm_err *err); /* its share of gpuk_open */
#endif
