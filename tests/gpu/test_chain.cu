/* Chains: many operations of one token in one launch, against the same operations launched one by one.
 *
 * Chains are cut at random out of small models' layers (q, k, v; attention; o; gate and up; down; a head of
 * odd shape): any order of data that a model has is met, from buffers that later operations overwrite.
 * Results of one operation's launchers are checked by test_linear.cu and test_attention.cu; here results are
 * near those and the same bits in every run, and the cache is theirs too. Tolerances: without attention 1e-5,
 * as for one product; after attention a row of the cache may be rounded the other way, which is half a unit
 * of the last place of one key among many. */
#include <string>

#include "tests/gpu/harness.cuh"
#include "worker-gpu/kernels/chain/chains.h"

struct chain_model {
    int dtype, cache;
    uint32_t hidden, inner, heads, kv_heads, head_dim, layers, vocab, page_tokens, window, position;
    bool head_norm, bias, absent, no_token;
    int other = -1;       /* the format of some operations, of as many columns a block */
    bool aligned = false; /* matrices begin on 16 bytes, as they do in VRAM; else on any block */
    bool split = false;   /* v is a product of its own, maybe of the other format */
};

/* A chain takes rows whose columns are a multiple of this: of plain formats, whole 16 bytes. */
static uint32_t columns_of(enum tensor_format format)
{
    const struct tensor_format_traits *traits = tensor_format_of(format);
    return tensor_format_is_plain(format) ? 16 / traits->block_bytes : traits->block_values;
}

/* One model's memory, and the list of its operations. */
struct chain_test {
    const chain_model m;
    test_step step;
    struct kv_layout layout;
    struct buffer_place {
        const char *name;
        size_t at, count;
    };
    std::vector<buffer_place> places; /* in the state */
    std::vector<float> state_before;
    std::vector<unsigned char> pool_before[2];
    gpu_buffer *state, *before, *weights, *others, *norms, *table, *pools[2], *pools_before[2], *workspace,
        *attention, *router = nullptr, *choice = nullptr, *act = nullptr, *biases = nullptr, *room = nullptr,
                    *few_rows = nullptr;
    uint32_t most_cols;
    std::vector<struct gpuk_chain_op> ops;

    size_t place(const char *name, size_t count)
    {
        const size_t at = places.empty() ? 0 : (places.back().at + places.back().count + 63) / 64 * 64;
        places.push_back({name, at, count});
        return at;
    }
    float *float_at(size_t at) const { return state->as<float>() + at; }

    /* Each line gets a second one after it, as that of windows is: the sequence's pages, turned by one. */
    void write_two_tables()
    {
        const uint32_t line = step.pages_per_slot, used = m.position / m.page_tokens + 1;
        std::vector<uint32_t> both;
        for (size_t at = 0; at < step.page_table.size(); at += line) {
            const auto begin = step.page_table.begin() + (long)at;
            both.insert(both.end(), begin, begin + line);
            both.insert(both.end(), begin, begin + line);
            std::rotate(both.end() - line, both.end() - line + 1, both.end() - line + used);
        }
        step.step.page_table = step.device_copy(both);
        step.step.pages_per_slot = 2 * line;
    }

    chain_test(struct test_context *t, const chain_model &from)
        : m(from), step(t, {from.position}, {1}, from.page_tokens, 3)
    {
        const uint32_t q = m.heads * m.head_dim, kv = m.kv_heads * m.head_dim;
        const size_t x_at = place("x", m.hidden), qkv_at = place("qkv", q + 2 * kv),
                     attended_at = place("attended", q), inner_at = place("inner", m.inner),
                     logits_at = place("logits", m.vocab + 2 * m.vocab / 3 + 5);
        state_before = random_floats(t, logits_at + places.back().count);
        before = new gpu_buffer(state_before), state = new gpu_buffer(state_before);
        layout = {m.layers + 1, m.kv_heads, m.head_dim, m.page_tokens, (uint32_t)m.cache, 0};
        for (int i = 0; i < 2; i++) {
            pool_before[i] = random_cells(t, layout, step.pages);
            pools[i] = new gpu_buffer(pool_before[i]), pools_before[i] = new gpu_buffer(pool_before[i]);
        }
        /* Every matrix begins somewhere in one bank of random numbers, which repeat. */
        most_cols = m.inner > m.hidden ? m.inner : m.hidden;
        most_cols = q > most_cols ? q : most_cols;
        size_t most = (size_t)(q + kv) * m.hidden;
        for (size_t n : {(size_t)m.inner * m.hidden, (size_t)(m.vocab + 1) * m.hidden})
            most = std::max(most, n);
        const size_t spread = 1 << 12, period = 999983;
        const auto bank_of = [&](enum tensor_format format) {
            const size_t block = tensor_format_of(format)->block_values;
            std::vector<unsigned char> bank =
                random_elements(t, std::min(most + spread, period) / block * block, format, 0.06f);
            const size_t bank_bytes = tensor_format_row_bytes(format, most + spread + block),
                         some = bank.size();
            bank.resize(bank_bytes);
            for (size_t i = some; i < bank_bytes; i++) bank[i] = bank[i - some];
            return new gpu_buffer(bank);
        };
        weights = bank_of((enum tensor_format)m.dtype);
        others = m.other < 0 ? nullptr : bank_of((enum tensor_format)m.other);
        norms = new gpu_buffer(random_floats(t, most_cols + 64, 2));
        std::vector<float> inv(m.head_dim / 2);
        for (uint32_t i = 0; i < m.head_dim / 2; i++) inv[i] = (float)pow(10000, -2.0 * i / m.head_dim);
        gpu_buffer dinv(inv);
        table = new gpu_buffer((size_t)m.head_dim * 4);
        GPUK(gpuk_rope_table(&step.step, 1, dinv.as<float>(), m.head_dim, 1.0f, table->as<float>(), 0,
                             t->stream, &err));
        CUDA(cudaStreamSynchronize(t->stream));
        if (m.no_token) step.step.counts = step.device_copy(std::vector<uint32_t>{0, 0, 0});
        if (m.absent) {
            step.page_table[(size_t)step.row_slot[0] * step.pages_per_slot +
                            random_below(t, m.position / m.page_tokens + 1)] = GPUK_PAGE_ABSENT;
            step.step.page_table = step.device_copy(step.page_table);
        }
        write_two_tables();
        workspace = new gpu_buffer(gpuk_gemv_workspace_bytes(most_cols));
        attention = new gpu_buffer(gpuk_attention_workspace_bytes(1, m.heads, m.head_dim));
        CUDA(cudaMemset(attention->at, 0, gpuk_attention_counter_bytes(1, m.heads)));
        CUDA(cudaDeviceSynchronize());

        for (uint32_t l = 0; l < m.layers; l++) {
            auto qkv = linear(t, x_at, m.hidden, true);
            add(t, qkv, qkv_at, q), add(t, qkv, qkv_at + q, kv);
            if (m.split) {
                push(qkv);
                qkv.format = linear(t, x_at, m.hidden, false).format, qkv.segments = 0;
            }
            add(t, qkv, qkv_at + q + kv, kv);
            push(qkv);
            struct gpuk_chain_op op = {};
            op.kind = GPUK_CHAIN_ATTENTION;
            op.attention.out = float_at(attended_at);
            struct gpuk_attention &a = op.attention.args;
            a.step = step.step;
            a.step.page_table += l % 2 ? step.pages_per_slot : 0; /* its sequence's pages in another order */
            a.kv = {layout, pools[0]->at, pools[1]->as<char>() + (l + 1) * kv_layer_bytes(&layout), l + 1,
                    kv_page_bytes(&layout)};
            a.heads = m.heads;
            a.window = l % 2 ? 0 : m.window; /* layers in a chain are cut differently */
            a.sinks = m.head_norm ? norms->as<float>() + 16 : nullptr;
            a.scale = (float)(1 / sqrt((double)m.head_dim));
            a.q_norm = m.head_norm ? norms->as<float>() : nullptr;
            a.k_norm = m.head_norm ? norms->as<float>() + 8 : nullptr;
            a.eps = 1e-6f;
            a.rope_table = table->as<float>();
            a.q = float_at(qkv_at), a.k = a.q + q, a.v = a.k + kv;
            a.q_stride = a.kv_stride = q + 2 * kv;
            ops.push_back(op);
            auto o = linear(t, attended_at, q, false);
            add(t, o, x_at, m.hidden);
            o.residual = float_at(x_at);
            push(o);
            auto gate_up = linear(t, x_at, m.hidden, true);
            add(t, gate_up, inner_at, m.inner), add(t, gate_up, inner_at, m.inner);
            gate_up.swiglu = true;
            push(gate_up);
            auto down = linear(t, inner_at, m.inner, false);
            add(t, down, x_at, m.hidden);
            down.residual = float_at(x_at);
            push(down);
        }
        auto head = linear(t, x_at, m.hidden, true);
        add(t, head, logits_at, m.vocab), add(t, head, logits_at + m.vocab, m.vocab / 3 + 1);
        if (m.vocab % 2) add(t, head, logits_at + m.vocab + m.vocab / 3 + 1, m.vocab / 3 + 1);
        if (m.vocab % 2) add(t, head, logits_at + m.vocab + 2 * (m.vocab / 3 + 1), 3);
        push(head);
    }
    chain_test(const chain_test &) = delete;
    ~chain_test()
    {
        for (gpu_buffer *b : {state, before, weights, others, norms, table, pools[0], pools[1],
                              pools_before[0], pools_before[1], workspace, attention})
            delete b;
    }
    struct gpuk_linear_args linear(struct test_context *t, size_t x, uint32_t cols, bool norm)
    {
        struct gpuk_linear_args a = {};
        a.format = (enum tensor_format)(others && random_below(t, 2) ? m.other : m.dtype);
        a.cols = cols;
        a.x = float_at(x);
        a.norm = norm && random_below(t, 4) ? norms->as<float>() + 4 * random_below(t, 4) : nullptr;
        a.eps = 1e-6f;
        return a;
    }
    const char *somewhere(struct test_context *t, enum tensor_format format, bool aligned) const
    {
        const size_t line = columns_of(format) * (aligned ? 16 : 1);
        return ((int)format == m.dtype ? weights : others)->as<char>() +
               tensor_format_row_bytes(format, random_below(t, (uint32_t)(4096 / line)) * line);
    }
    void add(struct test_context *t, struct gpuk_linear_args &a, size_t out, uint32_t rows)
    {
        const char *w = somewhere(t, a.format, m.aligned);
        const float *bias = m.bias && random_below(t, 2) ? before->as<float>() + random_below(t, 8) : nullptr;
        if (rows + 8 > state_before.size()) bias = nullptr;
        a.segment[a.segments++] = {w, nullptr, bias, float_at(out), rows};
    }
    void push(const struct gpuk_linear_args &a)
    {
        struct gpuk_chain_op op = {};
        op.kind = GPUK_CHAIN_LINEAR;
        op.linear = a;
        ops.push_back(op);
    }

    void reset(struct test_context *t) const
    {
        CUDA(cudaMemcpyAsync(state->at, before->at, before->bytes, cudaMemcpyDeviceToDevice, t->stream));
        for (int i = 0; i < 2; i++)
            CUDA(cudaMemcpyAsync(pools[i]->at, pools_before[i]->at, pools[i]->bytes, cudaMemcpyDeviceToDevice,
                                 t->stream));
    }
    void one_by_one(struct test_context *t, const struct gpuk_device *device, size_t first,
                    size_t count) const
    {
        for (size_t i = first; i < first + count; i++) {
            if (ops[i].kind != GPUK_CHAIN_ATTENTION) {
                GPUK(gpuk_gemv(device, &ops[i].linear, workspace->at, 0, t->stream, &err));
                continue;
            }
            struct gpuk_attention a = ops[i].attention.args; /* as it is, and as mixtures have it */
            a.order = i % 2 ? GPUK_ORDER_SPREAD : GPUK_ORDER_TOGETHER;
            GPUK(gpuk_attention_decode(device, &a, 1, true, ops[i].attention.out, nullptr, nullptr,
                                       attention->at, 0, t->stream, &err));
        }
    }
};

static double cache_tolerance(int dtype)
{
    static const double rounding[KV_DTYPE_COUNT] = {2e-3, 3e-4, 2e-5, 4e-3};
    return rounding[dtype];
}

/* Operations [first, first + count) of the model, `runs` times. */
static void test_cut(struct test_context *t, const chain_test &c, const struct gpuk_device *device,
                     size_t first, size_t count, int runs)
{
    const chain_model &m = c.m;
    char what[240];
    snprintf(
        what, sizeof what,
        "chain of %zu from %zu, %s over %s, hidden %u inner %u heads %u/%u dim %u head %u at %u window %u "
        "page %u%s%s%s, %d blocks, %d slots",
        count, first, name_of(m.dtype), kv_dtype_name((enum kv_dtype)m.cache), m.hidden, m.inner, m.heads,
        m.kv_heads, m.head_dim, m.vocab, m.position, m.window, m.page_tokens, m.head_norm ? " head norm" : "",
        m.absent ? " absent page" : "", m.no_token ? " no token" : "", device->sm_count, device->gemv_slots);
    bool attends = false;
    for (size_t i = first; i < first + count; i++) {
        attends = attends || c.ops[i].kind == GPUK_CHAIN_ATTENTION;
        check(t, gpuk_chain_takes(device, &c.ops[i]), what);
    }
    c.reset(t);
    c.one_by_one(t, device, first, count);
    CUDA(cudaStreamSynchronize(t->stream));
    const auto expected = c.state->read<float>();
    std::vector<unsigned char> cache[2] = {c.pools[0]->read<unsigned char>(),
                                           c.pools[1]->read<unsigned char>()};

    gpu_buffer list(gpuk_chain_bytes(&c.ops[first], (uint32_t)count));
    struct gpuk_chain chain;
    GPUK(gpuk_chain_write(device, &c.ops[first], (uint32_t)count, list.at, c.attention->at, t->stream, &chain,
                          &err));
    check(t, chain.count == count,
          "a chain has as many operations as its list"); /* programs go on after them */
    std::vector<float> one;
    std::vector<unsigned char> one_cache[2];
    int other = 0;
    for (int run = 0; run < runs; run++) {
        c.reset(t);
        GPUK(gpuk_chain_run(&chain, 0, t->stream, &err));
        CUDA(cudaStreamSynchronize(t->stream));
        auto got = c.state->read<float>();
        if (run > 0) {
            other += memcmp(got.data(), one.data(), got.size() * sizeof(float)) != 0;
            if (run == runs - 1)
                for (int i = 0; i < 2; i++)
                    check_same(t, c.pools[i]->read<unsigned char>(), one_cache[i], what);
            continue;
        }
        one = got;
        for (int i = 0; i < 2; i++) one_cache[i] = c.pools[i]->read<unsigned char>();
        for (const chain_test::buffer_place &b : c.places) {
            const std::vector<float> part(got.begin() + b.at, got.begin() + b.at + b.count);
            const std::vector<double> wanted(expected.begin() + b.at, expected.begin() + b.at + b.count);
            const std::string name = std::string(what) + ": " + b.name;
            check_close(t, part, wanted, attends ? cache_tolerance(m.cache) : 1e-5, name.c_str());
        }
        for (int i = 0; i < 2; i++) {
            /* rows that were appended are near, all others untouched */
            check_close(t, cell_values(one_cache[i], c.layout), cell_values(cache[i], c.layout),
                        cache_tolerance(m.cache), what);
            size_t changed = 0, changed_by_one = 0;
            for (size_t n = 0; n < cache[i].size(); n++) {
                changed += one_cache[i][n] != c.pool_before[i][n];
                changed_by_one += cache[i][n] != c.pool_before[i][n];
            }
            check(t, (changed == 0) == (changed_by_one == 0) && changed <= 2 * changed_by_one + 16, what);
        }
    }
    if (t->stress) printf("%s: %d of %d runs gave other bits\n", what, other, runs);
    snprintf(what + strlen(what), sizeof what - strlen(what), ": same bits");
    check(t, other == 0, what);
}

static void test_refusals(struct test_context *t)
{
    chain_test c(t, {DTYPE_BF16, DTYPE_BF16, 64, 96, 2, 1, 16, 1, 31, 16, 0, 5, true, false, false, false});
    const struct gpuk_chain_op linear = c.ops[0], attention = c.ops[1];
    struct gpuk_device old = t->device;
    old.bulk_copy = false;
    check(t, gpuk_chain_takes(&t->device, &linear) && !gpuk_chain_takes(&old, &linear),
          "no chains without bulk copies");
    struct gpuk_chain_op bad = linear;
    bad.linear.segment[0].weight = (const char *)bad.linear.segment[0].weight + 2;
    check(t, !gpuk_chain_takes(&t->device, &bad), "weights off 16 bytes are refused");
    bad = linear, bad.linear.x++;
    check(t, !gpuk_chain_takes(&t->device, &bad), "x off 16 bytes is refused");
    bad = linear, bad.linear.cols = 65536;
    check(t, !gpuk_chain_takes(&t->device, &bad), "x beyond shared memory is refused");
    bad = linear, bad.linear.cols = 60;
    check(t, !gpuk_chain_takes(&t->device, &bad), "rows off 16 bytes are refused");
    bad = attention, bad.attention.args.kv.layout.head_dim = 12;
    check(t, !gpuk_chain_takes(&t->device, &bad), "a head of 12 dimensions is refused");

    gpu_buffer list(1 << 20); /* more than any of these takes */
    struct gpuk_chain chain;
    struct helm_err err = {};
    const auto write = [&](const struct gpuk_chain_op &a, const struct gpuk_chain_op &b, uint32_t count) {
        const struct gpuk_chain_op both[2] = {a, b};
        return gpuk_chain_write(&t->device, both, count, list.at, c.attention->at, t->stream, &chain, &err);
    };
    check(t, write(linear, linear, 0) == HELM_E_LIMIT, "an empty chain is refused");
    check(t, write(linear, bad, 2) == HELM_E_UNSUPPORTED && strstr(err.text, "operation 1"),
          "the operation that cannot be taken is named");
    bad = linear, bad.linear.format = FORMAT_Q8_0;
    check(t, gpuk_chain_takes(&t->device, &bad) && write(linear, bad, 2) == HELM_E_UNSUPPORTED,
          "plain weights and blocks are refused together");
    bad = linear, bad.linear.format = FORMAT_F16;
    check(t, write(linear, bad, 2) == HELM_E_UNSUPPORTED, "weights of two formats are refused");
    bad.linear.format = FORMAT_BF16_PACKED;
    check(t, !gpuk_chain_takes(&t->device, &bad), "packed weights are refused");
    bad = attention, bad.attention.args.kv.layout.dtype = KV_F16;
    check(t, write(attention, bad, 2) == HELM_E_UNSUPPORTED, "caches of two dtypes are refused");
    bad.attention.args.kv.layout.dtype = KV_Q8_0;
    check(t, !gpuk_chain_takes(&t->device, &bad), "a quantised head of 16 dimensions is refused");
    bad = attention, bad.attention.args.step.position++;
    check(t, write(attention, bad, 2) == HELM_E_UNSUPPORTED, "attention of two steps is refused");
    check(t, write(linear, attention, 2) == HELM_OK, "and what can be taken is");
}

/* Small models of every kind: dtypes, groups, contexts, windows. */
static void test_random(struct test_context *t, int count)
{
    const uint32_t groups[] = {1, 4, 5, 8, 2}, dims[] = {8, 16, 64, 80, 128, 256}, pages[] = {4, 32, 512};
    for (int i = 0; i < count; i++) {
        chain_model m = {};
        m.dtype = i % 3, m.cache = i / 3 % KV_DTYPE_COUNT;
        const uint32_t unit = m.dtype == DTYPE_F32 ? 4 : 8;
        m.hidden = unit * (1 + random_below(t, t->few ? 24 : t->small ? 90 : 300));
        m.inner = unit * (1 + random_below(t, t->few ? 40 : t->small ? 150 : 700));
        if (i % 6 == 5) { /* rows of several large tiles */
            m.hidden = (m.dtype == DTYPE_F32 ? 1024 : 2048) + unit * random_below(t, 80);
            m.inner = m.hidden + unit * random_below(t, 200);
        }
        m.kv_heads = 1 + random_below(t, 3);
        m.heads = m.kv_heads * groups[random_below(t, 5)];
        m.head_dim = dims[random_below(t, 6)];
        if (m.heads * m.head_dim > 2048) m.head_dim = 64;
        m.layers = 1 + random_below(t, t->few ? 2 : 3);
        m.vocab = 1 + random_below(t, t->few ? 100 : 700);
        m.page_tokens = pages[random_below(t, 3)];
        m.position = random_below(t, 4) ? random_below(t, t->small ? 200 : 500) : random_below(t, 2000);
        if (t->few) m.head_dim = i % 2 ? 64 : 16, m.position %= 100;
        if (m.cache == KV_Q8_0) m.head_dim = (m.head_dim + 31) / 32 * 32;
        m.window = random_below(t, 3) ? 0 : 1 + random_below(t, 900);
        m.head_norm = random_below(t, 2), m.bias = random_below(t, 2);
        m.absent = random_below(t, 6) == 0, m.no_token = random_below(t, 12) == 0, m.split = i % 2;
        chain_test c(t, m);
        struct gpuk_device few = t->device;
        few.sm_count = (int)(2 + random_below(t, 5));
        few.gemv_slots = (int)random_below(t, 6);
        const size_t all = c.ops.size();
        test_cut(t, c, &few, 0, all, 2);
        const size_t length = 1 + random_below(t, all < 12 ? (uint32_t)all : 12);
        if (!t->few) test_cut(t, c, &few, random_below(t, (uint32_t)(all - length + 1)), length, 2);
        if (t->few ? i == 0 : i % 4 == 0) test_cut(t, c, &t->device, 0, all, t->small ? 2 : 5);
    }
}

void test_chain(struct test_context *t)
{
    test_refusals(t);
    test_random(t, t->few ? 6 : t->small ? 18 : 60);
    /* widths of real layers, few rows where the emulated device would take minutes */
    const chain_model real[] = {
        {DTYPE_BF16, DTYPE_BF16, 2560, 9728, 32, 8, 128, 2, 1001, 32, 0, 199, true, false, false, false},
        {DTYPE_BF16, DTYPE_BF16, 4096, 12288, 32, 8, 128, 1, 1001, 32, 0, 1999, true, false, false, false},
        {DTYPE_F32, DTYPE_F16, 4096, 12288, 32, 8, 128, 1, 75, 32, 300, 1500, false, true, false, false},
        {FORMAT_Q8_0, DTYPE_BF16, 2560, 9728, 32, 8, 128, 2, 1001, 32, 0, 199, true, false, false, false},
        {DTYPE_BF16, KV_Q8_0, 4096, 12288, 32, 8, 128, 1, 1001, 32, 0, 1999, true, false, false, false},
        {FORMAT_Q4_K, DTYPE_F16, 4096, 12288, 32, 8, 128, 1, 1001, 32, 0, 199, true, false, false, false,
         FORMAT_Q6_K},
        {DTYPE_F16, DTYPE_F32, 896, 4864, 14, 2, 64, 2, 1001, 32, 0, 700, false, true, false, false},
    };
    for (const chain_model &m : real) {
        if (t->small) break;
        chain_test c(t, m);
        test_cut(t, c, &t->device, 0, c.ops.size(), t->stress ? 3000 : 30);
    }
    const uint32_t blocks = FORMAT_COUNT - FORMAT_Q8_0;
    for (uint32_t i = 0; i < (t->few ? 1 : t->small ? blocks : 3 * blocks); i++) {
        const int format = FORMAT_Q8_0 + (int)(i % blocks);
        const uint32_t unit = columns_of((enum tensor_format)format),
                       most = (i % 4 == 3 ? 3072 : 1024) / unit, hidden = unit * (1 + random_below(t, most)),
                       inner = unit * (1 + random_below(t, most + 1)), heads = 4 << i % 2;
        chain_model m = {format,
                         (int)(i % KV_DTYPE_COUNT),
                         hidden,
                         inner,
                         heads,
                         1 + i % 2,
                         64,
                         1 + i % 3,
                         1 + random_below(t, 300),
                         16,
                         0,
                         random_below(t, 200),
                         i % 2 == 0,
                         i % 3 == 0,
                         false,
                         false};
        if (i % 2) { /* of two formats, as files have them */
            m.other = unit < 256 ? FORMAT_Q8_0 : format == FORMAT_Q6_K ? FORMAT_Q4_K : FORMAT_Q6_K;
        }
        m.split = i % 2 || i % 4 == 0;
        chain_test c(t, m);
        struct gpuk_device few = t->device;
        few.sm_count = (int)(2 + random_below(t, 5)), few.gemv_slots = (int)random_below(t, 6);
        test_cut(t, c, &few, 0, c.ops.size(), 2);
        if (!t->small || (!t->few && i % 2 == 1)) test_cut(t, c, &t->device, 0, c.ops.size(), 2);
    }
    if (t->few) return;
    /* rows begin on 16 bytes, and tiles of three lines do not */
    const chain_model tiles = {FORMAT_Q3_K, DTYPE_BF16, 256, 6144, 4,     1,     64,    1,  75,
                               16,          0,          9,   true, false, false, false, -1, true};
    chain_test of_tiles(t, tiles);
    test_cut(t, of_tiles, &t->device, 0, of_tiles.ops.size(), 2);
    chain_model narrow = real[0];
    narrow.hidden = 64, narrow.heads = 4, narrow.kv_heads = 1, narrow.vocab = 75, narrow.layers = 1;
    narrow.inner = t->small ? 1032 : 12288;
    chain_test c(t, narrow);
    test_cut(t, c, &t->device, 0, c.ops.size(), t->stress ? 3000 : 3);
}
