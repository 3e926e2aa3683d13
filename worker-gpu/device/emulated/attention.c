/* The emulated device's attention: rotation, append, decode and prefill over paged KV. See emulated.h. */
#include "worker-gpu/device/emulated/emulated.h"

#include <math.h>
#include <string.h>

#include "common/cpu/kernels/attention.h"

/* ---- pools ---- */

/* A pool as the CPU's kernels take it. */
struct side {
    struct kv_layout layout;
    void *pool;
    uint32_t layer;
};
static struct side side_of(const struct gpuk_kv *kv, bool host)
{
    struct side side = {kv->layout, kv->pool, kv->layer};
    if (!host) return side;
    side.layout.layers = (uint32_t)(kv->host_stride / kv_layer_bytes(&kv->layout));
    side.pool = kv->pool_host;
    side.layer = 0;
    return side;
}
static bool is_host(uint32_t page)
{
    return page != GPUK_PAGE_ABSENT && page & GPUK_PAGE_HOST;
}

/* ---- rotation and append ---- */

static const uint32_t *pages_of(const struct gpuk_step *step, uint32_t token)
{
    uint32_t row = step->token_row[token];
    return step->page_table + (size_t)step->row_slot[row] * step->pages_per_slot;
}

/* One head's value: normed by a norm without a weight, if it is. */
static const float *value_of(const struct emulated_math *math, const struct gpuk_attention *a,
                             const float *in, float *out)
{
    float ones[GPUK_HEAD_DIM_MAX];
    if (!a->v_normed) return in;
    for (uint32_t d = 0; d < a->kv.layout.head_dim; d++) ones[d] = 1;
    math->vector->rmsnorm(out, in, ones, a->kv.layout.head_dim, a->eps);
    return out;
}

/* Norms and rotates a copy of one head. */
static void turn_head(const struct emulated_math *math, const struct gpuk_attention *a, uint32_t token,
                      const float *in, const float *norm, float *out)
{
    const uint32_t dim = a->kv.layout.head_dim, turning = gpuk_rope_dims(a), latent = a->kv.layout.latent;
    const float *table = a->rope_table + (size_t)token * (turning / 2 * 2);
    memcpy(out, in, dim * sizeof(float));
    if (norm) math->vector->rmsnorm(out, out, norm, latent ? latent : dim, a->eps);
    math->vector->rope(out + latent, table, table + turning / 2, turning);
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
    const uint32_t position = a->step.position[t], page = pages_of(&a->step, t)[position / kv->page_tokens];
    if (page == GPUK_PAGE_ABSENT || !a->k) return;
    const struct side to = side_of(&a->kv, is_host(page));
    const uint32_t own = page & ~GPUK_PAGE_HOST, token = position % kv->page_tokens;
    for (uint32_t h = 0; h < kv->kv_heads; h++) {
        size_t at = (size_t)t * a->kv_stride + h * dim;
        turn_head(math, a, t, a->k + at, a->k_norm, head);
        kv_append(&to.layout, to.pool, &own, to.layer, false, h, token, head);
        if (kv->latent) continue;
        kv_append(&to.layout, to.pool, &own, to.layer, true, h, token, value_of(math, a, a->v + at, head));
    }
}

void emulated_run_rope_append(struct emulated_math *math, const struct op *op)
{
    const struct op_attention *a = &op->as.attention;
    for (uint32_t t = 0, n = emulated_count(a->args.step.counts, op->tokens); t < n; t++)
        rope_append_token(math, &a->args, t, a->q, a->q_dtype);
}

/* ---- attention ---- */

/* Queries first .. first + count of one sequence, whose q is fp32 and dense from q on; out likewise. */
struct attending {
    const struct gpuk_attention *args;
    const float *q;
    uint32_t first, count;
    bool steady;                  /* of a chunk: each query as in any other */
    float *out, *m, *s;           /* m and s: partial results' too, of these queries' heads; or NULL */
    const struct gpuk_part *part; /* NULL: attends to everything */
    uint32_t from, to;            /* its positions */
};

static struct attention_task task_of(const struct attending *x, uint32_t kv_head, void *scratch)
{
    const struct gpuk_attention *a = x->args;
    const struct kv_layout *kv = &a->kv.layout;
    const uint32_t group = a->heads / kv->kv_heads, start = a->step.position[x->first];
    const size_t at = (size_t)kv_head * group * kv->head_dim;
    return (struct attention_task){.q = x->q + at,
                                   .q_stride = (size_t)a->heads * kv->head_dim,
                                   .tokens = x->count,
                                   .group = group,
                                   .kv_heads = 1,
                                   .start = start,
                                   .kv_last = start + x->count,
                                   .window = a->window,
                                   .scale = a->scale,
                                   .sinks = a->sinks ? a->sinks + (size_t)kv_head * group : NULL,
                                   .steady = x->steady,
                                   .kv = kv,
                                   .pool = a->kv.pool,
                                   .pages = pages_of(&a->step, x->first),
                                   .layer = a->kv.layer,
                                   .kv_head = kv_head,
                                   .out = x->out + at,
                                   .out_stride = (size_t)a->heads * kv->head_dim,
                                   .scratch = scratch};
}

/* Sums of `n` queries of one kv head: [n][head_dim], [n], [n]. */
struct sums {
    float *o, *m, *s;
};

/* Adds partial results to sums (thesis 4.18 to 4.20). */
static void add_sums(const struct sums *to, const struct sums *from, size_t n, uint32_t head_dim)
{
    for (size_t i = 0; i < n; i++) {
        if (from->s[i] == 0) continue;
        const float most = fmaxf(to->m[i], from->m[i]);
        const float mine = to->s[i] == 0 ? 0 : expf(to->m[i] - most), theirs = expf(from->m[i] - most);
        to->m[i] = most;
        to->s[i] = to->s[i] * mine + from->s[i] * theirs;
        for (uint32_t d = 0; d < head_dim; d++)
            to->o[i * head_dim + d] = to->o[i * head_dim + d] * mine + from->o[i * head_dim + d] * theirs;
    }
}

static void put_sums(const struct attending *x, const struct sums *sums, uint32_t kv_head)
{
    const uint32_t heads = x->args->heads, group = heads / x->args->kv.layout.kv_heads,
                   dim = x->args->kv.layout.head_dim;
    for (uint32_t t = 0; t < x->count; t++)
        for (uint32_t g = 0; g < group; g++) {
            const size_t i = (size_t)t * group + g, head = (size_t)t * heads + kv_head * group + g;
            const float *sink = x->args->sinks ? x->args->sinks + kv_head * group + g : NULL;
            const float by =
                x->m || sums->s[i] == 0
                    ? 1
                    : (float)(1 / attention_sum_with((double)sums->m[i], (double)sums->s[i], sink));
            for (uint32_t d = 0; d < dim; d++) x->out[head * dim + d] = sums->o[i * dim + d] * by;
            if (x->m) x->m[head] = sums->m[i], x->s[head] = sums->s[i];
        }
}

/* Between the launches of an attention in parts: what there is goes to sums, or the other way. */
static void carry_sums(const struct attending *x, const struct sums *sums, uint32_t kv_head, bool keeps)
{
    const uint32_t heads = x->args->heads, group = heads / x->args->kv.layout.kv_heads,
                   dim = x->args->kv.layout.head_dim;
    for (uint32_t t = 0; t < x->count; t++)
        for (uint32_t g = 0; g < group; g++) {
            const size_t i = (size_t)t * group + g,
                         head = (size_t)(x->first + t) * heads + kv_head * group + g;
            float *o = x->part->o + head * dim, *state = x->part->state + head * GPU_PART_FLOATS;
            memcpy(keeps ? o : sums->o + i * dim, keeps ? sums->o + i * dim : o, dim * sizeof *o);
            *(keeps ? &state[0] : &sums->m[i]) = keeps ? sums->m[i] : state[0];
            *(keeps ? &state[1] : &sums->s[i]) = keeps ? sums->s[i] : state[1];
        }
}

/* One kv head page by page from position `begin` on, so that sums do not depend on which pool a page lies in.
 * `pages`: the table without marks. */
static void attend_pages(struct emulated_math *math, const struct attending *x, uint32_t kv_head,
                         uint32_t begin, const uint32_t *pages)
{
    const struct gpuk_attention *a = x->args;
    const struct kv_layout *kv = &a->kv.layout;
    const struct attention_variant *v = math->attention[kv->dtype];
    const uint32_t group = a->heads / kv->kv_heads, dim = kv->head_dim,
                   *marked = pages_of(&a->step, x->first);
    const size_t n = (size_t)x->count * group;
    void *scratch = emulated_scratch(math, SCRATCH_ATTEND, v->scratch_bytes(kv, EMULATED_QUERIES, group));
    float *parts = emulated_scratch(math, SCRATCH_PARTS, 2 * n * (dim + 2) * sizeof(float));
    if (!scratch || !parts) return;
    struct attention_task task = task_of(x, kv_head, scratch);
    const bool resumes = x->part && x->from > begin, stops = x->part && x->to < task.kv_last;
    const uint32_t end = stops ? x->to : task.kv_last;
    if (resumes) begin = x->from;
    if (begin >= end) return;
    const struct sums all = {parts, parts + n * dim, parts + n * (dim + 1)};
    float *next = parts + n * (dim + 2);
    const struct sums one = {next, next + n * dim, next + n * (dim + 1)};
    for (size_t i = 0; i < n; i++) all.m[i] = -INFINITY, all.s[i] = 0;
    memset(all.o, 0, n * dim * sizeof(float));
    if (resumes) carry_sums(x, &all, kv_head, false);
    task.pages = pages, task.out = one.o, task.out_stride = (size_t)group * dim, task.m = one.m,
    task.s = one.s;
    for (uint32_t at = begin, to; at < end; at = to) {
        const uint32_t page = marked[at / kv->page_tokens];
        to = (at / kv->page_tokens + 1) * kv->page_tokens;
        if (page == GPUK_PAGE_ABSENT) continue;
        const struct side side = side_of(&a->kv, is_host(page));
        task.kv = &side.layout, task.pool = side.pool, task.layer = side.layer;
        task.kv_first = at, task.kv_last = to < end ? to : end;
        v->attend(&task);
        add_sums(&all, &one, n, dim);
    }
    if (stops)
        carry_sums(x, &all, kv_head, true);
    else
        put_sums(x, &all, kv_head);
}

static void attend(struct emulated_math *math, const struct attending *x)
{
    const struct gpuk_attention *a = x->args;
    const struct kv_layout *kv = &a->kv.layout;
    const struct attention_variant *v = math->attention[kv->dtype];
    const uint32_t start = a->step.position[x->first], end = (start + x->count - 1) / kv->page_tokens + 1;
    const uint32_t *marked = pages_of(&a->step, x->first);
    uint32_t begin = a->window && start + 1 > a->window ? start + 1 - a->window : 0;
    if (a->step.row_begin && a->step.row_begin[a->step.token_row[x->first]] > begin)
        begin = a->step.row_begin[a->step.token_row[x->first]];
    uint32_t *pages = emulated_scratch(math, SCRATCH_PAGES, end * sizeof *pages);
    bool several = x->m != NULL || a->kv.pool_host != NULL;
    for (uint32_t i = begin / kv->page_tokens; i < end && pages; i++) {
        pages[i] = marked[i] & ~GPUK_PAGE_HOST;
        several |= marked[i] != pages[i];
    }
    for (uint32_t h = 0; h < kv->kv_heads && pages; h++) {
        if (several) {
            attend_pages(math, x, h, begin, pages);
            continue;
        }
        const struct attention_task task =
            task_of(x, h,
                    emulated_scratch(math, SCRATCH_ATTEND,
                                     v->scratch_bytes(kv, EMULATED_QUERIES, a->heads / kv->kv_heads)));
        if (task.scratch) v->attend(&task);
    }
}

/* `out`: a token's [heads][head_dim]. */
static void apply_gate(const struct emulated_math *math, const float *gate, float *out, size_t width)
{
    if (gate) math->vector->sigmoid(out, gate, out, width);
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
 * the rest. So does this device, to expose a caller that mixes the two up. */
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
        struct attending x = {.args = a,
                              .q = a->q + (size_t)t * a->q_stride,
                              .first = t,
                              .count = 1,
                              .out = (float *)c->out + t * width};
        if (c->partial_m) x.m = c->partial_m + t * a->heads, x.s = c->partial_s + t * a->heads;
        if (c->fused) {
            rope_append_token(math, a, t, q, DTYPE_F32);
            x.q = q + t * width;
        }
        attend(math, &x);
        if (a->gate && !c->partial_m) apply_gate(math, a->gate + (size_t)t * a->gate_stride, x.out, width);
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
        const struct gpuk_part *part = c->part.before ? &c->part : NULL;
        uint32_t from, to;
        gpuk_part_span(&c->part, r, a->kv.layout.page_tokens, &from, &to);
        for (uint32_t t = step->row_first[r], end = step->row_first[r + 1]; t < end; t += EMULATED_QUERIES) {
            uint32_t count = end - t < EMULATED_QUERIES ? end - t : EMULATED_QUERIES;
            math->vector->load(q, (const char *)c->q + t * width * dtype_bytes(q_dtype), q_dtype,
                               count * width);
            attend(math, &(struct attending){.args = a,
                                             .q = q,
                                             .first = t,
                                             .count = count,
                                             .steady = true,
                                             .out = out,
                                             .part = part,
                                             .from = from,
                                             .to = to});
            if (to != UINT32_MAX) continue;
            for (uint32_t i = 0; i < count && a->gate; i++)
                apply_gate(math, a->gate + (size_t)(t + i) * a->gate_stride, out + i * width, width);
            emulated_store(math, c->out, t * width, c->out_dtype, out, count * width);
        }
    }
}

void emulated_run_attend_merge(struct emulated_math *math, const struct op *op)
{
    const struct gpuk_merge *a = &op->as.merge;
    const uint32_t tokens = emulated_count(op->count, op->tokens);
    for (uint32_t i = 0, n = tokens * a->heads; i < n; i++) {
        const float *o = a->o + (size_t)i * a->head_dim, *other = a->other + (size_t)i * (a->head_dim + 2);
        const float most = fmaxf(a->m[i], other[0]);
        const float mine = a->s[i] > 0 ? expf(a->m[i] - most) : 0,
                    theirs = other[1] > 0 ? expf(other[0] - most) : 0;
        const float sum =
            (float)attention_sum_with((double)most, (double)(mine * a->s[i] + theirs * other[1]),
                                      a->sinks ? a->sinks + i % a->heads : NULL);
        for (uint32_t d = 0; d < a->head_dim; d++) {
            const float here = a->s[i] > 0 ? mine * o[d] : 0,
                        there = other[1] > 0 ? theirs * other[2 + d] : 0;
            a->out[(size_t)i * a->head_dim + d] = sum > 0 ? (here + there) / sum : 0;
        }
    }
    const size_t width = (size_t)a->heads * a->head_dim;
    for (uint32_t t = 0; t < tokens && a->gate; t++)
        apply_gate(math, a->gate + (size_t)t * a->gate_stride, a->out + t * width, width);
}
