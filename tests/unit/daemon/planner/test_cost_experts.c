/* Prices of mixtures of experts: bytes stored and bytes a step reads are different things. One token reads
 * the experts that it chooses, several those that any of them chooses, a chunk nearly all; all of them lie
 * somewhere and all cross the link. */
#include "common/model/arch.h"
#include "common/model/parts.h"
#include "daemon/planner/profile/programs.h"
#include "tests/unit/daemon/planner/cost_case.h"
#include "tests/written_plans.h"

#define CONFIG(rows)                                                                                         \
    "{\"architectures\": [\"Qwen3MoeForCausalLM\"], \"hidden_size\": 2048, \"intermediate_size\": 6144, "    \
    "\"moe_intermediate_size\": " rows ", \"num_experts\": 128, \"num_experts_per_tok\": 8, "                \
    "\"num_hidden_layers\": 4, \"num_attention_heads\": 32, \"num_key_value_heads\": 4, \"head_dim\": 128, " \
    "\"mlp_only_layers\": [1], \"vocab_size\": 4096, \"dtype\": \"bfloat16\"}"
#define EXPERT (2.0 * 3 * 768 * 2048)          /* bytes of one */
#define BESIDE (2.0 * 2048 + 4.0 * 128 * 2048) /* of the norm, and of the router as it is kept */

struct mixture {
    struct model model;
    struct analyse_table analysed;
    struct profile profile;
};

static int open_as(struct mixture *m, const char *text)
{
    struct model_config config;
    struct helm_err err = {0};
    memset(m, 0, sizeof *m);
    m->profile = round_numbers();
    if (model_config_parse("config", text, strlen(text), &config, &err)) return -1;
    if (model_from_config(&config, &m->model, &err)) return -1;
    return analyse_table_build(&m->model, &m->analysed, &err);
}

static int open_mixture(void **state)
{
    static struct mixture m;
    *state = &m;
    return open_as(&m, CONFIG("768"));
}

static int close_mixture(void **state)
{
    struct mixture *m = *state;
    analyse_table_free(&m->analysed);
    model_free(&m->model);
    return 0;
}

static struct cost_unit price_mlp(const struct mixture *m, uint32_t tokens, uint32_t layer)
{
    const struct cost_step step = {tokens, tokens, tokens, 16, .kv_dtype = KV_F16};
    struct cost_table table;
    struct helm_err err = {0};
    if (cost_price(&m->model, &m->analysed, &m->profile, &step, &table, &err)) fail_msg("%s", err.text);
    const struct cost_unit unit = table.unit[unit_of(layer, UNIT_MLP)];
    cost_table_free(&table);
    return unit;
}

static void bytes_stored_are_not_bytes_read(void **state)
{
    const struct mixture *m = *state;
    const struct analyse_bytes sparse =
                                   analyse_units(&m->analysed, unit_of(0, UNIT_MLP), unit_of(0, UNIT_MLP)),
                               dense =
                                   analyse_units(&m->analysed, unit_of(1, UNIT_MLP), unit_of(1, UNIT_MLP));
    const double router = 2.0 * 128 * 2048, norm = 2.0 * 2048;
    assert_true((double)sparse.stored == 128 * EXPERT + router + norm);
    assert_true((double)sparse.token == 8 * EXPERT + router + norm);
    assert_true((double)sparse.vram_vectors >= 4.0 * (128 * 2048 + 2048)); /* kept as fp32 */
    assert_true((double)sparse.arena == 128 * EXPERT);
    assert_true((double)sparse.packable == 128 * EXPERT); /* whole groups of rows each */
    const uint32_t mlp = unit_of(0, UNIT_MLP);
    assert_true(m->analysed.packs[mlp] && m->analysed.packs_cpu[mlp] && m->analysed.packs_vram[mlp]);
    assert_true(m->analysed.packs[mlp - 1] &&
                !m->analysed.packs_vram[mlp - 1]); /* attention is little beside them */
    assert_int_equal(dense.stored, dense.token);
    struct plan_unit unit[WRITTEN_UNITS(4)];
    struct plan plan = {.layers = 4, .unit = units_all(unit, 4, PLAN_HOME_CPU), .head = PLAN_GPU0};
    const struct analyse_bytes all = analyse_units(&m->analysed, 0, 7);
    assert_int_equal(analyse_token_bytes(&m->analysed, &plan, PLAN_HOME_CPU), all.token);
    /* packed, a token reads less of those that it chooses */
    plan_set_unit_format(&plan, mlp, FORMAT_BF16_PACKED);
    const struct cost_crossing reads = cost_bytes_of(&m->analysed, &plan, PLAN_HOME_CPU);
    assert_int_equal(reads.bytes, all.token);
    assert_in_range(reads.bytes - reads.crossing, 0.28 * 8 * EXPERT, 0.30 * (8 * EXPERT + router));
    units_all(unit, 4, PLAN_HOME_STREAM); /* the next expert is unknown: all are copied */
    assert_int_equal(analyse_token_bytes(&m->analysed, &plan, PLAN_HOME_STREAM), all.stored);
}

static void steps_read_what_their_tokens_choose(void **state)
{
    const struct mixture *m = *state;
    const struct model_tensor *t = model_find(&m->model, TENSOR_UP_EXPERTS, 0),
                              *q = model_find(&m->model, TENSOR_Q, 0);
    const struct model_config *c = &m->model.config;
    assert_true(fabs(analyse_read_part(c, t, 1) - 8.0 / 128) < 1e-12);
    assert_true(fabs(analyse_read_part(c, t, 2) - (1 - 120.0 / 128 * 120.0 / 128)) < 1e-12);
    assert_true(analyse_read_part(c, t, 512) > 0.999999);
    assert_true(analyse_read_part(c, q, 1) == 1);

    /* CPU: router, gates, downs at 10 us; 100 GB/s. Norm and choice are in front of them. */
    const struct cost_unit one = price_mlp(m, 1, 0), dense = price_mlp(m, 1, 1);
    expect("one token on the CPU", one.cpu, 3 * 10e-6 + (8 * EXPERT + BESIDE) / 100e9);
    expect("a dense layer", dense.cpu, 2 * 10e-6 + (2.0 * 3 * 6144 * 2048 + 2.0 * 2048) / 100e9);
    /* GPU: router, gates with the choice, downs at 5 us; 1,000 GB/s. */
    expect("one token on the GPU", one.gpu, 3 * 5e-6 + (8 * EXPERT + BESIDE) / 1000e9);
    /* Small kernels on a device that has chains, the products with experts three operations each; a dense
     * layer's are usual ones. */
    struct mixture chains = *m;
    chains.profile.gpu.chain_gemv.value = chains.profile.gpu.chain_attention.value = 2000e9;
    chains.profile.gpu.chain_operation.value = 2e-6;
    expect("one token where others have chains", price_mlp(&chains, 1, 0).gpu, one.gpu + 2 * 2 * 5e-6);
    expect("a dense layer likewise", price_mlp(&chains, 1, 1).gpu, dense.gpu);
    expect("the link has all of them", one.link, (double)one.crossing / 50e9 + 10e-6);
    assert_true((double)one.crossing > 128 * EXPERT);
    assert_false(one.packed || one.cpu_packed || one.gpu_packed);

    /* Two tokens read less than twice one's, sixteen less than all, a chunk all, once for 512 tokens. */
    const struct cost_unit two = price_mlp(m, 2, 0), few = price_mlp(m, 16, 0), chunk = price_mlp(m, 512, 0);
    assert_true(two.cpu > 1.8 * one.cpu && two.cpu < 2.1 * one.cpu);
    assert_true(few.cpu > 128 * EXPERT / 100e9 * 0.6 && few.cpu < 128 * EXPERT / 100e9);
    assert_true(chunk.gpu > 128 * EXPERT / 1000e9 && chunk.gpu < 2 * 128 * EXPERT / 1000e9);
}

/* A chunk's products with experts go by the rate of as many tokens as one of them has: of 2,048, 128. */
static void a_chunk_is_priced_by_the_tokens_of_an_expert(void **state)
{
    struct mixture m = *(const struct mixture *)*state;
    struct profile_table *rate = &m.profile.gpu.linear;
    const double flops = 2.0 * 3 * 768 * 2048 * 8 * 2048;
    rate->count = 2;
    rate->point[0] = (struct profile_point){8, made_up_value(1e12)};
    rate->point[1] = (struct profile_point){128, made_up_value(20e12)};
    m.profile.gpu.linear_operation.count = 0;
    const double fast = price_mlp(&m, 2048, 0).gpu;
    rate->point[1] = (struct profile_point){128, made_up_value(10e12)};
    expect("half the rate, twice the time", price_mlp(&m, 2048, 0).gpu - fast, flops / 20e12);
}

/* Experts that two tokens choose take the CPU longer than those of one. */
static void experts_of_two_tokens_take_longer(void **state)
{
    struct mixture *m = *state;
    struct profile_format *of = &m->profile.format[FORMAT_Q4_K];
    double bytes = 0;
    for (uint32_t i = 0; i < m->model.tensor_count; i++) {
        struct model_tensor *t = &m->model.tensors[i];
        if (!arch_role_of_experts(t->role)) continue;
        t->format = FORMAT_Q4_K;
        t->bytes = tensor_format_bytes(t->format, t->rows, t->cols);
        if (t->layer == 0) bytes += (double)t->bytes;
    }
    of->cpu_gemv = made_up_value(64e9), of->cpu_gemv_beside = made_up_value(48e9);
    /* Some experts that eight tokens choose have two: they take as long as the fewest tokens measured. */
    const double none = pow(15.0 / 16, 8), read = bytes * (1 - none),
                 several = 1 - 8 * (1.0 / 16) * pow(15.0 / 16, 7) / (1 - none);
    of->cpu_linear.count = 1; /* of four tokens: as long as one's */
    of->cpu_linear.point[0] =
        (struct profile_point){4, made_up_value(2 * 4 * 64e9 /
                                                ((double)tensor_format_row_bytes(FORMAT_Q4_K, 256) / 256))};
    const double single = price_mlp(m, 8, 0).cpu;
    const double four =
        3 / 64e9 * tensor_format_row_bytes(FORMAT_Q4_K, 256) / 256; /* seconds a weight: three times one's */
    of->cpu_linear.point[0] = (struct profile_point){4, made_up_value(2 * 4 / four)};
    expect("as four tokens", price_mlp(m, 8, 0).cpu - single, read / 64e9 * several * 2);
}

static struct cost_unit price_mixed(const struct mixture *m, uint32_t tokens, uint32_t direct_permille,
                                    double hit)
{
    const struct cost_step step = {tokens,
                                   tokens,
                                   tokens,
                                   16,
                                   .kv_dtype = KV_F16,
                                   .experts = {.slots = 1, .direct_permille = direct_permille, .hit = hit}};
    struct cost_table table;
    struct helm_err err = {0};
    if (cost_price(&m->model, &m->analysed, &m->profile, &step, &table, &err)) fail_msg("%s", err.text);
    const struct cost_unit unit = table.unit[unit_of(0, UNIT_MLP)];
    cost_table_free(&table);
    return unit;
}

/* Both processors compute a layer's experts, with one hand-over of 7 us each way. */
static void both_memories_work_at_once(void **state)
{
    const struct mixture *m = *state;
    const double own = 3 * 5e-6 + BESIDE / 1000e9, /* router, asking, adding */
        launches = 2 * 5e-6,                       /* gates, downs */
        way = 7e-6, cpu = 3 * 10e-6;               /* gates, downs, and how experts begin */
    const struct cost_unit none = price_mixed(m, 1, 0, 0), all = price_mixed(m, 1, 0, 1),
                           half = price_mixed(m, 1, 500, 0);
    expect("none in VRAM", none.mixed, own + 2 * way + cpu + 8 * EXPERT / 100e9);
    expect("all in VRAM", all.mixed, own + 2 * way + fmax(cpu, launches + 8 * EXPERT / 1000e9 - 2 * way));
    /* four over the link, at a copy's rate beside the CPU, and two launches later */
    const double direct = m->profile.link.h2d_beside.value, begins = 2 * 5e-6;
    expect("half of them read directly", half.mixed, own + launches + begins + 4 * EXPERT / direct);
    expect("copies wait for it, and slow no one more", half.mixed_kv.cpu_beside, half.mixed_kv.cpu);
    expect("what the link has to do", half.mixed_kv.link, begins + 4 * EXPERT / direct);
    /* beside seven of the CPU's one over the link takes 0.6 of the CPU's time for one */
    expect("one of them read directly", price_mixed(m, 1, 125, 0).mixed,
           own + 2 * way + cpu + 7.6 * EXPERT / 100e9);
    /* the more are there, the sooner; the mean is between the ends */
    double before = none.mixed;
    for (double hit = 0.1; hit < 0.95; hit += 0.1) {
        const double now = price_mixed(m, 1, 125, hit).mixed;
        if (hit > 0.15) assert_true(now < before);
        assert_true(now > all.mixed && now < none.mixed);
        before = now;
    }
    const struct cost_unit few = price_mixed(m, 16, 0, 0.5), dense = price_mixed(m, 16, 0, 0);
    assert_true(few.mixed < 0.7 * dense.mixed && few.mixed > 0.4 * dense.mixed);
}

/* Experts in two parts of which one is in VRAM: a token finds half of them, neither more nor fewer; of those
 * it misses the GPU reads one part. With a quarter in VRAM some experts have a part there, and the mean is
 * between. */
static void parts_are_found_evenly(void **state)
{
    struct mixture *m = *state;
    struct helm_err err = {0};
    if (model_cut_experts(&m->model, 2, &err)) fail_msg("%s", err.text);
    analyse_table_free(&m->analysed);
    if (analyse_table_build(&m->model, &m->analysed, &err)) fail_msg("%s", err.text);
    const double part = EXPERT / 2, way = 7e-6, cpu = 3 * 10e-6,
                 own = 3 * 5e-6 + (BESIDE + 4.0 * 128 * 2048) / 1000e9; /* a router of twice the rows */
    const double all = own + 2 * way + cpu;
    expect("none", price_mixed(m, 1, 0, 0).mixed, all + 16 * part / 100e9);
    expect("half", price_mixed(m, 1, 0, 0.5).mixed, all + 8 * part / 100e9);
    expect("one of eight directly", price_mixed(m, 1, 125, 0.5).mixed, all + 7.6 * part / 100e9);
    expect("a quarter", price_mixed(m, 1, 0, 0.25).mixed, all + 12 * part / 100e9);
}

/* The best share takes no longer than any, and no less than the best of all for one number of missing ones:
 * of none found, of which all are missing, and of several tokens. */
static void the_best_share_is_no_slower_than_any(void **state)
{
    const struct mixture *m = *state;
    for (uint32_t tokens = 1; tokens <= 16; tokens *= 4)
        for (double hit = 0; hit < 1; hit += 0.25) {
            const double best = price_mixed(m, tokens, COST_DIRECT_BEST, hit).mixed;
            double least = price_mixed(m, tokens, 0, hit).mixed;
            for (uint32_t direct = 0; direct <= 1000; direct += 5)
                least = fmin(least, price_mixed(m, tokens, direct, hit).mixed);
            assert_true(best <= least * (1 + 1e-12));
            if (tokens > 1 || hit == 0) assert_true(best > 0.99 * least);
        }
}

/* The expert that every token has is read by every one; it is the GPU's while the CPU has others. */
static void shared_experts_are_read_by_every_token(void **state)
{
    (void)state;
    static const char text[] =
        "{\"architectures\": [\"Qwen2MoeForCausalLM\"], \"hidden_size\": 2048, \"intermediate_size\": 5632, "
        "\"moe_intermediate_size\": 768, \"shared_expert_intermediate_size\": 5632, \"num_experts\": 128, "
        "\"num_experts_per_tok\": 8, \"num_hidden_layers\": 1, \"num_attention_heads\": 32, "
        "\"num_key_value_heads\": 4, \"vocab_size\": 4096, \"dtype\": \"bfloat16\"}";
    const double shared = 2.0 * 3 * 5632 * 2048, vector = 2.0 * 2048;
    struct mixture m;
    void *at = &m;
    assert_int_equal(open_as(&m, text), 0);
    const uint32_t mlp = unit_of(0, UNIT_MLP);
    const struct analyse_bytes bytes = analyse_units(&m.analysed, mlp, mlp);
    const double router = 2.0 * 128 * 2048;
    assert_true((double)bytes.stored == 128 * EXPERT + shared + router + 2 * vector);
    assert_true((double)bytes.token == 8 * EXPERT + shared + router + 2 * vector);
    /* its gates, its weight, its down beside three */
    const double read = 8 * EXPERT + shared + BESIDE + vector;
    const struct cost_unit one = price_mlp(&m, 1, 0), four = price_mlp(&m, 4, 0);
    expect("one token on the CPU", one.cpu, 6 * 10e-6 + read / 100e9);
    expect("one token on the GPU", one.gpu, 6 * 5e-6 + read / 1000e9);
    assert_true(four.cpu - one.cpu < 3.1 * 8 * EXPERT / 100e9); /* once for four */
    const double own = 4 * 5e-6 + (BESIDE + vector) / 1000e9;   /* router, weighing, asking, adding */
    expect("all others on the CPU", price_mixed(&m, 1, 0, 0).mixed,
           own + 2 * 7e-6 + 3 * 10e-6 + 8 * EXPERT / 100e9);
    expect("all others in VRAM", price_mixed(&m, 1, 0, 1).mixed,
           own + 4 * 5e-6 + (8 * EXPERT + shared) / 1000e9);
    assert_int_equal(close_mixture(&at), 0);
}

/* Where the half layer was measured on the CPU, the CPU's part of its experts is in proportion. */
static void the_cpus_experts_go_by_the_measured_layer(void **state)
{
    struct mixture *m = *state;
    static struct programs list;
    const struct cost_unit rates = price_mixed(m, 1, 0, 0);
    programs_list(&m->model, &list);
    const uint64_t signature = programs_signature(&m->model, unit_of(0, UNIT_MLP));
    for (uint32_t k = 0; k < list.kinds; k++)
        if (list.kind[k].signature == signature)
            programs_put(&list.kind[k].cpu[PROGRAMS_EXACT], &(struct programs_cell){.tokens = 1,
                                                                                    .seconds = 2 * rates.cpu,
                                                                                    .low = 2 * rates.cpu,
                                                                                    .high = 2 * rates.cpu,
                                                                                    .beside = 3 * rates.cpu});
    m->profile.programs = &list;
    const struct cost_unit measured = price_mixed(m, 1, 0, 0);
    assert_true(measured.cpu_measured);
    expect("twice the time", measured.mixed_kv.cpu - rates.mixed_kv.cpu, 8 * EXPERT / 100e9);
    const double longer = 3 * rates.cpu / rates.cpu_beside,
                 began = rates.mixed_kv.cpu - 8 * EXPERT / 100e9; /* the CPU's operations */
    expect("beside copies", measured.mixed_kv.cpu_beside - began,
           longer * (rates.mixed_kv.cpu_beside - began));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(bytes_stored_are_not_bytes_read, open_mixture, close_mixture),
        cmocka_unit_test_setup_teardown(steps_read_what_their_tokens_choose, open_mixture, close_mixture),
        cmocka_unit_test(shared_experts_are_read_by_every_token),
        cmocka_unit_test_setup_teardown(a_chunk_is_priced_by_the_tokens_of_an_expert, open_mixture,
                                        close_mixture),
        cmocka_unit_test_setup_teardown(experts_of_two_tokens_take_longer, open_mixture, close_mixture),
        cmocka_unit_test_setup_teardown(both_memories_work_at_once, open_mixture, close_mixture),
        cmocka_unit_test_setup_teardown(the_cpus_experts_go_by_the_measured_layer, open_mixture,
                                        close_mixture),
        cmocka_unit_test_setup_teardown(parts_are_found_evenly, open_mixture, close_mixture),
        cmocka_unit_test_setup_teardown(the_best_share_is_no_slower_than_any, open_mixture, close_mixture)};
    return cmocka_run_group_tests_name("daemon/planner/cost: experts", tests, NULL, NULL);
}
