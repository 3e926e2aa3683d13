/* The plan: which layers, embedding and head are computed where, and what all of it costs in memory and time.
 *
 * Called by main.c once, before anything is allocated, and by helm-plan. The one interface of planning:
 * model, wishes and machine go in; plan, ledgers and the arena's layout come out, or a refusal with numbers.
 * Pure, except for two warnings: the plan does without a device that `auto` has, or there is less host memory
 * than was asked for.
 *
 * Unless the device is required, a plan of the strategy `best` uses it only if that is faster than the CPU
 * alone; other strategies are made as asked for, or refused. If the device is required, a plan computes at
 * least the head or one unit on it, even if the CPU alone would be faster. The step that is made fastest is
 * one of decode: request.batch rows, each with planner_typical_context positions. */
#pragma once

#include "daemon/planner/cost/cost.h"
#include "daemon/planner/memory/ledger.h"
#include "daemon/planner/profile/profile.h"
#include "daemon/planner/search/search.h"
#include "daemon/planner/profile/policy.h"

/* Why there is no plan, in numbers: helm-plan's {error, needed, available, nearest}. */
struct planner_refusal {
    bool refused;
    const char *what; /* "VRAM" or "host memory" */
    uint64_t needed, available;
    char nearest[200]; /* "--ctx 4096, or 9.1 GiB of VRAM, or --device cpu" */
};

/* Whether a second device is used, and why: for reports; "" where there is none. */
struct planner_second {
    char text[160];
};

/* Candidates that were made, for requests that follow (known.c). Zeroed at first; planner_cache_free at
 * last. */
struct planner_cache {
    struct planner_known *first;
    uint32_t count;
};
void planner_cache_free(struct planner_cache *cache);

struct histogram;
/* Whether the cache of the GPU's layers lies wholly in VRAM, or has a second tier in the arena (plan.h). */
enum kv_tiers { KV_TIERS_ONE, KV_TIERS_TWO, KV_TIERS_AUTO, KV_TIERS_COUNT };

/* Whether GPU and CPU may compute dense MLPs together (shared.c): where that is faster; in any case; not. */
enum share_option { SHARE_AUTO, SHARE_ON, SHARE_OFF, SHARE_OPTIONS };
#define SHARE_CHOICES "auto|on|off"
enum share_option share_option_named(const char *name); /* one of the choices */

/* Tokens in a draft model's KV pool, unless --kv-tokens says: half of a model's, since it is in the way of
 * the model's weights. `ctx` as wished, 0: by default. */
static inline uint32_t planner_draft_pool(uint32_t ctx)
{
    return ctx > LEDGER_CTX_DEFAULT_MAX ? ctx : LEDGER_CTX_DEFAULT_MAX;
}
/* A draft model, which takes its share of the machine first. */
struct planner_draft {
    double seconds; /* of a draft, by its own plan; 0: there is none */
    uint64_t host_bytes, vram_bytes;
};

struct planner_request {
    const struct model *model;
    struct ledger_wish wish;
    struct ledger_machine machine;
    const struct histogram *experts; /* what of experts was used so far; NULL: not known */
    bool one_memory;                 /* a layer's experts are wholly in one memory */
    enum share_option share;         /* of plans of the strategy `best` that use the device */
    bool device_required;            /* a plan without the device is refused, not made */
    char no_device[160];             /* without a device: why there is none */
    const struct profile *profile;   /* of the machine that is planned for, multiplying as `inputs` says */
    enum linear_inputs inputs[PLAN_PROCESSORS]; /* planner_make: the plan's, where a processor computes */
    const char *activations;                    /* why those: for reports, or NULL */
    const char *invariant;                      /* whether the plan is, and why: likewise */
    const char *pages;                          /* why they have their size: likewise */
    const char *drafts;                         /* where they come from, and their forecast: likewise */
    struct planner_draft draft;                 /* `machine` is without what it takes */
    const char *now;                            /* what memory gives, and what goes by it: likewise */
    enum search_strategy strategy;
    enum kv_tiers tiers; /* of plans of the strategy `best` that use the device; others have one */
    uint32_t typical; /* positions that a row of the step that is made fastest has; 0: as the context says */
    uint32_t batch;   /* sequences that decode together in the step that is made fastest; 0: 1 */
    uint32_t prompt;  /* tokens of the prompt that TTFT is reckoned for; 0: PLANNER_PROMPT_TOKENS */
    bool plan_given;  /* a plan that was taken is explained, not one of the strategies' */
    struct planner_refusal *refusal; /* or NULL */
    struct planner_second *second;   /* or NULL */
    bool sizes_alone; /* a refusal says sizes, and not what would fit instead, which takes searches */
    struct planner_cache *cache; /* of requests for this model, or NULL */
};

/* "one", "two", "auto" */
#define KV_TIERS_CHOICES "auto|one|two"
#define KV_TIERS_DEFAULT "auto"
const char *kv_tiers_name(enum kv_tiers tiers);
enum kv_tiers kv_tiers_named(const char *name); /* one of the choices */
/* Positions that a row of that step attends to in a context of `ctx`: all if that was asked for; half if it
 * was chosen, since that is a sequence's mean length. */
uint32_t planner_typical_context(const struct planner_request *request, uint32_t ctx);
/* Host memory and the GPUs' together, up to their limits. */
uint64_t planner_room(const struct planner_request *request);

/* Sequences of the request's batch that decode at once: as many as the plan's pool has whole contexts for.
 * The others wait until one is done. */
uint32_t planner_at_once(const struct planner_request *request, const struct plan *plan);

/* Makes a plan. A plan of the strategy `best` is one for fewer sequences at once where those make more tokens
 * a second than all together, whose caches would take the weights' room. HELM_E_USAGE without a profile. If
 * the wish is to pack, it packs where that pays on the profile's machine (cost_packing_pays; for its CPU, if
 * the wish allows it, cost_packing_pays_cpu). plan_free on the caller, also after an error. */
HELM_MUST_CHECK int planner_make(const struct planner_request *request, struct plan *plan,
                                 struct arena_spec *spec, struct helm_err *err);
/* The sizes that a plan states, as wishes: what planner_take goes by. To explain or forecast a plan that was
 * taken, ask with them. */
void planner_adopt(const struct plan *plan, const struct model *model, struct ledger_wish *wish);
/* Takes a plan from a file: checks that model and machine can run it, and writes its ledgers anew.
 * Its sizes replace the wishes'. Needs no profile. */
HELM_MUST_CHECK int planner_take(const struct planner_request *request, struct plan *plan,
                                 struct arena_spec *spec, struct helm_err *err);

/* A plan's forecast, with error bars (from the profile's spreads). */
struct planner_prediction {
    struct cost_forecast decode, ttft; /* of one decode step; of the steps of the prompt together */
};
HELM_MUST_CHECK int planner_predict(const struct planner_request *request, const struct plan *plan,
                                    uint32_t batch, uint32_t context, uint32_t prompt,
                                    struct planner_prediction *prediction, struct helm_err *err);
/* The plan and every line of its ledgers, for the log. */
void planner_log(const struct planner_request *request, const struct plan *plan);
