/* Unit tests of daemon/children/child_run.c: lines whatever pieces they come in, the last one kept. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#include "daemon/children/child_run.h"

static char heard[4096];

static void hear(void *context, const char *line)
{
    assert_null(context);
    size_t at = strlen(heard);
    snprintf(heard + at, sizeof heard - at, "%s|", line);
}

static void lines_whatever_pieces_they_come_in(void **state)
{
    (void)state;
    static const char text[] = "10 %\r20 %\n\n  \nno\tmemory\x7f\nbegun";
    for (size_t piece = 1; piece < sizeof text; piece++) {
        struct child_words words = {.on_line = hear};
        heard[0] = 0;
        for (size_t at = 0; at < sizeof text - 1; at += piece)
            child_words_take(&words, text + at, sizeof text - 1 - at < piece ? sizeof text - 1 - at : piece);
        assert_string_equal(words.last, "no memory ");
        assert_string_equal(child_words_end(&words), "begun");
        assert_string_equal(heard, "10 %|20 %|no memory |begun|");
    }
}

static void long_lines_come_in_pieces(void **state)
{
    (void)state;
    struct child_words words = {.on_line = hear};
    char text[2 * CHILD_WORDS_LINE];
    memset(text, 'x', sizeof text);
    heard[0] = 0;
    child_words_take(&words, text, sizeof text);
    assert_int_equal(strlen(words.last), CHILD_WORDS_LINE - 1);
    assert_int_equal(strlen(child_words_end(&words)), sizeof text - 2 * (CHILD_WORDS_LINE - 1));
    assert_int_equal(strlen(heard), sizeof text + 3);
}

static void silence_is_no_line(void **state)
{
    (void)state;
    struct child_words words = {0};
    assert_string_equal(child_words_end(&words), "");
    child_words_take(&words, "said\n \n\r\n", 9);
    assert_string_equal(child_words_end(&words), "said");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lines_whatever_pieces_they_come_in),
        cmocka_unit_test(long_lines_come_in_pieces),
        cmocka_unit_test(silence_is_no_line),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
