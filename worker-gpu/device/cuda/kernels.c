/* The CUDA device's operations: the launchers of kernels.h on its compute stream. See cuda.h. */
#include "worker-gpu/device/cuda/cuda.h"

#define STREAM(d) ((void *)cuda_of(d)->stream[DEVICE_COMPUTE])

static int run_linear(struct device *d, const struct op *op, struct helm_err *err)
{
    const struct gpuk_linear_args *args = &op->as.linear;
    const struct gpuk_device *caps = &cuda_of(d)->caps;
    if (op->kind == OP_GEMM_SMALL)
        return gpuk_gemm_small(caps, args, op->tokens, op->count, op->workspace, op->flags, STREAM(d), err);
    return gpuk_gemv(caps, args, op->workspace, op->flags, STREAM(d), err);
}

static int run_attention(struct device *d, const struct op *op, struct helm_err *err)
{
    const struct op_attention *a = &op->as.attention;
    const struct gpuk_device *caps = &cuda_of(d)->caps;
    if (op->kind == OP_ROPE_APPEND)
        return gpuk_rope_append(&a->args, op->tokens, a->q, a->q_dtype, op->flags, STREAM(d), err);
    if (op->kind == OP_ATTEND_DECODE)
        return gpuk_attention_decode(caps, &a->args, op->tokens, a->fused, a->out, a->partial_m, a->partial_s,
                                     op->workspace, op->flags, STREAM(d), err);
    if (op->kind == OP_ATTEND_MERGE)
        return gpuk_attention_merge(&op->as.merge, op->count, op->tokens, op->flags, STREAM(d), err);
    const struct gpuk_prefill prefill = {.args = a->args,
                                         .q = a->q,
                                         .out = a->out,
                                         .out_dtype = a->out_dtype,
                                         .rows = a->rows,
                                         .part = a->part,
                                         .workspace = op->workspace};
    return gpuk_attention_prefill(caps, &prefill, op->tokens, op->flags, STREAM(d), err);
}

static int run_matmul(struct device *d, const struct op *op, struct helm_err *err)
{
    const struct op_matmul *m = &op->as.matmul;
    const struct gpuk_matmul_plan *plan = NULL;
    if (!tensor_format_is_plain(m->format)) {
        const struct gpuk_blocks_product product = {.format = m->format,
                                                    .dtype = m->dtype,
                                                    .out_dtype = m->out_dtype,
                                                    .rows = m->rows,
                                                    .cols = m->cols,
                                                    .out_stride = m->out_stride,
                                                    .accumulate = m->accumulate,
                                                    .weight = m->w,
                                                    .x = m->x,
                                                    .out = m->out};
        return gpuk_blocks_run(&cuda_of(d)->caps, &product, op->tokens, op->workspace, m->counters, STREAM(d),
                               err);
    }
    gpuk_matmul_steady(cuda_of(d)->matmul, m->steady);
    int rc = gpuk_matmul_plan(cuda_of(d)->matmul, m->dtype, m->out_dtype, op->tokens, m->rows, m->cols,
                              m->out_stride, m->accumulate, &plan, err);
    return rc ? rc : gpuk_matmul_run(plan, m->w, m->x, m->out, op->workspace, STREAM(d), err);
}

/* Products of a few tokens that a router's kernel takes: fp32, one matrix of few rows. */
static bool is_logits(const struct op *op)
{
    const struct gpuk_linear_args *a = &op->as.linear;
    return a->format == FORMAT_F32 && a->segments == 1 && !a->swiglu && !a->residual &&
           a->segment[0].rows <= MODEL_EXPERTS_MAX;
}

/* A router's logits, exact enough to choose by; workspace: of `bytes`. */
static int run_logits(struct device *d, const struct op *op, void *workspace, size_t bytes,
                      struct helm_err *err)
{
    const struct gpuk_linear_args *a = &op->as.linear;
    const struct gpuk_router_logits args = {.weight = a->segment[0].weight,
                                            .bias = a->segment[0].bias,
                                            .x = a->x,
                                            .norm = a->norm,
                                            .out = a->segment[0].out,
                                            .experts = a->segment[0].rows,
                                            .cols = a->cols,
                                            .x_stride = a->x_stride,
                                            .out_stride = a->out_stride,
                                            .eps = a->eps};
    return gpuk_router_logits(&args, op->tokens, op->count, workspace, bytes, op->flags, STREAM(d), err);
}

static int run_experts(struct device *d, const struct op *op, struct helm_err *err)
{
    const struct gpuk_device *caps = &cuda_of(d)->caps;
    const struct op_route *r = &op->as.route;
    const struct op_experts_group *g = &op->as.experts_group;
    const struct op_experts_down *down = &op->as.experts_down;
    const struct op_experts_sum *s = &op->as.experts_sum;
    struct gpuk_experts_glu glu;
    switch (op->kind) {
    case OP_ROUTE:
        return gpuk_route(&r->router, op->count, op->tokens, r->logits, r->choice_bias, &r->out, op->flags,
                          STREAM(d), err);
    case OP_WEIGH:
        return gpuk_weigh(&op->as.weigh, op->tokens, op->count, op->flags, STREAM(d), err);
    case OP_EXPERTS_ASK:
        return gpuk_experts_ask(&op->as.experts_ask, op->tokens, op->count, op->flags, STREAM(d), err);
    case OP_EXPERTS_ADD:
        return gpuk_experts_add(&op->as.experts_add, op->tokens, op->count, op->flags, STREAM(d), err);
    case OP_EXPERTS_GROUP:
        return gpuk_experts_group(&g->choice, g->experts, g->slot, op->count, op->tokens, &g->out, op->flags,
                                  STREAM(d), err);
    case OP_EXPERTS_GLU:
        if (op->as.experts_glu.is_chunk)
            return gpuk_experts_glu_chunk(caps, &op->as.experts_glu.chunk, op->tokens, op->flags, STREAM(d),
                                          err);
        glu = op->as.experts_glu.few;
        glu.ahead = op->as.experts_glu.ahead.weight ? &op->as.experts_glu.ahead : NULL;
        return gpuk_experts_glu(caps, &glu, op->tokens, op->count, op->workspace, op->flags, STREAM(d), err);
    case OP_EXPERTS_DOWN:
        if (down->is_chunk)
            return gpuk_experts_down_chunk(caps, &down->chunk, op->tokens, op->flags, STREAM(d), err);
        return gpuk_experts_down(caps, &down->few, op->tokens, op->count, op->workspace, op->flags, STREAM(d),
                                 err);
    default:
        return gpuk_experts_sum(&s->choice, &s->groups, s->sums, s->rows, op->count, op->tokens, s->residual,
                                s->out, s->out_stride, op->flags, STREAM(d), err);
    }
}

static int run_delta(struct device *d, const struct op *op, struct helm_err *err)
{
    if (op->kind == OP_CONVOLVE)
        return gpuk_delta_convolve(&op->as.delta, op->tokens, op->flags, STREAM(d), err);
    return gpuk_delta_rule(&cuda_of(d)->caps, &op->as.delta, op->tokens, op->flags, STREAM(d), err);
}

/* Operations that take their input row by row. */
static int run_rows(struct device *d, const struct op *op, struct helm_err *err)
{
    const struct op_norm *n = &op->as.norm;
    const struct op_swiglu *g = &op->as.swiglu;
    const struct op_bias *b = &op->as.bias;
    const struct op_move *m = &op->as.move;
    switch (op->kind) {
    case OP_NORM:
        return gpuk_rmsnorm(op->count, op->tokens, n->x, n->norm, n->eps, n->width, n->out, n->out_dtype,
                            op->flags, STREAM(d), err);
    case OP_ADD_NORMED:
        return gpuk_add_normed(&op->as.add_normed, op->count, op->tokens, op->flags, STREAM(d), err);
    case OP_JOIN:
        return gpuk_join(&op->as.join, op->count, op->tokens, op->flags, STREAM(d), err);
    case OP_SWIGLU:
        return gpuk_swiglu(op->count, op->tokens, g->in, g->in_dtype, g->glu, g->stride, g->up_at, g->n,
                           g->out, g->out_dtype, g->out_stride, op->flags, STREAM(d), err);
    case OP_ADD_BIAS:
        return gpuk_add_bias(op->count, op->tokens, b->out, b->dtype, b->stride, b->rows, b->bias, op->flags,
                             STREAM(d), err);
    default:
        return gpuk_lane_copy(op->count, op->tokens, m->from, m->width, m->to, op->flags, STREAM(d), err);
    }
}

/* Operations that a step begins and ends with. */
static int run_ends(struct device *d, const struct op *op, struct helm_err *err)
{
    const struct op_embed *e = &op->as.embed;
    const struct op_rope_table *r = &op->as.rope_table;
    const struct op_gather *g = &op->as.gather;
    const struct op_soft_cap *s = &op->as.soft_cap;
    const struct op_argmax *a = &op->as.argmax;
    const struct op_few *f = &op->as.few;
    switch (op->kind) {
    case OP_EMBED:
        return gpuk_embed(&e->step, op->tokens, e->table, e->format, e->vocab, e->hidden, e->scale, e->x,
                          op->flags, STREAM(d), err);
    case OP_PER_LAYER:
        return gpuk_per_layer(&op->as.per_layer, op->tokens, op->flags, STREAM(d), err);
    case OP_ROPE_TABLE:
        return gpuk_rope_table(&r->step, op->tokens, r->inv_freq, r->head_dim, r->scale, r->table, op->flags,
                               STREAM(d), err);
    case OP_GATHER:
        return gpuk_gather(&g->step, op->tokens, g->x, g->width, g->out, op->flags, STREAM(d), err);
    case OP_SOFT_CAP:
        return gpuk_soft_cap(op->count, op->tokens, s->logits, s->vocab, s->cap, op->flags, STREAM(d), err);
    case OP_ARGMAX:
        return gpuk_argmax(op->count, op->tokens, a->logits, a->vocab, a->result,
                           a->next.token_id ? &a->next : NULL, op->workspace, op->flags, STREAM(d), err);
    default:
        return gpuk_few(f->few, op->tokens, f->logits, f->vocab, f->room, op->workspace, STREAM(d), err);
    }
}

int cuda_run(struct device *d, const struct op *op, struct helm_err *err)
{
    switch (op->kind) {
    case OP_GEMV:
        return run_linear(d, op, err);
    case OP_GEMM_SMALL: /* the streamed kernels multiply no fp32, and the plain ones take 100 us for a
                           router's */
        return is_logits(op) ? run_logits(d, op, (char *)op->workspace + GPUK_LINEAR_COUNTER_BYTES,
                                          gpuk_gemm_small_workspace_bytes(op->tokens, op->as.linear.cols) -
                                              GPUK_LINEAR_COUNTER_BYTES,
                                          err)
                             : run_linear(d, op, err);
    case OP_ROPE_APPEND:
    case OP_ATTEND_DECODE:
    case OP_ATTEND_MERGE:
    case OP_ATTEND_PREFILL:
        return run_attention(d, op, err);
    case OP_MATMUL:
        return run_matmul(d, op, err);
    case OP_LINEAR_HEADS:
        return gpuk_heads(&op->as.heads, op->tokens, op->count, op->flags, STREAM(d), err);
    case OP_LOGITS:
        return run_logits(d, op, op->workspace, GPUK_MATMUL_WORKSPACE, err);
    case OP_ROUTE:
    case OP_WEIGH:
    case OP_EXPERTS_ASK:
    case OP_EXPERTS_ADD:
    case OP_EXPERTS_GROUP:
    case OP_EXPERTS_GLU:
    case OP_EXPERTS_DOWN:
    case OP_EXPERTS_SUM:
        return run_experts(d, op, err);
    case OP_NORM:
    case OP_ADD_NORMED:
    case OP_JOIN:
    case OP_SWIGLU:
    case OP_ADD_BIAS:
    case OP_READ_BLOCK:
    case OP_LANE_READ:
    case OP_LANE_WRITE:
    case OP_KV_QUERY:
        return run_rows(d, op, err);
    case OP_EMBED:
    case OP_PER_LAYER:
    case OP_ROPE_TABLE:
    case OP_GATHER:
    case OP_SOFT_CAP:
    case OP_ARGMAX:
    case OP_FEW:
        return run_ends(d, op, err);
    case OP_CONVOLVE:
    case OP_DELTA:
        return run_delta(d, op, err);
    case OP_EXPAND:
        return gpuk_expand(&cuda_of(d)->caps, op->as.expand.part, op->as.expand.parts, 0, STREAM(d), err);
    case OP_CHAIN:
        return gpuk_chain_run(&op->as.chain, op->flags, STREAM(d), err);
    case OP_WORD_WAIT:
        return device_word_wait(d, op->as.word.word, op->as.word.value, op->as.word.compare, err);
    case OP_WORD_WRITE:
        return device_word_write(d, op->as.word.word, op->as.word.value, err);
    default:
        return helm_fail(err, HELM_E_INTERNAL, "no device computes '%s'", op_name(op->kind));
    }
}

static bool linear_takes(struct device *d, const struct gpuk_linear_args *args, enum gpuk_schedule schedule)
{
    return gpuk_linear_takes(&cuda_of(d)->caps, args, schedule);
}

static bool chain_takes(struct device *d, const struct gpuk_chain_op *op)
{
    return gpuk_chain_takes(&cuda_of(d)->caps, op);
}

static bool chain_as_few(struct device *d, const struct gpuk_linear_args *args)
{
    return gpuk_linear_as_chained(&cuda_of(d)->caps, args);
}

static int chain_write(struct device *d, const struct gpuk_chain_op *op, uint32_t count, void *memory,
                       void *attention_workspace, struct gpuk_chain *chain, struct helm_err *err)
{
    if (cuda_of(d)->capture.on) return helm_fail(err, HELM_E_STATE, "a chain is written inside a capture");
    return gpuk_chain_write(&cuda_of(d)->caps, op, count, memory, attention_workspace, STREAM(d), chain, err);
}

const struct device_asked cuda_asked = {
    .linear_takes = linear_takes,
    .chain_takes = chain_takes,
    .chain_as_few = chain_as_few,
    .chain_bytes = gpuk_chain_bytes,
    .chain_write = chain_write,
    .gemv_workspace = gpuk_gemv_workspace_bytes,
    .gemm_small_workspace = gpuk_gemm_small_workspace_bytes,
    .attention_counters = gpuk_attention_counter_bytes,
    .attention_workspace = gpuk_attention_workspace_bytes,
    .argmax_workspace = gpuk_argmax_workspace_bytes,
    .few_workspace = gpuk_few_workspace_bytes,
    .experts_workspace = gpuk_experts_workspace_bytes,
    .matmul_workspace = GPUK_MATMUL_WORKSPACE,
};
