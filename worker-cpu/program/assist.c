/* The CPU's part of attention in layers whose cache is the GPU's. See assist.h. Called by execute.c. */
#include "worker-cpu/program/assist.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/units.h"
#include "worker-cpu/program/linear.h"

/* Pieces begin at multiples of so many positions, and have at least so many units: shorter ones cost more to fold and to
 * begin than they even out. */
#define UNIT_POSITIONS KV_PAGE_TOKENS_DEFAULT
#define PIECE_UNITS    (EXECUTE_SPLIT_POSITIONS / UNIT_POSITIONS)
/* Pieces a thread: with more the last ones end closer together, with fewer there are fewer to fold. */
#define PIECES_LEAST 4
#define PIECES_MOST  8
/* Cache bytes read for a layer for which another thread's joining in is worth while. */
#define ASSIST_SHARE_BYTES (48 * KIB)

/* Room for the most that cut() makes of any step: a piece more than the even share for every head of every row. */
static uint32_t parts_most(const struct run *run)
{
    return PIECES_MOST * run->threads + ARENA_KV_TOKENS * run->config->kv_heads;
}

int assist_create(struct run *run, struct helm_err *err)
{
    struct run_assist *a = &run->assist;
    if (!arena_header_of(run->arena)->vram_page_count) return 0;
    const uint32_t parts = parts_most(run), group = run->kv_heads_group;
    if (parts > POOL_CHUNKS_MAX)
        return helm_fail(err, HELM_E_LIMIT, "%u kv heads of %d tokens make %u attention tasks, more than %u",
                         run->config->kv_heads, ARENA_KV_TOKENS, parts, POOL_CHUNKS_MAX);
    a->out = calloc((size_t)parts * group * run->config->head_dim, sizeof(float));
    a->max = calloc((size_t)parts * group, sizeof(float));
    a->sum = calloc((size_t)parts * group, sizeof(float));
    a->left = calloc((size_t)ARENA_KV_TOKENS * run->config->kv_heads, sizeof *a->left);
    if (a->out && a->max && a->sum && a->left) return 0;
    return helm_fail(err, HELM_E_NOMEM, "no memory for %u partial results of attention", parts);
}

void assist_destroy(struct run *run)
{
    free(run->assist.out);
    free(run->assist.max);
    free(run->assist.sum);
    free(run->assist.left);
    memset(&run->assist, 0, sizeof run->assist);
}

/* ---- cutting ---- */

static uint32_t units_of(const struct run_assist_row *row)
{
    return run_ceil_div(row->to, UNIT_POSITIONS) - row->from / UNIT_POSITIONS;
}

/* Cuts every row into pieces of at most so many units; returns how many tasks that makes. *longest: units of a piece. */
static uint32_t cut_by(struct run *run, uint32_t piece, uint32_t *longest)
{
    uint32_t tasks = 0;
    *longest = 0;
    for (uint32_t r = 0; r < run->batch.row_count; r++) {
        struct run_assist_row *row = &run->assist.row[r];
        const uint32_t units = units_of(row);
        row->splits = units ? run_ceil_div(units, piece) : 1;
        row->task_first = tasks;
        tasks += row->splits * run->config->kv_heads;
        const uint32_t part = run_ceil_div(units, row->splits);
        if (part > *longest) *longest = part;
    }
    return tasks;
}

static uint32_t piece_units(const struct run *run, uint64_t units, uint32_t pieces)
{
    const uint64_t tasks = (uint64_t)pieces * run->threads, piece = (units + tasks - 1) / tasks;
    return piece < PIECE_UNITS ? PIECE_UNITS : (uint32_t)piece;
}

/* Of the ways to cut the one by which the threads are done first, if each takes equal numbers of pieces. */
static void cut(struct run *run, const struct program_entry *e)
{
    uint64_t units = 0, least = UINT64_MAX;
    uint32_t best = PIECES_LEAST, longest;
    for (uint32_t r = 0; r < run->batch.row_count; r++) {
        const struct batch_row *in = run->row[r].in;
        struct run_assist_row *row = &run->assist.row[r];
        row->to = in->direct_from;
        row->from = e->window && in->start + 1 > e->window ? in->start + 1 - e->window : 0;
        if (row->from > row->to) row->from = row->to;
        units += (uint64_t)units_of(row) * run->config->kv_heads;
    }
    for (uint32_t pieces = PIECES_LEAST; pieces <= PIECES_MOST; pieces++) {
        const uint32_t tasks = cut_by(run, piece_units(run, units, pieces), &longest);
        const uint64_t rounds = (uint64_t)run_ceil_div(tasks, run->threads) * longest;
        if (rounds >= least) continue;
        least = rounds;
        best = pieces;
    }
    run->assist.tasks = cut_by(run, piece_units(run, units, best), &longest);
    for (uint32_t r = 0; r < run->batch.row_count; r++)
        for (uint32_t h = 0; h < run->config->kv_heads; h++)
            atomic_store_explicit(&run->assist.left[r * run->config->kv_heads + h], run->assist.row[r].splits,
                                  memory_order_relaxed);
    const uint64_t bytes = units * UNIT_POSITIONS * 2 * kv_cell_bytes(run->kv.dtype, run->kv.head_dim),
                   width = bytes / ASSIST_SHARE_BYTES;
    run->assist.width = width < 1 ? 1 : width > run->threads ? run->threads : (uint32_t)width;
}

/* ---- a chunk ---- */

/* What became of all pieces of a row's kv head, into the lane: [head]{m, s, o}. */
static void answer(struct run *run, uint32_t r, uint32_t head)
{
    const struct run_assist *a = &run->assist;
    const struct run_assist_row *row = &a->row[r];
    const uint32_t group = run->kv_heads_group, dim = run->config->head_dim, each = dim + 2;
    const size_t token = run->row[r].in->token_first, first = row->task_first + head * row->splits;
    float *to = run->entry->answer->data + (token * run->config->heads + head * group) * each;
    for (uint32_t g = 0; g < group; g++, to += each) {
        to[0] = -INFINITY;
        memset(to + 1, 0, (dim + 1) * sizeof *to);
        for (size_t part = first; part < first + row->splits; part++)
            attention_fold(&to[0], &to[1], to + 2, a->max[part * group + g], a->sum[part * group + g],
                           a->out + (part * group + g) * dim, dim);
    }
}

static void chunk_assist(void *ctx, uint32_t chunk, uint32_t thread)
{
    struct run *run = ctx;
    const struct program_entry *e = run->entry;
    struct run_assist *a = &run->assist;
    const uint32_t group = run->kv_heads_group, dim = run->config->head_dim;
    uint32_t r = 0;
    while (r + 1 < run->batch.row_count && chunk >= a->row[r + 1].task_first) r++;
    const struct run_assist_row *row = &a->row[r];
    const struct batch_row *in = run->row[r].in;
    const uint32_t task = chunk - row->task_first, head = task / row->splits, split = task % row->splits,
                   unit = row->from / UNIT_POSITIONS, units = units_of(row);
    const uint32_t from = (unit + units * split / row->splits) * UNIT_POSITIONS,
                   to = (unit + units * (split + 1) / row->splits) * UNIT_POSITIONS;
    const struct attention_task attend = {.q = e->lane->data +
                                               ((size_t)in->token_first * run->config->heads + head * group) *
                                                   dim,
                                          .q_stride = (size_t)run->config->heads * dim,
                                          .tokens = 1,
                                          .group = group,
                                          .start = in->start,
                                          .kv_first = from > row->from ? from : row->from,
                                          .kv_last = to < row->to ? to : row->to,
                                          .window = e->window,
                                          .scale = 1.0f / sqrtf((float)dim),
                                          .kv = &run->kv,
                                          .pool = run->kv_pool,
                                          .pages = in->pages,
                                          .layer = e->kv_layer,
                                          .kv_head = head,
                                          .out = a->out + (size_t)chunk * group * dim,
                                          .out_stride = (size_t)group * dim,
                                          .m = a->max + (size_t)chunk * group,
                                          .s = a->sum + (size_t)chunk * group,
                                          .scratch = run->thread[thread].scratch};
    run->kernels->attention->attend(&attend);
    _Atomic uint32_t *left = &a->left[r * run->config->kv_heads + head];
    if (atomic_fetch_sub_explicit(left, 1, memory_order_acq_rel) == 1) answer(run, r, head);
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
    if (e->last) lane_release(e->lane); /* before the answer: behind it the GPU may begin the next step */
    return lane_publish(e->answer, e->ticket, err);
}
