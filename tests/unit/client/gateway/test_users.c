/* Unit tests of client/gateway/users.c: whose a request is, shares of generations, and bodies that are read
 * in turn. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/gateway/exchange.h"
#include "client/gateway/users.h"

static void a_user_is_there_while_it_has_requests(void **state)
{
    (void)state;
    struct users users = {0};
    struct user *anna = users_enter(&users, "anna"), *bob = users_enter(&users, "bob");
    assert_ptr_not_equal(anna, bob);
    assert_ptr_equal(users_enter(&users, "anna"), anna);
    assert_string_equal(bob->name, "bob");
    users_leave(&users, anna);
    users_leave(&users, NULL);
    users_leave(&users, bob);
    assert_ptr_equal(users.first, anna);
    assert_null(anna->next);
    users_leave(&users, anna);
    assert_null(users.first);
}

static void addresses_are_users(void **state)
{
    (void)state;
    static const char *const cases[][2] = {{"192.0.2.7", "192.0.2.7"},
                                           {"::ffff:192.0.2.7", "192.0.2.7"},
                                           {"2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"},
                                           {"2001:db8:1:2::", "2001:db8:1:2::/64"},
                                           {"::1", "::/64"},
                                           {"", ""}};
    char name[USERS_NAME];
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        users_name_address(cases[i][0], name);
        assert_string_equal(name, cases[i][1]);
    }
}

static void bodies_count_for_their_user(void **state)
{
    (void)state;
    struct users users = {0};
    struct user *anna = users_enter(&users, "anna"), *bob = users_enter(&users, "bob");
    assert_null(users_largest(&users));
    users_add_body(&users, anna, 10);
    users_add_body(&users, bob, 7);
    users_add_body(&users, bob, 7);
    assert_ptr_equal(users_largest(&users), bob);
    users_drop_body(&users, bob, 7);
    assert_ptr_equal(users_largest(&users), anna);
    assert_int_equal(users.body_bytes, 17);
    users_leave(&users, anna);
    users_leave(&users, bob);
}

/* Opens as many as it may, one at a time, `most` at most. */
static uint32_t fill(struct users *users, struct user *user, uint32_t most)
{
    struct helm_err err = {0};
    uint32_t n = 0;
    for (; n < most && users_check_generations(users, user, 1, &err) == 0; n++)
        users_open_generation(users, user);
    return n;
}

static void generations_are_shared(void **state)
{
    (void)state;
    enum { USERS = 5, PLACES = USERS_GENERATIONS_MAX };
    struct users users = {0};
    struct user *user[USERS];
    struct helm_err err = {0};
    for (int i = 0; i < USERS; i++) {
        char name[8];
        snprintf(name, sizeof name, "%d", i);
        user[i] = users_enter(&users, name);
    }
    assert_int_equal(fill(&users, user[0], 5000), PLACES / 2); /* never more of one */
    assert_int_equal(users_check_generations(&users, user[0], 1, &err), HELM_E_BUSY);
    assert_non_null(strstr(err.text, "500 of the 500 open generations are this user's"));
    assert_int_equal(fill(&users, user[1], 20), 20);
    assert_int_equal(fill(&users, user[1], 5000), PLACES / 2 - 20 - PLACES / 16);
    assert_int_equal(fill(&users, user[2], 5), 5); /* a newcomer finds a place */
    assert_true(fill(&users, user[2], 5000) < PLACES / 16 - 5);
    assert_int_equal(fill(&users, user[3], 1), 1); /* and so does the next one */
    users_close_generation(&users, user[0]);
    assert_int_equal(fill(&users, user[0], 1), 0); /* places beyond its share go to others */
    /* as generations end, all have the same */
    for (int round = 0; round < 2000; round++) {
        const int ends = round % USERS;
        if (user[ends]->generations) users_close_generation(&users, user[ends]);
        for (int i = 0; i < USERS; i++) fill(&users, user[i], 1);
    }
    for (int i = 0; i < USERS; i++) {
        assert_true(user[i]->generations >= PLACES / (USERS + 1) - 1);
        assert_true(user[i]->generations <= PLACES / USERS + 1);
    }
    assert_true(users.generations <= PLACES);
    for (int i = 0; i < USERS; i++) users_leave(&users, user[i]);
}

static void as_many_users_as_places_have_one_each(void **state)
{
    (void)state;
    struct users users = {0};
    struct user *user[USERS_GENERATIONS_MAX];
    for (int i = 0; i < USERS_GENERATIONS_MAX; i++) {
        char name[8];
        snprintf(name, sizeof name, "%d", i);
        user[i] = users_enter(&users, name);
        assert_int_equal(fill(&users, user[i], 1), 1);
    }
    for (int i = 0; i < USERS_GENERATIONS_MAX; i++) {
        users_close_generation(&users, user[i]);
        users_leave(&users, user[i]);
    }
}

static void several_at_once_are_checked_together(void **state)
{
    (void)state;
    struct users users = {0};
    struct helm_err err = {0};
    struct user *anna = users_enter(&users, "anna");
    fill(&users, anna, USERS_GENERATIONS_MAX / 2 - 3);
    assert_int_equal(users_check_generations(&users, anna, 4, &err), HELM_E_BUSY);
    assert_int_equal(users_check_generations(&users, anna, 3, &err), 0);
    users_leave(&users, anna);
}

/* ---- the queue -------------------------------------------------------------------------------------- */

enum { JOBS = 12 };

struct stage {
    struct users users;
    struct user *user[3];
    struct users_queue queue;
    struct exchange *job[JOBS];
};

static void stage_open(struct stage *s, uint32_t at_once)
{
    static const char *const names[] = {"a", "b", "c"};
    memset(s, 0, sizeof *s);
    for (int i = 0; i < 3; i++) s->user[i] = users_enter(&s->users, names[i]);
    for (int i = 0; i < JOBS; i++) {
        s->job[i] = calloc(1, sizeof *s->job[i]);
        assert_non_null(s->job[i]);
    }
    users_queue_open(&s->queue, at_once);
}

static void stage_close(struct stage *s)
{
    for (int i = 0; i < JOBS; i++) free(s->job[i]);
    for (int i = 0; i < 3; i++) users_leave(&s->users, s->user[i]);
}

static void push(struct stage *s, int job, int user)
{
    s->job[job]->whose = s->user[user];
    users_queue_push(&s->queue, s->job[job]);
}

static void takes(struct stage *s, int job)
{
    struct exchange *ex = users_queue_take(&s->queue);
    assert_ptr_equal(ex, job < 0 ? NULL : s->job[job]);
}

static void users_take_turns(void **state)
{
    (void)state;
    struct stage s;
    stage_open(&s, JOBS);
    takes(&s, -1);
    for (int i = 0; i < 6; i++) push(&s, i, 0);
    push(&s, 6, 1);
    push(&s, 7, 1);
    push(&s, 8, 2);
    /* a's six, b's two and c's one */
    static const int order[] = {0, 6, 8, 1, 7, 2, 3};
    for (size_t i = 0; i < sizeof order / sizeof *order; i++) takes(&s, order[i]);
    push(&s, 9, 2); /* comes later, and is next but one */
    takes(&s, 4);
    takes(&s, 9);
    takes(&s, 5);
    takes(&s, -1);
    push(&s, 10, 1);
    takes(&s, 10);
    takes(&s, -1);
    stage_close(&s);
}

static void one_user_does_not_take_all_threads(void **state)
{
    (void)state;
    struct stage s;
    stage_open(&s, 2);
    for (int i = 0; i < 4; i++) push(&s, i, 0);
    takes(&s, 0);
    takes(&s, 1);
    takes(&s, -1); /* a third thread waits, */
    push(&s, 4, 1);
    push(&s, 5, 1);
    takes(&s, 4); /* and is there for another */
    users_queue_done(s.user[0]);
    takes(&s, 2);
    takes(&s, 5);
    takes(&s, -1);
    users_queue_done(s.user[1]);
    takes(&s, -1);
    push(&s, 6, 2); /* after one that may not be taken */
    takes(&s, 6);
    users_queue_done(s.user[0]);
    push(&s, 7, 0);
    takes(&s, 3);
    users_queue_done(s.user[0]);
    takes(&s, 7);
    takes(&s, -1);
    stage_close(&s);
}

static void a_body_that_waits_can_be_taken_out(void **state)
{
    (void)state;
    struct stage s;
    stage_open(&s, JOBS);
    for (int i = 0; i < 3; i++) push(&s, i, 0);
    push(&s, 3, 1);
    push(&s, 4, 2);
    assert_true(users_queue_remove(&s.queue, s.job[1]));
    assert_false(users_queue_remove(&s.queue, s.job[1]));
    assert_true(users_queue_remove(&s.queue, s.job[2])); /* the last of a user */
    push(&s, 5, 0);
    assert_true(users_queue_remove(&s.queue, s.job[3])); /* the only one, of a user in the middle, */
    assert_true(users_queue_remove(&s.queue, s.job[4])); /* and of the last user */
    push(&s, 6, 1);
    takes(&s, 0);
    assert_false(users_queue_remove(&s.queue, s.job[0]));
    takes(&s, 6);
    takes(&s, 5);
    takes(&s, -1);
    push(&s, 7, 2);
    assert_true(users_queue_remove(&s.queue, s.job[7]));
    takes(&s, -1);
    push(&s, 8, 2);
    takes(&s, 8);
    stage_close(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_user_is_there_while_it_has_requests),
        cmocka_unit_test(addresses_are_users),
        cmocka_unit_test(bodies_count_for_their_user),
        cmocka_unit_test(generations_are_shared),
        cmocka_unit_test(as_many_users_as_places_have_one_each),
        cmocka_unit_test(several_at_once_are_checked_together),
        cmocka_unit_test(users_take_turns),
        cmocka_unit_test(one_user_does_not_take_all_threads),
        cmocka_unit_test(a_body_that_waits_can_be_taken_out),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
