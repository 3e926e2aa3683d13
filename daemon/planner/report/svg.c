/* Marks of a picture. See svg.h. Called by plot.c and plot_curve.c. */
#include "daemon/planner/report/svg.h"

#include <jansson.h>
#include <math.h>

double svg_at(const struct axis *axis, double value)
{
    return axis->from + (axis->to - axis->from) * value / axis->most;
}

void svg_text(FILE *out, const char *text)
{
    static const char *const entity[256] = {
        ['&'] = "&amp;", ['<'] = "&lt;", ['>'] = "&gt;", ['"'] = "&quot;"};
    json_t *valid = json_string(text);
    for (const unsigned char *c = (const unsigned char *)text; *c; c++) {
        if (entity[*c])
            fputs(entity[*c], out);
        else
            fputc(*c < 0x20 || *c == 0x7f || (*c >= 0x80 && !valid) ? '?' : *c, out);
    }
    json_decref(valid);
}

void svg_label(FILE *out, double x, double y, const char *class, const char *anchor, const char *text)
{
    fprintf(out, "<text x=\"%.1f\" y=\"%.1f\" class=\"%s\" text-anchor=\"%s\">", x, y, class, anchor);
    svg_text(out, text);
    fputs("</text>\n", out);
}

void svg_line(FILE *out, double x1, double y1, double x2, double y2, const char *class)
{
    fprintf(out, "<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" class=\"%s\"/>\n", x1, y1, x2, y2,
            class);
}

void svg_number(double value, double step, char *text, size_t size)
{
    int digits = step >= 1 ? 0 : (int)ceil(-log10(step) - 1e-9);
    snprintf(text, size, "%.*f", digits, value);
}
