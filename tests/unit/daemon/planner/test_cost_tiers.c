/* Unit tests of daemon/planner/cost/attention.c and of what steps make of it: prices of a cache with two
 * tiers by hand, simulated steps, whole plans over contexts, the proven bound. */
#include "tests/unit/daemon/planner/cost_case.h"
#include "tests/written_plans.h"
#include "daemon/planner/cost/rates.h"
#include "daemon/planner/search/search.h"
#include "tests/proof/proof.h"

#define HOST 8192u /* positions in the arena alone */
#define HERE 1024u /* and in VRAM */
#define Q    (32 * 128 * sizeof(float))

static const struct cost_step whole = {1, 1, 1, HOST + HERE, .kv_dtype = KV_F16},
                              tiered = {1, 1, 1, HOST + HERE, .kv_dtype = KV_F16, .kv = {true, HOST, 0}},
                              here = {1, 1, 1, HERE, .kv_dtype = KV_F16};

static void open_case(struct priced *p)
{
    memset(p, 0, sizeof *p);
    assert_true(made_up_open(&p->m, &shape_8b));
    p->profile = round_numbers();
}

static void close_case(struct priced *p)
{
    cost_table_free(&p->table);
    made_up_close(&p->m);
}

static struct cost_unit unit_of_step(struct priced *p, struct cost_step step, uint32_t unit)
{
    price(p, step);
    return p->table.unit[unit];
}

static void assert_near(double a, double b)
{
    if (fabs(a - b) > 1e-9 * fmax(fabs(a), fabs(b))) fail_msg("%.12g is not %.12g", a, b);
}

/* While everything has a place a step costs what it costs with one tier. */
static void nothing_is_added_while_all_have_places(void **state)
{
    (void)state;
    struct priced p;
    open_case(&p);
    const struct cost_unit one = unit_of_step(&p, here, 0);
    struct cost_step step = here;
    step.kv.two = true;
    step.kv.direct_permille = 400;
    const struct cost_unit two = unit_of_step(&p, step, 0);
    assert_near(two.gpu, one.gpu);
    assert_near(two.stream, one.stream);
    assert_near(two.cpu, one.cpu);
    assert_true(two.kv.way == 0 && two.kv.cpu == 0 && two.kv.link == 0);
    close_case(&p);
}

/* The query goes down, the CPU attends at 50 GB/s (40 beside the link), its part comes up. */
static void the_cpu_attends_to_the_arenas_part(void **state)
{
    (void)state;
    struct priced p;
    open_case(&p);
    const struct cost_unit near = unit_of_step(&p, here, 0), far = unit_of_step(&p, whole, 0),
                           two = unit_of_step(&p, tiered, 0);
    const double way = 7e-6 + (Q - 8192) / 50e9, there = HERE * KV / 500e9;
    assert_near(two.kv.way, way);
    assert_near(two.kv.cpu, HOST * KV / 50e9 + 10e-6 - there);
    assert_near(two.kv.cpu_beside, HOST * KV / 40e9 + 10e-6 - there);
    assert_near(two.kv.link, 0);
    assert_near(two.gpu, near.gpu + 2 * way + two.kv.cpu + 2 * 5e-6);
    assert_near(two.stream - two.gpu, near.stream - near.gpu);
    assert_near(two.cpu, far.cpu); /* whose cache is the CPU's has it all */
    const struct cost_unit mlp = unit_of_step(&p, tiered, 1), plain = unit_of_step(&p, whole, 1);
    assert_near(mlp.gpu, plain.gpu);
    assert_true(mlp.kv.cpu == 0);
    close_case(&p);
}

/* The GPU reads a share of the arena's part over the link at the same time, which slows the CPU. */
static void the_gpu_reads_its_share_itself(void **state)
{
    (void)state;
    struct priced p;
    open_case(&p);
    struct cost_step step = tiered;
    step.kv.direct_permille = 250;
    const struct cost_unit near = unit_of_step(&p, here, 0);
    struct cost_unit two = unit_of_step(&p, step, 0);
    const double bytes = HOST * KV, there = HERE * KV / 500e9;
    assert_near(two.kv.link, bytes / 4 / 40e9); /* as copies beside the CPU */
    assert_near(two.kv.cpu, bytes * 3 / 4 / 40e9 + 10e-6 - there);
    assert_near(two.kv.cpu_beside, two.kv.cpu);
    p.profile.gpu.attention_direct =
        made_up_value(30e9); /* where it is measured, that part of a copy's 50 GB/s counts */
    two = unit_of_step(&p, step, 0);
    assert_near(two.kv.link, bytes / 4 / (40e9 * 30 / 50));
    p.profile.gpu.attention_direct = made_up_value(90e9); /* more than copies bring is none of the link */
    two = unit_of_step(&p, step, 0);
    assert_near(two.kv.link, bytes / 4 / 40e9);
    p.profile.gpu.attention_direct = (struct profile_value){0};
    p.profile.link.direct = made_up_value(20e9); /* of any kernel */
    two = unit_of_step(&p, step, 0);
    assert_near(two.kv.link, bytes / 4 / 20e9);
    step.kv.direct_permille = 900; /* the GPU is the later one */
    two = unit_of_step(&p, step, 0);
    assert_near(two.kv.cpu, two.kv.link - 2 * two.kv.way);
    step.kv.direct_permille = 1000; /* the CPU is not asked */
    two = unit_of_step(&p, step, 0);
    assert_true(two.kv.way == 0 && two.kv.cpu == 0);
    assert_near(two.gpu, near.gpu + bytes / 20e9);
    close_case(&p);
}

/* Both read at the same time and end at the same time: 40 of 80 GB/s beside each other. */
static void the_share_that_ends_with_the_cpu(void **state)
{
    (void)state;
    struct priced p;
    open_case(&p);
    assert_int_equal(cost_direct_permille(&p.profile, KV_F16), 500); /* 40 of 40 + 50 * 0.8 */
    p.profile.link.direct = made_up_value(10e9);
    assert_int_equal(cost_direct_permille(&p.profile, KV_F16), 200);
    p.profile.kv[KV_Q8_0].cpu_attention = made_up_value(25e9);
    assert_int_equal(cost_direct_permille(&p.profile, KV_Q8_0), 333);
    p.profile.kv[KV_Q8_0].gpu_attention_direct = made_up_value(25e9); /* 20 beside the CPU, whose 25 are 20 */
    assert_int_equal(cost_direct_permille(&p.profile, KV_Q8_0), 500);
    close_case(&p);
}

/* A measured rate of the CPU's attention for a GPU prices that alone, for this type of cache or, for single
 * numbers, all. */
static void attention_for_a_gpu_has_its_own_rate(void **state)
{
    (void)state;
    struct priced p;
    open_case(&p);
    const struct cost_unit before = unit_of_step(&p, tiered, 0);
    p.profile.cpu.attention_host = made_up_value(64e9);
    const struct cost_unit two = unit_of_step(&p, tiered, 0);
    const double there = HERE * KV / 500e9;
    assert_near(two.kv.cpu, HOST * KV / 64e9 + 10e-6 - there);
    assert_near(two.kv.cpu_beside, HOST * KV / (0.8 * 64e9) + 10e-6 - there);
    assert_near(two.cpu, before.cpu);
    assert_near(cost_attention_host(&p.profile, KV_BF16), 64e9);
    assert_near(cost_attention_host(&p.profile, KV_Q8_0), 64e9);
    p.profile.kv[KV_Q8_0].cpu_attention = made_up_value(25e9);
    assert_near(cost_attention_host(&p.profile, KV_Q8_0), 25e9);
    p.profile.kv[KV_Q8_0].cpu_attention_host = made_up_value(30e9);
    assert_near(cost_attention_host(&p.profile, KV_Q8_0), 30e9);
    assert_int_equal(cost_direct_permille(&p.profile, KV_Q8_0), 625); /* 40 of 40 + 30 * 0.8 */
    close_case(&p);
}

/* A layer that sees fewer positions than VRAM has asks in vain, unless its window is left to the GPU; one
 * that sees more asks for the rest alone, of which the GPU has its share. */
static void windows_hide_the_arenas_part(void **state)
{
    (void)state;
    struct priced p;
    open_case(&p);
    p.m.window[0] = HERE;
    p.m.window[1] = HERE + 512;
    price(&p, tiered);
    assert_true(p.table.unit[0].kv.way > 0);
    assert_near(p.table.unit[0].kv.cpu_beside, fmax(0, 10e-6 - HERE * KV / 500e9));
    assert_near(p.table.unit[2].kv.cpu_beside - 10e-6, fmax(0, 512 * KV / 40e9 - HERE * KV / 500e9));
    struct cost_step step = tiered;
    step.kv.direct_window = HERE;
    price(&p, step);
    assert_true(p.table.unit[0].kv.way == 0 && p.table.unit[0].kv.cpu == 0);
    assert_true(p.table.unit[2].kv.way > 0 && p.table.unit[4].kv.way > 0);
    step.kv.direct_window = HERE + 512;
    price(&p, step);
    assert_true(p.table.unit[2].kv.way == 0);
    assert_near(p.table.unit[2].kv.link, 512 * KV / 40e9);
    step.kv.direct_window = 0;
    step.kv.direct_permille = 250; /* of what it sees */
    price(&p, step);
    assert_near(p.table.unit[2].kv.link, 512 * KV / 4 / 40e9);
    close_case(&p);
}

/* A chunk's host part is read once over the link, in the time of its attention or longer; what it adds is
 * stored. */
static void chunks_read_the_arenas_part(void **state)
{
    (void)state;
    struct priced p;
    open_case(&p);
    const struct cost_step one = {1024, 1, 1, HOST + 1024, .kv_dtype = KV_F16},
                           two = {1024, 1, 1, HOST + 1024, .kv_dtype = KV_F16, .kv = {true, HOST, 400}};
    const struct cost_unit plain = unit_of_step(&p, one, 0);
    struct cost_unit far = unit_of_step(&p, two, 0);
    assert_near(far.kv.link, HOST * KV / 40e9 + 1024 * KV / 50e9);
    /* the arithmetic takes longer than that; pieces are launches, with what is kept between them */
    const double pieces = ceil(HOST / 4096.0) * (8e-6 + 2 * 1024.0 * 32 * (128 + 8) * 4 / 500e9);
    assert_near(far.gpu, plain.gpu + pieces);
    assert_true(plain.borrow > 0 && far.borrow == 0);
    assert_near(far.borrow_link, 0); /* as much is before a chunk whose cache is the CPU's */
    p.profile.link.h2d_beside = made_up_value(0.1e9);
    far = unit_of_step(&p, two, 0);
    assert_near(far.gpu - plain.gpu - pieces,
                HOST * KV / 0.1e9 - 4.0 * 32 * 128 * (1024.0 * (HOST + 1024) - 1024.0 * 1023 / 2) / 20e12);
    close_case(&p);
}

/* ---- steps ---- */

static void simulate(struct priced *p, const struct cost_step *step, enum plan_home attention,
                     struct cost_result *result)
{
    static enum plan_home home[72];
    for (uint32_t u = 0; u < 72; u++) home[u] = u & 1 ? PLAN_HOME_GPU : attention;
    price(p, *step);
    const struct cost_plan plan = {.home = home,
                                   .embed = PLAN_GPU0,
                                   .head = PLAN_GPU0,
                                   .ring_bytes = UINT64_C(256) << 20};
    *result = (struct cost_result){0};
    cost_simulate(&p->table, &plan, result);
    assert_near(cost_seconds(&p->table, &plan, INFINITY), result->seconds);
}

/* All on the GPU: a step is the sum of its units; with the CPU's help it is no longer launched ahead. */
static void a_step_waits_for_the_cpu_in_every_layer(void **state)
{
    (void)state;
    struct priced p;
    struct cost_result near, far;
    open_case(&p);
    simulate(&p, &here, PLAN_HOME_GPU, &near);
    simulate(&p, &tiered, PLAN_HOME_GPU, &far);
    double units = 0;
    for (uint32_t u = 0; u < 72; u++) units += p.table.unit[u].gpu;
    assert_near(far.seconds, p.table.embed.gpu + units + p.table.head.gpu + p.table.step);
    assert_true(far.seconds > near.seconds + 36 * (HOST * KV / 50e9 - HERE * KV / 500e9));
    assert_near(far.busy[COST_CPU], 36 * p.table.unit[0].kv.cpu);
    assert_near(far.hand_overs, 72 * p.table.unit[0].kv.way);
    close_case(&p);
}

/* The GPU's reads over the link take it from the copies of weights: a step is at least all of both. */
static void the_link_does_one_thing_at_a_time(void **state)
{
    (void)state;
    struct priced p;
    struct cost_result result;
    open_case(&p);
    struct cost_step step = tiered;
    for (uint32_t permille = 0; permille <= 1000; permille += 100) {
        step.kv.direct_permille = permille;
        simulate(&p, &step, PLAN_HOME_STREAM, &result);
        double link = 0;
        for (uint32_t u = 0; u < 72; u += 2) link += p.table.unit[u].link + p.table.unit[u].kv.link;
        assert_true(result.seconds >= link * (1 - 1e-9));
        assert_true(result.busy[COST_LINK] <= result.seconds * (1 + 1e-9));
        if (permille) assert_true(result.busy[COST_LINK] >= 36 * p.table.unit[0].kv.link * (1 - 1e-9));
    }
    close_case(&p);
}

/* ---- plans ---- */

/* Whole plans: with every further position a step takes as long or longer; with places for all, what it takes
 * with one tier. */
static void plans_slow_down_steadily(void **state)
{
    (void)state;
    struct priced p;
    struct helm_err err = {0};
    open_case(&p);
    struct plan_unit unit[WRITTEN_UNITS(36)];
    struct plan plan = {.layers = 36,
                        .context_tokens = 32768,
                        .step_tokens = 512,
                        .slots = 8,
                        .page_tokens = 32,
                        .page_count = 1024,
                        .device[PLAN_GPU0].vram_page_count = 40,
                        .kv_free_places = 8,
                        .kv_direct_permille = 400,
                        .kv_dtype = "f16",
                        .unit = units_all(unit, 36, PLAN_HOME_GPU),
                        .embed = PLAN_GPU0,
                        .head = PLAN_GPU0};
    const struct cost_case c = {.model = &p.m.model,
                                .analysed = &p.m.analysed,
                                .profile = &p.profile,
                                .plan = &plan};
    double before = 0;
    struct cost_forecast f, one, ttft;
    for (uint32_t context = 16; context <= 32768; context += context < 4096 ? 16 : 1024) {
        if (cost_decode(&c, 1, context, &f, &err)) fail_msg("%s", err.text);
        assert_true(f.seconds >= before * (1 - 1e-12));
        before = f.seconds;
        if (context > 32 * 32) continue; /* the places below the watermark */
        plan.device[PLAN_GPU0].vram_page_count = 0;
        if (cost_decode(&c, 1, context, &one, &err)) fail_msg("%s", err.text);
        plan.device[PLAN_GPU0].vram_page_count = 40;
        assert_near(f.seconds, one.seconds);
    }
    if (cost_decode(&c, 4, 512, &f, &err)) fail_msg("%s", err.text); /* four share them: 8 pages each */
    assert_true(f.hand_overs > 0);
    if (cost_decode(&c, 4, 256, &f, &err)) fail_msg("%s", err.text);
    assert_true(f.hand_overs == 0);
    if (cost_ttft(&c, 16384, &ttft, &err)) fail_msg("%s", err.text);
    plan.device[PLAN_GPU0].vram_page_count = 0;
    if (cost_ttft(&c, 16384, &one, &err)) fail_msg("%s", err.text);
    assert_true(ttft.seconds >= one.seconds && ttft.busy[COST_LINK] > 0);
    close_case(&p);
}

/* No plan of a step with two tiers is faster than the bound; the chosen one is near it. */
static void the_bound_holds(void **state)
{
    (void)state;
    static const uint32_t hosts[] = {0, 512, 8192, 32768};
    struct priced p;
    open_case(&p);
    for (size_t h = 0; h < sizeof hosts / sizeof *hosts; h++)
        for (uint64_t vram = UINT64_C(4) << 30; vram <= UINT64_C(16) << 30; vram *= 2) {
            const struct cost_step step = {
                1, 1, 1, hosts[h] + HERE, .kv_dtype = KV_F16, .kv = {true, hosts[h], 400}};
            const struct search_memory memory = made_up_memory(&p.m, vram, UINT64_C(64) << 30, HERE);
            struct search_found found;
            price(&p, step);
            const struct search_problem problem = {.decode = &p.table, .memory = &memory, .device = true};
            assert_int_equal(search_run(&problem, SEARCH_BEST, &found, &p.err), 0);
            assert_true(found.feasible);
            double bound;
            assert_int_equal(proof_found(&problem, SEARCH_BEST, &found, &bound, &p.err), 0);
            assert_true(bound <= found.seconds * (1 + 1e-9));
            print_message("%5u in the arena, %2u GiB: %.2f ms, bound %.2f\n", hosts[h],
                          (unsigned)(vram >> 30), 1e3 * found.seconds, 1e3 * bound);
            assert_true(found.seconds <= (hosts[h] > 512 ? 1.08 : 1.04) * bound);
            search_found_free(&found);
        }
    close_case(&p);
}

/* Three layers, every home of every unit: the search finds the fastest, and its bound is no more. */
static void small_spaces_are_searched_to_the_end(void **state)
{
    (void)state;
    static const struct made_up_shape shape = {3, 4096, 12288, 32, 8, 128, 151936, false};
    struct priced p = {.table = {0}};
    assert_true(made_up_open(&p.m, &shape));
    p.profile = round_numbers();
    for (uint32_t host = 0; host <= 32768; host += 16384) {
        const struct cost_step step = {1, 1, 1, host + HERE, .kv_dtype = KV_F16, .kv = {true, host, 500}};
        const struct search_memory memory = made_up_memory(&p.m, UINT64_C(3) << 30, UINT64_C(64) << 30, HERE);
        struct search_found found;
        double fastest = INFINITY;
        price(&p, step);
        const struct search_problem problem = {.decode = &p.table, .memory = &memory, .device = true};
        assert_int_equal(search_run(&problem, SEARCH_BEST, &found, &p.err), 0);
        for (uint32_t code = 0; code < 729; code++) {
            enum plan_home home[6];
            uint64_t vram = memory.gpu_any.vram + memory.stream_any.vram;
            uint32_t left = code;
            for (uint32_t u = 0; u < 6; u++, left /= 3) {
                home[u] = (enum plan_home)(left % 3);
                vram += memory.unit[3 * u + home[u]].vram;
            }
            for (uint32_t ends = 0; ends < 4; ends++) {
                const struct cost_plan plan = {.home = home,
                                               .embed = ends & 1 ? PLAN_GPU0 : PLAN_CPU0,
                                               .head = ends & 2 ? PLAN_GPU0 : PLAN_CPU0,
                                               .ring_bytes = memory.ring_max};
                const uint64_t all =
                    vram + memory.embed[plan.embed].vram + memory.head[plan.head].vram + memory.ring_granule;
                if (all <= memory.vram_limit)
                    fastest = fmin(fastest, cost_seconds(&p.table, &plan, INFINITY));
            }
        }
        /* With the largest ring in the room of the smallest: none is faster than these. */
        double bound;
        assert_int_equal(proof_found(&problem, SEARCH_BEST, &found, &bound, &p.err), 0);
        assert_true(found.feasible && bound <= fastest * (1 + 1e-9));
        assert_true(found.seconds <= fastest * 1.05);
        search_found_free(&found);
    }
    close_case(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nothing_is_added_while_all_have_places),
        cmocka_unit_test(the_cpu_attends_to_the_arenas_part),
        cmocka_unit_test(the_gpu_reads_its_share_itself),
        cmocka_unit_test(the_share_that_ends_with_the_cpu),
        cmocka_unit_test(attention_for_a_gpu_has_its_own_rate),
        cmocka_unit_test(windows_hide_the_arenas_part),
        cmocka_unit_test(chunks_read_the_arenas_part),
        cmocka_unit_test(a_step_waits_for_the_cpu_in_every_layer),
        cmocka_unit_test(the_link_does_one_thing_at_a_time),
        cmocka_unit_test(plans_slow_down_steadily),
        cmocka_unit_test(the_bound_holds),
        cmocka_unit_test(small_spaces_are_searched_to_the_end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
