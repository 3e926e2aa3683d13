/* The larger and the smaller of two numbers, inline: fmax and fmin are calls, for the sake of what is no
 * number. For what the search does millions of times a plan. */
#pragma once

#define ROUNDING      1e-9  /* sums of the same numbers in another order may differ by this part */
#define SECONDS_LEAST 1e-12 /* what may take no time counts as if it took this: rates stay numbers */

static inline double larger(double a, double b)
{
    return a > b ? a : b;
}

static inline double smaller(double a, double b)
{
    return a < b ? a : b;
}
