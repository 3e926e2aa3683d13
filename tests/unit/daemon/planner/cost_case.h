/* Shared by the tests of prices: the 8B shape on a machine of round numbers, a step of it priced, times
 * compared. Included by test_cost.c and test_cost_plan.c. */
#pragma once

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <string.h>

#include "daemon/planner/cost/cost.h"
#include "tests/unit/daemon/planner/made_up_model.h"

/* Bytes of the 8B shape's halves, T 4.1 and 4.2, with their norms. */
#define ATTENTION (2.0 * (4096.0 * 4096 * 2 + 4096.0 * 1024 * 2 + 4096))
#define MLP       (2.0 * (3.0 * 4096 * 12288 + 4096))
#define HEAD      (2.0 * 151936 * 4096)
#define KV        (2.0 * 8 * 128 * 2) /* a position, a layer: 4,096 c, not 4 c (T 4.5) */

struct priced {
    struct made_up m;
    struct profile profile;
    struct cost_table table;
    struct helm_err err;
};

static inline void price(struct priced *p, struct cost_step step)
{
    cost_table_free(&p->table);
    if (cost_price(&p->m.model, &p->m.analysed, &p->profile, &step, &p->table, &p->err))
        fail_msg("%s", p->err.text);
}

/* CPU 100 GB/s (80 beside), GPU 1,000, link 50 (40 beside); operations 10 and 5 us. */
static inline struct profile round_numbers(void)
{
    const struct made_up_rates rates = {100, 80, 1000, 50, 40, 1, 100};
    struct profile p = made_up_profile(&rates);
    p.cpu.attention = made_up_value(50e9);
    p.cpu.attention_flops = made_up_value(0.5e12);
    p.cpu.linear.point[0] = (struct profile_point){2, made_up_value(1e12)};
    p.cpu.linear.count = 1;
    p.cpu.operation = made_up_value(10e-6);
    p.gpu.attention = made_up_value(500e9);
    p.gpu.attention_flops = made_up_value(20e12);
    p.gpu.read = made_up_value(1000e9);
    p.gpu.linear.point[0] = (struct profile_point){2, made_up_value(100e12)};
    p.gpu.linear.count = 1;
    p.gpu.operation = made_up_value(5e-6);
    p.gpu.launch = made_up_value(8e-6);
    p.link.d2h = made_up_value(50e9);
    p.link.latency = made_up_value(10e-6);
    p.link.hand_over = made_up_value(7e-6);
    p.step = made_up_value(30e-6);
    return p;
}

static inline int open_8b(void **state)
{
    static struct priced p;
    memset(&p, 0, sizeof p);
    p.profile = round_numbers();
    *state = &p;
    return made_up_open(&p.m, &shape_8b) ? 0 : -1;
}

static inline int close_8b(void **state)
{
    struct priced *p = *state;
    cost_table_free(&p->table);
    made_up_close(&p->m);
    return 0;
}

static inline void expect(const char *what, double is, double should)
{
    if (fabs(is - should) > 1e-9 * should + 1e-12)
        fail_msg("%s: %.6f us, not %.6f", what, is * 1e6, should * 1e6);
}

/* A test that gets its own `struct priced`. */
#define WITH_8B(test) cmocka_unit_test_setup_teardown(test, open_8b, close_8b)
