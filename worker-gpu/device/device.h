/* The interface of a device: memory under a ceiling, copies, events, words in stream order, kernels, graphs.
 *
 * Implemented twice: cuda/device.c (a GPU) and emulated/device.c (threads of the CPU, reference kernels, the
 * same ceiling). Called by the GPU engine, which never asks which one it has. A device has two queues: work
 * put into one is done in order; work in different queues overlaps unless an event orders it. Calls return at
 * once unless they say otherwise; an error of queued work shows in device->check and in every call after it
 * (a device that failed stays failed: the worker ends and helmd starts another).
 *
 * One thread uses the compute queue. Others may use the copy queue after device->thread_begin, but not while
 * a graph is being captured.
 *
 * Graphs. Work put into either queue between capture_begin and capture_end is not done but recorded, as one
 * graph with a part of each queue: operations of one part are done in the order they were put, the parts
 * beside each other, ordered by the events between them. Both parts begin at the beginning: a copy that must
 * not overtake a kernel of its graph follows an event recorded after that kernel. capture_end joins the parts
 * by itself; a part may be empty. A word written by the compute part is seen when that part has come to it,
 * while copies of the copy part may still run. Launching:
 * - alone: the whole graph after everything put into either queue before, and before everything put
 *   into either afterwards.
 * - not alone: each part only after earlier work of its own queue and before later work of it; the
 *   rest is for events that cross (below). So copies put into the copy queue between two launches (the next
 *   step's first slices) run beside the start of the second. A device may order more than that (CUDA: compute
 *   work after the graph's own copies too).
 *
 * Events. An event stands for the point of a queue where it was recorded last; following it makes a queue
 * wait for that point. There are two kinds:
 * - Plain. Recorded in a capture it means a point of that graph, whichever launch: it is
 *   followed in the same capture only, by either queue. Recorded outside it is followed and waited for
 *   outside only; never recorded, it is followed outside without waiting. Recording makes it new, so one
 *   event serves any number of captures, and outside between them. Anything else is HELM_E_STATE. A sleeping
 *   one is the same but for the host's wait (event_wait), which takes no CPU: the thread sleeps until the
 *   point is reached. A wait for another may take one all the while, and be over sooner.
 * - Crossing. Every launch of a graph in which it is recorded records it. Following
 *   it in a capture means: each launch waits for what was recorded last before that launch was called, by a
 *   call or by a launch; for nothing if there was none. Recorded once in a capture at most, and not also
 *   followed there (HELM_E_STATE): that is what plain ones are for.
 * An event is freed after the graphs that use it. */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/err.h"
#include "common/plan/engine_limits.h"
#include "common/plan/plan.h"
#include "worker-gpu/device/op.h"

enum device_queue { DEVICE_COMPUTE, DEVICE_COPY, DEVICE_QUEUE_COUNT };
enum device_direction { DEVICE_TO_DEVICE, DEVICE_TO_HOST, DEVICE_DIRECTION_COUNT };
/* Kinds of events, as above; SLEEPING is a plain one. */
enum device_event_kind { DEVICE_EVENT_PLAIN, DEVICE_EVENT_SLEEPING, DEVICE_EVENT_CROSSING };

/* Uses of device memory: the ledger's lines. */
enum device_use {
    DEVICE_WEIGHTS,
    DEVICE_KV,
    DEVICE_RING,     /* where streamed weights lie until they are used */
    DEVICE_EXPANDED, /* those of them that came packed, while they are */
    DEVICE_WORKSPACE,
    DEVICE_GRAPHS,
    DEVICE_CONTEXT,
    DEVICE_USE_COUNT
};
const char *device_use_name(enum device_use use);

struct device_options {
    const char *name;          /* "cuda", "cuda:1", "emulated" */
    uint64_t vram_bytes;       /* ceiling for everything; 0: all the device has */
    uint64_t copy_bytes_per_s; /* emulated: speed of copies, 0 = as fast as memory */
    uint32_t wait_ms;          /* a word waited for longer than this is a failure of the peer */
};

struct device;
struct device_graph;
struct device_event;

/* `height` pieces of `width` bytes, each a stride after the one before; strides of at least `width`. */
struct device_copy_2d {
    void *to;
    const void *from;
    uint64_t to_stride, from_stride;
    uint64_t width, height;
};

/* A device's answers about its kernels, as kernels.h has each function. */
struct device_asked {
    /* Whether GEMV (GPUK_ONE) or GEMM_SMALL (GPUK_FEW) reads these weights as they are, as gpuk_linear_takes
     * has it. */
    bool (*linear_takes)(struct device *d, const struct gpuk_linear_args *args, enum gpuk_schedule schedule);
    /* For a device that has chains (struct device: no_chains). chain_write puts the list into device memory
     * and is complete when it returns; not under capture. */
    bool (*chain_takes)(struct device *d, const struct gpuk_chain_op *op);
    /* Whether a chain's product has the bits that GEMM_SMALL's has, of these `steady` arguments. */
    bool (*chain_as_few)(struct device *d, const struct gpuk_linear_args *args);
    size_t (*chain_bytes)(const struct gpuk_chain_op *op, uint32_t count);
    int (*chain_write)(struct device *d, const struct gpuk_chain_op *op, uint32_t count, void *memory,
                       void *attention_workspace, struct gpuk_chain *chain, struct helm_err *err);
    size_t (*gemv_workspace)(uint32_t cols);
    size_t (*gemm_small_workspace)(uint32_t tokens, uint32_t cols);
    size_t (*attention_counters)(uint32_t tokens, uint32_t heads); /* the part that must stay zero */
    size_t (*attention_workspace)(uint32_t tokens, uint32_t heads, uint32_t head_dim);
    size_t (*argmax_workspace)(uint32_t rows);
    size_t (*few_workspace)(uint32_t rows, uint32_t vocab);
    size_t (*experts_workspace)(uint32_t tokens, uint32_t chosen, uint32_t cols); /* NULL: it computes none */
    size_t matmul_workspace;
};

struct device_ops {
    void (*close)(struct device *d);
    int (*run)(struct device *d, const struct op *op, struct helm_err *err);
    int (*thread_begin)(struct device *d, struct helm_err *err);
    int (*memory_alloc)(struct device *d, uint64_t bytes, void **memory, struct helm_err *err);
    void (*memory_free)(struct device *d, void *memory);
    int (*host_alloc)(struct device *d, uint64_t bytes, void **memory, struct helm_err *err);
    void (*host_free)(struct device *d, void *memory);
    int (*host_register)(struct device *d, const char *what, void *base, uint64_t bytes, bool read_only,
                         struct helm_err *err);
    void (*host_unregister)(struct device *d, void *base);
    int (*copy)(struct device *d, enum device_queue queue, enum device_direction direction, void *to,
                const void *from, uint64_t bytes, struct helm_err *err);
    int (*copy_2d)(struct device *d, enum device_queue queue, enum device_direction direction,
                   const struct device_copy_2d *copy, struct helm_err *err);
    int (*clear)(struct device *d, enum device_queue queue, void *memory, uint64_t bytes,
                 struct helm_err *err);
    int (*event_create)(struct device *d, enum device_event_kind kind, struct device_event **event,
                        struct helm_err *err);
    void (*event_free)(struct device *d, struct device_event *event);
    int (*event_record)(struct device *d, enum device_queue queue, struct device_event *event,
                        struct helm_err *err);
    int (*event_follow)(struct device *d, enum device_queue queue, struct device_event *event,
                        struct helm_err *err);
    int (*event_wait)(struct device *d, struct device_event *event, struct helm_err *err);
    int (*word_wait)(struct device *d, _Atomic uint32_t *word, uint32_t value, enum device_compare compare,
                     struct helm_err *err);
    int (*word_write)(struct device *d, _Atomic uint32_t *word, uint32_t value, struct helm_err *err);
    int (*capture_begin)(struct device *d, struct helm_err *err);
    int (*capture_end)(struct device *d, struct device_graph **graph, struct helm_err *err);
    int (*graph_launch)(struct device *d, struct device_graph *graph, bool alone, struct helm_err *err);
    void (*graph_free)(struct device *d, struct device_graph *graph); /* when its compute part is done */
    uint64_t (*memory_overhead)(struct device *d); /* taken by the driver beyond our allocations, now */
    int (*check)(struct device *d, struct helm_err *err);
    /* Ends what is queued, done or not; returns when nothing runs any more, so that memory and graphs may go.
     * The device is of no use afterwards. Lanes must have been let go before. */
    void (*abandon)(struct device *d);
};

/* Implementations begin with this. */
struct device {
    const struct device_ops *ops;
    struct device_asked ask;
    char text[96];    /* "NVIDIA H200, compute capability 9.0" */
    uint64_t ceiling; /* bytes; never 0 */
    uint64_t used[DEVICE_USE_COUNT];
    /* put into a queue by copy and copy_2d since it was opened; those of a graph count at each launch */
    _Atomic uint64_t copied_bytes[DEVICE_QUEUE_COUNT][DEVICE_DIRECTION_COUNT];
    uint32_t spin_us;  /* how long a host thread that waits for the device looks without pause */
    uint32_t nap_us;   /* and how long it sleeps between two looks then */
    bool early_launch; /* GPUK_EARLY may be set */
    bool rings;        /* kernels that ask another worker for something ring and wait themselves */
    bool loads_code;   /* a first launch loads its code, which must not happen after a waiting queue's work */
    bool emulated;     /* it computes what no GPU has a kernel for (able.h) */
    bool steady; /* a matrix product gives a token the same bits whatever number of tokens it is asked for */
    const char *no_chains; /* why one token's operations are kernels of their own; NULL: they are chained */
};

/* Opens the device that options->name says. HELM_E_NOT_FOUND: there is none such; HELM_E_UNSUPPORTED: this
 * build has no CUDA device; HELM_E_CAPACITY: it has not the memory asked for. */
HELM_MUST_CHECK int device_open(const struct device_options *options, struct device **device,
                                struct helm_err *err);
/* Waits for nothing that still runs: call it when the queues are empty or the device failed. NULL allowed. */
void device_close(struct device *device);

/* Device memory, 256-byte aligned, charged to a line of the ledger. Above the ceiling: HELM_E_CAPACITY with
 * the numbers; nothing was allocated then. */
HELM_MUST_CHECK int device_alloc(struct device *d, enum device_use use, uint64_t bytes, void **memory,
                                 struct helm_err *err);
void device_free(struct device *d, enum device_use use, uint64_t bytes, void *memory);
/* Adds what was taken without device_alloc (context, graphs) to a line; HELM_E_CAPACITY above the ceiling. */
HELM_MUST_CHECK int device_charge(struct device *d, enum device_use use, uint64_t bytes,
                                  struct helm_err *err);
uint64_t device_used(const struct device *d);
void device_ledger(const struct device *d, struct ledger *ledger);

/* Host memory that the device and its copies use directly; the same address on both sides. Copies take no
 * other host memory. */
static inline int device_host_alloc(struct device *d, uint64_t bytes, void **memory, struct helm_err *err)
{
    return d->ops->host_alloc(d, bytes, memory, err);
}
/* Makes a mapping of the caller's such memory: whole pages, apart from regions registered before, any number
 * of them. Its pages must be final (touched, bound to their node, made huge): the driver pins them as they
 * are, and a page that the system replaced later would be another one. read_only: neither kernel nor copy
 * writes there, and the mapping may be PROT_READ. `what` names it in errors. */
HELM_MUST_CHECK static inline int device_host_register(struct device *d, const char *what, void *base,
                                                       uint64_t bytes, bool read_only, struct helm_err *err)
{
    return d->ops->host_register(d, what, base, bytes, read_only, err);
}
static inline int device_copy(struct device *d, enum device_queue queue, enum device_direction direction,
                              void *to, const void *from, uint64_t bytes, struct helm_err *err)
{
    return bytes ? d->ops->copy(d, queue, direction, to, from, bytes, err) : 0;
}
/* Puts an operation into the compute queue. HELM_E_INTERNAL: one that no device computes. */
HELM_MUST_CHECK static inline int device_run(struct device *d, const struct op *op, struct helm_err *err)
{
    return d->ops->run(d, op, err);
}
/* Several pieces in one operation; width or height 0: nothing. HELM_E_USAGE: a stride is less than width. */
HELM_MUST_CHECK int device_copy_2d(struct device *d, enum device_queue queue, enum device_direction direction,
                                   const struct device_copy_2d *copy, struct helm_err *err);
/* The compute queue goes on once the word compares so. */
static inline int device_word_wait(struct device *d, _Atomic uint32_t *word, uint32_t value,
                                   enum device_compare compare, struct helm_err *err)
{
    return d->ops->word_wait(d, word, value, compare, err);
}
/* Writes a word after all work before it in the compute queue, whose writes are visible with it. */
static inline int device_word_write(struct device *d, _Atomic uint32_t *word, uint32_t value,
                                    struct helm_err *err)
{
    return d->ops->word_write(d, word, value, err);
}
/* Host: waits until what was put into this queue is done. Not under capture. */
HELM_MUST_CHECK int device_await(struct device *d, enum device_queue queue, struct helm_err *err);
/* Host: waits until a word has this value, as device_word_write leaves it; looks for failures meanwhile.
 * HELM_E_PEER after timeout_ms. */
HELM_MUST_CHECK int device_word_poll(struct device *d, const _Atomic uint32_t *word, uint32_t value,
                                     uint32_t timeout_ms, struct helm_err *err);

/* Implementations. */
int device_emulated_open(const struct device_options *options, struct device **device, struct helm_err *err);
int device_cuda_open(const struct device_options *options, struct device **device, struct helm_err *err);
/* True when this build has the CUDA device and a usable GPU is there; else `why` says what is missing. */
bool device_cuda_usable(char *why, size_t size);

/* A GPU as the driver lists it. */
struct device_info {
    char name[96], uuid[48], compute[16]; /* uuid "GPU-...", compute "9.0" */
    uint64_t vram_bytes, vram_free;
    int numa_node;          /* -1: unknown */
    uint64_t context_bytes; /* taken by opening it; 0: not known */
    char driver[24];        /* "570.86.10", "" where the management library does not say */
    uint32_t link_generation,
        link_width; /* of PCIe, the most that device and board do together; 0: unknown */
};
/* Opens one device after the other to see; at most `most`. HELM_E_NOT_FOUND: there is none,
 * others: none that can be used, with the reason. */
int device_cuda_list(struct device_info *info, uint32_t most, uint32_t *count, struct helm_err *err);
