/* Matrices by columns beside chains (worker-gpu/kernels/columns.cu): the kernel that puts them so bit for
 * bit, and small batches as pairs of 16-bit parts against sums in double. cuBLASLt's product between the
 * parts is cuBLASLt's where there is a GPU; where it is emulated, the host's. */
#include "tests/gpu/harness.cuh"

static void test_transpose(struct test_context *t, uint32_t rows, uint32_t cols, uint32_t to_rows,
                           uint32_t first, bool misaligned)
{
    char what[120];
    snprintf(what, sizeof what, "transpose %u x %u to rows %u on of %u%s", rows, cols, first, to_rows,
             misaligned ? ", misaligned" : "");
    const size_t shift = misaligned ? 1 : 0, count = (size_t)rows * cols;
    void *memory = NULL; /* the device reads the host's memory where it lies */
    CUDA(cudaHostAlloc(&memory, (count + shift) * 2, cudaHostAllocMapped));
    uint16_t *from = (uint16_t *)memory + shift;
    for (size_t i = 0; i < count; i++) from[i] = (uint16_t)random_below(t, 0xffff);
    gpu_buffer to((size_t)to_rows * cols * 2);
    GPUK(gpuk_transpose(from, rows, cols, to.as<uint16_t>() + first, to_rows, t->stream, &err));
    CUDA(cudaStreamSynchronize(t->stream));
    const auto got = to.read<uint16_t>();
    bool same = true, kept = true;
    for (uint32_t c = 0; c < cols; c++)
        for (uint32_t r = 0; r < to_rows; r++) {
            const uint16_t v = got[(size_t)c * to_rows + r];
            if (r >= first && r < first + rows)
                same = same && v == from[(size_t)(r - first) * cols + c];
            else
                kept = kept && v == 0xffff;
        }
    check(t, same, what);
    check(t, kept, what);
    CUDA(cudaFreeHost(memory));
}

struct batch_case {
    int dtype;
    uint32_t rows, cols, tokens, count;
    bool bias, residual;
    float x_scale;
    uint32_t x_more, out_more; /* strides beyond what is dense */
};

/* What stands in `sums` between split and join; host arithmetic where cuBLASLt is not emulated. */
static void multiply(struct test_context *t, struct gpuk_matmul *matmul, const batch_case &c,
                     const std::vector<unsigned char> &by_columns, const gpu_buffer &w,
                     const struct gpuk_parts &parts, const gpu_buffer &x, gpu_buffer &sums)
{
#ifndef HELM_CUDA_EMULATED
    gpu_buffer workspace(GPUK_MATMUL_WORKSPACE);
    const struct gpuk_matmul_plan *plan;
    GPUK(gpuk_matmul_plan(matmul, (enum dtype)c.dtype, DTYPE_F32, 2 * c.tokens, c.rows, c.cols, c.rows, false,
                          true, &plan, &err));
    GPUK(gpuk_matmul_run(plan, w.at, parts.x, parts.sums, workspace.at, t->stream, &err));
    CUDA(cudaStreamSynchronize(t->stream));
    (void)by_columns, (void)x, (void)sums;
#else
    (void)matmul, (void)w, (void)parts, (void)t;
    const auto matrix = to_double(by_columns, c.dtype), in = to_double(x.read<unsigned char>(), c.dtype);
    std::vector<float> out;
    for (uint32_t n = 0; n < 2 * c.tokens; n++)
        for (uint32_t r = 0; r < c.rows; r++) {
            double sum = 0;
            for (uint32_t i = 0; i < c.cols; i++)
                sum += matrix[(size_t)i * c.rows + r] * in[(size_t)n * c.cols + i];
            out.push_back((float)sum);
        }
    CUDA(cudaMemcpy(sums.at, out.data(), out.size() * sizeof(float), cudaMemcpyHostToDevice));
    CUDA(cudaDeviceSynchronize());
#endif
}

static void test_batch(struct test_context *t, struct gpuk_matmul *matmul, const batch_case &c)
{
    char what[160];
    snprintf(what, sizeof what, "by columns, %s %u x %u, %u of %u tokens%s%s, x of %g, strides + %u, + %u",
             name_of(c.dtype), c.rows, c.cols, c.count, c.tokens, c.bias ? " bias" : "",
             c.residual ? " residual" : "", (double)c.x_scale, c.x_more, c.out_more);
    const uint32_t x_stride = c.cols + c.x_more, out_stride = c.rows + c.out_more;
    auto matrix = random_elements(t, (size_t)c.rows * c.cols, c.dtype); /* [cols][rows] */
    auto x = random_floats(t, (size_t)c.tokens * x_stride, c.x_scale);
    auto bias = random_floats(t, c.rows, c.x_scale);
    auto residual = random_floats(t, (size_t)c.tokens * out_stride, c.x_scale);
    for (size_t i = (size_t)c.count * x_stride; i < x.size(); i++) x[i] = NAN; /* nobody's */
    const auto w = to_double(matrix, c.dtype);
    std::vector<double> expected, terms;
    for (uint32_t n = 0; n < c.count; n++)
        for (uint32_t r = 0; r < c.rows; r++) {
            double sum = (c.bias ? (double)bias[r] : 0) +
                         (c.residual ? (double)residual[(size_t)n * out_stride + r] : 0);
            double size = fabs(sum);
            for (uint32_t i = 0; i < c.cols; i++) {
                const double product = w[(size_t)i * c.rows + r] * x[(size_t)n * x_stride + i];
                sum += product, size += fabs(product);
            }
            expected.push_back(sum), terms.push_back(size);
        }
    gpu_buffer dw(matrix), dx(x), dbias(bias), dresidual(residual), count(std::vector<uint32_t>{c.count});
    gpu_buffer parts_x((size_t)2 * c.tokens * c.cols * 2), sums((size_t)2 * c.tokens * c.rows * 4),
        factors(c.tokens * sizeof(float));
    const struct gpuk_parts parts = {parts_x.at, sums.as<float>(), factors.as<float>()};
    std::vector<float> first;
    for (int run = 0; run < 2; run++) {
        gpu_buffer out((size_t)c.tokens * out_stride * sizeof(float));
        struct gpuk_linear_args args = {};
        args.dtype = (enum dtype)c.dtype;
        args.cols = c.cols;
        args.segments = 1;
        args.segment[0] = {dw.at, c.bias ? dbias.as<float>() : nullptr, out.as<float>(), c.rows};
        args.x = dx.as<float>();
        args.residual = c.residual ? dresidual.as<float>() : nullptr;
        args.columns = true;
        args.x_stride = x_stride;
        args.out_stride = out_stride;
        GPUK(gpuk_split(&args, c.tokens, count.as<uint32_t>(), &parts, 0, t->stream, &err));
        CUDA(cudaStreamSynchronize(t->stream));
        multiply(t, matmul, c, matrix, dw, parts, parts_x, sums);
        GPUK(gpuk_join(&args, c.tokens, count.as<uint32_t>(), &parts, 0, t->stream, &err));
        CUDA(cudaStreamSynchronize(t->stream));
        const auto all = out.read<float>();
        std::vector<float> got;
        bool kept = true; /* tokens beyond the count, and what is between rows, are not written */
        for (uint32_t n = 0; n < c.tokens; n++)
            for (uint32_t r = 0; r < out_stride; r++) {
                const float v = all[(size_t)n * out_stride + r];
                if (n < c.count && r < c.rows)
                    got.push_back(v);
                else
                    kept = kept && isnan(v);
            }
        check(t, kept, what);
        if (run == 0) {
            check_close(t, got, expected, 2e-5, what, &terms);
            first = got;
        } else {
            check_same(t, got, first, what);
        }
    }
}

static void refusals(struct test_context *t)
{
    struct helm_err err = {};
    struct gpuk_linear_args bad = {};
    const struct gpuk_parts none = {};
    bad.cols = bad.segment[0].rows = 8, bad.segments = 1;
    check(t, gpuk_split(&bad, 2, NULL, &none, 0, t->stream, &err) == HELM_E_UNSUPPORTED,
          "a matrix by rows is not split for");
    bad.columns = true;
    check(t, gpuk_join(&bad, 17, NULL, &none, 0, t->stream, &err) == HELM_E_LIMIT, "17 tokens are refused");
    bad.dtype = DTYPE_F32;
    check(t, gpuk_split(&bad, 2, NULL, &none, 0, t->stream, &err) == HELM_E_UNSUPPORTED, "f32 has no parts");
    bad.dtype = DTYPE_BF16;
    check(t, gpuk_gemv(&t->device, &bad, NULL, 0, t->stream, &err) == HELM_E_UNSUPPORTED,
          "gemv takes no columns");
    check(t, gpuk_gemm_small(&t->device, &bad, 2, NULL, NULL, 0, t->stream, &err) == HELM_E_UNSUPPORTED,
          "gemm takes no columns");
    check(t, gpuk_transpose(NULL, 9, 8, NULL, 8, t->stream, &err) == HELM_E_LIMIT,
          "more rows than the columns have are refused");
}

void test_columns(struct test_context *t)
{
    const uint32_t shapes[][4] = {/* rows, cols, of the whole, from */
                                  {1, 1, 1, 0},       {8, 8, 16, 8},    {3, 7, 5, 1},        {64, 64, 64, 0},
                                  {72, 200, 136, 64}, {65, 90, 130, 2}, {128, 136, 320, 192}};
    for (auto &s : shapes)
        for (int misaligned = 0; misaligned < 2; misaligned++)
            test_transpose(t, s[0], s[1], s[2], s[3], misaligned);
    if (!t->small) {
        test_transpose(t, 192, 12288, 4096, 3904, false);
        test_transpose(t, 512, 4096, 4096, 1024, false);
    }
    struct gpuk_matmul *matmul = NULL;
#ifndef HELM_CUDA_EMULATED
    GPUK(gpuk_matmul_open(&matmul, &err));
#endif
    for (int dtype : {DTYPE_BF16, DTYPE_F16}) {
        for (float scale : {1.0f, 3e6f, 2e-6f}) /* beyond what f16 has */
            test_batch(t, matmul, {dtype, 24, 136, 4, 3, true, true, scale, 0, 0});
        test_batch(t, matmul, {dtype, 40, 45, 2, 2, false, true, 1, 3, 1});
        test_batch(t, matmul, {dtype, 72, 116, 16, 9, true, false, 1, 4, 4});
        test_batch(t, matmul, {dtype, 8, 5000, 8, 8, false, false, 1, 0, 0});
        if (t->small) continue;
        for (uint32_t tokens : {2u, 4u, 8u, 16u})
            test_batch(t, matmul, {dtype, 1024, 3072, tokens, tokens, false, true, 1, 0, 0});
    }
#ifndef HELM_CUDA_EMULATED
    gpuk_matmul_close(matmul);
#endif
    refusals(t);
}
