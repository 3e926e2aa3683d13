/* Decode attention of several tokens, each with the bits of one token's in a chain: for invariant plans,
 * whose one token is decoded in chains.
 *
 * A token's context is cut as a chain's blocks would cut it (chain/attention.cuh). Where a chain has a block
 * for each head's piece, a block here has that piece of several heads of a kv head: keys and values are read
 * once, and each head's sums are in the same order. Pieces of a head meet in global memory: whichever block
 * is last adds them in a chain's order. Launched by attention/decode.cu for the tokens below gpuk_attention's
 * `chained`; the others are the other kernels'. No number of the cache is read before the kernel in front is
 * through: it may be the one that appends, and several tokens may be of one sequence.
 *
 * And decode attention of one token that is no part of a chain, as in mixtures (GPUK_ORDER_SPREAD): short
 * contexts are read sooner by a block a head and piece. */
#include "worker-gpu/kernels/chain/attention.cuh"

typedef chain_shaped S;

/* A piece of several of each of a unit's heads: kept, and in the last block to come all added up, as
 * finish_words does. */
template <int G> struct keep_pieces {
    static const bool SEVERAL = true;
    const decode_params &p;
    uint32_t t;
    const attention_cut &cut;
    __device__ __forceinline__ void operator()(uint32_t head, uint32_t heads, const attention_unit &unit,
                                               const float *os, const float *ms, const float *ss,
                                               float *memory) const
    {
        const uint32_t head_dim = p.a.kv.layout.head_dim, last = cut.pieces - 1;
        const size_t first = ((size_t)t * p.a.heads + head) * GPUK_SPLITS_MAX;
        uint32_t *is_last = reinterpret_cast<uint32_t *>(memory),
                 *counter = p.counters + t * p.a.heads + unit.share;
        for (uint32_t i = threadIdx.x; i < heads * head_dim; i += S::THREADS) {
            const uint32_t g = i / head_dim, d = i - g * head_dim;
            const size_t at = first + g * GPUK_SPLITS_MAX + unit.piece;
            const head_sum b = head_sum_of<G, S::WARPS>(g, d, head_dim, os, ms, ss);
            p.piece_o[at * head_dim + d] = b.value;
            if (d == 0) p.piece_m[at] = b.most, p.piece_s[at] = b.sum;
        }
        S::meet();
        if (threadIdx.x == 0) *is_last = count_arrival(counter) == last;
        S::meet();
        if (!*is_last) return;
        if (threadIdx.x == 0) *counter = 0; /* ready for the next step */
        for (uint32_t i = threadIdx.x; i < heads * head_dim; i += S::THREADS) {
            const uint32_t g = i / head_dim, d = i - g * head_dim;
            const size_t at = first + g * GPUK_SPLITS_MAX;
            const float *m = p.piece_m + at, *s = p.piece_s + at, *o = p.piece_o + at * head_dim + d;
            head_sum b = {__ldcg(m + last), __ldcg(s + last), __ldcg(o + (size_t)last * head_dim)};
#pragma unroll 4
            for (uint32_t c = 0; c < last; c++)
                add_piece(b, __ldcg(m + c), __ldcg(s + c), __ldcg(o + (size_t)c * head_dim));
            put_out(p, (size_t)t * p.a.heads + head + g, d, b.value, b.most, b.sum);
        }
    }
};

/* A thread a position. */
__device__ __forceinline__ void ask_rows(const gpuk_kv &kv, const uint32_t *pages, const attention_unit &unit)
{
    const kv_layout &l = kv.layout;
    const uint32_t at = unit.begin + threadIdx.x, bytes = kv_number_bytes(l.dtype, l.head_dim);
    const uint32_t page = at < unit.end ? pages[at / l.page_tokens] : GPUK_PAGE_ABSENT;
    if (page == GPUK_PAGE_ABSENT || page & GPUK_PAGE_HOST) return;
    for (uint32_t is_value = 0; is_value < 2; is_value++) {
        const unsigned char *row =
            kv_rows(kv, page, is_value, unit.kv_head) + (at & (l.page_tokens - 1)) * bytes;
        for (uint32_t i = 0; i < bytes; i += 128) ask_l2(row + i);
    }
}

/* A block a head and piece, of one token: pieces for half a multiprocessor's blocks. */
static const uint32_t SPREAD_PIECES = 16, SPREAD_LEAST = 64;
__device__ __forceinline__ void cut_spread(const gpuk_attention &a, uint32_t blocks, attention_cut &cut)
{
    const uint32_t visible = cut.end - cut.first, most = div_up(visible, SPREAD_LEAST);
    uint32_t pieces = 2 * blocks / a.heads;
    if (pieces > SPREAD_PIECES) pieces = SPREAD_PIECES;
    if (pieces > most) pieces = most;
    if (pieces < 1) pieces = 1;
    cut.words = true, cut.heads = 1, cut.chunks = a.heads / a.kv.layout.kv_heads;
    cut.per_piece = div_up(visible, pieces), cut.pieces = div_up(visible, cut.per_piece);
    cut.units = a.heads * cut.pieces;
}

/* blocks: a chain's. G: heads of a unit; 1: spread. */
template <typename C, int G>
__global__ void __launch_bounds__(S::THREADS, 2)
    attention_chained_kernel(const __grid_constant__ decode_params p, uint32_t blocks)
{
    SHARED_DYNAMIC(unsigned char, shared);
    __shared__ chain_token token;
    const gpuk_attention &a = p.a;
    const uint32_t t = blockIdx.y;
    const bool counts = t < a.step.counts[0] && (G == 1 || has_token(a, true, a.step.position[t]));
    attention_cut cut = cut_of(a, counts ? a.step.position[t] : 0, true, blocks);
    if (G == 1) {
        cut_spread(a, blocks, cut);
    } else if (cut.heads == 1) {
        const uint32_t kv_heads = a.kv.layout.kv_heads;
        cut.heads = CHAIN_GROUP, cut.chunks = div_up(a.heads / kv_heads, CHAIN_GROUP);
        cut.units = kv_heads * cut.chunks * cut.pieces;
    }
    const bool works = counts && blockIdx.x < cut.units;
    if (works) { /* where the cache is, and what of it is there already into the L2, while the kernel in front
                    ends */
        const uint32_t *pages =
            a.step.page_table + (size_t)a.step.row_slot[a.step.token_row[t]] * a.step.pages_per_slot;
        const attention_unit unit = unit_of(cut, blockIdx.x);
        if (threadIdx.x == 0) {
            token.position = a.step.position[t];
            token.pages = pages;
            token.page = pages[token.position / a.kv.layout.page_tokens];
            token.unit = unit;
        }
        ask_rows(a.kv, pages, unit);
    }
    wait_for_previous();
    let_next_start();
    if (!works) return;
    S::meet();
    const attention_seat seat = {t, 0};
    const keep_pieces<G> pass = {p, t, cut};
    chain_attend<S, C, G>(p, seat, token, cut, shared, pass, [] {});
}

typedef void (*chained_kernel)(decode_params, uint32_t);
#define KERNEL(C) attention_chained_kernel<C, CHAIN_GROUP>
#define SPREAD(C) attention_chained_kernel<C, 1>
/* [spread] */
static const chained_kernel kernels[2][KV_DTYPE_COUNT] = {BY_KV_DTYPE(KERNEL), BY_KV_DTYPE(SPREAD)};

int decode_chained_prepare(const struct gpuk_device *device, struct helm_err *err)
{
    int rc = HELM_OK;
    for (int i = 0; i < 2 * KV_DTYPE_COUNT && !rc && device->bulk_copy; i++)
        rc = gpuk_prepare("decode attention, chained", kernels[i / KV_DTYPE_COUNT][i % KV_DTYPE_COUNT], 0,
                          err);
    return rc;
}

int decode_chained_launch(const struct gpuk_device *device, const decode_params *params, uint32_t tokens,
                          uint32_t flags, void *stream, struct helm_err *err)
{
    const struct kv_layout *l = &params->a.kv.layout;
    if (!device->bulk_copy)
        return helm_fail(err, HELM_E_UNSUPPORTED,
                         "decode attention as in a chain, on a device without chains");
    if (l->head_dim > GPUK_CHAIN_HEAD_DIM_MAX)
        return helm_fail(err, HELM_E_UNSUPPORTED, "decode attention as in a chain: head_dim %u (1 to %d)",
                         l->head_dim, GPUK_CHAIN_HEAD_DIM_MAX);
    /* and keep_pieces' word after a unit's */
    const size_t bytes = (chain_attention_floats(S::WARPS, CHAIN_GROUP, l->head_dim) + 1) * sizeof(float);
    /* units of short contexts; of long ones the blocks take several each */
    const bool spread = params->a.order == GPUK_ORDER_SPREAD;
    const uint32_t group = params->a.heads / l->kv_heads, sms = (uint32_t)device->sm_count;
    const uint32_t pieces = div_up(2 * sms, params->a.heads),
                   units = spread ? params->a.heads * (pieces < SPREAD_PIECES ? pieces : SPREAD_PIECES)
                                  : l->kv_heads * div_up(group, CHAIN_GROUP) * CHAIN_PIECES;
    return gpuk_launch("decode attention, chained", kernels[spread][l->dtype], dim3(units, tokens),
                       dim3(S::THREADS), bytes, flags, stream, err, *params, (uint32_t)device->sm_count);
}
