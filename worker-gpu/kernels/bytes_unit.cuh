/* The matrix unit over whole numbers of 8 bits, with sums of 32 (compute capability 8.0).
 *
 * Included by experts_digits.cu. A warp's fragments: with g = lane / 4 and t = lane % 4, a word is four neighbouring numbers. Of 32
 * columns A holds rows g and g + 8 of columns 4 t .. (a[0], a[1]) and of 16 + 4 t .. (a[2], a[3]); B the same columns (b0, b1) of
 * row g of x; of 16 columns a[0], a[1] and b0. D has rows g (d[0], d[1]) and g + 8 (d[2], d[3]) of x's rows 2 t and 2 t + 1.
 * Which columns a word's place stands for is the caller's, as long as A and B agree. */
#ifndef HELM_WORKER_GPU_KERNELS_BYTES_UNIT_CUH
#define HELM_WORKER_GPU_KERNELS_BYTES_UNIT_CUH

#include "worker-gpu/kernels/ptx.cuh"

/* A's numbers have no sign where UNSIGNED; B's have one. d = start + A B. */
template <bool UNSIGNED> struct bytes_unit {
#ifdef HELM_CUDA_EMULATED
    static void multiply(int d[4], const uint32_t *a, uint32_t b0, uint32_t b1, int start, uint32_t words)
    {
        const uint32_t mine[6] = {a[0], a[1], words > 1 ? a[2] : 0, words > 1 ? a[3] : 0, b0, b1},
                       *all = emulator_exchange(mine, 6), lane = threadIdx.x & 31;
        for (uint32_t i = 0; i < 4; i++) {
            const uint32_t row = lane / 4, column = lane % 4 * 2 + i % 2;
            d[i] = start;
            for (uint32_t k = 0; k < 16 * words; k++) {
                const uint32_t from = k % 16 / 4, high = k / 16;
                const uint32_t w = all[(row * 4 + from) * 8 + 2 * high + i / 2] >> k % 4 * 8 & 255,
                               x = all[(column * 4 + from) * 8 + 4 + high] >> k % 4 * 8 & 255;
                d[i] += (UNSIGNED ? (int)w : (int)(int8_t)w) * (int)(int8_t)x;
            }
        }
    }
    static void add32(int d[4], const uint32_t a[4], uint32_t b0, uint32_t b1, int start)
    {
        multiply(d, a, b0, b1, start, 2);
    }
    static void add16(int d[4], uint32_t a0, uint32_t a1, uint32_t b, int start)
    {
        const uint32_t a[2] = {a0, a1};
        multiply(d, a, b, 0, start, 1);
    }
#else
    static __device__ __forceinline__ void add32(int d[4], const uint32_t a[4], uint32_t b0, uint32_t b1,
                                                 int start)
    {
#if __CUDA_ARCH__ >= 800
        if constexpr (UNSIGNED)
            asm("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
                "{%10,%10,%10,%10};"
                : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
                : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "r"(start));
        else
            asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
                "{%10,%10,%10,%10};"
                : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
                : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "r"(start));
#endif
    }
    static __device__ __forceinline__ void add16(int d[4], uint32_t a0, uint32_t a1, uint32_t b, int start)
    {
#if __CUDA_ARCH__ >= 800
        if constexpr (UNSIGNED)
            asm("mma.sync.aligned.m16n8k16.row.col.s32.u8.s8.s32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%7,%7,%7,%7};"
                : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
                : "r"(a0), "r"(a1), "r"(b), "r"(start));
        else
            asm("mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%7,%7,%7,%7};"
                : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
                : "r"(a0), "r"(a1), "r"(b), "r"(start));
#endif
    }
#endif
};

#endif
