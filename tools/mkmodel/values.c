/* Random weights from a counter: fast, the same for every thread count. See mkmodel.h.
 *
 * Called by files.c from all its threads; a table is read-only once made. */
#include <math.h>
#include <string.h>

#include "common/formats/convert.h"
#include "tools/mkmodel/mkmodel.h"

/* A well-mixed function of a counter (the finaliser of the SplitMix64 generator). */
static inline uint64_t mix(uint64_t x)
{
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}
#define COUNTER_STEP 0x9e3779b97f4a7c15u

/* FNV-1a, then mixed with the seed: every tensor has its own stream. */
static uint64_t stream_key(uint64_t seed, const char *name)
{
    uint64_t hash = 0xcbf29ce484222325u;
    for (; *name; name++) hash = (hash ^ (unsigned char)*name) * 0x100000001b3u;
    return mix(hash ^ mix(seed + COUNTER_STEP));
}

/* The normal quantile by bisection of its distribution function: slow, exact, done 2048 times in a run of the
 * tool. */
static double normal_quantile(double p)
{
    double low = -8, high = 8;
    for (int i = 0; i < 60; i++) {
        double middle = 0.5 * (low + high);
        if (0.5 * erfc(-middle * M_SQRT1_2) < p)
            low = middle;
        else
            high = middle;
    }
    return 0.5 * (low + high);
}

/* To the nearest value of 11 significant bits, ties to even. Values here are normal in both types or small
 * enough that fp16 rounds them among its subnormals. */
static uint16_t to_f16(double value)
{
    uint16_t sign = value < 0 ? 0x8000 : 0;
    double size = fabs(value);
    int exponent;
    if (size == 0) return sign;
    frexp(size, &exponent);
    if (exponent < -13) exponent = -13; /* subnormal: the spacing stays 2^-24 */
    uint32_t steps = (uint32_t)nearbyint(ldexp(size, 11 - exponent));
    /* 1024..2048 steps of a normal binade; a carry to 2048 runs into the next exponent by itself. */
    return (uint16_t)(sign + (uint32_t)((exponent + 13) << 10) + steps);
}

void mkmodel_normal_init(struct mkmodel_normal *normal)
{
    for (int i = 0; i < MKMODEL_LEVELS / 2; i++)
        normal->quantile[i] = normal_quantile((i + 0.5) / MKMODEL_LEVELS);
}

void mkmodel_values_init(struct mkmodel_values *values, const struct mkmodel_normal *normal, uint64_t seed,
                         const char *name, enum dtype dtype, double mean, double spread)
{
    values->key = stream_key(seed, name);
    for (int i = 0; i < MKMODEL_LEVELS / 2; i++) {
        double step = spread * normal->quantile[i];
        double low = mean + step, high = mean - step; /* step is negative: the lower half, mirrored */
        bool half = dtype == DTYPE_F16;
        values->level[i] = half ? to_f16(low) : convert_f32_bf16((float)low);
        values->level[MKMODEL_LEVELS - 1 - i] = half ? to_f16(high) : convert_f32_bf16((float)high);
    }
}

void mkmodel_values_any(struct mkmodel_values *values)
{
    for (uint64_t i = 0; i < MKMODEL_LEVELS; i++) values->level[i] = (uint16_t)(mix(i + 1) >> 40);
}

void mkmodel_values_scales(struct mkmodel_values *values, double spread)
{
    /* all 16 numbers equally likely: their root mean square is 2.93 */
    const int middle = 127 + (int)lround(log2(spread / 2.93));
    for (int i = 0; i < MKMODEL_LEVELS; i++)
        values->level[i] = (uint16_t)((middle - 1 + i % 3) | (middle - 1 + i / 3 % 3) << 8);
}

void mkmodel_values_fill(const struct mkmodel_values *values, uint64_t first, uint64_t count, uint16_t *out)
{
    const uint16_t *level = values->level;
    uint64_t counter = values->key + (first / 4) * COUNTER_STEP, i = 0;
    for (; i + 4 <= count; i += 4, counter += COUNTER_STEP) {
        uint64_t random = mix(counter);
        uint64_t four = (uint64_t)level[random >> 52] | (uint64_t)level[random >> 36 & 4095] << 16 |
                        (uint64_t)level[random >> 20 & 4095] << 32 |
                        (uint64_t)level[random >> 4 & 4095] << 48;
        memcpy(out + i, &four, sizeof four);
    }
    uint64_t random = mix(counter);
    for (int shift = 52; i < count; i++, shift -= 16) out[i] = level[random >> shift & 4095];
}
