/* The CPU engine: everything a step needs, assembled from an arena, a model folder and a plan.
 *
 * Called by control.c (the worker process), local.c (tests, benchmarks) and print.c (--print-program).
 * engine_load and engine_step must be called from one thread, which becomes thread 0 of the compute pool. */
#pragma once

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "worker-cpu/program/execute.h"
#include "worker-cpu/step.h"
#include "common/worker/engine.h"

/* The KV pool's memory: its first part before READY, the rest after the first answers.
 *
 * Populating a large pool takes seconds where the machine must first find the memory, and no request needs
 * all of it at once: engine.c populates kv_pages_first_bytes() with the pool's threads, and one background
 * thread of the lowest priority does the rest in address order, which is the order helmd gives pages out in.
 * A page used before its turn works (the first write finds memory) and is moved to huge pages when its turn
 * comes. */
struct kv_filler {
    const struct arena *arena; /* borrowed */
    uint64_t offset, bytes;
    pthread_t thread;
    bool started;
    _Atomic bool stop;
};

struct engine {
    struct worker_engine base;
    struct model model;
    struct plan plan; /* a copy: its phases choose each step's programs */
    struct weights weights;
    struct disk *disk; /* NULL: no weights lie there */
    struct kernel_set kernels;
    struct activations act;
    struct states states;
    struct step_programs programs[LINEAR_INPUTS]; /* INT8: empty where no weights have kernels of it */
    enum linear_inputs inputs; /* of the next step; change it between steps by engine_use */
    struct run run;
    struct read_ahead read_ahead; /* as tried out with the weights when they were loaded */
    struct pool *pool;
    struct kv_filler kv_filler;
    bool head;                     /* the result is ours to write */
    struct step_result own_result; /* where rows are checked when it is not */
};
extern const struct worker_engine_ops cpu_engine_ops;

/* `engine`: the base of a struct engine. Zero-initialise the struct, then load. On failure everything is
 * released. */
HELM_MUST_CHECK int engine_load(struct worker_engine *engine, const struct arena *arena,
                                const struct engine_options *options, struct helm_err *err);
/* Runs the step in ring slot serial % ARENA_STEP_RING and fills in its result; announces nothing. */
HELM_MUST_CHECK int engine_step(struct worker_engine *engine, uint32_t serial, struct helm_err *err);
void engine_free(struct worker_engine *engine);

/* Parts of loading that print.c needs too: kernels by name (NULL or "": the fastest), then programs of every
 * phase and tier that occurs, from the engine's plan, weights and activations. */
HELM_MUST_CHECK int engine_choose_kernels(struct engine *engine, const char *name, enum kv_dtype kv_dtype,
                                          struct helm_err *err);
/* Before that: HELM_E_UNSUPPORTED where weights that the CPU computes with are of a format that it has no
 * kernels for. */
HELM_MUST_CHECK int engine_check_kernels(const struct engine *engine, struct helm_err *err);
HELM_MUST_CHECK int engine_lower(struct engine *engine, uint32_t threads, struct helm_err *err);

/* Steps from the next one on multiply with these activations. Returns those in use: EXACT where no format of
 * the weights has kernels of INT8. */
enum linear_inputs engine_use(struct engine *engine, enum linear_inputs inputs);

/* Makes a part of an arena resident, with all threads. */
struct engine_touched {
    const struct arena *arena;
    uint64_t offset, bytes;
    uint64_t huge_bytes, small_bytes; /* out: on huge pages, on small ones */
};
void engine_touch(struct pool *pool, struct engine_touched *touched);

/* Between steps: makes room for running `others` as well, programs that the caller lowered over other
 * weights and puts in engine->programs' place for some steps (helm-profile). */
HELM_MUST_CHECK int engine_prepare(struct engine *engine, struct step_programs *others, struct helm_err *err);

/* For --print-program (print.c): lowers the model for `threads` threads without loading its matrices and
 * prints every program: this worker's share of a plan, or (plan NULL) all of it on the CPU. */
HELM_MUST_CHECK int print_plan(const char *folder, const struct plan *plan, uint32_t threads,
                               const char *kernels, FILE *out, struct helm_err *err);
