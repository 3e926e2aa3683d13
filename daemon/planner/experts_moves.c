/* Experts that move: what the link may bring in a step, and from when on that is faster. See experts.h.
 * Called by experts.c; owns nothing. */
#include "common/base/units.h"
#include "daemon/planner/experts.h"

#include <math.h>
#include <stdlib.h>

#include "common/plan/slots.h"
#include "daemon/planner/profile/policy.h"

#define MOVES_TRIES                                                                                          \
    (2 * PLANNER_SHARES) /* parts of the choices that are found, from those of slots that stay to all */

/* Bytes of an expert, its gate, up and down as they lie in slots: the mean of the layers, whose formats may
 * differ. */
static int expert_bytes(const struct making *m, const struct plan *plan, double *bytes, struct helm_err *err)
{
    struct slots_place place = {.unit = calloc(plan_mixed_units(plan) + 1, sizeof *place.unit)};
    struct slot_unit *const unit = place.unit;
    int rc = unit ? slots_place(m->r->model, plan, &place, err)
                  : helm_fail(err, HELM_E_NOMEM, "no memory for the slots of %u layers", plan->layers);
    *bytes = 0;
    for (uint32_t u = 0; u < place.units && !rc; u++)
        for (int r = 0; r < SLOT_ROLES; r++) *bytes += (double)unit[u].role[r].stride / place.units;
    free(unit);
    return rc;
}

/* A step of m->batch sequences in which experts move and kernels read none over the link. */
struct moving {
    double seconds, most; /* most: moves that the link has time for */
};

/* The numbers that price all moves of a step: choices of the layers in both memories, bytes of an expert. */
struct moves_case {
    double choices, bytes, found; /* found: the part of the choices that slots that stay have */
};

/* When the part `part` of the choices is found in VRAM. */
static int staying_step(const struct making *m, const struct plan *plan, double part, double *seconds,
                        struct helm_err *err)
{
    struct plan now = *plan; /* its lists stay the plan's */
    plan_device_at(&now, PLAN_HOME_MIXED)->experts.direct_permille = 0;
    plan_device_at(&now, PLAN_HOME_MIXED)->experts.hit_permille = (uint32_t)fmax(1, PERMILLE * part);
    return making_decode_seconds(m, &now, 0, seconds, err);
}

/* When recency foretells the part `part` of the choices, above c->found. Where the link brings fewer experts
 * than are to come, as much less is found beyond what slots that stay have. */
static int moving_step(const struct making *m, const struct plan *plan, const struct moves_case *c,
                       double part, struct moving *out, struct helm_err *err)
{
    double still, seconds = 0;
    int rc = staying_step(m, plan, c->found, &still, err);
    if (!rc) rc = staying_step(m, plan, part, &seconds, err);
    const double saves = fmax(0, still - seconds) / (c->choices * (part - c->found)),
                 wanted = MOVES_OF_MISSES * c->choices * (1 - part);
    out->most = MOVES_PART * seconds * m->r->profile->link.h2d.value / c->bytes;
    out->seconds = seconds + COST_EXPERT_TAKES * saves * wanted;
    if (rc || wanted <= out->most) return rc;
    const double less = c->found + (part - c->found) * out->most / wanted;
    rc = staying_step(m, plan, less, &seconds, err);
    out->seconds = seconds + COST_EXPERT_TAKES * saves * out->most;
    return rc;
}

int experts_budget(const struct making *m, double still, struct plan *plan, struct helm_err *err)
{
    const struct model_router *router = &m->r->model->config.router;
    const double found = plan_hit_rate(plan, router->experts),
                 chosen = (double)router->chosen / router->experts;
    struct moves_case c = {.choices =
                               plan_mixed_units(plan) * router->experts * (1 - pow(1 - chosen, m->batch)),
                           .found = found};
    struct moving moving = {.seconds = INFINITY};
    struct plan_experts *const mixed = &plan_device_at(plan, PLAN_HOME_MIXED)->experts;
    double part = found;
    int rc = expert_bytes(m, plan, &c.bytes, err);
    mixed->moves = 1;
    mixed->move_cost = PLAN_MOVE_COST_MAX;
    if (rc || !(c.bytes > 0) || !(m->r->profile->link.h2d.value > 0) || !plan_mixed_units(plan)) return rc;
    for (uint32_t i = 1; i < MOVES_TRIES && moving.seconds >= still && !rc; i++) {
        part = found + (1 - found) * i / MOVES_TRIES;
        rc = moving_step(m, plan, &c, part, &moving, err);
    }
    if (rc || moving.seconds >= still) return rc;
    const double cost = PERMILLE * (part - found) / (1 - part);
    mixed->moves = moving.most < 1                ? 1
                   : moving.most > PLAN_MOVES_MAX ? PLAN_MOVES_MAX
                                                  : (uint32_t)moving.most;
    mixed->move_cost = cost < PLAN_MOVE_COST_MAX ? (uint32_t)cost : PLAN_MOVE_COST_MAX;
    return 0;
}
