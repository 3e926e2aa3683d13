/* Chunks of LINEAR entries. See linear.h.
 *
 * Memory has to be busy all the time: what streams fetch past the end of a chunk is the thread's next chunk,
 * and a thread that waits for the others fetches the beginning of its share of the next matrix. Which thread
 * reads what first is known, because the pool gives each the same chunks every time and only their ends to
 * others.
 *
 * Nothing here knows a format by name. With one token a matrix is multiplied as it lies: a chunk's rows in
 * one call, of a variable format group by group. A kernel that reads its input in an order of its own gets it
 * from each thread for itself when it begins with an entry: that is read from memory that another thread
 * wrote in any case. With several tokens rows of a format that is decoded go to the thread's scratch, a few
 * at a time, and are multiplied with every tile from there. */
#include "worker-cpu/program/linear.h"

#include <xmmintrin.h>
#include <math.h>
#include <string.h>
#include <unistd.h>

#include "common/base/units.h"

/* The part of the entry's rows [from, to) that is segment g's, as its own rows; false when there is none. */
static bool clip_rows(const struct program_segment *g, uint32_t from, uint32_t to, uint32_t *first,
                      uint32_t *last)
{
    uint32_t end = g->row_first + g->matrix.rows;
    if (from < g->row_first) from = g->row_first;
    if (to > end) to = end;
    if (from >= to) return false;
    *first = from - g->row_first;
    *last = to - g->row_first;
    return true;
}

/* ---- reading ahead ---- */

/* Part of a chunk, as a gemv reads it. */
struct chunk_part {
    const char *w;
    uint64_t run; /* bytes of each of its streams, which lie one after another */
    uint32_t streams;
};

/* Segment `s` of a chunk, or the first after it that has rows there. */
static bool find_part(const struct program_entry *e, uint32_t chunk, uint32_t s, struct chunk_part *part)
{
    uint32_t first, last;
    for (; s < e->segment_count; s++) {
        const struct program_segment *g = &e->segment[s];
        if (!clip_rows(g, e->bound[chunk], e->bound[chunk + 1], &first, &last)) continue;
        part->streams = (uint32_t)g->kernels->one->streams;
        part->w = linear_row_at(g, first);
        part->run = g->kernels->one->neighbours
                        ? tensor_format_row_bytes(g->matrix.format, g->matrix.cols)
                        : (uint64_t)(linear_row_at(g, first + (last - first) / part->streams) - part->w);
        return true;
    }
    return false;
}

/* The first part that a thread reads of a LINEAR, as the pool hands its chunks out; false: it reads none. */
static bool first_part(const struct run *run, const struct program_entry *e, uint32_t thread,
                       struct chunk_part *part)
{
    uint32_t width = e->share && e->share < run->threads ? e->share : run->threads;
    uint32_t chunk = (uint32_t)((uint64_t)e->chunks * thread / width);
    return thread < width && !e->alone && chunk < e->chunks && find_part(e, chunk, 0, part);
}

/* The part that `thread` reads after segment s of a chunk: of this chunk, of the next in the same share, of
 * its share of the LINEAR after this one. */
static bool part_after(const struct run *run, const struct program_entry *e, uint32_t chunk, uint32_t s,
                       uint32_t thread, struct chunk_part *part)
{
    if (find_part(e, chunk, s + 1, part)) return true;
    if (e->share && (chunk + 1) % (e->chunks / e->share)) return find_part(e, chunk + 1, 0, part);
    const struct program_entry *ahead = atomic_load_explicit(&run->ahead, memory_order_relaxed);
    return ahead && first_part(run, ahead, thread, part);
}

/* An idle thread fetches in small pieces, the streams in turn, so that it begins work as soon as there is
 * any. */
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

size_t linear_ordered_bytes(const struct program_segment *g)
{
    return g->kernels->one->order ? g->kernels->one->ordered_bytes(g->matrix.cols) : 0;
}

/* The entry's input as the segment's kernel reads it. */
static const float *ordered_input(const struct run *run, const struct program_entry *e,
                                  const struct program_segment *g, uint32_t thread)
{
    struct run_thread *t = &run->thread[thread];
    gemv_order_fn *order = g->kernels->one->order;
    if (!order) return e->in;
    if (t->ordered_turn != run->turn || t->ordered_by != order) {
        order(t->ordered, e->in, g->matrix.cols);
        t->ordered_turn = run->turn;
        t->ordered_by = order;
    }
    return t->ordered;
}

/* Token t's factors of rows from `first` on: ups, or numbers that are no product. NULL: there are none. */
static const float *factors_of(const struct program_entry *e, size_t t, uint32_t first)
{
    if (e->times) return e->times + t * e->times_width + first;
    return e->gated ? e->segment[1].out + t * e->segment[1].out_width + first : NULL;
}

/* Writes the activation of a gate, times its factors if there are any, into the gate. */
static void activate(const struct run *run, const struct program_entry *e, float *gate, const float *up,
                     uint32_t n)
{
    const struct vector_variant *v = run->kernels->vector;
    void (*const of[ACTIVATIONS])(float *, const float *, const float *,
                                  size_t) = {[ACTIVATION_SILU] = v->swiglu,
                                             [ACTIVATION_CLAMPED] = v->swiglu_clamped,
                                             [ACTIVATION_GELU_TANH] = v->gelu,
                                             [ACTIVATION_RELU] = v->relu,
                                             [ACTIVATION_RELU_SQUARED] = v->relu_squared};
    of[e->activation](gate, gate, up, n);
}

/* The soft cap, where there is one. */
static void cap(const struct program_entry *e, float *out, uint32_t rows)
{
    for (uint32_t r = 0; e->soft_cap != 0 && r < rows; r++)
        out[r] = e->soft_cap * tanhf(out[r] / e->soft_cap);
}

/* Products of rows row .. row + rows, without their biases, to where they belong: scaled, added. from may be
 * out. */
static void put_products(const struct program_entry *e, const struct program_segment *g, uint32_t row,
                         uint32_t rows, const float *from, float *out)
{
    if (e->scale != 0) {
        for (uint32_t r = 0; r < rows; r++) {
            const float product = e->scale * (from[r] + (g->bias ? g->bias[row + r] : 0.0f));
            out[r] = e->residual ? out[r] + product : product;
        }
        cap(e, out, rows);
        return;
    }
    for (uint32_t r = 0; r < rows && (e->residual || from != out); r++)
        out[r] = e->residual ? out[r] + from[r] : from[r];
    for (uint32_t r = 0; g->bias && r < rows; r++) out[r] += g->bias[row + r];
    cap(e, out, rows);
}

/* Rows [first, last), whole groups, of one segment, one token. */
static void segment_gemv(const struct program_entry *e, const struct program_segment *g, uint32_t first,
                         uint32_t last, const float *in, const struct gemv_reads *reads)
{
    const uint32_t each = linear_run_rows(g, last - first);
    struct gemv_reads here = *reads;
    const char *w = linear_row_at(g, first);
    for (uint32_t row = first; row < last; row += each) {
        const uint32_t rows = last - row < each ? last - row : each;
        const char *after = linear_row_at(g, row + rows);
        float *out = g->out + row, sum[PROGRAM_ROWS_MAX];
        here.next = row + rows < last ? after : reads->next;
        g->kernels->one->gemv(e->residual ? sum : out, w, in, rows, g->matrix.cols, &here);
        put_products(e, g, row, rows, e->residual ? sum : out, out);
        w = after;
    }
}

void linear_one_token(void *ctx, uint32_t chunk, uint32_t thread)
{
    struct run *run = ctx;
    const struct program_entry *e = run->entry;
    struct gemv_reads reads = run->reads.gemv;
    uint32_t first, last;
    for (uint32_t s = 0; s < e->segment_count; s++) {
        const struct program_segment *g = &e->segment[s];
        if (!clip_rows(g, e->bound[chunk], e->bound[chunk + 1], &first, &last)) continue;
        struct chunk_part next;
        reads.next = NULL;
        if (run->reads.across && part_after(run, e, chunk, s, thread, &next)) {
            reads.next = next.w;
            reads.next_stride = next.streams == 1 ? reads.near : next.run;
        }
        segment_gemv(e, g, first, last, ordered_input(run, e, g, thread), &reads);
    }
    if (e->activation == ACTIVATION_NONE ||
        !clip_rows(&e->segment[0], e->bound[chunk], e->bound[chunk + 1], &first, &last))
        return;
    activate(run, e, e->segment[0].out + first, factors_of(e, 0, first), last - first);
}

/* ---- a few tokens, each with the bits of one ---- */

/* Weights that stay in L2 while token after token is multiplied with them. */
#define FEW_BYTES ((uint64_t)128 * KIB)

size_t linear_few_ordered_bytes(const struct program_segment *g, uint32_t tokens)
{
    const struct linear_kernel *k = g->kernels->one;
    return k->order ? linear_ordered_few_bytes(k, tokens, g->matrix.cols) : 0;
}

/* Inputs of a few tokens as `few` reads them. */
struct few_in {
    const float *x;
    size_t ldx;
};

/* Those of tokens [first, first + count), at most PROGRAM_FEW_TOKENS. */
static struct few_in few_inputs(const struct run *run, const struct program_entry *e,
                                const struct program_segment *g, uint32_t first, uint32_t count,
                                uint32_t thread)
{
    struct run_thread *t = &run->thread[thread];
    const struct linear_kernel *k = g->kernels->one;
    const float *x = e->in + (size_t)first * e->width;
    if (!k->order) return (struct few_in){x, e->width};
    if (t->ordered_turn != run->turn || t->ordered_by != k->order || t->ordered_first != first) {
        t->ordered_ldx = linear_order_few(k, t->ordered, x, e->width, count, g->matrix.cols);
        t->ordered_turn = run->turn;
        t->ordered_by = k->order;
        t->ordered_first = first;
    }
    return (struct few_in){t->ordered, t->ordered_ldx};
}

/* How many rows, of `rows`, are multiplied with all tokens before the next ones are read: whole groups, and a
 * multiple of what a kernel reads side by side. */
static uint32_t few_rows(const struct program_segment *g, uint32_t rows)
{
    const struct tensor_format_traits *format = tensor_format_of(g->matrix.format);
    if (format->variable) return linear_run_rows(g, rows);
    const struct linear_kernel *k = g->kernels->one;
    const uint32_t granule = (uint32_t)(k->row_granule ? k->row_granule : k->streams);
    uint32_t each = (uint32_t)(FEW_BYTES / tensor_format_row_bytes(g->matrix.format, g->matrix.cols));
    each = each / granule * granule + granule;
    if (each > PROGRAM_ROWS_MAX) each = PROGRAM_ROWS_MAX / granule * granule;
    return each < rows ? each : rows;
}

/* Rows [first, last) of one segment, tokens [token, token + count). */
static void segment_few(const struct run *run, const struct program_segment *g, uint32_t first, uint32_t last,
                        uint32_t token, uint32_t count, uint32_t thread)
{
    const struct program_entry *e = run->entry;
    const struct linear_kernel *k = g->kernels->one;
    const struct few_in in = few_inputs(run, e, g, token, count, thread);
    float *sum = run->thread[thread].scratch;
    const uint32_t each = few_rows(g, last - first);
    for (uint32_t row = first; row < last; row += each) {
        const uint32_t rows = last - row < each ? last - row : each;
        const char *w = linear_row_at(g, row);
        if (k->few)
            k->few(sum, rows, w, in.x, in.ldx, rows, g->matrix.cols, count);
        else
            for (uint32_t t = 0; t < count; t++)
                k->gemv(sum + (size_t)t * rows, w, in.x + t * in.ldx, rows, g->matrix.cols, &run->reads.gemv);
        for (uint32_t t = 0; t < count; t++) {
            put_products(e, g, row, rows, sum + (size_t)t * rows,
                         g->out + (size_t)(token + t) * g->out_width + row);
        }
    }
}

void linear_few(void *ctx, uint32_t chunk, uint32_t thread)
{
    struct run *run = ctx;
    const struct program_entry *e = run->entry;
    const uint32_t tokens = run_tokens(run, e), from = e->bound[chunk], to = e->bound[chunk + 1];
    uint32_t first, last;
    for (uint32_t t = 0; t < tokens; t += PROGRAM_FEW_TOKENS) {
        const uint32_t count = tokens - t < PROGRAM_FEW_TOKENS ? tokens - t : PROGRAM_FEW_TOKENS;
        for (uint32_t s = 0; s < e->segment_count; s++)
            if (clip_rows(&e->segment[s], from, to, &first, &last))
                segment_few(run, &e->segment[s], first, last, t, count, thread);
    }
    const struct program_segment *g = e->segment;
    if (e->activation == ACTIVATION_NONE || !clip_rows(g, from, to, &first, &last)) return;
    for (uint32_t t = 0; t < tokens; t++)
        activate(run, e, g->out + (size_t)t * g->out_width + first, factors_of(e, t, first), last - first);
}

/* ---- a matrix for each head ---- */

/* Inputs of a head's tokens as its kernel reads them. */
static struct few_in head_inputs(const struct run *run, const struct linear_kernel *k, const float *x,
                                 uint32_t count, uint32_t thread)
{
    const struct program_entry *e = run->entry;
    struct run_thread *t = &run->thread[thread];
    if (!k->order) return (struct few_in){x, e->width};
    t->ordered_by = NULL; /* nothing that an entry of LINEAR would find */
    return (struct few_in){t->ordered,
                           linear_order_few(k, t->ordered, x, e->width, count, e->segment[0].matrix.cols)};
}

/* Rows [first, last) of a head, tokens [token, token + count). */
static void head_few(const struct run *run, uint32_t head, uint32_t first, uint32_t last, uint32_t token,
                     uint32_t count, uint32_t thread)
{
    const struct program_entry *e = run->entry;
    const struct program_segment *g = &e->segment[0];
    const struct linear_kernel *k = g->kernels->one;
    const uint32_t all = g->matrix.rows / run->config->heads, each = few_rows(g, last - first);
    const float *x = e->in + (size_t)token * e->width + (size_t)head * e->head_in;
    float *out = g->out + (size_t)token * g->out_width + (size_t)head * e->head_out,
          *sum = run->thread[thread].scratch;
    const struct few_in in = head_inputs(run, k, x, count, thread);
    for (uint32_t row = first; row < last; row += each) {
        const uint32_t rows = last - row < each ? last - row : each;
        const char *w = linear_row_at(g, head * all + row);
        if (k->few && count > 1)
            k->few(sum, rows, w, in.x, in.ldx, rows, g->matrix.cols, count);
        else
            for (uint32_t t = 0; t < count; t++)
                k->gemv(sum + (size_t)t * rows, w, in.x + t * in.ldx, rows, g->matrix.cols, &run->reads.gemv);
        for (uint32_t t = 0; t < count; t++)
            memcpy(out + (size_t)t * g->out_width + row, sum + (size_t)t * rows, rows * sizeof *sum);
    }
    /* numbers that are not multiplied, once */
    for (uint32_t t = 0; t < count && last == all && all < e->head_out; t++)
        memcpy(out + (size_t)t * g->out_width + all, x + (size_t)t * e->width + g->matrix.cols,
               (e->head_out - all) * sizeof *out);
}

void linear_heads(void *ctx, uint32_t chunk, uint32_t thread)
{
    const struct run *run = ctx;
    const struct program_entry *e = run->entry;
    const uint32_t tokens = run_tokens(run, e), piece = chunk % e->chunks;
    for (uint32_t t = 0; t < tokens; t += PROGRAM_FEW_TOKENS)
        head_few(run, chunk / e->chunks, e->bound[piece], e->bound[piece + 1], t,
                 tokens - t < PROGRAM_FEW_TOKENS ? tokens - t : PROGRAM_FEW_TOKENS, thread);
}

/* ---- several tokens ---- */

size_t linear_tile_bytes(const struct linear_kernel *kernel, size_t tokens, size_t cols)
{
    size_t tile = tokens < PROGRAM_TILE_TOKENS ? tokens : PROGRAM_TILE_TOKENS;
    return (kernel->tiled_bytes(tile, cols) + 63) / 64 * 64;
}

/* An input of a product of this entry's tokens, or what one of them is tiled to: of one tile. */
static char *tiled_at(const struct run *run, const struct linear_kernel *k, enum program_tiled which,
                      uint32_t tile, uint32_t cols)
{
    return (char *)run->act->tiled[which][k->format] +
           tile * linear_tile_bytes(k, run_tokens(run, run->entry), cols);
}

/* The tokens of one tile. */
static uint32_t tokens_of(const struct run *run, uint32_t tile)
{
    const uint32_t left = run_tokens(run, run->entry) - tile * PROGRAM_TILE_TOKENS;
    return left < PROGRAM_TILE_TOKENS ? left : PROGRAM_TILE_TOKENS;
}

static void multiply_rows(const struct program_segment *g, float *out, uint32_t rows, uint32_t tokens,
                          float by)
{
    for (uint32_t t = 0; t < tokens; t++)
        for (uint32_t r = 0; r < rows; r++) out[(size_t)t * g->out_width + r] *= by;
}

/* Rows [first, last) of one segment, which are at w as the kernel multiplies them, the tokens of one tile. */
static void segment_gemm(const struct run *run, const struct program_segment *g, const void *w,
                         uint32_t first, uint32_t last, uint32_t tile, uint32_t thread)
{
    const struct program_entry *e = run->entry;
    const struct linear_kernel *k = g->kernels->tokens;
    const uint32_t base = tile * PROGRAM_TILE_TOKENS, in_tile = tokens_of(run, tile), rows = last - first;
    const char *tiled = tiled_at(run, k, e->tiled, tile, g->matrix.cols);
    float *out = g->out + (size_t)base * g->out_width + first;
    if (k->thread_begin) k->thread_begin();
    /* s * (x / s + W a) is x + s * W a: kernels add to what is there, unscaled */
    if (e->scale != 0 && e->residual) multiply_rows(g, out, rows, in_tile, 1 / e->scale);
    k->gemm(out, g->out_width, w, tiled, rows, g->matrix.cols, in_tile, e->residual,
            run->thread[thread].scratch);
    if (k->thread_end) k->thread_end();
    if (g->bias)
        for (uint32_t t = 0; t < in_tile; t++)
            for (uint32_t r = 0; r < rows; r++) out[(size_t)t * g->out_width + r] += g->bias[first + r];
    if (e->scale != 0) multiply_rows(g, out, rows, in_tile, e->scale);
    for (uint32_t t = 0; t < in_tile; t++) cap(e, out + (size_t)t * g->out_width, rows);
}

static size_t decoded_row_bytes(const struct program_segment *g)
{
    return tensor_format_row_bytes(g->kernels->tokens->format, g->matrix.cols);
}

/* Rows that are decoded at a time, whole groups: as many as a gemm likes, of which whole tiles of its sums
 * come; half of them where it is content with that and all would hardly stay in the cache. */
static uint32_t decoded_rows(const struct program_segment *g)
{
    const uint32_t group = tensor_format_of(g->matrix.format)->group_rows;
    uint32_t rows = group;
    while (rows % g->kernels->tokens->row_granule) rows += group;
    while (rows % (2 * group) == 0 && rows * decoded_row_bytes(g) > CPU_UNPACKED_BYTES) rows /= 2;
    return rows;
}

size_t linear_decoded_bytes(const struct program_segment *g)
{
    return g->kernels->decode ? decoded_rows(g) * decoded_row_bytes(g) : 0;
}

/* Rows [from, to), whole groups, decoded to the thread's memory. */
static const void *decode_rows(const struct run *run, const struct program_segment *g, uint32_t from,
                               uint32_t to, uint32_t thread)
{
    const uint32_t group = linear_run_rows(g, to - from);
    char *decoded = run->thread[thread].decoded;
    for (uint32_t row = from; row < to; row += group)
        g->kernels->decode->decode(decoded + (row - from) * decoded_row_bytes(g), linear_row_at(g, row),
                                   to - row < group ? to - row : group, g->matrix.cols);
    return decoded;
}

/* Rows [first, last) of one segment, tiles [tile, tile_end). */
static void segment_tokens(const struct run *run, const struct program_segment *g, uint32_t first,
                           uint32_t last, uint32_t tile, uint32_t tile_end, uint32_t thread)
{
    const struct linear_kernel *decode = g->kernels->decode;
    const uint32_t each = decode ? decoded_rows(g) : last - first;
    for (uint32_t from = first; from < last; from += each) {
        const uint32_t to = last - from < each ? last : from + each;
        const void *w = decode ? decode_rows(run, g, from, to, thread) : linear_row_at(g, from);
        for (uint32_t t = tile; t < tile_end; t++) segment_gemm(run, g, w, from, to, t, thread);
    }
}

void linear_multiply(const struct run *run, const struct linear_product *p, uint32_t thread)
{
    const struct program_segment *g = p->segment;
    const struct linear_kernel *k = g->kernels->tokens, *decode = g->kernels->decode;
    const uint32_t each = decode ? decoded_rows(g) : p->last - p->first;
    if (k->thread_begin) k->thread_begin();
    for (uint32_t from = p->first; from < p->last; from += each) {
        const uint32_t rows = p->last - from < each ? p->last - from : each;
        const void *w = decode ? decode_rows(run, g, from, from + rows, thread) : linear_row_at(g, from);
        k->gemm(p->y + (from - p->first), p->ldy, w, p->tiled, rows, g->matrix.cols, p->tokens, false,
                run->thread[thread].scratch);
    }
    if (k->thread_end) k->thread_end();
}

/* Rows [first, last) of gates and ups, the tokens of one tile, joined and tiled by one kernel. */
static void join_at_once(const struct run *run, uint32_t first, uint32_t last, uint32_t tile, uint32_t thread)
{
    const struct program_entry *e = run->entry;
    const struct program_segment *g = e->segment;
    const struct linear_kernel *k = g->kernels->tokens;
    const struct gemm_joined joined = {.gate = linear_row_at(&g[0], first),
                                       .up = linear_row_at(&g[1], first),
                                       .tiled = tiled_at(run, k, e->tiled, tile, g->matrix.cols),
                                       .rows = last - first,
                                       .cols = g->matrix.cols,
                                       .tokens = tokens_of(run, tile),
                                       .out = tiled_at(run, e->tile[0], TILED_JOINED, tile, g->matrix.rows),
                                       .out_cols = g->matrix.rows,
                                       .out_first = first,
                                       .scratch = run->thread[thread].scratch};
    if (k->thread_begin) k->thread_begin();
    e->join(&joined);
    if (k->thread_end) k->thread_end();
}

/* The same of gates, and ups if there are any, that are in their buffers. */
static void join_rows(const struct run *run, uint32_t first, uint32_t last, uint32_t tile)
{
    const struct program_entry *e = run->entry;
    const struct program_segment *g = e->segment;
    const uint32_t tokens = tokens_of(run, tile), width = g->out_width;
    float *gates = g[0].out + (size_t)tile * PROGRAM_TILE_TOKENS * width;
    for (size_t t = 0; t < tokens; t++)
        activate(run, e, gates + t * width + first,
                 factors_of(e, (size_t)tile * PROGRAM_TILE_TOKENS + t, first), last - first);
    for (uint32_t i = 0; i < e->tile_count; i++)
        e->tile[i]->tile(tiled_at(run, e->tile[i], TILED_JOINED, tile, g->matrix.rows), gates + first, width,
                         tokens, g->matrix.rows, 0, tokens, first, last);
}

void linear_tokens(void *ctx, uint32_t chunk, uint32_t thread)
{
    struct run *run = ctx;
    const struct program_entry *e = run->entry;
    const uint32_t tokens = run_tokens(run, e), tiles = run_ceil_div(tokens, PROGRAM_TILE_TOKENS);
    uint32_t tile = 0, tile_end = tiles, first, last;
    if (!e->decoded) {
        tile = chunk % tiles; /* the same weights for each tile in turn: they stay in this core's cache */
        tile_end = tile + 1;
        chunk /= tiles;
    }
    const uint32_t from = e->bound[chunk], to = e->bound[chunk + 1];
    if (e->join && from < to && tokens_of(run, tile) >= e->segment[0].kernels->tokens->join_tokens) {
        join_at_once(run, from, to, tile, thread); /* whose weights are not decoded: one tile */
        return;
    }
    for (uint32_t s = 0; s < e->segment_count; s++)
        if (clip_rows(&e->segment[s], from, to, &first, &last))
            segment_tokens(run, &e->segment[s], first, last, tile, tile_end, thread);
    for (; e->activation != ACTIVATION_NONE && from < to && tile < tile_end; tile++)
        join_rows(run, from, to, tile);
}
