/* helm-bench-gpu-kernels --expand: how fast packed weights become plain ones, and what that makes of the
 * link.
 *
 * Weights are N(0, 0.02). First slices as they pass through the ring, each at another address so that none
 * is in the L2, with all blocks and with few; beside the rate of values written stands the limit that reading
 * packed and writing plain ones puts on it at the rate of reads. Then the same slices from pinned host memory
 * to a ring, once plain and once packed through two places and expanded behind the copy: seconds of all.
 * Last one token's product with each slice: of plain ones; expanded to one place, as the GPU worker does it,
 * and multiplied; multiplied packed.
 * Every result is compared with the values, bit for bit. */
#include <math.h>
#include <string.h>

#include <algorithm>

#include "tools/bench/gpu/bench.cuh"

extern "C" {
#include "common/formats/packed.h"
}

#define SLICES 24 /* packed ones are more than five L2s */

struct slice_set {
    uint32_t rows, cols;
    std::vector<uint16_t> value;
    std::vector<uint32_t> offset;
    size_t plain_bytes, packed_bytes;
    char *host;             /* pinned: SLICES packed, then the plain one */
    char *packed, *plain;   /* device: SLICES packed ones; SLICES plain ones */
    uint32_t *table;        /* device */
    cudaStream_t expanding; /* beside the bench's, which copies */
};

std::vector<uint16_t> bench_weights(size_t count)
{
    std::vector<uint16_t> value(count);
    uint64_t state = 88172645463325252u;
    for (uint16_t &v : value) {
        double uniform[2];
        for (double &u : uniform) {
            state ^= state << 13, state ^= state >> 7, state ^= state << 17;
            u = (double)(state >> 11) * 0x1p-53;
        }
        const float x =
            (float)(0.02 * sqrt(-2 * log(uniform[0] + 1e-18)) * cos(6.283185307179586 * uniform[1]));
        uint32_t bits;
        memcpy(&bits, &x, 4);
        v = (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
    }
    return value;
}

static void open_set(struct slice_set *s, uint32_t rows, uint32_t cols)
{
    s->rows = rows, s->cols = cols;
    s->value = bench_weights((size_t)rows * cols);
    s->offset.resize(packed_groups(rows) + 1);
    s->plain_bytes = s->value.size() * 2;
    CUDA(cudaHostAlloc((void **)&s->host, SLICES * packed_matrix_bytes_max(rows, cols) + s->plain_bytes, 0));
    GPUK(packed_write_matrix(s->value.data(), rows, cols, s->host, s->offset.data(), &err));
    s->packed_bytes = packed_at(s->offset.data(), packed_groups(rows));
    for (int i = 1; i < SLICES; i++) memcpy(s->host + i * s->packed_bytes, s->host, s->packed_bytes);
    memcpy(s->host + SLICES * s->packed_bytes, s->value.data(), s->plain_bytes);
    CUDA(cudaMalloc((void **)&s->packed, SLICES * s->packed_bytes));
    CUDA(cudaMalloc((void **)&s->plain, SLICES * s->plain_bytes));
    CUDA(cudaMalloc((void **)&s->table, s->offset.size() * 4));
    CUDA(cudaMemcpy(s->packed, s->host, SLICES * s->packed_bytes, cudaMemcpyHostToDevice));
    CUDA(cudaMemcpy(s->table, s->offset.data(), s->offset.size() * 4, cudaMemcpyHostToDevice));
    CUDA(cudaStreamCreateWithFlags(&s->expanding, cudaStreamNonBlocking));
    CUDA(cudaDeviceSynchronize());
}

static void close_set(struct slice_set *s)
{
    CUDA(cudaDeviceSynchronize());
    CUDA(cudaFree(s->packed));
    CUDA(cudaFree(s->plain));
    CUDA(cudaFree(s->table));
    CUDA(cudaFreeHost(s->host));
    CUDA(cudaStreamDestroy(s->expanding));
}

static void forget_plain(struct slice_set *s)
{
    CUDA(cudaDeviceSynchronize());
    CUDA(cudaMemset(s->plain, 0xff, SLICES * s->plain_bytes));
    CUDA(cudaDeviceSynchronize());
}

static int check_plain(const struct slice_set *s, const char *what)
{
    std::vector<uint16_t> got(s->value.size());
    int bad = 0;
    CUDA(cudaDeviceSynchronize());
    for (int i = 0; i < SLICES; i++) {
        CUDA(cudaMemcpy(got.data(), s->plain + i * s->plain_bytes, s->plain_bytes, cudaMemcpyDeviceToHost));
        bad += memcmp(got.data(), s->value.data(), s->plain_bytes) != 0;
    }
    if (bad) printf("expand: %s: %d of %d slices are WRONG\n", what, bad, SLICES);
    return bad ? 1 : 0;
}

static void expand_slice(struct bench *b, const struct slice_set *s, const char *packed, int to,
                         uint32_t blocks, cudaStream_t stream)
{
    const struct gpuk_expand_part part = {
        FORMAT_BF16_PACKED, packed, s->table, s->plain + to * s->plain_bytes, s->rows, s->cols};
    GPUK(gpuk_expand(&b->device, &part, 1, blocks, stream, &err));
}

static int bench_kernel(struct bench *b, struct slice_set *s)
{
    int bad = 0;
    for (uint32_t blocks : {0u, 264u, 132u, 66u, 32u, 16u, 8u}) {
        char what[64];
        forget_plain(s);
        const double seconds = bench_time_graph(b, 5,
                                                [&] {
                                                    for (int i = 0; i < SLICES; i++)
                                                        expand_slice(b, s, s->packed + i * s->packed_bytes, i,
                                                                     blocks, b->stream);
                                                }) /
                               SLICES;
        const double both = (double)(s->plain_bytes + s->packed_bytes) / s->plain_bytes;
        if (blocks)
            snprintf(what, sizeof what, "%u x %u, %u blocks", s->rows, s->cols, blocks);
        else
            snprintf(what, sizeof what, "%u x %u, all blocks", s->rows, s->cols);
        bench_row("expand", what, seconds, (double)s->plain_bytes / seconds / 1e9, "GB/s ",
                  b->read_gbs / both);
        bad += check_plain(s, what);
    }
    return bad;
}

/* Seconds of all slices over the link; packed ones wait for the copy, and the copy for their place. */
static double link_seconds(struct bench *b, struct slice_set *s, bool packed, cudaEvent_t copied[2],
                           cudaEvent_t expanded[2], char *place[2])
{
    std::vector<double> seconds;
    for (int r = 0; r < b->repeats; r++) {
        float ms;
        CUDA(cudaDeviceSynchronize());
        CUDA(cudaEventRecord(b->begin, b->stream));
        for (int i = 0; i < SLICES; i++) {
            if (!packed) {
                CUDA(cudaMemcpyAsync(s->plain + i * s->plain_bytes, s->host + SLICES * s->packed_bytes,
                                     s->plain_bytes, cudaMemcpyHostToDevice, b->stream));
                continue;
            }
            if (i >= 2) CUDA(cudaStreamWaitEvent(b->stream, expanded[i % 2], 0));
            CUDA(cudaMemcpyAsync(place[i % 2], s->host + i * s->packed_bytes, s->packed_bytes,
                                 cudaMemcpyHostToDevice, b->stream));
            CUDA(cudaEventRecord(copied[i % 2], b->stream));
            CUDA(cudaStreamWaitEvent(s->expanding, copied[i % 2], 0));
            expand_slice(b, s, place[i % 2], i, 0, s->expanding);
            CUDA(cudaEventRecord(expanded[i % 2], s->expanding));
        }
        if (packed) CUDA(cudaStreamWaitEvent(b->stream, expanded[(SLICES - 1) % 2], 0));
        CUDA(cudaEventRecord(b->end, b->stream));
        CUDA(cudaStreamSynchronize(b->stream));
        CUDA(cudaEventElapsedTime(&ms, b->begin, b->end));
        seconds.push_back(ms * 1e-3);
    }
    std::sort(seconds.begin(), seconds.end());
    return seconds[seconds.size() / 2];
}

static int bench_link(struct bench *b, struct slice_set *s)
{
    cudaEvent_t copied[2], expanded[2];
    char *place[2];
    int bad = 0;
    for (int i = 0; i < 2; i++) {
        CUDA(cudaEventCreateWithFlags(&copied[i], cudaEventDisableTiming));
        CUDA(cudaEventCreateWithFlags(&expanded[i], cudaEventDisableTiming));
        CUDA(cudaMalloc((void **)&place[i], s->packed_bytes));
    }
    for (int packed = 0; packed < 2; packed++) {
        forget_plain(s);
        const double seconds = link_seconds(b, s, packed, copied, expanded, place) / SLICES;
        bench_row("expand", packed ? "packed over the link" : "plain over the link", seconds,
                  (double)s->plain_bytes / seconds / 1e9, "GB/s ", 0);
        bad += check_plain(s, packed ? "packed over the link" : "plain over the link");
    }
    for (int i = 0; i < 2; i++) {
        CUDA(cudaFree(place[i]));
        CUDA(cudaEventDestroy(copied[i]));
        CUDA(cudaEventDestroy(expanded[i]));
    }
    return bad;
}

/* y = W x of all slices; GB/s are of plain weights. The limit is that of reading what is read and written. */
static int bench_product(struct bench *b, struct slice_set *s)
{
    enum { PLAIN, EXPANDED, PACKED, WAYS };
    static const char *const names[WAYS] = {"gemv, plain", "expand, gemv", "gemv, packed"};
    const double part = (double)s->packed_bytes / s->plain_bytes;
    const double moved[WAYS] = {1, 2 + part, part};
    std::vector<float> x(s->cols), got[WAYS];
    float *in, *out;
    void *workspace;
    int bad = 0;
    for (uint32_t i = 0; i < s->cols; i++) x[i] = (float)((i * 2654435761u >> 8) % 2001) * 1e-3f - 1;
    CUDA(cudaMalloc((void **)&in, s->cols * sizeof(float)));
    CUDA(cudaMalloc((void **)&out, s->rows * sizeof(float)));
    CUDA(cudaMalloc(&workspace, gpuk_gemv_workspace_bytes(s->cols)));
    CUDA(cudaMemcpy(in, x.data(), s->cols * sizeof(float), cudaMemcpyHostToDevice));
    struct gpuk_linear_args args = {};
    args.format = FORMAT_BF16_PACKED, args.cols = s->cols, args.segments = 1, args.x = in, args.norm = in;
    args.eps = 1e-6f;
    args.segment[0] = {s->packed, s->table, nullptr, out, s->rows};
    if (!gpuk_linear_takes(&b->device, &args, GPUK_ONE))
        printf("expand: no product with packed slices here\n");
    for (int way = 0; way < WAYS; way++) {
        if (way == PACKED && !gpuk_linear_takes(&b->device, &args, GPUK_ONE)) continue;
        args.format = way == PACKED ? FORMAT_BF16_PACKED : FORMAT_BF16;
        const auto all = [&] {
            for (int i = 0; i < SLICES; i++) {
                const char *packed = s->packed + i * s->packed_bytes;
                args.segment[0].weight = way == PLAIN    ? s->plain + i * s->plain_bytes
                                         : way == PACKED ? packed
                                                         : s->plain;
                if (way == EXPANDED) expand_slice(b, s, packed, 0, 0, b->stream);
                GPUK(gpuk_gemv(&b->device, &args, workspace, 0, b->stream, &err));
            }
        };
        char what[64];
        CUDA(cudaMemset(out, 0xff, s->rows * sizeof(float)));
        const double seconds = bench_time_graph(b, 5, all) / SLICES;
        snprintf(what, sizeof what, "%u x %u, %s", s->rows, s->cols, names[way]);
        bench_row("product", what, seconds, (double)s->plain_bytes / seconds / 1e9, "GB/s ",
                  b->read_gbs / moved[way]);
        got[way].resize(s->rows);
        CUDA(cudaDeviceSynchronize());
        CUDA(cudaMemcpy(got[way].data(), out, s->rows * sizeof(float), cudaMemcpyDeviceToHost));
        if (memcmp(got[way].data(), got[PLAIN].data(), s->rows * sizeof(float)) == 0) continue;
        printf("product: %s: other bits than of plain weights\n", what);
        bad++;
    }
    CUDA(cudaFree(in));
    CUDA(cudaFree(out));
    CUDA(cudaFree(workspace));
    return bad;
}

int bench_expand(struct bench *b)
{
    int bad = 0;
    const uint32_t shapes[][2] = {{2048, 4096}, {4096, 4096}, {1360, 12288}, {672, 12288}, {256, 4096}};
    for (const auto &shape : shapes) {
        struct slice_set s;
        open_set(&s, shape[0], shape[1]);
        printf("expand: %u rows of %u columns, %.3f bits a value, %.4f of plain\n", s.rows, s.cols,
               8.0 * s.packed_bytes / s.value.size(), (double)s.packed_bytes / s.plain_bytes);
        bad += bench_kernel(b, &s);
        bad += bench_link(b, &s);
        bad += bench_product(b, &s);
        close_set(&s);
    }
    return bad;
}
