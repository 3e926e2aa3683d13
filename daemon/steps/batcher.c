/* The batcher. See batcher.h. Called from the one loop; owns sequences, pages and helmd's regions of the
 * arena.
 */
#include "daemon/steps/batcher.h"

#include <stdlib.h>
#include <string.h>

#include "common/base/log.h"
#include "common/plan/schedule.h"
#include "daemon/steps/batcher_private.h"
#include "daemon/steps/scheduler.h"

static_assert(BATCHER_STEPS <= ARENA_STEP_RING, "every step in flight has a place in the ring");
static_assert(ENGINE_DRAFTS_MAX == ARENA_STEP_DRAFTS, "a sequence alone may have all drafts of a step");

int batcher_init(struct batcher *batcher, const struct batcher_options *options, struct helm_err *err)
{
    const struct arena_header *header = arena_header_of(options->arena);
    memset(batcher, 0, sizeof *batcher);
    batcher->with = *options;
    batcher->seq_capacity = header->slots + options->queue_limit;
    batcher->next_id = 1;
    draft_rate_begin_made(&batcher->drafts.made, NULL);
    batcher->seq = calloc(batcher->seq_capacity, sizeof(struct sequence *));
    batcher->view = calloc(batcher->seq_capacity, sizeof *batcher->view);
    batcher->view_index = calloc(batcher->seq_capacity, sizeof *batcher->view_index);
    batcher->queue_view = calloc(batcher->seq_capacity, sizeof *batcher->queue_view);
    for (uint32_t i = 0; i < plan_list_count(options->plan); i++)
        batcher->list_tokens[i] = plan_list_tokens(options->plan, i);
    int rc = 0;
    if (!batcher->seq || !batcher->view || !batcher->view_index || !batcher->queue_view)
        rc = helm_fail(err, HELM_E_NOMEM, "no memory for %u requests", batcher->seq_capacity);
    if (!rc) rc = admission_init(&batcher->admission, header->slots, options->queue_limit, err);
    if (!rc) rc = kv_pages_init(&batcher->pages, header->page_count, header->kv.page_tokens, err);
    if (!rc)
        rc = windows_init(&batcher->pages.windows, options->plan, &batcher->pages.known,
                          header->slots * header->pages_per_slot, err);
    if (!rc) rc = snapshots_init(&batcher->snapshots, options->plan, header->kv.page_tokens, err);
    if (!rc && options->plan->draft_tokens && batcher->snapshots.on && !batcher->snapshots.count)
        rc = helm_fail(
            err, HELM_E_LIMIT,
            "drafts of up to %u tokens need a snapshot to go back to, and --state-snapshots has room "
            "for none",
            options->plan->draft_tokens);
    if (!rc) rc = tiers_init(&batcher->tiers, options->plan, options->arena, err);
    if (!rc) batcher_open_drafter(batcher);
    if (rc) batcher_free(batcher);
    return rc;
}

void batcher_free(struct batcher *batcher)
{
    for (uint32_t i = 0; i < batcher->seq_count; i++) sequence_free(batcher->seq[i]);
    batcher_again_free(batcher);
    free(batcher->seq);
    free(batcher->view);
    free(batcher->view_index);
    free(batcher->queue_view);
    admission_free(&batcher->admission);
    kv_pages_free(&batcher->pages);
    snapshots_free(&batcher->snapshots);
    tiers_free(&batcher->tiers);
    memset(batcher, 0, sizeof *batcher);
}

/* ---- slots -------------------------------------------------------------------------------------------- */

uint32_t *batcher_row_of(const struct batcher *batcher, uint32_t slot)
{
    return arena_page_table_of(batcher->with.arena, slot);
}

void batcher_free_left(struct batcher *batcher, uint32_t slot)
{
    struct batcher_slot *left = &batcher->slot[slot];
    const uint32_t *row = batcher_row_of(batcher, slot);
    windows_leave(&batcher->pages.windows, row, left->left_window, left->left_pages, true);
    kv_pages_shrink(&batcher->pages, row, &left->left_pages, 0);
}

void batcher_leave_slot(struct batcher *batcher, struct sequence *seq)
{
    if (seq->slot == SEQUENCE_NO_SLOT) return;
    struct batcher_slot *slot = &batcher->slot[seq->slot];
    slot->owner = NULL;
    slot->left_pages = seq->pages;
    slot->left_window = seq->window_first;
    tiers_begin(&batcher->tiers, seq->slot, 0);
    if (!slot->steps) batcher_free_left(batcher, seq->slot);
    seq->slot = SEQUENCE_NO_SLOT;
    snapshots_leave(&batcher->snapshots, seq);
    prefix_begin(seq);
}

void batcher_write_history(const struct batcher *batcher, const struct sequence *seq)
{
    memcpy(arena_history_of(batcher->with.arena, seq->slot), seq->tokens,
           seq->token_count * sizeof *seq->tokens);
}

static void batcher_enter_slot(struct batcher *batcher, struct sequence *seq, uint64_t now_us)
{
    uint32_t slot = 0, slots = arena_header_of(batcher->with.arena)->slots;
    while (slot < slots && (batcher->slot[slot].owner || batcher->slot[slot].steps)) slot++;
    if (slot == slots) {
        log_error("batcher: the scheduler admitted more sequences than there are slots: aborting");
        abort();
    }
    struct arena_slot *shared = arena_slot_of(batcher->with.arena, slot);
    shared->sampling = seq->sampling;
    shared->prompt_count = seq->prompt_count;
    batcher->slot[slot].owner = seq;
    seq->slot = slot;
    prefix_begin(seq);
    batcher_write_history(batcher, seq);
    if (!seq->again) admission_give_slot(&batcher->admission, seq->admission);
    observe_enter(batcher->with.observe, slot, seq->token_count);
    if (seq->started_us == 0) seq->started_us = now_us;
}

bool batcher_ended(const struct sequence *seq)
{
    return seq->finish != HELM__V1__FINISH_REASON__FINISH_UNSPECIFIED;
}

/* Ended sequences give up slots and pages before the next step is formed. */
static void batcher_leave_slots(struct batcher *batcher)
{
    for (uint32_t i = 0; i < batcher->seq_count; i++)
        if (batcher_ended(batcher->seq[i])) batcher_leave_slot(batcher, batcher->seq[i]);
}

void batcher_send_tokens(struct batcher *batcher)
{
    uint32_t count = batcher->unsent_count;
    batcher->unsent_count = 0;
    for (uint32_t i = 0; i < count; i++) {
        struct sequence *seq = batcher->unsent[i].seq;
        const struct step_result_row *got = batcher->unsent[i].got;
        int rc = batcher->with.sink.token(batcher->with.sink.context, seq, batcher->unsent[i].index,
                                          &got->sampled);
        if (rc == HELM_E_PEER) batcher_cancel_client(batcher, seq->client, "the client has gone");
        if (rc == HELM_E_BUSY)
            batcher_cancel_client(batcher, seq->client, "the client does not read its tokens");
    }
}

static void batcher_count_end(struct batcher *batcher, const struct sequence *seq, uint64_t now_us)
{
    Helm__V1__Timings t;
    sequence_timings(seq, now_us, &t);
    const uint32_t output = sequence_output_count(seq);
    const struct metrics_request request = {.finish = seq->finish,
                                            .queue_seconds = seq->started_us ? t.queue_ms / 1e3 : -1,
                                            .ttft_seconds = output ? t.ttft_ms / 1e3 : -1,
                                            .tpot_seconds = output > 1 ? t.tpot_ms / 1e3 : -1};
    metrics_add_request(batcher->with.metrics, &request);
}

/* Done messages for all that ended. */
static void batcher_reap(struct batcher *batcher, uint64_t now_us)
{
    uint32_t kept = 0, count = batcher->seq_count;
    for (uint32_t i = 0; i < count; i++) {
        struct sequence *seq = batcher->seq[i];
        if (!batcher_ended(seq)) {
            batcher->seq[kept++] = seq;
            continue;
        }
        batcher_leave_slot(batcher, seq);
        batcher_leave_drafter(batcher, seq);
        if (!seq->again) {
            batcher_count_end(batcher, seq, now_us);
            batcher->with.sink.done(batcher->with.sink.context, seq);
            admission_leave(&batcher->admission, seq->admission);
        }
        batcher_again_take(batcher, seq);
    }
    batcher->seq_count = kept;
}

/* ---- steps -------------------------------------------------------------------------------------------- */

struct batcher_flight *batcher_flight_of(struct batcher *batcher, uint32_t serial)
{
    return &batcher->flight[serial % ARENA_STEP_RING];
}

const struct batcher_flight *batcher_oldest(const struct batcher *batcher)
{
    return &batcher->flight[batcher_oldest_serial(batcher) % ARENA_STEP_RING];
}

/* Takes pages of its prompt that other sequences have computed meanwhile. */
static void batcher_take_prefix(struct batcher *batcher, struct sequence *seq)
{
    const bool first = seq->found == 0;
    const uint32_t found = seq->found;
    if (!prefix_take(&batcher->pages, &batcher->snapshots, batcher_row_of(batcher, seq->slot), seq)) return;
    tiers_begin(&batcher->tiers, seq->slot, seq->pages);
    if (seq->again) return;
    batcher->with.metrics->prefix_hits_total += first && seq->found;
    batcher->with.metrics->tokens_found_total += seq->found - found;
}

struct turns {
    uint64_t client, peer;
};

/* When its client and peer got their last slots; zeros for an internal request. */
static struct turns batcher_turns_of(const struct batcher *batcher, const struct sequence *seq)
{
    if (seq->again) return (struct turns){0};
    return (struct turns){admission_client_turn(&batcher->admission, seq->admission),
                          admission_peer_turn(&batcher->admission, seq->admission)};
}

/* Every sequence as it will be when the steps in flight are done, if none of their tokens ends it. One that
 * then has all its tokens is left out, and keeps its slot; if it stays, others may take that. Those that run
 * are given what others computed of their prompts meanwhile. */
static uint32_t batcher_fill_view(struct batcher *batcher)
{
    uint32_t n = 0;
    struct scheduler_seq *view = batcher->view;
    for (uint32_t i = 0; i < batcher->seq_count; i++) {
        struct sequence *seq = batcher->seq[i];
        const bool whole = sequence_output_count(seq) + seq->asked >= seq->max_tokens;
        if (batcher_ended(seq) || (whole && !seq->stays)) continue;
        const bool running = seq->slot != SEQUENCE_NO_SLOT;
        if (running) batcher_take_prefix(batcher, seq);
        batcher->view_index[n] = i;
        const struct turns turn = batcher_turns_of(batcher, seq);
        view[n++] = (struct scheduler_seq){.order = seq->order,
                                           .client = seq->again ? seq->client : seq->admission,
                                           .peer = seq->peer,
                                           .client_turn = turn.client,
                                           .peer_turn = turn.peer,
                                           .running = running,
                                           .held = sequence_is_held(seq),
                                           .tokens = seq->token_count + seq->asked,
                                           .again = seq->redo > seq->rung ? seq->redo - seq->rung : 0,
                                           .cached = seq->rung,
                                           .cut = snapshots_cut(&batcher->snapshots, seq),
                                           .pages = seq->pages,
                                           .next_page = running && !sequence_is_held(seq)
                                                            ? prefix_next_page(&batcher->pages,
                                                                               &batcher->snapshots, seq)
                                                            : 0,
                                           .prompt = seq->prompt_count,
                                           .list = seq->list};
    }
    batcher_find_drafts(batcher, n);
    return n;
}

/* Slots for those in the view: not those of sequences that have left or are left out. */
static uint32_t batcher_count_slots(const struct batcher *batcher, uint32_t count)
{
    uint32_t slots = arena_header_of(batcher->with.arena)->slots, free_or_seen = slots;
    for (uint32_t i = 0; i < slots; i++) free_or_seen -= batcher->slot[i].owner || batcher->slot[i].steps;
    for (uint32_t i = 0; i < count; i++) free_or_seen += batcher->view[i].running;
    return free_or_seen;
}

/* Whether the plan's decode list computes a step that was formed. */
static bool batcher_is_decode_list(const struct batcher *batcher, const struct scheduler_step *formed)
{
    if (batcher->with.plan->invariant) return plan_list_phase(batcher->with.plan, formed->list) == 0;
    return plan_phase_for(batcher->with.plan, formed->token_count) == 0;
}

/* Whether the next step should wait for a mask that is due, or will be when a step in flight is done. */
static bool batcher_waits_for_mask(const struct batcher *batcher, uint64_t now_us)
{
    for (uint32_t i = 0; i < batcher->seq_count; i++) {
        const struct sequence *seq = batcher->seq[i];
        if (!seq->mask || seq->mask_late || batcher_ended(seq) || seq->slot == SEQUENCE_NO_SLOT) continue;
        if (seq->asked > 0 || (!seq->mask_there && now_us < seq->mask_asked_us + BATCHER_MASK_WAIT_US))
            return true;
    }
    return false;
}

/* Whether one prompt alone is being computed, and has a chunk to go: another one might find its pages. */
static bool batcher_has_one_prompt(const struct batcher *batcher)
{
    uint32_t prompts = 0, left = 0;
    for (uint32_t i = 0; i < batcher->seq_count; i++) {
        const struct sequence *seq = batcher->seq[i];
        if (batcher_ended(seq) || seq->cached >= seq->prompt_count) continue;
        prompts++;
        left += seq->rung < seq->prompt_count;
    }
    return prompts == 1 && left == 1;
}

/* Whether another step may be rung now: with none in flight, or after one that computes no prompt; after a
 * chunk of a prompt where devices take turns with it. */
static bool batcher_may_ring(struct batcher *batcher, uint64_t now_us)
{
    if (batcher_waits_for_mask(batcher, now_us) || batcher_waits_for_drafts(batcher) ||
        batcher_waits_for_drafter(batcher, now_us))
        return false;
    if (!batcher->in_flight) return true;
    if (batcher->move.rung || (batcher->move.flags && !batcher->move.yields)) return false;
    const struct step *last = &batcher_flight_of(batcher, batcher->serial)->step;
    if (batcher->in_flight >= BATCHER_STEPS) return false;
    if (last->token_count != last->row_count || last->flags & STEP_PROMPT)
        return batcher_has_one_prompt(batcher) && plan_overlaps_chunks(batcher->with.plan);
    return batcher->with.plan->invariant || plan_phase_for(batcher->with.plan, last->token_count) == 0;
}

void batcher_begin_oldest(struct batcher *batcher, uint64_t now_us)
{
    struct batcher_flight *oldest = batcher_flight_of(batcher, batcher_oldest_serial(batcher));
    oldest->begun_us = now_us;
    pace_begin(&batcher->pace, oldest->step.row_count, oldest->step.token_count, now_us);
}

void batcher_ring(struct batcher *batcher, uint64_t now_us)
{
    struct arena_control *control = arena_control_of(batcher->with.arena);
    struct batcher_flight *flight = batcher_flight_of(batcher, ++batcher->serial);
    flight->step.serial = batcher->serial;
    flight->step.epoch = arena_header_of(batcher->with.arena)->epoch;
    flight->planned_seconds = 0;
    flight->waited_us = batcher->drafts.waits_us ? now_us - batcher->drafts.waits_us : 0;
    batcher->drafts.waits_us = 0;
    control->step[batcher->serial % ARENA_STEP_RING] = flight->step;
    doorbell_ring(&control->step_bell, batcher->serial);
    tiers_rung(&batcher->tiers, batcher->serial);
    if (batcher->in_flight++ == 0) batcher_begin_oldest(batcher, now_us);
}

/* How many tokens of prompts the next step may take, so that rows that decode in it do not wait too long. */
static uint32_t prompt_tokens_of(struct batcher *batcher, uint32_t count)
{
    uint64_t positions = 0;
    uint32_t decoding = 0;
    for (uint32_t i = 0; i < count; i++) {
        const struct scheduler_seq *s = &batcher->view[i];
        const bool decodes = batcher->with.plan->invariant ? s->cached >= s->prompt : scheduler_decodes(s);
        if (!s->running || s->held || !decodes) continue;
        positions += s->tokens;
        decoding++;
    }
    if (decoding == 0 || decoding == count) return 0;
    return observe_prompt_tokens(batcher->with.observe, decoding, (uint32_t)(positions / decoding));
}

/* A row of a sequence, whose pages are grown for it. */
static void batcher_add_row(struct batcher *batcher, struct step *step, struct sequence *seq,
                            const struct scheduler_row *row)
{
    const uint32_t held = seq->pages;
    if (kv_pages_grow(&batcher->pages, batcher_row_of(batcher, seq->slot), &seq->pages, row->pages)) {
        log_error("batcher: the scheduler gave away more KV pages than there are: aborting");
        abort();
    }
    windows_grow(&batcher->pages.windows, batcher_row_of(batcher, seq->slot), held, seq->pages);
    batcher->slot[seq->slot].steps++;
    const bool sample = row->sample && !seq->again;
    static const uint32_t pools[] = {
        [REQUEST_POOL_MEAN] = STEP_ROW_POOL_MEAN, [REQUEST_POOL_LAST] = STEP_ROW_POOL_LAST};
    const uint32_t last = seq->pooling ? pools[seq->pooling] : sample ? STEP_ROW_SAMPLE : 0;
    const bool masked = sample && seq->mask;
    if (masked)
        memcpy(arena_mask_of(batcher->with.arena, seq->slot), seq->mask,
               request_mask_words(batcher->with.model->vocab) * sizeof *seq->mask);
    step->row[step->row_count++] =
        (struct step_row){.slot = seq->slot,
                          .start = row->start,
                          .count = row->count,
                          .drafts = row->drafts,
                          .flags = last | (masked ? STEP_ROW_MASKED : 0) |
                                   (row->start >= seq->token_count ? STEP_ROW_FOLLOWS : 0)};
    struct step_row *added = &step->row[step->row_count - 1];
    snapshots_row(&batcher->snapshots, seq, added);
    batcher_write_drafts(batcher, seq, added);
    step->token_count += added->count;
    step->draft_count += added->drafts;
    seq->rung = added->start + added->count;
    seq->asked += sample;
}

static uint32_t batcher_shared(const void *context, uint32_t seq)
{
    const struct batcher *batcher = context;
    return prefix_shared(&batcher->pages, &batcher->snapshots, batcher->seq[batcher->view_index[seq]]);
}

/* Chooses the next step for the sequences as they are. False: no step may be rung now. */
static bool batcher_schedule(struct batcher *batcher, bool admit, struct scheduler_step *plan)
{
    const struct arena_header *header = arena_header_of(batcher->with.arena);
    uint32_t count = batcher_fill_view(batcher);
    if (count == 0) return false;
    const struct plan *computes = batcher->with.plan;
    struct scheduler_limits limits = {.slots = admit ? batcher_count_slots(batcher, count) : 0,
                                      .step_tokens = batcher_again_tokens(batcher, header->step_tokens),
                                      .page_tokens = header->kv.page_tokens,
                                      .pages_free = batcher->pages.free_count,
                                      .fixed = batcher->snapshots.on,
                                      .prompt_tokens = prompt_tokens_of(batcher, count),
                                      .turn = computes->invariant ? batcher->prompt_turn : batcher->turn,
                                      .list_tokens = computes->invariant ? batcher->list_tokens : NULL,
                                      .few_tokens = plan_decode_tokens(computes),
                                      .few_turn = batcher->turn,
                                      .prompts_next = !batcher->prompts_last,
                                      .shared = batcher_shared,
                                      .context = batcher};
    scheduler_form_step(batcher->view, count, &limits, plan);
    /* Pages that a step in flight uses cannot be taken, and lists are changed with nothing in flight. */
    return !batcher->in_flight ||
           (plan->row_count && !plan->preempt_count && batcher_is_decode_list(batcher, plan));
}

/* Admits, else preempts: room is known better once admitted sequences have found their pages. */
static void batcher_change_slots(struct batcher *batcher, const struct scheduler_step *plan, uint64_t now_us)
{
    for (uint32_t i = 0; i < plan->admit_count; i++)
        batcher_enter_slot(batcher, batcher->seq[batcher->view_index[plan->admit[i]]], now_us);
    for (uint32_t i = 0; i < plan->preempt_count && !plan->admit_count; i++) {
        struct sequence *seq = batcher->seq[batcher->view_index[plan->preempt[i]]];
        log_debug("request %llu gives its KV pages to an older one", (unsigned long long)seq->id);
        batcher_preempt(batcher, seq);
    }
}

/* Flags of a step, but for what its rows' pages say. */
static uint32_t batcher_flags(const struct batcher *batcher, const struct scheduler_step *plan)
{
    const uint32_t flags =
        (plan->prompts ? plan_prompt_flags(plan->list) : 0) | (batcher->exact ? STEP_EXACT : 0);
    struct plan_schedule schedule;
    struct helm_err err;
    if (!plan_appends_in_arena(batcher->with.plan)) return flags;
    if (plan_schedule_of(batcher->with.plan, flags, plan->token_count, &schedule, &err)) {
        log_error("batcher: a step is formed that no list computes: %s: aborting", err.text);
        abort();
    }
    return flags | (schedule.chunk ? STEP_KV_ARENA : 0);
}

/* Places in VRAM for the step's rows; false: not before a step in flight is done. */
static bool batcher_make_room(struct batcher *batcher, const struct scheduler_step *plan, uint32_t flags)
{
    const uint32_t page_tokens = arena_header_of(batcher->with.arena)->kv.page_tokens;
    uint32_t count = 0, at[ARENA_SLOTS_MAX];
    for (uint32_t i = 0; i < batcher->seq_count; i++) {
        const struct sequence *seq = batcher->seq[i];
        if (seq->slot == SEQUENCE_NO_SLOT) continue;
        at[seq->slot] = count;
        batcher->member[count++] =
            (struct tiers_member){.slot = seq->slot, .whole = seq->cached / page_tokens};
    }
    for (uint32_t i = 0; i < plan->row_count; i++) {
        const struct scheduler_row *row = &plan->row[i];
        const uint32_t slot = batcher->seq[batcher->view_index[row->seq]]->slot;
        struct tiers_member *member = &batcher->member[at[slot]];
        member->begin = member->placed = row->start / page_tokens;
        member->end = kv_pages_for(row->start + row->count, page_tokens);
        if (flags & STEP_KV_ARENA) member->placed = plan_placed_from(page_tokens, row->start, row->count);
    }
    return tiers_make_room(&batcher->tiers, batcher->member, count);
}

/* Forms the next step and rings it. False: none can be formed now. */
static bool batcher_form_step(struct batcher *batcher, uint64_t now_us)
{
    struct scheduler_step plan;
    bool preempted = false; /* then no sequence is admitted before the older ones have their pages */
    if (!batcher_schedule(batcher, true, &plan)) return false;
    while (!plan.preempt_count && !plan.admit_count && batcher_take_waiting(batcher))
        if (!batcher_schedule(batcher, true, &plan)) return false;
    while (plan.preempt_count || plan.admit_count) {
        preempted = preempted || !plan.admit_count;
        batcher_change_slots(batcher, &plan, now_us);
        if (!batcher_schedule(batcher, !preempted, &plan)) return false;
    }
    const uint32_t flags = batcher_flags(batcher, &plan);
    if (!batcher_make_room(batcher, &plan, flags)) return false;
    batcher->turn++;
    struct step *step = &batcher_flight_of(batcher, batcher->serial + 1)->step;
    step->row_count = step->token_count = step->fetch_count = step->draft_count = 0;
    step->flags = flags;
    for (uint32_t i = 0; i < plan.row_count; i++)
        if (plan.row[i].drafts)
            snapshots_reserve(&batcher->snapshots, batcher->seq[batcher->view_index[plan.row[i].seq]]);
    for (uint32_t i = 0; i < plan.row_count; i++)
        if (!plan.row[i].drafts)
            snapshots_reserve_kept(&batcher->snapshots, batcher->seq[batcher->view_index[plan.row[i].seq]],
                                   plan.row[i].start + plan.row[i].count);
    for (uint32_t i = 0; i < plan.row_count; i++)
        batcher_add_row(batcher, step, batcher->seq[batcher->view_index[plan.row[i].seq]], &plan.row[i]);
    batcher_ask_drafts(batcher, step);
    batcher->prompt_turn += plan.prompts;
    batcher->prompts_last = plan.prompts;
    tiers_fill(&batcher->tiers, batcher_is_decode_list(batcher, &plan), step);
    if (step->row_count) batcher_ring(batcher, now_us);
    return step->row_count > 0;
}

/* Steps of requests, or a move: the two take turns. */
static void batcher_ring_next(struct batcher *batcher, uint64_t now_us)
{
    const bool waits = batcher->move.flags && !batcher->move.rung;
    if (waits && !batcher->in_flight && !batcher->move.yields) {
        batcher_ring_move(batcher, now_us);
        return;
    }
    const uint32_t serial = batcher->serial;
    while (batcher_may_ring(batcher, now_us) && batcher_form_step(batcher, now_us))
        batcher->move.yields = false;
    if (waits && !batcher->in_flight && serial == batcher->serial) batcher_ring_move(batcher, now_us);
}

void batcher_pump(struct batcher *batcher, uint64_t now_us)
{
    const bool open = batcher->worker_ready && !batcher->paused;
    uint32_t serial = batcher->serial;
    batcher_leave_slots(batcher);
    batcher_ask_drafter(batcher, now_us);
    if (open) batcher_ring_next(batcher, now_us);
    batcher_send_tokens(batcher); /* while the workers compute */
    batcher_reap(batcher, now_us);
    if (open && batcher_again_begin(batcher)) batcher_ring_next(batcher, now_us);
    batcher_watch_drafts(batcher, serial != batcher->serial);
    while (serial != batcher->serial) {
        struct batcher_flight *flight = batcher_flight_of(batcher, ++serial);
        if (!flight->step.row_count) continue; /* a move computes nothing */
        flight->planned_seconds = observe_planned(batcher->with.observe, &flight->step);
    }
}

/* ---- steps that move a page between VRAM and the arena's session region ---- */

bool batcher_move(struct batcher *batcher, uint32_t flags, uint32_t page)
{
    if (batcher->move.flags || !batcher->worker_ready) return false;
    batcher->move.flags = flags;
    batcher->move.page = page;
    return true;
}

void batcher_ring_move(struct batcher *batcher, uint64_t now_us)
{
    struct step *step = &batcher_flight_of(batcher, batcher->serial + 1)->step;
    step->row_count = step->token_count = step->fetch_count = step->draft_count = 0;
    step->flags = batcher->move.flags;
    step->page = batcher->move.page;
    batcher->move.rung = true;
    batcher_ring(batcher, now_us);
}

void batcher_end_move(struct batcher *batcher, uint64_t now_us)
{
    batcher->done_us = now_us;
    batcher->move.flags = 0;
    batcher->move.rung = false;
    batcher->move.yields = true;
    batcher->with.sink.moved(batcher->with.sink.context);
}
