/* Issuing a program: its entries, one after another, into the device's compute queue; printing it. See
 * program.h.
 *
 * Run once per decode tier, under capture, and once per step for a chunk. */
#include "worker-gpu/program.h"

static bool is_launch(enum gpu_kind kind)
{
    switch (kind) {
    case GPU_COPY_BLOCK:
    case GPU_WORD_WAIT:
    case GPU_WORD_WRITE:
    case GPU_MATMUL:
        return false;
    default:
        return true;
    }
}

static bool is_hand_over(const struct gpu_source *s, const struct gpu_entry *e)
{
    bool word = e->kind == GPU_WORD_WAIT || e->kind == GPU_WORD_WRITE;
    return e->kind == GPU_LANE_READ || e->kind == GPU_LANE_WRITE || (word && e->as.word.word != s->end);
}

static int issue_linear(const struct gpu_source *s, const struct gpu_program *p, const struct gpu_entry *e,
                        uint32_t tokens, uint32_t flags, struct helm_err *err)
{
    struct device *d = s->device;
    void *work = s->buffers->linear_work;
    if (e->kind == GPU_GEMV) return d->kernels.gemv(d, &e->as.linear, work, flags, err);
    const uint32_t *count = !e->head ? p->step.counts : p->step.counts + 3 + e->group;
    uint32_t most = e->head ? p->samples - e->group * GPUK_BATCH_MAX : tokens;
    if (most > GPUK_BATCH_MAX) most = GPUK_BATCH_MAX;
    return d->kernels.gemm_small(d, &e->as.linear, most, count, work, flags, err);
}

/* Counters, which must stay zero, then partial results: for every tier the latter begin at the same place, so
 * that none writes over another's counters. */
static void *attention_work(const struct gpu_source *s, uint32_t tokens)
{
    const struct device_kernels *k = &s->device->kernels;
    uint32_t heads = s->model->config.heads;
    return (char *)s->buffers->attention_work + k->attention_counters(GPUK_BATCH_MAX, heads) -
           k->attention_counters(tokens, heads);
}

static int issue_attention(const struct gpu_source *s, const struct gpu_program *p, const struct gpu_entry *e,
                           uint32_t tokens, uint32_t flags, struct helm_err *err)
{
    struct device *d = s->device;
    const struct gpu_buffers *b = s->buffers;
    const struct gpuk_attention *a = &e->as.attention.args;
    switch (e->kind) {
    case GPU_ROPE_APPEND:
        return d->kernels.rope_append(d, a, tokens, b->q, e->as.attention.q_dtype, flags, err);
    case GPU_ATTEND_DECODE:
        return d->kernels.attention_decode(d, a, tokens, e->as.attention.fused, b->a,
                                           attention_work(s, tokens), flags, err);
    default:
        return d->kernels.attention_prefill(d, a, b->q, tokens, p->block.rows, b->a,
                                            e->as.attention.out_dtype, flags, err);
    }
}

static int issue_entry(const struct gpu_source *s, const struct gpu_program *p, const struct gpu_entry *e,
                       uint32_t tokens, uint32_t padded, uint32_t rows, uint32_t flags, struct helm_err *err)
{
    struct device *d = s->device;
    const struct device_kernels *k = &d->kernels;
    const struct gpu_buffers *b = s->buffers;
    const struct model_config *c = &s->model->config;
    const uint32_t *count = p->step.counts;
    switch (e->kind) {
    case GPU_COPY_BLOCK:
        return device_copy(d, DEVICE_COMPUTE, DEVICE_TO_DEVICE, b->block, s->block_host,
                           p->block.page_table + (uint64_t)rows * p->step.pages_per_slot * sizeof(uint32_t),
                           err);
    case GPU_ROPE_TABLE:
        return k->rope_table(d, &p->step, tokens, b->inv_freq, c->head_dim, s->rope_scale, b->rope_table,
                             flags, err);
    case GPU_EMBED:
        return k->embed(d, &p->step, tokens, e->as.embed.table, e->as.embed.dtype, c->vocab, c->hidden, b->x,
                        flags, err);
    case GPU_GEMV:
    case GPU_GEMM_SMALL:
        return issue_linear(s, p, e, tokens, flags, err);
    case GPU_NORM:
        return k->rmsnorm(d, e->as.norm.count, tokens, e->as.norm.x, e->as.norm.norm, (float)c->norm_eps,
                          c->hidden, e->as.norm.out, e->as.norm.out_dtype, flags, err);
    case GPU_MATMUL:
        return k->matmul(d, e->as.matmul.dtype, e->as.matmul.out_dtype, padded, e->as.matmul.rows,
                         e->as.matmul.cols, e->as.matmul.out_stride, e->as.matmul.accumulate, e->as.matmul.w,
                         e->as.matmul.x, e->as.matmul.out, b->matmul_work, err);
    case GPU_ADD_BIAS:
        return k->add_bias(d, count, tokens, e->as.bias.out, e->as.bias.dtype, e->as.bias.stride,
                           e->as.bias.rows, e->as.bias.bias, flags, err);
    case GPU_SWIGLU:
        return k->swiglu(d, count, tokens, e->as.swiglu.in, e->as.swiglu.dtype, 2 * e->as.swiglu.n,
                         e->as.swiglu.n, e->as.swiglu.n, e->as.swiglu.out, e->as.swiglu.dtype, flags, err);
    case GPU_ROPE_APPEND:
    case GPU_ATTEND_DECODE:
    case GPU_ATTEND_PREFILL:
        return issue_attention(s, p, e, tokens, flags, err);
    case GPU_LANE_READ:
    case GPU_LANE_WRITE:
        return k->lane_copy(d, count, tokens, e->as.move.from, c->hidden, e->as.move.to, flags, err);
    case GPU_WORD_WAIT:
        return device_word_wait(d, e->as.word.word, e->as.word.value, e->as.word.compare, err);
    case GPU_WORD_WRITE:
        return device_word_write(d, e->as.word.word, e->as.word.value, err);
    case GPU_GATHER:
        return k->gather(d, &p->step, p->samples, b->x, c->hidden, b->sample, flags, err);
    case GPU_ARGMAX:
        return k->argmax(d, count + 2, p->samples, b->logits, c->vocab, s->tokens, b->argmax_work, flags,
                         err);
    }
    return helm_fail(err, HELM_E_INTERNAL, "entry %d of no kind", (int)e->kind);
}

int gpu_program_issue(const struct gpu_source *s, const struct gpu_program *p, uint32_t tokens, uint32_t rows,
                      uint32_t samples, bool alone, struct helm_err *err)
{
    uint32_t padded = (tokens + GPU_PAD_TOKENS - 1) / GPU_PAD_TOKENS * GPU_PAD_TOKENS;
    bool after_launch = false; /* only behind another kernel may one start early */
    int rc = 0;
    for (uint32_t i = 0; i < p->count && !rc; i++) {
        const struct gpu_entry *e = &p->entry[i];
        if (e->head && e->group * GPUK_BATCH_MAX >= samples) continue;
        if (alone && is_hand_over(s, e)) continue;
        uint32_t flags = after_launch && s->device->early_launch ? GPUK_EARLY : 0;
        rc = issue_entry(s, p, e, tokens, padded, rows, flags, err);
        after_launch = is_launch(e->kind);
    }
    return rc;
}

void gpu_program_print(const struct gpu_program *program, const char *title, FILE *out)
{
    static const char *const name[] = {[GPU_COPY_BLOCK] = "copy step block",
                                       [GPU_ROPE_TABLE] = "rope table",
                                       [GPU_EMBED] = "embed",
                                       [GPU_GEMV] = "gemv",
                                       [GPU_GEMM_SMALL] = "gemm small",
                                       [GPU_NORM] = "norm",
                                       [GPU_MATMUL] = "matmul",
                                       [GPU_ADD_BIAS] = "add bias",
                                       [GPU_SWIGLU] = "swiglu",
                                       [GPU_ROPE_APPEND] = "rope, append",
                                       [GPU_ATTEND_DECODE] = "attend",
                                       [GPU_ATTEND_PREFILL] = "attend",
                                       [GPU_LANE_READ] = "take from lane",
                                       [GPU_LANE_WRITE] = "put in lane",
                                       [GPU_WORD_WAIT] = "wait for word",
                                       [GPU_WORD_WRITE] = "write word",
                                       [GPU_GATHER] = "gather samples",
                                       [GPU_ARGMAX] = "argmax"};
    fprintf(out, "%s: %u entries%s\n", title, program->count, program->graph ? ", one graph" : "");
    for (uint32_t i = 0; i < program->count; i++) {
        const struct gpu_entry *e = &program->entry[i];
        fprintf(out, "%5u ", i);
        if (e->layer >= 0)
            fprintf(out, "layer %-4d ", e->layer);
        else
            fprintf(out, "%-11s", "");
        fprintf(out, "%s", name[e->kind]);
        const struct gpuk_linear_args *l = &e->as.linear;
        if (e->kind == GPU_GEMV || e->kind == GPU_GEMM_SMALL) {
            for (uint32_t s = 0; s < l->segments; s++) fprintf(out, " %ux%u", l->segment[s].rows, l->cols);
            fprintf(out, " %s%s%s%s", dtype_name(l->dtype), l->norm ? ", normed" : "",
                    l->swiglu ? ", swiglu" : "", l->residual ? ", + residual" : "");
        } else if (e->kind == GPU_MATMUL) {
            fprintf(out, " %ux%u %s%s", e->as.matmul.rows, e->as.matmul.cols, dtype_name(e->as.matmul.dtype),
                    e->as.matmul.accumulate ? ", + residual" : "");
        } else if (e->kind == GPU_WORD_WAIT || e->kind == GPU_WORD_WRITE) {
            fprintf(out, " %u", e->as.word.value);
        }
        fputc('\n', out);
    }
}
