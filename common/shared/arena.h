/* The arena: one sealed memfd that helmd creates and every worker maps.
 *
 * helmd: arena_create -> fill slots/history/... -> hand arena.fd to children. Workers: arena_attach (checks
 * magic, ABI, sizes, every region inside the file). The mapping belongs to the struct; arena_close unmaps and
 * closes. Huge pages: shared memory gets none by default on most systems, so ranges are collapsed with
 * madvise(MADV_COLLAPSE) (Linux 6.1) as they are first touched; where that fails the range stays on small
 * pages and is counted, and the counts are reported in READY and in the log. Nothing falls back silently. */
#pragma once

#include "common/shared/arena_layout.h"
#include "common/base/err.h"
#include "common/shared/lane.h"

struct arena {
    int fd;
    void *base;
    uint64_t bytes;
};

/* The arena to lay out. kv.layers etc. describe the host KV pool; weight_bytes may be 0. */
struct arena_spec {
    uint32_t slots, context_tokens, step_tokens, hidden, vocab;
    uint32_t samples; /* as in the header; 0: slots */
    uint32_t lanes[ARENA_LANE_KINDS];
    struct kv_layout kv;
    uint32_t page_count;
    uint32_t window_tokens, window_page_count, window_layers; /* as in the header */
    uint32_t window_kv_heads, window_head_dim;                /* zeros: as kv has them */
    uint32_t vram_page_count, kv_heads_asking;                /* likewise; both 0 with one tier */
    uint32_t experts_chosen, experts, expert_layers;          /* likewise */
    uint64_t session_bytes;                                   /* of the session region */
    struct state_layout state; /* of the state region; both 0: no state is fixed */
    uint32_t snapshot_count;
    uint64_t weight_bytes;
};

/* Computes every region's place into *header without creating anything (the ledger uses it too). Overflow is
 * HELM_E_LIMIT. Regions start on whole pages (kv, weights: on 2 MiB) in the order of their ids; logits has
 * one row of vocab floats a sample (all together at least two of hidden floats), pooled one of hidden
 * doubles; the total is a multiple of 2 MiB. */
HELM_MUST_CHECK int arena_plan(const struct arena_spec *spec, struct arena_header *header,
                               struct helm_err *err);

/* memfd_create + ftruncate + F_SEAL_SHRINK|F_SEAL_GROW|F_SEAL_SEAL + map (2 MiB-aligned) + header. Doorbells
 * and lanes are at 0; no other page is touched. The descriptor is close-on-exec: dup2 it for a child. */
HELM_MUST_CHECK int arena_create(const struct arena_spec *spec, struct arena *arena, struct helm_err *err);
/* Checks seals and the whole header, then maps. The descriptor becomes the arena's on success only. */
HELM_MUST_CHECK int arena_attach(int fd, struct arena *arena, struct helm_err *err);
void arena_close(struct arena *arena);

/* Typed views. Pointers are borrowed from the mapping. */
static inline struct arena_header *arena_header_of(const struct arena *a)
{
    return (struct arena_header *)a->base;
}
static inline void *arena_region_ptr(const struct arena *a, enum arena_region_id id)
{
    return (char *)a->base + arena_header_of(a)->region[id].offset;
}
static inline struct arena_control *arena_control_of(const struct arena *a)
{
    return (struct arena_control *)arena_region_ptr(a, ARENA_REGION_CONTROL);
}
static inline struct arena_slot *arena_slot_of(const struct arena *a, uint32_t slot)
{
    return (struct arena_slot *)arena_region_ptr(a, ARENA_REGION_SLOTS) + slot;
}
static inline uint32_t *arena_history_of(const struct arena *a, uint32_t slot)
{
    return (uint32_t *)arena_region_ptr(a, ARENA_REGION_HISTORY) +
           (uint64_t)slot * arena_header_of(a)->context_tokens;
}
/* Words of a slot's mask: whole cache lines, so that rows of different slots share none. */
static inline uint32_t arena_mask_words(uint32_t vocab)
{
    return (vocab + 511) / 512 * 16;
}
/* Id i is bit i % 32 of word i / 32. */
static inline uint32_t *arena_mask_of(const struct arena *a, uint32_t slot)
{
    return (uint32_t *)arena_region_ptr(a, ARENA_REGION_MASKS) +
           (uint64_t)slot * arena_mask_words(arena_header_of(a)->vocab);
}
static inline uint32_t *arena_page_table_of(const struct arena *a, uint32_t slot)
{
    return (uint32_t *)arena_region_ptr(a, ARENA_REGION_PAGE_TABLE) +
           (uint64_t)slot * arena_header_of(a)->pages_per_slot;
}

/* The same of windows: in lines after those of all slots. */
static inline uint32_t *arena_window_table_of(const struct arena *a, uint32_t slot)
{
    return arena_page_table_of(a, arena_header_of(a)->slots + slot);
}
/* The host's pool of windows after the pages of the kv region, and its layout. */
static inline struct kv_layout arena_window_layout(const struct arena *a)
{
    struct kv_layout kv = arena_header_of(a)->kv;
    kv.layers = arena_header_of(a)->window_layers;
    kv.kv_heads = arena_header_of(a)->window_kv_heads;
    kv.head_dim = arena_header_of(a)->window_head_dim;
    return kv;
}
static inline void *arena_window_pool(const struct arena *a)
{
    const struct arena_header *h = arena_header_of(a);
    return (char *)arena_region_ptr(a, ARENA_REGION_KV) + state_windows_at(&h->kv, h->page_count);
}

/* For those who run a worker without helmd: each slot has a part of the pages of its own, as far as they go,
 * and neutral sampling. */
void arena_share_pages(const struct arena *arena);

static inline uint32_t *arena_vram_table_of(const struct arena *a, uint32_t slot)
{
    return (uint32_t *)arena_region_ptr(a, ARENA_REGION_VRAM_TABLE) +
           (uint64_t)slot * arena_header_of(a)->pages_per_slot;
}
static inline struct arena_experts *arena_experts_of(const struct arena *a)
{
    return (struct arena_experts *)arena_region_ptr(a, ARENA_REGION_EXPERTS);
}
/* [expert_layers][experts] */
static inline _Atomic uint64_t *arena_expert_uses_of(const struct arena *a)
{
    return (_Atomic uint64_t *)(arena_experts_of(a) + 1);
}

/* A snapshot, from 1 on: [state.snapshot_bytes] */
static inline void *arena_snapshot_of(const struct arena *a, uint32_t snapshot)
{
    return (char *)arena_region_ptr(a, ARENA_REGION_SNAPSHOTS) +
           (snapshot - 1) * arena_header_of(a)->state.snapshot_bytes;
}

/* A link's lane of a kind, below the header's number of those; the same of activations. */
static inline struct lane *arena_lane_at(const struct arena *a, enum arena_lane_kind kind, uint32_t link)
{
    const struct arena_header *h = arena_header_of(a);
    const struct arena_region *region = &h->region[ARENA_REGION_LANES + kind];
    return (struct lane *)((char *)a->base + region->offset + link * (region->bytes / h->lanes[kind]));
}
static inline struct lane *arena_lane_of(const struct arena *a, uint32_t link)
{
    return arena_lane_at(a, ARENA_LANE_STEP, link);
}
/* Empties all lanes, as arena_create does. No worker may use one meanwhile. */
void arena_empty_lanes(const struct arena *arena);
static inline float *arena_logits_of(const struct arena *a, uint32_t sample)
{
    return (float *)arena_region_ptr(a, ARENA_REGION_LOGITS) + (uint64_t)sample * arena_header_of(a)->vocab;
}

/* [hidden] */
static inline double *arena_pooled_of(const struct arena *a, uint32_t slot)
{
    return (double *)arena_region_ptr(a, ARENA_REGION_POOLED) + (uint64_t)slot * arena_header_of(a)->hidden;
}

/* Touches and collapses [offset, offset + bytes) into huge pages, 2 MiB at a time; bind to a NUMA node before
 * calling. Adds to *huge_bytes and *small_bytes what became of it. Thread-safe on disjoint ranges. Contents
 * stay as they are. A worker calls it again on pages that another process made huge, to get the huge mapping
 * too. */
void arena_populate(const struct arena *arena, uint64_t offset, uint64_t bytes, uint64_t *huge_bytes,
                    uint64_t *small_bytes);

/* mbind(2) of a range (offset: a multiple of 4096) to a node, before it is touched; arena_node_of verifies
 * where a touched page really is. */
HELM_MUST_CHECK int arena_bind(const struct arena *arena, uint64_t offset, uint64_t bytes, int node,
                               struct helm_err *err);
HELM_MUST_CHECK int arena_node_of(const struct arena *arena, uint64_t offset, int *node,
                                  struct helm_err *err);
