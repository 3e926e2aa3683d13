/* Decode attention over paged KV: few queries, long context, grouped query heads, exact over any split.
 *
 * A block takes one token, one kv head (or 8 of its query heads, 4 of wide heads) and one piece of the
 * context. A lane holds 8 dimensions, 16 of wide heads, of every query head, so that each key and value is
 * read once, 16 bytes a lane, and used for the whole group; a warp works on 32 / lanes positions at a time.
 * Streaming softmax (running maximum m, sum s, unnormalised output o: Rabe & Staats 2021; FlashAttention, Dao
 * et al. 2022) in powers of two. Pieces meet in global memory: whichever block of a head finishes last merges
 * them in the order of pieces, so the result does not depend on timing. For one token the block also norms
 * and rotates q and k and appends to the cache, which saves a kernel between the products and attention. */
#include "worker-gpu/kernels/attention/decode.cuh"

static const uint32_t WARPS = 4;
static const uint32_t THREADS = WARPS * 32;
static const uint32_t PIECE_MIN = 64; /* positions: below this another block costs more than it saves */

/* Shared memory: q [G][head_dim], o [WARPS][G][head_dim] (before that scratch of take_query, after it the
 * merge's weights), m and s [WARPS][G]. */
template <typename C, int G, bool VECTOR, int D>
__global__ void __launch_bounds__(THREADS) attention_decode_kernel(const __grid_constant__ decode_params p)
{
    SHARED_DYNAMIC(float, memory);
    const gpuk_attention &a = p.a;
    const kv_layout &l = a.kv.layout;
    const uint32_t t = blockIdx.z, head_dim = l.head_dim, warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    const uint32_t kv_head = blockIdx.y / p.group_chunks, chunk = blockIdx.y - kv_head * p.group_chunks;
    const uint32_t group = a.heads / l.kv_heads, head0 = kv_head * group + chunk * G;
    const uint32_t heads = group - chunk * G < G ? group - chunk * G : G;
    const bool counts = t < a.step.counts[0];
    const uint32_t position = counts ? a.step.position[t] : 0;
    const uint32_t row = counts ? a.step.token_row[t] : 0;
    const uint32_t *pages =
        a.step.page_table + (counts ? (size_t)a.step.row_slot[row] * a.step.pages_per_slot : 0);
    const uint32_t first = first_of(a, counts, row, position);
    const uint32_t visible = position + 1 - first;
    uint32_t pieces = div_up(visible, PIECE_MIN) < gridDim.x ? div_up(visible, PIECE_MIN) : gridDim.x;
    const uint32_t per_piece = div_up(visible, pieces);
    pieces = div_up(visible, per_piece);
    wait_for_previous();
    let_next_start();
    if (!counts || !has_token(a, false, position) || blockIdx.x >= pieces) return;
    const uint32_t begin = first + blockIdx.x * per_piece;
    const uint32_t end = begin + per_piece < position + 1 ? begin + per_piece : position + 1;

    float *qs = memory, *os = qs + G * head_dim, *ms = os + WARPS * G * head_dim, *ss = ms + WARPS * G;
    take_query<C, (uint32_t)D>(p, t, kv_head, head0, heads, position, pages, blockIdx.x == pieces - 1, qs,
                               os);
    __syncthreads(); /* q for all warps; and the block sees the k and v it has just appended */

    /* lanes a position takes, the positions a warp takes at once, and this lane's place */
    const uint32_t lanes = VECTOR ? lanes_of(head_dim) : 32;
    const uint32_t at_once = 32 / lanes, place = lane / lanes;
    const uint32_t first_dim = VECTOR ? (lane & (lanes - 1)) * 8 : lane;
    const uint32_t dim_step = VECTOR ? 1 : 32;
    float q[G][D];
    attention_sums<G, D> sums;
    sums_open(sums);
#pragma unroll
    for (int g = 0; g < G; g++)
#pragma unroll
        for (int j = 0; j < D; j++) {
            uint32_t d = lane_dim(first_dim, dim_step, j);
            q[g][j] = (uint32_t)g < heads && d < head_dim ? qs[g * head_dim + d] : 0.0f;
        }
    const int U = G * D > 32 ? 2 : 4; /* positions whose keys and values are in flight together */
    const uint32_t step = WARPS * at_once;
    const uint32_t page_shift = 31 - __clz((int)l.page_tokens), page_mask = l.page_tokens - 1;
    const kv_steps<C> steps(l);
    for (uint32_t base = begin; base < end; base += U * step) {
        attention_cells<U, D> c;
#pragma unroll
        for (int u = 0; u < U; u++) {
            uint32_t at = base + u * step + warp * at_once + place;
            uint32_t page = at < end ? pages[at >> page_shift] : GPUK_PAGE_ABSENT;
            c.seen[u] = page != GPUK_PAGE_ABSENT;
            if (c.seen[u]) {
                const unsigned char *rows = kv_rows(a.kv, page, 0, kv_head);
                const unsigned char *numbers = rows + (size_t)(at & page_mask) * steps.number;
                const unsigned char *scales = rows + steps.scales_at + (size_t)(at & page_mask) * steps.scale;
                cell_load<C, VECTOR, D>(numbers, scales, first_dim, head_dim, c.k[u], c.k_scale[u]);
                cell_load<C, VECTOR, D>(numbers + steps.to_values, scales + steps.to_values, first_dim,
                                        head_dim, c.v[u], c.v_scale[u]);
            } else {
#pragma unroll
                for (int j = 0; j < D; j++) c.k[u][j] = 0, c.v[u][j] = 0;
#pragma unroll
                for (int part = 0; part < D / 8; part++) c.k_scale[u][part] = c.v_scale[u][part] = 1;
            }
        }
        sums_add(sums, heads, lanes, c, [&](int g, float *to) {
#pragma unroll
            for (int j = 0; j < D; j++) to[j] = q[g][j];
        });
    }
    sums_fold(sums, heads, lanes, first_dim, dim_step, head_dim, os, ms, ss);
    __syncthreads();
    finish_block<G, WARPS>(p, t, head0, heads, blockIdx.x, pieces,
                           p.counters + (size_t)t * gridDim.y + blockIdx.y, os, ms, ss, memory);
}

/* ---- launchers ---------------------------------------------------------------------------------- */

static size_t shared_bytes(int g, uint32_t head_dim)
{
    size_t pieces = merge_floats((uint32_t)g);
    size_t heads = (size_t)(WARPS + 1) * g * head_dim;
    /* take_query's scratch lies in o's place: one head a warp, whatever G */
    size_t scratch = (size_t)g * head_dim + WARPS * head_dim;
    size_t floats = heads > pieces ? heads : pieces;
    if (scratch > floats) floats = scratch;
    return (floats + 2 * WARPS * g) * sizeof(float);
}

extern "C" size_t gpuk_attention_counter_bytes(uint32_t tokens, uint32_t heads)
{
    return ((size_t)tokens * heads * sizeof(uint32_t) + 255) / 256 * 256;
}
extern "C" size_t gpuk_attention_workspace_bytes(uint32_t tokens, uint32_t heads, uint32_t head_dim)
{
    return gpuk_attention_counter_bytes(tokens, heads) +
           (size_t)tokens * heads * GPUK_SPLITS_MAX * (2 + head_dim) * sizeof(float);
}

typedef void (*decode_kernel)(decode_params);
#define PAIR(C, G, D)                                                                                        \
    {                                                                                                        \
        attention_decode_kernel<C, G, false, D>, attention_decode_kernel<C, G, true, D>                      \
    }
#define KERNELS(C)                                                                                           \
    {                                                                                                        \
        PAIR(C, 1, DIMS_USUAL), PAIR(C, 4, DIMS_USUAL), PAIR(C, 8, DIMS_USUAL), PAIR(C, 1, DIMS_WIDE),       \
            PAIR(C, 4, DIMS_WIDE), PAIR(C, 1, DIMS_MOST), PAIR(C, 2, DIMS_MOST)                              \
    }
/* [enum kv_dtype][shape][cells are read 16 bytes at a time]: query heads of a block, of usual heads, of wide
 * ones and of wider */
static const uint32_t SHAPES = 7, SHAPE_WIDE = 3, SHAPE_MOST = 5, group_sizes[SHAPES] = {1, 4, 8, 1, 4, 1, 2};
static const decode_kernel kernels[KV_DTYPE_COUNT][SHAPES][2] = BY_KV_DTYPE(KERNELS);
static uint32_t shape_of(uint32_t group, uint32_t head_dim)
{
    const bool wide = head_dim > HEAD_DIM_USUAL;
    if (head_dim > HEAD_DIM_WIDE) return SHAPE_MOST + (group > 1);
    return (wide ? SHAPE_WIDE : 0) + (group == 1 ? 0 : group <= 4 || wide ? 1 : 2);
}

int gpuk_prepare_attention_decode(const struct gpuk_device *device, struct helm_err *err)
{
    int rc = HELM_OK;
    for (const auto &type : kernels)
        for (const auto &shape : type)
            for (const decode_kernel kernel : shape)
                if (!rc) rc = gpuk_prepare("decode attention", kernel, 0, err);
    if (!rc && device->tensor_cores) rc = decode_tensor_prepare(device, err);
    if (!rc) rc = decode_chained_prepare(device, err);
    return rc;
}

struct decode_params gpuk_decode_params(const struct gpuk_attention *args, uint32_t tokens, bool fused,
                                        float *out, void *workspace)
{
    const size_t pieces = (size_t)tokens * args->heads * GPUK_SPLITS_MAX;
    struct decode_params p = {};
    p.a = *args;
    p.out = out;
    p.fused = fused;
    p.counters = (uint32_t *)workspace;
    p.piece_o = (float *)((char *)workspace + gpuk_attention_counter_bytes(tokens, args->heads));
    p.piece_m = p.piece_o + pieces * args->kv.layout.head_dim;
    p.piece_s = p.piece_m + pieces;
    return p;
}

extern "C" int gpuk_attention_decode(const struct gpuk_device *device, const struct gpuk_attention *args,
                                     uint32_t tokens, bool fused, float *out, float *partial_m,
                                     float *partial_s, void *workspace, uint32_t flags, void *stream,
                                     struct helm_err *err)
{
    int rc = gpuk_attention_check("decode attention", args, tokens, err);
    if (rc) return rc;
    const bool alone = args->order >= GPUK_ORDER_ALONE, chained = args->order >= GPUK_ORDER_CHAINED_NEAR;
    if (!args->k != !args->v || ((fused || chained) && !args->k))
        return helm_fail(err, HELM_E_USAGE, "decode attention: without the token's key and value");
    if (args->k && args->kv.layout.latent)
        return helm_fail(err, HELM_E_USAGE, "decode attention: with a key of its own beside latents");
    if (chained && (partial_m || args->step.row_begin))
        return helm_fail(err, HELM_E_USAGE, "decode attention: as in a chain, but of a part of the context");
    if (args->order == GPUK_ORDER_SPREAD && !fused)
        return helm_fail(err, HELM_E_USAGE, "decode attention: spread, but not of one token, fused");
    if (tokens > 65535 || (fused && tokens != 1))
        return helm_fail(err, HELM_E_LIMIT, "decode attention: %u tokens (65535 at most, 1 when fused)",
                         tokens);
    const struct kv_layout *l = &args->kv.layout;
    uint32_t group = args->heads / l->kv_heads;
    const uint32_t size = shape_of(group, l->head_dim);
    struct decode_params p = gpuk_decode_params(args, tokens, fused, out, workspace);
    p.partial_m = partial_m;
    p.partial_s = partial_s;
    p.group_chunks = div_up(group, group_sizes[size]);
    if (chained) rc = decode_chained_launch(device, &p, tokens, flags, stream, err);
    if (rc || args->order >= GPUK_ORDER_CHAINED) return rc;
    if (decode_tensor_fits(device, args)) return decode_tensor_launch(device, &p, tokens, flags, stream, err);
    uint32_t blocks = l->kv_heads * p.group_chunks;
    uint32_t splits = 2 * (uint32_t)device->sm_count / (blocks * (alone ? 1 : tokens));
    splits = splits < 1 ? 1 : splits > GPUK_SPLITS_MAX ? GPUK_SPLITS_MAX : splits;
    bool vector = l->head_dim % 8 == 0 && ((size_t)args->kv.pool | (size_t)args->kv.pool_host) % 16 == 0;
    return gpuk_launch("decode attention", kernels[l->dtype][size][vector], dim3(splits, blocks, tokens),
                       dim3(THREADS), shared_bytes((int)group_sizes[size], l->head_dim), flags, stream, err,
                       p);
}
