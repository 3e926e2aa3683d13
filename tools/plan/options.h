/* helm-plan's options, and the machine that they name.
 *
 * Private to tools/plan. helm_plan.c owns the one `struct options`; its strings are argv's. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "daemon/children/accelerator.h"
#include "daemon/planner/planner.h"
#include "daemon/steps/request_speculate.h"

#define PATH_TEXT 4096

struct options {
    const char *model, *profile, *now, *strategy, *device, *vram, *plot, *plan, *experts, *pack, *weights,
        *kv_dtype, *kv_tiers, *kv_page_tokens, *activations, *invariant, *share, *speculate, *draft_model,
        *draft_device;
    enum request_speculate kind;     /* of these and `drafts`, which become what holds */
    struct accelerator_wish devices; /* of `device` and `vram` */
    uint64_t host_memory_bytes, disk_bytes_per_s, snapshot_bytes, ctx, batch, parallel, prompt, at, node,
        drafts;
    bool json, node_given, prompt_given, strategy_given, exact;
};

/* machine.c: profile, devices and memory of r->machine, and in r->no_device why there is no device. `able`:
 * GPU workers can compute the model. `second`: room for a second device's profile, which *profile then points
 * to. */
/* The machine that --profile describes; *profile was read from it. */
HELM_MUST_CHECK int machine_describe(const struct options *options, bool able, struct profile *profile,
                                     struct profile *second, struct planner_request *r, struct helm_err *err);
/* This machine, as helm-profile measured it. */
HELM_MUST_CHECK int machine_find(const struct options *options, bool able, struct profile *profile,
                                 struct profile *second, struct planner_request *r, struct helm_err *err);

/* draft_model.c: plans --draft-model for the machine of `r`, which is then without what the draft model
 * takes, and says so in r->draft. `model`: whose vocabulary it must have. */
HELM_MUST_CHECK int draft_model_plan(const struct options *options, const struct model *model,
                                     const struct profile *measured, struct planner_request *r,
                                     struct helm_err *err);
