/* The GPU's kernels: extern "C" launchers over CUDA streams.
 *
 * Called by the CUDA device (worker-gpu/device/cuda), by tests/gpu and by tools/bench/gpu. Launchers own
 * nothing, allocate nothing and never synchronise, so all of them can be captured in a graph; workspace comes
 * from the caller, sizes from the ..._bytes functions. Arguments are device pointers unless they say
 * otherwise. Every launch is checked; errors are HELM_E_... with the detail in err.
 *
 * Inputs that change from step to step (tokens, positions, page tables, how many of them count) are read from
 * device memory through `struct gpuk_step`; a launch depends only on shapes and on capacities (the token
 * tier), so a captured graph is replayed unchanged. Kernels launched early (below) read the step block before
 * their predecessor has finished. So after a kernel that writes the block the next launch must not be early;
 * copies before the graph and the host may write it.
 *
 * Precision: weights as their format decodes them; the residual stream and decode activations are fp32; sums
 * are fp32. One token's activations against blocks are whole numbers of 22 bits and a sign with a scale for
 * each 32 (blocks_x.cuh: 2^-22 of the largest at most), and sums of 32 products are exact; those of 2 to 16
 * tokens likewise (gemm_integer.cu). Other batches of 2 to 16 tokens on tensor cores carry activations as a
 * pair (high, low) of 16-bit numbers, about 2^-16 relative. Prefill activations are 16-bit. No float atomics:
 * the same input gives the same bits.
 *
 * GPUK_EARLY (only where the device says early_launch): the launch may begin before the kernel in front of it
 * in the stream has finished (programmatic dependent launch). It fetches weights, then waits by itself for
 * the predecessor's results. Set it only when the operation just before in the stream is one of these
 * launchers. GPUK_BESIDE beside it: gpuk_gemv's x is no result of that operation, a gpuk_gemv, gpuk_weigh or
 * gpuk_experts_down of one token: these let the next one start when all that is older is there, so products
 * need not wait. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#include "common/base/err.h"
#include "common/formats/tensor_format.h"
#include "common/shared/kv_layout.h"
#include "common/model/limits.h"
#include "common/model/router.h"
#include "common/plan/engine_limits.h"

#define GPUK_BATCH_MAX    ENGINE_FEW_TOKENS /* tokens of the small-batch tier */
#define GPUK_HEAD_DIM_MAX 576               /* of attention */
#define GPUK_SEGMENTS_MAX 4
#define GPUK_SPLITS_MAX   GPU_ATTENTION_SPLITS /* pieces of one sequence's context in decode attention */
#define GPUK_TOKEN_NONE   0xffffffffu

/* Page numbers with this bit lie in the second pool (host memory that is mapped for the device). */
#define GPUK_PAGE_HOST 0x80000000u
/* A page that is elsewhere: its positions are left out (partial results are merged by the caller). */
#define GPUK_PAGE_ABSENT 0xffffffffu

enum gpuk_flags { GPUK_EARLY = 1u << 0, GPUK_BESIDE = 1u << 1 };

/* Properties of the device that launchers need; filled in once by gpuk_open. */
struct gpuk_device {
    int ordinal;
    int sm_count;
    int capability;       /* 75, 80, 86, 89, 90, ... */
    int shared_bytes_max; /* of one block, after opting in */
    bool bulk_copy;       /* weights stream through shared memory by the bulk copy engine (9.0 and later) */
    bool early_launch;    /* GPUK_EARLY may be set (9.0 and later) */
    bool tensor_cores;    /* bf16 and f16 matrix instructions (8.0 and later) */
    bool warpgroups;      /* those of warpgroups (9.0 alone, where the build has code for it) */
    /* Choices a benchmark may vary; 0 = the built-in default, negative = none. */
    int gemv_warps;       /* of a block: 8 or 16 */
    int gemv_tile_bytes;  /* of one row that a copy brings: 1024 or 2048 */
    int gemv_slots;       /* tiles in flight a warp; also of chains */
    int gemv_ahead_bytes; /* of each block's weights asked into L2 before its predecessor has finished */
    bool gemv_contiguous; /* a block's rows are neighbours; else rows go round the blocks */
    int packed_warps;     /* of a block of the packed gemv, at most: 4, 8, 16 or 24 */
    int packed_slots;     /* of each warp's ring */
    int packed_blocks;    /* of a multiprocessor, at most */
    int gemm_slots;       /* of the streamed gemm's ring: groups of 16 rows; default: 96 KiB */
    int gemm_slices;      /* of columns, at least as many as registers need; default: that number */
    int gemm_producers;   /* warps that copy, 1 to 4 */
    int gemm_reducers;    /* warps that add and store, 2 to 6 */
    int gemm_batch;       /* groups of a reducer that wait for the other slices together */
    int gemm_ahead;       /* groups asked into the L2 beyond the ring before x is there */
    int gemm_blocks;      /* 2: one leaves room for the next launch's, which fills its ring meanwhile */
    int gemm_integer; /* few tokens' products with blocks by whole numbers: negative: none; 1, 2: 16 rows by 1
                         or 2; 3: all that can be */
    int experts_wide; /* tokens of an expert on average from which warpgroups take a chunk's; negative: any
                         number */
    int experts_digits; /* negative: a few tokens' experts of blocks by one token's instructions */
};
/* HELM_E_UNSUPPORTED, with what to do: HELM has no code for a device of this capability, or this build has
 * none. */
HELM_MUST_CHECK int gpuk_check_built(int capability, struct helm_err *err);
/* Reads the current device's properties and loads every kernel, so that no launch loads code later (a first
 * launch would wait for the device, which deadlocks when a stream waits for the host). */
HELM_MUST_CHECK int gpuk_open(struct gpuk_device *device, struct helm_err *err);

/* The step block: arrays in device memory (or host memory mapped for the device), at fixed addresses. */
struct gpuk_step {
    const uint32_t *counts;    /* [3]: tokens, rows (sequences) and samples of this step */
    const uint32_t *token_id;  /* [tokens] */
    const uint32_t *position;  /* [tokens] */
    const uint32_t *token_row; /* [tokens] its row */
    const uint32_t *row_first; /* [rows + 1] tokens row_first[r] .. row_first[r + 1) are row r's, in order */
    const uint32_t *row_slot;  /* [rows] line of the page table */
    const uint32_t *sample_token; /* [samples] whose logits are wanted */
    const uint32_t *page_table;   /* [slots][pages_per_slot] */
    uint32_t pages_per_slot;
    /* [rows] or NULL, of decode attention: a row's positions below it are absent, whatever their pages. At
     * most that of its first token. */
    const uint32_t *row_begin;
};

/* Where rows leave an operation's fixed state before their last token (docs/state.md). */
struct gpuk_left {
    /* [lines of the page table][GPU_ROW_STATES]: after how many tokens of the step, and the snapshot, from 1
     * on; the first of snapshot 0 ends them. NULL: no row does */
    const uint32_t (*rows)[GPU_ROW_STATES][2];
    char *snapshots; /* the state's place in the first one: device address of mapped host memory */
    uint64_t snapshot_bytes;
    uint32_t before; /* tokens of the step before those of gpuk_step */
};
/* Where a row leaves its state, and after how many tokens. */
struct gpuk_left_at {
    uint32_t at;
    char *to; /* NULL: nowhere */
};
/* The first such place of the row of this line after token `from` and up to `end`; `end`, NULL: none. */
KV_INLINE struct gpuk_left_at gpuk_left_after(const struct gpuk_left *left, uint32_t line, uint32_t from,
                                              uint32_t end)
{
    struct gpuk_left_at none = {end, NULL};
    if (!left->rows) return none;
    const uint32_t(*row)[2] = left->rows[line];
    for (uint32_t i = 0; i < GPU_ROW_STATES && row[i][1]; i++) {
        const uint32_t at = row[i][0] - left->before; /* below 0: more than any */
        if (at <= from || at > end) continue;
        struct gpuk_left_at found = {at, left->snapshots + (uint64_t)(row[i][1] - 1) * left->snapshot_bytes};
        return found;
    }
    return none;
}

/* The KV pages of one layer. The second pool may be of other layers too: only this one's cells are seen. */
struct gpuk_kv {
    struct kv_layout layout; /* of `pool` */
    void *pool;              /* VRAM */
    void *pool_host;         /* device address of mapped host memory: this layer's cells of page 0; or NULL */
    uint32_t layer;          /* in the layer group of `pool` */
    uint64_t host_stride;    /* bytes from a page of pool_host to the next */
};

/* One weight matrix [rows][cols] of one format (common/formats/tensor_format.h), with its output: whole, or a
 * slice, which is whole groups of rows. Norm weights and biases are fp32 (converted when the model is
 * loaded). */
struct gpuk_linear {
    const void *weight; /* of a variable format: where the first group lies, 16-byte aligned */
    /* For a variable format: the first group's entry in the matrix's table of offsets, in device memory; only
     * differences to that entry are used, up to the one after the last group. Otherwise NULL. */
    const uint32_t *offset;
    const float *bias; /* [rows] or NULL */
    float *out;        /* out[token * out_stride + row] */
    uint32_t rows;
};

/* y = W x over one to four matrices that share x, with what stands before and after it:
 *   norm       x is normalised first: x[i] * norm[i] / sqrt(mean(x^2) + eps); NULL: x as it is
 *   residual   out[r] = residual[r] + (W x + bias)[r]; may be `out` itself; one matrix only
 *   swiglu     two matrices of equal rows, gate then up: segment[0].out[r] = glu(gate[r], up[r]),
 *              silu(gate[r]) * up[r] where glu is GLU_SILU
 * `out` may be host memory mapped for the device (an activation lane). */
struct gpuk_linear_args {
    enum tensor_format format; /* of the weights */
    uint32_t cols;
    uint32_t segments;
    struct gpuk_linear segment[GPUK_SEGMENTS_MAX];
    const float *x; /* x[token * x_stride + i] */
    const float *norm;
    float eps;
    const float *residual; /* stride as out_stride */
    bool swiglu;
    enum glu_kind glu; /* with swiglu */
    bool steady; /* gemm: the kernel is the one of GPUK_BATCH_MAX tokens, however few there are; blocks in a
                    chain: a row's order of sums is that of this kernel, if it is by whole numbers, whatever
                    else is in the chain */
    uint32_t x_stride, out_stride; /* floats; gemm only */
};
/* The first bytes of a workspace of linear layers: zero before its first launch; launches leave them zero. */
#define GPUK_LINEAR_COUNTER_BYTES ((size_t)GPU_LINEAR_COUNTER_BYTES)
/* Bytes after them, for small batches: inputs, or sums that wait for those of other columns; matrices that
 * need more are taken a part at a time. */
static inline size_t gpuk_linear_sums_bytes(uint32_t tokens, uint32_t cols)
{
    const size_t x = (size_t)(tokens > 8 ? 16 : 8) * cols * sizeof(float),
                 most = (size_t)GPU_LINEAR_SUMS_BYTES;
    return GPU_LINEAR_SUMS * x < most ? GPU_LINEAR_SUMS * x : x > most ? x : most;
}
/* How weights are read. Kernels stand in one table by format and schedule (linear.cu); what has no kernel
 * there is expanded first, to the format's product dtype. */
enum gpuk_schedule {
    GPUK_ONE,   /* one token: gpuk_gemv */
    GPUK_FEW,   /* up to GPUK_BATCH_MAX: gpuk_gemm_small */
    GPUK_SHORT, /* up to GPUK_BLOCKS_TOKENS: gpuk_blocks_run */
    GPUK_WIDE,  /* up to GPUK_WIDE_TOKENS: the same */
    GPUK_CHUNK, /* any number: gpuk_matmul_run, which reads plain formats */
    GPUK_SCHEDULES
};
/* The name of the kernel that would be launched; NULL: the weights must be expanded first. */
const char *gpuk_linear_kernel(const struct gpuk_device *device, const struct gpuk_linear_args *args,
                               enum gpuk_schedule schedule);
static inline bool gpuk_linear_takes(const struct gpuk_device *device, const struct gpuk_linear_args *args,
                                     enum gpuk_schedule schedule)
{
    return gpuk_linear_kernel(device, args, schedule) != NULL;
}
/* Whether few tokens' products have the bits of one token's in a chain, of these `steady` arguments. */
bool gpuk_linear_as_chained(const struct gpuk_device *device, const struct gpuk_linear_args *args);
/* One token. Packed weights give the same bits as gpuk_expand and then gpuk_gemv would (on this device),
 * where gpuk_gemv streams plain weights by bulk copies; elsewhere those that it would give if it did. */
size_t gpuk_gemv_workspace_bytes(uint32_t cols);
HELM_MUST_CHECK int gpuk_gemv(const struct gpuk_device *device, const struct gpuk_linear_args *args,
                              void *workspace, uint32_t flags, void *stream, struct helm_err *err);
/* Up to `tokens` <= GPUK_BATCH_MAX tokens, weights read once; only the first *count are computed and stored
 * (count: a device pointer, usually step.counts or step.counts + 2). */
size_t gpuk_gemm_small_workspace_bytes(uint32_t tokens, uint32_t cols);
HELM_MUST_CHECK int gpuk_gemm_small(const struct gpuk_device *device, const struct gpuk_linear_args *args,
                                    uint32_t tokens, const uint32_t *count, void *workspace, uint32_t flags,
                                    void *stream, struct helm_err *err);

/* x[t] = scale * row token_id[t] of table [vocab][hidden], of any format whose rows all have the same bytes;
 * t < tokens (the tier). An id outside the vocabulary gives NaN, so that it cannot pass for text. */
HELM_MUST_CHECK int gpuk_embed(const struct gpuk_step *step, uint32_t tokens, const void *table,
                               enum tensor_format format, uint32_t vocab, uint32_t hidden, float scale,
                               float *x, uint32_t flags, void *stream, struct helm_err *err);
/* out[t] = rmsnorm(x[t]) * norm, out of dtype `out_dtype`, dense rows. norm NULL: only converted. */
HELM_MUST_CHECK int gpuk_rmsnorm(const uint32_t *count, uint32_t tokens, const float *x, const float *norm,
                                 float eps, uint32_t hidden, void *out, enum dtype out_dtype, uint32_t flags,
                                 void *stream, struct helm_err *err);
/* out[t] = (x[t] + rmsnorm(y[t]) * norm) * *factor, dense rows of fp32 of `width`; out may be x. y is `in`,
 * or, with `other`, the sum rmsnorm(in[t]) * in_norm + rmsnorm(other[t]) * other_norm. factor NULL: 1. x
 * NULL: out[t] = rmsnorm(in[t]) * norm, or in[t] where norm is NULL, times 1 + growth * log(1 +
 * floor(position[t] / growth_context)) where growth is not 0; rows are `stride` apart (0: width), and out may
 * be in. */
struct gpuk_add_normed {
    const float *in, *in_norm, *other, *other_norm, *norm, *x, *factor;
    float eps;
    uint32_t width, stride;
    const uint32_t *position;
    float growth;
    uint32_t growth_context;
    float *out;
};
HELM_MUST_CHECK int gpuk_add_normed(const struct gpuk_add_normed *args, const uint32_t *count,
                                    uint32_t tokens, uint32_t flags, void *stream, struct helm_err *err);
/* For each token t and layer l < layers, with row x[0 .. width) at x + t * stride + l * width: x =
 * (rmsnorm(in_scale * x) * norm + table_scale * table[token_id[t]][l * width ..]) * out_scale. The table, of
 * a format whose rows are of one size, may lie in mapped host memory: each number is read once. A token that
 * is none has NaNs. */
struct gpuk_per_layer {
    struct gpuk_step step;
    const void *table;
    enum tensor_format format;
    uint32_t vocab, layers, width, stride;
    const float *norm;
    float eps, in_scale, table_scale, out_scale;
    float *x;
};
HELM_MUST_CHECK int gpuk_per_layer(const struct gpuk_per_layer *args, uint32_t tokens, uint32_t flags,
                                   void *stream, struct helm_err *err);
/* x = cap * tanh(x / cap), dense rows of fp32. */
HELM_MUST_CHECK int gpuk_soft_cap(const uint32_t *count, uint32_t rows, float *x, uint32_t width, float cap,
                                  uint32_t flags, void *stream, struct helm_err *err);
/* out[i] = x[sample_token[i]] for the step's samples, at most `samples`. */
HELM_MUST_CHECK int gpuk_gather(const struct gpuk_step *step, uint32_t samples, const float *x,
                                uint32_t hidden, float *out, uint32_t flags, void *stream,
                                struct helm_err *err);
/* out = x for the first *count rows of `hidden` floats: from or to an activation lane in mapped memory. */
HELM_MUST_CHECK int gpuk_lane_copy(const uint32_t *count, uint32_t tokens, const float *x, uint32_t hidden,
                                   float *out, uint32_t flags, void *stream, struct helm_err *err);
/* out[t * out_stride + i] = glu(gate, up) for i < n, where gate = in[t * stride + i] and up = in[t * stride
 * + up_at + i]; 16-bit or fp32. */
HELM_MUST_CHECK int gpuk_swiglu(const uint32_t *count, uint32_t tokens, const void *in, enum dtype in_dtype,
                                enum glu_kind glu, uint32_t stride, uint32_t up_at, uint32_t n, void *out,
                                enum dtype out_dtype, uint32_t out_stride, uint32_t flags, void *stream,
                                struct helm_err *err);

/* table[t][0 .. half) = cos, [half .. 2 half) = sin of (float)position * inv_freq[i], times scale; half =
 * head_dim / 2, of the numbers of a head that turn. Once a step; every layer reads it. */
HELM_MUST_CHECK int gpuk_rope_table(const struct gpuk_step *step, uint32_t tokens, const float *inv_freq,
                                    uint32_t head_dim, float scale, float *table, uint32_t flags,
                                    void *stream, struct helm_err *err);

/* Weights of a format that is not plain to those of its product dtype: as the registry reads them, rounded.
 * format, weight, offset and rows: as in struct gpuk_linear. out: [rows][cols] dense, 16-byte aligned. Bytes
 * are trusted: they must be what the format's write wrote. */
struct gpuk_expand_part {
    enum tensor_format format; /* the same in all parts */
    const void *weight;
    const uint32_t *offset;
    void *out;
    uint32_t rows, cols;
};
#define GPUK_EXPAND_PARTS_MAX 4
/* One launch for up to GPUK_EXPAND_PARTS_MAX parts, in small blocks without shared memory, so that it runs
 * beside others. blocks: the most that it takes; 0: the number that is fastest when nothing else runs. A
 * launch just after it in the stream that reads `out` as its weights must not have GPUK_EARLY (it would fetch
 * them too soon). */
HELM_MUST_CHECK int gpuk_expand(const struct gpuk_device *device, const struct gpuk_expand_part *part,
                                uint32_t parts, uint32_t blocks, void *stream, struct helm_err *err);

/* The order in which decode attention adds a token's positions up: each has what those above it have. */
enum gpuk_order {
    GPUK_ORDER_TOGETHER, /* a context is cut by how many tokens there are */
    /* A token's context is cut as if it was the only one, so that its sums do not depend on others; and not
     * `fused`, k and v, where there are any, are still those that gpuk_rope_append took: it has the bits of
     * one token, fused. */
    GPUK_ORDER_ALONE,
    GPUK_ORDER_CHAINED_NEAR, /* tokens at positions below GPU_APART_POSITION have the bits of attention in a
                                chain (chains.h) */
    GPUK_ORDER_CHAINED,      /* all have */
    GPUK_ORDER_SPREAD /* one token, fused, of a short context: a block a head and piece; no other has its bits
                       */
};
/* Attention of one layer. Shapes come from kv.layout. */
struct gpuk_attention {
    struct gpuk_step step;
    struct gpuk_kv kv;
    uint32_t heads;
    uint32_t window;              /* 0 = full */
    float scale;                  /* 1 / sqrt(head_dim) */
    const float *sinks;           /* [heads]: a score of no position that joins each head's sum; or NULL */
    const float *q_norm, *k_norm; /* [head_dim], of latent attention k's [latent]; or NULL */
    bool v_normed;                /* each head of v has an RMS norm without a weight */
    float eps;
    const float *rope_table; /* [token][rope_dims] */
    uint32_t rope_dims; /* numbers of a head that turn, the first ones from kv.layout.latent on; 0: all */
    /* fp32, gate[token * gate_stride + head * head_dim + d]: its sigmoid multiplies the output, but not
     * partial results; NULL: there is none */
    const float *gate;
    uint32_t gate_stride;
    /* fp32, q[token * q_stride + head * head_dim + d], k and v likewise. k and v NULL: the tokens' cells are
     * in the cache already, as another layer or, of latents, gpuk_rope_append left them; nothing is appended;
     * neither `fused` nor in a chain's order. Decode of latents takes no others */
    const float *q, *k, *v;
    uint32_t q_stride, kv_stride;
    enum gpuk_order order; /* decode's */
};
/* Whether decode attention takes the tokens' own cells from k and v, and not from the cache. */
KV_INLINE bool gpuk_own_cells(const struct gpuk_attention *a, bool fused)
{
    return fused || (a->order >= GPUK_ORDER_ALONE && a->k);
}
KV_INLINE uint32_t gpuk_rope_dims(const struct gpuk_attention *a)
{
    return a->rope_dims ? a->rope_dims : a->kv.layout.head_dim;
}
/* Norms and rotates q and k, appends k and v to the pages, and writes q (normed and rotated) to q_out, dense
 * [token][heads][head_dim], of q_dtype; q_out may be args->q when q_dtype is f32 and q_stride is dense. */
HELM_MUST_CHECK int gpuk_rope_append(const struct gpuk_attention *args, uint32_t tokens, void *q_out,
                                     enum dtype q_dtype, uint32_t flags, void *stream, struct helm_err *err);

/* Decode attention, out[token][head][head_dim] fp32 dense. Each token attends to its sequence's positions 0
 * .. position (the last `window` of them), all in the cache; the context is cut into up to GPUK_SPLITS_MAX
 * pieces that are merged in fixed order by the last block to finish. fused: one token (tokens == 1), args->q,
 * k, v as the linear layers left them; norm, rotation and append are done here. Otherwise args->q is what
 * gpuk_rope_append wrote as f32. partial_m, partial_s [token][head]: if given, out is not divided by the sum,
 * and maximum (of scaled scores) and sum are stored, without sinks: for merging with pages elsewhere. A head
 * that saw nothing: -inf, 0, and out 0. The workspace's first gpuk_attention_counter_bytes bytes must be zero
 * before the first launch; launches leave them zero. */
size_t gpuk_attention_counter_bytes(uint32_t tokens, uint32_t heads);
size_t gpuk_attention_workspace_bytes(uint32_t tokens, uint32_t heads, uint32_t head_dim);
HELM_MUST_CHECK int gpuk_attention_decode(const struct gpuk_device *device, const struct gpuk_attention *args,
                                          uint32_t tokens, bool fused, float *out, float *partial_m,
                                          float *partial_s, void *workspace, uint32_t flags, void *stream,
                                          struct helm_err *err);
/* Merges what decode attention left as partial results with those of positions elsewhere: of the first *count
 * tokens each head's (m, s, o) with `other`'s, [token][head]{m, s, o[head_dim]}, which may be mapped host
 * memory (thesis 4.18 to 4.20). out: as attention writes it, may be `o`; with `sinks` ([heads] or NULL) in
 * the sums, once. A head that saw nothing on either side: 0. */
struct gpuk_merge {
    const float *o, *m, *s, *other, *sinks;
    const float *gate; /* as attention has it */
    uint32_t gate_stride;
    uint32_t heads, head_dim;
    float *out;
};
HELM_MUST_CHECK int gpuk_attention_merge(const struct gpuk_merge *merge, const uint32_t *count,
                                         uint32_t tokens, uint32_t flags, void *stream, struct helm_err *err);

/* A part of prefill attention: the pages in front of a row's tokens that come in pieces, a launch each, and
 * one more for all positions after them. A launch goes on where the one before it stopped, with its numbers
 * as they were, so parts give the bits of one launch over all. Pieces are numbered consecutively through all
 * rows. */
struct gpuk_part {
    const uint32_t
        *before; /* [rows + 1] pages in pieces in front of a row's, whole GPU_PREFILL_TILEs; NULL: no parts */
    uint32_t pages;   /* of a piece, whole tiles too */
    uint32_t piece;   /* or GPUK_PART_LAST, which writes `out` */
    float *o, *state; /* between launches: [token][head][head_dim], [token][head][GPU_PART_FLOATS] */
};
#define GPUK_PART_LAST UINT32_MAX
/* The positions [from, to) of a row that a launch attends to; pages before `from` have been. */
KV_INLINE void gpuk_part_span(const struct gpuk_part *part, uint32_t row, uint32_t page_tokens,
                              uint32_t *from, uint32_t *to)
{
    const uint32_t before = part->before ? part->before[row] : 0,
                   pages = part->before ? part->before[row + 1] - before : 0;
    *from = pages * page_tokens;
    *to = UINT32_MAX;
    if (!part->before || part->piece == GPUK_PART_LAST) return;
    const uint32_t first = part->piece * part->pages, end = first + part->pages;
    const uint32_t skipped = first > before ? first - before : 0, there = end > before ? end - before : 0;
    *from = (skipped < pages ? skipped : pages) * page_tokens;
    *to = (there < pages ? there : pages) * page_tokens;
}

/* Prefill attention: many tokens a sequence, several sequences, over everything in the cache before and in
 * this step, or a part of it, causal and windowed; never tokens x tokens in memory. */
struct gpuk_prefill {
    struct gpuk_attention args;
    const void *q; /* as gpuk_rope_append wrote it, of the cache's kv_query_dtype */
    void *out;     /* [token][heads * head_dim] of out_dtype */
    enum dtype out_dtype;
    uint32_t rows; /* capacity of the step's */
    struct gpuk_part part;
    /* GPUK_MATMUL_WORKSPACE bytes: a sequence's positions may be cut into ranges that are attended to side by
     * side, as many as the tokens of the launch leave multiprocessors idle for. NULL, and in parts: sums have
     * one order, whatever tokens there are. */
    void *workspace;
};
HELM_MUST_CHECK int gpuk_attention_prefill(const struct gpuk_device *device,
                                           const struct gpuk_prefill *prefill, uint32_t tokens,
                                           uint32_t flags, void *stream, struct helm_err *err);

/* Index of the largest finite logit of each of `rows` rows, lowest id on a tie; GPUK_TOKEN_NONE when none is
 * finite. Only the first *count rows are done. `result` may be mapped host memory. Workspace as in attention:
 * its counters (gpuk_argmax_counter_bytes) start as zero. */
struct gpuk_token {
    uint32_t id;
    float logit;
};
size_t gpuk_argmax_counter_bytes(uint32_t rows);
size_t gpuk_argmax_workspace_bytes(uint32_t rows);
/* The arrays of a step block, by row, that turn it into the block of the same rows one token further. */
struct gpuk_next {
    uint32_t *token_id, *position;
};
/* next: each row's result becomes its token, and its position is one further; NULL: left alone. (An id that
 * is none has an embedding of NaN.) */
HELM_MUST_CHECK int gpuk_argmax(const uint32_t *count, uint32_t rows, const float *logits, uint32_t vocab,
                                struct gpuk_token *result, const struct gpuk_next *next, void *workspace,
                                uint32_t flags, void *stream, struct helm_err *err);
/* Prefill's matrix products, through cuBLASLt: out[t][r] = sum_c x[t][c] * w[r][c] (+ out[t][r] when
 * accumulate, + bias[r] through gpuk_add_bias). Row-major; x of w's dtype; out f32 or the weights' dtype. A
 * plan is made once per shape (it asks for the algorithm) and run any number of times, also under capture. */
struct gpuk_matmul; /* opaque: handle and plans' cache */
struct gpuk_matmul_plan;
/* Loads the library. HELM_E_DEVICE where it cannot be; what is loaded stays until the process ends. */
HELM_MUST_CHECK int gpuk_matmul_load(struct helm_err *err);
HELM_MUST_CHECK int gpuk_matmul_open(struct gpuk_matmul **matmul, struct helm_err *err);
void gpuk_matmul_close(struct gpuk_matmul *matmul); /* frees its plans too */
/* Plans asked for from now on are of one algorithm for all multiples of GPU_STEADY_TOKENS up to `most`
 * tokens, and of no other numbers; each sum is in one piece, whatever row it is of. So a token's products do
 * not depend on its place nor on the number of others. 0: as usually, the library chooses for each number,
 * and may cut long sums as it likes. */
void gpuk_matmul_steady(struct gpuk_matmul *matmul, uint32_t most);
#define GPUK_MATMUL_WORKSPACE ((size_t)GPU_MATMUL_WORKSPACE)
HELM_MUST_CHECK int gpuk_matmul_plan(struct gpuk_matmul *matmul, enum dtype dtype, enum dtype out_dtype,
                                     uint32_t tokens, uint32_t rows, uint32_t cols, uint32_t out_stride,
                                     bool accumulate, const struct gpuk_matmul_plan **plan,
                                     struct helm_err *err);
HELM_MUST_CHECK int gpuk_matmul_run(const struct gpuk_matmul_plan *plan, const void *w, const void *x,
                                    void *out, void *workspace, void *stream, struct helm_err *err);
/* The same with blocks as they lie, of bf16 x and as many tokens at most, where the device takes them
 * (GPUK_SHORT, GPUK_WIDE): reading the weights once takes less than expanding them. `counters`:
 * GPUK_LINEAR_COUNTER_BYTES, zero before the first launch; launches leave them zero. The workspace is as
 * large as that of gpuk_matmul_run. */
#define GPUK_BLOCKS_TOKENS GPU_SHORT_TOKENS
#define GPUK_WIDE_TOKENS   GPU_WIDE_TOKENS
struct gpuk_blocks_product {
    enum tensor_format format;
    enum dtype dtype, out_dtype; /* of x; of out: f32 or bf16 */
    uint32_t rows, cols, out_stride;
    bool accumulate;
    const void *weight, *x;
    void *out;
};
bool gpuk_blocks_takes(const struct gpuk_device *device, const struct gpuk_blocks_product *product,
                       uint32_t tokens);
HELM_MUST_CHECK int gpuk_blocks_run(const struct gpuk_device *device,
                                    const struct gpuk_blocks_product *product, uint32_t tokens,
                                    void *workspace, uint32_t *counters, void *stream, struct helm_err *err);
/* Those of GPUK_WIDE, which also take fewer tokens and up to GPU_SUB_TOKENS: for tests and benchmarks. */
bool gpuk_wide_takes(const struct gpuk_device *device, const struct gpuk_blocks_product *product,
                     uint32_t tokens);
HELM_MUST_CHECK int gpuk_wide_run(const struct gpuk_device *device, const struct gpuk_blocks_product *product,
                                  uint32_t tokens, void *workspace, uint32_t *counters, void *stream,
                                  struct helm_err *err);
/* out[t * stride + r] += bias[r], fp32 or 16-bit. */
HELM_MUST_CHECK int gpuk_add_bias(const uint32_t *count, uint32_t tokens, void *out, enum dtype dtype,
                                  uint32_t stride, uint32_t rows, const float *bias, uint32_t flags,
                                  void *stream, struct helm_err *err);

#ifdef __cplusplus
}
#endif
