/* Limits of both engines that the planner must know: sizes of slices and sub-chunks, tiers of tokens,
 * boundaries.
 *
 * Included by the planner and by the workers, so that each stands here once. Functions that both call compute
 * sizes from them (the bytes of a workspace): common/plan/workspace.h. Constants only; read by CUDA C++
 * too. */
#pragma once

#include <stdint.h>

/* ---- tiers of tokens ---- */

/* Steps of 2 to 16 tokens are a tier of their own on both processors; longer ones are chunks. */
#define ENGINE_FEW_TOKENS 16
/* Drafts of a step at most (docs/speculation.md): with a known token they are a step of few tokens. */
#define ENGINE_DRAFTS_MAX (ENGINE_FEW_TOKENS - 1)
/* Positions that a step samples at most: a token of each slot, and with drafts a step of few tokens. */
static inline uint32_t engine_samples(uint32_t slots, uint32_t draft_tokens)
{
    return draft_tokens && slots < ENGINE_FEW_TOKENS ? ENGINE_FEW_TOKENS : slots;
}
/* The GPU's shortest chunk. A prefill list begins at this many tokens or more: shorter steps are captured
 * graphs. */
#define GPU_CHUNK_TOKENS (ENGINE_FEW_TOKENS + 1)
/* A longer chunk is computed in sub-chunks on the GPU, each operation for all of them. */
#define GPU_SUB_TOKENS 512
/* Matrix products of a chunk take whole multiples: few shapes, few plans. */
#define GPU_PAD_TOKENS 64
/* Likewise in an invariant plan, where products of fewer tokens are computed by a sub-chunk's algorithm. */
#define GPU_STEADY_TOKENS 128
/* And its steps of few tokens run the program of this many, or of ENGINE_FEW_TOKENS. */
#define GPU_STEADY_FEW 8
/* A GPU multiplies by blocks at home in VRAM as they lie in chunks of up to this many tokens, where it has
 * kernels for it; longer ones, and those of streamed weights, by what they expand to. */
#define GPU_SHORT_TOKENS 64
/* Likewise where it has them for more tokens (warpgroups, 9.0): with more, expanding takes less than decoding
 * once for each tile of tokens. */
#define GPU_WIDE_TOKENS 128
/* The CPU's products of several tokens take at most this many at a time. */
#define CPU_TILE_TOKENS 512
/* Tokens of one expert that are computed together, and rows of a piece of work. */
#define CPU_EXPERTS_TOKENS 64
#define CPU_EXPERTS_ROWS   256

/* ---- memory ---- */

#define VRAM_ALIGN UINT64_C(256) /* of everything that is placed in VRAM */
#define HOST_ALIGN UINT64_C(64)  /* of weights in host memory */

/* The ring. A slice holds whole groups of RING_ROWS rows and is no larger than 1 / RING_SHARE of the ring, so
 * that others are on their way while one is computed, nor than the limit: 0.3 ms of a fast link, a kernel
 * worth its launch. */
#define RING_SHARE       4
#define RING_ROWS        16
#define RING_ALIGN       VRAM_ALIGN
#define RING_SLICE_BYTES (UINT64_C(16) << 20)
/* A slice of packed weights, in bytes before packing: the same time on the link, kernels of twice the
 * size. */
#define RING_PACKED_SLICE_BYTES (UINT64_C(32) << 20)
/* A slice of blocks at home in VRAM that are expanded: 4,096 rows of 12,288 columns in 16 bits. A sub-chunk's
 * product with fewer rows leaves multiprocessors idle. */
#define HOME_SLICE_BYTES (UINT64_C(96) << 20)

/* Pools in VRAM, of one layer each, that borrowed layers take turns in; with two tiers of the cache there is
 * one, of pieces. */
#define GPU_STAGINGS 2
/* Positions of a piece: on a link of 50 GB/s an 8B model's take 0.35 ms, and two are in VRAM. */
#define PLAN_PIECE_POSITIONS 4096
/* Numbers that a chunk's attention over pieces keeps of a token's head, without its output: a maximum and
 * sums. */
#define GPU_PART_FLOATS 8
/* Attention of a chunk takes positions in tiles of this size. Pieces end at multiples of it, so that sums
 * have the same order whatever the pieces and pools. */
#define GPU_PREFILL_TILE 64
/* Host memory for reading weights from files, of all readers. */
#define GPU_LOAD_STAGING_BYTES (UINT64_C(192) << 20)
/* Threads that draw tokens on the host where the device's argmax is not enough; host memory of a slot's
 * draws: candidates, logits of changed tokens, and how often each of those occurs. */
#define GPU_SAMPLERS_MAX    4
#define GPU_DRAW_SLOT_BYTES UINT64_C(57368)

/* One token's products read packed rows as they are where their columns are a multiple of this, on a CUDA
 * device. */
#define GPU_PACKED_COLS 512
/* Rows of a packed matrix that the CPU unpacks at a time, in bytes. A group of rows that takes more is
 * unpacked whole. */
#define CPU_UNPACKED_BYTES (UINT64_C(3) << 19)
/* A thread's scratch for one use at a time: partial sums of attention and products. */
#define CPU_SCRATCH_BYTES (UINT64_C(1) << 20)

/* ---- workspaces of the GPU's kernels ---- */

/* Products of one and of few tokens: counters, then inputs or sums that wait for those of other columns. */
#define GPU_LINEAR_COUNTER_BYTES (UINT64_C(32) << 10)
#define GPU_LINEAR_SUMS_BYTES    (UINT64_C(8) << 20)
#define GPU_LINEAR_SUMS          40 /* of each input, where they are fewer bytes than that */
/* Few tokens with experts: the size of the workspace, as a multiple of all chosen experts' inputs. */
#define GPU_EXPERTS_INPUTS 4
/* Attention of few tokens: pieces of one sequence's context, and of one token's in a chain. */
#define GPU_ATTENTION_SPLITS 64
#define GPU_CHAIN_PIECES     4
/* From this position on one token's attention is a kernel of its own instead of a part of a chain. */
#define GPU_APART_POSITION 3072
/* A chain's list, for each operation: at most. */
#define GPU_DELTA_CHUNK_BYTES 1024 /* of each token and v head of a gated delta net, of chunks' products */
#define GPU_CHAIN_OP_BYTES    1280
#define GPU_ROW_STATES        8 /* ARENA_ROW_STATES */
/* At most, a row of logits: the best of each block, and counters; candidates, beside the best of each 64
 * logits. */
#define GPU_ARGMAX_ROW_BYTES 8192
#define GPU_FEW_ROW_BYTES    8192
#define GPU_FEW_LOGITS       64
/* Products of chunks: the CUDA libraries', and the emulated device's. */
#define GPU_MATMUL_WORKSPACE          (UINT64_C(32) << 20)
#define GPU_MATMUL_WORKSPACE_EMULATED UINT64_C(4096)
/* Bytes that the emulated device's threads and queues count as. */
#define GPU_CONTEXT_EMULATED (UINT64_C(1) << 20)

/* ---- time ---- */

/* Threads of the CPU's pool spin for this long after their last work, then sleep. */
#define CPU_SPIN_QUIET_US 5000
/* The CPU's scratch memory begins at multiples of this. */
#define CPU_SCRATCH_ALIGN 64
/* Where the CPU attends, it reads runs of this size, where a page's heads have as much
 * (worker-cpu/program/assist.c). */
#define CPU_RUN_BYTES (32 * 1024)
/* The profile's price of a hand-over is measured with this many bytes. */
#define ENGINE_HAND_OVER_BYTES 8192
