/* Blocks of few bits times a few vectors on the matrix unit, exact in a run: the inner step of
 * experts/digits.cu.
 *
 * As in blocks_x.cuh a run of 32 numbers of x is a power of two times whole numbers of 22 bits and a sign,
 * which are three bytes with signs; here a run's bytes lie as fragments of the matrix unit ask for them. Two
 * vectors' digits are the eight rows of x that a product has (two of them twice), so a run of 16 rows of
 * weights costs one instruction, and its sums are exact. A lane then has two digits of one vector, of two
 * rows of weights. */
#pragma once

#include "worker-gpu/kernels/formats/blocks_grids.cuh"
#include "worker-gpu/kernels/formats/blocks_x.cuh"

static const uint32_t DIGITS_ROWS = 16, DIGITS_RUNS = 8; /* of weights; a unit: so many runs of them */

/* A vector in shared memory: [runs][3][32] digits, [runs] scales, [runs][2] sums of a run's halves. */
struct digits_vector {
    static const uint32_t RUN_BYTES = 96;

    static __host__ __device__ __forceinline__ uint32_t runs_of(uint32_t cols)
    {
        return (cols / 32 + DIGITS_RUNS - 1) / DIGITS_RUNS * DIGITS_RUNS;
    }
    static __host__ __device__ __forceinline__ uint32_t bytes_of(uint32_t cols)
    {
        return runs_of(cols) * (RUN_BYTES + 12);
    }
    /* Quad f of a vector of `runs` runs; by a whole warp, whose lanes have neighbours, the first a run's
     * first. Lanes that are not `there` are whole runs. HALVES: a lane of the matrix unit has four numbers of
     * each half of a run, else eight neighbours. */
    template <bool HALVES>
    static __device__ __forceinline__ void put(unsigned char *vector, uint32_t runs, uint32_t f, bool there,
                                               const float4 &v)
    {
        const blocks_x::four of = blocks_x::four_of(v);
        if (!there) return;
        const uint32_t run = f / 8, i = f & 7;
        uint32_t *to =
            reinterpret_cast<uint32_t *>(vector + run * RUN_BYTES) + (HALVES ? (i & 3) * 2 + i / 4 : i);
        to[0] = of.digit[0], to[8] = of.digit[1], to[16] = of.digit[2];
        if (i != 0) return;
        float *scales = reinterpret_cast<float *>(vector + runs * RUN_BYTES);
        scales[run] = of.scale;
        *reinterpret_cast<float2 *>(scales + runs + 2 * run) = make_float2(of.sum, of.last);
    }
};

/* A lane's numbers of a unit's rows g and g + 8: `fragment` of run k as the matrix unit has them, and what
 * they are to be multiplied by and what is then to be taken off, by row and half of the run. */
template <typename F> struct digits_weights {
    static const bool LEASTS_AT_ONCE = false;
    static const int UP = F::LEAST ? 0 : 8 - (int)F::BITS;
    static const uint32_t RUNS = F::VALUES / 32;
    const unsigned char *row[2];
    uint32_t lane;
    block_scales scales[2];

    __device__ __forceinline__ void load(const unsigned char *a, const unsigned char *b)
    {
        row[0] = a, row[1] = b, lane = threadIdx.x & 31;
    }
    __device__ __forceinline__ void fragment(uint32_t k, uint32_t a[4])
    {
        const uint32_t t = lane & 3, first = F::GROUPS == 1 ? 2 * t : t,
                       second = F::GROUPS == 1 ? 2 * t + 1 : t + 4;
#pragma unroll
        for (uint32_t r = 0; r < 2; r++) {
            const block_words<F::ALIGN, true> w(row[r] + k / RUNS * F::BYTES + F::ORIGIN);
            a[r] = F::template four<UP>(w, k % RUNS, first) ^ (F::LEAST ? 0 : 0x80808080u);
            a[2 + r] = F::template four<UP>(w, k % RUNS, second) ^ (F::LEAST ? 0 : 0x80808080u);
            scales[r] = F::scales(w, k % RUNS);
        }
    }
    __device__ __forceinline__ float scale(uint32_t, uint32_t r, uint32_t half) const
    {
        return F::LEAST ? scales[r].scale[half] : scales[r].scale[half] * (1.0f / (1 << UP));
    }
    __device__ __forceinline__ float least(uint32_t, uint32_t r, uint32_t half) const
    {
        return scales[r].least[half];
    }
};
/* Rows of Q4_K are often whole lines of 128 bytes, so that all begin in the same bank: of eight rows each
 * reads its four pieces of 32 bytes in an order of its own, and lanes put them right. Numbers in high halves
 * of bytes stay there. */
template <> struct digits_weights<block_q4_k> {
    static const bool LEASTS_AT_ONCE = true;
    uint2 piece[2][4]; /* of two runs each */
    uint32_t scale_bytes[2][2], least_bytes[2][2];
    float d[2], d_high[2], dmin[2]; /* d_high: of numbers in high halves */

    static __device__ __forceinline__ void swap(uint2 &a, uint2 &b, bool swaps)
    {
        const uint2 first = swaps ? b : a, second = swaps ? a : b;
        a = first, b = second;
    }
    __device__ __forceinline__ void load(const unsigned char *a, const unsigned char *b)
    {
        const uint32_t lane = threadIdx.x & 31, g = lane / 4, t = lane & 3;
        const unsigned char *const row[2] = {a, b};
#pragma unroll
        for (uint32_t r = 0; r < 2; r++) {
#pragma unroll
            for (uint32_t i = 0; i < 4; i++)
                piece[r][i] = *reinterpret_cast<const uint2 *>(row[r] + 16 + ((i ^ (g & 3)) * 32) + 8 * t);
            swap(piece[r][0], piece[r][1], g & 1), swap(piece[r][2], piece[r][3], g & 1);
            swap(piece[r][0], piece[r][2], g & 2), swap(piece[r][1], piece[r][3], g & 2);
            const uint4 head = *reinterpret_cast<const uint4 *>(row[r]);
            element<__half>::unpack(head.x, d[r], dmin[r]);
            d_high[r] = d[r] * (1.0f / 16);
            scale_bytes[r][0] = head.y & 0x3f3f3f3fu, least_bytes[r][0] = head.z & 0x3f3f3f3fu;
            scale_bytes[r][1] = (head.w & 0x0f0f0f0fu) | (head.y >> 2 & 0x30303030u);
            least_bytes[r][1] = (head.w >> 4 & 0x0f0f0f0fu) | (head.z >> 2 & 0x30303030u);
        }
    }
    __device__ __forceinline__ void fragment(uint32_t k, uint32_t a[4])
    {
        const uint32_t mask = k % 2 ? 0xf0f0f0f0u : 0x0f0f0f0fu;
#pragma unroll
        for (uint32_t r = 0; r < 2; r++) a[r] = piece[r][k / 2].x & mask, a[2 + r] = piece[r][k / 2].y & mask;
    }
    __device__ __forceinline__ float scale(uint32_t k, uint32_t r, uint32_t) const
    {
        return (k % 2 ? d_high[r] : d[r]) * block_byte(scale_bytes[r][k / 4], k % 4);
    }
    __device__ __forceinline__ float least(uint32_t k, uint32_t r, uint32_t) const
    {
        return dmin[r] * block_byte(least_bytes[r][k / 4], k % 4);
    }
    /* The amounts that all runs with the lane's parity, `odd`, take off; x_sum: of a unit's runs. */
    __device__ __forceinline__ void leasts(const float *x_sum, uint32_t odd, float out[2]) const
    {
        out[0] = out[1] = 0;
#pragma unroll
        for (uint32_t i = 0; i < DIGITS_RUNS / 2; i++) {
            const float2 of = *reinterpret_cast<const float2 *>(x_sum + 4 * i + 2 * odd);
#pragma unroll
            for (uint32_t r = 0; r < 2; r++)
                out[r] = __fmaf_rn(block_byte(least_bytes[r][i / 2], 2 * (i % 2) + odd), of.x + of.y, out[r]);
        }
        out[0] *= dmin[0], out[1] *= dmin[1];
    }
};

/* A lane's part of two rows' sums with one vector. */
struct digits_sums {
    float of[2], leasts[2];
};
/* Run k of a unit. by: x's scale; times: of the lane's two digits, as digits_unit has it. */
template <typename F>
__device__ __forceinline__ void digits_run(digits_weights<F> &w, uint32_t k, const unsigned char *digits,
                                           float by, const float *x_sum, float times, digits_sums &sums)
{
    const int zero = 0x4b400000; /* the start of a sum: as fp32 it is then 1.5 * 2^23 more than it is */
    const uint2 x = *reinterpret_cast<const uint2 *>(digits + k * digits_vector::RUN_BYTES);
    uint32_t a[4];
    w.fragment(k, a);
#pragma unroll
    for (uint32_t half = 0; half < F::GROUPS; half++) {
        int d[4];
        if constexpr (F::GROUPS == 1)
            bytes_unit<F::LEAST>::add32(d, a, x.x, x.y, zero);
        else
            bytes_unit<F::LEAST>::add16(d, a[2 * half], a[2 * half + 1], half ? x.y : x.x, zero);
#pragma unroll
        for (uint32_t r = 0; r < 2; r++) {
            const float low = __int_as_float(d[2 * r]) - 12582912.0f,
                        high = __int_as_float(d[2 * r + 1]) - 12582912.0f;
            sums.of[r] = __fmaf_rn(w.scale(k, r, half) * by, __fmaf_rn(times, high, low), sums.of[r]);
            if (F::LEAST && !digits_weights<F>::LEASTS_AT_ONCE && (k & 1) == (threadIdx.x & 1)) {
                const float of = F::GROUPS == 1 ? x_sum[2 * k] + x_sum[2 * k + 1] : x_sum[2 * k + half];
                sums.leasts[r] = __fmaf_rn(w.least(k, r, half), of, sums.leasts[r]);
            }
        }
    }
}
/* Sums of a unit's runs, the first `here` of 8 from run `run` on, of 16 rows `row_bytes` apart from `weights`
 * on, with two vectors of `runs` runs, which may be one: to[row] and to[16 + row] (only the first, unless
 * `two`). A vector's sums do not depend on the other. By a whole warp. */
template <typename F>
__device__ __forceinline__ void digits_unit(const unsigned char *weights, uint32_t row_bytes, uint32_t run,
                                            uint32_t here, const unsigned char *first,
                                            const unsigned char *second, uint32_t runs, bool two, float *to)
{
    const uint32_t lane = threadIdx.x & 31, g = lane / 4, t = lane & 3, digit = (g & 3) < 2 ? g & 3 : 2;
    const unsigned char *digits =
        (g < 4 ? first : second) + run * digits_vector::RUN_BYTES + 32 * digit + 8 * t;
    const float *scales =
        reinterpret_cast<const float *>((t < 2 ? first : second) + runs * digits_vector::RUN_BYTES);
    const float *x_scale = scales + run, *x_sum = scales + runs + 2 * run;
    /* of the lane's two digits: the lowest and the middle one, or the highest, twice */
    const float times = t & 1 ? 0.0f : 256.0f;
    digits_sums sums = {};
    digits_weights<F> w;
    w.load(weights + g * row_bytes, weights + (g + 8) * row_bytes);
    if constexpr (F::VALUES == 32 * DIGITS_RUNS) { /* a unit is a block: all is on its way at once */
        const float4 low = reinterpret_cast<const float4 *>(x_scale)[0],
                     high = reinterpret_cast<const float4 *>(x_scale)[1];
        const float by[DIGITS_RUNS] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
        for (uint32_t k = 0; k < DIGITS_RUNS; k++) digits_run<F>(w, k, digits, by[k], x_sum, times, sums);
        if constexpr (digits_weights<F>::LEASTS_AT_ONCE) w.leasts(x_sum, t & 1, sums.leasts);
    } else {
#pragma unroll 4
        for (uint32_t k = 0; k < here; k++) digits_run<F>(w, k, digits, x_scale[k], x_sum, times, sums);
    }
    float(&sum)[2] = sums.of;
    if (t & 1) sum[0] *= 65536.0f, sum[1] *= 65536.0f;
    if (F::LEAST) sum[0] -= sums.leasts[0], sum[1] -= sums.leasts[1];
    const float keep = t & 1 ? sum[1] : sum[0], give = t & 1 ? sum[0] : sum[1];
    const float total = keep + __shfl_xor_sync(0xffffffffu, give, 1);
    if (t < 2 || two) to[t / 2 * DIGITS_ROWS + 8 * (t & 1) + g] = total;
}
