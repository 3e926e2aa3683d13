/* From logits to a token: exact, reproducible, stateless.
 *
 * Called by the worker that computes the last stage. Pure functions over caller-owned memory. The steps in
 * their order, where x is a token's logit and "falling order" is by falling x, lowest id first on a tie:
 *
 * 1. Non-finite logits: a token whose logit is NaN, +inf or -inf is out: never drawn, never listed. What the
 *    next steps make of a finite logit is cut to the finite range of float.
 * 2. Repetition penalty: each distinct token of prompt and output, once: x > 0 ? x / penalty : x * penalty.
 * 3. Presence and frequency penalty: each distinct token of the output:
 *    x -= presence + frequency * (times it occurs in the output).
 * 4. Bias: x += bias for each entry of the list; entries for the same token add up.
 * 5. Temperature 0: the token with the largest x, lowest id on a tie; nothing below happens.
 *    Temperature T: weight = floor(2^40 * exp((x - largest x) / T)), whole numbers, so that sums do not
 *    depend on their order. exp is our own, within 2 ulp, the same bits on every x86-64. A token less than
 *    2^-40 times as likely as the best weighs 0.
 * 6. Top-k: the first k in falling order stay.
 * 7. Top-p: of those, the shortest prefix in falling order that weighs at least p times their sum.
 * 8. Min-p: of those, the ones with weight >= floor(2^40 * min_p), min_p times the best token's.
 * 9. Draw: a 53-bit number u from Philox4x32-10 (key: seed; counter: index of the token in the sequence)
 *    picks, in order of ids, the first token whose running sum exceeds floor(u * sum / 2^53).
 *
 * So a request replayed after a worker's death draws the same tokens. Ids at or above vocab in the history
 * or in the bias list are ignored. Reported logprobs are those of the model, before any of this:
 * log-softmax over the finite logits. */
#ifndef HELM_COMMON_SAMPLING_H
#define HELM_COMMON_SAMPLING_H

#include <stddef.h>
#include <stdint.h>

#define SAMPLING_BIAS_MAX     300
#define SAMPLING_LOGPROBS_MAX 20

struct sampling_params {
    float temperature;        /* 0 = greedy; at most 100 */
    uint32_t top_k;           /* 0 = off */
    float top_p;              /* 1 = off; in (0, 1] */
    float min_p;              /* 0 = off; in [0, 1] */
    float repetition_penalty; /* 1 = off; in (0, 100] */
    float presence_penalty;   /* 0 = off; in [-2, 2] */
    float frequency_penalty;
    uint32_t
        logprobs; /* how many alternatives to report, 0..SAMPLING_LOGPROBS_MAX; with 0 none is computed */
    uint64_t seed;
    uint32_t bias_count;
    struct {
        uint32_t token;
        float bias; /* in [-100, 100] */
    } bias[SAMPLING_BIAS_MAX];
};

struct sampling_result {
    uint32_t token;
    float logprob;      /* of `token`; 0 when logprobs == 0 */
    uint32_t top_count; /* params.logprobs, or how many finite logits there are if fewer */
    struct {
        uint32_t token;
        float logprob;
    } top[SAMPLING_LOGPROBS_MAX]; /* falling; lowest id first on a tie */
};

/* Bytes of scratch sampling_draw needs for this vocabulary; 64-byte aligned. */
size_t sampling_scratch_bytes(uint32_t vocab);

/* Draws one token. logits[vocab] is not modified. history[0..history_count) are the sequence's tokens so far,
 * of which the first prompt_count are the prompt; index of the new token = history_count. If no logit is
 * finite returns -1 (the caller reports a failed step), else 0. */
int sampling_draw(const struct sampling_params *params, const float *logits, uint32_t vocab,
                  const uint32_t *history, uint32_t history_count, uint32_t prompt_count, void *scratch,
                  struct sampling_result *result);

#endif
