/* Looking at the weights that a plan packs in VRAM. See packed_look.h. Called by helmd and helm-plan. */
#include "daemon/planner/packed_look.h"

#include "common/base/log.h"
#include "common/model/parts.h"

#define PLANS_MAX 4 /* plans that are made one after the other, each with larger parts: the last one stands */

/* A rise within PLACEMENT_PACKED_SLACK needs no other plan. */
static bool raise_part(double *part, double of)
{
    if (of <= *part * (1 + PLACEMENT_PACKED_SLACK)) return false;
    *part = of;
    return true;
}

/* Whether some part became larger. Without a sample of all weights these are unknown too. */
static bool look(struct planner_request *r, const struct plan *plan)
{
    struct packed_parts *p = &r->wish.parts;
    struct packed_sample sample;
    struct helm_err err = {0};
    if (p->attention <= 0 && p->mlp <= 0 && p->head <= 0) return false;
    if (packed_sample_of_plan(r->model, plan, PACKED_SAMPLE_BYTES, &sample, &err)) {
        log_warn("what the weights that the plan packs come to is taken from all: %s", err.text);
        return false;
    }
    bool more = raise_part(&p->attention, sample.parts.attention);
    more |= raise_part(&p->mlp, sample.parts.mlp);
    more |= raise_part(&p->head, sample.parts.head);
    if (more)
        log_info("weights that would lie packed in VRAM come to more than others: %.3f (attention), %.3f "
                 "(MLP), %.3f (head) of their bytes",
                 p->attention, p->mlp, p->head);
    return more;
}

uint64_t packed_look_first(struct planner_request *r)
{
    struct packed_sample sample;
    struct helm_err err = {0};
    if (!r->wish.pack || r->machine.device.kind == LEDGER_DEVICE_NONE) return 0;
    if (packed_sample_take(r->model, PACKED_SAMPLE_BYTES, &sample, &err)) {
        log_warn("what weights come to packed is taken from their shapes: %s", err.text);
        return 0;
    }
    r->wish.parts = sample.parts;
    return sample.bytes;
}

int packed_look_make(struct planner_request *r, struct plan *plan, struct arena_spec *spec,
                     struct helm_err *err)
{
    for (int made = 1;; made++) {
        int rc = planner_make(r, plan, spec, err);
        if (rc || made == PLANS_MAX || !look(r, plan)) return rc;
        plan_free(plan);
    }
}

int parts_look_make(struct model *model, struct planner_request *r, struct plan *plan,
                    struct arena_spec *spec, struct helm_err *err)
{
    const uint32_t parts = model_parts_wanted(model);
    int rc = model_cut_experts(model, parts, err);
    if (!rc) rc = packed_look_make(r, plan, spec, err);
    /* what has no room in parts may have some whole */
    const bool stands = parts == 1 || (rc ? rc != HELM_E_CAPACITY : plan_mixed_units(plan) > 0);
    if (stands) return rc;
    plan_free(plan);
    rc = model_cut_experts(model, 1, err);
    return rc ? rc : packed_look_make(r, plan, spec, err);
}

int packed_look_take(struct planner_request *r, struct plan *plan, struct arena_spec *spec,
                     struct helm_err *err)
{
    (void)look(r, plan);
    return planner_take(r, plan, spec, err);
}
