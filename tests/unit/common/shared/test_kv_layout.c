/* common/shared/kv_layout.h: every row of every page has its own bytes, in the documented order, and large
 * pools do not overflow 32 bits; and kv_append (common/cpu/kernels/attention.c) writes exactly those bytes,
 * rounded to nearest even; and the cache's quantised type does what its definition says. */
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
    static const struct {
        struct kv_layout layout;
        uint64_t scales_at, head_bytes;
    } cases[] = {{{1, 1, 1, 8, KV_BF16}, 16, 16},
                 {{3, 2, 5, 8, KV_F16}, 80, 80},
                 {{2, 8, 128, 32, KV_F32}, 16384, 16384},
                 {{4, 3, 80, 16, KV_BF16}, 2560, 2560},
                 {{2, 3, 96, 32, KV_Q8_0}, 3072, 3072 + 192},
                 {{2, 3, 256, 16, KV_Q8_0}, 4096, 4096 + 256},
                 {{2, 1, 32, 1, KV_Q8_0}, 32, 48}}; /* 34 bytes in whole 16 */
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        const struct kv_layout *l = &cases[i].layout;
        assert_int_equal(kv_scales_at(l), cases[i].scales_at);
        uint64_t at = 0; /* page, layer, K then V, head: consecutive, without gap or overlap */
        for (uint32_t page = 0; page < 3; page++)
            for (uint32_t layer = 0; layer < l->layers; layer++)
                for (uint32_t is_value = 0; is_value < 2; is_value++)
                    for (uint32_t head = 0; head < l->kv_heads; head++) {
                        assert_true(kv_offset(l, page, layer, is_value, head) == at);
                        at += cases[i].head_bytes;
                    }
        assert_true(at == 3 * kv_page_bytes(l));
        assert_true(kv_page_bytes(l) == l->layers * kv_layer_bytes(l));
    }
}

/* Values are the first numbers of keys: nothing lies between the keys' rows. */
static void test_latents_have_rows_of_keys_alone(void **state)
{
    (void)state;
    const struct kv_layout l = {3, 1, 576, 16, KV_F16, 512}, two = {3, 1, 576, 16, KV_F16};
    assert_int_equal(kv_value_dim(&l), 512);
    assert_int_equal(kv_value_dim(&two), 576);
    assert_true(kv_layer_bytes(&l) == 16 * 576 * 2 && 2 * kv_page_bytes(&l) == kv_page_bytes(&two));
    for (uint32_t layer = 0; layer < 3; layer++) {
        assert_true(kv_offset(&l, 2, layer, 0, 0) == (6 + layer) * kv_layer_bytes(&l));
        assert_true(kv_offset(&l, 2, layer, 1, 0) == kv_offset(&l, 2, layer, 0, 0));
    }
}

static void test_large_pools(void **state)
{
    (void)state;
    const struct kv_layout l = {80, 8, 128, 32, KV_BF16};
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
        for (uint32_t dtype = KV_BF16; dtype <= KV_F16; dtype++) {
            struct kv_layout l = {2, 2, dim, 8, dtype};
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
                if (got != (dtype == KV_BF16 ? want->bf16 : want->f16))
                    fail_msg("%a as %s is 0x%04x", (double)want->x, kv_dtype_name((enum kv_dtype)dtype), got);
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
    struct kv_layout l = {2, 2, 3, 8, KV_F16};
    append_all(&l, half, x);
    const uint16_t *row = half + kv_offset(&l, 0, 1, 1, 1) / 2 + 9;
    for (int i = 0; i < 2; i++) assert_true((row[i] & 0x7c00) == 0x7c00 && (row[i] & 0x3ff) != 0);
    l.dtype = KV_BF16;
    append_all(&l, half, x);
    for (int i = 0; i < 2; i++) assert_true((row[i] & 0x7f80) == 0x7f80 && (row[i] & 0x7f) != 0);
    float full[2 * 2 * 2 * 8 * 3 * 2];
    l.dtype = KV_F32;
    append_all(&l, full, x);
    assert_memory_equal(full + kv_offset(&l, 0, 1, 1, 1) / 4 + 9, x, sizeof(x));
}

/* Every half has exactly one float; appending that float must give the half back. */
static void test_append_round_trips_every_half(void **state)
{
    (void)state;
    struct kv_layout l = {2, 2, 64, 8, KV_F16};
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

static float random_float(uint64_t *state) /* in [-1, 1) */
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (float)(*state >> 40) * 0x1p-23f - 1;
}

/* A block's scale is the nearest fp16 to its largest over 127, and each value is off by half a scale at most;
 * of blocks that small that fp16's unit is not, by a unit more for each number. */
static void test_q8_0_is_the_nearest(void **state)
{
    (void)state;
    uint64_t random = 9;
    for (int power = -40; power <= 22; power++)
        for (int round = 0; round < 20; round++) {
            float x[KV_Q8_0_VALUES], largest = 0;
            int8_t number[KV_Q8_0_VALUES];
            uint16_t scale;
            for (int i = 0; i < KV_Q8_0_VALUES; i++) {
                x[i] = ldexpf(random_float(&random), power);
                largest = fmaxf(largest, fabsf(x[i]));
            }
            kv_q8_0_write(x, number, &scale);
            assert_int_equal(scale, convert_f32_f16(largest / 127));
            const double unit = (double)convert_f16_f32(scale);
            const double off = fabs((double)largest / 127 - unit); /* the rounding of fp16 */
            int most = 0;
            for (int i = 0; i < KV_Q8_0_VALUES; i++) {
                const double error = fabs((double)x[i] - unit * number[i]);
                assert_in_range(number[i] + 128, 1, 255);
                if (error > unit * 0.50001 + 127.0001 * off)
                    fail_msg("%a with a scale of %a is %d", (double)x[i], unit, number[i]);
                if (abs(number[i]) > most) most = abs(number[i]);
            }
            if (scale >= 0x400) assert_int_equal(most, 127);
            if (scale == 0) assert_int_equal(most, 0);
        }
}

static void test_q8_0_rounds_ties_to_even(void **state)
{
    (void)state;
    float x[KV_Q8_0_VALUES] = {127, 0.5f, 1.5f, -2.5f, -0.5f, 126.5f, -127, 63.5f};
    static const int8_t want[KV_Q8_0_VALUES] = {127, 0, 2, -2, 0, 126, -127, 64};
    int8_t number[KV_Q8_0_VALUES];
    uint16_t scale;
    kv_q8_0_write(x, number, &scale);
    assert_int_equal(scale, 0x3c00);
    assert_memory_equal(number, want, sizeof want);
}

static void test_q8_0_without_a_number_reads_as_nan(void **state)
{
    (void)state;
    static const float bad[] = {NAN, -NAN, INFINITY, -INFINITY, 127 * 65520.0f, -3e38f};
    for (size_t b = 0; b < sizeof bad / sizeof *bad; b++)
        for (int at = 0; at < KV_Q8_0_VALUES; at += 5) {
            float x[KV_Q8_0_VALUES] = {1, 2, 3};
            int8_t number[KV_Q8_0_VALUES];
            uint16_t scale;
            x[at] = bad[b];
            kv_q8_0_write(x, number, &scale);
            assert_int_equal(scale, 0x7e00);
            for (int i = 0; i < KV_Q8_0_VALUES; i++) assert_int_equal(number[i], 0);
        }
    float most[KV_Q8_0_VALUES] = {127 * 65504.0f, -65504};
    int8_t number[KV_Q8_0_VALUES];
    uint16_t scale;
    kv_q8_0_write(most, number, &scale);
    assert_int_equal(scale, 0x7bff);
    assert_true(number[0] == 127 && number[1] == -1);
}

/* Blocks of a cell have scales of their own; only the cell's bytes are written. */
static void test_append_quantises(void **state)
{
    (void)state;
    uint64_t random = 4;
    for (uint32_t dim = 32; dim <= 256; dim += 32) {
        struct kv_layout l = {2, 2, dim, 8, KV_Q8_0};
        const size_t bytes = 2 * kv_page_bytes(&l);
        unsigned char *pool = malloc(bytes);
        float *x = malloc(dim * sizeof(float));
        memset(pool, 0xa5, bytes);
        for (uint32_t d = 0; d < dim; d++) x[d] = ldexpf(random_float(&random), (int)(d / 32));
        append_all(&l, pool, x);
        const uint64_t rows = kv_offset(&l, 0, 1, 1, 1);
        const uint64_t numbers = rows + 3ull * dim, scales = rows + 8ull * dim + 3ull * (dim / 16);
        for (uint32_t d = 0; d < dim; d++) {
            const float got = kv_cell_value(&l, pool + rows, 3, d);
            assert_true(fabsf(got - x[d]) <= ldexpf(0.502f / 127, (int)(d / 32)));
        }
        for (uint64_t i = 0; i < bytes; i++)
            if ((i < numbers || i >= numbers + dim) && (i < scales || i >= scales + dim / 16))
                assert_int_equal(pool[i], 0xa5);
        free(pool);
        free(x);
    }
}

static void test_names(void **state)
{
    (void)state;
    for (int d = 0; d < KV_DTYPE_COUNT; d++)
        assert_int_equal(kv_dtype_named(kv_dtype_name((enum kv_dtype)d)), d);
    assert_int_equal(kv_dtype_named("q4_0"), KV_DTYPE_COUNT);
    assert_string_equal(kv_dtype_name(KV_Q8_0), "q8_0");
    assert_true(kv_dtype_takes(KV_F16, 80) && kv_dtype_takes(KV_Q8_0, 96) && !kv_dtype_takes(KV_Q8_0, 80));
    assert_int_equal(kv_cell_bytes(KV_Q8_0, 128), 136);
    assert_int_equal(kv_cell_bytes(KV_F32, 3), 12);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rows_tile_the_pool),
        cmocka_unit_test(test_latents_have_rows_of_keys_alone),
        cmocka_unit_test(test_large_pools),
        cmocka_unit_test(test_append_rounds_to_nearest_even),
        cmocka_unit_test(test_append_keeps_nan_and_f32),
        cmocka_unit_test(test_append_round_trips_every_half),
        cmocka_unit_test(test_q8_0_is_the_nearest),
        cmocka_unit_test(test_q8_0_rounds_ties_to_even),
        cmocka_unit_test(test_q8_0_without_a_number_reads_as_nan),
        cmocka_unit_test(test_append_quantises),
        cmocka_unit_test(test_names),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
