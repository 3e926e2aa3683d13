/* Unit tests of daemon/planner/search/prefill.c: homes for prefill against brute force, what may not move,
 * from how many tokens on they pay. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <time.h>

#include "common/base/units.h"
#include "tests/unit/daemon/planner/made_up_model.h"

#define UNITS_MAX 160

static uint64_t random_state = 4242424242ull;
static uint32_t draw(uint32_t below)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return (uint32_t)((random_state >> 33) % below);
}

struct shaped {
    struct made_up m;
    struct cost_table table;
    struct profile profile;
    struct helm_err err;
};

static void open_shape(struct shaped *s, const struct made_up_shape *shape, const struct made_up_rates *rates)
{
    memset(s, 0, sizeof *s);
    assert_true(made_up_open(&s->m, shape));
    s->profile = made_up_profile(rates);
}

static void price_prompt(struct shaped *s, uint32_t tokens)
{
    const struct cost_step step = {tokens, 1, 1, tokens, .kv_dtype = KV_F16};
    cost_table_free(&s->table);
    if (cost_price(&s->m.model, &s->m.analysed, &s->profile, &step, &s->table, &s->err))
        fail_msg("%s", s->err.text);
}

static void close_shape(struct shaped *s)
{
    cost_table_free(&s->table);
    made_up_close(&s->m);
}

static double seconds_of(const struct shaped *s, const struct search_found *decode,
                         const enum plan_home *home)
{
    bool kv_cpu[UNITS_MAX / 2];
    for (uint32_t l = 0; l < s->table.units / 2; l++) kv_cpu[l] = decode->home[2 * l] == PLAN_HOME_CPU;
    const struct cost_plan plan = {.home = home,
                                   .kv_cpu = kv_cpu,
                                   .embed = decode->embed,
                                   .head = decode->head,
                                   .ring_bytes = decode->ring_bytes,
                                   .cold = true};
    return cost_seconds(&s->table, &plan, INFINITY);
}

/* Resident weights stay, no cache in VRAM is attended to on the CPU, nothing streams without a ring. */
static void check_homes(const struct shaped *s, const struct search_found *decode, const enum plan_home *home)
{
    for (uint32_t u = 0; u < s->table.units; u++) {
        assert_int_equal(home[u] == PLAN_HOME_GPU, decode->home[u] == PLAN_HOME_GPU);
        if (u % 2 == 0 && decode->home[u] == PLAN_HOME_STREAM) assert_int_equal(home[u], PLAN_HOME_STREAM);
        if (!decode->ring_bytes) assert_int_not_equal(home[u], PLAN_HOME_STREAM);
    }
}

static const struct made_up_shape tiny = {4, 2048, 8192, 16, 4, 128, 32000, false};

static void small_ones_are_as_brute_force_finds_them(void **state)
{
    static struct shaped s;
    static const struct made_up_rates *const machines[] = {&rates_h200, &rates_4060, &rates_3090};
    int mixed = 0;
    (void)state;
    for (int i = 0; i < 120; i++) {
        enum plan_home at[8], home[8], best_home[8];
        open_shape(&s, &tiny, machines[i % 3]);
        price_prompt(&s, 17u << draw(7));
        struct search_found decode = {.feasible = true,
                                      .home = at,
                                      .embed = (enum plan_processor)draw(2),
                                      .head = (enum plan_processor)draw(2),
                                      .ring_bytes = draw(5) ? (16 + 16 * draw(8)) * MIB : 0};
        double best = INFINITY, seconds;
        for (uint32_t u = 0; u < 8; u++) at[u] = (enum plan_home)draw(decode.ring_bytes ? 3 : 2);
        for (uint32_t p = 0; p < 256; p++) {
            bool allowed = true;
            for (uint32_t u = 0; u < 8; u++) {
                home[u] = at[u] == PLAN_HOME_GPU ? PLAN_HOME_GPU
                          : p >> u & 1           ? PLAN_HOME_STREAM
                                                 : PLAN_HOME_CPU;
                allowed = allowed && !(at[u] == PLAN_HOME_GPU && p >> u & 1);
                allowed = allowed && (decode.ring_bytes || home[u] != PLAN_HOME_STREAM);
                allowed = allowed && (u % 2 || at[u] != PLAN_HOME_STREAM || home[u] == PLAN_HOME_STREAM);
            }
            if (!allowed) continue;
            double t = seconds_of(&s, &decode, home);
            if (t < best) {
                best = t;
                memcpy(best_home, home, sizeof home);
            }
        }
        assert_int_equal(search_prefill(&s.table, &decode, home, &seconds, &s.err), 0);
        check_homes(&s, &decode, home);
        assert_true(fabs(seconds_of(&s, &decode, home) - seconds) < 1e-12);
        assert_true(seconds >= best - 1e-12 && seconds <= best * (1 + SEARCH_ALIKE) + 1e-12);
        bool cpu = false, stream = false;
        for (uint32_t u = 0; u < 8; u++) {
            cpu = cpu || best_home[u] == PLAN_HOME_CPU;
            stream = stream || best_home[u] == PLAN_HOME_STREAM;
        }
        mixed += cpu && stream;
        close_shape(&s);
    }
    print_message("120 times the best homes, %d of them mixed\n", mixed);
    assert_true(mixed > 10);
}

static double seconds_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* The 8B shape at 8 GiB: what decode leaves to the CPU goes over the link when the prompt is long; then the
 * link is what counts, and it is not much idle. */
static void a_long_prompt_streams(void **state)
{
    static struct shaped s;
    struct search_found decode;
    enum plan_home home[UNITS_MAX], streamed[UNITS_MAX];
    double before = 0, took = 0;
    (void)state;
    open_shape(&s, &shape_8b, &rates_h200);
    struct search_memory memory = made_up_memory(&s.m, 8 * GIB, 200 * GIB, 8192);
    price_prompt(&s, 1);
    const struct search_problem problem = {.decode = &s.table, .memory = &memory, .device = true};
    assert_int_equal(search_run(&problem, SEARCH_BEST, &decode, &s.err), 0);
    for (uint32_t u = 0; u < 72; u++)
        streamed[u] = decode.home[u] == PLAN_HOME_GPU ? PLAN_HOME_GPU : PLAN_HOME_STREAM;
    for (uint32_t tokens = 32; tokens <= 2048; tokens *= 4) {
        double seconds, begin = seconds_now();
        price_prompt(&s, tokens);
        assert_int_equal(search_prefill(&s.table, &decode, home, &seconds, &s.err), 0);
        took = fmax(took, seconds_now() - begin);
        check_homes(&s, &decode, home);
        assert_true(seconds <= seconds_of(&s, &decode, streamed) * (1 + SEARCH_ALIKE));
        assert_true(seconds <= seconds_of(&s, &decode, decode.home) * (1 + SEARCH_ALIKE));
        assert_true(seconds > before);
        before = seconds;
        print_message("%u tokens: %.1f ms (all streamed %.1f, as decode %.1f)\n", tokens, seconds * 1e3,
                      seconds_of(&s, &decode, streamed) * 1e3, seconds_of(&s, &decode, decode.home) * 1e3);
    }
    double link = 0;
    for (uint32_t u = 0; u < 72; u++) link += home[u] == PLAN_HOME_STREAM ? s.table.unit[u].link : 0;
    assert_true(before >= link);
    print_message("%.0f ms at most\n", took * 1e3);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
    assert_true(took < 0.1);
#endif
    search_found_free(&decode);
    close_shape(&s);
}

/* The number at which streaming begins to pay, against every number tried. */
static void the_crossing_is_where_it_says(void **state)
{
    static struct shaped s;
    static const struct made_up_rates *const machines[] = {&rates_h200, &rates_4060, &rates_3090};
    enum plan_home a[72], b[72];
    int found = 0;
    (void)state;
    for (size_t r = 0; r < sizeof machines / sizeof *machines; r++) {
        open_shape(&s, &shape_8b, machines[r]);
        for (uint32_t u = 0; u < 72; u++) {
            a[u] = u < 40 ? PLAN_HOME_CPU : PLAN_HOME_GPU;
            b[u] = u < 40 ? PLAN_HOME_STREAM : PLAN_HOME_GPU;
        }
        struct search_found decode = {
            .feasible = true, .home = a, .embed = PLAN_CPU0, .head = PLAN_GPU0, .ring_bytes = 256 * MIB};
        const struct search_crossover crossover = {.model = &s.m.model,
                                                   .analysed = &s.m.analysed,
                                                   .profile = &s.profile,
                                                   .decode = &decode,
                                                   .a = a,
                                                   .b = b,
                                                   .kv_dtype = KV_F16};
        uint32_t tokens = 0, last = 0;
        assert_int_equal(search_crossing(&crossover, 2, 512, &tokens, &s.err), 0);
        for (uint32_t t = 2; t <= 512; t++) {
            price_prompt(&s, t);
            if (seconds_of(&s, &decode, b) >= seconds_of(&s, &decode, a)) last = t;
        }
        print_message("machine %zu: from %u tokens on; last not faster: %u\n", r, tokens, last);
        if (last == 512)
            assert_int_equal(tokens, 0);
        else
            assert_int_equal(tokens, last + 1);
        found += tokens > 0;
        /* The other way round it never pays at the end. */
        const struct search_crossover back = {.model = &s.m.model,
                                              .analysed = &s.m.analysed,
                                              .profile = &s.profile,
                                              .decode = &decode,
                                              .a = b,
                                              .b = a,
                                              .kv_dtype = KV_F16};
        if (tokens) {
            assert_int_equal(search_crossing(&back, 2, 512, &tokens, &s.err), 0);
            assert_int_equal(tokens, 0);
        }
        assert_int_equal(search_crossing(&crossover, 0, 5, &tokens, &s.err), HELM_E_LIMIT);
        assert_int_equal(search_crossing(&crossover, 6, 5, &tokens, &s.err), HELM_E_LIMIT);
        close_shape(&s);
    }
    assert_true(found > 0);
}

static void without_a_plan_of_decode_there_is_none(void **state)
{
    static struct shaped s;
    struct search_found decode = {0};
    enum plan_home home[8];
    double seconds;
    (void)state;
    open_shape(&s, &tiny, &rates_4060);
    price_prompt(&s, 64);
    assert_int_equal(search_prefill(&s.table, &decode, home, &seconds, &s.err), HELM_E_STATE);
    enum plan_home at[8] = {PLAN_HOME_GPU};
    decode = (struct search_found){.feasible = true, .home = at};
    s.profile.gpu.device = PROFILE_DEVICE_NONE;
    price_prompt(&s, 64);
    assert_int_equal(search_prefill(&s.table, &decode, home, &seconds, &s.err), HELM_E_MISMATCH);
    close_shape(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(small_ones_are_as_brute_force_finds_them),
        cmocka_unit_test(a_long_prompt_streams),
        cmocka_unit_test(the_crossing_is_where_it_says),
        cmocka_unit_test(without_a_plan_of_decode_there_is_none),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
