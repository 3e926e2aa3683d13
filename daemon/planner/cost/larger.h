/* The larger and the smaller of two numbers, inline: fmax and fmin are calls, for the sake of what is no
 * number. For what the search does millions of times a plan. */
#pragma once

#include "daemon/planner/profile/policy.h"

static inline double larger(double a, double b)
{
    return a > b ? a : b;
}

static inline double smaller(double a, double b)
{
    return a < b ? a : b;
}
