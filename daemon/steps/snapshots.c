/* Snapshots of fixed states. See snapshots.h. Called from the one loop. */
#include "daemon/steps/snapshots.h"

#include <stdlib.h>
#include <string.h>

#include "common/base/log.h"
#include "common/base/round.h"
#include "common/plan/state.h"

int snapshots_init(struct snapshots *all, const struct plan *plan, uint32_t page_tokens, struct helm_err *err)
{
    uint32_t buckets = 1;
    *all = (struct snapshots){.on = plan_has_fixed(plan), .count = plan->state_snapshots};
    if (!all->on) return 0;
    while (buckets < all->count) buckets *= 2;
    all->mask = buckets - 1;
    all->page_tokens = page_tokens;
    all->prompt_every = (uint32_t)round_up(SNAPSHOTS_PROMPT_TOKENS, page_tokens);
    all->answer_every = (uint32_t)round_up(SNAPSHOTS_ANSWER_TOKENS, page_tokens);
    all->snapshot = calloc(all->count + 1, sizeof *all->snapshot);
    all->bucket = calloc(buckets, sizeof *all->bucket);
    if (all->snapshot && all->bucket) return 0;
    const uint32_t count = all->count;
    snapshots_free(all);
    return helm_fail(err, HELM_E_NOMEM, "no memory to know %u snapshots", count);
}

void snapshots_free(struct snapshots *all)
{
    free(all->snapshot);
    free(all->bucket);
    *all = (struct snapshots){0};
}

/* ---- the table ---- */

static struct snapshot *at(const struct snapshots *all, uint32_t snapshot)
{
    if (snapshot == STATE_NO_SNAPSHOT || snapshot > all->count) {
        log_error("snapshots: %u of %u: aborting", snapshot, all->count);
        abort();
    }
    return &all->snapshot[snapshot];
}

static uint32_t *bucket_of(const struct snapshots *all, uint64_t number)
{
    return &all->bucket[number & all->mask];
}

uint32_t snapshots_find(const struct snapshots *all, uint64_t number)
{
    uint32_t i = all->on ? *bucket_of(all, number) : STATE_NO_SNAPSHOT;
    while (i != STATE_NO_SNAPSHOT && at(all, i)->number != number) i = at(all, i)->next;
    return i;
}

/* It is not found any more. */
static void forget(struct snapshots *all, uint32_t snapshot)
{
    struct snapshot *s = at(all, snapshot);
    if (!s->number) return;
    uint32_t *link = bucket_of(all, s->number);
    while (*link != snapshot) link = &at(all, *link)->next;
    *link = s->next;
    s->number = 0;
}

static void drop(struct snapshots *all, uint32_t snapshot)
{
    forget(all, snapshot);
    *at(all, snapshot) = (struct snapshot){0};
}

static void unpin(struct snapshots *all, uint32_t snapshot)
{
    struct snapshot *s = at(all, snapshot);
    if (!s->pins) {
        log_error("snapshots: %u is let go by a step that does not have it: aborting", snapshot);
        abort();
    }
    s->pins--;
}

uint32_t snapshots_take_empty(struct snapshots *all)
{
    uint32_t oldest = STATE_NO_SNAPSHOT;
    for (uint32_t i = 1; i <= all->count; i++)
        if (!at(all, i)->pins && (oldest == STATE_NO_SNAPSHOT || at(all, i)->used < at(all, oldest)->used))
            oldest = i;
    if (oldest == STATE_NO_SNAPSHOT) return oldest;
    drop(all, oldest);
    *at(all, oldest) = (struct snapshot){.used = ++all->clock, .pins = 1};
    return oldest;
}

void snapshots_make_known(struct snapshots *all, uint32_t snapshot, uint64_t number)
{
    struct snapshot *s = at(all, snapshot);
    unpin(all, snapshot);
    if (snapshots_find(all, number) != STATE_NO_SNAPSHOT) { /* another sequence was quicker */
        drop(all, snapshot);
        return;
    }
    s->number = number;
    s->used = ++all->clock;
    s->next = *bucket_of(all, number);
    *bucket_of(all, number) = snapshot;
}

void snapshots_give_back(struct snapshots *all, uint32_t snapshot)
{
    unpin(all, snapshot);
    drop(all, snapshot);
}

/* ---- sequences ---- */

void snapshots_begin(struct snapshots *all, struct sequence *seq, uint32_t snapshot)
{
    snapshots_leave(all, seq);
    at(all, snapshot)->pins++;
    at(all, snapshot)->used = ++all->clock;
    seq->state_from = snapshot;
}

void snapshots_leave(struct snapshots *all, struct sequence *seq)
{
    if (seq->state_from) unpin(all, seq->state_from);
    seq->state_from = STATE_NO_SNAPSHOT;
}

/* ---- rows ---- */

/* The end of the last page in front of the last of `tokens`, whose logits are wanted. */
static uint32_t end_of(const struct snapshots *all, uint32_t tokens)
{
    return (tokens - 1) / all->page_tokens * all->page_tokens;
}

/* The same of what is computed as a prompt: it alone, or after a preemption or a loss with the answer so far. */
static uint32_t last_of(const struct snapshots *all, const struct sequence *seq)
{
    return end_of(all, seq->apart ? seq->prompt_count : seq->token_count);
}

uint32_t snapshots_cut(const struct snapshots *all, const struct sequence *seq)
{
    if (!all->on || seq->rung >= last_of(all, seq)) return 0;
    const uint32_t next = (seq->rung / all->prompt_every + 1) * all->prompt_every,
                   prompt = end_of(all, seq->prompt_count);
    uint32_t cut = last_of(all, seq);
    if (next < cut) cut = next;
    return prompt > seq->rung && prompt < cut ? prompt : cut;
}

/* Whether a row that ends there leaves a snapshot: its page will have a number, and it is one of the chosen positions. */
static bool wants(const struct snapshots *all, const struct sequence *seq, uint32_t end)
{
    if (!all->on || end % all->page_tokens || seq->scope == SEQUENCE_NO_SCOPE) return false;
    if (end == end_of(all, seq->prompt_count) || end == last_of(all, seq)) return true;
    if (end <= seq->prompt_count) return end % all->prompt_every == 0;
    return !seq->apart && end % all->answer_every == 0;
}

void snapshots_row(struct snapshots *all, struct sequence *seq, struct step_row *row)
{
    const uint32_t end = row->start + row->count;
    row->state_from = seq->state_from; /* with its pin */
    seq->state_from = STATE_NO_SNAPSHOT;
    row->state_to = wants(all, seq, end) ? snapshots_take_empty(all) : STATE_NO_SNAPSHOT;
}

/* Of an answer the newest alone stays: the next turn goes on behind it. */
static void replace_answers(struct snapshots *all, struct sequence *seq, uint32_t end)
{
    if (end <= seq->prompt_count) return;
    const uint32_t before = seq->state_trail ? snapshots_find(all, seq->state_trail) : STATE_NO_SNAPSHOT;
    if (before != STATE_NO_SNAPSHOT && !at(all, before)->pins && seq->state_trail != seq->page_end)
        drop(all, before);
    seq->state_trail = seq->page_end;
}

void snapshots_done(struct snapshots *all, const struct step_row *row, struct sequence *seq)
{
    const uint32_t end = row->start + row->count;
    if (row->state_from) unpin(all, row->state_from);
    if (!row->state_to) return;
    /* a row too many stands behind the last token that is known: its page has no number */
    if (!seq || seq->cached != end || end > seq->token_count) {
        snapshots_give_back(all, row->state_to);
        return;
    }
    snapshots_make_known(all, row->state_to, seq->page_end);
    replace_answers(all, seq, end);
}

void snapshots_lost(struct snapshots *all, bool intact)
{
    for (uint32_t i = 1; all->on && i <= all->count; i++) {
        at(all, i)->pins = 0;
        if (!intact || !at(all, i)->number) drop(all, i);
    }
}

uint32_t snapshots_known(const struct snapshots *all)
{
    uint32_t known = 0;
    for (uint32_t i = 1; all->on && i <= all->count; i++) known += at(all, i)->number != 0;
    return known;
}
