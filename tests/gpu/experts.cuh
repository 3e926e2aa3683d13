/* Mixtures of experts for their tests: matrices of random values in slots of their own order, some experts
 * absent, and what they are in double.
 *
 * Included by tests/gpu/test_experts*.cu. */
#pragma once

#include "tests/gpu/harness.cuh"
#include "worker-gpu/kernels/experts/experts.h"

extern "C" {
#include "common/formats/packed.h"
}

/* One role's matrices. */
struct test_role {
    enum tensor_format format;
    uint32_t experts, rows, cols;
    std::vector<double> value; /* [experts][rows][cols] */
    std::vector<float> bias;   /* [experts][rows], or empty */
    gpu_buffer *memory, *elsewhere,
        *biases;           /* elsewhere: every expert in its own order, as host memory has them */
    uint64_t stride, lead; /* lead: of `elsewhere`, bytes before the first one; after the last one are 128 */
    uint64_t front = 0;    /* of `memory`, bytes before slot 0: a table of offsets */

    test_role(struct test_context *t, enum tensor_format f, uint32_t n, uint32_t r, uint32_t c,
              const std::vector<uint32_t> &slot, bool has_bias)
        : format(f), experts(n), rows(r), cols(c), memory(nullptr), elsewhere(nullptr), biases(nullptr)
    {
        if (has_bias) bias = random_floats(t, (size_t)n * r), biases = new gpu_buffer(bias);
        if (tensor_format_of(f)->variable) {
            pack(t, slot);
            return;
        }
        const uint64_t bytes = tensor_format_bytes(f, r, c);
        stride = (bytes + 15) / 16 * 16 + 16 * random_below(t, 3);
        lead = 128 + 16 * random_below(t, 8);
        std::vector<unsigned char> all(stride * n, 0xff), own(lead + stride * n + 128, 0xff);
        for (uint32_t e = 0; e < n; e++) {
            const auto m = random_elements(t, (size_t)r * c, f);
            const std::vector<double> v = to_double(m, f);
            value.insert(value.end(), v.begin(), v.end());
            if (slot[e] == GPUK_SLOT_ABSENT) continue;
            unsigned char *to = slot[e] & GPUK_SLOT_HOST ? &own[lead + e * stride] : &all[slot[e] * stride];
            memcpy(to, m.data(), m.size());
        }
        memory = new gpu_buffer(all), elsewhere = new gpu_buffer(own);
    }
    /* All experts as one packed matrix, of which the last expert's groups do not become smaller. Each in its
     * place: values in `memory`, its table `elsewhere`. Else the table and the slots in `memory`, the matrix
     * `elsewhere`. */
    void pack(struct test_context *t, const std::vector<uint32_t> &slot)
    {
        const size_t values = (size_t)experts * rows * cols;
        auto m = random_elements(t, values, FORMAT_BF16);
        uint16_t *bits = reinterpret_cast<uint16_t *>(m.data());
        for (size_t i = values / experts * (experts - 1); i < values; i++)
            bits[i] = (uint16_t)((bits[i] & 0x807f) | (90 + random_below(t, 40)) << 7);
        value = to_double(m, FORMAT_BF16);
        std::vector<unsigned char> all(packed_matrix_bytes_max(experts * rows, cols), 0xff);
        std::vector<uint32_t> offset(packed_groups(experts * rows) + 1);
        struct helm_err err = {};
        check(t, packed_write_matrix(bits, experts * rows, cols, all.data(), offset.data(), &err) == HELM_OK,
              "packing experts");
        stride = lead = 0;
        bool moved = false;
        for (uint32_t e = 0; e < experts; e++) moved |= slot[e] != e;
        if (!moved) {
            memory = new gpu_buffer(all), elsewhere = new gpu_buffer(offset);
            return;
        }
        const uint32_t groups = rows / PACKED_ROWS;
        front = packed_groups_at(experts * rows), stride = packed_matrix_bytes_max(rows, cols);
        std::vector<unsigned char> in_slots(front + stride * experts, 0xff);
        memcpy(in_slots.data(), offset.data(), offset.size() * sizeof offset[0]);
        for (uint32_t e = 0; e < experts; e++) {
            unsigned char *from = &all[packed_at(&offset[e * groups], 0)];
            const uint64_t bytes = packed_at(&offset[e * groups], groups) - packed_at(&offset[e * groups], 0);
            if (!(slot[e] & GPUK_SLOT_HOST)) memcpy(&in_slots[front + slot[e] * stride], from, bytes);
            if (!(slot[e] & GPUK_SLOT_HOST)) memset(from, 0xff, bytes); /* it is not read there */
        }
        memory = new gpu_buffer(in_slots), elsewhere = new gpu_buffer(all);
    }
    ~test_role() { delete memory, delete elsewhere, delete biases; }
    test_role(const test_role &) = delete;
    test_role &operator=(const test_role &) = delete;
    struct gpuk_experts on_device(const gpu_buffer *slots) const
    {
        return {format,
                experts,
                rows,
                cols,
                slots ? slots->as<uint32_t>() : nullptr,
                memory->as<unsigned char>() + front,
                stride,
                biases ? biases->as<float>() : nullptr,
                elsewhere->as<unsigned char>() + lead};
    }
    /* Row `row` of expert `e` over x, with its bias; *size: the sum of its terms' magnitudes. round: values
     * are what bf16 makes of them. */
    double product(uint32_t e, uint32_t row, const double *x, double *size, bool round = false) const
    {
        const double *w = &value[((size_t)e * rows + row) * cols];
        double sum = bias.empty() ? 0 : bias[(size_t)e * rows + row], magnitude = fabs(sum);
        for (uint32_t i = 0; i < cols; i++) {
            const double v = round ? convert_bf16_f32(convert_f32_bf16((float)w[i])) : w[i];
            sum += v * x[i], magnitude += fabs(v * x[i]);
        }
        *size = magnitude;
        return sum;
    }
};

static inline double test_glu_of(enum glu_kind kind, double g, double u)
{
    if (kind == GLU_SILU) return g / (1 + exp(-g)) * u;
    g = std::min(g, (double)GLU_CLAMP), u = std::max(std::min(u, (double)GLU_CLAMP), -(double)GLU_CLAMP);
    return g / (1 + exp(-(double)GLU_ALPHA * g)) * (u + 1);
}

/* Slots in an order of their own; with `some`, experts at random have none. */
static inline std::vector<uint32_t> random_slots(struct test_context *t, uint32_t experts, bool some)
{
    std::vector<uint32_t> slot(experts);
    for (uint32_t e = 0; e < experts; e++) slot[e] = e;
    for (uint32_t e = experts; e > 1; e--) std::swap(slot[e - 1], slot[random_below(t, e)]);
    for (uint32_t &s : slot)
        if (some && random_below(t, 3) == 0) s = GPUK_SLOT_ABSENT;
    return slot;
}
/* `chosen` different experts for each token. */
static inline std::vector<uint32_t> random_choice(struct test_context *t, uint32_t experts, uint32_t chosen,
                                                  uint32_t tokens)
{
    std::vector<uint32_t> id, all(experts);
    for (uint32_t e = 0; e < experts; e++) all[e] = e;
    for (uint32_t n = 0; n < tokens; n++)
        for (uint32_t j = 0; j < chosen; j++) {
            std::swap(all[j], all[j + random_below(t, experts - j)]);
            id.push_back(all[j]);
        }
    return id;
}
