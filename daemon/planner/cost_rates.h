/* What a profile says of steps of one size, as rates: what cost.c prices with.
 *
 * Called by cost.c alone, where a step is priced. Owns nothing; a `struct pricing` borrows all that it points
 * to. Rates are a second's worth of bytes or operations, times are seconds. */
#ifndef HELM_DAEMON_PLANNER_COST_RATES_H
#define HELM_DAEMON_PLANNER_COST_RATES_H

#include "daemon/planner/cost.h"

/* Steps of more tokens are chunks: other kernels, launched one by one instead of as a captured graph. */
#define FEW_TOKENS 16

/* One device at one size of step. */
struct device_rates {
    double gemv, gemv_beside;     /* weights, each read once a step */
    double packed, packed_beside; /* the CPU's, one token: the same of packed ones; 0: not known */
    double packed_longer;         /* the CPU's, several: how many times as long as plain ones; 0: not known */
    double linear;                /* operations, 0 for one token: reading is all there is */
    double linear_slowed;         /* how many times as long they take while the link streams */
    double attention, attention_beside, attention_flops;
    double read;      /* activations */
    double operation; /* seconds */
    double product;   /* seconds of a product beside its work, 0: an operation as others are */
    double parts;     /* of the step, each of which reads all weights */
};

struct pricing {
    /* the caller's */
    const struct model *model;
    const struct profile *profile;
    const struct cost_step *step;
    const struct analyse_table *analysed;
    /* what cost_rates_of makes of them */
    int size; /* 0: one token, 1: few, 2: a chunk */
    struct device_rates cpu, gpu;
    struct device_rates kernel; /* the GPU's of operations that are kernels of their own: not chained */
    double together;            /* the GPU's: how many times as long all takes in a prompt */
    double link_beside;         /* copies to the GPU while the CPU computes, as this step has it do */
    double expand;              /* packed weights on the GPU, bytes of what they are expanded to */
    bool device, chained;       /* one token's operations on the GPU are, where nothing is between them */
};

/* Fills what follows the caller's four. HELM_E_FORMAT names a rate that is missing; without a device in the
 * profile the rates of GPU and link are 0. */
HELM_MUST_CHECK int cost_rates_of(struct pricing *p, struct helm_err *err);

/* Whether the CPU multiplies with this unit's packed weights: a profile that says nothing of that knows no
 * other price than that of plain ones. Asked after cost_rates_of. */
bool cost_rates_packed_cpu(const struct pricing *p, uint32_t unit);

/* A value that a profile may lack. */
static inline double rate_or(const struct profile_value *value, double otherwise)
{
    return value->value > 0 ? value->value : otherwise;
}

#endif
