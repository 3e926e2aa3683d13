/* Assembly of the GPU engine. See engine.h.
 *
 * Everything is sized and held against the ceiling before a weight is read; everything is allocated before
 * the first step. Steps allocate nothing. */
#include "worker-gpu/engine.h"

#include <stdlib.h>
#include <string.h>

#include "common/cpu.h"
#include "common/units.h"
#include "worker-gpu/print.h"
#include "worker-gpu/step.h"

/* Refuses with every number when what the plan wants cannot fit: before anything is allocated or read. */
static int check_ceiling(struct gpu_engine *g, struct helm_err *err)
{
    struct device *d = g->device;
    char text[5][UNITS_TEXT], total[UNITS_TEXT], ceiling[UNITS_TEXT];
    uint64_t sum = 0;
    const uint64_t bytes[5] = {g->weights.bytes, g->kv_bytes, g->buffers.bytes, d->used[DEVICE_GRAPHS],
                               d->used[DEVICE_CONTEXT]};
    for (int i = 0; i < 5; i++) {
        units_format_size(bytes[i], text[i]);
        if (units_add(sum, bytes[i], &sum)) sum = UINT64_MAX;
    }
    if (sum <= d->ceiling) return 0;
    return helm_fail(
        err, HELM_E_CAPACITY,
        "the plan needs %s of VRAM, the ceiling is %s: weights %s, KV pool %s (%u pages), workspace "
        "%s, graphs %s, context %s",
        units_format_size(sum, total), units_format_size(d->ceiling, ceiling), text[0], text[1],
        arena_header_of(g->base.arena)->page_count, text[2], text[3], text[4]);
}

static int open_device(struct gpu_engine *g, const struct engine_options *o, struct helm_err *err)
{
    const struct device_options options = {.name = o->device ? o->device : "",
                                           .vram_bytes = o->vram_bytes,
                                           .copy_bytes_per_s = o->copy_bytes_per_s,
                                           .wait_ms = g->wait_ms};
    int rc = device_open(&options, &g->device, err);
    if (rc) return rc;
    snprintf(g->base.report.device, sizeof g->base.report.device, "%s", g->device->text);
    snprintf(g->base.report.kernels, sizeof g->base.report.kernels, "%s", o->device);
    return 0;
}

static int size_everything(struct gpu_engine *g, struct helm_err *err)
{
    const struct arena_header *h = arena_header_of(g->base.arena);
    g->kv = h->kv;
    g->kv.layers = plan_layers_of(&g->plan, PLAN_HOME_GPU);
    if (g->kv.layers && g->kv.head_dim > GPUK_HEAD_DIM_MAX)
        return helm_fail(err, HELM_E_UNSUPPORTED, "head_dim %u: the GPU's attention takes at most %d",
                         g->kv.head_dim, GPUK_HEAD_DIM_MAX);
    if (units_mul(kv_page_bytes(&g->kv), h->page_count, &g->kv_bytes))
        return helm_fail(err, HELM_E_LIMIT, "the KV pool of %u pages overflows", h->page_count);
    gpu_buffers_place(&g->model.config, &g->plan, h, (enum dtype)h->kv.dtype, &g->device->kernels,
                      &g->buffers);
    int rc = gpu_weights_plan(&g->model, &g->plan, &g->weights, err);
    if (rc) return rc;
    atomic_store(&g->base.bytes_total, g->weights.matrix_bytes);
    return check_ceiling(g, err);
}

/* Buffers, cache, pinned memory, the arena's registration. */
static int allocate(struct gpu_engine *g, struct helm_err *err)
{
    struct device *d = g->device;
    const struct arena *arena = g->base.arena;
    const struct arena_header *h = arena_header_of(arena);
    const struct model_config *c = &g->model.config;
    struct gpu_block block;
    void *memory = NULL;
    /* Everything in front of cache and weights: lanes and logits. No home that the GPU computes reads those.
     */
    int rc = device_host_register(d, "the lanes", arena->base, h->region[ARENA_REGION_KV].offset, false, err);
    if (rc) return rc;
    g->registered = true;
    if (g->kv_bytes) rc = device_alloc(d, DEVICE_KV, g->kv_bytes, &g->kv_pool, err);
    if (!rc) rc = device_alloc(d, DEVICE_WORKSPACE, g->buffers.bytes, &memory, err);
    if (rc) return rc;
    g->buffers.memory = memory;
    gpu_buffers_place(c, &g->plan, h, (enum dtype)h->kv.dtype, &d->kernels, &g->buffers);
    gpu_block_place(g->buffers.tokens, h->slots, h->pages_per_slot, &block);
    uint64_t results = (block.bytes + 63) / 64 * 64, inv_freq = results + 64 * sizeof(struct gpuk_token),
             end = inv_freq + (c->head_dim * sizeof(float) + 63) / 64 * 64;
    rc = device_host_alloc(d, end + 64, &g->pinned, err);
    if (rc) return rc;
    memset(g->pinned, 0, (size_t)(end + 64));
    char *pinned = g->pinned;
    g->source = (struct gpu_source){.model = &g->model,
                                    .plan = &g->plan,
                                    .weights = &g->weights,
                                    .buffers = &g->buffers,
                                    .arena = arena,
                                    .device = d,
                                    .kv = g->kv,
                                    .kv_pool = g->kv_pool,
                                    .block_host = pinned,
                                    .tokens = (struct gpuk_token *)(pinned + results),
                                    .end = (_Atomic uint32_t *)(pinned + end)};
    rope_inv_freq(c, (float *)(pinned + inv_freq), &g->source.rope_scale);
    if (g->kv.layers) {
        /* A position that is masked still meets a weight of 0 in some kernels: 0 times anything finite. */
        rc = d->ops->clear(d, DEVICE_COMPUTE, g->kv_pool, g->kv_bytes, err);
        if (rc) return rc;
        rc = device_copy(d, DEVICE_COMPUTE, DEVICE_TO_DEVICE, g->buffers.inv_freq, pinned + inv_freq,
                         c->head_dim / 2 * sizeof(float), err);
        if (!rc)
            rc = d->ops->clear(d, DEVICE_COMPUTE, g->buffers.attention_work, g->buffers.attention_work_bytes,
                               err);
    }
    if (!rc && g->plan.head == PLAN_HOME_GPU)
        rc = d->ops->clear(d, DEVICE_COMPUTE, g->buffers.argmax_work, g->buffers.argmax_work_bytes, err);
    if (!rc) rc = d->ops->event_create(d, &g->copied, err);
    return rc;
}

static int start_samplers(struct gpu_engine *g, struct helm_err *err)
{
    struct cpu_set *set = malloc(sizeof *set);
    if (!set) return helm_fail(err, HELM_E_NOMEM, "no memory for the list of CPUs");
    int rc = cpu_usable(-1, set, err);
    uint32_t count = rc ? 1 : (uint32_t)set->suggested;
    free(set);
    if (rc) return rc;
    g->sampler_count = count > GPU_SAMPLERS_MAX ? GPU_SAMPLERS_MAX : count;
    size_t bytes = (sampling_scratch_bytes(g->model.config.vocab) + 127) / 64 * 64;
    for (uint32_t i = 0; i < g->sampler_count; i++)
        if (!(g->scratch[i] = aligned_alloc(64, bytes)))
            return helm_fail(err, HELM_E_NOMEM, "no memory for %zu bytes of sampling scratch", bytes);
    return pool_create(g->sampler_count, NULL, 0, &g->samplers, err);
}

static int take_batch_memory(struct gpu_engine *g, struct helm_err *err)
{
    uint32_t tokens = arena_header_of(g->base.arena)->step_tokens;
    g->batch.token = calloc(tokens, sizeof *g->batch.token);
    g->batch.position = calloc(tokens, sizeof *g->batch.position);
    g->batch.token_row = calloc(tokens, sizeof *g->batch.token_row);
    if (g->batch.token && g->batch.position && g->batch.token_row) return 0;
    return helm_fail(err, HELM_E_NOMEM, "no memory for a step of %u tokens", tokens);
}

/* Lowers every tier; runs each alone, so that all code is loaded (a load under a queue that waits for the
 * host would never end); captures those of fixed shape. */
static int prepare_programs(struct gpu_engine *g, struct helm_err *err)
{
    struct device *d = g->device;
    int rc = 0;
    for (int t = 0; t < GPU_TIER_COUNT && !rc; t++)
        rc = gpu_program_lower(&g->source, (enum gpu_tier)t, &g->program[t], err);
    uint64_t before = d->ops->memory_overhead(d);
    for (int t = 0; t < GPU_TIER_COUNT && !rc; t++) rc = gpu_step_warm(g, &g->program[t], err);
    uint64_t warm = d->ops->memory_overhead(d); /* libraries load their code with first use */
    if (!rc && warm > before) rc = device_charge(d, DEVICE_CONTEXT, warm - before, err);
    before = warm;
    for (int t = 0; t < GPU_TIER_CHUNK && !rc; t++) {
        struct gpu_program *p = &g->program[t];
        rc = d->ops->capture_begin(d, err);
        if (rc) break;
        rc = gpu_program_issue(&g->source, p, p->tokens, p->samples, p->samples, false, err);
        int ended = d->ops->capture_end(d, &p->graph, rc ? NULL : err);
        if (!rc) rc = ended;
    }
    uint64_t after = d->ops->memory_overhead(d), seen = d->used[DEVICE_GRAPHS];
    if (!rc && after > before && after - before > seen)
        rc = device_charge(d, DEVICE_GRAPHS, after - before - seen, err);
    return rc;
}

static void gpu_engine_free(struct worker_engine *base)
{
    struct gpu_engine *g = (struct gpu_engine *)base;
    struct device *d = g->device;
    if (d && g->failed) gpu_step_abandon(g);
    pool_destroy(g->samplers);
    for (uint32_t i = 0; i < GPU_SAMPLERS_MAX; i++) free(g->scratch[i]);
    if (d) {
        for (int t = 0; t < GPU_TIER_COUNT; t++) gpu_program_free(&g->program[t], d);
        if (g->copied) d->ops->event_free(d, g->copied);
        device_free(d, DEVICE_KV, g->kv_bytes, g->kv_pool);
        device_free(d, DEVICE_WORKSPACE, g->buffers.bytes, g->buffers.memory);
        gpu_weights_free(&g->weights);
        if (g->pinned) d->ops->host_free(d, g->pinned);
        if (g->registered) d->ops->host_unregister(d, g->base.arena->base);
        device_close(d);
    }
    free(g->batch.token);
    free(g->batch.position);
    free(g->batch.token_row);
    plan_free(&g->plan);
    model_free(&g->model);
    g->device = NULL;
}

static int gpu_engine_load(struct worker_engine *base, const struct arena *arena,
                           const struct engine_options *o, struct helm_err *err)
{
    struct gpu_engine *g = (struct gpu_engine *)base;
    struct engine_report *report = &base->report;
    uint64_t start_us = units_now_us();
    struct cpu_set *set = malloc(sizeof *set);
    uint32_t readers = 1;
    base->ops = &gpu_engine_ops;
    base->arena = arena;
    report->node = -1;
    g->wait_ms = o->peer_wait_ms ? o->peer_wait_ms : ENGINE_PEER_WAIT_MS;
    int rc = set ? cpu_usable(-1, set, err) : helm_fail(err, HELM_E_NOMEM, "no memory for the list of CPUs");
    if (!rc) readers = o->threads ? o->threads : (uint32_t)set->suggested;
    free(set);
    if (!rc) rc = model_read(o->folder, &g->model, err);
    if (!rc) rc = plan_copy(o->plan, &g->plan, err);
    if (!rc) rc = engine_check_arena(arena, &g->plan, &g->model.config, err);
    if (!rc) rc = open_device(g, o, err);
    if (!rc) rc = size_everything(g, err);
    if (!rc) rc = allocate(g, err);
    if (!rc) rc = gpu_weights_load(&g->weights, g->device, readers, &base->bytes_done, &base->cancel, err);
    if (!rc) rc = take_batch_memory(g, err);
    if (!rc && g->plan.head == PLAN_HOME_GPU) rc = start_samplers(g, err);
    if (!rc) rc = prepare_programs(g, err);
    if (rc) {
        g->failed = true; /* something may still be queued */
        gpu_engine_free(base);
        return rc;
    }
    report->threads = g->sampler_count ? g->sampler_count : 1;
    report->weight_bytes = g->weights.matrix_bytes;
    report->loaded = true;
    device_ledger(g->device, &report->vram);
    report->load_seconds = (double)(units_now_us() - start_us) * 1e-6;
    return 0;
}

static int gpu_engine_step(struct worker_engine *base, uint32_t serial, struct helm_err *err)
{
    struct gpu_engine *g = (struct gpu_engine *)base;
    const struct step *step = engine_step_of(base->arena, serial, err);
    if (!step) return err ? err->code : HELM_E_PEER;
    int rc = gpu_step_run(g, step, err);
    if (rc) g->failed = true;
    return rc;
}

const struct worker_engine_ops gpu_engine_ops = {.kind = "gpu",
                                                 .bytes = sizeof(struct gpu_engine),
                                                 .load = gpu_engine_load,
                                                 .step = gpu_engine_step,
                                                 .free = gpu_engine_free,
                                                 .print_programs = gpu_print_programs,
                                                 .probe = gpu_print_devices};
