/* Attention over a layer's own cells: norms of heads, rope, cells into the cache, queries cut into tasks. See
 * execute.h. */
#include "worker-cpu/program/execute.h"

#include <stdatomic.h>
#include <string.h>

#include "common/base/units.h"
#include "worker-cpu/program/linear.h"

/* Cache bytes of one layer's attention for each thread that takes part: fewer are not worth a thread. */
#define ATTEND_SHARE_BYTES (48 * KIB)

/* Where an entry's cells of a row lie. */
struct cells {
    const struct kv_layout *kv;
    void *pool;
    const uint32_t *pages;
};

static struct cells cells_of(const struct run *run, const struct program_entry *e,
                             const struct batch_row *row)
{
    if (e->in_window) return (struct cells){&run->window_kv, run->window_pool, row->windows};
    return (struct cells){&run->kv, run->kv_pool, row->pages};
}

/* kv_append, of single numbers with the chosen vector kernel. */
static void append_head(const struct run *run, const struct cells *cells, uint32_t is_value, uint32_t head,
                        uint32_t position, const float *x)
{
    const struct kv_layout *kv = cells->kv;
    const uint32_t kv_layer = run->entry->kv_layer, *pages = cells->pages;
    if (!kv_dtype_is_plain(kv->dtype)) {
        kv_append(kv, cells->pool, pages, kv_layer, is_value, head, position, x);
        return;
    }
    uint32_t page = pages[position / kv->page_tokens], token = position % kv->page_tokens;
    char *to = (char *)cells->pool + kv_offset(kv, page, kv_layer, is_value, head);
    run->kernels->vector->store(to + (size_t)token * kv_number_bytes(kv->dtype, kv->head_dim), x,
                                (enum dtype)kv->dtype, kv->head_dim);
}

void attend_append(void *ctx, uint32_t chunk, uint32_t thread)
{
    (void)thread;
    struct run *run = ctx;
    const struct program_entry *e = run->entry;
    const struct model_config *c = run->config;
    const struct vector_variant *vec = run->kernels->vector;
    uint32_t first = chunk * e->chunk, last = first + e->chunk, dim = e->head_dim, turns = e->latent;
    float eps = (float)c->norm_eps;
    if (last > run->batch.token_count) last = run->batch.token_count;
    for (uint32_t t = first; t < last; t++) {
        const float *cosine = run->act->cosine[e->rope] + (size_t)t * (e->rope_dims / 2),
                    *sine = run->act->sine[e->rope] + (size_t)t * (e->rope_dims / 2);
        float *q = run->act->buffer[BUFFER_Q] + (size_t)t * c->heads * dim;
        float *k = run->act->buffer[BUFFER_K] + (size_t)t * e->kv_heads * dim;
        float *v = run->act->buffer[BUFFER_V] + (size_t)t * e->kv_heads * dim;
        const struct cells cells = cells_of(run, e, run->row[run->batch.token_row[t]].in);
        for (uint32_t h = 0; h < c->heads; h++) {
            if (e->norm) vec->rmsnorm(q + h * dim, q + h * dim, e->norm, dim, eps);
            if (!e->no_rope) vec->rope(q + h * dim + turns, cosine, sine, e->rope_dims);
        }
        for (uint32_t h = 0; h < e->kv_heads && !e->other_cache; h++) {
            if (e->v_is_k) memcpy(v + h * dim, k + h * dim, dim * sizeof *v);
            if (e->v_normed) vec->rmsnorm(v + h * dim, v + h * dim, run->ones, dim, eps);
            if (e->norm2) vec->rmsnorm(k + h * dim, k + h * dim, e->norm2, e->latent ? e->latent : dim, eps);
            if (!e->no_rope) vec->rope(k + h * dim + turns, cosine, sine, e->rope_dims);
            append_head(run, &cells, 0, h, run->batch.position[t], k + h * dim);
            if (!e->latent) append_head(run, &cells, 1, h, run->batch.position[t], v + h * dim);
        }
    }
}

static void merge_parts(struct run *run, const struct run_attend *row, uint32_t part, const float *sinks,
                        float *out)
{
    const float *o[POOL_THREADS_MAX], *m[POOL_THREADS_MAX], *s[POOL_THREADS_MAX];
    const uint32_t dim = run->entry->head_dim, group = run->config->heads / run->entry->kv_heads;
    for (uint32_t i = 0; i < row->splits; i++) {
        o[i] = run->part_out + (size_t)(part + i) * group * dim;
        m[i] = run->part_max + (size_t)(part + i) * group;
        s[i] = run->part_sum + (size_t)(part + i) * group;
    }
    const struct attention_parts parts = {.o = o, .m = m, .s = s, .count = row->splits, .sinks = sinks};
    attention_merge(out, &parts, group, dim);
}

/* A chunk of attention: its queries and positions, and the split that it is a part of. */
struct attending {
    struct attention_task task;
    const struct run_attend *row;
    uint32_t part_first; /* of its kv head, where the row is split */
    float *out;          /* the output of all parts together */
};

static struct attending attending_of(const struct run *run, uint32_t chunk)
{
    const struct program_entry *e = run->entry;
    const struct model_config *c = run->config;
    uint32_t r = 0, group = c->heads / e->kv_heads, dim = e->head_dim;
    while (r + 1 < run->attend_count && chunk >= run->attend[r + 1].task_first) r++;
    const struct run_attend *row = &run->attend[r];
    uint32_t task = chunk - row->task_first;
    uint32_t split = task % row->splits, block = task / row->splits % row->blocks;
    uint32_t head = task / row->splits / row->blocks;
    uint32_t t0 = block * EXECUTE_QUERY_TOKENS, t1 = t0 + EXECUTE_QUERY_TOKENS;
    if (t1 > row->count) t1 = row->count;
    const uint32_t begin = row->in->start + row->first;
    uint32_t start = begin + t0, kv_last = begin + t1, kv_first = 0;
    if (e->window && start + 1 > e->window) kv_first = start + 1 - e->window;
    const struct cells cells = cells_of(run, e, row->in);
    size_t stride = (size_t)c->heads * dim;
    size_t at = (row->in->token_first + row->first + t0) * stride + (size_t)head * group * dim;
    struct attention_task a = {.q = run->act->buffer[BUFFER_Q] + at,
                               .q_stride = stride,
                               .tokens = t1 - t0,
                               .group = group,
                               .kv_heads = 1,
                               .start = start,
                               .kv_first = kv_first,
                               .kv_last = kv_last,
                               .window = e->window,
                               .scale = e->scale,
                               .sinks = e->sinks ? e->sinks + (size_t)head * group : NULL,
                               .steady = run->steady,
                               .kv = cells.kv,
                               .pool = cells.pool,
                               .pages = cells.pages,
                               .layer = e->kv_layer,
                               .kv_head = head,
                               .out = run->act->buffer[BUFFER_A] + at,
                               .out_stride = stride};
    struct attending all = {.task = a,
                            .row = row,
                            .part_first = row->part_first + head * row->splits,
                            .out = a.out};
    if (row->splits == 1) return all;
    /* Equal runs of whole pages; the last to finish a head merges its parts in their order. */
    uint32_t page_first = kv_first / run->kv.page_tokens;
    uint32_t pages = run_ceil_div(kv_last, run->kv.page_tokens) - page_first, part = all.part_first + split;
    uint32_t from = (page_first + pages * split / row->splits) * run->kv.page_tokens;
    uint32_t to = (page_first + pages * (split + 1) / row->splits) * run->kv.page_tokens;
    a.kv_first = from > kv_first ? from : kv_first;
    a.kv_last = to < kv_last ? to : kv_last;
    if (a.kv_last < a.kv_first) a.kv_last = a.kv_first; /* a window shorter than its splits: an empty part */
    a.out = run->part_out + (size_t)part * group * dim;
    a.out_stride = (size_t)group * dim;
    a.m = run->part_max + (size_t)part * group;
    a.s = run->part_sum + (size_t)part * group;
    all.task = a;
    return all;
}

static void chunk_attend(void *ctx, uint32_t chunk, uint32_t thread)
{
    struct run *run = ctx;
    struct attending now = attending_of(run, chunk), next;
    now.task.scratch = run->thread[thread].scratch;
    if (chunk + 1 < run->attend_tasks) { /* a thread takes them in turn, but for its last */
        next = attending_of(run, chunk + 1);
        now.task.next = &next.task;
    }
    run->kernels->attention->attend(&now.task);
    if (now.row->splits == 1) return;
    _Atomic uint32_t *left = &run->part_left[now.part_first];
    if (atomic_fetch_sub_explicit(left, 1, memory_order_acq_rel) != 1) return;
    atomic_store_explicit(left, now.row->splits, memory_order_relaxed); /* for the next layer */
    merge_parts(run, now.row, now.part_first, now.task.sinks, now.out);
}

/* Which queries attend together, and how many tasks they are before any is split. */
static uint32_t gather_queries(struct run *run)
{
    const bool apart = run->invariant && !run->steady;
    uint32_t whole = 0;
    run->attend_count = 0;
    for (uint32_t r = 0; r < run->batch.row_count; r++) {
        const struct batch_row *in = run->row[r].in;
        for (uint32_t first = 0; first < in->count;) {
            const uint32_t count = apart ? 1 : in->count;
            struct run_attend *row = &run->attend[run->attend_count++];
            *row = (struct run_attend){.in = in,
                                       .first = first,
                                       .count = count,
                                       .blocks = run_ceil_div(count, EXECUTE_QUERY_TOKENS)};
            whole += run->attend_heads * row->blocks;
            first += count;
        }
    }
    return whole;
}

/* How this step's attention is cut into tasks: the same for every layer of as many kv heads. In an invariant
 * plan's decode every query is split as it would be alone, in its prompts none is. */
static void cut(struct run *run)
{
    uint32_t tasks = 0, parts = 0, whole = gather_queries(run);
    uint64_t bytes = 0;
    if (run->invariant) whole = run->attend_heads;
    for (uint32_t r = 0; r < run->attend_count; r++) {
        struct run_attend *row = &run->attend[r];
        uint32_t length = row->in->start + row->first + row->count;
        uint64_t row_bytes =
            (uint64_t)kv_kinds(&run->kv) * length * kv_cell_bytes(run->kv.dtype, run->entry->head_dim);
        row->splits = 1;
        if (row->count == 1 && !run->steady && whole < 2 * run->threads) {
            uint32_t wanted = run_ceil_div(4 * run->threads, whole);
            uint32_t most = run_ceil_div(length, EXECUTE_SPLIT_POSITIONS);
            uint32_t pages = run_ceil_div(length, run->kv.page_tokens);
            row->splits = wanted < most ? wanted : most;
            if (row->splits > pages) row->splits = pages;
            if (row->splits > POOL_THREADS_MAX) row->splits = POOL_THREADS_MAX;
        }
        row->part_first = parts;
        if (row->splits > 1) {
            for (uint32_t h = 0; h < run->attend_heads; h++)
                atomic_store_explicit(&run->part_left[parts + h * row->splits], row->splits,
                                      memory_order_relaxed);
            parts += run->attend_heads * row->splits;
        }
        row->task_first = tasks;
        tasks += run->attend_heads * row->blocks * row->splits;
        bytes += row_bytes * run->attend_heads * row->count;
    }
    run->attend_tasks = tasks;
    uint64_t width = bytes / ATTEND_SHARE_BYTES;
    run->attend_width = width < 1 ? 1 : width > run->threads ? run->threads : (uint32_t)width;
}

struct pool_job attend_job(struct run *run)
{
    if (run->attend_heads != run->entry->kv_heads || run->attend_head_dim != run->entry->head_dim) {
        run->attend_heads = run->entry->kv_heads;
        run->attend_head_dim = run->entry->head_dim;
        cut(run);
    }
    return (struct pool_job){.run = chunk_attend,
                             .chunks = run->attend_tasks,
                             .alone = run->attend_width == 1,
                             .width = run->attend_width};
}
