/* Unit tests of daemon/steps/prefix.c: what a sequence is given, and a long random run in which every page
 * that a sequence refers to is held against the tokens in front of it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "common/shared/kv_layout.h"
#include "daemon/steps/prefix.h"

enum { PAGES = 48, PAGE = 4, CONTEXT = 80, ROW = CONTEXT / PAGE, SEQS = 9, OPERATIONS = 100000 };
/* Layers with a window: its tokens, and pages of windows */
enum { WINDOW = 7, WINDOWS = 36 };

/* The pool as workers would fill it: of each position a hash of all tokens up to there. */
struct pool {
    struct kv_pages pages;
    struct snapshots none; /* no state is fixed: test_snapshots.c */
    uint64_t cell[PAGES][PAGE];
    uint32_t row[SEQS][2 * ROW]; /* after the pages, those of windows */
    bool windowed;
    uint64_t window_cell[WINDOWS][PAGE];
    struct sequence seq[SEQS];
    bool open[SEQS];
    uint32_t random, found, forked;
    /* a session's file: pages of a sequence of scope 0 */
    uint32_t saved_tokens[CONTEXT], saved;
    uint64_t saved_cell[ROW][PAGE];
    uint32_t saves, restored, dropped, found_restored;
    bool apart;
    uint64_t ids;
};
enum { RESTORED = 2 }; /* the scope of what was restored, which sequences of scope 0 find, too */

static uint32_t draw(struct pool *p, uint32_t below)
{
    p->random = p->random * 1664525 + 1013904223;
    return (uint32_t)(((uint64_t)p->random * below) >> 32);
}

static void pool_open(struct pool *p)
{
    struct helm_err err = {0};
    memset(p, 0, sizeof *p);
    p->random = 7;
    if (kv_pages_init(&p->pages, PAGES, PAGE, &err)) fail_msg("%s", err.text);
}

static void pool_open_windows(struct pool *p)
{
    struct helm_err err = {0};
    const struct plan plan = {.page_tokens = PAGE,
                              .page_count = PAGES,
                              .window_tokens = WINDOW,
                              .window_page_count = WINDOWS};
    pool_open(p);
    p->windowed = true;
    p->none = (struct snapshots){.chooses = true, .page_tokens = PAGE, .prompt_every = 4 * PAGE};
    if (windows_init(&p->pages.windows, &plan, &p->pages.known, ROW, &err)) fail_msg("%s", err.text);
}

static void pool_close(struct pool *p)
{
    for (uint32_t i = 0; i < SEQS; i++) free(p->seq[i].tokens);
    kv_pages_free(&p->pages);
}

static void begin(struct pool *p, uint32_t i, const uint32_t *tokens, uint32_t count, uint64_t scope)
{
    uint32_t *copy = calloc(CONTEXT, sizeof *copy);
    assert_non_null(copy);
    memcpy(copy, tokens, count * sizeof *tokens);
    free(p->seq[i].tokens);
    p->seq[i] = (struct sequence){.tokens = copy,
                                  .token_count = count,
                                  .prompt_count = count,
                                  .scope = scope,
                                  .restored_scope = scope == 0 ? RESTORED : SEQUENCE_NO_SCOPE};
    p->seq[i].apart = p->apart;
    p->seq[i].id = ++p->ids;
    prefix_begin(&p->seq[i]);
    p->open[i] = true;
}

/* The cell of a position after `hash`: apart, one after the prompt is the sequence's own. */
static uint64_t cell_behind(const struct sequence *seq, uint32_t t, uint64_t hash)
{
    if (seq->apart && t == seq->prompt_count) hash ^= 1 + seq->id;
    return (hash ^ seq->tokens[t]) * UINT64_C(1099511628211);
}

/* A step of `count` tokens of it, of which the last one's successor is `next` if it is the last known. */
static void compute(struct pool *p, uint32_t i, uint32_t count, uint32_t next)
{
    struct sequence *seq = &p->seq[i];
    const uint32_t end = seq->cached + count, held = seq->pages;
    uint64_t hash = seq->scope;
    assert_int_equal(kv_pages_grow(&p->pages, p->row[i], &seq->pages, kv_pages_for(end, PAGE)), 0);
    windows_grow(&p->pages.windows, p->row[i], held, seq->pages);
    for (uint32_t t = 0; t < end; t++) {
        const uint32_t page = p->row[i][t / PAGE];
        hash = cell_behind(seq, t, hash);
        if (p->windowed && t >= seq->cached) p->window_cell[p->row[i][ROW + t / PAGE]][t % PAGE] = hash;
        if (t < seq->cached) {
            assert_int_equal(p->cell[page][t % PAGE], hash);
            continue;
        }
        assert_int_equal(kv_pages_holders(&p->pages, page),
                         1); /* no page is written that another one reads */
        assert_int_equal(prefix_index_number(&p->pages.known, page), 0);
        p->cell[page][t % PAGE] = hash;
    }
    seq->rung = end;
    prefix_computed(&p->pages, p->row[i], seq, end);
    prefix_pass(&p->pages, &p->none, p->row[i], seq);
    if (end == seq->token_count && end < CONTEXT) seq->tokens[seq->token_count++] = next;
}

static void leave(struct pool *p, uint32_t i)
{
    windows_leave(&p->pages.windows, p->row[i], p->seq[i].window_first, p->seq[i].pages, true);
    kv_pages_shrink(&p->pages, p->row[i], &p->seq[i].pages, 0);
    prefix_begin(&p->seq[i]);
    p->open[i] = false;
}

static const uint32_t prompt[] = {3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3, 2};

static void the_second_prompt_begins_behind_the_firsts_pages(void **state)
{
    (void)state;
    struct pool p;
    pool_open(&p);
    begin(&p, 0, prompt, 17, 0);
    assert_false(prefix_take(&p.pages, &p.none, p.row[0], &p.seq[0]));
    compute(&p, 0, 17, 1);
    begin(&p, 1, prompt, 17, 0);
    assert_true(prefix_take(&p.pages, &p.none, p.row[1], &p.seq[1]));
    assert_int_equal(p.seq[1].cached, 16);
    assert_int_equal(p.seq[1].found, 16);
    begin(&p, 2, prompt, 16, 0); /* its last token is wanted: the page that it is in is computed */
    assert_true(prefix_take(&p.pages, &p.none, p.row[2], &p.seq[2]));
    assert_int_equal(p.seq[2].cached, 12);
    begin(&p, 3, prompt, 17, 9);
    assert_false(prefix_take(&p.pages, &p.none, p.row[3], &p.seq[3])); /* another sequence's */
    begin(&p, 4, prompt, 17, SEQUENCE_NO_SCOPE);
    assert_false(prefix_take(&p.pages, &p.none, p.row[4], &p.seq[4]));
    compute(&p, 4, 17, 1); /* and leaves nothing */
    assert_int_equal(p.seq[4].page_end, SEQUENCE_NO_SCOPE);
    pool_close(&p);
}

/* Both begin: they have the same next page, and once one has it computed the other one goes on from there. */
static void two_at_once_go_on_from_what_one_has(void **state)
{
    (void)state;
    struct pool p;
    pool_open(&p);
    begin(&p, 0, prompt, 17, 0);
    begin(&p, 1, prompt, 15, 0);
    begin(&p, 2, prompt + 1, 15, 0);
    assert_int_equal(prefix_next_page(&p.pages, &p.none, &p.seq[0]),
                     prefix_next_page(&p.pages, &p.none, &p.seq[1]));
    assert_int_not_equal(prefix_next_page(&p.pages, &p.none, &p.seq[0]),
                         prefix_next_page(&p.pages, &p.none, &p.seq[2]));
    compute(&p, 0, 9, 0);
    assert_true(prefix_take(&p.pages, &p.none, p.row[1], &p.seq[1]));
    assert_int_equal(p.seq[1].cached, 8);
    assert_int_equal(p.seq[1].found, 8);
    /* the first one is in the middle of the page that the other one begins */
    assert_int_not_equal(prefix_next_page(&p.pages, &p.none, &p.seq[1]), 0);
    assert_int_equal(prefix_next_page(&p.pages, &p.none, &p.seq[0]),
                     prefix_next_page(&p.pages, &p.none, &p.seq[1]));
    compute(&p, 1, 6, 0);
    assert_true(prefix_take(&p.pages, &p.none, p.row[0],
                            &p.seq[0])); /* the other one's page, for its own beginning of it */
    assert_int_equal(p.seq[0].cached, 12);
    assert_int_equal(p.seq[0].found, 3);
    assert_int_equal(kv_pages_holders(&p.pages, p.row[0][2]), 2);
    assert_int_equal(p.pages.free_count, PAGES - 4);
    compute(&p, 0, 5, 1);
    assert_false(prefix_take(&p.pages, &p.none, p.row[1], &p.seq[1])); /* 15 tokens end in the fourth page */
    assert_int_equal(p.seq[1].cached, 14);
    assert_int_equal(p.seq[1].found, 8);
    assert_int_equal(prefix_next_page(&p.pages, &p.none, &p.seq[1]), 0);
    pool_close(&p);
}

/* Pages that it computed itself, and finds again after it had to leave, are no gift. */
static void own_pages_are_found_again(void **state)
{
    (void)state;
    struct pool p;
    pool_open(&p);
    begin(&p, 0, prompt, 17, 0);
    compute(&p, 0, 10, 0);
    leave(&p, 0);
    assert_true(prefix_take(&p.pages, &p.none, p.row[0], &p.seq[0]));
    assert_int_equal(p.seq[0].cached, 8);
    assert_int_equal(p.seq[0].found, 0);
    compute(&p, 0, 9, 1);
    prefix_forget(&p.pages, p.row[0], &p.seq[0]);
    begin(&p, 1, prompt, 17, 0);
    assert_false(prefix_take(&p.pages, &p.none, p.row[1], &p.seq[1]));
    pool_close(&p);
}

/* A sequence that does not share finds its own pages, too, after it had to leave; and no other does. */
static void who_has_to_leave_keeps_its_pages_to_itself(void **state)
{
    (void)state;
    struct pool p;
    pool_open(&p);
    for (uint32_t i = 0; i < 2; i++) {
        begin(&p, i, prompt, 17, SEQUENCE_NO_SCOPE);
        p.seq[i].id = 5 + i;
        compute(&p, i, 11 - i * 3, 0);
        prefix_keep(&p.pages, p.row[i], &p.seq[i]);
        assert_int_equal(p.seq[i].cached, 11 - i * 3);
        leave(&p, i);
    }
    for (uint32_t i = 0; i < 2; i++) {
        assert_true(prefix_take(&p.pages, &p.none, p.row[i], &p.seq[i]));
        assert_int_equal(p.seq[i].cached, 8);
        assert_int_equal(p.seq[i].found, 0);
    }
    assert_int_not_equal(p.row[0][0], p.row[1][0]);
    begin(&p, 2, prompt, 17, SEQUENCE_NO_SCOPE);
    assert_false(prefix_take(&p.pages, &p.none, p.row[2], &p.seq[2]));
    begin(&p, 3, prompt, 17, 0);
    assert_false(prefix_take(&p.pages, &p.none, p.row[3], &p.seq[3]));
    pool_close(&p);
}

/* A prompt goes on where its window still is: others took the pages of windows in front of it. */
static void prompts_go_on_where_their_window_is(void **state)
{
    (void)state;
    struct pool p;
    uint32_t row[2][2 * ROW], held[2] = {0};
    pool_open_windows(&p);
    begin(&p, 0, prompt, 17, 0);
    compute(&p, 0, 17, 1);
    assert_int_equal(p.seq[0].window_first, 2); /* position 17 sees those from 11 on */
    begin(&p, 1, prompt, 17, 0);
    assert_true(prefix_take(&p.pages, &p.none, p.row[1], &p.seq[1]));
    assert_int_equal(p.seq[1].cached, 16);
    assert_int_equal(p.seq[1].window_first, 2);
    leave(&p, 0);
    leave(&p, 1);
    for (uint32_t i = 0; i < 2; i++) { /* all pages of windows but two of the four that rest */
        assert_int_equal(kv_pages_grow(&p.pages, row[i], &held[i], (WINDOWS - 2) / 2), 0);
        windows_grow(&p.pages.windows, row[i], 0, held[i]);
    }
    assert_int_equal(p.pages.windows.dropped, 2);
    begin(&p, 2, prompt, 13, 0);
    assert_false(prefix_take(&p.pages, &p.none, p.row[2], &p.seq[2]));
    assert_int_equal(kv_pages_known(&p.pages, 3, prompt, 0), 3);
    begin(&p, 3, prompt, 17, 0);
    assert_true(prefix_take(&p.pages, &p.none, p.row[3], &p.seq[3]));
    assert_int_equal(p.seq[3].cached, 16);
    for (uint32_t i = 0; i < 2; i++) windows_leave(&p.pages.windows, row[i], 0, held[i], false);
    compute(&p, 2, 13, 1); /* it has them again, for others too */
    begin(&p, 4, prompt, 13, 0);
    assert_true(prefix_take(&p.pages, &p.none, p.row[4], &p.seq[4]));
    assert_int_equal(p.seq[4].cached, 12);
    pool_close(&p);
}

/* ---- whatever happens ---- */

/* Each sequence has the cells that its next token sees, and no page of windows is lost. */
static void check_windows(const struct pool *p)
{
    const struct windows *w = &p->pages.windows;
    uint32_t holders[WINDOWS] = {0}, idle = 0, resting = 0;
    for (uint32_t i = 0; i < SEQS; i++) {
        const struct sequence *seq = &p->seq[i];
        uint64_t hash = seq->scope;
        for (uint32_t k = seq->window_first; k < seq->pages; k++) holders[p->row[i][ROW + k]]++;
        for (uint32_t t = 0; t < seq->cached; t++) {
            hash = cell_behind(seq, t, hash);
            if (t + WINDOW <= seq->cached) continue;
            assert_true(t / PAGE >= seq->window_first);
            assert_int_equal(p->window_cell[p->row[i][ROW + t / PAGE]][t % PAGE], hash);
        }
    }
    for (uint32_t i = 0; i < WINDOWS; i++) {
        const uint32_t page = w->at[i].page;
        assert_int_equal(w->at[i].holders, holders[i]);
        idle += holders[i] == 0;
        resting += holders[i] == 0 && page != WINDOWS_NONE;
        if (page == WINDOWS_NONE) continue;
        assert_int_equal(w->of[page], i);
        if (!holders[i]) assert_true(prefix_index_number(&p->pages.known, page));
    }
    assert_int_equal(w->free_count, idle);
    assert_int_equal(w->resting, resting);
}

static void check(const struct pool *p)
{
    if (p->windowed) check_windows(p);
    uint32_t holders[PAGES] = {0}, idle = 0, resting = 0;
    bool empty[PAGES] = {false};
    for (uint32_t i = 0; i < SEQS; i++)
        for (uint32_t k = 0; k < p->seq[i].pages; k++) holders[p->row[i][k]]++;
    for (uint32_t page = 0; page < PAGES; page++) {
        assert_int_equal(kv_pages_holders(&p->pages, page), holders[page]);
        idle += holders[page] == 0;
        resting += holders[page] == 0 && prefix_index_number(&p->pages.known, page);
    }
    assert_int_equal(p->pages.free_count, idle);
    assert_int_equal(p->pages.known.resting, resting);
    for (uint32_t i = 0; i < idle - resting; i++) { /* the others are on the stack, once */
        const uint32_t page = p->pages.stack[i];
        assert_true(holders[page] == 0 && !prefix_index_number(&p->pages.known, page) && !empty[page]);
        empty[page] = true;
    }
    for (uint32_t i = 0; i < SEQS; i++) {
        const struct sequence *seq = &p->seq[i];
        uint64_t hash = seq->scope;
        for (uint32_t t = 0; t < seq->cached; t++) {
            hash = cell_behind(seq, t, hash);
            assert_int_equal(p->cell[p->row[i][t / PAGE]][t % PAGE], hash);
        }
    }
}

/* A prompt of its own, or the beginning of another one and then other tokens. */
static void admit(struct pool *p, uint32_t i)
{
    const struct sequence *other = &p->seq[draw(p, SEQS)];
    uint32_t tokens[CONTEXT], count = 1 + draw(p, CONTEXT / 2), same = 0;
    if (other->tokens && draw(p, 4)) {
        same = draw(p, other->token_count + 1);
        if (same > count) count = same;
        memcpy(tokens, other->tokens, same * sizeof *tokens);
        p->forked++;
    }
    for (uint32_t t = same; t < count; t++) tokens[t] = draw(p, 3);
    begin(p, i, tokens, count, draw(p, 5) ? 0 : 1);
}

/* As sessions.c does it: page by page, each held while it is read. */
static void save(struct pool *p, const struct sequence *seq)
{
    const uint64_t scope[2] = {0, RESTORED};
    const uint32_t whole = seq->token_count / PAGE;
    const struct prefix_run run = {.tokens = seq->tokens, .count = whole, .edge = UINT32_MAX};
    uint64_t end = prefix_better_scope(&p->pages, &p->none, &run, scope);
    uint32_t front = PREFIX_NO_PAGE;
    memcpy(p->saved_tokens, seq->tokens, whole * PAGE * sizeof *seq->tokens);
    for (p->saved = 0; p->saved < whole; p->saved++) {
        uint32_t page, held = 0;
        kv_pages_take_known(&p->pages, &page, &held, 1, seq->tokens + (size_t)p->saved * PAGE, &end);
        if (!held) break;
        memcpy(p->saved_cell[p->saved], p->cell[page], sizeof p->cell[page]);
        kv_pages_leave(&p->pages, page, front);
        front = page;
        p->saves++;
    }
}

/* Further pages are always given away before those in front of them, and no page of its own for the next
 * one. */
static void restore(struct pool *p)
{
    uint64_t end = RESTORED;
    uint32_t front = PREFIX_NO_PAGE;
    for (uint32_t i = 0; i < p->saved; i++) {
        const uint32_t *tokens = p->saved_tokens + (size_t)i * PAGE;
        uint32_t page = prefix_index_find(&p->pages.known, end, tokens);
        if (page == PREFIX_NO_PAGE) {
            page = kv_pages_take_empty(&p->pages, front);
            if (page == PREFIX_NO_PAGE) {
                p->dropped += p->saved - i;
                assert_int_equal(kv_pages_known(&p->pages, p->saved, p->saved_tokens, RESTORED), i);
                return;
            }
            memcpy(p->cell[page], p->saved_cell[i], sizeof p->cell[page]);
            const uint64_t before = end;
            end = kv_pages_make_known(&p->pages, page, before, tokens);
            kv_pages_leave(&p->pages, page, front);
            p->restored++;
        } else {
            uint32_t held = 0, again;
            kv_pages_take_known(&p->pages, &again, &held, 1, tokens, &end);
            kv_pages_leave(&p->pages, again, front);
        }
        front = page;
    }
    assert_int_equal(kv_pages_known(&p->pages, p->saved, p->saved_tokens, RESTORED), p->saved);
}

static bool found_restored(const struct pool *p, uint32_t i)
{
    return p->seq[i].pages && p->pages.known.page[p->row[i][0]].before == RESTORED;
}

static void operate(struct pool *p)
{
    const uint32_t i = draw(p, SEQS), what = draw(p, 1030);
    struct sequence *seq = &p->seq[i];
    if (what >= 1000) {
        if (what >= 1015)
            restore(p);
        else if (seq->tokens && seq->scope == 0)
            save(p, seq);
        return;
    }
    if (!p->open[i]) {
        if (seq->token_count == 0 || seq->token_count >= CONTEXT || draw(p, 3))
            admit(p, i);
        else
            p->open[i] = true; /* it had to leave, and comes back */
        return;
    }
    if (what < 60 || seq->token_count >= CONTEXT) { /* ends, is cancelled, or has to leave */
        if (what % 2) prefix_keep(&p->pages, p->row[i], seq);
        leave(p, i);
    } else if (what < 62) { /* the workers die */
        for (uint32_t k = 0; k < SEQS; k++) leave(p, k);
        memset(p->cell, 0xff, sizeof p->cell);
        memset(p->window_cell, 0xff, sizeof p->window_cell);
        kv_pages_forget_all(&p->pages);
    } else if (what < 66) {
        prefix_forget(&p->pages, p->row[i], seq);
    } else {
        const bool took = prefix_take(&p->pages, &p->none, p->row[i], seq);
        p->found += took;
        p->found_restored += took && found_restored(p, i);
        const uint32_t room = (seq->pages + p->pages.free_count) * PAGE - seq->cached;
        uint32_t count = 1 + draw(p, 20);
        if (count > seq->token_count - seq->cached) count = seq->token_count - seq->cached;
        if (count <= room)
            compute(p, i, count, draw(p, 3));
        else
            leave(p, i);
    }
}

static void live(bool apart, bool windowed)
{
    struct pool p;
    (windowed ? pool_open_windows : pool_open)(&p);
    p.apart = apart;
    for (uint32_t n = 0; n < OPERATIONS; n++) {
        operate(&p);
        if (n % 8 == 0) check(&p);
    }
    for (uint32_t i = 0; i < SEQS; i++) leave(&p, i);
    check(&p);
    assert_int_equal(p.pages.free_count, PAGES);
    assert_true(p.found > OPERATIONS / 50 && p.forked > OPERATIONS / 50);
    assert_true(p.pages.evicted > OPERATIONS / 50);
    assert_true(p.saves > OPERATIONS / 100 && p.restored > OPERATIONS / 100);
    if (windowed) assert_true(p.pages.windows.dropped > OPERATIONS / 50);
    if (windowed) assert_int_equal(p.pages.windows.free_count, WINDOWS);
    assert_true(p.dropped > 0 && (windowed || p.found_restored > OPERATIONS / 1000));
    pool_close(&p);
}

static void every_page_holds_the_tokens_of_whoever_refers_to_it(void **state)
{
    (void)state;
    live(false, false);
    live(false, true);
}

/* The same in an invariant plan; and pages after prompts belong to the sequence that computed them. */
static void pages_behind_prompts_are_their_sequences_own(void **state)
{
    (void)state;
    struct pool p;
    pool_open(&p);
    p.apart = true;
    begin(&p, 0, prompt, 10,
          0); /* pages of four: two of the prompt, the third has the first token after it */
    compute(&p, 0, 10, prompt[10]);
    for (uint32_t t = 11; t < 16; t++) compute(&p, 0, 1, prompt[t]);
    assert_int_equal(p.seq[0].cached, 15);
    begin(&p, 1, prompt, 17, 0); /* a prompt of the same tokens */
    assert_true(prefix_take(&p.pages, &p.none, p.row[1], &p.seq[1]));
    assert_int_equal(p.seq[1].cached, 8);
    compute(&p, 1, 9, 1);
    prefix_keep(&p.pages, p.row[0], &p.seq[0]); /* it gives way, and finds its own again */
    leave(&p, 0);
    assert_true(prefix_take(&p.pages, &p.none, p.row[0], &p.seq[0]));
    assert_int_equal(p.seq[0].cached, 12);
    assert_int_not_equal(p.row[0][2], p.row[1][2]);
    compute(&p, 0, 4, 1);
    begin(&p, 2, prompt, 17, 0); /* the prompt's third and fourth page, not the other one's */
    assert_true(prefix_take(&p.pages, &p.none, p.row[2], &p.seq[2]));
    assert_int_equal(p.seq[2].cached, 16);
    assert_int_equal(p.row[2][2], p.row[1][2]);
    pool_close(&p);
    live(true, false);
    live(true, true);
}

/* Prompts of different lists of an invariant plan find nothing of each other's. */
static void lists_have_scopes_of_their_own(void **state)
{
    (void)state;
    assert_int_equal(prefix_scope(PREFIX_ON, 7, 0), 0);
    assert_int_not_equal(prefix_scope(PREFIX_ON, 7, 1), prefix_scope(PREFIX_ON, 7, 2));
    assert_int_not_equal(prefix_scope(PREFIX_PEER, 7, 1), prefix_scope(PREFIX_PEER, 7, 0));
    assert_int_equal(prefix_scope(PREFIX_OFF, 7, 1), SEQUENCE_NO_SCOPE);
    assert_int_equal(prefix_scope(PREFIX_PEER, 0, 1), SEQUENCE_NO_SCOPE);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_second_prompt_begins_behind_the_firsts_pages),
        cmocka_unit_test(two_at_once_go_on_from_what_one_has),
        cmocka_unit_test(own_pages_are_found_again),
        cmocka_unit_test(who_has_to_leave_keeps_its_pages_to_itself),
        cmocka_unit_test(prompts_go_on_where_their_window_is),
        cmocka_unit_test(every_page_holds_the_tokens_of_whoever_refers_to_it),
        cmocka_unit_test(pages_behind_prompts_are_their_sequences_own),
        cmocka_unit_test(lists_have_scopes_of_their_own),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
