/* Unit tests of common/plan/plan.c. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/json.h"
#include "common/plan/engine_limits.h"
#include "common/plan/placement.h"
#include "common/plan/stages.h"
#include "tests/written_plans.h"

static const char good_text[] =
    "{'layers':28,'context_tokens':4096,'step_tokens':512,'slots':8,'page_tokens':32,'page_count':1024,"
    "'kv_dtype':'bf16','strategies':[{'name':'all-cpu'}],"
    "'ring_bytes':64,'stages':[{'layers':[0,9],'home':'gpu','bytes':100,'ms':1.5},{'layers':[10,10],'home':'"
    "stream','bytes':"
    "0},"
    "{'layers':[11,27],'home':'cpu','bytes':5000000000}],"
    "'host':{'limit':6000000000,'lines':[{'what':'weights','bytes':5000000000},{'what':'KV "
    "pages','bytes':7}],"
    "'total':5000000007},"
    "'vram':{'limit':null,'lines':[],'total':0}}";

/* JSON with ' for ". */
static json_t *json_of(const char *text)
{
    char copy[4096];
    snprintf(copy, sizeof copy, "%s", text);
    for (char *at = copy; *at; at++) *at = *at == '\'' ? '"' : *at;
    json_t *json;
    struct helm_err err = {0};
    if (json_parse_bounded("test", copy, strlen(copy), sizeof copy, &json, &err)) fail_msg("%s", err.text);
    return json;
}

/* Replaces the member at "a/0/b" by `text`, or removes it when that is NULL. */
static void edit(json_t *json, const char *path, const char *text)
{
    char copy[128], *save = NULL;
    snprintf(copy, sizeof copy, "%s", path);
    char *key = strtok_r(copy, "/", &save), *next;
    for (; (next = strtok_r(NULL, "/", &save)); key = next)
        json =
            json_is_array(json) ? json_array_get(json, strtoul(key, NULL, 10)) : json_object_get(json, key);
    int rc;
    if (json_is_array(json)) {
        size_t index = strtoul(key, NULL, 10);
        rc = text ? json_array_set_new(json, index, json_of(text)) : json_array_remove(json, index);
    } else {
        rc = text ? json_object_set_new(json, key, json_of(text)) : json_object_del(json, key);
    }
    assert_int_equal(rc, 0);
}

static void a_plan_survives_the_round_trip(void **state)
{
    (void)state;
    json_t *json = json_of(good_text);
    struct plan plan, again;
    struct plan_stage stage;
    struct helm_err err = {0};
    json_object_set_new(json, "draft_tokens", json_integer(ENGINE_DRAFTS_MAX + 1));
    assert_int_equal(plan_from_json(json, &plan, &err), HELM_E_LIMIT);
    assert_non_null(strstr(err.text, "'draft_tokens' is 16"));
    json_object_set_new(json, "draft_tokens", json_integer(ENGINE_DRAFTS_MAX));
    if (plan_from_json(json, &plan, &err)) fail_msg("%s", err.text);
    assert_int_equal(plan.draft_tokens, ENGINE_DRAFTS_MAX);
    assert_int_equal(engine_samples(plan.slots, plan.draft_tokens), ENGINE_FEW_TOKENS);
    assert_int_equal(engine_samples(plan.slots, 0), plan.slots);
    assert_int_equal(plan.layers, 28);
    assert_int_equal(plan.slots, 8);
    assert_int_equal(plan.page_count, 1024);
    assert_string_equal(plan.kv_dtype, "bf16");
    assert_int_equal(plan_stage_count(&plan, 0), 3);
    assert_int_equal(plan_stage_at(&plan, 0, unit_of(10, UNIT_ATTENTION), &stage), unit_count(11));
    assert_int_equal(stage.first, 10);
    assert_int_equal(stage.last, 10);
    assert_int_equal(stage.home, PLAN_HOME_STREAM);
    assert_int_equal(plan_stage_at(&plan, 0, unit_count(11), &stage), unit_count(28));
    assert_int_equal(stage.bytes, 5000000000);
    assert_int_equal(plan.memory[PLAN_HOST].line_count, 2);
    assert_string_equal(plan.memory[PLAN_HOST].line[1].what, "KV pages");
    assert_int_equal(plan.memory[PLAN_HOST].total, 5000000007);
    assert_true(plan.memory[PLAN_VRAM0].limit == UINT64_MAX);

    json_t *printed = plan_to_json(&plan);
    assert_non_null(printed);
    assert_int_equal(plan_from_json(printed, &again, &err), 0);
    assert_int_equal(again.draft_tokens, plan.draft_tokens);
    json_t *reprinted = plan_to_json(&again);
    assert_true(json_equal(printed, reprinted));
    assert_true(json_equal(json_object_get(printed, "host"), json_object_get(json, "host")));
    assert_true(json_equal(json_object_get(printed, "vram"), json_object_get(json, "vram")));
    assert_memory_equal(plan.unit, again.unit, (unit_count(28) + 2) * sizeof *plan.unit);
    json_decref(reprinted);
    json_decref(printed);
    json_decref(json);
    plan_free(&again);
    plan_free(&plan);
    plan_free(&plan);
}

/* Halves of one home are the whole layers that they add up to. */
static void halves_add_up_to_layers(void **state)
{
    (void)state;
    json_t *json = json_of(good_text), *halves = json_of(good_text);
    struct plan plan, again;
    struct helm_err err = {0};
    edit(halves, "stages/1/ops", "'attention'");
    json_array_insert_new(json_object_get(halves, "stages"), 2,
                          json_of("{'layers':[10,10],'ops':'mlp','home':'stream','bytes':0}"));
    if (plan_from_json(json, &plan, &err) || plan_from_json(halves, &again, &err)) fail_msg("%s", err.text);
    json_t *written = plan_to_json(&plan), *rewritten = plan_to_json(&again);
    assert_true(json_equal(written, rewritten));
    json_decref(written);
    json_decref(rewritten);
    plan_free(&plan);
    plan_free(&again);
    json_decref(json);
    json_decref(halves);
}

/* Which tensor lies where: as it is written, and copied with the plan. */
static void placements_are_read_and_written(void **state)
{
    (void)state;
    static const struct {
        const char *entry, *text;
    } cases[] = {
        {"['model.layers.3.mlp.up_proj.weight','bf16','host',64]", "placement 1: not [tensor, format, "},
        {"['model.layers.3.mlp.up_proj.weight','bf16','host',64,8,9]", "placement 1: not [tensor, format, "},
        {"['model.layers.3.mlp.up_proj.weight','bf16','host',64,0]", "placement 1: not [tensor, format, "},
        {"['model.layers.3.mlp.up_proj.weight','bf16','host',-64,8]", "placement 1: not [tensor, format, "},
        {"['model.layers.3.mlp.up_proj.weight','bf16','host','64',8]", "placement 1: not [tensor, format, "},
        {"{}", "placement 1: not [tensor, format, "},
        {"['model.layers.28.mlp.up_proj.weight','bf16','host',64,8]", "is no tensor of a model of 28 layers"},
        {"['the.head','bf16','host',64,8]", "'the.head' is no tensor of a model of 28 layers"},
        {"['lm_head.weight','zip','host',64,8]", "lm_head.weight: 'zip' is no format of weights"},
        {"['lm_head.weight','bf16','disk',64,8]", "lm_head.weight: 'disk' is no memory"},
    };
    json_t *json = json_of(good_text);
    struct plan plan, again;
    struct helm_err err = {0};
    edit(json, "placements",
         "[['model.embed_tokens.weight','bf16','host',0,8],['lm_head.weight','bf16-packed','vram',256,512]]");
    if (plan_from_json(json, &plan, &err)) fail_msg("%s", err.text);
    assert_int_equal(plan.placement_count, 2);
    assert_int_equal(plan.placement[0].role, TENSOR_EMBED);
    assert_int_equal(plan.placement[1].memory, PLAN_VRAM0);
    assert_int_equal(plan.placement[1].format, FORMAT_BF16_PACKED);
    assert_int_equal(placements_in(&plan, PLAN_VRAM0).region_bytes, 768);
    assert_int_equal(plan_copy(&plan, &again, &err), 0);
    json_t *written = plan_to_json(&again);
    assert_true(json_equal(json_object_get(written, "placements"), json_object_get(json, "placements")));
    json_decref(written);
    plan_free(&again);
    plan_formats_clear(&plan); /* they go with what they were made of */
    assert_null(plan.placement);
    plan_free(&plan);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        edit(json, "placements/1", cases[i].entry);
        assert_int_equal(plan_from_json(json, &plan, &err), HELM_E_FORMAT);
        if (!strstr(err.text, cases[i].text)) fail_msg("case %zu: %s", i, err.text);
    }
    /* the longest list fits a message to a worker (common/worker/control.c: 4 MiB) */
    json_t *list = json_array();
    for (int i = 0; i < (int)PLAN_PLACEMENTS_MAX; i++)
        json_array_append_new(list, json_pack("[s, s, s, I, I]", "model.layers.27.self_attn.q_proj.weight",
                                              "bf16-packed", "host", (json_int_t)PLAN_BYTES_MAX,
                                              (json_int_t)PLAN_BYTES_MAX));
    json_object_set(json, "placements", list);
    assert_int_equal(plan_from_json(json, &plan, &err), 0);
    assert_int_equal(plan.placement_count, PLAN_PLACEMENTS_MAX);
    char *text = json_dumps(json, JSON_COMPACT);
    assert_in_range(strlen(text), 1u << 20, 2u << 20);
    free(text);
    plan_free(&plan);
    json_array_append_new(list, json_array());
    assert_int_equal(plan_from_json(json, &plan, &err), HELM_E_FORMAT);
    assert_non_null(strstr(err.text, "no array of 1 to 16384 entries"));
    json_decref(list);
    edit(json, "placements", "[]");
    assert_int_equal(plan_from_json(json, &plan, &err), HELM_E_FORMAT);
    edit(json, "placements", "null");
    assert_int_equal(plan_from_json(json, &plan, &err), 0);
    assert_null(plan.placement);
    plan_free(&plan);
    json_decref(json);
}

/* Where the ends are: as said, or with the stages beside them; nothing but cpu and gpu. */
static void the_ends_have_homes(void **state)
{
    (void)state;
    struct plan plan;
    struct helm_err err = {0};
    json_t *json = json_of(good_text);
    assert_int_equal(plan_from_json(json, &plan, &err), 0);
    assert_int_equal(plan.embed, PLAN_HOME_GPU);
    assert_int_equal(plan.head, PLAN_HOME_CPU);
    plan_free(&plan);
    edit(json, "stages/2/home", "'stream'");
    assert_int_equal(plan_from_json(json, &plan, &err), 0);
    assert_int_equal(plan.head, PLAN_HOME_GPU); /* the processor that computes `stream` */
    plan_free(&plan);
    edit(json, "embed", "'cpu'");
    edit(json, "head", "'cpu'");
    assert_int_equal(plan_from_json(json, &plan, &err), 0);
    assert_int_equal(plan.embed, PLAN_HOME_CPU);
    assert_int_equal(plan.head, PLAN_HOME_CPU);
    json_t *printed = plan_to_json(&plan);
    assert_string_equal(json_string_value(json_object_get(printed, "embed")), "cpu");
    plan_free(&plan);
    assert_int_equal(plan_from_json(printed, &plan, &err), 0);
    assert_int_equal(plan.head, PLAN_HOME_CPU);
    plan_free(&plan);
    edit(json, "head", "'stream'");
    assert_int_equal(plan_from_json(json, &plan, &err), HELM_E_FORMAT);
    assert_non_null(strstr(err.text, "'head' is 'stream', none of cpu, gpu, gpu1"));
    json_decref(printed);
    json_decref(json);
}

/* A span: its worker, how many units from which one on; E and H where it has an end. */
static void spans_text(const struct plan *plan, uint32_t phase, char *text)
{
    struct plan_span *spans;
    uint32_t count;
    struct helm_err err = {0};
    assert_int_equal(plan_spans(plan, phase, &spans, &count, &err), 0);
    for (uint32_t i = 0; i < count; i++)
        text += sprintf(text, "%s%s%u%s@%u in %u%s out %u; ", spans[i].embed ? "E" : "",
                        spans[i].processor == PLAN_CPU0 ? "c" : "g", spans[i].unit_count,
                        spans[i].head ? "H" : "", spans[i].first_unit, spans[i].ticket_in,
                        spans[i].last_in ? "!" : "", spans[i].ticket_out);
    free(spans);
}

static void spans_follow_the_plan(void **state)
{
    (void)state;
    static const struct {
        const char *homes; /* embedding, six layers, head */
        const char *spans;
    } cases[] = {
        {"c cccccc c", "Ec12H@0 in 0 out 0; "},
        {"g ggssgg g", "Eg12H@0 in 0 out 0; "},
        {"c ccgggg g", "Ec4@0 in 0 out 1; g8H@4 in 1! out 0; "},
        {"g gccccc g", "Eg2@0 in 0 out 1; c10@2 in 1! out 1; g0H@0 in 1! out 0; "},
        {"c ggccgc g",
         "Ec0@0 in 0 out 1; g4@0 in 1 out 1; c4@4 in 1 out 2; g2@8 in 2 out 2; c2@10 in 2! out 3; "
         "g0H@0 in 3! out 0; "},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *homes = cases[i].homes;
        struct plan_unit unit[WRITTEN_UNITS(6)];
        struct plan plan = {.layers = 6,
                            .unit = units_all(unit, 6, PLAN_HOME_CPU),
                            .embed = plan_home_processor(home_of_letter(homes[0])),
                            .head = plan_home_processor(home_of_letter(homes[9]))};
        char text[512] = "";
        for (uint32_t u = 0; u < 12; u++) unit[u].home[0] = home_of_letter(homes[2 + unit_layer(u)]);
        spans_text(&plan, 0, text);
        assert_string_equal(text, cases[i].spans);
        assert_int_equal(plan_layers_of(&plan, PLAN_CPU0) + plan_layers_of(&plan, PLAN_GPU0), 6);
        assert_true(plan_uses(&plan, PLAN_CPU0)); /* of streamed weights too: it loads them */
        assert_int_equal(plan_uses(&plan, PLAN_GPU0), i != 0);
    }
}

static void refuses(json_t *json, int code, const char *text)
{
    struct plan plan;
    struct helm_err err = {0};
    assert_int_equal(plan_from_json(json, &plan, &err), code);
    if (!strstr(err.text, text)) fail_msg("'%s' does not say '%s'", err.text, text);
}

/* Formats of the plan below: units 3 and 6 are streamed, 4, 5 and 7 in VRAM; the head is, too. */
static void check_formats(json_t *json)
{
    struct plan plan, again;
    struct helm_err err = {0};
    json_t *decode = json_object_get(json_object_get(json, "stages"), "decode");
    if (plan_from_json(json, &plan, &err)) fail_msg("%s", err.text);
    for (uint32_t u = 0; u < 8; u++) assert_int_equal(plan_unit_format(&plan, u), PLAN_AS_STORED);
    assert_int_equal(plan_head_format(&plan), PLAN_AS_STORED);
    plan_free(&plan);
    /* stages: layer 0, attention 1, MLP 1, layer 2, attention 3, MLP 3 */
    edit(json, "stages/decode/2/format", "'bf16-packed'");
    edit(json, "stages/decode/4/format", "'bf16-packed'");
    if (plan_from_json(json, &plan, &err)) fail_msg("%s", err.text);
    for (uint32_t u = 0; u < 8; u++)
        assert_int_equal(plan_unit_format(&plan, u) == FORMAT_BF16_PACKED, u == 3 || u == 6);
    assert_int_equal(plan_units_in(&plan, PLAN_HOST, FORMAT_BF16_PACKED), 2);
    assert_int_equal(plan_units_in(&plan, PLAN_VRAM0, FORMAT_BF16_PACKED), 0);
    plan_free(&plan);
    edit(json, "stages/decode/3/format", "'bf16-packed'");
    edit(json, "head_format", "'bf16-packed'");
    if (plan_from_json(json, &plan, &err)) fail_msg("%s", err.text);
    assert_int_equal(plan_units_in(&plan, PLAN_VRAM0, FORMAT_BF16_PACKED), 2);
    assert_int_equal(plan_head_format(&plan), FORMAT_BF16_PACKED);
    json_t *written = plan_to_json(&plan);
    if (plan_from_json(written, &again, &err)) fail_msg("%s", err.text);
    json_decref(written);
    assert_memory_equal(again.unit, plan.unit, 10 * sizeof *plan.unit);
    plan_free(&again);
    assert_int_equal(plan_copy(&plan, &again, &err), 0);
    assert_memory_equal(again.unit, plan.unit, 10 * sizeof *plan.unit);
    plan_free(&again);
    /* a list is cut where the format changes, and is whole again where it does not */
    const uint32_t stages = plan_stage_count(&plan, 0);
    plan_set_unit_format(&plan, 4, PLAN_AS_STORED);
    assert_int_equal(plan_stage_count(&plan, 0), stages + 1);
    plan_set_unit_format(&plan, 4, FORMAT_BF16_PACKED);
    assert_int_equal(plan_stage_count(&plan, 0), stages);
    plan_free(&plan);
    json_object_set_new(json, "head", json_string("cpu"));
    refuses(json, HELM_E_UNSUPPORTED, "'head_format' is 'bf16-packed', but the head is on 'cpu'");
    json_object_set_new(json, "head", json_string("gpu"));
    edit(json, "embed_format", "'bf16-packed'");
    refuses(json, HELM_E_UNSUPPORTED, "'embed_format' is 'bf16-packed'");
    edit(json, "embed_format", "'q1'");
    refuses(json, HELM_E_FORMAT, "embed_format 'q1' is no format of weights");
    json_object_del(json, "embed_format");
    json_object_del(json, "head_format");
    /* a mixture that all weights are converted to */
    edit(json, "weights", "'q4_k_m'");
    if (plan_from_json(json, &plan, &err)) fail_msg("%s", err.text);
    assert_string_equal(mixture_name(plan.weights), "q4_k_m");
    written = plan_to_json(&plan);
    assert_string_equal(json_string_value(json_object_get(written, "weights")), "q4_k_m");
    json_decref(written);
    plan_free(&plan);
    static const char *const none[] = {"'bf16'", "'q9'"};
    for (int i = 0; i < 2; i++) {
        edit(json, "weights", none[i]);
        refuses(json, HELM_E_FORMAT, "is no mixture of blocks");
    }
    json_object_del(json, "weights");
    /* what blocks are multiplied with: exact, where it does not say */
    if (plan_from_json(json, &plan, &err)) fail_msg("%s", err.text);
    assert_true(plan.inputs[PLAN_CPU0] == LINEAR_EXACT && plan.inputs[PLAN_GPU0] == LINEAR_EXACT);
    plan_free(&plan);
    edit(json, "activations", "{'cpu':'int8'}");
    if (plan_from_json(json, &plan, &err)) fail_msg("%s", err.text);
    assert_true(plan.inputs[PLAN_CPU0] == LINEAR_INT8 && plan.inputs[PLAN_GPU0] == LINEAR_EXACT);
    written = plan_to_json(&plan);
    if (plan_from_json(written, &again, &err)) fail_msg("%s", err.text);
    assert_memory_equal(again.inputs, plan.inputs, sizeof plan.inputs);
    json_decref(written);
    plan_free(&again);
    plan_free(&plan);
    edit(json, "activations", "{'gpu':'int4'}");
    refuses(json, HELM_E_FORMAT, "activations 'int4' are neither exact nor int8");
    edit(json, "activations", "'int8'");
    refuses(json, HELM_E_FORMAT, "'activations' is no object");
    json_object_del(json, "activations");
    edit(json, "stages/decode/1/format", "'zip'");
    refuses(json, HELM_E_FORMAT, "stage 1: format 'zip' is no format of weights");
    edit(json, "stages/decode/1/format", "7");
    refuses(json, HELM_E_FORMAT, "'format'");
    size_t i;
    json_t *stage;
    json_array_foreach(decode, i, stage) json_object_del(stage, "format");
    edit(json, "stages/prefill/0/format", "'bf16-packed'");
    refuses(json, HELM_E_FORMAT, "prefill: stage 0: weights have the \"format\" of the decode list");
    edit(json, "stages/prefill/0/format", NULL);
    static const char *const gone[] = {"pack", "pack_cpu", "pack_gpu", "pack_head", "pack_gpu_bytes"};
    for (size_t g = 0; g < sizeof gone / sizeof *gone; g++) {
        json_object_set_new(json, gone[g], json_true());
        refuses(json, HELM_E_UNSUPPORTED, gone[g]);
        refuses(json, HELM_E_UNSUPPORTED, "write \"format\": \"bf16-packed\" into the stages");
        json_object_del(json, gone[g]);
    }
}

static void phases_and_half_layers(void **state)
{
    (void)state;
    /* 4 layers: attention and MLP of each, in decode, for short and for long prompts */
    static const char *const homes[] = {"cc cs gg sg", "cs cc gg sg", "ss cs gg sg"};
    struct plan_unit unit[WRITTEN_UNITS(4)];
    struct plan_stage stage;
    struct helm_err err = {0};
    char text[512] = "";
    uint32_t kv_layer;
    struct plan plan = {.layers = 4,
                        .unit = units_all(unit, 4, PLAN_HOME_CPU),
                        .prefill_from = {20, 300},
                        .prefill_count = 2,
                        .device[PLAN_GPU0].ring_bytes = 1,
                        .embed = PLAN_CPU0,
                        .head = PLAN_GPU0};
    for (int p = 0; p < 3; p++)
        for (int u = 0; u < 8; u++)
            unit[u].home[p] = home_of_letter(homes[p][unit_layer((uint32_t)u) * 3 + (uint32_t)u % 2]);
    assert_int_equal(plan_stage_count(&plan, 0), 6);
    assert_int_equal(plan_stage_at(&plan, 0, 2, &stage), 3);
    assert_int_equal(stage.ops, PLAN_OPS_ATTENTION);
    assert_int_equal(plan_stage_at(&plan, 0, 3, &stage), 4);
    assert_int_equal(stage.ops, PLAN_OPS_MLP);
    assert_int_equal(plan_check(&plan, &err), 0);
    assert_int_equal(plan_phase_for(&plan, 1), 0);
    assert_int_equal(plan_phase_for(&plan, 19), 0);
    assert_int_equal(plan_phase_for(&plan, 20), 1);
    assert_int_equal(plan_phase_for(&plan, 299), 1);
    assert_int_equal(plan_phase_for(&plan, 4000), 2);
    assert_int_equal(plan.unit[3].home[0], PLAN_HOME_STREAM);
    assert_int_equal(plan.unit[0].home[2], PLAN_HOME_STREAM);
    assert_int_equal(plan_layers_of(&plan, PLAN_CPU0), 2);
    assert_int_equal(plan_kv_of(&plan, 1, &kv_layer), PLAN_CPU0);
    assert_int_equal(kv_layer, 1);
    assert_int_equal(plan_kv_of(&plan, 3, &kv_layer), PLAN_GPU0);
    assert_int_equal(kv_layer, 1);
    assert_true(plan_borrows_kv(&plan));
    spans_text(&plan, 0, text);
    assert_string_equal(text, "Ec3@0 in 0 out 1; g5H@3 in 1! out 0; ");
    spans_text(&plan, 1, text);
    assert_string_equal(text, "Ec1@0 in 0 out 1; g1@1 in 1 out 1; c2@2 in 1! out 2; g4H@4 in 2! out 0; ");
    spans_text(&plan, 2, text);
    assert_string_equal(text, "Ec0@0 in 0 out 1; g2@0 in 1 out 1; c1@2 in 1! out 2; g5H@3 in 2! out 0; ");

    struct plan copy, again;
    assert_int_equal(plan_copy(&plan, &copy, &err), 0);
    memcpy(copy.kv_dtype, "f16", 4);
    copy.context_tokens = copy.step_tokens = copy.slots = copy.page_tokens = 1;
    json_t *json = plan_to_json(&copy);
    if (plan_from_json(json, &again, &err)) fail_msg("%s", err.text);
    assert_int_equal(again.prefill_count, 2);
    assert_int_equal(again.prefill_from[1], 300);
    assert_memory_equal(again.unit, unit, sizeof unit);
    plan_free(&again);
    check_formats(json);
    json_object_set_new(json, "prefill_short_from_tokens", json_null()); /* that list is not used */
    if (plan_from_json(json, &again, &err)) fail_msg("%s", err.text);
    assert_int_equal(again.prefill_count, 1);
    assert_int_equal(again.prefill_from[0], 300);
    plan_free(&again);
    json_object_set_new(json, "ring_bytes", json_integer(0));
    assert_int_equal(plan_from_json(json, &again, &err), HELM_E_FORMAT);
    assert_non_null(strstr(err.text, "'ring_bytes' is 0"));
    json_decref(json);

    plan.prefill_from[1] = 20;
    assert_int_equal(plan_check(&plan, &err), HELM_E_LIMIT);
    assert_non_null(strstr(err.text, "prefill list 2: begins at 20 tokens"));
    plan.prefill_from[1] = 300;
    unit[0].home[2] = PLAN_HOME_GPU;
    assert_int_equal(plan_check(&plan, &err), HELM_E_FORMAT);
    assert_non_null(strstr(err.text, "weights do not move"));
    for (int u = 0; u < 8; u++) unit[u].home[2] = home_of_letter("cscsggcg"[u]);
    assert_int_equal(plan_check(&plan, &err), HELM_E_FORMAT);
    assert_non_null(strstr(err.text, "the attention of layer 3 is on 'cpu', but its state is in VRAM"));
    plan_free(&copy);
}

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

/* Few positions the GPU reads itself, of more a part; layers with a short window it has alone, and the others are numbered. */
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
        cmocka_unit_test(a_plan_survives_the_round_trip),
        cmocka_unit_test(halves_add_up_to_layers),
        cmocka_unit_test(placements_are_read_and_written),
        cmocka_unit_test(the_ends_have_homes),
        cmocka_unit_test(spans_follow_the_plan),
        cmocka_unit_test(phases_and_half_layers),
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
