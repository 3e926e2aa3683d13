/* A tile of packed weights (common/packed.h) as a lane sees it: its codes, its signs and mantissas, and the
 * pairs of values that they make where nothing is an escape (packed_escapes.cuh).
 *
 * Included by expand.cu and gemv_packed.cu, whose tiles lie in device memory and in shared memory. */
#ifndef HELM_WORKER_GPU_KERNELS_PACKED_TILE_CUH
#define HELM_WORKER_GPU_KERNELS_PACKED_TILE_CUH

#include "worker-gpu/kernels/device.cuh"

extern "C" {
#include "common/packed.h"
}

static __host__ __device__ __forceinline__ uint32_t up_to_align(uint32_t bytes)
{
    return (bytes + PACKED_ALIGN - 1) / PACKED_ALIGN * PACKED_ALIGN;
}
static __device__ __forceinline__ uint32_t tiles_of(uint32_t values)
{
    return (values + PACKED_TILE - 1) / PACKED_TILE;
}
/* Of a coded group, before its records. */
static __device__ __forceinline__ uint32_t head_of(uint32_t values)
{
    return up_to_align((uint32_t)sizeof(struct packed_header) + (tiles_of(values) + 1) * 4);
}
/* Whether a group of `units` is stored raw: it is coded only if that is smaller, so its size says which it is
 * before its header is here. */
static __device__ __forceinline__ bool is_raw(uint32_t units, uint32_t values)
{
    return units == (PACKED_ALIGN + up_to_align(values * 2)) / PACKED_ALIGN;
}
/* A group's base where the exponents of a pair of values stand. */
static __device__ __forceinline__ uint32_t base_of_pair(uint32_t base)
{
    return base * (1u << 7 | 1u << 23);
}

/* A lane's share of a record: u[i] of common/packed.h, and the bytes of each of its four runs. What is above
 * the codes of a half does not matter. */
struct tile_words {
    uint32_t codes[4];
    uint2 rest[4];
};
/* SHARED: the record lies in shared memory, else in device memory that no kernel writes. */
template <bool SHARED>
static __device__ __forceinline__ tile_words load_words(const unsigned char *record, uint32_t lane)
{
    tile_words w;
    const uint32_t *code = reinterpret_cast<const uint32_t *>(record) + lane;
    const unsigned char *rest = record + PACKED_CODE_BYTES + lane * 8;
#pragma unroll
    for (uint32_t i = 0; i < 3; i++) w.codes[i] = SHARED ? code[i * 32] : __ldg(code + i * 32);
#pragma unroll
    for (uint32_t k = 0; k < 4; k++) {
        const uint2 *from = reinterpret_cast<const uint2 *>(rest + k * 256);
        w.rest[k] = SHARED ? *from : __ldg(from);
    }
    w.codes[3] =
        (w.codes[0] >> 12 & 0x000f000fu) | (w.codes[1] >> 8 & 0x00f000f0u) | (w.codes[2] >> 4 & 0x0f000f00u);
    return w;
}

/* What brings codes of run k to where exponents stand. Products with numbers that the compiler does not know
 * are one instruction with the sum behind them, for another unit of a multiprocessor than those that mask. */
static __constant__ uint32_t CODE_SHIFT[3] = {1u << 7, 1u << 4, 1u << 1};

/* Pair i of run k. */
static __device__ __forceinline__ uint32_t words_pair(const tile_words &w, uint32_t base2, uint32_t k,
                                                      uint32_t i)
{
    const uint32_t two = __byte_perm(i < 2 ? w.rest[k].x : w.rest[k].y, 0, i & 1 ? 0x3322 : 0x1100),
                   exponents = k == 3 ? (w.codes[i] >> 2 & 0x03800380u) + base2
                                      : (w.codes[i] & 0x00070007u << 3 * k) * CODE_SHIFT[k] + base2;
    return exponents | (two & 0x807f807fu);
}

#endif
