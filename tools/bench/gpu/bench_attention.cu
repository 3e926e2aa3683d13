/* Rows of helm-bench-gpu-kernels about prefill attention (--attention): what is reached of the tensor cores
 * for some queries after some context, first in one range of positions, then in as many as the launcher takes
 * (gpuk_prefill.workspace); and how far outputs are from the plain kernel's. Called by bench_kernels.cu. One
 * sequence, scattered pages; random keys, values and queries, so that maxima move and power is that of a
 * model. */
#include <math.h>
#include <string.h>

#include <algorithm>

#include "common/formats/convert.h"
#include "tools/bench/gpu/bench.cuh"

struct attention_row {
    uint32_t queries, context, heads, kv_heads, head_dim;
    enum kv_dtype dtype;
    uint32_t window;
};

static void *device_copy(const void *from, size_t bytes)
{
    void *to;
    CUDA(cudaMalloc(&to, bytes));
    CUDA(cudaMemcpy(to, from, bytes, cudaMemcpyHostToDevice));
    return to;
}

/* Bytes that are numbers of this type, of about 1; of q8_0 wholes, with scales of 1/64 from `scales_at`
 * on. */
static std::vector<unsigned char> random_bytes(size_t bytes, enum kv_dtype dtype, size_t scales_at)
{
    std::vector<unsigned char> v(bytes);
    uint32_t seed = 12345;
    for (size_t i = 0; i + 1 < bytes; i += 2) {
        seed = seed * 1664525u + 1013904223u;
        const float number = (float)(int32_t)seed * 0x1p-31f * 1.7f;
        uint16_t word = convert_f32_bf16(number);
        if (dtype == KV_Q8_0 && i < scales_at) word = (uint16_t)(seed >> 16);
        if (dtype == KV_F16 || (dtype == KV_Q8_0 && i >= scales_at))
            word = dtype == KV_Q8_0 ? 0x2400 : convert_f32_f16(number);
        memcpy(&v[i], &word, 2);
    }
    return v;
}

/* Products of scores and of outputs that queries need. */
static double row_flops(const attention_row &r)
{
    double pairs = 0;
    for (uint32_t i = 0; i < r.queries; i++) {
        const uint32_t seen = r.context + i + 1;
        pairs += r.window && seen > r.window ? r.window : seen;
    }
    return 4.0 * pairs * r.heads * r.head_dim;
}

static std::vector<float> outputs(struct bench *b, const void *out, size_t count)
{
    std::vector<uint16_t> words(count);
    std::vector<float> v(count);
    CUDA(cudaStreamSynchronize(b->stream));
    CUDA(cudaMemcpy(words.data(), out, count * 2, cudaMemcpyDeviceToHost));
    for (size_t i = 0; i < count; i++) v[i] = convert_bf16_f32(words[i]);
    return v;
}

static int bench_row_of(struct bench *b, const attention_row &r, void *workspace)
{
    const uint32_t page = KV_PAGE_TOKENS_DEFAULT, pages = (r.context + r.queries + page - 1) / page;
    const struct kv_layout layout = {1, r.kv_heads, r.head_dim, page, (uint32_t)r.dtype, 0};
    const std::vector<unsigned char> head =
        random_bytes(kv_head_bytes(&layout), r.dtype, kv_scales_at(&layout));
    std::vector<unsigned char> all(kv_page_bytes(&layout) * pages);
    for (size_t i = 0; i < all.size(); i += head.size()) memcpy(&all[i], head.data(), head.size());
    const size_t width = (size_t)r.heads * r.head_dim;
    const enum kv_dtype query = r.dtype == KV_Q8_0 ? KV_F16 : r.dtype;
    const std::vector<unsigned char> q = random_bytes(r.queries * width * 2, query, 0);
    std::vector<uint32_t> table(pages), position(r.queries), counts = {r.queries, 1, 1}, token_row(r.queries),
                                                             first = {0, r.queries}, slot = {0};
    for (uint32_t i = 0; i < pages; i++) table[i] = (uint32_t)((uint64_t)i * 7919 % pages);
    for (uint32_t i = 0; i < r.queries; i++) position[i] = r.context + i;
    struct gpuk_prefill p = {};
    void *out;
    CUDA(cudaMalloc(&out, r.queries * width * 2));
    struct gpuk_step *s = &p.args.step;
    s->counts = (uint32_t *)device_copy(counts.data(), 12);
    s->position = (uint32_t *)device_copy(position.data(), position.size() * 4);
    s->token_row = (uint32_t *)device_copy(token_row.data(), token_row.size() * 4);
    s->row_first = (uint32_t *)device_copy(first.data(), 8);
    s->row_slot = (uint32_t *)device_copy(slot.data(), 4);
    s->page_table = (uint32_t *)device_copy(table.data(), table.size() * 4);
    s->pages_per_slot = pages;
    p.args.kv.layout = layout;
    p.args.kv.pool = device_copy(all.data(), all.size());
    p.args.heads = r.heads, p.args.window = r.window;
    p.args.scale = (float)(1 / sqrt((double)r.head_dim));
    p.q = device_copy(q.data(), q.size()), p.out = out, p.out_dtype = DTYPE_BF16, p.rows = 1;
    printf("attention %5u after %5u, %2u/%u heads of %3u, %-4s window %4u: TFLOP/s", r.queries, r.context,
           r.heads, r.kv_heads, r.head_dim, kv_dtype_name(r.dtype), r.window);
    struct gpuk_device plain = b->device;
    plain.tensor_cores = false;
    GPUK(gpuk_attention_prefill(&plain, &p, r.queries, 0, b->stream, &err));
    const std::vector<float> expected = outputs(b, out, r.queries * width);
    double apart = 0;
    for (void *given : {(void *)NULL, workspace}) {
        p.workspace = given;
        CUDA(cudaMemsetAsync(out, 0xff, r.queries * width * 2, b->stream));
        GPUK(gpuk_attention_prefill(&b->device, &p, r.queries, 0, b->stream, &err));
        const double off = bench_apart(expected, outputs(b, out, r.queries * width));
        if (!(off <= apart)) apart = off; /* NaN, too */
        const double seconds = bench_time_graph(b, 2, [&] {
            GPUK(gpuk_attention_prefill(&b->device, &p, r.queries, 0, b->stream, &err));
        });
        printf(" %6.1f", row_flops(r) / seconds / 1e12);
        fflush(stdout);
    }
    const bool good = apart < 1e-2;
    printf("  apart %.1e%s\n", apart, good ? "" : " FAILED");
    for (const void *at : {(const void *)s->counts, (const void *)s->position, (const void *)s->token_row,
                           (const void *)s->row_first, (const void *)s->row_slot, (const void *)s->page_table,
                           (const void *)p.args.kv.pool, p.q, (const void *)p.out})
        cudaFree((void *)at);
    return good ? 0 : 1;
}

int bench_attention(struct bench *b)
{
    int bad = 0;
    void *workspace;
    CUDA(cudaMalloc(&workspace, GPUK_MATMUL_WORKSPACE));
    const attention_row rows[] = {
        {512, 16384, 16, 2, 256, KV_BF16, 0},    {512, 0, 16, 2, 256, KV_BF16, 0},
        {512, 4096, 16, 2, 256, KV_BF16, 0},     {512, 24576, 16, 2, 256, KV_Q8_0, 0},
        {64, 16384, 16, 2, 256, KV_BF16, 0},     {2048, 0, 16, 2, 256, KV_BF16, 0},
        {2048, 24576, 16, 2, 256, KV_BF16, 0},   {2048, 24576, 16, 2, 256, KV_Q8_0, 0},
        {512, 16384, 32, 8, 128, KV_BF16, 0},    {512, 0, 32, 8, 128, KV_BF16, 0},
        {64, 16384, 32, 8, 128, KV_BF16, 0},     {2048, 30720, 32, 8, 128, KV_BF16, 0},
        {2048, 30720, 32, 8, 128, KV_Q8_0, 0},   {512, 8192, 16, 8, 512, KV_BF16, 0},
        {2048, 8192, 16, 8, 512, KV_BF16, 0},    {2048, 8192, 16, 8, 512, KV_BF16, 1024},
        {2048, 8192, 16, 8, 256, KV_BF16, 1024}, {2048, 8192, 16, 8, 64, KV_BF16, 0},
    };
    for (const attention_row &r : rows) bad += bench_row_of(b, r, workspace);
    return bad;
}
