/* Operations: what the workers' programs consist of, and which of them the model's arithmetic becomes.
 *
 * A program is a flat list of operations. program_ops_of says which ones an operation of the model (struct
 * math_op, common/model/unit.h) becomes on a kind of processor for a number of tokens: both workers'
 * lowerings follow it, and the planner prices it. Other entries of a program (hand-overs, copies of streamed
 * weights, events) are the worker's own. Constant tables and pure functions; no state.
 *
 *               one token            few tokens                     a chunk
 *   CPU LINEAR  NORM?, LINEAR        NORM, LINEAR                   NORM, LINEAR
 *    of gates   LINEAR               LINEAR                         LINEAR (gates joined with ups come ready
 *                                                                   for it)
 *   GPU LINEAR  GEMV, SWIGLU?        GEMM_SMALL, SWIGLU?            NORM?, MATMUL, a BIAS each, SWIGLU?
 *                                    (few: the per-layer gate's)
 *   CPU ATTEND  ROPE_APPEND, ATTEND  ROPE_APPEND, ATTEND            ROPE_APPEND, ATTEND
 *   GPU ATTEND  ROPE_APPEND?,        ROPE_APPEND, ATTEND_DECODE     ROPE_APPEND, ATTEND_PREFILL
 *               ATTEND_DECODE        (one: to another layer's cache)
 *    assisted   ROPE_APPEND, KV_QUERY, ATTEND_DECODE, ATTEND_MERGE
 *               (one or few tokens; by the CPU: ATTEND_HOST)
 *   CPU ROUTE    NORM, LINEAR, ROUTE     as one                     as one
 *   CPU experts  NORM?, EXPERTS_GLU      as one                     as one (a norm of their own)
 *                EXPERTS_DOWN            EXPERTS_DOWN, EXPERTS_SUM  EXPERTS_DOWN, EXPERTS_SUM
 *   GPU ROUTE    GEMV, ROUTE?            GEMM_SMALL, ROUTE?         LOGITS, ROUTE, EXPERTS_GROUP
 *                                        (few: a scale of each expert)
 *   GPU experts  EXPERTS_GLU             EXPERTS_GLU                NORM, EXPERTS_GLU
 *                EXPERTS_DOWN            EXPERTS_DOWN               EXPERTS_DOWN, EXPERTS_SUM
 *   both WEIGH   WEIGH                   WEIGH                      WEIGH
 *   both ADD_NORMED  ADD_NORMED          ADD_NORMED                 ADD_NORMED
 *   both RUNNING_MEAN  RUNNING_MEAN      RUNNING_MEAN               RUNNING_MEAN
 *   both DELTA   CONVOLVE, DELTA         as one                     as one
 *   both PER_LAYER  PER_LAYER            PER_LAYER                  PER_LAYER
 *   both JOIN    JOIN                    JOIN                       JOIN
 *    CPU gated   GATE after ATTEND       as one                     as one (a GPU's ATTEND does it)
 *    mixed       EXPERTS_ASK after ROUTE's, before any group; EXPERTS_ADD after DOWN's (by the CPU:
 *                EXPERTS_TAKE and its own)
 *   CPU head    NORM, LINEAR, SAMPLE (each with any number of sampled rows)
 *   GPU head    GEMV, SOFT_CAP?, ARGMAX  GATHER, GEMM_SMALL, SOFT_CAP?, ARGMAX  as few
 *
 * To add an operation: a kind and its row here; its arguments (struct op) and its run in each device of a
 * worker; its lowering. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "common/formats/tensor_format.h"
#include "common/model/unit.h"

enum processor_kind { PROCESSOR_CPU, PROCESSOR_GPU, PROCESSOR_KINDS };

/* Sizes of step that programs differ by; of the head: sizes by sampled rows. */
enum op_tier { OP_TIER_ONE, OP_TIER_FEW, OP_TIER_CHUNK, OP_TIER_COUNT };

enum op_kind {
    /* of both workers */
    OP_EMBED, /* x[t] = embedding of token t */
    OP_NORM,  /* out[t] = rmsnorm(x[t]) * norm; on the CPU also puts it into the order that LINEAR takes */
    OP_ROPE_APPEND,  /* norm and rotation of the heads of q and k; k and v go into the cache */
    OP_ROUTE,        /* the experts that a token's logits choose, and their weights */
    OP_EXPERTS_GLU,  /* of each chosen expert glu(gate, up); on the GPU of one and few tokens also the choice
                      */
    OP_EXPERTS_DOWN, /* of each chosen expert down: of one token (GPU: of few) summed by weight into x */
    OP_EXPERTS_SUM,  /* those of several tokens, likewise */
    OP_ADD_NORMED, /* x[t] += rmsnorm(in[t]) * norm, or of two normed inputs' sum, times a factor, if there is
                      one; or in place */
    OP_PER_LAYER,  /* out[t] of each layer: the norm of a part of in[t], plus a part of token t's row of a
                      table */
    OP_WEIGH, /* the shared expert's activations times its weight: sigmoid of a product with the normed x */
    OP_RUNNING_MEAN, /* out[t] = the mean of all inputs of the sequence up to t, whose sum is its state */
    OP_CONVOLVE,     /* q, k and v of a gated delta net by the sequence's last columns, which are its state */
    OP_DELTA,        /* the gated delta rule of each v head, whose matrix is its state; normed and gated */
    OP_JOIN, /* of drafts: out[t] = the normed embedding of the next token, then the normed hidden state */
    OP_LINEAR_HEADS, /* a product of each head's part of the input with rows of its own */
    OP_LANE_READ,    /* x = what the other worker put into the lane */
    OP_LANE_WRITE,
    /* of the CPU */
    OP_LINEAR,
    OP_ATTEND,
    OP_GATE,         /* attention's output times the sigmoid of its gate */
    OP_SAMPLE,       /* a token from each row of logits */
    OP_EXPERTS_TAKE, /* of experts at home in both memories: x and what the GPU asks for, normed */
    OP_ATTEND_HOST,  /* of a layer whose cache is the GPU's: takes its queries, and answers with what comes of
                        the positions that lie in the arena alone (arena_layout.h, STEP_KV_ASSISTED) */
    /* of the GPU */
    OP_COPY_BLOCK, /* the step block, from pinned memory: by the copy engine, */
    OP_READ_BLOCK, /* or by a kernel, where that engine may be busy with a slice */
    OP_ROPE_TABLE, /* cos and sin of the step's positions */
    OP_GEMV,       /* LINEAR of one token, with norm, bias, residual, swiglu */
    OP_GEMM_SMALL, /* the same of up to 16 */
    OP_MATMUL,
    OP_LOGITS, /* a router's of any number of tokens, norm included: as GEMM_SMALL, not as MATMUL rounds them
                */
    /* of experts in both memories: chooses (not of a chunk), says which processor computes which, asks the
     * CPU */
    OP_EXPERTS_ASK,
    OP_EXPERTS_ADD,   /* adds what the CPU answers */
    OP_EXPERTS_GROUP, /* tokens and their choices by expert */
    OP_ADD_BIAS,
    OP_SWIGLU,
    OP_ATTEND_DECODE,
    OP_ATTEND_PREFILL,
    OP_GATHER,   /* the rows of x that are sampled */
    OP_SOFT_CAP, /* logits = cap * tanh(logits / cap) */
    OP_ARGMAX,
    OP_FEW,          /* the candidates of a draw */
    OP_CHAIN,        /* the operations after it as one kernel */
    OP_EXPAND,       /* a slice of packed weights to plain ones */
    OP_STREAM_COPY,  /* a slice into the ring; records its arrival */
    OP_KV_IN,        /* a borrowed layer's pages with the cells of earlier steps; records its arrival */
    OP_KV_OUT,       /* those it appended to; records that they are back */
    OP_KV_QUERY,     /* two tiers: the tokens' q for the CPU, into the kv lane; */
    OP_ATTEND_MERGE, /* and the CPU's answer merged with the GPU's own part */
    OP_KV_STORE, /* a layer's cells of the pages that a chunk has filled to the arena; records that they are
                    there */
    OP_KV_FETCH, /* pages of the arena to places in VRAM, beside the step */
    OP_WORD_WAIT,
    OP_WORD_WRITE,
    OP_RECORD, /* an event */
    OP_FOLLOW,
    OP_KIND_COUNT
};

/* The queue that runs it. */
enum op_queue {
    OP_QUEUE_COMPUTE,
    OP_QUEUE_LINK, /* copies, beside the former */
    OP_QUEUE_EITHER
};

struct op_traits {
    const char *name; /* in printed programs */
    enum op_queue queue;
    /* By tier: it has a beginning and an end that cost time beside its bytes. On the CPU a meeting of the
     * threads (one token's norm and choice are done by the thread that goes on), on the GPU a kernel. */
    bool counts[OP_TIER_COUNT];
    bool launch; /* one of the GPU's launchers, after which another may begin early */
    bool outer;  /* touches what others write or wait for, outside its program: lanes, words, ring, events */
};

/* `kind` < OP_KIND_COUNT. */
const struct op_traits *op_traits_of(enum op_kind kind);
const char *op_name(enum op_kind kind);

#define PROGRAM_OPS_MAX (3 + MATH_WEIGHTS_MAX)
/* The operations that `math` becomes, in order: kinds[], and their number. */
uint32_t program_ops_of(const struct math_op *math, enum processor_kind processor, enum op_tier tier,
                        enum op_kind kinds[PROGRAM_OPS_MAX]);
/* The operations on the GPU for attention of a layer of which the CPU attends to a part. */
uint32_t program_ops_assisted(enum op_kind kinds[PROGRAM_OPS_MAX]);
/* The operations of a mixture whose experts lie in both memories; the CPU's router is the GPU's, and what is
 * no choice and no expert's is the GPU's alone. */
uint32_t program_ops_mixed(const struct math_op *math, enum processor_kind processor, enum op_tier tier,
                           enum op_kind kinds[PROGRAM_OPS_MAX]);
/* The operations with which a step begins on a processor that computes layers. */
uint32_t program_ops_first(enum processor_kind processor, enum op_kind kinds[PROGRAM_OPS_MAX]);
/* A GPU multiplies by an operation's weights of one format together, as a run. Returns the index after the
 * last of the run from `first` on. Weights that are used in pairs are always one run. Each run becomes
 * operations of its own. (A CPU's LINEAR takes all weights, whatever their formats.) */
uint32_t program_run_end(const struct math_op *math, const enum tensor_format format[MATH_WEIGHTS_MAX],
                         uint32_t first);

/* How many of program_ops_of count in this tier; of all operations of a part. */
uint32_t program_ops_count(const struct math_op *math, enum processor_kind processor, enum op_tier tier);
uint32_t program_part_count(const struct math_part *part, enum processor_kind processor, enum op_tier tier);
