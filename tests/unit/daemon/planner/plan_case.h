/* Shared by the tests of whole plans: a machine and a model that exist only here, and a plan that is checked
 * in all ways that hold for any. Included by test_planner.c and test_refusals.c, and by packed_case.h. */
#pragma once

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <string.h>
#include <time.h>

#include "common/base/units.h"
#include "daemon/planner/planner.h"
#include "daemon/planner/prefill.h"
#include "tests/unit/daemon/planner/made_up_model.h"
#include "common/plan/stages.h"

/* The accelerator of the issue: CPU 105 GB/s alone, 80 beside the link, link 55, VRAM 4.5 TB/s. */
static const struct made_up_rates rates = {105, 80, 4500, 55, 55, 9, 450};

/* A processor's time: what else runs on the machine is no part of it. */
static inline uint64_t spent_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * 1000000 + (uint64_t)t.tv_nsec / 1000;
}

struct bench {
    struct made_up made;
    struct profile profile;
    struct planner_refusal refusal;
    struct planner_request r;
};

static inline void bench_open(struct bench *b, const struct made_up_shape *shape, uint64_t host,
                              uint64_t vram)
{
    memset(b, 0, sizeof *b);
    assert_true(made_up_open(&b->made, shape));
    b->profile = made_up_profile(&rates);
    b->r =
        (struct planner_request){.model = &b->made.model,
                                 .wish = {.kv_dtype = KV_F16, .slots = 8, .page_tokens = 32, .threads = 16},
                                 .machine = {.memory = {.limit_bytes = CGROUP_UNLIMITED,
                                                        .machine_bytes = 256 * GIB,
                                                        .available_bytes = host}},
                                 .device_required = true,
                                 .share = SHARE_OFF, /* test_shared.c has those */
                                 .no_device = "there is none here",
                                 .profile = &b->profile,
                                 .refusal = &b->refusal};
    if (vram)
        b->r.machine.device = (struct ledger_device){.kind = LEDGER_DEVICE_CUDA,
                                                     .limit = vram,
                                                     .limit_from = "--vram",
                                                     .context_bytes = 500 * MIB,
                                                     .graph_bytes = 64 * MIB};
}

static inline void bench_close(struct bench *b)
{
    made_up_close(&b->made);
}

static inline double seconds_of(const struct planner_request *r, const struct plan *plan)
{
    struct planner_prediction p;
    struct helm_err err = {0};
    if (planner_predict(r, plan, r->batch, planner_typical_context(r, plan->context_tokens), 0, &p, &err))
        fail_msg("%s", err.text);
    assert_true(p.decode.low <= p.decode.seconds && p.decode.seconds <= p.decode.high && p.decode.low > 0);
    assert_true(p.ttft.low <= p.ttft.seconds && p.ttft.seconds <= p.ttft.high && p.ttft.low > 0);
    return p.decode.seconds;
}

static inline bool same_ledger(const struct ledger *a, const struct ledger *b)
{
    if (a->limit != b->limit || a->total != b->total || a->line_count != b->line_count) return false;
    for (uint32_t i = 0; i < a->line_count; i++)
        if (strcmp(a->line[i].what, b->line[i].what) != 0 || a->line[i].bytes != b->line[i].bytes)
            return false;
    return true;
}

/* Lines add up, both sums are under their limits, the JSON form is accepted by its own reader, and what is
 * read there is taken as the same plan with the same ledgers. */
static inline void check_plan(const struct planner_request *r, const struct plan *plan)
{
    struct helm_err err = {0};
    struct plan again;
    struct arena_spec spec;
    const struct ledger *ledgers[] = {&plan->memory[PLAN_HOST], &plan->memory[PLAN_VRAM0]};
    assert_int_equal(plan_check(plan, &err), 0);
    for (int l = 0; l < 2; l++) {
        uint64_t sum = 0;
        for (uint32_t i = 0; i < ledgers[l]->line_count; i++) sum += ledgers[l]->line[i].bytes;
        assert_true(sum == ledgers[l]->total && sum <= ledgers[l]->limit);
    }
    json_t *json = plan_to_json(plan);
    assert_non_null(json);
    if (plan_from_json(json, &again, &err)) fail_msg("%s", err.text);
    json_decref(json);
    if (planner_take(r, &again, &spec, &err)) fail_msg("%s", err.text);
    assert_true(same_ledger(&plan->memory[PLAN_HOST], &again.memory[PLAN_HOST]) &&
                same_ledger(&plan->memory[PLAN_VRAM0], &again.memory[PLAN_VRAM0]));
    json_t *lists = plan_lists_to_json(plan), *taken = plan_lists_to_json(&again);
    assert_true(json_equal(lists, taken));
    json_decref(lists);
    json_decref(taken);
    assert_int_equal(plan_phase_count(plan), plan_phase_count(&again));
    for (uint32_t p = 1; p < plan_phase_count(plan); p++) {
        assert_int_equal(plan_phase_from(plan, p), plan_phase_from(&again, p));
        assert_in_range(plan_phase_from(plan, p), GPU_CHUNK_TOKENS, plan->step_tokens);
    }
    plan_free(&again);
}

static inline void make(struct bench *b, struct plan *plan)
{
    struct arena_spec spec;
    struct helm_err err = {0};
    if (planner_make(&b->r, plan, &spec, &err)) fail_msg("%s", err.text);
    assert_false(b->refusal.refused);
    check_plan(&b->r, plan);
}
