/* Unit tests of daemon/planner/ledger.c through planner.c, on machines without an accelerator that exist only
 * here. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#include "common/units.h"
#include "daemon/kv_pages.h"
#include "daemon/planner/planner.h"

/* 1 GiB of weights, 114,688 bytes of KV a token in 16 bits: the shape of Qwen3-0.6B. */
static struct model_tensor tensors[] = {
    {.role = TENSOR_EMBED, .layer = -1, .rows = 151936, .cols = 1024, .bytes = (uint64_t)151936 * 1024 * 2},
    {.role = TENSOR_GATE, .layer = 0, .rows = 3072, .cols = 1024, .bytes = GIB - (uint64_t)151936 * 1024 * 2},
    {.role = TENSOR_FINAL_NORM, .layer = -1, .rows = 1, .cols = 1024, .bytes = 2048},
};
static struct model model_06b(uint32_t max_context)
{
    struct model m = {.tensors = tensors, .tensor_count = 3};
    m.config.layers = 28;
    m.config.hidden = 1024;
    m.config.intermediate = 3072;
    m.config.vocab = 151936;
    m.config.heads = 16;
    m.config.kv_heads = 8;
    m.config.head_dim = 128;
    m.config.max_context = max_context;
    return m;
}

static const struct ledger_wish usual = {
    .kv_dtype = DTYPE_F16, .slots = 8, .step_tokens = 512, .page_tokens = 32, .threads = 2};

static struct cgroup_memory machine(uint64_t available)
{
    return (struct cgroup_memory){.limit_bytes = CGROUP_UNLIMITED,
                                  .machine_bytes = 64 * GIB,
                                  .available_bytes = available};
}

static int fit(const struct model *m, const struct ledger_wish *wish, const struct cgroup_memory *memory,
               struct plan *plan, struct arena_spec *spec, struct helm_err *err)
{
    const struct planner_request request = {.model = m, .wish = *wish, .machine = {.memory = *memory}};
    plan_free(plan);
    return planner_make(&request, plan, spec, err);
}

static void lines_add_up_and_stay_under_the_limit(void **state)
{
    (void)state;
    struct model m = model_06b(40960);
    for (uint64_t mib = 1600; mib < 40000; mib = mib * 5 / 4) {
        struct cgroup_memory memory = machine(mib * MIB);
        struct plan plan = {0};
        struct arena_spec spec;
        struct helm_err err = {0};
        struct arena_header header;
        assert_int_equal(fit(&m, &usual, &memory, &plan, &spec, &err), 0);
        uint64_t sum = 0;
        for (uint32_t i = 0; i < plan.host.line_count; i++) sum += plan.host.line[i].bytes;
        assert_true(sum == plan.host.total && sum <= mib * MIB);
        assert_true(plan.page_count >= kv_pages_for(plan.context_tokens, 32));
        assert_int_equal(arena_plan(&spec, &header, &err), 0);
        assert_true(header.total_bytes < plan.host.total);
        assert_int_equal(spec.page_count, plan.page_count);
        plan_free(&plan);
    }
}

static void context_follows_model_and_memory(void **state)
{
    (void)state;
    struct model big = model_06b(40960), small = model_06b(2000);
    struct cgroup_memory roomy = machine(40 * GIB), tight = machine(1600 * MIB);
    struct plan plan = {0};
    struct arena_spec spec;
    struct helm_err err = {0};
    assert_int_equal(fit(&big, &usual, &roomy, &plan, &spec, &err), 0);
    assert_int_equal(plan.context_tokens, 8192);
    assert_int_equal(plan.page_count, LEDGER_POOL_TOKENS / 32);
    assert_int_equal(fit(&small, &usual, &roomy, &plan, &spec, &err), 0);
    assert_int_equal(plan.context_tokens, 2000);
    assert_int_equal(plan.page_count, 8 * 63); /* every slot's whole context, not more */
    assert_int_equal(fit(&big, &usual, &tight, &plan, &spec, &err), 0);
    assert_in_range(plan.context_tokens, LEDGER_CTX_LEAST, 4096);
    struct ledger_wish wish = usual;
    wish.ctx = 32768;
    assert_int_equal(fit(&big, &wish, &roomy, &plan, &spec, &err), 0);
    assert_int_equal(plan.context_tokens, 32768);
    assert_int_equal(plan.page_count, 1024);
    wish.ctx = 40961;
    assert_int_equal(fit(&big, &wish, &roomy, &plan, &spec, &err), HELM_E_LIMIT);
    assert_non_null(strstr(err.text, "40960"));
}

static void what_does_not_fit_is_refused_with_numbers(void **state)
{
    (void)state;
    struct model m = model_06b(40960);
    struct cgroup_memory memory = machine(900 * MIB);
    struct plan plan = {0};
    struct arena_spec spec;
    struct helm_err err = {0};
    assert_int_equal(fit(&m, &usual, &memory, &plan, &spec, &err), HELM_E_CAPACITY);
    assert_non_null(strstr(err.text, "weights 1.00 GiB"));
    assert_non_null(strstr(err.text, "has 900.00 MiB"));
    memory = machine(64 * GIB);
    memory.limit_bytes = 3 * GIB;
    memory.available_bytes = 2 * GIB;
    struct ledger_wish wish = usual;
    wish.ctx = 40960;
    assert_int_equal(fit(&m, &wish, &memory, &plan, &spec, &err), HELM_E_CAPACITY);
    assert_non_null(strstr(err.text, "cgroup limit of 3.00 GiB"));
    wish.host_memory_bytes = GIB;
    assert_int_equal(fit(&m, &wish, &memory, &plan, &spec, &err), HELM_E_CAPACITY);
    assert_non_null(strstr(err.text, "--host-memory"));
}

static void a_stated_pool_is_taken_as_stated(void **state)
{
    (void)state;
    struct model m = model_06b(40960);
    struct cgroup_memory memory = machine(40 * GIB);
    struct ledger_wish wish = usual;
    struct plan plan = {0};
    struct arena_spec spec;
    struct helm_err err = {0};
    wish.page_count = 2000;
    assert_int_equal(fit(&m, &wish, &memory, &plan, &spec, &err), 0);
    assert_int_equal(plan.page_count, 2000);
    wish.page_count = 20;
    assert_int_equal(fit(&m, &wish, &memory, &plan, &spec, &err), 0);
    assert_int_equal(plan.context_tokens, 640);
    wish.ctx = 1000;
    assert_int_equal(fit(&m, &wish, &memory, &plan, &spec, &err), HELM_E_CAPACITY);
    assert_non_null(strstr(err.text, "one context of 1000"));
}

static void totals_count_every_tensor(void **state)
{
    (void)state;
    struct model m = model_06b(40960);
    struct analyse_table table;
    struct analyse_share cpu, gpu;
    struct helm_err err = {0};
    struct plan_stage stage = {.first = 0, .last = 27, .home = PLAN_HOME_CPU};
    struct plan plan = {.layers = 28, .stages = &stage, .stage_count = 1};
    assert_int_equal(analyse_table_build(&m, &table, &err), 0);
    assert_true(table.total_stored == GIB + 2048);
    assert_true(table.tied);
    analyse_share(&table, &plan, PLAN_HOME_CPU, &cpu);
    analyse_share(&table, &plan, PLAN_HOME_GPU, &gpu);
    assert_true(cpu.bytes.arena == GIB); /* matrices; the final norm is private */
    assert_true(cpu.bytes.vector_bytes == 4096);
    assert_true(cpu.token_bytes == GIB); /* tied: the embedding is read as the head */
    assert_true(cpu.kv_layers == 28 && gpu.kv_layers == 0 && gpu.bytes.vram == 0);
    plan.head = PLAN_HOME_GPU; /* layers and lookup here, head there: the tied matrix is at both */
    analyse_share(&table, &plan, PLAN_HOME_CPU, &cpu);
    analyse_share(&table, &plan, PLAN_HOME_GPU, &gpu);
    assert_true(cpu.bytes.arena == GIB);
    assert_true(gpu.bytes.vram == (uint64_t)151936 * 1024 * 2 + 4096);
    assert_true(cpu.token_bytes + gpu.token_bytes == GIB);
    analyse_table_free(&table);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lines_add_up_and_stay_under_the_limit),
        cmocka_unit_test(context_follows_model_and_memory),
        cmocka_unit_test(what_does_not_fit_is_refused_with_numbers),
        cmocka_unit_test(a_stated_pool_is_taken_as_stated),
        cmocka_unit_test(totals_count_every_tensor),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
