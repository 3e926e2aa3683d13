/* Unit tests of common/plan/plan.c: what plans may say and how much of it, and the sizes that follow from
 * them. */
#include "tests/unit/common/plan/plan_texts.h"

#include "common/plan/engine_limits.h"
#include "common/plan/stages.h"
#include "tests/written_plans.h"

static void buffers_hold_what_a_worker_computes(void **state)
{
    (void)state;
    struct plan_unit unit[WRITTEN_UNITS(4)];
    struct plan plan = {.layers = 4, .step_tokens = 2048, .unit = units_of_letters(unit, 4, "ccccggss", 8)};
    plan.device[PLAN_GPU0].ring_bytes = 1;
    assert_int_equal(plan_most_tokens(&plan, PLAN_CPU0), 2048);
    assert_int_equal(plan_most_tokens(&plan, PLAN_GPU0), 2048);
    add_letters(&plan, 20, "ccssggss");
    add_letters(&plan, 500, "ssssggss");
    struct helm_err err = {0};
    assert_int_equal(plan_check(&plan, &err), 0);
    assert_int_equal(plan_most_tokens(&plan, PLAN_CPU0), 499);
    assert_int_equal(plan_most_tokens(&plan, PLAN_GPU0), 2048);
    plan.step_tokens = 300; /* the last list is never reached */
    assert_int_equal(plan_most_tokens(&plan, PLAN_CPU0), 300);
    plan.step_tokens = 2048;
    for (int u = 0; u < 2; u++) unit[u].home[1] = PLAN_HOME_STREAM;
    assert_int_equal(plan_most_tokens(&plan, PLAN_CPU0), 19);
    for (int u = 0; u < 4; u++) unit[u].home[0] = PLAN_HOME_STREAM;
    assert_int_equal(plan_most_tokens(&plan, PLAN_CPU0), 0);
    assert_int_equal(plan_most_tokens(&plan, PLAN_GPU0), 2048);
}

static void hostile_plans_get_named_errors(void **state)
{
    (void)state;
    static const struct {
        const char *path, *value;
        int code;
        const char *text;
    } cases[] = {
        {"layers", NULL, HELM_E_FORMAT, "'layers' is missing"},
        {"layers", "0", HELM_E_LIMIT, "'layers'"},
        {"layers", "2049", HELM_E_LIMIT, "2048"},
        {"layers", "29", HELM_E_FORMAT, "layers 28 to 28 belong to no stage"},
        {"layers", "27", HELM_E_LIMIT, "stage 2: layers [11, 27] are no range inside 0 to 26"},
        {"layers", "28.0", HELM_E_FORMAT, "whole number"},
        {"context_tokens", "-1", HELM_E_LIMIT, "context_tokens"},
        {"step_tokens", "9223372036854775807", HELM_E_LIMIT, "step_tokens"},
        {"slots", "65", HELM_E_LIMIT, "slots"},
        {"page_tokens", "24", HELM_E_LIMIT, "power of two"},
        {"page_tokens", "0", HELM_E_LIMIT, "page_tokens"},
        {"page_count", "4294967296", HELM_E_LIMIT, "page_count"},
        {"kv_dtype", "'q4'", HELM_E_UNSUPPORTED, "'q4'"},
        {"kv_dtype", "'bfloat16'", HELM_E_LIMIT, "kv_dtype"},
        {"kv_dtype", "7", HELM_E_FORMAT, "not a string"},
        {"stages", NULL, HELM_E_FORMAT, "'stages'"},
        {"stages", "[]", HELM_E_LIMIT, "'stages' has 0"},
        {"stages", "{}", HELM_E_FORMAT, "no array"},
        {"stages/0", NULL, HELM_E_FORMAT, "stage 0: layer 0 belongs to no stage"},
        {"stages/1", NULL, HELM_E_FORMAT, "stage 1: layer 10 belongs to no stage (this one begins at 11)"},
        {"stages/2", NULL, HELM_E_FORMAT, "layers 11 to 27 belong to no stage"},
        {"stages/1", "7", HELM_E_FORMAT, "stage 1: not an object"},
        {"stages/1/layers", "[9,10]", HELM_E_FORMAT, "stage 1: layer 9 belongs to an earlier stage"},
        {"stages/1/layers", "[11,10]", HELM_E_LIMIT, "stage 1"},
        {"stages/1/layers", "[10,4294967306]", HELM_E_LIMIT, "stage 1"},
        {"stages/1/layers", "[-1,10]", HELM_E_LIMIT, "stage 1"},
        {"stages/1/layers", "[10]", HELM_E_FORMAT, "[first, last]"},
        {"stages/1/layers", "[10,10,10]", HELM_E_FORMAT, "[first, last]"},
        {"stages/1/layers", "['10',10]", HELM_E_FORMAT, "[first, last]"},
        {"stages/1/home", "'tpu'", HELM_E_FORMAT, "home 'tpu' is none of gpu, cpu, stream"},
        {"stages/1/home", NULL, HELM_E_FORMAT, "'home' is missing"},
        {"stages/1/bytes", "-5", HELM_E_LIMIT, "stage 1: 'bytes'"},
        {"stages/1/bytes", "1e3", HELM_E_FORMAT, "whole number"},
        {"host", NULL, HELM_E_FORMAT, "host ledger"},
        {"vram/limit", NULL, HELM_E_FORMAT, "vram ledger: 'limit'"},
        {"vram/lines", "7", HELM_E_FORMAT, "vram ledger: 'lines'"},
        {"vram/limit", "'8GiB'", HELM_E_FORMAT, "whole number"},
        {"host/total", "5000000008", HELM_E_MISMATCH, "add up to 5000000007"},
        {"host/lines/1/bytes", "8", HELM_E_MISMATCH, "host ledger"},
        {"host/limit", "5000000006", HELM_E_CAPACITY, "5000000007 bytes needed, limit 5000000006"},
        {"host/lines/1/what", "'a\\nb'", HELM_E_FORMAT, "host ledger: line 1: 'what' contains a control"},
        {"host/lines/1/what", "''", HELM_E_LIMIT, "'what'"},
        {"host/lines/1/what", "'0123456789012345678901234567890123456789012345678'", HELM_E_LIMIT, "47"},
        {"host/lines/1/what", "'a\\u0000b'", HELM_E_FORMAT, "control"},
        {"host/lines/0", "[]", HELM_E_FORMAT, "line 0: not an object"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        json_t *json = json_of(good_text);
        struct plan plan;
        struct helm_err err = {0};
        edit(json, cases[i].path, cases[i].value);
        int rc = plan_from_json(json, &plan, &err);
        if (rc != cases[i].code || err.code != rc || strncmp(err.text, "plan: ", 6) != 0 ||
            !strstr(err.text, cases[i].text))
            fail_msg("case %zu (%s = %s): code %d, %s", i, cases[i].path,
                     cases[i].value ? cases[i].value : "gone", rc, err.text);
        assert_null(plan.unit);
        json_decref(json);
    }
    struct plan plan;
    struct helm_err err = {0};
    json_t *array = json_of("[]");
    assert_int_equal(plan_from_json(array, &plan, &err), HELM_E_FORMAT);
    assert_int_equal(plan_from_json(NULL, &plan, &err), HELM_E_FORMAT);
    json_decref(array);
}

static void counts_are_bounded(void **state)
{
    (void)state;
    json_t *json = json_of(good_text);
    struct plan plan;
    struct helm_err err = {0};
    json_t *stages = json_array(), *lines = json_object_get(json_object_get(json, "vram"), "lines");
    for (int i = 0; i < PLAN_STAGES_MAX; i++)
        json_array_append_new(stages,
                              json_pack("{s:[i,i], s:s, s:i}", "layers", i, i, "home", "cpu", "bytes", 1));
    json_object_set_new(json, "stages", stages);
    json_object_set_new(json, "layers", json_integer(PLAN_STAGES_MAX));
    for (int i = 0; i < PLAN_LINES_MAX; i++)
        json_array_append_new(lines, json_pack("{s:s, s:i}", "what", "x", "bytes", 0));
    if (plan_from_json(json, &plan, &err)) fail_msg("%s", err.text); /* the largest plan */
    assert_int_equal(plan_stage_count(&plan, 0), 1);                 /* neighbours are alike */
    plan_free(&plan);
    json_array_append_new(lines, json_pack("{s:s, s:i}", "what", "x", "bytes", 0));
    assert_int_equal(plan_from_json(json, &plan, &err), HELM_E_LIMIT);
    assert_non_null(strstr(err.text, "vram ledger: 'lines' has 33"));
    json_array_append_new(stages, json_object());
    assert_int_equal(plan_from_json(json, &plan, &err), HELM_E_LIMIT);
    assert_non_null(strstr(err.text, "'stages' has 2049"));
    json_decref(json);
}

static void ledgers_always_add_up(void **state)
{
    (void)state;
    struct ledger ledger = {.limit = 1000};
    for (uint32_t i = 1; i <= PLAN_LINES_MAX + 3; i++) {
        char what[16];
        snprintf(what, sizeof what, "line %u", i);
        ledger_add(&ledger, what, i);
    }
    uint64_t sum = 0;
    for (uint32_t i = 0; i < ledger.line_count; i++) sum += ledger.line[i].bytes;
    assert_int_equal(ledger.line_count, PLAN_LINES_MAX);
    assert_int_equal(sum, ledger.total);
    assert_int_equal(sum, 35 * 36 / 2);
    assert_string_equal(ledger.line[0].what, "line 1");
    assert_string_equal(ledger.line[PLAN_LINES_MAX - 1].what, "other");

    struct ledger full = {0};
    ledger_add(&full, "a name that is far longer than the forty-seven bytes a line can hold", UINT64_MAX);
    ledger_add(&full, "more", 5);
    assert_true(full.total == UINT64_MAX);
    assert_int_equal(strlen(full.line[0].what), 47);
}

/* Rows share the places below the watermark; what does not fit is the arena's, in whole pages. */
static void rows_share_the_places(void **state)
{
    (void)state;
    struct plan plan = {.page_tokens = 32, .page_count = 1000};
    assert_int_equal(plan_host_tokens(&plan, 1, 32000), 0); /* one tier */
    plan.device[PLAN_GPU0].vram_page_count = 40;
    plan.kv_free_places = 8;
    assert_int_equal(plan_places_filled(&plan), 32);
    assert_int_equal(plan_host_tokens(&plan, 1, 0), 0);
    assert_int_equal(plan_host_tokens(&plan, 1, 1024), 0); /* 32 pages */
    assert_int_equal(plan_host_tokens(&plan, 1, 1025), 32);
    assert_int_equal(plan_host_tokens(&plan, 1, 1056), 32);
    assert_int_equal(plan_host_tokens(&plan, 1, 32000), 32000 - 1024);
    assert_int_equal(plan_host_tokens(&plan, 4, 256), 0);
    assert_int_equal(plan_host_tokens(&plan, 4, 257), 32);
    assert_int_equal(plan_host_tokens(&plan, 64, 100), 96); /* the page that is appended to has a place */
    plan.kv_free_places = 40;
    assert_int_equal(plan_places_filled(&plan), 1);
    assert_int_equal(plan_free_places(8, 32), 1);
    assert_int_equal(plan_free_places(8, 4), 4);
    assert_int_equal(plan_free_places(64, 32), 4);
}

/* Few positions the GPU reads itself, of more a part; layers with a short window it has alone, and the others
 * are numbered. */
static void layers_and_steps_have_ways(void **state)
{
    (void)state;
    static const uint32_t window[] = {128, 0, 128, 4096, 0};
    struct plan_unit unit[WRITTEN_UNITS(5)];
    struct plan plan = {.layers = 5,
                        .unit = units_of_letters(unit, 5, "ggggggggcc", 10),
                        .device[PLAN_GPU0].vram_page_count = 17,
                        .kv_direct_permille = 250,
                        .kv_direct_positions = 96};
    assert_int_equal(plan_direct_permille(&plan, 96), 1000);
    assert_int_equal(plan_direct_permille(&plan, 97), 250);
    assert_int_equal(plan_assisted_layers(&plan, NULL, 5), 4); /* the last one is the CPU's */
    assert_int_equal(plan_assisted_layers(&plan, window, 5), 4);
    plan.kv_direct_window = 128;
    assert_false(plan_assists_layer(&plan, 128));
    assert_true(plan_assists_layer(&plan, 129) && plan_assists_layer(&plan, 0));
    assert_int_equal(plan_assisted_layers(&plan, window, 1), 0);
    assert_int_equal(plan_assisted_layers(&plan, window, 2), 1);
    assert_int_equal(plan_assisted_layers(&plan, window, 5), 2);
    plan.kv_direct_permille = 1000;
    assert_int_equal(plan_assisted_layers(&plan, window, 5), 0);
}

static void homes_have_names(void **state)
{
    (void)state;
    assert_string_equal(plan_home_name(PLAN_HOME_GPU), "gpu");
    assert_string_equal(plan_home_name(PLAN_HOME_STREAM), "stream");
    assert_string_equal(plan_home_name((enum plan_home)99), "unknown");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(buffers_hold_what_a_worker_computes),
        cmocka_unit_test(hostile_plans_get_named_errors),
        cmocka_unit_test(counts_are_bounded),
        cmocka_unit_test(ledgers_always_add_up),
        cmocka_unit_test(rows_share_the_places),
        cmocka_unit_test(layers_and_steps_have_ways),
        cmocka_unit_test(homes_have_names),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
