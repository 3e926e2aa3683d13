/* Where the state of a sequence lies, beyond pages: one definition for helmd and all workers (docs/state.md).
 *
 * Pages are kv_layout.h's. A layer with a fixed state has a *record* of one size at every position:
 *
 *   in a slot      [slot][fixed layers of one processor, in order]  in the memory of that processor; what the
 *                                                                   CPU keeps a GPU may compute in prompts,
 *                                                                   where it lies
 *   in a snapshot  [snapshot][fixed layers of the model, in order]  in the arena, whichever processor
 *                                                                   computes them
 *
 * Records begin on STATE_ALIGN bytes. A step's row goes on from its slot's records, from zeros if it begins
 * at position 0, or from a snapshot; after some of its tokens it may leave snapshots. Which snapshot stands
 * for which tokens is helmd's alone (daemon/steps/snapshots.h).
 *
 * Windows (common/plan/state.h) lie in pages as kv_layout.h has them, of the layers that have one. In each
 * memory their pool begins after that of the other layers' pages. Header-only, no state. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "common/model/unit.h"
#include "common/shared/kv_layout.h"

/* Bytes of one slot and of one snapshot; both 0 where no layer has a fixed state. */
struct state_layout {
    uint64_t slot_bytes; /* in one processor's memory */
    uint64_t snapshot_bytes;
};

/* One layer's record: its bytes, and where it lies in a slot and in a snapshot. */
struct state_record {
    uint64_t bytes, slot_at, snapshot_at;
    uint64_t phases; /* bit p: a worker computes the layer in phase p of the plan (plan_state_records) */
};
/* Whether that worker begins and leaves the record in a step of this phase. */
static inline bool state_is_in(const struct state_record *r, uint32_t phase)
{
    return r->phases >> phase & 1;
}

#define STATE_WINDOWS_ALIGN 256u

/* Rows of steps name snapshots from 1 on. */
#define STATE_NO_SNAPSHOT 0u

/* Where the pool of windows begins in a memory whose pages are of this layout. */
static inline uint64_t state_windows_at(const struct kv_layout *pages, uint64_t page_count)
{
    return (page_count * kv_page_bytes(pages) + STATE_WINDOWS_ALIGN - 1) / STATE_WINDOWS_ALIGN *
           STATE_WINDOWS_ALIGN;
}
/* Pages in front of the first that a row at `start` sees: what their entries say means nothing. */
static inline uint32_t state_window_hidden(uint32_t start, uint32_t window_tokens, uint32_t page_tokens)
{
    return start + 1 > window_tokens ? (start + 1 - window_tokens) / page_tokens : 0;
}

static inline uint64_t state_in_slot(const struct state_layout *l, const struct state_record *r,
                                     uint32_t slot)
{
    return slot * l->slot_bytes + r->slot_at;
}
static inline uint64_t state_in_snapshot(const struct state_layout *l, const struct state_record *r,
                                         uint32_t snapshot)
{
    return (snapshot - 1) * l->snapshot_bytes + r->snapshot_at;
}
