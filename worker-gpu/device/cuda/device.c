/* The device on CUDA: one GPU, two streams, the kernels of kernels.h (cuda/kernels.c), events and graphs
 * (cuda/graph.c). See device.h.
 *
 * Compiled where nvcc is; calls the runtime, and of the driver only the two stream operations on words in
 * host memory, found through cudaGetDriverEntryPointByVersion, so that the program starts without a driver.
 * Every call is checked. An error of the device itself is sticky: check() keeps saying it, the worker reports
 * FAULT and ends, helmd starts another.
 *
 * Relied upon, beside what cuda/graph.c says:
 * - Registered host memory (any mapping, a memfd's too) has the same address on the device where every device
 *   of the system can use host pointers; this is asked and refused otherwise. The driver pins pages as they
 *   are when it is called: they must be touched, bound and made huge before. It takes them from what cgroup
 *   and system allow, not from RLIMIT_MEMLOCK.
 * - Code is loaded with the first launch of a kernel, and that may wait for the device to be idle. After a
 *   queue that waits for the host it would wait for ever, so everything is launched or asked for once at
 *   opening: kernels by gpuk_open, the driver's own (clearing, copies of pieces) by warm_copies; products of
 *   matrices by the engine, which runs every size of chunk once. */
#include "worker-gpu/device/cuda/cuda.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/units.h"
#include "worker-gpu/device/nvml.h"

#define ENTRY_VERSION   12000 /* of the driver interface that the two entry points below follow */
#define HOST_SPIN_US    10000
#define HOST_NAP_US     20
#define CONTEXT_ASSUMED (640 * MIB) /* where the driver's library does not say what a context takes */

int cuda_fail(struct helm_err *err, cudaError_t code, const char *what)
{
    int helm = code == cudaErrorMemoryAllocation ? HELM_E_NOMEM : HELM_E_DEVICE;
    return helm_fail(err, helm, "%s: %s (%s)", what, cudaGetErrorString(code), cudaGetErrorName(code));
}

/* ---- memory ---- */

static int cuda_memory_alloc(struct device *d, uint64_t bytes, void **memory, struct helm_err *err)
{
    (void)d;
    char text[UNITS_TEXT], what[64];
    snprintf(what, sizeof what, "%s of VRAM", units_format_size(bytes, text));
    cudaError_t code = cudaMalloc(memory, bytes ? bytes : 256);
    if (code != cudaErrorMemoryAllocation) return cuda_checked(code, what, err);
    (void)cudaGetLastError(); /* a refusal, not a fault */
    size_t available = 0, total = 0;
    char have[UNITS_TEXT];
    if (cudaMemGetInfo(&available, &total) != cudaSuccess) available = 0;
    return helm_fail(err, HELM_E_NOMEM, "%s: the device has %s left", what,
                     units_format_size(available, have));
}

static void cuda_memory_free(struct device *d, void *memory)
{
    (void)d;
    (void)cudaFree(memory);
}

static int cuda_host_alloc(struct device *d, uint64_t bytes, void **memory, struct helm_err *err)
{
    (void)d;
    return cuda_checked(cudaHostAlloc(memory, bytes, cudaHostAllocPortable | cudaHostAllocMapped),
                        "pinned host memory", err);
}

static void cuda_host_free(struct device *d, void *memory)
{
    (void)d;
    (void)cudaFreeHost(memory);
}

/* The driver pins pages itself: RLIMIT_MEMLOCK does not bound it, what a cgroup or the system has left does.
 * Its error says which. */
static int cuda_host_register(struct device *d, const char *what, void *base, uint64_t bytes, bool read_only,
                              struct helm_err *err)
{
    struct cuda *c = cuda_of(d);
    unsigned flags = cudaHostRegisterPortable | cudaHostRegisterMapped;
    char doing[160], text[UNITS_TEXT];
    void *seen = NULL;
    int promise = 0, rc = 0;
    snprintf(doing, sizeof doing, "registering %.60s (%s of host memory, pinned by the driver)", what,
             units_format_size(bytes, text));
    if (bytes == 0 || (uintptr_t)base % (uint64_t)sysconf(_SC_PAGESIZE) != 0)
        return helm_fail(err, HELM_E_USAGE, "%s: not whole pages", doing);
    /* Where it is not supported, reading alone needs no promise unless the mapping itself is read-only; then
     * the driver refuses. */
    if (read_only &&
        cudaDeviceGetAttribute(&promise, cudaDevAttrHostRegisterReadOnlySupported, c->ordinal) ==
            cudaSuccess &&
        promise)
        flags |= cudaHostRegisterReadOnly;
    cudaError_t code = cudaHostRegister(base, bytes, flags);
    if (code == cudaErrorHostMemoryAlreadyRegistered)
        rc = helm_fail(err, HELM_E_STATE, "%s: registered already, in part at least", doing);
    else if (code != cudaSuccess)
        rc = cuda_fail(err, code, doing);
    if (rc) {
        (void)cudaGetLastError(); /* a refusal, not a fault */
        return rc;
    }
    rc = cuda_checked(cudaHostGetDevicePointer(&seen, base, 0), doing, err);
    if (!rc && seen != base)
        rc = helm_fail(err, HELM_E_UNSUPPORTED, "%s: it has another address on the device than here", doing);
    if (rc) (void)cudaHostUnregister(base);
    return rc;
}

static void cuda_host_unregister(struct device *d, void *base)
{
    (void)d;
    (void)cudaHostUnregister(base);
}

static enum cudaMemcpyKind kind_of(enum device_direction direction)
{
    return direction == DEVICE_TO_DEVICE ? cudaMemcpyHostToDevice : cudaMemcpyDeviceToHost;
}

static void count_copy(struct cuda *c, enum device_queue queue, enum device_direction direction,
                       uint64_t bytes)
{
    if (c->capture.on)
        c->capture.copied_bytes[queue][direction] += bytes;
    else
        atomic_fetch_add_explicit(&c->base.copied_bytes[queue][direction], bytes, memory_order_relaxed);
}

static int cuda_copy(struct device *d, enum device_queue queue, enum device_direction direction, void *to,
                     const void *from, uint64_t bytes, struct helm_err *err)
{
    struct cuda *c = cuda_of(d);
    int rc = cuda_use_queue(c, queue, err);
    if (!rc)
        rc =
            cuda_checked(cudaMemcpyAsync(to, from, bytes, kind_of(direction), c->stream[queue]), "copy", err);
    if (!rc) count_copy(c, queue, direction, bytes);
    return rc;
}

static int cuda_copy_2d(struct device *d, enum device_queue queue, enum device_direction direction,
                        const struct device_copy_2d *copy, struct helm_err *err)
{
    struct cuda *c = cuda_of(d);
    uint64_t stride = copy->to_stride > copy->from_stride ? copy->to_stride : copy->from_stride;
    if (stride > (uint64_t)c->pitch_max)
        return helm_fail(err, HELM_E_LIMIT, "a copy of pieces %llu bytes apart: the device takes at most %d",
                         (unsigned long long)stride, c->pitch_max);
    int rc = cuda_use_queue(c, queue, err);
    if (!rc)
        rc = cuda_checked(cudaMemcpy2DAsync(copy->to, copy->to_stride, copy->from, copy->from_stride,
                                            copy->width, copy->height, kind_of(direction), c->stream[queue]),
                          "copy of several pieces", err);
    if (!rc) count_copy(c, queue, direction, copy->width * copy->height);
    return rc;
}

static int cuda_clear(struct device *d, enum device_queue queue, void *memory, uint64_t bytes,
                      struct helm_err *err)
{
    struct cuda *c = cuda_of(d);
    int rc = cuda_use_queue(c, queue, err);
    return rc ? rc
              : cuda_checked(cudaMemsetAsync(memory, 0, bytes, c->stream[queue]), "clearing memory", err);
}

static bool ask_management(int ordinal, struct nvml_answer *answer)
{
    char bus[32];
    memset(answer, 0, sizeof *answer);
    return cudaDeviceGetPCIBusId(bus, sizeof bus, ordinal) == cudaSuccess && nvml_ask(bus, answer);
}

/* Device memory taken by this process, or by all processes where that is not known (its text says so): only
 * differences are meaningful. */
static uint64_t cuda_memory_overhead(struct device *d)
{
    struct cuda *c = cuda_of(d);
    struct nvml_answer answer;
    size_t available = 0, total = 0;
    if (c->own_known) { /* no answer now: no difference to the one before */
        if (ask_management(c->ordinal, &answer) && answer.own_known) c->own_bytes = answer.own_bytes;
        return c->own_bytes;
    }
    if (cudaMemGetInfo(&available, &total) != cudaSuccess) return 0;
    return total - available;
}

/* ---- words ---- */

static int word_checked(CUresult code, const char *what, struct helm_err *err)
{
    if (code == CUDA_SUCCESS) return 0;
    return helm_fail(err, HELM_E_DEVICE, "%s: driver error %d", what, (int)code);
}

static int cuda_word_wait(struct device *d, _Atomic uint32_t *word, uint32_t value,
                          enum device_compare compare, struct helm_err *err)
{
    unsigned flags = compare == DEVICE_EQUAL ? CU_STREAM_WAIT_VALUE_EQ : CU_STREAM_WAIT_VALUE_GEQ;
    struct cuda *c = cuda_of(d);
    return word_checked(c->wait_value((CUstream)c->stream[DEVICE_COMPUTE], (CUdeviceptr)(uintptr_t)word,
                                      value, flags),
                        "waiting for a lane", err);
}

static int cuda_word_write(struct device *d, _Atomic uint32_t *word, uint32_t value, struct helm_err *err)
{
    struct cuda *c = cuda_of(d);
    return word_checked(c->write_value((CUstream)c->stream[DEVICE_COMPUTE], (CUdeviceptr)(uintptr_t)word,
                                       value, CU_STREAM_WRITE_VALUE_DEFAULT),
                        "publishing a lane", err);
}

/* ---- the whole ---- */

static int cuda_check(struct device *d, struct helm_err *err)
{
    struct cuda *c = cuda_of(d);
    if (c->capture.on) return 0; /* asking would spoil the capture, and nothing runs */
    for (int i = 0; i < DEVICE_QUEUE_COUNT; i++) {
        cudaError_t code = cudaStreamQuery(c->stream[i]);
        if (code != cudaSuccess && code != cudaErrorNotReady)
            return cuda_fail(err, code, "the device failed");
    }
    return 0;
}

static void cuda_abandon(struct device *d)
{
    for (int i = 0; i < DEVICE_QUEUE_COUNT; i++) (void)cudaStreamSynchronize(cuda_of(d)->stream[i]);
}

static int cuda_thread_begin(struct device *d, struct helm_err *err)
{
    return cuda_checked(cudaSetDevice(cuda_of(d)->ordinal), "choosing the device", err);
}

static void cuda_close(struct device *d)
{
    struct cuda *c = cuda_of(d);
    if (c->matmul) gpuk_matmul_close(c->matmul);
    cuda_graphs_close(c);
    for (int i = 0; i < DEVICE_QUEUE_COUNT; i++)
        if (c->stream[i]) (void)cudaStreamDestroy(c->stream[i]);
    if (c->opened) (void)cudaDeviceReset(); /* the context too: one device, one owner in this process */
    free(c);
}

static const struct device_ops cuda_ops = {
    .close = cuda_close,
    .run = cuda_run,
    .thread_begin = cuda_thread_begin,
    .memory_alloc = cuda_memory_alloc,
    .memory_free = cuda_memory_free,
    .host_alloc = cuda_host_alloc,
    .host_free = cuda_host_free,
    .host_register = cuda_host_register,
    .host_unregister = cuda_host_unregister,
    .copy = cuda_copy,
    .copy_2d = cuda_copy_2d,
    .clear = cuda_clear,
    .event_create = cuda_event_create,
    .event_free = cuda_event_free,
    .event_record = cuda_event_record,
    .event_follow = cuda_event_follow,
    .event_wait = cuda_event_wait,
    .word_wait = cuda_word_wait,
    .word_write = cuda_word_write,
    .capture_begin = cuda_capture_begin,
    .capture_end = cuda_capture_end,
    .graph_launch = cuda_graph_launch,
    .graph_free = cuda_graph_free,
    .memory_overhead = cuda_memory_overhead,
    .check = cuda_check,
    .abandon = cuda_abandon,
};

/* ---- opening ---- */

/* Driver and link, where the management library says. */
static void describe_link(int ordinal, struct device_info *info)
{
    struct nvml_answer answer;
    if (!ask_management(ordinal, &answer)) return;
    memcpy(info->driver, answer.driver, sizeof info->driver);
    info->link_generation = answer.link_generation;
    info->link_width = answer.link_width;
}

static int find_entry(const char *name, stream_word_fn **entry, struct helm_err *err)
{
    enum cudaDriverEntryPointQueryResult found;
    void *address = NULL;
    int rc = cuda_checked(cudaGetDriverEntryPointByVersion(name, &address, ENTRY_VERSION, cudaEnableDefault,
                                                           &found),
                          name, err);
    if (!rc && (found != cudaDriverEntryPointSuccess || !address))
        rc = helm_fail(err, HELM_E_UNSUPPORTED, "this driver has no %s", name);
    *(void **)entry = address;
    return rc;
}

/* Without a driver the runtime says that the driver's version is insufficient. */
static int count_devices(int *count, struct helm_err *err)
{
    int driver = 0, runtime = 0;
    *count = 0;
    const cudaError_t code = cudaGetDeviceCount(count);
    if (code == cudaSuccess && *count > 0) return 0;
    if (code == cudaErrorInsufficientDriver && cudaDriverGetVersion(&driver) == cudaSuccess && driver == 0)
        return helm_fail(err, HELM_E_NOT_FOUND, "no NVIDIA driver here");
    if (code == cudaErrorInsufficientDriver && cudaRuntimeGetVersion(&runtime) == cudaSuccess)
        return helm_fail(err, HELM_E_NOT_FOUND,
                         "the NVIDIA driver is for CUDA %d.%d at most, this build is of %d.%d", driver / 1000,
                         driver % 1000 / 10, runtime / 1000, runtime % 1000 / 10);
    return helm_fail(err, HELM_E_NOT_FOUND, "no CUDA device: %s",
                     code != cudaSuccess ? cudaGetErrorString(code) : "the driver lists none");
}

static int parse_ordinal(const char *name, int *ordinal, struct helm_err *err)
{
    uint64_t number = 0;
    int rc = 0, count = 0;
    if (name[4] == ':')
        rc = units_parse_u64("device", name + 5, 0, 1023, &number, err);
    else if (name[4] != '\0')
        rc = helm_fail(err, HELM_E_USAGE, "device '%.40s' is none of cuda, cuda:N, emulated", name);
    if (rc) return rc;
    rc = count_devices(&count, err);
    if (rc) return rc;
    if (number >= (uint64_t)count)
        return helm_fail(err, HELM_E_NOT_FOUND, "device '%.40s': there are %d", name, count);
    *ordinal = (int)number;
    return 0;
}

bool device_cuda_usable(char *why, size_t size)
{
    int ordinal, major = 0, minor = 0;
    struct helm_err err = {0};
    if (parse_ordinal("cuda", &ordinal, &err)) {
        snprintf(why, size, "%s", err.text);
        return false;
    }
    if (cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, ordinal) != cudaSuccess ||
        cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, ordinal) != cudaSuccess) {
        snprintf(why, size, "the device does not say its compute capability");
        return false;
    }
    if (gpuk_check_built(major * 10 + minor, &err)) {
        snprintf(why, size, "%s", err.text);
        return false;
    }
    return true;
}

/* The NUMA node the system says the device hangs on, -1 when it does not. */
static int node_of(int ordinal)
{
    char bus[32] = "", path[96];
    int node = -1;
    if (cudaDeviceGetPCIBusId(bus, sizeof bus, ordinal) != cudaSuccess) return -1;
    for (char *c = bus; *c; c++)
        if (*c >= 'A' && *c <= 'F') *c = (char)(*c - 'A' + 'a');
    snprintf(path, sizeof path, "/sys/bus/pci/devices/%s/numa_node", bus);
    FILE *file = fopen(path, "r");
    if (!file) return -1;
    if (fscanf(file, "%d", &node) != 1) node = -1;
    fclose(file);
    return node;
}

static int describe(int ordinal, struct device_info *info, struct helm_err *err)
{
    struct cudaDeviceProp p;
    size_t available = 0, total = 0;
    struct nvml_answer before, after;
    uint64_t context = 0;
    int rc = cuda_checked(cudaGetDeviceProperties(&p, ordinal), "the device's properties", err);
    if (rc) return rc;
    memset(info, 0, sizeof *info);
    bool known = ask_management(ordinal, &before);
    rc = cuda_checked(cudaSetDevice(ordinal), "opening the device", err);
    if (!rc) rc = cuda_checked(cudaMemGetInfo(&available, &total), "the device's memory", err);
    if (!rc && known && ask_management(ordinal, &after)) {
        (void)nvml_taken(&before, &after, &context);
        available += context; /* a bare one; the worker's has its kernels too */
    }
    (void)cudaDeviceReset();
    if (rc) return rc;
    snprintf(info->name, sizeof info->name, "%.90s", p.name);
    snprintf(info->compute, sizeof info->compute, "%d.%d", p.major, p.minor);
    const unsigned char *u = (const unsigned char *)p.uuid.bytes;
    snprintf(info->uuid, sizeof info->uuid,
             "GPU-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", u[0], u[1], u[2],
             u[3], u[4], u[5], u[6], u[7], u[8], u[9], u[10], u[11], u[12], u[13], u[14], u[15]);
    info->vram_bytes = total;
    info->vram_free = available < total ? available : total;
    info->numa_node = node_of(ordinal);
    describe_link(ordinal, info);
    return 0;
}

int device_cuda_list(struct device_info *info, uint32_t most, uint32_t *count, struct helm_err *err)
{
    int ordinal, all = 0;
    char why[256];
    *count = 0;
    int rc = parse_ordinal("cuda", &ordinal, err);
    if (rc) return rc;
    if (!device_cuda_usable(why, sizeof why)) return helm_fail(err, HELM_E_UNSUPPORTED, "%s", why);
    rc = gpuk_matmul_load(err); /* no device can be used without it */
    if (!rc) rc = cuda_checked(cudaGetDeviceCount(&all), "listing devices", err);
    for (int i = 0; i < all && *count < most && !rc; i++) {
        rc = describe(i, &info[*count], err);
        *count += !rc;
    }
    return rc;
}

/* Each kind of copy once: some are done by kernels of the driver's, whose first launch loads code, which must
 * not happen while a queue waits for the host. */
static int warm_copies(struct cuda *c, struct helm_err *err)
{
    enum { WIDTH = 64, STRIDE = 256, HEIGHT = 4 };
    void *device = NULL, *host = NULL;
    int rc = cuda_checked(cudaMalloc(&device, STRIDE * HEIGHT), "memory for the first copies", err);
    if (!rc) rc = cuda_host_alloc(&c->base, STRIDE * HEIGHT, &host, err);
    const struct device_copy_2d up = {device, host, STRIDE, WIDTH, WIDTH, HEIGHT},
                                down = {host, device, WIDTH, STRIDE, WIDTH, HEIGHT};
    for (int i = 0; i < DEVICE_QUEUE_COUNT && !rc; i++) {
        enum device_queue q = (enum device_queue)i;
        rc = cuda_clear(&c->base, q, device, STRIDE * HEIGHT, err);
        if (!rc) rc = cuda_copy(&c->base, q, DEVICE_TO_HOST, host, device, STRIDE, err);
        if (!rc) rc = cuda_copy(&c->base, q, DEVICE_TO_DEVICE, device, host, STRIDE, err);
        if (!rc) rc = cuda_copy_2d(&c->base, q, DEVICE_TO_DEVICE, &up, err);
        if (!rc) rc = cuda_copy_2d(&c->base, q, DEVICE_TO_HOST, &down, err);
        if (!rc) rc = cuda_checked(cudaStreamSynchronize(c->stream[i]), "the first copies", err);
    }
    if (host) (void)cudaFreeHost(host);
    if (device) (void)cudaFree(device);
    for (int q = 0; q < DEVICE_QUEUE_COUNT; q++)
        for (int i = 0; i < DEVICE_DIRECTION_COUNT; i++) atomic_store(&c->base.copied_bytes[q][i], 0);
    return rc;
}

/* Context, kernels and libraries, and what all that took. */
static int open_context(struct cuda *c, uint64_t vram_bytes, struct helm_err *err)
{
    struct nvml_answer before, after;
    uint64_t context = 0;
    const char *source = ", context assumed";
    bool known = ask_management(c->ordinal, &before);
    struct cudaDeviceProp properties;
    int rc = cuda_checked(cudaSetDevice(c->ordinal), "opening the device", err);
    if (!rc) rc = cuda_checked(cudaFree(NULL), "opening the device", err);
    c->opened = !rc;
    if (!rc)
        rc = cuda_checked(cudaGetDeviceProperties(&properties, c->ordinal), "the device's properties", err);
    if (!rc) rc = gpuk_open(&c->caps, err);
    if (!rc && !c->caps.bulk_copy) {
        snprintf(c->no_chains, sizeof c->no_chains,
                 "they need compute capability 9.0 (bulk copies), the GPU has %d.%d", c->caps.capability / 10,
                 c->caps.capability % 10);
        c->base.no_chains = c->no_chains;
    }
    if (!rc) rc = gpuk_matmul_open(&c->matmul, err);
    for (int i = 0; i < DEVICE_QUEUE_COUNT && !rc; i++)
        rc = cuda_checked(cudaStreamCreateWithFlags(&c->stream[i], cudaStreamNonBlocking), "stream", err);
    if (!rc) rc = cuda_graphs_open(c, err);
    if (!rc)
        rc = cuda_checked(cudaDeviceGetAttribute(&c->pitch_max, cudaDevAttrMaxPitch, c->ordinal),
                          "the device's limits", err);
    if (!rc) rc = warm_copies(c, err);
    if (!rc) rc = find_entry("cuStreamWaitValue32", &c->wait_value, err);
    if (!rc) rc = find_entry("cuStreamWriteValue32", &c->write_value, err);
    if (rc) return rc;
    if (vram_bytes > properties.totalGlobalMem)
        return helm_fail(err, HELM_E_CAPACITY, "--vram is %llu bytes, the device has %llu",
                         (unsigned long long)vram_bytes, (unsigned long long)properties.totalGlobalMem);
    c->base.ceiling = vram_bytes ? vram_bytes : properties.totalGlobalMem;
    c->base.early_launch = c->caps.early_launch;
    c->base.rings = true;
    if (known && ask_management(c->ordinal, &after)) {
        c->own_known = nvml_taken(&before, &after, &context);
        c->own_bytes = after.own_bytes;
        source = c->own_known ? "" : ", context by difference";
    }
    if (context == 0) {
        context = CONTEXT_ASSUMED;
        source = ", context assumed";
    }
    snprintf(c->base.text, sizeof c->base.text, "%.48s, compute capability %d.%d%s", properties.name,
             c->caps.capability / 10, c->caps.capability % 10, source);
    return device_charge(&c->base, DEVICE_CONTEXT, context, err);
}

int device_cuda_open(const struct device_options *options, struct device **device, struct helm_err *err)
{
    int ordinal = 0;
    *device = NULL;
    int rc = parse_ordinal(options->name, &ordinal, err);
    if (rc) return rc;
    struct cuda *c = calloc(1, sizeof *c);
    if (!c) return helm_fail(err, HELM_E_NOMEM, "no memory for the device");
    c->base.ops = &cuda_ops;
    c->base.ask = cuda_asked;
    c->base.spin_us = HOST_SPIN_US;
    c->base.nap_us = HOST_NAP_US;
    c->base.loads_code = true;
    c->ordinal = ordinal;
    rc = open_context(c, options->vram_bytes, err);
    if (rc) {
        cuda_close(&c->base);
        return rc;
    }
    *device = &c->base;
    return 0;
}
