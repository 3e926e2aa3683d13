/* Unit tests of daemon/observe/step_prices.c: forecasts are the cost model's, corrected by measured steps. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/plan/state.h"
#include "daemon/observe/observe.h"
#include "tests/written_plans.h"

struct setting {
    struct model model;
    struct profile profile;
    struct plan plan;
    struct plan_unit unit[WRITTEN_UNITS(MODEL_LAYERS_MAX)];
    struct observe observe;
};

static struct setting *set_up(enum plan_home home, uint64_t state_bytes)
{
    struct helm_err err = {0};
    struct setting *s = calloc(1, sizeof *s);
    assert_non_null(s);
    if (model_read("tools/models/demo", &s->model, &err) ||
        profile_read("tests/data/profiles/described.json", NULL, &s->profile, &err))
        fail_msg("%s", err.text);
    s->plan = (struct plan){.layers = s->model.config.layers,
                            .context_tokens = 1024,
                            .step_tokens = 512,
                            .slots = 4,
                            .kv_dtype = "f16",
                            .unit = units_all(s->unit, s->model.config.layers, home)};
    if (home != PLAN_HOME_CPU) s->plan.embed = s->plan.head = PLAN_GPU0;
    if (state_bytes) {
        s->plan.has_states = true;
        s->unit[0].state = (struct plan_state){.kind = STATE_FIXED, .bytes = state_bytes};
    }
    if (forecast_open(&s->model, &s->profile, &s->plan, &s->observe.forecast, &err)) fail_msg("%s", err.text);
    observe_init(&s->observe, 0, OBSERVE_NO_WORKER, 0, 0);
    return s;
}

static void tear_down(struct setting *s)
{
    forecast_close(&s->observe.forecast);
    model_free(&s->model);
    free(s);
}

static void take(struct setting *s, uint32_t rows, uint32_t tokens, double seconds, int times)
{
    const struct cost_step step = {.tokens = tokens, .rows = rows, .context = 200};
    for (int i = 0; i < times; i++) step_prices_take(&s->observe.prices, &step, 0, 0, seconds);
}

static void forecasts_are_the_cost_models(void **state)
{
    (void)state;
    struct setting *s = set_up(PLAN_HOME_CPU, 0);
    struct step_prices *prices = &s->observe.prices;
    struct step_prices_row now;
    assert_false(step_prices_get(prices, 2, &now));
    step_prices_make(prices, &s->observe.forecast, 2, 200);
    assert_true(step_prices_get(prices, 2, &now));
    assert_true(step_prices_known(prices, 2, 130)); /* from 128 to 255 they are the same */
    assert_false(step_prices_known(prices, 2, 256));
    assert_false(step_prices_get(prices, 3, &now));
    assert_false(step_prices_get(prices, 0, &now));
    assert_false(step_prices_get(prices, STEP_PRICES_TOKENS + 1, &now));
    assert_true(now.seconds[1] == 0);
    for (uint32_t n = 2; n <= STEP_PRICES_TOKENS; n++) {
        const struct cost_step step = {.tokens = n, .rows = 2, .samples = n, .context = 192};
        assert_true(now.seconds[n] >= now.seconds[n - 1]);
        assert_true(now.seconds[n] >= forecast_step(&s->observe.forecast, &step));
        assert_true(forecast_step(&s->observe.forecast, &step) > 0);
    }
    step_prices_make(prices, &s->observe.forecast, 1, 1); /* a row with drafts attends to these, too */
    assert_true(step_prices_get(prices, 1, &now));
    for (uint32_t n = 1; n <= STEP_PRICES_TOKENS; n++) assert_true(prices->row[0].seconds[n] > 0);
    tear_down(s);
}

static void measured_steps_correct_them(void **state)
{
    (void)state;
    struct setting *s = set_up(PLAN_HOME_CPU, 0);
    struct step_prices *prices = &s->observe.prices;
    struct step_prices_row before, now;
    step_prices_make(prices, &s->observe.forecast, 1, 200);
    assert_true(step_prices_get(prices, 1, &before));
    take(s, 1, 1, 3 * before.seconds[1], 1); /* alone it stands for all */
    assert_true(step_prices_get(prices, 1, &now));
    for (uint32_t n = 1; n <= STEP_PRICES_TOKENS; n++)
        assert_float_equal(now.seconds[n] / before.seconds[n], 3, 1e-6);
    take(s, 1, 9, 5 * before.seconds[9], 1); /* the nearer one counts more */
    assert_true(step_prices_get(prices, 1, &now));
    assert_float_equal(now.seconds[5] / before.seconds[5], 4, 1e-6);
    assert_true(now.seconds[2] / before.seconds[2] < 3.5 && now.seconds[9] / before.seconds[9] > 4.5);
    take(s, 1, 1, 3 * before.seconds[1], 15); /* one step does not rule out a number against many others */
    assert_true(step_prices_get(prices, 1, &now));
    assert_true(now.seconds[9] / before.seconds[9] < 4.5);
    take(s, 1, 9, 1000 * before.seconds[9], 1); /* one that was held up is taken for twice the mean at most */
    assert_float_equal(prices->measured[9].ratio, 7.5, 1e-6);
    take(s, 1, 9, 6 * before.seconds[9], 200);
    assert_true(step_prices_get(prices, 1, &now));
    assert_float_equal(now.seconds[9] / before.seconds[9], 6, 0.3);
    take(s, 1, 9, 1e-9, 400); /* more tokens are never cheaper than fewer */
    assert_true(step_prices_get(prices, 1, &now));
    for (uint32_t n = 2; n <= STEP_PRICES_TOKENS; n++) assert_true(now.seconds[n] >= now.seconds[n - 1]);
    take(s, 1, 17, 1, 1); /* no step of few tokens, or of rows without forecasts */
    take(s, 2, 4, 1, 1);
    tear_down(s);
}

/* The layer's own time is in every step; drafts that rows make for the next one come on top, the first
 * without a pass of its own. */
static void drafts_that_are_made_have_a_price(void **state)
{
    (void)state;
    struct setting *s = set_up(PLAN_HOME_CPU, 0);
    struct step_prices *prices = &s->observe.prices;
    struct step_prices_row plain, with, now;
    step_prices_make(prices, &s->observe.forecast, 1, 200);
    assert_true(step_prices_get(prices, 1, &plain));
    assert_true(plain.first == 0 && plain.further == 0);

    s->model.config.drafts = s->plan.draft_layers = 1; /* the last layer makes drafts */
    step_prices_make(prices, &s->observe.forecast, 1, 200);
    assert_true(step_prices_get(prices, 1, &with));
    for (uint32_t n = 1; n <= STEP_PRICES_TOKENS; n++)
        assert_float_equal(with.seconds[n] / plain.seconds[n], 1, 0.01);
    assert_true(with.first > 0 && with.further > with.first);
    assert_true(with.further < plain.seconds[1]);
    for (uint32_t drafts = 1; drafts <= 4; drafts++) {
        const struct cost_step step = {
            .tokens = 1, .rows = 1, .samples = 1, .drafts = drafts, .context = 192};
        assert_float_equal(with.seconds[1] + with.first + (drafts - 1) * with.further,
                           forecast_step(&s->observe.forecast, &step), 1e-9);
    }
    const struct cost_step made = {.tokens = 4, .rows = 1, .drafts = 3, .context = 200};
    step_prices_take(prices, &made, 0, 10 * with.further,
                     3 * with.seconds[4] + 5 * with.first + 10 * with.further);
    assert_true(step_prices_get(prices, 1, &now));
    assert_float_equal(now.seconds[4] / with.seconds[4], 3, 1e-6); /* each has its own correction */
    assert_float_equal(now.further / with.further, 5, 1e-6);
    assert_float_equal(now.first / with.first, 5, 1e-6);
    s->model.config.drafts = 0;
    tear_down(s);
}

/* Copies of fixed states are no part of a step's correction: they are priced apart. */
static void fixed_states_have_a_price_of_their_own(void **state)
{
    (void)state;
    const uint64_t bytes = 100000 * STATE_ALIGN;
    struct setting *s = set_up(PLAN_HOME_CPU, bytes);
    struct step_prices *prices = &s->observe.prices;
    assert_float_equal(prices->copy, 2 * (double)bytes / s->profile.cpu.gemv.value, 1e-9);
    struct step_prices_row before, now;
    step_prices_make(prices, &s->observe.forecast, 1, 200);
    assert_true(step_prices_get(prices, 1, &before));
    const struct cost_step step = {.tokens = 4, .rows = 1, .context = 200};
    step_prices_take(prices, &step, 2, 0, before.seconds[4] + 2 * prices->copy);
    assert_true(step_prices_get(prices, 1, &now));
    assert_float_equal(now.seconds[4] / before.seconds[4], 1, 1e-6);
    tear_down(s);
    s = set_up(PLAN_HOME_GPU, bytes);
    assert_float_equal(s->observe.prices.copy, (double)bytes / s->profile.link.d2h.value, 1e-9);
    tear_down(s);
    s = set_up(PLAN_HOME_CPU, 0);
    assert_true(s->observe.prices.copy == 0);
    tear_down(s);
}

static void observe_row(struct setting *s, struct step *step, const struct step_row *row)
{
    const struct arena_times done[1] = {{.busy_ns = 1}};
    *step = (struct step){.row_count = 1, .token_count = row->count, .draft_count = row->drafts};
    step->row[0] = *row;
    observe_step(&s->observe, step, done, 0, 0.5);
}

/* Rows that begin in a prompt, also its last one, which samples, are computed as chunks: they say nothing of
 * answers' steps. */
static void prompts_say_nothing_of_steps_of_few_tokens(void **state)
{
    (void)state;
    struct setting *s = set_up(PLAN_HOME_CPU, 0);
    struct step_prices *prices = &s->observe.prices;
    struct step *step = calloc(1, sizeof *step);
    assert_non_null(step);
    step_prices_make(prices, &s->observe.forecast, 1, 40);
    observe_enter(&s->observe, 2, 40); /* 32 of them were in the prefix cache */
    observe_row(s, step, &(struct step_row){.slot = 2, .start = 32, .count = 8, .flags = STEP_ROW_SAMPLE});
    for (uint32_t n = 0; n <= STEP_PRICES_TOKENS; n++) assert_int_equal(prices->measured[n].steps, 0);
    observe_row(
        s, step,
        &(struct step_row){.slot = 2, .start = 40, .count = 4, .drafts = 3, .flags = STEP_ROW_SAMPLE});
    assert_int_equal(prices->measured[4].steps, 1);
    observe_enter(&s->observe, 2, 44); /* and when its answer is computed again */
    observe_row(s, step, &(struct step_row){.slot = 2, .start = 40, .count = 4, .flags = STEP_ROW_SAMPLE});
    assert_int_equal(prices->measured[4].steps, 1);
    free(step);
    tear_down(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(forecasts_are_the_cost_models),
        cmocka_unit_test(measured_steps_correct_them),
        cmocka_unit_test(drafts_that_are_made_have_a_price),
        cmocka_unit_test(fixed_states_have_a_price_of_their_own),
        cmocka_unit_test(prompts_say_nothing_of_steps_of_few_tokens),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
