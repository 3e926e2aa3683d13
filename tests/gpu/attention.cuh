/* Attention over paged KV for its tests: a case's inputs on both sides, and its reference, sums in double.
 *
 * Included by tests/gpu/test_attention.cu. */
#pragma once

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
 * `pairs`: how far outputs may be off, as a part of their norm, since each number of a query is a pair of
 * bf16. Such a pair is off by at most 2^-16 of the number, in either direction: as a random number its
 * deviation is at most 2^-16 / sqrt(3) of it. A score is the sum of products of these with a key, so its
 * deviation is scale * 2^-16 / sqrt(3) * ||query * key||, and the output's derivative by a score is weight *
 * (value - output). A token's own key and value are the largest in these tests; where its score is large, the
 * output hangs on this one weight, and on the error of its score, however many positions there are. */
struct attended {
    std::vector<double> out, m, s;
    double pairs;
};
/* term(0) + term(1) + .., eight sums side by side: most of the time of these tests would be such sums
 * otherwise. */
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
    std::vector<unsigned char> cells[2]; /* the known contents of pool and pool_host */
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
    /* Checks the step's appended rows, which `cells` has from now on; everything else in the cache must be as
     * it was. */
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
    /* The heads of token n that share a kv head. variance, norm: each head's part of what `pairs` is made
     * of. */
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
    /* Queries q (double, [token][head][head_dim]) attend to `cells`, on all processors. only: of the pages
     * table entries of which are true there, without sinks and gates. */
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
