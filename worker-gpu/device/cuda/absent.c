/* Stands in for the CUDA device in a build without nvcc: says so, by name. See device.h. */
#include <stdio.h>

#include "worker-gpu/device/device.h"

int device_cuda_open(const struct device_options *options, struct device **device, struct helm_err *err)
{
    *device = NULL;
    return helm_fail(err, HELM_E_UNSUPPORTED,
                     "device '%.40s': this build has no CUDA device (no nvcc was found)", options->name);
}

int device_cuda_list(struct device_info *info, uint32_t most, uint32_t *count, struct helm_err *err)
{
    (void)info, (void)most;
    *count = 0;
    return helm_fail(err, HELM_E_NOT_FOUND, "this build has no CUDA device (no nvcc was found)");
}

bool device_cuda_usable(char *why, size_t size)
{
    snprintf(why, size, "this build has no CUDA device (no nvcc was found)");
    return false;
}
