/* Attention over paged KV, decode and prefill, and the append in front of it, against sums in double.
 *
 * The cache is filled with random rows, the step's own rows are appended by the kernels; attention's
 * reference then reads the very bytes that are in the cache, so that its tolerance is about attention alone.
 * Pages are scattered over two pools, the second of which is of other layers, too; with some left out, what attention
 * gives is merged with the reference's part of them. Tolerances: fp32 arithmetic 1e-5; decode on tensor
 * cores takes bf16 queries and weights (p) as a pair of numbers, 2^-16 (kernels.h): 2e-5, and what the queries' part of that
 * makes of the scores (struct attended); prefill on tensor
 * cores rounds weights (p) to the queries' 16-bit dtype, and q8_0's keys and values to f16: 4e-3 for bf16, 6e-4 for
 * f16 and q8_0; appended rows: half a unit of the last place, of q8_0 half a 127th of the largest of 32. Values are
 * appended as they come, so those of q8_0 have the very bits of kv_q8_0_write. */
#include <atomic>
#include <thread>

#include "tests/gpu/harness.cuh"
#include "worker-gpu/kernels/chain/chains.h"

struct attention_case {
    int dtype;
    uint32_t heads, kv_heads, head_dim, page_tokens, window;
    bool norm;
    std::vector<uint32_t> start, count;
    /* numbers of a value, which are the first of its key; the others turn; 0: values are of their own */
    uint32_t latent = 0;
};

/* Attention by the reference: normalised outputs, with sinks and gated; maxima and sums, without.
 *
 * `pairs`: how far outputs may be off, as a part of their norm, since each number of a query is a pair of bf16. Such a pair is off by
 * at most 2^-16 of the number, in either direction: as a random number its deviation is at most 2^-16 / sqrt(3) of it. A score is the
 * sum of products of these with a key, so its deviation is scale * 2^-16 / sqrt(3) * ||query * key||, and the output's derivative by
 * a score is weight * (value - output). A token's own key and value are the largest in these tests; where its score is large,
 * the output hangs on this one weight, and on the error of its score, however many positions there are. */
struct attended {
    std::vector<double> out, m, s;
    double pairs;
};
/* term(0) + term(1) + .., eight sums side by side: most of the time of these tests would be such sums otherwise. */
template <typename F> static double add_up(uint32_t count, F term)
{
    double sums[8] = {};
    uint32_t i = 0;
    for (; i + 8 <= count; i += 8)
        for (uint32_t j = 0; j < 8; j++) sums[j] += term(i + j);
    for (; i < count; i++) sums[i % 8] += term(i);
    return ((sums[0] + sums[1]) + (sums[2] + sums[3])) + ((sums[4] + sums[5]) + (sums[6] + sums[7]));
}
/* One case's inputs on both sides. */
struct attention_test {
    const attention_case &c;
    test_step step;
    struct kv_layout layout, host_layout;
    std::vector<float> q, k, v, q_norm, k_norm, ones, inv, sinks,
        gate;         /* sinks, gate: of half of the cases each */
    uint32_t turning; /* numbers of a head; of half of the cases fewer than all */
    gpu_buffer *dq, *dk, *dv, *dq_norm, *dk_norm, *dinv, *dsinks, *dgate, *table, *pool, *pool_host;
    struct gpuk_attention args;
    std::vector<unsigned char> cells[2]; /* what is in pool and pool_host, as far as it is known */
    static const uint32_t layer = 1, host_layer = 3;

    attention_test(struct test_context *t, const attention_case &from)
        : c(from), step(t, from.start, from.count, from.page_tokens, 3)
    {
        layout = {2, c.kv_heads, c.head_dim, c.page_tokens, (uint32_t)c.dtype, c.latent};
        host_layout = layout, host_layout.layers = 5;
        q = random_floats(t, (size_t)step.tokens * c.heads * c.head_dim, 3);
        k = random_floats(t, (size_t)step.tokens * c.kv_heads * c.head_dim, 3);
        v = random_floats(t, (size_t)step.tokens * c.kv_heads * c.head_dim, 3);
        q_norm = random_floats(t, c.head_dim, 2), k_norm = random_floats(t, c.head_dim, 2);
        ones.assign(c.head_dim, 1);
        turning = c.latent                                ? c.head_dim - c.latent
                  : c.head_dim >= 4 && random_below(t, 2) ? c.head_dim / 4 * 2
                                                          : c.head_dim;
        inv.resize(turning / 2 + 1);
        for (uint32_t i = 0; i < turning / 2; i++) inv[i] = (float)pow(10000, -2.0 * i / turning);
        dq = new gpu_buffer(q), dk = new gpu_buffer(k), dv = new gpu_buffer(v);
        sinks = random_floats(t, c.heads, 4);
        dq_norm = new gpu_buffer(q_norm), dk_norm = new gpu_buffer(k_norm), dinv = new gpu_buffer(inv);
        dsinks = new gpu_buffer(sinks);
        gate = random_floats(t, q.size() + step.tokens * 4, 3); /* rows apart */
        dgate = new gpu_buffer(gate);
        table = new gpu_buffer((size_t)step.tokens * c.head_dim * 4);
        cells[0] = random_cells(t, layout, step.pages), cells[1] = random_cells(t, host_layout, step.pages);
        pool = new gpu_buffer(cells[0]), pool_host = new gpu_buffer(cells[1]);
        args = {};
        args.step = step.step;
        args.kv = {layout, pool->at, pool_host->as<char>() + host_layer * kv_layer_bytes(&layout), layer,
                   kv_page_bytes(&host_layout)};
        args.heads = c.heads;
        args.window = c.window;
        args.scale = (float)(1 / sqrt((double)c.head_dim));
        args.sinks = random_below(t, 2) ? dsinks->as<float>() : nullptr;
        args.q_norm = c.norm ? dq_norm->as<float>() : nullptr;
        args.k_norm = c.norm ? dk_norm->as<float>() : nullptr;
        args.v_normed = !c.latent && random_below(t, 2);
        args.eps = 1e-6f;
        args.rope_table = table->as<float>();
        args.rope_dims = turning == c.head_dim ? 0 : turning;
        args.gate = random_below(t, 2) ? dgate->as<float>() : nullptr;
        args.gate_stride = c.heads * c.head_dim + 4;
        args.q = dq->as<float>(), args.k = dk->as<float>(), args.v = (c.latent ? dk : dv)->as<float>();
        args.q_stride = c.heads * c.head_dim, args.kv_stride = c.kv_heads * c.head_dim;
        if (c.head_dim > 1)
            GPUK(gpuk_rope_table(&step.step, step.tokens, dinv->as<float>(), turning, 1.0f,
                                 table->as<float>(), 0, t->stream, &err));
        CUDA(cudaStreamSynchronize(t->stream));
    }
    ~attention_test()
    {
        for (gpu_buffer *b : {dq, dk, dv, dq_norm, dk_norm, dinv, dsinks, dgate, table, pool, pool_host})
            delete b;
    }

    /* A head's x, normed and rotated, in double. */
    void head(const float *x, const std::vector<float> *norm, uint32_t position, bool rotate,
              double *out) const
    {
        double squares = 0;
        const uint32_t normed = c.latent ? c.latent : c.head_dim;
        for (uint32_t d = 0; d < normed; d++) squares += (double)x[d] * x[d];
        std::vector<double> h(c.head_dim);
        for (uint32_t d = 0; d < c.head_dim; d++)
            h[d] = norm && d < normed ? x[d] / sqrt(squares / normed + 1e-6) * (*norm)[d] : (double)x[d];
        uint32_t half = turning / 2;
        for (uint32_t d = 0; d < c.head_dim; d++) out[d] = h[d];
        for (uint32_t i = 0; i < half && rotate; i++) {
            double angle = (double)((float)position * inv[i]);
            const uint32_t a = c.latent + i, b = a + half;
            out[a] = h[a] * cos(angle) - h[b] * sin(angle);
            out[b] = h[b] * cos(angle) + h[a] * sin(angle);
        }
    }
    size_t entry_of(uint32_t row, uint32_t position) const
    {
        return (size_t)step.row_slot[row] * step.pages_per_slot + position / c.page_tokens;
    }
    uint32_t page_of(uint32_t row, uint32_t position) const
    {
        return step.page_table[entry_of(row, position)];
    }
    /* Where a head's rows are in the pool that its page lies in. */
    uint64_t rows_at(uint32_t page, uint32_t is_value, uint32_t kv_head) const
    {
        const bool host = page & GPUK_PAGE_HOST;
        return kv_offset(host ? &host_layout : &layout, page & ~GPUK_PAGE_HOST, host ? host_layer : layer,
                         is_value, kv_head);
    }
    void read_cells() { pool->read(cells[0]), pool_host->read(cells[1]); }
    /* Reads a row of the cache as it is in `bytes` (pool, host pool). */
    void row(const std::vector<unsigned char> bytes[2], uint32_t r, uint32_t position, uint32_t is_value,
             uint32_t kv_head, double *out) const
    {
        uint32_t page = page_of(r, position);
        const unsigned char *rows =
            bytes[page & GPUK_PAGE_HOST ? 1 : 0].data() + rows_at(page, is_value, kv_head);
        for (uint32_t d = 0; d < c.head_dim; d++)
            out[d] = kv_cell_value(&layout, rows, position % c.page_tokens, d);
    }
    /* Checks the step's appended rows, which `cells` has from now on; everything else in the cache must be as it was. */
    void check_cache(struct test_context *t, const char *what)
    {
        const std::vector<unsigned char> now[2] = {pool->read<unsigned char>(),
                                                   pool_host->read<unsigned char>()};
        std::vector<double> got, expected, x(c.head_dim);
        bool bits = true;
        for (uint32_t n = 0; n < step.tokens; n++)
            for (uint32_t h = 0; h < kv_kinds(&layout) * c.kv_heads; h++) {
                uint32_t is_value = h >= c.kv_heads, kv_head = h % c.kv_heads;
                const float *from = &(is_value ? v : k)[((size_t)n * c.kv_heads + kv_head) * c.head_dim];
                const auto norm = is_value ? (args.v_normed ? &ones : nullptr) : c.norm ? &k_norm : nullptr;
                head(from, norm, step.position[n], !is_value, x.data());
                expected.insert(expected.end(), x.begin(), x.end());
                row(now, step.token_row[n], step.position[n], is_value, kv_head, x.data());
                got.insert(got.end(), x.begin(), x.end());
                uint32_t page = page_of(step.token_row[n], step.position[n]);
                const uint64_t rows = rows_at(page, is_value, kv_head);
                const uint32_t token = step.position[n] % c.page_tokens;
                const uint32_t numbers = kv_number_bytes(layout.dtype, c.head_dim),
                               scales = kv_scale_bytes(layout.dtype, c.head_dim);
                const uint64_t at = rows + token * numbers,
                               scales_at = rows + kv_scales_at(&layout) + token * scales;
                int which = page & GPUK_PAGE_HOST ? 1 : 0;
                memcpy(&cells[which][at], &now[which][at], numbers);
                if (scales) memcpy(&cells[which][scales_at], &now[which][scales_at], scales);
                for (uint32_t d = 0; is_value && !args.v_normed && scales && d < c.head_dim;
                     d += KV_Q8_0_VALUES) {
                    int8_t number[KV_Q8_0_VALUES];
                    uint16_t scale;
                    kv_q8_0_write(from + d, number, &scale);
                    bits = bits && memcmp(number, &now[which][at + d], sizeof number) == 0 &&
                           memcmp(&scale, &now[which][scales_at + d / KV_Q8_0_VALUES * 2], 2) == 0;
                }
            }
        char text[240];
        snprintf(text, sizeof text, "%s: appended rows", what);
        const double rounding[KV_DTYPE_COUNT] = {4e-3, 5e-4, 2e-6, 1e-2};
        check_close(t, got, expected, rounding[c.dtype], text);
        check(t, bits, text);
        snprintf(text, sizeof text, "%s: the rest of the cache is untouched", what);
        check(t, cells[0] == now[0] && cells[1] == now[1], text);
    }
    /* The heads of token n that share a kv head. variance, norm: each head's part of what `pairs` is made of. */
    void attend_group(const std::vector<double> &queries, const std::vector<bool> *only, uint32_t n,
                      uint32_t kv_head, struct attended &a, double *variance, double *norm) const
    {
        const double scale = (double)args.scale;
        const uint32_t group = c.heads / c.kv_heads, last = step.position[n],
                       first = c.window && last + 1 > c.window ? last + 1 - c.window : 0;
        std::vector<double> keys, values, open(c.head_dim, 1);
        for (uint32_t p = first; p <= last; p++) {
            if (only && !(*only)[entry_of(step.token_row[n], p)]) continue;
            const size_t at = keys.size();
            keys.resize(at + c.head_dim), values.resize(at + c.head_dim);
            row(cells, step.token_row[n], p, 0, kv_head, &keys[at]);
            row(cells, step.token_row[n], p, 1, kv_head, &values[at]);
        }
        std::vector<double> score(keys.size() / c.head_dim), squares(score.size());
        for (uint32_t h = kv_head * group; h < (kv_head + 1) * group; h++) {
            const size_t head = (size_t)n * c.heads + h;
            const double *query = &queries[head * c.head_dim];
            double *o = &a.out[head * c.head_dim], most = -INFINITY, sum = 0;
            for (size_t p = 0; p < score.size(); p++) {
                const double *key = &keys[p * c.head_dim];
                score[p] = add_up(c.head_dim, [&](uint32_t d) { return query[d] * key[d]; }) * scale;
                squares[p] =
                    add_up(c.head_dim, [&](uint32_t d) { return query[d] * key[d] * query[d] * key[d]; }) *
                    scale * scale;
                most = fmax(most, score[p]);
            }
            for (double x1 : score) sum += exp(x1 - most);
            const double all = sum + (args.sinks && !only ? exp((double)sinks[h] - most) : 0);
            for (size_t p = 0; p < score.size(); p++) {
                const double weight = exp(score[p] - most) / all;
                for (uint32_t d = 0; d < c.head_dim; d++) o[d] += weight * values[p * c.head_dim + d];
            }
            for (uint32_t d = 0; d < c.head_dim && args.gate && !only; d++)
                open[d] = 1 / (1 + exp(-(double)gate[n * args.gate_stride + h * c.head_dim + d]));
            for (size_t p = 0; p < score.size(); p++) {
                const double weight = exp(score[p] - most) / all;
                const double *value = &values[p * c.head_dim];
                const double apart = add_up(c.head_dim, [&](uint32_t d) {
                    const double by = (value[d] - o[d]) * open[d];
                    return by * by;
                });
                variance[head] += weight * weight * apart * squares[p];
            }
            for (uint32_t d = 0; d < c.head_dim; d++) o[d] *= open[d], norm[head] += o[d] * o[d];
            a.m[head] = most, a.s[head] = sum;
        }
    }
    /* Queries q (double, [token][head][head_dim]) attend to `cells`, on all processors. only: of the pages table entries of which
     * are true there, without sinks and gates. */
    struct attended attend(const std::vector<double> &queries, const std::vector<bool> *only = nullptr) const
    {
        const size_t heads = (size_t)step.tokens * c.heads, groups = (size_t)step.tokens * c.kv_heads;
        struct attended a = {std::vector<double>(queries.size(), 0), std::vector<double>(heads),
                             std::vector<double>(heads), 0};
        std::vector<double> variance(heads, 0), norm(heads, 0);
        std::atomic<size_t> next(0);
        std::vector<std::thread> others;
        const auto work = [&] {
            for (size_t i = next++; i < groups; i = next++)
                attend_group(queries, only, (uint32_t)(i / c.kv_heads), (uint32_t)(i % c.kv_heads), a,
                             variance.data(), norm.data());
        };
        while (others.size() + 1 < std::min(groups, (size_t)std::thread::hardware_concurrency()))
            others.emplace_back(work);
        work();
        for (std::thread &other : others) other.join();
        double above = 0, below = 0;
        for (size_t i = 0; i < heads; i++) above += variance[i], below += norm[i];
        a.pairs = below > 0 ? 0x1p-16 * sqrt(above / 3 / below) : 0;
        return a;
    }
    std::vector<double> queries() const
    {
        std::vector<double> out(q.size());
        for (uint32_t n = 0; n < step.tokens; n++)
            for (uint32_t h = 0; h < c.heads; h++)
                head(&q[((size_t)n * c.heads + h) * c.head_dim], c.norm ? &q_norm : nullptr, step.position[n],
                     true, &out[((size_t)n * c.heads + h) * c.head_dim]);
        return out;
    }
};

static void name_case(const attention_case &c, const char *kind, char *what, size_t size)
{
    snprintf(what, size,
             "%s %s heads %u/%u dim %u latent %u page %u window %u, rows %zu, first from %u + %u%s", kind,
             kv_dtype_name((enum kv_dtype)c.dtype), c.heads, c.kv_heads, c.head_dim, c.latent, c.page_tokens,
             c.window, c.start.size(), c.start[0], c.count[0], c.norm ? " norm" : "");
}

static void test_decode(struct test_context *t, const attention_case &c, const struct gpuk_device *device)
{
    char what[200];
    attention_test a(t, c);
    const bool fused = a.step.tokens == 1 && !c.latent;
    const bool pairs = device->tensor_cores && (c.dtype == KV_BF16 || c.dtype == KV_Q8_0) &&
                       c.head_dim % 32 == 0 && c.page_tokens % 16 == 0;
    const auto tolerance = [&](const struct attended &by) { return pairs ? 2e-5 + by.pairs : 1e-5; };
    name_case(c, fused ? "decode fused" : "decode", what, sizeof what);
    const size_t heads = (size_t)a.step.tokens * c.heads;
    gpu_buffer workspace(gpuk_attention_workspace_bytes(a.step.tokens, c.heads, c.head_dim));
    CUDA(cudaMemset(workspace.at, 0, gpuk_attention_counter_bytes(a.step.tokens, c.heads)));
    CUDA(cudaDeviceSynchronize());
    gpu_buffer rotated(a.q.size() * 4);
    struct gpuk_attention args = a.args;
    if (!fused) {
        GPUK(gpuk_rope_append(&a.args, a.step.tokens, rotated.at, DTYPE_F32, 0, t->stream, &err));
        args.q = rotated.as<float>();
    }
    struct gpuk_chain_op op = {GPUK_CHAIN_ATTENTION, {}};
    op.attention.args = args;
    const bool spreads = fused && gpuk_chain_takes(device, &op); /* by heads and pieces: two runs more */
    std::vector<float> got[4];
    gpu_buffer out(a.q.size() * 4), dm(heads * 4), ds(heads * 4);
    for (int run = spreads ? 0 : 2; run < 4; run++) {
        args.order = run < 2 ? GPUK_ORDER_SPREAD : GPUK_ORDER_TOGETHER;
        GPUK(gpuk_attention_decode(device, &args, a.step.tokens, fused, out.as<float>(), nullptr, nullptr,
                                   workspace.at, 0, t->stream, &err));
        CUDA(cudaStreamSynchronize(t->stream));
        got[run] = out.read<float>();
        if (run % 2) check_same(t, got[run - 1], got[run], what);
    }
    a.check_cache(t, what);
    const struct attended whole = a.attend(a.queries());
    check_close(t, got[2], whole.out, tolerance(whole), what);
    if (spreads) check_close(t, got[0], whole.out, 1e-5, what);
    GPUK(gpuk_attention_decode(device, &args, a.step.tokens, fused, out.as<float>(), dm.as<float>(),
                               ds.as<float>(), workspace.at, 0, t->stream, &err));
    CUDA(cudaStreamSynchronize(t->stream));
    auto o = out.read<float>(), gm = dm.read<float>(), gs = ds.read<float>();
    std::vector<double> sums;
    const std::vector<bool> every(a.step.page_table.size(), true);
    const struct attended bare = a.attend(a.queries(), &every);
    for (size_t i = 0; i < heads; i++) {
        sums.push_back(bare.s[i] *
                       exp(bare.m[i] - (double)gm[i])); /* relative to the maximum that is reported */
        for (uint32_t d = 0; d < c.head_dim; d++) o[i * c.head_dim + d] /= gs[i];
    }
    check_close(t, gm, bare.m, 1e-5, what);
    check_close(t, gs, sums, 2e-5, what);
    check_close(t, o, bare.out, tolerance(bare), what);

    /* another layer that reads these cells: it appends none */
    name_case(c, "decode without keys of its own", what, sizeof what);
    struct gpuk_attention reader = a.args;
    reader.k = reader.v = nullptr;
    GPUK(gpuk_rope_append(&reader, a.step.tokens, rotated.at, DTYPE_F32, 0, t->stream, &err));
    reader.q = rotated.as<float>();
    for (int order = GPUK_ORDER_TOGETHER; order <= GPUK_ORDER_ALONE; order++) {
        reader.order = (enum gpuk_order)order;
        GPUK(gpuk_attention_decode(device, &reader, a.step.tokens, false, out.as<float>(), nullptr, nullptr,
                                   workspace.at, 0, t->stream, &err));
        CUDA(cudaStreamSynchronize(t->stream));
        check_close(t, out.read<float>(), whole.out, tolerance(whole), what);
    }
    check(t, a.pool->read<unsigned char>() == a.cells[0] && a.pool_host->read<unsigned char>() == a.cells[1],
          what);
}

/* Some pages are absent: those in front, as a row's beginning says, or any. What attention gives of the others, merged
 * with the reference's part of these, is attention of one pass over all. */
static void test_absent(struct test_context *t, const attention_case &c, const struct gpuk_device *device,
                        bool in_front)
{
    char what[200];
    attention_test a(t, c);
    const bool pairs = device->tensor_cores && (c.dtype == KV_BF16 || c.dtype == KV_Q8_0) &&
                       c.head_dim % 32 == 0 && c.page_tokens % 16 == 0;
    name_case(c, in_front ? "absent in front" : "absent", what, sizeof what);
    std::vector<uint32_t> table = a.step.page_table, begin(a.step.rows, 0);
    std::vector<bool> absent(table.size(), false);
    for (uint32_t r = 0; r < a.step.rows; r++) {
        const uint32_t whole = c.start[r] / c.page_tokens; /* none that the step appends to */
        const uint32_t most = in_front && whole ? random_below(t, whole + 1) : 0;
        begin[r] = most * c.page_tokens;
        for (uint32_t i = 0; i < whole; i++)
            absent[a.entry_of(r, i * c.page_tokens)] = in_front ? i < most : random_below(t, 3) == 0;
    }
    for (size_t i = 0; i < table.size(); i++)
        if (absent[i]) table[i] = GPUK_PAGE_ABSENT;
    struct gpuk_attention args = a.args;
    args.step.page_table = a.step.device_copy(table);
    if (in_front) args.step.row_begin = a.step.device_copy(begin);
    const uint32_t tokens = a.step.tokens;
    const size_t heads = (size_t)tokens * c.heads;
    gpu_buffer workspace(gpuk_attention_workspace_bytes(tokens, c.heads, c.head_dim));
    CUDA(cudaMemset(workspace.at, 0, gpuk_attention_counter_bytes(tokens, c.heads)));
    CUDA(cudaDeviceSynchronize());
    gpu_buffer rotated(a.q.size() * 4), o(a.q.size() * 4), m(heads * 4), s(heads * 4), out(a.q.size() * 4);
    GPUK(gpuk_rope_append(&args, tokens, rotated.at, DTYPE_F32, 0, t->stream, &err));
    args.q = rotated.as<float>();
    GPUK(gpuk_attention_decode(device, &args, tokens, false, o.as<float>(), m.as<float>(), s.as<float>(),
                               workspace.at, 0, t->stream, &err));
    CUDA(cudaStreamSynchronize(t->stream));
    a.read_cells();
    const struct attended whole = a.attend(a.queries()), part = a.attend(a.queries(), &absent);
    std::vector<float> other;
    for (size_t i = 0; i < heads; i++) {
        other.push_back((float)part.m[i]), other.push_back((float)part.s[i]);
        for (uint32_t d = 0; d < c.head_dim; d++)
            other.push_back(part.s[i] > 0 ? (float)(part.out[i * c.head_dim + d] * part.s[i]) : 0);
    }
    gpu_buffer dother(other);
    struct gpuk_merge merge = {};
    merge.o = o.as<float>(), merge.m = m.as<float>(), merge.s = s.as<float>(),
    merge.other = dother.as<float>();
    merge.sinks = args.sinks, merge.gate = args.gate, merge.gate_stride = args.gate_stride;
    merge.heads = c.heads, merge.head_dim = c.head_dim, merge.out = out.as<float>();
    GPUK(gpuk_attention_merge(&merge, a.step.step.counts, tokens, 0, t->stream, &err));
    CUDA(cudaStreamSynchronize(t->stream));
    check_close(t, out.read<float>(), whole.out, pairs ? 2e-5 + whole.pairs : 1e-5, what);
    /* in place, as programs do it */
    struct gpuk_merge same = merge;
    same.out = o.as<float>();
    GPUK(gpuk_attention_merge(&same, a.step.step.counts, tokens, 0, t->stream, &err));
    CUDA(cudaStreamSynchronize(t->stream));
    check_same(t, out.read<float>(), o.read<float>(), what);
}

/* The same in parts: pages of random numbers of tiles of each row in pieces of one to three, then the rest. */
static std::vector<float> attend_in_parts(struct test_context *t, const attention_test &a,
                                          const struct gpuk_device *device, const struct gpuk_prefill &whole,
                                          uint32_t tokens)
{
    const attention_case &c = a.c;
    const uint32_t tile = GPU_PREFILL_TILE > c.page_tokens ? GPU_PREFILL_TILE / c.page_tokens : 1;
    std::vector<uint32_t> before(1, 0);
    for (uint32_t r = 0; r < a.step.rows; r++)
        before.push_back(before.back() + random_below(t, c.start[r] / c.page_tokens / tile + 1) * tile);
    const size_t pairs = (size_t)a.step.tokens * c.heads;
    gpu_buffer out(pairs * c.head_dim * 4), o(pairs * c.head_dim * 4), state(pairs * GPU_PART_FLOATS * 4),
        places(before);
    struct gpuk_prefill prefill = whole;
    prefill.out = out.at;
    prefill.part = {places.as<uint32_t>(), (1 + random_below(t, 3)) * tile, 0, o.as<float>(),
                    state.as<float>()};
    for (; prefill.part.piece * prefill.part.pages < before.back(); prefill.part.piece++)
        GPUK(gpuk_attention_prefill(device, &prefill, tokens, 0, t->stream, &err));
    prefill.part.piece = GPUK_PART_LAST;
    GPUK(gpuk_attention_prefill(device, &prefill, tokens, 0, t->stream, &err));
    CUDA(cudaStreamSynchronize(t->stream));
    return out.read<float>();
}

static void test_prefill(struct test_context *t, const attention_case &c, const struct gpuk_device *device,
                         bool tensor)
{
    char what[200];
    attention_test a(t, c);
    name_case(c, tensor ? "prefill tensor" : "prefill", what, sizeof what);
    const enum dtype q_dtype = kv_query_dtype((uint32_t)c.dtype);
    gpu_buffer rotated(a.q.size() * dtype_bytes(q_dtype));
    /* capacities larger than the step, as in a tier */
    const uint32_t tokens = a.step.tokens + 70, rows = a.step.rows + 2;
    GPUK(gpuk_rope_append(&a.args, tokens, rotated.at, q_dtype, 0, t->stream, &err));
    std::vector<float> first;
    for (int run = 0; run < 2; run++) { /* the second in parts: the same bits */
        gpu_buffer out(a.q.size() * 4);
        const struct gpuk_prefill whole = {a.args, rotated.at, out.at, DTYPE_F32, rows, {}, nullptr};
        GPUK(gpuk_attention_prefill(device, &whole, tokens, 0, t->stream, &err));
        CUDA(cudaStreamSynchronize(t->stream));
        auto got = run == 0 ? out.read<float>() : attend_in_parts(t, a, device, whole, tokens);
        if (run == 0) first = got;
        check_same(t, first, got, what);
    }
    a.check_cache(t, what);
    auto queries = to_double(rotated.read<unsigned char>(), q_dtype);
    check_close(t, queries, a.queries(),
                q_dtype == DTYPE_BF16  ? 4e-3
                : q_dtype == DTYPE_F16 ? 5e-4
                                       : 2e-6,
                what);
    const std::vector<double> expected = a.attend(queries).out;
    check_close(t, first, expected, !tensor ? 1e-5 : c.dtype == KV_BF16 ? 4e-3 : 6e-4, what);
    /* positions in ranges, as many as a large device takes */
    if (tensor) {
        gpu_buffer workspace(GPUK_MATMUL_WORKSPACE), out(a.q.size() * 4);
        struct gpuk_device large = *device;
        large.sm_count = 132;
        const struct gpuk_prefill whole = {a.args, rotated.at, out.at, DTYPE_F32, rows, {}, workspace.at};
        GPUK(gpuk_attention_prefill(&large, &whole, tokens, 0, t->stream, &err));
        CUDA(cudaStreamSynchronize(t->stream));
        check_close(t, out.read<float>(), expected, c.dtype == KV_BF16 ? 4e-3 : 6e-4, what);
    }
    /* and in the dtype of activations */
    gpu_buffer half(a.q.size() * 2);
    const struct gpuk_prefill narrow = {a.args, rotated.at, half.at, DTYPE_BF16, rows, {}, nullptr};
    GPUK(gpuk_attention_prefill(device, &narrow, tokens, 0, t->stream, &err));
    CUDA(cudaStreamSynchronize(t->stream));
    check_close(t, to_double(half.read<unsigned char>(), DTYPE_BF16), expected, 6e-3, what);
}

/* Splits of contexts into pages that are absent, of either pool, in any order; head_dim 64 to 512, 1 to 8 query heads of
 * a kv head. */
static void test_splits(struct test_context *t, const struct gpuk_device *device,
                        const struct gpuk_device *plain)
{
    const uint32_t dims[] = {64, 96, 128, 256, 512}, shares[] = {1, 2, 3, 4, 5, 8};
    const uint32_t far = t->few ? 100 : t->small ? 260 : 3000, times = t->few ? 1 : t->small ? 2 : 6;
    for (int dtype = 0; dtype < KV_DTYPE_COUNT; dtype++)
        for (const uint32_t dim : dims)
            for (uint32_t n = 0; n < (!t->small || dim <= 256 ? times : dtype != KV_BF16); n++) {
                const uint32_t share = shares[random_below(t, 6)], kv = 1 + random_below(t, 2);
                const uint32_t page = 16u << random_below(t, 6),
                               window = n % 3 == 2 ? 1 + random_below(t, far) : 0;
                const attention_case c = {
                    dtype,      share * kv,
                    kv,         dim,
                    page,       window,
                    n % 2 == 0, {random_below(t, far), random_below(t, far), random_below(t, 40)},
                    {1, 1, 1}};
                const uint32_t longest =
                    dim == 128 && n == 0 && far < 1500 ? 1500 : far; /* several tiles a warp */
                const attention_case one = {dtype, share * kv, kv, dim, page, 0, n % 2 == 1, {longest}, {1}};
                test_absent(t, c, n % 2 ? plain : device, n % 2 == 0);
                test_absent(t, one, device, true);
                if (!t->small) test_absent(t, c, device, n % 2 == 1);
            }
}

/* Contexts far longer than a block's tiles, where tensor cores take them and where they do not. */
static void test_long(struct test_context *t, const struct gpuk_device *many, const struct gpuk_device *plain)
{
    const uint32_t shapes[][3] = {{4, 1, 128}, {5, 1, 64},  {8, 1, 96}, {1, 1, 256},
                                  {2, 1, 128}, {16, 2, 64}, {8, 1, 512}};
    const uint32_t pages[] = {32, 512, 64, 16, 256, 128, 32};
    for (size_t i = 0; i < 7; i++)
        for (int dtype : {KV_BF16, KV_F16, KV_Q8_0}) {
            if (t->small && (t->few || i == 6 || dtype != (int[]){KV_F16, KV_Q8_0, KV_BF16}[i % 3])) continue;
            const uint32_t at = t->small ? 1500 + random_below(t, 1500) : 32000 + random_below(t, 767);
            const attention_case c = {dtype, shapes[i][0], shapes[i][1], shapes[i][2], pages[i],
                                      0,     i % 2 == 0,   {at},         {1}};
            test_decode(t, c, many);
            if (!t->small) test_decode(t, c, plain);
        }
}

/* Values that are the first numbers of keys: of DeepSeek's size, and of others that the kernels of usual heads take. */
static void test_latent(struct test_context *t, const struct gpuk_device *device,
                        const struct gpuk_device *plain)
{
    const uint32_t shapes[][4] = {{16, 576, 512, 16}, {5, 96, 64, 16}, {3, 576, 512, 8}, {7, 320, 256, 32}};
    const uint32_t far = t->few ? 90 : t->small ? 400 : 2500;
    for (int dtype = 0; dtype < KV_DTYPE_COUNT; dtype++)
        for (size_t i = 0; i < (t->few ? 1 : t->small ? 2 : 4); i++) {
            const uint32_t heads = shapes[i][0], dim = shapes[i][1], latent = shapes[i][2],
                           page = shapes[i][3];
            const attention_case one = {dtype, heads, 1, dim, page, 0, true, {far}, {1}, latent},
                                 few = {dtype,     heads, 1, dim, page, 0, true, {0, 17, far / 2},
                                        {3, 1, 2}, latent},
                                 many = {dtype, heads,   1,
                                         dim,   page,    0,
                                         true,  {37, 0}, {t->small ? 40u : 130u, 5},
                                         latent};
            test_decode(t, one, device);
            test_decode(t, few, plain);
            test_absent(t, few, device, i % 2 == 0);
            test_prefill(t, many, device, false); /* tensor cores take none of these sizes */
        }
}

void test_attention(struct test_context *t)
{
    struct gpuk_device plain = t->device;
    plain.tensor_cores = false;
    struct gpuk_device little = t->device; /* as cards for consumers have */
    if (little.shared_bytes_max > 99 << 10) little.shared_bytes_max = 99 << 10;
    struct gpuk_device many = t->device,
                       many_plain = plain; /* as many pieces of the context as there can be */
    many.sm_count = many_plain.sm_count = 132;
    /* heads, kv heads, head_dim, page: tensor cores take head_dim 64, 96, 128, 256 and 512 on pages of whole 16
     * positions */
    const uint32_t shapes[][4] = {{8, 2, 128, 32},  {8, 1, 64, 16},  {5, 5, 80, 4},    {14, 2, 64, 8},
                                  {6, 2, 7, 16},    {16, 1, 256, 8}, {2, 2, 200, 32},  {20, 2, 128, 16},
                                  {10, 1, 64, 512}, {3, 1, 1, 4},    {16, 2, 512, 16}, {3, 1, 512, 8},
                                  {2, 2, 300, 8}};
    const uint32_t small_shapes[][4] = {{8, 2, 128, 16}, {10, 1, 64, 256}, {4, 4, 64, 4},
                                        {6, 2, 7, 8},    {3, 1, 512, 16},  {2, 1, 256, 32}};
    const uint32_t(*shape)[4] = t->small ? small_shapes : shapes;
    const size_t shape_count = t->few ? 2 : t->small ? 6 : 13;
    test_splits(t, &many, &many_plain);
    test_splits(t, &t->device, &plain);
    test_long(t, &many, &many_plain);
    test_latent(t, &many, &many_plain);
    /* a block that reads its queries for each tile, of a short row beside a long one: some ranges have no positions */
    if (t->few && t->device.tensor_cores && t->device.shared_bytes_max >= 96 << 10)
        test_prefill(t, {KV_F16, 2, 1, 256, 32, 0, false, {100, 0}, {16, 5}}, &t->device, true);
    for (int dtype = 0; dtype < KV_DTYPE_COUNT; dtype++) {
        for (size_t i = 0; i < shape_count; i++) {
            if (t->small && shape[i][2] > 256 && dtype == KV_BF16) continue; /* as F16 */
            const uint32_t heads = shape[i][0], kv = shape[i][1], page = shape[i][3],
                           dim = dtype == KV_Q8_0 ? (shape[i][2] + 31) / 32 * 32 : shape[i][2];
            const bool norm = i % 2 == 0;
            const uint32_t far = t->few ? 140 : t->small ? 600 : 1900;
            const struct {
                attention_case c;
                const struct gpuk_device *device;
            } decodes[] = {
                {{dtype, heads, kv, dim, page, 0, norm, {0}, {1}}, &t->device},
                {{dtype, heads, kv, dim, page, 0, norm, {30}, {1}}, &t->device},
                {{dtype, heads, kv, dim, page, 0, norm, {64}, {1}}, &t->device},
                {{dtype, heads, kv, dim, page, 40, norm, {131}, {1}}, &t->device},
                {{dtype, heads, kv, dim, page, 0, norm, {far}, {1}}, &t->device},
                {{dtype, heads, kv, dim, page, 0, norm, {0, 17, far / 2, 5}, {3, 1, 2, 1}}, &t->device},
                {{dtype, heads, kv, dim, page, 20, norm, {7, 100}, {2, 5}}, &t->device},
                {{dtype, heads, kv, dim, page, 0, norm, {far}, {1}}, &many},
                {{dtype, heads, kv, dim, page, 333, norm, {far}, {1}}, &many_plain},
            };
            size_t turn =
                i + (size_t)dtype; /* small: of a shape every other one, of the next those between */
            for (const auto &decode : decodes)
                if (turn++ % 2 == 0 || !t->small || t->few) test_decode(t, decode.c, decode.device);
            const bool tensor = t->device.tensor_cores && dtype != KV_F32 &&
                                (dim == 64 || dim == 128 ||
                                 ((dim == 256 || dim == 512) && t->device.shared_bytes_max >= 96 << 10));
            const std::vector<attention_case> cases = {
                {dtype, heads, kv, dim, page, 0, norm, {0}, {t->small ? 70u : 200u}},
                {dtype, heads, kv, dim, page, 0, norm, {37, 0, 100}, {65, 5, t->small ? 16u : 64u}},
                {dtype, heads, kv, dim, page, 33, norm, {0, 90}, {130, 20}},
            };
            for (size_t n = 0; n < cases.size(); n++) {
                const attention_case &c = cases[n];
                /* small: of a shape two cases with tensor cores where it has them, and one without; of the next others */
                const size_t place = (n + i + (size_t)dtype) % cases.size();
                if (t->few ? c.start.size() == 3 : t->small && place == 2) continue;
                test_prefill(t, c, &t->device, tensor);
                if (tensor && (!t->small || t->few || place == 0)) test_prefill(t, c, &plain, false);
                if (tensor && dim > 128 && (!t->small || place == 1)) test_prefill(t, c, &little, true);
            }
        }
    }
}
