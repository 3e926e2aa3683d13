/* Candidates: plans that an idea of the planner asks for, priced and held to the ledger.
 *
 * Internal to ideas.c and the ideas, refusal.c and planner.c. An idea (ideas.h) writes a spec, candidate_make
 * or packing_best makes a plan of it, and candidate_keep leaves the better one. The request's cache has the
 * candidates that were made: no spec is searched twice, by two ideas or for helm-plan's table of
 * strategies. */
#pragma once

#include "daemon/planner/memory/memory.h"
#include "daemon/planner/planner.h"
#include "daemon/planner/profile/policy.h"

/* The state that all candidates of a request share. */
struct making {
    const struct planner_request *r;
    struct ledger_wish asked;      /* the request's: what each candidate begins with */
    struct ledger_wish wish;       /* the candidate's at hand */
    struct ledger_machine machine; /* the request's; a refusal looks how large it would have to be */
    struct ledger_case c;          /* of this wish, machine and table */
    struct analyse_table table;
    uint32_t batch;
    bool required; /* a plan must use the device */
    /* Plans of the strategy `best`: seconds of the fastest restricted strategy's step (strategies.c), which
     * no plan that is made with a free choice of tiers exceeds. */
    double floor;
    struct planner_cache *cache;
    uint64_t of; /* model, profile and machine, as the cache tells them apart */
};

/* Weights that a search assumes packed in VRAM: none, or all that can be. */
enum packing { PACKING_NONE, PACKING_ALL };

/* The sizes and choices that a candidate is asked to have. */
struct spec {
    enum search_strategy strategy;
    bool device;    /* may be used */
    bool packs_cpu; /* the CPU reads packed weights beside the device, where it may */
    enum packing packing;
    uint32_t ctx;
    uint32_t places;      /* 0: the cache has one tier; else two, with at least so many places */
    uint32_t priced_at;   /* positions that the step to be made fast attends to; 0: as the request says */
    uint32_t shared_rows; /* of MLPs that two processors share, the GPU's (shared.c); 0: none is shared */
    uint32_t step; /* tokens of a chunk, where the request leaves them open; 0: the best for long prompts */
};

#define NEVER UINT64_MAX
struct candidate {
    bool fits;
    enum packing packing; /* that it was made with */
    double seconds;       /* of the decode step */
    uint64_t vram, host;  /* where it does not fit: by how much each limit would have to grow, the other as it
                             is; or NEVER */
    struct ledger_wish wish;
    struct plan plan;
};
/* Leaves `other` in *best if it is better, and frees the loser. The wish at hand becomes that of *best. */
void candidate_keep(struct making *m, struct candidate *best, struct candidate *other, bool better);
/* Every half layer is at home in VRAM, of whichever device. */
bool candidate_all_on_gpu(const struct plan *plan);
/* The wish at hand: what candidates of this many places begin with. */
void candidate_begin(struct making *m, uint32_t places);

/* planner.c: checks the request. analyse_table_free(&m->table) on the caller, also after an error. */
HELM_MUST_CHECK int making_open(const struct planner_request *r, struct making *m, struct helm_err *err);
/* Completes m->asked and m->of for planner_make's candidates. */
void making_settle(struct making *m);
/* The contexts that are tried, largest first: the one asked for, or halves of the usual one. 0: no more. */
uint32_t making_first_ctx(const struct making *m);
uint32_t making_next_ctx(const struct making *m, uint32_t ctx);
/* The case by which one of its plans is priced. */
struct cost_case making_case(const struct making *m, const struct plan *plan);
/* Seconds of the plan's decode step of m->batch sequences with a context of `context` tokens each; 0: the
 * typical one. */
HELM_MUST_CHECK int making_decode_seconds(const struct making *m, const struct plan *plan, uint32_t context,
                                          double *seconds, struct helm_err *err);
/* Positions that a row of the step attends to which a spec's plans are made for. */
uint32_t making_context(const struct making *m, const struct spec *spec);
/* The decode step that a spec's plans are made for, with weights in these formats (as cost_step's), and its
 * prices. */
struct cost_step making_step(const struct making *m, const struct spec *spec,
                             const enum tensor_format (*format)[PLAN_HOMES]);
HELM_MUST_CHECK int making_price(const struct making *m, const struct spec *spec,
                                 const enum tensor_format (*format)[PLAN_HOMES], struct cost_table *prices,
                                 struct helm_err *err);
/* The same with weights packed in VRAM as the spec says. */
HELM_MUST_CHECK int making_price_packing(const struct making *m, const struct spec *spec,
                                         struct cost_table *prices, struct helm_err *err);
struct memory_wish making_memory_wish(const struct making *m, const struct spec *spec);

/* The best plan of the spec with its smallest pool: lists, sizes and ledgers, also where it does not fit. */
HELM_MUST_CHECK int candidate_make(struct making *m, const struct spec *spec, struct candidate *out,
                                   struct helm_err *err);
/* One search at these prices and sums of memory: its result as lists, whatever the ledger says. */
HELM_MUST_CHECK int candidate_search(const struct making *m, const struct spec *spec,
                                     const struct memory_wish *wish, const struct cost_table *prices,
                                     struct candidate *out, struct helm_err *err);
/* Whether plans of the spec may have the CPU read packed weights, and whether they do. */
bool candidate_may_pack_cpu(const struct making *m, const struct spec *spec);
bool candidate_packs_cpu(const struct making *m, const struct spec *spec);

/* known.c: a copy of the candidate that was made for this spec into *out; *found: there is one. */
HELM_MUST_CHECK int known_find(const struct making *m, const struct spec *spec, struct candidate *out,
                               bool *found, struct helm_err *err);
HELM_MUST_CHECK int known_add(const struct making *m, const struct spec *spec, const struct candidate *made,
                              struct helm_err *err);
/* A hash of the case: the model's sizes, the profile, the machine. */
uint64_t known_case(const struct making *m);
/* unpacking.c: takes a plan with all packed in VRAM that can be, whose ledgers with the smallest pool fit.
 * Unpacks as many weights as still fit, and the head if that is faster; a plan of `best` may move its
 * embedding to the CPU for that. */
HELM_MUST_CHECK int unpacking_choose(struct making *m, const struct spec *spec, struct candidate *c,
                                     struct helm_err *err);

/* HELM_E_CAPACITY with every number and the nearest that would fit; fills in the request's refusal. `c` is
 * the spec's candidate, and scratch then. */
HELM_MUST_CHECK int refusal_write(struct making *m, const struct spec *spec, struct candidate *c,
                                  struct helm_err *err);
