/* From logits to a token: exact, reproducible, stateless.
 *
 * Called by the worker that computes the last stage. The random number of a token depends only on (seed, index of
 * the token in the sequence), so a request replayed after a worker's death draws the same numbers. Pure functions
 * over caller-owned memory; documented order: repetition penalty (prompt and output) -> presence and frequency
 * penalties (output only) -> logit bias -> [temperature 0: argmax, lowest id on a tie] -> temperature -> top-k ->
 * top-p -> min-p -> draw. Reported logprobs are those of the model, before any of this. */
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
    uint32_t logprobs;        /* how many alternatives to report, 0..SAMPLING_LOGPROBS_MAX; with 0 none is computed */
    uint64_t seed;
    uint32_t bias_count;
    struct {
        uint32_t token;
        float bias; /* in [-100, 100] */
    } bias[SAMPLING_BIAS_MAX];
};

struct sampling_result {
    uint32_t token;
    float logprob;         /* of `token`; 0 when logprobs == 0 */
    uint32_t top_count;    /* min(params.logprobs, vocab) */
    struct {
        uint32_t token;
        float logprob;
    } top[SAMPLING_LOGPROBS_MAX]; /* falling; lowest id first on a tie */
};

/* Bytes of scratch sample() needs for this vocabulary. */
size_t sampling_scratch_bytes(uint32_t vocab);

/* Draws one token. logits[vocab] is not modified. history[0..history_count) are the sequence's tokens so far, of
 * which the first prompt_count are the prompt; index of the new token = history_count. If no logit is finite
 * returns -1 (the caller reports a failed step), else 0. */
int sampling_draw(const struct sampling_params *params, const float *logits, uint32_t vocab, const uint32_t *history,
                  uint32_t history_count, uint32_t prompt_count, void *scratch, struct sampling_result *result);

#endif
