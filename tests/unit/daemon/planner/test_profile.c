/* Unit tests of daemon/planner/profile*.c: tables, JSON both ways, and what is refused. */
#include "tests/unit/daemon/planner/written_profiles.h"

static void tables_interpolate_in_log_x(void **state)
{
    (void)state;
    struct profile_table table = {0};
    assert_true(profile_table_at(&table, 4).value == 0);
    assert_int_equal(profile_table_at(&table, 4).source, PROFILE_UNKNOWN);
    add_point(&table, 2, 100);
    add_point(&table, 8, 300);
    table.point[table.count++] = (struct profile_point){32, {320, 320, 320, PROFILE_SHEET}};
    assert_true(profile_table_at(&table, 0).value == 100); /* outside: the nearest */
    assert_true(profile_table_at(&table, 1).value == 100);
    assert_true(profile_table_at(&table, 2).value == 100);
    assert_true(fabs(profile_table_at(&table, 4).value - 200) < 1e-9); /* half way, in powers of two */
    assert_true(fabs(profile_table_at(&table, 4).low - 180) < 1e-9);
    assert_true(fabs(profile_table_at(&table, 4).high - 250) < 1e-9);
    assert_int_equal(profile_table_at(&table, 4).source, PROFILE_MEASURED);
    assert_true(profile_table_at(&table, 8).value == 300);
    assert_true(fabs(profile_table_at(&table, 16).value - 310) < 1e-9);
    assert_int_equal(profile_table_at(&table, 16).source, PROFILE_ESTIMATE);
    assert_true(profile_table_at(&table, 4096).value == 320);
    assert_int_equal(profile_table_at(&table, 4096).source, PROFILE_SHEET);
}

static void json_carries_every_member_both_ways(void **state)
{
    (void)state;
    struct profile p = whole(), again;
    struct helm_err err = {0};
    assert_int_equal(profile_check(&p, &err), 0);
    json_t *json = profile_to_json(&p);
    assert_non_null(json);
    assert_int_equal(profile_from_json(json, NULL, &again, &err), 0);
    json_t *printed = profile_to_json(&again);
    assert_true(json_equal(json, printed));
    json_decref(printed);
    assert_string_equal(again.machine, p.machine);
    assert_string_equal(again.gpu.uuid, p.gpu.uuid);
    assert_true(again.cpu.read.point[1].y.high == p.cpu.read.point[1].y.high);
    assert_int_equal(again.link.direct.source, PROFILE_TEXT_SAYS);
    assert_int_equal(again.gpu.launch.source, PROFILE_SHEET);
    assert_true(again.step.low == p.step.low);
    assert_int_equal(again.gpu.context_bytes, p.gpu.context_bytes);
    assert_false(again.quick);
    json_decref(json);

    p.quick = true; /* and a machine without a device */
    p.busy_percent = 40;
    p.gpu = (struct profile_gpu){0};
    p.link = (struct profile_link){0};
    json = profile_to_json(&p);
    assert_true(json_is_array(json_object_get(json, "gpus")));
    assert_int_equal(json_array_size(json_object_get(json, "gpus")), 0);
    assert_int_equal(profile_from_json(json, NULL, &again, &err), 0);
    assert_int_equal(again.gpu.device, PROFILE_DEVICE_NONE);
    assert_true(again.quick);
    assert_int_equal(again.busy_percent, 40);
    assert_int_equal(profile_check(&again, &err), 0);
    json_decref(json);
}

static void set(json_t *object, const char *key, const char *value)
{
    json_error_t error;
    json_t *json = json_loads(value, JSON_DECODE_ANY, &error);
    assert_non_null(json);
    assert_int_equal(json_object_set_new(object, key, json), 0);
}

/* The whole profile with a second GPU, which is half as fast on a link of a third. */
static json_t *two_gpus(void)
{
    struct profile p = whole();
    p.format[FORMAT_Q4_K].cpu_gemv = measured(90e9);
    p.format[FORMAT_Q4_K].gpu_gemv = measured(3000e9);
    p.format[FORMAT_Q6_K] = p.format[FORMAT_Q4_K];
    json_t *json = profile_to_json(&p), *gpus = json_object_get(json, "gpus"),
           *second = json_deep_copy(json_array_get(gpus, 0));
    assert_non_null(second);
    assert_int_equal(json_array_append_new(gpus, second), 0);
    set(second, "name", "\"NVIDIA L40S\"");
    set(second, "uuid", "\"GPU-5678\"");
    set(second, "read", "{\"value\": 2270e9, \"source\": \"measured\"}");
    set(json_object_get(second, "link"), "h2d", "{\"value\": 18e9, \"source\": \"measured\"}");
    set(second, "cpu", "{\"gemv_beside\": {\"value\": 95e9, \"source\": \"measured\"}}");
    set(second, "formats", "{\"q4_k\": {\"gpu_gemv\": {\"value\": 1500e9, \"source\": \"measured\"}}}");
    return json;
}

/* The one that is named, with what was measured beside it; what it says nothing of is the machine's. */
static void one_gpu_of_a_list_is_planned_for(void **state)
{
    (void)state;
    static const char *const first[] = {NULL, "auto", "cuda", "cuda:0", "GPU-1234", "NVIDIA H200"},
                             *const second[] = {"cuda:1", "GPU-5678", "NVIDIA L40S"},
                             *const none[] = {"cuda:2", "cuda:", "cuda:01", "emulated", "GPU", ""};
    json_t *json = two_gpus();
    struct profile p;
    struct helm_err err = {0};
    for (size_t i = 0; i < sizeof first / sizeof *first; i++) {
        if (profile_from_json(json, first[i], &p, &err)) fail_msg("%s", err.text);
        assert_true(p.gpu.read.value == 4540e9 && p.link.h2d.value == 55.4e9 &&
                    p.cpu.gemv_beside.value == 80e9);
        assert_true(p.format[FORMAT_Q4_K].gpu_gemv.value == 3000e9);
        assert_true(p.format[FORMAT_Q6_K].gpu_gemv.value == 3000e9);
        assert_string_equal(p.fingerprint, "00ff");
    }
    for (size_t i = 0; i < sizeof second / sizeof *second; i++) {
        if (profile_from_json(json, second[i], &p, &err)) fail_msg("%s", err.text);
        assert_true(p.gpu.read.value == 2270e9 && p.link.h2d.value == 18e9 &&
                    p.cpu.gemv_beside.value == 95e9);
        assert_true(p.format[FORMAT_Q4_K].gpu_gemv.value == 1500e9 &&
                    p.format[FORMAT_Q4_K].cpu_gemv.value == 90e9);
        assert_true(p.gpu.gemv.value == 4100e9 && p.link.d2h.value == 52e9 && p.cpu.gemv.value == 105e9);
        /* rates of formats are not the first one's, where nothing is said */
        assert_true(p.format[FORMAT_Q6_K].cpu_gemv.value == 90e9 &&
                    p.format[FORMAT_Q6_K].gpu_gemv.value == 0);
        assert_string_equal(p.fingerprint, ""); /* nothing else was measured with this one */
        assert_int_equal(profile_check(&p, &err), 0);
    }
    for (size_t i = 0; i < sizeof none / sizeof *none; i++) {
        assert_int_equal(profile_from_json(json, none[i], &p, &err), HELM_E_NOT_FOUND);
        assert_non_null(strstr(err.text, "is none of its GPUs, which are: NVIDIA H200, NVIDIA L40S"));
    }
    if (profile_from_json(json, "cpu", &p, &err)) fail_msg("%s", err.text);
    assert_true(p.gpu.device == PROFILE_DEVICE_NONE && p.link.h2d.value == 0 && p.cpu.gemv.value == 105e9);
    json_decref(json);
}

/* Files from before there were lists say the same. */
static void a_gpu_beside_its_link_is_a_list_of_one(void **state)
{
    (void)state;
    struct profile p = whole(), again;
    struct helm_err err = {0};
    json_t *old = profile_one_to_json(&p), *json = profile_to_json(&p);
    assert_true(json_is_object(json_object_get(old, "gpu")) && json_is_object(json_object_get(old, "link")));
    assert_int_equal(profile_from_json(old, "cuda:0", &again, &err), 0);
    json_t *printed = profile_to_json(&again);
    assert_true(json_equal(printed, json));
    assert_int_equal(profile_from_json(old, "cpu", &again, &err), 0);
    assert_int_equal(again.gpu.device, PROFILE_DEVICE_NONE);
    assert_int_equal(profile_from_json(old, "cuda:1", &again, &err), HELM_E_NOT_FOUND);
    json_decref(printed);
    json_decref(json);
    json_decref(old);
}

/* A list's every entry is read, whichever is chosen. */
static void bad_lists_are_refused(void **state)
{
    (void)state;
    static const struct {
        const char *key, *value, *said;
        bool in_second;
    } cases[] = {
        {"gpus", "{}", "'gpus' is no list of up to 16", false},
        {"gpus", "[null]", "gpus[0]", false},
        {"gpus", "[1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17]", "no list of up to 16", false},
        {"gpu", "null", "'gpus' is there, and so is 'gpu' or 'link'", false},
        {"link", "{}", "'gpus' is there, and so is 'gpu' or 'link'", false},
        {"link", "null", "gpus[1]", true},
        {"reed", "1", "gpus[1]: profile: gpu: 'reed'", true},
        {"cpu", "[]", "gpus[1]: profile: cpu", true},
        {"cpu", "{\"gemv_beside\": 1}", "gpus[1]: profile: cpu: gemv_beside", true},
        {"formats", "{\"q4_z\": {}}", "gpus[1]: profile: formats: q4_z", true},
        {"kv", "1", "gpus[1]: profile: kv", true},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        json_t *json = two_gpus();
        struct profile p;
        struct helm_err err = {0};
        set(cases[i].in_second ? json_array_get(json_object_get(json, "gpus"), 1) : json, cases[i].key,
            cases[i].value);
        const int rc = profile_from_json(json, NULL, &p, &err);
        if (!rc || !strstr(err.text, cases[i].said)) fail_msg("%s: %d, '%s'", cases[i].said, rc, err.text);
        assert_int_equal(p.cpu.threads, 0);
        json_decref(json);
    }
}

static void what_others_took_is_a_part_of_every_rate(void **state)
{
    (void)state;
    struct profile p = {.busy_percent = PROFILE_BUSY - 1};
    assert_true(profile_disturbance(&p) == 0);
    p.busy_percent = 20; /* four fifths were left: alone it is a quarter faster */
    assert_true(fabs(profile_disturbance(&p) - 0.25) < 1e-9);
    p.busy_percent = 100;
    assert_true(profile_disturbance(&p) == 0.75);
}

static json_t *from_text(const char *text)
{
    json_error_t error;
    json_t *json = json_loads(text, 0, &error);
    assert_non_null(json);
    return json;
}

static void hand_written_profiles_may_be_short(void **state)
{
    (void)state;
    struct profile p;
    struct helm_err err = {0};
    json_t *json = from_text(
        "{\"helm_profile\": 1, \"machine\": \"m\", \"note\": \"from a data sheet\", \"cpu\": {\"name\": "
        "\"c\","
        " \"threads\": 8, \"read\": [{\"x\": 8, \"value\": 60e9, \"source\": \"text\", \"note\": \"p. 4\"}],"
        " \"gemv\": {\"value\": 50000000000, \"source\": \"text\"}}}");
    assert_int_equal(profile_from_json(json, NULL, &p, &err), 0);
    assert_true(p.cpu.gemv.low == 50e9 && p.cpu.gemv.high == 50e9);
    assert_int_equal(p.cpu.gemv.source, PROFILE_TEXT_SAYS);
    assert_int_equal(p.cpu.attention.source, PROFILE_UNKNOWN);
    assert_string_equal(p.fingerprint, "");
    assert_int_equal(profile_check(&p, &err), HELM_E_FORMAT); /* well formed, but not enough to plan with */
    assert_non_null(strstr(err.text, "cpu.linear"));
    json_decref(json);
}

/* The whole profile, as files were before they had a list of GPUs, with one member replaced by `value` (NULL:
 * removed), is refused with `said` in the error. */
static void refuses(const char *object, const char *key, const char *value, int code, const char *said)
{
    struct profile p = whole(), out;
    struct helm_err err = {0};
    json_t *json = profile_one_to_json(&p), *in = object ? json_object_get(json, object) : json;
    json_error_t error;
    json_object_del(in, key);
    if (value) json_object_set_new(in, key, json_loads(value, JSON_DECODE_ANY, &error));
    int rc = profile_from_json(json, NULL, &out, &err);
    if (rc != code || !strstr(err.text, said)) fail_msg("%s: %d, '%s'", key, rc, err.text);
    assert_true(out.cpu.threads == 0); /* nothing half read is left */
    json_decref(json);
}

static void bad_input_is_refused_by_name(void **state)
{
    (void)state;
    refuses(NULL, "helm_profile", NULL, HELM_E_FORMAT, "helm_profile");
    refuses(NULL, "helm_profile", "2", HELM_E_UNSUPPORTED, "version 2");
    refuses(NULL, "cpu", NULL, HELM_E_FORMAT, "cpu");
    refuses(NULL, "cpu", "[]", HELM_E_FORMAT, "cpu");
    refuses(NULL, "link", "null", HELM_E_MISMATCH, "'link' is not");
    refuses(NULL, "gpu", NULL, HELM_E_MISMATCH, "'gpu' is not");
    refuses(NULL, "machine", NULL, HELM_E_FORMAT, "machine: missing");
    refuses(NULL, "machine", "\"a\\nb\"", HELM_E_FORMAT, "control");
    refuses(NULL, "speling", "1", HELM_E_FORMAT, "speling");
    refuses("cpu", "linear_wide", "[]", HELM_E_FORMAT, "linear_wide"); /* of methods before this one */
    refuses("cpu", "unpack", "{\"value\": 1e9, \"source\": \"measured\"}", HELM_E_FORMAT, "unpack");
    refuses(NULL, "note", "1", HELM_E_FORMAT, "note");
    refuses("cpu", "threads", "-1", HELM_E_LIMIT, "threads: -1");
    refuses("cpu", "threads", "1.5", HELM_E_FORMAT, "threads");
    refuses("cpu", "gemv", "1e9", HELM_E_FORMAT, "gemv: not an object");
    refuses("cpu", "gemv", "{\"value\": 1e9}", HELM_E_FORMAT, "source");
    refuses("cpu", "gemv", "{\"value\": 1e9, \"source\": \"guess\"}", HELM_E_FORMAT, "guess");
    refuses("cpu", "gemv", "{\"value\": -1, \"source\": \"sheet\"}", HELM_E_LIMIT, "gemv: 'value' is -1");
    refuses("cpu", "gemv", "{\"value\": 1e19, \"source\": \"sheet\"}", HELM_E_LIMIT, "gemv");
    refuses("cpu", "gemv", "{\"value\": 5, \"low\": 6, \"source\": \"sheet\"}", HELM_E_MISMATCH, "'low' 6");
    refuses("cpu", "gemv", "{\"value\": 5, \"high\": 4, \"source\": \"sheet\"}", HELM_E_MISMATCH, "'high' 4");
    refuses("cpu", "gemv", "{\"value\": 5, \"source\": \"unknown\"}", HELM_E_MISMATCH, "unknown");
    refuses("cpu", "gemv", "{\"value\": 5, \"source\": \"sheet\", \"x\": 1}", HELM_E_FORMAT, "'x'");
    refuses("cpu", "operation", "{\"value\": 61, \"source\": \"sheet\"}", HELM_E_LIMIT, "operation");
    refuses("cpu", "read", "{}", HELM_E_FORMAT, "read: not an array");
    refuses("cpu", "read", "[{\"value\": 1, \"source\": \"sheet\"}]", HELM_E_FORMAT, "point 0: 'x'");
    refuses("cpu", "read", "[{\"x\": 0, \"value\": 1, \"source\": \"sheet\"}]", HELM_E_LIMIT, "point 0");
    refuses("cpu", "read", "[{\"x\": 1, \"value\": 0, \"source\": \"sheet\"}]", HELM_E_LIMIT, "is 0");
    refuses(
        "cpu", "read",
        "[{\"x\": 2, \"value\": 1, \"source\": \"sheet\"}, {\"x\": 2, \"value\": 1, \"source\": \"sheet\"}]",
        HELM_E_FORMAT, "point 1: 'x' is 2 after 2");
    refuses("gpu", "device", "\"tpu\"", HELM_E_FORMAT, "tpu");
    refuses("gpu", "vram_bytes", "null", HELM_E_FORMAT, "vram_bytes");
    refuses("link", "latency", "{\"value\": 1e9, \"source\": \"sheet\"}", HELM_E_LIMIT, "latency");

    char many[2048] = "[";
    for (int i = 1; i <= PROFILE_POINTS_MAX + 1; i++)
        snprintf(many + strlen(many), sizeof many - strlen(many),
                 "%s{\"x\": %d, \"value\": 1, \"source\": \"sheet\"}", i > 1 ? "," : "", i);
    strcat(many, "]");
    refuses("cpu", "linear", many, HELM_E_LIMIT, "17 points");
}

/* Values that earlier versions measured are ignored where they were, whatever they say. */
static void former_values_are_ignored(void **state)
{
    (void)state;
    static const struct {
        const char *object, *name;
    } former[] = {{"cpu", "wake"},     {"cpu", "linear_beside"}, {"cpu", "linear_packed"},
                  {"gpu", "together"}, {"gpu", "issue"},         {"link", "h2d_beside_chunk"}};
    struct helm_err err = {0};
    struct profile p = whole(), again;
    json_t *json = profile_to_json(&p);
    assert_int_equal(profile_from_json(json, NULL, &p, &err), 0);
    json_t *gpu = json_array_get(json_object_get(json, "gpus"), 0);
    for (size_t i = 0; i < sizeof former / sizeof *former; i++) {
        json_t *object = strcmp(former[i].object, "cpu") == 0 ? json_object_get(json, "cpu") : gpu;
        if (strcmp(former[i].object, "link") == 0) object = json_object_get(gpu, "link");
        assert_int_equal(json_object_set_new(object, former[i].name, json_string("old")), 0);
    }
    assert_int_equal(profile_from_json(json, NULL, &again, &err), 0);
    assert_memory_equal(&again, &p, sizeof p);
    json_decref(json);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_others_took_is_a_part_of_every_rate),
        cmocka_unit_test(tables_interpolate_in_log_x),
        cmocka_unit_test(json_carries_every_member_both_ways),
        cmocka_unit_test(one_gpu_of_a_list_is_planned_for),
        cmocka_unit_test(a_gpu_beside_its_link_is_a_list_of_one),
        cmocka_unit_test(bad_lists_are_refused),
        cmocka_unit_test(hand_written_profiles_may_be_short),
        cmocka_unit_test(bad_input_is_refused_by_name),
        cmocka_unit_test(former_values_are_ignored),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
