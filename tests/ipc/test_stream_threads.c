/* The GPU engine with a CPU worker that this test plays: the link copies the next streamed stage while the
 * CPU computes, and between steps, so that a step takes as long as the slower of the two and not their sum.
 *
 * The player answers each hand-over after a fixed time and the emulated device copies at a fixed speed, both
 * asleep meanwhile: the machine's own speed hardly matters. Thread sanitizer sees both sides. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/model/model.h"
#include "common/base/units.h"
#include "tests/written_plans.h"
#include "worker-gpu/engine.h"

#define FOLDER   "tests/data/golden/qwen3"
#define UNITS    8
#define STEPS    6
#define STAGE_MS 40 /* the CPU's time for a stage, and the link's for an MLP half */
#define TRIES    6  /* a machine that gives the threads no processor makes a step longer, never shorter */

struct setup {
    struct arena arena;
    struct model model;
    struct plan_unit unit[UNITS + 2];
    struct plan plan;
    struct worker_engine *engine;
    struct plan_span *spans;
    uint32_t span_count;
    _Atomic uint32_t steps; /* that the player still takes part in */
    _Atomic uint32_t errors;
};

static void sleep_ms(uint32_t ms)
{
    const struct timespec time = {.tv_sec = ms / 1000, .tv_nsec = (long)(ms % 1000) * 1000000};
    while (nanosleep(&time, NULL) != 0) continue;
}

/* A CPU worker that computes nothing: it takes what comes, sleeps, and hands on. */
static void *play_cpu(void *arg)
{
    struct setup *s = arg;
    struct lane *in = arena_lane_of(&s->arena, plan_link_of(PLAN_GPU0, PLAN_CPU0)),
                *out = arena_lane_of(&s->arena, plan_link_of(PLAN_CPU0, PLAN_GPU0));
    for (; atomic_load(&s->steps); atomic_fetch_sub(&s->steps, 1))
        for (uint32_t i = 0; i < s->span_count; i++) {
            const struct plan_span *span = &s->spans[i];
            struct helm_err err = {0};
            int rc = 0;
            if (span->processor != PLAN_CPU0) continue;
            if (span->ticket_in) rc = lane_wait(in, span->ticket_in, 0, 120000, NULL, &err);
            if (!rc && span->ticket_in && span->last_in) lane_release(in);
            if (span->unit_count) sleep_ms(STAGE_MS);
            if (!rc && span->ticket_out) rc = lane_acquire(out, span->ticket_out, 0, 120000, NULL, &err);
            if (!rc && span->ticket_out) rc = lane_publish(out, span->ticket_out, &err);
            if (rc) atomic_fetch_add(&s->errors, 1);
        }
    return NULL;
}

static void open_setup(struct setup *s, const char *letters, uint64_t ring_bytes, bool no_graphs)
{
    struct helm_err err = {0};
    memset(s, 0, sizeof *s);
    if (model_read(FOLDER, &s->model, &err)) fail_msg("%s", err.text);
    const struct model_config *c = &s->model.config;
    uint64_t mlp = 3ull * c->hidden * c->intermediate * 2;
    s->plan = (struct plan){.layers = UNITS / 2,
                            .unit = units_of_letters(s->unit, UNITS / 2, letters, UNITS),
                            .device[PLAN_GPU0].ring_bytes = ring_bytes,
                            .embed = PLAN_CPU0,
                            .head = PLAN_GPU0};
    if (placement_make(&s->model, NULL, &s->plan, &err)) fail_msg("%s", err.text);
    const struct arena_spec spec = {.slots = 1,
                                    .context_tokens = 64,
                                    .step_tokens = 16,
                                    .hidden = c->hidden,
                                    .vocab = c->vocab,
                                    .lanes = {PLAN_LINKS},
                                    .kv = {.layers = plan_layers_of(&s->plan, PLAN_CPU0),
                                           .kv_heads = c->kv_heads,
                                           .head_dim = c->head_dim,
                                           .page_tokens = 32,
                                           .dtype = DTYPE_F16},
                                    .page_count = 2,
                                    .weight_bytes = s->model.weight_bytes + 64 * s->model.tensor_count};
    if (arena_create(&spec, &s->arena, &err)) fail_msg("%s", err.text);
    arena_page_table_of(&s->arena, 0)[1] = 1;
    struct arena_slot *slot = arena_slot_of(&s->arena, 0);
    slot->sampling.top_p = slot->sampling.repetition_penalty = 1;
    doorbell_ring(&arena_control_of(&s->arena)->weights_bell, 1); /* zeros will do */
    if (plan_spans(&s->plan, 0, &s->spans, &s->span_count, &err)) fail_msg("%s", err.text);
    const struct engine_options options = {.folder = FOLDER,
                                           .plan = &s->plan,
                                           .processor = PLAN_GPU0,
                                           .threads = 1,
                                           .node = -1,
                                           .peer_wait_ms = 120000,
                                           .device = "emulated",
                                           .vram_bytes = 64 * MIB,
                                           .copy_bytes_per_s = mlp * 1000 / STAGE_MS,
                                           .no_graphs = no_graphs};
    s->engine = aligned_alloc(64, (gpu_engine_ops.bytes + 63) / 64 * 64);
    memset(s->engine, 0, gpu_engine_ops.bytes);
    if (gpu_engine_ops.load(s->engine, &s->arena, &options, &err)) fail_msg("%s", err.text);
}

static void close_setup(struct setup *s)
{
    gpu_engine_ops.free(s->engine);
    free(s->engine);
    free(s->spans);
    plan_drop_placements(&s->plan);
    arena_close(&s->arena);
    model_free(&s->model);
    assert_int_equal(atomic_load(&s->errors), 0);
}

/* Milliseconds of a step of one token, the median of some; the first is left out. */
static double run_steps(struct setup *s, struct arena_times *times)
{
    struct arena_control *control = arena_control_of(&s->arena);
    struct helm_err err = {0};
    pthread_t player;
    double ms[STEPS];
    atomic_store(&s->steps, STEPS);
    assert_int_equal(pthread_create(&player, NULL, play_cpu, s), 0);
    for (uint32_t i = 0; i < STEPS; i++) {
        struct step *step = &control->step[(i + 1) % ARENA_STEP_RING];
        *step = (struct step){.serial = i + 1, .row_count = 1, .token_count = 1};
        step->row[0] = (struct step_row){.slot = 0, .start = i, .count = 1, .flags = STEP_ROW_SAMPLE};
        arena_history_of(&s->arena, 0)[i] = 3;
        uint64_t start_us = units_now_us();
        if (gpu_engine_ops.step(s->engine, i + 1, &err)) fail_msg("%s", err.text);
        ms[i] = (double)(units_now_us() - start_us) * 1e-3;
    }
    pthread_join(player, NULL);
    *times = s->engine->times;
    for (uint32_t i = 1; i < STEPS; i++) /* insertion */
        for (uint32_t k = i; k > 1 && ms[k] < ms[k - 1]; k--) {
            double other = ms[k];
            ms[k] = ms[k - 1];
            ms[k - 1] = other;
        }
    return ms[1 + (STEPS - 1) / 2];
}

/* Opens a setup anew and runs its steps, until one run's median is below `most_ms`. Leaves it open. */
static double run_undisturbed(struct setup *s, const char *letters, uint64_t ring_bytes, bool no_graphs,
                              double most_ms, struct arena_times *times)
{
    double ms = 0;
    for (int i = 0; i < TRIES && (i == 0 || ms >= most_ms); i++) {
        if (i) close_setup(s);
        open_setup(s, letters, ring_bytes, no_graphs);
        ms = run_steps(s, times);
    }
    return ms;
}

/* The link's time for `bytes` at the speed it was given. */
static double link_ms(const struct setup *s, uint64_t bytes)
{
    const struct model_config *c = &s->model.config;
    return (double)bytes * STAGE_MS / (3.0 * c->hidden * c->intermediate * 2);
}

/* Attention halves are the CPU's, 40 ms each; MLP halves come over the link in 40 ms each, those that did not
 * stay in the ring. One after the other that would be near 300 ms. With a ring for two halves the CPU's 160
 * hide the link's. */
static void the_link_works_while_the_cpu_computes(void **state)
{
    (void)state;
    for (int anew = 0; anew < 2; anew++) {
        struct setup *s = calloc(1, sizeof *s);
        struct arena_times times;
        double ms = run_undisturbed(s, "cscscscs", 2500 * KIB, anew, 220, &times);
        double link = link_ms(s, times.link_bytes);
        print_message("cpu 160 ms, link %.1f ms: a step takes %.1f ms, of them %.1f waiting\n", link, ms,
                      (double)times.wait_ns * 1e-6);
        assert_true(link > 110 && link < 165);
        assert_true(ms >= 155 && ms < 220);
        assert_true((double)times.wait_ns * 1e-6 > 100); /* time that the GPU did not compute */
        /* of one step's 160 ms; a thread that gets no processor counts less, a stage left out 40 */
        assert_true(times.busy_ns + times.wait_ns > 140000000);
        close_setup(s);
        free(s);
    }
}

/* All of the link's work is after the CPU's only stage: the ring has been filled by the end of the step
 * before, and goes on being filled meanwhile. */
static void the_link_works_between_steps(void **state)
{
    (void)state;
    struct setup *s = calloc(1, sizeof *s);
    struct arena_times times;
    double ms = run_undisturbed(s, "cccscscc", 8 * MIB, false, 160, &times);
    print_message("both halves stay in the ring: a step takes %.1f ms\n", ms);
    assert_int_equal(times.link_bytes, 0);
    assert_true(ms >= 115 && ms < 160);
    close_setup(s);
    free(s);
    /* Nothing hides the link but what is between the steps and the ends of them. */
    s = calloc(1, sizeof *s);
    double all = run_undisturbed(s, "ssssssss", 600 * KIB, false, 345, &times);
    double link = link_ms(s, times.link_bytes);
    print_message("link alone %.1f ms: a step takes %.1f ms\n", link, all);
    assert_true(all > link * 0.7 && all < link * 1.35);
    close_setup(s);
    free(s);
}

/* Without its weights the engine waits, and ends when told to. */
static void *cancel_later(void *arg)
{
    struct worker_engine *engine = arg;
    sleep_ms(150);
    atomic_store(&engine->cancel, true);
    return NULL;
}

static void weights_are_waited_for(void **state)
{
    (void)state;
    struct setup *s = calloc(1, sizeof *s);
    struct helm_err err = {0};
    pthread_t other;
    open_setup(s, "cscscscs", 1 * MIB, false);
    gpu_engine_ops.free(s->engine);
    doorbell_ring(&arena_control_of(&s->arena)->weights_bell, 0);
    struct engine_options options = {.folder = FOLDER,
                                     .plan = &s->plan,
                                     .processor = PLAN_GPU0,
                                     .threads = 1,
                                     .node = -1,
                                     .peer_wait_ms = 200,
                                     .device = "emulated",
                                     .vram_bytes = 64 * MIB};
    memset(s->engine, 0, gpu_engine_ops.bytes);
    assert_int_equal(gpu_engine_ops.load(s->engine, &s->arena, &options, &err), HELM_E_PEER);
    assert_non_null(strstr(err.text, "weights"));
    options.peer_wait_ms = 120000;
    memset(s->engine, 0, gpu_engine_ops.bytes);
    assert_int_equal(pthread_create(&other, NULL, cancel_later, s->engine), 0);
    uint64_t start_us = units_now_us();
    assert_int_equal(gpu_engine_ops.load(s->engine, &s->arena, &options, &err), HELM_E_CANCELLED);
    assert_true(units_now_us() - start_us < 5000000);
    pthread_join(other, NULL);
    doorbell_ring(&arena_control_of(&s->arena)->weights_bell, 1);
    memset(s->engine, 0, gpu_engine_ops.bytes);
    assert_int_equal(gpu_engine_ops.load(s->engine, &s->arena, &options, &err), 0);
    close_setup(s);
    free(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_link_works_while_the_cpu_computes),
        cmocka_unit_test(the_link_works_between_steps),
        cmocka_unit_test(weights_are_waited_for),
    };
    return cmocka_run_group_tests_name("ipc/stream", tests, NULL, NULL);
}
