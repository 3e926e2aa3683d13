/* Unit tests of daemon/planner/candidate.c, refusal.c and prefill.c through planner.c: machines and wishes of
 * all kinds, drawn at random; every answer is a plan that holds, or a refusal whose numbers do. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/log.h"
#include "common/base/units.h"
#include "daemon/steps/kv_pages.h"
#include "daemon/planner/planner.h"
#include "daemon/planner/prefill.h"
#include "tests/unit/daemon/planner/made_up_model.h"

/* Instrumented, a plan takes three times as long. HELM_TEST_FULL (`make test-full`): three times as many. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define MACHINES 20
#else
#define MACHINES 50
#endif

/* Folder of the model that takes the place of made-up shapes; NULL: none does. */
static const char *folder;

/* Among the machines from this one on is one whose CPU is faster than its device, which was asked for by
 * name. */
#define SHARED_FIRST 430

struct drawn {
    uint64_t seed;
    struct made_up made;
    struct model read; /* of `folder` */
    struct profile profile;
    struct planner_refusal refusal;
    struct planner_request r;
};

static uint32_t draw(struct drawn *d, uint32_t below)
{
    d->seed = d->seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)(d->seed >> 33) % below;
}

/* Between low and high, as likely in each octave. */
static double draw_wide(struct drawn *d, double low, double high)
{
    return low * pow(high / low, draw(d, 10001) / 10000.0);
}

static void read_folder(struct drawn *d)
{
    struct helm_err err = {0};
    if (model_read(folder, &d->read, &err)) fail_msg("%s", err.text);
    d->read.config.max_context = d->made.model.config.max_context;
    analyse_table_free(&d->made.analysed);
    if (analyse_table_build(&d->read, &d->made.analysed, &err)) fail_msg("%s", err.text);
}

static void draw_machine(struct drawn *d)
{
    static const struct made_up_shape *const shapes[] = {&shape_8b, &shape_14b};
    struct made_up_shape shape = *shapes[draw(d, 2)];
    bool tiny = draw(d, 2);
    if (tiny) shape = (struct made_up_shape){2 + draw(d, 10), 256, 640, 4, 2, 64, 3000, false};
    shape.tied = draw(d, 2);
    assert_true(made_up_open(&d->made, &shape));
    if (folder) read_folder(d);
    double all = (double)d->made.analysed.total_stored;
    const struct made_up_rates rates = {.cpu = draw_wide(d, 5, 400),
                                        .cpu_beside = draw_wide(d, 4, 400),
                                        .gpu = draw_wide(d, 20, 4000),
                                        .link = draw_wide(d, 1, 60),
                                        .link_beside = draw_wide(d, 1, 60),
                                        .cpu_tflops = draw_wide(d, 0.1, 10),
                                        .gpu_tflops = draw_wide(d, 1, 500)};
    d->profile = made_up_profile(&rates);
    if (d->profile.cpu.gemv_beside.value > rates.cpu * 1e9) d->profile.cpu.gemv_beside = d->profile.cpu.gemv;
    if (d->profile.link.h2d_beside.value > rates.link * 1e9) d->profile.link.h2d_beside = d->profile.link.h2d;
    uint32_t slots = 1 + draw(d, 16);
    d->r = (struct planner_request){
        .model = folder ? &d->read : &d->made.model,
        .wish = {.kv_dtype = KV_F16, .slots = slots, .page_tokens = 16u << draw(d, 3), .threads = 8},
        .machine = {.memory = {.limit_bytes = CGROUP_UNLIMITED,
                               .machine_bytes = 512 * GIB,
                               .available_bytes = (uint64_t)(GIB + draw_wide(d, all / 4, all * 4))}},
        .device_required = draw(d, 2),
        .no_device = "there is none here",
        .profile = &d->profile,
        .strategy = draw(d, 2) ? SEARCH_BEST : (enum search_strategy)draw(d, SEARCH_MIXED),
        .batch = 1 + draw(d, slots),
        .refusal = &d->refusal};
    if (draw(d, 3) == 0) d->r.wish.ctx = 256u << draw(d, 6);
    if (draw(d, 4) == 0) d->r.wish.step_tokens = 16 + draw(d, 1000);
    if (draw(d, 8)) {
        bool emulated = draw(d, 3) == 0;
        d->r.machine.device =
            (struct ledger_device){.kind = emulated ? LEDGER_DEVICE_EMULATED : LEDGER_DEVICE_CUDA,
                                   .limit = (uint64_t)(draw_wide(d, all / 50, all * 3) +
                                                       draw_wide(d, 4.0 * MIB, 700.0 * MIB)),
                                   .limit_from = "--vram",
                                   .context_bytes = emulated ? MIB : 300 * MIB,
                                   .graph_bytes = emulated ? 256 * KIB : 64 * MIB,
                                   .graph_layer_bytes = emulated ? 64 * KIB : 0};
    } else {
        d->profile.gpu.device = PROFILE_DEVICE_NONE;
    }
}

static void check_ledger(const struct ledger *ledger)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < ledger->line_count; i++) sum += ledger->line[i].bytes;
    assert_true(sum == ledger->total && sum <= ledger->limit);
}

/* By members: a structure's padding has any value. */
static void check_same_arena(const struct arena_spec *a, const struct arena_spec *b)
{
    const uint64_t left[] = {a->slots,           a->context_tokens, a->step_tokens, a->hidden,
                             a->vocab,           a->lanes[0],       a->page_count,  a->vram_page_count,
                             a->kv_heads_asking, a->experts_chosen, a->experts,     a->expert_layers,
                             a->session_bytes,   a->weight_bytes,   a->lanes[1],    a->lanes[2]};
    const uint64_t right[] = {b->slots,           b->context_tokens, b->step_tokens, b->hidden,
                              b->vocab,           b->lanes[0],       b->page_count,  b->vram_page_count,
                              b->kv_heads_asking, b->experts_chosen, b->experts,     b->expert_layers,
                              b->session_bytes,   b->weight_bytes,   b->lanes[1],    b->lanes[2]};
    assert_memory_equal(left, right, sizeof left);
    assert_memory_equal(&a->kv, &b->kv, sizeof a->kv); /* has none */
}

static void check_made(const struct drawn *d, struct plan *plan, const struct arena_spec *spec)
{
    struct planner_prediction p;
    struct arena_header header;
    struct arena_spec again;
    struct helm_err err = {0};
    assert_int_equal(plan_check(plan, &err), 0);
    check_ledger(&plan->memory[PLAN_HOST]);
    check_ledger(&plan->memory[PLAN_VRAM0]);
    assert_int_equal(arena_plan(spec, &header, &err), 0);
    assert_true(header.total_bytes <= plan->memory[PLAN_HOST].total);
    assert_true(plan->window_page_count || /* each sequence may give up what left its window */
                plan->page_count >= d->r.batch * kv_pages_for(plan->context_tokens, plan->page_tokens));
    assert_true(!d->r.device_required || plan_uses(plan, PLAN_GPU0));
    assert_true((plan->device[PLAN_GPU0].ring_bytes > 0) == plan_has_home(plan, PLAN_HOME_STREAM));
    if (d->r.wish.ctx) assert_int_equal(plan->context_tokens, d->r.wish.ctx);
    if (d->r.wish.step_tokens) assert_int_equal(plan->step_tokens, d->r.wish.step_tokens);
    for (uint32_t i = 0; i < plan->prefill_count; i++)
        assert_in_range(plan->prefill_from[i], GPU_CHUNK_TOKENS, plan->step_tokens);
    if (planner_predict(&d->r, plan, d->r.batch, 128, 64, &p, &err)) fail_msg("%s", err.text);
    assert_true(isfinite(p.decode.seconds) && p.decode.seconds > 0 && isfinite(p.ttft.seconds) &&
                p.ttft.seconds > 0);
    const struct ledger host = plan->memory[PLAN_HOST], vram = plan->memory[PLAN_VRAM0];
    if (planner_take(&d->r, plan, &again, &err)) fail_msg("%s", err.text);
    assert_memory_equal(&host, &plan->memory[PLAN_HOST], sizeof host);
    assert_memory_equal(&vram, &plan->memory[PLAN_VRAM0], sizeof vram);
    check_same_arena(spec, &again);
}

/* The memory that the refusal calls enough is enough. */
static void check_refused(struct drawn *d)
{
    struct planner_request r = d->r;
    struct plan plan;
    struct arena_spec spec;
    struct helm_err err = {0};
    assert_true(d->refusal.refused && d->refusal.needed > d->refusal.available);
    assert_true(strlen(d->refusal.nearest) > 0);
    r.refusal = NULL;
    if (strcmp(d->refusal.what, "VRAM") == 0)
        r.machine.device.limit = d->refusal.needed;
    else
        r.machine.memory.available_bytes = d->refusal.needed;
    if (!strstr(d->refusal.nearest, strcmp(d->refusal.what, "VRAM") ? "of host memory" : "of VRAM")) return;
    int rc = planner_make(&r, &plan, &spec, &err);
    if (rc)
        fail_msg("%llu bytes of %s are not enough: %s", (unsigned long long)d->refusal.needed,
                 d->refusal.what, err.text);
    plan_free(&plan);
}

static void answers_hold(uint64_t seed, uint32_t machines)
{
    static struct drawn d;
    uint32_t made = 0, refused = 0, other = 0;
    for (uint32_t i = 0; i < machines; i++) {
        struct plan plan;
        struct arena_spec spec;
        struct helm_err err = {0};
        d.seed = seed + i;
        draw_machine(&d);
        int rc = planner_make(&d.r, &plan, &spec, &err);
        if (rc == 0) {
            check_made(&d, &plan, &spec);
            made++;
        } else if (rc == HELM_E_CAPACITY) {
            check_refused(&d);
            refused++;
        } else { /* wishes that contradict each other */
            bool none = d.r.machine.device.kind == LEDGER_DEVICE_NONE;
            if (rc != (none ? HELM_E_UNSUPPORTED : HELM_E_USAGE)) fail_msg("machine %u: %s", i, err.text);
            other++;
        }
        plan_free(&plan);
        if (folder) model_free(&d.read);
        made_up_close(&d.made);
    }
    print_message("%u plans, %u refusals, %u contradictions\n", made, refused, other);
    assert_true(made > machines * 2 / 5 && refused > machines / 8);
}

static void answers_hold_on_machines_of_all_kinds(void **state)
{
    (void)state;
    answers_hold(0, getenv("HELM_TEST_FULL") ? 3 * MACHINES : MACHINES);
}

/* Whatever a plan puts on a device, all attention to one cache goes along; planner_take refuses others. */
static void answers_hold_where_layers_share_caches(void **state)
{
    (void)state;
    folder = "tests/data/golden/gemma4e";
    answers_hold(SHARED_FIRST, MACHINES);
    folder = NULL;
}

int main(void)
{
    log_set_level(LOG_LEVEL_ERROR);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(answers_hold_on_machines_of_all_kinds),
        cmocka_unit_test(answers_hold_where_layers_share_caches),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
