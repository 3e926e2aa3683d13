/* A program: the model's arithmetic lowered to a flat list of fused kernel calls with resolved addresses.
 *
 * program_lower turns a model graph and this worker's half layers in one phase of the plan into one list per
 * token tier (1 token; 2 to 16; a chunk); there is one more per head (one sampled row; several). The token
 * loop (step.c, execute.c) walks a list and decides nothing: what is fused, in which order, in pieces of
 * which size, alone or shared was settled here. A half layer's entries are the same wherever the halves
 * beside it are computed. Called by engine.c at load and by --print-program. Owns its entries; addresses
 * point into weights, arena and activations, which outlive it. */
#ifndef HELM_WORKER_CPU_PROGRAM_H
#define HELM_WORKER_CPU_PROGRAM_H

#include <stdio.h>

#include "worker-cpu/kernel_set.h"
#include "worker-cpu/weights.h"

#define PROGRAM_SEGMENTS_MAX 3    /* q, k, v */
#define PROGRAM_ROWS_MAX     1024 /* rows of one chunk: what fits a thread's result buffer on its stack */
#define PROGRAM_TILE_TOKENS  512  /* most tokens of one gemm call: what is packed together */

/* How much of a step this worker's buffers have to hold: no more than the plan can give it. */
struct activations_size {
    uint32_t unit_tokens;  /* most tokens of a step it computes half layers of (plan_most_tokens) */
    uint32_t end_tokens;   /* of a step it computes embedding or head of; 0: it has neither */
    uint32_t sampled_rows; /* most rows of logits; 0: the head is not here */
    unsigned dtypes;       /* bit per enum dtype of the matrices it computes with */
};

/* fp32, [tokens][width], private to the worker. */
struct activations {
    float *x;                          /* as enum model_buffer; unit or end tokens */
    float *h;                          /* unit tokens or sampled rows */
    float *q, *k, *v, *a, *gate, *up;  /* unit tokens, as are: */
    float *cosine, *sine;              /* [unit_tokens][head_dim / 2] */
    float *logits;                     /* [slots][vocab], in the arena */
    uint32_t width[BUFFER_LOGITS + 1]; /* floats a token, by enum model_buffer */
    void *packed[DTYPE_COUNT];         /* one matrix input, packed for the linear variant of that dtype */
    void *memory;                      /* what all but logits lie in */
    uint64_t bytes;
};

enum program_kind {
    PROGRAM_EMBED,  /* x[t] = embedding of token t; cosine and sine of its position: what is needed of both */
    PROGRAM_NORM,   /* out[t] = rmsnorm(in[t]) if it has a weight; then packed for the linear that follows */
    PROGRAM_LINEAR, /* every segment: out[t] (+)= w in[t] + bias; with swiglu the two results are then
                       combined */
    PROGRAM_ROTATE, /* q and k: norm of each head, rotation; k and v go into the cache */
    PROGRAM_ATTEND, /* a = attention of q over the cache */
    PROGRAM_SAMPLE, /* a token from each row of logits */
    PROGRAM_RECEIVE, /* x[t] = what the other worker put into the lane */
    PROGRAM_SEND,    /* the lane's [t] = x[t] */
};

struct program_segment {
    const struct linear_variant *variant;
    const void *w;
    const uint32_t *offset; /* of packed weights, whose first group is at w: the table; else NULL */
    const float *bias;      /* or NULL */
    float *out;
    uint32_t rows, cols;
    uint32_t out_width;
    uint32_t row_first;    /* of the entry's rows, where this segment's begin */
    enum tensor_role role; /* for printing */
};

struct program_entry {
    enum program_kind kind;
    bool sampled;    /* runs over the sampled rows, not over the tokens */
    bool accumulate; /* LINEAR: adds to out (residual) */
    bool swiglu;     /* LINEAR: segments 0 and 1 are gate and up */
    bool packed;     /* LINEAR: its weights are, those of every segment; chunks are whole groups of each */
    bool alone;      /* too little work to share */
    bool gather;     /* EMBED: the embedding is ours */
    bool rotates;    /* EMBED: a ROTATE comes later */
    bool last;       /* RECEIVE: the lane's last hand-over of a step */
    uint32_t ticket; /* RECEIVE, SEND */
    struct lane *lane;
    int32_t layer;     /* of the model; -1 outside the layers */
    uint32_t kv_layer; /* of the layer group */
    uint32_t window;
    uint32_t chunk;  /* EMBED, NORM, ROTATE: tokens of a chunk */
    uint32_t chunks; /* LINEAR: row chunks, as many for each thread */
    uint32_t share;  /* LINEAR: threads it is shared by, 0: all */
    uint32_t *bound; /* LINEAR: [chunks + 1], chunk i is the entry's rows bound[i] .. bound[i + 1]; owned */
    const float *norm, *norm2;                               /* NORM: weight or NULL. ROTATE: of q, of k */
    const float *in;                                         /* NORM, LINEAR of the one-token tier */
    float *out;                                              /* NORM */
    uint32_t width;                                          /* of in and out */
    const struct linear_variant *pack[PROGRAM_SEGMENTS_MAX]; /* NORM: pack for these */
    uint32_t pack_count;
    struct program_segment segment[PROGRAM_SEGMENTS_MAX];
    uint32_t segment_count;
    uint64_t bytes; /* of weights it reads: of packed ones what their groups take */
};

enum program_tier { PROGRAM_TIER_ONE, PROGRAM_TIER_FEW, PROGRAM_TIER_CHUNK, PROGRAM_TIER_COUNT };
#define PROGRAM_FEW_TOKENS 16
enum program_tier program_tier_of(uint32_t tokens);
/* Whether a step of that phase, of at most step_tokens tokens, can be of this tier. */
bool program_tier_occurs(const struct plan *plan, uint32_t phase, enum program_tier tier);

struct program {
    struct program_entry *entry;
    uint32_t count;
    bool packed;    /* linears take packed inputs (several tokens) */
    uint64_t bytes; /* of weights read by one run: packed ones as they lie in memory */
};

struct program_source {
    const struct model *model;
    const struct plan *plan;
    const struct weights *weights;
    const struct kernel_set *kernels;
    const struct activations *act;
    uint32_t threads;
    bool coarse; /* one token's chunks in row_granules, as those of many tokens: for comparison */
    /* For its lanes; NULL: to be printed, not run. Packed weights, which are not there to be printed, are
     * then counted by the most they take. */
    const struct arena *arena;
};

/* Our spans of one phase with the hand-overs around them; without the head. Empty when there are none. */
HELM_MUST_CHECK int program_lower(const struct program_source *source, uint32_t phase, enum program_tier tier,
                                  struct program *program, struct helm_err *err);
/* Final norm, head and sampling, for one sampled row or for several. */
HELM_MUST_CHECK int program_lower_head(const struct program_source *source, bool many,
                                       struct program *program, struct helm_err *err);
void program_free(struct program *program);
/* program_print.c: a line for each entry. */
void program_print(const struct program *program, const char *title, FILE *out);

/* Allocates the buffers (huge pages where the system gives them). */
HELM_MUST_CHECK int activations_create(const struct model_config *config, const struct kernel_set *kernels,
                                       const struct activations_size *size, float *logits,
                                       struct activations *act, struct helm_err *err);
void activations_free(struct activations *act);

#endif
