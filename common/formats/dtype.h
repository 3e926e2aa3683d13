/* The types of single numbers: of activations, of the KV cache, of what a block of weights decodes to.
 *
 * Weights have a format (tensor_format.h), which may be one of these or blocks of something narrower. */
#pragma once

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

enum dtype { DTYPE_BF16, DTYPE_F16, DTYPE_F32, DTYPE_COUNT };
static inline size_t dtype_bytes(enum dtype dtype)
{
    return dtype == DTYPE_F32 ? 4 : 2;
}
const char *dtype_name(enum dtype dtype); /* "bf16", "f16", "f32" */

#ifdef __cplusplus
}
#endif
