/* Decode steps with drafts (docs/speculation.md): their seconds, and token/s by how often drafts are right.
 * See explain.h. Called by explain.c; owns nothing. */
#include <math.h>

#include "common/plan/schedule.h"
#include "daemon/planner/report/explain.h"

int explain_drafts(const struct cost_case *c, struct explain *x, struct helm_err *err)
{
    const uint32_t few = plan_decode_tokens(x->plan);
    x->state_copy_s = cost_copy_states(c->profile, x->plan);
    for (uint32_t drafts = 0; x->plan->draft_tokens && drafts <= x->plan->draft_tokens; drafts++) {
        struct cost_step step = cost_step_drafted(x->batch * (1 + drafts), x->batch, x->context);
        struct cost_forecast f, made;
        if (step.tokens > few) break;
        int rc = cost_one(c, &step, &f, err);
        step.drafts = c->model->config.drafts ? drafts : 0;
        if (!rc) rc = cost_one(c, &step, &made, err);
        if (rc) return rc;
        x->draft_step_s[x->draft_steps] = f.seconds;
        x->draft_made_s[x->draft_steps++] = made.seconds - f.seconds + drafts * x->request->draft.seconds;
    }
    return 0;
}

double explain_draft_rate(const struct explain *x, uint32_t drafts, double right)
{
    double again, seconds = x->draft_step_s[drafts] + x->draft_made_s[drafts];
    const double tokens = 1 + cost_draft_tokens(drafts, right, &again);
    if (drafts && x->state_copy_s > 0)
        seconds += x->batch * (2 - pow(right, drafts)) * x->state_copy_s +
                   again * (x->draft_step_s[drafts] - x->draft_step_s[0]) / drafts;
    return x->batch * tokens / seconds;
}
