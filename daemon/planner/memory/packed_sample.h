/* The packed size of a model's weights, by looking at some of them.
 *
 * Called by helmd and helm-plan before a plan is made, where the weights' files are there. Reads some groups
 * of every kind of matrix, spread over the layers and within them, and measures how they would be packed
 * (common/formats/packed.h): PACKED_SAMPLE_BYTES at most, a tenth of a second's work. The same files give the
 * same parts. Owns nothing. */
#pragma once

#include <stdint.h>

#include "common/base/err.h"
#include "common/base/units.h"
#include "common/model/model.h"
#include "common/plan/placement.h"
#include "daemon/planner/profile/policy.h"

struct packed_sample {
    struct packed_parts parts;
    struct packed_parts spread; /* of them: PACKED_SAMPLE_ERRORS standard errors */
    uint64_t bytes;             /* that were read */
    uint32_t groups;
};
/* Parts are 0 (unknown) for matrices that cannot be packed and for those missing from a truncated file. Reads
 * at most about most_bytes. Fails where a file cannot be read. */
HELM_MUST_CHECK int packed_sample_take(const struct model *model, uint64_t most_bytes,
                                       struct packed_sample *sample, struct helm_err *err);
/* The same of nothing but the weights that the plan keeps packed in VRAM: layers differ. */
HELM_MUST_CHECK int packed_sample_of_plan(const struct model *model, const struct plan *plan,
                                          uint64_t most_bytes, struct packed_sample *sample,
                                          struct helm_err *err);
