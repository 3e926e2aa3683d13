/* Stages: neighbouring units of a list that have one home, and in the decode list one format. A list is
 * written, read and printed as stages (the JSON form: plan.h); a plan itself has units alone.
 *
 * Called by plan_json.c and by what prints plans. Pure. */
#pragma once

#include "common/plan/plan.h"

enum plan_ops { PLAN_OPS_ALL, PLAN_OPS_ATTENTION, PLAN_OPS_MLP, PLAN_OPS_COUNT };
const char *plan_ops_name(enum plan_ops ops); /* "all", "attention", "mlp" */

struct plan_stage {
    uint32_t first, last; /* layers, inclusive; the same one when ops is not PLAN_OPS_ALL */
    enum plan_home home;
    enum plan_ops ops;
    enum tensor_format format; /* in the decode list; PLAN_AS_STORED in others */
    uint64_t bytes;            /* of weights */
    uint64_t token_bytes;      /* of mixtures: of `bytes`, what a step of one token reads; 0: all */
};
static inline uint32_t plan_stage_first_unit(const struct plan_stage *stage)
{
    return unit_of(stage->first, stage->ops == PLAN_OPS_MLP ? UNIT_MLP : UNIT_ATTENTION);
}
static inline uint32_t plan_stage_last_unit(const struct plan_stage *stage)
{
    return unit_of(stage->last, stage->ops == PLAN_OPS_ATTENTION ? UNIT_ATTENTION : UNIT_MLP);
}

/* The longest stage that begins with `unit`; returns the unit after it. From unit 0 on these are the shortest
 * list. */
uint32_t plan_stage_at(const struct plan *plan, uint32_t phase, uint32_t unit, struct plan_stage *stage);

/* "decode", "prefill_short", "prefill"; a single prefill list is the one of long prompts. */
const char *plan_list_name(const struct plan *plan, uint32_t phase);
json_t *plan_stage_to_json(const struct plan_stage *stage);
/* "stages": a list for each phase. Reading gives the plan its units and phases. */
json_t *plan_lists_to_json(const struct plan *plan);
HELM_MUST_CHECK int plan_lists_from_json(const json_t *json, struct plan *plan, struct helm_err *err);
/* A member that says a format; it is not there for PLAN_AS_STORED. */
void plan_format_to_json(json_t *json, const char *key, enum tensor_format format);
HELM_MUST_CHECK int plan_format_from_json(const json_t *json, const char *key, enum tensor_format *format,
                                          struct helm_err *err);
