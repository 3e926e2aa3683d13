/* Lowering the GPU's spans. See program.h.
 *
 * Decode tiers take five operations a layer: q k v with the norm in front; attention with head norms,
 * rotation and append (one token) or after them (several); o with the residual; gate and up with norm and
 * swiglu; down with the residual. The last of a span writes into the lane itself. A chunk normalises into
 * 16-bit rows and multiplies matrices. */
#include "worker-gpu/program.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const uint32_t tier_tokens[GPU_TIER_COUNT] = {1, 2, 4, 8, 16, UINT32_MAX};

enum gpu_tier gpu_tier_of(uint32_t tokens)
{
    enum gpu_tier tier = GPU_TIER_1;
    while (tokens > tier_tokens[tier]) tier++;
    return tier;
}

/* Which weights stand where in a layer, as its graph says. */
struct layer_shape {
    enum tensor_role attn_norm, mlp_norm, q_norm, k_norm;
    struct {
        enum tensor_role weight, bias;
    } q, k, v, o, gate, up, down;
};

struct lowering {
    const struct gpu_source *source;
    struct gpu_program *program;
    struct layer_shape shape;
    struct helm_err *err;
    int rc;
    struct gpu_entry nowhere; /* where an entry goes that found no memory: never issued, rc is set */
};

static uint64_t round_up(uint64_t bytes, uint64_t unit)
{
    return (bytes + unit - 1) / unit * unit;
}

/* ---- memory ---- */

void gpu_block_place(uint32_t tokens, uint32_t rows, uint32_t pages_per_slot, struct gpu_block *b)
{
    uint32_t at = 0;
    const struct {
        uint32_t *offset, count;
    } arrays[] = {{&b->counts, GPU_COUNTS}, {&b->token_id, tokens},    {&b->position, tokens},
                  {&b->token_row, tokens},  {&b->row_first, rows + 1}, {&b->row_slot, rows},
                  {&b->sample_token, rows}};
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++) {
        *arrays[i].offset = at;
        at += (arrays[i].count + 3) / 4 * 4 * (uint32_t)sizeof(uint32_t);
    }
    b->page_table = at;
    b->tokens = tokens;
    b->rows = rows;
    b->bytes = at + (uint64_t)rows * pages_per_slot * sizeof(uint32_t);
}

void gpu_buffers_place(const struct model_config *c, const struct plan *plan,
                       const struct arena_header *arena, enum dtype kv_dtype,
                       const struct device_kernels *kernels, struct gpu_buffers *b)
{
    char *base = b->memory;
    uint64_t tokens = round_up(arena->step_tokens, GPU_PAD_TOKENS), slots = arena->slots;
    uint64_t samples = round_up(slots, GPUK_BATCH_MAX), few = GPUK_BATCH_MAX;
    bool layers = plan_layers_of(plan, PLAN_HOME_GPU) > 0, head = plan->head == PLAN_HOME_GPU;
    uint64_t q = (uint64_t)c->heads * c->head_dim, kv = (uint64_t)c->kv_heads * c->head_dim;
    uint64_t widest = c->hidden > c->intermediate ? c->hidden : c->intermediate, linear;
    uint64_t q_bytes = dtype_bytes(kv_dtype) * tokens * q;
    struct gpu_block block;
    gpu_block_place((uint32_t)tokens, (uint32_t)slots, arena->pages_per_slot, &block);
    if (q > widest) widest = q;
    linear = kernels->gemm_small_workspace(GPUK_BATCH_MAX, (uint32_t)widest);
    if (kernels->gemv_workspace((uint32_t)widest) > linear)
        linear = kernels->gemv_workspace((uint32_t)widest);
    memset(b, 0, sizeof *b);
    b->memory = base;
    b->tokens = (uint32_t)tokens;
    b->attention_work_bytes = kernels->attention_workspace(GPUK_BATCH_MAX, c->heads, c->head_dim);
    b->argmax_work_bytes = kernels->argmax_workspace((uint32_t)samples);
    if (q_bytes < few * q * sizeof(float)) q_bytes = few * q * sizeof(float);
    const struct {
        void **at;
        uint64_t bytes;
        bool needed;
    } parts[] = {
        {(void **)&b->block, block.bytes, true},
        {(void **)&b->x, tokens * c->hidden * sizeof(float), true},
        {(void **)&b->sample, samples * c->hidden * sizeof(float), head},
        {&b->h, tokens * c->hidden * sizeof(float), layers},
        {(void **)&b->qkv, tokens * (q + 2 * kv) * sizeof(float), layers},
        {&b->q, q_bytes, layers},
        {&b->a, tokens * q * sizeof(float), layers},
        {&b->gate_up, tokens * 2 * c->intermediate * sizeof(float), layers},
        {&b->act, tokens * c->intermediate * sizeof(float), layers},
        {(void **)&b->logits, samples * c->vocab * sizeof(float), head},
        {(void **)&b->rope_table, tokens * c->head_dim * sizeof(float), layers},
        {(void **)&b->inv_freq, (uint64_t)c->head_dim * sizeof(float), layers},
        {&b->linear_work, linear, true},
        {&b->attention_work, b->attention_work_bytes, layers},
        {&b->argmax_work, b->argmax_work_bytes, head},
        {&b->matmul_work, kernels->matmul_workspace, layers},
    };
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        if (!parts[i].needed) continue;
        if (base) *parts[i].at = base + b->bytes;
        b->bytes += round_up(parts[i].bytes, 256);
    }
}

/* ---- the layer's shape ---- */

/* Takes ops[*at] if it is this operation; notes its weight and bias. */
static bool take(const struct model_graph *g, uint32_t *at, enum model_op_kind kind, enum model_buffer in,
                 enum model_buffer out, enum tensor_role *weight, enum tensor_role *bias)
{
    const struct model_op *op = &g->layer[*at];
    if (*at >= g->layer_count || op->kind != kind || op->in != in || op->out != out) return false;
    if (weight) *weight = op->weight;
    if (bias) *bias = op->bias;
    ++*at;
    return true;
}

static int match_layer(const struct model_graph *g, struct layer_shape *s, struct helm_err *err)
{
    uint32_t at = 0;
    bool q = false, k = false;
    s->q_norm = s->k_norm = TENSOR_NONE;
    bool ok = take(g, &at, OP_RMSNORM, BUFFER_X, BUFFER_H, &s->attn_norm, NULL) &&
              take(g, &at, OP_LINEAR, BUFFER_H, BUFFER_Q, &s->q.weight, &s->q.bias) &&
              take(g, &at, OP_LINEAR, BUFFER_H, BUFFER_K, &s->k.weight, &s->k.bias) &&
              take(g, &at, OP_LINEAR, BUFFER_H, BUFFER_V, &s->v.weight, &s->v.bias);
    for (bool more = ok; more;) {
        more = (!q && take(g, &at, OP_HEAD_NORM, BUFFER_Q, BUFFER_Q, &s->q_norm, NULL)) ||
               (!k && take(g, &at, OP_HEAD_NORM, BUFFER_K, BUFFER_K, &s->k_norm, NULL));
        if (!q && take(g, &at, OP_ROPE, BUFFER_Q, BUFFER_Q, NULL, NULL)) more = q = true;
        if (!k && take(g, &at, OP_ROPE, BUFFER_K, BUFFER_K, NULL, NULL)) more = k = true;
    }
    ok = ok && q && k && take(g, &at, OP_ATTENTION, BUFFER_Q, BUFFER_A, NULL, NULL) &&
         take(g, &at, OP_LINEAR, BUFFER_A, BUFFER_X, &s->o.weight, &s->o.bias) &&
         g->layer[at - 1].accumulate && take(g, &at, OP_RMSNORM, BUFFER_X, BUFFER_H, &s->mlp_norm, NULL) &&
         take(g, &at, OP_LINEAR, BUFFER_H, BUFFER_GATE, &s->gate.weight, &s->gate.bias) &&
         take(g, &at, OP_LINEAR, BUFFER_H, BUFFER_UP, &s->up.weight, &s->up.bias) &&
         take(g, &at, OP_SWIGLU, BUFFER_GATE, BUFFER_GATE, NULL, NULL) &&
         take(g, &at, OP_LINEAR, BUFFER_GATE, BUFFER_X, &s->down.weight, &s->down.bias) &&
         g->layer[at - 1].accumulate && at == g->layer_count;
    if (ok) return 0;
    return helm_fail(err, HELM_E_UNSUPPORTED, "operation %u of a layer cannot be lowered for the GPU", at);
}

/* ---- entries ---- */

static struct gpu_entry *add(struct lowering *low, enum gpu_kind kind, int32_t layer)
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
    return e;
}

static void add_word(struct lowering *low, enum gpu_kind kind, _Atomic uint32_t *word, uint32_t value,
                     enum device_compare compare)
{
    struct gpu_entry *e = add(low, kind, -1);
    e->as.word.word = word;
    e->as.word.value = value;
    e->as.word.compare = compare;
}

static const struct gpu_matrix *matrix_of(struct lowering *low, enum tensor_role role, int32_t layer)
{
    const struct gpu_matrix *m = gpu_matrix_of(low->source->weights, role, layer);
    if (!m->data && !low->rc)
        low->rc =
            helm_fail(low->err, HELM_E_INTERNAL, "layer %d: weights %d are not in VRAM", layer, (int)role);
    return m;
}

/* A linear of the decode tiers; the caller adds norm, residual, swiglu. */
static struct gpu_entry *add_linear(struct lowering *low, int32_t layer, const float *x, uint32_t x_stride)
{
    struct gpu_entry *e = add(low, low->program->tier == GPU_TIER_1 ? GPU_GEMV : GPU_GEMM_SMALL, layer);
    e->as.linear.x = x;
    e->as.linear.x_stride = x_stride;
    e->as.linear.eps = (float)low->source->model->config.norm_eps;
    return e;
}

static void add_segment(struct lowering *low, struct gpu_entry *e, enum tensor_role weight,
                        enum tensor_role bias, float *out, uint32_t out_stride)
{
    struct gpuk_linear_args *l = &e->as.linear;
    const struct gpu_matrix *m = matrix_of(low, weight, e->layer);
    if (l->segments && l->dtype != m->dtype && !low->rc)
        low->rc = helm_fail(low->err, HELM_E_UNSUPPORTED, "layer %d: matrices of one input have two dtypes",
                            e->layer);
    l->dtype = m->dtype;
    l->cols = m->cols;
    l->out_stride = out_stride;
    l->segment[l->segments++] =
        (struct gpuk_linear){.weight = m->data,
                             .bias = gpu_vector_of(low->source->weights, bias, e->layer),
                             .out = out,
                             .rows = m->rows};
}

static struct gpuk_attention attention_of(const struct lowering *low, int32_t layer, uint32_t kv_layer)
{
    const struct gpu_source *s = low->source;
    const struct model_config *c = &s->model->config;
    uint32_t q = c->heads * c->head_dim, kv = c->kv_heads * c->head_dim, width = q + 2 * kv;
    return (struct gpuk_attention){.step = low->program->step,
                                   .kv = {.layout = s->kv, .pool = s->kv_pool, .layer = kv_layer},
                                   .heads = c->heads,
                                   .window = c->window ? c->window[layer] : 0,
                                   .scale = 1.0f / sqrtf((float)c->head_dim),
                                   .q_norm = gpu_vector_of(s->weights, low->shape.q_norm, layer),
                                   .k_norm = gpu_vector_of(s->weights, low->shape.k_norm, layer),
                                   .eps = (float)c->norm_eps,
                                   .rope_table = s->buffers->rope_table,
                                   .q = s->buffers->qkv,
                                   .k = s->buffers->qkv + q,
                                   .v = s->buffers->qkv + q + kv,
                                   .q_stride = width,
                                   .kv_stride = width};
}

/* One layer of the decode tiers. `out`: where the residual stream goes, x or a lane. */
static void lower_decode_layer(struct lowering *low, int32_t layer, uint32_t kv_layer, float *out)
{
    const struct gpu_source *s = low->source;
    const struct model_config *c = &s->model->config;
    const struct gpu_buffers *b = s->buffers;
    const struct layer_shape *shape = &low->shape;
    uint32_t q = c->heads * c->head_dim, kv = c->kv_heads * c->head_dim, width = q + 2 * kv;
    struct gpu_entry *e = add_linear(low, layer, b->x, c->hidden);
    e->as.linear.norm = gpu_vector_of(s->weights, shape->attn_norm, layer);
    add_segment(low, e, shape->q.weight, shape->q.bias, b->qkv, width);
    add_segment(low, e, shape->k.weight, shape->k.bias, b->qkv + q, width);
    add_segment(low, e, shape->v.weight, shape->v.bias, b->qkv + q + kv, width);

    struct gpuk_attention attention = attention_of(low, layer, kv_layer);
    bool fused = low->program->tier == GPU_TIER_1;
    if (!fused) {
        e = add(low, GPU_ROPE_APPEND, layer);
        e->as.attention.args = attention;
        e->as.attention.q_dtype = DTYPE_F32;
        attention.q = b->q;
        attention.q_stride = q;
    }
    e = add(low, GPU_ATTEND_DECODE, layer);
    e->as.attention.args = attention;
    e->as.attention.fused = fused;

    e = add_linear(low, layer, b->a, q);
    e->as.linear.residual = b->x;
    add_segment(low, e, shape->o.weight, shape->o.bias, b->x, c->hidden);

    e = add_linear(low, layer, b->x, c->hidden);
    e->as.linear.norm = gpu_vector_of(s->weights, shape->mlp_norm, layer);
    e->as.linear.swiglu = true;
    add_segment(low, e, shape->gate.weight, shape->gate.bias, b->act, c->intermediate);
    add_segment(low, e, shape->up.weight, shape->up.bias, b->act, c->intermediate);

    e = add_linear(low, layer, b->act, c->intermediate);
    e->as.linear.residual = b->x;
    add_segment(low, e, shape->down.weight, shape->down.bias, out, c->hidden);
}

/* ---- a chunk ---- */

struct part {
    enum tensor_role weight, bias;
};

/* Matrices of one input side by side in `out`: one product where they lie one behind the other. */
static void add_matmuls(struct lowering *low, int32_t layer, const struct part *part, uint32_t count,
                        const void *x, void *out, enum dtype out_dtype, uint32_t out_stride, bool accumulate)
{
    const char *end = NULL;
    struct gpu_entry *last = NULL;
    uint32_t at = 0;
    for (uint32_t i = 0; i < count; i++) {
        const struct gpu_matrix *m = matrix_of(low, part[i].weight, layer);
        if (last && (const char *)m->data == end && m->dtype == last->as.matmul.dtype) {
            last->as.matmul.rows += m->rows;
        } else {
            last = add(low, GPU_MATMUL, layer);
            last->as.matmul.dtype = m->dtype;
            last->as.matmul.out_dtype = out_dtype;
            last->as.matmul.rows = m->rows;
            last->as.matmul.cols = m->cols;
            last->as.matmul.out_stride = out_stride;
            last->as.matmul.accumulate = accumulate;
            last->as.matmul.w = m->data;
            last->as.matmul.x = x;
            last->as.matmul.out = (char *)out + at * dtype_bytes(out_dtype);
        }
        end = (const char *)m->data + (size_t)m->rows * m->cols * dtype_bytes(m->dtype);
        at += m->rows;
    }
    at = 0;
    for (uint32_t i = 0; i < count; i++) {
        const float *bias = gpu_vector_of(low->source->weights, part[i].bias, layer);
        uint32_t rows = gpu_matrix_of(low->source->weights, part[i].weight, layer)->rows;
        if (bias) {
            struct gpu_entry *e = add(low, GPU_ADD_BIAS, layer);
            e->as.bias.out = (char *)out + at * dtype_bytes(out_dtype);
            e->as.bias.dtype = out_dtype;
            e->as.bias.stride = out_stride;
            e->as.bias.rows = rows;
            e->as.bias.bias = bias;
        }
        at += rows;
    }
}

static void add_norm(struct lowering *low, int32_t layer, enum tensor_role role, enum dtype dtype)
{
    struct gpu_entry *e = add(low, GPU_NORM, layer);
    e->as.norm.count = low->program->step.counts;
    e->as.norm.x = low->source->buffers->x;
    e->as.norm.norm = gpu_vector_of(low->source->weights, role, layer);
    e->as.norm.out = low->source->buffers->h;
    e->as.norm.out_dtype = dtype;
}

static void lower_chunk_layer(struct lowering *low, int32_t layer, uint32_t kv_layer)
{
    const struct gpu_source *s = low->source;
    const struct model_config *c = &s->model->config;
    const struct gpu_buffers *b = s->buffers;
    const struct layer_shape *shape = &low->shape;
    uint32_t width = (c->heads + 2 * c->kv_heads) * c->head_dim;
    const struct part qkv[] = {{shape->q.weight, shape->q.bias},
                               {shape->k.weight, shape->k.bias},
                               {shape->v.weight, shape->v.bias}},
                      o[] = {{shape->o.weight, shape->o.bias}},
                      gate_up[] = {{shape->gate.weight, shape->gate.bias},
                                   {shape->up.weight, shape->up.bias}},
                      down[] = {{shape->down.weight, shape->down.bias}};
    enum dtype dtype = matrix_of(low, shape->q.weight, layer)->dtype;
    const enum tensor_role same[] = {shape->k.weight,    shape->v.weight,  shape->o.weight,
                                     shape->gate.weight, shape->up.weight, shape->down.weight};
    for (size_t i = 0; i < sizeof same / sizeof *same; i++)
        if (matrix_of(low, same[i], layer)->dtype != dtype && !low->rc)
            low->rc =
                helm_fail(low->err, HELM_E_UNSUPPORTED, "layer %d: its matrices have two dtypes", layer);
    add_norm(low, layer, shape->attn_norm, dtype);
    add_matmuls(low, layer, qkv, 3, b->h, b->qkv, DTYPE_F32, width, false);

    struct gpu_entry *e = add(low, GPU_ROPE_APPEND, layer);
    e->as.attention.args = attention_of(low, layer, kv_layer);
    e->as.attention.q_dtype = (enum dtype)s->kv.dtype;
    e = add(low, GPU_ATTEND_PREFILL, layer);
    e->as.attention.args = attention_of(low, layer, kv_layer);
    e->as.attention.out_dtype = dtype;
    add_matmuls(low, layer, o, 1, b->a, b->x, DTYPE_F32, c->hidden, true);

    add_norm(low, layer, shape->mlp_norm, dtype);
    add_matmuls(low, layer, gate_up, 2, b->h, b->gate_up, dtype, 2 * c->intermediate, false);
    e = add(low, GPU_SWIGLU, layer);
    e->as.swiglu.in = b->gate_up;
    e->as.swiglu.out = b->act;
    e->as.swiglu.dtype = dtype;
    e->as.swiglu.n = c->intermediate;
    add_matmuls(low, layer, down, 1, b->act, b->x, DTYPE_F32, c->hidden, true);
}

/* ---- the ends ---- */

static void lower_head(struct lowering *low)
{
    const struct gpu_source *s = low->source;
    const struct model_config *c = &s->model->config;
    const struct gpu_buffers *b = s->buffers;
    struct gpu_program *p = low->program;
    enum tensor_role final_norm = s->model->graph.epilogue[0].weight;
    bool one = p->tier == GPU_TIER_1;
    if (!one) add(low, GPU_GATHER, -1)->head = true;
    uint32_t groups = one ? 1 : (p->samples + GPUK_BATCH_MAX - 1) / GPUK_BATCH_MAX;
    for (uint32_t g = 0; g < groups; g++) {
        const float *x = one ? b->x : b->sample + (size_t)g * GPUK_BATCH_MAX * c->hidden;
        struct gpu_entry *e = add_linear(low, -1, x, c->hidden);
        e->head = true;
        e->group = g;
        e->as.linear.norm = gpu_vector_of(s->weights, final_norm, -1);
        add_segment(low, e, TENSOR_HEAD, TENSOR_NONE, b->logits + (size_t)g * GPUK_BATCH_MAX * c->vocab,
                    c->vocab);
    }
    add(low, GPU_ARGMAX, -1)->head = true;
}

static int check_ends(const struct model_graph *g, struct helm_err *err)
{
    bool ok = g->prologue_count == 1 && g->prologue[0].kind == OP_EMBED && g->epilogue_count == 2 &&
              g->epilogue[0].kind == OP_RMSNORM && g->epilogue[1].kind == OP_LINEAR &&
              g->epilogue[1].bias == TENSOR_NONE;
    return ok ? 0 : helm_fail(err, HELM_E_UNSUPPORTED, "embedding or head cannot be lowered for the GPU");
}

static void lower_span(struct lowering *low, const struct plan_span *span)
{
    const struct gpu_source *s = low->source;
    bool chunk = low->program->tier == GPU_TIER_CHUNK;
    if (span->ticket_in) {
        struct lane *in = arena_lane_of(s->arena, LANE_TO_GPU);
        add_word(low, GPU_WORD_WAIT, &in->bell.value, span->ticket_in, DEVICE_AT_LEAST);
        struct gpu_entry *e = add(low, GPU_LANE_READ, -1);
        e->as.move.from = in->data;
        e->as.move.to = s->buffers->x;
        if (span->last_in) add_word(low, GPU_WORD_WRITE, &in->bell.value, 0, DEVICE_EQUAL);
    }
    if (span->embed) {
        const struct gpu_matrix *m = matrix_of(low, TENSOR_EMBED, -1);
        struct gpu_entry *e = add(low, GPU_EMBED, -1);
        e->as.embed.table = m->data;
        e->as.embed.dtype = m->dtype;
    }
    struct lane *out = span->ticket_out ? arena_lane_of(s->arena, LANE_TO_CPU) : NULL;
    if (span->ticket_out == 1) add_word(low, GPU_WORD_WAIT, &out->bell.value, 0, DEVICE_EQUAL);
    bool direct = out && span->unit_count && !chunk && !span->head;
    for (uint32_t u = 0; u < span->unit_count && !low->rc; u += 2) {
        int32_t layer = (int32_t)((span->first_unit + u) / 2);
        uint32_t kv_layer;
        (void)plan_kv_of(s->plan, (uint32_t)layer, &kv_layer);
        if (chunk)
            lower_chunk_layer(low, layer, kv_layer);
        else
            lower_decode_layer(low, layer, kv_layer,
                               direct && u + 2 == span->unit_count ? out->data : s->buffers->x);
    }
    if (span->head) lower_head(low);
    if (!out) return;
    if (!direct) {
        struct gpu_entry *e = add(low, GPU_LANE_WRITE, -1);
        e->as.move.from = s->buffers->x;
        e->as.move.to = out->data;
    }
    add_word(low, GPU_WORD_WRITE, &out->bell.value, span->ticket_out, DEVICE_EQUAL);
}

int gpu_program_lower(const struct gpu_source *source, enum gpu_tier tier, struct gpu_program *program,
                      struct helm_err *err)
{
    const struct arena_header *h = arena_header_of(source->arena);
    struct lowering low = {.source = source, .program = program, .err = err};
    struct plan_span *spans = NULL;
    uint32_t span_count = 0;
    memset(program, 0, sizeof *program);
    program->tier = tier;
    program->tokens = tier == GPU_TIER_CHUNK ? source->buffers->tokens : tier_tokens[tier];
    program->samples = program->tokens < h->slots ? program->tokens : h->slots;
    gpu_block_place(program->tokens, program->samples, h->pages_per_slot, &program->block);
    const char *block = source->buffers->block;
    program->step = (struct gpuk_step){
        .counts = (const void *)(block + program->block.counts),
        .token_id = (const void *)(block + program->block.token_id),
        .position = (const void *)(block + program->block.position),
        .token_row = (const void *)(block + program->block.token_row),
        .row_first = (const void *)(block + program->block.row_first),
        .row_slot = (const void *)(block + program->block.row_slot),
        .sample_token = (const void *)(block + program->block.sample_token),
        .page_table = (const void *)(block + program->block.page_table),
        .pages_per_slot = h->pages_per_slot,
    };
    low.rc = match_layer(&source->model->graph, &low.shape, err);
    if (!low.rc) low.rc = check_ends(&source->model->graph, err);
    if (!low.rc) low.rc = plan_spans(source->plan, 0, &spans, &span_count, err);
    if (!low.rc) {
        add(&low, GPU_COPY_BLOCK, -1);
        if (plan_layers_of(source->plan, PLAN_HOME_GPU)) add(&low, GPU_ROPE_TABLE, -1);
    }
    for (uint32_t i = 0; i < span_count && !low.rc; i++)
        if (spans[i].worker == PLAN_HOME_GPU) lower_span(&low, &spans[i]);
    if (!low.rc) add_word(&low, GPU_WORD_WRITE, source->end, 1, DEVICE_EQUAL);
    free(spans);
    if (low.rc) gpu_program_free(program, source->device);
    return low.rc;
}

void gpu_program_free(struct gpu_program *program, struct device *device)
{
    if (program->graph) device->ops->graph_free(device, program->graph);
    free(program->entry);
    memset(program, 0, sizeof *program);
}
