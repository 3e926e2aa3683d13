/* Lowering the GPU's spans: phases and tiers, hand-overs, embedding and head, what the copy queue does. See
 * program.h; halves of layers are in program_layer.c, issuing in issue.c. */
#include "worker-gpu/program.h"

#include <stdlib.h>
#include <string.h>

#include "worker-gpu/program_lower.h"

static const uint32_t tier_tokens[GPU_TIER_COUNT] = {1, 2, 4, 8, GPUK_BATCH_MAX, UINT32_MAX};

enum gpu_tier gpu_tier_of(uint32_t tokens)
{
    enum gpu_tier tier = GPU_TIER_1;
    while (tokens > tier_tokens[tier]) tier++;
    return tier;
}

/* ---- phases ---- */

int gpu_program_check_phases(const struct plan *plan, struct helm_err *err)
{
    for (uint32_t p = 1; p < plan_phase_count(plan); p++)
        if (plan_phase_at(plan, p).from_tokens < GPU_CHUNK_TOKENS)
            return helm_fail(
                err, HELM_E_UNSUPPORTED,
                "prefill list %u begins at %u tokens; the GPU worker takes such lists from %d on", p,
                plan_phase_at(plan, p).from_tokens, GPU_CHUNK_TOKENS);
    return 0;
}

bool gpu_program_exists(const struct plan *plan, uint32_t step_tokens, uint32_t phase, enum gpu_tier tier)
{
    uint32_t first = plan_phase_at(plan, phase).from_tokens, last = step_tokens;
    if (phase < plan->prefill_count && plan->prefill[phase].from_tokens - 1 < last)
        last = plan->prefill[phase].from_tokens - 1;
    if (tier > GPU_TIER_1 && tier_tokens[tier - 1] + 1 > first) first = tier_tokens[tier - 1] + 1;
    if (tier_tokens[tier] < last) last = tier_tokens[tier];
    return first <= last;
}

/* ---- entries ---- */

struct gpu_entry *lower_add(struct lowering *low, enum gpu_kind kind, int32_t layer)
{
    struct gpu_program *p = low->program;
    if (p->count == p->capacity) {
        uint32_t capacity = p->capacity ? p->capacity * 2 : 64;
        struct gpu_entry *grown = realloc(p->entry, capacity * sizeof *grown);
        if (!grown) {
            low->rc = helm_fail(low->err, HELM_E_NOMEM, "no memory for a program of %u entries", capacity);
            return &low->nowhere;
        }
        p->entry = grown;
        p->capacity = capacity;
    }
    struct gpu_entry *e = &p->entry[p->count++];
    memset(e, 0, sizeof *e);
    e->kind = kind;
    e->layer = layer;
    e->sub = GPU_SUB_ALL;
    return e;
}

static void add_word(struct lowering *low, enum gpu_kind kind, _Atomic uint32_t *word, uint32_t value,
                     enum device_compare compare)
{
    struct gpu_entry *e = lower_add(low, kind, -1);
    e->as.word.word = word;
    e->as.word.value = value;
    e->as.word.compare = compare;
}

void lower_event(struct lowering *low, enum gpu_kind kind, enum device_queue queue, uint32_t event)
{
    struct gpu_entry *e = lower_add(low, kind, -1);
    e->as.event.queue = queue;
    e->as.event.event = event;
}

const struct gpu_matrix *lower_matrix(struct lowering *low, enum tensor_role role, int32_t layer)
{
    const struct gpu_matrix *m = gpu_matrix_of(low->source->weights, role, layer);
    if (!m->data && !low->rc)
        low->rc =
            helm_fail(low->err, HELM_E_INTERNAL, "layer %d: weights %d are not in VRAM", layer, (int)role);
    return m;
}

struct gpu_entry *lower_linear(struct lowering *low, int32_t layer, const float *x, uint32_t x_stride)
{
    struct gpu_entry *e = lower_add(low, low->program->tier == GPU_TIER_1 ? GPU_GEMV : GPU_GEMM_SMALL, layer);
    e->as.linear.x = x;
    e->as.linear.x_stride = x_stride;
    e->as.linear.eps = (float)low->source->model->config.norm_eps;
    return e;
}

void lower_segment(struct lowering *low, struct gpu_entry *e, const struct gpu_matrix *m, const void *data,
                   const float *bias, float *out, uint32_t rows, uint32_t out_stride)
{
    struct gpuk_linear_args *l = &e->as.linear;
    if (l->segments && l->dtype != m->dtype && !low->rc)
        low->rc = helm_fail(low->err, HELM_E_UNSUPPORTED, "layer %d: matrices of one input have two dtypes",
                            e->layer);
    l->dtype = m->dtype;
    l->cols = m->cols;
    l->out_stride = out_stride;
    l->segment[l->segments++] = (struct gpuk_linear){.weight = data, .bias = bias, .out = out, .rows = rows};
}

/* ---- the copy queue ---- */

static void add_copy(struct lowering *low, uint32_t index, uint32_t event)
{
    const struct ring_slice *slice = &low->ring->slice[index];
    struct gpu_entry *e = lower_add(low, GPU_STREAM_COPY, (int32_t)(slice->unit / 2));
    e->as.stream.slice = index;
    e->as.stream.event = event;
    for (uint32_t i = 0; i < slice->part_count && index < low->ring->count; i++)
        low->program->copy_bytes += slice->part[i].bytes;
}

void lower_copies(struct lowering *low, int32_t used)
{
    const struct ring_schedule *ring = low->ring;
    bool first = true;
    for (; low->next_copy < ring->count && ring->slice[low->next_copy].after <= used; low->next_copy++) {
        if (ring->slice[low->next_copy].held) continue;
        if (first && used >= 0) {
            lower_event(low, GPU_RECORD, DEVICE_COMPUTE, gpu_event_used((uint32_t)used));
            lower_event(low, GPU_FOLLOW, DEVICE_COPY, gpu_event_used((uint32_t)used));
        }
        first = false;
        add_copy(low, low->next_copy, gpu_event_arrived(low->next_copy));
    }
    if (low->next_copy < ring->count) return;
    /* Those of the tail stand at the end of the list; here their way is set free. */
    for (first = true; low->next_tail < ring->tail; low->next_tail++, first = false) {
        if (ring->slice[ring->count + low->next_tail].after > used) break;
        if (first) lower_event(low, GPU_RECORD, DEVICE_COMPUTE, low->source->events.tail + low->next_tail);
    }
}

bool lower_takes_packed(const struct lowering *low, enum ring_op op, const struct lower_rows *rows,
                        uint32_t count)
{
    struct device *d = low->source->device;
    struct gpuk_linear_args args = {.segments = count, .swiglu = op == RING_GATE_UP};
    for (uint32_t i = 0; i < count; i++) {
        args.dtype = rows[i].matrix->dtype;
        args.cols = rows[i].matrix->cols;
        args.segment[i] = (struct gpuk_linear){.weight = rows[i].data, .rows = rows[i].rows};
    }
    return d->kernels.gemv_packed_takes(d, &args);
}

bool lower_is_read_packed(const struct lowering *low, const struct ring_slice *slice)
{
    const struct gpu_source *s = low->source;
    struct lower_rows rows[RING_PARTS_MAX];
    if (!slice->expanded || low->program->tier != GPU_TIER_1) return false;
    for (uint32_t i = 0; i < slice->part_count; i++) {
        const struct ring_part *p = &slice->part[i];
        rows[i] =
            (struct lower_rows){.matrix = gpu_matrix_of(s->weights, p->role, (int32_t)(slice->unit / 2)),
                                .data = s->ring_memory + slice->place + p->at,
                                .rows = p->rows};
    }
    return lower_takes_packed(low, slice->op, rows, slice->part_count);
}

void lower_arrival(struct lowering *low, uint32_t index)
{
    const struct ring_slice *slice = &low->ring->slice[index];
    if (!slice->held)
        lower_event(low, GPU_FOLLOW, DEVICE_COMPUTE, gpu_event_arrived(index));
    else if (lower_is_copied(low, slice->prefix))
        lower_event(low, GPU_FOLLOW, DEVICE_COMPUTE, low->source->events.prefix + slice->prefix);
    if (!slice->expanded || lower_is_read_packed(low, slice)) return;
    lower_add(low, GPU_EXPAND, (int32_t)(slice->unit / 2))->as.stream.slice = index;
    lower_copies(low, (int32_t)index);
}

void lower_expand_home(struct lowering *low, uint32_t index)
{
    const struct ring_slice *slice = &low->source->home->slice[index];
    struct gpu_entry *e =
        lower_add(low, GPU_EXPAND, slice->op == RING_HEAD ? -1 : (int32_t)(slice->unit / 2));
    e->as.stream.slice = index;
    e->home = true;
}

/* While the CPU computes, the span's first packed slice is expanded: where it will be, nothing is in use any
 * more, unless what lies packed in VRAM is expanded before it. By then it has come, unless the link is far
 * behind, and then the span would wait for it all the same. */
static void expand_ahead(struct lowering *low, const struct plan_span *span)
{
    if (low->next_slice >= low->ring->count) return;
    const struct ring_slice *slice = &low->ring->slice[low->next_slice];
    const struct ring_schedule *home = low->source->home;
    if (!slice->expanded || slice->unit >= span->first_unit + span->unit_count ||
        lower_is_read_packed(low, slice))
        return;
    if (low->next_home < home->count && home->slice[low->next_home].unit < slice->unit) return;
    low->ahead = low->next_slice + 1;
    lower_arrival(low, low->next_slice);
}

/* The tail: behind the program's own copies, each as soon as what it overwrites has been used. Several that
 * wait for the same use follow one event. */
static void lower_tail(struct lowering *low)
{
    const struct ring_schedule *ring = low->ring;
    low->program->tail = low->program->count;
    for (uint32_t t = 0; t < ring->tail; t++) {
        const struct ring_slice *slice = &ring->slice[ring->count + t];
        if (t == 0 || slice[-1].after < slice->after)
            lower_event(low, GPU_FOLLOW, DEVICE_COPY, low->source->events.tail + t);
        add_copy(low, ring->count + t, low->source->events.prefix + slice->prefix);
    }
}

bool lower_is_copied(const struct lowering *low, uint32_t prefix)
{
    const struct gpu_source *s = low->source;
    for (uint32_t p = 0; p < plan_phase_count(s->plan); p++)
        for (uint32_t t = 0; t < s->ring[p].tail; t++)
            if (s->ring[p].slice[s->ring[p].count + t].prefix == prefix) return true;
    return false;
}

/* The `index`th layer whose cache this phase borrows; false where there are fewer. */
static bool borrowed_layer(const struct plan *plan, uint32_t phase, uint32_t index, uint32_t *layer,
                           uint32_t *kv_layer)
{
    for (*layer = 0; *layer < plan->layers; ++*layer) {
        if (plan_home_worker(plan_unit_home(plan, phase, 2 * *layer)) != PLAN_HOME_GPU ||
            plan_kv_of(plan, *layer, kv_layer) == PLAN_HOME_GPU)
            continue;
        if (index-- == 0) return true;
    }
    return false;
}

void lower_fetches(struct lowering *low)
{
    uint32_t layer, kv_layer;
    while (low->fetched < low->borrowed + GPU_STAGINGS &&
           borrowed_layer(low->source->plan, low->program->phase, low->fetched, &layer, &kv_layer)) {
        uint32_t staging = low->fetched++ % GPU_STAGINGS;
        struct gpu_entry *e = lower_add(low, GPU_KV_IN, (int32_t)layer);
        e->as.borrow.kv_layer = kv_layer;
        e->as.borrow.staging = staging;
        e->as.borrow.event = GPU_EVENT_KV_IN + staging;
    }
}

/* Whether this program copies something before it has used anything of the ring: it must not overtake the
 * use that the step before made of the same places. */
static bool begins_with_copies(const struct lowering *low)
{
    const struct ring_schedule *ring = low->ring;
    uint32_t layer, kv_layer;
    for (uint32_t i = 0; i < ring->count && ring->slice[i].after < 0; i++)
        if (!ring->slice[i].held) return true;
    return borrowed_layer(low->source->plan, low->program->phase, 0, &layer, &kv_layer);
}

/* ---- the ends ---- */

/* Rows `row` .. row + rows of the head, at `data`, over up to GPUK_BATCH_MAX samples. */
static struct gpu_entry *add_head(struct lowering *low, const struct gpu_matrix *m, const void *data,
                                  uint32_t row, uint32_t rows, uint32_t group)
{
    const struct gpu_source *s = low->source;
    const struct model_config *c = &s->model->config;
    const struct gpu_buffers *b = s->buffers;
    bool one = low->program->tier == GPU_TIER_1;
    const float *x = one ? b->x : b->sample + (size_t)group * GPUK_BATCH_MAX * c->hidden;
    struct gpu_entry *e = lower_linear(low, -1, x, c->hidden);
    e->head = true;
    e->group = group;
    e->as.linear.norm = gpu_vector_of(s->weights, s->model->graph.epilogue[0].weight, -1);
    lower_segment(low, e, m, data, NULL, b->logits + (size_t)group * GPUK_BATCH_MAX * c->vocab + row, rows,
                  c->vocab);
    return e;
}

/* Packed: by one product of the whole for one sample, if the device does that; else a slice at a time. */
static void lower_packed_head(struct lowering *low, const struct gpu_matrix *m, uint32_t groups)
{
    const struct gpu_source *s = low->source;
    const struct lower_rows whole = {.matrix = m, .data = m->data, .rows = m->rows};
    enum gpu_when when = GPU_WHEN_ANY;
    if (lower_takes_packed(low, RING_HEAD, &whole, 1)) {
        struct gpu_entry *e = add_head(low, m, m->data, 0, m->rows, 0);
        e->kind = GPU_GEMV;
        e->packed = true;
        e->offset[0] = m->offset_device;
        if (low->program->tier == GPU_TIER_1) return;
        e->when = GPU_WHEN_ONE;
        when = GPU_WHEN_SEVERAL;
    }
    for (uint32_t i = 0; i < s->home->count && !low->rc; i++) {
        const struct ring_slice *slice = &s->home->slice[i];
        if (slice->op != RING_HEAD) continue;
        lower_expand_home(low, i);
        struct gpu_entry *expand = &low->program->entry[low->program->count - 1];
        expand->head = true;
        expand->when = when;
        for (uint32_t g = 0; g < groups && !low->rc; g++) {
            const struct ring_part *part = &slice->part[0];
            struct gpu_entry *e = add_head(low, m, s->expanded + part->out, part->row, part->rows, g);
            e->slice = true;
            e->when = when;
        }
    }
}

static void lower_head(struct lowering *low)
{
    struct gpu_program *p = low->program;
    bool one = p->tier == GPU_TIER_1;
    if (!one) lower_add(low, GPU_GATHER, -1)->head = true;
    uint32_t groups = one ? 1 : (p->samples + GPUK_BATCH_MAX - 1) / GPUK_BATCH_MAX;
    const struct gpu_matrix *m = lower_matrix(low, TENSOR_HEAD, -1);
    if (m->packed)
        lower_packed_head(low, m, groups);
    else
        for (uint32_t g = 0; g < groups; g++) add_head(low, m, m->data, 0, m->rows, g);
    lower_add(low, GPU_ARGMAX, -1)->head = true;
}

static int check_ends(const struct model_graph *g, struct helm_err *err)
{
    bool ok = g->prologue_count == 1 && g->prologue[0].kind == OP_EMBED && g->epilogue_count == 2 &&
              g->epilogue[0].kind == OP_RMSNORM && g->epilogue[1].kind == OP_LINEAR &&
              g->epilogue[1].bias == TENSOR_NONE;
    return ok ? 0 : helm_fail(err, HELM_E_UNSUPPORTED, "embedding or head cannot be lowered for the GPU");
}

/* ---- spans ---- */

static void lower_span(struct lowering *low, const struct plan_span *span, bool last_out)
{
    const struct gpu_source *s = low->source;
    bool chunk = low->program->tier == GPU_TIER_CHUNK;
    if (span->ticket_in) {
        expand_ahead(low, span);
        struct lane *in = arena_lane_of(s->arena, LANE_TO_GPU);
        add_word(low, GPU_WORD_WAIT, &in->bell.value, span->ticket_in, DEVICE_AT_LEAST);
        struct gpu_entry *e = lower_add(low, GPU_LANE_READ, -1);
        e->as.move.from = in->data;
        e->as.move.to = s->buffers->x;
    }
    if (span->embed) {
        const struct gpu_matrix *m = lower_matrix(low, TENSOR_EMBED, -1);
        struct gpu_entry *e = lower_add(low, GPU_EMBED, -1);
        e->as.embed.table = m->data;
        e->as.embed.dtype = m->dtype;
    }
    struct lane *out = span->ticket_out ? arena_lane_of(s->arena, LANE_TO_CPU) : NULL;
    if (span->ticket_out == 1) add_word(low, GPU_WORD_WAIT, &out->bell.value, 0, DEVICE_EQUAL);
    bool direct = out && span->unit_count && !chunk && !span->head;
    for (uint32_t u = 0; u < span->unit_count && !low->rc; u++) {
        uint32_t unit = span->first_unit + u;
        if (chunk)
            lower_chunk_unit(low, unit);
        else
            lower_decode_unit(low, unit, direct && u + 1 == span->unit_count ? out->data : s->buffers->x);
    }
    if (span->head) lower_head(low);
    /* Taken long ago; but as long as the word stands, the host sees whose turn it is (step.c). */
    if (span->ticket_in && span->last_in)
        add_word(low, GPU_WORD_WRITE, &arena_lane_of(s->arena, LANE_TO_GPU)->bell.value, 0, DEVICE_EQUAL);
    low->program->turn[low->program->turns++] =
        (struct gpu_turn){.in = span->ticket_in, .out = span->ticket_out, .last_out = last_out};
    if (!out) return;
    if (!direct) {
        struct gpu_entry *e = lower_add(low, GPU_LANE_WRITE, -1);
        e->as.move.from = s->buffers->x;
        e->as.move.to = out->data;
    }
    add_word(low, GPU_WORD_WRITE, &out->bell.value, span->ticket_out, DEVICE_EQUAL);
    if (last_out) add_word(low, GPU_WORD_WRITE, s->sent, 1, DEVICE_EQUAL);
}

/* All spans, between beginning and end of what the copy queue does for them. The step is done when the
 * compute queue is and what was borrowed is back. */
static void lower_step(struct lowering *low, const struct plan_span *spans, uint32_t count)
{
    const struct ring_schedule *ring = low->ring;
    bool layers = false;
    for (uint32_t i = 0; i < count; i++)
        layers |= spans[i].worker == PLAN_HOME_GPU && spans[i].unit_count > 0;
    if (begins_with_copies(low)) {
        lower_event(low, GPU_RECORD, DEVICE_COMPUTE, GPU_EVENT_BEGIN);
        lower_event(low, GPU_FOLLOW, DEVICE_COPY, GPU_EVENT_BEGIN);
    }
    bool streams = plan_has_home(low->source->plan, PLAN_HOME_STREAM);
    if (!low->source->follows) lower_add(low, streams ? GPU_READ_BLOCK : GPU_COPY_BLOCK, -1);
    lower_fetches(low);
    lower_copies(low, -1);
    if (layers) lower_add(low, GPU_ROPE_TABLE, -1);
    for (uint32_t i = 0; i < count && !low->rc; i++)
        if (spans[i].worker == PLAN_HOME_GPU) /* where we have another turn after the CPU's last */
            lower_span(low, &spans[i], i + 2 < count && spans[i + 1].last_in);
    if (low->borrowed) lower_event(low, GPU_FOLLOW, DEVICE_COMPUTE, GPU_EVENT_KV_BACK);
    add_word(low, GPU_WORD_WRITE, low->source->end, 1, DEVICE_EQUAL);
    lower_tail(low);
    if (!low->rc &&
        (low->next_slice != ring->count || low->next_copy != ring->count || low->next_tail != ring->tail))
        low->rc =
            helm_fail(low->err, HELM_E_INTERNAL, "of %u slices %u are used, %u copied, and %u of %u more",
                      ring->count, low->next_slice, low->next_copy, low->next_tail, ring->tail);
}

int gpu_program_lower(const struct gpu_source *source, uint32_t phase, enum gpu_tier tier,
                      struct gpu_program *program, struct helm_err *err)
{
    const struct arena_header *h = arena_header_of(source->arena);
    struct lowering low = {.source = source, .program = program, .ring = &source->ring[phase], .err = err};
    struct plan_span *spans = NULL;
    uint32_t span_count = 0;
    memset(program, 0, sizeof *program);
    program->phase = phase;
    program->tier = tier;
    program->tokens = tier == GPU_TIER_CHUNK ? source->buffers->tokens : tier_tokens[tier];
    program->samples = program->tokens < h->slots ? program->tokens : h->slots;
    program->stream_bytes = source->ring[phase].weight_bytes;
    gpu_block_place(program->tokens, program->samples, h->pages_per_slot, &program->block);
    program->step = gpu_block_step(&program->block, source->buffers->block, h->pages_per_slot, GPU_SUB_ALL);
    low.rc = lower_match_layer(&source->model->graph, &low.shape, err);
    if (!low.rc) low.rc = check_ends(&source->model->graph, err);
    if (!low.rc) low.rc = plan_spans(source->plan, phase, &spans, &span_count, err);
    if (!low.rc && !(program->turn = calloc((size_t)span_count + 1, sizeof *program->turn)))
        low.rc = helm_fail(err, HELM_E_NOMEM, "no memory for %u spans", span_count);
    if (!low.rc) lower_step(&low, spans, span_count);
    if (!low.rc) lower_chains(&low);
    free(spans);
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
