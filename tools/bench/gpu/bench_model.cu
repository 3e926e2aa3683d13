/* The synthetic model of helm-bench-gpu-kernels: its memory, and its steps as lists of launches.
 *
 * The order of launches is what the GPU worker lowers a plan to; see worker-gpu/kernels/kernels.h. */
#include <string.h>

#include <vector>

#include "tools/bench/gpu/bench.cuh"

__global__ static void fill_kernel(uint32_t *words, size_t count, uint32_t seed)
{
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < count;
         i += (size_t)gridDim.x * blockDim.x) {
        uint32_t x = (uint32_t)i * 2654435761u + seed;
        x ^= x >> 15, x *= 0x85ebca6bu, x ^= x >> 13, x *= 0xc2b2ae35u, x ^= x >> 16;
        /* two bf16 of random sign and fraction, exponents 2^-7 to 2^-6: the size of real weights */
        words[i] = (x & 0x80ff80ffu) | 0x3c003c00u;
    }
}

static char *random_weights(struct bench_model *m, size_t elements)
{
    char *p;
    CUDA(cudaMalloc((void **)&p, elements * 2));
    fill_kernel<<<1024, 256, 0, m->stream>>>((uint32_t *)p, elements / 2,
                                             (uint32_t)(size_t)p ^ (uint32_t)elements);
    CUDA(cudaGetLastError());
    return p;
}
template <typename T> static void allocate(T **p, size_t bytes)
{
    CUDA(cudaMalloc((void **)p, bytes));
    CUDA(cudaMemset(*p, 0, bytes));
}

void bench_model_open(struct bench_model *m, struct bench_shape s, struct gpuk_device *device,
                      uint32_t context, uint32_t chunk, cudaStream_t stream)
{
    *m = {};
    m->format = FORMAT_BF16;
    m->shape = s, m->device = device, m->stream = stream, m->context = context, m->chunk = chunk;
    const size_t q_width = (size_t)s.heads * s.head_dim, kv_width = (size_t)s.kv_heads * s.head_dim;
    const size_t qkv_width = q_width + 2 * kv_width;
    m->layer = (struct bench_layer *)calloc(s.layers, sizeof *m->layer);
    size_t elements = qkv_width * s.hidden + q_width * s.hidden + 3 * (size_t)s.intermediate * s.hidden;
    for (uint32_t l = 0; l < s.layers; l++)
        m->layer[l] = {random_weights(m, qkv_width * s.hidden), random_weights(m, q_width * s.hidden),
                       random_weights(m, 2 * (size_t)s.intermediate * s.hidden),
                       random_weights(m, (size_t)s.intermediate * s.hidden)};
    m->embed = random_weights(m, (size_t)s.vocab * s.hidden);
    m->head = random_weights(m, (size_t)s.vocab * s.hidden);
    m->decode_bytes = 2.0 * ((double)elements * s.layers + (double)s.vocab * s.hidden);
    m->prefill_flops = 2.0 * (double)elements * s.layers;

    std::vector<float> ones(s.hidden > s.head_dim ? s.hidden : s.head_dim, 1.0f), inv(s.head_dim / 2);
    for (uint32_t i = 0; i < s.head_dim / 2; i++) inv[i] = (float)pow(1e6, -2.0 * i / s.head_dim);
    allocate(&m->ones, ones.size() * 4);
    allocate(&m->inv_freq, inv.size() * 4);
    CUDA(cudaMemcpy(m->ones, ones.data(), ones.size() * 4, cudaMemcpyHostToDevice));
    CUDA(cudaMemcpy(m->inv_freq, inv.data(), inv.size() * 4, cudaMemcpyHostToDevice));
    allocate(&m->rope_table, (size_t)chunk * s.head_dim * 4);

    const uint32_t page = KV_PAGE_TOKENS_DEFAULT;
    m->kv.layout = {s.layers, s.kv_heads, s.head_dim, page, KV_BF16, 0};
    m->kv.pool = random_weights(m, context / page * kv_page_bytes(&m->kv.layout) / 2);
    m->step.pages_per_slot = context / page;
    const size_t step_bytes =
        ((size_t)chunk * 6 + 64 + (size_t)GPUK_BATCH_MAX * m->step.pages_per_slot) * sizeof(uint32_t);
    allocate(&m->step_memory, step_bytes);
    CUDA(cudaHostAlloc((void **)&m->step_host, step_bytes, cudaHostAllocDefault));

    allocate(&m->x, (size_t)chunk * s.hidden * 4);
    allocate(&m->q, (size_t)chunk * qkv_width * 4);
    allocate(&m->attended, (size_t)chunk * q_width * 4);
    allocate(&m->inner, (size_t)GPUK_BATCH_MAX * s.intermediate * 4);
    allocate(&m->logits, (size_t)GPUK_BATCH_MAX * s.vocab * 4);
    allocate((char **)&m->h, (size_t)chunk * s.hidden * 2);
    allocate((char **)&m->q16, (size_t)chunk * q_width * 2);
    allocate((char **)&m->a16, (size_t)chunk * q_width * 2);
    allocate((char **)&m->gate_up_out, (size_t)chunk * 2 * s.intermediate * 2);
    allocate((char **)&m->inner16, (size_t)chunk * s.intermediate * 2);
    allocate((char **)&m->workspace, gpuk_gemm_small_workspace_bytes(GPUK_BATCH_MAX, s.intermediate));
    allocate((char **)&m->attention_workspace,
             gpuk_attention_workspace_bytes(GPUK_BATCH_MAX, s.heads, s.head_dim));
    /* of attention's pieces, and of up to 1,024 logits and x where there are experts */
    const uint64_t words = (uint64_t)s.heads * GPUK_CHAIN_PIECES * (s.head_dim + 2) + 1024 + s.hidden + 64;
    allocate((char **)&m->chain_list, gpuk_chain_bytes(nullptr, (PART_COUNT + 1) * s.layers + 1) + words * 8);
    allocate((char **)&m->argmax_workspace, gpuk_argmax_workspace_bytes(GPUK_BATCH_MAX));
    allocate((char **)&m->matmul_workspace, GPUK_MATMUL_WORKSPACE);
    allocate(&m->result, GPUK_BATCH_MAX * sizeof *m->result);
    GPUK(gpuk_matmul_open(&m->matmul, &err));
    CUDA(cudaDeviceSynchronize());
}

void bench_model_close(struct bench_model *m)
{
    CUDA(cudaDeviceSynchronize());
    for (uint32_t l = 0; l < m->shape.layers; l++)
        for (char *p : {m->layer[l].qkv, m->layer[l].o, m->layer[l].gate_up, m->layer[l].down}) cudaFree(p);
    void *all[] = {m->embed,
                   m->head,
                   m->ones,
                   m->inv_freq,
                   m->rope_table,
                   m->kv.pool,
                   m->x,
                   m->q,
                   m->attended,
                   m->inner,
                   m->logits,
                   m->h,
                   m->q16,
                   m->a16,
                   m->gate_up_out,
                   m->inner16,
                   m->workspace,
                   m->chain_list,
                   m->attention_workspace,
                   m->result,
                   m->step_memory,
                   m->argmax_workspace,
                   m->matmul_workspace};
    for (void *p : all) cudaFree(p);
    cudaFreeHost(m->step_host);
    gpuk_matmul_close(m->matmul);
    free(m->layer);
}

void bench_model_step(struct bench_model *m, uint32_t tokens, uint32_t start, bool spread)
{
    const uint32_t rows = spread ? tokens : 1, cap = m->chunk;
    const size_t words = (size_t)cap * 6 + 64 + (size_t)rows * m->step.pages_per_slot;
    CUDA(cudaStreamSynchronize(m->stream)); /* the block of the step before is not being read any more */
    memset(m->step_host, 0, words * sizeof(uint32_t));
    uint32_t *counts = m->step_host, *id = counts + 8, *position = id + cap, *row = position + cap,
             *first = row + cap, *slot = first + cap + 8, *sample = slot + cap, *table = sample + cap + 8;
    counts[0] = tokens, counts[1] = rows, counts[2] = rows;
    for (uint32_t t = 0; t < tokens; t++) {
        id[t] = (t * 7919 + 17) % m->shape.vocab;
        position[t] = spread ? start : start + t;
        row[t] = spread ? t : 0;
    }
    for (uint32_t r = 0; r < rows; r++) {
        first[r] = spread ? r : 0;
        first[r + 1] = spread ? r + 1 : tokens;
        slot[r] = r;
        sample[r] = first[r + 1] - 1;
        /* sequences share the cache's pages where there are not enough: timing does not mind */
        for (uint32_t p = 0; p < m->step.pages_per_slot; p++)
            table[r * m->step.pages_per_slot + p] =
                (p + r * ((start + tokens) / m->kv.layout.page_tokens + 1)) % m->step.pages_per_slot;
    }
    /* From pinned memory and in the stream that reads it: a copy from other memory returns before it has
     * arrived, and this stream would not wait for it. */
    CUDA(cudaMemcpyAsync(m->step_memory, m->step_host, words * sizeof(uint32_t), cudaMemcpyHostToDevice,
                         m->stream));
    CUDA(cudaStreamSynchronize(m->stream));
    uint32_t *base = m->step_memory;
    m->step.counts = base;
    m->step.token_id = base + (id - counts);
    m->step.position = base + (position - counts);
    m->step.token_row = base + (row - counts);
    m->step.row_first = base + (first - counts);
    m->step.row_slot = base + (slot - counts);
    m->step.sample_token = base + (sample - counts);
    m->step.page_table = base + (table - counts);
}

static struct gpuk_attention attention_of(const struct bench_model *m, uint32_t layer)
{
    const struct bench_shape *s = &m->shape;
    struct gpuk_attention a = {};
    a.step = m->step;
    a.kv = m->kv;
    a.kv.layer = layer;
    a.heads = s->heads;
    a.scale = 1 / sqrtf((float)s->head_dim);
    a.q_norm = a.k_norm = m->ones;
    a.eps = 1e-6f;
    a.rope_table = m->rope_table;
    a.q = m->q;
    a.k = a.q + s->heads * s->head_dim;
    a.v = a.k + s->kv_heads * s->head_dim;
    a.q_stride = a.kv_stride = (s->heads + 2 * s->kv_heads) * s->head_dim;
    return a;
}

/* The linear layers of decode: part of layer `layer`, for any number of tokens. */
static struct gpuk_linear_args linear_of(const struct bench_model *m, enum bench_part part, uint32_t layer)
{
    const struct bench_shape *s = &m->shape;
    const struct bench_layer *w = &m->layer[layer];
    const uint32_t q = s->heads * s->head_dim, kv = s->kv_heads * s->head_dim;
    const size_t row = tensor_format_row_bytes(m->format, s->hidden);
    struct gpuk_linear_args a = {};
    a.format = m->format;
    a.cols = a.x_stride = s->hidden;
    a.segments = 1;
    a.x = m->x;
    a.eps = 1e-6f;
    switch (part) {
    case PART_QKV:
        a.segments = 3;
        a.norm = m->ones;
        a.segment[0] = {w->qkv, NULL, NULL, m->q, q};
        a.segment[1] = {w->qkv + q * row, NULL, NULL, m->q + q, kv};
        a.segment[2] = {w->qkv + (q + kv) * row, NULL, NULL, m->q + q + kv, kv};
        a.out_stride = q + 2 * kv;
        break;
    case PART_O:
        a.cols = a.x_stride = q;
        a.x = m->attended;
        a.residual = m->x;
        a.segment[0] = {w->o, NULL, NULL, m->x, s->hidden};
        a.out_stride = s->hidden;
        break;
    case PART_GATE_UP:
        a.segments = 2;
        a.swiglu = true;
        a.norm = m->ones;
        a.segment[0] = {w->gate_up, NULL, NULL, m->inner, s->intermediate};
        a.segment[1] = {w->gate_up + s->intermediate * row, NULL, NULL, m->inner, s->intermediate};
        a.out_stride = s->intermediate;
        break;
    default: /* PART_DOWN */
        a.cols = a.x_stride = s->intermediate;
        a.x = m->inner;
        a.residual = m->x;
        a.segment[0] = {w->down, NULL, NULL, m->x, s->hidden};
        a.out_stride = s->hidden;
        break;
    }
    return a;
}
static struct gpuk_linear_args head_of(const struct bench_model *m)
{
    struct gpuk_linear_args a = {};
    a.format = m->format;
    a.cols = a.x_stride = m->shape.hidden;
    a.segments = 1;
    a.x = m->x;
    a.norm = m->ones;
    a.eps = 1e-6f;
    a.segment[0] = {m->head, NULL, NULL, m->logits, m->shape.vocab};
    a.out_stride = m->shape.vocab;
    return a;
}

double bench_part_bytes(const struct bench_model *m, enum bench_part part)
{
    if (part == PART_ATTENTION) return 0;
    struct gpuk_linear_args a = linear_of(m, part, 0);
    double rows = 0;
    for (uint32_t i = 0; i < a.segments; i++) rows += a.segment[i].rows;
    return rows * (double)tensor_format_row_bytes(a.format, a.cols);
}
double bench_head_bytes(const struct bench_model *m)
{
    return (double)tensor_format_bytes(m->format, m->shape.vocab, m->shape.hidden);
}

void bench_chain_write(struct bench_model *m, uint32_t parts, bool head, uint32_t rows)
{
    std::vector<struct gpuk_chain_op> ops;
    const auto linear = [&](struct gpuk_linear_args a) {
        struct gpuk_chain_op op = {};
        op.kind = GPUK_CHAIN_LINEAR;
        for (uint32_t i = 0; i < a.segments && rows; i++) a.segment[i].rows = rows;
        op.linear = a;
        ops.push_back(op);
    };
    for (uint32_t l = 0; l < m->shape.layers; l++)
        for (int part = 0; part < PART_COUNT; part++) {
            if (!(parts >> part & 1)) continue;
            if (part != PART_ATTENTION) {
                linear(linear_of(m, (enum bench_part)part, l));
                continue;
            }
            struct gpuk_chain_op op = {};
            op.kind = GPUK_CHAIN_ATTENTION;
            op.attention.args = attention_of(m, l);
            op.attention.out = m->attended;
            ops.push_back(op);
        }
    if (head) linear(head_of(m));
    GPUK(gpuk_chain_write(m->device, ops.data(), (uint32_t)ops.size(), m->chain_list, m->attention_workspace,
                          m->stream, &m->chain, &err));
}

void bench_enqueue_chain(struct bench_model *m)
{
    const struct bench_shape *s = &m->shape;
    GPUK(gpuk_embed(&m->step, 1, m->embed, FORMAT_BF16, s->vocab, s->hidden, 1, m->x, 0, m->stream, &err));
    GPUK(gpuk_rope_table(&m->step, 1, m->inv_freq, s->head_dim, 1, m->rope_table, 0, m->stream, &err));
    GPUK(gpuk_chain_run(&m->chain, 0, m->stream, &err));
    GPUK(gpuk_argmax(m->step.counts + 2, 1, m->logits, s->vocab, m->result, NULL, m->argmax_workspace, 0,
                     m->stream, &err));
}

static void linear(struct bench_model *m, struct gpuk_linear_args a, uint32_t tokens, uint32_t flags)
{
    if (tokens == 1)
        GPUK(gpuk_gemv(m->device, &a, m->workspace, flags, m->stream, &err));
    else
        GPUK(gpuk_gemm_small(m->device, &a, tokens, m->step.counts, m->workspace, flags, m->stream, &err));
}

void bench_enqueue_part(struct bench_model *m, enum bench_part part, uint32_t layer, uint32_t tokens,
                        uint32_t flags)
{
    if (part != PART_ATTENTION) {
        linear(m, linear_of(m, part, layer), tokens, flags);
        return;
    }
    struct gpuk_attention a = attention_of(m, layer);
    if (tokens > 1) {
        GPUK(gpuk_rope_append(&a, tokens, m->attended, DTYPE_F32, flags, m->stream, &err));
        a.q = m->attended;
        a.q_stride = m->shape.heads * m->shape.head_dim;
    }
    GPUK(gpuk_attention_decode(m->device, &a, tokens, tokens == 1, m->attended, NULL, NULL,
                               m->attention_workspace, flags, m->stream, &err));
}

void bench_enqueue_head(struct bench_model *m, uint32_t tokens, uint32_t flags)
{
    linear(m, head_of(m), tokens, flags);
}

void bench_enqueue_decode(struct bench_model *m, uint32_t tokens, uint32_t flags)
{
    const struct bench_shape *s = &m->shape;
    GPUK(gpuk_embed(&m->step, tokens, m->embed, FORMAT_BF16, s->vocab, s->hidden, 1, m->x, 0, m->stream,
                    &err));
    GPUK(gpuk_rope_table(&m->step, tokens, m->inv_freq, s->head_dim, 1, m->rope_table, flags, m->stream,
                         &err));
    for (uint32_t l = 0; l < s->layers; l++)
        for (int part = 0; part < PART_COUNT; part++)
            bench_enqueue_part(m, (enum bench_part)part, l, tokens, flags);
    bench_enqueue_head(m, tokens, flags);
    GPUK(gpuk_argmax(m->step.counts + 2, tokens, m->logits, s->vocab, m->result, NULL, m->argmax_workspace,
                     flags, m->stream, &err));
}

struct product {
    const void *w, *x;
    void *out;
    uint32_t rows, cols;
    enum dtype out_dtype;
    bool accumulate;
};

static void enqueue_product(struct bench_model *m, uint32_t tokens, const struct product &p)
{
    const struct gpuk_matmul_plan *plan;
    GPUK(gpuk_matmul_plan(m->matmul, DTYPE_BF16, p.out_dtype, tokens, p.rows, p.cols, p.rows, p.accumulate,
                          &plan, &err));
    GPUK(gpuk_matmul_run(plan, p.w, p.x, p.out, m->matmul_workspace, m->stream, &err));
}

void bench_enqueue_prefill(struct bench_model *m, uint32_t tokens, uint32_t flags)
{
    const struct bench_shape *s = &m->shape;
    const uint32_t q = s->heads * s->head_dim, qkv = q + 2 * s->kv_heads * s->head_dim;
    const uint32_t *count = m->step.counts;
    GPUK(gpuk_embed(&m->step, tokens, m->embed, FORMAT_BF16, s->vocab, s->hidden, 1, m->x, 0, m->stream,
                    &err));
    GPUK(gpuk_rope_table(&m->step, tokens, m->inv_freq, s->head_dim, 1, m->rope_table, flags, m->stream,
                         &err));
    for (uint32_t l = 0; l < s->layers; l++) {
        const struct bench_layer *w = &m->layer[l];
        struct gpuk_attention a = attention_of(m, l);
        GPUK(gpuk_rmsnorm(count, tokens, m->x, m->ones, 1e-6f, s->hidden, m->h, DTYPE_BF16, 0, m->stream,
                          &err));
        enqueue_product(m, tokens, {w->qkv, m->h, m->q, qkv, s->hidden, DTYPE_F32, false});
        GPUK(gpuk_rope_append(&a, tokens, m->q16, DTYPE_BF16, 0, m->stream, &err));
        const struct gpuk_prefill prefill = {a, m->q16, m->a16, DTYPE_BF16, 1, {}, m->matmul_workspace};
        GPUK(gpuk_attention_prefill(m->device, &prefill, tokens, flags, m->stream, &err));
        enqueue_product(m, tokens, {w->o, m->a16, m->x, s->hidden, q, DTYPE_F32, true});
        GPUK(gpuk_rmsnorm(count, tokens, m->x, m->ones, 1e-6f, s->hidden, m->h, DTYPE_BF16, 0, m->stream,
                          &err));
        enqueue_product(m, tokens,
                        {w->gate_up, m->h, m->gate_up_out, 2 * s->intermediate, s->hidden, DTYPE_BF16,
                         false});
        GPUK(gpuk_swiglu(count, tokens, m->gate_up_out, DTYPE_BF16, GLU_SILU, 2 * s->intermediate,
                         s->intermediate, s->intermediate, m->inner16, DTYPE_BF16, s->intermediate, 0,
                         m->stream, &err));
        enqueue_product(m, tokens, {w->down, m->inner16, m->x, s->hidden, s->intermediate, DTYPE_F32, true});
    }
    GPUK(gpuk_gather(&m->step, 1, m->x, s->hidden, m->attended, 0, m->stream, &err));
    struct gpuk_linear_args head = head_of(m);
    head.x = m->attended;
    GPUK(gpuk_gemv(m->device, &head, m->workspace, flags, m->stream, &err));
    GPUK(gpuk_argmax(m->step.counts + 2, 1, m->logits, s->vocab, m->result, NULL, m->argmax_workspace, flags,
                     m->stream, &err));
}
