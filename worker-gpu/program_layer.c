/* Lowering one half of a layer. See program.h and program_lower.h; called by program.c.
 *
 * Decode tiers take five operations a layer: q k v with the norm in front; attention with head norms,
 * rotation and append (one token) or after them (several); o with the residual; gate and up with norm and
 * swiglu; down with the residual. A chunk normalises into 16-bit rows and multiplies matrices. Where weights
 * are streamed each of the linear operations becomes one a slice, between waiting for it and setting its
 * place in the ring free. */
#include "worker-gpu/program_lower.h"

#include <math.h>
#include <string.h>

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

int lower_match_layer(const struct model_graph *g, struct layer_shape *s, struct helm_err *err)
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

/* ---- pieces ---- */

/* An operation's weights, or one slice of them: rows of up to three matrices. */
struct piece_part {
    const struct gpu_matrix *matrix;
    const char *data;
    const uint32_t *offset; /* of a slice that is read packed: its entry in the table of offsets */
    const float *bias;      /* of its first row */
    uint32_t row, rows;
    uint32_t at; /* where its first row stands in the operation's output */
};
struct piece {
    struct piece_part part[RING_PARTS_MAX];
    uint32_t part_count;
    uint32_t index;      /* of the operation's pieces */
    bool streamed, home; /* a slice of the ring, or of what lies packed in VRAM */
    bool packed;         /* read as it is */
    uint32_t slice;      /* of the ring */
};

static enum tensor_role bias_of(const struct layer_shape *s, enum tensor_role weight)
{
    switch (weight) {
    case TENSOR_Q:
        return s->q.bias;
    case TENSOR_K:
        return s->k.bias;
    case TENSOR_V:
        return s->v.bias;
    case TENSOR_O:
        return s->o.bias;
    case TENSOR_GATE:
        return s->gate.bias;
    case TENSOR_UP:
        return s->up.bias;
    case TENSOR_DOWN:
        return s->down.bias;
    default:
        return TENSOR_NONE;
    }
}

static void add_part(struct lowering *low, struct piece *piece, int32_t layer, enum tensor_role role,
                     uint32_t row, uint32_t rows, const char *data, uint32_t at)
{
    const struct gpu_weights *weights = low->source->weights;
    const float *bias = gpu_vector_of(weights, bias_of(&low->shape, role), layer);
    piece->part[piece->part_count++] = (struct piece_part){.matrix = gpu_matrix_of(weights, role, layer),
                                                           .data = data,
                                                           .bias = bias ? bias + row : NULL,
                                                           .row = row,
                                                           .rows = rows,
                                                           .at = at};
}

/* Where a matrix's rows begin in the operation's output: q k v stand side by side. */
static uint32_t output_at(const struct lowering *low, enum tensor_role role)
{
    const struct model_config *c = &low->source->model->config;
    if (role == TENSOR_K) return c->heads * c->head_dim;
    if (role == TENSOR_V) return (c->heads + c->kv_heads) * c->head_dim;
    return 0;
}

static void take_resident(struct lowering *low, struct piece *piece, enum ring_op op, int32_t layer)
{
    const enum tensor_role *role = ring_op_roles(op);
    for (int i = 0; i < RING_PARTS_MAX && role[i] != TENSOR_NONE; i++) {
        const struct gpu_matrix *m = lower_matrix(low, role[i], layer);
        add_part(low, piece, layer, role[i], 0, m->rows, m->data, output_at(low, role[i]));
    }
}

/* Whole, where one token's product takes it so. */
static bool take_packed(struct lowering *low, struct piece *piece, enum ring_op op, int32_t layer)
{
    const enum tensor_role *role = ring_op_roles(op);
    struct lower_rows rows[RING_PARTS_MAX];
    uint32_t count = 0;
    if (low->program->tier != GPU_TIER_1) return false;
    for (; count < RING_PARTS_MAX && role[count] != TENSOR_NONE; count++) {
        const struct gpu_matrix *m = lower_matrix(low, role[count], layer);
        rows[count] = (struct lower_rows){.matrix = m, .data = m->data, .rows = m->rows};
    }
    if (low->rc || !lower_takes_packed(low, op, rows, count)) return false;
    take_resident(low, piece, op, layer);
    for (uint32_t i = 0; i < piece->part_count; i++)
        piece->part[i].offset = piece->part[i].matrix->offset_device;
    piece->packed = true;
    return true;
}

/* The next slice of the operation, expanded. */
static void take_home_slice(struct lowering *low, struct piece *piece, const struct ring_slice *slice,
                            int32_t layer)
{
    for (uint32_t i = 0; i < slice->part_count; i++) {
        const struct ring_part *p = &slice->part[i];
        add_part(low, piece, layer, p->role, p->row, p->rows, low->source->expanded + p->out,
                 output_at(low, p->role) + p->row);
    }
    piece->home = true;
    lower_expand_home(low, low->next_home - 1);
}

static const struct ring_slice *slice_of(const struct ring_schedule *slices, uint32_t next, uint32_t unit,
                                         enum ring_op op)
{
    const struct ring_slice *slice = next < slices->count ? &slices->slice[next] : NULL;
    return slice && slice->unit == unit && slice->op == op ? slice : NULL;
}

static void take_slice(struct lowering *low, struct piece *piece, const struct ring_slice *slice,
                       int32_t layer)
{
    const struct gpu_source *s = low->source;
    piece->packed = lower_is_read_packed(low, slice);
    for (uint32_t i = 0; i < slice->part_count; i++) {
        const struct ring_part *p = &slice->part[i];
        add_part(low, piece, layer, p->role, p->row, p->rows,
                 slice->expanded && !piece->packed ? s->expanded + p->out
                                                   : s->ring_memory + slice->place + p->at,
                 output_at(low, p->role) + p->row);
        piece->part[i].offset = p->offset;
    }
    if (low->ahead != piece->slice + 1) lower_arrival(low, piece->slice);
}

/* The operation's next piece; false behind the last. *piece begins as zeros. Behind what uses a piece the
 * next call sets it free. */
static bool next_piece(struct lowering *low, struct piece *piece, uint32_t unit, enum ring_op op)
{
    const struct ring_schedule *home = low->source->home;
    const int32_t layer = (int32_t)(unit / 2);
    bool begun = piece->part_count > 0;
    if (begun && piece->streamed) lower_copies(low, (int32_t)piece->slice);
    if (low->rc) return false;
    const struct ring_slice *streamed = slice_of(low->ring, low->next_slice, unit, op),
                            *packed = slice_of(home, low->next_home, unit, op);
    if (begun && !(piece->streamed && streamed) && !(piece->home && packed)) return false;
    *piece = (struct piece){.index = begun ? piece->index + 1 : 0,
                            .streamed = streamed != NULL,
                            .slice = low->next_slice};
    if (streamed) {
        low->next_slice++;
        take_slice(low, piece, streamed, layer);
    } else if (packed && !begun && take_packed(low, piece, op, layer)) {
        while (slice_of(home, low->next_home, unit, op)) low->next_home++;
    } else if (packed) {
        low->next_home++;
        take_home_slice(low, piece, packed, layer);
    } else {
        take_resident(low, piece, op, layer);
    }
    return !low->rc;
}

/* ---- both ---- */

static struct gpuk_attention attention_of(const struct lowering *low, int32_t layer)
{
    const struct gpu_source *s = low->source;
    const struct model_config *c = &s->model->config;
    uint32_t q = c->heads * c->head_dim, kv = c->kv_heads * c->head_dim, width = q + 2 * kv, kv_layer;
    struct gpuk_attention a = {.step = low->program->step,
                               .kv = {.layout = s->kv, .pool = s->kv_pool},
                               .heads = c->heads,
                               .window = c->window ? c->window[layer] : 0,
                               .scale = 1.0f / sqrtf((float)c->head_dim),
                               .q_norm = gpu_vector_of(s->weights, low->shape.q_norm, layer),
                               .k_norm = gpu_vector_of(s->weights, low->shape.k_norm, layer),
                               .eps = (float)c->norm_eps,
                               .rope_table = s->buffers->rope_table,
                               .q_stride = width,
                               .kv_stride = width};
    if (plan_kv_of(s->plan, (uint32_t)layer, &kv_layer) == PLAN_HOME_GPU) {
        a.kv.layer = kv_layer;
    } else {
        a.kv.layout.layers = 1;
        a.kv.pool = s->staging[low->borrowed % GPU_STAGINGS];
    }
    return a;
}

static void set_qkv(struct gpuk_attention *a, const struct model_config *c, const float *qkv)
{
    a->q = qkv;
    a->k = qkv + c->heads * c->head_dim;
    a->v = a->k + c->kv_heads * c->head_dim;
}

/* ---- decode ---- */

/* What stands before and after a linear operation. */
struct around {
    const float *x, *norm, *residual;
    uint32_t x_stride;
    float *out;
    uint32_t out_stride;
};

static void decode_operation(struct lowering *low, uint32_t unit, enum ring_op op,
                             const struct around *around)
{
    struct piece piece = {0};
    while (next_piece(low, &piece, unit, op)) {
        struct gpu_entry *e = lower_linear(low, (int32_t)(unit / 2), around->x, around->x_stride);
        e->slice = piece.streamed || piece.home;
        e->packed = piece.packed;
        e->as.linear.norm = around->norm;
        e->as.linear.swiglu = op == RING_GATE_UP;
        if (around->residual) e->as.linear.residual = around->residual + piece.part[0].at;
        for (uint32_t i = 0; i < piece.part_count; i++) {
            const struct piece_part *p = &piece.part[i];
            lower_segment(low, e, p->matrix, p->data, p->bias, around->out + p->at, p->rows,
                          around->out_stride);
            e->offset[i] = p->offset;
        }
        struct device *d = low->source->device;
        if (e->packed && !d->kernels.gemv_packed_takes(d, &e->as.linear) && !low->rc)
            low->rc = helm_fail(low->err, HELM_E_INTERNAL, "layer %d: %s cannot be multiplied packed",
                                e->layer, ring_op_name(op));
    }
}

static void decode_attention(struct lowering *low, uint32_t unit, float *out)
{
    const struct gpu_source *s = low->source;
    const struct model_config *c = &s->model->config;
    const struct gpu_buffers *b = s->buffers;
    int32_t layer = (int32_t)(unit / 2);
    uint32_t q = c->heads * c->head_dim, width = q + 2 * c->kv_heads * c->head_dim;
    const struct around qkv = {.x = b->x,
                               .x_stride = c->hidden,
                               .norm = gpu_vector_of(s->weights, low->shape.attn_norm, layer),
                               .out = b->few.qkv,
                               .out_stride = width},
                        o = {.x = b->few.a,
                             .x_stride = q,
                             .residual = b->x,
                             .out = out,
                             .out_stride = c->hidden};
    decode_operation(low, unit, RING_QKV, &qkv);

    struct gpuk_attention attention = attention_of(low, layer);
    bool fused = low->program->tier == GPU_TIER_1;
    set_qkv(&attention, c, b->few.qkv);
    if (!fused) {
        struct gpu_entry *e = lower_add(low, GPU_ROPE_APPEND, layer);
        e->as.attention.args = attention;
        e->as.attention.q_dtype = DTYPE_F32;
        e->as.attention.q = b->few.q;
        attention.q = b->few.q;
        attention.q_stride = q;
    }
    struct gpu_entry *e = lower_add(low, GPU_ATTEND_DECODE, layer);
    e->as.attention.args = attention;
    e->as.attention.fused = fused;
    e->as.attention.out = b->few.a;
    decode_operation(low, unit, RING_O, &o);
}

static void decode_mlp(struct lowering *low, uint32_t unit, float *out)
{
    const struct gpu_source *s = low->source;
    const struct model_config *c = &s->model->config;
    const struct gpu_buffers *b = s->buffers;
    const struct around gate_up = {.x = b->x,
                                   .x_stride = c->hidden,
                                   .norm =
                                       gpu_vector_of(s->weights, low->shape.mlp_norm, (int32_t)(unit / 2)),
                                   .out = b->few.act,
                                   .out_stride = c->intermediate},
                        down = {.x = b->few.act,
                                .x_stride = c->intermediate,
                                .residual = b->x,
                                .out = out,
                                .out_stride = c->hidden};
    decode_operation(low, unit, RING_GATE_UP, &gate_up);
    decode_operation(low, unit, RING_DOWN, &down);
}

void lower_decode_unit(struct lowering *low, uint32_t unit, float *out)
{
    if (unit & 1)
        decode_mlp(low, unit, out);
    else
        decode_attention(low, unit, out);
}

/* ---- a chunk ---- */

static uint32_t subs_of(const struct lowering *low)
{
    return low->program->block.subs;
}

static struct gpu_entry *add_sub(struct lowering *low, enum gpu_kind kind, int32_t layer, uint32_t sub)
{
    struct gpu_entry *e = lower_add(low, kind, layer);
    e->sub = sub;
    return e;
}

/* Row 0 of a sub-chunk in an array of rows of `width` numbers of `elem` bytes. */
static char *sub_row(void *base, uint32_t sub, uint64_t width, uint64_t elem)
{
    return (char *)base + sub * (uint64_t)GPU_SUB_TOKENS * width * elem;
}

static float *sub_x(const struct lowering *low, uint32_t sub)
{
    const struct gpu_source *s = low->source;
    return (float *)sub_row(s->buffers->x, sub, s->model->config.hidden, sizeof(float));
}

/* A piece's matrices over one sub-chunk, side by side in `out` as the parts' `at` says: one product where
 * they lie one behind the other. Then their biases. */
static void add_matmuls(struct lowering *low, int32_t layer, uint32_t sub, const struct piece *piece,
                        const void *x, char *out, enum dtype out_dtype, uint32_t out_stride, bool accumulate)
{
    const char *end = NULL;
    struct gpu_entry *last = NULL;
    uint32_t at_end = 0;
    for (uint32_t i = 0; i < piece->part_count; i++) {
        const struct piece_part *p = &piece->part[i];
        if (last && p->data == end && p->at == at_end) {
            last->as.matmul.rows += p->rows;
        } else {
            last = add_sub(low, GPU_MATMUL, layer, sub);
            last->as.matmul.dtype = p->matrix->dtype;
            last->as.matmul.out_dtype = out_dtype;
            last->as.matmul.rows = p->rows;
            last->as.matmul.cols = p->matrix->cols;
            last->as.matmul.out_stride = out_stride;
            last->as.matmul.accumulate = accumulate;
            last->as.matmul.w = p->data;
            last->as.matmul.x = x;
            last->as.matmul.out = out + p->at * dtype_bytes(out_dtype);
        }
        end = p->data + (size_t)p->rows * p->matrix->cols * dtype_bytes(p->matrix->dtype);
        at_end = p->at + p->rows;
    }
    for (uint32_t i = 0; i < piece->part_count; i++) {
        const struct piece_part *p = &piece->part[i];
        if (!p->bias) continue;
        struct gpu_entry *e = add_sub(low, GPU_ADD_BIAS, layer, sub);
        e->as.bias.out = out + p->at * dtype_bytes(out_dtype);
        e->as.bias.dtype = out_dtype;
        e->as.bias.stride = out_stride;
        e->as.bias.rows = p->rows;
        e->as.bias.bias = p->bias;
    }
}

static void add_norm(struct lowering *low, int32_t layer, uint32_t sub, enum tensor_role role,
                     enum dtype dtype, bool again)
{
    struct gpu_entry *e = add_sub(low, GPU_NORM, layer, sub);
    e->again = again;
    e->as.norm.x = sub_x(low, sub);
    e->as.norm.norm = gpu_vector_of(low->source->weights, role, layer);
    e->as.norm.out = low->source->buffers->chunk.h;
    e->as.norm.out_dtype = dtype;
}

/* The one dtype of a half's matrices. */
static enum dtype dtype_of(struct lowering *low, uint32_t unit)
{
    int32_t layer = (int32_t)(unit / 2);
    static const enum ring_op ops[2][2] = {{RING_QKV, RING_O}, {RING_GATE_UP, RING_DOWN}};
    enum dtype dtype = gpu_matrix_of(low->source->weights, unit & 1 ? TENSOR_GATE : TENSOR_Q, layer)->dtype;
    for (int o = 0; o < 2; o++) {
        const enum tensor_role *role = ring_op_roles(ops[unit & 1][o]);
        for (int i = 0; i < RING_PARTS_MAX && role[i] != TENSOR_NONE; i++)
            if (gpu_matrix_of(low->source->weights, role[i], layer)->dtype != dtype && !low->rc)
                low->rc =
                    helm_fail(low->err, HELM_E_UNSUPPORTED, "layer %d: its matrices have two dtypes", layer);
    }
    return dtype;
}

/* o or down: adds to the residual stream. `x_of`: the operation's input, of all tokens. */
static void chunk_residual(struct lowering *low, uint32_t unit, enum ring_op op, void *x, uint64_t x_width,
                           uint64_t x_elem)
{
    uint32_t hidden = low->source->model->config.hidden;
    struct piece piece = {0};
    while (next_piece(low, &piece, unit, op))
        for (uint32_t sub = 0; sub < subs_of(low); sub++)
            add_matmuls(low, (int32_t)(unit / 2), sub, &piece, sub_row(x, sub, x_width, x_elem),
                        (char *)sub_x(low, sub), DTYPE_F32, hidden, true);
}

/* Rotation, append, attention of every sub-chunk; a borrowed cache comes before and goes back after. */
static void chunk_attend(struct lowering *low, int32_t layer, enum dtype dtype, uint32_t width)
{
    const struct gpu_source *s = low->source;
    const struct gpu_buffers *b = s->buffers;
    const struct model_config *c = &s->model->config;
    uint32_t kv_layer, staging = low->borrowed % GPU_STAGINGS;
    bool borrowed = plan_kv_of(s->plan, (uint32_t)layer, &kv_layer) != PLAN_HOME_GPU;
    struct gpuk_attention attention = attention_of(low, layer);
    if (borrowed) lower_event(low, GPU_FOLLOW, DEVICE_COMPUTE, GPU_EVENT_KV_IN + staging);
    for (uint32_t sub = 0; sub < subs_of(low); sub++) {
        float *qkv = (float *)sub_row(b->chunk.qkv, sub, width, sizeof(float));
        attention.step =
            gpu_block_step(&low->program->block, b->block, low->program->step.pages_per_slot, sub);
        attention.rope_table = (float *)sub_row(b->rope_table, sub, c->head_dim / 2 * 2, sizeof(float));
        set_qkv(&attention, c, qkv);
        struct gpu_entry *e = add_sub(low, GPU_ROPE_APPEND, layer, sub);
        e->as.attention.args = attention;
        e->as.attention.q_dtype = (enum dtype)s->kv.dtype;
        e->as.attention.q = b->chunk.q;
        e = add_sub(low, GPU_ATTEND_PREFILL, layer, sub);
        e->as.attention.args = attention;
        e->as.attention.out_dtype = dtype;
        e->as.attention.q = b->chunk.q;
        e->as.attention.out = qkv;
    }
    if (!borrowed) return;
    lower_event(low, GPU_RECORD, DEVICE_COMPUTE, GPU_EVENT_KV_USED + staging);
    lower_event(low, GPU_FOLLOW, DEVICE_COPY, GPU_EVENT_KV_USED + staging);
    struct gpu_entry *e = lower_add(low, GPU_KV_OUT, layer);
    e->as.borrow.kv_layer = kv_layer;
    e->as.borrow.staging = staging;
    e->as.borrow.event = GPU_EVENT_KV_BACK;
    low->borrowed++;
    lower_fetches(low);
}

static void chunk_attention(struct lowering *low, uint32_t unit)
{
    const struct gpu_source *s = low->source;
    const struct gpu_buffers *b = s->buffers;
    const struct model_config *c = &s->model->config;
    int32_t layer = (int32_t)(unit / 2);
    uint32_t width = (c->heads + 2 * c->kv_heads) * c->head_dim;
    enum dtype dtype = dtype_of(low, unit);
    struct piece piece = {0};
    while (next_piece(low, &piece, unit, RING_QKV))
        for (uint32_t sub = 0; sub < subs_of(low); sub++) {
            add_norm(low, layer, sub, low->shape.attn_norm, dtype, piece.index > 0);
            add_matmuls(low, layer, sub, &piece, b->chunk.h, sub_row(b->chunk.qkv, sub, width, sizeof(float)),
                        DTYPE_F32, width, false);
        }
    chunk_attend(low, layer, dtype, width);
    chunk_residual(low, unit, RING_O, b->chunk.qkv, width, sizeof(float));
}

static void chunk_mlp(struct lowering *low, uint32_t unit)
{
    const struct gpu_source *s = low->source;
    const struct gpu_buffers *b = s->buffers;
    const struct model_config *c = &s->model->config;
    int32_t layer = (int32_t)(unit / 2);
    enum dtype dtype = dtype_of(low, unit);
    uint64_t elem = dtype_bytes(dtype);
    struct piece piece = {0};
    while (next_piece(low, &piece, unit, RING_GATE_UP)) {
        uint32_t row = piece.part[0].row, rows = piece.part[0].rows;
        piece.part[0].at = 0; /* gate and up side by side, as many as there are */
        piece.part[1].at = rows;
        for (uint32_t sub = 0; sub < subs_of(low); sub++) {
            add_norm(low, layer, sub, low->shape.mlp_norm, dtype, piece.index > 0);
            add_matmuls(low, layer, sub, &piece, b->chunk.h, b->chunk.gates, dtype, 2 * rows, false);
            struct gpu_entry *e = add_sub(low, GPU_SWIGLU, layer, sub);
            e->as.swiglu.in = b->chunk.gates;
            e->as.swiglu.out = sub_row(b->chunk.act, sub, c->intermediate, elem) + row * elem;
            e->as.swiglu.dtype = dtype;
            e->as.swiglu.n = rows;
            e->as.swiglu.out_stride = c->intermediate;
        }
    }
    chunk_residual(low, unit, RING_DOWN, b->chunk.act, c->intermediate, elem);
}

void lower_chunk_unit(struct lowering *low, uint32_t unit)
{
    if (unit & 1)
        chunk_mlp(low, unit);
    else
        chunk_attention(low, unit);
}
