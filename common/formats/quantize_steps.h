/* The second level of blocks of 256: scales of groups become whole numbers of steps, and one step of scales
 * (and one of least values) stands for the block. See quantize_fit.h; included as that is.
 *
 * Neighbouring numbers of steps are tried for each group, with numbers and least value that suit them; then
 * both steps are fitted to the whole block by least squares. */
#pragma once

#include "common/formats/convert.h"
#include "common/formats/quantize_fit.h"

/* Whole numbers of steps that a group's scale can have; those of least values go from 0 to `high`. */
struct fit_range {
    float low, high;
    int groups; /* of a block */
};

/* The result: steps of each block as they are written; by group, its block's steps, and how many of them. */
struct fit_stepped {
    uint16_t step[FIT_GROUPS], depth[FIT_GROUPS];
    struct fit_result unit, count;
};

/* The step of one block, so that the largest of its values becomes the outermost number. */
FIT_INLINE float fit_step_of(const float *value, const struct fit_range *range)
{
    float most = 0;
    for (int i = 0; i < range->groups; i++)
        if (fabsf(value[i]) > fabsf(most)) most = value[i];
    return most / (range->low < 0 ? range->low : range->high);
}

/* No step becomes 0 by rounding: counts make up for what it is too large. */
FIT_INLINE uint16_t fit_half(float step)
{
    const uint16_t half = convert_f32_f16(step);
    return step != 0 && !(half & 0x7fff) ? (uint16_t)(half | 1) : half;
}

FIT_INLINE void fit_set_steps(struct fit_stepped *s, const struct fit_range *range, int block, float step,
                              float depth)
{
    s->step[block] = fit_half(step);
    s->depth[block] = fit_half(depth);
    for (int i = 0; i < range->groups; i++) {
        s->unit.scale[block * range->groups + i] = convert_f16_f32(s->step[block]);
        s->unit.least[block * range->groups + i] = convert_f16_f32(s->depth[block]);
    }
}

FIT_INLINE fit_lanes fit_count(fit_lanes x, float low, float high)
{
    return fit_round(fit_min(fit_max(x, fit_all(low)), fit_all(high)));
}

/* The best count of each group near the one that its own scale asks for, by the blocks' steps. */
FIT_INLINE void fit_counts(const struct fit_groups *g, const struct fit_code *code,
                           const struct fit_range *range, const struct fit_result *wanted,
                           struct fit_stepped *s)
{
    for (int at = 0; at < FIT_GROUPS; at += FIT_LANES) {
        const struct fit_totals total = fit_total(g, at);
        const fit_lanes step = fit_load(&s->unit.scale[at]), depth = fit_load(&s->unit.least[at]);
        const fit_lanes middle = fit_load(&wanted->scale[at]) * fit_inverse(step),
                        deep = fit_count(-fit_load(&wanted->least[at]) * fit_inverse(depth), 0, range->high),
                        mean = fit_divide(fit_all(1), total.weight);
        fit_lanes error = fit_all(INFINITY), best = fit_all(0), best_deep = fit_all(0);
        for (int i = 0; i < 3; i++) {
            static const float by[] = {0, -1, 1};
            const fit_lanes count =
                fit_count(fit_round(fit_min(fit_max(middle, fit_all(-512)), fit_all(512))) + by[i],
                          range->low, range->high);
            const fit_lanes scale = step * count;
            const struct fit_sums sums = fit_sum(g, code, at, scale, -depth * deep);
            const fit_lanes suits = (scale * sums.number - total.value) * mean * fit_inverse(depth),
                            its = code->least ? fit_count(suits, 0, range->high) : deep,
                            now = fit_error(&total, &sums, scale, -depth * its);
            const fit_mask better = now < error;
            best = fit_pick(better, count, best);
            best_deep = fit_pick(better, its, best_deep);
            error = fit_pick(better, now, error);
        }
        fit_store(&s->count.scale[at], best);
        fit_store(&s->count.least[at], best_deep);
    }
}

/* Both steps of each block by least squares over its groups, whose counts stand. */
FIT_INLINE void fit_refit(const struct fit_groups *g, const struct fit_code *code,
                          const struct fit_range *range, struct fit_stepped *s)
{
    struct {
        float ss[FIT_GROUPS], sl[FIT_GROUPS], ll[FIT_GROUPS], sx[FIT_GROUPS], lx[FIT_GROUPS];
    } FIT_ALIGNED part;
    for (int at = 0; at < FIT_GROUPS; at += FIT_LANES) {
        const struct fit_totals total = fit_total(g, at);
        const fit_lanes count = fit_load(&s->count.scale[at]), deep = fit_load(&s->count.least[at]);
        const struct fit_sums sums =
            fit_sum(g, code, at, count * fit_load(&s->unit.scale[at]), -deep * fit_load(&s->unit.least[at]));
        fit_store(&part.ss[at], count * count * sums.square);
        fit_store(&part.sx[at], count * sums.product);
        fit_store(&part.sl[at], count * deep * sums.number);
        fit_store(&part.ll[at], deep * deep * total.weight);
        fit_store(&part.lx[at], -deep * total.value);
    }
    for (int b = 0; b < FIT_GROUPS / range->groups; b++) {
        double ss = 0, sl = 0, ll = 0, sx = 0, lx = 0;
        for (int i = b * range->groups; i < (b + 1) * range->groups; i++) {
            ss += (double)part.ss[i], sl += (double)part.sl[i], ll += (double)part.ll[i];
            sx += (double)part.sx[i], lx += (double)part.lx[i];
        }
        /* x = step * s - depth * l */
        const double determinant = ss * ll - sl * sl;
        if (code->least && determinant > 1e-6 * ss * ll)
            fit_set_steps(s, range, b, (float)((sx * ll + lx * sl) / determinant),
                          (float)((lx * ss + sx * sl) / determinant));
        else if (ss > 0)
            fit_set_steps(s, range, b, (float)(sx / ss), convert_f16_f32(s->depth[b]));
    }
}

FIT_INLINE void fit_steps(const struct fit_groups *g, const struct fit_code *code,
                          const struct fit_range *range, const struct fit_result *wanted,
                          struct fit_stepped *s)
{
    for (int b = 0; b < FIT_GROUPS / range->groups; b++)
        fit_set_steps(s, range, b, fit_step_of(wanted->scale + b * range->groups, range),
                      -fit_step_of(wanted->least + b * range->groups,
                                   &(struct fit_range){0, range->high, range->groups}));
    fit_counts(g, code, range, wanted, s);
    fit_refit(g, code, range, s);
}
