/* The batcher's view of workers: they start, are ready, are lost; the KV that sequences keep then. See
 * batcher.h. Called by loop.c and workers.c. */
#include <stdio.h>

#include "daemon/steps/batcher_private.h"

void batcher_prepare_worker(struct batcher *batcher, uint32_t epoch)
{
    struct arena_control *control = arena_control_of(batcher->with.arena);
    arena_header_of(batcher->with.arena)->epoch = epoch;
    doorbell_init(&control->step_bell, 0);
    doorbell_init(&control->drawn_bell, 0);
    for (int w = 0; w < ARENA_WORKERS_MAX; w++) doorbell_init(&control->done[w].bell, 0);
    arena_empty_lanes(batcher->with.arena);
    for (uint32_t i = 0; i < ARENA_SLOTS_MAX; i++)
        if (batcher->slot[i].owner) batcher_write_history(batcher, batcher->slot[i].owner);
    batcher->serial = 0;
}

void batcher_worker_ready(struct batcher *batcher)
{
    batcher->worker_ready = true;
}

bool batcher_idle(const struct batcher *batcher)
{
    return batcher->worker_ready && !batcher->seq_count && !batcher->again_count && !batcher->in_flight &&
           !batcher->move.flags && !batcher->unsent_count;
}

void batcher_end_exact(struct batcher *batcher)
{
    batcher->exact = false;
    kv_pages_forget_all(&batcher->pages);
    snapshots_lost(&batcher->snapshots, false);
}

void batcher_goes_on(struct batcher *batcher, uint32_t serial)
{
    batcher->paused = false;
    batcher->serial = serial;
    tiers_rung(&batcher->tiers, serial);
    tiers_done(&batcher->tiers, serial);
}

/* With two tiers a sequence keeps the KV of its whole pages: those of steps that were done. */
static void batcher_keep_whole_pages(struct batcher *batcher, struct sequence *seq)
{
    const uint32_t page_tokens = arena_header_of(batcher->with.arena)->kv.page_tokens;
    if (!plan_kv_tiered(batcher->with.plan) || seq->slot == SEQUENCE_NO_SLOT) return;
    seq->cached -= seq->cached % page_tokens;
    tiers_begin(&batcher->tiers, seq->slot, seq->cached / page_tokens);
}

void batcher_worker_lost(struct batcher *batcher, const struct workers_loss *loss)
{
    batcher->worker_ready = batcher->paused = false;
    batcher->in_flight = 0;
    batcher->drafts.waits_us = 0; /* a restart is no time that drafts took */
    batcher->move.flags = 0;
    batcher->move.rung = batcher->move.yields = false;
    pace_lost(&batcher->pace);
    observe_lost(batcher->with.observe);
    tiers_lost(&batcher->tiers);
    for (uint32_t i = 0; i < batcher->seq_count; i++) {
        struct sequence *seq = batcher->seq[i];
        const bool in_step = seq->slot != SEQUENCE_NO_SLOT && batcher->slot[seq->slot].steps;
        /* No request is to blame for a kill from outside. */
        if (in_step && !loss->outside && ++seq->crashes >= BATCHER_CRASHES_MAX) {
            char detail[HELM_ERR_TEXT];
            snprintf(detail, sizeof detail, "%d workers died computing this, the last: %.400s",
                     BATCHER_CRASHES_MAX, loss->why);
            sequence_finish(seq, HELM__V1__FINISH_REASON__FINISH_ERROR, detail);
        }
        /* the step that was cut off may have added its part to the pooled sum, or to fixed states */
        const bool anew = !loss->kv_intact || seq->pooling || batcher->snapshots.on ||
                          (batcher->pages.windows.on && plan_kv_tiered(batcher->with.plan));
        seq->state_from = seq->state_kept = STATE_NO_SNAPSHOT; /* nothing is pinned any more */
        seq->keeps = seq->stays;
        if (anew && seq->slot != SEQUENCE_NO_SLOT) {
            /* two that shared a page would both write to it */
            windows_leave(&batcher->pages.windows, batcher_row_of(batcher, seq->slot), seq->window_first,
                          seq->pages, true);
            kv_pages_shrink(&batcher->pages, batcher_row_of(batcher, seq->slot), &seq->pages, 0);
            prefix_begin(seq);
            tiers_begin(&batcher->tiers, seq->slot, 0);
        }
        if (!anew) batcher_keep_whole_pages(batcher, seq);
        seq->rung = seq->cached;
        seq->asked = seq->draft_count = seq->redo = 0;
    }
    if (!loss->kv_intact) kv_pages_forget_all(&batcher->pages);
    snapshots_lost(&batcher->snapshots, loss->kv_intact);
    for (uint32_t i = 0; i < ARENA_SLOTS_MAX; i++) {
        batcher->slot[i].steps = 0;
        if (batcher->slot[i].left_pages) batcher_free_left(batcher, i);
    }
}
