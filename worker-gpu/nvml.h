/* The driver's management library, asked without a CUDA context: memory in use, driver, link.
 *
 * Called by device_cuda.c. Loaded for each question and unloaded again; a machine without it gives no answer,
 * which is none of an error. */
#ifndef HELM_WORKER_GPU_NVML_H
#define HELM_WORKER_GPU_NVML_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct nvml_answer {
    uint64_t used_bytes; /* of the device's memory, by everybody */
    char driver[24];     /* "570.86.10"; "" where it does not say */
    uint32_t link_generation,
        link_width; /* of PCIe: the most that device and board do together; 0: unknown */
};
/* `bus`: "0000:3b:00.0". False: there is no library, or it does not know the device. */
bool nvml_ask(const char *bus, struct nvml_answer *answer);

#endif
