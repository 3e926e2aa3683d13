/* A plan explained: what each stage takes and what bounds it, what the simpler strategies would have done,
 * every thesis split, one decode step by resource.
 *
 * Called by helm-plan. Pure: all of it follows from the request that the plan was made with. Owns its tables
 * (explain_free); borrows request and plan. */
#pragma once

#include <jansson.h>
#include <stdio.h>

#include "common/plan/stages.h"
#include "daemon/planner/cost/cost.h"
#include "daemon/planner/planner.h"

struct explain_stage {
    struct plan_stage stage;
    double seconds;       /* from the end of the stage before to its own: hand-over and waits are in it */
    const char *bound_by; /* "memory", "compute", "overhead", "link", "hand-over" */
    bool measured; /* all its units are priced by the model's own programs, whose samples spread by this part;
                    */
    double spread; /* else it is priced by the profile's rates */
};

/* One list of the plan, with the times of one step by it. */
struct explain_list {
    const char *name;     /* "decode", "prefill_short", "prefill", as in the plan's JSON form */
    uint32_t from_tokens; /* of steps that use it; 0: decode, UINT32_MAX: none does, decode's homes hold */
    uint32_t tokens, rows, context; /* of the step that was priced */
    struct explain_stage *stage;
    uint32_t stage_count;
    double embed, head, step, seconds; /* stages and the first three add up to the last */
    double busy[COST_RESOURCES];       /* of the seconds, each resource was working */
};

struct explain_strategy {
    enum search_strategy strategy;
    bool feasible;
    double decode_s, ttft_s; /* decode_s: of as many tokens as explain.batch */
    char why[200];           /* where it is not feasible */
};

/* A number of whole layers on the GPU, the first or the last ones, whichever is faster, and all others on the
 * CPU. */
struct explain_split {
    bool fits;
    double decode_s;
};

/* Decode with `context` tokens in the context. */
struct explain_point {
    uint32_t context;
    double seconds;
    /* The plan with one tier for the same context: its seconds; INFINITY: this has one, or there is none */
    double one_tier;
};
#define EXPLAIN_POINTS_MAX  24
#define EXPLAIN_POINT_FIRST 256

/* Weights of one format that is not bf16, and what one token's products with them are priced by. */
struct explain_format {
    enum tensor_format format;
    uint64_t bytes;  /* of matrices that a token multiplies by */
    bool measured;   /* the format itself; else the rates are bf16's */
    double cpu, gpu; /* bytes a second; gpu: in VRAM, chained where it is, 0 without a device */
};

/* Mixtures of experts: bytes kept, and bytes that one token and a decode step read if all are chosen
 * evenly. */
struct explain_experts {
    uint32_t layers; /* that are mixtures; 0: none, all else is then 0 */
    uint64_t bytes, token_bytes, step_bytes;
    uint64_t shared_bytes; /* of the expert that every token has, which are none of those */
    /* of a plan with experts in both memories: layers that have them so, which part of the chosen ones is
     * taken to be in VRAM, and seconds of a decode step with that and with experts chosen evenly */
    uint32_t mixed;
    double hit, seconds, seconds_even;
    /* of a plan with experts on disk: by memory, bytes of experts there, slots in host memory among them, and
     * the part of the chosen ones that is taken to be found there */
    uint64_t there[PLAN_MEMORIES];
    double found[PLAN_MEMORIES];
};

struct explain {
    const struct planner_request *request;
    const struct plan *plan;
    uint32_t batch, context, prompt; /* context: what a decoded token attends to */
    uint32_t asked;                  /* sequences of the request, of which `batch` decode at once */
    struct planner_prediction prediction;
    struct cost_crossing crossing;    /* of a decode step: over the link */
    struct cost_crossing reading;     /* and by the CPU */
    struct cost_crossing gpu_reading; /* and by the GPU, in VRAM */
    uint64_t packed_bytes;            /* of weights that lie packed there, as they are in the files */
    struct explain_experts experts;
    struct explain_format format[FORMAT_COUNT];
    uint32_t format_count;
    struct explain_list list[PLAN_PHASES_MAX];
    uint32_t list_count; /* decode first, prefill last: at least these two */
    struct explain_strategy strategy[SEARCH_STRATEGIES];
    uint32_t strategies;                            /* the last two, of experts, count where there are some */
    struct explain_point point[EXPLAIN_POINTS_MAX]; /* contexts rising, the last one the plan's */
    uint32_t point_count;
    /* A plan with drafts has these: seconds of decode steps by the drafts of each sequence, from 0 on,
     * without copies of fixed states; and those of a copy */
    double draft_step_s[ENGINE_DRAFTS_MAX + 1], state_copy_s;
    /* likewise to make them by a layer of the model; 0: they cost nothing */
    double draft_made_s[ENGINE_DRAFTS_MAX + 1];
    uint32_t draft_steps;
    struct explain_split *split; /* [layers + 1]; NULL without a device */
    struct cost_span *span;      /* of one decode step */
    uint32_t span_count;
};

/* `plan` was made with `request`, or taken, whose sizes (planner_adopt) request then has. context: positions
 * that a decoded token attends to; 0: those that the plan was made for. */
HELM_MUST_CHECK int explain_make(const struct planner_request *request, const struct plan *plan,
                                 uint32_t context, struct explain *explain, struct helm_err *err);
void explain_free(struct explain *explain);

/* report/curve.c: token/s over context, the rest of *explain being there. */
HELM_MUST_CHECK int explain_curve(struct explain *explain, struct helm_err *err);
/* report/drafts.c: steps with drafts. Then token/s of the batch with `drafts` drafts, below draft_steps, of
 * which each is right with probability `right` if those in front of it are. */
HELM_MUST_CHECK int explain_drafts(const struct cost_case *c, struct explain *explain, struct helm_err *err);
double explain_draft_rate(const struct explain *explain, uint32_t drafts, double right);
/* The sizes of a request for another plan beside this one: the same context, all else free. */
void explain_other_sizes(const struct plan *plan, struct planner_request *request);
/* Tokens a second of the batch. */
double explain_point_rate(const struct explain *explain, double seconds);

/* The object that helm-plan --json prints: plan_to_json's members and the forecasts (docs/helm-plan.md);
 * fresh, NULL without memory. */
json_t *explain_to_json(const struct explain *explain);
/* {"error", "needed", "available", "nearest"} */
json_t *explain_refusal_to_json(const struct planner_refusal *refusal, const char *error);
void explain_print(const struct explain *explain, FILE *out);
/* Token/s of the whole batch, and the bars around it. A time whose spread leaves nothing below it has a rate
 * that is as far above as the lower bar is below, in parts. */
double explain_rate(const struct explain *explain);
double explain_rate_low(const struct explain *explain);
double explain_rate_high(const struct explain *explain);
/* The GGUF file or the checkpoint's folder, without its path, else the architecture; borrowed from the
 * model. */
const char *explain_model_name(const struct explain *explain);
