/* Memory by unit and home, for the search. See memory.h. Called by planner.c; owns the table it returns. */
#include "daemon/planner/memory/memory.h"

#include <stdlib.h>
#include <string.h>

#include "common/base/units.h"
#include "common/model/arch.h"
#include "common/plan/engine_limits.h"
#include "common/plan/state.h"
#include "common/plan/workspace.h"
#include "common/program/slices.h"
#include "daemon/planner/profile/policy.h"

/* No ring takes more than RING_PARTS of the device's memory. */
#define RING_STEPS (2 * RING_PARTS) /* the largest one, in sizes of the smallest: two half layers */
#define RING_USUAL 2                /* the one of a plan that streams in prefill only, likewise */

uint64_t memory_ring_least(const struct model *m)
{
    uint64_t slice = 0;
    for (uint32_t i = 0; i < m->tensor_count; i++) {
        const struct model_tensor *t = &m->tensors[i];
        if (t->layer < 0 || model_tensor_is_vector(t)) continue;
        uint64_t rows = t->rows < RING_ROWS ? t->rows : RING_ROWS;
        if (arch_role_of_experts(t->role)) rows = t->rows / m->config.router.experts; /* whole ones */
        uint64_t bytes = ledger_matrices_together(m, t) * (rows * (t->bytes / t->rows) + RING_ALIGN);
        if (bytes > slice) slice = bytes;
    }
    return 2 * slice;
}

/* A ring is worth having up to what the link copies while the CPU computes half a layer, and what it copies
 * beyond the step's end: in the order of the half layer itself. */
void memory_ring_sizes(const struct ledger_case *c, uint64_t *granule, uint64_t *largest)
{
    uint64_t bytes = COST_RING_LEAST, least = memory_ring_least(c->model), unit = 0;
    for (uint32_t u = 0; u < unit_count(c->table->layers); u++) {
        uint64_t stored = analyse_units_stored(c->table, u, u);
        if (stored > unit) unit = stored;
    }
    while (2 * bytes * RING_PARTS <= unit && 2 * bytes * RING_STEPS * RING_PARTS <= c->machine->device.limit)
        bytes *= 2;
    while (bytes < least) bytes *= 2;
    *granule = bytes;
    *largest = RING_STEPS * bytes;
}

static struct search_bytes sum_of(const struct search_bytes *a, const struct search_bytes *b)
{
    struct search_bytes sum;
    if (units_add(a->vram, b->vram, &sum.vram)) sum.vram = UINT64_MAX;
    if (units_add(a->host, b->host, &sum.host)) sum.host = UINT64_MAX;
    return sum;
}

/* The emulated device's memory is the host's. */
static struct search_bytes on_device(const struct ledger_case *c, uint64_t vram, uint64_t host)
{
    const struct search_bytes device = {.vram = vram,
                                        .host = c->machine->device.kind == LEDGER_DEVICE_EMULATED ? vram : 0};
    const struct search_bytes beside = {.host = host};
    return sum_of(&device, &beside);
}

/* Bytes that a unit's matrices take in addition where they are packed: a CPU's, and a streamed one's that
 * only crosses the link or is the CPU's in some prompt. */
static uint64_t packed_more(const struct ledger_case *c, uint32_t unit, enum plan_home home)
{
    bool packs = c->wish->pack_cpu && c->table->packs_cpu[unit];
    if (home == PLAN_HOME_STREAM) packs |= c->wish->pack && c->table->packs[unit];
    return packs ? analyse_units(c->table, unit, unit).packed_more : 0;
}

static bool keeps_pages(const struct ledger_case *c, uint32_t layer)
{
    return plan_state_of_layer(c->model, layer).kind == STATE_PAGES;
}

static void fill_units(const struct ledger_case *c, const struct memory_wish *wish, struct search_bytes *unit)
{
    const uint32_t places = ledger_places(c, wish->ctx);
    const uint64_t layer_kv = ledger_kv_layer_bytes(c, wish->pages),
                   window_kv = ledger_window_layer_bytes(c, ledger_window_pages(c, wish->pages));
    uint64_t ring = 0, largest;
    if (wish->device) memory_ring_sizes(c, &ring, &largest); /* the smallest has the most slices */
    for (uint32_t u = 0; u < unit_count(c->table->layers); u++, unit += SEARCH_HOMES) {
        const struct analyse_bytes bytes = analyse_units(c->table, u, u);
        /* With two tiers all layers' pages are in host memory at all events: memory_build. */
        const bool mlp = unit_part(u) == UNIT_MLP, pages = !mlp && keeps_pages(c, unit_layer(u));
        const bool window = pages && ledger_keeps_window(c, wish->pages, unit_layer(u));
        const uint64_t own = mlp      ? 0
                             : window ? window_kv
                                      : ledger_state_layer_bytes(c, unit_layer(u)),
                       there = !pages || window ? own
                               : places         ? ledger_kv_layer_bytes(c, places)
                                                : layer_kv,
                       on_host = !pages || window ? own
                                 : places         ? 0
                                                  : layer_kv;
        const struct search_bytes kv = on_device(c, there, 0);
        unit[PLAN_HOME_CPU] = on_device(c, wish->prefill ? bytes.vram_vectors : 0,
                                        bytes.arena + bytes.vector_bytes + packed_more(c, u, PLAN_HOME_CPU));
        unit[PLAN_HOME_CPU].host += on_host;
        uint64_t weights = c->wish->pack_gpu && c->table->packs_vram[u]
                               ? bytes.vram_vectors + ledger_packed_unit_bytes(c, u)
                               : bytes.vram;
        unit[PLAN_HOME_GPU] = on_device(c, weights + ledger_graph_bytes(c, u, 0), 0);
        unit[PLAN_HOME_GPU] = sum_of(&unit[PLAN_HOME_GPU], &kv);
        unit[PLAN_HOME_STREAM] =
            on_device(c, bytes.vram_vectors + ledger_graph_bytes(c, u, ring),
                      bytes.arena + bytes.vector_bytes + packed_more(c, u, PLAN_HOME_STREAM));
        unit[PLAN_HOME_STREAM] = sum_of(&unit[PLAN_HOME_STREAM], &kv);
        if (ledger_is_second(c, u)) unit[PLAN_HOME_GPU].vram = 0;
    }
}

/* The workspace of layers, or of the head. */
static uint64_t workspace_of(const struct ledger_case *c, const struct memory_wish *wish, bool head)
{
    const struct ledger_workspace what = {.step_tokens = c->wish->step_tokens,
                                          .ctx = wish->ctx,
                                          .layers = true,
                                          .head = head,
                                          .tiered = c->wish->vram_page_count > 0,
                                          .windows = ledger_window_pages(c, wish->pages) > 0};
    return ledger_workspace_bytes(c, &what);
}

static void fill_ends(const struct ledger_case *c, const struct memory_wish *wish, struct search_memory *s)
{
    const struct analyse_table *t = c->table;
    uint64_t head_work = workspace_of(c, wish, true) - workspace_of(c, wish, false);
    s->embed[PLAN_HOME_CPU] = (struct search_bytes){.host = t->embed.arena};
    s->embed[PLAN_HOME_GPU] = on_device(c, t->embed.vram, 0);
    s->head[PLAN_HOME_CPU] = (struct search_bytes){.host = t->head.arena + t->final_norm.vector_bytes};
    s->head[PLAN_HOME_GPU] =
        on_device(c, t->head.vram + t->final_norm.vram + head_work, ledger_draw_bytes(c));
    memcpy(s->tied_both, s->head, sizeof s->tied_both); /* as they are: rows of an embedding are looked up */
    if (c->wish->pack_gpu && t->packs_head)
        s->head[PLAN_HOME_GPU] =
            on_device(c, ledger_packed_head_bytes(c) + t->final_norm.vram + head_work, ledger_draw_bytes(c));
    if (c->wish->second_head) { /* a tied one is there twice */
        s->head[PLAN_HOME_GPU].vram = 0;
        s->tied_both[PLAN_HOME_GPU] = sum_of(&s->head[PLAN_HOME_GPU], &s->embed[PLAN_HOME_GPU]);
    }
    /* layers that make drafts go with the head */
    for (uint32_t u = unit_count(model_answer_layers(&c->model->config)); u < unit_count(t->layers); u++) {
        const struct search_bytes *unit = &s->unit[u * SEARCH_HOMES];
        for (size_t h = 0; h < sizeof s->head / sizeof *s->head; h++) {
            s->head[h] = sum_of(&s->head[h], &unit[h]);
            s->tied_both[h] = sum_of(&s->tied_both[h], &unit[h]);
        }
    }
}

/* The place of expanded slices, where every unit streams through the largest ring. Where weights at home in
 * VRAM are expanded (`there`) it comes with the first of them, and streamed ones take the same. */
static uint64_t expanded_bytes(const struct ledger_case *c, uint64_t ring_max, bool there)
{
    const struct analyse_table *t = c->table;
    struct slices_room room = {0};
    struct slices_unit s = {.model = c->model,
                            .memory = plan_home_memory(PLAN_HOME_GPU),
                            .ring_bytes = ring_max};
    for (s.unit = 0; s.unit < unit_count(t->layers); s.unit++) {
        const bool on_link = c->wish->pack && t->packs[s.unit] && !model_unit_math(c->model, s.unit)->experts,
                   packed = on_link || (c->wish->pack_cpu && t->packs_cpu[s.unit]);
        s.streamed = s.computed = ring_max > 0;
        s.home = PLAN_HOME_STREAM;
        s.format = packed ? FORMAT_BF16_PACKED : PLAN_AS_STORED;
        slices_add(&s, &room);
        s.home = PLAN_HOME_GPU;
        s.format = c->wish->pack_gpu && t->packs_vram[s.unit] ? FORMAT_BF16_PACKED : PLAN_AS_STORED;
        if (there) slices_add(&s, &room);
    }
    s.format = FORMAT_BF16_PACKED;
    if (there && !t->tied && t->packs_head) slices_add_head(&s, &room);
    return slices_bytes(&room);
}

/* Bytes that come with the first unit of a kind. */
static void fill_first(const struct ledger_case *c, const struct memory_wish *wish, struct search_memory *s)
{
    const struct ledger_device *device = &c->machine->device;
    const struct ledger_wish *w = c->wish;
    const struct plan_staging_case pool = {.page_tokens = w->page_tokens,
                                           .page_count = wish->pages,
                                           .step_tokens = w->step_tokens,
                                           .slots = w->slots,
                                           .tiered = w->vram_page_count > 0,
                                           .windows = ledger_window_pages(c, wish->pages),
                                           .borrows = wish->prefill || ledger_appends_in_arena(c, wish->ctx)};
    const struct plan_staging staging = plan_staging_of(&pool);
    uint64_t borrowed = ledger_staging_bytes(c, &staging);
    uint64_t lanes = plan_lanes_between(1u << PLAN_CPU0 | 1u << plan_home_processor(PLAN_HOME_GPU)) *
                     lane_bytes(w->step_tokens, c->model->config.hidden);
    uint64_t work =
        device->library_bytes + device->graph_bytes + device->context_bytes + workspace_of(c, wish, false);
    const struct ledger_inputs inputs = ledger_inputs_bytes(c);
    /* a device that has the embedding leaves the CPU without one */
    s->cpu_any = (struct search_bytes){.host = ledger_cpu_buffer_bytes(c, w->step_tokens) + inputs.product +
                                               (wish->device && wish->cpu ? inputs.embedding : 0)};
    const bool there = w->pack_gpu || c->table->blocks;
    if (there) work += expanded_bytes(c, s->ring_max, true);
    s->gpu_any = on_device(c, work + inputs.product,
                           ledger_gpu_host_bytes(c) + (wish->cpu      ? lanes
                                                       : inputs.table ? ledger_cpu_buffer_bytes(c, 0)
                                                                      : 0));
    /* Streamed weights are loaded by the CPU worker, which is there for that even if it computes nothing. */
    s->stream_any = on_device(c, borrowed + (there ? 0 : expanded_bytes(c, s->ring_max, false)),
                              ledger_cpu_buffer_bytes(c, 0) + (wish->cpu ? 0 : lanes));
    if (device->kind == LEDGER_DEVICE_EMULATED) s->stream_any.host += s->ring_max;
}

/* Host memory that a second device takes beside its units: the driver's, its lanes, and an emulated one's
 * buffers. */
static uint64_t second_host(const struct ledger_case *c, const struct memory_wish *wish)
{
    const struct ledger_device *device = &c->machine->second;
    const uint32_t lanes = plan_lanes_between((1u << PLAN_PROCESSORS) - 1) -
                           plan_lanes_between(1u << PLAN_CPU0 | 1u << plan_home_processor(PLAN_HOME_GPU));
    const uint64_t buffers =
        device->library_bytes + device->graph_bytes + device->context_bytes + workspace_of(c, wish, true);
    if (!c->wish->second_units) return 0;
    return ledger_gpu_host_bytes(c) + lanes * lane_bytes(c->wish->step_tokens, c->model->config.hidden) +
           (device->kind == LEDGER_DEVICE_EMULATED ? buffers : 0);
}

/* *missing: bytes over the limit in any case, in addition to those that the search will report. */
static uint64_t take_off(uint64_t limit, uint64_t bytes, uint64_t *missing)
{
    *missing = bytes > limit ? bytes - limit : 0;
    return bytes > limit ? 0 : limit - bytes;
}

int memory_build(const struct ledger_case *c, const struct memory_wish *wish, struct memory *memory,
                 struct helm_err *err)
{
    struct search_memory *s = &memory->search;
    char from[LEDGER_FROM_TEXT];
    uint64_t fixed = 0;
    memset(memory, 0, sizeof *memory);
    int rc = ledger_fixed_host_bytes(c, wish->ctx, &fixed, err);
    if (rc) return rc;
    if (ledger_kv_layer_bytes(c, wish->pages) > PLAN_BYTES_MAX / 2 / (UNIT_PARTS * MODEL_LAYERS_MAX))
        return helm_fail(err, HELM_E_LIMIT, "a KV pool of %u pages of %u tokens is no machine's", wish->pages,
                         c->wish->page_tokens);
    memory->unit = calloc((size_t)unit_count(c->table->layers) * SEARCH_HOMES, sizeof *memory->unit);
    if (!memory->unit)
        return helm_fail(err, HELM_E_NOMEM, "no memory for the sizes of %u half layers",
                         unit_count(c->table->layers));
    for (uint32_t l = 0; l < c->table->layers && ledger_places(c, wish->ctx); l++)
        if (keeps_pages(c, l) && !ledger_keeps_window(c, wish->pages, l))
            fixed += ledger_kv_layer_bytes(c, wish->pages);
    if (ledger_places(c, wish->ctx)) fixed += ARENA_HUGE_PAGE;
    fixed += ledger_inputs_bytes(c).table + second_host(c, wish);
    s->unit = memory->unit;
    s->host_limit = take_off(ledger_host_limit(c, from), fixed + wish->less_host, &memory->host_missing);
    s->vram_limit =
        wish->device ? take_off(c->machine->device.limit, wish->less_vram, &memory->vram_missing) : 0;
    if (wish->device) memory_ring_sizes(c, &s->ring_granule, &s->ring_max);
    if (wish->prefill) s->ring_least = RING_USUAL * s->ring_granule;
    fill_units(c, wish, memory->unit);
    fill_ends(c, wish, s);
    if (wish->shared_rows) memory_share_units(c, wish->shared_rows, memory->unit);
    fill_first(c, wish, s);
    return 0;
}

void memory_free(struct memory *memory)
{
    free(memory->unit);
    memset(memory, 0, sizeof *memory);
}

struct search_bytes memory_sum(const struct memory *memory, const struct search_found *found, bool tied,
                               uint32_t units)
{
    const struct search_memory *s = &memory->search;
    bool on[2] = {false, false};
    struct search_bytes sum = sum_of(&s->embed[found->embed], &s->head[found->head]);
    const struct search_bytes ring = {.vram = found->ring_bytes};
    if (tied && found->embed == found->head) sum = s->tied_both[found->head];
    on[found->embed] = on[found->head] = true;
    for (uint32_t u = 0; u < units; u++) {
        sum = sum_of(&sum, &s->unit[SEARCH_HOMES * u + found->home[u]]);
        on[plan_home_processor(found->home[u])] = true;
    }
    if (on[PLAN_HOME_CPU]) sum = sum_of(&sum, &s->cpu_any);
    if (on[PLAN_HOME_GPU]) sum = sum_of(&sum, &s->gpu_any);
    if (!found->ring_bytes) return sum;
    sum = sum_of(&sum, &s->stream_any);
    return sum_of(&sum, &ring);
}
