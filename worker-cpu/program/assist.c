/* The CPU's part of attention in layers whose cache is the GPU's. See execute.h. Called by execute.c. */
#include "worker-cpu/program/execute.h"

#include <stdlib.h>
#include <string.h>

#include "common/base/units.h"
#include "worker-cpu/program/linear.h"

/* Pieces begin at multiples of UNIT_POSITIONS and have at least PIECE_UNITS units (of one kv head): shorter
 * ones balance the threads' load better, but cost more to begin and to fold than that gains. */
#define UNIT_POSITIONS KV_PAGE_TOKENS_DEFAULT
#define PIECE_UNITS    (EXECUTE_SPLIT_POSITIONS / UNIT_POSITIONS)
/* A piece takes enough kv heads that their keys of a page are a run of CPU_RUN_BYTES, or all: memory delivers
 * runs of 8 KiB at half the speed of runs of 64 KiB. It takes no more, since the results to be folded grow
 * with the heads. */
/* Pieces a thread: with more the last ones end closer together, with fewer there are fewer to begin and to
 * fold. */
#define PIECES_LEAST 4
#define PIECES_MOST  8
/* Costs in twentieths of a unit of all of a piece's heads: a piece, to begin and to fold it; and each unit of
 * the longest, which a thread of 0.6 of the others' speed (two virtual CPUs on one core) ends last. */
#define UNIT_COST  20
#define PIECE_COST 7
#define SLOW_COST  13
/* Cache bytes read for a layer for each thread that takes part: fewer are not worth a thread. */
#define ASSIST_SHARE_BYTES (48 * KIB)

static uint32_t blocks_of(const struct run *run)
{
    return run->config->kv_heads / run->assist.heads;
}

/* The most pieces that cut() makes of any step: a piece more than the even share for every block of every
 * row. */
static uint32_t parts_most(const struct run *run)
{
    return PIECES_MOST * run->threads + ARENA_KV_TOKENS * blocks_of(run);
}

static uint32_t heads_together(const struct run *run)
{
    const uint32_t all = run->config->kv_heads;
    uint32_t heads = 1;
    while (heads < all && (all % heads || heads * kv_head_bytes(&run->kv) < CPU_RUN_BYTES)) heads++;
    return heads;
}

int assist_create(struct run *run, struct helm_err *err)
{
    struct run_assist *a = &run->assist;
    if (!arena_header_of(run->arena)->vram_page_count) return 0;
    a->heads = heads_together(run);
    const uint32_t parts = parts_most(run), queries = a->heads * run->kv_heads_group;
    if (parts > POOL_CHUNKS_MAX)
        return helm_fail(err, HELM_E_LIMIT, "%u kv heads of %d tokens make %u attention tasks, more than %u",
                         run->config->kv_heads, ARENA_KV_TOKENS, parts, POOL_CHUNKS_MAX);
    a->out = calloc((size_t)parts * queries * run->config->head_dim, sizeof(float));
    a->max = calloc((size_t)parts * queries, sizeof(float));
    a->sum = calloc((size_t)parts * queries, sizeof(float));
    a->met = calloc(parts, sizeof *a->met);
    if (a->out && a->max && a->sum && a->met) return 0;
    return helm_fail(err, HELM_E_NOMEM, "no memory for %u partial results of attention", parts);
}

void assist_destroy(struct run *run)
{
    free(run->assist.out);
    free(run->assist.max);
    free(run->assist.sum);
    free(run->assist.met);
    memset(&run->assist, 0, sizeof run->assist);
}

/* ---- cutting ---- */

static uint32_t units_of(const struct run_assist_row *row)
{
    return run_ceil_div(row->to, UNIT_POSITIONS) - row->from / UNIT_POSITIONS;
}

/* Cuts every row into pieces of at most `piece` units; returns the number of tasks. *longest: units of the
 * longest piece. */
static uint32_t cut_by(struct run *run, uint32_t piece, uint32_t *longest)
{
    uint32_t tasks = 0;
    *longest = 0;
    for (uint32_t r = 0; r < run->batch.row_count; r++) {
        struct run_assist_row *row = &run->assist.row[r];
        const uint32_t units = units_of(row);
        row->splits = units ? run_ceil_div(units, piece) : 1;
        row->task_first = tasks;
        tasks += row->splits * blocks_of(run);
        const uint32_t part = run_ceil_div(units, row->splits);
        if (part > *longest) *longest = part;
    }
    return tasks;
}

static uint32_t piece_units(const struct run *run, uint64_t units, uint32_t pieces)
{
    const uint64_t tasks = (uint64_t)pieces * run->threads, piece = (units + tasks - 1) / tasks;
    const uint32_t least = run_ceil_div(PIECE_UNITS, run->assist.heads);
    return piece < least ? least : (uint32_t)piece;
}

/* Chooses the cut by which the threads finish first, if each takes equal numbers of pieces and a slow one has
 * begun its last. */
static void cut(struct run *run, const struct program_entry *e)
{
    uint64_t units = 0, least = UINT64_MAX;
    uint32_t best = PIECES_LEAST, longest;
    for (uint32_t r = 0; r < run->batch.row_count; r++) {
        const struct batch_row *in = run->row[r].in;
        struct run_assist_row *row = &run->assist.row[r];
        row->to = batch_direct_from(in, e->window, run->kv.page_tokens);
        row->from = e->window && in->start + 1 > e->window ? in->start + 1 - e->window : 0;
        if (row->from > row->to) row->from = row->to;
        units += (uint64_t)units_of(row) * blocks_of(run);
    }
    for (uint32_t pieces = PIECES_LEAST; pieces <= PIECES_MOST; pieces++) {
        const uint32_t tasks = cut_by(run, piece_units(run, units, pieces), &longest);
        const uint64_t rounds = run_ceil_div(tasks, run->threads),
                       cost = rounds * (UNIT_COST * longest + PIECE_COST) + SLOW_COST * longest;
        if (cost >= least) continue;
        least = cost;
        best = pieces;
    }
    run->assist.tasks = cut_by(run, piece_units(run, units, best), &longest);
    const uint64_t bytes = units * UNIT_POSITIONS * run->assist.heads * 2 *
                           kv_cell_bytes(run->kv.dtype, run->kv.head_dim),
                   width = bytes / ASSIST_SHARE_BYTES;
    run->assist.width = width < 1 ? 1 : width > run->threads ? run->threads : (uint32_t)width;
}

/* ---- a chunk ---- */

/* The piece that a chunk computes. */
struct piece {
    uint32_t row, block, split;
};

static struct piece piece_of(const struct run *run, uint32_t chunk)
{
    const struct run_assist *a = &run->assist;
    struct piece p = {0, 0, 0};
    while (p.row + 1 < run->batch.row_count && chunk >= a->row[p.row + 1].task_first) p.row++;
    const uint32_t task = chunk - a->row[p.row].task_first;
    p.block = task / a->row[p.row].splits;
    p.split = task % a->row[p.row].splits;
    return p;
}

static struct attention_task task_of(const struct run *run, uint32_t chunk)
{
    const struct program_entry *e = run->entry;
    const struct run_assist *a = &run->assist;
    const struct piece p = piece_of(run, chunk);
    const struct run_assist_row *row = &a->row[p.row];
    const struct batch_row *in = run->row[p.row].in;
    const uint32_t group = run->kv_heads_group, dim = run->config->head_dim, queries = a->heads * group;
    const uint32_t unit = row->from / UNIT_POSITIONS, units = units_of(row);
    const uint32_t from = (unit + units * p.split / row->splits) * UNIT_POSITIONS,
                   to = (unit + units * (p.split + 1) / row->splits) * UNIT_POSITIONS;
    return (struct attention_task){.q = e->lane->data +
                                        ((size_t)in->token_first * run->config->heads + p.block * queries) *
                                            dim,
                                   .q_stride = (size_t)run->config->heads * dim,
                                   .tokens = 1,
                                   .group = group,
                                   .kv_heads = a->heads,
                                   .start = in->start,
                                   .kv_first = from > row->from ? from : row->from,
                                   .kv_last = to < row->to ? to : row->to,
                                   .window = e->window,
                                   .scale = e->scale,
                                   .kv = &run->kv,
                                   .pool = run->kv_pool,
                                   .pages = in->pages,
                                   .layer = e->kv_layer,
                                   .kv_head = p.block * a->heads,
                                   .out = a->out + (size_t)chunk * queries * dim,
                                   .out_stride = (size_t)queries * dim,
                                   .m = a->max + (size_t)chunk * queries,
                                   .s = a->sum + (size_t)chunk * queries};
}

/* Writes the folded result of a row's block of heads into the lane: [head]{m, s, o}. */
static void answer(struct run *run, const struct piece *p, uint32_t chunk)
{
    const struct run_assist *a = &run->assist;
    const uint32_t dim = run->config->head_dim, queries = a->heads * run->kv_heads_group;
    const size_t token = run->row[p->row].in->token_first, from = (size_t)chunk * queries;
    float *to = run->entry->answer->data + (token * run->config->heads + p->block * queries) * (dim + 2);
    for (uint32_t i = 0; i < queries; i++, to += dim + 2) {
        to[0] = a->max[from + i];
        to[1] = a->sum[from + i];
        memcpy(to + 2, a->out + (from + i) * dim, dim * sizeof *to);
    }
}

/* A piece is done. Pieces are folded two and two, those in turn two and two: in an order that depends on
 * their number alone, most of them by the thread that has both in its caches, and the last ones by several
 * threads. The second of two to be done folds; where there is no second, the first goes on. */
static void fold(struct run *run, const struct piece *p, uint32_t chunk)
{
    const struct run_assist *a = &run->assist;
    const uint32_t dim = run->config->head_dim, queries = a->heads * run->kv_heads_group,
                   splits = a->row[p->row].splits, first = chunk - p->split;
    uint32_t left = p->split;
    for (uint32_t step = 1; step < splits; step *= 2) {
        left &= ~step;
        if (left + step >= splits) continue;
        const size_t to = (size_t)(first + left) * queries, from = (size_t)(first + left + step) * queries;
        _Atomic uint32_t *met = &a->met[first + left + step];
        if (atomic_fetch_add_explicit(met, 1, memory_order_acq_rel) == 0) return;
        atomic_store_explicit(met, 0, memory_order_relaxed); /* for the next layer */
        for (uint32_t i = 0; i < queries; i++)
            attention_fold(&a->max[to + i], &a->sum[to + i], a->out + (to + i) * dim, a->max[from + i],
                           a->sum[from + i], a->out + (from + i) * dim, dim);
    }
    answer(run, p, first);
}

static void chunk_assist(void *ctx, uint32_t chunk, uint32_t thread)
{
    struct run *run = ctx;
    struct attention_task attend = task_of(run, chunk), next;
    attend.scratch = run->thread[thread].scratch;
    if (chunk + 1 < run->assist.tasks) { /* a thread takes them in turn, but for its last */
        next = task_of(run, chunk + 1);
        attend.next = &next;
    }
    run->kernels->attention->attend(&attend);
    const struct piece p = piece_of(run, chunk);
    fold(run, &p, chunk);
}

/* ---- an entry ---- */

int assist_begin(struct run *run, const struct program_entry *e, struct helm_err *err)
{
    const int wait_ms = (int)run->peer_wait_ms;
    int rc = lane_wait(e->lane, e->ticket, run->spin_us, wait_ms, run->cancel, err);
    if (!rc) rc = lane_acquire(e->answer, e->ticket, run->spin_us, wait_ms, run->cancel, err);
    return rc;
}

struct pool_job assist_job(struct run *run, const struct program_entry *e)
{
    cut(run, e);
    return (struct pool_job){.run = chunk_assist,
                             .chunks = run->assist.tasks,
                             .alone = run->assist.width == 1,
                             .width = run->assist.width};
}

int assist_end(const struct program_entry *e, struct helm_err *err)
{
    if (e->last) lane_release(e->lane); /* before the answer: after it the GPU may begin the next step */
    return lane_publish(e->answer, e->ticket, err);
}
