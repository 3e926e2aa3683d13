/* Lists of chains (chain.cu): which operations one can take, and how it lies in device memory.
 *
 * Called through worker-gpu/kernels/kernels.h when a program is made. */
#include "worker-gpu/kernels/chain.cuh"
#include "worker-gpu/kernels/chain_attention.cuh"

#include <algorithm>
#include <vector>

static const uint32_t SLOTS_MAX = 64; /* of a ring */

#define LINES(D) chain_lines_of<D>::lines
static const struct chain_lines lines_by_format[FORMAT_COUNT] = BY_FORMAT(LINES, {});

/* Tiles of a row: as few as a tile of so many bytes allows, and all but the last of one size, in whole lines. */
static uint32_t chunks_of(const struct chain_lines &lines, uint32_t row_bytes, uint32_t most)
{
    return div_up(row_bytes, lines.within(most));
}
static uint32_t tile_of(const struct chain_lines &lines, uint32_t row_bytes, uint32_t most)
{
    return div_up(div_up(row_bytes, lines.bytes), chunks_of(lines, row_bytes, most)) * lines.bytes;
}
/* Bytes of rows that tiles of at most `pitch` hold, of those they take. */
static double filled(const struct gpuk_chain_op *op, uint32_t count, uint32_t pitch)
{
    double rows_bytes = 0, taken = 0;
    for (uint32_t i = 0; i < count; i++) {
        if (op[i].kind != GPUK_CHAIN_LINEAR) continue;
        const struct gpuk_linear_args *a = &op[i].linear;
        const uint32_t row_bytes = (uint32_t)tensor_format_row_bytes(a->format, a->cols);
        for (uint32_t s = 0; s < a->segments; s++) {
            rows_bytes += (double)a->segment[s].rows * row_bytes;
            taken +=
                (double)a->segment[s].rows * chunks_of(lines_by_format[a->format], row_bytes, pitch) * pitch;
        }
    }
    return taken > 0 ? rows_bytes / taken : 1;
}

/* Shared memory of a unit of attention of so many heads. */
static uint32_t attention_bytes(uint32_t heads, uint32_t head_dim)
{
    return (chain_attention_floats(chain_shaped::WARPS, heads, head_dim) * 4 + 127) / 128 * 128;
}

/* And of one that streams; 0: none does. */
static uint32_t stream_region(const struct gpuk_attention *a)
{
    return (stream_bytes(&a->kv) + 127) / 128 * 128;
}

/* Shared memory that an operation's x or attention takes; 0 when a chain cannot take the operation. */
static uint32_t region_of(const struct gpuk_chain_op *op)
{
    struct helm_err unused = {};
    if (op->kind == GPUK_CHAIN_LINEAR) {
        const struct gpuk_linear_args *a = &op->linear;
        struct linear_params params;
        if (gpuk_linear_params("chain", a, &params, &unused)) return 0;
        const struct chain_lines &lines = lines_by_format[a->format];
        if (!lines.bytes || !(lines.loose ? gpuk_linear_begins(a) : gpuk_linear_aligned(a))) return 0;
        if (((size_t)a->x | (size_t)a->norm) % 16 != 0 || params.row_bytes > UINT32_MAX / 4) return 0;
        if (chunks_of(lines, (uint32_t)params.row_bytes, chain_shaped::TILE) > CHAIN_SUMS / 2) return 0;
        /* x as whole lines */
        return div_up((uint32_t)params.row_bytes, lines.bytes) * lines.x_bytes;
    }
    if (op->kind != GPUK_CHAIN_ATTENTION) return 0;
    const struct gpuk_attention *a = &op->attention.args;
    if (gpuk_attention_check("chain", a, 1, &unused)) return 0;
    const struct kv_layout *l = &a->kv.layout;
    if (l->head_dim % 8 != 0 || ((size_t)a->kv.pool | (size_t)a->kv.pool_host) % 16 != 0) return 0;
    const uint32_t group = a->heads / l->kv_heads < CHAIN_GROUP ? a->heads / l->kv_heads : CHAIN_GROUP;
    /* a unit of two or three heads is laid out as one of CHAIN_GROUP */
    return std::max(attention_bytes(group > 1 ? CHAIN_GROUP : 1, l->head_dim), stream_region(a));
}

/* And the weights of its norm. */
static uint32_t norm_bytes_of(const struct gpuk_chain_op *op)
{
    return op->kind == GPUK_CHAIN_LINEAR && op->linear.norm ? (op->linear.cols * 4 + 127) / 128 * 128 : 0;
}

extern "C" bool gpuk_chain_takes(const struct gpuk_device *device, const struct gpuk_chain_op *op)
{
    const uint32_t region = region_of(op);
    return device->bulk_copy && region > 0 &&
           chain_shared_bytes(2 * chain_shaped::WARPS, 2048, region, norm_bytes_of(op)) <=
               (size_t)device->shared_bytes_max;
}

static size_t list_bytes(uint32_t count)
{
    return (CHAIN_HEADER_BYTES + (size_t)count * (sizeof(chain_weights) + sizeof(chain_item)) + 255) / 256 *
           256;
}
/* Of the pieces of attention. */
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
    return list_bytes(count) + (op ? (words_of(op, count) * sizeof(uint64_t) + 255) / 256 * 256 : 0);
}

static struct chain_weights weights_of(const struct gpuk_linear_args *args, const struct linear_params *p,
                                       uint32_t blocks, uint32_t start, uint32_t pitch)
{
    struct chain_weights w = {};
    const struct chain_lines &lines = lines_by_format[args->format];
    const uint32_t row_bytes = (uint32_t)p->row_bytes;
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
    w.chunks = chunks_of(lines, row_bytes, pitch);
    w.tile = tile_of(lines, row_bytes, pitch);
    w.last_bytes = row_bytes - (w.chunks - 1) * w.tile;
    w.part = w.tile % 2048 == 0 ? 2048 : lines.within(chain_shaped::PART); /* whole parts are quickest */
    w.start = start;
    w.whole = p->pairs / blocks;
    w.extra = p->pairs % blocks;
    w.ask_pairs = chain_askers(pitch) / w.chunks;
    w.ask_chunks = chain_askers(pitch) % w.chunks;
    w.use_pairs = chain_shaped::WARPS / w.chunks;
    w.use_chunks = chain_shaped::WARPS % w.chunks;
    w.format = args->format;
    w.loose = !gpuk_linear_aligned(args) || (w.chunks > 1 && w.tile % 16 != 0); /* or tiles do not */
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

static uint32_t streams_from(const struct gpuk_device *device, const struct gpuk_attention *a)
{
    if (device->chain_stream < 0 || stream_bytes(&a->kv) == 0) return UINT32_MAX;
    return device->chain_stream ? (uint32_t)device->chain_stream : CHAIN_STREAM;
}

/* One token's step, the same for every attention operation. */
static bool same_step(const struct gpuk_step *a, const struct gpuk_step *b)
{
    return a->counts == b->counts && a->position == b->position && a->token_row == b->token_row &&
           a->row_slot == b->row_slot && a->page_table == b->page_table &&
           a->pages_per_slot == b->pages_per_slot;
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
    const uint32_t pitches[] = {2048, 2560, chain_shaped::TILE};
    struct ring_shape best = {2048, 0};
    double most = 0;
    for (const uint32_t pitch : pitches) {
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
    uint32_t region = 128, norm = 0, linears = 0, start = 0;
    int family = -1, cache = -1;
    for (uint32_t i = 0; i < count; i++) {
        const bool is_linear = op[i].kind == GPUK_CHAIN_LINEAR;
        if (!gpuk_chain_takes(device, &op[i]))
            return helm_fail(err, HELM_E_UNSUPPORTED, "chain: operation %u of %u (%s) cannot be part of one",
                             i, count, is_linear ? "linear" : "attention");
        const uint32_t needs = region_of(&op[i]);
        region = needs > region ? needs : region;
        norm = norm_bytes_of(&op[i]) > norm ? norm_bytes_of(&op[i]) : norm;
        linears += is_linear;
        int *all = is_linear ? &family : &cache;
        const int own =
            is_linear ? chain_family(op[i].linear.format) : (int)op[i].attention.args.kv.layout.dtype;
        if (*all >= 0 && *all != own)
            return helm_fail(err, HELM_E_UNSUPPORTED,
                             "chain: operation %u of %u (%s) is of another format than those before it", i,
                             count, is_linear ? "linear" : "attention");
        *all = own;
    }
    /* keys and values are held where that leaves room for enough tiles */
    uint32_t with_held = region;
    for (uint32_t i = 1; i < count; i++)
        if (op[i].kind == GPUK_CHAIN_ATTENTION && held_at(&op[i - 1], &op[i]))
            with_held = std::max(with_held, held_at(&op[i - 1], &op[i]) + held_bytes<chain_shaped>());
    const bool holds = chain_shared_bytes(2 * chain_shaped::WARPS, 2048, with_held, norm) <=
                       (size_t)device->shared_bytes_max;
    if (holds) region = with_held;
    if (family < 0) family = FORMAT_BF16; /* no linears: any kernel will do */
    const struct ring_shape ring = ring_of(device, op, count, region, norm);
    if (ring.slots == 0)
        return helm_fail(err, HELM_E_UNSUPPORTED, "chain: %u operations take too much shared memory together",
                         count);
    uint64_t *words = (uint64_t *)((unsigned char *)memory + bytes);
    const uint64_t word_count = words_of(op, count);
    struct chain_item *items = (struct chain_item *)(weights + linears);
    struct chain_weights *next = weights;
    for (uint32_t i = 0; i < count; i++) {
        struct chain_item *item = &items[i];
        item->kind = op[i].kind;
        if (op[i].kind == GPUK_CHAIN_LINEAR) {
            struct linear_params params;
            const int rc = gpuk_linear_params("chain", &op[i].linear, &params, err);
            if (rc) return rc;
            item->linear = params;
            item->where = *next++ = weights_of(&op[i].linear, &params, blocks, start, ring.pitch);
            start = (uint32_t)(((uint64_t)start + params.pairs) % blocks);
        } else {
            item->attention =
                gpuk_decode_params(&op[i].attention.args, 1, true, op[i].attention.out, attention_workspace);
            item->piece_words = words;
            item->asks = device->chain_asks ? (uint32_t)std::max(device->chain_asks, 0) : CHAIN_ASK;
            item->streams_from = streams_from(device, &op[i].attention.args);
            item->held_at = i > 0 && holds ? held_at(&op[i - 1], &op[i]) : 0;
            const uint32_t page_tokens = op[i].attention.args.kv.layout.page_tokens;
            if (!header->attends) header->step = op[i].attention.args.step, header->page_tokens = page_tokens;
            header->attends = 1;
            if (!same_step(&header->step, &op[i].attention.args.step) || page_tokens != header->page_tokens)
                return helm_fail(err, HELM_E_UNSUPPORTED, "chain: operation %u of %u is of another step", i,
                                 count);
        }
        if (i + 1 < count && op[i + 1].kind == GPUK_CHAIN_LINEAR && op[i + 1].linear.norm) {
            item->next_norm = op[i + 1].linear.norm;
            item->next_norm_quads = op[i + 1].linear.cols / 4;
        }
    }
    *chain = {};
    chain->list = memory;
    chain->count = count;
    chain->variant = family * KV_DTYPE_COUNT + (cache < 0 ? 0 : cache);
    chain->warps = chain_shaped::LAUNCHED / 32;
    chain->slots = ring.slots;
    chain->pitch = ring.pitch;
    chain->askers = chain_askers(ring.pitch);
    chain->shared_bytes = (uint32_t)chain_shared_bytes(ring.slots, ring.pitch, region, norm);
    chain->norm_bytes = norm;
    chain->blocks = blocks;
    chain->linears = linears;
    chain->region_bytes = region;
    cudaError_t code = cudaMemcpyAsync(memory, at, bytes, cudaMemcpyHostToDevice, (cudaStream_t)stream);
    if (code == cudaSuccess && word_count)
        code = cudaMemsetAsync(words, 0, word_count * sizeof(uint64_t), (cudaStream_t)stream);
    if (code == cudaSuccess) code = cudaStreamSynchronize((cudaStream_t)stream);
    return code == cudaSuccess ? HELM_OK : gpuk_cuda_fail(err, code, "chain: writing the list");
}
