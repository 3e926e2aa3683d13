/* The choice of experts. See router.h. No state. */
#include "common/model/router.h"

#include <math.h>
#include <stddef.h>

static float sigmoid(float x)
{
    return 1.0f / (1.0f + expf(-x));
}

static float orderly(float x)
{
    return isnan(x) ? -INFINITY : x;
}

/* The `count` largest of value[0 .. n), of equal ones the lower index; those whose `open` is false are left
 * out. */
static uint32_t largest(const float *value, const bool *open, uint32_t n, uint32_t count, uint32_t *index)
{
    uint32_t have = 0;
    for (uint32_t i = 0; i < n; i++) {
        if (open && !open[i]) continue;
        uint32_t at = have;
        while (at > 0 && value[i] > value[index[at - 1]]) at--;
        if (at >= count) continue;
        for (uint32_t j = have < count ? have : count - 1; j > at; j--) index[j] = index[j - 1];
        index[at] = i;
        if (have < count) have++;
    }
    return have;
}

/* SIGMOID: which experts may be chosen, by the sum of their group's two best. */
static void open_groups(const struct model_router *router, const float *value, bool *open)
{
    const uint32_t size = router->experts / router->groups;
    float sum[MODEL_EXPERT_GROUPS_MAX];
    uint32_t group[MODEL_EXPERT_GROUPS_MAX];
    for (uint32_t g = 0; g < router->groups; g++) {
        float first = -INFINITY, second = -INFINITY;
        for (uint32_t i = g * size; i < (g + 1) * size; i++) {
            if (value[i] > first) {
                second = first;
                first = value[i];
            } else if (value[i] > second) {
                second = value[i];
            }
        }
        sum[g] = size > 1 ? first + second : first;
    }
    const uint32_t have = largest(sum, NULL, router->groups, router->groups_chosen, group);
    for (uint32_t i = 0; i < router->experts; i++) open[i] = false;
    for (uint32_t g = 0; g < have; g++)
        for (uint32_t i = group[g] * size; i < (group[g] + 1) * size; i++) open[i] = true;
}

void router_choose(const struct model_router *router, const float *logits, const float *choice_bias,
                   const float *scale, uint32_t *id, float *weight)
{
    float score[MODEL_EXPERTS_MAX], value[MODEL_EXPERTS_MAX] = {0};
    bool open[MODEL_EXPERTS_MAX];
    const uint32_t n = router->experts, k = router->chosen;
    const bool sigmoids = router->score == ROUTER_SIGMOID,
               grouped = sigmoids && router->groups > router->groups_chosen;
    for (uint32_t i = 0; i < n; i++) {
        score[i] = sigmoids ? sigmoid(orderly(logits[i])) : orderly(logits[i]);
        value[i] = score[i] + (choice_bias ? choice_bias[i] : 0.0f);
    }
    if (grouped) open_groups(router, value, open);
    largest(value, grouped ? open : NULL, n, k, id);

    /* Softmax is taken from the largest logit on; with every logit -inf all weights are equal. */
    float sum = 0.0f;
    if (sigmoids) {
        for (uint32_t j = 0; j < k; j++) weight[j] = score[id[j]];
    } else {
        float most = -INFINITY;
        for (uint32_t i = 0; i < n; i++) most = score[i] > most ? score[i] : most;
        if (most == -INFINITY) most = 0.0f;
        for (uint32_t j = 0; j < k; j++) weight[j] = expf(score[id[j]] - most);
        if (router->score == ROUTER_SOFTMAX && !router->normalise)
            for (uint32_t i = 0; i < n; i++) sum += expf(score[i] - most);
        else
            for (uint32_t j = 0; j < k; j++) sum += weight[j];
        for (uint32_t j = 0; j < k; j++) weight[j] = sum > 0.0f ? weight[j] / sum : 1.0f / (float)k;
        sum = 0.0f;
    }
    if (sigmoids && router->normalise) {
        for (uint32_t j = 0; j < k; j++) sum += weight[j];
        for (uint32_t j = 0; j < k; j++) weight[j] /= sum + 1e-20f;
    }
    for (uint32_t j = 0; j < k; j++) weight[j] *= router->scale * (scale ? scale[id[j]] : 1.0f);
}

float glu_of(enum glu_kind kind, float gate, float up)
{
    if (kind == GLU_SILU) return gate * sigmoid(gate) * up;
    if (kind == GLU_GELU) return gate * sigmoid(2 * GELU_ROOT * (gate + GELU_CUBE * gate * gate * gate)) * up;
    gate = gate > GLU_CLAMP ? GLU_CLAMP : gate;
    up = up > GLU_CLAMP ? GLU_CLAMP : up < -GLU_CLAMP ? -GLU_CLAMP : up;
    return gate * sigmoid(GLU_ALPHA * gate) * (up + 1.0f);
}
