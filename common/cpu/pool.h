/* The compute pool: a few pinned threads that run a list of parallel regions without a leader.
 *
 * A region is a number of chunks. Each thread owns a range of them (the same range every time, so its share
 * of the weights stays in its caches), takes them from the front, and when its own are gone takes others'
 * from the back. The thread that finishes the last chunk of a region asks `next` for the following one and
 * publishes it. Threads wait only for chunks that are being computed, never for an idle thread that is asleep
 * or preempted. A chunk's result must not depend on the thread that computes it.
 *
 * Called by engine.c (loading), step.c. The pool owns its threads; `ctx` and what it points to belong to the
 * caller. Waiting threads spin for spin_us (longer while nothing else wants their CPUs), then sleep in
 * futex(2). Nothing is allocated after pool_create. */
#pragma once

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "common/base/err.h"
#include "common/plan/engine_limits.h"

#define POOL_THREADS_MAX 512
#define POOL_CHUNKS_MAX  ((1u << 18) - 1)
/* Measured with a busy process on every core (0.6B shape, 2 threads): 8 us keep 63 % of the idle speed, 20 us
 * 45 %, 50 us 39 %, idle speed the same: spinning while another thread is preempted wastes CPU time that the
 * spinning thread will need. */
#define POOL_SPIN_US_DEFAULT 8

/* While nothing else wants their CPUs, waiting threads spin for this long instead: longer than the other
 * worker's turns take. A wake-up costs the publishing thread a system call, and on virtual CPUs each sleeper
 * some 50 us, one after another. Measured, 8B at 8 GiB with ten hand-overs a token, 16 virtual CPUs: 41.1 ms
 * of computing with 100 us, 34.4 ms with 2 ms. */
#define POOL_SPIN_QUIET_US CPU_SPIN_QUIET_US

struct pool;

typedef void pool_chunk_fn(void *ctx, uint32_t chunk, uint32_t thread);
struct pool_job {
    pool_chunk_fn *run;
    uint32_t chunks; /* >= 1, <= POOL_CHUNKS_MAX */
    bool alone;      /* too small to share: the thread that asked runs all of it */
    uint32_t width;  /* how many threads it is worth sharing with; 0: all */
};
/* Fills in the next region; false when the list is at its end. Called by one thread at a time, in list order,
 * after every chunk of the region before it is done. */
typedef bool pool_next_fn(void *ctx, uint32_t thread, struct pool_job *job);

/* Work of a thread while it waits, piece by piece, 0 first: false when there is no more of it. Any thread, at
 * any time, beside everything else. */
typedef bool pool_idle_fn(void *ctx, uint32_t thread, uint32_t piece);

/* Starts threads 1 .. threads-1, thread i pinned to cpu[i] (NULL: none is pinned); the caller is thread 0 and
 * is pinned to cpu[0]. */
HELM_MUST_CHECK int pool_create(uint32_t threads, const int *cpu, uint32_t spin_us, struct pool **pool,
                                struct helm_err *err);
/* Stops and joins the threads. NULL is allowed. */
void pool_destroy(struct pool *pool);

/* `idle` NULL: nothing. ctx must outlive the pool's threads. */
void pool_set_idle(struct pool *pool, pool_idle_fn *idle, void *ctx);
uint32_t pool_threads(const struct pool *pool);

/* Runs the list from its first region to its last. Called by thread 0 only; returns when `next` said false.
 */
void pool_run(struct pool *pool, pool_next_fn *next, void *ctx);
/* The same for a list of one region (chunks >= 1). */
void pool_run_region(struct pool *pool, pool_chunk_fn *run, void *ctx, uint32_t chunks);

/* ---- where threads run: at start only ---- */

/* Makes this process's private memory come from `node` too (preferred: a few MiB may go elsewhere rather than
 * fail). */
void pin_prefer_node(int node);

HELM_MUST_CHECK int pin_this_thread(int cpu, struct helm_err *err);
/* pthread_create on one CPU from the start (-1: on any), with all signals blocked: they belong to the main
 * thread. */
HELM_MUST_CHECK int pin_create_thread(pthread_t *thread, int cpu, void *(*run)(void *), void *arg,
                                      struct helm_err *err);
