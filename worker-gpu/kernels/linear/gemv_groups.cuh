/* The work of gemv_groups.cu, as its kernel and the decoders that it asks for steps take it. */
#pragma once

#include "worker-gpu/kernels/linear.cuh"

static const uint32_t HALF = 512; /* values of a tile of gemv_bulk; a step has four such halves */

struct groups_params {
    linear_params linear; /* of its segments, `weight` is where the first group lies */
    const uint32_t *offset[GPUK_SEGMENTS_MAX];
    uint32_t units;   /* a run, or of SwiGLU two */
    uint32_t steps;   /* of a run */
    uint32_t apart;   /* tiles from a step's first to its second */
    uint32_t batch;   /* runs whose sums wait at once */
    uint32_t slots;   /* of a warp's ring */
    uint32_t threads; /* of a block of gemv_bulk, whose parts of the sum of squares are to be had */
};
