/* Unit tests of a profile's rates by weight format: JSON both ways, names, what is refused, what is
 * lacking. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <string.h>

#include "common/base/units.h"
#include "tests/unit/daemon/planner/made_up_model.h"

/* A machine that the tests of prices use, with all that can be known of two formats. */
static struct profile whole(void)
{
    struct profile p = made_up_profile(&rates_h200);
    const enum tensor_format formats[] = {FORMAT_Q4_K, FORMAT_F16};
    snprintf(p.machine, sizeof p.machine, "test");
    snprintf(p.cpu.name, sizeof p.cpu.name, "A CPU");
    for (int i = 0; i < 2; i++) {
        struct profile_format *f = &p.format[formats[i]];
        f->cpu_gemv = made_up_value(60e9 + i);
        f->cpu_gemv_beside = made_up_value(50e9 + i);
        f->gpu_gemv = made_up_value(2000e9);
        f->gpu_operation = made_up_value(2.5e-6);
        f->gpu_chain_gemv = made_up_value(2500e9);
        f->gpu_chain_operation = made_up_value(1.5e-6);
        f->gpu_expand = made_up_value(1800e9);
        f->cpu_int8_gemv = made_up_value(90e9 + i);
        f->cpu_int8_linear.point[0] = (struct profile_point){4, made_up_value(0.5e12)};
        f->cpu_int8_linear.count = 1;
        f->cpu_linear.point[0] = (struct profile_point){4, made_up_value(0.3e12)};
        f->gpu_linear.point[0] = (struct profile_point){2, made_up_value(3e12)};
        f->gpu_linear.point[1] = (struct profile_point){16, made_up_value(20e12)};
        f->gpu_linear_operation.point[0] = (struct profile_point){2, made_up_value(3e-6)};
        f->cpu_linear.count = f->gpu_linear_operation.count = 1;
        f->gpu_linear.count = 2;
    }
    return p;
}

static struct profile half(void)
{
    struct profile p = whole();
    memset(&p.format[FORMAT_F16], 0, sizeof p.format[FORMAT_F16]);
    return p;
}

static void json_carries_every_format_both_ways(void **state)
{
    (void)state;
    struct profile p = whole(), again;
    struct helm_err err = {0};
    json_t *json = profile_to_json(&p);
    assert_non_null(json);
    json_t *formats = json_object_get(json, "formats");
    assert_int_equal(json_object_size(formats), 2);
    assert_int_equal(json_object_size(json_object_get(formats, "q4_k")), 13);
    assert_int_equal(profile_from_json(json, NULL, &again, &err), 0);
    assert_memory_equal(&again.format, &p.format, sizeof p.format);
    assert_int_equal(profile_check(&again, &err), 0);
    json_decref(json);
}

/* As all profiles were that were written before there were formats. */
static void without_formats_there_is_no_such_member(void **state)
{
    (void)state;
    struct profile p = made_up_profile(&rates_h200), again;
    struct helm_err err = {0};
    snprintf(p.machine, sizeof p.machine, "test");
    json_t *json = profile_to_json(&p);
    assert_null(json_object_get(json, "formats"));
    assert_int_equal(profile_from_json(json, NULL, &again, &err), 0);
    assert_int_equal(profile_check(&again, &err), 0);
    json_decref(json);
}

/* Caches: likewise, in an object of their own. */
static void json_carries_caches(void **state)
{
    (void)state;
    struct profile p = made_up_profile(&rates_h200), again;
    struct helm_err err = {0};
    bool table = true;
    snprintf(p.machine, sizeof p.machine, "test");
    p.kv[KV_Q8_0].cpu_attention = made_up_value(40e9);
    p.kv[KV_Q8_0].cpu_attention_host = made_up_value(50e9);
    p.kv[KV_Q8_0].gpu_chain_attention_pair = made_up_value(900e9);
    json_t *json = profile_to_json(&p);
    assert_int_equal(json_object_size(json_object_get(json, "kv")), 1);
    assert_int_equal(profile_from_json(json, NULL, &again, &err), 0);
    const size_t values = KV_DTYPE_COUNT * (sizeof(struct profile_kv) / sizeof(struct profile_value));
    for (size_t i = 0; i < values; i++) { /* bytes between members are not theirs */
        const struct profile_value *a = (const struct profile_value *)(const void *)again.kv + i,
                                   *b = (const struct profile_value *)(const void *)p.kv + i;
        assert_true(a->value == b->value && a->low == b->low && a->high == b->high && a->source == b->source);
    }
    assert_ptr_equal(profile_find(&p, "kv.q8_0.gpu_attention", &table), &p.kv[KV_Q8_0].gpu_attention);
    assert_false(table);
    assert_null(profile_find(&p, "kv.f16.gpu_attention", &table));
    json_object_set_new(json, "kv", json_loads("{\"f16\": {}}", 0, NULL));
    assert_int_equal(profile_from_json(json, NULL, &again, &err), HELM_E_FORMAT);
    assert_non_null(strstr(err.text, "kv: f16"));
    json_decref(json);
}

static void refuses(const char *formats, int code, const char *said)
{
    struct profile p = whole(), out;
    struct helm_err err = {0};
    json_t *json = profile_to_json(&p);
    json_object_set_new(json, "formats", json_loads(formats, JSON_DECODE_ANY, NULL));
    int rc = profile_from_json(json, NULL, &out, &err);
    if (rc != code || !strstr(err.text, said)) fail_msg("%s: %d, '%s'", formats, rc, err.text);
    assert_true(out.cpu.threads == 0); /* nothing half read is left */
    json_decref(json);
}

static void bad_formats_are_refused_by_name(void **state)
{
    (void)state;
    refuses("[]", HELM_E_FORMAT, "formats: not an object");
    refuses("{\"q4_m\": {}}", HELM_E_FORMAT, "formats: q4_m: 'q4_m' is no format");
    refuses("{\"bf16\": {}}", HELM_E_FORMAT, "rates of its own");
    refuses("{\"bf16-packed\": {}}", HELM_E_FORMAT, "rates of its own");
    refuses("{\"q4_k\": 1}", HELM_E_FORMAT, "formats: q4_k: missing or not an object");
    refuses("{\"q4_k\": {\"gemv\": 1}}", HELM_E_FORMAT, "formats: q4_k: 'gemv'");
    refuses("{\"q4_k\": {\"cpu_gemv\": {\"value\": -1, \"source\": \"sheet\"}}}", HELM_E_LIMIT,
            "formats: q4_k: cpu_gemv");
    refuses("{\"q8_0\": {\"gpu_operation\": {\"value\": 61, \"source\": \"sheet\"}}}", HELM_E_LIMIT,
            "formats: q8_0: gpu_operation");
    refuses("{\"q8_0\": {\"gpu_linear\": {}}}", HELM_E_FORMAT, "gpu_linear: not an array");
}

static void contradictions_are_named(void **state)
{
    (void)state;
    struct helm_err err = {0};
    struct profile p = whole();
    p.format[FORMAT_Q4_K].cpu_gemv = made_up_value(400e9); /* memory is read at 110 */
    assert_int_equal(profile_check(&p, &err), HELM_E_FORMAT);
    assert_non_null(strstr(err.text, "formats.q4_k"));
    assert_non_null(strstr(err.text, "cpu_gemv"));
    p = whole();
    p.format[FORMAT_Q4_K].cpu_int8_gemv = made_up_value(400e9);
    assert_int_equal(profile_check(&p, &err), HELM_E_FORMAT);
    assert_non_null(strstr(err.text, "cpu_int8_gemv"));
    p = whole();
    p.format[FORMAT_F16].gpu_chain_gemv = made_up_value(20000e9);
    assert_int_equal(profile_check(&p, &err), HELM_E_FORMAT);
    assert_non_null(strstr(err.text, "formats.f16"));
    p = whole();
    p.format[FORMAT_Q4_K].gpu_gemv = (struct profile_value){0}; /* and chained it is known */
    assert_int_equal(profile_check(&p, &err), HELM_E_FORMAT);
    assert_non_null(strstr(err.text, "gpu_chain_gemv"));
}

static void what_is_lacking_is_what_was_not_measured(void **state)
{
    (void)state;
    const unsigned q4 = format_bit(FORMAT_Q4_K), f16 = format_bit(FORMAT_F16),
                   bf16 = format_bit(FORMAT_BF16) | format_bit(FORMAT_BF16_PACKED);
    struct profile p = whole();
    assert_int_equal(profile_formats_lacking(&p, q4 | f16 | bf16), 0);
    p = half();
    assert_int_equal(profile_formats_lacking(&p, q4 | f16 | bf16), f16);
    assert_int_equal(profile_formats_lacking(&p, bf16), 0);
    p.format[FORMAT_Q4_K].gpu_gemv = (struct profile_value){0}; /* expanded wherever the device uses it */
    assert_int_equal(profile_formats_lacking(&p, q4), 0);
    p.format[FORMAT_Q4_K].gpu_expand = (struct profile_value){0};
    assert_int_equal(profile_formats_lacking(&p, q4), q4);
    p.gpu.device = PROFILE_DEVICE_NONE;
    assert_int_equal(profile_formats_lacking(&p, q4), 0);
}

static void names_are_read_and_written(void **state)
{
    (void)state;
    unsigned formats = 0;
    struct helm_err err = {0};
    char text[PROFILE_FORMATS_TEXT];
    assert_int_equal(profile_formats_read("q6_k,q4_k", &formats, &err), 0);
    assert_int_equal(formats, format_bit(FORMAT_Q4_K) | format_bit(FORMAT_Q6_K));
    profile_formats_text(formats, text);
    assert_string_equal(text, "q4_k,q6_k");
    profile_formats_text(~0u, text); /* all there are have room */
    assert_non_null(strstr(text, "mxfp4"));
    assert_int_equal(profile_formats_read("q4_k,bf16", &formats, &err), HELM_E_USAGE);
    assert_non_null(strstr(err.text, "'bf16' is none of f16,f32,fp8,q8_0"));
    assert_int_equal(profile_formats_read("q4_k,,q6_k", &formats, &err), HELM_E_USAGE);
}

static void values_are_found_by_name(void **state)
{
    (void)state;
    struct profile p = half();
    bool table = false;
    assert_ptr_equal(profile_find(&p, "formats.q4_k.gpu_gemv", &table), &p.format[FORMAT_Q4_K].gpu_gemv);
    assert_false(table);
    assert_ptr_equal(profile_find(&p, "formats.q6_k.gpu_linear", &table), &p.format[FORMAT_Q6_K].gpu_linear);
    assert_true(table);
    assert_null(profile_find(&p, "formats.bf16.gpu_gemv", &table));
    assert_null(profile_find(&p, "formats.q4_k.gemv", &table));
    assert_null(profile_find(&p, "formats.q4_k", &table));
    assert_null(profile_find(&p, "formats.", &table));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(json_carries_every_format_both_ways),
        cmocka_unit_test(without_formats_there_is_no_such_member),
        cmocka_unit_test(json_carries_caches),
        cmocka_unit_test(bad_formats_are_refused_by_name),
        cmocka_unit_test(contradictions_are_named),
        cmocka_unit_test(what_is_lacking_is_what_was_not_measured),
        cmocka_unit_test(names_are_read_and_written),
        cmocka_unit_test(values_are_found_by_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
