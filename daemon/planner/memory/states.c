/* The room of windows and fixed states: pages, slots and snapshots (docs/state.md). See ledger.h. Called by
 * ledger.c and memory.c; owns nothing. */
#include "common/plan/state.h"
#include "daemon/planner/memory/ledger.h"

uint32_t ledger_window_pages(const struct ledger_case *c, uint32_t page_count)
{
    const struct ledger_wish *wish = c->wish;
    const struct plan sizes = {.slots = wish->slots,
                               .step_tokens = wish->step_tokens,
                               .page_tokens = wish->page_tokens};
    const uint32_t tokens = model_window(&c->model->config);
    /* cells of another size have no place in pages */
    const uint32_t without = c->model->config.window_heads.head_dim ? page_count : 0;
    if (wish->windows_stand && (wish->window_page_count || !without))
        return wish->window_page_count < page_count ? wish->window_page_count : page_count;
    if (!tokens) return 0;
    const uint64_t pages = (uint64_t)LEDGER_WINDOWS * plan_window_pages_least(tokens, &sizes);
    return pages < page_count ? (uint32_t)pages : without;
}

bool ledger_keeps_window(const struct ledger_case *c, uint32_t page_count, uint32_t layer)
{
    return ledger_window_pages(c, page_count) && plan_may_keep_window(c->model, layer);
}

uint64_t ledger_state_layer_bytes(const struct ledger_case *c, uint32_t layer)
{
    const struct plan_state state = plan_state_of_layer(c->model, layer);
    return state.kind == STATE_FIXED ? c->wish->slots * state.bytes : 0;
}

uint32_t ledger_stated_snapshots(const struct ledger_case *c)
{
    const uint64_t bytes = plan_snapshot_bytes(c->model), count = bytes ? c->wish->snapshot_bytes / bytes : 0;
    return count < PLAN_SNAPSHOTS_MAX ? (uint32_t)count : PLAN_SNAPSHOTS_MAX - 1;
}

int ledger_fit_snapshots(const struct ledger_case *c, uint32_t ctx, struct plan *plan,
                         struct arena_spec *spec, struct helm_err *err)
{
    const uint64_t bytes = plan_snapshot_bytes(c->model);
    const struct ledger *host = &plan->memory[PLAN_HOST];
    struct ledger_wish wish = *c->wish;
    struct ledger_case more = *c;
    if (!bytes || wish.snapshot_bytes || plan->state_snapshots || !ledger_fits(plan)) return 0;
    const uint64_t usual = (uint64_t)LEDGER_SNAPSHOTS * wish.slots * bytes,
                   room = (host->limit - host->total) / LEDGER_SNAPSHOTS;
    more.wish = &wish;
    wish.snapshot_bytes = usual < room ? usual : room;
    wish.vram_page_count = plan_kv_places(plan); /* as the places were fitted */
    return ledger_write(&more, ctx, plan->page_count, plan, spec, err);
}
