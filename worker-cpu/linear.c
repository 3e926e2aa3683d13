/* Chunks of LINEAR entries. See linear.h.
 *
 * Memory has to be busy all the time: what streams fetch past the end of a chunk is the thread's next chunk,
 * and a thread that waits for the others fetches the beginning of its share of the next matrix. Which thread
 * reads what first is known, because the pool gives each the same chunks every time and only their ends to
 * others.
 *
 * Packed weights (common/packed.h) are read group by group. With one token each group is multiplied as it is
 * by an input in an order of its own, which every thread makes for itself when it begins with an entry: that
 * is read from memory that another thread wrote in any case. With several tokens a few rows at a time are
 * unpacked into the thread's scratch, and multiplied with every tile from there. */
#include "worker-cpu/linear.h"

#include <immintrin.h>
#include <unistd.h>

#include "common/units.h"

/* The part of the entry's rows [from, to) that is segment g's, as its own rows; false when there is none. */
static bool clip_rows(const struct program_segment *g, uint32_t from, uint32_t to, uint32_t *first,
                      uint32_t *last)
{
    uint32_t end = g->row_first + g->rows;
    if (from < g->row_first) from = g->row_first;
    if (to > end) to = end;
    if (from >= to) return false;
    *first = from - g->row_first;
    *last = to - g->row_first;
    return true;
}

/* ---- what is read next ---- */

/* Part of a chunk, as a gemv reads it. */
struct chunk_part {
    const char *w;
    uint64_t run; /* bytes of each of its streams, which lie one after another */
    uint32_t streams;
    bool packed; /* one stream, which is no part of the next one's run */
};

/* Segment `s` of a chunk, or the first after it that has rows there. */
static bool find_part(const struct program_entry *e, uint32_t chunk, uint32_t s, struct chunk_part *part)
{
    uint32_t first, last;
    for (; s < e->segment_count; s++) {
        const struct program_segment *g = &e->segment[s];
        if (!clip_rows(g, e->bound[chunk], e->bound[chunk + 1], &first, &last)) continue;
        if (g->offset) {
            uint64_t from = packed_at(g->offset, first / PACKED_ROWS);
            part->w = (const char *)g->w + from;
            part->run = packed_at(g->offset, packed_groups(last)) - from;
            part->streams = 1;
            part->packed = true;
            return true;
        }
        uint64_t row_bytes = g->cols * dtype_bytes(g->variant->dtype);
        part->packed = false;
        part->streams = (uint32_t)g->variant->gemv_streams;
        part->run = (last - first) / part->streams * row_bytes;
        part->w = (const char *)g->w + first * row_bytes;
        return true;
    }
    return false;
}

/* The first that a thread reads of a LINEAR, as the pool hands its chunks out; false when that is nothing. */
static bool first_part(const struct run *run, const struct program_entry *e, uint32_t thread,
                       struct chunk_part *part)
{
    uint32_t width = e->share && e->share < run->threads ? e->share : run->threads;
    uint32_t chunk = (uint32_t)((uint64_t)e->chunks * thread / width);
    return thread < width && !e->alone && chunk < e->chunks && find_part(e, chunk, 0, part);
}

/* What `thread` reads after segment s of a chunk: of this chunk, of the next in the same share, of its share
 * of the LINEAR after this one. */
static bool part_after(const struct run *run, const struct program_entry *e, uint32_t chunk, uint32_t s,
                       uint32_t thread, struct chunk_part *part)
{
    if (find_part(e, chunk, s + 1, part)) return true;
    if (e->share && (chunk + 1) % (e->chunks / e->share)) return find_part(e, chunk + 1, 0, part);
    const struct program_entry *ahead = atomic_load_explicit(&run->ahead, memory_order_relaxed);
    return ahead && first_part(run, ahead, thread, part);
}

/* In small pieces, the streams in turn: as soon as there is work, it begins. */
#define IDLE_PIECE 1024
bool linear_fetch_ahead(void *ctx, uint32_t thread, uint32_t piece)
{
    const struct run *run = ctx;
    const struct program_entry *e = atomic_load_explicit(&run->ahead, memory_order_acquire);
    struct chunk_part part;
    if (!e || (uint64_t)piece * IDLE_PIECE >= run->reads.idle_bytes || !first_part(run, e, thread, &part))
        return false;
    uint64_t at = (uint64_t)(piece / part.streams) * IDLE_PIECE;
    if (at >= part.run) return false;
    const char *w = part.w + piece % part.streams * part.run + at;
    for (uint64_t i = 0; i < IDLE_PIECE; i += 64) _mm_prefetch(w + i, _MM_HINT_T1);
    return true;
}

/* A part of the L2 that the end of what was read before does not miss. */
static uint32_t idle_bytes(void)
{
    long bytes = sysconf(_SC_LEVEL2_CACHE_SIZE); /* 0 or less: not known */
    return bytes <= 0 ? 64 * KIB : bytes / 2 < (long)MIB ? (uint32_t)bytes / 2 : MIB;
}

struct run_reads linear_reads_choose(void)
{
    return (struct run_reads){.gemv = gemv_reads_choose(), .idle_bytes = idle_bytes(), .across = true};
}

/* ---- one token ---- */

/* Rows [first, last) of one segment, one token. */
static void segment_gemv(const struct program_entry *e, const struct program_segment *g, uint32_t first,
                         uint32_t last, const struct gemv_reads *reads)
{
    const char *w = (const char *)g->w + (size_t)first * g->cols * dtype_bytes(g->variant->dtype);
    uint32_t rows = last - first;
    float *out = g->out + first;
    if (e->accumulate) {
        float y[PROGRAM_ROWS_MAX];
        g->variant->gemv(y, w, e->in, rows, g->cols, reads);
        for (uint32_t r = 0; r < rows; r++) out[r] += y[r];
    } else {
        g->variant->gemv(out, w, e->in, rows, g->cols, reads);
    }
    if (g->bias)
        for (uint32_t r = 0; r < rows; r++) out[r] += g->bias[first + r];
}

/* The entry's input as packed kernels read it. */
static const float *split_input(const struct run *run, const struct program_entry *e, uint32_t thread)
{
    struct run_thread *t = &run->thread[thread];
    if (t->split_turn != run->turn) {
        run->kernels->packed->split(t->split, e->in, e->segment[0].cols);
        t->split_turn = run->turn;
    }
    return t->split;
}

/* Rows [first, last), whole groups, of one packed segment, one token. */
static void segment_gemv_packed(const struct run *run, const struct program_entry *e,
                                const struct program_segment *g, uint32_t first, uint32_t last,
                                const float *split, const struct gemv_reads *reads)
{
    struct gemv_reads group = *reads;
    const char *at = (const char *)g->w + packed_at(g->offset, first / PACKED_ROWS);
    for (uint32_t row = first; row < last; row += PACKED_ROWS) {
        uint32_t rows = last - row < PACKED_ROWS ? last - row : PACKED_ROWS;
        const char *behind = (const char *)g->w + packed_at(g->offset, row / PACKED_ROWS + 1);
        float y[PACKED_ROWS], *out = g->out + row;
        group.next = row + rows < last ? behind : reads->next;
        run->kernels->packed->gemv(y, at, rows, g->cols, split, &group);
        for (uint32_t r = 0; r < rows; r++) out[r] = e->accumulate ? out[r] + y[r] : y[r];
        for (uint32_t r = 0; r < rows && g->bias; r++) out[r] += g->bias[row + r];
        at = behind;
    }
}

void linear_one_token(void *ctx, uint32_t chunk, uint32_t thread)
{
    struct run *run = ctx;
    const struct program_entry *e = run->entry;
    struct gemv_reads reads = run->reads.gemv;
    const float *split = e->packed ? split_input(run, e, thread) : NULL;
    uint32_t first, last;
    for (uint32_t s = 0; s < e->segment_count; s++) {
        if (!clip_rows(&e->segment[s], e->bound[chunk], e->bound[chunk + 1], &first, &last)) continue;
        struct chunk_part next;
        reads.next = NULL;
        if (run->reads.across && part_after(run, e, chunk, s, thread, &next)) {
            reads.next = next.w;
            reads.next_stride = next.packed ? reads.near : next.run;
        }
        if (e->packed)
            segment_gemv_packed(run, e, &e->segment[s], first, last, split, &reads);
        else
            segment_gemv(e, &e->segment[s], first, last, &reads);
    }
    if (!e->swiglu || !clip_rows(&e->segment[0], e->bound[chunk], e->bound[chunk + 1], &first, &last)) return;
    float *gate = e->segment[0].out + first;
    run->kernels->vector->swiglu(gate, gate, e->segment[1].out + first, last - first);
}

/* ---- several tokens ---- */

size_t linear_packed_bytes(const struct linear_variant *v, size_t tokens, size_t cols)
{
    size_t tile = tokens < PROGRAM_TILE_TOKENS ? tokens : PROGRAM_TILE_TOKENS;
    return (v->packed_bytes(tile, cols) + 63) / 64 * 64;
}

/* Rows [first, last) of one segment, which are at w as they are, the tokens of one tile. */
static void segment_gemm(const struct run *run, const struct program_entry *e,
                         const struct program_segment *g, const void *w, uint32_t first, uint32_t last,
                         uint32_t tile, uint32_t tokens, uint32_t thread)
{
    const struct linear_variant *v = g->variant;
    uint32_t base = tile * PROGRAM_TILE_TOKENS, rows = last - first;
    uint32_t in_tile = tokens - base < PROGRAM_TILE_TOKENS ? tokens - base : PROGRAM_TILE_TOKENS;
    const char *packed =
        (const char *)run->act->packed[v->dtype] + tile * linear_packed_bytes(v, tokens, g->cols);
    float *out = g->out + (size_t)base * g->out_width + first;
    if (v->thread_begin) v->thread_begin();
    v->gemm(out, g->out_width, w, packed, rows, g->cols, in_tile, e->accumulate, run->thread[thread].scratch);
    if (v->thread_end) v->thread_end();
    if (g->bias)
        for (uint32_t t = 0; t < in_tile; t++)
            for (uint32_t r = 0; r < rows; r++) out[(size_t)t * g->out_width + r] += g->bias[first + r];
}

/* As many as a gemm likes, of which whole tiles of its sums come; half of them where it is content with that
 * and all would hardly stay in the cache. */
#define UNPACKED_BYTES (3 * MIB / 2)
uint32_t linear_unpacked_rows(const struct program_segment *g)
{
    uint32_t rows = PACKED_ROWS;
    while (rows % g->variant->row_granule) rows += PACKED_ROWS;
    while (rows % (2 * PACKED_ROWS) == 0 && (uint64_t)rows * g->cols * sizeof(uint16_t) > UNPACKED_BYTES)
        rows /= 2;
    return rows;
}

/* Rows [first, last), whole groups, of one packed segment, all tokens. */
static void segment_gemm_packed(const struct run *run, const struct program_entry *e,
                                const struct program_segment *g, uint32_t first, uint32_t last,
                                uint32_t tokens, uint32_t thread)
{
    const uint32_t each = linear_unpacked_rows(g), tiles = run_ceil_div(tokens, PROGRAM_TILE_TOKENS);
    uint16_t *value = run->thread[thread].rows;
    for (uint32_t from = first; from < last; from += each) {
        uint32_t to = last - from < each ? last : from + each;
        for (uint32_t row = from; row < to; row += PACKED_ROWS)
            run->kernels->packed->unpack(value + (size_t)(row - from) * g->cols,
                                         (const char *)g->w + packed_at(g->offset, row / PACKED_ROWS),
                                         to - row < PACKED_ROWS ? to - row : PACKED_ROWS, g->cols);
        for (uint32_t tile = 0; tile < tiles; tile++)
            segment_gemm(run, e, g, value, from, to, tile, tokens, thread);
    }
}

void linear_tokens(void *ctx, uint32_t chunk, uint32_t thread)
{
    struct run *run = ctx;
    const struct program_entry *e = run->entry;
    uint32_t tokens = run_tokens(run, e), tiles = run_ceil_div(tokens, PROGRAM_TILE_TOKENS), first, last;
    uint32_t tile = 0, from = 0, to = tokens;
    if (!e->packed) {
        tile = chunk % tiles; /* the same weights for each tile in turn: they stay in this core's cache */
        chunk /= tiles;
        from = tile * PROGRAM_TILE_TOKENS;
        if (to > from + PROGRAM_TILE_TOKENS) to = from + PROGRAM_TILE_TOKENS;
    }
    for (uint32_t s = 0; s < e->segment_count; s++) {
        const struct program_segment *g = &e->segment[s];
        if (!clip_rows(g, e->bound[chunk], e->bound[chunk + 1], &first, &last)) continue;
        if (e->packed)
            segment_gemm_packed(run, e, g, first, last, tokens, thread);
        else
            segment_gemm(run, e, g,
                         (const char *)g->w + (size_t)first * g->cols * dtype_bytes(g->variant->dtype), first,
                         last, tile, tokens, thread);
    }
    if (!e->swiglu || !clip_rows(&e->segment[0], e->bound[chunk], e->bound[chunk + 1], &first, &last)) return;
    const struct program_segment *g = e->segment;
    for (uint32_t t = from; t < to; t++) {
        float *gate = g->out + (size_t)t * g->out_width + first;
        run->kernels->vector->swiglu(gate, gate, g[1].out + (size_t)t * g[1].out_width + first, last - first);
    }
}
