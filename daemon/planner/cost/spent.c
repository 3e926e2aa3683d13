/* Seconds by what they are spent on. See cost/spent.h; docs/planner-prices.md has the equations. Called by
 * cost.c and ends.c; owns nothing. */
#include "daemon/planner/cost/spent.h"

#include <math.h>

void spent_linear(const struct device_rates *r, double bytes, double parameters, double tokens,
                  struct spent *s)
{
    double memory = r->parts * bytes / r->gemv, memory_beside = r->parts * bytes / r->gemv_beside;
    double compute = r->linear > 0 ? 2 * parameters * tokens / r->linear : 0;
    s->total += fmax(memory, compute);
    s->beside += fmax(memory_beside, compute);
    *(compute > memory ? &s->compute : &s->memory) += fmax(memory, compute);
}

void spent_bytes(const struct device_rates *r, double bytes, double rate, struct spent *s)
{
    s->total += bytes / rate;
    s->memory += bytes / rate;
    s->beside += bytes / rate * (r->gemv / r->gemv_beside);
}

void spent_overhead(const struct device_rates *r, double seconds, struct spent *s)
{
    s->total += r->parts * seconds;
    s->beside += r->parts * seconds;
    s->overhead += r->parts * seconds;
}

void spent_operations(const struct device_rates *r, double count, struct spent *s)
{
    spent_overhead(r, count * r->operation, s);
}

const char *spent_bound(const struct spent *s)
{
    if (s->overhead > s->memory && s->overhead > s->compute) return "overhead";
    return s->compute > s->memory ? "compute" : "memory";
}

double slices_of(uint64_t bytes, bool packed)
{
    uint64_t slice = packed ? RING_PACKED_SLICE_BYTES : RING_SLICE_BYTES;
    return (double)((bytes + slice - 1) / slice);
}

double expanding_seconds(const struct pricing *p, double rate, double bytes)
{
    return bytes / rate + slices_of((uint64_t)bytes, true) * p->kernel.operation;
}

double expand_seconds(const struct pricing *p, double bytes)
{
    return expanding_seconds(p, p->expand, bytes);
}

double longer_packed(const struct pricing *p, double bytes)
{
    const double packed = p->profile->gpu.gemv_packed.value;
    if (packed <= 0) return COST_READ_PACKED_PART * expand_seconds(p, bytes);
    return bytes / packed - bytes / p->kernel.gemv;
}
