/* The finder against a search of every spelling at every place, and texts that a walk from every place would
 * need minutes for. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "client/text/tokenizer/internal.h"

#define SPELLINGS 40
#define TEXT      300

static uint32_t next_random(uint32_t *state)
{
    *state = *state * 1664525u + 1013904223u;
    return *state >> 16;
}

struct spelling {
    char text[12];
    size_t length;
};

/* The longest spelling that text begins with, the first of those that are the same; count: none. */
static size_t longest_at(const struct spelling *all, size_t count, const char *text, size_t length)
{
    size_t best = count;
    for (size_t i = 0; i < count; i++)
        if (all[i].length <= length && memcmp(all[i].text, text, all[i].length) == 0 &&
            (best == count || all[i].length > all[best].length))
            best = i;
    return best;
}

static void check_run(const struct tok_finder *finder, const struct spelling *all, size_t count,
                      const char *text, size_t from, size_t to)
{
    uint32_t states[TEXT];
    tok_finder_run(finder, text, TEXT, from, to, states);
    for (size_t at = from; at < to; at++) {
        const struct tok_finder_state *found = &finder->states[states[at - from]];
        size_t expected = longest_at(all, count, text + at, TEXT - at);
        size_t value = expected == count ? HELM_TOKENIZER_NO_ID : expected;
        size_t length = expected == count ? 0 : all[expected].length;
        if (found->value != value || found->length != length)
            fail_msg("at %zu of [%zu, %zu): spelling %u of %u bytes, not %zu of %zu", at, from, to,
                     found->value, found->length, value, length);
    }
}

static void test_against_reference(void **state)
{
    (void)state;
    struct helm_err err = {0};
    uint32_t seed = 1;
    for (int round = 0; round < 400; round++) {
        /* few letters, so that spellings overlap, begin and end alike; also bytes above 127 and 0 */
        const char letters[] = {'a', 'b', (char)0xE9, 0};
        unsigned used = 1 + (unsigned)round % 4;
        size_t count = 1 + next_random(&seed) % SPELLINGS;
        struct spelling all[SPELLINGS];
        struct tok_finder finder = {0};
        char text[TEXT];
        for (size_t i = 0; i < count; i++) {
            all[i].length = 1 + next_random(&seed) % (round % 3 ? 4 : sizeof all[i].text);
            for (size_t k = 0; k < all[i].length; k++) all[i].text[k] = letters[next_random(&seed) % used];
            assert_int_equal(tok_finder_add(&finder, all[i].text, all[i].length, (uint32_t)i, &err), 0);
        }
        for (size_t i = 0; i < TEXT; i++) text[i] = letters[next_random(&seed) % used];
        assert_int_equal(tok_finder_build(&finder, &err), 0);
        check_run(&finder, all, count, text, 0, TEXT);
        for (size_t from = 0; from < TEXT; from += 37)
            check_run(&finder, all, count, text, from, from + 37 < TEXT ? from + 37 : TEXT);
        check_run(&finder, all, count, text, 5, 5);
        tok_finder_free(&finder);
    }
}

static void test_empty(void **state)
{
    (void)state;
    struct helm_err err = {0};
    struct tok_finder finder = {0};
    assert_int_equal(tok_finder_build(&finder, &err), 0);
    assert_int_equal(finder.state_count, 0);
    tok_finder_free(&finder);
}

/* Every byte may follow in a spelling: successors are looked up among 256. */
static void test_all_bytes(void **state)
{
    (void)state;
    struct helm_err err = {0};
    struct tok_finder finder = {0};
    uint32_t found[3];
    for (uint32_t i = 0; i < 65536; i++) {
        const char text[2] = {(char)(i >> 8), (char)i};
        assert_int_equal(tok_finder_add(&finder, text, 2, i, &err), 0);
    }
    assert_int_equal(tok_finder_build(&finder, &err), 0);
    for (uint32_t i = 0; i < 65536; i += 257) {
        const char text[3] = {(char)(i >> 8), (char)i, (char)(i >> 8)};
        tok_finder_run(&finder, text, 3, 0, 3, found);
        assert_int_equal(finder.states[found[0]].value, i);
        assert_int_equal(finder.states[found[1]].value, (i & 255) << 8 | i >> 8);
        assert_int_equal(finder.states[found[2]].value, HELM_TOKENIZER_NO_ID);
    }
    tok_finder_free(&finder);
}

static double cpu_seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

/* Splits `length` bytes of `unit` again and again at these tokens; returns the pieces. */
static size_t split(const char *tokens, const char *unit, size_t length, double *seconds)
{
    struct helm_err err = {0};
    struct helm_tokenizer *t;
    struct tok_pieces pieces = {0};
    char json[8192];
    snprintf(json, sizeof json, "{\"added_tokens\":[%s],\"model\":{\"vocab\":{},\"merges\":[]}}", tokens);
    if (helm_tokenizer_open_memory(json, strlen(json), NULL, 0, &t, &err)) fail_msg("%s", err.text);
    char *text = malloc(length);
    assert_non_null(text);
    for (size_t i = 0; i < length; i++) text[i] = unit[i % strlen(unit)];
    double begin = cpu_seconds();
    assert_int_equal(tok_added_split(&t->added, &t->added.raw, NULL, (struct tok_slice){text, length}, true,
                                     &pieces, &err),
                     0);
    *seconds = cpu_seconds() - begin;
    size_t count = pieces.count, covered = 0;
    for (size_t i = 0; i < count; i++) covered += pieces.data[i].length;
    assert_true(covered >= length); /* blanks that rstrip took may be a token, too */
    free(pieces.data);
    free(text);
    helm_tokenizer_close(t);
    return count;
}

/* Each is some 10^10 steps or more if every place is walked from anew; the bound only tells that from 10^8.
 */
static void test_linear(void **state)
{
    (void)state;
    const size_t length = 32u << 20;
    char tokens[4096], run[1024];
    double seconds;
    memset(run, 'a', 1023);
    run[1023] = '\0';
    snprintf(tokens, sizeof tokens, "{\"id\":0,\"normalized\":false,\"content\":\"%sb\"}", run);
    assert_int_equal(split(tokens, "a", length, &seconds), 1);
    if (seconds > 15) fail_msg("%.1f s of CPU time for a spelling that never ends", seconds);
    /* one is found at every place, and a longer one nearly */
    snprintf(tokens, sizeof tokens,
             "{\"id\":0,\"normalized\":false,\"content\":\"%sb\"},{\"id\":1,\"normalized\":false,\"content\":"
             "\"aa\"}",
             run);
    assert_int_equal(split(tokens, "a", length, &seconds), length / 2);
    if (seconds > 15) fail_msg("%.1f s of CPU time for a spelling that ends early", seconds);
    /* white space that is taken by rstrip, and tokens in it */
    const char *blank = "{\"id\":0,\"normalized\":false,\"content\":\" "
                        "\",\"rstrip\":true},{\"id\":1,\"normalized\":false,\"content\":\"\\t\"}";
    assert_int_equal(split(blank, " ", length / 8, &seconds), length / 8);
    if (seconds > 15) fail_msg("%.1f s of CPU time for tokens of white space", seconds);
    assert_int_equal(split(blank, " \t", length / 8, &seconds), length / 8);
    if (seconds > 15) fail_msg("%.1f s of CPU time for tokens of mixed white space", seconds);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_against_reference),
        cmocka_unit_test(test_empty),
        cmocka_unit_test(test_all_bytes),
        cmocka_unit_test(test_linear),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
