/* Gated delta nets against the CPU's definition (common/cpu/kernels/delta_ref.c): convolution, rule, norm and
 * gate of rows alone and several at once, of few and of many tokens, begun and gone on with; the records that
 * they leave, after all tokens and after some; rows of other slots stay as they are.
 *
 * Tolerances, of the norm of all numbers. Token by token: 1e-5 (sums of 128 products in fp32, and expf). In
 * chunks products are of numbers of 10 bits: 1.5e-3, and the state's; 16-bit results half a unit of the last
 * place more. */
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

/* The rows' records and outputs as the definition has them; of the first `most` tokens of each row. */
static std::vector<double> reference(const delta_shape &s, delta_numbers &n, const test_step &step,
                                     uint32_t most = UINT32_MAX)
{
    std::vector<float> x((size_t)step.tokens * n.channels), out((size_t)step.tokens * n.values);
    const float *z = n.in.data() + n.channels, *alpha = z + n.values, *beta = alpha + s.value_heads;
    for (uint32_t i = 0; i < step.tokens; i++)
        memcpy(&x[(size_t)i * n.channels], &n.in[(size_t)i * n.stride], n.channels * 4);
    for (uint32_t r = 0; r < step.rows; r++) {
        const uint32_t first = step.row_first[r], count = std::min(most, step.row_first[r + 1] - first);
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

/* A layer's arguments and what they point to. */
struct delta_case {
    delta_numbers n;
    gpu_buffer in, conv, decay, bias, norm, states, mixed, chunks;
    gpuk_delta d = {};
    static std::vector<uint32_t> numbers(uint32_t count)
    {
        std::vector<uint32_t> all(count);
        for (uint32_t i = 0; i < count; i++) all[i] = i;
        return all;
    }
    delta_case(const delta_shape &s, const delta_numbers &of, const test_step &step, enum dtype dtype,
               bool steady)
        : n(of), in(n.in), conv(n.conv), decay(n.decay), bias(n.bias), norm(n.norm),
          states(numbers(step.rows + 2)), mixed((size_t)step.tokens * n.channels * 4),
          chunks(gpuk_delta_chunk_bytes(step.tokens, s.value_heads))
    {
        d.step = step.step, d.row_state = states.as<uint32_t>();
        d.slot_bytes = n.slot_bytes, d.matrices_at = n.matrices_at;
        d.key_heads = s.key_heads, d.value_heads = s.value_heads, d.key_dim = s.key, d.value_dim = s.value;
        d.in_turn = s.in_turn, d.rows = step.rows;
        d.conv = conv.as<float>(), d.decay = decay.as<float>(), d.time_bias = bias.as<float>();
        d.norm = norm.as<float>(), d.eps = 1e-6f, d.in = in.as<float>(), d.in_stride = n.stride;
        d.z = d.in + n.channels, d.alpha = d.z + n.values, d.beta = d.alpha + s.value_heads;
        d.mixed = mixed.as<float>(), d.chunks = steady ? nullptr : chunks.as<float>();
        d.out_dtype = dtype, d.out_stride = n.values + 8;
    }
    /* The outputs; the records become what the rows leave. */
    std::vector<double> run(struct test_context *t, const test_step &step,
                            std::vector<unsigned char> *records)
    {
        gpu_buffer state(n.state), out((size_t)step.tokens * d.out_stride * bytes_of(d.out_dtype));
        d.state = state.as<char>(), d.out = out.at;
        GPUK(gpuk_delta_convolve(&d, step.tokens, 0, t->stream, &err));
        GPUK(gpuk_delta_rule(&t->device, &d, step.tokens, 0, t->stream, &err));
        CUDA(cudaStreamSynchronize(t->stream));
        const auto all = to_double(out.read<unsigned char>(), d.out_dtype);
        std::vector<double> got;
        for (uint32_t i = 0; i < step.tokens; i++)
            got.insert(got.end(), all.begin() + (size_t)i * d.out_stride,
                       all.begin() + (size_t)i * d.out_stride + n.values);
        *records = state.read<unsigned char>();
        return got;
    }
};

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
    delta_case c(s, n, step, dtype, steady);
    std::vector<unsigned char> before[2];
    std::vector<double> got, want;
    for (int again = 0; again < 2; again++) got = c.run(t, step, &before[again]);
    char what[200];
    snprintf(what, sizeof what, "delta %u/%u heads of %u/%u, %zu rows of up to %u, %s%s", s.key_heads,
             s.value_heads, s.key, s.value, counts.size(), most, name_of(dtype), steady ? ", by token" : "");
    check_same(t, before[0], before[1], what);
    if (step.tokens == 1) chain_agrees(t, c.d, n, got, before[0], what);
    want = reference(s, n, step);
    const bool in_chunks = !steady && most >= 32 && t->device.tensor_cores;
    const double exact = in_chunks ? 1.5e-3 : 1e-5, rounded = dtype == DTYPE_BF16  ? 4e-3
                                                              : dtype == DTYPE_F16 ? 5e-4
                                                                                   : 0;
    check_close(t, got, want, exact + rounded, what);
    snprintf(what + strlen(what), sizeof what - strlen(what), ": records");
    check_close(t, floats_of(before[0]), floats_of(n.state), exact, what);
}

/* Each row leaves its record after each of these numbers of tokens, below its count: as near to the
 * definition as that after all of them; token by token it has the bits of a shorter row. Nothing else changes
 * by a bit. */
static void test_left(struct test_context *t, const delta_shape &s, const std::vector<uint32_t> &counts,
                      const std::vector<uint32_t> &after, bool steady)
{
    const uint32_t before = 11, apart = 64; /* tokens in front of these, bytes between snapshots */
    std::vector<uint32_t> starts(counts.size(), 3);
    test_step step(t, starts, counts, 32);
    const delta_numbers n = numbers_of(t, s, step.tokens, step.rows + 2);
    delta_case plain(s, n, step, DTYPE_F32, steady), leaving(s, n, step, DTYPE_F32, steady);
    const size_t each = n.slot_bytes + apart;
    std::vector<unsigned char> none((size_t)each * step.rows * after.size(), 0xcc), records[2];
    std::vector<uint32_t> left((step.rows + 2) * GPU_ROW_STATES * 2);
    for (uint32_t r = 0; r < step.rows; r++)
        for (uint32_t i = 0, at = 0; i < after.size(); i++) {
            if (after[i] >= counts[r]) continue;
            uint32_t *entry = &left[(step.row_slot[r] * GPU_ROW_STATES + at++) * 2];
            entry[0] = before + step.row_first[r] + after[i];
            entry[1] = 1 + r * (uint32_t)after.size() + i;
        }
    gpu_buffer rows(left), snapshots(none);
    leaving.d.left.rows = (const uint32_t(*)[GPU_ROW_STATES][2])rows.at;
    leaving.d.left.snapshots = snapshots.as<char>();
    leaving.d.left.snapshot_bytes = each, leaving.d.left.before = before;
    char what[200];
    snprintf(what, sizeof what, "delta of %u, %zu rows that leave %zu states%s", s.key, counts.size(),
             after.size(), steady ? ", by token" : "");
    const auto without = plain.run(t, step, &records[0]), with = leaving.run(t, step, &records[1]);
    check(t, without == with, what);
    check_same(t, records[0], records[1], what);
    const auto kept = snapshots.read<unsigned char>();
    const size_t bytes = n.matrices_at + (size_t)n.values * s.key * 4;
    for (uint32_t i = 0; i < after.size(); i++) {
        delta_numbers then = n;
        reference(s, then, step, after[i]);
        for (uint32_t r = 0; r < step.rows; r++) {
            const unsigned char *at = &kept[(r * after.size() + i) * each], *end = at + bytes;
            const std::vector<unsigned char> rest(end, at + each), own(at, end);
            check_same(t, rest, std::vector<unsigned char>(rest.size(), 0xcc), what);
            if (after[i] >= counts[r]) continue;
            const unsigned char *want = &then.state[step.row_slot[r] * n.slot_bytes];
            const bool chunked = !steady && counts[r] >= 32 && t->device.tensor_cores;
            check_close(t, floats_of(own), floats_of({want, want + bytes}), chunked ? 1.5e-3 : 1e-5, what);
        }
        if (!steady || after[i] >= counts[0]) continue;
        test_step shorter(t, {3}, {after[i]}, 32); /* the first row's first tokens, and its slot's record */
        delta_case alone(s, n, shorter, DTYPE_F32, true);
        std::vector<unsigned char> left_alone, state(n.state.size());
        memcpy(&state[shorter.row_slot[0] * n.slot_bytes], &n.state[step.row_slot[0] * n.slot_bytes], bytes);
        alone.n.state = state;
        alone.run(t, shorter, &left_alone);
        check(t, memcmp(&left_alone[shorter.row_slot[0] * n.slot_bytes], &kept[i * each], bytes) == 0, what);
    }
}

/* A prompt cut into steps leaves the bits that it leaves in one, token by token; in chunks what is as near to
 * the definition. */
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
    test_left(t, tiny, {3, 16, 9, 1}, {1, 2, 3, 8, 15}, false);
    test_left(t, tiny, {150, 2, 64, 33}, {1, 5, 32, 63, 64, 100, 128, 149}, false);
    test_left(t, turned, {70, 40}, {2, 31, 64}, true);
    test_left(t, turned, {70, 40}, {2, 31, 64}, false);
    test_left(t, wide, {67}, {17, 66}, false);
    test_rows(t, turned, {1, 5}, DTYPE_BF16, false);
    test_rows(t, turned, {66, 2, 33}, DTYPE_F32, false);
    test_rows(t, wide, {3, 1}, DTYPE_F16, false);
    /* on a device with less shared memory */
    const int shared = t->device.shared_bytes_max;
    t->device.shared_bytes_max = 64 << 10;
    test_rows(t, turned, {66, 2, 130}, DTYPE_F32, false);
    t->device.shared_bytes_max = 99 << 10; /* as 8.6, 8.9 and 12.0 have it */
    test_rows(t, wide, {40}, DTYPE_F32, false);
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
