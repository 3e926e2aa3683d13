/* Sizes and places of what programs work in: the step block, buffers, staging pools, events. See program.h.
 * Called by engine.c, print.c and lowering; allocates nothing. */
#include "worker-gpu/program/program.h"

struct gpuk_step gpu_block_step(const struct gpu_block *b, const char *base, uint32_t pages_per_slot,
                                uint32_t sub)
{
    struct gpuk_step step = {
        .counts = (const void *)(base + b->counts),
        .token_id = (const void *)(base + b->token_id),
        .position = (const void *)(base + b->position),
        .token_row = (const void *)(base + b->token_row),
        .row_first = (const void *)(base + b->row_first),
        .row_slot = (const void *)(base + b->row_slot),
        .sample_token = (const void *)(base + b->sample_token),
        .page_table = (const void *)(base + b->page_table),
        .pages_per_slot = pages_per_slot,
    };
    if (sub == GPU_SUB_ALL || b->subs <= 1) return step;
    const char *own = base + b->sub + (uint64_t)sub * b->sub_stride;
    step.token_id += sub * GPU_SUB_TOKENS;
    step.position += sub * GPU_SUB_TOKENS;
    step.counts = (const void *)(own + b->sub_counts);
    step.token_row = (const void *)(own + b->sub_token_row);
    step.row_first = (const void *)(own + b->sub_row_first);
    step.row_slot = (const void *)(own + b->sub_row_slot);
    return step;
}

/* ---- buffers ---- */

void *gpu_attention_work(const struct gpu_source *s, uint32_t tokens)
{
    const struct device_asked *ask = &s->device->ask;
    uint32_t heads = s->model->config.heads;
    return (char *)gpu_area(s->buffers, GPU_AREA_ATTENTION) + ask->attention_counters(GPUK_BATCH_MAX, heads) -
           ask->attention_counters(tokens, heads);
}

static bool computes_layers(const struct plan *plan, enum plan_processor self)
{
    for (int h = 0; h < PLAN_HOMES; h++)
        if (plan_home_processor((enum plan_home)h) == self && plan_has_home(plan, (enum plan_home)h))
            return true;
    return false;
}

void gpu_buffers_place(const struct model *model, const struct plan *plan, enum plan_processor self,
                       const struct arena_header *arena, const struct device *device, struct gpu_buffers *b)
{
    const struct gpu_workspace_case c = {.config = &model->config,
                                         .step_tokens = arena->step_tokens,
                                         .slots = arena->samples,
                                         .line =
                                             gpu_block_line(arena->pages_per_slot, arena->window_page_count),
                                         .chunk_bytes = workspace_chunk_bytes(model),
                                         .query_bytes =
                                             (uint32_t)dtype_bytes(kv_query_dtype(arena->kv.dtype)),
                                         .layers = computes_layers(plan, self),
                                         .head = plan->head == self,
                                         .chains = !device->no_chains,
                                         .apart = arena->context_tokens > GPU_APART_POSITION,
                                         .tiered = plan_kv_tiered(plan),
                                         .matmul = device->ask.matmul_workspace};
    gpu_workspace_place(&c, &b->work);
}

int gpu_buffers_check(const struct model_config *c, const struct device *device, const struct gpu_buffers *b,
                      struct helm_err *err)
{
    const struct device_asked *ask = &device->ask;
    const uint32_t widest = model_widest(c), slots = GPUK_BATCH_MAX;
    const uint64_t argmax = b->work.area[GPU_AREA_ARGMAX].bytes, linear = b->work.area[GPU_AREA_LINEAR].bytes,
                   attention = b->work.area[GPU_AREA_ATTENTION].bytes;
    const uint64_t experts = b->work.area[GPU_AREA_EXPERTS].bytes;
    const uint32_t wider = c->expert_intermediate > c->hidden ? c->expert_intermediate : c->hidden;
    const uint32_t rows = (uint32_t)(argmax / GPU_ARGMAX_ROW_BYTES);
    if (experts && !ask->experts_workspace)
        return helm_fail(err, HELM_E_UNSUPPORTED, "the device has no kernels for mixtures of experts");
    const struct {
        const char *what;
        uint64_t wanted, there;
    } work[] = {{"a product of one token", ask->gemv_workspace(widest), linear},
                {"products of few tokens", ask->gemm_small_workspace(slots, widest), linear},
                {"experts", experts ? ask->experts_workspace(slots, c->router.chosen, wider) : 0, experts},
                {"attention",
                 attention ? ask->attention_workspace(slots, c->heads, model_heads_most(c).head_dim) : 0,
                 attention},
                {"argmax", rows ? ask->argmax_workspace(rows) : 0, argmax},
                {"candidates", rows ? ask->few_workspace(rows, c->vocab) : 0,
                 b->work.area[GPU_AREA_FEW].bytes},
                {"an operation of a chain",
                 b->work.area[GPU_AREA_CHAINS].bytes ? (ask->chain_bytes(NULL, 2) * 2 + 2) / 3 : 0,
                 GPU_CHAIN_OP_BYTES}};
    for (size_t i = 0; i < sizeof work / sizeof *work; i++)
        if (work[i].wanted > work[i].there)
            return helm_fail(err, HELM_E_INTERNAL,
                             "workspace of %s: the device wants %llu bytes, there are %llu", work[i].what,
                             (unsigned long long)work[i].wanted, (unsigned long long)work[i].there);
    return 0;
}

/* ---- beside them ---- */

uint64_t gpu_staging_bytes(const struct plan *plan, enum plan_processor self,
                           const struct arena_header *arena)
{
    if (!plan_kv_tiered(plan) && !plan_borrows(plan, self)) return 0;
    const struct plan_staging staging = plan_staging(plan);
    struct kv_layout windows = arena->kv;
    windows.kv_heads = arena->window_kv_heads;
    windows.head_dim = arena->window_head_dim;
    return plan_staging_bytes(&staging, kv_layer_bytes(&arena->kv), kv_layer_bytes(&windows));
}

void *gpu_window_staging(const struct gpu_source *s, uint32_t staging)
{
    const uint64_t at =
        plan_kv_tiered(s->plan) ? plan_staging(s->plan).pages * kv_layer_bytes(&s->kv) : 0; /* after them */
    return s->staging[staging] ? (char *)s->staging[staging] + at : NULL;
}

struct gpu_events gpu_events_place(const struct plan *plan, enum plan_processor self,
                                   const struct ring_schedule *ring)
{
    uint32_t slices = 0, tail = 0;
    for (uint32_t p = 0; p < plan_phase_count(plan); p++) {
        if (ring[p].count > slices) slices = ring[p].count;
        if (ring[p].tail > tail) tail = ring[p].tail;
    }
    struct gpu_events events = {.prefix = gpu_event_arrived(slices)};
    events.tail = events.prefix + ring_prefix(&ring[0]);
    events.count = events.tail + tail;
    if (slices == 0 && !plan_borrows(plan, self) && !plan_kv_tiered(plan)) events.count = 0;
    return events;
}
