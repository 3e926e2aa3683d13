/* Inside the CUDA device: what cuda/device.c (opening, memory, copies, words), cuda/graph.c (events,
 * captures, graphs) and cuda/kernels.c (launches) share. Included by these only. */
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include "worker-gpu/device/device.h"

typedef CUresult stream_word_fn(CUstream stream, CUdeviceptr address, cuuint32_t value, unsigned int flags);

/* The capture under way. */
struct cuda_capture {
    bool on, copies; /* the copy queue has been used */
    uint64_t serial; /* of this capture or the last one; the first is 1 */
    uint64_t copied_bytes[DEVICE_QUEUE_COUNT][DEVICE_DIRECTION_COUNT];
};

struct cuda {
    struct device base;
    int ordinal;
    cudaStream_t stream[DEVICE_QUEUE_COUNT];
    struct cuda_capture capture;
    /* The ends of a capture's copy part; the copy queue where a graph's copies begin and end; either queue
     * before and after a launch. */
    cudaEvent_t fork, join, copies_from, copies_to, before, after;
    /* Whether work may be in the copy queue after which no launch was ordered. */
    _Atomic bool copies_pending;
    struct gpuk_device caps;
    char no_chains[96];         /* why there are none */
    struct gpuk_matmul *matmul; /* and its plans */
    stream_word_fn *wait_value, *write_value;
    int pitch_max;      /* bytes between pieces of a copy */
    bool opened;        /* a context is ours to end */
    bool own_known;     /* the management library tells this process's memory from others', */
    uint64_t own_bytes; /* which was so much when it was asked last */
};

static inline struct cuda *cuda_of(struct device *d)
{
    return (struct cuda *)d;
}

int cuda_fail(struct helm_err *err, cudaError_t code, const char *what);
static inline int cuda_checked(cudaError_t code, const char *what, struct helm_err *err)
{
    return code == cudaSuccess ? 0 : cuda_fail(err, code, what);
}

/* cuda/kernels.c */
int cuda_run(struct device *d, const struct op *op, struct helm_err *err);
extern const struct device_asked cuda_asked;

/* cuda/graph.c */
HELM_MUST_CHECK int cuda_graphs_open(struct cuda *c, struct helm_err *err);
void cuda_graphs_close(struct cuda *c);
/* Before anything is put into a queue. */
HELM_MUST_CHECK int cuda_use_queue(struct cuda *c, enum device_queue queue, struct helm_err *err);
int cuda_event_create(struct device *d, enum device_event_kind kind, struct device_event **event,
                      struct helm_err *err);
void cuda_event_free(struct device *d, struct device_event *event);
int cuda_event_record(struct device *d, enum device_queue queue, struct device_event *event,
                      struct helm_err *err);
int cuda_event_follow(struct device *d, enum device_queue queue, struct device_event *event,
                      struct helm_err *err);
int cuda_event_wait(struct device *d, struct device_event *event, struct helm_err *err);
int cuda_capture_begin(struct device *d, struct helm_err *err);
int cuda_capture_end(struct device *d, struct device_graph **graph, struct helm_err *err);
int cuda_graph_launch(struct device *d, struct device_graph *graph, bool alone, struct helm_err *err);
void cuda_graph_free(struct device *d, struct device_graph *graph);
