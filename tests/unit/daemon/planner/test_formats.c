/* Unit tests of daemon/planner/formats.c: which half layers lie packed by which lists and wishes, and what a
 * written plan may say. */
#include <string.h>

#include "daemon/planner/formats.h"
#include "tests/unit/daemon/planner/packed_case.h"
#include "tests/written_plans.h"

#define LAYERS 4
#define SMALL  (2 * LAYERS)

struct setting {
    struct bench b;
    struct ledger_case c;
    struct plan plan;
    struct plan_unit unit[SMALL + 2];
};

/* 4 layers: attention and MLP of each, in decode, for short and for long prompts. */
static struct setting *open_setting(void)
{
    static const char *const homes[] = {"cccsggsg", "csccggsg", "sscsggsg"};
    static const struct made_up_shape shape = {LAYERS, 512, 1024, 8, 2, 64, 1024, false};
    struct setting *s = calloc(1, sizeof *s);
    assert_non_null(s);
    open_8b(&s->b, 8 * GIB);
    made_up_close(&s->b.made);
    assert_true(made_up_open(&s->b.made, &shape));
    s->c = (struct ledger_case){&s->b.made.model, &s->b.r.wish, &s->b.r.machine, &s->b.made.analysed};
    s->plan = (struct plan){.layers = LAYERS,
                            .embed = PLAN_CPU0,
                            .head = PLAN_GPU0,
                            .device[PLAN_GPU0].ring_bytes = 1};
    s->plan.unit = units_of_letters(s->unit, LAYERS, homes[0], SMALL);
    for (uint32_t p = 1; p < 3; p++) add_letters(&s->plan, 20 * p, homes[p]);
    return s;
}

static void close_setting(struct setting *s)
{
    bench_close(&s->b);
    free(s);
}

/* `letters`: p where a unit lies packed. */
static void lie(const struct plan *plan, const char *letters)
{
    char got[SMALL + 1] = "";
    for (uint32_t u = 0; u < SMALL; u++) got[u] = plan_unit_format(plan, u) == FORMAT_BF16_PACKED ? 'p' : '-';
    assert_string_equal(got, letters);
}

/* Decode streams units 3 and 6, of which every list streams 6 alone; 0 to 3 are the CPU's somewhere. */
static void host_formats_follow_all_lists(void **state)
{
    (void)state;
    struct setting *s = open_setting();
    struct ledger_wish *wish = &s->b.r.wish;
    bool *packs = s->b.made.analysed.packs, *packs_cpu = s->b.made.analysed.packs_cpu;
    for (uint32_t u = 0; u < SMALL; u++) assert_true(packs[u] && packs_cpu[u]);
    wish->pack = wish->pack_cpu = false;
    formats_set_host(&s->c, &s->plan);
    lie(&s->plan, "--------");
    wish->pack = true;
    formats_set_host(&s->c, &s->plan);
    lie(&s->plan, "------p-");
    wish->pack_cpu = true;
    packs_cpu[3] = false; /* and 3 cannot be */
    formats_set_host(&s->c, &s->plan);
    lie(&s->plan, "ppp---p-");
    packs_cpu[3] = true;
    packs[6] = false;
    formats_set_host(&s->c, &s->plan);
    lie(&s->plan, "pppp----");
    packs[6] = true;
    wish->pack = false;
    formats_set_host(&s->c, &s->plan);
    lie(&s->plan, "pppp----");
    assert_true(formats_packed_on_cpu(&s->plan, 3) && !formats_packed_on_cpu(&s->plan, 6));
    close_setting(s);
}

/* Units 4, 5 and 7 are in VRAM, and the head: packed are the first that can be. */
static void vram_formats_are_the_first(void **state)
{
    (void)state;
    struct setting *s = open_setting();
    bool *packs = s->b.made.analysed.packs_vram;
    assert_int_equal(formats_packable(&s->c, &s->plan), 3);
    assert_true(formats_head_packable(&s->c, &s->plan));
    plan_set_unit_format(&s->plan, 3, FORMAT_BF16_PACKED); /* is of the host's */
    formats_set_vram(&s->c, 1, true, &s->plan);
    lie(&s->plan, "---pp---");
    assert_int_equal(plan_head_format(&s->plan), FORMAT_BF16_PACKED);
    packs[4] = false;
    assert_int_equal(formats_packable(&s->c, &s->plan), 2);
    formats_set_vram(&s->c, 1, false, &s->plan);
    lie(&s->plan, "---p-p--");
    formats_set_vram(&s->c, 3, false, &s->plan);
    lie(&s->plan, "---p-p-p");
    assert_int_equal(plan_head_format(&s->plan), PLAN_AS_STORED);
    s->plan.head = PLAN_CPU0;
    assert_false(formats_head_packable(&s->c, &s->plan));
    close_setting(s);
}

static void refused(struct setting *s, const char *text)
{
    struct helm_err err = {0};
    assert_int_equal(formats_check(&s->c, &s->plan, &err), HELM_E_UNSUPPORTED);
    if (!strstr(err.text, text)) fail_msg("'%s' does not say '%s'", err.text, text);
}

/* --weights: all that takes it and the head become blocks, the plan names the mixture, and nothing of
 * it is packed. */
static void all_weights_lie_as_asked(void **state)
{
    (void)state;
    struct setting *s = open_setting();
    struct model *model = &s->b.made.model;
    struct helm_err err = {0};
    const struct mixture *weights;
    assert_int_equal(formats_read("stored", &weights, &err), 0);
    assert_null(weights);
    const char *const wrong[] = {"bf16", "bf16-packed", "q4"};
    for (int i = 0; i < 3; i++) {
        assert_int_equal(formats_read(wrong[i], &weights, &err), HELM_E_USAGE);
        assert_non_null(strstr(err.text, "stored, q8_0"));
    }
    assert_int_equal(formats_read("q8_0", &weights, &err), 0);
    assert_string_equal(mixture_name(weights), "q8_0");
    uint64_t before = 0, after = 0;
    for (uint32_t i = 0; i < model->tensor_count; i++) {
        struct model_tensor *t = &model->tensors[i];
        if (t->role == TENSOR_DOWN && t->layer == 1) t->cols -= 1;
        before += t->bytes;
    }
    const uint64_t counted = model->weight_bytes;
    assert_int_equal(model_main_format(model), FORMAT_BF16);
    formats_lay(model, weights);
    assert_int_equal(model_main_format(model), FORMAT_Q8_0);
    for (uint32_t i = 0; i < model->tensor_count; i++) {
        const struct model_tensor *t = &model->tensors[i];
        const bool stays =
            t->rows == 1 || t->role == TENSOR_EMBED || (t->layer == 1 && t->role == TENSOR_DOWN);
        assert_int_equal(t->format, stays ? FORMAT_BF16 : FORMAT_Q8_0);
        if (!stays) assert_int_equal(t->bytes, t->rows * t->cols / 32 * 34);
        after += t->bytes;
    }
    assert_true(after < before);
    assert_int_equal(counted - model->weight_bytes, before - after);
    assert_int_equal(formats_name_weights(model, &s->plan, &err), 0);
    for (uint32_t u = 0; u < SMALL; u++) assert_int_equal(plan_unit_format(&s->plan, u), PLAN_AS_STORED);
    assert_ptr_equal(s->plan.weights, weights);
    assert_int_equal(formats_check(&s->c, &s->plan, &err), 0);
    plan_set_unit_format(&s->plan, 3, FORMAT_Q8_0);
    refused(s, "the MLP of layer 1 cannot lie as 'q8_0'");
    s->plan.weights = mixture_named("q4_k_m");
    assert_int_equal(formats_name_weights(model, &s->plan, &err), HELM_E_MISMATCH);
    assert_non_null(strstr(err.text, "'q4_k_m', --weights says 'q8_0'"));
    close_setting(s);
}

static void what_cannot_be_is_named(void **state)
{
    (void)state;
    struct setting *s = open_setting();
    struct helm_err err = {0};
    for (uint32_t u = 0; u < SMALL; u++) plan_set_unit_format(&s->plan, u, FORMAT_BF16_PACKED);
    plan_set_head_format(&s->plan, FORMAT_BF16_PACKED);
    assert_int_equal(formats_check(&s->c, &s->plan, &err), 0);
    s->b.made.analysed.packs[5] = false;
    refused(s, "the MLP of layer 2 cannot lie as 'bf16-packed'");
    s->b.made.analysed.packs[5] = true;
    s->b.made.analysed.packs_cpu[6] = false; /* the CPU never computes it */
    assert_int_equal(formats_check(&s->c, &s->plan, &err), 0);
    s->b.made.analysed.packs_cpu[2] = false;
    refused(s, "the CPU cannot compute the attention of layer 1 as 'bf16-packed'");
    s->b.made.analysed.packs_cpu[2] = true;
    plan_set_unit_format(&s->plan, 0, FORMAT_F32);
    refused(s, "the attention of layer 0 cannot lie as 'f32'");
    plan_set_unit_format(&s->plan, 0, PLAN_AS_STORED);
    s->b.made.analysed.packs_head = false;
    refused(s, "'head_format' is 'bf16-packed', which this head cannot have");
    s->b.made.analysed.packs_head = s->b.made.analysed.tied = true;
    assert_int_equal(formats_check(&s->c, &s->plan, &err), 0);
    s->plan.embed = PLAN_GPU0;
    refused(s, "but the head is the embedding, which is on 'gpu' as well");
    close_setting(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(host_formats_follow_all_lists),
        cmocka_unit_test(vram_formats_are_the_first),
        cmocka_unit_test(all_weights_lie_as_asked),
        cmocka_unit_test(what_cannot_be_is_named),
    };
    return cmocka_run_group_tests_name("planner/formats", tests, NULL, NULL);
}
