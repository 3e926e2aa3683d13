/* The thesis's tables, reckoned again: its splits and predictions (Table 6.5) for four models on three
 * machines, by its own formulas over the bytes that HELM reads from config.json, and by HELM's search with
 * the thesis's prices.
 *
 * Results that differ from the printed ones are asserted as they come out, with the reason;
 * docs/thesis-tables.md has the table. Bandwidths are those of the shipped profiles: 45 and 218 GB/s (4.1.2),
 * 936 and 864 (5.1); the two that the text does not give, of the other machines' CPUs, are what its own rows
 * imply, so that those rows are no test of them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/planner/search/search.h"
#include "tests/unit/daemon/planner/explain_case.h"

/* The text reserves "about 1 GB" of 8 for context and runtime. All printed splits together allow one reserve
 * only, between 0.36 and 0.56 GB of 8, 24 and 48 GB as they are called (4.1.3). */
#define RESERVED 0.5e9

struct machine {
    const char *profile;
    double vram, host; /* bytes, nominal */
    double delta;      /* seconds a block, 6.4.4 */
};
enum { RTX4060, RTX3090, L40S, MACHINES };
static const struct machine machines[MACHINES] = {
    [RTX4060] = {"profiles/thesis-rtx4060-laptop.json", 8e9, 16e9, 0.14e-3},
    [RTX3090] = {"profiles/thesis-rtx3090.json", 24e9, 125e9, 0.79e-3},
    [L40S] = {"profiles/thesis-l40s.json", 48e9, 60e9, 1.64e-3},
};
enum { QWEN4B, QWEN8B, QWEN14B, QWEN32B, MODELS };
static const char *const folders[MODELS] = {"tests/data/configs/qwen3-4b", "tests/data/configs/qwen3-8b",
                                            "tests/data/configs/qwen3-14b", "tests/data/configs/qwen3-32b"};

/* Table 6.5, and of Table 6.3's text the split of 32B on the 3090, which has no prediction (0). */
struct row {
    int machine, model;
    uint32_t cpu_units; /* embedding, blocks, output projection, in this order */
    double predicted_ms, measured_ms;
    /* Our result: the formula's over the printed one, and how exactly that is reproduced. */
    double ratio;
};
static const struct row rows[] = {
    /* No bandwidth and delta give both rows of this machine: 36 deltas are 28.4 ms, which leaves 19.8
     * and 22.6 ms for 8.8 and 16.4 GB, 446 and 726 GB/s. At the text's 936 the smaller one is a fifth too
     * low. */
    {RTX3090, QWEN4B, 0, 48.2, 50.5, 0.786},
    {RTX3090, QWEN8B, 0, 51.0, 48.7, 0.901},
    {RTX3090, QWEN14B, 8, 143.5, 134.6, 1.000}, /* gives the CPU's 71 GB/s */
    {RTX3090, QWEN32B, 43, 0, 833, 0},
    /* 45 GB/s is what the text measured; its 196 ms for the CPU stage of 8B (4.1.5) fit, and the row does
     * not: see the_running_example_contradicts_itself. */
    {RTX4060, QWEN4B, 4, 80.1, 80.1, 0.873},
    {RTX4060, QWEN8B, 21, 263.5, 244.3, 0.904},
    /* 36 and 40 deltas of 1.64 ms alone are more than these rows: see below. */
    {L40S, QWEN4B, 0, 36.9, 36.9, 1.877},
    {L40S, QWEN8B, 0, 39.9, 39.8, 1.955},
    {L40S, QWEN14B, 0, 46.3, 49.8, 2.155},
    {L40S, QWEN32B, 18, 908, 909, 1.001}, /* gives the CPU's 24 GB/s */
};
#define ROWS (sizeof rows / sizeof *rows)

struct thesis {
    struct model model;
    struct analyse_table table;
    struct profile profile;
};

static void open_thesis(int machine, int model, struct thesis *t)
{
    struct helm_err err = {0};
    bool derived = false;
    if (model_read_headers(folders[model], &t->model, &derived, &err)) fail_msg("%s", err.text);
    assert_true(derived);
    if (analyse_table_build(&t->model, &t->table, &err)) fail_msg("%s", err.text);
    if (profile_read(machines[machine].profile, NULL, &t->profile, &err)) fail_msg("%s", err.text);
}

static void close_thesis(struct thesis *t)
{
    analyse_table_free(&t->table);
    model_free(&t->model);
}

/* A partition unit's bytes (4.1.1). A tied output projection is counted like any other: it is read. */
static double unit_bytes(const struct thesis *t, uint32_t unit)
{
    uint32_t layers = t->table.layers;
    if (unit == 0) return (double)t->table.embed.stored;
    if (unit <= layers) return (double)analyse_units_stored(&t->table, 2 * unit - 2, 2 * unit - 1);
    return (double)(t->table.tied ? t->table.embed.stored : t->table.head.stored) +
           (double)t->table.final_norm.stored;
}

static double bytes_of(const struct thesis *t, uint32_t first, uint32_t end)
{
    double sum = 0;
    for (uint32_t u = first; u < end; u++) sum += unit_bytes(t, u);
    return sum;
}

/* The text's bandwidth of VRAM, not what a kernel makes of it. */
static double gpu_rate(const struct thesis *t)
{
    return t->profile.gpu.read.value;
}

/* Equation 4.7 with 4.10, the overhead of 6.4.4 and 4.15. The embedding is charged as if all of it were read.
 */
static double predict_ms(const struct thesis *t, int machine, uint32_t cpu_units)
{
    uint32_t units = t->table.layers + 2;
    double seconds = bytes_of(t, 0, cpu_units) / t->profile.cpu.gemv.value +
                     bytes_of(t, cpu_units, units) / gpu_rate(t) + t->table.layers * machines[machine].delta;
    if (cpu_units > 0 && cpu_units < units) seconds += 5e-6;
    return 1e3 * seconds;
}

/* Algorithm 1: every boundary that fits, the fastest of them. Units + 1 where the host has no room for the
 * rest. */
static uint32_t choose_split(const struct thesis *t, int machine)
{
    uint32_t units = t->table.layers + 2, best = units + 1;
    double fastest = INFINITY;
    for (uint32_t k = 0; k <= units; k++) {
        if (bytes_of(t, k, units) > machines[machine].vram - RESERVED) continue;
        if (bytes_of(t, 0, k) > machines[machine].host) continue;
        double ms = predict_ms(t, machine, k);
        if (ms >= fastest) continue;
        fastest = ms;
        best = k;
    }
    return best;
}

static void all_splits_come_out(void **state)
{
    (void)state;
    for (size_t i = 0; i < ROWS; i++) {
        struct thesis t;
        open_thesis(rows[i].machine, rows[i].model, &t);
        uint32_t k = choose_split(&t, rows[i].machine);
        if (k != rows[i].cpu_units)
            fail_msg("row %zu: cpu(%u), the thesis has cpu(%u)", i, k, rows[i].cpu_units);
        close_thesis(&t);
    }
    /* Table 6.1's crosses: neither 14B nor 32B has a place on the laptop. */
    for (int model = QWEN14B; model <= QWEN32B; model++) {
        struct thesis t;
        open_thesis(RTX4060, model, &t);
        assert_int_equal(choose_split(&t, RTX4060), t.table.layers + 3);
        close_thesis(&t);
    }
}

static void predictions_come_out_or_differ_as_explained(void **state)
{
    (void)state;
    for (size_t i = 0; i < ROWS; i++) {
        struct thesis t;
        open_thesis(rows[i].machine, rows[i].model, &t);
        double ms = predict_ms(&t, rows[i].machine, rows[i].cpu_units);
        double ratio = ms / rows[i].predicted_ms;
        if (rows[i].predicted_ms > 0 && fabs(ratio - rows[i].ratio) > 0.005)
            fail_msg("row %zu: %.1f ms, %.3f of the printed %.1f", i, ms, ratio, rows[i].predicted_ms);
        /* Only measured: 1.2 token/s; the thesis says in 7.1 why large CPU stages fall short of its probe. */
        if (rows[i].predicted_ms <= 0)
            assert_true(ms > 0.75 * rows[i].measured_ms && ms < rows[i].measured_ms);
        close_thesis(&t);
    }
}

static void deltas_of_the_l40s_exceed_its_rows(void **state)
{
    (void)state;
    for (size_t i = 0; i < ROWS; i++) {
        if (rows[i].machine != L40S || rows[i].cpu_units) continue;
        struct thesis t;
        open_thesis(L40S, rows[i].model, &t);
        double deltas_ms = 1e3 * t.table.layers * machines[L40S].delta;
        double roofline_ms = predict_ms(&t, L40S, 0) - deltas_ms;
        assert_true(deltas_ms > 1.3 * rows[i].predicted_ms);
        /* The roofline alone leaves room for an overhead, but for another one in each row: 0.74, 0.58, 0.30
         * ms. */
        double per_block = (rows[i].predicted_ms - roofline_ms) / t.table.layers;
        assert_true(per_block > 0.28 && per_block < 0.76);
        close_thesis(&t);
    }
}

/* 4.1.3 to 4.1.5 against themselves and against Table 6.5. */
static void the_running_example_contradicts_itself(void **state)
{
    (void)state;
    struct thesis t;
    open_thesis(RTX4060, QWEN8B, &t);
    const double block = unit_bytes(&t, 1), cpu = t.profile.cpu.gemv.value, gpu = gpu_rate(&t);
    assert_float_equal(block / 1e6, 386, 0.2); /* 4.3 */
    assert_float_equal(1e3 * block / cpu, 8.6, 0.05);
    assert_float_equal(1e3 * block / gpu, 1.8, 0.05);
    /* "21 units on CPU (154.8 ms), 17 on GPU (30.6 ms)": 18 and 17 blocks, 35 of 36, with the k* = 18 of
     * Figure 4.4 and no embedding or output projection. */
    assert_float_equal(18 * 8.6, 154.8, 1e-6);
    assert_float_equal(17 * 1.8, 30.6, 1e-6);
    /* "approximately 196 ms" (4.1.5) for the same stage is its 20 blocks and the whole embedding at 45 GB/s.
     */
    double stage_ms = 1e3 * bytes_of(&t, 0, 21) / cpu;
    assert_true(stage_ms / 196 > 1.0 && stage_ms / 196 < 1.02);
    /* So the 186 ms are a quarter less than the formula's own result, which is 9.6 % under the table's 263.5
     * and 2.5 % under the measured 244.3. */
    double ms = predict_ms(&t, RTX4060, 21);
    assert_float_equal(186 / ms, 0.781, 0.005);
    assert_float_equal(ms / 244.3, 0.975, 0.005);
    /* "17 GPU-side units occupy 7.16 GB" (4.2.2): 7.42 GB, or 6.91 GiB. */
    assert_float_equal(bytes_of(&t, 21, 38) / 1e9, 7.42, 0.005);
    /* With the reserve of 1 GB that the text names, 8 GB would hold one layer less of 4B and two less of 8B.
     */
    assert_true(bytes_of(&t, 21, 38) > 7e9);
    close_thesis(&t);
    open_thesis(RTX4060, QWEN4B, &t);
    assert_true(bytes_of(&t, 4, 38) > 7e9);
    close_thesis(&t);
}

/* 4.5: 2 * 8 * 128 * 2 * c is 4,096 c bytes a block, not 4 c; 16 MiB at 4,096 positions, not 16 KB. */
static void kv_bytes_have_a_unit_slip(void **state)
{
    (void)state;
    struct thesis t;
    open_thesis(RTX4060, QWEN8B, &t);
    assert_int_equal(model_kv_bytes_per_token(&t.model.config, 1, KV_BF16), 4096);
    assert_int_equal(4096 * model_kv_bytes_per_token(&t.model.config, 1, KV_BF16), 16 << 20);
    /* Not "small relative to the 386 MB weight footprint": 4.3 % of it. */
    assert_float_equal(4096 * 4096 / unit_bytes(&t, 1), 0.0435, 0.0005);
    close_thesis(&t);
}

/* ---- the same through HELM's search ---------------------------------------------------------------------
 */

/* The thesis's prices: bytes at a device's bandwidth, half a delta each half block, nothing at the same time.
 */
static void thesis_prices(const struct thesis *t, int machine, struct cost_table *table)
{
    uint32_t units = unit_count(t->table.layers);
    const double cpu = t->profile.cpu.gemv.value, gpu = gpu_rate(t);
    *table = (struct cost_table){.units = units, .tokens = 1, .hand_over = 5e-6};
    table->unit = calloc(units, sizeof *table->unit);
    assert_non_null(table->unit);
    for (uint32_t u = 0; u < units; u++) {
        double bytes = (double)analyse_units_stored(&t->table, u, u), delta = machines[machine].delta / 2;
        table->unit[u] = (struct cost_unit){.cpu = bytes / cpu + delta,
                                            .cpu_beside = bytes / cpu + delta,
                                            .gpu = bytes / gpu + delta,
                                            .stream = INFINITY,
                                            .link = INFINITY,
                                            .link_beside = INFINITY,
                                            .bytes = (uint64_t)bytes,
                                            .crossing = (uint64_t)bytes};
    }
    double embed = unit_bytes(t, 0), head = unit_bytes(t, t->table.layers + 1);
    table->embed = (struct cost_unit){.cpu = embed / cpu, .cpu_beside = embed / cpu, .gpu = embed / gpu};
    table->head = (struct cost_unit){.cpu = head / cpu, .cpu_beside = head / cpu, .gpu = head / gpu};
}

static void thesis_memory(const struct thesis *t, int machine, struct search_bytes (*unit)[3],
                          struct search_memory *memory)
{
    *memory = (struct search_memory){.vram_limit = (uint64_t)(machines[machine].vram - RESERVED),
                                     .host_limit = (uint64_t)machines[machine].host,
                                     .unit = unit[0]};
    for (uint32_t u = 0; u < unit_count(t->table.layers); u++) {
        uint64_t bytes = analyse_units_stored(&t->table, u, u);
        unit[u][PLAN_HOME_CPU].host = bytes;
        unit[u][PLAN_HOME_GPU].vram = bytes;
        unit[u][PLAN_HOME_STREAM].host = bytes;
    }
    memory->embed[PLAN_HOME_CPU].host = memory->embed[PLAN_HOME_GPU].vram = (uint64_t)unit_bytes(t, 0);
    memory->head[PLAN_HOME_CPU].host = memory->head[PLAN_HOME_GPU].vram =
        (uint64_t)unit_bytes(t, t->table.layers + 1);
}

/* Table 6.5's splits and times by the program's own search; embedding and output projection apart, as the
 * thesis has them. 32B on the 3090 is left out: the search may leave the output projection on the CPU, where
 * the thesis's order of units cannot, and takes two more blocks to the GPU for it. */
static void the_search_finds_the_same(void **state)
{
    (void)state;
    static struct search_bytes unit[128][3];
    for (size_t i = 0; i < ROWS; i++) {
        struct thesis t;
        struct cost_table prices;
        struct search_memory memory;
        struct search_found found;
        struct helm_err err = {0};
        uint32_t on_cpu = 0;
        open_thesis(rows[i].machine, rows[i].model, &t);
        memset(unit, 0, sizeof unit);
        assert_true(unit_count(t.table.layers) <= sizeof unit / sizeof *unit);
        thesis_prices(&t, rows[i].machine, &prices);
        thesis_memory(&t, rows[i].machine, unit, &memory);
        const struct search_problem problem = {
            .decode = &prices, .memory = &memory, .device = true, .whole_layers = true, .no_stream = true};
        if (search_run(&problem, SEARCH_THESIS, &found, &err)) fail_msg("row %zu: %s", i, err.text);
        assert_true(found.feasible);
        double ms = predict_ms(&t, rows[i].machine, rows[i].cpu_units);
        for (uint32_t u = 0; u < prices.units; u += 2) on_cpu += found.home[u] == PLAN_HOME_CPU;
        if (rows[i].predicted_ms <= 0) {
            assert_int_equal(found.head, PLAN_HOME_CPU);
            assert_int_equal(on_cpu, rows[i].cpu_units - 1 - 2);
            assert_true(1e3 * found.seconds < ms);
        } else {
            /* the embedding is one of the thesis's CPU units, the output projection one of its GPU's */
            assert_int_equal(on_cpu, rows[i].cpu_units ? rows[i].cpu_units - 1 : 0);
            assert_true(fabs(1e3 * found.seconds / ms - 1) < 1e-3);
        }
        search_found_free(&found);
        free(prices.unit);
        close_thesis(&t);
    }
}

/* The profiles that ship for these machines: sources are marked, the text's numbers are the text's.
 */
static void profiles_say_where_they_are_from(void **state)
{
    (void)state;
    struct profile p;
    struct helm_err err = {0};
    for (int machine = 0; machine < MACHINES; machine++) {
        if (profile_read(machines[machine].profile, NULL, &p, &err)) fail_msg("%s", err.text);
        assert_string_equal(p.fingerprint, "");
        assert_int_equal(p.gpu.read.source, PROFILE_TEXT_SAYS);
        assert_true(p.host_bytes > 0 && (double)p.host_bytes < machines[machine].host * 1.03);
        assert_true((double)p.gpu.vram_bytes < machines[machine].vram * 1.08);
        /* these are unmeasured */
        assert_int_equal(p.cpu.gemv.source, machine == RTX4060 ? PROFILE_TEXT_SAYS : PROFILE_ESTIMATE);
        assert_int_equal(p.gpu.attention.source, PROFILE_ESTIMATE);
    }
    if (profile_read("profiles/thesis-rtx4060-laptop.json", NULL, &p, &err)) fail_msg("%s", err.text);
    assert_float_equal(p.cpu.gemv.value, 45e9, 1);
    assert_float_equal(p.gpu.read.value, 218e9, 1);
    assert_float_equal(p.link.h2d.value, 16e9, 1);
    if (profile_read("profiles/h200-sapphire-rapids.json", NULL, &p, &err)) fail_msg("%s", err.text);
    assert_int_equal(p.link.h2d.source, PROFILE_MEASURED);
    assert_int_equal(p.gpu.gemv.source, PROFILE_MEASURED);
    assert_int_equal(p.gpu.chain_attention.source, PROFILE_MEASURED);
    assert_int_equal(p.cpu.gemv_packed_beside.source, PROFILE_MEASURED);
}

/* Table 6.1, measured with 128 tokens of prompt and 128 of output, beside HELM's own planner restricted to
 * the thesis's splits, with its own ledgers. */
static void the_planner_forecasts_table_6_1(void **state)
{
    (void)state;
    static const struct {
        const char *model, *profile;
        double tok_s, ttft_ms;
        uint32_t gpu_layers; /* 0: not the thesis's split */
        /* forecast over measured, least and most */
        double rate[2], ttft[2];
    } table[] = {
        /* the laptop, whose bandwidths the text measured: the thesis's splits to the layer, at compiled speed
         */
        {"qwen3-4b", "thesis-rtx4060-laptop", 17.2, 233, 33, {1.1, 1.3}, {0.75, 1.1}},
        {"qwen3-8b", "thesis-rtx4060-laptop", 4.1, 2505, 16, {1.1, 1.25}, {0.7, 1.0}},
        /* 0.79 ms a block of Python are 28 of the 37 to 44 ms that these steps took */
        {"qwen3-4b", "thesis-rtx3090", 27.1, 50, 36, {2, 4}, {0.3, 1}},
        {"qwen3-8b", "thesis-rtx3090", 22.9, 49, 36, {2, 4}, {0.3, 1}},
        /* no such overhead, and four layers more in 24 GiB */
        {"qwen3-14b", "thesis-rtx3090", 6.1, 870, 0, {1.5, 2.4}, {0.15, 0.6}},
        {"qwen3-32b", "thesis-rtx3090", 1.2, 8146, 0, {1.2, 1.7}, {0.15, 0.6}},
        {"qwen3-4b", "thesis-l40s", 27.1, 81, 36, {2, 4}, {0.1, 1}},
        {"qwen3-8b", "thesis-l40s", 25.1, 83, 36, {1.5, 4}, {0.1, 1}},
        {"qwen3-14b", "thesis-l40s", 20.7, 90, 40, {1.1, 1.6}, {0.3, 1}},
        {"qwen3-32b", "thesis-l40s", 1.1, 9147, 0, {1.05, 1.5}, {0.15, 0.6}},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        struct explain_case c;
        struct planner_prediction p;
        struct helm_err err = {0};
        case_open(&c, table[i].model, table[i].profile, 0);
        c.request.strategy = SEARCH_THESIS;
        c.request.device_required = true;
        c.request.wish.ctx = 256;
        case_make(&c);
        if (planner_predict(&c.request, &c.plan, 1, 192, 128, &p, &err)) fail_msg("%s", err.text);
        if (table[i].gpu_layers) assert_int_equal(plan_layers_of(&c.plan, PLAN_GPU0), table[i].gpu_layers);
        double rate = 1 / p.decode.seconds / table[i].tok_s, ttft = 1e3 * p.ttft.seconds / table[i].ttft_ms;
        if (rate < table[i].rate[0] || rate > table[i].rate[1] || ttft < table[i].ttft[0] ||
            ttft > table[i].ttft[1])
            fail_msg("%s on %s: %.2f token/s, %.0f ms: %.2f and %.2f of what was measured", table[i].model,
                     table[i].profile, 1 / p.decode.seconds, 1e3 * p.ttft.seconds, rate, ttft);
        case_close(&c);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_splits_come_out),
        cmocka_unit_test(predictions_come_out_or_differ_as_explained),
        cmocka_unit_test(deltas_of_the_l40s_exceed_its_rows),
        cmocka_unit_test(the_running_example_contradicts_itself),
        cmocka_unit_test(kv_bytes_have_a_unit_slip),
        cmocka_unit_test(the_search_finds_the_same),
        cmocka_unit_test(profiles_say_where_they_are_from),
        cmocka_unit_test(the_planner_forecasts_table_6_1),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
