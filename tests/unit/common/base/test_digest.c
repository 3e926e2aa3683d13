/* Unit tests of common/base/digest.c: published values of FNV-1a with 128 bits. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <string.h>

#include "common/base/digest.h"

static void published_values(void **state)
{
    (void)state;
    static const struct {
        const char *text, *digest;
    } known[] = {{"", "6c62272e07bb014262b821756295c58d"},
                 {"a", "d228cb696f1a8caf78912b704e4a8964"},
                 {"ab", "08809544bbab1be95aa0733055b69a62"}};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        struct digest digest = digest_begin();
        char text[DIGEST_TEXT];
        for (const char *at = known[i].text; *at; at++) digest_add(&digest, at, 1); /* in pieces as in one */
        digest_text(&digest, text);
        assert_string_equal(text, known[i].digest);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(published_values)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
