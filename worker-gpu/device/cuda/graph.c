/* The CUDA device's events, captures and graphs. See cuda.h; the rules stand in device.h.
 *
 * The runtime's documentation (12.0 and later) promises all that this relies on:
 * - Capture. While the compute stream captures, an event recorded in it and waited for by the copy stream
 *   makes that stream part of the capture ("Cross-stream Dependencies and Events" in the programming guide).
 *   The recording makes no node; it stands for the nodes the stream has come to. Both are done first, so that
 *   the copy part has no predecessor, and the copy stream is joined last by the same means in the other
 *   direction: a stream that is not joined is cudaErrorStreamCaptureUnjoined. Only a plain event joins; one
 *   recorded with cudaEventRecordExternal does not.
 * - An event recorded while capturing may be recorded again, in another capture or outside. If it is used
 *   outside without that, the error is cudaErrorCapturedEvent; an event of outside that is waited for while
 *   capturing is cudaErrorStreamCaptureIsolation. Either would spoil the capture, so both are refused here.
 * - cudaEventRecordExternal makes a node, "each launch of the graph will record the event"; a stream that
 *   waits for it after the launch waits for that node, not for the graph. cudaEventWaitExternal makes a node
 *   that waits for what the event stands for when the graph is launched. Both flags are errors outside a
 *   capture.
 * - Launches of one graph, and launches and operations in one stream, are in order; a graph is done when all
 *   its nodes are. So the compute stream always waits for a graph's copies: copies that the next launch need
 *   not wait for are put into the copy queue after the launch, not into the graph.
 * - Operations on words (cuStreamWaitValue32, cuStreamWriteValue32) are captured as nodes of their own kind,
 *   each wait one; no batching is needed. Their documentation warns that the driver does not see an order
 *   that only words make, and may order such tasks so that they never end. Here no work of the device is
 *   ordered by words: a word waited for is written by the host's side, and kernels and copies are ordered by
 *   events. A word's write is a node after all compute work before it and makes it visible to the host.
 * - Branches of a graph run beside each other where the driver has a channel for each; with
 *   CUDA_DEVICE_MAX_CONNECTIONS at its default of 8 and two branches it has. Were they on one channel, copies
 *   would wait after a wait for a word: slower, never stuck, since no word depends on a copy put after it.
 * - Copies have pinned memory on the host's side (cudaHostAlloc or cudaHostRegister), else they would not be
 *   asynchronous, and a capture refuses those of pageable memory in part. */
#include <stdlib.h>
#include <string.h>

#include "worker-gpu/device/cuda/cuda.h"

struct device_event {
    cudaEvent_t event;
    bool crossing;
    uint64_t captured;           /* plain: serial of the capture in which it was recorded last, 0: outside */
    uint64_t recorded, followed; /* crossing: in which capture last */
};

struct device_graph {
    cudaGraphExec_t exec;
    bool copies; /* it has a copy part */
    uint64_t copied_bytes[DEVICE_QUEUE_COUNT][DEVICE_DIRECTION_COUNT];
};

static int state_error(struct helm_err *err, const char *what)
{
    return helm_fail(err, HELM_E_STATE, "%s", what);
}

int cuda_use_queue(struct cuda *c, enum device_queue queue, struct helm_err *err)
{
    if (queue != DEVICE_COPY) return 0;
    if (!c->capture.on) {
        atomic_store_explicit(&c->copies_pending, true, memory_order_relaxed);
        return 0;
    }
    if (c->capture.copies) return 0;
    c->capture.copies = true;
    /* Each launch begins its copies after those in the copy queue then. */
    return cuda_checked(cudaStreamWaitEvent(c->stream[DEVICE_COPY], c->copies_from, cudaEventWaitExternal),
                        "a graph's copies", err);
}

/* ---- events ---- */

int cuda_event_create(struct device *d, enum device_event_kind kind, struct device_event **event,
                      struct helm_err *err)
{
    (void)d;
    const unsigned flags = kind == DEVICE_EVENT_SLEEPING ? cudaEventBlockingSync : cudaEventDefault;
    *event = calloc(1, sizeof **event);
    if (!*event) return helm_fail(err, HELM_E_NOMEM, "no memory for an event");
    (*event)->crossing = kind == DEVICE_EVENT_CROSSING;
    int rc = cuda_checked(cudaEventCreateWithFlags(&(*event)->event, cudaEventDisableTiming | flags), "event",
                          err);
    if (rc) {
        free(*event);
        *event = NULL;
    }
    return rc;
}

void cuda_event_free(struct device *d, struct device_event *event)
{
    (void)d;
    (void)cudaEventDestroy(event->event);
    free(event);
}

static const char BOTH_IN_ONE[] = "a crossing event is recorded and followed in one capture";

int cuda_event_record(struct device *d, enum device_queue queue, struct device_event *event,
                      struct helm_err *err)
{
    struct cuda *c = cuda_of(d);
    unsigned flags = cudaEventRecordDefault;
    int rc = 0;
    if (c->capture.on && event->crossing) {
        if (event->followed == c->capture.serial) return state_error(err, BOTH_IN_ONE);
        event->recorded = c->capture.serial;
        flags = cudaEventRecordExternal;
        rc = cuda_use_queue(c, queue, err);
    }
    if (!rc)
        rc = cuda_checked(cudaEventRecordWithFlags(event->event, c->stream[queue], flags),
                          "recording an event", err);
    if (!rc) event->captured = c->capture.on && !event->crossing ? c->capture.serial : 0;
    return rc;
}

int cuda_event_follow(struct device *d, enum device_queue queue, struct device_event *event,
                      struct helm_err *err)
{
    struct cuda *c = cuda_of(d);
    unsigned flags = cudaEventWaitDefault;
    int rc = 0;
    if (!event->crossing && event->captured != (c->capture.on ? c->capture.serial : 0))
        return state_error(err, c->capture.on
                                    ? "a plain event of outside is followed inside a capture"
                                    : "an event that was recorded in a capture is used outside of it");
    if (c->capture.on && event->crossing) {
        if (event->recorded == c->capture.serial) return state_error(err, BOTH_IN_ONE);
        event->followed = c->capture.serial;
        flags = cudaEventWaitExternal;
    }
    if (!c->capture.on || event->crossing) rc = cuda_use_queue(c, queue, err);
    return rc ? rc
              : cuda_checked(cudaStreamWaitEvent(c->stream[queue], event->event, flags),
                             "waiting for an event", err);
}

int cuda_event_wait(struct device *d, struct device_event *event, struct helm_err *err)
{
    (void)d;
    if (event->captured)
        return state_error(err, "an event that was recorded in a capture is used outside of it");
    return cuda_checked(cudaEventSynchronize(event->event), "waiting for the device", err);
}

/* ---- captures ---- */

static void end_capture(struct cuda *c)
{
    cudaGraph_t graph = NULL;
    if (cudaStreamEndCapture(c->stream[DEVICE_COMPUTE], &graph) == cudaSuccess && graph)
        (void)cudaGraphDestroy(graph);
    (void)cudaGetLastError();
    c->capture.on = false;
}

int cuda_capture_begin(struct device *d, struct helm_err *err)
{
    struct cuda *c = cuda_of(d);
    cudaStream_t compute = c->stream[DEVICE_COMPUTE];
    if (c->capture.on) return state_error(err, "a graph is being captured already");
    int rc = cuda_checked(cudaStreamBeginCapture(compute, cudaStreamCaptureModeThreadLocal),
                          "beginning a capture", err);
    if (rc) return rc;
    c->capture = (struct cuda_capture){.on = true, .serial = c->capture.serial + 1};
    rc = cuda_checked(cudaEventRecord(c->fork, compute), "beginning a capture", err);
    if (!rc)
        rc = cuda_checked(cudaStreamWaitEvent(c->stream[DEVICE_COPY], c->fork, cudaEventWaitDefault),
                          "beginning a capture", err);
    if (rc) end_capture(c);
    return rc;
}

int cuda_capture_end(struct device *d, struct device_graph **out, struct helm_err *err)
{
    struct cuda *c = cuda_of(d);
    cudaStream_t compute = c->stream[DEVICE_COMPUTE], copy = c->stream[DEVICE_COPY];
    cudaGraph_t graph = NULL;
    int rc = 0;
    *out = NULL;
    if (!c->capture.on) return state_error(err, "no graph is being captured");
    if (c->capture.copies)
        rc = cuda_checked(cudaEventRecordWithFlags(c->copies_to, copy, cudaEventRecordExternal),
                          "a graph's copies", err);
    if (!rc) rc = cuda_checked(cudaEventRecord(c->join, copy), "ending a capture", err);
    if (!rc)
        rc = cuda_checked(cudaStreamWaitEvent(compute, c->join, cudaEventWaitDefault), "ending a capture",
                          err);
    if (rc) {
        end_capture(c);
        return rc;
    }
    rc = cuda_checked(cudaStreamEndCapture(compute, &graph), "ending a capture", err);
    c->capture.on = false;
    if (rc) return rc;
    struct device_graph *made = calloc(1, sizeof *made);
    if (!made) rc = helm_fail(err, HELM_E_NOMEM, "no memory for a graph");
    if (!rc) rc = cuda_checked(cudaGraphInstantiate(&made->exec, graph, 0), "instantiating a graph", err);
    (void)cudaGraphDestroy(graph);
    if (!rc) rc = cuda_checked(cudaGraphUpload(made->exec, compute), "uploading a graph", err);
    if (!rc) rc = cuda_checked(cudaStreamSynchronize(compute), "waiting for a graph's upload", err);
    if (rc && made) {
        if (made->exec) (void)cudaGraphExecDestroy(made->exec);
        free(made);
        made = NULL;
    }
    if (made) {
        made->copies = c->capture.copies;
        memcpy(made->copied_bytes, c->capture.copied_bytes, sizeof made->copied_bytes);
    }
    *out = made;
    return rc;
}

void cuda_graph_free(struct device *d, struct device_graph *graph)
{
    (void)cudaStreamSynchronize(cuda_of(d)->stream[DEVICE_COMPUTE]); /* its copies may still run */
    (void)cudaGraphExecDestroy(graph->exec);
    free(graph);
}

/* ---- launches ---- */

/* `to` goes on after all that is in `from` now. */
static int order(struct cuda *c, enum device_queue from, cudaEvent_t event, enum device_queue to,
                 struct helm_err *err)
{
    int rc = cuda_checked(cudaEventRecord(event, c->stream[from]), "ordering the queues", err);
    return rc ? rc
              : cuda_checked(cudaStreamWaitEvent(c->stream[to], event, cudaEventWaitDefault),
                             "ordering the queues", err);
}

int cuda_graph_launch(struct device *d, struct device_graph *graph, bool alone, struct helm_err *err)
{
    struct cuda *c = cuda_of(d);
    int rc = 0;
    if (c->capture.on) return state_error(err, "a graph is launched inside a capture");
    bool pending = atomic_load_explicit(&c->copies_pending, memory_order_relaxed);
    if (pending && alone) {
        rc = order(c, DEVICE_COPY, c->before, DEVICE_COMPUTE, err);
        if (!rc) atomic_store_explicit(&c->copies_pending, false, memory_order_relaxed);
    } else if (pending && graph->copies) {
        rc = cuda_checked(cudaEventRecord(c->copies_from, c->stream[DEVICE_COPY]), "a graph's copies", err);
    }
    if (!rc)
        rc = cuda_checked(cudaGraphLaunch(graph->exec, c->stream[DEVICE_COMPUTE]), "launching a step", err);
    if (!rc && alone)
        rc = order(c, DEVICE_COMPUTE, c->after, DEVICE_COPY, err);
    else if (!rc && graph->copies)
        rc = cuda_checked(cudaStreamWaitEvent(c->stream[DEVICE_COPY], c->copies_to, cudaEventWaitDefault),
                          "a graph's copies", err);
    if (rc) return rc;
    for (int q = 0; q < DEVICE_QUEUE_COUNT; q++)
        for (int i = 0; i < DEVICE_DIRECTION_COUNT; i++)
            atomic_fetch_add_explicit(&c->base.copied_bytes[q][i], graph->copied_bytes[q][i],
                                      memory_order_relaxed);
    return 0;
}

/* ---- opening ---- */

int cuda_graphs_open(struct cuda *c, struct helm_err *err)
{
    cudaEvent_t *const events[] = {&c->fork, &c->join, &c->copies_from, &c->copies_to, &c->before, &c->after};
    int rc = 0;
    for (size_t i = 0; i < sizeof events / sizeof *events && !rc; i++)
        rc = cuda_checked(cudaEventCreateWithFlags(events[i], cudaEventDisableTiming), "event", err);
    return rc;
}

void cuda_graphs_close(struct cuda *c)
{
    const cudaEvent_t events[] = {c->fork, c->join, c->copies_from, c->copies_to, c->before, c->after};
    for (size_t i = 0; i < sizeof events / sizeof *events; i++)
        if (events[i]) (void)cudaEventDestroy(events[i]);
}
