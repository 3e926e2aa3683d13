/* A step of gemv_groups' warp in packed bf16: its two packed tiles of one run, where they lie, how they are
 * copied to a slot of the warp's ring, and how they become values.
 *
 * Included by gemv_groups.cu. A *run* is a pair of neighbouring rows of one matrix (or its last row alone), a
 * whole number of packed tiles. Where a row has whole ones, a step has the tiles of the same columns of both
 * rows, so that each x that is read meets two weights; else the next two of the run.
 *
 * The lanes of a warp look up 32 steps at once, each one of them; when a step's turn comes, its lane starts
 * the copies (9.0: bulk copies; else it says the others where to copy from). A slot has the records, the
 * first bytes of the lists of escapes, and the step itself, which all lanes read when they compute it.
 *
 * Lanes build their 64 values in registers. Every lane stores its values of a tile to the slot, whose bytes
 * are in registers by then, puts the exponents of its escapes there and loads them again. Groups that are
 * stored raw are loaded as they are. */
#pragma once

#include "worker-gpu/kernels/formats/decode.cuh"
#include "worker-gpu/kernels/formats/decode_bf16_packed.cuh"
#include "worker-gpu/kernels/linear/gemv_groups.cuh"

static_assert(HALF == PACKED_TILE / 2, "a packed tile is two of gemv_bulk's");
static const uint32_t LIST_BYTES = 96; /* of a tile's list that are copied, from a multiple of 16 on */

struct alignas(16) packed_step {
    const unsigned char *from; /* the first tile's record, or values when raw; NULL: there is none */
    uint32_t second;           /* bytes from the first tile to the other; 0: there is none */
    uint32_t base2;            /* the group's base for a pair of values, or STEP_RAW; and STEP_LONG */
    uint32_t list[2];          /* bytes from `from` to what is copied of each tile's list */
    uint32_t of_list[2];       /* step_count and others; when raw: the group's values from the tile on */
};
static const uint32_t STEP_RAW = 1 /* of a group that is stored so */,
                      STEP_LONG = 2 /* a list is longer than what is copied */;

/* A tile's list: the number of its escapes, where it begins in the copied bytes, and how many bytes are
 * copied. */
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
static __device__ __forceinline__ packed_step find_step(const groups_params &q, uint32_t first, uint32_t runs,
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

/* ---- a step's values ---------------------------------------------------------------------------------- */

static const uint32_t ROOM_PITCH = 80; /* bytes of a lane's values of a tile, padded so that lanes' stores
                                          have no bank conflicts */
static_assert(32 * ROOM_PITCH <= SLOT_LISTS, "a tile's values lie where the records were");

/* The values of a lane's units in a room, for bits of escape_mask_runs: value b at 2 * b. */
static __device__ __forceinline__ void room_store(unsigned char *room, const uint4 unit[4])
{
    uint4 *to = reinterpret_cast<uint4 *>(room);
    to[0] = make_uint4(unit[0].x, unit[0].y, unit[1].x, unit[1].y);
    to[1] = make_uint4(unit[2].x, unit[2].y, unit[3].x, unit[3].y);
    to[2] = make_uint4(unit[0].z, unit[0].w, unit[1].z, unit[1].w);
    to[3] = make_uint4(unit[2].z, unit[2].w, unit[3].z, unit[3].w);
}
static __device__ __forceinline__ void room_load(const unsigned char *room, uint4 unit[4])
{
    const uint4 *from = reinterpret_cast<const uint4 *>(room);
    const uint4 a = from[0], b = from[1], c = from[2], d = from[3];
    unit[0] = make_uint4(a.x, a.y, c.x, c.y), unit[1] = make_uint4(a.z, a.w, c.z, c.w);
    unit[2] = make_uint4(b.x, b.y, d.x, d.y), unit[3] = make_uint4(b.z, b.w, d.z, d.w);
}
static __device__ __forceinline__ void room_put(unsigned char *room, uint32_t place, uint32_t exponent)
{
    uint16_t *value = reinterpret_cast<uint16_t *>(room + place);
    *value = (uint16_t)((*value & 0x807f) | exponent << 7);
}

/* A lane's units as if nothing were an escape, to its room. */
static __device__ __forceinline__ void decode_tile(const tile_words &words, uint32_t base2,
                                                   unsigned char *room)
{
    uint4 unit[4];
#pragma unroll
    for (uint32_t k = 0; k < 4; k++)
        unit[k] = make_uint4(words_pair(words, base2, k, 0), words_pair(words, base2, k, 1),
                             words_pair(words, base2, k, 2), words_pair(words, base2, k, 3));
    room_store(room, unit);
}

/* Puts exponents of the escapes in `left` there. ends: escape_ends; list: in shared memory. */
static __device__ __forceinline__ void put_escapes(uint32_t left, uint32_t ends, const unsigned char *list,
                                                   unsigned char *room)
{
    while (left) { /* from the last */
        const uint32_t bit = 31 - (uint32_t)__clz((int)left), run = bit * 2 & 24;
        left ^= 1u << bit;
        ends -= 1u << run;
        room_put(room, bit * 2, list[ends >> run & 255]);
    }
}
/* The same with a list of any length, where it lies. */
static __device__ void put_many_escapes(const tile_words &words, const unsigned char *list, uint32_t lane,
                                        unsigned char *room)
{
    const uint32_t mask = escape_mask(words.codes);
    const escape_ranks ranks = rank_escapes(mask, lane);
    uint32_t n = 0;
    for (uint32_t left = mask; left; left &= left - 1, n++) {
        const uint32_t bit = (uint32_t)__ffs((int)left) - 1, k = bit / 8, i = bit / 2 % 4;
        room_put(room, (i / 2 * 16 + k * 4 + i % 2 * 2 + bit % 2) * 2,
                 __ldg(list + escape_rank(ranks, bit, n)));
    }
}

/* Copies tile t, stored raw, of a step to the lane's room; values after the last row are 0. */
static __device__ __forceinline__ void copy_tile(const packed_step &d, uint32_t t, uint32_t lane,
                                                 unsigned char *room)
{
    const bool there = t == 0 || d.second;
    const unsigned char *from = d.from + t * d.second + lane * 16;
    uint4 unit[4];
#pragma unroll
    for (uint32_t k = 0; k < 4; k++)
        unit[k] =
            there && (k < 2 || d.of_list[t] > HALF) ? load_weight16(from + k * 512) : make_uint4(0, 0, 0, 0);
    room_store(room, unit);
}

/* A lane's eight units of a step's tiles. Values of an absent tile are undefined. */
static __device__ __forceinline__ void decode_step(const packed_step &d, unsigned char *slot, uint32_t lane,
                                                   uint4 unit[2][4])
{
    const tile_words words[2] = {load_words<true>(slot, lane),
                                 load_words<true>(slot + PACKED_TILE_BYTES, lane)};
    const bool easy = !(d.base2 & (STEP_RAW | STEP_LONG));
    unsigned char *room = slot + lane * ROOM_PITCH;
    uint32_t mask[2] = {0, 0}, ends[2] = {0, 0};
    if (easy) {
        mask[0] = escape_mask_runs(words[0].codes);
        mask[1] = escape_mask_runs(words[1].codes) & (d.second ? 0xffffffffu : 0);
        ends[0] = escape_ends(mask[0]), ends[1] = escape_ends(mask[1]);
    }
    /* Barriers of the warp: all have read the records; and stores of other types stay between those of units,
     * for the compiler too. */
    __syncwarp();
#pragma unroll
    for (uint32_t t = 0; t < 2; t++) {
        if (d.base2 == STEP_RAW)
            copy_tile(d, t, lane, room);
        else
            decode_tile(words[t], d.base2 & ~STEP_LONG, room);
        __syncwarp();
        if (easy)
            put_escapes(mask[t], ends[t], slot + SLOT_LISTS + t * LIST_BYTES + step_lead(d, t), room);
        else if (d.base2 != STEP_RAW && step_count(d, t))
            put_many_escapes(words[t], d.from + d.list[t] + step_lead(d, t), lane, room);
        __syncwarp();
        room_load(room, unit[t]);
    }
}

/* As gemv_groups asks for it. */
struct decode_bf16_packed_step {
    typedef packed_step step;
    typedef decode_bf16 plain;
    static const uint32_t GROUP_ROWS = PACKED_ROWS, SLOT = SLOT_BYTES, STEP_AT = SLOT_STEP;
    static __device__ __forceinline__ step none() { return {nullptr, 0, 0, {0, 0}, {0, 0}}; }
    template <typename F>
    static __device__ __forceinline__ step find(const groups_params &q, uint32_t first, uint32_t runs,
                                                uint32_t s, F found)
    {
        return find_step(q, first, runs, s, found);
    }
    static __device__ __forceinline__ void bring_first(const step &d, uint32_t address, uint32_t barrier)
    {
        bring_records(d, address, barrier);
    }
    static __device__ __forceinline__ void bring(const step &d, bool all, unsigned char *slot,
                                                 uint32_t address, uint32_t barrier)
    {
        bring_bulk(d, all, slot, address, barrier);
    }
    static __device__ __forceinline__ void bring_lanes(const unsigned char *slot, uint32_t address,
                                                       uint32_t lane)
    {
        bring_async(slot, address, lane);
    }
    static __device__ __forceinline__ void values(const step &d, unsigned char *slot, uint32_t lane,
                                                  uint4 unit[2][4])
    {
        decode_step(d, slot, lane, unit);
    }
};
