/* A chunk's products with experts on the matrix instructions of warpgroups (9.0): the first that is asked.
 * See experts.h and wide.cuh.
 *
 * An item is an expert, 256 of its rows, up to 128 of its tokens, gathered by their numbers; items of the
 * same rows are neighbours, so that weights come from memory once. For gate and up a warp has 8 rows of each,
 * so that both sums of an output meet in one lane. */
#include "worker-gpu/kernels/experts/experts.cuh"
#define WIDE_GROUPS 4
#include "worker-gpu/kernels/linear/wide.cuh"

static const int TOKENS_LEAST = 48; /* of an expert on average */

template <typename D> struct experts_work {
    typedef typename D::value value;
    const experts_chunk_params &q;
    const uint32_t *end; /* [experts] tiles of tokens up to an expert's */
    uint32_t items, cols, rows, row_tiles;
    uint64_t row_bytes;
    const void *x;
    bool two;

    __device__ __forceinline__ void item(uint32_t index, wide_item &item) const
    {
        const uint32_t e = experts_of_tile(end, q.experts, index / row_tiles), before = e ? end[e - 1] : 0,
                       tiles = end[e] - before, local = index - before * row_tiles,
                       first = __ldcg(q.first + e), all = __ldcg(q.first + e + 1) - first,
                       from = local % tiles * WIDE_TOKENS;
        const uint64_t slot = experts_slot(q.slot, q.experts, e);
        item.weight = q.role[0].weight + slot * q.role[0].stride;
        item.second = two ? q.role[1].weight + slot * q.role[1].stride : item.weight;
        item.row = local / tiles * (two ? WIDE_ROWS / 2 : WIDE_ROWS);
        item.first = 0, item.steps = cols / WIDE_STEP, item.owner = e;
        item.begin = first + from, item.tokens = all - from < WIDE_TOKENS ? all - from : WIDE_TOKENS;
    }
    __device__ __forceinline__ uint32_t source(const wide_item &item, uint32_t token) const
    {
        const uint32_t place = item.begin + token;
        return two ? __ldcg(q.pair + place) / q.chosen : place;
    }
    template <uint32_t N>
    __device__ __forceinline__ void store(const wide_item &item, const float sums[N][32]) const
    {
        const uint32_t lane = threadIdx.x & 31, warp = threadIdx.x >> 5,
                       row = item.row + warp * (two ? 8 : 16) + lane / 4;
        const uint64_t biases = (uint64_t)item.owner * q.rows;
        float bias[2] = {0, 0};
#pragma unroll
        for (uint32_t half = 0; half < 2; half++) {
            const float *from = q.role[two ? half : 0].bias;
            const uint32_t r = two ? row : row + half * 8;
            if (from && r < q.rows) bias[half] = from[biases + r];
        }
#pragma unroll
        for (uint32_t i = 0; i < N * 16; i++) {
            const uint32_t n = i / 16, s = i % 16 / 2 * 4 + i % 2,
                           token = n * 64 + s / 4 * 8 + (lane & 3) * 2 + i % 2;
            if (token >= item.tokens) continue;
            const uint64_t at = (uint64_t)(item.begin + token) * q.rows + row;
            const float first = sums[n][s] + bias[0], second = sums[n][s + 2] + bias[1];
            if (!two) {
                if (row < q.rows) static_cast<float *>(q.out)[at] = first;
                if (row + 8 < q.rows) static_cast<float *>(q.out)[at + 8] = second;
            } else if (row < q.rows) {
                experts_store(q, at, glu_value(q.glu, first, second));
            }
        }
    }
};

template <typename D>
__global__ void __launch_bounds__(WIDE_THREADS, 1)
    experts_wide(const __grid_constant__ experts_chunk_params q)
{
#ifdef WARPGROUP_MATRIX
    SHARED_DYNAMIC(unsigned char, shared);
    __shared__ uint32_t end[MODEL_EXPERTS_MAX], source[2 * WIDE_TOKENS];
    let_next_start();
    wait_for_previous();
    experts_tiles(q.first, q.experts, WIDE_TOKENS, end);
    const bool two = !q.down;
    const uint32_t row_tiles = div_up(q.rows, two ? WIDE_ROWS / 2 : WIDE_ROWS);
    const experts_work<D> work = {q,           end,    end[q.experts - 1] * row_tiles,
                                  q.cols,      q.rows, row_tiles,
                                  q.row_bytes, q.x,    two};
    const wide_loop<D, experts_work<D>> loop(work, shared, source);
    loop.run();
#endif
}

/* ---- launcher ------------------------------------------------------------------------------------- */

template <typename D> struct experts_wide_kernel {
    static const uint32_t OWN = 6144; /* bytes of shared memory that a block has besides */
    static constexpr uint32_t SHARED = wide_loop<D, experts_work<D>>::SHARED;

    static bool fits(const struct gpuk_device *device)
    {
        return device->warpgroups && SHARED + OWN <= (uint32_t)device->shared_bytes_max;
    }
    static bool takes(const struct experts_chunk_call &call)
    {
        const struct experts_chunk_params &p = call.params;
        /* with few tokens of each the other kernel's smaller items are done sooner */
        const int64_t least = call.device->experts_wide ? call.device->experts_wide : TOKENS_LEAST;
        if ((int64_t)call.tokens * p.chosen < least * p.experts) return false;
        size_t bits = (size_t)p.x;
        if (!D::SCALED) bits |= p.row_bytes;
        return fits(call.device) && bits % 16 == 0 && p.cols % WIDE_STEP == 0 &&
               wide_loop<D, experts_work<D>>::takes_steps(p.cols / WIDE_STEP);
    }
    static int launch(const struct experts_chunk_call &call, struct helm_err *err)
    {
        const struct experts_chunk_params &p = call.params;
        /* no more than there can be items: every expert may have one tile that is not full */
        const uint64_t tiles = (uint64_t)call.tokens * p.chosen / WIDE_TOKENS + p.experts,
                       items = tiles * div_up(p.rows, p.down ? WIDE_ROWS : WIDE_ROWS / 2),
                       most = (uint64_t)call.device->sm_count;
        return gpuk_launch("experts of a chunk", experts_wide<D>,
                           dim3((uint32_t)(items < most ? items : most)), dim3(WIDE_THREADS), SHARED,
                           call.flags, call.stream, err, p);
    }
    static int prepare(const struct gpuk_device *device, struct helm_err *err)
    {
        return fits(device) ? gpuk_prepare("experts of a chunk", experts_wide<D>, SHARED, err) : HELM_OK;
    }
};
template <typename D> static constexpr struct experts_chunk_kernel wide_of()
{
    if constexpr (sizeof(typename D::value) == 2)
        return {"wide", experts_wide_kernel<D>::takes, experts_wide_kernel<D>::launch,
                experts_wide_kernel<D>::prepare};
    return {};
}
#define WIDE(D) wide_of<D>()

bool gpuk_wide_built()
{
#if defined(HELM_SM90A) || defined(HELM_CUDA_EMULATED)
    return true;
#else
    return false;
#endif
}
experts_chunk_kernels experts_wide_kernels = BY_FORMAT(WIDE, {});
