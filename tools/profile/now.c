/* The rates of the machine's memory now: reads by the worker's threads, copies to the device, and both at
 * once. See profile_tool.h. Called by helm_profile.c; owns its memory, its threads and the device's process.
 *
 * Memory is read as the profile has it read, so that what differs is the machine: plain reads as cpu.read,
 * cpu.read_beside and link.h2d_beside_read are measured; one token's products with a format's weights by the
 * worker's engine, as cpu_gemv, cpu_gemv_beside and link_beside of a format. A neighbour that takes cores and
 * no memory slows products and not plain reads. In memory as large as a quick profile's weights. The device
 * opens while the memory is filled. */
#include <string.h>
#include <sys/mman.h>

#include "common/base/cpu.h"
#include "common/base/load.h"
#include "common/base/node.h"
#include "common/base/units.h"
#include "common/cpu/pool.h"
#include "common/measure/stats.h"
#include "tools/profile/profile_tool.h"

#define CHUNK_BYTES (256 * KIB) /* as cpu.c reads */
#define CHOICE_S    0.1         /* for the fastest loop */
#define READ_S      0.15
#define BESIDE_S    0.1
#define FREE_PART   4 /* the memory takes at most one part in four of what is free */

/* A way to read memory. */
struct now_run;
struct way {
    int (*open)(const struct profile_cpu_options *o, struct now_run *r, struct helm_err *err);
    /* Through all of it once: bytes a second. */
    int (*pass)(struct now_run *r, double *rate, struct helm_err *err);
    void (*close)(struct now_run *r);
};

struct now_run {
    const struct way *way;
    struct profile_reads reads;
    struct profile_device_run *device; /* NULL: none */
    /* plain */
    char *memory;
    uint64_t bytes;
    struct pool *pool;
    struct reader reader;
    /* products */
    struct profile_steps steps;
    struct profile_shape shape;
};

/* How much is read: past the caches. */
static int choose_bytes(const struct profile_cpu_options *o, uint32_t threads, uint64_t *bytes,
                        struct helm_err *err)
{
    struct cgroup_memory memory;
    char need[UNITS_TEXT], have[UNITS_TEXT];
    int rc = node_read_memory(o->node, &memory, err);
    if (rc) return rc;
    const uint64_t most = memory.available_bytes / FREE_PART, least = PROFILE_CACHES_LEAST * o->caches;
    *bytes = profile_weights_past(o->caches, threads, true);
    if (*bytes > most) *bytes = most;
    if (*bytes < least || *bytes < CHUNK_BYTES)
        return helm_fail(err, HELM_E_CAPACITY,
                         "reading past the caches takes %s, a quarter of the free memory is %s",
                         units_format_size(least, need), units_format_size(most, have));
    return 0;
}

/* ---- plain reads ---- */

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

/* Memory that is first touched by the threads that read it. */
static int open_plain(const struct profile_cpu_options *o, struct now_run *r, struct helm_err *err)
{
    int rc = open_pool(o, r, err);
    if (!rc) rc = choose_bytes(o, pool_threads(r->pool), &r->bytes, err);
    if (rc) return rc;
    r->bytes = r->bytes / CHUNK_BYTES * CHUNK_BYTES;
    r->memory = stats_map_huge(r->bytes);
    if (!r->memory) return helm_fail(err, HELM_E_NOMEM, "no memory to read");
    reader_open(&r->reader, r->memory, r->bytes, CHUNK_BYTES);
    pool_run_region(r->pool, touch_chunk, r, r->reader.chunks);
    reader_choose(&r->reader, r->pool, CHOICE_S);
    return 0;
}

static int pass_plain(struct now_run *r, double *rate, struct helm_err *err)
{
    (void)err;
    *rate = reader_bytes(&r->reader) / reader_pass(&r->reader, r->pool);
    return 0;
}

static void close_plain(struct now_run *r)
{
    if (r->pool) pool_destroy(r->pool);
    if (r->memory) munmap(r->memory, r->bytes);
}

/* ---- products of one token ---- */

static int open_products(const struct profile_cpu_options *o, struct now_run *r, struct helm_err *err)
{
    struct cpu_set *set = malloc(sizeof *set);
    uint64_t bytes = 0;
    int rc =
        set ? cpu_usable(o->node, set, err) : helm_fail(err, HELM_E_NOMEM, "no memory for the list of CPUs");
    if (!rc) rc = choose_bytes(o, o->threads ? o->threads : (uint32_t)set->suggested, &bytes, err);
    free(set);
    if (!rc) rc = profile_shape_choose_formats(bytes, 2 * bytes, &r->reads.format, 1, &r->shape, err);
    if (!rc) rc = profile_steps_open(o, &r->shape, KV_F16, &r->steps, err);
    if (!rc) rc = profile_steps_fill(&r->steps, r->steps.local.engine.weights.formats, err);
    if (rc) return rc;
    r->reads.inputs = engine_use(&r->steps.local.engine, r->reads.inputs);
    return 0;
}

static int pass_products(struct now_run *r, double *rate, struct helm_err *err)
{
    double spent = 0;
    const int rc = profile_steps_run(&r->steps, 0, 1, &spent, err);
    *rate = rc ? 0 : profile_steps_read(&r->steps, &r->shape, 0);
    return rc;
}

static void close_products(struct now_run *r)
{
    profile_steps_close(&r->steps);
}

/* ---- both ---- */

static const struct way plain = {open_plain, pass_plain, close_plain},
                        products = {open_products, pass_products, close_products};

/* Bytes a second, the median of passes. */
static int read_for(struct now_run *r, double seconds, double *rate, struct helm_err *err)
{
    struct profile_samples samples = {.count = 0};
    const double end = units_now_s() + seconds;
    int rc = 0;
    while (!rc && (samples.count == 0 || (samples.count < PROFILE_SAMPLES_MAX && units_now_s() < end))) {
        double one = 0;
        rc = r->way->pass(r, &one, err);
        if (!rc) profile_samples_add(&samples, one);
    }
    *rate = rc ? 0 : profile_samples_value(&samples).value;
    return rc;
}

static int measure_pair(struct now_run *r, struct profile_now *now, struct helm_err *err)
{
    struct profile_copied first, last;
    struct helm_err ignored;
    double warm = 0;
    int rc = profile_device_stream_start(r->device, err);
    if (rc) return rc;
    rc = r->way->pass(r, &warm, err);
    if (!rc) rc = profile_device_copied(r->device, &first, err);
    if (!rc) rc = read_for(r, BESIDE_S, &now->read_beside, err);
    if (!rc) rc = profile_device_copied(r->device, &last, err);
    if (!rc && last.at_s > first.at_s)
        now->h2d_beside = (last.bytes - first.bytes) / (last.at_s - first.at_s);
    const int stopped = profile_device_stream_stop(r->device, rc ? &ignored : err);
    return rc ? rc : stopped;
}

int profile_now_measure(const struct profile_cpu_options *cpu, const struct profile_device_options *device,
                        const struct profile_reads *reads, struct profile_now *now, struct helm_err *err)
{
    struct now_run *r = aligned_alloc(64, (sizeof *r + 63) / 64 * 64); /* as the engine in it asks */
    struct load load;
    double warm = 0;
    *now = (struct profile_now){.read = 0};
    if (!r) return helm_fail(err, HELM_E_NOMEM, "no memory to measure what memory gives");
    memset(r, 0, sizeof *r);
    r->way = profile_format_has_rates(reads->format) ? &products : &plain, r->reads = *reads;
    int rc = device ? profile_device_open(device, &r->device, err) : 0;
    if (!rc) rc = r->way->open(cpu, r, err);
    if (!rc && device) rc = profile_device_link(r->device, &now->h2d, err); /* from here on it is open */
    if (!rc) rc = r->way->pass(r, &warm, err);
    now->reads = r->reads;
    load_begin(&load);
    if (!rc) rc = read_for(r, READ_S, &now->read, err);
    if (!rc && device) rc = measure_pair(r, now, err);
    now->busy_percent = load_others(&load);
    profile_device_close(r->device);
    r->way->close(r);
    free(r);
    return rc;
}
