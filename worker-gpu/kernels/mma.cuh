/* Matrix instructions of 8.0 and later: m16n8k16 over bf16 and f16, with fp32 sums, and the loads that feed
 * them.
 *
 * Included by gemm_small.cu and attention_prefill.cu. A warp's fragment: with g = lane / 4 and c = 2 * (lane
 * % 4), A holds rows g and g + 8, columns c, c + 1, c + 8, c + 9; B rows (k) likewise of column g; D rows g
 * (d[0], d[1]) and g + 8 (d[2], d[3]) of columns c and c + 1. */
#ifndef HELM_WORKER_GPU_KERNELS_MMA_CUH
#define HELM_WORKER_GPU_KERNELS_MMA_CUH

#include "worker-gpu/kernels/device.cuh"

template <typename T> struct matrix_unit;
template <> struct matrix_unit<__nv_bfloat16> {
    static __device__ __forceinline__ void add(float d[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3,
                                               uint32_t b0, uint32_t b1)
    {
#if __CUDA_ARCH__ >= 800
        asm volatile(
            "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
            "{%0,%1,%2,%3};"
            : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
            : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
#endif
    }
};
template <> struct matrix_unit<__half> {
    static __device__ __forceinline__ void add(float d[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3,
                                               uint32_t b0, uint32_t b1)
    {
#if __CUDA_ARCH__ >= 800
        asm volatile(
            "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
            "{%0,%1,%2,%3};"
            : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
            : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
#endif
    }
};

/* Four 8 x 8 matrices of 16-bit elements from shared memory; lane i gives the address of row i % 8 of matrix
 * i / 8. */
__device__ __forceinline__ void load_matrices(uint32_t r[4], uint32_t address)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address)
                 : "memory");
}
__device__ __forceinline__ void load_matrices_transposed(uint32_t r[4], uint32_t address)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address)
                 : "memory");
}

/* 16 bytes to shared memory without passing through registers; zeros when !valid. */
__device__ __forceinline__ void copy16_async(uint32_t to, const void *from, bool valid)
{
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(valid ? 16 : 0)
                 : "memory");
#endif
}
__device__ __forceinline__ void copies_commit()
{
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}
template <int N> __device__ __forceinline__ void copies_wait()
{
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
#endif
}

#endif
