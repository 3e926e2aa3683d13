/* Unit tests of daemon/planner/known.c: requests that share a cache get the plans that they get without, and
 * other machines, profiles and wishes are told apart. */
#include "tests/unit/daemon/planner/plan_case.h"

static const struct made_up_shape small = {8, 4096, 12288, 32, 8, 128, 32000, false},
                                  smaller = {6, 4096, 12288, 32, 8, 128, 32000, false};

static char *plan_text(const struct planner_request *r, struct planner_cache *cache)
{
    struct planner_request request = *r;
    struct plan plan = {0};
    struct arena_spec spec;
    struct helm_err err = {0};
    request.cache = cache;
    char *text = NULL;
    const int rc = planner_make(&request, &plan, &spec, &err);
    json_t *json = rc ? json_pack("{s:i, s:s}", "rc", rc, "text", err.text) : plan_to_json(&plan);
    if (json) text = json_dumps(json, JSON_COMPACT);
    assert_non_null(text);
    json_decref(json);
    plan_free(&plan);
    return text;
}

/* The request's plan is the same with this cache as with none. Returns the processor time with it. */
static uint64_t check_same(const struct planner_request *r, struct planner_cache *cache)
{
    char *alone = plan_text(r, NULL);
    const uint64_t begin = spent_us();
    char *shared = plan_text(r, cache);
    const uint64_t took = spent_us() - begin;
    assert_string_equal(alone, shared);
    free(alone);
    free(shared);
    return took;
}

/* Every strategy after the best plan, as helm-plan asks for them; then tiers, contexts, batches and
 * packing. */
static void requests_that_differ_share_a_cache(void **state)
{
    (void)state;
    struct bench b;
    struct planner_cache cache = {.first = NULL};
    bench_open(&b, &small, 64 * GIB, 3 * GIB);
    b.profile.gpu.expand = made_up_value(600e9);
    b.r.wish.pack = b.r.wish.pack_gpu = b.r.wish.pack_cpu = true;
    b.r.device_required = false;
    b.r.wish.ctx = 4096;
    const uint64_t first = check_same(&b.r, &cache);
    const uint32_t made = cache.count;
    assert_true(made > 5);
    assert_true(check_same(&b.r, &cache) < first);
    assert_int_equal(cache.count, made); /* the same request makes no candidate */
    for (int s = SEARCH_BEST + 1; s < SEARCH_EXPERTS_CPU; s++) {
        struct planner_request r = b.r;
        r.strategy = (enum search_strategy)s;
        r.device_required = r.strategy != SEARCH_ALL_CPU;
        r.tiers = KV_TIERS_ONE;
        r.sizes_alone = true; /* else a refusal looks for what would fit */
        (void)check_same(&r, &cache);
    }
    assert_true(cache.count <=
                made + 1); /* of these only the thesis's, which has to use the device, was not made */
    for (int tiers = 0; tiers < KV_TIERS_COUNT; tiers++) {
        struct planner_request r = b.r;
        r.tiers = (enum kv_tiers)tiers;
        r.wish.ctx = 1024;
        (void)check_same(&r, &cache);
    }
    b.r.wish.pack = false;
    (void)check_same(&b.r, &cache);
    b.r.wish.step_tokens = 512;
    (void)check_same(&b.r, &cache);
    b.r.batch = b.r.wish.batch = 2;
    (void)check_same(&b.r, &cache);
    planner_cache_free(&cache);
    assert_null(cache.first);
    bench_close(&b);
}

/* Rates, limits of memory and formats of weights that change between two requests change the plan. */
static void other_machines_and_models_are_told_apart(void **state)
{
    (void)state;
    struct bench b;
    struct planner_cache cache = {.first = NULL};
    bench_open(&b, &small, 64 * GIB, 3 * GIB);
    b.r.wish.ctx = 2048;
    (void)check_same(&b.r, &cache);
    uint32_t made = cache.count;
    b.profile.link.h2d = made_up_value(20e9);
    (void)check_same(&b.r, &cache);
    assert_true(cache.count > made), made = cache.count;
    b.r.machine.device.limit = 2 * GIB;
    (void)check_same(&b.r, &cache);
    assert_true(cache.count > made), made = cache.count;
    b.r.machine.memory.available_bytes = 32 * GIB;
    (void)check_same(&b.r, &cache);
    assert_true(cache.count > made), made = cache.count;
    struct bench other;
    bench_open(&other, &smaller, 64 * GIB, 3 * GIB);
    other.r.wish.ctx = 2048;
    (void)check_same(&other.r, &cache);
    assert_true(cache.count > made);
    planner_cache_free(&cache);
    bench_close(&other);
    bench_close(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(requests_that_differ_share_a_cache),
                                       cmocka_unit_test(other_machines_and_models_are_told_apart)};
    return cmocka_run_group_tests_name("daemon/planner: candidates that were made", tests, NULL, NULL);
}
