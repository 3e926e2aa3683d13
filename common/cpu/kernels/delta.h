/* Gated delta nets on the CPU: the short convolution in front of a layer's heads, and the gated delta rule of
 * one head. Part of each variant of vector.h.
 *
 * Called by worker-cpu/program/delta.c and by tests/kernels. Kernels are pure but for the state that they are
 * given. Tokens are taken in their order, each by the same additions, so that results do not depend on how a
 * sequence is cut into calls. Definitions: delta_ref.c. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#define DELTA_CONV_WIDTH 4                      /* tokens that the convolution sees: */
#define DELTA_COLUMNS    (DELTA_CONV_WIDTH - 1) /* of earlier ones, which its state keeps */
#define DELTA_NORM_EPS   1e-6f                  /* of the lengths of q and k */
#define DELTA_HEAD_MAX   256                    /* numbers of a head's q, k, v; each a multiple of: */
#define DELTA_HEAD_UNIT  16

/* Some channels of a run of tokens, in place: x = silu(sum over w of weight[w] * x of the token DELTA_COLUMNS
 * - w before). */
struct delta_convolution {
    float *x; /* [tokens][stride]: these channels of the first token */
    size_t stride;
    uint32_t tokens, channels;
    const float *weight; /* [DELTA_CONV_WIDTH][weight_stride]: the oldest token's first */
    size_t weight_stride;
    float *state; /* [DELTA_COLUMNS][state_stride]: inputs of the last tokens, the oldest first */
    size_t state_stride;
};

/* A run of tokens of one v head. With q and k of length 1, q by 1 / sqrt(key), b = sigmoid(beta), g = decay *
 * softplus(alpha + dt_bias):
 *   S = e^g S;  d = b (v - S^T k); S = S + k d^T; o = S^T q; out = o / sqrt(mean(o^2) + eps) * norm *
 * silu(z) */
struct delta_run {
    uint32_t tokens, key, value; /* numbers of q and of k, of v */
    const float *q, *k, *v;      /* [tokens][stride], of this head */
    size_t stride;
    const float *z; /* [tokens][z_stride] */
    size_t z_stride;
    const float *alpha, *beta; /* [tokens][gate_stride]: as they come out of their products */
    size_t gate_stride;
    float decay, dt_bias; /* decay: below 0 */
    const float *norm;    /* [value] */
    float eps;
    float *state; /* S [key][value] */
    float *out;   /* [tokens][out_stride] */
    size_t out_stride;
};

struct delta_kernels {
    void (*convolve)(const struct delta_convolution *run);
    void (*rule)(const struct delta_run *run);
};
extern const struct delta_kernels delta_ref;

/* e^g and b for one token of a head. All variants but the reference give the same bits. */
struct delta_gates {
    float decay, rate;
};
struct delta_gates delta_gates_of(const struct delta_run *run, uint32_t token);
