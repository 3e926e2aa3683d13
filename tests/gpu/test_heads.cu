/* The product of each head (worker-gpu/kernels/linear/heads.h) against sums in double: every format whose
 * rows are of one size, whole matrices and pieces of them, inputs and outputs of 16 bits and fp32, tokens of
 * decode and of a chunk.
 *
 * Tolerance: outputs of fp32 are sums in fp32 in one order, 1e-5 of the outputs' size; of 16 bits half a unit
 * of the last place more. A token has the same bits alone. */
#include "tests/gpu/harness.cuh"
#include "worker-gpu/kernels/linear/heads.h"

struct heads_case {
    int format;
    uint32_t heads, rows, cols, head_in, head_out, tokens;
    enum dtype x, out;
};

static std::vector<double> expected_of(const heads_case &c, const std::vector<double> &w,
                                       const std::vector<double> &x, uint32_t x_stride)
{
    std::vector<double> out((size_t)c.tokens * c.heads * c.head_out);
    for (uint32_t t = 0; t < c.tokens; t++)
        for (uint32_t h = 0; h < c.heads; h++) {
            const double *in = &x[(size_t)t * x_stride + (size_t)h * c.head_in];
            double *to = &out[((size_t)t * c.heads + h) * c.head_out];
            for (uint32_t r = 0; r < c.rows; r++)
                for (uint32_t i = 0; i < c.cols; i++)
                    to[r] += w[((size_t)h * c.rows + r) * c.cols + i] * in[i];
            for (uint32_t d = c.rows; d < c.head_out; d++) to[d] = in[c.cols + d - c.rows];
        }
    return out;
}

/* In pieces: rows [0, cut), then the others. */
static void run_pieces(struct test_context *t, struct gpuk_heads args, uint32_t all, uint32_t cut,
                       uint64_t row_bytes, uint32_t tokens, const uint32_t *count)
{
    for (uint32_t first = 0, end; first < all; first = end) {
        end = first < cut ? cut : all;
        struct gpuk_heads piece = args;
        piece.weight = (const char *)args.weight + first * row_bytes;
        piece.first = first, piece.count = end - first;
        GPUK(gpuk_heads(&piece, tokens, count, 0, t->stream, &err));
    }
    CUDA(cudaStreamSynchronize(t->stream));
}

static void test_case(struct test_context *t, const heads_case &c)
{
    char what[160];
    const uint32_t all = c.heads * c.rows, x_stride = c.heads * c.head_in + 8, width = c.heads * c.head_out;
    snprintf(what, sizeof what, "heads %s %u x %u x %u, %u of %u numbers, %u tokens, x %d out %d",
             name_of(c.format), c.heads, c.rows, c.cols, c.cols, c.head_in, c.tokens, (int)c.x, (int)c.out);
    const auto weights = random_elements(t, (size_t)all * c.cols, c.format);
    const auto x = random_elements(t, (size_t)c.tokens * x_stride, c.x);
    std::vector<double> w;
    const uint64_t row_bytes = tensor_format_row_bytes((enum tensor_format)c.format, c.cols);
    for (uint32_t r = 0; r < all; r++) {
        const auto row = to_double(std::vector<unsigned char>(weights.begin() + (long)(r * row_bytes),
                                                              weights.begin() + (long)((r + 1) * row_bytes)),
                                   c.format);
        w.insert(w.end(), row.begin(), row.end());
    }
    gpu_buffer dw(weights), dx(x), count(std::vector<uint32_t>{c.tokens});
    gpu_buffer out((size_t)c.tokens * width * bytes_of(c.out)), alone(width * bytes_of(c.out));
    struct gpuk_heads args = {};
    args.format = (enum tensor_format)c.format;
    args.weight = dw.at, args.x = dx.at, args.out = out.at;
    args.rows = c.rows, args.cols = c.cols, args.head_in = c.head_in, args.head_out = c.head_out;
    args.x_dtype = c.x, args.out_dtype = c.out, args.x_stride = x_stride, args.out_stride = width;
    /* with room for more tokens than there are */
    run_pieces(t, args, all, random_below(t, all), row_bytes, c.tokens + random_below(t, 3),
               count.as<uint32_t>());
    const auto got = to_double(out.read<unsigned char>(), c.out);
    const std::vector<double> expected = expected_of(c, w, to_double(x, c.x), x_stride);
    std::vector<float> single(got.begin(), got.end());
    check_close(t, single, expected, c.out == DTYPE_BF16 ? 4e-3 : c.out == DTYPE_F16 ? 5e-4 : 1e-5, what);
    const uint32_t token = random_below(t, c.tokens);
    args.x = (const char *)dx.at + (size_t)token * x_stride * bytes_of(c.x), args.out = alone.at;
    run_pieces(t, args, all, all, row_bytes, 1, nullptr);
    const auto whole = out.read<unsigned char>(), one = alone.read<unsigned char>();
    check(t, memcmp(one.data(), &whole[(size_t)token * width * bytes_of(c.out)], one.size()) == 0, what);
}

void test_heads(struct test_context *t)
{
    for (int f = 0; f < FORMAT_COUNT; f++) {
        const struct tensor_format_traits *traits = tensor_format_of((enum tensor_format)f);
        if (traits->variable) continue;
        const uint32_t block = traits->block_values > 1 ? traits->block_values : 16;
        if (t->few && f % 4) continue;
        const heads_case to_latent = {f,         3,        64, block, block + 8, 72, 1 + random_below(t, 20),
                                      DTYPE_F32, DTYPE_F32},
                         values = {f,
                                   2,
                                   40,
                                   2 * block,
                                   2 * block + 8,
                                   40,
                                   70 + random_below(t, 60),
                                   f % 2 ? DTYPE_BF16 : DTYPE_F16,
                                   f % 2 ? DTYPE_BF16 : DTYPE_F16};
        test_case(t, to_latent);
        test_case(t, values);
    }
    const heads_case sizes[] = {{FORMAT_Q8_0, 4, 512, 128, 192, 576, 1, DTYPE_F32, DTYPE_F32},
                                {FORMAT_Q8_0, 4, 128, 512, 576, 128, 1, DTYPE_F32, DTYPE_F32},
                                {FORMAT_BF16, 4, 512, 128, 192, 576, 9, DTYPE_F32, DTYPE_F32},
                                {FORMAT_F32, 2, 33, 7, 9, 35, 100, DTYPE_BF16, DTYPE_F32}};
    for (const heads_case &c : sizes) test_case(t, c);
    struct helm_err err = {};
    struct gpuk_heads wrong = {};
    wrong.count = wrong.rows = 8, wrong.cols = 16, wrong.head_in = 16, wrong.head_out = 9;
    check(t, gpuk_heads(&wrong, 1, nullptr, 0, t->stream, &err) == HELM_E_USAGE,
          "heads: more numbers than there are");
    wrong.head_out = 8, wrong.format = FORMAT_BF16_PACKED;
    check(t, gpuk_heads(&wrong, 1, nullptr, 0, t->stream, &err) == HELM_E_UNSUPPORTED,
          "heads: packed weights");
}
