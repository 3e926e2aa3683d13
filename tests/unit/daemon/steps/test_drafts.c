/* Unit tests of daemon/steps/drafts.c: where drafts are found, and how many there may be next. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "daemon/steps/drafts.h"

/* The drafts of a text whose last `output` tokens are the answer; lists end with 0. */
static void check(const uint32_t *text, uint32_t output, const uint32_t *prediction, uint32_t most,
                  const uint32_t *expected)
{
    struct sequence seq = {.tokens = (uint32_t *)text, .prediction = (uint32_t *)prediction};
    uint32_t draft[ENGINE_DRAFTS_MAX], count = 0;
    while (text[seq.token_count]) seq.token_count++;
    while (prediction && prediction[seq.prediction_count]) seq.prediction_count++;
    while (expected[count]) count++;
    seq.prompt_count = seq.token_count - output;
    assert_int_equal(drafts_find(&seq, 1, most, draft), count);
    assert_memory_equal(draft, expected, count * sizeof *draft);
}
#define LIST(...) ((const uint32_t[]){__VA_ARGS__, 0})
#define NONE      ((const uint32_t[]){0})

static void the_longest_end_is_looked_for(void **state)
{
    (void)state;
    check(LIST(1, 2, 3, 4, 5, 1, 2), 1, NULL, 3, LIST(3, 4, 5));
    check(LIST(1, 2, 3, 4, 5, 1, 2), 1, NULL, 2, LIST(3, 4));
    check(LIST(1, 2, 3, 9, 2, 3, 8, 1, 2, 3), 1, NULL, 1, LIST(9));    /* three tokens, not the nearer two */
    check(LIST(1, 2, 7, 5, 1, 2, 8, 5, 6, 1, 2), 1, NULL, 1, LIST(8)); /* of two ends the nearer */
    check(LIST(1, 2, 3, 4, 2), 1, NULL, 4, NONE);                      /* one token alone says nothing */
    check(LIST(1, 2), 1, NULL, 4, NONE);
    check(LIST(1), 1, NULL, 4, NONE);
    check(LIST(3, 3, 3), 1, NULL, 4, LIST(3, 3, 3, 3)); /* it goes on as it began */
    check(LIST(9, 1, 2, 1, 2), 1, NULL, 5, LIST(1, 2, 1, 2, 1));
}

static void a_prediction_is_followed_and_searched(void **state)
{
    (void)state;
    check(LIST(9, 8, 1), 1, LIST(1, 2, 3), 4, LIST(2, 3)); /* one token is enough at its beginning */
    check(LIST(9, 8, 1, 2, 3), 3, LIST(1, 2, 3), 4, NONE); /* it is over */
    check(LIST(9, 8, 5), 1, LIST(1, 2, 3), 4, NONE);
    check(LIST(9, 8, 7, 2, 3), 3, LIST(1, 2, 3, 4, 5), 4, LIST(4, 5));          /* past a wrong one */
    check(LIST(2, 3, 6, 7, 2, 3), 3, LIST(1, 2, 3, 4, 5), 4, LIST(4, 5));       /* as long in the text */
    check(LIST(7, 2, 3, 6, 9, 7, 2, 3), 3, LIST(1, 2, 3, 4, 5), 2, LIST(6, 9)); /* longer in the text */
    check(LIST(1, 2, 3, 4, 1, 2), 2, LIST(1, 2, 9), 4, LIST(9)); /* followed, whatever the text says */
}

/* A prediction with wrong tokens is followed place by place, as long as half of the last ones were right. */
static void a_prediction_may_be_partly_wrong(void **state)
{
    (void)state;
    check(LIST(9, 1, 2, 6), 3, LIST(1, 2, 3, 4, 5), 2, LIST(4, 5));
    check(LIST(9, 1, 6, 7), 3, LIST(1, 2, 3, 4, 5), 2, NONE);
    check(LIST(9, 6, 2), 2, LIST(1, 2, 3, 4, 5), 2, LIST(3, 4));
    check(LIST(9, 6), 1, LIST(1, 2, 3, 4, 5), 2, NONE);
    check(LIST(9, 2, 6, 8, 1, 2, 6), 3, LIST(1, 2, 3, 4, 5), 2,
          LIST(8, 1)); /* two tokens of the text say more */
}

/* However long the text, the look goes back so far and no further. */
static void a_look_is_bounded(void **state)
{
    (void)state;
    const uint32_t count = DRAFTS_LOOK + 100;
    struct sequence seq = {.tokens = calloc(count, sizeof *seq.tokens),
                           .token_count = count,
                           .prompt_count = 1};
    uint32_t draft[4];
    assert_non_null(seq.tokens);
    for (uint32_t i = 0; i < count; i++) seq.tokens[i] = 10 + i;
    memcpy(seq.tokens + 20, LIST(1, 2, 3), 3 * sizeof(uint32_t));
    memcpy(seq.tokens + count - 2, LIST(1, 2), 2 * sizeof(uint32_t));
    assert_int_equal(drafts_find(&seq, 1, 4, draft), 0);
    memcpy(seq.tokens + 200, LIST(1, 2, 3), 3 * sizeof(uint32_t));
    assert_int_equal(drafts_find(&seq, 1, 4, draft), 4);
    assert_int_equal(draft[0], 3);
    free(seq.tokens);
}

static void the_number_follows_what_was_right(void **state)
{
    (void)state;
    assert_int_equal(drafts_next(8, 8, 8), 8);
    assert_int_equal(drafts_next(8, 8, 3), 4);
    assert_int_equal(drafts_next(8, 4, 0), 1);
    assert_int_equal(drafts_next(8, 1, 1), 2);
    assert_int_equal(drafts_next(8, 2, 2), 4);
    assert_int_equal(drafts_next(3, 2, 2), 3);
    assert_int_equal(drafts_next(1, 1, 0), 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(the_longest_end_is_looked_for),
                                       cmocka_unit_test(a_prediction_is_followed_and_searched),
                                       cmocka_unit_test(a_prediction_may_be_partly_wrong),
                                       cmocka_unit_test(a_look_is_bounded),
                                       cmocka_unit_test(the_number_follows_what_was_right)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
