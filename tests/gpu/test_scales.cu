/* Blocks whose scales are infinite, no number, negative zero, subnormal or the largest there is: every kernel
 * that decodes blocks gives what is infinite or no number where the plain reference does, and keeps the rows
 * beside as they are.
 *
 * A matrix is multiplied twice, with ordinary scales and with every third row's odd: other rows have the same
 * bits in both. Odd rows are compared with sums in double over the reference's values (common/formats), each
 * by its own size. */
#include "tests/gpu/experts.cuh"
#include "worker-gpu/kernels/chain/chains.h"

/* fp16 scales; where they are no finite numbers one block of a row has them, else all of them: sums are small
 * then. */
static const uint16_t odd_half[] = {0x7c00, 0xfc00, 0x7e00, 0xfd55, 0x8000, 0x0001, 0x83ff, 0x7bff};
/* MXFP4's scale is a power of two: 2^-128 times whole numbers, which is subnormal, to 2^127 */
static const unsigned char odd_power[] = {255, 254, 0, 1};
static const uint32_t ODD_HALVES = sizeof odd_half / sizeof *odd_half;
static const uint32_t EACH = 3, TOKENS = 5, ROOM = 8;

struct odd_blocks {
    enum tensor_format format;
    uint32_t rows, cols;
    std::vector<unsigned char> plain, odd;
    std::vector<double> value; /* of the odd ones */

    static uint32_t kinds(enum tensor_format f)
    {
        const uint32_t halves = scale_places(f).count;
        return halves ? ODD_HALVES * halves : sizeof odd_power;
    }
    odd_blocks(struct test_context *t, enum tensor_format f, uint32_t c)
        : format(f), rows(EACH * kinds(f) + 1), cols(c), plain(random_elements(t, (size_t)rows * c, f))
    {
        const struct tensor_format_traits *traits = tensor_format_of(f);
        const uint32_t blocks = cols / traits->block_values;
        odd = plain;
        for (uint32_t k = 0; k < kinds(f); k++) {
            unsigned char *row = &odd[(size_t)row_of(k) * blocks * traits->block_bytes];
            const uint16_t half = odd_half[k % ODD_HALVES];
            const bool power = scale_places(f).count == 0,
                       all = power ? odd_power[k] < 2 : (half & 0x7c00) != 0x7c00;
            const uint32_t first = all ? 0 : random_below(t, blocks), end = all ? blocks : first + 1;
            for (uint32_t b = first; b < end; b++) {
                unsigned char *block = row + b * traits->block_bytes;
                if (power)
                    block[0] = odd_power[k];
                else
                    put_scale(block, scale_places(f).at[k / ODD_HALVES], half);
            }
        }
        value = to_double(odd, f);
    }
    static uint32_t row_of(uint32_t kind) { return EACH * kind + 1; }
    static bool is_odd(uint32_t row) { return row % EACH == 1; }
    bool finite(uint32_t row) const
    {
        const double *v = &value[(size_t)row * cols];
        return std::all_of(v, v + cols, [](double d) { return isfinite(d); });
    }
};

/* Products with both matrices: [token][row]. x: [TOKENS][cols], numbers that bf16 has. */
struct product_of {
    struct test_context *t;
    struct gpuk_device device;
    const odd_blocks &m;
    const std::vector<float> &x;
    const gpu_buffer &workspace;

    void clear() const
    {
        CUDA(cudaMemset(workspace.at, 0, GPUK_LINEAR_COUNTER_BYTES));
        CUDA(cudaDeviceSynchronize());
    }
    struct gpuk_linear_args linear(const gpu_buffer &weight, const gpu_buffer &dx,
                                   const gpu_buffer &out) const
    {
        struct gpuk_linear_args args = {};
        args.format = m.format, args.cols = args.x_stride = m.cols, args.segments = 1;
        args.out_stride = m.rows;
        args.segment[0] = {weight.at, nullptr, nullptr, out.as<float>(), m.rows};
        args.x = dx.as<float>();
        return args;
    }
};
typedef std::vector<float> product_run(const product_of &p, const gpu_buffer &weight);

static std::vector<float> run_gemv(const product_of &p, const gpu_buffer &weight)
{
    const gpu_buffer dx(p.x), out((size_t)p.m.rows * 4);
    const struct gpuk_linear_args args = p.linear(weight, dx, out);
    p.clear();
    GPUK(gpuk_gemv(&p.device, &args, p.workspace.at, 0, p.t->stream, &err));
    CUDA(cudaStreamSynchronize(p.t->stream));
    return out.read<float>();
}
static std::vector<float> run_chain(const product_of &p, const gpu_buffer &weight)
{
    const gpu_buffer dx(p.x), out((size_t)p.m.rows * 4);
    struct gpuk_chain_op op[1] = {};
    op[0].kind = GPUK_CHAIN_LINEAR, op[0].linear = p.linear(weight, dx, out);
    const gpu_buffer list(gpuk_chain_bytes(op, 1));
    struct gpuk_chain chain;
    GPUK(gpuk_chain_write(&p.device, op, 1, list.at, nullptr, p.t->stream, &chain, &err));
    GPUK(gpuk_chain_run(&chain, 0, p.t->stream, &err));
    CUDA(cudaStreamSynchronize(p.t->stream));
    return out.read<float>();
}
static std::vector<float> run_few(const product_of &p, const gpu_buffer &weight)
{
    const gpu_buffer dx(p.x), out((size_t)ROOM * p.m.rows * 4), count(std::vector<uint32_t>{TOKENS});
    const struct gpuk_linear_args args = p.linear(weight, dx, out);
    p.clear();
    GPUK(gpuk_gemm_small(&p.device, &args, ROOM, count.as<uint32_t>(), p.workspace.at, 0, p.t->stream, &err));
    CUDA(cudaStreamSynchronize(p.t->stream));
    std::vector<float> y = out.read<float>();
    y.resize((size_t)TOKENS * p.m.rows);
    return y;
}
static std::vector<uint16_t> halves_of(const std::vector<float> &x)
{
    std::vector<uint16_t> halves;
    for (const float v : x) halves.push_back(convert_f32_bf16(v));
    return halves;
}
static std::vector<float> run_blocks(const product_of &p, const gpu_buffer &weight, bool wide)
{
    const gpu_buffer dx(halves_of(p.x)), out((size_t)TOKENS * p.m.rows * 4),
        counters(GPUK_LINEAR_COUNTER_BYTES);
    struct gpuk_blocks_product product = {};
    product.format = p.m.format, product.dtype = DTYPE_BF16, product.out_dtype = DTYPE_F32;
    product.rows = product.out_stride = p.m.rows, product.cols = p.m.cols;
    product.weight = weight.at, product.x = dx.at, product.out = out.at;
    CUDA(cudaMemset(counters.at, 0, GPUK_LINEAR_COUNTER_BYTES));
    CUDA(cudaDeviceSynchronize());
    GPUK((wide ? gpuk_wide_run : gpuk_blocks_run)(&p.device, &product, TOKENS, p.workspace.at,
                                                  counters.as<uint32_t>(), p.t->stream, &err));
    CUDA(cudaStreamSynchronize(p.t->stream));
    return out.read<float>();
}
static std::vector<float> run_short(const product_of &p, const gpu_buffer &weight)
{
    return run_blocks(p, weight, false);
}
static std::vector<float> run_wide(const product_of &p, const gpu_buffer &weight)
{
    return run_blocks(p, weight, true);
}
/* A mixture of one expert, which every token chose, is a matrix. */
struct one_expert {
    const gpu_buffer slot, id, weight, count;
    struct gpuk_experts matrix;
    struct gpuk_choice choice;

    one_expert(const odd_blocks &m, const gpu_buffer &blocks)
        : slot(std::vector<uint32_t>{0}), id(std::vector<uint32_t>(TOKENS, 0)),
          weight(std::vector<float>(TOKENS, 1)), count(std::vector<uint32_t>{TOKENS}), matrix(), choice()
    {
        matrix.format = m.format, matrix.experts = 1, matrix.rows = m.rows, matrix.cols = m.cols;
        matrix.slot = slot.as<uint32_t>(), matrix.weight = blocks.at;
        matrix.stride = (blocks.bytes + 15) / 16 * 16;
        choice = {1, id.as<uint32_t>(), weight.as<float>(), nullptr};
    }
};
static std::vector<float> run_experts(const product_of &p, const gpu_buffer &weight)
{
    const one_expert e(p.m, weight);
    const size_t numbers = (size_t)TOKENS * p.m.rows;
    const gpu_buffer dx(p.x), out(numbers * 4), residual(std::vector<float>(numbers, 0)),
        workspace(gpuk_experts_workspace_bytes(TOKENS, 1, p.m.cols));
    const struct gpuk_experts_down args = {e.matrix,        e.choice, dx.as<float>(), residual.as<float>(),
                                           out.as<float>(), p.m.rows, nullptr,        nullptr,
                                           nullptr};
    GPUK(gpuk_experts_down(&p.device, &args, TOKENS, e.count.as<uint32_t>(), workspace.at, 0, p.t->stream,
                           &err));
    CUDA(cudaStreamSynchronize(p.t->stream));
    return out.read<float>();
}
static std::vector<float> run_experts_chunk(const product_of &p, const gpu_buffer &weight)
{
    const one_expert e(p.m, weight);
    const gpu_buffer dx(halves_of(p.x)), out((size_t)TOKENS * p.m.rows * 4), first(2 * 4), pair(TOKENS * 4),
        place(TOKENS * 4);
    const struct gpuk_groups groups = {first.as<uint32_t>(), pair.as<uint32_t>(), place.as<uint32_t>()};
    GPUK(gpuk_experts_group(&e.choice, 1, e.slot.as<uint32_t>(), e.count.as<uint32_t>(), TOKENS, &groups, 0,
                            p.t->stream, &err));
    const struct gpuk_experts_down_chunk args = {e.matrix, 1, groups, DTYPE_BF16, dx.at, out.as<float>()};
    GPUK(gpuk_experts_down_chunk(&p.device, &args, TOKENS, 0, p.t->stream, &err));
    CUDA(cudaStreamSynchronize(p.t->stream));
    return out.read<float>();
}

/* Which kernel, of how many tokens, whether weights are rounded to bf16 first; how the device is told to take
 * it: false, it has no such kernel. */
static const struct product_way {
    const char *name;
    uint32_t tokens;
    bool rounds;
    double tolerance;
    product_run *run;
    bool (*choose)(struct gpuk_device *d);
} ways[] = {
    {"gemv", 1, false, 1e-5, run_gemv, [](struct gpuk_device *d) { return d->bulk_copy; }},
    {"gemv plain", 1, false, 1e-5, run_gemv,
     [](struct gpuk_device *d) { return d->bulk_copy = d->tensor_cores = false, true; }},
    {"chain", 1, false, 1e-5, run_chain, [](struct gpuk_device *d) { return d->bulk_copy; }},
    {"few integer", TOKENS, false, 1e-5, run_few,
     [](struct gpuk_device *d) { return d->gemm_integer = 3, d->bulk_copy; }},
    {"few stream", TOKENS, false, 5e-5, run_few,
     [](struct gpuk_device *d) { return d->gemm_integer = -1, d->bulk_copy; }},
    {"few tensor", TOKENS, false, 5e-5, run_few,
     [](struct gpuk_device *d) { return d->bulk_copy = false, d->tensor_cores; }},
    {"few plain", TOKENS, false, 1e-5, run_few,
     [](struct gpuk_device *d) { return d->bulk_copy = d->tensor_cores = false, true; }},
    {"short chunk", TOKENS, true, 1e-5, run_short, [](struct gpuk_device *d) { return d->tensor_cores; }},
    {"wide chunk", TOKENS, true, 1e-5, run_wide, [](struct gpuk_device *d) { return d->warpgroups; }},
    {"experts", TOKENS, false, 1e-5, run_experts, [](struct gpuk_device *d) { return d->bulk_copy; }},
    {"experts bulk", TOKENS, false, 1e-5, run_experts,
     [](struct gpuk_device *d) { return d->experts_digits = -1, d->bulk_copy; }},
    {"experts plain", TOKENS, false, 1e-5, run_experts,
     [](struct gpuk_device *d) { return d->bulk_copy = false, true; }},
    {"experts' wide chunk", TOKENS, true, 1e-5, run_experts_chunk,
     [](struct gpuk_device *d) { return d->experts_wide = -1, d->warpgroups; }},
    {"experts' chunk", TOKENS, true, 1e-5, run_experts_chunk,
     [](struct gpuk_device *d) { return d->warpgroups = false, d->tensor_cores; }},
    {"experts' chunk plain", TOKENS, false, 1e-5, run_experts_chunk,
     [](struct gpuk_device *d) { return d->tensor_cores = d->warpgroups = false, true; }},
};

/* Whether `got` is what row `row` of m times x is. A value smaller than fp32's normal numbers may be lost;
 * where the reference is infinite because it is beyond fp32 (MXFP4's 2^127 times a number) a sum may be a
 * finite number. */
static bool is_right(const odd_blocks &m, uint32_t row, const float *x, float got, const product_way &way)
{
    if (!m.finite(row)) return !isfinite(got) || (m.format == FORMAT_MXFP4 && fabsf(got) > 0x1p100f);
    double sum = 0, size = 0;
    for (uint32_t i = 0; i < m.cols; i++) {
        const float v = (float)m.value[(size_t)row * m.cols + i];
        const double term = (double)(way.rounds ? convert_bf16_f32(convert_f32_bf16(v)) : v) * x[i];
        sum += term, size += fabs(term);
    }
    return fabs(got - sum) <= way.tolerance * size + m.cols * 0x1p-126;
}

static void test_products(struct test_context *t, const odd_blocks &m, const gpu_buffer &workspace)
{
    std::vector<float> x = random_floats(t, (size_t)TOKENS * m.cols);
    for (float &v : x) v = convert_bf16_f32(convert_f32_bf16(v));
    const gpu_buffer plain(m.plain), odd(m.odd);
    for (const product_way &way : ways) {
        product_of p = {t, t->device, m, x, workspace};
        if (!way.choose(&p.device)) continue;
        const std::vector<float> before = way.run(p, plain), after = way.run(p, odd);
        uint32_t wrong = 0, touched = 0, spoiled = 0;
        for (uint32_t token = 0; token < way.tokens; token++)
            for (uint32_t r = 0; r < m.rows; r++) {
                const size_t at = (size_t)token * m.rows + r;
                spoiled += !isfinite(after[at]);
                if (odd_blocks::is_odd(r))
                    wrong += !is_right(m, r, &x[(size_t)token * m.cols], after[at], way);
                else
                    touched += !isfinite(after[at]) || memcmp(&before[at], &after[at], sizeof(float)) != 0;
            }
        char what[200];
        snprintf(what, sizeof what,
                 "odd scales of %s %u x %u, %s: %u sums wrong, %u of other rows touched, %u not finite",
                 name_of(m.format), m.rows, m.cols, way.name, wrong, touched, spoiled);
        check(t, wrong == 0 && touched == 0 && (spoiled || m.format == FORMAT_MXFP4), what);
    }
}

/* A chunk's weights and an embedding's rows: every value is the reference's. */
static void test_values(struct test_context *t, const odd_blocks &m)
{
    gpu_buffer weights(m.odd), out((size_t)m.rows * m.cols * 2), x((size_t)m.rows * m.cols * 4);
    const struct gpuk_expand_part part = {m.format, weights.at, nullptr, out.at, m.rows, m.cols};
    GPUK(gpuk_expand(&t->device, &part, 1, 2, t->stream, &err));
    std::vector<uint32_t> ids(m.rows);
    for (uint32_t r = 0; r < m.rows; r++) ids[r] = r;
    gpu_buffer count(std::vector<uint32_t>{m.rows}), tokens(ids);
    struct gpuk_step step = {};
    step.counts = count.as<uint32_t>(), step.token_id = tokens.as<uint32_t>();
    GPUK(gpuk_embed(&step, m.rows, weights.at, m.format, m.rows, m.cols, 1, x.as<float>(), 0, t->stream,
                    &err));
    CUDA(cudaStreamSynchronize(t->stream));
    const auto expanded = out.read<uint16_t>();
    const auto embedded = x.read<float>();
    size_t wrong[2] = {0, 0}, nans = 0, infinite = 0;
    for (size_t i = 0; i < m.value.size(); i++) {
        const float v = (float)m.value[i], half = convert_bf16_f32(expanded[i]);
        wrong[0] += isnan(v) ? !isnan(half) : expanded[i] != convert_f32_bf16(v);
        wrong[1] += isnan(v) ? !isnan(embedded[i]) : embedded[i] != v;
        nans += isnan(v), infinite += isinf(v);
    }
    char what[200];
    snprintf(what, sizeof what, "odd scales of %s %u x %u: %zu values expanded wrong, %zu embedded",
             name_of(m.format), m.rows, m.cols, wrong[0], wrong[1]);
    check(t, wrong[0] == 0 && wrong[1] == 0 && infinite && (nans || m.format == FORMAT_MXFP4), what);
}

void test_scales(struct test_context *t)
{
    const gpu_buffer workspace(
        std::max((size_t)GPUK_MATMUL_WORKSPACE, gpuk_gemm_small_workspace_bytes(ROOM, 4096)));
    for (int f = FORMAT_Q8_0; f < FORMAT_COUNT; f++)
        for (const uint32_t cols : {512u, 1280u, 4096u}) {
            if ((t->few && cols > 512) || (t->small && cols > 1280)) continue;
            const odd_blocks m(t, (enum tensor_format)f, cols);
            test_products(t, m, workspace);
            test_values(t, m);
        }
}
