/* One tile of two rows of weights in shared memory against x: the inner step of every kernel that streams
 * weights through a ring.
 *
 * Included by gemv_bulk.cu, gemv_groups.cu and chain.cuh, and for arrivals by gemm_stream and gemm_integer;
 * templates are over a decoder (decode.cuh). */
#pragma once

#include "worker-gpu/kernels/device.cuh"

static const uint32_t PARTIAL_FLOATS = 1024; /* sums of tiles that wait for the end of their rows */

/* How a warp that is done with a buffer says so: each lane arrives at the barrier, which is opened for that
 * many. One lane's arrival for all, after __syncwarp, is as right (it releases what the others did before it)
 * and no faster, but racecheck of compute-sanitizer follows only threads that arrive themselves, and takes
 * the others' accesses for hazards. */
static const uint32_t WARP_ARRIVALS = 32;

/* A warp's place in its walk over a block's tiles. */
struct tile_walk {
    uint32_t pair, chunk; /* pair counts from the block's first */
};
__device__ __forceinline__ void walk_next(tile_walk &w, uint32_t chunks, uint32_t step)
{
    w.chunk += step;
    while (w.chunk >= chunks) w.chunk -= chunks, w.pair++;
}
/* The same by a step that is cut already: step.pair pairs and step.chunk chunks, fewer than a row has. */
__device__ __forceinline__ void walk_step(tile_walk &w, uint32_t chunks, const tile_walk &step)
{
    w.pair += step.pair, w.chunk += step.chunk;
    if (w.chunk >= chunks) w.chunk -= chunks, w.pair++;
}

/* Dynamic shared memory of each of two blocks that are on a multiprocessor together. */
static inline size_t half_shared(const struct gpuk_device *device)
{
    const size_t own = 1024; /* of each block, the system's */
    return ((size_t)device->shared_bytes_max + own) / 2 - own;
}

/* Place of float4 number f of x in shared memory. A lane's unit meets one to eight of them; the first ones of
 * all lanes lie together, then the second ones, and so on, so that no read has bank conflicts. */
template <typename D> __device__ __forceinline__ uint32_t x_place(uint32_t f)
{
    const uint32_t each = D::UNIT_VALUES / 4, all = 32 * each;
    if (each == 1) return f;
    return (f & ~(all - 1)) + (f & (each - 1)) * 32 + (f & (all - 1)) / each;
}

/* sum + v . v. Spelled out, as is what gemv_bulk and gemv_groups do with it: these two have the same bits
 * whatever else the compiler has to do in either. */
__device__ __forceinline__ float add_squares(float sum, const float4 &v)
{
    return __fmaf_rn(v.w, v.w, __fmaf_rn(v.z, v.z, __fmaf_rn(v.y, v.y, __fmaf_rn(v.x, v.x, sum))));
}

/* The same as chains and gemm_integer add it up, a quad's own sum first. */
__device__ __forceinline__ float add_quad_squares(float sum, const float4 &v)
{
    return __fadd_rn(sum, __fmaf_rn(v.w, v.w, __fmaf_rn(v.z, v.z, __fmaf_rn(v.y, v.y, __fmul_rn(v.x, v.x)))));
}

/* x to shared memory as plain numbers take it, for thread `thread` of `threads`: first, and before x is
 * there, the weights of the norm in x's place (of a norm alone) ... */
template <typename D>
__device__ __forceinline__ void x_put_norm(const float *norm, uint32_t cols, float4 *x4, uint32_t thread,
                                           uint32_t threads)
{
    if (norm)
        for (uint32_t f = thread; f < cols / 4; f += threads)
            x4[x_place<D>(f)] = __ldg(reinterpret_cast<const float4 *>(norm) + f);
}
/* ... then x, times them; returns the thread's part of the sum of squares, 0 without a norm. */
template <typename D>
__device__ __forceinline__ float x_put(const float *x, const float *norm, uint32_t cols, float4 *x4,
                                       uint32_t thread, uint32_t threads)
{
    float squares = 0;
    if (norm) {
#pragma unroll 4
        for (uint32_t f = thread; f < cols / 4; f += threads) {
            float4 v = __ldcg(reinterpret_cast<const float4 *>(x) + f), n = x4[x_place<D>(f)];
            squares = add_squares(squares, v);
            x4[x_place<D>(f)] = make_float4(v.x * n.x, v.y * n.y, v.z * n.z, v.w * n.w);
        }
    } else {
#pragma unroll 4
        for (uint32_t f = thread; f < cols / 4; f += threads)
            x4[x_place<D>(f)] = __ldcg(reinterpret_cast<const float4 *>(x) + f);
    }
    return squares;
}

/* Rows that begin anywhere are copied with what is beside them in their first and last 16 bytes. */
struct tile_window {
    const unsigned char *from;
    uint32_t bytes;
};
static const uint32_t TILE_SLACK = 32; /* bytes more than a row's, at most */
__device__ __forceinline__ tile_window tile_window_of(const unsigned char *first, uint32_t bytes)
{
    const uint32_t beside = (uint32_t)((size_t)first & 15);
    return {first - beside, (beside + bytes + 15) & ~15u};
}
/* A tile in shared memory: where its two rows begin. */
struct tile_place {
    const unsigned char *a, *b;
};
/* Lines of a tile of `steady` products with blocks, of which chains and gemm_integer, whatever they have in a
 * slot, add up a row in the same order: each lane the runs of its tile's lines, the lanes by halves, the
 * tiles one after another. */
static const uint32_t STEADY_TILE = 2560 /* bytes of one row, at most */, STEADY_LINES = 4;
static __host__ __device__ inline uint32_t steady_lines(uint32_t lines, uint32_t line_bytes, bool loose)
{
    const uint32_t fit = (STEADY_TILE - (loose ? TILE_SLACK : 0)) / line_bytes,
                   most = fit < STEADY_LINES ? fit : STEADY_LINES;
    return div_up(lines, div_up(lines, most));
}

/* A lane's part of the sums of a tile's two rows (of up to TILE bytes; the first `bytes` of each count)
 * against their part of x. WHOLE: bytes is TILE. */
template <typename D, uint32_t TILE, bool WHOLE>
__device__ __forceinline__ void tile_add_as(const tile_place &tile, uint32_t bytes, const float4 *x,
                                            float &sum_a, float &sum_b)
{
    const uint32_t all = D::LINE_BYTES, units = TILE / all, lane = threadIdx.x & 31;
    if constexpr (D::SCALED) { /* code of several lines would not be at hand */
        sum_a = sum_b = 0;
#pragma unroll 1
        for (uint32_t u = 0; u * all < bytes; u++)
            D::line_add(tile.a + u * all, tile.b + u * all, bytes - u * all, x + u * D::LINE_QUADS, sum_a,
                        sum_b);
    } else {
        float2 a = make_float2(0, 0), b = make_float2(0, 0);
        typename D::unit wa[units], wb[units];
#pragma unroll
        for (uint32_t u = 0; u < units; u++) {
            const bool valid = WHOLE || u * all + D::unit_offset(lane) < bytes;
            wa[u] = valid ? D::unit_at(tile.a + u * all, lane) : D::unit_none();
            wb[u] = valid ? D::unit_at(tile.b + u * all, lane) : D::unit_none();
        }
#pragma unroll
        for (uint32_t u = 0; u < units; u++)
            if (WHOLE || u * all + D::unit_offset(lane) < bytes)
                D::unit_add(wa[u], wb[u], x + u * D::LINE_QUADS + lane, a, b);
        sum_a = a.x + a.y, sum_b = b.x + b.y;
    }
}

/* The first exchange of two rows' sums: the lower half of the warp holds parts of the first row's, the upper
 * of the second's. */
__device__ __forceinline__ float tile_halves(float sum_a, float sum_b)
{
    const bool first = (threadIdx.x & 31) < 16;
    const float keep = first ? sum_a : sum_b, give = first ? sum_b : sum_a;
    return keep + __shfl_xor_sync(0xffffffffu, give, 16);
}
/* A tile's after it. Every lane has taken a sum of what every other read, so the tile's slot may be filled
 * again. */
template <typename D, uint32_t TILE>
__device__ __forceinline__ float tile_sums(const tile_place &tile, uint32_t bytes, const float4 *x)
{
    float sum_a, sum_b;
    tile_add_as<D, TILE, false>(tile, bytes, x, sum_a, sum_b);
    return tile_halves(sum_a, sum_b);
}
/* The rest of the way: lane 0 ends with the first row's sum, lane 16 with the second's. */
__device__ __forceinline__ float tile_fold(float keep)
{
#pragma unroll
    for (int mask = 8; mask > 0; mask >>= 1) keep += __shfl_xor_sync(0xffffffffu, keep, mask);
    return keep;
}

/* The norm's factor of x, by the squares of a block's warps, in their order; 1 without a norm. P: norm, cols
 * and eps. */
template <typename P>
__device__ __forceinline__ float norm_scale(const P &p, const float *squares, uint32_t warps)
{
    if (!p.norm) return 1.0f;
    float sum = 0;
    for (uint32_t w = 0; w < warps; w++) sum += squares[w];
    return rsqrtf(sum / (float)p.cols + p.eps);
}

/* Sums of several tiles brought together at once, lanes that are 2 apart first (of blocks of 256 these have
 * the same words, which gemm_integer reads once for both): lanes end with sum number tiles_folded of the 8,
 * the first of each four with bits 0 and 2. */
static const uint32_t TILES_FOLDED = 4;
__device__ __forceinline__ float tiles_fold(float sum[2 * TILES_FOLDED])
{
    const uint32_t lane = threadIdx.x & 31, masks[3] = {2, 16, 8};
#pragma unroll
    for (uint32_t half = TILES_FOLDED, m = 0; half > 0; half /= 2, m++) {
        const bool upper = (lane & masks[m]) != 0;
#pragma unroll
        for (uint32_t j = 0; j < half; j++) {
            const float keep = upper ? sum[j + half] : sum[j], give = upper ? sum[j] : sum[j + half];
            sum[j] = keep + __shfl_xor_sync(0xffffffffu, give, (int)masks[m]);
        }
    }
    float total = sum[0];
    total += __shfl_xor_sync(0xffffffffu, total, 4);
    total += __shfl_xor_sync(0xffffffffu, total, 1);
    return total;
}
__device__ __forceinline__ uint32_t tiles_folded()
{
    const uint32_t lane = threadIdx.x & 31;
    return (lane >> 1 & 1) * 4 + (lane >> 3 & 3);
}
__device__ __forceinline__ bool tiles_fold_first()
{
    return (threadIdx.x & 5) == 0;
}
