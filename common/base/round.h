/* Whole multiples. Called wherever bytes, rows or tokens are placed or cut; pure, owns nothing. */
#ifndef HELM_COMMON_BASE_ROUND_H
#define HELM_COMMON_BASE_ROUND_H

#include <stdint.h>

/* The least multiple of `unit` (at least 1) that is not less than n. */
static inline uint64_t round_up(uint64_t n, uint64_t unit)
{
    return (n + unit - 1) / unit * unit;
}

#endif
