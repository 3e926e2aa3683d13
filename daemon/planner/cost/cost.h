/* The cost of a step: prices of every unit on every resource, and a simulation of the three resources.
 *
 * Called by the search, by forecasts and by reports. Pure. docs/planner-prices.md has the equations and their
 * sources (T: thesis, P: PIPO, C: CPU-GPU distribution). A unit is half a layer (common/plan/plan.h). */
#pragma once

#include "common/plan/engine_limits.h"
#include "common/plan/plan.h"
#include "daemon/planner/cost/analyse.h"
#include "daemon/planner/profile/profile.h"
#include "daemon/planner/profile/policy.h"

/* A cache with two tiers: positions of each row that lie in the arena alone, and how many of 1,000 of them
 * the GPU reads itself where the CPU attends to the others, which it does not in layers of a window up to
 * direct_window (plan.h). All 0: one tier. */
struct cost_tiers {
    bool two;
    uint32_t host_tokens, direct_permille, direct_window;
    bool windows; /* layers with a window have all they see in their processor's memory */
};

/* Units whose experts lie in both memories (plan.h): slots of each, the part of the chosen ones that is in
 * VRAM, and how many of 1,000 missing ones the GPU reads itself. All 0: there are none. */
struct cost_experts {
    uint32_t slots, direct_permille;
    double hit;
    uint32_t disk_slots; /* of units whose experts lie on disk, in host memory; 0: there are none */
};
/* In the place of direct_permille: for each number of missing ones as many as makes the step shortest. No
 * plan is so; with any share of its own none is faster. */
#define COST_DIRECT_BEST UINT32_MAX

/* One step: `tokens` over all rows. Decode without drafts: one token a row, so tokens == rows == batch. */
struct cost_step {
    uint32_t tokens, rows;
    uint32_t samples; /* tokens whose logits are needed: of a row one, with drafts each */
    uint32_t context; /* positions that a row's last token attends to, itself included */
    enum kv_dtype kv_dtype;
    /* [units + 1]: in which a unit's matrices lie where it has a home, and the head's last; PLAN_AS_STORED:
     * as in the files, as all are where this is NULL. */
    const enum tensor_format (*format)[PLAN_HOMES];
    struct cost_tiers kv;
    struct cost_experts experts;
    uint32_t shared_rows; /* of MLPs that two processors share, the GPU's (plan.h); 0: none is */
    /* `invariant`: of an invariant plan (common/plan/schedule.h). `prompt`: the step is a chunk of a prompt
     * of this many tokens in all; 0: of as many as the step has, or no prompt where each row has one token */
    bool invariant;
    bool one_as_few; /* its GPU computes one token with the kernels of a few, but for products with blocks, in
                        chains */
    uint32_t prompt;
    uint32_t drafts; /* that each row makes for its next step, by the model's layer (model_config.drafts) */
};
/* Whether a step decodes: a token a row, or drafts as well, which are all sampled. Others have tokens of
 * prompts. */
static inline bool cost_step_decodes(const struct cost_step *step)
{
    return step->tokens == step->rows || step->tokens == step->samples;
}
/* A step of answers with drafts: `tokens` of all rows together, each sampled. A row attends to its own tokens
 * at least. */
static inline struct cost_step cost_step_drafted(uint32_t tokens, uint32_t rows, uint32_t context)
{
    const uint32_t own = (tokens + rows - 1) / rows;
    return (struct cost_step){.tokens = tokens,
                              .rows = rows,
                              .samples = tokens,
                              .context = context > own ? context : own};
}

/* Tokens that a row's drafts add on average, each right with probability `right` if those in front of it are.
 * *again: right ones that are computed again where the model has fixed states, since a later one is wrong. */
static inline double cost_draft_tokens(uint32_t drafts, double right, double *again)
{
    double sum = 0, reached = 1;
    *again = 0;
    for (uint32_t i = 0; i < drafts; i++) {
        *again += i * reached * (1 - right);
        reached *= right;
        sum += reached;
    }
    return sum;
}

/* On the link, and in the ring, packed weights have this part of their bytes. */
#define COST_PACKED_PART PROFILE_PACKED_PART

/* An attention half on the GPU whose cache lies partly in the arena alone. Parts of `gpu` and of `stream`: */
struct cost_kv {
    double way; /* the query's to the CPU, and as long the way back; 0: the CPU does not attend */
    double cpu,
        cpu_beside; /* the CPU attends, alone and while the link streams, and the GPU with it or waits */
    double link;    /* no part of them: seconds that the link has nothing left for copies of weights */
};

/* Prices in seconds. `beside`: while the link streams (CPU), while the CPU computes (link). */
struct cost_unit {
    double cpu, cpu_beside; /* T 4.8, 4.10, 4.13: linears and attention, each the slower of bytes and work */
    double gpu;             /* weights in VRAM, packed or not */
    double gpu1;            /* the same of a second device; of one like the first, or without, equal */
    double stream;          /* weights in the ring, in slices: gpu, and an operation for each slice more */
    double link, link_beside; /* copying its weights */
    double borrow;     /* link: its KV pages in and out, where the cache is the host's and it is computed
                      on the GPU (prefill) */
    struct cost_kv kv; /* two tiers */
    double mixed; /* experts in both memories: on the GPU, with what the CPU computes of them, which is: */
    struct cost_kv mixed_kv;
    double disk; /* experts on disk: on the CPU, with waiting for those that are read; whole units: `cpu` */
    double disk_wait; /* of experts, the part of it; of whole units what reading takes more than computing */
    double read;      /* a whole unit from disk */
    double shared,
        shared_beside; /* an MLP of two processors: the CPU's rows, or what the GPU's take in addition */
    /* Prefill, of the host's cache in two tiers or fixed state: more seconds of the GPU, and of the link as
     * kv.link */
    double borrow_gpu, borrow_link;
    uint64_t bytes;                /* of weights */
    uint64_t crossing;             /* of them over the link, and in the ring */
    bool packed;                   /* so crossing is less than bytes, and the GPU expands them first */
    bool cpu_packed;               /* `cpu` and `cpu_beside` are of packed weights */
    bool gpu_packed;               /* `gpu` is */
    bool experts;                  /* it is a mixture */
    bool stays;                    /* it is not streamed in such a step: experts but of a chunk */
    bool together;                 /* attention to a cache that several layers read: all on one processor */
    bool cpu_measured;             /* `cpu` is the model's own program's time, not by rates; */
    bool gpu_measured;             /* and `gpu`, by which `stream` and `mixed` are moved */
    double gpu_beside;             /* times as long as `gpu` while the link copies; 0: not measured */
    double cpu_spread, gpu_spread; /* of the rates of its matrices' formats, beside bf16's: for error bars */
    const char *cpu_bound, *gpu_bound; /* "memory", "compute", "overhead": for bound_by */
};

struct cost_table {
    uint32_t units;
    uint32_t tokens;        /* of the step that was priced */
    bool follows;           /* it decodes: the device can have it before the step in front of it is done */
    struct cost_unit *unit; /* [units], then those of layers that make drafts, which are in the head's price:
                               they follow it there */
    struct cost_unit embed, head; /* link unused */
    double hand_over_more;        /* by which a hand-over is longer while the link copies */
    double hand_over, step,
        slice;         /* slice: what the last slice of a streamed unit takes the GPU after it came */
    double launch;     /* in the price of each end on the GPU. A step that the GPU computes alone does not
                          wait for it, since it is launched after the one before; 0 unless `follows` */
    double begin;      /* by which the GPU's first kernels are later than the prices of the ends say */
    double ready;      /* when it is through with them: of use where the embedding is the CPU's */
    double activation; /* seconds for the step's residual streams to cross once, beyond what hand_over's
                          price holds (T 4.15) */
};

static inline uint64_t cost_crossing_bytes(uint64_t bytes)
{
    return (uint64_t)((double)bytes * COST_PACKED_PART);
}

/* Whether expanding takes the GPU less than packing saves the link: else weights cross as they are. (On an
 * emulated device it takes more: that is a CPU beside a fast link.) */
bool cost_packing_pays(const struct profile *profile);
/* Whether one token's products of the CPU are faster with packed weights by enough to be worth their
 * kernels, alone or, if `beside`, while the link streams. Says nothing of several tokens', which unpack
 * first. */
bool cost_packing_pays_cpu(const struct profile *profile, bool beside);
/* Whether one token's products in VRAM are faster with packed weights than with plain ones, wherever those
 * fit. */
bool cost_packed_is_faster(const struct profile *profile);

/* Without a device in the profile the prices of GPU and link are infinite. HELM_E_FORMAT names a rate that is
 * missing, HELM_E_LIMIT a step that is none. */
HELM_MUST_CHECK int cost_price(const struct model *model, const struct analyse_table *analysed,
                               const struct profile *profile, const struct cost_step *step,
                               struct cost_table *table, struct helm_err *err);
void cost_table_free(struct cost_table *table);

/* Homes of all units in one phase; which of them hold their KV on the host follows from `kv_cpu`. */
struct cost_plan {
    const enum plan_home *home; /* [units] */
    const bool *kv_cpu;         /* [layers] whose cache is the CPU's; NULL: as `home` says */
    enum plan_processor embed, head;
    uint64_t ring_bytes;
    bool
        reads; /* the link is the disk, whose ring is full whenever a step has time for it: no unit streams */
    bool cold; /* prefill: nothing is copied ahead for the next step, and of this one only what follows */
    uint64_t held_bytes; /* cold: bytes of its first streamed units that the ring holds already */
    double link_late;    /* cold: seconds that the link needs first, for copies left by the step before */
};

/* LINK: of a plan that reads whole units from disk, the disk. */
enum cost_resource { COST_CPU, COST_GPU, COST_LINK, COST_RESOURCES };
/* For the plot and the table of stages. A link's span may be of a unit of the next step. */
#define COST_SPAN_EMBED UINT32_MAX
#define COST_SPAN_HEAD  (UINT32_MAX - 1)
#define COST_SPAN_CACHE (UINT32_MAX - 2) /* of a link: pages of the cache */
struct cost_span {
    enum cost_resource resource;
    uint32_t unit;
    double from, to; /* seconds from the step's begin; on the GPU with its waits for the link */
};
struct cost_result {
    double seconds;              /* of the step, in the steady state: every step like the one before */
    double busy[COST_RESOURCES]; /* of them, each resource was working */
    double hand_overs;           /* seconds */
    double *done;           /* [units + 2] caller's or NULL: when each unit was done; then head, then step */
    struct cost_span *span; /* caller's, [span_max], or NULL: the timeline */
    uint32_t span_max, span_count;
};
/* Never fails. `done` and `span` are filled when given; all else in *result is an output. */
void cost_simulate(const struct cost_table *table, const struct cost_plan *plan, struct cost_result *result);
/* The step's seconds alone; INFINITY as soon as it is clear that they are more than `give_up`. */
double cost_seconds(const struct cost_table *table, const struct cost_plan *plan, double give_up);

/* Relative half-width of what the profile's spreads make of a step's time: for error bars. */
double cost_uncertainty(const struct profile *profile, const struct cost_table *table,
                        const struct cost_plan *plan, const struct cost_result *result);

/* How many of 1,000 positions in the arena alone the GPU reads in the time in which the CPU attends to the
 * others. */
uint32_t cost_direct_permille(const struct profile *profile, enum kv_dtype kv_dtype);

/* ---- whole plans ---- */

/* The formats that a plan's weights have at the homes that its lists give them: cost_step.format, of
 * unit_count(layers) + 1. */
void cost_formats_of(const struct plan *plan, enum tensor_format (*format)[PLAN_HOMES]);

/* Where the cache of a step of `rows` rows of `context` positions lies. */
struct cost_tiers cost_tiers_of(const struct plan *plan, uint32_t tokens, uint32_t rows, uint32_t context);

/* The plan's experts in both memories. */
struct cost_experts cost_experts_of(const struct plan *plan, const struct model *model);

/* Where decode shares an MLP and a list streams it, the CPU's rows alone cross the link. */
void cost_stream_rest(const struct analyse_table *analysed, const struct plan *plan,
                      struct cost_table *table);

/* A list of the plan, as the simulation wants it. home: [unit_count(layers)], kv_cpu: [layers], both the
 * caller's; *out borrows them. Cold when phase is not 0. */
void cost_plan_of(const struct plan *plan, uint32_t phase, enum plan_home *home, bool *kv_cpu,
                  struct cost_plan *out);

/* Bytes of weights that one decode step's units of a home need, and the head if it is there: as they are
 * computed with, and as they are read or (PLAN_HOME_STREAM) cross the link. */
struct cost_crossing {
    uint64_t bytes, crossing;
};
struct cost_crossing cost_bytes_of(const struct analyse_table *analysed, const struct plan *plan,
                                   enum plan_home home);

struct cost_case {
    const struct model *model;
    const struct analyse_table *analysed;
    const struct profile *profile;
    const struct plan *plan; /* its kv_dtype, step_tokens, lists and ring count */
};
struct cost_forecast {
    double seconds, low, high;
    double busy[COST_RESOURCES], hand_overs;
    uint32_t steps;
};
/* Any step by the list that its size calls for: its tokens, rows, samples and context; the plan says the
 * rest. */
HELM_MUST_CHECK int cost_one(const struct cost_case *c, const struct cost_step *step,
                             struct cost_forecast *forecast, struct helm_err *err);
/* A decode step of `batch` rows, each with `context` positions. */
HELM_MUST_CHECK int cost_decode(const struct cost_case *c, uint32_t batch, uint32_t context,
                                struct cost_forecast *forecast, struct helm_err *err);
/* Seconds to copy a sequence's fixed states into a snapshot, or back: over the link of the device that keeps
 * them, in memory where the CPU does. 0: the plan has none. */
double cost_copy_states(const struct profile *profile, const struct plan *plan);
/* From a prompt of one row to its first token, on an idle machine: chunks of step_tokens, one after another,
 * each by the list that its size calls for. */
HELM_MUST_CHECK int cost_ttft(const struct cost_case *c, uint32_t prompt_tokens,
                              struct cost_forecast *forecast, struct helm_err *err);
