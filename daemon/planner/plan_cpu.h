/* The plan of a machine without an accelerator: every layer on the CPU, one stage.
 *
 * Called by ledger.c through main.c, and by tools. */
#ifndef HELM_DAEMON_PLANNER_PLAN_CPU_H
#define HELM_DAEMON_PLANNER_PLAN_CPU_H

#include "common/err.h"
#include "common/model/model.h"
#include "common/plan.h"

/* Sets layers and stages; sizes and ledger are ledger_fit's. plan_free on the caller. */
HELM_MUST_CHECK int plan_cpu_build(const struct model *model, struct plan *plan, struct helm_err *err);

/* Whether a plan from a file can be run on `model` by this build: layers agree, every home is one it has. */
HELM_MUST_CHECK int plan_cpu_check(const struct model *model, const struct plan *plan, struct helm_err *err);

#endif
