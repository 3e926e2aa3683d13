/* The plan: which layers, embedding and head are computed where, and what all of it costs in memory.
 *
 * Called by main.c once, before anything is allocated. The interface that any way of planning stands behind:
 * what is known of model, wishes and machine goes in; plan, ledgers and the arena's layout come out, or a
 * refusal with numbers. Pure, but for a warning where `auto` has a device and cannot use it. */
#ifndef HELM_DAEMON_PLANNER_PLANNER_H
#define HELM_DAEMON_PLANNER_PLANNER_H

#include "daemon/planner/ledger.h"

struct planner_request {
    const struct model *model;
    struct ledger_wish wish;
    struct ledger_machine machine;
    bool device_required; /* a plan without the device is refused, not made */
    char no_device[160];  /* without a device: why there is none */
};

/* Makes a plan. plan_free on the caller, also after an error. */
HELM_MUST_CHECK int planner_make(const struct planner_request *request, struct plan *plan,
                                 struct arena_spec *spec, struct helm_err *err);
/* Takes a plan that somebody wrote: checks that model and machine can run it, and writes its ledgers anew.
 * The wishes' sizes are the plan's. */
HELM_MUST_CHECK int planner_take(const struct planner_request *request, struct plan *plan,
                                 struct arena_spec *spec, struct helm_err *err);
/* The plan and every line of its ledgers, for the log. */
void planner_log(const struct planner_request *request, const struct plan *plan);

#endif
