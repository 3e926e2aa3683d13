/* Unit tests of daemon/planner/tiers.c: when plans have two tiers of the cache, how many places, what they do
 * over contexts; their ledgers; plans that were edited. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>

#include "common/plan/workspace.h"
#include "common/plan/state.h"
#include "tests/unit/daemon/planner/explain_case.h"

#define LONG 40960u

static double rate_at(const struct explain_case *c, uint32_t context)
{
    struct planner_prediction p;
    struct helm_err err = {0};
    if (planner_predict(&c->request, &c->plan, 1, context, 128, &p, &err)) fail_msg("%s", err.text);
    return 1 / p.decode.seconds;
}

/* As helm-plan asks for it. */
static void open_case(struct explain_case *c, const char *model, const char *profile, uint64_t vram,
                      enum kv_tiers tiers)
{
    case_open(c, model, profile, vram);
    c->request.wish.pack = c->request.wish.pack_cpu = c->request.wish.pack_gpu = true;
    c->request.tiers = tiers;
}

/* 8B at 8 GiB on the H200's profile. */
static void open_8b(struct explain_case *c, enum kv_tiers tiers, uint32_t ctx)
{
    open_case(c, "qwen3-8b", "h200-sapphire-rapids", 8 * GIB, tiers);
    c->request.wish.ctx = ctx;
    case_make(c);
}

static struct explain_case long_8b; /* for all tests: with a context of LONG, as auto plans it */

static int open_group(void **state)
{
    (void)state;
    open_8b(&long_8b, KV_TIERS_AUTO, LONG);
    return 0;
}

static int close_group(void **state)
{
    (void)state;
    case_close(&long_8b);
    return 0;
}

static const struct ledger_line *line_of(const struct ledger *ledger, const char *begins)
{
    for (uint32_t i = 0; i < ledger->line_count; i++)
        if (strncmp(ledger->line[i].what, begins, strlen(begins)) == 0) return &ledger->line[i];
    return NULL;
}

/* A long context costs when it is long: while it is short it has nearly a short one's speed (the pool that
 * chunks bring a layer's pages to takes 168 MB of VRAM from weights, and longer chunks' buffers a little
 * more), and far more than one tier later. The numbers are what this profile allows: its CPU attends at 86
 * GB/s. */
static void a_long_context_costs_when_it_is_long(void **state)
{
    (void)state;
    struct explain_case one, brief;
    const struct explain_case *two = &long_8b;
    open_8b(&one, KV_TIERS_ONE, LONG);
    open_8b(&brief, KV_TIERS_AUTO, 512);
    assert_true(plan_kv_tiered(&two->plan));
    assert_false(plan_kv_tiered(&one.plan) || plan_kv_tiered(&brief.plan));
    const double at_short = rate_at(two, 256), as_short = rate_at(&brief, 256);
    print_message("at 256: %.2f of %.2f token/s; at 16K %.2f, at 32K %.2f; one tier %.2f\n", at_short,
                  as_short, rate_at(two, 16384), rate_at(two, 32768), rate_at(&one, 256));
    assert_true(at_short >= 0.95 * as_short);
    assert_true(rate_at(two, 16384) >= 18.5);
    assert_true(rate_at(two, 32768) >= 12.5);
    assert_true(rate_at(&one, 256) < 0.4 * as_short);
    double before = INFINITY;
    for (uint32_t context = 32; context <= LONG; context += context < 2048 ? 32 : 2048) {
        const double rate = rate_at(two, context);
        assert_true(rate <= before * 1.0001);
        before = rate;
    }
    assert_in_range(two->plan.kv_direct_permille, 100, 400); /* both ends of its attention end together */
    case_close(&one);
    case_close(&brief);
}

static void check_ledgers(const struct explain_case *c)
{
    const struct plan *plan = &c->plan;
    const struct model_config *m = &c->model.config;
    const uint64_t page = 32 * model_kv_bytes_per_token(m, 1, KV_F16);
    const struct ledger *vram = &plan->memory[PLAN_VRAM0], *host = &plan->memory[PLAN_HOST];
    const struct ledger_line *places = line_of(vram, "KV places"),
                             *all = line_of(host, "KV cache of all layers");
    assert_non_null(places);
    assert_non_null(all);
    assert_int_equal(places->bytes,
                     plan->device[PLAN_GPU0].vram_page_count * plan_layers_of(plan, PLAN_GPU0) * page);
    assert_true(all->bytes >= plan->page_count * m->layers * page);
    assert_true(all->bytes < plan->page_count * m->layers * page + 2 * ARENA_HUGE_PAGE);
    const struct plan_staging staging = plan_staging(plan);
    assert_int_equal(line_of(vram, "borrowed KV")->bytes, staging.pages * page); /* of one layer */
    assert_in_range(staging.pages, 2 * staging.piece,
                    2 * staging.piece + plan->step_tokens / 32 + 5 * plan->slots);
    assert_int_equal(staging.piece, plan->page_count < 256 ? (plan->page_count + 3) / 4 * 2 : 128);
    assert_true(plan->device[PLAN_GPU0].vram_page_count >= plan_vram_pages_least(plan));
    assert_true(vram->total <= vram->limit && host->total <= host->limit);
}

/* The rest of VRAM becomes places: no further one would fit. */
static void ledgers_count_places_and_all_pages(void **state)
{
    (void)state;
    struct explain_case c;
    check_ledgers(&long_8b);
    const struct ledger *vram = &long_8b.plan.memory[PLAN_VRAM0];
    const uint64_t place = plan_layers_of(&long_8b.plan, PLAN_GPU0) * 32 *
                           model_kv_bytes_per_token(&long_8b.model.config, 1, KV_F16);
    assert_true(vram->total + place + 2 * ARENA_HUGE_PAGE > vram->limit);
    /* Weights in VRAM, its cache not: much is left. */
    open_case(&c, "qwen3-14b", "thesis-rtx3090", 0, KV_TIERS_AUTO);
    c.request.wish.ctx = 32768;
    case_make(&c);
    assert_true(plan_kv_tiered(&c.plan));
    check_ledgers(&c);
    assert_true(c.plan.device[PLAN_GPU0].vram_page_count > plan_vram_pages_least(&c.plan));
    assert_true(plan_uses(&c.plan, PLAN_CPU0)); /* it computes no layer, but attends */
    assert_int_equal(plan_lanes(&c.plan), 2);
    assert_non_null(line_of(&c.plan.memory[PLAN_HOST], "activations"));
    case_close(&c);
}

/* Room for all, a short context, another strategy, no device: one tier, as before there were two. */
static void one_tier_where_two_would_gain_nothing(void **state)
{
    (void)state;
    struct explain_case c;
    struct helm_err err = {0};
    struct arena_spec spec;
    open_case(&c, "qwen3-4b", "h200-sapphire-rapids", 0, KV_TIERS_AUTO);
    c.request.wish.ctx = LONG;
    case_make(&c);
    assert_false(plan_kv_tiered(&c.plan));
    assert_null(line_of(&c.plan.memory[PLAN_VRAM0], "KV places"));
    case_close(&c);
    open_case(&c, "qwen3-8b", "h200-sapphire-rapids", 8 * GIB, KV_TIERS_AUTO);
    c.request.wish.ctx = 8192;
    c.request.strategy = SEARCH_THESIS;
    case_make(&c);
    assert_false(plan_kv_tiered(&c.plan));
    plan_free(&c.plan);
    c.request.tiers = KV_TIERS_TWO;
    assert_int_equal(planner_make(&c.request, &c.plan, &spec, &err), HELM_E_UNSUPPORTED);
    assert_non_null(strstr(err.text, "--kv-tiers two needs --strategy best"));
    c.request.strategy = SEARCH_BEST;
    c.request.machine.device = (struct ledger_device){.limit = UINT64_MAX};
    assert_int_equal(planner_make(&c.request, &c.plan, &spec, &err), HELM_E_UNSUPPORTED);
    assert_non_null(strstr(err.text, "a device: there is none"));
    c.request.tiers = KV_TIERS_AUTO;
    case_make(&c);
    assert_false(plan_kv_tiered(&c.plan));
    case_close(&c);
}

static void two_where_they_are_asked_for(void **state)
{
    (void)state;
    struct explain_case c;
    struct helm_err err = {0};
    struct arena_spec spec;
    open_case(&c, "qwen3-4b", "h200-sapphire-rapids", 0, KV_TIERS_TWO); /* all would fit */
    c.request.wish.ctx = 512;
    case_make(&c);
    check_ledgers(&c);
    case_close(&c);
    open_case(&c, "qwen3-8b", "h200-sapphire-rapids", GIB,
              KV_TIERS_TWO); /* no layer's cache would be there */
    c.request.wish.ctx = 4096;
    c.request.machine.device.limit = 700 * MIB;
    assert_int_equal(planner_make(&c.request, &c.plan, &spec, &err), HELM_E_UNSUPPORTED);
    assert_non_null(strstr(err.text, "--kv-tiers two"));
    case_close(&c);
}

/* Little host memory: its share of all layers' pages counts. */
static void host_memory_counts_all_layers_pages(void **state)
{
    (void)state;
    struct explain_case c;
    open_case(&c, "qwen3-14b", "thesis-rtx3090", 0, KV_TIERS_AUTO);
    c.request.wish.ctx = 32768;
    c.request.machine.memory.available_bytes = 14 * GIB;
    case_make(&c);
    assert_true(plan_kv_tiered(&c.plan));
    check_ledgers(&c);
    plan_free(&c.plan);
    c.request.machine.memory.available_bytes = 6 * GIB; /* 5 GiB of pages and what else is there: too much */
    case_make(&c);
    assert_false(plan_kv_tiered(&c.plan));
    case_close(&c);
}

static int take_again(struct explain_case *c, uint32_t places, struct plan *again, struct helm_err *err)
{
    struct arena_spec spec;
    json_t *json = plan_to_json(&c->plan);
    assert_non_null(json);
    json_object_set_new(json, "vram_page_count", json_integer(places));
    int rc = plan_from_json(json, again, err);
    json_decref(json);
    if (!rc) rc = planner_take(&c->request, again, &spec, err);
    if (!rc) {
        assert_int_equal(spec.vram_page_count, places);
        assert_int_equal(spec.kv_heads_asking, places ? c->model.config.heads : 0);
    }
    return rc;
}

/* A plan's JSON form says all of it; an edited number of places is taken as it is, with ledgers of its
 * own. */
static void edited_plans_are_checked(void **state)
{
    (void)state;
    struct plan again;
    struct helm_err err = {0};
    struct explain_case *c = &long_8b;
    const uint32_t places = c->plan.device[PLAN_GPU0].vram_page_count,
                   least = (uint32_t)plan_vram_pages_least(&c->plan);
    const uint64_t total = c->plan.memory[PLAN_VRAM0].total;
    if (take_again(c, places, &again, &err)) fail_msg("%s", err.text);
    assert_int_equal(again.memory[PLAN_VRAM0].total, total);
    assert_int_equal(again.memory[PLAN_HOST].total, c->plan.memory[PLAN_HOST].total);
    assert_int_equal(again.kv_direct_permille, c->plan.kv_direct_permille);
    plan_free(&again);
    if (take_again(c, least, &again, &err)) fail_msg("%s", err.text);
    assert_int_equal(again.device[PLAN_GPU0].vram_page_count, least); /* though there is room for more */
    assert_true(again.memory[PLAN_VRAM0].total <= total);
    plan_free(&again);
    assert_int_equal(take_again(c, least - 1, &again, &err), HELM_E_LIMIT);
    assert_non_null(strstr(err.text, "'vram_page_count'"));
    plan_free(&again);
    assert_int_equal(take_again(c, 1280, &again, &err), HELM_E_CAPACITY);
    assert_non_null(strstr(err.text, "KV places, of 1280 pages"));
    plan_free(&again);
    assert_int_equal(take_again(c, 0, &again, &err), HELM_E_CAPACITY); /* all of them there */
    plan_free(&again);
}

/* helm-plan's curve: contexts rise to the plan's, both plans are there, JSON and table say the same. */
static void curves_are_told(void **state)
{
    (void)state;
    struct explain_case c;
    struct explain x;
    struct helm_err err = {0};
    char *text = NULL;
    size_t size = 0;
    if (explain_make(&long_8b.request, &long_8b.plan, 0, &x, &err)) fail_msg("%s", err.text);
    static const uint32_t contexts[] = {256, 1024, 4096, 8192, 16384, 32768, LONG};
    assert_int_equal(x.point_count, 7);
    json_t *json = explain_to_json(&x);
    assert_string_equal(json_string_value(json_object_get(json, "kv_tiers")), "two");
    const json_t *curve = json_object_get(json, "over_context");
    assert_int_equal(json_array_size(curve), 7);
    for (uint32_t i = 0; i < 7; i++) {
        const json_t *point = json_array_get(curve, i);
        assert_int_equal(x.point[i].context, contexts[i]);
        assert_int_equal(json_integer_value(json_object_get(point, "context")), contexts[i]);
        assert_true(
            fabs(json_number_value(json_object_get(point, "tok_s")) - rate_at(&long_8b, contexts[i])) < 1e-6);
        assert_true(json_number_value(json_object_get(point, "one_tier_tok_s")) > 10);
    }
    json_decref(json);
    assert_true(x.strategy[SEARCH_BEST].feasible && !x.strategy[SEARCH_ALL_GPU].feasible);
    FILE *out = open_memstream(&text, &size);
    explain_print(&x, out);
    fclose(out);
    assert_non_null(strstr(text, "kv       two tiers: "));
    assert_non_null(strstr(text, "decode over context, token/s\n  tokens in   this plan   one tier\n  256 "));
    free(text);
    explain_free(&x);
    open_8b(&c, KV_TIERS_ONE, 512);
    if (explain_make(&c.request, &c.plan, 0, &x, &err)) fail_msg("%s", err.text);
    assert_int_equal(x.point_count, 2);
    json = explain_to_json(&x);
    assert_string_equal(json_string_value(json_object_get(json, "kv_tiers")), "one");
    assert_true(json_is_null(
        json_object_get(json_array_get(json_object_get(json, "over_context"), 1), "one_tier_tok_s")));
    json_decref(json);
    explain_free(&x);
    case_close(&c);
}

/* Instrumented, two more plans like the others take three seconds. */
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
static double prompt_at(const struct explain_case *c, uint32_t prompt)
{
    struct planner_prediction p;
    struct helm_err err = {0};
    if (planner_predict(&c->request, &c->plan, 1, prompt, prompt, &p, &err)) fail_msg("%s", err.text);
    return p.ttft.seconds;
}

/* Chunks are as long as whole requests gain more by it than decode loses, and a short context keeps its
 * speed. */
static void chunks_weigh_prompts_against_decode(void **state)
{
    (void)state;
    struct explain_case chosen, brief;
    open_case(&chosen, "qwen3-8b", "h200-sapphire-rapids", 5 * GIB, KV_TIERS_TWO);
    open_case(&brief, "qwen3-8b", "h200-sapphire-rapids", 5 * GIB, KV_TIERS_TWO);
    chosen.request.wish.ctx = brief.request.wish.ctx = LONG;
    brief.request.wish.step_tokens = 512;
    case_make(&chosen);
    case_make(&brief);
    assert_int_equal(brief.plan.step_tokens, 512);
    assert_in_range(chosen.plan.step_tokens, 2048, 4096);
    assert_true(prompt_at(&chosen, 32768) < 0.7 * prompt_at(&brief, 32768));
    assert_true(rate_at(&chosen, 256) > 0.95 * rate_at(&brief, 256));
    assert_true(rate_at(&chosen, 32768) > 0.9 * rate_at(&brief, 32768));
    case_close(&chosen);
    case_close(&brief);
}

/* Among plans with nearly the same decode the one that is slower with long prompts loses. The loser keeps a
 * short context's speed: 38.7 of the 39.89 token/s that it has with --ctx 512 are 97 %. */
static void equal_decode_is_decided_by_long_prompts(void **state)
{
    (void)state;
    struct explain_case loser;
    open_case(&loser, "qwen3-8b", "h200-sapphire-rapids", 8 * GIB, KV_TIERS_AUTO);
    loser.request.wish.ctx = LONG;
    loser.request.wish.step_tokens = 512;
    case_make(&loser);
    assert_true(rate_at(&long_8b, 256) > 0.97 * 39.89);
    for (uint32_t context = 256; context <= 32768; context *= 4)
        assert_true(rate_at(&long_8b, context) > 0.955 * rate_at(&loser, context));
    assert_true(prompt_at(&long_8b, 16384) < 0.65 * prompt_at(&loser, 16384));
    /* long chunks take no places, and with the least of these a short context keeps its speed (where all had
     * places, 1,024 were chosen) */
    assert_int_equal(long_8b.plan.step_tokens, 1536);
    assert_true(plan_appends_in_arena(&long_8b.plan));
    assert_true(prompt_at(&long_8b, 32768) < 4.3);
    assert_true(rate_at(&loser, 256) > 38.7);
    case_close(&loser);
}

/* Layers with a short window have the GPU alone, a hand-over each less. Places are filled but for one. Where
 * it is faster, a step with few positions in the arena has the GPU for all of them. Returns whether it is. */
static bool windows_and_few(uint64_t vram)
{
    struct explain_case c;
    open_case(&c, "qwen3-8b", "h200-sapphire-rapids", vram, KV_TIERS_TWO);
    for (uint32_t l = 10; l < c.model.config.layers; l++) c.model.config.window[l] = 256;
    c.request.wish.ctx = 16384;
    c.request.wish.windows_stand = true; /* they keep all pages */
    case_make(&c);
    assert_int_equal(c.plan.kv_direct_window, 256);
    assert_int_equal(c.plan.kv_free_places, 1);
    const uint32_t filled = plan_places_filled(&c.plan) * 32, few = c.plan.kv_direct_positions;
    const double near = rate_at(&c, filled + (few ? few : 32)), far = rate_at(&c, 8192);
    c.plan.kv_direct_positions = few ? 0 : PLAN_TOKENS_MAX;
    if (few) {
        assert_in_range(few, 32, 1024);
        assert_true(rate_at(&c, filled + few) < near);
    } else {
        assert_true(rate_at(&c, filled + 32) <= near);
    }
    c.plan.kv_direct_positions = c.plan.kv_direct_window = 0;
    assert_true(rate_at(&c, 8192) < far);
    case_close(&c);
    return few > 0;
}
/* Layers that keep their window alone have no second tier: the CPU attends to nothing of them. Where they do
 * not say, the plan is at least as fast as one whose layers keep all pages. */
static void windows_have_no_second_tier(void **state)
{
    (void)state;
    struct explain_case window, pages, free;
    open_case(&window, "qwen3-8b", "h200-sapphire-rapids", 8 * GIB, KV_TIERS_TWO);
    open_case(&pages, "qwen3-8b", "h200-sapphire-rapids", 8 * GIB, KV_TIERS_TWO);
    open_case(&free, "qwen3-8b", "h200-sapphire-rapids", 8 * GIB, KV_TIERS_AUTO);
    struct explain_case *const all[] = {&window, &pages, &free};
    for (size_t i = 0; i < 3; i++) {
        for (uint32_t l = 10; l < window.model.config.layers; l++) all[i]->model.config.window[l] = 256;
        all[i]->request.wish.ctx = 16384;
    }
    window.request.wish.windows_stand = pages.request.wish.windows_stand = true;
    window.request.wish.window_page_count = 200;
    for (size_t i = 0; i < 3; i++) case_make(all[i]);
    assert_true(window.plan.window_tokens == 256 && window.plan.window_page_count == 200);
    assert_int_equal(pages.plan.window_page_count, 0);
    for (uint32_t l = 0; l < window.plan.layers; l++)
        assert_int_equal(plan_keeps_window(&window.plan, l), l >= 10);
    assert_false(plan_assists_layer(&window.plan, 256));
    assert_int_equal(window.plan.kv_direct_window, 0);
    assert_true(window.plan.memory[PLAN_HOST].total < pages.plan.memory[PLAN_HOST].total);
    /* A plan has one width, so a layer with a longer window keeps all pages. */
    struct helm_err err = {0};
    window.model.config.window[12] = 512;
    plan_take_states(&window.plan, &window.model);
    for (uint32_t l = 0; l < window.plan.layers; l++)
        assert_int_equal(plan_keeps_window(&window.plan, l), l >= 10 && l != 12);
    assert_int_equal(plan_check_states(&window.plan, &window.model, &err), 0);
    assert_true(rate_at(&free, 8192) >= 0.99 * rate_at(&pages, 8192));
    for (size_t i = 0; i < 3; i++) case_close(all[i]);
}

/* Plans of nearly the same memory cut their layers otherwise: in some few positions gain, in others not. */
static void windows_and_few_positions_are_the_gpus(void **state)
{
    (void)state;
    uint32_t gaining = 0;
    for (uint64_t more = 0; more < 4; more++) gaining += windows_and_few(8 * GIB + more * 32 * MIB);
    assert_in_range(gaining, 1, 4);
}

/* A profile of the same machine taken an hour later makes a plan whose long prompts take as long. */
static void noise_of_a_profile_changes_no_prompt(void **state)
{
    (void)state;
    struct explain_case c;
    open_case(&c, "qwen3-8b", "h200-sapphire-rapids", 8 * GIB, KV_TIERS_AUTO);
    c.request.wish.ctx = LONG;
    struct profile_value *rate = &c.profile.cpu.gemv_packed;
    rate->value *= 1.05, rate->low *= 1.05, rate->high *= 1.05;
    case_make(&c);
    assert_true(fabs(prompt_at(&c, 16384) / prompt_at(&long_8b, 16384) - 1) < 0.15);
    assert_true(fabs(rate_at(&c, 4096) / rate_at(&long_8b, 4096) - 1) < 0.05);
    case_close(&c);
}
#endif

static void names_of_tiers(void **state)
{
    (void)state;
    for (int t = 0; t < KV_TIERS_COUNT; t++)
        assert_int_equal(kv_tiers_named(kv_tiers_name((enum kv_tiers)t)), t);
    assert_non_null(strstr("|" KV_TIERS_CHOICES "|", "|" KV_TIERS_DEFAULT "|"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_long_context_costs_when_it_is_long),
        cmocka_unit_test(ledgers_count_places_and_all_pages),
        cmocka_unit_test(one_tier_where_two_would_gain_nothing),
        cmocka_unit_test(two_where_they_are_asked_for),
        cmocka_unit_test(host_memory_counts_all_layers_pages),
        cmocka_unit_test(edited_plans_are_checked),
        cmocka_unit_test(curves_are_told),
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
        cmocka_unit_test(chunks_weigh_prompts_against_decode),
        cmocka_unit_test(equal_decode_is_decided_by_long_prompts),
        cmocka_unit_test(windows_and_few_positions_are_the_gpus),
        cmocka_unit_test(windows_have_no_second_tier),
        cmocka_unit_test(noise_of_a_profile_changes_no_prompt),
#endif
        cmocka_unit_test(names_of_tiers),
    };
    return cmocka_run_group_tests(tests, open_group, close_group);
}
