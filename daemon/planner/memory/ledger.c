/* All memory of a plan, line by line. See ledger.h. Called by planner.c and memory.c; owns nothing.
 *
 * How much KV, unless it was stated: LEDGER_POOL_TOKENS, but no more than every slot can use, at most half of
 * what the rest leaves free on the host (requests that may never come must not starve the machine's other
 * users), what is left under the device's ceiling, and always at least one whole context, without which the
 * longest allowed request could never end. More requests than the pool holds take turns: the scheduler
 * recomputes the younger ones. A page has a part in each pool: the host's for the layers whose attention the
 * CPU computes in decode, the device's for the others. Where the GPU borrows the host's part for long prompts
 * (plan.h), every page has two more layers' room in VRAM: one is copied in while the other is in use.
 *
 * With two tiers a page has room for all layers on the host, and VRAM has places for some: what is left under
 * the device's ceiling becomes places. */
#include "daemon/planner/memory/ledger.h"

#include <stdio.h>
#include <string.h>

#include "common/model/arch.h"
#include "common/base/log.h"
#include "common/formats/packed.h"
#include "common/plan/slots.h"
#include "common/plan/state.h"
#include "common/plan/workspace.h"
#include "common/program/slices.h"
#include "common/sampling/sampling.h"
#include "common/base/units.h"
#include "common/shared/kv_layout.h"
#include "daemon/planner/profile/policy.h"

uint64_t ledger_host_limit(const struct ledger_case *c, char from[LEDGER_FROM_TEXT])
{
    const struct cgroup_memory *memory = &c->machine->memory;
    char text[UNITS_TEXT];
    if (c->wish->host_memory_bytes && c->wish->host_memory_bytes < memory->available_bytes) {
        snprintf(from, LEDGER_FROM_TEXT, "--host-memory");
        return c->wish->host_memory_bytes;
    }
    if (memory->node_bytes)
        snprintf(from, LEDGER_FROM_TEXT, "free of NUMA node %d's %s", memory->node,
                 units_format_size(memory->node_bytes, text));
    else if (memory->limit_bytes != CGROUP_UNLIMITED)
        snprintf(from, LEDGER_FROM_TEXT, "free under the cgroup limit of %s",
                 units_format_size(memory->limit_bytes, text));
    else
        snprintf(from, LEDGER_FROM_TEXT, "free of the machine's %s",
                 units_format_size(memory->machine_bytes, text));
    return memory->available_bytes;
}

static struct kv_layout kv_of(const struct ledger_case *c, uint32_t layers, bool window)
{
    const struct model_heads heads = model_heads_of(&c->model->config, window);
    return (struct kv_layout){.layers = layers,
                              .kv_heads = heads.kv_heads,
                              .head_dim = heads.head_dim,
                              .page_tokens = c->wish->page_tokens,
                              .dtype = c->wish->kv_dtype,
                              .latent = c->model->config.latent.rank};
}

static uint64_t times(uint64_t count, uint64_t bytes)
{
    uint64_t product;
    return units_mul(count, bytes, &product) ? UINT64_MAX : product;
}

uint64_t ledger_kv_layer_bytes(const struct ledger_case *c, uint32_t page_count)
{
    const struct kv_layout kv = kv_of(c, 1, false);
    return times(page_count, kv_page_bytes(&kv));
}

uint64_t ledger_window_layer_bytes(const struct ledger_case *c, uint32_t page_count)
{
    const struct kv_layout kv = kv_of(c, 1, true);
    return times(page_count, kv_page_bytes(&kv));
}

uint64_t ledger_staging_bytes(const struct ledger_case *c, const struct plan_staging *staging)
{
    return plan_staging_bytes(staging, ledger_kv_layer_bytes(c, 1), ledger_window_layer_bytes(c, 1));
}

static struct plan sizes_of(const struct ledger_case *c, uint32_t ctx)
{
    return (struct plan){.context_tokens = ctx,
                         .step_tokens = c->wish->step_tokens,
                         .slots = c->wish->slots,
                         .page_tokens = c->wish->page_tokens};
}

uint32_t ledger_places(const struct ledger_case *c, uint32_t ctx)
{
    const struct plan sizes = sizes_of(c, ctx);
    if (!c->wish->vram_page_count) return 0;
    const uint64_t least = plan_vram_pages_least(&sizes);
    return least > c->wish->vram_page_count ? (uint32_t)least : c->wish->vram_page_count;
}

bool ledger_appends_in_arena(const struct ledger_case *c, uint32_t ctx)
{
    struct plan sizes = sizes_of(c, ctx);
    plan_device_at(&sizes, PLAN_HOME_GPU)->vram_page_count = ledger_places(c, ctx);
    return plan_appends_in_arena(&sizes);
}

uint64_t ledger_graph_bytes(const struct ledger_case *c, uint32_t unit, uint64_t ring_bytes)
{
    const struct ledger_device *device = &c->machine->device;
    uint64_t bytes = (device->graph_layer_bytes + 1) / 2, slice = ring_bytes / RING_SHARE;
    if (!ring_bytes) return bytes;
    if (slice > RING_SLICE_BYTES) slice = RING_SLICE_BYTES;
    /* One more for each of the two operations, whose last slice is shorter. Packed slices are twice as large
     * and have a kernel more. */
    return bytes +
           (analyse_units_stored(c->table, unit, unit) / (slice ? slice : 1) + 2) * device->graph_slice_bytes;
}

uint32_t ledger_matrices_together(const struct model *model, const struct model_tensor *t)
{
    const struct math_part *math = model_unit_math(model, model_tensor_unit(t));
    for (uint32_t i = 0; i < math->ops; i++)
        for (uint32_t w = 0; w < math->op[i].weights; w++)
            if (math->op[i].weight[w] == t->role) return math->op[i].gated ? math->op[i].weights : 1;
    return 1;
}

uint64_t ledger_packed_unit_bytes(const struct ledger_case *c, uint32_t unit)
{
    const struct model_unit *u = &c->model->unit[unit];
    uint64_t sum = 0;
    for (uint32_t i = 0; i < u->matrix_count; i++)
        sum += placement_room(u->tensor[i], FORMAT_BF16_PACKED, plan_home_memory(PLAN_HOME_GPU),
                              &c->wish->parts);
    return sum;
}

uint64_t ledger_packed_head_bytes(const struct ledger_case *c)
{
    return placement_room(model_find(c->model, TENSOR_HEAD, -1), FORMAT_BF16_PACKED,
                          plan_home_memory(PLAN_HOME_GPU), &c->wish->parts);
}

struct ledger_inputs ledger_inputs_bytes(const struct ledger_case *c)
{
    const struct math_part *inputs = &c->model->math.inputs;
    const enum plan_memory device =
        plan_home_memory(PLAN_HOME_GPU); /* rounded up to no less than the host's */
    struct ledger_inputs bytes = {0};
    for (uint32_t i = 0; i < inputs->ops; i++) {
        const struct math_op *op = &inputs->op[i];
        const struct model_tensor *t = model_find(c->model, op->weight[0], -1);
        *(op->kind == MATH_PER_LAYER ? &bytes.table : &bytes.product) += placement_rounded(device, t->bytes);
        if (op->norm != TENSOR_NONE)
            bytes.product += placement_vector_room(model_find(c->model, op->norm, -1), device);
    }
    if (inputs->ops) bytes.embedding = c->table->embed.stored;
    return bytes;
}

uint64_t ledger_gpu_host_bytes(const struct ledger_case *c)
{
    return c->machine->device.kind == LEDGER_DEVICE_EMULATED ? GPU_LOAD_STAGING_BYTES : DRIVER_BYTES;
}

static uint32_t samples_of(const struct ledger_wish *wish)
{
    return engine_samples(wish->slots, wish->draft_tokens);
}

uint64_t ledger_draw_bytes(const struct ledger_case *c)
{
    uint64_t scratch = sampling_scratch_bytes(c->model->config.vocab) + 2 * CPU_SCRATCH_ALIGN;
    return (uint64_t)samples_of(c->wish) * GPU_DRAW_SLOT_BYTES + GPU_SAMPLERS_MAX * scratch;
}

static uint64_t cpu_bytes(const struct ledger_case *c, const struct cpu_activations_case *size,
                          unsigned formats)
{
    const struct cpu_room room = cpu_room_of(size, formats);
    return room.activations + c->wish->threads * room.thread;
}

uint64_t ledger_cpu_buffer_bytes(const struct ledger_case *c, uint32_t most)
{
    const struct cpu_activations_case size = {.config = &c->model->config,
                                              .unit_tokens = most,
                                              .end_tokens = c->wish->step_tokens,
                                              .sampled_rows = samples_of(c->wish)};
    const unsigned packed = c->wish->pack_cpu ? format_bit(FORMAT_BF16_PACKED) : 0;
    return cpu_bytes(c, &size, model_formats(c->model) | packed);
}

uint64_t ledger_workspace_bytes(const struct ledger_case *c, const struct ledger_workspace *what)
{
    const struct gpu_workspace_case size = {
        .config = &c->model->config,
        .step_tokens = what->step_tokens,
        .slots = samples_of(c->wish),
        .line = gpu_block_line(kv_pages_for(what->ctx, c->wish->page_tokens), what->windows),
        .chunk_bytes = workspace_chunk_bytes(c->model),
        .query_bytes = (uint32_t)dtype_bytes(kv_query_dtype(c->wish->kv_dtype)),
        .layers = what->layers,
        .head = what->head,
        .chains = true,
        .apart = what->ctx > GPU_APART_POSITION,
        .tiered = what->tiered};
    struct gpu_workspace workspace;
    gpu_workspace_place(&size, &workspace);
    return workspace.bytes;
}

/* The arena's session region: the cells of one page that lie in VRAM alone. */
static uint64_t session_bytes(const struct ledger_case *c, const struct plan *plan)
{
    return plan_session_bytes(plan, ledger_kv_layer_bytes(c, 1), ledger_window_layer_bytes(c, 1));
}

/* The same of any plan. */
static uint64_t most_session_bytes(const struct ledger_case *c)
{
    const bool there = c->machine->device.kind != LEDGER_DEVICE_NONE &&
                       (!c->wish->vram_page_count || model_window(&c->model->config));
    const uint64_t pages = ledger_kv_layer_bytes(c, 1), windows = ledger_window_layer_bytes(c, 1);
    return there ? times(c->model->config.layers, pages > windows ? pages : windows) : 0;
}

int ledger_fixed_host_bytes(const struct ledger_case *c, uint32_t ctx, uint64_t *bytes, struct helm_err *err)
{
    const struct model_config *m = &c->model->config;
    const unsigned both = 1u << PLAN_CPU0 | 1u << plan_home_processor(PLAN_HOME_GPU);
    const struct arena_spec spec = {.slots = c->wish->slots,
                                    .samples = samples_of(c->wish),
                                    .context_tokens = ctx,
                                    .step_tokens = c->wish->step_tokens,
                                    .hidden = m->hidden,
                                    .vocab = m->vocab,
                                    .lanes = {0, ledger_places(c, ctx) ? plan_lanes_between(both) : 0},
                                    .kv = kv_of(c, 0, false),
                                    .page_count = ledger_places(c, ctx),
                                    .vram_page_count = ledger_places(c, ctx),
                                    .kv_heads_asking = c->wish->vram_page_count ? m->heads : 0,
                                    .session_bytes = most_session_bytes(c)};
    struct arena_header header;
    *bytes = 0;
    int rc = arena_plan(&spec, &header, err);
    if (!rc)
        *bytes = header.total_bytes + LEDGER_ROUNDING_BYTES + PROCESS_BYTES +
                 (model_window(m) ? header.region[ARENA_REGION_PAGE_TABLE].bytes : 0) + /* of windows */
                 ledger_stated_snapshots(c) * plan_snapshot_bytes(c->model);
    return rc;
}

static uint64_t unit_graphs(const struct ledger_case *c, const struct plan *plan, enum plan_processor device)
{
    uint64_t sum = 0;
    for (uint32_t u = 0; u < unit_count(plan->layers); u++) {
        const enum plan_home home = plan->unit[u].home[0];
        const uint64_t ring = plan_home_streams(home, device) ? plan->device[device].ring_bytes : 0;
        if (plan_home_processor(home) == device) sum += ledger_graph_bytes(c, u, ring);
    }
    return sum;
}

/* Windows of a processor's layers, and fixed states of all slots. Returns the latter's bytes. */
static uint64_t add_states(const struct ledger_case *c, const struct plan *plan,
                           enum plan_processor processor, struct ledger *ledger)
{
    char what[48];
    const uint32_t windows = plan_window_layers(plan, processor);
    const struct kv_layout kv = kv_of(c, plan_layers_of(plan, processor), false);
    const uint32_t page_count = plan_kv_pages(plan, plan_processor_memory(processor));
    const uint64_t gap = plan_processor_has_memory(processor)
                             ? state_windows_at(&kv, page_count) - page_count * kv_page_bytes(&kv)
                             : 0; /* before the pool */
    snprintf(what, sizeof what, "windows of %u layers, %u pages of %u tokens", windows,
             plan->window_page_count, plan->page_tokens);
    if (windows)
        ledger_add(ledger, what, times(windows, ledger_window_layer_bytes(c, plan->window_page_count)) + gap);
    const uint64_t bytes = plan->slots * plan_state_layout(plan, processor).slot_bytes;
    snprintf(what, sizeof what, "fixed states of %u slots", plan->slots);
    if (bytes) ledger_add(ledger, what, bytes);
    return bytes;
}

/* slots: bytes of those of experts. */
static void write_vram(const struct ledger_case *c, uint32_t ctx, uint64_t slots, enum plan_processor gpu,
                       struct plan *plan)
{
    const struct ledger_device *device = ledger_device_of(c->machine, gpu);
    const enum plan_memory memory = plan_processor_memory(gpu);
    struct ledger *vram = &plan->memory[memory];
    const struct placements weights = placements_in(plan, memory);
    const uint32_t kv_layers = plan_layers_of(plan, gpu);
    const uint64_t ring_bytes = plan_streams(plan, gpu) ? plan->device[gpu].ring_bytes : 0;
    char what[48];
    vram->limit = device->limit;
    ledger_add(vram, "weights",
               weights.region_bytes - weights.varying + placement_vectors(c->model, plan, gpu, NULL, NULL));
    if (slots) {
        snprintf(what, sizeof what, "experts, %u slots of %u layers", plan->device[gpu].experts.slots,
                 plan_mixed_units(plan));
        ledger_add(vram, what, slots);
    }
    if (weights.varying) ledger_add(vram, "packed weights", weights.varying);
    if (kv_layers) {
        const uint32_t pages = plan_kv_pages(plan, memory);
        snprintf(what, sizeof what,
                 plan_kv_tiered(plan) ? "KV places, of %u pages of %u tokens"
                                      : "KV pool, %u pages of %u tokens",
                 pages, plan->page_tokens);
        ledger_add(vram, what, times(kv_layers, ledger_kv_layer_bytes(c, pages)));
    }
    add_states(c, plan, gpu, vram);
    if (ring_bytes) ledger_add(vram, "stream ring", ring_bytes);
    const struct slices_room room = slices_of_plan(c->model, plan, gpu);
    const uint64_t expanded = slices_bytes(&room);
    if (expanded) ledger_add(vram, "expanded slice", expanded);
    const struct plan_staging staging = plan_staging(plan);
    if (staging.pages && (plan_kv_tiered(plan) || plan_borrows(plan, gpu))) {
        if (plan_kv_tiered(plan))
            snprintf(what, sizeof what, "borrowed KV, 2 pieces of %u pages of a layer", staging.piece);
        else
            snprintf(what, sizeof what, "borrowed KV, %d layers of %u pages", GPU_STAGINGS, plan->page_count);
        ledger_add(vram, what, ledger_staging_bytes(c, &staging));
    }
    const struct ledger_workspace work = {.step_tokens = plan->step_tokens,
                                          .ctx = ctx,
                                          .layers = plan_most_tokens(plan, gpu) > 0,
                                          .head = plan->head == gpu,
                                          .tiered = plan_kv_tiered(plan),
                                          .windows = plan->window_page_count > 0};
    ledger_add(vram, "activations, workspace (estimate)",
               device->library_bytes + ledger_workspace_bytes(c, &work));
    uint64_t graphs = device->graph_bytes + unit_graphs(c, plan, gpu);
    if (graphs) ledger_add(vram, "graphs (estimate)", graphs);
    if (device->context_bytes) ledger_add(vram, "context (estimate)", device->context_bytes);
}

static void write_host(const struct ledger_case *c, const struct arena_header *header, bool on_cpu,
                       bool on_gpu, struct plan *plan)
{
    uint64_t weights = header->region[ARENA_REGION_WEIGHTS].bytes, kv = header->region[ARENA_REGION_KV].bytes;
    char what[48], from[LEDGER_FROM_TEXT];
    struct ledger *host = &plan->memory[PLAN_HOST];
    host->limit = ledger_host_limit(c, from);
    const struct placements in_host = placements_in(plan, PLAN_HOST);
    const struct placement *table = placement_find(&in_host, TENSOR_PER_LAYER_EMBED, -1);
    ledger_add(host, "weights", weights - (table ? table->bytes : 0));
    if (table) ledger_add(host, "per-layer embeddings, a row a token", table->bytes);
    snprintf(what, sizeof what,
             plan_kv_tiered(plan) ? "KV cache of all layers, %u pages of %u tokens"
                                  : "KV cache, %u pages of %u tokens",
             plan->page_count, plan->page_tokens);
    const uint64_t pages = kv - times(plan_window_layers(plan, PLAN_CPU0),
                                      ledger_window_layer_bytes(c, plan->window_page_count));
    if (!on_gpu || pages) ledger_add(host, what, pages);
    const uint64_t slots = add_states(c, plan, PLAN_CPU0, host),
                   snapshots = header->region[ARENA_REGION_SNAPSHOTS].bytes;
    snprintf(what, sizeof what, "%u snapshots of fixed states", plan->state_snapshots);
    if (snapshots) ledger_add(host, what, snapshots);
    ledger_add(host,
               on_cpu && on_gpu ? "arena control, history, lanes, logits" : "arena control, history, logits",
               header->total_bytes - weights - kv - slots - snapshots);
    if (on_cpu) {
        ledger_add(host, "norms and biases in fp32",
                   placement_vectors(c->model, plan, PLAN_CPU0, NULL, NULL));
        const struct placements in = placements_in(plan, PLAN_HOST), disk = placements_in(plan, PLAN_DISK);
        const bool head = plan->head == PLAN_CPU0;
        const struct cpu_activations_case size = {.config = &c->model->config,
                                                  .unit_tokens = plan_most_tokens(plan, PLAN_CPU0),
                                                  .end_tokens = head || plan->embed == PLAN_CPU0
                                                                    ? plan->step_tokens
                                                                    : 0,
                                                  .sampled_rows = head ? samples_of(c->wish) : 0};
        ledger_add(host, "activations (estimate)",
                   cpu_bytes(c, &size, placements_formats(&in) | placements_formats(&disk)));
    }
    for (int p = 0; p < PLAN_PROCESSORS; p++) {
        const enum plan_processor device = (enum plan_processor)p;
        if (!plan_processor_has_memory(device) || !plan_uses(plan, device)) continue;
        if (c->machine->device.kind == LEDGER_DEVICE_EMULATED) {
            ledger_add(host, "the emulated device's memory",
                       plan->memory[plan_processor_memory(device)].total);
            ledger_add(host, "staging for the emulated device", ledger_gpu_host_bytes(c));
        } else {
            ledger_add(host, "GPU driver and staging (estimate)", ledger_gpu_host_bytes(c));
        }
    }
    if (plan_processor_has_memory(plan->head))
        ledger_add(host, "draws from the GPU's logits", ledger_draw_bytes(c));
    ledger_add(host, "processes (estimate)", PROCESS_BYTES);
}

int ledger_write_cut(const struct ledger_case *c, uint32_t ctx, uint32_t page_count, struct plan *plan,
                     struct arena_spec *spec, struct helm_err *err)
{
    struct arena_header header;
    int rc = plan->placement ? 0 : placement_make(c->model, &c->wish->parts, plan, err);
    const uint32_t windows = ledger_window_pages(c, page_count);
    const bool same = !windows == !plan->window_page_count;
    plan->window_page_count = windows;
    if (rc) return rc;
    if (!plan->has_states || !same) plan_take_states(plan, c->model);
    plan->context_tokens = ctx;
    plan->step_tokens = c->wish->step_tokens;
    plan->slots = c->wish->slots;
    plan->draft_tokens = c->wish->draft_tokens;
    plan->page_tokens = c->wish->page_tokens;
    plan->page_count = page_count;
    plan->state_snapshots = ledger_stated_snapshots(c);
    for (int p = 0; p < PLAN_PROCESSORS; p++)
        plan->device[p].vram_page_count =
            plan_processor_has_memory((enum plan_processor)p) && plan_layers_of(plan, (enum plan_processor)p)
                ? ledger_places(c, ctx)
                : 0;
    plan->kv_free_places = plan_kv_tiered(plan) ? c->wish->free_places : 0;
    if (!plan_kv_tiered(plan))
        plan->kv_direct_permille = plan->kv_direct_positions = plan->kv_direct_window = 0;
    snprintf(plan->kv_dtype, sizeof plan->kv_dtype, "%s", kv_dtype_name(c->wish->kv_dtype));
    memset(plan->memory, 0, sizeof plan->memory);
    for (int i = 0; i < PLAN_MEMORIES; i++) plan->memory[i].limit = UINT64_MAX;
    bool on_cpu = plan_uses(plan, PLAN_CPU0), on_gpu = plan_devices(plan) > 0;
    *spec = plan_arena_spec(plan, &c->model->config);
    spec->session_bytes = session_bytes(c, plan);
    rc = arena_plan(spec, &header, err);
    if (rc) return rc;
    struct slots_place slots = {0};
    rc = slots_place(c->model, plan, &slots, err);
    if (rc) return rc;
    for (int p = 0; p < PLAN_PROCESSORS; p++) {
        const enum plan_processor gpu = (enum plan_processor)p;
        const bool has_slots = plan_home_processor(PLAN_HOME_MIXED) == gpu;
        if (plan_processor_has_memory(gpu) && plan_uses(plan, gpu))
            write_vram(c, ctx, has_slots ? slots.bytes : 0, gpu, plan);
    }
    write_host(c, &header, on_cpu, on_gpu, plan);
    return ledger_write_disk(c->model, plan, err);
}

bool ledger_fits(const struct plan *plan)
{
    return ledger_over(plan) == PLAN_MEMORIES;
}

enum plan_memory ledger_over(const struct plan *plan)
{
    int m = 0;
    while (m < PLAN_MEMORIES && plan->memory[m].total <= plan->memory[m].limit) m++;
    return (enum plan_memory)m;
}

enum plan_memory ledger_refused(const struct plan *plan)
{
    const enum plan_memory over = ledger_over(plan);
    return over < PLAN_MEMORIES ? over : plan_home_memory(PLAN_HOME_GPU);
}

uint32_t ledger_least_pages(const struct ledger_case *c, uint32_t ctx)
{
    const uint32_t batch = c->wish->batch ? c->wish->batch : 1, places = ledger_places(c, ctx),
                   contexts = batch * kv_pages_for(ctx, c->wish->page_tokens);
    if (c->wish->page_count) return c->wish->page_count;
    return contexts > places ? contexts : places;
}

/* VRAM of one page more. With two tiers pieces grow with a pool that is smaller than two of them. */
static uint64_t device_page_bytes(const struct plan *plan, enum plan_processor device, uint32_t pages,
                                  uint64_t layer_page)
{
    if (!plan_uses(plan, device)) return 0;
    if (plan_kv_tiered(plan)) return pages < 2 * PLAN_PIECE_POSITIONS / plan->page_tokens ? layer_page : 0;
    return (plan_layers_of(plan, device) + (plan_borrows(plan, device) ? GPU_STAGINGS : 0u)) * layer_page;
}

/* The same of its windows: where their cells have no place in pages, there are as many as pages, up to the
 * usual number. */
static uint64_t window_page_bytes(const struct ledger_case *c, const struct plan *plan,
                                  enum plan_processor processor)
{
    const bool device = plan_processor_has_memory(processor), borrows = plan_borrows(plan, processor);
    uint64_t layers = plan_window_layers(plan, processor);
    if (!c->model->config.window_heads.head_dim || plan->window_page_count < plan->page_count) return 0;
    if (device && plan_staging(plan).windows)
        layers += plan_kv_tiered(plan) ? 1u : borrows ? GPU_STAGINGS : 0u;
    return layers * ledger_window_layer_bytes(c, 1);
}

/* Pages for a pool that may grow: see the top of this file. `plan` holds the ledgers of the smallest. */
static uint32_t choose_pages(const struct ledger_case *c, uint32_t ctx, const struct plan *plan)
{
    uint32_t least = ledger_least_pages(c, ctx);
    uint64_t layer_page = ledger_kv_layer_bytes(c, 1),
             host_page = plan_kv_layers(plan, PLAN_HOST) * layer_page + window_page_bytes(c, plan, PLAN_CPU0),
             device_page[PLAN_PROCESSORS] = {0};
    for (int p = 0; p < PLAN_PROCESSORS; p++) {
        if (!plan_processor_has_memory((enum plan_processor)p)) continue;
        device_page[p] = device_page_bytes(plan, (enum plan_processor)p, least, layer_page) +
                         window_page_bytes(c, plan, (enum plan_processor)p);
        if (c->machine->device.kind == LEDGER_DEVICE_EMULATED) host_page += device_page[p];
    }
    uint64_t most = (uint64_t)c->wish->slots * kv_pages_for(ctx, c->wish->page_tokens),
             pages = LEDGER_POOL_TOKENS / c->wish->page_tokens;
    if (pages > most) pages = most;
    if (host_page) {
        uint64_t spare = plan->memory[PLAN_HOST].limit - plan->memory[PLAN_HOST].total;
        uint64_t half = (spare + least * host_page) / 2 / host_page;
        if (pages > half) pages = half;
        if (pages > least && (pages - least) * host_page + LEDGER_ROUNDING_BYTES > spare) pages = least;
    }
    for (int p = 0; p < PLAN_PROCESSORS; p++) {
        const struct ledger *own = &plan->memory[plan_processor_memory((enum plan_processor)p)];
        if (!device_page[p]) continue;
        const uint64_t spare = own->limit - own->total,
                       fits = least + (spare > LEDGER_ROUNDING_BYTES
                                           ? (spare - LEDGER_ROUNDING_BYTES) / device_page[p]
                                           : 0);
        if (pages > fits) pages = fits;
    }
    return pages > least ? (uint32_t)pages : least;
}

/* Places for a plan that may have more, of whose pages all but those have their part in its ledgers. */
static uint32_t choose_places(const struct ledger_case *c, const struct plan *plan)
{
    const struct ledger *vram = &plan->memory[plan_home_memory(PLAN_HOME_GPU)],
                        *host = &plan->memory[PLAN_HOST];
    const uint64_t place = times(plan_device_layers(plan), ledger_kv_layer_bytes(c, 1));
    uint64_t spare = vram->limit - vram->total;
    if (c->machine->device.kind == LEDGER_DEVICE_EMULATED && host->limit - host->total < spare)
        spare = host->limit - host->total;
    const uint64_t more = spare > LEDGER_ROUNDING_BYTES ? (spare - LEDGER_ROUNDING_BYTES) / place : 0,
                   now = plan_kv_places(plan), places = now + more;
    return places < plan->page_count ? (uint32_t)places
           : now < plan->page_count  ? plan->page_count
                                     : (uint32_t)now;
}

static int fit_places(const struct ledger_case *c, uint32_t ctx, struct plan *plan, struct arena_spec *spec,
                      struct helm_err *err)
{
    struct ledger_wish wish = *c->wish;
    struct ledger_case more = *c;
    if (!plan_kv_tiered(plan) || wish.places_stand || !ledger_fits(plan)) return 0;
    more.wish = &wish;
    wish.vram_page_count = choose_places(c, plan);
    return ledger_write(&more, ctx, plan->page_count, plan, spec, err);
}

int ledger_fit(const struct ledger_case *c, uint32_t ctx, struct plan *plan, struct arena_spec *spec,
               struct helm_err *err)
{
    char text[HELM_ERR_TEXT];
    uint32_t pages = ledger_least_pages(c, ctx);
    int rc = ledger_write(c, ctx, pages, plan, spec, err);
    if (!rc && ledger_fits(plan) && !c->wish->page_count) {
        pages = choose_pages(c, ctx, plan);
        rc = ledger_write(c, ctx, pages, plan, spec, err);
    }
    if (!rc) rc = fit_places(c, ctx, plan, spec, err);
    if (!rc) rc = ledger_fit_snapshots(c, ctx, plan, spec, err);
    if (rc) return rc;
    if (!ledger_fits(plan)) {
        ledger_describe(c, plan, text, sizeof text);
        return helm_fail(err, HELM_E_CAPACITY, "does not fit with a context of %u: %.440s", ctx, text);
    }
    return 0;
}

void ledger_describe(const struct ledger_case *c, const struct plan *plan, char *text, size_t size)
{
    char need[UNITS_TEXT], have[UNITS_TEXT], each[UNITS_TEXT], from[LEDGER_FROM_TEXT];
    const enum plan_memory memory = ledger_refused(plan);
    const enum plan_processor owner = plan_memory_processor(memory);
    const bool host = memory == PLAN_HOST, first = plan_device_index(owner) == 0;
    const struct ledger *ledger = &plan->memory[memory];
    ledger_host_limit(c, from);
    int n = snprintf(text, size, "needs %s%s%s, has %s (%s):", units_format_size(ledger->total, need),
                     host ? "" : " of VRAM", first ? "" : " of the second device",
                     units_format_size(ledger->limit, have),
                     host ? from : ledger_device_of(c->machine, owner)->limit_from);
    size_t used = n > 0 ? (size_t)n : 0;
    for (uint32_t i = 0; i < ledger->line_count && used < size; i++) {
        n = snprintf(text + used, size - used, "%s %s %s", i ? "," : "", ledger->line[i].what,
                     units_format_size(ledger->line[i].bytes, each));
        if (n > 0) used += (size_t)n;
    }
}

void ledger_log(const char *where, const struct ledger *ledger)
{
    char text[UNITS_TEXT], limit[UNITS_TEXT];
    for (uint32_t i = 0; i < ledger->line_count; i++)
        log_info("%s: %12s  %s", where, units_format_size(ledger->line[i].bytes, text), ledger->line[i].what);
    log_info("%s: %12s  in all, of %s", where, units_format_size(ledger->total, text),
             units_format_size(ledger->limit, limit));
}
