/* The CPU engine without helmd: an arena, a plan and a model folder in this process.
 *
 * Called by tests and benchmarks. Slot s owns pages s * pages_per_slot ...; every slot is ready to use,
 * greedy. With fewer pages than that a slot begins at its share of them, and goes on in those of the next
 * ones. */
#pragma once

#include "worker-cpu/engine.h"

struct local_options {
    const char *folder;
    const char *kernels;     /* NULL: the fastest */
    const struct plan *plan; /* borrowed while it opens; NULL: all on the CPU */
    bool pack_cpu;           /* of that one, where plan is NULL */
    bool invariant;          /* likewise */
    uint32_t expert_parts;   /* likewise; 0: experts are whole */
    enum kv_dtype kv_dtype;
    uint32_t threads; /* 0: one a core */
    const int *node;  /* NUMA node, -1: none; NULL: the one with the most memory available */
    uint32_t slots, context_tokens, step_tokens;
    uint32_t snapshots;    /* of fixed states */
    uint32_t draft_tokens; /* plan.h */
    bool drafts;           /* with the layer that makes them */
    uint32_t page_tokens;  /* 0: KV_PAGE_TOKENS_DEFAULT */
    uint32_t spin_us;      /* 0: POOL_SPIN_US_DEFAULT */
    bool pin;
    bool blank;         /* matrices are zeros and not read */
    struct model *made; /* in the place of `folder`, likewise blank: taken (engine.h) */
    uint32_t pages;     /* that all slots share; 0: each has as many as a context needs */
};

struct local {
    struct arena arena;
    struct engine engine;
    uint32_t serial, pages_per_slot;
};

HELM_MUST_CHECK int local_open(const struct local_options *options, struct local *local,
                               struct helm_err *err);
void local_close(struct local *local);

/* Runs one step over `rows` and returns its result, valid until ARENA_STEP_RING steps later. Tokens must be
 * in arena_history_of before. */
HELM_MUST_CHECK int local_step(struct local *local, const struct step_row *rows, uint32_t row_count,
                               const struct step_result **result, struct helm_err *err);
