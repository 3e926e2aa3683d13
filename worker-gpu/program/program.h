/* A program of the GPU worker: its spans of a step lowered to a flat list of operations with resolved
 * addresses.
 *
 * gpu_program_lower makes one for each phase of the plan and token tier that a step can meet: of the decode
 * phase 1 token; up to 2, 4, 8, 16; a chunk; of a prefill phase a chunk alone, which is why a prefill list
 * begins at GPU_CHUNK_TOKENS or more (gpu_program_check_phases refuses others). The first tiers have fixed
 * shapes (what varies is read from the step block in device memory) and are captured: a step is one graph,
 * hand-overs and copies included, however often the plan alternates. A chunk's list is issued anew each step,
 * with its number of tokens.
 *
 * A chunk is computed in sub-chunks of GPU_SUB_TOKENS: each operation, or each slice of it where weights are
 * streamed, does all sub-chunks one after the other, so weights cross the link once however long the chunk.
 * Only the residual stream, q k v (later the attention's output, in the same place) and the product of gate
 * and up are kept of all its tokens; everything else is as large as a sub-chunk.
 *
 * Streamed weights: the copy queue fills the ring (ring.h) after events that the compute queue records when
 * what is overwritten has been used, and the compute queue waits for each slice's arrival; the host waits for
 * nothing. The list's order is one in which every event is recorded before it is followed. Its last part, the
 * tail, copies the next step's first slices: it is put into the copy queue after the graph, not into it,
 * since a graph is not done before its copies are; events that cross lead from the graph to the tail and from
 * there to the next step's graph. Between two chunks of one prompt it is left out as far as the second would
 * only overwrite it (struct gpu_prefix). Borrowed caches (a layer whose KV is the host's, computed here in a
 * prefill phase) pass through two staging pools of one layer each, turn by turn, by the same queue; a step
 * counts as done when what it appended is back.
 *
 * A packed slice is expanded (ring.h) between its arrival and its use, and its place in the ring is free
 * from then on; the first one of a span while that still waits for the CPU. The kernel after an expansion
 * never begins early: it would fetch weights that are not there yet. One token's linears that the device
 * multiplies packed (gpuk_linear_takes) read the slice in the ring instead, and nothing is expanded.
 *
 * Matrices packed in VRAM are multiplied so by one token's products, whole operations at a time, where the
 * device does that; else they are expanded as streamed slices are, to the same place, a slice at a time.
 *
 * Two tiers of the cache (plan.h, arena_layout.h): few tokens' kernels read pages of the arena where they
 * lie, over the link. A chunk, whose every 64 queries would read them again, has a layer's such pages brought
 * to VRAM in pieces (pieces.h), the first two beside the computation of the layer before, the others beside
 * attention to the one before each; where no row has any, nothing is copied. Pages that a chunk fills are
 * copied to the arena layer by layer, after each layer's attention; in the decode tiers the host puts such
 * copies after the graph, once every page (tiers.h). Each decode tier has one more program for steps in which
 * the CPU attends to a part (STEP_KV_ASSISTED): the queries of a layer that it attends to
 * (plan_assists_layer) go down, the GPU attends to its own positions meanwhile, and what comes up is merged.
 * Borrowed caches have the arena's pages alone, which go through the pool as with one tier; where VRAM has
 * too few places for a chunk (plan_appends_in_arena) all caches are borrowed in chunks.
 *
 * In an invariant plan (common/plan/schedule.h) the program of one token is that of GPU_STEADY_FEW; in chains
 * are products where the device has the same bits there (device_asked.chain_as_few), and attention beside
 * them, whose order few tokens then have, too (enum gpuk_order).
 *
 * Chains (chains.h): of the tier of one token, operations of layers and head with nothing between them are
 * done by one kernel, where the device has it and the model is no mixture of experts. OP_CHAIN stands in
 * front of them; they stay in the list, as what the chain consists of. (The head in one is computed in any
 * case, as in every graph.) Events of the ring, words and lanes end a chain; slices of streamed weights, each
 * between two events, stay kernels of their own.
 *
 * Called by engine.c. Owns entries and graph; addresses point into device memory and the arena, which outlive
 * it. */
#pragma once

#include <stdio.h>

#include "common/plan/schedule.h"
#include "common/plan/workspace.h"
#include "common/shared/arena.h"
#include "common/worker/batch.h"
#include "worker-gpu/program/ring.h"
#include "worker-gpu/program/states.h"
#include "worker-gpu/weights/slots.h"
#include "worker-gpu/weights/weights.h"

#define GPU_HEAD_GROUPS (ARENA_STEP_ROWS / GPUK_BATCH_MAX)

enum gpu_tier { GPU_TIER_1, GPU_TIER_2, GPU_TIER_4, GPU_TIER_8, GPU_TIER_16, GPU_TIER_CHUNK, GPU_TIER_COUNT };
enum gpu_tier gpu_tier_of(uint32_t tokens);
/* The tier of a step by its schedule: an invariant plan decodes by the programs of 1, of 8 and of 16 tokens,
 * whose kernels are the same but for how many tokens they have room for, and for chains of products that have
 * the same bits. */
enum gpu_tier gpu_tier_for(const struct plan *plan, const struct plan_schedule *schedule, uint32_t tokens);

/* Device memory of a worker beside weights, KV pool and ring, one allocation. */
struct gpu_buffers {
    struct gpu_workspace work;
    char *memory;
};
/* NULL: it is not there. */
static inline void *gpu_area(const struct gpu_buffers *buffers, enum gpu_area area)
{
    const bool there = buffers->memory && buffers->work.area[area].bytes;
    return there ? buffers->memory + buffers->work.area[area].at : NULL;
}

/* Cosines and sines of one of the model's tables of RoPE. */
static inline float *gpu_rope_table(const struct gpu_buffers *buffers, const struct model_config *config,
                                    uint32_t table)
{
    return (float *)gpu_area(buffers, GPU_AREA_ROPE_TABLE) +
           (size_t)table * buffers->work.tokens * model_heads_most(config).head_dim;
}

/* For which steps an entry is issued: of one sample or of several; of up to its when_tokens tokens or of more
 * (in an invariant plan: of short prompts or of others); that fill a page, that read pages of the arena, or
 * either. */
enum gpu_when {
    GPU_WHEN_ANY,
    GPU_WHEN_ONE,
    GPU_WHEN_SEVERAL,
    GPU_WHEN_SHORT,
    GPU_WHEN_LONG,
    GPU_WHEN_FILLS,
    GPU_WHEN_READS_HOST,
    GPU_WHEN_TIERS
};

/* The tokens of an entry: the index of a sub-chunk, or all of the step's. */
#define GPU_SUB_ALL UINT32_MAX

/* The slices, events and caches of the operations that bring them, by number. */
struct gpu_supply {
    uint32_t slice;          /* STREAM_COPY: of the phase's schedule; EXPAND: of that, or of `home` */
    enum device_queue queue; /* RECORD, FOLLOW */
    uint32_t event;          /* of these; also the one that STREAM_COPY, KV_IN, KV_OUT and KV_STORE record */
    uint32_t kv_layer, staging; /* KV_IN, KV_OUT; kv_layer: KV_STORE's in VRAM */
    bool own; /* KV_IN, ATTEND_PREFILL: of a layer of the GPU's, whose newest pages are in VRAM */
};

struct gpu_entry {
    struct op op; /* tokens 0, count NULL: the step's, or its sub-chunk's; filled in when it is issued */
    struct gpu_supply supply;
    int32_t layer; /* -1 outside the layers */
    bool head;     /* left out of a chunk in which nothing is sampled */
    bool again;    /* its result is still there in a step of one sub-chunk */
    bool slice;    /* its weights are in the ring, or expanded */
    bool home;     /* EXPAND of weights at home in VRAM */
    enum gpu_when when;
    uint32_t when_tokens; /* of GPU_WHEN_SHORT and GPU_WHEN_LONG */
    uint32_t group;       /* GEMM_SMALL of the head in a chunk: which 16 samples */
    uint32_t sub;
};
/* Whether it multiplies by weights of a variable format as they are: it trusts their bytes. */
bool gpu_entry_trusts(const struct gpu_entry *entry);

/* Events by number. A program has a few of its own, then arrival and use of each slice of the longest
 * schedule. Crossing ones, between programs: arrival of each slice of the prefix; what a tail waits for, in
 * its order. */
enum gpu_event {
    GPU_EVENT_BEGIN,
    GPU_EVENT_KV_IN,                                    /* one a staging pool */
    GPU_EVENT_KV_USED = GPU_EVENT_KV_IN + GPU_STAGINGS, /* likewise */
    GPU_EVENT_KV_BACK = GPU_EVENT_KV_USED + GPU_STAGINGS,
    GPU_EVENT_PIECE_IN, /* two tiers: of the two pieces in VRAM, by turns */
    GPU_EVENT_PIECE_USED = GPU_EVENT_PIECE_IN + 2,
    GPU_EVENT_SLICES = GPU_EVENT_PIECE_USED + 2
};
struct gpu_events {
    uint32_t prefix, tail, count; /* where the crossing ones begin; of all */
};
static inline uint32_t gpu_event_arrived(uint32_t slice)
{
    return GPU_EVENT_SLICES + 2 * slice;
}
static inline uint32_t gpu_event_used(uint32_t slice)
{
    return GPU_EVENT_SLICES + 2 * slice + 1;
}
struct gpu_events gpu_events_place(const struct plan *plan, enum plan_processor self,
                                   const struct ring_schedule *ring);

/* One span: the ticket it waits for and the one it publishes, each in its lane; 0: none. */
struct gpu_turn {
    uint32_t in, out, lane_in, lane_out;
    uint32_t last_out; /* its reader takes it and clears the word, so `sent` says this when it was published;
                          0: it stays */
    uint64_t usual_ns; /* the wait for `in` in the steps before (watch.c); 0: not known */
};

/* How a decode program attends. One token's attention in a chain begins while the weights in front of it are
 * still computed with, so it is first over short contexts; over long ones a kernel of its own reads the cache
 * faster. */
enum gpu_attending {
    GPU_ATTENDS_USUALLY, /* in a chain where there are chains, several tokens of an invariant plan in its
                            order */
    GPU_ATTENDS_APART, /* where there are chains: one token from position GPU_APART_POSITION on; several of an
                          invariant plan, one of which is */
    GPU_ATTENDS_ASSISTED, /* the CPU attends to a part of the cache: two tiers alone */
    GPU_ATTENDING_COUNT
};

struct gpu_program {
    uint32_t phase;
    enum gpu_tier tier;
    enum gpu_attending attending;
    uint32_t tokens, samples; /* capacities */
    struct gpu_block block;
    struct gpuk_step step; /* device addresses, of all tokens */
    struct gpu_entry *entry;
    uint32_t count, capacity;
    uint32_t tail;                       /* its first entry: after those of the graph */
    uint32_t as_chained;                 /* attention in a chain's order, of an invariant plan */
    uint32_t chains, chained, unchained; /* how many; operations in them; of layers and head, beside them */
    uint64_t stream_bytes;               /* of weights that come through the ring */
    uint64_t copy_bytes;                 /* that a step copies into the ring before its tail */
    struct gpu_turn *turn;               /* [turns], in order */
    uint32_t turns, turn_tokens;         /* of the steps whose usual times they have */
    struct device_graph *graph;          /* NULL: issued anew each step */
};

struct gpu_source {
    const struct model *model;
    const struct plan *plan;
    enum plan_processor self; /* of the plan, whose programs these are */
    const struct gpu_weights *weights;
    const struct gpu_buffers *buffers;
    const struct arena *arena;
    struct device *device;
    struct kv_layout kv, window_kv; /* of pages, and of windows, whose pool is after theirs */
    void *kv_pool, *window_pool;
    void *staging[GPU_STAGINGS]; /* [page_count] pages of one layer, the arena's page numbers; two tiers: one,
                                    of pieces */
    const struct ring_schedule *ring; /* by phase */
    const struct ring_schedule *home; /* slices of what lies packed in VRAM */
    const struct gpu_states *states;  /* fixed ones */
    const struct gpu_slots *slots;    /* of experts in both memories; of no use where there are none */
    char *ring_memory;
    char *expanded; /* where packed slices are expanded to */
    struct device_event *const *event;
    struct gpu_events events;
    char *block_host;          /* pinned, at least as large as the largest block */
    struct gpuk_token *tokens; /* pinned: results of argmax, by sample; after them the other place's */
    bool follows;              /* its step has the block that the one before leaves (follow.h) */
    _Atomic uint32_t *end;     /* pinned: becomes 1 when the step is done; after it the other place's */
    _Atomic uint32_t *sent;    /* pinned: how many lanes' last hand-overs are published (gpu_turn.last_out) */
    _Atomic uint32_t *moved;   /* pinned: becomes 1 when a session's page is copied (tiers.h) */
    float rope_scale[MODEL_ROPES_MAX];
    const bool *left_out; /* [units + 1]: half layers, and the head after them, that a program which is only
                             measured lacks; NULL: none */
};

/* Sizes every buffer for this plan (common/plan/workspace.h). */
void gpu_buffers_place(const struct model *model, const struct plan *plan, enum plan_processor self,
                       const struct arena_header *arena, const struct device *device,
                       struct gpu_buffers *buffers);
/* HELM_E_INTERNAL names the kernel that wants more on this device than the plan charges. */
HELM_MUST_CHECK int gpu_buffers_check(const struct model_config *config, const struct device *device,
                                      const struct gpu_buffers *buffers, struct helm_err *err);
/* The workspace of attention of `tokens` tokens (of the decode tiers). Counters, which must stay zero, then
 * partial results: for every tier the latter begin at the same place, so that none writes over another's
 * counters. */
void *gpu_attention_work(const struct gpu_source *source, uint32_t tokens);
/* The arrays of sub-chunk `sub` at `base`, which is the block's own address. */
struct gpuk_step gpu_block_step(const struct gpu_block *block, const char *base, uint32_t pages_per_slot,
                                uint32_t sub);
/* Where pages of windows of a borrowed layer lie. */
void *gpu_window_staging(const struct gpu_source *source, uint32_t staging);
/* Bytes of VRAM for borrowed layers: GPU_STAGINGS pools of one layer, 0 where nothing is borrowed; with two
 * tiers always pieces and a tail (plan_staging). */
uint64_t gpu_staging_bytes(const struct plan *plan, enum plan_processor self,
                           const struct arena_header *arena);

/* Refuses prefill lists that begin below GPU_CHUNK_TOKENS. */
HELM_MUST_CHECK int gpu_program_check_phases(const struct plan *plan, struct helm_err *err);
/* Which program it is. Only the decode phase's decode tiers have programs other than GPU_ATTENDS_USUALLY. */
struct gpu_program_kind {
    uint32_t phase;
    enum gpu_tier tier;
    enum gpu_attending attending;
};
/* Whether a step of at most `step_tokens` tokens can need a program of this phase and tier. */
bool gpu_program_exists(const struct plan *plan, uint32_t step_tokens, uint32_t phase, enum gpu_tier tier);
/* The same of one kind, on this device. */
bool gpu_program_wanted(const struct gpu_source *source, const struct gpu_program_kind *kind);
/* How a step attends whose furthest token is at `position`. */
static inline bool gpu_attends_apart(const struct plan *plan, enum gpu_tier tier, uint32_t position)
{
    return (tier == GPU_TIER_1 || (plan->invariant && tier < GPU_TIER_CHUNK)) &&
           position >= GPU_APART_POSITION;
}
/* Whether a program that attends so would be the usual one once more: an invariant plan whose attention is in
 * no chain's order attends over long contexts as over short ones. */
static inline bool gpu_program_repeats(const struct plan *plan, const struct gpu_program *usual,
                                       enum gpu_attending attending)
{
    return attending == GPU_ATTENDS_APART && plan->invariant && !usual->as_chained;
}
HELM_MUST_CHECK int gpu_program_lower(const struct gpu_source *source, const struct gpu_program_kind *kind,
                                      struct gpu_program *program, struct helm_err *err);
/* The layer of drafts and its head, by the step's own hidden states or by those of drafts. Issued anew each
 * time. */
HELM_MUST_CHECK int gpu_program_lower_drafts(const struct gpu_source *source, bool first, enum gpu_tier tier,
                                             struct gpu_program *program, struct helm_err *err);
/* Puts the lists of its chains into the buffers: once, before the program is issued, not under capture. */
HELM_MUST_CHECK int gpu_program_write_chains(const struct gpu_source *source, struct gpu_program *program,
                                             struct helm_err *err);
/* Which slices of the prefix are in the ring or on their way, and what their copies came to in this step.
 *
 * Where a prompt goes on in the next step, a chunk's tail leaves out what that chunk would only overwrite;
 * whichever step then uses what is missing copies it at its beginning. */
struct gpu_prefix {
    bool *there; /* [count] */
    uint32_t count;
    uint64_t copied_bytes;
};

/* A step as a program is issued for it. */
struct gpu_issue {
    uint32_t tokens, rows, samples; /* rows: lines of the page table that are copied */
    bool is_short;             /* of an invariant plan: a chunk of short prompts (common/plan/schedule.h) */
    const struct batch *batch; /* whose pages are borrowed, or filled */
    bool fills;                /* some of its rows fill a page that is copied to the arena */
    bool reads_host;           /* some have pages in the arena alone */
    bool alone;                /* without hand-overs and copies, to have all code loaded before a wait */
};
/* Puts into the copy queue what this program finds in the ring and is missing there. Before its graph or
 * list, when the step before is done. */
HELM_MUST_CHECK int gpu_program_issue_missing(const struct gpu_source *source,
                                              const struct gpu_program *program, struct gpu_prefix *prefix,
                                              struct helm_err *err);
/* Puts the list into the device's queues: what stands before the tail, and the tail. again: the next step is
 * expected to be of the same phase, so that only what this one finds in the ring is worth copying. */
HELM_MUST_CHECK int gpu_program_issue(const struct gpu_source *source, const struct gpu_program *program,
                                      const struct gpu_issue *issue, struct helm_err *err);
/* Captures the entries before the tail as a graph, for all the tokens and samples that there may be. */
HELM_MUST_CHECK int gpu_program_capture(const struct gpu_source *source, struct gpu_program *program,
                                        struct helm_err *err);
HELM_MUST_CHECK int gpu_program_issue_tail(const struct gpu_source *source, const struct gpu_program *program,
                                           bool again, struct gpu_prefix *prefix, struct helm_err *err);
/* Copies the prefix into the ring: once, before the first step and before anything is in a cache. */
HELM_MUST_CHECK int gpu_program_prime(const struct gpu_source *source, struct gpu_prefix *prefix,
                                      struct helm_err *err);
/* Bytes that this step copies over the link for borrowed layers. */
uint64_t gpu_program_borrowed(const struct gpu_source *source, const struct gpu_program *program,
                              const struct batch *batch);
void gpu_program_free(struct gpu_program *program, struct device *device);
void gpu_program_print(const struct gpu_source *source, const struct gpu_program *program, const char *title,
                       FILE *out);
