/* Gated delta nets against the CPU's definition (common/cpu/kernels/delta_ref.c): convolution, rule, norm and gate of rows
 * alone and several at once, of few and of many tokens, begun and gone on with; the records that they leave; rows of other slots
 * stay as they are.
 *
 * Tolerances, of the norm of all numbers. Token by token: 1e-5 (sums of 128 products in fp32, and expf). In chunks products
 * are of numbers of 10 bits: 1.5e-3, and the state's; 16-bit results half a unit of the last place more. */
#include "tests/gpu/harness.cuh"
#include "worker-gpu/kernels/chain/chains.h"

extern "C" {
#include "common/cpu/kernels/delta.h"
}

#ifdef HELM_CUDA_EMULATED
static const bool emulated = true; /* a hundred times slower */
#else
static const bool emulated = false;
#endif

struct delta_shape {
    uint32_t key_heads, value_heads, key, value;
    bool in_turn;
};
struct delta_numbers {
    std::vector<float> in, conv, decay, bias, norm;
    std::vector<unsigned char> state;
    uint32_t stride, channels, values;
    size_t matrices_at, slot_bytes;
};

static delta_numbers numbers_of(struct test_context *t, const delta_shape &s, uint32_t tokens, uint32_t slots)
{
    delta_numbers n;
    n.channels = 2 * s.key_heads * s.key + s.value_heads * s.value, n.values = s.value_heads * s.value;
    n.stride = (n.channels + n.values + 2 * s.value_heads + 3) / 4 * 4;
    n.matrices_at = (size_t)GPUK_DELTA_COLUMNS * n.channels * 4;
    n.slot_bytes = n.matrices_at + (size_t)n.values * s.key * 4 + 64;
    n.in = random_floats(t, (size_t)tokens * n.stride);
    for (uint32_t i = 0; i < tokens; i++)
        for (uint32_t h = 0; h < 2 * s.value_heads; h++) n.in[i * n.stride + n.channels + n.values + h] *= 3;
    n.conv = random_floats(t, 4 * (size_t)n.channels);
    n.decay = random_floats(t, s.value_heads), n.bias = random_floats(t, s.value_heads, 2);
    for (float &x : n.decay) x = -expf(2 * x - 2);
    n.norm = random_floats(t, s.value);
    for (float &x : n.norm) x += 1.5f;
    auto state = random_floats(t, slots * n.slot_bytes / 4, 0.3f);
    n.state.resize(slots * n.slot_bytes);
    memcpy(n.state.data(), state.data(), n.state.size());
    return n;
}

/* The rows' records and outputs as the definition has them. */
static std::vector<double> reference(const delta_shape &s, delta_numbers &n, const test_step &step)
{
    std::vector<float> x((size_t)step.tokens * n.channels), out((size_t)step.tokens * n.values);
    const float *z = n.in.data() + n.channels, *alpha = z + n.values, *beta = alpha + s.value_heads;
    for (uint32_t i = 0; i < step.tokens; i++)
        memcpy(&x[(size_t)i * n.channels], &n.in[(size_t)i * n.stride], n.channels * 4);
    for (uint32_t r = 0; r < step.rows; r++) {
        const uint32_t first = step.row_first[r], count = step.row_first[r + 1] - first;
        unsigned char *record = &n.state[step.row_slot[r] * n.slot_bytes];
        delta_convolution c = {};
        c.x = &x[(size_t)first * n.channels], c.stride = n.channels, c.tokens = count,
        c.channels = n.channels;
        c.weight = n.conv.data(), c.weight_stride = n.channels;
        c.state = (float *)record, c.state_stride = n.channels;
        delta_ref.convolve(&c);
        for (uint32_t h = 0; h < s.value_heads; h++) {
            const uint32_t key = (s.in_turn ? h % s.key_heads : h / (s.value_heads / s.key_heads)) * s.key;
            delta_run run = {};
            run.tokens = count, run.key = s.key, run.value = s.value;
            run.q = c.x + key, run.k = c.x + s.key_heads * s.key + key;
            run.v = c.x + 2 * s.key_heads * s.key + h * s.value, run.stride = n.channels;
            run.z = z + (size_t)first * n.stride + h * s.value, run.z_stride = n.stride;
            run.alpha = alpha + (size_t)first * n.stride + h, run.beta = beta + (size_t)first * n.stride + h;
            run.gate_stride = n.stride, run.decay = n.decay[h], run.dt_bias = n.bias[h];
            run.norm = n.norm.data(), run.eps = 1e-6f;
            run.state = (float *)(record + n.matrices_at) + (size_t)h * s.key * s.value;
            run.out = &out[(size_t)first * n.values + h * s.value], run.out_stride = n.values;
            delta_ref.rule(&run);
        }
    }
    return std::vector<double>(out.begin(), out.end());
}

static std::vector<double> floats_of(const std::vector<unsigned char> &bytes)
{
    std::vector<float> v(bytes.size() / 4);
    memcpy(v.data(), bytes.data(), v.size() * 4);
    return std::vector<double>(v.begin(), v.end());
}

/* One token's in a chain, where the device takes it: the same bits as by kernels of their own. */
static void chain_agrees(struct test_context *t, gpuk_delta d, const delta_numbers &n,
                         const std::vector<double> &out, const std::vector<unsigned char> &records,
                         const char *what)
{
    gpu_buffer state(n.state), chained((size_t)d.out_stride * bytes_of(d.out_dtype));
    d.state = state.as<char>(), d.out = chained.at;
    std::vector<struct gpuk_chain_op> ops(2);
    ops[0].kind = GPUK_CHAIN_CONVOLVE, ops[1].kind = GPUK_CHAIN_DELTA;
    ops[0].delta = ops[1].delta = d;
    if (!gpuk_chain_takes(&t->device, &ops[0])) return;
    gpu_buffer list(gpuk_chain_bytes(ops.data(), 2)), workspace(256);
    struct gpuk_chain chain;
    GPUK(gpuk_chain_write(&t->device, ops.data(), 2, list.at, workspace.at, t->stream, &chain, &err));
    GPUK(gpuk_chain_run(&chain, 0, t->stream, &err));
    CUDA(cudaStreamSynchronize(t->stream));
    auto all = to_double(chained.read<unsigned char>(), d.out_dtype);
    all.resize(out.size());
    char text[240];
    snprintf(text, sizeof text, "%s: in a chain", what);
    check(t, all == out && state.read<unsigned char>() == records, text);
}

/* steady: token by token, however many they are. */
static void test_rows(struct test_context *t, const delta_shape &s, const std::vector<uint32_t> &counts,
                      enum dtype dtype, bool steady)
{
    std::vector<uint32_t> starts;
    uint32_t most = 0;
    for (size_t r = 0; r < counts.size(); r++)
        starts.push_back(7 * (uint32_t)r), most = std::max(most, counts[r]);
    test_step step(t, starts, counts, 32);
    const uint32_t slots = step.rows + 2;
    delta_numbers n = numbers_of(t, s, step.tokens, slots);
    std::vector<uint32_t> row_state(step.rows + 2);
    for (uint32_t i = 0; i < row_state.size(); i++) row_state[i] = i;
    gpu_buffer in(n.in), conv(n.conv), decay(n.decay), bias(n.bias), norm(n.norm), states(row_state),
        mixed((size_t)step.tokens * n.channels * 4),
        chunks(gpuk_delta_chunk_bytes(step.tokens, s.value_heads));
    gpuk_delta d = {};
    d.step = step.step, d.row_state = states.as<uint32_t>();
    d.slot_bytes = n.slot_bytes, d.matrices_at = n.matrices_at;
    d.key_heads = s.key_heads, d.value_heads = s.value_heads, d.key_dim = s.key, d.value_dim = s.value;
    d.in_turn = s.in_turn, d.rows = step.rows;
    d.conv = conv.as<float>(), d.decay = decay.as<float>(), d.time_bias = bias.as<float>();
    d.norm = norm.as<float>(), d.eps = 1e-6f, d.in = in.as<float>(), d.in_stride = n.stride;
    d.z = d.in + n.channels, d.alpha = d.z + n.values, d.beta = d.alpha + s.value_heads;
    d.mixed = mixed.as<float>(), d.chunks = steady ? nullptr : chunks.as<float>();
    d.out_dtype = dtype, d.out_stride = n.values + 8;
    std::vector<unsigned char> before[2];
    std::vector<double> got, want;
    for (int again = 0; again < 2; again++) {
        gpu_buffer state(n.state), out((size_t)step.tokens * d.out_stride * bytes_of(dtype));
        d.state = state.as<char>(), d.out = out.at;
        GPUK(gpuk_delta_convolve(&d, step.tokens, 0, t->stream, &err));
        GPUK(gpuk_delta_rule(&t->device, &d, step.tokens, 0, t->stream, &err));
        CUDA(cudaStreamSynchronize(t->stream));
        auto all = to_double(out.read<unsigned char>(), dtype);
        got.clear();
        for (uint32_t i = 0; i < step.tokens; i++)
            got.insert(got.end(), all.begin() + (size_t)i * d.out_stride,
                       all.begin() + (size_t)i * d.out_stride + n.values);
        before[again] = state.read<unsigned char>();
    }
    char what[200];
    snprintf(what, sizeof what, "delta %u/%u heads of %u/%u, %zu rows of up to %u, %s%s", s.key_heads,
             s.value_heads, s.key, s.value, counts.size(), most, name_of(dtype), steady ? ", by token" : "");
    check_same(t, before[0], before[1], what);
    if (step.tokens == 1) chain_agrees(t, d, n, got, before[0], what);
    want = reference(s, n, step);
    const bool in_chunks = !steady && most >= 32 && t->device.tensor_cores;
    const double exact = in_chunks ? 1.5e-3 : 1e-5, rounded = dtype == DTYPE_BF16  ? 4e-3
                                                              : dtype == DTYPE_F16 ? 5e-4
                                                                                   : 0;
    check_close(t, got, want, exact + rounded, what);
    snprintf(what + strlen(what), sizeof what - strlen(what), ": records");
    check_close(t, floats_of(before[0]), floats_of(n.state), exact, what);
}

/* A prompt cut into steps leaves the bits that it leaves in one, token by token; in chunks what is as near to the definition. */
static void test_cuts(struct test_context *t, const delta_shape &s)
{
    test_rows(t, s, {1, 3, 2, 16, 5}, DTYPE_F32, false);
    test_rows(t, s, {1, 1, 1, 1, 1, 1, 1, 1}, DTYPE_F32, false);
    test_rows(t, s, {40, 1, 70}, DTYPE_F32, true);
}

void test_delta(struct test_context *t)
{
    const delta_shape tiny = {2, 4, 16, 16, false}, turned = {2, 6, 32, 48, true},
                      wide = {1, 2, 256, 256, false}, a3b = {16, 32, 128, 128, true},
                      dense = {16, 48, 128, 128, true};
    test_cuts(t, tiny);
    test_rows(t, turned, {1, 5}, DTYPE_BF16, false);
    test_rows(t, turned, {66, 2, 33}, DTYPE_F32, false);
    test_rows(t, wide, {3, 1}, DTYPE_F16, false);
    /* on a device with less shared memory */
    const int shared = t->device.shared_bytes_max;
    t->device.shared_bytes_max = 64 << 10;
    test_rows(t, turned, {66, 2, 130}, DTYPE_F32, false);
    t->device.shared_bytes_max = shared;
    const delta_shape some = {2, 4, 128, 128, true};
    if (t->small || emulated) {
        test_rows(t, some, {1}, DTYPE_F32, false);
        if (t->few) return;
        for (uint32_t tokens : {16u, 64u, 65u, 130u}) test_rows(t, some, {tokens}, DTYPE_F32, false);
        test_rows(t, some, {63, 2, 80}, DTYPE_BF16, false);
        return;
    }
    for (uint32_t tokens = 1; tokens <= 16; tokens++) test_rows(t, a3b, {tokens}, DTYPE_F32, false);
    for (uint32_t tokens : {63u, 64u, 65u, 200u}) {
        test_rows(t, a3b, {tokens}, DTYPE_F32, false);
        test_rows(t, a3b, {tokens}, DTYPE_F32, true);
        test_rows(t, dense, {tokens, 1, 33}, DTYPE_BF16, false);
    }
    test_rows(t, dense, {1}, DTYPE_F32, false);
    test_rows(t, dense, {1, 1, 1, 1, 1, 1, 1, 1}, DTYPE_F32, false);
    test_rows(t, wide, {200, 7}, DTYPE_F32, false);
    test_rows(t, a3b, {2048}, DTYPE_F32, false);
    test_rows(t, a3b, {300, 2, 1, 40, 169}, DTYPE_BF16, false);
}
