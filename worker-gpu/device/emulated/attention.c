/* The emulated device's attention: rotation, append, decode and prefill over paged KV. See emulated.h. */
#include "worker-gpu/device/emulated/emulated.h"

#include <string.h>

#include "common/cpu/kernels/attention.h"

static const uint32_t *pages_of(const struct gpuk_step *step, uint32_t token)
{
    uint32_t row = step->token_row[token];
    return step->page_table + (size_t)step->row_slot[row] * step->pages_per_slot;
}

/* Norms and rotates a copy of one head. */
static void turn_head(const struct emulated_math *math, const struct gpuk_attention *a, uint32_t token,
                      const float *in, const float *norm, float *out)
{
    uint32_t dim = a->kv.layout.head_dim;
    const float *table = a->rope_table + (size_t)token * (dim / 2 * 2);
    if (norm)
        math->vector->rmsnorm(out, in, norm, dim, a->eps);
    else
        memcpy(out, in, dim * sizeof(float));
    math->vector->rope(out, table, table + dim / 2, dim);
}

/* Heads of q go to q_out, of `dtype`. */
static void rope_append_token(struct emulated_math *math, const struct gpuk_attention *a, uint32_t t,
                              void *q_out, enum dtype dtype)
{
    const struct kv_layout *kv = &a->kv.layout;
    uint32_t dim = kv->head_dim;
    float head[GPUK_HEAD_DIM_MAX];
    for (uint32_t h = 0; h < a->heads; h++) {
        turn_head(math, a, t, a->q + (size_t)t * a->q_stride + h * dim, a->q_norm, head);
        emulated_store(math, q_out, ((size_t)t * a->heads + h) * dim, dtype, head, dim);
    }
    for (uint32_t h = 0; h < kv->kv_heads; h++) {
        size_t at = (size_t)t * a->kv_stride + h * dim;
        turn_head(math, a, t, a->k + at, a->k_norm, head);
        kv_append(kv, a->kv.pool, pages_of(&a->step, t), a->kv.layer, false, h, a->step.position[t], head);
        kv_append(kv, a->kv.pool, pages_of(&a->step, t), a->kv.layer, true, h, a->step.position[t],
                  a->v + at);
    }
}

void emulated_run_rope_append(struct emulated_math *math, const struct op *op)
{
    const struct op_attention *a = &op->as.attention;
    for (uint32_t t = 0, n = emulated_count(a->args.step.counts, op->tokens); t < n; t++)
        rope_append_token(math, &a->args, t, a->q, a->q_dtype);
}

/* Queries first .. first + count of one sequence, whose q is fp32 and dense from q on; out likewise. */
static void attend(struct emulated_math *math, const struct gpuk_attention *a, const float *q, uint32_t first,
                   uint32_t count, float *out)
{
    const struct kv_layout *kv = &a->kv.layout;
    uint32_t group = a->heads / kv->kv_heads, start = a->step.position[first];
    const struct attention_variant *v = math->attention[kv->dtype];
    void *scratch = emulated_scratch(math, SCRATCH_ATTEND, v->scratch_bytes(kv, EMULATED_QUERIES, group));
    for (uint32_t h = 0; h < kv->kv_heads && scratch; h++) {
        size_t at = (size_t)h * group * kv->head_dim;
        const struct attention_task task = {.q = q + at,
                                            .q_stride = (size_t)a->heads * kv->head_dim,
                                            .tokens = count,
                                            .group = group,
                                            .start = start,
                                            .kv_last = start + count,
                                            .window = a->window,
                                            .scale = a->scale,
                                            .kv = kv,
                                            .pool = a->kv.pool,
                                            .pages = pages_of(&a->step, first),
                                            .layer = a->kv.layer,
                                            .kv_head = h,
                                            .out = out + at,
                                            .out_stride = (size_t)a->heads * kv->head_dim,
                                            .scratch = scratch};
        v->attend(&task);
    }
}

size_t emulated_attention_counters(uint32_t tokens, uint32_t heads)
{
    return ((size_t)tokens * heads * sizeof(uint32_t) + 255) / 256 * 256;
}
size_t emulated_attention_workspace(uint32_t tokens, uint32_t heads, uint32_t head_dim)
{
    return emulated_attention_counters(tokens, heads) +
           (size_t)tokens * heads * (head_dim + 2) * sizeof(float);
}

/* A GPU counts in the first part of the workspace, which it finds and leaves at zero, and leaves anything in
 * the rest: so do we, that a caller who mixes the two up is found out here. */
static bool use_workspace(const struct gpuk_attention *a, uint32_t tokens, void *workspace)
{
    size_t counters = emulated_attention_counters(tokens, a->heads);
    const unsigned char *at = workspace;
    for (size_t i = 0; i < counters; i++)
        if (at[i]) return false;
    memset((char *)workspace + counters, 0xff,
           emulated_attention_workspace(tokens, a->heads, a->kv.layout.head_dim) - counters);
    return true;
}

static void attend_decode(struct emulated_math *math, const struct op_attention *c, uint32_t tokens,
                          void *workspace)
{
    const struct gpuk_attention *a = &c->args;
    size_t width = (size_t)a->heads * a->kv.layout.head_dim;
    float *q = emulated_scratch(math, SCRATCH_X, (size_t)tokens * width * sizeof(float));
    if (!use_workspace(a, tokens, workspace)) {
        math->broken = "attention: the counters of the workspace are not zero";
        return;
    }
    for (uint32_t t = 0, n = emulated_count(a->step.counts, tokens); t < n && q; t++) {
        if (c->fused) {
            rope_append_token(math, a, t, q, DTYPE_F32);
            attend(math, a, q + t * width, t, 1, (float *)c->out + t * width);
        } else {
            attend(math, a, a->q + (size_t)t * a->q_stride, t, 1, (float *)c->out + t * width);
        }
    }
}

void emulated_run_attend_decode(struct emulated_math *math, const struct op *op)
{
    attend_decode(math, &op->as.attention, op->tokens, op->workspace);
}

void emulated_run_fused(struct emulated_math *math, const struct gpuk_attention *args, float *out,
                        void *workspace)
{
    const struct op_attention fused = {.args = *args, .fused = true, .out = out};
    attend_decode(math, &fused, 1, workspace);
}

void emulated_run_attend_prefill(struct emulated_math *math, const struct op *op)
{
    const struct op_attention *c = &op->as.attention;
    const struct gpuk_attention *a = &c->args;
    const struct gpuk_step *step = &a->step;
    const enum dtype q_dtype = kv_query_dtype(a->kv.layout.dtype);
    size_t width = (size_t)a->heads * a->kv.layout.head_dim;
    float *q = emulated_scratch(math, SCRATCH_X, EMULATED_QUERIES * width * sizeof(float));
    float *out = emulated_scratch(math, SCRATCH_Y, EMULATED_QUERIES * width * sizeof(float));
    for (uint32_t r = 0; r < step->counts[1] && q && out; r++) {
        for (uint32_t t = step->row_first[r], end = step->row_first[r + 1]; t < end; t += EMULATED_QUERIES) {
            uint32_t count = end - t < EMULATED_QUERIES ? end - t : EMULATED_QUERIES;
            math->vector->load(q, (const char *)c->q + t * width * dtype_bytes(q_dtype), q_dtype,
                               count * width);
            attend(math, a, q, t, count, out);
            emulated_store(math, c->out, t * width, c->out_dtype, out, count * width);
        }
    }
}
