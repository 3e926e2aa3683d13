/* The engine interface: what a worker computes with, on the CPU or on the GPU.
 *
 * The process around it (server.c: the step thread; control.c: messages with helmd; process.c: main) is the
 * same for both engines and uses only this interface. */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "common/shared/arena.h"
#include "common/plan/plan.h"

#define ENGINE_REDUCED_MAX  8
#define ENGINE_REDUCED_TEXT 200
/* How long a hand-over is waited for before the other worker counts as lost. */
#define ENGINE_PEER_WAIT_MS 60000

struct model;
struct device;
struct engine_options {
    const char *folder;
    const struct plan *plan;       /* borrowed during load */
    enum plan_processor processor; /* that the engine is in the plan */
    uint32_t threads;              /* 0: one a physical core that this process may use */
    int node;                      /* NUMA node, -1: the one with the most free memory */
    const char *kernels;           /* "" or NULL: the fastest */
    uint32_t spin_us;
    uint64_t weights_ready; /* digest of what the arena already holds, or 0 */
    bool pin;               /* threads to CPUs */
    bool blank;         /* CPU worker: matrices are zeros and not read; of a model that is only measured */
    struct model *made; /* likewise, in the place of `folder`: taken, and zeroed; vectors are ones (sample.h),
                           the GPU worker's matrices random blocks and its routers random numbers */
    uint32_t peer_wait_ms; /* 0: ENGINE_PEER_WAIT_MS */
    const char *device;    /* GPU worker: "cuda", "cuda:1", "emulated" */
    struct device
        *opened; /* GPU worker, likewise of a model that is only measured: borrowed; NULL: opens its own */
    uint64_t vram_bytes;       /* GPU worker: ceiling, 0: all the device has */
    uint64_t copy_bytes_per_s; /* emulated device: speed of copies, 0: as fast as memory */
    bool no_graphs;            /* GPU worker: issues every step anew instead of replaying captured graphs */
    bool no_chains;            /* GPU worker: decodes one token with a kernel an operation */
};

struct engine_report {
    uint32_t threads;
    int node; /* -1: a machine without NUMA */
    char kernels[160];
    uint64_t weight_bytes, huge_bytes, small_bytes, weights_digest;
    uint64_t vectors_content, matrices_content; /* of what was read (common/model/content.h); 0: nothing */
    double load_seconds;
    bool loaded;                                           /* false: the weights were there already */
    char reduced[ENGINE_REDUCED_MAX][ENGINE_REDUCED_TEXT]; /* every slower path in use and why */
    uint32_t reduced_count;
    char device[96];    /* GPU worker: "NVIDIA H200, compute capability 9.0" */
    struct ledger vram; /* GPU worker: memory taken, line by line */
};

/* How a device is measured for helm-profile (worker-gpu/measure/measure.h). */
struct engine_measure_options {
    const char *device;        /* "cuda", "cuda:1", "emulated" */
    uint64_t vram_bytes;       /* use no more, 0: what is needed */
    uint64_t copy_bytes_per_s; /* emulated device: speed of copies, 0: as fast as memory */
    uint64_t host_bytes;       /* least host memory that copies cycle through; 0: the engine's choice */
    bool quick;                /* less memory, fewer and shorter samples */
};

struct worker_engine;
struct worker_engine_ops {
    const char *kind; /* in HELLO: "cpu", "gpu" */
    bool device;      /* the processors that it can be have a memory of their own */
    size_t bytes;     /* of the whole engine: zeroed, 64-byte aligned memory to load into */
    /* load and step are called by one thread. On failure load releases everything. */
    int (*load)(struct worker_engine *engine, const struct arena *arena, const struct engine_options *options,
                struct helm_err *err);
    /* Runs the step in ring slot serial % ARENA_STEP_RING and, where this worker has the head, fills in its
     * result and rings drawn_bell; rings no other bell. It may read the steps after it in the ring and begin
     * with them: they are run next. */
    int (*step)(struct worker_engine *engine, uint32_t serial, struct helm_err *err);
    void (*free)(struct worker_engine *engine);
    /* Prints the programs that a checkpoint is lowered to: this engine's share of a plan, or with NULL all of
     * it. */
    int (*print_plan)(const char *folder, const struct plan *plan, uint32_t threads, const char *kernels,
                      FILE *out, struct helm_err *err);
    /* Prints one line of JSON: which devices there are (daemon/children/accelerator.h). NULL: no such
     * engine. */
    void (*probe)(FILE *out);
    /* Measures a device on request, line by line; returns the exit status. NULL: no such engine. */
    int (*measure)(const struct engine_measure_options *options, FILE *in, FILE *out);
};

/* Engines begin with this. */
struct worker_engine {
    const struct worker_engine_ops *ops;
    const struct arena *arena; /* borrowed */
    enum plan_processor self;  /* the plan's processor that it is */
    struct engine_report report;
    struct arena_times times; /* of the step that just ran, filled in by `step` */
    /* readable by other threads during load */
    _Atomic uint64_t bytes_done, bytes_total;
    _Atomic bool cancel;
};

/* The step of this serial in the ring, or NULL (HELM_E_PEER) when another one is there. */
const struct step *engine_step_of(const struct arena *arena, uint32_t serial, struct helm_err *err);
/* How long a worker spins for another worker's tokens, and how long it waits for them in all. */
struct engine_patience {
    uint32_t spin_us, wait_ms;
};
/* Called before a step by a worker with the embedding and without the head: waits until the tokens that its
 * rows follow are known. *waited_ns: how long. HELM_E_PEER when they do not come, HELM_E_CANCELLED when the
 * engine is told to end. */
HELM_MUST_CHECK int engine_wait_drawn(const struct worker_engine *engine, const struct step *step,
                                      const struct engine_patience *patience, uint64_t *waited_ns,
                                      struct helm_err *err);
/* A checkpoint with its experts in the parts that the plan has them in; plan NULL: whole. On failure *model
 * is zeroed. */
struct model_config;
HELM_MUST_CHECK int engine_read_model(const char *path, const struct plan *plan, struct model *model,
                                      struct helm_err *err);
/* The model of the options, read or taken. */
HELM_MUST_CHECK int engine_take_model(const struct engine_options *options, struct model *model,
                                      struct helm_err *err);
/* Sets engine->self. HELM_E_MISMATCH: this kind of engine is no such processor. */
HELM_MUST_CHECK int engine_take_self(struct worker_engine *engine, const struct engine_options *options,
                                     struct helm_err *err);
/* Check that plan, or arena, agree with the checkpoint. */
HELM_MUST_CHECK int engine_check_plan(const struct plan *plan, const struct model_config *config,
                                      struct helm_err *err);
HELM_MUST_CHECK int engine_check_arena(const struct arena *arena, const struct plan *plan,
                                       const struct model_config *config, struct helm_err *err);
/* Adds a slower path to report->reduced. */
void engine_reduced(struct engine_report *report, const char *fmt, ...) HELM_PRINTF(2, 3);

/* The main program of a worker, whichever it is (process.c): die with the parent, take the descriptors,
 * attach the arena, serve. Returns the exit status. */
int process_main(const char *program, const char *about, const struct worker_engine_ops *engine, int argc,
                 char **argv);
