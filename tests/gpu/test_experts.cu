/* The choice of experts against router_choose; a chunk's groups, its products with experts against sums in
 * double over the same 16-bit values, and their sum: every format and kernel, odd shapes, experts without
 * tokens and without slots. */
#include "tests/gpu/experts.cuh"

/* ---- the choice ----------------------------------------------------------------------------------- */

static void test_route_of(struct test_context *t, const struct model_router &router, uint32_t tokens,
                          uint32_t count, bool biased, bool ties, bool scaled = false)
{
    const uint32_t n = router.experts, k = router.chosen;
    char what[160];
    snprintf(what, sizeof what, "route of kind %d%s, %u of %u, %u of %u groups, %u of %u tokens%s%s",
             (int)router.score, router.normalise ? ", normalised" : "", k, n, router.groups_chosen,
             router.groups, count, tokens, biased ? ", biased" : "", ties ? ", ties" : "");
    std::vector<float> logits = random_floats(t, (size_t)tokens * n, 8), bias, scale = random_floats(t, n, 2);
    if (ties) /* few values, both zeros, infinities and what is no number among them */
        for (float &v : logits) {
            const float values[8] = {0.0f, -0.0f, 1.0f, -1.0f, 2.0f, -INFINITY, NAN, 0.5f};
            v = values[random_below(t, 8)];
        }
    if (ties && tokens > 1)
        for (uint32_t i = 0; i < n; i++) logits[n + i] = -INFINITY;
    if (biased)
        for (uint32_t i = 0; i < n; i++) bias.push_back((float)random_below(t, 5));
    gpu_buffer dlogits(logits), counts(std::vector<uint32_t>{count}), ids((size_t)tokens * k * 4),
        weights((size_t)tokens * k * 4);
    gpu_buffer *dbias = biased ? new gpu_buffer(bias) : nullptr;
    const gpu_buffer dscale(scale);
    const struct gpuk_choice out = {k, ids.as<uint32_t>(), weights.as<float>(),
                                    scaled ? dscale.as<float>() : nullptr};
    GPUK(gpuk_route(&router, counts.as<uint32_t>(), tokens, dlogits.as<float>(),
                    dbias ? dbias->as<float>() : nullptr, &out, 0, t->stream, &err));
    CUDA(cudaStreamSynchronize(t->stream));
    const std::vector<uint32_t> id = ids.read<uint32_t>(), raw = weights.read<uint32_t>();
    const std::vector<float> weight = weights.read<float>();
    std::vector<float> got;
    std::vector<double> expected;
    bool same = true, kept = true;
    for (uint32_t token = 0; token < tokens; token++) {
        uint32_t wanted[MODEL_EXPERTS_CHOSEN_MAX];
        float w[MODEL_EXPERTS_CHOSEN_MAX];
        router_choose(&router, &logits[(size_t)token * n], biased ? bias.data() : nullptr,
                      scaled ? scale.data() : nullptr, wanted, w);
        for (uint32_t j = 0; j < k; j++) {
            const size_t at = (size_t)token * k + j;
            if (token >= count) {
                kept = kept && id[at] == 0xffffffffu && raw[at] == 0xffffffffu;
                continue;
            }
            same = same && id[at] == wanted[j];
            got.push_back(weight[at]), expected.push_back(w[j]);
        }
    }
    check(t, same, what);
    check(t, kept, what);
    check_close(t, got, expected, 2e-6, what);
    delete dbias;
}

static void test_route(struct test_context *t)
{
    for (int kind = ROUTER_SOFTMAX; kind <= ROUTER_SIGMOID; kind++)
        for (int normalise = 0; normalise < 2; normalise++) {
            const enum router_score score = (enum router_score)kind;
            test_route_of(t, {score, 128, 8, normalise != 0, 1.0f, 1, 1}, 3, 3, false, false);
            test_route_of(t, {score, 8, 2, normalise != 0, 2.5f, 1, 1}, 9, 7, kind == ROUTER_SIGMOID, true);
            test_route_of(t, {score, 33, 32, normalise != 0, 1.0f, 1, 1}, 2, 2, false, true);
            test_route_of(t, {score, 128, 8, normalise != 0, 1.0f, 1, 1}, 5, 4, false, false, true);
            if (t->few) continue;
            test_route_of(t, {score, MODEL_EXPERTS_MAX, 6, normalise != 0, 1.0f, 1, 1}, 5, 5, false, false);
            test_route_of(t, {score, 1, 1, normalise != 0, 1.0f, 1, 1}, 1, 1, false, false);
        }
    test_route_of(t, {ROUTER_SIGMOID, 256, 8, true, 2.5f, 8, 4}, 6, 6, true, false);
    test_route_of(t, {ROUTER_SIGMOID, 256, 4, false, 1.0f, 64, 5}, 2, 2, true, true);
    test_route_of(t, {ROUTER_SIGMOID, 12, 3, true, 1.0f, 12, 3}, 4, 4, false, false);
    struct helm_err err = {};
    const struct gpuk_choice out = {};
    for (const struct model_router &bad :
         {model_router{ROUTER_SOFTMAX, MODEL_EXPERTS_MAX + 1, 1, true, 1, 1, 1},
          model_router{ROUTER_SOFTMAX, 40, MODEL_EXPERTS_CHOSEN_MAX + 1, true, 1, 1, 1},
          model_router{ROUTER_SOFTMAX, 4, 5, true, 1, 1, 1},
          model_router{ROUTER_SIGMOID, 8, 3, true, 1, 4, 1}})
        check(t, gpuk_route(&bad, nullptr, 1, nullptr, nullptr, &out, 0, t->stream, &err) == HELM_E_LIMIT,
              "a router beyond the limits is refused");
}

/* ---- the router's logits of a chunk ------------------------------------------------------------------ */

struct logits_case {
    uint32_t experts, cols, tokens, count;
    bool normed, biased;
};

static void test_logits_of(struct test_context *t, const logits_case &c)
{
    char what[160];
    snprintf(what, sizeof what, "router logits of %u of %u tokens, %u experts, %u columns%s%s", c.count,
             c.tokens, c.experts, c.cols, c.normed ? ", normed" : "", c.biased ? ", biases" : "");
    const uint32_t x_stride = c.cols + 3, out_stride = c.experts + 2,
                   part = c.tokens > GPUK_BATCH_MAX ? 256 : 64, parts = (c.cols + part - 1) / part;
    const float eps = 1e-6f;
    const std::vector<float> w = random_floats(t, (size_t)c.experts * c.cols),
                             x = random_floats(t, (size_t)c.tokens * x_stride, 3),
                             norm = random_floats(t, c.cols), bias = random_floats(t, c.experts);
    const gpu_buffer dw(w), dx(x), dnorm(norm), dbias(bias), counts(std::vector<uint32_t>{c.count});
    std::vector<float> result[2];
    for (int run = 0; run < 2; run++) { /* of all tokens at once, and of five at a time */
        const size_t each = (size_t)parts * (c.experts + 1) * 4;
        gpu_buffer out((size_t)c.tokens * out_stride * 4), workspace(run ? 5 * each + 3 : c.tokens * each);
        const struct gpuk_router_logits args = {dw.as<float>(),  c.biased ? dbias.as<float>() : nullptr,
                                                dx.as<float>(),  c.normed ? dnorm.as<float>() : nullptr,
                                                out.as<float>(), c.experts,
                                                c.cols,          x_stride,
                                                out_stride,      eps};
        GPUK(gpuk_router_logits(&args, c.tokens, counts.as<uint32_t>(), workspace.at, workspace.bytes, 0,
                                t->stream, &err));
        CUDA(cudaStreamSynchronize(t->stream));
        result[run] = out.read<float>();
    }
    std::vector<float> got;
    std::vector<double> expected, terms;
    bool kept = true;
    for (uint32_t token = 0; token < c.tokens; token++) {
        double squares = 0;
        for (uint32_t i = 0; i < c.cols; i++)
            squares += (double)x[(size_t)token * x_stride + i] * x[(size_t)token * x_stride + i];
        const double scale = c.normed ? 1 / sqrt(squares / c.cols + eps) : 1;
        for (uint32_t e = 0; e < out_stride; e++) {
            const size_t at = (size_t)token * out_stride + e;
            if (token >= c.count || e >= c.experts) {
                kept = kept && isnan(result[0][at]) && isnan(result[1][at]);
                continue;
            }
            double sum = c.biased ? bias[e] : 0, size = fabs(sum);
            for (uint32_t i = 0; i < c.cols; i++) {
                const double v = (double)x[(size_t)token * x_stride + i] * (c.normed ? norm[i] : 1) * scale *
                                 w[(size_t)e * c.cols + i];
                sum += v, size += fabs(v);
            }
            got.push_back(result[0][at]), expected.push_back(sum), terms.push_back(size);
        }
    }
    check_close(t, got, expected, 1e-6, what, &terms);
    check(t, kept, what);
    check_same(t, result[0], result[1], what);
}

static void test_logits(struct test_context *t)
{
    test_logits_of(t, {8, 300, 37, 35, true, false});
    test_logits_of(t, {5, 31, 3, 3, false, true});
    test_logits_of(t, {6, 200, 8, 7, true, true});
    if (t->few) return;
    test_logits_of(t, {130, 520, 40, 33, true, true});
    if (!t->small) test_logits_of(t, {128, 2048, 200, 200, true, false});
    struct helm_err err = {};
    const struct gpuk_router_logits wide = {nullptr, nullptr, nullptr, nullptr, nullptr, 8, 512, 512, 8, 0};
    check(t,
          gpuk_router_logits(&wide, 4, nullptr, nullptr, 2 * 9 * 4 - 1, 0, t->stream, &err) == HELM_E_LIMIT,
          "a workspace that holds no token's sums is refused");
}

/* ---- chunks --------------------------------------------------------------------------------------- */

struct chunk_case {
    enum tensor_format format;
    uint32_t experts, chosen, rows, cols, tokens, count;
    enum glu_kind glu;
    bool absent, biases;
};

static void test_chunk(struct test_context *t, const struct gpuk_device *device, const chunk_case &c)
{
    char what[200], part[240];
    snprintf(what, sizeof what, "chunk of %u of %u tokens, %u of %u experts of %s %u x %u%s%s, %s", c.count,
             c.tokens, c.chosen, c.experts, name_of(c.format), c.rows, c.cols,
             c.absent ? ", some absent" : "", c.biases ? ", biases" : "",
             device->warpgroups     ? "warpgroups"
             : device->tensor_cores ? "tensor cores"
                                    : "plain");
    const enum dtype dtype = tensor_format_of(c.format)->product,
                     /* of a down of another type */
        act_dtype = !c.absent            ? dtype
                    : dtype == DTYPE_F16 ? DTYPE_F32
                                         : DTYPE_F16;
    const bool round = c.format >= FORMAT_Q8_0 && device->tensor_cores;
    const std::vector<uint32_t> slot = random_slots(t, c.experts, c.absent),
                                id = random_choice(t, c.experts, c.chosen, c.tokens);
    const uint32_t pairs = c.tokens * c.chosen, counted = c.count * c.chosen;
    const std::vector<float> weight = random_floats(t, pairs);
    const test_role gate(t, c.format, c.experts, c.rows, c.cols, slot, c.biases),
        up(t, c.format, c.experts, c.rows, c.cols, slot, c.biases);
    gpu_buffer slots(slot), ids(id), weights(weight), counts(std::vector<uint32_t>{c.count}),
        first((c.experts + 1) * 4), pair(pairs * 4), place(pairs * 4);
    const struct gpuk_choice choice = {c.chosen, ids.as<uint32_t>(), weights.as<float>(), nullptr};
    const struct gpuk_groups groups = {first.as<uint32_t>(), pair.as<uint32_t>(), place.as<uint32_t>()};
    GPUK(gpuk_experts_group(&choice, c.experts, slots.as<uint32_t>(), counts.as<uint32_t>(), c.tokens,
                            &groups, 0, t->stream, &err));
    CUDA(cudaStreamSynchronize(t->stream));
    std::vector<uint32_t> firsts, order, places(pairs, 0xffffffffu);
    for (uint32_t e = 0; e < c.experts; e++) {
        firsts.push_back((uint32_t)order.size());
        for (uint32_t i = 0; i < counted; i++)
            if (id[i] == e && slot[e] != GPUK_SLOT_ABSENT)
                places[i] = (uint32_t)order.size(), order.push_back(i);
    }
    firsts.push_back((uint32_t)order.size());
    std::vector<uint32_t> got_pair = pair.read<uint32_t>();
    bool rest = true;
    for (uint32_t i = (uint32_t)order.size(); i < pairs; i++) rest = rest && got_pair[i] == 0xffffffffu;
    got_pair.resize(order.size());
    snprintf(part, sizeof part, "groups, %s", what);
    check(t,
          first.read<uint32_t>() == firsts && got_pair == order && rest && place.read<uint32_t>() == places,
          part);

    /* gate and up */
    const auto x = random_elements(t, (size_t)c.tokens * c.cols, dtype);
    const std::vector<double> xs = to_double(x, dtype);
    gpu_buffer dx(x), act((size_t)pairs * c.rows * bytes_of(act_dtype));
    struct gpuk_experts_glu_chunk glu = {gate.on_device(&slots),
                                         up.on_device(&slots),
                                         c.glu,
                                         c.chosen,
                                         groups,
                                         dtype,
                                         act_dtype,
                                         dx.at,
                                         act.at};
    GPUK(gpuk_experts_glu_chunk(device, &glu, c.tokens, 0, t->stream, &err));
    CUDA(cudaStreamSynchronize(t->stream));
    const std::vector<unsigned char> bytes = act.read<unsigned char>();
    const std::vector<double> acts = to_double(bytes, act_dtype);
    std::vector<float> got;
    std::vector<double> expected, terms;
    for (uint32_t p = 0; p < order.size(); p++)
        for (uint32_t r = 0; r < c.rows; r++) {
            const double *v = &xs[(size_t)(order[p] / c.chosen) * c.cols];
            double size_g, size_u;
            const double g = gate.product(id[order[p]], r, v, &size_g, round),
                         u = up.product(id[order[p]], r, v, &size_u, round);
            got.push_back((float)acts[(size_t)p * c.rows + r]);
            expected.push_back(test_glu_of(c.glu, g, u));
            terms.push_back(size_g * fabs(u) + size_u * fabs(g));
        }
    snprintf(part, sizeof part, "gate and up, %s", what);
    check_close(t, got, expected,
                dtype == DTYPE_BF16 || act_dtype == DTYPE_BF16 ? 4e-3
                : dtype == DTYPE_F16 || act_dtype == DTYPE_F16 ? 5e-4
                                                               : 1e-5,
                part, &terms);
    bool kept = true;
    for (size_t i = order.size() * c.rows * bytes_of(act_dtype); i < bytes.size(); i++)
        kept = kept && bytes[i] == 0xff;
    check(t, kept, part);
    if (c.rows % tensor_format_of(c.format)->block_values != 0) return;

    /* down and the sum, of other activations */
    const test_role down(t, c.format, c.experts, c.cols, c.rows, slot, c.biases);
    const auto inner = random_elements(t, (size_t)pairs * c.rows, dtype);
    const std::vector<double> inners = to_double(inner, dtype);
    const uint32_t stride =
        c.cols + (c.cols % 3 ? 1 : 4); /* rows of four are added up together, or one by one */
    const std::vector<float> before = random_floats(t, (size_t)c.tokens * stride);
    const bool adds = c.cols % 3 || random_below(t, 2); /* else it is what is there */
    std::vector<float> result[2];
    for (int run = 0; run < 2; run++) {
        gpu_buffer dinner(inner), sums((size_t)pairs * c.cols * 4), out(before);
        struct gpuk_experts_down_chunk args = {down.on_device(&slots), c.chosen, groups, dtype, dinner.at,
                                               sums.as<float>()};
        GPUK(gpuk_experts_down_chunk(device, &args, c.tokens, 0, t->stream, &err));
        GPUK(gpuk_experts_sum(&choice, &groups, sums.as<float>(), c.cols, counts.as<uint32_t>(), c.tokens,
                              adds ? out.as<float>() : nullptr, out.as<float>(), stride, 0, t->stream, &err));
        CUDA(cudaStreamSynchronize(t->stream));
        result[run] = out.read<float>();
    }
    got.clear(), expected.clear(), terms.clear(), kept = true;
    for (uint32_t token = 0; token < c.tokens; token++)
        for (uint32_t r = 0; r < stride; r++) {
            const size_t at = (size_t)token * stride + r;
            if (token >= c.count || r >= c.cols) {
                kept = kept && memcmp(&result[0][at], &before[at], 4) == 0;
                continue;
            }
            double sum = adds ? before[at] : 0, size = fabs(sum), magnitude;
            for (uint32_t j = 0; j < c.chosen; j++) {
                const uint32_t p = token * c.chosen + j;
                if (places[p] == GPUK_SLOT_ABSENT) continue;
                sum += weight[p] *
                       down.product(id[p], r, &inners[(size_t)places[p] * c.rows], &magnitude, round);
                size += fabs(weight[p]) * magnitude;
            }
            got.push_back(result[0][at]), expected.push_back(sum), terms.push_back(size);
        }
    snprintf(part, sizeof part, "down, %s", what);
    check_close(t, got, expected, 1e-5, part, &terms);
    check(t, kept, part);
    check_same(t, result[0], result[1], part);
}

void test_experts(struct test_context *t)
{
    test_route(t);
    test_logits(t);
    struct gpuk_device plain = t->device, small = t->device, few = t->device, wide = t->device;
    plain.tensor_cores = plain.warpgroups = few.warpgroups = small.warpgroups = false;
    wide.experts_wide = -1, small.shared_bytes_max = 99 << 10, few.sm_count = wide.sm_count = 2;
    for (int f = 0; f < FORMAT_COUNT; f++) {
        const enum tensor_format format = (enum tensor_format)f;
        if (tensor_format_of(format)->variable) continue;
        const uint32_t block = tensor_format_of(format)->block_values, rows = block > 32 ? block : 96;
        const bool odd = f % 2 != 0;
        test_chunk(t, &few,
                   {format, 3, 1, rows, block > 32 ? 512u : 288u, 11, 11, odd ? GLU_SILU : GLU_CLAMPED, false,
                    odd});
        if (wide.warpgroups &&
            (!t->few || f % 4 == 0)) /* experts without tokens, rows that are no whole tiles */
            test_chunk(t, &wide,
                       {format, 4, 2, block > 32 ? 256u : 160u, block > 32 ? 256u : 320u, 9, 8,
                        odd ? GLU_CLAMPED : GLU_SILU, f % 3 == 0, odd});
        if (f % 5 == 0 || !t->small)
            test_chunk(t, &plain, {format, 4, 2, rows, 256, 9, 7, odd ? GLU_CLAMPED : GLU_SILU, true, !odd});
        if (f % 6 == 0 || !t->small)
            test_chunk(t, &small, {format, 5, 2, rows, 256, 20, 18, GLU_SILU, true, false});
        if (t->small) continue;
        test_chunk(t, &t->device, {format, 16, 4, rows, 2048, 100, 100, GLU_SILU, false, false});
        if (block <= 32)
            test_chunk(t, &t->device, {format, 8, 4, 192, 2880, 40, 40, GLU_CLAMPED, false, true});
    }
    /* more than a tile of tokens an expert; columns and rows that are no whole steps; a stride that tensor
     * cores do not take */
    test_chunk(t, &few, {FORMAT_BF16, 2, 1, 72, 40, 150, 149, GLU_SILU, false, true});
    test_chunk(t, &few, {FORMAT_BF16, 2, 1, 24, 88, 230, 229, GLU_SILU, false, true});
    test_chunk(t, &few, {FORMAT_Q6_K, 1, 1, 20, 512, 130, 129, GLU_SILU, false, false});
    test_chunk(t, &few, {FORMAT_MXFP4, 1, 1, 64, 352, 100, 97, GLU_CLAMPED, false, true});
    test_chunk(t, &few, {FORMAT_FP8, 4, 2, 128, 256, 20, 17, GLU_SILU, true, false});
    test_chunk(t, &few, {FORMAT_F16, 5, 2, 33, 136, 70, 70, GLU_CLAMPED, true, true});
    test_chunk(t, &few, {FORMAT_BF16, 3, 2, 7, 30, 5, 5, GLU_SILU, true, false});
    if (wide.warpgroups) { /* one, two, three and four tiles of 64 tokens, and more than all of these */
        test_chunk(t, &wide, {FORMAT_BF16, 2, 1, 40, 192, 150, 149, GLU_SILU, false, true});
        test_chunk(t, &wide, {FORMAT_F16, 3, 1, 192, 192, 220, 219, GLU_CLAMPED, true, false});
        test_chunk(t, &wide, {FORMAT_Q8_0, 1, 1, 32, 256, 190, 190, GLU_SILU, false, false});
        test_chunk(t, &wide, {FORMAT_MXFP4, 1, 1, 224, 320, 270, 269, GLU_CLAMPED, false, true});
        if (!t->few) test_chunk(t, &wide, {FORMAT_Q6_K, 1, 1, 20, 512, 250, 250, GLU_SILU, false, false});
        /* a unit of one step after others: where weights have two rooms, tensor cores' other kernel takes
         * it */
        test_chunk(t, &wide, {FORMAT_Q8_0, 2, 1, 32, 320, 20, 20, GLU_SILU, false, false});
    }
    if (!t->few) test_chunk(t, &few, {FORMAT_Q8_0, 70, 3, 32, 64, 90, 80, GLU_SILU, true, false});
}
