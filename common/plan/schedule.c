/* The list and the kernels of a step. See schedule.h. Called by the batcher and by both workers. */
#include "common/plan/schedule.h"

#include "common/shared/arena_layout.h"

static bool has_short(const struct plan *plan)
{
    return plan->invariant && plan_device_computes(plan);
}

uint32_t plan_list_count(const struct plan *plan)
{
    return plan_phase_count(plan) * (has_short(plan) ? 2 : 1);
}

uint32_t plan_list_phase(const struct plan *plan, uint32_t list)
{
    return list % plan_phase_count(plan);
}

uint32_t plan_list_tokens(const struct plan *plan, uint32_t list)
{
    const uint32_t phase = plan_list_phase(plan, list);
    uint32_t last = plan_phase_last(plan, phase);
    if (phase != list && last > GPU_STEADY_TOKENS) last = GPU_STEADY_TOKENS;
    return last < plan->step_tokens ? last : plan->step_tokens;
}

uint32_t plan_prompt_list(const struct plan *plan, uint32_t prompt_tokens)
{
    const bool is_short = has_short(plan) && prompt_tokens <= GPU_STEADY_TOKENS;
    return plan_phase_for(plan, prompt_tokens < plan->step_tokens ? prompt_tokens : plan->step_tokens) +
           (is_short ? plan_phase_count(plan) : 0);
}

uint32_t plan_decode_tokens(const struct plan *plan)
{
    const uint32_t most = plan_list_tokens(plan, 0);
    return most < ENGINE_FEW_TOKENS ? most : ENGINE_FEW_TOKENS;
}

int plan_schedule_of(const struct plan *plan, uint32_t flags, uint32_t tokens, struct plan_schedule *schedule,
                     struct helm_err *err)
{
    const uint32_t list = flags >> STEP_LIST_SHIFT;
    *schedule =
        (struct plan_schedule){.phase = plan_phase_for(plan, tokens), .chunk = tokens > ENGINE_FEW_TOKENS};
    if (!plan->invariant) {
        if (!(flags & STEP_PROMPT) && !list) return 0;
        return helm_fail(err, HELM_E_LIMIT, "a step of prompts, list %u, of a plan that is not invariant",
                         list);
    }
    *schedule = (struct plan_schedule){.phase = plan_list_phase(plan, list),
                                       .chunk = (flags & STEP_PROMPT) != 0,
                                       .is_short = list >= plan_phase_count(plan)};
    if (list >= plan_list_count(plan) || (list && !schedule->chunk))
        return helm_fail(err, HELM_E_LIMIT, "a step of list %u of %u", list, plan_list_count(plan));
    const uint32_t most = schedule->chunk ? plan_list_tokens(plan, list) : plan_decode_tokens(plan);
    if (tokens <= most) return 0;
    return helm_fail(err, HELM_E_LIMIT, "a step of %u %s, more than the %u of list %u", tokens,
                     schedule->chunk ? "tokens of prompts" : "tokens after prompts", most, list);
}

uint32_t plan_prompt_flags(uint32_t list)
{
    return STEP_PROMPT | list << STEP_LIST_SHIFT;
}

bool plan_overlaps_chunks(const struct plan *plan)
{
    if (plan_devices(plan) < 2 || plan->prefill_count || plan_kv_tiered(plan) || plan->window_page_count ||
        plan->draft_tokens)
        return false;
    for (uint32_t u = 0; u < unit_count(plan->layers); u++) {
        const struct plan_unit *unit = &plan->unit[u];
        if (!plan_home_in_vram(unit->home[0]) || (plan->has_states && unit->state.kind == STATE_FIXED))
            return false;
    }
    return true;
}
