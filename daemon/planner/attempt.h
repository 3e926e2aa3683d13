/* One attempt at a plan: a strategy with one context; and the refusal when none succeeds.
 *
 * Internal to planner.c, attempt.c, tiers.c, packed_choice.c, mixed.c, mixed_bound.c and refusal.c. */
#ifndef HELM_DAEMON_PLANNER_ATTEMPT_H
#define HELM_DAEMON_PLANNER_ATTEMPT_H

#include "daemon/planner/memory/memory.h"
#include "daemon/planner/planner.h"

/* Whether a plan's weights are packed in VRAM, and read packed by the CPU. */
struct packing_known {
    bool vram, cpu;
};

/* One plan in the making. */
struct making {
    const struct planner_request *r;
    struct ledger_wish wish;       /* the request's, with step_tokens chosen */
    struct ledger_machine machine; /* the request's; a refusal looks how large it would have to be */
    struct ledger_case c;          /* of this wish, machine and table */
    struct analyse_table table;
    uint32_t batch;
    bool required;         /* a plan must use the device */
    bool packs_cpu_beside; /* this attempt has the CPU read packed weights beside the device */
    /* Packing as in a plan for the same request: nothing else is tried. NULL: not known. */
    const struct packing_known *like;
    uint32_t priced_at; /* positions that the step to be made fast attends to; 0: as the request says */
    struct cost_experts experts; /* of attempt_price's step */
    uint32_t step; /* tokens of a chunk, where the request leaves them open; 0: the best for long prompts */
    /* Plans of the strategy `best`: seconds of the fastest restricted strategy's step (restricted.c), which no plan that is made
     * with a free choice of tiers exceeds. */
    double floor;
};

/* The attempt's strategy and context. */
struct trying {
    enum search_strategy strategy;
    bool device; /* may be used */
    uint32_t ctx;
};

#define NEVER UINT64_MAX
/* The result of a strategy with one context. */
struct attempt {
    bool fits;
    bool packed;         /* made with weights packed in VRAM, as far as they can be */
    double seconds;      /* of the decode step */
    double bound;        /* what no plan that the search looked for takes less than; at most `seconds` */
    uint64_t vram, host; /* else: by how much each limit would have to grow, the other as it is; or NEVER */
};

/* The contexts that are tried, largest first: the one asked for, or halves of the usual one. 0: no more. */
uint32_t making_first_ctx(const struct making *m);
uint32_t making_next_ctx(const struct making *m, uint32_t ctx);
/* What prices of one of its plans are of. */
struct cost_case making_case(const struct making *m, const struct plan *plan);
/* Seconds of the plan's decode step of m->batch sequences with `context` tokens behind each. */
HELM_MUST_CHECK int making_decode_seconds(const struct making *m, const struct plan *plan, uint32_t context,
                                          double *seconds, struct helm_err *err);

/* The best plan with one context, its smallest pool and the wish's tiers: its lists, and sizes and ledgers for them. */
HELM_MUST_CHECK int attempt_tiers(struct making *m, const struct trying *t, struct plan *plan,
                                  struct attempt *attempt, struct helm_err *err);
/* tiers.c: the same with the tiers that the request asks for, or the better ones; the wish becomes that of the plan. */
HELM_MUST_CHECK int attempt_context(struct making *m, const struct trying *t, struct plan *plan,
                                    struct attempt *attempt, struct helm_err *err);
/* restricted.c: the fastest plan of the restricted strategies in one tier in the place of this one, if its step is faster.
 * m->floor and attempt->seconds: of the step that all plans are compared by. */
HELM_MUST_CHECK int restricted_try(struct making *m, const struct trying *t, struct plan *plan,
                                   struct attempt *attempt, struct helm_err *err);
/* Prices of the decode step that plans are made for, with weights in these formats (as cost_step's). */
HELM_MUST_CHECK int attempt_price(const struct making *m, uint32_t ctx,
                                  const enum tensor_format (*format)[PLAN_HOMES], struct cost_table *prices,
                                  struct helm_err *err);
/* packed_choice.c: takes a plan with all packed in VRAM that can be, whose ledgers with the smallest pool fit.
 * Unpacks as many weights as still fit, and the head if that is faster; with `cpu` the embedding may move to the
 * CPU for that. *seconds: of its decode step then. */
HELM_MUST_CHECK int packed_choose(struct making *m, uint32_t ctx, bool cpu, struct plan *plan,
                                  double *seconds, struct helm_err *err);
/* The same as attempt_context for the largest context for which there is one. t->ctx becomes the last one that
 * was tried. */
HELM_MUST_CHECK int attempt_contexts(struct making *m, struct trying *t, struct plan *plan,
                                     struct attempt *attempt, struct helm_err *err);
/* tiers.c: whether the context fits with some tiers that the request allows. The wish is scratch. */
HELM_MUST_CHECK int attempt_fits(struct making *m, const struct trying *t, bool *fits, struct helm_err *err);
/* tiers.c: chooses how much of the arena's part the GPU reads itself, for a plan with two tiers whose sizes are fixed.
 * Writes the ledgers anew, since the choice decides whether the CPU worker is needed. */
HELM_MUST_CHECK int tiers_finish(struct making *m, struct plan *plan, struct arena_spec *spec,
                                 struct helm_err *err);
/* mixed.c: takes a plan of the strategy `mixed`, which fits with all experts on the CPU. Makes the fastest one with
 * some layers' experts in VRAM and all others' in both memories, or one nearly as fast with more slots; its sizes, pools and
 * ledgers. attempt->seconds: of the fastest plan so far; attempt->fits: there is one. */
HELM_MUST_CHECK int mixed_choose(struct making *m, uint32_t ctx, struct plan *plan, struct attempt *attempt,
                                 struct helm_err *err);
/* Whether experts may lie packed in VRAM, of one sequence's plans; and in slots there, the CPU computing with packed ones, too. */
bool mixed_packs_whole(const struct making *m);
bool mixed_packs_slots(const struct making *m);
/* mixed_bound.c: what no plan of the strategy is faster than, with experts in both memories or not, for the context and chunks of
 * this one, whose decode step takes so long. */
HELM_MUST_CHECK int mixed_bound(struct making *m, const struct trying *t, const struct plan *plan,
                                double seconds, double *bound, struct helm_err *err);
/* Takes a plan of the strategy `experts-cpu`, of a model with shared experts: these go into VRAM, as all else is, where that is
 * faster and there is room for one slot of each layer beside; kernels read no expert in host memory, and none move. */
HELM_MUST_CHECK int mixed_beside(struct making *m, uint32_t ctx, struct plan *plan, struct attempt *attempt,
                                 struct helm_err *err);
/* Where mixed_choose has found none: HELM_E_CAPACITY with what one slot of each layer would take, in the request's refusal, too. */
HELM_MUST_CHECK int mixed_refuse(struct making *m, uint32_t ctx, const struct plan *plan,
                                 struct helm_err *err);
/* The same in the place of a plan of the strategy `best`, if that is slower, or not much faster. */
HELM_MUST_CHECK int mixed_try(struct making *m, const struct trying *t, struct plan *plan,
                              struct attempt *attempt, struct helm_err *err);
/* Where nothing fits: by how much each limit really would have to grow, and the ledgers of the plan that
 * would be made then. */
HELM_MUST_CHECK int attempt_nearest(struct making *m, const struct trying *t, struct attempt *attempt,
                                    struct plan *plan, struct helm_err *err);

/* HELM_E_CAPACITY with every number and the nearest that would fit; fills in the request's refusal. `plan` is
 * scratch. */
HELM_MUST_CHECK int refusal_write(struct making *m, const struct trying *t, struct attempt *attempt,
                                  struct plan *plan, struct helm_err *err);

#endif
