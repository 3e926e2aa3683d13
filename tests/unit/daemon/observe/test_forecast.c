/* Unit tests of daemon/observe/forecast.c and daemon/observe/observe.c: forecasts agree with the cost model
 * and are made once, chunks keep within their time, and steps are filed under what they are. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/formats/packed.h"
#include "tests/written_formats.h"
#include "tests/written_plans.h"
#include "daemon/observe/observe.h"

#define SLOTS 4

struct setting {
    struct model model;
    struct profile profile;
    struct plan plan;
    struct plan_unit unit[WRITTEN_UNITS(MODEL_LAYERS_MAX)];
    struct observe observe;
};

static struct forecast *open_forecast(struct setting *s)
{
    struct helm_err err = {0};
    memset(s, 0, sizeof *s);
    if (model_read("tools/models/demo", &s->model, &err) ||
        profile_read("tests/data/profiles/described.json", NULL, &s->profile, &err))
        fail_msg("%s", err.text);
    s->plan = (struct plan){.layers = s->model.config.layers,
                            .context_tokens = 1024,
                            .step_tokens = 512,
                            .slots = SLOTS,
                            .kv_dtype = "f16",
                            .unit = units_all(s->unit, s->model.config.layers, PLAN_HOME_CPU)};
    if (forecast_open(&s->model, &s->profile, &s->plan, &s->observe.forecast, &err)) fail_msg("%s", err.text);
    observe_init(&s->observe, 0, OBSERVE_NO_WORKER, 0, 0);
    return &s->observe.forecast;
}

static void close_forecast(struct setting *s)
{
    forecast_close(&s->observe.forecast);
    model_free(&s->model);
}

static void decode_forecasts_are_the_cost_models(void **state)
{
    (void)state;
    struct setting *s = malloc(sizeof *s);
    assert_non_null(s);
    struct forecast *f = open_forecast(s);
    struct helm_err err = {0};
    for (uint32_t batch = 1; batch <= SLOTS; batch++)
        for (uint32_t context = 1; context <= 1024; context += 1 + context / 3) {
            struct cost_forecast want, got;
            assert_int_equal(cost_decode(&f->c, batch, context, &want, &err), 0);
            forecast_decode(f, batch, context, &got);
            if (fabs(got.seconds / want.seconds - 1) > 0.02)
                fail_msg("batch %u, context %u: %g s, the model says %g", batch, context, got.seconds,
                         want.seconds);
            assert_true(got.low <= got.seconds && got.seconds <= got.high);
            assert_float_equal(got.busy[COST_CPU], want.busy[COST_CPU], 0.02 * want.busy[COST_CPU]);
        }
    struct cost_forecast most, beyond;
    forecast_decode(f, SLOTS, 1024, &most);
    forecast_decode(f, 1000, 1024, &beyond); /* no more than there are slots */
    assert_float_equal(most.seconds, beyond.seconds, 1e-12);
    forecast_decode(f, 1, UINT32_MAX, &beyond);
    assert_true(isfinite(beyond.seconds) && beyond.seconds > most.seconds);
    assert_true(f->cpu_bytes > s->model.weight_bytes / 2 && f->cpu_bytes <= s->model.weight_bytes);
    assert_true(f->link_bytes == 0);
    close_forecast(s);
    free(s);
}

/* Where a cache of two tiers outgrows its places the time jumps: forecasts are near the cost model on both
 * sides. */
static void two_tiers_are_forecast_at_every_depth(void **state)
{
    (void)state;
    struct setting *s = malloc(sizeof *s);
    assert_non_null(s);
    struct forecast *f = open_forecast(s);
    struct helm_err err = {0};
    s->profile.gpu = (struct profile_gpu){.device = PROFILE_DEVICE_CUDA,
                                          .read = {.value = 1e12},
                                          .gemv = {.value = 1e12},
                                          .attention = {.value = 5e11},
                                          .attention_flops = {.value = 1e13},
                                          .linear = {.point = {{2, {.value = 1e13}}}, .count = 1}};
    s->profile.link = (struct profile_link){.h2d = {.value = 2e10},
                                            .d2h = {.value = 2e10},
                                            .h2d_beside = {.value = 2e10},
                                            .hand_over = {.value = 5e-6}};
    units_all(s->unit, s->plan.layers, PLAN_HOME_GPU);
    s->plan.embed = s->plan.head = PLAN_GPU0;
    s->plan.page_tokens = 16;
    s->plan.page_count = 512;
    s->plan.device[PLAN_GPU0].vram_page_count =
        40; /* 32 pages: 512 positions of one row, 128 of each of four */
    s->plan.kv_free_places = 8;
    s->plan.kv_direct_permille = 300;
    for (uint32_t places = 40; places <= 50; places += 10) /* 672: between two powers of two */
        for (uint32_t batch = 1; batch <= SLOTS; batch++) {
            forecast_close(f);
            s->plan.device[PLAN_GPU0].vram_page_count = places;
            if (forecast_open(&s->model, &s->profile, &s->plan, f, &err)) fail_msg("%s", err.text);
            double before = 0;
            for (uint32_t context = 1; context <= 4096; context += 1 + context / 40) {
                struct cost_forecast want, got;
                assert_int_equal(cost_decode(&f->c, batch, context, &want, &err), 0);
                forecast_decode(f, batch, context, &got);
                if (fabs(got.seconds / want.seconds - 1) > 0.02)
                    fail_msg("%u places, batch %u, context %u: %g s, the model says %g", places, batch,
                             context, got.seconds, want.seconds);
                assert_true(got.seconds >= before * (1 - 1e-9));
                before = got.seconds;
            }
        }
    close_forecast(s);
    free(s);
}

static void chunks_keep_within_their_time(void **state)
{
    (void)state;
    struct setting *s = malloc(sizeof *s);
    assert_non_null(s);
    struct forecast *f = open_forecast(s);
    const struct cost_step whole = {.tokens = 512, .rows = 2, .samples = 2, .context = 512};
    double seconds = forecast_step(f, &whole);
    assert_true(seconds > 0);
    assert_int_equal(forecast_chunk(f, 1, 100, 10 * seconds), 511); /* all that a step holds beside the one */
    const struct cost_step some = {.tokens = FORECAST_CHUNK_LEAST + 1,
                                   .rows = 2,
                                   .samples = 2,
                                   .context = 128};
    const double least = forecast_step(f, &some);
    uint32_t last = 512;
    for (double allowed = 2 * seconds; allowed > seconds / 200; allowed /= 2) {
        uint32_t chunk = forecast_chunk(f, 1, 100, allowed);
        const struct cost_step step = {.tokens = chunk + 1,
                                       .rows = 2,
                                       .samples = 2,
                                       .context = chunk / 2 + 1 > 128 ? chunk / 2 + 1 : 128};
        assert_in_range(chunk, FORECAST_CHUNK_LEAST, last);
        if (chunk > FORECAST_CHUNK_LEAST &&
            forecast_step(f, &step) > fmax(allowed, FORECAST_CHUNK_STRETCH * least))
            fail_msg("%u tokens take %g s, more than %g", chunk, forecast_step(f, &step), allowed);
        assert_int_equal(forecast_chunk(f, 1, 100, allowed), chunk); /* remembered */
        last = chunk;
    }
    assert_true(last < 100);
    s->observe.max_stall = 0;
    assert_int_equal(observe_prompt_tokens(&s->observe, 1, 100), 0);
    s->observe.max_stall = 10 * seconds;
    assert_int_equal(observe_prompt_tokens(&s->observe, 0, 0), 0); /* no row waits */
    assert_int_equal(observe_prompt_tokens(&s->observe, 1, 100), 511);
    close_forecast(s);
    free(s);
}

/* The link takes longer for the weights than a step may: cutting a chunk would save the other rows no
 * waiting, and make its prompt wait for the weights once for every 16 tokens. */
static void a_chunk_that_costs_nothing_more_is_not_cut(void **state)
{
    (void)state;
    struct setting *s = malloc(sizeof *s);
    struct helm_err err = {0};
    assert_non_null(s);
    struct forecast *f = open_forecast(s);
    forecast_close(f);
    units_all(s->unit, s->plan.layers, PLAN_HOME_STREAM);
    s->plan.embed = s->plan.head = PLAN_GPU0;
    s->plan.device[PLAN_GPU0].ring_bytes = 64 * 1024;
    s->profile.link.h2d.value = s->profile.link.h2d_beside.value = 1e6;
    if (forecast_open(&s->model, &s->profile, &s->plan, f, &err)) fail_msg("%s", err.text);
    const struct cost_step alone = {.tokens = 1, .rows = 1, .samples = 1, .context = 128};
    double seconds = forecast_step(f, &alone);
    assert_true(seconds > 0);
    assert_int_equal(forecast_chunk(f, 1, 100, seconds / 2), 511);
    /* on the CPU every token costs */
    forecast_close(f);
    units_all(s->unit, s->plan.layers, PLAN_HOME_CPU);
    s->plan.embed = s->plan.head = PLAN_CPU0;
    s->plan.device[PLAN_GPU0].ring_bytes = 0;
    for (uint32_t i = 0; i < s->profile.cpu.linear.count; i++) s->profile.cpu.linear.point[i].y.value = 1e6;
    if (forecast_open(&s->model, &s->profile, &s->plan, f, &err)) fail_msg("%s", err.text);
    assert_int_equal(forecast_chunk(f, 1, 100, 0), FORECAST_CHUNK_LEAST);
    close_forecast(s);
    free(s);
}

/* A prompt's step by a list of its own begins with what the ring holds of it for decode. */
static void the_ring_holds_slices_of_a_prompts_step(void **state)
{
    (void)state;
    struct setting *s = malloc(sizeof *s);
    struct helm_err err = {0};
    struct cost_forecast ttft;
    assert_non_null(s);
    struct forecast *f = open_forecast(s);
    forecast_close(f);
    units_all(s->unit, s->plan.layers, PLAN_HOME_STREAM);
    add_letters(&s->plan, 16, "s");
    s->plan.embed = s->plan.head = PLAN_GPU0;
    s->profile.link.h2d.value = s->profile.link.h2d_beside.value = 1e6;
    double before = INFINITY;
    for (uint64_t ring = 32 * 1024; ring <= 256 * 1024; ring *= 2) {
        s->plan.device[PLAN_GPU0].ring_bytes = ring;
        if (forecast_open(&s->model, &s->profile, &s->plan, f, &err)) fail_msg("%s", err.text);
        const struct cost_step whole = {.tokens = 512, .rows = 1, .samples = 1, .context = 512};
        double seconds = forecast_step(f, &whole);
        assert_int_equal(cost_ttft(&f->c, 512, &ttft, &err), 0);
        assert_float_equal(seconds, ttft.seconds, 1e-9);
        assert_true(seconds < before); /* the more it holds, the less is waited for */
        before = seconds;
        forecast_close(f);
    }
    /* of no use where the prompt's list streams other units */
    double seconds[2];
    for (int other = 0; other < 2; other++) {
        for (uint32_t u = 0; u < unit_count(s->plan.layers); u++)
            s->unit[u].home[1] = other ? PLAN_HOME_CPU : PLAN_HOME_STREAM;
        if (forecast_open(&s->model, &s->profile, &s->plan, f, &err)) fail_msg("%s", err.text);
        const struct cost_step whole = {.tokens = 512, .rows = 1, .samples = 1, .context = 512};
        seconds[other] = forecast_step(f, &whole);
        assert_int_equal(cost_ttft(&f->c, 512, &ttft, &err), 0);
        assert_float_equal(seconds[other], ttft.seconds, 1e-9);
        forecast_close(f);
    }
    assert_true(seconds[0] != seconds[1]);
    model_free(&s->model);
    free(s);
}

/* A plan that packs: less on the link, and a step that waits for it is shorter; the ring holds more of it. */
static void packed_weights_are_forecast(void **state)
{
    (void)state;
    struct setting *s = malloc(sizeof *s);
    struct helm_err err = {0};
    assert_non_null(s);
    struct forecast *f = open_forecast(s);
    forecast_close(f);
    units_all(s->unit, s->plan.layers, PLAN_HOME_STREAM);
    s->plan.embed = s->plan.head = PLAN_GPU0;
    s->plan.device[PLAN_GPU0].ring_bytes = 32 * 1024;
    s->profile.link.h2d.value = s->profile.link.h2d_beside.value = 1e6;
    uint64_t bytes[2];
    double decode[2], chunk[2];
    for (int pack = 0; pack < 2; pack++) {
        const struct cost_step whole = {.tokens = 512, .rows = 1, .samples = 1, .context = 512};
        struct cost_forecast one;
        write_formats(&s->plan, &(struct written_formats){.link = pack});
        if (forecast_open(&s->model, &s->profile, &s->plan, f, &err)) fail_msg("%s", err.text);
        forecast_decode(f, 1, 100, &one);
        bytes[pack] = f->link_bytes;
        decode[pack] = one.seconds;
        chunk[pack] = forecast_step(f, &whole);
        forecast_close(f);
    }
    assert_true(bytes[1] > bytes[0] * 70 / 100 && bytes[1] < bytes[0] * 72 / 100);
    assert_true(decode[1] > 0.65 * decode[0] && decode[1] < 0.8 * decode[0]);
    assert_true(chunk[1] < 0.8 * chunk[0]);
    model_free(&s->model);
    free(s);
}

/* A plan whose CPU computes with packed weights: it reads fewer bytes, one token is faster by what the
 * profile says, and a prompt's step slower. */
static void what_the_cpu_reads_packed_is_forecast(void **state)
{
    (void)state;
    struct setting *s = malloc(sizeof *s);
    struct helm_err err = {0};
    assert_non_null(s);
    struct forecast *f = open_forecast(s);
    bool fits[2 * MODEL_LAYERS_MAX];
    forecast_close(f);
    s->profile.cpu.gemv_packed = s->profile.cpu.gemv;
    s->profile.cpu.gemv_packed.value *= 1.4;
    for (uint32_t i = 0; i < s->model.tensor_count; i++) /* rows as long as kernels for it take */
        if (s->model.tensors[i].layer >= 0 && s->model.tensors[i].rows > 1) {
            s->model.tensors[i].cols = 2 * PACKED_TILE;
            s->model.tensors[i].bytes = s->model.tensors[i].rows * 2 * PACKED_TILE * 2;
        }
    uint64_t bytes[2], stored = 0;
    double decode[2], chunk[2];
    for (int pack = 0; pack < 2; pack++) {
        const struct cost_step whole = {.tokens = 512, .rows = 1, .samples = 1, .context = 512};
        struct cost_forecast one;
        write_formats(&s->plan, &(struct written_formats){.cpu = pack});
        if (forecast_open(&s->model, &s->profile, &s->plan, f, &err)) fail_msg("%s", err.text);
        for (uint32_t u = 0; u < unit_count(s->plan.layers); u++) fits[u] = f->analysed.packs_cpu[u];
        forecast_decode(f, 1, 100, &one);
        bytes[pack] = f->cpu_bytes;
        decode[pack] = one.seconds;
        chunk[pack] = forecast_step(f, &whole);
        stored = analyse_units_stored(&f->analysed, 0, unit_count(s->plan.layers) - 1);
        forecast_close(f);
    }
    for (uint32_t u = 0; u < unit_count(s->plan.layers); u++) assert_true(fits[u]);
    assert_true(bytes[0] - bytes[1] > stored * 28 / 100 && bytes[0] - bytes[1] < stored * 30 / 100);
    assert_true(decode[1] < decode[0]);
    const double gemv = s->profile.cpu.gemv.value;
    assert_float_equal(decode[0] - decode[1], (double)stored * (1 / gemv - 1 / (1.4 * gemv)),
                       0.01 * (double)stored / gemv);
    assert_float_equal(chunk[1] - chunk[0], (double)stored / (1.4 * gemv), 0.01 * (double)stored / gemv);
    model_free(&s->model);
    free(s);
}

static void rows(struct step *step, uint32_t count, const struct step_row *row)
{
    memset(step, 0, sizeof *step);
    step->row_count = count;
    for (uint32_t i = 0; i < count; i++) {
        step->row[i] = row[i];
        step->token_count += row[i].count;
    }
}

static void steps_are_filed_under_what_they_are(void **state)
{
    (void)state;
    struct setting *s = malloc(sizeof *s);
    struct step *step = malloc(sizeof *step);
    assert_true(s && step);
    open_forecast(s);
    struct observe *o = &s->observe;
    const struct arena_times done[2] = {{.busy_ns = 5000000, .weight_bytes = 1000}, {.busy_ns = 7}};
    struct drift_report report;
    /* a prompt of 600 in two chunks, alone */
    rows(step, 1, &(struct step_row){.slot = 2, .start = 0, .count = 512});
    observe_step(o, step, done, 0, 0.5);
    rows(step, 1, &(struct step_row){.slot = 2, .start = 512, .count = 88, .flags = STEP_ROW_SAMPLE});
    observe_step(o, step, done, 0, 0.25);
    assert_true(drift_report(&o->drift.ttft[9], &report));
    assert_int_equal(report.count, 1);
    assert_float_equal(report.measured, 0.75, 1e-6);
    assert_float_equal(report.shape, 600, 1e-6);
    struct cost_forecast ttft;
    struct helm_err err = {0};
    assert_int_equal(cost_ttft(&o->forecast.c, 600, &ttft, &err), 0);
    assert_float_equal(report.planned, ttft.seconds, 1e-5 * ttft.seconds);
    /* decode of it and another */
    const struct step_row pair[] = {{.slot = 2, .start = 600, .count = 1, .flags = STEP_ROW_SAMPLE},
                                    {.slot = 1, .start = 100, .count = 1, .flags = STEP_ROW_SAMPLE}};
    rows(step, 2, pair);
    observe_step(o, step, done, 0, 0.01);
    assert_true(drift_report(&o->drift.decode[1], &report));
    assert_float_equal(report.measured, 0.01, 1e-6);
    assert_float_equal(report.shape, 351, 1e-6);
    assert_true(report.planned > 0);
    assert_float_equal(o->drift.measured.cpu_busy, 0.005, 1e-9);
    assert_float_equal(o->drift.measured.gpu_busy, 0, 1e-9);
    struct cost_forecast both;
    assert_int_equal(cost_decode(&o->forecast.c, 2, 351, &both, &err), 0);
    assert_float_equal(observe_planned(o, step), both.seconds, 0.02 * both.seconds);
    /* a prompt beside a decoding one says nothing of either */
    const struct step_row mixed[] = {{.slot = 2, .start = 601, .count = 1, .flags = STEP_ROW_SAMPLE},
                                     {.slot = 3, .start = 0, .count = 40, .flags = STEP_ROW_SAMPLE}};
    rows(step, 2, mixed);
    assert_true(observe_planned(o, step) > 0);
    observe_step(o, step, done, 0, 0.1);
    assert_false(drift_report(&o->drift.ttft[5], &report));
    assert_true(drift_report(&o->drift.decode[1], &report) && report.count == 1);
    /* one that was lost midway, and goes on as if nothing had happened */
    rows(step, 1, &(struct step_row){.slot = 0, .start = 0, .count = 20});
    observe_step(o, step, done, 0, 0.1);
    observe_lost(o);
    rows(step, 1, &(struct step_row){.slot = 0, .start = 20, .count = 20, .flags = STEP_ROW_SAMPLE});
    observe_step(o, step, done, 0, 0.1);
    assert_false(drift_report(&o->drift.ttft[5], &report));
    /* a prompt of one token is a prompt */
    rows(step, 1, &(struct step_row){.slot = 0, .start = 0, .count = 1, .flags = STEP_ROW_SAMPLE});
    observe_step(o, step, done, 0, 0.1);
    assert_true(drift_report(&o->drift.ttft[0], &report) && report.count == 1);
    assert_false(drift_report(&o->drift.decode[0], &report));
    close_forecast(s);
    free(s);
    free(step);
}

static void what_cannot_be_forecast_is_refused(void **state)
{
    (void)state;
    struct setting *s = malloc(sizeof *s);
    assert_non_null(s);
    open_forecast(s);
    forecast_close(&s->observe.forecast);
    struct helm_err err = {0};
    s->profile.cpu.gemv.value = 0;
    assert_int_not_equal(forecast_open(&s->model, &s->profile, &s->plan, &s->observe.forecast, &err), 0);
    assert_true(err.text[0] != 0);
    close_forecast(s);
    free(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(decode_forecasts_are_the_cost_models),
        cmocka_unit_test(two_tiers_are_forecast_at_every_depth),
        cmocka_unit_test(chunks_keep_within_their_time),
        cmocka_unit_test(a_chunk_that_costs_nothing_more_is_not_cut),
        cmocka_unit_test(the_ring_holds_slices_of_a_prompts_step),
        cmocka_unit_test(packed_weights_are_forecast),
        cmocka_unit_test(what_the_cpu_reads_packed_is_forecast),
        cmocka_unit_test(steps_are_filed_under_what_they_are),
        cmocka_unit_test(what_cannot_be_forecast_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
