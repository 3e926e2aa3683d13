/* Gated delta nets: prompts in chunks of 64 tokens (Gated Delta Networks, Yang et al. 2024; docs/state.md has
 * the formulas). Products are of tf32 numbers (10 bits) with fp32 sums.
 *
 *   prepare   a block for each chunk of a v head: T = (I + A)^-1 diag(beta), where A has the decayed products
 *             of the chunk's keys (below the diagonal), and P, the decayed products of queries and keys
 *   pass      a block for some columns of a v head's state, chunk after chunk: V' = T (V - g K S), O = g Q S
 *             + P V', S = g_C S + (g_C / g K)^T V'
 *   finish    norm and gate of the outputs, which pass leaves in the place of v
 *
 * g: the product of a chunk's decays up to a token; g_C: of all. Only pass goes over the chunks in order; a
 * state's columns do not meet. Its sums stay in registers, all of fp32, and a copy in shared memory is what
 * the next chunk multiplies by. Where a row leaves its state after n tokens of a chunk, pass also makes g_n S
 * + (g_n / g K)^T V' of these; the chunk goes on as it is. */
#include "worker-gpu/kernels/delta/delta.cuh"

static const uint32_t C = GPUK_DELTA_CHUNK, WARPS = 4,
                      THREADS = WARPS * 32; /* a warp has 16 of a chunk's tokens */
static const uint32_t INNER = 16; /* rows that are inverted one after another; blocks of these by products */
static_assert(C == WARPS * 16 && C % INNER == 0, "a warp's rows of a product are 16");

/* A chunk of a row. */
struct chunk_place {
    uint32_t first, count; /* tokens */
};
/* Chunk `index` of a row's tokens. */
__device__ __forceinline__ chunk_place chunk_of(uint32_t first, uint32_t end, uint32_t index)
{
    const uint32_t at = first + index * C;
    return {at, end - at < C ? end - at : C};
}
/* Where a row's first chunk has its T and P: rows in chunks have 32 tokens or more, so that no two have one
 * place. */
__device__ __forceinline__ uint32_t chunk_slot(uint32_t first)
{
    return first / DELTA_CHUNKED_FROM;
}
/* The chunk whose slot this is; false: none. It is of the row of the slot's first token or of its last
 * one. */
__device__ __forceinline__ bool chunk_at_slot(const gpuk_delta &d, uint32_t slot, chunk_place &chunk)
{
    const uint32_t tokens = d.step.counts[0];
    for (uint32_t i = 0; i < 2; i++) {
        uint32_t t = slot * DELTA_CHUNKED_FROM + i * (DELTA_CHUNKED_FROM - 1);
        if (i == 1 && t >= tokens) t = tokens - 1;
        if (t >= tokens) continue;
        const uint32_t row = d.step.token_row[t], first = d.step.row_first[row],
                       end = d.step.row_first[row + 1], begin = chunk_slot(first);
        if (end - first < DELTA_CHUNKED_FROM || slot < begin || (slot - begin) * C >= end - first) continue;
        chunk = chunk_of(first, end, slot - begin);
        return true;
    }
    return false;
}
/* T of a slot and v head, [C][C]; P after it. */
__device__ __forceinline__ float *chunk_matrices(const gpuk_delta &d, uint32_t slot, uint32_t head)
{
    return d.chunks + ((size_t)slot * d.value_heads + head) * 2 * C * C;
}

/* log_decay[i]: ln of the product of decays up to token i; by the first two warps. Meets the block. */
__device__ __forceinline__ void chunk_gates(const gpuk_delta &d, chunk_place chunk, uint32_t head,
                                            float log_decay[C], float *rate)
{
    const uint32_t i = threadIdx.x, lane = i & 31;
    float sum = 0;
    if (i < C) {
        const delta_gates g = i < chunk.count ? delta_gates_of(d, chunk.first + i, head) : delta_gates{0, 0};
        float all = g.log_decay; /* of the lanes that sums have gone over */
        sum = all;
        for (uint32_t mask = 1; mask < 32; mask <<= 1) {
            const float other = __shfl_xor_sync(0xffffffffu, all, mask);
            if (lane & mask) sum += other;
            all += other;
        }
        log_decay[i] = sum;
        if (rate) rate[i] = g.rate;
    }
    __syncthreads();
    const float front = i >= 32 && i < C ? log_decay[31] : 0.0f;
    __syncthreads();
    if (i >= 32 && i < C) log_decay[i] = front + sum;
    __syncthreads();
}

/* Fragments (tf32_unit): lane 4 g + c has rows g and g + 8, columns c and c + 4 of A. */
struct fragment {
    uint32_t a[4];
};
/* Some rows of a matrix: in shared memory (SHARED), where those from `count` on are zeros, or in device
 * memory. */
template <bool SHARED> struct matrix_rows {
    const float *from;
    uint32_t stride, count;
    __device__ __forceinline__ uint32_t number(uint32_t row, uint32_t column) const
    {
        const float *at = from + (size_t)row * stride + column;
        if constexpr (SHARED) return tf32_of(*at);
        return tf32_of(row < count ? __ldcg(at) : 0.0f);
    }
    /* The fragment of rows row .., columns column .. */
    __device__ __forceinline__ fragment rows(uint32_t row, uint32_t column) const
    {
        const uint32_t g = (threadIdx.x & 31) / 4, c = threadIdx.x & 3;
        return {{number(row + g, column + c), number(row + g + 8, column + c),
                 number(row + g, column + c + 4), number(row + g + 8, column + c + 4)}};
    }
    /* That of the transposed matrix. */
    __device__ __forceinline__ fragment columns(uint32_t column, uint32_t row) const
    {
        const uint32_t g = (threadIdx.x & 31) / 4, c = threadIdx.x & 3;
        return {{number(row + c, column + g), number(row + c, column + g + 8),
                 number(row + c + 4, column + g), number(row + c + 4, column + g + 8)}};
    }
};
/* On its way into shared memory: C rows of `width` numbers, those from `count` on as zeros; by the block. */
__device__ __forceinline__ void fetch_rows(float *to, uint32_t to_stride, const float *from, uint32_t stride,
                                           uint32_t count, uint32_t width)
{
    for (uint32_t i = threadIdx.x; i < C * width / 4; i += THREADS) {
        const uint32_t row = i / (width / 4), at = i % (width / 4) * 4;
        copy16_async(shared_address(to + row * to_stride + at),
                     from + (size_t)(row < count ? row : 0) * stride + at, row < count);
    }
    copies_commit();
}

/* ---- prepare ---- */

static const uint32_t KEY_PAD = 4, SQUARE = C + 1; /* so that lanes read different banks */
/* q has its place where A and T come. */
static __host__ __device__ inline uint32_t prepare_squares(uint32_t key)
{
    const uint32_t q = C * (key + KEY_PAD);
    return q > 2 * C * SQUARE ? q : 2 * C * SQUARE;
}
static size_t prepare_bytes(uint32_t key)
{
    return (C * (key + KEY_PAD) + prepare_squares(key) + 2 * C) * sizeof(float);
}

/* The inverse of I + A, both below the diagonal; by the block. Blocks of INNER rows on the diagonal first, a
 * thread a column. */
__device__ __forceinline__ void invert(const float *a, float *t)
{
    const uint32_t BLOCKS = C / INNER;
    if (threadIdx.x < C) {
        const uint32_t column = threadIdx.x, first = column / INNER * INNER;
        for (uint32_t i = first; i < first + INNER; i++) {
            float sum = i == column ? 1.0f : 0.0f;
            for (uint32_t m = column; m < i; m++) sum -= a[i * SQUARE + m] * t[m * SQUARE + column];
            t[i * SQUARE + column] = i < column ? 0.0f : sum;
        }
    }
    __syncthreads();
    /* blocks `apart` below the diagonal: -T_ii sum over m of A_im T_mj; the sum first, in their own place
     * above the diagonal */
    for (uint32_t apart = 1; apart < BLOCKS; apart++) {
        const uint32_t numbers = (BLOCKS - apart) * INNER * INNER;
        for (uint32_t n = threadIdx.x; n < numbers; n += THREADS) {
            const uint32_t block = n / (INNER * INNER), j = block * INNER + n % INNER,
                           i = (block + apart) * INNER + n / INNER % INNER;
            float sum = 0;
            for (uint32_t m = block * INNER; m < (block + apart) * INNER; m++)
                sum += a[i * SQUARE + m] * t[m * SQUARE + j];
            t[j * SQUARE + i] = sum;
        }
        __syncthreads();
        for (uint32_t n = threadIdx.x; n < numbers; n += THREADS) {
            const uint32_t block = n / (INNER * INNER), j = block * INNER + n % INNER,
                           first = (block + apart) * INNER, i = first + n / INNER % INNER;
            float sum = 0;
            for (uint32_t m = first; m <= i; m++) sum -= t[i * SQUARE + m] * t[j * SQUARE + m];
            t[i * SQUARE + j] = sum;
        }
        __syncthreads();
    }
}

/* grid: [slots][v heads]. */
__global__ void __launch_bounds__(THREADS) delta_prepare_kernel(const __grid_constant__ delta_params p)
{
    SHARED_DYNAMIC(float, memory);
    const gpuk_delta &d = p.d;
    const uint32_t head = blockIdx.y, warp = threadIdx.x >> 5, g = (threadIdx.x & 31) / 4,
                   c = threadIdx.x & 3, stride = d.key_dim + KEY_PAD;
    float *keys = memory, *a = keys + C * stride, *t = a + C * SQUARE,
          *decay = a + prepare_squares(d.key_dim), *rate = decay + C;
    let_next_start();
    wait_for_previous();
    chunk_place chunk;
    if (!chunk_at_slot(d, blockIdx.x, chunk)) return;
    const float *q = d.mixed + (size_t)chunk.first * p.channels + delta_key_of(d, head) * d.key_dim,
                *k = q + p.keys;
    fetch_rows(keys, stride, k, p.channels, chunk.count, d.key_dim);
    fetch_rows(a, stride, q, p.channels, chunk.count, d.key_dim);
    copies_wait<0>();
    chunk_gates(d, chunk, head, decay, rate); /* and q and k are there */
    const matrix_rows<true> all_k = {keys, stride, C}, all_q = {a, stride, C};
    float kk[C / 8][4] = {}, qk[C / 8][4] = {};
    for (uint32_t at = 0; at < d.key_dim; at += 8) {
        const fragment of_q = all_q.rows(warp * 16, at), of_k = all_k.rows(warp * 16, at);
#pragma unroll
        for (uint32_t n = 0; n < C / 8; n++) {
            const float *other = keys + (n * 8 + g) * stride + at + c;
            const uint32_t b0 = tf32_of(other[0]), b1 = tf32_of(other[4]);
            tf32_unit::add(kk[n], of_k.a, b0, b1);
            tf32_unit::add(qk[n], of_q.a, b0, b1);
        }
    }
    float *matrices = chunk_matrices(d, blockIdx.x, head);
    __syncthreads(); /* A takes the place of q */
#pragma unroll
    for (uint32_t n = 0; n < C / 8; n++)
#pragma unroll
        for (uint32_t e = 0; e < 4; e++) {
            const uint32_t i = warp * 16 + g + e / 2 * 8, j = n * 8 + 2 * c + e % 2;
            const float by = j <= i ? expf(decay[i] - decay[j]) : 0.0f;
            a[i * SQUARE + j] = j < i ? rate[i] * by * kk[n][e] : 0.0f;
            matrices[C * C + i * C + j] = by * qk[n][e];
        }
    __syncthreads();
    invert(a, t);
    for (uint32_t n = threadIdx.x; n < C * C; n += THREADS) {
        const uint32_t i = n / C, j = n % C;
        matrices[n] = j <= i ? t[i * SQUARE + j] * rate[j] : 0.0f;
    }
}

/* ---- pass ---- */

static const uint32_t TO_PAD = 4; /* of what A is read from, so that lanes read different banks */

/* TILES: columns of a block in eights. MATRIX: sixteens of key numbers of a warp. STAGED: q, k, T and P of a
 * chunk come into shared memory, those of the next one as soon as there is room; else they are read where
 * they are, by devices with less. */
template <uint32_t TILES> struct pass_shape {
    static const uint32_t COLUMNS = TILES * 8, STRIDE = COLUMNS + 8;
    static size_t bytes(uint32_t key, bool staged)
    {
        return ((key + C) * STRIDE + 3 * C + (staged ? 2 * C * (key + TO_PAD) + 2 * C * (C + TO_PAD) : 0)) *
               sizeof(float);
    }
};
/* A chunk's inputs of the pass, and where they are staged. */
template <bool STAGED> struct pass_inputs {
    const float *q, *k, *t, *p;
    float *staged_q, *staged_k, *staged_t, *staged_p;
    uint32_t channels, key, count;
    __device__ __forceinline__ void place(float *memory)
    {
        staged_q = memory, staged_k = staged_q + C * (key + TO_PAD), staged_t = staged_k + C * (key + TO_PAD),
        staged_p = staged_t + C * (C + TO_PAD);
    }
    __device__ __forceinline__ void of(const delta_params &params, chunk_place chunk, uint32_t head,
                                       uint32_t slot)
    {
        count = chunk.count;
        q = params.d.mixed + (size_t)chunk.first * channels + delta_key_of(params.d, head) * key;
        k = q + params.keys;
        t = chunk_matrices(params.d, slot, head), p = t + C * C;
    }
    __device__ __forceinline__ matrix_rows<STAGED> rows_q() const
    {
        if constexpr (STAGED) return {staged_q, key + TO_PAD, C};
        return {q, channels, count};
    }
    __device__ __forceinline__ matrix_rows<STAGED> rows_k() const
    {
        if constexpr (STAGED) return {staged_k, key + TO_PAD, C};
        return {k, channels, count};
    }
    __device__ __forceinline__ matrix_rows<STAGED> rows_t() const
    {
        if constexpr (STAGED) return {staged_t, C + TO_PAD, C};
        return {t, C, C};
    }
    __device__ __forceinline__ matrix_rows<STAGED> rows_p() const
    {
        if constexpr (STAGED) return {staged_p, C + TO_PAD, C};
        return {p, C, C};
    }
    __device__ __forceinline__ void fetch_q() const
    {
        if constexpr (STAGED) fetch_rows(staged_q, key + TO_PAD, q, channels, count, key);
    }
    __device__ __forceinline__ void fetch_t() const
    {
        if constexpr (STAGED) fetch_rows(staged_t, C + TO_PAD, t, C, C, C);
    }
    __device__ __forceinline__ void fetch_k_and_p() const
    {
        if constexpr (STAGED)
            fetch_rows(staged_k, key + TO_PAD, k, channels, count, key),
                fetch_rows(staged_p, C + TO_PAD, p, C, C, C);
    }
};
/* d += A B over `steps` eights of columns of A; B's rows in shared memory. */
template <uint32_t TILES, typename A>
__device__ __forceinline__ void multiply(float (&d)[TILES][4], uint32_t steps, const float *b, const A &rows)
{
    const uint32_t g = (threadIdx.x & 31) / 4, c = threadIdx.x & 3, STRIDE = pass_shape<TILES>::STRIDE;
#pragma unroll 4
    for (uint32_t s = 0; s < steps; s++) {
        const fragment a = rows(s * 8);
        const float *from = b + (s * 8 + c) * STRIDE + g;
#pragma unroll
        for (uint32_t n = 0; n < TILES; n++)
            tf32_unit::add(d[n], a.a, tf32_of(from[n * 8]), tf32_of(from[n * 8 + 4 * STRIDE]));
    }
}

/* The block's columns of a head's matrix after `count` of a chunk's tokens, of which S was before them:
 * summed as pass_chunk does. */
template <uint32_t TILES, uint32_t MATRIX, bool STAGED>
__device__ __forceinline__ void pass_leave(const gpuk_delta &d, const pass_inputs<STAGED> &in,
                                           const float *values, const float *log_decay, uint32_t count,
                                           const float (&state)[MATRIX][TILES][4], float *matrix)
{
    const uint32_t STRIDE = pass_shape<TILES>::STRIDE, warp = threadIdx.x >> 5, g = (threadIdx.x & 31) / 4,
                   c = threadIdx.x & 3;
    const matrix_rows<STAGED> k = in.rows_k();
    const float all = expf(log_decay[count - 1]);
#pragma unroll
    for (uint32_t m = 0; m < MATRIX; m++)
#pragma unroll
        for (uint32_t n = 0; n < TILES; n++) {
            const uint32_t number = (m * WARPS + warp) * 16;
            if (number >= d.key_dim) continue;
            float sum[4];
#pragma unroll
            for (uint32_t e = 0; e < 4; e++) sum[e] = state[m][n][e] * all;
#pragma unroll 1 /* once a prompt: short code */
            for (uint32_t at = 0; at < count; at += 8) {
                uint32_t b[2];
                for (uint32_t h = 0; h < 2; h++) {
                    const uint32_t i = at + c + 4 * h;
                    const float by = i < count ? expf(log_decay[count - 1] - log_decay[i]) : 0.0f;
                    b[h] = tf32_of(values[i * STRIDE + n * 8 + g] * by);
                }
                tf32_unit::add(sum, k.columns(number, at).a, b[0], b[1]);
            }
            float *to = matrix + (size_t)(number + g) * d.value_dim + n * 8 + 2 * c;
            *reinterpret_cast<float2 *>(to) = make_float2(sum[0], sum[1]);
            *reinterpret_cast<float2 *>(to + (size_t)8 * d.value_dim) = make_float2(sum[2], sum[3]);
        }
}

/* more: there is a next chunk. left: where the row leaves its state next. */
template <uint32_t TILES, uint32_t MATRIX, bool STAGED>
__device__ __forceinline__ void pass_chunk(const delta_params &p, chunk_place chunk, uint32_t head,
                                           const pass_inputs<STAGED> &in, const pass_inputs<STAGED> &next,
                                           bool more, gpuk_left_at &left, float *memory,
                                           float (&state)[MATRIX][TILES][4])
{
    const gpuk_delta &d = p.d;
    const uint32_t STRIDE = pass_shape<TILES>::STRIDE, warp = threadIdx.x >> 5, g = (threadIdx.x & 31) / 4,
                   c = threadIdx.x & 3, row = warp * 16;
    float *s = memory, *values = s + d.key_dim * STRIDE, *log_decay = values + C * STRIDE,
          *decay = log_decay + C, *rest = decay + C;
    float *v = d.mixed + (size_t)chunk.first * p.channels + 2 * p.keys + head * d.value_dim +
               blockIdx.x * pass_shape<TILES>::COLUMNS;
#pragma unroll
    for (uint32_t m = 0; m < MATRIX; m++)
#pragma unroll
        for (uint32_t n = 0; n < TILES; n++) {
            float *to = s + ((m * WARPS + warp) * 16 + g) * STRIDE + n * 8 + 2 * c;
            if ((m * WARPS + warp) * 16 >= d.key_dim) continue;
            *reinterpret_cast<float2 *>(to) = make_float2(state[m][n][0], state[m][n][1]);
            *reinterpret_cast<float2 *>(to + 8 * STRIDE) = make_float2(state[m][n][2], state[m][n][3]);
        }
    chunk_gates(d, chunk, head, log_decay, nullptr);
    if (threadIdx.x < C) {
        decay[threadIdx.x] = expf(log_decay[threadIdx.x]);
        rest[threadIdx.x] = expf(log_decay[C - 1] - log_decay[threadIdx.x]);
    }
    if constexpr (STAGED) copies_wait<0>();
    __syncthreads(); /* decays are there, and what was fetched */
    float of_k[TILES][4] = {}, of_q[TILES][4] = {};
    const matrix_rows<STAGED> q = in.rows_q(), k = in.rows_k(), to_values = in.rows_t(), to_out = in.rows_p();
    multiply<TILES>(of_k, d.key_dim / 8, s, [&](uint32_t at) { return k.rows(row, at); });
    multiply<TILES>(of_q, d.key_dim / 8, s, [&](uint32_t at) { return q.rows(row, at); });
    const auto each =
        [&](const auto &with) { /* a pair of numbers of the warp's rows and the block's columns */
#pragma unroll
                                for (uint32_t n = 0; n < TILES; n++)
#pragma unroll
                                    for (uint32_t h = 0; h < 2; h++)
                                        with(row + g + 8 * h, n * 8 + 2 * c, n, 2 * h);
        };
    each([&](uint32_t i, uint32_t j, uint32_t n, uint32_t e) {
        const float2 own = i < chunk.count
                               ? __ldcg(reinterpret_cast<const float2 *>(v + (size_t)i * p.channels + j))
                               : make_float2(0, 0);
        *reinterpret_cast<float2 *>(values + i * STRIDE + j) =
            make_float2(own.x - decay[i] * of_k[n][e], own.y - decay[i] * of_k[n][e + 1]);
        of_q[n][e] *= decay[i], of_q[n][e + 1] *= decay[i];
        of_k[n][e] = of_k[n][e + 1] = 0;
    });
    __syncthreads();
    if (more) next.fetch_q();
    /* T and P have nothing above the diagonal */
    multiply<TILES>(of_k, 2 * (warp + 1), values, [&](uint32_t at) { return to_values.rows(row, at); });
    __syncthreads(); /* all have read T, and what it multiplies */
    if (more) next.fetch_t();
    each([&](uint32_t i, uint32_t j, uint32_t n, uint32_t e) {
        *reinterpret_cast<float2 *>(values + i * STRIDE + j) = make_float2(of_k[n][e], of_k[n][e + 1]);
    });
    __syncthreads();
    multiply<TILES>(of_q, 2 * (warp + 1), values, [&](uint32_t at) { return to_out.rows(row, at); });
    each([&](uint32_t i, uint32_t j, uint32_t n, uint32_t e) {
        if (i < chunk.count)
            *reinterpret_cast<float2 *>(v + (size_t)i * p.channels + j) =
                make_float2(of_q[n][e], of_q[n][e + 1]);
    });
    const uint32_t row_index = blockIdx.z, end = d.step.row_first[row_index + 1];
    while (left.to && left.at <= chunk.first + chunk.count) {
        pass_leave<TILES, MATRIX, STAGED>(d, in, values, log_decay, left.at - chunk.first, state,
                                          delta_matrix(d, left.to, head) +
                                              blockIdx.x * pass_shape<TILES>::COLUMNS);
        left = delta_left_after(d, row_index, left.at, end);
    }
    const float all = decay[C - 1];
#pragma unroll
    for (uint32_t m = 0; m < MATRIX; m++)
#pragma unroll
        for (uint32_t n = 0; n < TILES; n++)
#pragma unroll
            for (uint32_t e = 0; e < 4; e++) state[m][n][e] *= all;
#pragma unroll 2
    for (uint32_t at = 0; at < C; at += 8) {
        uint32_t b[TILES][2];
        const uint32_t i = at + c;
#pragma unroll
        for (uint32_t n = 0; n < TILES; n++) {
            b[n][0] = tf32_of(values[i * STRIDE + n * 8 + g] * rest[i]);
            b[n][1] = tf32_of(values[(i + 4) * STRIDE + n * 8 + g] * rest[i + 4]);
        }
#pragma unroll
        for (uint32_t m = 0; m < MATRIX; m++) {
            const uint32_t number = (m * WARPS + warp) * 16;
            if (number >= d.key_dim) continue;
            const fragment a = k.columns(number, at);
#pragma unroll
            for (uint32_t n = 0; n < TILES; n++) tf32_unit::add(state[m][n], a.a, b[n][0], b[n][1]);
        }
    }
    __syncthreads(); /* its inputs are written again */
    if (more) next.fetch_k_and_p();
}

/* grid: [columns][v heads][rows]. */
template <uint32_t TILES, uint32_t MATRIX, bool STAGED>
__global__ void __launch_bounds__(THREADS) delta_pass_kernel(const __grid_constant__ delta_params p)
{
    SHARED_DYNAMIC(float, memory);
    const gpuk_delta &d = p.d;
    const uint32_t head = blockIdx.y, row = blockIdx.z, warp = threadIdx.x >> 5, g = (threadIdx.x & 31) / 4,
                   c = threadIdx.x & 3;
    let_next_start();
    wait_for_previous();
    if (row >= d.step.counts[1]) return;
    const uint32_t first = d.step.row_first[row], end = d.step.row_first[row + 1];
    if (!delta_is_chunked(end - first, true)) return;
    float *matrix = delta_matrix(d, delta_record(d, row), head) + blockIdx.x * pass_shape<TILES>::COLUMNS;
    float state[MATRIX][TILES][4];
    const auto each = [&](const auto &with) {
#pragma unroll
        for (uint32_t m = 0; m < MATRIX; m++)
#pragma unroll
            for (uint32_t n = 0; n < TILES; n++)
#pragma unroll
                for (uint32_t h = 0; h < 2; h++) {
                    const uint32_t i = (m * WARPS + warp) * 16 + g + 8 * h;
                    if (i < d.key_dim)
                        with(reinterpret_cast<float2 *>(matrix + (size_t)i * d.value_dim + n * 8 + 2 * c),
                             state[m][n][2 * h], state[m][n][2 * h + 1]);
                }
    };
#pragma unroll
    for (uint32_t m = 0; m < MATRIX; m++)
#pragma unroll
        for (uint32_t n = 0; n < TILES; n++)
#pragma unroll
            for (uint32_t e = 0; e < 4; e++) state[m][n][e] = 0;
    each([](const float2 *at, float &x, float &y) {
        const float2 two = __ldcg(at);
        x = two.x, y = two.y;
    });
    pass_inputs<STAGED> in;
    in.channels = p.channels, in.key = d.key_dim;
    in.place(memory + (d.key_dim + C) * pass_shape<TILES>::STRIDE + 3 * C);
    in.of(p, chunk_of(first, end, 0), head, chunk_slot(first));
    in.fetch_q(), in.fetch_t(), in.fetch_k_and_p();
    gpuk_left_at left = delta_left_after(d, row, first, end);
    for (uint32_t index = 0; first + index * C < end; index++) {
        const bool more = first + (index + 1) * C < end;
        pass_inputs<STAGED> next = in;
        if (more) next.of(p, chunk_of(first, end, index + 1), head, chunk_slot(first) + index + 1);
        pass_chunk<TILES, MATRIX, STAGED>(p, chunk_of(first, end, index), head, in, next, more, left, memory,
                                          state);
        in = next;
    }
    each([](float2 *at, float &x, float &y) { *at = make_float2(x, y); });
}

/* ---- finish ---- */

static const uint32_t FINISH_WARPS = 8;

/* A warp a v head of a token. */
__global__ void __launch_bounds__(FINISH_WARPS * 32)
    delta_finish_kernel(const __grid_constant__ delta_params p)
{
    const gpuk_delta &d = p.d;
    const uint32_t token = blockIdx.x, head = blockIdx.y * FINISH_WARPS + (threadIdx.x >> 5),
                   lane = threadIdx.x & 31;
    let_next_start();
    wait_for_previous();
    if (token >= d.step.counts[0] || head >= d.value_heads) return;
    const uint32_t row = d.step.token_row[token];
    if (!delta_is_chunked(d.step.row_first[row + 1] - d.step.row_first[row], true)) return;
    const float *from = d.mixed + (size_t)token * p.channels + 2 * p.keys + head * d.value_dim;
    float o[GPUK_DELTA_HEAD_MAX / 32], squares = 0;
#pragma unroll
    for (uint32_t j = 0; j < GPUK_DELTA_HEAD_MAX / 32; j++) {
        o[j] = lane + 32 * j < d.value_dim ? __ldcg(from + lane + 32 * j) : 0.0f;
        squares += o[j] * o[j];
    }
    squares = warp_sum(squares);
#pragma unroll
    for (uint32_t j = 0; j < GPUK_DELTA_HEAD_MAX / 32; j++)
        if (lane + 32 * j < d.value_dim) delta_finish(d, token, head, lane + 32 * j, o[j], squares);
}

/* ---- launchers ---------------------------------------------------------------------------------- */

typedef void (*pass_kernel)(delta_params);
/* [staged][columns: 16, 32][key numbers: up to 128, up to 256] */
#define PASSES(STAGED)                                                                                       \
    {                                                                                                        \
        {delta_pass_kernel<2, 2, STAGED>, delta_pass_kernel<2, 4, STAGED>},                                  \
        {                                                                                                    \
            delta_pass_kernel<4, 2, STAGED>, delta_pass_kernel<4, 4, STAGED>                                 \
        }                                                                                                    \
    }
static const pass_kernel passes[2][2][2] = {PASSES(false), PASSES(true)};
static size_t pass_bytes(bool wide, uint32_t key, bool staged)
{
    return wide ? pass_shape<4>::bytes(key, staged) : pass_shape<2>::bytes(key, staged);
}
static bool is_staged(const struct gpuk_device *device, bool wide, uint32_t key)
{
    return pass_bytes(wide, key, true) <= (size_t)device->shared_bytes_max;
}

bool delta_chunks_fit(const struct gpuk_device *device, uint32_t key_dim)
{
    return device->tensor_cores && prepare_bytes(key_dim) <= (size_t)device->shared_bytes_max;
}

int delta_chunks_launch(const struct gpuk_device *device, const struct gpuk_delta *args, uint32_t tokens,
                        uint32_t flags, void *stream, struct helm_err *err)
{
    const delta_params p = delta_params_of(args);
    const bool wide = args->value_dim % 32 == 0, staged = is_staged(device, wide, args->key_dim);
    const uint32_t slots = tokens / DELTA_CHUNKED_FROM, rows = args->rows < slots ? args->rows : slots;
    int rc = gpuk_launch("delta chunks", delta_prepare_kernel, dim3(slots, args->value_heads), dim3(THREADS),
                         prepare_bytes(args->key_dim), flags, stream, err, p);
    if (!rc)
        rc = gpuk_launch("delta chunks", passes[staged][wide][args->key_dim > 128],
                         dim3(args->value_dim / (wide ? 32 : 16), args->value_heads, rows), dim3(THREADS),
                         pass_bytes(wide, args->key_dim, staged), flags, stream, err, p);
    return rc ? rc
              : gpuk_launch("delta chunks", delta_finish_kernel,
                            dim3(tokens, div_up(args->value_heads, FINISH_WARPS)), dim3(FINISH_WARPS * 32), 0,
                            flags, stream, err, p);
}

int delta_chunks_prepare(const struct gpuk_device *device, struct helm_err *err)
{
    if (!device->tensor_cores) return HELM_OK;
    const size_t most = prepare_bytes(GPUK_DELTA_HEAD_MAX), there = (size_t)device->shared_bytes_max;
    int rc = gpuk_prepare("delta chunks", delta_prepare_kernel, most < there ? most : there, err);
    for (int i = 0; i < 8 && !rc; i++) {
        const bool staged = i / 4, wide = i / 2 % 2;
        const uint32_t key = i % 2 ? GPUK_DELTA_HEAD_MAX : GPUK_DELTA_HEAD_MAX / 2;
        if (!staged || is_staged(device, wide, key))
            rc =
                gpuk_prepare("delta chunks", passes[staged][wide][i % 2], pass_bytes(wide, key, staged), err);
    }
    return rc ? rc : gpuk_prepare("delta chunks", delta_finish_kernel, 0, err);
}
