/* Linear layers over packed weights against gpuk_expand and then gpuk_gemv, bit for bit: shapes whose tiles
 * end inside rows, odd rows, slices of a matrix, escapes few and many, groups that are stored raw, all
 * fusions, few and many blocks, whole matrices of large models. Layers that are not taken are refused.
 * Nothing beside the outputs is written. */
#include "tests/gpu/harness.cuh"

extern "C" {
#include "common/formats/packed.h"
}

enum fill { FILL_NORMAL, FILL_WIDE, FILL_BITS, FILL_TILES, FILL_MIXED, FILL_COUNT };

/* Finite, so that sums can be compared with references; `bits`: of 200 exponents, which is stored raw. */
static uint16_t weight_of(struct test_context *t, int fill)
{
    const uint32_t bits = random_below(t, 65536);
    double sum = 0;
    for (int i = 0; i < 6; i++) sum += random_uniform(t);
    if (fill == FILL_BITS) return (uint16_t)((bits & 0x807f) | (20 + bits / 128 % 200) << 7);
    if (fill == FILL_WIDE && bits % 3 == 0) return (uint16_t)((bits & 0x807f) | (90 + bits / 128 % 40) << 7);
    return convert_f32_bf16((float)(sum * 0.02));
}

struct packed_matrix {
    uint32_t rows;
    std::vector<uint32_t> offset;
    gpu_buffer *packed, *table;
    uint32_t raw_groups, escapes;
};

static const uint32_t POOL_GROUPS = 12; /* of large matrices only these differ, a multiple of three */

/* A packed matrix in device memory, and how it came to be packed. */
static packed_matrix make_matrix(struct test_context *t, uint32_t rows, uint32_t cols, int fill)
{
    packed_matrix m = {};
    m.rows = rows;
    std::vector<uint16_t> value((size_t)rows * cols);
    const size_t pool = std::min(value.size(), (size_t)POOL_GROUPS * PACKED_ROWS * cols);
    for (size_t i = 0; i < pool; i++) {
        const size_t group = i / ((size_t)PACKED_ROWS * cols);
        value[i] = weight_of(t, fill == FILL_MIXED ? (int)(group % 3) : fill);
        /* whole tiles of escapes between others */
        if (fill == FILL_TILES && i % ((size_t)PACKED_ROWS * cols) / PACKED_TILE % 4 == 1)
            value[i] = (uint16_t)((value[i] & 0x807f) | (60 + value[i] % 8) << 7);
    }
    for (size_t i = pool; i < value.size(); i += pool)
        memcpy(&value[i], value.data(), std::min(pool, value.size() - i) * sizeof value[0]);
    m.offset.resize(packed_groups(rows) + 1);
    std::vector<unsigned char> room(packed_matrix_bytes_max(rows, cols) + PACKED_ALIGN);
    unsigned char *at = room.data();
    at += (PACKED_ALIGN - (uintptr_t)at % PACKED_ALIGN) % PACKED_ALIGN;
    GPUK(packed_write_matrix(value.data(), rows, cols, at, m.offset.data(), &err));
    for (uint32_t g = 0; g < packed_groups(rows); g++) {
        struct packed_header header;
        memcpy(&header, at + packed_at(m.offset.data(), g), sizeof header);
        m.raw_groups += header.kind == PACKED_RAW;
        m.escapes += header.escapes;
    }
    m.packed =
        new gpu_buffer(std::vector<unsigned char>(at, at + packed_at(m.offset.data(), packed_groups(rows))));
    m.table = new gpu_buffer(m.offset);
    return m;
}

struct packed_case {
    uint32_t cols, segments, rows[3];
    int fill;
    bool norm, bias, residual, swiglu;
    uint32_t first; /* groups in front of what is multiplied */
};

/* By every way of `ways` against expanded weights multiplied by the device's own gemv. */
static void run_case(struct test_context *t, const std::vector<struct gpuk_device> &ways,
                     const packed_case &c)
{
    char what[200];
    const struct gpuk_device *device = &ways[0];
    snprintf(what, sizeof what, "packed gemv %u x %u from group %u (%u matrices), fill %d, %d blocks%s%s%s%s",
             c.rows[0], c.cols, c.first, c.segments, c.fill, device->sm_count, c.norm ? " norm" : "",
             c.bias ? " bias" : "", c.residual ? " residual" : "", c.swiglu ? " swiglu" : "");
    struct gpuk_linear_args args = {};
    args.format = FORMAT_BF16_PACKED, args.cols = c.cols, args.segments = c.segments;
    args.eps = 1e-6f, args.swiglu = c.swiglu;
    std::vector<gpu_buffer *> owned;
    const auto keep = [&](gpu_buffer *b) {
        owned.push_back(b);
        return b;
    };
    struct gpuk_expand_part part[GPUK_SEGMENTS_MAX];
    struct gpuk_linear_args plain = args;
    plain.format = FORMAT_BF16;
    std::vector<gpu_buffer *> out;
    for (uint32_t s = 0; s < c.segments; s++) {
        const packed_matrix m = make_matrix(t, c.rows[s] + c.first * PACKED_ROWS, c.cols, c.fill);
        if (c.fill == FILL_BITS) check(t, m.raw_groups == packed_groups(m.rows), what);
        if (c.fill == FILL_WIDE && m.rows >= PACKED_ROWS) /* a short last group may be raw */
            check(t, m.raw_groups <= m.rows % PACKED_ROWS && m.escapes > m.rows / 16 * c.cols, what);
        const uint32_t *offset = keep(m.table)->as<uint32_t>() + c.first;
        const char *from = keep(m.packed)->as<char>() + packed_at(m.offset.data(), c.first);
        const float *bias = c.bias ? keep(new gpu_buffer(random_floats(t, c.rows[s])))->as<float>() : nullptr;
        gpu_buffer *weights = keep(new gpu_buffer((size_t)c.rows[s] * c.cols * 2));
        part[s] = {FORMAT_BF16_PACKED, from, offset, weights->at, c.rows[s], c.cols};
        out.push_back(keep(new gpu_buffer((size_t)(c.rows[s] + 16) * sizeof(float))));
        args.segment[s] = {from, offset, bias, out[s]->as<float>(), c.rows[s]};
        plain.segment[s] = args.segment[s], plain.segment[s].weight = weights->at;
    }
    args.x = keep(new gpu_buffer(random_floats(t, c.cols)))->as<float>();
    if (c.norm) args.norm = keep(new gpu_buffer(random_floats(t, c.cols)))->as<float>();
    if (c.residual) args.residual = keep(new gpu_buffer(random_floats(t, c.rows[0])))->as<float>();
    plain.x = args.x, plain.norm = args.norm, plain.residual = args.residual;
    gpu_buffer workspace(gpuk_gemv_workspace_bytes(c.cols));
    GPUK(gpuk_expand(device, part, c.segments, 0, t->stream, &err));
    GPUK(gpuk_gemv(device, &plain, workspace.at, 0, t->stream, &err));
    std::vector<std::vector<uint32_t>> expected;
    for (gpu_buffer *b : out) expected.push_back(b->read<uint32_t>());
    for (const struct gpuk_device &way : ways) {
        for (gpu_buffer *b : out) CUDA(cudaMemset(b->at, 0xff, b->bytes));
        CUDA(cudaDeviceSynchronize());
        check(t, gpuk_linear_takes(&way, &args, GPUK_ONE), what);
        GPUK(gpuk_gemv(&way, &args, nullptr, 0, t->stream, &err));
        for (uint32_t s = 0; s < (c.swiglu ? 1 : c.segments); s++) {
            const auto got = out[s]->read<uint32_t>();
            size_t wrong = 0, empty = 0;
            for (size_t i = 0; i < got.size(); i++) wrong += got[i] != expected[s][i];
            for (uint32_t r = 0; r < c.rows[s]; r++) empty += got[r] == 0xffffffffu;
            char text[400];
            snprintf(text, sizeof text,
                     "%s: way %d (%s copies, at most %d warps, %d slots): of matrix %u %zu rows have other "
                     "bits, %zu are not written",
                     what, (int)(&way - &ways[0]), way.bulk_copy ? "bulk" : "asynchronous", way.packed_warps,
                     way.packed_slots, s, wrong, empty);
            check(t, wrong == 0 && empty == 0, text);
        }
    }
    for (gpu_buffer *b : owned) delete b;
}

static void check_refusals(struct test_context *t)
{
    gpu_buffer some(4096);
    struct gpuk_linear_args args = {};
    args.format = FORMAT_BF16_PACKED, args.cols = 512, args.segments = 1, args.x = some.as<float>();
    args.segment[0] = {some.at, some.as<uint32_t>(), nullptr, some.as<float>(), 16};
    struct helm_err err = {};
    struct gpuk_device none = t->device, old = t->device, other = t->device;
    none.bulk_copy = old.bulk_copy = false, old.capability = 75, other.gemv_tile_bytes = 2048;
    check(t, gpuk_linear_takes(&t->device, &args, GPUK_ONE), "packed gemv of 512 columns");
    check(t, gpuk_linear_takes(&none, &args, GPUK_ONE), "packed gemv without bulk copies");
    check(t, !gpuk_linear_takes(&old, &args, GPUK_ONE), "packed gemv without asynchronous copies");
    check(t, !gpuk_linear_takes(&other, &args, GPUK_ONE), "packed gemv where gemv has other tiles");
    /* a card with few multiprocessors and 99 KiB a block: all that leaves room for x */
    struct gpuk_device card = none;
    card.capability = 86, card.sm_count = 24, card.shared_bytes_max = 99 << 10;
    for (uint32_t cols : {4096u, 5120u, 9728u, 12288u, 17408u}) {
        args.cols = cols, args.segment[0].rows = 151936;
        check(t, gpuk_linear_takes(&card, &args, GPUK_ONE), "packed gemv of a head on a small card");
    }
    args.cols = 25600;
    check(t, !gpuk_linear_takes(&card, &args, GPUK_ONE), "packed gemv of 25600 columns on a small card");
    args.segment[0].rows = 16;
    args.cols = 768;
    check(t, !gpuk_linear_takes(&t->device, &args, GPUK_ONE), "packed gemv of 768 columns");
    check(t, gpuk_gemv(&t->device, &args, nullptr, 0, t->stream, &err) == HELM_E_UNSUPPORTED,
          "packed gemv of 768 columns is refused");
    args.cols = 512;
    check(t, !gpuk_linear_takes(&t->device, &args, GPUK_FEW), "packed gemm");
    check(t, !gpuk_linear_takes(&t->device, &args, GPUK_CHUNK), "packed matrix products");
    args.x = some.as<float>() + 1;
    check(t, !gpuk_linear_takes(&t->device, &args, GPUK_ONE), "packed gemv of x that is not aligned");
    args.x = some.as<float>(), args.segment[0].offset = (const uint32_t *)(some.as<char>() + 2);
    check(t, gpuk_gemv(&t->device, &args, nullptr, 0, t->stream, &err) == HELM_E_USAGE,
          "packed gemv of a table that is not aligned");
    args.segment[0].offset = nullptr;
    check(t, gpuk_gemv(&t->device, &args, nullptr, 0, t->stream, &err) == HELM_E_USAGE,
          "packed gemv without a table");
}

void test_gemv_packed(struct test_context *t)
{
    check_refusals(t);
    if (!t->device.bulk_copy) return; /* nothing here adds up in the same order */
    const auto ways_of = [](struct gpuk_device first) {
        struct gpuk_device copied = first, wide = first, other = first, narrow = first;
        copied.bulk_copy = false;
        wide.packed_warps = 24;
        other.packed_warps = 8, other.packed_slots = 3, other.packed_blocks = 2;
        narrow.bulk_copy = false, narrow.packed_warps = 4; /* as where shared memory is short */
        return std::vector<struct gpuk_device>{first, copied, wide, other, narrow};
    };
    struct gpuk_device few_of = t->device, eight_of = t->device;
    few_of.sm_count = 2, eight_of.gemv_warps = 8;
    const std::vector<struct gpuk_device> all = ways_of(t->device), few = ways_of(few_of),
                                          eight = ways_of(eight_of);
    const struct {
        uint32_t rows, cols;
    } small[] = {{1, 512}, {3, 1536}, {16, 1024}, {33, 512}, {47, 2560}, {80, 1024}},
      large[] = {{300, 4096}, {131, 9728}, {48, 12288}, {40, 25600}, {9000, 512}};
    for (const auto &s : small)
        for (int fill = 0; fill < FILL_COUNT; fill++) {
            if (t->few && (fill == FILL_NORMAL || s.rows > 33)) continue;
            const uint32_t third = s.rows / 3 + 1;
            run_case(t, all, {s.cols, 1, {s.rows}, fill, true, true, true, false, 0});
            run_case(t, few, {s.cols, 2, {s.rows, s.rows}, fill, true, true, false, true, 1});
            if (t->small) continue;
            run_case(t, few, {s.cols, 1, {s.rows}, fill, false, false, true, false, 2});
            run_case(t, eight, {s.cols, 3, {s.rows, third, third}, fill, true, true, false, false, 0});
            run_case(t, all, {s.cols, 3, {s.rows, 16, 32}, fill, false, false, false, false, 1});
            run_case(t, all, {s.cols, 2, {s.rows, s.rows}, fill, false, false, false, true, 0});
        }
    /* several batches of sums a block, among them one that has little left for the last */
    run_case(t, few, {2560, 2, {128, 128}, FILL_MIXED, true, false, false, true, 0});
    if (t->few) return;
    run_case(t, few, {512, 3, {2060, 33, 16}, FILL_NORMAL, false, true, false, false, 0});
    if (t->small) return;
    for (const auto &s : large)
        for (int fill : {FILL_NORMAL, FILL_MIXED}) {
            run_case(t, all, {s.cols, 1, {s.rows}, fill, false, true, true, false, 1});
            run_case(t, few, {s.cols, 2, {s.rows, s.rows}, fill, true, false, false, true, 0});
        }
    /* whole matrices of 8B, 14B and 32B shapes, and heads */
    const packed_case whole[] = {{4096, 3, {4096, 1024, 1024}, FILL_NORMAL, true, true, false, false, 0},
                                 {4096, 1, {4096}, FILL_MIXED, false, false, true, false, 0},
                                 {4096, 2, {12288, 12288}, FILL_NORMAL, true, false, false, true, 0},
                                 {12288, 1, {4096}, FILL_NORMAL, false, false, true, false, 0},
                                 {5120, 3, {5120, 1024, 1024}, FILL_MIXED, true, true, false, false, 0},
                                 {5120, 2, {17408, 17408}, FILL_NORMAL, true, false, false, true, 0},
                                 {17408, 1, {5120}, FILL_MIXED, false, false, true, false, 0},
                                 {5120, 2, {25600, 25600}, FILL_MIXED, true, false, false, true, 0},
                                 {25600, 1, {5120}, FILL_NORMAL, false, false, true, false, 0},
                                 {9728, 1, {2560}, FILL_NORMAL, false, false, true, false, 0},
                                 {2560, 1, {151936}, FILL_NORMAL, true, false, false, false, 0},
                                 {1024, 1, {151669}, FILL_MIXED, true, true, false, false, 0}};
    for (const packed_case &c : whole) {
        run_case(t, all, c);
        if (c.rows[0] <= 5120) run_case(t, few, c);
    }
}
