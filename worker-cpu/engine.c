/* Assembly of the CPU engine. See engine.h. */
#include "worker-cpu/engine.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "common/cpu.h"
#include "common/units.h"
#include "worker-cpu/pin.h"

#define LANE_SPIN_US      2000
#define LANE_SPIN_THREADS 4

static int choose_kernels(struct engine *engine, const char *name, enum dtype kv_dtype, struct helm_err *err)
{
    struct helm_err amx = {0};
    unsigned features = cpu_features();
    if (features & CPU_AMX_BF16 && cpu_enable_amx(&amx)) {
        features &= ~(unsigned)CPU_AMX_BF16;
        engine_reduced(&engine->base.report, "no AMX: %.150s", amx.text);
    }
    return kernel_set_choose(features, name, kv_dtype, &engine->kernels, err);
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
    static const enum arena_region_id mine[] = {ARENA_REGION_KV, ARENA_REGION_WEIGHTS};
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

/* Looks where pages of a region really are: the first, the last and 62 between. */
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

static int lower_all(struct engine *engine, const struct plan *plan, uint32_t threads, struct helm_err *err)
{
    const struct program_source source = {.model = &engine->model,
                                          .plan = plan,
                                          .weights = &engine->weights,
                                          .kernels = &engine->kernels,
                                          .act = &engine->act,
                                          .threads = threads,
                                          .arena = engine->base.arena};
    for (int t = 0; t < PROGRAM_TIER_COUNT; t++) {
        int rc = program_lower(&source, (enum program_tier)t, &engine->programs.tier[t], err);
        if (rc) return rc;
    }
    engine->head = plan->head == PLAN_HOME_CPU;
    if (!engine->head) return 0;
    int rc = program_lower_head(&source, false, &engine->programs.head_one, err);
    if (rc) return rc;
    return program_lower_head(&source, true, &engine->programs.head_many, err);
}

struct touch_job {
    const struct arena *arena;
    uint64_t offset, bytes;
    _Atomic uint64_t huge, small;
    bool handed_out;
};

static void touch_piece(void *ctx, uint32_t chunk, uint32_t thread)
{
    (void)thread;
    struct touch_job *job = ctx;
    uint64_t at = (uint64_t)chunk * 16 * MIB, huge = 0, small = 0;
    uint64_t bytes = job->bytes - at < 16 * MIB ? job->bytes - at : 16 * MIB;
    arena_populate(job->arena, job->offset + at, bytes, &huge, &small);
    atomic_fetch_add(&job->huge, huge);
    atomic_fetch_add(&job->small, small);
}

static bool touch_next(void *ctx, uint32_t thread, struct pool_job *out)
{
    (void)thread;
    struct touch_job *job = ctx;
    if (job->handed_out) return false;
    job->handed_out = true;
    *out =
        (struct pool_job){.run = touch_piece, .chunks = (uint32_t)((job->bytes + 16 * MIB - 1) / (16 * MIB))};
    return true;
}

/* The cache's first pages, before the first token needs them; kv_filler does the rest. */
static int populate_kv(struct engine *engine, struct helm_err *err)
{
    const struct arena_region *r = &arena_header_of(engine->base.arena)->region[ARENA_REGION_KV];
    if (!r->bytes) return 0;
    struct touch_job job = {.arena = engine->base.arena,
                            .offset = r->offset,
                            .bytes = kv_pages_first_bytes(r->bytes)};
    pool_run(engine->pool, touch_next, &job);
    engine->base.report.huge_bytes += job.huge;
    engine->base.report.small_bytes += job.small;
    return verify_node(engine, ARENA_REGION_KV, job.bytes, err);
}

static int load_weights(struct engine *engine, const struct engine_options *o, struct helm_err *err)
{
    struct engine_report *report = &engine->base.report;
    bool ready = o->weights_ready && o->weights_ready == engine->weights.digest;
    atomic_store(&engine->base.bytes_total, ready ? 0 : engine->weights.matrix_bytes);
    int rc = weights_load(&engine->weights, engine->base.arena, &engine->kernels, engine->pool, ready,
                          &engine->base.bytes_done, &engine->base.cancel, err);
    if (rc) return rc;
    report->loaded = !ready;
    report->weight_bytes = engine->weights.matrix_bytes;
    report->weights_digest = engine->weights.digest;
    report->huge_bytes += engine->weights.huge_bytes;
    report->small_bytes += engine->weights.small_bytes;
    return verify_node(engine, ARENA_REGION_WEIGHTS, engine->weights.region_bytes, err);
}

int engine_load(struct engine *engine, const struct arena *arena, const struct engine_options *o,
                struct helm_err *err)
{
    uint64_t start_us = units_now_us();
    const struct arena_header *h = arena_header_of(arena);
    struct engine_report *report = &engine->base.report;
    char text[UNITS_TEXT];
    engine->base.ops = &cpu_engine_ops;
    engine->base.arena = arena;
    int rc = model_read(o->folder, &engine->model, err);
    if (!rc) rc = engine_check_arena(arena, o->plan, &engine->model.config, err);
    if (!rc) rc = choose_kernels(engine, o->kernels, (enum dtype)h->kv.dtype, err);
    if (!rc) rc = pin_choose_node(o->node, &report->node, err);
    if (!rc) rc = bind_regions(engine, err);
    if (!rc) rc = start_pool(engine, o, err);
    if (!rc) rc = weights_plan(&engine->model, o->plan, &engine->weights, err);
    if (!rc) rc = populate_kv(engine, err);
    if (!rc) rc = load_weights(engine, o, err);
    if (!rc)
        rc = activations_create(&engine->model.config, &engine->kernels, h->step_tokens,
                                arena_region_ptr(arena, ARENA_REGION_LOGITS), &engine->act, err);
    if (!rc) rc = lower_all(engine, o->plan, report->threads, err);
    if (rc) goto out;

    const struct program *programs[] = {&engine->programs.tier[0], &engine->programs.tier[1],
                                        &engine->programs.tier[2], &engine->programs.head_one,
                                        &engine->programs.head_many};
    struct run *run = &engine->run;
    run->arena = arena;
    run->config = &engine->model.config;
    run->weights = &engine->weights;
    run->kernels = &engine->kernels;
    run->act = &engine->act;
    run->pool = engine->pool;
    /* One thread that looks for the other worker's hand-over takes nobody's place on a machine of many. */
    run->spin_us = report->threads >= LANE_SPIN_THREADS ? LANE_SPIN_US : o->spin_us;
    run->peer_wait_ms = o->peer_wait_ms ? o->peer_wait_ms : ENGINE_PEER_WAIT_MS;
    run->kv = h->kv;
    run->kv_pool = arena_region_ptr(arena, ARENA_REGION_KV);
    rc = execute_create(run, programs, sizeof programs / sizeof *programs, err);
    if (rc) goto out;
    kernel_set_text(&engine->kernels, engine->weights.dtypes, report->kernels, sizeof report->kernels);
    if (o->kernels && *o->kernels)
        engine_reduced(&engine->base.report, "kernels: `%.60s` by configuration", o->kernels);
    if (report->small_bytes)
        engine_reduced(&engine->base.report, "small pages: %s of the arena",
                       units_format_size(report->small_bytes, text));
    report->load_seconds = (double)(units_now_us() - start_us) * 1e-6;
    const struct arena_region *kv = &h->region[ARENA_REGION_KV];
    uint64_t first = kv_pages_first_bytes(kv->bytes);
    rc = kv_filler_start(&engine->kv_filler, arena, kv->offset + first, kv->bytes - first, err);
out:
    if (rc) engine_free(engine);
    return rc;
}

int engine_step(struct engine *engine, uint32_t serial, struct helm_err *err)
{
    struct arena_control *control = arena_control_of(engine->base.arena);
    const struct step *step = engine_step_of(engine->base.arena, serial, err);
    if (!step) return HELM_E_PEER;
    struct step_result *result =
        engine->head ? &control->result[serial % ARENA_STEP_RING] : &engine->own_result;
    return step_run(&engine->run, &engine->programs, step, result, err);
}

void engine_free(struct engine *engine)
{
    kv_filler_stop(&engine->kv_filler);
    pool_destroy(engine->pool);
    engine->pool = NULL;
    execute_destroy(&engine->run);
    for (int t = 0; t < PROGRAM_TIER_COUNT; t++) program_free(&engine->programs.tier[t]);
    program_free(&engine->programs.head_one);
    program_free(&engine->programs.head_many);
    activations_free(&engine->act);
    weights_free(&engine->weights);
    model_free(&engine->model);
}

int engine_print_programs(const char *folder, uint32_t threads, const char *kernels, FILE *out,
                          struct helm_err *err)
{
    static const char *const title[PROGRAM_TIER_COUNT] = {"1 token", "2 to 16 tokens", "a chunk of tokens"};
    struct engine *engine = calloc(1, sizeof *engine);
    if (!engine) return helm_fail(err, HELM_E_NOMEM, "no memory");
    struct plan plan = {0};
    struct plan_stage stage = {.home = PLAN_HOME_CPU};
    float logits = 0;
    void *space = MAP_FAILED;
    int rc = model_read(folder, &engine->model, err);
    if (rc) goto out;
    stage.last = engine->model.config.layers - 1;
    plan.layers = engine->model.config.layers;
    plan.stages = &stage;
    plan.stage_count = 1;
    rc = choose_kernels(engine, kernels, DTYPE_F16, err);
    if (!rc) rc = weights_plan(&engine->model, &plan, &engine->weights, err);
    if (rc) goto out;
    /* Address space only: lowering stores addresses and reads no weight. */
    space = mmap(NULL, (size_t)engine->weights.region_bytes + 1, PROT_NONE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (space == MAP_FAILED) {
        rc = helm_fail_errno(err, "cannot reserve address space");
        goto out;
    }
    rc = weights_place(&engine->weights, space, &engine->kernels, err);
    if (!rc) rc = activations_create(&engine->model.config, &engine->kernels, 1, &logits, &engine->act, err);
    if (!rc) rc = lower_all(engine, &plan, threads, err);
    if (rc) goto out;
    for (int t = 0; t < PROGRAM_TIER_COUNT; t++) program_print(&engine->programs.tier[t], title[t], out);
    program_print(&engine->programs.head_one, "head, 1 sampled row", out);
    program_print(&engine->programs.head_many, "head, several sampled rows", out);
out:
    if (space != MAP_FAILED) munmap(space, (size_t)engine->weights.region_bytes + 1);
    engine_free(engine);
    free(engine);
    return rc;
}

/* ---- as a worker's engine ---- */

static int cpu_load(struct worker_engine *base, const struct arena *arena, const struct engine_options *o,
                    struct helm_err *err)
{
    return engine_load((struct engine *)base, arena, o, err);
}

static int cpu_step(struct worker_engine *base, uint32_t serial, struct helm_err *err)
{
    return engine_step((struct engine *)base, serial, err);
}

static void cpu_free(struct worker_engine *base)
{
    engine_free((struct engine *)base);
}

const struct worker_engine_ops cpu_engine_ops = {.kind = "cpu",
                                                 .bytes = sizeof(struct engine),
                                                 .load = cpu_load,
                                                 .step = cpu_step,
                                                 .free = cpu_free,
                                                 .print_programs = engine_print_programs};
