/* Lists of chains (chain.cu): which operations one can take, and how it lies in device memory.
 *
 * Called through worker-gpu/kernels/kernels.h when a program is made. */
#include "worker-gpu/kernels/chain/chain.cuh"
#include "worker-gpu/kernels/chain/attention.cuh"
#include "worker-gpu/kernels/chain/delta.cuh"
#include "worker-gpu/kernels/chain/plan.cuh"

#include <algorithm>
#include <vector>

static const uint32_t SLOTS_MAX = 64, PITCH_MIN = 2048; /* of a ring */

#define LINES(D) chain_lines_of<D>::lines
static const struct chain_lines lines_by_format[FORMAT_COUNT] = BY_FORMAT(LINES, {});

/* Tiles of a row: as few as tiles of `most` bytes allow, all but the last of one size, in whole lines. */
static uint32_t chunks_of(const struct chain_lines &lines, uint32_t row_bytes, uint32_t most)
{
    return div_up(row_bytes, lines.within(most));
}
static uint32_t tile_of(const struct chain_lines &lines, uint32_t row_bytes, uint32_t most)
{
    return div_up(div_up(row_bytes, lines.bytes), chunks_of(lines, row_bytes, most)) * lines.bytes;
}

/* With blocks, tiles of `steady` products do not depend on what else is in the chain. */
static bool is_steady(const struct gpuk_chain_op *op)
{
    return op->kind == GPUK_CHAIN_LINEAR && op->linear.steady && !tensor_format_is_plain(op->linear.format);
}
static uint32_t most_of(const struct gpuk_linear_args *args, uint32_t pitch)
{
    const struct chain_lines &lines = lines_by_format[args->format];
    if (!args->steady || tensor_format_is_plain(args->format)) return pitch;
    const uint32_t row_lines =
        div_up((uint32_t)tensor_format_row_bytes(args->format, args->cols), lines.bytes);
    return steady_lines(row_lines, lines.bytes, lines.loose) * lines.bytes + (lines.loose ? TILE_SLACK : 0);
}

/* Bytes of rows that tiles of at most `pitch` hold, of those they take. */
static double filled(const struct gpuk_chain_op *op, uint32_t count, uint32_t pitch)
{
    double rows_bytes = 0, taken = 0;
    for (uint32_t i = 0; i < count; i++) {
        if (!has_tiles(&op[i])) continue;
        const struct gpuk_linear_args &a = op[i].linear;
        const uint32_t row_bytes = (uint32_t)tensor_format_row_bytes(a.format, a.cols);
        for (uint32_t s = 0; s < a.segments; s++) {
            const double rows = a.segment[s].rows;
            rows_bytes += rows * row_bytes;
            taken += rows * chunks_of(lines_by_format[a.format], row_bytes, most_of(&a, pitch)) * pitch;
        }
    }
    return taken > 0 ? rows_bytes / taken : 1;
}

/* Shared memory of a unit of attention of `heads` heads. */
static uint32_t attention_bytes(uint32_t heads, uint32_t head_dim)
{
    return (chain_attention_floats(chain_shaped::WARPS, heads, head_dim) * 4 + 127) / 128 * 128;
}

/* Bytes of x of a linear operation: whole lines. */
static uint32_t x_bytes_of(const struct gpuk_linear_args *a)
{
    struct helm_err unused = {};
    struct linear_params params;
    if (gpuk_linear_params("chain", a, &params, &unused)) return 0;
    const struct chain_lines &lines = lines_by_format[a->format];
    if (!lines.bytes || !(lines.loose ? gpuk_linear_begins(a) : gpuk_linear_aligned(a))) return 0;
    if (((size_t)a->x | (size_t)a->norm) % 16 != 0 || params.row_bytes > UINT32_MAX / 4) return 0;
    const uint32_t row_bytes = (uint32_t)params.row_bytes;
    if (chunks_of(lines, row_bytes, chain_shaped::TILE) > CHAIN_SUMS / 2) return 0;
    return div_up(row_bytes, lines.bytes) * lines.x_bytes;
}

/* Shared memory of a gated delta net's rule, of heads that a block's registers hold. */
static uint32_t delta_bytes(const struct gpuk_delta *d)
{
    struct helm_err unused = {};
    if (gpuk_delta_check("chain", d, 1, &unused) || d->key_dim > CHAIN_DELTA_DIM ||
        d->value_dim > CHAIN_DELTA_DIM)
        return 0;
    return ((uint32_t)rule_shared<CHAIN_DELTA_ROWS, 1>::bytes(d->value_dim) + 127) / 128 * 128;
}

/* Shared memory that an operation's x, attention or rule takes; 0 when a chain cannot take the operation. */
static uint32_t region_of(const struct gpuk_chain_op *op)
{
    struct helm_err unused = {};
    switch (op->kind) {
    case GPUK_CHAIN_LINEAR:
        return x_bytes_of(&op->linear);
    case GPUK_CHAIN_CONVOLVE:
    case GPUK_CHAIN_DELTA:
        return delta_bytes(&op->delta);
    default:
        break;
    }
    if (op->kind != GPUK_CHAIN_ATTENTION) return 0;
    const struct gpuk_attention *a = &op->attention.args;
    if (gpuk_attention_check("chain", a, 1, &unused)) return 0;
    const struct kv_layout *l = &a->kv.layout;
    if (l->head_dim % 8 != 0 || l->head_dim > GPUK_CHAIN_HEAD_DIM_MAX ||
        ((size_t)a->kv.pool | (size_t)a->kv.pool_host) % 16 != 0)
        return 0;
    const uint32_t group = a->heads / l->kv_heads < CHAIN_GROUP ? a->heads / l->kv_heads : CHAIN_GROUP;
    /* a unit of two or three heads is laid out as one of CHAIN_GROUP */
    return attention_bytes(group > 1 ? CHAIN_GROUP : 1, l->head_dim);
}

/* And the weights of its norm. */
static uint32_t norm_bytes_of(const struct gpuk_chain_op *op)
{
    return has_tiles(op) && op->linear.norm ? (op->linear.cols * 4 + 127) / 128 * 128 : 0;
}

extern "C" bool gpuk_chain_takes(const struct gpuk_device *device, const struct gpuk_chain_op *op)
{
    const uint32_t region = region_of(op), pitch = is_steady(op) ? STEADY_TILE : PITCH_MIN;
    return device->bulk_copy && region > 0 &&
           chain_shared_bytes(2 * chain_shaped::WARPS, pitch, region, norm_bytes_of(op)) <=
               (size_t)device->shared_bytes_max;
}

static size_t list_bytes(uint32_t count)
{
    return (CHAIN_HEADER_BYTES + (size_t)count * (sizeof(chain_weights) + sizeof(chain_item)) + 255) / 256 *
           256;
}
static_assert(GPUK_CHAIN_HEAD_DIM_MAX == HEAD_DIM_USUAL, "a lane holds as many dimensions");
static_assert((CHAIN_HEADER_BYTES + 2 * (sizeof(chain_weights) + sizeof(chain_item)) + 255) / 256 * 256 * 2 <=
                  3 * GPU_CHAIN_OP_BYTES,
              "a list of two operations has room in three places, as the ledger charges them");
/* Words for the pieces of attention. */
static uint64_t words_of(const struct gpuk_chain_op *op, uint32_t count)
{
    uint64_t words = 0;
    for (uint32_t i = 0; i < count; i++) {
        if (op[i].kind != GPUK_CHAIN_ATTENTION) continue;
        const struct gpuk_attention *a = &op[i].attention.args;
        words = std::max(words, (uint64_t)a->heads * GPUK_CHAIN_PIECES * (a->kv.layout.head_dim + 2));
    }
    return words;
}
extern "C" size_t gpuk_chain_bytes(const struct gpuk_chain_op *op, uint32_t count)
{
    if (!op) return list_bytes(count);
    return list_bytes(count) + (words_of(op, count) * sizeof(uint64_t) + 255) / 256 * 256;
}

static struct chain_weights weights_of(const struct gpuk_linear_args *args, const struct linear_params *p,
                                       uint32_t blocks, uint32_t start, uint32_t pitch)
{
    struct chain_weights w = {};
    const struct chain_lines &lines = lines_by_format[args->format];
    const uint32_t row_bytes = (uint32_t)p->row_bytes, most = most_of(args, pitch);
    w.pair_bytes = args->swiglu ? row_bytes : 2 * row_bytes;
    for (uint32_t s = 0; s < GPUK_SEGMENTS_MAX; s++) {
        w.end[s] = UINT32_MAX;
        if (s >= (args->swiglu ? 1 : args->segments)) continue;
        const uint32_t before = s ? p->segment[s - 1].pair_end : 0;
        w.base[s] =
            (const unsigned char *)((uintptr_t)p->segment[s].weight - (uint64_t)before * w.pair_bytes);
        w.end[s] = p->segment[s].pair_end;
        if (!args->swiglu && p->segment[s].rows % 2) w.odd |= 1u << s;
    }
    w.to_second =
        args->swiglu ? (uintptr_t)p->segment[1].weight - (uintptr_t)p->segment[0].weight : row_bytes;
    w.chunks = chunks_of(lines, row_bytes, most);
    w.tile = tile_of(lines, row_bytes, most);
    w.last_bytes = row_bytes - (w.chunks - 1) * w.tile;
    w.loose = !gpuk_linear_aligned(args) || (w.chunks > 1 && w.tile % 16 != 0); /* or tiles do not */
    w.part = w.tile % 2048 == 0 ? 2048 : lines.within(chain_shaped::PART);      /* whole parts are quickest */
    w.start = start;
    w.whole = p->pairs / blocks;
    w.extra = p->pairs % blocks;
    w.ask_pairs = chain_askers(pitch) / w.chunks;
    w.ask_chunks = chain_askers(pitch) % w.chunks;
    w.use_pairs = chain_shaped::WARPS / w.chunks;
    w.use_chunks = chain_shaped::WARPS % w.chunks;
    w.format = args->format;
    return w;
}

/* Where in the region attention's block may hold keys and values while the operation in front is running; 0
 * where it may not. */
static uint32_t held_at(const struct gpuk_chain_op *front, const struct gpuk_chain_op *attention)
{
    const struct kv_layout *l = &attention->attention.args.kv.layout;
    if (front->kind != GPUK_CHAIN_LINEAR || kv_cell_bytes(l->dtype, 8) != 16 ||
        HELD * chain_shaped::WARPS * (32 / lanes_of(l->head_dim)) > HELD_POSITIONS_MAX)
        return 0;
    /* units of several heads hold nothing */
    const uint32_t before = region_of(front), own = attention_bytes(1, l->head_dim);
    return before > own ? before : own;
}

/* One token's step, the same for every attention operation; page tables may differ, whose lines are the
 * same. */
static bool same_step(const struct gpuk_step *a, const struct gpuk_step *b)
{
    return a->counts == b->counts && a->position == b->position && a->token_row == b->token_row &&
           a->row_slot == b->row_slot && a->pages_per_slot == b->pages_per_slot;
}

/* The ring: half a slot's bytes, and slots, as many of each computing warp: one that found another's slot
 * before that had taken the round in front would take that round for its own. The fullest ring that fits; of
 * equals the one with the larger tiles. */
struct ring_shape {
    uint32_t pitch, slots;
};
static struct ring_shape ring_of(const struct gpuk_device *device, const struct gpuk_chain_op *op,
                                 uint32_t count, uint32_t region, uint32_t norm)
{
    const uint32_t pitches[] = {PITCH_MIN, 2560, chain_shaped::TILE};
    struct ring_shape best = {PITCH_MIN, 0};
    double most = 0;
    bool steady = false;
    for (uint32_t i = 0; i < count; i++) steady |= is_steady(&op[i]);
    for (const uint32_t pitch : pitches) {
        if (steady && pitch < STEADY_TILE) continue;
        uint32_t slots =
            device->gemv_slots > 0 ? (uint32_t)device->gemv_slots * chain_shaped::WARPS : SLOTS_MAX;
        if (slots > SLOTS_MAX) slots = SLOTS_MAX;
        slots = slots / chain_shaped::WARPS * chain_shaped::WARPS;
        while (slots > 0 && chain_shared_bytes(slots, pitch, region, norm) > (size_t)device->shared_bytes_max)
            slots -= chain_shaped::WARPS;
        const double holds = (double)slots * pitch * filled(op, count, pitch);
        if (slots > 0 && holds >= most) most = holds, best = {pitch, slots};
    }
    return best;
}

/* Names of operations in messages. */
static const char *const names[GPUK_CHAIN_KINDS] = {"linear", "attention", "convolution", "gated delta rule"};

/* Common to all operations of a chain. */
struct chain_plan {
    int family, cache; /* -1: of none */
    uint32_t region, norm, tiled;
    bool holds; /* keys and values, where that leaves room for enough tiles */
};
static int plan_chain(const struct gpuk_device *device, const struct gpuk_chain_op *op, uint32_t count,
                      struct chain_plan *plan, struct helm_err *err)
{
    *plan = {-1, -1, 128, 0, 0, false};
    for (uint32_t i = 0; i < count; i++) {
        const char *name = (unsigned)op[i].kind < GPUK_CHAIN_KINDS ? names[op[i].kind] : "unknown";
        if (!gpuk_chain_takes(device, &op[i]))
            return helm_fail(err, HELM_E_UNSUPPORTED, "chain: operation %u of %u (%s) cannot be part of one",
                             i, count, name);
        plan->region = std::max(plan->region, region_of(&op[i]));
        plan->norm = std::max(plan->norm, norm_bytes_of(&op[i]));
        plan->tiled += has_tiles(&op[i]);
        const bool attends = op[i].kind == GPUK_CHAIN_ATTENTION;
        if (!attends && !has_tiles(&op[i])) continue;
        int *all = attends ? &plan->cache : &plan->family;
        const int own =
            attends ? (int)op[i].attention.args.kv.layout.dtype : chain_family(gpuk_chain_format(&op[i]));
        if (*all >= 0 && *all != own)
            return helm_fail(err, HELM_E_UNSUPPORTED,
                             "chain: operation %u of %u (%s) is of another format than those before it", i,
                             count, name);
        *all = own;
    }
    uint32_t with_held = plan->region;
    for (uint32_t i = 1; i < count; i++)
        if (op[i].kind == GPUK_CHAIN_ATTENTION && held_at(&op[i - 1], &op[i]))
            with_held = std::max(with_held, held_at(&op[i - 1], &op[i]) + held_bytes<chain_shaped>());
    plan->holds = chain_shared_bytes(2 * chain_shaped::WARPS, PITCH_MIN, with_held, plan->norm) <=
                  (size_t)device->shared_bytes_max;
    if (plan->holds) plan->region = with_held;
    if (plan->family < 0) plan->family = FORMAT_BF16; /* no linears: any kernel will do */
    return HELM_OK;
}

/* The item of an operation with weights; start: the block its pairs begin with. */
static int linear_item(const struct gpuk_linear_args *args, uint32_t blocks, uint32_t pitch, uint32_t *start,
                       struct chain_item *item, struct helm_err *err)
{
    struct linear_params params;
    const int rc = gpuk_linear_params("chain", args, &params, err);
    if (rc) return rc;
    item->linear = params;
    item->where = weights_of(args, &params, blocks, *start, pitch);
    *start = (uint32_t)(((uint64_t)*start + params.pairs) % blocks);
    return HELM_OK;
}
/* The item of attention, and the step in the header. */
static int attention_item(const struct gpuk_chain_op *op, void *workspace, uint64_t *words,
                          struct chain_header *header, struct chain_item *item)
{
    item->attention = gpuk_decode_params(&op->attention.args, 1, true, op->attention.out, workspace);
    item->piece_words = words;
    if (!header->attends) header->step = op->attention.args.step;
    header->attends = 1;
    return same_step(&header->step, &op->attention.args.step) ? HELM_OK : HELM_E_UNSUPPORTED;
}

extern "C" int gpuk_chain_write(const struct gpuk_device *device, const struct gpuk_chain_op *op,
                                uint32_t count, void *memory, void *attention_workspace, void *stream,
                                struct gpuk_chain *chain, struct helm_err *err)
{
    if (count == 0 || count > 1u << 20)
        return helm_fail(err, HELM_E_LIMIT, "chain: %u operations (1 to 2^20)", count);
    const uint32_t blocks = (uint32_t)device->sm_count;
    const size_t bytes = list_bytes(count);
    std::vector<uint64_t> image(bytes / sizeof(uint64_t) + 2);
    unsigned char *at = (unsigned char *)(((uintptr_t)image.data() + 15) / 16 * 16);
    struct chain_header *header = (struct chain_header *)at;
    struct chain_weights *weights = (struct chain_weights *)(at + CHAIN_HEADER_BYTES);
    struct chain_plan plan;
    int rc = plan_chain(device, op, count, &plan, err);
    if (rc) return rc;
    const struct ring_shape ring = ring_of(device, op, count, plan.region, plan.norm);
    if (ring.slots == 0)
        return helm_fail(err, HELM_E_UNSUPPORTED, "chain: %u operations take too much shared memory together",
                         count);
    uint64_t *words = (uint64_t *)((unsigned char *)memory + bytes);
    const size_t all_words = gpuk_chain_bytes(op, count) - bytes;
    struct chain_item *items = (struct chain_item *)(weights + plan.tiled);
    struct chain_weights *next = weights;
    uint32_t start = 0;
    std::vector<bool> added(count);
    for (uint32_t i = 0; i < count; i++) {
        struct chain_item *item = &items[i];
        const struct gpuk_chain_op *link = &op[i];
        item->kind = link->kind;
        if (link->kind == GPUK_CHAIN_ATTENTION) {
            if (attention_item(link, attention_workspace, words, header, item))
                return helm_fail(err, HELM_E_UNSUPPORTED, "chain: operation %u of %u is of another step", i,
                                 count);
            item->held_at = i > 0 && plan.holds ? held_at(&op[i - 1], link) : 0;
        } else if (link->kind == GPUK_CHAIN_CONVOLVE || link->kind == GPUK_CHAIN_DELTA) {
            item->delta = delta_params_of(&link->delta);
        } else {
            added[i] = i > 0 && chain_adds_to(&op[i - 1], link);
            if (added[i]) start = items[i - 1].where.start;
            rc = linear_item(&link->linear, blocks, ring.pitch, &start, item, err);
            if (rc) return rc;
            if (added[i])
                added[i] = chain_same_threads(&items[i - 1].where) && chain_same_threads(&item->where);
            *next++ = item->where;
        }
    }
    *chain = {};
    chain->meetings = chain_meetings(op, count, added, items);
    chain->list = memory;
    chain->count = count;
    chain->variant = plan.family * KV_DTYPE_COUNT + (plan.cache < 0 ? 0 : plan.cache);
    chain->warps = chain_shaped::LAUNCHED / 32;
    chain->slots = ring.slots;
    chain->pitch = ring.pitch;
    chain->askers = chain_askers(ring.pitch);
    chain->shared_bytes = (uint32_t)chain_shared_bytes(ring.slots, ring.pitch, plan.region, plan.norm);
    chain->norm_bytes = plan.norm;
    chain->blocks = blocks;
    chain->linears = plan.tiled;
    chain->region_bytes = plan.region;
    cudaError_t code = cudaMemcpyAsync(memory, at, bytes, cudaMemcpyHostToDevice, (cudaStream_t)stream);
    if (code == cudaSuccess && all_words) code = cudaMemsetAsync(words, 0, all_words, (cudaStream_t)stream);
    if (code == cudaSuccess) code = cudaStreamSynchronize((cudaStream_t)stream);
    return code == cudaSuccess ? HELM_OK : gpuk_cuda_fail(err, code, "chain: writing the list");
}
