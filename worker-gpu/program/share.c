/* Lowering: a dense MLP whose other rows another processor computes at the same time
 * (common/model/share.h). See lower.h; called by math.c.
 *
 * Before the unit's own products the residual stream goes to the helper by lane; after them the helper's
 * sum is added. Tickets count these units, from 1 on, in both lanes. */
#include "common/plan/share.h"
#include "worker-gpu/program/lower.h"

static struct lane *lane_of(const struct lowering *low, uint32_t unit, bool answer)
{
    const struct gpu_source *s = low->source;
    const enum plan_processor helper = plan_home_rows[s->plan->unit[unit].home[low->program->phase]].helper;
    return arena_lane_at(s->arena, ARENA_LANE_EXPERTS,
                         answer ? plan_link_of(helper, s->self) : plan_link_of(s->self, helper));
}

bool lower_shares(const struct lowering *low, uint32_t unit)
{
    return plan_home_rows[low->source->plan->unit[unit].home[low->program->phase]].route == PLAN_ROWS;
}

void lower_share_begin(struct lowering *low, uint32_t unit)
{
    const struct gpu_source *s = low->source;
    const uint32_t ticket = plan_shared_index(s->plan, unit) + 1;
    struct lane *lane = lane_of(low, unit, false);
    if (ticket == 1) lower_word(low, OP_WORD_WAIT, &lane->bell.value, 0, DEVICE_EQUAL);
    lower_add(low, OP_LANE_WRITE, (int32_t)unit_layer(unit))->op.as.move =
        (struct op_move){.from = gpu_area(s->buffers, GPU_AREA_X),
                         .to = lane->data,
                         .width = s->model->config.hidden};
    lower_word(low, OP_WORD_WRITE, &lane->bell.value, ticket, DEVICE_EQUAL);
}

/* Where the device's kernels can wait for a word this one does, unless it is a chunk's, of many blocks, or
 * slices are copied meanwhile: in a captured graph a copy that waits for a kernel seems to wait for the whole
 * run of kernels after it too, up to the next node of the queue (docs/planner-plan.md). Else its queue. */
void lower_share_end(struct lowering *low, uint32_t unit, float *out)
{
    const struct gpu_source *s = low->source;
    const uint32_t ticket = plan_shared_index(s->plan, unit) + 1;
    struct lane *lane = lane_of(low, unit, true);
    const bool waits = s->device->rings && low->program->tier != GPU_TIER_CHUNK && !low->ring->count;
    if (!waits) lower_word(low, OP_WORD_WAIT, &lane->bell.value, ticket, DEVICE_AT_LEAST);
    lower_add(low, OP_EXPERTS_ADD, (int32_t)unit_layer(unit))->op.as.experts_add =
        (struct gpuk_experts_add){.x = gpu_area(s->buffers, GPU_AREA_X),
                                  .sum = lane->data,
                                  .out = out,
                                  .width = s->model->config.hidden,
                                  .bell = waits ? (uint32_t *)(void *)&lane->bell.value : NULL,
                                  .ticket = ticket};
    if (ticket == plan_shared_units(s->plan))
        lower_word(low, OP_WORD_WRITE, &lane->bell.value, 0, DEVICE_EQUAL);
}
