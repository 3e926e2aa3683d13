/* Weights at home in VRAM that lie packed there: the same bits as plain ones for steps of every tier, fewer
 * bytes of VRAM, and a refusal that names the numbers where the room is too small. Beside a CPU and a link
 * in test_golden_stream.c; here of a model whose rows a GPU's kernel multiplies packed. Plans with everything
 * on the GPU alone have steps launched after the one that runs (worker-gpu/follow.h). HELM_TEST_DEVICE=cuda
 * as in test_golden_split.c. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/formats/packed.h"
#include "tests/written_formats.h"
#include "tests/device_choice.h"
#include "tests/golden/courses.h"
#include "tests/golden/made_model.h"
#include "worker-gpu/engine.h"

/* Instrumented, the emulated device takes eight seconds for a plan, most of them for the row of more than a
 * tile: the first and the last plan reach every line, one of them packed with that row, and plain in shorter
 * ones. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define INSTRUMENTED true
#define NEXT_CASE    3
#else
#define INSTRUMENTED false
#define NEXT_CASE    1
#endif
#define SHORT_ROW 40

struct home_case {
    const char *decode;
    uint32_t pack_gpu;
    bool pack_head, pack; /* the latter: what is streamed */
    bool no_graphs, chains;
    uint32_t slots;       /* 0: SLOTS */
    uint32_t shared_rows; /* of each MLP that is shared */
    bool apart;           /* matrices lie farther apart than helmd would lay them */
};

/* With gaps that grow. */
static void lay_apart(struct plan *plan)
{
    struct model model;
    struct helm_err err = {0};
    const struct packed_parts parts = {1.2, 1.2, 1.2};
    if (model_read(folder, &model, &err)) fail_msg("%s", err.text);
    if (placement_make(&model, &parts, plan, &err)) fail_msg("%s", err.text);
    for (uint32_t i = 0; i < plan->placement_count; i++) {
        struct placement *p = &plan->placement[i];
        p->offset += (i + 1) * placement_align(p->memory);
    }
    if (placement_check(&model, plan, &err)) fail_msg("%s", err.text);
    model_free(&model);
}

static int open_home(const struct home_case *c, double part, struct pair *pair, struct helm_err *err)
{
    struct plan_unit unit[UNITS + 2];
    struct plan plan = {.layers = LAYERS,
                        .unit = units_of_letters(unit, LAYERS, c->decode, UNITS),
                        .device[PLAN_GPU0].ring_bytes = 2 * MIB,
                        .shared_rows = c->shared_rows,
                        .head = PLAN_GPU0};
    const struct written_formats w = {.link = c->pack, .vram = c->pack_gpu, .head = c->pack_head};
    plan.embed = plan_home_processor(unit[0].home[0]);
    write_formats(&plan, &w);
    const struct pair_options options = {.folder = folder,
                                         .plan = &plan,
                                         .packed_part = part,
                                         .device = device_name(),
                                         .kv_dtype = KV_F16,
                                         .threads = 2,
                                         .slots = c->slots ? c->slots : SLOTS,
                                         .context_tokens = CONTEXT,
                                         .step_tokens = STEP_TOKENS,
                                         .vram_bytes =
                                             strcmp(device_name(), "emulated") == 0 ? 256 * MIB : 4 * GIB,
                                         .peer_wait_ms = 120000,
                                         .copy_rows = true,
                                         .no_graphs = c->no_graphs,
                                         .no_chains = !c->chains};
    if (c->apart) lay_apart(&plan);
    int rc = pair_open(&options, pair, err);
    plan_drop_placements(&plan);
    return rc;
}

/* Bytes of the matrices that lie packed. */
static uint64_t plain_bytes(const struct gpu_weights *w)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < (LAYERS + 1) * TENSOR_ROLE_COUNT; i++)
        if (w->matrix[i].format == FORMAT_BF16_PACKED && !w->matrix[i].host)
            bytes += (uint64_t)w->matrix[i].rows * w->matrix[i].cols * 2;
    return bytes;
}

static void run_home(const struct home_case *c, uint32_t most, float *logits, uint64_t *step_bytes)
{
    struct helm_err err = {0};
    struct pair *pair = calloc(1, sizeof *pair);
    assert_non_null(pair);
    if (open_home(c, 0, pair, &err)) fail_msg("%s: %s", c->decode, err.text);
    struct runner on = {.arena = &pair->arena, .engines = pair, .step = step_pair, .most = most};
    run_script(&on, &all_tiers, logits);
    const struct gpu_engine *gpu = (struct gpu_engine *)pair->server[PAIR_GPU].engine;
    const struct gpu_weights *w = &gpu->weights;
    const uint64_t plain = plain_bytes(w);
    assert_int_equal(gpu->expand.bytes > 0, plain > 0 || c->pack);
    if (plain) assert_in_range(w->packed_bytes, plain * 66 / 100, plain * 76 / 100);
    if (c->pack_gpu) { /* groups as the packing of whole matrices has them */
        const struct gpu_matrix *m = gpu_matrix_of(w, TENSOR_O, 0);
        assert_true(m->format == FORMAT_BF16_PACKED && m->offset[0] == 0);
        assert_true(packed_at(m->offset, packed_groups(m->rows)) < (uint64_t)m->rows * m->cols * 2);
    }
    *step_bytes = w->step_bytes;
    const struct ledger *vram = &gpu->base.report.vram;
    assert_true(vram->total <= vram->limit);
    pair_close(pair);
    free(pair);
}

static void packed_and_plain_have_the_same_bits(void **state)
{
    (void)state;
    need_device();
    static const struct home_case cases[] = {
        {.decode = "gggggggg", .pack_gpu = 8, .pack_head = true},
        {.decode = "gggggggg", .pack_gpu = 3, .no_graphs = true},
        {.decode = "ggggggcg", .pack_head = true},
        {.decode = "gsgcgsgg", .pack_gpu = 4, .pack_head = true, .pack = true},
    };
    const size_t bytes = (size_t)SAMPLES * VOCAB * sizeof(float);
    float *logits[2] = {malloc(bytes), malloc(bytes)};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i += NEXT_CASE) {
        struct home_case c = cases[i];
        uint64_t read[2];
        const uint32_t most = INSTRUMENTED ? SHORT_ROW : 0;
        if (INSTRUMENTED && i) run_home(&c, 0, logits[1], &read[1]);
        run_home(&c, most, logits[1], &read[1]);
        c.pack_gpu = 0;
        c.pack_head = false;
        run_home(&c, most, logits[0], &read[0]);
        print_message("%s, %u half layers packed%s: a step reads %llu bytes of VRAM, plain %llu\n", c.decode,
                      cases[i].pack_gpu, cases[i].pack_head ? ", the head" : "", (unsigned long long)read[1],
                      (unsigned long long)read[0]);
        assert_memory_equal(logits[0], logits[1], bytes);
        assert_true(read[1] < read[0]);
        if (cases[i].pack) { /* wherever they lie, as long as the plan says so */
            c = cases[i];
            c.apart = true;
            run_home(&c, most, logits[1], &read[1]);
            assert_memory_equal(logits[0], logits[1], bytes);
        }
        if (i == 0) { /* and beside chains of what is plain nothing but their rounding differs */
            const struct home_case chained = {.decode = c.decode, .pack_gpu = 3, .chains = true};
            run_home(&chained, most, logits[1], &read[1]);
            const double worst = compare(logits[0], logits[1]);
            print_message("beside chains: worst difference %.2g of the spread\n", worst);
            assert_true(worst < 5e-2);
        }
    }
    free(logits[0]);
    free(logits[1]);
}

static void too_little_room_is_refused(void **state)
{
    (void)state;
    need_device();
    static const struct home_case all = {.decode = "gggggggg", .pack_gpu = 8, .pack_head = true};
    struct pair *pair = calloc(1, sizeof *pair);
    struct helm_err err = {0};
    assert_non_null(pair);
    assert_int_equal(open_home(&all, 0.3, pair, &err), HELM_E_CAPACITY);
    print_message("%s\n", err.text);
    assert_non_null(strstr(err.text, "pack worse than planned: the "));
    free(pair);
}

/* ---- steps launched after others ---- */

static void steps_rung_behind_others_give_the_same_tokens(void **state)
{
    (void)state;
    need_device();
    static const struct home_case plans[] = {{.decode = "gggggggg", .chains = true},
                                             {.decode = "gggggggg", .pack_gpu = 8, .pack_head = true},
                                             {.decode = "gggggggg", .no_graphs = true},
                                             {.decode = "gggggggg", .slots = COURSE_SLOTS},
                                             {.decode = "ggggggcg", .chains = true},
                                             {.decode = "gggggggh", .shared_rows = 768}};
    static const struct {
        struct course course;
        uint32_t least, most; /* launched after others where the GPU is alone */
    } cases[] = {{{.rows = 3, .queued = true, .leaves_at = 15}, 1, COURSE_TOKENS - 2},
                 {{.rows = 1, .queued = true}, 5, COURSE_TOKENS - 2},
                 {{.rows = 3, .queued = true}, 5, COURSE_TOKENS - 2},
                 {{.rows = 18, .queued = true}, 5, COURSE_TOKENS - 2}, /* a chunk's tier */
                 {{.rows = 3, .queued = true, .sampled = true}, 0, 0},
                 {{.rows = 3, .queued = true, .other_at = 10, .both_at = 20}, 1, COURSE_TOKENS - 4}};
    for (size_t p = 0; p < (INSTRUMENTED ? 1 : sizeof plans / sizeof *plans); p++) {
        const bool alone = strpbrk(plans[p].decode, "ch") == NULL;
        for (size_t i = 0; i < sizeof cases / sizeof *cases; i += NEXT_CASE) {
            static uint32_t tokens[2][COURSE_SLOTS][COURSE_TOKENS];
            if (cases[i].course.rows > (plans[p].slots ? plans[p].slots : SLOTS)) continue;
            if (plans[p].slots && cases[i].course.rows <= SLOTS) continue;
            if (p && i != 5 && !plans[p].slots && !every_case())
                continue; /* of other plans what is least alike */
            struct pair *pair = calloc(1, sizeof *pair);
            struct helm_err err = {0};
            assert_non_null(pair);
            if (open_home(&plans[p], 0, pair, &err)) fail_msg("%s", err.text);
            const struct gpu_follow *f = &((struct gpu_engine *)pair->server[PAIR_GPU].engine)->follow;
            struct course plain = cases[i].course;
            plain.queued = false;
            memset(tokens, 0, sizeof tokens);
            assert_int_equal(f->there[GPU_TIER_1] && f->there[GPU_TIER_4], alone);
            run_course(pair, &plain, tokens[0]);
            assert_int_equal(f->launched, 0);
            run_course(pair, &cases[i].course, tokens[1]);
            assert_memory_equal(tokens[0], tokens[1], sizeof tokens[0]);
            assert_in_range(f->launched, alone ? cases[i].least : 0, alone ? cases[i].most : 0);
            assert_false(f->running);
            print_message("%s, case %zu: %llu of %llu steps launched behind another\n", plans[p].decode, i,
                          (unsigned long long)f->launched, (unsigned long long)f->steps);
            pair_close(pair);
            free(pair);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(packed_and_plain_have_the_same_bits),
        cmocka_unit_test(too_little_room_is_refused),
        cmocka_unit_test(steps_rung_behind_others_give_the_same_tokens),
    };
    return cmocka_run_group_tests_name("golden/home", tests, make_model, remove_model);
}
