/* Results of steps: checked, observed, and given to the sequences whose rows they are. See batcher.h. Called
 * from the one loop; owns nothing. */
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "daemon/steps/batcher_private.h"

/* A step rung this soon after the end of the one before waited only for helmd. */
#define BACK_TO_BACK_US 2000

static int batcher_check_sample(const struct batcher *batcher, const struct step *step, uint32_t row,
                                const struct step_result_row *got, struct helm_err *err)
{
    if (got->status != STEP_ROW_OK ||
        (got->sampled.token < batcher->with.model->vocab && got->sampled.top_count <= SAMPLING_LOGPROBS_MAX))
        return 0;
    return helm_fail(err, HELM_E_PEER, "row %u of step %u sampled token %u of a vocabulary of %u", row,
                     step->serial, got->sampled.token, batcher->with.model->vocab);
}

static int batcher_check_result(const struct batcher *batcher, struct helm_err *err)
{
    const struct step_result *r = &batcher->result;
    const struct step *s = &batcher_oldest(batcher)->step;
    if (r->serial != s->serial || r->epoch != s->epoch || r->row_count != s->row_count)
        return helm_fail(err, HELM_E_PEER, "answer to step %u of epoch %u with %u rows is marked %u, %u, %u",
                         s->serial, s->epoch, s->row_count, r->serial, r->epoch, r->row_count);
    uint32_t drafted = s->row_count;
    for (uint32_t i = 0; i < s->row_count; drafted += s->row[i++].drafts) {
        const struct step_result_row *row = &r->row[i];
        if (row->slot != s->row[i].slot || row->status > STEP_ROW_BAD)
            return helm_fail(err, HELM_E_PEER,
                             "row %u of step %u is for slot %u with status %u, expected slot %u", i,
                             s->serial, row->slot, row->status, s->row[i].slot);
        const struct batcher_sampled sampled = {row, &r->row[drafted]};
        for (uint32_t k = 0; k <= s->row[i].drafts && s->row[i].flags & STEP_ROW_SAMPLE; k++) {
            int rc = batcher_check_sample(batcher, s, i, batcher_sample_of(&sampled, k), err);
            if (rc) return rc;
        }
    }
    for (uint32_t i = 0; i < ARENA_STEP_DRAFTS; i++)
        if (r->made[i] >= batcher->with.model->vocab && r->made[i] != ARENA_NO_DRAFT)
            return helm_fail(err, HELM_E_PEER, "step %u made draft %u of a vocabulary of %u", s->serial,
                             r->made[i], batcher->with.model->vocab);
    return 0;
}

static void batcher_take_token(struct batcher *batcher, struct sequence *seq,
                               const struct step_result_row *got, uint64_t now_us)
{
    const struct sampling_result *sampled = &got->sampled;
    struct helm_err err = {0};
    uint32_t index = sequence_output_count(seq);
    batcher_compare_draft(seq, sampled->token);
    if (!seq->first_us) batcher->with.metrics->tokens_prompt_total += seq->prompt_count;
    int rc = sequence_append(seq, sampled->token, batcher->with.model->eos, batcher->with.model->eos_count,
                             now_us, &err);
    if (rc) {
        sequence_finish(seq, HELM__V1__FINISH_REASON__FINISH_ERROR, err.text);
        return;
    }
    const uint32_t context = arena_header_of(batcher->with.arena)->context_tokens;
    if (seq->finish == HELM__V1__FINISH_REASON__FINISH_LENGTH && seq->token_count >= context)
        snprintf(seq->detail, sizeof seq->detail, "the context of %u tokens is full", context);
    seq->crashes = 0;
    seq->mask_there = false;
    seq->mask_asked_us = now_us;
    batcher->with.metrics->tokens_output_total++;
    if (seq->rung < seq->token_count) /* a row that follows has it from the worker */
        arena_history_of(batcher->with.arena, seq->slot)[seq->token_count - 1] = sampled->token;
    batcher->unsent[batcher->unsent_count].seq = seq;
    batcher->unsent[batcher->unsent_count].index = index;
    batcher->unsent[batcher->unsent_count++].got = got;
}

/* The slot's place in `pooled` belongs to the sequence until another step with the slot is formed. */
static void batcher_take_pooled(struct batcher *batcher, struct sequence *seq)
{
    struct helm_err err = {0};
    const uint32_t hidden = arena_header_of(batcher->with.arena)->hidden;
    batcher->with.metrics->tokens_prompt_total += seq->prompt_count;
    if (sequence_embed(seq, arena_pooled_of(batcher->with.arena, seq->slot), hidden, &err))
        sequence_finish(seq, HELM__V1__FINISH_REASON__FINISH_ERROR, err.text);
}

bool batcher_step_done(const struct batcher *batcher)
{
    const struct arena_control *control = arena_control_of(batcher->with.arena);
    if (!batcher->in_flight) return false;
    for (uint32_t w = 0; w < batcher->with.workers; w++)
        if (!step_reached(doorbell_read(&control->done[w].bell), batcher_oldest_serial(batcher)))
            return false;
    return true;
}

/* *done: every worker has rung for the oldest step in flight. Bells say a step in flight or the last one that
 * was taken. */
static int batcher_check_bells(const struct batcher *batcher, bool *done, struct helm_err *err)
{
    const struct arena_control *control = arena_control_of(batcher->with.arena);
    *done = true;
    for (uint32_t w = 0; w < batcher->with.workers; w++) {
        const uint32_t rung = doorbell_read(&control->done[w].bell), late = batcher->serial - rung;
        if (late < batcher->in_flight) continue;
        if (!batcher->in_flight && late)
            return helm_fail(err, HELM_E_PEER, "step %u reported done, but none is in flight", rung);
        if (late > batcher->in_flight)
            return helm_fail(err, HELM_E_PEER, "step %u reported done, %u is in flight", rung,
                             batcher_oldest_serial(batcher));
        *done = false;
    }
    return 0;
}

/* Observes the step's time: from the one before where they follow on each other, so that what helmd itself
 * needs in between counts. The workers' own times are held against that (observe_settle). */
static void batcher_observe(struct batcher *batcher, const struct batcher_flight *flight, uint64_t now_us)
{
    const struct arena_control *control = arena_control_of(batcher->with.arena);
    const uint32_t workers = batcher->with.workers, at = flight->step.serial % ARENA_STEP_RING;
    bool back_to_back = !flight->waited_us && flight->begun_us < batcher->done_us + BACK_TO_BACK_US;
    uint64_t from_us = back_to_back ? batcher->done_us : flight->begun_us;
    uint64_t step_ns = now_us > from_us ? (now_us - from_us) * 1000 : 0;
    for (uint32_t w = 0; w < workers; w++) batcher->times[w] = control->done[w].times[at];
    observe_settle(batcher->times, workers, step_ns, flight->step.flags);
    batcher->done_us = now_us;
    metrics_add_step(batcher->with.metrics, &batcher->result, batcher->times, workers, step_ns);
    observe_step(batcher->with.observe, &flight->step, batcher->times, batcher->result.further_us / 1e6,
                 (double)step_ns / 1e9);
    batcher_time_drafts(batcher, flight, (double)step_ns / 1e9);
}

/* Takes the drafts of a row that were right. Returns the position up to which the sequence is computed now:
 * fixed states are those in front of the drafts unless all were right. */
static uint32_t batcher_take_drafts(struct batcher *batcher, struct sequence *seq, const struct step_row *row,
                                    const struct batcher_sampled *sampled, uint32_t kept, uint64_t now_us)
{
    const uint32_t known = row->start + row->count - row->drafts, right = known + kept;
    for (uint32_t k = 0; k < kept && !batcher_ended(seq); k++)
        batcher_take_token(batcher, seq, batcher_sample_of(sampled, k), now_us);
    if (!row->drafts) return right;
    seq->redo = right;
    return seq->rung = batcher->snapshots.on && kept < row->drafts ? known : right;
}

/* Takes the result of a row of a step: its sequence may have left, or have ended, meanwhile. */
static void batcher_take_row(struct batcher *batcher, const struct step_row *row,
                             const struct batcher_sampled *sampled, uint32_t made, uint64_t now_us)
{
    struct batcher_slot *slot = &batcher->slot[row->slot];
    struct sequence *seq = slot->owner;
    slot->steps--;
    if (!seq) {
        snapshots_done(&batcher->snapshots, row, NULL);
        if (!slot->steps) batcher_free_left(batcher, row->slot);
        return;
    }
    seq->asked -= (row->flags & STEP_ROW_SAMPLE) != 0;
    const uint32_t kept = batcher_keep_drafts(batcher, seq, row, sampled),
                   computed = batcher_take_drafts(batcher, seq, row, sampled, kept, now_us);
    if (row->flags & STEP_ROW_SAMPLE) batcher_count_gain(batcher, seq, 1 + kept);
    const struct step_result_row *got = batcher_sample_of(sampled, kept);
    const bool ok = got->status == STEP_ROW_OK;
    const uint32_t *pages = batcher_row_of(batcher, row->slot);
    if (ok)
        prefix_computed(&batcher->pages, pages, seq, computed);
    else
        prefix_forget(&batcher->pages, pages, seq);
    prefix_pass(&batcher->pages, &batcher->snapshots, pages, seq);
    snapshots_done(&batcher->snapshots, row, ok ? seq : NULL);
    if (batcher_ended(seq)) return;
    if (got->status == STEP_ROW_NO_FINITE_LOGIT)
        sequence_finish(seq, HELM__V1__FINISH_REASON__FINISH_ERROR,
                        seq->mask ? "the model produced no finite logit of a token that the mask allows"
                                  : "the model produced no finite logit (weights or activations overflow)");
    else if (got->status == STEP_ROW_BAD)
        sequence_finish(seq, HELM__V1__FINISH_REASON__FINISH_ERROR, "the worker refused this step");
    else if (seq->again && row->start + row->count == seq->prompt_count)
        sequence_finish(seq, HELM__V1__FINISH_REASON__FINISH_LENGTH, NULL);
    else if (seq->pooling && row->start + row->count == seq->prompt_count)
        batcher_take_pooled(batcher, seq);
    else if (row->flags & STEP_ROW_SAMPLE)
        batcher_take_token(batcher, seq, got, now_us);
    if (row->drafts_next) batcher_take_made(batcher, seq, row, made);
}

int batcher_take_result(struct batcher *batcher, uint64_t now_us, bool *taken, struct helm_err *err)
{
    struct arena_control *control = arena_control_of(batcher->with.arena);
    const struct batcher_flight *flight = batcher_oldest(batcher);
    bool done;
    *taken = false;
    int rc = batcher_check_bells(batcher, &done, err);
    if (rc || !done || !batcher->in_flight) return rc; /* or the wake-up of a step that was taken already */
    batcher_send_tokens(batcher);                      /* none, unless the caller never pumps */
    /* as many rows as were asked for: a result of all has 11 KiB */
    const struct step_result *written = &control->result[flight->step.serial % ARENA_STEP_RING];
    memcpy(&batcher->result, written,
           offsetof(struct step_result, row) +
               (flight->step.row_count + flight->step.draft_count) * sizeof written->row[0]);
    rc = batcher_check_result(batcher, err);
    if (rc) return rc;
    *taken = true;
    batcher->in_flight--;
    tiers_done(&batcher->tiers, flight->step.serial);
    pace_end(&batcher->pace, now_us);
    if (flight->step.flags & STEP_KV_MOVES) {
        batcher_end_move(batcher, now_us);
        return 0;
    }
    batcher_observe(batcher, flight, now_us);
    if (batcher->in_flight) batcher_begin_oldest(batcher, now_us);
    const struct step_result_row *drafted = &batcher->result.row[flight->step.row_count];
    uint32_t made = 0;
    for (uint32_t i = 0; i < flight->step.row_count; i++) {
        const struct step_row *row = &flight->step.row[i];
        const struct batcher_sampled sampled = {&batcher->result.row[i], drafted};
        drafted += row->drafts;
        batcher_take_row(batcher, row, &sampled, made, now_us);
        made += row->drafts_next;
    }
    return 0;
}
