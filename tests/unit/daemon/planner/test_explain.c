/* Unit tests of daemon/planner/explain*.c: times add up, bounds are named, the JSON form keeps its promise to
 * scripts and to helmd --plan, the table says what the JSON says. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>

#include "daemon/planner/profile/programs.h"
#include "tests/unit/daemon/planner/explain_case.h"
#include "common/plan/stages.h"

static void explain(struct explain_case *c, struct explain *x)
{
    struct helm_err err = {0};
    if (explain_make(&c->request, &c->plan, 0, x, &err)) fail_msg("%s", err.text);
}

static void check_list(const struct explain_list *list, const struct plan *plan, uint32_t phase)
{
    double sum = list->embed + list->head + list->step;
    uint32_t unit = 0;
    assert_int_equal(list->stage_count, plan_stage_count(plan, phase));
    for (uint32_t i = 0; i < list->stage_count; i++) {
        const struct explain_stage *s = &list->stage[i];
        struct plan_stage stage;
        unit = plan_stage_at(plan, phase, unit, &stage);
        assert_memory_equal(&s->stage, &stage, sizeof stage);
        assert_true(s->seconds > 0);
        assert_non_null(s->bound_by);
        if (s->stage.home != PLAN_HOME_STREAM) assert_string_not_equal(s->bound_by, "link");
        sum += s->seconds;
    }
    assert_true(list->embed >= 0 && list->head >= 0 && list->step >= 0);
    assert_true(fabs(sum - list->seconds) < 1e-9);
}

static void stages_add_up_to_their_step(void **state)
{
    (void)state;
    struct explain_case c;
    struct explain x;
    case_open(&c, "qwen3-8b", "thesis-rtx4060-laptop", 0);
    case_write(&c);
    explain(&c, &x);
    assert_int_equal(x.list_count, 3);
    assert_string_equal(x.list[0].name, "decode");
    assert_string_equal(x.list[1].name, "prefill_short");
    assert_string_equal(x.list[2].name, "prefill");
    for (uint32_t i = 0; i < 3; i++) check_list(&x.list[i], &c.plan, i);
    /* each list is priced for a step that would use it, as near to the prompt's chunk as that goes */
    assert_int_equal(x.list[0].tokens, 1);
    assert_int_equal(x.list[0].context, 2048); /* half of what was chosen */
    assert_int_equal(x.list[1].tokens, 95);
    assert_int_equal(x.list[2].tokens, 128);
    assert_true(fabs(x.list[0].seconds - x.prediction.decode.seconds) < 1e-9);
    assert_true(fabs(x.list[2].seconds - x.prediction.ttft.seconds) < 1e-9); /* one chunk */
    for (int r = 0; r < COST_RESOURCES; r++)
        assert_true(x.list[0].busy[r] > 0 && x.list[0].busy[r] <= x.list[0].seconds);
    explain_free(&x);
    case_close(&c);
}

static const struct explain_stage *stage_at(const struct explain_list *list, uint32_t unit)
{
    for (uint32_t i = 0; i < list->stage_count; i++)
        if (plan_stage_last_unit(&list->stage[i].stage) >= unit) return &list->stage[i];
    return NULL;
}

/* Stages of the CPU that the model's own programs price say so, with their spread; those of the GPU, and all
 * others, go by rates. */
static void measured_stages_say_so(void **state)
{
    (void)state;
    static struct programs programs;
    struct explain_case c;
    struct explain x;
    const struct programs_cell cell = {
        .tokens = 1, .context = 256, .seconds = 1e-3, .low = 0.9e-3, .high = 1.1e-3};
    case_open(&c, "qwen3-8b", "thesis-rtx4060-laptop", 0);
    case_write(&c);
    programs_list(&c.model, &programs);
    programs_key("0123", kv_dtype_name(c.request.wish.kv_dtype), &programs);
    for (uint32_t k = 0; k < programs.kinds; k++) programs_put(&programs.kind[k].cpu[PROGRAMS_EXACT], &cell);
    explain(&c, &x);
    assert_false(stage_at(&x.list[0], 71)->measured);
    explain_free(&x);
    c.profile.programs = &programs;
    explain(&c, &x);
    assert_false(stage_at(&x.list[0], 0)->measured); /* VRAM */
    assert_true(stage_at(&x.list[0], 71)->measured);
    assert_true(fabs(stage_at(&x.list[0], 71)->spread - 0.1) < 1e-9);
    assert_false(stage_at(&x.list[2], 71)->measured); /* a prompt's */
    explain_free(&x);
    case_close(&c);
}

static void bounds_are_what_takes_longest(void **state)
{
    (void)state;
    struct explain_case c;
    struct explain x;
    case_open(&c, "qwen3-8b", "thesis-rtx4060-laptop", 0);
    case_write(&c);
    c.request.prompt = 512;
    explain(&c, &x);
    assert_string_equal(stage_at(&x.list[0], 0)->bound_by, "memory");   /* VRAM */
    assert_string_equal(stage_at(&x.list[0], 71)->bound_by, "memory");  /* DRAM, one token */
    assert_string_equal(stage_at(&x.list[1], 71)->bound_by, "compute"); /* 95 tokens on the CPU */
    assert_string_equal(stage_at(&x.list[2], 71)->bound_by, "link");    /* streamed, nothing to hide behind */
    explain_free(&x);
    /* A link a thousand times as fast is never waited for. */
    c.profile.link.h2d.value *= 1000;
    c.profile.link.h2d_beside.value *= 1000;
    c.profile.link.latency.value = 0;
    c.profile.link.d2h.value *= 1000;
    explain(&c, &x);
    assert_string_equal(stage_at(&x.list[2], 71)->bound_by, "compute");
    assert_string_equal(stage_at(&x.list[0], 25)->bound_by, "memory"); /* streamed in decode, came in time */
    explain_free(&x);
    /* Where a hand-over takes longer than the work between two, it says so. */
    c.profile.link.hand_over.value = 0.5;
    explain(&c, &x);
    assert_string_equal(stage_at(&x.list[0], 25)->bound_by, "hand-over");
    explain_free(&x);
    case_close(&c);
}

static void a_plan_without_prefill_lists_has_both_all_the_same(void **state)
{
    (void)state;
    struct explain_case c;
    struct explain x;
    case_open(&c, "qwen3-4b", "thesis-rtx3090", 0);
    case_write(&c);
    c.plan.prefill_count = 0;
    explain(&c, &x);
    assert_int_equal(x.list_count, 2);
    assert_string_equal(x.list[1].name, "prefill");
    check_list(&x.list[1], &c.plan, 0);
    json_t *json = explain_to_json(&x);
    assert_non_null(json_object_get(json_object_get(json, "stages"), "prefill"));
    assert_null(json_object_get(json, "prefill_from_tokens"));
    json_decref(json);
    explain_free(&x);
    case_close(&c);
}

static double number_at(const json_t *json, const char *key)
{
    const json_t *value = json_object_get(json, key);
    assert_true(json_is_number(value));
    return json_number_value(value);
}

static void check_bars(const json_t *bars)
{
    assert_int_equal(json_object_size(bars), 3);
    double value = number_at(bars, "value");
    assert_true(value > 0 && number_at(bars, "low") <= value && number_at(bars, "high") >= value);
}

/* The object that scripts rely on. */
static void json_form_is_fixed(void **state)
{
    (void)state;
    struct explain_case c;
    struct explain x;
    struct plan again;
    struct helm_err err = {0};
    case_open(&c, "qwen3-8b", "thesis-rtx4060-laptop", 0);
    case_write(&c);
    explain(&c, &x);
    json_t *json = explain_to_json(&x);
    assert_non_null(json);
    check_bars(json_object_get(json, "decode_tok_s"));
    check_bars(json_object_get(json, "ttft_ms"));
    assert_string_equal(json_string_value(json_object_get(json, "profile")), "");
    static const char *const lists[] = {"decode", "prefill_short", "prefill"};
    const json_t *stages = json_object_get(json, "stages");
    assert_int_equal(json_object_size(stages), 3);
    for (int l = 0; l < 3; l++) {
        const json_t *list = json_object_get(stages, lists[l]);
        assert_int_equal(json_array_size(list), x.list[l].stage_count);
        for (uint32_t i = 0; i < x.list[l].stage_count; i++) {
            const json_t *stage = json_array_get(list, i);
            assert_int_equal(json_object_size(stage), 6);
            assert_int_equal(json_array_size(json_object_get(stage, "layers")), 2);
            assert_float_equal(number_at(stage, "ms"), 1e3 * x.list[l].stage[i].seconds, 1e-9);
            assert_string_equal(json_string_value(json_object_get(stage, "bound_by")),
                                x.list[l].stage[i].bound_by);
        }
    }
    for (int i = 0; i < 2; i++) {
        const json_t *part = json_object_get(json_object_get(json, "parts"), i ? "first" : "decode");
        double sum = 0, all = json_number_value(json_object_get(part, "ms"));
        for (int k = 0; k < 4; k++) {
            static const char *const names[] = {"cpu_ms", "gpu_ms", "hand_overs_ms", "rest_ms"};
            sum += json_number_value(json_object_get(part, names[k]));
        }
        assert_true(all > 0 && fabs(sum / all - 1) < 1e-6);
        assert_true(json_integer_value(json_object_get(part, "steps")) >= 1);
    }
    const json_t *strategies = json_object_get(json, "strategies");
    assert_int_equal(json_array_size(strategies), SEARCH_EXPERTS_CPU); /* none of experts: there are none */
    for (int s = 0; s < SEARCH_EXPERTS_CPU; s++) {
        const json_t *entry = json_array_get(strategies, (size_t)s);
        const json_t *rate = json_object_get(entry, "decode_tok_s"),
                     *ttft = json_object_get(entry, "ttft_ms");
        bool feasible = json_is_true(json_object_get(entry, "feasible"));
        assert_int_equal(json_object_size(entry), 4);
        assert_string_equal(json_string_value(json_object_get(entry, "name")),
                            search_strategy_name((enum search_strategy)s));
        assert_true(feasible ? json_is_real(rate) && json_is_real(ttft)
                             : json_is_null(rate) && json_is_null(ttft));
    }
    /* and it is a plan */
    if (plan_from_json(json, &again, &err)) fail_msg("%s", err.text);
    assert_int_equal(again.prefill_count, 2);
    assert_int_equal(again.device[PLAN_GPU0].ring_bytes, c.plan.device[PLAN_GPU0].ring_bytes);
    json_t *made = plan_lists_to_json(&c.plan), *read = plan_lists_to_json(&again);
    assert_true(json_equal(made, read));
    json_decref(made);
    json_decref(read);
    plan_free(&again);
    json_decref(json);
    explain_free(&x);
    case_close(&c);
}

static void strategies_stand_beside_the_winner(void **state)
{
    (void)state;
    struct explain_case c;
    struct explain x;
    case_open(&c, "qwen3-8b", "thesis-rtx4060-laptop", 0);
    case_make(&c);
    explain(&c, &x);
    const struct explain_strategy *best = &x.strategy[SEARCH_BEST];
    assert_true(best->feasible);
    assert_true(fabs(best->decode_s - x.prediction.decode.seconds) < 1e-12);
    assert_true(!x.strategy[SEARCH_ALL_GPU].feasible); /* 16 GB into 8 */
    assert_non_null(strstr(x.strategy[SEARCH_ALL_GPU].why, "VRAM"));
    assert_true(x.strategy[SEARCH_THESIS].feasible);
    for (uint32_t s = 0; s < x.strategies; s++)
        if (x.strategy[s].feasible) assert_true(best->decode_s <= 1.001 * x.strategy[s].decode_s);
    explain_free(&x);
    plan_free(&c.plan);
    /* The same strategy asked for is the plan, and the best stands beside it. */
    c.request.strategy = SEARCH_THESIS;
    c.request.device_required = true;
    case_make(&c);
    explain(&c, &x);
    assert_true(fabs(x.strategy[SEARCH_THESIS].decode_s - x.prediction.decode.seconds) < 1e-12);
    assert_true(x.strategy[SEARCH_BEST].decode_s <= 1.001 * x.strategy[SEARCH_THESIS].decode_s);
    explain_free(&x);
    case_close(&c);
}

static void every_split_is_reckoned(void **state)
{
    (void)state;
    struct explain_case c;
    struct explain x;
    case_open(&c, "qwen3-8b", "thesis-rtx4060-laptop", 0);
    c.request.strategy = SEARCH_THESIS;
    c.request.device_required = true;
    case_make(&c);
    explain(&c, &x);
    uint32_t layers = c.plan.layers, on_gpu = plan_layers_of(&c.plan, PLAN_GPU0);
    double best = INFINITY;
    for (uint32_t g = 0; g <= layers; g++) {
        assert_true(isfinite(x.split[g].decode_s) && x.split[g].decode_s > 0);
        if (x.split[g].fits) best = fmin(best, x.split[g].decode_s);
    }
    assert_false(x.split[0].fits); /* 16 GB of memory */
    assert_false(x.split[layers].fits);
    assert_true(x.split[layers].decode_s < best); /* it would be faster if it fitted */
    /* the strategy's plan is the curve's best */
    assert_true(x.split[on_gpu].fits);
    assert_true(fabs(x.split[on_gpu].decode_s / x.prediction.decode.seconds - 1) < 1e-3);
    assert_true(fabs(best / x.prediction.decode.seconds - 1) < 2e-3);
    explain_free(&x);
    case_close(&c);
}

/* Layers 3 to 5 read the caches of 1 and 2. */
static void no_split_tears_a_shared_cache_apart(void **state)
{
    (void)state;
    static const bool there_is[] = {true, true, false, false, false, true, true};
    struct explain_case c;
    struct explain x;
    case_open(&c, "../golden/gemma4e", "thesis-rtx4060-laptop", 0);
    case_make(&c);
    explain(&c, &x);
    for (uint32_t g = 0; g <= c.plan.layers; g++) {
        assert_true(isfinite(x.split[g].decode_s));
        assert_int_equal(x.split[g].fits, there_is[g]);
    }
    explain_free(&x);
    case_close(&c);
}

static void batches_are_counted_in_tokens_a_second(void **state)
{
    (void)state;
    struct explain_case c;
    struct explain one, eight;
    case_open(&c, "qwen3-4b", "h200-sapphire-rapids", 0);
    case_make(&c);
    explain(&c, &one);
    plan_free(&c.plan);
    c.request.batch = c.request.wish.batch = 8;
    c.request.wish.ctx = 4096;
    case_make(&c);
    explain(&c, &eight);
    double a = 1 / one.prediction.decode.seconds, b = 8 / eight.prediction.decode.seconds;
    assert_true(b > 2 * a && b < 8.01 * a);
    assert_int_equal(eight.list[0].tokens, 8);
    assert_int_equal(eight.list[0].rows, 8);
    json_t *json = explain_to_json(&eight);
    assert_float_equal(number_at(json_object_get(json, "decode_tok_s"), "value"), b, 1e-9);
    assert_int_equal((int)number_at(json_object_get(json, "assumed"), "batch"), 8);
    json_decref(json);
    explain_free(&one);
    explain_free(&eight);
    case_close(&c);
}

/* Spreads of more than the value itself still give bars that are numbers. */
static void bars_are_finite_whatever_the_spread(void **state)
{
    (void)state;
    struct explain_case c;
    struct explain x;
    case_open(&c, "qwen3-8b", "thesis-rtx4060-laptop", 0);
    case_write(&c);
    c.profile.cpu.gemv.low = 0.01 * c.profile.cpu.gemv.value;
    c.profile.cpu.gemv.high = 6 * c.profile.cpu.gemv.value;
    explain(&c, &x);
    assert_true(x.prediction.decode.low <= 0);
    assert_true(explain_rate_high(&x) > explain_rate(&x) && isfinite(explain_rate_high(&x)));
    assert_float_equal(explain_rate_high(&x) * explain_rate_low(&x), explain_rate(&x) * explain_rate(&x),
                       1e-9);
    json_t *json = explain_to_json(&x);
    check_bars(json_object_get(json, "decode_tok_s"));
    json_decref(json);
    explain_free(&x);
    case_close(&c);
}

static void a_refusal_is_four_members(void **state)
{
    (void)state;
    struct planner_refusal refusal = {
        .refused = true, .what = "VRAM", .needed = 9 * GIB, .available = 8 * GIB, .nearest = "--ctx 512"};
    json_t *json = explain_refusal_to_json(&refusal, "it does not fit");
    assert_int_equal(json_object_size(json), 4);
    assert_string_equal(json_string_value(json_object_get(json, "error")), "it does not fit");
    assert_string_equal(json_string_value(json_object_get(json, "nearest")), "--ctx 512");
    assert_int_equal(json_integer_value(json_object_get(json, "needed")), 9 * GIB);
    assert_int_equal(json_integer_value(json_object_get(json, "available")), 8 * GIB);
    json_decref(json);
}

static void the_table_names_everything(void **state)
{
    (void)state;
    struct explain_case c;
    struct explain x;
    char *text = NULL;
    size_t size = 0;
    case_open(&c, "qwen3-8b", "thesis-rtx4060-laptop", 0);
    case_write(&c);
    explain(&c, &x);
    FILE *out = open_memstream(&text, &size);
    assert_non_null(out);
    explain_print(&x, out);
    fclose(out);
    static const char *const words[] = {"qwen3-8b",
                                        "RTX 4060",
                                        "token/s",
                                        "bound by",
                                        "stream",
                                        "prefill_short",
                                        "(for steps of 96 tokens and more)",
                                        "weights & ring",
                                        "host memory",
                                        "6.00 GiB  in all, of 8.00 GiB",
                                        "does not fit: needs",
                                        "strategies",
                                        "<- this plan",
                                        "0-11 ",
                                        "in all     1 stage    gpu         4.31 GiB"};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (!strstr(text, words[i])) fail_msg("no '%s' in:\n%s", words[i], text);
    free(text);
    explain_free(&x);
    case_close(&c);
}

/* Formats that are not bf16, by the profile's rates for them or by those that stand for them. */
static void formats_rates_are_named(void **state)
{
    (void)state;
    struct explain_case c;
    struct explain x;
    char *text = NULL;
    size_t size = 0;
    case_open(&c, "qwen3-8b", "thesis-rtx3090", 0);
    case_write(&c);
    explain(&c, &x);
    assert_int_equal(x.format_count, 0);
    explain_free(&x);
    formats_lay(&c.model, mixture_named("q8_0"));
    explain(&c, &x);
    assert_int_equal(x.format_count, 1);
    assert_true(!x.format[0].measured && x.format[0].cpu == c.profile.cpu.gemv.value);
    explain_free(&x);
    c.profile.format[FORMAT_Q8_0].cpu_gemv = (struct profile_value){31e9, 30e9, 32e9, PROFILE_MEASURED};
    c.profile.format[FORMAT_Q8_0].gpu_gemv = (struct profile_value){777e9, 770e9, 780e9, PROFILE_MEASURED};
    explain(&c, &x);
    FILE *out = open_memstream(&text, &size);
    explain_print(&x, out);
    fclose(out);
    assert_non_null(strstr(text, "of q8_0, CPU 31 GB/s, GPU 777 GB/s\n"));
    json_t *json = explain_to_json(&x);
    const json_t *rate = json_array_get(json_object_get(json, "rates"), 0);
    assert_string_equal(json_string_value(json_object_get(rate, "format")), "q8_0");
    assert_true(json_is_true(json_object_get(rate, "measured")));
    assert_float_equal(number_at(rate, "cpu_gb_s"), 31, 1e-9);
    assert_float_equal(number_at(rate, "gpu_gb_s"), 777, 1e-9);
    /* of all layers and the head: 34 bytes for 32 values */
    assert_true(number_at(rate, "weight_bytes") == 34.0 / 32 * (36.0 * 192937984 + 151936.0 * 4096));
    json_decref(json);
    free(text);
    explain_free(&x);
    case_close(&c);
}

static void another_model_is_refused(void **state)
{
    (void)state;
    struct explain_case c, other;
    struct explain x;
    struct helm_err err = {0};
    case_open(&c, "qwen3-8b", "thesis-rtx4060-laptop", 0);
    case_open(&other, "qwen3-14b", "thesis-rtx4060-laptop", 0);
    case_write(&c);
    assert_int_equal(explain_make(&other.request, &c.plan, 0, &x, &err), HELM_E_MISMATCH);
    assert_null(x.span);
    case_close(&c);
    case_close(&other);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(stages_add_up_to_their_step),
        cmocka_unit_test(measured_stages_say_so),
        cmocka_unit_test(bounds_are_what_takes_longest),
        cmocka_unit_test(a_plan_without_prefill_lists_has_both_all_the_same),
        cmocka_unit_test(json_form_is_fixed),
        cmocka_unit_test(strategies_stand_beside_the_winner),
        cmocka_unit_test(every_split_is_reckoned),
        cmocka_unit_test(no_split_tears_a_shared_cache_apart),
        cmocka_unit_test(batches_are_counted_in_tokens_a_second),
        cmocka_unit_test(bars_are_finite_whatever_the_spread),
        cmocka_unit_test(a_refusal_is_four_members),
        cmocka_unit_test(the_table_names_everything),
        cmocka_unit_test(formats_rates_are_named),
        cmocka_unit_test(another_model_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
