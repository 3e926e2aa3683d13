/* Few tokens' products with blocks by whole numbers (gemm_integer.cu): each token's row of the results has
 * the bits that the token has alone in a chain of `steady` products, however many others there are, whichever
 * blocks there are, and whatever else is in the chain. That the results are right is what test_linear.cu
 * checks. */
#include "tests/gpu/harness.cuh"
#include "worker-gpu/kernels/chain/chains.h"

struct integer_case {
    uint32_t cols, segments, rows[3];
    bool norm, bias, residual, swiglu;
};

struct integer_test {
    const integer_case c;
    enum tensor_format format;
    gpu_buffer *weights[3], *biases[3];
    gpu_buffer norm, x, residual;
    uint32_t out_rows; /* of all matrices */

    integer_test(struct test_context *t, enum tensor_format of, const integer_case &from)
        : c(from), format(of), norm(random_floats(t, c.cols, 2)),
          x(random_floats(t, (size_t)GPUK_BATCH_MAX * c.cols)),
          residual(random_floats(t, (size_t)GPUK_BATCH_MAX * c.rows[0])), out_rows(0)
    {
        for (uint32_t s = 0; s < c.segments; s++) {
            weights[s] = new gpu_buffer(random_elements(t, (size_t)c.rows[s] * c.cols, (int)format));
            biases[s] = new gpu_buffer(random_floats(t, c.rows[s]));
            out_rows += c.rows[s];
        }
    }
    integer_test(const integer_test &) = delete;
    ~integer_test()
    {
        for (uint32_t s = 0; s < c.segments; s++) {
            delete weights[s];
            delete biases[s];
        }
    }
    /* Matrices' results are contiguous, out_rows of a token. */
    struct gpuk_linear_args args(uint32_t token, const gpu_buffer &out) const
    {
        struct gpuk_linear_args a = {};
        float *to = out.as<float>();
        a.format = format, a.cols = c.cols, a.segments = c.segments, a.steady = true;
        for (uint32_t s = 0; s < c.segments; to += c.rows[s++])
            a.segment[s] = {weights[s]->at, nullptr, c.bias ? biases[s]->as<float>() : nullptr, to,
                            c.rows[s]};
        a.x = x.as<float>() + (size_t)token * c.cols, a.norm = c.norm ? norm.as<float>() : nullptr;
        a.eps = 1e-6f, a.swiglu = c.swiglu;
        a.residual = c.residual ? residual.as<float>() + (size_t)token * out_rows : nullptr;
        a.x_stride = c.cols, a.out_stride = out_rows;
        return a;
    }
    std::vector<float> alone(struct test_context *t, const struct gpuk_device *device, uint32_t token) const
    {
        const gpu_buffer out((size_t)out_rows * sizeof(float)), other((size_t)out_rows * sizeof(float));
        struct gpuk_chain_op op[2] = {};
        op[0].kind = op[1].kind = GPUK_CHAIN_LINEAR;
        op[0].linear = args(token, out);
        op[1].linear = args((token + 1) % GPUK_BATCH_MAX, other);
        const gpu_buffer list(gpuk_chain_bytes(op, 2));
        struct gpuk_chain chain;
        GPUK(gpuk_chain_write(device, op, 2, list.at, nullptr, t->stream, &chain, &err));
        GPUK(gpuk_chain_run(&chain, 0, t->stream, &err));
        CUDA(cudaStreamSynchronize(t->stream));
        return out.read<float>();
    }
    std::vector<float> together(struct test_context *t, const struct gpuk_device *device, uint32_t room,
                                uint32_t count) const
    {
        const gpu_buffer out((size_t)GPUK_BATCH_MAX * out_rows * sizeof(float)),
            tokens(std::vector<uint32_t>{count}),
            workspace(gpuk_gemm_small_workspace_bytes(GPUK_BATCH_MAX, c.cols));
        CUDA(cudaMemset(workspace.at, 0, GPUK_LINEAR_COUNTER_BYTES));
        CUDA(cudaDeviceSynchronize());
        const struct gpuk_linear_args a = args(0, out);
        GPUK(gpuk_gemm_small(device, &a, room, tokens.as<uint32_t>(), workspace.at, 0, t->stream, &err));
        CUDA(cudaStreamSynchronize(t->stream));
        const auto left = workspace.read<unsigned char>();
        check(t,
              std::count(left.begin(), left.begin() + GPUK_LINEAR_COUNTER_BYTES, 0) ==
                  (ptrdiff_t)GPUK_LINEAR_COUNTER_BYTES,
              "gemm by whole numbers leaves its counters zero");
        return out.read<float>();
    }
};

static void run(struct test_context *t, enum tensor_format format, const integer_case &c)
{
    char what[200];
    const integer_test test(t, format, c);
    struct gpuk_device some = t->device, few = t->device;
    some.sm_count = 11, some.gemm_slots = 3, few.sm_count = 3;
    const gpu_buffer none(16);
    const struct gpuk_linear_args args = test.args(0, none);
    const char *kernel = gpuk_linear_kernel(&some, &args, GPUK_FEW);
    snprintf(what, sizeof what, "%s %u x %u is multiplied by whole numbers", name_of(format), c.rows[0],
             c.cols);
    check(t, kernel && strcmp(kernel, "integer") == 0, what);
    std::vector<std::vector<float>> alone;
    for (uint32_t token = 0; token < GPUK_BATCH_MAX; token++)
        if (t->small && token % 7 > 1) /* few are looked at */
            alone.push_back({});
        else
            alone.push_back(test.alone(t, token % 2 ? &few : &t->device, token));
    for (uint32_t count = 1; count <= GPUK_BATCH_MAX; count += t->small ? 7 : 1)
        for (const struct gpuk_device *device : {&t->device, &some}) {
            if ((t->few && count != 11) || (t->small && device != &some)) continue;
            some.gemm_integer = 1 + (int)(count & 1);
            const uint32_t room =
                count <= GPU_STEADY_FEW && device == &some ? GPU_STEADY_FEW : GPUK_BATCH_MAX;
            const auto got = test.together(t, device, room, count);
            uint32_t other = 0, beyond = 0;
            for (uint32_t token = 0; token < GPUK_BATCH_MAX; token++)
                for (uint32_t i = 0; i < test.out_rows; i++) {
                    const float v = got[(size_t)token * test.out_rows + i];
                    if (token < count && !alone[token].empty())
                        other += memcmp(&v, &alone[token][i], sizeof v) != 0;
                    else if (token >= count)
                        beyond += !isnan(v);
                }
            /* (of SwiGLU and of the second matrix's place nothing is written to either) */
            snprintf(
                what, sizeof what,
                "%s %u x %u (%u matrices)%s%s%s%s, %u of %u tokens, %d blocks: %u numbers of other bits than "
                "alone in a chain, %u behind the last token",
                name_of(format), c.rows[0], c.cols, c.segments, c.norm ? " norm" : "", c.bias ? " bias" : "",
                c.residual ? " residual" : "", c.swiglu ? " swiglu" : "", count, room, device->sm_count,
                other, beyond);
            check(t, other == 0 && beyond == 0, what);
        }
}

void test_gemm_integer(struct test_context *t)
{
    if (!t->device.bulk_copy) return;
    for (int format = FORMAT_Q8_0; format < FORMAT_COUNT; format++) {
        const uint32_t block = tensor_format_of((enum tensor_format)format)->block_values;
        const auto whole = [&](uint32_t cols) { return (cols + block - 1) / block * block; };
        const integer_case cases[] = {{whole(96), 3, {37, 33, 17}, false, true, false, false},
                                      {whole(4096 + 224), 1, {70, 0, 0}, true, true, true, false},
                                      {4096, 2, {50, 50, 0}, true, false, false, true},
                                      {12288, 1, {67, 0, 0}, false, false, true, false}};
        for (const integer_case &c : cases) {
            if (t->few && (c.cols < 4000 || c.cols > 5000 || format % 3)) continue;
            if (t->small && c.cols == 12288 && format != FORMAT_Q4_K && format != FORMAT_Q6_K) continue;
            run(t, (enum tensor_format)format, c);
        }
        if (t->small) continue;
        run(t, (enum tensor_format)format, {2560, 1, {2600, 0, 0}, true, false, false, false});
    }
}
