/* What a step costs: prices of every unit on every resource, and a simulation of the three resources.
 *
 * Called by search.c and by whoever explains a plan. Pure. docs/planner.md has the equations and their
 * sources. A unit is half a layer (common/plan.h). */
#ifndef HELM_DAEMON_PLANNER_COST_H
#define HELM_DAEMON_PLANNER_COST_H

#include "common/plan.h"
#include "daemon/planner/analyse.h"
#include "daemon/planner/profile.h"

/* One step: `tokens` over all rows. Decode: one token a row, so tokens == rows == batch. */
struct cost_step {
    uint32_t tokens, rows;
    uint32_t samples; /* rows whose logits are needed */
    uint32_t context; /* positions that a row's last token attends to, itself included */
    enum dtype kv_dtype;
};

/* Prices in seconds. `beside`: while the link streams (CPU), while the CPU computes (link). */
struct cost_unit {
    double cpu, cpu_beside;
    double gpu;               /* weights in VRAM or in the ring */
    double link, link_beside; /* copying its weights */
    double borrow;  /* link: its KV pages in and out, where the cache is the host's and it is computed
                       on the GPU (prefill) */
    uint64_t bytes; /* of weights */
    const char *cpu_bound, *gpu_bound; /* "memory", "compute", "overhead": for bound_by */
};

struct cost_table {
    uint32_t units;
    struct cost_unit *unit;       /* [units] */
    struct cost_unit embed, head; /* link unused */
    double hand_over, step,
        slice;         /* slice: what the last slice of a streamed unit takes the GPU after it came */
    double activation; /* seconds for the step's residual streams to cross once, in hand_over's stead
                          for the part beyond 8 KiB */
};

HELM_MUST_CHECK int cost_price(const struct model *model, const struct analyse_table *analysed,
                               const struct profile *profile, const struct cost_step *step,
                               struct cost_table *table, struct helm_err *err);
void cost_table_free(struct cost_table *table);

/* Homes of all units in one phase; which of them hold their KV on the host follows from `kv_cpu`. */
struct cost_plan {
    const enum plan_home *home; /* [units] */
    const bool *kv_cpu;         /* [units / 2] layers whose cache is the CPU's; NULL: as `home` says */
    enum plan_home embed, head; /* cpu or gpu */
    uint64_t ring_bytes;
};

enum cost_resource { COST_CPU, COST_GPU, COST_LINK, COST_RESOURCES };
/* For the plot and the table of stages. unit: UINT32_MAX for embed, UINT32_MAX - 1 for head. */
struct cost_span {
    enum cost_resource resource;
    uint32_t unit;
    double from, to; /* seconds from the step's begin */
};
struct cost_result {
    double seconds;              /* of the step, in the steady state: every step like the one before */
    double busy[COST_RESOURCES]; /* of them, each resource was working */
    double hand_overs;           /* seconds */
    double *done;           /* [units + 2] caller's or NULL: when each unit was done; then head, then step */
    struct cost_span *span; /* caller's, [span_max], or NULL: the timeline */
    uint32_t span_max, span_count;
};
/* Never fails. `done` and `span` are filled when given. */
void cost_simulate(const struct cost_table *table, const struct cost_plan *plan, struct cost_result *result);

/* Relative half-width of what the profile's spreads make of a step's time: for error bars. */
double cost_uncertainty(const struct profile *profile, const struct cost_table *table,
                        const struct cost_plan *plan, const struct cost_result *result);

#endif
