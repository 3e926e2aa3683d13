/* Both engines in one process, over one arena: two step threads, as in the worker processes, without helmd.
 *
 * Called by tests. Slot s owns pages s * pages_per_slot ...; every slot is ready to use, greedy. */
#pragma once

#include "common/plan/placement.h"
#include "common/worker/server.h"

enum pair_worker { PAIR_CPU, PAIR_GPU, PAIR_COUNT };

struct pair_options {
    const char *folder;
    /* Stages, prefill lists, ring_bytes, embed, head; copied by pair_open, which fills in the sizes below and
     * the model's layers; placements where it has none. */
    const struct plan *plan;
    double packed_part; /* room in VRAM for packed weights, by their bytes; 0: enough for any */
    const char *device, *kernels;
    enum kv_dtype kv_dtype;
    uint32_t threads, slots, context_tokens, step_tokens;
    uint32_t page_tokens; /* 0: KV_PAGE_TOKENS_DEFAULT */
    /* Places in VRAM: two tiers of the cache; 0: one. Slots have none yet: arena_vram_table_of is the
     * caller's. */
    uint32_t vram_pages, direct_permille, direct_window, piece_pages;
    uint64_t vram_bytes, copy_bytes_per_s;
    uint32_t peer_wait_ms;
    bool rings; /* layers with a window keep it alone: each slot has a ring of pages for it */
    bool no_graphs, no_chains;
    bool copy_rows; /* the GPU's logits of draws into the arena, as the CPU's are */
};

struct pair {
    struct arena arena;
    struct plan plan;
    struct server server[PAIR_COUNT];
    bool used[PAIR_COUNT]; /* the plan gives this worker something to do */
    int done_fd;
    uint32_t serial;
};

/* Zeroes *pair first; on failure everything is released. */
HELM_MUST_CHECK int pair_open(const struct pair_options *options, struct pair *pair, struct helm_err *err);
void pair_close(struct pair *pair);

/* Rings one step over `rows`; its result is valid once pair_wait has seen it, until ARENA_STEP_RING steps
 * later. Returns its serial. */
uint32_t pair_ring(struct pair *pair, const struct step_row *rows, uint32_t row_count,
                   const struct step_result **result);
/* The same of a step with flags (enum step_flags) and pages to fetch. */
struct pair_tiers {
    uint32_t flags, fetch_count;
    struct step_fetch fetch[ARENA_STEP_FETCH];
};
uint32_t pair_ring_tiers(struct pair *pair, const struct step_row *rows, uint32_t row_count,
                         const struct pair_tiers *tiers, const struct step_result **result);
/* Until every worker is done with that step. */
HELM_MUST_CHECK int pair_wait(struct pair *pair, uint32_t serial, struct helm_err *err);
/* A worker's times of its part of the last step rung. */
const struct arena_times *pair_times(const struct pair *pair, enum pair_worker worker);

/* Runs one step over `rows` with every worker and returns its result, valid until ARENA_STEP_RING steps
 * later. Tokens must be in arena_history_of before. */
HELM_MUST_CHECK int pair_step(struct pair *pair, const struct step_row *rows, uint32_t row_count,
                              const struct step_result **result, struct helm_err *err);
