/* Quantiles of measured numbers, and buffers to measure with: for every program that measures. */
#pragma once

#include <stddef.h>
#include <stdlib.h>
#include <sys/mman.h>

static inline int stats_compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The value that the fraction `at` of all (at least one) are below; sorts them. */
static inline double stats_quantile(double *values, size_t count, double at)
{
    qsort(values, count, sizeof *values, stats_compare);
    return values[(size_t)(at * (double)(count - 1) + 0.5)];
}

/* NULL: no memory. */
static inline void *stats_map_huge(size_t bytes)
{
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) return NULL;
    (void)madvise(p, bytes, MADV_HUGEPAGE); /* refused: small pages, slower and said by the numbers */
    return p;
}
