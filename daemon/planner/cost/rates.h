/* A profile's rates for steps of one size: cost.c prices with them.
 *
 * Called by cost.c alone, where a step is priced. Owns nothing; a `struct pricing` borrows all that it points
 * to. Rates are a second's worth of bytes or operations, times are seconds. */
#pragma once

#include "common/program/op.h"
#include "daemon/planner/cost/cost.h"

/* One device at one size of step. */
struct device_rates {
    double gemv, gemv_beside;     /* weights, each read once a step */
    double packed, packed_beside; /* the CPU's, one token: the same of packed ones; 0: not known */
    double linear;                /* operations, 0 for one token: reading is all there is */
    double peak;                  /* the CPU's, of operations that wait for no memory */
    double attention, attention_beside, attention_flops;
    double attention_host; /* the CPU's, in layers of the GPU */
    double read;           /* activations */
    double operation;      /* seconds */
    double product;        /* seconds of a product beside its work, 0: an operation as others are */
    double parts;          /* of the step, each of which reads all weights */
};

/* Rates of products with weights of one format. */
struct format_rates {
    struct device_rates cpu, gpu,
        kernel;        /* as in struct pricing; `gpu` is chained where the format goes into chains */
    bool expands;      /* the GPU multiplies by values of 16 bits that it makes first: `kernel`'s rates are of
                     those bytes, */
    bool expands_home; /* also where they are at home in VRAM: `gpu`'s are, too */
    double expand;     /* bytes of these that it makes a second */
    double cpu_spread, gpu_spread; /* of the format's own rates, as cost_uncertainty has it; 0: it has none */
};

/* Operations of a part of the model in the step's tier, each with a beginning and an end that cost something
 * beside its bytes (common/program/op.h). */
struct part_operations {
    uint32_t cpu, gpu;
    uint32_t products; /* of the GPU's: each is what a slice can be one of, and has a price that holds what it
                          fuses; */
    uint32_t others;   /* without those */
};

struct pricing {
    /* the caller's */
    const struct model *model;
    const struct profile *profile;
    const struct cost_step *step;
    const struct analyse_table *analysed;
    /* what cost_rates_of makes of them */
    enum op_tier tier;
    struct part_operations part[MATH_PARTS_MAX];
    uint32_t first; /* operations of a step on the GPU, before its layers */
    struct device_rates cpu, gpu;
    struct device_rates kernel;      /* the GPU's of operations that are kernels of their own: not chained */
    double link_beside;              /* copies to the GPU while the CPU computes, as this step has it do */
    double expand;                   /* packed weights on the GPU, bytes of what they are expanded to */
    const struct format_rates *with; /* [FORMAT_COUNT]: of layers' products */
    /* [FORMAT_COUNT]: of experts', each with its share of the tokens */
    const struct format_rates *experts;
    bool device;
    bool chained; /* one token's operations on the GPU are, where nothing is between them: not a mixture's */
};

/* Fills what follows the caller's four. HELM_E_FORMAT names a rate that is missing; without a device in the
 * profile the rates of GPU and link are 0. */
HELM_MUST_CHECK int cost_rates_of(struct pricing *p, struct helm_err *err);

/* Steps of one size: the layers' are of the step's tokens, the head's of its sampled rows. */
struct rates_size {
    uint32_t tokens;
    enum op_tier tier;
};
/* Rates of products with weights of this format, from p's for bf16; a format that the profile lacks has
 * those, by its own bytes. After cost_rates_of. */
void cost_rates_with(const struct pricing *p, enum tensor_format format, const struct rates_size *size,
                     struct format_rates *out);
/* Bytes a second of host memory, while the CPU reads there too, that copies bring; and the same as this step
 * has it: packed weights on the CPU leave the link more of the memory's bandwidth. After cost_rates_of. */
double cost_rates_copy(const struct profile_link *link);
double cost_rates_link(const struct pricing *p);
/* Bytes a second that the GPU's kernels read there meanwhile: as attention over such a cache does, whose rate
 * alone is to a copy's as this one is to a copy's then; else the profile's, else as many as copies bring. */
double cost_rates_direct(const struct profile *profile, enum kv_dtype kv_dtype);
/* Bytes of such a cache a second that the CPU attends to in layers of the GPU, where nothing else reads. */
double cost_attention_host(const struct profile *profile, enum kv_dtype kv_dtype);
/* Operations a second of several tokens' products with weights of a format whose own were not measured, by
 * bf16's. */
double cost_rates_linear(const struct profile_table *plain, enum tensor_format format, uint32_t tokens);
/* Relative half-width of a rate's samples. */
double cost_rates_spread(const struct profile_value *value);

/* The tokens of the GPU's program that computes the step, where it has room for more than the step's: after
 * prompts an invariant plan has only programs of 8 and of 16 tokens. Otherwise 0: also on the emulated
 * device, whose programs take as long as the tokens that are there. */
uint32_t cost_rates_as_few(const struct pricing *p);

/* Whether a unit, or the head after them, lies packed where it has this home. */
bool cost_rates_packed(const struct pricing *p, uint32_t unit, enum plan_home home);
/* Whether the CPU multiplies with this unit's packed weights: a profile that says nothing of that knows no
 * other price than that of plain ones. Asked after cost_rates_of. */
bool cost_rates_packed_cpu(const struct pricing *p, uint32_t unit);
/* The same of its experts where they lie packed in both memories. */
bool cost_rates_packed_mixed(const struct pricing *p, uint32_t unit);
/* Whether one token's products read packed matrices with `inner` columns as they are (gpuk_linear_takes):
 * devices that have chains, or were measured doing it; whole tiles of every row. */
bool cost_rates_reads_packed(const struct pricing *p, uint32_t inner);

/* Operations of a step's head of this many sampled rows: sizes of step that it knows are one row and few. */
static inline enum op_tier rates_head_tier(uint32_t samples)
{
    return samples > 1 ? OP_TIER_FEW : OP_TIER_ONE;
}

/* A value that a profile may lack. */
static inline double rate_or(const struct profile_value *value, double otherwise)
{
    return value->value > 0 ? value->value : otherwise;
}
