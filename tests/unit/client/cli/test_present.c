/* Unit tests of client/cli/present.c: where lines are broken, what is dimmed, in whatever pieces the text
 * comes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#include "client/cli/present.h"

static char shown[8192];
static size_t used;

static int keep(const void *data, size_t bytes, struct helm_err *err)
{
    assert_true(used + bytes < sizeof shown);
    assert_non_null(err);
    memcpy(shown + used, data, bytes);
    used += bytes;
    shown[used] = '\0';
    return 0;
}

/* The same for every size of pieces that does not cut a character of `whole` bytes. */
static void expect(struct present begin, const char *text, size_t whole, const char *expected)
{
    struct helm_err err = {0};
    for (size_t piece = whole; piece <= strlen(text) + whole; piece += whole) {
        struct present p = begin;
        p.write = keep;
        used = 0;
        shown[0] = '\0';
        for (size_t at = 0; at < strlen(text); at += piece) {
            const size_t left = strlen(text) - at;
            assert_int_equal(present_add(&p, text + at, left < piece ? left : piece, &err), 0);
        }
        assert_int_equal(present_end(&p, &err), 0);
        assert_string_equal(shown, expected);
    }
}

static void lines_are_broken_between_words(void **state)
{
    (void)state;
    const struct present ten = {.width = 10};
    expect(ten, "one two three", 1, "one two\nthree");
    expect(ten, "one two thr\nx", 1, "one two\nthr\nx");
    expect(ten, "123456789 1", 1, "123456789\n1");
    expect(ten, "12345 7890", 1, "12345 7890");
    expect(ten, "  in  two  words", 1, "  in  two\nwords");
    expect(ten, "a longerthantheline b", 1, "a\nlongerthantheline\nb");
    expect(ten, "\n\n a\n", 1, "\n\n a\n");
    expect((struct present){.width = 0}, "one two three four", 1, "one two three four");
}

static void code_keeps_its_lines(void **state)
{
    (void)state;
    expect((struct present){.width = 10}, "```c\nint a_long_line = 1;\n```\none two three", 1,
           "```c\nint a_long_line = 1;\n```\none two\nthree");
}

static void wide_characters_are_broken_anywhere(void **state)
{
    (void)state;
    expect((struct present){.width = 6}, "\u4f60\u597d\u4f60\u597d", 3, "\u4f60\u597d\u4f60\n\u597d");
    expect((struct present){.width = 4}, "\u00e9\u00e9 \u00e9\u00e9", 1024, "\u00e9\u00e9\n\u00e9\u00e9");
    expect((struct present){.width = 4}, "\xff\xfe a", 1024, "\xff\xfe a");
}

static void thinking_is_dimmed(void **state)
{
    (void)state;
    const struct present dims = {.width = 40, .dims = true};
    struct present inside = dims;
    inside.thinking = true;
    expect(dims, "<think>\nhm\n</think>\n\nYes", 1, "\033[2m<think>\nhm\n</think>\033[0m\n\nYes");
    expect(dims, "a<think>b</think>c", 1, "a\033[2m<think>b</think>\033[0mc");
    expect(dims, "<think> never ends", 1, "\033[2m<think> never ends\033[0m");
    expect(inside, "so\n</think>Yes", 1, "\033[2mso\n</think>\033[0mYes");
    expect((struct present){.width = 40}, "<think>x</think>y", 1, "<think>x</think>y");
    expect(dims, "a </think> b > c", 1, "a </think> b > c");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lines_are_broken_between_words),
        cmocka_unit_test(code_keeps_its_lines),
        cmocka_unit_test(wide_characters_are_broken_anywhere),
        cmocka_unit_test(thinking_is_dimmed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
