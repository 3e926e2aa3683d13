/* A program: the model's arithmetic lowered to a flat list of fused kernel calls with resolved addresses.
 *
 * program_lower turns a model graph and this worker's half layers in one phase of the plan into one list per
 * token tier (1 token; 2 to 16; a chunk), of decode another one for steps in which the CPU attends to a part
 * of the GPU's cache (STEP_KV_ASSISTED); there is one more per head (one sampled row; several). The token
 * loop (step.c, execute.c) walks a list and decides nothing: fusion, order, the size of pieces and how
 * threads share them are settled here. A half layer's entries are the same wherever the halves beside it are
 * computed. Called by engine.c at load and by --print-program. Owns its entries; addresses point into
 * weights, arena and activations, which outlive it. */
#pragma once

#include <stdio.h>

#include "common/cpu/kernels/kernel_set.h"
#include "common/plan/workspace.h"
#include "common/program/op.h"
#include "worker-cpu/disk/disk.h"
#include "worker-cpu/weights/weights.h"

#define PROGRAM_SEGMENTS_MAX 4    /* q, its gate, k, v */
#define PROGRAM_ROWS_MAX     1024 /* rows of one chunk: a thread's stack has room for their results */
#define PROGRAM_TILE_TOKENS  CPU_TILE_TOKENS

/* Tiled inputs of products: those that a NORM tiles, and gates joined with ups. */
enum program_tiled { TILED_NORM, TILED_JOINED, TILED_COUNT };

/* fp32, [tokens][width], private to the worker. */
struct activations {
    /* By enum model_buffer. X: unit or end tokens; H: unit tokens or sampled rows; LOGITS: [slots][vocab], in
     * the arena; all others: unit tokens, as are: */
    float *buffer[BUFFER_LOGITS + 1];
    float *cosine[MODEL_ROPES_MAX],
        *sine[MODEL_ROPES_MAX];        /* [unit_tokens][head_dim / 2], of as many numbers as turn */
    uint32_t width[BUFFER_LOGITS + 1]; /* floats a token, by enum model_buffer */
    /* One matrix input, tiled for the kernel of several tokens of that format; kernels that tile alike share
     * it. Gated products make theirs (TILED_JOINED) while they read another one. */
    void *tiled[TILED_COUNT][FORMAT_COUNT];
    void *memory; /* of all but logits */
    uint64_t bytes;
};

struct program_segment {
    struct tensor_matrix matrix;
    const struct linear_set *kernels; /* of its format */
    const char *const *place;         /* of experts on disk, [experts]: where each is; NULL: in `matrix` */
    uint32_t place_rows;              /* of each */
    const float *bias;                /* or NULL */
    float *out;
    uint32_t out_width;
    uint32_t row_first;    /* of the entry's rows, where this segment's begin */
    enum tensor_role role; /* for printing */
};

/* Vectors of a gated delta net, of all channels or heads; the order of its v heads. */
struct program_delta {
    const float *conv, *decay, *time_bias, *norm;
    enum head_order order;
};

struct program_entry {
    enum op_kind kind;
    bool sampled;                /* runs over the sampled rows, not over the tokens */
    bool residual;               /* LINEAR, sums of experts, ADD_NORMED: adds to out */
    bool gated;                  /* LINEAR: segments 0 and 1 are gate and up */
    enum activation activation;  /* LINEAR: of segment 0, times segment 1 if it is gated */
    bool layer_norm;             /* NORM: LayerNorm; else RMS */
    const float *norm_bias;      /* NORM: or NULL */
    bool v_is_k;                 /* ROPE_APPEND: v is k before its norm */
    bool v_normed;               /* ROPE_APPEND: by a norm without a weight */
    bool other_cache;            /* ROPE_APPEND: q alone, k and v are another layer's */
    uint32_t kv_heads, head_dim; /* ROPE_APPEND, ATTEND */
    uint32_t latent;             /* ROPE_APPEND: as in struct math_op */
    uint32_t head_in,
        head_out;   /* LINEAR_HEADS: numbers of a head in `in` and `out`; bound cuts a head's rows */
    float soft_cap; /* LINEAR: of its products; 0: none */
    /* LINEAR: times_width numbers a token, of which the first rows multiply what the activation gives; or
     * NULL */
    const float *times;
    uint32_t times_width;
    float in_scale, table_scale; /* PER_LAYER: of its input, of the table's rows; scale: of their sum */
    uint32_t rope, rope_dims;    /* ROPE_APPEND: which table; numbers of each head that turn */
    bool no_rope;                /* ROPE_APPEND: nothing turns */
    uint32_t position_first;     /* EMBED: row of `vector` that is position 0's */
    /* LINEAR of several tokens, gated: makes the next one's input at once; NULL: several kernels do */
    gemm_join_fn *join;
    enum program_tiled tiled; /* LINEAR of several tokens: which input is its own */
    /* LINEAR of several tokens: rows are decoded once for all tiles, of some segment at least */
    bool decoded;
    bool alone;          /* too little work to share */
    bool gather;         /* EMBED: the embedding is ours, and goes to `out` */
    uint32_t rotates;    /* EMBED: tables that a later ROPE_APPEND reads, as a set */
    bool last;           /* LANE_READ, ATTEND_HOST, EXPERTS_TAKE: the lane's last hand-over of a step */
    uint32_t ticket;     /* of what has a lane or answers */
    struct lane *lane;   /* LANE_READ, LANE_WRITE; ATTEND_HOST: of queries, EXPERTS_TAKE: of what is asked */
    struct lane *answer; /* ATTEND_HOST: of partial results; the last entry of asked experts: of their sum */
    int32_t layer;       /* of the model; -1 outside the layers */
    uint32_t unit;       /* whose operation it is; of no meaning outside the layers */
    uint32_t kv_layer;   /* of the layer group */
    bool in_window;      /* its cells lie in pages of windows */
    uint32_t window;
    /* ATTEND, ATTEND_HOST: of scores; EMBED: of rows, LINEAR: of products, PER_LAYER: of sums; 0: 1 */
    float scale;
    const float *sinks; /* ATTEND: of each head; or NULL */
    uint64_t state_at,
        snapshot_at; /* RUNNING_MEAN, CONVOLVE, DELTA: its state in a slot and in a snapshot (state.h) */
    struct program_delta delta; /* CONVOLVE, DELTA */
    uint32_t chunk;             /* of those that are not cut by rows: tokens of a chunk */
    uint32_t chunks;            /* LINEAR: row chunks, as many for each thread */
    uint32_t share;             /* LINEAR: threads it is shared by, 0: all */
    uint32_t *bound; /* LINEAR: [chunks + 1], chunk i is the entry's rows bound[i] .. bound[i + 1]; owned */
    const float *norm, *norm2; /* NORM, ADD_NORMED, WEIGH: weight or NULL. ROPE_APPEND: of q, of k */
    /* ADD_NORMED: its input is that of in_norm plus that of other_norm; other NULL: there is one alone. JOIN:
     * both */
    const float *in_norm, *other_norm;
    float *other;
    float growth; /* ADD_NORMED that is not residual: as in struct math_op */
    uint32_t growth_context;
    const float *scale_of; /* ROUTE: of the chosen experts' weights, or NULL */
    /* EMBED: learned positions or NULL. WEIGH: the normed input's factors. ROUTE: added for the choice, or
     * NULL. */
    const float *vector;
    float *in;  /* NORM, WEIGH, JOIN, LINEAR of the one-token tier; ADD_NORMED, which norms it in place */
    float *out; /* NORM; NULL: it is only tiled. WEIGH: what is multiplied, out_width numbers a token */
    uint32_t out_width;
    uint32_t width;                                         /* of in and out */
    const struct linear_kernel *tile[PROGRAM_SEGMENTS_MAX]; /* NORM, gated LINEAR: tile for these */
    uint32_t tile_count;
    struct program_segment segment[PROGRAM_SEGMENTS_MAX];
    uint32_t segment_count;
    uint64_t bytes; /* of weights it reads; variable formats count their groups, experts those of one token */
    /* Experts: segments are all experts' matrices, `expert_rows` rows each. bound cuts those of one
     * expert. */
    uint32_t experts, chosen, expert_rows;
    bool asked;     /* by the GPU, for some of them: sums are stored, not added to x */
    bool from_disk; /* the experts are (worker-cpu/disk): the entry's region runs once for each turn of those
                       that came */
    bool takes_unit, leaves_unit; /* the first and the last entry of a whole unit that is read from disk */
    enum glu_kind glu;
    /* For several tokens of an expert: kernels multiply them together, each with the bits of one; how many so
     * are faster than by kernels of several. */
    bool few_together;
    uint32_t few_most;
};

#define PROGRAM_FEW_TOKENS ENGINE_FEW_TOKENS
enum op_tier program_tier_of(uint32_t tokens);
/* Whether a step of that phase can be of this tier. */
bool program_tier_occurs(const struct plan *plan, uint32_t phase, enum op_tier tier);

struct program {
    struct program_entry *entry;
    uint32_t count;
    uint32_t phase; /* of the plan; the head's: 0 */
    bool tiled;     /* linears take tiled inputs (several tokens) */
    uint32_t few;   /* several tokens, this many at most, each with the bits of one; 0: not so */
    uint64_t bytes; /* of weights read by one run, as they lie in memory */
};

struct program_source {
    const struct model *model;
    const struct plan *plan;
    enum plan_processor self; /* of the plan, whose programs these are */
    const struct weights *weights;
    const struct kernel_set *kernels;
    const struct disk *disk;   /* of weights that lie there, or NULL */
    enum linear_inputs inputs; /* which of them */
    bool assisted; /* of decode: with the CPU's part of attention in layers whose cache is the GPU's */
    /* OP_TIER_FEW and the head: up to this many tokens, as in an invariant plan each with the bits of one; 0:
     * with kernels of several. */
    uint32_t apart;
    const struct activations *act;
    uint32_t threads;
    bool drafts; /* the head is that of drafts */
    bool coarse; /* one token's chunks in row_granules, as those of many tokens: for comparison */
    /* For its lanes; NULL: the program is printed, not run. Matrices of variable formats then count with
     * their largest size, since they are not loaded. */
    const struct arena *arena;
};

/* Our spans of one phase with the hand-overs around them; without the head. Empty when there are none. */
HELM_MUST_CHECK int program_lower(const struct program_source *source, uint32_t phase, enum op_tier tier,
                                  struct program *program, struct helm_err *err);
/* The layers that make drafts; the step's own hidden states come first, of drafts of drafts they are ready.
 * Empty: there are none. */
HELM_MUST_CHECK int program_lower_drafts(const struct program_source *source, bool first, enum op_tier tier,
                                         struct program *program, struct helm_err *err);
/* Final norm, head and sampling, for one sampled row or for several. */
HELM_MUST_CHECK int program_lower_head(const struct program_source *source, bool many,
                                       struct program *program, struct helm_err *err);
void program_free(struct program *program);
/* Up to how many tokens one token's kernels multiply faster, one by one, than those of several: the fewest of
 * all products of the phase (struct linear_kernel's `apart`). 0: there are none, or experts of a layer in
 * both memories, or some are faster together from two on. */
HELM_MUST_CHECK int program_apart(const struct program_source *source, uint32_t phase, uint32_t *tokens,
                                  struct helm_err *err);
uint32_t program_apart_head(const struct program_source *source);
/* program/print.c: a line for each entry. */
void program_print(const struct program *program, const char *title, FILE *out);

/* Allocates the buffers (common/plan/workspace.h; huge pages where the system gives them) in `room` bytes.
 * formats: format_bit of the matrices that the worker computes with. */
HELM_MUST_CHECK int activations_create(const struct cpu_activations_case *size, unsigned formats,
                                       const struct kernel_set *kernels, uint64_t room, float *logits,
                                       struct activations *act, struct helm_err *err);
void activations_free(struct activations *act);
