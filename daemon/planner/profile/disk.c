/* How fast the disk gives a model's files: large reads past the page cache, as the CPU worker's are
 * (common/disk): in order as those of half layers, of a mixture drawn as those of experts. See profile.h.
 * Called by helmd and helm-plan where a model is larger than memory; owns nothing. */
#include <stdlib.h>
#include <sys/mman.h>

#include "common/base/log.h"
#include "common/base/random.h"
#include "common/base/units.h"
#include "common/disk/reader.h"
#include "common/measure/stats.h"
#include "common/model/shards.h"
#include "common/plan/plan.h"
#include "common/shared/arena_layout.h"
#include "daemon/planner/profile/profile.h"

#define MEMORY_BYTES ((size_t)DISK_DEPTH * DISK_BLOCK)
#define SAMPLES      5
#define SAMPLE_NS    60000000u /* of a sample: with all of them a third of a second */

struct measuring {
    struct disk_reader *reader;
    struct disk_reading read[DISK_DEPTH];
    char *memory;
    int fd;
    uint32_t blocks; /* of the file */
    uint64_t state;  /* of the draws of blocks */
    bool in_order;   /* as whole half layers are read; otherwise as single experts are: drawn */
    uint64_t next;
};

static void send(struct measuring *m, struct disk_reading *read)
{
    const uint64_t block = m->in_order ? m->next++ % m->blocks : random_below(&m->state, m->blocks);
    read->fd = m->fd;
    read->offset = block * DISK_BLOCK;
    read->bytes = read->least = DISK_BLOCK;
    disk_reader_submit(m->reader, read);
}

/* Bytes a second; 0: a read failed. */
static double sample(struct measuring *m)
{
    const uint64_t begin = units_now_ns();
    uint64_t bytes = 0, now = begin;
    while (now - begin < SAMPLE_NS) {
        struct disk_reading *read = disk_reader_done(m->reader, true);
        if (!read || read->error || read->ended) return 0;
        bytes += read->bytes;
        send(m, read);
        now = units_now_ns();
    }
    return (double)bytes * 1e9 / (double)(now - begin);
}

static int measure(struct measuring *m, struct profile_value *value, struct helm_err *err)
{
    double rate[SAMPLES];
    struct helm_err refused;
    const int rc = disk_reader_open_usual(&m->reader, &refused, err);
    if (rc) return rc;
    for (uint32_t i = 0; i < DISK_DEPTH; i++) {
        m->read[i].to = m->memory + (uint64_t)i * DISK_BLOCK;
        send(m, &m->read[i]);
    }
    for (int i = 0; i < SAMPLES; i++) rate[i] = sample(m);
    disk_reader_close(m->reader);
    const double median = stats_quantile(rate, SAMPLES, 0.5);
    if (rate[0] > 0) *value = (struct profile_value){median, rate[0], rate[SAMPLES - 1]};
    return 0;
}

uint64_t profile_disk_room(const char *plan_file, uint64_t room)
{
    static const char *const of_disk[] = {"disk_slots", "disk_ring_bytes", NULL};
    struct helm_err unread; /* told where the plan is taken */
    bool reads;
    if (!plan_file) return room;
    return plan_file_has(plan_file, of_disk, &reads, &unread) || !reads ? UINT64_MAX : 0;
}

int profile_disk(const struct model *model, uint64_t stated, uint64_t memory, struct profile *profile,
                 struct helm_err *err)
{
    struct profile_value *value = &profile->disk_read;
    struct model_shards shards = {0};
    struct helm_err why = {0};
    uint32_t largest = 0;
    if (stated) *value = (struct profile_value){(double)stated, (double)stated, (double)stated};
    if (value->value > 0 || model->weight_bytes <= memory - memory / 4) return 0;
    if (model_shards_open(model, &shards, &why)) {
        if (why.code != HELM_E_NOT_FOUND) log_warn("nothing is planned on disk: %s", why.text);
        return 0;
    }
    for (uint32_t i = 0; i < shards.count; i++)
        if (shards.bytes[i] > shards.bytes[largest]) largest = i;
    struct measuring *m = calloc(1, sizeof *m);
    if (m) m->memory = aligned_alloc(ARENA_HUGE_PAGE, MEMORY_BYTES);
    if (m && m->memory) madvise(m->memory, MEMORY_BYTES, MADV_HUGEPAGE); /* as the worker's */
    int rc = m && m->memory ? 0 : helm_fail(err, HELM_E_NOMEM, "no memory to measure the disk with");
    if (!rc && shards.count) {
        m->fd = shards.fd[largest];
        m->blocks = (uint32_t)(shards.bytes[largest] / DISK_BLOCK);
        m->state = RANDOM_SEED;
        m->in_order = !model->config.router.experts;
        if (disk_reader_direct(m->fd, model->shards[largest].file, &why))
            log_warn("nothing is planned on disk: %s", why.text);
        else if (m->blocks)
            rc = measure(m, value, err);
        if (!rc && !why.code && value->value <= 0)
            log_info("nothing is planned on disk: its rate is not known");
    }
    if (m) free(m->memory);
    free(m);
    model_shards_close(&shards);
    return rc;
}
