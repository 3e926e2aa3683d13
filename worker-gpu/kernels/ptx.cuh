/* The instructions that CUDA C++ has no name for: early launch, loads past the L1, bulk copies and their
 * barriers, asynchronous copies, matrix instructions.
 *
 * Included by device.cuh. Each function says which compute capability it needs; on older ones it does
 * nothing, and the launchers do not choose kernels that use it. tests/gpu/emulator has the same functions in
 * plain C++. */
#pragma once

#ifdef HELM_CUDA_EMULATED
#include "tests/gpu/emulator/ptx.h"
#else

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <stdint.h>

/* The block's dynamic shared memory. */
#define SHARED_DYNAMIC(type, name) extern __shared__ __align__(128) type name[]

/* ---- early launch (9.0) ------------------------------------------------------------------------- */

/* Lets the next kernel of the stream start, if it was launched with GPUK_EARLY. Its wait (below) is for this
 * grid's end. One token's kernels wait first and let the next one start then: all that is older than they is
 * complete when it starts, so it may read that before its own wait, and no line of its L1 is older. */
__device__ __forceinline__ void let_next_start()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
/* Waits until the kernels before this one have finished and their stores are visible. */
__device__ __forceinline__ void wait_for_previous()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/* ---- loads -------------------------------------------------------------------------------------- */

/* Weights are read once: they pass by the L1. */
__device__ __forceinline__ uint4 load_weight16(const void *p)
{
    uint4 v;
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(p));
    return v;
}
/* Asks for the 128 bytes around p. */
__device__ __forceinline__ void ask_l2(const void *p)
{
    asm volatile("prefetch.global.L2 [%0];" ::"l"(p));
}

/* __syncthreads of `count` of the block's threads, whole warps; meetings of other numbers are others (1 to
 * 15). */
__device__ __forceinline__ void threads_meet(uint32_t number, uint32_t count)
{
    asm volatile("bar.sync %0, %1;" ::"r"(number), "r"(count) : "memory");
}

__device__ __forceinline__ uint32_t shared_address(const void *p)
{
    return (uint32_t)__cvta_generic_to_shared(p);
}

/* v, and that of the lane `distance` before where there is one; by the whole warp. */
__device__ __forceinline__ uint32_t add_of_lane_before(uint32_t v, uint32_t distance)
{
    asm volatile("{\n"
                 ".reg .pred there;\n"
                 ".reg .u32 before;\n"
                 "shfl.sync.up.b32 before|there, %0, %1, 0, 0xffffffff;\n"
                 "@there add.u32 %0, %0, before;\n"
                 "}\n"
                 : "+r"(v)
                 : "r"(distance));
    return v;
}

/* ---- a counter in device memory at which blocks of one launch meet (7.0) ------------------------ */

/* Counts this block in: a block that sees the count also sees what this one wrote before (all its threads,
 * after __syncthreads). */
__device__ __forceinline__ void meet_arrive(uint64_t *counter)
{
    asm volatile("red.release.gpu.global.add.u64 [%0], %1;" ::"l"(counter), "l"(1ull) : "memory");
}
__device__ __forceinline__ uint64_t meet_count(const uint64_t *counter)
{
    uint64_t count;
    asm volatile("ld.acquire.gpu.global.u64 %0, [%1];" : "=l"(count) : "l"(counter) : "memory");
    return count;
}
__device__ __forceinline__ void meet_wait(const uint64_t *counter, uint64_t count)
{
    while (meet_count(counter) < count) {}
}
/* Counts the warp in and returns the count before; one lane, after __syncwarp. Warps that count later see
 * what this warp wrote before, and this warp sees what earlier ones wrote. */
__device__ __forceinline__ uint32_t count_arrival(uint32_t *counter)
{
    uint32_t before;
    asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], 1;" : "=r"(before) : "l"(counter) : "memory");
    return before;
}

/* ---- words: a float and the tag of its writer, stored and loaded as one (7.0) -------------------- */

__device__ __forceinline__ void word_put(uint64_t *to, float value, uint32_t tag)
{
    const uint64_t word = (uint64_t)tag << 32 | __float_as_uint(value);
    asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(to), "l"(word) : "memory");
}
__device__ __forceinline__ uint64_t word_get(const uint64_t *from)
{
    uint64_t word;
    asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(word) : "l"(from) : "memory");
    return word;
}
/* Two neighbours, on 16 bytes. */
__device__ __forceinline__ void words_get(const uint64_t *from, uint64_t to[2])
{
    asm volatile("ld.relaxed.gpu.global.v2.u64 {%0, %1}, [%2];"
                 : "=l"(to[0]), "=l"(to[1])
                 : "l"(from)
                 : "memory");
}
/* Before a word that has not come is loaded again. */
__device__ __forceinline__ void word_late() {}
/* ---- bulk copies (9.0): sizes and addresses are multiples of 16 --------------------------------- */

/* Makes one barrier whose phases are completed by `arrivals` arrivals or expectations, and their bytes. After
 * the last of a block's: barriers_opened, then __syncthreads. */
__device__ __forceinline__ void barrier_open(uint32_t barrier, uint32_t arrivals)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
#endif
}
__device__ __forceinline__ void barriers_opened()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}
/* Makes `count` barriers, 8 bytes apart, each completed by one expectation and its bytes. One thread. */
__device__ __forceinline__ void bulk_barriers_open(uint32_t barrier, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) barrier_open(barrier + 8 * i, 1);
    barriers_opened();
}
/* One arrival without bytes: the thread's earlier reads and writes are complete for threads that wait. */
__device__ __forceinline__ void barrier_arrive(uint32_t barrier)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
#endif
}
/* This phase of the barrier ends when `bytes` have arrived. */
__device__ __forceinline__ void bulk_expect(uint32_t barrier, uint32_t bytes)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
                 : "memory");
#endif
}
/* Copies to shared memory; the L2 gives these lines up first. */
__device__ __forceinline__ void bulk_copy(uint32_t to, const void *from, uint32_t bytes, uint32_t barrier)
{
#if __CUDA_ARCH__ >= 900
    const uint64_t evict_first = 0x12F0000000000000ull;
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
                 "[%0], [%1], %2, [%3], %4;" ::"r"(to),
                 "l"(from), "r"(bytes), "r"(barrier), "l"(evict_first)
                 : "memory");
#endif
}
/* Orders this thread's stores to shared memory before bulk copies that are started after it (and a barrier of
 * the warp). */
__device__ __forceinline__ void bulk_after_stores()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}
__device__ __forceinline__ void bulk_ask_l2(const void *from, uint32_t bytes)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from), "r"(bytes) : "memory");
#endif
}
/* Waits for the end of the phase of this parity (0, 1, 0, ...); asleep for up to 10 ms at a time, so that
 * others have the places for instructions. */
__device__ __forceinline__ void bulk_wait(uint32_t barrier, uint32_t parity)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("{\n"
                 ".reg .pred done;\n"
                 "again:\n"
                 "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1, 10000000;\n"
                 "@!done bra again;\n"
                 "}\n" ::"r"(barrier),
                 "r"(parity)
                 : "memory");
#endif
}

/* Whether the phase of this parity is over; does not wait. */
__device__ __forceinline__ bool bulk_over(uint32_t barrier, uint32_t parity)
{
    uint32_t over = 0;
#if __CUDA_ARCH__ >= 900
    asm volatile("{\n"
                 ".reg .pred done;\n"
                 "mbarrier.test_wait.parity.shared::cta.b64 done, [%1], %2;\n"
                 "selp.u32 %0, 1, 0, done;\n"
                 "}\n"
                 : "=r"(over)
                 : "r"(barrier), "r"(parity)
                 : "memory");
#endif
    return over != 0;
}
/* ---- asynchronous copies (8.0) ------------------------------------------------------------------ */

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

/* ---- matrix instructions (8.0): m16n8k16 over bf16 and f16, fp32 sums --------------------------- */

/* A warp's fragments: with g = lane / 4 and c = 2 * (lane % 4), A holds rows g and g + 8, columns c, c + 1
 * (a0, a1) and c + 8, c + 9 (a2, a3); B rows c, c + 1 (b0) and c + 8, c + 9 (b1) of column g; D rows g (d[0],
 * d[1]) and g + 8 (d[2], d[3]) of columns c and c + 1. */
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

/* ---- matrix instructions (8.0): m16n8k8 over tf32, fp32 sums ----------------------------------------- */

/* x with 10 bits after the point. */
__device__ __forceinline__ uint32_t tf32_of(float x)
{
    uint32_t rounded = __float_as_uint(x);
#if __CUDA_ARCH__ >= 800
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(rounded) : "f"(x));
#endif
    return rounded;
}
/* A warp's fragments: with g = lane / 4 and c = lane % 4, A holds rows g (a[0], a[2]) and g + 8 (a[1], a[3])
 * of columns c (a[0], a[1]) and c + 4; B rows c (b0) and c + 4 (b1) of column g; D as above. */
struct tf32_unit {
    static __device__ __forceinline__ void add(float d[4], const uint32_t a[4], uint32_t b0, uint32_t b1)
    {
#if __CUDA_ARCH__ >= 800
        asm volatile(
            "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
            "{%0,%1,%2,%3};"
            : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#endif
    }
};

/* ---- matrix instructions over whole numbers (8.0): bytes, exact sums of 32 bits ----------------------- */

/* A warp's fragments: with g = lane / 4 and t = lane % 4, a word is four neighbouring numbers. With 32
 * columns A holds rows g and g + 8 of columns 4 t .. (a[0], a[1]) and of 16 + 4 t .. (a[2], a[3]); B the same
 * columns (b0, b1) of row g of x; of 16 columns a0, a1 and b. D as above. Which columns a word's place stands
 * for is the caller's, as long as A and B agree. A's numbers have no sign where UNSIGNED; B's have one. d =
 * start + A B. */
template <bool UNSIGNED> struct bytes_unit {
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
};

/* ---- matrix instructions of a warpgroup (9.0 alone, sm_90a): m64n64k16 over bf16 and f16, fp32 sums --- */

/* Four neighbouring warps, the first at a multiple of four, each have 16 of 64 rows of A in fragments as
 * above, and of D d[4 j + i] of columns 8 j ..; B is read from shared memory. Products run beside the warps:
 * between warpgroup_begin, which follows what the warps wrote to fragments and sums, and a wait nothing may
 * touch these. */
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define WARPGROUP_MATRIX 1
#endif
__device__ __forceinline__ void warpgroup_begin()
{
#ifdef WARPGROUP_MATRIX
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#endif
}
__device__ __forceinline__ void warpgroup_commit()
{
#ifdef WARPGROUP_MATRIX
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
#endif
}
/* Until no more than N of the groups committed are at work. */
template <int N> __device__ __forceinline__ void warpgroup_wait()
{
#ifdef WARPGROUP_MATRIX
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
#endif
}
/* Follows a wait for all: the compiler may use sums from here on and not earlier. */
__device__ __forceinline__ void warpgroup_take(float d[32])
{
#pragma unroll
    for (int i = 0; i < 32; i++) asm volatile("" : "+f"(d[i])::"memory");
}
/* B of 64 columns: each has 128 bytes, 64 numbers, of which 16 are multiplied from `address` on; eight
 * columns lie in 1,024 bytes, which begin at a multiple of that; of a column's eight quads of 16 bytes number
 * q lies at place q ^ (column % 8). */
__device__ __forceinline__ uint64_t warpgroup_columns(uint32_t address)
{
    return (uint64_t)(address >> 4 & 0x3fff) | 1ull << 16 | 64ull << 32 | 1ull << 62;
}
template <typename T> struct warpgroup_unit;
/* d += a * b of these 16-bit numbers, by the operands of warpgroup_unit's add. */
#ifdef WARPGROUP_MATRIX
#define WARPGROUP_ADD(numbers)                                                                               \
    asm volatile("{\n"                                                                                       \
                 ".reg .pred sum;\n"                                                                         \
                 "setp.eq.u32 sum, 0, 0;\n"                                                                  \
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32." numbers "." numbers " "                       \
                 "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "                   \
                 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "         \
                 "{%32, %33, %34, %35}, %36, sum, 1, 1, 0;\n"                                                \
                 "}\n"                                                                                       \
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]),       \
                   "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]),   \
                   "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]),             \
                   "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]), "+f"(d[25]),             \
                   "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])              \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b))
#else
#define WARPGROUP_ADD(numbers) ((void)0)
#endif
template <> struct warpgroup_unit<__nv_bfloat16> {
    static __device__ __forceinline__ void add(float d[32], const uint32_t a[4], uint64_t b)
    {
        WARPGROUP_ADD("bf16");
    }
};
template <> struct warpgroup_unit<__half> {
    static __device__ __forceinline__ void add(float d[32], const uint32_t a[4], uint64_t b)
    {
        WARPGROUP_ADD("f16");
    }
};

/* 2^x, off by about 2^-22 of it; 0 below 2^-126. */
__device__ __forceinline__ float exp2_near(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
/* a * b + c of pairs of f16. */
__device__ __forceinline__ uint32_t halves_fma(uint32_t a, uint32_t b, uint32_t c)
{
    uint32_t d;
    asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
    return d;
}

/* Four 8 x 8 matrices of 16-bit elements from shared memory; lane i gives the address of row i % 8 of matrix
 * i / 8. Lane 4 g + c / 2 gets columns c, c + 1 of row g; transposed: rows c, c + 1 of column g. */
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

/* Lane 4 g + c holds elements 2 c and 2 c + 1 of row g of an 8 x 8 matrix of 16-bit elements, and gets those
 * of column g. */
__device__ __forceinline__ uint32_t transpose_matrix(uint32_t row)
{
    uint32_t column;
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(column) : "r"(row));
    return column;
}
/* a + b of pairs of bf16 (8.0). */
__device__ __forceinline__ uint32_t bf16s_add(uint32_t a, uint32_t b)
{
    uint32_t d = 0;
#if __CUDA_ARCH__ >= 800
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(0x3f803f80u), "r"(b));
#endif
    return d;
}

#endif /* HELM_CUDA_EMULATED */
