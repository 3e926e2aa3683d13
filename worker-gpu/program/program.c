/* Lowering the GPU's spans: phases and tiers, the order of a step, hand-overs. See
 * program.h; what units, embedding and head consist of is in math.c, where their weights come from in
 * supply.c, issuing in issue.c. */
#include "worker-gpu/program/program.h"

#include <stdlib.h>
#include <string.h>

#include "common/base/grow.h"
#include "worker-gpu/program/lower.h"

static const uint32_t tier_tokens[GPU_TIER_COUNT] = {1, 2, 4, 8, GPUK_BATCH_MAX, UINT32_MAX};

enum gpu_tier gpu_tier_of(uint32_t tokens)
{
    enum gpu_tier tier = GPU_TIER_1;
    while (tokens > tier_tokens[tier]) tier++;
    return tier;
}

enum gpu_tier gpu_tier_for(const struct plan *plan, const struct plan_schedule *schedule, uint32_t tokens)
{
    if (schedule->chunk) return GPU_TIER_CHUNK;
    return gpu_tier_of(plan->invariant && tokens > 1 && tokens < GPU_STEADY_FEW ? GPU_STEADY_FEW : tokens);
}

/* ---- phases ---- */

int gpu_program_check_phases(const struct plan *plan, struct helm_err *err)
{
    for (uint32_t p = 1; p < plan_phase_count(plan); p++)
        if (plan_phase_from(plan, p) < GPU_CHUNK_TOKENS)
            return helm_fail(
                err, HELM_E_UNSUPPORTED,
                "prefill list %u begins at %u tokens; the GPU worker takes such lists from %d on", p,
                plan_phase_from(plan, p), GPU_CHUNK_TOKENS);
    return 0;
}

bool gpu_program_exists(const struct plan *plan, uint32_t step_tokens, uint32_t phase, enum gpu_tier tier)
{
    uint32_t first = plan_phase_from(plan, phase), last = step_tokens;
    if (plan->invariant && tier != GPU_TIER_CHUNK)
        return phase == 0 && (tier == GPU_TIER_1 || (tier == gpu_tier_of(GPU_STEADY_FEW) && last > 1) ||
                              (tier == gpu_tier_of(ENGINE_FEW_TOKENS) && last > GPU_STEADY_FEW));
    if (plan_phase_last(plan, phase) < last) last = plan_phase_last(plan, phase);
    if (tier > GPU_TIER_1 && !plan->invariant && tier_tokens[tier - 1] + 1 > first)
        first = tier_tokens[tier - 1] + 1;
    if (tier_tokens[tier] < last) last = tier_tokens[tier];
    return first <= last;
}

bool gpu_program_wanted(const struct gpu_source *source, const struct gpu_program_kind *kind)
{
    const struct arena_header *h = arena_header_of(source->arena);
    if (kind->phase >= plan_phase_count(source->plan) ||
        !gpu_program_exists(source->plan, h->step_tokens, kind->phase, kind->tier))
        return false;
    switch (kind->attending) {
    case GPU_ATTENDS_APART:
        return !source->device->no_chains &&
               gpu_attends_apart(source->plan, kind->tier, h->context_tokens - 1);
    case GPU_ATTENDS_ASSISTED:
        return plan_kv_tiered(source->plan) && !source->plan->invariant;
    default:
        return true;
    }
}

/* ---- entries ---- */

struct gpu_entry *lower_add(struct lowering *low, enum op_kind kind, int32_t layer)
{
    struct gpu_program *p = low->program;
    if (!GROW(p->entry, p->count, p->capacity)) {
        low->rc = helm_fail(low->err, HELM_E_NOMEM, "no memory for a program of %u entries", p->count + 1);
        return &low->nowhere;
    }
    struct gpu_entry *e = &p->entry[p->count++];
    memset(e, 0, sizeof *e);
    e->op.kind = kind;
    e->layer = layer;
    e->sub = GPU_SUB_ALL;
    return e;
}

bool gpu_entry_trusts(const struct gpu_entry *e)
{
    const bool linear = e->op.kind == OP_GEMV || e->op.kind == OP_GEMM_SMALL;
    return linear && tensor_format_of(e->op.as.linear.format)->variable;
}

void lower_word(struct lowering *low, enum op_kind kind, _Atomic uint32_t *word, uint32_t value,
                enum device_compare compare)
{
    lower_add(low, kind, -1)->op.as.word = (struct op_word){.word = word, .value = value, .compare = compare};
}

static void add_move(struct lowering *low, enum op_kind kind, const float *from, float *to)
{
    lower_add(low, kind, -1)->op.as.move =
        (struct op_move){.from = from, .to = to, .width = low->source->model->config.hidden};
}

const struct gpu_matrix *lower_matrix(struct lowering *low, enum tensor_role role, int32_t layer)
{
    const struct gpu_matrix *m = gpu_matrix_of(low->source->weights, role, layer);
    if (!m->data && !low->rc)
        low->rc =
            helm_fail(low->err, HELM_E_INTERNAL, "layer %d: weights %d are not in VRAM", layer, (int)role);
    return m;
}

struct lower_at lower_at(const struct lowering *low, uint32_t unit, uint32_t op)
{
    const struct model *model = low->source->model;
    return (struct lower_at){.unit = unit,
                             .op = op,
                             .math = ring_math_of(model, unit, op),
                             .layer = ring_layer_of(model, unit)};
}

/* ---- spans ---- */

/* Drops what was added for a half layer, from `first` on, where the program is to lack it. */
static void leave_out(struct lowering *low, uint32_t unit, uint32_t first)
{
    const bool *left_out = low->source->left_out;
    if (left_out && left_out[unit]) low->program->count = first;
}

static void lower_span(struct lowering *low, const struct plan_span *span, uint32_t last_out)
{
    const struct gpu_source *s = low->source;
    float *x = gpu_area(s->buffers, GPU_AREA_X);
    if (span->ticket_in) {
        lower_expand_ahead(low, span);
        struct lane *in = arena_lane_of(s->arena, span->lane_in);
        lower_word(low, OP_WORD_WAIT, &in->bell.value, span->ticket_in, DEVICE_AT_LEAST);
        add_move(low, OP_LANE_READ, in->data, x);
    }
    if (span->embed && !low->embedded) lower_embed(low);
    struct lane *out = span->ticket_out ? arena_lane_of(s->arena, span->lane_out) : NULL;
    bool direct = out && span->unit_count && low->program->tier != GPU_TIER_CHUNK && !span->head;
    if (direct && span->ticket_out == 1) lower_word(low, OP_WORD_WAIT, &out->bell.value, 0, DEVICE_EQUAL);
    for (uint32_t u = 0; u < span->unit_count && !low->rc; u++) {
        const uint32_t before = low->program->count;
        lower_unit(low, span->first_unit + u, direct && u + 1 == span->unit_count ? out->data : x);
        leave_out(low, span->first_unit + u, before);
    }
    const uint32_t before = low->program->count;
    if (span->head) lower_head(low, false);
    leave_out(low, lower_head_unit(low), before);
    /* Taken long ago; but as long as the word stands, the host sees whose turn it is (step.c). */
    if (span->ticket_in && span->last_in)
        lower_word(low, OP_WORD_WRITE, &arena_lane_of(s->arena, span->lane_in)->bell.value, 0, DEVICE_EQUAL);
    low->program->turn[low->program->turns++] = (struct gpu_turn){.in = span->ticket_in,
                                                                  .out = span->ticket_out,
                                                                  .lane_in = span->lane_in,
                                                                  .lane_out = span->lane_out,
                                                                  .last_out = last_out};
    if (!out) return;
    /* a chunk is computed while the reader still has the one before */
    if (!direct && span->ticket_out == 1) lower_word(low, OP_WORD_WAIT, &out->bell.value, 0, DEVICE_EQUAL);
    if (!direct) add_move(low, OP_LANE_WRITE, x, out->data);
    lower_word(low, OP_WORD_WRITE, &out->bell.value, span->ticket_out, DEVICE_EQUAL);
    if (last_out) lower_word(low, OP_WORD_WRITE, s->sent, last_out, DEVICE_EQUAL);
}

static void add_rope_table(struct lowering *low, uint32_t table)
{
    const struct gpu_source *s = low->source;
    const struct model_config *c = &s->model->config;
    lower_add(low, OP_ROPE_TABLE, -1)->op.as.rope_table =
        (struct op_rope_table){.step = low->program->step,
                               .inv_freq = (float *)gpu_area(s->buffers, GPU_AREA_INV_FREQ) +
                                           (size_t)table * model_heads_most(c).head_dim / 2,
                               .head_dim = model_rope_dims(c, table),
                               .scale = s->rope_scale[table],
                               .table = gpu_rope_table(s->buffers, c, table)};
}

/* All spans, between beginning and end of what the copy queue does for them. The step is done when the
 * compute queue is and what was borrowed is back. */
static void lower_step(struct lowering *low, const struct plan_span *spans, uint32_t count)
{
    const enum plan_processor self = low->source->self;
    uint32_t lasts = 0;
    const bool inputs = low->source->model->math.inputs.ops > 0;
    bool layers = false;
    for (uint32_t i = 0; i < count; i++) {
        const bool own = spans[i].processor == self;
        layers |= own && spans[i].unit_count > 0;
        for (uint32_t u = 0; own && u < spans[i].unit_count; u++)
            low->embedded |= inputs && unit_part(spans[i].first_unit + u) == UNIT_MLP;
    }
    lower_begin_copies(low);
    bool streams = plan_streams(low->source->plan, self);
    if (!low->source->follows) lower_add(low, streams ? OP_READ_BLOCK : OP_COPY_BLOCK, -1);
    lower_first_copies(low);
    for (uint32_t r = 0; layers && r < model_ropes(&low->source->model->config); r++) add_rope_table(low, r);
    if (low->embedded) lower_inputs(low);
    for (uint32_t i = 0; i < count && !low->rc; i++)
        if (spans[i].processor == self) { /* where another turn comes after the reader's last */
            const bool last_out = i + 2 < count && spans[i + 1].last_in;
            lasts += last_out;
            lower_span(low, &spans[i], last_out ? lasts : 0);
        }
    lower_end_caches(low);
    lower_word(low, OP_WORD_WRITE, low->source->end, 1, DEVICE_EQUAL);
    lower_tail(low);
}

/* The list's first words, and the block that it reads. */
static void begin(struct lowering *low, const struct gpu_program_kind *kind)
{
    const struct gpu_source *source = low->source;
    const struct arena_header *h = arena_header_of(source->arena);
    struct gpu_program *program = low->program;
    const uint32_t phase = kind->phase;
    const enum gpu_tier tier = kind->tier;
    memset(program, 0, sizeof *program);
    program->phase = phase;
    program->tier = tier;
    program->attending = kind->attending;
    program->tokens = tier == GPU_TIER_CHUNK ? source->buffers->work.tokens : tier_tokens[tier];
    if (tier == GPU_TIER_1 && source->plan->invariant) program->tokens = GPU_STEADY_FEW; /* its kernels */
    program->samples = program->tokens < h->samples ? program->tokens : h->samples;
    program->stream_bytes = source->ring[phase].weight_bytes;
    const bool both = kind->attending == GPU_ATTENDS_ASSISTED && !h->window_page_count &&
                      model_window(&source->model->config);
    const uint32_t line = gpu_block_line(h->pages_per_slot, h->window_page_count);
    gpu_block_place(program->tokens, program->samples, line,
                    both || (tier == GPU_TIER_CHUNK && plan_kv_tiered(source->plan)), &program->block);
    program->step =
        gpu_block_step(&program->block, gpu_area(source->buffers, GPU_AREA_BLOCK), line, GPU_SUB_ALL);
}

int gpu_program_lower(const struct gpu_source *source, const struct gpu_program_kind *kind,
                      struct gpu_program *program, struct helm_err *err)
{
    struct lowering low = {.source = source,
                           .program = program,
                           .ring = &source->ring[kind->phase],
                           .err = err};
    struct plan_span *spans = NULL;
    uint32_t span_count = 0;
    begin(&low, kind);
    low.rc = plan_spans(source->plan, kind->phase, &spans, &span_count, err);
    if (!low.rc && !(program->turn = calloc((size_t)span_count + 1, sizeof *program->turn)))
        low.rc = helm_fail(err, HELM_E_NOMEM, "no memory for %u spans", span_count);
    if (!low.rc) lower_step(&low, spans, span_count);
    if (!low.rc) lower_attention_chained(&low);
    if (!low.rc) lower_chains(&low);
    free(spans);
    if (low.rc) gpu_program_free(program, source->device);
    return low.rc;
}

int gpu_program_lower_drafts(const struct gpu_source *source, bool first, enum gpu_tier tier,
                             struct gpu_program *program, struct helm_err *err)
{
    const struct plan *plan = source->plan;
    struct lowering low = {.source = source, .program = program, .ring = &source->ring[0], .err = err};
    begin(&low, &(struct gpu_program_kind){.tier = tier});
    program->stream_bytes = 0;
    lower_add(&low, plan_streams(plan, source->self) ? OP_READ_BLOCK : OP_COPY_BLOCK, -1);
    for (uint32_t r = 0; r < model_ropes(&source->model->config); r++) add_rope_table(&low, r);
    if (first) lower_hidden_states(&low);
    for (uint32_t u = plan_answer_units(plan); u < unit_count(plan->layers) && !low.rc; u++)
        lower_unit(&low, u, gpu_area(source->buffers, GPU_AREA_X));
    if (!low.rc) lower_head(&low, true);
    lower_word(&low, OP_WORD_WRITE, source->end, 1, DEVICE_EQUAL);
    program->tail = program->count;
    if (low.rc) gpu_program_free(program, source->device);
    return low.rc;
}

void gpu_program_free(struct gpu_program *program, struct device *device)
{
    if (program->graph) device->ops->graph_free(device, program->graph);
    free(program->entry);
    free(program->turn);
    memset(program, 0, sizeof *program);
}
