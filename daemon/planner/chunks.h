/* Longer chunks of a plan that stands. */
#ifndef HELM_DAEMON_PLANNER_CHUNKS_H
#define HELM_DAEMON_PLANNER_CHUNKS_H

#include "daemon/planner/candidate.h"

HELM_MUST_CHECK int chunks_lengthen(struct making *m, struct plan *plan, struct arena_spec *arena,
                                    struct helm_err *err);

#endif
