/* Linear layers over packed weights against gpuk_expand and then gpuk_gemv, bit for bit: shapes whose tiles
 * end inside rows, odd rows, slices of a matrix, escapes few and many, groups that are stored raw, all
 * fusions, few and many blocks. What is not taken is refused. Nothing beside the outputs is written. */
#include "tests/gpu/harness.cuh"

extern "C" {
#include "common/packed.h"
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

/* A packed matrix in device memory, and how it came to be packed. */
static packed_matrix make_matrix(struct test_context *t, uint32_t rows, uint32_t cols, int fill)
{
    packed_matrix m = {};
    m.rows = rows;
    std::vector<uint16_t> value((size_t)rows * cols);
    for (size_t i = 0; i < value.size(); i++) {
        const size_t group = i / ((size_t)PACKED_ROWS * cols);
        value[i] = weight_of(t, fill == FILL_MIXED ? (int)(group % 3) : fill);
        /* whole tiles of escapes between others */
        if (fill == FILL_TILES && i % ((size_t)PACKED_ROWS * cols) / PACKED_TILE % 4 == 1)
            value[i] = (uint16_t)((value[i] & 0x807f) | (60 + value[i] % 8) << 7);
    }
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

static void run_case(struct test_context *t, const struct gpuk_device *device, const packed_case &c)
{
    char what[200];
    snprintf(what, sizeof what, "packed gemv %u x %u from group %u (%u matrices), fill %d, %d blocks%s%s%s%s",
             c.rows[0], c.cols, c.first, c.segments, c.fill, device->sm_count, c.norm ? " norm" : "",
             c.bias ? " bias" : "", c.residual ? " residual" : "", c.swiglu ? " swiglu" : "");
    struct gpuk_linear_args args = {};
    args.dtype = DTYPE_BF16, args.cols = c.cols, args.segments = c.segments;
    args.eps = 1e-6f, args.swiglu = c.swiglu;
    std::vector<gpu_buffer *> owned;
    const auto keep = [&](gpu_buffer *b) {
        owned.push_back(b);
        return b;
    };
    const uint32_t *offset[GPUK_SEGMENTS_MAX];
    struct gpuk_expand_part part[GPUK_SEGMENTS_MAX];
    struct gpuk_linear_args plain = args;
    std::vector<gpu_buffer *> out[2];
    for (uint32_t s = 0; s < c.segments; s++) {
        const packed_matrix m = make_matrix(t, c.rows[s] + c.first * PACKED_ROWS, c.cols, c.fill);
        if (c.fill == FILL_BITS) check(t, m.raw_groups == packed_groups(m.rows), what);
        if (c.fill == FILL_WIDE && m.rows >= PACKED_ROWS) /* a short last group may be raw */
            check(t, m.raw_groups <= m.rows % PACKED_ROWS && m.escapes > m.rows / 16 * c.cols, what);
        offset[s] = keep(m.table)->as<uint32_t>() + c.first;
        const char *from = keep(m.packed)->as<char>() + packed_at(m.offset.data(), c.first);
        const float *bias = c.bias ? keep(new gpu_buffer(random_floats(t, c.rows[s])))->as<float>() : nullptr;
        gpu_buffer *weights = keep(new gpu_buffer((size_t)c.rows[s] * c.cols * 2));
        part[s] = {from, offset[s], weights->at, c.rows[s], c.cols};
        for (int way = 0; way < 2; way++) {
            out[way].push_back(keep(new gpu_buffer((size_t)(c.rows[s] + 16) * sizeof(float))));
            (way ? args : plain).segment[s] = {way ? (const void *)from : weights->at, bias,
                                               out[way][s]->as<float>(), c.rows[s]};
        }
    }
    args.x = keep(new gpu_buffer(random_floats(t, c.cols)))->as<float>();
    if (c.norm) args.norm = keep(new gpu_buffer(random_floats(t, c.cols)))->as<float>();
    if (c.residual) args.residual = keep(new gpu_buffer(random_floats(t, c.rows[0])))->as<float>();
    plain.x = args.x, plain.norm = args.norm, plain.residual = args.residual;
    gpu_buffer workspace(gpuk_gemv_workspace_bytes(c.cols));
    check(t, gpuk_gemv_packed_takes(device, &args), what);
    GPUK(gpuk_expand(device, part, c.segments, 0, t->stream, &err));
    GPUK(gpuk_gemv(device, &plain, workspace.at, 0, t->stream, &err));
    GPUK(gpuk_gemv_packed(device, &args, offset, 0, t->stream, &err));
    CUDA(cudaStreamSynchronize(t->stream));
    for (uint32_t s = 0; s < (c.swiglu ? 1 : c.segments); s++) {
        const auto expected = out[0][s]->read<uint32_t>(), got = out[1][s]->read<uint32_t>();
        size_t wrong = 0, empty = 0;
        for (size_t i = 0; i < got.size(); i++) wrong += got[i] != expected[i];
        for (uint32_t r = 0; r < c.rows[s]; r++) empty += got[r] == 0xffffffffu;
        char text[300];
        snprintf(text, sizeof text, "%s: of matrix %u %zu rows have other bits, %zu are not written", what, s,
                 wrong, empty);
        check(t, wrong == 0 && empty == 0, text);
    }
    for (gpu_buffer *b : owned) delete b;
}

static void check_refusals(struct test_context *t)
{
    gpu_buffer some(4096);
    struct gpuk_linear_args args = {};
    args.dtype = DTYPE_BF16, args.cols = 512, args.segments = 1, args.x = some.as<float>();
    args.segment[0] = {some.at, nullptr, some.as<float>(), 16};
    const uint32_t *offset[] = {some.as<uint32_t>()};
    struct helm_err err = {};
    struct gpuk_device none = t->device, other = t->device;
    none.bulk_copy = false, other.gemv_tile_bytes = 2048;
    check(t, gpuk_gemv_packed_takes(&t->device, &args), "packed gemv of 512 columns");
    check(t, !gpuk_gemv_packed_takes(&none, &args), "packed gemv without bulk copies");
    check(t, !gpuk_gemv_packed_takes(&other, &args), "packed gemv where gemv has other tiles");
    args.cols = 768;
    check(t, !gpuk_gemv_packed_takes(&t->device, &args), "packed gemv of 768 columns");
    check(t, gpuk_gemv_packed(&t->device, &args, offset, 0, t->stream, &err) == HELM_E_UNSUPPORTED,
          "packed gemv of 768 columns is refused");
    args.cols = 512, args.dtype = DTYPE_F16;
    check(t, !gpuk_gemv_packed_takes(&t->device, &args), "packed gemv of f16");
    args.dtype = DTYPE_BF16, args.x = some.as<float>() + 1;
    check(t, !gpuk_gemv_packed_takes(&t->device, &args), "packed gemv of x that is not aligned");
    args.x = some.as<float>(), offset[0] = (const uint32_t *)(some.as<char>() + 2);
    check(t, gpuk_gemv_packed(&t->device, &args, offset, 0, t->stream, &err) == HELM_E_USAGE,
          "packed gemv of a table that is not aligned");
}

void test_gemv_packed(struct test_context *t)
{
    check_refusals(t);
    if (!t->device.bulk_copy) return;
    struct gpuk_device few = t->device, eight = t->device;
    few.sm_count = 2, eight.gemv_warps = 8;
    const struct {
        uint32_t rows, cols;
    } small[] = {{1, 512}, {3, 1536}, {16, 1024}, {33, 512}, {47, 2560}, {80, 1024}},
      large[] = {{300, 4096}, {131, 9728}, {48, 12288}, {40, 25600}, {9000, 512}};
    for (const auto &s : small)
        for (int fill = 0; fill < FILL_COUNT; fill++) {
            if (t->few && (fill == FILL_NORMAL || s.rows > 33)) continue;
            const uint32_t third = s.rows / 3 + 1;
            run_case(t, &t->device, {s.cols, 1, {s.rows}, fill, true, true, true, false, 0});
            run_case(t, &few, {s.cols, 2, {s.rows, s.rows}, fill, true, true, false, true, 1});
            if (t->small) continue;
            run_case(t, &few, {s.cols, 1, {s.rows}, fill, false, false, true, false, 2});
            run_case(t, &eight, {s.cols, 3, {s.rows, third, third}, fill, true, true, false, false, 0});
            run_case(t, &t->device, {s.cols, 3, {s.rows, 16, 32}, fill, false, false, false, false, 1});
            run_case(t, &t->device, {s.cols, 2, {s.rows, s.rows}, fill, false, false, false, true, 0});
        }
    if (t->small) return;
    for (const auto &s : large)
        for (int fill : {FILL_NORMAL, FILL_MIXED}) {
            run_case(t, &t->device, {s.cols, 1, {s.rows}, fill, false, true, true, false, 1});
            run_case(t, &few, {s.cols, 2, {s.rows, s.rows}, fill, true, false, false, true, 0});
        }
}
