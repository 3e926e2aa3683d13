/* A sequence's beginning that is in the KV pool already. See prefix.h. Called by batcher.c; owns nothing. */
#include "daemon/steps/prefix.h"

#include "common/shared/state_layout.h"

const char *prefix_sharing_name(enum prefix_sharing sharing)
{
    static const char *const names[PREFIX_SHARINGS] = {"off", "on", "peer"};
    return names[sharing];
}

uint64_t prefix_scope(enum prefix_sharing sharing, uint64_t peer, uint32_t list)
{
    if (sharing == PREFIX_ON) return list * PREFIX_LIST_SCOPES;
    return sharing == PREFIX_PEER && peer ? list * PREFIX_LIST_SCOPES + peer : SEQUENCE_NO_SCOPE;
}

uint64_t prefix_restored_scope(enum prefix_sharing sharing, uint64_t peer, uint32_t list)
{
    return sharing == PREFIX_OFF || !peer ? SEQUENCE_NO_SCOPE : list * PREFIX_LIST_SCOPES + peer;
}

uint32_t prefix_reached(const struct kv_pages *pages, const struct snapshots *snapshots,
                        const struct prefix_run *run, uint64_t end, uint32_t *snapshot)
{
    const struct windows *w = &pages->windows;
    uint32_t reached = 0, windows = run->windows;
    *snapshot = STATE_NO_SNAPSHOT;
    for (uint32_t i = 0; i < run->count && end != SEQUENCE_NO_SCOPE; i++) {
        const uint32_t page = prefix_index_find(&pages->known, i == run->edge ? run->edge_scope : end,
                                                run->tokens + (size_t)i * pages->known.page_tokens);
        if (page == PREFIX_NO_PAGE) break;
        end = prefix_index_number(&pages->known, page);
        const uint32_t there = snapshots_find(snapshots, end);
        windows = windows_has(w, page) ? windows + 1 : 0;
        if (snapshots->on && there == STATE_NO_SNAPSHOT) continue;
        if (w->on && windows < w->kept && windows < run->front + i + 1) continue;
        *snapshot = there;
        reached = i + 1;
    }
    return reached;
}

uint64_t prefix_better_scope(const struct kv_pages *pages, const struct snapshots *snapshots,
                             const struct prefix_run *run, const uint64_t scope[2])
{
    uint32_t ignored;
    const uint32_t first = prefix_reached(pages, snapshots, run, scope[0], &ignored);
    if (first == run->count || scope[1] == scope[0]) return scope[0];
    return prefix_reached(pages, snapshots, run, scope[1], &ignored) > first ? scope[1] : scope[0];
}

void prefix_begin(struct sequence *seq)
{
    seq->cached = seq->rung = seq->asked = seq->pages = seq->state_at = seq->window_first = 0;
    seq->state_before = seq->left[0].end = 0;
    seq->redo = seq->draft_count = 0;
    seq->page_end = seq->scope;
}

/* The first page that the prompt does not fill, of a sequence that is apart; of others there is none. */
static uint32_t prompt_edge(const struct kv_pages *pages, const struct sequence *seq)
{
    return seq->apart ? seq->prompt_count / pages->known.page_tokens : UINT32_MAX;
}

/* The number or scope in front of page `i`; `end` is in front of it in the sequence. */
static uint64_t before_page(const struct kv_pages *pages, const struct sequence *seq, uint32_t i,
                            uint64_t end)
{
    return i == prompt_edge(pages, seq) ? PREFIX_ANSWER_SCOPES + seq->id : end;
}

/* Tokens of the page that it fills next, or has begun to. */
static const uint32_t *next_tokens(const struct kv_pages *pages, const struct sequence *seq)
{
    return seq->tokens + seq->cached / pages->known.page_tokens * pages->known.page_tokens;
}

/* How many whole pages of known tokens may still be taken, from that one on. */
static uint32_t pages_ahead(const struct kv_pages *pages, const struct sequence *seq)
{
    const uint32_t page_tokens = pages->known.page_tokens, full = seq->cached / page_tokens;
    if (seq->scope == SEQUENCE_NO_SCOPE || seq->rung != seq->cached) return 0; /* a step has it */
    if (full > prompt_edge(pages, seq)) return 0; /* its page there is not known, so it has no number */
    return (seq->token_count - 1) / page_tokens - full;
}

/* The next `count` pages of known tokens. */
static struct prefix_run run_of(const struct kv_pages *pages, const struct sequence *seq, uint32_t count)
{
    const uint32_t edge = prompt_edge(pages, seq), full = seq->cached / pages->known.page_tokens;
    return (struct prefix_run){.tokens = next_tokens(pages, seq),
                               .count = count,
                               .edge = edge == UINT32_MAX ? edge : edge - full,
                               .edge_scope = PREFIX_ANSWER_SCOPES + seq->id,
                               .front = full,
                               .windows = full - seq->window_first};
}

/* Its pages from `full` on were found: of windows it holds what the next token sees. */
static void take_windows(struct windows *w, uint32_t *row, struct sequence *seq, uint32_t full)
{
    const uint32_t first = seq->pages > w->kept ? seq->pages - w->kept : 0;
    if (!w->on) return;
    windows_leave(w, row, seq->window_first, first < full ? first : full, true);
    windows_share(w, row, first > full ? first : full, seq->pages);
    seq->window_first = first;
}

bool prefix_take(struct kv_pages *pages, struct snapshots *snapshots, uint32_t *row, struct sequence *seq)
{
    const uint32_t page_tokens = pages->known.page_tokens, full = seq->cached / page_tokens;
    const uint32_t ahead = pages_ahead(pages, seq), *tokens = next_tokens(pages, seq);
    const struct prefix_run run = run_of(pages, seq, ahead);
    uint32_t snapshot;
    if (ahead && !full && seq->restored_scope != SEQUENCE_NO_SCOPE) {
        const uint64_t scope[2] = {seq->scope, seq->restored_scope};
        seq->page_end = prefix_better_scope(pages, snapshots, &run, scope);
    }
    uint64_t end = before_page(pages, seq, full, seq->page_end);
    const uint32_t reached = prefix_reached(pages, snapshots, &run, seq->page_end, &snapshot);
    if (!reached) return false;
    windows_leave(&pages->windows, row, full, seq->pages, false);
    kv_pages_shrink(pages, row, &seq->pages, full); /* drops its own page that it has begun */
    const uint32_t want = full + reached, edge = prompt_edge(pages, seq);
    if (full < edge) {
        kv_pages_take_known(pages, row, &seq->pages, want < edge ? want : edge, tokens, &seq->page_end);
        end = before_page(pages, seq, seq->pages, seq->page_end);
    }
    if (seq->pages == edge)
        kv_pages_take_known(pages, row, &seq->pages, want, seq->tokens + (size_t)edge * page_tokens, &end);
    take_windows(&pages->windows, row, seq, full);
    if (snapshots->on) snapshots_begin(snapshots, seq, snapshot);
    seq->cached = seq->rung = seq->pages * page_tokens;
    const uint32_t to = seq->cached < seq->prompt_count ? seq->cached : seq->prompt_count;
    if (to > seq->reach)
        seq->found += to - seq->reach; /* tokens up to `reach` were computed by itself, or found before */
    if (seq->cached > seq->reach) seq->reach = seq->cached;
    return true;
}

uint32_t prefix_shared(const struct kv_pages *pages, const struct snapshots *snapshots,
                       const struct sequence *seq)
{
    const uint32_t ahead = pages_ahead(pages, seq), edge = prompt_edge(pages, seq),
                   full = seq->cached / pages->known.page_tokens, prompts = edge > full ? edge - full : 0;
    const struct prefix_run run = run_of(pages, seq, ahead < prompts ? ahead : prompts);
    uint32_t ignored;
    const uint32_t reached = prefix_reached(pages, snapshots, &run, seq->page_end, &ignored);
    return kv_pages_shared(pages, reached, run.tokens, seq->page_end);
}

uint64_t prefix_next_page(const struct kv_pages *pages, const struct snapshots *snapshots,
                          const struct sequence *seq)
{
    const uint32_t page_tokens = pages->known.page_tokens, next = snapshots_next(snapshots, seq);
    if (!pages_ahead(pages, seq) || seq->cached / page_tokens >= prompt_edge(pages, seq)) return 0;
    if (!snapshots->on) return prefix_index_hash(&pages->known, seq->page_end, next_tokens(pages, seq));
    uint64_t hash = next ? seq->state_before : 0;
    if (next && !hash) hash = seq->scope;
    for (uint32_t at = seq->state_at; at < next; at += page_tokens)
        hash = prefix_index_hash(&pages->known, hash, seq->tokens + at);
    return hash;
}

void prefix_computed(struct kv_pages *pages, const uint32_t *row, struct sequence *seq, uint32_t cached)
{
    const uint32_t page_tokens = pages->known.page_tokens;
    /* a row too many may stand after the last token that is known */
    uint32_t full = (cached < seq->token_count ? cached : seq->token_count) / page_tokens;
    if (full > prompt_edge(pages, seq)) full = prompt_edge(pages, seq);
    for (uint32_t i = seq->cached / page_tokens; i < full && seq->scope != SEQUENCE_NO_SCOPE; i++) {
        seq->page_end = kv_pages_make_known(pages, row[i], seq->page_end, seq->tokens + i * page_tokens);
        snapshots_page(seq, (i + 1) * page_tokens, seq->page_end);
    }
    seq->cached = cached;
    if (cached > seq->reach) seq->reach = cached;
}

void prefix_pass(struct kv_pages *pages, const struct snapshots *snapshots, const uint32_t *row,
                 struct sequence *seq)
{
    struct windows *w = &pages->windows;
    const uint32_t hidden = w->on ? state_window_hidden(seq->cached, w->tokens, w->page_tokens) : 0;
    for (; seq->window_first < hidden; seq->window_first++) {
        const uint32_t end = (seq->window_first + 1) * w->page_tokens,
                       chosen = snapshots_chosen(snapshots, seq, end - 1);
        windows_leave(w, row, seq->window_first, seq->window_first + 1,
                      chosen && chosen + 1 < end + w->tokens);
    }
}

/* Makes the pages after the prompt of a sequence that is apart known to that sequence alone. */
static void keep_after_prompt(struct kv_pages *pages, const uint32_t *row, const struct sequence *seq)
{
    const uint32_t page_tokens = pages->known.page_tokens, edge = prompt_edge(pages, seq);
    uint64_t end = PREFIX_ANSWER_SCOPES + seq->id;
    for (uint32_t i = edge; i < seq->cached / page_tokens; i++)
        end = kv_pages_make_known(pages, row[i], end, seq->tokens + (size_t)i * page_tokens);
}

void prefix_keep(struct kv_pages *pages, const uint32_t *row, struct sequence *seq)
{
    const uint32_t cached = seq->cached;
    if (seq->scope == SEQUENCE_NO_SCOPE) { /* else they are known */
        seq->scope = seq->page_end = PREFIX_OWN_SCOPES + seq->id;
        seq->cached = 0;
        prefix_computed(pages, row, seq, cached);
    }
    if (seq->apart) keep_after_prompt(pages, row, seq);
}

void prefix_forget(struct kv_pages *pages, const uint32_t *row, const struct sequence *seq)
{
    for (uint32_t i = 0; i < seq->pages; i++) kv_pages_forget(pages, row[i]);
}
