/* Plans that use two devices: their JSON, the queries that take a processor or a memory, the lanes, what is
 * refused. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "common/base/json.h"
#include "common/plan/state.h"
#include "common/plan/placement.h"
#include "common/plan/schedule.h"

/* Layers 0 c, 1 and 2 gpu, 3 to 5 gpu1, 6 gpu, 7 c; the embedding the CPU's, the head gpu1's. */
static const char text[] =
    "{'layers':8,'context_tokens':64,'step_tokens':64,'slots':2,'page_tokens':32,'page_count':9,'kv_dtype':'"
    "f16',"
    "'embed':'cpu','head':'gpu1','stages':{'decode':[{'layers':[0,0],'home':'cpu','bytes':1},{'layers':[1,2],"
    "'home':"
    "'gpu','bytes':2},{'layers':[3,5],'home':'gpu1','bytes':3},{'layers':[6,6],'home':'gpu','bytes':1},"
    "{'layers':[7,7],'home':'cpu','bytes':1}]},'activations':{'cpu':'int8'},"
    "'placements':[['model.layers.0.self_attn.q_proj.weight','bf16','host',0,64],"
    "['model.layers.1.self_attn.q_proj.weight','bf16','vram',0,64],"
    "['model.layers.3.self_attn.q_proj.weight','bf16','vram1',0,64],"
    "['model.layers.4.self_attn.q_proj.weight','bf16','vram1',256,128]],"
    "'host':{'limit':null,'lines':[],'total':0},'vram':{'limit':100,'lines':[{'what':'w','bytes':7}],'total':"
    "7},"
    "'vram1':{'limit':200,'lines':[{'what':'w','bytes':9}],'total':9}}";

static json_t *json_of(const char *quoted)
{
    char copy[4096];
    json_t *json;
    struct helm_err err = {0};
    assert_true(strlen(quoted) < sizeof copy);
    for (size_t i = 0; i <= strlen(quoted); i++) copy[i] = quoted[i] == '\'' ? '"' : quoted[i];
    if (json_parse_bounded("test", copy, strlen(copy), sizeof copy, &json, &err)) fail_msg("%s", err.text);
    return json;
}

static void read_plan(struct plan *plan)
{
    struct helm_err err = {0};
    json_t *json = json_of(text);
    if (plan_from_json(json, plan, &err)) fail_msg("%s", err.text);
    json_decref(json);
}

static void json_has_a_ledger_for_each_memory(void **state)
{
    (void)state;
    struct plan plan, again;
    struct helm_err err = {0};
    read_plan(&plan);
    json_t *json = plan_to_json(&plan);
    assert_int_equal(json_integer_value(json_object_get(json_object_get(json, "vram1"), "total")), 9);
    assert_string_equal(json_string_value(json_object_get(json, "head")), "gpu1");
    const json_t *stage = json_array_get(json_object_get(json_object_get(json, "stages"), "decode"), 2);
    assert_string_equal(json_string_value(json_object_get(stage, "home")), "gpu1");
    assert_string_equal(json_string_value(json_object_get(json_object_get(json, "activations"), "gpu1")),
                        "exact");
    assert_int_equal(plan_from_json(json, &again, &err), 0);
    json_t *other = plan_to_json(&again);
    assert_true(json_equal(json, other));
    assert_true(again.memory[plan_memory_named("vram1")].limit == 200);
    json_decref(other);
    plan_free(&again);
    json_object_del(json, "vram1");
    assert_int_equal(plan_from_json(json, &again, &err), HELM_E_FORMAT);
    assert_non_null(strstr(err.text, "vram1 ledger"));
    json_decref(json);
    plan_free(&plan);
}

/* A plan that does not use it says nothing of the second device, and need not. */
static void one_device_needs_no_word_of_another(void **state)
{
    (void)state;
    struct plan plan, one;
    struct helm_err err = {0};
    read_plan(&plan);
    for (uint32_t u = 0; u < unit_count(plan.layers); u++)
        if (plan.unit[u].home[0] == plan_home_named("gpu1")) plan.unit[u].home[0] = PLAN_HOME_GPU;
    plan.head = plan.embed;
    plan_drop_placements(&plan);
    json_t *json = plan_to_json(&plan);
    assert_null(json_object_get(json, "vram1"));
    assert_null(json_object_get(json_object_get(json, "activations"), "gpu1"));
    assert_non_null(json_object_get(json_object_get(json, "activations"), "gpu"));
    assert_int_equal(plan_from_json(json, &one, &err), 0);
    assert_true(one.memory[plan_memory_named("vram1")].limit == UINT64_MAX);
    assert_int_equal(plan_devices(&one), 1);
    json_decref(json);
    plan_free(&one);
    plan_free(&plan);
}

static void queries_go_by_processor_and_memory(void **state)
{
    (void)state;
    const enum plan_processor cpu = plan_processor_named("cpu"), gpu = plan_processor_named("gpu"),
                              gpu1 = plan_processor_named("gpu1");
    const enum plan_memory vram = plan_processor_memory(gpu), vram1 = plan_processor_memory(gpu1);
    struct plan plan;
    uint32_t kv_layer;
    read_plan(&plan);
    assert_false(plan_processor_has_memory(cpu));
    assert_true(plan_processor_has_memory(gpu) && plan_processor_has_memory(gpu1) && vram != vram1);
    assert_true(plan_memory_processor(vram1) == gpu1 && plan_memory_processor(PLAN_HOST) == cpu);
    assert_true(plan_device_index(gpu) == 0 && plan_device_index(gpu1) == 1);
    assert_int_equal(plan_devices(&plan), 2);
    assert_int_equal(plan_layers_of(&plan, cpu), 2);
    assert_int_equal(plan_layers_of(&plan, gpu), 3);
    assert_int_equal(plan_layers_of(&plan, gpu1), 3);
    assert_int_equal(plan_device_layers(&plan), 6);
    assert_int_equal(plan_session_layer(&plan, gpu), 0);
    assert_int_equal(plan_session_layer(&plan, gpu1), 3);
    assert_int_equal(plan_kv_layers(&plan, vram1), 3);
    assert_int_equal(plan_kv_pages(&plan, vram1), 9);
    assert_true(plan_kv_of(&plan, 6, &kv_layer) == gpu && kv_layer == 2);
    assert_true(plan_kv_of(&plan, 4, &kv_layer) == gpu1 && kv_layer == 1);
    assert_true(plan_kv_of(&plan, 7, &kv_layer) == cpu && kv_layer == 1);
    assert_true(plan_uses(&plan, cpu) && plan_uses(&plan, gpu) && plan_uses(&plan, gpu1));
    assert_true(plan_device_computes(&plan) && !plan_borrows_kv(&plan) && !plan_streams(&plan, gpu1));
    plan.unit[1].home[0] = PLAN_HOME_MIXED; /* one device's experts are no part of the other's units */
    assert_true(plan_is_helped(&plan, PLAN_GPU0) && !plan_is_helped(&plan, gpu1) &&
                !plan_is_helped(&plan, PLAN_CPU0));
    plan.unit[1].home[0] = PLAN_HOME_SHARED;
    assert_true(plan_is_helped(&plan, PLAN_GPU0) && !plan_is_helped(&plan, gpu1));
    assert_int_equal(placements_in(&plan, vram).count, 1);
    assert_int_equal(placements_in(&plan, vram1).count, 2);
    assert_int_equal(placements_in(&plan, vram1).region_bytes, 512);
    plan.invariant = true;
    assert_int_equal(plan_list_count(&plan), 2); /* of short prompts, where some device computes */
    plan_free(&plan);
}

/* Each pair of processors and direction has its own lane, and tickets count in it. */
static void hand_overs_have_lanes_of_their_own(void **state)
{
    (void)state;
    static const char *const way[] = {"cpu", "gpu", "gpu1", "gpu", "cpu", "gpu1"};
    struct plan plan;
    struct plan_span *spans;
    struct helm_err err = {0};
    uint32_t count;
    bool seen[PLAN_LINKS] = {false};
    read_plan(&plan);
    assert_int_equal(plan_spans(&plan, 0, &spans, &count, &err), 0);
    assert_int_equal(count, 6);
    for (uint32_t i = 0; i < count; i++) {
        assert_string_equal(plan_processor_name(spans[i].processor), way[i]);
        if (i == 0) continue;
        const struct plan_link_row *link = &plan_link_rows[spans[i].lane_in];
        assert_true(link->from == spans[i - 1].processor && link->to == spans[i].processor);
        assert_true(spans[i].ticket_in == 1 && spans[i].last_in && !seen[spans[i].lane_in]);
        assert_true(spans[i - 1].ticket_out == 1 && spans[i - 1].lane_out == spans[i].lane_in);
        seen[spans[i].lane_in] = true;
        assert_true(spans[i].lane_in < plan_lanes(&plan));
    }
    free(spans);
    plan_free(&plan);
    /* no processor, one, and pairs: lanes up to the last link between them */
    assert_true(plan_lanes_between(0) == 0 && plan_lanes_between(4) == 0);
    assert_true(plan_lanes_between(3) == 2 && plan_lanes_between(5) == 4 && plan_lanes_between(6) == 6);
}

/* Members of the second device stand under its name, those of the first beside it. */
static void each_device_has_its_own_room(void **state)
{
    (void)state;
    struct plan plan;
    struct helm_err err = {0};
    const enum plan_processor gpu1 = plan_processor_named("gpu1");
    json_t *json = json_of(text), *said = json_of("{'gpu1':{'vram_page_count':8,'ring_bytes':4096}}"),
           *stages = json_of("[{'layers':[0,7],'home':'gpu1','bytes':0}]");
    json_object_set(json, "stages", stages);
    json_object_set(json, "devices", said);
    json_object_del(json, "placements");
    if (plan_from_json(json, &plan, &err)) fail_msg("%s", err.text);
    assert_true(plan.device[gpu1].vram_page_count == 8 && plan.device[gpu1].ring_bytes == 4096);
    assert_true(plan.device[plan_first_device()].vram_page_count == 0 && plan_kv_places(&plan) == 8);
    assert_true(plan_kv_tiered(&plan) && plan_kv_pages(&plan, plan_processor_memory(gpu1)) == 8);
    /* its queries go to the CPU, and the answers back, by that device's links */
    assert_int_equal(plan_lanes_of(&plan, ARENA_LANE_KV), plan_link_of(gpu1, PLAN_CPU0) + 1);
    assert_int_equal(plan_lanes_of(&plan, ARENA_LANE_STEP), plan_lanes(&plan));
    assert_int_equal(plan_lanes_of(&plan, ARENA_LANE_EXPERTS), 0);
    json_t *again = plan_to_json(&plan);
    assert_true(json_equal(json_object_get(again, "devices"), said));
    json_decref(again);
    plan_free(&plan);
    static const char *const wrong[] = {"gpu", "cpu", "gpu2"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        json_t *other = json_pack("{s:{}}", wrong[i]);
        json_object_set(json, "devices", other);
        assert_int_equal(plan_from_json(json, &plan, &err), HELM_E_FORMAT);
        assert_non_null(strstr(err.text, "which is no device after the first"));
        json_decref(other);
    }
    json_decref(stages);
    json_decref(said);
    json_decref(json);
}

static void what_two_devices_cannot_do_is_refused(void **state)
{
    (void)state;
    static const struct {
        const char *key, *value;
        int rc;
        const char *words;
    } cases[] = {
        {"vram_page_count", "[8]", HELM_E_UNSUPPORTED, "but the plan uses 2 devices: two tiers"},
        {"stages",
         "[{'decode':[{'layers':[0,6],'home':'gpu1','bytes':0},{'layers':[7,7],'home':'cpu','bytes':0}],"
         "'prefill':[{'layers':[0,6],'home':'gpu','bytes':0},{'layers':[7,7],'home':'cpu','bytes':0}]}]",
         HELM_E_FORMAT, "layer 0 is at home on 'gpu', in decode on 'gpu1': weights do not move"},
        {"head", "['gpu2']", HELM_E_FORMAT, "'head' is 'gpu2', none of cpu, gpu, gpu1"},
        {"vram1", "[{'limit':1,'lines':[{'what':'w','bytes':2}],'total':2}]", HELM_E_CAPACITY,
         "vram1 ledger: 2 bytes"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct plan plan;
        struct helm_err err = {0};
        json_t *json = json_of(text);
        json_t *value = json_of(cases[i].value);
        json_object_set(json, cases[i].key, json_array_get(value, 0));
        json_decref(value);
        if (strcmp(cases[i].key, "stages") == 0)
            json_object_set_new(json, "prefill_from_tokens", json_integer(32));
        assert_int_equal(plan_from_json(json, &plan, &err), cases[i].rc);
        if (!strstr(err.text, cases[i].words)) fail_msg("%s", err.text);
        json_decref(json);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(json_has_a_ledger_for_each_memory),
        cmocka_unit_test(one_device_needs_no_word_of_another),
        cmocka_unit_test(queries_go_by_processor_and_memory),
        cmocka_unit_test(hand_overs_have_lanes_of_their_own),
        cmocka_unit_test(each_device_has_its_own_room),
        cmocka_unit_test(what_two_devices_cannot_do_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
