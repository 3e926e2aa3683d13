/* Issuing a program: its entries, one after another, into the device's queues. See program.h.
 *
 * Run once per decode tier, under capture, and once per step for a chunk (for every program where graphs are
 * not wanted). Called by step.c and engine.c. */
#include "worker-gpu/program.h"

static bool is_launch(enum gpu_kind kind)
{
    switch (kind) {
    case GPU_COPY_BLOCK:
    case GPU_WORD_WAIT:
    case GPU_WORD_WRITE:
    case GPU_MATMUL:
    case GPU_CHAIN:
    case GPU_EXPAND: /* what stands behind it would fetch weights early */
    case GPU_RECORD:
    case GPU_FOLLOW:
        return false;
    default:
        return true;
    }
}

/* The copy queue's, which stand between the compute queue's without being part of it. */
static bool is_copy(const struct gpu_entry *e)
{
    switch (e->kind) {
    case GPU_STREAM_COPY:
    case GPU_KV_IN:
    case GPU_KV_OUT:
        return true;
    case GPU_RECORD:
    case GPU_FOLLOW:
        return e->as.event.queue == DEVICE_COPY;
    default:
        return false;
    }
}

/* What a program that runs alone leaves out. */
static bool is_between_others(const struct gpu_source *s, const struct gpu_entry *e)
{
    switch (e->kind) {
    case GPU_GEMV: /* of a packed slice, which is trusted too */
        return e->packed;
    case GPU_LANE_READ:
    case GPU_LANE_WRITE:
    case GPU_EXPAND: /* it trusts what is in the ring, and nothing is yet */
    case GPU_STREAM_COPY:
    case GPU_KV_IN:
    case GPU_KV_OUT:
    case GPU_RECORD:
    case GPU_FOLLOW:
        return true;
    case GPU_WORD_WAIT:
    case GPU_WORD_WRITE:
        return e->as.word.word != s->end;
    default:
        return false;
    }
}

/* What an entry is issued for. */
struct span_of_tokens {
    uint32_t tokens, padded;
    const uint32_t *count; /* on the device */
    uint32_t flags;
};

/* A chunk's head knows how many samples there are, since its list is issued anew each step; mostly it is one,
 * and then the head's matrix is read at the speed of decode. */
static int issue_linear(const struct gpu_source *s, const struct gpu_program *p, const struct gpu_entry *e,
                        uint32_t tokens, uint32_t samples, uint32_t flags, struct helm_err *err)
{
    struct device *d = s->device;
    void *work = s->buffers->linear_work;
    const uint32_t *count = !e->head ? p->step.counts : p->step.counts + 3 + e->group;
    if (p->tier != GPU_TIER_CHUNK) samples = p->samples;
    uint32_t most = e->head ? samples - e->group * GPUK_BATCH_MAX : tokens;
    if (most > GPUK_BATCH_MAX) most = GPUK_BATCH_MAX;
    if (e->packed) return d->kernels.gemv_packed(d, &e->as.linear, e->offset, flags, err);
    if (e->kind == GPU_GEMV || (e->head && most == 1))
        return d->kernels.gemv(d, &e->as.linear, work, flags, err);
    return d->kernels.gemm_small(d, &e->as.linear, most, count, work, flags, err);
}

static int issue_attention(const struct gpu_source *s, const struct gpu_program *p, const struct gpu_entry *e,
                           const struct span_of_tokens *of, struct helm_err *err)
{
    struct device *d = s->device;
    const struct gpuk_attention *a = &e->as.attention.args;
    switch (e->kind) {
    case GPU_ROPE_APPEND:
        return d->kernels.rope_append(d, a, of->tokens, e->as.attention.q, e->as.attention.q_dtype, of->flags,
                                      err);
    case GPU_ATTEND_DECODE:
        return d->kernels.attention_decode(d, a, of->tokens, e->as.attention.fused, e->as.attention.out,
                                           gpu_attention_work(s, of->tokens), of->flags, err);
    default:
        return d->kernels.attention_prefill(d, a, e->as.attention.q, of->tokens, p->block.rows,
                                            e->as.attention.out, e->as.attention.out_dtype, of->flags, err);
    }
}

/* The block of one token is left as that of the next one: for a step that follows without a block (ahead.h);
 * any other brings its own. */
static int issue_argmax(const struct gpu_source *s, const struct gpu_program *p, uint32_t flags,
                        struct helm_err *err)
{
    const struct gpu_buffers *b = s->buffers;
    const struct gpuk_next next = {.token_id = (uint32_t *)(void *)(b->block + p->block.token_id),
                                   .position = (uint32_t *)(void *)(b->block + p->block.position)};
    return s->device->kernels.argmax(s->device, p->step.counts + 2, p->samples, b->logits,
                                     s->model->config.vocab, s->tokens, p->tier == GPU_TIER_1 ? &next : NULL,
                                     b->argmax_work, flags, err);
}

/* ---- the copy queue ---- */

static int copy_slice(const struct gpu_source *s, const struct ring_slice *slice, struct helm_err *err)
{
    int rc = 0;
    for (uint32_t i = 0; i < slice->part_count && !rc;) {
        const struct ring_part *first = &slice->part[i];
        uint64_t bytes = first->bytes;
        /* one copy of what lies one behind the other on both sides */
        for (i++; i < slice->part_count && slice->part[i].from == first->from + bytes &&
                  slice->part[i].at == first->at + bytes;
             i++)
            bytes += slice->part[i].bytes;
        rc = device_copy(s->device, DEVICE_COPY, DEVICE_TO_DEVICE, s->ring_memory + slice->place + first->at,
                         first->from, bytes, err);
    }
    return rc;
}

static int issue_slice(const struct gpu_source *s, const struct gpu_program *p, const struct gpu_entry *e,
                       struct helm_err *err)
{
    int rc = copy_slice(s, &s->ring[p->phase].slice[e->as.stream.slice], err);
    if (rc) return rc;
    return s->device->ops->event_record(s->device, DEVICE_COPY, s->event[e->as.stream.event], err);
}

static int issue_expand(const struct gpu_source *s, const struct gpu_program *p, const struct gpu_entry *e,
                        struct helm_err *err)
{
    const struct ring_schedule *of = e->home ? s->home : &s->ring[p->phase];
    const struct ring_slice *slice = &of->slice[e->as.stream.slice];
    struct gpuk_expand_part part[RING_PARTS_MAX];
    for (uint32_t i = 0; i < slice->part_count; i++) {
        const struct ring_part *from = &slice->part[i];
        part[i] = (struct gpuk_expand_part){.packed = e->home ? from->from
                                                              : s->ring_memory + slice->place + from->at,
                                            .offset = from->offset,
                                            .out = s->expanded + from->out,
                                            .rows = from->rows,
                                            .cols = gpu_matrix_of(s->weights, from->role, e->layer)->cols};
    }
    return s->device->kernels.expand(s->device, part, slice->part_count, err);
}

/* The pages of a row that an entry copies: those with a position before this step, or those appended to. */
static void borrowed_pages(const struct gpu_source *s, const struct batch_row *row, bool out, uint32_t *first,
                           uint32_t *end)
{
    uint32_t page = s->kv.page_tokens;
    *first = out ? row->start / page : 0;
    *end = out ? (row->start + row->count + page - 1) / page : (row->start + page - 1) / page;
}

static int issue_borrow(const struct gpu_source *s, const struct gpu_issue *issue, const struct gpu_entry *e,
                        struct helm_err *err)
{
    const struct kv_layout *host = &arena_header_of(s->arena)->kv;
    const uint64_t layer_bytes = kv_layer_bytes(host), page_bytes = kv_page_bytes(host);
    char *pool = (char *)arena_region_ptr(s->arena, ARENA_REGION_KV) + e->as.borrow.kv_layer * layer_bytes;
    char *staging = s->staging[e->as.borrow.staging];
    bool out = e->kind == GPU_KV_OUT;
    int rc = 0;
    for (uint32_t r = 0; r < issue->batch->row_count && !rc; r++) {
        const struct batch_row *row = &issue->batch->row[r];
        uint32_t at, end;
        borrowed_pages(s, row, out, &at, &end);
        while (at < end && !rc) {
            uint32_t page = row->pages[at], run = 1; /* neighbours in the pool go in one copy */
            while (at + run < end && row->pages[at + run] == page + run) run++;
            struct device_copy_2d copy = {.to = staging + page * layer_bytes,
                                          .from = pool + page * page_bytes,
                                          .to_stride = layer_bytes,
                                          .from_stride = page_bytes,
                                          .width = layer_bytes,
                                          .height = run};
            if (out)
                copy = (struct device_copy_2d){.to = pool + page * page_bytes,
                                               .from = staging + page * layer_bytes,
                                               .to_stride = page_bytes,
                                               .from_stride = layer_bytes,
                                               .width = layer_bytes,
                                               .height = run};
            rc = device_copy_2d(s->device, DEVICE_COPY, out ? DEVICE_TO_HOST : DEVICE_TO_DEVICE, &copy, err);
            at += run;
        }
    }
    if (rc) return rc;
    return s->device->ops->event_record(s->device, DEVICE_COPY, s->event[e->as.borrow.event], err);
}

uint64_t gpu_program_borrowed(const struct gpu_source *s, const struct gpu_program *p,
                              const struct batch *batch)
{
    uint64_t pages = 0, layers = 0;
    for (uint32_t i = 0; i < p->count; i++) layers += p->entry[i].kind == GPU_KV_OUT;
    for (uint32_t r = 0; r < batch->row_count && layers; r++)
        for (int out = 0; out < 2; out++) {
            uint32_t first, end;
            borrowed_pages(s, &batch->row[r], out, &first, &end);
            pages += end - first;
        }
    return layers * pages * kv_layer_bytes(&s->kv);
}

/* The first pages of a borrowed layer, there and back, so that a driver that has something to load for such
 * copies does it before a queue waits for the host. Nobody has used the caches yet. */
static int try_borrowing(const struct gpu_source *s, struct helm_err *err)
{
    const struct arena_header *h = arena_header_of(s->arena);
    const uint64_t layer_bytes = kv_layer_bytes(&h->kv), page_bytes = kv_page_bytes(&h->kv);
    char *pool = arena_region_ptr(s->arena, ARENA_REGION_KV);
    struct device_copy_2d copy = {.to = s->staging[0],
                                  .from = pool,
                                  .to_stride = layer_bytes,
                                  .from_stride = page_bytes,
                                  .width = layer_bytes,
                                  .height = h->page_count < 2 ? h->page_count : 2};
    if (!s->staging[0]) return 0;
    int rc = device_copy_2d(s->device, DEVICE_COPY, DEVICE_TO_DEVICE, &copy, err);
    copy = (struct device_copy_2d){.to = pool,
                                   .from = s->staging[0],
                                   .to_stride = page_bytes,
                                   .from_stride = layer_bytes,
                                   .width = layer_bytes,
                                   .height = copy.height};
    if (!rc) rc = device_copy_2d(s->device, DEVICE_COPY, DEVICE_TO_HOST, &copy, err);
    return rc;
}

/* ---- the prefix ---- */

static int copy_prefix(const struct gpu_source *s, uint32_t index, struct gpu_prefix *prefix,
                       struct helm_err *err)
{
    const struct ring_slice *slice = &s->ring[0].slice[index];
    int rc = copy_slice(s, slice, err);
    if (!rc)
        rc = s->device->ops->event_record(s->device, DEVICE_COPY, s->event[s->events.prefix + index], err);
    if (rc) return rc;
    prefix->there[index] = true;
    for (uint32_t i = 0; i < slice->part_count; i++) prefix->copied_bytes += slice->part[i].bytes;
    return 0;
}

/* Whether a phase finds this slice of the prefix in the ring. */
static bool holds(const struct ring_schedule *ring, uint32_t index)
{
    return index < ring->count && ring->slice[index].held;
}

/* What the step before used of these places is behind it, and this program's copies come behind these. */
int gpu_program_issue_missing(const struct gpu_source *s, const struct gpu_program *p,
                              struct gpu_prefix *prefix, struct helm_err *err)
{
    int rc = 0;
    for (uint32_t i = 0; i < prefix->count && !rc; i++)
        if (!prefix->there[i] && holds(&s->ring[p->phase], i)) rc = copy_prefix(s, i, prefix, err);
    return rc;
}

int gpu_program_prime(const struct gpu_source *s, struct gpu_prefix *prefix, struct helm_err *err)
{
    struct device *d = s->device;
    int rc = try_borrowing(s, err);
    for (uint32_t i = 0; i < prefix->count && !rc; i++) rc = copy_prefix(s, i, prefix, err);
    if (rc || !s->events.count) return rc;
    rc = d->ops->event_record(d, DEVICE_COPY, s->event[GPU_EVENT_BEGIN], err);
    if (!rc) rc = d->ops->event_wait(d, s->event[GPU_EVENT_BEGIN], err);
    return rc;
}

/* ---- entries ---- */

/* Up to the last line of the page table that is used. The link takes one copy at a time: behind a slice on
 * its way the block would come up to 0.3 ms late, so where weights are streamed a kernel reads it. */
static int issue_block(const struct gpu_source *s, const struct gpu_program *p, enum gpu_kind kind,
                       const struct gpu_issue *issue, uint32_t flags, struct helm_err *err)
{
    struct device *d = s->device;
    uint64_t words = p->block.page_table / sizeof(uint32_t) + (uint64_t)issue->rows * p->step.pages_per_slot;
    if (kind == GPU_COPY_BLOCK)
        return device_copy(d, DEVICE_COMPUTE, DEVICE_TO_DEVICE, s->buffers->block, s->block_host,
                           words * sizeof(uint32_t), err);
    /* As one row, whole vectors: there is room behind the block on both sides. Of the step's number of tokens
     * it matters that it is not 0. */
    const uint32_t *count = (const uint32_t *)(s->block_host + p->block.counts);
    return d->kernels.lane_copy(d, count, 1, (const float *)s->block_host, (uint32_t)((words + 3) / 4 * 4),
                                (float *)s->buffers->block, flags, err);
}

static int issue_entry(const struct gpu_source *s, const struct gpu_program *p, const struct gpu_entry *e,
                       const struct gpu_issue *issue, const struct span_of_tokens *of, struct helm_err *err)
{
    struct device *d = s->device;
    const struct device_kernels *k = &d->kernels;
    const struct gpu_buffers *b = s->buffers;
    const struct model_config *c = &s->model->config;
    const uint32_t tokens = of->tokens, flags = of->flags, *count = of->count;
    switch (e->kind) {
    case GPU_COPY_BLOCK:
    case GPU_READ_BLOCK:
        return issue_block(s, p, e->kind, issue, flags, err);
    case GPU_ROPE_TABLE:
        return k->rope_table(d, &p->step, tokens, b->inv_freq, c->head_dim, s->rope_scale, b->rope_table,
                             flags, err);
    case GPU_EMBED:
        return k->embed(d, &p->step, tokens, e->as.embed.table, e->as.embed.dtype, c->vocab, c->hidden, b->x,
                        flags, err);
    case GPU_GEMV:
    case GPU_GEMM_SMALL:
        return issue_linear(s, p, e, tokens, issue->samples, flags, err);
    case GPU_NORM:
        return k->rmsnorm(d, count, tokens, e->as.norm.x, e->as.norm.norm, (float)c->norm_eps, c->hidden,
                          e->as.norm.out, e->as.norm.out_dtype, flags, err);
    case GPU_MATMUL:
        return k->matmul(d, e->as.matmul.dtype, e->as.matmul.out_dtype, of->padded, e->as.matmul.rows,
                         e->as.matmul.cols, e->as.matmul.out_stride, e->as.matmul.accumulate, e->as.matmul.w,
                         e->as.matmul.x, e->as.matmul.out, b->matmul_work, err);
    case GPU_ADD_BIAS:
        return k->add_bias(d, count, tokens, e->as.bias.out, e->as.bias.dtype, e->as.bias.stride,
                           e->as.bias.rows, e->as.bias.bias, flags, err);
    case GPU_SWIGLU:
        return k->swiglu(d, count, tokens, e->as.swiglu.in, e->as.swiglu.dtype, 2 * e->as.swiglu.n,
                         e->as.swiglu.n, e->as.swiglu.n, e->as.swiglu.out, e->as.swiglu.dtype,
                         e->as.swiglu.out_stride, flags, err);
    case GPU_ROPE_APPEND:
    case GPU_ATTEND_DECODE:
    case GPU_ATTEND_PREFILL:
        return issue_attention(s, p, e, of, err);
    case GPU_LANE_READ:
    case GPU_LANE_WRITE:
        return k->lane_copy(d, count, tokens, e->as.move.from, c->hidden, e->as.move.to, flags, err);
    case GPU_WORD_WAIT:
        return device_word_wait(d, e->as.word.word, e->as.word.value, e->as.word.compare, err);
    case GPU_WORD_WRITE:
        return device_word_write(d, e->as.word.word, e->as.word.value, err);
    case GPU_GATHER:
        return k->gather(d, &p->step, p->samples, b->x, c->hidden, b->sample, flags, err);
    case GPU_ARGMAX:
        return issue_argmax(s, p, flags, err);
    case GPU_CHAIN:
        return k->chain_run(d, &e->as.chain.chain, err);
    case GPU_EXPAND:
        return issue_expand(s, p, e, err);
    case GPU_STREAM_COPY:
        return issue_slice(s, p, e, err);
    case GPU_KV_IN:
    case GPU_KV_OUT:
        return issue_borrow(s, issue, e, err);
    case GPU_RECORD:
        return d->ops->event_record(d, e->as.event.queue, s->event[e->as.event.event], err);
    case GPU_FOLLOW:
        return d->ops->event_follow(d, e->as.event.queue, s->event[e->as.event.event], err);
    }
    return helm_fail(err, HELM_E_INTERNAL, "entry %d of no kind", (int)e->kind);
}

static uint32_t pad(uint32_t tokens)
{
    return (tokens + GPU_PAD_TOKENS - 1) / GPU_PAD_TOKENS * GPU_PAD_TOKENS;
}

/* The tokens of an entry; none when the step ends before its sub-chunk. */
static struct span_of_tokens span_of(const struct gpu_program *p, const struct gpu_entry *e, uint32_t tokens)
{
    struct span_of_tokens of = {.tokens = tokens, .count = p->step.counts};
    if (e->sub != GPU_SUB_ALL && p->block.subs > 1) {
        uint32_t before = e->sub * GPU_SUB_TOKENS, left = tokens > before ? tokens - before : 0;
        of.tokens = left < GPU_SUB_TOKENS ? left : GPU_SUB_TOKENS;
        of.count += (p->block.sub + e->sub * p->block.sub_stride + p->block.sub_counts - p->block.counts) /
                    sizeof(uint32_t);
    }
    of.padded = pad(of.tokens);
    return of;
}

int gpu_program_issue(const struct gpu_source *s, const struct gpu_program *p, const struct gpu_issue *issue,
                      struct helm_err *err)
{
    bool after_launch = false; /* only behind another kernel may one start early */
    int rc = 0;
    for (uint32_t i = 0, step; i < p->tail && !rc; i += step) {
        const struct gpu_entry *e = &p->entry[i];
        step = e->kind == GPU_CHAIN ? 1 + e->as.chain.count : 1;
        if (e->head && e->group * GPUK_BATCH_MAX >= issue->samples) continue;
        if (e->when != GPU_WHEN_ANY && (e->when == GPU_WHEN_ONE) != (issue->samples == 1)) continue;
        if (e->again && issue->tokens <= GPU_SUB_TOKENS) continue;
        if (issue->alone && is_between_others(s, e)) continue;
        struct span_of_tokens of = span_of(p, e, issue->tokens);
        if (of.tokens == 0) continue;
        of.flags = after_launch && s->device->early_launch ? GPUK_EARLY : 0;
        rc = issue_entry(s, p, e, issue, &of, err);
        if (!is_copy(e)) after_launch = is_launch(e->kind);
    }
    return rc;
}

int gpu_program_issue_tail(const struct gpu_source *s, const struct gpu_program *p, bool again,
                           struct gpu_prefix *prefix, struct helm_err *err)
{
    const struct ring_schedule *ring = &s->ring[p->phase];
    const struct gpu_entry *follow = NULL; /* for what is overwritten by the copies behind it */
    int rc = 0;
    for (uint32_t i = p->tail; i < p->count && !rc; i++) {
        const struct gpu_entry *e = &p->entry[i];
        if (e->kind == GPU_FOLLOW) {
            follow = e;
            continue;
        }
        uint32_t index = ring->slice[e->as.stream.slice].prefix;
        prefix->there[index] = false;
        if (again && !holds(ring, index)) continue;
        if (follow)
            rc = s->device->ops->event_follow(s->device, DEVICE_COPY, s->event[follow->as.event.event], err);
        follow = NULL;
        if (!rc) rc = copy_prefix(s, index, prefix, err);
    }
    /* what an earlier step left out: this one does not touch it */
    for (uint32_t i = 0; i < prefix->count && !again && !rc; i++)
        if (!prefix->there[i]) rc = copy_prefix(s, i, prefix, err);
    return rc;
}
