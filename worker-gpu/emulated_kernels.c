/* The emulated device's kernels: the operations of kernels.h by the CPU's fp32 kernels. See emulated.h.
 *
 * Each operation is a pair: emulated_X packs its arguments and queues them, run_X computes, on the device's
 * thread. They follow kernels.h to the letter, flags aside, so that the step code above cannot tell. */
#include "worker-gpu/emulated.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/cpu.h"
#include "common/packed.h"

int emulated_math_open(struct emulated_math *math, struct helm_err *err)
{
    size_t count;
    unsigned features = cpu_features();
    const struct linear_variant *const *table = linear_variants(&count);
    memset(math, 0, sizeof *math);
    for (size_t i = 0; i < count; i++)
        if ((table[i]->features & features) == table[i]->features && table[i]->exact_input &&
            strcmp(table[i]->name, "openblas") != 0)
            math->linear[table[i]->dtype] = table[i];
    int rc = vector_choose(features, NULL, &math->vector, err);
    for (int d = 0; d < DTYPE_COUNT && !rc; d++)
        rc = attention_choose((enum dtype)d, features & ~(unsigned)CPU_AVX512_BF16, NULL, &math->attention[d],
                              err);
    return rc;
}

void emulated_math_close(struct emulated_math *math)
{
    for (size_t i = 0; i < sizeof math->scratch / sizeof *math->scratch; i++) free(math->scratch[i].memory);
    memset(math, 0, sizeof *math);
}

/* At least `bytes` of scratch, kept for the next call; NULL (and broken) when there is none. */
void *emulated_scratch(struct emulated_math *math, enum scratch_use use, size_t bytes)
{
    if (math->scratch[use].bytes < bytes) {
        free(math->scratch[use].memory);
        bytes = (bytes + 4095) / 4096 * 4096;
        math->scratch[use].memory = aligned_alloc(64, bytes);
        math->scratch[use].bytes = math->scratch[use].memory ? bytes : 0;
        if (!math->scratch[use].memory) math->broken = "no memory for scratch";
    }
    return math->scratch[use].memory;
}

/* y[token][row], dense, of x [tokens][cols], dense. */
static bool multiply(struct emulated_math *math, enum dtype dtype, const void *w, const float *x,
                     uint32_t tokens, uint32_t rows, uint32_t cols, float *y)
{
    const struct linear_variant *v = math->linear[dtype];
    if (tokens == 1) {
        v->gemv(y, w, x, rows, cols, NULL);
        return true;
    }
    void *packed = emulated_scratch(math, SCRATCH_PACK, v->packed_bytes(tokens, cols));
    void *own = emulated_scratch(math, SCRATCH_GEMM, v->scratch_bytes ? v->scratch_bytes(cols, tokens) : 64);
    if (!packed || !own) return false;
    v->pack(packed, x, cols, tokens, cols, 0, tokens);
    if (v->thread_begin) v->thread_begin();
    v->gemm(y, rows, w, packed, rows, cols, tokens, false, own);
    if (v->thread_end) v->thread_end();
    return true;
}

/* ---- linears of decode ---- */

struct linear_call {
    struct gpuk_linear_args args;
    uint32_t tokens;
    const uint32_t *count; /* NULL: one token */
};

static void run_linear(struct emulated_math *math, const void *data)
{
    const struct linear_call *call = data;
    const struct gpuk_linear_args *a = &call->args;
    uint32_t tokens = call->count ? emulated_count(call->count, call->tokens) : 1;
    uint32_t x_stride = call->count ? a->x_stride : a->cols, out_stride = call->count ? a->out_stride : 0;
    if (tokens == 0) return;
    float *x = emulated_scratch(math, SCRATCH_X, (size_t)tokens * a->cols * sizeof(float));
    if (!x) return;
    for (uint32_t t = 0; t < tokens; t++) {
        float *to = x + (size_t)t * a->cols;
        memcpy(to, a->x + (size_t)t * x_stride, a->cols * sizeof(float));
        if (a->norm) math->vector->rmsnorm(to, to, a->norm, a->cols, a->eps);
    }
    for (uint32_t s = 0; s < a->segments; s++) {
        const struct gpuk_linear *g = &a->segment[s];
        float *y = emulated_scratch(math, a->swiglu && s == 1 ? SCRATCH_Y2 : SCRATCH_Y,
                                    (size_t)tokens * g->rows * sizeof(float));
        if (!y || !multiply(math, a->dtype, g->weight, x, tokens, g->rows, a->cols, y)) return;
        for (uint32_t t = 0; t < tokens && g->bias; t++)
            math->vector->add(y + (size_t)t * g->rows, g->bias, g->rows);
        if (a->swiglu && s == 0) continue;
        const struct gpuk_linear *to = a->swiglu ? &a->segment[0] : g;
        for (uint32_t t = 0; t < tokens; t++) {
            float *row = y + (size_t)t * g->rows;
            if (a->swiglu) {
                float *gate = (float *)math->scratch[SCRATCH_Y].memory + (size_t)t * g->rows;
                math->vector->swiglu(gate, gate, row, g->rows);
                row = gate;
            }
            if (a->residual) math->vector->add(row, a->residual + (size_t)t * out_stride, g->rows);
            memcpy(to->out + (size_t)t * out_stride, row, g->rows * sizeof(float));
        }
    }
}

void emulated_run_gemv(struct emulated_math *math, const struct gpuk_linear_args *args)
{
    const struct linear_call call = {.args = *args, .tokens = 1};
    run_linear(math, &call);
}

static int emulated_gemv(struct device *d, const struct gpuk_linear_args *args, void *workspace,
                         uint32_t flags, struct helm_err *err)
{
    (void)workspace, (void)flags;
    const struct linear_call call = {.args = *args, .tokens = 1};
    return emulated_enqueue(d, run_linear, &call, sizeof call, err);
}

static int emulated_gemm_small(struct device *d, const struct gpuk_linear_args *args, uint32_t tokens,
                               const uint32_t *count, void *workspace, uint32_t flags, struct helm_err *err)
{
    (void)workspace, (void)flags;
    const struct linear_call call = {.args = *args, .tokens = tokens, .count = count};
    if (tokens > GPUK_BATCH_MAX)
        return helm_fail(err, HELM_E_LIMIT, "gemm_small: %u tokens, at most %d", tokens, GPUK_BATCH_MAX);
    return emulated_enqueue(d, run_linear, &call, sizeof call, err);
}

/* ---- matrix products of prefill ---- */

struct matmul_call {
    enum dtype dtype, out_dtype;
    uint32_t tokens, rows, cols, out_stride;
    bool accumulate;
    const void *w, *x;
    void *out;
};

static void run_matmul(struct emulated_math *math, const void *data)
{
    const struct matmul_call *c = data;
    float *x = emulated_scratch(math, SCRATCH_X, (size_t)c->tokens * c->cols * sizeof(float));
    float *y = emulated_scratch(math, SCRATCH_Y, (size_t)c->tokens * c->rows * sizeof(float));
    if (!x || !y) return;
    math->vector->load(x, c->x, c->dtype, (size_t)c->tokens * c->cols);
    if (!multiply(math, c->dtype, c->w, x, c->tokens, c->rows, c->cols, y)) return;
    for (uint32_t t = 0; t < c->tokens; t++) {
        float *row = y + (size_t)t * c->rows;
        size_t at = (size_t)t * c->out_stride;
        if (c->accumulate) math->vector->add(row, (const float *)c->out + at, c->rows);
        emulated_store(math, c->out, at, c->out_dtype, row, c->rows);
    }
}

static int emulated_matmul(struct device *d, enum dtype dtype, enum dtype out_dtype, uint32_t tokens,
                           uint32_t rows, uint32_t cols, uint32_t out_stride, bool accumulate, const void *w,
                           const void *x, void *out, void *workspace, struct helm_err *err)
{
    (void)workspace;
    const struct matmul_call call = {.dtype = dtype,
                                     .out_dtype = out_dtype,
                                     .tokens = tokens,
                                     .rows = rows,
                                     .cols = cols,
                                     .out_stride = out_stride,
                                     .accumulate = accumulate,
                                     .w = w,
                                     .x = x,
                                     .out = out};
    if (accumulate && out_dtype != DTYPE_F32)
        return helm_fail(err, HELM_E_UNSUPPORTED, "matmul: sums are kept in f32 only");
    return emulated_enqueue(d, run_matmul, &call, sizeof call, err);
}

struct row_call { /* what works row by row */
    const uint32_t *count;
    uint32_t tokens, stride, n, up_at, out_stride;
    const void *in;
    const float *weight;
    void *out;
    enum dtype in_dtype, out_dtype;
    float eps;
};

static void run_add_bias(struct emulated_math *math, const void *data)
{
    const struct row_call *c = data;
    float *row = emulated_scratch(math, SCRATCH_Y, c->n * sizeof(float));
    for (uint32_t t = 0, n = emulated_count(c->count, c->tokens); t < n && row; t++) {
        size_t at = (size_t)t * c->stride;
        math->vector->load(row, (char *)c->out + at * dtype_bytes(c->out_dtype), c->out_dtype, c->n);
        math->vector->add(row, c->weight, c->n);
        emulated_store(math, c->out, at, c->out_dtype, row, c->n);
    }
}

static int emulated_add_bias(struct device *d, const uint32_t *count, uint32_t tokens, void *out,
                             enum dtype dtype, uint32_t stride, uint32_t rows, const float *bias,
                             uint32_t flags, struct helm_err *err)
{
    (void)flags;
    const struct row_call call = {.count = count,
                                  .tokens = tokens,
                                  .stride = stride,
                                  .n = rows,
                                  .weight = bias,
                                  .out = out,
                                  .out_dtype = dtype};
    return emulated_enqueue(d, run_add_bias, &call, sizeof call, err);
}

/* ---- row by row ---- */

static void run_rmsnorm(struct emulated_math *math, const void *data)
{
    const struct row_call *c = data;
    float *row = emulated_scratch(math, SCRATCH_Y, c->n * sizeof(float));
    for (uint32_t t = 0, n = emulated_count(c->count, c->tokens); t < n && row; t++) {
        const float *x = (const float *)c->in + (size_t)t * c->n;
        if (c->weight)
            math->vector->rmsnorm(row, x, c->weight, c->n, c->eps);
        else
            memcpy(row, x, c->n * sizeof(float));
        emulated_store(math, c->out, (size_t)t * c->n, c->out_dtype, row, c->n);
    }
}

static int emulated_rmsnorm(struct device *d, const uint32_t *count, uint32_t tokens, const float *x,
                            const float *norm, float eps, uint32_t hidden, void *out, enum dtype out_dtype,
                            uint32_t flags, struct helm_err *err)
{
    (void)flags;
    const struct row_call call = {.count = count,
                                  .tokens = tokens,
                                  .n = hidden,
                                  .in = x,
                                  .weight = norm,
                                  .out = out,
                                  .out_dtype = out_dtype,
                                  .eps = eps};
    return emulated_enqueue(d, run_rmsnorm, &call, sizeof call, err);
}

static void run_lane_copy(struct emulated_math *math, const void *data)
{
    (void)math;
    const struct row_call *c = data;
    memcpy(c->out, c->in, (size_t)emulated_count(c->count, c->tokens) * c->n * sizeof(float));
}

static int emulated_lane_copy(struct device *d, const uint32_t *count, uint32_t tokens, const float *x,
                              uint32_t hidden, float *out, uint32_t flags, struct helm_err *err)
{
    (void)flags;
    const struct row_call call = {.count = count, .tokens = tokens, .n = hidden, .in = x, .out = out};
    return emulated_enqueue(d, run_lane_copy, &call, sizeof call, err);
}

static void run_swiglu(struct emulated_math *math, const void *data)
{
    const struct row_call *c = data;
    float *gate = emulated_scratch(math, SCRATCH_Y, c->n * sizeof(float));
    float *up = emulated_scratch(math, SCRATCH_Y2, c->n * sizeof(float));
    size_t bytes = dtype_bytes(c->in_dtype);
    for (uint32_t t = 0, n = emulated_count(c->count, c->tokens); t < n && gate && up; t++) {
        const char *in = (const char *)c->in + (size_t)t * c->stride * bytes;
        math->vector->load(gate, in, c->in_dtype, c->n);
        math->vector->load(up, in + c->up_at * bytes, c->in_dtype, c->n);
        math->vector->swiglu(gate, gate, up, c->n);
        emulated_store(math, c->out, (size_t)t * c->out_stride, c->out_dtype, gate, c->n);
    }
}

static int emulated_swiglu(struct device *d, const uint32_t *count, uint32_t tokens, const void *in,
                           enum dtype in_dtype, uint32_t stride, uint32_t up_at, uint32_t n, void *out,
                           enum dtype out_dtype, uint32_t out_stride, uint32_t flags, struct helm_err *err)
{
    (void)flags;
    const struct row_call call = {.count = count,
                                  .tokens = tokens,
                                  .stride = stride,
                                  .n = n,
                                  .up_at = up_at,
                                  .in = in,
                                  .out = out,
                                  .out_stride = out_stride,
                                  .in_dtype = in_dtype,
                                  .out_dtype = out_dtype};
    return emulated_enqueue(d, run_swiglu, &call, sizeof call, err);
}

/* ---- what reads the step block ---- */

struct step_call {
    struct gpuk_step step;
    uint32_t tokens, n, vocab;
    const void *in;
    float *out;
    enum dtype dtype;
    float scale;
};

static void run_embed(struct emulated_math *math, const void *data)
{
    const struct step_call *c = data;
    for (uint32_t t = 0, n = emulated_count(c->step.counts, c->tokens); t < n; t++) {
        float *x = c->out + (size_t)t * c->n;
        uint32_t id = c->step.token_id[t];
        if (id < c->vocab)
            math->vector->load(x, (const char *)c->in + (size_t)id * c->n * dtype_bytes(c->dtype), c->dtype,
                               c->n);
        else
            for (uint32_t i = 0; i < c->n; i++) x[i] = NAN;
    }
}

static int emulated_embed(struct device *d, const struct gpuk_step *step, uint32_t tokens, const void *table,
                          enum dtype dtype, uint32_t vocab, uint32_t hidden, float *x, uint32_t flags,
                          struct helm_err *err)
{
    (void)flags;
    const struct step_call call = {
        .step = *step, .tokens = tokens, .n = hidden, .vocab = vocab, .in = table, .out = x, .dtype = dtype};
    return emulated_enqueue(d, run_embed, &call, sizeof call, err);
}

static void run_gather(struct emulated_math *math, const void *data)
{
    (void)math;
    const struct step_call *c = data;
    for (uint32_t i = 0, n = emulated_count(c->step.counts + 2, c->tokens); i < n; i++)
        memcpy(c->out + (size_t)i * c->n, (const float *)c->in + (size_t)c->step.sample_token[i] * c->n,
               c->n * sizeof(float));
}

static int emulated_gather(struct device *d, const struct gpuk_step *step, uint32_t samples, const float *x,
                           uint32_t hidden, float *out, uint32_t flags, struct helm_err *err)
{
    (void)flags;
    const struct step_call call = {.step = *step, .tokens = samples, .n = hidden, .in = x, .out = out};
    return emulated_enqueue(d, run_gather, &call, sizeof call, err);
}

static void run_rope_table(struct emulated_math *math, const void *data)
{
    (void)math;
    const struct step_call *c = data;
    uint32_t half = c->n / 2;
    const float *inv_freq = c->in;
    for (uint32_t t = 0, n = emulated_count(c->step.counts, c->tokens); t < n; t++) {
        float *cosine = c->out + (size_t)t * 2 * half, *sine = cosine + half;
        for (uint32_t i = 0; i < half; i++) {
            float angle = (float)c->step.position[t] * inv_freq[i];
            cosine[i] = cosf(angle) * c->scale;
            sine[i] = sinf(angle) * c->scale;
        }
    }
}

static int emulated_rope_table(struct device *d, const struct gpuk_step *step, uint32_t tokens,
                               const float *inv_freq, uint32_t head_dim, float scale, float *table,
                               uint32_t flags, struct helm_err *err)
{
    (void)flags;
    const struct step_call call = {
        .step = *step, .tokens = tokens, .n = head_dim, .in = inv_freq, .out = table, .scale = scale};
    return emulated_enqueue(d, run_rope_table, &call, sizeof call, err);
}

/* ---- packed weights ---- */

struct expand_call {
    struct gpuk_expand_part part[GPUK_EXPAND_PARTS_MAX];
    uint32_t parts;
};

static void expand_part(struct emulated_math *math, const struct gpuk_expand_part *p)
{
    const char *packed = p->packed;
    uint16_t *out = p->out;
    for (uint32_t g = 0; g < packed_groups(p->rows); g++) {
        uint32_t values = packed_group_values(p->rows, p->cols, g);
        uint64_t bytes = (uint64_t)(p->offset[g + 1] - p->offset[g]) * PACKED_ALIGN;
        if (packed_read(packed, bytes, values, out, NULL)) math->broken = "packed weights that are none";
        packed += bytes;
        out += values;
    }
}

static void run_expand(struct emulated_math *math, const void *data)
{
    const struct expand_call *c = data;
    for (uint32_t i = 0; i < c->parts; i++) expand_part(math, &c->part[i]);
}

static int emulated_expand(struct device *d, const struct gpuk_expand_part *part, uint32_t parts,
                           struct helm_err *err)
{
    struct expand_call call = {.parts = parts};
    if (parts > GPUK_EXPAND_PARTS_MAX)
        return helm_fail(err, HELM_E_LIMIT, "%u parts are expanded at once, at most %d can be", parts,
                         GPUK_EXPAND_PARTS_MAX);
    memcpy(call.part, part, parts * sizeof *part);
    return emulated_enqueue(d, run_expand, &call, sizeof call, err);
}

struct gemv_packed_call {
    struct gpuk_linear_args args;
    const uint32_t *offset[GPUK_SEGMENTS_MAX];
};

static void run_gemv_packed(struct emulated_math *math, const void *data)
{
    const struct gemv_packed_call *c = data;
    struct gpuk_linear_args plain = c->args;
    size_t values = 0;
    for (uint32_t s = 0; s < plain.segments; s++) values += (size_t)plain.segment[s].rows * plain.cols;
    uint16_t *out = emulated_scratch(math, SCRATCH_PLAIN, values * sizeof *out);
    if (!out) return;
    for (uint32_t s = 0; s < plain.segments; s++) {
        struct gpuk_linear *g = &plain.segment[s];
        const struct gpuk_expand_part part = {g->weight, c->offset[s], out, g->rows, plain.cols};
        expand_part(math, &part);
        g->weight = out;
        out += (size_t)g->rows * plain.cols;
    }
    emulated_run_gemv(math, &plain);
}

/* Of narrower matrices than a GPU's kernel, so that small models have some that are taken and some that are
 * not. */
static bool emulated_gemv_packed_takes(struct device *d, const struct gpuk_linear_args *args)
{
    (void)d;
    return args->dtype == DTYPE_BF16 && args->cols % 256 == 0;
}

static int emulated_gemv_packed(struct device *d, const struct gpuk_linear_args *args,
                                const uint32_t *const *offset, uint32_t flags, struct helm_err *err)
{
    struct gemv_packed_call call = {.args = *args};
    (void)flags;
    if (!emulated_gemv_packed_takes(d, args))
        return helm_fail(err, HELM_E_UNSUPPORTED, "packed gemv: %u columns", args->cols);
    memcpy(call.offset, offset, args->segments * sizeof *offset);
    return emulated_enqueue(d, run_gemv_packed, &call, sizeof call, err);
}

/* Kernels work in host scratch; a little device memory each keeps the ledger's lines alive. */
static size_t gemv_workspace(uint32_t cols)
{
    return cols * sizeof(float);
}
static size_t gemm_small_workspace(uint32_t tokens, uint32_t cols)
{
    return GPUK_LINEAR_COUNTER_BYTES + gpuk_linear_sums_bytes(tokens, cols); /* as a GPU's: for the ledger */
}
const struct device_kernels emulated_kernels = {
    .gemv = emulated_gemv,
    .gemm_small = emulated_gemm_small,
    .embed = emulated_embed,
    .rmsnorm = emulated_rmsnorm,
    .gather = emulated_gather,
    .lane_copy = emulated_lane_copy,
    .swiglu = emulated_swiglu,
    .rope_table = emulated_rope_table,
    .rope_append = emulated_rope_append,
    .attention_decode = emulated_attention_decode,
    .attention_prefill = emulated_attention_prefill,
    .argmax = emulated_argmax,
    .few = emulated_few,
    .matmul = emulated_matmul,
    .expand = emulated_expand,
    .gemv_packed_takes = emulated_gemv_packed_takes,
    .gemv_packed = emulated_gemv_packed,
    .add_bias = emulated_add_bias,
    .chain_takes = emulated_chain_takes,
    .chain_bytes = emulated_chain_bytes,
    .chain_write = emulated_chain_write,
    .chain_run = emulated_chain_run,
    .gemv_workspace = gemv_workspace,
    .gemm_small_workspace = gemm_small_workspace,
    .attention_counters = emulated_attention_counters,
    .attention_workspace = emulated_attention_workspace,
    .argmax_workspace = emulated_argmax_workspace,
    .few_workspace = emulated_few_workspace,
    .matmul_workspace = 4096,
};
