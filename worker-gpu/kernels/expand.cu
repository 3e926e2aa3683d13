/* Packed weights to plain bf16 (common/packed.h says the format), on their way from where the copy engine put
 * them to the ring.
 *
 * A warp expands a tile: every lane loads three words of codes and four times 8 signs and mantissas, builds
 * pairs of values by a shift and two masks, and stores four times 16 bytes. Escapes are a few in a hundred:
 * each lane counts those of each of its runs, sums over the warp say where in the list they stand
 * (packed_escapes.cuh), and each is written over the value stored before (by the same thread, so behind it).
 * Nothing is shared between warps; any number of blocks may run. */
#include "worker-gpu/kernels/device.cuh"
#include "worker-gpu/kernels/packed_escapes.cuh"
#include "worker-gpu/kernels/packed_tile.cuh"

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ == 750
#define MIN_BLOCKS 4 /* 1,024 threads */
#else
#define MIN_BLOCKS 6 /* 40 registers, more warps than loads take to come */
#endif
static const uint32_t THREADS = 256, BLOCKS = 6;

struct expand_list {
    struct gpuk_expand_part part[GPUK_EXPAND_PARTS_MAX];
    uint32_t tiles[GPUK_EXPAND_PARTS_MAX]; /* of a group of PACKED_ROWS rows */
    uint32_t end[GPUK_EXPAND_PARTS_MAX];   /* tiles of this part and those before it; of unused ones too */
};

/* The first `here` of a tile's values as they are. */
static __device__ __forceinline__ void copy_raw(const uint16_t *from, uint32_t here, uint32_t lane,
                                                uint16_t *to)
{
#pragma unroll
    for (uint32_t k = 0; k < 4; k++) {
        const uint32_t place = k * 256 + lane * 8;
        if (place + 8 <= here)
            *reinterpret_cast<uint4 *>(to + place) = __ldg(reinterpret_cast<const uint4 *>(from + place));
        else
            for (uint32_t i = place; i < here; i++) to[i] = __ldg(from + i);
    }
}

/* Stores a run of a lane: whole, or the first values of it. */
static __device__ __forceinline__ void store_run(uint16_t *to, uint32_t place, uint32_t here,
                                                 const uint32_t pair[4])
{
    if (place + 8 <= here) {
        *reinterpret_cast<uint4 *>(to + place) = make_uint4(pair[0], pair[1], pair[2], pair[3]);
        return;
    }
#pragma unroll
    for (uint32_t i = 0; i < 8; i++)
        if (place + i < here) to[place + i] = (uint16_t)(pair[i / 2] >> (i & 1) * 16);
}

static __device__ __forceinline__ void expand_tile(const struct gpuk_expand_part &part, uint32_t group,
                                                   uint32_t tile, uint32_t lane)
{
    const uint32_t left = part.rows - group * PACKED_ROWS;
    const uint32_t values = (left < PACKED_ROWS ? left : PACKED_ROWS) * part.cols;
    if (tile * PACKED_TILE >= values) return; /* of a last group with fewer rows */
    const uint32_t here = values - tile * PACKED_TILE;
    const uint32_t at = __ldg(part.offset + group), units = __ldg(part.offset + group + 1) - at;
    const unsigned char *packed =
        static_cast<const unsigned char *>(part.packed) + (size_t)(at - __ldg(part.offset)) * PACKED_ALIGN;
    uint16_t *out = static_cast<uint16_t *>(part.out) + (size_t)group * PACKED_ROWS * part.cols +
                    (size_t)tile * PACKED_TILE;

    if (is_raw(units, values)) {
        copy_raw(reinterpret_cast<const uint16_t *>(packed + PACKED_ALIGN) + (size_t)tile * PACKED_TILE, here,
                 lane, out);
        return;
    }
    const uint32_t head = head_of(values);
    const unsigned char *record = packed + head + (size_t)tile * PACKED_TILE_BYTES,
                        *rest = record + PACKED_CODE_BYTES;
    const tile_words words = load_words<false>(record, lane);
    const uint32_t base2 = base_of_pair(__ldg(packed + offsetof(struct packed_header, base)));
    const uint32_t start =
        __ldg(reinterpret_cast<const uint32_t *>(packed + sizeof(struct packed_header)) + tile);
#pragma unroll
    for (uint32_t k = 0; k < 4; k++) {
        uint32_t pair[4];
#pragma unroll
        for (uint32_t i = 0; i < 4; i++) pair[i] = words_pair(words, base2, k, i);
        store_run(out, k * 256 + lane * 8, here, pair);
    }

    const uint32_t mask = escape_mask(words.codes);
    const escape_ranks ranks = rank_escapes(mask, lane);
    const unsigned char *escape = packed + head + (size_t)tiles_of(values) * PACKED_TILE_BYTES + start;
    __syncwarp(); /* stores of other types stay behind those above, for the compiler too */
    uint32_t n = 0;
    for (uint32_t left = mask; left; left &= left - 1, n++) {
        const uint32_t bit = (uint32_t)__ffs((int)left) - 1, place = escape_place(bit, lane);
        const uint32_t byte = __ldg(rest + place), exponent = __ldg(escape + escape_rank(ranks, bit, n));
        out[place] = (uint16_t)((byte & 0x80) << 8 | exponent << 7 | (byte & 0x7f));
    }
}

__global__ void __launch_bounds__(THREADS, MIN_BLOCKS)
    expand_kernel(const __grid_constant__ struct expand_list list)
{
    let_next_start();
    wait_for_previous();
    const uint32_t lane = threadIdx.x & 31, warps = gridDim.x * (THREADS / 32),
                   all = list.end[GPUK_EXPAND_PARTS_MAX - 1];
    for (uint32_t t = blockIdx.x * (THREADS / 32) + (threadIdx.x >> 5); t < all; t += warps) {
        int p = 0;
        uint32_t from = 0;
#pragma unroll
        for (int i = 1; i < GPUK_EXPAND_PARTS_MAX; i++)
            if (t >= list.end[i - 1]) p = i, from = list.end[i - 1];
        const uint32_t group = (t - from) / list.tiles[p];
        expand_tile(list.part[p], group, (t - from) - group * list.tiles[p], lane);
    }
}

extern "C" int gpuk_expand(const struct gpuk_device *device, const struct gpuk_expand_part *part,
                           uint32_t parts, uint32_t blocks, void *stream, struct helm_err *err)
{
    struct expand_list list = {};
    uint64_t all = 0;
    if (parts == 0 || parts > GPUK_EXPAND_PARTS_MAX)
        return helm_fail(err, HELM_E_USAGE, "expand: %u parts (1 to %d)", parts, GPUK_EXPAND_PARTS_MAX);
    for (uint32_t i = 0; i < GPUK_EXPAND_PARTS_MAX; i++) {
        if (i < parts) {
            if (!packed_takes(DTYPE_BF16, part[i].rows, part[i].cols))
                return helm_fail(err, HELM_E_UNSUPPORTED, "expand: %u rows of %u columns", part[i].rows,
                                 part[i].cols);
            if (((uintptr_t)part[i].packed | (uintptr_t)part[i].out) % 16 ||
                (uintptr_t)part[i].offset % sizeof(uint32_t))
                return helm_fail(err, HELM_E_USAGE, "expand: addresses are not aligned");
            list.part[i] = part[i];
            list.tiles[i] = packed_tiles(PACKED_ROWS * part[i].cols);
            all += (uint64_t)packed_groups(part[i].rows) * list.tiles[i];
            if (all > UINT32_MAX / 2) return helm_fail(err, HELM_E_LIMIT, "expand: too many rows");
        }
        list.end[i] = (uint32_t)all;
    }
    const uint32_t most = blocks ? blocks : (uint32_t)device->sm_count * BLOCKS;
    const uint32_t need = (uint32_t)((all + THREADS / 32 - 1) / (THREADS / 32));
    return gpuk_launch("expand", expand_kernel, dim3(need < most ? need : most), dim3(THREADS), 0, 0, stream,
                       err, list);
}

int gpuk_prepare_expand(const struct gpuk_device *, struct helm_err *err)
{
    return gpuk_prepare("expand", expand_kernel, 0, err);
}
