/* Lowering: model graph to flat programs. See program.h.
 *
 * The graph's list of a half layer is walked once; neighbours that can share a pass over their input become
 * one entry: linears of the same input        one LINEAR with a segment each (q k v; gate up) swiglu of the
 * two before it      into that LINEAR: its rows are combined while they are in the cache norms and rotations
 * of q, k      one ROTATE, which also fills the KV cache With several tokens a NORM (or a NORM without
 * weight) before each LINEAR packs its input for the matrix kernel. */
#include "worker-cpu/program.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "common/units.h"

/* With one token or a few, a thread takes three quarters of what is left of its share at a time: long runs
 * first, because each run begins with streams that nothing has prefetched; short ones at the end, where
 * others steal, so that the last chunk of a region keeps nobody waiting long. The longest is 50 to 200 us of
 * one core's share of the bandwidth, the shortest 1 to 5. */
#define GEMV_CHUNK_BYTES_MAX (2 * MIB)
#define GEMV_CHUNK_BYTES_MIN (48 * KIB)
/* The least that is worth another thread's joining in: a small model on many cores is faster on some of them,
 * and with busy neighbours much faster, because every thread that takes part can be the one that is not
 * running. */
#define GEMV_SHARE_BYTES (192 * KIB)
/* Multiply-adds of one gemm chunk of many tokens: about 50 us of one core. */
#define GEMM_CHUNK_OPS (UINT64_C(12) << 20)
#define TOKENS_A_CHUNK 8
/* What packed weights come to of their bytes, for chunk sizes: they vary by group. */
#define PACKED_SIXTEENTHS 11

enum program_tier program_tier_of(uint32_t tokens)
{
    return tokens == 1                    ? PROGRAM_TIER_ONE
           : tokens <= PROGRAM_FEW_TOKENS ? PROGRAM_TIER_FEW
                                          : PROGRAM_TIER_CHUNK;
}

bool program_tier_occurs(const struct plan *plan, uint32_t phase, enum program_tier tier)
{
    static const uint32_t first[PROGRAM_TIER_COUNT] = {1, 2, PROGRAM_FEW_TOKENS + 1},
                          last[PROGRAM_TIER_COUNT] = {1, PROGRAM_FEW_TOKENS, UINT32_MAX};
    uint32_t from = plan_phase_at(plan, phase).from_tokens, to = plan->step_tokens;
    if (phase < plan->prefill_count && plan->prefill[phase].from_tokens - 1 < to)
        to = plan->prefill[phase].from_tokens - 1;
    if (from < first[tier]) from = first[tier];
    if (to > last[tier]) to = last[tier];
    return from <= to;
}

struct lowering {
    const struct program_source *source;
    struct program *program;
    uint32_t capacity;
    uint32_t tokens; /* typical of the tier, for chunk sizes */
    bool packed;     /* inputs of linears are packed (several tokens) */
    struct helm_err *err;
};

static float *buffer_of(const struct activations *act, enum model_buffer buffer)
{
    switch (buffer) {
    case BUFFER_X:
        return act->x;
    case BUFFER_H:
        return act->h;
    case BUFFER_Q:
        return act->q;
    case BUFFER_K:
        return act->k;
    case BUFFER_V:
        return act->v;
    case BUFFER_A:
        return act->a;
    case BUFFER_GATE:
        return act->gate;
    case BUFFER_UP:
        return act->up;
    case BUFFER_LOGITS:
        return act->logits;
    case BUFFER_NONE:
        break;
    }
    return NULL;
}

static struct program_entry *add_entry(struct lowering *low, enum program_kind kind, int32_t layer)
{
    struct program *p = low->program;
    if (p->count == low->capacity) {
        uint32_t capacity = low->capacity ? low->capacity * 2 : 64;
        struct program_entry *grown = realloc(p->entry, capacity * sizeof *grown);
        if (!grown) {
            helm_fail(low->err, HELM_E_NOMEM, "no memory for a program of %u entries", capacity);
            return NULL;
        }
        p->entry = grown;
        low->capacity = capacity;
    }
    struct program_entry *e = &p->entry[p->count++];
    memset(e, 0, sizeof *e);
    e->kind = kind;
    e->layer = layer;
    e->chunk = TOKENS_A_CHUNK;
    return e;
}

static int unsupported(const struct lowering *low, int32_t layer, const char *what)
{
    return helm_fail(low->err, HELM_E_UNSUPPORTED, "layer %d: %s cannot be lowered for the CPU", layer, what);
}

static uint64_t gcd(uint64_t a, uint64_t b)
{
    while (b) {
        uint64_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

static uint64_t common_multiple(uint64_t a, uint64_t b)
{
    return a / gcd(a, b) * b;
}

/* Makes `e`, a NORM, pack for every variant of `linear`; its chunks become multiples of what each packs at
 * once. */
static void add_packs(struct program_entry *e, const struct program_entry *linear)
{
    uint64_t granule = 1;
    for (uint32_t s = 0; s < linear->segment_count; s++) {
        const struct linear_variant *v = linear->segment[s].variant;
        uint32_t i = 0;
        while (i < e->pack_count && e->pack[i] != v) i++;
        if (i == e->pack_count) e->pack[e->pack_count++] = v;
        uint64_t unit = v->pack_tokens ? v->pack_tokens : 1;
        granule = common_multiple(granule, unit);
    }
    e->chunk = (uint32_t)((TOKENS_A_CHUNK + granule - 1) / granule * granule);
}

/* Chunk sizes of one thread's share of `rows` rows, in rows; returns how many, at most `room`. */
static uint32_t cut_share(const struct lowering *low, uint64_t rows, uint64_t row_bytes, uint64_t cols,
                          uint64_t granule, uint32_t *size, uint32_t room)
{
    bool many = low->packed && low->tokens > PROGRAM_FEW_TOKENS;
    uint32_t count = 0;
    while (rows && count < room) {
        uint64_t take;
        if (many) {
            take = GEMM_CHUNK_OPS / (cols * low->tokens);
        } else {
            uint64_t bytes = rows * row_bytes * 3 / 4;
            if (bytes > GEMV_CHUNK_BYTES_MAX) bytes = GEMV_CHUNK_BYTES_MAX;
            if (bytes < GEMV_CHUNK_BYTES_MIN) bytes = GEMV_CHUNK_BYTES_MIN;
            take = bytes / row_bytes;
        }
        take = (take + granule - 1) / granule * granule;
        if (take > PROGRAM_ROWS_MAX) take = PROGRAM_ROWS_MAX / granule * granule;
        if (take < granule) take = granule;
        /* Of a gemv no row is left over for itself: alone it would be read as one stream. */
        if (take > rows || (!low->packed && rows - take < granule) || count + 1 == room) take = rows;
        size[count++] = (uint32_t)take;
        rows -= take;
    }
    return count;
}

/* What chunks of this segment's rows should be multiples of, and must be where it is packed. */
static uint64_t granule_of(const struct lowering *low, const struct program_segment *g)
{
    uint64_t unit = low->packed || low->source->coarse ? g->variant->row_granule : g->variant->gemv_streams;
    if (!unit) unit = 1;
    if (!g->offset) return unit;
    return low->packed ? common_multiple(unit, PACKED_ROWS) : PACKED_ROWS;
}

/* Of weights that it reads. */
static uint64_t segment_bytes(const struct lowering *low, const struct program_segment *g)
{
    if (!g->offset) return g->rows * (uint64_t)g->cols * dtype_bytes(g->variant->dtype);
    if (!low->source->arena) return packed_matrix_bytes_max(g->rows, g->cols);
    return packed_at(g->offset, packed_groups(g->rows));
}

/* Cuts the entry's rows into chunks: a share for each thread, in whole row granules, the same cuts in each
 * share. */
static int cut_rows(struct lowering *low, struct program_entry *e)
{
    uint64_t granule = 1, row_bytes = 1, rows_all = 0, cols = 1, all_bytes = 0;
    uint32_t threads = low->source->threads;
    for (uint32_t s = 0; s < e->segment_count; s++) {
        struct program_segment *g = &e->segment[s];
        granule = common_multiple(granule, granule_of(low, g));
        row_bytes = g->cols * dtype_bytes(g->variant->dtype);
        if (g->offset) row_bytes = row_bytes * PACKED_SIXTEENTHS / 16;
        cols = g->cols;
        g->row_first = e->swiglu ? 0 : (uint32_t)rows_all;
        rows_all += g->rows;
        all_bytes += g->rows * row_bytes;
        e->bytes += segment_bytes(low, g);
    }
    if (e->swiglu) { /* a chunk computes the same rows of both */
        row_bytes *= 2;
        cols *= 2;
        rows_all = e->segment[0].rows;
    }
    if (!low->packed || low->tokens <= PROGRAM_FEW_TOKENS) {
        uint64_t worth = all_bytes / GEMV_SHARE_BYTES;
        if (worth < threads) threads = worth ? (uint32_t)worth : 1;
        e->share = threads;
        e->alone = threads == 1;
    }
    uint64_t share = (rows_all + threads - 1) / threads;
    if (low->packed || low->source->coarse || e->packed) share = (share + granule - 1) / granule * granule;
    uint32_t room = (POOL_CHUNKS_MAX / 4) / threads;
    if (room > share) room = (uint32_t)share;
    uint32_t *size = malloc((room + 1) * sizeof *size);
    if (!size) return helm_fail(low->err, HELM_E_NOMEM, "no memory for %u chunks", room);
    uint32_t count = cut_share(low, share, row_bytes, cols, granule, size, room);
    e->chunks = count * threads;
    e->bound = malloc((e->chunks + 1) * sizeof *e->bound);
    if (e->bound) {
        for (uint32_t t = 0; t < threads; t++) {
            uint64_t at = t * share;
            for (uint32_t i = 0; i < count; i++, at += size[i - 1])
                e->bound[t * count + i] = (uint32_t)(at < rows_all ? at : rows_all);
        }
        e->bound[e->chunks] = (uint32_t)rows_all;
    }
    free(size);
    return e->bound ? 0 : helm_fail(low->err, HELM_E_NOMEM, "no memory for %u chunks", e->chunks);
}

static int add_segment(struct lowering *low, struct program_entry *e, const struct model_op *op,
                       int32_t layer)
{
    const struct program_source *s = low->source;
    const struct weights_matrix *m = weights_matrix(s->weights, op->weight, layer);
    float *out = buffer_of(s->act, op->out);
    if (!m->data || !out) return unsupported(low, layer, "a linear without weights or output");
    if (e->segment_count && e->packed != (m->offset != NULL))
        return unsupported(low, layer, "a linear of packed and plain weights");
    e->packed = m->offset != NULL;
    struct program_segment *g = &e->segment[e->segment_count++];
    *g = (struct program_segment){.variant = s->kernels->linear[m->dtype],
                                  .w = m->data,
                                  .offset = m->offset,
                                  .bias = op->bias == TENSOR_NONE
                                              ? NULL
                                              : weights_vector(s->weights, op->bias, layer),
                                  .out = out,
                                  .rows = (uint32_t)m->rows,
                                  .cols = (uint32_t)m->cols,
                                  .out_width = s->act->width[op->out],
                                  .role = op->weight};
    return 0;
}

/* ops[0 .. *used): linears of one input, and the swiglu that combines two of them. */
static int lower_linear(struct lowering *low, const struct model_op *ops, uint32_t count, int32_t layer,
                        bool sampled, uint32_t *used)
{
    struct program_entry linear = {.kind = PROGRAM_LINEAR, .layer = layer, .sampled = sampled};
    uint32_t n = 0;
    linear.accumulate = ops[0].accumulate;
    linear.in = buffer_of(low->source->act, ops[0].in);
    linear.width = low->source->act->width[ops[0].in];
    while (n < count && n < PROGRAM_SEGMENTS_MAX && ops[n].kind == OP_LINEAR && ops[n].in == ops[0].in &&
           ops[n].accumulate == ops[0].accumulate) {
        int rc = add_segment(low, &linear, &ops[n], layer);
        if (rc) return rc;
        n++;
    }
    bool pair = n == 2 && n < count && ops[2].kind == OP_SWIGLU && ops[2].in == ops[0].out &&
                ops[2].in2 == ops[1].out && ops[2].out == ops[0].out && !linear.accumulate;
    if (pair) {
        linear.swiglu = true;
        n++;
    }
    if (low->packed) {
        /* The norm just before is this input's: it packs what it wrote while that is in the cache. */
        struct program *p = low->program;
        struct program_entry *norm = p->count ? &p->entry[p->count - 1] : NULL;
        if (!norm || norm->kind != PROGRAM_NORM || norm->out != linear.in || norm->pack_count) {
            norm = add_entry(low, PROGRAM_NORM, layer);
            if (!norm) return HELM_E_NOMEM;
            norm->in = linear.in;
            norm->width = linear.width;
            norm->sampled = sampled;
        }
        add_packs(norm, &linear);
    }
    struct program_entry *e = add_entry(low, PROGRAM_LINEAR, layer);
    if (!e) return HELM_E_NOMEM;
    *e = linear;
    *used = n;
    int rc = cut_rows(low, e); /* after it is in the program, which owns what this allocates */
    low->program->bytes += e->bytes;
    return rc;
}

/* Head norms, rotations and the attention that ends them. */
static int lower_attention(struct lowering *low, const struct model_op *ops, uint32_t count, int32_t layer,
                           uint32_t kv_layer, uint32_t *used)
{
    const struct program_source *s = low->source;
    struct program_entry *rotate = add_entry(low, PROGRAM_ROTATE, layer);
    if (!rotate) return HELM_E_NOMEM;
    uint32_t n = 0, rotated = 0;
    rotate->kv_layer = kv_layer;
    low->program->entry[0].rotates = true;
    for (; n < count && ops[n].kind != OP_ATTENTION; n++) {
        bool is_q = ops[n].in == BUFFER_Q, is_k = ops[n].in == BUFFER_K;
        if (ops[n].out != ops[n].in || (!is_q && !is_k))
            return unsupported(low, layer, "this operation on heads");
        if (ops[n].kind == OP_ROPE) {
            rotated |= is_q ? 1u : 2u;
        } else if (ops[n].kind == OP_HEAD_NORM && !(rotated & (is_q ? 1u : 2u))) {
            const float *w = weights_vector(s->weights, ops[n].weight, layer);
            if (is_q)
                rotate->norm = w;
            else
                rotate->norm2 = w;
        } else {
            return unsupported(low, layer, "this order of norm and rotation");
        }
    }
    if (n == count || rotated != 3) return unsupported(low, layer, "attention without rotation of q and k");
    struct program_entry *attend = add_entry(low, PROGRAM_ATTEND, layer);
    if (!attend) return HELM_E_NOMEM;
    attend->kv_layer = kv_layer;
    attend->window = s->model->config.window ? s->model->config.window[layer] : 0;
    *used = n + 1;
    return 0;
}

static int lower_norm(struct lowering *low, const struct model_op *op, int32_t layer, bool sampled)
{
    const struct program_source *s = low->source;
    struct program_entry *e = add_entry(low, PROGRAM_NORM, layer);
    if (!e) return HELM_E_NOMEM;
    e->norm = weights_vector(s->weights, op->weight, layer);
    e->in = buffer_of(s->act, op->in);
    e->out = buffer_of(s->act, op->out);
    e->width = s->act->width[op->in];
    e->sampled = sampled;
    if (!e->norm) return unsupported(low, layer, "a norm without weight");
    return 0;
}

static int lower_ops(struct lowering *low, const struct model_op *ops, uint32_t count, int32_t layer,
                     uint32_t kv_layer, bool sampled)
{
    for (uint32_t i = 0, used = 1; i < count; i += used) {
        int rc = 0;
        used = 1;
        switch (ops[i].kind) {
        case OP_EMBED: /* an entry of its own, first in the program */
            if (!weights_matrix(low->source->weights, TENSOR_EMBED, -1)->data)
                rc = unsupported(low, layer, "an embedding that is not here");
            else
                low->program->entry[0].gather = true;
            break;
        case OP_RMSNORM:
            rc = lower_norm(low, &ops[i], layer, sampled);
            break;
        case OP_LINEAR:
            rc = lower_linear(low, ops + i, count - i, layer, sampled, &used);
            break;
        case OP_HEAD_NORM:
        case OP_ROPE:
        case OP_ATTENTION:
            rc = lower_attention(low, ops + i, count - i, layer, kv_layer, &used);
            break;
        case OP_SWIGLU:
            rc = unsupported(low, layer, "swiglu of anything but the two linears before it");
            break;
        }
        if (rc) return rc;
    }
    return 0;
}

/* Half a layer: its attention or its MLP. */
static int lower_unit(struct lowering *low, uint32_t unit)
{
    const struct program_source *s = low->source;
    const struct model_graph *graph = &s->model->graph;
    uint32_t mlp_at = model_graph_mlp_at(graph), layer = unit / 2, kv_layer = 0;
    if (unit & 1)
        return lower_ops(low, graph->layer + mlp_at, graph->layer_count - mlp_at, (int32_t)layer, 0, false);
    if (plan_kv_of(s->plan, layer, &kv_layer) != PLAN_HOME_CPU)
        return helm_fail(low->err, HELM_E_UNSUPPORTED, "layer %u: its KV cache is not the CPU's", layer);
    return lower_ops(low, graph->layer, mlp_at, (int32_t)layer, kv_layer, false);
}

/* The other worker's activations in, our half layers, ours out. */
static int lower_span(struct lowering *low, const struct plan_span *span)
{
    const struct program_source *s = low->source;
    const struct model_graph *graph = &s->model->graph;
    int rc = 0;
    if (span->ticket_in) {
        struct program_entry *e = add_entry(low, PROGRAM_RECEIVE, -1);
        if (!e) return HELM_E_NOMEM;
        e->lane = s->arena ? arena_lane_of(s->arena, LANE_TO_CPU) : NULL;
        e->ticket = span->ticket_in;
        e->last = span->last_in;
    }
    if (span->embed) rc = lower_ops(low, graph->prologue, graph->prologue_count, -1, 0, false);
    for (uint32_t u = 0; u < span->unit_count && !rc; u++) rc = lower_unit(low, span->first_unit + u);
    if (rc || !span->ticket_out) return rc;
    struct program_entry *e = add_entry(low, PROGRAM_SEND, -1);
    if (!e) return HELM_E_NOMEM;
    e->lane = s->arena ? arena_lane_of(s->arena, LANE_TO_GPU) : NULL;
    e->ticket = span->ticket_out;
    return 0;
}

int program_lower(const struct program_source *source, uint32_t phase, enum program_tier tier,
                  struct program *program, struct helm_err *err)
{
    static const uint32_t typical[PROGRAM_TIER_COUNT] = {1, PROGRAM_FEW_TOKENS, 256};
    struct lowering low = {.source = source,
                           .program = program,
                           .tokens = typical[tier],
                           .packed = tier != PROGRAM_TIER_ONE,
                           .err = err};
    memset(program, 0, sizeof *program);
    program->packed = low.packed;
    struct plan_span *spans = NULL;
    uint32_t span_count = 0;
    int rc = plan_spans(source->plan, phase, &spans, &span_count, err);
    if (!rc && !add_entry(&low, PROGRAM_EMBED, -1)) rc = HELM_E_NOMEM;
    for (uint32_t i = 0; i < span_count && !rc; i++)
        if (spans[i].worker == PLAN_HOME_CPU) rc = lower_span(&low, &spans[i]);
    free(spans);
    if (!rc && !program->entry[0].gather && !program->entry[0].rotates) {
        program->count--;
        memmove(program->entry, program->entry + 1, program->count * sizeof *program->entry);
    }
    if (rc) program_free(program);
    return rc;
}

int program_lower_head(const struct program_source *source, bool many, struct program *program,
                       struct helm_err *err)
{
    const struct model_graph *graph = &source->model->graph;
    struct lowering low = {.source = source,
                           .program = program,
                           .tokens = many ? PROGRAM_FEW_TOKENS : 1,
                           .packed = many,
                           .err = err};
    memset(program, 0, sizeof *program);
    program->packed = many;
    int rc = lower_ops(&low, graph->epilogue, graph->epilogue_count, -1, 0, true);
    if (!rc && !add_entry(&low, PROGRAM_SAMPLE, -1)) rc = HELM_E_NOMEM;
    if (rc)
        program_free(program);
    else
        program->entry[program->count - 1].sampled = true;
    return rc;
}

void program_free(struct program *program)
{
    for (uint32_t i = 0; i < program->count; i++) free(program->entry[i].bound);
    free(program->entry);
    memset(program, 0, sizeof *program);
}

static uint32_t max_u32(uint32_t a, uint32_t b)
{
    return a > b ? a : b;
}

int activations_create(const struct model_config *c, const struct kernel_set *kernels,
                       const struct activations_size *size, float *logits, struct activations *act,
                       struct helm_err *err)
{
    memset(act, 0, sizeof *act);
    uint32_t wide = (c->head_dim + 1) / 2, units = size->unit_tokens;
    uint32_t packable = max_u32(units, size->sampled_rows); /* tokens of one linear's input */
    uint32_t tokens[BUFFER_LOGITS];
    for (uint32_t b = BUFFER_X; b < BUFFER_LOGITS; b++) tokens[b] = units;
    tokens[BUFFER_X] = max_u32(units, size->end_tokens);
    tokens[BUFFER_H] = packable;
    const uint32_t width[BUFFER_LOGITS + 1] = {[BUFFER_X] = c->hidden,
                                               [BUFFER_H] = c->hidden,
                                               [BUFFER_Q] = c->heads * c->head_dim,
                                               [BUFFER_K] = c->kv_heads * c->head_dim,
                                               [BUFFER_V] = c->kv_heads * c->head_dim,
                                               [BUFFER_A] = c->heads * c->head_dim,
                                               [BUFFER_GATE] = c->intermediate,
                                               [BUFFER_UP] = c->intermediate,
                                               [BUFFER_LOGITS] = c->vocab};
    memcpy(act->width, width, sizeof width);
    float **buffer[] = {&act->x, &act->h, &act->q, &act->k, &act->v, &act->a, &act->gate, &act->up};
    uint64_t floats = 2 * (uint64_t)units * wide + 32, packed[DTYPE_COUNT] = {0}, bytes;
    uint32_t widest = c->hidden;
    for (uint32_t b = BUFFER_X; b < BUFFER_LOGITS; b++) {
        floats += ((uint64_t)tokens[b] * width[b] + 15) / 16 * 16;
        if (units) widest = max_u32(widest, width[b]);
    }
    bytes = floats * sizeof(float);
    uint64_t tiles = (packable + PROGRAM_TILE_TOKENS - 1) / PROGRAM_TILE_TOKENS;
    uint32_t tile = packable < PROGRAM_TILE_TOKENS ? packable : PROGRAM_TILE_TOKENS;
    for (int d = 0; d < DTYPE_COUNT && packable; d++) {
        if (!(size->dtypes >> d & 1)) continue;
        packed[d] = (kernels->linear[d]->packed_bytes(tile, widest) + 63) / 64 * 64 * tiles;
        bytes += packed[d];
    }
    bytes = (bytes + ARENA_HUGE_PAGE - 1) / ARENA_HUGE_PAGE * ARENA_HUGE_PAGE;
    act->memory = aligned_alloc(ARENA_HUGE_PAGE, (size_t)bytes);
    if (!act->memory)
        return helm_fail(err, HELM_E_NOMEM, "no memory for %llu bytes of activations",
                         (unsigned long long)bytes);
    act->bytes = bytes;
    madvise(act->memory, (size_t)bytes, MADV_HUGEPAGE);
    memset(act->memory, 0, (size_t)bytes);
    float *at = act->memory;
    for (uint32_t b = BUFFER_X; b < BUFFER_LOGITS; b++) {
        *buffer[b - BUFFER_X] = at;
        at += ((uint64_t)tokens[b] * width[b] + 15) / 16 * 16;
    }
    uint64_t half = ((uint64_t)units * wide + 15) / 16 * 16;
    act->cosine = at;
    act->sine = at + half;
    char *raw = (char *)(at + 2 * half);
    for (int d = 0; d < DTYPE_COUNT; d++) {
        act->packed[d] = raw;
        raw += packed[d];
    }
    act->logits = logits;
    return 0;
}

void activations_free(struct activations *act)
{
    free(act->memory);
    memset(act, 0, sizeof *act);
}
