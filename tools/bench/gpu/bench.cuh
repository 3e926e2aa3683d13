/* Shared by the files of helm-bench-gpu-kernels: a synthetic model of a real one's shape, and timing.
 *
 * Weights are random; nothing is read from disk. */
#pragma once

#include <cuda_runtime.h>

#include <stdio.h>
#include <stdlib.h>

#include <functional>
#include <vector>

#include "tools/bench/gpu/calls.cuh"
#include "worker-gpu/kernels/chain/chains.h"

struct bench {
    struct gpuk_device device;
    cudaStream_t stream;
    cudaEvent_t begin, end;
    double read_gbs, peak_tflops;
    int repeats;
};
static inline uint32_t early_of(const struct bench *b)
{
    return b->device.early_launch ? GPUK_EARLY : 0;
}
/* How far two results are from each other, by the first one's length. */
double bench_apart(const std::vector<float> &first, const std::vector<float> &other);
/* One row of the table; limit 0: none to compare with. */
void bench_row(const char *model, const char *what, double seconds, double rate, const char *unit,
               double limit);
/* Median seconds of one call of `enqueue`, of which `times` follow on each other. */
double bench_time(struct bench *b, int times, const std::function<void()> &enqueue);
/* The same of one replay of what `enqueue` launches. */
double bench_time_graph(struct bench *b, int replays, const std::function<void()> &enqueue);

struct bench_shape {
    const char *name;
    uint32_t layers, hidden, intermediate, heads, kv_heads, head_dim, vocab;
};

struct bench_layer {
    char *qkv, *o, *gate_up, *down;
};

struct bench_model {
    struct bench_shape shape;
    enum tensor_format
        format; /* of what is decoded with; bf16, and what takes no more bytes may be put here */
    struct gpuk_device *device;
    cudaStream_t stream;
    struct bench_layer *layer;
    char *embed, *head;
    float *ones, *inv_freq, *rope_table;
    struct gpuk_step step;
    uint32_t *step_memory, *step_host; /* the block on the device, and pinned */
    struct gpuk_kv kv;
    uint32_t context, chunk; /* tokens of the cache, and at most in a step */
    float *x, *q, *attended, *inner, *logits;
    void *h, *q16, *a16, *gate_up_out, *inner16;
    struct gpuk_chain chain;
    void *chain_list;
    void *workspace, *attention_workspace, *argmax_workspace, *matmul_workspace;
    struct gpuk_token *result;
    struct gpuk_matmul *matmul;
    double decode_bytes;  /* of weights read for one token */
    double prefill_flops; /* of the products for one token, the head left out */
};

void bench_model_open(struct bench_model *m, struct bench_shape shape, struct gpuk_device *device,
                      uint32_t context, uint32_t chunk, cudaStream_t stream);
void bench_model_close(struct bench_model *m);
/* Writes the step block: `tokens` tokens from position `start` on, one row each when `spread`, else all of
 * one row. */
void bench_model_step(struct bench_model *m, uint32_t tokens, uint32_t start, bool spread);

/* Parts of a layer for one token or a few, for timing alone. */
enum bench_part { PART_QKV, PART_ATTENTION, PART_O, PART_GATE_UP, PART_DOWN, PART_COUNT };
void bench_enqueue_part(struct bench_model *m, enum bench_part part, uint32_t layer, uint32_t tokens,
                        uint32_t flags);
void bench_enqueue_head(struct bench_model *m, uint32_t tokens, uint32_t flags);
double bench_head_bytes(const struct bench_model *m);
double bench_part_bytes(const struct bench_model *m, enum bench_part part);

/* The logits of the last step, once it is over. */
std::vector<float> bench_logits(struct bench_model *m);

/* Writes the chain of the parts in `parts` (bits 1 << enum bench_part) of all layers, and of the head when
 * `head`, as the device's choices have it now. rows: of each matrix, 0 = all. */
void bench_chain_write(struct bench_model *m, uint32_t parts, bool head, uint32_t rows);
/* A whole step around it. */
void bench_enqueue_chain(struct bench_model *m);
/* Rows of the table about chains (bench_chain.cu); the check prints a line and returns 1 when it failed. */
void bench_chains(struct bench *b, struct bench_model *m);
int bench_chain_check(struct bench_model *m, uint32_t position);

/* Rows of the table about batches (bench_batch.cu); the check prints lines and returns 1 when it failed. */
void bench_batches(struct bench *b, struct bench_model *m);
int bench_batch_check(struct bench *b, struct bench_model *m);

/* Rows of the table about prefill attention (bench_attention.cu); how many of them differ from the plain
 * kernel's. */
int bench_attention(struct bench *b);

/* Whole steps. */
void bench_enqueue_decode(struct bench_model *m, uint32_t tokens, uint32_t flags);
void bench_enqueue_prefill(struct bench_model *m, uint32_t tokens, uint32_t flags);
