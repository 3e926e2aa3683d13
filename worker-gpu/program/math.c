/* Lowering: what is computed. See program.h and lower.h; called by program.c.
 *
 * Walks the model's operations (common/model/unit.h). Each becomes the entries that program_ops_of names, for
 * every piece of its weights that supply.c has and every sub-chunk. For each kind of operation there is one
 * function here that fills in its arguments, and one row of the table that finds it. */
#include <stdio.h>

#include "common/model/able.h"
#include "common/model/share.h"
#include "worker-gpu/program/making.h"

/* ---- places ---- */

/* Where the product of a piece's part goes. */
static struct place output_of(const struct lowering *low, const struct making *m,
                              const struct piece_part *part)
{
    const struct math_op *math = m->at->math;
    if (math->gated &&
        making_tier(low) == OP_TIER_CHUNK) { /* gate and up side by side, as many as there are */
        const bool shared = math->out[0] == BUFFER_SHARED;
        const enum dtype dtype = making_dtype(low, math, m->piece->first, m->at->layer);
        char *gates =
            gpu_area(low->source->buffers, shared ? GPU_AREA_CHUNK_SHARED_GATES : GPU_AREA_CHUNK_GATES);
        return (struct place){gates + (uint64_t)part->weight * part->rows * dtype_bytes(dtype),
                              2 * part->rows, dtype};
    }
    if (math->times != BUFFER_NONE) { /* in front of what it multiplies */
        struct place out = making_place(low, m, math->times);
        out.at -= low->source->model->config.per_layer * sizeof(float);
        out.at += part->row * sizeof(float);
        return out;
    }
    struct place out = making_place(low, m, math->out[part->weight]);
    if (math->out[part->weight] == BUFFER_X && making_tier(low) != OP_TIER_CHUNK) out.at = (char *)m->x_out;
    out.at += part->row * dtype_bytes(out.dtype);
    return out;
}

static const float *bias_of(const struct lowering *low, const struct making *m, const struct piece_part *part)
{
    const float *bias = making_vector(low, m, m->at->math->bias[part->weight]);
    return bias ? bias + part->row : NULL;
}

/* ---- linears of the decode tiers ---- */

static struct gpu_entry *add_linear(struct lowering *low, const struct making *m, const float *x,
                                    uint32_t x_stride)
{
    struct gpu_entry *e = lower_add(low, m->kind, m->at->layer);
    e->op.workspace = gpu_area(low->source->buffers, GPU_AREA_LINEAR);
    e->slice = m->piece->streamed || m->piece->home;
    e->op.as.linear = (struct gpuk_linear_args){.format = m->piece->format,
                                                .x = x,
                                                .x_stride = x_stride,
                                                .norm = making_vector(low, m, m->at->math->norm),
                                                .eps = (float)low->source->model->config.norm_eps,
                                                .swiglu = m->at->math->gated,
                                                .glu = math_glu(m->at->math),
                                                .steady = low->source->plan->invariant};
    return e;
}

static void add_segment(struct lowering *low, const struct making *m, struct gpu_entry *e,
                        const struct piece_part *part, const struct place *out)
{
    struct gpuk_linear_args *a = &e->op.as.linear;
    if (part->matrix->format != m->piece->part[0].matrix->format && !low->rc)
        low->rc = helm_fail(low->err, HELM_E_UNSUPPORTED, "layer %d: matrices of one input have two formats",
                            e->layer);
    a->cols = part->matrix->cols;
    a->out_stride = out->stride;
    a->segment[a->segments++] = (struct gpuk_linear){.weight = part->data,
                                                     .offset = part->offset,
                                                     .bias = bias_of(low, m, part),
                                                     .out = (float *)(void *)out->at,
                                                     .rows = part->rows};
}

/* With all its arguments the device still takes it; of plain numbers it takes any. */
static void check_linear(struct lowering *low, const struct making *m, const struct gpuk_linear_args *args)
{
    struct device *d = low->source->device;
    if (tensor_format_is_plain(args->format) || low->rc ||
        d->ask.linear_takes(d, args, m->kind == OP_GEMV ? GPUK_ONE : GPUK_FEW))
        return;
    low->rc = helm_fail(low->err, HELM_E_INTERNAL, "layer %d: %s cannot be multiplied as %s", m->at->layer,
                        m->at->math->name, tensor_format_name(args->format));
}

static void make_linear(struct lowering *low, const struct making *m)
{
    const struct math_op *math = m->at->math;
    const struct piece *piece = m->piece;
    const struct place in = making_place(low, m, math->in);
    struct gpu_entry *e = add_linear(low, m, (const float *)(void *)in.at, in.stride);
    if (math->residual)
        e->op.as.linear.residual =
            (const float *)(void *)making_place(low, m, math->out[0]).at + piece->part[0].row;
    for (uint32_t i = 0; i < piece->part_count; i++) {
        const struct place out = output_of(low, m, &piece->part[i]);
        add_segment(low, m, e, &piece->part[i], &out);
    }
    check_linear(low, m, &e->op.as.linear);
}

/* ---- linears of a chunk ---- */

static void make_norm(struct lowering *low, const struct making *m)
{
    const struct model_config *c = &low->source->model->config;
    struct gpu_entry *e = lower_add(low, m->kind, m->at->layer);
    const bool experts = m->at->math->kind == MATH_EXPERTS_GLU; /* of all of a chunk's tokens */
    const enum dtype dtype = making_dtype(low, m->at->math, m->piece->first, m->at->layer);
    e->sub = m->sub;
    e->again = m->piece->index > 0 && m->normed == dtype;
    e->op.as.norm = (struct op_norm){.x = (const float *)(void *)making_place(low, m, m->at->math->in).at,
                                     .norm = making_vector(low, m, m->at->math->norm),
                                     .eps = (float)c->norm_eps,
                                     .width = making_place(low, m, m->at->math->in).stride,
                                     .out = gpu_area(low->source->buffers,
                                                     experts ? GPU_AREA_CHUNK_EXPERTS_X : GPU_AREA_H),
                                     .out_dtype = dtype};
}

/* A piece's matrices over one sub-chunk: one product where they and their outputs are contiguous. */
static void make_matmul(struct lowering *low, const struct making *m)
{
    const struct math_op *math = m->at->math;
    const struct gpu_buffers *b = low->source->buffers;
    const bool normed = math->norm != TENSOR_NONE || math->in == BUFFER_X;
    const void *x = normed ? gpu_area(b, GPU_AREA_H) : making_place(low, m, math->in).at;
    const char *end = NULL, *out_end = NULL;
    struct op_matmul *last = NULL;
    for (uint32_t i = 0; i < m->piece->part_count; i++) {
        const struct piece_part *p = &m->piece->part[i];
        const struct place out = output_of(low, m, p);
        const uint32_t cols = p->matrix->cols;
        if (last && p->data == end && out.at == out_end) {
            last->rows += p->rows;
        } else {
            struct op *op = making_op(low, m);
            op->workspace = gpu_area(b, GPU_AREA_MATMUL);
            last = &op->as.matmul;
            *last = (struct op_matmul){.format = m->piece->format,
                                       .dtype = tensor_format_product(m->piece->format),
                                       .out_dtype = out.dtype,
                                       .rows = p->rows,
                                       .cols = cols,
                                       .out_stride = out.stride,
                                       .accumulate = math->residual,
                                       .steady = low->source->plan->invariant ? GPU_SUB_TOKENS : 0,
                                       .w = p->data,
                                       .x = x,
                                       .out = out.at,
                                       .counters = gpu_area(b, GPU_AREA_LINEAR)};
        }
        end = p->data + tensor_format_bytes(m->piece->format, p->rows, cols);
        out_end = out.at + p->rows * dtype_bytes(out.dtype);
    }
}

/* Rows of a piece, of each head its own part of the input. */
static void make_linear_heads(struct lowering *low, const struct making *m)
{
    const struct math_op *math = m->at->math;
    const struct place in = making_place(low, m, math->in), out = making_place(low, m, math->out[0]);
    const struct piece_part *p = &m->piece->part[0];
    making_op(low, m)->as.heads =
        (struct gpuk_heads){.format = m->piece->format,
                            .weight = p->data,
                            .first = p->row,
                            .count = p->rows,
                            .rows = p->matrix->rows / low->source->model->config.heads,
                            .cols = p->matrix->cols,
                            .head_in = math->head_in,
                            .head_out = math->head_out,
                            .x = in.at,
                            .out = out.at,
                            .x_dtype = in.dtype,
                            .out_dtype = out.dtype,
                            .x_stride = in.stride,
                            .out_stride = out.stride};
}

/* The operation's bias number m->bias, where the piece has its weight. */
static void make_bias(struct lowering *low, const struct making *m)
{
    const struct math_op *math = m->at->math;
    uint32_t weight = 0;
    for (uint32_t left = m->bias; math->bias[weight] == TENSOR_NONE || left > 0; weight++)
        left -= math->bias[weight] != TENSOR_NONE;
    for (uint32_t i = 0; i < m->piece->part_count; i++) {
        const struct piece_part *p = &m->piece->part[i];
        const struct place out = output_of(low, m, p);
        if (p->weight != weight) continue;
        making_op(low, m)->as.bias = (struct op_bias){.out = out.at,
                                                      .dtype = out.dtype,
                                                      .stride = out.stride,
                                                      .rows = p->rows,
                                                      .bias = bias_of(low, m, p)};
    }
}

static void make_swiglu(struct lowering *low, const struct making *m)
{
    const struct piece_part *gate = &m->piece->part[0];
    const struct place in = output_of(low, m, gate), out = making_place(low, m, m->at->math->out[0]);
    const uint32_t each = low->source->model->config.per_layer;
    const bool times = m->at->math->times != BUFFER_NONE;
    making_op(low, m)->as.swiglu =
        (struct op_swiglu){.in = in.at,
                           .out = out.at + gate->row * dtype_bytes(out.dtype),
                           .in_dtype = in.dtype,
                           .out_dtype = out.dtype,
                           .glu = math_glu(m->at->math),
                           .n = gate->rows,
                           .stride = in.stride,
                           .up_at = times ? (1 + (uint32_t)m->at->layer) * each : gate->rows,
                           .out_stride = out.stride};
}

/* q or k, all heads together; or the residual stream. */
static void make_in_place(struct lowering *low, const struct making *m)
{
    const struct gpu_source *s = low->source;
    const struct gpu_program *p = low->program;
    const struct math_op *math = m->at->math;
    const struct place x = making_place(low, m, math->in);
    const struct gpuk_step step =
        gpu_block_step(&p->block, gpu_area(s->buffers, GPU_AREA_BLOCK), p->step.pages_per_slot, m->sub);
    const struct model_config *c = &s->model->config;
    const uint32_t heads = math->in == BUFFER_Q ? c->heads : c->kv_heads;
    making_op(low, m)->as.add_normed =
        (struct gpuk_add_normed){.in = (const float *)(void *)x.at,
                                 .norm = making_vector(low, m, math->norm),
                                 .eps = (float)s->model->config.norm_eps,
                                 .width = math->in == BUFFER_X ? c->hidden : heads * c->head_dim,
                                 .stride = x.stride,
                                 .position = step.position,
                                 .growth = math->growth,
                                 .growth_context = math->growth_context,
                                 .out = (float *)(void *)x.at};
}

/* The residual stream, or a decode tier's last lane, out of itself and the normed output. */
static void make_add_normed(struct lowering *low, const struct making *m)
{
    const struct model_config *c = &low->source->model->config;
    float *x = (float *)(void *)making_place(low, m, BUFFER_X).at;
    const struct math_op *math = m->at->math;
    const bool two = math->other != BUFFER_NONE;
    if (!math->residual) {
        make_in_place(low, m);
        return;
    }
    making_op(low, m)->as.add_normed =
        (struct gpuk_add_normed){.in = (const float *)(void *)making_place(low, m, math->in).at,
                                 .in_norm = making_vector(low, m, math->in_norm),
                                 .other =
                                     two ? (const float *)(void *)making_place(low, m, math->other).at : NULL,
                                 .other_norm = making_vector(low, m, math->other_norm),
                                 .norm = making_vector(low, m, m->at->math->norm),
                                 .x = x,
                                 .factor = making_vector(low, m, m->at->math->out_factor),
                                 .eps = (float)c->norm_eps,
                                 .width = c->hidden,
                                 .out = making_tier(low) == OP_TIER_CHUNK ? x : m->x_out};
}

/* ---- the head ---- */

/* A piece of the head over up to GPUK_BATCH_MAX samples. */
static void add_head(struct lowering *low, const struct making *m, uint32_t group)
{
    const struct gpu_buffers *b = low->source->buffers;
    const struct model_config *c = &low->source->model->config;
    const size_t row = (size_t)group * GPUK_BATCH_MAX;
    const struct piece_part *part = &m->piece->part[0];
    const struct place out = {(char *)((float *)gpu_area(b, GPU_AREA_LOGITS) + row * c->vocab + part->row),
                              c->vocab, DTYPE_F32};
    const bool one = making_tier(low) == OP_TIER_ONE;
    struct gpu_entry *e =
        add_linear(low, m,
                   one ? gpu_area(b, GPU_AREA_X) : (float *)gpu_area(b, GPU_AREA_SAMPLE) + row * c->hidden,
                   c->hidden);
    e->op.count = low->program->step.counts + 3 + group;
    e->group = group;
    add_segment(low, m, e, part, &out);
}

/* In a program of several tokens: the whole matrix in the format in which it lies, for a step that samples
 * one row. False where that is no other than what every step does, or the device does not take it. */
static bool add_head_of_one(struct lowering *low, const struct making *m)
{
    struct piece whole = {0};
    struct making one = *m;
    if (low->source->plan->invariant) return false; /* a sample is computed as it is beside others */
    lower_whole_piece(low, m->at, &whole);
    if (low->rc || low->program->tier == GPU_TIER_1 || lower_reads(low, m->at->math, &whole, GPUK_FEW) ||
        !lower_reads(low, m->at->math, &whole, GPUK_ONE))
        return false;
    one.kind = OP_GEMV;
    one.piece = &whole;
    add_head(low, &one, 0);
    return true;
}

/* One token's head is a linear like others, of x itself; other tiers' is over the sampled rows, group by
 * group. */
static void make_head(struct lowering *low, const struct making *m)
{
    struct gpu_program *p = low->program;
    const uint32_t groups = p->tier == GPU_TIER_1 ? 1 : (p->samples + GPUK_BATCH_MAX - 1) / GPUK_BATCH_MAX;
    struct making piecewise = *m;
    struct piece piece = {0};
    uint32_t first = p->count;
    const bool one = add_head_of_one(low, m);
    for (; one && first < p->count; first++) p->entry[first].when = GPU_WHEN_ONE;
    piecewise.piece = &piece;
    while (lower_next_piece(low, m->at, &piece))
        for (uint32_t g = 0; g < groups; g++) add_head(low, &piecewise, g);
    for (; one && first < p->count; first++) p->entry[first].when = GPU_WHEN_SEVERAL;
}

static void make_product(struct lowering *low, const struct making *m)
{
    const struct math_op *math = m->at->math;
    (math->kind == MATH_ROUTE        ? make_router
     : math->out[0] == BUFFER_LOGITS ? make_head
                                     : make_linear)(low, m);
}

/* ---- the walk ---- */

static void (*const make_of[OP_KIND_COUNT])(struct lowering *low, const struct making *m) = {
    [OP_EMBED] = make_embed,
    [OP_GEMV] = make_product,
    [OP_GEMM_SMALL] = make_product,
    [OP_NORM] = make_norm,
    [OP_ADD_NORMED] = make_add_normed,
    [OP_PER_LAYER] = make_per_layer,
    [OP_JOIN] = make_join,
    [OP_MATMUL] = make_matmul,
    [OP_LINEAR_HEADS] = make_linear_heads,
    [OP_ADD_BIAS] = make_bias,
    [OP_SWIGLU] = make_swiglu,
    [OP_ROPE_APPEND] = make_rope_append,
    [OP_ATTEND_DECODE] = make_attend_decode,
    [OP_ATTEND_PREFILL] = make_attend_prefill,
    [OP_KV_QUERY] = make_kv_query,
    [OP_ATTEND_MERGE] = make_attend_merge,
    [OP_LOGITS] = make_router,
    [OP_ROUTE] = make_route,
    [OP_WEIGH] = make_weigh,
    [OP_RUNNING_MEAN] = make_running_mean,
    [OP_CONVOLVE] = make_delta,
    [OP_DELTA] = make_delta,
    [OP_EXPERTS_GROUP] = make_experts_group,
    [OP_EXPERTS_GLU] = make_experts_glu,
    [OP_EXPERTS_DOWN] = make_experts_down,
    [OP_EXPERTS_SUM] = make_experts_sum,
    [OP_EXPERTS_ASK] = make_experts_ask,
    [OP_EXPERTS_ADD] = make_experts_add,
    [OP_GATHER] = make_gather,
    [OP_SOFT_CAP] = make_soft_cap,
    [OP_ARGMAX] = make_argmax,
};

static uint32_t ops_of(const struct lowering *low, const struct making *m,
                       enum op_kind kinds[PROGRAM_OPS_MAX])
{
    if (m->at->math->kind == MATH_ATTENTION) return making_attention_ops(low, m, kinds);
    return (making_mixed(low, m) ? program_ops_mixed : program_ops_of)(m->at->math, PROCESSOR_GPU,
                                                                       making_tier(low), kinds);
}

/* Makes the operation, over m->sub. */
static void make(struct lowering *low, struct making *m)
{
    enum op_kind kinds[PROGRAM_OPS_MAX];
    const uint32_t count = ops_of(low, m, kinds);
    m->bias = 0;
    for (uint32_t i = 0; i < count; i++) {
        m->kind = kinds[i];
        make_of[m->kind](low, m);
        m->bias += m->kind == OP_ADD_BIAS;
    }
}

static void make_subs(struct lowering *low, struct making *m)
{
    m->sub = GPU_SUB_ALL;
    if (making_tier(low) != OP_TIER_CHUNK) make(low, m);
    for (uint32_t sub = 0; sub < low->program->block.subs && making_tier(low) == OP_TIER_CHUNK; sub++) {
        m->sub = sub;
        make(low, m);
    }
}

static void issue_when(const struct lowering *low, uint32_t first, enum gpu_when when, uint32_t tokens)
{
    for (uint32_t i = first; i < low->program->count; i++) {
        low->program->entry[i].when = when;
        low->program->entry[i].when_tokens = tokens;
    }
}

/* A chunk's operation over weights at home. Where the device multiplies blocks as they lie by a short chunk's
 * tokens, their whole matrices are issued for one; what is expanded slice by slice is for others then.
 * Returns how many tokens are a short chunk's; 0: none are. */
static uint32_t make_short(struct lowering *low, const struct making *m)
{
    struct piece whole = {.index = m->piece->index, .first = m->piece->first};
    struct making of = *m;
    const uint32_t first = low->program->count;
    uint32_t tokens = 0;
    lower_whole_piece(low, m->at, &whole);
    if (!low->rc && lower_reads(low, m->at->math, &whole, GPUK_SHORT)) tokens = GPUK_BLOCKS_TOKENS;
    if (!low->rc && tokens && lower_reads(low, m->at->math, &whole, GPUK_WIDE)) tokens = GPUK_WIDE_TOKENS;
    /* of an invariant plan's short prompts all products take GPU_STEADY_TOKENS, by one kernel */
    if (low->source->plan->invariant && tokens < GPU_STEADY_TOKENS) tokens = 0;
    if (!tokens) return 0;
    of.piece = &whole;
    of.sub = 0;
    make(low, &of);
    issue_when(low, first, GPU_WHEN_SHORT, tokens);
    return tokens;
}

static void make_pieces(struct lowering *low, struct making *m, struct piece *piece)
{
    const struct gpu_program *p = low->program;
    const bool chunk = making_tier(low) == OP_TIER_CHUNK;
    uint32_t run = UINT32_MAX, first = p->count;
    uint32_t shorts = 0; /* tokens of a short chunk */
    m->piece = piece;
    for (; lower_next_piece(low, m->at, piece); first = p->count) {
        if (piece->first != run) shorts = chunk && piece->home ? make_short(low, m) : 0;
        run = piece->first;
        /* in front of the operations lie events of other slices, too */
        for (uint32_t i = first; shorts && i < p->count; i++)
            if (p->entry[i].home) p->entry[i].when = GPU_WHEN_LONG, p->entry[i].when_tokens = shorts;
        first = p->count;
        make_subs(low, m);
        m->normed = making_dtype(low, m->at->math, piece->first, m->at->layer);
        if (shorts) issue_when(low, first, GPU_WHEN_LONG, shorts);
    }
}

/* Experts' matrices piece by piece, with all of a chunk's tokens at once, so that each is read once: the norm
 * before the first piece, the sum after the last. */
static void make_experts(struct lowering *low, struct making *m, struct piece *piece)
{
    enum op_kind kinds[PROGRAM_OPS_MAX];
    const uint32_t count = program_ops_of(m->at->math, PROCESSOR_GPU, making_tier(low), kinds);
    const bool sums = kinds[count - 1] == OP_EXPERTS_SUM;
    m->sub = GPU_SUB_ALL;
    m->piece = piece;
    while (lower_next_piece(low, m->at, piece))
        for (uint32_t i = 0; i < count - sums; i++) {
            m->kind = kinds[i];
            if (m->kind != OP_NORM || piece->index == 0) make_of[m->kind](low, m);
        }
    m->kind = OP_EXPERTS_SUM;
    if (sums && !low->rc) make_of[m->kind](low, m);
}

/* When an operation's turn is where a layer's experts are in both memories: the choice first, since the CPU
 * begins after it, and the experts' sum late, which waits for the CPU's; the addition of both to the residual
 * stream is last. */
static int mixed_turn(const struct math_op *math)
{
    return math->kind == MATH_ROUTE          ? 0
           : math->kind == MATH_EXPERTS_DOWN ? 2
           : math->kind == MATH_ADD_NORMED   ? 3
                                             : 1;
}

/* The unit's operations in the order in which they are issued: as they are, or by turns. */
static void order_of(const struct math_part *part, bool mixed, uint32_t order[MATH_OPS_MAX])
{
    uint32_t count = 0;
    for (int turn = 0; turn < 4; turn++)
        for (uint32_t i = 0; i < part->ops; i++)
            if (mixed ? mixed_turn(&part->op[i]) == turn : turn == 0) order[count++] = i;
}

/* Refuses operations that are not computed here instead of leaving them out. */
static void check_able(struct lowering *low, const struct lower_at *at)
{
    char where[32] = "model";
    if (at->layer >= 0) snprintf(where, sizeof where, "layer %d", at->layer);
    if (!low->rc)
        low->rc = able_check_op(at->math, low->source->device->emulated ? ABLE_EMULATED : ABLE_GPU, where,
                                low->err);
}

void lower_unit(struct lowering *low, uint32_t unit, float *out)
{
    const struct math_part *part = model_unit_math(low->source->model, unit);
    const bool chunk = making_tier(low) == OP_TIER_CHUNK,
               mixed = low->source->plan->unit[unit].home[low->program->phase] == PLAN_HOME_MIXED,
               shares = lower_shares(low, unit);
    struct making m = {0};
    uint32_t order[MATH_OPS_MAX];
    order_of(part, mixed, order);
    if (shares) lower_share_begin(low, unit);
    for (uint32_t i = 0; i < part->ops; i++) {
        const struct lower_at at = lower_at(low, unit, order[i]);
        if (shares && !share_is_own(at.math->weight[0])) continue; /* the helper's */
        const enum math_kind kind = at.math->kind;
        const bool whole_step =
            kind == MATH_ROUTE || kind == MATH_WEIGH || kind == MATH_EMBED || kind == MATH_JOIN;
        struct piece piece = {0};
        check_able(low, &at);
        if (low->rc) return;
        m.at = &at;
        m.piece = &piece;
        m.x_out = shares || i + 1 < part->ops ? gpu_area(low->source->buffers, GPU_AREA_X) : out;
        if (at.math->kind == MATH_ATTENTION) {
            lower_cache_begin(low, (uint32_t)at.layer);
            const bool whole = chunk && plan_kv_tiered(low->source->plan) &&
                               !plan_keeps_window(low->source->plan, (uint32_t)at.layer);
            (whole ? make_whole_attention : make_subs)(low, &m);
            lower_cache_end(low, (uint32_t)at.layer);
        } else if (at.math->state_bytes || at.math->kind == MATH_ADD_NORMED) {
            make_subs(low, &m);
        } else if (whole_step || (mixed && at.math->kind != MATH_LINEAR)) { /* nothing comes in pieces */
            m.sub = GPU_SUB_ALL;
            make(low, &m);
        } else {
            const bool product = at.math->kind == MATH_LINEAR || at.math->kind == MATH_LINEAR_HEADS;
            (product ? make_pieces : make_experts)(low, &m, &piece);
        }
    }
    if (shares) lower_share_end(low, unit, out);
}

void lower_embed(struct lowering *low)
{
    const struct lower_at at = {.math = &low->source->model->math.embed, .layer = -1};
    struct making m = {.at = &at, .sub = GPU_SUB_ALL};
    check_able(low, &at);
    if (!low->rc) make(low, &m);
}

void lower_inputs(struct lowering *low)
{
    const struct math_part *inputs = &low->source->model->math.inputs;
    lower_embed(low);
    for (uint32_t i = 0; i < inputs->ops && !low->rc; i++) {
        const struct lower_at at = {.unit = lower_head_unit(low),
                                    .op = i,
                                    .math = &inputs->op[i],
                                    .layer = -1};
        struct piece piece = {0};
        struct making m = {.at = &at, .piece = &piece};
        check_able(low, &at);
        if (low->rc) return;
        if (at.math->kind == MATH_LINEAR) lower_whole_piece(low, &at, &piece);
        if (at.math->kind == MATH_LINEAR && making_tier(low) == OP_TIER_CHUNK && !low->rc &&
            !tensor_format_is_plain(piece.format))
            low->rc = helm_fail(low->err, HELM_E_UNSUPPORTED,
                                "%s: weights of %s are not supported by GPU workers: only of single numbers",
                                at.math->name, tensor_format_name(piece.format));
        if (!low->rc) make_subs(low, &m);
    }
}

void lower_hidden_states(struct lowering *low)
{
    const struct math_part *part = &low->source->model->math.hidden_states;
    for (uint32_t i = 0; i < part->ops && !low->rc; i++) {
        const struct lower_at at = {.unit = lower_head_unit(low), .op = i, .math = &part->op[i], .layer = -1};
        struct making m = {.at = &at};
        check_able(low, &at);
        if (!low->rc) make_subs(low, &m);
    }
}

void lower_head(struct lowering *low, bool drafts)
{
    struct lower_at at = lower_at(low, lower_head_unit(low), 0);
    if (drafts) at.math = &low->source->model->math.draft_head;
    struct making m = {.at = &at, .sub = GPU_SUB_ALL};
    const uint32_t first = low->program->count;
    check_able(low, &at);
    if (!low->rc) make(low, &m);
    for (uint32_t i = first; i < low->program->count; i++) low->program->entry[i].head = true;
}
