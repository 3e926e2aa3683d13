/* Launchers of the experts' kernels that copy in bulk, which differ in how a call is run. Included by
 * experts/bulk.cu and experts/digits.cu only. No state. */
#pragma once

#include "worker-gpu/kernels/experts/experts.cuh"

/* PARAMS: the kernel's argument; shape_of(call, &params, &blocks, &shared): how a call is run, false: not
 * here. */
template <typename PARAMS, uint32_t THREADS, auto shape_of, auto kernel> struct experts_launcher {
    static bool takes(const struct experts_call &call)
    {
        PARAMS q;
        uint32_t blocks;
        size_t shared;
        return shape_of(call, &q, &blocks, &shared);
    }
    static int launch(const struct experts_call &call, struct helm_err *err)
    {
        PARAMS q;
        uint32_t blocks = 0;
        size_t shared = 0;
        shape_of(call, &q, &blocks, &shared);
        return gpuk_launch("experts", kernel, dim3(blocks), dim3(THREADS), shared, call.flags, call.stream,
                           err, q);
    }
    static int prepare(const struct gpuk_device *device, struct helm_err *err)
    {
        if (!device->bulk_copy) return HELM_OK;
        const int rc = gpuk_prepare("experts", kernel, (size_t)device->shared_bytes_max, err);
        return rc ? rc : gpuk_prefer_shared("experts", kernel, err);
    }
    static constexpr experts_kernel named(const char *name) { return {name, takes, launch, prepare}; }
};
