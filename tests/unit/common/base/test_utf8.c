/* Unit tests of common/base/printable.c. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <string.h>

#include "common/base/printable.h"

/* Every character is written and read as itself, forwards and backwards, and none of its beginnings is a
 * character. */
static void characters_come_back(void **state)
{
    (void)state;
    for (uint32_t c = 1; c <= 0x10ffff; c += c < 0x3000 ? 1 : 257) {
        char text[4];
        uint32_t back = 0;
        enum utf8_state is;
        if (c >= 0xd800 && c < 0xe000) continue;
        const size_t bytes = utf8_put(c, text);
        assert_int_equal(bytes, c < 0x80 ? 1 : c < 0x800 ? 2 : c < 0x10000 ? 3 : 4);
        assert_int_equal(utf8_get(text, &back), bytes);
        assert_int_equal(back, c);
        assert_int_equal(utf8_get_before(text, bytes, &back), bytes);
        assert_int_equal(back, c);
        assert_int_equal(utf8_step(text, bytes, &is), bytes);
        assert_int_equal(is, UTF8_VALID);
        for (size_t cut = 1; cut < bytes; cut++) {
            assert_int_equal(utf8_step(text, cut, &is), cut);
            assert_int_equal(is, UTF8_INCOMPLETE);
        }
    }
}

static void what_is_not_utf8(void **state)
{
    (void)state;
    static const char *const bad[] = {
        "\x80",         "\xc0\xaf",         "\xc1\xbf",         "\xe0\x9f\xbf",
        "\xed\xa0\x80", "\xf0\x8f\xbf\xbf", "\xf4\x90\x80\x80", "\xf5\x80\x80\x80",
        "\xff",         "a\xc3(",           "\xe6\xa8",         "0123456789\xe6"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) assert_false(utf8_is_valid(bad[i], strlen(bad[i])));
    assert_true(utf8_is_valid("", 0));
    assert_true(utf8_is_valid("a\0b", 3));
    assert_true(utf8_is_valid("0123456789 \xe6\xa8\xa1 \xf0\x9f\x98\x80", 19));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(characters_come_back),
                                       cmocka_unit_test(what_is_not_utf8)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
