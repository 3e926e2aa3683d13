/* Every linear kernel of the table against its format's plain definition: odd sizes, unaligned weights,
 * poisoned outputs. Those of variable formats and those with activations of 8 bits have tests of their own
 * (test_bf16_packed.c, test_int8.c). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>

#include "common/cpu/kernels/variants.h"
#include "tests/kernels/linear_problem.h"

/* |difference| allowed, with `magnitude` the sum of |w x|: an fp32 sum of n terms in any order is off by
 * about sqrt(n) roundings of 2^-24, at worst by n; a single lost or doubled term is 1/n of the magnitude and
 * stands out. */
static double tolerance(double magnitude, size_t cols)
{
    return 0x1p-24 * (4 + 2 * sqrt((double)cols)) * magnitude;
}

static void check(const struct linear_kernel *v, const struct problem *p, size_t t, size_t r, float got,
                  double before)
{
    double want = p->sum[t * p->rows + r] + before;
    double allowed = tolerance(p->magnitude[t * p->rows + r] + fabs(before), p->cols);
    /* The processor's products of bf16 take subnormal numbers, products and sums as zero. */
    if (v->features & CPU_AVX512_BF16) allowed += 0x1p-125 * (double)p->cols;
    if (!(fabs((double)got - want) <= allowed))
        fail_msg("%s %s rows %zu cols %zu tokens %zu: y[%zu][%zu] = %.9g, reference %.9g, allowed %.3g",
                 v->name, tensor_format_name(p->format), p->rows, p->cols, p->tokens, t, r, (double)got, want,
                 allowed);
}

static void check_gemm(const struct linear_kernel *v, const struct problem *p, bool accumulate)
{
    /* One row more than written before y, ldy >= rows, and the last written element is the last readable one.
     */
    struct guarded out;
    guarded_make(&out, (p->ldy * p->tokens + p->rows) * sizeof(float));
    float *before = out.data, *y = before + p->ldy;
    uint64_t seed = 42;
    for (size_t t = 0; t < p->tokens && accumulate; t++)
        for (size_t r = 0; r < p->rows; r++) y[t * p->ldy + r] = random_float(&seed);
    multiply(v, p, y, accumulate, 1);
    seed = 42;
    for (size_t t = 0; t < p->tokens; t++) {
        for (size_t r = 0; r < p->rows; r++)
            check(v, p, t, r, y[t * p->ldy + r], accumulate ? (double)random_float(&seed) : 0);
        for (size_t r = p->rows; r < p->ldy && t + 1 < p->tokens; r++)
            assert_int_equal(convert_f32_bits(y[t * p->ldy + r]), 0xffffffffu);
    }
    for (size_t r = 0; r < p->ldy; r++) assert_int_equal(convert_f32_bits(before[r]), 0xffffffffu);
    guarded_free(&out);
}

static void gemv_agrees(void **state)
{
    const struct linear_kernel *v = usable(state);
    static const size_t more[][2] = {{300, 4099}, {13, 12288}, {1030, 40}};
    for (size_t i = 0; i < SIZES * SIZES + 3; i++) {
        size_t rows = i < SIZES * SIZES ? sizes[i / SIZES] : more[i - SIZES * SIZES][0];
        size_t cols = i < SIZES * SIZES ? sizes[i % SIZES] : more[i - SIZES * SIZES][1];
        if (i < SIZES * SIZES && is_repeated(v->format, i % SIZES)) continue;
        if (i < SIZES * SIZES && (i / SIZES + i % SIZES) % SOME_PAIRS) continue;
        struct problem p;
        problem_make(&p, v->format, rows, cols, 1, false);
        problem_sum(&p);
        cols = p.cols;
        struct guarded out, part;
        guarded_make(&out, (rows + 16) * sizeof(float));
        guarded_make(&part, rows * sizeof(float));
        float *y = (float *)out.data + 16, *split = part.data, *x = ordered(v, p.x.data, cols);
        v->gemv(y, p.w.data, x, rows, cols, NULL);
        for (size_t r = 0; r < rows; r++) check(v, &p, 0, r, y[r], 0);
        for (size_t r = 0; r < 16; r++)
            assert_int_equal(convert_f32_bits(((float *)out.data)[r]), 0xffffffffu);
        /* A row's result does not depend on how rows are shared among threads. */
        size_t cut = rows / 3;
        if (cut) v->gemv(split, p.w.data, x, cut, cols, NULL);
        v->gemv(split + cut, row_of(&p, cut), x, rows - cut, cols, NULL);
        assert_memory_equal(split, y, rows * sizeof *y);
        /* Nor on read-ahead, which may go past the guarded page's end and into unmapped memory. */
        const struct gemv_reads reads[] = {{.near = 64},
                                           {.near = 2048, .far = 1 << 20, .next = (const void *)64},
                                           {.near = 0, .far = 256, .next = y, .next_stride = 4096}};
        for (size_t k = 0; k < sizeof reads / sizeof *reads; k++) {
            memset(split, 0xff, rows * sizeof *y);
            v->gemv(split, p.w.data, x, rows, cols, &reads[k]);
            assert_memory_equal(split, y, rows * sizeof *y);
        }
        free(x);
        guarded_free(&out);
        guarded_free(&part);
        problem_free(&p);
    }
}

/* A scale that is no finite number spoils its row and no other. */
static void gemv_keeps_infinities_apart(void **state)
{
    const struct linear_kernel *v = usable(state);
    const struct tensor_format_traits *traits = tensor_format_of(v->format);
    enum { ROWS = 9, COLS = 512 };
    if (traits->block_values == 1) return; /* values are not scaled */
    struct problem p;
    struct helm_err err = {0};
    float value[COLS], y[ROWS];
    problem_make(&p, v->format, ROWS, COLS, 1, false);
    problem_sum(&p);
    float *x = ordered(v, p.x.data, COLS);
    for (uint32_t spoiled = 0; spoiled < ROWS; spoiled++) {
        char *row = (char *)p.w.data + spoiled * tensor_format_row_bytes(v->format, COLS), kept[256];
        bool found = false;
        memcpy(kept, row, traits->block_bytes);
        /* wherever the scale lies in a block: halves that are infinite or no number, one after another */
        for (uint32_t at = 0; at + 1 < traits->block_bytes; at++)
            for (int nan = 0; nan < 2; nan++) {
                const struct tensor_matrix one = {v->format, row, traits->block_bytes, 1,
                                                  traits->block_values};
                const uint16_t half = nan ? 0xfe01 : 0x7c00;
                memcpy(row + at, &half, sizeof half);
                assert_int_equal(tensor_format_read_row(&one, 0, value, &err), 0);
                bool finite = true;
                for (uint32_t i = 0; i < traits->block_values; i++) finite &= isfinite(value[i]) != 0;
                if (!finite) {
                    found = true;
                    v->gemv(y, p.w.data, x, ROWS, COLS, NULL);
                    for (size_t r = 0; r < ROWS; r++)
                        if (r == spoiled)
                            assert_false(isfinite(y[r]));
                        else
                            check(v, &p, 0, r, y[r], 0);
                }
                memcpy(row, kept, traits->block_bytes);
            }
        /* MXFP4's scales are powers of two; two neighbouring bytes are a half of IQ1_M's scale of scales */
        if (v->format != FORMAT_IQ1_M) assert_int_equal(found, v->format != FORMAT_MXFP4);
    }
    free(x);
    problem_free(&p);
}

/* x that is no finite number spoils every row, alone and among others, and no other token; an x of zeros is
 * no special case, nor one far above its neighbours. */
static void gemv_shows_what_x_is(void **state)
{
    const struct linear_kernel *v = usable(state);
    enum { ROWS = 3, TOKENS = 3, COLS = 512 };
    static const float spoil[] = {INFINITY, -INFINITY, NAN};
    struct problem p;
    problem_make(&p, v->format, ROWS, COLS, TOKENS, false);
    float *x = p.x.data, y[TOKENS * ROWS];
    memset(x, 0, COLS * sizeof *x);
    x[p.ldx + 300] = 300;
    problem_sum(&p);
    for (size_t i = 0; i <= sizeof spoil / sizeof *spoil; i++) {
        if (i) x[2 * p.ldx + 77] = spoil[i - 1];
        for (size_t t = 0; t < TOKENS; t++) {
            float *alone = ordered(v, x + t * p.ldx, p.cols);
            v->gemv(y + t * ROWS, p.w.data, alone, ROWS, p.cols, NULL);
            free(alone);
            for (size_t r = 0; r < ROWS; r++)
                if (i && t == 2)
                    assert_false(isfinite(y[t * ROWS + r]));
                else
                    check(v, &p, t, r, y[t * ROWS + r], 0);
        }
    }
    problem_free(&p);
}

static void gemm_agrees(void **state)
{
    const struct linear_kernel *v = usable(state);
    /* Every fifth of all combinations, a different fifth in each plane; then shapes past each blocking
     * limit. */
    static const size_t more[][3] = {{100, 2081, 33}, {49, 4099, 65},  {300, 70, 20},   {33, 100, 600},
                                     {257, 33, 513},  {65, 1056, 300}, {513, 1100, 17}, {50, 2100, 5}};
    const size_t all = SIZES * SIZES * SIZES;
    for (size_t i = 0; i < all + sizeof more / sizeof *more; i++) {
        size_t r = i / SIZES / SIZES, c = i / SIZES % SIZES, t = i % SIZES;
        if (i < all && (r + 2 * c + t) % SOME(5)) continue;
        if (i >= all && (i - all + v->format) % SOME_LISTED) continue;
        struct problem p;
        if (i < all)
            problem_make(&p, v->format, sizes[r], sizes[c], sizes[t], !v->exact_input);
        else
            problem_make(&p, v->format, more[i - all][0], more[i - all][1], more[i - all][2],
                         !v->exact_input);
        problem_sum(&p);
        check_gemm(v, &p, (r + c + t) % 2);
        problem_free(&p);
    }
}

static void gemm_does_not_depend_on_shares(void **state)
{
    const struct linear_kernel *v = usable(state);
    static const size_t shapes[][3] = {{200, 100, 64}, {131, 65, 5}, {131, 1057, 40}, {97, 129, 8}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        struct problem p;
        problem_make(&p, v->format, shapes[i][0], shapes[i][1], shapes[i][2], !v->exact_input);
        float *whole = calloc(p.ldy * p.tokens, sizeof *whole), *cut = calloc(p.ldy * p.tokens, sizeof *cut);
        assert_true(whole && cut);
        multiply(v, &p, whole, false, 1);
        multiply(v, &p, cut, false, 3);
        if (strcmp(v->name, "openblas") == 0) { /* another library's order of sums: close, not equal */
            problem_sum(&p);
            for (size_t t = 0; t < p.tokens; t++)
                for (size_t r = 0; r < p.rows; r++) check(v, &p, t, r, cut[t * p.ldy + r], 0);
        } else {
            assert_memory_equal(whole, cut, p.ldy * p.tokens * sizeof *whole);
        }
        free(whole);
        free(cut);
        problem_free(&p);
    }
}

/* Variants that round activations must round to the nearest bf16, ties to even: identity weights show it. */
/* Gates and ups joined at once, in pieces, are the bits of two products, swiglu and a tile; and nothing else
 * is written. */
static void joined_is_what_parts_make(void **state)
{
    const struct linear_kernel *v = usable(state);
    static const size_t shapes[][3] = {{32, 32, 1},    {64, 96, 17},    {96, 256, 16}, {160, 300, 50},
                                       {352, 512, 33}, {288, 800, 150}, {64, 260, 530}};
    size_t made = 0;
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes && v->join; i++) {
        const size_t rows = shapes[i][0], tokens = shapes[i][2], cut = rows / 2 / v->tile_cols * v->tile_cols;
        if (tokens < v->join_tokens) continue;
        struct problem gate, up;
        problem_make(&gate, v->format, rows, shapes[i][1], tokens, false);
        problem_make(&up, v->format, rows, shapes[i][1], tokens, false);
        up.x = gate.x, up.ldy = gate.ldy = rows;
        uint64_t seed = i + 1;
        fill_weights(&up, &seed);
        float *gates = malloc(rows * tokens * sizeof *gates), *ups = malloc(rows * tokens * sizeof *ups);
        assert_true(gates && ups);
        multiply(v, &gate, gates, false, 1);
        multiply(v, &up, ups, false, 1);
        vector_avx512.swiglu(gates, gates, ups, rows * tokens);
        struct guarded in, wanted, got;
        guarded_make(&in, v->tiled_bytes(tokens, gate.cols));
        guarded_make(&wanted, v->tiled_bytes(tokens, rows));
        guarded_make(&got, v->tiled_bytes(tokens, rows));
        v->tile(wanted.data, gates, rows, tokens, rows, 0, tokens, 0, rows);
        v->tile(in.data, gate.x.data, gate.ldx, tokens, gate.cols, 0, tokens, 0, gate.cols);
        void *scratch = aligned_scratch(v->scratch_bytes(gate.cols, tokens));
        if (v->thread_begin) v->thread_begin();
        for (size_t r = 0; r < rows; r = r < cut ? cut : rows) {
            const struct gemm_joined joined = {.gate = row_of(&gate, r),
                                               .up = row_of(&up, r),
                                               .tiled = in.data,
                                               .rows = r < cut ? cut : rows - cut,
                                               .cols = gate.cols,
                                               .tokens = tokens,
                                               .out = got.data,
                                               .out_cols = rows,
                                               .out_first = r,
                                               .scratch = scratch};
            v->join(&joined);
        }
        if (v->thread_end) v->thread_end();
        assert_memory_equal(got.data, wanted.data, wanted.bytes);
        made++;
        free(scratch), free(gates), free(ups);
        guarded_free(&in), guarded_free(&wanted), guarded_free(&got);
        guarded_free(&up.w);
        problem_free(&gate);
    }
    assert_true(made >= 2 || !v->join);
}

static void rounding_is_to_nearest_even(void **state)
{
    const struct linear_kernel *v = usable(state);
    enum { COLS = 64, TOKENS = 20 };
    struct problem p;
    problem_make(&p, v->format, COLS, COLS, TOKENS, false);
    static const uint32_t bits[] = {0x3f808000, 0x3f818000, 0x3f808001, 0x3f807fff,
                                    0xbf818000, 0x7f7f0000, 0x3fffffff};
    float *x = p.x.data, y[TOKENS * (COLS + 8)];
    for (size_t i = 0; i < sizeof bits / sizeof *bits; i++) x[i * p.ldx + i * 5] = convert_bits_f32(bits[i]);
    for (size_t i = 0; i < (size_t)COLS * COLS; i++)
        ((uint16_t *)p.w.data)[i] = convert_f32_bf16(i / COLS == i % COLS ? 1.0f : 0.0f);
    multiply(v, &p, y, false, 1);
    for (size_t t = 0; t < TOKENS; t++)
        for (size_t r = 0; r < COLS; r++) {
            float want = convert_bf16_f32(convert_f32_bf16(x[t * p.ldx + r]));
            assert_true(y[t * p.ldy + r] == want);
        }
    problem_free(&p);
}

/* Rows decoded are the definition's, bit for bit, and nothing after them is written. */
static void decode_agrees(void **state)
{
    const struct linear_kernel *v = usable(state);
    const enum dtype value = tensor_format_value(v->rows); /* bf16: rounded to nearest even */
    for (size_t i = 0; i < SIZES * SIZES; i++) {
        struct problem p;
        struct guarded out;
        struct helm_err err = {0};
        if (is_repeated(v->format, i % SIZES)) continue;
        problem_make(&p, v->format, sizes[i / SIZES], sizes[i % SIZES], 1, false);
        const size_t bytes = p.rows * p.cols * dtype_bytes(value);
        guarded_make(&out, (bytes + 63) / 64 * 64);
        v->decode(out.data, p.w.data, p.rows, p.cols);
        float *row = malloc(p.cols * sizeof *row);
        assert_non_null(row);
        const struct tensor_matrix matrix = {v->format, p.w.data, p.w.bytes, (uint32_t)p.rows,
                                             (uint32_t)p.cols};
        for (size_t r = 0; r < p.rows; r++) {
            assert_int_equal(tensor_format_read_row(&matrix, (uint32_t)r, row, &err), 0);
            for (size_t c = 0; c < p.cols; c++)
                assert_int_equal(convert_f32_bits(convert_load(out.data, value, r * p.cols + c)),
                                 convert_f32_bits(value == DTYPE_BF16
                                                      ? convert_bf16_f32(convert_f32_bf16(row[c]))
                                                      : row[c]));
        }
        for (size_t b = bytes; b < out.bytes; b++) assert_int_equal(((unsigned char *)out.data)[b], 0xff);
        free(row);
        guarded_free(&out);
        problem_free(&p);
    }
}

/* Blocks decoded to AMX's tiles are the rows decoded, laid out anew; rows that are not there are left
 * alone. */
static void tiles_are_the_rows_decoded(void **state)
{
    (void)state;
    enum { ROWS = 37, COLS = 768, TAKEN = 512, PADDED = 48 };
    if (~cpu_features() & (CPU_AVX512 | CPU_AVX512_BF16)) {
        print_message("tiles skipped: this machine lacks avx512-bf16\n");
        skip();
    }
    const enum tensor_format formats[INT8_FORMAT_COUNT] = {
#define FORMAT(format, FORMAT_NAME, values, bytes, group) [INT8_##FORMAT_NAME] = FORMAT_##FORMAT_NAME,
        INT8_FORMATS(FORMAT)};
    const bool grids[INT8_FORMAT_COUNT] = {
#define GRID(format, FORMAT_NAME, values, bytes, group) [INT8_##FORMAT_NAME] = true,
        BLOCK_GRID_FORMATS(GRID)};
    uint16_t *rows = aligned_scratch(ROWS * COLS * 2), *tiles = aligned_scratch(PADDED * TAKEN * 2);
    for (int f = 0; f < INT8_FORMAT_COUNT; f++) {
        if (grids[f] && !(cpu_features() & CPU_AVX512_VBMI2)) continue; /* they are permuted by bytes */
        const struct linear_kernel *decode;
        struct helm_err err = {0};
        struct problem p;
        problem_make(&p, formats[f], ROWS, COLS, 1, false);
        assert_int_equal(linear_choose(formats[f], LINEAR_DECODE, LINEAR_EXACT, cpu_features(), "avx512-bf16",
                                       &decode, &err),
                         0);
        memset(tiles, 0xff, PADDED * TAKEN * 2);
        decode->decode(rows, p.w.data, ROWS, COLS);
        blocks_tiles[f](tiles, (const char *)p.w.data + tensor_format_row_bytes(formats[f], COLS - TAKEN),
                        tensor_format_row_bytes(formats[f], COLS), ROWS, TAKEN, 0);
        for (size_t r = 0; r < PADDED; r++)
            for (size_t c = 0; c < TAKEN; c++)
                assert_int_equal(tiles[r / 16 * 16 * TAKEN + c / 32 * 512 + r % 16 * 32 + c % 32],
                                 r < ROWS ? rows[r * COLS + COLS - TAKEN + c] : 0xffff);
        problem_free(&p);
    }
    free(rows);
    free(tiles);
}

static void choice_names_what_is_missing(void **state)
{
    (void)state;
    const unsigned all = CPU_AVX2 | CPU_AVX512 | CPU_AVX512_BF16 | CPU_AMX_BF16;
    const struct linear_kernel *v;
    struct helm_err err = {0};
    static const struct {
        enum tensor_format format;
        unsigned features;
        const char *tokens, *one;
    } automatic[] = {{FORMAT_BF16, all, "amx-bf16", "amx-bf16"},
                     {FORMAT_BF16, CPU_AVX2 | CPU_AVX512 | CPU_AVX512_BF16, "avx512-bf16", "avx512"},
                     {FORMAT_BF16, CPU_AVX2 | CPU_AVX512, "avx512", "avx512"},
                     {FORMAT_F16, all, "avx512", "avx512"},
                     {FORMAT_Q4_K, all, "amx-bf16", "avx512"},
                     {FORMAT_Q5_K, all, "amx-bf16", "amx-int8"},
                     {FORMAT_Q6_K, all, "amx-bf16", "avx512"},
                     {FORMAT_F32, CPU_AVX2, "avx2", "avx2"},
                     {FORMAT_F32, 0, "ref", "ref"}};
    for (size_t i = 0; i < sizeof automatic / sizeof *automatic; i++) {
        const enum tensor_format format = automatic[i].format;
        assert_int_equal(linear_choose(format, LINEAR_TOKENS, LINEAR_EXACT, automatic[i].features, NULL, &v,
                                       &err),
                         0);
        assert_string_equal(v->name, automatic[i].tokens);
        assert_int_equal(v->format, format);
        assert_int_equal(linear_choose(format, LINEAR_ONE_TOKEN, LINEAR_EXACT, automatic[i].features, NULL,
                                       &v, &err),
                         0);
        assert_string_equal(v->name, automatic[i].one);
        assert_int_equal(v->format, format);
        assert_int_equal(linear_has(format, LINEAR_DECODE, LINEAR_EXACT, NULL),
                         !tensor_format_is_plain(format));
    }
    assert_int_equal(linear_choose(FORMAT_F16, LINEAR_TOKENS, LINEAR_EXACT, all, "openblas", &v, &err), 0);
    assert_string_equal(v->name, "openblas");
    assert_int_equal(linear_choose(FORMAT_BF16, LINEAR_TOKENS, LINEAR_EXACT, CPU_AVX2, "avx512", &v, &err),
                     HELM_E_UNSUPPORTED);
    assert_non_null(strstr(err.text, "avx512"));
    assert_null(v);
    assert_int_equal(linear_choose(FORMAT_F16, LINEAR_TOKENS, LINEAR_EXACT, all, "amx-bf16", &v, &err),
                     HELM_E_UNSUPPORTED);
    assert_non_null(strstr(err.text, "f16"));
    assert_int_equal(linear_choose(FORMAT_F16, LINEAR_TOKENS, LINEAR_EXACT, all, "neon", &v, &err),
                     HELM_E_NOT_FOUND);
    assert_non_null(strstr(err.text, "neon"));
}

/* Every format has what computing with it takes: a row of the registry without kernels is found here. */
static void every_format_is_computed_with(void **state)
{
    (void)state;
    struct linear_set set;
    struct helm_err err = {0};
    for (int f = 0; f < FORMAT_COUNT; f++) {
        const enum tensor_format format = (enum tensor_format)f;
        for (unsigned features = 0; features < 2u * CPU_AVX512_VNNI; features++) {
            const bool pays = linear_pays(format, features), plain = tensor_format_is_plain(format);
            assert_int_equal(linear_choose_set(format, LINEAR_EXACT, features, NULL, &set, &err), 0);
            assert_int_equal(set.one != NULL, pays);
            assert_int_equal(set.tokens != NULL, pays);
            /* several tokens of blocks are decoded by their kernel, or before it */
            assert_int_equal(set.decode != NULL, pays && !plain && set.tokens->format != format);
            if (set.decode) assert_int_equal(set.tokens->format, set.decode->rows);
        }
        assert_int_equal(linear_choose_set(format, LINEAR_EXACT, 0, "ref", &set, &err), 0);
        assert_string_equal(set.one->name, "ref");
        assert_string_equal(set.tokens->name, "ref");
    }
}

/* Blocks are multiplied as bf16 where activations would be rounded to that, with AMX by kernels of their own,
 * else as fp32. */
static void rows_follow_the_kernels(void **state)
{
    (void)state;
    const unsigned all = CPU_AVX2 | CPU_AVX512 | CPU_AVX512_BF16 | CPU_AMX_BF16;
    static const struct {
        const char *name, *decode, *tokens;
    } chosen[] = {{NULL, NULL, "amx-bf16"},
                  {"amx-bf16", NULL, "amx-bf16"},
                  {"avx512-bf16", "avx512-bf16", "avx512-bf16"},
                  {"avx512", "avx512", "avx512"},
                  {"avx2", "avx2", "avx2"},
                  {"ref", "ref", "ref"}};
    struct linear_set set;
    struct helm_err err = {0};
    for (size_t i = 0; i < sizeof chosen / sizeof *chosen; i++) {
        assert_int_equal(linear_choose_set(FORMAT_Q4_K, LINEAR_EXACT, all, chosen[i].name, &set, &err), 0);
        assert_string_equal(set.tokens->name, chosen[i].tokens);
        assert_int_equal(set.decode != NULL, chosen[i].decode != NULL);
        if (!set.decode) continue;
        assert_string_equal(set.decode->name, chosen[i].decode);
        assert_int_equal(set.tokens->exact_input, set.decode->rows == FORMAT_F32);
    }
    assert_int_equal(linear_choose_set(FORMAT_Q4_K, LINEAR_EXACT, CPU_AVX2 | CPU_AVX512, NULL, &set, &err),
                     0);
    assert_int_equal(set.decode->rows, FORMAT_F32);
}

static void scalar_conversions_round_trip(void **state)
{
    (void)state;
    for (uint32_t h = 0; h < 65536; h++) {
        float b = convert_bf16_f32((uint16_t)h), f = convert_f16_f32((uint16_t)h);
        if (isnan(b))
            assert_true(isnan(convert_bf16_f32(convert_f32_bf16(b))));
        else
            assert_int_equal(convert_f32_bf16(b), h);
        if (isnan(f))
            assert_true(isnan(convert_f16_f32(convert_f32_f16(f))));
        else
            assert_int_equal(convert_f32_f16(f), h);
    }
    assert_int_equal(convert_f32_f16(65519.99f), 0x7bff);
    assert_int_equal(convert_f32_f16(65520.0f), 0x7c00);
    assert_int_equal(convert_f32_f16(0x1p-25f), 0);
    assert_int_equal(convert_f32_f16(0x1.8p-25f), 1);
    assert_int_equal(convert_f32_f16(1.0f + 0x1p-11f), 0x3c00);
    assert_int_equal(convert_f32_f16(1.0f + 0x3p-11f), 0x3c02);
}

int main(void)
{
    size_t count;
    const struct linear_kernel *const *table = linear_kernels(&count);
    static const struct {
        const char *name;
        enum linear_schedule schedule;
        CMUnitTestFunction run;
    } kinds[] = {{"gemv", LINEAR_ONE_TOKEN, gemv_agrees},
                 {"infinities", LINEAR_ONE_TOKEN, gemv_keeps_infinities_apart},
                 {"x", LINEAR_ONE_TOKEN, gemv_shows_what_x_is},
                 {"few", LINEAR_ONE_TOKEN, few_are_as_one},
                 {"gemm", LINEAR_TOKENS, gemm_agrees},
                 {"steady", LINEAR_TOKENS, steady_tokens_do_not_depend_on_others},
                 {"shares", LINEAR_TOKENS, gemm_does_not_depend_on_shares},
                 {"joined", LINEAR_TOKENS, joined_is_what_parts_make},
                 {"rounding", LINEAR_TOKENS, rounding_is_to_nearest_even},
                 {"decode", LINEAR_DECODE, decode_agrees}};
    enum { KINDS = sizeof kinds / sizeof *kinds, MOST = 640 };
    struct CMUnitTest tests[MOST + 5];
    char names[MOST][64];
    size_t n = 0;
    for (size_t i = 0; i < count; i++)
        for (size_t k = 0; k < KINDS; k++) {
            if (kinds[k].schedule != table[i]->schedule || table[i]->inputs != LINEAR_EXACT ||
                tensor_format_of(table[i]->format)->variable)
                continue;
            if (kinds[k].run == joined_is_what_parts_make && !table[i]->join) continue;
            if (kinds[k].run == rounding_is_to_nearest_even &&
                (table[i]->exact_input || table[i]->format != FORMAT_BF16))
                continue;
            if (n == MOST) return fprintf(stderr, "more than %d tests\n", MOST), 1;
            snprintf(names[n], sizeof names[n], "%s %s %s", table[i]->name,
                     tensor_format_name(table[i]->format), kinds[k].name);
            tests[n] = (struct CMUnitTest){names[n], kinds[k].run, NULL, NULL, (void *)(uintptr_t)table[i]};
            n++;
        }
    tests[n++] = (struct CMUnitTest)cmocka_unit_test(tiles_are_the_rows_decoded);
    tests[n++] = (struct CMUnitTest)cmocka_unit_test(choice_names_what_is_missing);
    tests[n++] = (struct CMUnitTest)cmocka_unit_test(every_format_is_computed_with);
    tests[n++] = (struct CMUnitTest)cmocka_unit_test(rows_follow_the_kernels);
    tests[n++] = (struct CMUnitTest)cmocka_unit_test(scalar_conversions_round_trip);
    return _cmocka_run_group_tests("linear kernels", tests, n, NULL, NULL);
}
