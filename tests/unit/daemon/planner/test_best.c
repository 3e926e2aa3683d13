/* Properties of what is planned, on the machines that come with HELM: no restricted strategy is faster than
 * `best` in the step that plans are compared by, and several sequences together make no fewer tokens a second
 * than one, or than half as many. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>

#include "tests/unit/daemon/planner/explain_case.h"

/* ---- models ---- */

#define DENSE                                                                                                \
    "{\"architectures\": [\"LlamaForCausalLM\"], \"hidden_size\": 4096, \"intermediate_size\": 14336, "      \
    "\"num_hidden_layers\": 8, \"num_attention_heads\": 32, \"num_key_value_heads\": 8, "                    \
    "\"head_dim\": 128, \"vocab_size\": 32000, \"max_position_embeddings\": 40960, \"dtype\": "              \
    "\"bfloat16\"}"
#define SPARSE                                                                                               \
    "{\"architectures\": [\"Qwen3MoeForCausalLM\"], \"hidden_size\": 2048, \"intermediate_size\": 6144, "    \
    "\"moe_intermediate_size\": 768, \"num_experts\": 128, \"num_experts_per_tok\": 8, "                     \
    "\"num_hidden_layers\": 8, \"num_attention_heads\": 32, \"num_key_value_heads\": 4, \"head_dim\": "      \
    "128, \"vocab_size\": 32000, \"max_position_embeddings\": 40960, \"dtype\": \"bfloat16\"}"

static const struct {
    const char *name, *text, *weights;
} models[] = {
    {"dense in bf16", DENSE, "stored"},
    {"dense in q4_k_m", DENSE, "q4_k_m"},
    {"mixture in bf16", SPARSE, "stored"},
    {"mixture in q4_k_m", SPARSE, "q4_k_m"},
};
static const char *const profiles[] = {"h200-sapphire-rapids", "thesis-l40s", "thesis-rtx3090",
                                       "thesis-rtx4060-laptop"};
static const uint32_t batches[] = {1, 2, 4, 8, 16, 32, 64};
static const uint32_t contexts[] = {1024, 4096, 0}; /* 0: chosen */
#define COUNT(array) (sizeof(array) / sizeof *(array))

static void open_model(struct model *model, size_t which)
{
    const struct mixture *weights;
    struct model_config config;
    struct helm_err err = {0};
    const char *text = models[which].text;
    assert_int_equal(model_config_parse("config", text, strlen(text), &config, &err), 0);
    assert_int_equal(model_from_config(&config, model, &err), 0);
    assert_int_equal(formats_read(models[which].weights, &weights, &err), 0);
    formats_lay(model, weights);
}

static uint64_t bytes_of(const struct model *model)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < model->tensor_count; i++) sum += model->tensors[i].bytes;
    return sum;
}

/* ---- plans ---- */

struct cell {
    struct planner_request r;
    char name[160];
};

/* Seconds of a step of the strategy's plan; INFINITY: none fits. */
static double seconds_of(const struct cell *c, enum search_strategy strategy, uint32_t ctx)
{
    struct planner_request r = c->r;
    struct planner_prediction p;
    struct plan plan = {0};
    struct arena_spec spec;
    struct helm_err err = {0};
    r.strategy = strategy;
    if (ctx) r.typical = planner_typical_context(&r, ctx), r.wish.ctx = ctx;
    r.device_required = strategy != SEARCH_BEST && strategy != SEARCH_ALL_CPU;
    const int rc = planner_make(&r, &plan, &spec, &err);
    if (rc == HELM_E_CAPACITY || rc == HELM_E_UNSUPPORTED) return INFINITY;
    if (rc) fail_msg("%s, %s: %s", c->name, search_strategy_name(strategy), err.text);
    const uint32_t made_for = plan.context_tokens, at_once = planner_at_once(&r, &plan);
    if (planner_predict(&r, &plan, at_once, planner_typical_context(&r, made_for), 0, &p, &err))
        fail_msg("%s, %s: %s", c->name, search_strategy_name(strategy), err.text);
    plan_free(&plan);
    p.decode.seconds *= (double)r.batch / at_once;
    if (strategy != SEARCH_BEST) return p.decode.seconds;
    for (int s = SEARCH_BEST + 1; s < SEARCH_STRATEGIES; s++) {
        if (s >= SEARCH_EXPERTS_CPU && !r.model->config.router.experts) continue;
        const double other = seconds_of(c, (enum search_strategy)s, made_for);
        if (other < p.decode.seconds * (1 - 1e-9))
            fail_msg("%s: best %.3f ms, %s %.3f ms a step", c->name, 1e3 * p.decode.seconds,
                     search_strategy_name((enum search_strategy)s), 1e3 * other);
    }
    return p.decode.seconds;
}

static void check_cell(struct explain_case *c, size_t model, const char *profile, uint32_t ctx, double part)
{
    double one = 0, half = 0;
    c->request.wish.ctx = ctx;
    c->request.machine.device.limit = (uint64_t)(part * (double)bytes_of(c->request.model)) + 2 * GIB;
    for (size_t b = 0; b < COUNT(batches); b++) {
        struct cell cell = {.r = c->request};
        cell.r.batch = cell.r.wish.batch = batches[b];
        cell.r.wish.slots = batches[b] > 8 ? batches[b] : 8;
        snprintf(cell.name, sizeof cell.name, "%s, %s, context %u, VRAM for %.0f %%, %u sequences",
                 models[model].name, profile, ctx, 100 * part, batches[b]);
        const double rate = batches[b] / seconds_of(&cell, SEARCH_BEST, 0);
        if (b == 0) one = rate;
        if (rate > 0 && rate < 0.98 * one)
            fail_msg("%s: %.1f token/s in all, one %.1f", cell.name, rate, one);
        if (ctx && rate > 0 && rate < 0.98 * half)
            fail_msg("%s: %.1f token/s in all, half as many %.1f", cell.name, rate, half);
        half = rate;
    }
}

static void best_is_the_best(void **state)
{
    (void)state;
    static const double parts[] = {0.2, 0.5, 0.8};
    uint32_t cells = 0;
    for (size_t p = 0; p < COUNT(profiles); p++) {
        struct explain_case c;
        case_open(&c, "qwen3-4b", profiles[p], 0);
        for (size_t m = 0; m < COUNT(models); m++) {
            struct model model;
            open_model(&model, m);
            c.request.model = &model;
            check_cell(&c, m, profiles[p], contexts[(p + m) % COUNT(contexts)],
                       parts[cells++ % COUNT(parts)]);
            model_free(&model);
        }
        case_close(&c);
    }
}

/* A plan for 5 has room in its pool for 6: together these make more than 10 do with their own plan, and than
 * 5. */
static void a_pool_has_room_for_more(void **state)
{
    (void)state;
    struct explain_case c;
    struct plan plan = {0};
    struct arena_spec spec;
    struct helm_err err = {0};
    case_open(&c, "qwen3-4b", "thesis-rtx3090", 0);
    c.request.machine.device.limit = 10 * GIB;
    c.request.wish.ctx = 2048;
    c.request.batch = c.request.wish.batch = c.request.wish.slots = 10;
    c.request.share = SHARE_OFF; /* else ten at once are as fast */
    if (planner_make(&c.request, &plan, &spec, &err)) fail_msg("%s", err.text);
    assert_int_equal(planner_at_once(&c.request, &plan), 6);
    plan_free(&plan);
    case_close(&c);
}

/* The case that was reported: two tiers are faster with short contexts, and slower than a split of the thesis
 * in the step that is shown. */
static void a_long_batch_is_no_slower_than_a_split(void **state)
{
    (void)state;
    struct explain_case c;
    case_open(&c, "qwen3-8b", "thesis-rtx3090", 0);
    double half = 0;
    c.request.wish.slots = 64;
    for (uint32_t batch = 16; batch <= 64; batch *= 2) {
        struct cell cell = {.r = c.request};
        cell.r.batch = cell.r.wish.batch = batch;
        snprintf(cell.name, sizeof cell.name, "8B, %u sequences", batch);
        const double rate = batch / seconds_of(&cell, SEARCH_BEST, 0);
        if (!(rate > 0 && rate >= 0.98 * half))
            fail_msg("%s: %.1f token/s in all, half as many %.1f", cell.name, rate, half);
        half = rate;
    }
    /* with two tiers */
    c.request.machine.device.limit = 6 * GIB;
    c.request.wish.ctx = 4096;
    c.request.tiers = KV_TIERS_TWO;
    for (uint32_t batch = 1; batch <= 4; batch *= 4) {
        struct cell cell = {.r = c.request, .name = "8B, two tiers"};
        cell.r.batch = cell.r.wish.batch = batch;
        assert_true(isfinite(seconds_of(&cell, SEARCH_BEST, 0)));
    }
    case_close(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(best_is_the_best),
                                       cmocka_unit_test(a_pool_has_room_for_more),
                                       cmocka_unit_test(a_long_batch_is_no_slower_than_a_split)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
