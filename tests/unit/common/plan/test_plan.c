/* Unit tests of common/plan/plan.c: plans as JSON, their lists, spans, placements and ends. */
#include "tests/unit/common/plan/plan_texts.h"

#include "common/plan/engine_limits.h"
#include "common/plan/placement.h"
#include "common/plan/stages.h"
#include "tests/written_plans.h"

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
        {"['lm_head.weight','bf16','tape',64,8]", "lm_head.weight: 'tape' is no memory"},
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
    /* inputs that blocks are multiplied with: exact, where it does not say */
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_plan_survives_the_round_trip),  cmocka_unit_test(halves_add_up_to_layers),
        cmocka_unit_test(placements_are_read_and_written), cmocka_unit_test(the_ends_have_homes),
        cmocka_unit_test(spans_follow_the_plan),           cmocka_unit_test(phases_and_half_layers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
