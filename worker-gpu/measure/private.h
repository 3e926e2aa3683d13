/* Between the files of the device's measuring: measure.c (protocol, link, hand-over), measure/kernels.c
 * (rates), measure/attention.c (attention's), measure/chains.c (rates of chains), measure/expand.c (packed
 * weights), measure/chunks.c (chunks as a whole), measure/experts.c (chunks with experts), measure/formats.c
 * (the same of other formats of weights), worker-gpu/measured.c (a model's own programs), measure/buffers.c
 * (the memory they work on). */
#pragma once

#include "common/base/units.h"
#include "common/shared/arena.h"
#include "worker-gpu/device/device.h"
#include "worker-gpu/measure/measure.h"

#define MEASURE_SAMPLES_MAX 64
#define MEASURE_TOKENS_MAX  512
#define MEASURE_WAIT_MS     20000 /* anything that takes longer has failed */

struct measure_samples {
    double value[MEASURE_SAMPLES_MAX];
    uint32_t count;
};

struct measure {
    const struct engine_measure_options *options;
    FILE *out;
    struct device *device;
    struct device_event *event;
    bool emulated;
    /* host memory of the arena's kind, registered: its weights region */
    struct arena arena;
    bool registered;
    char *host;
    uint64_t host_bytes;
    uint64_t host_at, device_at; /* where the next piece is copied from and to */
    /* on the device */
    char *weights;
    uint64_t weight_bytes;
    enum kv_dtype kv;          /* of caches */
    enum tensor_format format; /* of the weights; bf16, until measure/formats.c puts others there */
    double budget_s;           /* for one value of such a format; 0: of bf16 */
    double chain_operation;    /* of bf16's chains */
    struct measure_kernels *kernels;
    struct measure_programs *programs; /* of a model, while they are measured */
};

/* Memory to copy and to compute with, on both sides. The first command that needs it takes it. */
HELM_MUST_CHECK int measure_take_memory(struct measure *m, struct helm_err *err);
/* Waits until the queue is empty. */
HELM_MUST_CHECK int measure_drain(struct measure *m, enum device_queue queue, struct helm_err *err);
/* Copies the next bytes between host memory and the device, and so on in a circle that no cache holds. */
HELM_MUST_CHECK int measure_copy_next(struct measure *m, enum device_direction direction, uint64_t size,
                                      struct helm_err *err);
/* How long such a piece should be, and the bytes a second of the first copy. */
HELM_MUST_CHECK int measure_choose_piece(struct measure *m, uint64_t *piece, double *rate,
                                         struct helm_err *err);
/* Time to spend on one value, and the least that one sample should take. */
static inline double measure_budget_s(const struct measure *m)
{
    return m->budget_s > 0 ? m->budget_s : m->options->quick ? 0.08 : 0.5;
}
static inline double measure_sample_s(const struct measure *m)
{
    const double sample_s = m->options->quick ? 0.004 : 0.012;
    return m->budget_s > 0 && m->budget_s / 4 < sample_s ? m->budget_s / 4 : sample_s;
}
void measure_add(struct measure_samples *samples, double value);
/* "gpu.gemv"; of another format than bf16 "formats.q4_K.gpu_gemv", of another cache than f16
 * "kv.q8_0.gpu_attention". */
void measure_print(struct measure *m, const char *name, uint32_t x, const struct measure_samples *samples);

/* ---- measure/buffers.c, measure/kernels.c ---- */

#define MEASURE_LAYER_OPS   4 /* q k v; o; gate up; down */
#define MEASURE_TINY        256
#define MEASURE_TINY_COUNT  256 /* kernels that do next to nothing */
#define MEASURE_KV_HEADS    8
#define MEASURE_HEADS       32 /* a group of 4 a KV head (PROFILE_GROUP) */
#define MEASURE_HEADS_PAIR  16 /* 2 (PROFILE_PAIR) */
#define MEASURE_HEAD_DIM    128
#define MEASURE_PAGE_TOKENS 32
#define MEASURE_KV_LAYERS   32 /* enough to exceed the caches, since in a step weights come between them */
#define MEASURE_CONTEXT     4096
#define MEASURE_PAGES       (MEASURE_CONTEXT / MEASURE_PAGE_TOKENS)

/* A layer's matrices: of 8, 4, 1.7 and 0.6 billion parameters. */
struct measure_shape {
    uint32_t hidden, q, kv, inner;
};
/* The step block: one row. */
struct measure_block {
    uint32_t counts[4], row_first[4], row_slot[4], sample_token[4];
    uint32_t token_id[MEASURE_TOKENS_MAX], position[MEASURE_TOKENS_MAX], token_row[MEASURE_TOKENS_MAX];
    uint32_t page_table[MEASURE_PAGES];
};

struct measure_kernels {
    const struct measure_shape *large, *small;
    uint64_t memory_bytes;
    char *memory;
    struct measure_block *block_host; /* pinned */
    struct measure_block *block;
    float *norm, *x, *a, *act, *qkv, *gate_up, *rope_table, *tiny;
    void *h, *q;
    void *linear_work, *attention_work, *matmul_work;
    uint64_t attention_work_bytes;
    struct gpuk_step step;
};

/* Bytes of a layer's matrices in a format. */
uint64_t measure_layer_bytes(const struct measure_shape *shape, enum tensor_format format);
/* One row of `tokens` tokens from position `start` on. */
HELM_MUST_CHECK int measure_set_step(struct measure *m, uint32_t start, uint32_t tokens,
                                     struct helm_err *err);

/* ---- measure/kernels.c for measure/chains.c ---- */

/* Work to be timed: `issue` puts it into the compute queue. */
struct measure_work {
    struct measure *m;
    int (*issue)(const struct measure_work *work, struct helm_err *err);
    const struct measure_shape *shape;
    uint32_t tokens;
    uint32_t ops;          /* operations of layers, in order, cycling through the weights; read: rows */
    uint32_t rounds;       /* read, a chain: how often */
    uint32_t group_bytes;  /* expanding */
    uint32_t start, heads; /* attention */
    const struct gpuk_chain *chain;
    const struct products *products; /* of packed weights: measure/expand.c */
};
#define MEASURE_WORKS_MAX 3
/* Samples of the seconds of one run of each of these works, in turns, so that other load on the machine
 * disturbs all alike: sample i of one was taken at about the same time as sample i of another. */
HELM_MUST_CHECK int measure_time_works(const struct measure_work *works, uint32_t count, bool captured,
                                       struct measure_samples *samples, struct helm_err *err);
double measure_median_of(const struct measure_samples *samples);
/* Room for expanded weights and for caches: after weights of another format. */
static inline char *measure_room(const struct measure *m)
{
    return m->format == FORMAT_BF16 ? m->weights : m->weights + (m->weight_bytes + 255) / 256 * 256;
}
/* Replaces seconds by `amount` a second, where each run also took `fixed` seconds that do not count: a
 * quarter of it at most. */
void measure_to_rate(struct measure_samples *samples, double amount, double fixed);
/* The least believed cost of an operation: the result where noise exceeds the difference. */
#define MEASURE_OPERATION_LEAST 1e-7
/* The cost of an operation beside its bytes, from each pair of samples of about the same bytes in few and in
 * many operations. False where the numbers of operations hardly differ. */
struct measure_amount {
    double bytes;
    uint32_t ops;
};
bool measure_fit_operation(const struct measure_amount *large, const struct measure_amount *small,
                           const struct measure_samples *large_s, const struct measure_samples *small_s,
                           double least, struct measure_samples *operation);
/* x, normed, to `out`. */
static inline struct op measure_norm(const struct measure_kernels *k, uint32_t tokens, uint32_t width,
                                     void *out, enum dtype dtype)
{
    return (struct op){.kind = OP_NORM,
                       .tokens = tokens,
                       .count = k->step.counts,
                       .as.norm = {.x = k->x,
                                   .norm = k->norm,
                                   .eps = 1e-6f,
                                   .width = width,
                                   .out = out,
                                   .out_dtype = dtype}};
}
/* Operation `index` of decode's linears of one token, in layer order, cycling through the weights. */
struct gpuk_linear_args measure_linear_args(const struct measure *m, const struct measure_shape *shape,
                                            uint32_t index);
/* Bytes, and values, of the weights that `ops` operations of this shape read. */
double measure_ops_bytes(const struct measure_shape *shape, enum tensor_format format, uint32_t ops);
double measure_ops_values(const struct measure_shape *shape, uint32_t ops);
uint32_t measure_layers_of(const struct measure *m, const struct measure_shape *shape);
/* Attention of one token or several over cache number `layer` of measure_kv_layers, which lie in the weights.
 */
struct gpuk_attention measure_attention_args(const struct measure *m, uint32_t layer, uint32_t heads);
uint32_t measure_kv_layers(const struct measure *m);
/* Bytes of cache that one token's attention reads after MEASURE_CONTEXT positions. */
double measure_attention_bytes(const struct measure *m);

/* Whether the device multiplies by the weights of all operations of a layer in their own format. */
bool measure_reads(const struct measure *m, const struct measure_shape *shape, enum gpuk_schedule schedule);
/* gpu.gemv and gpu.operation, which is also returned; `least`: what an empty kernel in a graph costs. With
 * bf16 also gpu.read, in turns with them. */
HELM_MUST_CHECK int measure_gemv_run(struct measure *m, struct measure_samples *least, double *operation,
                                     struct helm_err *err);
/* gpu.linear and gpu.linear_operation of `tokens` tokens. *rate: operations a second of the last one, 0 at
 * first. */
HELM_MUST_CHECK int measure_linear_at(struct measure *m, uint32_t tokens, double *rate, struct helm_err *err);
/* Seconds of a kernel that does nothing: samples. */
HELM_MUST_CHECK int measure_tiny(struct measure *m, bool captured, struct measure_samples *samples,
                                 struct helm_err *err);
/* w->ops kernels that do next to nothing. */
HELM_MUST_CHECK int measure_issue_tiny(const struct measure_work *w, struct helm_err *err);

/* ---- measure/chunks.c ---- */

/* gpu.begin, gpu.begin_graph */
HELM_MUST_CHECK int measure_chunks_run(struct measure *m, struct helm_err *err);

/* ---- measure/attention.c ---- */

/* gpu.attention, gpu.attention_direct, gpu.attention_flops, gpu.attention_rows; `operation`: what a kernel in
 * a graph costs. */
HELM_MUST_CHECK int measure_attention_run(struct measure *m, double operation, struct helm_err *err);
/* Those of attention again, of caches of other types than f16. */
HELM_MUST_CHECK int measure_kv_run(struct measure *m, double operation, struct helm_err *err);

/* ---- measure/chains.c ---- */

/* gpu.chain_gemv, gpu.chain_attention, gpu.chain_attention_pair, gpu.chain_operation, where the device has
 * chains and two shapes fit it, that the two can be told apart. `launch`: what a kernel in a graph costs, and
 * so a chain before its first operation. */
HELM_MUST_CHECK int measure_chains_run(struct measure *m, double launch, struct helm_err *err);
/* gpu.chain_attention and gpu.chain_attention_pair of m->kv, where the device has chains and they take it. */
HELM_MUST_CHECK int measure_chains_kv_run(struct measure *m, double launch, struct helm_err *err);
/* gpu.chain_gemv and gpu.chain_operation alone. */
HELM_MUST_CHECK int measure_chain_layers(struct measure *m, double launch, double *operation,
                                         struct helm_err *err);
/* Whether the device has chains, and takes the weights as they are. */
bool measure_chains_take(const struct measure *m);

/* ---- measure/expand.c ---- */

/* gpu.expand, in slices as the ring has them; writes over the weights. `operation`: what a kernel in a graph
 * costs. */
HELM_MUST_CHECK int measure_expand_run(struct measure *m, double operation, struct helm_err *err);

/* gpu.gemv_packed, of the large shape's operations, where the device multiplies packed weights and host
 * memory holds a group of them; likewise. */
HELM_MUST_CHECK int measure_packed_run(struct measure *m, double operation, struct helm_err *err);

/* gpu.expand of blocks: slices of whole layers' matrices. */
HELM_MUST_CHECK int measure_expand_blocks(struct measure *m, double operation, struct helm_err *err);

/* ---- measure/formats.c ---- */

/* Measures the rates by which the planner prices products with weights of this format, in about `seconds`.
 * Overwrites the weights, which are bf16 no more: nothing else can be measured afterwards. */
HELM_MUST_CHECK int measure_format_run(struct measure *m, enum tensor_format format, double seconds,
                                       struct helm_err *err);

/* ---- worker-gpu/measured.c, which has the engine ---- */

/* "programs JSON": the worker's engine over some layers of a model, on the same device. */
HELM_MUST_CHECK int measure_programs_open(struct measure *m, const char *text, struct helm_err *err);
/* "cell TOKENS CONTEXT SECONDS": seconds of such a step. */
HELM_MUST_CHECK int measure_programs_cell(struct measure *m, const char *text, struct helm_err *err);
void measure_programs_close(struct measure *m);

/* Memory on the device; measure_kernels_open fills the weights with numbers. */
HELM_MUST_CHECK int measure_kernels_open(struct measure *m, struct helm_err *err);
void measure_kernels_close(struct measure *m);
/* gpu.read, gpu.gemv, gpu.operation, gpu.launch, gpu.linear, gpu.linear_operation, gpu.attention,
 * gpu.attention_flops, gpu.attention_rows, and those of measure/chunks.c and measure/chains.c */
HELM_MUST_CHECK int measure_kernels_run(struct measure *m, struct helm_err *err);
/* Puts the two kernels of a hand-over into the compute queue: from a lane in host memory, and back into it.
 */
HELM_MUST_CHECK int measure_kernels_lane(struct measure *m, const float *from, float *to,
                                         struct helm_err *err);
#define MEASURE_LANE_FLOATS (ENGINE_HAND_OVER_BYTES / sizeof(float)) /* the residual stream of one token */
