/* A disk that gives as much as a test says, or fails: preloaded (LD_PRELOAD) into helmd and its workers by
 * test_helmd_slow_disk.py. There is no io_uring then, so threads read; each read past the page cache waits
 * until a disk of SLOW_DISK_RATE bytes a second would have brought it, all readers of a process together, and
 * fails with EIO while there is a file SLOW_DISK_GONE. */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <liburing.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#define NS 1000000000u

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static uint64_t free_ns; /* from which on the disk has nothing to do */

int io_uring_queue_init(unsigned entries, struct io_uring *ring, unsigned flags)
{
    (void)entries, (void)ring, (void)flags;
    return -ENOSYS;
}

static void wait_for(size_t bytes, double rate)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    const uint64_t now_ns = (uint64_t)now.tv_sec * NS + (uint64_t)now.tv_nsec;
    pthread_mutex_lock(&lock);
    if (free_ns < now_ns) free_ns = now_ns;
    free_ns += (uint64_t)((double)bytes / rate * NS);
    const uint64_t until = free_ns;
    pthread_mutex_unlock(&lock);
    const struct timespec at = {.tv_sec = (time_t)(until / NS), .tv_nsec = (long)(until % NS)};
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, NULL) == EINTR) continue;
}

typedef ssize_t read_at(int fd, void *to, size_t bytes, off64_t at);

ssize_t pread64(int fd, void *to, size_t bytes, off64_t at)
{
    static read_at *_Atomic next;
    const char *rate = getenv("SLOW_DISK_RATE"), *gone = getenv("SLOW_DISK_GONE");
    if (!next) next = (read_at *)dlsym(RTLD_NEXT, "pread64");
    const int flags = fcntl(fd, F_GETFL);
    if (flags >= 0 && flags & O_DIRECT) {
        if (rate) wait_for(bytes, atof(rate));
        if (gone && !access(gone, F_OK)) {
            errno = EIO;
            return -1;
        }
    }
    return next(fd, to, bytes, at);
}

ssize_t pread(int fd, void *to, size_t bytes, off_t at)
{
    return pread64(fd, to, bytes, at);
}
