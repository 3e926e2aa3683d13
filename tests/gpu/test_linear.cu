/* Linear layers of 1 to 16 tokens and prefill's matrix products against sums in double.
 *
 * Every dtype, each way a kernel can go (bulk copies or plain loads, tensor cores or not), odd shapes,
 * unaligned weights, all fusions. Tolerances: one token adds fp32 products in fp32, 1e-5 is some ten times
 * the rounding of 12,288 terms; tensor-core batches split activations in two 16-bit parts (2^-16 each);
 * products of cuBLASLt take the same 16-bit inputs as the reference. */
#include "tests/gpu/harness.cuh"
#include "worker-gpu/kernels/chain/chains.h"

struct linear_case {
    int dtype;
    uint32_t cols, segments, rows[GPUK_SEGMENTS_MAX], tokens, count;
    bool norm, bias, residual, swiglu, misaligned;
    uint32_t row = 0; /* a slice: its first row in a matrix that has as many rows again after it */
    float x_scale = 1;
};

static double silu_of(double x)
{
    return x / (1 + exp(-x));
}

/* Adds the products of two rows to sum, their sizes to size. Four sums at a time, which wait less for each
 * other. */
static void add_products(const double *a, const double *b, uint32_t count, double *sum, double *size)
{
    double s0 = 0, s1 = 0, s2 = 0, s3 = 0, z0 = 0, z1 = 0, z2 = 0, z3 = 0;
    uint32_t i = 0;
    for (; i + 4 <= count; i += 4) {
        const double p0 = a[i] * b[i], p1 = a[i + 1] * b[i + 1], p2 = a[i + 2] * b[i + 2],
                     p3 = a[i + 3] * b[i + 3];
        s0 += p0, s1 += p1, s2 += p2, s3 += p3;
        z0 += fabs(p0), z1 += fabs(p1), z2 += fabs(p2), z3 += fabs(p3);
    }
    for (; i < count; i++) s0 += a[i] * b[i], z0 += fabs(a[i] * b[i]);
    *sum += s0 + s1 + (s2 + s3);
    *size += z0 + z1 + (z2 + z3);
}

/* out of one case as the definition has it: [segment or 1][count][rows]. terms: what check_close takes. */
static std::vector<std::vector<double>> reference(const linear_case &c,
                                                  const std::vector<std::vector<double>> &w,
                                                  const std::vector<std::vector<float>> &bias,
                                                  const std::vector<float> &x, const std::vector<float> &norm,
                                                  const std::vector<float> &residual,
                                                  std::vector<std::vector<double>> *terms)
{
    std::vector<std::vector<double>> out(c.segments);
    terms->assign(c.segments, {});
    for (uint32_t t = 0; t < c.count; t++) {
        std::vector<double> h(c.cols);
        double squares = 0;
        for (uint32_t i = 0; i < c.cols; i++) squares += (double)x[t * c.cols + i] * x[t * c.cols + i];
        double scale = 1 / sqrt(squares / c.cols + 1e-6);
        for (uint32_t i = 0; i < c.cols; i++)
            h[i] = c.norm ? (double)x[t * c.cols + i] * scale * norm[i] : (double)x[t * c.cols + i];
        for (uint32_t s = 0; s < c.segments; s++)
            for (uint32_t r = 0; r < c.rows[s]; r++) {
                double sum = c.bias ? (double)bias[s][r] : 0, size = fabs(sum);
                add_products(&w[s][(size_t)r * c.cols], h.data(), c.cols, &sum, &size);
                if (c.residual) sum += residual[t * c.rows[0] + r], size += fabs(residual[t * c.rows[0] + r]);
                out[s].push_back(sum);
                (*terms)[s].push_back(size);
            }
    }
    if (c.swiglu) {
        for (size_t i = 0; i < out[0].size(); i++) { /* silu is at most 1.1 times as steep as its argument */
            const double gate = silu_of(out[0][i]);
            (*terms)[0][i] = 1.1 * (*terms)[0][i] * fabs(out[1][i]) + fabs(gate) * (*terms)[1][i];
            out[0][i] = gate * out[1][i];
        }
        out.resize(1), terms->resize(1);
    }
    return out;
}

static void run_case(struct test_context *t, const linear_case &c, const struct gpuk_device *device,
                     double tolerance, const char *path, int runs = 2)
{
    char what[200];
    snprintf(what, sizeof what, "%s %s %u x %u from row %u (%u matrices), %u of %u tokens%s%s%s%s%s", path,
             name_of(c.dtype), c.rows[0], c.cols, c.row, c.segments, c.count, c.tokens, c.norm ? " norm" : "",
             c.bias ? " bias" : "", c.residual ? " residual" : "", c.swiglu ? " swiglu" : "",
             c.misaligned ? " misaligned" : "");
    std::vector<std::vector<double>> w;
    std::vector<std::vector<float>> bias;
    std::vector<gpu_buffer *> weights, biases, outs;
    /* A slice's neighbours are NaN: a kernel that reads one of their rows gives NaN. */
    const size_t before = c.row * (size_t)tensor_format_row_bytes((enum tensor_format)c.dtype, c.cols);
    const size_t shift = before + (c.misaligned ? bytes_of(c.dtype) : 0);
    for (uint32_t s = 0; s < c.segments; s++) {
        auto elements = random_elements(t, (size_t)c.rows[s] * c.cols, c.dtype);
        w.push_back(to_double(elements, c.dtype));
        elements.insert(elements.begin(), shift, 0xff);
        elements.insert(elements.end(), before, 0xff);
        weights.push_back(new gpu_buffer(elements));
        bias.push_back(random_floats(t, c.rows[s]));
        biases.push_back(new gpu_buffer(bias.back()));
    }
    auto x = random_floats(t, (size_t)c.tokens * c.cols, c.x_scale), norm = random_floats(t, c.cols);
    auto residual = random_floats(t, (size_t)c.tokens * c.rows[0]);
    gpu_buffer dx(x), dnorm(norm), dresidual(residual), count(std::vector<uint32_t>{c.count});
    size_t workspace_bytes =
        c.tokens == 1 ? gpuk_gemv_workspace_bytes(c.cols) : gpuk_gemm_small_workspace_bytes(c.tokens, c.cols);
    gpu_buffer workspace(workspace_bytes);
    CUDA(cudaMemset(workspace.at, 0, GPUK_LINEAR_COUNTER_BYTES));
    CUDA(cudaDeviceSynchronize());

    std::vector<std::vector<double>> terms;
    auto expected = reference(c, w, bias, x, norm, residual, &terms);
    if (tolerance > 1e-5) /* x in two 16-bit parts: eight times fp32's rounding of a term */
        for (auto &sizes : terms)
            for (double &size : sizes) size *= 8;
    std::vector<std::vector<float>> first;
    for (int run = 0; run < runs; run++) {
        struct gpuk_linear_args args = {};
        args.format = (enum tensor_format)c.dtype;
        args.cols = c.cols;
        args.segments = c.segments;
        std::vector<gpu_buffer *> out;
        for (uint32_t s = 0; s < c.segments; s++) {
            out.push_back(new gpu_buffer((size_t)c.tokens * c.rows[0] * sizeof(float)));
            args.segment[s] = {weights[s]->as<char>() + shift, nullptr,
                               c.bias ? biases[s]->as<float>() : nullptr, out[s]->as<float>(), c.rows[s]};
        }
        args.x = dx.as<float>();
        args.norm = c.norm ? dnorm.as<float>() : nullptr;
        args.eps = 1e-6f;
        args.residual = c.residual ? dresidual.as<float>() : nullptr;
        args.swiglu = c.swiglu;
        args.x_stride = c.cols;
        args.out_stride = c.rows[0];
        if (strstr(path, "stream") && run == 0)
            check(t, strcmp(gpuk_linear_kernel(device, &args, GPUK_FEW), "stream") == 0, what);
        if (c.tokens == 1)
            GPUK(gpuk_gemv(device, &args, workspace.at, 0, t->stream, &err));
        else
            GPUK(gpuk_gemm_small(device, &args, c.tokens, count.as<uint32_t>(), workspace.at, 0, t->stream,
                                 &err));
        CUDA(cudaStreamSynchronize(t->stream));
        for (uint32_t s = 0; s < expected.size(); s++) {
            auto all = out[s]->read<float>();
            std::vector<float> got;
            for (uint32_t n = 0; n < c.count; n++)
                got.insert(got.end(), all.begin() + (size_t)n * c.rows[0],
                           all.begin() + (size_t)n * c.rows[0] + c.rows[s]);
            bool kept = true; /* tokens beyond the count are not written */
            for (size_t i = (size_t)c.count * c.rows[0]; i < all.size(); i++) kept = kept && isnan(all[i]);
            check(t, kept, what);
            if (run == 0) {
                check_close(t, got, expected[s], tolerance, what, &terms[s]);
                first.push_back(got);
            } else {
                check_same(t, got, first[s], what);
            }
        }
        for (gpu_buffer *b : out) delete b;
    }
    const auto left = workspace.read<unsigned char>();
    const size_t counters = GPUK_LINEAR_COUNTER_BYTES;
    check(t, std::count(left.begin(), left.begin() + counters, 0) == (ptrdiff_t)counters, what);
    for (gpu_buffer *b : weights) delete b;
    for (gpu_buffer *b : biases) delete b;
}

static void test_shapes(struct test_context *t, int dtype, uint32_t rows, uint32_t cols)
{
    struct gpuk_device plain = t->device, tensor = t->device, all = t->device;
    all.gemm_integer = 3; /* blocks by whole numbers, whatever is faster; test_streams has the other way */
    plain.bulk_copy = tensor.bulk_copy = false;
    plain.tensor_cores = false;
    const linear_case modes[] = {
        {dtype, cols, 1, {rows}, 1, 1, false, false, false, false, false},
        {dtype, cols, 1, {rows}, 1, 1, true, true, true, false, false},
        {dtype, cols, 3, {rows, rows / 3 + 1, rows / 3 + 1}, 1, 1, true, true, false, false, false},
        {dtype,
         cols,
         4,
         {rows, rows / 3 + 1, rows / 5 + 1, rows / 7 + 1},
         1,
         1,
         true,
         false,
         false,
         false,
         false},
        {dtype, cols, 2, {rows, rows}, 1, 1, true, false, false, true, false},
        {dtype, cols, 2, {rows, rows}, 1, 1, false, true, false, true, true},
    };
    for (const linear_case &mode : modes) {
        run_case(t, mode, &t->device, 1e-5, "gemv");
        if (!mode.misaligned) run_case(t, mode, &plain, 1e-5, "gemv plain");
        const uint32_t tiers[][2] = {{2, 2}, {8, 5}, {16, 16}, {16, 9}};
        for (auto &tier : tiers) {
            linear_case c = mode;
            if (t->small && tier[1] != 5 && (tier[1] != 9 || t->few)) continue;
            /* matrices of different rows share one stride */
            c.tokens = tier[0], c.count = tier[1];
            run_case(t, c, &all, dtype == DTYPE_F32 || (c.misaligned && dtype < DTYPE_COUNT) ? 1e-5 : 5e-5,
                     "gemm");
            if (!mode.misaligned && tier[1] == 5) run_case(t, c, &plain, 1e-5, "gemm plain");
            if (!mode.misaligned && dtype != DTYPE_F32) run_case(t, c, &tensor, 5e-5, "gemm tensor");
        }
    }
}

/* Slices of a matrix: few rows, from any multiple of 16 on, results into the middle of a vector. */
static void test_slices(struct test_context *t, int dtype)
{
    struct gpuk_device plain = t->device, few_threads = t->device, small_blocks = t->device;
    plain.bulk_copy = plain.tensor_cores = false;
    few_threads.sm_count = 3;                 /* several tiles a warp, and a batch of sums */
    small_blocks.shared_bytes_max = 99 << 10; /* as 8.6, 8.9 and 12.0 have it */
    const uint32_t block = tensor_format_of((enum tensor_format)dtype)->block_values;
    const uint32_t cols = t->small ? 264 / block * block : 4096,
                   long_cols = t->small ? 2056 / block * block : 12288;
    const uint32_t rows[] = {16, 48, 128, 1040, 4096};
    for (uint32_t n : rows) {
        if (t->small && n > (t->few ? 16 : 48)) break;
        const uint32_t row = n == 16 ? 16 : n == 48 ? 1040 : 208;
        const linear_case modes[] = {
            {dtype, cols, 3, {n, n / 3 + 1, n / 3 + 1}, 1, 1, true, true, false, false, false, row},
            {dtype, cols, 2, {n, n}, 1, 1, true, true, false, true, false, row},
            {dtype, long_cols, 1, {n}, 1, 1, false, false, true, false, false, row},
            {dtype, cols, 1, {n}, 1, 1, false, true, true, false, false, row},
        };
        for (const linear_case &mode : modes) {
            const bool large = (uint64_t)n * mode.cols > (2u << 20); /* the reference takes its time */
            if (large && !mode.swiglu) continue;
            run_case(t, mode, &t->device, 1e-5, "gemv slice");
            run_case(t, mode, &few_threads, 1e-5, "gemv slice, 3 blocks");
            if (large) continue;
            run_case(t, mode, &small_blocks, 1e-5, "gemv slice, 99 KiB");
            run_case(t, mode, &plain, 1e-5, "gemv plain slice");
            linear_case c = mode;
            c.tokens = 16, c.count = n == 48 ? 16 : 5;
            run_case(t, c, &t->device, dtype == DTYPE_F32 ? 1e-5 : 5e-5, "gemm slice");
            if (n <= 128) run_case(t, c, &plain, 1e-5, "gemm plain slice");
        }
    }
}

/* Full rings, several batches of sums and few blocks, again and again: a slot that is filled before it has
 * been read shows as other bits, once in some thousand runs. */
static void test_repeats(struct test_context *t)
{
    struct gpuk_device few = t->device;
    few.sm_count = 3;
    const int runs = t->stress ? 3000 : t->small ? 3 : 50, before = t->failures;
    const uint32_t rows = t->small ? 130 : 1040, cols = t->small ? 1032 : 4096;
    run_case(t, {DTYPE_F32, cols, 2, {rows, rows}, 1, 1, true, true, false, true, false, 208}, &few, 1e-5,
             "gemv slice, repeated", runs);
    if (t->stress)
        printf("slice of %u x %u, f32, 3 blocks: %d of %d runs gave other bits\n", rows, cols,
               t->failures - before, runs);
}

/* The streamed gemm's ways: rings of one slot and of many, slices and shares of all sizes, few blocks, all
 * counts of warps that copy and add, batches of all sizes; rows that end within a line; matrices taken in
 * parts. */
static void test_streams(struct test_context *t, int dtype)
{
    const uint32_t block = tensor_format_of((enum tensor_format)dtype)->block_values;
    const auto whole = [&](uint32_t cols) { return cols < block ? block : cols / block * block; };
    const struct {
        int sms, slots, slices, producers, reducers, batch, blocks;
    } ways[] = {{6, 0, 0, 0, 0, 0, 0},  {2, 1, 0, 1, 2, 1, 1},  {3, 2, 3, 2, 2, 2, 2},
                {7, 3, 2, 2, 3, 3, 1},  {1, 16, 1, 2, 4, 4, 2}, {132, 0, 5, 2, 6, 5, 1},
                {3, 0, 0, 1, 4, 100, 2}};
    int turn = dtype; /* small: of a format each way with few tokens or with all, of the next the other */
    for (auto &way : ways)
        for (uint32_t tokens : {3u, 16u}) {
            if (t->few && (tokens == 3 || way.sms < 3 || way.sms > 7)) continue;
            if (tokens == 3) turn++;
            if (t->small && !t->few && (turn % 2 == 0) == (tokens == 3)) continue;
            struct gpuk_device d = t->device;
            d.sm_count = way.sms, d.gemm_slots = way.slots, d.gemm_slices = way.slices;
            d.gemm_producers = way.producers, d.gemm_reducers = way.reducers;
            d.gemm_batch = way.batch, d.gemm_blocks = way.blocks, d.gemm_ahead = way.slots;
            d.gemm_integer = -1;
            const uint32_t count = tokens - (way.slots & 1), rows = t->small ? 70 : 430;
            run_case(t, {dtype, whole(1000), 1, {rows}, tokens, count, true, true, true, false, false}, &d,
                     5e-5, "gemm stream");
            run_case(t, {dtype, whole(2056), 2, {71, 71}, tokens, count, true, true, false, true, false, 16},
                     &d, 5e-5, "gemm stream");
            run_case(t,
                     {dtype, whole(56), 3, {rows, 33, 17}, tokens, count, false, false, false, false, false},
                     &d, 5e-5, "gemm stream");
            for (float scale : {2e-6f, 3e6f}) /* beyond what f16 has */
                run_case(
                    t,
                    {dtype, whole(264), 1, {40}, tokens, count, false, false, false, false, false, 0, scale},
                    &d, 5e-5, "gemm stream");
            if (t->small) continue;
            run_case(t, {dtype, 12288, 1, {67}, tokens, count, false, false, true, false, false}, &d, 5e-5,
                     "gemm stream");
        }
    if (t->small) return;
    struct gpuk_device parts = t->device;
    parts.gemm_slices = 2, parts.gemm_integer = -1;
    run_case(t, {dtype, whole(128), 1, {64000}, 16, 11, true, true, true, false, false}, &parts, 5e-5,
             "gemm stream, parts");
}

#ifndef HELM_CUDA_EMULATED
struct matmul_case {
    uint32_t tokens, rows, cols;
    bool accumulate;
};
static void test_matmul(struct test_context *t, struct gpuk_matmul *matmul, int dtype, int out_dtype,
                        const struct matmul_case &c)
{
    const uint32_t tokens = c.tokens, rows = c.rows, cols = c.cols;
    const bool accumulate = c.accumulate;
    char what[160];
    snprintf(what, sizeof what, "matmul %s to %s, %u x %u, %u tokens%s", name_of(dtype), name_of(out_dtype),
             rows, cols, tokens, accumulate ? ", accumulate" : "");
    const uint32_t stride = rows + 8;
    auto w = random_elements(t, (size_t)rows * cols, dtype),
         x = random_elements(t, (size_t)tokens * cols, dtype);
    auto out = random_elements(t, (size_t)tokens * stride, out_dtype);
    auto dw = to_double(w, dtype), dx = to_double(x, dtype), expected = to_double(out, out_dtype);
    for (uint32_t n = 0; n < tokens; n++)
        for (uint32_t r = 0; r < rows; r++) {
            double sum = accumulate ? expected[n * stride + r] : 0;
            for (uint32_t c = 0; c < cols; c++) sum += dw[(size_t)r * cols + c] * dx[(size_t)n * cols + c];
            expected[n * stride + r] = sum;
        }
    gpu_buffer gw(w), gx(x), gout(out), workspace(GPUK_MATMUL_WORKSPACE);
    const struct gpuk_matmul_plan *plan;
    GPUK(gpuk_matmul_plan(matmul, (enum dtype)dtype, (enum dtype)out_dtype, tokens, rows, cols, stride,
                          accumulate, &plan, &err));
    GPUK(gpuk_matmul_run(plan, gw.at, gx.at, gout.at, workspace.at, t->stream, &err));
    CUDA(cudaStreamSynchronize(t->stream));
    double tolerance = out_dtype == DTYPE_BF16 ? 4e-3 : out_dtype == DTYPE_F16 ? 5e-4 : 1e-5;
    check_close(t, to_double(gout.read<unsigned char>(), out_dtype), expected, tolerance, what);
}
#endif

void test_linear(struct test_context *t)
{
    test_repeats(t);
    const uint32_t shapes[][2] = {{1, 1},     {3, 7},      {17, 40},   {65, 96},
                                  {130, 520}, {257, 1001}, {31, 4104}, {300, 4096}};
    const uint32_t small[][2] = {{3, 7}, {65, 96}, {30, 1048}};
    for (int dtype = 0; dtype < DTYPE_COUNT; dtype++) {
        if (t->small)
            for (auto &s : small) {
                if (!t->few || s[0] == 65) test_shapes(t, dtype, s[0], s[1]);
            }
        else
            for (auto &s : shapes) test_shapes(t, dtype, s[0], s[1]);
        test_slices(t, dtype);
        if (dtype != DTYPE_F32) test_streams(t, dtype);
        struct gpuk_device few = t->device; /* two blocks: full rings and several batches of sums each */
        few.sm_count = 2;
        const struct {
            int warps, tile, slots, ahead;
            bool contiguous;
        } ways[] = {{8, 1024, 4, 0, true},
                    {8, 2048, 2, -1, false},
                    {16, 1024, 2, 1 << 18, false},
                    {16, 2048, 1, 0, true}};
        for (auto &way : ways) {
            if (t->few && way.slots != 2) continue;
            few.gemv_warps = way.warps, few.gemv_tile_bytes = way.tile, few.gemv_slots = way.slots;
            few.gemv_ahead_bytes = way.ahead, few.gemv_contiguous = way.contiguous;
            run_case(t, {dtype, 8200, 2, {71, 71}, 1, 1, true, true, false, true, false}, &few, 1e-5,
                     "gemv, 2 blocks");
        }
        /* long rows; x too large for shared memory; more pairs than blocks */
        if (t->small) continue;
        run_case(t, {dtype, 12288, 1, {67}, 1, 1, false, false, true, false, false}, &t->device, 1e-5,
                 "gemv");
        run_case(t, {dtype, 65536, 1, {9}, 1, 1, true, true, false, false, false}, &t->device, 2e-5, "gemv");
        run_case(t, {dtype, 256, 2, {9000, 9000}, 16, 13, true, true, false, true, false}, &t->device, 5e-5,
                 "gemm");
    }
#ifndef HELM_CUDA_EMULATED /* cuBLASLt is not emulated */
    struct gpuk_matmul *matmul;
    GPUK(gpuk_matmul_open(&matmul, &err));
    for (int dtype = 0; dtype < DTYPE_COUNT && !t->small; dtype++)
        for (int wide = 0; wide < 2; wide++) {
            int out = wide ? DTYPE_F32 : dtype;
            test_matmul(t, matmul, dtype, out, {33, 72, 136, false});
            test_matmul(t, matmul, dtype, out, {128, 256, 512, true});
            test_matmul(t, matmul, dtype, out, {17, 64, 66, false});
        }
    gpuk_matmul_close(matmul);
#endif

    struct gpuk_linear_args bad = {};
    struct helm_err err = {};
    bad.cols = 8, bad.segments = GPUK_SEGMENTS_MAX + 1;
    check(t, gpuk_gemv(&t->device, &bad, NULL, 0, t->stream, &err) == HELM_E_LIMIT,
          "five matrices are refused");
    bad.segments = 1, bad.segment[0].rows = 8;
    check(t, gpuk_gemm_small(&t->device, &bad, 17, NULL, NULL, 0, t->stream, &err) == HELM_E_LIMIT,
          "17 tokens are refused");
}

/* ---- formats of blocks
 * ---------------------------------------------------------------------------------- */

/* A slice of a matrix expanded, in two parts; rows of its neighbours stand for an embedding. */
static void test_blocks_read(struct test_context *t, enum tensor_format format, uint32_t rows, uint32_t cols)
{
    const uint32_t first = rows / 3, row_bytes = (uint32_t)tensor_format_row_bytes(format, cols);
    const auto blocks = random_elements(t, (size_t)rows * cols, format);
    const auto values = to_double(blocks, format);
    gpu_buffer weights(blocks), out((size_t)rows * cols * 2 + 64), x((size_t)rows * cols * 4);
    struct gpuk_expand_part part[2] = {{format, weights.at, nullptr, out.at, first, cols},
                                       {format, weights.as<char>() + first * row_bytes, nullptr,
                                        out.as<uint16_t>() + (size_t)first * cols, rows - first, cols}};
    GPUK(gpuk_expand(&t->device, first ? part : part + 1, first ? 2 : 1, 2, t->stream, &err));
    std::vector<uint32_t> ids(rows);
    for (uint32_t r = 0; r < rows; r++) ids[r] = rows - 1 - r;
    gpu_buffer count(std::vector<uint32_t>{rows}), tokens(ids);
    struct gpuk_step step = {};
    step.counts = count.as<uint32_t>(), step.token_id = tokens.as<uint32_t>();
    GPUK(gpuk_embed(&step, rows, weights.at, format, rows, cols, 1, x.as<float>(), 0, t->stream, &err));
    CUDA(cudaStreamSynchronize(t->stream));
    const auto got = out.read<uint16_t>();
    const auto embedded = x.read<float>();
    size_t wrong = 0;
    for (size_t i = 0; i < got.size(); i++)
        wrong += got[i] != (i < values.size() ? convert_f32_bf16((float)values[i]) : 0xffff);
    char what[120];
    snprintf(what, sizeof what, "expand %s %u x %u: %zu values wrong", name_of(format), rows, cols, wrong);
    check(t, wrong == 0, what);
    wrong = 0;
    for (size_t i = 0; i < values.size(); i++)
        wrong += embedded[i] != (float)values[(size_t)ids[i / cols] * cols + i % cols];
    snprintf(what, sizeof what, "embed %s %u x %u: %zu values wrong", name_of(format), rows, cols, wrong);
    check(t, wrong == 0, what);
}

/* Rows that begin on 16 bytes and that do not, of part of a line and of several; one block and many; the ways
 * of the bulk kernel. */
static void test_format(struct test_context *t, enum tensor_format format)
{
    const uint32_t block = tensor_format_of(format)->block_values;
    const uint32_t shapes[][2] = {{17, 2560}, {1, block},      {3, 2 * block},
                                  {30, 1280}, {65, 3 * block}, {300, 4096}};
    const bool loose = tensor_format_of(format)->block_bytes % 16 != 0;
    struct gpuk_device few = t->device;
    char what[120];
    for (uint32_t i = 0; i < (t->few ? 1u : t->small ? 3u : 6u); i++) {
        test_shapes(t, format, shapes[i][0], shapes[i][1]);
        test_blocks_read(t, format, shapes[i][0], shapes[i][1]);
    }
    if (!t->few) test_slices(t, format);
    test_streams(t, format);
    few.sm_count = 2;
    for (int way = 0; way < (t->few ? 1 : 4); way++) {
        few.gemv_warps = way & 1 ? 16 : 8, few.gemv_slots = 1 + way;
        run_case(t, {format, way & 2 ? 8448u : 4864u, 2, {71, 71}, 1, 1, true, true, false, true, false},
                 &few, 1e-5, "gemv, 2 blocks");
    }
    struct gpuk_linear_args args = {};
    args.format = format, args.cols = 256, args.segments = 1, args.segment[0].rows = 64;
    snprintf(what, sizeof what, "%s is streamed by bulk copies", name_of(format));
    for (int word = 0; word < 2; word++) {
        const bool bulk = t->device.bulk_copy && (loose || word == 0);
        args.segment[0].weight = (const void *)(uintptr_t)(256 + 4 * word);
        check(t, strcmp(gpuk_linear_kernel(&t->device, &args, GPUK_ONE), bulk ? "once" : "plain") == 0, what);
    }
    snprintf(what, sizeof what, "%s is expanded for a chunk, and has no rows of 40 columns", name_of(format));
    check(t, !gpuk_linear_takes(&t->device, &args, GPUK_CHUNK), what);
    args.cols = 40;
    check(t, !gpuk_linear_takes(&t->device, &args, GPUK_ONE), what);
    if (t->small) return;
    run_case(t, {format, 12288, 1, {67}, 1, 1, false, false, true, false, false}, &t->device, 1e-5, "gemv");
    run_case(t, {format, 9728, 1, {2560}, 1, 1, false, false, true, false, false}, &t->device, 1e-5, "gemv");
}
/* FP8 has the schedules of any values: rows of one block and of several, one and several tokens, slices. */
static void test_fp8(struct test_context *t)
{
    const uint32_t shapes[][2] = {{17, 2560}, {1, 128}, {30, 1280}, {300, 4096}};
    for (uint32_t i = 0; i < (t->few ? 1u : t->small ? 3u : 4u); i++) {
        const uint32_t rows = shapes[i][0], cols = shapes[i][1];
        test_blocks_read(t, FORMAT_FP8, rows, cols);
        run_case(t, {FORMAT_FP8, cols, 1, {rows}, 1, 1, true, true, true, false, false}, &t->device, 1e-5,
                 "gemv");
        run_case(t, {FORMAT_FP8, cols, 2, {rows, rows}, 1, 1, false, true, false, true, false}, &t->device,
                 1e-5, "gemv");
        run_case(t, {FORMAT_FP8, cols, 3, {rows + 6, 7, 2}, 1, 1, true, false, false, false, false, rows},
                 &t->device, 1e-5, "gemv");
        run_case(t, {FORMAT_FP8, cols, 1, {rows}, 16, 13, true, true, true, false, false}, &t->device, 1e-5,
                 "gemm");
        run_case(t, {FORMAT_FP8, cols, 2, {rows, rows}, 4, 3, false, true, false, true, false}, &t->device,
                 1e-5, "gemm");
    }
    struct gpuk_linear_args args = {};
    args.format = FORMAT_FP8, args.cols = 256, args.segments = 1, args.segment[0].rows = 64;
    args.segment[0].weight = (const void *)(uintptr_t)256;
    check(t,
          strcmp(gpuk_linear_kernel(&t->device, &args, GPUK_ONE), "plain") == 0 &&
              strcmp(gpuk_linear_kernel(&t->device, &args, GPUK_FEW), "plain") == 0,
          "fp8 is multiplied by the plain kernels");
    check(t,
          !gpuk_linear_takes(&t->device, &args, GPUK_CHUNK) &&
              !gpuk_linear_takes(&t->device, &args, GPUK_SHORT),
          "fp8 is expanded for a chunk");
    struct gpuk_chain_op op = {};
    op.kind = GPUK_CHAIN_LINEAR, op.linear = args;
    check(t, !gpuk_chain_takes(&t->device, &op), "no chain takes fp8");
}
void test_blocks(struct test_context *t)
{
    test_fp8(t);
    for (int format = FORMAT_Q8_0; format < FORMAT_COUNT; format++)
        test_format(t, (enum tensor_format)format);
}
