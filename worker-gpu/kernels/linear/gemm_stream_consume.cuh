/* The streamed gemm's consumers: the warps that multiply (gemm_stream.cu says how the roles meet).
 *
 * Included by gemm_stream.cu only. A consumer has at most RUNS runs of 32 columns. The tokens' x of these
 * stays in its registers, as fragments B of m16n8k16; the weights of a group's 16 rows are fragments A. Which
 * k an element of a fragment is does not matter as long as A and B agree, so fragments are taken as the bytes
 * lie. Numbers of blocks become f16; a run's scales are applied to its sums. */
#pragma once

#include "worker-gpu/kernels/linear/gemm_stream_reduce.cuh"

/* ---- x ------------------------------------------------------------------------------------------- */

/* The type that tensor cores multiply. */
template <typename D, bool BLOCKS = D::SCALED> struct stream_value {
    typedef typename D::value type;
};
template <typename D> struct stream_value<D, true> {
    typedef __half type;
};

/* f16 has few exponents: x is brought near the top of its range by a power of two for each token, and sums
 * back by its inverse. */
template <typename T> struct few_exponents {
    static const bool value = false;
};
template <> struct few_exponents<__half> {
    static const bool value = true;
};
/* The power of two that brings `most` into [2^14, 2^15), or its inverse; neither is subnormal. */
__device__ __forceinline__ float range_factor(float most, bool inverse)
{
    int power = 141 - (int)(__float_as_uint(most) >> 23);
    power = power > 126 ? 126 : power;
    return __uint_as_float((uint32_t)(127 + (inverse ? -power : power)) << 23);
}

/* A consumer's x, words of two columns as A has them (fragment_columns); a lane has token lane / 4 of each
 * 8. */
template <int N> struct stream_x {
    uint32_t high[RUNS][N][4], low[RUNS][N][4];
};

__device__ __forceinline__ void load4(float *to, const float4 &v)
{
    to[0] = v.x, to[1] = v.y, to[2] = v.z, to[3] = v.w;
}
/* Words of 4 columns, as loaded, to words of the lane's own: even lanes of a pair have columns 0 to 3 and 8
 * to 11 of 16 and want 0 to 7, odd ones have 4 to 7 and 12 to 15 and want 8 to 15. */
__device__ __forceinline__ void trade(bool odd, const uint32_t *had, uint32_t *to)
{
#pragma unroll
    for (int j = 0; j < 2; j++) {
        const uint32_t theirs = __shfl_xor_sync(0xffffffffu, odd ? had[j] : had[2 + j], 1);
        to[j] = odd ? theirs : had[j];
        to[2 + j] = odd ? had[2 + j] : theirs;
    }
}

/* The warp's columns are first to first + 32 * runs. A lane's of a run: of plain numbers 8 neighbours (one 16
 * bytes of a row); of blocks 4 of the first 16, then 4 of the others, even ones of 4 before odd ones. Leaves
 * the tokens' squares and f16's inverse factors in shared memory. */
template <typename D, int N>
__device__ __forceinline__ void take_x(const stream_params &q, uint32_t first, uint32_t runs,
                                       float *squares_to, float *factors_to, stream_x<N> &x)
{
    typedef typename stream_value<D>::type T;
    const linear_params &p = q.linear;
    const uint32_t lane = threadIdx.x & 31, g = lane >> 2;
    const bool odd = lane & 1;
    /* of plain numbers a pair of lanes loads 32 bytes that belong together, so that the L2 is asked for them
     * once */
    const uint32_t column = first + (D::SCALED ? (lane & 3) * 4 : (lane >> 1 & 1) * 16 + odd * 4),
                   apart = D::SCALED ? 16 : 8, tokens = *q.count;
    float norm[RUNS][8], v[RUNS][N][8], squares[N], most[N];
#pragma unroll
    for (uint32_t i = 0; i < RUNS * 2; i++) {
        const uint32_t c = column + i / 2 * 32 + i % 2 * apart;
        const bool has = p.norm && i / 2 < runs && c < p.cols;
        load4(norm[i / 2] + i % 2 * 4,
              has ? __ldg(reinterpret_cast<const float4 *>(p.norm + c)) : make_float4(1, 1, 1, 1));
    }
    wait_for_previous();
#pragma unroll
    for (uint32_t i = 0; i < RUNS * 2; i++)
#pragma unroll
        for (int n = 0; n < N; n++) {
            const uint32_t t = n * 8 + g, c = column + i / 2 * 32 + i % 2 * apart;
            const bool has = t < tokens && i / 2 < runs && c < p.cols;
            const float *from = p.x + (size_t)t * p.x_stride + c;
            load4(v[i / 2][n] + i % 2 * 4,
                  has ? __ldcg(reinterpret_cast<const float4 *>(from)) : make_float4(0, 0, 0, 0));
        }
#pragma unroll
    for (int n = 0; n < N; n++) {
        squares[n] = most[n] = 0;
#pragma unroll
        for (uint32_t i = 0; i < RUNS; i++)
#pragma unroll
            for (int j = 0; j < 8; j++) {
                float &e = v[i][n][j];
                squares[n] += e * e;
                e *= norm[i][j];
                most[n] = fmaxf(most[n], fabsf(e));
            }
#pragma unroll
        for (int mask = 1; mask <= 2; mask <<= 1) {
            squares[n] += __shfl_xor_sync(0xffffffffu, squares[n], mask);
            most[n] = fmaxf(most[n], __shfl_xor_sync(0xffffffffu, most[n], mask));
        }
        if ((lane & 3) == 0) {
            squares_to[n * 8 + g] = squares[n];
            if (few_exponents<T>::value) factors_to[n * 8 + g] = range_factor(most[n], true);
        }
        const float factor = few_exponents<T>::value ? range_factor(most[n], false) : 1.0f;
#pragma unroll
        for (uint32_t i = 0; i < RUNS; i++) {
            uint32_t high[4], low[4];
#pragma unroll
            for (int j = 0; j < 4; j++) {
                const int of = D::SCALED ? j / 2 * 4 + j % 2 : 2 * j;
                float a = v[i][n][of] * factor, b = v[i][n][of + (D::SCALED ? 2 : 1)] * factor;
                const float largest = element<T>::largest(); /* a low part needs it */
                if (fabsf(a) > largest) a = copysignf(largest, a);
                if (fabsf(b) > largest) b = copysignf(largest, b);
                high[j] = element<T>::pack(a, b);
                float high_a, high_b;
                element<T>::unpack(high[j], high_a, high_b);
                low[j] = element<T>::pack(a - high_a, b - high_b);
            }
            if constexpr (D::SCALED) {
#pragma unroll
                for (int j = 0; j < 4; j++) x.high[i][n][j] = high[j], x.low[i][n][j] = low[j];
            } else {
                trade(odd, high, x.high[i][n]);
                trade(odd, low, x.low[i][n]);
            }
        }
    }
    __syncwarp(); /* for the factors */
}

/* ---- plain numbers ---------------------------------------------------------------------------------- */

__device__ __forceinline__ uint4 choose(bool first, const uint4 &a, const uint4 &b)
{
    return make_uint4(first ? a.x : b.x, first ? a.y : b.y, first ? a.z : b.z, first ? a.w : b.w);
}

/* A consumer's place in a slice, and a group's sums. All rows begin in the same bank, so even and odd rows
 * take the two halves of a line in turn. */
template <typename D, int N, bool BLOCKS = D::SCALED> struct stream_products {
    uint32_t first, lines; /* of the slice */

    __device__ __forceinline__ stream_products(const stream_share &s, uint32_t consumer)
    {
        first = s.lines * consumer / s.consumers;
        lines = s.lines * (consumer + 1) / s.consumers - first;
    }
    __device__ __forceinline__ uint32_t first_column() const { return first * stream_line<D>::COLUMNS; }
    __device__ __forceinline__ uint32_t runs() const { return lines * 2; }
    __device__ __forceinline__ void begin(const stream_x<N> &) {}
    __device__ __forceinline__ void take(const unsigned char *slot, uint32_t pitch, const uint32_t *,
                                         const stream_x<N> &x, float sum[2][N][4]) const
    {
        typedef typename D::value T;
        const uint32_t lane = threadIdx.x & 31, g = lane >> 2, LINE = stream_line<D>::BYTES;
        const bool odd = g & 1;
        const unsigned char *from = slot + g * pitch + first * LINE + (lane & 3) * 16;
#pragma unroll
        for (uint32_t l = 0; l < RUNS / 2; l++) {
            if (l >= lines) break;
            uint4 a[2], b[2];
#pragma unroll
            for (int h = 0; h < 2; h++) {
                const unsigned char *at = from + l * LINE + (odd ? 64 - h * 64 : h * 64);
                a[h] = *reinterpret_cast<const uint4 *>(at);
                b[h] = *reinterpret_cast<const uint4 *>(at + PAIRS * pitch);
            }
#pragma unroll
            for (int h = 0; h < 2; h++) {
                const uint4 u = choose(odd, a[1 - h], a[h]), v = choose(odd, b[1 - h], b[h]);
#pragma unroll
                for (int n = 0; n < N; n++) {
                    const uint32_t *high = x.high[2 * l + h][n], *low = x.low[2 * l + h][n];
                    matrix_unit<T>::add(sum[0][n], u.x, v.x, u.y, v.y, high[0], high[1]);
                    matrix_unit<T>::add(sum[1][n], u.x, v.x, u.y, v.y, low[0], low[1]);
                    matrix_unit<T>::add(sum[0][n], u.z, v.z, u.w, v.w, high[2], high[3]);
                    matrix_unit<T>::add(sum[1][n], u.z, v.z, u.w, v.w, low[2], low[3]);
                }
            }
        }
    }
};

/* ---- blocks ------------------------------------------------------------------------------------------ */

template <typename D, int N> struct stream_products<D, N, true> {
    typedef typename D::format F;
    typedef typename D::shared_words words;
    static const uint32_t GROUPS = F::GROUPS, BLOCK_RUNS = F::VALUES / 32;
    uint32_t line, quarter, there; /* bytes in front of the columns, their first run in a block; runs */
    uint32_t column;
    /* of each run and scale, for the lane's two tokens of each 8: sums of x, where values have a least */
    float tokens[RUNS][GROUPS][N][2];

    __device__ __forceinline__ stream_products(const stream_share &s, uint32_t consumer)
    {
        const uint32_t parts = stream_line<D>::PARTS, of = consumer / parts;
        line = of * stream_line<D>::BYTES, quarter = consumer % parts;
        column = consumer * 32 * RUNS;
        const uint32_t left = (s.bytes - line) / F::BYTES * BLOCK_RUNS;
        there = left < RUNS ? left : RUNS;
    }
    __device__ __forceinline__ uint32_t first_column() const { return column; }
    __device__ __forceinline__ uint32_t runs() const { return there; }
    __device__ __forceinline__ void begin(const stream_x<N> &x)
    {
        if constexpr (F::LEAST) {
            const uint32_t one = 0x3c003c00u;
#pragma unroll
            for (uint32_t r = 0; r < RUNS; r++)
#pragma unroll
                for (int n = 0; n < N; n++) {
                    float sums[2][4] = {};
#pragma unroll
                    for (uint32_t h = 0; h < 2; h++) {
                        float *to = sums[h % GROUPS];
                        matrix_unit<__half>::add(to, one, one, one, one, x.high[r][n][2 * h],
                                                 x.high[r][n][2 * h + 1]);
                        matrix_unit<__half>::add(to, one, one, one, one, x.low[r][n][2 * h],
                                                 x.low[r][n][2 * h + 1]);
                    }
#pragma unroll
                    for (uint32_t h = 0; h < GROUPS; h++)
                        tokens[r][h][n][0] = sums[h][0], tokens[r][h][n][1] = sums[h][1];
                }
        }
    }
    /* Where run r lies: its block, which of the block's runs it is. */
    __device__ __forceinline__ words block_at(const unsigned char *row, uint32_t r) const
    {
        return words(row + (BLOCK_RUNS == 1 ? r * F::BYTES : 0) + F::ORIGIN);
    }
    __device__ __forceinline__ uint32_t run_of(uint32_t r) const
    {
        return BLOCK_RUNS == 1 ? 0 : quarter * RUNS + r;
    }
    static __device__ __forceinline__ float of_lane(float v, uint32_t r)
    {
        return __shfl_sync(0xffffffffu, v, (int)((threadIdx.x & 28) | r));
    }
    __device__ __forceinline__ void take(const unsigned char *slot, uint32_t pitch, const uint32_t *begins,
                                         const stream_x<N> &x, float sum[2][N][4]) const
    {
        const uint32_t lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
        const bool loose = stream_line<D>::LOOSE;
        const unsigned char *row_a = slot + g * pitch + line + (loose ? begins[g] : 0),
                            *row_b = slot + (g + PAIRS) * pitch + line + (loose ? begins[g + PAIRS] : 0);
        /* a lane has the scales of one run */
        block_scales own_a, own_b;
        F::scales_two(block_at(row_a, t), block_at(row_b, t), run_of(t), own_a, own_b);
        if (t >= there) own_a = own_b = block_scale(0);
        const float times = 1 / F::times(run_of(t));
#pragma unroll
        for (uint32_t h = 0; h < GROUPS; h++) own_a.scale[h] *= times, own_b.scale[h] *= times;
        float part[RUNS][GROUPS][N][4];
#pragma unroll
        for (uint32_t r = 0; r < RUNS; r++)
#pragma unroll
            for (uint32_t h = 0; h < GROUPS; h++)
#pragma unroll
                for (int n = 0; n < N; n++)
#pragma unroll
                    for (int i = 0; i < 4; i++) part[r][h][n][i] = 0;
#pragma unroll
        for (uint32_t h = 0; h < 2; h++) {
            uint2 u[RUNS], v[RUNS];
#pragma unroll
            for (uint32_t r = 0; r < RUNS; r++) {
                u[r] = F::apart(block_at(row_a, r), run_of(r), t + 4 * h);
                v[r] = F::apart(block_at(row_b, r), run_of(r), t + 4 * h);
            }
#pragma unroll
            for (uint32_t low = 0; low < 2; low++)
#pragma unroll
                for (uint32_t r = 0; r < RUNS; r++) /* each waits for one of the run before */
#pragma unroll
                    for (int n = 0; n < N; n++) {
                        const uint32_t *with = (low ? x.low[r][n] : x.high[r][n]) + 2 * h;
                        matrix_unit<__half>::add(part[r][h % GROUPS][n], u[r].x, v[r].x, u[r].y, v[r].y,
                                                 with[0], with[1]);
                    }
        }
#pragma unroll
        for (uint32_t r = 0; r < RUNS; r++)
#pragma unroll
            for (uint32_t h = 0; h < GROUPS; h++) {
                const float scale_a = of_lane(own_a.scale[h], r), scale_b = of_lane(own_b.scale[h], r);
                float least_a = 0, least_b = 0;
                if (F::LEAST) least_a = of_lane(own_a.least[h], r), least_b = of_lane(own_b.least[h], r);
#pragma unroll
                for (int n = 0; n < N; n++)
#pragma unroll
                    for (int i = 0; i < 4; i++) {
                        sum[0][n][i] += part[r][h][n][i] * (i < 2 ? scale_a : scale_b);
                        if (F::LEAST) sum[1][n][i] -= tokens[r][h][n][i & 1] * (i < 2 ? least_a : least_b);
                    }
            }
    }
};

/* ---- a consumer -------------------------------------------------------------------------------------- */

template <typename D, int N>
__device__ __forceinline__ void consume(const stream_params &q, const stream_share &s, const stream_memory &m,
                                        uint32_t consumer)
{
    typedef typename stream_value<D>::type T;
    const uint32_t lane = threadIdx.x & 31, place = lane & 3;
    stream_products<D, N> products(s, consumer);
    stream_x<N> x;
    take_x<D, N>(q, s.first_line * stream_line<D>::COLUMNS + products.first_column(), products.runs(),
                 m.squares + consumer * 8 * N, m.factors + consumer * 8 * N, x);
    float factor[N][2]; /* of the lane's tokens of each 8 */
    if (few_exponents<T>::value)
#pragma unroll
        for (int n = 0; n < N; n++)
#pragma unroll
            for (int j = 0; j < 2; j++) factor[n][j] = m.factors[(consumer * N + n) * 8 + 2 * place + j];
    products.begin(x);

    float4 *sums_to = m.sums + consumer * N * 32 + lane;
    uint32_t slot = 0, parity = 0, reducer = 0, free_parity = 1;
    for (uint32_t i = 0; i < s.groups; i++) {
        float sum[2][N][4]; /* shorter chains of additions */
#pragma unroll
        for (int n = 0; n < N; n++)
#pragma unroll
            for (int j = 0; j < 4; j++) sum[0][n][j] = sum[1][n][j] = 0;
        bulk_wait(m.full + 8 * slot, parity);
        products.take(m.ring + slot * ROWS * q.pitch, q.pitch, m.begins + slot * ROWS, x, sum);
        /* every lane's reads of the slot are over: the products have taken them */
        barrier_arrive(m.empty + 8 * slot);
        if (++slot == q.slots) slot = 0, parity ^= 1;

        if (i >= q.reducers) bulk_wait(m.sums_free + 8 * reducer, free_parity);
#pragma unroll
        for (int n = 0; n < N; n++) {
            float total[4];
#pragma unroll
            for (int j = 0; j < 4; j++) {
                total[j] = sum[0][n][j] + sum[1][n][j];
                if (few_exponents<T>::value) total[j] *= factor[n][j & 1];
            }
            sums_to[(reducer * CONSUMERS * N + n) * 32] = make_float4(total[0], total[1], total[2], total[3]);
        }
        barrier_arrive(m.sums_full + 8 * reducer);
        if (++reducer == q.reducers) reducer = 0, free_parity ^= 1;
    }
}
