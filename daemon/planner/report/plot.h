/* An explained plan as a picture: predicted token/s over every thesis split, one decode step by resource,
 * token/s over context.
 *
 * Called by helm-plan --plot. Writes SVG by hand: text labels, colours for light and dark. Owns nothing. */
#pragma once

#include <stdio.h>

#include "daemon/planner/report/explain.h"

/* The whole document. A failed write shows in ferror(out). */
void plot_print(const struct explain *explain, FILE *out);
/* The same into a file, replaced if it is there. */
HELM_MUST_CHECK int plot_write(const struct explain *explain, const char *path, struct helm_err *err);
/* plot_curve.c: the panel of token/s over context, its axes between these two. */
void plot_curve_print(const struct explain *explain, double top, double end, FILE *out);
/* The round step, 1, 2 or 5 times a power of ten, that cuts [0, most] into at most `parts`. */
double plot_step(double most, int parts);
