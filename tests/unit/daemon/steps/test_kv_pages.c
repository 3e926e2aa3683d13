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
    assert_int_equal(kv_pages_init(&pages, 5, 32, &err), 0);
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
    assert_int_equal(kv_pages_init(&pages, COUNT, 32, &err), 0);
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

enum { TOKENS = 4 }; /* a page */

/* A row of `count` pages whose tokens are first, first + 1, ...; all of it known. */
static uint64_t fill(struct kv_pages *pages, uint32_t *row, uint32_t *held, uint32_t count, uint32_t first)
{
    uint64_t end = 0;
    assert_int_equal(kv_pages_grow(pages, row, held, count), 0);
    for (uint32_t i = 0; i < count; i++) {
        uint32_t tokens[TOKENS];
        for (uint32_t k = 0; k < TOKENS; k++) tokens[k] = first + i * TOKENS + k;
        end = kv_pages_make_known(pages, row[i], end, tokens);
    }
    return end;
}

/* How much of such a row is found. */
static uint32_t find(struct kv_pages *pages, uint32_t *row, uint32_t *held, uint32_t count, uint32_t first)
{
    uint32_t tokens[8 * TOKENS];
    uint64_t end = 0;
    for (uint32_t i = 0; i < count * TOKENS; i++) tokens[i] = first + i;
    kv_pages_take_known(pages, row, held, count, tokens, &end);
    return *held;
}

static void a_shared_page_is_free_when_the_last_holder_leaves(void **state)
{
    (void)state;
    struct helm_err err = {0};
    struct kv_pages pages;
    uint32_t a[4], a_held = 0, b[4], b_held = 0;
    assert_int_equal(kv_pages_init(&pages, 4, TOKENS, &err), 0);
    fill(&pages, a, &a_held, 2, 10);
    assert_int_equal(find(&pages, b, &b_held, 3, 10), 2);
    assert_memory_equal(a, b, 2 * sizeof *a);
    assert_int_equal(kv_pages_holders(&pages, a[0]), 2);
    kv_pages_shrink(&pages, a, &a_held, 0);
    assert_int_equal(pages.free_count, 2);
    kv_pages_shrink(&pages, b, &b_held, 0);
    assert_int_equal(pages.free_count, 4);
    assert_int_equal(pages.known.resting, 2);
    assert_int_equal(find(&pages, b, &b_held, 1, 10), 1); /* it had no holder; it is the same page */
    assert_int_equal(b[0], 0);
    assert_int_equal(pages.free_count, 3);
    kv_pages_free(&pages);
}

/* The same tokens after others, or in another scope, are another page. */
static void a_page_is_known_behind_its_beginning_alone(void **state)
{
    (void)state;
    struct helm_err err = {0};
    struct kv_pages pages;
    uint32_t a[4], a_held = 0, b[4], b_held = 0;
    const uint32_t tokens[2 * TOKENS] = {10, 11, 12, 13, 14, 15, 16, 17};
    uint64_t end = 1;
    assert_int_equal(kv_pages_init(&pages, 4, TOKENS, &err), 0);
    fill(&pages, a, &a_held, 2, 10);
    kv_pages_take_known(&pages, b, &b_held, 2, tokens, &end); /* another scope */
    assert_int_equal(b_held, 0);
    end = 0;
    kv_pages_take_known(&pages, b, &b_held, 1, tokens + TOKENS, &end); /* the second page at the beginning */
    assert_int_equal(b_held, 0);
    assert_int_equal(end, 0);
    kv_pages_take_known(&pages, b, &b_held, 2, tokens, &end);
    assert_int_equal(b_held, 2);
    kv_pages_free(&pages);
}

/* Empty pages first, then the longest unused, of those left together the later ones. */
static void known_pages_are_emptied_oldest_and_last_first(void **state)
{
    (void)state;
    struct helm_err err = {0};
    struct kv_pages pages;
    uint32_t a[8], a_held = 0, b[8], b_held = 0, c[8], c_held = 0;
    assert_int_equal(kv_pages_init(&pages, 8, TOKENS, &err), 0);
    fill(&pages, a, &a_held, 3, 10);
    fill(&pages, b, &b_held, 3, 100);
    kv_pages_shrink(&pages, b, &b_held, 0);
    kv_pages_shrink(&pages, a, &a_held, 0);
    assert_int_equal(kv_pages_grow(&pages, c, &c_held, 2), 0);
    assert_int_equal(pages.evicted, 0);
    assert_int_equal(kv_pages_grow(&pages, c, &c_held, 4), 0);
    assert_int_equal(pages.evicted, 2);
    assert_int_equal(find(&pages, b, &b_held, 3, 100), 1);
    assert_int_equal(find(&pages, a, &a_held, 3, 10), 3);
    assert_true(c[3] == c[2] + 1);          /* neighbours still */
    kv_pages_shrink(&pages, b, &b_held, 0); /* now the only one to rest */
    assert_int_equal(kv_pages_grow(&pages, c, &c_held, 6), HELM_E_BUSY);
    assert_int_equal(kv_pages_grow(&pages, c, &c_held, 5), 0);
    assert_int_equal(find(&pages, b, &b_held, 3, 100), 0);
    kv_pages_shrink(&pages, c, &c_held, 0);
    kv_pages_shrink(&pages, a, &a_held, 0);
    assert_int_equal(pages.free_count, 8);
    kv_pages_forget_all(&pages);
    assert_int_equal(pages.known.resting, 0);
    assert_int_equal(kv_pages_grow(&pages, c, &c_held, 8), 0);
    assert_int_equal(pages.evicted, 3);
    kv_pages_free(&pages);
}

/* Computed twice: the page that rests gives way and its number stays, so pages known after it are still
 * found. */
static void of_two_alike_the_held_one_is_known(void **state)
{
    (void)state;
    struct helm_err err = {0};
    struct kv_pages pages;
    uint32_t a[4], a_held = 0, b[4], b_held = 0, c[4], c_held = 0;
    const uint32_t tokens[TOKENS] = {10, 11, 12, 13};
    assert_int_equal(kv_pages_init(&pages, 4, TOKENS, &err), 0);
    fill(&pages, a, &a_held, 2, 10);
    const uint64_t first = prefix_index_number(&pages.known, a[0]);
    assert_int_equal(kv_pages_grow(&pages, b, &b_held, 1), 0);
    assert_int_equal(kv_pages_make_known(&pages, b[0], 0, tokens), first); /* the other one is held */
    assert_int_equal(prefix_index_number(&pages.known, b[0]), 0);
    kv_pages_shrink(&pages, a, &a_held, 0);
    assert_int_equal(kv_pages_make_known(&pages, b[0], 0, tokens), first);
    assert_int_equal(prefix_index_number(&pages.known, b[0]), first);
    assert_int_equal(pages.known.resting, 1);
    assert_int_equal(pages.free_count, 3);
    assert_int_equal(find(&pages, c, &c_held, 2, 10), 2);
    assert_int_equal(c[0], b[0]);
    kv_pages_free(&pages);
}

/* As sessions lay pages down: the last one is given away first, whenever it came, and never for the one after
 * it. */
static void what_is_laid_down_goes_from_its_end(void **state)
{
    (void)state;
    struct helm_err err = {0};
    struct kv_pages pages;
    uint32_t a[8], a_held = 0, b[8], b_held = 0, front = PREFIX_NO_PAGE;
    uint64_t end = 0;
    assert_int_equal(kv_pages_init(&pages, 5, TOKENS, &err), 0);
    fill(&pages, a, &a_held, 2, 10);
    kv_pages_shrink(&pages, a, &a_held, 0); /* kept for others, and older */
    for (uint32_t i = 0; i < 5; i++) {
        const uint32_t tokens[TOKENS] = {100 + 4 * i, 101 + 4 * i, 102 + 4 * i, 103 + 4 * i};
        const uint32_t page = kv_pages_take_empty(&pages, front);
        assert_int_not_equal(page, PREFIX_NO_PAGE);
        end = kv_pages_make_known(&pages, page, end, tokens);
        kv_pages_leave(&pages, page, front);
        front = page;
    }
    assert_int_equal(pages.evicted, 2);
    assert_int_equal(kv_pages_take_empty(&pages, front), PREFIX_NO_PAGE);
    assert_int_equal(kv_pages_grow(&pages, b, &b_held, 2), 0);
    assert_int_equal(find(&pages, a, &a_held, 5, 100), 3);
    assert_int_equal(kv_pages_take_empty(&pages, a[2]), PREFIX_NO_PAGE); /* all are held */
    kv_pages_shrink(&pages, b, &b_held, 0);
    const uint32_t page = kv_pages_take_empty(&pages, a[2]);
    assert_int_not_equal(page, PREFIX_NO_PAGE);
    kv_pages_leave(&pages, page, a[2]); /* not known: onto the stack */
    kv_pages_shrink(&pages, a, &a_held, 0);
    assert_int_equal(pages.free_count, 5);
    assert_int_equal(pages.known.resting, 3);
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
    assert_int_equal(kv_pages_init(&pages, 0, 32, &err), HELM_E_LIMIT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(grows_and_shrinks_all_or_nothing),
        cmocka_unit_test(no_page_has_two_owners),
        cmocka_unit_test(a_shared_page_is_free_when_the_last_holder_leaves),
        cmocka_unit_test(a_page_is_known_behind_its_beginning_alone),
        cmocka_unit_test(known_pages_are_emptied_oldest_and_last_first),
        cmocka_unit_test(of_two_alike_the_held_one_is_known),
        cmocka_unit_test(what_is_laid_down_goes_from_its_end),
        cmocka_unit_test(needs_are_rounded_up),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
