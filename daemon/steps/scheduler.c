/* Which sequences run in the next step. See scheduler.h. Called by batcher.c; pure, allocates nothing.
 *
 * All state of one decision is in `struct draft`: the running set (at most SCHEDULER_ROWS_MAX, oldest first),
 * what each has been given, and the pages left. */
#include "daemon/steps/scheduler.h"

#include <string.h>

#include "common/shared/kv_layout.h"

struct member {
    uint32_t seq;
    uint32_t pages; /* held or promised */
    uint32_t given; /* tokens in this step */
    bool out;       /* preempted */
};

struct draft {
    const struct scheduler_seq *seqs;
    uint32_t count;
    const struct scheduler_limits *limits;
    struct member member[SCHEDULER_ROWS_MAX]; /* oldest first */
    uint32_t members, running;                /* running: members that are not out */
    uint32_t pages_free, tokens_left;
    struct scheduler_step *step;
};

static bool is_apart(const struct draft *d)
{
    return d->limits->list_tokens != NULL;
}

static const struct scheduler_seq *seq_of(const struct draft *d, const struct member *m)
{
    return &d->seqs[m->seq];
}

static void draft_insert(struct draft *d, uint32_t seq)
{
    uint32_t at = d->members++;
    while (at > 0 && d->seqs[d->member[at - 1].seq].order > d->seqs[seq].order) {
        d->member[at] = d->member[at - 1];
        at--;
    }
    d->member[at] = (struct member){.seq = seq, .pages = d->seqs[seq].pages};
    d->running++;
}

/* A sequence admitted in this very step leaves again: it never had a slot. */
static void draft_withdraw(struct draft *d, uint32_t seq)
{
    struct scheduler_step *step = d->step;
    uint32_t kept = 0;
    for (uint32_t i = 0; i < step->admit_count; i++)
        if (step->admit[i] != seq) step->admit[kept++] = step->admit[i];
    step->admit_count = kept;
}

/* Preempts the youngest running member that is younger than `keep`. False: there is none. */
static bool draft_preempt_younger(struct draft *d, uint32_t keep)
{
    for (uint32_t i = d->members; i-- > keep + 1;) {
        struct member *m = &d->member[i];
        if (m->out) continue;
        m->out = true;
        d->running--;
        d->pages_free += m->pages;
        d->tokens_left += m->given;
        m->pages = m->given = 0;
        if (seq_of(d, m)->running)
            d->step->preempt[d->step->preempt_count++] = m->seq;
        else
            draft_withdraw(d, m->seq);
        return true;
    }
    return false;
}

/* Gives member `at` up to `want` tokens, as far as the token budget and the pages go. A member that can get
 * nothing takes the pages of younger ones; the youngest of all simply waits for the next step. */
static void draft_give(struct draft *d, uint32_t at, uint32_t want)
{
    struct member *m = &d->member[at];
    const struct scheduler_seq *s = seq_of(d, m);
    uint32_t page_tokens = d->limits->page_tokens;
    if (s->cut > s->cached && want > s->cut - s->cached) want = s->cut - s->cached;
    if (want > d->tokens_left) want = d->tokens_left;
    if (want == 0) return;
    uint64_t room = (uint64_t)(m->pages + d->pages_free) * page_tokens - s->cached;
    while (room == 0 && draft_preempt_younger(d, at))
        room = (uint64_t)(m->pages + d->pages_free) * page_tokens - s->cached;
    if (want > room) want = (uint32_t)room;
    if (want == 0) return;
    uint32_t need = kv_pages_for(s->cached + want, page_tokens);
    if (need > m->pages) {
        d->pages_free -= need - m->pages;
        m->pages = need;
    }
    m->given = want;
    d->tokens_left -= want;
}

static void draft_give_decodes(struct draft *d)
{
    for (uint32_t i = 0; i < d->members; i++) {
        const struct scheduler_seq *s = seq_of(d, &d->member[i]);
        if (!d->member[i].out && !s->held && scheduler_decodes(s)) draft_give(d, i, s->tokens - s->cached);
    }
}

static bool draft_decodes(const struct draft *d)
{
    for (uint32_t i = 0; i < d->members; i++)
        if (!d->member[i].out && d->member[i].given) return true;
    return false;
}

/* The order of waiting sequences: smaller is sooner, compared member by member. */
struct rank {
    uint64_t peer_running, peer_turn, client_running, client_turn, order;
};

static struct rank rank_of(const struct draft *d, const struct scheduler_seq *s)
{
    struct rank r = {.peer_turn = s->peer_turn, .client_turn = s->client_turn, .order = s->order};
    for (uint32_t i = 0; i < d->members; i++) {
        const struct scheduler_seq *other = seq_of(d, &d->member[i]);
        if (d->member[i].out) continue;
        r.peer_running += other->peer == s->peer;
        r.client_running += other->client == s->client;
    }
    for (uint32_t i = 0; i < d->step->admit_count; i++) { /* later than all that were before this step */
        const struct scheduler_seq *other = &d->seqs[d->step->admit[i]];
        if (other->peer == s->peer) r.peer_turn = UINT64_MAX / 2 + i;
        if (other->client == s->client) r.client_turn = UINT64_MAX / 2 + i;
    }
    return r;
}

static bool rank_before(const struct rank *a, const struct rank *b)
{
    const uint64_t of_a[] = {a->peer_running, a->peer_turn, a->client_running, a->client_turn, a->order};
    const uint64_t of_b[] = {b->peer_running, b->peer_turn, b->client_running, b->client_turn, b->order};
    for (int i = 0; i < 5; i++)
        if (of_a[i] != of_b[i]) return of_a[i] < of_b[i];
    return false;
}

static bool draft_has(const struct draft *d, uint32_t seq)
{
    for (uint32_t i = 0; i < d->members; i++)
        if (d->member[i].seq == seq) return true;
    return false;
}

/* Pages that the running members are still to take: the rest of their known tokens, at least one to grow
 * into. */
static uint64_t draft_outstanding(const struct draft *d)
{
    uint64_t pages = 0;
    for (uint32_t i = 0; i < d->members; i++) {
        const struct member *m = &d->member[i];
        if (m->out) continue;
        uint32_t need = kv_pages_for(seq_of(d, m)->tokens, d->limits->page_tokens);
        pages += need > m->pages ? need - m->pages : 1;
    }
    return pages;
}

static void draft_admit(struct draft *d)
{
    /* After a preemption there is no room by definition; admitting would only preempt again. */
    if (d->step->preempt_count > 0) return;
    while (d->running < d->limits->slots && d->members < SCHEDULER_ROWS_MAX) {
        uint32_t best = d->count;
        struct rank best_rank = {0};
        for (uint32_t i = 0; i < d->count; i++) {
            const struct scheduler_seq *s = &d->seqs[i];
            if (s->running || s->held || draft_has(d, i)) continue;
            const struct rank rank = rank_of(d, s);
            if (best == d->count || rank_before(&rank, &best_rank)) {
                best = i;
                best_rank = rank;
            }
        }
        if (best == d->count) return;
        uint32_t need = kv_pages_for(d->seqs[best].tokens, d->limits->page_tokens);
        if (d->limits->shared) need -= d->limits->shared(d->limits->context, best);
        if (d->running > 0 && need + draft_outstanding(d) > d->pages_free) return; /* alone it always fits */
        d->step->admit[d->step->admit_count++] = best;
        draft_insert(d, best);
    }
}

/* Whether another member has got the tokens that fill the page which this one would fill next, or with fixed
 * states any of those in front of the snapshot that both go on to. */
static bool draft_fills_next_page(const struct draft *d, const struct member *m)
{
    const uint64_t page = seq_of(d, m)->next_page;
    for (uint32_t i = 0; page && i < d->members; i++) {
        const struct member *other = &d->member[i];
        const struct scheduler_seq *s = seq_of(d, other);
        if (other != m && !other->out && s->next_page == page &&
            (d->limits->fixed ? other->given > 0
                              : s->cached % d->limits->page_tokens + other->given >= d->limits->page_tokens))
            return true;
    }
    return false;
}

static bool draft_wants_prefill(const struct draft *d, const struct member *m)
{
    const struct scheduler_seq *s = seq_of(d, m);
    const bool prompt =
        is_apart(d) ? s->cached < s->prompt && s->list == d->step->list : !scheduler_decodes(s);
    return !m->out && !s->held && m->given == 0 && prompt && !draft_fills_next_page(d, m);
}

/* The member that has most of the page that member `at` fills next: it computes in that one's turn, for
 * both. */
static uint32_t draft_leader(const struct draft *d, uint32_t at)
{
    const uint64_t page = seq_of(d, &d->member[at])->next_page;
    uint32_t leader = at;
    for (uint32_t i = 0; page && i < d->members; i++) {
        const struct member *m = &d->member[i];
        if (!m->out && m->given == 0 && seq_of(d, m)->next_page == page &&
            seq_of(d, m)->cached > seq_of(d, &d->member[leader])->cached)
            leader = i;
    }
    return leader;
}

/* Those whose members want tokens, ranked by their oldest one. */
struct askers {
    uint64_t peer[SCHEDULER_ROWS_MAX], client[SCHEDULER_ROWS_MAX]; /* a client and its peer */
    uint32_t clients;
    uint64_t distinct[SCHEDULER_ROWS_MAX]; /* peers */
    uint32_t peers;
};

static void find_askers(const struct draft *d, struct askers *askers)
{
    askers->clients = askers->peers = 0;
    for (uint32_t i = 0; i < d->members; i++) {
        if (!draft_wants_prefill(d, &d->member[i])) continue;
        const struct scheduler_seq *s = seq_of(d, &d->member[i]);
        uint32_t c = 0, p = 0;
        while (c < askers->clients && askers->client[c] != s->client) c++;
        while (p < askers->peers && askers->distinct[p] != s->peer) p++;
        if (p == askers->peers) askers->distinct[askers->peers++] = s->peer;
        if (c < askers->clients) continue;
        askers->peer[askers->clients] = s->peer;
        askers->client[askers->clients++] = s->client;
    }
}

/* Gives what is left to its oldest request. False: that wants, or gets, nothing. */
static bool give_client(struct draft *d, uint64_t client)
{
    for (uint32_t i = 0; i < d->members; i++) {
        const struct scheduler_seq *s = seq_of(d, &d->member[i]);
        if (s->client != client || !draft_wants_prefill(d, &d->member[i])) continue;
        const uint32_t to = draft_leader(d, i);
        s = seq_of(d, &d->member[to]);
        draft_give(d, to, (is_apart(d) ? s->prompt : s->tokens) - s->cached);
        if (d->member[to].given) return true;
    }
    return false;
}

/* One chunk for a client of the peer, beginning with the one that stands `from` places further on. */
static bool give_peer(struct draft *d, const struct askers *askers, uint64_t peer, uint64_t from)
{
    uint32_t at[SCHEDULER_ROWS_MAX], n = 0;
    for (uint32_t c = 0; c < askers->clients; c++)
        if (askers->peer[c] == peer) at[n++] = c;
    for (uint32_t k = 0; k < n; k++)
        if (give_client(d, askers->client[at[(from + k) % n]])) return true;
    return false;
}

/* One chunk for each peer in turn until the budget is gone; the rotation starts `turn` places further on,
 * among the clients of a peer once it has been round the peers. */
static void draft_give_prefills(struct draft *d)
{
    struct askers askers;
    find_askers(d, &askers);
    if (askers.peers == 0) return;
    const uint64_t turn = d->limits->turn;
    bool any = true;
    for (uint64_t pass = 0; any && d->tokens_left > 0; pass++) {
        any = false;
        for (uint32_t k = 0; k < askers.peers && d->tokens_left > 0; k++)
            any |=
                give_peer(d, &askers, askers.distinct[(turn + k) % askers.peers], turn / askers.peers + pass);
    }
}

/* ---- of an invariant plan ---- */

/* Whether it has a token to be computed after its prompt. */
static bool draft_goes_on(const struct draft *d, const struct member *m)
{
    const struct scheduler_seq *s = seq_of(d, m);
    return !m->out && !s->held && s->cached >= s->prompt;
}

/* A token for each, beginning with the one that is next in turn; the rest for sequences that are computed
 * again. */
static void draft_give_few(struct draft *d)
{
    uint32_t wanting = 0;
    for (uint32_t i = 0; i < d->members; i++) wanting += draft_goes_on(d, &d->member[i]);
    const uint32_t few = d->limits->few_tokens;
    uint32_t spare = wanting < few ? few - wanting : 0;
    const uint64_t first = wanting > few ? d->limits->few_turn * few : 0;
    d->tokens_left = few;
    for (uint32_t k = 0; k < d->members; k++) {
        const uint32_t i = (uint32_t)((first + k) % d->members);
        const struct scheduler_seq *s = seq_of(d, &d->member[i]);
        if (!draft_goes_on(d, &d->member[i])) continue;
        const uint32_t more = s->tokens - s->cached - 1 < spare ? s->tokens - s->cached - 1 : spare;
        spare -= more;
        draft_give(d, i, 1 + more);
    }
}

/* Gives tokens to prompts of one list: the lists of the prompts that want tokens take turns. */
static void draft_give_prompts(struct draft *d, bool beside_others)
{
    const struct scheduler_limits *limits = d->limits;
    uint32_t wanting = 0, list[SCHEDULER_ROWS_MAX];
    for (uint32_t i = 0; i < d->members; i++) {
        const struct scheduler_seq *s = seq_of(d, &d->member[i]);
        d->step->list = s->list;
        if (draft_wants_prefill(d, &d->member[i])) list[wanting++] = s->list;
    }
    if (!wanting) return;
    d->step->list = list[limits->turn % wanting];
    d->tokens_left = limits->list_tokens[d->step->list];
    if (d->tokens_left > limits->step_tokens) d->tokens_left = limits->step_tokens;
    if (beside_others && limits->prompt_tokens && d->tokens_left > limits->prompt_tokens)
        d->tokens_left = limits->prompt_tokens;
    draft_give_prefills(d);
    d->step->prompts = draft_decodes(d);
}

static void draft_form_apart(struct draft *d)
{
    bool go_on = false;
    for (uint32_t i = 0; i < d->members; i++) go_on |= draft_goes_on(d, &d->member[i]);
    if (go_on && !d->limits->prompts_next) draft_give_few(d);
    draft_admit(d);
    if (draft_decodes(d)) return;
    draft_give_prompts(d, go_on);
    if (!d->step->prompts && go_on) draft_give_few(d);
    if (!d->step->prompts) d->step->list = 0;
}

static void draft_form(struct draft *d)
{
    const struct scheduler_limits *limits = d->limits;
    draft_give_decodes(d);
    draft_admit(d);
    /* A request of one token is admitted and decoded at once. */
    for (uint32_t i = 0; i < d->members; i++) {
        const struct scheduler_seq *s = seq_of(d, &d->member[i]);
        if (!d->member[i].out && !s->running && s->tokens - s->cached == 1) draft_give(d, i, 1);
    }
    if (limits->prompt_tokens && draft_decodes(d) && d->tokens_left > limits->prompt_tokens)
        d->tokens_left = limits->prompt_tokens;
    draft_give_prefills(d);
}

void scheduler_form_step(const struct scheduler_seq *seqs, uint32_t count,
                         const struct scheduler_limits *limits, struct scheduler_step *step)
{
    memset(step, 0, sizeof *step);
    struct draft d = {.seqs = seqs,
                      .count = count,
                      .limits = limits,
                      .pages_free = limits->pages_free,
                      .tokens_left = limits->step_tokens,
                      .step = step};
    for (uint32_t i = 0; i < count && d.members < SCHEDULER_ROWS_MAX; i++)
        if (seqs[i].running) draft_insert(&d, i);
    if (is_apart(&d))
        draft_form_apart(&d);
    else
        draft_form(&d);
    for (uint32_t i = 0; i < d.members; i++) {
        const struct member *m = &d.member[i];
        const struct scheduler_seq *s = seq_of(&d, m);
        if (m->out || m->given == 0) continue;
        const uint32_t end = s->cached + m->given, known = s->tokens - s->drafts;
        step->row[step->row_count++] = (struct scheduler_row){.seq = m->seq,
                                                              .start = s->cached,
                                                              .count = m->given,
                                                              .pages = m->pages,
                                                              .sample = end >= known,
                                                              .drafts = end > known ? end - known : 0};
        step->token_count += m->given;
    }
}

/* ---- when steps end ---- */

static struct pace_size *size_of(struct pace *pace, uint32_t tokens)
{
    return &pace->few[tokens <= ENGINE_FEW_TOKENS ? tokens : 0];
}

void pace_begin(struct pace *pace, uint32_t rows, uint32_t tokens, uint64_t now_us)
{
    struct pace_size *size = size_of(pace, tokens);
    if (rows != pace->rows) memset(pace->few, 0, sizeof pace->few);
    if (tokens > ENGINE_FEW_TOKENS && tokens != pace->tokens) *size = (struct pace_size){0};
    pace->rows = rows;
    pace->tokens = tokens;
    pace->begun_us = now_us;
    pace->from_us = pace->until_us = 0;
    if (!size->last_us || !size->before_us) return; /* once may have been chance */
    uint64_t sooner = size->last_us < size->before_us ? size->last_us : size->before_us;
    if (sooner > PACE_LONGEST_US) return;
    uint64_t later = size->last_us + size->before_us - sooner, margin = sooner / PACE_MARGIN;
    if (margin < PACE_MARGIN_US) margin = PACE_MARGIN_US;
    if (later - sooner > margin) later = sooner + margin; /* one of them was held up */
    pace->from_us = now_us + (sooner > margin ? sooner - margin : 0);
    pace->until_us = now_us + later + margin;
}

void pace_end(struct pace *pace, uint64_t now_us)
{
    struct pace_size *size = size_of(pace, pace->tokens);
    size->before_us = size->last_us;
    size->last_us = now_us > pace->begun_us ? now_us - pace->begun_us : 1;
    pace->from_us = pace->until_us = 0;
}

void pace_lost(struct pace *pace)
{
    *pace = (struct pace){0};
}
