/* Bytes of a worker's buffers other than weights, KV cache and ring: the step block, activations, workspaces
 * of kernels.
 *
 * Called by the planner, which charges it, and by the workers, which lay their buffers out by it. Pure. The
 * workspace of a GPU's kernel is the most that any device asks for (engine_limits.h); the GPU worker checks
 * its device against that before it allocates (gpu_buffers_check). */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "common/formats/linear_inputs.h"
#include "common/model/model.h"
#include "common/plan/engine_limits.h"
#include "common/plan/plan.h"

/* ---- the GPU's step block ---- */

/* Offsets of its arrays, the same in pinned and in device memory. A chunk of several sub-chunks has for each
 * of them its own counts, rows and tokens' rows. */
struct gpu_block {
    uint32_t counts, token_id, position, token_row, row_first, row_slot, row_begin, sample_token, page_table;
    /* Fixed states have, for each line of the page table: its slot, [rows]; where its row leaves snapshots
     * before its last token, [rows][GPU_ROW_STATES][2] (gpuk_left) */
    uint32_t row_state, row_left;
    /* Two tiers: like page_table, of layers whose cache is the arena's alone, or, in a step in which the CPU
     * attends, of those with a window, where window_begin is like row_begin; else page_table */
    uint32_t arena_table, window_begin;
    uint32_t pieces,
        arena_pieces;         /* [rows + 1] pages that come in pieces, in front of a row's: of either table */
    uint32_t sub, sub_stride; /* the first sub-chunk's arrays, and from one to the next; unless subs is 1 */
    uint32_t sub_counts, sub_token_row, sub_row_first, sub_row_slot; /* in them */
    uint32_t subs, tokens, rows;                                     /* capacities */
    uint64_t bytes; /* of all; a step copies only the lines of the page table it uses */
};
/* Entries of a line of the page table: pages, then as many of windows where some layer keeps one. */
static inline uint32_t gpu_block_line(uint32_t pages_per_slot, bool windows)
{
    return windows ? 2 * pages_per_slot : pages_per_slot;
}
/* line: of a row in a page table; two_tables: with arena_table. */
void gpu_block_place(uint32_t tokens, uint32_t rows, uint32_t line, bool two_tables, struct gpu_block *block);

/* ---- the GPU's workspace ---- */

struct gpu_workspace_case {
    const struct model_config *config;
    uint32_t step_tokens, slots, line; /* slots: or samples, if they are more; gpu_block_line */
    uint32_t chunk_bytes;              /* of a number in a chunk's activations: workspace_chunk_bytes */
    uint32_t query_bytes;              /* of a number in a chunk's queries: kv_query_dtype */
    bool layers, head;                 /* whether the GPU computes some */
    bool chains;                       /* whether the device has them */
    bool apart;                        /* contexts reach GPU_APART_POSITION */
    bool tiered;                       /* the cache has two tiers (plan_kv_tiered) */
    uint64_t matmul;                   /* that the products of chunks take on this device */
};

enum gpu_area {
    GPU_AREA_BLOCK,  /* step block */
    GPU_AREA_X,      /* [tokens][hidden] */
    GPU_AREA_LINEAR, /* of products of one and of few tokens */
    GPU_AREA_SAMPLE, /* from here on: of the head; [slots][hidden] */
    GPU_AREA_LOGITS, /* [slots][vocab] */
    GPU_AREA_ARGMAX,
    GPU_AREA_FEW,        /* of draws from candidates */
    GPU_AREA_H,          /* from here on: of layers; [sub]: normalised input, of the weights' dtype */
    GPU_AREA_OUT,        /* [tokens][hidden]: a half's output that is normed before it is added */
    GPU_AREA_SUM,        /* [tokens][hidden]: the sum of experts that is normed by itself */
    GPU_AREA_PAIR,       /* [tokens][2 * hidden]: of drafts, of the weights' dtype */
    GPU_AREA_PER_LAYER,  /* [tokens][1 + layers][per_layer]: a gate, then what per-layer embeddings give each
                            layer */
    GPU_AREA_ROPE_TABLE, /* [tables][tokens][head_dim] */
    GPU_AREA_INV_FREQ,   /* [tables][head_dim / 2] */
    GPU_AREA_ATTENTION,
    GPU_AREA_CHAINS,  /* lists of the chains, in order; with two tiers also those of assisted steps */
    GPU_AREA_PARTIAL, /* with two tiers: maxima and sums of partial attention, [tokens][heads] each */
    GPU_AREA_ROUTER,  /* from here on: of mixtures; [tokens][experts] */
    GPU_AREA_CHOICE,  /* ids, then weights: [tokens][chosen] each */
    GPU_AREA_GROUPS,  /* [experts + 1], then twice [tokens][chosen] */
    GPU_AREA_EXPERTS, /* of products of one and of few tokens with experts */
    GPU_AREA_SLOTS,   /* [experts]: where those of a layer lie that are in both memories, in this step */
    GPU_AREA_MATMUL,
    /* Decode tiers, the attention half and the MLP half of a chunk take the same place in turn. */
    GPU_AREA_FEW_QKV, /* ENGINE_FEW_TOKENS tokens: [q | gate? | k | v], with latent attention [q | k | q of
                         heads | q_rank], or [q k v | z | alpha | beta] of a gated delta net */
    GPU_AREA_FEW_Q,
    GPU_AREA_FEW_A,      /* attention's output, or a gated delta net's */
    GPU_AREA_FEW_VALUES, /* of latent attention: heads' own outputs, [heads][value] */
    GPU_AREA_FEW_DELTA,  /* [channels]: q k v of a gated delta net after the convolution */
    GPU_AREA_FEW_ACT,
    GPU_AREA_FEW_SHARED, /* the shared expert's, of its own length */
    GPU_AREA_CHUNK_QKV,  /* [tokens], as FEW_QKV; a sub-chunk's attention output, of the weights' dtype, takes
                            the place of its q k v unless there is: */
    GPU_AREA_CHUNK_A,    /* [tokens]: output that a gate multiplies, or a gated delta net's, of the weights'
                            dtype */
    GPU_AREA_CHUNK_LOW,  /* [tokens][q_rank]: what q of latent attention comes through */
    GPU_AREA_CHUNK_VALUES, /* [tokens], as FEW_VALUES, of the weights' dtype */
    GPU_AREA_CHUNK_DELTA,  /* [sub][channels], as FEW_DELTA; then the products of keys and queries of its
                              chunks */
    GPU_AREA_CHUNK_Q,      /* [sub], with two tiers [tokens]: rotated, of the cache's dtype */
    GPU_AREA_CHUNK_PART,   /* with two tiers: attention over the pieces so far, [tokens][heads][head_dim],
                              after the whole chunk's output in the place of its q k v; then
                              [tokens][heads][GPU_PART_FLOATS] */
    GPU_AREA_CHUNK_ACT,    /* [tokens][intermediate] */
    GPU_AREA_CHUNK_GATES,  /* [sub][gate | up] */
    /* [tokens][shared_intermediate], likewise. From here on instead of the former, but of an MLP's first rows
     * at their end */
    GPU_AREA_CHUNK_SHARED,
    GPU_AREA_CHUNK_SHARED_GATES, /* [sub][gate | up]; what follows takes its place */
    GPU_AREA_CHUNK_EXPERTS_X,    /* [tokens][hidden]: normalised, of the weights' dtype */
    GPU_AREA_CHUNK_EXPERTS_ACT,  /* [tokens * chosen][expert_intermediate], likewise */
    GPU_AREA_CHUNK_EXPERTS_SUM,  /* [tokens * chosen][hidden] */
    GPU_AREA_COUNT
};
/* Room for what products of few tokens with experts keep beside: as often as GPU_EXPERTS_INPUTS says their
 * inputs. */
uint64_t workspace_experts_bytes(const struct model_config *c);
/* Room for a program's lists of chains, however they are cut: of at most five operations a layer (of a gated
 * delta net one more) and the head; and with what attention in chains needs besides, each layer's in a chain
 * of its own. Mixtures have none. */
uint64_t workspace_chain_lists(const struct model_config *c);
uint64_t workspace_chain_bytes(const struct model_config *c);

struct gpu_workspace {
    struct {
        uint64_t at, bytes; /* 0 bytes: not there */
    } area[GPU_AREA_COUNT];
    uint64_t bytes;              /* of all */
    uint32_t tokens, sub_tokens; /* capacities of a chunk and of a sub-chunk, padded */
};
void gpu_workspace_place(const struct gpu_workspace_case *c, struct gpu_workspace *workspace);

/* Numbers of a token in FEW_QKV and CHUNK_QKV, and in a row of what a layer puts there: attention, or a gated
 * delta net. */
uint32_t workspace_attention_width(const struct model_config *config);
uint32_t workspace_delta_width(const struct model_config *config);
/* Numbers of a token in PER_LAYER. */
uint32_t workspace_per_layer_width(const struct model_config *config);

/* Bytes of a number in the activations of a chunk: of the widest of the layers' matrices. */
uint32_t workspace_chunk_bytes(const struct model *model);

/* The GPU's staging memory for caches that it borrows from the CPU in long prompts: pools of all pages of a
 * layer, which layers take in turn. With two tiers it is for whatever a chunk reads of the arena, and holds
 * two pieces, which come in turn, and after them a tail: pages that attention reads when all pieces are done
 * with. */
struct plan_staging_case {
    uint32_t page_tokens, page_count, piece_pages /* 0: the usual number */, step_tokens, slots;
    /* Two tiers; a chunk appends to layers' pages of the arena: of the host's, or of all */
    bool tiered, borrows;
    uint32_t windows; /* pages of windows that it may borrow of a layer; they have no pieces */
};
struct plan_staging {
    uint32_t piece;   /* pages of a piece, whole tiles; 0: no pieces */
    uint32_t pages;   /* in all, of one layer each */
    uint32_t windows; /* likewise of windows: after the pages; with one tier they take the place of pages */
};
/* Its bytes, by those of a page of one layer and of a window's. */
uint64_t plan_staging_bytes(const struct plan_staging *staging, uint64_t page, uint64_t window);
struct plan_staging plan_staging_of(const struct plan_staging_case *c);
struct plan_staging plan_staging(const struct plan *plan);
/* Pages of a tile of positions: pieces are cut by them. */
static inline uint32_t plan_tile_pages(uint32_t page_tokens)
{
    return page_tokens < GPU_PREFILL_TILE ? GPU_PREFILL_TILE / page_tokens : 1;
}
/* Where the tail has room for a row's pages, which tokens from token_first on of the step follow: of a layer
 * whose cache is the host's, and of others. */
static inline uint32_t plan_tail_at(uint32_t page_tokens, uint32_t row, uint32_t token_first, bool borrowed)
{
    const uint32_t tile = plan_tile_pages(page_tokens);
    return borrowed ? row * (tile + 2) + token_first / page_tokens : row * (tile - 1);
}

/* ---- the CPU's activations ---- */

struct cpu_activations_case {
    const struct model_config *config;
    uint32_t unit_tokens;  /* most tokens of a step it computes units of */
    uint32_t end_tokens;   /* of a step it computes embedding or head of; 0: it has neither */
    uint32_t sampled_rows; /* most rows of logits; 0: the head is not here */
};
/* fp32, [tokens][width], one after the other in the order of enum model_buffer from BUFFER_X on; then cosines
 * and sines, [unit_tokens][head_dim / 2] each. Offsets count floats. */
struct cpu_activations {
    uint32_t width[BUFFER_LOGITS + 1]; /* floats a token */
    uint64_t at[BUFFER_LOGITS];
    uint64_t cosine, sine, floats;
    /* Inputs of products of several tokens, laid out for them: `tiles` of at most `tile_tokens` and `widest`
     * numbers, and beside each one of `joined`: what gates and ups become, while an input is still read. */
    uint32_t tile_tokens, tiles, widest, joined;
};
void cpu_activations_place(const struct cpu_activations_case *c, struct cpu_activations *activations);
/* Scratch of each thread for experts: their tokens' inputs gathered and tiled, and sums of a piece. 0: the
 * model has no experts. */
uint64_t cpu_experts_bytes(const struct model_config *config);

/* Memory that the CPU worker takes for itself, whatever its kernels ask for: activations with inputs laid out
 * for products, and the scratch of each thread. The worker allocates as much; kernels that ask for more
 * scratch (OpenBLAS) get it, with a warning. `formats`: bits, of the matrices in host memory. */
struct cpu_room {
    uint64_t activations, thread;
};
struct cpu_room cpu_room_of(const struct cpu_activations_case *c, unsigned formats);
