/* Unit tests of daemon/steps/snapshots.c with prefix.c: where rows are cut, and a long random run in which the state that every
 * row begins with is held against the tokens in front of it, as workers would have made it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "daemon/steps/prefix.h"
#include "tests/written_plans.h"

enum {
    PAGES = 96,
    PAGE = 4,
    CONTEXT = 160,
    ROW = CONTEXT / PAGE,
    SEQS = 6,
    SNAPSHOTS = 7,
    OPERATIONS = 60000
};

/* A step's row that was rung and is not done. */
struct flying {
    struct step_row row;
    bool left; /* its sequence has left the slot */
};

struct rig {
    struct kv_pages pages;
    struct snapshots snapshots;
    uint32_t table[SEQS][ROW];
    struct sequence seq[SEQS];
    bool open[SEQS];
    uint64_t slot[SEQS],
        snapshot[SNAPSHOTS + 1]; /* what workers keep: a hash of all tokens up to a position */
    struct flying flying[SEQS];
    uint32_t random, from_snapshot, made, lost, drafted, gone_back;
    bool drafts; /* rows of answers have some */
};

static uint32_t draw(struct rig *r, uint32_t below)
{
    r->random = r->random * 1664525 + 1013904223;
    return (uint32_t)(((uint64_t)r->random * below) >> 32);
}

static uint64_t after(uint64_t hash, uint32_t token)
{
    return (hash ^ (token + 1)) * UINT64_C(1099511628211);
}

static uint64_t state_of(const struct sequence *seq, uint32_t count)
{
    uint64_t hash = 0;
    for (uint32_t i = 0; i < count; i++) hash = after(hash, seq->tokens[i]);
    return hash;
}

static void rig_open(struct rig *r)
{
    static struct plan_unit unit[WRITTEN_UNITS(2)] = {
        [0] = {.state = {.kind = STATE_FIXED, .bytes = STATE_ALIGN}}, [2] = {.state = {.kind = STATE_PAGES}}};
    const struct plan plan = {.layers = 2, .unit = unit, .has_states = true, .state_snapshots = SNAPSHOTS};
    struct helm_err err = {0};
    memset(r, 0, sizeof *r);
    r->random = 11;
    if (kv_pages_init(&r->pages, PAGES, PAGE, &err) || snapshots_init(&r->snapshots, &plan, PAGE, &err))
        fail_msg("%s", err.text);
    assert_true(r->snapshots.on);
    r->snapshots.prompt_every = 4 * PAGE; /* more of them than in daemons */
    r->snapshots.answer_every = 2 * PAGE;
}

static void rig_close(struct rig *r)
{
    for (uint32_t i = 0; i < SEQS; i++) free(r->seq[i].tokens);
    snapshots_free(&r->snapshots);
    kv_pages_free(&r->pages);
}

static void begin(struct rig *r, uint32_t i, const uint32_t *tokens, uint32_t count)
{
    uint32_t *copy = calloc(CONTEXT, sizeof *copy);
    assert_non_null(copy);
    memcpy(copy, tokens, count * sizeof *tokens);
    free(r->seq[i].tokens);
    r->seq[i] = (struct sequence){.id = i + 1,
                                  .tokens = copy,
                                  .token_count = count,
                                  .prompt_count = count,
                                  .restored_scope = SEQUENCE_NO_SCOPE};
    prefix_begin(&r->seq[i]);
    r->open[i] = true;
}

static void mark_at_random(struct rig *r, struct sequence *seq)
{
    while (draw(r, 3)) { /* rising, some near each other */
        const uint32_t before = seq->mark_count ? seq->mark[seq->mark_count - 1] : 0,
                       mark = before + 1 + draw(r, 40);
        if (mark > seq->prompt_count) break;
        seq->mark[seq->mark_count++] = mark;
    }
    snapshots_mark(&r->snapshots, seq);
}

static bool take(struct rig *r, uint32_t i)
{
    return prefix_take(&r->pages, &r->snapshots, r->table[i], &r->seq[i]);
}

static uint32_t left_by(const struct step_row *row)
{
    uint32_t count = 0;
    while (count < ARENA_ROW_STATES && row->left[count].to) count++;
    return count;
}

/* Drafts for a row of an answer that ends with its newest token, behind the known ones. */
static uint32_t draft_at_random(struct rig *r, struct sequence *seq, uint32_t end)
{
    if (!r->drafts || end != seq->token_count || end <= seq->prompt_count || !snapshots_room(&r->snapshots))
        return 0;
    uint32_t drafts = draw(r, 2) * draw(r, 8);
    if (drafts > CONTEXT - 1 - end) drafts = CONTEXT - 1 - end;
    for (uint32_t t = 0; t < drafts; t++) seq->tokens[end + t] = draw(r, 5);
    if (drafts) snapshots_reserve(&r->snapshots, seq);
    return drafts;
}

/* Rings a row of at most `most` tokens; workers compute it. False: there is no room, or nothing to do. */
static bool ring(struct rig *r, uint32_t i, uint32_t most)
{
    struct sequence *seq = &r->seq[i];
    uint32_t count = seq->token_count - seq->rung;
    const uint32_t cut = snapshots_cut(&r->snapshots, seq);
    if (cut > seq->rung && count > cut - seq->rung) count = cut - seq->rung;
    if (count > most) count = most;
    const uint32_t room = (seq->pages + r->pages.free_count) * PAGE;
    const uint32_t drafts =
        count && seq->rung + count + 8 <= room ? draft_at_random(r, seq, seq->rung + count) : 0;
    count += drafts;
    const uint32_t end = seq->rung + count;
    if (!count || kv_pages_grow(&r->pages, r->table[i], &seq->pages, (end + PAGE - 1) / PAGE)) return false;
    struct step_row row = {.slot = i, .start = seq->rung, .count = count, .drafts = drafts};
    r->drafted += drafts > 0;
    snapshots_row(&r->snapshots, seq, &row);
    if (row.start == 0) assert_int_equal(row.state_from, STATE_NO_SNAPSHOT);
    if (row.start == 0) r->slot[i] = 0;
    if (row.state_from) r->slot[i] = r->snapshot[row.state_from];
    r->from_snapshot += row.state_from != 0;
    assert_true(r->slot[i] == state_of(seq, row.start)); /* the very state of the tokens in front of it */
    uint32_t left = 0;
    for (uint32_t t = row.start; t < end; t++) {
        r->slot[i] = after(r->slot[i], seq->tokens[t]);
        if (left < ARENA_ROW_STATES && row.left[left].to && t + 1 == row.start + row.left[left].at)
            r->snapshot[row.left[left++].to] = r->slot[i];
    }
    assert_int_equal(left, left_by(&row)); /* they rise, and end with the row */
    r->made += left;
    seq->rung = end;
    r->flying[i] = (struct flying){.row = row};
    return true;
}

/* The row is done; `more`: a token follows what it computed. */
static void done(struct rig *r, uint32_t i, bool ok, bool more)
{
    struct flying *f = &r->flying[i];
    struct sequence *seq = f->left ? NULL : &r->seq[i];
    if (!f->row.count) return;
    uint32_t computed = f->row.start + f->row.count;
    if (seq &&
        f->row.drafts) { /* so many of them were right; the state is that in front of them, unless all were */
        const uint32_t known = computed - f->row.drafts, kept = draw(r, f->row.drafts + 1);
        ok = true;
        seq->token_count += kept;
        seq->redo = known + kept;
        computed = seq->rung = kept < f->row.drafts ? known : computed;
        r->gone_back += kept < f->row.drafts;
        more = true;
    }
    if (seq && ok) prefix_computed(&r->pages, r->table[i], seq, computed);
    if (seq && !ok) prefix_forget(&r->pages, r->table[i], seq);
    snapshots_done(&r->snapshots, &f->row, ok ? seq : NULL);
    if (seq) assert_int_equal(seq->state_at % PAGE, 0); /* pages from there on have their tokens */
    const bool goes_on = f->row.drafts || (seq && seq->rung == seq->token_count);
    if (seq && more && goes_on && seq->token_count < CONTEXT) seq->tokens[seq->token_count++] = draw(r, 5);
    *f = (struct flying){0};
}

static void leave(struct rig *r, uint32_t i)
{
    r->flying[i].left = r->flying[i].row.count > 0;
    done(r, i, true, false); /* the slot is not reused before that */
    kv_pages_shrink(&r->pages, r->table[i], &r->seq[i].pages, 0);
    snapshots_leave(&r->snapshots, &r->seq[i]);
    prefix_begin(&r->seq[i]);
}

static void lose(struct rig *r, bool intact)
{
    for (uint32_t i = 0; i < SEQS; i++) {
        r->flying[i] = (struct flying){0};
        r->slot[i] = UINT64_C(0xdead); /* of no position */
        r->seq[i].state_from = STATE_NO_SNAPSHOT;
        if (!r->open[i]) continue;
        kv_pages_shrink(&r->pages, r->table[i], &r->seq[i].pages, 0);
        prefix_begin(&r->seq[i]);
    }
    if (!intact) kv_pages_forget_all(&r->pages);
    snapshots_lost(&r->snapshots, intact);
    r->lost++;
}

/* Nothing is pinned but by rows in flight and sequences that are about to begin. */
static void check_pins(const struct rig *r)
{
    uint32_t pins = 0, expected = 0;
    for (uint32_t s = 1; s <= SNAPSHOTS; s++) pins += r->snapshots.snapshot[s].pins;
    for (uint32_t i = 0; i < SEQS; i++)
        expected +=
            (r->flying[i].row.state_from != 0) + left_by(&r->flying[i].row) + (r->seq[i].state_from != 0);
    assert_int_equal(pins, expected);
}

static void operate(struct rig *r)
{
    const uint32_t i = draw(r, SEQS), what = draw(r, 100);
    uint32_t prompt[CONTEXT];
    if (!r->open[i]) {
        const uint32_t count = 1 + draw(r, CONTEXT / 2), like = draw(r, SEQS);
        for (uint32_t t = 0; t < count; t++)
            prompt[t] = r->seq[like].tokens && t < r->seq[like].token_count && draw(r, 60)
                            ? r->seq[like].tokens[t]
                            : draw(r, 5);
        begin(r, i, prompt, count);
        mark_at_random(r, &r->seq[i]);
    } else if (what < 80) {
        done(r, i, what != 0, true);
        r->open[i] = r->seq[i].token_count < CONTEXT; /* the context is full: it ends */
        if (!r->open[i]) {
            leave(r, i);
            return;
        }
        (void)take(r, i);
        (void)ring(r, i, 1 + draw(r, 30));
    } else if (what < 92) {
        done(r, i, true, true);
    } else if (what < 95) { /* gives its slot to an older one, and goes on later */
        done(r, i, true, true);
        prefix_keep(&r->pages, r->table[i], &r->seq[i]);
        leave(r, i);
    } else if (what < 98) {
        leave(r, i);
        r->open[i] = false;
    } else if (draw(r, 40) == 0) {
        lose(r, draw(r, 2));
    }
}

static void every_row_begins_with_its_tokens_state(void **state)
{
    (void)state;
    struct rig *r = malloc(sizeof *r);
    assert_non_null(r);
    rig_open(r);
    r->drafts = true;
    for (uint32_t n = 0; n < OPERATIONS; n++) {
        operate(r);
        if (n % 16 == 0) check_pins(r);
    }
    assert_true(r->from_snapshot > 500 && r->made > 1000 && r->lost > 5);
    assert_true(r->drafted > 1000 && r->gone_back > 500);
    for (uint32_t i = 0; i < SEQS; i++)
        if (r->open[i]) leave(r, i);
    check_pins(r);
    rig_close(r);
    free(r);
}

/* The row leaves snapshots after these of its tokens, of which the last is 0. */
static void check_left(const struct rig *r, uint32_t i, const uint32_t *at)
{
    const struct step_row *row = &r->flying[i].row;
    for (uint32_t n = 0; n < left_by(row); n++) assert_int_equal(row->left[n].at, *at++);
    assert_int_equal(*at, 0);
}

/* No position needs a row of its own. */
static void rows_leave_snapshots_as_they_pass(void **state)
{
    (void)state;
    struct rig r;
    uint32_t tokens[CONTEXT];
    rig_open(&r);
    for (uint32_t t = 0; t < CONTEXT; t++) tokens[t] = t % 5;
    begin(&r, 0, tokens, 41);
    assert_true(ring(&r, 0, CONTEXT));
    assert_int_equal(r.seq[0].rung, 41);
    check_left(&r, 0, (uint32_t[]){16, 32, 40, 0});
    done(&r, 0, true, true);
    begin(&r, 1, tokens, 41);
    assert_true(take(&r, 1));
    assert_int_equal(r.seq[1].cached, 40);
    assert_true(ring(&r, 1, CONTEXT)); /* holds the state against the tokens */
    begin(&r, 2, tokens, 41);          /* a step of fewer tokens does not reach it */
    for (uint32_t t = 0; t < 41; t++) r.seq[2].tokens[t] = 4 - t % 5;
    assert_true(ring(&r, 2, 6));
    check_left(&r, 2, (uint32_t[]){0});
    done(&r, 2, true, false);
    for (uint32_t i = 0; i < 3; i++) leave(&r, i);
    check_pins(&r);
    /* more positions than a row can leave: it ends at the last one that it can */
    begin(&r, 0, tokens, CONTEXT);
    for (uint32_t t = 0; t < CONTEXT; t++) r.seq[0].tokens[t] = 3 - t % 3;
    for (uint32_t from = 0; from < CONTEXT; from = r.seq[0].rung) {
        const uint32_t positions = (CONTEXT - 1) / 16 - from / 16, end = from + 16 * ARENA_ROW_STATES;
        assert_true(ring(&r, 0, CONTEXT));
        assert_int_equal(r.seq[0].rung, positions > ARENA_ROW_STATES ? end : CONTEXT);
        done(&r, 0, true, false);
    }
    leave(&r, 0);
    check_pins(&r);
    rig_close(&r);
}

/* Where all but one are in use by others, a row leaves its last one. */
static void of_few_the_last_is_left(void **state)
{
    (void)state;
    struct rig r;
    uint32_t tokens[41] = {0};
    rig_open(&r);
    for (uint32_t i = 1; i < SNAPSHOTS; i++) assert_int_not_equal(snapshots_take_empty(&r.snapshots), 0);
    begin(&r, 0, tokens, 41);
    assert_true(ring(&r, 0, CONTEXT));
    check_left(&r, 0, (uint32_t[]){40, 0});
    done(&r, 0, true, false);
    begin(&r, 1, tokens, 41);
    assert_true(take(&r, 1));
    assert_int_equal(r.seq[1].cached, 40);
    for (uint32_t i = 0; i < 2; i++) leave(&r, i);
    rig_close(&r);
}

static void prompts_are_found_where_snapshots_were_taken(void **state)
{
    (void)state;
    struct rig r;
    rig_open(&r);
    uint32_t tokens[CONTEXT];
    for (uint32_t t = 0; t < CONTEXT; t++) tokens[t] = t % 5;
    begin(&r, 0, tokens, 41);
    assert_true(ring(&r, 0, CONTEXT));
    done(&r, 0, true, true);
    begin(&r, 1, tokens, 41); /* the last token is computed in any case */
    assert_true(take(&r, 1));
    assert_int_equal(r.seq[1].cached, 40);
    assert_int_equal(r.seq[1].found, 40);
    begin(&r, 2, tokens, 40);
    assert_true(take(&r, 2));
    assert_int_equal(r.seq[2].cached, 32); /* its pages go on to 36, where there is no snapshot */
    for (uint32_t t = 20; t < 41; t++) tokens[t]++;
    begin(&r, 3, tokens, 41);
    assert_true(take(&r, 3));
    assert_int_equal(r.seq[3].cached, 16);
    for (uint32_t i = 0; i < 4; i++) leave(&r, i);
    check_pins(&r);
    /* of an answer the newest one stays */
    begin(&r, 0, tokens, 20);
    const uint32_t before = snapshots_known(&r.snapshots);
    while (r.seq[0].token_count < 60) {
        (void)take(&r, 0);
        assert_true(ring(&r, 0, CONTEXT));
        done(&r, 0, true, true);
    }
    assert_int_equal(snapshots_known(&r.snapshots), before + 1);
    leave(&r, 0);
    rig_close(&r);
}

/* Where a prompt that was given marks leaves snapshots; `at` ends with 0. */
static void check_marks(const uint32_t *marks, uint32_t count, uint32_t prompt, const uint32_t *at)
{
    struct rig r;
    uint32_t tokens[CONTEXT];
    rig_open(&r);
    r.snapshots.prompt_every = 128 * PAGE;
    for (uint32_t t = 0; t < CONTEXT; t++) tokens[t] = t % 5;
    begin(&r, 0, tokens, prompt);
    if (count) memcpy(r.seq[0].mark, marks, count * sizeof *marks);
    r.seq[0].mark_count = count;
    snapshots_mark(&r.snapshots, &r.seq[0]);
    assert_true(ring(&r, 0, CONTEXT));
    assert_int_equal(r.seq[0].rung, prompt);
    check_left(&r, 0, at);
    done(&r, 0, true, true);
    leave(&r, 0);
    check_pins(&r);
    rig_close(&r);
}

static void marks_are_positions_of_snapshots(void **state)
{
    (void)state;
    /* a mark leaves a snapshot at the end of the page in front of it, unless another is near */
    check_marks((uint32_t[]){70, 100, 139}, 3, 150, (uint32_t[]){68, 136, 148, 0});
    check_marks((uint32_t[]){71, 72, 150}, 3, 150, (uint32_t[]){68, 148, 0});
    check_marks((uint32_t[]){3, 63, 150}, 3, 150, (uint32_t[]){148, 0});
    check_marks(NULL, 0, 150, (uint32_t[]){148, 0});
}

static void many_marks_are_thinned(void **state)
{
    (void)state;
    struct rig r;
    uint32_t tokens[CONTEXT] = {0};
    rig_open(&r);
    r.snapshots.prompt_every = 8 * PAGE;
    begin(&r, 0, tokens, CONTEXT);
    for (uint32_t i = 0; i < 39; i++) r.seq[0].mark[i] = (i + 1) * PAGE + 1; /* 39: all pages' ends but one */
    r.seq[0].mark_count = 39;
    snapshots_mark(&r.snapshots, &r.seq[0]);
    static const uint32_t kept[] = {1, 4, 12, 20, 28, 36, 37, 38, 39};
    assert_int_equal(r.seq[0].mark_count, sizeof kept / sizeof *kept);
    for (size_t i = 0; i < sizeof kept / sizeof *kept; i++)
        assert_int_equal(r.seq[0].mark[i], kept[i] * PAGE);
    for (uint32_t i = 0; i < REQUEST_MARKS_MAX; i++) r.seq[0].mark[i] = i + 1; /* as many as there may be */
    r.seq[0].mark_count = REQUEST_MARKS_MAX;
    snapshots_mark(&r.snapshots, &r.seq[0]);
    assert_int_equal(r.seq[0].mark[r.seq[0].mark_count - 1], 64);
    leave(&r, 0);
    rig_close(&r);
}

/* Known and not yet used: what a session restores. */
static void put(struct rig *r, uint64_t number, uint32_t end)
{
    const uint32_t snapshot = snapshots_take_empty(&r->snapshots);
    assert_int_not_equal(snapshot, STATE_NO_SNAPSHOT);
    snapshots_make_known(&r->snapshots, snapshot, number, end);
}

static bool has(const struct rig *r, uint32_t seq, uint32_t end)
{
    struct sequence *s = (struct sequence *)&r->seq[seq];
    const struct prefix_run run = {.tokens = s->tokens, .count = end / PAGE, .edge = UINT32_MAX};
    uint32_t snapshot;
    return prefix_reached(&r->pages, &r->snapshots, &run, 0, &snapshot) == end / PAGE;
}

/* A conversation of 150 tokens: snapshots at 16 and 32, which are periodic, a mark at 100, the prompt's end at 148. */
static void converse(struct rig *r, uint32_t kind)
{
    uint32_t tokens[CONTEXT];
    for (uint32_t t = 0; t < CONTEXT; t++) tokens[t] = (t * kind + t / 7) % 5;
    begin(r, kind, tokens, 150);
    r->seq[kind].mark[0] = 101;
    r->seq[kind].mark_count = 1;
    snapshots_mark(&r->snapshots, &r->seq[kind]);
    r->snapshots.prompt_every = 4 * PAGE;
    while (r->seq[kind].cached < 150) {
        assert_true(ring(r, kind, r->seq[kind].cached ? CONTEXT : 32));
        r->snapshots.prompt_every = 128 * PAGE;
        done(r, kind, true, false);
    }
}

static void the_least_useful_goes_first(void **state)
{
    (void)state;
    struct rig r;
    rig_open(&r);
    converse(&r, 1);
    assert_int_equal(snapshots_known(&r.snapshots), 4);
    for (uint64_t n = 0; n < SNAPSHOTS - 4; n++)
        put(&r, 1000 + n, 4); /* three others, each without a longer one */
    assert_true(has(&r, 1, 16) && has(&r, 1, 32) && has(&r, 1, 100) && has(&r, 1, 148));
    assert_int_equal(r.snapshots.dropped, 0);
    put(&r, 2000, 4);
    assert_true(!has(&r, 1, 16) && has(&r, 1, 32)); /* the shorter periodic one */
    put(&r, 2001, 4);
    assert_true(!has(&r, 1, 32) && has(&r, 1, 100)); /* the other one, before marks and before older tips */
    assert_true(snapshots_find(&r.snapshots, 1000) != STATE_NO_SNAPSHOT);
    put(&r, 2002, 4);
    assert_true(!has(&r, 1, 100) && has(&r, 1, 148)); /* the mark has a longer one after it */
    assert_int_equal(r.snapshots.dropped, 3);
    put(&r, 2003, 4); /* all are tips now: the one used longest ago, which is the conversation's */
    assert_false(has(&r, 1, 148));
    assert_true(snapshots_find(&r.snapshots, 1000) != STATE_NO_SNAPSHOT);
    leave(&r, 1);
    rig_close(&r);
}

static void what_is_used_again_stays(void **state)
{
    (void)state;
    struct rig r;
    rig_open(&r);
    converse(&r, 1);
    for (uint64_t n = 0; n < SNAPSHOTS - 4; n++) put(&r, 1000 + n, 4);
    for (uint64_t n = 0; n < 12;
         n++) { /* the conversation lives: each use counts for all in front of its tip */
        begin(&r, 2, r.seq[1].tokens, 150);
        assert_true(take(&r, 2));
        assert_int_equal(r.seq[2].cached, 148);
        leave(&r, 2);
        if (n % 3 == 2) put(&r, 2000 + n, 4);
    }
    assert_true(has(&r, 1, 100) && has(&r, 1, 148)); /* its mark outlives what was not used for as long */
    assert_int_equal(r.snapshots.hits, 12);
    assert_true(snapshots_find(&r.snapshots, 1000) == STATE_NO_SNAPSHOT);
    leave(&r, 1);
    check_pins(&r);
    rig_close(&r);
}

/* A mark that each turn begins with outlives the tips of others, however many snapshots come after it. */
static void what_sequences_begin_with_stays(void **state)
{
    (void)state;
    struct rig r;
    rig_open(&r);
    converse(&r, 1);
    r.snapshots.prompt_every = 128 * PAGE;
    for (uint32_t n = 0; n < 12; n++) {
        put(&r, 1000 + n, 4);
        begin(&r, 2, r.seq[1].tokens, 150);
        for (uint32_t t = 105; t < 150; t++) r.seq[2].tokens[t] = (n + t) % 4; /* another last turn */
        r.seq[2].tokens[104] = 5 + n;
        assert_true(take(&r, 2));
        assert_int_equal(r.seq[2].cached, 100);
        while (r.seq[2].cached < 150) {
            assert_true(ring(&r, 2, CONTEXT));
            done(&r, 2, true, false);
        }
        leave(&r, 2);
    }
    assert_true(r.snapshots.dropped > 12);
    leave(&r, 1);
    rig_close(&r);
}

/* Computes what is left of a prompt, then an answer of so many tokens. */
static void answer(struct rig *r, uint32_t i, uint32_t tokens)
{
    const uint32_t end = r->seq[i].token_count + tokens;
    while (r->seq[i].token_count < end) {
        assert_true(ring(r, i, CONTEXT));
        done(r, i, true, true);
    }
}

/* An agent's turn: each prompt goes on after the one before, and has what was answered in another form. There are more of them than
 * snapshots. Each begins with the prompt before it, and later ones begin near where they part from all that. */
static void a_long_conversation_is_thinned(void **state)
{
    (void)state;
    enum { TURNS = 2 * SNAPSHOTS, EACH = 2 * PAGE };
    struct rig r;
    uint32_t tokens[CONTEXT], count = 2 * EACH;
    assert_true(count + TURNS * EACH <= CONTEXT);
    rig_open(&r);
    r.snapshots.prompt_every = 128 * PAGE;
    for (uint32_t t = 0; t < CONTEXT; t++) tokens[t] = t % 5;
    for (uint32_t turn = 0; turn < TURNS; turn++, count += EACH) {
        begin(&r, 1, tokens, count + 1);
        (void)take(&r, 1);
        if (turn) assert_int_equal(r.seq[1].cached, count - EACH);
        answer(&r, 1, 3 * PAGE);
        leave(&r, 1);
    }
    assert_true(snapshots_known(&r.snapshots) == SNAPSHOTS && r.snapshots.dropped > SNAPSHOTS);
    for (uint32_t at = 2 * EACH; at < count;
         at += EACH) { /* each would begin at most so far in front of it */
        uint32_t near = at;
        while (near && !has(&r, 1, near)) near -= PAGE;
        assert_true(at - near <= 4 * EACH);
    }
    rig_close(&r);
}

static void a_failed_row_leaves_nothing(void **state)
{
    (void)state;
    struct rig r;
    rig_open(&r);
    const uint32_t tokens[20] = {1, 2, 3};
    begin(&r, 0, tokens, 17);
    assert_true(ring(&r, 0, CONTEXT));
    check_left(&r, 0, (uint32_t[]){16, 0});
    done(&r, 0, false, false);
    assert_int_equal(snapshots_known(&r.snapshots), 0);
    check_pins(&r);
    leave(&r, 0);
    rig_close(&r);
}

static void without_fixed_states_nothing_changes(void **state)
{
    (void)state;
    const struct plan plan = {.layers = 2};
    struct snapshots off;
    struct helm_err err = {0};
    struct sequence seq = {.prompt_count = 5000, .token_count = 5000};
    struct step_row row = {.count = 4096};
    assert_int_equal(snapshots_init(&off, &plan, 32, &err), 0);
    assert_int_equal(snapshots_cut(&off, &seq), 0);
    snapshots_row(&off, &seq, &row);
    assert_int_equal(row.state_from | row.left[0].to, STATE_NO_SNAPSHOT);
    snapshots_done(&off, &row, &seq);
    snapshots_lost(&off, false);
    assert_int_equal(snapshots_find(&off, 7), STATE_NO_SNAPSHOT);
    snapshots_free(&off);
}

/* A row is never shorter than a step because of them. */
static void long_prompts_leave_one_a_step(void **state)
{
    (void)state;
    static const struct {
        uint32_t step, page, every;
    } rows[] = {{512, 16, 1024},  {1024, 16, 1024}, {4096, 16, 4096},
                {4100, 16, 4096}, {1030, 12, 1032}, {8, 2048, 2048}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        assert_int_equal(snapshots_prompt_every(&(struct plan){.step_tokens = rows[i].step}, rows[i].page),
                         rows[i].every);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_row_begins_with_its_tokens_state),
        cmocka_unit_test(rows_leave_snapshots_as_they_pass),
        cmocka_unit_test(of_few_the_last_is_left),
        cmocka_unit_test(prompts_are_found_where_snapshots_were_taken),
        cmocka_unit_test(long_prompts_leave_one_a_step),
        cmocka_unit_test(marks_are_positions_of_snapshots),
        cmocka_unit_test(many_marks_are_thinned),
        cmocka_unit_test(the_least_useful_goes_first),
        cmocka_unit_test(what_is_used_again_stays),
        cmocka_unit_test(what_sequences_begin_with_stays),
        cmocka_unit_test(a_long_conversation_is_thinned),
        cmocka_unit_test(a_failed_row_leaves_nothing),
        cmocka_unit_test(without_fixed_states_nothing_changes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
