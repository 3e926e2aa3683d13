/* Router's choice and experts, chunk by chunk. See execute.h.
 *
 * An expert's rows are contiguous in the matrix of all, whole groups of a format that has them, so a chunk is
 * rows of a segment as in linear.c. One token's are read by the one-token kernel as they lie, with the next
 * expert's rows fetched ahead. The tokens, of several, that chose an expert are gathered, tiled and
 * multiplied by the kernel of several; a single one is multiplied as one token is, and so are, together, as
 * many as that is faster for. In an invariant plan the kernel does not depend on how many chose it: a few
 * tokens are each multiplied as one is, prompts all by the kernel of several. Everything is in the thread's
 * own memory until it is written to the place of its pair. */
#include "worker-cpu/program/execute.h"

#include <xmmintrin.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/units.h"
#include "common/model/weigh.h"
#include "worker-cpu/program/linear.h"

#define TOKENS CPU_EXPERTS_TOKENS

int experts_create(struct run *run, const struct program *const *programs, uint32_t count,
                   struct helm_err *err)
{
    const uint64_t places = (uint64_t)run->unit_tokens * run->config->router.chosen;
    float *choice = run->act->buffer[BUFFER_CHOICE];
    uint32_t pieces = 0;
    run->experts.id = (uint32_t *)(void *)choice;
    run->experts.weight = choice + places;
    run->experts.pair = (uint32_t *)(void *)(choice + 2 * places);
    for (uint32_t p = 0; p < count; p++)
        for (uint32_t i = 0; i < programs[p]->count; i++) {
            const struct program_entry *e = &programs[p]->entry[i];
            if (e->kind == OP_EXPERTS_DOWN && e->chunks > pieces) pieces = e->chunks;
        }
    if (!pieces) return 0;
    run->experts.left = calloc(pieces, sizeof *run->experts.left);
    return run->experts.left ? 0 : helm_fail(err, HELM_E_NOMEM, "no memory for %u pieces of experts", pieces);
}

void experts_destroy(struct run *run)
{
    free(run->experts.left);
}

/* ---- the choice ---- */

static void chunk_route(void *ctx, uint32_t chunk, uint32_t thread)
{
    (void)thread;
    struct run *run = ctx;
    const struct model_router *router = &run->config->router;
    uint32_t first = chunk * run->entry->chunk, last = first + run->entry->chunk;
    if (last > run->batch.token_count) last = run->batch.token_count;
    for (uint32_t t = first; t < last; t++)
        router_choose(router, run->act->buffer[BUFFER_ROUTER] + (size_t)t * router->experts,
                      run->entry->vector, run->entry->scale_of, run->experts.id + (size_t)t * router->chosen,
                      run->experts.weight + (size_t)t * router->chosen);
}

/* ---- the shared expert's weight ---- */

static void chunk_weigh(void *ctx, uint32_t chunk, uint32_t thread)
{
    const struct run *run = ctx;
    const struct program_entry *e = run->entry;
    uint32_t first = chunk * e->chunk, last = first + e->chunk;
    float *x = run->thread[thread].scratch;
    if (last > run->batch.token_count) last = run->batch.token_count;
    for (uint32_t t = first; t < last; t++) {
        float *act = e->out + (size_t)t * e->out_width;
        run->kernels->vector->rmsnorm(x, e->in + (size_t)t * e->width, e->norm, e->width,
                                      (float)run->config->norm_eps);
        const float weight = weigh_of(x, e->vector, e->width);
        for (uint32_t i = 0; i < e->out_width; i++) act[i] *= weight;
    }
}

/* ---- what the GPU asks for ---- */

int experts_begin(struct run *run, const struct program_entry *e, struct helm_err *err)
{
    const int wait_ms = (int)run->peer_wait_ms;
    return e->kind == OP_EXPERTS_TAKE
               ? lane_wait(e->lane, e->ticket, run->spin_us, wait_ms, run->cancel, err)
               : lane_acquire(e->answer, e->ticket, run->spin_us, wait_ms, run->cancel, err);
}

int experts_end(const struct program_entry *e, struct helm_err *err)
{
    if (e->kind != OP_EXPERTS_TAKE) return lane_publish(e->answer, e->ticket, err);
    if (e->last) lane_release(e->lane); /* before the answer: after it the GPU may begin the next step */
    return 0;
}

/* One token: the experts that the GPU asks for become the first ones. */
static void take_choice(struct run *run, const struct program_entry *e, uint32_t first, uint32_t last)
{
    const uint32_t capacity = arena_header_of(run->arena)->step_tokens, chosen = e->chosen;
    const float *at = e->lane->data + (size_t)capacity * e->width;
    const uint32_t *id = (const uint32_t *)(const void *)at;
    const float *weight = at + (size_t)capacity * chosen;
    const bool one = run->batch.token_count == 1;
    uint32_t count = 0;
    for (uint32_t p = first * chosen; p < last * chosen; p++) {
        if (one && id[p] == ARENA_EXPERT_NONE) continue;
        const uint32_t to = one ? count++ : p;
        run->experts.id[to] = id[p];
        run->experts.weight[to] = weight[p];
    }
    if (one) run->experts.count = count;
}

static void chunk_take(void *ctx, uint32_t chunk, uint32_t thread)
{
    (void)thread;
    struct run *run = ctx;
    const struct program_entry *e = run->entry;
    uint32_t first = chunk * e->chunk, last = first + e->chunk;
    if (last > run->batch.token_count) last = run->batch.token_count;
    take_choice(run, e, first, last);
    for (uint32_t t = first; t < last; t++)
        run->kernels->vector->rmsnorm(e->out + (size_t)t * e->width, e->lane->data + (size_t)t * e->width,
                                      e->norm, e->width, (float)run->config->norm_eps);
}

/* By expert, and within one in the order of tokens. Those that the GPU computes have no number. */
static void group(struct run *run)
{
    struct run_experts *x = &run->experts;
    const uint32_t experts = run->config->router.experts,
                   pairs = run->batch.token_count * run->config->router.chosen;
    uint32_t next[MODEL_EXPERTS_MAX];
    memset(x->first, 0, (experts + 1) * sizeof *x->first);
    for (uint32_t p = 0; p < pairs; p++)
        if (x->id[p] < experts) x->first[x->id[p] + 1]++;
    x->active_count = 0;
    for (uint32_t e = 0; e < experts; e++) {
        if (x->first[e + 1]) x->active[x->active_count++] = e;
        x->first[e + 1] += x->first[e];
        next[e] = x->first[e];
    }
    for (uint32_t p = 0; p < pairs; p++)
        if (x->id[p] < experts) x->pair[next[x->id[p]]++] = p;
}

/* ---- one token ---- */

/* A piece of an expert's rows, and where it lies, as a gemv reads it. */
struct expert_piece {
    uint32_t expert, piece;
};
struct expert_rows {
    const char *w;
    size_t stride; /* bytes from one of its streams to the next */
};

static struct expert_rows rows_of(const struct program_entry *e, const struct program_segment *g,
                                  struct expert_piece at)
{
    const uint64_t row_bytes = tensor_format_row_bytes(g->matrix.format, g->matrix.cols);
    const uint32_t first = e->bound[at.piece], rows = e->bound[at.piece + 1] - first;
    return (struct expert_rows){.w = linear_row_at(g, at.expert * e->expert_rows + first),
                                .stride = linear_stream_bytes(g->kernels->one, rows, row_bytes)};
}

/* The chunks [first, last) of `chunks` that the pool gives a thread. */
struct chunk_share {
    uint32_t first, last;
};
static struct chunk_share share_of(const struct run *run, const struct program_entry *e, uint32_t chunks,
                                   uint32_t thread)
{
    const uint64_t width = e->share && e->share < run->threads ? e->share : run->threads;
    if (thread >= width) return (struct chunk_share){0, 0};
    return (struct chunk_share){.first = (uint32_t)(chunks * thread / width),
                                .last = (uint32_t)(chunks * (thread + 1) / width)};
}

/* Chunk `chunk` of one token's experts: those of an expert follow each other, as its rows do. */
static struct expert_piece piece_of(const struct run *run, const struct program_entry *e, uint32_t chunk)
{
    return (struct expert_piece){run->experts.id[run->experts.turn[chunk / e->chunks]], chunk % e->chunks};
}

/* The rows that the thread reads after chunk `chunk`: its next one, or after gates and ups its first downs.
 * False: neither. */
static bool next_rows(const struct run *run, uint32_t chunk, uint32_t thread, struct expert_rows *next)
{
    const struct program_entry *e = run->entry,
                               *down = atomic_load_explicit(&run->experts.ahead.down, memory_order_relaxed);
    if (chunk + 1 < share_of(run, e, run->experts.turns * e->chunks, thread).last) {
        *next = rows_of(e, &e->segment[0], piece_of(run, e, chunk + 1));
        return true;
    }
    const struct chunk_share share =
        down ? share_of(run, down, run->experts.count * down->chunks, thread) : (struct chunk_share){0, 0};
    if (share.first == share.last) return false;
    *next = rows_of(down, &down->segment[0], piece_of(run, down, share.first));
    return true;
}

/* An idle thread fetches its share of the downs while others still have gates and ups: in small pieces, in
 * the order in which it will read them. */
#define IDLE_PIECE 1024
bool experts_fetch_ahead(const struct run *run, const struct program_entry *down, uint32_t thread,
                         uint32_t piece)
{
    const struct run_experts_ahead *ahead = &run->experts.ahead;
    const struct program_segment *g = &down->segment[0];
    const uint32_t count = atomic_load_explicit(&ahead->count, memory_order_relaxed);
    uint64_t at = (uint64_t)piece * IDLE_PIECE;
    if (at >= run->reads.idle_bytes || count > down->chosen) return false;
    const struct chunk_share share = share_of(run, down, count * down->chunks, thread);
    for (uint32_t c = share.first; c < share.last; c++) {
        const uint32_t piece_rows = c % down->chunks,
                       expert = atomic_load_explicit(&ahead->id[c / down->chunks], memory_order_relaxed);
        if (expert >= down->experts) return false;
        const uint32_t row = expert * down->expert_rows;
        const char *w = linear_row_at(g, row + down->bound[piece_rows]);
        const uint64_t here =
            round_up((uint64_t)(linear_row_at(g, row + down->bound[piece_rows + 1]) - w), IDLE_PIECE);
        if (at >= here) {
            at -= here;
            continue;
        }
        w += at;
        for (uint64_t i = 0; i < IDLE_PIECE; i += 64) _mm_prefetch(w + i, _MM_HINT_T1);
        return true;
    }
    return false;
}

/* Says what is read after the entry, one token's gates and ups. */
static void look_ahead(struct run *run, const struct program_entry *e)
{
    struct run_experts_ahead *ahead = &run->experts.ahead;
    const struct program *p = run->program[run->program_index];
    const struct program_entry *next = run->entry_index < p->count ? &p->entry[run->entry_index] : NULL;
    if (!next || next->kind != OP_EXPERTS_DOWN || next->alone || e->from_disk) return;
    for (uint32_t j = 0; j < run->experts.count && j < e->chosen; j++)
        atomic_store_explicit(&ahead->id[j], run->experts.id[j], memory_order_relaxed);
    atomic_store_explicit(&ahead->count, run->experts.count, memory_order_relaxed);
    atomic_store_explicit(&ahead->down, next, memory_order_release);
}

/* The bias of rows from `row` on of all experts', if there is one. */
static void add_bias(const struct run *run, const struct program_segment *g, float *y, uint32_t row,
                     uint32_t rows)
{
    if (g->bias) run->kernels->vector->add(y, g->bias + row, rows);
}

/* A piece of an expert's rows times one input, which is as the kernel reads it; `next`: what is read next, or
 * NULL. */
static void multiply_one(const struct run *run, const struct program_segment *g, float *y,
                         struct expert_piece at, const float *x, const struct expert_rows *next)
{
    const struct program_entry *e = run->entry;
    const uint32_t first = at.expert * e->expert_rows + e->bound[at.piece],
                   rows = e->bound[at.piece + 1] - e->bound[at.piece], each = linear_run_rows(g, rows);
    struct gemv_reads reads = run->reads.gemv;
    const char *w = linear_row_at(g, first);
    for (uint32_t row = 0; row < rows; row += each) {
        const uint32_t here = rows - row < each ? rows - row : each;
        const bool last = row + here == rows, ahead = run->reads.across && next;
        const char *after = last ? NULL : linear_row_at(g, first + row + here);
        reads.next = !last ? after : ahead ? next->w : NULL;
        if (last && ahead) reads.next_stride = next->stride;
        g->kernels->one->gemv(y + row, w, x, here, g->matrix.cols, &reads);
        w = after;
    }
    add_bias(run, g, y, first, rows);
}

/* An input as the segment's kernel reads it; of a thread's chunks of an entry with the same number `which` it
 * is the same one. */
#define INPUT_OWN UINT32_MAX /* of this chunk alone */
static const float *in_order(const struct run *run, const struct program_segment *g, const float *x,
                             uint32_t thread, uint32_t which)
{
    struct run_thread *t = &run->thread[thread];
    gemv_order_fn *order = g->kernels->one->order;
    if (!order) return x;
    if (which == INPUT_OWN || t->ordered_turn != run->turn || t->ordered_by != order ||
        t->ordered_first != which)
        order(t->ordered, x, g->matrix.cols);
    t->ordered_turn = which == INPUT_OWN ? 0 : run->turn;
    t->ordered_by = order;
    t->ordered_first = which;
    return t->ordered;
}

static void glu_rows(const struct run *run, enum glu_kind kind, float *gate, const float *up, uint32_t rows)
{
    const struct vector_variant *v = run->kernels->vector;
    (kind == GLU_SILU ? v->swiglu : kind == GLU_GELU ? v->gelu : v->swiglu_clamped)(gate, gate, up, rows);
}

/* A piece of gate and up of an expert, for one token's input. */
static void one_glu(const struct run *run, struct expert_piece at, const float *in, float *act,
                    uint32_t thread, uint32_t which, const struct expert_rows *next)
{
    const struct program_entry *e = run->entry;
    const struct program_segment *gate = &e->segment[0], *up = &e->segment[1];
    const uint32_t first = e->bound[at.piece], rows = e->bound[at.piece + 1] - first;
    const struct expert_rows ups = rows_of(e, up, at);
    float sum[CPU_EXPERTS_ROWS];
    multiply_one(run, gate, act + first, at, in_order(run, gate, in, thread, which), &ups);
    multiply_one(run, up, sum, at, in_order(run, up, in, thread, which), next);
    glu_rows(run, e->glu, act + first, sum, rows);
}

static void chunk_glu_one(void *ctx, uint32_t chunk, uint32_t thread)
{
    const struct run *run = ctx;
    const struct program_entry *e = run->entry;
    struct expert_rows next;
    if (chunk / e->chunks >= run->experts.turns) return; /* none is asked for */
    const uint32_t j = run->experts.turn[chunk / e->chunks];
    one_glu(run, piece_of(run, e, chunk), e->in, run->act->buffer[BUFFER_GATE] + (size_t)j * e->expert_rows,
            thread, 0, next_rows(run, chunk, thread, &next) ? &next : NULL);
}

/* The sum of some rows of all experts, by the thread that had the last of them. */
static void sum_downs(const struct run *run, uint32_t first, uint32_t rows)
{
    const struct program_entry *e = run->entry;
    const float *y = run->act->buffer[BUFFER_DOWN] + first;
    float sum[CPU_EXPERTS_ROWS] = {0};
    for (uint32_t j = 0; j < run->experts.count; j++, y += e->expert_rows)
        for (uint32_t r = 0; r < rows; r++) sum[r] += run->experts.weight[j] * y[r];
    if (e->residual)
        run->kernels->vector->add(e->out + first, sum, rows);
    else
        memcpy(e->out + first, sum, rows * sizeof *sum);
}

static void chunk_down_one(void *ctx, uint32_t chunk, uint32_t thread)
{
    const struct run *run = ctx;
    const struct program_entry *e = run->entry;
    const struct program_segment *g = &e->segment[0];
    const uint32_t piece = chunk % e->chunks, first = e->bound[piece], rows = e->bound[piece + 1] - first,
                   at = chunk / e->chunks;
    if (at < run->experts.turns) {
        struct expert_rows next;
        const uint32_t j = run->experts.turn[at];
        const float *in = in_order(run, g, e->in + (size_t)j * g->matrix.cols, thread, j);
        multiply_one(run, g, run->act->buffer[BUFFER_DOWN] + (size_t)j * e->expert_rows + first,
                     piece_of(run, e, chunk), in, next_rows(run, chunk, thread, &next) ? &next : NULL);
        if (atomic_fetch_sub_explicit(&run->experts.left[piece], 1, memory_order_acq_rel) != 1) return;
    }
    sum_downs(run, first, rows);
}

/* ---- several tokens ---- */

/* A thread's memory for one expert's tokens. */
struct places {
    float *gathered, *y[2];
    void *tiled;
};

static struct places places_of(const struct run *run, uint32_t cols, uint32_t thread)
{
    struct places p = {.gathered = run->thread[thread].experts};
    p.y[0] = p.gathered + (size_t)TOKENS * cols;
    p.y[1] = p.y[0] + TOKENS * CPU_EXPERTS_ROWS;
    p.tiled = p.y[1] + TOKENS * CPU_EXPERTS_ROWS;
    return p;
}

/* Where the input of a pair is: of gates the token's, of downs the pair's own. */
static const float *input_of(const struct run *run, uint32_t pair)
{
    const struct program_entry *e = run->entry;
    const uint32_t token = pair / e->chosen;
    const float *in = e->in + (size_t)token * e->width;
    return e->kind == OP_EXPERTS_GLU ? in : in + (size_t)(pair % e->chosen) * e->segment[0].matrix.cols;
}

/* Where a pair's output begins. */
static float *output_of(const struct run *run, uint32_t pair)
{
    const struct program_entry *e = run->entry;
    const enum model_buffer b = e->kind == OP_EXPERTS_GLU ? BUFFER_GATE : BUFFER_DOWN;
    return run->act->buffer[b] + (size_t)(pair / e->chosen) * run->act->width[b] +
           (size_t)(pair % e->chosen) * e->expert_rows;
}

/* A thread's gathered tokens, laid out for a kernel's products. */
struct laid_out {
    const struct linear_kernel *by;
    const float *x; /* of a few: as `by` reads them, ldx floats apart */
    size_t ldx;
};

/* Rows of a segment. */
struct row_range {
    uint32_t first, count;
};

/* These times a few gathered tokens, each with the bits that it has alone. */
static void multiply_few(const struct program_segment *g, const struct places *at, struct row_range rows,
                         uint32_t count, float *y, struct laid_out *in)
{
    const struct linear_kernel *k = g->kernels->one;
    const uint32_t cols = g->matrix.cols;
    if (!in->by || in->by->order != k->order) {
        *in = (struct laid_out){.by = k, .x = at->gathered, .ldx = cols};
        if (k->order) {
            in->ldx = linear_order_few(k, at->tiled, at->gathered, cols, count, cols);
            in->x = at->tiled;
        }
    }
    const uint32_t each = linear_run_rows(g, rows.count);
    for (uint32_t row = 0; row < rows.count; row += each)
        k->few(y + row, rows.count, linear_row_at(g, rows.first + row), in->x, in->ldx,
               rows.count - row < each ? rows.count - row : each, cols, count);
}

/* Rows of an expert times its tokens pair[0 .. count), count <= TOKENS. `few`: as one token's kernel
 * multiplies each. */
static void multiply_several(const struct run *run, struct expert_piece of, const uint32_t *pair,
                             uint32_t count, bool few, uint32_t thread)
{
    const struct program_entry *e = run->entry;
    const uint32_t expert = of.expert, first = e->bound[of.piece], rows = e->bound[of.piece + 1] - first,
                   cols = e->segment[0].matrix.cols;
    const struct places at = places_of(run, cols, thread);
    struct laid_out in = {.by = NULL};
    for (uint32_t i = 0; i < count; i++)
        memcpy(at.gathered + (size_t)i * cols, input_of(run, pair[i]), cols * sizeof(float));
    for (uint32_t s = 0; s < e->segment_count; s++) {
        const struct program_segment *g = &e->segment[s];
        const struct linear_kernel *k = g->kernels->tokens;
        const struct linear_product product = {.segment = g,
                                               .first = expert * e->expert_rows + first,
                                               .last = expert * e->expert_rows + first + rows,
                                               .tiled = at.tiled,
                                               .tokens = count,
                                               .ldy = rows,
                                               .y = at.y[s]};
        if (few) {
            multiply_few(g, &at, (struct row_range){product.first, rows}, count, at.y[s], &in);
        } else {
            if (!in.by || in.by->tile != k->tile)
                k->tile(at.tiled, at.gathered, cols, count, cols, 0, count, 0, cols);
            in.by = k;
            linear_multiply(run, &product, thread);
        }
        for (uint32_t i = 0; i < count; i++)
            add_bias(run, product.segment, at.y[s] + (size_t)i * rows, product.first, rows);
    }
    for (uint32_t i = 0; i < count; i++) {
        float *y = at.y[0] + (size_t)i * rows;
        if (e->segment_count == 2) glu_rows(run, e->glu, y, at.y[1] + (size_t)i * rows, rows);
        memcpy(output_of(run, pair[i]) + first, y, rows * sizeof *y);
    }
}

/* Rows of an expert times one token's input, as if it was alone. */
static void multiply_single(const struct run *run, struct expert_piece at, uint32_t pair, uint32_t thread)
{
    const struct program_entry *e = run->entry;
    const struct program_segment *g = &e->segment[0];
    if (e->kind == OP_EXPERTS_GLU)
        one_glu(run, at, input_of(run, pair), output_of(run, pair), thread, INPUT_OWN, NULL);
    else
        multiply_one(run, g, output_of(run, pair) + e->bound[at.piece], at,
                     in_order(run, g, input_of(run, pair), thread, INPUT_OWN), NULL);
}

/* A piece of an expert's rows, for all tokens that chose it. */
static void chunk_several(void *ctx, uint32_t chunk, uint32_t thread)
{
    const struct run *run = ctx;
    const struct program_entry *e = run->entry;
    const struct run_experts *x = &run->experts;
    if (chunk / e->chunks >= x->turns) return; /* none is asked for */
    const uint32_t expert = x->active[x->turn[chunk / e->chunks]], piece = chunk % e->chunks,
                   end = x->first[expert + 1];
    const struct expert_piece of = {expert, piece};
    const bool few =
        run->program[run->program_index]->few || (!run->invariant && end - x->first[expert] <= e->few_most);
    const bool singly = few && (end - x->first[expert] == 1 || !e->few_together);
    uint32_t at = x->first[expert];
    for (; singly && at < end; at++) multiply_single(run, of, x->pair[at], thread);
    for (uint32_t count; at < end; at += count) {
        const uint32_t most = few ? PROGRAM_FEW_TOKENS : TOKENS;
        count = end - at < most ? end - at : most;
        multiply_several(run, of, x->pair + at, count, few, thread);
    }
}

static void chunk_sum(void *ctx, uint32_t chunk, uint32_t thread)
{
    (void)thread;
    const struct run *run = ctx;
    const struct program_entry *e = run->entry;
    uint32_t first = chunk * e->chunk, last = first + e->chunk;
    if (last > run->batch.token_count) last = run->batch.token_count;
    for (uint32_t t = first; t < last; t++) {
        const float *weight = run->experts.weight + (size_t)t * e->chosen;
        const uint32_t *id = run->experts.id + (size_t)t * e->chosen;
        float *y = run->act->buffer[BUFFER_DOWN] + (size_t)t * run->act->width[BUFFER_DOWN],
              *out = e->out + (size_t)t * e->width;
        for (uint32_t r = 0; r < e->width; r++) y[r] = id[0] == ARENA_EXPERT_NONE ? 0 : y[r] * weight[0];
        for (uint32_t j = 1; j < e->chosen; j++)
            for (uint32_t r = 0; r < e->width && id[j] != ARENA_EXPERT_NONE; r++)
                y[r] += weight[j] * y[(size_t)j * e->width + r];
        if (e->residual)
            run->kernels->vector->add(out, y, e->width);
        else
            memcpy(out, y, e->width * sizeof *y);
    }
}

static uint32_t larger_of(uint32_t a, uint32_t b)
{
    return a > b ? a : b;
}

/* The region of the experts whose turn it is. */
static struct pool_job turn_job(const struct run *run, const struct program_entry *e)
{
    const struct program *p = run->program[run->program_index];
    const uint32_t chunks = larger_of(run->experts.turns, 1) * e->chunks;
    if (p->tiled || p->few) return (struct pool_job){.run = chunk_several, .chunks = chunks};
    return (struct pool_job){.run = e->kind == OP_EXPERTS_GLU ? chunk_glu_one : chunk_down_one,
                             .chunks = chunks,
                             .alone = e->alone,
                             .width = e->share};
}

/* Experts on disk that can be computed now. The time in which there are none is no computing. */
static void take_turn(struct run *run, const struct program_entry *e)
{
    const uint64_t start_ns = units_now_ns();
    struct run_experts *x = &run->experts;
    run->rc =
        disk_next(run->disk, e->kind == OP_EXPERTS_GLU ? DISK_GLU : DISK_DOWN, x->turn, &x->turns, &run->err);
    const uint64_t end_ns = units_now_ns();
    run->wait_ns += end_ns - start_ns;
    run->mark_ns = end_ns;
}

bool experts_again(struct run *run, struct pool_job *job)
{
    take_turn(run, run->entry);
    if (run->rc || !run->experts.turns) return false;
    *job = turn_job(run, run->entry);
    return true;
}

/* The entry's experts, all of which are in memory or sent for now. */
static struct pool_job begin_turns(struct run *run, const struct program_entry *e, bool several)
{
    struct run_experts *x = &run->experts;
    const bool glu = e->kind == OP_EXPERTS_GLU;
    x->turns = several ? x->active_count : x->count;
    for (uint32_t i = 0; i < x->turns; i++) x->turn[i] = i;
    if (e->from_disk && glu) disk_begin(run->disk, e->layer, several ? x->active : x->id, x->turns);
    if (e->from_disk) take_turn(run, e);
    return turn_job(run, e);
}

struct pool_job experts_job(struct run *run, const struct program_entry *e)
{
    const uint32_t tokens = run->batch.token_count, pieces = run_ceil_div(tokens, e->chunk);
    const struct program *p = run->program[run->program_index];
    const bool several = p->tiled || p->few, glu = e->kind == OP_EXPERTS_GLU;
    if (e->kind == OP_EXPERTS_TAKE)
        return (struct pool_job){.run = chunk_take, .chunks = pieces, .alone = tokens <= e->chunk};
    if (e->kind == OP_ROUTE)
        return (struct pool_job){.run = chunk_route, .chunks = pieces, .alone = tokens <= e->chunk};
    if (e->kind == OP_WEIGH)
        return (struct pool_job){.run = chunk_weigh, .chunks = pieces, .alone = tokens <= e->chunk};
    if (e->kind == OP_EXPERTS_SUM)
        return (struct pool_job){.run = chunk_sum, .chunks = pieces, .alone = tokens == 1};
    if (several && glu) group(run);
    if (several) return begin_turns(run, e, true);
    if (!e->asked) run->experts.count = e->chosen;
    if (glu) look_ahead(run, e);
    for (uint32_t i = 0; !glu && i < e->chunks; i++)
        atomic_store_explicit(&run->experts.left[i], run->experts.count, memory_order_relaxed);
    return begin_turns(run, e, false);
}
