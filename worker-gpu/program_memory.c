/* Sizes and places of what programs work in: the step block, buffers, staging pools, events. See program.h.
 * Called by engine.c, print.c and lowering; allocates nothing. */
#include "worker-gpu/program.h"

#include <string.h>

static uint64_t round_up(uint64_t bytes, uint64_t unit)
{
    return (bytes + unit - 1) / unit * unit;
}

static uint64_t larger(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

/* ---- the step block ---- */

/* Takes room for `count` numbers at *at. */
static uint32_t take(uint32_t *at, uint32_t count)
{
    uint32_t offset = *at;
    *at += (count + 3) / 4 * 4 * (uint32_t)sizeof(uint32_t);
    return offset;
}

void gpu_block_place(uint32_t tokens, uint32_t rows, uint32_t pages_per_slot, struct gpu_block *b)
{
    uint32_t at = 0, sub = 0;
    memset(b, 0, sizeof *b);
    b->tokens = tokens;
    b->rows = rows;
    b->subs = (tokens + GPU_SUB_TOKENS - 1) / GPU_SUB_TOKENS;
    b->counts = take(&at, GPU_COUNTS);
    b->token_id = take(&at, tokens);
    b->position = take(&at, tokens);
    b->token_row = take(&at, tokens);
    b->row_first = take(&at, rows + 1);
    b->row_slot = take(&at, rows);
    b->sample_token = take(&at, rows);
    b->sub_counts = take(&sub, GPU_COUNTS);
    b->sub_token_row = take(&sub, GPU_SUB_TOKENS);
    b->sub_row_first = take(&sub, rows + 1);
    b->sub_row_slot = take(&sub, rows);
    b->sub = at;
    b->sub_stride = sub;
    if (b->subs > 1) at += b->subs * sub;
    b->page_table = at;
    b->bytes = at + (uint64_t)rows * pages_per_slot * sizeof(uint32_t);
}

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

uint32_t gpu_chunk_elem_bytes(const struct model *model)
{
    size_t most = dtype_bytes(model->config.dtype);
    for (uint32_t i = 0; i < model->tensor_count; i++) {
        const struct model_tensor *t = &model->tensors[i];
        if (t->layer >= 0 && t->rows > 1 && dtype_bytes(t->dtype) > most) most = dtype_bytes(t->dtype);
    }
    return (uint32_t)most;
}

static bool computes_layers(const struct plan *plan)
{
    return plan_has_home(plan, PLAN_HOME_GPU) || plan_has_home(plan, PLAN_HOME_STREAM);
}

/* Parts one behind the other from *at on, each on a 256-byte boundary; *at is where they end. */
struct area_part {
    void **at;
    uint64_t bytes;
};
static void place_area(char *base, uint64_t *at, const struct area_part *part, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        if (base) *part[i].at = base + *at;
        *at += round_up(part[i].bytes, 256);
    }
}

/* What decode tiers, the attention half and the MLP half of a chunk each have for themselves, all from *at
 * on: none is needed while another is. */
static void place_shared(const struct model *model, const struct arena_header *arena, struct gpu_buffers *b,
                         uint64_t *at)
{
    const struct model_config *c = &model->config;
    const uint64_t few = GPUK_BATCH_MAX * sizeof(float), elem = gpu_chunk_elem_bytes(model);
    const uint64_t q = (uint64_t)c->heads * c->head_dim, width = q + 2ull * c->kv_heads * c->head_dim;
    const uint64_t n = c->intermediate, tokens = b->tokens, sub = b->sub_tokens;
    const struct area_part decode[] = {{(void **)&b->few.qkv, few * width},
                                       {(void **)&b->few.q, few * q},
                                       {(void **)&b->few.a, few * q},
                                       {(void **)&b->few.act, few * n}},
                           attention[] = {{(void **)&b->chunk.qkv, tokens * width * sizeof(float)},
                                          {&b->chunk.q, sub * q * dtype_bytes((enum dtype)arena->kv.dtype)}},
                           mlp[] = {{&b->chunk.act, tokens * n * elem},
                                    {&b->chunk.gates, sub * 2 * n * elem}};
    const struct {
        const struct area_part *part;
        size_t count;
    } areas[] = {{decode, 4}, {attention, 2}, {mlp, 2}};
    uint64_t end = *at;
    for (size_t i = 0; i < sizeof areas / sizeof *areas; i++) {
        uint64_t from = *at;
        place_area(b->memory, &from, areas[i].part, areas[i].count);
        end = larger(end, from);
    }
    *at = end;
}

/* Room for the lists of the chains, however they are cut: of at most five operations a layer and the head,
 * two or more in each chain. Lists of three in their rounding take the most a operation. Each layer's
 * attention may be in a chain of its own. */
static uint64_t chains_room(const struct model_config *c, const struct device *device)
{
    uint64_t operations = 5ull * c->layers + 1;
    if (device->no_chains) return 0;
    uint64_t words = (uint64_t)c->heads * GPUK_CHAIN_PIECES * (c->head_dim + 2);
    return (operations * 2 + 2) / 3 * device->kernels.chain_bytes(NULL, 2) +
           c->layers * round_up(words * 8, 256);
}

void *gpu_attention_work(const struct gpu_source *s, uint32_t tokens)
{
    const struct device_kernels *k = &s->device->kernels;
    uint32_t heads = s->model->config.heads;
    return (char *)s->buffers->attention_work + k->attention_counters(GPUK_BATCH_MAX, heads) -
           k->attention_counters(tokens, heads);
}

void gpu_buffers_place(const struct model *model, const struct plan *plan, const struct arena_header *arena,
                       const struct device *device, struct gpu_buffers *b)
{
    const struct device_kernels *kernels = &device->kernels;
    const struct model_config *c = &model->config;
    char *base = b->memory;
    uint64_t tokens = round_up(arena->step_tokens, GPU_PAD_TOKENS), slots = arena->slots;
    uint64_t samples = round_up(slots, GPUK_BATCH_MAX);
    bool layers = computes_layers(plan), head = plan->head == PLAN_HOME_GPU;
    uint64_t widest = larger(larger(c->hidden, c->intermediate), (uint64_t)c->heads * c->head_dim);
    uint64_t linear = larger(kernels->gemm_small_workspace(GPUK_BATCH_MAX, (uint32_t)widest),
                             kernels->gemv_workspace((uint32_t)widest));
    struct gpu_block block;
    gpu_block_place((uint32_t)tokens, (uint32_t)slots, arena->pages_per_slot, &block);
    memset(b, 0, sizeof *b);
    b->memory = base;
    b->tokens = (uint32_t)tokens;
    b->sub_tokens = tokens < GPU_SUB_TOKENS ? (uint32_t)tokens : GPU_SUB_TOKENS;
    b->attention_work_bytes = kernels->attention_workspace(GPUK_BATCH_MAX, c->heads, c->head_dim);
    b->linear_work_bytes = linear;
    b->argmax_work_bytes = kernels->argmax_workspace((uint32_t)samples);
    b->few_work_bytes = kernels->few_workspace((uint32_t)samples, c->vocab);
    b->chain_bytes = layers ? chains_room(c, device) : 0;
    const struct area_part always[] = {{(void **)&b->block, block.bytes},
                                       {(void **)&b->x, tokens * c->hidden * sizeof(float)},
                                       {&b->linear_work, linear}},
                           of_head[] = {{(void **)&b->sample, samples * c->hidden * sizeof(float)},
                                        {(void **)&b->logits, samples * c->vocab * sizeof(float)},
                                        {&b->argmax_work, b->argmax_work_bytes},
                                        {&b->few_work, b->few_work_bytes}},
                           of_layers[] = {{&b->chunk.h,
                                           (uint64_t)b->sub_tokens * c->hidden * gpu_chunk_elem_bytes(model)},
                                          {(void **)&b->rope_table, tokens * c->head_dim * sizeof(float)},
                                          {(void **)&b->inv_freq, (uint64_t)c->head_dim * sizeof(float)},
                                          {&b->attention_work, b->attention_work_bytes},
                                          {(void **)&b->chains, b->chain_bytes},
                                          {&b->matmul_work, kernels->matmul_workspace}};
    place_area(base, &b->bytes, always, sizeof always / sizeof *always);
    if (head) place_area(base, &b->bytes, of_head, sizeof of_head / sizeof *of_head);
    if (!layers) return;
    place_area(base, &b->bytes, of_layers, sizeof of_layers / sizeof *of_layers);
    place_shared(model, arena, b, &b->bytes);
}

/* ---- beside them ---- */

uint64_t gpu_staging_bytes(const struct plan *plan, const struct arena_header *arena)
{
    if (!plan_borrows_kv(plan)) return 0;
    return (uint64_t)GPU_STAGINGS * arena->page_count * kv_layer_bytes(&arena->kv);
}

struct gpu_events gpu_events_place(const struct plan *plan, const struct ring_schedule *ring)
{
    uint32_t slices = 0, tail = 0;
    for (uint32_t p = 0; p < plan_phase_count(plan); p++) {
        if (ring[p].count > slices) slices = ring[p].count;
        if (ring[p].tail > tail) tail = ring[p].tail;
    }
    struct gpu_events events = {.prefix = gpu_event_arrived(slices)};
    events.tail = events.prefix + ring_prefix(&ring[0]);
    events.count = events.tail + tail;
    if (slices == 0 && !plan_borrows_kv(plan)) events.count = 0;
    return events;
}
