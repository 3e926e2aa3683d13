/* Gated delta nets, the definitions: plain loops, sums and functions in double; states are floats between
 * tokens. Owns nothing. See delta.h. */
#include <math.h>

#include "common/cpu/kernels/delta.h"

static double silu(double x)
{
    return x / (1 + exp(-x));
}

static void convolve(const struct delta_convolution *run)
{
    for (uint32_t t = 0; t < run->tokens; t++)
        for (uint32_t c = 0; c < run->channels; c++) {
            float *x = run->x + t * run->stride + c, *state = run->state + c;
            const float *weight = run->weight + c, now = *x;
            double sum = (double)now * (double)weight[DELTA_COLUMNS * run->weight_stride];
            for (int w = 0; w < DELTA_COLUMNS; w++)
                sum += (double)weight[(size_t)w * run->weight_stride] *
                       (double)state[(size_t)w * run->state_stride];
            *x = (float)silu(sum);
            for (int w = 0; w + 1 < DELTA_COLUMNS; w++)
                state[(size_t)w * run->state_stride] = state[(size_t)(w + 1) * run->state_stride];
            state[(DELTA_COLUMNS - 1) * run->state_stride] = now;
        }
}

/* 1 / the length of x. */
static double inverse_length(const float *x, uint32_t n)
{
    double sum = 0;
    for (uint32_t i = 0; i < n; i++) sum += (double)x[i] * (double)x[i];
    return 1 / sqrt(sum + (double)DELTA_NORM_EPS);
}

static void one_token(const struct delta_run *run, uint32_t t)
{
    const float *q = run->q + t * run->stride, *k = run->k + t * run->stride, *v = run->v + t * run->stride,
                *z = run->z + t * run->z_stride;
    const double alpha = (double)run->alpha[t * run->gate_stride] + (double)run->dt_bias,
                 softplus = alpha > 20 ? alpha : log1p(exp(alpha)),
                 decay = exp((double)run->decay * softplus),
                 rate = 1 / (1 + exp(-(double)run->beta[t * run->gate_stride])),
                 by_q = inverse_length(q, run->key) / sqrt((double)run->key),
                 by_k = inverse_length(k, run->key);
    double out[DELTA_HEAD_MAX], squares = 0;
    for (uint32_t j = 0; j < run->value; j++) {
        double known = 0;
        for (uint32_t i = 0; i < run->key; i++)
            known += by_k * (double)k[i] * decay * (double)run->state[i * run->value + j];
        const double delta = rate * ((double)v[j] - known);
        out[j] = 0;
        for (uint32_t i = 0; i < run->key; i++) {
            float *s = &run->state[i * run->value + j];
            *s = (float)(decay * (double)*s + by_k * (double)k[i] * delta);
            out[j] += by_q * (double)q[i] * (double)*s;
        }
        squares += out[j] * out[j];
    }
    const double scale = 1 / sqrt(squares / run->value + (double)run->eps);
    for (uint32_t j = 0; j < run->value; j++)
        run->out[t * run->out_stride + j] =
            (float)(out[j] * scale * (double)run->norm[j] * silu((double)z[j]));
}

/* Shared by the variants with vectors, which have no exponential of doubles. */
struct delta_gates delta_gates_of(const struct delta_run *run, uint32_t token)
{
    const double alpha = (double)run->alpha[token * run->gate_stride] + (double)run->dt_bias,
                 beta = (double)run->beta[token * run->gate_stride],
                 softplus = alpha > 20 ? alpha : log1p(exp(alpha));
    return (struct delta_gates){.decay = (float)exp((double)run->decay * softplus),
                                .rate = (float)(1 / (1 + exp(-beta)))};
}

static void rule(const struct delta_run *run)
{
    for (uint32_t t = 0; t < run->tokens; t++) one_token(run, t);
}

const struct delta_kernels delta_ref = {.convolve = convolve, .rule = rule};
