/* The idea of dense MLPs that GPU and CPU compute together (daemon/planner/shared.c): it wins on machines
 * where VRAM takes about as long as host memory, by the share at which both do; plans that gain nothing
 * are as without it; the ledger and the forecast are of the model as workers cut it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>

#include "common/model/mixture.h"
#include "common/plan/share.h"
#include "tests/unit/daemon/planner/explain_case.h"

static double seconds_of(const struct explain_case *c, const struct plan *plan)
{
    struct planner_prediction p;
    struct helm_err err = {0};
    const uint32_t context = planner_typical_context(&c->request, plan->context_tokens);
    if (planner_predict(&c->request, plan, 1, context, 0, &p, &err)) fail_msg("%s", err.text);
    return p.decode.seconds;
}

/* The same plan with this many rows on the GPU; INFINITY where that does not fit. */
static double with_rows(const struct explain_case *c, uint32_t rows)
{
    struct plan plan;
    struct arena_spec spec;
    struct helm_err err = {0};
    assert_int_equal(plan_copy(&c->plan, &plan, &err), 0);
    plan_drop_placements(&plan);
    plan.shared_rows = rows;
    const bool fits = planner_take(&c->request, &plan, &spec, &err) == 0;
    const double seconds = fits ? seconds_of(c, &plan) : (double)INFINITY;
    plan_free(&plan);
    return seconds;
}

struct machine {
    const char *model, *weights, *profile;
    uint64_t vram;
    double least; /* times as fast as the same request without a shared MLP, at least; 0: nothing is shared */
};

static void open_case(struct explain_case *c, const struct machine *m)
{
    case_open(c, m->model, m->profile, m->vram);
    c->request.tiers = KV_TIERS_AUTO;
    if (m->weights) formats_lay(&c->model, mixture_named(m->weights));
    case_make(c);
}

static double seconds_without(const struct machine *m)
{
    struct explain_case c;
    struct helm_err err = {0};
    struct arena_spec spec;
    case_open(&c, m->model, m->profile, m->vram);
    c.request.tiers = KV_TIERS_AUTO;
    c.request.share = SHARE_OFF;
    if (m->weights) formats_lay(&c.model, mixture_named(m->weights));
    if (planner_make(&c.request, &c.plan, &spec, &err)) fail_msg("%s", err.text);
    assert_int_equal(c.plan.shared_rows, 0);
    const double seconds = seconds_of(&c, &c.plan);
    case_close(&c);
    return seconds;
}

static void mlps_are_shared_where_that_wins(void **state)
{
    (void)state;
    static const struct machine machines[] = {
        {"qwen3-8b", "q8_0", "thesis-rtx4060-laptop", 0, 1.15},
        {"qwen3-14b", "q4_k_m", "thesis-rtx4060-laptop", 0, 1.15},
        {"qwen3-32b", "q6_k", "thesis-rtx3090", 0, 1.15},
        {"qwen3-8b", "q8_0", "thesis-rtx3090", 6 * GIB, 1.05},
        {"qwen3-8b", "q8_0", "h200-sapphire-rapids", 4 * GIB, 0},
        {"qwen3-8b", "q8_0", "thesis-rtx3090", 0, 0},               /* all in VRAM */
        {"qwen3-30b-a3b", "q4_k_m", "thesis-rtx3090", 12 * GIB, 0}, /* a mixture */
    };
    for (size_t i = 0; i < sizeof machines / sizeof *machines; i++) {
        const struct machine *m = &machines[i];
        struct explain_case c;
        open_case(&c, m);
        const double now = seconds_of(&c, &c.plan), before = seconds_without(m);
        print_message("%s %s, %s: %.2f token/s, %.2f without; %u of %u rows of %u MLPs\n", m->model,
                      m->weights ? m->weights : "as stored", m->profile, 1 / now, 1 / before,
                      c.plan.shared_rows, c.model.config.intermediate, plan_shared_units(&c.plan));
        if (m->least > 0) {
            assert_true(plan_shared_units(&c.plan) > 0 && before >= m->least * now);
            assert_int_equal(c.plan.shared_rows % 256, 0);
            /* lists for prompts have all rows on the GPU */
            for (uint32_t u = 0; u < unit_count(c.plan.layers); u++)
                for (uint32_t p = 1; p < plan_phase_count(&c.plan); p++)
                    if (c.plan.unit[u].home[0] == PLAN_HOME_SHARED)
                        assert_int_equal(c.plan.unit[u].home[p], PLAN_HOME_STREAM);
            /* neither a larger share nor a smaller one is better by more than homes may differ */
            const uint32_t step = 512;
            assert_true(with_rows(&c, c.plan.shared_rows - step) > 0.99 * now);
            assert_true(with_rows(&c, c.plan.shared_rows + step) > 0.99 * now);
        } else {
            assert_int_equal(plan_shared_units(&c.plan), 0);
            assert_true(fabs(now / before - 1) < 1e-9 || c.model.config.router.experts);
        }
        case_close(&c);
    }
}

/* Bytes of both parts are counted once, in the memory in which they lie; buffers by the cut model. */
static void the_ledger_counts_both_parts(void **state)
{
    (void)state;
    struct explain_case c;
    const struct machine laptop = {"qwen3-8b", "q8_0", "thesis-rtx4060-laptop", 0, 0};
    open_case(&c, &laptop);
    const struct plan *plan = &c.plan;
    uint64_t own = 0, rest = 0, whole = 0;
    for (uint32_t i = 0; i < plan->placement_count; i++) {
        const struct placement *p = &plan->placement[i];
        const bool is_own = share_is_own(p->role);
        if (unit_part_of_role(p->role) != UNIT_MLP || p->layer < 0) continue;
        assert_int_equal(p->memory, is_own ? PLAN_VRAM0 : PLAN_HOST);
        *(is_own ? &own : &rest) += p->bytes;
    }
    for (uint32_t i = 0; i < c.model.tensor_count; i++) {
        const enum tensor_role role = c.model.tensors[i].role;
        if (role == TENSOR_GATE || role == TENSOR_UP || role == TENSOR_DOWN)
            whole += c.model.tensors[i].bytes;
    }
    assert_int_equal(own + rest, whole);
    assert_true(plan->memory[PLAN_VRAM0].total <= plan->memory[PLAN_VRAM0].limit);
    assert_true(plan->memory[PLAN_HOST].total <= plan->memory[PLAN_HOST].limit);
    case_close(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(mlps_are_shared_where_that_wins),
                                       cmocka_unit_test(the_ledger_counts_both_parts)};
    return cmocka_run_group_tests_name("daemon/planner/shared", tests, NULL, NULL);
}
