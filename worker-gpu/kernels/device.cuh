/* Shared by all kernel files: element conversions, reductions, early launch, checked launches.
 *
 * Included by the .cu files beside it only. No state. */
#pragma once

#include <math.h>

#include "worker-gpu/kernels/kernels.h"
#include "worker-gpu/kernels/ptx.cuh"

/* ---- elements ----------------------------------------------------------------------------------- */

template <typename T> struct element;
template <> struct element<__nv_bfloat16> {
    static __device__ __forceinline__ float largest() { return 3.3895313892515355e38f; }
    static __device__ __forceinline__ float load(__nv_bfloat16 v) { return __bfloat162float(v); }
    static __device__ __forceinline__ __nv_bfloat16 store(float v) { return __float2bfloat16_rn(v); }
    static __device__ __forceinline__ void unpack(uint32_t pair, float &low, float &high)
    {
        low = __uint_as_float(pair << 16);
        high = __uint_as_float(pair & 0xffff0000u);
    }
    static __device__ __forceinline__ uint32_t pack(float low, float high)
    {
        __nv_bfloat162 v = __floats2bfloat162_rn(low, high);
        return *reinterpret_cast<uint32_t *>(&v);
    }
};
template <> struct element<__half> {
    static __device__ __forceinline__ float largest() { return 65504.0f; }
    static __device__ __forceinline__ float load(__half v) { return __half2float(v); }
    static __device__ __forceinline__ __half store(float v) { return __float2half_rn(v); }
    static __device__ __forceinline__ void unpack(uint32_t pair, float &low, float &high)
    {
        float2 v = __half22float2(*reinterpret_cast<__half2 *>(&pair));
        low = v.x;
        high = v.y;
    }
    static __device__ __forceinline__ uint32_t pack(float low, float high)
    {
        __half2 v = __floats2half2_rn(low, high);
        return *reinterpret_cast<uint32_t *>(&v);
    }
};
template <> struct element<float> {
    static __device__ __forceinline__ float load(float v) { return v; }
    static __device__ __forceinline__ float store(float v) { return v; }
};

/* 16 bytes of elements to fp32; returns how many. */
template <typename T> __device__ __forceinline__ void unpack16(const uint4 &v, float *out)
{
    if constexpr (sizeof(T) == 4) {
        out[0] = __uint_as_float(v.x), out[1] = __uint_as_float(v.y);
        out[2] = __uint_as_float(v.z), out[3] = __uint_as_float(v.w);
    } else {
        element<T>::unpack(v.x, out[0], out[1]);
        element<T>::unpack(v.y, out[2], out[3]);
        element<T>::unpack(v.z, out[4], out[5]);
        element<T>::unpack(v.w, out[6], out[7]);
    }
}

/* To an array of a thread's own, which lies at multiples of 4 bytes where it is not in registers. */
__device__ __forceinline__ void put4(float *to, float4 v)
{
    to[0] = v.x, to[1] = v.y, to[2] = v.z, to[3] = v.w;
}
/* 8 elements at an address of natural alignment for 8. */
template <typename T> __device__ __forceinline__ void load8(const T *from, float *v)
{
    const uint4 *p = reinterpret_cast<const uint4 *>(from);
    unpack16<T>(p[0], v);
    if constexpr (sizeof(T) == 4) unpack16<T>(p[1], v + 4);
}
template <typename T> __device__ __forceinline__ void store8(T *to, const float *v)
{
    if constexpr (sizeof(T) == 4) {
        reinterpret_cast<float4 *>(to)[0] = make_float4(v[0], v[1], v[2], v[3]);
        reinterpret_cast<float4 *>(to)[1] = make_float4(v[4], v[5], v[6], v[7]);
    } else {
        *reinterpret_cast<uint4 *>(to) =
            make_uint4(element<T>::pack(v[0], v[1]), element<T>::pack(v[2], v[3]),
                       element<T>::pack(v[4], v[5]), element<T>::pack(v[6], v[7]));
    }
}

__device__ __forceinline__ float silu(float x)
{
    return x / (1.0f + expf(-x));
}
/* The activation of a gate and an up. */
__device__ __forceinline__ float glu_value(enum glu_kind kind, float gate, float up)
{
    if (kind == GLU_SILU) return silu(gate) * up;
    if (kind == GLU_GELU)
        return gate / (1.0f + expf(-2 * GELU_ROOT * (gate + GELU_CUBE * gate * gate * gate))) * up;
    gate = gate > GLU_CLAMP ? GLU_CLAMP : gate;
    up = up > GLU_CLAMP ? GLU_CLAMP : up < -GLU_CLAMP ? -GLU_CLAMP : up;
    return gate / (1.0f + expf(-GLU_ALPHA * gate)) * (up + 1.0f);
}

/* ---- reductions --------------------------------------------------------------------------------- */

__device__ __forceinline__ float warp_sum(float v)
{
#pragma unroll
    for (int mask = 16; mask > 0; mask >>= 1) v += __shfl_xor_sync(0xffffffffu, v, mask);
    return v;
}
/* Sum over the block, for all threads; `shared` holds 32 floats. */
__device__ __forceinline__ float block_sum(float v, float *shared)
{
    v = warp_sum(v);
    if ((threadIdx.x & 31) == 0) shared[threadIdx.x >> 5] = v;
    __syncthreads();
    int warps = (blockDim.x + 31) >> 5;
    v = (int)(threadIdx.x & 31) < warps ? shared[threadIdx.x & 31] : 0.0f;
    v = warp_sum(v);
    __syncthreads();
    return v;
}

/* ---- launches ----------------------------------------------------------------------------------- */

int gpuk_cuda_fail(struct helm_err *err, cudaError_t code, const char *what);

/* Beside GPUK_EARLY: all blocks are resident at once. */
#define GPUK_TOGETHER (1u << 31)

template <typename... P, typename... A>
static int gpuk_launch(const char *what, void (*kernel)(P...), dim3 grid, dim3 block, size_t shared,
                       uint32_t flags, void *stream, struct helm_err *err, A... args)
{
    cudaLaunchConfig_t config = {};
    config.gridDim = grid;
    config.blockDim = block;
    config.dynamicSmemBytes = shared;
    config.stream = (cudaStream_t)stream;
    cudaLaunchAttribute attribute[2] = {};
    config.attrs = attribute;
    if (flags & GPUK_EARLY) {
        attribute[config.numAttrs].id = cudaLaunchAttributeProgrammaticStreamSerialization;
        attribute[config.numAttrs++].val.programmaticStreamSerializationAllowed = 1;
    }
    if (flags & GPUK_TOGETHER) {
        attribute[config.numAttrs].id = cudaLaunchAttributeCooperative;
        attribute[config.numAttrs++].val.cooperative = 1;
    }
    cudaError_t code = cudaLaunchKernelEx(&config, kernel, static_cast<P>(args)...);
    return code == cudaSuccess ? HELM_OK : gpuk_cuda_fail(err, code, what);
}
/* Loads a kernel's code now and lets it use `shared` bytes of dynamic shared memory. */
template <typename... P>
static int gpuk_prepare(const char *what, void (*kernel)(P...), size_t shared, struct helm_err *err)
{
    cudaFuncAttributes attributes;
    cudaError_t code = cudaFuncGetAttributes(&attributes, (const void *)kernel);
    if (code == cudaSuccess && shared > 0)
        code = cudaFuncSetAttribute((const void *)kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                    (int)shared);
    return code == cudaSuccess ? HELM_OK : gpuk_cuda_fail(err, code, what);
}
/* Blocks of two launches are on a multiprocessor together only where both want the same division of its
 * memory: as much shared memory as there is. */
template <typename... P>
static int gpuk_prefer_shared(const char *what, void (*kernel)(P...), struct helm_err *err)
{
    cudaError_t code =
        cudaFuncSetAttribute((const void *)kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                             cudaSharedmemCarveoutMaxShared);
    return code == cudaSuccess ? HELM_OK : gpuk_cuda_fail(err, code, what);
}

/* Whether this build has code of 9.0's warpgroups (cuda.mk: HELM_SM90A). */
bool gpuk_wide_built();
/* Each kernel file's share of gpuk_open. */
int gpuk_prepare_linear(const struct gpuk_device *device, struct helm_err *err);
int gpuk_prepare_heads(struct helm_err *err);
int gpuk_prepare_expand(const struct gpuk_device *device, struct helm_err *err);
int gpuk_prepare_elementwise(const struct gpuk_device *device, struct helm_err *err);
int gpuk_prepare_rope(const struct gpuk_device *device, struct helm_err *err);
int gpuk_prepare_attention_decode(const struct gpuk_device *device, struct helm_err *err);
int gpuk_prepare_attention_merge(const struct gpuk_device *device, struct helm_err *err);
int gpuk_prepare_attention_prefill(const struct gpuk_device *device, struct helm_err *err);
int gpuk_prepare_experts(const struct gpuk_device *device, struct helm_err *err);
int gpuk_prepare_delta(const struct gpuk_device *device, struct helm_err *err);
int gpuk_prepare_chain(const struct gpuk_device *device, struct helm_err *err);
int gpuk_prepare_select(const struct gpuk_device *device, struct helm_err *err);

static __host__ __device__ inline uint32_t div_up(uint32_t a, uint32_t b)
{
    return (a + b - 1) / b;
}
