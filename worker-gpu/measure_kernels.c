/* The device's compute rates, by the kernels that steps use. See measure.h.
 *
 * Called by measure.c. Weights are layers of two real shapes, a large and a small one, over the same memory
 * and visited in layer order; decode's kernels are captured as a graph, a chunk's are put into the queue one
 * by one, as the engine does. Both graphs read as many bytes in different numbers of kernels, so two times
 * give two unknowns: the rate, and what a kernel costs beside its bytes. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/units.h"
#include "worker-gpu/measure_private.h"

#define LAYER_OPS   4 /* q k v; o; gate up; down */
#define TINY        256
#define TINY_COUNT  256 /* kernels that do nothing worth mentioning */
#define KV_HEADS    8
#define HEADS       32
#define HEAD_DIM    128
#define PAGE_TOKENS 32
#define KV_LAYERS   8
#define CONTEXT     4096
#define PAGES       (CONTEXT / PAGE_TOKENS)

/* A layer's matrices: of 8, 4, 1.7 and 0.6 billion parameters. */
struct shape {
    uint32_t hidden, q, kv, inner;
};
static const struct shape shapes[] = {{4096, 4096, 1024, 12288},
                                      {2560, 4096, 1024, 9728},
                                      {2048, 2048, 1024, 6144},
                                      {1024, 2048, 1024, 3072}};
#define SHAPES (sizeof shapes / sizeof *shapes)

/* The step block: one row. */
struct block {
    uint32_t counts[4], row_first[4], row_slot[4], sample_token[4];
    uint32_t token_id[MEASURE_TOKENS_MAX], position[MEASURE_TOKENS_MAX], token_row[MEASURE_TOKENS_MAX];
    uint32_t page_table[PAGES];
};

struct measure_kernels {
    const struct shape *large, *small;
    uint64_t memory_bytes;
    char *memory;
    struct block *block_host; /* pinned */
    struct block *block;
    float *norm, *x, *a, *act, *qkv, *gate_up, *rope_table, *tiny;
    void *h, *q;
    void *linear_work, *attention_work, *matmul_work;
    uint64_t attention_work_bytes;
    struct gpuk_step step;
};

/* ---- timing ---- */

struct work {
    struct measure *m;
    int (*issue)(const struct work *work, struct helm_err *err);
    const struct shape *shape;
    uint32_t tokens, ops; /* operations of layers, in order, round and round the weights */
    uint32_t start;       /* attention */
};

static int run_once(const struct work *w, struct device_graph *graph, struct helm_err *err)
{
    struct device *d = w->m->device;
    return graph ? d->ops->graph_launch(d, graph, err) : w->issue(w, err);
}

/* Seconds of `times` runs, one behind the other. */
static int time_runs(const struct work *w, struct device_graph *graph, uint32_t times, double *seconds,
                     struct helm_err *err)
{
    double start = measure_now_s();
    int rc = 0;
    for (uint32_t i = 0; i < times && !rc; i++) rc = run_once(w, graph, err);
    if (!rc) rc = measure_drain(w->m, DEVICE_COMPUTE, err);
    *seconds = measure_now_s() - start;
    return rc;
}

/* Samples of the seconds one run of the work takes. */
static int time_work(const struct work *w, bool captured, struct measure_samples *samples,
                     struct helm_err *err)
{
    struct measure *m = w->m;
    struct device *d = m->device;
    struct device_graph *graph = NULL;
    double first = 0, end = measure_now_s() + measure_budget_s(m);
    samples->count = 0;
    int rc = time_runs(w, NULL, 1, &first, err); /* loads code; not under capture */
    if (!rc && captured) {
        rc = d->ops->capture_begin(d, err);
        if (rc) return rc;
        rc = w->issue(w, err);
        int ended = d->ops->capture_end(d, &graph, rc ? NULL : err);
        if (!rc) rc = ended;
        if (!rc) rc = time_runs(w, graph, 1, &first, err);
    } else if (!rc && first < measure_sample_s(m)) {
        rc = time_runs(w, NULL, 1, &first, err);
    }
    double times = first > 0 ? ceil(measure_sample_s(m) / first) : 1;
    uint32_t count = times > 1000 ? 1000 : (uint32_t)times;
    while (!rc && samples->count < MEASURE_SAMPLES_MAX &&
           (samples->count < 3 || measure_now_s() + first * count < end)) {
        double seconds = 0;
        rc = time_runs(w, graph, count, &seconds, err);
        if (!rc) measure_add(samples, seconds / count);
    }
    if (graph) d->ops->graph_free(d, graph);
    return rc;
}

/* ---- linears ---- */

static uint64_t layer_bytes(const struct shape *s)
{
    return 2 * ((uint64_t)s->hidden * (2 * s->q + 2 * s->kv) + (uint64_t)s->hidden * s->inner * 3);
}

/* Rows and columns of operation `op` of a layer, and where its matrices begin in the layer. */
static void op_place(const struct shape *s, uint32_t op, uint32_t *rows, uint32_t *cols, uint64_t *at)
{
    const uint32_t all_rows[LAYER_OPS] = {s->q + 2 * s->kv, s->hidden, 2 * s->inner, s->hidden};
    const uint32_t all_cols[LAYER_OPS] = {s->hidden, s->q, s->hidden, s->inner};
    *at = 0;
    for (uint32_t i = 0; i < op; i++) *at += 2 * (uint64_t)all_rows[i] * all_cols[i];
    *rows = all_rows[op];
    *cols = all_cols[op];
}

static uint32_t layers_of(const struct measure *m, const struct shape *s)
{
    return (uint32_t)(m->weight_bytes / layer_bytes(s));
}

/* Bytes of the weights that the work's operations read. */
static double work_bytes(const struct work *w)
{
    double sum = 0;
    for (uint32_t i = 0; i < w->ops; i++) {
        uint32_t rows, cols;
        uint64_t at;
        op_place(w->shape, i % LAYER_OPS, &rows, &cols, &at);
        sum += 2.0 * rows * cols;
    }
    return sum;
}

/* One operation of decode: up to 16 tokens. */
static int issue_few(const struct work *w, uint32_t op, const char *weight, struct helm_err *err)
{
    struct device *d = w->m->device;
    const struct measure_kernels *k = w->m->kernels;
    const struct shape *s = w->shape;
    uint32_t rows, cols;
    uint64_t at;
    op_place(s, op, &rows, &cols, &at);
    float *const in[LAYER_OPS] = {k->x, k->a, k->x, k->act}, *const out[LAYER_OPS] = {k->qkv, k->x, k->act,
                                                                                      k->x};
    const uint32_t stride[LAYER_OPS] = {s->q + 2 * s->kv, s->hidden, s->inner, s->hidden};
    struct gpuk_linear_args args = {.dtype = DTYPE_BF16,
                                    .cols = cols,
                                    .segments = 1,
                                    .x = in[op],
                                    .eps = 1e-6f,
                                    .x_stride = cols,
                                    .out_stride = stride[op]};
    args.segment[0] = (struct gpuk_linear){.weight = weight, .out = out[op], .rows = rows};
    if (op == 0) {
        args.segments = 3;
        args.segment[0].rows = s->q;
        args.segment[1] = (struct gpuk_linear){.weight = weight + 2 * (uint64_t)s->q * cols,
                                               .out = k->qkv + s->q,
                                               .rows = s->kv};
        args.segment[2] = (struct gpuk_linear){.weight = weight + 2 * (uint64_t)(s->q + s->kv) * cols,
                                               .out = k->qkv + s->q + s->kv,
                                               .rows = s->kv};
    }
    if (op == 2) {
        args.segments = 2;
        args.swiglu = true;
        args.segment[0].rows = s->inner;
        args.segment[1] = (struct gpuk_linear){.weight = weight + 2 * (uint64_t)s->inner * cols,
                                               .out = k->act,
                                               .rows = s->inner};
    }
    if (op == 0 || op == 2) args.norm = k->norm;
    if (op == 1 || op == 3) args.residual = k->x;
    if (w->tokens == 1) return d->kernels.gemv(d, &args, k->linear_work, 0, err);
    return d->kernels.gemm_small(d, &args, w->tokens, k->step.counts, k->linear_work, 0, err);
}

/* One operation of a chunk, with what stands before and after it there. */
static int issue_many(const struct work *w, uint32_t op, const char *weight, struct helm_err *err)
{
    struct device *d = w->m->device;
    const struct measure_kernels *k = w->m->kernels;
    const struct shape *s = w->shape;
    const uint32_t *count = k->step.counts;
    uint32_t rows, cols;
    uint64_t at;
    bool accumulate = op == 1 || op == 3;
    op_place(s, op, &rows, &cols, &at);
    const void *const in[LAYER_OPS] = {k->h, k->a, k->h, k->act};
    void *const out[LAYER_OPS] = {k->qkv, k->x, k->gate_up, k->x};
    int rc = 0;
    if (!accumulate)
        rc = d->kernels.rmsnorm(d, count, w->tokens, k->x, k->norm, 1e-6f, s->hidden, k->h, DTYPE_BF16, 0,
                                err);
    if (!rc)
        rc = d->kernels.matmul(d, DTYPE_BF16, op == 2 ? DTYPE_BF16 : DTYPE_F32, w->tokens, rows, cols, rows,
                               accumulate, weight, in[op], out[op], k->matmul_work, err);
    if (!rc && op == 2)
        rc = d->kernels.swiglu(d, count, w->tokens, k->gate_up, DTYPE_BF16, 2 * s->inner, s->inner, s->inner,
                               k->act, DTYPE_BF16, s->inner, 0, err);
    return rc;
}

static int issue_linears(const struct work *w, struct helm_err *err)
{
    uint32_t layers = layers_of(w->m, w->shape);
    int rc = 0;
    for (uint32_t i = 0; i < w->ops && !rc; i++) {
        uint32_t rows, cols, op = i % LAYER_OPS;
        uint64_t at;
        op_place(w->shape, op, &rows, &cols, &at);
        const char *weight = w->m->weights + i / LAYER_OPS % layers * layer_bytes(w->shape) + at;
        rc = w->tokens <= GPUK_BATCH_MAX ? issue_few(w, op, weight, err) : issue_many(w, op, weight, err);
    }
    return rc;
}

/* One matrix of everything: no end of a kernel, no beginning of another. */
static int issue_read(const struct work *w, struct helm_err *err)
{
    const struct measure_kernels *k = w->m->kernels;
    const uint32_t cols = w->shape->hidden;
    struct gpuk_linear_args args = {
        .dtype = DTYPE_BF16, .cols = cols, .segments = 1, .x = k->x, .eps = 1e-6f, .x_stride = cols};
    args.segment[0] = (struct gpuk_linear){.weight = w->m->weights, .out = k->gate_up, .rows = w->ops};
    return w->m->device->kernels.gemv(w->m->device, &args, k->linear_work, 0, err);
}

static int issue_tiny(const struct work *w, struct helm_err *err)
{
    struct device *d = w->m->device;
    const struct measure_kernels *k = w->m->kernels;
    int rc = 0;
    for (uint32_t i = 0; i < w->ops && !rc; i++)
        rc = d->kernels.rmsnorm(d, k->step.counts, 1, k->tiny, k->norm, 1e-6f, TINY, k->tiny + TINY,
                                DTYPE_F32, 0, err);
    return rc;
}

static int set_step(struct measure *m, uint32_t start, uint32_t tokens, struct helm_err *err)
{
    const struct measure_kernels *k = m->kernels;
    struct block *b = k->block_host;
    memset(b, 0, sizeof *b);
    b->counts[0] = b->row_first[1] = tokens;
    b->counts[1] = b->counts[2] = 1;
    b->sample_token[0] = tokens - 1;
    for (uint32_t i = 0; i < tokens; i++) b->position[i] = start + i;
    for (uint32_t i = 0; i < PAGES; i++) b->page_table[i] = i;
    int rc = device_copy(m->device, DEVICE_COMPUTE, DEVICE_TO_DEVICE, k->block, b, sizeof *b, err);
    return rc ? rc : measure_drain(m, DEVICE_COMPUTE, err);
}

static double median_of(const struct measure_samples *s)
{
    double sorted[MEASURE_SAMPLES_MAX];
    memcpy(sorted, s->value, s->count * sizeof *sorted);
    for (uint32_t i = 1; i < s->count; i++)
        for (uint32_t j = i; j > 0 && sorted[j] < sorted[j - 1]; j--) {
            double swap = sorted[j];
            sorted[j] = sorted[j - 1];
            sorted[j - 1] = swap;
        }
    return s->count ? sorted[s->count / 2] : 0;
}

/* Replaces seconds by `amount` a second, where each run also took `fixed` seconds that do not count. */
static void to_rate(struct measure_samples *s, double amount, double fixed)
{
    for (uint32_t i = 0; i < s->count; i++) {
        double seconds = s->value[i] - fixed;
        s->value[i] = amount / (seconds > s->value[i] / 2 ? seconds : s->value[i] / 2);
    }
}

/* gpu.read, gpu.launch, gpu.operation, gpu.gemv. `operation`: what a kernel in a graph costs. */
static int measure_decode(struct measure *m, double *operation, struct helm_err *err)
{
    const struct measure_kernels *k = m->kernels;
    struct measure_samples read, launch, tiny, large, small;
    struct work w = {.m = m, .issue = issue_tiny, .tokens = 1, .ops = TINY_COUNT, .shape = k->large};
    int rc = set_step(m, 0, 1, err);
    if (!rc) rc = time_work(&w, false, &launch, err);
    if (!rc) rc = time_work(&w, true, &tiny, err);
    w.issue = issue_read;
    uint64_t rows = m->weight_bytes / 2 / k->large->hidden,
             most = (uint64_t)MEASURE_TOKENS_MAX * 2 * k->large->inner;
    w.ops = (uint32_t)(rows < most ? rows : most);
    if (!rc) rc = time_work(&w, true, &read, err);
    if (rc) return rc;
    to_rate(&read, 2.0 * w.ops * k->large->hidden, 0);
    for (uint32_t i = 0; i < launch.count; i++) launch.value[i] /= TINY_COUNT;
    for (uint32_t i = 0; i < tiny.count; i++) tiny.value[i] /= TINY_COUNT;
    w.issue = issue_linears;
    w.ops = LAYER_OPS * layers_of(m, w.shape);
    rc = time_work(&w, true, &large, err);
    if (rc) return rc;
    double large_bytes = work_bytes(&w), large_ops = w.ops;
    *operation = median_of(&tiny);
    if (k->small != k->large) {
        w.shape = k->small;
        w.ops = LAYER_OPS * layers_of(m, w.shape);
        rc = time_work(&w, true, &small, err);
        if (rc) return rc;
        double small_ops = w.ops, scale = large_bytes / work_bytes(&w), second = median_of(&large);
        /* Each small sample with the large median: how its spread carries over to the cost of a kernel. */
        for (uint32_t i = 0; i < small.count; i++) {
            double fitted = (small.value[i] * scale - second) / (small_ops * scale - large_ops);
            small.value[i] = fitted > 0 ? fitted : 0;
        }
        /* No kernel is cheaper than an empty one: where there is hardly a difference, that is what counts. */
        if (median_of(&small) > *operation) tiny = small;
        *operation = median_of(&tiny);
    }
    to_rate(&large, large_bytes, large_ops * *operation);
    measure_print(m, "gpu.read", 0, &read);
    measure_print(m, "gpu.launch", 0, &launch);
    measure_print(m, "gpu.operation", 0, &tiny);
    measure_print(m, "gpu.gemv", 0, &large);
    return 0;
}

static int measure_linear(struct measure *m, struct helm_err *err)
{
    static const uint32_t tokens[] = {2, 4, 8, 16, 32, 64, 128, 256, 512};
    const struct measure_kernels *k = m->kernels;
    uint32_t most = layers_of(m, k->large) * LAYER_OPS;
    double rate = 0; /* operations a second, so far */
    for (size_t i = 0; i < sizeof tokens / sizeof *tokens; i++) {
        struct measure_samples samples;
        struct work w = {.m = m, .issue = issue_linears, .shape = k->large, .tokens = tokens[i], .ops = most};
        /* Whole layers where there is time for them, else fewer operations: a CPU that plays a GPU. */
        while (w.ops > 1 && rate > 0 && work_bytes(&w) * w.tokens > rate * measure_budget_s(m) / 3) w.ops--;
        int rc = set_step(m, 0, w.tokens, err);
        if (!rc) rc = time_work(&w, w.tokens <= GPUK_BATCH_MAX, &samples, err);
        if (rc) return rc;
        to_rate(&samples, work_bytes(&w) * w.tokens, 0); /* two bytes a weight, two operations */
        rate = median_of(&samples);
        measure_print(m, "gpu.linear", w.tokens, &samples);
    }
    return 0;
}

/* ---- attention ---- */

static uint32_t kv_layers(const struct measure *m)
{
    const struct kv_layout one = {.layers = 1,
                                  .kv_heads = KV_HEADS,
                                  .head_dim = HEAD_DIM,
                                  .page_tokens = PAGE_TOKENS,
                                  .dtype = DTYPE_F16,
                                  .elem_bytes = 2};
    uint64_t layers = m->weight_bytes / (kv_page_bytes(&one) * PAGES);
    return layers > KV_LAYERS ? KV_LAYERS : (uint32_t)layers;
}

static int issue_attention(const struct work *w, struct helm_err *err)
{
    struct measure *m = w->m;
    struct device *d = m->device;
    const struct measure_kernels *k = m->kernels;
    uint32_t layers = kv_layers(m);
    struct gpuk_attention a = {.step = k->step,
                               .kv = {.layout = {.layers = layers,
                                                 .kv_heads = KV_HEADS,
                                                 .head_dim = HEAD_DIM,
                                                 .page_tokens = PAGE_TOKENS,
                                                 .dtype = DTYPE_F16,
                                                 .elem_bytes = 2},
                                      .pool = m->weights},
                               .heads = HEADS,
                               .scale = 1.0f / sqrtf((float)HEAD_DIM),
                               .eps = 1e-6f,
                               .rope_table = k->rope_table,
                               .q = k->qkv,
                               .k = k->qkv + HEADS * HEAD_DIM,
                               .v = k->qkv + (HEADS + KV_HEADS) * HEAD_DIM,
                               .q_stride = (HEADS + 2 * KV_HEADS) * HEAD_DIM,
                               .kv_stride = (HEADS + 2 * KV_HEADS) * HEAD_DIM};
    int rc = 0;
    for (uint32_t i = 0; i < w->ops && !rc; i++) {
        a.kv.layer = i % layers;
        if (w->tokens == 1)
            rc = d->kernels.attention_decode(d, &a, 1, true, k->a, k->attention_work, 0, err);
        else
            rc = d->kernels.attention_prefill(d, &a, k->q, w->tokens, 1, k->a, DTYPE_BF16, 0, err);
    }
    return rc;
}

static int measure_attention(struct measure *m, double operation, struct helm_err *err)
{
    struct measure_samples samples;
    struct device *d = m->device;
    const struct measure_kernels *k = m->kernels;
    struct work w = {
        .m = m, .issue = issue_attention, .tokens = 1, .ops = kv_layers(m), .start = CONTEXT - 1};
    if (w.ops == 0)
        return helm_fail(err, HELM_E_CAPACITY, "no room on the device for a cache of %d positions", CONTEXT);
    int rc = d->ops->clear(d, DEVICE_COMPUTE, k->attention_work, k->attention_work_bytes, err);
    if (!rc) rc = set_step(m, w.start, 1, err);
    if (!rc) rc = time_work(&w, true, &samples, err);
    if (rc) return rc;
    to_rate(&samples, 2.0 * CONTEXT * KV_HEADS * HEAD_DIM * 2 * w.ops, operation * w.ops);
    measure_print(m, "gpu.attention", 0, &samples);

    w.tokens = m->emulated ? 32 : MEASURE_TOKENS_MAX;
    w.start = CONTEXT / 2 - w.tokens;
    w.ops = m->emulated ? 1 : kv_layers(m);
    rc = set_step(m, w.start, w.tokens, err);
    if (!rc) rc = time_work(&w, false, &samples, err);
    if (rc) return rc;
    double pairs = w.tokens * (w.start + (w.tokens + 1) / 2.0); /* of a query and a position that it sees */
    to_rate(&samples, 4.0 * HEADS * HEAD_DIM * pairs * w.ops, 0);
    measure_print(m, "gpu.attention_flops", 0, &samples);
    return 0;
}

int measure_kernels_lane(struct measure *m, const float *from, float *to, struct helm_err *err)
{
    struct device *d = m->device;
    const struct measure_kernels *k = m->kernels;
    int rc = d->kernels.lane_copy(d, k->step.counts, 1, from, MEASURE_LANE_FLOATS, k->x, 0, err);
    return rc ? rc : d->kernels.lane_copy(d, k->step.counts, 1, k->x, MEASURE_LANE_FLOATS, to, 0, err);
}

/* ---- memory ---- */

/* Weights in VRAM: as much as there is room for, of what was asked. */
static int take_weights(struct measure *m, uint64_t bytes, struct helm_err *err)
{
    int rc = helm_fail(err, HELM_E_CAPACITY, "%llu bytes of VRAM are too few to measure with",
                       (unsigned long long)bytes);
    for (; bytes >= layer_bytes(&shapes[SHAPES - 1]); bytes /= 2) {
        void *memory = NULL;
        m->weight_bytes = bytes / 4096 * 4096;
        rc = device_alloc(m->device, DEVICE_WEIGHTS, m->weight_bytes, &memory, err);
        m->weights = memory;
        if (!rc || (rc != HELM_E_NOMEM && rc != HELM_E_CAPACITY)) break;
    }
    return rc;
}

static int take_buffers(struct measure *m, struct helm_err *err)
{
    struct device *d = m->device;
    struct measure_kernels *k = m->kernels;
    const struct shape *s = k->large;
    uint64_t tokens = MEASURE_TOKENS_MAX, head = (uint64_t)(HEADS + 2 * KV_HEADS) * HEAD_DIM,
             width = s->q + 2 * s->kv > head ? s->q + 2 * s->kv : head;
    uint32_t widest = s->inner > HEADS * HEAD_DIM ? s->inner : HEADS * HEAD_DIM;
    uint64_t linear = d->kernels.gemm_small_workspace(GPUK_BATCH_MAX, widest);
    if (d->kernels.gemv_workspace(widest) > linear) linear = d->kernels.gemv_workspace(widest);
    k->attention_work_bytes = d->kernels.attention_workspace(GPUK_BATCH_MAX, HEADS, HEAD_DIM);
    const struct {
        void **at;
        uint64_t bytes;
    } parts[] = {
        {(void **)&k->block, sizeof(struct block)},
        {(void **)&k->norm, (uint64_t)s->hidden * sizeof(float)},
        {(void **)&k->tiny, 2 * TINY * sizeof(float)},
        {(void **)&k->x, tokens * widest * sizeof(float)},
        {(void **)&k->a, tokens * widest * sizeof(float)},
        {(void **)&k->act, tokens * s->inner * sizeof(float)},
        {(void **)&k->qkv, tokens * width * sizeof(float)},
        {(void **)&k->gate_up, tokens * 2 * s->inner * sizeof(float)},
        {(void **)&k->rope_table, tokens * HEAD_DIM * sizeof(float)},
        {&k->h, tokens * s->hidden * sizeof(float)},
        {&k->q, tokens * HEADS * HEAD_DIM * sizeof(float)},
        {&k->linear_work, linear},
        {&k->attention_work, k->attention_work_bytes},
        {&k->matmul_work, d->kernels.matmul_workspace},
    };
    uint64_t bytes = 0;
    for (int pass = 0; pass < 2; pass++) {
        bytes = 0;
        for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
            if (pass) *parts[i].at = k->memory + bytes;
            bytes += (parts[i].bytes + 255) / 256 * 256;
        }
        if (pass) break;
        void *memory = NULL;
        int rc = device_alloc(d, DEVICE_WORKSPACE, bytes, &memory, err);
        if (rc) return rc;
        k->memory = memory;
        k->memory_bytes = bytes;
    }
    return d->ops->clear(d, DEVICE_COMPUTE, k->memory, k->memory_bytes, err);
}

/* `count` floats of the pinned memory behind the step block, to the device. */
static int put_floats(struct measure *m, float *to, const float *from, uint32_t count, struct helm_err *err)
{
    int rc = device_copy(m->device, DEVICE_COMPUTE, DEVICE_TO_DEVICE, to, from, count * sizeof(float), err);
    return rc ? rc : measure_drain(m, DEVICE_COMPUTE, err);
}

/* Numbers for the weights, made on the device, since the link may be slow: rows of uneven numbers, normed to
 * the size of weights and rounded to their type, over and over. */
static int fill_weights(struct measure *m, struct helm_err *err)
{
    struct device *d = m->device;
    const struct measure_kernels *k = m->kernels;
    uint32_t width = k->large->hidden;
    uint64_t piece = (uint64_t)GPUK_BATCH_MAX * width * 2;
    int rc = set_step(m, 0, GPUK_BATCH_MAX, err);
    for (uint64_t at = 0; at < m->weight_bytes && !rc; at += piece) {
        uint64_t left = m->weight_bytes - at;
        uint32_t tokens = left < piece ? (uint32_t)(left / 2 / width) : GPUK_BATCH_MAX;
        if (tokens)
            rc = d->kernels.rmsnorm(d, k->step.counts, tokens, k->x, k->norm, 1e-6f, width, m->weights + at,
                                    DTYPE_BF16, 0, err);
    }
    return rc ? rc : measure_drain(m, DEVICE_COMPUTE, err);
}

static int fill_buffers(struct measure *m, struct helm_err *err)
{
    struct measure_kernels *k = m->kernels;
    uint32_t width = k->large->hidden, state = 1;
    float *host = (float *)(void *)(k->block_host + 1);
    for (uint32_t i = 0; i < width; i++) host[i] = 0.01f;
    int rc = put_floats(m, k->norm, host, width, err);
    for (uint32_t t = 0; t < GPUK_BATCH_MAX && !rc; t++) {
        for (uint32_t i = 0; i < width; i++) {
            state = state * 1664525u + 1013904223u;
            host[i] = (float)(int32_t)state / 2147483648.0f;
        }
        rc = put_floats(m, k->x + (size_t)t * width, host, width, err);
    }
    if (!rc) rc = fill_weights(m, err);
    for (uint32_t i = 0; i < width; i++) host[i] = 1;
    if (!rc) rc = put_floats(m, k->norm, host, width, err);
    if (!rc) rc = put_floats(m, k->tiny, host, TINY, err);
    for (uint32_t i = 0; i < HEAD_DIM; i++) host[i] = i < HEAD_DIM / 2 ? 1 : 0; /* cosines, sines */
    return rc ? rc : put_floats(m, k->rope_table, host, HEAD_DIM, err);
}

int measure_kernels_open(struct measure *m, struct helm_err *err)
{
    struct device *d = m->device;
    struct measure_kernels *k = calloc(1, sizeof *k);
    void *pinned = NULL;
    if (!k) return helm_fail(err, HELM_E_NOMEM, "no memory to measure the device's kernels");
    m->kernels = k;
    uint64_t budget = m->emulated ? 256 * MIB : GIB;
    if (m->options->quick) budget = m->emulated ? 128 * MIB : 512 * MIB;
    int rc = take_weights(m, budget, err);
    k->small = k->large = &shapes[SHAPES - 1];
    while (k->large > shapes && layer_bytes(k->large - 1) <= m->weight_bytes) k->large--;
    if (!rc) rc = take_buffers(m, err);
    if (!rc) rc = device_host_alloc(d, sizeof(struct block) + k->large->hidden * sizeof(float), &pinned, err);
    if (rc) return rc;
    k->block_host = pinned;
    k->step = (struct gpuk_step){.counts = k->block->counts,
                                 .token_id = k->block->token_id,
                                 .position = k->block->position,
                                 .token_row = k->block->token_row,
                                 .row_first = k->block->row_first,
                                 .row_slot = k->block->row_slot,
                                 .sample_token = k->block->sample_token,
                                 .page_table = k->block->page_table,
                                 .pages_per_slot = PAGES};
    rc = fill_buffers(m, err);
    return rc ? rc : set_step(m, 0, 1, err);
}

void measure_kernels_close(struct measure *m)
{
    struct measure_kernels *k = m->kernels;
    if (!k) return;
    if (k->block_host) m->device->ops->host_free(m->device, k->block_host);
    device_free(m->device, DEVICE_WORKSPACE, k->memory_bytes, k->memory);
    device_free(m->device, DEVICE_WEIGHTS, m->weight_bytes, m->weights);
    free(k);
    m->kernels = NULL;
}

int measure_kernels_run(struct measure *m, struct helm_err *err)
{
    double operation = 0;
    int rc = measure_decode(m, &operation, err);
    if (!rc) rc = measure_linear(m, err);
    if (!rc) rc = measure_attention(m, operation, err);
    return rc ? rc : set_step(m, 0, 1, err);
}
