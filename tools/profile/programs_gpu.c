/* The model's own programs on the device: each kind of half layer, and the head, at home in VRAM. See
 * profile_tool.h; docs/planner-programs.md has the method. Called by helm_profile.c; owns nothing:
 * helm-worker-gpu loads and runs them.
 *
 * That worker times whole steps of a few layers, and the same steps without each kind of half layer. A kind's
 * time is that by which a step is longer with it; the times of all kinds together are made what the whole
 * step is longer than one without any, since neighbours overlap. Cells that would take longer than a few
 * shares of the time left are left out. */
#include <math.h>
#include <stdlib.h>

#include "common/base/units.h"
#include "tools/profile/profile_tool.h"

#define CONTEXT_SHORT  256
#define CONTEXT_LONG   4096
#define CONTEXT_FAR    32768 /* of one token: attention is most of its step there, and has other pieces */
#define POSITIONS      CONTEXT_FAR
#define PAGE           KV_PAGE_TOKENS_DEFAULT
#define READ_LEAST     (512 * MIB) /* that one token reads of all layers: past the caches of any device */
#define READ_EMULATED  (8 * MIB)
#define VRAM_PART      3 /* of what is free: layers and caches together */
#define STEP_MOST      2048
#define STEP_EMULATED  512
#define SHARES         3.0 /* of the time left, that a cell may be expected to take */
#define CELL_S         1.2
#define CELL_LEAST_S   0.05
#define BESIDE_S       0.2
#define SAMPLES_BESIDE 4   /* at least */
#define CHUNK_BESIDE   512 /* tokens */
#define VARIANT_BASE   2   /* all, nothing, then a kind each */

/* In the order of their worth: the next token, rows that decode together, a prompt's chunks, then what lies
 * between. */
static const uint32_t counts[PROFILE_PROGRAM_COUNTS] = {1, 16, 64, 512, 2048, 4, 2, 8};

struct gpu_measuring {
    const struct profile_programs_gpu *request;
    struct programs *programs;
    uint32_t layer[MODEL_LAYERS_MAX], layers;
    uint32_t units[PROGRAMS_KINDS_MAX + 1]; /* of each kind; those of none are the last */
    bool attends[PROGRAMS_KINDS_MAX];
    uint32_t head; /* its kind */
    uint32_t positions, step_tokens, context;
    struct profile_samples variant[PROGRAMS_KINDS_MAX + 1 + VARIANT_BASE];
    /* A whole step of so many tokens, the last one and that of the short context; 0: unknown */
    double cell_s[PROFILE_PROGRAM_COUNTS], short_s[PROFILE_PROGRAM_COUNTS];
    double end_s;
};

static uint32_t kind_of(const struct gpu_measuring *m, uint32_t unit)
{
    const struct programs_kind *kind =
        programs_find(m->programs, programs_signature(m->request->model, unit));
    return kind ? (uint32_t)(kind - m->programs->kind) : PROGRAMS_KINDS_MAX;
}

/* ---- what runs ---- */

static uint64_t cache_bytes(const struct gpu_measuring *m)
{
    const struct model_config *c = &m->request->model->config;
    const struct kv_layout kv = {.layers = m->layers,
                                 .kv_heads = c->kv_heads,
                                 .head_dim = c->head_dim,
                                 .page_tokens = PAGE,
                                 .dtype = kv_dtype_named(m->request->kv_dtype),
                                 .latent = c->latent.rank};
    return kv_page_bytes(&kv) * (m->positions / PAGE + ENGINE_FEW_TOKENS);
}

/* The layers that have all kinds, over and over until a token's reads pass the caches, or as far as VRAM
 * goes. */
static int choose_layers(struct gpu_measuring *m, struct helm_err *err)
{
    const struct profile_programs_gpu *r = m->request;
    const uint32_t few = programs_layers(r->model, m->programs, m->layer);
    const uint64_t room = r->vram_free / VRAM_PART, least = r->emulated ? READ_EMULATED : READ_LEAST;
    const struct model_tensor *head = model_find(r->model, TENSOR_HEAD, -1),
                              *embed = model_find(r->model, TENSOR_EMBED, -1);
    char need[UNITS_TEXT], have[UNITS_TEXT];
    uint64_t read = 0, all = 0;
    profile_program_bytes(r->model, m->layer, few, &read, &all);
    const uint64_t ends = (head ? head->bytes : 0) + (embed ? embed->bytes : 0);
    m->layers = few; /* whose caches count */
    const uint64_t each = all + cache_bytes(m);
    if (each + ends > room)
        return helm_fail(err, HELM_E_CAPACITY,
                         "a layer of each kind and both ends take %s, a part of the free VRAM is %s",
                         units_format_size(each + ends, need), units_format_size(room, have));
    uint64_t rounds = least / (read ? read : 1) + 1;
    if (rounds * each + ends > room) rounds = (room - ends) / each;
    if (rounds * few > r->model->config.layers) rounds = r->model->config.layers / few;
    m->layers = profile_program_repeat(m->layer, few, (uint32_t)rounds);
    return 0;
}

static json_t *describe(struct gpu_measuring *m)
{
    const struct profile_programs_gpu *r = m->request;
    json_t *layers = json_array(), *kinds = json_array();
    for (uint32_t i = 0; i < m->layers; i++) {
        json_array_append_new(layers, json_integer(m->layer[i]));
        for (int part = 0; part < UNIT_PARTS; part++) {
            const uint32_t unit = unit_of(m->layer[i], (enum unit_part)part), kind = kind_of(m, unit);
            m->units[kind]++;
            if (kind < PROGRAMS_KINDS_MAX) m->attends[kind] = model_unit_math(r->model, unit)->attends;
            json_array_append_new(kinds, json_integer(kind));
        }
    }
    m->head = kind_of(m, unit_count(r->model->config.layers));
    m->units[m->head]++;
    json_array_append_new(kinds, json_integer(m->head));
    return json_pack("{s:s, s:s, s:s, s:b, s:o, s:o, s:i, s:i, s:i}", "model", r->path, "weights", r->weights,
                     "kv_dtype", r->kv_dtype, "invariant", r->way == PROGRAMS_GPU_INVARIANT, "layers", layers,
                     "kinds", kinds, "context", (int)m->context, "step_tokens", (int)m->step_tokens,
                     "positions", (int)m->positions);
}

static int open_programs(struct gpu_measuring *m, struct helm_err *err)
{
    const uint32_t most = m->request->model->config.max_context;
    m->step_tokens = m->request->emulated ? STEP_EMULATED : STEP_MOST;
    m->context = (m->request->emulated ? CONTEXT_LONG : CONTEXT_FAR) + PAGE;
    if (most && m->context > most) m->context = most;
    if (m->step_tokens > m->context) m->step_tokens = m->context;
    m->positions = m->request->emulated ? CONTEXT_LONG : POSITIONS;
    int rc = choose_layers(m, err);
    json_t *request = rc ? NULL : describe(m);
    if (!rc && !request) rc = helm_fail(err, HELM_E_NOMEM, "no memory to say what is measured");
    if (!rc) rc = profile_device_programs(m->request->device, request, err);
    json_decref(request);
    return rc;
}

/* ---- what comes of a cell ---- */

/* By how much a step is longer with a kind, all of its half layers. A chunk that goes on has no head. */
static double part_of(const struct gpu_measuring *m, const struct profile_device_cell *cell, uint32_t kind)
{
    const double whole = profile_samples_value(&m->variant[0]).value,
                 without = profile_samples_value(&m->variant[VARIANT_BASE + kind]).value;
    if (!m->units[kind] || without <= 0 || (kind == m->head && cell->tokens > ENGINE_FEW_TOKENS)) return 0;
    return fmax(0, whole - without);
}

/* How far a median of samples may be off. */
static double spread_of(const struct profile_value *v)
{
    return v->value > 0 ? (v->high - v->low) / 2 / v->value : 0;
}

static void keep(struct gpu_measuring *m, const struct profile_device_cell *cell, bool again)
{
    const struct profile_value whole = profile_samples_value(&m->variant[0]),
                               nothing = profile_samples_value(&m->variant[1]);
    const double all = whole.value - nothing.value;
    double sum = 0;
    for (uint32_t k = 0; k <= PROGRAMS_KINDS_MAX; k++) sum += part_of(m, cell, k);
    const double spread = spread_of(&whole), low = 1 - fmin(0.9, spread), high = 1 + spread;
    if (sum <= 0 || all <= 0) return;
    for (uint32_t k = 0; k < m->programs->kinds; k++) {
        const double seconds = m->units[k] ? part_of(m, cell, k) * (all / sum) / m->units[k] : 0;
        const struct programs_cell one = {.tokens = cell->tokens,
                                          .context = m->attends[k] ? cell->context : 0,
                                          .seconds = seconds,
                                          .low = seconds * low,
                                          .high = seconds * high};
        if (seconds > 0 && (m->attends[k] || !again))
            programs_put(&m->programs->kind[k].gpu[m->request->way], &one);
    }
    const struct programs_cell begin = {.tokens = cell->tokens,
                                        .seconds = nothing.value,
                                        .low = nothing.low,
                                        .high = nothing.high};
    if (!again) programs_put(&m->programs->gpu_begin[m->request->way], &begin);
}

/* ---- cells ---- */

static uint32_t context_of(const struct gpu_measuring *m, uint32_t tokens, uint32_t which)
{
    static const uint32_t contexts[] = {CONTEXT_SHORT, CONTEXT_LONG, CONTEXT_FAR};
    const uint32_t rows = tokens <= ENGINE_FEW_TOKENS ? tokens : 1;
    uint32_t context = which ? m->positions / rows : CONTEXT_SHORT;
    if (context > contexts[which]) context = contexts[which];
    if (context > m->context) context = m->context;
    return context < tokens / rows ? tokens / rows : context;
}

static int run_cells(struct gpu_measuring *m, struct helm_err *err)
{
    const uint32_t variants = PROGRAMS_KINDS_MAX + 1 + VARIANT_BASE;
    uint32_t kinds = 0;
    int rc = 0;
    for (uint32_t k = 0; k <= PROGRAMS_KINDS_MAX; k++) kinds += m->units[k] > 0;
    for (uint32_t i = 0, left = PROFILE_PROGRAM_COUNTS * PROFILE_PROGRAM_CONTEXTS + 1;
         i < PROFILE_PROGRAM_COUNTS && !rc; i++) {
        const uint32_t tokens = counts[i], contexts = PROFILE_PROGRAM_CONTEXTS + (tokens == 1);
        /* the whole twice; of a chunk no head */
        const uint32_t runs = VARIANT_BASE + 1 + kinds - (tokens > ENGINE_FEW_TOKENS);
        bool measured = false;
        for (uint32_t which = 0; which < contexts && !rc; which++, left--) {
            const double time = m->end_s - units_now_s(), share = time / left;
            const struct profile_device_cell cell = {.tokens = tokens,
                                                     .context = context_of(m, tokens, which),
                                                     .seconds = fmax(CELL_LEAST_S, fmin(share, CELL_S))};
            if (tokens > m->step_tokens || (which && cell.context == context_of(m, tokens, which - 1)))
                continue;
            const double step = profile_program_expected(counts, m->cell_s, tokens, GPU_SUB_TOKENS);
            if (i && (time <= 0 || 2 * runs * step > SHARES * share)) continue;
            rc = profile_device_cell(m->request->device, &cell, m->variant, variants, err);
            if (rc) break;
            keep(m, &cell, measured);
            if (which < PROFILE_PROGRAM_CONTEXTS) m->cell_s[i] = profile_samples_value(&m->variant[0]).value;
            if (!which) m->short_s[i] = m->cell_s[i];
            measured = true;
        }
    }
    return rc;
}

/* The next token and a chunk while copies flow: every kind is longer by as much as the whole step. */
static int run_beside(struct gpu_measuring *m, struct helm_err *err)
{
    int rc = 0;
    for (uint32_t i = 0; i < PROFILE_PROGRAM_COUNTS && !rc; i++) {
        const uint32_t tokens = counts[i];
        const struct profile_device_cell cell = {.tokens = tokens,
                                                 .context = context_of(m, tokens, 0),
                                                 .seconds = BESIDE_S,
                                                 .beside = true};
        if ((tokens != 1 && tokens != CHUNK_BESIDE) || m->cell_s[i] <= 0 ||
            SAMPLES_BESIDE * m->cell_s[i] > SHARES * BESIDE_S)
            continue;
        rc = profile_device_cell(m->request->device, &cell, m->variant, 1, err);
        const double longer = fmax(1, profile_samples_value(&m->variant[0]).value / m->short_s[i]);
        for (uint32_t k = 0; k < m->programs->kinds && !rc; k++) {
            struct programs_times *times = &m->programs->kind[k].gpu[m->request->way];
            for (uint32_t c = 0; c < times->count; c++)
                if (times->cell[c].tokens == tokens) times->cell[c].beside = longer * times->cell[c].seconds;
        }
    }
    return rc;
}

int profile_programs_gpu_measure(const struct profile_programs_gpu *request, struct programs *programs,
                                 struct helm_err *err)
{
    struct gpu_measuring *m = calloc(1, sizeof *m);
    if (!m) return helm_fail(err, HELM_E_NOMEM, "no memory to measure programs");
    m->request = request;
    m->programs = programs;
    int rc = open_programs(m, err);
    m->end_s = units_now_s() + request->seconds;
    if (!rc) rc = run_cells(m, err);
    if (!rc && request->way == PROGRAMS_GPU) rc = run_beside(m, err);
    if (!rc) rc = profile_device_programs_close(request->device, err);
    free(m);
    return rc;
}
