/* Decode attention on tensor cores: caches of 16 bits and q8_0, head_dim 64 or 128, pages of whole 16 positions, 8.0
 * and later.
 *
 * A block takes one token, up to 8 query heads of one kv head and a piece of the context; a warp takes 16
 * positions at a time, straight from global memory into fragments (ptx.cuh): no shared memory, no transposes.
 *   scores = Q K^T  A is Q (8 heads of 16 rows), B is K.
 *   out = P V       P's registers are the A fragment as they are.
 * How cells become fragments is in kv_tile.cuh. Q and P go in as high + low
 * 16-bit parts, so that sums are as good as fp32 ones. The rest (streaming softmax, pieces, the merge) is as
 * in attention_decode.cu, from where it is launched. */
#include "worker-gpu/kernels/attention_decode.cuh"
#include "worker-gpu/kernels/kv_tile.cuh"

static const int WARPS = 8, GROUP = 8;
static const uint32_t THREADS = WARPS * 32;
static const uint32_t TILE = DECODE_TILE;
static const uint32_t PIECE_MIN = 256; /* positions: merging pieces costs about as much as reading these */

template <typename C, int HEAD>
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
    const uint32_t row = counts ? a.step.token_row[t] : 0;
    const uint32_t *pages =
        a.step.page_table + (counts ? (size_t)a.step.row_slot[row] * a.step.pages_per_slot : 0);
    const uint32_t first = first_of(a, counts, row, position), aligned = first & ~(TILE - 1);
    uint32_t pieces =
        div_up(end - aligned, PIECE_MIN) < gridDim.x ? div_up(end - aligned, PIECE_MIN) : gridDim.x;
    const uint32_t per_piece = div_up(div_up(end - aligned, pieces), TILE) * TILE;
    pieces = div_up(end - aligned, per_piece);
    const bool works = counts && blockIdx.x < pieces;
    const uint32_t begin = aligned + blockIdx.x * per_piece;
    const uint32_t piece_end = begin + per_piece < end ? begin + per_piece : end;

    const uint32_t page_shift = 31 - __clz((int)l.page_tokens), page_mask = l.page_tokens - 1;
    const uint32_t row_bytes = HEAD * C::NUMBER_BYTES;
    const kv_steps<C> steps(l);
    uint32_t base = begin + warp * TILE;
    if (works &&
        base < piece_end) { /* earlier positions are in the cache already: on their way while we wait */
        const uint32_t page = pages[base >> page_shift];
        if (page != GPUK_PAGE_ABSENT) {
            const unsigned char *rows = kv_rows(a.kv, page, 0, kv_head);
            const unsigned char *numbers = rows + (size_t)(base & page_mask) * row_bytes;
            for (uint32_t at = lane * 128; at < TILE * row_bytes; at += 32 * 128) {
                ask_l2(numbers + at);
                ask_l2(numbers + steps.to_values + at);
            }
            if (C::SCALED && lane < 2)
                ask_l2(rows + steps.scales_at + (size_t)(base & page_mask) * steps.scale +
                       lane * steps.to_values);
        }
    }
    wait_for_previous();
    if (!works) return;

    float *qs = memory, *os = qs + GROUP * HEAD, *ms = os + WARPS * GROUP * HEAD, *ss = ms + WARPS * GROUP;
    typedef decode_tile<C, HEAD> tile_type;
    typedef typename tile_type::unit unit;
    take_query<C>(p, t, kv_head, head0, heads, position, pages, blockIdx.x == pieces - 1, qs, os);
    __syncthreads(); /* q for everyone; and the block sees the k and v it has just appended */
    uint32_t q_high[HEAD / 32][4], q_low[HEAD / 32][4];
#pragma unroll
    for (int k = 0; k < HEAD / 32; k++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const float *from = qs + g * HEAD + k * 32 + c * 8 + 2 * i;
            const bool exists = g < heads;
            split_pair<unit>(exists ? from[0] : 0.0f, exists ? from[1] : 0.0f, q_high[k][i], q_low[k][i]);
        }

    float o[HEAD / 8][4], m = -INFINITY, s = 0;
#pragma unroll
    for (int j = 0; j < HEAD / 8; j++) o[j][0] = o[j][1] = o[j][2] = o[j][3] = 0;
    for (; base < piece_end; base += WARPS * TILE) {
        const uint32_t page = pages[base >> page_shift];
        if (page == GPUK_PAGE_ABSENT) continue;
        tile_type tile;
        tile.load(kv_rows(a.kv, page, 0, kv_head), steps, base & page_mask, piece_end - base);
        float x[2][4];
        tile.scores(x, q_high, q_low);
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
        tile.values(o, keep, w);
    }
    s += __shfl_xor_sync(0xffffffffu, s, 1);
    s += __shfl_xor_sync(0xffffffffu, s, 2);
    if (g < heads) {
        float *to = os + (warp * GROUP + g) * HEAD;
#pragma unroll
        for (int j = 0; j < HEAD / 8; j++)
#pragma unroll
            for (int i = 0; i < 2; i++) to[tile_type::dimension(c, j, i)] = o[j][i];
        if (c == 0) ms[warp * GROUP + g] = m, ss[warp * GROUP + g] = s;
    }
    __syncthreads();
    finish_block<GROUP, WARPS>(p, t, head0, heads, blockIdx.x, pieces,
                               p.counters + (size_t)t * gridDim.y + blockIdx.y, os, ms, ss, memory);
}

typedef void (*tensor_kernel)(decode_params);
#define KERNELS(C)                                                                                           \
    {                                                                                                        \
        decode_tensor_kernel<C, 64>, decode_tensor_kernel<C, 128>                                            \
    }
/* [enum kv_dtype][head_dim 64, 128]; none for f32 */
static const tensor_kernel kernels[KV_DTYPE_COUNT][2] = {KERNELS(kv_plain<__nv_bfloat16>),
                                                         KERNELS(kv_plain<__half>),
                                                         {},
                                                         KERNELS(kv_q8_0)};

int decode_tensor_prepare(struct helm_err *err)
{
    int rc = HELM_OK;
    for (const auto &type : kernels)
        for (const tensor_kernel kernel : type)
            if (!rc && kernel) rc = gpuk_prepare("decode attention", kernel, 0, err);
    return rc;
}

bool decode_tensor_fits(const struct gpuk_device *device, const struct gpuk_attention *args)
{
    const struct kv_layout *l = &args->kv.layout;
    return device->tensor_cores && kernels[l->dtype][0] && (l->head_dim == 64 || l->head_dim == 128) &&
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
