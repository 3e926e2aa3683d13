/* A few tokens' products with experts in packed bf16, as they lie in VRAM, in slots or in host memory. See
 * experts.cu.
 *
 * The matrices of all experts of one role are one packed matrix, each expert a run of its groups. A slot has
 * the run of one; the table of offsets, of all experts, lies in front of the slots as it does in front of a
 * matrix (common/formats/packed.h). A warp has a *unit*: as many neighbouring rows as are whole packed tiles,
 * of one expert for one token. Lanes build their 32 values of a tile in registers and multiply them with x:
 * of gate and up two tiles of the same columns meet the same x, which lies normalised in shared memory; of
 * down a block's warps have the token's experts for the same rows, whose sums are added in the order of
 * choice. Columns are a multiple of 256, so that a tile's runs of 256 values have one row each. */
#include "worker-gpu/kernels/linear/packed_step.cuh"
#include "worker-gpu/kernels/experts/experts.cuh"

static const uint32_t THREADS = 256, WARPS = THREADS / 32, RUN = 256, RUNS = PACKED_TILE / RUN,
                      UNIT_ROWS_MAX = PACKED_TILE / RUN, BLOCKS_A_SM = 4;

struct packed_experts_params {
    experts_params p;
    uint32_t unit_rows, unit_tiles; /* of a unit */
    uint32_t units;                 /* of down: of a block */
    const uint32_t *offset[2];      /* of the roles: tables of all experts' groups */
};

/* ---- a unit's tiles ------------------------------------------------------------------------------- */

/* A packed group, and the first of a unit's tiles in it. */
struct packed_group {
    const unsigned char *at, *record, *list;
    const uint32_t *start;
    uint32_t base2, tile;
    bool raw;
};
/* The group of expert `id`, which lies in slot `slot`, from its row `row` on. */
static __device__ __forceinline__ packed_group group_at(const packed_experts_params &q, uint32_t r,
                                                        uint32_t id, uint32_t slot, uint32_t row)
{
    const experts_role &role = q.p.role[r];
    const uint32_t cols = q.p.cols, values = PACKED_ROWS * cols;
    const uint32_t *first = q.offset[r] + (size_t)id * (q.p.rows / PACKED_ROWS),
                   *offset = first + row / PACKED_ROWS;
    const uint32_t at = __ldg(offset), units = __ldg(offset + 1) - at;
    packed_group g;
    if (!q.p.slot)
        g.at = role.weight + (size_t)at * PACKED_ALIGN;
    else if (slot & GPUK_SLOT_HOST)
        g.at = role.host + (size_t)at * PACKED_ALIGN;
    else
        g.at = role.weight + slot * role.stride + (size_t)(at - __ldg(first)) * PACKED_ALIGN;
    g.raw = is_raw(units, values);
    g.tile = row % PACKED_ROWS * (cols / RUN) / RUNS;
    g.record = g.at + head_of(values);
    g.list = g.record + (size_t)tiles_of(values) * PACKED_TILE_BYTES;
    g.start = reinterpret_cast<const uint32_t *>(g.at + sizeof(struct packed_header));
    g.base2 = g.raw ? 0 : base_of_pair(__ldg(g.at + offsetof(struct packed_header, base)));
    return g;
}

/* The lane's values of tile `t` of a unit: of run k the 8 from lane * 8 on, two a word. room: the lane's own,
 * ROOM_PITCH bytes. */
static __device__ __forceinline__ void tile_values(const packed_group &g, uint32_t t, uint32_t lane,
                                                   unsigned char *room, uint4 unit[RUNS])
{
    const uint32_t tile = g.tile + t;
    if (g.raw) {
        const unsigned char *from = g.at + PACKED_ALIGN + (size_t)tile * PACKED_TILE * 2 + lane * 16;
#pragma unroll
        for (uint32_t k = 0; k < RUNS; k++) unit[k] = load_weight16(from + k * RUN * 2);
        return;
    }
    const tile_words words = load_words<false>(g.record + (size_t)tile * PACKED_TILE_BYTES, lane);
    const uint32_t begin = __ldg(g.start + tile), end = __ldg(g.start + tile + 1);
    decode_tile(words, g.base2, room);
    __syncwarp(); /* escapes' stores, of another type, stay after those of units */
    if (end != begin) put_many_escapes(words, g.list + begin, lane, room);
    __syncwarp();
    room_load(room, unit);
}

static __device__ __forceinline__ float dot8(const uint4 &w, const float4 &a, const float4 &b, float sum)
{
    const auto low = [](uint32_t pair) { return __uint_as_float(pair << 16); };
    const auto high = [](uint32_t pair) { return __uint_as_float(pair & 0xffff0000u); };
    sum = fmaf(low(w.x), a.x, sum), sum = fmaf(high(w.x), a.y, sum);
    sum = fmaf(low(w.y), a.z, sum), sum = fmaf(high(w.y), a.w, sum);
    sum = fmaf(low(w.z), b.x, sum), sum = fmaf(high(w.z), b.y, sum);
    sum = fmaf(low(w.w), b.z, sum), sum = fmaf(high(w.w), b.w, sum);
    return sum;
}

/* ---- gate and up ------------------------------------------------------------------------------------ */

/* Quad q of a vector in shared memory: quads of even and of odd number apart, so that lanes' neighbours are
 * neighbours. */
static __device__ __forceinline__ uint32_t quad_at(uint32_t q, uint32_t cols)
{
    return (q & 1) * (cols / 2) + q / 2 * 4;
}

/* x of a token to shared memory, normalised if there is a norm; by the block. */
static __device__ __forceinline__ void take_x(const experts_params &p, uint32_t token, float *x,
                                              float *scratch)
{
    const float4 *from = reinterpret_cast<const float4 *>(p.x + (uint64_t)token * p.x_stride);
    float squares = 0;
    for (uint32_t q = threadIdx.x; q < p.cols / 4; q += THREADS) {
        const float4 v = __ldcg(from + q);
        squares += v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w;
        *reinterpret_cast<float4 *>(x + quad_at(q, p.cols)) = v;
    }
    if (!p.norm) return;
    const float scale = rsqrtf(block_sum(squares, scratch) / (float)p.cols + p.eps);
    const float4 *norm = reinterpret_cast<const float4 *>(p.norm);
    for (uint32_t q = threadIdx.x; q < p.cols / 4; q += THREADS) {
        float4 *at = reinterpret_cast<float4 *>(x + quad_at(q, p.cols));
        const float4 n = norm[q];
        *at = make_float4(at->x * scale * n.x, at->y * scale * n.y, at->z * scale * n.z, at->w * scale * n.w);
    }
}

/* Rows of a unit's pair, one after another, to out. */
static __device__ __forceinline__ void glu_unit(const packed_experts_params &q, uint32_t pair, uint32_t id,
                                                uint32_t slot, uint32_t unit, const float *x,
                                                unsigned char *room)
{
    const experts_params &p = q.p;
    const uint32_t lane = threadIdx.x & 31, first = id * p.rows + unit * q.unit_rows;
    const packed_group gate = group_at(q, 0, id, slot, unit * q.unit_rows),
                       up = group_at(q, 1, id, slot, unit * q.unit_rows);
    uint32_t row = first, col = 0;
    float2 sum = make_float2(0, 0);
    for (uint32_t t = 0; t < q.unit_tiles; t++) {
        uint4 a[RUNS], b[RUNS];
        tile_values(gate, t, lane, room, a);
        __syncwarp();
        tile_values(up, t, lane, room, b);
        __syncwarp();
#pragma unroll
        for (uint32_t k = 0; k < RUNS; k++) {
            const uint32_t at = col / 4 + lane * 2;
            const float4 x0 = *reinterpret_cast<const float4 *>(x + quad_at(at, p.cols)),
                         x1 = *reinterpret_cast<const float4 *>(x + quad_at(at + 1, p.cols));
            sum.x = dot8(a[k], x0, x1, sum.x), sum.y = dot8(b[k], x0, x1, sum.y);
            col += RUN;
            if (col < p.cols) continue;
            float g = warp_sum(sum.x), u = warp_sum(sum.y);
            if (p.role[0].bias) g += p.role[0].bias[row];
            if (p.role[1].bias) u += p.role[1].bias[row];
            if (lane == 0) p.out[(uint64_t)pair * p.rows + (row - id * p.rows)] = glu_value(p.glu, g, u);
            sum = make_float2(0, 0), col = 0, row++;
        }
    }
}

__global__ void __launch_bounds__(THREADS) packed_glu(const __grid_constant__ packed_experts_params q)
{
    SHARED_DYNAMIC(float, x);
    __shared__ float scratch[32];
    __shared__ uint4 room[WARPS][32 * ROOM_PITCH / 16];
    const experts_params &p = q.p;
    wait_for_previous();
    let_next_start();
    const uint32_t pair = blockIdx.y, token = pair / p.choice.chosen, warp = threadIdx.x >> 5,
                   lane = threadIdx.x & 31, units = p.rows / q.unit_rows;
    if (token >= experts_tokens(p)) return;
    const uint32_t id = __ldcg(p.choice.id + pair), slot = experts_slot(p.slot, p.experts, id);
    if (slot == GPUK_SLOT_ABSENT) return;
    take_x(p, token, x, scratch);
    __syncthreads();
    for (uint32_t unit = blockIdx.x * WARPS + warp; unit < units; unit += gridDim.x * WARPS)
        glu_unit(q, pair, id, slot, unit, x,
                 reinterpret_cast<unsigned char *>(room[warp]) + lane * ROOM_PITCH);
}

/* ---- down ------------------------------------------------------------------------------------------- */

/* Rows of a unit times a pair's activations, to sums[unit_rows]. */
static __device__ __forceinline__ void down_unit(const packed_experts_params &q, uint32_t pair, uint32_t id,
                                                 uint32_t slot, uint32_t unit, unsigned char *room,
                                                 float *sums)
{
    const experts_params &p = q.p;
    const uint32_t lane = threadIdx.x & 31, first = id * p.rows + unit * q.unit_rows;
    const packed_group down = group_at(q, 0, id, slot, unit * q.unit_rows);
    const float4 *x = reinterpret_cast<const float4 *>(p.x + (uint64_t)pair * p.cols);
    uint32_t row = 0, col = 0;
    float sum = 0;
    for (uint32_t t = 0; t < q.unit_tiles; t++) {
        uint4 a[RUNS];
        tile_values(down, t, lane, room, a);
        __syncwarp();
#pragma unroll
        for (uint32_t k = 0; k < RUNS; k++) {
            const float4 *at = x + col / 4 + lane * 2;
            sum = dot8(a[k], __ldcg(at), __ldcg(at + 1), sum);
            col += RUN;
            if (col < p.cols) continue;
            float v = warp_sum(sum);
            if (p.role[0].bias) v += p.role[0].bias[first + row];
            if (lane == 0) sums[row] = v;
            sum = 0, col = 0, row++;
        }
    }
}

__global__ void __launch_bounds__(THREADS) packed_down(const __grid_constant__ packed_experts_params q)
{
    SHARED_DYNAMIC(float, sums); /* [units][chosen][UNIT_ROWS_MAX] */
    __shared__ uint4 room[WARPS][32 * ROOM_PITCH / 16];
    const experts_params &p = q.p;
    wait_for_previous();
    let_next_start();
    const uint32_t token = blockIdx.y, warp = threadIdx.x >> 5, lane = threadIdx.x & 31,
                   chosen = p.choice.chosen, units = p.rows / q.unit_rows, first = blockIdx.x * q.units;
    if (token >= experts_tokens(p)) return;
    for (uint32_t job = warp; job < q.units * chosen; job += WARPS) {
        const uint32_t unit = first + job / chosen, pair = token * chosen + job % chosen,
                       id = __ldcg(p.choice.id + pair), slot = experts_slot(p.slot, p.experts, id);
        if (unit < units && slot != GPUK_SLOT_ABSENT)
            down_unit(q, pair, id, slot, unit,
                      reinterpret_cast<unsigned char *>(room[warp]) + lane * ROOM_PITCH,
                      sums + job * UNIT_ROWS_MAX);
    }
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < q.units * q.unit_rows; i += THREADS) {
        const uint32_t unit = i / q.unit_rows, row = i % q.unit_rows;
        if (first + unit >= units) continue;
        const uint64_t at = (uint64_t)token * p.out_stride + (first + unit) * q.unit_rows + row;
        float total = 0;
        for (uint32_t j = 0; j < chosen; j++) {
            const uint32_t pair = token * chosen + j;
            if (experts_slot(p.slot, p.experts, __ldcg(p.choice.id + pair)) != GPUK_SLOT_ABSENT)
                total += __ldcg(p.choice.weight + pair) * sums[(unit * chosen + j) * UNIT_ROWS_MAX + row];
        }
        p.out[at] = (p.residual ? __ldcg(p.residual + at) : 0.0f) + total;
    }
}

/* ---- launchers -------------------------------------------------------------------------------------- */

static bool packed_takes_call(const struct experts_call &call)
{
    const experts_params &p = call.params;
    const bool x = (size_t)p.x % 16 == 0 && (size_t)p.norm % 16 == 0 && (p.down || p.x_stride % 4 == 0);
    return x && p.cols % RUN == 0 && p.rows % PACKED_ROWS == 0 && p.role[0].host &&
           (p.down || p.role[1].host) && p.cols * sizeof(float) <= 48 * 1024 - WARPS * 32 * ROOM_PITCH - 256;
}

static int packed_launch(const struct experts_call &call, struct helm_err *err)
{
    packed_experts_params q = {call.params, 1, 0, 1, {}};
    const experts_params &p = q.p;
    for (int r = 0; r < (p.down ? 1 : 2); r++) /* in front of the slots, or given */
        q.offset[r] = reinterpret_cast<const uint32_t *>(
            p.slot ? p.role[r].weight - packed_groups_at(p.experts * p.rows) : p.role[r].host);
    const uint32_t chosen = p.choice.chosen, pairs = p.tokens * chosen;
    uint32_t flags = call.flags;
    while (q.unit_rows * p.cols % PACKED_TILE) q.unit_rows *= 2;
    q.unit_tiles = q.unit_rows * p.cols / PACKED_TILE;
    const uint32_t units = p.rows / q.unit_rows;
    if (p.down) {
        if (chosen < WARPS) q.units = WARPS / chosen;
        return gpuk_launch("packed experts' down", packed_down, dim3(div_up(units, q.units), p.tokens),
                           dim3(THREADS), q.units * chosen * UNIT_ROWS_MAX * sizeof(float), flags,
                           call.stream, err, q);
    }
    if (p.routes) {
        const int rc = gpuk_route(&p.router, p.count, p.tokens, p.logits, p.choice_bias, &p.choice, flags,
                                  call.stream, err);
        if (rc) return rc;
        flags = 0;
    }
    const uint32_t all = div_up(units, WARPS),
                   most = div_up((uint32_t)call.device->sm_count * BLOCKS_A_SM, pairs);
    return gpuk_launch("packed experts", packed_glu, dim3(all < most ? all : most, pairs), dim3(THREADS),
                       p.cols * sizeof(float), flags, call.stream, err, q);
}

static int packed_prepare(const struct gpuk_device *, struct helm_err *err)
{
    const int rc = gpuk_prepare("packed experts", packed_glu, 0, err);
    return rc ? rc : gpuk_prepare("packed experts' down", packed_down, 0, err);
}

#define NONE(D)                                                                                              \
    {                                                                                                        \
    }
experts_kernels experts_packed_kernels =
    BY_FORMAT(NONE, {"packed", packed_takes_call, packed_launch, packed_prepare});
