/* helm-bench-gpu-kernels --packed: one token's products with whole matrices at home in VRAM, plain and
 * packed.
 *
 * Weights are N(0, 0.02), a few groups of rows over and over: packing treats every group by itself. Each
 * operation has several copies of its matrices, together far more than the L2, and is launched over them
 * back to back in one graph, each launch early as in a decode step. GB/s are of plain bytes in every column,
 * so that equal rates are equal times. Every result is compared with that of plain weights, bit for bit. */
#include <math.h>
#include <string.h>

#include <algorithm>
#include <string>

#include "tools/bench/gpu/bench.cuh"

extern "C" {
#include "common/formats/packed.h"
}

/* bf16 weights, N(0, 0.02): the same each time. */
static std::vector<uint16_t> random_weights(size_t count)
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

static const size_t COLD_BYTES = (size_t)512
                                 << 20; /* packed, at least, between two uses of the same weights */
static const uint32_t LAUNCHES = 8;     /* at least */
static const uint32_t POOL_GROUPS = 16; /* groups that differ */

struct packed_op {
    const char *name;
    uint32_t cols, segments, rows[GPUK_SEGMENTS_MAX];
    bool norm, residual, swiglu;
    uint32_t layers; /* times a token */
};
/* Matrices of one operation, one behind the other; `copies` of each form. */
struct packed_set {
    uint32_t rows, copies;
    size_t plain_bytes, packed_bytes;
    char *plain, *packed;
    uint32_t *table; /* device */
    std::vector<uint32_t> offset;
    float *x, *norm, *out[GPUK_SEGMENTS_MAX];
    void *workspace;
};

/* Groups to pack from, of these columns: what they are and where each begins. */
struct packed_pool {
    std::vector<char> bytes;
    std::vector<uint32_t> offset;
    const char *groups;
};
static void fill_pool(struct packed_pool *pool, uint32_t cols)
{
    const uint32_t rows = POOL_GROUPS * PACKED_ROWS;
    const std::vector<uint16_t> value = random_weights((size_t)rows * cols);
    pool->bytes.resize(packed_matrix_bytes_max(rows, cols) + PACKED_ALIGN);
    char *at = pool->bytes.data();
    at += (PACKED_ALIGN - (uintptr_t)at % PACKED_ALIGN) % PACKED_ALIGN;
    pool->offset.resize(packed_groups(rows) + 1);
    GPUK(packed_write_matrix(value.data(), rows, cols, at, pool->offset.data(), &err));
    pool->groups = at;
}

static float *device_floats(const std::vector<float> &v)
{
    float *at;
    CUDA(cudaMalloc((void **)&at, v.size() * sizeof(float)));
    CUDA(cudaMemcpy(at, v.data(), v.size() * sizeof(float), cudaMemcpyHostToDevice));
    return at;
}

static void open_set(struct bench *b, struct packed_set *s, const struct packed_op *op)
{
    struct packed_pool pool;
    fill_pool(&pool, op->cols);
    s->rows = 0;
    for (uint32_t i = 0; i < op->segments; i++) s->rows += op->rows[i];
    const uint32_t groups = packed_groups(s->rows); /* rows are whole groups in every shape */
    std::vector<char> host;
    for (uint32_t g = 0; g < groups; g++) {
        const uint32_t from = g * 7 % POOL_GROUPS;
        s->offset.push_back((uint32_t)(host.size() / PACKED_ALIGN));
        host.insert(host.end(), pool.groups + packed_at(pool.offset.data(), from),
                    pool.groups + packed_at(pool.offset.data(), from + 1));
    }
    s->offset.push_back((uint32_t)(host.size() / PACKED_ALIGN));
    s->packed_bytes = host.size();
    s->plain_bytes = (size_t)s->rows * op->cols * 2;
    s->copies = (uint32_t)(COLD_BYTES / s->packed_bytes) + 1;
    CUDA(cudaMalloc((void **)&s->packed, s->copies * s->packed_bytes));
    CUDA(cudaMalloc((void **)&s->plain, s->copies * s->plain_bytes));
    CUDA(cudaMalloc((void **)&s->table, s->offset.size() * 4));
    CUDA(cudaMemcpy(s->table, s->offset.data(), s->offset.size() * 4, cudaMemcpyHostToDevice));
    CUDA(cudaMemcpy(s->packed, host.data(), s->packed_bytes, cudaMemcpyHostToDevice));
    for (uint32_t c = 1; c < s->copies; c++)
        CUDA(cudaMemcpy(s->packed + c * s->packed_bytes, s->packed, s->packed_bytes,
                        cudaMemcpyDeviceToDevice));
    for (uint32_t c = 0; c < s->copies; c++) {
        const struct gpuk_expand_part part = {FORMAT_BF16_PACKED,
                                              s->packed + c * s->packed_bytes,
                                              s->table,
                                              s->plain + c * s->plain_bytes,
                                              s->rows,
                                              op->cols};
        GPUK(gpuk_expand(&b->device, &part, 1, 0, b->stream, &err));
    }
    std::vector<float> x(op->cols), norm(op->cols);
    for (uint32_t i = 0; i < op->cols; i++) {
        x[i] = (float)((i * 2654435761u >> 8) % 2001) * 1e-3f - 1;
        norm[i] = 1 + (float)(i % 17) * 0.01f;
    }
    s->x = device_floats(x);
    s->norm = device_floats(norm);
    for (uint32_t i = 0; i < op->segments; i++)
        CUDA(cudaMalloc((void **)&s->out[i], op->rows[i] * sizeof(float)));
    CUDA(cudaMalloc(&s->workspace, gpuk_gemv_workspace_bytes(op->cols)));
    CUDA(cudaMemset(s->workspace, 0, gpuk_gemv_workspace_bytes(op->cols)));
    CUDA(cudaDeviceSynchronize());
}

static void close_set(struct packed_set *s, const struct packed_op *op)
{
    CUDA(cudaDeviceSynchronize());
    CUDA(cudaFree(s->packed));
    CUDA(cudaFree(s->plain));
    CUDA(cudaFree(s->table));
    CUDA(cudaFree(s->x));
    CUDA(cudaFree(s->norm));
    CUDA(cudaFree(s->workspace));
    for (uint32_t i = 0; i < op->segments; i++) CUDA(cudaFree(s->out[i]));
}

/* The arguments over copy `copy`. */
static struct gpuk_linear_args args_of(const struct packed_set *s, const struct packed_op *op, uint32_t copy,
                                       bool packed)
{
    struct gpuk_linear_args args = {};
    args.format = packed ? FORMAT_BF16_PACKED : FORMAT_BF16, args.cols = op->cols,
    args.segments = op->segments, args.swiglu = op->swiglu;
    args.x = s->x, args.eps = 1e-6f;
    if (op->norm) args.norm = s->norm;
    if (op->residual) args.residual = s->norm;
    for (uint32_t i = 0, row = 0; i < op->segments; row += op->rows[i++]) {
        const uint32_t group = row / PACKED_ROWS;
        args.segment[i] = {packed ? s->packed + copy * s->packed_bytes + packed_at(s->offset.data(), group)
                                  : s->plain + copy * s->plain_bytes + (size_t)row * op->cols * 2,
                           packed ? s->table + group : nullptr, nullptr, s->out[i], op->rows[i]};
    }
    return args;
}

static std::vector<float> result_of(const struct packed_set *s, const struct packed_op *op)
{
    std::vector<float> all;
    CUDA(cudaDeviceSynchronize());
    for (uint32_t i = 0; i < (op->swiglu ? 1 : op->segments); i++) {
        std::vector<float> v(op->rows[i]);
        CUDA(cudaMemcpy(v.data(), s->out[i], v.size() * sizeof(float), cudaMemcpyDeviceToHost));
        CUDA(cudaMemset(s->out[i], 0xff, v.size() * sizeof(float)));
        all.insert(all.end(), v.begin(), v.end());
    }
    CUDA(cudaDeviceSynchronize());
    return all;
}

struct packed_way {
    const char *name;
    bool packed;
    struct gpuk_device device;
};

/* Seconds of one launch; 0: not taken. */
static double time_way(struct bench *b, const struct packed_set *s, const struct packed_op *op,
                       const struct packed_way *way)
{
    const uint32_t launches = std::max(LAUNCHES, s->copies);
    const struct gpuk_linear_args first = args_of(s, op, 0, way->packed);
    if (way->packed && !gpuk_linear_takes(&way->device, &first, GPUK_ONE)) return 0;
    return bench_time_graph(b, 2,
                            [&] {
                                for (uint32_t i = 0; i < launches; i++) {
                                    const struct gpuk_linear_args args =
                                        args_of(s, op, i % s->copies, way->packed);
                                    const uint32_t flags = i && b->device.early_launch ? GPUK_EARLY : 0;
                                    GPUK(
                                        gpuk_gemv(&way->device, &args, s->workspace, flags, b->stream, &err));
                                }
                            }) /
           launches;
}

static std::vector<packed_way> ways_of(const struct bench *b)
{
    std::vector<packed_way> ways(7, {"", true, b->device});
    ways[0] = {"plain", false, b->device};
    ways[1].name = "packed";
    ways[2].name = "3 slots", ways[2].device.packed_slots = 3;
    ways[3].name = "16 warps", ways[3].device.packed_warps = 16;
    ways[4].name = "8 warps", ways[4].device.packed_warps = 8;
    ways[5].name = "2 blocks of 8", ways[5].device.packed_warps = 8, ways[5].device.packed_blocks = 2;
    ways[6].name = "async copies", ways[6].device.bulk_copy = false;
    return ways;
}

int bench_packed(struct bench *b)
{
    static const struct {
        const char *name;
        struct packed_op op[5];
    } model[] = {{"8B",
                  {{"q k v", 4096, 3, {4096, 1024, 1024}, true, false, false, 36},
                   {"o", 4096, 1, {4096}, false, true, false, 36},
                   {"gate up", 4096, 2, {12288, 12288}, true, false, true, 36},
                   {"down", 12288, 1, {4096}, false, true, false, 36},
                   {"head", 4096, 1, {151936}, true, false, false, 1}}},
                 {"14B",
                  {{"q k v", 5120, 3, {5120, 1024, 1024}, true, false, false, 40},
                   {"o", 5120, 1, {5120}, false, true, false, 40},
                   {"gate up", 5120, 2, {17408, 17408}, true, false, true, 40},
                   {"down", 17408, 1, {5120}, false, true, false, 40},
                   {"head", 5120, 1, {151936}, true, false, false, 1}}}};
    const std::vector<packed_way> ways = ways_of(b);
    int bad = 0;
    printf("packed: us of a launch (GB/s of plain bytes); limits: plain %.0f GB/s\n%-12s %7s", b->read_gbs,
           "", "MB");
    for (const packed_way &w : ways) printf(" %16s", w.name);
    printf("\n");
    for (const auto &m : model) {
        std::vector<double> token(ways.size());
        double bytes = 0;
        for (const packed_op &op : m.op) {
            struct packed_set s = {};
            open_set(b, &s, &op);
            const std::string name = std::string(m.name) + " " + op.name;
            printf("%-12s %7.1f", name.c_str(), s.plain_bytes / 1e6);
            std::vector<float> expected;
            bytes += (double)s.plain_bytes * op.layers;
            std::string wrong;
            for (size_t w = 0; w < ways.size(); w++) {
                const double seconds = time_way(b, &s, &op, &ways[w]);
                printf(" %8.1f (%5.0f)", seconds * 1e6, seconds > 0 ? s.plain_bytes / seconds / 1e9 : 0);
                token[w] += seconds > 0 ? seconds * op.layers : 1e9;
                const std::vector<float> got = result_of(&s, &op);
                if (w == 0) expected = got;
                if (seconds > 0 && memcmp(got.data(), expected.data(), got.size() * sizeof(float)))
                    wrong += std::string(" ") + ways[w].name, bad++;
            }
            printf("  %.4f%s%s\n", (double)s.packed_bytes / s.plain_bytes,
                   wrong.empty() ? "" : " WRONG BITS:", wrong.c_str());
            close_set(&s, &op);
        }
        printf("%-12s %7.0f", (std::string(m.name) + " token").c_str(), bytes / 1e6);
        for (double t : token) printf(" %8.0f (%5.0f)", t * 1e6, bytes / t / 1e9);
        printf("\n");
    }
    return bad;
}
