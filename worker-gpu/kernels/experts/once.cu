/* One token's products with small experts of blocks: all weights on their way at once (9.0 and later). See
 * experts.h and linear/gemv_once.cu, which says why.
 *
 * Gates and ups: each block makes the choice for itself, then each warp asks for two rows of an expert's gate
 * and the same of its up. For down a warp has an expert, whose activations it alone needs, and the block's
 * rows of it; sums of experts meet in shared memory in order of choice. Its blocks begin when those of the
 * gates have what they waited for, so that the router's logits are there: they make the choice again, and
 * their weights are on the way while activations are computed. */
#include "worker-gpu/kernels/formats/decode.cuh"
#include "worker-gpu/kernels/experts/experts.cuh"
#include "worker-gpu/kernels/tile.cuh"

static const uint32_t GLU_WARPS = 16, GLU_PAIRS = 2, DOWN_PAIRS = 8, DOWN_WARPS = 8;

struct experts_once_params {
    struct experts_params of;
    uint32_t lines; /* of a row */
    uint32_t pairs; /* of an expert's rows; down: of a block's */
    uint32_t pitch; /* of down: bytes of a warp's rows; else from gate's to up's */
};
/* Shared memory, in this order. */
struct experts_once_memory {
    unsigned char *x, *ring;
    float *sums, *scratch, *weight; /* of down [rows][chosen], else [warps] squares; a choice's; [chosen] */
    uint32_t *id;
    uint64_t *barriers;
    __host__ __device__ size_t lay(unsigned char *at, const experts_once_params &q, uint32_t warps)
    {
        const experts_params &p = q.of;
        const uint32_t vectors = p.down ? warps : 1, sums = p.down ? 2 * q.pairs * warps : warps;
        x = at, ring = x + (size_t)vectors * q.lines * blocks_x::LINE_QUADS * 16;
        sums_at(ring + (size_t)warps * (p.down ? 1 : 2) * q.pitch, sums,
                p.routes || p.again ? 2 * p.experts : 0);
        barriers = reinterpret_cast<uint64_t *>(id + 32);
        return (size_t)(reinterpret_cast<unsigned char *>(barriers + warps) - at);
    }
    __host__ __device__ void sums_at(unsigned char *at, uint32_t count, uint32_t scratched)
    {
        sums = reinterpret_cast<float *>(at), scratch = sums + (count + 3) / 4 * 4;
        weight = scratch + (scratched + 3) / 4 * 4, id = reinterpret_cast<uint32_t *>(weight + 32);
    }
};
static_assert(MODEL_EXPERTS_CHOSEN_MAX <= 32, "a choice has room");

/* The choice, for the block: made here, or as a kernel in front has left it. Down takes the weights, too. */
__device__ __forceinline__ void once_choice(const experts_params &p, const experts_once_memory &m)
{
    const uint32_t i = threadIdx.x, chosen = p.choice.chosen;
    if (!p.routes && !p.again) {
        if (i < chosen) m.id[i] = __ldcg(p.choice.id + i);
        if (i < chosen && p.down) m.weight[i] = __ldcg(p.choice.weight + i);
        __syncthreads();
        return;
    }
    const bool stores = p.routes && blockIdx.x == 0;
    experts_rank(p.router, p.logits, p.choice_bias, m.scratch, m.id, m.weight, blockDim.x, stores || p.down);
    __syncwarp();
    if (stores && i < chosen) p.choice.id[i] = m.id[i], p.choice.weight[i] = m.weight[i];
}

template <typename D>
__global__ void __launch_bounds__(GLU_WARPS * 32)
    experts_once_glu(const __grid_constant__ experts_once_params q)
{
    const experts_params &p = q.of;
    SHARED_DYNAMIC(unsigned char, shared);
    experts_once_memory m;
    const uint32_t warps = blockDim.x >> 5, warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    m.lay(shared, q, warps);
    const uint32_t barrier = shared_address(m.barriers + warp), row_bytes = (uint32_t)p.row_bytes;
    if (lane == 0) bulk_barriers_open(barrier, 1);
    __syncwarp();
    wait_for_previous();
    let_next_start();
    once_choice(p, m);
    const uint32_t task = blockIdx.x * warps + warp, j = task / q.pairs,
                   row = (task - j * q.pairs) * GLU_PAIRS,
                   expert = j < p.choice.chosen ? m.id[j] : GPUK_SLOT_ABSENT, left = p.rows - row,
                   rows = expert >= p.experts ? 0
                          : left < GLU_PAIRS  ? left
                                              : GLU_PAIRS;
    unsigned char *ring = m.ring + (size_t)warp * 2 * q.pitch;
    const uint32_t beside = D::LOOSE ? row * row_bytes & 15 : 0; /* matrices begin on 16 bytes */
    if (rows > 0 && lane == 0) {
        tile_window w[2];
        for (uint32_t r = 0; r < 2; r++)
            w[r] = tile_window_of(p.role[r].at(expert) + (uint64_t)row * row_bytes, rows * row_bytes);
        bulk_expect(barrier, w[0].bytes + w[1].bytes);
        for (uint32_t r = 0; r < 2; r++)
            bulk_copy(shared_address(ring) + r * q.pitch, w[r].from, w[r].bytes, barrier);
    }
    __syncwarp();
    float4 *x4 = reinterpret_cast<float4 *>(m.x);
    const float squares = warp_sum(blocks_x::put_all(p.x, p.norm, p.cols, x4, threadIdx.x, blockDim.x));
    if (lane == 0) m.sums[warp] = squares;
    __syncthreads();
    if (rows == 0) return;
    const float scale = norm_scale(p, m.sums, warps);
    bulk_wait(barrier, 0);
    /* gate's and up's first row, then their second */
    uint32_t row_at[4];
    for (uint32_t r = 0; r < 4; r++)
        row_at[r] =
            (uint32_t)(ring - shared) + beside + (r & 1) * q.pitch + (r / 2 < rows ? r / 2 * row_bytes : 0);
    float sum[4] = {0, 0, 0, 0};
    const float4 *x = x4;
#pragma unroll
    for (uint32_t r = 0; r < 4; r += 2, x = x4)
#pragma unroll 1
        for (uint32_t at = 0; at < row_bytes; at += D::LINE_BYTES, x += D::LINE_QUADS)
            D::line_add(shared + row_at[r] + at, shared + row_at[r + 1] + at, row_bytes - at, x, sum[r],
                        sum[r + 1]);
#pragma unroll
    for (uint32_t r = 0; r < 4; r++) sum[r] = warp_sum(sum[r]) * scale;
    if (lane >= rows) return;
    float gate = lane ? sum[2] : sum[0], up = lane ? sum[3] : sum[1];
    const uint64_t at = (uint64_t)expert * p.rows + row + lane;
    if (p.role[0].bias) gate += p.role[0].bias[at];
    if (p.role[1].bias) up += p.role[1].bias[at];
    p.out[(uint64_t)j * p.rows + row + lane] = glu_value(p.glu, gate, up);
}

template <typename D>
__global__ void __launch_bounds__(DOWN_WARPS * 32, 4)
    experts_once_down(const __grid_constant__ experts_once_params q)
{
    const experts_params &p = q.of;
    SHARED_DYNAMIC(unsigned char, shared);
    const uint32_t chosen = p.choice.chosen, warp = threadIdx.x >> 5, lane = threadIdx.x & 31,
                   row_bytes = (uint32_t)p.row_bytes, row = blockIdx.x * q.pairs * 2, left = p.rows - row,
                   rows = left < 2 * q.pairs ? left : 2 * q.pairs;
    experts_once_memory m;
    m.lay(shared, q, chosen);
    const uint32_t barrier = shared_address(m.barriers + warp), mine = row + threadIdx.x;
    unsigned char *ring = m.ring + (size_t)warp * q.pitch;
    if (lane == 0) bulk_barriers_open(barrier, 1);
    __syncwarp();
    if (!p.again) wait_for_previous();
    once_choice(p, m);
    const uint32_t expert = m.id[warp];
    const bool there = expert < p.experts;
    const uint32_t beside = D::LOOSE ? row * row_bytes & 15 : 0;
    if (there && lane == 0) {
        const tile_window w =
            tile_window_of(p.role[0].at(expert) + (uint64_t)row * row_bytes, rows * row_bytes);
        bulk_expect(barrier, w.bytes);
        bulk_copy(shared_address(ring), w.from, w.bytes, barrier);
    }
    __syncwarp();
    if (p.again) wait_for_previous();
    let_next_start();
    float total = threadIdx.x < rows && p.residual ? __ldcg(p.residual + mine) : 0.0f;
    float4 *x4 = reinterpret_cast<float4 *>(m.x) + (size_t)warp * q.lines * D::LINE_QUADS;
    blocks_x::put_all(p.x + (uint64_t)warp * p.cols, nullptr, p.cols, x4, lane, 32);
    __syncwarp();
    if (there) bulk_wait(barrier, 0);
    const uint32_t first = (uint32_t)(ring - shared) + beside;
    for (uint32_t r = 0; r < rows; r += 2) {
        const uint32_t one = first + r * row_bytes, other = r + 1 < rows ? one + row_bytes : one;
        float a = 0, b = 0;
        const float4 *x = x4;
#pragma unroll 1
        for (uint32_t at = 0; there && at < row_bytes; at += D::LINE_BYTES, x += D::LINE_QUADS)
            D::line_add(shared + one + at, shared + other + at, row_bytes - at, x, a, b);
        const float sum = tile_fold(tile_halves(a, b));
        if ((lane & 15) == 0) m.sums[(r + lane / 16) * chosen + warp] = sum;
    }
    __syncthreads();
    if (threadIdx.x >= rows) return;
    float sum = 0;
    for (uint32_t j = 0; j < chosen; j++) {
        if (m.id[j] >= p.experts) continue;
        float v = m.sums[threadIdx.x * chosen + j];
        if (p.role[0].bias) v += p.role[0].bias[(uint64_t)m.id[j] * p.rows + mine];
        sum += m.weight[j] * v;
    }
    p.out[mine] = total + sum;
}

/* ---- launcher */

/* How it is run; false: not here. */
template <typename D>
static bool shape_of(const struct experts_call &call, experts_once_params *q, uint32_t *blocks,
                     uint32_t *warps, size_t *shared)
{
    const struct gpuk_device *device = call.device;
    const struct experts_params &p = call.params;
    const uint32_t chosen = p.choice.chosen, row_pairs = div_up(p.rows, 2), sms = (uint32_t)device->sm_count;
    size_t bits = (size_t)p.x | (size_t)p.norm;
    for (uint32_t r = 0; r < (p.down ? 1u : 2u); r++) bits |= (size_t)p.role[r].weight | p.role[r].stride;
    if (!device->bulk_copy || p.tokens != 1 || p.slot || bits % 16 != 0 || p.cols % 4 != 0 ||
        (D::LOOSE ? false : p.row_bytes % 16 != 0) || p.row_bytes > 1u << 16 ||
        (p.routes && !experts_ranks(p.router)))
        return false;
    *q = {p, div_up((uint32_t)p.row_bytes, D::LINE_BYTES), 0, 0};
    const uint32_t slack = D::LOOSE ? TILE_SLACK : 0;
    if (p.down) {
        if (chosen > DOWN_WARPS) return false;
        q->pairs = div_up(row_pairs, sms);
        if (q->pairs > DOWN_PAIRS) q->pairs = DOWN_PAIRS;
        while (2 * q->pairs > chosen * 32) q->pairs--;
        q->pitch = (2 * q->pairs * (uint32_t)p.row_bytes + slack + 15) / 16 * 16;
        *blocks = div_up(row_pairs, q->pairs), *warps = chosen;
    } else {
        q->pairs = div_up(p.rows, GLU_PAIRS);
        q->pitch = (GLU_PAIRS * (uint32_t)p.row_bytes + slack + 15) / 16 * 16;
        *warps = GLU_WARPS;
        *blocks = div_up(chosen * q->pairs, *warps);
    }
    experts_once_memory m;
    *shared = m.lay(nullptr, *q, *warps);
    return *shared <= half_shared(device) && *blocks <= 8 * sms;
}
template <typename D> static bool once_takes(const struct experts_call &call)
{
    experts_once_params q;
    uint32_t blocks, warps;
    size_t shared;
    return shape_of<D>(call, &q, &blocks, &warps, &shared);
}
template <typename D> static int once_launch(const struct experts_call &call, struct helm_err *err)
{
    experts_once_params q;
    uint32_t blocks = 0, warps = 0;
    size_t shared = 0;
    shape_of<D>(call, &q, &blocks, &warps, &shared);
    return gpuk_launch("experts", q.of.down ? experts_once_down<D> : experts_once_glu<D>, dim3(blocks),
                       dim3(warps * 32), shared, call.flags, call.stream, err, q);
}
template <typename D> static int once_prepare(const struct gpuk_device *device, struct helm_err *err)
{
    int rc = HELM_OK;
    for (const auto kernel : {experts_once_down<D>, experts_once_glu<D>}) {
        if (!rc && device->bulk_copy) rc = gpuk_prepare("experts", kernel, half_shared(device), err);
        if (!rc && device->bulk_copy) rc = gpuk_prefer_shared("experts", kernel, err);
    }
    return rc;
}
template <typename D> static constexpr experts_kernel once_of()
{
    if constexpr (D::SCALED) return {"once", once_takes<D>, once_launch<D>, once_prepare<D>};
    return {};
}
#define ONCE(D) once_of<D>()
experts_kernels experts_once_kernels = BY_FORMAT(ONCE, {});
