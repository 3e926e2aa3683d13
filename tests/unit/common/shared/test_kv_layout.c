/* common/shared/kv_layout.h: every row of every page has its own bytes, in the documented order, and large pools do
 * not overflow 32 bits; and kv_append (common/cpu/kernels/attention.c) writes exactly those bytes, rounded to nearest
 * even. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/shared/kv_layout.h"
#include "common/cpu/kernels/attention.h"

static void test_rows_tile_the_pool(void **state)
{
    (void)state;
    static const struct kv_layout layouts[] = {{1, 1, 1, 8, DTYPE_BF16, 2},
                                               {3, 2, 5, 8, DTYPE_F16, 2},
                                               {2, 8, 128, 32, DTYPE_F32, 4},
                                               {4, 3, 80, 16, DTYPE_BF16, 2}};
    for (size_t i = 0; i < sizeof(layouts) / sizeof(*layouts); i++) {
        const struct kv_layout *l = &layouts[i];
        uint64_t at = 0; /* page, layer, K then V, head: consecutive, without gap or overlap */
        for (uint32_t page = 0; page < 3; page++)
            for (uint32_t layer = 0; layer < l->layers; layer++)
                for (uint32_t is_value = 0; is_value < 2; is_value++)
                    for (uint32_t head = 0; head < l->kv_heads; head++) {
                        assert_true(kv_offset(l, page, layer, is_value, head) == at);
                        at += (uint64_t)l->page_tokens * l->head_dim * l->elem_bytes;
                    }
        assert_true(at == 3 * kv_page_bytes(l));
        assert_true(kv_page_bytes(l) == l->layers * kv_layer_bytes(l));
    }
}

static void test_large_pools(void **state)
{
    (void)state;
    const struct kv_layout l = {80, 8, 128, 32, DTYPE_BF16, 2};
    assert_true(kv_page_bytes(&l) == 10485760);
    assert_true(kv_offset(&l, 1000000, 79, 1, 7) == 10485760ull * 1000000 + 10485760 - 8192);
}

/* The values that rounding can get wrong, and what IEEE says they become. */
struct rounding {
    float x;
    uint16_t bf16, f16;
};
static const struct rounding roundings[] = {
    {0.0f, 0x0000, 0x0000},
    {-0.0f, 0x8000, 0x8000},
    {1.0f, 0x3f80, 0x3c00},
    {-2.5f, 0xc020, 0xc100},
    {0x1.01p0f, 0x3f80, 0x3c04},     /* tie in bf16: to the even one, below */
    {0x1.03p0f, 0x3f82, 0x3c0c},     /* tie: above */
    {0x1.010002p0f, 0x3f81, 0x3c04}, /* just over the tie */
    {0x1.002p0f, 0x3f80, 0x3c00},    /* tie in f16: below */
    {0x1.006p0f, 0x3f80, 0x3c02},    /* tie: above */
    {65504.0f, 0x4780, 0x7bff},      /* the largest half */
    {65519.0f, 0x4780, 0x7bff},      /* rounds down to it */
    {65520.0f, 0x4780, 0x7c00},      /* tie: to infinity */
    {-1e9f, 0xce6e, 0xfc00},
    {0x1p-14f, 0x3880, 0x0400},         /* the smallest normal half */
    {0x1.ff8p-15f, 0x3880, 0x03ff},     /* the largest subnormal (1023 * 2^-24) */
    {0x1p-24f, 0x3380, 0x0001},         /* the smallest */
    {0x1p-25f, 0x3300, 0x0000},         /* tie: to zero */
    {0x1.8p-24f, 0x33c0, 0x0002},       /* tie: above */
    {-0x1.000002p-25f, 0xb300, 0x8001}, /* just over the tie */
    {1e-30f, 0x0da2, 0x0000},
    {3.4028235e38f, 0x7f80, 0x7c00}, /* the largest float rounds to infinity */
    {INFINITY, 0x7f80, 0x7c00},
    {-INFINITY, 0xff80, 0xfc00},
};
#define ROUNDINGS (sizeof(roundings) / sizeof(*roundings))

static void append_all(struct kv_layout *l, void *pool, const float *x)
{
    const uint32_t pages[2] = {1, 0};
    kv_append(l, pool, pages, 1, true, 1, l->page_tokens + 3, x); /* second page of the table: page 0 */
}

static void test_append_rounds_to_nearest_even(void **state)
{
    (void)state;
    for (uint32_t dim = 1; dim <= ROUNDINGS; dim++)
        for (enum dtype dtype = DTYPE_BF16; dtype <= DTYPE_F16; dtype++) {
            struct kv_layout l = {2, 2, dim, 8, dtype, 2};
            size_t bytes = 2 * kv_page_bytes(&l);
            unsigned char *pool = malloc(bytes);
            float *x = malloc(dim * sizeof(float));
            memset(pool, 0xa5, bytes);
            for (uint32_t d = 0; d < dim; d++) x[d] = roundings[(d + dim) % ROUNDINGS].x;
            append_all(&l, pool, x);
            uint64_t row = kv_offset(&l, 0, 1, 1, 1) + 3ull * dim * 2;
            for (uint32_t d = 0; d < dim; d++) {
                const struct rounding *want = &roundings[(d + dim) % ROUNDINGS];
                uint16_t got;
                memcpy(&got, pool + row + 2ull * d, 2);
                if (got != (dtype == DTYPE_BF16 ? want->bf16 : want->f16))
                    fail_msg("%a as %s is 0x%04x", (double)want->x, dtype_name(dtype), got);
            }
            for (uint64_t i = 0; i < bytes; i++)
                if (i < row || i >= row + 2ull * dim) assert_int_equal(pool[i], 0xa5);
            free(pool);
            free(x);
        }
}

static void test_append_keeps_nan_and_f32(void **state)
{
    (void)state;
    const float x[3] = {NAN, -NAN, 1};
    uint16_t half[2 * 2 * 2 * 8 * 3 * 2];
    struct kv_layout l = {2, 2, 3, 8, DTYPE_F16, 2};
    append_all(&l, half, x);
    const uint16_t *row = half + kv_offset(&l, 0, 1, 1, 1) / 2 + 9;
    for (int i = 0; i < 2; i++) assert_true((row[i] & 0x7c00) == 0x7c00 && (row[i] & 0x3ff) != 0);
    l.dtype = DTYPE_BF16;
    append_all(&l, half, x);
    for (int i = 0; i < 2; i++) assert_true((row[i] & 0x7f80) == 0x7f80 && (row[i] & 0x7f) != 0);
    float full[2 * 2 * 2 * 8 * 3 * 2];
    l.dtype = DTYPE_F32;
    l.elem_bytes = 4;
    append_all(&l, full, x);
    assert_memory_equal(full + kv_offset(&l, 0, 1, 1, 1) / 4 + 9, x, sizeof(x));
}

/* Every half has exactly one float; appending that float must give the half back. */
static void test_append_round_trips_every_half(void **state)
{
    (void)state;
    struct kv_layout l = {2, 2, 64, 8, DTYPE_F16, 2};
    unsigned char *pool = malloc(2 * kv_page_bytes(&l));
    for (uint32_t first = 0; first < 65536; first += 64) {
        float x[64];
        for (uint32_t i = 0; i < 64; i++) {
            uint32_t h = first + i, exponent = h >> 10 & 31, fraction = h & 1023;
            float size = exponent == 0 ? ldexpf((float)fraction, -24)
                                       : ldexpf((float)(1024 + fraction), (int)exponent - 25);
            if (exponent == 31) size = INFINITY;
            x[i] = h >> 15 != 0 ? -size : size;
        }
        append_all(&l, pool, x);
        for (uint32_t i = 0; i < 64; i++) {
            uint16_t got;
            memcpy(&got, pool + kv_offset(&l, 0, 1, 1, 1) + (3 * 64 + i) * 2ull, 2);
            if (((first + i) >> 10 & 31) != 31) assert_int_equal(got, first + i);
        }
    }
    free(pool);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rows_tile_the_pool),
        cmocka_unit_test(test_large_pools),
        cmocka_unit_test(test_append_rounds_to_nearest_even),
        cmocka_unit_test(test_append_keeps_nan_and_f32),
        cmocka_unit_test(test_append_round_trips_every_half),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
