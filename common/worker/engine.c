/* Checks and notes of both engines. See engine.h. */
#include "common/worker/engine.h"

#include <stdarg.h>

#include "common/base/units.h"
#include "common/model/model.h"
#include "common/model/parts.h"
#include "common/plan/share.h"
#include "common/plan/state.h"

#define LOOK_MS 100 /* how often a worker that waits for tokens looks whether it should end */

void engine_reduced(struct engine_report *report, const char *fmt, ...)
{
    if (report->reduced_count == ENGINE_REDUCED_MAX) return;
    va_list args;
    va_start(args, fmt);
    vsnprintf(report->reduced[report->reduced_count++], ENGINE_REDUCED_TEXT, fmt, args);
    va_end(args);
}

const struct step *engine_step_of(const struct arena *arena, uint32_t serial, struct helm_err *err)
{
    const struct step *step = &arena_control_of(arena)->step[serial % ARENA_STEP_RING];
    if (step->serial == serial) return step;
    helm_fail(err, HELM_E_PEER, "step ring: slot %u holds step %u, not %u", serial % ARENA_STEP_RING,
              step->serial, serial);
    return NULL;
}

int engine_wait_drawn(const struct worker_engine *engine, const struct step *step,
                      const struct engine_patience *patience, uint64_t *waited_ns, struct helm_err *err)
{
    struct doorbell *bell = &arena_control_of(engine->arena)->drawn_bell;
    const uint64_t start_ns = units_now_ns();
    bool follows = false;
    *waited_ns = 0;
    for (uint32_t i = 0; i < step->row_count && i < ARENA_STEP_ROWS; i++)
        follows |= (step->row[i].flags & STEP_ROW_FOLLOWS) != 0;
    if (!follows) return 0;
    for (;;) {
        const uint32_t seen = doorbell_read(bell);
        if (step_reached(seen, step->serial - 1)) break;
        if (atomic_load_explicit(&engine->cancel, memory_order_relaxed))
            return helm_fail(err, HELM_E_CANCELLED, "waiting for the tokens of step %u was cancelled",
                             step->serial - 1);
        if (units_now_ns() - start_ns > patience->wait_ms * UINT64_C(1000000))
            return helm_fail(err, HELM_E_PEER, "the tokens of step %u were not there within %u ms",
                             step->serial - 1, patience->wait_ms);
        (void)doorbell_wait(bell, seen, patience->spin_us, LOOK_MS, NULL);
    }
    *waited_ns = units_now_ns() - start_ns;
    return 0;
}

int engine_read_model(const char *path, const struct plan *plan, struct model *model, struct helm_err *err)
{
    int rc = (plan && plan->draft_layers ? model_read_drafting : model_read)(path, model, err);
    if (!rc && plan) rc = model_cut_experts(model, plan_expert_parts(plan), err);
    if (!rc && plan) rc = plan_share_model(plan, model, err);
    if (!rc && plan) rc = plan_check_states(plan, model, err);
    if (rc) model_free(model);
    return rc;
}

int engine_take_model(const struct engine_options *o, struct model *model, struct helm_err *err)
{
    if (!o->made) return engine_read_model(o->folder, o->plan, model, err);
    *model = *o->made;
    *o->made = (struct model){.folder = NULL};
    return 0;
}

int engine_take_self(struct worker_engine *engine, const struct engine_options *o, struct helm_err *err)
{
    engine->self = o->processor;
    if (plan_processor_has_memory(o->processor) == engine->ops->device) return 0;
    return helm_fail(err, HELM_E_MISMATCH, "a '%s' worker cannot be the plan's processor '%s'",
                     engine->ops->kind, plan_processor_name(o->processor));
}

int engine_check_plan(const struct plan *plan, const struct model_config *c, struct helm_err *err)
{
    if (plan->layers != c->layers)
        return helm_fail(err, HELM_E_MISMATCH, "the plan has %u layers, the model %u", plan->layers,
                         c->layers);
    if (plan->draft_layers != c->drafts)
        return helm_fail(err, HELM_E_MISMATCH, "%u layers of the plan make drafts, %u of the model",
                         plan->draft_layers, c->drafts);
    int rc = plan_check(plan, err);
    return rc ? helm_err_prefix(err, "plan") : 0;
}

int engine_check_arena(const struct arena *arena, const struct plan *plan, const struct model_config *c,
                       struct helm_err *err)
{
    const struct arena_header *h = arena_header_of(arena);
    int rc = engine_check_plan(plan, c, err);
    if (rc) return rc;
    for (int k = 0; k < ARENA_LANE_KINDS; k++)
        if (h->lanes[k] < plan_lanes_of(plan, (enum arena_lane_kind)k))
            return helm_fail(err, HELM_E_MISMATCH, "the plan needs %u lanes, the arena has %u",
                             plan_lanes_of(plan, (enum arena_lane_kind)k), h->lanes[k]);
    const struct {
        const char *what;
        uint64_t arena, expected;
    } fields[] = {{"hidden", h->hidden, c->hidden},
                  {"vocab", h->vocab, c->vocab},
                  {"kv.layers", h->kv.layers, plan_kv_layers(plan, PLAN_HOST)},
                  {"window_tokens", h->window_tokens, plan->window_tokens},
                  {"window_page_count", h->window_page_count, plan->window_page_count},
                  {"window_layers", h->window_layers, plan_window_layers(plan, PLAN_CPU0)},
                  {"vram_page_count", h->vram_page_count, plan_kv_places(plan)},
                  {"kv_heads_asking", h->kv_heads_asking, plan_kv_tiered(plan) ? c->heads : 0},
                  {"expert_layers", h->expert_layers, plan_slot_units(plan)},
                  {"experts", h->experts, plan_slot_units(plan) ? c->router.experts : 0},
                  {"experts_chosen", h->experts_chosen, plan_slot_units(plan) ? c->router.chosen : 0},
                  {"state.slot_bytes", h->state.slot_bytes, plan_state_layout(plan, PLAN_CPU0).slot_bytes},
                  {"state.snapshot_bytes", h->state.snapshot_bytes,
                   plan_state_layout(plan, PLAN_CPU0).snapshot_bytes},
                  {"window_kv_heads", h->window_kv_heads, model_heads_of(c, true).kv_heads},
                  {"window_head_dim", h->window_head_dim, model_heads_of(c, true).head_dim},
                  {"kv.kv_heads", h->kv.kv_heads, c->kv_heads},
                  {"kv.head_dim", h->kv.head_dim, c->head_dim},
                  {"kv.latent", h->kv.latent, c->latent.rank}};
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
        if (fields[i].arena != fields[i].expected)
            return helm_fail(err, HELM_E_MISMATCH, "the arena's %s is %llu, the model's %llu", fields[i].what,
                             (unsigned long long)fields[i].arena, (unsigned long long)fields[i].expected);
    return 0;
}
