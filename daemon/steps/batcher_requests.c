/* The batcher's requests: taken, found again, cancelled, timed out. See batcher.h. Called by serve.c and
 * loop.c; batcher.c forms the steps, reports the ends and frees the slots. */
#include <stdio.h>
#include <stdlib.h>
#include <sys/random.h>

#include "common/base/log.h"
#include "common/plan/schedule.h"
#include "common/shared/state_layout.h"
#include "daemon/steps/batcher_private.h"

int batcher_submit(struct batcher *batcher, struct request_generate *request, const struct asker *asker,
                   uint64_t now_us, const struct sequence **out, struct helm_err *err)
{
    *out = NULL;
    int rc = admission_check(&batcher->admission, asker->client, asker->peer, err);
    if (rc) return rc;
    if (!request->has_seed && getrandom(&request->sampling.seed, sizeof request->sampling.seed, 0) < 0)
        return helm_fail_errno(err, "drawing a seed");
    struct sequence *seq;
    rc = sequence_create(request, &seq, err);
    if (rc) return rc;
    batcher_again_yield(batcher);
    seq->id = batcher->next_id++;
    seq->order = seq->id;
    seq->client = asker->client;
    seq->peer = asker->peer;
    seq->sender = asker->sender;
    snprintf(seq->user, sizeof seq->user, "%s", asker->user);
    seq->request_id = asker->request_id;
    seq->apart = batcher->with.plan->invariant;
    if (seq->apart) seq->list = plan_prompt_list(batcher->with.plan, seq->prompt_count);
    /* a prompt that is pooled is computed from its first token on */
    seq->scope =
        seq->pooling ? SEQUENCE_NO_SCOPE : prefix_scope(batcher->with.sharing, asker->peer, seq->list);
    seq->restored_scope = seq->pooling ? SEQUENCE_NO_SCOPE
                                       : prefix_restored_scope(batcher->with.sharing, asker->peer, seq->list);
    /* a sequence that gave its slot away goes on from these: snapshots are known by pages */
    if (batcher->snapshots.on && !seq->pooling && seq->scope == SEQUENCE_NO_SCOPE)
        seq->scope = PREFIX_OWN_SCOPES + seq->id;
    batcher_begin_drafts(batcher, seq, request->speculate);
    snapshots_mark(&batcher->snapshots, seq);
    prefix_begin(seq);
    seq->admission = admission_enter(&batcher->admission, asker->client, asker->peer);
    seq->arrived_us = now_us;
    if (request->deadline_ms) seq->deadline_us = now_us + (uint64_t)request->deadline_ms * 1000;
    batcher->seq[batcher->seq_count++] = seq;
    batcher->with.metrics->requests_total++;
    *out = seq;
    return 0;
}

const struct sequence *batcher_find_request(const struct batcher *batcher, uint64_t client,
                                            uint64_t request_id)
{
    for (uint32_t i = 0; i < batcher->seq_count; i++)
        if (batcher->seq[i]->client == client && batcher->seq[i]->request_id == request_id)
            return batcher->seq[i];
    return NULL;
}

const struct sequence *batcher_find(const struct batcher *batcher, uint64_t id)
{
    for (uint32_t i = 0; i < batcher->seq_count; i++)
        if (batcher->seq[i]->id == id && !batcher->seq[i]->again) return batcher->seq[i];
    return NULL;
}

int batcher_cancel(struct batcher *batcher, uint64_t id, const char *detail)
{
    for (uint32_t i = 0; i < batcher->seq_count; i++) {
        if (batcher->seq[i]->id != id || batcher->seq[i]->again) continue;
        sequence_finish(batcher->seq[i], HELM__V1__FINISH_REASON__FINISH_CANCELLED, detail);
        return 0;
    }
    return HELM_E_NOT_FOUND;
}

void batcher_cancel_client(struct batcher *batcher, uint64_t client, const char *detail)
{
    for (uint32_t i = 0; i < batcher->seq_count; i++)
        if (batcher->seq[i]->client == client)
            sequence_finish(batcher->seq[i], HELM__V1__FINISH_REASON__FINISH_CANCELLED, detail);
}

void batcher_finish_all(struct batcher *batcher, Helm__V1__FinishReason reason, const char *detail)
{
    for (uint32_t i = 0; i < batcher->seq_count; i++) sequence_finish(batcher->seq[i], reason, detail);
}

uint32_t batcher_open(const struct batcher *batcher)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < batcher->seq_count; i++) n += !batcher->seq[i]->again;
    return n;
}

uint32_t batcher_running(const struct batcher *batcher)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < batcher->seq_count; i++)
        n += batcher->seq[i]->slot != SEQUENCE_NO_SLOT && !batcher->seq[i]->again;
    return n;
}

uint32_t batcher_queued(const struct batcher *batcher)
{
    return batcher_open(batcher) - batcher_running(batcher);
}

uint32_t batcher_queue_position(struct batcher *batcher, const struct sequence *seq)
{
    uint32_t n = 0, at = 0;
    if (seq->slot != SEQUENCE_NO_SLOT) return 0;
    for (uint32_t i = 0; i < batcher->seq_count; i++) {
        const struct sequence *s = batcher->seq[i];
        bool running = s->slot != SEQUENCE_NO_SLOT;
        if (s->again) continue;
        if (s == seq) at = n;
        /* a cancelled request keeps its slot until the next step is formed, and does not wait */
        if (running || s == seq || s->finish == HELM__V1__FINISH_REASON__FINISH_UNSPECIFIED)
            batcher->queue_view[n++] = (struct admission_request){.entry = s->admission, .running = running};
    }
    return admission_ends_before(&batcher->admission, batcher->queue_view, n, at);
}

void batcher_take_mask(struct batcher *batcher, const struct asker *asker, uint32_t **mask, uint32_t index,
                       const char *wrong, uint64_t now_us)
{
    /* the list is the batcher's own */
    struct sequence *seq = (struct sequence *)batcher_find_request(batcher, asker->client, asker->request_id);
    char detail[HELM_ERR_TEXT];
    if (!seq || seq->finish != HELM__V1__FINISH_REASON__FINISH_UNSPECIFIED) return;
    const uint32_t due = sequence_output_count(seq);
    if (wrong)
        snprintf(detail, sizeof detail, "%s", wrong);
    else if (!seq->mask)
        snprintf(detail, sizeof detail, "a mask came for a request that began without one");
    else if (index != due || seq->mask_there)
        snprintf(detail, sizeof detail, "a mask of token %u came while that of token %u %s", index, due,
                 seq->mask_there ? "was there" : "was due");
    else {
        free(seq->mask);
        seq->mask = *mask;
        *mask = NULL;
        seq->mask_there = true;
        seq->mask_late = now_us > seq->mask_asked_us + BATCHER_MASK_WAIT_US;
        return;
    }
    sequence_finish(seq, HELM__V1__FINISH_REASON__FINISH_ERROR, detail);
}

/* Its computed tokens stay, up to those that change. Pages that other requests may have found are not written
 * again, its window may have left pages that it needs again, and fixed states go back to a snapshot. Where
 * that cannot be, it goes back to in front of its slot, as if others had taken its pages. */
static void go_on_from(struct batcher *batcher, struct sequence *seq, uint32_t stands)
{
    const uint32_t page_tokens = arena_header_of(batcher->with.arena)->kv.page_tokens,
                   known = seq->scope == SEQUENCE_NO_SCOPE ? 0 : seq->cached / page_tokens * page_tokens;
    if (seq->slot == SEQUENCE_NO_SLOT) return;
    if (stands > seq->cached) stands = seq->cached;
    const struct windows *w = &batcher->pages.windows;
    const bool window_left =
        w->on && state_window_hidden(stands, w->tokens, w->page_tokens) < seq->window_first;
    if (batcher->snapshots.on) stands = snapshots_go_back(&batcher->snapshots, seq, stands, known);
    if (stands < known || window_left || !stands || plan_kv_tiered(batcher->with.plan)) {
        batcher_leave_slot(batcher, seq);
        return;
    }
    seq->cached = seq->rung = stands;
    seq->redo = 0;
    batcher_write_history(batcher, seq);
}

void batcher_resume(struct batcher *batcher, const struct asker *asker, const struct request_resume *resume,
                    const char *wrong)
{
    struct sequence *seq = (struct sequence *)batcher_find_request(batcher, asker->client, asker->request_id);
    const uint32_t context = arena_header_of(batcher->with.arena)->context_tokens;
    struct helm_err err = {0};
    int rc = 0;
    if (!seq || batcher_ended(seq)) return;
    const uint64_t count = (uint64_t)seq->prompt_count + resume->keep + resume->count;
    if (wrong)
        rc = helm_fail(&err, HELM_E_FORMAT, "%s", wrong);
    else if (!sequence_is_waiting(seq) || seq->asked)
        rc = helm_fail(&err, HELM_E_FORMAT, "a Resume came for a request that does not wait for one");
    else if (resume->keep > sequence_output_count(seq))
        rc = helm_fail(&err, HELM_E_FORMAT, "keep is %u, the answer has %u tokens", resume->keep,
                       sequence_output_count(seq));
    else if (count + resume->max_tokens > context)
        rc = helm_fail(&err, HELM_E_LIMIT, "%llu tokens and %u more do not fit the context of %u",
                       (unsigned long long)count, resume->max_tokens, context);
    if (!rc) rc = sequence_resume(seq, resume, &err);
    if (rc) {
        sequence_finish(seq, HELM__V1__FINISH_REASON__FINISH_ERROR, err.text);
        return;
    }
    const uint32_t stands = seq->prompt_count + resume->keep;
    go_on_from(batcher, seq, stands < seq->token_count ? stands : seq->token_count - 1);
}

void batcher_preempt(struct batcher *batcher, struct sequence *seq)
{
    if (!seq->pooling) /* found pages have no hidden states to pool */
        prefix_keep(&batcher->pages, batcher_row_of(batcher, seq->slot), seq);
    batcher_leave_slot(batcher, seq);
    batcher->with.metrics->preemptions_total++;
}

/* Whether a request without a slot may go on. */
static bool has_queued(const struct batcher *batcher)
{
    for (uint32_t i = 0; i < batcher->seq_count; i++) {
        const struct sequence *seq = batcher->seq[i];
        if (seq->slot == SEQUENCE_NO_SLOT && !batcher_ended(seq) && !sequence_is_held(seq)) return true;
    }
    return false;
}

bool batcher_take_waiting(struct batcher *batcher)
{
    struct sequence *longest = NULL;
    if (!has_queued(batcher)) return false;
    for (uint32_t i = 0; i < batcher->seq_count; i++) {
        struct sequence *seq = batcher->seq[i];
        if (seq->slot == SEQUENCE_NO_SLOT || batcher->slot[seq->slot].steps || batcher_ended(seq) ||
            !sequence_is_waiting(seq))
            continue;
        if (!longest || seq->last_us < longest->last_us) longest = seq;
    }
    if (!longest) return false;
    log_debug("request %llu waits for a Resume, and gives its slot to another",
              (unsigned long long)longest->id);
    batcher_preempt(batcher, longest);
    return true;
}

/* When a request that stays is not waited for any more; 0: it does not wait. */
static uint64_t stay_deadline(struct sequence *seq, uint64_t now_us)
{
    if (!sequence_is_waiting(seq) || seq->asked) return 0;
    const uint64_t limit = seq->last_us + BATCHER_STAYS_US;
    if (limit > now_us) return limit;
    sequence_finish(seq, HELM__V1__FINISH_REASON__FINISH_CANCELLED, "its client did not resume it for 60 s");
    return 0;
}

/* When a request that waits for a mask is cancelled, or others stop waiting for it; 0: it waits for no
 * mask. */
static uint64_t mask_deadline(struct sequence *seq, uint64_t now_us)
{
    if (!seq->mask || seq->mask_there) return 0;
    const uint64_t limit = seq->mask_asked_us + BATCHER_MASK_LIMIT_US,
                   wait = seq->mask_asked_us + BATCHER_MASK_WAIT_US;
    if (limit <= now_us) {
        sequence_finish(seq, HELM__V1__FINISH_REASON__FINISH_CANCELLED, "its client sent no mask for 10 s");
        return 0;
    }
    return wait > now_us ? wait : limit;
}

uint64_t batcher_apply_deadlines(struct batcher *batcher, uint64_t now_us)
{
    uint64_t next = 0;
    for (uint32_t i = 0; i < batcher->seq_count; i++) {
        struct sequence *seq = batcher->seq[i];
        if (seq->finish != HELM__V1__FINISH_REASON__FINISH_UNSPECIFIED) continue;
        const uint64_t waits_us[] = {mask_deadline(seq, now_us), stay_deadline(seq, now_us)};
        for (int w = 0; w < 2; w++)
            if (waits_us[w] && (next == 0 || waits_us[w] < next)) next = waits_us[w];
        if (seq->deadline_us == 0 || seq->finish != HELM__V1__FINISH_REASON__FINISH_UNSPECIFIED) continue;
        if (seq->deadline_us <= now_us)
            sequence_finish(seq, HELM__V1__FINISH_REASON__FINISH_CANCELLED, "deadline");
        else if (next == 0 || seq->deadline_us < next)
            next = seq->deadline_us;
    }
    return next;
}
