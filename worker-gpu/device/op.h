/* The operations of a device with their arguments, as device_run takes them.
 *
 * Lowering fills them in (worker-gpu/program), measuring and tests make their own; device/cuda/kernels.c and
 * device/emulated/ run them, as kernels.h defines each. Pure data; addresses are the device's and must stay
 * until the operation is done. */
#pragma once

#include <stdatomic.h>

#include "common/program/op.h"
#include "worker-gpu/kernels/chain/chains.h"
#include "worker-gpu/kernels/delta/delta.h"
#include "worker-gpu/kernels/experts/share.h"
#include "worker-gpu/kernels/join.h"
#include "worker-gpu/kernels/linear/heads.h"
#include "worker-gpu/kernels/kernels_few.h"
#include "worker-gpu/kernels/weigh.h"

/* When a waiting queue goes on: word - value, as a signed number, is 0 or more; the word is the value. */
enum device_compare { DEVICE_AT_LEAST, DEVICE_EQUAL };

struct op_embed {
    struct gpuk_step step;
    const void *table;
    enum tensor_format format;
    uint32_t vocab, hidden;
    float scale; /* of rows */
    float *x;
};
struct op_norm {
    const float *x, *norm;
    float eps;
    uint32_t width;
    void *out;
    enum dtype out_dtype;
};
struct op_gather {
    struct gpuk_step step;
    const float *x;
    uint32_t width;
    float *out;
};
/* LANE_READ, LANE_WRITE, KV_QUERY, READ_BLOCK: rows of `width` floats. */
struct op_move {
    const float *from;
    float *to;
    uint32_t width;
};
struct op_swiglu {
    const void *in;
    void *out;
    enum dtype in_dtype, out_dtype;
    enum glu_kind glu;
    uint32_t n, stride, up_at, out_stride;
};
/* The record in a row's slot: [width] f32 at state + row_state[its line] * slot_bytes. `in` f32. */
struct op_running_mean {
    struct gpuk_step step;
    const uint32_t *row_state;
    char *state;
    uint64_t slot_bytes;
    struct gpuk_left left;
    const float *in;
    void *out;
    enum dtype out_dtype;
    uint32_t width, in_stride, out_stride;
};
struct op_rope_table {
    struct gpuk_step step;
    const float *inv_freq;
    uint32_t head_dim;
    float scale;
    float *table;
};
/* ROPE_APPEND writes q; ATTEND_PREFILL reads it, and may take the op's workspace, of the device's
 * ask.matmul_workspace (NULL: sums have one order). ATTEND_DECODE of one token is fused or takes args.q as
 * they left it; with partial_m and partial_s its results are partial. */
struct op_attention {
    struct gpuk_attention args;
    bool fused;
    float *partial_m, *partial_s;
    enum dtype q_dtype, out_dtype; /* of decode's `out`: f32 */
    void *q, *out;
    uint32_t rows;         /* ATTEND_PREFILL: capacity of the step's */
    struct gpuk_part part; /* of it */
};
struct op_matmul {
    enum tensor_format format;   /* of w: plain, or blocks as they lie: gpuk_blocks_run */
    enum dtype dtype, out_dtype; /* of x */
    uint32_t rows, cols, out_stride;
    bool accumulate;
    /* A token has the same bits at any place among any number of tokens up to this; 0: it need not */
    uint32_t steady;
    const void *w, *x;
    void *out;
    uint32_t *counters; /* of blocks */
};
struct op_bias {
    void *out;
    enum dtype dtype;
    uint32_t stride, rows;
    const float *bias;
};
struct op_soft_cap {
    float *logits;
    uint32_t vocab;
    float cap;
};
struct op_argmax {
    const float *logits;
    uint32_t vocab;
    struct gpuk_token *result;
    struct gpuk_next next; /* zeros: no step follows it */
};
struct op_few {
    const struct gpuk_few *few; /* stays until it is done */
    const float *logits;
    uint32_t vocab;
    struct gpuk_few_room *room;
};
struct op_expand {
    struct gpuk_expand_part part[GPUK_EXPAND_PARTS_MAX];
    uint32_t parts;
};
struct op_route {
    struct model_router router;
    const float *logits, *choice_bias;
    struct gpuk_choice out;
};
struct op_experts_group {
    struct gpuk_choice choice;
    uint32_t experts;
    const uint32_t *slot; /* as struct gpuk_experts has it */
    struct gpuk_groups out;
};
/* EXPERTS_GLU, EXPERTS_DOWN: of one and of few tokens, or of a chunk. */
struct op_experts_glu {
    bool is_chunk;
    struct gpuk_experts_glu few; /* its `ahead` is: */
    struct gpuk_experts ahead;   /* weight NULL: none */
    struct gpuk_experts_glu_chunk chunk;
};
struct op_experts_down {
    bool is_chunk;
    struct gpuk_experts_down few;
    struct gpuk_experts_down_chunk chunk;
};
struct op_experts_sum {
    struct gpuk_choice choice;
    struct gpuk_groups groups;
    const float *sums, *residual; /* NULL: 0 */
    uint32_t rows, out_stride;
    float *out;
};
struct op_word {
    _Atomic uint32_t *word;
    uint32_t value;
    enum device_compare compare; /* WORD_WAIT */
};

struct op {
    enum op_kind kind;
    uint32_t flags;        /* enum gpuk_flags */
    uint32_t tokens;       /* capacity: of tokens, or of the rows that stand for them; GEMV: one */
    const uint32_t *count; /* how many of them are there, on the device; where the arguments have no step */
    void *workspace; /* of experts of one and few tokens, GEMV, GEMM_SMALL, MATMUL, ATTEND_DECODE, ARGMAX, FEW
                      */
    union {
        struct gpuk_linear_args linear; /* GEMV, GEMM_SMALL, LOGITS */
        struct op_route route;
        struct gpuk_weigh weigh;
        struct gpuk_heads heads; /* LINEAR_HEADS */
        struct gpuk_experts_ask experts_ask;
        struct gpuk_experts_add experts_add;
        struct op_experts_group experts_group;
        struct op_experts_glu experts_glu;
        struct op_experts_down experts_down;
        struct op_experts_sum experts_sum;
        struct op_embed embed;
        struct op_norm norm;
        struct gpuk_add_normed add_normed;
        struct gpuk_join join;
        struct gpuk_per_layer per_layer;
        struct op_gather gather;
        struct op_move move;
        struct op_swiglu swiglu;
        struct op_rope_table rope_table;
        struct op_running_mean running_mean;
        struct gpuk_delta delta; /* CONVOLVE, DELTA */
        struct op_attention attention;
        struct gpuk_merge merge;
        struct op_matmul matmul;
        struct op_bias bias;
        struct op_soft_cap soft_cap;
        struct op_argmax argmax;
        struct op_few few;
        struct op_expand expand;
        struct op_word word;
        struct gpuk_chain chain;
    } as;
};
