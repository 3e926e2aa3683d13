/* Decode attention of several tokens, each with the bits of one token's in a chain: for invariant plans, whose one token is
 * decoded in chains.
 *
 * A token has as many blocks as a chain has, and they cut its context as a chain's would (chain_attention.cuh). Pieces of a head
 * meet in global memory here: whichever block is last adds them in a chain's order. Launched by attention_decode.cu for the
 * tokens below gpuk_attention's `chained`; the others are the other kernels'. Nothing is read of the cache before the
 * kernel in front is through: it may be the one that appends, and several tokens may be of one sequence. */
#include "worker-gpu/kernels/chain_attention.cuh"

typedef chain_shaped S;

/* One head's piece of several: kept, and in the last block to come all added up, as finish_words does. */
__device__ __forceinline__ void keep_piece(const decode_params &p, size_t head, const attention_cut &cut,
                                           uint32_t piece, uint32_t *counter, const float *os,
                                           const float *ms, const float *ss, float *memory)
{
    const uint32_t head_dim = p.a.kv.layout.head_dim;
    uint32_t *is_last = reinterpret_cast<uint32_t *>(memory);
    const size_t at = head * GPUK_SPLITS_MAX;
    for (uint32_t d = threadIdx.x; d < head_dim; d += S::THREADS) {
        const head_sum b = head_sum_of<1, S::WARPS>(0, d, head_dim, os, ms, ss);
        p.piece_o[(at + piece) * head_dim + d] = b.value;
        if (d == 0) p.piece_m[at + piece] = b.most, p.piece_s[at + piece] = b.sum;
    }
    __threadfence();
    S::meet();
    if (threadIdx.x == 0) *is_last = atomicAdd(counter, 1u) == cut.pieces - 1;
    S::meet();
    if (!*is_last) return;
    __threadfence();
    if (threadIdx.x == 0) *counter = 0; /* ready for the next step */
    const uint32_t last = cut.pieces - 1;
    for (uint32_t d = threadIdx.x; d < head_dim; d += S::THREADS) {
        head_sum b = {__ldcg(p.piece_m + at + last), __ldcg(p.piece_s + at + last),
                      __ldcg(p.piece_o + (at + last) * head_dim + d)};
        for (uint32_t i = 0; i < last; i++)
            add_piece(b, __ldcg(p.piece_m + at + i), __ldcg(p.piece_s + at + i),
                      __ldcg(p.piece_o + (at + i) * head_dim + d));
        put_out(p, head, d, b.value, b.most, b.sum);
    }
}

template <typename C>
__global__ void __launch_bounds__(S::THREADS)
    attention_chained_kernel(const __grid_constant__ decode_params p)
{
    SHARED_DYNAMIC(unsigned char, shared);
    __shared__ chain_token token;
    const gpuk_attention &a = p.a;
    const uint32_t t = blockIdx.y;
    let_next_start();
    wait_for_previous();
    if (t >= a.step.counts[0] || !has_token(a, true, a.step.position[t])) return;
    const attention_cut cut = cut_of(a, a.step.position[t], true);
    if (blockIdx.x >= cut.units) return;
    if (threadIdx.x == 0) {
        token.position = a.step.position[t];
        token.pages =
            a.step.page_table + (size_t)a.step.row_slot[a.step.token_row[t]] * a.step.pages_per_slot;
        token.page = token.pages[token.position / a.kv.layout.page_tokens];
        token.unit = unit_of(cut, blockIdx.x);
    }
    S::meet();
    const attention_seat seat = {t, 0};
    const auto pass = [&](uint32_t head, const attention_unit &unit, const float *os, const float *ms,
                          const float *ss, float *others) {
        keep_piece(p, (size_t)t * a.heads + head, cut, unit.piece, p.counters + t * a.heads + unit.share, os,
                   ms, ss, others);
    };
    const auto nothing = [] {};
    if (cut.heads == 1)
        chain_attend<S, C, 1>(p, seat, token, cut, shared, pass, nothing);
    else
        chain_attend<S, C, CHAIN_GROUP>(p, seat, token, cut, shared, pass, nothing);
}

typedef void (*chained_kernel)(decode_params);
#define KERNEL(C) attention_chained_kernel<C>
static const chained_kernel kernels[KV_DTYPE_COUNT] = BY_KV_DTYPE(KERNEL);

int decode_chained_prepare(const struct gpuk_device *device, struct helm_err *err)
{
    int rc = HELM_OK;
    for (int i = 0; i < KV_DTYPE_COUNT && !rc && device->bulk_copy; i++)
        rc = gpuk_prepare("decode attention, chained", kernels[i], 0, err);
    return rc;
}

int decode_chained_launch(const struct gpuk_device *device, const decode_params *params, uint32_t tokens,
                          uint32_t flags, void *stream, struct helm_err *err)
{
    const struct kv_layout *l = &params->a.kv.layout;
    if (!device->bulk_copy)
        return helm_fail(err, HELM_E_UNSUPPORTED,
                         "decode attention as in a chain, on a device without chains");
    const uint32_t heads = params->a.heads / l->kv_heads > 1 ? CHAIN_GROUP : 1;
    const size_t bytes = chain_attention_floats(S::WARPS, heads, l->head_dim) * sizeof(float);
    return gpuk_launch("decode attention, chained", kernels[l->dtype],
                       dim3((uint32_t)device->sm_count, tokens), dim3(S::THREADS), bytes, flags, stream, err,
                       *params);
}
