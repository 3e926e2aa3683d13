/* The emulated device's kernels: the operations of kernels.h by the CPU's fp32 kernels. See emulated.h.
 *
 * emulated_run checks an operation and queues it; run_X computes it, on the device's thread. They follow
 * kernels.h to the letter, flags aside, so that the step code above cannot tell. */
#include "worker-gpu/device/emulated/emulated.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/cpu.h"
#include "common/formats/packed.h"
#include "common/model/weigh.h"

int emulated_math_open(struct emulated_math *math, struct helm_err *err)
{
    size_t count;
    const unsigned features = cpu_features() & ~(unsigned)CPU_AMX_BF16; /* x is multiplied as it is */
    const struct linear_kernel *const *table = linear_kernels(&count);
    memset(math, 0, sizeof *math);
    for (size_t i = 0; i < count; i++) {
        if (table[i]->features & ~features || table[i]->inputs != LINEAR_EXACT) continue;
        if (table[i]->schedule == LINEAR_DECODE && table[i]->rows == FORMAT_F32)
            math->decode[table[i]->format] = table[i];
        if (table[i]->schedule == LINEAR_ONE_TOKEN) math->gemv[table[i]->format] = table[i];
        if (table[i]->schedule == LINEAR_TOKENS && table[i]->exact_input &&
            strcmp(table[i]->name, "openblas") != 0)
            math->gemm[table[i]->format] = table[i]->steady ? table[i]->steady : table[i];
    }
    int rc = vector_choose(features, NULL, &math->vector, err);
    for (int d = 0; d < KV_DTYPE_COUNT && !rc; d++)
        rc = attention_choose((enum kv_dtype)d, features & ~(unsigned)CPU_AVX512_BF16, NULL,
                              &math->attention[d], err);
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

/* y[token][row] = w[row] x[token], all dense. */
struct product {
    enum dtype dtype; /* of w */
    uint32_t tokens, rows, cols;
    const void *w;
    const float *x;
    float *y;
};

/* A few tokens, each with the bits that it has alone. */
static void multiply_each(struct emulated_math *math, const struct product *p)
{
    for (uint32_t t = 0; t < p->tokens; t++)
        math->gemv[p->dtype]->gemv(p->y + (size_t)t * p->rows, p->w, p->x + (size_t)t * p->cols, p->rows,
                                   p->cols, NULL);
}

/* A chunk's, each with the bits that it has in any chunk. */
static bool multiply(struct emulated_math *math, const struct product *p)
{
    const struct linear_kernel *k = math->gemm[p->dtype];
    const uint32_t tokens = p->tokens, rows = p->rows, cols = p->cols;
    void *tiled = emulated_scratch(math, SCRATCH_TILED, k->tiled_bytes(tokens, cols));
    void *own = emulated_scratch(math, SCRATCH_GEMM, k->scratch_bytes(cols, tokens) + 64);
    if (!tiled || !own) return false;
    k->tile(tiled, p->x, cols, tokens, cols, 0, tokens, 0, cols);
    if (k->thread_begin) k->thread_begin();
    k->gemm(p->y, rows, p->w, tiled, rows, cols, tokens, false, own);
    if (k->thread_end) k->thread_end();
    return true;
}

/* ---- linears of decode ---- */

/* Weights of a format that is not plain to single numbers: packed ones to bf16, others to `dtype`. */
static void expand_part(struct emulated_math *math, const struct gpuk_expand_part *p, enum dtype dtype)
{
    const char *packed = p->weight;
    if (!tensor_format_of(p->format)->variable) {
        const struct linear_kernel *k = math->decode[p->format];
        const uint64_t bytes = tensor_format_row_bytes(p->format, p->cols);
        float *row = emulated_scratch(math, SCRATCH_GEMM, p->cols * sizeof *row);
        if (!k) math->broken = "weights of no such format";
        for (uint32_t r = 0; r < p->rows && row && k; r++) {
            k->decode(row, packed + r * bytes, 1, p->cols);
            emulated_store(math, p->out, (size_t)r * p->cols, dtype, row, p->cols);
        }
        return;
    }
    uint16_t *out = p->out;
    for (uint32_t g = 0; g < packed_groups(p->rows); g++) {
        uint32_t values = packed_group_values(p->rows, p->cols, g);
        uint64_t bytes = (uint64_t)(p->offset[g + 1] - p->offset[g]) * PACKED_ALIGN;
        if (packed_read(packed, bytes, values, out, NULL)) math->broken = "packed weights that are none";
        packed += bytes;
        out += values;
    }
}

/* The values of a matrix as single numbers; NULL (and broken) without memory. */
static const void *plain_of(struct emulated_math *math, struct gpuk_expand_part part, enum dtype dtype)
{
    if (tensor_format_is_plain(part.format)) return part.weight;
    part.out = emulated_scratch(math, SCRATCH_PLAIN, (size_t)part.rows * part.cols * dtype_bytes(dtype));
    if (part.out) expand_part(math, &part, dtype);
    return part.out;
}
/* As what they decode to. */
static const void *weight_of(struct emulated_math *math, const struct gpuk_linear_args *a,
                             const struct gpuk_linear *g)
{
    const struct gpuk_expand_part part = {
        .format = a->format, .weight = g->weight, .offset = g->offset, .rows = g->rows, .cols = a->cols};
    return plain_of(math, part, tensor_format_value(a->format));
}

/* The activation of gates and ups, into the gates. */
static void emulated_glu(const struct emulated_math *math, enum glu_kind glu, float *gate, const float *up,
                         size_t n)
{
    const struct vector_variant *v = math->vector;
    (glu == GLU_GELU ? v->gelu : glu == GLU_CLAMPED ? v->swiglu_clamped : v->swiglu)(gate, gate, up, n);
}

void emulated_linear(struct emulated_math *math, const struct gpuk_linear_args *a, uint32_t tokens,
                     uint32_t x_stride, uint32_t out_stride)
{
    if (tokens == 0) return;
    float *x = emulated_scratch(math, SCRATCH_X, (size_t)tokens * a->cols * sizeof(float));
    if (!x) return;
    for (uint32_t t = 0; t < tokens; t++) {
        float *to = x + (size_t)t * a->cols;
        memcpy(to, a->x + (size_t)t * x_stride, a->cols * sizeof(float));
        if (a->norm) math->vector->rmsnorm(to, to, a->norm, a->cols, a->eps);
    }
    const enum dtype dtype = tensor_format_value(a->format);
    for (uint32_t s = 0; s < a->segments; s++) {
        const struct gpuk_linear *g = &a->segment[s];
        const void *weight = weight_of(math, a, g);
        float *y = emulated_scratch(math, a->swiglu && s == 1 ? SCRATCH_Y2 : SCRATCH_Y,
                                    (size_t)tokens * g->rows * sizeof(float));
        const struct product product = {
            .dtype = dtype, .tokens = tokens, .rows = g->rows, .cols = a->cols, .w = weight, .x = x, .y = y};
        if (!y || !weight) return;
        multiply_each(math, &product);
        for (uint32_t t = 0; t < tokens && g->bias; t++)
            math->vector->add(y + (size_t)t * g->rows, g->bias, g->rows);
        if (a->swiglu && s == 0) continue;
        const struct gpuk_linear *to = a->swiglu ? &a->segment[0] : g;
        for (uint32_t t = 0; t < tokens; t++) {
            float *row = y + (size_t)t * g->rows;
            if (a->swiglu) {
                float *gate = (float *)math->scratch[SCRATCH_Y].memory + (size_t)t * g->rows;
                emulated_glu(math, a->glu, gate, row, g->rows);
                row = gate;
            }
            if (a->residual) math->vector->add(row, a->residual + (size_t)t * out_stride, g->rows);
            memcpy(to->out + (size_t)t * out_stride, row, g->rows * sizeof(float));
        }
    }
}

static void run_gemm_small(struct emulated_math *math, const struct op *op)
{
    const struct gpuk_linear_args *a = &op->as.linear;
    emulated_linear(math, a, emulated_count(op->count, op->tokens), a->x_stride, a->out_stride);
}

static void run_gemv(struct emulated_math *math, const struct op *op)
{
    emulated_linear(math, &op->as.linear, 1, op->as.linear.cols, 0);
}

/* ---- matrix products of prefill ---- */

static void run_matmul(struct emulated_math *math, const struct op *op)
{
    const struct op_matmul *c = &op->as.matmul;
    float *x = emulated_scratch(math, SCRATCH_X, (size_t)op->tokens * c->cols * sizeof(float));
    float *y = emulated_scratch(math, SCRATCH_Y, (size_t)op->tokens * c->rows * sizeof(float));
    const struct gpuk_expand_part part = {.format = c->format,
                                          .weight = c->w,
                                          .rows = c->rows,
                                          .cols = c->cols};
    const void *w = plain_of(math, part, c->dtype);
    if (!x || !y || !w) return;
    math->vector->load(x, c->x, c->dtype, (size_t)op->tokens * c->cols);
    const struct product product = {
        .dtype = c->dtype, .tokens = op->tokens, .rows = c->rows, .cols = c->cols, .w = w, .x = x, .y = y};
    if (!multiply(math, &product)) return;
    for (uint32_t t = 0; t < op->tokens; t++) {
        float *row = y + (size_t)t * c->rows;
        size_t at = (size_t)t * c->out_stride;
        if (c->accumulate) math->vector->add(row, (const float *)c->out + at, c->rows);
        emulated_store(math, c->out, at, c->out_dtype, row, c->rows);
    }
}

static void run_add_bias(struct emulated_math *math, const struct op *op)
{
    const struct op_bias *c = &op->as.bias;
    float *row = emulated_scratch(math, SCRATCH_Y, c->rows * sizeof(float));
    for (uint32_t t = 0, n = emulated_count(op->count, op->tokens); t < n && row; t++) {
        size_t at = (size_t)t * c->stride;
        math->vector->load(row, (char *)c->out + at * dtype_bytes(c->dtype), c->dtype, c->rows);
        math->vector->add(row, c->bias, c->rows);
        emulated_store(math, c->out, at, c->dtype, row, c->rows);
    }
}

static void run_expand(struct emulated_math *math, const struct op *op)
{
    const struct op_expand *c = &op->as.expand;
    for (uint32_t i = 0; i < c->parts; i++)
        expand_part(math, &c->part[i], tensor_format_product(c->part[i].format));
}

/* ---- row by row ---- */

static void run_norm(struct emulated_math *math, const struct op *op)
{
    const struct op_norm *c = &op->as.norm;
    float *row = emulated_scratch(math, SCRATCH_Y, c->width * sizeof(float));
    for (uint32_t t = 0, n = emulated_count(op->count, op->tokens); t < n && row; t++) {
        const float *x = c->x + (size_t)t * c->width;
        if (c->norm)
            math->vector->rmsnorm(row, x, c->norm, c->width, c->eps);
        else
            memcpy(row, x, c->width * sizeof(float));
        emulated_store(math, c->out, (size_t)t * c->width, c->out_dtype, row, c->width);
    }
}

static void run_add_normed(struct emulated_math *math, const struct op *op)
{
    const struct gpuk_add_normed *c = &op->as.add_normed;
    float *row = emulated_scratch(math, SCRATCH_Y, c->width * sizeof(float));
    float *other = emulated_scratch(math, SCRATCH_Y2, c->width * sizeof(float));
    for (uint32_t t = 0, n = emulated_count(op->count, op->tokens); t < n && row && other; t++) {
        const size_t at = (size_t)t * (c->stride ? c->stride : c->width);
        const float *in = c->in + at;
        const float by = c->factor        ? *c->factor
                         : c->growth != 0 ? math_growth(c->growth, c->growth_context, c->position[t])
                                          : 1;
        if (c->other) {
            math->vector->rmsnorm(row, in, c->in_norm, c->width, c->eps);
            math->vector->rmsnorm(other, c->other + at, c->other_norm, c->width, c->eps);
            math->vector->add(row, other, c->width);
            in = row;
        }
        if (c->norm)
            math->vector->rmsnorm(row, in, c->norm, c->width, c->eps);
        else
            memcpy(row, in, c->width * sizeof(float));
        if (c->x) math->vector->add(row, c->x + at, c->width);
        for (uint32_t i = 0; i < c->width; i++) c->out[at + i] = row[i] * by;
    }
}

static void run_join(struct emulated_math *math, const struct op *op)
{
    const struct gpuk_join *c = &op->as.join;
    float *row = emulated_scratch(math, SCRATCH_Y, c->width * sizeof(float));
    for (uint32_t t = 0, n = emulated_count(op->count, op->tokens); t < n && row; t++) {
        const size_t at = (size_t)t * c->width;
        math->vector->rmsnorm(row, c->a + at, c->norm_a, c->width, c->eps);
        emulated_store(math, c->out, 2 * at, c->out_dtype, row, c->width);
        math->vector->rmsnorm(row, c->b + at, c->norm_b, c->width, c->eps);
        emulated_store(math, c->out, 2 * at + c->width, c->out_dtype, row, c->width);
    }
}

static void run_soft_cap(struct emulated_math *math, const struct op *op)
{
    (void)math;
    const struct op_soft_cap *c = &op->as.soft_cap;
    const size_t n = (size_t)emulated_count(op->count, op->tokens) * c->vocab;
    for (size_t i = 0; i < n; i++) c->logits[i] = c->cap * tanhf(c->logits[i] / c->cap);
}

static void run_move(struct emulated_math *math, const struct op *op)
{
    (void)math;
    const struct op_move *c = &op->as.move;
    memcpy(c->to, c->from, (size_t)emulated_count(op->count, op->tokens) * c->width * sizeof(float));
}

static void run_swiglu(struct emulated_math *math, const struct op *op)
{
    const struct op_swiglu *c = &op->as.swiglu;
    float *gate = emulated_scratch(math, SCRATCH_Y, c->n * sizeof(float));
    float *up = emulated_scratch(math, SCRATCH_Y2, c->n * sizeof(float));
    size_t bytes = dtype_bytes(c->in_dtype);
    for (uint32_t t = 0, n = emulated_count(op->count, op->tokens); t < n && gate && up; t++) {
        const char *in = (const char *)c->in + (size_t)t * c->stride * bytes;
        math->vector->load(gate, in, c->in_dtype, c->n);
        math->vector->load(up, in + c->up_at * bytes, c->in_dtype, c->n);
        emulated_glu(math, c->glu, gate, up, c->n);
        emulated_store(math, c->out, (size_t)t * c->out_stride, c->out_dtype, gate, c->n);
    }
}

void emulated_weigh(struct emulated_math *math, const struct gpuk_weigh *c, uint32_t tokens)
{
    float *x = emulated_scratch(math, SCRATCH_Y, c->width * sizeof(float));
    float *act = emulated_scratch(math, SCRATCH_Y2, c->n * sizeof(float));
    const size_t bytes = dtype_bytes(c->dtype);
    for (uint32_t t = 0; t < tokens && x && act; t++) {
        math->vector->rmsnorm(x, c->x + (size_t)t * c->width, c->norm, c->width, c->eps);
        const float weight = weigh_of(x, c->weight, c->width);
        math->vector->load(act, (char *)c->act + (size_t)t * c->n * bytes, c->dtype, c->n);
        for (uint32_t i = 0; i < c->n; i++) act[i] *= weight;
        emulated_store(math, c->act, (size_t)t * c->n, c->dtype, act, c->n);
    }
}
static void run_weigh(struct emulated_math *math, const struct op *op)
{
    emulated_weigh(math, &op->as.weigh, emulated_count(op->count, op->tokens));
}

/* ---- what reads the step block ---- */

static void run_embed(struct emulated_math *math, const struct op *op)
{
    (void)math;
    const struct op_embed *c = &op->as.embed;
    for (uint32_t t = 0, n = emulated_count(c->step.counts, op->tokens); t < n; t++) {
        float *x = c->x + (size_t)t * c->hidden;
        uint32_t id = c->step.token_id[t];
        const struct tensor_matrix table = {.format = c->format,
                                            .data = c->table,
                                            .bytes = tensor_format_bytes(c->format, c->vocab, c->hidden),
                                            .rows = c->vocab,
                                            .cols = c->hidden};
        if (id >= c->vocab || tensor_format_read_row(&table, id, x, NULL))
            for (uint32_t i = 0; i < c->hidden; i++) x[i] = NAN;
        for (uint32_t i = 0; i < c->hidden; i++) x[i] *= c->scale;
    }
}

static void run_per_layer(struct emulated_math *math, const struct op *op)
{
    const struct gpuk_per_layer *c = &op->as.per_layer;
    const uint32_t width = c->layers * c->width;
    const struct tensor_matrix table = {.format = c->format,
                                        .data = c->table,
                                        .bytes = tensor_format_bytes(c->format, c->vocab, width),
                                        .rows = c->vocab,
                                        .cols = width};
    float *row = emulated_scratch(math, SCRATCH_Y, width * sizeof(float));
    for (uint32_t t = 0, n = emulated_count(c->step.counts, op->tokens); t < n && row; t++) {
        float *x = c->x + (size_t)t * c->stride;
        const uint32_t id = c->step.token_id[t];
        if (id >= c->vocab || tensor_format_read_row(&table, id, row, NULL))
            for (uint32_t i = 0; i < width; i++) row[i] = NAN;
        for (uint32_t i = 0; i < width; i++) x[i] *= c->in_scale;
        for (uint32_t at = 0; at < width; at += c->width)
            math->vector->rmsnorm(x + at, x + at, c->norm, c->width, c->eps);
        for (uint32_t i = 0; i < width; i++) x[i] = (x[i] + c->table_scale * row[i]) * c->out_scale;
    }
}

static void run_gather(struct emulated_math *math, const struct op *op)
{
    (void)math;
    const struct op_gather *c = &op->as.gather;
    for (uint32_t i = 0, n = emulated_count(c->step.counts + 2, op->tokens); i < n; i++)
        memcpy(c->out + (size_t)i * c->width, c->x + (size_t)c->step.sample_token[i] * c->width,
               c->width * sizeof(float));
}

static void run_rope_table(struct emulated_math *math, const struct op *op)
{
    (void)math;
    const struct op_rope_table *c = &op->as.rope_table;
    uint32_t half = c->head_dim / 2;
    for (uint32_t t = 0, n = emulated_count(c->step.counts, op->tokens); t < n; t++) {
        float *cosine = c->table + (size_t)t * 2 * half, *sine = cosine + half;
        for (uint32_t i = 0; i < half; i++) {
            float angle = (float)c->step.position[t] * c->inv_freq[i];
            cosine[i] = cosf(angle) * c->scale;
            sine[i] = sinf(angle) * c->scale;
        }
    }
}

/* A row's tokens in order. Outputs may take the place of inputs of tokens that are done. */
static void run_running_mean(struct emulated_math *math, const struct op *op)
{
    const struct op_running_mean *c = &op->as.running_mean;
    float *mean = emulated_scratch(math, SCRATCH_Y, c->width * sizeof(float));
    for (uint32_t r = 0; r < c->step.counts[1] && mean; r++) {
        float *sum = (float *)(void *)(c->state + c->row_state[c->step.row_slot[r]] * c->slot_bytes);
        const uint32_t first = c->step.row_first[r], end = c->step.row_first[r + 1];
        struct gpuk_left_at left = gpuk_left_after(&c->left, c->step.row_slot[r], first, end);
        for (uint32_t t = first; t < end; t++) {
            const float *in = c->in + (size_t)t * c->in_stride;
            const float positions = (float)(c->step.position[t] + 1);
            for (uint32_t i = 0; i < c->width; i++) {
                sum[i] += in[i];
                mean[i] = sum[i] / positions;
            }
            emulated_store(math, c->out, (size_t)t * c->out_stride, c->out_dtype, mean, c->width);
            if (t + 1 != left.at || !left.to) continue;
            memcpy(left.to, sum, c->width * sizeof *sum);
            left = gpuk_left_after(&c->left, c->step.row_slot[r], left.at, end);
        }
    }
}

/* ---- the table ---- */

static emulated_run_fn *const run_of[OP_KIND_COUNT] = {
    [OP_EMBED] = run_embed,
    [OP_PER_LAYER] = run_per_layer,
    [OP_NORM] = run_norm,
    [OP_ADD_NORMED] = run_add_normed,
    [OP_JOIN] = run_join,
    [OP_ROPE_APPEND] = emulated_run_rope_append,
    [OP_LANE_READ] = run_move,
    [OP_LANE_WRITE] = run_move,
    [OP_KV_QUERY] = run_move,
    [OP_READ_BLOCK] = run_move,
    [OP_ROPE_TABLE] = run_rope_table,
    [OP_RUNNING_MEAN] = run_running_mean,
    [OP_LINEAR_HEADS] = emulated_run_heads,
    [OP_CONVOLVE] = emulated_run_convolve,
    [OP_DELTA] = emulated_run_delta,
    [OP_GEMV] = run_gemv,
    [OP_GEMM_SMALL] = run_gemm_small,
    [OP_LOGITS] = run_gemm_small,
    [OP_ROUTE] = emulated_run_route,
    [OP_WEIGH] = run_weigh,
    [OP_EXPERTS_ASK] = emulated_run_experts_ask,
    [OP_EXPERTS_ADD] = emulated_run_experts_add,
    [OP_EXPERTS_GROUP] = emulated_run_experts_group,
    [OP_EXPERTS_GLU] = emulated_run_experts_glu,
    [OP_EXPERTS_DOWN] = emulated_run_experts_down,
    [OP_EXPERTS_SUM] = emulated_run_experts_sum,
    [OP_MATMUL] = run_matmul,
    [OP_ADD_BIAS] = run_add_bias,
    [OP_SWIGLU] = run_swiglu,
    [OP_ATTEND_DECODE] = emulated_run_attend_decode,
    [OP_ATTEND_PREFILL] = emulated_run_attend_prefill,
    [OP_ATTEND_MERGE] = emulated_run_attend_merge,
    [OP_GATHER] = run_gather,
    [OP_SOFT_CAP] = run_soft_cap,
    [OP_ARGMAX] = emulated_run_argmax,
    [OP_FEW] = emulated_run_few,
    [OP_CHAIN] = emulated_run_chain,
    [OP_EXPAND] = run_expand,
};

/* Tokens of a chunk that are multiplied by blocks as they lie, where such a chunk takes them. */
static uint32_t blocks_tokens(enum tensor_format format)
{
    return format == FORMAT_Q4_K ? GPUK_WIDE_TOKENS : GPUK_BLOCKS_TOKENS;
}

/* As the table of linear.cu: blocks by one and few tokens; packed weights by one token only, and narrower
 * ones than a GPU's kernel has, so that small models have some that are taken and some that are not. A short
 * chunk takes blocks of 256 values, so that others are expanded, and a chunk of more tokens a part of
 * these. */
static bool linear_takes(struct device *d, const struct gpuk_linear_args *args, enum gpuk_schedule schedule)
{
    (void)d;
    if (tensor_format_is_plain(args->format)) return true;
    if (schedule == GPUK_WIDE) return blocks_tokens(args->format) > GPUK_BLOCKS_TOKENS;
    if (schedule == GPUK_SHORT) return tensor_format_of(args->format)->block_values == 256;
    if (!tensor_format_of(args->format)->variable) return schedule != GPUK_CHUNK;
    return schedule == GPUK_ONE && args->cols % 256 == 0;
}

/* All products have one order here; those of blocks stand for it. */
static bool chain_as_few(struct device *d, const struct gpuk_linear_args *args)
{
    (void)d;
    return args->steady && !tensor_format_is_plain(args->format) && !tensor_format_of(args->format)->variable;
}

static int check_expand(const struct op_expand *expand, struct helm_err *err)
{
    if (expand->parts > GPUK_EXPAND_PARTS_MAX)
        return helm_fail(err, HELM_E_LIMIT, "%u parts are expanded at once, at most %d can be", expand->parts,
                         GPUK_EXPAND_PARTS_MAX);
    for (uint32_t i = 0; i < expand->parts; i++)
        if (tensor_format_is_plain(expand->part[i].format))
            return helm_fail(err, HELM_E_UNSUPPORTED, "weights of %s are not expanded",
                             tensor_format_name(expand->part[i].format));
    return 0;
}

/* As a GPU's launchers refuse what they cannot do. */
static int check(struct device *d, const struct op *op, struct helm_err *err)
{
    const struct gpuk_linear_args *linear = &op->as.linear;
    const struct gpuk_attention *attention = &op->as.attention.args;
    const uint32_t head_dim = attention->kv.layout.head_dim;
    switch (op->kind) {
    case OP_GEMM_SMALL:
        if (op->tokens > GPUK_BATCH_MAX)
            return helm_fail(err, HELM_E_LIMIT, "gemm_small: %u tokens, at most %d", op->tokens,
                             GPUK_BATCH_MAX);
        /* fall through */
    case OP_GEMV:
        if (linear_takes(d, linear, op->kind == OP_GEMV ? GPUK_ONE : GPUK_FEW)) return 0;
        return helm_fail(err, HELM_E_UNSUPPORTED, "%s: %u columns of %s", op_name(op->kind), linear->cols,
                         tensor_format_name(linear->format));
    case OP_EMBED:
        if (!tensor_format_of(op->as.embed.format)->variable) return 0;
        return helm_fail(err, HELM_E_UNSUPPORTED, "embed: a table of %s",
                         tensor_format_name(op->as.embed.format));
    case OP_MATMUL:
        if (!tensor_format_is_plain(op->as.matmul.format) && op->tokens > blocks_tokens(op->as.matmul.format))
            return helm_fail(err, HELM_E_LIMIT, "matmul: %u tokens, at most %u with %s", op->tokens,
                             blocks_tokens(op->as.matmul.format), tensor_format_name(op->as.matmul.format));
        if (!op->as.matmul.accumulate || op->as.matmul.out_dtype == DTYPE_F32) return 0;
        return helm_fail(err, HELM_E_UNSUPPORTED, "matmul: sums are kept in f32 only");
    case OP_ATTEND_DECODE:
        if (attention->k && attention->kv.layout.latent)
            return helm_fail(err, HELM_E_USAGE, "decode attention: with a key of its own beside latents");
        if (attention->k || (!op->as.attention.fused && attention->order < GPUK_ORDER_CHAINED_NEAR)) return 0;
        return helm_fail(err, HELM_E_USAGE, "decode attention: without the token's key and value");
    case OP_ROPE_APPEND:
        if (head_dim <= GPUK_HEAD_DIM_MAX) return 0;
        return helm_fail(err, HELM_E_UNSUPPORTED, "head_dim %u, at most %d", head_dim, GPUK_HEAD_DIM_MAX);
    case OP_EXPAND:
        return check_expand(&op->as.expand, err);
    default:
        return 0;
    }
}

int emulated_run(struct device *d, const struct op *op, struct helm_err *err)
{
    if (op->kind == OP_WORD_WAIT)
        return device_word_wait(d, op->as.word.word, op->as.word.value, op->as.word.compare, err);
    if (op->kind == OP_WORD_WRITE) return device_word_write(d, op->as.word.word, op->as.word.value, err);
    if (!run_of[op->kind])
        return helm_fail(err, HELM_E_INTERNAL, "no device computes '%s'", op_name(op->kind));
    int rc = check(d, op, err);
    return rc ? rc : emulated_enqueue(d, run_of[op->kind], op, err);
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

const struct device_asked emulated_asked = {
    .linear_takes = linear_takes,
    .chain_takes = emulated_chain_takes,
    .chain_as_few = chain_as_few,
    .chain_bytes = emulated_chain_bytes,
    .chain_write = emulated_chain_write,
    .gemv_workspace = gemv_workspace,
    .gemm_small_workspace = gemm_small_workspace,
    .attention_counters = emulated_attention_counters,
    .attention_workspace = emulated_attention_workspace,
    .argmax_workspace = emulated_argmax_workspace,
    .few_workspace = emulated_few_workspace,
    .experts_workspace = emulated_experts_workspace,
    .matmul_workspace = GPU_MATMUL_WORKSPACE_EMULATED,
};
