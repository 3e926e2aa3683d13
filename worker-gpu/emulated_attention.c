/* The emulated device's attention: rotation, append, decode and prefill over paged KV. See emulated.h. */
#include "worker-gpu/emulated.h"

#include <string.h>

#include "worker-cpu/attention.h"

struct attention_call {
    struct gpuk_attention args;
    uint32_t tokens;
    bool fused;
    const void *q;
    void *out, *workspace;
    enum dtype q_dtype, out_dtype;
};

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

static void rope_append_token(struct emulated_math *math, const struct attention_call *c, uint32_t t,
                              void *q_out)
{
    const struct gpuk_attention *a = &c->args;
    const struct kv_layout *kv = &a->kv.layout;
    uint32_t dim = kv->head_dim;
    float head[GPUK_HEAD_DIM_MAX];
    for (uint32_t h = 0; h < a->heads; h++) {
        turn_head(math, a, t, a->q + (size_t)t * a->q_stride + h * dim, a->q_norm, head);
        emulated_store(math, q_out, ((size_t)t * a->heads + h) * dim, c->q_dtype, head, dim);
    }
    for (uint32_t h = 0; h < kv->kv_heads; h++) {
        size_t at = (size_t)t * a->kv_stride + h * dim;
        turn_head(math, a, t, a->k + at, a->k_norm, head);
        kv_append(kv, a->kv.pool, pages_of(&a->step, t), a->kv.layer, false, h, a->step.position[t], head);
        kv_append(kv, a->kv.pool, pages_of(&a->step, t), a->kv.layer, true, h, a->step.position[t],
                  a->v + at);
    }
}

static void run_rope_append(struct emulated_math *math, const void *data)
{
    const struct attention_call *c = data;
    for (uint32_t t = 0, n = emulated_count(c->args.step.counts, c->tokens); t < n; t++)
        rope_append_token(math, c, t, c->out);
}

int emulated_rope_append(struct device *d, const struct gpuk_attention *args, uint32_t tokens, void *q_out,
                         enum dtype q_dtype, uint32_t flags, struct helm_err *err)
{
    (void)flags;
    const struct attention_call call = {.args = *args, .tokens = tokens, .out = q_out, .q_dtype = q_dtype};
    if (args->kv.layout.head_dim > GPUK_HEAD_DIM_MAX)
        return helm_fail(err, HELM_E_UNSUPPORTED, "head_dim %u, at most %d", args->kv.layout.head_dim,
                         GPUK_HEAD_DIM_MAX);
    return emulated_enqueue(d, run_rope_append, &call, sizeof call, err);
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
static bool use_workspace(const struct attention_call *c)
{
    uint32_t heads = c->args.heads;
    size_t counters = emulated_attention_counters(c->tokens, heads);
    const unsigned char *at = c->workspace;
    for (size_t i = 0; i < counters; i++)
        if (at[i]) return false;
    memset((char *)c->workspace + counters, 0xff,
           emulated_attention_workspace(c->tokens, heads, c->args.kv.layout.head_dim) - counters);
    return true;
}

static void run_attention_decode(struct emulated_math *math, const void *data)
{
    const struct attention_call *c = data;
    const struct gpuk_attention *a = &c->args;
    size_t width = (size_t)a->heads * a->kv.layout.head_dim;
    float *q = emulated_scratch(math, SCRATCH_X, (size_t)c->tokens * width * sizeof(float));
    if (!use_workspace(c)) {
        math->broken = "attention: the counters of the workspace are not zero";
        return;
    }
    for (uint32_t t = 0, n = emulated_count(a->step.counts, c->tokens); t < n && q; t++) {
        if (c->fused) {
            rope_append_token(math, c, t, q);
            attend(math, a, q + t * width, t, 1, (float *)c->out + t * width);
        } else {
            attend(math, a, a->q + (size_t)t * a->q_stride, t, 1, (float *)c->out + t * width);
        }
    }
}

void emulated_run_fused(struct emulated_math *math, const struct gpuk_attention *args, float *out,
                        void *workspace)
{
    const struct attention_call call = {
        .args = *args, .tokens = 1, .fused = true, .out = out, .workspace = workspace, .q_dtype = DTYPE_F32};
    run_attention_decode(math, &call);
}

int emulated_attention_decode(struct device *d, const struct gpuk_attention *args, uint32_t tokens,
                              bool fused, float *out, void *workspace, uint32_t flags, struct helm_err *err)
{
    (void)flags;
    const struct attention_call call = {.args = *args,
                                        .tokens = tokens,
                                        .fused = fused,
                                        .out = out,
                                        .workspace = workspace,
                                        .q_dtype = DTYPE_F32};
    return emulated_enqueue(d, run_attention_decode, &call, sizeof call, err);
}

static void run_attention_prefill(struct emulated_math *math, const void *data)
{
    const struct attention_call *c = data;
    const struct gpuk_attention *a = &c->args;
    const struct gpuk_step *step = &a->step;
    size_t width = (size_t)a->heads * a->kv.layout.head_dim;
    float *q = emulated_scratch(math, SCRATCH_X, EMULATED_QUERIES * width * sizeof(float));
    float *out = emulated_scratch(math, SCRATCH_Y, EMULATED_QUERIES * width * sizeof(float));
    for (uint32_t r = 0; r < step->counts[1] && q && out; r++) {
        for (uint32_t t = step->row_first[r], end = step->row_first[r + 1]; t < end; t += EMULATED_QUERIES) {
            uint32_t count = end - t < EMULATED_QUERIES ? end - t : EMULATED_QUERIES;
            math->vector->load(q, (const char *)c->q + t * width * dtype_bytes(c->q_dtype), c->q_dtype,
                               count * width);
            attend(math, a, q, t, count, out);
            emulated_store(math, c->out, t * width, c->out_dtype, out, count * width);
        }
    }
}

int emulated_attention_prefill(struct device *d, const struct gpuk_attention *args, const void *q,
                               uint32_t tokens, uint32_t rows, void *out, enum dtype out_dtype,
                               uint32_t flags, struct helm_err *err)
{
    (void)flags, (void)rows;
    const struct attention_call call = {.args = *args,
                                        .tokens = tokens,
                                        .q = q,
                                        .out = out,
                                        .q_dtype = (enum dtype)args->kv.layout.dtype,
                                        .out_dtype = out_dtype};
    return emulated_enqueue(d, run_attention_prefill, &call, sizeof call, err);
}
