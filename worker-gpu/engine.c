/* Assembly of the GPU engine. See engine.h.
 *
 * Everything is sized and held against the ceiling before a weight is read; everything is allocated before
 * the first step. Steps allocate nothing. */
#include "worker-gpu/engine.h"

#include <stdlib.h>
#include <string.h>

#include "common/base/cpu.h"
#include "common/base/units.h"
#include "worker-gpu/measure/measure.h"

#define PAGE_BYTES        4096u
#define LOAD_LOOK_MS      100   /* how often a cancelled load is noticed */
#define LOAD_BYTES_PER_MS 50000 /* a slower loader of host weights than this counts as lost */

/* Refuses with every number when what the plan wants cannot fit: before anything is allocated or read. */
static int check_ceiling(struct gpu_engine *g, struct helm_err *err)
{
    const struct device *d = g->device;
    char lines[384] = "", text[UNITS_TEXT], total[UNITS_TEXT], ceiling[UNITS_TEXT];
    uint64_t sum = 0;
    size_t at = 0;
    const struct {
        const char *what;
        uint64_t bytes;
        bool shown;
    } line[] = {{"weights", g->weights.bytes - g->weights.packed_room, true},
                {"experts", g->slots.place.bytes, g->slots.place.bytes > 0},
                {"packed weights", g->weights.packed_room, g->weights.packed_room > 0},
                {"KV pool", g->kv_bytes, true},
                {"fixed states", g->states.bytes, g->states.bytes > 0},
                {"borrowed KV", g->staging_bytes, g->staging_bytes > 0},
                {"ring", g->ring_bytes, g->ring_bytes > 0},
                {"expanded slice", g->expand.bytes, g->expand.bytes > 0},
                {"workspace", g->buffers.work.bytes, true},
                {"graphs", d->used[DEVICE_GRAPHS], true},
                {"context", d->used[DEVICE_CONTEXT], true}};
    for (size_t i = 0; i < sizeof line / sizeof *line; i++) {
        if (units_add(sum, line[i].bytes, &sum)) sum = UINT64_MAX;
        if (!line[i].shown || at >= sizeof lines) continue;
        int n = snprintf(lines + at, sizeof lines - at, "%s%s %s", at ? ", " : "", line[i].what,
                         units_format_size(line[i].bytes, text));
        if (n > 0) at += (size_t)n;
    }
    if (sum <= d->ceiling) return 0;
    return helm_fail(err, HELM_E_CAPACITY,
                     "the plan needs %s of VRAM, the ceiling is %s (%u pages of KV): %s",
                     units_format_size(sum, total), units_format_size(d->ceiling, ceiling),
                     plan_kv_pages(&g->plan, plan_processor_memory(g->base.self)), lines);
}

static int open_device(struct gpu_engine *g, const struct engine_options *o, struct helm_err *err)
{
    const struct device_options options = {.name = o->device ? o->device : "",
                                           .vram_bytes = o->vram_bytes,
                                           .copy_bytes_per_s = o->copy_bytes_per_s,
                                           .wait_ms = g->wait_ms};
    g->borrowed = o->opened != NULL;
    g->device = o->opened;
    int rc = o->opened ? 0 : device_open(&options, &g->device, err);
    if (rc) return rc;
    snprintf(g->base.report.device, sizeof g->base.report.device, "%s", g->device->text);
    if (o->no_chains) g->device->no_chains = "that was asked for";
    return 0;
}

static int plan_rings(struct gpu_engine *g, struct helm_err *err)
{
    int rc = 0;
    for (uint32_t p = 0; p < PLAN_PHASES_MAX; p++) ring_free(&g->ring[p]);
    for (uint32_t p = 0; p < plan_phase_count(&g->plan) && !rc; p++)
        rc = ring_plan(&g->weights, &g->plan, p, p ? &g->ring[0] : NULL, &g->ring[p], err);
    ring_free(&g->home);
    if (!rc) rc = ring_plan_home(&g->weights, &g->plan, &g->home, err);
    return rc;
}

static int size_everything(struct gpu_engine *g, struct helm_err *err)
{
    const struct arena *arena = g->base.arena;
    const struct arena_header *h = arena_header_of(arena);
    const enum plan_processor self = g->base.self;
    int rc = gpu_program_check_phases(&g->plan, err);
    if (rc) return rc;
    g->reads_tokens = placement_reads_tokens(&g->model, &g->plan, self);
    g->kv = h->kv;
    g->kv.layers = plan_layers_of(&g->plan, self);
    g->window_kv = arena_window_layout(arena);
    g->window_kv.layers = plan_window_layers(&g->plan, self);
    g->staging_bytes = gpu_staging_bytes(&g->plan, self, h);
    const uint32_t most = model_heads_most(&g->model.config).head_dim;
    if ((g->kv.layers || g->window_kv.layers || g->staging_bytes) && most > GPUK_HEAD_DIM_MAX)
        return helm_fail(err, HELM_E_UNSUPPORTED, "head_dim %u: the GPU's attention takes at most %d", most,
                         GPUK_HEAD_DIM_MAX);
    /* with one tier the arena's header says how many pages there are, whatever the plan does */
    const uint32_t pages =
        plan_kv_tiered(&g->plan) ? plan_kv_pages(&g->plan, plan_processor_memory(self)) : h->page_count;
    if (units_mul(kv_page_bytes(&g->kv), pages, &g->kv_bytes))
        return helm_fail(err, HELM_E_LIMIT, "the KV pool of %u pages overflows", pages);
    g->window_at = state_windows_at(&g->kv, pages);
    if (g->window_kv.layers) g->kv_bytes = g->window_at + h->window_page_count * kv_page_bytes(&g->window_kv);
    g->ring_bytes = plan_streams(&g->plan, self) ? g->plan.device[self].ring_bytes : 0;
    gpu_buffers_place(&g->model, &g->plan, self, h, g->device, &g->buffers);
    rc = gpu_buffers_check(&g->model.config, g->device, &g->buffers, err);
    if (rc) return rc;
    rc = gpu_weights_plan(&g->model, &g->plan, self, arena_region_ptr(arena, ARENA_REGION_WEIGHTS),
                          h->region[ARENA_REGION_WEIGHTS].bytes, &g->weights, err);
    if (!rc) rc = gpu_slots_plan(&g->weights, &g->plan, &g->slots, err);
    if (!rc) rc = gpu_states_plan(&g->plan, self, arena, &g->states, err);
    if (!rc) rc = plan_rings(g, err);
    if (rc) return rc;
    gpu_expand_plan(&g->model, &g->plan, self, &g->expand);
    atomic_store(&g->base.bytes_total, g->weights.matrix_bytes);
    return check_ceiling(g, err);
}

static int register_region(struct gpu_engine *g, enum gpu_region region, uint64_t offset, uint64_t bytes,
                           bool read_only, struct helm_err *err)
{
    static const char *const what[GPU_REGION_COUNT] = {"lanes", "host KV pool", "host weights"};
    char *base = (char *)g->base.arena->base + offset;
    int rc = device_host_register(g->device, what[region], base, bytes, read_only, err);
    if (!rc) g->region[region] = base;
    return rc;
}

static int make_events(struct gpu_engine *g, struct helm_err *err)
{
    struct device *d = g->device;
    int rc = d->ops->event_create(d, DEVICE_EVENT_PLAIN, &g->copied, err);
    g->events = gpu_events_place(&g->plan, g->base.self, g->ring);
    g->event = calloc((size_t)g->events.count + 1, sizeof *g->event);
    g->prefix.count = ring_prefix(&g->ring[0]);
    g->prefix.there = calloc((size_t)g->prefix.count + 1, sizeof *g->prefix.there);
    if (!rc && (!g->event || !g->prefix.there))
        rc = helm_fail(err, HELM_E_NOMEM, "no memory for %u events", g->events.count);
    for (uint32_t i = 0; i < g->events.count && !rc; i++)
        rc = d->ops->event_create(d, i < g->events.prefix ? DEVICE_EVENT_PLAIN : DEVICE_EVENT_CROSSING,
                                  &g->event[i], err);
    return rc;
}

/* VRAM of which the first `cleared` bytes are read before they were ever written, and so have to be finite:
 * positions that are masked still meet a weight of 0 in some kernels, and programs run over an empty ring
 * while code is loaded. */
static int take_vram(struct gpu_engine *g, enum device_use use, uint64_t bytes, uint64_t cleared,
                     void **memory, struct helm_err *err)
{
    int rc = bytes ? device_alloc(g->device, use, bytes, memory, err) : 0;
    return rc || !cleared ? rc : g->device->ops->clear(g->device, DEVICE_COMPUTE, *memory, cleared, err);
}

/* VRAM beside the weights. */
static int allocate_device(struct gpu_engine *g, struct helm_err *err)
{
    static const enum gpu_area cleared[] = {GPU_AREA_LINEAR, GPU_AREA_ATTENTION, GPU_AREA_ARGMAX,
                                            GPU_AREA_FEW,    GPU_AREA_CHOICE,    GPU_AREA_SLOTS};
    struct device *d = g->device;
    void *memory = NULL, *expanded = NULL;
    int rc = take_vram(g, DEVICE_KV, g->kv_bytes, g->kv_bytes, &g->kv_pool, err);
    if (!rc) rc = gpu_states_open(&g->states, d, err);
    if (!rc) rc = take_vram(g, DEVICE_KV, g->staging_bytes, g->staging_bytes, &g->staging, err);
    if (!rc) rc = take_vram(g, DEVICE_RING, g->ring_bytes, g->ring_bytes, &g->ring_memory, err);
    /* not the tables after it: the other queue fills those, and waits for nothing */
    if (!rc) rc = take_vram(g, DEVICE_EXPANDED, g->expand.bytes, g->expand.slice_bytes, &expanded, err);
    g->expand.memory = expanded;
    if (!rc) rc = take_vram(g, DEVICE_WORKSPACE, g->buffers.work.bytes, 0, &memory, err);
    g->buffers.memory = memory;
    for (size_t i = 0; i < sizeof cleared / sizeof *cleared && !rc; i++)
        if (gpu_area(&g->buffers, cleared[i]))
            rc = d->ops->clear(d, DEVICE_COMPUTE, gpu_area(&g->buffers, cleared[i]),
                               g->buffers.work.area[cleared[i]].bytes, err);
    return rc;
}

/* Buffers, cache, ring, pinned memory; of the arena what is in front of cache and weights. */
static int allocate(struct gpu_engine *g, struct helm_err *err)
{
    struct device *d = g->device;
    const struct arena *arena = g->base.arena;
    const struct arena_header *h = arena_header_of(arena);
    const struct model_config *c = &g->model.config;
    const uint32_t dim = model_heads_most(c).head_dim;
    struct gpu_block block;
    int rc = register_region(g, GPU_REGION_FRONT, 0, h->region[ARENA_REGION_KV].offset, false, err);
    if (!rc) rc = allocate_device(g, err);
    if (rc) return rc;
    gpu_block_place(g->buffers.work.tokens, h->samples,
                    gpu_block_line(h->pages_per_slot, h->window_page_count), plan_kv_tiered(&g->plan),
                    &block);
    uint64_t results = (block.bytes + 63) / 64 * 64, /* of a step, and of one after it */
        inv_freq = results + GPU_FOLLOW_PLACES * ARENA_STEP_ROWS * sizeof(struct gpuk_token),
             end = inv_freq + (model_ropes(c) * dim * sizeof(float) + 63) / 64 * 64;
    rc = device_host_alloc(d, end + 64, &g->pinned, err);
    if (rc) return rc;
    memset(g->pinned, 0, (size_t)(end + 64));
    char *pinned = g->pinned;
    g->source = (struct gpu_source){.model = &g->model,
                                    .plan = &g->plan,
                                    .self = g->base.self,
                                    .weights = &g->weights,
                                    .buffers = &g->buffers,
                                    .arena = arena,
                                    .device = d,
                                    .kv = g->kv,
                                    .kv_pool = g->kv_pool,
                                    .window_kv = g->window_kv,
                                    .window_pool = (char *)g->kv_pool + g->window_at,
                                    .ring = g->ring,
                                    .home = &g->home,
                                    .slots = &g->slots,
                                    .states = &g->states,
                                    .ring_memory = g->ring_memory,
                                    .expanded = g->expand.memory,
                                    .block_host = pinned,
                                    .tokens = (struct gpuk_token *)(pinned + results),
                                    .end = (_Atomic uint32_t *)(pinned + end),
                                    .sent = (_Atomic uint32_t *)(pinned + end) + GPU_FOLLOW_PLACES};
    g->source.moved = g->source.sent + 1 + GPU_TIER_PLACES;
    rc = gpu_tiers_open(g, g->source.sent + 1, err);
    if (rc) return rc;
    for (uint32_t i = 0; i < GPU_STAGINGS && g->staging; i++)
        g->source.staging[i] = (char *)g->staging + (g->tiers.on ? 0 : i * (g->staging_bytes / GPU_STAGINGS));
    for (uint32_t r = 0; r < model_ropes(c); r++)
        rope_inv_freq(c, r, h->context_tokens, (float *)(pinned + inv_freq) + (size_t)r * dim / 2,
                      &g->source.rope_scale[r]);
    if (gpu_area(&g->buffers, GPU_AREA_INV_FREQ))
        rc = device_copy(d, DEVICE_COMPUTE, DEVICE_TO_DEVICE, gpu_area(&g->buffers, GPU_AREA_INV_FREQ),
                         pinned + inv_freq, model_ropes(c) * (dim / 2) * sizeof(float), err);
    return rc;
}

/* Waits until the loading worker has filled the weights region and moves its pages no more. */
static int wait_for_weights(struct gpu_engine *g, struct helm_err *err)
{
    const struct arena *arena = g->base.arena;
    struct doorbell *bell = &arena_control_of(arena)->weights_bell;
    uint64_t bytes = arena_header_of(arena)->region[ARENA_REGION_WEIGHTS].bytes;
    uint64_t limit_ms = g->wait_ms + bytes / LOAD_BYTES_PER_MS;
    for (uint64_t start_us = units_now_us();;) {
        uint32_t seen = doorbell_read(bell);
        if (seen == 1) return 0;
        if (atomic_load_explicit(&g->base.cancel, memory_order_relaxed))
            return helm_fail(err, HELM_E_CANCELLED, "loading was cancelled");
        if ((units_now_us() - start_us) / 1000 >= limit_ms)
            return helm_fail(err, HELM_E_PEER, "the weights in host memory were not there within %llu ms",
                             (unsigned long long)limit_ms);
        (void)doorbell_wait(bell, seen, 0, LOAD_LOOK_MS, NULL);
    }
}

/* Registers the arena's memory that the copy queue reads and writes with the device, once its pages are
 * final. */
static int register_host_memory(struct gpu_engine *g, struct helm_err *err)
{
    const struct arena_header *h = arena_header_of(g->base.arena);
    const struct arena_region *weights = &h->region[ARENA_REGION_WEIGHTS], *kv = &h->region[ARENA_REGION_KV];
    uint64_t first = g->weights.host_first / PAGE_BYTES * PAGE_BYTES;
    uint64_t end = round_up(g->weights.host_end, PAGE_BYTES);
    const bool streams = g->weights.host_end > 0, shares = g->staging_bytes || plan_kv_tiered(&g->plan);
    const bool loaded = plan_uses(&g->plan, plan_memory_processor(PLAN_HOST)); /* by that worker */
    uint64_t huge = 0, small = 0;
    int rc = streams || (shares && loaded) ? wait_for_weights(g, err) : 0;
    if (!rc && shares && !loaded) /* no other process touches them */
        arena_populate(g->base.arena, kv->offset, kv->bytes, &huge, &small);
    g->base.report.huge_bytes += huge;
    g->base.report.small_bytes += small;
    if (!rc && streams)
        rc = register_region(g, GPU_REGION_WEIGHTS, weights->offset + first, end - first, true, err);
    if (!rc && shares) rc = register_region(g, GPU_REGION_KV, kv->offset, kv->bytes, false, err);
    return rc;
}

/* The layout of the ring, now that sizes of packed weights are known, and its events. */
static int schedule_copies(struct gpu_engine *g, struct helm_err *err)
{
    int rc = gpu_expand_take_tables(&g->expand, &g->weights, g->device, err);
    if (!rc && g->expand.bytes) rc = plan_rings(g, err);
    if (!rc) rc = make_events(g, err);
    g->source.event = g->event;
    g->source.events = g->events;
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
    rc = gpu_draw_open(g, err);
    return rc ? rc : pool_create(g->sampler_count, NULL, 0, &g->samplers, err);
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

#define PROGRAMS (PLAN_PHASES_MAX * GPU_TIER_COUNT + GPU_ATTENDING_COUNT * GPU_TIER_CHUNK)
/* Every program there may be, by number: those of phases and tiers, then those that attend otherwise than
 * usually. */
static struct gpu_program *program_at(struct gpu_engine *g, uint32_t i, struct gpu_program_kind *kind)
{
    const uint32_t plain = PLAN_PHASES_MAX * GPU_TIER_COUNT, n = i - plain;
    *kind = i < plain ? (struct gpu_program_kind){.phase = i / GPU_TIER_COUNT,
                                                  .tier = (enum gpu_tier)(i % GPU_TIER_COUNT)}
                      : (struct gpu_program_kind){.tier = (enum gpu_tier)(n % GPU_TIER_CHUNK),
                                                  .attending = (enum gpu_attending)(n / GPU_TIER_CHUNK)};
    return i < plain ? &g->program[kind->phase][kind->tier] : &g->other[kind->attending][kind->tier];
}

static int lower_program(struct gpu_engine *g, uint32_t i, struct helm_err *err)
{
    struct gpu_program_kind kind;
    struct gpu_program *p = program_at(g, i, &kind);
    if (i >= PLAN_PHASES_MAX * GPU_TIER_COUNT && kind.attending == GPU_ATTENDS_USUALLY) return 0;
    if (!gpu_program_wanted(&g->source, &kind)) return 0;
    if (gpu_program_repeats(&g->plan, &g->program[0][kind.tier], kind.attending)) return 0;
    int rc = gpu_program_lower(&g->source, &kind, p, err);
    return rc ? rc : gpu_program_write_chains(&g->source, p, err);
}

/* Lowers every phase and tier; runs each alone, so that all code is loaded (a load under a queue that waits
 * for the host would never end); captures those of fixed shape, unless graphs are not wanted; fills the ring
 * for the first step. */
static int prepare_programs(struct gpu_engine *g, bool graphs, struct helm_err *err)
{
    struct device *d = g->device;
    struct gpu_program_kind kind;
    int rc = 0;
    for (uint32_t i = 0; i < PROGRAMS && !rc; i++) rc = lower_program(g, i, err);
    uint64_t before = d->ops->memory_overhead(d);
    for (uint32_t i = 0; i < PROGRAMS && !rc; i++)
        if (program_at(g, i, &kind)->count) rc = gpu_step_warm(g, program_at(g, i, &kind), err);
    if (!rc) rc = gpu_drafts_open(g, err);
    uint64_t warm = d->ops->memory_overhead(d); /* libraries load their code with first use */
    if (!rc && warm > before) rc = device_charge(d, DEVICE_CONTEXT, warm - before, err);
    before = warm;
    for (uint32_t i = 0; i < PROGRAMS && graphs && !rc; i++) {
        struct gpu_program *p = program_at(g, i, &kind);
        if (p->count && p->phase == 0 && p->tier != GPU_TIER_CHUNK)
            rc = gpu_program_capture(&g->source, p, err);
    }
    if (!rc) rc = gpu_follow_open(g, err);
    uint64_t after = d->ops->memory_overhead(d), seen = d->used[DEVICE_GRAPHS];
    if (!rc && after > before && after - before > seen)
        rc = device_charge(d, DEVICE_GRAPHS, after - before - seen, err);
    if (!rc) rc = gpu_program_prime(&g->source, &g->prefix, err);
    return rc;
}

/* How one token is decoded: by chains, or by a kernel an operation, and why. */
static void report_decode(struct gpu_engine *g, const char *device)
{
    const struct gpu_program *p = &g->program[0][GPU_TIER_1];
    struct engine_report *report = &g->base.report;
    const char *why = g->device->no_chains                     ? g->device->no_chains
                      : g->source.model->config.router.experts ? "mixtures are faster so"
                                                               : "no two neighbours of them can be chained";
    uint32_t packed = 0;
    for (uint32_t i = 0; i < p->count; i++) packed += gpu_entry_trusts(&p->entry[i]);
    if (g->plan.invariant && p->chains)
        snprintf(report->kernels, sizeof report->kernels,
                 "%.40s, decode: chains (%u operations in %u, %u alone) with the bits of a few tokens, "
                 "because the plan is invariant",
                 device, p->chained, p->chains, p->unchained);
    else if (g->plan.invariant)
        snprintf(report->kernels, sizeof report->kernels,
                 "%.40s, decode: one token as a few, because the plan is invariant", device);
    else if (p->chains)
        snprintf(report->kernels, sizeof report->kernels,
                 "%.40s, decode: chains (%u operations in %u, %u alone)", device, p->chained, p->chains,
                 p->unchained);
    else if (p->unchained)
        snprintf(report->kernels, sizeof report->kernels,
                 "%.40s, decode: a kernel an operation, because %.96s", device, why);
    else
        snprintf(report->kernels, sizeof report->kernels, "%.40s", device);
    size_t at = strlen(report->kernels);
    if (packed)
        snprintf(report->kernels + at, sizeof report->kernels - at, "; %u with packed weights", packed);
    if (p->unchained && g->device->no_chains)
        engine_reduced(report, "one token is decoded by a kernel an operation instead of chains: %s", why);
}

/* The next step's first slices may still be on their way. */
static void drain_copies(struct gpu_engine *g)
{
    struct device *d = g->device;
    if (!g->copied || d->ops->event_record(d, DEVICE_COPY, g->copied, NULL)) return;
    (void)d->ops->event_wait(d, g->copied, NULL);
}

static void gpu_engine_free(struct worker_engine *base)
{
    struct gpu_engine *g = (struct gpu_engine *)base;
    struct device *d = g->device;
    if (d && !g->failed && (gpu_follow_settle(g, NULL) || gpu_drafts_settle(g, NULL))) g->failed = true;
    if (d && g->failed)
        gpu_step_abandon(g);
    else if (d)
        drain_copies(g);
    pool_destroy(g->samplers);
    for (uint32_t i = 0; i < GPU_SAMPLERS_MAX; i++) free(g->scratch[i]);
    if (d) {
        gpu_follow_close(g);
        gpu_drafts_close(g);
        gpu_tiers_close(g);
        struct gpu_program_kind kind;
        for (uint32_t i = 0; i < PROGRAMS; i++) gpu_program_free(program_at(g, i, &kind), d);
        for (uint32_t i = 0; g->event && i < g->events.count; i++)
            if (g->event[i]) d->ops->event_free(d, g->event[i]);
        if (g->copied) d->ops->event_free(d, g->copied);
        device_free(d, DEVICE_KV, g->kv_bytes, g->kv_pool);
        device_free(d, DEVICE_KV, g->staging_bytes, g->staging);
        gpu_states_close(&g->states, d);
        device_free(d, DEVICE_RING, g->ring_bytes, g->ring_memory);
        device_free(d, DEVICE_EXPANDED, g->expand.bytes, g->expand.memory);
        device_free(d, DEVICE_WORKSPACE, g->buffers.work.bytes, g->buffers.memory);
        gpu_slots_close(&g->slots);
        gpu_weights_free(&g->weights);
        if (g->pinned) d->ops->host_free(d, g->pinned);
        gpu_draw_close(g);
        for (int i = 0; i < GPU_REGION_COUNT; i++)
            if (g->region[i]) d->ops->host_unregister(d, g->region[i]);
        if (!g->borrowed) device_close(d);
    }
    free(g->event);
    free(g->prefix.there);
    for (uint32_t p = 0; p < PLAN_PHASES_MAX; p++) ring_free(&g->ring[p]);
    ring_free(&g->home);
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
    if (!rc) rc = engine_take_self(base, o, err);
    if (!rc) rc = engine_take_model(o, &g->model, err);
    if (!rc) rc = plan_copy(o->plan, &g->plan, err);
    if (!rc) rc = engine_check_arena(arena, &g->plan, &g->model.config, err);
    if (!rc) rc = open_device(g, o, err);
    if (!rc) rc = size_everything(g, err);
    if (!rc) rc = allocate(g, err);
    if (!rc) rc = gpu_weights_load(&g->weights, g->device, readers, &base->bytes_done, &base->cancel, err);
    if (!rc) rc = take_batch_memory(g, err);
    if (!rc && g->plan.head == g->base.self) rc = start_samplers(g, err);
    if (!rc) rc = register_host_memory(g, err);
    if (!rc) rc = gpu_slots_open(&g->slots, g->device, arena, err);
    if (!rc) rc = gpu_slots_fill(&g->slots, err);
    if (!rc) rc = gpu_slots_hide(&g->slots, gpu_area(&g->buffers, GPU_AREA_SLOTS), err);
    if (!rc) rc = schedule_copies(g, err);
    if (!rc) rc = prepare_programs(g, !o->no_graphs, err);
    if (!rc && o->no_graphs)
        engine_reduced(report, "steps are issued anew instead of replaying captured graphs, as asked");
    if (rc) {
        g->failed = true; /* something may still be queued */
        gpu_engine_free(base);
        return rc;
    }
    report_decode(g, o->device);
    report->threads = g->sampler_count ? g->sampler_count : 1;
    report->weight_bytes = g->weights.matrix_bytes;
    report->vectors_content = g->weights.vectors_content;
    report->matrices_content = g->weights.matrices_content;
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
                                                 .device = true,
                                                 .bytes = sizeof(struct gpu_engine),
                                                 .load = gpu_engine_load,
                                                 .step = gpu_engine_step,
                                                 .free = gpu_engine_free,
                                                 .print_plan = gpu_print_plan,
                                                 .probe = gpu_print_devices,
                                                 .measure = measure_serve};
