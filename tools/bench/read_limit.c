/* How fast the machine's memory can be read just now, with the threads that a worker uses. See bench.h.
 *
 * Called between cells. Owns its threads, pinned one a core, and a buffer past every cache on huge pages
 * where the kernel gives them, first touched by the threads that read it; or it reads memory of the caller.
 * Pieces are taken from a common counter, so a preempted thread holds up one piece, as in the worker's pool.
 * The loop (streams, prefetch distance) is the fastest of several, tried once at the start. */
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "common/base/cpu.h"
#include "common/base/units.h"
#include "tools/bench/serving/bench.h"
#include "common/cpu/kernels/probe.h"

#define PIECE_BYTES   (2 * MIB)
#define PASS_NS       40000000.0 /* one measurement takes about this long */
#define PASSES_MAX    4096
#define MEASUREMENTS  3
#define AHEAD_CHOICES 2

enum read_job { READ_JOB_TOUCH, READ_JOB_READ, READ_JOB_QUIT };

struct read_thread {
    struct read_limit *limit;
    pthread_t thread;
    uint32_t index;
    int cpu;
    bool started;
    uint64_t begin_ns, end_ns;
    uint64_t sink;
};

struct read_limit {
    char *data; /* own: of this struct; else the caller's, and only read */
    bool own;
    uint64_t bytes, pieces;
    probe_read_fn *read;
    unsigned streams;
    size_t ahead;
    uint32_t passes;
    enum read_job job;
    _Atomic uint64_t next; /* piece, counted over all passes */
    pthread_barrier_t begin, end;
    bool has_barriers;
    uint32_t threads;
    struct read_thread thread[]; /* threads */
};

static void do_read(struct read_limit *limit, struct read_thread *self)
{
    uint64_t all = limit->pieces * limit->passes;
    self->begin_ns = units_now_ns();
    for (;;) {
        uint64_t piece = atomic_fetch_add_explicit(&limit->next, 1, memory_order_relaxed);
        if (piece >= all) break;
        self->sink += limit->read(limit->data + piece % limit->pieces * PIECE_BYTES, PIECE_BYTES,
                                  limit->streams, limit->ahead);
    }
    self->end_ns = units_now_ns();
}

static void do_touch(struct read_limit *limit, const struct read_thread *self)
{
    uint64_t first = limit->pieces * self->index / limit->threads;
    uint64_t last = limit->pieces * (self->index + 1) / limit->threads;
    memset(limit->data + first * PIECE_BYTES, 1 + (int)self->index % 100, (last - first) * PIECE_BYTES);
}

static void *thread_main(void *arg)
{
    struct read_thread *self = arg;
    struct read_limit *limit = self->limit;
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(self->cpu, &one);
    (void)pthread_setaffinity_np(pthread_self(), sizeof one, &one); /* unpinned it only measures worse */
    for (;;) {
        pthread_barrier_wait(&limit->begin);
        enum read_job job = limit->job;
        if (job == READ_JOB_TOUCH) do_touch(limit, self);
        if (job == READ_JOB_READ) do_read(limit, self);
        pthread_barrier_wait(&limit->end);
        if (job == READ_JOB_QUIT) return NULL;
    }
}

static void run_job(struct read_limit *limit, enum read_job job)
{
    limit->job = job;
    atomic_store(&limit->next, 0);
    pthread_barrier_wait(&limit->begin);
    pthread_barrier_wait(&limit->end);
}

/* Nanoseconds from the first thread's beginning to the last one's end. */
static double run_read(struct read_limit *limit)
{
    run_job(limit, READ_JOB_READ);
    uint64_t begin = UINT64_MAX, end = 0;
    for (uint32_t i = 0; i < limit->threads; i++) {
        if (limit->thread[i].begin_ns < begin) begin = limit->thread[i].begin_ns;
        if (limit->thread[i].end_ns > end) end = limit->thread[i].end_ns;
    }
    return end > begin ? (double)(end - begin) : 1;
}

static void choose_loop(struct read_limit *limit)
{
    static const size_t ahead[AHEAD_CHOICES] = {0, 2048};
    double best = 0;
    unsigned best_streams = 1;
    size_t best_ahead = 0;
    limit->passes = 1;
    for (unsigned streams = 1; streams <= PROBE_STREAMS_MAX; streams *= 2) {
        for (int a = 0; a < AHEAD_CHOICES; a++) {
            limit->streams = streams;
            limit->ahead = ahead[a];
            double first = run_read(limit), second = run_read(limit);
            double ns = first < second ? first : second;
            if (best > 0 && ns >= best) continue;
            best = ns;
            best_streams = streams;
            best_ahead = ahead[a];
        }
    }
    limit->streams = best_streams;
    limit->ahead = best_ahead;
    double passes = PASS_NS / best;
    limit->passes = passes < 1 ? 1 : passes > PASSES_MAX ? PASSES_MAX : (uint32_t)passes;
}

static int start_threads(struct read_limit *limit, const struct cpu_set *set, struct helm_err *err)
{
    if (pthread_barrier_init(&limit->begin, NULL, limit->threads + 1) ||
        pthread_barrier_init(&limit->end, NULL, limit->threads + 1))
        return helm_fail(err, HELM_E_NOMEM, "no memory for barriers");
    limit->has_barriers = true;
    for (uint32_t i = 0; i < limit->threads; i++) {
        struct read_thread *t = &limit->thread[i];
        t->limit = limit;
        t->index = i;
        t->cpu = set->cpu[i % (uint32_t)set->count]; /* cores first, then their siblings */
        /* Without all of them the others never pass the barrier: they are left to the process's end. */
        if (pthread_create(&t->thread, NULL, thread_main, t))
            return helm_fail(err, HELM_E_NOMEM, "cannot start thread %u of %u that measure reading", i + 1,
                             limit->threads);
        t->started = true;
    }
    return 0;
}

/* A buffer of the struct's own, not touched yet. */
static int map_buffer(struct read_limit *limit, struct helm_err *err)
{
    void *data = mmap(NULL, limit->bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (data == MAP_FAILED)
        return helm_fail_errno(err, "%llu bytes to measure reading", (unsigned long long)limit->bytes);
    (void)madvise(data, limit->bytes, MADV_HUGEPAGE); /* small pages are read too, more slowly */
    limit->data = data;
    limit->own = true;
    return 0;
}

int read_limit_open_over(uint32_t threads, int node, const void *memory, uint64_t bytes,
                         struct read_limit **out, struct helm_err *err)
{
    struct read_limit *limit = NULL;
    struct cpu_set *set = malloc(sizeof *set);
    *out = NULL;
    if (!set) return helm_fail(err, HELM_E_NOMEM, "no memory");
    int rc = cpu_usable(node, set, err);
    if (rc < 0) goto out;
    limit = calloc(1, sizeof *limit + threads * sizeof limit->thread[0]);
    if (!limit) {
        rc = helm_fail(err, HELM_E_NOMEM, "no memory");
        goto out;
    }
    limit->threads = threads;
    unsigned features = cpu_features();
    limit->read = features & CPU_AVX512 ? probe_avx512_read : probe_avx2_read;
    if (!(features & CPU_AVX2)) {
        rc = helm_fail(err, HELM_E_UNSUPPORTED, "measuring read bandwidth needs AVX2");
        goto out;
    }
    limit->pieces = bytes / PIECE_BYTES ? bytes / PIECE_BYTES : 1;
    limit->bytes = limit->pieces * PIECE_BYTES;
    limit->data = (char *)(uintptr_t)memory;
    rc = memory ? 0 : map_buffer(limit, err);
    if (!rc) rc = start_threads(limit, set, err);
    if (rc < 0) goto out;
    if (limit->own) run_job(limit, READ_JOB_TOUCH);
    choose_loop(limit);
    *out = limit;
    limit = NULL;
out:
    if (limit && !limit->thread[0].started) read_limit_close(&limit);
    free(set);
    return rc;
}

int read_limit_open(uint32_t threads, int node, uint64_t bytes, struct read_limit **out, struct helm_err *err)
{
    return read_limit_open_over(threads, node, NULL, bytes, out, err);
}

double read_limit_measure(struct read_limit *limit)
{
    double gb_s[MEASUREMENTS];
    for (int i = 0; i < MEASUREMENTS; i++) gb_s[i] = (double)limit->bytes * limit->passes / run_read(limit);
    double low = gb_s[0] < gb_s[1] ? gb_s[0] : gb_s[1], high = gb_s[0] < gb_s[1] ? gb_s[1] : gb_s[0];
    return gb_s[2] < low ? low : gb_s[2] > high ? high : gb_s[2];
}

void read_limit_close(struct read_limit **limit)
{
    struct read_limit *l = *limit;
    if (!l) return;
    *limit = NULL;
    if (l->threads && l->thread[l->threads - 1].started) {
        run_job(l, READ_JOB_QUIT);
        for (uint32_t i = 0; i < l->threads; i++) pthread_join(l->thread[i].thread, NULL);
    }
    if (l->has_barriers) {
        pthread_barrier_destroy(&l->begin);
        pthread_barrier_destroy(&l->end);
    }
    if (l->own) munmap(l->data, l->bytes);
    free(l);
}
