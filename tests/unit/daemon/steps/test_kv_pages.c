/* Unit tests of daemon/steps/kv_pages.c. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "common/shared/kv_layout.h"
#include "daemon/steps/kv_pages.h"

static void grows_and_shrinks_all_or_nothing(void **state)
{
    (void)state;
    struct helm_err err = {0};
    struct kv_pages pages;
    uint32_t a[8], b[8], a_held = 0, b_held = 0;
    assert_int_equal(kv_pages_init(&pages, 5, &err), 0);
    assert_int_equal(kv_pages_grow(&pages, a, &a_held, 3), 0);
    assert_int_equal(a_held, 3);
    assert_int_equal(a[0], 0); /* lowest first: a lightly used pool touches its beginning only */
    assert_int_equal(kv_pages_grow(&pages, b, &b_held, 3), HELM_E_BUSY);
    assert_int_equal(b_held, 0);
    assert_int_equal(pages.free_count, 2);
    assert_int_equal(kv_pages_grow(&pages, b, &b_held, 2), 0);
    assert_int_equal(kv_pages_grow(&pages, b, &b_held, 1), 0); /* never shrinks */
    assert_int_equal(b_held, 2);
    kv_pages_shrink(&pages, a, &a_held, 1);
    assert_int_equal(a_held, 1);
    assert_int_equal(pages.free_count, 2);
    kv_pages_shrink(&pages, a, &a_held, 0);
    kv_pages_shrink(&pages, b, &b_held, 0);
    assert_int_equal(pages.free_count, 5);
    kv_pages_free(&pages);
}

static void no_page_has_two_owners(void **state)
{
    (void)state;
    struct helm_err err = {0};
    struct kv_pages pages;
    enum { COUNT = 37, ROWS = 6 };
    uint32_t row[ROWS][COUNT], held[ROWS] = {0}, random = 1;
    assert_int_equal(kv_pages_init(&pages, COUNT, &err), 0);
    for (int turn = 0; turn < 5000; turn++) {
        random = random * 1664525 + 1013904223;
        uint32_t r = (random >> 8) % ROWS, want = (random >> 16) % 12;
        if (want > held[r]) {
            int rc = kv_pages_grow(&pages, row[r], &held[r], want);
            assert_true(rc == 0 || (rc == HELM_E_BUSY && want - held[r] > pages.free_count));
        } else {
            kv_pages_shrink(&pages, row[r], &held[r], want);
        }
        uint32_t owners[COUNT] = {0}, total = 0;
        for (uint32_t i = 0; i < ROWS; i++)
            for (uint32_t k = 0; k < held[i]; k++, total++) assert_int_equal(owners[row[i][k]]++, 0);
        assert_int_equal(total + pages.free_count, COUNT);
    }
    kv_pages_free(&pages);
}

static void a_shared_page_is_free_when_the_last_holder_leaves(void **state)
{
    (void)state;
    struct helm_err err = {0};
    struct kv_pages pages;
    uint32_t a[2], a_held = 0, b[2], b_held = 0;
    assert_int_equal(kv_pages_init(&pages, 2, &err), 0);
    assert_int_equal(kv_pages_grow(&pages, a, &a_held, 1), 0);
    assert_int_equal(kv_pages_share(&pages, a[0]), 0);
    b[b_held++] = a[0];
    assert_int_equal(kv_pages_holders(&pages, a[0]), 2);
    kv_pages_shrink(&pages, a, &a_held, 0);
    assert_int_equal(pages.free_count, 1);
    kv_pages_shrink(&pages, b, &b_held, 0);
    assert_int_equal(pages.free_count, 2);
    assert_int_equal(kv_pages_holders(&pages, 0), 0);
    kv_pages_free(&pages);
}

static void needs_are_rounded_up(void **state)
{
    (void)state;
    struct helm_err err = {0};
    struct kv_pages pages;
    assert_int_equal(kv_pages_for(0, 32), 0);
    assert_int_equal(kv_pages_for(1, 32), 1);
    assert_int_equal(kv_pages_for(32, 32), 1);
    assert_int_equal(kv_pages_for(33, 32), 2);
    assert_int_equal(kv_pages_for(UINT32_MAX, 32), 1u << 27);
    assert_int_equal(kv_pages_init(&pages, 0, &err), HELM_E_LIMIT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(grows_and_shrinks_all_or_nothing),
        cmocka_unit_test(no_page_has_two_owners),
        cmocka_unit_test(a_shared_page_is_free_when_the_last_holder_leaves),
        cmocka_unit_test(needs_are_rounded_up),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
