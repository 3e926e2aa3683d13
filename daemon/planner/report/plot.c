/* The picture of a plan. See plot.h. Called by helm-plan.
 *
 * Three panels, one under the other; that of token/s over context is in plot_curve.c. Colours are classes, so
 * that one style sheet serves light and dark pages. */
#include "daemon/planner/report/plot.h"

#include <math.h>
#include <string.h>

#include "common/base/file.h"
#include "daemon/planner/report/svg.h"

#define PAGE_HEIGHT 920
#define SPLITS_TOP  96.0
#define SPLITS_END  336.0
#define STEP_TOP    440.0
#define LANE        44.0
#define LANE_BAR    28.0
#define LEGEND      626.0
#define CURVE_TOP   700.0
#define CURVE_END   860.0
#define TOUCHING    0.4 /* pixels: spans of a kind that are nearer than this are one */

double plot_step(double most, int parts)
{
    if (!(most > 0) || !isfinite(most) || parts < 1) return 1;
    double power = pow(10, floor(log10(most / parts))), step = power;
    static const double factor[] = {1, 2, 5, 10};
    for (int i = 0; i < 4; i++) {
        step = power * factor[i];
        if (most / step <= parts * (1 + 1e-9)) break;
    }
    return step;
}

static void print_head(const struct explain *x, FILE *out)
{
    char text[256];
    fprintf(out,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" viewBox=\"0 0 %d %d\" "
            "role=\"img\">\n<title>",
            PLOT_WIDTH, PAGE_HEIGHT, PLOT_WIDTH, PAGE_HEIGHT);
    snprintf(text, sizeof text, "%s: %.2f token/s", explain_model_name(x), explain_rate(x));
    svg_text(out, text);
    fputs("</title>\n<style>\n"
          ".page{fill:#ffffff}\n"
          "text{fill:#1f2328;font:13px system-ui,'Segoe UI',Helvetica,Arial,sans-serif}\n"
          ".big{font-size:17px;font-weight:600}\n.small{fill:#59636e;font-size:12px}\n"
          ".axis{stroke:#59636e}\n.grid{stroke:#d9dee3}\n"
          ".splits{fill:none;stroke:#57606a;stroke-width:1.5}\n.fits{fill:#57606a}\n"
          ".misfit{fill:none;stroke:#8c959f}\n.forbidden{fill:#8c959f;fill-opacity:0.14}\n"
          ".curve{fill:none;stroke:#cf222e;stroke-width:2}\n.point{fill:#57606a}\n.other{fill:none;stroke:#"
          "57606a;stroke-width:1.5;stroke-dasharray:5 4}\n"
          ".plan{stroke:#cf222e;stroke-width:2}\ntext.plan{fill:#cf222e;stroke:none;font-weight:600}\n"
          ".cpu{fill:#bc6c0a}\n.gpu{fill:#1a7f37}\n.stream{fill:#0a6fc2}\n.link{fill:#8250df}\n.end{fill:#"
          "6e7781}\n"
          "@media (prefers-color-scheme: dark){\n"
          ".page{fill:#0d1117}\ntext{fill:#e6edf3}\n.small{fill:#9198a1}\n.axis{stroke:#9198a1}\n"
          ".grid{stroke:#2a3038}\n.splits{stroke:#aeb6bf}\n.fits{fill:#aeb6bf}\n.misfit{stroke:#6e7681}\n"
          ".forbidden{fill:#9198a1}\n.curve{stroke:#ff7b72}\n.point{fill:#aeb6bf}\n.other{stroke:#aeb6bf}\n."
          "plan{stroke:#ff7b72}\ntext.plan{fill:#ff7b72}\n"
          ".cpu{fill:#e3a03c}\n.gpu{fill:#3fb950}\n.stream{fill:#58a6ff}\n.link{fill:#bc8cff}\n.end{fill:#"
          "8b949e}\n"
          "}\n</style>\n",
          out);
    fprintf(out, "<rect class=\"page\" width=\"%d\" height=\"%d\"/>\n", PLOT_WIDTH, PAGE_HEIGHT);
    snprintf(text, sizeof text, "%s: %.2f token/s, first token after %.0f ms", explain_model_name(x),
             explain_rate(x), 1e3 * x->prediction.ttft.seconds);
    svg_label(out, PLOT_LEFT, 32, "big", "start", text);
    snprintf(text, sizeof text, "%.120s; batch %u, %u tokens in, context %u", x->request->profile->machine,
             x->batch, x->context, x->plan->context_tokens);
    svg_label(out, PLOT_LEFT, 53, "small", "start", text);
}

/* ---- every split ---- */

static void print_misfits(const struct explain *x, const struct axis *ax, FILE *out)
{
    uint32_t layers = plan_answer_units(x->plan) / UNIT_PARTS;
    for (uint32_t g = 0; g <= layers; g++) {
        if (x->split[g].fits) continue;
        uint32_t last = g;
        while (last < layers && !x->split[last + 1].fits) last++;
        double from = fmax(svg_at(ax, g - 0.5), ax->from), to = fmin(svg_at(ax, last + 0.5), ax->to);
        fprintf(out, "<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\" class=\"forbidden\"/>\n",
                from, SPLITS_TOP, to - from, SPLITS_END - SPLITS_TOP);
        if (to - from > 90)
            svg_label(out, (from + to) / 2, SPLITS_END - 10, "small", "middle", "does not fit");
        g = last;
    }
}

static void print_splits(const struct explain *x, FILE *out)
{
    char text[96];
    uint32_t layers = plan_answer_units(x->plan) / UNIT_PARTS;
    double plan = explain_rate(x), most = plan;
    bool drawing = false;
    svg_label(out, PLOT_LEFT, SPLITS_TOP - 18, "", "start",
              "token/s over every thesis split: layers on the GPU, the others on the CPU");
    if (!x->split) {
        svg_label(out, PLOT_LEFT, SPLITS_TOP + 20, "small", "start", "there is no device: nothing to split");
        return;
    }
    for (uint32_t g = 0; g <= layers; g++)
        if (x->split[g].fits) most = fmax(most, x->batch / x->split[g].decode_s);
    const struct axis ax = {PLOT_LEFT, PLOT_RIGHT, layers}, ay = {SPLITS_END, SPLITS_TOP, 1.18 * most};
    double step = plot_step(ay.most, 6);
    for (int i = 0; i * step <= ay.most; i++) {
        svg_number(i * step, step, text, sizeof text);
        svg_line(out, PLOT_LEFT, svg_at(&ay, i * step), PLOT_RIGHT, svg_at(&ay, i * step),
                 i ? "grid" : "axis");
        svg_label(out, PLOT_LEFT - 8, svg_at(&ay, i * step) + 4, "small", "end", text);
    }
    print_misfits(x, &ax, out);
    step = fmax(plot_step(layers, 12), 1);
    for (int i = 0; i * step <= layers; i++) {
        svg_number(i * step, 1, text, sizeof text);
        svg_label(out, svg_at(&ax, i * step), SPLITS_END + 18, "small", "middle", text);
    }
    for (uint32_t g = 0; g <= layers; g++) {
        bool fits = x->split[g].fits;
        if (fits)
            fprintf(out, "%s%.1f,%.1f", drawing ? " " : "<polyline class=\"splits\" points=\"",
                    svg_at(&ax, g), svg_at(&ay, x->batch / x->split[g].decode_s));
        else if (drawing)
            fputs("\"/>\n", out);
        drawing = fits;
    }
    if (drawing) fputs("\"/>\n", out);
    for (uint32_t g = 0; g <= layers; g++) {
        const struct explain_split *s = &x->split[g];
        double rate = x->batch / s->decode_s;
        if (!(rate <= ay.most)) continue;
        fprintf(out,
                "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"3\" class=\"%s\"><title>%u layers: %.2f "
                "token/s%s</title></circle>\n",
                svg_at(&ax, g), svg_at(&ay, rate), s->fits ? "fits" : "misfit", g, rate,
                s->fits ? "" : ", does not fit");
    }
    svg_line(out, PLOT_LEFT, svg_at(&ay, plan), PLOT_RIGHT, svg_at(&ay, plan), "plan");
    snprintf(text, sizeof text, "this plan (%s): %.2f token/s",
             x->request->plan_given ? "as given" : search_strategy_name(x->request->strategy), plan);
    svg_label(out, PLOT_LEFT + 8, svg_at(&ay, plan) - 8, "plan", "start", text);
    svg_label(out, (PLOT_LEFT + PLOT_RIGHT) / 2, SPLITS_END + 38, "small", "middle", "layers on the GPU");
}

/* ---- one step ---- */

static const char *class_of(const struct explain *x, const struct cost_span *span)
{
    if (span->resource == COST_LINK) return "link";
    if (span->unit == COST_SPAN_EMBED || span->unit == COST_SPAN_HEAD) return "end";
    if (span->resource == COST_CPU) return "cpu";
    return x->plan->unit[span->unit].home[0] == PLAN_HOME_STREAM ? "stream" : "gpu";
}

static void name_of(const struct cost_span *span, char *text, size_t size)
{
    if (span->unit == COST_SPAN_EMBED)
        snprintf(text, size, "embedding");
    else if (span->unit == COST_SPAN_HEAD)
        snprintf(text, size, "head");
    else if (span->unit == COST_SPAN_CACHE)
        snprintf(text, size, "cache");
    else
        snprintf(text, size, "layer %u %s", unit_layer(span->unit), unit_part_name(unit_part(span->unit)));
}

/* A bar for each run of spans of one kind without a visible gap. */
static void print_lane(const struct explain *x, enum cost_resource resource, const struct axis *ax,
                       double top, FILE *out)
{
    char first[48], last[48];
    for (uint32_t i = 0; i < x->span_count; i++) {
        const struct cost_span *a = &x->span[i], *b = a;
        if (a->resource != resource) continue;
        const char *class = class_of(x, a);
        for (uint32_t j = i + 1; j < x->span_count; j++) {
            const struct cost_span *next = &x->span[j];
            if (next->resource != resource) continue;
            if (strcmp(class_of(x, next), class) != 0 ||
                svg_at(ax, next->from) - svg_at(ax, b->to) > TOUCHING)
                break;
            b = next;
            i = j;
        }
        double from = svg_at(ax, a->from), to = svg_at(ax, fmin(b->to, ax->most));
        name_of(a, first, sizeof first);
        name_of(b, last, sizeof last);
        fprintf(
            out,
            "<rect x=\"%.2f\" y=\"%.1f\" width=\"%.2f\" height=\"%.1f\" class=\"%s\"><title>%s%s%s: %.2f to "
            "%.2f ms</title></rect>\n",
            from, top, fmax(to - from, 0.25), LANE_BAR, class, first, a == b ? "" : " to ",
            a == b ? "" : last, 1e3 * a->from, 1e3 * b->to);
    }
}

static void print_legend(double y, FILE *out)
{
    static const struct {
        const char *class, *text;
        double width;
    } item[] = {{"cpu", "computed by the CPU", 155},
                {"gpu", "by the GPU, weights in VRAM", 204},
                {"stream", "by the GPU, from the ring (with waits)", 262},
                {"link", "copied over the link", 142},
                {"end", "embed, head", 0}};
    double x = PLOT_LEFT;
    for (size_t i = 0; i < sizeof item / sizeof *item; i++) {
        fprintf(out, "<rect x=\"%.1f\" y=\"%.1f\" width=\"11\" height=\"11\" class=\"%s\"/>\n", x, y - 10,
                item[i].class);
        svg_label(out, x + 16, y, "small", "start", item[i].text);
        x += item[i].width;
    }
}

static void print_step(const struct explain *x, FILE *out)
{
    static const char *const names[COST_RESOURCES] = {"CPU", "GPU", "link"};
    char text[96];
    const struct explain_list *decode = &x->list[0];
    const struct axis ax = {PLOT_LEFT, PLOT_RIGHT, 1e3 * decode->seconds},
                      seconds = {PLOT_LEFT, PLOT_RIGHT, decode->seconds};
    double bottom = STEP_TOP + COST_RESOURCES * LANE, step = plot_step(ax.most, 10);
    snprintf(text, sizeof text, "one decode step by resource: %.2f ms", ax.most);
    svg_label(out, PLOT_LEFT, STEP_TOP - 22, "", "start", text);
    for (int i = 0; i * step <= ax.most; i++) {
        svg_number(i * step, step, text, sizeof text);
        svg_line(out, svg_at(&ax, i * step), STEP_TOP - 8, svg_at(&ax, i * step), bottom, "grid");
        svg_label(out, svg_at(&ax, i * step), bottom + 18, "small", "middle", text);
    }
    svg_line(out, PLOT_LEFT, bottom, PLOT_RIGHT, bottom, "axis");
    for (int r = 0; r < COST_RESOURCES; r++) {
        double top = STEP_TOP + r * LANE;
        svg_label(out, PLOT_LEFT - 8, top + LANE_BAR / 2 + 4, "", "end", names[r]);
        print_lane(x, (enum cost_resource)r, &seconds, top, out);
        snprintf(text, sizeof text, "%.0f %%", 100 * decode->busy[r] / decode->seconds);
        svg_label(out, PLOT_RIGHT + 8, top + LANE_BAR / 2 + 4, "small", "start", text);
    }
    svg_label(out, (PLOT_LEFT + PLOT_RIGHT) / 2, bottom + 36, "small", "middle",
              "milliseconds; right: share of the step that each is busy");
    print_legend(LEGEND, out);
}

void plot_print(const struct explain *x, FILE *out)
{
    print_head(x, out);
    print_splits(x, out);
    print_step(x, out);
    plot_curve_print(x, CURVE_TOP, CURVE_END, out);
    fputs("</svg>\n", out);
}

int plot_write(const struct explain *x, const char *path, struct helm_err *err)
{
    int rc = file_check_parent(path, err);
    if (rc) return rc;
    FILE *file = fopen(path, "w");
    if (!file) return helm_fail_errno(err, "%s: cannot write", path);
    plot_print(x, file);
    bool bad = ferror(file);
    if (fclose(file) || bad) return helm_fail_errno(err, "%s: writing failed", path);
    return 0;
}
