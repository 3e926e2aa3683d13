/* Unit tests of worker-cpu/program/assist.c: an engine attends for a GPU that is played here. Cells of the
 * GPU's layers lie in the arena, queries go down, and what comes up must be what the reference makes of the
 * same positions.
 *
 * Tolerance: the variants' own (tests/kernels/test_attention.c), for m in units of the scores, for o / s of
 * values. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "common/plan/placement.h"
#include "common/worker/batch.h"
#include "tests/written_plans.h"
#include "worker-cpu/engine.h"
#include "worker-cpu/program/execute.h"

#define FOLDER "tests/data/golden/qwen3"
/* Instrumented, every other shape: the reference, blocks of numbers, a window. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { FIRST_SHAPE = 1, NEXT_SHAPE = 2 };
#else
enum { FIRST_SHAPE = 0, NEXT_SHAPE = 1 };
#endif
enum { LAYERS = 4, SLOTS = 16, CONTEXT = 1024, STEP_TOKENS = 64, WAIT_MS = 60000 };

struct stage {
    struct model model;
    struct plan plan;
    struct arena arena;
    struct engine *engine;
    const struct attention_variant *reference;
    uint32_t serial;
    int rc; /* of the step */
    struct helm_err err;
};

struct shape {
    const char *homes; /* of the layers: g, c */
    const char *kernels;
    enum kv_dtype kv_dtype;
    uint32_t threads, page_tokens, window;
};

static uint32_t random_u32(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*state >> 33);
}

static float random_float(uint64_t *state)
{
    return (float)random_u32(state) / 1073741824.0f - 1.0f;
}

static void make_plan(struct stage *s, const struct shape *shape)
{
    struct helm_err err = {0};
    s->plan = (struct plan){.layers = LAYERS,
                            .context_tokens = CONTEXT,
                            .step_tokens = STEP_TOKENS,
                            .slots = SLOTS,
                            .page_tokens = shape->page_tokens,
                            .page_count = SLOTS * CONTEXT / shape->page_tokens,
                            .embed = PLAN_GPU0,
                            .head = PLAN_GPU0};
    s->plan.device[PLAN_GPU0].vram_page_count = s->plan.page_count;
    snprintf(s->plan.kv_dtype, sizeof s->plan.kv_dtype, "%s", kv_dtype_name(shape->kv_dtype));
    if (plan_make_units(&s->plan, PLAN_HOME_CPU, &err)) fail_msg("%s", err.text);
    for (uint32_t u = 0; u < 2 * LAYERS; u++) s->plan.unit[u].home[0] = home_of_letter(shape->homes[u / 2]);
    if (plan_check(&s->plan, &err) || placement_make(&s->model, NULL, &s->plan, &err))
        fail_msg("%s", err.text);
    assert_true(plan_uses(&s->plan, PLAN_CPU0));
}

/* Cells of every layer of every slot, pages in no order, places anywhere. */
static void fill_slots(struct stage *s)
{
    const struct arena_header *h = arena_header_of(&s->arena);
    uint64_t random = 5;
    float x[256];
    for (uint32_t slot = 0; slot < SLOTS; slot++) {
        uint32_t *pages = arena_page_table_of(&s->arena, slot);
        for (uint32_t i = 0; i < h->pages_per_slot; i++)
            pages[i] = (i * 7 + slot * 5) % h->pages_per_slot * SLOTS + slot;
        memset(arena_vram_table_of(&s->arena, slot), 0, h->pages_per_slot * sizeof(uint32_t));
        for (uint32_t p = 0; p < CONTEXT; p++)
            for (uint32_t i = 0; i < h->kv.layers * h->kv.kv_heads * 2; i++) {
                for (uint32_t d = 0; d < h->kv.head_dim; d++) x[d] = random_float(&random);
                kv_append(&h->kv, arena_region_ptr(&s->arena, ARENA_REGION_KV), pages, i / 2 / h->kv.kv_heads,
                          i & 1, i / 2 % h->kv.kv_heads, p, x);
            }
    }
}

static void set_window(struct stage *s, uint32_t window)
{
    for (int t = 0; t <= OP_TIER_FEW; t++) {
        struct program *p = &s->engine->programs[LINEAR_EXACT].assisted[t];
        for (uint32_t i = 0; i < p->count; i++)
            if (p->entry[i].kind == OP_ATTEND_HOST) p->entry[i].window = window;
    }
}

static struct stage *stage_open(const struct shape *shape)
{
    struct stage *s = calloc(1, sizeof *s);
    struct helm_err err = {0};
    assert_non_null(s);
    if (model_read(FOLDER, &s->model, &err)) fail_msg("%s", err.text);
    make_plan(s, shape);
    const struct model_config *c = &s->model.config;
    const struct arena_spec spec = {.slots = SLOTS,
                                    .context_tokens = CONTEXT,
                                    .step_tokens = STEP_TOKENS,
                                    .hidden = c->hidden,
                                    .vocab = c->vocab,
                                    .lanes = {plan_lanes(&s->plan), PLAN_LINKS},
                                    .kv = {.layers = plan_kv_layers(&s->plan, PLAN_HOST),
                                           .kv_heads = c->kv_heads,
                                           .head_dim = c->head_dim,
                                           .page_tokens = shape->page_tokens,
                                           .dtype = shape->kv_dtype},
                                    .page_count = s->plan.page_count,
                                    .vram_page_count = s->plan.device[PLAN_GPU0].vram_page_count,
                                    .kv_heads_asking = c->heads,
                                    .weight_bytes = placements_in(&s->plan, PLAN_HOST).region_bytes};
    const struct engine_options options = {.folder = FOLDER,
                                           .plan = &s->plan,
                                           .threads = shape->threads,
                                           .node = -1,
                                           .kernels = shape->kernels,
                                           .peer_wait_ms = WAIT_MS};
    s->engine = aligned_alloc(64, (sizeof *s->engine + 63) / 64 * 64);
    assert_non_null(s->engine);
    memset(s->engine, 0, sizeof *s->engine);
    if (arena_create(&spec, &s->arena, &err) || engine_load(&s->engine->base, &s->arena, &options, &err) ||
        attention_choose(shape->kv_dtype, 0, "ref", &s->reference, &err))
        fail_msg("%s", err.text);
    fill_slots(s);
    if (shape->window) set_window(s, shape->window);
    return s;
}

static void stage_close(struct stage *s)
{
    engine_free(&s->engine->base);
    free(s->engine);
    arena_close(&s->arena);
    plan_free(&s->plan);
    model_free(&s->model);
    free(s);
}

/* ---- the GPU ---- */

/* m, s, o of one query head, from the reference. */
static void reference_of(struct stage *s, const struct step_row *row, uint32_t layer, uint32_t head,
                         uint32_t window, const float *q, float *to)
{
    const struct arena_header *h = arena_header_of(&s->arena);
    const uint32_t group = s->model.config.heads / h->kv.kv_heads, seen = row->start + 1,
                   from = window && seen > window ? seen - window : 0;
    const struct batch_row in = {.start = row->start,
                                 .host_tokens = row->host_tokens,
                                 .direct_from = row->direct_from};
    const uint32_t end = batch_direct_from(&in, window, h->kv.page_tokens);
    void *scratch = aligned_alloc(64, (s->reference->scratch_bytes(&h->kv, 1, 1) + 63) / 64 * 64);
    const struct attention_task task = {.q = q,
                                        .q_stride = h->kv.head_dim,
                                        .tokens = 1,
                                        .group = 1,
                                        .kv_heads = 1,
                                        .start = row->start,
                                        .kv_first = from < end ? from : end,
                                        .kv_last = end,
                                        .window = window,
                                        .scale = 1.0f / sqrtf((float)h->kv.head_dim),
                                        .kv = &h->kv,
                                        .pool = arena_region_ptr(&s->arena, ARENA_REGION_KV),
                                        .pages = arena_page_table_of(&s->arena, row->slot),
                                        .layer = layer,
                                        .kv_head = head / group,
                                        .out = to + 2,
                                        .out_stride = h->kv.head_dim,
                                        .m = to,
                                        .s = to + 1,
                                        .scratch = scratch};
    s->reference->attend(&task);
    free(scratch);
}

static void check_answer(struct stage *s, const struct step_row *row, const float *got, const float *want,
                         double tolerance)
{
    const uint32_t dim = s->model.config.head_dim;
    if (!row->direct_from || want[1] == 0) {
        assert_true(got[0] == -INFINITY);
        for (uint32_t d = 0; d <= dim; d++) assert_true(got[1 + d] == 0);
        return;
    }
    assert_true(fabs((double)(got[0] - want[0])) < tolerance * 20);
    const double fix = exp((double)(got[0] - want[0]));
    assert_true(fabs(fix * (double)got[1] / (double)want[1] - 1) < tolerance);
    for (uint32_t d = 0; d < dim; d++)
        assert_true(fabs((double)(got[2 + d] / got[1] - want[2 + d] / want[1])) < tolerance);
}

static struct lane *kv_lane(const struct stage *s, enum plan_processor from, enum plan_processor to)
{
    return arena_lane_at(&s->arena, ARENA_LANE_KV, plan_link_of(from, to));
}

/* Query after query, then what the CPU says. */
static void play_layer(struct stage *s, const struct step *step, uint32_t layer, uint32_t ticket,
                       uint32_t window, double tolerance)
{
    struct lane *query = kv_lane(s, PLAN_GPU0, PLAN_CPU0), *partial = kv_lane(s, PLAN_CPU0, PLAN_GPU0);
    const uint32_t heads = s->model.config.heads, dim = s->model.config.head_dim;
    float *want = calloc(dim + 2, sizeof *want),
          *q = calloc((size_t)heads * dim * step->row_count, sizeof *q);
    struct helm_err err = {0};
    uint64_t random = step->serial * 100 + layer;
    if (lane_acquire(query, ticket, 20, WAIT_MS, NULL, &err)) fail_msg("%s", err.text);
    for (size_t i = 0; i < (size_t)heads * dim * step->row_count; i++) q[i] = 3 * random_float(&random);
    memcpy(query->data, q, (size_t)heads * dim * step->row_count * sizeof *q);
    if (lane_publish(query, ticket, &err)) fail_msg("%s", err.text);
    if (lane_wait(partial, ticket, 20, WAIT_MS, NULL, &err)) fail_msg("%s", err.text);
    for (uint32_t r = 0; r < step->row_count; r++)
        for (uint32_t h = 0; h < heads; h++) {
            const size_t at = (size_t)r * heads + h;
            reference_of(s, &step->row[r], layer, h, window, q + at * dim, want);
            check_answer(s, &step->row[r], partial->data + at * (dim + 2), want, tolerance);
        }
    free(want);
    free(q);
}

/* The CPU's layers are a hand-over there and back. */
static void play(struct stage *s, const struct step *step, uint32_t window, double tolerance)
{
    struct plan_span *spans;
    uint32_t count, kv_layer, ticket = 0;
    struct helm_err err = {0};
    assert_int_equal(plan_spans(&s->plan, 0, &spans, &count, &err), 0);
    for (uint32_t i = 0; i < count; i++) {
        const struct plan_span *span = &spans[i];
        if (span->processor != PLAN_GPU0) continue;
        if (span->ticket_in) {
            struct lane *in = arena_lane_of(&s->arena, span->lane_in);
            if (lane_wait(in, span->ticket_in, 20, WAIT_MS, NULL, &err)) fail_msg("%s", err.text);
            if (span->last_in) lane_release(in);
        }
        for (uint32_t u = span->first_unit; u < span->first_unit + span->unit_count; u++)
            if (unit_part(u) == UNIT_ATTENTION &&
                plan_kv_of(&s->plan, unit_layer(u), &kv_layer) == PLAN_GPU0 &&
                (step->flags & STEP_KV_ASSISTED))
                play_layer(s, step, unit_layer(u), ++ticket, window, tolerance);
        if (span->ticket_out) {
            struct lane *out = arena_lane_of(&s->arena, span->lane_out);
            if (lane_acquire(out, span->ticket_out, 20, WAIT_MS, NULL, &err)) fail_msg("%s", err.text);
            memset(out->data, 0, (size_t)step->token_count * s->model.config.hidden * sizeof(float));
            if (lane_publish(out, span->ticket_out, &err)) fail_msg("%s", err.text);
        }
    }
    free(spans);
    if (ticket) lane_release(kv_lane(s, PLAN_CPU0, PLAN_GPU0));
}

static void *run_step(void *arg)
{
    struct stage *s = arg;
    s->rc = engine_step(&s->engine->base, s->serial, &s->err);
    return NULL;
}

static void ring(struct stage *s, const struct step_row *rows, uint32_t count, uint32_t flags)
{
    struct step *step = &arena_control_of(&s->arena)->step[++s->serial % ARENA_STEP_RING];
    *step = (struct step){.serial = s->serial,
                          .epoch = arena_header_of(&s->arena)->epoch,
                          .row_count = count,
                          .flags = flags};
    for (uint32_t i = 0; i < count; i++) step->token_count += rows[i].count;
    memcpy(step->row, rows, count * sizeof *rows);
}

static void step(struct stage *s, const struct step_row *rows, uint32_t count, uint32_t window,
                 double tolerance)
{
    bool assisted = false;
    pthread_t thread;
    for (uint32_t i = 0; i < count; i++) assisted |= rows[i].direct_from > 0;
    ring(s, rows, count, assisted ? STEP_KV_ASSISTED : 0);
    assert_int_equal(pthread_create(&thread, NULL, run_step, s), 0);
    play(s, &arena_control_of(&s->arena)->step[s->serial % ARENA_STEP_RING], window, tolerance);
    pthread_join(thread, NULL);
    if (s->rc) fail_msg("%s", s->err.text);
    assert_int_equal(doorbell_read(&kv_lane(s, PLAN_GPU0, PLAN_CPU0)->bell), 0);
    for (uint32_t i = 0; i < count; i++) assert_int_equal(s->engine->own_result.row[i].status, STEP_ROW_OK);
    assert_true(!assisted || s->engine->own_result.attention_ns > 0);
}

static struct step_row row_of(uint32_t slot, uint32_t start, uint32_t host, uint32_t direct)
{
    return (struct step_row){
        .slot = slot, .start = start, .count = 1, .host_tokens = host, .direct_from = direct};
}

static void steps_of(const struct shape *shape)
{
    struct stage *s = stage_open(shape);
    const bool rounds = s->engine->kernels.attention->features & CPU_AVX512_BF16;
    const double tolerance = rounds ? 2e-2 : 2e-5;
    struct step_row many[SLOTS];
    step(s, &(struct step_row){.slot = 3, .start = 900, .count = 1}, 1, shape->window, tolerance);
    const struct step_row one[] = {row_of(0, 1000, 960, 960), row_of(1, 100, 64, 64),
                                   row_of(2, 1023, 512, 64)};
    for (size_t i = 0; i < sizeof one / sizeof *one; i++) step(s, &one[i], 1, shape->window, tolerance);
    step(s, &(struct step_row){.slot = 3, .start = 901, .count = 1}, 1, shape->window, tolerance);
    for (uint32_t i = 0; i < SLOTS; i++)
        many[i] = row_of(i, i * 64 + 5, i * 64, i % 3 ? i * 64 : i / 2 * 64); /* the first has none */
    step(s, many, SLOTS, shape->window, tolerance);
    step(s, many + 5, 2, shape->window, tolerance);
    stage_close(s);
}

static void answers_are_the_references(void **state)
{
    (void)state;
    static const struct shape shapes[] = {
        {"gggg", NULL, KV_F16, 1, 32, 0},   {"gggg", "ref", KV_F32, 3, 64, 0},
        {"gcgc", NULL, KV_BF16, 2, 32, 0},  {"cggc", NULL, KV_Q8_0, 5, 16, 0},
        {"gggg", NULL, KV_F16, 2, 64, 300}, {"gggc", NULL, KV_F32, 4, 32, 40},
    };
    for (size_t i = FIRST_SHAPE; i < sizeof shapes / sizeof *shapes; i += NEXT_SHAPE) steps_of(&shapes[i]);
}

/* All threads have as much to read, in pieces that are worth their folding. */
static void work_is_cut_evenly(void **state)
{
    (void)state;
    struct run *run = calloc(1, sizeof *run);
    struct model_config config = {.heads = 32, .head_dim = 128};
    struct arena_header header = {.vram_page_count = 1};
    struct arena arena = {.base = &header};
    struct helm_err err = {0};
    static const uint32_t heads[] = {1, 2, 4, 8}, threads[] = {1, 2, 7, 12, 16, 64},
                          lengths[] = {256, 2048, 16384, 40960};
    static struct batch_row in[ARENA_KV_TOKENS];
    assert_non_null(run);
    run->config = &config;
    run->arena = &arena;
    run->kv = (struct kv_layout){.kv_heads = 8, .head_dim = 128, .page_tokens = 32, .dtype = KV_F16};
    for (uint32_t r = 0; r < ARENA_KV_TOKENS; r++) run->row[r].in = &in[r];
    for (int i = 0; i < 4 * 6 * 4 * 2; i++) {
        const uint32_t length = lengths[i / 2 % 4];
        config.kv_heads = heads[i / 2 / 4 % 4];
        run->threads = threads[i / 2 / 16];
        run->kv_heads_group = config.heads / config.kv_heads;
        run->batch.row_count = i % 2 ? 16 : 1;
        for (uint32_t r = 0; r < run->batch.row_count; r++)
            in[r] =
                (struct batch_row){.start = length + 7, .direct_from = length - r * length / 32 / 64 * 64};
        assist_destroy(run);
        assert_int_equal(assist_create(run, &err), 0);
        const struct pool_job job = assist_job(run, &(struct program_entry){0});
        uint64_t all = 0, longest = 0, tasks = 0;
        for (uint32_t r = 0; r < run->batch.row_count; r++) {
            const struct run_assist_row *row = &run->assist.row[r];
            const uint64_t piece = (in[r].direct_from + row->splits - 1) / row->splits;
            assert_int_equal(row->task_first, tasks);
            assert_true(piece * run->assist.heads > 64 || row->splits == 1);
            if (piece > longest) longest = piece;
            tasks += row->splits * (config.kv_heads / run->assist.heads);
            all += (uint64_t)in[r].direct_from * config.kv_heads;
        }
        assert_int_equal(job.chunks, tasks);
        assert_true(tasks <= 8 * run->threads + 16 * config.kv_heads);
        /* Threads that take pieces as they are free are done within the longest piece of each other; of one
         * row's pieces, which are alike, in as many rounds as there are. */
        const uint64_t share = all / run->threads, rounds = (tasks + run->threads - 1) / run->threads;
        if (share < 128 * 8) continue;
        const uint64_t together = run->assist.heads, unit = 32 * together;
        assert_true(longest * together <= share / 4 + unit);
        if (run->batch.row_count == 1)
            assert_true(rounds * longest * together <= share * 9 / 8 + rounds * unit);
        /* Long shares are cut finer: a slow thread ends by a part of the longest piece after the others. */
        if (run->batch.row_count == 1 && share >= 48 * unit)
            assert_true(longest * together <= share / 5 + unit);
    }
    assist_destroy(run);
    free(run);
}

/* A window leaves the CPU the same part of what it shows below host_tokens as the whole context does, in
 * whole pages. */
static void windows_are_shared_alike(void **state)
{
    (void)state;
    struct batch_row row = {.start = 1000, .host_tokens = 960, .direct_from = 640};
    assert_int_equal(batch_direct_from(&row, 0, 32), 640);
    assert_int_equal(batch_direct_from(&row, 1001, 32), 640);      /* hides nothing */
    assert_int_equal(batch_direct_from(&row, 521, 32), 480 + 320); /* of 15 pages 10 */
    assert_int_equal(batch_direct_from(&row, 505, 32), 480 + 320); /* sees a part of the first page */
    assert_int_equal(batch_direct_from(&row, 40, 32), 960);
    assert_int_equal(batch_direct_from(&row, 300, 64), 640 + 192); /* of 5 pages 3 */
    row.direct_from = row.host_tokens;
    assert_int_equal(batch_direct_from(&row, 300, 32), 960);
    row.direct_from = 0;
    assert_int_equal(batch_direct_from(&row, 300, 32), 672); /* its first page */
    row.host_tokens = 0;
    assert_int_equal(batch_direct_from(&row, 300, 32), 0);
}

static void what_is_not_of_the_plan_is_refused(void **state)
{
    (void)state;
    struct stage *s = stage_open(&(struct shape){"gggg", NULL, KV_F16, 1, 32, 0});
    struct step_row row = row_of(0, 200, 192, 192);
    row.count = 2;
    ring(s, &row, 1, STEP_KV_ASSISTED); /* two tokens of a row */
    assert_int_equal(engine_step(&s->engine->base, s->serial, &s->err), 0);
    assert_int_equal(s->engine->own_result.row[0].status, STEP_ROW_BAD);
    row.count = 17;
    ring(s, &row, 1, STEP_KV_ASSISTED);
    assert_int_equal(engine_step(&s->engine->base, s->serial, &s->err), HELM_E_LIMIT);
    row.count = 1;
    s->engine->plan.kv_direct_permille = 1000;
    ring(s, &row, 1, STEP_KV_ASSISTED);
    assert_int_equal(engine_step(&s->engine->base, s->serial, &s->err), HELM_E_LIMIT);
    assert_non_null(strstr(s->err.text, "the CPU attend to the GPU's cache"));
    stage_close(s);
}

/* A step that appends in the arena has places for the page that it finds begun and for those that it leaves,
 * and no others. */
static void a_chunk_in_the_arena_has_few_places(void **state)
{
    (void)state;
    struct stage *s = stage_open(&(struct shape){"gggg", NULL, KV_F16, 1, 32, 0});
    const uint32_t page = arena_header_of(&s->arena)->kv.page_tokens, start = 2 * page + 1, count = 2 * page;
    uint32_t *places = arena_vram_table_of(&s->arena, 0);
    struct step_row row = row_of(0, start, 2 * page, 0);
    row.count = count;
    row.flags = 0;
    for (int bad = 0; bad < 6; bad++) {
        for (uint32_t i = 0; i < 6; i++) places[i] = UINT32_MAX;
        if (bad != 1) places[2] = 0; /* begun */
        if (bad != 2) places[4] = 1; /* left */
        ring(s, &row, 1, bad == 3 ? 0 : bad == 4 ? STEP_KV_ARENA | STEP_KV_ASSISTED : STEP_KV_ARENA);
        struct step *step = &arena_control_of(&s->arena)->step[s->serial % ARENA_STEP_RING];
        if (bad == 5) step->fetch_count = 1;
        const int rc = engine_step(&s->engine->base, s->serial, &s->err);
        assert_int_equal(rc, bad < 4 ? 0 : HELM_E_LIMIT);
        if (bad < 4)
            assert_int_equal(s->engine->own_result.row[0].status, bad ? STEP_ROW_BAD : STEP_ROW_OK);
        else
            assert_non_null(strstr(s->err.text, "appends in the arena"));
        step->fetch_count = 0;
    }
    stage_close(s);
}

/* A GPU that does not ask: as for any hand-over. */
static void queries_that_do_not_come_end_the_wait(void **state)
{
    (void)state;
    struct stage *s = stage_open(&(struct shape){"gggg", NULL, KV_F16, 2, 32, 0});
    const struct step_row row = row_of(0, 200, 192, 192);
    s->engine->run.peer_wait_ms = 20;
    ring(s, &row, 1, STEP_KV_ASSISTED);
    assert_int_equal(engine_step(&s->engine->base, s->serial, &s->err), HELM_E_PEER);
    atomic_store(&s->engine->base.cancel, true);
    s->engine->run.peer_wait_ms = WAIT_MS;
    assert_int_equal(engine_step(&s->engine->base, s->serial, &s->err), HELM_E_CANCELLED);
    stage_close(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(answers_are_the_references),
        cmocka_unit_test(work_is_cut_evenly),
        cmocka_unit_test(windows_are_shared_alike),
        cmocka_unit_test(what_is_not_of_the_plan_is_refused),
        cmocka_unit_test(a_chunk_in_the_arena_has_few_places),
        cmocka_unit_test(queries_that_do_not_come_end_the_wait),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
