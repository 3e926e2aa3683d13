/* Tiles of the KV cache on their way to tensor cores: 16 positions of a head in a warp's fragments for decode attention,
 * 64 in shared memory for prefill. One of each a cell type (kv_cell.cuh).
 *
 * decode_tile<C, HEAD>, straight from global memory, no transposes. With g = lane / 4 and c = lane % 4:
 *   unit                  what is multiplied: queries and weights go in as high + low 16-bit parts of it
 *   load(rows, steps, token, count)   cells token .. token + 16 of a page; of `count` and later ones zeros
 *   scores(x, q_high, q_low)          x[n][i]: of query g and position 8 n + 2 c + i. Which dimension an element of k
 *                                     stands for is free as long as q agrees: a lane's q are dimensions 32 k + 8 c on
 *   values(o, keep, w)                o = o keep + w v; w[n][i] as x
 *   dimension(c, j, i)                of o[j][i], of query g, i = 0 or 1
 * Numbers of q8_0 are exact in bf16. Scales are applied to sums over their 32 dimensions, and to the weights in front of
 * values, which has fp32 all the way.
 *
 * prefill_tile<C, HEAD>: rows of shared memory are swizzled by 16-byte units (tile_unit), of the type that queries have.
 *   fetch(...)            starts copying keys and values of TILE positions
 *   settle(...)           what has come becomes rows; only where IN_PLACE is false: it came beside them */
#ifndef HELM_WORKER_GPU_KERNELS_KV_TILE_CUH
#define HELM_WORKER_GPU_KERNELS_KV_TILE_CUH

#include "worker-gpu/kernels/kv_cell.cuh"

/* High and low parts of a pair. */
template <typename T>
__device__ __forceinline__ void split_pair(float a, float b, uint32_t &high, uint32_t &low)
{
    high = element<T>::pack(a, b);
    float ha, hb;
    element<T>::unpack(high, ha, hb);
    low = element<T>::pack(a - ha, b - hb);
}

/* ---- decode ---- */

static const uint32_t DECODE_TILE = 16;

/* Element j of two rows' 16 bytes, as a pair. */
__device__ __forceinline__ uint32_t pair_up(const uint4 &first, const uint4 &second, int j)
{
    const uint32_t a = j < 2 ? first.x : j < 4 ? first.y : j < 6 ? first.z : first.w;
    const uint32_t b = j < 2 ? second.x : j < 4 ? second.y : j < 6 ? second.z : second.w;
    return __byte_perm(a, b, j & 1 ? 0x7632 : 0x5410);
}

template <typename C, int HEAD> struct decode_tile;

/* A lane's 16 bytes of a key are the B fragments of two instructions. For values it loads 16 bytes of the four
 * positions its fragment names and pairs them up; column g of product j is dimension 8 g + j then. */
template <typename T, int HEAD> struct decode_tile<kv_plain<T>, HEAD> {
    typedef T unit;
    uint4 k[2][HEAD / 32], v[4][HEAD / 64];

    __device__ __forceinline__ void load(const unsigned char *rows, const kv_steps<kv_plain<T>> &steps,
                                         uint32_t token, uint32_t count)
    {
        const uint32_t lane = threadIdx.x & 31, g = lane >> 2, c = lane & 3;
        const uint4 zero = make_uint4(0, 0, 0, 0);
        rows += (size_t)token * steps.number;
#pragma unroll
        for (int n = 0; n < 2; n++) {
            const uint32_t at = n * 8 + g;
            const uint4 *from = reinterpret_cast<const uint4 *>(rows + (size_t)at * steps.number) + c;
#pragma unroll
            for (int i = 0; i < HEAD / 32; i++) k[n][i] = at < count ? __ldcg(from + i * 4) : zero;
        }
#pragma unroll
        for (int n = 0; n < 4; n++) {
            const uint32_t at = 2 * c + (n & 1) + (n >> 1) * 8;
            const uint4 *from =
                reinterpret_cast<const uint4 *>(rows + steps.to_values + (size_t)at * steps.number) + g;
#pragma unroll
            for (int i = 0; i < HEAD / 64; i++) v[n][i] = at < count ? __ldcg(from + i * 8) : zero;
        }
    }
    __device__ __forceinline__ void scores(float x[2][4], const uint32_t q_high[HEAD / 32][4],
                                           const uint32_t q_low[HEAD / 32][4]) const
    {
#pragma unroll
        for (int n = 0; n < 2; n++) {
            x[n][0] = x[n][1] = x[n][2] = x[n][3] = 0;
#pragma unroll
            for (int i = 0; i < HEAD / 32; i++) {
                const uint4 &key = k[n][i];
                matrix_unit<T>::add(x[n], q_low[i][0], 0, q_low[i][1], 0, key.x, key.y);
                matrix_unit<T>::add(x[n], q_low[i][2], 0, q_low[i][3], 0, key.z, key.w);
                matrix_unit<T>::add(x[n], q_high[i][0], 0, q_high[i][1], 0, key.x, key.y);
                matrix_unit<T>::add(x[n], q_high[i][2], 0, q_high[i][3], 0, key.z, key.w);
            }
        }
    }
    __device__ __forceinline__ void values(float o[HEAD / 8][4], float keep, const float w[2][2]) const
    {
        uint32_t high0, low0, high1, low1;
        split_pair<T>(w[0][0], w[0][1], high0, low0);
        split_pair<T>(w[1][0], w[1][1], high1, low1);
#pragma unroll
        for (int i = 0; i < HEAD / 64; i++)
#pragma unroll
            for (int j = 0; j < 8; j++) {
                float *sum = o[i * 8 + j];
                const uint32_t b0 = pair_up(v[0][i], v[1][i], j), b1 = pair_up(v[2][i], v[3][i], j);
                sum[0] *= keep, sum[1] *= keep;
                matrix_unit<T>::add(sum, low0, 0, low1, 0, b0, b1);
                matrix_unit<T>::add(sum, high0, 0, high1, 0, b0, b1);
            }
    }
    static __device__ __forceinline__ uint32_t dimension(uint32_t c, int j, int i)
    {
        return (j >> 3) * 64 + 16 * c + 8 * i + (j & 7);
    }
};

/* Whole numbers 2 k and 2 k + 1 of four as bf16. */
__device__ __forceinline__ uint32_t q8_pair(uint32_t four, int k)
{
    return __byte_perm(__float_as_uint(q8_float(four, 2 * k)), __float_as_uint(q8_float(four, 2 * k + 1)),
                       0x7632);
}

/* A lane loads 8 bytes of a key's each 32 dimensions, and of values 4 bytes of the four positions its fragment names:
 * column g of product 4 b + j is dimension 32 b + 4 g + j, so that a product's columns have one scale a position. */
template <int HEAD> struct decode_tile<kv_q8_0, HEAD> {
    typedef __nv_bfloat16 unit;
    static const int BLOCKS = HEAD / 32;
    uint2 k[2][BLOCKS];
    uint32_t v[4][BLOCKS];
    uint32_t k_scale[4][BLOCKS / 2],
        v_scale[4][BLOCKS / 2]; /* pairs; of the four positions 2 c + n % 2 + n / 2 * 8 */

    __device__ __forceinline__ void load(const unsigned char *rows, const kv_steps<kv_q8_0> &steps,
                                         uint32_t token, uint32_t count)
    {
        const uint32_t lane = threadIdx.x & 31, g = lane >> 2, c = lane & 3;
        const unsigned char *numbers = rows + (size_t)token * HEAD;
        const unsigned char *scales = rows + steps.scales_at + (size_t)token * steps.scale;
#pragma unroll
        for (int n = 0; n < 2; n++) {
            const uint32_t at = n * 8 + g;
            const uint2 *from = reinterpret_cast<const uint2 *>(numbers + (size_t)at * HEAD) + c;
#pragma unroll
            for (int i = 0; i < BLOCKS; i++) k[n][i] = at < count ? __ldcg(from + i * 4) : make_uint2(0, 0);
        }
#pragma unroll
        for (int n = 0; n < 4; n++) {
            const uint32_t at = 2 * c + (n & 1) + (n >> 1) * 8;
            const uint32_t *from =
                reinterpret_cast<const uint32_t *>(numbers + steps.to_values + (size_t)at * HEAD) + g;
            const uint32_t *scale = reinterpret_cast<const uint32_t *>(scales + (size_t)at * (BLOCKS * 2));
#pragma unroll
            for (int i = 0; i < BLOCKS; i++) v[n][i] = at < count ? __ldcg(from + i * 8) : 0;
#pragma unroll
            for (int i = 0; i < BLOCKS / 2; i++) {
                k_scale[n][i] = at < count ? __ldcg(scale + i) : 0;
                v_scale[n][i] = at < count ? __ldcg(scale + steps.to_values / 4 + i) : 0;
            }
        }
    }
    static __device__ __forceinline__ float scale_of(const uint32_t pairs[BLOCKS / 2], int block)
    {
        return q8_scale((uint16_t)(pairs[block / 2] >> (block & 1) * 16));
    }
    __device__ __forceinline__ void scores(float x[2][4], const uint32_t q_high[HEAD / 32][4],
                                           const uint32_t q_low[HEAD / 32][4]) const
    {
#pragma unroll
        for (int n = 0; n < 2; n++) {
            x[n][0] = x[n][1] = x[n][2] = x[n][3] = 0;
#pragma unroll
            for (int b = 0; b < BLOCKS; b++) {
                const uint32_t first = q8_pair(k[n][b].x, 0), second = q8_pair(k[n][b].x, 1),
                               third = q8_pair(k[n][b].y, 0), fourth = q8_pair(k[n][b].y, 1);
                float sum[4] = {0, 0, 0, 0};
                matrix_unit<unit>::add(sum, q_low[b][0], 0, q_low[b][1], 0, first, second);
                matrix_unit<unit>::add(sum, q_low[b][2], 0, q_low[b][3], 0, third, fourth);
                matrix_unit<unit>::add(sum, q_high[b][0], 0, q_high[b][1], 0, first, second);
                matrix_unit<unit>::add(sum, q_high[b][2], 0, q_high[b][3], 0, third, fourth);
                x[n][0] += sum[0] * scale_of(k_scale[2 * n], b);
                x[n][1] += sum[1] * scale_of(k_scale[2 * n + 1], b);
            }
        }
    }
    __device__ __forceinline__ void values(float o[HEAD / 8][4], float keep, const float w[2][2]) const
    {
#pragma unroll
        for (int b = 0; b < BLOCKS; b++) {
            uint32_t high0, low0, high1, low1;
            split_pair<unit>(w[0][0] * scale_of(v_scale[0], b), w[0][1] * scale_of(v_scale[1], b), high0,
                             low0);
            split_pair<unit>(w[1][0] * scale_of(v_scale[2], b), w[1][1] * scale_of(v_scale[3], b), high1,
                             low1);
#pragma unroll
            for (int j = 0; j < 4; j++) {
                float *sum = o[b * 4 + j];
                const uint32_t b0 = __byte_perm(__float_as_uint(q8_float(v[0][b], j)),
                                                __float_as_uint(q8_float(v[1][b], j)), 0x7632);
                const uint32_t b1 = __byte_perm(__float_as_uint(q8_float(v[2][b], j)),
                                                __float_as_uint(q8_float(v[3][b], j)), 0x7632);
                sum[0] *= keep, sum[1] *= keep;
                matrix_unit<unit>::add(sum, low0, 0, low1, 0, b0, b1);
                matrix_unit<unit>::add(sum, high0, 0, high1, 0, b0, b1);
            }
        }
    }
    static __device__ __forceinline__ uint32_t dimension(uint32_t c, int j, int i)
    {
        return (j >> 2) * 32 + 8 * c + 4 * i + (j & 3);
    }
};

/* ---- prefill ---- */

static const uint32_t PREFILL_TILE = 64, PREFILL_THREADS = 128;

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

    /* To the rows at `keys` and `values`, addresses in shared memory. */
    __device__ __forceinline__ void fetch(const tile_source &s, uint32_t keys, uint32_t values)
    {
        const uint32_t units = HEAD / 8, rows_at_once = PREFILL_THREADS / units;
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
            copy16_async(keys + tile_unit<HEAD>(row, unit), from, valid);
            copy16_async(values + tile_unit<HEAD>(row, unit), valid ? from + steps.to_values : from, valid);
        }
    }
    __device__ __forceinline__ void settle(const unsigned char *, unsigned char *, unsigned char *) const {}
};

/* Numbers come as they lie, beside the rows, and scales into registers; a thread makes rows of what it has fetched
 * itself, rounded to fp16. */
template <int HEAD> struct prefill_tile<kv_q8_0, HEAD> {
    static const bool IN_PLACE = false;
    static const uint32_t UNITS = HEAD / 16, AT_ONCE = PREFILL_THREADS / UNITS,
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

#endif
