/* Values to places in grids: the weighted error of some blocks is at most 1.05 times that of a search over
 * every entry, sign and scale; importance makes what matters better; what has no code is refused, and zeros
 * stay zeros. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/formats/blocks.h"
#include "common/formats/quantize.h"

#define VALUES 256
#define BLOCKS 3

static const struct grid {
    enum tensor_format format;
    int dims, entries, group;
    bool even;
    double times, top;
    const uint64_t *eights;
    const uint32_t *fours;
} grids[] = {{FORMAT_IQ2_XS, 8, 512, 16, true, 0.125, 43, block_grid_iq2_xs, NULL},
             {FORMAT_IQ2_S, 8, 1024, 16, false, 0.125, 43, block_grid_iq2_s, NULL},
             {FORMAT_IQ3_XXS, 4, 256, 32, true, 0.25, 62, NULL, block_grid_iq3_xxs},
             {FORMAT_IQ3_S, 4, 512, 32, false, 1, 15, NULL, block_grid_iq3_s}};
#define GRIDS (sizeof grids / sizeof *grids)

static uint32_t seed;
static double uniform(void)
{
    seed = seed * 1664525u + 1013904223u;
    return ((seed >> 8) + 0.5) / (1 << 24);
}
static float normal(void)
{
    const double u = uniform(), v = uniform();
    return (float)(sqrt(-2 * log(u)) * cos(6.283185307179586 * v));
}

/* The least error of `dims` magnitudes, one of them perhaps turned (-1: none), at a scale; with a price of
 * turning one, in even grids of eight, where magnitudes are not negative. Errors only grow, so an entry is
 * left when it is worse than another. */
static double entry_error(const struct grid *g, const double *x, const float *w, double scale, bool turns)
{
    double least = INFINITY;
    for (int e = 0; e < g->entries; e++) {
        const uint64_t entry = g->eights ? g->eights[e] : g->fours[e];
        double error = 0, turn = INFINITY;
        for (int i = 0; i < g->dims && error < least; i++) {
            const double v = (double)(entry >> 8 * i & 255), off = x[i] - scale * v;
            error += (double)w[i] * off * off;
            if (turns) turn = fmin(turn, 4 * (double)w[i] * x[i] * scale * v);
        }
        if (turns) error += turn;
        if (error < least) least = error;
    }
    return least;
}
static double eight_error(const struct grid *g, const float *x, const float *w, double scale)
{
    bool odd = false;
    double own[8], least = INFINITY;
    for (int i = 0; i < 8; i++) odd ^= x[i] < 0, own[i] = fabs((double)x[i]);
    odd &= g->even;
    if (g->dims == 8) return entry_error(g, own, w, scale, odd);
    for (int turned = odd ? 0 : -1; turned < (odd ? 8 : 0); turned++) {
        if (turned >= 0) own[turned] = -own[turned];
        least =
            fmin(least, entry_error(g, own, w, scale, false) + entry_error(g, own + 4, w + 4, scale, false));
        if (turned >= 0) own[turned] = -own[turned];
    }
    return least;
}
/* Over scales of scales, counts, entries and signs. */
static double search(const struct grid *g, const float *x, const float *w)
{
    double most = 0, best = INFINITY;
    for (int i = 0; i < VALUES; i++) most = fmax(most, fabs((double)x[i]));
    for (int s = 0; s < 16; s++) {
        const float d =
            convert_f16_f32(convert_f32_f16((float)(most / g->top / 31 / g->times * (0.78 + 0.05 * s))));
        double all = 0;
        for (int at = 0; at < VALUES && all < best; at += g->group) {
            double least = INFINITY;
            for (int count = 2; count < 16;
                 count++) { /* values are of one size: no group's scale is so small */
                double error = 0;
                for (int i = at; i < at + g->group && error < least; i += 8)
                    error += eight_error(g, x + i, w + i, (double)d * g->times * (2 * count + 1));
                least = fmin(least, error);
            }
            all += least;
        }
        best = fmin(best, all);
    }
    return best;
}

static double error_of(const struct quantize_grid *table, const struct grid *g, const float *x,
                       const float *importance, const float *by)
{
    struct helm_err err = {0};
    uint8_t block[VALUES];
    float back[VALUES];
    double error = 0;
    const struct tensor_rows rows = {FORMAT_F32, g->format, 1, VALUES, x};
    if (quantize_grid_rows(table, &rows, importance, block, &err)) fail_msg("%s", err.text);
    const struct tensor_matrix m = {g->format, block, tensor_format_of(g->format)->block_bytes, 1, VALUES};
    assert_int_equal(tensor_format_read_row(&m, 0, back, &err), 0);
    for (int i = 0; i < VALUES; i++)
        error += (double)by[i] * (double)(back[i] - x[i]) * (double)(back[i] - x[i]);
    return error;
}

static void errors_are_those_of_a_search(void **state)
{
    (void)state;
    seed = 1;
    for (size_t g = 0; g < GRIDS; g++) {
        double got = 0, least = 0;
        struct quantize_grid *table = quantize_grid_make(grids[g].format);
        assert_non_null(table);
        for (int block = 0; block < BLOCKS; block++) {
            float x[VALUES], w[VALUES];
            for (int i = 0; i < VALUES; i++) {
                x[i] = 0.02f * normal();
                w[i] = block == 0 ? 1 : expf(normal());
            }
            got += error_of(table, &grids[g], x, block ? w : NULL, w);
            least += search(&grids[g], x, w);
        }
        quantize_grid_free(table);
        print_message("%s: %.4f times the least error\n", tensor_format_name(grids[g].format), got / least);
        assert_true(got <= 1.05 * least);
    }
}

/* A tenth of the columns a hundred times as important: their error falls. */
static void importance_is_heeded(void **state)
{
    (void)state;
    seed = 2;
    for (size_t g = 0; g < GRIDS; g++) {
        double with = 0, without = 0;
        struct quantize_grid *table = quantize_grid_make(grids[g].format);
        assert_non_null(table);
        for (int block = 0; block < 8; block++) {
            float x[VALUES], w[VALUES];
            for (int i = 0; i < VALUES; i++) x[i] = 0.02f * normal(), w[i] = i % 10 ? 1 : 100;
            with += error_of(table, &grids[g], x, w, w);
            without += error_of(table, &grids[g], x, NULL, w);
        }
        quantize_grid_free(table);
        assert_true(with < 0.7 * without);
    }
}

static void odd_values(void **state)
{
    (void)state;
    for (size_t g = 0; g < GRIDS; g++) {
        const enum tensor_format format = grids[g].format;
        struct quantize_grid *table = quantize_grid_make(format);
        struct helm_err err = {0};
        float x[2 * VALUES] = {0}, back[VALUES];
        const float none[VALUES] = {0};
        uint8_t block[2 * VALUES];
        const uint32_t bytes = tensor_format_of(format)->block_bytes;
        const struct tensor_rows rows = {FORMAT_F32, format, 2, VALUES, x};
        assert_non_null(table);
        assert_true(quantize_grid_writes(format));
        for (int i = 0; i < VALUES; i++)
            x[i] = i == 7 ? 65504 : i % 3 ? 0 : -1e-30f; /* then a row of zeros */
        assert_int_equal(quantize_grid_rows(table, &rows, NULL, block, &err), 0);
        const struct tensor_matrix m = {format, block, 2 * bytes, 2, VALUES};
        assert_int_equal(tensor_format_read_row(&m, 1, back, &err), 0);
        for (int i = 0; i < VALUES; i++) assert_true(back[i] == 0);
        assert_int_equal(tensor_format_read_row(&m, 0, back, &err), 0);
        assert_true(back[7] > 40000 && back[7] < 90000);
        assert_int_equal(quantize_grid_rows(table, &rows, none, block, &err), 0); /* says nothing: defined */
        assert_int_equal(tensor_format_read_row(&m, 0, back, &err), 0);
        for (int i = 0; i < VALUES; i++) assert_true(isfinite(back[i]));
        x[VALUES + 3] = NAN;
        assert_int_equal(quantize_grid_rows(table, &rows, NULL, block, &err), HELM_E_FORMAT);
        assert_non_null(strstr(err.text, "row 1 "));
        quantize_grid_free(table);
    }
    assert_false(quantize_grid_writes(FORMAT_IQ2_XXS));
    assert_null(quantize_grid_make(FORMAT_IQ1_S));
    assert_true(quantize_grid_needs_importance(FORMAT_IQ2_XS));
    assert_false(quantize_grid_needs_importance(FORMAT_IQ3_S));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(errors_are_those_of_a_search),
                                       cmocka_unit_test(importance_is_heeded), cmocka_unit_test(odd_values)};
    return cmocka_run_group_tests_name("formats/quantize_grid", tests, NULL, NULL);
}
