/* Decode attention on tensor cores: bf16 and f16 caches, head_dim 64 or 128, pages of whole 16 positions, 8.0
 * and later.
 *
 * A block takes one token, up to 8 query heads of one kv head and a piece of the context; a warp takes 16
 * positions at a time, straight from global memory into fragments (ptx.cuh): no shared memory, no transposes.
 *   scores = Q K^T  A is Q (8 heads of 16 rows), B is K. Which dimension an element of k stands for is free
 * as long as both agree, so a lane's 16 bytes of a key are the B fragments of two instructions. out = P V P's
 * registers are the A fragment as they are. For B a lane loads 16 bytes of the four positions its fragment
 * names and pairs them up; column g of product j is then dimension 8 g + j. Q and P go in as high + low
 * 16-bit parts, so that sums are as good as fp32 ones. The rest (streaming softmax, pieces, the merge) is as
 * in attention_decode.cu, from where it is launched. */
#include "worker-gpu/kernels/attention_decode.cuh"

static const int WARPS = 8, GROUP = 8;
static const uint32_t THREADS = WARPS * 32;
static const uint32_t TILE = 16;
static const uint32_t PIECE_MIN = 256; /* positions: merging pieces costs about as much as reading these */

/* High and low parts of a pair. */
template <typename T>
__device__ __forceinline__ void split_pair(float a, float b, uint32_t &high, uint32_t &low)
{
    high = element<T>::pack(a, b);
    float ha, hb;
    element<T>::unpack(high, ha, hb);
    low = element<T>::pack(a - ha, b - hb);
}

/* Element j of two rows' 16 bytes, as a pair. */
__device__ __forceinline__ uint32_t pair_up(const uint4 &first, const uint4 &second, int j)
{
    const uint32_t a = j < 2 ? first.x : j < 4 ? first.y : j < 6 ? first.z : first.w;
    const uint32_t b = j < 2 ? second.x : j < 4 ? second.y : j < 6 ? second.z : second.w;
    return __byte_perm(a, b, j & 1 ? 0x7632 : 0x5410);
}

template <typename T, int HEAD>
__global__ void __launch_bounds__(THREADS, 1) decode_tensor_kernel(const __grid_constant__ decode_params p)
{
    SHARED_DYNAMIC(float, memory);
    const gpuk_attention &a = p.a;
    const kv_layout &l = a.kv.layout;
    const uint32_t t = blockIdx.z, warp = threadIdx.x >> 5, lane = threadIdx.x & 31, g = lane >> 2,
                   c = lane & 3;
    const uint32_t kv_head = blockIdx.y / p.group_chunks, chunk = blockIdx.y - kv_head * p.group_chunks;
    const uint32_t group = a.heads / l.kv_heads, head0 = kv_head * group + chunk * GROUP;
    const uint32_t heads = group - chunk * GROUP < GROUP ? group - chunk * GROUP : GROUP;
    let_next_start();
    const bool counts = t < a.step.counts[0];
    const uint32_t position = counts ? a.step.position[t] : 0, end = position + 1;
    const uint32_t *pages =
        a.step.page_table +
        (counts ? (size_t)a.step.row_slot[a.step.token_row[t]] * a.step.pages_per_slot : 0);
    const uint32_t first = a.window && end > a.window ? end - a.window : 0, aligned = first & ~(TILE - 1);
    uint32_t pieces =
        div_up(end - aligned, PIECE_MIN) < gridDim.x ? div_up(end - aligned, PIECE_MIN) : gridDim.x;
    const uint32_t per_piece = div_up(div_up(end - aligned, pieces), TILE) * TILE;
    pieces = div_up(end - aligned, per_piece);
    const bool works = counts && blockIdx.x < pieces;
    const uint32_t begin = aligned + blockIdx.x * per_piece;
    const uint32_t piece_end = begin + per_piece < end ? begin + per_piece : end;

    const uint32_t page_shift = 31 - __clz((int)l.page_tokens), page_mask = l.page_tokens - 1;
    const uint32_t row_bytes = HEAD * sizeof(T);
    const uint64_t to_values = (uint64_t)l.kv_heads * l.page_tokens * row_bytes;
    uint32_t base = begin + warp * TILE;
    if (works &&
        base < piece_end) { /* earlier positions are in the cache already: on their way while we wait */
        const uint32_t page = pages[base >> page_shift];
        if (page != GPUK_PAGE_ABSENT) {
            const unsigned char *rows =
                kv_rows(a.kv, page, 0, kv_head) + (size_t)(base & page_mask) * row_bytes;
            for (uint32_t at = lane * 128; at < TILE * row_bytes; at += 32 * 128) {
                ask_l2(rows + at);
                ask_l2(rows + to_values + at);
            }
        }
    }
    wait_for_previous();
    if (!works) return;

    float *qs = memory, *os = qs + GROUP * HEAD, *ms = os + WARPS * GROUP * HEAD, *ss = ms + WARPS * GROUP;
    take_query<T>(p, t, kv_head, head0, heads, position, pages, blockIdx.x == pieces - 1, qs, os);
    __syncthreads(); /* q for everyone; and the block sees the k and v it has just appended */
    uint32_t q_high[HEAD / 32][4], q_low[HEAD / 32][4];
#pragma unroll
    for (int k = 0; k < HEAD / 32; k++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const float *from = qs + g * HEAD + k * 32 + c * 8 + 2 * i;
            const bool exists = g < heads;
            split_pair<T>(exists ? from[0] : 0.0f, exists ? from[1] : 0.0f, q_high[k][i], q_low[k][i]);
        }

    float o[HEAD / 8][4], m = -INFINITY, s = 0;
#pragma unroll
    for (int j = 0; j < HEAD / 8; j++) o[j][0] = o[j][1] = o[j][2] = o[j][3] = 0;
    const uint4 zero = make_uint4(0, 0, 0, 0);
    for (; base < piece_end; base += WARPS * TILE) {
        const uint32_t page = pages[base >> page_shift];
        if (page == GPUK_PAGE_ABSENT) continue;
        const unsigned char *rows = kv_rows(a.kv, page, 0, kv_head) + (size_t)(base & page_mask) * row_bytes;
        uint4 k[2][HEAD / 32], v[4][HEAD / 64];
#pragma unroll
        for (int n = 0; n < 2; n++) {
            const uint32_t at = n * 8 + g;
            const uint4 *from = reinterpret_cast<const uint4 *>(rows + (size_t)at * row_bytes) + c;
#pragma unroll
            for (int i = 0; i < HEAD / 32; i++) k[n][i] = base + at < piece_end ? __ldcg(from + i * 4) : zero;
        }
#pragma unroll
        for (int n = 0; n < 4; n++) {
            const uint32_t at = 2 * c + (n & 1) + (n >> 1) * 8;
            const uint4 *from =
                reinterpret_cast<const uint4 *>(rows + to_values + (size_t)at * row_bytes) + g;
#pragma unroll
            for (int i = 0; i < HEAD / 64; i++) v[n][i] = base + at < piece_end ? __ldcg(from + i * 8) : zero;
        }
        float x[2][4];
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
        float most = m;
#pragma unroll
        for (int n = 0; n < 2; n++)
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const uint32_t at = base + n * 8 + 2 * c + i;
                if (at < first || at >= piece_end) x[n][i] = -INFINITY;
                most = fmaxf(most, x[n][i]);
            }
        most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 1));
        most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 2));
        const float from = most == -INFINITY ? 0.0f : most, keep = exp2_of(m - from);
        m = most;
        float w[2][2];
        s *= keep;
#pragma unroll
        for (int n = 0; n < 2; n++)
#pragma unroll
            for (int i = 0; i < 2; i++) {
                w[n][i] = exp2_of(x[n][i] - from);
                s += w[n][i];
            }
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
    s += __shfl_xor_sync(0xffffffffu, s, 1);
    s += __shfl_xor_sync(0xffffffffu, s, 2);
    if (g < heads) {
        float *to = os + (warp * GROUP + g) * HEAD;
#pragma unroll
        for (int i = 0; i < HEAD / 64; i++)
#pragma unroll
            for (int j = 0; j < 8; j++) {
                to[i * 64 + 16 * c + j] = o[i * 8 + j][0];
                to[i * 64 + 16 * c + 8 + j] = o[i * 8 + j][1];
            }
        if (c == 0) ms[warp * GROUP + g] = m, ss[warp * GROUP + g] = s;
    }
    __syncthreads();
    finish_block<GROUP, WARPS>(p, t, head0, heads, blockIdx.x, pieces,
                               p.counters + (size_t)t * gridDim.y + blockIdx.y, os, ms, ss, memory);
}

typedef void (*tensor_kernel)(decode_params);
static const tensor_kernel kernels[2][2] = {{decode_tensor_kernel<__nv_bfloat16, 64>,
                                             decode_tensor_kernel<__nv_bfloat16, 128>},
                                            {decode_tensor_kernel<__half, 64>,
                                             decode_tensor_kernel<__half, 128>}};

int decode_tensor_prepare(struct helm_err *err)
{
    int rc = HELM_OK;
    for (int i = 0; i < 4 && !rc; i++) rc = gpuk_prepare("decode attention", kernels[i / 2][i % 2], 0, err);
    return rc;
}

bool decode_tensor_fits(const struct gpuk_device *device, const struct gpuk_attention *args)
{
    const struct kv_layout *l = &args->kv.layout;
    return device->tensor_cores && l->dtype != DTYPE_F32 && (l->head_dim == 64 || l->head_dim == 128) &&
           l->page_tokens % TILE == 0 && ((size_t)args->kv.pool | (size_t)args->kv.pool_host) % 16 == 0;
}

int decode_tensor_launch(const struct gpuk_device *device, decode_params *params, uint32_t tokens,
                         uint32_t flags, void *stream, struct helm_err *err)
{
    const struct kv_layout *l = &params->a.kv.layout;
    params->group_chunks = div_up(params->a.heads / l->kv_heads, GROUP);
    const uint32_t blocks = l->kv_heads * params->group_chunks;
    uint32_t splits = (uint32_t)device->sm_count / (blocks * tokens);
    splits = splits < 1 ? 1 : splits > GPUK_SPLITS_MAX ? GPUK_SPLITS_MAX : splits;
    const size_t floats = (size_t)(1 + WARPS) * GROUP * l->head_dim + 2 * WARPS * GROUP;
    return gpuk_launch("decode attention", kernels[l->dtype][l->head_dim == 128],
                       dim3(splits, blocks, tokens), dim3(THREADS), floats * sizeof(float), flags, stream,
                       err, *params);
}
