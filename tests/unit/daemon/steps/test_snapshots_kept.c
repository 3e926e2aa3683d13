/* Which snapshots stay where not all have room. */
#include "tests/unit/daemon/steps/snapshots_rig.h"

/* Known and not yet used: what a session restores. */
static void put(struct rig *r, uint64_t number, uint32_t end)
{
    const uint32_t snapshot = snapshots_take_empty(&r->snapshots);
    assert_int_not_equal(snapshot, STATE_NO_SNAPSHOT);
    snapshots_make_known(&r->snapshots, snapshot, number, end);
}

/* A conversation of 150 tokens: snapshots at 16 and 32, which are periodic, a mark at 100, the prompt's end
 * at 148. */
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

/* An agent's turn: each prompt goes on after the one before, and has what was answered in another form. There
 * are more of them than snapshots. Each begins with the prompt before it, and later ones begin near where
 * they part from all that. */
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_least_useful_goes_first),
        cmocka_unit_test(what_is_used_again_stays),
        cmocka_unit_test(what_sequences_begin_with_stays),
        cmocka_unit_test(a_long_conversation_is_thinned),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
