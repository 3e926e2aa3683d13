/* The CPU engine: everything a step needs, assembled from an arena, a model folder and a plan.
 *
 * Called by control.c (the worker process), local.c (tests, benchmarks) and main.c (--print-program).
 * engine_load and engine_step must be called from one thread, which becomes thread 0 of the compute pool. */
#ifndef HELM_WORKER_CPU_ENGINE_H
#define HELM_WORKER_CPU_ENGINE_H

#include <stdatomic.h>

#include "common/arena.h"
#include "common/plan.h"
#include "worker-cpu/step.h"

#define ENGINE_REDUCED_MAX  8
#define ENGINE_REDUCED_TEXT 200

struct engine_options {
    const char *folder;
    const struct plan *plan; /* borrowed during engine_load */
    uint32_t threads;        /* 0: one a physical core that this process may use */
    int node;                /* NUMA node, -1: the one with the most free memory */
    const char *kernels;     /* "" or NULL: the fastest */
    uint32_t spin_us;
    uint64_t weights_ready; /* digest of what the arena already holds, or 0 */
    bool pin;               /* threads to CPUs */
};

struct engine_report {
    uint32_t threads;
    int node; /* -1: a machine without NUMA */
    char kernels[160];
    uint64_t weight_bytes, huge_bytes, small_bytes, weights_digest;
    double load_seconds;
    bool loaded;                                           /* false: the weights were there already */
    char reduced[ENGINE_REDUCED_MAX][ENGINE_REDUCED_TEXT]; /* every slower path in use and why */
    uint32_t reduced_count;
};

struct engine {
    const struct arena *arena; /* borrowed */
    struct model model;
    struct weights weights;
    struct kernel_set kernels;
    struct activations act;
    struct step_programs programs;
    struct run run;
    struct pool *pool;
    struct engine_report report;
    /* readable by other threads during engine_load */
    _Atomic uint64_t bytes_done, bytes_total;
    _Atomic bool cancel;
};

/* Zero-initialise *engine, then load. On failure everything is released. */
HELM_MUST_CHECK int engine_load(struct engine *engine, const struct arena *arena,
                                const struct engine_options *options, struct helm_err *err);
/* Runs the step in ring slot serial % ARENA_STEP_RING and fills in its result; announces nothing. */
HELM_MUST_CHECK int engine_step(struct engine *engine, uint32_t serial, struct helm_err *err);
void engine_free(struct engine *engine);

/* Lowers the model for `threads` threads without loading weights (their addresses are those of an arena at 0)
 * and prints every program. */
HELM_MUST_CHECK int engine_print_programs(const char *folder, uint32_t threads, const char *kernels,
                                          FILE *out, struct helm_err *err);

#endif
