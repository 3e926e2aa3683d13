/* common/formats/packed.c: every group comes back bit for bit, from the plain and from the fast writer the
 * same bytes; sizes are what the header says; layout is what the header says (read here a third way); bytes
 * that are no group are refused without a touch outside them. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/base/cpu.h"
#include "common/formats/packed.h"
#include "common/formats/packed_tile.h"

#define GUARD 256 /* bytes around what is written */

static uint32_t random_u32(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*state >> 33);
}
static uint16_t random_normal(uint64_t *state, double scale)
{
    const double u = random_u32(state) / 2147483648.0 + 1e-12, v = random_u32(state) / 2147483648.0;
    const float x = (float)(scale * sqrt(-2 * log(u)) * cos(6.283185307179586 * v));
    uint32_t bits;
    memcpy(&bits, &x, sizeof(bits));
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
static uint16_t *new_values(size_t n)
{
    uint16_t *v = malloc(n * sizeof(*v));
    assert_non_null(v);
    return v;
}
/* Room for `bytes` with guards; freed by free_room, which looks at them. */
static uint8_t *new_room(uint64_t bytes)
{
    uint8_t *room = aligned_alloc(PACKED_ALIGN, packed_round(bytes) + 2 * GUARD);
    assert_non_null(room);
    memset(room, 0xa5, packed_round(bytes) + 2 * GUARD);
    return room + GUARD;
}
static void free_room(uint8_t *room, uint64_t bytes)
{
    for (int i = 0; i < GUARD; i++) {
        assert_int_equal(room[i - GUARD], 0xa5);
        assert_int_equal(room[bytes + (uint64_t)i], 0xa5);
    }
    free(room - GUARD);
}

/* ---- the format, read by the header's words ---- */

static uint32_t word_at(const uint8_t *p)
{
    return p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}
static void read_by_header(const uint8_t *p, uint32_t values, uint16_t *out)
{
    assert_int_equal(word_at(p), values);
    const uint32_t base = p[13], tiles = packed_tiles(values);
    if (p[12] == PACKED_RAW) {
        for (uint32_t i = 0; i < values; i++)
            out[i] = (uint16_t)(p[PACKED_ALIGN + 2 * i] | p[PACKED_ALIGN + 2 * i + 1] << 8);
        return;
    }
    const uint32_t table = (16 + (tiles + 1) * 4 + PACKED_ALIGN - 1) / PACKED_ALIGN * PACKED_ALIGN;
    const uint8_t *list = p + table + (size_t)tiles * (384 + 1024);
    for (uint32_t t = 0; t < tiles; t++) {
        const uint8_t *record = p + table + (size_t)t * (384 + 1024);
        const uint8_t *escape = list + word_at(p + 16 + 4 * t);
        uint32_t u[32][4] = {{0}};
        for (uint32_t lane = 0; lane < 32; lane++)
            for (uint32_t i = 0; i < 3; i++) {
                const uint32_t w = word_at(record + i * 128 + lane * 4);
                u[lane][i] = w & 0x0fff0fff;
                u[lane][3] |= (w >> 12 & 0xf) << (4 * i) | (w >> 28) << (16 + 4 * i);
            }
        for (uint32_t k = 0; k < 4; k++)
            for (uint32_t lane = 0; lane < 32; lane++)
                for (uint32_t i = 0; i < 4; i++)
                    for (uint32_t half = 0; half < 2; half++) {
                        const uint32_t place = k * 256 + 8 * lane + 2 * i + half;
                        const uint32_t code = u[lane][i] >> (16 * half + 3 * k) & 7;
                        const uint32_t e = code == 7 ? *escape++ : base + code;
                        const uint32_t rest = record[384 + place];
                        if (t * 1024 + place < values)
                            out[t * 1024 + place] = (uint16_t)((rest >> 7) << 15 | e << 7 | (rest & 0x7f));
                    }
        assert_int_equal(escape - list, word_at(p + 16 + 4 * (t + 1)));
    }
}

/* ---- round trips ---- */

/* Packs, compares both writers, unpacks two ways; the measure goes to the caller. */
static struct packed_measure round_trip(const uint16_t *value, uint32_t values)
{
    struct helm_err err = {0};
    struct packed_measure m;
    packed_measure(value, values, &m);
    assert_true(m.bytes <= packed_group_bytes_max(values));
    assert_int_equal(m.bytes % PACKED_ALIGN, 0);
    uint8_t *fast = new_room(m.bytes), *plain = new_room(m.bytes);
    uint16_t *back = new_values(values + 1);
    assert_int_equal(packed_write(&m, value, values, fast, &err), HELM_OK);
    assert_int_equal(packed_write_ref(&m, value, values, plain, &err), HELM_OK);
    assert_memory_equal(fast, plain, m.bytes);
    back[values] = 0x1234;
    assert_int_equal(packed_read(fast, m.bytes, values, back, &err), HELM_OK);
    assert_memory_equal(back, value, values * sizeof(*back));
    assert_int_equal(back[values], 0x1234);
    memset(back, 0, values * sizeof(*back));
    read_by_header(fast, values, back);
    assert_memory_equal(back, value, values * sizeof(*back));
    free(back);
    free_room(plain, m.bytes);
    free_room(fast, m.bytes);
    return m;
}

static void normal_weights_become_smaller(void **state)
{
    (void)state;
    const uint32_t values = 16 * 1024;
    uint16_t *v = new_values(values);
    uint64_t seed = 1;
    const double scales[] = {1e-38, 1e-20, 0.0013, 0.02, 0.031, 1, 1000, 1e30};
    for (size_t s = 0; s < sizeof(scales) / sizeof(scales[0]); s++) {
        for (uint32_t i = 0; i < values; i++) v[i] = random_normal(&seed, scales[s]);
        struct packed_measure m = round_trip(v, values);
        assert_int_equal(m.kind, PACKED_CODED);
        const double bits = 8.0 * m.bytes / values;
        if (!(bits > 11.05 && bits < 11.5)) fail_msg("scale %g: %.3f bits a value", scales[s], bits);
    }
    free(v);
}

static void every_pattern_comes_back(void **state)
{
    (void)state;
    uint16_t *v = new_values(65536 * 4);
    for (uint32_t i = 0; i < 65536; i++) v[i] = (uint16_t)i;
    assert_int_equal(round_trip(v, 65536).kind, PACKED_RAW);
    /* among weights, so that the group is coded and all others are escapes */
    uint64_t seed = 2;
    for (uint32_t i = 0; i < 65536 * 4; i++)
        v[i] = i % 4 == 1 ? (uint16_t)(i / 4) : random_normal(&seed, 0.02);
    assert_int_equal(round_trip(v, 65536 * 4).kind, PACKED_CODED);
    free(v);
}

static void one_exponent_at_each_end(void **state)
{
    (void)state;
    const uint16_t values[] = {0, 0x8000, 0x3f80, 0x7f7f, 0x7f80, 0xff80, 0x7fc1, 0xffff, 0x0001};
    uint16_t *v = new_values(4096);
    for (size_t c = 0; c < sizeof(values) / sizeof(values[0]); c++) {
        for (uint32_t i = 0; i < 4096; i++) v[i] = values[c];
        struct packed_measure m = round_trip(v, 4096);
        const uint32_t e = values[c] >> 7 & 0xff;
        /* infinities and NaN have no code: nothing but escapes would be larger */
        assert_int_equal(m.kind, e == 255 ? PACKED_RAW : PACKED_CODED);
        assert_int_equal(m.escapes, 0);
        if (e < 255) assert_true(m.base <= e && e < m.base + PACKED_ESCAPE);
    }
    free(v);
}

static void random_bits_are_stored_raw(void **state)
{
    (void)state;
    uint16_t *v = new_values(40000);
    uint64_t seed = 3;
    for (uint32_t i = 0; i < 40000; i++) v[i] = (uint16_t)random_u32(&seed);
    struct packed_measure m = round_trip(v, 40000);
    assert_int_equal(m.kind, PACKED_RAW);
    assert_int_equal(m.bytes, packed_group_bytes_max(40000));
    free(v);
}

static void odd_sizes(void **state)
{
    (void)state;
    uint64_t seed = 4;
    uint16_t *v = new_values(9000);
    for (uint32_t i = 0; i < 9000; i++) v[i] = random_normal(&seed, 0.02);
    const uint32_t sizes[] = {1,    2,    7,    8,    15,   16,   63,   64,   127,  128,  255,  256,
                              511,  1000, 1023, 1024, 1025, 1031, 1279, 2047, 2048, 2049, 3000, 4096,
                              4097, 5000, 7167, 7168, 7169, 8191, 8192, 8193, 8999, 9000};
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        struct packed_measure m = round_trip(v, sizes[i]);
        if (sizes[i] <= 512) assert_int_equal(m.kind, PACKED_RAW);
        if (sizes[i] >= 2048 && sizes[i] % 1024 == 0) assert_int_equal(m.kind, PACKED_CODED);
    }
    free(v);
}

static void escapes_wherever_they_stand(void **state)
{
    (void)state;
    const uint32_t values = 5 * 1024 + 40;
    uint16_t *v = new_values(values);
    /* each place of a tile and its neighbours alone, also the first and the last of a tile */
    for (uint32_t at = 0; at < values; at += at % 1024 < 16 || at % 1024 > 1000 ? 1 : 37) {
        for (uint32_t i = 0; i < values; i++) v[i] = (uint16_t)(0x3c00 + i % 128);
        v[at] = 0xff80;
        assert_int_equal(round_trip(v, values).escapes, 1);
    }
    /* a tile of nothing but escapes between others; every second value */
    for (uint32_t i = 0; i < values; i++) v[i] = i / 1024 == 2 ? (uint16_t)(i * 7) | 0x4000 : 0x3c00;
    assert_int_equal(round_trip(v, values).kind, PACKED_CODED);
    for (uint32_t i = 0; i < values; i++) v[i] = i % 3 ? 0x3c11 : (uint16_t)(i & 0x1fff);
    assert_int_equal(round_trip(v, values).kind, PACKED_CODED);
    free(v);
}

static void both_tile_writers_agree(void **state)
{
    (void)state;
    if (!(cpu_features() & CPU_AVX2)) {
        print_message("skipped: this machine lacks avx2\n");
        skip();
    }
    uint64_t seed = 5;
    uint16_t v[PACKED_TILE];
    struct packed_tile a, b;
    uint8_t list_a[PACKED_TILE], list_b[PACKED_TILE];
    for (int round = 0; round < 600; round++) {
        const uint32_t spread = 1 + random_u32(&seed) % 12;
        const uint8_t base = (uint8_t)(random_u32(&seed) % (PACKED_BASE_MAX + 1));
        for (uint32_t i = 0; i < PACKED_TILE; i++)
            v[i] = (uint16_t)(random_u32(&seed) & 0x807f) |
                   (uint16_t)(((base + random_u32(&seed) % spread + 254) & 0xff) << 7);
        const uint32_t n = packed_tile_ref(v, base, &a, list_a);
        assert_int_equal(packed_tile_avx2(v, base, &b, list_b), n);
        assert_int_equal(packed_tile_escapes(&a), n);
        assert_memory_equal(&a, &b, sizeof(a));
        assert_memory_equal(list_a, list_b, n);
    }
}

/* ---- matrices ---- */

static void matrices_and_their_slices(void **state)
{
    (void)state;
    struct helm_err err = {0};
    uint64_t seed = 6;
    const uint32_t shapes[][2] = {{1, 1},   {1, 4096},  {15, 129}, {16, 64},  {17, 1000},
                                  {40, 96}, {33, 4097}, {64, 512}, {100, 333}};
    for (size_t s = 0; s < sizeof(shapes) / sizeof(shapes[0]); s++) {
        const uint32_t rows = shapes[s][0], cols = shapes[s][1], groups = packed_groups(rows);
        const size_t values = (size_t)rows * cols;
        const uint64_t room = packed_matrix_bytes_max(rows, cols);
        uint16_t *v = new_values(values), *back = new_values(values);
        uint8_t *packed = new_room(room);
        uint32_t *offset = malloc(packed_offsets_bytes(rows));
        for (size_t i = 0; i < values; i++) /* some groups cannot be coded */
            v[i] = i / cols / 16 % 3 == 1 ? (uint16_t)random_u32(&seed) : random_normal(&seed, 0.05);
        assert_true(packed_takes(DTYPE_BF16, rows, cols));
        assert_int_equal(packed_write_matrix(v, rows, cols, packed, offset, &err), HELM_OK);
        assert_true(packed_at(offset, groups) <= room);
        for (uint32_t first = 0; first < groups; first++)
            for (uint32_t n = 1; n <= groups - first; n++) {
                const uint64_t bytes = packed_at(offset, first + n) - packed_at(offset, first);
                const size_t at = (size_t)first * 16 * cols,
                             end = first + n == groups ? values : at + (size_t)n * 16 * cols;
                memset(back, 0xff, values * sizeof(*back));
                assert_int_equal(packed_read_groups(&(struct packed_part){packed + packed_at(offset, first),
                                                                          bytes, offset, rows, cols, first,
                                                                          n},
                                                    back, &err),
                                 HELM_OK);
                assert_memory_equal(back, v + at, (end - at) * sizeof(*back));
                assert_int_equal(packed_read_groups(&(struct packed_part){packed + packed_at(offset, first),
                                                                          bytes - 1, offset, rows, cols,
                                                                          first, n},
                                                    back, &err),
                                 HELM_E_FORMAT);
            }
        assert_int_equal(packed_read_groups(&(struct packed_part){packed, room, offset, rows, cols, 1,
                                                                  groups},
                                            back, &err),
                         HELM_E_UNSUPPORTED);
        free(offset);
        free_room(packed, packed_round(room));
        free(back);
        free(v);
    }
}

static void shapes_that_are_refused(void **state)
{
    (void)state;
    struct helm_err err = {0};
    uint32_t offset[2];
    uint16_t v = 0;
    uint8_t packed[PACKED_ALIGN];
    assert_false(packed_takes(DTYPE_F16, 16, 64));
    assert_false(packed_takes(DTYPE_F32, 16, 64));
    assert_false(packed_takes(DTYPE_BF16, 0, 64));
    assert_false(packed_takes(DTYPE_BF16, 16, 0));
    assert_false(packed_takes(DTYPE_BF16, 16, PACKED_COLS_MAX + 1));
    assert_true(packed_takes(DTYPE_BF16, 16, PACKED_COLS_MAX));
    assert_true(packed_takes(DTYPE_BF16, 152064, 8192));
    assert_false(packed_takes(DTYPE_BF16, UINT32_MAX, PACKED_COLS_MAX));
    assert_int_equal(packed_write_matrix(&v, 16, 0, packed, offset, &err), HELM_E_UNSUPPORTED);
    assert_int_equal(packed_groups(0), 0);
    assert_int_equal(packed_groups(UINT32_MAX), 1u << 28);
    assert_int_equal(packed_matrix_bytes_max(0, 64), 0);
    assert_int_equal(packed_group_values(33, 10, 1), 160);
    assert_int_equal(packed_group_values(33, 10, 2), 10);
}

/* ---- what is wrong is said ---- */

static void other_values_than_measured(void **state)
{
    (void)state;
    struct helm_err err = {0};
    const uint32_t values = 8192;
    uint64_t seed = 7;
    uint16_t *v = new_values(values);
    for (uint32_t i = 0; i < values; i++) v[i] = random_normal(&seed, 0.02);
    struct packed_measure m, wrong;
    packed_measure(v, values, &m);
    uint8_t *packed = new_room(m.bytes);
    for (uint32_t i = 5000; i < values; i++) v[i] = 0x7f80; /* more escapes */
    assert_int_equal(packed_write(&m, v, values, packed, &err), HELM_E_MISMATCH);
    for (uint32_t i = 0; i < values; i++) v[i] = (uint16_t)(m.base << 7); /* none */
    assert_int_equal(packed_write(&m, v, values, packed, &err), HELM_E_MISMATCH);
    wrong = m, wrong.bytes += PACKED_ALIGN;
    assert_int_equal(packed_write(&wrong, v, values, packed, &err), HELM_E_MISMATCH);
    assert_int_equal(packed_write(&m, v, values - 1024, packed, &err), HELM_E_MISMATCH);
    free_room(packed, m.bytes);
    free(v);
}

/* Reads a copy of exactly `bytes` bytes (so that sanitizers see a read outside). */
static int read_copy(const uint8_t *packed, size_t bytes, uint32_t values, uint16_t *back)
{
    struct helm_err err = {0};
    uint8_t *copy = malloc(bytes ? bytes : 1);
    assert_non_null(copy);
    memcpy(copy, packed, bytes);
    int rc = packed_read(copy, bytes, values, back, &err);
    assert_true(rc == HELM_OK || (rc == HELM_E_FORMAT && err.text[0] != '\0'));
    free(copy);
    return rc;
}

static void bytes_that_are_no_group(void **state)
{
    (void)state;
    const uint32_t values = 3 * 1024 + 100;
    uint64_t seed = 8;
    struct helm_err err = {0};
    uint16_t *v = new_values(values), *back = new_values(values);
    for (uint32_t i = 0; i < values; i++) v[i] = random_normal(&seed, 0.02);
    struct packed_measure m;
    packed_measure(v, values, &m);
    uint8_t *good = new_room(m.bytes), *bad = new_room(m.bytes);
    assert_int_equal(packed_write(&m, v, values, good, &err), HELM_OK);
    assert_int_equal(good[12], PACKED_CODED);
    for (size_t n = 0; n < m.bytes; n += n < 200 ? 1 : 61)
        assert_int_equal(read_copy(good, n, values, back), HELM_E_FORMAT);
    assert_int_equal(read_copy(good, m.bytes, values, back), HELM_OK);
    assert_int_equal(read_copy(good, m.bytes, values + 1, back), HELM_E_FORMAT);
    assert_int_equal(read_copy(good, m.bytes, 0, back), HELM_E_FORMAT);
    /* a bit of header or table changed is seen, except in bytes that say nothing; others give other values */
    for (uint32_t at = 0; at < 16 + 4 * (packed_tiles(values) + 1); at++)
        for (int bit = 0; bit < 8; bit++) {
            if (at == 13 || at == 14 || at == 15) continue;
            memcpy(bad, good, m.bytes);
            bad[at] = (uint8_t)(bad[at] ^ 1 << bit);
            assert_int_equal(read_copy(bad, m.bytes, values, back), HELM_E_FORMAT);
        }
    memcpy(bad, good, m.bytes);
    bad[13] = PACKED_BASE_MAX + 1;
    assert_int_equal(read_copy(bad, m.bytes, values, back), HELM_E_FORMAT);
    for (int round = 0; round < 3000; round++) {
        memcpy(bad, good, m.bytes);
        for (uint32_t n = 1 + random_u32(&seed) % 4; n > 0; n--)
            bad[random_u32(&seed) % (round % 2 ? 160 : m.bytes)] = (uint8_t)random_u32(&seed);
        (void)read_copy(bad, m.bytes, values, back);
    }
    free_room(bad, m.bytes);
    free_room(good, m.bytes);
    free(back);
    free(v);
}

static void offsets_that_are_wrong(void **state)
{
    (void)state;
    struct helm_err err = {0};
    const uint32_t rows = 48, cols = 256;
    uint64_t seed = 9;
    uint16_t *v = new_values(rows * cols), *back = new_values(rows * cols);
    for (uint32_t i = 0; i < rows * cols; i++) v[i] = random_normal(&seed, 0.02);
    uint8_t *packed = new_room(packed_matrix_bytes_max(rows, cols));
    uint32_t offset[4], bad[4];
    assert_int_equal(packed_write_matrix(v, rows, cols, packed, offset, &err), HELM_OK);
    const uint64_t bytes = packed_at(offset, 3);
    const uint32_t wrong[][4] = {{0, offset[2], offset[1], offset[3]},
                                 {0, offset[1], offset[2], UINT32_MAX},
                                 {5, offset[1], 0, offset[3]},
                                 {0, offset[1] - 1, offset[2], offset[3]}};
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        memcpy(bad, wrong[i], sizeof(bad));
        assert_int_equal(packed_read_groups(&(struct packed_part){packed, bytes, bad, rows, cols, 0, 3}, back,
                                            &err),
                         HELM_E_FORMAT);
    }
    assert_int_equal(packed_read_groups(&(struct packed_part){packed, bytes, offset, rows, cols, 0, 3}, back,
                                        &err),
                     HELM_OK);
    assert_memory_equal(back, v, rows * cols * sizeof(*v));
    free_room(packed, packed_round(packed_matrix_bytes_max(rows, cols)));
    free(back);
    free(v);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(normal_weights_become_smaller),
        cmocka_unit_test(every_pattern_comes_back),
        cmocka_unit_test(one_exponent_at_each_end),
        cmocka_unit_test(random_bits_are_stored_raw),
        cmocka_unit_test(odd_sizes),
        cmocka_unit_test(escapes_wherever_they_stand),
        cmocka_unit_test(both_tile_writers_agree),
        cmocka_unit_test(matrices_and_their_slices),
        cmocka_unit_test(shapes_that_are_refused),
        cmocka_unit_test(other_values_than_measured),
        cmocka_unit_test(bytes_that_are_no_group),
        cmocka_unit_test(offsets_that_are_wrong),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
