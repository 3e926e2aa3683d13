/* The compute pool. See pool.h.
 *
 * Ownership of a chunk is one compare-and-swap on a word that holds the region's serial number, so a thread
 * that was asleep or preempted since an earlier region cannot take a chunk of a later one by mistake, and no
 * thread has to report that it arrived. The order that makes this safe:
 *
 *   publish  job and `remaining` are written, then the range words (release), then `serial` (release)
 *   claim    the swap acquires the range word, so the claimer sees the job; the job stays valid until the
 *            claimed chunk is done, because `remaining` cannot reach 0 before
 *   finish   each thread subtracts what it did from `remaining` (acquire and release): the thread that
 *            reaches 0 sees everything that the region wrote, and publishes the next region after it */
#include "common/cpu/pool.h"

#include <limits.h>
#include <linux/futex.h>
#include <numa.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
#include <xmmintrin.h>

#include "common/base/spin.h"
#include "common/base/units.h"

/* A range word: serial in the upper 28 bits, then the next chunk from the front, then the end (both 18 bits).
 */
#define RANGE_BITS  18
#define RANGE_MASK  ((UINT64_C(1) << RANGE_BITS) - 1)
#define SERIAL_MASK ((1u << 28) - 1)
#define NOT_ENDED   UINT32_MAX

/* A thread that lost this much of its time, and this part of it, takes it that others want its CPU, too, and
 * does so for CROWDED_NS. Less is what helmd and a GPU worker take for a step. */
#define CROWDED_LEAST_NS UINT64_C(250000)
#define CROWDED_PART     16
#define CROWDED_NS       UINT64_C(100000000)
#define CROWDED_LOOK_NS  UINT64_C(100000) /* how often a spinning thread looks */

/* Masks of sleeping threads, and of threads to wake: a bit a thread; threads from FAR_INDEX on share the last
 * one. Thread 0 also waits for the end of a run, which is no reason to wake the others. */
#define FAR_INDEX  31u
#define WAKE_FIRST 1u
#define WAKE_ALL   UINT32_MAX

struct pool_range {
    _Alignas(64) _Atomic uint64_t word;
};

struct pool_thread {
    struct pool *pool;
    pthread_t handle;
    uint32_t index;
    int cpu; /* -1: not pinned */
    /* of this thread alone: */
    uint64_t since;             /* when it last had work; 0: it has had some since it last waited */
    uint64_t looked_ns, cpu_ns; /* when it last looked, and its own CPU time then, */
    long switches;              /* and how often it had been taken off its CPU */
    uint64_t slept_ns;          /* in futex since then */
    uint64_t crowded_until;
};

struct pool {
    _Alignas(64) _Atomic uint32_t serial;    /* of the newest region; the word that sleepers watch */
    _Alignas(64) _Atomic uint32_t remaining; /* chunks of that region not yet done */
    _Alignas(64) _Atomic uint32_t asleep; /* bits of threads before FAR_INDEX that sleep, or are about to */
    _Atomic uint32_t far_asleep;          /* how many of the others */
    _Alignas(64) _Atomic uint32_t ended;  /* the serial that announced the end of this run, or NOT_ENDED */
    _Atomic bool stop;
    _Alignas(64) struct pool_job job; /* of that region; written only by the thread that publishes */
    _Atomic uint32_t width;           /* of that region: threads from here on leave it alone */
    pool_next_fn *next;
    void *ctx;
    uint32_t threads, spin_us;
    _Atomic(pool_idle_fn *) idle;
    void *idle_ctx;   /* written before it */
    uint32_t started; /* threads to join */
    struct pool_range range[POOL_THREADS_MAX];
    struct pool_thread thread[POOL_THREADS_MAX];
};

/* Raises the serial number and wakes sleepers among `whom`. The order pairs with the one in pool_sleep:
 * either the sleeper's bit is seen here, or the sleeper sees the new serial before it sleeps. */
static void pool_announce(struct pool *pool, uint32_t whom)
{
    uint32_t serial = (atomic_load_explicit(&pool->serial, memory_order_relaxed) + 1) & SERIAL_MASK;
    atomic_store_explicit(&pool->serial, serial, memory_order_seq_cst);
    uint32_t asleep = atomic_load_explicit(&pool->asleep, memory_order_seq_cst);
    if (atomic_load_explicit(&pool->far_asleep, memory_order_seq_cst)) asleep |= 1u << FAR_INDEX;
    if (asleep & whom)
        syscall(SYS_futex, &pool->serial, FUTEX_WAKE_BITSET_PRIVATE, INT_MAX, NULL, NULL, asleep & whom);
}

static void pool_sleep(struct pool *pool, uint32_t seen, uint32_t self)
{
    uint32_t bit = 1u << (self < FAR_INDEX ? self : FAR_INDEX);
    if (self < FAR_INDEX)
        atomic_fetch_or_explicit(&pool->asleep, bit, memory_order_seq_cst);
    else
        atomic_fetch_add_explicit(&pool->far_asleep, 1, memory_order_seq_cst);
    if (atomic_load_explicit(&pool->serial, memory_order_seq_cst) == seen)
        syscall(SYS_futex, &pool->serial, FUTEX_WAIT_BITSET_PRIVATE, seen, NULL, NULL, bit);
    if (self < FAR_INDEX)
        atomic_fetch_and_explicit(&pool->asleep, ~bit, memory_order_relaxed);
    else
        atomic_fetch_sub_explicit(&pool->far_asleep, 1, memory_order_relaxed);
}

static uint64_t thread_cpu_ns(void)
{
    struct timespec t = {0};
    (void)clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t); /* cannot fail: the clock is its own thread's */
    return (uint64_t)t.tv_sec * UINT64_C(1000000000) + (uint64_t)t.tv_nsec;
}

/* Whether nothing else has wanted this thread's CPU lately: it had the CPU whenever it wanted it. */
static bool thread_is_quiet(struct pool_thread *thread, uint64_t now)
{
    struct rusage usage;
    if (getrusage(RUSAGE_THREAD, &usage)) return false;
    uint64_t cpu_ns = thread_cpu_ns(), passed = now - thread->looked_ns;
    uint64_t wanted = passed > thread->slept_ns ? passed - thread->slept_ns : 0;
    uint64_t had = cpu_ns - thread->cpu_ns, lost = wanted > had ? wanted - had : 0;
    if (thread->looked_ns && usage.ru_nivcsw != thread->switches && lost >= CROWDED_LEAST_NS &&
        lost > wanted / CROWDED_PART)
        thread->crowded_until = now + CROWDED_NS;
    thread->switches = usage.ru_nivcsw;
    thread->looked_ns = now;
    thread->cpu_ns = cpu_ns;
    thread->slept_ns = 0;
    return now >= thread->crowded_until;
}

/* Waits until the serial is no longer `seen`. Spinning is counted from when this thread last had work, so
 * that a thread which the regions of a small model do not need goes to sleep although they keep changing. */
static void pool_wait(struct pool *pool, uint32_t seen, struct pool_thread *thread)
{
    uint64_t spin_ns = (uint64_t)pool->spin_us * 1000, quiet_ns = (uint64_t)POOL_SPIN_QUIET_US * 1000;
    pool_idle_fn *idle = atomic_load_explicit(&pool->idle, memory_order_acquire);
    if (spin_ns == 0) quiet_ns = 0; /* told not to spin */
    for (uint32_t piece = 0; idle; piece++) {
        if (atomic_load_explicit(&pool->serial, memory_order_acquire) != seen) return;
        if (!idle(pool->idle_ctx, thread->index, piece)) break;
    }
    uint64_t look_ns = 0, yield_ns = 0;
    for (uint32_t turn = 0;; turn++) {
        if (atomic_load_explicit(&pool->serial, memory_order_acquire) != seen) return;
        _mm_pause();
        if (turn % 16 != 15) continue;
        uint64_t now = units_now_ns();
        if (!thread->since) thread->since = now;
        if (now - thread->since < spin_ns) continue;
        if (now - thread->since >= quiet_ns) break;
        spin_yield(now, &yield_ns);
        if (now < look_ns) continue;
        if (!thread_is_quiet(thread, now)) break;
        look_ns = now + CROWDED_LOOK_NS;
    }
    uint64_t slept_ns = units_now_ns();
    while (atomic_load_explicit(&pool->serial, memory_order_acquire) == seen)
        pool_sleep(pool, seen, thread->index);
    thread->slept_ns += units_now_ns() - slept_ns;
}

/* Takes one chunk of region `serial` from a range, from the front (its owner) or from the back (a thief). */
static bool range_claim(struct pool_range *range, uint32_t serial, bool front, uint32_t *chunk)
{
    uint64_t word = atomic_load_explicit(&range->word, memory_order_relaxed);
    for (;;) {
        uint32_t first = (uint32_t)(word >> RANGE_BITS & RANGE_MASK);
        uint32_t end = (uint32_t)(word & RANGE_MASK);
        if ((uint32_t)(word >> (2 * RANGE_BITS)) != serial || first >= end) return false;
        uint64_t taken = front ? word + (UINT64_C(1) << RANGE_BITS) : word - 1;
        if (atomic_compare_exchange_weak_explicit(&range->word, &word, taken, memory_order_acquire,
                                                  memory_order_relaxed)) {
            *chunk = front ? first : end - 1;
            return true;
        }
    }
}

static void pool_publish(struct pool *pool)
{
    uint32_t serial = (atomic_load_explicit(&pool->serial, memory_order_relaxed) + 1) & SERIAL_MASK;
    uint64_t chunks = pool->job.chunks;
    uint32_t width = pool->job.width && pool->job.width < pool->threads ? pool->job.width : pool->threads;
    atomic_store_explicit(&pool->remaining, pool->job.chunks, memory_order_relaxed);
    atomic_store_explicit(&pool->width, width, memory_order_relaxed);
    for (uint32_t i = 0; i < width; i++) {
        uint64_t first = chunks * i / width, end = chunks * (i + 1) / width;
        uint64_t word = (uint64_t)serial << (2 * RANGE_BITS) | first << RANGE_BITS | end;
        atomic_store_explicit(&pool->range[i].word, word, memory_order_release);
    }
    pool_announce(pool, width > FAR_INDEX ? WAKE_ALL : (1u << width) - 1);
}

/* Asks for regions until one is worth sharing, and publishes that. At the end of the list returns true,
 * having told thread 0: its last touch of the pool is the announcement, after which thread 0 may start
 * another run. */
static bool pool_advance(struct pool *pool, uint32_t self)
{
    for (;;) {
        if (!pool->next(pool->ctx, self, &pool->job)) {
            if (self != 0) {
                uint32_t last = atomic_load_explicit(&pool->serial, memory_order_relaxed);
                atomic_store_explicit(&pool->ended, (last + 1) & SERIAL_MASK, memory_order_relaxed);
                pool_announce(pool, WAKE_FIRST);
            }
            return true;
        }
        if (pool->job.chunks > 1 && !pool->job.alone && pool->threads > 1) break;
        for (uint32_t i = 0; i < pool->job.chunks; i++) pool->job.run(pool->ctx, i, self);
    }
    pool_publish(pool);
    return false;
}

/* Everything this thread can do for region `serial`; true when it thereby ended the run. A width that is
 * already a later region's does no harm: whether a thread takes part changes no result. */
static bool pool_work(struct pool *pool, uint32_t serial, struct pool_thread *thread)
{
    uint32_t self = thread->index, chunk, width = atomic_load_explicit(&pool->width, memory_order_relaxed);
    if (self >= width) return false;
    for (uint32_t i = 0; i < width; i++) {
        uint32_t victim = self + i < width ? self + i : self + i - width, done = 0;
        while (range_claim(&pool->range[victim], serial, i == 0, &chunk)) {
            pool->job.run(pool->ctx, chunk, self);
            done++;
        }
        if (!done) continue;
        thread->since = 0;
        /* Before other ranges are searched: with many cores a search takes longer than this, and the last
         * thread would find nothing. */
        if (atomic_fetch_sub_explicit(&pool->remaining, done, memory_order_acq_rel) == done)
            return pool_advance(pool, self);
    }
    return false;
}

static void *pool_main(void *arg)
{
    struct pool_thread *thread = arg;
    struct pool *pool = thread->pool;
    uint32_t seen = 0;
    for (;;) {
        pool_wait(pool, seen, thread);
        if (atomic_load_explicit(&pool->stop, memory_order_acquire)) return NULL;
        seen = atomic_load_explicit(&pool->serial, memory_order_acquire);
        pool_work(pool, seen, thread);
    }
}

void pool_run(struct pool *pool, pool_next_fn *next, void *ctx)
{
    pool->next = next;
    pool->ctx = ctx;
    uint32_t seen = atomic_load_explicit(&pool->serial, memory_order_relaxed);
    struct pool_thread *thread = &pool->thread[0];
    thread->since = 0;
    atomic_store_explicit(&pool->ended, NOT_ENDED, memory_order_relaxed);
    if (pool_advance(pool, 0)) return;
    for (;;) {
        pool_wait(pool, seen, thread);
        seen = atomic_load_explicit(&pool->serial, memory_order_acquire);
        if (atomic_load_explicit(&pool->ended, memory_order_relaxed) == seen) return;
        if (pool_work(pool, seen, thread)) return;
    }
}

struct region {
    pool_chunk_fn *run;
    void *ctx;
    uint32_t chunks;
    bool handed_out;
};

static void region_chunk(void *ctx, uint32_t chunk, uint32_t thread)
{
    const struct region *r = ctx;
    r->run(r->ctx, chunk, thread);
}

static bool region_next(void *ctx, uint32_t thread, struct pool_job *job)
{
    struct region *r = ctx;
    (void)thread;
    if (r->handed_out) return false;
    r->handed_out = true;
    *job = (struct pool_job){.run = region_chunk, .chunks = r->chunks};
    return true;
}

void pool_run_region(struct pool *pool, pool_chunk_fn *run, void *ctx, uint32_t chunks)
{
    struct region region = {run, ctx, chunks, false};
    pool_run(pool, region_next, &region);
}

void pool_set_idle(struct pool *pool, pool_idle_fn *idle, void *ctx)
{
    pool->idle_ctx = ctx;
    atomic_store_explicit(&pool->idle, idle, memory_order_release);
}

uint32_t pool_threads(const struct pool *pool)
{
    return pool->threads;
}

int pool_create(uint32_t threads, const int *cpu, uint32_t spin_us, struct pool **out, struct helm_err *err)
{
    int rc = 0;
    *out = NULL;
    if (threads < 1 || threads > POOL_THREADS_MAX)
        return helm_fail(err, HELM_E_LIMIT, "%u compute threads: 1 to %d are possible", threads,
                         POOL_THREADS_MAX);
    struct pool *pool = aligned_alloc(64, sizeof *pool);
    if (!pool) return helm_fail(err, HELM_E_NOMEM, "no memory for the compute pool");
    memset(pool, 0, sizeof *pool);
    pool->threads = threads;
    pool->spin_us = spin_us;
    if (cpu) {
        rc = pin_this_thread(cpu[0], err);
        if (rc) goto out;
    }
    for (uint32_t i = 1; i < threads; i++) {
        struct pool_thread *thread = &pool->thread[i];
        *thread = (struct pool_thread){.pool = pool, .index = i, .cpu = cpu ? cpu[i] : -1};
        rc = pin_create_thread(&thread->handle, thread->cpu, pool_main, thread, err);
        if (rc) goto out;
        char name[16];
        snprintf(name, sizeof name, "compute %u", i);
        pthread_setname_np(thread->handle, name);
        pool->started = i;
    }
    *out = pool;
    pool = NULL;
out:
    pool_destroy(pool);
    return rc;
}

void pool_destroy(struct pool *pool)
{
    if (!pool) return;
    atomic_store_explicit(&pool->stop, true, memory_order_release);
    pool_announce(pool, WAKE_ALL);
    for (uint32_t i = 1; i <= pool->started; i++) pthread_join(pool->thread[i].handle, NULL);
    free(pool);
}

/* ---- where threads run ---- */

void pin_prefer_node(int node)
{
    if (node >= 0) numa_set_preferred(node);
}

int pin_this_thread(int cpu, struct helm_err *err)
{
    cpu_set_t set;
    if (cpu < 0 || cpu >= CPU_SETSIZE) return helm_fail(err, HELM_E_LIMIT, "cannot pin to CPU %d", cpu);
    CPU_ZERO(&set);
    CPU_SET(cpu, &set);
    int code = pthread_setaffinity_np(pthread_self(), sizeof set, &set);
    if (code)
        return helm_fail(err, HELM_E_PERMISSION, "cannot pin a thread to CPU %d: %s", cpu, strerror(code));
    return 0;
}

int pin_create_thread(pthread_t *thread, int cpu, void *(*run)(void *), void *arg, struct helm_err *err)
{
    sigset_t all, old;
    pthread_attr_t attr;
    cpu_set_t set;
    if (cpu >= CPU_SETSIZE) return helm_fail(err, HELM_E_LIMIT, "cannot pin to CPU %d", cpu);
    if (pthread_attr_init(&attr)) return helm_fail(err, HELM_E_NOMEM, "no memory for thread attributes");
    int code = 0;
    if (cpu >= 0) {
        CPU_ZERO(&set);
        CPU_SET(cpu, &set);
        code = pthread_attr_setaffinity_np(&attr, sizeof set, &set);
    }
    if (!code) {
        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, &old);
        code = pthread_create(thread, &attr, run, arg);
        pthread_sigmask(SIG_SETMASK, &old, NULL);
    }
    pthread_attr_destroy(&attr);
    if (code)
        return helm_fail(err, HELM_E_PERMISSION, "cannot start a thread on CPU %d (-1: any): %s", cpu,
                         strerror(code));
    return 0;
}
