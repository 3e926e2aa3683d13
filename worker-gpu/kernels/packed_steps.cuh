/* What a warp of gemv_packed reads in one step: two packed tiles of one run, where they lie, and how they
 * come to a slot of the warp's ring.
 *
 * Included by gemv_packed.cu. A *run* is a pair of neighbouring rows of one matrix (or its last row alone), a
 * whole number of packed tiles. Where a row has whole ones, a step has the tiles of the same columns of both
 * rows, so that each x that is read meets two weights; else the next two of the run.
 *
 * The lanes of a warp look up 32 steps at once, each one of them; when a step's turn comes, its lane starts
 * the copies (9.0: bulk copies; else it says the others where to copy from). A slot has the records, the
 * first bytes of the lists of escapes, and the step itself for whoever computes it. */
#ifndef HELM_WORKER_GPU_KERNELS_PACKED_STEPS_CUH
#define HELM_WORKER_GPU_KERNELS_PACKED_STEPS_CUH

#include "worker-gpu/kernels/linear.cuh"
#include "worker-gpu/kernels/packed_tile.cuh"

static const uint32_t HALF = PACKED_TILE / 2; /* values of a tile of gemv_bulk */
static const uint32_t LIST_BYTES = 96;        /* of a tile's list that are copied, from a multiple of 16 on */

struct packed_params {
    linear_params linear; /* of its segments, `weight` is where the first group lies */
    const uint32_t *offset[GPUK_SEGMENTS_MAX];
    uint32_t units;   /* a run, or of SwiGLU two */
    uint32_t steps;   /* of a run */
    uint32_t apart;   /* tiles from a step's first to its second */
    uint32_t batch;   /* runs whose sums wait at once */
    uint32_t slots;   /* of a warp's ring */
    uint32_t threads; /* of a block of gemv_bulk, whose parts of the sum of squares are to be had */
};

struct alignas(16) packed_step {
    const unsigned char *from; /* the first tile's record, or values when raw; NULL: there is none */
    uint32_t second;           /* the other tile is so many bytes behind; 0: there is none */
    uint32_t base2;            /* the group's base for a pair of values, or STEP_RAW; and STEP_LONG */
    uint32_t list[2];          /* what is copied of the tiles' lists begins so many bytes behind `from` */
    uint32_t of_list[2];       /* step_count and others; when raw: the group's values from the tile on */
};
static const uint32_t STEP_RAW = 1 /* of a group that is stored so */,
                      STEP_LONG = 2 /* a list is longer than what is copied */;

/* Of a tile's list: its escapes, how far behind what is copied it begins, and how many bytes that is. */
static __device__ __forceinline__ uint32_t step_count(const packed_step &d, uint32_t t)
{
    return d.of_list[t] & 0xffff;
}
static __device__ __forceinline__ uint32_t step_lead(const packed_step &d, uint32_t t)
{
    return d.of_list[t] >> 16 & 15;
}
static __device__ __forceinline__ uint32_t step_bytes(const packed_step &d, uint32_t t)
{
    return d.of_list[t] >> 20;
}

/* A slot: two records, of two lists LIST_BYTES, the step. */
static const uint32_t SLOT_LISTS = 2 * PACKED_TILE_BYTES, SLOT_STEP = SLOT_LISTS + 2 * LIST_BYTES,
                      SLOT_BYTES = SLOT_STEP + (uint32_t)sizeof(packed_step);

/* Step `step` of the block's; its runs start with those of unit `first`. `found` is called with it as soon as
 * it is known where coded records are, before their lists are looked up. */
template <typename F>
static __device__ __forceinline__ packed_step find_step(const packed_params &q, uint32_t first, uint32_t runs,
                                                        uint32_t step, F found)
{
    const linear_params &p = q.linear;
    packed_step d = {nullptr, 0, 0, {0, 0}, {0, 0}};
    const uint32_t run = step / q.steps, s = step - run * q.steps;
    if (run >= runs) return d;
    const uint32_t unit = first + (p.swiglu ? run / 2 : run),
                   m = p.swiglu ? run & 1 : linear_segment_of(p, unit),
                   pair = p.swiglu || m == 0 ? unit : unit - p.segment[m - 1].pair_end;
    const uint32_t pairs = PACKED_ROWS / 2, group = pair / pairs, chunks = p.cols / HALF,
                   left = p.segment[m].rows - group * PACKED_ROWS,
                   values = (left < PACKED_ROWS ? left : PACKED_ROWS) * p.cols;
    const uint32_t *offset = q.offset[m];
    const uint32_t at = __ldg(offset + group), units = __ldg(offset + group + 1) - at;
    const unsigned char *from = p.segment[m].weight + (size_t)(at - __ldg(offset)) * PACKED_ALIGN;
    const uint32_t in_run = q.apart == 1 ? 2 * s : s, tile = pair % pairs * chunks + in_run,
                   other = tile + q.apart;
    if (tile * PACKED_TILE >= values) return d;
    const bool two = in_run + q.apart < chunks && other * PACKED_TILE < values;
    if (is_raw(units, values)) {
        d.from = from + PACKED_ALIGN + (size_t)tile * PACKED_TILE * 2;
        d.second = two ? q.apart * PACKED_TILE * 2 : 0;
        d.base2 = STEP_RAW;
        d.of_list[0] = values - tile * PACKED_TILE;
        d.of_list[1] = values - other * PACKED_TILE;
        return d;
    }
    d.from = from + head_of(values) + (size_t)tile * PACKED_TILE_BYTES;
    d.second = two ? q.apart * PACKED_TILE_BYTES : 0;
    found(d);
    const uint32_t *start = reinterpret_cast<const uint32_t *>(from + sizeof(struct packed_header));
    const uint32_t begin[2] = {__ldg(start + tile), two ? __ldg(start + other) : 0},
                   end[2] = {__ldg(start + tile + 1), two ? __ldg(start + other + 1) : 0};
    const uint32_t lists = (tiles_of(values) - tile) * PACKED_TILE_BYTES;
    d.base2 = base_of_pair(__ldg(from + offsetof(struct packed_header, base)));
#pragma unroll
    for (uint32_t t = 0; t < 2; t++) {
        const uint32_t at = lists + begin[t], count = end[t] - begin[t],
                       lead = ((uint32_t) reinterpret_cast<size_t>(d.from) + at) & 15,
                       all = (lead + count + 15) & ~15u; /* within the group */
        d.list[t] = at - lead;
        d.of_list[t] = count | lead << 16 | (count == 0 ? 0 : all < LIST_BYTES ? all : LIST_BYTES) << 20;
        if (lead + count > LIST_BYTES) d.base2 |= STEP_LONG;
    }
    return d;
}

/* Starts the bulk copies of a step's records; one lane. The barrier's phase lasts until bring_bulk has said
 * how many bytes it is of. */
static __device__ __forceinline__ void bring_records(const packed_step &d, uint32_t address, uint32_t barrier)
{
    bulk_copy(address, d.from, PACKED_TILE_BYTES, barrier);
    if (d.second) bulk_copy(address + PACKED_TILE_BYTES, d.from + d.second, PACKED_TILE_BYTES, barrier);
}
/* Starts those of the rest of it, and of the records unless they are on their way. */
static __device__ __forceinline__ void bring_bulk(const packed_step &d, bool records, unsigned char *slot,
                                                  uint32_t address, uint32_t barrier)
{
    *reinterpret_cast<packed_step *>(slot + SLOT_STEP) = d;
    if (!d.from || d.base2 == STEP_RAW) { /* the phase ends at once */
        barrier_arrive(barrier);
        return;
    }
    const uint32_t bytes[2] = {step_bytes(d, 0), step_bytes(d, 1)};
    bulk_expect(barrier, (d.second ? 2 : 1) * PACKED_TILE_BYTES + bytes[0] + bytes[1]);
    if (records) bring_records(d, address, barrier);
#pragma unroll
    for (uint32_t t = 0; t < 2; t++)
        if (bytes[t]) bulk_copy(address + SLOT_LISTS + t * LIST_BYTES, d.from + d.list[t], bytes[t], barrier);
}

/* Starts the copies of the step that the slot says; all lanes. 16 bytes at a time, the slot is filled from
 * its front. */
static __device__ __forceinline__ void bring_async(const unsigned char *slot, uint32_t address, uint32_t lane)
{
    const packed_step d = *reinterpret_cast<const packed_step *>(slot + SLOT_STEP);
    if (!d.from || d.base2 == STEP_RAW) return;
    const uint32_t records = SLOT_LISTS / 16, all = SLOT_STEP / 16;
#pragma unroll
    for (uint32_t i = 0; i < (all + 31) / 32; i++) {
        const uint32_t piece = i * 32 + lane;
        if (piece < records) {
            const uint32_t t = piece >= records / 2, at = (piece - t * (records / 2)) * 16;
            if (t == 0 || d.second) copy16_async(address + piece * 16, d.from + t * d.second + at, true);
        } else if (piece < all) {
            const bool t = piece - records >= LIST_BYTES / 16;
            const uint32_t at = (piece - records) * 16 - (t ? LIST_BYTES : 0);
            if (at < (t ? step_bytes(d, 1) : step_bytes(d, 0)))
                copy16_async(address + piece * 16, d.from + (t ? d.list[1] : d.list[0]) + at, true);
        }
    }
}

#endif
