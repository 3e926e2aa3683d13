/* A program of the GPU worker: its spans of a step lowered to a flat list of operations with resolved
 * addresses.
 *
 * gpu_program_lower makes one for each token tier: 1 token; up to 2, 4, 8, 16; a chunk. Those of the first
 * tiers have fixed shapes (what varies is read from the step block in device memory) and are captured: a
 * step is one graph, hand-overs included, however often the plan alternates. A chunk's list is issued anew
 * each step, with its number of tokens. Called by engine.c. Owns entries and graph; addresses point into
 * device memory and the arena, which outlive it. */
#ifndef HELM_WORKER_GPU_PROGRAM_H
#define HELM_WORKER_GPU_PROGRAM_H

#include <stdio.h>

#include "common/arena.h"
#include "worker-gpu/weights.h"

#define GPU_PAD_TOKENS  64 /* matrix products of a chunk take whole multiples: few shapes, few plans */
#define GPU_HEAD_GROUPS (ARENA_STEP_ROWS / GPUK_BATCH_MAX)
#define GPU_COUNTS      (3 + GPU_HEAD_GROUPS) /* of the step block: tokens, rows, samples; samples a group */

enum gpu_tier { GPU_TIER_1, GPU_TIER_2, GPU_TIER_4, GPU_TIER_8, GPU_TIER_16, GPU_TIER_CHUNK, GPU_TIER_COUNT };
enum gpu_tier gpu_tier_of(uint32_t tokens);

/* The step block of a program: offsets of struct gpuk_step's arrays, the same in pinned and device memory. */
struct gpu_block {
    uint32_t counts, token_id, position, token_row, row_first, row_slot, sample_token, page_table;
    uint32_t tokens, rows; /* capacities */
    uint64_t bytes;        /* of all; a step copies only the lines of the page table it uses */
};

/* Device memory of a worker beside weights and KV pool, one allocation. */
struct gpu_buffers {
    char *memory;
    uint64_t bytes;
    char *block;       /* step block */
    float *x, *sample; /* [tokens][hidden], [slots][hidden] */
    void *h;           /* chunk: normalised input, of the weights' dtype */
    float *qkv;        /* [tokens][q | k | v] */
    void *q;           /* rotated */
    void *a;           /* attention output: fp32, chunk: of the weights' dtype */
    void *gate_up;     /* chunk: [tokens][gate | up] */
    void *act;         /* [tokens][intermediate] */
    float *logits;     /* [slots][vocab] */
    float *rope_table;
    float *inv_freq;
    void *linear_work, *attention_work, *argmax_work, *matmul_work;
    uint64_t attention_work_bytes, argmax_work_bytes;
    uint32_t tokens; /* capacity of a chunk, padded */
};

enum gpu_kind {
    GPU_COPY_BLOCK, /* the step block, from pinned memory */
    GPU_ROPE_TABLE,
    GPU_EMBED,
    GPU_GEMV,
    GPU_GEMM_SMALL,
    GPU_NORM,
    GPU_MATMUL,
    GPU_ADD_BIAS,
    GPU_SWIGLU,
    GPU_ROPE_APPEND,
    GPU_ATTEND_DECODE,
    GPU_ATTEND_PREFILL,
    GPU_LANE_READ,
    GPU_LANE_WRITE,
    GPU_WORD_WAIT,
    GPU_WORD_WRITE,
    GPU_GATHER,
    GPU_ARGMAX,
};

struct gpu_entry {
    enum gpu_kind kind;
    int32_t layer;  /* -1 outside the layers */
    bool head;      /* left out of a chunk in which nothing is sampled */
    uint32_t group; /* GEMM_SMALL of the head in a chunk: which 16 samples */
    union {
        struct gpuk_linear_args linear;
        struct {
            const uint32_t *count;
            const float *x, *norm;
            void *out;
            enum dtype out_dtype;
        } norm;
        struct {
            enum dtype dtype, out_dtype;
            uint32_t rows, cols, out_stride;
            bool accumulate;
            const void *w, *x;
            void *out;
        } matmul;
        struct {
            void *out;
            enum dtype dtype;
            uint32_t stride, rows;
            const float *bias;
        } bias;
        struct {
            const void *in;
            void *out;
            enum dtype dtype;
            uint32_t n;
        } swiglu;
        struct {
            struct gpuk_attention args;
            bool fused;
            enum dtype q_dtype, out_dtype;
        } attention;
        struct {
            _Atomic uint32_t *word;
            uint32_t value;
            enum device_compare compare;
        } word;
        struct {
            const float *from;
            float *to;
        } move;
        struct {
            const void *table;
            enum dtype dtype;
        } embed;
    } as;
};

struct gpu_program {
    enum gpu_tier tier;
    uint32_t tokens, samples; /* capacities */
    struct gpu_block block;
    struct gpuk_step step; /* device addresses */
    struct gpu_entry *entry;
    uint32_t count, capacity;
    struct device_graph *graph; /* NULL: issued anew each step */
};

struct gpu_source {
    const struct model *model;
    const struct plan *plan;
    const struct gpu_weights *weights;
    const struct gpu_buffers *buffers;
    const struct arena *arena;
    struct device *device;
    struct kv_layout kv;
    void *kv_pool;
    char *block_host;          /* pinned, at least as large as the largest block */
    struct gpuk_token *tokens; /* pinned: what argmax found, by sample */
    _Atomic uint32_t *end;     /* pinned: becomes 1 when the step is done */
    float rope_scale;
};

/* Sizes every buffer for this plan; with `memory` set also their addresses. */
void gpu_buffers_place(const struct model_config *config, const struct plan *plan,
                       const struct arena_header *arena, enum dtype kv_dtype,
                       const struct device_kernels *kernels, struct gpu_buffers *buffers);
void gpu_block_place(uint32_t tokens, uint32_t rows, uint32_t pages_per_slot, struct gpu_block *block);

HELM_MUST_CHECK int gpu_program_lower(const struct gpu_source *source, enum gpu_tier tier,
                                      struct gpu_program *program, struct helm_err *err);
/* Puts the list into the device's compute queue; `rows` lines of the page table are copied. `alone`: without
 * hand-overs, to have every kernel's code loaded before the first wait. */
HELM_MUST_CHECK int gpu_program_issue(const struct gpu_source *source, const struct gpu_program *program,
                                      uint32_t tokens, uint32_t rows, uint32_t samples, bool alone,
                                      struct helm_err *err);
void gpu_program_free(struct gpu_program *program, struct device *device);
void gpu_program_print(const struct gpu_program *program, const char *title, FILE *out);

#endif
