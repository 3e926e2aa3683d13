/* RoPE frequencies: the same float32 and float64 steps, in the same order, as transformers'
 * ROPE_INIT_FUNCTIONS.
 *
 * Angles at positions in the ten-thousands turn one unit in the last place of a frequency into a visible
 * difference, so every rounding is spelled out: `float` where the reference has a float32 tensor, `double`
 * where it has a Python number. A Python number over a tensor is the tensor's float32 reciprocal times the
 * number, two roundings. Measured against transformers 5.17.0: the same bits but for about one frequency in a
 * hundred, off by one or two units in the last place, because torch's vector pow() is not correctly rounded.
 * Called by the worker once at load; pure function. Built without contraction into fused multiply-adds. */
#include <math.h>

#include "common/model/model.h"

/* base ** (arange(0, dim, 2) / dim): a float32 power, here correctly rounded by way of double. */
static float pos_freq(double base, uint32_t index, uint32_t dim)
{
    float exponent = (float)(2 * index) / (float)dim;
    return (float)pow((double)(float)base, (double)exponent);
}

static float reciprocal_times(float tensor, double number)
{
    volatile float reciprocal = 1.0f / tensor; /* keeps the compiler from dividing number by tensor */
    return reciprocal * (float)number;
}

static float llama3_scale(const struct rope_config *rope, float inv_freq)
{
    double context = rope->original_context;
    float low_wavelength = (float)(context / rope->low_freq_factor);
    float high_wavelength = (float)(context / rope->high_freq_factor);
    float factor = (float)rope->factor;
    float wavelength = reciprocal_times(inv_freq, 2 * M_PI);
    float scaled = wavelength > low_wavelength ? inv_freq / factor : inv_freq;
    if (wavelength < high_wavelength || wavelength > low_wavelength) return scaled;
    float smooth = (reciprocal_times(wavelength, context) - (float)rope->low_freq_factor) /
                   (float)(rope->high_freq_factor - rope->low_freq_factor);
    float kept = 1.0f - smooth;
    kept = kept * scaled;
    kept = kept / factor;
    float added = smooth * scaled;
    return kept + added;
}

/* The dimension whose wavelength makes `rotations` turns over the original context. */
static double correction_dim(const struct rope_config *rope, double rotations, uint32_t dim)
{
    return (dim * log(rope->original_context / (rotations * 2 * M_PI))) / (2 * log(rope->theta));
}

static void yarn_frequencies(const struct rope_config *rope, uint32_t dim, float *inv_freq)
{
    double low = correction_dim(rope, rope->beta_fast, dim);
    double high = correction_dim(rope, rope->beta_slow, dim);
    if (rope->truncate) low = floor(low), high = ceil(high);
    if (low < 0) low = 0;
    if (high > dim - 1) high = dim - 1;
    if (low == high) high += 0.001; /* as the reference does, against a division by zero */
    float from = (float)low, span = (float)(high - low);
    for (uint32_t i = 0; i < dim / 2; i++) {
        float freq = pos_freq(rope->theta, i, dim);
        float scaled_freq = (float)rope->factor * freq;
        float extrapolated = 1.0f / freq, interpolated = 1.0f / scaled_freq;
        float ramp = ((float)i - from) / span;
        ramp = ramp < 0 ? 0 : ramp > 1 ? 1 : ramp;
        float share = 1.0f - ramp;
        float rest = 1.0f - share;
        float a = interpolated * rest, b = extrapolated * share;
        inv_freq[i] = a + b;
    }
}

double rope_score_factor(const struct rope_config *rope)
{
    if (rope->kind != ROPE_YARN || rope->mscale_all == 0 || rope->factor <= 1) return 1;
    const double mscale = 0.1 * rope->mscale_all * log(rope->factor) + 1;
    return mscale * mscale;
}

static bool is_long(const struct rope_config *rope, uint32_t context)
{
    return rope->kind == ROPE_LONG && context > rope->original_context;
}

bool rope_is_long(const struct model_config *config, uint32_t context)
{
    bool any = false;
    for (uint32_t i = 0; i < MODEL_ROPES_MAX; i++) any |= is_long(&config->rope[i], context);
    return any;
}

void rope_inv_freq(const struct model_config *config, uint32_t table, uint32_t context, float *inv_freq,
                   float *scale)
{
    const struct rope_config *rope = &config->rope[table];
    const float *factors = is_long(rope, context) ? rope->long_factors : rope->factors;
    const uint32_t dim = model_rope_dims(config, table);
    *scale = rope->kind == ROPE_YARN || rope->kind == ROPE_LONG ? (float)rope->attention_factor : 1.0f;
    if (rope->kind == ROPE_YARN) {
        yarn_frequencies(rope, dim, inv_freq);
        return;
    }
    const uint32_t turning = (uint32_t)(rope->part * dim / 2);
    for (uint32_t i = 0; i < dim / 2; i++) {
        const float freq = pos_freq(rope->theta, i, dim), plain = 1.0f / freq;
        inv_freq[i] = rope->kind == ROPE_LINEAR    ? plain / (float)rope->factor
                      : rope->kind == ROPE_PART    ? (i < turning ? plain / (float)rope->factor : 0)
                      : rope->kind == ROPE_LLAMA3  ? llama3_scale(rope, plain)
                      : rope->kind == ROPE_FACTORS ? plain / factors[i]
                      : rope->kind == ROPE_LONG    ? 1.0f / (factors[i] * freq)
                                                   : plain;
    }
}
