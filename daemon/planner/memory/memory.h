/* The search's view of memory: for every unit, embedding and head the bytes that each home of it takes, and
 * the bytes that come with the first of a kind.
 *
 * Called by planner.c. Pure. The sums are made from the ledger's own parts (ledger.h) and err on the large
 * side only where a line does not add up by units: what the search finds to fit, fits the ledger. */
#pragma once

#include "daemon/planner/memory/ledger.h"
#include "daemon/planner/search/search.h"

struct memory_wish {
    uint32_t ctx, pages;
    bool device;  /* may be used */
    bool cpu;     /* may compute beside the device: lanes are needed */
    bool prefill; /* weights at home in the arena may be streamed for long prompts: keeps a ring */
    /* `cpu` of an MLP that two processors can share stands for `shared`, with this many rows in VRAM; 0: it
     * does not */
    uint32_t shared_rows;
    uint64_t less_vram; /* taken off the limits: by how much an earlier sum was too small */
    uint64_t less_host;
};

struct memory {
    struct search_memory search;
    struct search_bytes *unit;           /* [units][SEARCH_HOMES], search.unit points at it; owned */
    uint64_t vram_missing, host_missing; /* by how much the fixed bytes alone exceed a limit */
};
HELM_MUST_CHECK int memory_build(const struct ledger_case *c, const struct memory_wish *wish,
                                 struct memory *memory, struct helm_err *err);
void memory_free(struct memory *memory);
/* Units that are shared so, as memory_build has them. */
void memory_share_units(const struct ledger_case *c, uint32_t rows, struct search_bytes *unit);

/* The least bytes of a ring that can stream this model. A slice is some rows of an operation (of gate and up
 * as many of each), and while one slice is computed the next must have its place. */
uint64_t memory_ring_least(const struct model *model);
/* Ring sizes that are worth trying for this model and device: the smallest (and step), the largest. */
void memory_ring_sizes(const struct ledger_case *c, uint64_t *granule, uint64_t *largest);
/* Bytes of a whole assignment, as the search sums them up. */
struct search_bytes memory_sum(const struct memory *memory, const struct search_found *found, bool tied,
                               uint32_t units);
