/* Program entries, chunk by chunk. See execute.h.
 *
 * execute_next is the list walk: it is called once per entry, by whichever thread finished the entry before,
 * and only counts chunks. Each chunk function below computes one chunk of the current entry; which thread
 * does so changes nothing in the result. */
#include "worker-cpu/program/execute.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/log.h"
#include "common/base/units.h"
#include "worker-cpu/program/linear.h"

/* ---- embed ---- */

/* A row of a table; of a format with blocks by its plain definition, which is no more work than a norm. */
static void read_row(const struct run *run, const struct tensor_matrix *m, uint32_t token, float *x)
{
    struct helm_err err;
    if (tensor_format_is_plain(m->format))
        run->kernels->vector->load(x, (const char *)m->data + tensor_format_row_at(m, token),
                                   tensor_format_value(m->format), m->cols);
    else if (tensor_format_read_row(m, token, x, &err))
        abort(); /* the lowering saw that the matrix has the token's row */
}

/* Token t's row, scaled, and its position's added. */
static void place_token(const struct run *run, const struct tensor_matrix *m, uint32_t t)
{
    const struct program_entry *e = run->entry;
    const uint32_t hidden = run->config->hidden;
    float *x = e->out + (size_t)t * hidden;
    read_row(run, m, run->batch.token[t], x);
    for (uint32_t i = 0; e->scale != 0 && i < hidden; i++) x[i] *= e->scale;
    if (e->vector)
        run->kernels->vector->add(x,
                                  e->vector + ((size_t)run->batch.position[t] + e->position_first) * hidden,
                                  hidden);
}

/* Cosines and sines of a table for token t's position. */
static void place_angles(const struct run *run, uint32_t table, uint32_t t)
{
    const uint32_t half = model_rope_dims(run->config, table) / 2;
    float *cosine = run->act->cosine[table] + (size_t)t * half,
          *sine = run->act->sine[table] + (size_t)t * half;
    for (uint32_t i = 0; i < half; i++) {
        float angle = (float)run->batch.position[t] * run->inv_freq[table][i];
        cosine[i] = cosf(angle) * run->rope_scale[table];
        sine[i] = sinf(angle) * run->rope_scale[table];
    }
}

static void chunk_embed(void *ctx, uint32_t chunk, uint32_t thread)
{
    (void)thread;
    struct run *run = ctx;
    const struct tensor_matrix *m = weights_matrix(run->weights, TENSOR_EMBED, -1);
    uint32_t first = chunk * run->entry->chunk, last = first + run->entry->chunk;
    if (last > run->batch.token_count) last = run->batch.token_count;
    for (uint32_t t = first; t < last; t++) {
        if (run->entry->gather) place_token(run, m, t);
        for (uint32_t r = 0; r < MODEL_ROPES_MAX; r++)
            if (run->entry->rotates & 1u << r) place_angles(run, r, t);
    }
}

/* Drafts' input: the normed embedding, then the normed hidden state. */
static void chunk_join(void *ctx, uint32_t chunk, uint32_t thread)
{
    (void)thread;
    struct run *run = ctx;
    const struct program_entry *e = run->entry;
    const float eps = (float)run->config->norm_eps;
    uint32_t first = chunk * e->chunk, last = first + e->chunk;
    if (last > run->batch.token_count) last = run->batch.token_count;
    for (uint32_t t = first; t < last; t++) {
        float *out = e->out + (size_t)t * 2 * e->width;
        run->kernels->vector->rmsnorm(out, e->other + (size_t)t * e->width, e->other_norm, e->width, eps);
        run->kernels->vector->rmsnorm(out + e->width, e->in + (size_t)t * e->width, e->in_norm, e->width,
                                      eps);
    }
}

/* The norm of each layer's part of the input, which the table's rows are added to. In place. */
static void chunk_per_layer(void *ctx, uint32_t chunk, uint32_t thread)
{
    struct run *run = ctx;
    const struct program_entry *e = run->entry;
    const struct vector_variant *v = run->kernels->vector;
    const uint32_t each = run->config->per_layer, first = chunk * e->chunk;
    const float eps = (float)run->config->norm_eps;
    float *row = run->thread[thread].scratch;
    uint32_t last = first + e->chunk;
    if (last > run->batch.token_count) last = run->batch.token_count;
    for (uint32_t t = first; t < last; t++) {
        float *in = e->in + (size_t)t * e->width, *out = e->out + (size_t)t * e->width;
        read_row(run, &e->segment[0].matrix, run->batch.token[t], row);
        for (uint32_t i = 0; i < e->width; i++) in[i] *= e->in_scale;
        for (uint32_t at = 0; at < e->width; at += each) v->rmsnorm(out + at, in + at, e->norm, each, eps);
        for (uint32_t i = 0; i < e->width; i++) out[i] = (out[i] + row[i] * e->table_scale) * e->scale;
    }
}

/* ---- norm and tile ---- */

/* Tokens [first, last), normed, to `to`. */
static void norm_rows(const struct run *run, uint32_t first, uint32_t last, float *to)
{
    const struct program_entry *e = run->entry;
    for (uint32_t t = first; t < last; t++, to += e->width) {
        uint32_t from = t;
        if (e->sampled) from = batch_sample_token(&run->batch, t);
        const float *x = e->in + (size_t)from * e->width, eps = (float)run->config->norm_eps;
        if (e->layer_norm)
            run->kernels->vector->layernorm(to, x, e->norm, e->norm_bias, e->width, eps);
        else
            run->kernels->vector->rmsnorm(to, x, e->norm, e->width, eps);
    }
}

static void chunk_norm(void *ctx, uint32_t chunk, uint32_t thread)
{
    struct run *run = ctx;
    const struct program_entry *e = run->entry;
    uint32_t tokens = run_tokens(run, e), width = e->width;
    uint32_t first = chunk * e->chunk, last = first + e->chunk;
    if (last > tokens) last = tokens;
    const float *tileable = e->in + (size_t)first * width;
    if (e->norm) {
        float *to = e->out ? e->out + (size_t)first * width : run->thread[thread].scratch;
        norm_rows(run, first, last, to);
        tileable = to;
    }
    for (uint32_t i = 0; i < e->tile_count; i++) {
        const struct linear_kernel *k = e->tile[i];
        size_t tile_bytes = linear_tile_bytes(k, tokens, width);
        for (uint32_t t = first; t < last;) { /* a tile is for one gemm call */
            uint32_t tile = t / PROGRAM_TILE_TOKENS, base = tile * PROGRAM_TILE_TOKENS;
            uint32_t in_tile = tokens - base < PROGRAM_TILE_TOKENS ? tokens - base : PROGRAM_TILE_TOKENS;
            uint32_t end = last - base < in_tile ? last - base : in_tile;
            k->tile((char *)run->act->tiled[TILED_NORM][k->format] + tile * tile_bytes,
                    tileable + (size_t)(t - first) * width, width, in_tile, width, t - base, end, 0, width);
            t = base + end;
        }
    }
}

/* Normed in place, then added to the residual stream, or grown. */
static void chunk_add_normed(void *ctx, uint32_t chunk, uint32_t thread)
{
    (void)thread;
    struct run *run = ctx;
    const struct program_entry *e = run->entry;
    uint32_t first = chunk * e->chunk, last = first + e->chunk;
    if (last > run_tokens(run, e)) last = run_tokens(run, e);
    for (uint32_t t = first; t < last; t++) {
        float *in = e->in + (size_t)t * e->width;
        const struct vector_variant *v = run->kernels->vector;
        if (e->other) {
            float *other = e->other + (size_t)t * e->width;
            v->rmsnorm(in, in, e->in_norm, e->width, (float)run->config->norm_eps);
            v->rmsnorm(other, other, e->other_norm, e->width, (float)run->config->norm_eps);
            v->add(in, other, e->width);
        }
        if (e->norm) v->rmsnorm(in, in, e->norm, e->width, (float)run->config->norm_eps);
        if (!e->residual) { /* in place */
            const float by = math_growth(e->growth, e->growth_context, run->batch.position[t]);
            for (uint32_t i = 0; e->growth != 0 && i < e->width; i++) in[i] *= by;
            continue;
        }
        float *x = e->out + (size_t)t * e->width;
        v->add(x, in, e->width);
        for (uint32_t i = 0; e->vector && i < e->width; i++) x[i] *= *e->vector;
    }
}

/* ---- sample ---- */

static void chunk_sample(void *ctx, uint32_t chunk, uint32_t thread)
{
    struct run *run = ctx;
    const struct batch_sample *sample = &run->batch.sample[chunk];
    const struct batch_row *row = &run->batch.row[sample->row];
    const struct arena_slot *slot = arena_slot_of(run->arena, row->slot);
    struct step_result_row *out = &run->result->row[sample->result];
    uint32_t length = row->start + sample->at + run->further;
    const struct sampling_tokens tokens = {arena_history_of(run->arena, row->slot), length,
                                           slot->prompt_count < length ? slot->prompt_count : length,
                                           row->masked ? arena_mask_of(run->arena, row->slot) : NULL};
    int rc =
        sampling_draw(&slot->sampling, run->act->buffer[BUFFER_LOGITS] + (size_t)chunk * run->config->vocab,
                      run->config->vocab, &tokens, run->thread[thread].scratch, &out->sampled);
    out->status = rc ? STEP_ROW_NO_FINITE_LOGIT : STEP_ROW_OK;
}

/* ---- hand-over ---- */

static void chunk_move(void *ctx, uint32_t chunk, uint32_t thread)
{
    (void)thread;
    struct run *run = ctx;
    const struct program_entry *e = run->entry;
    uint32_t first = chunk * e->chunk, last = first + e->chunk, hidden = run->config->hidden;
    if (last > run->batch.token_count) last = run->batch.token_count;
    float *x = run->act->buffer[BUFFER_X] + (size_t)first * hidden,
          *data = e->lane->data + (size_t)first * hidden;
    size_t bytes = (size_t)(last - first) * hidden * sizeof(float);
    if (e->kind == OP_LANE_READ)
        memcpy(x, data, bytes);
    else
        memcpy(data, x, bytes);
}

/* Before an entry that uses a lane: waits until it is our turn. */
static void hand_over_begin(struct run *run, const struct program_entry *e)
{
    uint64_t start_ns = units_now_ns();
    if (e->kind == OP_ATTEND_HOST)
        run->rc = assist_begin(run, e, &run->err);
    else if (experts_are(e))
        run->rc = experts_begin(run, e, &run->err);
    else if (e->kind == OP_LANE_READ)
        run->rc = lane_wait(e->lane, e->ticket, run->spin_us, (int)run->peer_wait_ms, run->cancel, &run->err);
    else
        run->rc =
            lane_acquire(e->lane, e->ticket, run->spin_us, (int)run->peer_wait_ms, run->cancel, &run->err);
    const uint64_t end_ns = units_now_ns();
    run->wait_ns += end_ns - start_ns;
    if (e->kind == OP_ATTEND_HOST || e->kind == OP_EXPERTS_TAKE)
        run->mark_ns = end_ns; /* work begins with this */
}

/* After it: every chunk is done. */
static void hand_over_end(struct run *run, const struct program_entry *e)
{
    if (e->kind == OP_ATTEND_HOST)
        run->rc = assist_end(e, &run->err);
    else if (experts_are(e))
        run->rc = experts_end(e, &run->err);
    else if (e->kind == OP_LANE_WRITE)
        run->rc = lane_publish(e->lane, e->ticket, &run->err);
    else if (e->last)
        lane_release(e->lane);
}

static bool uses_lane(const struct program_entry *e)
{
    return op_traits_of(e->kind)->outer || e->answer;
}

/* ---- the walk ---- */

/* Charges the time since the last entry to that entry's kind. */
static void run_clock(struct run *run)
{
    uint64_t now = units_now_ns(), spent = now - run->mark_ns;
    run->mark_ns = now;
    if (!run->entry) return;
    uint64_t *shortest = run->entry_ns[run->program_index];
    if (shortest && spent < shortest[run->entry_index - 1]) shortest[run->entry_index - 1] = spent;
    const enum op_kind kind = run->entry->kind;
    if (kind == OP_ROPE_APPEND || kind == OP_ATTEND || delta_is(kind) || kind == OP_ATTEND_HOST)
        run->attention_ns += spent;
    else if (kind == OP_SAMPLE)
        run->sample_ns += spent;
    else if (!uses_lane(run->entry) ||
             experts_are(run->entry)) /* a hand-over's waiting is counted where it waits */
        run->linear_ns += spent;
}

/* The first one-token LINEAR from here on; NULL, too, where cells of the cache come first, which would push
 * it out of the caches again. */
static const struct program_entry *linear_from(const struct run *run, uint32_t program, uint32_t entry)
{
    for (; program < 2; program++, entry = 0) {
        const struct program *p = run->program[program];
        if (!p || p->tiled || p->few) continue;
        for (; entry < p->count; entry++) {
            if (p->entry[entry].kind == OP_ATTEND_HOST || experts_are(&p->entry[entry])) return NULL;
            if (p->entry[entry].kind == OP_LINEAR) return &p->entry[entry];
        }
    }
    return NULL;
}

/* The work of an idle thread: a pool_idle_fn. */
static bool fetch_ahead(void *ctx, uint32_t thread, uint32_t piece)
{
    const struct run *run = ctx;
    const struct program_entry *down = atomic_load_explicit(&run->experts.ahead.down, memory_order_acquire);
    return down ? experts_fetch_ahead(run, down, thread, piece) : linear_fetch_ahead(ctx, thread, piece);
}

static struct pool_job job_of(struct run *run, const struct program_entry *e, uint32_t tokens)
{
    static pool_chunk_fn *const by_tokens[OP_KIND_COUNT] = {
        [OP_EMBED] = chunk_embed,
        [OP_NORM] = chunk_norm,
        [OP_ROPE_APPEND] = attend_append,
        [OP_SAMPLE] = chunk_sample,
        [OP_LANE_READ] = chunk_move,
        [OP_LANE_WRITE] = chunk_move,
        [OP_ADD_NORMED] = chunk_add_normed,
        [OP_PER_LAYER] = chunk_per_layer,
        [OP_JOIN] = chunk_join,
    };
    if (e->kind == OP_ATTEND) return attend_job(run);
    if (e->kind == OP_ATTEND_HOST) return assist_job(run, e);
    if (e->kind == OP_RUNNING_MEAN) return state_job(run, e);
    if (delta_is(e->kind)) return delta_job(run, e);
    if (experts_are(e)) return experts_job(run, e);
    if (e->kind == OP_LINEAR_HEADS)
        return (struct pool_job){.run = linear_heads,
                                 .chunks = e->chunks * run->config->heads,
                                 .alone = e->alone,
                                 .width = tokens == 1 ? e->share : 0};
    if (e->kind == OP_LINEAR) {
        const struct program *p = run->program[run->program_index];
        const bool tiled = p->tiled;
        return (struct pool_job){.run = tiled    ? linear_tokens
                                        : p->few ? linear_few
                                                 : linear_one_token,
                                 .chunks = tiled ? linear_chunks(e, tokens) : e->chunks,
                                 .alone = e->alone,
                                 .width = e->share};
    }
    return (struct pool_job){.run = by_tokens[e->kind],
                             .chunks = run_ceil_div(tokens, e->chunk),
                             .alone = uses_lane(e) && tokens <= e->chunk};
}

/* Waits until the weights of the entry's unit have come from disk. */
static void take_unit(struct run *run, const struct program_entry *e)
{
    const uint64_t start_ns = units_now_ns();
    run->rc = disk_take_unit(run->disk, e->unit, &run->err);
    run->mark_ns = units_now_ns();
    run->wait_ns += run->mark_ns - start_ns;
}

static bool execute_next(void *ctx, uint32_t thread, struct pool_job *job)
{
    (void)thread;
    struct run *run = ctx;
    run_clock(run);
    if (run->entry && uses_lane(run->entry)) hand_over_end(run, run->entry);
    if (run->entry && run->entry->leaves_unit) disk_leave_unit(run->disk);
    if (run->rc) return false;
    if (run->entry && run->entry->from_disk && experts_again(run, job)) return true;
    if (run->rc) return false;
    while (run->program_index < 2) {
        const struct program *p = run->program[run->program_index];
        if (p && run->entry_index < p->count) break;
        run->program_index++;
        run->entry_index = 0;
    }
    if (run->program_index == 2) return false;
    const struct program_entry *e = &run->program[run->program_index]->entry[run->entry_index++];
    uint32_t tokens = run_tokens(run, e);
    run->entry = e;
    run->turn++;
    atomic_store_explicit(&run->ahead, linear_from(run, run->program_index, run->entry_index),
                          memory_order_release);
    atomic_store_explicit(&run->experts.ahead.down, NULL, memory_order_relaxed);
    if (uses_lane(e)) hand_over_begin(run, e);
    if (e->takes_unit) take_unit(run, e);
    if (run->rc) return false;
    *job = job_of(run, e, tokens);
    return !run->rc;
}

int execute_run(struct run *run, struct helm_err *err)
{
    run->rc = 0;
    run->wait_ns = 0;
    run->program_index = 0;
    run->entry_index = 0;
    run->entry = NULL;
    run->linear_ns = run->attention_ns = run->sample_ns = 0;
    run->mark_ns = units_now_ns();
    run->steady = run->invariant && run->batch.flags & STEP_PROMPT;
    run->attend_heads = 0; /* the first layer's attention cuts it */
    pool_run(run->pool, execute_next, run);
    atomic_store_explicit(&run->ahead, NULL, memory_order_relaxed);
    atomic_store_explicit(&run->experts.ahead.down, NULL, memory_order_relaxed);
    if (run->rc && err) *err = run->err;
    return run->rc;
}

/* ---- set-up ---- */

static size_t most_of(size_t most, size_t bytes)
{
    return bytes > most ? bytes : most;
}

/* A thread's scratch, in bytes: for one use at a time, and after that the part that linears keep. */
struct scratch_size {
    size_t scratch, ordered, decoded, experts;
};

/* The most that a kind of layer needs. */
static size_t attention_scratch(const struct run *run)
{
    const struct attention_variant *v = run->kernels->attention;
    const uint32_t heads = run->config->heads;
    return most_of(v->scratch_bytes(&run->kv, EXECUTE_QUERY_TOKENS, heads / run->kv.kv_heads),
                   v->scratch_bytes(&run->window_kv, EXECUTE_QUERY_TOKENS, heads / run->window_kv.kv_heads));
}

static struct scratch_size scratch_needed(const struct run *run, const struct program *const *programs,
                                          uint32_t count)
{
    struct scratch_size size = {.scratch = most_of(sampling_scratch_bytes(run->config->vocab),
                                                   attention_scratch(run)),
                                .experts = cpu_experts_bytes(run->config)};
    for (uint32_t p = 0; p < count; p++)
        for (uint32_t i = 0; i < programs[p]->count; i++) {
            const struct program_entry *e = &programs[p]->entry[i];
            if (e->kind == OP_NORM && !e->out)
                size.scratch = most_of(size.scratch, (size_t)e->chunk * e->width * sizeof(float));
            if (e->kind == OP_WEIGH || e->kind == OP_PER_LAYER)
                size.scratch = most_of(size.scratch, (size_t)e->width * sizeof(float));
            for (uint32_t s = 0; s < e->segment_count; s++) {
                const struct program_segment *g = &e->segment[s];
                if (e->kind == OP_LINEAR_HEADS) {
                    size.ordered = most_of(size.ordered, linear_few_ordered_bytes(g, PROGRAM_FEW_TOKENS));
                    size.scratch = most_of(size.scratch, LINEAR_FEW_SCRATCH_BYTES);
                    continue;
                }
                if (programs[p]->few && !experts_are(e)) {
                    size.ordered = most_of(size.ordered, linear_few_ordered_bytes(g, programs[p]->few));
                    size.scratch = most_of(size.scratch, LINEAR_FEW_SCRATCH_BYTES);
                    continue;
                }
                if (!programs[p]->tiled ||
                    experts_are(e)) /* of which a single token's are read as one token's */
                    size.ordered = most_of(size.ordered, linear_ordered_bytes(g));
                if (!programs[p]->tiled) continue;
                size.scratch = most_of(size.scratch, g->kernels->tokens->scratch_bytes(g->matrix.cols,
                                                                                       PROGRAM_TILE_TOKENS));
                size.decoded = most_of(size.decoded, linear_decoded_bytes(g));
            }
        }
    size.scratch = (size.scratch + 127) / 64 * 64;
    size.ordered = (size.ordered + 127) / 64 * 64;
    size.decoded = (size.decoded + 127) / 64 * 64;
    size.experts = (size.experts + 127) / 64 * 64;
    return size;
}

int execute_create(struct run *run, const struct program *const *programs, uint32_t program_count,
                   struct helm_err *err)
{
    const struct model_config *c = run->config;
    uint32_t step_tokens = arena_header_of(run->arena)->step_tokens;
    const struct model_heads most = model_heads_most(c), window = model_heads_of(c, true);
    uint64_t tasks = (uint64_t)most.kv_heads * (run->unit_tokens / EXECUTE_QUERY_TOKENS + ARENA_STEP_ROWS);
    run->threads = pool_threads(run->pool);
    run->kv_heads_group = c->heads / c->kv_heads;
    /* Splits are made only while there are fewer than 2 tasks a thread: at most 4 a thread plus one round up.
     * In an invariant plan every query of a few is split as if it was alone. */
    run->parts_max =
        run->invariant ? PROGRAM_FEW_TOKENS * (4 * run->threads + most.kv_heads) : 8 * run->threads;
    tasks += run->parts_max;
    if (tasks > POOL_CHUNKS_MAX || step_tokens > POOL_CHUNKS_MAX)
        return helm_fail(err, HELM_E_LIMIT,
                         "%u kv heads with %u tokens a step make %llu attention tasks, more than %u",
                         most.kv_heads, run->unit_tokens, (unsigned long long)tasks, POOL_CHUNKS_MAX);
    const size_t group = most_of(run->kv_heads_group, c->heads / window.kv_heads);
    const struct scratch_size size = scratch_needed(run, programs, program_count);
    const size_t bytes = size.scratch + size.ordered + size.decoded + size.experts;
    if (bytes > run->thread_bytes) {
        log_warn("these kernels' scratch takes %zu bytes of each of %u threads, the plan has %llu", bytes,
                 run->threads, (unsigned long long)run->thread_bytes);
        run->thread_bytes = bytes;
    }
    bool all = true;
    for (uint32_t r = 0; r < model_ropes(c); r++) {
        run->inv_freq[r] = calloc(model_rope_dims(c, r) / 2 + 1, sizeof(float));
        all &= run->inv_freq[r] != NULL;
    }
    run->ones = malloc(most.head_dim * sizeof *run->ones);
    for (uint32_t i = 0; run->ones && i < most.head_dim; i++) run->ones[i] = 1;
    run->batch.token = calloc(step_tokens, sizeof *run->batch.token);
    run->batch.position = calloc(step_tokens, sizeof *run->batch.position);
    run->batch.token_row = calloc(step_tokens, sizeof *run->batch.token_row);
    run->thread = aligned_alloc(64, run->threads * sizeof *run->thread);
    if (run->thread) memset(run->thread, 0, run->threads * sizeof *run->thread);
    run->part_out = calloc(run->parts_max * group * most.head_dim, sizeof(float));
    run->part_max = calloc(run->parts_max * group, sizeof(float));
    run->part_sum = calloc(run->parts_max * group, sizeof(float));
    run->part_left = calloc(run->parts_max, sizeof *run->part_left);
    all = all && run->ones && run->batch.token && run->batch.position && run->batch.token_row &&
          run->thread && run->part_out && run->part_max && run->part_sum && run->part_left;
    for (uint32_t i = 0; i < run->threads && all; i++) {
        run->thread[i].scratch = aligned_alloc(64, run->thread_bytes);
        all = run->thread[i].scratch != NULL;
        if (!all) break;
        memset(run->thread[i].scratch, 0, bytes);
        run->thread[i].ordered = (float *)((char *)run->thread[i].scratch + size.scratch);
        run->thread[i].decoded = (char *)run->thread[i].ordered + size.ordered;
        run->thread[i].experts = (char *)run->thread[i].decoded + size.decoded;
    }
    int rc = all ? 0
                 : helm_fail(err, HELM_E_NOMEM, "no memory for the scratch of %u threads (%zu bytes each)",
                             run->threads, bytes);
    if (!rc) rc = assist_create(run, err);
    if (!rc) rc = experts_create(run, programs, program_count, err);
    if (rc) {
        execute_destroy(run);
        return rc;
    }
    for (uint32_t r = 0; r < model_ropes(c); r++)
        rope_inv_freq(c, r, arena_header_of(run->arena)->context_tokens, run->inv_freq[r],
                      &run->rope_scale[r]);
    run->reads = linear_reads_choose();
    pool_set_idle(run->pool, fetch_ahead, run);
    return 0;
}

void execute_destroy(struct run *run)
{
    for (uint32_t i = 0; run->thread && i < run->threads; i++) free(run->thread[i].scratch);
    free(run->thread);
    free(run->ones);
    for (uint32_t r = 0; r < MODEL_ROPES_MAX; r++) free(run->inv_freq[r]);
    free(run->batch.token);
    free(run->batch.position);
    free(run->batch.token_row);
    free(run->part_out);
    free(run->part_max);
    free(run->part_sum);
    free(run->part_left);
    assist_destroy(run);
    experts_destroy(run);
    memset(run, 0, sizeof *run);
}
