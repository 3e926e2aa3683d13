/* What both engines check and note alike. See engine.h. */
#include "common/worker/engine.h"

#include <stdarg.h>

#include "common/model/model.h"

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

static int check_homes(const struct plan *plan, uint32_t p, struct helm_err *err)
{
    static const char *const list[PLAN_PHASES_MAX] = {"decode", "prefill 1", "prefill 2"};
    const struct plan_phase phase = plan_phase_at(plan, p);
    for (uint32_t s = 0; s < phase.stage_count; s++) {
        const struct plan_stage *stage = &phase.stages[s];
        if (stage->home == PLAN_HOME_CPU || stage->home == PLAN_HOME_GPU || stage->home == PLAN_HOME_STREAM)
            continue;
        return helm_fail(
            err, HELM_E_UNSUPPORTED,
            "plan: %s stage %u (layers %u to %u) has home `%s`; the workers compute `cpu`, `gpu` "
            "and `stream`",
            list[p], s, stage->first, stage->last, plan_home_name(stage->home));
    }
    return 0;
}

int engine_check_plan(const struct plan *plan, const struct model_config *c, struct helm_err *err)
{
    if (plan->layers != c->layers)
        return helm_fail(err, HELM_E_MISMATCH, "the plan has %u layers, the model %u", plan->layers,
                         c->layers);
    int rc = plan_check(plan, err);
    if (rc) return helm_err_prefix(err, "plan");
    for (uint32_t p = 0; p < plan_phase_count(plan); p++) {
        rc = check_homes(plan, p, err);
        if (rc) return rc;
    }
    return 0;
}

int engine_check_arena(const struct arena *arena, const struct plan *plan, const struct model_config *c,
                       struct helm_err *err)
{
    const struct arena_header *h = arena_header_of(arena);
    bool both = plan_uses(plan, PLAN_HOME_CPU) && plan_uses(plan, PLAN_HOME_GPU);
    int rc = engine_check_plan(plan, c, err);
    if (rc) return rc;
    if (both && h->lanes < LANE_COUNT)
        return helm_fail(err, HELM_E_MISMATCH, "the plan needs %d lanes, the arena has %u", LANE_COUNT,
                         h->lanes);
    const struct {
        const char *what;
        uint64_t arena, expected;
    } fields[] = {{"hidden", h->hidden, c->hidden},
                  {"vocab", h->vocab, c->vocab},
                  {"kv.layers", h->kv.layers, plan_layers_of(plan, PLAN_HOME_CPU)},
                  {"kv.kv_heads", h->kv.kv_heads, c->kv_heads},
                  {"kv.head_dim", h->kv.head_dim, c->head_dim}};
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
        if (fields[i].arena != fields[i].expected)
            return helm_fail(err, HELM_E_MISMATCH, "the arena's %s is %llu, the model's %llu", fields[i].what,
                             (unsigned long long)fields[i].arena, (unsigned long long)fields[i].expected);
    return 0;
}
