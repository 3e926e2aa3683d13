/* Rules of a KV cache with two tiers: places in VRAM, how far they are filled, and which processor reads what
 * lies in the arena alone. See plan.h. Called by the planner, helmd and the workers, so that all of them go
 * by the same numbers; pure. */

#include "common/plan/engine_limits.h"
#include "common/plan/plan.h"

/* ---- places ---- */

/* Places for a step of `tokens` tokens: never more than all slots have pages. */
static uint64_t places_for(const struct plan *plan, uint32_t tokens)
{
    const uint64_t whole = (uint64_t)plan->slots * ((plan->context_tokens - 1) / plan->page_tokens + 1);
    const uint64_t step = (tokens - 1) / plan->page_tokens + 1 + 2ull * plan->slots;
    return step < whole ? step : whole;
}

uint64_t plan_vram_pages_least(const struct plan *plan)
{
    return places_for(plan, plan->step_tokens < ENGINE_FEW_TOKENS ? plan->step_tokens : ENGINE_FEW_TOKENS);
}

bool plan_appends_in_arena(const struct plan *plan)
{
    return plan_kv_tiered(plan) && plan_kv_places(plan) < places_for(plan, plan->step_tokens);
}

uint32_t plan_free_places(uint32_t slots, uint32_t page_tokens)
{
    return (PLAN_STEPS_IN_FLIGHT * slots - 1) / page_tokens + 1;
}

uint32_t plan_places_filled(const struct plan *plan)
{
    const uint32_t places = plan_kv_places(plan);
    return plan->kv_free_places < places ? places - plan->kv_free_places : 1;
}

uint32_t plan_host_tokens(const struct plan *plan, uint32_t rows, uint32_t context)
{
    if (!plan_kv_tiered(plan) || context == 0 || rows == 0) return 0;
    const uint32_t filled = plan_places_filled(plan) / rows,
                   share = filled ? filled : 1, /* what is appended to lies there */
        pages = (context - 1) / plan->page_tokens + 1;
    return pages > share ? (pages - share) * plan->page_tokens : 0;
}

/* ---- ways ---- */

uint32_t plan_direct_permille(const struct plan *plan, uint64_t positions)
{
    return positions <= plan->kv_direct_positions ? 1000 : plan->kv_direct_permille;
}

bool plan_assists_layer(const struct plan *plan, uint32_t window)
{
    if (window && plan->window_page_count) return false; /* it lies with its processor */
    return plan_kv_assisted(plan) && (window == 0 || window > plan->kv_direct_window);
}

uint32_t plan_assisted_layers(const struct plan *plan, const uint32_t *window, uint32_t end)
{
    uint32_t layers = 0, kv_layer;
    for (uint32_t l = 0; l < end; l++)
        layers += plan_keeps_pages(plan, l) && plan_processor_has_memory(plan_kv_of(plan, l, &kv_layer)) &&
                  plan_assists_layer(plan, window ? window[l] : 0);
    return layers;
}

/* ---- checks ---- */

/* In VRAM lie at least the pages that a step of few tokens appends to, and one of every other sequence. */
int plan_check_tiers(const struct plan *plan, struct helm_err *err)
{
    if (!plan_kv_tiered(plan)) return 0;
    const uint64_t least = plan_vram_pages_least(plan);
    if (plan_devices(plan) > 1)
        return helm_fail(
            err, HELM_E_UNSUPPORTED,
            "'vram_page_count' is %u, but the plan uses %u devices: two tiers of the KV cache are for "
            "plans with one",
            plan_kv_places(plan), plan_devices(plan));
    if (!plan_device_layers(plan))
        return helm_fail(err, HELM_E_FORMAT, "'vram_page_count' is %u, but no layer's cache is the GPU's",
                         plan_kv_places(plan));
    if (plan->invariant && plan_kv_assisted(plan))
        return helm_fail(err, HELM_E_FORMAT,
                         "'invariant' is true, but 'kv_direct_permille' is %u: what the CPU attends to "
                         "depends on how many pages VRAM has for a sequence; it must be 1000",
                         plan->kv_direct_permille);
    if (plan_kv_places(plan) >= least) return 0;
    return helm_fail(
        err, HELM_E_LIMIT,
        "'vram_page_count' is %u, less than the %llu pages of %u tokens that steps of few tokens of %u "
        "sequences append to",
        plan_kv_places(plan), (unsigned long long)least, plan->page_tokens, plan->slots);
}
