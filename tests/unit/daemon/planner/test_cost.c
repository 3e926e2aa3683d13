/* Unit tests of daemon/planner/cost/cost.c: prices against numbers worked out by hand for the 8B shape on a
 * machine of round numbers. */
#include "common/base/units.h"
#include "tests/unit/daemon/planner/cost_case.h"

static void one_token_reads_every_weight_once(void **state)
{
    struct priced *p = *state;
    price(p, (struct cost_step){1, 1, 1, 4096, .kv_dtype = KV_F16});
    const struct cost_unit *a = &p->table.unit[10], *m = &p->table.unit[11], *h = &p->table.head;
    assert_int_equal(p->table.units, 72);
    assert_true((double)a->bytes == ATTENTION && (double)m->bytes == MLP);
    expect("attention, CPU", a->cpu, ATTENTION / 100e9 + 4096 * KV / 50e9 + 4 * 10e-6);
    expect("attention beside", a->cpu_beside, ATTENTION / 80e9 + 4096 * KV / 40e9 + 4 * 10e-6);
    expect("attention, GPU", a->gpu, ATTENTION / 1000e9 + 4096 * KV / 500e9 + 3 * 5e-6);
    expect("attention, ring", a->stream, a->gpu + (6 - 2) * 5e-6); /* 80 MiB and a norm in slices of 16 */
    expect("MLP, CPU", m->cpu, MLP / 100e9 + 2 * 10e-6);
    expect("MLP, GPU", m->gpu, MLP / 1000e9 + 2 * 5e-6);
    expect("MLP, ring", m->stream, m->gpu + (19 - 2) * 5e-6);
    expect("MLP, link", m->link, MLP / 50e9 + 10e-6);
    expect("MLP, link beside", m->link_beside, MLP / 40e9 + 10e-6);
    expect("head, CPU", h->cpu, HEAD / 100e9 + 151936 * 4 / 100e9 + 2 * 10e-6);
    /* and what tells the host */
    expect("head, GPU", h->gpu, HEAD / 1000e9 + 151936 * 4 / 1000e9 + 2 * 5e-6 + 7e-6);
    expect("embedding, GPU", p->table.embed.gpu, 7e-6 + 3 * 5e-6 + 4096 * 6 / 1000e9);
    expect("hand-over", p->table.hand_over, 7e-6);
    expect("the rest of 16 KiB", p->table.activation, 8192 / 50e9);
    expect("step", p->table.step, 30e-6);
    expect("slice", p->table.slice, 16 * 1048576 / 1000e9 + 5e-6);
    assert_string_equal(m->cpu_bound, "memory");
    assert_string_equal(m->gpu_bound, "memory");
    /* T's running example: 386 MB a block; 16 MB of KV at 4,096 positions, which T calls 16 KB. */
    assert_true(fabs(ATTENTION + MLP - 386e6) < 0.2e6 && 4096 * KV == 16777216);
}

/* One token's operations on the GPU are chained: other rates, a launch a visit; not where slices come in. */
static void one_token_is_chained_where_the_device_can(void **state)
{
    struct priced *p = *state;
    const struct cost_step one = {1, 1, 1, 4096, .kv_dtype = KV_F16},
                           few = {4, 4, 4, 1000, .kv_dtype = KV_F16};
    p->profile = round_numbers();
    price(p, few);
    const struct cost_unit before = p->table.unit[10];
    p->profile.gpu.chain_gemv = made_up_value(1250e9);
    p->profile.gpu.chain_attention = made_up_value(400e9);
    p->profile.gpu.chain_operation = made_up_value(1e-6);
    price(p, one);
    const struct cost_unit *a = &p->table.unit[10], *m = &p->table.unit[11], *h = &p->table.head;
    expect("attention, chained", a->gpu, ATTENTION / 1250e9 + 4096 * KV / 400e9 + 3 * 1e-6);
    expect("attention, ring", a->stream, ATTENTION / 1000e9 + 4096 * KV / 500e9 + (3 + 6 - 2) * 5e-6);
    expect("MLP, chained", m->gpu, MLP / 1250e9 + 2 * 1e-6);
    expect("MLP, ring", m->stream, MLP / 1000e9 + (2 + 19 - 2) * 5e-6);
    expect("head, chained, and the token's choice", h->gpu,
           HEAD / 1250e9 + 151936 * 4 / 1000e9 + 1e-6 + 5e-6 + 7e-6);
    expect("the hand-over", p->table.hand_over, 7e-6);
    expect("slice", p->table.slice, 16 * 1048576 / 1000e9 + 5e-6);
    expect("embedding and a launch", p->table.embed.gpu, 7e-6 + 4 * 5e-6 + 4096 * 6 / 1000e9);
    expect("MLP, CPU", m->cpu, MLP / 100e9 + 2 * 10e-6);
    p->profile.gpu.chain_operation = (struct profile_value){0}; /* measured as nothing */
    price(p, one);
    expect("MLP, free of overhead", p->table.unit[11].gpu, MLP / 1250e9);
    price(p, few); /* several tokens are not chained */
    assert_true(p->table.unit[10].gpu == before.gpu && p->table.unit[10].stream == before.stream);
    expect("hand-over of several", p->table.hand_over, 7e-6);
}

/* A cache of q8_0 has 34 bytes where f16's has 64, and rates of its own where they were measured; f16's
 * otherwise. */
static void attention_goes_by_the_caches_type(void **state)
{
    struct priced *p = *state;
    const struct cost_step one = {1, 1, 1, 4096, .kv_dtype = KV_Q8_0},
                           chunk = {512, 1, 1, 4096, .kv_dtype = KV_Q8_0};
    const double bytes = 4096 * KV * 34 / 64, flops = 4.0 * 4096 * 512 * (4096 - 511 / 2.0);
    struct profile_kv *kv = &p->profile.kv[KV_Q8_0];
    price(p, one);
    const double cpu = p->table.unit[10].cpu - bytes / 50e9, gpu = p->table.unit[10].gpu - bytes / 500e9;
    kv->cpu_attention = made_up_value(40e9);
    kv->gpu_attention = made_up_value(300e9);
    price(p, one);
    expect("attention, CPU", p->table.unit[10].cpu, cpu + bytes / 40e9);
    expect("attention, GPU", p->table.unit[10].gpu, gpu + bytes / 300e9);
    price(p, (struct cost_step){1, 1, 1, 4096, .kv_dtype = KV_F16});
    expect("f16, GPU", p->table.unit[10].gpu, gpu + 4096 * KV / 500e9);
    price(p, chunk);
    const double cpu_chunk = p->table.unit[10].cpu - flops / 0.5e12,
                 gpu_chunk = p->table.unit[10].gpu - flops / 20e12;
    kv->cpu_attention_flops = made_up_value(0.4e12);
    kv->gpu_attention_flops = made_up_value(10e12);
    price(p, chunk);
    expect("chunk, CPU", p->table.unit[10].cpu, cpu_chunk + flops / 0.4e12);
    expect("chunk, GPU", p->table.unit[10].gpu, gpu_chunk + flops / 10e12);
    p->profile.gpu.chain_gemv = made_up_value(1250e9);
    p->profile.gpu.chain_attention = p->profile.gpu.chain_attention_pair = made_up_value(400e9);
    p->profile.gpu.chain_operation = made_up_value(1e-6);
    kv->gpu_chain_attention = kv->gpu_chain_attention_pair = made_up_value(200e9);
    price(p, one);
    expect("attention, chained", p->table.unit[10].gpu, ATTENTION / 1250e9 + bytes / 200e9 + 3 * 1e-6);
}

/* The time of one token's attention in a chain follows the query heads of a KV head, where that was measured.
 */
static void attention_in_chains_counts_query_heads(void **state)
{
    struct priced *p = *state;
    const struct cost_step one = {1, 1, 1, 4096, .kv_dtype = KV_F16};
    p->profile = round_numbers();
    p->profile.gpu.chain_gemv = made_up_value(1250e9);
    p->profile.gpu.chain_attention = made_up_value(400e9);
    p->profile.gpu.chain_attention_pair = made_up_value(640e9);
    const double rest = ATTENTION / 1250e9, cache = 4096 * KV;
    price(p, one); /* 32 heads, 8 KV heads: as measured for four */
    expect("four heads", p->table.unit[10].gpu, rest + cache / 400e9);
    p->m.model.config.heads = 16; /* the weights are not looked at again */
    price(p, one);
    expect("two heads", p->table.unit[10].gpu, rest + cache / 640e9);
    p->m.model.config.heads = 64;
    price(p, one); /* by two blocks */
    expect("eight heads", p->table.unit[10].gpu, rest + 2 * cache / 400e9);
    p->m.model.config.heads = 40;
    price(p, one); /* 3 and 2 */
    expect("five heads", p->table.unit[10].gpu, rest + cache * (1 / 640e9 + 1 / 400e9));
    p->m.model.config.heads = 8;
    price(p, one); /* the line goes on, not below half */
    expect("one head", p->table.unit[10].gpu, rest + cache * (1.5 / 640e9 - 0.5 / 400e9));
    p->profile.gpu.chain_attention_pair = made_up_value(300e9); /* noise: fewer heads are not slower */
    price(p, one);
    expect("one head, noise", p->table.unit[10].gpu, rest + cache / 300e9);
    p->m.model.config.heads = 32;
}

/* A product has a price beside its work where that was measured: it replaces norms, activations and launches
 * of the operations around it, and matrices of every size follow one line. */
static void products_have_a_price_of_their_own(void **state)
{
    struct priced *p = *state;
    const struct cost_step chunk = {128, 1, 1, 128, .kv_dtype = KV_F16},
                           long_chunk = {1024, 1, 1, 1024, .kv_dtype = KV_F16};
    const double weights = 3.0 * 4096 * 12288, qkvo = 2.0 * 4096 * 4096 + 2.0 * 4096 * 1024;
    p->profile = round_numbers();
    p->profile.gpu.linear_operation.point[0] = (struct profile_point){128, made_up_value(12e-6)};
    p->profile.gpu.linear_operation.count = 1;
    price(p, chunk);
    expect("MLP", p->table.unit[1].gpu, 2 * weights * 128 / 100e12 + 2 * 12e-6 + 8192 / 1000e9);
    double pairs = 128 * 129 / 2.0;
    expect("attention", p->table.unit[0].gpu,
           2 * qkvo * 128 / 100e12 + 8192 / 1000e9 + 4.0 * 4096 * pairs / 20e12 + 128 * 8.0 * 6144 / 1000e9 +
               2 * 8e-6 + 2 * 12e-6);
    expect("MLP in slices", p->table.unit[1].stream, p->table.unit[1].gpu + (19 - 2) * 12e-6);
    price(p, long_chunk); /* in two parts */
    expect("MLP of two parts", p->table.unit[1].gpu,
           2 * weights * 1024 / 100e12 + 2 * 2 * 12e-6 + 2 * 8192 / 1000e9);
    price(p, (struct cost_step){1, 1, 1, 128, .kv_dtype = KV_F16}); /* one token has no products */
    expect("one token", p->table.unit[1].gpu, MLP / 1000e9 + 2 * 5e-6);
    /* Few queries of few heads leave much of the device idle. */
    price(p, chunk);
    double before = p->table.unit[0].gpu;
    p->profile.gpu.attention_rows.point[0] = (struct profile_point){4096, made_up_value(5e12)};
    p->profile.gpu.attention_rows.point[1] = (struct profile_point){16384, made_up_value(20e12)};
    p->profile.gpu.attention_rows.count = 2;
    price(p, chunk); /* 128 x 32 heads */
    expect("few rows", p->table.unit[0].gpu, before + 4.0 * 4096 * pairs * (1 / 5e12 - 1 / 20e12));
    p->m.model.config.heads = 64; /* 8,192: half way between in the logarithm */
    price(p, chunk);
    double rate = 12.5e12, q = 64 * 128;
    expect("twice the heads", p->table.unit[0].gpu,
           2 * qkvo * 128 / 100e12 + 8192 / 1000e9 + 4.0 * q * pairs / rate +
               128 * 8.0 * (q + 2048) / 1000e9 + 2 * 8e-6 + 2 * 12e-6);
    p->m.model.config.heads = 32;
}

static void several_tokens_share_the_weights(void **state)
{
    struct priced *p = *state;
    /* Four rows: still bound by memory on the CPU (2 flops a byte and token at 1 T against 100 GB/s: 10). */
    price(p, (struct cost_step){4, 4, 4, 1000, .kv_dtype = KV_F16});
    const struct cost_unit *a = &p->table.unit[0], *m = &p->table.unit[1];
    expect("MLP of four", m->cpu, MLP / 100e9 + 4 * (6.0 * 4096 + 6.0 * 12288) / 100e9 + 3 * 10e-6);
    expect("attention of four", a->cpu,
           ATTENTION / 100e9 + 4 * 1000 * KV / 50e9 + 4 * (6.0 * 4096 + 8.0 * 6144) / 100e9 + 6 * 10e-6);
    expect("crossing", p->table.activation, (4 * 16384 - 8192) / 50e9);
    /* Sixteen: bound by work. */
    price(p, (struct cost_step){16, 16, 16, 1000, .kv_dtype = KV_F16});
    m = &p->table.unit[1];
    expect("MLP of sixteen", m->cpu,
           8192 / 100e9 + (MLP - 8192) * 16 / 1e12 + 16 * (6.0 * 4096 + 6.0 * 12288) / 100e9 + 3 * 10e-6);
    assert_string_equal(m->cpu_bound, "compute");
    assert_string_equal(m->gpu_bound, "memory");
}

/* 512 tokens after 512 others: token i sees 512 + i + 1 positions. */
static void a_chunk_attends_causally(void **state)
{
    struct priced *p = *state;
    const double seen = 512.0 * 512 + 512.0 * 513 / 2;
    price(p, (struct cost_step){512, 1, 1, 1024, .kv_dtype = KV_F16});
    const struct cost_unit *a = &p->table.unit[0], *m = &p->table.unit[1];
    double linear = (ATTENTION - 8192) * 512 / 100e12 + 8192 / 1000e9;
    expect("attention, GPU", a->gpu,
           linear + 4 * 32 * 128 * seen / 20e12 + 512 * (6.0 * 4096 + 8.0 * 6144) / 1000e9 + 5 * 8e-6);
    expect("MLP, GPU", m->gpu,
           (MLP - 8192) * 512 / 100e12 + 8192 / 1000e9 + 512 * (6.0 * 4096 + 6.0 * 12288) / 1000e9 +
               4 * 8e-6);
    expect("borrowed", a->borrow, 512 * KV / 50e9 + 512 * KV / 50e9 + 2 * 10e-6);
    assert_true(m->borrow == 0);
    assert_string_equal(a->gpu_bound, "compute");
    /* One sample of 512 tokens is one row of the head. */
    expect("head", p->table.head.cpu, HEAD / 100e9 + 151936 * 4 / 100e9 + 2 * 10e-6);
    price(p, (struct cost_step){512, 1, 0, 1024, .kv_dtype = KV_F16});
    assert_true(p->table.head.cpu == 0 && p->table.head.gpu == 0);
    /* 2,048 tokens are four parts to the GPU: four times the launches, and each reads the weights. */
    price(p, (struct cost_step){2048, 1, 1, 2048, .kv_dtype = KV_F16});
    m = &p->table.unit[1];
    expect("MLP of four parts", m->gpu,
           (MLP - 8192) * 2048 / 100e12 + 4 * 8192 / 1000e9 + 2048 * (6.0 * 4096 + 6.0 * 12288) / 1000e9 +
               16 * 8e-6);
}

/* A step begins as late as an empty one is measured to; without that nothing changes. */
static void a_step_begins_as_late_as_an_empty_one(void **state)
{
    struct priced *p = *state;
    const struct cost_step chunk = {512, 1, 1, 512, .kv_dtype = KV_F16},
                           one = {1, 1, 1, 100, .kv_dtype = KV_F16};
    p->profile = round_numbers();
    price(p, one);
    const struct cost_unit decode = p->table.unit[10];
    price(p, chunk);
    const struct cost_unit a = p->table.unit[10], embed = p->table.embed;
    assert_true(p->table.begin == 0);
    p->profile.gpu.begin = made_up_value(60e-6);
    price(p, chunk);
    assert_true(p->table.embed.gpu == embed.gpu && p->table.unit[10].gpu == a.gpu);
    /* there and back are 7 us each, the first three kernels 8 each: all in the prices of the ends */
    expect("begin", p->table.begin, 60e-6 - 14e-6 - 24e-6);
    expect("ready, but for the way back", p->table.ready, 60e-6 - 7e-6);
    price(p, one); /* captured: nothing of all that */
    assert_true(p->table.unit[10].gpu == decode.gpu && p->table.begin == 0 && p->table.ready == 0);
    p->profile.gpu.begin_graph = made_up_value(40e-6);
    price(p, one);
    expect("a captured step's begin", p->table.begin, 40e-6 - 14e-6 - 15e-6);
    expect("and when it is ready", p->table.ready, 40e-6 - 7e-6);
}

/* A layer with a window reads and multiplies what the window shows. */
static void windows_limit_attention(void **state)
{
    struct priced *p = *state;
    p->m.window[1] = 256;
    price(p, (struct cost_step){1, 1, 1, 4096, .kv_dtype = KV_F16});
    expect("window", p->table.unit[2].cpu, ATTENTION / 100e9 + 256 * KV / 50e9 + 4 * 10e-6);
    assert_true(p->table.unit[2].cpu < p->table.unit[0].cpu);
    /* 100 tokens from position 201 to 300: the first 56 see all, the last 44 see 256. */
    price(p, (struct cost_step){100, 1, 1, 300, .kv_dtype = KV_F16});
    double seen = 0;
    for (int i = 201; i <= 300; i++) seen += i < 256 ? i : 256;
    expect("chunk in a window", p->table.unit[2].cpu - p->table.unit[0].cpu,
           4 * 32 * 128 * (seen - (201.0 + 300) * 50) / 0.5e12 + 1e-30);
}

static void refusals_say_what_is_missing(void **state)
{
    struct priced *p = *state;
    static const struct cost_step bad[] = {{0, 0, 0, 1, .kv_dtype = KV_F16},
                                           {1, 2, 1, 1, .kv_dtype = KV_F16},
                                           {4, 1, 5, 4, .kv_dtype = KV_F16},
                                           {4, 1, 1, 3, .kv_dtype = KV_F16}};
    struct cost_table table;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_int_equal(cost_price(&p->m.model, &p->m.analysed, &p->profile, &bad[i], &table, &p->err),
                         HELM_E_LIMIT);
    const struct cost_step step = {8, 8, 8, 100, .kv_dtype = KV_F16};
    struct profile lacking = p->profile;
    lacking.gpu.linear.count = 0;
    assert_int_equal(cost_price(&p->m.model, &p->m.analysed, &lacking, &step, &table, &p->err),
                     HELM_E_FORMAT);
    assert_non_null(strstr(p->err.text, "gpu.linear"));
    lacking.gpu.device = PROFILE_DEVICE_NONE;
    assert_int_equal(cost_price(&p->m.model, &p->m.analysed, &lacking, &step, &table, &p->err), 0);
    assert_true(isinf(table.unit[0].gpu) && isfinite(table.unit[0].cpu));
    cost_table_free(&table);
    lacking.cpu.gemv.value = 0;
    assert_int_equal(cost_price(&p->m.model, &p->m.analysed, &lacking, &step, &table, &p->err),
                     HELM_E_FORMAT);
    assert_null(table.unit);
}

/* More bandwidth never makes a step of any plan dearer. */
static void better_rates_are_never_dearer(void **state)
{
    struct priced *p = *state;
    static const struct cost_step steps[] = {
        {.tokens = 1, .rows = 1, .samples = 1, .context = 128, .kv_dtype = KV_F16},
        {.tokens = 8, .rows = 8, .samples = 8, .context = 4096, .kv_dtype = KV_F16},
        {.tokens = 512, .rows = 1, .samples = 1, .context = 2048, .kv_dtype = KV_F16}};
    enum plan_home home[72];
    bool kv_cpu[36];
    for (uint32_t u = 0; u < 72; u++) home[u] = (enum plan_home)(u / 3 % 3);
    for (uint32_t l = 0; l < 36; l++) kv_cpu[l] = home[2 * l] == PLAN_HOME_CPU;
    for (size_t s = 0; s < sizeof steps / sizeof *steps; s++) {
        const struct cost_plan plan = {
            .home = home, .kv_cpu = kv_cpu, .embed = PLAN_CPU0, .head = PLAN_GPU0, .ring_bytes = 300 * MIB};
        p->profile = round_numbers();
        if (s % 2) {
            p->profile.gpu.chain_gemv = made_up_value(1250e9);
            p->profile.gpu.chain_attention = made_up_value(500e9);
        }
        price(p, steps[s]);
        double before = cost_seconds(&p->table, &plan, INFINITY);
        /* the CPU's two together: alone, the first makes what the link costs it a larger part */
        struct profile_value *const rates[][2] = {{&p->profile.cpu.gemv, &p->profile.cpu.gemv_beside},
                                                  {&p->profile.cpu.gemv_beside, NULL},
                                                  {&p->profile.cpu.attention, NULL},
                                                  {&p->profile.cpu.attention_flops, NULL},
                                                  {&p->profile.gpu.gemv, NULL},
                                                  {&p->profile.gpu.chain_gemv, NULL},
                                                  {&p->profile.gpu.chain_attention, NULL},
                                                  {&p->profile.gpu.attention, NULL},
                                                  {&p->profile.gpu.attention_flops, NULL},
                                                  {&p->profile.link.h2d, &p->profile.link.h2d_beside},
                                                  {&p->profile.link.h2d_beside, NULL},
                                                  {&p->profile.link.d2h, NULL}};
        for (size_t r = 0; r < sizeof rates / sizeof *rates; r++) {
            for (int i = 0; i < 2 && rates[r][i]; i++) rates[r][i]->value *= 1.3;
            price(p, steps[s]);
            double after = cost_seconds(&p->table, &plan, INFINITY);
            if (after > before * (1 + 1e-9))
                fail_msg("step %zu, rate %zu: %.9f after %.9f", s, r, after, before);
            before = after;
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        WITH_8B(one_token_reads_every_weight_once),
        WITH_8B(one_token_is_chained_where_the_device_can),
        WITH_8B(attention_in_chains_counts_query_heads),
        WITH_8B(attention_goes_by_the_caches_type),
        WITH_8B(products_have_a_price_of_their_own),
        WITH_8B(several_tokens_share_the_weights),
        WITH_8B(a_chunk_attends_causally),
        WITH_8B(a_step_begins_as_late_as_an_empty_one),
        WITH_8B(windows_limit_attention),
        WITH_8B(refusals_say_what_is_missing),
        WITH_8B(better_rates_are_never_dearer),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
