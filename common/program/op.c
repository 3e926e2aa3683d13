/* Traits of operations, and what the model's arithmetic becomes. See op.h. */
#include "common/program/op.h"

#define ALWAYS                                                                                               \
    {                                                                                                        \
        true, true, true                                                                                     \
    }
#define SEVERAL                                                                                              \
    {                                                                                                        \
        false, true, true                                                                                    \
    }
#define NEVER                                                                                                \
    {                                                                                                        \
        false, false, false                                                                                  \
    }

static const struct op_traits traits[OP_KIND_COUNT] = {
    [OP_EMBED] = {"embed", OP_QUEUE_COMPUTE, ALWAYS, .launch = true},
    [OP_NORM] = {"norm", OP_QUEUE_COMPUTE, SEVERAL, .launch = true},
    [OP_ROPE_APPEND] = {"rope, append", OP_QUEUE_COMPUTE, ALWAYS, .launch = true},
    [OP_ROUTE] = {"route", OP_QUEUE_COMPUTE, SEVERAL, .launch = true},
    [OP_EXPERTS_GLU] = {"experts' gate up", OP_QUEUE_COMPUTE, ALWAYS, .launch = true},
    [OP_EXPERTS_DOWN] = {"experts' down", OP_QUEUE_COMPUTE, ALWAYS, .launch = true},
    [OP_EXPERTS_SUM] = {"sum experts", OP_QUEUE_COMPUTE, ALWAYS, .launch = true},
    [OP_ADD_NORMED] = {"add normed", OP_QUEUE_COMPUTE, ALWAYS, .launch = true},
    [OP_PER_LAYER] = {"per-layer embedding", OP_QUEUE_COMPUTE, ALWAYS, .launch = true},
    [OP_WEIGH] = {"weigh shared expert", OP_QUEUE_COMPUTE, ALWAYS, .launch = true},
    [OP_RUNNING_MEAN] = {"running mean", OP_QUEUE_COMPUTE, ALWAYS, .launch = true},
    [OP_CONVOLVE] = {"convolve", OP_QUEUE_COMPUTE, ALWAYS, .launch = true},
    [OP_DELTA] = {"gated delta rule", OP_QUEUE_COMPUTE, ALWAYS, .launch = true},
    [OP_GATE] = {"gate", OP_QUEUE_COMPUTE, ALWAYS, .launch = true},
    [OP_LINEAR_HEADS] = {"linear of heads", OP_QUEUE_COMPUTE, ALWAYS, .launch = true},
    [OP_LOGITS] = {"router logits", OP_QUEUE_COMPUTE, ALWAYS},
    [OP_EXPERTS_ASK] = {"ask for experts", OP_QUEUE_COMPUTE, ALWAYS, .launch = true, .outer = true},
    [OP_EXPERTS_ADD] = {"add asked experts", OP_QUEUE_COMPUTE, ALWAYS, .launch = true, .outer = true},
    [OP_EXPERTS_TAKE] = {"take asked experts", OP_QUEUE_COMPUTE, SEVERAL, .outer = true},
    [OP_EXPERTS_GROUP] = {"group by expert", OP_QUEUE_COMPUTE, ALWAYS, .launch = true},
    [OP_JOIN] = {"join", OP_QUEUE_COMPUTE, ALWAYS, .launch = true},
    [OP_LANE_READ] = {"take from lane", OP_QUEUE_COMPUTE, ALWAYS, .launch = true, .outer = true},
    [OP_LANE_WRITE] = {"put in lane", OP_QUEUE_COMPUTE, ALWAYS, .launch = true, .outer = true},
    [OP_LINEAR] = {"linear", OP_QUEUE_COMPUTE, ALWAYS},
    [OP_ATTEND] = {"attend", OP_QUEUE_COMPUTE, ALWAYS},
    [OP_SAMPLE] = {"sample", OP_QUEUE_COMPUTE, ALWAYS},
    [OP_ATTEND_HOST] = {"attend for the GPU", OP_QUEUE_COMPUTE, ALWAYS, .outer = true},
    [OP_COPY_BLOCK] = {"copy step block", OP_QUEUE_COMPUTE, ALWAYS},
    [OP_READ_BLOCK] = {"read step block", OP_QUEUE_COMPUTE, ALWAYS, .launch = true},
    [OP_ROPE_TABLE] = {"rope table", OP_QUEUE_COMPUTE, ALWAYS, .launch = true},
    [OP_GEMV] = {"gemv", OP_QUEUE_COMPUTE, ALWAYS, .launch = true},
    [OP_GEMM_SMALL] = {"gemm small", OP_QUEUE_COMPUTE, ALWAYS, .launch = true},
    [OP_MATMUL] = {"matmul", OP_QUEUE_COMPUTE, ALWAYS},
    [OP_ADD_BIAS] = {"add bias", OP_QUEUE_COMPUTE, ALWAYS, .launch = true},
    [OP_SWIGLU] = {"swiglu", OP_QUEUE_COMPUTE, ALWAYS, .launch = true},
    [OP_ATTEND_DECODE] = {"attend", OP_QUEUE_COMPUTE, ALWAYS, .launch = true},
    [OP_ATTEND_PREFILL] = {"attend", OP_QUEUE_COMPUTE, ALWAYS, .launch = true},
    [OP_GATHER] = {"gather samples", OP_QUEUE_COMPUTE, ALWAYS, .launch = true},
    [OP_SOFT_CAP] = {"soft cap", OP_QUEUE_COMPUTE, ALWAYS, .launch = true},
    [OP_ARGMAX] = {"argmax", OP_QUEUE_COMPUTE, ALWAYS, .launch = true},
    [OP_FEW] = {"candidates", OP_QUEUE_COMPUTE, ALWAYS},
    [OP_CHAIN] = {"chain of", OP_QUEUE_COMPUTE, ALWAYS},
    /* the launch after an expansion would fetch weights early: no launch */
    [OP_EXPAND] = {"expand", OP_QUEUE_COMPUTE, ALWAYS, .outer = true},
    [OP_STREAM_COPY] = {"  link: copy", OP_QUEUE_LINK, NEVER, .outer = true},
    [OP_KV_IN] = {"  link: borrow the cache, pool", OP_QUEUE_LINK, NEVER, .outer = true},
    [OP_KV_OUT] = {"  link: give the cache back, pool", OP_QUEUE_LINK, NEVER, .outer = true},
    [OP_KV_QUERY] = {"put queries in lane", OP_QUEUE_COMPUTE, ALWAYS, .launch = true, .outer = true},
    [OP_ATTEND_MERGE] = {"merge with partial results", OP_QUEUE_COMPUTE, ALWAYS, .launch = true,
                         .outer = true},
    [OP_KV_STORE] = {"  link: store filled pages", OP_QUEUE_LINK, NEVER, .outer = true},
    [OP_KV_FETCH] = {"  link: fetch pages", OP_QUEUE_LINK, NEVER, .outer = true},
    [OP_WORD_WAIT] = {"wait for word", OP_QUEUE_COMPUTE, NEVER, .outer = true},
    [OP_WORD_WRITE] = {"write word", OP_QUEUE_COMPUTE, NEVER, .outer = true},
    [OP_RECORD] = {"record", OP_QUEUE_EITHER, NEVER, .outer = true},
    [OP_FOLLOW] = {"wait for", OP_QUEUE_EITHER, NEVER, .outer = true},
};

const struct op_traits *op_traits_of(enum op_kind kind)
{
    return &traits[kind];
}

const char *op_name(enum op_kind kind)
{
    return (unsigned)kind < OP_KIND_COUNT ? traits[kind].name : "unknown";
}

/* ---- lists ---- */

struct list {
    enum op_kind *kinds;
    uint32_t count;
};

static void add(struct list *list, enum op_kind kind)
{
    list->kinds[list->count++] = kind;
}

/* The head's rows are those that are sampled. */
static bool is_sampled(const struct math_op *math)
{
    return math->out[0] == BUFFER_LOGITS;
}

static void add_router(struct list *list, const struct math_op *math, bool gpu, enum op_tier tier)
{
    const bool chunk = tier == OP_TIER_CHUNK;
    if (!gpu) add(list, OP_NORM);
    add(list, !gpu ? OP_LINEAR : tier == OP_TIER_ONE ? OP_GEMV : chunk ? OP_LOGITS : OP_GEMM_SMALL);
    if (!gpu || chunk || math->expert_scale != TENSOR_NONE) add(list, OP_ROUTE);
    if (gpu && chunk) add(list, OP_EXPERTS_GROUP);
}

static void add_cpu(struct list *list, const struct math_op *math, enum op_tier tier)
{
    if (math->kind == MATH_ATTENTION) {
        add(list, OP_ROPE_APPEND);
        add(list, OP_ATTEND);
        if (math->output_gate != BUFFER_NONE) add(list, OP_GATE);
    } else {
        if (math->norm != TENSOR_NONE || (tier != OP_TIER_ONE && math->in != BUFFER_GATE)) add(list, OP_NORM);
        add(list, OP_LINEAR);
        if (is_sampled(math)) add(list, OP_SAMPLE);
    }
}

/* A matrix product of many tokens takes its input ready and leaves the rest to others. */
static void add_gpu_chunk(struct list *list, const struct math_op *math)
{
    if (math->norm != TENSOR_NONE || math->in == BUFFER_X) add(list, OP_NORM); /* or its numbers in 16 bits */
    add(list, OP_MATMUL);
    for (uint32_t w = 0; w < math->weights; w++)
        if (math->bias[w] != TENSOR_NONE) add(list, OP_ADD_BIAS);
    if (math->gated || math->times != BUFFER_NONE) add(list, OP_SWIGLU);
}

static void add_gpu(struct list *list, const struct math_op *math, enum op_tier tier)
{
    if (math->kind == MATH_ATTENTION) {
        if (tier != OP_TIER_ONE || math->other_cache || math->latent) add(list, OP_ROPE_APPEND);
        add(list, tier == OP_TIER_CHUNK ? OP_ATTEND_PREFILL : OP_ATTEND_DECODE);
    } else if (is_sampled(math)) {
        if (tier != OP_TIER_ONE) add(list, OP_GATHER);
        add(list, tier == OP_TIER_ONE ? OP_GEMV : OP_GEMM_SMALL);
        if (math->soft_cap != 0) add(list, OP_SOFT_CAP);
        add(list, OP_ARGMAX);
    } else if (tier == OP_TIER_CHUNK) {
        add_gpu_chunk(list, math);
    } else {
        add(list, tier == OP_TIER_ONE ? OP_GEMV : OP_GEMM_SMALL);
        if (math->times != BUFFER_NONE) add(list, OP_SWIGLU);
    }
}

uint32_t program_ops_of(const struct math_op *math, enum processor_kind processor, enum op_tier tier,
                        enum op_kind kinds[PROGRAM_OPS_MAX])
{
    struct list list = {.kinds = kinds};
    const bool gpu = processor == PROCESSOR_GPU, chunk = tier == OP_TIER_CHUNK;
    switch (math->kind) {
    case MATH_EMBED:
        add(&list, OP_EMBED);
        break;
    case MATH_LINEAR:
    case MATH_ATTENTION:
        (gpu ? add_gpu : add_cpu)(&list, math, tier);
        break;
    case MATH_ROUTE:
        add_router(&list, math, gpu, tier);
        break;
    case MATH_EXPERTS_GLU:
        if (gpu ? chunk : math->own_norm) add(&list, OP_NORM);
        add(&list, OP_EXPERTS_GLU);
        break;
    case MATH_EXPERTS_DOWN:
        add(&list, OP_EXPERTS_DOWN);
        if (gpu ? chunk : tier != OP_TIER_ONE) add(&list, OP_EXPERTS_SUM);
        break;
    case MATH_LINEAR_HEADS:
        add(&list, OP_LINEAR_HEADS);
        break;
    case MATH_ADD_NORMED:
        add(&list, OP_ADD_NORMED);
        break;
    case MATH_PER_LAYER:
        add(&list, OP_PER_LAYER);
        break;
    case MATH_JOIN:
        add(&list, OP_JOIN);
        break;
    case MATH_WEIGH:
        add(&list, OP_WEIGH);
        break;
    case MATH_RUNNING_MEAN:
        add(&list, OP_RUNNING_MEAN);
        break;
    case MATH_DELTA:
        add(&list, OP_CONVOLVE);
        add(&list, OP_DELTA);
        break;
    case MATH_KINDS:
        break;
    }
    return list.count;
}

uint32_t program_run_end(const struct math_op *math, const enum tensor_format format[MATH_WEIGHTS_MAX],
                         uint32_t first)
{
    uint32_t end = first + 1;
    while (end < math->weights && (math->gated || format[end] == format[first])) end++;
    return end;
}

uint32_t program_ops_assisted(enum op_kind kinds[PROGRAM_OPS_MAX])
{
    struct list list = {.kinds = kinds};
    add(&list, OP_ROPE_APPEND);
    add(&list, OP_KV_QUERY);
    add(&list, OP_ATTEND_DECODE);
    add(&list, OP_ATTEND_MERGE);
    return list.count;
}

uint32_t program_ops_mixed(const struct math_op *math, enum processor_kind processor, enum op_tier tier,
                           enum op_kind kinds[PROGRAM_OPS_MAX])
{
    const bool gpu = processor == PROCESSOR_GPU;
    struct list list = {.kinds = kinds};
    if (math->kind == MATH_ROUTE && !gpu) {
        add(&list, OP_EXPERTS_TAKE);
        return list.count;
    }
    if (!gpu && math->kind != MATH_EXPERTS_GLU && math->kind != MATH_EXPERTS_DOWN) return 0;
    list.count = program_ops_of(math, processor, tier, kinds);
    if (!gpu && kinds[0] == OP_NORM) { /* TAKE has normed what is asked for */
        for (uint32_t i = 1; i < list.count; i++) kinds[i - 1] = kinds[i];
        list.count--;
    }
    if (!gpu) return list.count;
    if (math->kind == MATH_ROUTE) {
        const bool groups = kinds[list.count - 1] == OP_EXPERTS_GROUP;
        list.count -= groups;
        if (tier != OP_TIER_CHUNK && kinds[list.count - 1] == OP_ROUTE) list.count--; /* ASK chooses */
        add(&list, OP_EXPERTS_ASK);
        if (groups) add(&list, OP_EXPERTS_GROUP);
    } else if (math->kind == MATH_EXPERTS_DOWN) {
        add(&list, OP_EXPERTS_ADD);
    }
    return list.count;
}

uint32_t program_ops_first(enum processor_kind processor, enum op_kind kinds[PROGRAM_OPS_MAX])
{
    struct list list = {.kinds = kinds};
    if (processor == PROCESSOR_GPU) {
        add(&list, OP_COPY_BLOCK);
        add(&list, OP_ROPE_TABLE);
    }
    return list.count;
}

uint32_t program_ops_count(const struct math_op *math, enum processor_kind processor, enum op_tier tier)
{
    enum op_kind kinds[PROGRAM_OPS_MAX];
    uint32_t ops = program_ops_of(math, processor, tier, kinds), count = 0;
    for (uint32_t i = 0; i < ops; i++) count += traits[kinds[i]].counts[tier];
    return count;
}

uint32_t program_part_count(const struct math_part *part, enum processor_kind processor, enum op_tier tier)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < part->ops; i++) count += program_ops_count(&part->op[i], processor, tier);
    return count;
}
