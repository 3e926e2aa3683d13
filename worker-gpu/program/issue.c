/* Issuing a program: its entries, one after another, into the device's queues. See program.h.
 *
 * Run once per decode tier, under capture, and once per step for a chunk (for every program where graphs are
 * not wanted). Called by step.c and engine.c. */
#include "common/base/units.h"
#include "worker-gpu/program/pieces.h"
#include "worker-gpu/program/tiers.h"

/* The copy queue's, which stand between the compute queue's without being part of it. */
static bool is_copy(const struct gpu_entry *e)
{
    const enum op_queue queue = op_traits_of(e->op.kind)->queue;
    return queue == OP_QUEUE_EITHER ? e->supply.queue == DEVICE_COPY : queue == OP_QUEUE_LINK;
}

/* Whether an entry makes a choice of experts before it asks for some. */
static bool is_choice(const struct gpu_entry *e)
{
    return e->op.kind == OP_EXPERTS_ASK && e->op.as.experts_ask.router;
}

/* Whether a program that runs alone leaves an entry out: a hand-over, or one that trusts bytes that come from
 * elsewhere, weights among them. */
static bool is_between_others(const struct gpu_source *s, const struct gpu_entry *e)
{
    if (e->op.kind == OP_WORD_WRITE) return e->op.as.word.word != s->end;
    if (is_choice(e)) return false; /* choose_alone */
    return op_traits_of(e->op.kind)->outer || gpu_entry_trusts(e);
}

/* The step, or the sub-chunk, that an entry is issued for. */
struct issuing {
    const struct gpu_source *source;
    const struct gpu_program *program;
    const struct gpu_issue *issue;
    uint32_t tokens;       /* of the step, or of the entry's sub-chunk; */
    const uint32_t *count; /* on the device */
    uint32_t flags;
};

/* ---- the copy queue ---- */

static int copy_slice(const struct gpu_source *s, const struct ring_slice *slice, struct helm_err *err)
{
    int rc = 0;
    for (uint32_t i = 0; i < slice->part_count && !rc;) {
        const struct ring_part *first = &slice->part[i];
        uint64_t bytes = first->bytes;
        /* one copy of parts that adjoin on both sides */
        for (i++; i < slice->part_count && slice->part[i].from == first->from + bytes &&
                  slice->part[i].at == first->at + bytes;
             i++)
            bytes += slice->part[i].bytes;
        rc = device_copy(s->device, DEVICE_COPY, DEVICE_TO_DEVICE, s->ring_memory + slice->place + first->at,
                         first->from, bytes, err);
    }
    return rc;
}

static int issue_slice(const struct issuing *i, const struct gpu_entry *e, struct helm_err *err)
{
    const struct gpu_source *s = i->source;
    int rc = copy_slice(s, &s->ring[i->program->phase].slice[e->supply.slice], err);
    if (rc) return rc;
    return s->device->ops->event_record(s->device, DEVICE_COPY, s->event[e->supply.event], err);
}

static bool is_of_window(const struct gpu_source *s, const struct gpu_entry *e)
{
    return plan_keeps_window(s->plan, (uint32_t)e->layer);
}

/* The pages of a row that an entry copies: those with a position before this step, or those appended to. */
static void staged_pages(const struct gpu_source *s, const struct gpu_entry *e, const struct batch_row *row,
                         uint32_t *first, uint32_t *end)
{
    const uint32_t page = s->kv.page_tokens;
    const bool out = e->op.kind == OP_KV_OUT;
    *first = out                  ? row->start / page
             : is_of_window(s, e) ? state_window_hidden(row->start, s->plan->window_tokens, page)
                                  : 0;
    *end = out ? (row->start + row->count + page - 1) / page : (row->start + page - 1) / page;
}

/* `run` adjoining pages of a layer: from the host's pool, of this layout, to a staging pool, or back. */
static int copy_pages(const struct gpu_source *s, const struct kv_layout *host, char *pool, char *staging,
                      uint32_t run, bool out, struct helm_err *err)
{
    const uint64_t layer_bytes = kv_layer_bytes(host), page_bytes = kv_page_bytes(host);
    const struct device_copy_2d copy = {.to = out ? pool : staging,
                                        .from = out ? staging : pool,
                                        .to_stride = out ? page_bytes : layer_bytes,
                                        .from_stride = out ? layer_bytes : page_bytes,
                                        .width = layer_bytes,
                                        .height = run};
    return device_copy_2d(s->device, DEVICE_COPY, out ? DEVICE_TO_HOST : DEVICE_TO_DEVICE, &copy, err);
}

static int issue_borrow(const struct issuing *i, const struct gpu_entry *e, struct helm_err *err)
{
    const struct gpu_source *s = i->source;
    const struct batch *batch = i->issue->batch;
    const bool out = e->op.kind == OP_KV_OUT, window = is_of_window(s, e);
    const struct kv_layout host = window ? arena_window_layout(s->arena) : arena_header_of(s->arena)->kv;
    const uint64_t layer_bytes = kv_layer_bytes(&host), page_bytes = kv_page_bytes(&host);
    char *all = window ? arena_window_pool(s->arena) : arena_region_ptr(s->arena, ARENA_REGION_KV);
    char *pool = all + e->supply.kv_layer * layer_bytes;
    char *staging = window ? gpu_window_staging(s, e->supply.staging) : s->staging[e->supply.staging];
    int rc = 0;
    if (plan_kv_tiered(s->plan) && !window)
        return (out ? gpu_pieces_back : gpu_pieces_begin)(s, e, batch, err);
    for (uint32_t r = 0; r < batch->row_count && !rc; r++) {
        const struct batch_row *row = &batch->row[r];
        const uint32_t *pages = window ? row->windows : row->pages;
        uint32_t at, end;
        staged_pages(s, e, row, &at, &end);
        while (at < end && !rc) {
            /* neighbours in the pool go in one copy, whichever way the row has them */
            uint32_t low = pages[at], high = low;
            for (at++; at < end && (pages[at] == high + 1 || pages[at] + 1 == low); at++)
                if (pages[at] > high)
                    high++;
                else
                    low--;
            rc = copy_pages(s, &host, pool + low * page_bytes, staging + low * layer_bytes, high - low + 1,
                            out, err);
        }
    }
    if (rc) return rc;
    return s->device->ops->event_record(s->device, DEVICE_COPY, s->event[e->supply.event], err);
}

static int issue_store(const struct issuing *i, const struct gpu_entry *e, struct helm_err *err)
{
    const struct gpu_source *s = i->source;
    const struct gpu_cells cells = {.kv_layer = e->supply.kv_layer, .layer = (uint32_t)e->layer, .layers = 1};
    int rc = gpu_store_filled(s, DEVICE_COPY, &cells, i->issue->batch, 0, err);
    if (rc) return rc;
    return s->device->ops->event_record(s->device, DEVICE_COPY, s->event[e->supply.event], err);
}

uint64_t gpu_program_borrowed(const struct gpu_source *s, const struct gpu_program *p,
                              const struct batch *batch)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < p->count; i++) {
        const struct gpu_entry *e = &p->entry[i];
        if (e->op.kind != OP_KV_IN && e->op.kind != OP_KV_OUT) continue;
        const bool window = is_of_window(s, e), pieces = plan_kv_tiered(s->plan) && !window;
        uint64_t pages = 0;
        if (pieces) pages += gpu_pieces_copied(s, e, batch);
        for (uint32_t r = 0; r < batch->row_count && !pieces; r++) {
            uint32_t first, end;
            staged_pages(s, e, &batch->row[r], &first, &end);
            pages += end > first ? end - first : 0;
        }
        bytes += pages * kv_layer_bytes(window ? &s->window_kv : &s->kv);
    }
    return bytes;
}

/* The first pages of a borrowed layer, there and back, so that a driver that has something to load for such
 * copies does it before a queue waits for the host. The caches are still unused. */
static int try_borrowing(const struct gpu_source *s, struct helm_err *err)
{
    const uint32_t pages = arena_header_of(s->arena)->page_count, run = pages < 2 ? pages : 2;
    const struct kv_layout *host = &arena_header_of(s->arena)->kv;
    char *pool = arena_region_ptr(s->arena, ARENA_REGION_KV);
    if (!s->staging[0] || !host->layers) return 0;
    int rc = copy_pages(s, host, pool, s->staging[0], run, false, err);
    if (!rc) rc = copy_pages(s, host, pool, s->staging[0], run, true, err);
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

/* The step before no longer uses these places, and this program's copies come after these. */
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

/* Copies the block up to the last line of the page table that is used. The link takes one copy at a time:
 * after a slice on its way the block would come up to 0.3 ms late, so where weights are streamed a kernel
 * reads it: as one row, whole vectors; there is room after the block on both sides. The step's number of
 * tokens only has to be other than 0. */
static int issue_block(const struct issuing *i, const struct gpu_entry *e, struct helm_err *err)
{
    const struct gpu_source *s = i->source;
    const struct gpu_program *p = i->program;
    uint64_t words =
        p->block.page_table / sizeof(uint32_t) + (uint64_t)i->issue->rows * p->step.pages_per_slot;
    if (e->op.kind == OP_COPY_BLOCK)
        return device_copy(s->device, DEVICE_COMPUTE, DEVICE_TO_DEVICE, gpu_area(s->buffers, GPU_AREA_BLOCK),
                           s->block_host, words * sizeof(uint32_t), err);
    const struct op read = {.kind = OP_READ_BLOCK,
                            .flags = i->flags,
                            .tokens = 1,
                            .count = (const uint32_t *)(s->block_host + p->block.counts),
                            .as.move = {.from = (const float *)s->block_host,
                                        .to = (float *)gpu_area(s->buffers, GPU_AREA_BLOCK),
                                        .width = (uint32_t)((words + 3) / 4 * 4)}};
    return device_run(s->device, &read, err);
}

static int issue_event(const struct issuing *i, const struct gpu_entry *e, struct helm_err *err)
{
    const struct gpu_source *s = i->source;
    const struct device_ops *ops = s->device->ops;
    return (e->op.kind == OP_RECORD ? ops->event_record : ops->event_follow)(s->device, e->supply.queue,
                                                                             s->event[e->supply.event], err);
}

/* Operations that are the program's and not the device's own. */
static int (*const issue_of[OP_KIND_COUNT])(const struct issuing *i, const struct gpu_entry *e,
                                            struct helm_err *err) = {
    [OP_COPY_BLOCK] = issue_block, [OP_READ_BLOCK] = issue_block, [OP_STREAM_COPY] = issue_slice,
    [OP_KV_IN] = issue_borrow,     [OP_KV_OUT] = issue_borrow,    [OP_RECORD] = issue_event,
    [OP_FOLLOW] = issue_event,     [OP_KV_STORE] = issue_store,
};

/* A matrix product's tokens are whole multiples, and in an invariant plan those at which the library has one
 * algorithm; short prompts have one number and an algorithm of their own. */
static void pad(const struct issuing *i, struct op *op)
{
    const struct gpu_source *s = i->source;
    const uint32_t whole = s->plan->invariant && !s->device->steady ? GPU_STEADY_TOKENS : GPU_PAD_TOKENS;
    op->tokens = (uint32_t)round_up(op->tokens, whole);
    if (i->issue->is_short) op->as.matmul.steady = GPU_STEADY_TOKENS;
}

/* Tokens of an entry; none when the step ends before its sub-chunk. */
static void set_tokens(struct issuing *i, const struct gpu_entry *e)
{
    const struct gpu_block *b = &i->program->block;
    i->tokens = i->issue->tokens;
    i->count = i->program->step.counts;
    if (e->sub == GPU_SUB_ALL || b->subs <= 1) return;
    uint32_t before = e->sub * GPU_SUB_TOKENS, left = i->tokens > before ? i->tokens - before : 0;
    i->tokens = left < GPU_SUB_TOKENS ? left : GPU_SUB_TOKENS;
    i->count += (b->sub + e->sub * b->sub_stride + b->sub_counts - b->counts) / sizeof(uint32_t);
}

/* A chunk's head knows how many samples there are, since its list is issued anew each step; mostly it is one,
 * and then the head's matrix is read at the speed of decode. An invariant plan's head is computed as for
 * all. */
static void set_samples(const struct issuing *i, const struct gpu_entry *e, struct op *op)
{
    const struct gpu_program *p = i->program;
    const bool invariant = i->source->plan->invariant;
    uint32_t samples = p->tier == GPU_TIER_CHUNK && !invariant ? i->issue->samples : p->samples;
    samples -= e->group * GPUK_BATCH_MAX;
    op->tokens = samples < GPUK_BATCH_MAX ? samples : GPUK_BATCH_MAX;
    if (op->tokens == 1 && !invariant) op->kind = OP_GEMV;
}

/* The choice of a program that runs alone, without asking: kernels after it read one, in which each token's
 * experts differ. */
static void choose_alone(struct op *op)
{
    const struct gpuk_experts_ask ask = op->as.experts_ask;
    op->kind = OP_ROUTE;
    op->as.route = (struct op_route){.router = *ask.router,
                                     .logits = ask.logits,
                                     .choice_bias = ask.choice_bias,
                                     .out = ask.choice};
}

static int issue_entry(const struct issuing *i, const struct gpu_entry *e, struct helm_err *err)
{
    if (issue_of[e->op.kind]) return issue_of[e->op.kind](i, e, err);
    struct op op = e->op;
    op.flags = i->flags;
    if (!op.count) op.count = i->count;
    if (!op.tokens) op.tokens = i->tokens;
    if (i->issue->alone && is_choice(e)) choose_alone(&op);
    if (op.kind == OP_MATMUL) pad(i, &op);
    if (op.kind == OP_GEMM_SMALL && e->head) set_samples(i, e, &op);
    if (op.kind == OP_GEMM_SMALL && op.tokens > GPUK_BATCH_MAX) op.tokens = GPUK_BATCH_MAX;
    if (op.kind == OP_ATTEND_DECODE) op.workspace = gpu_attention_work(i->source, op.tokens);
    if (op.kind == OP_ATTEND_PREFILL && op.as.attention.part.before && !i->issue->alone)
        return gpu_pieces_attend(i->source, e, &op, i->issue->batch, err);
    return device_run(i->source->device, &op, err);
}

static bool is_issued(const struct gpu_source *s, const struct gpu_entry *e, const struct gpu_issue *issue)
{
    const bool is_short = s->plan->invariant ? issue->is_short : issue->tokens <= e->when_tokens;
    switch (e->when) {
    case GPU_WHEN_ONE:
        return issue->samples == 1;
    case GPU_WHEN_SEVERAL:
        return issue->samples != 1;
    case GPU_WHEN_SHORT:
        return is_short;
    case GPU_WHEN_LONG:
        return !is_short;
    case GPU_WHEN_FILLS:
        return issue->fills;
    case GPU_WHEN_READS_HOST:
        return issue->reads_host;
    case GPU_WHEN_TIERS:
        return issue->fills || issue->reads_host;
    default:
        return true;
    }
}

/* Whether the product `e` need not wait for what the launch in front makes: both of one token, of which
 * kernels.h says that they let others start as GPUK_BESIDE asks. */
static bool is_beside(const struct gpu_entry *front, const struct gpu_entry *e)
{
    if (e->op.kind != OP_GEMV || !front) return false;
    const float *x = e->op.as.linear.x, *end = x + e->op.as.linear.cols;
    if (front->op.kind == OP_WEIGH) {
        const struct gpuk_weigh *w = &front->op.as.weigh;
        return w->dtype == DTYPE_F32 && ((const float *)w->act >= end || (const float *)w->act + w->n <= x);
    }
    if (front->op.kind == OP_EXPERTS_DOWN) {
        const struct gpuk_experts_down *d = &front->op.as.experts_down.few;
        return !front->op.as.experts_down.is_chunk && (d->out >= end || d->out + d->down.rows <= x);
    }
    if (front->op.kind != OP_GEMV) return false;
    const struct gpuk_linear_args *a = &front->op.as.linear;
    for (uint32_t i = 0; i < (a->swiglu ? 1 : a->segments); i++)
        if (a->segment[i].out < end && x < a->segment[i].out + a->segment[i].rows) return false;
    return true;
}

/* A launch that writes the step block, which kernels that start early read before they wait (kernels.h). */
static bool writes_block(const struct gpu_entry *e)
{
    return e->op.kind == OP_READ_BLOCK || (e->op.kind == OP_ARGMAX && e->op.as.argmax.next.token_id);
}

/* Whether launches of a program may start early: one token's small kernels gain an eighth of a mixture's step
 * by it. A chunk's have enough work to hide a launch, and lose. Chains are one kernel each. */
static bool starts_early(const struct gpu_source *s, const struct gpu_program *p, const struct gpu_entry *e)
{
    return s->device->early_launch && p->tier == GPU_TIER_1 && e->op.kind != OP_CHAIN;
}

int gpu_program_issue(const struct gpu_source *s, const struct gpu_program *p, const struct gpu_issue *issue,
                      struct helm_err *err)
{
    struct issuing of = {.source = s, .program = p, .issue = issue};
    const struct gpu_entry *front = NULL; /* a launch after which one may start early */
    int rc = 0;
    for (uint32_t i = 0, step; i < p->tail && !rc; i += step) {
        const struct gpu_entry *e = &p->entry[i];
        step = e->op.kind == OP_CHAIN ? 1 + e->op.as.chain.count : 1;
        if (e->head && e->group * GPUK_BATCH_MAX >= issue->samples) continue;
        if (!is_issued(s, e, issue)) continue;
        if (e->again && issue->tokens <= GPU_SUB_TOKENS) continue;
        if (issue->alone && is_between_others(s, e)) continue;
        set_tokens(&of, e);
        if (of.tokens == 0) continue;
        of.flags = front && starts_early(s, p, e) ? GPUK_EARLY : 0;
        if (of.flags && is_beside(front, e)) of.flags |= GPUK_BESIDE;
        rc = issue_entry(&of, e, err);
        if (!is_copy(e)) front = op_traits_of(e->op.kind)->launch && !writes_block(e) ? e : NULL;
    }
    return rc;
}

int gpu_program_capture(const struct gpu_source *s, struct gpu_program *p, struct helm_err *err)
{
    struct device *d = s->device;
    const struct gpu_issue issue = {.tokens = p->tokens, .rows = p->samples, .samples = p->samples};
    int rc = d->ops->capture_begin(d, err);
    if (rc) return rc;
    rc = gpu_program_issue(s, p, &issue, err);
    int ended = d->ops->capture_end(d, &p->graph, rc ? NULL : err);
    return rc ? rc : ended;
}

int gpu_program_issue_tail(const struct gpu_source *s, const struct gpu_program *p, bool again,
                           struct gpu_prefix *prefix, struct helm_err *err)
{
    const struct ring_schedule *ring = &s->ring[p->phase];
    const struct gpu_entry *follow = NULL; /* for places that the copies after it overwrite */
    int rc = 0;
    for (uint32_t i = p->tail; i < p->count && !rc; i++) {
        const struct gpu_entry *e = &p->entry[i];
        if (e->op.kind == OP_FOLLOW) {
            follow = e;
            continue;
        }
        uint32_t index = ring->slice[e->supply.slice].prefix;
        prefix->there[index] = false;
        if (again && !holds(ring, index)) continue;
        if (follow)
            rc = s->device->ops->event_follow(s->device, DEVICE_COPY, s->event[follow->supply.event], err);
        follow = NULL;
        if (!rc) rc = copy_prefix(s, index, prefix, err);
    }
    /* what an earlier step left out: this one does not touch it */
    for (uint32_t i = 0; i < prefix->count && !again && !rc; i++)
        if (!prefix->there[i]) rc = copy_prefix(s, i, prefix, err);
    return rc;
}
