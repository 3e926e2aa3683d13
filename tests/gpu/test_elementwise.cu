/* Embedding, norms, SwiGLU, copies, biases, rotation tables, argmax and logprobs against the host.
 *
 * Tolerances: fp32 results 2e-6 (a rounding or two and expf); 16-bit results half a unit of the last place.
 */
#include <algorithm>

#include "tests/gpu/harness.cuh"
#include "worker-gpu/kernels/join.h"
#include "worker-gpu/kernels/kernels_few.h"
#include "worker-gpu/kernels/weigh.h"

extern "C" {
#include "common/sampling/pass.h"
}

static double tolerance_of(int dtype)
{
    return dtype == DTYPE_BF16 ? 4e-3 : dtype == DTYPE_F16 ? 5e-4 : 2e-6;
}

static void test_width(struct test_context *t, uint32_t hidden)
{
    const uint32_t tokens = 9, count = 7, vocab = 50;
    test_step step(t, {3, 40}, {4, 3}, 8);
    char what[120];
    auto x = random_floats(t, (size_t)tokens * hidden), norm = random_floats(t, hidden);
    gpu_buffer dx(x), dnorm(norm), counter(std::vector<uint32_t>{count});
    for (int dtype = 0; dtype < DTYPE_COUNT; dtype++) {
        auto table = random_elements(t, (size_t)vocab * hidden, dtype);
        auto values = to_double(table, dtype);
        gpu_buffer dtable(table), out((size_t)tokens * hidden * 4);
        GPUK(gpuk_embed(&step.step, tokens, dtable.at, (enum tensor_format)dtype, vocab, hidden, 2,
                        out.as<float>(), 0, t->stream, &err));
        CUDA(cudaStreamSynchronize(t->stream));
        auto got = out.read<float>();
        bool same = true;
        for (uint32_t i = 0; i < count * hidden; i++)
            same = same && got[i] == 2 * values[step.ids[i / hidden] * hidden + i % hidden];
        for (uint32_t i = count * hidden; i < tokens * hidden; i++) same = same && isnan(got[i]);
        check(t, same, "embed");

        std::vector<double> expected;
        for (uint32_t n = 0; n < count; n++) {
            double squares = 0;
            for (uint32_t i = 0; i < hidden; i++) squares += (double)x[n * hidden + i] * x[n * hidden + i];
            for (uint32_t i = 0; i < hidden; i++)
                expected.push_back(x[n * hidden + i] / sqrt(squares / hidden + 1e-5) * norm[i]);
        }
        gpu_buffer normed((size_t)tokens * hidden * bytes_of(dtype));
        GPUK(gpuk_rmsnorm(counter.as<uint32_t>(), tokens, dx.as<float>(), dnorm.as<float>(), 1e-5f, hidden,
                          normed.at, (enum dtype)dtype, 0, t->stream, &err));
        CUDA(cudaStreamSynchronize(t->stream));
        auto values_out = to_double(normed.read<unsigned char>(), dtype);
        values_out.resize(count * hidden);
        snprintf(what, sizeof what, "rmsnorm %u to %s", hidden, name_of(dtype));
        check_close(t, values_out, expected, tolerance_of(dtype), what);

        auto gates = random_elements(t, (size_t)tokens * (2 * hidden + 8), dtype, 4);
        auto g = to_double(gates, dtype);
        expected.clear();
        const enum glu_kind glu = tokens % 2 ? GLU_GELU : GLU_SILU; /* in turns */
        for (uint32_t n = 0; n < count; n++)
            for (uint32_t i = 0; i < hidden; i++) {
                double a = g[n * (2 * hidden + 8) + i], b = g[n * (2 * hidden + 8) + hidden + i];
                const double gelu = 0.5 * a * (1 + tanh(GELU_ROOT * (a + GELU_CUBE * a * a * a)));
                expected.push_back(glu == GLU_GELU ? gelu * b : a / (1 + exp(-a)) * b);
            }
        const uint32_t wide = hidden + 8 * (dtype % 2); /* rows of the result side by side or apart */
        gpu_buffer dgates(gates), product((size_t)tokens * wide * bytes_of(dtype));
        GPUK(gpuk_swiglu(counter.as<uint32_t>(), tokens, dgates.at, (enum dtype)dtype, glu, 2 * hidden + 8,
                         hidden, hidden, product.at, (enum dtype)dtype, wide, 0, t->stream, &err));
        CUDA(cudaStreamSynchronize(t->stream));
        auto spread = to_double(product.read<unsigned char>(), dtype);
        values_out.clear();
        for (uint32_t n = 0; n < count; n++)
            values_out.insert(values_out.end(), spread.begin() + n * wide,
                              spread.begin() + n * wide + hidden);
        snprintf(what, sizeof what, "swiglu %u %s", hidden, name_of(dtype));
        check_close(t, values_out, expected, tolerance_of(dtype), what);

        auto base = random_elements(t, (size_t)tokens * (hidden + 3), dtype);
        auto sum = to_double(base, dtype);
        for (uint32_t n = 0; n < count; n++)
            for (uint32_t i = 0; i < hidden; i++) sum[n * (hidden + 3) + i] += norm[i];
        gpu_buffer dbase(base);
        GPUK(gpuk_add_bias(counter.as<uint32_t>(), tokens, dbase.at, (enum dtype)dtype, hidden + 3, hidden,
                           dnorm.as<float>(), 0, t->stream, &err));
        CUDA(cudaStreamSynchronize(t->stream));
        check_close(t, to_double(dbase.read<unsigned char>(), dtype), sum, tolerance_of(dtype), "add bias");
    }
    /* lanes: mapped host memory on either side; and rows picked by the step's samples */
    float *host;
    CUDA(cudaHostAlloc((void **)&host, x.size() * 4, cudaHostAllocMapped));
    memset(host, 0xff, x.size() * 4);
    GPUK(gpuk_lane_copy(counter.as<uint32_t>(), tokens, dx.as<float>(), hidden, host, 0, t->stream, &err));
    gpu_buffer back(x.size() * 4), picked((size_t)tokens * hidden * 4);
    GPUK(gpuk_lane_copy(counter.as<uint32_t>(), tokens, host, hidden, back.as<float>(), 0, t->stream, &err));
    GPUK(gpuk_gather(&step.step, tokens, dx.as<float>(), hidden, picked.as<float>(), 0, t->stream, &err));
    CUDA(cudaStreamSynchronize(t->stream));
    auto copied = back.read<float>(), rows = picked.read<float>();
    check(t,
          memcmp(copied.data(), x.data(), (size_t)count * hidden * 4) == 0 && isnan(copied[count * hidden]),
          "lane copy");
    CUDA(cudaFreeHost(host));
    bool same = true;
    for (uint32_t i = 0; i < 2 * hidden; i++)
        same = same && rows[i] == x[step.samples[i / hidden] * hidden + i % hidden];
    check(t, same && isnan(rows[2 * hidden]), "gather");
}

static void test_rope_table(struct test_context *t, uint32_t head_dim)
{
    test_step step(t, {0, 99990}, {3, 4}, 16);
    const uint32_t half = head_dim / 2;
    std::vector<float> inv(half);
    for (uint32_t i = 0; i < half; i++) inv[i] = (float)pow(1e6, -2.0 * i / head_dim);
    gpu_buffer dinv(inv), table((size_t)step.tokens * 2 * half * 4);
    GPUK(gpuk_rope_table(&step.step, step.tokens, dinv.as<float>(), head_dim, 1.25f, table.as<float>(), 0,
                         t->stream, &err));
    CUDA(cudaStreamSynchronize(t->stream));
    std::vector<double> expected;
    for (uint32_t n = 0; n < step.tokens; n++)
        for (uint32_t i = 0; i < 2 * half; i++) {
            float angle = (float)step.position[n] * inv[i % half];
            expected.push_back(1.25 * (i < half ? cos((double)angle) : sin((double)angle)));
        }
    check_close(t, table.read<float>(), expected, 1e-6, "rope table");
}

/* A shared expert's weight times its activations, of few and of many tokens; those beyond the count stay. */
static void test_weigh(struct test_context *t, uint32_t width, uint32_t n, uint32_t tokens)
{
    const uint32_t count = tokens - 2;
    char what[120];
    auto x = random_floats(t, (size_t)tokens * width), norm = random_floats(t, width),
         weight = random_floats(t, width, 4 / sqrtf((float)width));
    gpu_buffer dx(x), dnorm(norm), dweight(weight), counter(std::vector<uint32_t>{count});
    for (int dtype = 0; dtype < DTYPE_COUNT; dtype++) {
        auto act = random_elements(t, (size_t)tokens * n, dtype);
        auto expected = to_double(act, dtype);
        for (uint32_t k = 0; k < count; k++) {
            double squares = 0, product = 0;
            for (uint32_t i = 0; i < width; i++) {
                const double v = x[(size_t)k * width + i];
                squares += v * v;
                product += v * norm[i] * weight[i];
            }
            product /= sqrt(squares / width + 1e-5);
            for (uint32_t i = 0; i < n; i++) expected[(size_t)k * n + i] /= 1 + exp(-product);
        }
        gpu_buffer dact(act);
        const struct gpuk_weigh args = {dx.as<float>(), dnorm.as<float>(), dweight.as<float>(), 1e-5f,
                                        width,          dact.at,           (enum dtype)dtype,   n};
        GPUK(gpuk_weigh(&args, tokens, counter.as<uint32_t>(), 0, t->stream, &err));
        CUDA(cudaStreamSynchronize(t->stream));
        snprintf(what, sizeof what, "weigh %u by %u %s", n, width, name_of(dtype));
        check_close(t, to_double(dact.read<unsigned char>(), dtype), expected,
                    dtype == DTYPE_F32 ? 4e-6 : tolerance_of(dtype), what);
    }
}

/* rmsnorm(x) * norm of one row, in double. */
static std::vector<double> normed_row(const double *x, const float *norm, uint32_t width)
{
    double squares = 0;
    for (uint32_t i = 0; i < width; i++) squares += x[i] * x[i];
    std::vector<double> out(width);
    for (uint32_t i = 0; i < width; i++) out[i] = x[i] / sqrt(squares / width + 1e-5) * norm[i];
    return out;
}

/* A normed output, or the sum of two, added to what is there, in place or elsewhere, times a factor or not;
 * rows beyond the count stay. */
static void test_add_normed(struct test_context *t, uint32_t hidden, bool in_place, bool factor, bool two)
{
    const uint32_t tokens = 5, count = 3;
    auto in = random_floats(t, (size_t)tokens * hidden), x = random_floats(t, (size_t)tokens * hidden),
         more = random_floats(t, (size_t)tokens * hidden), norm = random_floats(t, hidden),
         in_norm = random_floats(t, hidden), more_norm = random_floats(t, hidden);
    gpu_buffer din(in), dx(x), dmore(more), dnorm(norm), din_norm(in_norm), dmore_norm(more_norm), other(x),
        counter(std::vector<uint32_t>{count}), by(std::vector<float>{0.75f});
    gpu_buffer &out = in_place ? dx : other;
    struct gpuk_add_normed a = {};
    a.in = din.as<float>(), a.norm = dnorm.as<float>(), a.x = dx.as<float>(), a.out = out.as<float>();
    a.eps = 1e-5f, a.width = hidden, a.factor = factor ? by.as<float>() : nullptr;
    if (two)
        a.in_norm = din_norm.as<float>(), a.other = dmore.as<float>(), a.other_norm = dmore_norm.as<float>();
    GPUK(gpuk_add_normed(&a, counter.as<uint32_t>(), tokens, 0, t->stream, &err));
    CUDA(cudaStreamSynchronize(t->stream));
    std::vector<double> expected(x.begin(), x.end());
    for (uint32_t n = 0; n < count; n++) {
        const size_t at = (size_t)n * hidden;
        std::vector<double> y(in.begin() + at, in.begin() + at + hidden);
        if (two) {
            const std::vector<double> z(more.begin() + at, more.begin() + at + hidden),
                b = normed_row(z.data(), more_norm.data(), hidden);
            y = normed_row(y.data(), in_norm.data(), hidden);
            for (uint32_t i = 0; i < hidden; i++) y[i] += b[i];
        }
        y = normed_row(y.data(), norm.data(), hidden);
        for (uint32_t i = 0; i < hidden; i++) expected[at + i] = (x[at + i] + y[i]) * (factor ? 0.75 : 1);
    }
    check_close(t, out.read<float>(), expected, 4e-6, two ? "add two normed" : "add normed");
}

/* Two inputs side by side, each by its norm; rows beyond the count stay. */
static void test_join(struct test_context *t, uint32_t width)
{
    const uint32_t tokens = 5, count = 4;
    auto a = random_floats(t, (size_t)tokens * width), b = random_floats(t, (size_t)tokens * width),
         norm_a = random_floats(t, width), norm_b = random_floats(t, width),
         before = random_floats(t, (size_t)2 * tokens * width);
    gpu_buffer da(a), db(b), dnorm_a(norm_a), dnorm_b(norm_b), out(before),
        counter(std::vector<uint32_t>{count});
    struct gpuk_join j = {};
    j.a = da.as<float>(), j.norm_a = dnorm_a.as<float>(), j.b = db.as<float>(),
    j.norm_b = dnorm_b.as<float>();
    j.eps = 1e-5f, j.width = width, j.out = out.as<float>(), j.out_dtype = DTYPE_F32;
    GPUK(gpuk_join(&j, counter.as<uint32_t>(), tokens, 0, t->stream, &err));
    CUDA(cudaStreamSynchronize(t->stream));
    std::vector<double> expected(before.begin(), before.end());
    for (uint32_t n = 0; n < count; n++)
        for (uint32_t half = 0; half < 2; half++) {
            const std::vector<float> &in = half ? b : a, &norm = half ? norm_b : norm_a;
            const std::vector<double> row(in.begin() + (size_t)n * width,
                                          in.begin() + (size_t)(n + 1) * width),
                y = normed_row(row.data(), norm.data(), width);
            for (uint32_t i = 0; i < width; i++) expected[((size_t)2 * n + half) * width + i] = y[i];
        }
    check_close(t, out.read<float>(), expected, 4e-6, "join");
}

/* Rows that stand among others, normed or as they are, grown by their positions; what is between them stays,
 * and rows beyond the count. */
static void test_in_place(struct test_context *t, uint32_t width, bool norm, float growth)
{
    const uint32_t tokens = 5, count = 4, stride = width + 12;
    const std::vector<uint32_t> position = {7, 99, 100, 350, 0};
    auto x = random_floats(t, (size_t)tokens * stride), weight = random_floats(t, width);
    gpu_buffer dx(x), dweight(weight), dposition(position), counter(std::vector<uint32_t>{count});
    struct gpuk_add_normed a = {};
    a.in = a.out = dx.as<float>(), a.norm = norm ? dweight.as<float>() : nullptr, a.eps = 1e-5f;
    a.width = width, a.stride = stride, a.position = dposition.as<uint32_t>(), a.growth = growth;
    a.growth_context = 100;
    GPUK(gpuk_add_normed(&a, counter.as<uint32_t>(), tokens, 0, t->stream, &err));
    CUDA(cudaStreamSynchronize(t->stream));
    std::vector<double> expected(x.begin(), x.end());
    for (uint32_t n = 0; n < count; n++) {
        double *at = &expected[(size_t)n * stride];
        const double by = 1 + growth * log(1 + floor(position[n] / 100.0));
        const std::vector<double> y =
            norm ? normed_row(at, weight.data(), width) : std::vector<double>(at, at + width);
        for (uint32_t i = 0; i < width; i++) at[i] = y[i] * by;
    }
    check_close(t, dx.read<float>(), expected, 4e-6, norm ? "norm in place" : "grow in place");
}

/* Each layer's part is normed and has its part of the token's row added.
 * Numbers between the rows stay as they are, and so do rows beyond the count. */
static void test_per_layer(struct test_context *t, uint32_t layers, uint32_t width)
{
    const uint32_t tokens = 9, count = 7, vocab = 50, all = layers * width, stride = all + 8;
    test_step step(t, {3, 40}, {4, 3}, 8);
    for (int dtype = 0; dtype < DTYPE_COUNT; dtype++) {
        auto table = random_elements(t, (size_t)vocab * all, dtype);
        auto values = to_double(table, dtype);
        auto x = random_floats(t, (size_t)tokens * stride), norm = random_floats(t, width);
        gpu_buffer dtable(table), dx(x), dnorm(norm);
        struct gpuk_per_layer a = {};
        a.step = step.step, a.table = dtable.at, a.format = (enum tensor_format)dtype, a.vocab = vocab;
        a.layers = layers, a.width = width, a.stride = stride, a.norm = dnorm.as<float>(), a.eps = 1e-5f;
        a.in_scale = 0.25f, a.table_scale = 3, a.out_scale = 0.5f, a.x = dx.as<float>();
        GPUK(gpuk_per_layer(&a, tokens, 0, t->stream, &err));
        CUDA(cudaStreamSynchronize(t->stream));
        std::vector<double> expected(x.begin(), x.end());
        for (uint32_t n = 0; n < count; n++)
            for (uint32_t l = 0; l < layers; l++) {
                double *at = &expected[(size_t)n * stride + l * width];
                for (uint32_t i = 0; i < width; i++) at[i] *= 0.25;
                const std::vector<double> y = normed_row(at, norm.data(), width);
                for (uint32_t i = 0; i < width; i++)
                    at[i] = (y[i] + 3 * values[(size_t)step.ids[n] * all + l * width + i]) * 0.5;
            }
        check_close(t, dx.read<float>(), expected, 4e-6, "per-layer embedding");
    }
}

/* Rows beyond the count stay. */
static void test_soft_cap(struct test_context *t, uint32_t width)
{
    const uint32_t rows = 3, count = 2;
    auto x = random_floats(t, (size_t)rows * width, 60);
    gpu_buffer dx(x), counter(std::vector<uint32_t>{count});
    GPUK(gpuk_soft_cap(counter.as<uint32_t>(), rows, dx.as<float>(), width, 30, 0, t->stream, &err));
    CUDA(cudaStreamSynchronize(t->stream));
    std::vector<double> expected(x.begin(), x.end());
    for (size_t i = 0; i < (size_t)count * width; i++) expected[i] = 30 * tanh(x[i] / 30.0);
    check_close(t, dx.read<float>(), expected, 4e-6, "soft cap");
}

void test_elementwise(struct test_context *t)
{
    const uint32_t widths[] = {1, 7, 64, 250, 4096};
    for (uint32_t width : widths)
        if (!t->small || width == 7 || width == 64) test_width(t, width);
    test_weigh(t, 64, 250, 5);
    test_weigh(t, 2048, 5632, 3);
    test_weigh(t, 7, 64, 40);
    test_rope_table(t, 128);
    test_rope_table(t, 7);
    test_add_normed(t, 2816, true, false, false);
    test_add_normed(t, 7, false, true, false);
    test_add_normed(t, 2816, true, true, true);
    test_add_normed(t, 7, false, false, true);
    test_join(t, 2048);
    test_join(t, 7);
    test_in_place(t, 6144, true, 0);
    test_in_place(t, 36, false, 0.1f);
    test_in_place(t, 300, true, 0.4f);
    test_per_layer(t, 5, 256);
    test_per_layer(t, 3, 7);
    test_soft_cap(t, 7);
    test_soft_cap(t, 1031);
}

static void test_logits(struct test_context *t, uint32_t vocab, int kind)
{
    const uint32_t rows = 3;
    auto logits = random_floats(t, (size_t)rows * vocab, 20);
    if (kind == 1) /* ties everywhere */
        for (float &x : logits) x = floorf(x / 10);
    if (kind == 2) /* much that is not finite, and a row of nothing else */
        for (size_t i = 0; i < logits.size(); i++)
            if (i % 3 == 0 || i >= 2 * (size_t)vocab) logits[i] = i % 2 ? NAN : i % 4 ? INFINITY : -INFINITY;
    if (kind == 3)
        for (float &x : logits) x = -fabsf(x) - 100;
    const uint32_t room = rows + 1; /* of the launch; only `rows` of them count */
    gpu_buffer d(logits), result(std::vector<struct gpuk_token>(room, {7, 8})),
        counter(std::vector<uint32_t>{rows}), workspace(gpuk_argmax_workspace_bytes(room));
    std::vector<uint32_t> expected = {7, 8, 9, 10, 31, 32, 33, 34}; /* tokens, then positions */
    gpu_buffer block(expected);
    const struct gpuk_next next = {block.as<uint32_t>(), block.as<uint32_t>() + room};
    CUDA(cudaMemset(workspace.at, 0, gpuk_argmax_counter_bytes(room)));
    CUDA(cudaDeviceSynchronize());
    for (int run = 0; run < 2; run++) { /* the second finds the counters as the first left them */
        GPUK(gpuk_argmax(counter.as<uint32_t>(), room, d.as<float>(), vocab, result.as<struct gpuk_token>(),
                         run ? &next : NULL, workspace.at, 0, t->stream, &err));
    }
    CUDA(cudaStreamSynchronize(t->stream));
    auto best = result.read<struct gpuk_token>();
    for (uint32_t r = 0; r < rows; r++) expected[r] = best[r].id, expected[room + r] += 1;
    check(t, block.read<uint32_t>() == expected, "argmax: every row's next token and position");
    check(t, best[rows].id == 7 && best[rows].logit == 8, "argmax: a row that does not count is left alone");
    for (uint32_t r = 0; r < rows; r++) {
        const float *from = &logits[(size_t)r * vocab];
        std::vector<uint32_t> order;
        for (uint32_t i = 0; i < vocab; i++)
            if (isfinite(from[i])) order.push_back(i);
        std::stable_sort(order.begin(), order.end(),
                         [&](uint32_t a, uint32_t b) { return from[a] > from[b]; });
        bool good = order.empty() ? best[r].id == GPUK_TOKEN_NONE
                                  : best[r].id == order[0] && best[r].logit == from[order[0]];
        char what[100];
        snprintf(what, sizeof what, "argmax, vocab %u, kind %d, row %u", vocab, kind, r);
        check(t, good, what);
    }
}

/* ---- what a draw needs of a row ---------------------------------------------------------------------------
 */

/* The sum that sampling on the host has for this row. */
static uint64_t sum_on_host(const float *x, uint32_t vocab, float inv_temp)
{
    struct sampling_row row = {x, vocab, (vocab + SAMPLING_BLOCK - 1) / SAMPLING_BLOCK, 0, inv_temp};
    std::vector<float> block_max(row.blocks);
    sampling_find_maxima(&row, block_max.data());
    return row.top == -INFINITY ? 0 : sampling_find_weights(&row, block_max.data(), NULL);
}

/* Candidates, other logits and sums of rows in any order against the host; three kinds of requests take
 * turns. */
static void test_few(struct test_context *t, uint32_t vocab, int kind)
{
    const uint32_t rows = 5, asked[] = {3, 0, 4, 1}, count = 4;
    auto logits = random_floats(t, (size_t)rows * vocab, 20);
    for (uint32_t r = 0; r < rows; r++) {
        float *x = &logits[(size_t)r * vocab];
        for (uint32_t i = 0; i < vocab; i++) {
            if (kind == 1) x[i] = floorf(x[i] / 4); /* ties everywhere */
            if (kind == 2 && random_below(t, 3)) x[i] = i % 2 ? NAN : i % 4 ? INFINITY : -INFINITY;
            if (kind == 3) x[i] = -fabsf(x[i]) - 100;
            if (kind == 4) x[i] = 0.25f;                 /* all equal */
            if (kind == 5) x[i] = (float)i * 1e-3f - 30; /* rising */
            if (kind == 6 && i % 7 == 0) x[i] = -3e38f;  /* far away */
            if (kind == 7) x[i] = i == vocab / 2 ? -0.0f : -INFINITY;
            if (kind == 8) x[i] = (float)log(fabs(random_uniform(t)) + 1e-9); /* zeros of the range */
        }
        if (kind == 2 && r == 4)
            for (uint32_t i = 0; i < vocab; i++) x[i] = NAN;
    }
    std::vector<struct gpuk_few> few(count);
    gpu_buffer d(logits), rooms(count * sizeof(struct gpuk_few_room)),
        workspace(gpuk_few_workspace_bytes(count, vocab));
    CUDA(cudaMemset(workspace.at, 0, workspace.bytes));
    auto room = rooms.read<struct gpuk_few_room>();
    for (uint32_t i = 0; i < count; i++) {
        const uint32_t k[] = {20, 1, SAMPLING_FEW_MAX, 7};
        few[i] = {};
        few[i].row = asked[i];
        few[i].candidates = k[(i + (uint32_t)kind) % 4];
        few[i].changed = i * 100;
        few[i].sum = i != 1, few[i].model_sum = i > 1;
        few[i].inv_temp = i == 2 ? 1 / 0.6f : 0.5f;
        for (uint32_t j = 0; j < few[i].changed; j++) room[i].token[j] = random_below(t, vocab);
    }
    CUDA(cudaMemcpy(rooms.at, room.data(), rooms.bytes, cudaMemcpyHostToDevice));
    CUDA(cudaDeviceSynchronize());
    for (int run = 0; run < 2; run++) /* the second finds the counters as the first left them */
        GPUK(gpuk_few(few.data(), count, d.as<float>(), vocab, rooms.as<struct gpuk_few_room>(), workspace.at,
                      t->stream, &err));
    CUDA(cudaStreamSynchronize(t->stream));
    room = rooms.read<struct gpuk_few_room>();
    for (uint32_t i = 0; i < count; i++) {
        const float *from = &logits[(size_t)asked[i] * vocab];
        std::vector<uint32_t> order;
        for (uint32_t j = 0; j < vocab; j++)
            if (isfinite(from[j])) order.push_back(j);
        std::stable_sort(order.begin(), order.end(),
                         [&](uint32_t a, uint32_t b) { return from[a] > from[b]; });
        const struct gpuk_few_room &got = room[i];
        char what[120];
        snprintf(what, sizeof what, "candidates, vocab %u, kind %d, row %u, %u of %zu: %u found", vocab, kind,
                 asked[i], few[i].candidates, order.size(), got.found);
        bool good = got.found >= std::min<size_t>(few[i].candidates, order.size());
        if (got.found <= GPUK_FEW_ROOM) {
            /* the first ones, whichever order they came in, and all that tie with the last */
            std::vector<uint32_t> ids;
            good = good && got.found <= order.size() && (!got.all || got.found == order.size()) &&
                   (got.all || got.found >= few[i].candidates);
            for (uint32_t j = 0; j < got.found; j++) {
                uint32_t id = got.candidate[j].token;
                ids.push_back(id);
                good = good && id < vocab && memcmp(&got.candidate[j].logit, &from[id], 4) == 0;
            }
            std::vector<uint32_t> first(order.begin(),
                                        order.begin() + std::min<size_t>(got.found, order.size()));
            std::sort(ids.begin(), ids.end());
            std::sort(first.begin(), first.end());
            good = good && ids == first;
            if (good && got.found && got.found < order.size())
                good = from[order[got.found - 1]] > from[order[got.found]];
            if (kind == 0 && vocab > 50000) good = good && got.found < 2 * few[i].candidates + 60;
        } else {
            good = good && (kind == 1 || kind == 4 || kind == 5 || kind == 6 || order.size() > GPUK_FEW_ROOM);
        }
        check(t, good, what);
        good = true;
        for (uint32_t j = 0; j < few[i].changed; j++)
            good = good && memcmp(&got.logit[j], &from[got.token[j]], 4) == 0;
        snprintf(what, sizeof what, "other logits, vocab %u, kind %d, row %u", vocab, kind, asked[i]);
        check(t, good, what);
        uint64_t sum = sum_on_host(from, vocab, few[i].inv_temp), model_sum = sum_on_host(from, vocab, 1);
        good = (!few[i].sum || got.sum == sum) && (!few[i].model_sum || got.model_sum == model_sum);
        snprintf(what, sizeof what, "sums of weights, vocab %u, kind %d, row %u: %llu for %llu", vocab, kind,
                 asked[i], (unsigned long long)got.sum, (unsigned long long)sum);
        check(t, good, what);
    }
}

void test_select(struct test_context *t)
{
    for (int kind = 0; kind < 9; kind++) {
        test_few(t, 1, kind);
        test_few(t, 77, kind);
        test_few(t, 5003, kind);
        if (!t->small) test_few(t, 151936, kind);
        if (!t->small) test_few(t, 128257, kind);
    }
    for (int kind = 0; kind < 4; kind++) {
        test_logits(t, 5, kind);
        test_logits(t, 1003, kind);
        if (!t->small) test_logits(t, 151936, kind);
    }
}
