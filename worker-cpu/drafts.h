/* Drafts by the model's own layer on the CPU (common/worker/drafting.h). Called by step.c; owns nothing. */
#pragma once

#include "worker-cpu/step.h"

/* Computes the drafts into result->made. The batch and x are overwritten; *bytes grows by the weights
 * read. */
HELM_MUST_CHECK int drafts_run(struct run *run, const struct step_programs *programs,
                               struct step_result *result, uint64_t *bytes, struct helm_err *err);
