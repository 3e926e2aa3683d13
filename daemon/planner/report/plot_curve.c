/* Token/s over context, as a panel of a plan's picture. See plot.h. Called by plot.c; owns nothing.
 *
 * The context's axis is by its logarithm. The plan is one line; where its cache has two tiers, the plan with
 * one for the same context is a dashed one. */
#include <math.h>

#include "daemon/planner/report/plot.h"
#include "daemon/planner/report/svg.h"

#define CAPTION 18 /* pixels above a panel */

/* Which of a point's two plans. */
static double seconds_of(const struct explain_point *point, bool other)
{
    return other ? point->one_tier : point->seconds;
}

static double place_of(const struct axis *ax, const struct explain *x, uint32_t i)
{
    return svg_at(ax, log2((double)x->point[i].context / x->point[0].context));
}

static void print_line(const struct explain *x, const struct axis *ax, const struct axis *ay, bool other,
                       FILE *out)
{
    fprintf(out, "<polyline class=\"%s\" points=\"", other ? "other" : "curve");
    for (uint32_t i = 0; i < x->point_count; i++)
        fprintf(out, "%s%.1f,%.1f", i ? " " : "", place_of(ax, x, i),
                svg_at(ay, explain_point_rate(x, seconds_of(&x->point[i], other))));
    fputs("\"/>\n", out);
    for (uint32_t i = 0; i < x->point_count; i++) {
        const double rate = explain_point_rate(x, seconds_of(&x->point[i], other));
        fprintf(out,
                "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"3\" class=\"point\"><title>%u tokens%s: %.2f "
                "token/s</title></circle>\n",
                place_of(ax, x, i), svg_at(ay, rate), x->point[i].context, other ? ", one tier" : "", rate);
    }
}

void plot_curve_print(const struct explain *x, double top, double end, FILE *out)
{
    char text[96];
    double most = 0;
    const bool other = x->point_count && isfinite(x->point[0].one_tier);
    snprintf(text, sizeof text, "token/s over tokens in the context%s",
             other                     ? "; dashed: the plan with one tier of KV cache"
             : plan_kv_tiered(x->plan) ? " (with one tier of KV cache there is no plan)"
                                       : "");
    svg_label(out, PLOT_LEFT, top - CAPTION, "", "start", text);
    for (uint32_t i = 0; i < x->point_count; i++) {
        most = fmax(most, explain_point_rate(x, x->point[i].seconds));
        if (other) most = fmax(most, explain_point_rate(x, x->point[i].one_tier));
    }
    if (!(most > 0)) return;
    const struct explain_point *last = &x->point[x->point_count - 1];
    const double range = log2((double)last->context / x->point[0].context);
    const struct axis ax = {PLOT_LEFT, PLOT_RIGHT, range > 0 ? range : 1}, ay = {end, top, 1.1 * most};
    const double step = plot_step(ay.most, 4);
    for (int i = 0; i * step <= ay.most; i++) {
        svg_number(i * step, step, text, sizeof text);
        svg_line(out, PLOT_LEFT, svg_at(&ay, i * step), PLOT_RIGHT, svg_at(&ay, i * step),
                 i ? "grid" : "axis");
        svg_label(out, PLOT_LEFT - 8, svg_at(&ay, i * step) + 4, "small", "end", text);
    }
    for (uint32_t i = 0; i < x->point_count; i++) {
        snprintf(text, sizeof text, "%u", x->point[i].context);
        if (i + 2 != x->point_count || last->context >= 3 * (x->point[i].context / 2)) /* room for both */
            svg_label(out, place_of(&ax, x, i), end + 18, "small", "middle", text);
    }
    if (other) print_line(x, &ax, &ay, true, out);
    print_line(x, &ax, &ay, false, out);
    svg_label(out, (PLOT_LEFT + PLOT_RIGHT) / 2, end + 38, "small", "middle", "tokens in the context");
}
