/* The thesis's plan: one run of layers on the GPU, the rest on the CPU.
 *
 * Called by planner.c. Pure: tries every such plan against the ledgers, a few hundred at most, each in
 * microseconds, and takes the best that fits. What is best needs no profile as long as the GPU reads its
 * memory much faster than the CPU does the host's:
 *   1. the least time of a token: the bytes of weights that the CPU reads for it, and the hand-overs. So as
 *      many layers as fit go to the GPU, and the head before them where it fits: it counts as much a byte,
 *      but needs no KV beside it. The GPU's layers are the last ones when the head is there and the embedding
 *      is not, the first ones when it is the other way round. What saves less than the hand-overs that it
 *      causes does not move.
 *   2. the least VRAM. An embedding is a lookup: it goes where it saves a hand-over or costs no VRAM.
 * Of a tied model embedding and head are the same bytes and stay together, so that they exist once. */
#ifndef HELM_DAEMON_PLANNER_SPLIT_H
#define HELM_DAEMON_PLANNER_SPLIT_H

#include "daemon/planner/ledger.h"

struct split {
    uint32_t gpu_layers;
    bool gpu_first; /* they are the first ones, else the last */
    enum plan_home embed, head;
};

struct split_search {
    bool found;
    struct split best;
    uint64_t best_ns;     /* a token's time outside the GPU */
    struct split nearest; /* where nothing fits: what is least too large */
    /* Where nothing fits: which one limit, if only it were this high, would do; UINT64_MAX: none alone. */
    uint64_t least_vram, least_host;
};

/* Tries every split with this context and the smallest pool. `plan` is scratch: its stages hold two. */
HELM_MUST_CHECK int split_search(const struct ledger_case *c, uint32_t ctx, struct plan *plan,
                                 struct split_search *search, struct helm_err *err);
/* A token's time outside the GPU when everything is computed on the CPU. */
uint64_t split_cpu_only_ns(const struct analyse_table *table);
/* Writes a split's stages, embedding and head into `plan`, whose stages hold two. */
void split_apply(const struct split *split, const struct analyse_table *table, struct plan *plan);

#endif
