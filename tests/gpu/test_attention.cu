/* Attention over paged KV, decode and prefill, and the append in front of it, against sums in double.
 *
 * The cache is filled with random rows, the step's own rows are appended by the kernels; attention's
 * reference then reads the very bytes that are in the cache, so that its tolerance is about attention alone.
 * Pages are scattered over two pools, the second of which is of other layers, too; with some left out, what
 * attention gives is merged with the reference's part of them. Tolerances: fp32 arithmetic 1e-5; decode on
 * tensor cores takes bf16 queries and weights (p) as a pair of numbers, 2^-16 (kernels.h): 2e-5, and what the
 * queries' part of that makes of the scores (struct attended); prefill on tensor cores rounds weights (p) to
 * the queries' 16-bit dtype, and q8_0's keys and values to f16: 4e-3 for bf16, 6e-4 for f16 and q8_0;
 * appended rows: half a unit of the last place, of q8_0 half a 127th of the largest of 32. Values are
 * appended as they come, so those of q8_0 have the very bits of kv_q8_0_write. */
#include "tests/gpu/attention.cuh"

static void name_case(const attention_case &c, const char *kind, char *what, size_t size)
{
    snprintf(what, size,
             "%s %s heads %u/%u dim %u latent %u page %u window %u, rows %zu, first from %u + %u%s", kind,
             kv_dtype_name((enum kv_dtype)c.dtype), c.heads, c.kv_heads, c.head_dim, c.latent, c.page_tokens,
             c.window, c.start.size(), c.start[0], c.count[0], c.norm ? " norm" : "");
}

static void test_decode(struct test_context *t, const attention_case &c, const struct gpuk_device *device)
{
    char what[200];
    attention_test a(t, c);
    const bool fused = a.step.tokens == 1 && !c.latent;
    const bool pairs = device->tensor_cores && (c.dtype == KV_BF16 || c.dtype == KV_Q8_0) &&
                       c.head_dim % 32 == 0 && c.page_tokens % 16 == 0;
    const auto tolerance = [&](const struct attended &by) { return pairs ? 2e-5 + by.pairs : 1e-5; };
    name_case(c, fused ? "decode fused" : "decode", what, sizeof what);
    const size_t heads = (size_t)a.step.tokens * c.heads;
    gpu_buffer workspace(gpuk_attention_workspace_bytes(a.step.tokens, c.heads, c.head_dim));
    CUDA(cudaMemset(workspace.at, 0, gpuk_attention_counter_bytes(a.step.tokens, c.heads)));
    CUDA(cudaDeviceSynchronize());
    gpu_buffer rotated(a.q.size() * 4);
    struct gpuk_attention args = a.args;
    if (!fused) {
        GPUK(gpuk_rope_append(&a.args, a.step.tokens, rotated.at, DTYPE_F32, 0, t->stream, &err));
        args.q = rotated.as<float>();
    }
    if (c.latent) {
        struct helm_err err = {};
        const int rc = gpuk_attention_decode(device, &args, a.step.tokens, false, rotated.as<float>(),
                                             nullptr, nullptr, workspace.at, 0, t->stream, &err);
        check(t, rc == HELM_E_USAGE && strstr(err.text, "latents"), what);
        args.k = args.v = nullptr;
    }
    struct gpuk_chain_op op = {GPUK_CHAIN_ATTENTION, {}};
    op.attention.args = args;
    const bool spreads = fused && gpuk_chain_takes(device, &op); /* by heads and pieces: two runs more */
    std::vector<float> got[4];
    gpu_buffer out(a.q.size() * 4), dm(heads * 4), ds(heads * 4);
    for (int run = spreads ? 0 : 2; run < 4; run++) {
        args.order = run < 2 ? GPUK_ORDER_SPREAD : GPUK_ORDER_TOGETHER;
        GPUK(gpuk_attention_decode(device, &args, a.step.tokens, fused, out.as<float>(), nullptr, nullptr,
                                   workspace.at, 0, t->stream, &err));
        CUDA(cudaStreamSynchronize(t->stream));
        got[run] = out.read<float>();
        if (run % 2) check_same(t, got[run - 1], got[run], what);
    }
    a.check_cache(t, what);
    const struct attended whole = a.attend(a.queries());
    check_close(t, got[2], whole.out, tolerance(whole), what);
    if (spreads) check_close(t, got[0], whole.out, 1e-5, what);
    GPUK(gpuk_attention_decode(device, &args, a.step.tokens, fused, out.as<float>(), dm.as<float>(),
                               ds.as<float>(), workspace.at, 0, t->stream, &err));
    CUDA(cudaStreamSynchronize(t->stream));
    auto o = out.read<float>(), gm = dm.read<float>(), gs = ds.read<float>();
    std::vector<double> sums;
    const std::vector<bool> every(a.step.page_table.size(), true);
    const struct attended bare = a.attend(a.queries(), &every);
    for (size_t i = 0; i < heads; i++) {
        sums.push_back(bare.s[i] *
                       exp(bare.m[i] - (double)gm[i])); /* relative to the maximum that is reported */
        for (uint32_t d = 0; d < c.head_dim; d++) o[i * c.head_dim + d] /= gs[i];
    }
    check_close(t, gm, bare.m, 1e-5, what);
    check_close(t, gs, sums, 2e-5, what);
    check_close(t, o, bare.out, tolerance(bare), what);

    /* another layer that reads these cells: it appends none */
    name_case(c, "decode without keys of its own", what, sizeof what);
    struct gpuk_attention reader = a.args;
    reader.k = reader.v = nullptr;
    GPUK(gpuk_rope_append(&reader, a.step.tokens, rotated.at, DTYPE_F32, 0, t->stream, &err));
    reader.q = rotated.as<float>();
    for (int order = GPUK_ORDER_TOGETHER; order <= GPUK_ORDER_ALONE; order++) {
        reader.order = (enum gpuk_order)order;
        GPUK(gpuk_attention_decode(device, &reader, a.step.tokens, false, out.as<float>(), nullptr, nullptr,
                                   workspace.at, 0, t->stream, &err));
        CUDA(cudaStreamSynchronize(t->stream));
        check_close(t, out.read<float>(), whole.out, tolerance(whole), what);
    }
    check(t, a.pool->read<unsigned char>() == a.cells[0] && a.pool_host->read<unsigned char>() == a.cells[1],
          what);
}

/* Some pages are absent: those in front, as a row's beginning says, or any. Attention over the others, merged
 * with the reference's part of these, is attention of one pass over all. */
static void test_absent(struct test_context *t, const attention_case &c, const struct gpuk_device *device,
                        bool in_front)
{
    char what[200];
    attention_test a(t, c);
    const bool pairs = device->tensor_cores && (c.dtype == KV_BF16 || c.dtype == KV_Q8_0) &&
                       c.head_dim % 32 == 0 && c.page_tokens % 16 == 0;
    name_case(c, in_front ? "absent in front" : "absent", what, sizeof what);
    std::vector<uint32_t> table = a.step.page_table, begin(a.step.rows, 0);
    std::vector<bool> absent(table.size(), false);
    for (uint32_t r = 0; r < a.step.rows; r++) {
        const uint32_t whole = c.start[r] / c.page_tokens; /* none that the step appends to */
        const uint32_t most = in_front && whole ? random_below(t, whole + 1) : 0;
        begin[r] = most * c.page_tokens;
        for (uint32_t i = 0; i < whole; i++)
            absent[a.entry_of(r, i * c.page_tokens)] = in_front ? i < most : random_below(t, 3) == 0;
    }
    for (size_t i = 0; i < table.size(); i++)
        if (absent[i]) table[i] = GPUK_PAGE_ABSENT;
    struct gpuk_attention args = a.args;
    args.step.page_table = a.step.device_copy(table);
    if (in_front) args.step.row_begin = a.step.device_copy(begin);
    const uint32_t tokens = a.step.tokens;
    const size_t heads = (size_t)tokens * c.heads;
    gpu_buffer workspace(gpuk_attention_workspace_bytes(tokens, c.heads, c.head_dim));
    CUDA(cudaMemset(workspace.at, 0, gpuk_attention_counter_bytes(tokens, c.heads)));
    CUDA(cudaDeviceSynchronize());
    gpu_buffer rotated(a.q.size() * 4), o(a.q.size() * 4), m(heads * 4), s(heads * 4), out(a.q.size() * 4);
    GPUK(gpuk_rope_append(&args, tokens, rotated.at, DTYPE_F32, 0, t->stream, &err));
    args.q = rotated.as<float>();
    if (c.latent) args.k = args.v = nullptr;
    GPUK(gpuk_attention_decode(device, &args, tokens, false, o.as<float>(), m.as<float>(), s.as<float>(),
                               workspace.at, 0, t->stream, &err));
    CUDA(cudaStreamSynchronize(t->stream));
    a.read_cells();
    const struct attended whole = a.attend(a.queries()), part = a.attend(a.queries(), &absent);
    std::vector<float> other;
    for (size_t i = 0; i < heads; i++) {
        other.push_back((float)part.m[i]), other.push_back((float)part.s[i]);
        for (uint32_t d = 0; d < c.head_dim; d++)
            other.push_back(part.s[i] > 0 ? (float)(part.out[i * c.head_dim + d] * part.s[i]) : 0);
    }
    gpu_buffer dother(other);
    struct gpuk_merge merge = {};
    merge.o = o.as<float>(), merge.m = m.as<float>(), merge.s = s.as<float>(),
    merge.other = dother.as<float>();
    merge.sinks = args.sinks, merge.gate = args.gate, merge.gate_stride = args.gate_stride;
    merge.heads = c.heads, merge.head_dim = c.head_dim, merge.out = out.as<float>();
    GPUK(gpuk_attention_merge(&merge, a.step.step.counts, tokens, 0, t->stream, &err));
    CUDA(cudaStreamSynchronize(t->stream));
    check_close(t, out.read<float>(), whole.out, pairs ? 2e-5 + whole.pairs : 1e-5, what);
    /* in place, as programs do it */
    struct gpuk_merge same = merge;
    same.out = o.as<float>();
    GPUK(gpuk_attention_merge(&same, a.step.step.counts, tokens, 0, t->stream, &err));
    CUDA(cudaStreamSynchronize(t->stream));
    check_same(t, out.read<float>(), o.read<float>(), what);
}

/* The same in parts: pages of random numbers of tiles of each row in pieces of one to three, then the
 * rest. */
static std::vector<float> attend_in_parts(struct test_context *t, const attention_test &a,
                                          const struct gpuk_device *device, const struct gpuk_prefill &whole,
                                          uint32_t tokens)
{
    const attention_case &c = a.c;
    const uint32_t tile = GPU_PREFILL_TILE > c.page_tokens ? GPU_PREFILL_TILE / c.page_tokens : 1;
    std::vector<uint32_t> before(1, 0);
    for (uint32_t r = 0; r < a.step.rows; r++)
        before.push_back(before.back() + random_below(t, c.start[r] / c.page_tokens / tile + 1) * tile);
    const size_t pairs = (size_t)a.step.tokens * c.heads;
    gpu_buffer out(pairs * c.head_dim * 4), o(pairs * c.head_dim * 4), state(pairs * GPU_PART_FLOATS * 4),
        places(before);
    struct gpuk_prefill prefill = whole;
    prefill.out = out.at;
    prefill.part = {places.as<uint32_t>(), (1 + random_below(t, 3)) * tile, 0, o.as<float>(),
                    state.as<float>()};
    for (; prefill.part.piece * prefill.part.pages < before.back(); prefill.part.piece++)
        GPUK(gpuk_attention_prefill(device, &prefill, tokens, 0, t->stream, &err));
    prefill.part.piece = GPUK_PART_LAST;
    GPUK(gpuk_attention_prefill(device, &prefill, tokens, 0, t->stream, &err));
    CUDA(cudaStreamSynchronize(t->stream));
    return out.read<float>();
}

static void test_prefill(struct test_context *t, const attention_case &c, const struct gpuk_device *device,
                         bool tensor)
{
    char what[200];
    attention_test a(t, c);
    name_case(c, tensor ? "prefill tensor" : "prefill", what, sizeof what);
    const enum dtype q_dtype = kv_query_dtype((uint32_t)c.dtype);
    gpu_buffer rotated(a.q.size() * dtype_bytes(q_dtype));
    /* capacities larger than the step, as in a tier */
    const uint32_t tokens = a.step.tokens + 70, rows = a.step.rows + 2;
    GPUK(gpuk_rope_append(&a.args, tokens, rotated.at, q_dtype, 0, t->stream, &err));
    std::vector<float> first;
    for (int run = 0; run < 2; run++) { /* the second in parts: the same bits */
        gpu_buffer out(a.q.size() * 4);
        const struct gpuk_prefill whole = {a.args, rotated.at, out.at, DTYPE_F32, rows, {}, nullptr};
        GPUK(gpuk_attention_prefill(device, &whole, tokens, 0, t->stream, &err));
        CUDA(cudaStreamSynchronize(t->stream));
        auto got = run == 0 ? out.read<float>() : attend_in_parts(t, a, device, whole, tokens);
        if (run == 0) first = got;
        check_same(t, first, got, what);
    }
    a.check_cache(t, what);
    auto queries = to_double(rotated.read<unsigned char>(), q_dtype);
    check_close(t, queries, a.queries(),
                q_dtype == DTYPE_BF16  ? 4e-3
                : q_dtype == DTYPE_F16 ? 5e-4
                                       : 2e-6,
                what);
    const std::vector<double> expected = a.attend(queries).out;
    check_close(t, first, expected, !tensor ? 1e-5 : c.dtype == KV_BF16 ? 4e-3 : 6e-4, what);
    /* positions in ranges, as many as a large device takes */
    if (tensor) {
        gpu_buffer workspace(GPUK_MATMUL_WORKSPACE), out(a.q.size() * 4);
        struct gpuk_device large = *device;
        large.sm_count = 132;
        const struct gpuk_prefill whole = {a.args, rotated.at, out.at, DTYPE_F32, rows, {}, workspace.at};
        GPUK(gpuk_attention_prefill(&large, &whole, tokens, 0, t->stream, &err));
        CUDA(cudaStreamSynchronize(t->stream));
        check_close(t, out.read<float>(), expected, c.dtype == KV_BF16 ? 4e-3 : 6e-4, what);
    }
    /* and in the dtype of activations */
    gpu_buffer half(a.q.size() * 2);
    const struct gpuk_prefill narrow = {a.args, rotated.at, half.at, DTYPE_BF16, rows, {}, nullptr};
    GPUK(gpuk_attention_prefill(device, &narrow, tokens, 0, t->stream, &err));
    CUDA(cudaStreamSynchronize(t->stream));
    check_close(t, to_double(half.read<unsigned char>(), DTYPE_BF16), expected, 6e-3, what);
}

/* Splits of contexts into pages that are absent, of either pool, in any order; head_dim 64 to 512, 1 to 8
 * query heads of a kv head. */
static void test_splits(struct test_context *t, const struct gpuk_device *device,
                        const struct gpuk_device *plain)
{
    const uint32_t dims[] = {64, 96, 128, 256, 512}, shares[] = {1, 2, 3, 4, 5, 8};
    const uint32_t far = t->few ? 100 : t->small ? 260 : 3000, times = t->few ? 1 : t->small ? 2 : 6;
    for (int dtype = 0; dtype < KV_DTYPE_COUNT; dtype++)
        for (const uint32_t dim : dims)
            for (uint32_t n = 0; n < (!t->small || dim <= 256 ? times : dtype != KV_BF16); n++) {
                const uint32_t share = shares[random_below(t, 6)], kv = 1 + random_below(t, 2);
                const uint32_t page = 16u << random_below(t, 6),
                               window = n % 3 == 2 ? 1 + random_below(t, far) : 0;
                const attention_case c = {
                    dtype,      share * kv,
                    kv,         dim,
                    page,       window,
                    n % 2 == 0, {random_below(t, far), random_below(t, far), random_below(t, 40)},
                    {1, 1, 1}};
                const uint32_t longest =
                    dim == 128 && n == 0 && far < 1500 ? 1500 : far; /* several tiles a warp */
                const attention_case one = {dtype, share * kv, kv, dim, page, 0, n % 2 == 1, {longest}, {1}};
                test_absent(t, c, n % 2 ? plain : device, n % 2 == 0);
                test_absent(t, one, device, true);
                if (!t->small) test_absent(t, c, device, n % 2 == 1);
            }
}

/* Contexts far longer than a block's tiles, where tensor cores take them and where they do not. */
static void test_long(struct test_context *t, const struct gpuk_device *many, const struct gpuk_device *plain)
{
    const uint32_t shapes[][3] = {{4, 1, 128}, {5, 1, 64},  {8, 1, 96}, {1, 1, 256},
                                  {2, 1, 128}, {16, 2, 64}, {8, 1, 512}};
    const uint32_t pages[] = {32, 512, 64, 16, 256, 128, 32};
    for (size_t i = 0; i < 7; i++)
        for (int dtype : {KV_BF16, KV_F16, KV_Q8_0}) {
            if (t->small && (t->few || i == 6 || dtype != (int[]){KV_F16, KV_Q8_0, KV_BF16}[i % 3])) continue;
            const uint32_t at = t->small ? 1500 + random_below(t, 1500) : 32000 + random_below(t, 767);
            const attention_case c = {dtype, shapes[i][0], shapes[i][1], shapes[i][2], pages[i],
                                      0,     i % 2 == 0,   {at},         {1}};
            test_decode(t, c, many);
            if (!t->small) test_decode(t, c, plain);
        }
}

/* Values that are the first numbers of keys: of DeepSeek's size, and of others that the kernels of usual
 * heads take. */
static void test_latent(struct test_context *t, const struct gpuk_device *device,
                        const struct gpuk_device *plain)
{
    const uint32_t shapes[][4] = {{16, 576, 512, 16}, {5, 96, 64, 16}, {3, 576, 512, 8}, {7, 320, 256, 32}};
    const uint32_t far = t->few ? 90 : t->small ? 400 : 2500;
    for (int dtype = 0; dtype < KV_DTYPE_COUNT; dtype++)
        for (size_t i = 0; i < (t->small ? 2 : 4); i++) {
            const uint32_t heads = shapes[i][0], dim = shapes[i][1], latent = shapes[i][2],
                           page = shapes[i][3];
            const attention_case one = {dtype, heads, 1, dim, page, 0, true, {far}, {1}, latent},
                                 few = {dtype,     heads, 1, dim, page, 0, true, {0, 17, far / 2},
                                        {3, 1, 2}, latent},
                                 many = {dtype, heads,   1,
                                         dim,   page,    0,
                                         true,  {37, 0}, {t->small ? 40u : 130u, 5},
                                         latent};
            test_decode(t, one, device);
            test_decode(t, few, plain);
            test_absent(t, few, device, i % 2 == 0);
            test_prefill(t, many, device, false); /* tensor cores take none of these sizes */
        }
}

void test_attention(struct test_context *t)
{
    struct gpuk_device plain = t->device;
    plain.tensor_cores = false;
    struct gpuk_device little = t->device; /* as cards for consumers have */
    if (little.shared_bytes_max > 99 << 10) little.shared_bytes_max = 99 << 10;
    struct gpuk_device many = t->device,
                       many_plain = plain; /* as many pieces of the context as there can be */
    many.sm_count = many_plain.sm_count = 132;
    /* heads, kv heads, head_dim, page: tensor cores take head_dim 64, 96, 128, 256 and 512 on pages of whole
     * 16 positions */
    const uint32_t shapes[][4] = {{8, 2, 128, 32},  {8, 1, 64, 16},  {5, 5, 80, 4},    {14, 2, 64, 8},
                                  {6, 2, 7, 16},    {16, 1, 256, 8}, {2, 2, 200, 32},  {20, 2, 128, 16},
                                  {10, 1, 64, 512}, {3, 1, 1, 4},    {16, 2, 512, 16}, {3, 1, 512, 8},
                                  {2, 2, 300, 8}};
    const uint32_t small_shapes[][4] = {{8, 2, 128, 16}, {10, 1, 64, 256}, {4, 4, 64, 4},
                                        {6, 2, 7, 8},    {3, 1, 512, 16},  {2, 1, 256, 32}};
    const uint32_t(*shape)[4] = t->small ? small_shapes : shapes;
    const size_t shape_count = t->few ? 2 : t->small ? 6 : 13;
    test_splits(t, &many, &many_plain);
    test_splits(t, &t->device, &plain);
    test_long(t, &many, &many_plain);
    test_latent(t, &many, &many_plain);
    /* a block that reads its queries for each tile, of a short row beside a long one: some ranges have no
     * positions */
    if (t->few && t->device.tensor_cores && t->device.shared_bytes_max >= 96 << 10)
        test_prefill(t, {KV_F16, 2, 1, 256, 32, 0, false, {100, 0}, {16, 5}}, &t->device, true);
    for (int dtype = 0; dtype < KV_DTYPE_COUNT; dtype++) {
        for (size_t i = 0; i < shape_count; i++) {
            if (t->small && shape[i][2] > 256 && dtype == KV_BF16) continue; /* as F16 */
            const uint32_t heads = shape[i][0], kv = shape[i][1], page = shape[i][3],
                           dim = dtype == KV_Q8_0 ? (shape[i][2] + 31) / 32 * 32 : shape[i][2];
            const bool norm = i % 2 == 0;
            const uint32_t far = t->few ? 140 : t->small ? 600 : 1900;
            const struct {
                attention_case c;
                const struct gpuk_device *device;
            } decodes[] = {
                {{dtype, heads, kv, dim, page, 0, norm, {0}, {1}}, &t->device},
                {{dtype, heads, kv, dim, page, 0, norm, {30}, {1}}, &t->device},
                {{dtype, heads, kv, dim, page, 0, norm, {64}, {1}}, &t->device},
                {{dtype, heads, kv, dim, page, 40, norm, {131}, {1}}, &t->device},
                {{dtype, heads, kv, dim, page, 0, norm, {far}, {1}}, &t->device},
                {{dtype, heads, kv, dim, page, 0, norm, {0, 17, far / 2, 5}, {3, 1, 2, 1}}, &t->device},
                {{dtype, heads, kv, dim, page, 20, norm, {7, 100}, {2, 5}}, &t->device},
                {{dtype, heads, kv, dim, page, 0, norm, {far}, {1}}, &many},
                {{dtype, heads, kv, dim, page, 333, norm, {far}, {1}}, &many_plain},
            };
            size_t turn =
                i + (size_t)dtype; /* small: of a shape every other one, of the next those between */
            for (const auto &decode : decodes)
                if (turn++ % 2 == 0 || !t->small || t->few) test_decode(t, decode.c, decode.device);
            const bool tensor = t->device.tensor_cores && dtype != KV_F32 &&
                                (dim == 64 || dim == 128 ||
                                 ((dim == 256 || dim == 512) && t->device.shared_bytes_max >= 96 << 10));
            const std::vector<attention_case> cases = {
                {dtype, heads, kv, dim, page, 0, norm, {0}, {t->small ? 70u : 200u}},
                {dtype, heads, kv, dim, page, 0, norm, {37, 0, 100}, {65, 5, t->small ? 16u : 64u}},
                {dtype, heads, kv, dim, page, 33, norm, {0, 90}, {130, 20}},
            };
            for (size_t n = 0; n < cases.size(); n++) {
                const attention_case &c = cases[n];
                /* small: of a shape two cases with tensor cores where it has them, and one without; of the
                 * next others */
                const size_t place = (n + i + (size_t)dtype) % cases.size();
                if (t->few ? c.start.size() == 3 : t->small && place == 2) continue;
                test_prefill(t, c, &t->device, tensor);
                if (tensor && (!t->small || t->few || place == 0)) test_prefill(t, c, &plain, false);
                if (tensor && dim > 128 && (!t->small || place == 1)) test_prefill(t, c, &little, true);
            }
        }
    }
}
