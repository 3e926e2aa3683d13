/* Unit tests of daemon/steps/batcher_requests.c and request.c: requests that stay, and are resumed. */
#include "batcher_stage.h"

static uint64_t submit_staying(struct stage *s, uint64_t request_id, uint32_t prompt, uint32_t most)
{
    struct request_generate request = {.prompt = malloc(prompt * sizeof(uint32_t)),
                                       .prompt_count = prompt,
                                       .max_tokens = most,
                                       .has_seed = true,
                                       .stays = true,
                                       .ignore_eos = true};
    const struct sequence *seq;
    struct helm_err err = {0};
    for (uint32_t i = 0; i < prompt; i++) request.prompt[i] = 3;
    const struct asker asker = {.client = 1, .request_id = request_id, .peer = 1};
    assert_int_equal(batcher_submit(&s->on.batcher, &request, &asker, s->now_us, &seq, &err), 0);
    return seq->id;
}

static void resume(struct stage *s, uint32_t keep, uint32_t count, uint32_t most)
{
    uint32_t tokens[64];
    const struct request_resume resume = {.keep = keep, .tokens = tokens, .count = count, .max_tokens = most};
    const struct asker asker = {.client = 1, .request_id = 77};
    for (uint32_t i = 0; i < count; i++) tokens[i] = 20 + i;
    batcher_resume(&s->on.batcher, &asker, &resume, NULL);
}

/* Its row of the page table. */
static const uint32_t *row_of(struct stage *s, uint64_t id)
{
    return arena_page_table_of(&s->on.arena, find(&s->on.batcher, id)->slot);
}

static void make_tokens(struct stage *s, uint32_t count)
{
    batcher_pump(&s->on.batcher, s->now_us);
    for (uint32_t until = s->tokens + count; s->tokens < until;) step(s);
    for (int i = 0; i < 3; i++) batcher_pump(&s->on.batcher, s->now_us);
    assert_int_equal(s->on.batcher.in_flight, 0);
}

/* It waits in its slot, and then computes what is new alone. */
static void what_stands_is_not_computed_again(void **state)
{
    (void)state;
    struct stage *s = stage_open_sharing(16, PREFIX_ON);
    const uint64_t id = submit_staying(s, 77, 40, 3);
    make_tokens(s, 3);
    assert_int_equal(s->done, 0);
    assert_true(has_slot(s, id));
    assert_int_equal(find(&s->on.batcher, id)->cached, 42);
    resume(s, 2, 3, 2); /* the third of its tokens gives way to three others */
    const struct sequence *seq = find(&s->on.batcher, id);
    assert_int_equal(seq->token_count, 45);
    batcher_pump(&s->on.batcher, s->now_us);
    assert_int_equal(newest(s)->row_count, 1);
    assert_int_equal(newest(s)->row[0].start, 42);
    assert_int_equal(newest(s)->row[0].count, 3);
    const uint32_t *history = arena_history_of(&s->on.arena, newest(s)->row[0].slot);
    const uint32_t want[] = {3, 5, 5, 20, 21, 22};
    assert_memory_equal(history + 39, want, sizeof want);
    make_tokens(s, 2);
    resume(s, 7, 0, 1); /* all stand: its last token is computed, as after any other */
    batcher_pump(&s->on.batcher, s->now_us);
    assert_int_equal(newest(s)->row[0].start, 46);
    assert_int_equal(newest(s)->row[0].count, 1);
    make_tokens(s, 1);
    resume(s, 4, 0, 1); /* back by four tokens: the last that stands is computed again, to go on from it */
    batcher_pump(&s->on.batcher, s->now_us);
    assert_int_equal(newest(s)->row[0].start, 43);
    assert_int_equal(newest(s)->row[0].count, 1);
    stage_close(s);
}

/* Pages that others may have found are not written again: back across the end of one, it begins with the
 * pages that still hold its tokens. */
static void pages_that_are_known_stay_as_they_are(void **state)
{
    (void)state;
    for (int sharing = 0; sharing < 2; sharing++) {
        struct stage *s = stage_open_sharing(16, sharing ? PREFIX_ON : PREFIX_OFF);
        const uint64_t id = submit_staying(s, 77, 40, 30);
        make_tokens(s, 30); /* 70 tokens: two pages are whole */
        const uint32_t page = row_of(s, id)[1];
        resume(s, 10, 1, 1); /* 51 tokens */
        batcher_pump(&s->on.batcher, s->now_us);
        const struct step *step = newest(s);
        assert_int_equal(step->row[0].start, sharing ? 32 : 50);
        assert_int_equal(step->row[0].start + step->row[0].count, 51);
        if (sharing)
            assert_int_not_equal(row_of(s, id)[1], page);
        else
            assert_int_equal(row_of(s, id)[1], page);
        make_tokens(s, 1);
        stage_close(s);
    }
}

/* Fixed states have a snapshot after the tokens that were known when it was resumed last: what comes after
 * them is computed again. Without room for it, all from the last page that has one. */
static void fixed_states_go_back_to_the_tokens_that_were_known(void **state)
{
    (void)state;
    struct stage *s = stage_open_states(16, PREFIX_ON, 4);
    const struct snapshots *snapshots = &s->on.batcher.snapshots;
    const uint64_t id = submit_staying(s, 77, 40, 3);
    make_tokens(s, 3);
    assert_int_equal(snapshots_room(snapshots), 3);
    static const struct {
        uint32_t keep, count, start, end;
    } turns[] = {{2, 1, 40, 43},   /* from the prompt's end */
                 {4, 0, 43, 44},   /* 40 + 2 + 1 tokens were known */
                 {1, 2, 32, 43},   /* less than were: from the page's end */
                 {3, 20, 43, 63},  /* and so on from the newest again */
                 {23, 1, 32, 64}}; /* back across a page's end */
    for (size_t i = 0; i < sizeof turns / sizeof *turns; i++) {
        resume(s, turns[i].keep, turns[i].count, 2);
        batcher_pump(&s->on.batcher, s->now_us);
        const struct step_row *row = &batcher_oldest(&s->on.batcher)->step.row[0];
        assert_int_equal(row->start, turns[i].start);
        assert_int_equal(row->start + row->count, turns[i].end);
        assert_int_not_equal(row->state_from, STATE_NO_SNAPSHOT);
        make_tokens(s, 2);
    }
    const struct workers_loss loss = {.outside = true, .why = "killed"};
    batcher_worker_lost(&s->on.batcher, &loss);
    batcher_prepare_worker(&s->on.batcher, 2);
    batcher_worker_ready(&s->on.batcher);
    resume(s, 24, 1, 2);
    make_tokens(s, 2);
    resume(s, 25, 1, 1);
    batcher_pump(&s->on.batcher, s->now_us);
    assert_int_equal(newest(s)->row[0].start, 65); /* after a worker's death, too */
    make_tokens(s, 1);
    assert_int_equal(batcher_cancel(&s->on.batcher, id, "enough"), 0);
    batcher_pump(&s->on.batcher, s->now_us);
    assert_int_equal(snapshots_room(snapshots), snapshots->count); /* nothing is pinned */
    stage_close(s);
}

static void a_resume_that_does_not_fit_ends_the_request(void **state)
{
    (void)state;
    static const struct {
        uint32_t keep, count, most;
        bool early;
        const char *says;
    } cases[] = {{4, 0, 1, false, "the answer has 3 tokens"},
                 {3, 0, 250, false, "do not fit the context of 256"},
                 {3, 60, 200, false, "do not fit the context"},
                 {0, 0, 1, true, "does not wait for one"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct stage *s = stage_open(16);
        const uint64_t id = submit_staying(s, 77, 4, 3);
        batcher_pump(&s->on.batcher, s->now_us);
        if (!cases[i].early) make_tokens(s, 3);
        const struct sequence *seq = find(&s->on.batcher, id);
        const struct asker other = {.client = 2, .request_id = 77};
        batcher_resume(&s->on.batcher, &other, &(struct request_resume){.max_tokens = 1}, NULL);
        assert_int_equal(seq->finish, HELM__V1__FINISH_REASON__FINISH_UNSPECIFIED);
        resume(s, cases[i].keep, cases[i].count, cases[i].most);
        assert_int_equal(seq->finish, HELM__V1__FINISH_REASON__FINISH_ERROR);
        if (!strstr(seq->detail, cases[i].says))
            fail_msg("'%s' does not say '%s'", seq->detail, cases[i].says);
        for (int k = 0; k < 3; k++) step(s);
        assert_int_equal(s->done, 1);
        assert_int_equal(s->on.batcher.pages.free_count, 16);
        stage_close(s);
    }
}

/* For a minute; meanwhile older requests may take its pages, and it goes on all the same. */
static void it_waits_with_pages_that_others_may_take(void **state)
{
    (void)state;
    struct stage *s = stage_open(8);
    struct helm_err err = {0};
    const uint64_t other = submit_sized(s, 2, 4, 250, &err), id = submit_staying(s, 77, 90, 3);
    assert_true(other != 0);
    batcher_pump(&s->on.batcher, s->now_us);
    while (find(&s->on.batcher, other) && has_slot(s, id)) step(s);
    assert_false(has_slot(s, id)); /* the other one, which is older, has needed its pages */
    assert_int_equal(find(&s->on.batcher, id)->finish, HELM__V1__FINISH_REASON__FINISH_UNSPECIFIED);
    while (find(&s->on.batcher, other)) step(s);
    const uint32_t tokens = s->tokens;
    resume(s, 3, 1, 2);
    for (int i = 0; i < 6; i++) step(s);
    assert_int_equal(s->tokens, tokens + 2);
    s->now_us += BATCHER_STAYS_US - 10000;
    assert_true(batcher_apply_deadlines(&s->on.batcher, s->now_us) > s->now_us);
    s->now_us += 20000;
    (void)batcher_apply_deadlines(&s->on.batcher, s->now_us);
    assert_int_equal(find(&s->on.batcher, id)->finish, HELM__V1__FINISH_REASON__FINISH_CANCELLED);
    stage_close(s);
}

/* Requests that wait do not keep others out, however often they are resumed: the slot of the one that has
 * waited longest is taken, and it goes on all the same. */
static void it_keeps_no_slot_from_others(void **state)
{
    (void)state;
    for (int sharing = 0; sharing < 2; sharing++) {
        struct stage *s = stage_open_sharing(16, sharing ? PREFIX_ON : PREFIX_OFF);
        struct helm_err err = {0};
        const uint64_t first = submit_staying(s, 77, 40, 3), second = submit_staying(s, 78, 8, 9);
        make_tokens(s, 12);
        assert_true(has_slot(s, first) && has_slot(s, second)); /* as long as no other request is there */
        for (uint32_t round = 0; round < 2; round++) {
            const uint64_t other = submit_sized(s, 2, 4, 2, &err), gives = round ? second : first;
            batcher_pump(&s->on.batcher, s->now_us);
            assert_true(has_slot(s, other) && has_slot(s, round ? first : second));
            assert_false(has_slot(s, gives));
            make_tokens(s, 2);
            assert_int_equal(s->done, round + 1);
            resume(s, 2, 1, 1); /* of the first: now the second has waited longest */
            make_tokens(s, 1);
            assert_true(has_slot(s, first));
            assert_int_equal(find(&s->on.batcher, first)->token_count, 44);
        }
        stage_close(s);
    }
}

/* A request in a context of 50 and a vocabulary of 100; words of the refusal, NULL: it is taken. */
static void parse(Helm__V1__Request *in, struct request *out, const char *words)
{
    static uint8_t frame[4096];
    const struct request_limits limits = {.vocab = 100, .context = 50};
    struct request_error error;
    in->version = REQUEST_VERSION;
    in->request_id = 7;
    assert_true(helm__v1__request__get_packed_size(in) < sizeof frame);
    const size_t size = helm__v1__request__pack(in, frame);
    const int rc = request_parse(frame, size, &limits, out, &error);
    if (!rc != !words) fail_msg("%s", rc ? error.text : "it is taken");
    if (words && !strstr(error.text, words)) fail_msg("'%s' does not say '%s'", error.text, words);
    if (words) request_free(out);
}

static void every_field_has_its_bounds(void **state)
{
    (void)state;
    uint32_t tokens[60] = {1, 2, 3};
    struct request out;
    Helm__V1__Request in = HELM__V1__REQUEST__INIT;
    Helm__V1__Resume resume = HELM__V1__RESUME__INIT;
    in.body_case = HELM__V1__REQUEST__BODY_RESUME;
    in.resume = &resume;
    resume.keep = 5;
    parse(&in, &out, "max_tokens is 0");
    resume.max_tokens = 2;
    parse(&in, &out, NULL); /* no tokens in the place of those that do not stand */
    request_free(&out);
    resume.tokens = tokens;
    resume.n_tokens = 3;
    parse(&in, &out, NULL);
    assert_int_equal(out.kind, REQUEST_RESUME);
    assert_true(out.resume.keep == 5 && out.resume.count == 3 && out.resume.max_tokens == 2);
    assert_memory_equal(out.resume.tokens, tokens, 3 * sizeof *tokens);
    request_free(&out);
    tokens[2] = 100;
    parse(&in, &out, "tokens[2] is token 100");
    tokens[2] = 3;
    resume.n_tokens = 51;
    parse(&in, &out, "tokens has 51 entries, the context holds 50");
    Helm__V1__Generate generate = HELM__V1__GENERATE__INIT;
    Helm__V1__Mask mask = HELM__V1__MASK__INIT;
    in.body_case = HELM__V1__REQUEST__BODY_GENERATE;
    in.generate = &generate;
    generate.prompt = mask.tokens = tokens;
    generate.n_prompt = mask.n_tokens = 2;
    generate.stays = true;
    parse(&in, &out, NULL);
    assert_true(out.generate.stays);
    request_free(&out);
    generate.mask = &mask;
    parse(&in, &out, "a request with a mask cannot stay");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_stands_is_not_computed_again),
        cmocka_unit_test(pages_that_are_known_stay_as_they_are),
        cmocka_unit_test(fixed_states_go_back_to_the_tokens_that_were_known),
        cmocka_unit_test(a_resume_that_does_not_fit_ends_the_request),
        cmocka_unit_test(it_waits_with_pages_that_others_may_take),
        cmocka_unit_test(it_keeps_no_slot_from_others),
        cmocka_unit_test(every_field_has_its_bounds),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
