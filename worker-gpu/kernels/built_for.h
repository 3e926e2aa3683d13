/* For which devices this build has GPU code, from what nvcc was told (CUDA_ARCH). Included by open.cu and its
 * test; pure.
 *
 * Machine code runs on devices of its generation (the first digit) and no earlier; PTX, which there is of the
 * newest architecture alone (cuda.mk), becomes machine code on later ones. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

/* built: 75, 80, ..., as many as `count`; capability: a device's, likewise. */
static inline bool built_for(const int *built, uint32_t count, int capability)
{
    int newest = 0;
    for (uint32_t i = 0; i < count; i++) {
        if (built[i] / 10 == capability / 10 && built[i] <= capability) return true;
        if (built[i] > newest) newest = built[i];
    }
    return count > 0 && newest <= capability;
}
