/* Unit tests of daemon/steps/admission.c: which clients may queue another request, and that the place which
 * it names is the one that scheduler.c gives. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdbool.h>
#include <string.h>

#include "daemon/steps/admission.h"
#include "daemon/steps/scheduler.h"

enum { GREEDY = 1, MODEST, THIRD, FOURTH };

static struct admission opened(uint32_t slots, uint32_t queue)
{
    struct admission admission;
    struct helm_err err = {0};
    assert_int_equal(admission_init(&admission, slots, queue, &err), 0);
    return admission;
}

/* Opens as many as it may, `most` at most. */
static uint32_t fill_of(struct admission *admission, uint64_t client, uint64_t peer, uint32_t most)
{
    struct helm_err err = {0};
    uint32_t n = 0;
    while (n < most && admission_check(admission, client, peer, &err) == 0) {
        admission_enter(admission, client, peer);
        n++;
    }
    return n;
}

/* Requests of clients that are peers of their own. */
static uint32_t fill(struct admission *admission, uint64_t client, uint32_t most)
{
    return fill_of(admission, client, client, most);
}

static void one_client_alone_leaves_room_for_the_next(void **state)
{
    (void)state;
    struct admission a = opened(8, 256);
    assert_int_equal(fill(&a, GREEDY, 1000), 8 + 256 - 32);
    struct helm_err err = {0};
    assert_int_equal(admission_check(&a, GREEDY, GREEDY, &err), HELM_E_BUSY);
    assert_non_null(strstr(err.text, "232 of the 232 open requests are this client's"));
    assert_non_null(strstr(err.text, "its share is 124"));
    assert_int_equal(fill(&a, MODEST, 20), 16); /* then the last sixteenth begins */
    assert_int_equal(admission_check(&a, GREEDY, GREEDY, &err), HELM_E_BUSY);
    assert_int_equal(fill(&a, THIRD, 1000), 8); /* as many as it leaves free */
    assert_int_equal(admission_check(&a, THIRD, THIRD, &err), HELM_E_BUSY);
    assert_non_null(strstr(err.text, "8 of the 256 open requests are this user's or key's"));
    assert_non_null(strstr(err.text, "its share is 8"));
    for (uint64_t next = 10; next < 18; next++) assert_int_equal(fill(&a, next, 1), 1);
    assert_int_equal(admission_check(&a, 18, 18, &err), HELM_E_BUSY);
    assert_non_null(strstr(err.text, "264 requests are open (8 at once and a queue of 256)"));
    admission_free(&a);
}

static void half_the_queue_is_whoever_comes(void **state)
{
    (void)state;
    struct admission a = opened(2, 16);
    assert_int_equal(fill(&a, MODEST, 1), 1);
    assert_int_equal(fill(&a, GREEDY, 1000), 10); /* 2 + 8, then one more, which makes it more than half */
    assert_int_equal(fill(&a, MODEST, 1000), 5);
    assert_int_equal(fill(&a, THIRD, 1000), 1);
    assert_int_equal(fill(&a, FOURTH, 1000), 1);
    struct helm_err err = {0};
    assert_int_equal(admission_check(&a, 9, 9, &err), HELM_E_BUSY); /* full */
    admission_free(&a);
}

static void what_ends_gives_its_share_back(void **state)
{
    (void)state;
    struct admission a = opened(1, 8);
    struct helm_err err = {0};
    uint32_t entry[8], other = admission_enter(&a, MODEST, MODEST);
    for (int i = 0; i < 5; i++) entry[i] = admission_enter(&a, GREEDY, GREEDY);
    assert_int_equal(a.clients, 2);
    assert_int_equal(admission_check(&a, GREEDY, GREEDY, &err), HELM_E_BUSY);
    admission_leave(&a, other);
    assert_int_equal(a.clients, 1);
    assert_int_equal(admission_check(&a, GREEDY, GREEDY, &err), 0); /* half full */
    assert_int_equal(admission_enter(&a, GREEDY, GREEDY), entry[0]);
    assert_int_equal(admission_check(&a, GREEDY, GREEDY, &err), 0); /* alone again: its share is all of it */
    for (int i = 0; i < 5; i++) admission_leave(&a, entry[i]);
    admission_leave(&a, entry[0]);
    assert_int_equal(a.open + a.clients + a.used, 0);
    admission_free(&a);
}

static void a_queue_of_few_or_none_is_used_to_the_end(void **state)
{
    (void)state;
    for (uint32_t queue = 0; queue < 8; queue++) {
        struct admission a = opened(1, queue);
        assert_int_equal(fill(&a, GREEDY, 1000), 1 + queue);
        admission_free(&a);
    }
}

static void everybody_has_a_share_of_one(void **state)
{
    (void)state;
    struct admission a = opened(1, 15);
    for (uint64_t client = 1; client <= 16; client++) assert_int_equal(fill(&a, client, 1), 1);
    struct helm_err err = {0};
    assert_int_equal(admission_check(&a, 17, 17, &err), HELM_E_BUSY);
    admission_free(&a);
}

/* Eight connections of one peer are one peer; and among themselves they are eight. */
static void a_peer_has_one_share_however_many_clients_it_has(void **state)
{
    (void)state;
    struct admission a = opened(8, 256);
    struct helm_err err = {0};
    uint32_t held = 0;
    for (uint64_t client = 1; client <= 8; client++) held += fill_of(&a, client, 100, 40);
    assert_int_equal(held, 8 + 256 - 16); /* the last sixteenth is for another peer */
    assert_int_equal(fill_of(&a, 9, 100, 1000), 0);
    assert_int_equal(admission_check(&a, 1, 100, &err), HELM_E_BUSY);
    assert_non_null(strstr(err.text, "248 of the 248 open requests are this user's or key's"));
    assert_int_equal(fill_of(&a, 10, 200, 1000), 8); /* as many as it leaves free */
    assert_int_equal(fill_of(&a, 11, 300, 1000), 4);
    assert_int_equal(fill_of(&a, 10, 200, 1000), 0);
    assert_int_equal(fill_of(&a, 12, 400, 1000), 2);
    assert_int_equal(fill_of(&a, 13, 500, 1000), 1);
    assert_int_equal(fill_of(&a, 14, 600, 1000), 1); /* the last place */
    assert_int_equal(fill_of(&a, 15, 700, 1000), 0);
    admission_free(&a);

    a = opened(8, 256);
    assert_int_equal(fill_of(&a, 1, 100, 1000), 232);
    assert_int_equal(fill_of(&a, 2, 100, 1000), 16); /* a second client of the same peer finds a place, too */
    assert_int_equal(fill_of(&a, 3, 200, 1000), 8);
    assert_int_equal(a.open, 256);
    admission_free(&a);
}

/* One peer takes what it may while it is alone, and a second one comes. A third one still finds a place. */
static void neither_one_peer_nor_two_keep_out_a_third(void **state)
{
    (void)state;
    struct admission a = opened(4, 64);
    assert_int_equal(fill_of(&a, 1, GREEDY, 1000) + fill_of(&a, 2, GREEDY, 1000), 64);
    assert_int_equal(fill_of(&a, 3, THIRD, 1000), 2);
    assert_int_equal(fill_of(&a, 4, MODEST, 1), 1);
    admission_free(&a);
}

/* The users of a gateway come over one connection, and each has a share of its own. */
static void one_connection_is_a_client_of_each_peer_that_it_asks_for(void **state)
{
    (void)state;
    struct admission a = opened(8, 256);
    struct helm_err err = {0};
    assert_int_equal(fill_of(&a, 1, 100, 1000), 232);
    assert_int_equal(a.clients, 1);
    assert_int_equal(admission_check(&a, 1, 100, &err), HELM_E_BUSY);
    assert_int_equal(fill_of(&a, 1, 200, 10), 10);
    assert_int_equal(fill_of(&a, 1, 300, 10), 10);
    assert_int_equal(a.clients, 3);
    assert_int_equal(a.peers, 3);
    const uint32_t first = admission_enter(&a, 1, 200), second = admission_enter(&a, 1, 300);
    assert_int_not_equal(first, second);
    admission_give_slot(&a, first);
    assert_true(admission_client_turn(&a, first) > admission_client_turn(&a, second));
    assert_true(admission_peer_turn(&a, first) > admission_peer_turn(&a, second));
    admission_leave(&a, first);
    admission_leave(&a, second);
    assert_int_equal(a.peers, 3);
    admission_free(&a);
}

/* ---- places: the scheduler itself, with requests that end one after the other ------------------------- */

enum { SEQS = 24, SLOTS_MAX = 4 };

struct life {
    struct scheduler_seq seq[SEQS];
    bool ended[SEQS];
    uint32_t slot[SLOTS_MAX], slots,
        running; /* the requests with slots, in the order in which they got them */
    uint32_t entry[SEQS];
    const struct admission *admission;
    uint64_t client_turn[SEQS], peer_turn[SEQS], turn; /* those of the slots given here; 0: none */
};

static uint32_t life_view(const struct life *life, struct scheduler_seq *view, uint32_t *index)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < SEQS; i++) {
        if (life->ended[i]) continue;
        index[n] = i;
        view[n] = life->seq[i];
        view[n].client_turn = admission_client_turn(life->admission, life->entry[i]);
        view[n].peer_turn = admission_peer_turn(life->admission, life->entry[i]);
        for (uint32_t k = 0; k < SEQS; k++) {
            if (life->seq[k].client == view[n].client && life->client_turn[k] > view[n].client_turn)
                view[n].client_turn = life->client_turn[k];
            if (life->seq[k].peer == view[n].peer && life->peer_turn[k] > view[n].peer_turn)
                view[n].peer_turn = life->peer_turn[k];
        }
        n++;
    }
    return n;
}

/* Lets the scheduler fill the slots. */
static void life_step(struct life *life)
{
    struct scheduler_seq view[SEQS];
    uint32_t index[SEQS], n = life_view(life, view, index);
    struct scheduler_limits limits = {.slots = life->slots,
                                      .step_tokens = 64,
                                      .page_tokens = 16,
                                      .pages_free = 1000};
    struct scheduler_step step;
    scheduler_form_step(view, n, &limits, &step);
    for (uint32_t i = 0; i < step.admit_count; i++) {
        life->seq[index[step.admit[i]]].running = true;
        life->client_turn[index[step.admit[i]]] = life->peer_turn[index[step.admit[i]]] = ++life->turn;
        life->slot[life->running++] = index[step.admit[i]];
    }
}

static void life_end_first(struct life *life)
{
    life->ended[life->slot[0]] = true;
    memmove(life->slot, life->slot + 1, sizeof life->slot - sizeof *life->slot);
    life->running--;
}

/* The scheduler's truth: how many must end before this one gets a slot. */
static uint32_t ends_in_truth(struct life life, uint32_t seq)
{
    for (uint32_t ends = 0;; ends++) {
        life_step(&life);
        if (life.seq[seq].running) return ends;
        life_end_first(&life);
    }
}

static void the_place_is_the_one_that_the_scheduler_gives(void **state)
{
    (void)state;
    uint32_t out_of_turn = 0;
    for (uint32_t seed = 1; seed <= 200; seed++) {
        struct life life = {.slots = 1 + seed % SLOTS_MAX, .turn = 1000};
        struct admission a = opened(life.slots, SEQS);
        life.admission = &a;
        struct admission_request list[SEQS];
        uint32_t random = seed, entry[SEQS], clients = 1 + seed % 5;
        for (uint32_t i = 0; i < SEQS; i++) {
            random = random * 1664525 + 1013904223;
            uint64_t client = 1 + (random >> 16) % clients;
            const uint64_t peer = seed % 3 ? client % (1 + seed % 3) : client;
            if (seed % 5 == 0) client = 1 + random % 2; /* gateways: connections that ask for several peers */
            life.entry[i] = entry[i] = admission_enter(&a, client, peer);
            life.seq[i] = (struct scheduler_seq){.order = i, .client = entry[i], .peer = peer, .tokens = 2};
        }
        /* some of them have slots already, and have them in the order in which they came */
        for (uint32_t i = 0; i < seed % (life.slots + 1); i++) {
            life.seq[2 * i].running = true;
            life.slot[life.running++] = 2 * i;
            if (seed % 2) admission_give_slot(&a, entry[2 * i]);
        }
        for (uint32_t i = 0; i < SEQS; i++)
            list[i] = (struct admission_request){.entry = entry[i], .running = life.seq[i].running};
        for (uint32_t i = 0; i < SEQS; i++) {
            uint32_t place = admission_ends_before(&a, list, SEQS, i), waiting = 0;
            assert_int_equal(place, life.seq[i].running ? 0 : ends_in_truth(life, i));
            for (uint32_t k = 0; k < i; k++) waiting += !list[k].running;
            uint32_t vacant = life.slots - life.running;
            if (!list[i].running) out_of_turn += place != (waiting < vacant ? 0 : waiting - vacant + 1);
        }
        admission_free(&a);
    }
    assert_true(out_of_turn > 0); /* the order of arrival is not it */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_client_alone_leaves_room_for_the_next),
        cmocka_unit_test(half_the_queue_is_whoever_comes),
        cmocka_unit_test(what_ends_gives_its_share_back),
        cmocka_unit_test(a_queue_of_few_or_none_is_used_to_the_end),
        cmocka_unit_test(everybody_has_a_share_of_one),
        cmocka_unit_test(a_peer_has_one_share_however_many_clients_it_has),
        cmocka_unit_test(neither_one_peer_nor_two_keep_out_a_third),
        cmocka_unit_test(one_connection_is_a_client_of_each_peer_that_it_asks_for),
        cmocka_unit_test(the_place_is_the_one_that_the_scheduler_gives),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
