/* A CUDA device in plain C++, for testing the logic of kernels where there is no GPU.
 *
 * The kernel tests are compiled as C++ with this folder in front of the include path; the sources of the
 * kernels stay as they are. A block's threads are fibers of one host thread that take turns: a thread runs
 * until it needs others (a shuffle, a barrier, a matrix instruction) and the values are exchanged when all
 * have come. Copies are done at once. So indexing, masks, fragments' layouts, phases of barriers and
 * reductions are tested, and reads of shared memory that nothing has written give NaN; races, visibility
 * between the blocks of a cooperative launch (which run together) and speed are not. Every thread that waits
 * for something that cannot come ends the program, and so does a copy to shared memory of what was not
 * allocated, and a block that wrote past the shared memory that its launch asked for (under AddressSanitizer
 * every access to it). Implementation: emulator.cpp. */
#pragma once

#include <math.h>
#include <map>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__    __attribute__((noinline))
#define __launch_bounds__(...)
#define __grid_constant__
#define __constant__
#define __shared__ static /* one block runs at a time; kernels of cooperative launches have none */

/* ---- vectors --------------------------------------------------------------------------------------- */

struct dim3 {
    unsigned x, y, z;
    dim3(unsigned a = 1, unsigned b = 1, unsigned c = 1) : x(a), y(b), z(c) {}
};
struct alignas(8) float2 {
    float x, y;
};
struct alignas(16) float4 {
    float x, y, z, w;
};
struct alignas(8) uint2 {
    unsigned x, y;
};
struct alignas(16) uint4 {
    unsigned x, y, z, w;
};
static inline float2 make_float2(float x, float y)
{
    return {x, y};
}
static inline float4 make_float4(float x, float y, float z, float w)
{
    return {x, y, z, w};
}
static inline uint2 make_uint2(unsigned x, unsigned y)
{
    return {x, y};
}
static inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w)
{
    return {x, y, z, w};
}

/* ---- threads --------------------------------------------------------------------------------------- */

extern dim3 emulator_thread, emulator_block, emulator_block_dim, emulator_grid_dim;
#define threadIdx emulator_thread
#define blockIdx  emulator_block
#define blockDim  emulator_block_dim
#define gridDim   emulator_grid_dim

/* Gives `words` words to the warp and returns all 32 lanes' ([lane * 8 + word]) when every lane has come. */
const uint32_t *emulator_exchange(const uint32_t *value, int words);
/* The product of the warp's fragments a (4 words) and b (2 words) of 16-bit numbers, when every lane has
 * come; number: of each of their 65536 patterns. */
const double (*emulator_multiply(const uint32_t fragments[6], const float *number))[8];
/* The same of fragments of 8-bit numbers, a of 4 words where `words` is 2 or of 2 where it is 1; b's are
 * signed. */
const int (*emulator_multiply_bytes(const uint32_t fragments[6], uint32_t words, bool is_signed))[8];
/* Lets others run until `ready` (called again and again, by others of the block) says so. */
void emulator_wait(bool (*ready)(void *), void *argument);
void emulator_pass(void); /* lets others run once */
void __syncthreads(void);
void __syncwarp(void);
void threads_meet(uint32_t number, uint32_t count); /* as in worker-gpu/kernels/ptx.cuh */
unsigned char *emulator_shared(void);               /* the block's dynamic shared memory */
/* A thread's asynchronous copies that it has not waited for, of which it may leave none to the end. */
struct emulator_copies {
    bool open;       /* some since the last commit */
    uint32_t groups; /* bit n: the n-th last commit's */
};
emulator_copies &emulator_copies_left(void);

template <typename T> static inline T __shfl_xor_sync(unsigned, T value, int mask)
{
    uint32_t words[2] = {0, 0};
    T result;
    memcpy(words, &value, sizeof value);
    const uint32_t *all = emulator_exchange(words, sizeof(T) / 4);
    memcpy(&result, all + ((threadIdx.x & 31) ^ mask) * 8, sizeof result);
    return result;
}
template <typename T> static inline T __shfl_sync(unsigned, T value, int lane)
{
    uint32_t words[2] = {0, 0};
    T result;
    memcpy(words, &value, sizeof value);
    const uint32_t *all = emulator_exchange(words, sizeof(T) / 4);
    memcpy(&result, all + lane * 8, sizeof result);
    return result;
}
static inline uint32_t __ballot_sync(unsigned, bool there)
{
    const uint32_t mine = there, *all = emulator_exchange(&mine, 1);
    uint32_t bits = 0;
    for (int lane = 0; lane < 32; lane++) bits |= all[lane * 8] << lane;
    return bits;
}
static inline void __threadfence(void) {}
void __trap(void); /* ends the program */
template <typename T> static inline T atomicOr(T *p, T value)
{
    T old = *p;
    *p |= value;
    return old;
}
template <typename T, typename U> static inline T atomicAdd(T *p, U value)
{
    T old = *p;
    *p += (T)value;
    return old;
}

/* ---- arithmetic and memory ------------------------------------------------------------------------- */

template <typename T> static inline T __ldg(const T *p)
{
    return *p;
}
template <typename T> static inline T __ldcg(const T *p)
{
    return *p;
}
template <typename T> static inline T __ldcv(const T *p)
{
    return *p;
}
template <typename T> static inline void __stcg(T *p, T value)
{
    *p = value;
}
static inline uint32_t __float_as_uint(float f)
{
    uint32_t u;
    memcpy(&u, &f, 4);
    return u;
}
static inline float __uint_as_float(uint32_t u)
{
    float f;
    memcpy(&f, &u, 4);
    return f;
}
static inline float __int_as_float(int i)
{
    return __uint_as_float((uint32_t)i);
}
static inline int __clz(int v)
{
    return v ? __builtin_clz((unsigned)v) : 32;
}
static inline int __popc(unsigned v)
{
    return __builtin_popcount(v);
}
static inline int __ffs(int v)
{
    return __builtin_ffs(v);
}
static inline uint32_t max(uint32_t a, uint32_t b)
{
    return a > b ? a : b;
}
static inline int __dp4a(int a, int b, int c)
{
    for (int shift = 0; shift < 32; shift += 8) c += (int8_t)(a >> shift) * (int8_t)(b >> shift);
    return c;
}
static inline uint32_t __byte_perm(uint32_t a, uint32_t b, uint32_t selector)
{
    uint64_t both = (uint64_t)b << 32 | a;
    uint32_t out = 0;
    for (int i = 0; i < 4; i++) out |= (uint32_t)(both >> (selector >> (4 * i) & 7) * 8 & 255) << (8 * i);
    return out;
}
static inline uint32_t __funnelshift_l(uint32_t low, uint32_t high, uint32_t by)
{
    return (uint32_t)(((uint64_t)high << 32 | low) << (by & 31) >> 32);
}
static inline uint32_t __funnelshift_r(uint32_t low, uint32_t high, uint32_t by)
{
    return (uint32_t)(((uint64_t)high << 32 | low) >> (by & 31));
}
static inline float __fmul_rn(float a, float b)
{
    return a * b; /* the host compiler may not fuse it: -ffp-contract=off */
}
static inline float __fadd_rn(float a, float b)
{
    return a + b;
}
static inline float __fmaf_rn(float a, float b, float c)
{
    return fmaf(a, b, c);
}
static inline float rsqrtf(float x)
{
    return 1.0f / sqrtf(x);
}

/* ---- the runtime library ----------------------------------------------------------------------------- */

typedef int cudaError_t;
typedef struct emulator_stream *cudaStream_t;
enum { cudaSuccess = 0, cudaErrorMemoryAllocation = 2, cudaErrorInvalidValue = 1 };
enum cudaMemcpyKind { cudaMemcpyHostToDevice, cudaMemcpyDeviceToHost, cudaMemcpyDeviceToDevice };
enum cudaDeviceAttr {
    cudaDevAttrComputeCapabilityMajor,
    cudaDevAttrComputeCapabilityMinor,
    cudaDevAttrMultiProcessorCount,
    cudaDevAttrMaxSharedMemoryPerBlockOptin
};
enum { cudaStreamNonBlocking = 1, cudaHostAllocMapped = 2 };
enum cudaFuncAttribute {
    cudaFuncAttributeMaxDynamicSharedMemorySize,
    cudaFuncAttributePreferredSharedMemoryCarveout
};
enum { cudaSharedmemCarveoutMaxShared = 100 };
enum cudaLaunchAttributeID {
    cudaLaunchAttributeProgrammaticStreamSerialization,
    cudaLaunchAttributeCooperative
};
struct cudaFuncAttributes {
    int numRegs;
};
struct cudaLaunchAttribute {
    cudaLaunchAttributeID id;
    struct {
        int programmaticStreamSerializationAllowed, cooperative;
    } val;
};
struct cudaLaunchConfig_t {
    dim3 gridDim, blockDim;
    size_t dynamicSmemBytes;
    cudaStream_t stream;
    cudaLaunchAttribute *attrs;
    unsigned numAttrs;
};
static inline const char *cudaGetErrorString(cudaError_t code)
{
    return code == cudaSuccess                 ? "no error"
           : code == cudaErrorMemoryAllocation ? "out of memory"
                                               : "invalid value";
}
/* Memory of the device, or of the host for it. */
void *emulator_alloc(size_t bytes);
void emulator_free(void *p);
/* Ends the program unless these bytes lie within one piece of it, as it was asked for. */
void emulator_within(const void *from, size_t bytes);
static inline cudaError_t cudaMalloc(void **p, size_t bytes)
{
    *p = emulator_alloc(bytes);
    return *p ? cudaSuccess : cudaErrorMemoryAllocation;
}
static inline cudaError_t cudaFree(void *p)
{
    emulator_free(p);
    return cudaSuccess;
}
static inline cudaError_t cudaHostAlloc(void **p, size_t bytes, unsigned)
{
    return cudaMalloc(p, bytes);
}
static inline cudaError_t cudaFreeHost(void *p)
{
    return cudaFree(p);
}
static inline cudaError_t cudaMemset(void *p, int value, size_t bytes)
{
    memset(p, value, bytes);
    return cudaSuccess;
}
static inline cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, cudaMemcpyKind)
{
    memcpy(to, from, bytes);
    return cudaSuccess;
}
static inline cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, cudaMemcpyKind,
                                          cudaStream_t)
{
    memcpy(to, from, bytes);
    return cudaSuccess;
}
static inline cudaError_t cudaMemsetAsync(void *p, int value, size_t bytes, cudaStream_t)
{
    memset(p, value, bytes);
    return cudaSuccess;
}
static inline cudaError_t cudaDeviceSynchronize(void)
{
    return cudaSuccess;
}
static inline cudaError_t cudaStreamSynchronize(cudaStream_t)
{
    return cudaSuccess;
}
static inline cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned)
{
    *stream = NULL;
    return cudaSuccess;
}
static inline cudaError_t cudaStreamDestroy(cudaStream_t)
{
    return cudaSuccess;
}
static inline cudaError_t cudaGetDeviceCount(int *count)
{
    *count = 1;
    return cudaSuccess;
}
static inline cudaError_t cudaGetDevice(int *ordinal)
{
    *ordinal = 0;
    return cudaSuccess;
}
/* Looks like a small device of compute capability 9.0. */
/* The card that is opened: ten times its compute capability, and bytes of shared memory of a block. */
struct emulated_card {
    int capability, shared_bytes;
};
inline emulated_card emulated_now = {90, 227 * 1024};
static inline cudaError_t cudaDeviceGetAttribute(int *value, cudaDeviceAttr id, int)
{
    *value = id == cudaDevAttrComputeCapabilityMajor   ? emulated_now.capability / 10
             : id == cudaDevAttrComputeCapabilityMinor ? emulated_now.capability % 10
             : id == cudaDevAttrMultiProcessorCount    ? 6
                                                       : emulated_now.shared_bytes;
    return cudaSuccess;
}
static inline cudaError_t cudaFuncGetAttributes(cudaFuncAttributes *attributes, const void *)
{
    attributes->numRegs = 0;
    return cudaSuccess;
}
/* Bytes of dynamic shared memory that a kernel may have: 48 KiB, unless it was prepared for more. */
inline std::map<const void *, int> emulated_dynamic;
static inline cudaError_t cudaFuncSetAttribute(const void *kernel, cudaFuncAttribute attribute, int value)
{
    if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize) return cudaSuccess;
    if (value > emulated_now.shared_bytes) return cudaErrorInvalidValue;
    emulated_dynamic[kernel] = value;
    return cudaSuccess;
}

/* Runs the grid, block after block; those of a cooperative launch together. Each thread is a call of
 * `thread`. */
cudaError_t emulator_launch(const cudaLaunchConfig_t *config, void (*thread)(const void *),
                            const void *argument);
template <typename... P, typename... A>
static cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t *config, void (*kernel)(P...), A... args)
{
    const auto prepared = emulated_dynamic.find((const void *)kernel);
    const size_t most = prepared != emulated_dynamic.end() && prepared->second > 48 << 10
                            ? (size_t)prepared->second
                            : 48 << 10;
    if (config->dynamicSmemBytes > most) return cudaErrorInvalidValue;
    const auto call = [=] { kernel(args...); };
    return emulator_launch(
        config, [](const void *c) { (*(decltype(&call))c)(); }, &call);
}
