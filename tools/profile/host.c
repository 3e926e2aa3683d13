/* What the host itself does: doorbells, waking up, direct reads of a disk. See
 * profile_tool.h. Called by cpu.c and helm_profile.c; owns its threads while it measures. */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/shared/doorbell.h"
#include "common/base/units.h"
#include "tools/profile/profile_tool.h"
#include "common/cpu/pin.h"

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
        double begin = units_now_s();
        doorbell_ring(&b->down, i + 1);
        ok = doorbell_wait(&b->up, i, BELL_SPIN_US, BELL_WAIT_MS, NULL);
        profile_samples_add(&samples, units_now_s() - begin);
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

/* ---- waking up ---- */

#define PAUSE_MS 2 /* longer than any thread spins on a doorbell */

/* The other thread: it sleeps until it is rung, each time. */
struct sleeper {
    struct doorbell bell;
    uint32_t rounds;
    _Atomic uint32_t word; /* the last ring that it answered */
    _Atomic double then_s; /* when it was there */
    _Atomic bool late;
};

static void *sleeper_main(void *arg)
{
    struct sleeper *s = arg;
    for (uint32_t i = 0; i < s->rounds; i++) {
        if (!doorbell_wait(&s->bell, i, 0, BELL_WAIT_MS, NULL)) {
            atomic_store(&s->late, true);
            break;
        }
        atomic_store(&s->then_s, units_now_s());
        atomic_store(&s->word, i + 1);
    }
    return NULL;
}

int profile_host_wake(bool quick, struct profile_value *value, struct helm_err *err)
{
    struct profile_samples samples = {.count = 0};
    pthread_t thread;
    struct sleeper *s = calloc(1, sizeof *s);
    if (!s) return helm_fail(err, HELM_E_NOMEM, "no memory to measure waking up");
    doorbell_init(&s->bell, 0);
    s->rounds = quick ? 25 : 75;
    int rc = pin_create_thread(&thread, -1, sleeper_main, s, err);
    if (rc) goto out;
    for (uint32_t i = 0; i < s->rounds && !atomic_load(&s->late); i++) {
        units_sleep_ms(PAUSE_MS);
        double begin = units_now_s();
        doorbell_ring(&s->bell, i + 1);
        for (; atomic_load(&s->word) != i + 1 && !atomic_load(&s->late);)
            units_sleep_ms(1); /* asleep, so that a single CPU is the other's */
        if (i) profile_samples_add(&samples, atomic_load(&s->then_s) - begin);
    }
    pthread_join(thread, NULL);
    if (atomic_load(&s->late))
        rc = helm_fail(err, HELM_E_PEER, "a doorbell was not heard within %d ms", BELL_WAIT_MS);
    *value = profile_samples_value(&samples);
out:
    free(s);
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
    for (int i = 0; i < (quick ? 5 : 20) && !rc && !atomic_load(&d.error); i++) {
        double begin = units_now_s();
        uint64_t before = atomic_load(&d.done);
        units_sleep_ms(100);
        double rate = (double)(atomic_load(&d.done) - before) / (units_now_s() - begin);
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
