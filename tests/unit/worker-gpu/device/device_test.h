/* Shared by the tests of the device: opening an emulated one, waiting for a queue, kernels of their own. */
#pragma once

#include <string.h>
#include <time.h>

#include "common/base/units.h"
#include "worker-gpu/device/device.h"
#include "worker-gpu/device/emulated/emulated.h"

/* A call that must succeed; says why it did not. */
#define OK(call)                                                                                             \
    do {                                                                                                     \
        struct helm_err why_[1] = {{0}}, *why = why_;                                                        \
        if (call) fail_msg("%s: %s", #call, why->text);                                                      \
    } while (0)

static inline struct device *open_emulated(uint64_t vram_bytes, uint64_t copy_bytes_per_s, uint32_t wait_ms)
{
    const struct device_options options = {.name = "emulated",
                                           .vram_bytes = vram_bytes,
                                           .copy_bytes_per_s = copy_bytes_per_s,
                                           .wait_ms = wait_ms};
    struct device *d = NULL;
    OK(device_open(&options, &d, why));
    return d;
}

static inline void drain(struct device *d, enum device_queue queue)
{
    struct device_event *event;
    OK(d->ops->event_create(d, DEVICE_EVENT_PLAIN, &event, why));
    OK(d->ops->event_record(d, queue, event, why));
    OK(d->ops->event_wait(d, event, why));
    d->ops->event_free(d, event);
}

/* Time of a CPU that this thread has had. */
static inline uint64_t cpu_time_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * 1000000 + (uint64_t)t.tv_nsec / 1000;
}

static inline void sleep_ms(uint32_t ms)
{
    const struct timespec t = {.tv_sec = ms / 1000, .tv_nsec = (long)(ms % 1000) * 1000000};
    nanosleep(&t, NULL);
}

/* A kernel that only takes time. */
static inline void run_sleep(struct emulated_math *math, const struct op *op)
{
    (void)math;
    sleep_ms(op->tokens);
}

static inline void put_sleep(struct device *d, uint32_t ms)
{
    const struct op op = {.tokens = ms};
    OK(emulated_enqueue(d, run_sleep, &op, why));
}

/* A kernel that looks at every byte of a piece of memory, slowly, from both ends: `*wrong` counts those that
 * are not `*tag` + add. */
struct look {
    const unsigned char *memory;
    uint32_t bytes, add, pause_ms;
    const _Atomic uint32_t *tag;
    _Atomic uint32_t *wrong, *looked;
};
static inline void run_look(struct emulated_math *math, const struct op *op)
{
    struct look copy;
    const struct look *look = memcpy(&copy, &op->as, sizeof copy);
    unsigned char wanted = (unsigned char)(atomic_load(look->tag) + look->add);
    uint32_t wrong = 0;
    (void)math;
    for (uint32_t i = 0; i < look->bytes / 2; i++) wrong += look->memory[i] != wanted;
    if (look->pause_ms) sleep_ms(look->pause_ms);
    for (uint32_t i = look->bytes / 2; i < look->bytes; i++) wrong += look->memory[i] != wanted;
    atomic_fetch_add(look->wrong, wrong);
    atomic_fetch_add(look->looked, 1);
}
static inline void put_look(struct device *d, const struct look *look)
{
    struct op op = {.tokens = 1};
    memcpy(&op.as, look, sizeof *look);
    OK(emulated_enqueue(d, run_look, &op, why));
}
