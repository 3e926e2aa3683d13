/* All memory of a plan, line by line, before any of it is taken: on the host and on the device.
 *
 * Called by planner.c and memory.c. Pure: the machine is passed in, so tests can state any. A plan fits when
 * both sums stay under their limits: on the host the lowest of --host-memory, the cgroup's and the machine's
 * free memory, with several NUMA nodes that of the node that weights and cache are bound to; on the device
 * the lower of --vram and what is free there. The limit on locked memory (RLIMIT_MEMLOCK) is none of them: it
 * counts what mlock(2) holds, and HELM locks nothing that way. The arena's weights, cache and lanes are
 * pinned by the CUDA driver's registration, which that limit does not see; they count in full in the host's
 * sum, since pinned pages cannot be swapped out. */
#pragma once

#include <stdbool.h>

#include "common/shared/arena.h"
#include "common/base/cgroup.h"
#include "common/base/err.h"
#include "common/model/model.h"
#include "common/plan/placement.h"
#include "daemon/planner/cost/analyse.h"
#include "daemon/planner/memory/packed_sample.h"
#include "daemon/planner/profile/policy.h"

#define LEDGER_CTX_DEFAULT_MAX 8192
#define LEDGER_POOL_TOKENS     (2 * LEDGER_CTX_DEFAULT_MAX) /* in the KV pool by default */
#define LEDGER_WINDOWS                                                                                       \
    2 /* pages of windows by default: what all slots need, and as much for those that rest */
/* Pools are rounded up to a huge page in the arena, and allocations on the device to its own granularity. */
#define LEDGER_ROUNDING_BYTES (2 * ARENA_HUGE_PAGE)

struct ledger_wish {
    enum kv_dtype kv_dtype;
    uint32_t slots;
    uint32_t draft_tokens;      /* plan.h */
    uint32_t step_tokens;       /* 0: choose (planner_make only) */
    uint32_t ctx;               /* 0: choose */
    uint32_t page_count;        /* 0: choose (--kv-tokens or a plan from a file states it) */
    uint32_t page_tokens;       /* a power of two */
    uint32_t vram_page_count;   /* two tiers of the cache, with at least this many places; 0: one tier */
    uint32_t free_places;       /* of each sequence (plan.h, kv_free_places) */
    bool places_stand;          /* exactly that many: what is left of VRAM stays free */
    uint32_t batch;             /* contexts that the pool must hold at once at least; 0: 1 */
    uint32_t threads;           /* for the estimate of private buffers */
    bool pack;                  /* streamed weights cross the link packed, where they can be */
    bool pack_cpu;              /* the CPU reads its weights packed; in a request: its processor has
                                   kernels for that */
    bool pack_all;              /* in a request: also beside a device where the forecast gains little */
    bool pack_gpu;              /* all that can be is packed in VRAM; in a request: it may be */
    struct packed_parts parts;  /* packed sizes, where weights were sampled */
    uint64_t host_memory_bytes; /* 0: not stated */
    uint64_t snapshot_bytes;    /* for snapshots of fixed states (docs/state.md); 0: choose */
    bool windows_stand; /* windows as a plan from a file says: this many pages, or 0: layers keep all pages */
    uint32_t window_page_count;
    /* The last half layers that a second device has in its memory, and whether it has the head if a device
     * has; 0: no second one is used */
    uint32_t second_units;
    bool second_head;
};

/* The accelerator that may be planned for. */
enum ledger_device_kind { LEDGER_DEVICE_NONE, LEDGER_DEVICE_CUDA, LEDGER_DEVICE_EMULATED };
struct ledger_device {
    enum ledger_device_kind kind;
    uint64_t limit; /* bytes, for everything the GPU worker allocates there */
    char limit_from[96];
    uint64_t context_bytes;                  /* the driver's own */
    uint64_t graph_bytes, graph_layer_bytes; /* of captured steps: at all events, and for each layer */
    uint64_t graph_slice_bytes;              /* and for each slice of streamed weights */
    uint64_t library_bytes;
};

struct ledger_machine {
    struct cgroup_memory memory;
    struct ledger_device device;
    struct ledger_device second; /* kind NONE: there is one device at most */
};
static inline const struct ledger_device *ledger_device_of(const struct ledger_machine *machine,
                                                           enum plan_processor processor)
{
    return plan_device_index(processor) ? &machine->second : &machine->device;
}

struct ledger_case {
    const struct model *model;
    const struct ledger_wish *wish;
    const struct ledger_machine *machine;
    const struct analyse_table *table;
};

/* Whether a half layer is the second device's by the wish. */
static inline bool ledger_is_second(const struct ledger_case *c, uint32_t unit)
{
    return unit + c->wish->second_units >= unit_count(c->table->layers);
}
/* Where the host's limit comes from: "free of the machine's 23 GiB". Returns the limit. */
#define LEDGER_FROM_TEXT 96
uint64_t ledger_host_limit(const struct ledger_case *c, char from[LEDGER_FROM_TEXT]);

/* Bytes of all pages of one layer: its part of a pool, or of the staging memory for a borrowed cache. */
uint64_t ledger_kv_layer_bytes(const struct ledger_case *c, uint32_t page_count);
/* The same of a layer that keeps a window. */
uint64_t ledger_window_layer_bytes(const struct ledger_case *c, uint32_t page_count);
/* Bytes of the GPU's staging memory. */
struct plan_staging;
uint64_t ledger_staging_bytes(const struct ledger_case *c, const struct plan_staging *staging);
/* Bytes of all slots' records of a layer; 0: its state is not fixed. */
uint64_t ledger_state_layer_bytes(const struct ledger_case *c, uint32_t layer);
/* Pages of windows for a pool of page_count pages; 0: windows would take as much as all pages do, and layers
 * keep these. Whether this layer keeps a window then. */
uint32_t ledger_window_pages(const struct ledger_case *c, uint32_t page_count);
bool ledger_keeps_window(const struct ledger_case *c, uint32_t page_count, uint32_t layer);
/* How many snapshots the wish states; 0: none. */
uint32_t ledger_stated_snapshots(const struct ledger_case *c);
/* Places in VRAM that the wish comes to with steps of wish.step_tokens: as many as it says, or as these need;
 * 0: one tier. */
uint32_t ledger_places(const struct ledger_case *c, uint32_t ctx);
/* Whether chunks append in the arena with that many (plan_appends_in_arena). */
bool ledger_appends_in_arena(const struct ledger_case *c, uint32_t ctx);
/* Captured steps' share for a half layer that the GPU computes; with a ring, whose size is that of its
 * slices: where its weights are streamed. */
uint64_t ledger_graph_bytes(const struct ledger_case *c, uint32_t unit, uint64_t ring_bytes);
/* Matrices whose rows are used in pairs with this one's, itself among them: two of gate and up, of others
 * one. */
uint32_t ledger_matrices_together(const struct model *model, const struct model_tensor *t);
/* Room in VRAM for a half layer's matrices, or the head, packed (placement_room). */
uint64_t ledger_packed_unit_bytes(const struct ledger_case *c, uint32_t unit);
uint64_t ledger_packed_head_bytes(const struct ledger_case *c);
/* Host memory that every plan needs: processes, and the arena without lanes, cache and weights. */
HELM_MUST_CHECK int ledger_fixed_host_bytes(const struct ledger_case *c, uint32_t ctx, uint64_t *bytes,
                                            struct helm_err *err);
/* The bytes that model_math.inputs read: tables in host memory, what is multiplied wherever MLP halves are
 * computed, and the embedding. */
struct ledger_inputs {
    uint64_t table, product, embedding;
};
struct ledger_inputs ledger_inputs_bytes(const struct ledger_case *c);
/* The GPU worker's share of host memory: driver and staging. */
uint64_t ledger_gpu_host_bytes(const struct ledger_case *c);
/* The GPU worker's host memory for draws, where it has the head: GPU_DRAW_SLOT_BYTES for each slot, then the
 * drawing threads' scratch. */
uint64_t ledger_draw_bytes(const struct ledger_case *c);
/* The CPU worker's private buffers (common/plan/workspace.h), when it computes units in steps of up to `most`
 * tokens, both ends, and packed weights where that is wished. */
uint64_t ledger_cpu_buffer_bytes(const struct ledger_case *c, uint32_t most);
/* The GPU worker's buffers in VRAM for steps of `step_tokens` tokens (common/plan/workspace.h), without what
 * the device's libraries take for the products of chunks (ledger_device.library_bytes). */
struct ledger_workspace {
    uint32_t step_tokens, ctx;
    bool layers, head; /* whether the GPU computes some */
    bool tiered;       /* whether the cache has two tiers */
    bool windows;      /* whether some layer keeps one */
};
uint64_t ledger_workspace_bytes(const struct ledger_case *c, const struct ledger_workspace *what);

/* Writes both ledgers of the plan's lists with this context and this many pages, the plan's sizes, and the
 * arena's layout. Weights take what the plan's placements say, which are made where it has none. Fails only
 * when weights or arena cannot be laid out at all. */
HELM_MUST_CHECK int ledger_write(const struct ledger_case *c, uint32_t ctx, uint32_t page_count,
                                 struct plan *plan, struct arena_spec *spec, struct helm_err *err);
/* The same of a model that is cut as workers cut theirs (memory/shared.c). */
HELM_MUST_CHECK int ledger_write_cut(const struct ledger_case *c, uint32_t ctx, uint32_t page_count,
                                     struct plan *plan, struct arena_spec *spec, struct helm_err *err);
/* Its part for weights on disk (memory/disk.c): adds what the files have, and what host memory has for
 * them. */
HELM_MUST_CHECK int ledger_write_disk(const struct model *model, struct plan *plan, struct helm_err *err);
bool ledger_fits(const struct plan *plan);
/* The first memory whose ledger is over its limit; PLAN_MEMORIES: none is. */
enum plan_memory ledger_over(const struct plan *plan);
/* The one that a refusal of the plan speaks of: where none is over its limit, the device's. */
enum plan_memory ledger_refused(const struct plan *plan);
/* Pages of the smallest pool for a context: as stated, or one whole context for each of the batch; no fewer
 * than there are places. */
uint32_t ledger_least_pages(const struct ledger_case *c, uint32_t ctx);

/* For a plan whose lists stand, with a context: chooses the pools and fills in plan's sizes and ledgers and
 * the arena's. HELM_E_CAPACITY names every line and the limit. */
HELM_MUST_CHECK int ledger_fit(const struct ledger_case *c, uint32_t ctx, struct plan *plan,
                               struct arena_spec *spec, struct helm_err *err);
/* Its part for snapshots where their number is not stated: for a plan that has everything else. */
HELM_MUST_CHECK int ledger_fit_snapshots(const struct ledger_case *c, uint32_t ctx, struct plan *plan,
                                         struct arena_spec *spec, struct helm_err *err);
/* "needs A, has B (from): line, line ..." of the ledger that is over its limit (the host's if both are). */
void ledger_describe(const struct ledger_case *c, const struct plan *plan, char *text, size_t size);

/* One log line for each line of the ledger. */
void ledger_log(const char *where, const struct ledger *ledger);
