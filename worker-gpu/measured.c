/* A model's own programs on the device: the worker's engine over a few of its layers, as whole steps. See
 * measure.h, which has the protocol; docs/planner-programs.md has the method. Called by measure.c; owns the
 * engine between "programs" and "close".
 *
 * Half layers cannot be timed one by one: one token's are links of one kernel, a few tokens' are nodes of one
 * graph. So a step is timed whole, then without each kind of half layer, then without any, and helm-profile
 * takes differences. Each such program is lowered, chained and captured as the real one, and runs over and
 * over, one launch after another. */
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/json.h"
#include "common/base/random.h"
#include "common/base/units.h"
#include "common/model/mixture.h"
#include "common/model/sample.h"
#include "common/plan/placement.h"
#include "common/plan/schedule.h"
#include "common/plan/state.h"
#include "common/shared/doorbell.h"
#include "worker-gpu/engine.h"
#include "worker-gpu/measure/private.h"

#define REPEATS_MAX   64    /* of a program, one after another: a queue has room for them */
#define FEW_S         0.002 /* a sample of a captured step takes about so long, */
#define CHUNK_S       0.02  /* one of a chunk: a device at work for longer is slower */
#define SAMPLES_LEAST 3
#define SAMPLES_CHUNK 2
#define SAMPLES_MOST  9
#define BESIDE_MORE   1.3 /* times the copies that a sample is expected to last for */
#define BESIDE_BYTES  2e9
#define KINDS_MAX     40
#define COMMAND_MAX   (256 * 1024)

struct measure_programs {
    struct gpu_engine *engine;
    struct arena arena;
    uint32_t *kind; /* [units + 1]: of half layers, and of the head */
    uint32_t units, kinds;
    bool *left_out; /* [units + 1] */
    uint32_t serial;
    uint64_t random;
};

/* The command's JSON. */
struct request {
    const char *path, *weights, *kv_dtype;
    uint32_t layer[MODEL_LAYERS_MAX], layers;
    uint64_t context, step_tokens, positions;
    bool invariant;
};

static int parse_numbers(const json_t *list, uint32_t most, uint64_t limit, uint32_t *out, uint32_t *count,
                         struct helm_err *err)
{
    const json_t *one;
    size_t i;
    if (!json_is_array(list) || json_array_size(list) > most)
        return helm_fail(err, HELM_E_USAGE, "programs: no list of up to %u numbers", most);
    json_array_foreach(list, i, one)
    {
        const json_int_t value = json_integer_value(one);
        if (!json_is_integer(one) || value < 0 || (uint64_t)value >= limit)
            return helm_fail(err, HELM_E_USAGE, "programs: a number is none below %llu",
                             (unsigned long long)limit);
        out[i] = (uint32_t)value;
    }
    *count = (uint32_t)json_array_size(list);
    return 0;
}

static int parse_request(struct measure_programs *p, const json_t *json, struct request *r,
                         struct helm_err *err)
{
    uint32_t kinds = 0;
    int rc = json_get_string(json, "model", true, &r->path, err);
    if (!rc) rc = json_get_string(json, "weights", true, &r->weights, err);
    if (!rc) rc = json_get_string(json, "kv_dtype", true, &r->kv_dtype, err);
    if (!rc) rc = json_get_u64(json, "context", true, 1, 1 << 20, &r->context, err);
    if (!rc) rc = json_get_u64(json, "step_tokens", true, 1, 1 << 16, &r->step_tokens, err);
    if (!rc) rc = json_get_u64(json, "positions", true, 1, 1 << 24, &r->positions, err);
    r->invariant = json_is_true(json_object_get(json, "invariant"));
    if (!rc)
        rc = parse_numbers(json_object_get(json, "layers"), MODEL_LAYERS_MAX, MODEL_LAYERS_MAX, r->layer,
                           &r->layers, err);
    if (rc) return rc;
    p->units = unit_count(r->layers);
    p->kind = calloc(p->units + 1, sizeof *p->kind);
    p->left_out = calloc(p->units + 1, sizeof *p->left_out);
    if (!p->kind || !p->left_out) return helm_fail(err, HELM_E_NOMEM, "no memory for kinds");
    rc = parse_numbers(json_object_get(json, "kinds"), p->units + 1, KINDS_MAX, p->kind, &kinds, err);
    if (!rc && kinds != p->units + 1)
        rc = helm_fail(err, HELM_E_USAGE, "programs: %u kinds of %u half layers and a head", kinds, p->units);
    for (uint32_t u = 0; u < kinds; u++)
        if (p->kind[u] >= p->kinds) p->kinds = p->kind[u] + 1;
    return rc;
}

static int read_model(const struct request *r, struct model *model, struct helm_err *err)
{
    const int rc = mixture_read_headers(r->path, r->weights, model, err);
    return rc ? rc : model_sample(model, r->layer, r->layers, err);
}

/* ---- the engine ---- */

/* All in VRAM. The model is taken. */
static int open_engine(struct measure_programs *p, struct measure *m, const struct request *r,
                       struct model *model, struct helm_err *err)
{
    const enum plan_processor self = plan_home_processor(PLAN_HOME_GPU);
    struct plan plan = {.layers = model->config.layers,
                        .context_tokens = (uint32_t)r->context,
                        .step_tokens = (uint32_t)r->step_tokens,
                        .slots = ENGINE_FEW_TOKENS,
                        .page_tokens = KV_PAGE_TOKENS_DEFAULT,
                        .page_count = (uint32_t)(r->positions / KV_PAGE_TOKENS_DEFAULT) + ENGINE_FEW_TOKENS,
                        .invariant = r->invariant,
                        .embed = self,
                        .head = self};
    const enum kv_dtype kv_dtype = kv_dtype_named(r->kv_dtype);
    if (kv_dtype == KV_DTYPE_COUNT)
        return helm_fail(err, HELM_E_USAGE, "programs: '%.20s' is no type of a cache", r->kv_dtype);
    snprintf(plan.kv_dtype, sizeof plan.kv_dtype, "%s", kv_dtype_name(kv_dtype));
    int rc = plan_make_units(&plan, PLAN_HOME_GPU, err);
    if (!rc) plan_take_states(&plan, model);
    if (!rc) rc = placement_make(model, NULL, &plan, err);
    if (!rc) {
        const struct arena_spec spec = plan_arena_spec(&plan, &model->config);
        rc = arena_create(&spec, &p->arena, err);
    }
    if (!rc) arena_share_pages(&p->arena);
    /* A table that a step reads a row a token from lies in the arena, with nobody to fill it: zeros cost as
     * much. */
    if (!rc && plan.host_table) doorbell_ring(&arena_control_of(&p->arena)->weights_bell, 1);
    if (!rc && !(p->engine = aligned_alloc(64, round_up(gpu_engine_ops.bytes, 64))))
        rc = helm_fail(err, HELM_E_NOMEM, "no memory for an engine");
    if (!rc) {
        const struct engine_options options = {.plan = &plan,
                                               .processor = self,
                                               .node = -1,
                                               .made = model,
                                               .device = m->options->device,
                                               .opened = m->device,
                                               .peer_wait_ms = MEASURE_WAIT_MS};
        memset(p->engine, 0, round_up(gpu_engine_ops.bytes, 64));
        rc = gpu_engine_ops.load(&p->engine->base, &p->arena, &options, err);
        if (rc) free(p->engine), p->engine = NULL; /* it has let go of everything */
    }
    plan_free(&plan);
    return rc;
}

void measure_programs_close(struct measure *m)
{
    struct measure_programs *p = m->programs;
    if (!p) return;
    if (p->engine) gpu_engine_ops.free(&p->engine->base);
    if (p->arena.fd >= 0) arena_close(&p->arena);
    free(p->engine);
    free(p->kind);
    free(p->left_out);
    free(p);
    m->programs = NULL;
}

int measure_programs_open(struct measure *m, const char *text, struct helm_err *err)
{
    struct model model = {0};
    struct request request = {.layers = 0};
    json_t *json = NULL;
    if (m->programs) return helm_fail(err, HELM_E_STATE, "programs of a model are being measured already");
    struct measure_programs *p = calloc(1, sizeof *p);
    if (!p) return helm_fail(err, HELM_E_NOMEM, "no memory to measure programs");
    p->arena.fd = -1;
    p->random = RANDOM_SEED;
    m->programs = p;
    int rc = json_parse_bounded("programs", text, strlen(text), COMMAND_MAX, &json, err);
    if (!rc) rc = parse_request(p, json, &request, err);
    if (!rc) rc = read_model(&request, &model, err);
    if (!rc) rc = measure_take_memory(m, err); /* copies beside a cell */
    if (!rc) rc = open_engine(p, m, &request, &model, err);
    model_free(&model);
    json_decref(json);
    if (rc) measure_programs_close(m);
    return rc;
}

/* ---- steps ---- */

struct cell {
    uint32_t tokens, context;
    double seconds;
    bool beside; /* the whole step alone, while copies flow */
};

/* The engine's batch becomes this step: few tokens in as many rows, each sampled; a chunk of one row. */
static int take_batch(struct measure_programs *p, const struct cell *cell, struct plan_schedule *schedule,
                      struct helm_err *err)
{
    struct gpu_engine *g = p->engine;
    const bool few = cell->tokens <= ENGINE_FEW_TOKENS;
    const uint32_t rows = few ? cell->tokens : 1, each = cell->tokens / rows, vocab = g->model.config.vocab;
    struct arena_control *control = arena_control_of(&p->arena);
    const uint32_t serial = ++p->serial;
    struct step *step = &control->step[serial % ARENA_STEP_RING];
    memset(step, 0, sizeof *step);
    step->serial = serial;
    step->epoch = arena_header_of(&p->arena)->epoch;
    step->row_count = rows;
    step->token_count = cell->tokens;
    if (g->plan.invariant && !few) step->flags = plan_prompt_flags(plan_prompt_list(&g->plan, cell->tokens));
    for (uint32_t i = 0; i < rows; i++) {
        const uint32_t slot = i * (ENGINE_FEW_TOKENS / rows);
        uint32_t *history = arena_history_of(&p->arena, slot);
        step->row[i] = (struct step_row){.slot = slot,
                                         .start = cell->context - each,
                                         .count = each,
                                         .flags = few ? STEP_ROW_SAMPLE : 0};
        for (uint32_t t = cell->context - each; t < cell->context; t++)
            history[t] = random_below(&p->random, vocab);
    }
    int rc = batch_take(&p->arena, vocab, step, &g->batch, &control->result[serial % ARENA_STEP_RING], err);
    if (!rc && g->batch.row_count != rows)
        rc = helm_fail(err, HELM_E_INTERNAL, "a step of %u tokens after %u positions is none", cell->tokens,
                       cell->context);
    if (!rc) rc = plan_schedule_of(&g->plan, g->batch.flags, cell->tokens, schedule, err);
    g->is_short = !rc && schedule->is_short;
    return rc;
}

/* Seconds of one of `times` launches, one after another. */
static int run_program(struct gpu_engine *g, const struct gpu_program *program, uint32_t times,
                       double *seconds, struct helm_err *err)
{
    struct device *d = g->device;
    const struct gpu_issue issue = gpu_issue_of(g);
    const double begin_s = units_now_s();
    int rc = 0;
    for (uint32_t i = 0; i < times && !rc; i++)
        rc = program->graph ? d->ops->graph_launch(d, program->graph, false, err)
                            : gpu_program_issue(&g->source, program, &issue, err);
    if (!rc) rc = device_await(d, DEVICE_COMPUTE, err);
    *seconds = (units_now_s() - begin_s) / times;
    return rc;
}

/* Samples of a program, in about this time. Long ones, which hardly differ, run less often. */
static int sample_program(struct gpu_engine *g, const struct gpu_program *program, double limit_s,
                          struct measure_samples *samples, struct helm_err *err)
{
    const double begin_s = units_now_s(), least_s = program->graph ? FEW_S : CHUNK_S;
    const uint32_t least = program->graph ? SAMPLES_LEAST : SAMPLES_CHUNK;
    double once = 0;
    int rc = run_program(g, program, 1, &once, err); /* finds all in its place */
    if (!rc && program->graph) rc = run_program(g, program, 1, &once, err);
    uint32_t times = (uint32_t)fmin(REPEATS_MAX, ceil(fmin(least_s, limit_s / SAMPLES_LEAST) / once));
    if (times < 1) times = 1;
    for (uint32_t n = 0; n < SAMPLES_MOST && !rc; n++) {
        double seconds = 0;
        if (n >= least && units_now_s() - begin_s > limit_s) break;
        rc = run_program(g, program, times, &seconds, err);
        if (!rc) measure_add(samples, seconds);
    }
    return rc;
}

/* The same while copies to the device flow, as many as it takes. */
static int sample_beside(struct measure *m, const struct gpu_program *program, double limit_s,
                         struct measure_samples *samples, struct helm_err *err)
{
    struct gpu_engine *g = m->programs->engine;
    const double begin_s = units_now_s(), least_s = program->graph ? FEW_S : CHUNK_S;
    uint64_t piece = 0;
    double rate = 0, once = 0, seconds = 0;
    int rc = measure_choose_piece(m, &piece, &rate, err);
    if (!rc) rc = run_program(g, program, 1, &once, err);
    const uint32_t times = (uint32_t)fmax(1, fmin(REPEATS_MAX, ceil(least_s / once)));
    const double copied = fmin(rate * once * times * BESIDE_MORE, BESIDE_BYTES);
    for (uint32_t n = 0; n < SAMPLES_MOST && !rc; n++) {
        if (n >= SAMPLES_LEAST && units_now_s() - begin_s > limit_s) break;
        for (double bytes = 0; bytes < copied && !rc; bytes += (double)piece)
            rc = measure_copy_next(m, DEVICE_TO_DEVICE, piece, err);
        if (!rc) rc = run_program(g, program, times, &seconds, err);
        if (!rc) measure_add(samples, seconds);
        if (!rc) rc = device_await(g->device, DEVICE_COPY, err);
    }
    return rc;
}

/* One variant: lowered without what is left out, chained and captured as a worker's, run, and let go. */
static int run_variant(struct measure *m, const struct gpu_program_kind *kind, const struct cell *cell,
                       double limit_s, struct measure_samples *samples, struct helm_err *err)
{
    struct measure_programs *p = m->programs;
    struct gpu_engine *g = p->engine;
    struct gpu_program program = {.entry = NULL};
    g->source.left_out = p->left_out;
    int rc = gpu_program_lower(&g->source, kind, &program, err);
    g->source.left_out = NULL;
    if (rc) return rc;
    rc = gpu_program_write_chains(&g->source, &program, err);
    if (!rc && kind->tier != GPU_TIER_CHUNK) rc = gpu_program_capture(&g->source, &program, err);
    if (!rc) {
        gpu_step_fill(g, &program);
        rc = cell->beside ? sample_beside(m, &program, limit_s, samples, err)
                          : sample_program(g, &program, limit_s, samples, err);
    }
    gpu_program_free(&program, g->device);
    return rc;
}

/* Leaves out of a step what this variant lacks: 0 nothing, 1 everything, 2 and more a kind. False: the step
 * has none of it. A chunk that goes on has no head. */
static bool leave_out(struct measure_programs *p, uint32_t variant, bool chunk)
{
    bool some = variant == 0;
    for (uint32_t u = 0; u <= p->units; u++) {
        p->left_out[u] = variant == 1 || (variant >= 2 && p->kind[u] == variant - 2);
        some |= p->left_out[u] && (!chunk || u < p->units);
    }
    return some;
}

int measure_programs_cell(struct measure *m, const char *text, struct helm_err *err)
{
    struct measure_programs *p = m->programs;
    struct cell cell = {.beside = strstr(text, " beside") != NULL};
    struct plan_schedule schedule;
    if (!p) return helm_fail(err, HELM_E_STATE, "'cell' without 'programs'");
    if (sscanf(text, "%u %u %lf", &cell.tokens, &cell.context, &cell.seconds) != 3 || cell.tokens < 1 ||
        cell.tokens > arena_header_of(&p->arena)->step_tokens || cell.context < 1 ||
        cell.context > arena_header_of(&p->arena)->context_tokens || cell.seconds <= 0 ||
        (cell.tokens > ENGINE_FEW_TOKENS && cell.context < cell.tokens) ||
        (cell.tokens <= ENGINE_FEW_TOKENS && ENGINE_FEW_TOKENS % cell.tokens))
        return helm_fail(err, HELM_E_USAGE, "'cell %.40s': tokens, a context, seconds and maybe 'beside'",
                         text);
    int rc = take_batch(p, &cell, &schedule, err);
    if (rc) return rc;
    const struct gpu_engine *g = p->engine;
    struct gpu_program_kind kind = {.phase = schedule.phase,
                                    .tier = gpu_tier_for(&g->plan, &schedule, cell.tokens)};
    if (gpu_attends_apart(&g->plan, kind.tier, cell.context - 1)) kind.attending = GPU_ATTENDS_APART;
    if (!gpu_program_wanted(&g->source, &kind)) kind.attending = GPU_ATTENDS_USUALLY;
    const uint32_t variants = p->kinds + 2;
    for (uint32_t i = 0; i <= (cell.beside ? 0 : variants) && !rc; i++) { /* the whole step first and last */
        struct measure_samples samples = {.count = 0};
        const uint32_t v = i % variants;
        if (!leave_out(p, v, cell.tokens > ENGINE_FEW_TOKENS)) continue;
        rc = run_variant(m, &kind, &cell, cell.beside ? cell.seconds : cell.seconds / (variants + 1),
                         &samples, err);
        if (!rc) measure_print(m, "program", v, &samples);
    }
    return rc;
}
