/* Tiles of the KV cache in shared memory on their way to tensor cores, for prefill: 64 positions of a head. One a cell
 * type (kv_cell.cuh).
 *
 * prefill_tile<C, HEAD>: rows of shared memory are swizzled by 16-byte units (tile_unit), of the type that queries have.
 *   fetch(...)            starts copying keys and values of TILE positions, or (IN_PLACE) one of both
 *   settle(...)           what has come becomes rows; only where IN_PLACE is false: it came beside them
 *   BLOCKS                of a multiprocessor at a time, for which registers are to suffice */
#pragma once

#include "worker-gpu/kernels/attention/kv_cell.cuh"

static const uint32_t PREFILL_TILE = 64;
/* SIDES: warps that share 16 queries, each with WIDE of a head's dimensions. THREADS: of a block. */
template <int HEAD> struct prefill_sides {
    static const int SIDES = HEAD > 256 ? 2 : 1, WIDE = HEAD / SIDES;
    static const uint32_t THREADS = 128 * SIDES;
};

/* Byte offset of 16-byte unit `unit` of row `row` of a tile: neither copies nor ldmatrix meet bank conflicts. */
template <int HEAD> __device__ __forceinline__ uint32_t tile_unit(uint32_t row, uint32_t unit)
{
    return row * (HEAD * 2) + ((unit ^ (row & 7)) << 4);
}

/* Where a tile comes from: positions base .. base + PREFILL_TILE of a sequence, zeros from `end` on. */
struct tile_source {
    const gpuk_kv &kv;
    const uint32_t *pages;
    uint32_t kv_head, base, end;
};

template <typename C, int HEAD> struct prefill_tile;

template <typename T, int HEAD> struct prefill_tile<kv_plain<T>, HEAD> {
    static const bool IN_PLACE = true;
    static const int BLOCKS = HEAD > 128 ? 1 : 3;

    /* To the rows at `keys` and `values`, addresses in shared memory. */
    template <bool KEYS = true, bool VALUES = true>
    __device__ __forceinline__ void fetch(const tile_source &s, uint32_t keys, uint32_t values)
    {
        const uint32_t units = HEAD / 8, rows_at_once = prefill_sides<HEAD>::THREADS / units;
        const uint32_t unit = threadIdx.x % units, page_tokens = s.kv.layout.page_tokens;
        const uint32_t page_shift = 31 - __clz((int)page_tokens);
        const kv_steps<kv_plain<T>> steps(s.kv.layout);
#pragma unroll
        for (uint32_t r = 0; r < PREFILL_TILE; r += rows_at_once) {
            const uint32_t row = r + threadIdx.x / units, position = s.base + row;
            const bool valid = position < s.end;
            const unsigned char *from = (const unsigned char *)s.kv.pool;
            if (valid)
                from = kv_rows(s.kv, s.pages[position >> page_shift], 0, s.kv_head) +
                       ((size_t)(position & (page_tokens - 1)) * HEAD + unit * 8) * sizeof(T);
            if constexpr (KEYS) copy16_async(keys + tile_unit<HEAD>(row, unit), from, valid);
            if constexpr (VALUES)
                copy16_async(values + tile_unit<HEAD>(row, unit), valid ? from + steps.to_values : from,
                             valid);
        }
    }
    __device__ __forceinline__ void settle(const unsigned char *, unsigned char *, unsigned char *) const {}
};

/* Numbers come as they lie, beside the rows, and scales into registers; a thread makes rows of what it has fetched
 * itself, rounded to fp16. */
template <int HEAD> struct prefill_tile<kv_q8_0, HEAD> {
    static const bool IN_PLACE = false;
    static const int BLOCKS = HEAD > 128 ? 1 : HEAD > 64 ? 2 : 4;
    static const uint32_t UNITS = HEAD / 16, AT_ONCE = prefill_sides<HEAD>::THREADS / UNITS,
                          TIMES = PREFILL_TILE / AT_ONCE;
    uint16_t k_scale[TIMES], v_scale[TIMES];

    __device__ __forceinline__ void fetch(const tile_source &s, uint32_t keys, uint32_t values)
    {
        const uint32_t unit = threadIdx.x % UNITS, page_tokens = s.kv.layout.page_tokens;
        const uint32_t page_shift = 31 - __clz((int)page_tokens);
        const kv_steps<kv_q8_0> steps(s.kv.layout);
#pragma unroll
        for (uint32_t i = 0; i < TIMES; i++) {
            const uint32_t row = i * AT_ONCE + threadIdx.x / UNITS, position = s.base + row;
            const bool valid = position < s.end;
            const unsigned char *from = (const unsigned char *)s.kv.pool, *scales = from;
            if (valid) {
                const unsigned char *rows = kv_rows(s.kv, s.pages[position >> page_shift], 0, s.kv_head);
                const uint32_t token = position & (page_tokens - 1);
                from = rows + (size_t)token * HEAD + unit * 16;
                scales = rows + steps.scales_at + (size_t)token * steps.scale;
            }
            const uint64_t to_values = valid ? steps.to_values : 0;
            copy16_async(keys + row * HEAD + unit * 16, from, valid);
            copy16_async(values + row * HEAD + unit * 16, from + to_values, valid);
            k_scale[i] = valid ? kv_q8_0::scale_at(scales, unit * 16) : (uint16_t)0;
            v_scale[i] = valid ? kv_q8_0::scale_at(scales + to_values, unit * 16) : (uint16_t)0;
        }
    }
    /* 16 numbers to two units of a row. */
    static __device__ __forceinline__ void put(unsigned char *rows, uint32_t row, uint32_t unit,
                                               const uint4 &numbers, float scale)
    {
        const uint32_t word[4] = {numbers.x, numbers.y, numbers.z, numbers.w};
        uint32_t pair[8];
#pragma unroll
        for (int i = 0; i < 8; i++)
            pair[i] = element<__half>::pack(scale * q8_float(word[i / 2], i % 2 * 2),
                                            scale * q8_float(word[i / 2], i % 2 * 2 + 1));
        *reinterpret_cast<uint4 *>(rows + tile_unit<HEAD>(row, 2 * unit)) =
            make_uint4(pair[0], pair[1], pair[2], pair[3]);
        *reinterpret_cast<uint4 *>(rows + tile_unit<HEAD>(row, 2 * unit + 1)) =
            make_uint4(pair[4], pair[5], pair[6], pair[7]);
    }
    /* From what was fetched to `raw` and TILE * HEAD bytes behind it. */
    __device__ __forceinline__ void settle(const unsigned char *raw, unsigned char *keys,
                                           unsigned char *values) const
    {
        const uint32_t unit = threadIdx.x % UNITS;
#pragma unroll
        for (uint32_t i = 0; i < TIMES; i++) {
            const uint32_t row = i * AT_ONCE + threadIdx.x / UNITS;
            const unsigned char *from = raw + row * HEAD + unit * 16;
            put(keys, row, unit, *reinterpret_cast<const uint4 *>(from), q8_scale(k_scale[i]));
            put(values, row, unit, *reinterpret_cast<const uint4 *>(from + PREFILL_TILE * HEAD),
                q8_scale(v_scale[i]));
        }
    }
};
