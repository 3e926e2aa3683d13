/* Products of a short chunk with blocks as they lie against sums in double over the same 16-bit values: every
 * format, rows and columns that are no whole tiles or units, any number of tokens, columns in parts and
 * whole; the same bits in every run; nothing else is written. */
#include "tests/gpu/harness.cuh"

struct product_case {
    enum tensor_format format;
    uint32_t rows, cols, tokens;
    enum dtype out_dtype;
    bool accumulate;
    bool wide = false; /* by warpgroups, also of few tokens */
};

static void test_product(struct test_context *t, const struct gpuk_device *device, const product_case &c)
{
    const enum tensor_format format = c.format;
    const enum dtype out_dtype = c.out_dtype;
    const uint32_t rows = c.rows, cols = c.cols, tokens = c.tokens;
    char what[160];
    snprintf(what, sizeof what, "product of %u tokens, %s %u x %u to %s%s, %d blocks%s", tokens,
             name_of(format), rows, cols, name_of(out_dtype), c.accumulate ? " added" : "", device->sm_count,
             c.wide ? ", wide" : "");
    const uint32_t stride = rows + 3;
    const size_t before = tensor_format_of(format)->block_bytes; /* begins on any block */
    auto weight = random_elements(t, (size_t)rows * cols, format);
    std::vector<double> w = to_double(weight, format);
    for (double &v : w) v = convert_bf16_f32(convert_f32_bf16((float)v)); /* as the product has them */
    weight.insert(weight.begin(), before, 0xff);
    const auto x = random_elements(t, (size_t)tokens * cols, DTYPE_BF16);
    const auto old = random_elements(t, (size_t)tokens * stride, out_dtype);
    const std::vector<double> xs = to_double(x, DTYPE_BF16), olds = to_double(old, out_dtype);
    gpu_buffer dw(weight), dx(x), workspace(GPUK_MATMUL_WORKSPACE), counters(GPUK_LINEAR_COUNTER_BYTES);
    CUDA(cudaMemset(counters.at, 0, GPUK_LINEAR_COUNTER_BYTES));
    CUDA(cudaDeviceSynchronize());
    std::vector<double> expected, terms;
    for (uint32_t n = 0; n < tokens; n++)
        for (uint32_t r = 0; r < rows; r++) {
            double sum = c.accumulate ? olds[(size_t)n * stride + r] : 0, size = fabs(sum);
            for (uint32_t i = 0; i < cols; i++) {
                const double term = w[(size_t)r * cols + i] * xs[(size_t)n * cols + i];
                sum += term, size += fabs(term);
            }
            expected.push_back(sum), terms.push_back(size);
        }
    std::vector<double> first;
    for (int run = 0; run < 2; run++) {
        gpu_buffer out(old);
        struct gpuk_blocks_product p = {};
        p.format = format, p.dtype = DTYPE_BF16, p.out_dtype = out_dtype;
        p.rows = rows, p.cols = cols, p.out_stride = stride, p.accumulate = c.accumulate;
        p.weight = dw.as<char>() + before, p.x = dx.at, p.out = out.at;
        check(t, (c.wide ? gpuk_wide_takes : gpuk_blocks_takes)(device, &p, tokens), what);
        GPUK((c.wide ? gpuk_wide_run : gpuk_blocks_run)(device, &p, tokens, workspace.at,
                                                        counters.as<uint32_t>(), t->stream, &err));
        CUDA(cudaStreamSynchronize(t->stream));
        const std::vector<double> all = to_double(out.read<unsigned char>(), out_dtype);
        std::vector<double> got;
        std::vector<float> values;
        bool kept = true;
        for (uint32_t n = 0; n < tokens; n++)
            for (uint32_t r = 0; r < stride; r++) {
                const double v = all[(size_t)n * stride + r];
                if (r >= rows)
                    kept = kept && v == olds[(size_t)n * stride + r];
                else
                    values.push_back((float)v), got.push_back(v);
            }
        check(t, kept, what);
        if (run == 0) {
            check_close(t, values, expected, out_dtype == DTYPE_BF16 ? 4e-3 : 1e-5, what, &terms);
            first = got;
        } else {
            check(t, memcmp(got.data(), first.data(), got.size() * sizeof(double)) == 0, what);
        }
    }
}

void test_gemm_blocks(struct test_context *t)
{
    if (!t->device.tensor_cores) return;
    struct gpuk_device few = t->device, old = t->device;
    few.sm_count = 3, old.warpgroups = false;
    for (int f = FORMAT_Q8_0; f < FORMAT_COUNT; f++) {
        const enum tensor_format format = (enum tensor_format)f;
        const uint32_t block = tensor_format_of(format)->block_values;
        test_product(t, &few, {format, 33, block, 64, DTYPE_F32, false});
        test_product(t, &t->device, {format, 130, 1280, 5, DTYPE_F32, true});
        if (t->device.warpgroups && (!t->few || f % 4 == 0)) /* a tile of rows, tiles; whole, and in parts */
            test_product(t, f % 2 ? &few : &t->device,
                         {format, f % 3 ? 40u : 300u, 1024, 1 + random_below(t, 100),
                          f % 3 ? DTYPE_F32 : DTYPE_BF16, f % 2 != 0, true});
        if (t->few) continue;
        test_product(t, &few, {format, 200, block * 5, GPUK_BLOCKS_TOKENS, DTYPE_BF16, false});
        test_product(t, &t->device,
                     {format, 300, 2048 + block, 1 + random_below(t, GPUK_BLOCKS_TOKENS), DTYPE_F32,
                      random_below(t, 2) != 0});
        if (t->small) continue;
        test_product(t, &t->device, {format, 4096, 1024, GPUK_BLOCKS_TOKENS, DTYPE_F32, true});
        test_product(t, &t->device, {format, 1024, 12288, 50, DTYPE_BF16, false});
        if (!t->device.warpgroups) continue;
        test_product(t, &t->device, {format, 1000, 4096, 128, DTYPE_F32, true, true});
        test_product(t, &t->device, {format, 4096, 1024, 200, DTYPE_BF16, false, true});
    }
    if (t->device.warpgroups) { /* more than a tile of tokens, by the way that a chunk takes; columns that are
                                   no whole units */
        test_product(t, &few, {FORMAT_Q4_K, 272, 512, 65, DTYPE_F32, false});
        test_product(t, &few, {FORMAT_MXFP4, 40, 832, 270, DTYPE_F32, true, true});
        test_product(t, &few, {FORMAT_Q5_1, 20, 1216, 128, DTYPE_BF16, false});
    }
    struct gpuk_blocks_product p = {};
    p.format = FORMAT_Q4_K, p.dtype = DTYPE_BF16, p.out_dtype = DTYPE_F32, p.rows = 16, p.cols = 256;
    check(t, gpuk_blocks_takes(&t->device, &p, GPUK_BLOCKS_TOKENS), "64 tokens are taken");
    check(t, !gpuk_blocks_takes(&old, &p, GPUK_BLOCKS_TOKENS + 1), "65 are not");
    p.cols = 512;
    check(t, gpuk_blocks_takes(&t->device, &p, GPUK_WIDE_TOKENS) == t->device.warpgroups,
          "128 are taken by warpgroups");
    check(t, !gpuk_blocks_takes(&t->device, &p, GPUK_WIDE_TOKENS + 1), "129 are not");
    p.format = FORMAT_Q8_0, p.cols = 320;
    check(t, !gpuk_wide_takes(&t->device, &p, 128), "five steps of blocks that have two rooms are not");
    p.format = FORMAT_BF16;
    check(t, !gpuk_blocks_takes(&t->device, &p, GPUK_BLOCKS_TOKENS), "nor are plain weights");
}
