/* Snapshots of fixed states. See snapshots.h. Called from the one loop. */
#include "daemon/steps/snapshots.h"

#include <stdlib.h>
#include <string.h>

#include "common/base/log.h"
#include "common/base/units.h"
#include "common/plan/state.h"

/* Each snapshot is copied: a step of a long prompt leaves one. */
uint32_t snapshots_prompt_every(const struct plan *plan, uint32_t page_tokens)
{
    const uint32_t step = plan->step_tokens / page_tokens * page_tokens;
    const uint32_t least = (uint32_t)round_up(SNAPSHOTS_PROMPT_TOKENS, page_tokens);
    return step > least ? step : least;
}

int snapshots_init(struct snapshots *all, const struct plan *plan, uint32_t page_tokens, struct helm_err *err)
{
    uint32_t buckets = 1;
    *all = (struct snapshots){.on = plan_has_fixed(plan), .count = plan->state_snapshots, .clock = 1};
    all->chooses = all->on || plan->window_page_count;
    all->page_tokens = page_tokens;
    all->prompt_every = snapshots_prompt_every(plan, page_tokens);
    all->answer_every = (uint32_t)round_up(SNAPSHOTS_ANSWER_TOKENS, page_tokens);
    if (!all->on) return 0;
    while (buckets < all->count) buckets *= 2;
    all->mask = buckets - 1;
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

/* It comes after the snapshot of this number, if that is there. */
static void set_before(struct snapshots *all, uint32_t snapshot, uint64_t before)
{
    struct snapshot *s = at(all, snapshot);
    const uint32_t from = snapshots_find(all, s->before), to = snapshots_find(all, before);
    if (from != STATE_NO_SNAPSHOT) at(all, from)->longer--;
    if (to != STATE_NO_SNAPSHOT) at(all, to)->longer++;
    s->before = to != STATE_NO_SNAPSHOT ? before : 0;
}

/* It is not found any more: those after it come after the one in front of it. */
static void forget(struct snapshots *all, uint32_t snapshot)
{
    struct snapshot *s = at(all, snapshot);
    if (!s->number) return;
    for (uint32_t i = 1; i <= all->count && s->longer; i++)
        if (at(all, i)->before == s->number) set_before(all, i, s->before);
    set_before(all, snapshot, 0);
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

/* It and all in front of it are used now. */
static void touch(struct snapshots *all, uint32_t snapshot)
{
    for (uint32_t newer = 0; snapshot != STATE_NO_SNAPSHOT; newer++) {
        struct snapshot *s = at(all, snapshot);
        s->used = all->clock;
        s->newer = newer;
        snapshot = snapshots_find(all, s->before);
    }
}

/* Its conversation was used after it, and went on from the one in front of it. */
static bool is_passed_by(const struct snapshots *all, const struct snapshot *s)
{
    const uint32_t before = snapshots_find(all, s->before);
    return before != STATE_NO_SNAPSHOT && at(all, before)->used > s->used;
}

/* How useful it is (snapshots.h); 0: it is free. */
static uint32_t rank_of(const struct snapshots *all, const struct snapshot *s)
{
    if (!s->used) return 0;
    if (all->clock - s->used > all->count) return 1;
    if (!s->marked && (s->longer || is_passed_by(all, s))) return 1;
    if (!s->longer) return 3;
    return s->newer < SNAPSHOTS_NEWEST ? 3 : 2;
}

/* Tokens that a sequence need not compute which begins with it, and not with the one in front of it. */
static uint32_t saves(const struct snapshots *all, const struct snapshot *s)
{
    const uint32_t before = snapshots_find(all, s->before);
    return before == STATE_NO_SNAPSHOT ? s->end : s->end - at(all, before)->end;
}

static bool goes_sooner(const struct snapshots *all, const struct snapshot *a, const struct snapshot *b)
{
    const uint32_t rank_a = rank_of(all, a), rank_b = rank_of(all, b);
    if (rank_a != rank_b) return rank_a < rank_b;
    if (a->used != b->used) return a->used < b->used;
    if (!a->longer != !b->longer) return a->longer;
    const uint32_t by_a = saves(all, a), by_b = saves(all, b);
    return by_a != by_b ? by_a < by_b : a->end < b->end;
}

uint32_t snapshots_take_empty(struct snapshots *all)
{
    uint32_t first = STATE_NO_SNAPSHOT;
    for (uint32_t i = 1; i <= all->count; i++)
        if (!at(all, i)->pins && (first == STATE_NO_SNAPSHOT || goes_sooner(all, at(all, i), at(all, first))))
            first = i;
    if (first == STATE_NO_SNAPSHOT) return first;
    all->dropped += at(all, first)->number != 0;
    drop(all, first);
    at(all, first)->pins = 1;
    return first;
}

/* It is let go and known; the snapshot that is, which is another one where a sequence was quicker. */
static uint32_t enter(struct snapshots *all, uint32_t snapshot, uint64_t number, uint32_t end)
{
    const uint32_t there = snapshots_find(all, number);
    struct snapshot *s = at(all, snapshot);
    unpin(all, snapshot);
    if (there != STATE_NO_SNAPSHOT) {
        drop(all, snapshot);
        return there;
    }
    s->number = number;
    s->end = end;
    s->next = *bucket_of(all, number);
    *bucket_of(all, number) = snapshot;
    return snapshot;
}

void snapshots_make_known(struct snapshots *all, uint32_t snapshot, uint64_t number, uint32_t end)
{
    all->clock++;
    touch(all, enter(all, snapshot, number, end));
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
    all->clock++;
    touch(all, snapshot);
    at(all, snapshot)->marked = true;
    all->hits += !seq->again;
    seq->state_from = snapshot;
    seq->state_at = at(all, snapshot)->end;
    seq->state_before = at(all, snapshot)->number;
}

/* One that is known to others stays. */
static void let_go_kept(struct snapshots *all, struct sequence *seq)
{
    if (seq->state_kept && at(all, seq->state_kept)->number)
        unpin(all, seq->state_kept);
    else if (seq->state_kept)
        snapshots_give_back(all, seq->state_kept);
    seq->state_kept = STATE_NO_SNAPSHOT;
}

void snapshots_leave(struct snapshots *all, struct sequence *seq)
{
    if (seq->state_from) unpin(all, seq->state_from);
    seq->state_from = STATE_NO_SNAPSHOT;
    let_go_kept(all, seq);
}

uint32_t snapshots_go_back(struct snapshots *all, struct sequence *seq, uint32_t stands, uint32_t least)
{
    const uint32_t to = seq->state_kept_at;
    if (!seq->state_kept || to > stands || to < least || seq->state_at > to) return 0;
    if (seq->state_from) unpin(all, seq->state_from);
    seq->state_from = seq->state_kept; /* with its pin */
    seq->state_kept = STATE_NO_SNAPSHOT;
    return to;
}

/* ---- rows ---- */

/* The end of the last page in front of the last of `tokens`, whose logits are wanted, unless it is computed
 * again. */
static uint32_t end_of(const struct snapshots *all, const struct sequence *seq, uint32_t tokens)
{
    return (tokens - !seq->again) / all->page_tokens * all->page_tokens;
}

/* The same of what is computed as a prompt: it alone, or after a preemption or a loss with the answer so
 * far. */
static uint32_t last_of(const struct snapshots *all, const struct sequence *seq)
{
    return end_of(all, seq, seq->apart ? seq->prompt_count : seq->token_count);
}

void snapshots_mark(const struct snapshots *all, struct sequence *seq)
{
    uint32_t ends = 0, from = REQUEST_MARKS_MAX;
    for (uint32_t i = 0; all->chooses && i < seq->mark_count; i++) {
        const uint32_t last = end_of(all, seq, seq->prompt_count),
                       page = seq->mark[i] / all->page_tokens * all->page_tokens,
                       end = page < last ? page : last;
        if (end && (!ends || end > seq->mark[ends - 1])) seq->mark[ends++] = end;
    }
    /* the newest stay, and the first, which other conversations have as well */
    for (uint32_t i = ends; i-- > 0;)
        if (i == 0 || ends - i <= SNAPSHOTS_MARKS_NEAR || seq->mark[from] - seq->mark[i] >= all->prompt_every)
            seq->mark[--from] = seq->mark[i];
    seq->mark_count = REQUEST_MARKS_MAX - from;
    memmove(seq->mark, seq->mark + from, seq->mark_count * sizeof *seq->mark);
}

static void take_nearer(uint32_t *next, uint32_t after, uint32_t end)
{
    if (end > after && (!*next || end < *next)) *next = end;
}

/* The first chosen position after `after`; `last`: where the sequence left a snapshot last. */
static uint32_t chosen(const struct snapshots *all, const struct sequence *seq, uint32_t after, uint32_t last)
{
    uint32_t next = 0;
    if (after >= last_of(all, seq)) return 0;
    take_nearer(&next, after, last_of(all, seq));
    take_nearer(&next, after, end_of(all, seq, seq->prompt_count));
    take_nearer(&next, after, (after / all->prompt_every + 1) * all->prompt_every);
    for (uint32_t i = 0; i < seq->mark_count; i++)
        if (seq->mark[i] >= last + SNAPSHOTS_MARK_TOKENS) take_nearer(&next, after, seq->mark[i]);
    return next;
}

uint32_t snapshots_chosen(const struct snapshots *all, const struct sequence *seq, uint32_t after)
{
    return chosen(all, seq, after, seq->state_at);
}

uint32_t snapshots_next(const struct snapshots *all, const struct sequence *seq)
{
    return all->on ? snapshots_chosen(all, seq, seq->rung) : 0;
}

/* Chosen positions after `start` and up to `end`, `most` at most, rising. */
static uint32_t chosen_in(const struct snapshots *all, const struct sequence *seq, uint32_t start,
                          uint32_t end, uint32_t most, uint32_t *position)
{
    uint32_t count = 0, last = seq->state_at, at = start;
    while (count < most && (at = chosen(all, seq, at, last)) && at <= end) position[count++] = last = at;
    return count;
}

uint32_t snapshots_cut(const struct snapshots *all, const struct sequence *seq)
{
    uint32_t position[ARENA_ROW_STATES + 1];
    const uint32_t most = sizeof position / sizeof *position;
    if (!all->on || chosen_in(all, seq, seq->rung, UINT32_MAX, most, position) < most) return 0;
    return position[most - 2];
}

/* Where a row leaves snapshots: at chosen positions, whose pages will have numbers. */
static uint32_t places_in(const struct snapshots *all, const struct sequence *seq, const struct step_row *row,
                          uint32_t position[ARENA_ROW_STATES])
{
    const uint32_t end = row->start + row->count;
    if (!all->on || seq->scope == SEQUENCE_NO_SCOPE) return 0;
    const uint32_t most = ARENA_ROW_STATES - (seq->state_back > 0); /* one is in front of drafts, or kept */
    const uint32_t count = chosen_in(all, seq, row->start, end, most, position);
    const bool few = row->drafts || seq->redo > row->start;
    const uint32_t last = few ? end / all->answer_every * all->answer_every : end;
    if (count || last <= row->start || last <= seq->prompt_count || seq->apart || last % all->answer_every)
        return count;
    *position = last;
    return 1;
}

/* The row leaves this snapshot, which is chosen unless it only serves to go back. */
static void add_left(struct sequence *seq, struct step_row *row, uint32_t *left, uint32_t to,
                     uint32_t position, bool is_chosen)
{
    row->left[*left] = (struct step_state){.to = to, .at = position - row->start};
    seq->left[(*left)++] = (struct sequence_state){.end = position};
    if (is_chosen) seq->state_at = position;
}

uint32_t snapshots_room(const struct snapshots *all)
{
    uint32_t room = 0;
    for (uint32_t i = 1; all->on && i <= all->count; i++) room += !at(all, i)->pins;
    return room;
}

void snapshots_reserve(struct snapshots *all, struct sequence *seq)
{
    if (!all->on) return;
    seq->state_back = snapshots_take_empty(all);
    if (seq->state_back) return;
    log_error("snapshots: drafts were found for more sequences than can go back: aborting");
    abort();
}

void snapshots_reserve_kept(struct snapshots *all, struct sequence *seq, uint32_t end)
{
    if (!all->on || !seq->keeps || end != seq->token_count || !snapshots_room(all)) return;
    snapshots_reserve(all, seq);
    seq->keeps = false;
}

void snapshots_row(struct snapshots *all, struct sequence *seq, struct step_row *row)
{
    uint32_t position[ARENA_ROW_STATES], to[ARENA_ROW_STATES], left = 0;
    uint32_t back = seq->state_back;
    const bool kept = back && !row->drafts;
    const uint32_t places = places_in(all, seq, row, position), known = row->start + row->count - row->drafts;
    row->state_from = seq->state_from; /* with its pin */
    seq->state_from = seq->state_back = STATE_NO_SNAPSHOT;
    seq->state_was = seq->state_at;
    for (uint32_t i = places; i-- > 0;)
        to[i] = snapshots_take_empty(all); /* if there are few, the last ones */
    for (uint32_t i = 0; i < places; i++) {
        if (back && position[i] >= known) {
            add_left(seq, row, &left, back, known, position[i] == known);
            back = STATE_NO_SNAPSHOT;
            if (position[i] == known && to[i]) snapshots_give_back(all, to[i]);
            if (position[i] == known) continue;
        }
        if (to[i]) add_left(seq, row, &left, to[i], position[i], true);
    }
    if (back) add_left(seq, row, &left, back, known, false);
    if (left && left < ARENA_ROW_STATES) seq->left[left].end = 0;
    if (!kept) return;
    let_go_kept(all, seq);
    seq->state_kept_at = known;
}

void snapshots_page(struct sequence *seq, uint32_t end, uint64_t number)
{
    for (uint32_t i = 0; i < ARENA_ROW_STATES && seq->left[i].end; i++)
        if (seq->left[i].end == end) seq->left[i].page = number;
}

static bool is_marked(const struct snapshots *all, const struct sequence *seq, uint32_t end)
{
    bool marked = end == end_of(all, seq, seq->prompt_count);
    for (uint32_t i = 0; i < seq->mark_count; i++) marked |= seq->mark[i] == end;
    return marked;
}

/* It comes after the sequence's last one, unless it is known to come after a nearer one. */
static void follow(struct snapshots *all, const struct sequence *seq, uint32_t snapshot)
{
    const uint32_t before = snapshots_find(all, at(all, snapshot)->before),
                   last = snapshots_find(all, seq->state_before);
    if (last == STATE_NO_SNAPSHOT || last == snapshot) return;
    if (before == STATE_NO_SNAPSHOT || at(all, before)->end < at(all, last)->end)
        set_before(all, snapshot, seq->state_before);
}

/* The newest alone of an answer stays: the next turn goes on after it. */
static void replace_answers(struct snapshots *all, struct sequence *seq, uint32_t end)
{
    if (end <= seq->prompt_count) return;
    const uint32_t before = seq->state_trail ? snapshots_find(all, seq->state_trail) : STATE_NO_SNAPSHOT;
    if (before != STATE_NO_SNAPSHOT && !at(all, before)->pins && seq->state_trail != seq->state_before)
        drop(all, before);
    seq->state_trail = seq->state_before;
}

/* The snapshot that is known by this page's number from now on. */
static uint32_t leave(struct snapshots *all, struct sequence *seq, uint32_t snapshot,
                      struct sequence_state state)
{
    const uint32_t left = enter(all, snapshot, state.page, state.end);
    follow(all, seq, left);
    at(all, left)->marked |= is_marked(all, seq, state.end);
    all->clock += state.end <= seq->prompt_count; /* a long answer alone makes no others old */
    touch(all, left);
    seq->state_before = state.page;
    replace_answers(all, seq, state.end);
    return left;
}

void snapshots_done(struct snapshots *all, const struct step_row *row, struct sequence *seq)
{
    const bool goes_back = seq && row->drafts && seq->cached < row->start + row->count;
    if (row->state_from) unpin(all, row->state_from);
    if (goes_back && seq->state_at > seq->cached) seq->state_at = seq->state_was;
    for (uint32_t i = 0; i < ARENA_ROW_STATES && row->left[i].to; i++) {
        const uint32_t to = row->left[i].to, end = row->start + row->left[i].at;
        /* a row too many stands after the last token that is known: its page has no number */
        const bool stays = seq && end <= seq->cached && seq->left[i].end == end && end <= seq->token_count &&
                           seq->left[i].page;
        const bool begins = goes_back && end == seq->cached,
                   kept = seq && seq->stays && !row->drafts && end == seq->state_kept_at && !seq->state_kept;
        const uint32_t left = stays ? leave(all, seq, to, seq->left[i]) : to;
        if (stays && end > seq->state_at) seq->state_at = end;
        if (begins) seq->state_from = left;
        if (kept) seq->state_kept = left;
        if ((begins || kept) && stays) at(all, left)->pins++;
        if (!begins && !kept && !stays) snapshots_give_back(all, to);
    }
}

void snapshots_lost(struct snapshots *all, bool intact)
{
    for (uint32_t i = 1; all->on && i <= all->count; i++) {
        at(all, i)->pins = 0;
        if (!intact) *at(all, i) = (struct snapshot){0};
    }
    for (uint32_t i = 0; all->on && !intact && i <= all->mask; i++) all->bucket[i] = STATE_NO_SNAPSHOT;
}

uint32_t snapshots_known(const struct snapshots *all)
{
    uint32_t known = 0;
    for (uint32_t i = 1; all->on && i <= all->count; i++) known += at(all, i)->number != 0;
    return known;
}
