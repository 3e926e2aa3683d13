/* What the host itself does: reads of memory by thread count, doorbells, direct reads of a disk. See
 * profile_tool.h. Called by cpu.c and helm_profile.c; owns its threads while it measures. */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/cpu.h"
#include "common/shared/doorbell.h"
#include "common/base/units.h"
#include "tools/profile/profile_tool.h"
#include "common/cpu/kernels/probe.h"
#include "common/cpu/pin.h"

/* ---- memory ---- */

/* For processors without AVX2. */
static uint64_t plain_read(const void *data, size_t bytes, unsigned streams, size_t ahead)
{
    const uint64_t *at = data;
    uint64_t a = 0, b = 0, c = 0, d = 0;
    (void)streams, (void)ahead;
    for (size_t i = 0; i + 4 <= bytes / 8; i += 4) a ^= at[i], b ^= at[i + 1], c ^= at[i + 2], d ^= at[i + 3];
    return a ^ b ^ c ^ d;
}

static void read_chunk(void *ctx, uint32_t chunk, uint32_t thread)
{
    struct profile_reader *r = ctx;
    (void)thread;
    uint64_t sum =
        r->read(r->data + (size_t)chunk * PROFILE_READ_CHUNK, PROFILE_READ_CHUNK, r->streams, r->ahead);
    if (sum == 1) atomic_fetch_add_explicit(&r->sink, sum, memory_order_relaxed);
}

static bool read_next(void *ctx, uint32_t thread, struct pool_job *out)
{
    struct profile_reader *r = ctx;
    (void)thread;
    if (r->handed_out) return false;
    r->handed_out = true;
    *out = (struct pool_job){.run = read_chunk, .chunks = r->chunks};
    return true;
}

double profile_reader_pass(struct profile_reader *r, struct pool *pool)
{
    double begin = profile_now_s();
    r->handed_out = false;
    pool_run(pool, read_next, r);
    return (double)r->chunks * PROFILE_READ_CHUNK / (profile_now_s() - begin);
}

void profile_reader_open(struct profile_reader *r, const void *data, uint64_t bytes, struct pool *pool,
                         double seconds)
{
    static const unsigned streams[] = {1, 2, 4, 8};
    static const size_t ahead[] = {0, 2048};
    unsigned features = cpu_features(), best_streams = 1;
    size_t best_ahead = 0;
    double most = 0, end = profile_now_s() + seconds;
    *r = (struct profile_reader){.data = data,
                                 .chunks = (uint32_t)(bytes / PROFILE_READ_CHUNK),
                                 .read = features & CPU_AVX512 ? probe_avx512_read
                                         : features & CPU_AVX2 ? probe_avx2_read
                                                               : plain_read};
    for (size_t s = 0; s < sizeof streams / sizeof *streams; s++)
        for (size_t a = 0; a < sizeof ahead / sizeof *ahead; a++) {
            if (most > 0 && profile_now_s() > end) break;
            r->streams = streams[s];
            r->ahead = ahead[a];
            double first = profile_reader_pass(r, pool), second = profile_reader_pass(r, pool);
            double rate = first > second ? first : second;
            if (rate <= most) continue;
            most = rate;
            best_streams = streams[s];
            best_ahead = ahead[a];
        }
    r->streams = best_streams;
    r->ahead = best_ahead;
}

/* ---- doorbells ---- */

#define BELL_SPIN_US 20
#define BELL_ROUNDS  50
#define BELL_WAIT_MS 10000

struct bells {
    struct doorbell down, up;
    uint32_t rounds;
    _Atomic bool late;
};

static void *bell_main(void *arg)
{
    struct bells *b = arg;
    for (uint32_t i = 0; i < b->rounds; i++) {
        if (!doorbell_wait(&b->down, i, BELL_SPIN_US, BELL_WAIT_MS, NULL)) {
            atomic_store(&b->late, true);
            break;
        }
        doorbell_ring(&b->up, i + 1);
    }
    return NULL;
}

int profile_host_doorbell(struct profile_value *value, struct helm_err *err)
{
    struct profile_samples samples = {.count = 0};
    pthread_t thread;
    struct bells *b = calloc(1, sizeof *b);
    if (!b) return helm_fail(err, HELM_E_NOMEM, "no memory to measure doorbells");
    doorbell_init(&b->down, 0);
    doorbell_init(&b->up, 0);
    b->rounds = BELL_ROUNDS;
    int rc = pin_create_thread(&thread, -1, bell_main, b, err);
    if (rc) goto out;
    const struct timespec pause = {.tv_nsec =
                                       200000}; /* as between steps: the other side may sleep by then */
    bool ok = true;
    for (uint32_t i = 0; i < BELL_ROUNDS && ok; i++) {
        nanosleep(&pause, NULL);
        double begin = profile_now_s();
        doorbell_ring(&b->down, i + 1);
        ok = doorbell_wait(&b->up, i, BELL_SPIN_US, BELL_WAIT_MS, NULL);
        profile_samples_add(&samples, profile_now_s() - begin);
    }
    pthread_join(thread, NULL);
    if (!ok || atomic_load(&b->late))
        rc = helm_fail(err, HELM_E_PEER, "a doorbell was not heard within %d ms", BELL_WAIT_MS);
    *value = profile_samples_value(&samples);
    value->source = PROFILE_ESTIMATE; /* of what helmd does in a step */
out:
    free(b);
    return rc;
}

/* ---- disk ---- */

#define DISK_THREADS 4
#define DISK_BLOCK   (4 * MIB)
#define DISK_LEAST   (64 * MIB)

struct disk {
    int fd;
    uint64_t bytes;
    _Atomic uint64_t at, done;
    _Atomic int error;
    _Atomic bool stop;
};

static void *disk_main(void *arg)
{
    struct disk *d = arg;
    void *buffer = aligned_alloc(4096, DISK_BLOCK);
    if (!buffer) atomic_store(&d->error, ENOMEM);
    while (buffer && !atomic_load(&d->stop) && !atomic_load(&d->error)) {
        uint64_t at = atomic_fetch_add(&d->at, DISK_BLOCK) % (d->bytes / DISK_BLOCK * DISK_BLOCK);
        ssize_t n = pread(d->fd, buffer, DISK_BLOCK, (off_t)at);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) atomic_store(&d->error, errno);
        if (n > 0) atomic_fetch_add(&d->done, (uint64_t)n);
    }
    free(buffer);
    return NULL;
}

int profile_host_disk(const char *path, bool quick, struct profile_value *value, struct helm_err *err)
{
    struct disk d = {.fd = open(path, O_RDONLY | O_CLOEXEC | O_DIRECT)};
    struct profile_samples samples = {.count = 0};
    pthread_t thread[DISK_THREADS];
    struct stat st;
    int rc = 0, started = 0;
    if (d.fd < 0) return helm_fail_errno(err, "--disk %s: cannot be opened for direct reads", path);
    if (fstat(d.fd, &st)) {
        rc = helm_fail_errno(err, "--disk %s", path);
    } else if (!S_ISREG(st.st_mode) || (uint64_t)st.st_size < DISK_LEAST) {
        rc = helm_fail(err, HELM_E_USAGE, "--disk %s: not a regular file of at least 64 MiB", path);
    } else {
        d.bytes = (uint64_t)st.st_size;
        for (; started < DISK_THREADS && !rc; started += !rc)
            rc = pin_create_thread(&thread[started], -1, disk_main, &d, err);
    }
    const struct timespec window = {.tv_nsec = 100000000};
    for (int i = 0; i < (quick ? 5 : 20) && !rc && !atomic_load(&d.error); i++) {
        double begin = profile_now_s();
        uint64_t before = atomic_load(&d.done);
        nanosleep(&window, NULL);
        double rate = (double)(atomic_load(&d.done) - before) / (profile_now_s() - begin);
        if (i) profile_samples_add(&samples, rate);
    }
    atomic_store(&d.stop, true);
    for (int i = 0; i < started; i++) pthread_join(thread[i], NULL);
    close(d.fd);
    if (!rc && atomic_load(&d.error))
        rc =
            helm_fail(err, HELM_E_IO, "--disk %s: reading failed: %s", path, strerror(atomic_load(&d.error)));
    if (!rc) *value = profile_samples_value(&samples);
    return rc;
}
