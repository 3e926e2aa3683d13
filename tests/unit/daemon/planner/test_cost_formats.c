/* Unit tests of prices by weight format: a mixture as GGUF files have it, against numbers worked out by hand
 * for the 8B shape on a machine of round numbers; and that the search's bound holds for it. */
#include "common/base/units.h"
#include "tests/unit/daemon/planner/cost_case.h"
#include "tests/proof/proof.h"

/* Values of the 8B shape's operations. */
#define Q_K   (5120.0 * 4096)
#define V     (1024.0 * 4096)
#define O     (4096.0 * 4096)
#define GATES (2 * 12288.0 * 4096)
#define DOWN  (12288.0 * 4096)
#define LOGIT (151936.0 * 4096)
/* Bytes of a value: 144 bytes a block of 256 values, 210 a block of 256. */
#define Q4   (144.0 / 256)
#define Q6   (210.0 / 256)
#define NORM (2 * 4096.0) /* bytes */

static const struct cost_step one = {1, 1, 1, 1000, .kv_dtype = KV_F16},
                              four = {4, 4, 4, 1000, .kv_dtype = KV_F16},
                              chunk = {512, 1, 1, 512, .kv_dtype = KV_F16};

/* v, down and the head in q6_k, all else in q4_k: as a Q4_K_M file's first layers. */
static void mix(struct made_up *m)
{
    struct helm_err err = {0};
    for (uint32_t i = 0; i < m->model.tensor_count; i++) {
        struct model_tensor *t = &m->tensor[i];
        if (t->rows == 1 || t->role == TENSOR_EMBED) continue;
        const bool more = t->role == TENSOR_V || t->role == TENSOR_DOWN || t->role == TENSOR_HEAD;
        t->format = more ? FORMAT_Q6_K : FORMAT_Q4_K;
        t->bytes = tensor_format_bytes(t->format, t->rows, t->cols);
    }
    analyse_table_free(&m->analysed);
    assert_int_equal(analyse_table_build(&m->model, &m->analysed, &err), 0);
}

static void add(struct profile_table *table, uint32_t x, double value)
{
    table->point[table->count++] = (struct profile_point){x, made_up_value(value)};
}

static void measured(struct profile *p)
{
    struct profile_format *q4 = &p->format[FORMAT_Q4_K], *q6 = &p->format[FORMAT_Q6_K];
    q4->cpu_gemv = made_up_value(60e9);
    q6->cpu_gemv = made_up_value(80e9);
    q6->cpu_gemv_beside = made_up_value(70e9);
    q4->gpu_gemv = made_up_value(600e9);
    q6->gpu_gemv = made_up_value(700e9);
    q4->gpu_operation = made_up_value(6e-6);
    q6->gpu_operation = made_up_value(7e-6);
    q4->gpu_expand = made_up_value(400e9);
    q6->gpu_expand = made_up_value(500e9);
}

static int open_mixed(void **state)
{
    int rc = open_8b(state);
    struct priced *p = *state;
    if (!rc) mix(&p->m);
    return rc;
}

#define WITH_MIXTURE(test) cmocka_unit_test_setup_teardown(test, open_mixed, close_8b)

/* The formats are unmeasured: bytes are bytes. v is a product of its own on the GPU, not on the CPU. */
static void without_rates_all_bytes_are_alike(void **state)
{
    struct priced *p = *state;
    const double attention = (Q_K + O) * Q4 + V * Q6 + NORM, mlp = GATES * Q4 + DOWN * Q6 + NORM;
    price(p, one);
    const struct cost_unit *a = &p->table.unit[10], *m = &p->table.unit[11], *h = &p->table.head;
    expect("attention, CPU", a->cpu, attention / 100e9 + 1000 * KV / 50e9 + 4 * 10e-6);
    expect("attention, GPU", a->gpu, attention / 1000e9 + 1000 * KV / 500e9 + 4 * 5e-6);
    expect("MLP, GPU", m->gpu, mlp / 1000e9 + 2 * 5e-6);
    expect("MLP, link", m->link, mlp / 50e9 + 10e-6);
    /* cut by what they expand to, 32 MiB: q k 2, v 1, o 1; gate and up 6, down 3; each has two events */
    expect("attention, ring", a->stream, a->gpu + (4 - 3 + 2 * 4) * 5e-6);
    expect("MLP, ring", m->stream, m->gpu + (9 - 2 + 2 * 9) * 5e-6);
    expect("head, GPU", h->gpu, LOGIT * Q6 / 1000e9 + 151936 * 4 / 1000e9 + 2 * 5e-6 + 7e-6);
}

static void one_token_goes_by_each_formats_rate(void **state)
{
    struct priced *p = *state;
    measured(&p->profile);
    price(p, one);
    const struct cost_unit *a = &p->table.unit[10], *m = &p->table.unit[11], *h = &p->table.head;
    expect("attention, CPU", a->cpu,
           (Q_K + O) * Q4 / 60e9 + V * Q6 / 80e9 + NORM / 100e9 + 1000 * KV / 50e9 + 4 * 10e-6);
    /* q4_k keeps bf16's part of its speed beside the link, 0.8; q6_k's was measured */
    expect("attention, CPU beside", a->cpu_beside,
           (Q_K + O) * Q4 / 48e9 + V * Q6 / 70e9 + NORM / 80e9 + 1000 * KV / 40e9 + 4 * 10e-6);
    expect("MLP, CPU", m->cpu, GATES * Q4 / 60e9 + DOWN * Q6 / 80e9 + NORM / 100e9 + 2 * 10e-6);
    expect("attention, GPU", a->gpu,
           (Q_K + O) * Q4 / 600e9 + V * Q6 / 700e9 + NORM / 1000e9 + 1000 * KV / 500e9 + 2 * 6e-6 + 7e-6 +
               5e-6);
    expect("MLP, GPU", m->gpu, GATES * Q4 / 600e9 + DOWN * Q6 / 700e9 + NORM / 1000e9 + 6e-6 + 7e-6);
    expect("head, CPU", h->cpu, LOGIT * Q6 / 80e9 + 151936 * 4 / 100e9 + 2 * 10e-6);
    expect("head, GPU", h->gpu, LOGIT * Q6 / 700e9 + 151936 * 4 / 1000e9 + 7e-6 + 5e-6 + 7e-6);
    expect("the last slice, of gate and up", p->table.slice, 16 * 1048576 * Q4 / 600e9 + 6e-6);
}

/* In chains only what was measured in one; the other format's kernels stand between. */
static void chains_are_for_formats_that_go_into_them(void **state)
{
    struct priced *p = *state;
    measured(&p->profile);
    p->profile.gpu.chain_gemv = made_up_value(1250e9);
    p->profile.gpu.chain_attention = made_up_value(400e9);
    p->profile.gpu.chain_operation = made_up_value(1e-6);
    p->profile.format[FORMAT_Q4_K].gpu_chain_gemv = made_up_value(900e9);
    p->profile.format[FORMAT_Q4_K].gpu_chain_operation = made_up_value(2e-6);
    price(p, one);
    const struct cost_unit *m = &p->table.unit[11];
    expect("MLP, half chained", m->gpu, GATES * Q4 / 900e9 + 2e-6 + DOWN * Q6 / 700e9 + 7e-6 + NORM / 1250e9);
    expect("MLP, ring", m->stream,
           GATES * Q4 / 600e9 + 6e-6 + DOWN * Q6 / 700e9 + 7e-6 + NORM / 1000e9 + (9 - 2 + 2 * 9) * 5e-6);
}

static void several_tokens_go_by_each_formats_rate(void **state)
{
    struct priced *p = *state;
    struct profile_format *q4 = &p->profile.format[FORMAT_Q4_K], *q6 = &p->profile.format[FORMAT_Q6_K];
    measured(&p->profile);
    add(&q4->cpu_linear, 4, 0.2e12);
    add(&q4->gpu_linear, 4, 2e12);
    add(&q4->gpu_linear_operation, 4, 9e-6);
    price(p, four);
    const struct cost_unit *m = &p->table.unit[11];
    const double activations = 4 * (6.0 * 4096 + 6.0 * 12288);
    /* q4_k is bound by work at four tokens; q6_k's work is not known: at least its bytes */
    expect("MLP, CPU", m->cpu,
           2 * GATES * 4 / 0.2e12 + DOWN * Q6 / 80e9 + NORM / 100e9 + activations / 100e9 + 3 * 10e-6);
    /* q6_k has no kernel for several tokens: three slices are expanded, and multiplied as bf16 */
    expect("MLP, GPU", m->gpu,
           2 * GATES * 4 / 2e12 + 9e-6 + 2 * DOWN / 500e9 + 3 * 5e-6 + 2 * DOWN / 1000e9 + 5e-6 +
               NORM / 1000e9 + activations / 1000e9 + (9 - 2) * 5e-6);
    add(&q6->gpu_linear, 4, 4e12);
    price(p, four);
    m = &p->table.unit[11];
    expect("MLP, GPU, both read", m->gpu,
           2 * GATES * 4 / 2e12 + 9e-6 + 2 * DOWN * 4 / 4e12 + 5e-6 + NORM / 1000e9 + activations / 1000e9);
}

/* One token of an invariant plan: where all matrices are blocks that were measured in chains it is that of
 * any plan; else it is priced as a few. */
static void one_token_of_an_invariant_plan_has_its_blocks_in_chains(void **state)
{
    struct priced *p = *state;
    struct profile_format *q4 = &p->profile.format[FORMAT_Q4_K], *q6 = &p->profile.format[FORMAT_Q6_K];
    struct cost_step alone = one;
    alone.invariant = alone.one_as_few = true;
    measured(&p->profile);
    p->profile.gpu.linear_operation.count = 0;
    add(&p->profile.gpu.linear_operation, GPU_STEADY_FEW, 5e-6);
    for (struct profile_format *f = q4; f; f = f == q4 ? q6 : NULL) {
        add(&f->gpu_linear, 1, 1e12);
        add(&f->gpu_linear_operation, 1, 9e-6);
    }
    q4->gpu_chain_gemv = made_up_value(900e9);
    q4->gpu_chain_operation = made_up_value(2e-6);
    price(p, alone);
    expect("MLP, as a few", p->table.unit[11].gpu,
           2 * (GATES + DOWN) * GPU_STEADY_FEW / 1e12 + 2 * 9e-6 + NORM / 1000e9);
    q6->gpu_chain_gemv = made_up_value(800e9);
    q6->gpu_chain_operation = made_up_value(3e-6);
    price(p, alone);
    const double mlp = p->table.unit[11].gpu, attention = p->table.unit[10].gpu;
    price(p, one);
    expect("MLP, in chains", mlp, p->table.unit[11].gpu);
    expect("attention, in chains", attention, p->table.unit[10].gpu);
}

/* Several tokens of an invariant plan are computed by a program of 8, at its rate, whatever lies between
 * measured points. */
static void four_tokens_of_an_invariant_plan_have_the_rate_of_eight(void **state)
{
    struct priced *p = *state;
    struct profile_format *q4 = &p->profile.format[FORMAT_Q4_K], *q6 = &p->profile.format[FORMAT_Q6_K];
    struct cost_step steady = four;
    steady.invariant = steady.one_as_few = true;
    measured(&p->profile);
    for (struct profile_format *f = q4; f; f = f == q4 ? q6 : NULL) {
        add(&f->gpu_linear, 4, 5e12);
        add(&f->gpu_linear, GPU_STEADY_FEW, 8e12);
        add(&f->gpu_linear_operation, 4, 6e-6);
        add(&f->gpu_linear_operation, GPU_STEADY_FEW, 9e-6);
    }
    price(p, steady);
    q4->gpu_chain_gemv = made_up_value(900e9);
    q6->gpu_chain_gemv = made_up_value(800e9);
    price(p, steady);
    expect("MLP, as eight", p->table.unit[11].gpu,
           2 * (GATES + DOWN) * GPU_STEADY_FEW / 8e12 + 2 * 9e-6 +
               (NORM + 4 * (6.0 * 4096 + 6.0 * 12288)) / 1000e9);
}

/* Where the device multiplies a short chunk by blocks as they lie, those at home are not expanded; streamed
 * ones are, and so are those whose products are unmeasured. */
static void a_short_chunk_takes_blocks_as_they_lie(void **state)
{
    struct priced *p = *state;
    struct profile_format *q4 = &p->profile.format[FORMAT_Q4_K], *q6 = &p->profile.format[FORMAT_Q6_K];
    const struct cost_step brief = {GPU_SHORT_TOKENS, 1, 1, GPU_SHORT_TOKENS, .kv_dtype = KV_F16};
    const struct cost_unit *m = &p->table.unit[11];
    const double activations = GPU_SHORT_TOKENS * (6.0 * 4096 + 6.0 * 12288);
    measured(&p->profile);
    price(p, brief);
    const double expanded = p->table.unit[11].gpu, streamed = p->table.unit[11].stream;
    add(&q4->gpu_linear, 16, 20e12);
    add(&q4->gpu_linear, GPU_SHORT_TOKENS, 80e12);
    add(&q4->gpu_linear_operation, GPU_SHORT_TOKENS, 9e-6);
    add(&q6->gpu_linear, 16, 10e12);
    price(p, brief);
    m = &p->table.unit[11];
    expect("down is of few tokens alone: as if all were expanded", m->gpu, expanded);
    add(&q6->gpu_linear, GPU_SHORT_TOKENS, 40e12);
    add(&q6->gpu_linear_operation, GPU_SHORT_TOKENS, 11e-6);
    price(p, brief);
    m = &p->table.unit[11];
    expect("MLP, GPU", m->gpu,
           2 * GATES * GPU_SHORT_TOKENS / 80e12 + 9e-6 + 2 * DOWN * GPU_SHORT_TOKENS / 40e12 + 11e-6 +
               NORM / 1000e9 + activations / 1000e9 + 2 * 8e-6);
    expect("MLP, ring", m->stream, streamed);
    price(p, chunk);
    const double more = p->table.unit[11].gpu;
    q4->gpu_linear.count = q6->gpu_linear.count = 0;
    price(p, chunk);
    expect("longer ones are expanded", p->table.unit[11].gpu, more);
}

/* Blocks are expanded, each format at its rate, and multiplied as 16 bits; with them v normalises its input
 * anew. */
static void a_chunk_expands_at_each_formats_rate(void **state)
{
    struct priced *p = *state;
    measured(&p->profile);
    price(p, chunk);
    const struct cost_unit *a = &p->table.unit[10], *m = &p->table.unit[11];
    const double mlp_expand = 2 * GATES / 400e9 + 2 * DOWN / 500e9 + 9 * 8e-6,
                 attention_expand = 2 * (Q_K + O) / 400e9 + 2 * V / 500e9 + 4 * 8e-6;
    expect("MLP", m->gpu,
           2 * (GATES + DOWN) * 512 / 100e12 + NORM / 1000e9 + 512 * (6.0 * 4096 + 6.0 * 12288) / 1000e9 +
               4 * 8e-6 + mlp_expand + (9 - 2) * 8e-6);
    expect("attention", a->gpu,
           2 * (Q_K + V + O) * 512 / 100e12 + NORM / 1000e9 + 4 * 4096 * (512 * 513 / 2.0) / 20e12 +
               512 * (6.0 * 4096 + 8.0 * 6144) / 1000e9 + (5 + 2) * 8e-6 + attention_expand + (4 - 3) * 8e-6);
    expect("MLP streamed", m->stream, m->gpu);
}

/* The widest spread among the formats at a processor is the processor's. */
static void error_bars_are_those_of_the_formats(void **state)
{
    struct priced *p = *state;
    enum plan_home home[72];
    measured(&p->profile);
    for (int u = 0; u < 72; u++) home[u] = PLAN_HOME_CPU;
    const struct cost_plan plan = {.home = home, .embed = PLAN_CPU0, .head = PLAN_CPU0};
    struct cost_result r = {.done = NULL};
    price(p, one);
    cost_simulate(&p->table, &plan, &r);
    const double before = cost_uncertainty(&p->profile, &p->table, &plan, &r);
    p->profile.format[FORMAT_Q6_K].cpu_gemv.low = 60e9;
    p->profile.format[FORMAT_Q6_K].cpu_gemv.high = 100e9;
    price(p, one);
    const double after = cost_uncertainty(&p->profile, &p->table, &plan, &r);
    assert_true(before < 0.04 && after > 0.2 && after < 0.26);
}

/* Layers of two mixtures in turns, on machines where the CPU decodes blocks slowly: units differ in what the
 * link slows them by, which the bound takes the least of. No plan is below it, and the chosen one is near
 * it. */
static void the_bound_holds_for_mixtures(void **state)
{
    struct priced *p = *state;
    struct search_found f;
    double worst = 0;
    for (uint32_t i = 0; i < p->m.model.tensor_count; i++) { /* two layers of three are q4_k alone */
        struct model_tensor *t = &p->m.tensor[i];
        if (t->layer < 0 || t->rows == 1 || t->layer % 3 == 2) continue;
        t->format = FORMAT_Q4_K;
        t->bytes = tensor_format_bytes(t->format, t->rows, t->cols);
    }
    analyse_table_free(&p->m.analysed);
    assert_int_equal(analyse_table_build(&p->m.model, &p->m.analysed, &p->err), 0);
    measured(&p->profile);
    for (int slow = 0; slow < 2; slow++)
        for (uint64_t gib = 1; gib <= 5; gib++) {
            const struct cost_step step = {1, 1, 1, 4096, .kv_dtype = KV_F16};
            if (slow) p->profile.format[FORMAT_Q4_K].cpu_gemv = made_up_value(25e9);
            if (slow) p->profile.format[FORMAT_Q4_K].cpu_gemv_beside = made_up_value(24e9);
            price(p, step);
            struct search_memory memory = made_up_memory(&p->m, gib * GIB, 200 * GIB, 8192);
            const struct search_problem problem = {.decode = &p->table, .memory = &memory, .device = true};
            assert_int_equal(search_run(&problem, SEARCH_BEST, &f, &p->err), 0);
            double bound;
            assert_int_equal(proof_found(&problem, SEARCH_BEST, &f, &bound, &p->err), 0);
            assert_true(f.feasible && bound > 0 && bound <= f.seconds);
            worst = fmax(worst, f.seconds / bound - 1);
            search_found_free(&f);
        }
    print_message("mixtures: %.2f %% above the bound at worst\n", 100 * worst);
    assert_true(worst <= 0.06);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        WITH_MIXTURE(without_rates_all_bytes_are_alike),
        WITH_MIXTURE(one_token_goes_by_each_formats_rate),
        WITH_MIXTURE(chains_are_for_formats_that_go_into_them),
        WITH_MIXTURE(several_tokens_go_by_each_formats_rate),
        WITH_MIXTURE(one_token_of_an_invariant_plan_has_its_blocks_in_chains),
        WITH_MIXTURE(four_tokens_of_an_invariant_plan_have_the_rate_of_eight),
        WITH_MIXTURE(a_short_chunk_takes_blocks_as_they_lie),
        WITH_MIXTURE(a_chunk_expands_at_each_formats_rate),
        WITH_MIXTURE(error_bars_are_those_of_the_formats),
        WITH_MIXTURE(the_bound_holds_for_mixtures),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
