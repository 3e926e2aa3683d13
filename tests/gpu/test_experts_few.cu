/* A few tokens' experts against sums in double: every format and kernel, odd shapes, absent experts and such
 * as lie in host memory, fewer tokens than the tier, biases, both gated units; a token has the same bits
 * alone and among others, and in every run; nothing else is written. And which processor has which expert,
 * where two have some. */
#include "tests/gpu/experts.cuh"
#include "worker-gpu/kernels/experts/share.h"

#ifdef HELM_CUDA_EMULATED
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>
#endif

struct few_case {
    enum tensor_format format;
    uint32_t experts, chosen, rows, cols, tokens, count;
    enum glu_kind glu;
    bool absent, biases, norm;
    bool whole = false; /* every expert in its place, without a table of slots */
};

struct few_test {
    struct test_context *t;
    const struct gpuk_device *device;
    const few_case &c;
    const std::vector<uint32_t> &slot, &id;
    const std::vector<float> &weight;
    gpu_buffer *slots, *ids, *weights, *workspace;
    char what[200];

    struct gpuk_choice choice(uint32_t token) const
    {
        return {c.chosen, ids->as<uint32_t>() + token * c.chosen, weights->as<float>() + token * c.chosen,
                nullptr};
    }
    bool there(uint32_t pair) const { return slot[id[pair]] != GPUK_SLOT_ABSENT; }
};

/* Some of the case's tokens, run as a tier of their own. */
struct few_part {
    uint32_t token, tokens, count;
};
static const uint32_t X_APART = 4; /* floats from the end of a token's x to the next */

/* act of `tokens` tokens from `token` on. */
static std::vector<float> run_glu(const few_test &f, const test_role &gate, const test_role &up,
                                  const gpu_buffer &x, const gpu_buffer *norm, const few_part &part)
{
    const few_case &c = f.c;
    gpu_buffer act((size_t)part.tokens * c.chosen * c.rows * 4), counts(std::vector<uint32_t>{part.count});
    struct gpuk_experts_glu args = {};
    args.gate = gate.on_device(f.slots), args.up = up.on_device(f.slots), args.glu = c.glu;
    args.choice = f.choice(part.token), args.x_stride = c.cols + X_APART;
    args.x = x.as<float>() + part.token * args.x_stride, args.norm = norm ? norm->as<float>() : nullptr;
    args.eps = 1e-5f, args.act = act.as<float>();
    GPUK(gpuk_experts_glu(f.device, &args, part.tokens, part.tokens == 1 ? nullptr : counts.as<uint32_t>(),
                          f.workspace->at, 0, f.t->stream, &err));
    CUDA(cudaStreamSynchronize(f.t->stream));
    return act.read<float>();
}

static void test_glu(const few_test &f)
{
    struct test_context *t = f.t;
    const few_case &c = f.c;
    char what[240];
    snprintf(what, sizeof what, "gate and up, %s", f.what);
    const test_role gate(t, c.format, c.experts, c.rows, c.cols, f.slot, c.biases),
        up(t, c.format, c.experts, c.rows, c.cols, f.slot, c.biases);
    const std::vector<float> x = random_floats(t, (size_t)c.tokens * (c.cols + X_APART)),
                             norm = random_floats(t, c.cols, 2);
    gpu_buffer dx(x), dnorm(norm);
    const std::vector<float> act =
        run_glu(f, gate, up, dx, c.norm ? &dnorm : nullptr, {0, c.tokens, c.count});
    check_same(t, act, run_glu(f, gate, up, dx, c.norm ? &dnorm : nullptr, {0, c.tokens, c.count}), what);
    std::vector<float> got;
    std::vector<double> expected, terms;
    bool kept = true, alone = true;
    for (uint32_t pair = 0; pair < c.tokens * c.chosen; pair++) {
        const uint32_t token = pair / c.chosen;
        const float *a = &act[(size_t)pair * c.rows];
        if (token >= c.count || !f.there(pair)) {
            for (uint32_t r = 0; r < c.rows; r++) {
                uint32_t bits;
                memcpy(&bits, a + r, 4);
                kept = kept && bits == 0xffffffffu;
            }
            continue;
        }
        std::vector<double> v(&x[(size_t)token * (c.cols + X_APART)],
                              &x[(size_t)token * (c.cols + X_APART)] + c.cols);
        if (c.norm) {
            double squares = 0;
            for (const double d : v) squares += d * d;
            for (uint32_t i = 0; i < c.cols; i++) v[i] *= norm[i] / sqrt(squares / c.cols + 1e-5f);
        }
        for (uint32_t r = 0; r < c.rows; r++) {
            double size_g, size_u;
            const double g = gate.product(f.id[pair], r, v.data(), &size_g),
                         u = up.product(f.id[pair], r, v.data(), &size_u);
            got.push_back(a[r]), expected.push_back(test_glu_of(c.glu, g, u));
            terms.push_back(size_g * fabs(u) + size_u * fabs(g));
        }
    }
    check_close(t, got, expected, 1e-5, what, &terms);
    check(t, kept, what);
    for (uint32_t token = 0; token < c.count && c.tokens > 1; token++) {
        const std::vector<float> one = run_glu(f, gate, up, dx, c.norm ? &dnorm : nullptr, {token, 1, 1});
        alone = alone && memcmp(one.data(), &act[(size_t)token * c.chosen * c.rows], one.size() * 4) == 0;
    }
    snprintf(what, sizeof what, "gate and up, %s: the same bits alone", f.what);
    check(t, alone, what);
}

static std::vector<float> run_down(const few_test &f, const test_role &down, const gpu_buffer &act,
                                   const std::vector<float> &residual, bool in_place, const few_part &part)
{
    const few_case &c = f.c;
    const uint32_t stride = c.cols + X_APART;
    gpu_buffer out((size_t)part.tokens * stride * 4), counts(std::vector<uint32_t>{part.count});
    const std::vector<float> mine(residual.begin() + part.token * stride,
                                  residual.begin() + (part.token + part.tokens) * stride);
    gpu_buffer before(mine);
    struct gpuk_experts_down args = {};
    args.down = down.on_device(f.slots), args.choice = f.choice(part.token);
    args.act = act.as<float>() + (size_t)part.token * c.chosen * c.rows;
    args.residual = before.as<float>(), args.out = in_place ? before.as<float>() : out.as<float>();
    args.out_stride = stride;
    GPUK(gpuk_experts_down(f.device, &args, part.tokens, part.tokens == 1 ? nullptr : counts.as<uint32_t>(),
                           f.workspace->at, 0, f.t->stream, &err));
    CUDA(cudaStreamSynchronize(f.t->stream));
    return in_place ? before.read<float>() : out.read<float>();
}

/* Down has the columns of act, and as many rows as gate has columns. */
static void test_down(const few_test &f)
{
    struct test_context *t = f.t;
    const few_case &c = f.c;
    char what[240];
    snprintf(what, sizeof what, "down, %s", f.what);
    const uint32_t stride = c.cols + X_APART;
    const test_role down(t, c.format, c.experts, c.cols, c.rows, f.slot, c.biases);
    const std::vector<float> act = random_floats(t, (size_t)c.tokens * c.chosen * c.rows),
                             residual = random_floats(t, (size_t)c.tokens * stride);
    gpu_buffer dact(act);
    const std::vector<float> out = run_down(f, down, dact, residual, false, {0, c.tokens, c.count}),
                             in_place = run_down(f, down, dact, residual, true, {0, c.tokens, c.count});
    std::vector<float> got;
    std::vector<double> expected, terms;
    bool kept = true, same = true, alone = true;
    for (uint32_t token = 0; token < c.tokens; token++)
        for (uint32_t r = 0; r < stride; r++) {
            const size_t at = (size_t)token * stride + r;
            uint32_t bits;
            memcpy(&bits, &out[at], 4);
            if (token >= c.count || r >= c.cols) {
                kept = kept && bits == 0xffffffffu && memcmp(&in_place[at], &residual[at], 4) == 0;
                continue;
            }
            double sum = residual[at], size = fabs(sum);
            for (uint32_t j = 0; j < c.chosen; j++) {
                const uint32_t pair = token * c.chosen + j;
                if (!f.there(pair)) continue;
                const std::vector<double> v(&act[(size_t)pair * c.rows],
                                            &act[(size_t)pair * c.rows] + c.rows);
                double magnitude;
                sum += f.weight[pair] * down.product(f.id[pair], r, v.data(), &magnitude);
                size += fabs(f.weight[pair]) * magnitude;
            }
            got.push_back(out[at]), expected.push_back(sum), terms.push_back(size);
            same = same && memcmp(&in_place[at], &out[at], 4) == 0;
        }
    check_close(t, got, expected, 1e-5, what, &terms);
    check(t, kept, what);
    check(t, same, what);
    for (uint32_t token = 0; token < c.count && c.tokens > 1; token++) {
        const std::vector<float> one = run_down(f, down, dact, residual, false, {token, 1, 1});
        alone = alone && memcmp(one.data(), &out[(size_t)token * stride], c.cols * 4) == 0;
    }
    snprintf(what, sizeof what, "down, %s: the same bits alone", f.what);
    check(t, alone, what);
}

static void test_few(struct test_context *t, const struct gpuk_device *device, const few_case &c)
{
    const bool whole = c.whole || (tensor_format_of(c.format)->variable && !c.absent); /* without slots */
    std::vector<uint32_t> slot = random_slots(t, c.experts, c.absent);
    for (uint32_t e = 0; e < c.experts && whole; e++) slot[e] = e;
    for (uint32_t e = 0; e < c.experts; e++)
        if (slot[e] == GPUK_SLOT_ABSENT && random_below(t, 2)) slot[e] = GPUK_SLOT_HOST | e;
    const std::vector<uint32_t> id = random_choice(t, c.experts, c.chosen, c.tokens);
    const std::vector<float> weight = random_floats(t, id.size());
    gpu_buffer slots(slot), ids(id), weights(weight),
        workspace(gpuk_experts_workspace_bytes(c.tokens, c.chosen, c.cols));
    few_test f = {t, device, c, slot, id, weight, whole ? nullptr : &slots, &ids, &weights, &workspace, {}};
    snprintf(f.what, sizeof f.what, "%u of %u tokens, %u of %u experts of %s %u x %u%s%s%s%s, %d blocks, %s",
             c.count, c.tokens, c.chosen, c.experts, name_of(c.format), c.rows, c.cols,
             c.absent ? ", some absent, some in host memory" : "", c.biases ? ", biases" : "",
             c.norm ? ", norm" : "", c.glu ? ", clamped" : "", device->sm_count,
             c.whole             ? "whole"
             : device->bulk_copy ? "bulk"
                                 : "plain");
    test_glu(f);
    if (c.rows % tensor_format_of(c.format)->block_values == 0) test_down(f);
}

#ifdef HELM_CUDA_EMULATED
/* Tokens that choose an expert more than once end the kernel that has no room for it, before it writes
 * anything elsewhere. On a device the context would be lost. */
static void test_twice(struct test_context *t)
{
    const uint32_t tokens = 8, chosen = 4, rows = 256, cols = 256;
    const std::vector<uint32_t> slot = random_slots(t, chosen, false);
    const test_role role(t, FORMAT_Q4_K, chosen, rows, cols, slot, false);
    gpu_buffer ids(std::vector<uint32_t>(tokens * chosen, 0)), weights(random_floats(t, tokens * chosen)),
        x(random_floats(t, tokens * chosen * cols)), out(tokens * chosen * rows * 4);
    struct gpuk_experts_glu glu = {};
    struct gpuk_experts_down down = {};
    glu.gate = glu.up = down.down = role.on_device(nullptr);
    glu.choice = down.choice = {chosen, ids.as<uint32_t>(), weights.as<float>(), nullptr};
    glu.x = down.act = x.as<float>(), glu.x_stride = cols, glu.act = down.out = out.as<float>();
    down.out_stride = rows;
    for (int way = 0; way < 2; way++) {
        fflush(NULL);
        const pid_t child = fork();
        if (child == 0) {
            close(STDERR_FILENO);
            if (way == 0)
                GPUK(gpuk_experts_glu(&t->device, &glu, tokens, nullptr, nullptr, 0, t->stream, &err));
            else
                GPUK(gpuk_experts_down(&t->device, &down, tokens, nullptr, nullptr, 0, t->stream, &err));
            _exit(0);
        }
        int status = 0;
        check(t,
              child > 0 && waitpid(child, &status, 0) == child && WIFSIGNALED(status) &&
                  WTERMSIG(status) == SIGABRT,
              way ? "down: an expert chosen twice" : "gate and up: an expert chosen twice");
    }
}
#endif

/* The choice made by the kernel of gate and up is gpuk_route's, and so are its results. */
static void test_routed(struct test_context *t, const struct gpuk_device *device, uint32_t tokens)
{
    const uint32_t experts = 20, chosen = 3, rows = 9, cols = 256;
    const struct model_router router = {ROUTER_SOFTMAX, experts, chosen, true, 1.5f, 1, 1};
    const std::vector<uint32_t> slot = random_slots(t, experts, true);
    const test_role gate(t, FORMAT_Q4_K, experts, rows, cols, slot, false),
        up(t, FORMAT_Q4_K, experts, rows, cols, slot, false);
    std::vector<float> logits = random_floats(t, (size_t)tokens * experts);
    for (float &v : logits) v = floorf(v * 4); /* ties */
    const std::vector<float> x = random_floats(t, tokens * cols);
    gpu_buffer dlogits(logits), dx(x), slots(slot), count(std::vector<uint32_t>{tokens}),
        workspace(gpuk_experts_workspace_bytes(tokens, chosen, cols));
    std::vector<float> act[2], weight[2];
    std::vector<uint32_t> id[2];
    for (int way = 0; way < 2; way++) {
        gpu_buffer ids(tokens * chosen * 4), weights(tokens * chosen * 4),
            out((size_t)tokens * chosen * rows * 4);
        struct gpuk_experts_glu args = {};
        args.gate = gate.on_device(&slots), args.up = up.on_device(&slots);
        args.choice = {chosen, ids.as<uint32_t>(), weights.as<float>(), nullptr};
        args.x = dx.as<float>(), args.x_stride = cols, args.act = out.as<float>();
        if (way == 1) args.router = &router, args.logits = dlogits.as<float>();
        if (way == 0)
            GPUK(gpuk_route(&router, count.as<uint32_t>(), tokens, dlogits.as<float>(), nullptr, &args.choice,
                            0, t->stream, &err));
        GPUK(gpuk_experts_glu(device, &args, tokens, count.as<uint32_t>(), workspace.at, 0, t->stream, &err));
        CUDA(cudaStreamSynchronize(t->stream));
        act[way] = out.read<float>(), weight[way] = weights.read<float>(), id[way] = ids.read<uint32_t>();
    }
    check(t, id[0] == id[1], "the kernel's own choice is gpuk_route's");
    check_same(t, weight[0], weight[1], "weights of the kernel's own choice");
    check_same(t, act[0], act[1], "activations by the kernel's own choice");
}

/* Downs of one token make the gates' choice again where they may, with the same results. */
static void test_again(struct test_context *t, const struct gpuk_device *device, enum tensor_format format)
{
    const uint32_t experts = 40, chosen = 5, rows = 33, cols = 256;
    const struct model_router router = {ROUTER_SOFTMAX, experts, chosen, true, 1.5f, 1, 1};
    std::vector<uint32_t> slot(experts);
    for (uint32_t e = 0; e < experts; e++) slot[e] = e;
    const test_role down(t, format, experts, rows, cols, slot, true);
    gpu_buffer logits(random_floats(t, experts)), act(random_floats(t, chosen * cols)), ids(chosen * 4),
        weights(chosen * 4), out(rows * 4), workspace(gpuk_experts_workspace_bytes(1, chosen, cols));
    struct gpuk_experts_down args = {};
    args.down = down.on_device(nullptr), args.act = act.as<float>(), args.out = out.as<float>();
    args.choice = {chosen, ids.as<uint32_t>(), weights.as<float>(), nullptr}, args.out_stride = rows;
    GPUK(gpuk_route(&router, nullptr, 1, logits.as<float>(), nullptr, &args.choice, 0, t->stream, &err));
    std::vector<float> result[2];
    for (int way = 0; way < 2; way++) {
        if (way == 1) args.router = &router, args.logits = logits.as<float>();
        GPUK(gpuk_experts_down(device, &args, 1, nullptr, workspace.at, 0, t->stream, &err));
        CUDA(cudaStreamSynchronize(t->stream));
        result[way] = out.read<float>();
    }
    check_same(t, result[0], result[1], "downs that make the choice again");
}

/* Who has which of the chosen experts: as experts/share.h defines it, with the choice made here or before. */
static void test_ask(struct test_context *t, uint32_t tokens, uint32_t experts, uint32_t direct_permille,
                     bool routes)
{
    const uint32_t chosen = 3, width = 40, capacity = tokens + 2;
    const struct model_router router = {ROUTER_SOFTMAX, experts, chosen, true, 1, 1, 1};
    const std::vector<uint32_t> table = random_slots(t, experts, true);
    const std::vector<float> logits = random_floats(t, (size_t)tokens * experts),
                             x = random_floats(t, tokens * width);
    gpu_buffer dtable(table), dlogits(logits), dx(x), ids(tokens * chosen * 4), weights(tokens * chosen * 4),
        slots(experts * 4), seen(tokens * chosen * 4), lane((size_t)capacity * (width + 2 * chosen) * 4),
        count(std::vector<uint32_t>{tokens}), permille(std::vector<uint32_t>{direct_permille});
    struct gpuk_experts_ask ask = {};
    ask.choice = {chosen, ids.as<uint32_t>(), weights.as<float>(), nullptr}, ask.logits = dlogits.as<float>();
    ask.experts = experts, ask.table = dtable.as<uint32_t>(),
    ask.direct_permille = direct_permille ? permille.as<uint32_t>() : nullptr;
    ask.slot = slots.as<uint32_t>(), ask.x = dx.as<float>(), ask.width = width, ask.lane = lane.as<float>();
    ask.capacity = capacity, ask.seen = seen.as<uint32_t>();
    GPUK(gpuk_route(&router, count.as<uint32_t>(), tokens, dlogits.as<float>(), nullptr, &ask.choice, 0,
                    t->stream, &err));
    CUDA(cudaStreamSynchronize(t->stream));
    const std::vector<uint32_t> id = ids.read<uint32_t>();
    const std::vector<float> weight = weights.read<float>();
    gpu_buffer bell(std::vector<uint32_t>{6});
    if (routes) ask.router = &router, ask.bell = bell.as<uint32_t>(), ask.ticket = 7;
    GPUK(gpuk_experts_ask(&ask, tokens, count.as<uint32_t>(), 0, t->stream, &err));
    CUDA(cudaStreamSynchronize(t->stream));
    check(t, ids.read<uint32_t>() == id && seen.read<uint32_t>() == id, "asking: the choice is gpuk_route's");
    std::vector<uint32_t> expected = table;
    uint32_t missing = 0;
    std::vector<bool> wanted(experts);
    for (const uint32_t e : id) wanted[e] = table[e] == GPUK_SLOT_ABSENT;
    for (uint32_t e = 0; e < experts; e++) missing += wanted[e];
    uint32_t direct = (missing * direct_permille + 500) / 1000;
    for (uint32_t e = 0; e < experts; e++)
        if (wanted[e] && direct) expected[e] = GPUK_SLOT_HOST | e, wanted[e] = false, direct--;
    check(t, slots.read<uint32_t>() == expected, "asking: where this step's experts are");
    const std::vector<float> sent = lane.read<float>();
    bool same = memcmp(sent.data(), x.data(), x.size() * 4) == 0;
    for (uint32_t p = 0; p < tokens * chosen; p++) {
        uint32_t asked;
        memcpy(&asked, &sent[(size_t)capacity * width + p], 4);
        same = same && asked == (wanted[id[p]] ? id[p] : GPUK_SLOT_ABSENT);
        same = same && memcmp(&sent[(size_t)capacity * (width + chosen) + p], &weight[p], 4) == 0;
    }
    check(t, same, "asking: what is sent");
    check(t, bell.read<uint32_t>()[0] == (routes ? 7 : 6), "asking: the word that says so");
    gpu_buffer out((size_t)tokens * width * 4);
    /* a word that is there, or is past: with 6 in it the kernel would wait */
    const struct gpuk_experts_add add = {dx.as<float>(), lane.as<float>(),    out.as<float>(),
                                         width,          bell.as<uint32_t>(), routes ? 7u : 5u};
    GPUK(gpuk_experts_add(&add, tokens, count.as<uint32_t>(), 0, t->stream, &err));
    CUDA(cudaStreamSynchronize(t->stream));
    const std::vector<float> sum = out.read<float>();
    for (size_t i = 0; i < sum.size(); i++) same = same && sum[i] == x[i] + x[i];
    check(t, same, "adding the answer");
}

void test_experts_few(struct test_context *t)
{
    struct gpuk_device plain = t->device, few = t->device, one = t->device;
    plain.bulk_copy = false, few.sm_count = 3, one.sm_count = 1;
    for (int f = 0; f < FORMAT_COUNT; f++) {
        const enum tensor_format format = (enum tensor_format)f;
        if (tensor_format_of(format)->variable) continue;
        const uint32_t block = tensor_format_of(format)->block_values, rows = block > 32 ? block : 96;
        const bool odd = f % 2 != 0;
        test_few(t, &few, {format, 6, 2, rows, block > 32 ? 512u : 352u, 1, 1, GLU_SILU, false, odd, true});
        test_few(t, &few,
                 {format, 6, 3, rows, block > 32 ? 512u : 352u, 1, 1, odd ? GLU_CLAMPED : GLU_SILU, false,
                  !odd, odd, true});
        if (f % 3 == 0 || !t->few)
            test_few(t, &t->device,
                     {format, 5, 3, rows, 256, 5, 4, odd ? GLU_CLAMPED : GLU_SILU, true, !odd, odd});
        if (f % 4 == 0 || !t->small)
            test_few(t, &plain,
                     {format, 5, 2, rows, 256, 3, 2, odd ? GLU_SILU : GLU_CLAMPED, true, odd, !odd});
        if (t->small) continue;
        const few_case large[] = {{format, 32, 8, rows, 2048, 16, 16, GLU_SILU, false, false, true},
                                  {format, 8, 2, 768, 1024, 16, 11, GLU_SILU, false, false, true},
                                  {format, 16, 8, 768, 2048, 1, 1, GLU_SILU, false, false, true},
                                  {format, 16, 8, 768, 2048, 1, 1, GLU_SILU, false, true, true, true},
                                  {format, 6, 4, 192, 2880, 2, 2, GLU_CLAMPED, true, true, true},
                                  {format, 6, 4, 2880, 352, 3, 3, GLU_CLAMPED, true, true, true}};
        for (uint32_t i = 0; i < (block <= 32 ? 6 : 4); i++) test_few(t, &t->device, large[i]);
    }
    /* packed: units of one, two and four rows, some tokens, more experts than a block has warps */
    test_few(t, &few, {FORMAT_BF16_PACKED, 3, 2, 256, 1024, 1, 1, GLU_SILU, false, true, true});
    test_few(t, &few, {FORMAT_BF16_PACKED, 4, 3, 768, 512, 5, 4, GLU_CLAMPED, false, false, false});
    test_few(t, &one, {FORMAT_BF16_PACKED, 10, 9, 256, 256, 2, 2, GLU_SILU, false, true, true});
    test_few(t, &few, {FORMAT_BF16_PACKED, 9, 7, 256, 768, 3, 3, GLU_SILU, true, true, true});
    if (!t->small)
        test_few(t, &t->device, {FORMAT_BF16_PACKED, 16, 8, 768, 2048, 16, 11, GLU_SILU, false, false, true});
    /* no row begins where copies may, nor is a matrix a whole number of vectors */
    test_few(t, &t->device, {FORMAT_BF16, 4, 2, 7, 30, 2, 2, GLU_SILU, false, true, true});
    test_few(t, &t->device, {FORMAT_F32, 4, 1, 1, 5, 3, 3, GLU_CLAMPED, true, false, false});
    /* more units a warp than it looks up at once */
    test_few(t, &one, {FORMAT_Q8_0, 4, 2, 640, 32, 1, 1, GLU_SILU, false, true, true});
    /* more pairs than vectors have room, with blocks and as plain numbers */
    test_few(t, &few, {FORMAT_Q4_0, 3, 3, 33, 4096, 16, 16, GLU_SILU, false, false, true});
    test_few(t, &few, {FORMAT_BF16, 3, 2, 8, 8192, 6, 6, GLU_SILU, false, false, true});
    if (!t->few) test_few(t, &few, {FORMAT_Q8_0, 40, 32, 64, 64, 4, 4, GLU_SILU, true, false, false});
#ifdef HELM_CUDA_EMULATED
    test_twice(t);
#endif
    for (uint32_t tokens : {1u, 7u})
        for (struct gpuk_device *device : {&t->device, &plain}) test_routed(t, device, tokens);
    for (const enum tensor_format format : {FORMAT_Q4_K, FORMAT_Q6_K, FORMAT_BF16})
        test_again(t, &few, format);
    for (uint32_t tokens : {1u, 5u, 16u})
        for (uint32_t direct : {0u, 400u, 1000u})
            for (uint32_t experts : {6u, 70u}) test_ask(t, tokens, experts, direct, tokens != 5);
    test_ask(t, 40, 70, 0, false);
    struct helm_err err = {};
    struct gpuk_experts_glu glu = {};
    check(t, gpuk_experts_glu(&t->device, &glu, 1, nullptr, nullptr, 0, t->stream, &err) == HELM_E_LIMIT,
          "no experts are refused");
}
