/* Between the files of the device's measuring: measure.c (protocol, link, hand-over), measure_kernels.c. */
#ifndef HELM_WORKER_GPU_MEASURE_PRIVATE_H
#define HELM_WORKER_GPU_MEASURE_PRIVATE_H

#include "common/arena.h"
#include "worker-gpu/device.h"
#include "worker-gpu/measure.h"

#define MEASURE_SAMPLES_MAX 64
#define MEASURE_TOKENS_MAX  512
#define MEASURE_WAIT_MS     20000 /* anything that takes longer has failed */

struct measure_samples {
    double value[MEASURE_SAMPLES_MAX];
    uint32_t count;
};

struct measure {
    const struct engine_measure_options *options;
    FILE *out;
    struct device *device;
    struct device_event *event;
    bool emulated;
    /* host memory of the arena's kind, registered: its weights region */
    struct arena arena;
    bool registered;
    char *host;
    uint64_t host_bytes;
    /* on the device */
    char *weights;
    uint64_t weight_bytes;
    struct measure_kernels *kernels;
};

/* Waits until the queue is empty. */
HELM_MUST_CHECK int measure_drain(struct measure *m, enum device_queue queue, struct helm_err *err);
double measure_now_s(void);
/* Time to spend on one value, and the least that one sample should take. */
static inline double measure_budget_s(const struct measure *m)
{
    return m->options->quick ? 0.08 : 0.5;
}
static inline double measure_sample_s(const struct measure *m)
{
    return m->options->quick ? 0.004 : 0.012;
}
void measure_add(struct measure_samples *samples, double value);
void measure_print(struct measure *m, const char *name, uint32_t x, const struct measure_samples *samples);

/* What measure_kernels.c owns; measure_kernels_open fills the device's weights with numbers from m->host. */
HELM_MUST_CHECK int measure_kernels_open(struct measure *m, struct helm_err *err);
void measure_kernels_close(struct measure *m);
/* gpu.read, gpu.gemv, gpu.operation, gpu.launch, gpu.linear, gpu.attention, gpu.attention_flops */
HELM_MUST_CHECK int measure_kernels_run(struct measure *m, struct helm_err *err);
/* Puts the two kernels of a hand-over into the compute queue: from a lane in host memory, and back into it.
 */
HELM_MUST_CHECK int measure_kernels_lane(struct measure *m, const float *from, float *to,
                                         struct helm_err *err);
#define MEASURE_LANE_FLOATS 2048 /* 8 KiB: the residual stream of one token */

#endif
