/* Unit tests of worker-cpu/engine.c, program.c and weights.c: half layers and phases. Two CPU engines play
 * the two workers of one plan, each with an arena of its own and the mirrored plan, and a thread between them
 * carries what one lane hands over to the lane of the other: whatever is cut where, in whichever phase, the
 * logits must be those of one engine that computes everything, to the last bit. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "common/base/units.h"
#include "common/worker/server.h"
#include "tests/written_plans.h"
#include "worker-cpu/local.h"
#include "worker-cpu/engine.h"

#define FOLDER      "tests/data/golden/qwen3"
#define LAYERS      4
#define SLOTS       2
#define STEP_TOKENS 64
#define CONTEXT     96
#define PAGE_TOKENS 32
#define WAIT_MS     120000

/* One list of a plan: the engine that computes each unit, 'a' or 'b', and where the embedding and the head
 * are. */
struct cut {
    const char *decode, *prefill_short, *prefill;
    uint32_t prefill_short_from, prefill_from; /* 0: no such list */
    char embed, head;
};

struct side {
    struct arena arena;
    struct plan plan;
    struct server server;
};

static void list_of(const char *who, char me, uint32_t phase, struct plan *plan)
{
    assert_int_equal(strlen(who), 2 * LAYERS);
    for (int u = 0; u < 2 * LAYERS; u++)
        plan->unit[u].home[phase] = who[u] == me ? PLAN_HOME_CPU : PLAN_HOME_STREAM;
}

static struct plan plan_of(const struct cut *cut, char me)
{
    struct helm_err err = {0};
    struct plan plan = {.layers = LAYERS, .step_tokens = STEP_TOKENS, .device[PLAN_GPU0].ring_bytes = 1};
    const char *lists[] = {cut->prefill_short, cut->prefill};
    const uint32_t from[] = {cut->prefill_short_from, cut->prefill_from};
    if (plan_make_units(&plan, PLAN_HOME_CPU, &err)) fail_msg("%s", err.text);
    list_of(cut->decode, me, 0, &plan);
    for (int i = 0; i < 2; i++) {
        if (!from[i]) continue;
        plan.prefill_from[plan.prefill_count++] = from[i];
        list_of(lists[i], me, plan.prefill_count, &plan);
    }
    plan.embed = cut->embed == me ? PLAN_CPU0 : PLAN_GPU0;
    plan.head = cut->head == me ? PLAN_CPU0 : PLAN_GPU0;
    if (plan_check(&plan, &err)) fail_msg("%s", err.text);
    return plan;
}

static void fill_slots(const struct arena *arena)
{
    uint32_t pages_per_slot = CONTEXT / PAGE_TOKENS;
    for (uint32_t s = 0; s < SLOTS; s++) {
        for (uint32_t i = 0; i < pages_per_slot; i++)
            arena_page_table_of(arena, s)[i] = s * pages_per_slot + i;
        for (uint32_t i = 0; i < CONTEXT; i++) arena_history_of(arena, s)[i] = (i * 37 + s * 11) % 500;
        struct arena_slot *slot = arena_slot_of(arena, s);
        memset(slot, 0, sizeof *slot);
        slot->sampling.top_p = slot->sampling.repetition_penalty = 1;
    }
}

static void side_open_pages(struct side *side, const struct model *model, const struct cut *cut, char me,
                            uint32_t pages)
{
    struct helm_err err = {0};
    uint64_t count;
    memset(side, 0, sizeof *side);
    side->plan = plan_of(cut, me);
    if (placement_make(model, NULL, &side->plan, &err)) fail_msg("%s", err.text);
    const struct arena_spec spec = {.slots = SLOTS,
                                    .context_tokens = CONTEXT,
                                    .step_tokens = STEP_TOKENS,
                                    .hidden = model->config.hidden,
                                    .vocab = model->config.vocab,
                                    .lanes = {PLAN_LINKS},
                                    .kv = {.layers = plan_layers_of(&side->plan, PLAN_CPU0),
                                           .kv_heads = model->config.kv_heads,
                                           .head_dim = model->config.head_dim,
                                           .page_tokens = PAGE_TOKENS,
                                           .dtype = DTYPE_F16},
                                    .page_count = pages,
                                    .weight_bytes = model->weight_bytes + 64 * (uint64_t)model->tensor_count};
    assert_int_equal(arena_create(&spec, &side->arena, &err), 0);
    fill_slots(&side->arena);
    struct server *server = &side->server;
    server->ops = &cpu_engine_ops;
    server->options = (struct engine_options){
        .folder = FOLDER, .plan = &side->plan, .threads = 1, .node = -1, .spin_us = POOL_SPIN_US_DEFAULT};
    server->arena = &side->arena;
    server->epoch = arena_header_of(&side->arena)->epoch;
    server->done_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    server->report_fd = eventfd(0, EFD_CLOEXEC);
    assert_int_equal(server_start(server, &err), 0);
    assert_int_equal(read(server->report_fd, &count, sizeof count), sizeof count);
    if (atomic_load(&server->state) != SERVER_SERVING) fail_msg("%s", server->err.text);
    assert_int_equal(doorbell_read(&arena_control_of(&side->arena)->weights_bell), 1);
}

static void side_open(struct side *side, const struct model *model, const struct cut *cut, char me)
{
    side_open_pages(side, model, cut, me, SLOTS * CONTEXT / PAGE_TOKENS);
}

static void side_close(struct side *side)
{
    server_stop(&side->server);
    close(side->server.done_fd);
    close(side->server.report_fd);
    plan_free(&side->plan);
    arena_close(&side->arena);
}

static void side_ring(struct side *side, uint32_t serial, const struct step_row *rows, uint32_t row_count)
{
    struct arena_control *control = arena_control_of(&side->arena);
    struct step *step = &control->step[serial % ARENA_STEP_RING];
    *step = (struct step){.serial = serial,
                          .epoch = arena_header_of(&side->arena)->epoch,
                          .row_count = row_count};
    for (uint32_t i = 0; i < row_count; i++) step->token_count += rows[i].count;
    memcpy(step->row, rows, row_count * sizeof *rows);
    doorbell_ring(&control->step_bell, serial);
}

static void side_wait(struct side *side, uint32_t serial)
{
    struct arena_done *done = &arena_control_of(&side->arena)->done[0];
    while (doorbell_read(&done->bell) != serial) {
        if (atomic_load(&side->server.state) == SERVER_FAILED) fail_msg("%s", side->server.err.text);
        if (!doorbell_wait(&done->bell, serial - 1, 0, WAIT_MS, NULL)) fail_msg("step %u", serial);
    }
}

/* Carries every hand-over of a step from one arena to the other, in the plan's order. */
static void carry(struct side *a, struct side *b, uint32_t tokens)
{
    struct helm_err err = {0};
    struct plan_span *spans;
    uint32_t count, hidden = arena_header_of(&a->arena)->hidden;
    assert_int_equal(plan_spans(&a->plan, plan_phase_for(&a->plan, tokens), &spans, &count, &err), 0);
    for (uint32_t i = 0; i + 1 < count; i++) {
        bool from_a = spans[i].processor == PLAN_CPU0;
        struct lane *from = arena_lane_of(from_a ? &a->arena : &b->arena, plan_link_of(PLAN_CPU0, PLAN_GPU0));
        struct lane *to = arena_lane_of(from_a ? &b->arena : &a->arena, plan_link_of(PLAN_GPU0, PLAN_CPU0));
        uint32_t ticket = spans[i].ticket_out;
        if (lane_wait(from, ticket, 20, WAIT_MS, NULL, &err)) fail_msg("%s", err.text);
        if (lane_acquire(to, ticket, 20, WAIT_MS, NULL, &err)) fail_msg("%s", err.text);
        memcpy(to->data, from->data, (size_t)tokens * hidden * sizeof(float));
        if (spans[i + 1].last_in) lane_release(from);
        if (lane_publish(to, ticket, &err)) fail_msg("%s", err.text);
    }
    free(spans);
}

/* Steps of every tier and, in the cuts below, of every phase. */
static const struct step_row steps[][SLOTS] = {
    {{.slot = 0, .start = 0, .count = 60, .flags = STEP_ROW_SAMPLE}},
    {{.slot = 1, .start = 0, .count = 30}},
    {{.slot = 0, .start = 60, .count = 1, .flags = STEP_ROW_SAMPLE}},
    {{.slot = 1, .start = 30, .count = 7, .flags = STEP_ROW_SAMPLE}, {.slot = 0, .start = 61, .count = 1}},
    {{.slot = 0, .start = 62, .count = 25, .flags = STEP_ROW_SAMPLE},
     {.slot = 1, .start = 37, .count = 1, .flags = STEP_ROW_SAMPLE}},
    {{.slot = 0, .start = 87, .count = 1, .flags = STEP_ROW_SAMPLE},
     {.slot = 1, .start = 38, .count = 1, .flags = STEP_ROW_SAMPLE}},
};
#define STEPS (sizeof steps / sizeof *steps)

static uint32_t rows_of(size_t step)
{
    return steps[step][1].count ? 2 : 1;
}

static uint32_t sampled_of(size_t step)
{
    uint32_t sampled = 0;
    for (uint32_t i = 0; i < rows_of(step); i++) sampled += (steps[step][i].flags & STEP_ROW_SAMPLE) != 0;
    return sampled;
}

static uint32_t tokens_of(size_t step)
{
    return steps[step][0].count + steps[step][1].count;
}

/* Logits of every sampled row of every step, from one engine with this plan (NULL: one stage). */
static float *whole_logits(const struct plan *plan, uint32_t vocab)
{
    struct helm_err err = {0};
    struct local *local = aligned_alloc(64, (sizeof *local + 63) / 64 * 64);
    const struct local_options options = {.folder = FOLDER,
                                          .plan = plan,
                                          .kv_dtype = KV_F16,
                                          .threads = 1,
                                          .slots = SLOTS,
                                          .context_tokens = CONTEXT,
                                          .step_tokens = STEP_TOKENS,
                                          .page_tokens = PAGE_TOKENS};
    float *logits = calloc(STEPS * SLOTS, vocab * sizeof *logits);
    if (local_open(&options, local, &err)) fail_msg("%s", err.text);
    fill_slots(&local->arena);
    for (size_t i = 0; i < STEPS; i++) {
        const struct step_result *result;
        assert_int_equal(local_step(local, steps[i], rows_of(i), &result, &err), 0);
        memcpy(logits + i * SLOTS * vocab, local->engine.act.buffer[BUFFER_LOGITS],
               (size_t)sampled_of(i) * vocab * sizeof *logits);
    }
    local_close(local);
    free(local);
    return logits;
}

static void run_cut(const struct model *model, const struct cut *cut, const float *expected)
{
    uint32_t vocab = model->config.vocab;
    struct side *a = aligned_alloc(64, (sizeof *a + 63) / 64 * 64);
    struct side *b = aligned_alloc(64, (sizeof *b + 63) / 64 * 64);
    side_open(a, model, cut, 'a');
    side_open(b, model, cut, 'b');
    const struct side *last = cut->head == 'a' ? a : b;
    for (size_t i = 0; i < STEPS; i++) {
        uint32_t serial = (uint32_t)i + 1, tokens = tokens_of(i);
        uint64_t start_ns = units_now_ns();
        side_ring(a, serial, steps[i], rows_of(i));
        side_ring(b, serial, steps[i], rows_of(i));
        carry(a, b, tokens);
        side_wait(a, serial);
        side_wait(b, serial);
        uint64_t spent_ns = units_now_ns() - start_ns;
        const struct arena_control *control = arena_control_of(&last->arena);
        for (uint32_t r = 0; r < rows_of(i); r++)
            assert_int_equal(control->result[serial % ARENA_STEP_RING].row[r].status, STEP_ROW_OK);
        assert_memory_equal(arena_logits_of(&last->arena, 0), expected + i * SLOTS * vocab,
                            (size_t)sampled_of(i) * vocab * sizeof *expected);
        assert_int_equal(doorbell_read(&arena_lane_of(&a->arena, plan_link_of(PLAN_GPU0, PLAN_CPU0))->bell),
                         0);
        assert_int_equal(doorbell_read(&arena_lane_of(&b->arena, plan_link_of(PLAN_GPU0, PLAN_CPU0))->bell),
                         0);
        const struct arena_times *done =
            &arena_control_of(&a->arena)->done[0].times[serial % ARENA_STEP_RING];
        assert_true(done->busy_ns + done->wait_ns <= spent_ns);
        assert_true(done->busy_ns > 0);
        assert_int_equal(done->link_bytes, 0);
    }
    side_close(a);
    side_close(b);
    free(a);
    free(b);
}

static void any_cut_computes_the_same_bits(void **state)
{
    (void)state;
    static const struct cut cuts[] = {
        {.decode = "abababab", .embed = 'a', .head = 'a'},
        {.decode = "babababa", .embed = 'a', .head = 'b'},
        {.decode = "aaabbabb", .embed = 'b', .head = 'b'},
        {.decode = "bbbbbbba", .embed = 'b', .head = 'b'},
        /* b has nothing to do in steps of 20 tokens and more */
        {.decode = "aaabaaab",
         .prefill_short = "aaaaaaaa",
         .prefill_short_from = 20,
         .embed = 'a',
         .head = 'a'},
        /* three lists: decode, from 8 tokens, from 31 tokens */
        {.decode = "aabbaabb",
         .prefill_short = "abbbaabb",
         .prefill_short_from = 8,
         .prefill = "aabaaaba",
         .prefill_from = 31,
         .embed = 'b',
         .head = 'a'},
        /* a prefill list from 2 tokens on: of the decode list only one tier is left */
        {.decode = "aaaabbbb",
         .prefill_short = "abaababa",
         .prefill_short_from = 2,
         .embed = 'a',
         .head = 'b'},
    };
    struct helm_err err = {0};
    struct model model;
    assert_int_equal(model_read(FOLDER, &model, &err), 0);
    assert_int_equal(model.config.layers, LAYERS);
    float *expected = whole_logits(NULL, model.config.vocab);
    for (size_t i = 0; i < sizeof cuts / sizeof *cuts; i++) run_cut(&model, &cuts[i], expected);
    free(expected);
    model_free(&model);
}

static char *printed(const struct plan *plan, int rc_expected)
{
    struct helm_err err = {0};
    char *text = NULL;
    size_t bytes = 0;
    FILE *out = open_memstream(&text, &bytes);
    assert_int_equal(print_plan(FOLDER, plan, 2, NULL, out, &err), rc_expected);
    fclose(out);
    return text;
}

static void printing_shows_phases_and_hand_overs(void **state)
{
    (void)state;
    const struct cut cut = {.decode = "aabbaabb",
                            .prefill_short = "abbbabbb",
                            .prefill_short_from = 10,
                            .prefill = "bbbbbbbb",
                            .prefill_from = 33,
                            .embed = 'a',
                            .head = 'b'};
    struct plan plan = plan_of(&cut, 'a');
    char *text = printed(&plan, 0);
    assert_non_null(strstr(text, "decode, 1 token: "));
    assert_non_null(strstr(text, "decode, 2 to 16 tokens: "));
    assert_null(strstr(text, "decode, a chunk of tokens: ")); /* cannot occur */
    assert_null(strstr(text, "more, 1 token: "));
    assert_non_null(strstr(text, "prefill of 10 tokens and more, 2 to 16 tokens: "));
    assert_non_null(strstr(text, "prefill of 10 tokens and more, a chunk of tokens: "));
    assert_null(strstr(text, "prefill of 33 tokens and more, 2 to 16 tokens: "));
    /* the embedding alone: no positions, one hand-over */
    assert_non_null(strstr(text, "prefill of 33 tokens and more, a chunk of tokens: 2 entries"));
    assert_non_null(strstr(text, "embed x\n"));
    assert_non_null(strstr(text, "take from lane hand-over 1, the last"));
    assert_null(strstr(text, "head,"));
    free(text);
    plan_free(&plan);
    struct plan_unit nowhere[WRITTEN_UNITS(LAYERS)];
    const struct plan homeless = {.layers = LAYERS,
                                  .step_tokens = 1,
                                  .unit = units_all(nowhere, LAYERS, PLAN_HOMES)};
    free(printed(&homeless, HELM_E_FORMAT));
}

/* The bytes of the files, at the places of the layout. */
static void check_region(const struct arena *arena, const struct model *model, const struct plan *plan)
{
    struct helm_err err = {0};
    const struct placements w = placements_in(plan, PLAN_HOST);
    const char *region = arena_region_ptr(arena, ARENA_REGION_WEIGHTS);
    assert_int_equal(placement_check(model, plan, &err), 0);
    assert_true(w.count > 0);
    for (uint32_t i = 0; i < w.count; i++) {
        const struct model_tensor *t = placement_tensor(model, &w.place[i]);
        char path[512];
        snprintf(path, sizeof path, "%s/%s", FOLDER, model->shards[t->shard].file);
        int fd = open(path, O_RDONLY | O_CLOEXEC);
        char *bytes = malloc((size_t)t->bytes);
        assert_true(fd >= 0);
        assert_int_equal(pread(fd, bytes, (size_t)t->bytes, (off_t)t->offset), (ssize_t)t->bytes);
        assert_memory_equal(region + w.place[i].offset, bytes, (size_t)t->bytes);
        free(bytes);
        close(fd);
    }
}

/* A worker whose weights only the other one computes with: it loads them, and is done with every step at
 * once. */
static void a_worker_may_only_load(void **state)
{
    (void)state;
    static const struct cut cut = {.decode = "bbbbbbbb", .embed = 'b', .head = 'b'};
    struct helm_err err = {0};
    struct model model;
    struct side *a = aligned_alloc(64, (sizeof *a + 63) / 64 * 64);
    assert_int_equal(model_read(FOLDER, &model, &err), 0);
    side_open(a, &model, &cut, 'a');
    check_region(&a->arena, &model, &a->plan);
    for (uint32_t i = 0; i < STEPS; i++) {
        side_ring(a, i + 1, steps[i], rows_of(i));
        side_wait(a, i + 1);
        const struct arena_times *done = arena_control_of(&a->arena)->done[0].times;
        assert_int_equal(done[(i + 1) % ARENA_STEP_RING].weight_bytes, 0);
        assert_int_equal(done[(i + 1) % ARENA_STEP_RING].wait_ns, 0);
    }
    side_close(a);
    free(a);
    model_free(&model);
}

/* Buffers are as long as the longest step whose layers are computed here; embedding and head as any step. */
static void buffers_follow_the_phases(void **state)
{
    (void)state;
    static const struct cut cut = {.decode = "aaaaaaaa",
                                   .prefill_short = "bbbbbbbb",
                                   .prefill_short_from = 20,
                                   .embed = 'b',
                                   .head = 'b'};
    struct helm_err err = {0};
    struct plan plan = plan_of(&cut, 'a');
    struct local *local = aligned_alloc(64, (sizeof *local + 63) / 64 * 64);
    struct local_options options = {.folder = FOLDER,
                                    .plan = &plan,
                                    .kv_dtype = KV_F16,
                                    .threads = 1,
                                    .slots = SLOTS,
                                    .context_tokens = 4096,
                                    .step_tokens = 4096};
    if (local_open(&options, local, &err)) fail_msg("%s", err.text);
    assert_int_equal(local->engine.run.unit_tokens, 19);
    uint64_t small = local->engine.act.bytes;
    /* a prompt of the whole step: nothing is computed here, and nothing waited for */
    for (uint32_t i = 0; i < 4096; i++) arena_history_of(&local->arena, 0)[i] = i % 500;
    const struct step_row row = {.slot = 0, .start = 0, .count = 4096};
    const struct step_result *result;
    assert_int_equal(local_step(local, &row, 1, &result, &err), 0);
    assert_int_equal(local->engine.base.times.weight_bytes, 0);
    local_close(local);
    plan.prefill_count = 0;
    if (local_open(&options, local, &err)) fail_msg("%s", err.text);
    assert_int_equal(local->engine.run.unit_tokens, 4096);
    assert_true(local->engine.act.bytes > 20 * small);
    local_close(local);
    plan_free(&plan);
    free(local);
}

static void what_is_no_plan_is_refused(void **state)
{
    (void)state;
    for (int prefill = 0; prefill < 2; prefill++) {
        struct helm_err err = {0};
        struct plan_unit unit[WRITTEN_UNITS(LAYERS)];
        struct plan plan = {.layers = LAYERS, .unit = units_all(unit, LAYERS, PLAN_HOME_CPU)};
        if (prefill) add_letters(&plan, 9, "c");
        unit[2 * LAYERS - 1].home[prefill] = PLAN_HOMES;
        struct local *local = aligned_alloc(64, (sizeof *local + 63) / 64 * 64);
        const struct local_options options = {.folder = FOLDER,
                                              .plan = &plan,
                                              .kv_dtype = KV_F16,
                                              .threads = 1,
                                              .slots = SLOTS,
                                              .context_tokens = CONTEXT,
                                              .step_tokens = STEP_TOKENS};
        assert_int_equal(local_open(&options, local, &err), HELM_E_FORMAT);
        assert_non_null(strstr(err.text, prefill ? "plan: prefill list 1: the MLP" : "plan: the MLP"));
        free(local);
    }
}

/* A cache that the GPU borrows from is there as a whole before the bell rings: the driver pins its pages as
 * they are then. The first 256 MiB of others are there, and the rest comes meanwhile. */
static void a_borrowed_cache_is_there_at_once(void **state)
{
    (void)state;
    struct model model;
    struct helm_err err = {0};
    assert_int_equal(model_read(FOLDER, &model, &err), 0);
    for (int borrowed = 0; borrowed < 2; borrowed++) {
        const struct cut cut = {.decode = "aaaaaaaa",
                                .prefill = borrowed ? "abbbaaaa" : "ababaaaa",
                                .prefill_from = 17,
                                .embed = 'a',
                                .head = 'a'};
        struct kv_layout kv = {.layers = LAYERS,
                               .kv_heads = model.config.kv_heads,
                               .head_dim = model.config.head_dim,
                               .page_tokens = PAGE_TOKENS,
                               .dtype = DTYPE_F16};
        uint32_t pages = (uint32_t)(320 * MIB / kv_page_bytes(&kv));
        struct side *side = calloc(1, sizeof *side);
        side_open_pages(side, &model, &cut, 'a', pages);
        assert_int_equal(plan_borrows_kv(&side->plan), borrowed);
        const struct engine_report *report = &side->server.engine->report;
        uint64_t there = report->huge_bytes + report->small_bytes, weights = report->weight_bytes;
        assert_true(weights < 16 * MIB);
        assert_true(borrowed ? there >= pages * kv_page_bytes(&kv) + weights
                             : there < 256 * MIB + 2 * weights);
        side_close(side);
        free(side);
    }
    model_free(&model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_cut_computes_the_same_bits),
        cmocka_unit_test(printing_shows_phases_and_hand_overs),
        cmocka_unit_test(a_worker_may_only_load),
        cmocka_unit_test(buffers_follow_the_phases),
        cmocka_unit_test(what_is_no_plan_is_refused),
        cmocka_unit_test(a_borrowed_cache_is_there_at_once),
    };
    return cmocka_run_group_tests_name("worker-cpu/engine", tests, NULL, NULL);
}
