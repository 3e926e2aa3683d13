/* Assembly of the CPU engine. See engine.h. */
#include "worker-cpu/engine.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "common/cpu.h"
#include "common/units.h"
#include "worker-cpu/pin.h"

HELM_PRINTF(2, 3) static void add_reduced(struct engine *engine, const char *fmt, ...)
{
    struct engine_report *r = &engine->report;
    if (r->reduced_count == ENGINE_REDUCED_MAX) return;
    va_list args;
    va_start(args, fmt);
    vsnprintf(r->reduced[r->reduced_count++], ENGINE_REDUCED_TEXT, fmt, args);
    va_end(args);
}

/* What the arena was laid out for must be what the plan and the checkpoint say. */
static int check_arena(const struct engine *engine, const struct plan *plan, struct helm_err *err)
{
    const struct arena_header *h = arena_header_of(engine->arena);
    const struct model_config *c = &engine->model.config;
    uint32_t layers = 0;
    if (plan->layers != c->layers)
        return helm_fail(err, HELM_E_MISMATCH, "the plan has %u layers, the model %u", plan->layers,
                         c->layers);
    for (uint32_t s = 0; s < plan->stage_count; s++) {
        const struct plan_stage *stage = &plan->stages[s];
        if (stage->home != PLAN_HOME_CPU)
            return helm_fail(
                err, HELM_E_UNSUPPORTED,
                "plan: stage %u (layers %u to %u) has home `%s`; this worker computes `cpu` only", s,
                stage->first, stage->last, plan_home_name(stage->home));
        layers += stage->last - stage->first + 1;
    }
    const struct {
        const char *what;
        uint64_t arena, expected;
    } fields[] = {{"hidden", h->hidden, c->hidden},
                  {"vocab", h->vocab, c->vocab},
                  {"kv.layers", h->kv.layers, layers},
                  {"kv.kv_heads", h->kv.kv_heads, c->kv_heads},
                  {"kv.head_dim", h->kv.head_dim, c->head_dim}};
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
        if (fields[i].arena != fields[i].expected)
            return helm_fail(err, HELM_E_MISMATCH, "the arena's %s is %llu, the model's %llu", fields[i].what,
                             (unsigned long long)fields[i].arena, (unsigned long long)fields[i].expected);
    return 0;
}

static int choose_kernels(struct engine *engine, const char *name, enum dtype kv_dtype, struct helm_err *err)
{
    struct helm_err amx = {0};
    unsigned features = cpu_features();
    if (features & CPU_AMX_BF16 && cpu_enable_amx(&amx)) {
        features &= ~(unsigned)CPU_AMX_BF16;
        add_reduced(engine, "no AMX: %.150s", amx.text);
    }
    return kernel_set_choose(features, name, kv_dtype, &engine->kernels, err);
}

static int start_pool(struct engine *engine, const struct engine_options *o, struct helm_err *err)
{
    struct cpu_set *set = malloc(sizeof *set);
    if (!set) return helm_fail(err, HELM_E_NOMEM, "no memory for the list of CPUs");
    int rc = cpu_usable(engine->report.node, set, err);
    if (rc) goto out;
    uint32_t threads = o->threads ? o->threads : (uint32_t)set->suggested;
    if (o->pin && threads > (uint32_t)set->count) {
        rc =
            helm_fail(err, HELM_E_LIMIT, "%u compute threads: only %d CPUs may be used", threads, set->count);
        goto out;
    }
    if (threads > (uint32_t)set->suggested)
        add_reduced(engine, "%u threads on %d cores", threads, set->suggested);
    engine->report.threads = threads;
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
    const struct arena_header *h = arena_header_of(engine->arena);
    if (engine->report.node < 0) return 0;
    pin_prefer_node(engine->report.node);
    for (size_t i = 0; i < sizeof mine / sizeof *mine; i++) {
        const struct arena_region *r = &h->region[mine[i]];
        if (!r->bytes) continue;
        int rc = arena_bind(engine->arena, r->offset, r->bytes, engine->report.node, err);
        if (rc) return rc;
    }
    return 0;
}

/* Looks where pages of a region really are: the first, the last and 62 between. */
static int verify_node(const struct engine *engine, enum arena_region_id id, uint64_t bytes,
                       struct helm_err *err)
{
    const struct arena_region *r = &arena_header_of(engine->arena)->region[id];
    if (engine->report.node < 0 || !bytes) return 0;
    for (uint32_t i = 0; i < 64; i++) {
        int node = -1;
        uint64_t at = (bytes - 1) / 63 * i;
        int rc = arena_node_of(engine->arena, r->offset + at, &node, err);
        if (rc) return rc;
        if (node != engine->report.node)
            return helm_fail(
                err, HELM_E_PERMISSION,
                "arena memory at byte %llu lies on NUMA node %d, not on node %d where it was bound",
                (unsigned long long)(r->offset + at), node, engine->report.node);
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
                                          .threads = threads};
    for (int t = 0; t < PROGRAM_TIER_COUNT; t++) {
        int rc = program_lower(&source, (enum program_tier)t, &engine->programs.tier[t], err);
        if (rc) return rc;
    }
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

/* The cache's pages, before the first token needs them. */
static int populate_kv(struct engine *engine, struct helm_err *err)
{
    const struct arena_region *r = &arena_header_of(engine->arena)->region[ARENA_REGION_KV];
    if (!r->bytes) return 0;
    if (r->bytes / (16 * MIB) >= POOL_CHUNKS_MAX)
        return helm_fail(err, HELM_E_LIMIT, "the KV pool has %llu bytes, more than can be populated",
                         (unsigned long long)r->bytes);
    struct touch_job job = {.arena = engine->arena, .offset = r->offset, .bytes = r->bytes};
    pool_run(engine->pool, touch_next, &job);
    engine->report.huge_bytes += job.huge;
    engine->report.small_bytes += job.small;
    return verify_node(engine, ARENA_REGION_KV, r->bytes, err);
}

static int load_weights(struct engine *engine, const struct engine_options *o, struct helm_err *err)
{
    struct engine_report *report = &engine->report;
    bool ready = o->weights_ready && o->weights_ready == engine->weights.digest;
    atomic_store(&engine->bytes_total, ready ? 0 : engine->weights.matrix_bytes);
    int rc = weights_load(&engine->weights, engine->arena, &engine->kernels, engine->pool, ready,
                          &engine->bytes_done, &engine->cancel, err);
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
    struct engine_report *report = &engine->report;
    char text[UNITS_TEXT];
    engine->arena = arena;
    int rc = model_read(o->folder, &engine->model, err);
    if (!rc) rc = check_arena(engine, o->plan, err);
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
    run->kv = h->kv;
    run->kv_pool = arena_region_ptr(arena, ARENA_REGION_KV);
    rc = execute_create(run, programs, sizeof programs / sizeof *programs, err);
    if (rc) goto out;
    kernel_set_text(&engine->kernels, engine->weights.dtypes, report->kernels, sizeof report->kernels);
    if (o->kernels && *o->kernels) add_reduced(engine, "kernels: `%.60s` by configuration", o->kernels);
    if (report->small_bytes)
        add_reduced(engine, "small pages: %s of the arena", units_format_size(report->small_bytes, text));
    report->load_seconds = (double)(units_now_us() - start_us) * 1e-6;
out:
    if (rc) engine_free(engine);
    return rc;
}

int engine_step(struct engine *engine, uint32_t serial, struct helm_err *err)
{
    struct arena_control *control = arena_control_of(engine->arena);
    const struct step *step = &control->step[serial % ARENA_STEP_RING];
    if (step->serial != serial)
        return helm_fail(err, HELM_E_PEER, "step ring: slot %u holds step %u, not %u",
                         serial % ARENA_STEP_RING, step->serial, serial);
    return step_run(&engine->run, &engine->programs, step, &control->result[serial % ARENA_STEP_RING], err);
}

void engine_free(struct engine *engine)
{
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
