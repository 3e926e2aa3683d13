/* Unit tests of daemon/steps/snapshots.c with prefix.c: where rows are cut, and a long random run in which
 * the state that every row begins with is held against the tokens in front of it, as workers would have made
 * it. */
#include "tests/unit/daemon/steps/snapshots_rig.h"

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
        cmocka_unit_test(a_failed_row_leaves_nothing),
        cmocka_unit_test(without_fixed_states_nothing_changes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
