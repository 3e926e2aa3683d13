/* Tiles of the KV cache on their way through a warp to tensor cores, for decode attention.
 *
 * Included by attention/stream.cuh; templates over a cell type (kv_cell.cuh) and head_dim. A warp takes a
 * tile of 16 GROUPS positions at a time; each 16 of them lie in one page. Positions are the rows of what is
 * multiplied, query heads its columns (m16n8k16), up to 8 of them:
 *
 *   scores^T = K Q^T     K's fragments are 16 (q8_0: 8) bytes of a row a lane, straight from global memory
 *                        into registers: which dimension an element of k stands for is free as long as
 *                        queries agree. An instruction reads whole lines of 128 bytes (over the link half a
 *                        line takes as long), and lanes exchange them
 *   out^T    = V^T P^T V waits in shared memory, where neighbouring rows' units lie apart so that ldmatrix,
 *            which transposes it, meets no bank conflict; P^T's fragments are the scores', 8 x 8 of them
 *            transposed (movmatrix)
 *
 * A lane has 256 bytes of the keys of wide heads at a time, in registers: the others come while a tile's
 * values do.
 *
 * Q and P go in as high + low 16-bit parts, so that sums are as good as fp32 ones. While a tile is multiplied
 * the next one's keys are on their way, and from then on its values: 64 KB of 8 warps at most, which is what
 * memory wants. Numbers of q8_0 are exact in bf16; scales are applied to sums over their 32 dimensions, and
 * to the weights in front of values.
 *
 * With g = lane / 4 and c = lane % 4, of group r:
 *   scores(x, queries)    x[r][e]: position 16 r + g + 8 (e / 2), head 2 c + e % 2; x as it was where nothing
 *                         was loaded
 *   add(o, w, ...)        o[j][e]: dimension(j, e) of head 2 c + e % 2; w as x */
#pragma once

#include "worker-gpu/kernels/attention/kv_cell.cuh"

static const uint32_t STREAM_HEADS = 8, STREAM_WARPS = 8;
static const uint32_t STREAM_GROUP = 16;     /* positions: pages have whole ones */
static const uint32_t STREAM_TILE_MOST = 64; /* of any type and head_dim */

template <typename C, int HEAD> struct stream_shape {
    static const uint32_t ROW = HEAD * C::NUMBER_BYTES, SCALES = C::SCALED ? HEAD / KV_Q8_0_VALUES * 2 : 0;
    /* Dimensions of keys that are in registers together, and how many times that is a head */
    static const int PART = HEAD > 256 ? 256 / C::NUMBER_BYTES : HEAD, PARTS = HEAD / PART;
    /* a tile's keys are 32 registers a lane, or one group's */
    static const int GROUPS = 256 / ROW > 1 ? 256 / ROW : 1;
    /* Values of whole lines lie in shared memory line by line, a line's 16-byte units by the row's lower
     * bits: an asynchronous copy whose destination crosses lines asks for several parts of the source's.
     * Other rows lie 16 bytes apart. */
    static const bool LINES = ROW % 128 == 0;
    static const uint32_t TILE = STREAM_GROUP * GROUPS, PITCH = LINES ? ROW : ROW + 16;
    static const uint32_t VALUES_BYTES = TILE * (PITCH + SCALES); /* of a warp */
    static const uint32_t QUERY_PITCH =
        HEAD * 2 + 64; /* of queries' 16-bit parts: 8 rows of high ones, 8 of low ones */
    static_assert(HEAD % 32 == 0 && HEAD % PART == 0 && TILE <= STREAM_TILE_MOST && VALUES_BYTES % 16 == 0,
                  "");

    /* Where a 16-byte unit of a row of values lies, of its tile. */
    static __device__ __forceinline__ uint32_t value_at(uint32_t row, uint32_t unit)
    {
        return row * PITCH + (LINES ? unit ^ (row & 7) : unit) * 16;
    }
};

/* High and low parts of a pair. */
template <typename T>
__device__ __forceinline__ void split_pair(float a, float b, uint32_t &high, uint32_t &low)
{
    high = element<T>::pack(a, b);
    float ha, hb;
    element<T>::unpack(high, ha, hb);
    low = element<T>::pack(a - ha, b - hb);
}
/* The fragments of P^T of 16 positions: w[e] as a lane has it, as columns. */
struct stream_weights {
    uint32_t high[2], low[2];
};
template <typename T>
__device__ __forceinline__ stream_weights stream_weights_of(float w0, float w1, float w2, float w3)
{
    stream_weights s;
    split_pair<T>(w0, w1, s.high[0], s.low[0]);
    split_pair<T>(w2, w3, s.high[1], s.low[1]);
#pragma unroll
    for (int i = 0; i < 2; i++)
        s.high[i] = transpose_matrix(s.high[i]), s.low[i] = transpose_matrix(s.low[i]);
    return s;
}
template <typename T>
__device__ __forceinline__ void stream_multiply(float o[4], const uint32_t a[4], const stream_weights &w)
{
    matrix_unit<T>::add(o, a[0], a[1], a[2], a[3], w.low[0], w.low[1]);
    matrix_unit<T>::add(o, a[0], a[1], a[2], a[3], w.high[0], w.high[1]);
}
/* Values' rows [low, high) of a group to shared memory, zeros elsewhere (a weight of 0 times what was never
 * written may be NaN). */
template <typename C, int HEAD>
__device__ __forceinline__ void stream_fetch_rows(uint32_t to, const unsigned char *rows, uint32_t low,
                                                  uint32_t high)
{
    typedef stream_shape<C, HEAD> S;
    const uint32_t units = S::ROW / 16, lane = threadIdx.x & 31;
#pragma unroll
    for (uint32_t i = 0; i < units / 2; i++) {
        const uint32_t u = i * 32 + lane, row = u / units, unit = u - row * units;
        copy16_async(to + S::value_at(row, unit), rows + u * 16, row >= low && row < high);
    }
}

/* Rows of keys. A lane's fragment is PIECES pieces of row g, apart by those of the lanes c beside it; what an
 * instruction reads is the same number of pieces of SIDE rows, so that SIDE * 4 lanes have neighbouring bytes
 * of one row. */
template <int HEAD> struct stream_row {
    static const int PIECES = HEAD / 32, SIDE = HEAD % 128 == 0 ? 4 : HEAD % 64 == 0 ? 2 : 1;

    /* The i-th piece that this lane reads: its row of 8, and the piece of that row, of those apart. */
    static __device__ __forceinline__ uint32_t row(int i)
    {
        const uint32_t g = (threadIdx.x & 31) >> 2;
        return g / SIDE * SIDE + i % SIDE;
    }
    static __device__ __forceinline__ uint32_t piece(int i)
    {
        const uint32_t g = (threadIdx.x & 31) >> 2;
        return i / SIDE * SIDE + g % SIDE;
    }
    /* From what was read to what the lane multiplies, by the whole warp: squares of SIDE lanes and pieces are
     * transposed. */
    template <typename V> static __device__ __forceinline__ void exchange(V k[PIECES])
    {
        const uint32_t g = (threadIdx.x & 31) >> 2;
#pragma unroll
        for (int side = SIDE / 2; side > 0; side /= 2) {
            const bool upper = g & (uint32_t)side;
#pragma unroll
            for (int i = 0; i < PIECES; i++)
                if (!(i & side)) swap_words(k[i], k[i + side], upper, 4 * side);
        }
    }

  private:
    static __device__ __forceinline__ void swap_word(uint32_t &low, uint32_t &high, bool upper, int lanes)
    {
        const uint32_t theirs = __shfl_xor_sync(0xffffffffu, upper ? low : high, lanes);
        if (upper)
            low = theirs;
        else
            high = theirs;
    }
    static __device__ __forceinline__ void swap_words(uint2 &low, uint2 &high, bool upper, int lanes)
    {
        swap_word(low.x, high.x, upper, lanes);
        swap_word(low.y, high.y, upper, lanes);
    }
    static __device__ __forceinline__ void swap_words(uint4 &low, uint4 &high, bool upper, int lanes)
    {
        swap_word(low.x, high.x, upper, lanes);
        swap_word(low.y, high.y, upper, lanes);
        swap_word(low.z, high.z, upper, lanes);
        swap_word(low.w, high.w, upper, lanes);
    }
};

/* load(r, rows, steps, token, part) and scores(x, queries, part): of a part of the dimensions, the first of
 * which begins sums. */
template <typename C, int HEAD> struct stream_keys;
template <typename C, int HEAD> struct stream_values;

/* ---- 16-bit numbers ---- */

template <typename T, int HEAD> struct stream_keys<kv_plain<T>, HEAD> {
    typedef T unit;
    typedef stream_shape<kv_plain<T>, HEAD> S;
    typedef stream_row<S::PART> L;
    uint4 k[S::GROUPS][2][S::PART / 32];

    /* Keys of a page from `token` on, to group r. */
    __device__ __forceinline__ void load(int r, const unsigned char *rows, const kv_steps<kv_plain<T>> &,
                                         uint32_t token, int part)
    {
        const uint4 *from = reinterpret_cast<const uint4 *>(rows + token * S::ROW) + (threadIdx.x & 3) +
                            part * (S::PART * (int)sizeof(T) / 16);
#pragma unroll
        for (int n = 0; n < 2; n++)
#pragma unroll
            for (int i = 0; i < L::PIECES; i++)
                k[r][n][i] = __ldcg(from + (n * 8 + L::row(i)) * (S::ROW / 16) + L::piece(i) * 4);
    }
    __device__ __forceinline__ void scores(float x[S::GROUPS][4], const unsigned char *queries, int part)
    {
        const uint32_t lane = threadIdx.x & 31, g = lane >> 2, c = lane & 3;
#pragma unroll
        for (int r = 0; r < S::GROUPS; r++) L::exchange(k[r][0]), L::exchange(k[r][1]);
        float even[S::GROUPS][4], odd[S::GROUPS][4]; /* two sums: a product waits for the one before */
#pragma unroll
        for (int r = 0; r < S::GROUPS; r++)
#pragma unroll
            for (int e = 0; e < 4; e++) even[r][e] = odd[r][e] = 0;
#pragma unroll
        for (int i = 0; i < S::PART / 32; i++) {
            const unsigned char *from =
                queries + g * S::QUERY_PITCH + c * 16 + (part * S::PART / 32 + i) * 64;
            const uint4 high = *reinterpret_cast<const uint4 *>(from);
            const uint4 low = *reinterpret_cast<const uint4 *>(from + 8 * S::QUERY_PITCH);
#pragma unroll
            for (int r = 0; r < S::GROUPS; r++) {
                const uint4 &a = k[r][0][i], &b = k[r][1][i];
                matrix_unit<T>::add(even[r], a.x, b.x, a.y, b.y, low.x, low.y);
                matrix_unit<T>::add(odd[r], a.z, b.z, a.w, b.w, low.z, low.w);
                matrix_unit<T>::add(even[r], a.x, b.x, a.y, b.y, high.x, high.y);
                matrix_unit<T>::add(odd[r], a.z, b.z, a.w, b.w, high.z, high.w);
            }
        }
#pragma unroll
        for (int r = 0; r < S::GROUPS; r++)
#pragma unroll
            for (int e = 0; e < 4; e++) x[r][e] = (part ? x[r][e] : 0.0f) + (even[r][e] + odd[r][e]);
    }
};

template <typename T, int HEAD> struct stream_values<kv_plain<T>, HEAD> {
    typedef stream_shape<kv_plain<T>, HEAD> S;

    static __device__ __forceinline__ void fetch(uint32_t to, int r, const unsigned char *rows,
                                                 const kv_steps<kv_plain<T>> &, uint32_t token, uint32_t low,
                                                 uint32_t high)
    {
        stream_fetch_rows<kv_plain<T>, HEAD>(to + r * STREAM_GROUP * S::PITCH, rows + token * S::ROW, low,
                                             high);
    }
    static __device__ __forceinline__ void add(float o[HEAD / 16][4], const float w[S::GROUPS][4],
                                               const unsigned char *values)
    {
        const uint32_t lane = threadIdx.x & 31, row = (lane & 7) + (lane >> 4) * 8;
        const uint32_t at = shared_address(values);
#pragma unroll
        for (int r = 0; r < S::GROUPS; r++) {
            const stream_weights p = stream_weights_of<T>(w[r][0], w[r][1], w[r][2], w[r][3]);
#pragma unroll
            for (int j = 0; j < HEAD / 16; j++) {
                uint32_t a[4];
                load_matrices_transposed(a,
                                         at + S::value_at(r * STREAM_GROUP + row, 2 * j + (lane >> 3 & 1)));
                stream_multiply<T>(o[j], a, p);
            }
        }
    }
    static __device__ __forceinline__ uint32_t dimension(int j, int e)
    {
        return 16 * j + ((threadIdx.x & 31) >> 2) + 8 * (e >> 1);
    }
};

/* ---- q8_0 ---- */

/* Two bytes of four as bf16, chosen by `selector` (0x4b4a: bytes a and b): 128 and a byte's lower bits, less
 * 128 or, where its highest is set, 256. */
__device__ __forceinline__ uint32_t q8_bf16s(uint32_t four, uint32_t selector)
{
    const uint32_t pair = __byte_perm(four, 0x43434343u, selector);
    return bf16s_add(pair & 0xff7fff7fu, (pair & 0xff80ff80u) ^ 0x80008000u);
}

template <int HEAD> struct stream_keys<kv_q8_0, HEAD> {
    typedef __nv_bfloat16 unit;
    typedef stream_shape<kv_q8_0, HEAD> S;
    typedef stream_row<S::PART> L;
    static const int BLOCKS = S::PART / 32;
    uint2 k[S::GROUPS][2][BLOCKS];
    uint16_t scale[S::GROUPS][2][BLOCKS];

    __device__ __forceinline__ void load(int r, const unsigned char *rows, const kv_steps<kv_q8_0> &steps,
                                         uint32_t token, int part)
    {
        const uint32_t lane = threadIdx.x & 31, g = lane >> 2, c = lane & 3;
        const uint2 *from = reinterpret_cast<const uint2 *>(rows + token * S::ROW) + c + part * (S::PART / 8);
        const unsigned char *scales = rows + steps.scales_at + (token + g) * S::SCALES + part * BLOCKS * 2;
#pragma unroll
        for (int n = 0; n < 2; n++) {
#pragma unroll
            for (int i = 0; i < BLOCKS; i++)
                k[r][n][i] = __ldcg(from + (n * 8 + L::row(i)) * (S::ROW / 8) + L::piece(i) * 4);
            take_scales<BLOCKS>(scale[r][n], scales + n * 8 * S::SCALES);
        }
    }
    template <int N>
    static __device__ __forceinline__ void take_scales(uint16_t to[N], const unsigned char *from)
    {
        if constexpr (N % 2 == 0) {
#pragma unroll
            for (int i = 0; i < N / 2; i++) {
                const uint32_t pair = __ldcg(reinterpret_cast<const uint32_t *>(from) + i);
                to[2 * i] = (uint16_t)pair, to[2 * i + 1] = (uint16_t)(pair >> 16);
            }
        } else {
#pragma unroll
            for (int i = 0; i < N; i++) to[i] = __ldcg(reinterpret_cast<const uint16_t *>(from) + i);
        }
    }
    __device__ __forceinline__ void scores(float x[S::GROUPS][4], const unsigned char *queries, int part)
    {
        const uint32_t lane = threadIdx.x & 31, g = lane >> 2, c = lane & 3;
#pragma unroll
        for (int r = 0; r < S::GROUPS; r++) L::exchange(k[r][0]), L::exchange(k[r][1]);
#pragma unroll
        for (int r = 0; r < S::GROUPS; r++)
            if (part == 0) x[r][0] = x[r][1] = x[r][2] = x[r][3] = 0;
#pragma unroll
        for (int i = 0; i < BLOCKS; i++) {
            const unsigned char *from = queries + g * S::QUERY_PITCH + c * 16 + (part * BLOCKS + i) * 64;
            const uint4 high = *reinterpret_cast<const uint4 *>(from);
            const uint4 low = *reinterpret_cast<const uint4 *>(from + 8 * S::QUERY_PITCH);
#pragma unroll
            for (int r = 0; r < S::GROUPS; r++) {
                float even[4] = {0, 0, 0, 0}, odd[4] = {0, 0, 0, 0};
                const uint2 &a = k[r][0][i], &b = k[r][1][i];
                const uint32_t a0 = q8_bf16s(a.x, 0x4140), a1 = q8_bf16s(a.x, 0x4342),
                               a2 = q8_bf16s(a.y, 0x4140), a3 = q8_bf16s(a.y, 0x4342);
                const uint32_t b0 = q8_bf16s(b.x, 0x4140), b1 = q8_bf16s(b.x, 0x4342),
                               b2 = q8_bf16s(b.y, 0x4140), b3 = q8_bf16s(b.y, 0x4342);
                matrix_unit<unit>::add(even, a0, b0, a1, b1, low.x, low.y);
                matrix_unit<unit>::add(odd, a2, b2, a3, b3, low.z, low.w);
                matrix_unit<unit>::add(even, a0, b0, a1, b1, high.x, high.y);
                matrix_unit<unit>::add(odd, a2, b2, a3, b3, high.z, high.w);
                const float s0 = q8_scale(scale[r][0][i]), s1 = q8_scale(scale[r][1][i]);
                x[r][0] += (even[0] + odd[0]) * s0, x[r][1] += (even[1] + odd[1]) * s0;
                x[r][2] += (even[2] + odd[2]) * s1, x[r][3] += (even[3] + odd[3]) * s1;
            }
        }
    }
};

template <int HEAD> struct stream_values<kv_q8_0, HEAD> {
    typedef __nv_bfloat16 unit;
    typedef stream_shape<kv_q8_0, HEAD> S;
    static const int BLOCKS = HEAD / 32;

    /* Rows of all groups, then their scales. */
    static __device__ __forceinline__ void fetch(uint32_t to, int r, const unsigned char *rows,
                                                 const kv_steps<kv_q8_0> &steps, uint32_t token, uint32_t low,
                                                 uint32_t high)
    {
        stream_fetch_rows<kv_q8_0, HEAD>(to + r * STREAM_GROUP * S::PITCH, rows + token * S::ROW, low, high);
        const uint32_t lane = threadIdx.x & 31;
        if (lane < S::SCALES)
            copy16_async(to + S::TILE * S::PITCH + (r * S::SCALES + lane) * 16,
                         rows + steps.scales_at + token * S::SCALES + lane * 16, high > 0);
    }
    static __device__ __forceinline__ float weight(float w, const unsigned char *scale, int block)
    {
        /* the scale of a position that is not seen may be anything */
        return w == 0 ? 0.0f : w * q8_scale(reinterpret_cast<const uint16_t *>(scale)[block]);
    }
    static __device__ __forceinline__ void add(float o[HEAD / 16][4], const float w[S::GROUPS][4],
                                               const unsigned char *values)
    {
        const uint32_t lane = threadIdx.x & 31, row = (lane & 7) + (lane >> 3 & 1) * 8;
        const uint32_t at = shared_address(values);
#pragma unroll
        for (int r = 0; r < S::GROUPS; r++) {
            const unsigned char *first =
                values + S::TILE * S::PITCH + (r * STREAM_GROUP + (lane >> 2)) * S::SCALES;
            const unsigned char *second = first + 8 * S::SCALES;
#pragma unroll
            for (int b = 0; b < BLOCKS; b++) {
                const stream_weights p =
                    stream_weights_of<unit>(weight(w[r][0], first, b), weight(w[r][1], first, b),
                                            weight(w[r][2], second, b), weight(w[r][3], second, b));
                uint32_t four[4];
                load_matrices_transposed(four, at + S::value_at(r * STREAM_GROUP + row, 2 * b + (lane >> 4)));
#pragma unroll
                for (int u = 0; u < 2; u++) {
                    const uint32_t a[4] = {q8_bf16s(four[2 * u], 0x4240), q8_bf16s(four[2 * u], 0x4341),
                                           q8_bf16s(four[2 * u + 1], 0x4240),
                                           q8_bf16s(four[2 * u + 1], 0x4341)};
                    stream_multiply<unit>(o[2 * b + u], a, p);
                }
            }
        }
    }
    static __device__ __forceinline__ uint32_t dimension(int j, int e)
    {
        return 16 * j + 2 * ((threadIdx.x & 31) >> 2) + (e >> 1);
    }
};
