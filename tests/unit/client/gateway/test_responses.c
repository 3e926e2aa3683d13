/* Kept responses: whose they are, what goes first, and what stays as long as another one needs it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/gateway/responses.h"

#define BYTES 6000 /* of a response's text here */

static struct responses *open_responses(size_t bytes)
{
    struct responses *r = NULL;
    struct helm_err err = {0};
    assert_int_equal(responses_open(bytes, &r, &err), 0);
    return r;
}

static void add(struct responses *r, const char *owner, const char *id, const char *before)
{
    char text[BYTES + 1], item[80];
    struct response_items items = {0};
    memset(text, 'x', BYTES);
    text[BYTES] = 0;
    snprintf(item, sizeof item, "msg_%s", id);
    assert_true(response_items_add(&items, item, item, strlen(item)));
    items.said = 1;
    const struct response_new new = {.owner = owner,
                                     .id = id,
                                     .before = before ? responses_find(r, owner, before) : NULL,
                                     .items = &items,
                                     .text = text,
                                     .length = BYTES};
    responses_add(r, &new);
    assert_null(items.item);
}

static bool has(struct responses *r, const char *owner, const char *id)
{
    struct response *response = responses_find(r, owner, id);
    responses_give_back(response);
    return response != NULL;
}

static void test_owners(void **state)
{
    (void)state;
    struct responses *r = open_responses(1 << 20);
    add(r, "anna", "a", NULL);
    assert_true(has(r, "anna", "a"));
    assert_false(has(r, "bert", "a"));
    assert_false(responses_forget(r, "bert", "a"));
    assert_null(responses_copy_item(r, "bert", "msg_a"));
    char *copy = responses_copy_item(r, "anna", "msg_a");
    assert_string_equal(copy, "msg_a");
    free(copy);
    assert_true(responses_forget(r, "anna", "a"));
    assert_false(responses_forget(r, "anna", "a"));
    assert_null(responses_copy_item(r, "anna", "msg_a"));
    responses_close(r);
}

/* One that keeps many loses its own oldest; another's stays. */
static void test_bound(void **state)
{
    (void)state;
    char id[16];
    struct responses *r = open_responses(10 * (BYTES + 2000));
    add(r, "bert", "b", NULL);
    for (int i = 0; i < 100; i++) {
        snprintf(id, sizeof id, "a%d", i);
        add(r, "anna", id, NULL);
        assert_true(has(r, "anna", id));
    }
    assert_true(has(r, "bert", "b"));
    assert_true(has(r, "anna", "a95"));
    assert_false(has(r, "anna", "a80"));
    for (int i = 0; i < 100; i++) { /* many users with one each: the oldest of the most */
        snprintf(id, sizeof id, "c%d", i);
        add(r, id, id, NULL);
    }
    assert_false(has(r, "anna", "a95"));
    assert_false(has(r, "anna", "a98"));
    responses_close(r);

    r = open_responses(BYTES / 2);
    add(r, "anna", "a", NULL); /* more than there is room for */
    assert_false(has(r, "anna", "a"));
    struct response_items none = {0};
    const struct response_new little = {.owner = "anna", .id = "b", .items = &none, .text = "x", .length = 1};
    responses_add(r, &little);
    add(r, "anna", "c", NULL); /* ... takes no other one's room */
    assert_true(has(r, "anna", "b"));
    responses_close(r);
}

static void test_conversation(void **state)
{
    (void)state;
    struct responses *r = open_responses(1 << 20);
    add(r, "anna", "a1", NULL);
    add(r, "anna", "a2", "a1");
    add(r, "anna", "a3", "a2");
    assert_true(responses_forget(r, "anna", "a1"));
    assert_true(responses_forget(r, "anna", "a2"));
    struct response *last = responses_find(r, "anna", "a3");
    assert_non_null(last);
    const struct response *first = response_before(response_before(last));
    assert_string_equal(response_items(first)->item[0].id, "msg_a1");
    assert_null(response_before(first));
    assert_true(responses_forget(r, "anna", "a3")); /* held: it stays for its holder */
    size_t length;
    assert_non_null(response_text(last, &length));
    assert_int_equal(length, BYTES);
    responses_give_back(last);
    assert_false(has(r, "anna", "a3"));
    responses_close(r);
}

/* A long conversation within the bound of a whole: its end stays usable with all that is before it, or
 * goes. */
static void test_long_conversation(void **state)
{
    (void)state;
    char id[16], before[16] = "";
    struct responses *r = open_responses(10 * (BYTES + 2000));
    for (int i = 0; i < 9; i++) {
        snprintf(id, sizeof id, "a%d", i);
        add(r, "anna", id, *before ? before : NULL);
        memcpy(before, id, sizeof before);
    }
    struct response *last = responses_find(r, "anna", "a8");
    size_t depth = 0;
    for (const struct response *at = last; at; at = response_before(at)) depth++;
    assert_int_equal(depth, 9);
    responses_give_back(last);
    for (int i = 0; i < 10; i++) {
        snprintf(id, sizeof id, "b%d", i);
        add(r, "anna", id, NULL);
        assert_true(has(r, "anna", id));
    }
    assert_false(has(r, "anna", "a8"));
    responses_close(r);
}

static void test_none(void **state)
{
    (void)state;
    struct responses *r = open_responses(0);
    assert_false(responses_keep_any(r));
    assert_false(responses_keep_any(NULL));
    assert_null(responses_find(NULL, "anna", "a"));
    assert_false(has(r, "anna", "a"));
    responses_give_back(NULL);
    responses_close(r);
    responses_close(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_owners),       cmocka_unit_test(test_bound),
        cmocka_unit_test(test_conversation), cmocka_unit_test(test_long_conversation),
        cmocka_unit_test(test_none),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
