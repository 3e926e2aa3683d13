/* Finding the scale of a group of values, and what lies at its number 0, for several groups side by side.
 *
 * A lane of a vector is a group, so that no sum crosses lanes and the result is the same bits on every
 * processor, however wide its vectors are. Included by quantize_ref.c and the like, each compiled with its
 * instruction set.
 *
 * A value x of weight w is coded as scale * number + least. For given numbers the best scale (and least) are
 * those of weighted least squares; for given scale and least the best numbers are the nearest. A fit begins
 * at several scales around the one that the largest value asks for, and takes turns between the two from the
 * best of them. */
#pragma once

#ifdef __AVX2__
#include <immintrin.h>
#endif
#include <math.h>
#include <stdbool.h>
#include <stdint.h>

#if defined __AVX512F__
#define FIT_LANES 16
#elif defined __AVX2__
#define FIT_LANES 8
#else
#define FIT_LANES 4
#endif
typedef float fit_lanes __attribute__((vector_size(4 * FIT_LANES)));
typedef int32_t fit_mask __attribute__((vector_size(4 * FIT_LANES)));

#define FIT_GROUPS     16 /* that are fitted at once, in vectors of FIT_LANES */
#define FIT_VALUES_MAX 32 /* of a group */
#define FIT_CODES_MAX  16
#define FIT_ALIGNED    __attribute__((aligned(64)))
#define FIT_INLINE     static inline __attribute__((always_inline))

/* Values by place in their group, then by group. */
struct fit_groups {
    float value[FIT_VALUES_MAX][FIT_GROUPS] FIT_ALIGNED, weight[FIT_VALUES_MAX][FIT_GROUPS] FIT_ALIGNED;
    int values; /* of a group; a constant of the format */
};

/* The numbers there are: whole ones from `low` to `high`, or those of a rising table. */
struct fit_code {
    float low, high;
    const float *table; /* NULL: whole numbers */
    int count;          /* of the table */
    bool least;         /* values are scale * number + least, not only scale * number */
    bool free;          /* least may have either sign; else it is at most 0 */
};

/* The result of a fit, a group each. */
struct fit_result {
    float scale[FIT_GROUPS] FIT_ALIGNED, least[FIT_GROUPS] FIT_ALIGNED;
};

FIT_INLINE fit_lanes fit_all(float x)
{
    return (fit_lanes){0} + x;
}
FIT_INLINE fit_lanes fit_load(const float *from)
{
    return *(const fit_lanes *)from;
}
FIT_INLINE void fit_store(float *to, fit_lanes x)
{
    *(fit_lanes *)to = x;
}
FIT_INLINE fit_lanes fit_pick(fit_mask mask, fit_lanes yes, fit_lanes no)
{
    return (fit_lanes)((mask & (fit_mask)yes) | (~mask & (fit_mask)no));
}
FIT_INLINE fit_lanes fit_min(fit_lanes a, fit_lanes b)
{
    return fit_pick(a < b, a, b);
}
FIT_INLINE fit_lanes fit_max(fit_lanes a, fit_lanes b)
{
    return fit_pick(a > b, a, b);
}
/* The nearest whole number, of less than 2^22. */
FIT_INLINE fit_lanes fit_round(fit_lanes x)
{
    return (x + 0x1.8p23f) - 0x1.8p23f;
}
/* a / b, and 0 where b is none that may divide. */
FIT_INLINE fit_lanes fit_divide(fit_lanes a, fit_lanes b)
{
    return fit_pick(b > 0x1p-120f, a / b, fit_all(0));
}
/* 1 / x of either sign. */
FIT_INLINE fit_lanes fit_inverse(fit_lanes x)
{
    return fit_pick(x * x > 0x1p-126f, 1.0f / x, fit_all(0));
}

/* A code's table, for a search by halves in registers: the numbers, and the bounds beyond which each is the
 * nearest. At place i of bound[k] is what a search that has come to i compares with in step k, `8 >> k`
 * further. With AVX2, whose registers hold half a table, two of each: i counts within the half that step 0
 * has found. */
#define FIT_TABLES (FIT_CODES_MAX / FIT_LANES)
struct fit_table {
    const struct fit_code *code;
    fit_lanes number[FIT_TABLES], bound[4][FIT_TABLES];
};

FIT_INLINE struct fit_table fit_table_of(const struct fit_code *code)
{
    struct fit_table t = {.code = code};
    if (!code->table || FIT_LANES < 8) return t;
    _Pragma("GCC unroll 16") for (int i = 0; i < FIT_CODES_MAX; i++)
    {
        t.number[i / FIT_LANES][i % FIT_LANES] = i < code->count ? code->table[i] : 0;
        _Pragma("GCC unroll 4") for (int k = 0; k < 4; k++)
        {
            const int of = i + (8 >> k);
            t.bound[k][i / FIT_LANES][i % FIT_LANES] =
                of < code->count ? (code->table[of - 1] + code->table[of]) / 2 : INFINITY;
        }
    }
    return t;
}

#if FIT_LANES == 16
FIT_INLINE fit_lanes fit_look_up(const fit_lanes *table, fit_mask at)
{
    return (fit_lanes)_mm512_permutexvar_ps((__m512i)at, (__m512)table[0]);
}
#elif FIT_LANES == 8
/* at: below 8, and whether in the upper half. */
FIT_INLINE fit_lanes fit_look_up(const fit_lanes *table, fit_mask at, fit_mask upper)
{
    return (fit_lanes)_mm256_blendv_ps(_mm256_permutevar8x32_ps((__m256)table[0], (__m256i)at),
                                       _mm256_permutevar8x32_ps((__m256)table[1], (__m256i)at),
                                       (__m256)upper);
}
#endif

/* The nearest number of the table, and which it is: how many bounds x is above. Four halvings give what
 * fifteen comparisons give elsewhere, also of what is no number (0). */
struct fit_found {
    fit_lanes number;
    fit_mask index;
};
FIT_INLINE struct fit_found fit_find(fit_lanes x, const struct fit_table *t)
{
#if FIT_LANES == 16
    __m512i at = _mm512_setzero_si512();
    _Pragma("GCC unroll 4") for (int k = 0; k < 4; k++)
    {
        const fit_lanes bound = k ? fit_look_up(t->bound[k], (fit_mask)at) : fit_all(t->bound[0][0][0]);
        at = _mm512_mask_add_epi32(at, _mm512_cmp_ps_mask((__m512)x, (__m512)bound, _CMP_GT_OQ), at,
                                   _mm512_set1_epi32(8 >> k));
    }
    return (struct fit_found){fit_look_up(t->number, (fit_mask)at), (fit_mask)at};
#elif FIT_LANES == 8
    const fit_mask upper = x > fit_all(t->bound[0][0][0]);
    const fit_lanes second = (fit_lanes)_mm256_blendv_ps((__m256)fit_all(t->bound[1][0][0]),
                                                         (__m256)fit_all(t->bound[1][1][0]), (__m256)upper);
    fit_mask at = (x > second) & 4;
    at += (x > fit_look_up(t->bound[2], at, upper)) & 2;
    at += (x > fit_look_up(t->bound[3], at, upper)) & 1;
    return (struct fit_found){fit_look_up(t->number, at, upper), at + (upper & 8)};
#else
    struct fit_found found = {fit_all(t->code->table[0]), {0}};
    _Pragma("GCC unroll 16") for (int i = 1; i < t->code->count; i++)
    {
        const float *n = t->code->table + i;
        const fit_mask above = x > (n[-1] + n[0]) / 2;
        found.number += (fit_lanes)(above & (fit_mask)fit_all(n[0] - n[-1]));
        found.index -= above;
    }
    return found;
#endif
}

/* The nearest number of the code, whose table is `t`. */
FIT_INLINE fit_lanes fit_nearest(fit_lanes x, const struct fit_code *code, const struct fit_table *t)
{
    return code->table ? fit_find(x, t).number
                       : fit_round(fit_min(fit_max(x, fit_all(code->low)), fit_all(code->high)));
}

/* Sums over a group with its numbers n: of w, w x; and w n, w n n, w x n. */
struct fit_totals {
    fit_lanes weight, value;
};
struct fit_sums {
    fit_lanes number, square, product;
};

FIT_INLINE struct fit_totals fit_total(const struct fit_groups *g, int at)
{
    struct fit_totals total = {fit_all(0), fit_all(0)};
    for (int i = 0; i < g->values; i++) {
        const fit_lanes w = fit_load(&g->weight[i][at]);
        total.weight += w;
        total.value += w * fit_load(&g->value[i][at]);
    }
    return total;
}

FIT_INLINE struct fit_sums fit_sum(const struct fit_groups *g, const struct fit_code *code, int at,
                                   fit_lanes scale, fit_lanes least)
{
    struct fit_sums sums = {fit_all(0), fit_all(0), fit_all(0)};
    const fit_lanes inverse = fit_inverse(scale), from = least * inverse;
    const struct fit_table table = fit_table_of(code);
    for (int i = 0; i < g->values; i++) {
        const fit_lanes x = fit_load(&g->value[i][at]), scaled = x * inverse,
                        n = fit_nearest(code->least ? scaled - from : scaled, code, &table),
                        wn = fit_load(&g->weight[i][at]) * n;
        if (code->least) sums.number += wn;
        sums.square += wn * n;
        sums.product += wn * x;
    }
    return sums;
}

/* The squared error of scale and least with the numbers of these sums, less the sum of w x x. */
FIT_INLINE fit_lanes fit_error(const struct fit_totals *t, const struct fit_sums *s, fit_lanes scale,
                               fit_lanes least)
{
    return scale * (scale * s->square - 2 * s->product + 2 * least * s->number) +
           least * (least * t->weight - 2 * t->value);
}

/* Least squares for these numbers. */
FIT_INLINE void fit_solve(const struct fit_code *code, const struct fit_totals *t, const struct fit_sums *s,
                          fit_lanes *scale, fit_lanes *least)
{
    const fit_lanes alone = fit_divide(s->product, s->square);
    *scale = alone;
    *least = fit_all(0);
    if (!code->least) return;
    const fit_lanes determinant = t->weight * s->square - s->number * s->number;
    const fit_mask solved = determinant > 1e-5f * t->weight * s->square;
    const fit_lanes both = fit_divide(t->weight * s->product - t->value * s->number, determinant),
                    below = fit_divide(t->value * s->square - s->number * s->product, determinant);
    const fit_mask use = code->free ? solved : solved & (below <= 0);
    *scale = fit_pick(use, both, alone);
    *least = fit_pick(use, below, *least);
}

struct fit_best {
    fit_lanes scale, least, error;
};
/* One turn from `scale` and `least`: keeps what it leads to where that is better. */
FIT_INLINE void fit_turn(const struct fit_groups *g, const struct fit_code *code, int at,
                         const struct fit_totals *t, fit_lanes scale, fit_lanes least, struct fit_best *best)
{
    const struct fit_sums sums = fit_sum(g, code, at, scale, least);
    fit_solve(code, t, &sums, &scale, &least);
    const fit_lanes error = fit_error(t, &sums, scale, least);
    const fit_mask better = error < best->error;
    best->scale = fit_pick(better, scale, best->scale);
    best->least = fit_pick(better, least, best->least);
    best->error = fit_pick(better, error, best->error);
}

#define FIT_TURNS 3

/* Fits values that are scale * number. A start is the number that the largest value becomes, of either
 * sign. */
FIT_INLINE void fit_scales(const struct fit_groups *g, const struct fit_code *code, const float *start,
                           int starts, struct fit_result *result)
{
    for (int at = 0; at < FIT_GROUPS; at += FIT_LANES) {
        const struct fit_totals total = {fit_all(0), fit_all(0)};
        struct fit_best best = {fit_all(0), fit_all(0), fit_all(0)};
        fit_lanes low = fit_load(&g->value[0][at]), high = low;
        for (int i = 1; i < g->values; i++) {
            low = fit_min(low, fit_load(&g->value[i][at]));
            high = fit_max(high, fit_load(&g->value[i][at]));
        }
        const fit_lanes most = fit_pick(-low > high, low, high);
        for (int i = 0; i < starts; i++)
            fit_turn(g, code, at, &total, most * (1 / start[i]), fit_all(0), &best);
        for (int i = 0; i < FIT_TURNS; i++) fit_turn(g, code, at, &total, best.scale, fit_all(0), &best);
        fit_store(&result->scale[at], best.scale);
        fit_store(&result->least[at], fit_all(0));
    }
}

/* For values that are scale * number + least. A start says which parts of the range are cut off below and
 * above. */
struct fit_cut {
    float below, above;
};
FIT_INLINE void fit_ranges(const struct fit_groups *g, const struct fit_code *code,
                           const struct fit_cut *start, int starts, struct fit_result *result)
{
    for (int at = 0; at < FIT_GROUPS; at += FIT_LANES) {
        const struct fit_totals total = fit_total(g, at);
        fit_lanes low = fit_load(&g->value[0][at]), high = low;
        for (int i = 1; i < g->values; i++) {
            low = fit_min(low, fit_load(&g->value[i][at]));
            high = fit_max(high, fit_load(&g->value[i][at]));
        }
        if (!code->free) low = fit_min(low, fit_all(0));
        const fit_lanes range = high - low;
        struct fit_best best = {fit_all(0), low, low * (low * total.weight - 2 * total.value)};
        for (int i = 0; i < starts; i++)
            fit_turn(g, code, at, &total, range * ((1 - start[i].below - start[i].above) / code->high),
                     low + range * start[i].below, &best);
        for (int i = 0; i < FIT_TURNS; i++) fit_turn(g, code, at, &total, best.scale, best.least, &best);
        fit_store(&result->scale[at], best.scale);
        fit_store(&result->least[at], best.least);
    }
}
