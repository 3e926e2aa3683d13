/* The AMX GEMM's blocking and addressing on a software model of the tiles: runs on every machine, so that a
 * wrong stride or tail shows where no AMX is. The same text (common/cpu/kernels/amx_body.h) runs on real
 * tiles in test_linear.c where the processor has them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "tests/kernels/kernel_buffers.h"
#include "common/cpu/kernels/linear.h"
#include "common/formats/convert.h"

/* Eight tiles of 16 rows of 64 bytes, as thread_begin configures them. */
static char model_tiles[8][16][64];

static void tile_load(int t, const char *p, size_t stride)
{
    for (size_t i = 0; i < 16; i++) memcpy(model_tiles[t][i], p + i * stride, 64);
}

static void tile_store(int t, char *p, size_t stride)
{
    for (size_t i = 0; i < 16; i++) memcpy(p + i * stride, model_tiles[t][i], 64);
}

static float tile_bf16(int t, size_t row, size_t i)
{
    uint16_t half;
    memcpy(&half, &model_tiles[t][row][i * 2], 2);
    return convert_bf16_f32(half);
}

/* tdpbf16ps: c[m][n] += a[m][2k] * b[k][2n] + a[m][2k + 1] * b[k][2n + 1]. */
static void tile_dp(int c, int a, int b)
{
    for (size_t m = 0; m < 16; m++)
        for (size_t n = 0; n < 16; n++) {
            float sum;
            memcpy(&sum, &model_tiles[c][m][n * 4], 4);
            for (size_t k = 0; k < 16; k++)
                for (size_t i = 0; i < 2; i++) sum += tile_bf16(a, m, 2 * k + i) * tile_bf16(b, k, 2 * n + i);
            memcpy(&model_tiles[c][m][n * 4], &sum, 4);
        }
}

static void amx_store_transposed(float *y, size_t ldy, const float *c, size_t rows, size_t tokens,
                                 bool accumulate)
{
    for (size_t t = 0; t < tokens; t++)
        for (size_t r = 0; r < rows; r++) y[t * ldy + r] = c[r * 16 + t] + (accumulate ? y[t * ldy + r] : 0);
}

#define TILE_ZERO(t)                   memset(model_tiles[t], 0, sizeof model_tiles[t])
#define TILE_LOAD(t, address, stride)  tile_load(t, address, stride)
#define TILE_STORE(t, address, stride) tile_store(t, address, stride)
#define TILE_DP(c, a, b)               tile_dp(c, a, b)
#define TILE_FENCE()                   ((void)0)
#include "common/cpu/kernels/amx_body.h"

/* As gemm_amx.c says it, but that gates and ups are multiplied: joining has its test on real tiles. */
static void amx_join_tiles(char *to, const char *gate, const char *up, size_t apart)
{
    for (size_t r = 0; r < 32; r++)
        for (size_t t = 0; t < 16; t++) {
            const size_t at = r / 16 * apart + (r % 16 * 16 + t) * 4;
            float g, u;
            memcpy(&g, gate + at, 4);
            memcpy(&u, up + at, 4);
            const uint16_t number = convert_f32_bf16(g * u);
            memcpy(to + r / 2 * 64 + t * 4 + r % 2 * 2, &number, 2);
        }
}
#include "common/cpu/kernels/amx_joined.h"

/* The packed layout as amx_panels.h states it. */
static void pack(uint16_t *packed, const float *x, size_t tokens, size_t cols)
{
    const size_t steps = amx_padded(cols) / 32, panels = (tokens + 15) / 16;
    memset(packed, 0, panels * steps * AMX_TILE);
    for (size_t t = 0; t < tokens; t++)
        for (size_t c = 0; c < cols; c++) {
            const size_t step = c / 32, before = step / AMX_STEPS * AMX_STEPS,
                         wide = steps - before < AMX_STEPS ? steps - before : AMX_STEPS,
                         tile = before * panels + t / 16 * wide + step - before;
            packed[tile * AMX_TILE / 2 + c % 32 / 2 * 32 + t % 16 * 2 + c % 2] =
                convert_f32_bf16(x[t * cols + c]);
        }
}

static void check(size_t rows, size_t cols, size_t tokens, bool accumulate)
{
    uint64_t seed = rows << 32 ^ cols << 16 ^ tokens ^ 1;
    const size_t ldy = rows + cols % 3;
    struct guarded gw, gp, gy;
    guarded_make(&gw, rows * cols * 2);
    guarded_make(&gp, (tokens + 15) / 16 * 16 * amx_padded(cols) * 2);
    guarded_make(&gy, ((tokens - 1) * ldy + rows) * 4);
    float *x = malloc(tokens * cols * sizeof *x), *y = gy.data;
    char *scratch = aligned_alloc(64, (amx_scratch_bytes(cols, tokens) + 63) / 64 * 64);
    assert_true(x && scratch);
    memset(scratch, 0xff, amx_scratch_bytes(cols, tokens));
    for (size_t i = 0; i < tokens * cols; i++) x[i] = convert_bf16_f32(convert_f32_bf16(random_float(&seed)));
    for (size_t i = 0; i < rows * cols; i++) ((uint16_t *)gw.data)[i] = convert_f32_bf16(random_float(&seed));
    for (size_t t = 0; t < tokens && accumulate; t++)
        for (size_t r = 0; r < rows; r++) y[t * ldy + r] = 1.0f + (float)(t + r);
    pack(gp.data, x, tokens, cols);
    amx_gemm(y, ldy, gw.data, gp.data, rows, cols, tokens, accumulate, scratch);
    for (size_t t = 0; t < tokens; t++) {
        for (size_t r = 0; r < rows; r++) {
            double want = accumulate ? 1.0 + (double)(t + r) : 0, magnitude = want;
            for (size_t c = 0; c < cols; c++) {
                double product =
                    (double)convert_load(gw.data, DTYPE_BF16, r * cols + c) * (double)x[t * cols + c];
                want += product;
                magnitude += fabs(product);
            }
            /* As in test_linear.c: roundings of fp32 sums; a lost product is far larger. */
            double allowed = 0x1p-24 * (4 + 2 * sqrt((double)cols)) * magnitude;
            if (!(fabs((double)y[t * ldy + r] - want) <= allowed))
                fail_msg("rows %zu cols %zu tokens %zu: y[%zu][%zu] = %.9g, want %.9g", rows, cols, tokens, t,
                         r, (double)y[t * ldy + r], want);
        }
        for (size_t r = rows; r < ldy && t + 1 < tokens; r++)
            assert_int_equal(convert_f32_bits(y[t * ldy + r]), 0xffffffffu);
    }
    free(x);
    free(scratch);
    guarded_free(&gw), guarded_free(&gp), guarded_free(&gy);
}

/* Blocks of one scale, a power of two, and 32 bf16 numbers, decoded to tiles. */
static void decode_made_up(void *tiles, const void *w, size_t row_bytes, size_t rows, size_t cols,
                           ptrdiff_t ahead)
{
    (void)ahead;
    for (size_t r = 0; r < rows; r++)
        for (size_t c = 0; c < cols; c++) {
            const char *block = (const char *)w + r * row_bytes + c / 32 * 68;
            float scale;
            memcpy(&scale, block, 4);
            ((uint16_t *)tiles)[r / 16 * 16 * cols + c / 32 * 512 + r % 16 * 32 + c % 32] =
                convert_f32_bf16(scale * convert_load(block + 4, DTYPE_BF16, c % 32));
        }
}

static void check_blocks(size_t rows, size_t cols, size_t tokens, bool accumulate)
{
    static const struct amx_blocks of = {.values = 32, .bytes = 68, .decode = decode_made_up};
    uint64_t seed = rows << 32 ^ cols << 16 ^ tokens ^ 3;
    const size_t ldy = rows + 2;
    struct guarded gw, gp, gy, gs;
    guarded_make(&gw, rows * cols / 32 * 68);
    guarded_make(&gp, (tokens + 15) / 16 * 16 * cols * 2);
    guarded_make(&gy, ((tokens - 1) * ldy + rows) * 4);
    guarded_make(&gs, amx_blocks_scratch_bytes(cols, tokens));
    float *x = malloc(tokens * cols * sizeof *x), *w = malloc(rows * cols * sizeof *w), *y = gy.data;
    assert_true(x && w);
    for (size_t i = 0; i < tokens * cols; i++) x[i] = convert_bf16_f32(convert_f32_bf16(random_float(&seed)));
    for (size_t b = 0; b < rows * cols / 32; b++) {
        char *block = (char *)gw.data + b * 68;
        const float scale = b % 3 ? 0.5f : 4;
        memcpy(block, &scale, 4);
        for (size_t i = 0; i < 32; i++) {
            const uint16_t number = convert_f32_bf16(random_float(&seed));
            memcpy(block + 4 + 2 * i, &number, 2);
            w[b * 32 + i] = scale * convert_bf16_f32(number);
        }
    }
    for (size_t t = 0; t < tokens && accumulate; t++)
        for (size_t r = 0; r < rows; r++) y[t * ldy + r] = (float)(t + r);
    pack(gp.data, x, tokens, cols);
    amx_gemm_blocks(y, ldy, gw.data, gp.data, rows, cols, tokens, accumulate, gs.data, &of);
    for (size_t t = 0; t < tokens; t++)
        for (size_t r = 0; r < ldy && (r < rows || t + 1 < tokens); r++) {
            double want = accumulate ? (double)(t + r) : 0, magnitude = want;
            if (r >= rows) {
                assert_int_equal(convert_f32_bits(y[t * ldy + r]), 0xffffffffu);
                continue;
            }
            for (size_t c = 0; c < cols; c++) {
                const double product = (double)w[r * cols + c] * (double)x[t * cols + c];
                want += product;
                magnitude += fabs(product);
            }
            assert_true(fabs((double)y[t * ldy + r] - want) <=
                        0x1p-24 * (4 + 2 * sqrt((double)cols)) * magnitude);
        }
    free(x);
    free(w);
    guarded_free(&gw), guarded_free(&gp), guarded_free(&gy), guarded_free(&gs);
}

static void blocks_agree(void **state)
{
    (void)state;
    static const size_t rows[] = {1, 17, 64, 65, 130}, cols[] = {32, 96, 256}, tokens[] = {1, 16, 33, 64, 81};
    for (size_t r = 0; r < sizeof rows / sizeof *rows; r++)
        for (size_t c = 0; c < sizeof cols / sizeof *cols; c++)
            for (size_t t = 0; t < sizeof tokens / sizeof *tokens; t++)
                check_blocks(rows[r], cols[c], tokens[t], (r + t) % 2);
    check_blocks(70, AMX_STEPS * 32 + 96, 40, true);
    check_blocks(20, 64, AMX_DECODED_TOKENS + 30, false);
}

/* Rows [at, at + rows) of gates and ups of `out_cols`, in the place of those columns of the next input. */
static void check_joined(size_t rows, size_t at, size_t out_cols, size_t cols, size_t tokens)
{
    uint64_t seed = rows << 32 ^ cols << 16 ^ tokens ^ 5;
    struct guarded gw[2], gp, gs, got;
    const size_t out_bytes = (tokens + 15) / 16 * 16 * amx_padded(out_cols) * 2;
    guarded_make(&gp, (tokens + 15) / 16 * 16 * amx_padded(cols) * 2);
    guarded_make(&gs, amx_blocks_scratch_bytes(cols, tokens));
    guarded_make(&got, out_bytes);
    float *x = malloc(tokens * cols * sizeof *x), *y[2],
          *product = calloc(tokens * out_cols, sizeof *product);
    uint16_t *wanted = malloc(out_bytes);
    assert_true(x && product && wanted);
    for (size_t i = 0; i < tokens * cols; i++) x[i] = convert_bf16_f32(convert_f32_bf16(random_float(&seed)));
    pack(gp.data, x, tokens, cols);
    for (int m = 0; m < 2; m++) {
        guarded_make(&gw[m], rows * cols * 2);
        for (size_t i = 0; i < rows * cols; i++)
            ((uint16_t *)gw[m].data)[i] = convert_f32_bf16(random_float(&seed));
        y[m] = malloc(rows * tokens * sizeof *y[m]);
        assert_non_null(y[m]);
        amx_gemm_blocks(y[m], rows, gw[m].data, gp.data, rows, cols, tokens, false, gs.data,
                        &amx_as_they_are);
    }
    for (size_t t = 0; t < tokens; t++)
        for (size_t r = 0; r < rows; r++)
            product[t * out_cols + at + r] = y[0][t * rows + r] * y[1][t * rows + r];
    memset(got.data, 0, out_bytes); /* other columns stay */
    pack(wanted, product, tokens, out_cols);
    const struct gemm_joined joined = {.gate = gw[0].data,
                                       .up = gw[1].data,
                                       .tiled = gp.data,
                                       .rows = rows,
                                       .cols = cols,
                                       .tokens = tokens,
                                       .out = got.data,
                                       .out_cols = out_cols,
                                       .out_first = at,
                                       .scratch = gs.data};
    amx_gemm_joined(&joined, &amx_as_they_are);
    assert_memory_equal(got.data, wanted, out_bytes);
    free(x), free(product), free(wanted), free(y[0]), free(y[1]);
    guarded_free(&gw[0]), guarded_free(&gw[1]), guarded_free(&gp), guarded_free(&gs), guarded_free(&got);
}

static void joined_tiles_are_in_place(void **state)
{
    (void)state;
    check_joined(32, 0, 32, 32, 1);
    check_joined(64, 224, 320, 40, 33);
    check_joined(AMX_JOINED + 96, 32, 704, AMX_STEPS * 32 + 33, 17);
    check_joined(32, 64, 96, 32, AMX_DECODED_TOKENS + 20);
}

static void odd_sizes_agree(void **state)
{
    (void)state;
    static const size_t rows[] = {1, 15, 16, 17, 31, 33, 63, 64, 65, 80, 100, 129};
    static const size_t cols[] = {1, 3, 31, 32, 33, 64, 65, 100};
    static const size_t tokens[] = {1, 2, 15, 16, 17, 31, 32, 33, 47, 48, 49, 65, 81, 128, 129, 145};
    for (size_t r = 0; r < sizeof rows / sizeof *rows; r++)
        for (size_t c = 0; c < sizeof cols / sizeof *cols; c++)
            for (size_t t = 0; t < sizeof tokens / sizeof *tokens; t++)
                if ((r + c + t) % 3 == 0) check(rows[r], cols[c], tokens[t], (r + t) % 2);
}

static void every_blocking_limit_is_crossed(void **state)
{
    (void)state;
    const size_t few = AMX_FEW * 16, wide = AMX_FEW_BYTES / AMX_TILE * 32 / (AMX_FEW + 1) / 32 * 32;
    check(AMX_ROWS + 70, 40, 20, false);
    check(70, AMX_STEPS * 32 + 37, 40, true);
    check(80, AMX_STEPS * 64, 7, false);
    check(AMX_ROWS + 70, 40, 2 * few + 1, false); /* one more than go as few do */
    check(70, AMX_STEPS * 32 + 37, 2 * few + 40, true);
    check(80, AMX_STEPS * 64, 2 * few + 7, false);
    check(33, wide, few + 16, true);
    check(33, wide + 33, few + 16, false); /* too wide to stay in L2 */
    check(20, 70, AMX_DECODED_TOKENS + 30, true);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(odd_sizes_agree),
                                       cmocka_unit_test(every_blocking_limit_is_crossed),
                                       cmocka_unit_test(blocks_agree),
                                       cmocka_unit_test(joined_tiles_are_in_place)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
