/* Unit tests of common/base/printable.c, and of what err.c makes of it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "common/base/err.h"
#include "common/base/printable.h"

static const struct {
    const char *from, *shown;
} cases[] = {
    {"model.layers.0.weight", "model.layers.0.weight"},
    {"\x1b[31mred", "\\x1b[31mred"},
    {"a\tb\nc\x7f", "a\\x09b\\x0ac\\x7f"},
    {"Stra\xc3\x9f"
     "e \xe6\xa8\xa1 \xf0\x9f\x98\x80",
     "Stra\xc3\x9f"
     "e \xe6\xa8\xa1 \xf0\x9f\x98\x80"},
    {"\xc2\x9b"
     "2J",
     "\\xc2\\x9b2J"},                                      /* C1: CSI in one character */
    {"\x9b\xff", "\\x9b\\xff"},                            /* bytes that begin no character */
    {"\xe6\xa8", "\\xe6\\xa8"},                            /* cut */
    {"\xc0\xaf\xed\xa0\x80", "\\xc0\\xaf\\xed\\xa0\\x80"}, /* overlong; a surrogate */
};

static void texts_are_shown(void **state)
{
    (void)state;
    char text[256];
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_int_equal(printable(text, sizeof text, cases[i].from), strlen(cases[i].shown));
        assert_string_equal(text, cases[i].shown);
    }
}

static void text_is_cut_between_characters(void **state)
{
    (void)state;
    char text[6];
    assert_int_equal(printable(text, sizeof text, "abc\x1b"), 3);
    assert_string_equal(text, "abc");
    assert_int_equal(printable(text, sizeof text, "abcd\xc3\x9f"), 4);
    assert_string_equal(text, "abcd");
    assert_int_equal(printable(text, 1, "x"), 0);
    assert_string_equal(text, "");
}

/* However the text is cut into writes. */
static void a_stream_shows_the_same(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        if (strpbrk(cases[i].from, "\t\n")) continue; /* a stream keeps these */
        for (size_t piece = 1; piece < 5; piece++) {
            char *got = NULL;
            size_t size = 0;
            FILE *memory = open_memstream(&got, &size), *out = printable_open(memory);
            assert_non_null(out);
            for (const char *at = cases[i].from, *end = at + strlen(at); at < end; at += piece) {
                const size_t left = (size_t)(end - at);
                fwrite(at, 1, left < piece ? left : piece, out);
                fflush(out);
            }
            assert_int_equal(fclose(out), 0);
            fclose(memory);
            assert_string_equal(got, cases[i].shown);
            free(got);
        }
    }
}

static void a_stream_keeps_lines_and_tabs(void **state)
{
    (void)state;
    char *got = NULL;
    size_t size = 0;
    FILE *memory = open_memstream(&got, &size), *out = printable_open(memory);
    fprintf(out, "a\tb\nc\r\x1b\n");
    assert_int_equal(fclose(out), 0);
    fclose(memory);
    assert_string_equal(got, "a\tb\nc\\x0d\\x1b\n");
    free(got);
}

static void errors_are_shown(void **state)
{
    (void)state;
    struct helm_err err = {0};
    (void)helm_fail(&err, HELM_E_FORMAT, "tensor '%s'", "\x1b[2J");
    assert_string_equal(err.text, "tensor '\\x1b[2J'");
    (void)helm_err_prefix(&err, "%s", "\x07.gguf");
    assert_string_equal(err.text, "\\x07.gguf: tensor '\\x1b[2J'");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(texts_are_shown),         cmocka_unit_test(text_is_cut_between_characters),
        cmocka_unit_test(a_stream_shows_the_same), cmocka_unit_test(a_stream_keeps_lines_and_tabs),
        cmocka_unit_test(errors_are_shown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
