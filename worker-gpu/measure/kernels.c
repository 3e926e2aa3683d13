/* The device's rates with weights, by the kernels that steps use. See measure.h.
 *
 * Called by measure.c; attention.c has attention's. Weights are layers of two real shapes, a large and a
 * small one, over the same memory and visited in layer order; decode's kernels are captured as a graph, a
 * chunk's are put into the queue one by one, as the engine does. Both graphs read as many bytes in different
 * numbers of kernels, so two times give two unknowns: the rate, and what a kernel costs beside its bytes. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/units.h"
#include "common/measure/stats.h"
#include "worker-gpu/measure/private.h"

/* ---- timing ---- */

static int run_once(const struct measure_work *w, struct device_graph *graph, struct helm_err *err)
{
    struct device *d = w->m->device;
    return graph ? d->ops->graph_launch(d, graph, true, err) : w->issue(w, err);
}

/* Seconds of `times` runs, one after the other. */
static int time_runs(const struct measure_work *w, struct device_graph *graph, uint32_t times,
                     double *seconds, struct helm_err *err)
{
    double start = units_now_s();
    int rc = 0;
    for (uint32_t i = 0; i < times && !rc; i++) rc = run_once(w, graph, err);
    if (!rc) rc = measure_drain(w->m, DEVICE_COMPUTE, err);
    *seconds = units_now_s() - start;
    return rc;
}

/* A work ready to be timed: its code loaded, its graph captured, and how often a sample runs it. */
struct timed {
    const struct measure_work *work;
    struct device_graph *graph;
    double once; /* seconds */
    uint32_t times;
};

static int timed_open(struct timed *t, const struct measure_work *w, bool captured, struct helm_err *err)
{
    struct device *d = w->m->device;
    *t = (struct timed){.work = w};
    int rc = time_runs(w, NULL, 1, &t->once, err); /* loads code; not under capture */
    if (!rc && captured) {
        rc = d->ops->capture_begin(d, err);
        if (rc) return rc;
        rc = w->issue(w, err);
        int ended = d->ops->capture_end(d, &t->graph, rc ? NULL : err);
        if (!rc) rc = ended;
    }
    if (!rc && (captured || t->once < measure_sample_s(w->m))) rc = time_runs(w, t->graph, 1, &t->once, err);
    double times = t->once > 0 ? ceil(measure_sample_s(w->m) / t->once) : 1;
    t->times = times > 1000 ? 1000 : (uint32_t)times;
    return rc;
}

int measure_time_works(const struct measure_work *w, uint32_t count, bool captured,
                       struct measure_samples *samples, struct helm_err *err)
{
    struct measure *m = w->m;
    struct timed timed[MEASURE_WORKS_MAX] = {{.times = 0}};
    double round = 0, end = units_now_s() + measure_budget_s(m) * count;
    int rc = 0;
    for (uint32_t i = 0; i < count; i++) samples[i].count = 0;
    for (uint32_t i = 0; i < count && !rc; i++) {
        rc = timed_open(&timed[i], &w[i], captured, err);
        round += timed[i].once * timed[i].times;
    }
    while (!rc && samples->count < MEASURE_SAMPLES_MAX && (samples->count < 3 || units_now_s() + round < end))
        for (uint32_t i = 0; i < count && !rc; i++) {
            double seconds = 0;
            rc = time_runs(&w[i], timed[i].graph, timed[i].times, &seconds, err);
            if (!rc) measure_add(&samples[i], seconds / timed[i].times);
        }
    for (uint32_t i = 0; i < count; i++)
        if (timed[i].graph) m->device->ops->graph_free(m->device, timed[i].graph);
    return rc;
}

/* ---- linears ---- */

/* Rows and columns of operation `op` of a layer, and where its matrices begin in the layer. */
static void op_place(const struct measure_shape *s, enum tensor_format format, uint32_t op, uint32_t *rows,
                     uint32_t *cols, uint64_t *at)
{
    const uint32_t all_rows[MEASURE_LAYER_OPS] = {s->q + 2 * s->kv, s->hidden, 2 * s->inner, s->hidden};
    const uint32_t all_cols[MEASURE_LAYER_OPS] = {s->hidden, s->q, s->hidden, s->inner};
    *at = 0;
    for (uint32_t i = 0; i < op; i++) *at += tensor_format_bytes(format, all_rows[i], all_cols[i]);
    *rows = op < MEASURE_LAYER_OPS ? all_rows[op] : 0;
    *cols = op < MEASURE_LAYER_OPS ? all_cols[op] : 0;
}

uint64_t measure_layer_bytes(const struct measure_shape *s, enum tensor_format format)
{
    uint32_t rows, cols;
    uint64_t end;
    op_place(s, format, MEASURE_LAYER_OPS, &rows, &cols, &end);
    return end;
}

uint32_t measure_layers_of(const struct measure *m, const struct measure_shape *s)
{
    return (uint32_t)(m->weight_bytes / measure_layer_bytes(s, m->format));
}

double measure_ops_bytes(const struct measure_shape *shape, enum tensor_format format, uint32_t ops)
{
    double sum = 0;
    for (uint32_t i = 0; i < ops; i++) {
        uint32_t rows, cols;
        uint64_t at;
        op_place(shape, format, i % MEASURE_LAYER_OPS, &rows, &cols, &at);
        sum += (double)tensor_format_bytes(format, rows, cols);
    }
    return sum;
}

double measure_ops_values(const struct measure_shape *shape, uint32_t ops)
{
    return measure_ops_bytes(shape, FORMAT_BF16, ops) / 2;
}

static double work_bytes(const struct measure_work *w)
{
    return measure_ops_bytes(w->shape, w->m->format, w->ops);
}

static double work_flops(const struct measure_work *w)
{
    return 2 * measure_ops_values(w->shape, w->ops) * w->tokens;
}

/* Where operation `index`'s matrices are, round and round the weights. */
static const char *weight_of(const struct measure *m, const struct measure_shape *s, uint32_t index)
{
    uint32_t rows, cols;
    uint64_t at;
    op_place(s, m->format, index % MEASURE_LAYER_OPS, &rows, &cols, &at);
    return m->weights +
           index / MEASURE_LAYER_OPS % measure_layers_of(m, s) * measure_layer_bytes(s, m->format) + at;
}

struct gpuk_linear_args measure_linear_args(const struct measure *m, const struct measure_shape *s,
                                            uint32_t index)
{
    const struct measure_kernels *k = m->kernels;
    const char *weight = weight_of(m, s, index);
    uint32_t rows, cols, op = index % MEASURE_LAYER_OPS;
    uint64_t at;
    op_place(s, m->format, op, &rows, &cols, &at);
    float *const in[MEASURE_LAYER_OPS] = {k->x, k->a, k->x, k->act}, *const out[MEASURE_LAYER_OPS] = {k->qkv,
                                                                                                      k->x,
                                                                                                      k->act,
                                                                                                      k->x};
    const uint32_t stride[MEASURE_LAYER_OPS] = {s->q + 2 * s->kv, s->hidden, s->inner, s->hidden},
                   parts[MEASURE_LAYER_OPS][GPUK_SEGMENTS_MAX + 1] = {{s->q, s->kv, s->kv},
                                                                      {s->hidden},
                                                                      {s->inner, s->inner},
                                                                      {s->hidden}};
    struct gpuk_linear_args args = {.format = m->format,
                                    .cols = cols,
                                    .x = in[op],
                                    .eps = 1e-6f,
                                    .swiglu = op == 2,
                                    .x_stride = cols,
                                    .out_stride = stride[op]};
    for (uint32_t row = 0; parts[op][args.segments]; args.segments++) {
        args.segment[args.segments] =
            (struct gpuk_linear){.weight = weight + tensor_format_bytes(m->format, row, cols),
                                 .out = out[op] + (op == 0 ? row : 0),
                                 .rows = parts[op][args.segments]};
        row += parts[op][args.segments];
    }
    if (op == 0 || op == 2) args.norm = k->norm;
    if (op == 1 || op == 3) args.residual = k->x;
    return args;
}

/* One operation of decode: up to 16 tokens. */
static int issue_few(const struct measure_work *w, uint32_t index, struct helm_err *err)
{
    const struct measure_kernels *k = w->m->kernels;
    const struct op op = {.kind = w->tokens == 1 ? OP_GEMV : OP_GEMM_SMALL,
                          .tokens = w->tokens,
                          .count = k->step.counts,
                          .workspace = k->linear_work,
                          .as.linear = measure_linear_args(w->m, w->shape, index)};
    return device_run(w->m->device, &op, err);
}

/* One operation of a chunk, with what stands before and after it there. Products take whole multiples of
 * GPU_PAD_TOKENS. */
static int issue_many(const struct measure_work *w, uint32_t index, struct helm_err *err)
{
    const char *weight = weight_of(w->m, w->shape, index);
    const struct measure_kernels *k = w->m->kernels;
    const struct measure_shape *s = w->shape;
    uint32_t rows, cols, op = index % MEASURE_LAYER_OPS;
    uint64_t at;
    const uint32_t padded = (uint32_t)round_up(w->tokens, GPU_PAD_TOKENS);
    bool accumulate = op == 1 || op == 3;
    op_place(s, w->m->format, op, &rows, &cols, &at);
    const void *const in[MEASURE_LAYER_OPS] = {k->h, k->a, k->h, k->act};
    void *const out[MEASURE_LAYER_OPS] = {k->qkv, k->x, k->gate_up, k->x};
    const struct op norm = measure_norm(k, w->tokens, s->hidden, k->h, DTYPE_BF16);
    const struct op product = {.kind = OP_MATMUL,
                               .tokens = padded,
                               .workspace = k->matmul_work,
                               .as.matmul = {.format = w->m->format,
                                             .dtype = DTYPE_BF16,
                                             .out_dtype = op == 2 ? DTYPE_BF16 : DTYPE_F32,
                                             .rows = rows,
                                             .cols = cols,
                                             .out_stride = rows,
                                             .accumulate = accumulate,
                                             .w = weight,
                                             .x = in[op],
                                             .out = out[op],
                                             .counters = k->linear_work}};
    const struct op swiglu = {.kind = OP_SWIGLU,
                              .tokens = w->tokens,
                              .count = k->step.counts,
                              .as.swiglu = {.in = k->gate_up,
                                            .out = k->act,
                                            .in_dtype = DTYPE_BF16,
                                            .out_dtype = DTYPE_BF16,
                                            .n = s->inner,
                                            .stride = 2 * s->inner,
                                            .up_at = s->inner,
                                            .out_stride = s->inner}};
    int rc = accumulate ? 0 : device_run(w->m->device, &norm, err);
    if (!rc) rc = device_run(w->m->device, &product, err);
    if (!rc && op == 2) rc = device_run(w->m->device, &swiglu, err);
    return rc;
}

static int issue_linears(const struct measure_work *w, struct helm_err *err)
{
    int rc = 0;
    for (uint32_t i = 0; i < w->ops && !rc; i++)
        rc = w->tokens <= GPUK_BATCH_MAX ? issue_few(w, i, err) : issue_many(w, i, err);
    return rc;
}

/* One matrix of everything: no end of a kernel, no beginning of another. */
static int issue_read(const struct measure_work *w, struct helm_err *err)
{
    const struct measure_kernels *k = w->m->kernels;
    const uint32_t cols = w->shape->hidden;
    const struct op op = {
        .kind = OP_GEMV,
        .workspace = k->linear_work,
        .as.linear = {.format = FORMAT_BF16,
                      .cols = cols,
                      .segments = 1,
                      .segment = {{.weight = w->m->weights, .out = k->gate_up, .rows = w->ops}},
                      .x = k->x,
                      .eps = 1e-6f,
                      .x_stride = cols}};
    int rc = 0;
    for (uint32_t i = 0; i < w->rounds && !rc; i++) rc = device_run(w->m->device, &op, err);
    return rc;
}

int measure_issue_tiny(const struct measure_work *w, struct helm_err *err)
{
    const struct measure_kernels *k = w->m->kernels;
    struct op op = measure_norm(k, 1, MEASURE_TINY, k->tiny + MEASURE_TINY, DTYPE_F32);
    int rc = 0;
    op.as.norm.x = k->tiny;
    for (uint32_t i = 0; i < w->ops && !rc; i++) rc = device_run(w->m->device, &op, err);
    return rc;
}

int measure_set_step(struct measure *m, uint32_t start, uint32_t tokens, struct helm_err *err)
{
    const struct measure_kernels *k = m->kernels;
    struct measure_block *b = k->block_host;
    memset(b, 0, sizeof *b);
    b->counts[0] = b->row_first[1] = tokens;
    b->counts[1] = b->counts[2] = 1;
    b->sample_token[0] = tokens - 1;
    for (uint32_t i = 0; i < tokens; i++) b->position[i] = start + i;
    for (uint32_t i = 0; i < MEASURE_PAGES; i++) b->page_table[i] = i;
    int rc = device_copy(m->device, DEVICE_COMPUTE, DEVICE_TO_DEVICE, k->block, b, sizeof *b, err);
    return rc ? rc : measure_drain(m, DEVICE_COMPUTE, err);
}

double measure_median_of(const struct measure_samples *s)
{
    double sorted[MEASURE_SAMPLES_MAX];
    memcpy(sorted, s->value, s->count * sizeof *sorted);
    return s->count ? stats_quantile(sorted, s->count, 0.5) : 0;
}

void measure_to_rate(struct measure_samples *s, double amount, double fixed)
{
    for (uint32_t i = 0; i < s->count; i++) {
        double least = s->value[i] * 0.75, seconds = s->value[i] - fixed;
        s->value[i] = amount / (seconds > least ? seconds : least);
    }
}

bool measure_fit_operation(const struct measure_amount *large, const struct measure_amount *small,
                           const struct measure_samples *large_s, const struct measure_samples *small_s,
                           double least, struct measure_samples *operation)
{
    double scale = large->bytes / small->bytes;
    operation->count = 0;
    for (uint32_t i = 0; i < small_s->count && i < large_s->count; i++) {
        double fitted =
            (small_s->value[i] * scale - large_s->value[i]) / (small->ops * scale - (double)large->ops);
        measure_add(operation, fitted > least ? fitted : least);
    }
    return measure_median_of(operation) > least;
}

int measure_tiny(struct measure *m, bool captured, struct measure_samples *samples, struct helm_err *err)
{
    const struct measure_work idle = {.m = m,
                                      .issue = measure_issue_tiny,
                                      .tokens = 1,
                                      .ops = MEASURE_TINY_COUNT,
                                      .shape = m->kernels->large};
    int rc = measure_time_works(&idle, 1, captured, samples, err);
    for (uint32_t i = 0; !rc && i < samples->count; i++) samples->value[i] /= MEASURE_TINY_COUNT;
    return rc;
}

bool measure_reads(const struct measure *m, const struct measure_shape *shape, enum gpuk_schedule schedule)
{
    bool reads = true;
    for (uint32_t op = 0; op < MEASURE_LAYER_OPS; op++) {
        const struct gpuk_linear_args args = measure_linear_args(m, shape, op);
        reads &= tensor_format_is_plain(m->format) || m->device->ask.linear_takes(m->device, &args, schedule);
    }
    return reads;
}

int measure_gemv_run(struct measure *m, struct measure_samples *least, double *operation,
                     struct helm_err *err)
{
    enum { READ, LARGE, SMALL };
    const struct measure_kernels *k = m->kernels;
    const bool reads = m->format == FORMAT_BF16, both = k->small != k->large;
    struct measure_samples fitted, samples[MEASURE_WORKS_MAX];
    /* A graph of a fast device goes round the weights several times, that its own start counts for little. */
    const uint32_t rounds = m->emulated ? 1 : 4;
    const struct measure_work any = {.m = m, .tokens = 1, .shape = k->large};
    struct measure_work w[MEASURE_WORKS_MAX] = {any, any, any};
    const int first = reads ? READ : LARGE;
    uint64_t rows = (m->weight_bytes < GIB ? m->weight_bytes : GIB) / 2 / k->large->hidden,
             most = (uint64_t)MEASURE_TOKENS_MAX * 2 * k->large->inner;
    w[READ].issue = issue_read;
    w[READ].ops = (uint32_t)(rows < most ? rows : most);
    w[READ].rounds = rounds;
    w[SMALL].shape = k->small;
    for (int i = LARGE; i <= SMALL; i++) {
        w[i].issue = issue_linears;
        w[i].ops = MEASURE_LAYER_OPS * measure_layers_of(m, w[i].shape) * rounds;
    }
    int rc = measure_set_step(m, 0, 1, err);
    if (!rc)
        rc = measure_time_works(w + first, (uint32_t)(LARGE - first) + (both ? 2 : 1), true, samples + first,
                                err);
    if (rc) return rc;
    *operation = measure_median_of(least);
    const struct measure_amount large = {work_bytes(&w[LARGE]), w[LARGE].ops},
                                small = {work_bytes(&w[SMALL]), w[SMALL].ops};
    if (both && measure_fit_operation(&large, &small, &samples[LARGE], &samples[SMALL], *operation, &fitted))
        *least = fitted;
    *operation = measure_median_of(least);
    measure_to_rate(&samples[LARGE], work_bytes(&w[LARGE]), w[LARGE].ops * *operation);
    measure_print(m, "gpu.operation", 0, least);
    measure_print(m, "gpu.gemv", 0, &samples[LARGE]);
    if (!reads) return 0;
    measure_to_rate(&samples[READ], 2.0 * w[READ].ops * k->large->hidden * rounds, 0);
    measure_print(m, "gpu.read", 0, &samples[READ]);
    return 0;
}

/* gpu.launch, and those of measure_gemv_run. `operation`: what a kernel in a graph costs. */
static int measure_decode(struct measure *m, double *operation, struct helm_err *err)
{
    struct measure_samples launch, tiny;
    int rc = measure_set_step(m, 0, 1, err);
    if (!rc) rc = measure_tiny(m, false, &launch, err);
    if (!rc) rc = measure_tiny(m, true, &tiny, err);
    if (rc) return rc;
    measure_print(m, "gpu.launch", 0, &launch);
    return measure_gemv_run(m, &tiny, operation, err); /* no kernel is cheaper than an empty one */
}

/* gpu.linear and gpu.linear_operation at one number of tokens. *rate: operations a second in all, so far. A
 * CPU that plays a GPU has no time for whole layers of many tokens, and parts of two shapes cannot be
 * compared: there all counts as work. */
int measure_linear_at(struct measure *m, uint32_t tokens, double *rate, struct helm_err *err)
{
    enum { LARGE, SMALL, COUNT };
    const struct measure_kernels *k = m->kernels;
    const struct measure_shape *const shape[COUNT] = {k->large, k->small};
    struct measure_work w[COUNT];
    struct measure_amount amount[COUNT];
    struct measure_samples samples[COUNT], fitted;
    const bool both = k->small != k->large && !m->emulated;
    for (int i = 0; i < COUNT; i++) {
        w[i] = (struct measure_work){
            .m = m, .issue = issue_linears, .shape = shape[i], .tokens = tokens, .ops = MEASURE_LAYER_OPS};
        w[i].ops *= measure_layers_of(m, shape[i]);
        while (w[i].ops > 1 && *rate > 0 && work_flops(&w[i]) > *rate * measure_budget_s(m) / 3) w[i].ops--;
        amount[i] = (struct measure_amount){work_flops(&w[i]), w[i].ops};
    }
    int rc = measure_set_step(m, 0, tokens, err);
    if (!rc) rc = measure_time_works(w, both ? COUNT : 1, tokens <= GPUK_BATCH_MAX, samples, err);
    if (rc) return rc;
    double once = measure_median_of(&samples[LARGE]), each = 0;
    if (both) {
        (void)measure_fit_operation(&amount[LARGE], &amount[SMALL], &samples[LARGE], &samples[SMALL],
                                    MEASURE_OPERATION_LEAST, &fitted);
        for (uint32_t i = 0; i < fitted.count; i++)
            fitted.value[i] = fmin(fitted.value[i], once / 2 / w[LARGE].ops);
        each = measure_median_of(&fitted);
        measure_print(m, "gpu.linear_operation", tokens, &fitted);
    }
    for (uint32_t i = 0; i < samples[LARGE].count; i++) {
        double *value = &samples[LARGE].value[i];
        *value = amount[LARGE].bytes / fmax(*value - each * w[LARGE].ops, *value / 2);
    }
    *rate = amount[LARGE].bytes / once;
    measure_print(m, "gpu.linear", tokens, &samples[LARGE]);
    return 0;
}

static int measure_linear(struct measure *m, struct helm_err *err)
{
    static const uint32_t tokens[] = {2, 4, 8, 16, 32, 64, 128, 256, 512};
    double rate = 0;
    int rc = 0;
    for (size_t i = 0; i < sizeof tokens / sizeof *tokens && !rc; i++)
        rc = measure_linear_at(m, tokens[i], &rate, err);
    return rc;
}

int measure_kernels_lane(struct measure *m, const float *from, float *to, struct helm_err *err)
{
    const struct measure_kernels *k = m->kernels;
    const struct op read = {.kind = OP_LANE_READ,
                            .tokens = 1,
                            .count = k->step.counts,
                            .as.move = {.from = from, .to = k->x, .width = MEASURE_LANE_FLOATS}},
                    write = {.kind = OP_LANE_WRITE,
                             .tokens = 1,
                             .count = k->step.counts,
                             .as.move = {.from = k->x, .to = to, .width = MEASURE_LANE_FLOATS}};
    int rc = device_run(m->device, &read, err);
    return rc ? rc : device_run(m->device, &write, err);
}

int measure_kernels_run(struct measure *m, struct helm_err *err)
{
    double operation = 0;
    int rc = measure_decode(m, &operation, err);
    if (!rc) rc = measure_linear(m, err);
    if (!rc) rc = measure_attention_run(m, operation, err);
    if (!rc) rc = measure_chunks_run(m, err);
    if (!rc) rc = measure_chains_run(m, operation, err);
    if (!rc) rc = measure_kv_run(m, operation, err);
    if (!rc) rc = measure_expand_run(m, operation, err);
    if (!rc) rc = measure_packed_run(m, operation, err);
    return rc ? rc : measure_set_step(m, 0, 1, err);
}
