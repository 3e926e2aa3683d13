/* Whole multiples. Called wherever bytes, rows or tokens are placed or cut; pure, owns nothing. */
#pragma once

#include <stdint.h>

/* The least multiple of `unit` (at least 1) that is not less than n. */
static inline uint64_t round_up(uint64_t n, uint64_t unit)
{
    return (n + unit - 1) / unit * unit;
}
