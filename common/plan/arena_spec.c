/* See arena_spec.h. Pure. */
#include "common/plan/arena_spec.h"

#include "common/plan/engine_limits.h"
#include "common/plan/placement.h"
#include "common/plan/share.h"
#include "common/plan/state.h"

uint32_t plan_lanes_of(const struct plan *plan, enum arena_lane_kind kind)
{
    const bool mixed = plan_mixed_units(plan) > 0;
    const struct plan_home_row *home = &plan_home_rows[mixed ? PLAN_HOME_MIXED : PLAN_HOME_SHARED];
    unsigned tiered = 0; /* devices, of which the CPU may be asked to attend */
    if (kind == ARENA_LANE_STEP) return plan_lanes(plan);
    if (kind == ARENA_LANE_EXPERTS)
        return mixed || plan_shared_units(plan)
                   ? plan_lanes_between(1u << home->processor | 1u << home->helper)
                   : 0;
    for (int p = 0; p < PLAN_PROCESSORS; p++) tiered |= (unsigned)(plan->device[p].vram_page_count > 0) << p;
    return plan_lanes_between(tiered | 1u << PLAN_CPU0);
}

struct arena_spec plan_arena_spec(const struct plan *plan, const struct model_config *config)
{
    const uint32_t counted = plan_slot_units(plan);
    return (struct arena_spec){.slots = plan->slots,
                               .samples = engine_samples(plan->slots, plan->draft_tokens),
                               .context_tokens = plan->context_tokens,
                               .step_tokens = plan->step_tokens,
                               .hidden = config->hidden,
                               .vocab = config->vocab,
                               .lanes = {plan_lanes(plan), plan_lanes_of(plan, ARENA_LANE_KV),
                                         plan_lanes_of(plan, ARENA_LANE_EXPERTS)},
                               .kv = {.layers = plan_kv_layers(plan, PLAN_HOST),
                                      .kv_heads = config->kv_heads,
                                      .head_dim = config->head_dim,
                                      .page_tokens = plan->page_tokens,
                                      .dtype = kv_dtype_named(plan->kv_dtype),
                                      .latent = config->latent.rank},
                               .page_count = plan->page_count,
                               .window_tokens = plan->window_tokens,
                               .window_page_count = plan->window_page_count,
                               .window_layers = plan_window_layers(plan, PLAN_CPU0),
                               .window_kv_heads = config->window_heads.kv_heads,
                               .window_head_dim = config->window_heads.head_dim,
                               .vram_page_count = plan_kv_places(plan),
                               .kv_heads_asking = plan_kv_tiered(plan) ? config->heads : 0,
                               .experts_chosen = counted ? config->router.chosen : 0,
                               .experts = counted ? config->router.experts : 0,
                               .expert_layers = counted,
                               .state = plan_state_layout(plan, PLAN_CPU0),
                               .snapshot_count = plan->state_snapshots,
                               .weight_bytes = placements_in(plan, PLAN_HOST).region_bytes};
}
