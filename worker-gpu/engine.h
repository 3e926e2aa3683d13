/* The GPU engine: a device, its share of the weights and of the cache, the ring, and the programs of its
 * spans.
 *
 * Called by the worker process through common/worker/engine.h and by pair.c (tests). Load and step come from
 * one thread. */
#pragma once

#include "common/cpu/pool.h"
#include "worker-gpu/drafts.h"
#include "worker-gpu/draw.h"
#include "worker-gpu/follow.h"
#include "worker-gpu/program/expand.h"
#include "worker-gpu/program/program.h"
#include "worker-gpu/tiers.h"
#include "common/worker/batch.h"
#include "common/worker/engine.h"

/* Parts of the arena that the device and its copies use: lanes and what is before them; the host's KV pool
 * where layers of it are borrowed or the cache has two tiers; the streamed part of the weights. */
enum gpu_region { GPU_REGION_FRONT, GPU_REGION_KV, GPU_REGION_WEIGHTS, GPU_REGION_COUNT };

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
