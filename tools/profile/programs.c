/* The model's own programs on the CPU: each kind of half layer, and the head, in steps of the worker's
 * engine. See profile_tool.h; docs/planner-programs.md has the method. Called by helm_profile.c; owns the
 * engine while it measures.
 *
 * The engine runs a model of a few of the model's layers that have all kinds among them, as often as caches
 * have to be passed (common/model/sample.h), or all layers of a model that is smaller than that. Weights are
 * random. A step gives one sample of every kind: the mean of its units. Ways of multiplying take turns, so
 * that what else goes on in the machine meets them alike. Time is bounded: what is left is shared by the
 * cells that are left, and those that would take longer than a few shares are left out; programs.h draws
 * lines between the others. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/cgroup.h"
#include "common/base/cpu.h"
#include "common/base/load.h"
#include "common/base/node.h"
#include "common/base/random.h"
#include "common/base/units.h"
#include "common/model/arch.h"
#include "common/model/sample.h"
#include "common/plan/schedule.h"
#include "tools/profile/profile_tool.h"

#define CONTEXT_SHORT 256
#define CONTEXT_LONG  (PROFILE_SANITIZED ? 512 : 4096)
#define POSITIONS     (4 * CONTEXT_LONG) /* of all rows of a step: more of them have shorter long contexts */
#define TOKENS_MOST   (PROFILE_SANITIZED ? 512 : 2048)
#define SAMPLES_MOST  (PROFILE_SANITIZED ? 1 : 16)
#define SAMPLES_LEAST (PROFILE_SANITIZED ? 1 : 3) /* of steps of few tokens */
#define CELL_S        0.5                         /* no cell takes longer once it has SAMPLES_LEAST */
#define SHARES        3.0 /* of the time left, that a cell which has to be run may take */
#define BESIDE_S      0.3
#define CHUNK_BESIDE  512 /* tokens */
#define MEMORY_MOST   (6 * GIB)

/* In the order of their worth: the next token, rows that decode together, a prompt's chunks, then what lies
 * between. Each says what the next larger one takes at most. */
static const uint32_t counts[PROFILE_PROGRAM_COUNTS] = {1, 16, 64, 512, 4, 2, 8, 2048};
#define COUNTS   PROFILE_PROGRAM_COUNTS
#define CONTEXTS PROFILE_PROGRAM_CONTEXTS

struct measuring {
    const struct profile_programs *request;
    struct programs *programs;
    struct profile_steps steps;
    struct profile_packed *packed; /* NULL: not a way of this machine or model */
    uint64_t *head_ns;             /* [head_entries]: of the last step's head */
    uint32_t head_entries;
    uint32_t
        kind[UNIT_PARTS * MODEL_LAYERS_MAX + 1]; /* of each unit of the model that runs, then of the head */
    uint32_t units[PROGRAMS_KINDS_MAX];
    bool attends[PROGRAMS_KINDS_MAX]; /* others take as long in any context: their samples are of both */
    struct profile_samples sample[PROGRAMS_INVARIANT][PROGRAMS_KINDS_MAX]; /* by way */
    double step_s[COUNTS]; /* the last turn of so many tokens, all ways together; 0: none yet */
    double end_s;
    uint64_t random;
};

/* ---- the model that runs ---- */

void profile_program_bytes(const struct model *model, const uint32_t *layer, uint32_t layers, uint64_t *read,
                           uint64_t *all)
{
    const struct model_router *r = &model->config.router;
    for (uint32_t unit = 0; unit < unit_count(layers); unit++) {
        const struct model_unit *u = &model->unit[unit_of(layer[unit_layer(unit)], unit_part(unit))];
        for (uint32_t i = 0; i < u->matrix_count; i++) {
            const uint64_t bytes = u->tensor[i]->bytes;
            *all += bytes;
            *read += arch_role_of_experts(u->tensor[i]->role) ? bytes / r->experts * r->chosen : bytes;
        }
    }
}

uint32_t profile_program_repeat(uint32_t *layer, uint32_t few, uint32_t rounds)
{
    for (uint32_t i = few; i < rounds * few; i++) layer[i] = layer[i - few];
    return rounds * few;
}

/* The layers that have all kinds, over and over until a token's reads pass the caches, or as far as memory
 * goes. */
static int choose_layers(const struct measuring *m, uint32_t *layer, uint32_t *count, struct helm_err *err)
{
    const struct profile_cpu_options *o = &m->request->cpu;
    const struct model *model = m->request->model;
    const uint32_t few = programs_layers(model, m->programs, layer);
    const struct model_tensor *head = model_find(model, TENSOR_HEAD, -1);
    struct cgroup_memory memory;
    struct cpu_set cpus;
    char need[UNITS_TEXT], have[UNITS_TEXT];
    uint64_t read = 0, all = 0;
    int rc = node_read_memory(o->node, &memory, err);
    if (!rc) rc = cpu_usable(-1, &cpus, err);
    if (rc) return rc;
    profile_program_bytes(model, layer, few, &read, &all);
    const uint64_t past = profile_weights_past(o->caches, (uint32_t)cpus.suggested, true),
                   least = PROFILE_CACHES_LEAST * o->caches, after = head ? head->bytes : 0,
                   own = past > after + least ? past - after : least, /* of layers: the head's pass, too */
        ends = 2 * after, third = memory.available_bytes / 3,
                   most = third < MEMORY_MOST ? third : MEMORY_MOST;
    if (all + ends > third)
        return helm_fail(err, HELM_E_CAPACITY,
                         "a layer of each kind and the head take %s, a third of the free memory is %s",
                         units_format_size(all + ends, need), units_format_size(third, have));
    uint64_t rounds = own / (read ? read : 1) + 1;
    if (rounds * all + ends > most) rounds = most > all + ends ? (most - ends) / all : 1;
    if (rounds * few >= model->config.layers) { /* as they are */
        for (uint32_t l = 0; l < model->config.layers; l++) layer[l] = l;
        *count = model->config.layers;
        return 0;
    }
    *count = profile_program_repeat(layer, few, (uint32_t)rounds);
    return 0;
}

static void note_kinds(struct measuring *m, const struct model *model)
{
    for (uint32_t u = 0; u <= unit_count(model->config.layers); u++) {
        const struct programs_kind *kind = programs_find(m->programs, programs_signature(model, u));
        m->kind[u] = kind ? (uint32_t)(kind - m->programs->kind) : PROGRAMS_KINDS_MAX;
        if (!kind) continue;
        m->units[m->kind[u]]++;
        m->attends[m->kind[u]] = u < unit_count(model->config.layers) && model_unit_math(model, u)->attends;
    }
}

static int open_engine(struct measuring *m, struct helm_err *err)
{
    const struct profile_programs *r = m->request;
    uint32_t layer[MODEL_LAYERS_MAX], count = 0;
    const uint32_t page = KV_PAGE_TOKENS_DEFAULT;
    int rc = choose_layers(m, layer, &count, err);
    if (!rc) rc = model_sample(r->model, layer, count, err);
    if (rc) return rc;
    note_kinds(m, r->model);
    const struct profile_made made = {.model = r->model,
                                      .kv_dtype = r->kv_dtype,
                                      .slots = ENGINE_FEW_TOKENS,
                                      .context_tokens = CONTEXT_LONG + page,
                                      .step_tokens = counts[COUNTS - 1],
                                      .pages = POSITIONS / page + 2 * ENGINE_FEW_TOKENS};
    rc = profile_steps_open_made(&r->cpu, &made, &m->steps, err);
    const struct engine *engine = &m->steps.local.engine;
    if (!rc) rc = profile_steps_fill(&m->steps, engine->weights.formats, err);
    if (!rc) rc = profile_packed_open(&m->steps.local.engine, count, &m->packed, err);
    if (rc) return rc;
    const struct step_programs *p = &engine->programs[0];
    m->head_entries = p->head_one.count + p->head_many.count + p->head_apart.count;
    m->head_ns = calloc(m->head_entries + 1u, sizeof *m->head_ns);
    return m->head_ns ? 0 : helm_fail(err, HELM_E_NOMEM, "no memory to measure the head");
}

/* ---- steps ---- */

struct cell {
    uint32_t count; /* index of `counts` */
    uint32_t context;
    bool again; /* as many tokens as the cell before */
};

/* A step of few tokens has them in as many rows, each with its share of the pages; a chunk is one row. */
static int run_step(struct measuring *m, const struct cell *cell, double *seconds, struct helm_err *err)
{
    const uint32_t tokens = counts[cell->count], rows = tokens <= ENGINE_FEW_TOKENS ? tokens : 1;
    const struct arena *arena = &m->steps.local.arena;
    struct run *run = &m->steps.local.engine.run;
    struct step_row row[ENGINE_FEW_TOKENS] = {0};
    for (uint32_t i = 0; i < rows; i++) {
        row[i].slot = i * (ENGINE_FEW_TOKENS / rows);
        row[i].count = tokens / rows;
        row[i].start = cell->context - row[i].count;
        row[i].flags = rows == tokens ? STEP_ROW_SAMPLE : 0;
        uint32_t *history = arena_history_of(arena, row[i].slot);
        for (uint32_t t = row[i].start; t < cell->context; t++)
            history[t] = (uint32_t)(random_next(&m->random) % run->config->vocab);
    }
    for (uint32_t i = 0; i < m->head_entries; i++) m->head_ns[i] = UINT64_MAX;
    /* a chunk of an invariant plan says so */
    const struct local *local = &m->steps.local;
    arena_control_of(arena)->step[(local->serial + 1) % ARENA_STEP_RING].flags =
        m->request->cpu.invariant && rows < tokens
            ? plan_prompt_flags(plan_prompt_list(&local->engine.plan, tokens))
            : 0;
    run->entry_ns[1] = m->head_ns;
    const int rc = profile_steps_rows(&m->steps, row, rows, seconds, err);
    run->entry_ns[1] = NULL;
    return rc;
}

/* A sample of every kind from the last step. */
static void take_samples(struct measuring *m, enum programs_way way)
{
    const struct run *run = &m->steps.local.engine.run;
    const uint32_t head = m->kind[unit_count(m->steps.local.engine.model.config.layers)];
    uint64_t sum[PROGRAMS_KINDS_MAX + 1] = {0};
    for (uint32_t i = 0; i < run->program[0]->count; i++)
        if (run->program[0]->entry[i].layer >= 0)
            sum[m->kind[run->program[0]->entry[i].unit]] += m->steps.entry_ns[i];
    for (uint32_t i = 0; run->program[1] && i < run->program[1]->count; i++) sum[head] += m->head_ns[i];
    for (uint32_t k = 0; k < m->programs->kinds; k++)
        if (sum[k]) profile_samples_add(&m->sample[way][k], (double)sum[k] * 1e-9 / m->units[k]);
}

static bool has_way(const struct measuring *m, enum programs_way way)
{
    if (way == PROGRAMS_INT8) return m->steps.local.engine.programs[LINEAR_INT8].plan != NULL;
    return way == PROGRAMS_EXACT || m->packed;
}

static int run_way(struct measuring *m, const struct cell *cell, enum programs_way way, double *seconds,
                   struct helm_err *err)
{
    (void)engine_use(&m->steps.local.engine, way == PROGRAMS_INT8 ? LINEAR_INT8 : LINEAR_EXACT);
    if (way == PROGRAMS_PACKED) profile_packed_swap(m->packed);
    const int rc = run_step(m, cell, seconds, err);
    if (!rc) take_samples(m, way);
    if (way == PROGRAMS_PACKED) profile_packed_swap(m->packed);
    return rc;
}

/* ---- cells ---- */

double profile_program_expected(const uint32_t counted[PROFILE_PROGRAM_COUNTS],
                                const double step_s[PROFILE_PROGRAM_COUNTS], uint32_t tokens, uint32_t few)
{
    uint32_t below = COUNTS;
    for (uint32_t i = 0; i < COUNTS; i++)
        if (step_s[i] > 0 && counted[i] <= tokens && (below == COUNTS || counted[i] > counted[below]))
            below = i;
    if (below == COUNTS) return 0;
    const double times = (double)tokens / counted[below];
    return step_s[below] * (tokens > few ? times : sqrt(times));
}

static void keep(struct measuring *m, const struct cell *cell, bool beside)
{
    for (int w = 0; w < PROGRAMS_INVARIANT; w++)
        for (uint32_t k = 0; k < m->programs->kinds; k++) {
            const struct profile_value v = profile_samples_value(&m->sample[w][k]);
            struct programs_times *times =
                &m->programs->kind[k].cpu[w + (m->request->cpu.invariant ? PROGRAMS_INVARIANT : 0)];
            const struct programs_cell one = {.tokens = counts[cell->count],
                                              .context = m->attends[k] ? cell->context : 0,
                                              .seconds = v.value,
                                              .low = v.low,
                                              .high = v.high};
            if (v.value <= 0) continue;
            if (!beside) programs_put(times, &one);
            for (uint32_t i = 0; beside && i < times->count; i++)
                if (times->cell[i].tokens == one.tokens && times->cell[i].context == one.context)
                    times->cell[i].beside =
                        v.value > times->cell[i].seconds ? v.value : times->cell[i].seconds;
        }
}

/* Turns for `seconds`, and for `most` where these are too few to say much; of few tokens another step comes
 * first, which finds all in its place. */
static int run_cell(struct measuring *m, const struct cell *cell, double seconds, double most, bool beside,
                    struct helm_err *err)
{
    const double begin_s = units_now_s();
    const bool few = counts[cell->count] <= ENGINE_FEW_TOKENS;
    const uint32_t least = few ? SAMPLES_LEAST : 1;
    double spent = 0;
    int rc = few ? run_step(m, cell, &spent, err) : 0;
    for (int w = 0; w < PROGRAMS_INVARIANT; w++)
        for (uint32_t k = 0; k < m->programs->kinds; k++)
            if (m->attends[k] || !cell->again) m->sample[w][k].count = 0;
    for (uint32_t n = 0; n < SAMPLES_MOST && !rc; n++) {
        double turn = 0;
        for (int w = 0; w < PROGRAMS_INVARIANT && !rc; w++) {
            if (!has_way(m, (enum programs_way)w)) continue;
            rc = run_way(m, cell, (enum programs_way)w, &spent, err);
            turn += spent;
        }
        if (!beside) m->step_s[cell->count] = turn;
        const double took = units_now_s() - begin_s;
        if (took + turn / 2 > seconds && (n + 1 >= least || took + turn > most)) break;
    }
    if (!rc) keep(m, cell, beside);
    return rc;
}

/* The contexts of a number of tokens: a short one, and one so long that all rows have room. */
static uint32_t context_of(const struct measuring *m, uint32_t count, int which)
{
    const uint32_t tokens = counts[count], rows = tokens <= ENGINE_FEW_TOKENS ? tokens : 1,
                   most = m->steps.local.engine.model.config.max_context;
    uint32_t context = which ? POSITIONS / rows : CONTEXT_SHORT;
    if (context > CONTEXT_LONG) context = CONTEXT_LONG;
    if (most && context > most) context = most;
    return context < tokens / rows ? tokens / rows : context;
}

static int run_cells(struct measuring *m, struct helm_err *err)
{
    int rc = 0;
    for (uint32_t i = 0, left = COUNTS * CONTEXTS; i < COUNTS && !rc; i++) {
        bool measured = false;
        for (int which = 0; which < CONTEXTS && !rc; which++, left--) {
            const struct cell cell = {i, context_of(m, i, which), which && measured};
            if (counts[i] > TOKENS_MOST || (which && cell.context == context_of(m, i, 0))) continue;
            const double time = m->end_s - units_now_s(), share = time / left;
            const double turn =
                profile_program_expected(counts, m->step_s, counts[i], ENGINE_FEW_TOKENS); /* of all ways */
            if (i && turn > (time > 0 ? SHARES * share : 0)) continue;
            rc = run_cell(m, &cell, share < CELL_S ? share : CELL_S, SHARES * share, false, err);
            measured = true;
        }
    }
    return rc;
}

/* The next token and a chunk while copies flow. */
static int run_beside(struct measuring *m, struct helm_err *err)
{
    struct profile_device_run *device = m->request->device;
    struct helm_err ignored;
    if (!device) return 0;
    int rc = profile_device_stream_start(device, err);
    if (rc) return rc;
    for (uint32_t i = 0; i < COUNTS && !rc; i++) {
        const struct cell cell = {i, context_of(m, i, 0), false};
        if (counts[i] != 1 && (counts[i] != CHUNK_BESIDE || m->step_s[i] > BESIDE_S * SHARES)) continue;
        if (m->step_s[i] > 0) rc = run_cell(m, &cell, BESIDE_S, SHARES * BESIDE_S, true, err);
    }
    const int stopped = profile_device_stream_stop(device, rc ? &ignored : err);
    return rc ? rc : stopped;
}

int profile_programs_measure(const struct profile_programs *request, struct programs *programs,
                             struct helm_err *err)
{
    struct measuring *m = aligned_alloc(64, (sizeof *m + 63) / 64 * 64); /* as the engine in it asks */
    struct load load;
    if (!m) {
        model_free(request->model);
        return helm_fail(err, HELM_E_NOMEM, "no memory to measure programs");
    }
    memset(m, 0, sizeof *m);
    m->request = request;
    m->programs = programs;
    m->random = RANDOM_SEED;
    m->end_s = units_now_s() + request->seconds;
    load_begin(&load);
    int rc = open_engine(m, err);
    if (!rc) rc = run_cells(m, err);
    if (!rc) rc = run_beside(m, err);
    const uint32_t busy = load_others(&load);
    if (busy > programs->busy_percent) programs->busy_percent = busy;
    profile_packed_close(m->packed);
    profile_steps_close(&m->steps);
    model_free(request->model);
    free(m->head_ns);
    free(m);
    return rc;
}
