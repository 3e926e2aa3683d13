/* Weights at home in VRAM that lie packed there: the same bits as plain ones for steps of every tier, fewer
 * bytes of VRAM, and a refusal that names the numbers where the room is too small. Beside a CPU and a link
 * in test_golden_stream.c; here of a model whose rows a GPU's kernel multiplies packed. And what only plans
 * with everything on the GPU have: steps that are launched before they are asked for (worker-gpu/ahead.h).
 * HELM_TEST_DEVICE=cuda as in test_golden_split.c. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/packed.h"
#include "tests/device_choice.h"
#include "tests/golden/made_model.h"
#include "worker-gpu/engine.h"

#define ROOM (64 * MIB)
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
};

static int open_home(const struct home_case *c, uint64_t room, struct pair *pair, struct helm_err *err)
{
    struct plan_stage stages[UNITS];
    const struct plan plan = {.layers = LAYERS,
                              .stages = stages,
                              .stage_count = stages_of(c->decode, stages),
                              .ring_bytes = 2 * MIB,
                              .pack = c->pack,
                              .pack_gpu = c->pack_gpu,
                              .pack_head = c->pack_head,
                              .pack_gpu_bytes = room,
                              .embed = plan_home_worker(stages[0].home),
                              .head = PLAN_HOME_GPU};
    const struct pair_options options = {.folder = folder,
                                         .plan = &plan,
                                         .device = device_name(),
                                         .kv_dtype = DTYPE_F16,
                                         .threads = 2,
                                         .slots = SLOTS,
                                         .context_tokens = CONTEXT,
                                         .step_tokens = STEP_TOKENS,
                                         .vram_bytes =
                                             strcmp(device_name(), "emulated") == 0 ? 256 * MIB : 4 * GIB,
                                         .peer_wait_ms = 120000,
                                         .copy_rows = true,
                                         .no_graphs = c->no_graphs,
                                         .no_chains = !c->chains};
    return pair_open(&options, pair, err);
}

/* Bytes of the matrices that lie packed. */
static uint64_t plain_bytes(const struct gpu_weights *w)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < (LAYERS + 1) * TENSOR_ROLE_COUNT; i++)
        if (w->matrix[i].packed && !w->matrix[i].host)
            bytes += (uint64_t)w->matrix[i].rows * w->matrix[i].cols * 2;
    return bytes;
}

static void run_home(const struct home_case *c, uint32_t most, float *logits, uint64_t *step_bytes)
{
    struct helm_err err = {0};
    struct pair *pair = calloc(1, sizeof *pair);
    assert_non_null(pair);
    if (open_home(c, c->pack_gpu || c->pack_head ? ROOM : 0, pair, &err))
        fail_msg("%s: %s", c->decode, err.text);
    struct runner on = {.arena = &pair->arena, .engines = pair, .step = step_pair, .most = most};
    run_script(&on, &all_tiers, logits);
    const struct gpu_engine *gpu = (struct gpu_engine *)pair->server[PAIR_GPU].engine;
    const struct gpu_weights *w = &gpu->weights;
    const uint64_t plain = plain_bytes(w);
    assert_int_equal(gpu->expand.bytes > 0, plain > 0 || c->pack);
    if (plain) assert_in_range(w->packed_bytes, plain * 66 / 100, plain * 76 / 100);
    if (c->pack_gpu) { /* groups as the packing of whole matrices has them */
        const struct gpu_matrix *m = gpu_matrix_of(w, TENSOR_O, 0);
        assert_true(m->packed && m->offset[0] == 0);
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
    assert_int_equal(open_home(&all, 2 * MIB, pair, &err), HELM_E_CAPACITY);
    print_message("%s\n", err.text);
    assert_non_null(strstr(err.text, "pack worse than planned: the 2.00 MiB of VRAM"));
    assert_int_equal(open_home(&all, 64, pair, &err), HELM_E_CAPACITY);
    print_message("%s\n", err.text);
    assert_non_null(strstr(err.text, "tables of packed weights take"));
    free(pair);
}

/* ---- steps ahead ---- */

#define AHEAD_PROMPT 21
#define AHEAD_TOKENS 60 /* passes the ends of two pages of 32 */

struct walk {
    bool ahead;   /* flagged as helmd flags it */
    bool sampled; /* drawn on the host */
    /* before the step of this output token: another sequence comes, two rows in one step; or the token is
     * another one than what was found. 0: never. */
    uint32_t other_at, both_at, changed_at;
};

static uint32_t one_step(struct pair *pair, const struct step_row *rows, uint32_t count)
{
    const struct step_result *result;
    struct helm_err err = {0};
    if (pair_step(pair, rows, count, &result, &err)) fail_msg("%s", err.text);
    for (uint32_t r = 0; r < count; r++) assert_int_equal(result->row[r].status, STEP_ROW_OK);
    return result->row[0].sampled.token;
}

/* Greedy tokens of slot 0 after its prompt. Slot 1 is whoever comes in between. */
static void walk_ahead(struct pair *pair, const struct walk *w, uint32_t *tokens)
{
    uint32_t *history = arena_history_of(&pair->arena, 0), other = 0;
    for (uint32_t i = 0; i < AHEAD_PROMPT; i++) history[i] = (i * 31 + 5) % VOCAB;
    for (uint32_t i = 0; i < 200; i++) arena_history_of(&pair->arena, 1)[i] = (i * 13 + 7) % VOCAB;
    for (uint32_t slot = 0; slot < 2; slot++) {
        struct arena_slot *s = arena_slot_of(&pair->arena, slot);
        *s = (struct arena_slot){.sampling = {.temperature = w->sampled ? 0.8f : 0,
                                              .top_k = w->sampled ? 20 : 0,
                                              .top_p = 1,
                                              .repetition_penalty = 1,
                                              .seed = 9},
                                 .prompt_count = AHEAD_PROMPT};
    }
    struct step_row row = {.slot = 0, .count = AHEAD_PROMPT, .flags = STEP_ROW_SAMPLE};
    for (uint32_t i = 0; i < AHEAD_TOKENS; i++) {
        if (w->other_at && i == w->other_at) {
            (void)one_step(pair, &(struct step_row){.slot = 1, .count = 40, .flags = STEP_ROW_SAMPLE}, 1);
            other = 40;
        }
        if (w->both_at && i == w->both_at) {
            const struct step_row both[] = {
                {.slot = 0, .start = row.start, .count = 1, .flags = STEP_ROW_SAMPLE},
                {.slot = 1, .start = other, .count = 1, .flags = STEP_ROW_SAMPLE}};
            tokens[i] = one_step(pair, both, 2);
        } else {
            tokens[i] = one_step(pair, &row, 1);
        }
        if (w->changed_at == i + 1) tokens[i] = (tokens[i] + 1) % VOCAB;
        history[AHEAD_PROMPT + i] = tokens[i];
        row.start = AHEAD_PROMPT + i;
        row.count = 1;
        /* helmd gives a page when the step comes: the next position must lie in one that is there */
        bool room = (row.start + 1) % 32 != 0;
        row.flags = STEP_ROW_SAMPLE | (w->ahead && room && i + 2 < AHEAD_TOKENS ? STEP_ROW_AHEAD : 0);
    }
}

static void steps_ahead_give_the_same_tokens(void **state)
{
    (void)state;
    need_device();
    static const struct home_case plans[] = {{.decode = "gggggggg", .chains = true},
                                             {.decode = "gggggggg", .pack_gpu = 8, .pack_head = true},
                                             {.decode = "gggggggg", .no_graphs = true},
                                             {.decode = "ggggggcg", .chains = true}};
    static const struct {
        struct walk walk;
        uint32_t taken[2], unwanted; /* at least, at most */
    } cases[] = {{{.ahead = false}, {0, 0}, 0},
                 {{.ahead = true}, {AHEAD_TOKENS - 6, AHEAD_TOKENS - 2}, 0},
                 {{.ahead = true, .other_at = 10}, {AHEAD_TOKENS - 8, AHEAD_TOKENS - 3}, 1},
                 {{.ahead = true, .other_at = 10, .both_at = 20}, {AHEAD_TOKENS - 9, AHEAD_TOKENS - 4}, 2},
                 {{.ahead = true, .changed_at = 15}, {AHEAD_TOKENS - 8, AHEAD_TOKENS - 3}, 1},
                 {{.ahead = true, .sampled = true}, {0, 0}, 0}};
    for (size_t p = 0; p < sizeof plans / sizeof *plans; p += NEXT_CASE) {
        const bool launches = p < 2;
        for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
            if (p && i != 3) continue;
            uint32_t tokens[2][AHEAD_TOKENS];
            struct pair *pair = calloc(1, sizeof *pair);
            struct helm_err err = {0};
            assert_non_null(pair);
            if (open_home(&plans[p], plans[p].pack_gpu ? ROOM : 0, pair, &err)) fail_msg("%s", err.text);
            const struct gpu_ahead *a = &((struct gpu_engine *)pair->server[PAIR_GPU].engine)->ahead;
            struct walk plain = cases[i].walk;
            plain.ahead = false;
            assert_int_equal(a->there, launches);
            walk_ahead(pair, &plain, tokens[0]);
            assert_int_equal(a->taken + a->unwanted, 0);
            walk_ahead(pair, &cases[i].walk, tokens[1]);
            assert_memory_equal(tokens[0], tokens[1], sizeof tokens[0]);
            assert_in_range(a->taken, launches ? cases[i].taken[0] : 0, launches ? cases[i].taken[1] : 0);
            assert_int_equal(a->unwanted, launches ? cases[i].unwanted : 0);
            /* and one that nobody asks for is waited for at the end */
            const struct step_row last = {.slot = 0,
                                          .start = 5,
                                          .count = 1,
                                          .flags = STEP_ROW_SAMPLE | STEP_ROW_AHEAD};
            (void)one_step(pair, &last, 1);
            assert_int_equal(a->running, launches && !cases[i].walk.sampled);
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
        cmocka_unit_test(steps_ahead_give_the_same_tokens),
    };
    return cmocka_run_group_tests_name("golden/home", tests, make_model, remove_model);
}
