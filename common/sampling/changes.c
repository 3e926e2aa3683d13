/* Which logits penalties and bias change, and what they make of them. See sampling/changes.h. */
#include "common/sampling/changes.h"

#include <float.h>
#include <math.h>

#define NOT_LISTED     UINT32_MAX
#define ONLY_IN_BIASES UINT32_MAX /* in place of the times in the output */

static bool has_penalties(const struct sampling_params *p)
{
    return p->repetition_penalty != 1 || p->presence_penalty != 0 || p->frequency_penalty != 0;
}

static uint32_t bias_count(const struct sampling_params *p)
{
    return p->bias_count < SAMPLING_BIAS_MAX ? p->bias_count : SAMPLING_BIAS_MAX;
}

bool sampling_changes_logits(const struct sampling_params *p)
{
    return has_penalties(p) || p->bias_count != 0;
}

bool sampling_list_changes(const struct sampling_params *p, const struct sampling_tokens *tokens,
                           uint32_t vocab, uint32_t capacity, uint32_t *seen,
                           struct sampling_changes *changes)
{
    const uint32_t *history = tokens->history, history_count = has_penalties(p) ? tokens->count : 0;
    uint32_t n = 0, biases = bias_count(p);
    for (uint32_t i = 0; i < history_count; i++)
        if (history[i] < vocab) seen[history[i]] = NOT_LISTED;
    for (uint32_t i = 0; i < biases; i++)
        if (p->bias[i].token < vocab) seen[p->bias[i].token] = NOT_LISTED;
    for (uint32_t i = 0; i < history_count; i++) {
        uint32_t token = history[i];
        if (token >= vocab) continue;
        if (seen[token] == NOT_LISTED) {
            if (n == capacity) return false;
            changes->token[n] = token;
            changes->times[n] = 0;
            seen[token] = n++;
        }
        changes->times[seen[token]] += i >= tokens->prompt;
    }
    for (uint32_t i = 0; i < biases; i++) {
        uint32_t token = p->bias[i].token;
        if (token >= vocab || seen[token] != NOT_LISTED) continue;
        if (n == capacity) return false;
        changes->token[n] = token;
        changes->times[n] = ONLY_IN_BIASES;
        seen[token] = n++;
    }
    changes->count = n;
    return true;
}

void sampling_index_changes(const struct sampling_changes *changes, uint32_t *seen)
{
    for (uint32_t i = 0; i < changes->count; i++) seen[changes->token[i]] = i;
}

static float cut_to_finite(double x)
{
    return x > (double)FLT_MAX ? FLT_MAX : x < -(double)FLT_MAX ? -FLT_MAX : (float)x;
}

void sampling_apply_changes(const struct sampling_params *p, uint32_t vocab,
                            const struct sampling_changes *changes, const uint32_t *seen, float *x)
{
    double penalty = (double)p->repetition_penalty;
    for (uint32_t i = 0; i < changes->count; i++) {
        uint32_t times = changes->times[i];
        if (times == ONLY_IN_BIASES || !isfinite(x[i])) continue;
        x[i] = cut_to_finite(x[i] > 0 ? (double)x[i] / penalty : (double)x[i] * penalty);
        if (times == 0) continue;
        double off = (double)p->presence_penalty + (double)p->frequency_penalty * times;
        x[i] = cut_to_finite((double)x[i] - off);
    }
    for (uint32_t b = 0; b < bias_count(p); b++) {
        if (p->bias[b].token >= vocab) continue;
        float *at = &x[seen[p->bias[b].token]];
        if (isfinite(*at)) *at = cut_to_finite((double)*at + (double)p->bias[b].bias);
    }
}
