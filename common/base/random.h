/* Numbers that are as good as drawn and always the same: for measurements, made-up weights and searches,
 * never for keys or sampling. Pure, owns nothing. */
#pragma once

#include <stdint.h>

#define RANDOM_SEED UINT64_C(88172645463325252)
#define RANDOM_RATIO                                                                                         \
    UINT64_C(0x9e3779b97f4a7c15) /* the golden section of 64 bits: its multiples are spread evenly */

/* A number that looks as if drawn for each number; sums of such of different numbers differ. */
static inline uint64_t random_mixed(uint64_t number)
{
    number *= RANDOM_RATIO;
    number = (number ^ (number >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    return number ^ (number >> 27);
}

/* The next one, which is the state: not 0. */
static inline uint64_t random_next(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

/* One of the numbers below this one, from the upper bits, which are the best. */
static inline uint32_t random_below(uint64_t *state, uint32_t below)
{
    return (uint32_t)(random_next(state) >> 33) % below;
}
