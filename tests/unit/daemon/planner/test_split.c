/* Unit tests of daemon/planner/split.c and planner.c: the thesis's split on machines that exist only here. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/units.h"
#include "daemon/planner/planner.h"
#include "daemon/planner/split.h"

#define LAYERS 36

/* The shape of Qwen3-8B: 36 layers of 368 MiB, embedding and head of 1.16 GiB each (one when tied). */
struct made_up {
    struct model model;
    struct model_tensor tensor[LAYERS + 3];
};

static void make_model(struct made_up *m, bool tied)
{
    const uint64_t vocab_bytes = (uint64_t)151936 * 4096 * 2;
    memset(m, 0, sizeof *m);
    for (int32_t l = 0; l < LAYERS; l++)
        m->tensor[l] = (struct model_tensor){
            .role = TENSOR_GATE, .layer = l, .rows = 12288, .cols = 4096, .bytes = 368 * MIB};
    m->tensor[LAYERS] = (struct model_tensor){
        .role = TENSOR_EMBED, .layer = -1, .rows = 151936, .cols = 4096, .bytes = vocab_bytes};
    m->tensor[LAYERS + 1] =
        (struct model_tensor){.role = TENSOR_FINAL_NORM, .layer = -1, .rows = 1, .cols = 4096, .bytes = 8192};
    m->tensor[LAYERS + 2] = (struct model_tensor){
        .role = TENSOR_HEAD, .layer = -1, .rows = 151936, .cols = 4096, .bytes = vocab_bytes};
    m->model.tensors = m->tensor;
    m->model.tensor_count = LAYERS + (tied ? 2 : 3);
    m->model.config.layers = LAYERS;
    m->model.config.hidden = 4096;
    m->model.config.intermediate = 12288;
    m->model.config.vocab = 151936;
    m->model.config.heads = 32;
    m->model.config.kv_heads = 8;
    m->model.config.head_dim = 128;
    m->model.config.max_context = 40960;
    m->model.config.tied_head = tied;
}

static struct planner_request request_for(const struct made_up *m, uint64_t host, uint64_t vram)
{
    struct planner_request r = {
        .model = &m->model,
        .wish = {.kv_dtype = DTYPE_F16, .slots = 8, .step_tokens = 512, .page_tokens = 32, .threads = 16},
        .machine = {.memory = {.limit_bytes = CGROUP_UNLIMITED,
                               .machine_bytes = 128 * GIB,
                               .available_bytes = host}},
        .device_required = true,
        .no_device = "there is none here"};
    if (vram)
        r.machine.device = (struct ledger_device){.kind = LEDGER_DEVICE_CUDA,
                                                  .limit = vram,
                                                  .limit_from = "--vram",
                                                  .context_bytes = 500 * MIB,
                                                  .graph_bytes = 64 * MIB};
    return r;
}

static uint32_t gpu_layers(const struct plan *plan)
{
    return plan_layers_of(plan, PLAN_HOME_GPU);
}

/* Lines add up, both sums are under their limits, and the JSON form is accepted by its own reader. */
static void check_plan(const struct plan *plan)
{
    struct helm_err err = {0};
    struct plan again;
    const struct ledger *ledgers[] = {&plan->host, &plan->vram};
    for (int l = 0; l < 2; l++) {
        uint64_t sum = 0;
        for (uint32_t i = 0; i < ledgers[l]->line_count; i++) sum += ledgers[l]->line[i].bytes;
        assert_true(sum == ledgers[l]->total && sum <= ledgers[l]->limit);
    }
    json_t *json = plan_to_json(plan);
    assert_non_null(json);
    if (plan_from_json(json, &again, &err)) fail_msg("%s", err.text);
    json_decref(json);
    plan_free(&again);
}

static void more_vram_takes_more_layers(void **state)
{
    (void)state;
    static struct made_up m;
    uint32_t before = 0;
    make_model(&m, false);
    for (uint64_t vram = 3 * GIB; vram <= 40 * GIB; vram += GIB) {
        struct planner_request r = request_for(&m, 100 * GIB, vram);
        struct plan plan;
        struct arena_spec spec;
        struct helm_err err = {0};
        if (planner_make(&r, &plan, &spec, &err)) fail_msg("%s", err.text);
        check_plan(&plan);
        assert_true(gpu_layers(&plan) >= before);
        assert_int_equal(spec.kv.layers, LAYERS - gpu_layers(&plan));
        if (gpu_layers(&plan) < LAYERS) {
            /* One more layer and its KV would not have fitted. */
            uint64_t layer = 368 * MIB + 256ull * 32 * 8 * 128 * 2 * 2;
            assert_true(plan.vram.total + layer > plan.vram.limit);
            assert_int_equal(spec.lanes, LANE_COUNT);
        }
        before = gpu_layers(&plan);
        plan_free(&plan);
    }
    assert_int_equal(before, LAYERS);
}

static void head_goes_before_layers_and_they_follow_it(void **state)
{
    (void)state;
    static struct made_up m;
    struct plan plan;
    struct arena_spec spec;
    struct helm_err err = {0};
    make_model(&m, false);
    struct planner_request r = request_for(&m, 100 * GIB, 8 * GIB);
    assert_int_equal(planner_make(&r, &plan, &spec, &err), 0);
    assert_int_equal(plan.head, PLAN_HOME_GPU);
    assert_int_equal(plan.embed, PLAN_HOME_CPU); /* a lookup: no VRAM for it */
    assert_int_equal(plan.stage_count, 2);
    assert_int_equal(plan.stages[0].home,
                     PLAN_HOME_CPU); /* one hand-over: the last layers are beside the head */
    assert_int_equal(plan.stages[1].home, PLAN_HOME_GPU);
    plan_free(&plan);
    r = request_for(&m, 100 * GIB, 40 * GIB);
    assert_int_equal(planner_make(&r, &plan, &spec, &err), 0);
    assert_int_equal(plan.stage_count, 1);
    assert_int_equal(plan.embed, PLAN_HOME_GPU); /* where it saves the only hand-over */
    assert_false(plan_uses(&plan, PLAN_HOME_CPU));
    assert_int_equal(spec.lanes, 0);
    assert_true(spec.weight_bytes == 0);
    plan_free(&plan);
}

static void a_tied_matrix_exists_once(void **state)
{
    (void)state;
    static struct made_up m;
    make_model(&m, true);
    for (uint64_t vram = 2 * GIB; vram <= 20 * GIB; vram += GIB) {
        struct planner_request r = request_for(&m, 100 * GIB, vram);
        struct plan plan;
        struct arena_spec spec;
        struct helm_err err = {0};
        assert_int_equal(planner_make(&r, &plan, &spec, &err), 0);
        assert_int_equal(plan.embed, plan.head);
        uint64_t stored = 0;
        for (uint32_t i = 0; i < m.model.tensor_count; i++) stored += m.tensor[i].bytes;
        assert_in_range(spec.weight_bytes + plan.vram.line[0].bytes, stored, stored + 64 * KIB);
        plan_free(&plan);
    }
}

/* The search against every split there is, written down separately. */
static void the_best_split_is_found(void **state)
{
    (void)state;
    static struct made_up m;
    const uint64_t vocab_bytes = (uint64_t)151936 * 4096 * 2, layer = 368 * MIB,
                   kv_layer = 256ull * 32 * 8 * 128 * 2 * 2;
    make_model(&m, false);
    for (uint64_t vram = 2 * GIB; vram < 20 * GIB; vram += 777 * MIB) {
        struct planner_request r = request_for(&m, 100 * GIB, vram);
        struct plan plan;
        struct arena_spec spec;
        struct helm_err err = {0};
        assert_int_equal(planner_make(&r, &plan, &spec, &err), 0);
        uint64_t least = UINT64_MAX, got;
        for (uint32_t n = 0; n <= LAYERS; n++)
            for (uint32_t head = 0; head < 2; head++) {
                uint64_t fixed =
                    analyse_vram_workspace_bytes(&m.model.config, 512, 8, 8192, n > 0, head > 0) + 564 * MIB;
                uint64_t need = fixed + n * (layer + kv_layer) + head * (vocab_bytes + 16 * KIB);
                uint64_t cpu = (LAYERS - n) * layer + (1 - head) * vocab_bytes;
                if (need <= vram && cpu < least && n + head) least = cpu;
            }
        got = (LAYERS - gpu_layers(&plan)) * layer + (plan.head == PLAN_HOME_CPU ? vocab_bytes : 0);
        assert_true(got == least);
        plan_free(&plan);
    }
}

static void what_fits_nowhere_is_refused_with_what_would(void **state)
{
    (void)state;
    static struct made_up m;
    struct plan plan;
    struct arena_spec spec;
    struct helm_err err = {0};
    make_model(&m, false);
    struct planner_request r = request_for(&m, 100 * GIB, 600 * MIB);
    assert_int_equal(planner_make(&r, &plan, &spec, &err), HELM_E_CAPACITY);
    assert_non_null(strstr(err.text, "of VRAM, or --device cpu"));
    assert_non_null(strstr(err.text, "has 600.00 MiB (--vram)"));
    assert_non_null(strstr(err.text, "context"));
    plan_free(&plan);
    r = request_for(&m, 8 * GIB, 8 * GIB); /* 17 GB of weights in 16 of memory */
    assert_int_equal(planner_make(&r, &plan, &spec, &err), HELM_E_CAPACITY);
    assert_non_null(strstr(err.text, "of host memory"));
    plan_free(&plan);
    r = request_for(&m, 100 * GIB, 2 * GIB);
    r.wish.ctx = 40960; /* one layer's KV of it: 160 MiB */
    r.machine.memory.available_bytes = 20 * GIB;
    assert_int_equal(planner_make(&r, &plan, &spec, &err), HELM_E_CAPACITY);
    assert_non_null(strstr(err.text, "--ctx 20480, or"));
    plan_free(&plan);
}

static void auto_goes_on_without_the_device_and_others_do_not(void **state)
{
    (void)state;
    static struct made_up m;
    struct plan plan;
    struct arena_spec spec;
    struct helm_err err = {0};
    make_model(&m, false);
    struct planner_request r = request_for(&m, 100 * GIB, 600 * MIB);
    r.device_required = false;
    assert_int_equal(planner_make(&r, &plan, &spec, &err), 0);
    assert_false(plan_uses(&plan, PLAN_HOME_GPU));
    plan_free(&plan);
    r = request_for(&m, 100 * GIB, 0);
    assert_int_equal(planner_make(&r, &plan, &spec, &err), HELM_E_UNSUPPORTED);
    assert_non_null(strstr(err.text, "none here"));
    plan_free(&plan);
}

static void what_does_not_pay_stays_on_the_cpu(void **state)
{
    (void)state;
    static struct made_up m;
    struct plan plan;
    struct arena_spec spec;
    struct helm_err err = {0};
    make_model(&m, true);
    for (uint32_t i = 0; i < m.model.tensor_count; i++) m.tensor[i].bytes = 800000; /* 8 us each to the CPU */
    struct planner_request r = request_for(&m, 100 * GIB, 0);
    r.machine.device = (struct ledger_device){.kind = LEDGER_DEVICE_CUDA, .limit = 33 * MIB};
    r.wish.ctx = 4096;
    r.wish.step_tokens = 16;
    /* Head alone: 8 us saved, two hand-overs of 10 us. */
    assert_int_equal(planner_make(&r, &plan, &spec, &err), 0);
    assert_true(plan_uses(&plan, PLAN_HOME_GPU)); /* asked for by name: the best of what fits */
    plan_free(&plan);
    r.device_required = false;
    assert_int_equal(planner_make(&r, &plan, &spec, &err), 0);
    assert_false(plan_uses(&plan, PLAN_HOME_GPU));
    plan_free(&plan);
    r.machine.device.limit = 2 * GIB; /* all of it: no hand-over at all */
    assert_int_equal(planner_make(&r, &plan, &spec, &err), 0);
    assert_false(plan_uses(&plan, PLAN_HOME_CPU));
    plan_free(&plan);
}

static void the_pool_grows_into_what_is_left(void **state)
{
    (void)state;
    static struct made_up m;
    struct plan plan;
    struct arena_spec spec;
    struct helm_err err = {0};
    make_model(&m, false);
    struct planner_request r = request_for(&m, 100 * GIB, 100 * GIB);
    assert_int_equal(planner_make(&r, &plan, &spec, &err), 0);
    assert_int_equal(plan.page_count, LEDGER_POOL_TOKENS / 32);
    plan_free(&plan);
    r.wish.page_count = 1000;
    assert_int_equal(planner_make(&r, &plan, &spec, &err), 0);
    assert_int_equal(plan.page_count, 1000);
    plan_free(&plan);
}

static void a_written_plan_is_checked(void **state)
{
    (void)state;
    static struct made_up m;
    struct arena_spec spec;
    struct helm_err err = {0};
    make_model(&m, false);
    struct planner_request r = request_for(&m, 100 * GIB, 8 * GIB);
    r.wish.ctx = 4096;
    struct plan_stage stages[] = {{0, 9, PLAN_HOME_CPU, 0, PLAN_OPS_ALL},
                                  {10, 11, PLAN_HOME_GPU, 0, PLAN_OPS_ALL},
                                  {12, 20, PLAN_HOME_CPU, 0, PLAN_OPS_ALL},
                                  {21, 35, PLAN_HOME_GPU, 0, PLAN_OPS_ALL}};
    struct plan plan = {.layers = LAYERS, .stages = stages, .stage_count = 4, .head = PLAN_HOME_CPU};
    assert_int_equal(planner_take(&r, &plan, &spec, &err), 0);
    check_plan(&plan);
    assert_true(plan.stages[1].bytes == 2 * 368 * MIB);
    assert_int_equal(spec.kv.layers, 19);
    assert_int_equal(spec.lanes, LANE_COUNT);
    stages[0].home = PLAN_HOME_GPU; /* 27 layers in 8 GiB */
    assert_int_equal(planner_take(&r, &plan, &spec, &err), HELM_E_CAPACITY);
    assert_non_null(strstr(err.text, "of VRAM, has 8.00 GiB"));
    stages[0].home = PLAN_HOME_STREAM;
    assert_int_equal(planner_take(&r, &plan, &spec, &err), HELM_E_UNSUPPORTED);
    assert_non_null(strstr(err.text, "'stream'"));
    stages[0].home = PLAN_HOME_CPU;
    r.machine.device.kind = LEDGER_DEVICE_NONE;
    assert_int_equal(planner_take(&r, &plan, &spec, &err), HELM_E_UNSUPPORTED);
    assert_non_null(strstr(err.text, "none here"));
    plan.layers = 12;
    assert_int_equal(planner_take(&r, &plan, &spec, &err), HELM_E_MISMATCH);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(more_vram_takes_more_layers),
        cmocka_unit_test(head_goes_before_layers_and_they_follow_it),
        cmocka_unit_test(a_tied_matrix_exists_once),
        cmocka_unit_test(the_best_split_is_found),
        cmocka_unit_test(what_fits_nowhere_is_refused_with_what_would),
        cmocka_unit_test(auto_goes_on_without_the_device_and_others_do_not),
        cmocka_unit_test(what_does_not_pay_stays_on_the_cpu),
        cmocka_unit_test(the_pool_grows_into_what_is_left),
        cmocka_unit_test(a_written_plan_is_checked),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
