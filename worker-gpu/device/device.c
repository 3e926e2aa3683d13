/* Shared by all devices: the ceiling, the ledger, counters, waiting for a word. See device.h. */
#include "worker-gpu/device/device.h"

#include <string.h>

#include "common/shared/lane.h"
#include "common/base/units.h"

/* How often a waiting host thread asks whether the device still works. */
#define POLL_CHECK_MS 50

const char *device_use_name(enum device_use use)
{
    static const char *const name[DEVICE_USE_COUNT] = {"weights",   "KV pool", "ring",   "expanded slice",
                                                       "workspace", "graphs",  "context"};
    return (unsigned)use < DEVICE_USE_COUNT ? name[use] : "unknown";
}

int device_open(const struct device_options *options, struct device **device, struct helm_err *err)
{
    *device = NULL;
    if (strcmp(options->name, "emulated") == 0) return device_emulated_open(options, device, err);
    if (strncmp(options->name, "cuda", 4) == 0) return device_cuda_open(options, device, err);
    return helm_fail(err, HELM_E_USAGE, "device '%.40s' is none of cuda, cuda:N, emulated", options->name);
}

void device_close(struct device *device)
{
    if (device) device->ops->close(device);
}

uint64_t device_used(const struct device *d)
{
    uint64_t sum = 0;
    for (int i = 0; i < DEVICE_USE_COUNT; i++) sum += d->used[i];
    return sum;
}

void device_ledger(const struct device *d, struct ledger *ledger)
{
    memset(ledger, 0, sizeof *ledger);
    ledger->limit = d->ceiling;
    for (int i = 0; i < DEVICE_USE_COUNT; i++)
        if (d->used[i]) ledger_add(ledger, device_use_name((enum device_use)i), d->used[i]);
}

int device_charge(struct device *d, enum device_use use, uint64_t bytes, struct helm_err *err)
{
    uint64_t used = device_used(d);
    char want[UNITS_TEXT], have[UNITS_TEXT], most[UNITS_TEXT];
    if (bytes > d->ceiling || used > d->ceiling - bytes)
        return helm_fail(err, HELM_E_CAPACITY, "VRAM: %s more for %s, %s of %s are in use",
                         units_format_size(bytes, want), device_use_name(use), units_format_size(used, have),
                         units_format_size(d->ceiling, most));
    d->used[use] += bytes;
    return 0;
}

int device_alloc(struct device *d, enum device_use use, uint64_t bytes, void **memory, struct helm_err *err)
{
    *memory = NULL;
    int rc = device_charge(d, use, bytes, err);
    if (rc) return rc;
    rc = d->ops->memory_alloc(d, bytes, memory, err);
    if (rc) {
        d->used[use] -= bytes;
        helm_err_prefix(err, "%s", device_use_name(use));
    }
    return rc;
}

void device_free(struct device *d, enum device_use use, uint64_t bytes, void *memory)
{
    if (!memory) return;
    d->ops->memory_free(d, memory);
    d->used[use] -= bytes;
}

int device_copy_2d(struct device *d, enum device_queue queue, enum device_direction direction,
                   const struct device_copy_2d *copy, struct helm_err *err)
{
    if (copy->to_stride < copy->width || copy->from_stride < copy->width)
        return helm_fail(err, HELM_E_USAGE, "a copy of pieces of %llu bytes has strides of %llu and %llu",
                         (unsigned long long)copy->width, (unsigned long long)copy->to_stride,
                         (unsigned long long)copy->from_stride);
    if (copy->width == 0 || copy->height == 0) return 0;
    return d->ops->copy_2d(d, queue, direction, copy, err);
}

int device_await(struct device *d, enum device_queue queue, struct helm_err *err)
{
    struct device_event *event = NULL;
    int rc = d->ops->event_create(d, DEVICE_EVENT_PLAIN, &event, err);
    if (!rc) rc = d->ops->event_record(d, queue, event, err);
    if (!rc) rc = d->ops->event_wait(d, event, err);
    if (event) d->ops->event_free(d, event);
    return rc;
}

int device_word_poll(struct device *d, const _Atomic uint32_t *word, uint32_t value, uint32_t timeout_ms,
                     struct helm_err *err)
{
    uint32_t seen;
    for (uint32_t waited = 0; waited < timeout_ms; waited += POLL_CHECK_MS) {
        if (lane_poll(word, value, waited ? 0 : d->spin_us, POLL_CHECK_MS, NULL, &seen)) return 0;
        int rc = d->ops->check(d, err);
        if (rc) return rc;
    }
    return helm_fail(err, HELM_E_PEER, "the device has not finished a step within %u ms", timeout_ms);
}
