/* Products with matrices of weights: kernels by format and schedule, chosen at run time from one binary.
 *
 * A *decoder* is how a format's blocks become numbers, a *schedule* how the work of a product is laid out.
 * One token's kernel reads the format as it lies. The kernels of several tokens multiply rows of single
 * numbers; matrices of other formats are decoded to such rows, a few at a time. So a format has a kernel of
 * one token and, unless it is single numbers, one that decodes: its decoder in the schedules of gemv_simd.h
 * and gemv_chunks.h, or a file of its own (bf16_packed_avx512vbmi2.c). Its rows stand in the table of
 * linear.c.
 *
 * Called by worker-cpu/program (through the choice made at start, kernel_set.h), by tests/kernels (which walk
 * the table, so that an untested kernel cannot be chosen), by the emulated GPU and by the kernel benchmark.
 *
 * Blocks have a second set of kernels, whose activations are rounded to numbers of 8 bits (linear_inputs.h;
 * int8_ref.c defines the arithmetic): of one token, whose x `order` rounds, and of several, whose x `tile`
 * rounds. They multiply blocks as they lie; none of them decodes. Kernels are pure: they own nothing,
 * allocate nothing, and touch only their arguments. They trust the weights, which loading has checked.
 * Accumulation is fp32. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/cpu.h"
#include "common/base/err.h"
#include "common/formats/linear_inputs.h"
#include "common/formats/tensor_format.h"

/* How a gemv reads ahead. Changes no result. */
struct gemv_reads {
    /* rows that this thread reads next, in streams next_stride bytes apart; NULL: not known */
    const void *next;
    size_t next_stride;
    uint32_t near,
        far; /* bytes ahead of each stream's position that are fetched into L1 and into L2; far 0: not */
};
#define GEMV_NEAR 2048
#define GEMV_FAR  8192
/* Chooses the reads that usually suit this processor; worker-cpu/program/execute.h tries them out. */
struct gemv_reads gemv_reads_choose(void);

/* y[r] = sum_c w[r][c] * x[c], r in [0, rows). Activations fp32 throughout: a decode step rounds nothing. The
 * rows of a variable format are one group. `reads` NULL: 2 KiB near, nothing else. */
typedef void gemv_fn(float *y, const void *w, const float *x, size_t rows, size_t cols,
                     const struct gemv_reads *reads);
/* A few tokens, y[t * ldy + r] = sum_c w[r][c] * x[t * ldx + c]: each token's bits are those of the gemv
 * beside it. The rows of a variable format are one group. */
typedef void gemv_few_fn(float *y, size_t ldy, const void *w, const float *x, size_t ldx, size_t rows,
                         size_t cols, size_t tokens);
/* x[cols] to `to` (64-byte aligned, of as many bytes as the other says) as a gemv reads its input. */
typedef void gemv_order_fn(float *to, const float *x, size_t cols);
typedef size_t gemv_ordered_bytes_fn(size_t cols);
/* The x of a few tokens, ldx floats apart, to `to` as a few reads them where that is not what the other makes
 * of each. */
typedef void gemv_order_few_fn(void *to, const float *x, size_t ldx, size_t tokens, size_t cols);
typedef size_t gemv_ordered_few_bytes_fn(size_t tokens, size_t cols);

/* Several tokens: x is first *tiled* (rounded to bf16, blocked: the kernel's own layout) by every thread for
 * its share of tokens, then each thread multiplies its share of rows. tile: tokens [first, last), columns
 * [col_first, col_last), which begin at x, row stride ldx floats, into `tiled`; ranges are multiples of
 * tile_tokens and tile_cols except the last. Zero-fills its own padding. gemm: y[t * ldy + r] (+)= sum_c
 * w[r][c] * x[t][c] for t < tokens, r < rows. `scratch` is the calling thread's own, scratch_bytes large,
 * 64-byte aligned. */
typedef size_t gemm_tiled_bytes_fn(size_t tokens, size_t cols);
typedef void gemm_tile_fn(void *tiled, const float *x, size_t ldx, size_t tokens, size_t cols, size_t first,
                          size_t last, size_t col_first, size_t col_last);
typedef void gemm_fn(float *y, size_t ldy, const void *w, const void *tiled, size_t rows, size_t cols,
                     size_t tokens, bool accumulate, void *scratch);
/* Both products of a gated MLP and their joining, silu(gate) * up, to the input of the product after it: the
 * bits of two gemm, a vector kernel's swiglu and a tile. */
struct gemm_joined {
    const void *gate, *up, *tiled; /* `rows` rows of `cols` columns each; their input, of `tokens` tokens */
    size_t rows, cols, tokens;
    void *out; /* tiled, of out_cols columns: those from out_first on, multiples of tile_cols, as are rows and
                  out_cols */
    size_t out_cols, out_first;
    void *scratch;
};
typedef void gemm_join_fn(const struct gemm_joined *joined);

/* Rows as single numbers of the kernel's type: values[rows][cols], 64-byte aligned. The rows of a variable
 * format are one group. */
typedef void decode_fn(void *values, const void *w, size_t rows, size_t cols);

enum linear_schedule { LINEAR_ONE_TOKEN, LINEAR_TOKENS, LINEAR_DECODE };

struct linear_kernel {
    const char *name;  /* "avx512-bf16" */
    unsigned features; /* enum cpu_feature bits it needs */
    unsigned beaten;   /* on processors with these what would be chosen without it is faster; 0: on none */
    enum linear_inputs inputs;
    enum tensor_format
        format; /* any rows, cols >= 1 that the format takes; only element alignment is asked */
    enum linear_schedule schedule;
    /* ONE_TOKEN */
    gemv_fn *gemv;
    gemv_few_fn *few; /* NULL: token by token with gemv is what there is */
    /* Up to this many tokens `few` is faster than the kernels of several, which unpack blocks to rows or
     * tiles first (measured by helm-bench-kernels --few: docs/same-tokens.md); 0: from two on those are. */
    uint32_t apart;
    size_t streams;  /* rows it reads side by side, each an equal run of a call's rows: which should be a
                             multiple of it */
    bool neighbours; /* contiguous rows instead, of each tile of so many */
    size_t col_unit; /* it takes only columns of a multiple of this; 0: any */
    gemv_order_fn
        *order; /* applied to its input first, once for all its rows; NULL: the input is read as it is */
    gemv_ordered_bytes_fn *ordered_bytes;
    gemv_order_few_fn *order_few; /* NULL: a few tokens' inputs are each as one's, ldx apart */
    gemv_ordered_few_bytes_fn *ordered_few_bytes;
    /* TOKENS. A token's bits from one kernel are the same however many threads share the rows. */
    bool exact_input;              /* EXACT: activations stay fp32 (golden tolerance class "float32") */
    size_t tile_tokens, tile_cols; /* granules of tile ranges */
    size_t
        row_granule; /* rows a gemm's share should be a multiple of; ONE_TOKEN: a few's share, 0: `streams` */
    size_t call_rows; /* rows that many tokens' input is read from far away for, once: as many as a call
                         should have */
    gemm_tiled_bytes_fn *tiled_bytes;
    gemm_tile_fn *tile;
    gemm_fn *gemm;
    gemm_join_fn *join;                 /* to what `tile` makes; NULL: there is none */
    size_t join_tokens, join_rows;      /* from so many tokens on; rows that a call should have */
    const struct linear_kernel *steady; /* one that gives a token the same bits however many are multiplied;
                                           NULL: this does, but for: */
    bool unsteady;                      /* nothing is known of its order */
    size_t (*scratch_bytes)(size_t cols, size_t tokens);
    void (*thread_begin)(
        void); /* per step and thread, before the first gemm (AMX tile configuration); may be NULL */
    void (*thread_end)(void);
    /* DECODE */
    decode_fn *decode;
    enum tensor_format
        rows; /* the decoded type: single numbers, rounded where bf16 is less than the values are,
                                which only kernels do whose products of bf16 round activations too */
};

/* All kernels of all formats compiled in, whatever this processor has; of a format, schedule and inputs
 * slowest first, the plain reference before all. */
const struct linear_kernel *const *linear_kernels(size_t *count);
/* Whether there is one; name NULL: of any name. */
bool linear_has(enum tensor_format format, enum linear_schedule schedule, enum linear_inputs inputs,
                const char *name);
/* The fastest that `features` allows, or the one called `name` (NULL: automatic). Errors name what is
 * missing. The reference of a format that is made of another is chosen by name only: where nothing is faster
 * than it, that other is better computed with. So is that of INT8: EXACT is faster than it. */
HELM_MUST_CHECK int linear_choose(enum tensor_format format, enum linear_schedule schedule,
                                  enum linear_inputs inputs, unsigned features, const char *name,
                                  const struct linear_kernel **kernel, struct helm_err *err);
/* Whether the processor has the features that the choice for one token needs where it is not to be the
 * reference: for the planner, which links no kernels. */
static inline bool linear_pays(enum tensor_format format, unsigned features)
{
    static const unsigned needs[FORMAT_COUNT] = {[FORMAT_BF16_PACKED] = CPU_AVX512 | CPU_AVX512_VBMI2};
    return !(needs[format] & ~features);
}
/* Whether a format has kernels of INT8 on such a processor, so that its set for INT8 is not the one for
 * EXACT. For the planner, as above. */
static inline bool linear_has_int8(enum tensor_format format, unsigned features)
{
    return format >= FORMAT_Q8_0 && features & CPU_AVX2;
}

/* The inputs of a few tokens for `few` of a kernel that has an order: their bytes, and themselves, `to`
 * 64-byte aligned; returns their distance in floats, 0 where they have none of their own. */
size_t linear_ordered_few_bytes(const struct linear_kernel *kernel, size_t tokens, size_t cols);
size_t linear_order_few(const struct linear_kernel *kernel, void *to, const float *x, size_t ldx,
                        size_t tokens, size_t cols);
/* Bytes from where a one-token kernel begins one of its streams to where it begins the next, in `rows` rows
 * of row_bytes. */
static inline size_t linear_stream_bytes(const struct linear_kernel *kernel, size_t rows, size_t row_bytes)
{
    return kernel->neighbours ? row_bytes : rows / kernel->streams * row_bytes;
}

/* The kernels of a format; NULL: this processor has none. */
struct linear_set {
    const struct linear_kernel *one;    /* one token */
    const struct linear_kernel *tokens; /* several, over the format's rows or over those decoded */
    const struct linear_kernel *decode; /* to what `tokens` multiplies; NULL where that is the format */
};
/* Chooses a format's kernels: those called `name` where there are such, else the fastest that `features`
 * allows. With several tokens the kernel that decodes decides which rows are multiplied. INT8: where a
 * schedule has such a kernel, else what EXACT has. */
HELM_MUST_CHECK int linear_choose_set(enum tensor_format format, enum linear_inputs inputs, unsigned features,
                                      const char *name, struct linear_set *set, struct helm_err *err);
