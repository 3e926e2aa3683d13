/* How an operation's rows are cut into chunks of work, which threads take in turn. See lower.h; called by
 * program.c as entries are made. */
#include "worker-cpu/program/lower.h"

#include <stdlib.h>

#include "common/base/units.h"

/* With one token or a few, a thread takes a third of what is left of its share at a time, but no more than 10
 * to 20 us of one core's share of the bandwidth, and no less than 3 to 5: what it has begun no other thread
 * takes from it, and on virtual CPUs some threads are slow, two of which share a core for some seconds at 0.6
 * of the others' speed. Within a share a chunk's reading goes on in the next one, so short chunks cost
 * nothing; the shortest come last, where others steal. */
#define GEMV_CHUNK_BYTES_MAX (128 * KIB)
#define GEMV_CHUNK_BYTES_MIN (32 * KIB)
#define GEMV_CHUNK_PART      3
/* One token's experts: a matrix's rows of a piece. A call begins with its streams' latencies, 0.3 to 0.5 us:
 * calls of 14 and of 27 KiB read 20 and 10 % slower than of 55 or more (notes/cpu-decode.md). */
#define EXPERTS_CALL_BYTES     (64 * KIB)
#define EXPERTS_CALL_BYTES_MIN (24 * KIB)
/* Pieces of each thread, where calls twice as long still leave as many. */
#define EXPERTS_PIECES 16
/* The least of several tokens' experts that is worth another piece. */
#define EXPERTS_PIECE_BYTES (48 * KIB)
/* The least that is worth another thread's joining in: a small model on many cores is faster on some of them,
 * and with busy neighbours much faster, because every thread that takes part can be the one that is not
 * running. */
#define GEMV_SHARE_BYTES (192 * KIB)
/* A router's least: after it all threads have its experts. */
#define ROUTER_SHARE_BYTES (64 * KIB)
/* Multiply-adds of one gemm chunk of many tokens: about 50 us of one core. */
#define GEMM_CHUNK_OPS (UINT64_C(12) << 20)

static uint64_t gcd(uint64_t a, uint64_t b)
{
    while (b) {
        uint64_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

static uint64_t common_multiple(uint64_t a, uint64_t b)
{
    return a / gcd(a, b) * b;
}

void cut_tiles(struct program_entry *e, const struct linear_kernel *kernel)
{
    uint64_t granule = kernel->tile_tokens;
    uint32_t i = 0;
    while (i < e->tile_count && e->tile[i]->tile != kernel->tile) i++;
    if (i == e->tile_count) e->tile[e->tile_count++] = kernel;
    for (i = 0; i < e->tile_count; i++) granule = common_multiple(granule, e->tile[i]->tile_tokens);
    e->chunk = (uint32_t)round_up(TOKENS_A_CHUNK, granule);
}

/* How a share is cut: its rows' bytes and columns, what chunks are multiples of, and the rows of many tokens'
 * chunk where a share has twice as many. */
struct cut {
    uint64_t row_bytes, cols, granule, call_rows;
};

/* Chunk sizes of one thread's share of `rows` rows, in rows; returns how many, at most `room`. */
static uint32_t cut_share(const struct lowering *low, uint64_t rows, const struct cut *cut, uint32_t *size,
                          uint32_t room)
{
    const bool many = low->tiled && low->tokens > PROGRAM_FEW_TOKENS;
    const uint64_t row_bytes = cut->row_bytes, granule = cut->granule,
                   least = cut->call_rows < rows / 2 ? cut->call_rows : rows / 2;
    uint32_t count = 0;
    while (rows && count < room) {
        uint64_t take;
        if (many) {
            take = GEMM_CHUNK_OPS / (cut->cols * low->tokens);
            if (take < least) take = least;
        } else {
            uint64_t bytes = rows * row_bytes / GEMV_CHUNK_PART;
            if (bytes > GEMV_CHUNK_BYTES_MAX) bytes = GEMV_CHUNK_BYTES_MAX;
            if (bytes < GEMV_CHUNK_BYTES_MIN) bytes = GEMV_CHUNK_BYTES_MIN;
            take = bytes / row_bytes;
        }
        take = round_up(take, granule);
        if (take > PROGRAM_ROWS_MAX) take = PROGRAM_ROWS_MAX / granule * granule;
        if (take < granule) take = granule;
        /* A gemv leaves no single row over: alone it would be read as one stream. */
        if (take > rows || (!low->tiled && rows - take < granule) || count + 1 == room) take = rows;
        size[count++] = (uint32_t)take;
        rows -= take;
    }
    return count;
}

/* Chunks of this segment's rows should have multiples of this, and must where a format has groups of rows. */
static uint64_t granule_of(const struct lowering *low, const struct program_segment *g)
{
    const struct linear_kernel *one = g->kernels->one;
    const uint64_t unit = low->tiled || low->source->coarse ? g->kernels->tokens->row_granule
                          : low->few && one->row_granule    ? one->row_granule
                                                            : one->streams;
    return common_multiple(unit, tensor_format_of(g->matrix.format)->group_rows);
}

/* Bytes of weights that a segment reads. */
static uint64_t segment_bytes(const struct lowering *low, const struct tensor_matrix *m)
{
    if (!low->source->arena) return tensor_format_bytes(m->format, m->rows, m->cols);
    return tensor_format_row_at(m, m->rows) - tensor_format_row_at(m, 0);
}

void cut_rows(struct lowering *low, struct program_entry *e, bool router)
{
    const uint64_t worth = router ? ROUTER_SHARE_BYTES : GEMV_SHARE_BYTES;
    struct cut cut = {.row_bytes = 1, .cols = 1, .granule = 1};
    uint64_t rows_all = 0;
    uint32_t threads = low->source->threads;
    bool whole_groups = false;
    for (uint32_t s = 0; s < e->segment_count; s++) {
        struct program_segment *g = &e->segment[s];
        cut.granule = common_multiple(cut.granule, granule_of(low, g));
        if (g->kernels->tokens->call_rows > cut.call_rows) cut.call_rows = g->kernels->tokens->call_rows;
        whole_groups |= tensor_format_of(g->matrix.format)->group_rows > 1;
        cut.cols = g->matrix.cols;
        g->row_first = e->gated ? 0 : (uint32_t)rows_all;
        rows_all += g->matrix.rows;
        e->bytes += segment_bytes(low, &g->matrix);
    }
    for (uint32_t t = 0; t < e->tile_count; t++)
        cut.granule = common_multiple(cut.granule, e->tile[t]->tile_cols);
    if (e->join) cut.call_rows = e->segment[0].kernels->tokens->join_rows;
    cut.row_bytes = e->bytes / rows_all;
    if (e->gated) { /* a chunk computes the same rows of both */
        cut.row_bytes *= 2;
        cut.cols *= 2;
        rows_all = e->segment[0].matrix.rows;
    }
    if (!low->tiled || low->tokens <= PROGRAM_FEW_TOKENS) {
        const uint64_t most = e->bytes / worth;
        if (most < threads) threads = most ? (uint32_t)most : 1;
        e->share = threads;
        e->alone = threads == 1;
    }
    uint64_t share = (rows_all + threads - 1) / threads;
    if (low->tiled || low->source->coarse || whole_groups) share = round_up(share, cut.granule);
    uint32_t room = (POOL_CHUNKS_MAX / 4) / threads;
    if (room > share) room = (uint32_t)share;
    uint32_t *size = malloc((room + 1) * sizeof *size);
    uint32_t count = size ? cut_share(low, share, &cut, size, room) : 0;
    e->chunks = count * threads;
    e->bound = malloc((e->chunks + 1) * sizeof *e->bound);
    if (size && e->bound) {
        for (uint32_t t = 0; t < threads; t++) {
            uint64_t at = t * share;
            for (uint32_t i = 0; i < count; i++, at += size[i - 1])
                e->bound[t * count + i] = (uint32_t)(at < rows_all ? at : rows_all);
        }
        e->bound[e->chunks] = (uint32_t)rows_all;
    }
    if (!size || !e->bound) low->rc = helm_fail(low->err, HELM_E_NOMEM, "no memory for %u chunks", room);
    free(size);
}

void cut_heads(struct lowering *low, struct program_entry *e)
{
    const struct program_segment *g = &e->segment[0];
    const uint32_t heads = low->source->model->config.heads, rows = g->matrix.rows / heads;
    const uint64_t granule = granule_of(low, g), units = (rows + granule - 1) / granule;
    e->bytes = segment_bytes(low, &g->matrix);
    if (tensor_format_of(g->matrix.format)->group_rows > 1 && rows % granule)
        lower_unsupported(low, e->layer, "heads of rows that are no whole groups of the format");
    uint64_t pieces = e->bytes / heads / GEMV_CHUNK_BYTES_MIN;
    if (pieces > units) pieces = units;
    if (pieces < 1) pieces = 1;
    e->chunks = (uint32_t)pieces;
    e->bound = malloc((pieces + 1) * sizeof *e->bound);
    if (pieces * heads > POOL_CHUNKS_MAX) lower_unsupported(low, e->layer, "heads of so many rows");
    if (!e->bound) {
        low->rc = helm_fail(low->err, HELM_E_NOMEM, "no memory for %u pieces of heads", e->chunks);
        return;
    }
    for (uint64_t i = 0; i < pieces; i++) e->bound[i] = (uint32_t)(i * units / pieces * granule);
    e->bound[pieces] = rows;
    const uint64_t worth = e->bytes / GEMV_SHARE_BYTES, threads = low->source->threads;
    e->share = (uint32_t)(worth < 1 ? 1 : worth < threads ? worth : threads);
    e->alone = !low->tiled && !low->few && e->share == 1;
}

/* In how many pieces `bytes` of one of an expert's matrices are cut, for one token: so many that each thread
 * has as many of all chosen ones together; where the GPU asks for some, of any number of them, if pieces are
 * long enough then. */
static uint64_t pieces_of_one(const struct lowering *low, const struct program_entry *e, uint64_t bytes)
{
    const uint64_t threads = low->source->threads, even = threads / gcd(threads, e->chosen);
    uint64_t call = 2 * EXPERTS_CALL_BYTES;
    if (bytes / call * e->chosen < EXPERTS_PIECES * threads) call = EXPERTS_CALL_BYTES;
    const uint64_t pieces = (bytes + call - 1) / call, each = round_up(pieces, threads),
                   together = round_up(pieces, even);
    if (e->asked && bytes / each >= EXPERTS_CALL_BYTES_MIN) return each;
    if (bytes / together >= EXPERTS_CALL_BYTES_MIN) return together;
    return bytes < EXPERTS_CALL_BYTES_MIN ? 1 : bytes / EXPERTS_CALL_BYTES_MIN;
}

/* The same for several tokens, whose input each piece has to gather: the chosen ones together have several
 * for each thread. */
static uint64_t pieces_of_several(const struct lowering *low, const struct program_entry *e)
{
    const uint64_t threads = low->source->threads;
    uint64_t pieces = e->bytes / EXPERTS_PIECE_BYTES;
    if (pieces > 4 * threads) pieces = 4 * threads;
    if (pieces > threads) pieces = pieces / threads * threads;
    return (pieces + e->chosen - 1) / e->chosen;
}

void cut_experts(struct lowering *low, struct program_entry *e)
{
    const uint32_t threads = low->source->threads, rows = e->expert_rows;
    const bool one = !low->tiled && !low->few;
    uint64_t granule = 1, bytes = 0;
    for (uint32_t s = 0; s < e->segment_count; s++) {
        granule = common_multiple(granule, granule_of(low, &e->segment[s]));
        bytes += segment_bytes(low, &e->segment[s].matrix) / e->experts;
    }
    e->bytes = bytes * e->chosen;
    if (granule > CPU_EXPERTS_ROWS) {
        lower_unsupported(low, e->layer, "experts of so many rows");
        return;
    }
    const uint64_t units = (rows + granule - 1) / granule, most = CPU_EXPERTS_ROWS / granule,
                   least = (units + most - 1) / most;
    uint64_t pieces = one ? pieces_of_one(low, e, bytes / e->segment_count) : pieces_of_several(low, e);
    if (pieces < least) pieces = least;
    if (pieces > units) pieces = units;
    e->chunks = (uint32_t)pieces;
    e->bound = malloc((pieces + 1) * sizeof *e->bound);
    if ((uint64_t)e->experts * e->chunks > POOL_CHUNKS_MAX)
        lower_unsupported(low, e->layer, "experts of so many rows");
    if (!e->bound) {
        low->rc = helm_fail(low->err, HELM_E_NOMEM, "no memory for %u pieces of experts", e->chunks);
        return;
    }
    for (uint64_t i = 0; i < pieces; i++) e->bound[i] = (uint32_t)(i * units / pieces * granule);
    e->bound[pieces] = rows;
    if (!one) return; /* how much there is depends on the step */
    const uint64_t worth = e->bytes / GEMV_SHARE_BYTES;
    e->share = worth < threads ? (worth ? (uint32_t)worth : 1) : threads;
    e->alone = e->share == 1;
}
