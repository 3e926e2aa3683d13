/* Two inputs side by side, each normed, as a layer of drafts takes an embedding and a hidden state: a part of
 * kernels.h, whose rules hold.
 *
 * Called by the CUDA device and tests/gpu; the emulated device does the same. */
#pragma once

#include <stdint.h>

#include "common/base/err.h"
#include "common/formats/dtype.h"

/* out[t] = rmsnorm(a[t]) * norm_a, then rmsnorm(b[t]) * norm_b: rows of `width` each, of out 2 * width, of
 * dtype `out_dtype`. */
struct gpuk_join {
    const float *a, *norm_a, *b, *norm_b;
    float eps;
    uint32_t width;
    void *out;
    enum dtype out_dtype;
};

#ifdef __cplusplus
extern "C" {
#endif
HELM_MUST_CHECK int gpuk_join(const struct gpuk_join *args, const uint32_t *count, uint32_t tokens,
                              uint32_t flags, void *stream, struct helm_err *err);

#ifdef __cplusplus
}
#endif
