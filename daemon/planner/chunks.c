/* The idea of longer chunks for weights in VRAM that a chunk expands, and for experts on disk. See ideas.h.
 * Called by ideas.c and disk.c; owns nothing. */
#include "daemon/planner/ideas.h"

#include "daemon/planner/prefill.h"
#include "daemon/planner/profile/policy.h"

/* Seconds of a prompt of `prompt` tokens in chunks of `tokens`, which become the plan's. */
static int prompt_seconds(struct making *m, uint32_t prompt, uint32_t tokens, struct plan *plan,
                          double *seconds, struct helm_err *err)
{
    const struct cost_case c = making_case(m, plan);
    struct cost_forecast forecast;
    plan->step_tokens = m->wish.step_tokens = tokens;
    int rc = cost_ttft(&c, prompt, &forecast, err);
    *seconds = forecast.seconds;
    return rc;
}

/* Whether buffers for chunks of `tokens` tokens are small enough. On disk they take the room of slots. */
static bool has_room(const struct making *m, const struct plan *plan, uint32_t tokens)
{
    const uint32_t ctx = plan->context_tokens;
    const struct ledger_workspace room = {
        .step_tokens = tokens, .ctx = ctx, .layers = true, .head = true, .tiered = plan_kv_tiered(plan)};
    if (plan_disk_units(plan) &&
        ledger_cpu_buffer_bytes(&m->c, tokens) > plan->memory[PLAN_HOST].limit / DISK_CHUNK_PARTS)
        return false;
    return !plan_devices(plan) ||
           ledger_workspace_bytes(&m->c, &room) <= prefill_buffers_most(&m->c, ctx, tokens);
}

/* Weights in VRAM that a chunk expands are expanded once for all its tokens, and experts on disk are read
 * once: chunks become longer as long as that is worth it and there is room beside the smallest pool. */
int chunks_lengthen(struct making *m, struct plan *plan, struct arena_spec *arena, struct helm_err *err)
{
    const uint32_t ctx = plan->context_tokens;
    if (m->asked.step_tokens || !(plan_devices(plan) || plan_disk_units(plan))) return 0;
    while (plan->step_tokens < PREFILL_CHUNK_MAX && 2 * plan->step_tokens <= ctx) {
        const uint32_t now = plan->step_tokens, twice = 2 * now;
        double shorter, longer;
        int rc = prompt_seconds(m, twice, now, plan, &shorter, err);
        if (!rc) rc = prompt_seconds(m, twice, twice, plan, &longer, err);
        const bool pays = !rc && longer <= (1 - WORTH_ROOM) * shorter && has_room(m, plan, twice);
        if (pays) rc = ledger_write(&m->c, ctx, ledger_least_pages(&m->c, ctx), plan, arena, err);
        if (pays && !rc && ledger_fits(plan)) continue;
        plan->step_tokens = m->wish.step_tokens = now;
        return rc;
    }
    return 0;
}
