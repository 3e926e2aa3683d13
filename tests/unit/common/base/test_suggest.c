/* Unit tests of common/base/suggest.c: which word is near enough. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <string.h>

#include "common/base/suggest.h"

static const char *near(const char *word)
{
    static const char *const names[] = {"run",      "status",     "plan",     "pull",
                                        "tokenize", "detokenize", "generate", "temperature"};
    struct suggest s;
    suggest_begin(&s, word, strlen(word));
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) suggest_try(&s, names[i]);
    return s.best ? s.best : "";
}

static void near_words(void **state)
{
    (void)state;
    assert_string_equal(near("stauts"), "status");
    assert_string_equal(near("statu"), "status");
    assert_string_equal(near("pul"), "pull");
    assert_string_equal(near("plna"), "plan");
    assert_string_equal(near("tokenise"), "tokenize");
    assert_string_equal(near("detokenise"), "detokenize");
    assert_string_equal(near("temprature"), "temperature");
    assert_string_equal(near("genrate"), "generate");
    assert_string_equal(near("rn"), "run"); /* two letters of three */
}

static void far_words(void **state)
{
    (void)state;
    static const char *const far[] = {"",
                                      "x",
                                      "rx",
                                      "fly",
                                      "wings",
                                      "statistical",
                                      "an-option-that-is-longer-than-any-word-that-is-compared-with-others"};
    for (size_t i = 0; i < sizeof far / sizeof *far; i++) assert_string_equal(near(far[i]), "");
}

static void known_words(void **state)
{
    (void)state;
    static const char words[] = "silu swish gelu";
    assert_true(suggest_knows(words, ' ', "silu"));
    assert_true(suggest_knows(words, ' ', "swish"));
    assert_true(suggest_knows(words, ' ', "gelu"));
    assert_false(suggest_knows(words, ' ', "sil"));
    assert_false(suggest_knows(words, ' ', "elu"));
    assert_false(suggest_knows(words, ' ', "gelus"));
    assert_false(suggest_knows(words, ' ', ""));
    assert_false(suggest_knows(words, ' ', "silu swish")); /* two words */
    assert_true(suggest_knows("on|off", '|', "off"));
    assert_false(suggest_knows("on|off", '|', "on|off"));
    assert_false(suggest_knows("", ',', "memory"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(near_words), cmocka_unit_test(far_words),
                                       cmocka_unit_test(known_words)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
