/* Sequences whose state is a hash of their tokens, of rows that pass, fail and are lost: for the tests of
 * snapshots. */
#pragma once

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

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
        snapshot[SNAPSHOTS + 1]; /* the workers' states: a hash of all tokens up to a position */
    struct flying flying[SEQS];
    uint32_t random, from_snapshot, made, lost, drafted, gone_back;
    bool drafts; /* rows of answers have some */
};

static inline uint32_t draw(struct rig *r, uint32_t below)
{
    r->random = r->random * 1664525 + 1013904223;
    return (uint32_t)(((uint64_t)r->random * below) >> 32);
}

static inline uint64_t after(uint64_t hash, uint32_t token)
{
    return (hash ^ (token + 1)) * UINT64_C(1099511628211);
}

static inline uint64_t state_of(const struct sequence *seq, uint32_t count)
{
    uint64_t hash = 0;
    for (uint32_t i = 0; i < count; i++) hash = after(hash, seq->tokens[i]);
    return hash;
}

static inline void rig_open(struct rig *r)
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

static inline void rig_close(struct rig *r)
{
    for (uint32_t i = 0; i < SEQS; i++) free(r->seq[i].tokens);
    snapshots_free(&r->snapshots);
    kv_pages_free(&r->pages);
}

static inline void begin(struct rig *r, uint32_t i, const uint32_t *tokens, uint32_t count)
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

static inline bool take(struct rig *r, uint32_t i)
{
    return prefix_take(&r->pages, &r->snapshots, r->table[i], &r->seq[i]);
}

static inline uint32_t left_by(const struct step_row *row)
{
    uint32_t count = 0;
    while (count < ARENA_ROW_STATES && row->left[count].to) count++;
    return count;
}

/* Drafts for a row of an answer that ends with its newest token, after the known ones. */
static inline uint32_t draft_at_random(struct rig *r, struct sequence *seq, uint32_t end)
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
static inline bool ring(struct rig *r, uint32_t i, uint32_t most)
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
static inline void done(struct rig *r, uint32_t i, bool ok, bool more)
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

static inline void leave(struct rig *r, uint32_t i)
{
    r->flying[i].left = r->flying[i].row.count > 0;
    done(r, i, true, false); /* the slot is not reused before that */
    kv_pages_shrink(&r->pages, r->table[i], &r->seq[i].pages, 0);
    snapshots_leave(&r->snapshots, &r->seq[i]);
    prefix_begin(&r->seq[i]);
}

/* Nothing is pinned but by rows in flight and sequences that are about to begin. */
static inline void check_pins(const struct rig *r)
{
    uint32_t pins = 0, expected = 0;
    for (uint32_t s = 1; s <= SNAPSHOTS; s++) pins += r->snapshots.snapshot[s].pins;
    for (uint32_t i = 0; i < SEQS; i++)
        expected +=
            (r->flying[i].row.state_from != 0) + left_by(&r->flying[i].row) + (r->seq[i].state_from != 0);
    assert_int_equal(pins, expected);
}

static inline bool has(const struct rig *r, uint32_t seq, uint32_t end)
{
    struct sequence *s = (struct sequence *)&r->seq[seq];
    const struct prefix_run run = {.tokens = s->tokens, .count = end / PAGE, .edge = UINT32_MAX};
    uint32_t snapshot;
    return prefix_reached(&r->pages, &r->snapshots, &run, 0, &snapshot) == end / PAGE;
}

/* Computes what is left of a prompt, then an answer of so many tokens. */
static inline void answer(struct rig *r, uint32_t i, uint32_t tokens)
{
    const uint32_t end = r->seq[i].token_count + tokens;
    while (r->seq[i].token_count < end) {
        assert_true(ring(r, i, CONTEXT));
        done(r, i, true, true);
    }
}
