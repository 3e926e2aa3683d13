/* Choosing homes: the fastest assignment of {gpu, cpu, stream} to units that memory allows.
 *
 * Called by planner.c and helm-plan. Pure; it knows of memory only what it is told here, as sums.
 * docs/planner.md says how it searches and how near the optimum it is. */
#pragma once

#include "daemon/planner/cost/cost.h"
#include "daemon/planner/profile/policy.h"

/* Bytes by home. Fixed bytes (context, workspace, activations ...) are already taken off the limits; the KV
 * of a layer is with its attention unit: with `gpu` and `stream` in VRAM, with `cpu` on the host. */
struct search_bytes {
    uint64_t vram, host;
};
#define SEARCH_HOMES (PLAN_HOME_STREAM + 1)
struct search_memory {
    uint64_t vram_limit, host_limit;
    const struct search_bytes
        *unit; /* [units][SEARCH_HOMES], by PLAN_HOME_CPU, PLAN_HOME_GPU, PLAN_HOME_STREAM */
    struct search_bytes embed[2], head[2]; /* by PLAN_HOME_CPU, PLAN_HOME_GPU */
    struct search_bytes tied_both[2];      /* of a tied model: both ends there, so that they exist once */
    /* Once, as soon as something is there: a unit or an end on `cpu`; a unit or an end that the GPU computes;
     * a ring (beside the ring itself). */
    struct search_bytes cpu_any, gpu_any, stream_any;
    uint64_t ring_granule, ring_max; /* ring sizes that are tried are multiples, up to the largest */
    /* A plan that uses the GPU and leaves units on `cpu` has at least this much of a ring even where decode
     * does not stream, so that prefill can. 0: no ring then. */
    uint64_t ring_least;
};

enum search_strategy {
    SEARCH_BEST,    /* all homes, half layers */
    SEARCH_ALL_GPU, /* both ends too */
    SEARCH_ALL_CPU,
    SEARCH_THESIS,      /* one run of whole layers on the GPU, first or last, the rest on the CPU */
    SEARCH_STREAM,      /* what fits on the GPU, the rest streamed: no CPU */
    SEARCH_EXPERTS_CPU, /* all mixtures of experts on the CPU, all else on the GPU; without any: all-gpu */
    SEARCH_MIXED,       /* the same, of which experts.c makes experts in both memories */
    SEARCH_STRATEGIES
};
const char *search_strategy_name(enum search_strategy strategy); /* "best", "all-gpu", ... */
/* Whether its plans may have the CPU read packed weights: not where others' plans are followed, which read
 * them as they are in the files, nor where a layer's experts lie in both memories, since no kernel of the GPU
 * reads packed ones. */
bool search_strategy_packs(enum search_strategy strategy);

struct search_problem {
    const struct cost_table *decode; /* prices of the decode step that counts */
    const struct search_memory *memory;
    bool device;       /* there is a GPU */
    bool must_use;     /* the device: a unit or an end on it */
    bool must_attend;  /* on the device: some layer's cache is there */
    bool tied;         /* embedding and head are the same bytes and stay together */
    bool whole_layers; /* no cuts inside layers */
    bool no_stream;
    uint32_t second;   /* the last half layers, which a second device has: to the search they are on `gpu` */
    unsigned together; /* homes of units that are together (cost_unit), as a set; 0: search_run tries both
                          processors */
};

struct search_found {
    bool feasible;
    enum plan_home *home; /* [units], owned */
    enum plan_processor embed, head;
    uint64_t ring_bytes;
    double seconds;      /* of the decode step, as simulated */
    double fastest;      /* of all plans that were tried: `seconds` is at most SEARCH_ALIKE above it */
    bool exact;          /* no plan of the strategy's space is faster: it was searched to its end */
    uint64_t vram, host; /* of what search_memory counts */
    /* Where nothing fits: by how much each limit would have to grow, if only that one did; UINT64_MAX: no
     * such growth alone would do. */
    uint64_t more_vram, more_host;
    uint64_t tried; /* plans, most of them simulated */
};
/* A space without any feasible plan is no error: found->feasible says so. HELM_E_LIMIT: a problem that is
 * none. */
HELM_MUST_CHECK int search_run(const struct search_problem *problem, enum search_strategy strategy,
                               struct search_found *found, struct helm_err *err);
void search_found_free(struct search_found *found);
/* Homes for steps of many tokens, given where decode put the bytes: units on `gpu` stay, the others become
 * `cpu` or `stream`, whichever makes the step fastest. `prefill`: prices of such a step. Without a ring
 * nothing becomes `stream`; a layer whose cache is in VRAM cannot attend on the CPU. */
HELM_MUST_CHECK int search_prefill(const struct cost_table *prefill, const struct search_found *decode,
                                   enum plan_home *home, double *seconds, struct helm_err *err);
/* From how many tokens on `b` is faster than `a`: the least such number in [from, to] from which on it stays
 * faster, or 0. Both are priced anew at each. */
struct search_crossover {
    const struct model *model;
    const struct analyse_table *analysed;
    const struct profile *profile;
    const struct search_found *decode;
    const enum plan_home *a, *b;
    uint32_t context; /* of the step's last token; steps of more tokens begin at 0 */
    enum kv_dtype kv_dtype;
    struct cost_tiers kv;
    const enum tensor_format (*format)[PLAN_HOMES]; /* as cost_step's */
};
HELM_MUST_CHECK int search_crossing(const struct search_crossover *crossover, uint32_t from, uint32_t to,
                                    uint32_t *tokens, struct helm_err *err);
