/* A histogram of the experts that tokens chose, as `helm-cli experts --histogram` writes it. It says which
 * experts a plan puts into VRAM at first, and how many uses they should catch.
 *
 * Called by main.c and helm-plan, which read a file, and by experts_slots.c. Pure but for the file. */
#pragma once

#include "common/model/model.h"
#include "common/plan/plan.h"

struct histogram {
    uint32_t layers, experts; /* of the model, whole ones */
    uint64_t *uses;           /* [layers][experts]; a layer of zeros: not counted */
};
/* {"experts": N, "layers": [{"layer": L, "uses": [N numbers]}, ...]}; others' members are ignored.
 * HELM_E_FORMAT, HELM_E_MISMATCH: of another model. histogram_free on the caller. */
HELM_MUST_CHECK int histogram_read(const char *path, const struct model *model, struct histogram *histogram,
                                   struct helm_err *err);
void histogram_free(struct histogram *histogram);
/* Fills the plan's first experts, the most used ones of each unit in both memories, and hit_permille: the
 * part of its uses that those had, of uncounted layers as if each expert was chosen alike. */
HELM_MUST_CHECK int histogram_apply(const struct histogram *histogram, struct plan *plan,
                                    struct helm_err *err);
