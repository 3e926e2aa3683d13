/* The driver's management library, asked without a CUDA context: memory in use, driver, link.
 *
 * Called by cuda/device.c; tests put other entries in its place. Loaded for each question and unloaded again;
 * a machine without it gives no answer, which is no error. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct nvml_answer {
    uint64_t used_bytes; /* of the device's memory, by all processes */
    bool own_known;      /* it lists this process (inside a container it may not, or without its memory) */
    uint64_t own_bytes;  /* by this process */
    char driver[24];     /* "570.86.10"; "" where it does not say */
    uint32_t link_generation,
        link_width; /* of PCIe: the most that device and board do together; 0: unknown */
};
/* `bus`: "0000:3b:00.0". False: there is no library, or it does not know the device. */
bool nvml_ask(const char *bus, struct nvml_answer *answer);

/* The memory that a context took which was opened between two answers: true and of this process alone where
 * the later one lists this process with more than the earlier, in which it may be missing; else false and the
 * difference of what all processes use, which is wrong by what others took or gave back meanwhile. 0: less
 * than before. */
bool nvml_taken(const struct nvml_answer *before, const struct nvml_answer *after, uint64_t *bytes);

/* The part of the library's interface that is used, since its header is not required; every call returns 0 on
 * success. */
struct nvml_process {
    unsigned pid;
    unsigned long long used_bytes; /* all ones: it does not say */
    unsigned gpu_instance, compute_instance;
};
struct nvml_entries {
    int (*init)(void), (*end)(void);
    int (*find)(const char *bus, void **device);
    int (*memory)(void *device, void *total_free_used);
    int (*processes)(void *device, unsigned *count, struct nvml_process *process);
    int (*driver)(char *text, unsigned size);
    int (*generation)(void *device, unsigned *generation);
    int (*width)(void *device, unsigned *width);
};
/* nvml_ask through these; those after `memory` may be NULL. */
bool nvml_ask_through(const struct nvml_entries *entries, const char *bus, struct nvml_answer *answer);
