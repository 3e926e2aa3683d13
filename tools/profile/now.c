/* What the machine's memory gives now: plain reads by the worker's threads, copies to the device, and both at once. See
 * profile_tool.h. Called by helm_profile.c; owns its memory, its pool and the device's process.
 *
 * As cpu.read, cpu.read_beside, link.h2d and link.h2d_beside_read are measured, in memory as large as a quick profile's weights,
 * so that what differs from them is the machine. The device opens while the memory is filled. */
#include <string.h>
#include <sys/mman.h>

#include "common/base/cpu.h"
#include "common/base/load.h"
#include "common/base/node.h"
#include "common/base/units.h"
#include "common/cpu/pin.h"
#include "common/measure/stats.h"
#include "tools/profile/profile_tool.h"

#define CHUNK_BYTES (256 * KIB) /* as cpu.c reads */
#define CHOICE_S    0.1         /* for the fastest loop */
#define READ_S      0.15
#define BESIDE_S    0.1
#define FREE_PART   4 /* the memory takes at most one part in four of what is free */

struct now_run {
    char *memory;
    uint64_t bytes;
    struct pool *pool;
    struct reader reader;
    struct profile_device_run *device; /* NULL: none */
};

static void touch_chunk(void *ctx, uint32_t chunk, uint32_t thread)
{
    const struct now_run *r = ctx;
    memset(r->memory + (uint64_t)chunk * CHUNK_BYTES, 1 + (int)(thread % 100), CHUNK_BYTES);
}

static int open_pool(const struct profile_cpu_options *o, struct now_run *r, struct helm_err *err)
{
    struct cpu_set *set = malloc(sizeof *set);
    int rc =
        set ? cpu_usable(o->node, set, err) : helm_fail(err, HELM_E_NOMEM, "no memory for the list of CPUs");
    const uint32_t threads = rc ? 0 : o->threads ? o->threads : (uint32_t)set->suggested;
    if (!rc) rc = pin_this_thread(set->cpu[0], err); /* the pool's thread 0 */
    if (!rc) rc = pool_create(threads, set->cpu, POOL_SPIN_US_DEFAULT, &r->pool, err);
    free(set);
    return rc;
}

/* Memory past the caches, first touched by the threads that read it. */
static int open_memory(const struct profile_cpu_options *o, struct now_run *r, struct helm_err *err)
{
    struct cgroup_memory memory;
    char need[UNITS_TEXT], have[UNITS_TEXT];
    int rc = node_read_memory(o->node, &memory, err);
    if (rc) return rc;
    const uint64_t most = memory.available_bytes / FREE_PART, least = PROFILE_CACHES_LEAST * o->caches;
    uint64_t bytes = profile_weights_past(o->caches, pool_threads(r->pool), true);
    if (bytes > most) bytes = most;
    if (bytes < least || bytes < CHUNK_BYTES)
        return helm_fail(err, HELM_E_CAPACITY,
                         "reading past the caches takes %s, a quarter of the free memory is %s",
                         units_format_size(least, need), units_format_size(most, have));
    r->bytes = bytes / CHUNK_BYTES * CHUNK_BYTES;
    r->memory = stats_map_huge(r->bytes);
    if (!r->memory) return helm_fail(err, HELM_E_NOMEM, "no memory to read");
    reader_open(&r->reader, r->memory, r->bytes, CHUNK_BYTES);
    pool_run_region(r->pool, touch_chunk, r, r->reader.chunks);
    reader_choose(&r->reader, r->pool, CHOICE_S);
    return 0;
}

/* Bytes a second, the median of passes. */
static double read_for(struct now_run *r, double seconds)
{
    struct profile_samples samples = {.count = 0};
    const double end = profile_now_s() + seconds;
    while (samples.count == 0 || (samples.count < PROFILE_SAMPLES_MAX && profile_now_s() < end))
        profile_samples_add(&samples, reader_bytes(&r->reader) / reader_pass(&r->reader, r->pool));
    return profile_samples_value(&samples).value;
}

static int measure_pair(struct now_run *r, struct profile_now *now, struct helm_err *err)
{
    struct profile_copied first, last;
    struct helm_err ignored;
    int rc = profile_device_stream_start(r->device, err);
    if (rc) return rc;
    (void)reader_pass(&r->reader, r->pool);
    rc = profile_device_copied(r->device, &first, err);
    if (!rc) now->read_beside = read_for(r, BESIDE_S);
    if (!rc) rc = profile_device_copied(r->device, &last, err);
    if (!rc && last.at_s > first.at_s)
        now->h2d_beside = (last.bytes - first.bytes) / (last.at_s - first.at_s);
    const int stopped = profile_device_stream_stop(r->device, rc ? &ignored : err);
    return rc ? rc : stopped;
}

int profile_now_measure(const struct profile_cpu_options *cpu, const struct profile_device_options *device,
                        struct profile_now *now, struct helm_err *err)
{
    struct now_run r = {.memory = NULL};
    struct load load;
    *now = (struct profile_now){0};
    int rc = device ? profile_device_open(device, &r.device, err) : 0;
    if (!rc) rc = open_pool(cpu, &r, err);
    if (!rc) rc = open_memory(cpu, &r, err);
    if (!rc && device) rc = profile_device_link(r.device, &now->h2d, err); /* from here on it is open */
    load_begin(&load);
    if (!rc) now->read = read_for(&r, READ_S);
    if (!rc && device) rc = measure_pair(&r, now, err);
    now->busy_percent = load_others(&load);
    profile_device_close(r.device);
    if (r.pool) pool_destroy(r.pool);
    if (r.memory) munmap(r.memory, r.bytes);
    return rc;
}
