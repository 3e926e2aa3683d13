/* A device made of threads: two queues, memory under a real ceiling, copies at a settable speed. See
 * device.h.
 *
 * Opened by device_open("emulated"). Everything a GPU does asynchronously happens asynchronously here too:
 * each queue is a thread that takes operations in order (emulated/queue.c); graphs are recorded lists
 * (emulated/graph.c); waiting for a word blocks the queue. An operation that fails fails the device: what is
 * queued after it is dropped, and every later call says why. Stricter than a GPU where that finds mistakes:
 * fresh memory is full of NaN, and copies may only touch memory the device knows. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/grow.h"
#include "common/base/units.h"
#include "worker-gpu/device/emulated/queue.h"

#define MEMORY_DEFAULT (1 * GIB)
#define GARBAGE_BYTES                                                                                        \
    (64 * MIB) /* fresh device memory up to here is filled with NaN: its contents are undefined */
#define MEMORY_ALIGN 256
#define POLL_SPIN_US 20
#define POLL_NAP_US  200 /* polling takes time from the threads that compute */

/* ---- memory that copies may touch ---- */

static int region_add(struct emulated *e, const struct region *region, struct helm_err *err)
{
    int rc = 0;
    pthread_mutex_lock(&e->lock);
    if (GROW(e->region, e->region_count, e->region_capacity))
        e->region[e->region_count++] = *region;
    else
        rc = helm_fail(err, HELM_E_NOMEM, "no memory for %u regions", e->region_count + 1);
    pthread_mutex_unlock(&e->lock);
    return rc;
}

/* Forgets the region that begins at `base`; false when there is none. */
static bool region_remove(struct emulated *e, const void *base, bool registered)
{
    bool found = false;
    pthread_mutex_lock(&e->lock);
    for (uint32_t i = 0; i < e->region_count && !found; i++) {
        if (e->region[i].base != base || e->region[i].registered != registered) continue;
        e->region[i] = e->region[--e->region_count];
        found = true;
    }
    pthread_mutex_unlock(&e->lock);
    return found;
}

/* The whole of [at, at + bytes) in one region of that side. */
static int check_side(struct emulated *e, const void *at, uint64_t bytes, bool host, bool written,
                      struct helm_err *err)
{
    const char *what = NULL;
    pthread_mutex_lock(&e->lock);
    for (uint32_t i = 0; i < e->region_count; i++) {
        const struct region *r = &e->region[i];
        const char *first = at;
        if (r->host != host || first < r->base || bytes > r->bytes ||
            (uint64_t)(first - r->base) > r->bytes - bytes)
            continue;
        what = written && r->read_only ? "read-only" : "fine";
        break;
    }
    pthread_mutex_unlock(&e->lock);
    if (what && strcmp(what, "fine") == 0) return 0;
    return helm_fail(err, HELM_E_USAGE, "%llu bytes at %p are %s", (unsigned long long)bytes, at,
                     what   ? "registered read-only, and would be written"
                     : host ? "not host memory of the device, nor registered with it"
                            : "not memory of the device");
}

static int check_copy(struct emulated *e, enum device_direction direction, const struct device_copy_2d *c,
                      struct helm_err *err)
{
    uint64_t to_bytes = (c->height - 1) * c->to_stride + c->width;
    uint64_t from_bytes = (c->height - 1) * c->from_stride + c->width;
    int rc = check_side(e, c->to, to_bytes, direction == DEVICE_TO_HOST, true, err);
    if (!rc) rc = check_side(e, c->from, from_bytes, direction == DEVICE_TO_DEVICE, false, err);
    if (rc) helm_err_prefix(err, "copy");
    return rc;
}

/* ---- putting things into queues ---- */

int emulated_enqueue(struct device *d, emulated_run_fn *run, const struct op *op, struct helm_err *err)
{
    const struct task task = {.kind = TASK_RUN, .as.run = {.run = run, .op = *op}};
    return emulated_put(emulated_of(d), DEVICE_COMPUTE, &task, err);
}

static int emulated_copy_2d(struct device *d, enum device_queue queue, enum device_direction direction,
                            const struct device_copy_2d *copy, struct helm_err *err)
{
    struct emulated *e = emulated_of(d);
    const struct task op = {.kind = TASK_COPY, .as.copy = *copy};
    int rc = check_copy(e, direction, copy, err);
    if (!rc) rc = emulated_put(e, queue, &op, err);
    if (rc) return rc;
    uint64_t bytes = copy->width * copy->height;
    if (e->capture)
        e->capture->copied_bytes[queue][direction] += bytes;
    else
        atomic_fetch_add_explicit(&d->copied_bytes[queue][direction], bytes, memory_order_relaxed);
    return 0;
}

static int emulated_copy(struct device *d, enum device_queue queue, enum device_direction direction, void *to,
                         const void *from, uint64_t bytes, struct helm_err *err)
{
    const struct device_copy_2d copy = {
        .to = to, .from = from, .to_stride = bytes, .from_stride = bytes, .width = bytes, .height = 1};
    return emulated_copy_2d(d, queue, direction, &copy, err);
}

static int emulated_clear(struct device *d, enum device_queue queue, void *memory, uint64_t bytes,
                          struct helm_err *err)
{
    struct emulated *e = emulated_of(d);
    const struct task op = {.kind = TASK_CLEAR, .as.clear = {.memory = memory, .bytes = bytes}};
    int rc = check_side(e, memory, bytes, false, true, err);
    if (rc) helm_err_prefix(err, "clearing memory");
    return rc ? rc : emulated_put(e, queue, &op, err);
}

static int emulated_word_wait(struct device *d, _Atomic uint32_t *word, uint32_t value,
                              enum device_compare compare, struct helm_err *err)
{
    (void)compare; /* exact in both cases: a word that runs ahead is an error to be seen */
    const struct task op = {.kind = TASK_WORD_WAIT, .as.word = {.word = word, .value = value}};
    return emulated_put(emulated_of(d), DEVICE_COMPUTE, &op, err);
}

static int emulated_word_write(struct device *d, _Atomic uint32_t *word, uint32_t value, struct helm_err *err)
{
    const struct task op = {.kind = TASK_WORD_WRITE, .as.word = {.word = word, .value = value}};
    return emulated_put(emulated_of(d), DEVICE_COMPUTE, &op, err);
}

/* ---- memory ---- */

static int take_memory(struct emulated *e, uint64_t bytes, bool host, void **memory, struct helm_err *err)
{
    uint64_t rounded = round_up(bytes, MEMORY_ALIGN);
    *memory = aligned_alloc(MEMORY_ALIGN, (size_t)(rounded ? rounded : MEMORY_ALIGN));
    if (!*memory)
        return helm_fail(err, HELM_E_NOMEM, "the emulated device's %llu bytes are not there",
                         (unsigned long long)bytes);
    const struct region region = {.base = *memory, .bytes = bytes, .host = host};
    int rc = region_add(e, &region, err);
    if (rc) {
        free(*memory);
        *memory = NULL;
    }
    return rc;
}

static int emulated_host_alloc(struct device *d, uint64_t bytes, void **memory, struct helm_err *err)
{
    return take_memory(emulated_of(d), bytes, true, memory, err);
}

static int emulated_memory_alloc(struct device *d, uint64_t bytes, void **memory, struct helm_err *err)
{
    int rc = take_memory(emulated_of(d), bytes, false, memory, err);
    if (!rc) memset(*memory, 0xff, (size_t)(bytes < GARBAGE_BYTES ? bytes : GARBAGE_BYTES));
    return rc;
}

static void emulated_memory_free(struct device *d, void *memory)
{
    (void)region_remove(emulated_of(d), memory, false);
    free(memory);
}

/* Whether every page of a mapping is writable. */
static bool is_writable(const char *base, uint64_t bytes)
{
    FILE *maps = fopen("/proc/self/maps", "re");
    uint64_t at = (uintptr_t)base, end = at + bytes;
    char line[512];
    if (!maps) return true; /* unknown: the first write will tell */
    while (at < end && fgets(line, sizeof line, maps)) {
        unsigned long long first, last;
        char write;
        if (sscanf(line, "%llx-%llx %*c%c", &first, &last, &write) == 3 && first <= at && at < last) {
            if (write != 'w') break;
            at = last;
        }
    }
    fclose(maps);
    return at >= end;
}

/* Refuses whatever the driver would refuse. */
static int emulated_host_register(struct device *d, const char *what, void *base, uint64_t bytes,
                                  bool read_only, struct helm_err *err)
{
    struct emulated *e = emulated_of(d);
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    char text[UNITS_TEXT];
    bool taken = false;
    units_format_size(bytes, text);
    if (bytes == 0 || (uintptr_t)base % page != 0)
        return helm_fail(err, HELM_E_USAGE, "registering %s (%s at %p): not whole pages", what, text, base);
    if (!read_only && !is_writable(base, bytes))
        return helm_fail(err, HELM_E_PERMISSION, "registering %s (%s at %p): the mapping is read-only", what,
                         text, base);
    pthread_mutex_lock(&e->lock);
    for (uint32_t i = 0; i < e->region_count && !taken; i++) {
        const struct region *r = &e->region[i];
        taken = r->registered && (char *)base < r->base + r->bytes && r->base < (char *)base + bytes;
    }
    pthread_mutex_unlock(&e->lock);
    if (taken)
        return helm_fail(err, HELM_E_STATE, "registering %s (%s at %p): registered already, in part at least",
                         what, text, base);
    const struct region region = {
        .base = base, .bytes = bytes, .host = true, .registered = true, .read_only = read_only};
    return region_add(e, &region, err);
}

static void emulated_host_unregister(struct device *d, void *base)
{
    (void)region_remove(emulated_of(d), base, true);
}

static int emulated_thread_begin(struct device *d, struct helm_err *err)
{
    return emulated_check(d, err);
}

static uint64_t emulated_memory_overhead(struct device *d)
{
    return d->used[DEVICE_CONTEXT] + d->used[DEVICE_GRAPHS];
}

static void emulated_abandon(struct device *d)
{
    struct emulated *e = emulated_of(d);
    struct helm_err error = {0};
    helm_fail(&error, HELM_E_CANCELLED, "the emulated device was abandoned");
    emulated_fail(e, &error);
    pthread_mutex_lock(&e->lock);
    emulated_drain_locked(e);
    pthread_mutex_unlock(&e->lock);
}

static void emulated_close(struct device *d)
{
    struct emulated *e = emulated_of(d);
    pthread_mutex_lock(&e->lock);
    e->stop = true;
    emulated_wake_all_locked(e);
    pthread_mutex_unlock(&e->lock);
    for (int i = 0; i < DEVICE_QUEUE_COUNT; i++) {
        if (e->queue[i].started) pthread_join(e->queue[i].thread, NULL);
        if (e->queue[i].ring) pthread_cond_destroy(&e->queue[i].fed);
        free(e->queue[i].ring);
    }
    emulated_capture_drop(e);
    free(e->region);
    emulated_math_close(&e->math);
    pthread_mutex_destroy(&e->lock);
    free(e);
}

static const struct device_ops emulated_ops = {
    .close = emulated_close,
    .run = emulated_run,
    .thread_begin = emulated_thread_begin,
    .memory_alloc = emulated_memory_alloc,
    .memory_free = emulated_memory_free,
    .host_alloc = emulated_host_alloc,
    .host_free = emulated_memory_free,
    .host_register = emulated_host_register,
    .host_unregister = emulated_host_unregister,
    .copy = emulated_copy,
    .copy_2d = emulated_copy_2d,
    .clear = emulated_clear,
    .event_create = emulated_event_create,
    .event_free = emulated_event_free,
    .event_record = emulated_event_record,
    .event_follow = emulated_event_follow,
    .event_wait = emulated_event_wait,
    .word_wait = emulated_word_wait,
    .word_write = emulated_word_write,
    .capture_begin = emulated_capture_begin,
    .capture_end = emulated_capture_end,
    .graph_launch = emulated_graph_launch,
    .graph_free = emulated_graph_free,
    .memory_overhead = emulated_memory_overhead,
    .check = emulated_check,
    .abandon = emulated_abandon,
};

int device_emulated_open(const struct device_options *options, struct device **device, struct helm_err *err)
{
    struct emulated *e = aligned_alloc(64, (sizeof *e + 63) / 64 * 64);
    *device = NULL;
    if (!e) return helm_fail(err, HELM_E_NOMEM, "no memory for the emulated device");
    memset(e, 0, sizeof *e);
    pthread_mutex_init(&e->lock, NULL);
    e->base.ops = &emulated_ops;
    e->base.ask = emulated_asked;
    e->base.ceiling = options->vram_bytes ? options->vram_bytes : MEMORY_DEFAULT;
    e->base.spin_us = POLL_SPIN_US;
    e->base.nap_us = POLL_NAP_US;
    e->base.steady = e->base.emulated = true;
    e->copy_bytes_per_s = options->copy_bytes_per_s;
    e->wait_ms = options->wait_ms;
    int rc = emulated_math_open(&e->math, err);
    for (int i = 0; i < DEVICE_QUEUE_COUNT && !rc; i++)
        rc = emulated_queue_start(e, (enum device_queue)i, err);
    if (!rc) rc = device_charge(&e->base, DEVICE_CONTEXT, GPU_CONTEXT_EMULATED, err);
    if (rc) {
        emulated_close(&e->base);
        return rc;
    }
    char memory[UNITS_TEXT], speed[UNITS_TEXT];
    snprintf(e->base.text, sizeof e->base.text, "emulated device, %s, attention %s, copies %s%s",
             units_format_size(e->base.ceiling, memory), e->math.attention[DTYPE_F16]->name,
             e->copy_bytes_per_s ? units_format_size(e->copy_bytes_per_s, speed) : "unlimited",
             e->copy_bytes_per_s ? "/s" : "");
    *device = &e->base;
    return 0;
}
