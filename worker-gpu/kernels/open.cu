/* Opening the kernels: what the device can do, and all code loaded before the first wait.
 *
 * Called once by the CUDA device and by the test and benchmark programs, with the device current. Owns
 * nothing. */
#include <cstdio>

#include "worker-gpu/kernels/built_for.h"
#include "worker-gpu/kernels/device.cuh"
#include "worker-gpu/kernels/weigh.h"

#ifndef __CUDA_ARCH_LIST__ /* the emulator's, whose device is of any capability */
#define __CUDA_ARCH_LIST__ 750, 800, 900
#endif

int gpuk_cuda_fail(struct helm_err *err, cudaError_t code, const char *what)
{
    return helm_fail(err, HELM_E_DEVICE, "%s: %s", what, cudaGetErrorString(code));
}

static int attribute_of(int ordinal, enum cudaDeviceAttr id, int *value, struct helm_err *err)
{
    cudaError_t code = cudaDeviceGetAttribute(value, id, ordinal);
    return code == cudaSuccess ? HELM_OK : gpuk_cuda_fail(err, code, "cudaDeviceGetAttribute");
}

extern "C" int gpuk_check_built(int capability, struct helm_err *err)
{
    int built[] = {__CUDA_ARCH_LIST__}; /* 750, 900: of virtual architectures */
    const uint32_t count = sizeof built / sizeof *built;
    char list[96] = "";
    size_t used = 0;
    for (uint32_t i = 0; i < count; i++) {
        built[i] /= 10;
        if (used < sizeof list)
            used += (size_t)snprintf(list + used, sizeof list - used, "%s%d.%d", i ? ", " : "", built[i] / 10,
                                     built[i] % 10);
    }
    if (capability < 75)
        return helm_fail(err, HELM_E_UNSUPPORTED, "compute capability %d.%d: HELM needs 7.5 or later",
                         capability / 10, capability % 10);
    if (built_for(built, count, capability)) return HELM_OK;
    return helm_fail(
        err, HELM_E_UNSUPPORTED,
        "compute capability %d.%d: this build has GPU code for %s alone ('make test' compiles no more); "
        "'make' builds for all, 'make CUDA_ARCH=%d' for this one",
        capability / 10, capability % 10, list, capability);
}

extern "C" int gpuk_open(struct gpuk_device *device, struct helm_err *err)
{
    *device = {};
    cudaError_t code = cudaGetDevice(&device->ordinal);
    if (code != cudaSuccess) return gpuk_cuda_fail(err, code, "cudaGetDevice");
    int major = 0, minor = 0, rc;
    if ((rc = attribute_of(device->ordinal, cudaDevAttrComputeCapabilityMajor, &major, err)) ||
        (rc = attribute_of(device->ordinal, cudaDevAttrComputeCapabilityMinor, &minor, err)) ||
        (rc = attribute_of(device->ordinal, cudaDevAttrMultiProcessorCount, &device->sm_count, err)) ||
        (rc = attribute_of(device->ordinal, cudaDevAttrMaxSharedMemoryPerBlockOptin,
                           &device->shared_bytes_max, err)))
        return rc;
    device->capability = major * 10 + minor;
    if ((rc = gpuk_check_built(device->capability, err))) return rc;
    device->bulk_copy = device->capability >= 90;
    device->early_launch = device->capability >= 90;
    device->tensor_cores = device->capability >= 80;
    device->warpgroups = device->capability == 90 && gpuk_wide_built();
    if ((rc = gpuk_prepare_linear(device, err)) || (rc = gpuk_prepare_elementwise(device, err)) ||
        (rc = gpuk_prepare_expand(device, err)) || (rc = gpuk_prepare_rope(device, err)) ||
        (rc = gpuk_prepare_attention_decode(device, err)) ||
        (rc = gpuk_prepare_attention_merge(device, err)) ||
        (rc = gpuk_prepare_attention_prefill(device, err)) || (rc = gpuk_prepare_chain(device, err)) ||
        (rc = gpuk_prepare_select(device, err)) || (rc = gpuk_prepare_experts(device, err)) ||
        (rc = gpuk_prepare_weigh(err)) || (rc = gpuk_prepare_heads(err)) ||
        (rc = gpuk_prepare_delta(device, err)))
        return rc;
    return HELM_OK;
}
