/* Cells of the KV cache (common/formats/kv_dtype.h): how one position's key or value of one head is read and
 * written.
 *
 * Included by the attention kernels, which are templates over a cell type. Kernels find rows and walk pages,
 * cells know numbers and scales. To add a type: a struct here, its place in BY_KV_DTYPE, and for 16-bit
 * tensor cores its tiles in kv_tile.cuh. A cell type is a struct of:
 *
 *   NUMBER_BYTES, SCALED     bytes of a number in the rows; whether there are scales after them
 *   query                    kv_query_dtype as a type: a chunk's queries, and what its tensor cores multiply
 *   HOLDS                    8 numbers are 16 bytes and all of them: unpack(uint4, f) takes them as they were
 *                            copied
 *   number(numbers, scales, d)          one number
 *   piece, none()                       8 neighbours as they lie, in registers; of nothing
 *     load(numbers, scales, d)          d is a multiple of 8, addresses of 16 bytes
 *     unpack(piece, f)                  as fp32; returns what each is to be multiplied by
 *   store(v, numbers, scales, head_dim) by a whole warp, number lane + 32 j of which is v[j]
 *   keep(v, head_dim)                   makes v what store has written, as it is read
 *
 * `numbers` and `scales` are a cell's own: kv_cell_at. */
#pragma once

#include "worker-gpu/kernels/device.cuh"

/* Dimensions of a head that a lane holds, where a warp holds a head: those of most models, and of wide
 * heads. */
static const uint32_t HEAD_STEPS = 8, HEAD_STEPS_WIDE = 16, HEAD_STEPS_MOST = GPUK_HEAD_DIM_MAX / 32;
static const uint32_t HEAD_DIM_USUAL = 32 * HEAD_STEPS, HEAD_DIM_WIDE = 32 * HEAD_STEPS_WIDE;
/* Which of three kernels takes heads of this size. */
static inline uint32_t head_width(uint32_t head_dim)
{
    return head_dim > HEAD_DIM_WIDE ? 2 : head_dim > HEAD_DIM_USUAL ? 1 : 0;
}

/* First byte of the K (or V) rows of `page` of this layer for one kv head. */
__device__ __forceinline__ unsigned char *kv_rows(const gpuk_kv &kv, uint32_t page, uint32_t is_value,
                                                  uint32_t kv_head)
{
    if (page & GPUK_PAGE_HOST)
        return (unsigned char *)kv.pool_host + (page & ~GPUK_PAGE_HOST) * kv.host_stride +
               ((uint64_t)(is_value && !kv.layout.latent) * kv.layout.kv_heads + kv_head) *
                   kv_head_bytes(&kv.layout);
    return (unsigned char *)kv.pool + kv_offset(&kv.layout, page, kv.layer, is_value, kv_head);
}

/* ---- single numbers ---- */

template <typename T> struct kv_plain {
    typedef T query;
    static const uint32_t NUMBER_BYTES = sizeof(T);
    static const bool SCALED = false, HOLDS = sizeof(T) == 2;
    struct piece {
        uint4 unit[sizeof(T) / 2];
    };
    static __device__ __forceinline__ float number(const unsigned char *numbers, const unsigned char *,
                                                   uint32_t d)
    {
        return element<T>::load(reinterpret_cast<const T *>(numbers)[d]);
    }
    static __device__ __forceinline__ piece none()
    {
        piece p;
#pragma unroll
        for (uint32_t i = 0; i < sizeof(T) / 2; i++) p.unit[i] = make_uint4(0, 0, 0, 0);
        return p;
    }
    static __device__ __forceinline__ piece load(const unsigned char *numbers, const unsigned char *,
                                                 uint32_t d)
    {
        const uint4 *from = reinterpret_cast<const uint4 *>(numbers + d * sizeof(T));
        piece p;
#pragma unroll
        for (uint32_t i = 0; i < sizeof(T) / 2; i++) p.unit[i] = __ldcg(from + i);
        return p;
    }
    static __device__ __forceinline__ float unpack(const piece &p, float *f)
    {
#pragma unroll
        for (uint32_t i = 0; i < sizeof(T) / 2; i++) unpack16<T>(p.unit[i], f + i * 4);
        return 1;
    }
    static __device__ __forceinline__ void unpack(const uint4 &held, float *f)
    {
        unpack16<T>(held, f);
    }
    template <uint32_t N>
    static __device__ __forceinline__ void store(const float (&v)[N], unsigned char *numbers, unsigned char *,
                                                 uint32_t head_dim)
    {
#pragma unroll
        for (uint32_t j = 0; j < N; j++) {
            const uint32_t d = (threadIdx.x & 31) + 32 * j;
            if (d < head_dim) reinterpret_cast<T *>(numbers)[d] = element<T>::store(v[j]);
        }
    }
    template <uint32_t N> static __device__ __forceinline__ void keep(float (&v)[N], uint32_t)
    {
#pragma unroll
        for (uint32_t j = 0; j < N; j++) v[j] = element<T>::load(element<T>::store(v[j]));
    }
};

/* ---- q8_0 ---- */

/* Whole number k of four as a float. */
__device__ __forceinline__ float q8_float(uint32_t four, int k)
{
    const uint32_t biased = four ^ 0x80808080u; /* 0 .. 255 */
    return __uint_as_float(__byte_perm(biased, 0x4b000000u, 0x7540u | (uint32_t)k)) - 8388736.0f;
}
__device__ __forceinline__ float q8_scale(uint16_t bits)
{
    return element<__half>::load(*reinterpret_cast<const __half *>(&bits));
}

struct kv_q8_0 {
    typedef __half query;
    static const uint32_t NUMBER_BYTES = 1;
    static const bool SCALED = true, HOLDS = false;
    struct piece {
        uint2 numbers;
        uint16_t scale;
    };
    static __device__ __forceinline__ uint16_t scale_at(const unsigned char *scales, uint32_t d)
    {
        return __ldcg(reinterpret_cast<const uint16_t *>(scales) + d / KV_Q8_0_VALUES);
    }
    static __device__ __forceinline__ float number(const unsigned char *numbers, const unsigned char *scales,
                                                   uint32_t d)
    {
        return q8_scale(scale_at(scales, d)) * (float)reinterpret_cast<const signed char *>(numbers)[d];
    }
    static __device__ __forceinline__ piece none()
    {
        piece p;
        p.numbers = make_uint2(0, 0), p.scale = 0;
        return p;
    }
    static __device__ __forceinline__ piece load(const unsigned char *numbers, const unsigned char *scales,
                                                 uint32_t d)
    {
        piece p;
        p.numbers = __ldcg(reinterpret_cast<const uint2 *>(numbers + d)), p.scale = scale_at(scales, d);
        return p;
    }
    static __device__ __forceinline__ float unpack(const piece &p, float *f)
    {
#pragma unroll
        for (int k = 0; k < 4; k++) f[k] = q8_float(p.numbers.x, k), f[4 + k] = q8_float(p.numbers.y, k);
        return q8_scale(p.scale);
    }
    /* The lane's number of a block, and the block's scale: the bits of kv_q8_0_write. */
    static __device__ __forceinline__ int quantise(float x, uint16_t &scale)
    {
        uint32_t largest = __float_as_uint(x) & 0x7fffffffu;
#pragma unroll
        for (int mask = 16; mask > 0; mask >>= 1) {
            const uint32_t other = __shfl_xor_sync(0xffffffffu, largest, mask);
            largest = other > largest ? other : largest;
        }
        const __half half = __float2half_rn(__uint_as_float(largest) / 127.0f);
        scale = largest < 0x7f800000u ? *reinterpret_cast<const uint16_t *>(&half) : (uint16_t)0x7e00;
        if (scale >= 0x7c00) scale = 0x7e00;
        if (scale == 0 || scale == 0x7e00) return 0;
        const float number = rintf(__fmul_rn(x, 1.0f / q8_scale(scale)));
        return number > 127.0f ? 127 : number < -127.0f ? -127 : (int)number;
    }
    template <uint32_t N>
    static __device__ __forceinline__ void store(const float (&v)[N], unsigned char *numbers,
                                                 unsigned char *scales, uint32_t head_dim)
    {
        const uint32_t lane = threadIdx.x & 31;
#pragma unroll
        for (uint32_t j = 0; j < N; j++) {
            if (32 * j >= head_dim) break;
            uint16_t scale;
            numbers[32 * j + lane] = (unsigned char)quantise(v[j], scale);
            if (lane == 0) reinterpret_cast<uint16_t *>(scales)[j] = scale;
        }
    }
    template <uint32_t N> static __device__ __forceinline__ void keep(float (&v)[N], uint32_t head_dim)
    {
#pragma unroll
        for (uint32_t j = 0; j < N; j++) {
            if (32 * j >= head_dim) break;
            uint16_t scale;
            const int number = quantise(v[j], scale);
            v[j] = q8_scale(scale) * (float)number;
        }
    }
};

/* ---- where they lie ---- */

/* Steps in bytes from cell to cell. */
template <typename C> struct kv_steps {
    uint32_t number, scale; /* from a position's to the next one's in the page */
    uint64_t scales_at;     /* from a head's rows to their scales */
    uint64_t to_values;     /* from keys to values; 0: they are keys' first numbers */
    __device__ __forceinline__ kv_steps(const kv_layout &l)
        : number(l.head_dim * C::NUMBER_BYTES), scale(C::SCALED ? l.head_dim / KV_Q8_0_VALUES * 2 : 0),
          scales_at((uint64_t)l.page_tokens * number),
          to_values(l.latent ? 0 : l.kv_heads * kv_head_bytes(&l))
    {
    }
};

/* A table by enum kv_dtype. */
#define BY_KV_DTYPE(OF)                                                                                      \
    {                                                                                                        \
        OF(kv_plain<__nv_bfloat16>), OF(kv_plain<__half>), OF(kv_plain<float>), OF(kv_q8_0)                  \
    }
