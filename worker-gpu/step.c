/* Running one step. See engine.h.
 *
 * The host's part: check the rows, write the step block into pinned memory, launch one graph (or issue a
 * chunk), add what draws need (draw.c) and the next step if that follows (follow.h), wait for the end word,
 * and draw. */
#include "worker-gpu/engine.h"

#include <string.h>
#include <sys/prctl.h>
#include <time.h>

#include "common/base/spin.h"
#include "common/base/units.h"
#include "worker-gpu/draw.h"
#include "worker-gpu/program/tiers.h"
#include "worker-gpu/tiers.h"
#include "worker-gpu/watch.h"

#define WARM_TOKENS   17 /* of a chunk, where one size is as good as another */
#define NAP_SLACK_NS  1000ul
#define TOKEN_SPIN_US 200 /* spinning for another worker's tokens takes a CPU that it may need for them */
#define END_CHECK_MS  50  /* how often a waiting host thread asks whether the device still works */

static uint32_t *array_of(const struct gpu_engine *g, uint32_t offset)
{
    return (uint32_t *)(g->source.block_host + offset);
}

static void fill_counts(uint32_t *counts, uint32_t tokens, uint32_t rows, uint32_t samples)
{
    counts[0] = tokens;
    counts[1] = rows;
    counts[2] = samples;
    for (uint32_t i = 0; i < GPU_HEAD_GROUPS; i++) {
        uint32_t before = i * GPUK_BATCH_MAX, left = samples > before ? samples - before : 0;
        counts[3 + i] = left < GPUK_BATCH_MAX ? left : GPUK_BATCH_MAX;
    }
}

/* Where the rows with tokens in a sub-chunk begin and end in it. */
static void fill_sub(const struct gpu_engine *g, const struct gpu_block *b, uint32_t sub)
{
    const struct batch *batch = &g->batch;
    uint32_t at = b->sub + sub * b->sub_stride, first = sub * GPU_SUB_TOKENS, rows = 0;
    uint32_t end = batch->token_count - first < GPU_SUB_TOKENS ? batch->token_count : first + GPU_SUB_TOKENS;
    uint32_t *row_first = array_of(g, at + b->sub_row_first), *row_slot = array_of(g, at + b->sub_row_slot);
    uint32_t *token_row = array_of(g, at + b->sub_token_row);
    for (uint32_t r = 0; r < batch->row_count; r++) {
        uint32_t from = batch->row[r].token_first, to = from + batch->row[r].count;
        if (from < first) from = first;
        if (to > end) to = end;
        if (from >= to) continue;
        row_first[rows] = from - first;
        row_slot[rows] = r;
        for (uint32_t t = from; t < to; t++) token_row[t - first] = rows;
        rows++;
    }
    row_first[rows] = end - first;
    fill_counts(array_of(g, at + b->sub_counts), end - first, rows, 0);
}

/* Pages of a row that a step reads or writes; the others are not read. */
static uint32_t pages_of(const struct gpu_engine *g, const struct batch_row *row)
{
    return (row->start + row->count - 1) / arena_header_of(g->base.arena)->kv.page_tokens + 1;
}

/* A row's pages of windows. Kernels may read a tile that begins in front of the window, and multiply it by
 * 0. */
static void fill_windows(const struct gpu_engine *g, const struct gpu_program *p, uint32_t r)
{
    const struct batch_row *row = &g->batch.row[r];
    const struct arena_header *h = arena_header_of(g->base.arena);
    const uint32_t line = p->step.pages_per_slot, count = pages_of(g, row),
                   hidden = state_window_hidden(row->start, h->window_tokens, h->kv.page_tokens);
    uint32_t *table = array_of(g, p->block.page_table) + (size_t)r * line + line / 2;
    for (uint32_t i = 0; i < hidden; i++) table[i] = row->windows[hidden];
    memcpy(table + hidden, row->windows + hidden, (count - hidden) * sizeof *table);
}

/* Where a row leaves snapshots before its last token; after that records are copied (states.h). */
static void fill_left(const struct gpu_engine *g, const struct gpu_block *b, uint32_t r)
{
    const struct batch_row *row = &g->batch.row[r];
    uint32_t *left = array_of(g, b->row_left) + (size_t)r * GPU_ROW_STATES * 2, count = 0;
    memset(left, 0, GPU_ROW_STATES * 2 * sizeof *left);
    for (uint32_t i = 0; i < GPU_ROW_STATES && row->left[i].to && row->left[i].at < row->count; i++) {
        left[count++] = row->token_first + row->left[i].at;
        left[count++] = row->left[i].to;
    }
}

/* The checked rows as the kernels read them; row r's pages are line r. */
void gpu_step_fill(const struct gpu_engine *g, const struct gpu_program *p)
{
    const struct batch *batch = &g->batch;
    const struct gpu_block *b = &p->block;
    uint32_t pages_per_slot = p->step.pages_per_slot;
    uint32_t *row_first = array_of(g, b->row_first), *row_slot = array_of(g, b->row_slot);
    uint32_t *sample = array_of(g, b->sample_token), *token_row = array_of(g, b->token_row);
    fill_counts(array_of(g, b->counts), batch->token_count, batch->row_count, batch->sample_count);
    memcpy(array_of(g, b->token_id), batch->token, batch->token_count * sizeof(uint32_t));
    memcpy(array_of(g, b->position), batch->position, batch->token_count * sizeof(uint32_t));
    for (uint32_t t = 0; t < batch->token_count; t++) token_row[t] = batch->token_row[t];
    for (uint32_t r = 0; r < batch->row_count; r++) {
        const struct batch_row *row = &batch->row[r];
        row_first[r] = row->token_first;
        row_slot[r] = r;
        array_of(g, b->row_state)[r] = row->slot;
        fill_left(g, b, r);
        if (row->windows) fill_windows(g, p, r);
        if (g->tiers.on)
            gpu_tiers_fill(g, p, r);
        else
            memcpy(array_of(g, b->page_table) + (size_t)r * pages_per_slot, row->pages,
                   pages_of(g, row) * sizeof(uint32_t));
    }
    row_first[batch->row_count] = batch->token_count;
    for (uint32_t i = 0; i < batch->sample_count; i++) sample[i] = batch_sample_token(batch, i);
    for (uint32_t sub = 0; b->subs > 1 && sub * GPU_SUB_TOKENS < batch->token_count; sub++)
        fill_sub(g, b, sub);
}

/* ---- waiting for the end ---- */

static void begin_watch(struct watch *w, struct gpu_engine *g, struct gpu_program *p)
{
    const struct arena *arena = g->base.arena;
    const uint32_t lanes = arena_header_of(arena)->lanes[ARENA_LANE_STEP];
    const _Atomic uint32_t *word[PLAN_LINKS];
    for (uint32_t l = 0; l < lanes; l++) word[l] = &arena_lane_of(arena, l)->bell.value;
    watch_begin(w, p, g->batch.token_count, lanes ? word : NULL, g->source.sent, units_now_ns());
}

/* Waits for the end word. Meanwhile launches the next step when it is rung and follows, notes which worker's
 * turn it is, and checks for failures. */
static int wait_for_end(struct gpu_engine *g, const struct step *step, const _Atomic uint32_t *end,
                        struct watch *w, struct helm_err *err)
{
    const uint64_t start_ns = units_now_ns();
    uint64_t yield_ns = 0;
    bool patient = false, looked = false;
    for (uint64_t checked_ns = start_ns;;) {
        int rc = looked ? 0 : gpu_follow_launch(g, step, &looked, err);
        if (rc) return rc;
        if (atomic_load_explicit(end, memory_order_acquire) == 1) return 0;
        uint64_t now_ns = units_now_ns();
        watch_look(w, now_ns);
        if (now_ns - checked_ns > END_CHECK_MS * UINT64_C(1000000)) {
            rc = g->device->ops->check(g->device, err);
            if (rc) return rc;
            checked_ns = now_ns;
        }
        if (now_ns - start_ns > g->wait_ms * UINT64_C(1000000))
            return helm_fail(err, HELM_E_PEER, "the device has not finished a step within %u ms", g->wait_ms);
        /* a step in which the CPU attends, or computes experts, leaves it its processors */
        uint64_t nap_ns = watch_nap_ns(w,
                                       w->program->attending == GPU_ATTENDS_ASSISTED || g->slots.place.bytes
                                           ? 0
                                           : g->device->spin_us * UINT64_C(1000),
                                       g->device->nap_us * UINT64_C(1000), now_ns);
        if (!nap_ns) {
            spin_yield(now_ns, &yield_ns);
            continue;
        }
        const struct timespec nap = {.tv_nsec = (long)nap_ns};
        if (!patient) prctl(PR_SET_TIMERSLACK, NAP_SLACK_NS, 0, 0, 0); /* naps as short as they are meant */
        patient = true;
        (void)nanosleep(&nap, NULL);
    }
}

/* ---- the step ---- */

/* Whether a chunk's prompt goes on, most likely with another chunk: a row of it yields no token yet. */
static bool goes_on(const struct gpu_program *p, const struct batch *batch)
{
    bool on = false;
    for (uint32_t r = 0; r < batch->row_count; r++) on |= !batch->row[r].sample;
    return p->tier == GPU_TIER_CHUNK && on;
}

/* Launches the batch's step, from its block on. */
static int launch(struct gpu_engine *g, struct gpu_program *p, struct helm_err *err)
{
    const struct batch *batch = &g->batch;
    struct gpu_issue issue = gpu_issue_of(g);
    issue.fills = g->tiers.on && gpu_fills(batch, g->kv.page_tokens, 0) > 0;
    issue.reads_host = gpu_reads_host(batch);
    int rc = gpu_drafts_settle(g, err);
    if (rc) return rc;
    gpu_step_fill(g, p);
    g->follow.at = 0;
    for (uint32_t r = 0; r < batch->row_count; r++) g->follow.pages[r] = pages_of(g, &batch->row[r]);
    atomic_store_explicit(g->source.sent, 0, memory_order_relaxed);
    atomic_store_explicit(g->source.end, 0, memory_order_release);
    rc = gpu_tiers_begin(g, err);
    if (!rc) rc = gpu_states_begin(&g->states, g->device, batch, p->phase, err);
    if (!rc) rc = gpu_slots_begin(&g->slots, err);
    if (!rc) rc = gpu_program_issue_missing(&g->source, p, &g->prefix, err);
    if (!rc)
        rc = p->graph ? g->device->ops->graph_launch(g->device, p->graph, false, err)
                      : gpu_program_issue(&g->source, p, &issue, err);
    return rc;
}

/* Computes the batch, or the rest of it if it was launched after the step before. */
static int compute(struct gpu_engine *g, const struct step *step, struct gpu_program *p, uint64_t start_ns,
                   struct step_result *result, struct helm_err *err)
{
    const bool head = g->plan.head == g->base.self, taken = gpu_follow_take(g);
    struct arena_times *times = &g->base.times;
    struct watch watch;
    begin_watch(&watch, g, p);
    int rc = taken ? 0 : launch(g, p, err);
    if (!rc && p->tier != GPU_TIER_CHUNK) rc = gpu_slots_send(&g->slots, err);
    const uint32_t at = g->follow.at;
    const uint64_t before_ns = g->follow.before_ns;
    const bool over = taken && atomic_load_explicit(gpu_follow_end(g, at), memory_order_acquire) == 1;
    if (!rc && head) rc = gpu_draw_queue(g, err);
    /* after what draws wait for; a chunk's program has its own */
    if (!rc && g->tiers.on && !taken && p->tier != GPU_TIER_CHUNK) rc = gpu_tiers_store(g, at, 0, err);
    bool saves = false; /* a step launched after the one before leaves no snapshot */
    if (!rc && !taken) rc = gpu_states_end(&g->states, g->device, &g->batch, g->source.moved, &saves, err);
    if (!rc && g->tiers.on) rc = gpu_tiers_fetch(g, step, err);
    if (!rc && !taken) rc = gpu_program_issue_tail(&g->source, p, goes_on(p, &g->batch), &g->prefix, err);
    if (!rc) rc = wait_for_end(g, step, gpu_follow_end(g, at), &watch, err);
    const uint64_t end_ns = units_now_ns();
    g->follow.before_ns = end_ns;
    if (!rc && saves) rc = device_word_poll(g->device, g->source.moved, 1, g->wait_ms, err);
    if (!rc) gpu_states_give_back(&g->states, &g->batch, p->phase);
    if (!rc && head) rc = gpu_draw_finish(g, gpu_follow_tokens(g, at), result, err);
    if (!rc && head && g->batch.pool_count) rc = gpu_pool_rows(g, err);
    if (!rc && g->tiers.on) rc = gpu_tiers_finish(g, at, err);
    if (!rc && p->tier != GPU_TIER_CHUNK) rc = gpu_slots_end(&g->slots, g->batch.token_count, err);
    if (rc) return rc;
    /* A step that was launched after another began when that one ended. When it ended was not seen, if that
     * was before its turn came: then it took as long as the last one that was seen. */
    uint64_t linear_ns = end_ns - start_ns;
    if (taken) linear_ns = over && g->follow.usual_ns ? g->follow.usual_ns : end_ns - before_ns;
    if (!over) g->follow.usual_ns = linear_ns;
    result->linear_ns = linear_ns; /* the device does not tell its kernels apart */
    result->sample_ns = units_now_ns() - end_ns;
    times->wait_ns = watch_end(&watch);
    times->weight_bytes = g->weights.step_bytes + p->stream_bytes;
    times->link_bytes = p->copy_bytes + g->prefix.copied_bytes + gpu_tiers_copied(g, step) +
                        gpu_program_borrowed(&g->source, p, &g->batch);
    return 0;
}

/* The program of the batch. There is no separate one where attention is the usual one. */
static struct gpu_program *program_of(struct gpu_engine *g, uint32_t phase, enum gpu_tier tier)
{
    struct gpu_program *usual = &g->program[phase][tier];
    if (g->batch.assisted) return &g->other[GPU_ATTENDS_ASSISTED][tier];
    if (phase || tier == GPU_TIER_CHUNK) return usual;
    uint32_t furthest = 0;
    for (uint32_t r = 0; r < g->batch.row_count; r++) {
        const uint32_t last = g->batch.row[r].start + g->batch.row[r].count - 1;
        if (last > furthest) furthest = last;
    }
    if (!gpu_attends_apart(&g->plan, tier, furthest)) return usual;
    struct gpu_program *apart = &g->other[GPU_ATTENDS_APART][tier];
    return apart->count ? apart : usual;
}

int gpu_step_run(struct gpu_engine *g, const struct step *step, struct helm_err *err)
{
    const bool head = g->plan.head == g->base.self, looks_up = g->reads_tokens;
    const struct engine_patience patience = {.spin_us = TOKEN_SPIN_US, .wait_ms = g->wait_ms};
    struct arena_control *control = arena_control_of(g->base.arena);
    struct step_result *result = head ? &control->result[step->serial % ARENA_STEP_RING] : &g->own_result;
    struct arena_times *times = &g->base.times;
    uint64_t waited_ns = 0;
    memset(times, 0, sizeof *times);
    int rc = looks_up && !head ? engine_wait_drawn(&g->base, step, &patience, &waited_ns, err) : 0;
    const uint64_t start_ns = units_now_ns();
    if (!rc) rc = batch_take(g->base.arena, g->model.config.vocab, step, &g->batch, result, err);
    if (!rc && (looks_up || head))
        rc = batch_follow(g->base.arena, g->model.config.vocab, step, head, &g->batch, err);
    if (rc) return rc;
    if (g->follow.running && g->batch.row_count != step->row_count)
        return helm_fail(err, HELM_E_PEER, "step %u changed after it was rung", step->serial);
    result->linear_ns = result->sample_ns = result->attention_ns = 0;
    g->prefix.copied_bytes = 0;
    if (g->batch.row_count) {
        const uint32_t tokens = g->batch.token_count;
        struct plan_schedule schedule;
        rc = plan_schedule_of(&g->plan, g->batch.flags, tokens, &schedule, err);
        if (rc) return rc;
        if (((step->flags & STEP_KV_ARENA) != 0) != (schedule.chunk && plan_appends_in_arena(&g->plan)))
            return helm_fail(err, HELM_E_PEER,
                             "step %u of %u tokens has flags %#x: where it appends is not "
                             "where the plan says",
                             step->serial, tokens, step->flags);
        g->is_short = schedule.is_short;
        struct gpu_program *p = program_of(g, schedule.phase, gpu_tier_for(&g->plan, &schedule, tokens));
        rc = compute(g, step, p, start_ns, result, err);
        const uint64_t drafts_ns = units_now_ns();
        if (!rc && head && g->plan.draft_layers) rc = gpu_drafts_run(g, p->tier, result, err);
        result->linear_ns += units_now_ns() - drafts_ns;
    } else if (step->flags & STEP_KV_MOVES) {
        rc = gpu_session_move(g, step, err);
    } else if (g->tiers.on) {
        rc = gpu_tiers_fetch(g, step, err);
    }
    if (rc) return rc;
    if (head) doorbell_ring(&control->drawn_bell, step->serial);
    result->compute_ns = result->linear_ns + result->sample_ns;
    result->weight_bytes = times->weight_bytes;
    times->busy_ns = result->compute_ns > times->wait_ns ? result->compute_ns - times->wait_ns : 0;
    times->wait_ns += waited_ns;
    return 0;
}

static int warm_once(struct gpu_engine *g, const struct gpu_program *p, uint32_t tokens, bool is_short,
                     struct helm_err *err)
{
    const struct gpu_block *b = &p->block;
    uint32_t samples = p->tier == GPU_TIER_CHUNK ? p->samples : 1;
    const struct gpu_issue issue = {
        .tokens = tokens, .rows = p->samples, .samples = p->samples, .is_short = is_short, .alone = true};
    memset(g->source.block_host, 0, (size_t)b->bytes);
    g->batch.row[0] = (struct batch_row){.count = tokens};
    g->batch.row_count = 1;
    g->batch.token_count = tokens;
    fill_counts(array_of(g, b->counts), tokens, 1, samples);
    for (uint32_t t = 0; t < tokens; t++) array_of(g, b->position)[t] = t;
    array_of(g, b->row_first)[1] = tokens;
    for (uint32_t sub = 0; b->subs > 1 && sub * GPU_SUB_TOKENS < tokens; sub++) fill_sub(g, b, sub);
    atomic_store_explicit(g->source.end, 0, memory_order_release);
    int rc = gpu_program_issue(&g->source, p, &issue, err);
    if (!rc) rc = device_word_poll(g->device, g->source.end, 1, g->wait_ms, err);
    return rc;
}

int gpu_step_warm(struct gpu_engine *g, const struct gpu_program *p, struct helm_err *err)
{
    const struct arena_header *h = arena_header_of(g->base.arena);
    uint32_t most = h->step_tokens < h->context_tokens ? h->step_tokens : h->context_tokens;
    if (p->tier != GPU_TIER_CHUNK) return warm_once(g, p, p->tokens < most ? p->tokens : most, false, err);
    if (!g->device->loads_code) most = most < WARM_TOKENS ? most : WARM_TOKENS;
    int rc = 0;
    if (plan_list_count(&g->plan) > plan_phase_count(&g->plan))
        rc = warm_once(g, p, most < GPU_STEADY_TOKENS ? most : GPU_STEADY_TOKENS, true, err);
    if (!rc && most > GPU_SUB_TOKENS) { /* further sub-chunks take no other sizes than the first */
        rc = warm_once(g, p, most, false, err);
        most = GPU_SUB_TOKENS;
    }
    for (uint32_t tokens = most; !rc;) {
        rc = warm_once(g, p, tokens, false, err);
        if (tokens <= GPU_PAD_TOKENS) break;
        tokens = (tokens - 1) / GPU_PAD_TOKENS * GPU_PAD_TOKENS;
    }
    return rc;
}

void gpu_step_abandon(struct gpu_engine *g)
{
    const struct arena *arena = g->base.arena;
    for (int kind = 0; kind < ARENA_LANE_KINDS; kind++)
        for (uint32_t l = 0; l < arena_header_of(arena)->lanes[kind]; l++) {
            _Atomic uint32_t *word = &arena_lane_at(arena, (enum arena_lane_kind)kind, l)->bell.value;
            if (plan_link_rows[l].from == g->base.self) atomic_store(word, 0);
            if (plan_link_rows[l].to == g->base.self) atomic_store(word, INT32_MAX);
        }
    g->device->ops->abandon(g->device);
}
