/* Token/s over context: of a plan, and where its cache has two tiers of the plan with one beside it. See
 * explain.h. Called by explain.c; owns nothing. */
#include <math.h>

#include "daemon/planner/report/explain.h"

/* Four times as many up to 4,096, then twice: it bends where the cache outgrows its places. */
#define CURVE_COARSE 4096

static uint32_t next_context(uint32_t context, uint32_t whole)
{
    if (context >= whole) return 0;
    const uint32_t next = context < CURVE_COARSE ? 4 * context : 2 * context;
    return next < whole ? next : whole;
}

static int decode_at(const struct planner_request *r, const struct plan *plan, const struct explain *x,
                     uint32_t context, double *seconds, struct helm_err *err)
{
    struct planner_prediction p;
    int rc = planner_predict(r, plan, x->batch, context, 1, &p, err);
    *seconds = p.decode.seconds;
    return rc;
}

/* That none fits is an answer, not an error. */
static int add_one_tier(struct explain *x, struct helm_err *err)
{
    struct planner_request r = *x->request;
    struct planner_refusal refusal = {0};
    struct helm_err refused = {0};
    struct plan plan = {0};
    struct arena_spec spec;
    explain_other_sizes(x->plan, &r);
    r.refusal = &refusal;
    r.second = NULL;
    r.tiers = KV_TIERS_ONE;
    int rc = planner_make(&r, &plan, &spec, &refused);
    if (rc == HELM_E_CAPACITY) return 0;
    if (rc) return helm_fail(err, rc, "a plan with one tier: %s", refused.text);
    for (uint32_t i = 0; i < x->point_count && !rc; i++)
        rc = decode_at(&r, &plan, x, x->point[i].context, &x->point[i].one_tier, err);
    plan_free(&plan);
    return rc;
}

int explain_curve(struct explain *x, struct helm_err *err)
{
    const uint32_t whole = x->plan->context_tokens;
    uint32_t context = whole < EXPLAIN_POINT_FIRST ? whole : EXPLAIN_POINT_FIRST;
    for (; context && x->point_count < EXPLAIN_POINTS_MAX; context = next_context(context, whole)) {
        struct explain_point *point = &x->point[x->point_count++];
        *point = (struct explain_point){.context = context, .one_tier = INFINITY};
        int rc = decode_at(x->request, x->plan, x, context, &point->seconds, err);
        if (rc) return rc;
    }
    return plan_kv_tiered(x->plan) ? add_one_tier(x, err) : 0;
}

double explain_point_rate(const struct explain *x, double seconds)
{
    return x->batch / seconds;
}
