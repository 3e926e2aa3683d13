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
    observe_init(&s->observe, 0, OBSERVE_NO_WORKER, 0);
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
    for (int i = 0; i < times; i++) step_prices_take(&s->observe.prices, &step, 0, seconds);
}

static void forecasts_are_the_cost_models(void **state)
{
    (void)state;
    struct setting *s = set_up(PLAN_HOME_CPU, 0);
    struct step_prices *prices = &s->observe.prices;
    double seconds[STEP_PRICES_TOKENS + 1];
    assert_false(step_prices_get(prices, 2, 200, seconds));
    step_prices_make(prices, &s->observe.forecast, 2, 200);
    assert_true(step_prices_get(prices, 2, 130, seconds)); /* from 128 to 255 they are the same */
    assert_false(step_prices_get(prices, 2, 256, seconds));
    assert_false(step_prices_get(prices, 3, 200, seconds));
    assert_false(step_prices_get(prices, 0, 200, seconds));
    assert_false(step_prices_get(prices, STEP_PRICES_TOKENS + 1, 200, seconds));
    assert_true(seconds[1] == 0);
    for (uint32_t n = 2; n <= STEP_PRICES_TOKENS; n++) {
        const struct cost_step step = {.tokens = n, .rows = 2, .samples = n, .context = 192};
        assert_true(seconds[n] >= seconds[n - 1]);
        assert_true(seconds[n] >= forecast_step(&s->observe.forecast, &step));
        assert_true(forecast_step(&s->observe.forecast, &step) > 0);
    }
    step_prices_make(prices, &s->observe.forecast, 1, 1); /* a row with drafts attends to these, too */
    assert_true(step_prices_get(prices, 1, 1, seconds));
    for (uint32_t n = 1; n <= STEP_PRICES_TOKENS; n++) assert_true(prices->row[0].seconds[n] > 0);
    tear_down(s);
}

static void measured_steps_correct_them(void **state)
{
    (void)state;
    struct setting *s = set_up(PLAN_HOME_CPU, 0);
    struct step_prices *prices = &s->observe.prices;
    double before[STEP_PRICES_TOKENS + 1], seconds[STEP_PRICES_TOKENS + 1];
    step_prices_make(prices, &s->observe.forecast, 1, 200);
    assert_true(step_prices_get(prices, 1, 200, before));
    take(s, 1, 1, 3 * before[1], 1); /* alone it stands for all */
    assert_true(step_prices_get(prices, 1, 200, seconds));
    for (uint32_t n = 1; n <= STEP_PRICES_TOKENS; n++) assert_float_equal(seconds[n] / before[n], 3, 1e-6);
    take(s, 1, 9, 5 * before[9], 1); /* the nearer one counts more */
    assert_true(step_prices_get(prices, 1, 200, seconds));
    assert_float_equal(seconds[5] / before[5], 4, 1e-6);
    assert_true(seconds[2] / before[2] < 3.5 && seconds[9] / before[9] > 4.5);
    take(s, 1, 1, 3 * before[1], 15); /* one step does not rule out a number against many others */
    assert_true(step_prices_get(prices, 1, 200, seconds));
    assert_true(seconds[9] / before[9] < 4.5);
    take(s, 1, 9, 1000 * before[9], 1); /* one that was held up is taken for twice the mean at most */
    assert_float_equal(prices->measured[9].ratio, 7.5, 1e-6);
    take(s, 1, 9, 6 * before[9], 200);
    assert_true(step_prices_get(prices, 1, 200, seconds));
    assert_float_equal(seconds[9] / before[9], 6, 0.3);
    take(s, 1, 9, 1e-9, 400); /* more tokens are never cheaper than fewer */
    assert_true(step_prices_get(prices, 1, 200, seconds));
    for (uint32_t n = 2; n <= STEP_PRICES_TOKENS; n++) assert_true(seconds[n] >= seconds[n - 1]);
    take(s, 1, 17, 1, 1); /* no step of few tokens, or of rows without forecasts */
    take(s, 2, 4, 1, 1);
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
    double before[STEP_PRICES_TOKENS + 1], seconds[STEP_PRICES_TOKENS + 1];
    step_prices_make(prices, &s->observe.forecast, 1, 200);
    assert_true(step_prices_get(prices, 1, 200, before));
    const struct cost_step step = {.tokens = 4, .rows = 1, .context = 200};
    step_prices_take(prices, &step, 2, before[4] + 2 * prices->copy);
    assert_true(step_prices_get(prices, 1, 200, seconds));
    assert_float_equal(seconds[4] / before[4], 1, 1e-6);
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
    observe_step(&s->observe, step, done, 0.5);
}

/* Rows that begin in a prompt, also its last one, which samples, are computed as chunks: they say nothing of answers' steps. */
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
        cmocka_unit_test(fixed_states_have_a_price_of_their_own),
        cmocka_unit_test(prompts_say_nothing_of_steps_of_few_tokens),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
