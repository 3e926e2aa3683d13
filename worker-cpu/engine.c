/* Assembly of the CPU engine. See engine.h. */
#include "worker-cpu/engine.h"

#include <sched.h>
#include <stdlib.h>
#include <sys/resource.h>

#include "common/base/cpu.h"
#include "common/base/log.h"
#include "common/base/node.h"
#include "common/base/units.h"
#include "common/cpu/pool.h"
#include "worker-cpu/disk/disk.h"

#define LANE_SPIN_US      POOL_SPIN_QUIET_US
#define LANE_SPIN_THREADS 4
/* Small pages are reported from a fiftieth of all pages and this many bytes on. Fewer cost no measurable
 * time. */
#define SMALL_PART  50
#define SMALL_LEAST (64 * MIB)
#define TOUCH_BYTES (16 * MIB) /* that a thread makes resident at a time */

int engine_choose_kernels(struct engine *engine, const char *name, enum kv_dtype kv_dtype,
                          struct helm_err *err)
{
    struct helm_err amx = {0};
    unsigned features = cpu_features();
    if (features & CPU_AMX_BF16 && cpu_enable_amx(&amx)) {
        features &= ~(unsigned)CPU_AMX_BF16;
        engine_reduced(&engine->base.report, "no AMX: %.150s", amx.text);
    }
    int rc = kernel_set_choose(features, name, kv_dtype, &engine->kernels, err);
    return rc || !engine->plan.invariant ? rc : kernel_set_steady(&engine->kernels, err);
}

int engine_check_kernels(const struct engine *engine, struct helm_err *err)
{
    return kernel_set_need(&engine->kernels, engine->weights.formats, cpu_features(), err);
}

static int start_pool(struct engine *engine, const struct engine_options *o, struct helm_err *err)
{
    struct cpu_set *set = malloc(sizeof *set);
    if (!set) return helm_fail(err, HELM_E_NOMEM, "no memory for the list of CPUs");
    int rc = cpu_usable(engine->base.report.node, set, err);
    if (rc) goto out;
    uint32_t threads = o->threads ? o->threads : (uint32_t)set->suggested;
    if (o->pin && threads > (uint32_t)set->count) {
        rc =
            helm_fail(err, HELM_E_LIMIT, "%u compute threads: only %d CPUs may be used", threads, set->count);
        goto out;
    }
    if (threads > (uint32_t)set->suggested)
        engine_reduced(&engine->base.report, "%u threads on %d cores", threads, set->suggested);
    engine->base.report.threads = threads;
    rc = pool_create(threads, o->pin ? set->cpu : NULL, o->spin_us, &engine->pool, err);
out:
    free(set);
    return rc;
}

/* Binds the regions this worker fills; nothing of them was touched yet (or, after a restart, they are bound).
 */
static int bind_regions(struct engine *engine, struct helm_err *err)
{
    static const enum arena_region_id mine[] = {ARENA_REGION_STATE, ARENA_REGION_KV, ARENA_REGION_WEIGHTS};
    const struct arena_header *h = arena_header_of(engine->base.arena);
    if (engine->base.report.node < 0) return 0;
    pin_prefer_node(engine->base.report.node);
    for (size_t i = 0; i < sizeof mine / sizeof *mine; i++) {
        const struct arena_region *r = &h->region[mine[i]];
        if (!r->bytes) continue;
        int rc = arena_bind(engine->base.arena, r->offset, r->bytes, engine->base.report.node, err);
        if (rc) return rc;
    }
    return 0;
}

/* Checks on which node pages of a region are: the first, the last and 62 between. */
static int verify_node(const struct engine *engine, enum arena_region_id id, uint64_t bytes,
                       struct helm_err *err)
{
    const struct arena_region *r = &arena_header_of(engine->base.arena)->region[id];
    if (engine->base.report.node < 0 || !bytes) return 0;
    for (uint32_t i = 0; i < 64; i++) {
        int node = -1;
        uint64_t at = (bytes - 1) / 63 * i;
        int rc = arena_node_of(engine->base.arena, r->offset + at, &node, err);
        if (rc) return rc;
        if (node != engine->base.report.node)
            return helm_fail(
                err, HELM_E_PERMISSION,
                "arena memory at byte %llu lies on NUMA node %d, not on node %d where it was bound",
                (unsigned long long)(r->offset + at), node, engine->base.report.node);
    }
    return 0;
}

/* Programs of few tokens one by one, where one token's kernels are faster so. */
static int lower_apart(struct program_source source, struct step_programs *programs, struct helm_err *err)
{
    for (uint32_t p = 0; p < plan_phase_count(source.plan); p++) {
        if (!program_tier_occurs(source.plan, p, OP_TIER_FEW)) continue;
        int rc = program_apart(&source, p, &source.apart, err);
        if (!rc && source.apart) rc = program_lower(&source, p, OP_TIER_FEW, &programs->apart[p], err);
        if (rc) return rc;
    }
    source.apart = source.plan->head == source.self ? program_apart_head(&source) : 0;
    return source.apart ? program_lower_head(&source, true, &programs->head_apart, err) : 0;
}

/* Programs of the layers that make drafts. */
static int lower_drafts(struct program_source *source, struct step_programs *programs, struct helm_err *err)
{
    int rc = 0;
    source->drafts = true;
    for (int t = 0; t < OP_TIER_COUNT && !rc; t++)
        rc = program_lower_drafts(source, true, (enum op_tier)t, &programs->drafts_first[t], err);
    for (int t = 0; t <= OP_TIER_FEW && !rc; t++)
        rc = program_lower_drafts(source, false, (enum op_tier)t, &programs->drafts_next[t], err);
    if (!rc) rc = program_lower_head(source, false, &programs->drafts_one, err);
    return rc ? rc : program_lower_head(source, true, &programs->drafts_many, err);
}

static int lower_programs(struct engine *engine, uint32_t threads, enum linear_inputs inputs,
                          struct helm_err *err)
{
    const struct plan *plan = &engine->plan;
    struct step_programs *programs = &engine->programs[inputs];
    struct program_source source = {.model = &engine->model,
                                    .plan = plan,
                                    .self = engine->base.self,
                                    .weights = &engine->weights,
                                    .kernels = &engine->kernels,
                                    .disk = engine->disk,
                                    .inputs = inputs,
                                    .act = &engine->act,
                                    .threads = threads,
                                    .arena = engine->base.arena};
    programs->plan = plan;
    programs->reads_tokens = placement_reads_tokens(&engine->model, plan, engine->base.self);
    programs->self = engine->base.self;
    for (uint32_t p = 0; p < plan_phase_count(plan); p++)
        for (int t = 0; t < OP_TIER_COUNT; t++) {
            if (!program_tier_occurs(plan, p, (enum op_tier)t)) continue;
            int rc = program_lower(&source, p, (enum op_tier)t, &programs->tier[p][t], err);
            if (rc) return rc;
        }
    int rc = plan->invariant ? 0 : lower_apart(source, programs, err);
    if (rc) return rc;
    source.assisted = true;
    for (int t = 0; t <= OP_TIER_FEW && plan_kv_assisted(plan); t++) {
        rc = program_lower(&source, 0, (enum op_tier)t, &programs->assisted[t], err);
        if (rc) return rc;
    }
    if (plan->head != engine->base.self) return 0;
    source.assisted = false;
    rc = program_lower_head(&source, false, &programs->head_one, err);
    if (!rc) rc = program_lower_head(&source, true, &programs->head_many, err);
    return rc || !plan->draft_layers ? rc : lower_drafts(&source, programs, err);
}

int engine_lower(struct engine *engine, uint32_t threads, struct helm_err *err)
{
    engine->head = engine->plan.head == engine->base.self;
    int rc = lower_programs(engine, threads, LINEAR_EXACT, err);
    if (!rc && kernel_set_has_int8(&engine->kernels, engine->weights.formats))
        rc = lower_programs(engine, threads, LINEAR_INT8, err);
    return rc;
}

enum linear_inputs engine_use(struct engine *engine, enum linear_inputs inputs)
{
    return engine->inputs = engine->programs[inputs].plan ? inputs : LINEAR_EXACT;
}

/* No larger than the plan can ask of this worker: where the GPU computes long prompts, the CPU's buffers are
 * those of short steps. */
static int create_activations(struct engine *engine, struct helm_err *err)
{
    const struct arena_header *h = arena_header_of(engine->base.arena);
    const struct plan *plan = &engine->plan;
    bool embed = plan->embed == engine->base.self, head = plan->head == engine->base.self;
    const struct cpu_activations_case size = {.config = &engine->model.config,
                                              .unit_tokens = plan_most_tokens(plan, engine->base.self),
                                              .end_tokens = embed || head ? h->step_tokens : 0,
                                              .sampled_rows = head ? h->samples : 0};
    const struct cpu_room room = cpu_room_of(&size, placements_formats(&engine->weights.host) |
                                                        placements_formats(&engine->weights.disk));
    engine->run.thread_bytes = room.thread;
    return activations_create(&size, engine->weights.formats, &engine->kernels, room.activations,
                              arena_region_ptr(engine->base.arena, ARENA_REGION_LOGITS), &engine->act, err);
}

struct touch_job {
    const struct engine_touched *of;
    _Atomic uint64_t huge, small;
};

static void touch_piece(void *ctx, uint32_t chunk, uint32_t thread)
{
    (void)thread;
    struct touch_job *job = ctx;
    uint64_t at = chunk * TOUCH_BYTES, left = job->of->bytes - at, huge = 0, small = 0;
    arena_populate(job->of->arena, job->of->offset + at, left < TOUCH_BYTES ? left : TOUCH_BYTES, &huge,
                   &small);
    atomic_fetch_add(&job->huge, huge);
    atomic_fetch_add(&job->small, small);
}

void engine_touch(struct pool *pool, struct engine_touched *touched)
{
    struct touch_job job = {.of = touched};
    pool_run_region(pool, touch_piece, &job, (uint32_t)((touched->bytes + TOUCH_BYTES - 1) / TOUCH_BYTES));
    touched->huge_bytes = job.huge;
    touched->small_bytes = job.small;
}

/* ---- the KV pool's memory after the first answers ---- */

#define KV_PAGES_FIRST (256 * MIB)
#define KV_PAGES_PIECE ARENA_HUGE_PAGE /* between looks at `stop` */

/* How much of a pool of `bytes` is populated at load; a multiple of a huge page, or all of it. */
static uint64_t kv_pages_first_bytes(uint64_t bytes)
{
    return bytes < KV_PAGES_FIRST ? bytes : KV_PAGES_FIRST;
}

static void *fill(void *arg)
{
    struct kv_filler *filler = arg;
    uint64_t huge = 0, small = 0, start_us = units_now_us();
    char text[UNITS_TEXT], small_text[UNITS_TEXT];
    cpu_run_anywhere();
    setpriority(PRIO_PROCESS, 0, 19);
    for (uint64_t at = 0; at < filler->bytes; at += KV_PAGES_PIECE) {
        if (atomic_load_explicit(&filler->stop, memory_order_relaxed)) return NULL;
        uint64_t left = filler->bytes - at;
        arena_populate(filler->arena, filler->offset + at, left < KV_PAGES_PIECE ? left : KV_PAGES_PIECE,
                       &huge, &small);
    }
    log_debug("KV pool: the other %s are there, %s of them on small pages, %.1f s after READY",
              units_format_size(filler->bytes, text), units_format_size(small, small_text),
              (double)(units_now_us() - start_us) * 1e-6);
    if (small > ARENA_HUGE_PAGE)
        log_warn("KV pool: small pages: %s of the arena", units_format_size(small, small_text));
    return NULL;
}

/* Starts populating [offset, offset + bytes) of the arena; nothing happens with 0 bytes. */
static int kv_filler_start(struct kv_filler *filler, const struct arena *arena, uint64_t offset,
                           uint64_t bytes, struct helm_err *err)
{
    if (!bytes) return 0;
    filler->arena = arena;
    filler->offset = offset;
    filler->bytes = bytes;
    int rc = pin_create_thread(&filler->thread, -1, fill, filler, err);
    if (rc) return rc;
    pthread_setname_np(filler->thread, "kv pages");
    filler->started = true;
    return 0;
}

/* Ends it, done or not. A filler that was never started is allowed. */
static void kv_filler_stop(struct kv_filler *filler)
{
    if (!filler->started) return;
    atomic_store(&filler->stop, true);
    pthread_join(filler->thread, NULL);
    filler->started = false;
}

/* Bytes of the cache that are there before the first token needs them; kv_filler does the rest. All of it
 * where the GPU reads or writes it: the driver pins the pages as it finds them once the weights' bell has
 * rung, and what was not there would be on small pages ever after. */
static uint64_t kv_first_bytes(const struct engine *engine)
{
    uint64_t bytes = arena_header_of(engine->base.arena)->region[ARENA_REGION_KV].bytes;
    const bool shared = plan_borrows_kv(&engine->plan) || plan_kv_tiered(&engine->plan);
    return shared ? bytes : kv_pages_first_bytes(bytes);
}

static int populate_kv(struct engine *engine, struct helm_err *err)
{
    const struct arena_region *r = &arena_header_of(engine->base.arena)->region[ARENA_REGION_KV];
    if (!r->bytes) return 0;
    struct engine_touched touched = {.arena = engine->base.arena,
                                     .offset = r->offset,
                                     .bytes = kv_first_bytes(engine)};
    engine_touch(engine->pool, &touched);
    engine->base.report.huge_bytes += touched.huge_bytes;
    engine->base.report.small_bytes += touched.small_bytes;
    return verify_node(engine, ARENA_REGION_KV, touched.bytes, err);
}

static void log_packed(const struct weights *w)
{
    char from[UNITS_TEXT], to[UNITS_TEXT];
    if (w->packed_from)
        log_info("%s of weights in host memory are packed as %s, %.1f of 16 bits",
                 units_format_size(w->packed_from, from), units_format_size(w->packed_to, to),
                 16.0 * (double)w->packed_to / (double)w->packed_from);
}

static int load_weights(struct engine *engine, const struct engine_options *o, struct helm_err *err)
{
    struct engine_report *report = &engine->base.report;
    struct doorbell *bell = &arena_control_of(engine->base.arena)->weights_bell;
    bool ready = o->weights_ready && o->weights_ready == engine->weights.digest;
    atomic_store(&engine->base.bytes_total, ready ? 0 : engine->weights.matrix_bytes);
    if (!ready) doorbell_ring(bell, 0); /* whatever another worker left here is about to change */
    const struct weights_loading loading = {.arena = engine->base.arena,
                                            .pool = engine->pool,
                                            .ready = ready,
                                            .blank = o->blank,
                                            .bytes_done = &engine->base.bytes_done,
                                            .cancel = &engine->base.cancel};
    int rc = weights_load(&engine->weights, &loading, err);
    if (rc) return rc;
    report->loaded = !ready;
    report->weight_bytes = engine->weights.matrix_bytes;
    report->weights_digest = engine->weights.digest;
    report->vectors_content = engine->weights.vectors_content;
    report->matrices_content = engine->weights.matrices_content;
    report->huge_bytes += engine->weights.huge_bytes;
    report->small_bytes += engine->weights.small_bytes;
    log_packed(&engine->weights);
    rc = verify_node(engine, ARENA_REGION_WEIGHTS, engine->weights.host.region_bytes, err);
    if (!rc) doorbell_ring(bell, 1); /* bytes and pages do not move any more */
    return rc;
}

static int open_disk(struct engine *engine, struct helm_err *err)
{
    char reduced[DISK_REDUCED_TEXT];
    if (!plan_disk_units(&engine->plan)) return 0;
    int rc = disk_open(&engine->model, &engine->plan, engine->base.arena, engine->pool, &engine->disk,
                       reduced, err);
    if (rc) return rc;
    if (*reduced) engine_reduced(&engine->base.report, "%s", reduced);
    engine->base.report.vectors_content += disk_content(engine->disk);
    weights_read_from(&engine->weights, engine->disk);
    return 0;
}

#define PROGRAMS                                                                                             \
    (PLAN_PHASES_MAX * (OP_TIER_COUNT + 1) + OP_TIER_FEW + 1 + 3 + OP_TIER_COUNT + OP_TIER_FEW + 1 + 2)

static uint32_t list_programs(struct step_programs *programs, struct program *list[PROGRAMS])
{
    uint32_t count = 0;
    for (uint32_t p = 0; p < PLAN_PHASES_MAX; p++)
        for (int t = 0; t < OP_TIER_COUNT; t++) list[count++] = &programs->tier[p][t];
    for (int t = 0; t <= OP_TIER_FEW; t++) list[count++] = &programs->assisted[t];
    for (uint32_t p = 0; p < PLAN_PHASES_MAX; p++) list[count++] = &programs->apart[p];
    list[count++] = &programs->head_one;
    list[count++] = &programs->head_many;
    list[count++] = &programs->head_apart;
    for (int t = 0; t < OP_TIER_COUNT; t++) list[count++] = &programs->drafts_first[t];
    for (int t = 0; t <= OP_TIER_FEW; t++) list[count++] = &programs->drafts_next[t];
    list[count++] = &programs->drafts_one;
    list[count++] = &programs->drafts_many;
    return count;
}

static int create_run(struct engine *engine, uint32_t spin_us, uint32_t peer_wait_ms,
                      struct step_programs *others, struct helm_err *err)
{
    const struct arena *arena = engine->base.arena;
    struct program *programs[(LINEAR_INPUTS + 1) * PROGRAMS];
    uint32_t count = 0;
    for (int i = 0; i < LINEAR_INPUTS; i++) count += list_programs(&engine->programs[i], programs + count);
    if (others) count += list_programs(others, programs + count);
    struct run *run = &engine->run;
    run->arena = arena;
    run->config = &engine->model.config;
    run->weights = &engine->weights;
    run->kernels = &engine->kernels;
    run->act = &engine->act;
    run->pool = engine->pool;
    run->states = &engine->states;
    run->disk = engine->disk;
    run->invariant = engine->plan.invariant;
    run->unit_tokens = plan_most_tokens(&engine->plan, engine->base.self);
    run->spin_us = spin_us;
    run->peer_wait_ms = peer_wait_ms;
    run->cancel = &engine->base.cancel;
    run->kv = arena_header_of(arena)->kv;
    run->kv_pool = arena_region_ptr(arena, ARENA_REGION_KV);
    run->window_kv = arena_window_layout(arena);
    run->window_pool = arena_window_pool(arena);
    return execute_create(run, (const struct program *const *)programs, count, err);
}

static int create_first_run(struct engine *engine, const struct engine_options *o, struct helm_err *err)
{
    /* With many threads, one that polls for the other worker's hand-over costs the others nothing. */
    uint32_t spin_us = engine->base.report.threads >= LANE_SPIN_THREADS ? LANE_SPIN_US : o->spin_us;
    uint32_t peer_wait_ms = o->peer_wait_ms ? o->peer_wait_ms : ENGINE_PEER_WAIT_MS;
    return create_run(engine, spin_us, peer_wait_ms, NULL, err);
}

int engine_prepare(struct engine *engine, struct step_programs *others, struct helm_err *err)
{
    const uint32_t spin_us = engine->run.spin_us, peer_wait_ms = engine->run.peer_wait_ms;
    const struct run_reads reads = engine->run.reads;
    execute_destroy(&engine->run);
    int rc = create_run(engine, spin_us, peer_wait_ms, others, err);
    if (!rc) engine->run.reads = reads;
    return rc;
}

static void choose_read_ahead(struct engine *engine)
{
    struct read_ahead *found = &engine->read_ahead;
    char near_rate[UNITS_TEXT], far_rate[UNITS_TEXT];
    read_ahead_choose(&engine->run,
                      &engine->programs[LINEAR_EXACT].tier[plan_phase_for(&engine->plan, 1)][OP_TIER_ONE],
                      &engine->programs[LINEAR_EXACT].head_one, READ_AHEAD_LEAST, found);
    if (found->near_rate <= 0) return;
    log_info(
        "one token's weights are fetched into the L1%s: %s/s into the L1 alone, %s/s into the L2 as well",
        engine->run.reads.gemv.far ? " and the L2" : " alone",
        units_format_size((uint64_t)found->near_rate, near_rate),
        units_format_size((uint64_t)found->far_rate, far_rate));
}

/* The report that helmd gets and logs. */
static void fill_report(struct engine *engine, const char *kernels, uint64_t start_us)
{
    struct engine_report *report = &engine->base.report;
    char text[UNITS_TEXT], mask[CPU_MASK_TEXT];
    kernel_set_text(&engine->kernels, engine->inputs, engine->weights.formats, report->kernels,
                    sizeof report->kernels);
    if (*cpu_mask_text(mask, sizeof mask)) engine_reduced(report, "%s", mask);
    if (kernels && *kernels) engine_reduced(report, "kernels: `%.60s` by configuration", kernels);
    const uint64_t all_bytes = report->huge_bytes + report->small_bytes;
    if (report->small_bytes >= SMALL_LEAST && report->small_bytes >= all_bytes / SMALL_PART)
        engine_reduced(report, "small pages: %s of the arena", units_format_size(report->small_bytes, text));
    report->load_seconds = (double)(units_now_us() - start_us) * 1e-6;
}

int engine_load(struct worker_engine *base, const struct arena *arena, const struct engine_options *o,
                struct helm_err *err)
{
    struct engine *engine = (struct engine *)base;
    uint64_t start_us = units_now_us();
    const struct arena_header *h = arena_header_of(arena);
    struct engine_report *report = &base->report;
    base->ops = &cpu_engine_ops;
    base->arena = arena;
    int rc = engine_take_self(base, o, err);
    if (!rc) rc = engine_take_model(o, &engine->model, err);
    if (!rc) rc = engine_check_arena(arena, o->plan, &engine->model.config, err);
    if (!rc) rc = plan_copy(o->plan, &engine->plan, err);
    engine->plan.step_tokens = h->step_tokens; /* of the arena, whose steps these are */
    if (!rc) rc = engine_choose_kernels(engine, o->kernels, (enum kv_dtype)h->kv.dtype, err);
    if (!rc) rc = node_choose(o->node, &report->node, err);
    if (!rc) rc = bind_regions(engine, err);
    if (!rc) rc = start_pool(engine, o, err);
    if (!rc) rc = weights_plan(&engine->model, &engine->plan, &engine->weights, err);
    if (!rc) rc = engine_check_kernels(engine, err);
    if (!rc) rc = populate_kv(engine, err);
    if (!rc) rc = load_weights(engine, o, err);
    if (!rc) rc = open_disk(engine, err);
    if (!rc) rc = state_open(arena, &engine->plan, &engine->states, err);
    if (!rc) rc = create_activations(engine, err);
    if (!rc) rc = engine_lower(engine, report->threads, err);
    if (!rc) rc = create_first_run(engine, o, err);
    if (rc) goto out;
    (void)engine_use(engine, engine->plan.inputs[engine->base.self]);
    choose_read_ahead(engine);
    rc = engine->disk ? disk_start(engine->disk, err) : 0;
    if (rc) goto out;
    fill_report(engine, o->kernels, start_us);

    const struct arena_region *kv = &h->region[ARENA_REGION_KV];
    uint64_t first = kv_first_bytes(engine);
    rc = kv_filler_start(&engine->kv_filler, arena, kv->offset + first, kv->bytes - first, err);
out:
    if (rc) engine_free(base);
    return rc;
}

int engine_step(struct worker_engine *base, uint32_t serial, struct helm_err *err)
{
    struct engine *engine = (struct engine *)base;
    struct arena_control *control = arena_control_of(base->arena);
    const struct step *step = engine_step_of(base->arena, serial, err);
    if (!step) return HELM_E_PEER;
    struct step_result *result =
        engine->head ? &control->result[serial % ARENA_STEP_RING] : &engine->own_result;
    const struct engine_patience patience = {.spin_us = engine->run.spin_us,
                                             .wait_ms = engine->run.peer_wait_ms};
    uint64_t waited_ns = 0;
    int rc = 0;
    if (!engine->head && engine->programs[LINEAR_EXACT].reads_tokens)
        rc = engine_wait_drawn(base, step, &patience, &waited_ns, err);
    const enum linear_inputs inputs = step->flags & STEP_EXACT ? LINEAR_EXACT : engine->inputs;
    if (!rc) rc = step_run(&engine->run, &engine->programs[inputs], step, result, err);
    if (rc) return rc;
    if (engine->head) doorbell_ring(&control->drawn_bell, serial);
    base->times = (struct arena_times){.busy_ns = result->compute_ns,
                                       .wait_ns = waited_ns + engine->run.wait_ns,
                                       .weight_bytes = result->weight_bytes};
    return 0;
}

void engine_free(struct worker_engine *base)
{
    struct engine *engine = (struct engine *)base;
    kv_filler_stop(&engine->kv_filler);
    pool_destroy(engine->pool);
    engine->pool = NULL;
    execute_destroy(&engine->run);
    for (int i = 0; i < LINEAR_INPUTS; i++) {
        struct program *programs[PROGRAMS];
        const uint32_t count = list_programs(&engine->programs[i], programs);
        for (uint32_t p = 0; p < count; p++) program_free(programs[p]);
    }
    activations_free(&engine->act);
    state_close(&engine->states);
    disk_close(engine->disk);
    engine->disk = NULL;
    weights_free(&engine->weights);
    plan_free(&engine->plan);
    model_free(&engine->model);
}

const struct worker_engine_ops cpu_engine_ops = {.kind = "cpu",
                                                 .bytes = sizeof(struct engine),
                                                 .load = engine_load,
                                                 .step = engine_step,
                                                 .free = engine_free,
                                                 .print_plan = print_plan};
