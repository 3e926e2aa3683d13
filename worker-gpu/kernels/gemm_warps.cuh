/* Few tokens' products: what one warp does with its columns. Included by gemm_warps.cu only, which says how warps meet.
 *
 * A warp has 256 columns of a slice for all its groups of 16 rows. The tokens' x of these columns stays in its registers, as
 * fragments B of m16n8k16, f16 in a high and a low part; weights are fragments A, made of the bytes of a tile in shared
 * memory. Which k an element of a fragment is does not matter as long as A and B agree. So
 * columns go to lanes as decoding likes it best:
 *   spread   Any blocks without a least. The four lanes of a row share every run of 32 columns; the scales of a run are
 *            applied to its sums.
 *   own      (Q4_K) A lane has two runs of its own of each of its two rows: the low and the high halves of 32 bytes, with
 *            scales that no other lane needs. Number times scale, of 10 bits, is exact in f16, so that a block is summed up
 *            by the tensor cores alone; d follows once a block. Leasts are one more product, of the six bits of each run and
 *            the run's sum of x. */
#ifndef HELM_WORKER_GPU_KERNELS_GEMM_WARPS_CUH
#define HELM_WORKER_GPU_KERNELS_GEMM_WARPS_CUH

#include "worker-gpu/kernels/decode.cuh"
#include "worker-gpu/kernels/gemm_stream_reduce.cuh"

static const uint32_t WARPS = 16, WARP_COLUMNS = 256, WARP_RUNS = WARP_COLUMNS / 32,
                      QUARTERS = WARP_COLUMNS / 16 /* fours of columns that a lane has */;

enum warps_way { WARPS_SPREAD, WARPS_OWN, WARPS_NONE };
template <typename D> __host__ __device__ constexpr enum warps_way warps_way_of()
{
    if constexpr (D::SCALED) return D::LEAST ? WARPS_NONE : WARPS_SPREAD;
    return WARPS_NONE;
}
template <> __host__ __device__ constexpr enum warps_way warps_way_of<decode_q4_k>() { return WARPS_OWN; }

/* Bytes of a line, a warp's columns of a row. */
template <typename D> __host__ __device__ constexpr uint32_t warps_line()
{
    return WARP_COLUMNS / D::VALUES * D::BYTES;
}

/* Where the lane's float4 number j of a token's 256 columns lies; from it to the next lane's. */
template <enum warps_way WAY> __device__ __forceinline__ uint32_t warps_column(uint32_t lane, uint32_t j)
{
    const uint32_t t = lane & 3;
    return WAY == WARPS_OWN ? t * 64 + j * 4 : j * 16 + t * 4;
}

/* Of a pair of lanes the even one has the first of both's numbers, the odd one the second; then each has both of its own. */
__device__ __forceinline__ void trade(bool odd, float &first, float &second)
{
    const float got = __shfl_xor_sync(0xffffffffu, odd ? first : second, 1);
    first = odd ? got : first, second = odd ? second : got;
}
/* f16 of a and b, and of what is left of them. */
__device__ __forceinline__ void two_parts(float a, float b, uint32_t &high, uint32_t &low)
{
    float of_a, of_b;
    high = element<__half>::pack(a, b);
    element<__half>::unpack(high, of_a, of_b);
    low = element<__half>::pack(a - of_a, b - of_b);
}
/* f16 has few exponents: the power of two that brings `most` into [2^14, 2^15), or its inverse; neither is subnormal. */
__device__ __forceinline__ float warps_factor(float most, bool inverse)
{
    int power = 141 - (int)(__float_as_uint(most) >> 23);
    power = power > 126 ? 126 : power;
    return __uint_as_float((uint32_t)(127 + (inverse ? -power : power)) << 23);
}

/* The warp's x: a lane has token lane / 4 of eight. */
template <typename D> struct warps_x {
    static const enum warps_way WAY = warps_way_of<D>();
    uint32_t high[QUARTERS][2], low[QUARTERS][2]; /* of a float4: even columns, odd ones */
    uint32_t run_high, run_low;                   /* OWN: sums of the lane's two runs, 2^-6 as large */
    float back[2]; /* of the lane's two tokens of a sum: the factors' inverses */

    __device__ __forceinline__ void load(const linear_params &p, uint32_t first, uint32_t tokens,
                                         float4 v[QUARTERS]) const
    {
        const uint32_t lane = threadIdx.x & 31, token = lane >> 2;
        const bool counts = token < tokens, odd = lane & 1, trades = WAY == WARPS_OWN;
        const float *from = p.x + (size_t)token * p.x_stride + first;
        const auto at = [&](uint32_t c) {
            return counts && first + c < p.cols ? __ldcg(reinterpret_cast<const float4 *>(from + c))
                                                : make_float4(0, 0, 0, 0);
        };
        if (!trades)
#pragma unroll
            for (uint32_t j = 0; j < QUARTERS; j++) v[j] = at(warps_column<WAY>(lane, j));
        else /* two lanes load 32 bytes that belong together, of either's columns in turn */
#pragma unroll
            for (uint32_t j = 0; j < QUARTERS; j += 2) {
                const uint32_t even = warps_column<WAY>(lane & ~1u, j) + odd * 4;
                v[j] = at(even), v[j + 1] = at(even + 64);
            }
#pragma unroll
        for (uint32_t j = 0; j < QUARTERS && trades; j += 2) {
            trade(odd, v[j].x, v[j + 1].x), trade(odd, v[j].y, v[j + 1].y);
            trade(odd, v[j].z, v[j + 1].z), trade(odd, v[j].w, v[j + 1].w);
        }
    }
    /* The row's columns from `first` on, at most up to its end. Returns the token's sum of squares over them. */
    __device__ __forceinline__ float take(const linear_params &p, uint32_t first, uint32_t tokens)
    {
        const uint32_t lane = threadIdx.x & 31;
        float squares = 0, most = 0;
        float4 v[QUARTERS];
        load(p, first, tokens, v);
#pragma unroll
        for (uint32_t j = 0; j < QUARTERS; j++) {
            const uint32_t c = first + warps_column<WAY>(lane, j);
            squares = add_squares(squares, v[j]);
            if (p.norm && c < p.cols) {
                const float4 n = __ldg(reinterpret_cast<const float4 *>(p.norm + c));
                v[j] = make_float4(v[j].x * n.x, v[j].y * n.y, v[j].z * n.z, v[j].w * n.w);
            }
            most =
                fmaxf(fmaxf(fmaxf(most, fabsf(v[j].x)), fmaxf(fabsf(v[j].y), fabsf(v[j].z))), fabsf(v[j].w));
        }
#pragma unroll
        for (int mask = 1; mask <= 2; mask <<= 1) {
            squares += __shfl_xor_sync(0xffffffffu, squares, mask);
            most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, mask));
        }
        const float factor = warps_factor(most, false), inverse = warps_factor(most, true);
        float run[2] = {0, 0};
#pragma unroll
        for (uint32_t j = 0; j < QUARTERS; j++) {
            v[j].x *= factor, v[j].y *= factor, v[j].z *= factor, v[j].w *= factor;
            if (WAY == WARPS_OWN) run[j / (QUARTERS / 2)] += (v[j].x + v[j].y) + (v[j].z + v[j].w);
            two_parts(v[j].x, v[j].z, high[j][0], low[j][0]);
            two_parts(v[j].y, v[j].w, high[j][1], low[j][1]);
        }
        if (WAY == WARPS_OWN) two_parts(run[0] * 0.015625f, run[1] * 0.015625f, run_high, run_low);
#pragma unroll
        for (uint32_t i = 0; i < 2; i++)
            back[i] = __shfl_sync(0xffffffffu, inverse, (int)(((lane & 3) * 2 + i) * 4));
        return squares;
    }
};

/* ---- products of a tile ------------------------------------------------------------------------------ */

/* Adds to sum[0], [1] what row lane / 4 gives with two tokens, to [2], [3] what the row eight further does. begins: bytes in
 * front of each row; runs: of the warp's that are there. */
template <typename D, enum warps_way WAY = warps_way_of<D>()> struct warps_products;

template <typename D> struct warps_products<D, WARPS_SPREAD> {
    typedef typename D::format F;
    typedef typename D::shared_words words;
    static const uint32_t GROUPS = F::GROUPS, BLOCK_RUNS = F::VALUES / 32;

    static __device__ __forceinline__ words block_at(const unsigned char *row, uint32_t run)
    {
        return words(row + (BLOCK_RUNS == 1 ? run * F::BYTES : 0) + F::ORIGIN);
    }
    static __device__ __forceinline__ uint32_t in_block(uint32_t run) { return BLOCK_RUNS == 1 ? 0 : run; }
    static __device__ __forceinline__ float of_lane(float v, uint32_t t)
    {
        return __shfl_sync(0xffffffffu, v, (int)((threadIdx.x & 28) | t));
    }
    static __device__ __forceinline__ void take(const unsigned char *tile, uint32_t pitch,
                                                const uint32_t *begins, uint32_t runs, const warps_x<D> &x,
                                                float sum[4])
    {
        const uint32_t lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
        const unsigned char *row_a = tile + g * pitch + (D::LOOSE ? begins[g] : 0),
                            *row_b = tile + (g + 8) * pitch + (D::LOOSE ? begins[g + 8] : 0);
        float scale_a[2][GROUPS], scale_b[2][GROUPS]; /* of runs t and t + 4 */
#pragma unroll
        for (uint32_t k = 0; k < 2; k++) {
            const uint32_t run = t + 4 * k, there = run < runs ? run : 0;
            block_scales a, b;
            F::scales_two(block_at(row_a, there), block_at(row_b, there), in_block(there), a, b);
            const float times = run < runs ? 1 / F::times(in_block(run)) : 0;
#pragma unroll
            for (uint32_t h = 0; h < GROUPS; h++)
                scale_a[k][h] = run < runs ? a.scale[h] * times : 0,
                scale_b[k][h] = run < runs ? b.scale[h] * times : 0;
        }
#pragma unroll
        for (uint32_t run = 0; run < WARP_RUNS; run++) {
            float part[GROUPS][4] = {};
#pragma unroll
            for (uint32_t h = 0; h < 2; h++) {
                const uint2 u = F::apart(block_at(row_a, run), in_block(run), t + 4 * h),
                            v = F::apart(block_at(row_b, run), in_block(run), t + 4 * h);
                const uint32_t j = 2 * run + h;
                float *to = part[h % GROUPS];
                matrix_unit<__half>::add(to, u.x, v.x, u.y, v.y, x.high[j][0], x.high[j][1]);
                matrix_unit<__half>::add(to, u.x, v.x, u.y, v.y, x.low[j][0], x.low[j][1]);
            }
#pragma unroll
            for (uint32_t h = 0; h < GROUPS; h++) {
                const float a = of_lane(scale_a[run / 4][h], run % 4),
                            b = of_lane(scale_b[run / 4][h], run % 4);
                sum[0] += part[h][0] * a, sum[1] += part[h][1] * a;
                sum[2] += part[h][2] * b, sum[3] += part[h][3] * b;
            }
        }
    }
};

/* Q6_K: runs that share bytes are taken apart together. */
struct warps_six {
    uint32_t low[2], high; /* a word of each run's low bits, and all four runs' high ones */

    /* Words h of the first and the last 16 of each run of a half block. */
    template <typename W>
    __device__ __forceinline__ void load(const W &w, uint32_t half, uint32_t h, uint32_t t)
    {
        const uint32_t i = 4 * h + t;
        low[0] = w.word(half * 64, i), low[1] = w.word(half * 64 + 32, i), high = w.word(128 + half * 32, i);
    }
    /* Of the half block's run `run` four numbers as f16, 2^-9 as large: even ones, odd ones. A number's high bits are moved
     * beside its low ones. */
    __device__ __forceinline__ uint2 apart(uint32_t run) const
    {
        const uint32_t lows = run < 2 ? 0x000f000fu : 0x00f000f0u, all = run < 2 ? 0x003f003fu : 0x03f003f0u,
                       times = run < 2 ? 0x78007800u : 0x68006800u, less = 0xac00ac00u /* 32 */;
        const uint32_t even = run % 2 ? high << 2 : high << 4, odd = run % 2 ? high >> 6 : high >> 4,
                       word = low[run % 2];
        return make_uint2(halves_fma(((word & lows) | (even & ~lows)) & all, times, less),
                          halves_fma(((word >> 8 & lows) | (odd & ~lows)) & all, times, less));
    }
};
template <> struct warps_products<decode_q6_k, WARPS_SPREAD> {
    typedef decode_q6_k D;
    static __device__ __forceinline__ void take(const unsigned char *tile, uint32_t pitch,
                                                const uint32_t *begins, uint32_t, const warps_x<D> &x,
                                                float sum[4])
    {
        const uint32_t lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
        const D::shared_words a(tile + g * pitch + begins[g]), b(tile + (g + 8) * pitch + begins[g + 8]);
        /* a lane has four of the 16 scales */
        const float d[2] = {block_half(a.half(208)) * 512, block_half(b.half(208)) * 512};
        float scale[2][4];
#pragma unroll
        for (uint32_t r = 0; r < 2; r++) {
            const uint32_t four = (r ? b : a).word(192, t) ^ 0x80808080u;
#pragma unroll
            for (uint32_t k = 0; k < 4; k++) scale[r][k] = d[r] * (block_byte(four, k) - 128);
        }
#pragma unroll
        for (uint32_t half = 0; half < 2; half++)
#pragma unroll
            for (uint32_t h = 0; h < 2; h++) {
                warps_six of_a, of_b;
                of_a.load(a, half, h, t), of_b.load(b, half, h, t);
#pragma unroll
                for (uint32_t run = 0; run < 4; run++) {
                    const uint2 u = of_a.apart(run), v = of_b.apart(run);
                    const uint32_t j = 8 * half + 2 * run + h;
                    const int from = (int)((lane & 28) | j / 4);
                    float part[4] = {};
                    matrix_unit<__half>::add(part, u.x, v.x, u.y, v.y, x.high[j][0], x.high[j][1]);
                    matrix_unit<__half>::add(part, u.x, v.x, u.y, v.y, x.low[j][0], x.low[j][1]);
                    const float of[2] = {__shfl_sync(0xffffffffu, scale[0][j % 4], from),
                                         __shfl_sync(0xffffffffu, scale[1][j % 4], from)};
#pragma unroll
                    for (uint32_t i = 0; i < 4; i++) sum[i] += part[i] * of[i / 2];
                }
            }
    }
};

/* Q4_K: a lane's two runs of a row. */
struct warps_own_row {
    uint4 head;
    uint32_t number[8];
    uint32_t times[2],
        leasts;     /* f16 pairs: 1024 times the low run's scale, 64 times the high one's; both leasts */
    float d, least; /* of the block */

    __device__ __forceinline__ void load(const unsigned char *row, uint32_t t)
    {
        const uint4 *quad = reinterpret_cast<const uint4 *>(row);
        const uint4 first = quad[1 + 2 * t], second = quad[2 + 2 * t];
        head = quad[0];
        number[0] = first.x, number[1] = first.y, number[2] = first.z, number[3] = first.w;
        number[4] = second.x, number[5] = second.y, number[6] = second.z, number[7] = second.w;
    }
    /* Runs 2 t and 2 t + 1: six bits of each scale and least (block_scales_k). */
    __device__ __forceinline__ void scales(uint32_t t)
    {
        const uint32_t both = __byte_perm(head.y, head.z, t & 1 ? 0x7632 : 0x5410),
                       more = head.w >> (t & 1) * 16,
                       late = (more & 0x0f0fu) | (more & 0xf0f0u) << 12 | (both >> 2 & 0x30303030u),
                       four = t < 2 ? both & 0x3f3f3f3fu : late;
        /* 1024 more as f16, then without */
        const uint32_t one = 0x3c003c00u, less = 0xe400e400u,
                       scale = halves_fma(__byte_perm(four, 0x64646464u, 0x4140), one, less);
        leasts = halves_fma(__byte_perm(four, 0x64646464u, 0x4342), one, less);
        const uint32_t large = halves_fma(scale, 0x54006400u, 0);
        times[0] = __byte_perm(large, 0, 0x1010), times[1] = __byte_perm(large, 0, 0x3232);
        element<__half>::unpack(head.x, d, least);
    }
    /* Numbers 4 i .. 4 i + 3 of the low run or the high one, times its scale, 2^-14 as large: even ones, odd ones. */
    __device__ __forceinline__ uint2 apart(uint32_t i, bool high) const
    {
        const uint32_t mask = high ? 0x00f000f0u : 0x000f000fu, scale = high ? times[1] : times[0];
        return make_uint2(halves_fma(number[i] & mask, scale, 0),
                          halves_fma(number[i] >> 8 & mask, scale, 0));
    }
};
template <typename D> struct warps_products<D, WARPS_OWN> {
    static __device__ __forceinline__ void take(const unsigned char *tile, uint32_t pitch, const uint32_t *,
                                                uint32_t, const warps_x<D> &x, float sum[4])
    {
        const uint32_t lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
        warps_own_row a, b;
        a.load(tile + g * pitch, t), b.load(tile + (g + 8) * pitch, t);
        a.scales(t), b.scales(t);
        float part[2][4] = {};
        matrix_unit<__half>::add(sum, a.leasts, b.leasts, a.leasts, b.leasts, x.run_high, x.run_low);
#pragma unroll
        for (uint32_t i = 0; i < 4; i++) sum[i] *= -64 * (i < 2 ? a.least : b.least);
#pragma unroll
        for (uint32_t i = 0; i < 8; i++)
#pragma unroll
            for (uint32_t high = 0; high < 2; high++) {
                const uint2 u = a.apart(i, high), v = b.apart(i, high);
                const uint32_t j = high * 8 + i;
                matrix_unit<__half>::add(part[0], u.x, v.x, u.y, v.y, x.high[j][0], x.high[j][1]);
                matrix_unit<__half>::add(part[1], u.x, v.x, u.y, v.y, x.low[j][0], x.low[j][1]);
            }
#pragma unroll
        for (uint32_t i = 0; i < 4; i++) sum[i] += (part[0][i] + part[1][i]) * (16384 * (i < 2 ? a.d : b.d));
    }
};

#endif
