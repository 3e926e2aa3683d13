/* Invariant plans' demand of kernels (common/plan/schedule.h): a token has the same bits whichever others are
 * computed with it and at whatever place. This holds for few tokens' products, for decode and prefill
 * attention, and for the library's products.
 *
 * Each case is run once with all tokens, then with some of them in another order, the others gone or
 * different. */
#include "tests/gpu/harness.cuh"
#include "worker-gpu/kernels/chain/chains.h"

/* `n` rows of `width` from `from`, in an order. */
static std::vector<float> rows_of(const std::vector<float> &from, const std::vector<uint32_t> &order,
                                  size_t width)
{
    std::vector<float> to;
    for (uint32_t i : order) to.insert(to.end(), from.begin() + i * width, from.begin() + (i + 1) * width);
    return to;
}

/* Up to `most` different numbers below GPUK_BATCH_MAX. */
static std::vector<uint32_t> some_tokens(struct test_context *t, uint32_t most)
{
    std::vector<uint32_t> order(GPUK_BATCH_MAX);
    for (uint32_t i = 0; i < GPUK_BATCH_MAX; i++) order[i] = i;
    for (uint32_t i = GPUK_BATCH_MAX; i > 1; i--) std::swap(order[i - 1], order[random_below(t, i)]);
    order.resize(most);
    return order;
}

/* ---- few tokens' products ---- */

struct few_shape {
    int format;
    uint32_t rows, cols;
};

/* By a program with room for so many tokens. */
static std::vector<float> few(struct test_context *t, const gpu_buffer &weights, const gpu_buffer &norm,
                              const few_shape &shape, const std::vector<float> &x, uint32_t room)
{
    const uint32_t rows = shape.rows, cols = shape.cols;
    const uint32_t count = (uint32_t)(x.size() / cols);
    std::vector<float> all = x;
    all.resize((size_t)GPUK_BATCH_MAX * cols, NAN);
    gpu_buffer dx(all), dcount(std::vector<uint32_t>{count}),
        out((size_t)GPUK_BATCH_MAX * rows * sizeof(float)),
        workspace(gpuk_gemm_small_workspace_bytes(GPUK_BATCH_MAX, cols));
    CUDA(cudaMemset(workspace.at, 0, GPUK_LINEAR_COUNTER_BYTES));
    CUDA(cudaDeviceSynchronize());
    struct gpuk_linear_args args = {};
    args.format = (enum tensor_format)shape.format;
    args.cols = cols, args.segments = 1, args.x_stride = cols, args.out_stride = rows;
    args.segment[0] = {weights.at, nullptr, nullptr, out.as<float>(), rows};
    args.x = dx.as<float>(), args.norm = norm.as<float>(), args.eps = 1e-6f, args.steady = true;
    GPUK(gpuk_gemm_small(&t->device, &args, room, dcount.as<uint32_t>(), workspace.at, 0, t->stream, &err));
    CUDA(cudaStreamSynchronize(t->stream));
    auto got = out.read<float>();
    got.resize((size_t)count * rows);
    return got;
}

static void test_few(struct test_context *t, int format, uint32_t rows, uint32_t cols)
{
    char what[120];
    const few_shape shape = {format, rows, cols};
    const gpu_buffer weights(random_elements(t, (size_t)rows * cols, format)), norm(random_floats(t, cols));
    const auto x = random_floats(t, (size_t)GPUK_BATCH_MAX * cols);
    const auto all = few(t, weights, norm, shape, x, GPUK_BATCH_MAX);
    snprintf(what, sizeof what, "%s %u x %u: all tokens have numbers", name_of(format), rows, cols);
    check(t, std::all_of(all.begin(), all.end(), [](float v) { return std::isfinite(v); }), what);
    for (uint32_t count = 1; count <= GPUK_BATCH_MAX; count += t->small ? 7 : 1) {
        const auto order = some_tokens(t, count);
        snprintf(what, sizeof what, "%s %u x %u: %u of the tokens", name_of(format), rows, cols, count);
        check_same(t, few(t, weights, norm, shape, rows_of(x, order, cols), GPUK_BATCH_MAX),
                   rows_of(all, order, rows), what);
        if (count > GPU_STEADY_FEW) continue;
        snprintf(what, sizeof what, "%s %u x %u: %u of the tokens, in a program of 8", name_of(format), rows,
                 cols, count);
        check_same(t, few(t, weights, norm, shape, rows_of(x, order, cols), GPU_STEADY_FEW),
                   rows_of(all, order, rows), what);
    }
}

/* ---- attention ---- */

static const uint32_t HEADS = 8, KV_HEADS = 2, PAGE = 32;

struct attending {
    test_step step;
    struct kv_layout layout;
    uint32_t window, width, kv_width;
    enum gpuk_order order = GPUK_ORDER_ALONE;
    std::vector<float> q, k, v; /* of tokens' products, but for prefill, which takes q as it is */
    std::vector<unsigned char> cells;
    gpu_buffer pool, table, norms;

    attending(struct test_context *t, const std::vector<uint32_t> &start, const std::vector<uint32_t> &count,
              int dtype, uint32_t head_dim, uint32_t seen)
        : step(t, start, count, PAGE), layout{1, KV_HEADS, head_dim, PAGE, (uint32_t)dtype, 0}, window(seen),
          width(HEADS * head_dim), kv_width(KV_HEADS * head_dim),
          q(random_floats(t, (size_t)step.tokens * width, 3)),
          k(random_floats(t, (size_t)step.tokens * kv_width)), v(random_floats(t, k.size())),
          cells(random_cells(t, layout, step.pages)), pool(cells),
          table(random_floats(t, (size_t)step.tokens * head_dim)), norms(random_floats(t, 2 * head_dim, 2))
    {
    }
    /* Attention of tokens [first, first + count), which are one row of as many, or a row each. */
    struct gpuk_attention args(uint32_t first, uint32_t count, bool one_row)
    {
        struct gpuk_attention a = {};
        a.step = step.step;
        a.step.counts = step.device_copy({count, one_row ? 1 : count, 0});
        a.step.position += first, a.step.token_row += first;
        if (one_row) a.step.row_first = step.device_copy({0, count});
        a.kv = {layout, pool.at, nullptr, 0, 0};
        a.heads = HEADS, a.window = window, a.scale = (float)(1 / sqrt((double)layout.head_dim));
        a.q_stride = width;
        a.order = order;
        return a;
    }
};

/* Several tokens' rotation and append, then attention; one token's in one kernel; in a chain, between two
 * others' meetings. */
enum way { SEVERAL, FUSED, CHAINED };

static void run_chained(struct test_context *t, const struct gpuk_attention &a, float *out, void *workspace)
{
    struct gpuk_chain_op op[2] = {};
    for (struct gpuk_chain_op &o : op) o.kind = GPUK_CHAIN_ATTENTION, o.attention = {a, out};
    const gpu_buffer list(gpuk_chain_bytes(op, 2));
    struct gpuk_chain chain;
    check(t, gpuk_chain_takes(&t->device, &op[0]),
          "attention that is asked for in a chain's order is taken by one");
    GPUK(gpuk_chain_write(&t->device, op, 2, list.at, workspace, t->stream, &chain, &err));
    GPUK(gpuk_chain_run(&chain, 0, t->stream, &err));
    CUDA(cudaStreamSynchronize(t->stream));
}

static std::vector<float> decode(struct test_context *t, attending &x, uint32_t first, uint32_t count,
                                 enum way way = SEVERAL)
{
    const auto some = [&](const std::vector<float> &all, uint32_t width) {
        return std::vector<float>(all.begin() + (size_t)first * width,
                                  all.begin() + (size_t)(first + count) * width);
    };
    const gpu_buffer q(some(x.q, x.width)), k(some(x.k, x.kv_width)), v(some(x.v, x.kv_width)),
        turned((size_t)GPUK_BATCH_MAX * x.width * sizeof(float)),
        out((size_t)GPUK_BATCH_MAX * x.width * sizeof(float)),
        workspace(gpuk_attention_workspace_bytes(GPUK_BATCH_MAX, HEADS, x.layout.head_dim));
    const uint32_t head_dim = x.layout.head_dim,
                   room = count <= GPU_STEADY_FEW ? GPU_STEADY_FEW : GPUK_BATCH_MAX;
    CUDA(cudaMemset(workspace.at, 0, gpuk_attention_counter_bytes(GPUK_BATCH_MAX, HEADS)));
    CUDA(cudaMemcpy(x.pool.at, x.cells.data(), x.cells.size(), cudaMemcpyHostToDevice));
    CUDA(cudaDeviceSynchronize());
    struct gpuk_attention a = x.args(first, count, false);
    a.q = q.as<float>(), a.k = k.as<float>(), a.v = v.as<float>(), a.kv_stride = x.kv_width;
    a.q_norm = x.norms.as<float>(), a.k_norm = a.q_norm + head_dim, a.eps = 1e-6f;
    a.rope_table = x.table.as<float>() + (size_t)first * head_dim;
    if (way == SEVERAL) {
        GPUK(gpuk_rope_append(&a, room, turned.at, DTYPE_F32, 0, t->stream, &err));
        a.q = turned.as<float>();
    }
    if (way == CHAINED)
        run_chained(t, a, out.as<float>(), workspace.at);
    else
        GPUK(gpuk_attention_decode(&t->device, &a, way == FUSED ? 1 : room, way == FUSED, out.as<float>(),
                                   nullptr, nullptr, workspace.at, 0, t->stream, &err));
    CUDA(cudaStreamSynchronize(t->stream));
    auto got = out.read<float>();
    got.resize((size_t)count * x.width);
    return got;
}

static void test_decode(struct test_context *t, int dtype, uint32_t head_dim, uint32_t window,
                        enum gpuk_order order)
{
    const bool near = order == GPUK_ORDER_CHAINED_NEAR;
    const std::vector<uint32_t> start =
        t->small
            ? std::vector<uint32_t>{0, 70, near ? (uint32_t)GPU_APART_POSITION : 300}
            : std::vector<uint32_t>{0,    31, 70, 300, 1000, 2500, GPU_APART_POSITION - 1, GPU_APART_POSITION,
                                    4099, 17};
    attending x(t, start, std::vector<uint32_t>(start.size(), 1), dtype, head_dim, window);
    x.order = order;
    const auto all = decode(t, x, 0, x.step.tokens);
    char what[160];
    const int named = snprintf(what, sizeof what, "decode, %s, head_dim %u, window %u, order %d: ",
                               kv_dtype_name((enum kv_dtype)dtype), head_dim, window, (int)order);
    const auto say = [&](const char *more) {
        snprintf(what + named, sizeof what - named, "%s", more);
        return what;
    };
    check(t, std::all_of(all.begin(), all.end(), [](float v) { return std::isfinite(v); }),
          say("all have numbers"));
    for (uint32_t first = 0; first < x.step.tokens; first++) {
        const auto want = rows_of(all, {first}, x.width);
        char token[80];
        snprintf(token, sizeof token, "the token at %u alone", start[first]);
        check_same(t, decode(t, x, first, 1), want, say(token));
        snprintf(token, sizeof token, "the token at %u alone, in one kernel", start[first]);
        check_same(t, decode(t, x, first, 1, FUSED), want, say(token));
        snprintf(token, sizeof token, "the token at %u alone, in a chain", start[first]);
        const bool chained = near ? start[first] < GPU_APART_POSITION : order == GPUK_ORDER_CHAINED;
        if (chained) check_same(t, decode(t, x, first, 1, CHAINED), want, say(token));
    }
}

static std::vector<uint16_t> prefill(struct test_context *t, attending &x, uint32_t first, uint32_t count)
{
    std::vector<uint16_t> halves;
    for (size_t i = (size_t)first * x.width; i < (size_t)(first + count) * x.width; i++)
        halves.push_back(x.layout.dtype == KV_BF16 ? convert_f32_bf16(x.q[i]) : convert_f32_f16(x.q[i]));
    const gpu_buffer q(halves), out((size_t)count * x.width * 2);
    const struct gpuk_attention a = x.args(first, count, true);
    const struct gpuk_prefill prefill = {a,      q.at,
                                         out.at, DTYPE_BF16 == (int)x.layout.dtype ? DTYPE_BF16 : DTYPE_F16,
                                         1,      {},
                                         nullptr};
    GPUK(gpuk_attention_prefill(&t->device, &prefill, count, 0, t->stream, &err));
    CUDA(cudaStreamSynchronize(t->stream));
    return out.read<uint16_t>();
}

/* A prompt's tokens in one chunk, and in chunks of other sizes. */
static void test_prefill(struct test_context *t, int dtype, uint32_t head_dim, uint32_t window)
{
    attending x(t, {t->small ? 40u : 777u}, {t->small ? 70u : 300u}, dtype, head_dim, window);
    const auto all = prefill(t, x, 0, x.step.tokens);
    for (uint32_t first = 0, count = 1; first < x.step.tokens;
         first += count, count = 1 + random_below(t, 100)) {
        if (count > x.step.tokens - first) count = x.step.tokens - first;
        char what[120];
        snprintf(what, sizeof what, "prefill, %s, head_dim %u, window %u: %u tokens from %u on",
                 kv_dtype_name((enum kv_dtype)dtype), head_dim, window, count, first);
        const std::vector<uint16_t> want(all.begin() + (size_t)first * x.width,
                                         all.begin() + (size_t)(first + count) * x.width);
        check_same(t, prefill(t, x, first, count), want, what);
    }
}

/* ---- the library's products ---- */

#ifndef HELM_CUDA_EMULATED
/* Products of up to `tokens` tokens. */
static void test_products(struct test_context *t, struct gpuk_matmul *matmul, uint32_t rows, uint32_t cols,
                          uint32_t tokens)
{
    const gpu_buffer w(random_elements(t, (size_t)rows * cols, DTYPE_BF16)), workspace(GPUK_MATMUL_WORKSPACE);
    auto x = random_elements(t, (size_t)tokens * cols, DTYPE_BF16);
    const size_t row = (size_t)cols * 2;
    const struct gpuk_matmul_plan *plan;
    struct helm_err refusal = {};
    gpuk_matmul_steady(matmul, tokens);
    check(t,
          gpuk_matmul_plan(matmul, DTYPE_BF16, DTYPE_F32, 192, rows, cols, rows, false, &plan, &refusal) ==
              HELM_E_USAGE,
          "matmul: 192 tokens are refused, at which no algorithm was tried");
    GPUK(gpuk_matmul_plan(matmul, DTYPE_BF16, DTYPE_F32, tokens, rows, cols, rows, false, &plan, &err));
    const auto run = [&](const std::vector<unsigned char> &in) {
        const gpu_buffer dx(in), out((size_t)tokens * rows * sizeof(float));
        GPUK(gpuk_matmul_run(plan, w.at, dx.at, out.at, workspace.at, t->stream, &err));
        CUDA(cudaStreamSynchronize(t->stream));
        return out.read<float>();
    };
    const auto all = run(x);
    /* each token elsewhere, and half of them others */
    auto moved = random_elements(t, (size_t)tokens * cols, DTYPE_BF16);
    const uint32_t by = 1 + random_below(t, tokens - 1);
    for (uint32_t n = 0; n < tokens; n += 1 + n % 2)
        memcpy(&moved[(n + by) % tokens * row], &x[n * row], row);
    const auto got = run(moved);
    bool same = true;
    for (uint32_t n = 0; n < tokens; n += 1 + n % 2)
        same = same && memcmp(&got[(size_t)((n + by) % tokens) * rows], &all[(size_t)n * rows],
                              rows * sizeof(float)) == 0;
    char what[120];
    snprintf(what, sizeof what, "matmul %u x %u: %u tokens moved by %u", rows, cols, tokens, by);
    check(t, same, what);
    for (uint32_t few = GPU_STEADY_TOKENS; few < tokens; few += GPU_STEADY_TOKENS) {
        const gpu_buffer dx(x), out((size_t)tokens * rows * sizeof(float));
        GPUK(gpuk_matmul_plan(matmul, DTYPE_BF16, DTYPE_F32, few, rows, cols, rows, false, &plan, &err));
        GPUK(gpuk_matmul_run(plan, w.at, dx.at, out.at, workspace.at, t->stream, &err));
        CUDA(cudaStreamSynchronize(t->stream));
        auto some = out.read<float>();
        snprintf(what, sizeof what, "matmul %u x %u: the first %u tokens alone", rows, cols, few);
        check(t, memcmp(some.data(), all.data(), (size_t)few * rows * sizeof(float)) == 0, what);
    }
}
#endif

void test_invariant(struct test_context *t)
{
    const int formats[] = {FORMAT_BF16, FORMAT_F16, FORMAT_F32, FORMAT_Q8_0, FORMAT_Q4_K, FORMAT_Q6_K};
    const uint32_t shapes[][2] = {{96, 512}, {36, 4608}, {300, 4096}, {4096, 12288}};
    for (int format : formats)
        for (auto &s : shapes)
            if (!t->small || s[0] < 100) test_few(t, format, s[0], s[1]);
    for (int dtype : {(int)KV_BF16, (int)KV_F16, (int)KV_Q8_0, (int)KV_F32})
        for (uint32_t head_dim : {64u, 128u, 512u}) {
            if (t->small && head_dim != 128 && (head_dim != 512 || dtype != KV_F16)) continue;
            for (uint32_t window : {0u, 100u}) {
                test_decode(t, dtype, head_dim, window, GPUK_ORDER_ALONE);
                for (auto order : {GPUK_ORDER_CHAINED_NEAR, GPUK_ORDER_CHAINED})
                    if (t->device.bulk_copy && head_dim <= GPUK_CHAIN_HEAD_DIM_MAX &&
                        !(t->small && order == GPUK_ORDER_CHAINED))
                        test_decode(t, dtype, head_dim, window, order);
                if (dtype == KV_F32) continue; /* its queries are not of 16 bits */
                test_prefill(t, dtype, head_dim, window);
            }
        }
#ifndef HELM_CUDA_EMULATED
    struct gpuk_matmul *matmul;
    const uint32_t products[][2] = {{1024, 4096}, {4096, 4096}, {12288, 4096}, {4096, 12288}, {6144, 5120}};
    GPUK(gpuk_matmul_open(&matmul, &err));
    for (auto &s : products)
        for (uint32_t tokens : {GPU_STEADY_TOKENS, GPU_SUB_TOKENS})
            if (!t->small || s[0] == 1024) test_products(t, matmul, s[0], s[1], tokens);
    gpuk_matmul_close(matmul);
#endif
}
