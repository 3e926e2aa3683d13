/* Unit tests of daemon/steps/scheduler.c: each rule of its header, then a long random run that looks for
 * starvation and for pages given twice. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdbool.h>
#include <string.h>

#include "common/shared/kv_layout.h"
#include "daemon/steps/kv_pages.h"
#include "daemon/steps/scheduler.h"

static const struct scheduler_limits usual = {
    .slots = 8, .step_tokens = 64, .page_tokens = 16, .pages_free = 100, .turn = 0};

static struct scheduler_seq waiting(uint64_t order, uint64_t client, uint32_t tokens)
{
    return (struct scheduler_seq){.order = order, .client = client, .tokens = tokens};
}

static struct scheduler_seq running(uint64_t order, uint64_t client, uint32_t tokens, uint32_t cached,
                                    uint32_t pages)
{
    return (struct scheduler_seq){.order = order,
                                  .client = client,
                                  .running = true,
                                  .tokens = tokens,
                                  .cached = cached,
                                  .pages = pages};
}

static const struct scheduler_row *row_of(const struct scheduler_step *step, uint32_t seq)
{
    for (uint32_t i = 0; i < step->row_count; i++)
        if (step->row[i].seq == seq) return &step->row[i];
    return NULL;
}

static void nothing_to_do_is_an_empty_step(void **state)
{
    (void)state;
    struct scheduler_step step;
    scheduler_form_step(NULL, 0, &usual, &step);
    assert_int_equal(step.row_count + step.admit_count + step.preempt_count, 0);
}

static void decodes_come_before_prompts(void **state)
{
    (void)state;
    const struct scheduler_seq seqs[] = {running(1, 1, 500, 100, 7), running(2, 1, 50, 49, 4),
                                         running(3, 2, 81, 80, 5)};
    struct scheduler_step step;
    scheduler_form_step(seqs, 3, &usual, &step);
    assert_int_equal(step.row_count, 3);
    assert_int_equal(row_of(&step, 1)->count, 1);
    assert_true(row_of(&step, 1)->sample);
    assert_int_equal(row_of(&step, 2)->count, 1);
    assert_int_equal(row_of(&step, 2)->pages, 6); /* position 80 is on a new page */
    assert_int_equal(row_of(&step, 0)->count, 62);
    assert_int_equal(row_of(&step, 0)->start, 100);
    assert_false(row_of(&step, 0)->sample);
    assert_int_equal(step.token_count, 64);
}

static void a_prompt_holds_up_others_no_longer_than_allowed(void **state)
{
    (void)state;
    const struct scheduler_seq seqs[] = {running(1, 1, 500, 100, 7), running(2, 1, 50, 49, 4),
                                         running(3, 2, 500, 0, 0)};
    struct scheduler_limits limits = usual;
    struct scheduler_step step;
    limits.prompt_tokens = 20;
    scheduler_form_step(seqs, 3, &limits, &step);
    assert_int_equal(row_of(&step, 1)->count, 1);
    assert_int_equal(row_of(&step, 0)->count, 20); /* of all prompts together */
    assert_null(row_of(&step, 2));
    limits.turn = 1; /* the other client's turn */
    scheduler_form_step(seqs, 3, &limits, &step);
    assert_int_equal(row_of(&step, 2)->count, 20);
    limits.prompt_tokens = 1000; /* no more than a step holds */
    scheduler_form_step(seqs, 3, &limits, &step);
    assert_int_equal(step.token_count, 64);
    limits.prompt_tokens = 20;
    scheduler_form_step(seqs, 1, &limits, &step); /* no row waits: all of it */
    assert_int_equal(row_of(&step, 0)->count, 64);
    const struct scheduler_seq new_one[] = {running(1, 1, 500, 100, 7), waiting(2, 2, 1)};
    scheduler_form_step(new_one, 2, &limits,
                        &step); /* it decodes at once, so it waits for this step as well */
    assert_int_equal(row_of(&step, 0)->count, 20);
    assert_int_equal(row_of(&step, 1)->count, 1);
}

/* A row of an answer has its newest token, before it what is computed again, after it drafts. */
static void drafts_go_with_the_newest_token(void **state)
{
    (void)state;
    struct scheduler_seq seqs[] = {running(1, 1, 54, 46, 4), running(2, 1, 500, 100, 7)};
    struct scheduler_limits limits = usual;
    struct scheduler_step step;
    seqs[0].again = 3;
    seqs[0].drafts = 4;
    scheduler_form_step(seqs, 2, &limits, &step);
    assert_int_equal(row_of(&step, 0)->start, 46);
    assert_int_equal(row_of(&step, 0)->count, 8);
    assert_int_equal(row_of(&step, 0)->drafts, 4);
    assert_true(row_of(&step, 0)->sample);
    assert_int_equal(row_of(&step, 1)->count, 56); /* a prompt beside it */
    assert_int_equal(row_of(&step, 1)->drafts, 0);
    limits.pages_free = 0; /* drafts take no pages of others: its own four hold 64 positions */
    seqs[0] = running(1, 1, 68, 59, 4);
    seqs[0].again = 1;
    seqs[0].drafts = 7;
    scheduler_form_step(seqs, 1, &limits, &step);
    assert_int_equal(step.preempt_count, 0);
    assert_int_equal(row_of(&step, 0)->count, 5);
    assert_int_equal(row_of(&step, 0)->drafts, 3);
    assert_true(row_of(&step, 0)->sample);
    limits.step_tokens = 1; /* tokens computed again may take more than a step */
    scheduler_form_step(seqs, 1, &limits, &step);
    assert_int_equal(row_of(&step, 0)->count, 1);
    assert_int_equal(row_of(&step, 0)->drafts, 0);
    assert_false(row_of(&step, 0)->sample);
}

static void the_last_chunk_samples(void **state)
{
    (void)state;
    const struct scheduler_seq seqs[] = {running(1, 1, 140, 100, 7)};
    struct scheduler_step step;
    scheduler_form_step(seqs, 1, &usual, &step);
    assert_int_equal(row_of(&step, 0)->count, 40);
    assert_true(row_of(&step, 0)->sample);
}

static void clients_take_turns_with_prompts(void **state)
{
    (void)state;
    const struct scheduler_seq seqs[] = {running(1, 1, 500, 0, 0), running(2, 1, 500, 0, 0),
                                         running(3, 2, 500, 0, 0)};
    struct scheduler_limits limits = usual;
    struct scheduler_step step;
    scheduler_form_step(seqs, 3, &limits, &step);
    assert_non_null(row_of(&step, 0));
    limits.turn = 1;
    scheduler_form_step(seqs, 3, &limits, &step);
    assert_non_null(row_of(&step, 2));
    assert_null(row_of(&step, 1)); /* the older request of its client goes first */
}

static void slots_go_to_the_client_with_the_fewest(void **state)
{
    (void)state;
    const struct scheduler_seq seqs[] = {running(1, 1, 20, 19, 2), waiting(2, 1, 5), waiting(3, 1, 5),
                                         waiting(4, 2, 5), waiting(5, 3, 5)};
    struct scheduler_limits limits = usual;
    limits.slots = 3;
    struct scheduler_step step;
    scheduler_form_step(seqs, 5, &limits, &step);
    assert_int_equal(step.admit_count, 2);
    assert_int_equal(step.admit[0], 3);
    assert_int_equal(step.admit[1], 4);
    assert_int_equal(row_of(&step, 3)->count, 5);
}

static void nobody_overtakes_one_that_waits_for_pages(void **state)
{
    (void)state;
    const struct scheduler_seq seqs[] = {running(1, 1, 20, 19, 2), waiting(2, 2, 160), waiting(3, 3, 1)};
    struct scheduler_limits limits = usual;
    limits.pages_free = 10; /* 10 for the second, 1 for the first to grow */
    struct scheduler_step step;
    scheduler_form_step(seqs, 3, &limits, &step);
    assert_int_equal(step.admit_count, 0);
    limits.pages_free = 11;
    scheduler_form_step(seqs, 3, &limits, &step);
    assert_int_equal(step.admit[0], 1);
}

static void the_youngest_gives_its_pages_to_the_oldest(void **state)
{
    (void)state;
    const struct scheduler_seq seqs[] = {running(7, 1, 33, 32, 2), running(3, 1, 33, 32, 2),
                                         running(9, 1, 17, 16, 1), waiting(12, 2, 3)};
    struct scheduler_limits limits = usual;
    limits.pages_free = 0;
    struct scheduler_step step;
    scheduler_form_step(seqs, 4, &limits, &step);
    assert_int_equal(step.preempt_count, 1);
    assert_int_equal(step.preempt[0], 2); /* order 9 */
    assert_int_equal(step.row_count, 1); /* order 7 needs a page too; only older ones are left, so it waits */
    assert_int_equal(step.row[0].seq, 1);
    assert_int_equal(step.admit_count, 0);
}

/* Two prompts whose next page is the same: one of them fills it, whichever has its turn; others use the
 * time. */
static void the_same_page_is_filled_once(void **state)
{
    (void)state;
    struct scheduler_seq seqs[] = {running(1, 1, 40, 16, 1), running(2, 2, 90, 16, 1),
                                   running(3, 3, 30, 0, 0)};
    struct scheduler_limits limits = usual;
    struct scheduler_step step;
    seqs[0].next_page = seqs[1].next_page = 77;
    for (limits.turn = 0; limits.turn < 6; limits.turn++) {
        scheduler_form_step(seqs, 3, &limits, &step);
        assert_int_equal((row_of(&step, 0) != NULL) + (row_of(&step, 1) != NULL), 1);
        assert_int_equal(row_of(&step, 0) ? row_of(&step, 0)->count : 24, 24);
        if (row_of(&step, 0)) assert_int_equal(row_of(&step, 2)->count, 30);
    }
    seqs[1].cached = 20; /* has begun the page: it goes on with it, whichever has its turn */
    seqs[1].pages = 2;
    for (limits.turn = 0; limits.turn < 6; limits.turn++) {
        scheduler_form_step(seqs, 2, &limits, &step);
        assert_int_equal(step.row_count, 1);
        assert_int_equal(row_of(&step, 1)->start, 20);
        assert_int_equal(row_of(&step, 1)->count, 64);
    }
    limits.step_tokens =
        17; /* of which one goes to the decoding row: not a whole page, so it says nothing to the other one */
    seqs[2] = running(3, 3, 31, 30, 2);
    limits.prompt_tokens = 10;
    scheduler_form_step(seqs, 3, &limits, &step);
    assert_int_equal(step.token_count, 11);
    seqs[0].next_page = seqs[1].next_page = 0;
    scheduler_form_step(seqs, 2, &usual, &step);
    assert_int_equal(step.row_count, 2);
}

/* With fixed states the others wait until one has computed all up to the cut, in however many steps. */
static void the_same_beginning_is_computed_once(void **state)
{
    (void)state;
    struct scheduler_seq seqs[] = {running(1, 1, 400, 0, 0), running(2, 2, 400, 0, 0),
                                   running(3, 3, 30, 0, 0)};
    struct scheduler_limits limits = usual;
    struct scheduler_step step;
    seqs[0].next_page = seqs[1].next_page = 77;
    seqs[0].cut = seqs[1].cut = 384;
    limits.fixed = true;
    limits.step_tokens = 40;
    for (limits.turn = 0; limits.turn < 6; limits.turn++) {
        scheduler_form_step(seqs, 3, &limits, &step);
        assert_true(!row_of(&step, 0) || !row_of(&step, 1));
    }
    limits.step_tokens = 80;
    scheduler_form_step(seqs, 3, &limits, &step);
    assert_int_equal((row_of(&step, 0) != NULL) + (row_of(&step, 1) != NULL), 1);
    seqs[1].cached = 100;
    seqs[1].pages = 7;
    for (limits.turn = 0; limits.turn < 2;
         limits.turn++) { /* one has begun: it goes on, in the other one's turn, too */
        scheduler_form_step(seqs, 2, &limits, &step);
        assert_int_equal(step.row_count, 1);
        assert_int_equal(row_of(&step, 1)->start, 100);
    }
}

/* However many connections a peer has, another one's prompt gets every second step. */
static void peers_take_turns_with_prompts_before_clients(void **state)
{
    (void)state;
    struct scheduler_seq seqs[5];
    struct scheduler_limits limits = usual;
    struct scheduler_step step;
    uint32_t given[5] = {0};
    for (uint32_t i = 0; i < 5; i++) {
        seqs[i] = running(i + 1, i + 1, 300, 16, 1);
        seqs[i].peer = i < 4 ? 1 : 2;
    }
    for (limits.turn = 0; limits.turn < 16; limits.turn++) {
        scheduler_form_step(seqs, 5, &limits, &step);
        assert_int_equal(step.row_count, 1);
        given[step.row[0].seq] += step.row[0].count;
    }
    assert_int_equal(given[4], 8 * 64);
    for (uint32_t i = 0; i < 4; i++) assert_int_equal(given[i], 2 * 64);
}

/* One slot is free: with as many running, it is for the one that got a slot longest ago, first among peers,
 * then among clients, then by age. */
static void slots_are_given_in_turn(void **state)
{
    (void)state;
    struct scheduler_limits limits = usual;
    struct scheduler_step step;
    struct scheduler_seq seqs[] = {waiting(1, 1, 20), waiting(2, 2, 20), waiting(3, 3, 20),
                                   waiting(4, 3, 20)};
    limits.slots = 1;
    const struct {
        uint64_t peer[4], peer_turn[4], client_turn[4];
        uint32_t next;
    } cases[] = {
        {{1, 1, 2, 2}, {9, 9, 8, 8}, {1, 1, 7, 7}, 2}, /* the other peer, which had one less lately */
        {{1, 1, 1, 1}, {9, 9, 9, 9}, {5, 4, 6, 6}, 1}, /* of one peer the client that did */
        {{1, 1, 1, 1}, {9, 9, 9, 9}, {5, 5, 4, 4}, 2}, /* of one client the older request */
    };
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        for (uint32_t i = 0; i < 4; i++) {
            seqs[i].peer = cases[c].peer[i];
            seqs[i].peer_turn = cases[c].peer_turn[i];
            seqs[i].client_turn = cases[c].client_turn[i];
        }
        scheduler_form_step(seqs, 4, &limits, &step);
        assert_int_equal(step.admit_count, 1);
        assert_int_equal(step.admit[0], cases[c].next);
    }
    limits.slots = 3; /* within a step, too: each peer, then each client of the one, before any has two */
    for (uint32_t i = 0; i < 4; i++) seqs[i].client_turn = seqs[i].peer_turn = 0;
    seqs[0].peer = seqs[1].peer = 1;
    seqs[2].peer = seqs[3].peer = 2;
    scheduler_form_step(seqs, 4, &limits, &step);
    assert_int_equal(step.admit_count, 3);
    assert_int_equal(step.admit[0], 0);
    assert_int_equal(step.admit[1], 2);
    assert_int_equal(step.admit[2], 1);
}

static void one_token_requests_run_at_once(void **state)
{
    (void)state;
    const struct scheduler_seq seqs[] = {waiting(1, 1, 1)};
    struct scheduler_step step;
    scheduler_form_step(seqs, 1, &usual, &step);
    assert_int_equal(step.admit_count, 1);
    assert_int_equal(step.row_count, 1);
    assert_true(step.row[0].sample);
}

/* ---- a whole life, with the batcher's part played here ------------------------------------------------ */

enum { LIFE_SEQS = 40, LIFE_PAGES = 24, LIFE_PAGE = 8, LIFE_CONTEXT = LIFE_PAGES * LIFE_PAGE };

/* In an invariant plan all tokens are of the step's kind, and no sequence has more than that allows. */
static void check_apart(const struct scheduler_step *step, const struct scheduler_seq *view,
                        const struct scheduler_limits *limits)
{
    assert_in_range(step->token_count, 1,
                    step->prompts ? limits->list_tokens[step->list] : limits->few_tokens);
    for (uint32_t i = 0; i < step->row_count; i++) {
        const struct scheduler_row *row = &step->row[i];
        const struct scheduler_seq *s = &view[row->seq];
        assert_int_equal(step->prompts, row->start < s->prompt);
        if (!step->prompts) continue;
        assert_true(row->start + row->count <= s->prompt);
        assert_int_equal(s->list, step->list);
    }
}

/* apart: of an invariant plan with two lists. */
static void live(bool apart)
{
    static const uint32_t list_tokens[] = {9, 20};
    bool prompts_last = false;
    for (uint32_t seed = 1; seed <= 20; seed++) {
        struct scheduler_seq seqs[LIFE_SEQS];
        uint32_t want[LIFE_SEQS], alive = LIFE_SEQS, free_pages = LIFE_PAGES, random = seed, steps = 0;
        for (uint32_t i = 0; i < LIFE_SEQS; i++) {
            random = random * 1664525 + 1013904223;
            uint32_t prompt = 1 + (random >> 8) % (LIFE_CONTEXT - 1);
            want[i] = prompt + 1 + (random >> 20) % (LIFE_CONTEXT - prompt);
            seqs[i] = waiting(i, (random >> 4) % 5, prompt);
            seqs[i].prompt = prompt;
            seqs[i].list = apart && prompt > list_tokens[0];
        }
        struct scheduler_limits limits = {.slots = 6, .step_tokens = 20, .page_tokens = LIFE_PAGE};
        while (alive > 0) {
            assert_in_range(++steps, 1, 50000);
            uint32_t index[LIFE_SEQS], n = 0, used = 0;
            struct scheduler_seq view[LIFE_SEQS];
            for (uint32_t i = 0; i < LIFE_SEQS; i++) {
                if (seqs[i].tokens >= want[i]) continue;
                index[n] = i;
                view[n++] = seqs[i];
            }
            limits.pages_free = free_pages;
            limits.turn = limits.few_turn = steps;
            limits.list_tokens = apart ? list_tokens : NULL;
            limits.few_tokens = 4; /* fewer than may want one */
            limits.prompts_next = !prompts_last;
            struct scheduler_step step;
            scheduler_form_step(view, n, &limits, &step);
            prompts_last = step.prompts;
            if (apart && step.row_count) check_apart(&step, view, &limits);
            assert_true(step.row_count > 0); /* no deadlock: some step is always possible */
            for (uint32_t i = 0; i < step.preempt_count; i++) {
                struct scheduler_seq *s = &seqs[index[step.preempt[i]]];
                assert_true(s->running);
                assert_null(row_of(&step, step.preempt[i]));
                free_pages += s->pages;
                s->pages = s->cached = 0;
                s->running = false;
            }
            for (uint32_t i = 0; i < step.admit_count; i++) {
                assert_false(seqs[index[step.admit[i]]].running);
                seqs[index[step.admit[i]]].running = true;
            }
            for (uint32_t i = 0; i < LIFE_SEQS; i++) used += seqs[i].running;
            assert_in_range(used, 1, limits.slots);
            uint32_t tokens = 0;
            for (uint32_t i = 0; i < step.row_count; i++) {
                const struct scheduler_row *row = &step.row[i];
                struct scheduler_seq *s = &seqs[index[row->seq]];
                assert_true(s->running);
                assert_int_equal(row->start, s->cached);
                assert_true(row->count > 0 && row->start + row->count <= s->tokens);
                assert_true(row->pages >= kv_pages_for(row->start + row->count, LIFE_PAGE));
                assert_true(row->pages >= s->pages && row->pages - s->pages <= free_pages);
                assert_int_equal(row->sample, row->start + row->count == s->tokens);
                free_pages -= row->pages - s->pages;
                s->pages = row->pages;
                s->cached += row->count;
                tokens += row->count;
                if (row->sample && ++s->tokens >= want[index[row->seq]]) {
                    free_pages += s->pages;
                    s->running = false;
                    alive--;
                }
            }
            assert_int_equal(tokens, step.token_count);
            assert_in_range(tokens, 1, limits.step_tokens);
        }
        assert_int_equal(free_pages, LIFE_PAGES);
    }
}

static void everything_ends_whatever_the_pool(void **state)
{
    (void)state;
    live(false);
    live(true);
}

/* Steps of an invariant plan: prompts of one list, or tokens after prompts, in turn. */
static void prompts_and_what_is_behind_them_are_apart(void **state)
{
    (void)state;
    static const uint32_t list_tokens[] = {30, 64};
    struct scheduler_seq seqs[] = {running(1, 1, 500, 100, 7), running(2, 1, 50, 49, 4),
                                   running(3, 2, 90, 80, 5), running(4, 2, 20, 3, 1)};
    struct scheduler_limits limits = usual;
    struct scheduler_step step;
    seqs[0].prompt = 500, seqs[0].list = 1;
    seqs[1].prompt = 20;
    seqs[2].prompt = 60; /* computes its output anew */
    seqs[3].prompt = 20;
    limits.list_tokens = list_tokens;
    limits.few_tokens = 8;
    scheduler_form_step(seqs, 4, &limits, &step);
    assert_false(step.prompts);
    assert_int_equal(step.row_count, 2);
    assert_int_equal(row_of(&step, 1)->count, 1);
    assert_int_equal(row_of(&step, 2)->count, 7); /* of ten what there is room for */
    assert_false(row_of(&step, 2)->sample);
    limits.prompts_next = true;
    bool of_list[2] = {false, false};
    for (limits.turn = 0; limits.turn < 2; limits.turn++) {
        scheduler_form_step(seqs, 4, &limits, &step);
        assert_true(step.prompts);
        assert_int_equal(step.row_count, 1);
        assert_int_equal(step.row[0].seq, step.list ? 0 : 3);
        assert_int_equal(step.row[0].count, step.list ? 64 : 17);
        assert_int_equal(step.row[0].sample, !step.list);
        of_list[step.list] = true;
    }
    assert_true(of_list[0] && of_list[1]);
    seqs[0].held = seqs[3].held = true; /* no prompt wants anything: the others go on */
    scheduler_form_step(seqs, 4, &limits, &step);
    assert_false(step.prompts);
    assert_int_equal(step.row_count, 2);
    /* the last token of a prompt is the prompt's, however few are left */
    struct scheduler_seq last = running(5, 1, 33, 32, 3);
    last.prompt = 33;
    limits.prompts_next = false;
    scheduler_form_step(&last, 1, &limits, &step);
    assert_true(step.prompts && step.row[0].sample);
    assert_int_equal(step.row[0].count, 1);
}

/* More sequences than a step has tokens for: none is left out for long. */
static void sequences_take_turns_behind_prompts(void **state)
{
    (void)state;
    static const uint32_t list_tokens[] = {64};
    struct scheduler_seq seqs[7];
    struct scheduler_limits limits = usual;
    struct scheduler_step step;
    uint32_t got[7] = {0};
    for (uint32_t i = 0; i < 7; i++) {
        seqs[i] = running(i, i, 33, 32, 3);
        seqs[i].prompt = 8;
    }
    limits.list_tokens = list_tokens;
    limits.few_tokens = 3;
    for (limits.few_turn = 0; limits.few_turn < 7; limits.few_turn++) {
        scheduler_form_step(seqs, 7, &limits, &step);
        assert_int_equal(step.row_count, 3);
        for (uint32_t i = 0; i < step.row_count; i++) got[step.row[i].seq]++;
    }
    for (uint32_t i = 0; i < 7; i++) assert_int_equal(got[i], 3);
}

/* One that waits for its mask gets nothing, is not admitted and holds up no other; its pages can be had. */
static void who_is_held_gets_nothing(void **state)
{
    (void)state;
    struct scheduler_seq seqs[] = {running(1, 1, 33, 32, 2), running(2, 1, 65, 64, 4), waiting(3, 1, 40),
                                   waiting(4, 2, 40)};
    struct scheduler_limits limits = usual;
    struct scheduler_step step;
    seqs[1].held = seqs[2].held = true;
    scheduler_form_step(seqs, 4, &limits, &step);
    assert_non_null(row_of(&step, 0));
    assert_null(row_of(&step, 1));
    assert_int_equal(step.admit_count, 1);
    assert_int_equal(step.admit[0], 3);
    seqs[1].tokens = 200; /* a prompt is not computed either */
    scheduler_form_step(seqs, 4, &limits, &step);
    assert_null(row_of(&step, 1));
    limits.pages_free = 0; /* the oldest needs a page */
    scheduler_form_step(seqs, 2, &limits, &step);
    assert_int_equal(step.preempt_count, 1);
    assert_int_equal(step.preempt[0], 1);
    assert_non_null(row_of(&step, 0));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nothing_to_do_is_an_empty_step),
        cmocka_unit_test(decodes_come_before_prompts),
        cmocka_unit_test(a_prompt_holds_up_others_no_longer_than_allowed),
        cmocka_unit_test(drafts_go_with_the_newest_token),
        cmocka_unit_test(the_last_chunk_samples),
        cmocka_unit_test(clients_take_turns_with_prompts),
        cmocka_unit_test(slots_go_to_the_client_with_the_fewest),
        cmocka_unit_test(peers_take_turns_with_prompts_before_clients),
        cmocka_unit_test(slots_are_given_in_turn),
        cmocka_unit_test(nobody_overtakes_one_that_waits_for_pages),
        cmocka_unit_test(the_youngest_gives_its_pages_to_the_oldest),
        cmocka_unit_test(the_same_page_is_filled_once),
        cmocka_unit_test(the_same_beginning_is_computed_once),
        cmocka_unit_test(one_token_requests_run_at_once),
        cmocka_unit_test(who_is_held_gets_nothing),
        cmocka_unit_test(everything_ends_whatever_the_pool),
        cmocka_unit_test(prompts_and_what_is_behind_them_are_apart),
        cmocka_unit_test(sequences_take_turns_behind_prompts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
