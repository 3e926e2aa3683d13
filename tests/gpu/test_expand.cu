/* The kernel that expands packed weights against the plain reference (common/formats/packed.h), bit for bit:
 * whole matrices, slices of groups, several parts in one launch, few blocks; nothing outside is written. */
#include "tests/gpu/harness.cuh"

extern "C" {
#include "common/formats/packed.h"
}

enum fill { FILL_NORMAL, FILL_WIDE, FILL_BITS, FILL_ONE, FILL_TILES, FILL_MIXED, FILL_COUNT };
static const char *const fill_names[] = {"normal",           "wide", "random bits", "one exponent",
                                         "tiles of escapes", "mixed"};

static uint16_t random_weight(struct test_context *t, double scale)
{
    double sum = 0; /* near enough to a normal distribution, with its small numbers */
    for (int i = 0; i < 6; i++) sum += random_uniform(t);
    return convert_f32_bf16((float)(sum * scale));
}

/* One packed matrix in host and device memory, its values known. */
struct packed_case {
    uint32_t rows, cols, groups;
    std::vector<uint16_t> value;
    std::vector<uint32_t> offset;
    std::vector<unsigned char> packed;
    packed_case(struct test_context *t, uint32_t rows_, uint32_t cols_, int fill)
        : rows(rows_), cols(cols_), groups(packed_groups(rows_)), value((size_t)rows_ * cols_),
          offset(groups + 1)
    {
        for (size_t i = 0; i < value.size(); i++) {
            const size_t group = i / ((size_t)16 * cols);
            const int kind = fill == FILL_MIXED ? (int)(group % 4) : fill;
            const uint32_t bits = random_below(t, 65536);
            const bool escape = i % ((size_t)16 * cols) / PACKED_TILE % 4 == 1; /* of FILL_TILES */
            value[i] = kind == FILL_TILES
                           ? (uint16_t)((bits & 0x807f) | (escape ? 200 + bits / 128 % 8 : 118) << 7)
                       : kind == FILL_NORMAL ? random_weight(t, 0.01)
                       : kind == FILL_WIDE   ? (bits % 5 ? random_weight(t, 3.0) : (uint16_t)bits)
                       : kind == FILL_BITS   ? (uint16_t)bits
                                             : (uint16_t)(0x3f80 | (bits & 0x807f));
        }
        std::vector<unsigned char> room(packed_matrix_bytes_max(rows, cols) + PACKED_ALIGN);
        unsigned char *at = room.data();
        at += (PACKED_ALIGN - (uintptr_t)at % PACKED_ALIGN) % PACKED_ALIGN;
        GPUK(packed_write_matrix(value.data(), rows, cols, at, offset.data(), &err));
        packed.assign(at, at + packed_at(offset.data(), groups));
    }
    /* values of groups first .. first + n - 1, by the reference */
    std::vector<uint16_t> reference(uint32_t first, uint32_t n) const
    {
        const uint64_t from = packed_at(offset.data(), first), to = packed_at(offset.data(), first + n);
        std::vector<uint16_t> out((size_t)(std::min(rows, (first + n) * 16) - first * 16) * cols);
        std::vector<uint32_t> aligned((to - from) / 4);
        memcpy(aligned.data(), packed.data() + from, to - from);
        const struct packed_part part = {aligned.data(), to - from, offset.data(), rows, cols, first, n};
        GPUK(packed_read_groups(&part, out.data(), &err));
        return out;
    }
};

static void check_slice(struct test_context *t, const packed_case &c, uint32_t first, uint32_t n,
                        uint32_t blocks, const char *name)
{
    const uint64_t from = packed_at(c.offset.data(), first), to = packed_at(c.offset.data(), first + n);
    const std::vector<uint16_t> expected = c.reference(first, n);
    const size_t start = (size_t)first * 16 * c.cols;
    bool good = memcmp(expected.data(), c.value.data() + start, expected.size() * 2) == 0;
    gpu_buffer packed(std::vector<unsigned char>(c.packed.begin() + from, c.packed.begin() + to)),
        offset(c.offset), out(expected.size() * 2 + 64);
    struct gpuk_expand_part part = {FORMAT_BF16_PACKED,
                                    packed.at,
                                    offset.as<uint32_t>() + first,
                                    out.at,
                                    (uint32_t)(expected.size() / c.cols),
                                    c.cols};
    GPUK(gpuk_expand(&t->device, &part, 1, blocks, t->stream, &err));
    CUDA(cudaStreamSynchronize(t->stream));
    const std::vector<uint16_t> got = out.read<uint16_t>();
    size_t wrong = 0;
    for (size_t i = 0; i < got.size(); i++) wrong += got[i] != (i < expected.size() ? expected[i] : 0xffff);
    char text[200];
    snprintf(text, sizeof text, "expand %s, %u rows of %u, groups %u to %u, %u blocks: %zu values wrong%s",
             name, c.rows, c.cols, first, first + n, blocks, wrong, good ? "" : ", reference too");
    check(t, good && wrong == 0, text);
}

static void check_parts(struct test_context *t, uint32_t cols, uint32_t blocks)
{
    const uint32_t rows[3] = {64, 17, 33};
    std::vector<packed_case> cases;
    std::vector<gpu_buffer *> owned;
    struct gpuk_expand_part part[3];
    for (int i = 0; i < 3; i++) {
        cases.emplace_back(t, rows[i], cols, i == 1 ? FILL_BITS : FILL_NORMAL);
        const packed_case &c = cases.back();
        gpu_buffer *packed = new gpu_buffer(c.packed), *offset = new gpu_buffer(c.offset),
                   *out = new gpu_buffer(c.value.size() * 2 + 64);
        part[i] = {FORMAT_BF16_PACKED, packed->at, offset->as<uint32_t>(), out->at, rows[i], cols};
        owned.push_back(packed), owned.push_back(offset), owned.push_back(out);
    }
    for (uint32_t parts = 1; parts <= 3; parts++) {
        for (uint32_t i = 0; i < 3; i++)
            CUDA(cudaMemsetAsync(owned[3 * i + 2]->at, 0xff, owned[3 * i + 2]->bytes, t->stream));
        GPUK(gpuk_expand(&t->device, part, parts, blocks, t->stream, &err));
        CUDA(cudaStreamSynchronize(t->stream));
        for (uint32_t i = 0; i < 3; i++) {
            const std::vector<uint16_t> got = owned[3 * i + 2]->read<uint16_t>();
            size_t wrong = 0;
            for (size_t v = 0; v < got.size(); v++)
                wrong += got[v] != (i < parts && v < cases[i].value.size() ? cases[i].value[v] : 0xffff);
            char text[200];
            snprintf(text, sizeof text, "expand part %u of %u, %u columns, %u blocks: %zu values wrong", i,
                     parts, cols, blocks, wrong);
            check(t, wrong == 0, text);
        }
    }
    for (gpu_buffer *b : owned) delete b;
}

static void check_refusals(struct test_context *t)
{
    gpu_buffer some(4096);
    struct gpuk_expand_part part[GPUK_EXPAND_PARTS_MAX + 1];
    struct helm_err err = {};
    for (auto &p : part) p = {FORMAT_BF16_PACKED, some.at, some.as<uint32_t>(), some.at, 16, 8};
    check(t, gpuk_expand(&t->device, part, 0, 0, t->stream, &err) == HELM_E_USAGE, "expand of no parts");
    check(t, gpuk_expand(&t->device, part, GPUK_EXPAND_PARTS_MAX + 1, 0, t->stream, &err) == HELM_E_USAGE,
          "expand of too many parts");
    part[0].cols = 0;
    check(t, gpuk_expand(&t->device, part, 1, 0, t->stream, &err) == HELM_E_UNSUPPORTED,
          "expand of no columns");
    part[0].cols = PACKED_COLS_MAX + 1;
    check(t, gpuk_expand(&t->device, part, 1, 0, t->stream, &err) == HELM_E_UNSUPPORTED,
          "expand of too many columns");
    part[0].cols = 8, part[0].weight = some.as<char>() + 4;
    check(t, gpuk_expand(&t->device, part, 1, 0, t->stream, &err) == HELM_E_USAGE,
          "expand from an address that is not aligned");
    part[0].weight = some.at, part[0].format = FORMAT_BF16;
    check(t, gpuk_expand(&t->device, part, 1, 0, t->stream, &err) == HELM_E_UNSUPPORTED,
          "expand of plain weights");
    part[0].format = FORMAT_BF16_PACKED, part[1].format = FORMAT_F16;
    check(t, gpuk_expand(&t->device, part, 2, 0, t->stream, &err) == HELM_E_UNSUPPORTED,
          "expand of two formats at once");
}

void test_expand(struct test_context *t)
{
    const uint32_t small[][2] = {{1, 1},   {1, 4096}, {16, 64},  {17, 1000}, {15, 129},
                                 {40, 96}, {48, 512}, {33, 333}, {5, 205},   {16, 4104}};
    const uint32_t large[][2] = {{512, 4096}, {160, 12288}, {4096, 1024}, {257, 2560}, {100, 5003}};
    for (const auto &s : small)
        for (int fill = 0; fill < FILL_COUNT; fill++) {
            packed_case c(t, s[0], s[1], fill);
            check_slice(t, c, 0, c.groups, 0, fill_names[fill]);
            if (c.groups < 2) continue;
            check_slice(t, c, 1, c.groups - 1, 2, fill_names[fill]);
            check_slice(t, c, 0, c.groups - 1, 1, fill_names[fill]);
        }
    for (uint32_t cols : {64u, 300u, 1024u})
        for (uint32_t blocks : {0u, 1u}) check_parts(t, cols, blocks);
    check_refusals(t);
    if (t->small) return;
    for (const auto &s : large)
        for (int fill = 0; fill < FILL_COUNT; fill++) {
            packed_case c(t, s[0], s[1], fill);
            const uint32_t first = random_below(t, c.groups);
            check_slice(t, c, 0, c.groups, 0, fill_names[fill]);
            check_slice(t, c, first, 1 + random_below(t, c.groups - first), 1 + random_below(t, 40),
                        fill_names[fill]);
        }
}
