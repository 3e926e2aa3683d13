/* Shared by the GPU kernel tests: poisoned device buffers, random inputs, comparison with references in
 * double.
 *
 * Included by tests/gpu/test_*.cu. A failed CUDA call or launcher ends the program; a wrong result is
 * counted. */
#pragma once

#include <cuda_runtime.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <algorithm>
#include <vector>

#include "common/formats/convert.h"
#include "tools/bench/gpu/calls.cuh"
#include "worker-gpu/kernels/kernels.h"

struct test_context {
    struct gpuk_device device;
    cudaStream_t stream;
    uint64_t random;
    bool small; /* few and small cases: for compute-sanitizer */
    bool few; /* `small`, and no more than what meets every kernel once or twice: for racecheck and synccheck
               */
    bool stress; /* runs that must give the same bits again are thousands */
    int checks, failures;
    double worst; /* error over tolerance, of all checks */
    char worst_what[160];
};

/* Device memory, every byte 0xff (NaN, or a token that does not exist) until written. */
struct gpu_buffer {
    void *at;
    size_t bytes;
    explicit gpu_buffer(size_t size) : at(nullptr), bytes(size ? size : 1)
    {
        const size_t whole =
            (bytes + 15) / 16 * 16; /* weights are read in whole words: their memory ends on 16 bytes */
        CUDA(cudaMalloc(&at, whole));
        CUDA(cudaMemset(at, 0xff, whole));
        CUDA(cudaDeviceSynchronize());
    }
    template <typename T>
    explicit gpu_buffer(const std::vector<T> &from) : gpu_buffer(from.size() * sizeof(T))
    {
        CUDA(cudaMemcpy(at, from.data(), from.size() * sizeof(T), cudaMemcpyHostToDevice));
        CUDA(cudaDeviceSynchronize()); /* the last of it may still be on its way, and streams here do not wait
                                        */
    }
    gpu_buffer(const gpu_buffer &) = delete;
    gpu_buffer &operator=(const gpu_buffer &) = delete;
    ~gpu_buffer() { cudaFree(at); }
    template <typename T> T *as() const { return (T *)at; }
    template <typename T> void read(std::vector<T> &v) const
    {
        v.resize(bytes / sizeof(T));
        CUDA(cudaDeviceSynchronize());
        CUDA(cudaMemcpy(v.data(), at, v.size() * sizeof(T), cudaMemcpyDeviceToHost));
    }
    template <typename T> std::vector<T> read() const
    {
        std::vector<T> v;
        read(v);
        return v;
    }
};

static inline double random_uniform(struct test_context *t) /* in [-1, 1) */
{
    t->random ^= t->random << 13, t->random ^= t->random >> 7, t->random ^= t->random << 17;
    return (double)(int64_t)(t->random * 0x9e3779b97f4a7c15u) * 0x1p-63;
}
static inline uint32_t random_below(struct test_context *t, uint32_t n)
{
    return (uint32_t)((random_uniform(t) * 0.5 + 0.5) * n) % n;
}
static inline std::vector<float> random_floats(struct test_context *t, size_t n, float scale = 1.0f)
{
    std::vector<float> v(n);
    for (float &x : v) x = (float)(random_uniform(t) * scale);
    return v;
}

static inline size_t bytes_of(int dtype)
{
    return dtype == DTYPE_F32 ? 4 : 2;
}
static inline const char *name_of(int format)
{
    return tensor_format_name((enum tensor_format)format);
}
/* Where a block of a format has its fp16 scales, and the largest of them for values of size 1. None: its
 * first byte is a power of two. */
struct block_scale_places {
    enum tensor_format format;
    uint32_t count, at[2];
    float most[2];
};
/* IQ1_M: four bits in the upper halves of four bytes. */
static const uint32_t SCATTERED = UINT32_MAX;
/* FP8 and NVFP4: as fp32, in front. */
static const uint32_t SINGLE = UINT32_MAX - 1;
static inline void put_scale(unsigned char *block, uint32_t at, uint16_t half)
{
    for (int i = 0; at == SCATTERED && i < 4; i++)
        block[49 + 2 * i] = (unsigned char)((block[49 + 2 * i] & 15) | (half >> 4 * i & 15) << 4);
    const float single = convert_f16_f32(half);
    if (at == SINGLE) memcpy(block, &single, sizeof single);
    if (at != SCATTERED && at != SINGLE) memcpy(block + at, &half, sizeof half);
}
static inline const block_scale_places &scale_places(enum tensor_format format)
{
    static const block_scale_places places[] = {
        {FORMAT_FP8, 1, {SINGLE, 0}, {1 / 256.0f, 0}},
        {FORMAT_Q8_0, 1, {0, 0}, {1 / 128.0f, 0}},
        {FORMAT_Q4_0, 1, {0, 0}, {1 / 16.0f, 0}},
        {FORMAT_Q4_1, 2, {0, 2}, {1 / 16.0f, 1}},
        {FORMAT_Q5_0, 1, {0, 0}, {1 / 16.0f, 0}},
        {FORMAT_Q5_1, 2, {0, 2}, {1 / 16.0f, 1}},
        {FORMAT_Q2_K, 2, {80, 82}, {1 / 64.0f, 1 / 32.0f}},
        {FORMAT_Q3_K, 1, {108, 0}, {1 / 64.0f, 0}},
        {FORMAT_Q4_K, 2, {0, 2}, {1 / 512.0f, 1 / 128.0f}},
        {FORMAT_Q5_K, 2, {0, 2}, {1 / 512.0f, 1 / 128.0f}},
        {FORMAT_Q6_K, 1, {208, 0}, {1 / 2048.0f, 0}},
        {FORMAT_IQ4_NL, 1, {0, 0}, {1 / 128.0f, 0}},
        {FORMAT_IQ4_XS, 1, {0, 0}, {1 / 4096.0f, 0}},
        {FORMAT_MXFP4, 0, {0, 0}, {0, 0}},
        {FORMAT_NVFP4, 1, {SINGLE, 0}, {1 / 512.0f, 0}},
        {FORMAT_IQ2_XXS, 1, {0, 0}, {1 / 128.0f, 0}},
        {FORMAT_IQ2_XS, 1, {0, 0}, {1 / 128.0f, 0}},
        {FORMAT_IQ2_S, 1, {0, 0}, {1 / 128.0f, 0}},
        {FORMAT_IQ3_XXS, 1, {0, 0}, {1 / 256.0f, 0}},
        {FORMAT_IQ3_S, 1, {0, 0}, {1 / 256.0f, 0}},
        {FORMAT_IQ1_S, 1, {0, 0}, {1 / 16.0f, 0}},
        {FORMAT_IQ1_M, 1, {SCATTERED, 0}, {1 / 16.0f, 0}},
    };
    for (const block_scale_places &p : places)
        if (p.format == format) return p;
    fprintf(stderr, "%s: no row says where its scales are\n", name_of(format));
    exit(2);
}
/* Any bytes as blocks (n values, whole blocks), but for what all of a block's values are multiplied by:
 * values are of `scale`'s size. */
static inline std::vector<unsigned char> random_blocks(struct test_context *t, size_t n,
                                                       enum tensor_format format, float scale)
{
    const struct tensor_format_traits *traits = tensor_format_of(format);
    const block_scale_places &places = scale_places(format);
    std::vector<unsigned char> v(n / traits->block_values * traits->block_bytes);
    for (unsigned char &byte : v) byte = (unsigned char)random_below(t, 256);
    for (unsigned char *block = v.data(); block < v.data() + v.size(); block += traits->block_bytes) {
        for (uint32_t i = 0; i < places.count; i++) {
            const uint16_t half = convert_f32_f16((float)(random_uniform(t) * places.most[i] * scale));
            put_scale(block, places.at[i], half);
        }
        if (places.count == 0) block[0] = (unsigned char)(120 + random_below(t, 5) + (scale < 1 ? -4 : 0));
    }
    return v;
}
/* n random elements of a dtype, or of blocks, as bytes. */
static inline std::vector<unsigned char> random_elements(struct test_context *t, size_t n, int dtype,
                                                         float scale = 1.0f)
{
    if (dtype >= DTYPE_COUNT) return random_blocks(t, n, (enum tensor_format)dtype, scale);
    std::vector<unsigned char> v(n * bytes_of(dtype));
    for (size_t i = 0; i < n; i++) {
        float x = (float)(random_uniform(t) * scale);
        uint16_t half = dtype == DTYPE_BF16 ? convert_f32_bf16(x) : convert_f32_f16(x);
        if (dtype == DTYPE_F32)
            memcpy(&v[i * 4], &x, 4);
        else
            memcpy(&v[i * 2], &half, 2);
    }
    return v;
}
static inline std::vector<double> to_double(const std::vector<unsigned char> &v, int dtype)
{
    if (dtype >= DTYPE_COUNT) {
        const enum tensor_format format = (enum tensor_format)dtype;
        const struct tensor_format_traits *traits = tensor_format_of(format);
        const uint32_t n = (uint32_t)(v.size() / traits->block_bytes * traits->block_values);
        const struct tensor_matrix matrix = {format, v.data(), v.size(), 1, n};
        std::vector<float> values(n);
        GPUK(tensor_format_read_row(&matrix, 0, values.data(), &err));
        return std::vector<double>(values.begin(), values.end());
    }
    std::vector<double> out(v.size() / bytes_of(dtype));
    for (size_t i = 0; i < out.size(); i++) out[i] = convert_load(v.data(), (enum dtype)dtype, i);
    return out;
}

/* The bytes of `pages` pages of a KV cache, random cells of size 1; and what their numbers are, in order.
 * They repeat after a prime number of numbers, so that no step from row to row, head, layer or page leads to
 * the same ones. */
static inline std::vector<unsigned char> random_cells(struct test_context *t, const struct kv_layout &l,
                                                      uint32_t pages)
{
    const size_t bytes = pages * kv_page_bytes(&l), number = kv_number_bytes(l.dtype, 1),
                 period = std::min(bytes, (size_t)1048583 * number);
    std::vector<unsigned char> some, v;
    if (kv_dtype_is_plain(l.dtype)) some = random_elements(t, period / number, (int)l.dtype);
    while (some.size() < period) some.push_back((unsigned char)(random_below(t, 255) - 127));
    v.reserve(bytes);
    while (v.size() < bytes)
        v.insert(v.end(), some.begin(), some.begin() + (ptrdiff_t)std::min(period, bytes - v.size()));
    for (size_t rows = 0; rows < bytes && !kv_dtype_is_plain(l.dtype); rows += kv_head_bytes(&l))
        for (size_t at = kv_scales_at(&l); at + 1 < kv_head_bytes(&l); at += 2) {
            const uint16_t half = convert_f32_f16((float)(1 + random_uniform(t)) / 254);
            memcpy(&v[rows + at], &half, 2);
        }
    return v;
}
static inline std::vector<double> cell_values(const std::vector<unsigned char> &v, const struct kv_layout &l)
{
    std::vector<double> out;
    for (size_t rows = 0; rows < v.size(); rows += kv_head_bytes(&l))
        for (uint32_t i = 0; i < l.page_tokens * l.head_dim; i++)
            out.push_back(kv_cell_value(&l, &v[rows], i / l.head_dim, i % l.head_dim));
    return out;
}

static inline void check(struct test_context *t, bool good, const char *what)
{
    t->checks++;
    if (good) return;
    t->failures++;
    if (t->failures <= 40) printf("FAIL %s\n", what);
}
/* ||out - ref|| / ||ref|| <= tolerance; NaN fails, so an element that was not written fails. With `terms`,
 * the sums of the magnitudes of what each element is a sum of: where those cancel, 8 roundings of fp32 of
 * them (||terms|| * 2^-21) are allowed too, since no sum in fp32 can be nearer. */
template <typename T>
static void check_close(struct test_context *t, const std::vector<T> &out, const std::vector<double> &ref,
                        double tolerance, const char *what, const std::vector<double> *terms = nullptr)
{
    double difference = 0, norm = 0, magnitude = 0;
    for (size_t i = 0; terms && i < terms->size(); i++) magnitude += (*terms)[i] * (*terms)[i];
    bool sized = out.size() == ref.size();
    for (size_t i = 0; sized && i < ref.size(); i++) {
        double d = (double)out[i] - ref[i];
        difference += d * d;
        norm += ref[i] * ref[i];
    }
    double error = norm > 0 ? sqrt(difference / norm) : sqrt(difference);
    if (norm > 0) tolerance = std::max(tolerance, sqrt(magnitude / norm) * 0x1p-21);
    bool good = sized && error <= tolerance;
    t->checks++;
    if (good && error / tolerance > t->worst) {
        t->worst = error / tolerance;
        snprintf(t->worst_what, sizeof t->worst_what, "%s: %.2e of %.0e", what, error, tolerance);
    }
    if (!good) {
        t->failures++;
        if (t->failures <= 40) printf("FAIL %s: error %.3e, tolerance %.1e\n", what, error, tolerance);
    }
}
/* The same bits in two runs. */
template <typename T>
static void check_same(struct test_context *t, const std::vector<T> &a, const std::vector<T> &b,
                       const char *what)
{
    char text[200];
    snprintf(text, sizeof text, "%s: not the same bits in two runs", what);
    check(t, a.size() == b.size() && memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0, text);
}

/* A step of `counts[r]` tokens of row r from position start[r] on, with pages handed out at random. */
struct test_step {
    uint32_t tokens, rows, pages, page_tokens, pages_per_slot;
    std::vector<uint32_t> position, token_row, row_first, row_slot, page_table, ids, samples;
    std::vector<gpu_buffer *> owned;
    struct gpuk_step step;
    test_step(struct test_context *t, const std::vector<uint32_t> &start, const std::vector<uint32_t> &count,
              uint32_t page_size, uint32_t host_every = 0);
    ~test_step()
    {
        for (gpu_buffer *b : owned) delete b;
    }
    const uint32_t *device_copy(const std::vector<uint32_t> &v)
    {
        owned.push_back(new gpu_buffer(v));
        return owned.back()->as<uint32_t>();
    }
};

void test_linear(struct test_context *t);
void test_blocks(struct test_context *t);
void test_elementwise(struct test_context *t);
void test_select(struct test_context *t);
void test_attention(struct test_context *t);
void test_chain(struct test_context *t);
void test_delta(struct test_context *t);
void test_expand(struct test_context *t);
void test_experts(struct test_context *t);
void test_experts_few(struct test_context *t);
void test_gemm_blocks(struct test_context *t);
void test_gemm_integer(struct test_context *t);
void test_gemv_packed(struct test_context *t);
void test_heads(struct test_context *t);
void test_invariant(struct test_context *t);
void test_scales(struct test_context *t);
