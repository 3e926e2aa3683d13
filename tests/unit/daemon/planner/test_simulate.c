/* Unit tests of daemon/planner/cost/simulate.c: closed forms, what more of anything must not do, the
 * timeline. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "daemon/planner/cost/cost.h"
#include "common/cpu/pool.h"

#define UNITS          160
#define MB             1e6
#define CLOSE          1e-9
#define C              PLAN_HOME_CPU
#define G              PLAN_HOME_GPU
#define S              PLAN_HOME_STREAM
#define COUNTED(array) (sizeof(array) / sizeof *(array))

/* Every unit 100 MB: 10 ms on the CPU, 1 ms on the GPU, 4 ms on the link. Ends and hand-overs cost nothing.
 */
struct machine {
    struct cost_unit unit[UNITS];
    struct cost_table table;
};

static void make_machine(struct machine *m, uint32_t units)
{
    memset(m, 0, sizeof *m);
    m->table = (struct cost_table){.units = units, .tokens = 1, .follows = true, .unit = m->unit};
    for (uint32_t u = 0; u < units; u++)
        m->unit[u] = (struct cost_unit){.cpu = 10e-3,
                                        .cpu_beside = 10e-3,
                                        .gpu = 1e-3,
                                        .stream = 1e-3,
                                        .link = 4e-3,
                                        .link_beside = 4e-3,
                                        .bytes = 100000000,
                                        .crossing = 100000000};
}

static double seconds_of(const struct machine *m, const enum plan_home *home, double ring)
{
    const struct cost_plan plan = {.home = home,
                                   .embed = PLAN_CPU0,
                                   .head = PLAN_CPU0,
                                   .ring_bytes = (uint64_t)ring};
    return cost_seconds(&m->table, &plan, INFINITY);
}

static void expect(double is, double should)
{
    if (fabs(is - should) > CLOSE) fail_msg("%.9f ms, not %.9f", is * 1e3, should * 1e3);
}

/* To the GPU while the ring is full: as alone; back while the link fills what was used: longer. */
static void a_hand_over_beside_copies_is_longer(void **state)
{
    static struct machine m;
    (void)state;
    make_machine(&m, 2);
    m.table.hand_over = 1e-4;
    const double streamed = seconds_of(&m, (enum plan_home[]){C, S}, 1e8),
                 resident = seconds_of(&m, (enum plan_home[]){C, G}, 0);
    expect(streamed, 11e-3 + 2e-4);
    m.table.hand_over_more = 5e-5;
    expect(seconds_of(&m, (enum plan_home[]){C, S}, 1e8), streamed + 5e-5);
    expect(seconds_of(&m, (enum plan_home[]){C, G}, 0), resident);
}

static void one_home_is_a_sum(void **state)
{
    static struct machine m;
    (void)state;
    make_machine(&m, 4);
    m.table.hand_over = 1e-4;
    m.table.activation = 1e-5;
    m.table.step = 2e-4;
    m.table.embed = (struct cost_unit){.cpu = 3e-4, .cpu_beside = 9, .gpu = 1e-5};
    m.table.head = (struct cost_unit){.cpu = 2e-3, .cpu_beside = 9, .gpu = 1e-4};
    expect(seconds_of(&m, (enum plan_home[]){C, C, C, C}, 0), 40e-3 + 2.5e-3);
    expect(seconds_of(&m, (enum plan_home[]){G, G, G, G}, 0), 4e-3 + 2.5e-3 + 2.2e-4);
    expect(seconds_of(&m, (enum plan_home[]){G, C, G, C}, 0), 22e-3 + 2.5e-3 + 4.4e-4);
    const struct cost_plan gpu = {.home = (enum plan_home[]){G, G, C, C},
                                  .embed = PLAN_GPU0,
                                  .head = PLAN_GPU0};
    expect(cost_seconds(&m.table, &gpu, INFINITY), 22e-3 + 2e-4 + 1.1e-4 + 2.2e-4);
}

/* All streamed: the link is what counts, and the ring what it may run ahead; the last slice comes after. */
static void pure_streaming_is_bound_by_the_link(void **state)
{
    static struct machine m;
    (void)state;
    make_machine(&m, 4);
    const enum plan_home home[] = {S, S, S, S};
    expect(seconds_of(&m, home, 50 * MB), 16e-3);
    expect(seconds_of(&m, home, 400 * MB), 16e-3);
    m.table.slice = 0.1e-3; /* no link stands still for it: the next step's bytes come meanwhile */
    expect(seconds_of(&m, home, 50 * MB), 16e-3);
    for (uint32_t u = 0; u < 4; u++) m.unit[u].stream = 5e-3;
    expect(seconds_of(&m, home, 50 * MB), 20e-3);
    const struct cost_plan cold = {
        .home = home, .embed = PLAN_CPU0, .head = PLAN_CPU0, .ring_bytes = 50000000, .cold = true};
    for (uint32_t u = 0; u < 4; u++) m.unit[u].stream = 1e-3;
    expect(cost_seconds(&m.table, &cold, INFINITY), 16e-3 + 0.1e-3);
    m.table.step = 3e-3; /* in steady state the link copies meanwhile, as far as the ring goes */
    expect(seconds_of(&m, home, 400 * MB), 16e-3);
    expect(seconds_of(&m, home, 50 * MB), 3.1e-3 + 16e-3 - 2e-3);
}

/* C computes, S comes meanwhile: CPU and GPU one after another, unless the link is slower than both. */
static void alternation_is_the_larger_of_computing_and_copying(void **state)
{
    static struct machine m;
    (void)state;
    make_machine(&m, 6);
    expect(seconds_of(&m, (enum plan_home[]){C, S, C, S, C, S}, 200 * MB), 33e-3);
    expect(seconds_of(&m, (enum plan_home[]){S, C, S, C, S, C}, 200 * MB), 33e-3);
    expect(seconds_of(&m, (enum plan_home[]){C, S, S, C, S, S}, 400 * MB), 24e-3);
    for (uint32_t u = 0; u < 6; u++) m.unit[u].link = m.unit[u].link_beside = 20e-3;
    expect(seconds_of(&m, (enum plan_home[]){C, S, C, S, C, S}, 200 * MB), 60e-3);
}

/* While the CPU computes, the link fills what room the ring has and no more: the rest is waited for. */
static void a_small_ring_starves_by_what_it_does_not_hold(void **state)
{
    static struct machine m;
    (void)state;
    make_machine(&m, 2);
    const enum plan_home home[] = {C, S};
    /* 25 MB have come when the GPU begins: 75 MB at 25 MB a ms are left, and the CPU has computed 10 ms. */
    expect(seconds_of(&m, home, 25 * MB), 13e-3);
    expect(seconds_of(&m, home, 50 * MB), 12e-3);
    expect(seconds_of(&m, home, 100 * MB), 11e-3);
    expect(seconds_of(&m, home, 1000 * MB), 11e-3);
    m.table.slice = 0.3e-3;
    expect(seconds_of(&m, home, 50 * MB), 12.3e-3);
    expect(seconds_of(&m, home, 100 * MB), 11e-3);
}

/* Both are slower together: the CPU for as long as the link copies, the link for as long as the CPU computes.
 */
static void sharing_memory_slows_both(void **state)
{
    static struct machine m;
    (void)state;
    make_machine(&m, 2);
    for (uint32_t u = 0; u < 2; u++) {
        m.unit[u].cpu_beside = 15e-3;
        m.unit[u].link_beside = 5e-3;
    }
    const enum plan_home home[] = {C, S};
    /* The GPU takes 1 ms, in which 25 MB of room appear 4 times as fast as they are filled: 25 MB are copied,
     * 75 MB are left, 3.75 ms beside the CPU, a quarter of the 15 ms that it would take all along. */
    expect(seconds_of(&m, home, 100 * MB), 1e-3 + 3.75e-3 + 0.75 * 10e-3);
    /* Too slow to be ready: the link copies all the time, so the CPU is slow all the time. */
    m.unit[1].link = m.unit[1].link_beside = 30e-3;
    expect(seconds_of(&m, home, 100 * MB), 30e-3);
    expect(seconds_of(&m, (enum plan_home[]){C, C}, 100 * MB), 20e-3);
}

/* The ring goes on filling while the head is computed and helmd prepares the next step. */
static void the_ring_is_filled_across_steps(void **state)
{
    static struct machine m;
    (void)state;
    make_machine(&m, 2);
    m.table.step = 4e-3;
    const enum plan_home home[] = {S, G};
    expect(seconds_of(&m, home, 100 * MB), 6e-3);
    m.table.step = 1e-3; /* 2 ms beside the GPU's unit and the step, 2 ms while it waits */
    expect(seconds_of(&m, home, 100 * MB), 4e-3);
    const struct cost_plan cold = {
        .home = home, .embed = PLAN_GPU0, .head = PLAN_GPU0, .ring_bytes = 100000000, .cold = true};
    expect(cost_seconds(&m.table, &cold, INFINITY), 6e-3);
}

static void borrowed_caches_come_over_the_link(void **state)
{
    static struct machine m;
    (void)state;
    make_machine(&m, 4);
    for (uint32_t u = 0; u < 4; u += 2) m.unit[u].borrow = 2e-3;
    const enum plan_home home[] = {S, S, S, S};
    const bool caches[] = {true, false};
    struct cost_plan plan = {
        .home = home, .kv_cpu = caches, .embed = PLAN_GPU0, .head = PLAN_GPU0, .ring_bytes = 1000000};
    expect(cost_seconds(&m.table, &plan, INFINITY), 18e-3);
    plan.kv_cpu = NULL;
    expect(cost_seconds(&m.table, &plan, INFINITY), 16e-3);
}

/* ---- random plans ---- */

static uint64_t random_state = 1234567;
static uint32_t draw(uint32_t below)
{
    random_state = random_state * 6364136223846793005ull + 1442695040888963407ull;
    return (uint32_t)((random_state >> 33) % below);
}

/* The GPU's first unit begins no earlier than a step does on it, nor, after an embedding of the CPU's, than
 * it is ready. */
static void the_gpu_begins_when_it_is_ready(void **state)
{
    static struct machine m;
    (void)state;
    make_machine(&m, 4);
    m.table.tokens = 128;
    const enum plan_home gpu[] = {G, G, G, G};
    const struct cost_plan plan = {.home = gpu, .embed = PLAN_GPU0, .head = PLAN_GPU0, .cold = true};
    expect(cost_seconds(&m.table, &plan, INFINITY), 4e-3);
    m.table.begin = 0.3e-3;
    expect(cost_seconds(&m.table, &plan, INFINITY), 4.3e-3);
    /* Where the CPU has the embedding the GPU's own first kernels run beside it. */
    m.table.ready = 0.5e-3;
    m.table.embed = (struct cost_unit){.cpu = 0.2e-3, .cpu_beside = 0.2e-3};
    const struct cost_plan beside = {.home = gpu, .embed = PLAN_CPU0, .head = PLAN_GPU0, .cold = true};
    expect(cost_seconds(&m.table, &beside, INFINITY), 4.5e-3);
    m.table.embed.cpu = m.table.embed.cpu_beside = 0.6e-3;
    expect(cost_seconds(&m.table, &beside, INFINITY), 4.6e-3);
}

static void make_random(struct machine *m, enum plan_home *home, uint32_t units, bool contention)
{
    make_machine(m, units);
    for (uint32_t u = 0; u < units; u++) {
        struct cost_unit *unit = &m->unit[u];
        unit->bytes = 1000000 * (20 + draw(400));
        unit->crossing = u % 3 ? unit->bytes : unit->bytes / 10 * 7;
        unit->cpu = (double)unit->bytes * 1e-10;
        unit->gpu = unit->stream = (double)unit->bytes * 1e-12 * (5 + draw(50));
        unit->link = (double)unit->bytes * 1e-12 * (50 + draw(100));
        unit->cpu_beside = unit->cpu * (contention ? 1.3 : 1);
        unit->link_beside = unit->link * (contention ? 1.1 : 1);
        home[u] = (enum plan_home)draw(3);
    }
    m->table.step = 1e-4;
    m->table.hand_over = 1e-5;
    m->table.slice = 1e-5;
}

/* Serial work, the link's work and the sum of all are bounds of any plan; the busy times are the work. */
static void time_is_between_its_bounds(void **state)
{
    static struct machine m;
    enum plan_home home[40];
    (void)state;
    for (int i = 0; i < 3000; i++) {
        uint32_t units = 2 + 2 * draw(20);
        make_random(&m, home, units, i % 2);
        double link = 0, gpu = 0;
        struct cost_result r = {0};
        const struct cost_plan plan = {.home = home,
                                       .embed = PLAN_GPU0,
                                       .head = PLAN_GPU0,
                                       .ring_bytes = 8000000 + 1000000ull * draw(1000),
                                       .cold = draw(4) == 0};
        bool alone = !plan.cold; /* on the GPU: launched after another, without the step's own cost */
        for (uint32_t u = 0; u < units; u++) alone = alone && home[u] == G;
        double compute = alone ? 0 : m.table.step, slow = compute;
        cost_simulate(&m.table, &plan, &r);
        for (uint32_t u = 0; u < units; u++) {
            compute += home[u] == C ? m.unit[u].cpu : m.unit[u].gpu;
            slow += home[u] == C ? m.unit[u].cpu_beside : m.unit[u].gpu + (home[u] == S ? m.table.slice : 0);
            gpu += home[u] == C ? 0 : m.unit[u].gpu;
            link += home[u] == S ? m.unit[u].link : 0;
        }
        double link_slow = link * (i % 2 ? 1.1 : 1);
        assert_true(r.seconds >= compute + r.hand_overs - CLOSE);
        assert_true(r.seconds >= link - CLOSE);
        assert_true(r.seconds <= slow + r.hand_overs + link_slow + CLOSE);
        assert_true(fabs(r.busy[COST_GPU] - gpu) < CLOSE);
        assert_true(r.busy[COST_LINK] >= link - 1e-6 && r.busy[COST_LINK] <= link_slow + 1e-6);
        assert_true(fabs(cost_seconds(&m.table, &plan, r.seconds * 1.0001) - r.seconds) < CLOSE);
    }
}

/* Without contention more of anything helps or does nothing; with it, a larger ring may cost what the CPU
 * loses by copies that come at its time instead of the GPU's, and no more. */
static void more_is_never_slower(void **state)
{
    static struct machine m;
    enum plan_home home[40];
    (void)state;
    for (int i = 0; i < 2000; i++) {
        uint32_t units = 2 + 2 * draw(20);
        make_random(&m, home, units, i % 2);
        double ring = 8e6 + 1e6 * draw(600), cpu = 0;
        double before = seconds_of(&m, home, ring);
        for (uint32_t u = 0; u < units; u++) cpu += home[u] == C ? m.unit[u].cpu_beside - m.unit[u].cpu : 0;
        double larger = seconds_of(&m, home, ring + 1e6 * (1 + draw(300)));
        if (larger > before + cpu + CLOSE)
            fail_msg("round %d: %.9f ms after %.9f", i, larger * 1e3, before * 1e3);
        for (uint32_t u = 0; u < units; u++) {
            m.unit[u].link *= 0.8;
            m.unit[u].link_beside *= 0.8;
        }
        double faster_link = seconds_of(&m, home, ring);
        assert_true(faster_link <= before + cpu + CLOSE);
        for (uint32_t u = 0; u < units; u++) m.unit[u].gpu = m.unit[u].stream *= 0.5;
        double faster_gpu = seconds_of(&m, home, ring);
        assert_true(faster_gpu <= faster_link + cpu + CLOSE);
        for (uint32_t u = 0; u < units; u++) {
            m.unit[u].cpu *= 0.7;
            m.unit[u].cpu_beside *= 0.7;
        }
        assert_true(seconds_of(&m, home, ring) <= faster_gpu + cpu + CLOSE);
    }
}

static void the_timeline_adds_up(void **state)
{
    static struct machine m;
    static struct cost_span span[4096];
    enum plan_home home[40];
    double done[42];
    (void)state;
    for (int i = 0; i < 300; i++) {
        uint32_t units = 2 + 2 * draw(20);
        make_random(&m, home, units, true);
        struct cost_result r = {.done = done, .span = span, .span_max = COUNTED(span)};
        const struct cost_plan plan = {.home = home,
                                       .embed = PLAN_CPU0,
                                       .head = PLAN_GPU0,
                                       .ring_bytes = 8000000 + 1000000ull * draw(600)};
        m.table.embed = m.table.head = (struct cost_unit){.cpu = 1e-4, .cpu_beside = 1e-4, .gpu = 1e-4};
        cost_simulate(&m.table, &plan, &r);
        assert_true(fabs(done[units + 1] - r.seconds) < CLOSE);
        for (uint32_t u = 1; u < units + 2; u++) assert_true(done[u] >= done[u - 1]);
        double sum[COST_RESOURCES] = {0}, end[COST_RESOURCES] = {0}, streamed = 0;
        assert_true(r.span_count < COUNTED(span));
        for (uint32_t k = 0; k < r.span_count; k++) {
            assert_true(span[k].from >= end[span[k].resource] - CLOSE && span[k].to >= span[k].from);
            end[span[k].resource] = span[k].to;
            sum[span[k].resource] += span[k].to - span[k].from;
            if (span[k].resource == COST_LINK) assert_int_equal(home[span[k].unit], S);
        }
        for (uint32_t u = 0; u < units; u++) streamed += home[u] == S ? (double)m.unit[u].bytes : 0;
        assert_true(fabs(sum[COST_CPU] - r.busy[COST_CPU]) < CLOSE);
        assert_true(sum[COST_LINK] >= r.busy[COST_LINK] - CLOSE);
        assert_true(sum[COST_GPU] >= r.busy[COST_GPU] - CLOSE);
        assert_true((streamed > 0) == (sum[COST_LINK] > 0));
    }
}

static void a_step_is_simulated_in_microseconds(void **state)
{
    static struct machine m;
    enum plan_home home[UNITS];
    struct timespec from, to;
    double sum = 0;
    (void)state;
    make_random(&m, home, UNITS, true);
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &from);
    for (int i = 0; i < 1000; i++) sum += seconds_of(&m, home, 300e6 + i);
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &to);
    double us = ((double)(to.tv_sec - from.tv_sec) + (double)(to.tv_nsec - from.tv_nsec) * 1e-9) * 1e3;
    print_message("%d units, a third of them streamed: %.1f us\n", UNITS, us);
    assert_true(sum > 0);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
    assert_true(us < 20);
#endif
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_hand_over_beside_copies_is_longer),
        cmocka_unit_test(one_home_is_a_sum),
        cmocka_unit_test(pure_streaming_is_bound_by_the_link),
        cmocka_unit_test(alternation_is_the_larger_of_computing_and_copying),
        cmocka_unit_test(a_small_ring_starves_by_what_it_does_not_hold),
        cmocka_unit_test(sharing_memory_slows_both),
        cmocka_unit_test(the_ring_is_filled_across_steps),
        cmocka_unit_test(borrowed_caches_come_over_the_link),
        cmocka_unit_test(the_gpu_begins_when_it_is_ready),
        cmocka_unit_test(time_is_between_its_bounds),
        cmocka_unit_test(more_is_never_slower),
        cmocka_unit_test(the_timeline_adds_up),
        cmocka_unit_test(a_step_is_simulated_in_microseconds),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
