/* The GPU engine: a device, its share of the weights and of the cache, the ring, and the programs of its
 * spans.
 *
 * Called by the worker process through common/worker/engine.h and by pair.c (tests). Load and step come from
 * one thread. */
#pragma once

#include "common/cpu/pool.h"
#include "worker-gpu/draw.h"
#include "worker-gpu/follow.h"
#include "worker-gpu/program/program.h"
#include "worker-gpu/tiers.h"
#include "common/worker/batch.h"
#include "common/worker/engine.h"

/* Parts of the arena that the device and its copies use: lanes and what is before them; the host's KV pool
 * where layers of it are borrowed or the cache has two tiers; the streamed part of the weights. */
enum gpu_region { GPU_REGION_FRONT, GPU_REGION_KV, GPU_REGION_WEIGHTS, GPU_REGION_COUNT };

/* Drafts by the model's own layer on the device (common/worker/drafting.h): its programs of a step's tokens,
 * which begin with its hidden states, and of drafts, which begin with those of the drafts before them. They
 * are issued anew each time, since they are short. */
struct gpu_drafts {
    struct gpu_program first[GPU_TIER_COUNT],
        next[GPU_TIER_CHUNK]; /* empty: steps of this tier cannot occur */
    struct step_result drawn;
    bool running; /* a program that nothing has waited for: the end word is its own */
};

struct gpu_engine {
    struct worker_engine base;
    struct model model;
    struct plan plan;  /* a copy */
    bool reads_tokens; /* placement_reads_tokens */
    struct device *device;
    struct gpu_weights weights;
    struct gpu_slots slots;
    struct gpu_states states;
    struct gpu_expand expand;
    struct gpu_buffers buffers;
    struct kv_layout kv, window_kv; /* of pages, and of windows */
    uint64_t window_at;             /* where the pool of windows begins after kv_pool */
    void *kv_pool, *staging, *ring_memory;
    uint64_t kv_bytes, staging_bytes, ring_bytes;
    struct ring_schedule ring[PLAN_PHASES_MAX], home;
    struct device_event **event; /* [events.count] */
    struct gpu_events events;
    struct gpu_prefix prefix;
    void *region[GPU_REGION_COUNT]; /* registered with the device; NULL: not */
    void *pinned;                   /* step block, argmax results, end word */
    struct gpu_source source;
    struct gpu_program program[PLAN_PHASES_MAX][GPU_TIER_COUNT];
    struct gpu_program other[GPU_ATTENDING_COUNT][GPU_TIER_CHUNK]; /* that attend otherwise than usually */
    struct batch batch;
    struct step_result own_result; /* where the rows are checked when the result is the other worker's */
    struct gpu_draw draw;
    struct gpu_follow follow;
    struct gpu_drafts drafts;
    struct gpu_tiers tiers;
    struct pool *samplers;
    void *scratch[GPU_SAMPLERS_MAX];
    uint32_t sampler_count;
    struct device_event *copied;
    uint32_t wait_ms;
    bool is_short; /* the step is of short prompts (common/plan/schedule.h) */
    bool borrowed; /* the device is somebody else's */
    bool failed;   /* a step ended with an error: the queue may still wait for a lane */
};

extern const struct worker_engine_ops gpu_engine_ops;

/* ---- print.c ---- */

/* Lowers the model on the emulated device, without loading weights, and prints every program: the first
 * device's share of a plan, each phase's programs, with what comes through the ring; plan NULL: everything on
 * the GPU. threads and kernels are the CPU worker's and ignored. */
HELM_MUST_CHECK int gpu_print_plan(const char *folder, const struct plan *plan, uint32_t threads,
                                   const char *kernels, FILE *out, struct helm_err *err);
/* {"devices": [...]}, one line; "error": TEXT where there is none, "unusable": TEXT where one is there that
 * cannot be used. */
void gpu_print_devices(FILE *out);

/* The batch as a program is issued for it. */
static inline struct gpu_issue gpu_issue_of(const struct gpu_engine *g)
{
    return (struct gpu_issue){.tokens = g->batch.token_count,
                              .rows = g->batch.row_count,
                              .samples = g->batch.sample_count,
                              .is_short = g->is_short,
                              .batch = &g->batch};
}

/* ---- step.c: the step block, the program, the tokens ---- */

/* Runs the step; where the plan gives the head to the GPU its result is filled in. An error means that the
 * worker cannot go on. */
HELM_MUST_CHECK int gpu_step_run(struct gpu_engine *engine, const struct step *step, struct helm_err *err);
/* Writes the step block for the engine's batch as this program reads it. */
void gpu_step_fill(const struct gpu_engine *engine, const struct gpu_program *program);
/* Runs a program over made-up tokens, without hand-overs: of a chunk every size that matrix products take. */
HELM_MUST_CHECK int gpu_step_warm(struct gpu_engine *engine, const struct gpu_program *program,
                                  struct helm_err *err);
/* After a failure: lets a queue that waits for a lane run to its end. Its results are not read: the epoch is
 * over. */
void gpu_step_abandon(struct gpu_engine *engine);
/* ---- drafts.c ---- */

/* Lowers the programs where the plan has a layer of drafts and this engine the head, and runs each once, so
 * that all code is loaded. */
HELM_MUST_CHECK int gpu_drafts_open(struct gpu_engine *g, struct helm_err *err);
void gpu_drafts_close(struct gpu_engine *g);
/* After a step of this tier, whose result is written: computes the layer, and the drafts that its rows ask
 * for into the result. The batch and x are overwritten. If no row asks for drafts, the layer may still run
 * when this returns. */
HELM_MUST_CHECK int gpu_drafts_run(struct gpu_engine *g, enum gpu_tier tier, struct step_result *result,
                                   struct helm_err *err);
/* Waits for the layer, before the step's block or the end word are written again. */
HELM_MUST_CHECK int gpu_drafts_settle(struct gpu_engine *g, struct helm_err *err);
