/* Shared by the two ideas of weights on disk (disk.c: experts, disk_layers.c: whole half layers). */
#pragma once

#include "daemon/planner/ideas.h"

/* Lists and sizes of a plan with weights on disk. */
struct disk_lists {
    const enum plan_home *home; /* of each half layer, in every list */
    enum plan_processor embed, head;
    uint32_t slots; /* of experts; 0: none are there */
    uint64_t ring;  /* bytes, of whole half layers; 0: none are there */
    uint32_t ctx;
};
/* The plan of these, with the smallest pool, and its ledgers, whether it fits or not. */
HELM_MUST_CHECK int disk_write(struct making *m, const struct disk_lists *lists, struct plan *plan,
                               struct helm_err *err);
/* The wish at hand: what such plans begin with, chunks of `step_tokens` tokens where the request leaves them
 * open. */
void disk_begin_wish(struct making *m, uint32_t step_tokens);
/* The host's total, and a hundredth of its unit more, so that the size as it is printed suffices.
 * 0: another memory has no room for the plan. */
uint64_t disk_host_needed(const struct plan *plan);

/* disk_layers.c: disk_try and disk_least_host (ideas.h) of a model without experts. */
HELM_MUST_CHECK int disk_layers_try(struct making *m, struct spec *spec, struct candidate *best,
                                    struct helm_err *err);
HELM_MUST_CHECK int disk_layers_least_host(struct making *m, uint32_t ctx, bool device, uint64_t *bytes,
                                           struct helm_err *err);
