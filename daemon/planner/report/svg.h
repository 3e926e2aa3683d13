/* Marks of a picture: text, lines, scales. Internal to plot.c and plot_curve.c; owns nothing.
 *
 * Coordinates are pixels of the document's own; a panel maps its two ranges onto a rectangle. */
#pragma once

#include <stdio.h>

#define PLOT_WIDTH 960
#define PLOT_LEFT  70.0
#define PLOT_RIGHT (PLOT_WIDTH - 70.0)

struct axis {
    double from, to; /* pixels */
    double most;     /* of the values, which begin at 0 */
};

double svg_at(const struct axis *axis, double value);
/* Escaped. Bytes that are no UTF-8 become question marks: names of folders may hold any. */
void svg_text(FILE *out, const char *text);
void svg_label(FILE *out, double x, double y, const char *class, const char *anchor, const char *text);
void svg_line(FILE *out, double x1, double y1, double x2, double y2, const char *class);
/* A value of an axis with steps of `step`. */
void svg_number(double value, double step, char *text, size_t size);
