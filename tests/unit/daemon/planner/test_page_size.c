/* Unit tests of daemon/planner/page_size.c: which size is chosen for models and machines, and what its parts
 * go by. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#include "common/base/units.h"
#include "daemon/planner/page_size.h"

static struct model model;
static struct profile profile;
static const struct ledger_device none = {.kind = LEDGER_DEVICE_NONE};
static struct ledger_device device = {.kind = LEDGER_DEVICE_CUDA};

static struct page_size_case case_of(uint64_t vram, uint32_t ctx)
{
    device.limit = vram;
    return (struct page_size_case){.model = &model,
                                   .profile = &profile,
                                   .device = vram      ? &device
                                             : ctx % 2 ? &none
                                                       : NULL,
                                   .kv_dtype = KV_F16,
                                   .slots = 8,
                                   .ctx = ctx,
                                   .option = PAGE_SIZE_DEFAULT};
}

static int open_group(void **state)
{
    struct helm_err err = {0};
    bool derived;
    (void)state;
    int rc = model_read_headers("tests/data/configs/qwen3-8b", &model, &derived, &err);
    if (!rc) rc = profile_read("profiles/h200-sapphire-rapids.json", NULL, &profile, &err);
    if (rc) print_message("%s\n", err.text);
    return rc;
}

static int close_group(void **state)
{
    (void)state;
    model_free(&model);
    return 0;
}

/* Eight heads of 128 are read in runs of 32 KiB from 32 tokens on: longer pages only cost. */
static void many_heads_have_short_pages(void **state)
{
    (void)state;
    struct page_size size;
    for (uint64_t vram = 0; vram <= 24 * GIB; vram += 8 * GIB) {
        const struct page_size_case c = case_of(vram, 40960);
        page_size_choose(&c, &size);
        assert_int_equal(size.tokens, 32);
        for (uint32_t i = 0; i < PAGE_SIZES; i++) {
            assert_true(size.part[i][PAGE_COST_READS] == 0);
            assert_true(i == 0 || size.sum[i] > size.sum[i - 1]);
            assert_true((size.part[i][PAGE_COST_PLACES] > 0) == (vram == 8 * GIB));
            assert_true((size.part[i][PAGE_COST_COPIES] > 0) == (vram == 8 * GIB));
        }
    }
    assert_non_null(strstr(size.text, "32 tokens: "));
}

/* Two heads of 64, as a model of half a billion parameters has: the CPU reads longer runs of longer pages,
 * where it reads. */
static void few_heads_have_longer_pages(void **state)
{
    (void)state;
    const uint32_t heads = model.config.kv_heads, head_dim = model.config.head_dim;
    struct page_size size;
    struct page_size_case c = case_of(0, 32768);
    model.config.kv_heads = 2;
    model.config.head_dim = 64;
    page_size_choose(&c, &size);
    assert_in_range(size.tokens, 64, 256);
    assert_true(size.part[0][PAGE_COST_READS] > size.part[1][PAGE_COST_READS]);
    assert_true(size.part[2][PAGE_COST_READS] == 0); /* 128 tokens: 32 KiB */
    c = case_of(64 * GIB, 32768);                    /* all in VRAM */
    page_size_choose(&c, &size);
    assert_int_equal(size.tokens, 32);
    model.config.kv_heads = heads;
    model.config.head_dim = head_dim;
}

static void a_size_that_is_asked_for_is_taken(void **state)
{
    (void)state;
    struct page_size size;
    struct page_size_case c = case_of(8 * GIB, 0);
    for (uint32_t i = 0; i < PAGE_SIZES; i++) {
        char option[8];
        snprintf(option, sizeof option, "%u", PAGE_SIZE_LEAST << i);
        assert_non_null(strstr(PAGE_SIZE_CHOICES, option));
        c.option = option;
        page_size_choose(&c, &size);
        assert_int_equal(size.tokens, PAGE_SIZE_LEAST << i);
        assert_non_null(strstr(size.text, "as asked"));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(many_heads_have_short_pages),
        cmocka_unit_test(few_heads_have_longer_pages),
        cmocka_unit_test(a_size_that_is_asked_for_is_taken),
    };
    return cmocka_run_group_tests(tests, open_group, close_group);
}
